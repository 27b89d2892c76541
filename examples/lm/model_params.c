/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hyperparameters of the llama family from a file's metadata. One table lists the keys that are understood; any other
 * `llama.*` key is refused, since ignoring it could silently compute another function.
 */
#include "model.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define PREFIX "llama."
#define MOST (INT64_C(1) << 24)

static const char *const known_keys[] = {
    PREFIX "block_count",          PREFIX "context_length",         PREFIX "embedding_length",
    PREFIX "feed_forward_length",  PREFIX "attention.head_count",   PREFIX "attention.head_count_kv",
    PREFIX "attention.key_length", PREFIX "attention.value_length", PREFIX "attention.layer_norm_rms_epsilon",
    PREFIX "rope.dimension_count", PREFIX "rope.freq_base",         PREFIX "rope.scaling.type",
    PREFIX "vocab_size",
};

static attn_status check_keys(const gguf_file *file, attn_message *message) {
  for (uint64_t i = 0; i < file->value_count; i++) {
    const gguf_string key = file->values[i].key;
    if (key.length < strlen(PREFIX) || memcmp(key.data, PREFIX, strlen(PREFIX)) != 0) {
      continue;
    }
    bool known = false;
    for (size_t j = 0; j < sizeof known_keys / sizeof known_keys[0]; j++) {
      known = known || gguf_string_equals(key, known_keys[j]);
    }
    if (!known) {
      const lm_quoted found = lm_quote(key.data, key.length);
      return lm_fail(message, ATTN_E_UNSUPPORTED, "%s: key %s is not understood and could change what is computed",
                     file->path, found.text);
    }
  }
  return ATTN_OK;
}

static attn_status check_family(const gguf_file *file, attn_message *message) {
  gguf_string name = {NULL, 0};
  attn_status status = gguf_get_string(file, "general.architecture", &name, message);
  if (status == ATTN_OK && !gguf_string_equals(name, "llama")) {
    const lm_quoted found = lm_quote(name.data, name.length);
    status =
        lm_fail(message, ATTN_E_NAME, "%s: general.architecture is %s; accepted is 'llama'", file->path, found.text);
  }
  if (status == ATTN_OK && gguf_find(file, PREFIX "rope.scaling.type") != NULL) {
    status = gguf_get_string(file, PREFIX "rope.scaling.type", &name, message);
    if (status == ATTN_OK && !gguf_string_equals(name, "none")) {
      const lm_quoted found = lm_quote(name.data, name.length);
      status = lm_fail(message, ATTN_E_UNSUPPORTED, "%s: " PREFIX "rope.scaling.type is %s; accepted is 'none'",
                       file->path, found.text);
    }
  }
  return status;
}

/* A count from 1 to `most`; a negative fallback makes the key required. */
static attn_status read_count(const gguf_file *file, const char *key, int64_t most, int64_t fallback, int32_t *out,
                              attn_message *message) {
  uint64_t value = 0;
  attn_status status = fallback < 0 ? gguf_get_u64(file, key, &value, message)
                                    : gguf_get_u64_or(file, key, (uint64_t)fallback, &value, message);
  if (status != ATTN_OK) {
    return status;
  }
  if (value < 1 || value > (uint64_t)most) {
    return lm_fail(message, ATTN_E_RANGE, "%s: %s is %" PRIu64 "; accepted are 1 to %" PRId64, file->path, key, value,
                   most);
  }
  *out = (int32_t)value;
  return ATTN_OK;
}

static attn_status read_float(const gguf_file *file, const char *key, double fallback, double least, double most,
                              double *out, attn_message *message) {
  attn_status status = gguf_get_f64_or(file, key, fallback, out, message);
  if (status == ATTN_OK && !(*out >= least && *out <= most)) {
    status = lm_fail(message, ATTN_E_RANGE, "%s: %s is %g; accepted are %g to %g", file->path, key, *out, least, most);
  }
  return status;
}

static attn_status read_counts(const gguf_file *file, model_params *p, attn_message *message) {
  attn_status status = read_count(file, PREFIX "block_count", 4096, -1, &p->layers, message);
  if (status == ATTN_OK) {
    status = read_count(file, PREFIX "embedding_length", MOST, -1, &p->width, message);
  }
  if (status == ATTN_OK) {
    status = read_count(file, PREFIX "feed_forward_length", MOST, -1, &p->hidden, message);
  }
  if (status == ATTN_OK) {
    status = read_count(file, PREFIX "attention.head_count", 4096, -1, &p->heads, message);
  }
  if (status == ATTN_OK) {
    status = read_count(file, PREFIX "attention.head_count_kv", 4096, p->heads, &p->kv_heads, message);
  }
  if (status == ATTN_OK) {
    status = read_count(file, PREFIX "context_length", INT32_MAX / 2, -1, &p->context, message);
  }
  if (status == ATTN_OK) {
    status = read_count(file, PREFIX "attention.key_length", 4096, p->width / p->heads, &p->head_size, message);
  }
  if (status == ATTN_OK) {
    status = read_count(file, PREFIX "rope.dimension_count", 4096, p->head_size, &p->rotary, message);
  }
  return status;
}

static attn_status check_counts(const gguf_file *file, const model_params *p, attn_message *message) {
  if (p->heads % p->kv_heads != 0) {
    return lm_fail(message, ATTN_E_RANGE, "%s: " PREFIX "attention.head_count %d is no multiple of head_count_kv %d",
                   file->path, p->heads, p->kv_heads);
  }
  if (gguf_find(file, PREFIX "attention.key_length") == NULL && p->width % p->heads != 0) {
    return lm_fail(message, ATTN_E_RANGE, "%s: " PREFIX "embedding_length %d is no multiple of attention.head_count %d",
                   file->path, p->width, p->heads);
  }
  int32_t value_size = 0;
  attn_status status = read_count(file, PREFIX "attention.value_length", 4096, p->head_size, &value_size, message);
  if (status != ATTN_OK) {
    return status;
  }
  if (value_size != p->head_size) {
    return lm_fail(message, ATTN_E_UNSUPPORTED,
                   "%s: " PREFIX "attention.value_length is %d; accepted is key_length, %d", file->path, value_size,
                   p->head_size);
  }
  if (p->rotary > p->head_size || p->rotary % 2 != 0) {
    return lm_fail(message, ATTN_E_RANGE,
                   "%s: " PREFIX "rope.dimension_count is %d; accepted are even numbers up to %d", file->path,
                   p->rotary, p->head_size);
  }
  return ATTN_OK;
}

/* The embedding's rows are the vocabulary; the other places that count it have to agree. */
static attn_status read_vocabulary(const gguf_file *file, model_params *p, attn_message *message) {
  const gguf_tensor *embedding = gguf_find_tensor(file, "token_embd.weight");
  if (embedding == NULL || embedding->n_dims != 2 || embedding->dims[1] > (uint64_t)MOST) {
    return lm_fail(message, ATTN_E_SHAPE,
                   "%s: tensor 'token_embd.weight' is %s; accepted is a matrix of up to 2^24 rows", file->path,
                   embedding == NULL ? "missing" : "of another shape");
  }
  p->vocabulary = (int32_t)embedding->dims[1];
  uint64_t stated = 0;
  attn_status status = gguf_get_u64_or(file, PREFIX "vocab_size", (uint64_t)p->vocabulary, &stated, message);
  if (status != ATTN_OK) {
    return status;
  }
  const gguf_value *tokens = gguf_find(file, "tokenizer.ggml.tokens");
  const uint64_t listed = tokens != NULL && tokens->kind == GGUF_ARRAY ? tokens->count : stated;
  if (stated != (uint64_t)p->vocabulary || listed != (uint64_t)p->vocabulary) {
    return lm_fail(message, ATTN_E_SHAPE,
                   "%s: 'token_embd.weight' has %d rows, " PREFIX "vocab_size is %" PRIu64 ", tokens are %" PRIu64
                   "; accepted is one number",
                   file->path, p->vocabulary, stated, listed);
  }
  return ATTN_OK;
}

attn_status model_read_params(const gguf_file *file, model_params *params, attn_message *message) {
  model_params p = {0};
  double epsilon = 0;
  attn_status status = check_family(file, message);
  if (status == ATTN_OK) {
    status = check_keys(file, message);
  }
  if (status == ATTN_OK) {
    status = read_counts(file, &p, message);
  }
  if (status == ATTN_OK) {
    status = check_counts(file, &p, message);
  }
  if (status == ATTN_OK) {
    status = read_vocabulary(file, &p, message);
  }
  if (status == ATTN_OK) {
    status = read_float(file, PREFIX "attention.layer_norm_rms_epsilon", 1e-5, 1e-12, 1e-1, &epsilon, message);
  }
  if (status == ATTN_OK) {
    status = read_float(file, PREFIX "rope.freq_base", 1e4, 1.0, 1e12, &p.rotary_base, message);
  }
  if (status == ATTN_OK) {
    p.epsilon = (float)epsilon;
    *params = p;
  }
  return status;
}
