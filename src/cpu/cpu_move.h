/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_move.h: one row of one head between a caller's tensor and a cache of any format. */
#ifndef ATTN_CPU_MOVE_H
#define ATTN_CPU_MOVE_H

#include <string.h>

#include "cpu/cpu_work.h"

/* Where the elements of a row of floats lie. */
typedef struct attn_cpu_elements {
  unsigned char *data;
  int64_t stride; /* bytes between elements */
  attn_dtype dtype;
} attn_cpu_elements;

/* A row that is written: its first rotary_dim elements were rotated into memory of their own. */
typedef struct attn_cpu_source {
  attn_cpu_elements row;
  attn_cpu_elements rotated;
  int64_t rotary_dim; /* 0: none was */
} attn_cpu_source;

/* Rows that are copied as they are, for they have one float type and adjacent elements on both sides. */
typedef struct attn_cpu_copies {
  size_t bytes;  /* of a copy: a row, or all heads' rows where both sides have them end to end; 0: rows are converted */
  int64_t count; /* of a token */
} attn_cpu_copies;

/* Between `tensor`, [tokens, heads, size], and a pool. */
attn_cpu_copies attn_cpu_copies_of(const attn_view *tensor, const attn_view *pool, const attn_rows *rows);

/* One token's copies; the strides are those of the heads. */
static inline void attn_cpu_copy(const attn_cpu_copies *copies, unsigned char *to, int64_t to_stride,
                                 const unsigned char *from, int64_t from_stride) {
  for (int64_t i = 0; i < copies->count; i++) {
    memcpy(to + i * to_stride, from + i * from_stride, copies->bytes);
  }
}

/* n elements from one place and type to another. */
void attn_cpu_move_elements(const attn_cpu_table *table, const attn_cpu_elements *dst, const attn_cpu_elements *src,
                            int64_t size);

/* Rotate the row for its token's position; `memory` has room for rotary_dim elements of its type. */
void attn_cpu_rotate(const attn_cpu_table *table, const attn_write_view *view, int64_t token, attn_cpu_source *from,
                     unsigned char *memory);

/* Into a cache row, quantised where the format says so. */
void attn_cpu_put_row(const attn_cpu_table *table, const attn_rows *rows, attn_dtype pool_dtype, const attn_row *to,
                      const attn_cpu_source *from);

/* Out of a cache row, dequantised and rounded once. */
void attn_cpu_get_row(const attn_cpu_table *table, const attn_cpu_elements *to, const attn_rows *rows,
                      attn_dtype pool_dtype, const attn_row *from);

/* A latent row: its parts from two tensors, the second one perhaps rotated; and to one row of elements. */
void attn_cpu_put_latent(const attn_cpu_table *table, const attn_rows *rows, attn_dtype pool_dtype, const attn_row *to,
                         const attn_cpu_elements *latent, const attn_cpu_source *rotary);
void attn_cpu_get_latent(const attn_cpu_table *table, const attn_cpu_elements *to, const attn_rows *rows,
                         attn_dtype pool_dtype, const attn_row *from);

#endif
