/* SPDX-License-Identifier: Apache-2.0 */
/* cache_copy.c: attn_cache_copy() and attn_cache_swap() at the border. A pool is blocks of any inner axes here: strides
   alone say what a block holds. The map is judged in full before a byte moves, so that backends may take its pairs in
   any order and on any threads. */
#include <string.h>

#include "api/block_map.h"
#include "api/pool_view.h"
#include "core/registry.h"
#include "core/resolve.h"

#define ANY_DTYPE (~0u) /* a block moves bit by bit */

typedef enum move_kind { MOVE_COPY, MOVE_SWAP } move_kind;

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
  return attn_block_map_check(view, kind == MOVE_SWAP, message);
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
