/* SPDX-License-Identifier: Apache-2.0 */
/* 03_strided_hnd_cache.c: K and V of a head-major (HND) cache interleaved in one allocation, block by block, each pair
   followed by padding: attn_cache_describe() gives shapes and strides, the calls use them as given. The result equals
   the one from two compact NHD pools, and no byte of the padding changes. */
#include <attn/attn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { Q_HEADS = 6, KV_HEADS = 3, SIZE = 48, BLOCK = 16, BLOCKS = 5, KEYS = 37, WIDTH = 3, PADDING = 256 };

static int32_t block_table[WIDTH] = {4, 0, 2}, query_start_loc[] = {0, 1}, seq_lens[] = {KEYS};
static float k[KEYS][KV_HEADS][SIZE], v[KEYS][KV_HEADS][SIZE], q[Q_HEADS][SIZE];
static int64_t slots[KEYS];
static attn_message message;

static void fill(float *x, size_t n) {
  static uint64_t state = 3;
  for (size_t i = 0; i < n; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x[i] = (float)(int32_t)(state >> 32) * 0x1p-31f;
  }
}

static DLTensor view(void *data, attn_dtype dtype, int32_t ndim, int64_t *shape) {
  DLTensor tensor;
  attn_tensor_cpu(&tensor, data, dtype, ndim, shape);
  return tensor;
}

/* A pool tensor as attn_cache_describe() answered it, over memory of ours. */
static DLTensor pool_view(attn_cache_layout *layout, void *data) {
  DLTensor tensor = view(data, layout->dtype, layout->ndim, layout->shape);
  tensor.strides = layout->strides;
  return tensor;
}

static attn_status attend(attn_context *context, attn_layout layout, DLTensor k_cache, DLTensor v_cache, float *out) {
  int64_t kv_shape[] = {KEYS, KV_HEADS, SIZE}, slots_shape[] = {KEYS}, q_shape[] = {1, Q_HEADS, SIZE};
  int64_t table_shape[] = {1, WIDTH}, start_shape[] = {2}, lens_shape[] = {1};
  DLTensor k_view = view(k, ATTN_DTYPE_FLOAT32, 3, kv_shape), v_view = view(v, ATTN_DTYPE_FLOAT32, 3, kv_shape);
  DLTensor slot_view = view(slots, ATTN_DTYPE_INT64, 1, slots_shape);
  DLTensor q_view = view(q, ATTN_DTYPE_FLOAT32, 3, q_shape), out_view = view(out, ATTN_DTYPE_FLOAT32, 3, q_shape);
  DLTensor table = view(block_table, ATTN_DTYPE_INT32, 2, table_shape);
  DLTensor starts = view(query_start_loc, ATTN_DTYPE_INT32, 1, start_shape);
  DLTensor lens = view(seq_lens, ATTN_DTYPE_INT32, 1, lens_shape);
  attn_problem problem = ATTN_PROBLEM_INIT;
  problem.num_q_heads = Q_HEADS;
  problem.num_kv_heads = KV_HEADS;
  problem.qk_head_size = SIZE;
  problem.k_format = ATTN_FORMAT_FLOAT16;
  problem.layout = layout;
  problem.block_size = BLOCK;
  problem.scale = attn_softmax_scale(SIZE);
  problem.batch_invariant = 1; /* bits do not depend on where the blocks lie */
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  limits.max_tokens = 1;
  limits.max_kv_len = WIDTH * BLOCK;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  options.own_workspace = 1;
  attn_cache_write_args write = ATTN_CACHE_WRITE_INIT;
  write.layout = layout;
  write.k = &k_view;
  write.v = &v_view;
  write.slot_mapping = &slot_view;
  write.k_cache = &k_cache;
  write.v_cache = &v_cache;
  attn_batch batch = ATTN_BATCH_INIT;
  batch.query_start_loc = &starts;
  batch.seq_lens = &lens;
  attn_run_args run = ATTN_RUN_INIT;
  run.q = &q_view;
  run.k_cache = &k_cache;
  run.v_cache = &v_cache;
  run.block_table = &table;
  run.out = &out_view;
  attn_plan *plan = NULL;
  attn_status status = attn_plan_create(context, &problem, &limits, &options, &plan, &message);
  if (status == ATTN_OK && (status = attn_cache_write(context, &write, &message)) == ATTN_OK &&
      (status = attn_plan_schedule(plan, &batch, NULL, &message)) == ATTN_OK) {
    status = attn_run(plan, &run, NULL, &message);
  }
  attn_plan_destroy(plan);
  return status;
}

/* Bytes of the padding after each block's V that are no longer 0xA5. */
static int touched(const unsigned char *memory, size_t used, size_t period) {
  int count = 0;
  for (size_t block = 0; block < BLOCKS; block++) {
    for (size_t i = used; i < period; i++) {
      count += memory[block * period + i] != 0xA5;
    }
  }
  return count;
}

int main(void) {
  attn_context *context = NULL;
  attn_cache_info compact = ATTN_CACHE_INFO_INIT, strided = ATTN_CACHE_INFO_INIT;
  attn_cache_desc desc = ATTN_CACHE_DESC_INIT;
  desc.k_format = ATTN_FORMAT_FLOAT16;
  desc.num_blocks = BLOCKS;
  desc.block_size = BLOCK;
  desc.num_kv_heads = KV_HEADS;
  desc.head_size = SIZE;
  if (attn_context_create(NULL, &context, &message) != ATTN_OK ||
      attn_cache_describe(&desc, &compact, &message) != ATTN_OK) {
    (void)fprintf(stderr, "03_strided_hnd_cache: %s\n", message.text);
    attn_context_destroy(context);
    return 1;
  }
  size_t side = (size_t)compact.bytes_per_block / 2; /* K of one block, and V */
  size_t period = 2 * side + PADDING;
  desc.layout = ATTN_LAYOUT_HND;
  desc.k_block_bytes = desc.v_block_bytes = (int64_t)period; /* from one block's K to the next, V and padding between */
  unsigned char *one = malloc(BLOCKS * period), *two = malloc((size_t)compact.bytes);
  float hnd[Q_HEADS * SIZE], nhd[Q_HEADS * SIZE];
  fill(&k[0][0][0], sizeof k / sizeof(float));
  fill(&v[0][0][0], sizeof v / sizeof(float));
  fill(&q[0][0], sizeof q / sizeof(float));
  for (int p = 0; p < KEYS; p++) {
    slots[p] = (int64_t)block_table[p / BLOCK] * BLOCK + p % BLOCK;
  }
  int code = 1;
  if (one != NULL) {
    memset(one, 0xA5, BLOCKS * period);
  }
  if (one == NULL || two == NULL) {
    (void)fprintf(stderr, "03_strided_hnd_cache: out of memory\n");
  } else if (attn_cache_describe(&desc, &strided, &message) != ATTN_OK ||
             attend(context, ATTN_LAYOUT_HND, pool_view(&strided.k, one), pool_view(&strided.v, one + side), hnd) !=
                 ATTN_OK ||
             attend(context, ATTN_LAYOUT_NHD, pool_view(&compact.k, two), pool_view(&compact.v, two + BLOCKS * side),
                    nhd) != ATTN_OK) {
    (void)fprintf(stderr, "03_strided_hnd_cache: %s\n", message.text);
  } else {
    int equal = memcmp(hnd, nhd, sizeof hnd) == 0;
    int changed = touched(one, 2 * side, period);
    printf("HND strides %lld %lld %lld 1, padded blocks: %s compact NHD, %d bytes of padding changed\n",
           (long long)strided.k.strides[0], (long long)strided.k.strides[1], (long long)strided.k.strides[2],
           equal ? "bit-equal to" : "NOT equal to", changed);
    code = equal && changed == 0 ? 0 : 1;
  }
  free(one);
  free(two);
  attn_context_destroy(context);
  return code;
}
