/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perplexity_bytes MODEL TEXT FORMAT[@auto]...: what attn-lm's cache holds of a text, for
 * formats/simulate_perplexity.py --bytes, on standard output. For each window, and in it for each format: the rows of
 * K, then of V, of each layer, all positions of the window but the last (which is never fed) and all heads, inline
 * scales included; then the sum of the negative log-probabilities that attn-lm found there, a double. Bytes are the
 * machine's. FORMAT is as in --cache-format; with @auto its static scales are those of --kv-scales auto, taken from the
 * first window of a first format float32.
 */
#include "perplexity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FORMATS = 32 };

typedef struct dump {
  perplexity p;
  lm_formats formats[MOST_FORMATS];
  bool autos[MOST_FORMATS];
  size_t count;
  float *largest;
  float *scales;
  double sum; /* of the window that runs */
} dump;

static void add(void *context, int32_t position, const float *logits, int32_t id) {
  dump *d = context;
  (void)position;
  d->sum += perplexity_log_sum(logits, d->p.s->params.vocabulary) - (double)logits[id];
}

static attn_status put(const void *data, size_t bytes, attn_message *message) {
  return fwrite(data, 1, bytes, stdout) == bytes ? ATTN_OK
                                                 : lm_fail(message, ATTN_E_IO, "standard output cannot be written");
}

static attn_status put_rows(const dump *d, attn_message *message) {
  attn_status status = ATTN_OK;
  for (int32_t i = 0; i < d->p.s->params.layers * 2; i++) {
    for (int32_t position = 0; position < PERPLEXITY_WINDOW - 1 && status == ATTN_OK; position++) {
      size_t bytes = 0;
      const void *rows = lm_attention_rows(d->p.s->attention, i / 2, i % 2, position, &bytes);
      status = put(rows, bytes, message);
    }
  }
  return status;
}

static attn_status run_format(dump *d, size_t window, size_t format, attn_message *message) {
  lm_storage storage = {d->formats[format], NULL, window == 0 && format == 0 ? d->largest : NULL};
  if (d->autos[format]) {
    perplexity_scales(&d->p, &storage.formats, d->largest, d->scales);
    storage.scales = d->scales;
  }
  attn_status status = session_store(d->p.s, &d->p.needs, &storage, message);
  d->sum = 0;
  if (status == ATTN_OK) {
    status = perplexity_run(&d->p, window, add, d, message);
  }
  if (status == ATTN_OK) {
    status = put_rows(d, message);
  }
  return status == ATTN_OK ? put(&d->sum, sizeof d->sum, message) : status;
}

static attn_status parse(dump *d, size_t count, char **names, attn_message *message) {
  attn_status status = count <= MOST_FORMATS ? ATTN_OK : lm_fail(message, ATTN_E_RANGE, "too many formats");
  for (d->count = 0; d->count < count && status == ATTN_OK; d->count++) {
    char *at = strchr(names[d->count], '@');
    d->autos[d->count] = at != NULL && strcmp(at, "@auto") == 0;
    if (at != NULL) {
      *at = '\0';
    }
    status = lm_formats_parse("FORMAT", names[d->count], &d->formats[d->count], message);
  }
  return status;
}

static attn_status run(dump *d, lm_session *s, size_t count, char **names, attn_message *message) {
  attn_status status = session_open(s, message);
  if (status == ATTN_OK) {
    status = perplexity_open(s, &d->p, message);
  }
  if (status == ATTN_OK) {
    status = parse(d, count, names, message);
  }
  if (status == ATTN_OK) {
    d->largest = calloc(perplexity_scale_count(&d->p), sizeof(float));
    d->scales = calloc(perplexity_scale_count(&d->p), sizeof(float));
    if (d->largest == NULL || d->scales == NULL) {
      status = lm_fail(message, ATTN_E_NOMEM, "no memory for the scales");
    }
  }
  for (size_t i = 0; status == ATTN_OK && i < d->p.windows * count; i++) {
    status = run_format(d, i / count, i % count, message);
  }
  return status == ATTN_OK ? session_flush(message) : status;
}

int main(int argc, char **argv) {
  if (argc < 4) {
    (void)fputs("usage: perplexity_bytes MODEL TEXT FORMAT[@auto]...\n", stderr);
    return 2;
  }
  gemm_prepare_process(argv);
  char *flags[] = {"--model", argv[1], "--file", argv[2], "--all-formats"};
  dump d = {.count = 0};
  lm_session s = {0};
  attn_message message = {ATTN_OK, ""};
  attn_status status = lm_options_parse(LM_PERPLEXITY, 5, flags, &s.options, &message);
  if (status == ATTN_OK) {
    status = run(&d, &s, (size_t)argc - 3, argv + 3, &message);
  }
  perplexity_close(&d.p);
  session_close(&s);
  free(d.largest);
  free(d.scales);
  if (status != ATTN_OK) {
    (void)fprintf(stderr, "perplexity_bytes: %s\n", message.text);
  }
  return lm_exit_code(status);
}
