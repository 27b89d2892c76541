/* SPDX-License-Identifier: Apache-2.0 */
/* pool_view.h: pool tensors at the border, brought to [block, offset, head, element] whatever their layout. */
#ifndef ATTN_API_POOL_VIEW_H
#define ATTN_API_POOL_VIEW_H

#include "attn/cache.h"
#include "core/view.h"

/* What a pool must be; extents may be ATTN_ANY. */
typedef struct attn_pool_shape {
  attn_layout layout;
  unsigned dtypes;
  int64_t num_blocks;
  int64_t block_size;
  int64_t num_heads;
  int64_t row;
} attn_pool_shape;

/* Check a pool tensor; *view is normalised to NHD axes. */
attn_status attn_pool_view_make(attn_view *view, const DLTensor *tensor, const char *name, attn_access access,
                                const attn_pool_shape *shape, attn_message *message);

/* A pool's blocks and positions, axes 0 and 1 of its view, can be counted. */
attn_status attn_pool_extents_check(const attn_view *view, const char *name, attn_message *message);

/* Refuse an output that shares bytes with another tensor. Absent views (ndim 0) never overlap. */
attn_status attn_refuse_overlap(const attn_view *output, const char *output_name, const attn_view *other,
                                const char *other_name, attn_message *message);

/* The switches that writing and gathering share. */
attn_status attn_check_move_switches(int32_t unchecked, attn_layout layout, attn_message *message);

/* A tensor that this call does not use must be NULL. */
attn_status attn_refuse_tensor(const DLTensor *tensor, const char *name, const char *why, attn_message *message);

#endif
