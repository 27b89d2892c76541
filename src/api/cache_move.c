/* SPDX-License-Identifier: Apache-2.0 */
/* cache_move.c: attn_cache_write() and attn_cache_gather() at the border. Lists are judged in full before a byte
   moves. */
#include <string.h>

#include "api/pool_view.h"
#include "core/arithmetic.h"
#include "core/bit_window.h"
#include "core/fault.h"
#include "core/load.h"
#include "core/registry.h"
#include "core/resolve.h"

/* A pool's accepted types: its format's storage, or any float for AUTO. */
static attn_status pool_types(const char *field, attn_format format, unsigned *types, attn_message *message) {
  if (format == ATTN_FORMAT_AUTO) {
    *types = ATTN_DTYPE_FLOATS;
    return ATTN_OK;
  }
  if (attn_format_storage(format) == ATTN_DTYPE_DEFAULT) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: a value of attn_format", field, (int)format);
  }
  if (!attn_format_built(format)) {
    return attn_fail(message, ATTN_E_UNSUPPORTED, "%s: %s is not built in; accepted: auto, float32, float16, bfloat16",
                     field, attn_format_name(format));
  }
  *types = ATTN_DTYPE_BIT(attn_format_storage(format));
  return ATTN_OK;
}

static attn_status check_switches(int32_t unchecked, attn_layout layout, attn_message *message) {
  if (unchecked != 0 && unchecked != 1) {
    return attn_fail(message, ATTN_E_RANGE, "unchecked: %d, accepted: 0 or 1", (int)unchecked);
  }
  if (layout != ATTN_LAYOUT_NHD && layout != ATTN_LAYOUT_HND) {
    return attn_fail(message, ATTN_E_RANGE, "layout: %d, accepted: 0 (NHD) or 1 (HND)", (int)layout);
  }
  return ATTN_OK;
}

/* ---- write ------------------------------------------------------------------------------------------------------- */

static attn_status refuse_latent_write(const attn_cache_write_args *args, attn_message *message) {
  if (args->kv_cache != NULL || args->kv_c != NULL || args->k_pe != NULL || args->kv_scale != NULL) {
    return attn_fail(message, ATTN_E_UNSUPPORTED,
                     "kv_cache: latent pools are not built in; accepted: k_cache, v_cache");
  }
  ATTN_TRY(attn_refuse_tensor(args->k_scale, "k_scale", "float formats have no scales", message));
  return attn_refuse_tensor(args->v_scale, "v_scale", "float formats have no scales", message);
}

/* One source against its pool: [tokens, heads, size] and [blocks, block_size, heads, size]. */
static attn_status view_pair(const DLTensor *source, const char *source_name, const DLTensor *pool,
                             const char *pool_name, attn_layout layout, unsigned types, attn_view *source_view,
                             attn_view *pool_view, attn_message *message) {
  int64_t any[3] = {ATTN_ANY, ATTN_ANY, ATTN_ANY};
  ATTN_TRY(attn_view_make(source_view, source, source_name, ATTN_READ, ATTN_DTYPE_FLOATS, 3, any, message));
  attn_pool_shape shape = {layout, types, ATTN_ANY, ATTN_ANY, source_view->shape[1], source_view->shape[2]};
  return attn_pool_view_make(pool_view, pool, pool_name, ATTN_WRITE, &shape, message);
}

static attn_status view_write(const attn_cache_write_args *args, attn_write_view *view, attn_message *message) {
  unsigned k_types;
  unsigned v_types;
  ATTN_TRY(pool_types("k_format", args->k_format, &k_types, message));
  ATTN_TRY(pool_types("v_format", args->v_format, &v_types, message));
  ATTN_TRY(view_pair(args->k, "k", args->k_cache, "k_cache", args->layout, k_types, &view->k, &view->k_cache, message));
  ATTN_TRY(view_pair(args->v, "v", args->v_cache, "v_cache", args->layout, v_types, &view->v, &view->v_cache, message));
  if (view->v.shape[0] != view->k.shape[0] || view->v.shape[1] != view->k.shape[1]) {
    int axis = view->v.shape[0] != view->k.shape[0] ? 0 : 1;
    return attn_fail(message, ATTN_E_SHAPE, "v: axis %d has extent %lld, expected k's %lld", axis,
                     (long long)view->v.shape[axis], (long long)view->k.shape[axis]);
  }
  if (view->v_cache.shape[0] != view->k_cache.shape[0] || view->v_cache.shape[1] != view->k_cache.shape[1]) {
    return attn_fail(message, ATTN_E_SHAPE, "v_cache: %lld blocks of %lld, expected k_cache's %lld blocks of %lld",
                     (long long)view->v_cache.shape[0], (long long)view->v_cache.shape[1],
                     (long long)view->k_cache.shape[0], (long long)view->k_cache.shape[1]);
  }
  view->block_size = (int32_t)view->k_cache.shape[1];
  view->capacity = view->k_cache.shape[0] * view->k_cache.shape[1];
  int64_t any = ATTN_ANY;
  ATTN_TRY(attn_view_make(&view->slot_mapping, args->slot_mapping, "slot_mapping", ATTN_READ,
                          ATTN_DTYPE_BIT(ATTN_DTYPE_INT64), 1, &any, message));
  view->num_slots = view->slot_mapping.shape[0];
  if (view->num_slots > view->k.shape[0]) {
    return attn_fail(message, ATTN_E_SHAPE, "slot_mapping: %lld slots, expected at most the %lld rows of k",
                     (long long)view->num_slots, (long long)view->k.shape[0]);
  }
  return ATTN_OK;
}

/* One slot, broadcast over the list: none where it is negative, else twice the same. Not walked: its extent costs no
   memory and may be anything. */
static attn_status settle_broadcast(attn_write_view *view, int32_t unchecked, attn_message *message) {
  if (view->num_slots <= 1 || view->slot_mapping.stride[0] != 0) {
    return ATTN_OK;
  }
  int64_t slot = attn_int64_at(&view->slot_mapping, 0);
  if (slot >= 0 && !unchecked) {
    return attn_fail(message, ATTN_E_INDEX, "slot_mapping[1]: %lld stands twice, accepted: different slots",
                     (long long)slot);
  }
  view->num_slots = slot < 0 ? 0 : 1;
  view->slot_mapping.shape[0] = view->num_slots;
  return ATTN_OK;
}

static attn_status check_write_overlaps(const attn_write_view *view, attn_message *message) {
  ATTN_TRY(attn_refuse_overlap(&view->k_cache, "k_cache", &view->v_cache, "v_cache", message));
  ATTN_TRY(attn_refuse_overlap(&view->k_cache, "k_cache", &view->k, "k", message));
  ATTN_TRY(attn_refuse_overlap(&view->k_cache, "k_cache", &view->v, "v", message));
  ATTN_TRY(attn_refuse_overlap(&view->k_cache, "k_cache", &view->slot_mapping, "slot_mapping", message));
  ATTN_TRY(attn_refuse_overlap(&view->v_cache, "v_cache", &view->k, "k", message));
  ATTN_TRY(attn_refuse_overlap(&view->v_cache, "v_cache", &view->v, "v", message));
  return attn_refuse_overlap(&view->v_cache, "v_cache", &view->slot_mapping, "slot_mapping", message);
}

/* The least slot at or beyond `base`; INT64_MAX: none. */
static int64_t least_slot(const attn_view *slots, int64_t base) {
  int64_t least = INT64_MAX;
  for (int64_t i = 0; i < slots->shape[0]; i++) {
    int64_t slot = attn_int64_at(slots, i);
    least = slot >= base && slot < least ? slot : least;
  }
  return least;
}

/* Without memory that grows with the list: it is read once per window that holds any slot. */
static attn_status check_duplicates(const attn_view *slots, attn_message *message) {
  attn_bit_window seen;
  int64_t first = least_slot(slots, 0);
  while (first != INT64_MAX) {
    attn_window_start(&seen, first);
    for (int64_t i = 0; i < slots->shape[0]; i++) {
      int64_t slot = attn_int64_at(slots, i);
      if (attn_window_mark(&seen, slot)) {
        return attn_fail(message, ATTN_E_INDEX, "slot_mapping[%lld]: %lld stands twice, accepted: different slots",
                         (long long)i, (long long)slot);
      }
    }
    first = least_slot(slots, attn_window_end(first));
  }
  return ATTN_OK;
}

static attn_status check_slots(const attn_write_view *view, attn_message *message) {
  for (int64_t i = 0; i < view->num_slots; i++) {
    int64_t slot = attn_int64_at(&view->slot_mapping, i);
    if (slot >= view->capacity + (attn_fault(ATTN_FAULT_SLOT_LIMIT) ? 1 : 0)) {
      return attn_fail(message, ATTN_E_INDEX,
                       "slot_mapping[%lld]: %lld, accepted: below %lld (blocks * block size), or "
                       "negative for none",
                       (long long)i, (long long)slot, (long long)view->capacity);
    }
  }
  if (attn_fault(ATTN_FAULT_DUPLICATE_SLOT)) {
    return ATTN_OK;
  }
  return check_duplicates(&view->slot_mapping, message);
}

attn_status attn_cache_write(attn_context *context, const attn_cache_write_args *args, attn_message *message) {
  ATTN_CHECK_POINTER(context, "context", message);
  ATTN_CHECK_STRUCT(args, "args", attn_cache_write_args, message);
  attn_write_view view;
  memset(&view, 0, sizeof view);
  const attn_backend *backend;
  ATTN_TRY(attn_registry_select_call(context, args->backend, &backend, message));
  ATTN_TRY(check_switches(args->unchecked, args->layout, message));
  ATTN_TRY(refuse_latent_write(args, message));
  ATTN_TRY(view_write(args, &view, message));
  ATTN_TRY(check_write_overlaps(&view, message));
  ATTN_TRY(settle_broadcast(&view, args->unchecked, message));
  if (!args->unchecked) {
    ATTN_TRY(check_slots(&view, message));
  }
  return backend->cache_write(context, &view, message);
}

/* ---- gather ------------------------------------------------------------------------------------------------------ */

static attn_status refuse_latent_gather(const attn_cache_gather_args *args, attn_message *message) {
  if (args->kv_cache != NULL || args->kv != NULL || args->kv_scale != NULL) {
    return attn_fail(message, ATTN_E_UNSUPPORTED,
                     "kv_cache: latent pools are not built in; accepted: k_cache, v_cache");
  }
  ATTN_TRY(attn_refuse_tensor(args->k_scale, "k_scale", "float formats have no scales", message));
  return attn_refuse_tensor(args->v_scale, "v_scale", "float formats have no scales", message);
}

static attn_status view_lists(const attn_cache_gather_args *args, attn_gather_view *view, attn_message *message) {
  unsigned type = ATTN_DTYPE_BIT(ATTN_DTYPE_INT32);
  int64_t any[2] = {ATTN_ANY, ATTN_ANY};
  ATTN_TRY(attn_view_make(&view->seq_lens, args->seq_lens, "seq_lens", ATTN_READ, type, 1, any, message));
  if (view->seq_lens.shape[0] > INT32_MAX) {
    return attn_fail(message, ATTN_E_SHAPE, "seq_lens: %lld sequences, accepted: 2147483647 or fewer",
                     (long long)view->seq_lens.shape[0]);
  }
  view->num_seqs = (int32_t)view->seq_lens.shape[0];
  int64_t table[2] = {view->num_seqs, ATTN_ANY};
  ATTN_TRY(attn_view_make(&view->block_table, args->block_table, "block_table", ATTN_READ, type, 2, table, message));
  if (args->seq_starts != NULL) {
    ATTN_TRY(attn_view_make(&view->seq_starts, args->seq_starts, "seq_starts", ATTN_READ, type, 1,
                            &view->seq_lens.shape[0], message));
  }
  return ATTN_OK;
}

static int64_t start_of(const attn_gather_view *view, int64_t seq) {
  return view->seq_starts.ndim > 0 ? attn_int32_at(&view->seq_starts, seq) : 0;
}

/* Lengths and starts; *rows is their sum. */
static attn_status check_lengths(const attn_gather_view *view, int64_t *rows, attn_message *message) {
  *rows = 0;
  for (int64_t s = 0; s < view->num_seqs; s++) {
    int64_t len = attn_int32_at(&view->seq_lens, s);
    int64_t start = start_of(view, s);
    if (len < 0) {
      return attn_fail(message, ATTN_E_INDEX, "seq_lens[%lld]: %lld, accepted: 0 or more", (long long)s,
                       (long long)len);
    }
    if (start < 0 || start > len) {
      return attn_fail(message, ATTN_E_INDEX, "seq_starts[%lld]: %lld, accepted: 0 to seq_lens (%lld)", (long long)s,
                       (long long)start, (long long)len);
    }
    *rows += len - start;
  }
  return ATTN_OK;
}

/* Every position gathered must be reachable. */
static attn_status check_reach(const attn_gather_view *view, attn_message *message) {
  for (int64_t s = 0; s < view->num_seqs; s++) {
    int64_t len = attn_int32_at(&view->seq_lens, s);
    int64_t start = start_of(view, s);
    if (start == len) {
      continue;
    }
    int64_t columns = attn_ceil_div(len, view->block_size);
    if (columns > view->block_table.shape[1]) {
      return attn_fail(message, ATTN_E_INDEX,
                       "seq_lens[%lld]: %lld keys, the block_table's %lld columns of %d hold %lld", (long long)s,
                       (long long)len, (long long)view->block_table.shape[1], (int)view->block_size,
                       (long long)(view->block_table.shape[1] * view->block_size));
    }
    const unsigned char *row = view->block_table.data + s * view->block_table.stride[0];
    for (int64_t c = start / view->block_size; c < columns; c++) {
      int32_t id = attn_load_int32(row + c * view->block_table.stride[1]);
      if (id < 0 || id >= view->num_blocks) {
        return attn_fail(message, ATTN_E_INDEX, "block_table[%lld][%lld]: %d, accepted: 0 to %lld (blocks of the pool)",
                         (long long)s, (long long)c, (int)id, (long long)view->num_blocks - 1);
      }
    }
  }
  return ATTN_OK;
}

/* One pool and its output; both or neither. */
static attn_status view_gather_pair(const DLTensor *pool, const char *pool_name, const char *format_name,
                                    attn_format format, const DLTensor *output, const char *output_name,
                                    attn_layout layout, int64_t rows, attn_view *pool_view, attn_view *output_view,
                                    attn_message *message) {
  if (pool == NULL) {
    return attn_refuse_tensor(output, output_name, "its cache is not given", message);
  }
  unsigned types;
  ATTN_TRY(pool_types(format_name, format, &types, message));
  attn_pool_shape shape = {layout, types, ATTN_ANY, ATTN_ANY, ATTN_ANY, ATTN_ANY};
  ATTN_TRY(attn_pool_view_make(pool_view, pool, pool_name, ATTN_READ, &shape, message));
  int64_t extents[3] = {rows, pool_view->shape[2], pool_view->shape[3]};
  return attn_view_make(output_view, output, output_name, ATTN_WRITE, ATTN_DTYPE_FLOATS, 3, extents, message);
}

static attn_status view_pools(const attn_cache_gather_args *args, int64_t rows, attn_gather_view *view,
                              attn_message *message) {
  if (args->k_cache == NULL && args->v_cache == NULL) {
    return attn_fail(message, ATTN_E_NULL, "k_cache: NULL, expected a pool (k_cache, v_cache or both)");
  }
  ATTN_TRY(view_gather_pair(args->k_cache, "k_cache", "k_format", args->k_format, args->k, "k", args->layout, rows,
                            &view->k_cache, &view->k, message));
  ATTN_TRY(view_gather_pair(args->v_cache, "v_cache", "v_format", args->v_format, args->v, "v", args->layout, rows,
                            &view->v_cache, &view->v, message));
  const attn_view *pool = args->k_cache != NULL ? &view->k_cache : &view->v_cache;
  if (args->k_cache != NULL && args->v_cache != NULL &&
      (view->v_cache.shape[0] != pool->shape[0] || view->v_cache.shape[1] != pool->shape[1] ||
       view->v_cache.shape[2] != pool->shape[2])) {
    return attn_fail(
        message, ATTN_E_SHAPE, "v_cache: %lld blocks of %lld and %lld heads, expected k_cache's %lld, %lld and %lld",
        (long long)view->v_cache.shape[0], (long long)view->v_cache.shape[1], (long long)view->v_cache.shape[2],
        (long long)pool->shape[0], (long long)pool->shape[1], (long long)pool->shape[2]);
  }
  if (pool->shape[1] < 1 || pool->shape[1] > INT32_MAX) {
    return attn_fail(message, ATTN_E_SHAPE, "%s: block size %lld, accepted: 1 to 2147483647",
                     args->k_cache != NULL ? "k_cache" : "v_cache", (long long)pool->shape[1]);
  }
  view->num_blocks = pool->shape[0];
  view->block_size = (int32_t)pool->shape[1];
  return ATTN_OK;
}

static attn_status check_gather_overlaps(const attn_gather_view *view, attn_message *message) {
  const struct {
    const attn_view *view;
    const char *name;
  } inputs[] = {
      {&view->k_cache, "k_cache"},   {&view->v_cache, "v_cache"},       {&view->block_table, "block_table"},
      {&view->seq_lens, "seq_lens"}, {&view->seq_starts, "seq_starts"},
  };
  ATTN_TRY(attn_refuse_overlap(&view->k, "k", &view->v, "v", message));
  for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
    ATTN_TRY(attn_refuse_overlap(&view->k, "k", inputs[i].view, inputs[i].name, message));
    ATTN_TRY(attn_refuse_overlap(&view->v, "v", inputs[i].view, inputs[i].name, message));
  }
  return ATTN_OK;
}

attn_status attn_cache_gather(attn_context *context, const attn_cache_gather_args *args, attn_message *message) {
  ATTN_CHECK_POINTER(context, "context", message);
  ATTN_CHECK_STRUCT(args, "args", attn_cache_gather_args, message);
  attn_gather_view view;
  memset(&view, 0, sizeof view);
  const attn_backend *backend;
  int64_t rows;
  ATTN_TRY(attn_registry_select_call(context, args->backend, &backend, message));
  ATTN_TRY(check_switches(args->unchecked, args->layout, message));
  view.unchecked = args->unchecked;
  ATTN_TRY(refuse_latent_gather(args, message));
  ATTN_TRY(view_lists(args, &view, message));
  ATTN_TRY(check_lengths(&view, &rows, message));
  ATTN_TRY(view_pools(args, rows, &view, message));
  ATTN_TRY(check_gather_overlaps(&view, message));
  if (!args->unchecked) {
    ATTN_TRY(check_reach(&view, message));
  }
  return backend->cache_gather(context, &view, message);
}
