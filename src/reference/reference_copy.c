/* SPDX-License-Identifier: Apache-2.0 */
/* reference_copy.c: whole blocks, pair by pair, element by element. */
#include "reference.h"

static int64_t block_of(const attn_copy_view *view, int64_t pair, int64_t side) {
  int64_t block;
  memcpy(&block, attn_reference_at2(&view->block_map, pair, side), sizeof block);
  return block;
}

/* The element [j, k, l] of a block; a pool of three axes has l 0 only. */
static unsigned char *element(const attn_view *pool, int64_t block, int64_t j, int64_t k, int64_t l) {
  return attn_reference_at3(pool, block, j, k) + l * pool->stride[3];
}

static void move_block(const attn_copy_view *view, int64_t pair, int exchange) {
  const attn_view *source = &view->source;
  const attn_view *target = &view->target;
  int64_t from = block_of(view, pair, 0);
  int64_t to = block_of(view, pair, 1);
  size_t bytes = attn_dtype_bytes(source->dtype);
  int64_t last = source->ndim > 3 ? source->shape[3] : 1;
  for (int64_t j = 0; j < source->shape[1]; j++) {
    for (int64_t k = 0; k < source->shape[2]; k++) {
      for (int64_t l = 0; l < last; l++) {
        unsigned char old_source[8];
        unsigned char old_target[8];
        memcpy(old_source, element(source, from, j, k, l), bytes);
        memcpy(old_target, element(target, to, j, k, l), bytes);
        memcpy(element(target, to, j, k, l), old_source, bytes);
        if (exchange) {
          memcpy(element(source, from, j, k, l), old_target, bytes);
        }
      }
    }
  }
}

static void move_blocks(const attn_copy_view *view, int exchange) {
  if (attn_view_elements(&view->source) == 0) {
    return;
  }
  for (int64_t pair = 0; pair < view->num_pairs; pair++) {
    move_block(view, pair, exchange);
  }
}

void attn_reference_cache_copy(const attn_copy_view *view) {
  move_blocks(view, 0);
}

void attn_reference_cache_swap(const attn_copy_view *view) {
  move_blocks(view, 1);
}
