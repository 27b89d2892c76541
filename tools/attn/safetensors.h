/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.h: reader and writer of safetensors files, for files nobody has vouched for. The reader takes the file
 * into memory (a file that shrinks under a mapping would kill the process) and believes nothing of its header: every
 * offset, extent and byte count is checked, the tensors have to cover the data without hole or overlap. Data is copied
 * where its offset is not aligned, so each tensor's pointer is. The writer writes beside the target and renames.
 */
#ifndef ATTN_TOOL_SAFETENSORS_H
#define ATTN_TOOL_SAFETENSORS_H

#include "cli.h"

enum { ST_MAX_RANK = 8, ST_MAX_HEADER = 1 << 22 };

/* The one list of element types: X(name, spelling, the library's type). */
#define ST_DTYPE_LIST(X)                                                                                               \
  X(ST_F32, "F32", ATTN_DTYPE_FLOAT32)                                                                                 \
  X(ST_F16, "F16", ATTN_DTYPE_FLOAT16)                                                                                 \
  X(ST_BF16, "BF16", ATTN_DTYPE_BFLOAT16)                                                                              \
  X(ST_F8_E4M3, "F8_E4M3", ATTN_DTYPE_FP8_E4M3)                                                                        \
  X(ST_F8_E5M2, "F8_E5M2", ATTN_DTYPE_FP8_E5M2)                                                                        \
  X(ST_U8, "U8", ATTN_DTYPE_UINT8)                                                                                     \
  X(ST_I32, "I32", ATTN_DTYPE_INT32)                                                                                   \
  X(ST_I64, "I64", ATTN_DTYPE_INT64)

typedef enum st_dtype {
#define ST_DTYPE_ENUM(name, spelling, dtype) name,
  ST_DTYPE_LIST(ST_DTYPE_ENUM)
#undef ST_DTYPE_ENUM
      ST_DTYPE_COUNT
} st_dtype;

/* "F32", ... */
const char *st_dtype_name(st_dtype dtype);
attn_dtype st_dtype_of_library(st_dtype dtype);
/* The spelling of a library type; "?" for none. */
const char *st_name_of(attn_dtype dtype);
/* 1 and *dtype, or 0 for a name that the list does not have. */
int st_dtype_from_name(const char *name, st_dtype *dtype);

typedef struct st_tensor {
  const char *name;
  st_dtype dtype;
  int32_t rank;
  int64_t shape[ST_MAX_RANK];
  uint64_t bytes;
  unsigned char *data; /* aligned to the element; NULL when only the shape is known */
  int owned;           /* data is an allocation of its own, not part of the file's */
} st_tensor;

typedef struct st_entry {
  const char *key;
  const char *value;
} st_entry;

typedef struct st_file {
  size_t num_tensors;
  st_tensor *tensors;
  size_t num_metadata;
  st_entry *metadata;
  unsigned char *content; /* the whole file */
  void *json;             /* the parsed header, which owns every name and value above */
} st_file;

/* Read PATH. On failure *file is empty. st_free() in any case. */
int st_read(const char *path, st_file *file, cli_report *report);
/* Parse `bytes` bytes at `header` into *file, whose tensors then point into `data` [data_bytes]. */
int st_parse_header(const char *header, size_t bytes, unsigned char *data, uint64_t data_bytes, st_file *file,
                    cli_report *report);
void st_free(st_file *file);

/* Bytes of a tensor of that shape: 0 when they do not fit 63 bits. */
int st_tensor_bytes(st_dtype dtype, int32_t rank, const int64_t *shape, uint64_t *bytes);

/* Write the tensors and entries, in the given order, to PATH: a whole new file or none. */
int st_write(const char *path, const st_tensor *tensors, size_t num_tensors, const st_entry *metadata,
             size_t num_metadata, cli_report *report);

#endif
