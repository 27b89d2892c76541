/* SPDX-License-Identifier: Apache-2.0 */
/* The windows of a text: see perplexity.h. */
#include "perplexity.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = PERPLEXITY_WINDOW, COUNTED = PERPLEXITY_COUNTED, ROWS = 64 };

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

attn_status perplexity_open(lm_session *s, perplexity *p, attn_message *message) {
  *p = (perplexity){.s = s, .needs = {1, WINDOW, NULL, 0, false}};
  attn_status status = read_bos(s, &p->bos, message);
  if (status == ATTN_OK && s->params.context < WINDOW) {
    status = lm_fail(message, ATTN_E_RANGE, "%s: llama.context_length is %d; accepted for perplexity are %d and more",
                     s->file.path, s->params.context, WINDOW);
  }
  if (status == ATTN_OK) {
    status = read_ids(s, &p->ids, message);
  }
  if (status != ATTN_OK) {
    return status;
  }
  p->windows = (p->ids.count - (WINDOW - 1)) / COUNTED + 1;
  p->logits = malloc((size_t)ROWS * (size_t)s->params.vocabulary * sizeof p->logits[0]);
  if (p->logits == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the logits of %d tokens", ROWS);
  }
  return session_prepare(s, &p->needs, message);
}

void perplexity_close(perplexity *p) {
  lm_ids_free(&p->ids);
  free(p->logits);
}

/* Position i's logits tell of id i + 1, so the last id is never fed. */
attn_status perplexity_run(perplexity *p, size_t window, perplexity_take take, void *context, attn_message *message) {
  const int32_t silent = WINDOW - COUNTED - 1;
  const int32_t vocabulary = p->s->params.vocabulary;
  int32_t ids[WINDOW];
  ids[0] = p->bos;
  memcpy(ids + 1, p->ids.data + window * COUNTED, (WINDOW - 1) * sizeof ids[0]);
  attn_status status = session_feed(p->s, ids, 0, silent, 0, NULL, message);
  for (int32_t at = silent; at < WINDOW - 1 && status == ATTN_OK; at += ROWS) {
    const int32_t count = WINDOW - 1 - at < ROWS ? WINDOW - 1 - at : ROWS;
    status = session_feed(p->s, ids + at, at, count, count, p->logits, message);
    for (int32_t i = 0; i < count && status == ATTN_OK; i++) {
      take(context, at - silent + i, p->logits + (int64_t)i * vocabulary, ids[at + i + 1]);
    }
  }
  return status == ATTN_OK ? lm_attention_finish(p->s->attention, 0, message) : status;
}

double perplexity_log_sum(const float *logits, int32_t count) {
  double best = (double)logits[0];
  for (int32_t i = 1; i < count; i++) {
    best = (double)logits[i] > best ? (double)logits[i] : best;
  }
  double total = 0;
  for (int32_t i = 0; i < count; i++) {
    total += exp((double)logits[i] - best);
  }
  return log(total) + best;
}

size_t perplexity_scale_count(const perplexity *p) {
  return (size_t)p->s->params.layers * 2 * (size_t)p->s->params.kv_heads;
}

void perplexity_scales(const perplexity *p, const lm_formats *formats, const float *largest, float *scales) {
  const size_t heads = (size_t)p->s->params.kv_heads;
  for (size_t i = 0; i < perplexity_scale_count(p); i++) {
    const attn_format format = i / heads % 2 == 0 ? formats->k.format : formats->v.format;
    const float range = lm_format_static_range(format);
    const float scale = range > 0 ? largest[i] / range : 1;
    scales[i] = scale > 0 && isfinite(scale) ? scale : 1; /* a head of zeros; infinities end in logits, told there */
  }
}
