/* SPDX-License-Identifier: Apache-2.0 */
/* block_map.c: see block_map.h. */
#include "api/block_map.h"

#include "core/bit_window.h"

/* A pair that moves nothing. */
static int is_idle(const attn_copy_view *view, int64_t pair) {
  return view->one_pool && attn_copy_block(view, pair, 0) == attn_copy_block(view, pair, 1);
}

static attn_status check_ids(const attn_copy_view *view, attn_message *message) {
  for (int64_t i = 0; i < view->num_pairs; i++) {
    for (int side = 0; side < 2; side++) {
      int64_t block = attn_copy_block(view, i, side);
      int64_t blocks = side == 0 ? view->source.shape[0] : view->target.shape[0];
      if (block < 0 || block >= blocks) {
        return attn_fail(message, ATTN_E_INDEX, "block_map[%lld][%d]: %lld, accepted: 0 to %lld (blocks of the pool)",
                         (long long)i, side, (long long)block, (long long)blocks - 1);
      }
    }
  }
  return ATTN_OK;
}

static attn_status named_twice(int64_t pair, int side, int64_t block, attn_message *message) {
  return attn_fail(message, ATTN_E_INDEX, "block_map[%lld][%d]: block %lld is named by another pair too, accepted: %s",
                   (long long)pair, side, (long long)block, "each block that is written in one pair only");
}

/* The least block at or beyond `base` that some pair writes; INT64_MAX: none. */
static int64_t least_written(const attn_copy_view *view, int first_side, int64_t base) {
  int64_t least = INT64_MAX;
  for (int64_t i = 0; i < view->num_pairs; i++) {
    for (int side = first_side; side < 2 && !is_idle(view, i); side++) {
      int64_t block = attn_copy_block(view, i, side);
      least = block >= base && block < least ? block : least;
    }
  }
  return least;
}

/* No block of this window is written by two pairs, or written by one and read by another. */
static attn_status check_window(const attn_copy_view *view, int first_side, int64_t first, attn_message *message) {
  attn_bit_window written[2]; /* by side; in one pool the second serves both */
  attn_window_start(&written[0], first);
  attn_window_start(&written[1], first);
  for (int64_t i = 0; i < view->num_pairs; i++) {
    for (int side = first_side; side < 2 && !is_idle(view, i); side++) {
      int64_t block = attn_copy_block(view, i, side);
      if (attn_window_mark(&written[view->one_pool ? 1 : side], block)) {
        return named_twice(i, side, block, message);
      }
    }
  }
  for (int64_t i = 0; i < view->num_pairs && view->one_pool && first_side == 1; i++) {
    int64_t block = attn_copy_block(view, i, 0);
    if (!is_idle(view, i) && attn_window_holds(&written[1], block)) {
      return named_twice(i, 0, block, message);
    }
  }
  return ATTN_OK;
}

/* Without memory that grows with the map: it is read again for each window that holds any block that is written. */
static attn_status check_pairs(const attn_copy_view *view, int first_side, attn_message *message) {
  int64_t first = least_written(view, first_side, 0);
  while (first != INT64_MAX) {
    ATTN_TRY(check_window(view, first_side, first, message));
    first = least_written(view, first_side, attn_window_end(first));
  }
  return ATTN_OK;
}

/* One pair, broadcast over the map: nothing where it is idle, else twice the same. Not walked: its extent costs no
   memory and may be anything. */
static attn_status settle_broadcast(attn_copy_view *view, attn_message *message) {
  if (view->num_pairs <= 1 || view->block_map.stride[0] != 0) {
    return ATTN_OK;
  }
  view->num_pairs = 1;
  ATTN_TRY(check_ids(view, message));
  return is_idle(view, 0) ? ATTN_OK : named_twice(1, 1, attn_copy_block(view, 0, 1), message);
}

attn_status attn_block_map_check(attn_copy_view *view, int writes_source, attn_message *message) {
  ATTN_TRY(settle_broadcast(view, message));
  ATTN_TRY(check_ids(view, message));
  return check_pairs(view, writes_source ? 0 : 1, message);
}
