/* SPDX-License-Identifier: Apache-2.0 */
/* test_pool_cases.c: the cases about padding and tables (12, 17), from the block manager to attention. */
#include "harness.h"

#include <math.h>
#include <string.h>

#define BLOCK_SIZE 4
#define NUM_BLOCKS 9
#define ROW 8
#define SEQS 4
#define SEQ_LEN 5
#define WIDTH 3
#define SLOT_BYTES (ROW * sizeof(float))

/* A pool, the cache behind it, and one decode step of SEQS sequences with one head. */
typedef struct decode {
  const char *backend;
  attn_context *context;
  attn_pool *pool;
  float k_cache[NUM_BLOCKS * BLOCK_SIZE * ROW];
  float v_cache[NUM_BLOCKS * BLOCK_SIZE * ROW];
  float q[SEQS * ROW];
  int32_t table[SEQS * WIDTH];
  int32_t lens[SEQS];
  float out[SEQS * ROW];
  float lse[SEQS];
  tensor t_k, t_v, t_q, t_table, t_lens, t_starts, t_out, t_lse;
} decode;

static attn_pool *make_pool(void) {
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  attn_pool *pool = NULL;
  options.num_blocks = NUM_BLOCKS;
  options.block_size = BLOCK_SIZE;
  options.max_seqs = SEQS;
  options.max_seq_blocks = WIDTH;
  EXPECT_OK(attn_pool_create(&options, &pool, &why));
  return pool;
}

static void decode_open(decode *d, const char *backend) {
  uint32_t random = 5;
  memset(d, 0xFF, sizeof *d);
  d->backend = backend;
  d->context = open_context(1);
  d->pool = make_pool();
  for (int i = 0; i < SEQS * ROW; i++) {
    d->q[i] = random_normal(&random);
  }
  tensor_4(&d->t_k, d->k_cache, ATTN_DTYPE_FLOAT32, NUM_BLOCKS, BLOCK_SIZE, 1, ROW);
  tensor_4(&d->t_v, d->v_cache, ATTN_DTYPE_FLOAT32, NUM_BLOCKS, BLOCK_SIZE, 1, ROW);
  tensor_3(&d->t_q, d->q, ATTN_DTYPE_FLOAT32, SEQS, 1, ROW);
  tensor_2(&d->t_table, d->table, ATTN_DTYPE_INT32, SEQS, WIDTH);
  tensor_1(&d->t_lens, d->lens, ATTN_DTYPE_INT32, SEQS);
  tensor_3(&d->t_out, d->out, ATTN_DTYPE_FLOAT32, SEQS, 1, ROW);
  tensor_2(&d->t_lse, d->lse, ATTN_DTYPE_FLOAT32, SEQS, 1);
}

static void decode_close(decode *d) {
  attn_pool_destroy(d->pool);
  attn_context_destroy(d->context);
}

/* Write `rows` rows, random up to `real` and NaN from there, into the slots. */
static void decode_write(decode *d, int64_t rows, int64_t real, int64_t *slots, uint32_t *random) {
  float k[8 * ROW];
  float v[8 * ROW];
  tensor t_k, t_v, t_slots;
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  for (int64_t i = 0; i < rows * ROW; i++) {
    k[i] = i < real * ROW ? random_normal(random) : NAN;
    v[i] = i < real * ROW ? random_normal(random) : NAN;
  }
  tensor_3(&t_k, k, ATTN_DTYPE_FLOAT32, rows, 1, ROW);
  tensor_3(&t_v, v, ATTN_DTYPE_FLOAT32, rows, 1, ROW);
  tensor_1(&t_slots, slots, ATTN_DTYPE_INT64, rows);
  args.backend = d->backend;
  args.k = &t_k.t;
  args.v = &t_v.t;
  args.slot_mapping = &t_slots.t;
  args.k_cache = &d->t_k.t;
  args.v_cache = &d->t_v.t;
  EXPECT_OK(attn_cache_write(d->context, &args, &why));
}

/* One query row for each sequence, whatever its length. */
static void decode_run(decode *d) {
  int32_t starts[SEQS + 1] = {0, 1, 2, 3, 4};
  attn_problem problem = ATTN_PROBLEM_INIT;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  attn_batch batch = ATTN_BATCH_INIT;
  attn_run_args args = ATTN_RUN_INIT;
  attn_plan *plan = NULL;
  problem.num_q_heads = 1;
  problem.num_kv_heads = 1;
  problem.qk_head_size = ROW;
  problem.block_size = BLOCK_SIZE;
  problem.scale = attn_softmax_scale(ROW);
  problem.wants_lse = 1;
  limits.max_tokens = SEQS;
  limits.max_kv_len = SEQ_LEN;
  options.backend = d->backend;
  options.own_workspace = 1;
  tensor_1(&d->t_starts, starts, ATTN_DTYPE_INT32, SEQS + 1);
  batch.query_start_loc = &d->t_starts.t;
  batch.seq_lens = &d->t_lens.t;
  args.q = &d->t_q.t;
  args.k_cache = &d->t_k.t;
  args.v_cache = &d->t_v.t;
  args.block_table = &d->t_table.t;
  args.out = &d->t_out.t;
  args.lse = &d->t_lse.t;
  memset(d->out, 0xFF, sizeof d->out);
  memset(d->lse, 0xFF, sizeof d->lse);
  EXPECT_OK(attn_plan_create(d->context, &problem, &limits, &options, &plan, &why));
  EXPECT_OK(attn_plan_schedule(plan, &batch, NULL, &why));
  EXPECT_OK(attn_run(plan, &args, NULL, &why));
  attn_plan_destroy(plan);
}

/* Case 12: padding rows of a write. The one slot changes, the null block and everything else stay as they were. */
static void padding_rows(const char *backend) {
  decode d;
  decode_open(&d, backend);
  float before[NUM_BLOCKS * BLOCK_SIZE * ROW];
  uint32_t random = 7;
  int64_t slots[3] = {-1, -1, -1};
  memcpy(before, d.k_cache, sizeof before);
  EXPECT_OK(attn_pool_append(d.pool, 0, 1, slots, &why));
  assert_true(slots[0] >= BLOCK_SIZE);
  decode_write(&d, 3, 1, slots, &random);
  size_t at = (size_t)slots[0] * SLOT_BYTES;
  const float *const pools[] = {d.k_cache, d.v_cache};
  for (int i = 0; i < 2; i++) {
    const unsigned char *now = (const unsigned char *)pools[i];
    assert_memory_not_equal(now + at, (const unsigned char *)before + at, SLOT_BYTES);
    assert_memory_equal(now, before, at);
    assert_memory_equal(now + at + SLOT_BYTES, (const unsigned char *)before + at + SLOT_BYTES,
                        sizeof before - at - SLOT_BYTES);
  }
  decode_close(&d);
}

static void test_case_12(void **state) {
  (void)state;
  for_each_backend(padding_rows);
}

static void expect_shrunk(const decode *d, const float *out, const float *lse) {
  assert_true(same_bits(d->out, out, 2 * ROW));
  assert_true(same_bits(d->lse, lse, 2));
  assert_true(all_bytes(d->out + 2 * ROW, 2 * ROW * sizeof(float), 0));
  for (int row = 2; row < SEQS; row++) {
    assert_true(isinf(d->lse[row]) && d->lse[row] < 0.0f);
  }
}

/* Case 17: the batch shrinks. The pool's table has null rows for the sequences that left; and even where a caller keeps
   old ids there, whose blocks hold NaN by now, rows of length 0 are empty and the others keep their bits. */
static void batch_shrinks(const char *backend) {
  static const int32_t seqs[SEQS] = {0, 1, 2, 3};
  decode d;
  decode_open(&d, backend);
  uint32_t random = 9;
  for (int32_t seq = 0; seq < SEQS; seq++) {
    int64_t slots[SEQ_LEN];
    EXPECT_OK(attn_pool_append(d.pool, seq, SEQ_LEN, slots, &why));
    decode_write(&d, SEQ_LEN, SEQ_LEN, slots, &random);
  }
  EXPECT_OK(attn_pool_block_table(d.pool, SEQS, seqs, WIDTH, d.table, d.lens, &why));
  decode_run(&d);
  float out[SEQS * ROW];
  float lse[SEQS];
  int32_t stale[SEQS * WIDTH];
  memcpy(out, d.out, sizeof out);
  memcpy(lse, d.lse, sizeof lse);
  memcpy(stale, d.table, sizeof stale);
  for (int i = 0; i < SEQS * ROW; i++) {
    assert_true(isfinite(out[i]));
  }
  for (int32_t seq = 2; seq < SEQS; seq++) {
    for (int column = 0; column < 2; column++) {
      size_t at = (size_t)d.table[seq * WIDTH + column] * BLOCK_SIZE * ROW;
      memset(d.k_cache + at, 0xFF, BLOCK_SIZE * SLOT_BYTES);
      memset(d.v_cache + at, 0xFF, BLOCK_SIZE * SLOT_BYTES);
    }
    EXPECT_OK(attn_pool_free_seq(d.pool, seq, &why));
  }
  EXPECT_OK(attn_pool_block_table(d.pool, SEQS, seqs, WIDTH, d.table, d.lens, &why));
  assert_true(all_bytes(d.table + 2 * WIDTH, 2 * WIDTH * sizeof d.table[0], 0));
  assert_true(all_bytes(d.lens + 2, 2 * sizeof d.lens[0], 0));
  decode_run(&d);
  expect_shrunk(&d, out, lse);
  memcpy(d.table, stale, sizeof stale);
  decode_run(&d);
  expect_shrunk(&d, out, lse);
  decode_close(&d);
}

static void test_case_17(void **state) {
  (void)state;
  for_each_backend(batch_shrinks);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_case_12),
      cmocka_unit_test(test_case_17),
  };
  return cmocka_run_group_tests_name("pool_cases", tests, NULL, NULL);
}
