/* SPDX-License-Identifier: Apache-2.0 */
/* cache_copy.c: attn_cache_copy() and attn_cache_swap() at the border. A pool is blocks of any inner axes here: strides
   alone say what a block holds. The map is judged in full before a byte moves, so that backends may take its pairs in
   any order and on any threads. */
#include <string.h>

#include "api/pool_view.h"
#include "core/arithmetic.h"
#include "core/bit_window.h"
#include "core/registry.h"
#include "core/resolve.h"

#define ANY_DTYPE (~0u) /* a block moves bit by bit */

typedef enum move_kind { MOVE_COPY, MOVE_SWAP } move_kind;

/* A pair that moves nothing. */
static int is_idle(const attn_copy_view *view, int64_t pair) {
  return view->one_pool && attn_copy_block(view, pair, 0) == attn_copy_block(view, pair, 1);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static attn_status view_pools(const attn_cache_copy_args *args, move_kind kind, attn_copy_view *view,
                              attn_message *message) {
  int64_t any[ATTN_VIEW_MAX_NDIM] = {ATTN_ANY, ATTN_ANY, ATTN_ANY, ATTN_ANY};
  int32_t ndim = args->source != NULL && args->source->ndim == 3 ? 3 : 4;
  ATTN_TRY(attn_view_make(&view->source, args->source, "source", kind == MOVE_SWAP ? ATTN_WRITE : ATTN_READ, ANY_DTYPE,
                          ndim, any, message));
  ATTN_TRY(attn_view_make(&view->target, args->target, "target", ATTN_WRITE, ATTN_DTYPE_BIT(view->source.dtype), ndim,
                          view->source.shape, message));
  view->one_pool = view->source.data != NULL && attn_view_same(&view->source, &view->target);
  int64_t map[2] = {ATTN_ANY, 2};
  ATTN_TRY(attn_view_make(&view->block_map, args->block_map, "block_map", ATTN_READ, ATTN_DTYPE_BIT(ATTN_DTYPE_INT64),
                          2, map, message));
  view->num_pairs = view->block_map.shape[0];
  if (!view->one_pool) {
    ATTN_TRY(attn_refuse_overlap(&view->target, "target", &view->source, "source", message));
  }
  ATTN_TRY(attn_refuse_overlap(&view->target, "target", &view->block_map, "block_map", message));
  if (kind == MOVE_SWAP) {
    ATTN_TRY(attn_refuse_overlap(&view->source, "source", &view->block_map, "block_map", message));
  }
  return ATTN_OK;
}

/* ---- the map ----------------------------------------------------------------------------------------------------- */

static attn_status check_ids(const attn_copy_view *view, attn_message *message) {
  for (int64_t i = 0; i < view->num_pairs; i++) {
    for (int side = 0; side < 2; side++) {
      int64_t block = attn_copy_block(view, i, side);
      if (block < 0 || block >= view->source.shape[0]) {
        return attn_fail(message, ATTN_E_INDEX, "block_map[%lld][%d]: %lld, accepted: 0 to %lld (blocks of the pool)",
                         (long long)i, side, (long long)block, (long long)view->source.shape[0] - 1);
      }
    }
  }
  return ATTN_OK;
}

static attn_status named_twice(int64_t pair, int side, int64_t block, attn_message *message) {
  return attn_fail(message, ATTN_E_INDEX, "block_map[%lld][%d]: block %lld is named by another pair too, accepted: %s",
                   (long long)pair, side, (long long)block, "each block that is written in one pair only");
}

/* Blocks of one window of a pool, as bits, so that no memory grows with the map: it is read again for each window that
   holds any block that is written. */
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

static attn_status check_pairs(const attn_copy_view *view, move_kind kind, attn_message *message) {
  int first_side = kind == MOVE_SWAP ? 0 : 1;
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

static attn_status judge(attn_context *context, const attn_cache_copy_args *args, move_kind kind, attn_copy_view *view,
                         const attn_backend **backend, attn_message *message) {
  ATTN_CHECK_POINTER(context, "context", message);
  ATTN_CHECK_STRUCT(args, "args", attn_cache_copy_args, message);
  memset(view, 0, sizeof *view);
  ATTN_TRY(attn_registry_select_call(context, args->backend, backend, message));
  if (args->layout != ATTN_LAYOUT_NHD && args->layout != ATTN_LAYOUT_HND) {
    return attn_fail(message, ATTN_E_RANGE, "layout: %d, accepted: 0 (NHD) or 1 (HND)", (int)args->layout);
  }
  ATTN_TRY(view_pools(args, kind, view, message));
  ATTN_TRY(settle_broadcast(view, message));
  ATTN_TRY(check_ids(view, message));
  return check_pairs(view, kind, message);
}

attn_status attn_cache_copy(attn_context *context, const attn_cache_copy_args *args, attn_message *message) {
  attn_copy_view view;
  const attn_backend *backend;
  ATTN_TRY(judge(context, args, MOVE_COPY, &view, &backend, message));
  return backend->cache_copy(context, &view, message);
}

attn_status attn_cache_swap(attn_context *context, const attn_cache_copy_args *args, attn_message *message) {
  attn_copy_view view;
  const attn_backend *backend;
  ATTN_TRY(judge(context, args, MOVE_SWAP, &view, &backend, message));
  return backend->cache_swap(context, &view, message);
}
