/* SPDX-License-Identifier: Apache-2.0 */
/* pool_view.c: see pool_view.h. */
#include "api/pool_view.h"

attn_status attn_pool_view_make(attn_view *view, const DLTensor *tensor, const char *name, attn_access access,
                                const attn_pool_shape *shape, attn_message *message) {
  int64_t extents[4] = {shape->num_blocks, shape->block_size, shape->num_heads, shape->row};
  int hnd = shape->layout == ATTN_LAYOUT_HND;
  if (hnd) {
    extents[1] = shape->num_heads;
    extents[2] = shape->block_size;
  }
  ATTN_TRY(attn_view_make(view, tensor, name, access, shape->dtypes, 4, extents, message));
  if (hnd) {
    int64_t extent = view->shape[1];
    int64_t stride = view->stride[1];
    view->shape[1] = view->shape[2];
    view->stride[1] = view->stride[2];
    view->shape[2] = extent;
    view->stride[2] = stride;
  }
  return attn_pool_extents_check(view, name, message);
}

attn_status attn_pool_extents_check(const attn_view *view, const char *name, attn_message *message) {
  if ((view->shape[0] > 0 && view->shape[1] < 1) || view->shape[1] > INT32_MAX) {
    return attn_fail(message, ATTN_E_SHAPE, "%s: block size %lld, accepted: 1 to 2147483647", name,
                     (long long)view->shape[1]);
  }
  /* slots and positions are counted in int64: num_blocks * block_size must fit whatever the strides */
  if (view->shape[1] > 0 && view->shape[0] > INT64_MAX / view->shape[1]) {
    return attn_fail(message, ATTN_E_OVERFLOW, "%s: num_blocks * block_size does not fit 63 bits", name);
  }
  return ATTN_OK;
}

attn_status attn_refuse_overlap(const attn_view *output, const char *output_name, const attn_view *other,
                                const char *other_name, attn_message *message) {
  if (output->ndim == 0 || other->ndim == 0 || !attn_view_overlap(output, other)) {
    return ATTN_OK;
  }
  return attn_fail(message, ATTN_E_OVERLAP, "%s: shares memory with %s; accepted: memory of its own", output_name,
                   other_name);
}

attn_status attn_refuse_tensor(const DLTensor *tensor, const char *name, const char *why, attn_message *message) {
  if (tensor != NULL) {
    return attn_fail(message, ATTN_E_NULL, "%s: given, accepted: NULL (%s)", name, why);
  }
  return ATTN_OK;
}

attn_status attn_check_move_switches(int32_t unchecked, attn_layout layout, attn_message *message) {
  if (unchecked != 0 && unchecked != 1) {
    return attn_fail(message, ATTN_E_RANGE, "unchecked: %d, accepted: 0 or 1", (int)unchecked);
  }
  if (layout != ATTN_LAYOUT_NHD && layout != ATTN_LAYOUT_HND) {
    return attn_fail(message, ATTN_E_RANGE, "layout: %d, accepted: 0 (NHD) or 1 (HND)", (int)layout);
  }
  return ATTN_OK;
}
