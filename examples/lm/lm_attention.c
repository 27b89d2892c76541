/* SPDX-License-Identifier: Apache-2.0 */
/* Paged attention through libattn's public calls: see lm_attention.h. */
#define _POSIX_C_SOURCE 200809L
#include "lm_attention.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The tensors of a layer's cache. */
typedef enum pool_kind { POOL_K, POOL_V, POOL_K_SCALE, POOL_V_SCALE, POOL_COUNT } pool_kind;

struct lm_attention {
  model_params params;
  lm_storage storage;
  float *scales; /* [layers, 2, kv_heads] static ones; NULL: 1 */
  int32_t max_seqs;
  int32_t block_size;
  int32_t num_blocks; /* the null block included */
  int32_t table_width;
  bool prefix_cache;
  attn_context *context;
  attn_plan *plan;
  attn_plan_info plan_info;
  attn_pool *pool;
  attn_cache_desc cache_desc;
  attn_cache_info cache_info;
  void **pools; /* [layers, POOL_COUNT]; NULL where the formats have no such tensor */
  /* this step's lists */
  int32_t num_seqs;
  int64_t num_tokens;
  int32_t *query_start_loc; /* [max_seqs + 1] */
  int32_t *seq_lens;        /* [max_seqs] */
  int32_t *block_table;     /* [max_seqs, table_width] */
  int64_t *slot_mapping;    /* [max_tokens] */
  attn_pool_copies copies;  /* of blocks that sequences shared so far */
};

static attn_status make_context(const lm_attention_options *options, lm_attention *a, attn_message *message) {
  attn_context_options context = ATTN_CONTEXT_OPTIONS_INIT;
  context.num_threads = options->threads;
  context.executor = options->executor;
  return attn_context_create(&context, &a->context, message);
}

static attn_status make_plan(const lm_attention_options *options, lm_attention *a, attn_message *message) {
  attn_problem problem = ATTN_PROBLEM_INIT;
  problem.num_q_heads = a->params.heads;
  problem.num_kv_heads = a->params.kv_heads;
  problem.qk_head_size = a->params.head_size;
  problem.k_format = options->storage.formats.k.format;
  problem.v_format = options->storage.formats.v.format;
  problem.separate_scales = (int32_t)lm_formats_separate(&options->storage.formats);
  problem.block_size = options->block_size;
  problem.scale = attn_softmax_scale(a->params.head_size);
  problem.batch_invariant = options->batch_invariant;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  limits.max_seqs = options->max_seqs;
  limits.max_tokens = options->max_tokens;
  limits.max_kv_len = options->max_length;
  attn_plan_options plan = ATTN_PLAN_OPTIONS_INIT;
  plan.backend = options->backend;
  plan.own_workspace = 1;
  attn_status status = attn_plan_create(a->context, &problem, &limits, &plan, &a->plan, message);
  if (status == ATTN_OK) {
    a->plan_info = (attn_plan_info)ATTN_PLAN_INFO_INIT;
    status = attn_plan_get_info(a->plan, &a->plan_info, message);
    a->block_size = a->plan_info.block_size;
  }
  return status;
}

int32_t lm_attention_blocks_for(const lm_attention *a, int32_t tokens) {
  return tokens / a->block_size + (tokens % a->block_size != 0);
}

/* Blocks for every sequence at once if the limit allows, for the longest alone at least. */
static int64_t choose_blocks(const lm_attention_options *options, const lm_attention *a) {
  if (options->cache_blocks > 0) {
    return options->cache_blocks;
  }
  int64_t wanted = 0;
  for (size_t i = 0; i < options->length_count && options->max_seqs > 1; i++) {
    wanted += lm_attention_blocks_for(a, options->lengths[i]);
  }
  const uint64_t layers = (uint64_t)a->params.layers;
  const int64_t affordable = (int64_t)(options->cache_limit / layers / a->cache_info.bytes_per_block);
  wanted = wanted < affordable ? wanted : affordable;
  return wanted > a->table_width ? wanted : a->table_width;
}

/* What no schedule can help: a prompt whose sequence alone is more than the pool. */
static attn_status check_lengths(const lm_attention_options *options, const lm_attention *a, attn_message *message) {
  for (size_t i = 0; i < options->length_count; i++) {
    const int32_t blocks = lm_attention_blocks_for(a, options->lengths[i]);
    if (blocks > a->num_blocks - 1) {
      return lm_fail(message, ATTN_E_CAPACITY,
                     "prompt %zu may come to %d tokens, %d blocks of %d; the cache has %d blocks (--cache-blocks)",
                     i + 1, options->lengths[i], blocks, a->block_size, a->num_blocks - 1);
    }
  }
  return ATTN_OK;
}

static attn_status describe_cache(const lm_attention_options *options, lm_attention *a, attn_message *message) {
  a->table_width = lm_attention_blocks_for(a, options->max_length);
  a->cache_desc = (attn_cache_desc)ATTN_CACHE_DESC_INIT;
  a->cache_desc.k_format = options->storage.formats.k.format;
  a->cache_desc.v_format = options->storage.formats.v.format;
  a->cache_desc.separate_scales = (int32_t)lm_formats_separate(&options->storage.formats);
  a->cache_desc.num_blocks = 1;
  a->cache_desc.block_size = a->block_size;
  a->cache_desc.num_kv_heads = a->params.kv_heads;
  a->cache_desc.head_size = a->params.head_size;
  a->cache_info = (attn_cache_info)ATTN_CACHE_INFO_INIT;
  const attn_status status = attn_cache_describe(&a->cache_desc, &a->cache_info, message);
  if (status != ATTN_OK) {
    return status;
  }
  const int64_t blocks = choose_blocks(options, a);
  a->num_blocks = (int32_t)(blocks < INT32_MAX - 1 ? blocks : INT32_MAX - 1) + 1; /* the null block too */
  a->cache_desc.num_blocks = a->num_blocks;
  return attn_cache_describe(&a->cache_desc, &a->cache_info, message);
}

static attn_status make_pool(const lm_attention_options *options, lm_attention *a, attn_message *message) {
  attn_status status = describe_cache(options, a, message);
  if (status == ATTN_OK) {
    status = check_lengths(options, a, message);
  }
  if (status != ATTN_OK) {
    return status;
  }
  attn_pool_options pool = ATTN_POOL_OPTIONS_INIT;
  pool.num_blocks = a->num_blocks;
  pool.block_size = a->block_size;
  pool.max_seqs = options->max_seqs;
  pool.max_seq_blocks = a->table_width;
  pool.prefix_cache = options->prefix_cache;
  status = attn_pool_create(&pool, &a->pool, message);
  if (status != ATTN_OK) {
    return status;
  }
  const size_t seqs = (size_t)options->max_seqs;
  a->query_start_loc = calloc(seqs + 1, sizeof a->query_start_loc[0]);
  a->seq_lens = calloc(seqs, sizeof a->seq_lens[0]);
  a->block_table = calloc(seqs * (size_t)a->table_width, sizeof a->block_table[0]);
  a->slot_mapping = calloc((size_t)options->max_tokens, sizeof a->slot_mapping[0]);
  a->copies = (attn_pool_copies)ATTN_POOL_COPIES_INIT;
  a->copies.capacity = options->max_seqs;
  a->copies.block_map = calloc(2 * seqs, sizeof a->copies.block_map[0]);
  if (a->query_start_loc == NULL || a->seq_lens == NULL || a->block_table == NULL || a->slot_mapping == NULL ||
      a->copies.block_map == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the lists of %d sequences", options->max_seqs);
  }
  return ATTN_OK;
}

static size_t scale_count(const model_params *params) {
  return (size_t)params->layers * 2 * (size_t)params->kv_heads;
}

static attn_status copy_scales(const lm_attention_options *options, lm_attention *a, attn_message *message) {
  a->storage = options->storage;
  if (options->storage.scales == NULL) {
    return ATTN_OK;
  }
  a->scales = malloc(scale_count(&a->params) * sizeof a->scales[0]);
  if (a->scales == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the scales of %d layers", a->params.layers);
  }
  memcpy(a->scales, options->storage.scales, scale_count(&a->params) * sizeof a->scales[0]);
  return ATTN_OK;
}

attn_status lm_attention_create(const model_params *params, const lm_attention_options *options, lm_attention **out,
                                attn_message *message) {
  lm_attention *a = calloc(1, sizeof *a);
  if (a == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the attention");
  }
  a->params = *params;
  a->max_seqs = options->max_seqs;
  a->prefix_cache = options->prefix_cache;
  attn_status status = copy_scales(options, a, message);
  if (status == ATTN_OK) {
    status = make_context(options, a, message);
  }
  if (status == ATTN_OK) {
    status = make_plan(options, a, message);
  }
  if (status == ATTN_OK) {
    status = make_pool(options, a, message);
  }
  if (status != ATTN_OK) {
    lm_attention_destroy(a);
    return status;
  }
  *out = a;
  return ATTN_OK;
}

static attn_cache_layout *layout_of(lm_attention *a, pool_kind kind) {
  attn_cache_info *info = &a->cache_info;
  attn_cache_layout *const layouts[POOL_COUNT] = {&info->k, &info->v, &info->k_scale, &info->v_scale};
  return layouts[kind];
}

attn_status lm_attention_allocate(lm_attention *a, attn_message *message) {
  const size_t layers = (size_t)a->params.layers;
  a->pools = calloc(layers * POOL_COUNT, sizeof a->pools[0]);
  bool complete = a->pools != NULL;
  for (size_t i = 0; complete && i < layers * POOL_COUNT; i++) {
    const uint64_t bytes = layout_of(a, (pool_kind)(i % POOL_COUNT))->bytes;
    complete = bytes == 0 || posix_memalign(&a->pools[i], 64, (size_t)bytes) == 0;
  }
  return complete ? ATTN_OK
                  : lm_fail(message, ATTN_E_NOMEM, "no memory for a cache of %" PRIu64 " bytes",
                            lm_attention_cache_bytes(a));
}

void lm_attention_destroy(lm_attention *a) {
  if (a == NULL) {
    return;
  }
  for (size_t i = 0; a->pools != NULL && i < (size_t)a->params.layers * POOL_COUNT; i++) {
    free(a->pools[i]);
  }
  free(a->pools);
  free(a->scales);
  free(a->query_start_loc);
  free(a->seq_lens);
  free(a->block_table);
  free(a->slot_mapping);
  free(a->copies.block_map);
  attn_pool_destroy(a->pool);
  attn_plan_destroy(a->plan);
  attn_context_destroy(a->context);
  free(a);
}

const char *lm_attention_backend(const lm_attention *a) {
  return a->plan_info.backend;
}

uint64_t lm_attention_cache_bytes(const lm_attention *a) {
  return (uint64_t)a->params.layers * a->cache_info.bytes;
}

double lm_attention_bytes_per_token(const lm_attention *a) {
  return a->params.layers * a->cache_info.bytes_per_token;
}

int32_t lm_attention_block_size(const lm_attention *a) {
  return a->block_size;
}

bool lm_attention_shares(const lm_attention *a) {
  return a->prefix_cache;
}

int32_t lm_attention_needs(const lm_attention *a, int32_t seq, int32_t count) {
  return attn_pool_blocks_needed(a->pool, seq, count);
}

int32_t lm_attention_free_blocks(const lm_attention *a) {
  return attn_pool_num_free(a->pool);
}

int32_t lm_attention_total_blocks(const lm_attention *a) {
  return a->num_blocks - 1;
}

attn_status lm_attention_start(lm_attention *a, int32_t seq, const int32_t *ids, int32_t count, int32_t *reused,
                               attn_message *message) {
  return attn_pool_reuse_prefix(a->pool, seq, ids, count, reused, message);
}

attn_status lm_attention_fork(lm_attention *a, int32_t parent, int32_t child, attn_message *message) {
  return attn_pool_fork(a->pool, parent, child, message);
}

/* A layer's tensor as the calls take it; NULL where the formats have none. */
static const DLTensor *pool_tensor(lm_attention *a, int32_t layer, pool_kind kind, DLTensor *view) {
  attn_cache_layout *layout = layout_of(a, kind);
  if (layout->ndim == 0) {
    return NULL;
  }
  attn_tensor_cpu(view, a->pools[(size_t)layer * POOL_COUNT + kind], layout->dtype, layout->ndim, layout->shape);
  return view;
}

static attn_status copy_blocks(lm_attention *a, int32_t layer, pool_kind kind, attn_message *message) {
  DLTensor view, map;
  const DLTensor *cache = pool_tensor(a, layer, kind, &view);
  if (cache == NULL) {
    return ATTN_OK;
  }
  int64_t map_shape[2] = {a->copies.count, 2};
  attn_tensor_cpu(&map, a->copies.block_map, ATTN_DTYPE_INT64, 2, map_shape);
  attn_cache_copy_args copy = ATTN_CACHE_COPY_INIT;
  copy.backend = a->plan_info.backend;
  copy.source = cache;
  copy.target = cache;
  copy.block_map = &map;
  return attn_cache_copy(a->context, &copy, message);
}

/* The blocks that this step's appends took in place of shared ones, in every layer, separate scales with their rows. */
static attn_status copy_shared(lm_attention *a, attn_message *message) {
  attn_status status = ATTN_OK;
  for (int32_t layer = 0; a->copies.count > 0 && layer < a->params.layers; layer++) {
    for (int kind = 0; kind < POOL_COUNT && status == ATTN_OK; kind++) {
      status = copy_blocks(a, layer, (pool_kind)kind, message);
    }
  }
  return status;
}

attn_status lm_attention_begin(lm_attention *a, int32_t num_seqs, const int32_t *seqs, const int32_t *counts,
                               const int32_t *ids, attn_message *message) {
  attn_status status = ATTN_OK;
  a->num_seqs = num_seqs;
  a->query_start_loc[0] = 0;
  a->copies.count = 0;
  for (int32_t i = 0; i < num_seqs && status == ATTN_OK; i++) {
    const int32_t start = a->query_start_loc[i];
    a->query_start_loc[i + 1] = start + counts[i];
    status = attn_pool_append_cow(a->pool, seqs[i], counts[i], a->prefix_cache ? ids + start : NULL,
                                  a->slot_mapping + start, &a->copies, message);
  }
  if (status == ATTN_OK) {
    status = copy_shared(a, message);
  }
  if (status != ATTN_OK) {
    return status;
  }
  a->num_tokens = a->query_start_loc[num_seqs];
  status = attn_pool_block_table(a->pool, num_seqs, seqs, a->table_width, a->block_table, a->seq_lens, message);
  if (status != ATTN_OK) {
    return status;
  }
  DLTensor starts;
  DLTensor lengths;
  int64_t starts_shape[1] = {num_seqs + 1};
  int64_t lengths_shape[1] = {num_seqs};
  attn_tensor_cpu(&starts, a->query_start_loc, ATTN_DTYPE_INT32, 1, starts_shape);
  attn_tensor_cpu(&lengths, a->seq_lens, ATTN_DTYPE_INT32, 1, lengths_shape);
  attn_batch batch = ATTN_BATCH_INIT;
  batch.query_start_loc = &starts;
  batch.seq_lens = &lengths;
  return attn_plan_schedule(a->plan, &batch, NULL, message);
}

/* A view [tokens, heads, head_size] of rows that lie `row` elements apart. */
typedef struct rows_view {
  DLTensor tensor;
  int64_t shape[3];
  int64_t strides[3];
} rows_view;

static void view_rows(rows_view *view, const lm_attention *a, float *data, int32_t heads, int64_t row) {
  view->shape[0] = a->num_tokens;
  view->shape[1] = heads;
  view->shape[2] = a->params.head_size;
  view->strides[0] = row;
  view->strides[1] = a->params.head_size;
  view->strides[2] = 1;
  attn_tensor_cpu(&view->tensor, data, ATTN_DTYPE_FLOAT32, 3, view->shape);
  view->tensor.strides = view->strides;
}

/* K's (which 0) or V's scales as the calls take them: the separate ones of the rows, static ones, or none. */
static const DLTensor *scale_tensor(lm_attention *a, int32_t layer, int which, DLTensor *view, int64_t *shape) {
  const attn_format format = which == 0 ? a->storage.formats.k.format : a->storage.formats.v.format;
  if (a->scales == NULL || lm_format_static_range(format) == 0) {
    return pool_tensor(a, layer, which == 0 ? POOL_K_SCALE : POOL_V_SCALE, view);
  }
  shape[0] = a->params.kv_heads;
  attn_tensor_cpu(view, a->scales + ((int64_t)layer * 2 + which) * shape[0], ATTN_DTYPE_FLOAT32, 1, shape);
  return view;
}

/* A NaN is passed over. */
static void measure(const lm_attention *a, int32_t layer, int which, const float *data, int64_t stride) {
  const int64_t heads = a->params.kv_heads;
  const int64_t size = a->params.head_size;
  float *largest = a->storage.largest + ((int64_t)layer * 2 + which) * heads;
  for (int64_t token = 0; token < a->num_tokens; token++) {
    for (int64_t head = 0; head < heads; head++) {
      const float *row = data + token * stride + head * size;
      for (int64_t i = 0; i < size; i++) {
        largest[head] = fmaxf(largest[head], fabsf(row[i]));
      }
    }
  }
}

attn_status lm_attention_layer(void *attention, const model_rows *rows, attn_message *message) {
  lm_attention *a = attention;
  rows_view q, k, v, out;
  view_rows(&q, a, rows->q, a->params.heads, rows->stride);
  view_rows(&k, a, rows->k, a->params.kv_heads, rows->stride);
  view_rows(&v, a, rows->v, a->params.kv_heads, rows->stride);
  view_rows(&out, a, rows->out, a->params.heads, (int64_t)a->params.heads * a->params.head_size);
  DLTensor k_view, v_view, k_scale_view, v_scale_view, slots, table;
  int64_t k_scale_shape[1], v_scale_shape[1];
  const DLTensor *k_cache = pool_tensor(a, rows->layer, POOL_K, &k_view);
  const DLTensor *v_cache = pool_tensor(a, rows->layer, POOL_V, &v_view);
  const DLTensor *k_scale = scale_tensor(a, rows->layer, 0, &k_scale_view, k_scale_shape);
  const DLTensor *v_scale = scale_tensor(a, rows->layer, 1, &v_scale_view, v_scale_shape);
  int64_t slots_shape[1] = {a->num_tokens};
  int64_t table_shape[2] = {a->num_seqs, a->table_width};
  attn_tensor_cpu(&slots, a->slot_mapping, ATTN_DTYPE_INT64, 1, slots_shape);
  attn_tensor_cpu(&table, a->block_table, ATTN_DTYPE_INT32, 2, table_shape);
  if (a->storage.largest != NULL) {
    measure(a, rows->layer, 0, rows->k, rows->stride);
    measure(a, rows->layer, 1, rows->v, rows->stride);
  }

  attn_cache_write_args write = ATTN_CACHE_WRITE_INIT;
  write.backend = a->plan_info.backend;
  write.k = &k.tensor;
  write.v = &v.tensor;
  write.slot_mapping = &slots;
  write.k_format = a->storage.formats.k.format;
  write.v_format = a->storage.formats.v.format;
  write.k_cache = k_cache;
  write.v_cache = v_cache;
  write.k_scale = k_scale;
  write.v_scale = v_scale;
  const attn_status status = attn_cache_write(a->context, &write, message);
  if (status != ATTN_OK) {
    return status;
  }
  attn_run_args run = ATTN_RUN_INIT;
  run.q = &q.tensor;
  run.k_cache = k_cache;
  run.v_cache = v_cache;
  run.k_scale = k_scale;
  run.v_scale = v_scale;
  run.block_table = &table;
  run.out = &out.tensor;
  return attn_run(a->plan, &run, NULL, message);
}

const void *lm_attention_rows(const lm_attention *a, int32_t layer, int which, int32_t position, size_t *bytes) {
  const attn_cache_layout *layout = which == 0 ? &a->cache_info.k : &a->cache_info.v;
  const uint64_t element = layout->row_bytes / (uint64_t)layout->shape[3];
  const int64_t block = a->block_table[position / a->block_size];
  const int64_t at = block * layout->strides[0] + position % a->block_size * layout->strides[1];
  *bytes = (size_t)layout->strides[1] * element; /* NHD: a position's heads are neighbours */
  return (const char *)a->pools[(size_t)layer * POOL_COUNT + (size_t)which] + (uint64_t)at * element;
}

attn_status lm_attention_commit(lm_attention *a, int32_t seq, attn_message *message) {
  return a->prefix_cache ? attn_pool_commit(a->pool, seq, message) : ATTN_OK;
}

attn_status lm_attention_pool_info(const lm_attention *a, attn_pool_info *info, attn_message *message) {
  return attn_pool_get_info(a->pool, info, message);
}

attn_status lm_attention_check(const lm_attention *a, attn_message *message) {
  return attn_pool_check(a->pool, message);
}

attn_status lm_attention_finish(lm_attention *a, int32_t seq, attn_message *message) {
  return attn_pool_free_seq(a->pool, seq, message);
}
