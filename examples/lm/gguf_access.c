/* SPDX-License-Identifier: Apache-2.0 */
/* Access to an open GGUF file: look-up by name and typed reads. Everything was bounds-checked when it was opened. */
#include "gguf.h"

#include <inttypes.h>
#include <string.h>

static uint64_t load(const uint8_t *bytes, uint32_t count) {
  uint64_t value = 0;
  for (uint32_t i = count; i > 0; i--) {
    value = value << 8 | bytes[i - 1];
  }
  return value;
}

static int compare(gguf_string a, const char *text, size_t length) {
  const size_t shorter = a.length < length ? (size_t)a.length : length;
  const int order = shorter > 0 ? memcmp(a.data, text, shorter) : 0;
  return order != 0 ? order : (a.length > length) - (a.length < length);
}

bool gguf_string_equals(gguf_string string, const char *text) {
  return compare(string, text, strlen(text)) == 0;
}

const gguf_value *gguf_find(const gguf_file *file, const char *key) {
  uint64_t low = 0;
  uint64_t high = file->value_count;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    const int order = compare(file->values[middle].key, key, strlen(key));
    if (order == 0) {
      return &file->values[middle];
    }
    if (order < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return NULL;
}

const gguf_tensor *gguf_find_tensor(const gguf_file *file, const char *name) {
  uint64_t low = 0;
  uint64_t high = file->tensor_count;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    const int order = compare(file->tensors[middle].name, name, strlen(name));
    if (order == 0) {
      return &file->tensors[middle];
    }
    if (order < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return NULL;
}

static attn_status missing(const gguf_file *file, const char *key, attn_message *message) {
  return lm_fail(message, ATTN_E_NAME, "%s: key '%s' is missing", file->path, key);
}

static attn_status wrong_kind(const gguf_file *file, const gguf_value *value, const char *key, const char *accepted,
                              attn_message *message) {
  return lm_fail(message, ATTN_E_DTYPE, "%s: key '%s' has type %d%s; accepted is %s", file->path, key,
                 (int)value->item_kind, value->kind == GGUF_ARRAY ? " in an array" : "", accepted);
}

/* Any integer kind; negative values are refused. */
static attn_status read_u64(const gguf_file *file, const gguf_value *value, const char *key, uint64_t *out,
                            attn_message *message) {
  static const struct {
    uint8_t bytes;
    bool is_signed;
  } kinds[] = {[GGUF_UINT8] = {1, false},  [GGUF_INT8] = {1, true},    [GGUF_UINT16] = {2, false},
               [GGUF_INT16] = {2, true},   [GGUF_UINT32] = {4, false}, [GGUF_INT32] = {4, true},
               [GGUF_UINT64] = {8, false}, [GGUF_INT64] = {8, true},   [GGUF_FLOAT64] = {0, false}};
  const uint32_t bytes = value->kind == GGUF_ARRAY ? 0 : kinds[value->kind].bytes;
  if (bytes == 0) {
    return wrong_kind(file, value, key, "an integer", message);
  }
  const uint64_t bits = load(value->data, bytes);
  if (kinds[value->kind].is_signed && (bits >> (8 * bytes - 1)) != 0) {
    return lm_fail(message, ATTN_E_RANGE, "%s: key '%s' is negative; accepted are 0 and above", file->path, key);
  }
  *out = bits;
  return ATTN_OK;
}

attn_status gguf_get_u64(const gguf_file *file, const char *key, uint64_t *out, attn_message *message) {
  const gguf_value *value = gguf_find(file, key);
  return value != NULL ? read_u64(file, value, key, out, message) : missing(file, key, message);
}

attn_status gguf_get_u64_or(const gguf_file *file, const char *key, uint64_t fallback, uint64_t *out,
                            attn_message *message) {
  const gguf_value *value = gguf_find(file, key);
  if (value != NULL) {
    return read_u64(file, value, key, out, message);
  }
  *out = fallback;
  return ATTN_OK;
}

attn_status gguf_get_f64_or(const gguf_file *file, const char *key, double fallback, double *out,
                            attn_message *message) {
  const gguf_value *value = gguf_find(file, key);
  if (value == NULL) {
    *out = fallback;
    return ATTN_OK;
  }
  if (value->kind == GGUF_FLOAT32) {
    const uint32_t bits = (uint32_t)load(value->data, 4);
    float single;
    memcpy(&single, &bits, sizeof single);
    *out = (double)single;
    return ATTN_OK;
  }
  if (value->kind == GGUF_FLOAT64) {
    const uint64_t bits = load(value->data, 8);
    memcpy(out, &bits, sizeof *out);
    return ATTN_OK;
  }
  return wrong_kind(file, value, key, "a float", message);
}

attn_status gguf_get_bool_or(const gguf_file *file, const char *key, bool fallback, bool *out, attn_message *message) {
  const gguf_value *value = gguf_find(file, key);
  if (value == NULL) {
    *out = fallback;
    return ATTN_OK;
  }
  if (value->kind != GGUF_BOOL) {
    return wrong_kind(file, value, key, "a bool", message);
  }
  *out = value->data[0] != 0;
  return ATTN_OK;
}

attn_status gguf_get_string(const gguf_file *file, const char *key, gguf_string *out, attn_message *message) {
  const gguf_value *value = gguf_find(file, key);
  if (value == NULL) {
    return missing(file, key, message);
  }
  if (value->kind != GGUF_STRING) {
    return wrong_kind(file, value, key, "a string", message);
  }
  const uint8_t *at = value->data;
  *out = gguf_next_string(&at);
  return ATTN_OK;
}

attn_status gguf_get_array(const gguf_file *file, const char *key, gguf_kind item_kind, const gguf_value **out,
                           attn_message *message) {
  const gguf_value *value = gguf_find(file, key);
  if (value == NULL) {
    return missing(file, key, message);
  }
  if (value->kind != GGUF_ARRAY || value->item_kind != item_kind) {
    return wrong_kind(file, value, key, item_kind == GGUF_STRING ? "an array of strings" : "an array of INT32",
                      message);
  }
  *out = value;
  return ATTN_OK;
}

gguf_string gguf_next_string(const uint8_t **cursor) {
  gguf_string string;
  string.length = load(*cursor, 8);
  string.data = (const char *)(*cursor + 8);
  *cursor += 8 + string.length;
  return string;
}

int32_t gguf_i32_at(const gguf_value *array, uint64_t i) {
  const uint32_t bits = (uint32_t)load(array->data + 4 * i, 4);
  return bits <= INT32_MAX ? (int32_t)bits : (int32_t)(bits - 0x80000000u) + INT32_MIN;
}
