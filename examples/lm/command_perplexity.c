/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `attn-lm perplexity`. Window k is bos, then WINDOW - 1 ids from COUNTED * k on; the log-probabilities of its last
 * COUNTED ids count. Log-probabilities are formed and summed in double; rows are taken few at a time, since a row has
 * as many logits as the vocabulary has tokens.
 */
#include "lm_commands.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 1024, COUNTED = 512, ROWS = 64 };

typedef struct result {
  size_t windows;
  double sum; /* of the negative log-probabilities */
  double seconds;
} result;

static attn_status read_ids(lm_session *s, lm_ids *ids, attn_message *message) {
  char *text = NULL;
  size_t length = 0;
  attn_status status = session_read_text("--file", s->options.file, &text, &length, message);
  if (status == ATTN_OK) {
    status = tokenizer_encode(s->tok, text, length, ids, message);
  }
  free(text);
  if (status == ATTN_OK && ids->count < WINDOW - 1) {
    status = lm_fail(message, ATTN_E_RANGE, "--file has %zu tokens; accepted are %d and more", ids->count, WINDOW - 1);
  }
  return status;
}

static attn_status read_bos(const lm_session *s, int32_t *bos, attn_message *message) {
  static const char key[] = "tokenizer.ggml.bos_token_id";
  uint64_t id = 0;
  const attn_status status = gguf_get_u64(&s->file, key, &id, message);
  if (status == ATTN_OK && id >= (uint64_t)s->params.vocabulary) {
    return lm_fail(message, ATTN_E_RANGE, "%s: %s is %" PRIu64 "; accepted are 0 to %d", s->file.path, key, id,
                   s->params.vocabulary - 1);
  }
  *bos = (int32_t)id;
  return status;
}

/* -log softmax(logits)[id]; not a number if a logit is not. */
static double surprise(const float *logits, int32_t count, int32_t id) {
  double best = (double)logits[0];
  for (int32_t i = 1; i < count; i++) {
    best = (double)logits[i] > best ? (double)logits[i] : best;
  }
  double total = 0;
  for (int32_t i = 0; i < count; i++) {
    total += exp((double)logits[i] - best);
  }
  return log(total) + best - (double)logits[id];
}

/* Position i's logits tell of id i + 1, so the last id is never fed. */
static attn_status run_window(lm_session *s, const int32_t *ids, float *logits, double *sum, attn_message *message) {
  const int32_t silent = WINDOW - COUNTED - 1;
  attn_status status = session_feed(s, ids, 0, silent, 0, NULL, message);
  for (int32_t at = silent; at < WINDOW - 1 && status == ATTN_OK; at += ROWS) {
    const int32_t count = WINDOW - 1 - at < ROWS ? WINDOW - 1 - at : ROWS;
    status = session_feed(s, ids + at, at, count, count, logits, message);
    for (int32_t i = 0; i < count && status == ATTN_OK; i++) {
      *sum += surprise(logits + (int64_t)i * s->params.vocabulary, s->params.vocabulary, ids[at + i + 1]);
    }
  }
  return status == ATTN_OK ? lm_attention_finish(s->attention, 0, message) : status;
}

static attn_status run_windows(lm_session *s, const lm_ids *ids, int32_t bos, result *r, attn_message *message) {
  int32_t window[WINDOW];
  float *logits = malloc((size_t)ROWS * (size_t)s->params.vocabulary * sizeof logits[0]);
  if (logits == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the logits of %d tokens", ROWS);
  }
  const double start = session_seconds();
  attn_status status = ATTN_OK;
  for (size_t at = 0; at + WINDOW - 1 <= ids->count && status == ATTN_OK; at += COUNTED) {
    window[0] = bos;
    memcpy(window + 1, ids->data + at, (WINDOW - 1) * sizeof window[0]);
    status = run_window(s, window, logits, &r->sum, message);
    r->windows++;
  }
  r->seconds = session_seconds() - start;
  free(logits);
  if (status == ATTN_OK && !isfinite(r->sum)) {
    status = lm_fail(message, ATTN_E_RANGE, "the model's logits are not numbers; accepted are finite weights");
  }
  return status;
}

static attn_status print(const lm_session *s, const lm_ids *ids, const result *r, attn_message *message) {
  const double counted = (double)r->windows * COUNTED;
  const char *cache = attn_format_name(s->options.format);
  const char *backend = lm_attention_backend(s->attention);
  if (!s->options.json) {
    (void)printf("perplexity  %.6f\nwindows     %zu of %d tokens, %.0f counted, of %zu in the text\n",
                 exp(r->sum / counted), r->windows, WINDOW, counted, ids->count);
    (void)printf("speed       %.1f tokens/s\nbackend     %s, %d thread%s; products by %s\n",
                 (double)r->windows * (WINDOW - 1) / r->seconds, backend, s->threads, s->threads > 1 ? "s" : "",
                 gemm_name());
    (void)printf("precision   %s, cache %s\n", session_compute_name(s), cache);
    return session_flush(message);
  }
  json_writer w;
  json_start(&w, stdout);
  json_object(&w, NULL);
  json_number(&w, "perplexity", exp(r->sum / counted), 9);
  json_number(&w, "mean_negative_log_probability", r->sum / counted, 12);
  json_unsigned(&w, "windows", r->windows);
  json_number(&w, "counted_tokens", counted, 15);
  json_line(&w);
  json_number(&w, "seconds", r->seconds, 6);
  session_write_settings(s, &w);
  json_line(&w);
  json_int32_list(&w, "ids", ids->data, ids->count);
  json_finish(&w);
  return session_flush(message);
}

attn_status command_perplexity(lm_session *s, attn_message *message) {
  lm_ids ids = {0};
  int32_t bos = 0;
  result r = {0, 0, 0};
  attn_status status = read_bos(s, &bos, message);
  if (status == ATTN_OK && s->params.context < WINDOW) {
    status = lm_fail(message, ATTN_E_RANGE, "%s: llama.context_length is %d; accepted for perplexity are %d and more",
                     s->file.path, s->params.context, WINDOW);
  }
  if (status == ATTN_OK) {
    status = read_ids(s, &ids, message);
  }
  if (status == ATTN_OK) {
    const lm_needs needs = {1, WINDOW, NULL, 0, false};
    status = session_prepare(s, &needs, message);
  }
  if (status == ATTN_OK) {
    status = run_windows(s, &ids, bos, &r, message);
  }
  if (status == ATTN_OK) {
    status = print(s, &ids, &r, message);
  }
  lm_ids_free(&ids);
  return status;
}
