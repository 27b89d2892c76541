/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of GGUF model files, versions 2 and 3, little-endian. The file is mapped, not read: strings and tensor data
 * are views into the mapping and live until gguf_close. Opening checks everything once (counts, lengths, types,
 * extents, alignment, overlap), so that later access needs no checks. A file that lies in any way is refused with one
 * line.
 */
#ifndef LM_GGUF_H
#define LM_GGUF_H

#include "lm_error.h"
#include "quant.h"

#include <stdbool.h>

/** Bytes in the file; not NUL-terminated. */
typedef struct gguf_string {
  const char *data;
  uint64_t length;
} gguf_string;

/** The value types of the file format. */
typedef enum gguf_kind {
  GGUF_UINT8 = 0,
  GGUF_INT8 = 1,
  GGUF_UINT16 = 2,
  GGUF_INT16 = 3,
  GGUF_UINT32 = 4,
  GGUF_INT32 = 5,
  GGUF_FLOAT32 = 6,
  GGUF_BOOL = 7,
  GGUF_STRING = 8,
  GGUF_ARRAY = 9,
  GGUF_UINT64 = 10,
  GGUF_INT64 = 11,
  GGUF_FLOAT64 = 12
} gguf_kind;

typedef struct gguf_value {
  gguf_string key;
  gguf_kind kind;      /**< GGUF_ARRAY for an array */
  gguf_kind item_kind; /**< of the elements; equals `kind` for a scalar */
  uint64_t count;      /**< elements; 1 for a scalar */
  const uint8_t *data; /**< the first element in the file, at any address */
} gguf_value;

typedef struct gguf_tensor {
  gguf_string name;
  uint32_t n_dims;
  uint64_t dims[4]; /**< dims[0] is the fastest; absent ones are 1 */
  const quant_type *type;
  uint64_t row_bytes; /**< of one row of dims[0] elements */
  uint64_t bytes;
  const uint8_t *data;
} gguf_tensor;

typedef struct gguf_file {
  const char *path; /**< the caller's, for messages */
  const uint8_t *bytes;
  uint64_t size;
  uint32_t version;
  bool mapped;
  gguf_value *values; /**< sorted by key */
  uint64_t value_count;
  gguf_tensor *tensors; /**< sorted by name */
  uint64_t tensor_count;
} gguf_file;

/** Maps and checks a file. `path` must outlive the result. On failure nothing is left behind. */
ATTN_NODISCARD attn_status gguf_open(const char *path, gguf_file *file, attn_message *message);

/** The same from memory that the caller keeps (8-byte aligned); `name` stands for the path. */
ATTN_NODISCARD attn_status gguf_open_memory(const void *bytes, uint64_t size, const char *name, gguf_file *file,
                                            attn_message *message);

/** Unmaps; safe on a zeroed struct. */
void gguf_close(gguf_file *file);

/** The value of a key, or NULL. */
const gguf_value *gguf_find(const gguf_file *file, const char *key);

/** The tensor of a name, or NULL. */
const gguf_tensor *gguf_find_tensor(const gguf_file *file, const char *name);

/* Typed access to a scalar. A missing key fails with the key's name, except in the `_or` forms; another type fails. */
ATTN_NODISCARD attn_status gguf_get_u64(const gguf_file *file, const char *key, uint64_t *out, attn_message *message);
ATTN_NODISCARD attn_status gguf_get_u64_or(const gguf_file *file, const char *key, uint64_t fallback, uint64_t *out,
                                           attn_message *message);
ATTN_NODISCARD attn_status gguf_get_f64_or(const gguf_file *file, const char *key, double fallback, double *out,
                                           attn_message *message);
ATTN_NODISCARD attn_status gguf_get_bool_or(const gguf_file *file, const char *key, bool fallback, bool *out,
                                            attn_message *message);
ATTN_NODISCARD attn_status gguf_get_string(const gguf_file *file, const char *key, gguf_string *out,
                                           attn_message *message);

/** An array of the given element kind; fails with the key's name if it is missing or of another kind. */
ATTN_NODISCARD attn_status gguf_get_array(const gguf_file *file, const char *key, gguf_kind item_kind,
                                          const gguf_value **out, attn_message *message);

/** The string at `*cursor` in an array of strings; moves the cursor to the next. Start with value->data. */
gguf_string gguf_next_string(const uint8_t **cursor);

/** Element i of an array of INT32. */
int32_t gguf_i32_at(const gguf_value *array, uint64_t i);

bool gguf_string_equals(gguf_string string, const char *text);

#endif
