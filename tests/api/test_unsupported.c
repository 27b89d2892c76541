/* SPDX-License-Identifier: Apache-2.0 */
/* Every function that is declared and not built yet is defined, returns ATTN_E_UNSUPPORTED and names itself, whatever
 * its arguments; formats that are not built are refused by name. */
#include <string.h>

#include "harness.h"

typedef struct bench {
  attn_context *context;
  attn_plan *plan;
} bench;

static bench bench_open(void) {
  attn_problem problem = ATTN_PROBLEM_INIT;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  bench b = {open_context(1), NULL};
  problem.num_q_heads = problem.num_kv_heads = 1;
  problem.qk_head_size = problem.block_size = 16;
  problem.scale = 0.25f;
  limits.max_tokens = limits.max_kv_len = 16;
  EXPECT_OK(attn_plan_create(b.context, &problem, &limits, NULL, &b.plan, &why));
  return b;
}

static void bench_close(bench *b) {
  attn_plan_destroy(b->plan);
  attn_context_destroy(b->context);
}

static void each_says_so_and_names_itself(void **state) {
  bench b = bench_open();
  attn_workspace workspace = {NULL, 0};
  attn_mla_args mla = ATTN_MLA_ARGS_INIT;
  attn_transport transport = ATTN_TRANSPORT_INIT;
  attn_run_args run = ATTN_RUN_INIT;
  attn_comm *comm = NULL;
  (void)state;
#define EXPECT_NAMED(function, ...) EXPECT_STATUS(function(__VA_ARGS__, &why), ATTN_E_UNSUPPORTED, #function)
  EXPECT_NAMED(attn_backend_register, b.context, "plug.so");
  EXPECT_NAMED(attn_mla_run_mqa, b.plan, &mla, &workspace);
  EXPECT_NAMED(attn_mla_run_mha, b.plan, &mla, &workspace);
  EXPECT_NAMED(attn_mla_layer_run, b.plan, &mla, &workspace);
  EXPECT_NAMED(attn_comm_create, b.context, &transport, &comm);
  EXPECT_NAMED(attn_comm_run, NULL, b.plan, &run, &workspace);
  /* NULL in every place changes nothing */
  EXPECT_NAMED(attn_backend_register, NULL, NULL);
  EXPECT_NAMED(attn_mla_run_mqa, NULL, NULL, NULL);
  EXPECT_NAMED(attn_mla_run_mha, NULL, NULL, NULL);
  EXPECT_NAMED(attn_mla_layer_run, NULL, NULL, NULL);
  EXPECT_NAMED(attn_comm_create, NULL, NULL, NULL);
  EXPECT_NAMED(attn_comm_run, NULL, NULL, NULL, NULL);
#undef EXPECT_NAMED
  assert_null(comm);
  attn_comm_destroy(NULL);
  bench_close(&b);
}

/* A latent problem, and a latent pool in each cache call. */
static void latent_problems_are_refused(void **state) {
  bench b = bench_open();
  attn_problem problem = ATTN_PROBLEM_INIT;
  attn_cache_desc desc = ATTN_CACHE_DESC_INIT;
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  attn_cache_write_args write = ATTN_CACHE_WRITE_INIT;
  attn_cache_gather_args gather = ATTN_CACHE_GATHER_INIT;
  float values[4 * 8] = {0};
  int64_t slot = 1;
  int32_t ints[] = {1};
  tensor rows, pool, slots, table, lens;
  (void)state;
  problem.num_q_heads = problem.num_kv_heads = 1;
  problem.qk_head_size = 576;
  problem.block_size = 16;
  problem.scale = 0.1f;
  problem.kv_lora_rank = 512;
  problem.qk_rope_head_dim = 64;
  EXPECT_STATUS(attn_problem_check(&problem, &why), ATTN_E_UNSUPPORTED, "kv_lora_rank");
  desc.k_format = ATTN_FORMAT_FLOAT32;
  desc.num_kv_heads = 1;
  desc.head_size = 16;
  desc.kv_lora_rank = 512;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_UNSUPPORTED, "kv_lora_rank");
  tensor_2(&rows, values, ATTN_DTYPE_FLOAT32, 1, 8);
  tensor_3(&pool, values, ATTN_DTYPE_FLOAT32, 1, 4, 8);
  tensor_1(&slots, &slot, ATTN_DTYPE_INT64, 1);
  tensor_2(&table, ints, ATTN_DTYPE_INT32, 1, 1);
  tensor_1(&lens, ints, ATTN_DTYPE_INT32, 1);
  write.kv_c = &rows.t;
  write.k_pe = &rows.t;
  write.kv_cache = &pool.t;
  write.slot_mapping = &slots.t;
  EXPECT_STATUS(attn_cache_write(b.context, &write, &why), ATTN_E_UNSUPPORTED, NULL);
  gather.kv_cache = &pool.t;
  gather.kv = &rows.t;
  gather.block_table = &table.t;
  gather.seq_lens = &lens.t;
  EXPECT_STATUS(attn_cache_gather(b.context, &gather, &why), ATTN_E_UNSUPPORTED, NULL);
  bench_close(&b);
}

static void unbuilt_formats_are_refused_by_name(void **state) {
  static const struct {
    attn_format format;
    const char *spelling;
    int built;
  } list[] = {
#define ROW(name, value, spelling, storage, built) {name, spelling, built},
      ATTN_FORMAT_LIST(ROW)
#undef ROW
  };
  (void)state;
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    attn_problem problem = ATTN_PROBLEM_INIT;
    attn_cache_desc desc = ATTN_CACHE_DESC_INIT;
    attn_cache_info info = ATTN_CACHE_INFO_INIT;
    problem.num_q_heads = problem.num_kv_heads = 1;
    problem.qk_head_size = problem.block_size = 16;
    problem.scale = 0.25f;
    problem.k_format = list[i].format;
    desc.num_kv_heads = 1;
    desc.head_size = 16;
    desc.k_format = list[i].format;
    if (list[i].built) {
      EXPECT_OK(attn_problem_check(&problem, &why));
      EXPECT_OK(attn_cache_describe(&desc, &info, &why));
      continue;
    }
    EXPECT_STATUS(attn_problem_check(&problem, &why), ATTN_E_UNSUPPORTED, list[i].spelling);
    EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_UNSUPPORTED, list[i].spelling);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_says_so_and_names_itself),
      cmocka_unit_test(latent_problems_are_refused),
      cmocka_unit_test(unbuilt_formats_are_refused_by_name),
  };
  return cmocka_run_group_tests_name("unsupported", tests, NULL, NULL);
}
