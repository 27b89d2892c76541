/* SPDX-License-Identifier: Apache-2.0 */
/* 01_decode.c: one decode step of three sequences: each writes its newest key and value into a paged bfloat16 cache and
   attends to everything cached. The result is checked against attention written out in double. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>

enum { SEQS = 3, Q_HEADS = 8, KV_HEADS = 2, SIZE = 64, BLOCK = 16, BLOCKS = 12, WIDTH = 4, KEYS = 49 + 16 + 23 };

/* Lengths after this step, and who owns which block: in any order, the surplus columns hold anything. */
static int32_t seq_lens[SEQS] = {49, 16, 23};
static int32_t block_table[SEQS][WIDTH] = {{7, 2, 9, 4}, {11, -1, -1, -1}, {1, 5, -1, -1}};
static int32_t query_start_loc[SEQS + 1] = {0, 1, 2, 3};

static float k[KEYS][KV_HEADS][SIZE], v[KEYS][KV_HEADS][SIZE];
static float q[SEQS][Q_HEADS][SIZE], out[SEQS][Q_HEADS][SIZE];
static int64_t slots[KEYS];
static uint16_t k_pool[BLOCKS][BLOCK][KV_HEADS][SIZE], v_pool[BLOCKS][BLOCK][KV_HEADS][SIZE];

static float uniform(void) {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

static void fill(float *x, size_t n) {
  for (size_t i = 0; i < n; i++) {
    x[i] = uniform();
  }
}

static DLTensor view(void *data, attn_dtype dtype, int32_t ndim, int64_t *shape) {
  DLTensor tensor;
  attn_tensor_cpu(&tensor, data, dtype, ndim, shape);
  return tensor;
}

/* Attention of one row in double over the stored keys and values, which the cache gives back as float32. */
static double worst_error(int s, int first) {
  double worst = 0;
  for (int h = 0; h < Q_HEADS; h++) {
    int g = h / (Q_HEADS / KV_HEADS);
    double sum = 0;
    double value[SIZE] = {0};
    for (int j = first; j < first + seq_lens[s]; j++) {
      double dot = 0;
      for (int i = 0; i < SIZE; i++) {
        dot += (double)q[s][h][i] * (double)k[j][g][i];
      }
      double weight = exp(dot * (double)attn_softmax_scale(SIZE));
      sum += weight;
      for (int i = 0; i < SIZE; i++) {
        value[i] += weight * (double)v[j][g][i];
      }
    }
    for (int i = 0; i < SIZE; i++) {
      worst = fmax(worst, fabs(value[i] / sum - (double)out[s][h][i]));
    }
  }
  return worst;
}

int main(void) {
  attn_message message;
  attn_context *context = NULL;
  attn_plan *plan = NULL;
  int64_t kv_shape[] = {KEYS, KV_HEADS, SIZE}, slots_shape[] = {KEYS}, pool_shape[] = {BLOCKS, BLOCK, KV_HEADS, SIZE};
  int64_t q_shape[] = {SEQS, Q_HEADS, SIZE}, table_shape[] = {SEQS, WIDTH}, start_shape[] = {SEQS + 1};
  int64_t lens_shape[] = {SEQS};
  DLTensor k_view = view(k, ATTN_DTYPE_FLOAT32, 3, kv_shape), v_view = view(v, ATTN_DTYPE_FLOAT32, 3, kv_shape);
  DLTensor slot_view = view(slots, ATTN_DTYPE_INT64, 1, slots_shape);
  DLTensor k_cache = view(k_pool, ATTN_DTYPE_BFLOAT16, 4, pool_shape);
  DLTensor v_cache = view(v_pool, ATTN_DTYPE_BFLOAT16, 4, pool_shape);
  DLTensor q_view = view(q, ATTN_DTYPE_FLOAT32, 3, q_shape), out_view = view(out, ATTN_DTYPE_FLOAT32, 3, q_shape);
  DLTensor table = view(block_table, ATTN_DTYPE_INT32, 2, table_shape);
  DLTensor starts = view(query_start_loc, ATTN_DTYPE_INT32, 1, start_shape);
  DLTensor lens = view(seq_lens, ATTN_DTYPE_INT32, 1, lens_shape);
  fill(&k[0][0][0], sizeof k / sizeof(float));
  fill(&v[0][0][0], sizeof v / sizeof(float));
  fill(&q[0][0][0], sizeof q / sizeof(float));
  for (int s = 0, row = 0; s < SEQS; s++) { /* slot = block * block size + offset */
    for (int p = 0; p < seq_lens[s]; p++) {
      slots[row++] = (int64_t)block_table[s][p / BLOCK] * BLOCK + p % BLOCK;
    }
  }

  attn_context_options device = ATTN_CONTEXT_OPTIONS_INIT;
  attn_problem problem = ATTN_PROBLEM_INIT;
  problem.num_q_heads = Q_HEADS;
  problem.num_kv_heads = KV_HEADS;
  problem.qk_head_size = SIZE;
  problem.k_format = ATTN_FORMAT_BFLOAT16; /* V likewise, unless v_format says otherwise */
  problem.block_size = BLOCK;
  problem.scale = attn_softmax_scale(SIZE);
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  limits.max_tokens = SEQS;
  limits.max_kv_len = WIDTH * BLOCK;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  options.own_workspace = 1;
  attn_cache_write_args write = ATTN_CACHE_WRITE_INIT;
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
  attn_cache_gather_args gather = ATTN_CACHE_GATHER_INIT; /* back as float32: what was stored */
  gather.k_cache = &k_cache;
  gather.v_cache = &v_cache;
  gather.block_table = &table;
  gather.seq_lens = &lens;
  gather.k = &k_view;
  gather.v = &v_view;
  int failed = attn_context_create(&device, &context, &message) != ATTN_OK ||
               attn_plan_create(context, &problem, &limits, &options, &plan, &message) != ATTN_OK ||
               attn_cache_write(context, &write, &message) != ATTN_OK ||
               attn_plan_schedule(plan, &batch, NULL, &message) != ATTN_OK ||
               attn_run(plan, &run, NULL, &message) != ATTN_OK ||
               attn_cache_gather(context, &gather, &message) != ATTN_OK;
  attn_plan_destroy(plan);
  attn_context_destroy(context);
  if (failed) {
    (void)fprintf(stderr, "01_decode: %s\n", message.text);
    return 1;
  }
  double worst = 0;
  for (int s = 0, first = 0; s < SEQS; first += seq_lens[s++]) {
    worst = fmax(worst, worst_error(s, first));
  }
  printf("decoded %d sequences; largest difference from double arithmetic: %.1e\n", SEQS, worst);
  return worst < 1e-5 ? 0 : 1;
}
