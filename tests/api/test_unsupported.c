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
  attn_transport transport = ATTN_TRANSPORT_INIT;
  attn_run_args run = ATTN_RUN_INIT;
  attn_comm *comm = NULL;
  (void)state;
#define EXPECT_NAMED(function, ...) EXPECT_STATUS(function(__VA_ARGS__, &why), ATTN_E_UNSUPPORTED, #function)
  EXPECT_NAMED(attn_backend_register, b.context, "plug.so");
  EXPECT_NAMED(attn_comm_create, b.context, &transport, &comm);
  EXPECT_NAMED(attn_comm_run, NULL, b.plan, &run, NULL);
  /* NULL in every place changes nothing */
  EXPECT_NAMED(attn_backend_register, NULL, NULL);
  EXPECT_NAMED(attn_comm_create, NULL, NULL, NULL);
  EXPECT_NAMED(attn_comm_run, NULL, NULL, NULL, NULL);
#undef EXPECT_NAMED
  assert_null(comm);
  attn_comm_destroy(NULL);
  bench_close(&b);
}

static void unbuilt_formats_are_refused_by_name(void **state) {
  static const struct {
    attn_format format;
    const char *spelling;
    int built;
  } list[] = {
#define ROW(name, value, spelling, storage, rows) {name, spelling, ((rows)&ATTN_ROWS_KV) != 0},
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
      cmocka_unit_test(unbuilt_formats_are_refused_by_name),
  };
  return cmocka_run_group_tests_name("unsupported", tests, NULL, NULL);
}
