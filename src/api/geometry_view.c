/* SPDX-License-Identifier: Apache-2.0 */
/* geometry_view.c: one layer's K, V or scales in a pool of pages, as a tensor. */
#include <string.h>

#include "attn/geometry.h"
#include "core/arithmetic.h"
#include "core/resolve.h"

static attn_status check_pool(const DLTensor *pool, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  if (pool->ndim != 3 || pool->shape == NULL || pool->shape[0] < 0 || pool->shape[1] != 1 || pool->shape[2] < 1) {
    return attn_fail(message, ATTN_E_SHAPE, "pool: %d axes, accepted: [pages, 1, page_bytes]", (int)pool->ndim);
  }
  if (attn_dtype_from_dlpack(pool->dtype) != ATTN_DTYPE_UINT8) {
    return attn_fail(message, ATTN_E_DTYPE, "pool: %s, accepted: uint8",
                     attn_dtype_name(attn_dtype_from_dlpack(pool->dtype)));
  }
  if (pool->strides != NULL && (pool->strides[0] != pool->shape[2] || pool->strides[2] != 1)) {
    return attn_fail(message, ATTN_E_STRIDE, "pool: strides %lld and %lld, accepted: %lld and 1 (compact)",
                     (long long)pool->strides[0], (long long)pool->strides[2], (long long)pool->shape[2]);
  }
  if (pool->shape[0] > INT64_MAX / pool->shape[2]) {
    return attn_fail(message, ATTN_E_OVERFLOW, "pool: %lld pages of %lld bytes do not fit 63 bits",
                     (long long)pool->shape[0], (long long)pool->shape[2]);
  }
  if (pool->data == NULL && pool->shape[0] > 0) {
    return attn_fail(message, ATTN_E_NULL, "pool: data NULL, expected %lld pages", (long long)pool->shape[0]);
  }
  return ATTN_OK;
}

/* Bytes from the first to the last of a part in one kernel block; 1 when they do not fit 63 bits. */
static int part_extent(const attn_cache_layout *part, uint64_t *bytes) {
  uint64_t last = 0; /* element */
  for (int axis = 1; axis < part->ndim; axis++) {
    uint64_t reach = 0;
    if (part->shape[axis] < 1 || part->strides[axis] < 1 ||
        attn_mul_overflow((uint64_t)part->shape[axis] - 1, (uint64_t)part->strides[axis], &reach) ||
        attn_add_overflow(last, reach, &last)) {
      return 1;
    }
  }
  return attn_mul_overflow(last, attn_dtype_bytes(part->dtype), bytes) ||
         attn_add_overflow(*bytes, attn_dtype_bytes(part->dtype), bytes) || *bytes > INT64_MAX;
}

/* The group is one of attn_geometry_unify() for pages of this size. */
static attn_status check_group(const attn_group_pages *group, int64_t page_bytes, attn_message *message) {
  ATTN_CHECK_STRUCT(group, "group", attn_group_pages, message);
  uint64_t layers = 0;
  uint64_t blocks = 0;
  if (group->kernel_block < 1 || group->block_size < 1 || group->block_size % group->kernel_block != 0 ||
      group->num_layers < 1 ||
      attn_mul_overflow(group->kernel_block_bytes, (uint64_t)(group->block_size / group->kernel_block), &blocks) ||
      blocks != (uint64_t)page_bytes || attn_mul_overflow(group->layer_bytes, (uint64_t)group->num_layers, &layers) ||
      layers > group->kernel_block_bytes) {
    return attn_fail(
        message, ATTN_E_RANGE,
        "group: %d layers of %llu bytes, kernel blocks of %d positions and %llu bytes in %d, accepted: what "
        "attn_geometry_unify() wrote for pages of %lld bytes",
        (int)group->num_layers, (unsigned long long)group->layer_bytes, (int)group->kernel_block,
        (unsigned long long)group->kernel_block_bytes, (int)group->block_size, (long long)page_bytes);
  }
  return ATTN_OK;
}

static attn_status check_part(const attn_group_pages *group, attn_page_part part, attn_message *message) {
  if ((int)part < ATTN_PART_K || (int)part > ATTN_PART_V_SCALE || group->part[part].ndim == 0) {
    return attn_fail(message, ATTN_E_RANGE, "part: %d, accepted: one that the group has", (int)part);
  }
  const attn_cache_layout *layout = &group->part[part];
  uint64_t bytes = 0;
  size_t element = attn_dtype_bytes(layout->dtype);
  if (element == 0 || layout->ndim < 2 || layout->ndim > 4 || part_extent(layout, &bytes) ||
      attn_add_overflow(bytes, group->part_offset[part], &bytes) || bytes > group->layer_bytes ||
      group->kernel_block_bytes % element != 0) {
    return attn_fail(message, ATTN_E_RANGE,
                     "group: part %d has %d axes, ends %llu bytes into a layer of %llu, accepted: what "
                     "attn_geometry_unify() wrote",
                     (int)part, (int)layout->ndim, (unsigned long long)bytes, (unsigned long long)group->layer_bytes);
  }
  return ATTN_OK;
}

attn_status attn_geometry_view(const DLTensor *pool, const attn_group_pages *group, int32_t layer, attn_page_part part,
                               attn_page_view *view, attn_message *message) {
  ATTN_TRY(check_pool(pool, message));
  ATTN_TRY(check_group(group, pool->shape[2], message));
  if (layer < 0 || layer >= group->num_layers) {
    return attn_fail(message, ATTN_E_RANGE, "layer: %d, accepted: 0 to %d", (int)layer, (int)(group->num_layers - 1));
  }
  ATTN_TRY(check_part(group, part, message));
  ATTN_CHECK_POINTER(view, "view", message);
  const attn_cache_layout *layout = &group->part[part];
  int64_t ratio = group->block_size / group->kernel_block;
  if (pool->shape[0] > INT32_MAX / ratio) {
    return attn_fail(message, ATTN_E_OVERFLOW, "pool: %lld pages of %lld kernel blocks, accepted: up to 2147483647",
                     (long long)pool->shape[0], (long long)ratio);
  }
  uint64_t offset = (uint64_t)layer * group->layer_bytes + group->part_offset[part];
  if (((uintptr_t)pool->data + pool->byte_offset + offset) % attn_dtype_bytes(layout->dtype) != 0) {
    return attn_fail(message, ATTN_E_ALIGN, "pool: part %d of layer %d is not aligned to its %lu-byte elements",
                     (int)part, (int)layer, (unsigned long)attn_dtype_bytes(layout->dtype));
  }
  memset(view, 0, sizeof *view);
  memcpy(view->shape, layout->shape, sizeof view->shape);
  memcpy(view->strides, layout->strides, sizeof view->strides);
  view->shape[0] = pool->shape[0] * ratio;
  view->tensor.data = pool->data;
  view->tensor.device = pool->device;
  view->tensor.ndim = layout->ndim;
  view->tensor.dtype = attn_dtype_to_dlpack(layout->dtype);
  view->tensor.shape = view->shape;
  view->tensor.strides = view->strides;
  view->tensor.byte_offset = pool->byte_offset + offset;
  return ATTN_OK;
}
