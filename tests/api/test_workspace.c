/* SPDX-License-Identifier: Apache-2.0 */
/* Workspace bytes: known from the plan alone, at most 8 MiB per thread within the stated maxima with automatic splits,
 * and what forced splits cost beyond them. explain, plan and the run agree. What a workspace held before does not
 * matter, and two calls at once may not meet in it. */
#include <stdlib.h>
#include <string.h>

#include "scene.h"

static const uint64_t per_thread = UINT64_C(8) << 20;

static attn_problem large_problem(int batch_invariant) {
  scene s;
  scene_init(&s, 128, 8, 256, 256);
  s.problem.batch_invariant = batch_invariant;
  return s.problem;
}

/* explain's answer, which has to be the plan's too. */
static attn_explanation cost_of(attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                                const attn_plan_options *options) {
  attn_explanation explanation = ATTN_EXPLANATION_INIT;
  attn_plan *plan = NULL;
  EXPECT_OK(attn_explain(context, problem, limits, options, &explanation, &why));
  CHECK(explanation.status == ATTN_OK, "no plan: %s", explanation.reason);
  EXPECT_OK(attn_plan_create(context, problem, limits, options, &plan, &why));
  CHECK(attn_plan_workspace_bytes(plan) == explanation.workspace_bytes, "explain says %llu bytes, the plan %llu",
        (unsigned long long)explanation.workspace_bytes, (unsigned long long)attn_plan_workspace_bytes(plan));
  CHECK(explanation.workspace_bytes % ATTN_WORKSPACE_ALIGN == 0, "not a multiple of the alignment");
  attn_plan_destroy(plan);
  return explanation;
}

static void within_8_mib_per_thread(const char *backend) {
  static const int32_t threads[] = {1, 2, 8, 64};
  static const int64_t tokens[] = {1, 8, 64, 512, 4096, 8192};
  static const int32_t kv_heads[] = {1, 8, 128};
  static const int64_t kv_lens[] = {1, 4096, 131072};
  for (size_t t = 0; t < 4; t++) {
    attn_context *context = open_context(threads[t]);
    for (size_t i = 0; i < 6 * 3 * 3 * 2 * 2; i++) {
      attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
      attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
      attn_problem problem = large_problem(i % 2 == 1);
      limits.max_tokens = tokens[i / 2 % 6];
      limits.max_seqs = i / 12 % 2 == 0 ? 0 : 1; /* decode-like: a token each; prefill-like: all in one sequence */
      problem.num_kv_heads = kv_heads[i / 24 % 3];
      limits.max_kv_len = kv_lens[i / 72];
      options.backend = backend;
      attn_explanation cost = cost_of(context, &problem, &limits, &options);
      CHECK(cost.workspace_bytes <= per_thread * (uint64_t)threads[t],
            "%llu bytes for %d threads, %lld tokens, %lld keys, invariant %d, KV heads %d",
            (unsigned long long)cost.workspace_bytes, threads[t], (long long)limits.max_tokens,
            (long long)limits.max_kv_len, problem.batch_invariant, problem.num_kv_heads);
      CHECK(cost.excess_workspace_bytes == 0, "automatic splits have an excess of %llu bytes",
            (unsigned long long)cost.excess_workspace_bytes);
    }
    attn_context_destroy(context);
  }
}

/* Forced splits may cost more; the excess is what they cost beyond the automatic choice. */
static void excess_of_forced_splits(const char *backend) {
  static const int32_t splits[] = {1, 2, 64, 4096};
  static const int64_t tokens[] = {1, 64, 8192};
  attn_context *context = open_context(2);
  for (size_t i = 0; i < 12; i++) {
    attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
    attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
    attn_problem problem = large_problem(0);
    limits.max_tokens = tokens[i / 4];
    limits.max_kv_len = 131072;
    options.backend = backend;
    attn_explanation automatic = cost_of(context, &problem, &limits, &options);
    options.num_splits = splits[i % 4];
    attn_explanation forced = cost_of(context, &problem, &limits, &options);
    uint64_t more =
        forced.workspace_bytes > automatic.workspace_bytes ? forced.workspace_bytes - automatic.workspace_bytes : 0;
    CHECK(forced.excess_workspace_bytes == more, "%d splits, %lld tokens: %llu bytes more than automatic, excess %llu",
          splits[i % 4], (long long)limits.max_tokens, (unsigned long long)more,
          (unsigned long long)forced.excess_workspace_bytes);
    CHECK(forced.max_splits <= splits[i % 4], "%d splits of %d", forced.max_splits, splits[i % 4]);
  }
  attn_context_destroy(context);
}

/* A run of the largest decode within the maxima needs no byte more than the plan said: the workspace ends at a page. */
static void nothing_beyond_the_workspace(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 17, 1, 40, 2};
  static const int32_t kv_len[] = {1000, 17, 513, 300, 0};
  static const int32_t threads[] = {1, 2, 5, 16};
  int step = strcmp(backend, "REFERENCE") == 0 ? 4 : 1; /* it is slow and uses one thread */
  for (int i = 0; i < 12; i += step) {
    scene s;
    scene_init(&s, 8, 2, 32, 32);
    scene_format(&s, format);
    s.num_threads = threads[i % 4];
    s.problem.batch_invariant = i / 4 == 1;
    s.options.num_splits = i / 4 == 2 ? 7 : 0;
    s.check_step = 16;
    scene_seqs(&s, 5, q_len, kv_len);
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void every_format(void **state) {
  (void)state;
  for_each_format(nothing_beyond_the_workspace);
}

/* ---- While a call runs */

/* An executor that first schedules into memory that meets the running workspace, or lies beside it. */
typedef struct intruder {
  const scene *s;
  unsigned char *start; /* of three workspaces in a row, the middle one runs */
  size_t bytes;
  unsigned char *copy; /* [bytes] of the running workspace */
  attn_status before, first_bytes, last_bytes, behind;
  int asked;
} intruder;

static attn_status schedule_at(const intruder *i, size_t offset) {
  attn_workspace workspace = {i->start + offset, i->bytes};
  return attn_plan_schedule(i->s->plan, &i->s->batch, &workspace, NULL);
}

static void intrude(void *user, attn_task task, void *task_argument, size_t count) {
  intruder *i = user;
  if (i->asked++ == 0) {
    memcpy(i->copy, i->start + i->bytes, i->bytes);
    i->before = schedule_at(i, 0);
    i->first_bytes = schedule_at(i, ATTN_WORKSPACE_ALIGN);
    i->last_bytes = schedule_at(i, 2 * i->bytes - ATTN_WORKSPACE_ALIGN);
    i->behind = schedule_at(i, 2 * i->bytes);
  }
  for (size_t t = 0; t < count; t++) {
    task(task_argument, t);
  }
}

/* A call is refused memory that meets a running workspace in 256 bytes, and none beside it. The bytes of a workspace as
   they were in the middle of a run are memory like any other: it can be scheduled into. */
static void calls_at_once(const char *backend) {
  static const int32_t q_len[] = {1, 8, 3};
  static const int32_t kv_len[] = {300, 40, 77};
  intruder i;
  attn_executor executor = {&i, intrude};
  attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
  attn_context *context = NULL;
  scene s;
  if (strcmp(backend, "REFERENCE") == 0) {
    return; /* it asks no executor */
  }
  memset(&i, 0, sizeof i);
  scene_init(&s, 4, 2, 24, 24);
  s.num_threads = 2;
  scene_seqs(&s, 3, q_len, kv_len);
  scene_store(&s);
  scene_run(&s, backend); /* the answer */
  options.num_threads = 2;
  options.executor = &executor;
  EXPECT_OK(attn_context_create(&options, &context, &why));
  s.limits.max_tokens = s.tokens;
  s.limits.max_seqs = 3;
  s.limits.max_kv_len = 300;
  s.options.backend = backend;
  EXPECT_OK(attn_plan_create(context, &s.problem, &s.limits, &s.options, &s.plan, &why));
  i.s = &s;
  i.bytes = attn_plan_workspace_bytes(s.plan);
  i.start = aligned_alloc(ATTN_WORKSPACE_ALIGN, 3 * i.bytes);
  i.copy = malloc(i.bytes);
  CHECK(i.start != NULL && i.copy != NULL, "no memory");
  attn_workspace workspace = {i.start + i.bytes, i.bytes};
  EXPECT_OK(attn_plan_schedule(s.plan, &s.batch, &workspace, &why));
  memset(s.out_data.data, 0xFF, s.out_data.bytes);
  EXPECT_OK(attn_run(s.plan, &s.args, &workspace, &why));
  CHECK(i.asked > 0, "the executor was not asked");
  assert_int_equal(i.before, ATTN_OK);
  assert_int_equal(i.first_bytes, ATTN_E_STATE);
  assert_int_equal(i.last_bytes, ATTN_E_STATE);
  assert_int_equal(i.behind, ATTN_OK);
  CHECK(memcmp(s.out, s.out_data.data, s.out_data.bytes) == 0, "the calls it met changed its answer");
  memcpy(workspace.data, i.copy, i.bytes);
  EXPECT_OK(attn_plan_schedule(s.plan, &s.batch, &workspace, &why));
  EXPECT_OK(attn_run(s.plan, &s.args, &workspace, &why));
  CHECK(memcmp(s.out, s.out_data.data, s.out_data.bytes) == 0, "other bits over the bytes of a run");
  attn_plan_destroy(s.plan);
  attn_context_destroy(context);
  free(i.start);
  free(i.copy);
  s.plan = NULL;
  scene_free(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(within_8_mib_per_thread),
      BACKEND_TEST(excess_of_forced_splits),
      cmocka_unit_test(every_format),
      BACKEND_TEST(calls_at_once),
  };
  return cmocka_run_group_tests_name("workspace", tests, NULL, NULL);
}
