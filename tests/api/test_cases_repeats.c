/* SPDX-License-Identifier: Apache-2.0 */
/* Case 113: a prefill over a quantised cache, its write included, gives the same bits every time on two threads. Also
   run under ThreadSanitizer (make check-long PART=tsan). */
#include <string.h>

#include "quantising.h"
#include "test_counts.h"

enum { TOKENS = 36, HEADS = 2, Q_HEADS = 4, SIZE = 40, V_SIZE = 24, BLOCK = 12, BLOCKS = 5 };

typedef struct repeated {
  attn_context *context;
  attn_cache_info info;
  attn_cache_write_args write;
  attn_run_args run;
  attn_batch batch;
  attn_plan *plan;
  attn_workspace workspace;
  guarded workspace_data, data[4], kept[4]; /* K, V, separate scales of each: as used, and after the first time */
  tensor pool[4], k, v, q, out, lse, slots, table, starts, lens;
  float k_rows[TOKENS * HEADS * SIZE], v_rows[TOKENS * HEADS * V_SIZE], q_rows[TOKENS * Q_HEADS * SIZE];
  float result[TOKENS * Q_HEADS * V_SIZE], result_lse[TOKENS * Q_HEADS];
  int64_t slot[TOKENS];
  int32_t ids[TOKENS / BLOCK], bounds[2], length;
} repeated;

static void make_values(repeated *r) {
  static const int32_t ids[] = {4, 0, 2};
  uint32_t seed = 21;
  for (int i = 0; i < TOKENS * HEADS * SIZE; i++) {
    r->k_rows[i] = random_normal(&seed);
  }
  for (int i = 0; i < TOKENS * HEADS * V_SIZE; i++) {
    r->v_rows[i] = random_normal(&seed);
  }
  for (int i = 0; i < TOKENS * Q_HEADS * SIZE; i++) {
    r->q_rows[i] = random_normal(&seed);
  }
  memcpy(r->ids, ids, sizeof ids);
  for (int i = 0; i < TOKENS; i++) {
    r->slot[i] = ids[i / BLOCK] * BLOCK + i % BLOCK;
  }
  r->bounds[1] = r->length = TOKENS;
  tensor_3(&r->k, r->k_rows, ATTN_DTYPE_FLOAT32, TOKENS, HEADS, SIZE);
  tensor_3(&r->v, r->v_rows, ATTN_DTYPE_FLOAT32, TOKENS, HEADS, V_SIZE);
  tensor_3(&r->q, r->q_rows, ATTN_DTYPE_FLOAT32, TOKENS, Q_HEADS, SIZE);
  tensor_3(&r->out, r->result, ATTN_DTYPE_FLOAT32, TOKENS, Q_HEADS, V_SIZE);
  tensor_2(&r->lse, r->result_lse, ATTN_DTYPE_FLOAT32, TOKENS, Q_HEADS);
  tensor_1(&r->slots, r->slot, ATTN_DTYPE_INT64, TOKENS);
  tensor_2(&r->table, r->ids, ATTN_DTYPE_INT32, 1, TOKENS / BLOCK);
  tensor_1(&r->starts, r->bounds, ATTN_DTYPE_INT32, 2);
  tensor_1(&r->lens, &r->length, ATTN_DTYPE_INT32, 1);
}

/* Pools and separate scales as attn_cache_describe() says. */
static void make_pools(repeated *r, const attn_cache_desc *desc) {
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  EXPECT_OK(attn_cache_describe(desc, &info, &why));
  const attn_cache_layout *parts[] = {&info.k, &info.v, &info.k_scale, &info.v_scale};
  for (int i = 0; i < 4; i++) {
    r->data[i] = guard_make(parts[i]->bytes);
    r->kept[i] = guard_make(parts[i]->bytes);
    if (parts[i]->ndim > 0) {
      tensor_over(&r->pool[i], r->data[i].data, parts[i]->dtype, parts[i]->ndim, parts[i]->shape);
    }
  }
  r->info = info;
}

static void make_calls(repeated *r, const char *backend, const attn_cache_desc *desc) {
  attn_cache_write_args write = ATTN_CACHE_WRITE_INIT;
  attn_run_args run = ATTN_RUN_INIT;
  attn_batch batch = ATTN_BATCH_INIT;
  write.backend = backend;
  write.k_format = desc->k_format;
  write.v_format = desc->v_format;
  write.k = &r->k.t;
  write.v = &r->v.t;
  write.slot_mapping = &r->slots.t;
  write.k_cache = run.k_cache = &r->pool[0].t;
  write.v_cache = run.v_cache = &r->pool[1].t;
  write.k_scale = run.k_scale = r->info.k_scale.ndim > 0 ? &r->pool[2].t : NULL;
  write.v_scale = run.v_scale = r->info.v_scale.ndim > 0 ? &r->pool[3].t : NULL;
  run.q = &r->q.t;
  run.block_table = &r->table.t;
  run.out = &r->out.t;
  run.lse = &r->lse.t;
  batch.query_start_loc = &r->starts.t;
  batch.seq_lens = &r->lens.t;
  r->write = write;
  r->run = run;
  r->batch = batch;
}

static void make_plan(repeated *r, const char *backend, const attn_cache_desc *desc) {
  attn_problem problem = ATTN_PROBLEM_INIT;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  problem.num_q_heads = Q_HEADS;
  problem.num_kv_heads = HEADS;
  problem.qk_head_size = SIZE;
  problem.v_head_size = V_SIZE;
  problem.q_dtype = problem.out_dtype = ATTN_DTYPE_FLOAT32;
  problem.k_format = desc->k_format;
  problem.v_format = desc->v_format;
  problem.separate_scales = desc->separate_scales;
  problem.block_size = BLOCK;
  problem.scale = attn_softmax_scale(SIZE);
  problem.wants_lse = 1;
  limits.max_tokens = limits.max_kv_len = TOKENS;
  options.backend = backend;
  EXPECT_OK(attn_plan_create(r->context, &problem, &limits, &options, &r->plan, &why));
  r->workspace = workspace_make(r->plan, &r->workspace_data);
}

/* Once more over memory of another content. */
static void step(repeated *r, int content) {
  for (int i = 0; i < 4; i++) {
    memset(r->data[i].data, content, r->data[i].bytes);
  }
  memset(r->result, 0xFF, sizeof r->result);
  memset(r->result_lse, 0xFF, sizeof r->result_lse);
  memset(r->workspace_data.data, content, r->workspace_data.bytes);
  EXPECT_OK(attn_cache_write(r->context, &r->write, &why));
  EXPECT_OK(attn_plan_schedule(r->plan, &r->batch, &r->workspace, &why));
  EXPECT_OK(attn_run(r->plan, &r->run, &r->workspace, &why));
}

static void repeat(const char *backend, attn_format k, attn_format v, int32_t separate) {
  static repeated r;
  static float first[TOKENS * Q_HEADS * V_SIZE], first_lse[TOKENS * Q_HEADS];
  attn_cache_desc desc = ATTN_CACHE_DESC_INIT;
  int repeats = strcmp(backend, "REFERENCE") == 0 ? 2 : test_count(200, 40); /* one thread, and slow */
  memset(&r, 0, sizeof r);
  desc.k_format = k;
  desc.v_format = v;
  desc.separate_scales = separate;
  desc.num_blocks = BLOCKS;
  desc.block_size = BLOCK;
  desc.num_kv_heads = HEADS;
  desc.head_size = SIZE;
  desc.v_head_size = V_SIZE;
  r.context = open_context(2);
  make_values(&r);
  make_pools(&r, &desc);
  make_calls(&r, backend, &desc);
  make_plan(&r, backend, &desc);
  for (int n = 0; n < repeats; n++) {
    step(&r, n % 3 == 0 ? 0xFF : n % 3 == 1 ? 0x00 : 0x7C);
    if (n == 0) {
      memcpy(first, r.result, sizeof first);
      memcpy(first_lse, r.result_lse, sizeof first_lse);
    }
    CHECK(memcmp(first, r.result, sizeof first) == 0 && memcmp(first_lse, r.result_lse, sizeof first_lse) == 0,
          "repeat %d gives other bits", n);
    for (int i = 0; i < 4 && n % 3 == 0; i++) { /* those over the first memory's content */
      if (n == 0) {
        memcpy(r.kept[i].data, r.data[i].data, r.data[i].bytes);
      }
      CHECK(memcmp(r.kept[i].data, r.data[i].data, r.data[i].bytes) == 0, "repeat %d writes other bytes", n);
    }
  }
  attn_plan_destroy(r.plan);
  attn_context_destroy(r.context);
  guard_free(&r.workspace_data);
  for (int i = 0; i < 4; i++) {
    guard_free(&r.data[i]);
    guard_free(&r.kept[i]);
  }
}

static void repeated_prefill(const char *backend, attn_format k, attn_format v) {
  int k_has = format_has_row_scale(k), v_has = format_has_row_scale(v);
  repeat(backend, k, v, ATTN_SEPARATE_NONE);
  if (k_has || v_has) {
    repeat(backend, k, v, k_has && v_has ? ATTN_SEPARATE_V : ATTN_SEPARATE_BOTH);
  }
}

static void case_113_repeated_prefill_on_two_threads(void **state) {
  (void)state;
  for_each_pair(repeated_prefill);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_113_repeated_prefill_on_two_threads),
  };
  return cmocka_run_group_tests_name("cases_repeats", tests, NULL, NULL);
}
