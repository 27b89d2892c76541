/* SPDX-License-Identifier: Apache-2.0 */
/* 04_merge_shared_prefix.c: four sequences share a prefix of 96 keys. One call lets all four queries see the prefix,
   which is read once for all of them; another sees each one's own suffix; attn_merge() joins the two states by their
   log-sum-exp. The result is that of each sequence's whole table. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>

enum { SEQS = 4, Q_HEADS = 4, KV_HEADS = 1, SIZE = 64, BLOCK = 16, PREFIX = 6, SUFFIX = 2 };
enum { BLOCKS = PREFIX + SEQS * SUFFIX, SLOTS = BLOCKS * BLOCK, WIDTH = PREFIX + SUFFIX };

static float k_pool[SLOTS][KV_HEADS][SIZE], v_pool[SLOTS][KV_HEADS][SIZE], q[SEQS][Q_HEADS][SIZE];
static int32_t suffix_lens[SEQS] = {5, 32, 17, 1}; /* keys of each sequence after the prefix */
static attn_context *context;
static attn_message message;

/* A partial result: out and its log-sum-exp. */
typedef struct state {
  float out[SEQS][Q_HEADS][SIZE];
  float lse[SEQS][Q_HEADS];
  int64_t out_shape[3], lse_shape[2];
  DLTensor out_view, lse_view;
} state;

static void fill(float *x, size_t n) {
  static uint64_t seed = 4;
  for (size_t i = 0; i < n; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    x[i] = (float)(int32_t)(seed >> 32) * 0x1p-31f;
  }
}

static DLTensor view(void *data, attn_dtype dtype, int32_t ndim, int64_t *shape) {
  DLTensor tensor;
  attn_tensor_cpu(&tensor, data, dtype, ndim, shape);
  return tensor;
}

static void make_views(state *s) {
  s->out_shape[0] = s->lse_shape[0] = SEQS;
  s->out_shape[1] = s->lse_shape[1] = Q_HEADS;
  s->out_shape[2] = SIZE;
  s->out_view = view(s->out, ATTN_DTYPE_FLOAT32, 3, s->out_shape);
  s->lse_view = view(s->lse, ATTN_DTYPE_FLOAT32, 2, s->lse_shape);
}

/* All four queries over `seqs` sequences of the pool, each with its row of the table. */
static attn_status attend(int32_t causal, int32_t seqs, int32_t *starts, int32_t *lens, int32_t *table, int32_t width,
                          state *result) {
  int64_t q_shape[] = {SEQS, Q_HEADS, SIZE}, pool_shape[] = {BLOCKS, BLOCK, KV_HEADS, SIZE};
  int64_t table_shape[] = {seqs, width}, start_shape[] = {seqs + 1}, lens_shape[] = {seqs};
  DLTensor q_view = view(q, ATTN_DTYPE_FLOAT32, 3, q_shape);
  DLTensor k_cache = view(k_pool, ATTN_DTYPE_FLOAT32, 4, pool_shape);
  DLTensor v_cache = view(v_pool, ATTN_DTYPE_FLOAT32, 4, pool_shape);
  DLTensor table_view = view(table, ATTN_DTYPE_INT32, 2, table_shape);
  DLTensor start_view = view(starts, ATTN_DTYPE_INT32, 1, start_shape);
  DLTensor lens_view = view(lens, ATTN_DTYPE_INT32, 1, lens_shape);
  attn_problem problem = ATTN_PROBLEM_INIT;
  problem.num_q_heads = Q_HEADS;
  problem.num_kv_heads = KV_HEADS;
  problem.qk_head_size = SIZE;
  problem.block_size = BLOCK;
  problem.scale = attn_softmax_scale(SIZE);
  problem.causal = causal;
  problem.wants_lse = 1;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  limits.max_tokens = SEQS;
  limits.max_kv_len = WIDTH * BLOCK;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  options.own_workspace = 1;
  attn_batch batch = ATTN_BATCH_INIT;
  batch.query_start_loc = &start_view;
  batch.seq_lens = &lens_view;
  attn_run_args run = ATTN_RUN_INIT;
  run.q = &q_view;
  run.k_cache = &k_cache;
  run.v_cache = &v_cache;
  run.block_table = &table_view;
  run.out = &result->out_view;
  run.lse = &result->lse_view;
  attn_plan *plan = NULL;
  attn_status status = attn_plan_create(context, &problem, &limits, &options, &plan, &message);
  if (status == ATTN_OK && (status = attn_plan_schedule(plan, &batch, NULL, &message)) == ATTN_OK) {
    status = attn_run(plan, &run, NULL, &message);
  }
  attn_plan_destroy(plan);
  return status;
}

int main(void) {
  static state prefix, suffix, merged, whole;
  static int32_t prefix_table[PREFIX], suffix_table[SEQS][SUFFIX], whole_table[SEQS][WIDTH];
  int32_t one_start[] = {0, SEQS}, starts[SEQS + 1], prefix_len[] = {PREFIX * BLOCK}, whole_lens[SEQS];
  fill(&k_pool[0][0][0], sizeof k_pool / sizeof(float));
  fill(&v_pool[0][0][0], sizeof v_pool / sizeof(float));
  fill(&q[0][0][0], sizeof q / sizeof(float));
  make_views(&prefix);
  make_views(&suffix);
  make_views(&merged);
  make_views(&whole);
  for (int s = 0; s < SEQS; s++) {
    starts[s] = s;
    whole_lens[s] = PREFIX * BLOCK + suffix_lens[s];
    for (int c = 0; c < WIDTH; c++) {
      int32_t id = c < PREFIX ? c : PREFIX + s * SUFFIX + (c - PREFIX);
      whole_table[s][c] = id;
      *(c < PREFIX ? &prefix_table[c] : &suffix_table[s][c - PREFIX]) = id;
    }
  }
  starts[SEQS] = SEQS;

  const DLTensor *outs[] = {&prefix.out_view, &suffix.out_view}, *lses[] = {&prefix.lse_view, &suffix.lse_view};
  attn_merge_args merge = ATTN_MERGE_INIT;
  merge.num_parts = 2;
  merge.outs = outs;
  merge.lses = lses;
  merge.out = &merged.out_view;
  merge.lse = &merged.lse_view;
  int failed = attn_context_create(NULL, &context, &message) != ATTN_OK ||
               /* one "sequence" of four rows, none of which hides a key of the prefix: not causal */
               attend(0, 1, one_start, prefix_len, prefix_table, PREFIX, &prefix) != ATTN_OK ||
               attend(1, SEQS, starts, suffix_lens, &suffix_table[0][0], SUFFIX, &suffix) != ATTN_OK ||
               attn_merge(context, &merge, &message) != ATTN_OK ||
               attend(1, SEQS, starts, whole_lens, &whole_table[0][0], WIDTH, &whole) != ATTN_OK;
  attn_context_destroy(context);
  if (failed) {
    (void)fprintf(stderr, "04_merge_shared_prefix: %s\n", message.text);
    return 1;
  }
  float worst = 0;
  for (int i = 0; i < SEQS * Q_HEADS * SIZE; i++) {
    worst = fmaxf(worst, fabsf((&merged.out[0][0][0])[i] - (&whole.out[0][0][0])[i]));
  }
  for (int i = 0; i < SEQS * Q_HEADS; i++) {
    worst = fmaxf(worst, fabsf((&merged.lse[0][0])[i] - (&whole.lse[0][0])[i]));
  }
  printf("prefix merged with %d suffixes; largest difference from the whole: %.1e\n", SEQS, (double)worst);
  return worst < 5e-6f ? 0 : 1;
}
