/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_gguf.c: what attn-lm does with a GGUF file: opening it, every key and tensor of it, the conversion of its blocks
 * to float32, the tokenizer, the chat template and a model of its weights. The input is a file.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "chat.h"
#include "fuzz.h"
#include "gguf.h"
#include "model.h"
#include "tokenizer.h"

enum { MAX_FLOATS = 1 << 16, MAX_WEIGHTS = 1 << 16, STEP_TOKENS = 2 };

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

static void check_inside(const gguf_file *file, const void *data, uint64_t bytes) {
  const uint8_t *at = data;
  FUZZ_CHECK(at >= file->bytes && bytes <= file->size && (uint64_t)(at - file->bytes) <= file->size - bytes,
             "%llu bytes outside the file", (unsigned long long)bytes);
}

static void check_text(const gguf_file *file, gguf_string text) {
  check_inside(file, text.data, text.length);
  free(fuzz_copy(text.data, (size_t)text.length));
}

static void check_items(const gguf_file *file, const gguf_value *value) {
  static const uint8_t item_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  FUZZ_CHECK((size_t)value->item_kind < sizeof item_bytes && value->item_kind != GGUF_ARRAY, "item kind %d",
             (int)value->item_kind);
  FUZZ_CHECK(value->kind == GGUF_ARRAY || (value->kind == value->item_kind && value->count == 1), "a scalar's kind");
  if (value->item_kind != GGUF_STRING) {
    check_inside(file, value->data, value->count * item_bytes[value->item_kind]);
    return;
  }
  const uint8_t *at = value->data;
  for (uint64_t i = 0; i < value->count; i++) {
    check_inside(file, at, 8);
    check_text(file, gguf_next_string(&at));
  }
}

/* A typed read succeeds or names the key, and then leaves its output alone. */
static void check_status(attn_status status, const attn_message *message, int untouched) {
  fuzz_message_check(status, message);
  FUZZ_CHECK(status == ATTN_OK || untouched, "a failing read wrote its output: %s", message->text);
}

static void read_typed(const gguf_file *file, const char *key) {
  attn_message message;
  uint64_t number = 77;
  double real = 77.0;
  bool truth = true;
  gguf_string text = {NULL, 77};
  const gguf_value *array = NULL;
  fuzz_message_reset(&message);
  check_status(gguf_get_u64(file, key, &number, &message), &message, number == 77);
  fuzz_message_reset(&message);
  check_status(gguf_get_f64_or(file, key, 1.0, &real, &message), &message, real == 77.0);
  fuzz_message_reset(&message);
  check_status(gguf_get_bool_or(file, key, false, &truth, &message), &message, truth);
  fuzz_message_reset(&message);
  check_status(gguf_get_string(file, key, &text, &message), &message, text.length == 77);
  fuzz_message_reset(&message);
  attn_status status = gguf_get_array(file, key, GGUF_INT32, &array, &message);
  check_status(status, &message, array == NULL);
  for (uint64_t i = 0; status == ATTN_OK && i < array->count; i++) {
    (void)gguf_i32_at(array, i);
  }
}

static void check_values(const gguf_file *file) {
  for (uint64_t i = 0; i < file->value_count; i++) {
    const gguf_value *value = &file->values[i];
    check_text(file, value->key);
    check_items(file, value);
    char *key = fuzz_alloc((size_t)value->key.length + 1);
    memcpy(key, value->key.data, (size_t)value->key.length);
    key[value->key.length] = '\0';
    if (strlen(key) == value->key.length) { /* a key with a NUL in it cannot be asked for */
      FUZZ_CHECK(gguf_find(file, key) == value, "a key is not found by its name");
      read_typed(file, key);
    }
    free(key);
  }
  read_typed(file, "not there");
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* Which of two NaNs an operation passes on is the compiler's choice. */
static int same_values(const float *a, const float *b, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (memcmp(&a[i], &b[i], sizeof a[i]) != 0 && !(isnan(a[i]) && isnan(b[i]))) {
      return 0;
    }
  }
  return 1;
}

/* A row at once, and block by block: the same bits, and nothing outside of either. */
static void convert(const gguf_tensor *tensor) {
  const quant_type *type = tensor->type;
  const size_t elements = (size_t)tensor->dims[0];
  const uint64_t rows = tensor->bytes / tensor->row_bytes;
  if (elements > MAX_FLOATS) {
    return;
  }
  float *row = fuzz_alloc(elements * sizeof *row);
  float *block = fuzz_alloc(type->block_elements * sizeof *block);
  for (uint64_t r = 0; r < rows && (r + 1) * elements <= MAX_FLOATS; r++) {
    uint8_t *bytes = fuzz_copy(tensor->data + r * tensor->row_bytes, (size_t)tensor->row_bytes);
    type->to_float(bytes, elements, row);
    for (size_t b = 0; b < elements / type->block_elements; b++) {
      type->to_float(bytes + b * type->block_bytes, type->block_elements, block);
      FUZZ_CHECK(same_values(block, row + b * type->block_elements, type->block_elements),
                 "%s: block %zu alone differs", type->name, b);
    }
    free(bytes);
  }
  free(block);
  free(row);
}

static void check_tensors(const gguf_file *file) {
  for (uint64_t i = 0; i < file->tensor_count; i++) {
    const gguf_tensor *tensor = &file->tensors[i];
    uint64_t elements = 1;
    FUZZ_CHECK(tensor->n_dims >= 1 && tensor->n_dims <= 4 && tensor->type->to_float != NULL, "a tensor's rank or type");
    for (int d = 0; d < 4; d++) {
      FUZZ_CHECK(tensor->dims[d] >= 1, "a tensor's extent");
      elements *= tensor->dims[d];
    }
    FUZZ_CHECK(tensor->bytes == elements / tensor->type->block_elements * tensor->type->block_bytes &&
                   tensor->row_bytes * (elements / tensor->dims[0]) == tensor->bytes,
               "a tensor's bytes");
    check_text(file, tensor->name);
    check_inside(file, tensor->data, tensor->bytes);
    for (uint64_t j = 0; j < i; j++) {
      const gguf_tensor *other = &file->tensors[j];
      FUZZ_CHECK(other->data + other->bytes <= tensor->data || tensor->data + tensor->bytes <= other->data,
                 "two tensors share bytes");
    }
    convert(tensor);
  }
}

/* ---- What is made of them ---------------------------------------------------------------------------------------- */

static void check_ids(const tokenizer *tok, const lm_ids *ids) {
  for (size_t i = 0; i < ids->count; i++) {
    FUZZ_CHECK(ids->data[i] >= 0 && ids->data[i] < tokenizer_size(tok), "token id %d", (int)ids->data[i]);
  }
}

static void use_tokenizer(const gguf_file *file) {
  static const char text[] = "Hello, w\xC3\xB6rld 42!\n\t\xE2\x82\xAC the end";
  attn_message message;
  tokenizer *tok = NULL;
  lm_ids ids = {0};
  fuzz_message_reset(&message);
  attn_status status = tokenizer_create(file, &tok, &message);
  check_status(status, &message, tok == NULL);
  if (status != ATTN_OK) {
    return;
  }
  for (int32_t id = -1; id <= tokenizer_size(tok); id++) {
    gguf_string bytes = tokenizer_decode(tok, id);
    free(fuzz_copy(bytes.data, (size_t)bytes.length));
  }
  FUZZ_CHECK(tokenizer_eos(tok) < tokenizer_size(tok) && tokenizer_bos(tok) < tokenizer_size(tok), "a special id");
  fuzz_message_reset(&message);
  status = tokenizer_encode(tok, text, sizeof text - 1, &ids, &message);
  check_status(status, &message, ids.count == 0);
  check_ids(tok, &ids);
  fuzz_message_reset(&message);
  fuzz_message_check(chat_encode(file, tok, text, sizeof text - 1, &ids, &message), &message);
  check_ids(tok, &ids);
  const size_t before = ids.count;
  fuzz_message_reset(&message);
  check_status(chat_encode_next(file, tok, text, sizeof text - 1, &ids, &message), &message, ids.count == before);
  check_ids(tok, &ids);
  lm_ids_free(&ids);
  tokenizer_free(tok);
}

static attn_status attend(void *context, const model_rows *rows, attn_message *message) {
  const model_params *params = context;
  (void)message;
  const size_t out = (size_t)rows->tokens * (size_t)params->heads * (size_t)params->head_size;
  for (size_t i = 0; i < out; i++) {
    rows->out[i] = 0.5f;
  }
  return ATTN_OK;
}

static void run_model(model *m, const model_params *params) {
  const int32_t ids[STEP_TOKENS] = {0, params->vocabulary - 1};
  const int32_t positions[STEP_TOKENS] = {0, params->context - 1};
  const int64_t output_rows[1] = {1};
  float *logits = fuzz_alloc((size_t)params->vocabulary * sizeof *logits);
  model_step step = {.tokens = STEP_TOKENS,
                     .ids = ids,
                     .positions = positions,
                     .outputs = 1,
                     .output_rows = output_rows,
                     .logits = logits,
                     .attend = attend,
                     .attend_context = (void *)(uintptr_t)params};
  attn_message message;
  fuzz_message_reset(&message);
  fuzz_message_check(model_run(m, &step, &message), &message);
  free(logits);
}

static void use_model(const gguf_file *file) {
  attn_message message;
  model_params params;
  model_params kept;
  gemm_engine *engine = NULL;
  model *m = NULL;
  memset(&params, 0xA5, sizeof params);
  kept = params;
  fuzz_message_reset(&message);
  attn_status status = model_read_params(file, &params, &message);
  check_status(status, &message, memcmp(&params, &kept, sizeof params) == 0);
  /* What a model of these takes is told by the parameters and has to be found in the file, but heads are free. */
  if (status != ATTN_OK || (int64_t)params.heads * params.head_size > MAX_WEIGHTS || params.width > MAX_WEIGHTS ||
      params.hidden > MAX_WEIGHTS) {
    return;
  }
  fuzz_message_reset(&message);
  FUZZ_CHECK(gemm_create(1, GEMM_FLOAT32, &engine, &message) == ATTN_OK, "no engine: %s", message.text);
  fuzz_message_reset(&message);
  status = model_create(file, &params, engine, STEP_TOKENS, &m, &message);
  check_status(status, &message, m == NULL);
  if (status == ATTN_OK) {
    run_model(m, &params);
  }
  model_destroy(m);
  gemm_destroy(engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const gguf_file closed;
  attn_message message;
  gguf_file file;
  uint8_t *bytes = fuzz_copy(data, size);
  memset(&file, 0xA5, sizeof file);
  fuzz_message_reset(&message);
  attn_status status = gguf_open_memory(bytes, size, "file", &file, &message);
  fuzz_message_check(status, &message);
  if (status != ATTN_OK) {
    FUZZ_CHECK(memcmp(&file, &closed, sizeof file) == 0, "a refused file is not empty: %s", message.text);
    free(bytes);
    return 0;
  }
  check_values(&file);
  check_tensors(&file);
  use_tokenizer(&file);
  fuzz_message_reset(&message);
  fuzz_message_check(chat_check_template(&file, &message), &message);
  use_model(&file);
  gguf_close(&file);
  free(bytes);
  return 0;
}
