/* SPDX-License-Identifier: Apache-2.0 */
/* 07_hybrid_pool.c: one pool of pages for a model with ten sliding-window layers and two full ones of another head
   size. Their pages get one size; a sequence outgrows the window, and what falls behind it serves the full layers. */
#include <attn/attn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FULL, WINDOW, GROUPS, PAGES = 9, KEYS = 32, MAX_LEN = 256, HEADS = 2, WIDEST = 128 };

static const int32_t layers[GROUPS] = {2, 10}, head_size[GROUPS] = {128, 64};
static attn_message message;
static attn_context *context;
static attn_pool *pool;
static attn_plan *plan[GROUPS];
static attn_group_pages pages[GROUPS] = {ATTN_GROUP_PAGES_INIT, ATTN_GROUP_PAGES_INIT};
static attn_geometry geometry = ATTN_GEOMETRY_INIT;
static DLTensor memory; /* [PAGES, 1, page_bytes]: every layer of every group */
static int64_t memory_shape[3];

/* Page sizes, the memory, its manager, and a plan for the layers of each group. */
static attn_status open_all(void) {
  attn_cache_desc layer[GROUPS] = {ATTN_CACHE_DESC_INIT, ATTN_CACHE_DESC_INIT};
  attn_group_spec specs[GROUPS] = {ATTN_GROUP_SPEC_INIT, ATTN_GROUP_SPEC_INIT};
  attn_pool_group groups[GROUPS] = {ATTN_POOL_GROUP_INIT, ATTN_POOL_GROUP_INIT};
  for (int g = 0; g < GROUPS; g++) {
    layer[g].k_format = ATTN_FORMAT_BFLOAT16;
    layer[g].num_kv_heads = HEADS;
    layer[g].head_size = head_size[g];
    specs[g].layer = &layer[g];
    specs[g].num_layers = layers[g];
    specs[g].window = g == WINDOW ? KEYS : 0;
    specs[g].kernel_block = 16; /* what the plans below are made with */
  }
  attn_geometry_options wish = ATTN_GEOMETRY_OPTIONS_INIT;
  wish.max_page_bytes = 1 << 20; /* a common page up to 1 MiB, before padding is accepted */
  attn_status status = attn_geometry_unify(&wish, GROUPS, specs, pages, &geometry, &message);
  memory_shape[0] = PAGES, memory_shape[1] = 1, memory_shape[2] = (int64_t)geometry.page_bytes;
  attn_tensor_cpu(&memory, malloc(PAGES * (size_t)geometry.page_bytes), ATTN_DTYPE_UINT8, 3, memory_shape);
  attn_pool_groups_options options = ATTN_POOL_GROUPS_OPTIONS_INIT;
  options.num_blocks = PAGES, options.max_seqs = 1, options.max_seq_len = MAX_LEN;
  options.num_groups = GROUPS, options.groups = groups;
  for (int g = 0; g < GROUPS && status == ATTN_OK; g++) {
    attn_problem problem = ATTN_PROBLEM_INIT;
    attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
    attn_plan_options own = ATTN_PLAN_OPTIONS_INIT;
    groups[g].block_size = pages[g].block_size;
    groups[g].kernel_block = pages[g].kernel_block;
    groups[g].window = pages[g].window;
    problem.num_q_heads = problem.num_kv_heads = HEADS;
    problem.qk_head_size = head_size[g];
    problem.k_format = ATTN_FORMAT_BFLOAT16;
    problem.block_size = pages[g].kernel_block;
    problem.scale = attn_softmax_scale(head_size[g]);
    problem.window_left = g == WINDOW ? KEYS - 1 : -1;
    limits.max_tokens = limits.max_kv_len = MAX_LEN;
    own.own_workspace = 1;
    status = attn_plan_create(context, &problem, &limits, &own, &plan[g], &message);
    printf(
        "group %d: %2d layers, blocks of %3d tokens in kernel blocks of %d, %llu bytes a token, %llu bytes padding\n",
        g, (int)layers[g], (int)pages[g].block_size, (int)pages[g].kernel_block,
        (unsigned long long)pages[g].token_bytes, (unsigned long long)pages[g].padding_bytes);
  }
  return status == ATTN_OK ? attn_pool_create_groups(&options, &pool, &message) : status;
}

/* One layer of a step: `count` new tokens are written and ask. Every key and value is 1 here, and so every answer. */
static attn_status run_layer(int g, int32_t layer, int32_t count, int64_t *slots, float *answer) {
  static float ones[MAX_LEN * HEADS * WIDEST], out[MAX_LEN * HEADS * WIDEST];
  int32_t seq = 0, length, table[MAX_LEN / 16], starts[2] = {0, count};
  int64_t rows[3] = {count, HEADS, head_size[g]}, width[2] = {1, MAX_LEN / 16}, n[1] = {count}, one[1] = {1},
          two[1] = {2};
  for (size_t i = 0; i < sizeof ones / sizeof ones[0]; i++) {
    ones[i] = 1;
  }
  attn_page_view k, v; /* this layer's tensors, over the pages of all */
  DLTensor row, result, slot, blocks, start, len;
  attn_tensor_cpu(&row, ones, ATTN_DTYPE_FLOAT32, 3, rows);
  attn_tensor_cpu(&result, out, ATTN_DTYPE_FLOAT32, 3, rows);
  attn_tensor_cpu(&slot, slots, ATTN_DTYPE_INT64, 1, n);
  attn_tensor_cpu(&blocks, table, ATTN_DTYPE_INT32, 2, width);
  attn_tensor_cpu(&start, starts, ATTN_DTYPE_INT32, 1, two);
  attn_tensor_cpu(&len, &length, ATTN_DTYPE_INT32, 1, one);
  attn_status status = attn_geometry_view(&memory, &pages[g], layer, ATTN_PART_K, &k, &message);
  if (status != ATTN_OK || (status = attn_geometry_view(&memory, &pages[g], layer, ATTN_PART_V, &v, &message)) ||
      (status = attn_pool_group_table(pool, g, 1, &seq, MAX_LEN / 16, table, &length, &message))) {
    return status;
  }
  attn_cache_write_args put = ATTN_CACHE_WRITE_INIT;
  put.k = put.v = &row, put.slot_mapping = &slot, put.k_cache = &k.tensor, put.v_cache = &v.tensor;
  attn_batch batch = ATTN_BATCH_INIT;
  batch.query_start_loc = &start, batch.seq_lens = &len;
  attn_run_args go = ATTN_RUN_INIT;
  go.q = &row, go.k_cache = &k.tensor, go.v_cache = &v.tensor, go.block_table = &blocks, go.out = &result;
  if ((status = attn_cache_write(context, &put, &message)) ||
      (status = attn_plan_schedule(plan[g], &batch, NULL, &message)) ||
      (status = attn_run(plan[g], &go, NULL, &message))) {
    return status;
  }
  *answer = out[(count - 1) * HEADS * head_size[g]];
  return ATTN_OK;
}

/* Grow by `count` tokens, compute all layers, give back what the window has passed. */
static attn_status step(int32_t count, int *right) {
  int64_t slots[GROUPS][MAX_LEN];
  int32_t released;
  attn_status status = attn_pool_append_groups(pool, 0, count, NULL, slots[0], MAX_LEN, NULL, &message);
  for (int g = 0; g < GROUPS && status == ATTN_OK; g++) {
    for (int32_t layer = 0; layer < layers[g] && status == ATTN_OK; layer++) {
      float answer = 0;
      status = run_layer(g, layer, count, slots[g], &answer);
      *right &= answer == 1;
    }
  }
  if (status == ATTN_OK) {
    status = attn_pool_trim(pool, 0, attn_pool_seq_len(pool, 0), &released, &message);
    printf("%3d tokens: %d pages given back, %d of %d free\n", (int)attn_pool_seq_len(pool, 0), (int)released,
           (int)attn_pool_num_free(pool), PAGES - 1);
  }
  return status;
}

int main(void) {
  int right = 1;
  attn_status status = attn_context_create(NULL, &context, &message);
  if (status == ATTN_OK) {
    status = open_all();
  }
  /* The full layers end with 2 pages; of the window layers' 5 never more than 2 are held. */
  for (int32_t count = 48; status == ATTN_OK && attn_pool_seq_len(pool, 0) < 160; count = 16) {
    status = step(count, &right);
  }
  if (status == ATTN_OK) {
    status = attn_pool_check(pool, &message);
  }
  if (status != ATTN_OK) {
    (void)fprintf(stderr, "07_hybrid_pool: %s\n", message.text);
  }
  for (int g = 0; g < GROUPS; g++) {
    attn_plan_destroy(plan[g]);
  }
  attn_pool_destroy(pool);
  attn_context_destroy(context);
  free(memory.data);
  return status == ATTN_OK && right ? 0 : 1;
}
