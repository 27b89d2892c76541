/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `attn-lm bench`: at each length, the tokens per second of a prompt and of single decode steps behind it. Ids are
 * pseudo-random, since their values do not matter to the speed. One run of each kind warms up and is not counted.
 */
#include "lm_commands.h"
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>

enum { DECODE_STEPS = 16 }; /* of one run */

typedef struct bench {
  lm_session *s;
  int32_t *ids;    /* [longest + DECODE_STEPS] */
  float *logits;   /* [vocabulary] */
  double *seconds; /* [repeat + 1] */
  progress line;
} bench;

typedef struct speeds {
  double prefill;
  double decode;
} speeds;

static int compare(const void *left, const void *right) {
  const double a = *(const double *)left;
  const double b = *(const double *)right;
  return (a > b) - (a < b);
}

/* Of the runs behind the first. */
static double median(double *seconds, int32_t count) {
  qsort(seconds + 1, (size_t)count, sizeof seconds[0], compare);
  const double upper = seconds[1 + count / 2];
  return count % 2 != 0 ? upper : (upper + seconds[count / 2]) / 2;
}

/* Each run is a fresh sequence: its prompt is timed, then its decode steps. */
static attn_status measure(bench *b, int32_t length, double *decode_seconds, speeds *out, attn_message *message) {
  lm_session *s = b->s;
  const int32_t repeat = s->options.repeat;
  attn_status status = ATTN_OK;
  for (int32_t run = 0; run <= repeat && status == ATTN_OK; run++) {
    progress_show(&b->line, "attn-lm bench: length %d, run %d of %d", length, run + 1, repeat + 1);
    double start = session_seconds();
    status = session_feed(s, b->ids, 0, length, 1, b->logits, message);
    b->seconds[run] = session_seconds() - start;
    start = session_seconds();
    for (int32_t i = 0; i < DECODE_STEPS && status == ATTN_OK; i++) {
      status = session_feed(s, b->ids + length + i, length + i, 1, 1, b->logits, message);
    }
    decode_seconds[run] = session_seconds() - start;
    if (status == ATTN_OK) {
      status = lm_attention_finish(s->attention, 0, message);
    }
  }
  if (status == ATTN_OK) {
    out->prefill = length / median(b->seconds, repeat);
    out->decode = DECODE_STEPS / median(decode_seconds, repeat);
  }
  return status;
}

static void print_head(const bench *b, json_writer *w) {
  const lm_session *s = b->s;
  if (s->options.json) {
    json_start(w, stdout);
    json_object(w, NULL);
    session_write_settings(s, w);
    json_integer(w, "repeat", s->options.repeat);
    json_array(w, "results");
    return;
  }
  (void)printf("%s, cache %s; backend %s, %d thread%s; products by %s; medians of %d\n\n", session_compute_name(s),
               lm_formats_name(&s->options.formats).text, lm_attention_backend(s->attention), s->threads,
               s->threads > 1 ? "s" : "", gemm_name(), s->options.repeat);
  (void)printf("  length   prefill tokens/s   decode tokens/s\n");
}

static void print_row(const bench *b, int32_t length, const speeds *found, json_writer *w) {
  if (b->s->options.json) {
    json_line(w);
    json_object(w, NULL);
    json_integer(w, "length", length);
    json_number(w, "prefill_tokens_per_second", found->prefill, 6);
    json_number(w, "decode_tokens_per_second", found->decode, 6);
    json_end(w);
  } else {
    (void)printf("%8d   %16.1f   %15.1f\n", length, found->prefill, found->decode);
  }
  (void)fflush(stdout);
}

static attn_status run(bench *b, double *decode_seconds, attn_message *message) {
  const lm_options *options = &b->s->options;
  json_writer w;
  progress_start(&b->line);
  print_head(b, &w);
  attn_status status = ATTN_OK;
  for (size_t i = 0; i < options->length_count && status == ATTN_OK; i++) {
    speeds found = {0, 0};
    status = measure(b, options->lengths[i], decode_seconds, &found, message);
    progress_hide(&b->line);
    if (status == ATTN_OK) {
      print_row(b, options->lengths[i], &found, &w);
    }
  }
  if (status == ATTN_OK && options->json) {
    json_finish(&w);
  }
  return status == ATTN_OK ? session_flush(message) : status;
}

attn_status command_bench(lm_session *s, attn_message *message) {
  int32_t longest = 0;
  for (size_t i = 0; i < s->options.length_count; i++) {
    longest = s->options.lengths[i] > longest ? s->options.lengths[i] : longest;
  }
  if (longest > s->params.context - DECODE_STEPS) {
    return lm_fail(message, ATTN_E_RANGE, "--lengths has %d; accepted are 1 to %d, the context less %d decode steps",
                   longest, s->params.context - DECODE_STEPS, DECODE_STEPS);
  }
  const size_t count = (size_t)longest + DECODE_STEPS;
  const size_t runs = (size_t)s->options.repeat + 1;
  bench b = {s,
             malloc(count * sizeof(int32_t)),
             malloc((size_t)s->params.vocabulary * sizeof(float)),
             malloc(runs * sizeof(double)),
             {0}};
  double *decode_seconds = malloc(runs * sizeof(double));
  attn_status status = ATTN_OK;
  if (b.ids == NULL || b.logits == NULL || b.seconds == NULL || decode_seconds == NULL) {
    status = lm_fail(message, ATTN_E_NOMEM, "no memory for %zu tokens", count);
  } else {
    sampler_stream stream = sampler_stream_for(0, 0);
    for (size_t i = 0; i < count; i++) {
      b.ids[i] = (int32_t)(sampler_draw(&stream) * s->params.vocabulary);
    }
    const lm_needs needs = {1, (int32_t)count, NULL, 0, false};
    status = session_prepare(s, &needs, message);
  }
  if (status == ATTN_OK) {
    status = run(&b, decode_seconds, message);
  }
  free(b.ids);
  free(b.logits);
  free(b.seconds);
  free(decode_seconds);
  return status;
}
