/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `attn-lm perplexity` with one format of the cache; perplexity_formats.c compares them all. Log-probabilities are
 * formed and summed in double.
 */
#include "lm_commands.h"
#include "perplexity.h"
#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct result {
  const perplexity *p;
  double sum; /* of the negative log-probabilities */
  double seconds;
} result;

static void add(void *context, int32_t position, const float *logits, int32_t id) {
  result *r = context;
  (void)position;
  r->sum += perplexity_log_sum(logits, r->p->s->params.vocabulary) - (double)logits[id];
}

static void ignore(void *context, int32_t position, const float *logits, int32_t id) {
  (void)context;
  (void)position;
  (void)logits;
  (void)id;
}

/* The cache gets static scales by what a float32 cache holds of the first window. */
static attn_status choose_scales(perplexity *p, attn_message *message) {
  const lm_formats *formats = &p->s->options.formats;
  const size_t count = perplexity_scale_count(p);
  float *scales = calloc(2 * count, sizeof scales[0]);
  if (scales == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the scales of %d layers", p->s->params.layers);
  }
  float *largest = scales + count;
  const lm_storage plain = {{{ATTN_FORMAT_FLOAT32, false}, {ATTN_FORMAT_FLOAT32, false}}, NULL, largest};
  attn_status status = session_store(p->s, &p->needs, &plain, message);
  if (status == ATTN_OK) {
    status = perplexity_run(p, 0, ignore, NULL, message);
  }
  if (status == ATTN_OK) {
    perplexity_scales(p, formats, largest, scales);
    const lm_storage storage = {*formats, scales, NULL};
    status = session_store(p->s, &p->needs, &storage, message);
  }
  free(scales);
  return status;
}

static attn_status run_windows(perplexity *p, result *r, attn_message *message) {
  progress bar;
  attn_status status = ATTN_OK;
  const double start = session_seconds();
  progress_start(&bar);
  for (size_t i = 0; i < p->windows && status == ATTN_OK; i++) {
    progress_show(&bar, "window %zu of %zu, %.0f s left", i + 1, p->windows,
                  progress_left(&bar, (double)i, (double)p->windows));
    status = perplexity_run(p, i, add, r, message);
  }
  progress_hide(&bar);
  r->seconds = session_seconds() - start;
  if (status == ATTN_OK && !isfinite(r->sum)) {
    status = lm_fail(message, ATTN_E_RANGE, "the model's logits are not numbers; accepted are finite weights");
  }
  return status;
}

static attn_status print(const result *r, attn_message *message) {
  const perplexity *p = r->p;
  const lm_session *s = p->s;
  const double counted = (double)p->windows * PERPLEXITY_COUNTED;
  if (!s->options.json) {
    (void)printf("perplexity  %.6f\nwindows     %zu of %d tokens, %.0f counted, of %zu in the text\n",
                 exp(r->sum / counted), p->windows, PERPLEXITY_WINDOW, counted, p->ids.count);
    (void)printf("speed       %.1f tokens/s\nbackend     %s, %d thread%s; products by %s\n",
                 (double)p->windows * (PERPLEXITY_WINDOW - 1) / r->seconds, lm_attention_backend(s->attention),
                 s->threads, s->threads > 1 ? "s" : "", gemm_name());
    (void)printf("precision   %s, cache %s%s\n", session_compute_name(s), lm_formats_name(&s->options.formats).text,
                 s->options.scales == LM_SCALES_AUTO ? ", scales of the first window" : "");
    return session_flush(message);
  }
  json_writer w;
  json_start(&w, stdout);
  json_object(&w, NULL);
  json_number(&w, "perplexity", exp(r->sum / counted), 9);
  json_number(&w, "mean_negative_log_probability", r->sum / counted, 12);
  json_unsigned(&w, "windows", p->windows);
  json_number(&w, "counted_tokens", counted, 15);
  json_line(&w);
  json_number(&w, "seconds", r->seconds, 6);
  session_write_settings(s, &w);
  json_string(&w, "kv_scales", s->options.scales == LM_SCALES_AUTO ? "auto" : "1");
  json_line(&w);
  json_int32_list(&w, "ids", p->ids.data, p->ids.count);
  json_finish(&w);
  return session_flush(message);
}

static attn_status measure(perplexity *p, attn_message *message) {
  result r = {p, 0, 0};
  attn_status status = p->s->options.scales == LM_SCALES_AUTO ? choose_scales(p, message) : ATTN_OK;
  if (status == ATTN_OK) {
    status = run_windows(p, &r, message);
  }
  return status == ATTN_OK ? print(&r, message) : status;
}

attn_status command_perplexity(lm_session *s, attn_message *message) {
  perplexity p;
  attn_status status = perplexity_open(s, &p, message);
  if (status == ATTN_OK) {
    status = s->options.all_formats ? perplexity_compare(&p, message) : measure(&p, message);
  }
  perplexity_close(&p);
  return status;
}
