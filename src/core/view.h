/* SPDX-License-Identifier: Apache-2.0 */
/* view.h: a borrowed tensor as the library sees it after its checks.
 *
 * Strides are in BYTES and already hold what NULL strides and byte_offset meant; `data` is the first element. A view
 * whose tensor was not given has data NULL and ndim 0. Checks of one tensor live here; checks of a whole call in
 * src/api.
 */
#ifndef ATTN_CORE_VIEW_H
#define ATTN_CORE_VIEW_H

#include "attn/tensor.h"
#include "core/error.h"

#define ATTN_VIEW_MAX_NDIM 4

typedef struct attn_view {
  unsigned char *data;
  attn_dtype dtype;
  int32_t ndim;
  int64_t shape[ATTN_VIEW_MAX_NDIM];
  int64_t stride[ATTN_VIEW_MAX_NDIM]; /* bytes */
} attn_view;

/* What an axis may hold: an exact extent, or ATTN_ANY. */
#define ATTN_ANY ((int64_t)-1)

/* Set of accepted element types, as bits 1 << attn_dtype. */
#define ATTN_DTYPE_BIT(dtype) (1u << (unsigned)(dtype))
#define ATTN_DTYPE_FLOATS                                                                                              \
  (ATTN_DTYPE_BIT(ATTN_DTYPE_FLOAT32) | ATTN_DTYPE_BIT(ATTN_DTYPE_FLOAT16) | ATTN_DTYPE_BIT(ATTN_DTYPE_BFLOAT16))

typedef enum attn_access { ATTN_READ, ATTN_WRITE } attn_access;

/* Check one CPU tensor and make its view. `name` is the field's name in messages. shape[ndim] holds extents or
   ATTN_ANY. Refuses: NULL tensor, wrong device, lanes, rank, type, extents, negative strides, a zero stride on an
   axis longer than 1 of an output (and any two elements of an output sharing an address), misaligned data, NULL data
   with elements, and byte extents that overflow 63 bits. */
attn_status attn_view_make(attn_view *view, const DLTensor *tensor, const char *name, attn_access access,
                           unsigned dtypes, int32_t ndim, const int64_t *shape, attn_message *message);

/* A view without elements points at the first element of `beside`, with strides 0: kernels may then form the place of
   a row that they do not read, which they may not from NULL. Any other view stays as it is. */
void attn_view_place_empty(attn_view *view, const attn_view *beside);

/* Bytes from data to one past the last byte that any element uses; 0 for an empty view. */
uint64_t attn_view_extent(const attn_view *view);

/* Number of elements (cannot overflow: checked by attn_view_make). */
int64_t attn_view_elements(const attn_view *view);

/* 1 when two views share a byte. Exact for what permuting, padding, slicing and interleaving make (K and V in one
   allocation: by block, by position, by row); a view whose own rows overlap counts as all of its range. */
int attn_view_overlap(const attn_view *a, const attn_view *b);

/* 1 when both views have the same data, type, shape and strides. */
int attn_view_same(const attn_view *a, const attn_view *b);

#endif
