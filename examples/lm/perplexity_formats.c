/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `attn-lm perplexity --all-formats`. Each window is computed with every format before the next one begins, so that
 * float32's logits of one window are all that the divergences need. Sums are formed in double. Rows beyond the range of
 * a format (float16's, say) may end in logits that are no numbers: then its perplexity and divergence are none either.
 */
#include "perplexity.h"
#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AGREE = 256 }; /* counted positions, the text's first, whose best token is compared */

/* float32 comes first. A format with separate scales has the same values as with inline ones. */
static const char *const names[] = {
    "float32",
    "float16",
    "bfloat16",
    "fp8_e4m3",
    "fp8_e5m2",
    "int8_per_token_head",
    "fp8_per_token_head",
    "int4_per_token_head",
    "int8_per_token_head,int4_per_token_head",
    "int4_per_token_head,int8_per_token_head",
    "fp8_per_token_head,int4_per_token_head",
    "float32,int4_per_token_head",
    "int4_per_token_head,float32",
};

enum { NAMES = sizeof names / sizeof names[0], MOST = 2 * NAMES };

typedef struct score {
  const char *name;
  lm_formats formats;
  const char *scales; /* "auto" or "1" where the format has static ones; NULL */
  const char *backend;
  double bytes_per_token;
  double surprise;   /* sum of -log p */
  double divergence; /* sum of KL(float32 || this) */
  int32_t agree;
} score;

typedef struct comparison {
  perplexity *p;
  score scores[MOST];
  size_t count;
  float *plain;                           /* [COUNTED, vocabulary] float32's logits of this window */
  double plain_sums[PERPLEXITY_COUNTED];  /* their log_sum */
  int32_t plain_best[PERPLEXITY_COUNTED]; /* the first of the best tokens */
  float *largest;                         /* [layers, 2, kv_heads] */
  float *scales;
  size_t window;
  size_t format; /* that runs now */
} comparison;

static int32_t best(const float *logits, int32_t count) {
  int32_t found = 0;
  for (int32_t i = 1; i < count; i++) {
    found = logits[i] > logits[found] ? i : found;
  }
  return found;
}

static void take(void *context, int32_t position, const float *logits, int32_t id) {
  comparison *c = context;
  score *s = &c->scores[c->format];
  const int32_t vocabulary = c->p->s->params.vocabulary;
  const double sum = perplexity_log_sum(logits, vocabulary);
  float *plain = c->plain + (int64_t)position * vocabulary;
  if (c->format == 0) {
    memcpy(plain, logits, (size_t)vocabulary * sizeof plain[0]);
    c->plain_sums[position] = sum;
    c->plain_best[position] = best(logits, vocabulary);
  }
  s->surprise += sum - (double)logits[id];
  s->agree += c->window == 0 && position < AGREE && best(logits, vocabulary) == c->plain_best[position];
  const double shift = sum - c->plain_sums[position];
  for (int32_t i = 0; i < vocabulary && c->format > 0; i++) {
    const double ratio = (double)plain[i] - (double)logits[i] + shift;
    s->divergence += exp((double)plain[i] - c->plain_sums[position]) * ratio;
  }
}

static attn_status run_format(comparison *c, attn_message *message) {
  const lm_session *s = c->p->s;
  score *found = &c->scores[c->format];
  const bool measures = s->options.scales != LM_SCALES_ONE && c->window == 0 && c->format == 0;
  lm_storage storage = {found->formats, NULL, measures ? c->largest : NULL};
  if (found->scales != NULL && strcmp(found->scales, "auto") == 0) {
    perplexity_scales(c->p, &found->formats, c->largest, c->scales);
    storage.scales = c->scales;
  }
  attn_status status = session_store(c->p->s, &c->p->needs, &storage, message);
  if (status == ATTN_OK) {
    found->backend = lm_attention_backend(s->attention);
    found->bytes_per_token = lm_attention_bytes_per_token(s->attention);
    status = perplexity_run(c->p, c->window, take, c, message);
  }
  if (status == ATTN_OK && c->format == 0 && !isfinite(found->surprise)) {
    status = lm_fail(message, ATTN_E_RANGE, "the model's logits are not numbers; accepted are finite weights");
  }
  return status;
}

static attn_status run_windows(comparison *c, attn_message *message) {
  progress bar;
  attn_status status = ATTN_OK;
  const size_t total = c->p->windows * c->count;
  progress_start(&bar);
  for (size_t i = 0; i < total && status == ATTN_OK; i++) {
    c->window = i / c->count;
    c->format = i % c->count;
    progress_show(&bar, "window %zu of %zu, %s, %.0f s left", c->window + 1, c->p->windows, c->scores[c->format].name,
                  progress_left(&bar, (double)i, (double)total));
    status = run_format(c, message);
  }
  progress_hide(&bar);
  return status;
}

/* Rows of one name: two where its static scales are to be of both kinds. */
static attn_status add_scores(comparison *c, const char *name, attn_message *message) {
  const lm_scales scales = c->p->s->options.scales;
  lm_formats formats;
  const attn_status status = lm_formats_parse("--all-formats", name, &formats, message);
  if (status != ATTN_OK) {
    return status;
  }
  const bool is_static = lm_format_static_range(formats.k.format) > 0 || lm_format_static_range(formats.v.format) > 0;
  if (!is_static || scales != LM_SCALES_AUTO) {
    c->scores[c->count++] = (score){.name = name, .formats = formats, .scales = is_static ? "1" : NULL};
  }
  if (is_static && scales != LM_SCALES_ONE) {
    c->scores[c->count++] = (score){.name = name, .formats = formats, .scales = "auto"};
  }
  const lm_storage storage = {formats, NULL, NULL};
  return session_store(c->p->s, &c->p->needs, &storage, message);
}

/* What a backend refuses of one format is told before the first window. */
static attn_status prepare(comparison *c, attn_message *message) {
  const size_t vocabulary = (size_t)c->p->s->params.vocabulary;
  const size_t scales = perplexity_scale_count(c->p);
  c->plain = malloc(PERPLEXITY_COUNTED * vocabulary * sizeof c->plain[0]);
  c->largest = calloc(scales, sizeof c->largest[0]);
  c->scales = calloc(scales, sizeof c->scales[0]);
  if (c->plain == NULL || c->largest == NULL || c->scales == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the logits of %d tokens", PERPLEXITY_COUNTED);
  }
  attn_status status = ATTN_OK;
  for (size_t i = 0; i < NAMES && status == ATTN_OK; i++) {
    status = add_scores(c, names[i], message);
  }
  return status;
}

static double counted(const comparison *c) {
  return (double)c->p->windows * PERPLEXITY_COUNTED;
}

static void print_json(const comparison *c) {
  json_writer w;
  json_start(&w, stdout);
  json_array(&w, NULL);
  for (size_t i = 0; i < c->count; i++) {
    const score *s = &c->scores[i];
    json_line(&w);
    json_object(&w, NULL);
    json_string(&w, "format", s->name);
    if (c->p->s->options.scales == LM_SCALES_BOTH && s->scales != NULL) {
      json_string(&w, "kv_scales", s->scales);
    }
    json_number(&w, "bytes_per_token", s->bytes_per_token, 15);
    json_number(&w, "perplexity", exp(s->surprise / counted(c)), 9);
    json_number(&w, "kl", s->divergence / counted(c), 6);
    json_integer(&w, "agree", s->agree);
    json_end(&w);
  }
  json_finish(&w);
}

static void print_text(const comparison *c) {
  const lm_session *s = c->p->s;
  (void)printf("%zu windows of %d tokens, %.0f counted, of %zu in the text; %d thread%s; products by %s, float32\n\n",
               c->p->windows, PERPLEXITY_WINDOW, counted(c), c->p->ids.count, s->threads, s->threads > 1 ? "s" : "",
               gemm_name());
  (void)printf("%-40s %6s %11s %11s %10s %9s %7s  %s\n", "cache", "scales", "bytes/token", "perplexity", "to float32",
               "KL, nats", "same", "backend");
  for (size_t i = 0; i < c->count; i++) {
    const score *r = &c->scores[i];
    const double change = exp((r->surprise - c->scores[0].surprise) / counted(c)) - 1;
    (void)printf("%-40s %6s %11.0f %11.6f %+8.2f %% %9.3g %3d/%d  %s\n", r->name, r->scales != NULL ? r->scales : "",
                 r->bytes_per_token, exp(r->surprise / counted(c)), 100 * change, r->divergence / counted(c), r->agree,
                 AGREE, r->backend);
  }
}

attn_status perplexity_compare(perplexity *p, attn_message *message) {
  comparison *c = calloc(1, sizeof *c);
  if (c == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the comparison of %d formats", NAMES);
  }
  c->p = p;
  attn_status status = prepare(c, message);
  if (status == ATTN_OK) {
    status = run_windows(c, message);
  }
  if (status == ATTN_OK) {
    (p->s->options.json ? print_json : print_text)(c);
    status = session_flush(message);
  }
  free(c->plain);
  free(c->largest);
  free(c->scales);
  free(c);
  return status;
}
