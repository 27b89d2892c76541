/* SPDX-License-Identifier: Apache-2.0 */
/* cache_gather.c: attn_cache_gather() at the border. Lists are judged in full before a byte moves. */
#include <string.h>

#include "api/rows_view.h"
#include "core/arithmetic.h"
#include "core/load.h"
#include "core/registry.h"
#include "core/resolve.h"

/* What K and V do not have. */
static attn_status refuse_latent(const attn_cache_gather_args *args, attn_message *message) {
  const char *why = "kv_cache is not given";
  ATTN_TRY(attn_refuse_tensor(args->kv, "kv", why, message));
  ATTN_TRY(attn_refuse_tensor(args->kv_scale, "kv_scale", why, message));
  if (args->qk_rope_head_dim != 0 || args->rotary_dtype != ATTN_DTYPE_DEFAULT) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: 0 (%s)",
                     args->qk_rope_head_dim != 0 ? "qk_rope_head_dim" : "rotary_dtype",
                     args->qk_rope_head_dim != 0 ? (int)args->qk_rope_head_dim : (int)args->rotary_dtype, why);
  }
  return ATTN_OK;
}

/* What latent rows do not have. */
static attn_status refuse_heads(const attn_cache_gather_args *args, attn_message *message) {
  const char *why = "kv_cache is given";
  ATTN_TRY(attn_refuse_tensor(args->k_cache, "k_cache", why, message));
  ATTN_TRY(attn_refuse_tensor(args->v_cache, "v_cache", why, message));
  ATTN_TRY(attn_refuse_tensor(args->k_scale, "k_scale", why, message));
  ATTN_TRY(attn_refuse_tensor(args->v_scale, "v_scale", why, message));
  ATTN_TRY(attn_refuse_tensor(args->k, "k", why, message));
  ATTN_TRY(attn_refuse_tensor(args->v, "v", why, message));
  if (args->v_format != ATTN_FORMAT_AUTO || args->layout != ATTN_LAYOUT_NHD) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: 0 (%s)",
                     args->v_format != ATTN_FORMAT_AUTO ? "v_format" : "layout",
                     args->v_format != ATTN_FORMAT_AUTO ? (int)args->v_format : (int)args->layout, why);
  }
  return ATTN_OK;
}

/* The latent pool, and its output, which tells the size of a row. */
static attn_status view_latent(const attn_cache_gather_args *args, int64_t rows, attn_gather_view *view,
                               attn_message *message) {
  ATTN_TRY(refuse_heads(args, message));
  int64_t extents[2] = {rows, ATTN_ANY};
  ATTN_TRY(attn_view_make(&view->k, args->kv, "kv", ATTN_WRITE, ATTN_DTYPE_FLOATS, 2, extents, message));
  if (args->qk_rope_head_dim < 0 || args->qk_rope_head_dim >= view->k.shape[1]) {
    return attn_fail(message, ATTN_E_RANGE, "qk_rope_head_dim: %d, accepted: 0 or more, below kv's %lld elements",
                     (int)args->qk_rope_head_dim, (long long)view->k.shape[1]);
  }
  attn_rows_given given = {.pool_name = "kv_cache",
                           .scale_name = "kv_scale",
                           .format_name = "k_format",
                           .pool = args->kv_cache,
                           .scale = args->kv_scale,
                           .format = args->k_format,
                           .access = ATTN_READ,
                           .num_blocks = ATTN_ANY,
                           .block_size = ATTN_ANY,
                           .size = view->k.shape[1] - args->qk_rope_head_dim,
                           .kind = ATTN_ROWS_LATENT,
                           .rotary = args->qk_rope_head_dim,
                           .rotary_dtype = args->rotary_dtype};
  view->k.ndim = 3;
  view->k.shape[2] = view->k.shape[1];
  view->k.stride[2] = view->k.stride[1];
  view->k.shape[1] = 1;
  view->k.stride[1] = 0;
  ATTN_TRY(attn_rows_view_make(&view->k_rows, &view->k_cache, &given, message));
  if (view->k_cache.shape[1] < 1) {
    return attn_fail(message, ATTN_E_SHAPE, "kv_cache: block size %lld, accepted: 1 to 2147483647",
                     (long long)view->k_cache.shape[1]);
  }
  view->num_blocks = view->k_cache.shape[0];
  view->block_size = (int32_t)view->k_cache.shape[1];
  return ATTN_OK;
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

/* One pool and its output; both or neither. Rows with scales of their own do not tell their size: the output does. */
static attn_status view_pair(attn_rows_given given, const DLTensor *output, const char *output_name, int64_t num_rows,
                             attn_view *pool_view, attn_rows *rows, attn_view *output_view, attn_message *message) {
  if (given.pool == NULL) {
    ATTN_TRY(attn_refuse_tensor(given.scale, given.scale_name, "its cache is not given", message));
    return attn_refuse_tensor(output, output_name, "its cache is not given", message);
  }
  const attn_format_facts *facts;
  ATTN_TRY(attn_rows_format(&given, &facts, message));
  int64_t extents[3] = {num_rows, ATTN_ANY, ATTN_ANY};
  given.access = ATTN_READ;
  given.num_blocks = given.block_size = given.num_heads = given.size = ATTN_ANY;
  if (facts->scale == ATTN_SCALE_ROW) {
    ATTN_TRY(attn_view_make(output_view, output, output_name, ATTN_WRITE, ATTN_DTYPE_FLOATS, 3, extents, message));
    given.num_heads = output_view->shape[1];
    given.size = output_view->shape[2];
    return attn_rows_view_make(rows, pool_view, &given, message);
  }
  ATTN_TRY(attn_rows_view_make(rows, pool_view, &given, message));
  extents[1] = pool_view->shape[2];
  extents[2] = pool_view->shape[3];
  return attn_view_make(output_view, output, output_name, ATTN_WRITE, ATTN_DTYPE_FLOATS, 3, extents, message);
}

static attn_status view_pools(const attn_cache_gather_args *args, int64_t rows, attn_gather_view *view,
                              attn_message *message) {
  ATTN_TRY(refuse_latent(args, message));
  if (args->k_cache == NULL && args->v_cache == NULL) {
    return attn_fail(message, ATTN_E_NULL, "k_cache: NULL, expected a pool (k_cache, v_cache or both, or kv_cache)");
  }
  attn_rows_given k = {.pool_name = "k_cache",
                       .scale_name = "k_scale",
                       .format_name = "k_format",
                       .pool = args->k_cache,
                       .scale = args->k_scale,
                       .format = args->k_format,
                       .layout = args->layout};
  attn_rows_given v = {.pool_name = "v_cache",
                       .scale_name = "v_scale",
                       .format_name = "v_format",
                       .pool = args->v_cache,
                       .scale = args->v_scale,
                       .format = attn_rows_second_format(args->v_format, args->v_cache, args->k_format),
                       .layout = args->layout};
  ATTN_TRY(view_pair(k, args->k, "k", rows, &view->k_cache, &view->k_rows, &view->k, message));
  ATTN_TRY(view_pair(v, args->v, "v", rows, &view->v_cache, &view->v_rows, &view->v, message));
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

static attn_status check_overlaps(const attn_gather_view *view, attn_message *message) {
  attn_view k_scale = attn_rows_scale_tensor(&view->k_rows);
  attn_view v_scale = attn_rows_scale_tensor(&view->v_rows);
  int latent = view->k_rows.latent;
  const struct {
    const attn_view *view;
    const char *name;
  } inputs[] = {
      {&view->k_cache, latent ? "kv_cache" : "k_cache"},
      {&view->v_cache, "v_cache"},
      {&view->block_table, "block_table"},
      {&view->seq_lens, "seq_lens"},
      {&view->seq_starts, "seq_starts"},
      {&k_scale, latent ? "kv_scale" : "k_scale"},
      {&v_scale, "v_scale"},
  };
  ATTN_TRY(attn_refuse_overlap(&view->k, "k", &view->v, "v", message));
  for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
    ATTN_TRY(attn_refuse_overlap(&view->k, latent ? "kv" : "k", inputs[i].view, inputs[i].name, message));
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
  ATTN_TRY(attn_check_move_switches(args->unchecked, args->layout, message));
  view.unchecked = args->unchecked;
  ATTN_TRY(view_lists(args, &view, message));
  ATTN_TRY(check_lengths(&view, &rows, message));
  if (args->kv_cache != NULL) {
    ATTN_TRY(view_latent(args, rows, &view, message));
  } else {
    ATTN_TRY(view_pools(args, rows, &view, message));
  }
  ATTN_TRY(check_overlaps(&view, message));
  if (!args->unchecked) {
    ATTN_TRY(check_reach(&view, message));
  }
  return backend->cache_gather(context, &view, message);
}
