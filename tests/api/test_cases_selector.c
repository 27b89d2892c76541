/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 127 to 139: the level chosen when running, overrides, reasons, default page sizes, batch invariance. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

/* ---- 127: portable kernels exist for every operation (other levels are not built) */

static void case_127_generic_kernels_always_present(void **state) {
  attn_context *context = open_context(1);
  attn_kernel_info kernel;
  attn_kernel_info other;
  (void)state;
  CHECK(attn_context_kernel(context, 0, &kernel), "the kernel table is empty");
  for (size_t i = 0; attn_context_kernel(context, i, &kernel); i++) {
    int generic = 0;
    for (size_t j = 0; attn_context_kernel(context, j, &other); j++) {
      generic |= strcmp(other.operation, kernel.operation) == 0 && strcmp(other.level, "generic") == 0;
    }
    CHECK(generic, "operation %s has no generic kernel", kernel.operation);
  }
  attn_context_destroy(context);
}

/* ---- 128: the level is chosen when running */

static void at_generic_level(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 6};
  static const int32_t kv_len[] = {70, 40};
  attn_context_info info = ATTN_CONTEXT_INFO_INIT;
  scene s;
  setenv("ATTN_CPU", "generic", 1);
  scene_init(&s, 4, 2, 40, 40);
  scene_format(&s, format);
  scene_seqs(&s, 2, q_len, kv_len);
  scene_store(&s);
  scene_open(&s, backend);
  EXPECT_OK(attn_context_get_info(s.context, &info, &why));
  CHECK(strcmp(info.level, "generic") == 0, "ATTN_CPU=generic gives level %s", info.level);
  CHECK(strncmp(info.levels_found, "generic", 7) == 0, "generic is not the lowest level of '%s'", info.levels_found);
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  scene_close(&s);
  scene_free(&s);
  unsetenv("ATTN_CPU");
}

static void case_128_level_is_chosen_when_running(void **state) {
  attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
  attn_context *context = NULL;
  (void)state;
  for_each_format(at_generic_level);
  setenv("ATTN_CPU", "avx1024", 1);
  EXPECT_STATUS(attn_context_create(&options, &context, &why), ATTN_E_NAME, "avx1024");
  unsetenv("ATTN_CPU");
  CHECK(context == NULL, "a failing call set the context");
}

/* ---- 134: an override is obeyed or an error */

static void case_134_unknown_override_is_an_error(void **state) {
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  attn_context *context = open_context(1);
  attn_plan *plan = NULL;
  scene s;
  (void)state;
  scene_init(&s, 2, 1, 16, 16);
  limits.max_tokens = 1;
  limits.max_kv_len = 16;
  options.backend = "NO_SUCH_ATTN";
  EXPECT_STATUS(attn_plan_create(context, &s.problem, &limits, &options, &plan, &why), ATTN_E_NAME, "NO_SUCH_ATTN");
  setenv("ATTN_BACKEND", "OTHER_ATTN", 1);
  EXPECT_STATUS(attn_plan_create(context, &s.problem, &limits, NULL, &plan, &why), ATTN_E_NAME, "OTHER_ATTN");
  CHECK(strstr(why.text, "ATTN_BACKEND") != NULL, "the source of the name is not told: %s", why.text);
  unsetenv("ATTN_BACKEND");
  options.backend = NULL;
  options.split_rule = (attn_split_rule)7;
  EXPECT_REFUSED(attn_plan_create(context, &s.problem, &limits, &options, &plan, &why), "split_rule");
  CHECK(plan == NULL, "a failing call set the plan");
  attn_context_destroy(context);
}

/* ---- 136: every candidate with its reason, and one that always serves */

static void case_136_every_candidate_has_a_reason(void **state) {
  static const int32_t shapes[][4] = {{1, 1, 1, 1}, {7, 7, 577, 33}, {128, 1, 256, 512}, {12, 4, 80, 80}};
  attn_context *context = open_context(1);
  (void)state;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    attn_backend_info info;
    scene s;
    scene_init(&s, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
    s.problem.block_size = 784;
    s.problem.has_bias = 1;
    s.problem.alibi = ATTN_ALIBI_SQRT;
    s.problem.chunk_size = 7;
    EXPECT_OK(attn_explain(context, &s.problem, NULL, NULL, &explanation, &why));
    CHECK(explanation.status == ATTN_OK && explanation.pick[0] != 0 && explanation.reason[0] != 0, "no backend");
    int served = 0;
    for (int32_t row = 0; row < explanation.num_rows; row++) {
      const attn_explain_row *r = &explanation.rows[row];
      CHECK(attn_backend_get((size_t)row, &info) && strcmp(info.name, r->backend) == 0, "row %d is not %s", row,
            info.name);
      CHECK(r->reason[0] != 0 && strchr(r->reason, '\n') == NULL, "%s has no reason", r->backend);
      served |=
          strcmp(r->backend, "REFERENCE") == 0 && (r->verdict == ATTN_VERDICT_TAKEN || r->verdict == ATTN_VERDICT_ABLE);
    }
    CHECK(!attn_backend_get((size_t)explanation.num_rows, &info), "explain misses names of the registry");
    CHECK(served, "REFERENCE refuses a valid problem");
  }
  attn_context_destroy(context);
}

/* ---- 138: no page size given */

static void default_page(const char *backend, attn_format format) {
  attn_explanation explanation = ATTN_EXPLANATION_INIT;
  attn_context *context = open_context(1);
  scene s;
  scene_init(&s, 4, 2, 16, 16);
  scene_format(&s, format);
  s.problem.block_size = 0;
  s.options.backend = backend;
  EXPECT_OK(attn_explain(context, &s.problem, NULL, &s.options, &explanation, &why));
  CHECK(explanation.block_size > 0 && explanation.block_size == explanation.preferred_block_size,
        "explain wants %d, prefers %d", explanation.block_size, explanation.preferred_block_size);
  s.block_size = explanation.block_size;
  scene_one(&s, 3, 2 * s.block_size + 1);
  scene_store(&s);
  scene_open(&s, backend);
  CHECK(s.plan_info.block_size == explanation.block_size, "plan has %d, explain said %d", s.plan_info.block_size,
        explanation.block_size);
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  scene_close(&s);
  scene_free(&s);
  attn_context_destroy(context);
}

static void case_138_plan_tells_the_page_size_it_wants(void **state) {
  (void)state;
  for_each_format(default_page);
}

/* ---- 139: the same bits alone, with others, in prefill and decode */

enum { HQ = 4, HKV = 2, D = 24, ROW = HQ * D, KV = HKV * D, LEN = 300 };

/* The last `rows` rows of one sequence, at position `place` among `others` neighbours. */
static void last_rows(float *out, const char *backend, attn_format format, int32_t rows, int32_t others,
                      int32_t place) {
  int32_t q_len[16];
  int32_t kv_len[16];
  scene one, s;
  scene_init(&one, HQ, HKV, D, D);
  scene_format(&one, format);
  scene_one(&one, LEN, LEN);
  for (int32_t i = 0; i <= others; i++) {
    q_len[i] = i == place ? rows : 1 + i % 5;
    kv_len[i] = i == place ? LEN : 90 * i + 5;
  }
  scene_init(&s, HQ, HKV, D, D);
  scene_format(&s, format);
  s.problem.batch_invariant = 1;
  s.placement = (uint32_t)others;
  scene_seqs(&s, others + 1, q_len, kv_len);
  memcpy(scene_q(&s, s.starts[place], 0), one.q + (LEN - rows) * ROW, (size_t)(rows * ROW) * sizeof(float));
  memcpy(s.k[place], one.k[0], (size_t)LEN * KV * sizeof(float));
  memcpy(s.v[place], one.v[0], (size_t)LEN * KV * sizeof(float));
  scene_store(&s);
  scene_run(&s, backend);
  CHECK(s.plan_info.batch_invariant == 1, "the plan is not batch invariant");
  memcpy(out, scene_out(&s, s.starts[place] + rows - 1, 0), ROW * sizeof(float));
  scene_free(&one);
  scene_free(&s);
}

static void same_in_every_call(const char *backend, attn_format format) {
  static const int32_t calls[][3] = {{LEN, 0, 0}, {1, 0, 0}, {1, 7, 0}, {1, 7, 7}, {40, 0, 0}, {40, 7, 3}, {LEN, 7, 4}};
  float first[ROW];
  float again[ROW];
  last_rows(first, backend, format, 1, 0, 0);
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    last_rows(again, backend, format, calls[i][0], calls[i][1], calls[i][2]);
    CHECK(same_bits(first, again, ROW), "%d rows among %d others give other bits", calls[i][0], calls[i][1]);
  }
}

static void case_139_batch_invariant_in_every_call(void **state) {
  (void)state;
  for_each_format(same_in_every_call);
}

int main(void) {
  unsetenv("ATTN_BACKEND");
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_127_generic_kernels_always_present),
      cmocka_unit_test(case_128_level_is_chosen_when_running),
      cmocka_unit_test(case_134_unknown_override_is_an_error),
      cmocka_unit_test(case_136_every_candidate_has_a_reason),
      cmocka_unit_test(case_138_plan_tells_the_page_size_it_wants),
      cmocka_unit_test(case_139_batch_invariant_in_every_call),
  };
  return cmocka_run_group_tests_name("cases_selector", tests, NULL, NULL);
}
