/* SPDX-License-Identifier: Apache-2.0 */
/* 02_prefill_chunked.c: a prompt of 40 tokens is prefilled in chunks of 16 while another sequence decodes, both in one
   batch at each step. A batch-invariant plan gives each row the bits that it has when the prompt comes in one piece. */
#include <attn/attn.h>
#include <stdio.h>
#include <string.h>

enum { Q_HEADS = 4, KV_HEADS = 2, SIZE = 32, BLOCK = 8, BLOCKS = 16, WIDTH = 5, PROMPT = 40, CACHED = 20, CHUNK = 16 };
enum { STEPS = (PROMPT + CHUNK - 1) / CHUNK, ROWS = PROMPT + STEPS, LENGTH = CACHED + STEPS };

typedef float q_row[Q_HEADS][SIZE];
typedef float kv_row[KV_HEADS][SIZE];

/* Rows of the prompt, then rows of the decoding sequence. */
static kv_row k[PROMPT + LENGTH], v[PROMPT + LENGTH];
static q_row q_prompt[PROMPT], q_decode[STEPS];
static float k_pool[BLOCKS][BLOCK][KV_HEADS][SIZE], v_pool[BLOCKS][BLOCK][KV_HEADS][SIZE];
static int32_t block_table[2][WIDTH] = {{3, 12, 6, 1, 9}, {14, 2, 10, -1, -1}};
static q_row mixed[ROWS], whole[ROWS]; /* results by row: the prompt's, then the decoding sequence's */

static attn_message message;

static void fill(float *x, size_t n) {
  static uint64_t state = 2;
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

/* Write positions [first, first + count) of a sequence. */
static attn_status write_tokens(attn_context *context, int seq, int first, int count) {
  int64_t slots[PROMPT];
  for (int i = 0; i < count; i++) {
    slots[i] = (int64_t)block_table[seq][(first + i) / BLOCK] * BLOCK + (first + i) % BLOCK;
  }
  int64_t kv_shape[] = {count, KV_HEADS, SIZE}, slots_shape[] = {count}, pool_shape[] = {BLOCKS, BLOCK, KV_HEADS, SIZE};
  DLTensor k_view = view(k[seq * PROMPT + first], ATTN_DTYPE_FLOAT32, 3, kv_shape);
  DLTensor v_view = view(v[seq * PROMPT + first], ATTN_DTYPE_FLOAT32, 3, kv_shape);
  DLTensor slot_view = view(slots, ATTN_DTYPE_INT64, 1, slots_shape);
  DLTensor k_cache = view(k_pool, ATTN_DTYPE_FLOAT32, 4, pool_shape);
  DLTensor v_cache = view(v_pool, ATTN_DTYPE_FLOAT32, 4, pool_shape);
  attn_cache_write_args write = ATTN_CACHE_WRITE_INIT;
  write.k = &k_view;
  write.v = &v_view;
  write.slot_mapping = &slot_view;
  write.k_cache = &k_cache;
  write.v_cache = &v_cache;
  return attn_cache_write(context, &write, &message);
}

/* One batch: sequence s has q_lens[s] new rows in q and seq_lens[s] keys. */
static attn_status step(const attn_plan *plan, void *q, void *out, const int32_t q_lens[2], int32_t seq_lens[2]) {
  int32_t starts[3] = {0, q_lens[0], q_lens[0] + q_lens[1]};
  int64_t q_shape[] = {starts[2], Q_HEADS, SIZE}, pool_shape[] = {BLOCKS, BLOCK, KV_HEADS, SIZE};
  int64_t table_shape[] = {2, WIDTH}, starts_shape[] = {3}, lens_shape[] = {2};
  DLTensor q_view = view(q, ATTN_DTYPE_FLOAT32, 3, q_shape), out_view = view(out, ATTN_DTYPE_FLOAT32, 3, q_shape);
  DLTensor k_cache = view(k_pool, ATTN_DTYPE_FLOAT32, 4, pool_shape);
  DLTensor v_cache = view(v_pool, ATTN_DTYPE_FLOAT32, 4, pool_shape);
  DLTensor table = view(block_table, ATTN_DTYPE_INT32, 2, table_shape);
  DLTensor start_view = view(starts, ATTN_DTYPE_INT32, 1, starts_shape);
  DLTensor lens = view(seq_lens, ATTN_DTYPE_INT32, 1, lens_shape);
  attn_batch batch = ATTN_BATCH_INIT;
  batch.query_start_loc = &start_view;
  batch.seq_lens = &lens;
  attn_run_args run = ATTN_RUN_INIT;
  run.q = &q_view;
  run.k_cache = &k_cache;
  run.v_cache = &v_cache;
  run.block_table = &table;
  run.out = &out_view;
  attn_status status = attn_plan_schedule(plan, &batch, NULL, &message);
  return status != ATTN_OK ? status : attn_run(plan, &run, NULL, &message);
}

/* Prefill the prompt `chunk` tokens at a time; the second sequence decodes one token at each of the STEPS steps. */
static attn_status serve(attn_context *context, const attn_plan *plan, int chunk, q_row *out) {
  attn_status status = write_tokens(context, 1, 0, CACHED);
  for (int i = 0, first = 0; status == ATTN_OK && i < STEPS; i++) {
    int count = first + chunk > PROMPT ? PROMPT - first : chunk;
    int32_t q_lens[2] = {count, 1}, seq_lens[2] = {first + count, CACHED + i + 1};
    q_row q[PROMPT + 1], result[PROMPT + 1];
    memcpy(q, q_prompt[first < PROMPT ? first : 0], (size_t)count * sizeof(q_row));
    memcpy(q[count], q_decode[i], sizeof(q_row));
    if ((status = write_tokens(context, 0, first, count)) == ATTN_OK &&
        (status = write_tokens(context, 1, CACHED + i, 1)) == ATTN_OK) {
      status = step(plan, q, result, q_lens, seq_lens);
    }
    if (status == ATTN_OK) {
      memcpy(out + first, result, (size_t)count * sizeof(q_row));
      memcpy(out[PROMPT + i], result[count], sizeof(q_row));
    }
    first += count;
  }
  return status;
}

int main(void) {
  attn_context *context = NULL;
  attn_plan *plan = NULL;
  fill(&k[0][0][0], sizeof k / sizeof(float));
  fill(&v[0][0][0], sizeof v / sizeof(float));
  fill(&q_prompt[0][0][0], sizeof q_prompt / sizeof(float));
  fill(&q_decode[0][0][0], sizeof q_decode / sizeof(float));
  attn_problem problem = ATTN_PROBLEM_INIT;
  problem.num_q_heads = Q_HEADS;
  problem.num_kv_heads = KV_HEADS;
  problem.qk_head_size = SIZE;
  problem.block_size = BLOCK;
  problem.scale = attn_softmax_scale(SIZE);
  problem.batch_invariant = 1;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  limits.max_seqs = 2;
  limits.max_tokens = PROMPT + 1;
  limits.max_kv_len = WIDTH * BLOCK;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  options.own_workspace = 1;
  int failed = attn_context_create(NULL, &context, &message) != ATTN_OK ||
               attn_plan_create(context, &problem, &limits, &options, &plan, &message) != ATTN_OK ||
               serve(context, plan, CHUNK, mixed) != ATTN_OK || serve(context, plan, PROMPT, whole) != ATTN_OK;
  attn_plan_destroy(plan);
  attn_context_destroy(context);
  if (failed) {
    (void)fprintf(stderr, "02_prefill_chunked: %s\n", message.text);
    return 1;
  }
  int equal = memcmp(mixed, whole, sizeof mixed) == 0;
  printf("%d prompt rows in %d chunks beside %d decodes: %s the rows of one piece\n", PROMPT, STEPS, STEPS,
         equal ? "bit-equal to" : "NOT equal to");
  return equal ? 0 : 1;
}
