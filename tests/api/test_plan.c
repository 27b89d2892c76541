/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h, planning and scheduling: each documented status provoked; workspaces given, owned, too small. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

/* AddressSanitizer, where the build has it, is to return NULL as malloc does, not to end the program. */
ATTN_API const char *__asan_default_options(void);
const char *__asan_default_options(void) {
  return "allocator_may_return_null=1";
}

static void small_scene(scene *s) {
  static const int32_t q_len[] = {1, 3};
  static const int32_t kv_len[] = {20, 7};
  scene_init(s, 4, 2, 16, 16);
  scene_seqs(s, 2, q_len, kv_len);
  scene_store(s);
}

/* A plan of the scene's problem that has to be refused. */
static void expect_no_plan(scene *s, attn_context *context, const attn_plan_limits *limits, attn_status status,
                           const char *named) {
  attn_plan *plan = NULL;
  EXPECT_STATUS(attn_plan_create(context, &s->problem, limits, &s->options, &plan, &why), status, named);
  CHECK(plan == NULL, "a failing call set the plan");
}

static void plan_arguments(const char *backend) {
  attn_context *context = open_context(1);
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan *plan = NULL;
  scene s;
  small_scene(&s);
  s.options.backend = backend;
  limits.max_tokens = 8;
  limits.max_kv_len = 64;
  EXPECT_STATUS(attn_plan_create(NULL, &s.problem, &limits, &s.options, &plan, &why), ATTN_E_NULL, "context");
  EXPECT_STATUS(attn_plan_create(context, NULL, &limits, &s.options, &plan, &why), ATTN_E_NULL, "problem");
  EXPECT_STATUS(attn_plan_create(context, &s.problem, NULL, &s.options, &plan, &why), ATTN_E_NULL, "limits");
  EXPECT_STATUS(attn_plan_create(context, &s.problem, &limits, &s.options, NULL, &why), ATTN_E_NULL, "plan");
  limits.size = 4;
  expect_no_plan(&s, context, &limits, ATTN_E_STRUCT_SIZE, NULL);
  limits.size = sizeof limits;
  s.options.size = sizeof s.options + 1;
  expect_no_plan(&s, context, &limits, ATTN_E_STRUCT_SIZE, NULL);
  s.options.size = sizeof s.options;
  s.problem.qk_head_size = 0;
  expect_no_plan(&s, context, &limits, ATTN_E_RANGE, "qk_head_size");
  s.problem.qk_head_size = 16;
  s.problem.q_dtype = ATTN_DTYPE_INT32;
  expect_no_plan(&s, context, &limits, ATTN_E_DTYPE, "q_dtype");
  s.problem.q_dtype = ATTN_DTYPE_FLOAT32;
  attn_context_destroy(context);
  scene_free(&s);
}

static void plan_limits(const char *backend) {
  static const int64_t bad[] = {0, -1, INT64_C(1) << 31, INT64_MAX, INT64_MIN};
  attn_context *context = open_context(1);
  scene s;
  small_scene(&s);
  s.options.backend = backend;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
    limits.max_tokens = bad[i];
    limits.max_kv_len = 64;
    expect_no_plan(&s, context, &limits, ATTN_E_RANGE, "max_tokens");
    limits.max_tokens = 8;
    limits.max_kv_len = bad[i];
    expect_no_plan(&s, context, &limits, ATTN_E_RANGE, "max_kv_len");
  }
  static const int32_t bad_seqs[] = {-1, (1 << 24) + 1, INT32_MAX};
  for (size_t i = 0; i < 3; i++) {
    attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
    limits.max_tokens = 8;
    limits.max_kv_len = 64;
    limits.max_seqs = bad_seqs[i];
    expect_no_plan(&s, context, &limits, ATTN_E_RANGE, "max_seqs");
  }
  attn_context_destroy(context);
  scene_free(&s);
}

static void plan_options(const char *backend) {
  static const int32_t bad[] = {-1, 4097, INT32_MAX, INT32_MIN};
  attn_context *context = open_context(1);
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  scene s;
  small_scene(&s);
  s.options.backend = backend;
  limits.max_tokens = 8;
  limits.max_kv_len = 64;
  for (size_t i = 0; i < 4; i++) {
    s.options.num_splits = bad[i];
    expect_no_plan(&s, context, &limits, ATTN_E_RANGE, "num_splits");
  }
  s.options.num_splits = 2;
  s.problem.batch_invariant = 1;
  expect_no_plan(&s, context, &limits, ATTN_E_RANGE, "num_splits");
  s.problem.batch_invariant = 0;
  s.options.num_splits = 0;
  s.options.split_rule = ATTN_SPLIT_COMPATIBLE;
  s.problem.batch_invariant = 1;
  expect_no_plan(&s, context, &limits, ATTN_E_RANGE, "split_rule");
  s.problem.batch_invariant = 0;
  s.options.split_rule = (attn_split_rule)5;
  expect_no_plan(&s, context, &limits, ATTN_E_RANGE, "split_rule");
  s.options.split_rule = ATTN_SPLIT_DEFAULT;
  s.options.own_workspace = 2;
  expect_no_plan(&s, context, &limits, ATTN_E_RANGE, "own_workspace");
  attn_context_destroy(context);
  scene_free(&s);
}

/* Workspaces beyond 64 bits, or beyond all memory when the plan has to own them: an answer, whichever. */
static void plan_of_the_largest_limits(const char *backend) {
  attn_context *context = open_context(1);
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan *plan = NULL;
  scene s;
  small_scene(&s);
  s.options.backend = backend;
  limits.max_tokens = INT32_MAX;
  limits.max_kv_len = INT32_MAX;
  limits.max_seqs = 1 << 24;
  s.problem.num_q_heads = 1 << 30;
  s.problem.num_kv_heads = 1 << 30;
  s.problem.qk_head_size = INT32_MAX;
  s.problem.v_head_size = INT32_MAX;
  s.options.num_splits = strcmp(backend, "REFERENCE") == 0 ? 0 : 4096;
  harness_reset();
  attn_status status = attn_plan_create(context, &s.problem, &limits, &s.options, &plan, &why);
  CHECK(status == ATTN_OK || status == ATTN_E_OVERFLOW || status == ATTN_E_BACKEND, "the largest plan: %s",
        attn_status_name(status));
  attn_plan_destroy(plan);
  plan = NULL;
  s.options.own_workspace = 1;
  harness_reset();
  status = attn_plan_create(context, &s.problem, &limits, &s.options, &plan, &why);
  CHECK(status == ATTN_OK || status == ATTN_E_OVERFLOW || status == ATTN_E_BACKEND || status == ATTN_E_NOMEM,
        "the largest owned plan: %s", attn_status_name(status));
  attn_plan_destroy(plan);
  attn_context_destroy(context);
  scene_free(&s);
}

static void plan_info(const char *backend) {
  attn_plan_info info = ATTN_PLAN_INFO_INIT;
  scene s;
  small_scene(&s);
  s.num_threads = 3;
  s.problem.batch_invariant = 1;
  scene_open(&s, backend);
  EXPECT_OK(attn_plan_get_info(s.plan, &info, &why));
  assert_string_equal(info.backend, backend);
  assert_int_equal(info.block_size, 16);
  assert_int_equal(info.num_threads, 3);
  assert_int_equal(info.batch_invariant, 1);
  assert_int_equal(info.workspace_bytes, attn_plan_workspace_bytes(s.plan));
  assert_true(info.workspace_bytes > 0 && info.workspace_bytes % ATTN_WORKSPACE_ALIGN == 0);
  assert_true(info.reason[0] != 0 && info.max_splits >= 1);
  EXPECT_STATUS(attn_plan_get_info(NULL, &info, &why), ATTN_E_NULL, "plan");
  EXPECT_STATUS(attn_plan_get_info(s.plan, NULL, &why), ATTN_E_NULL, "info");
  info.size = 1;
  EXPECT_STATUS(attn_plan_get_info(s.plan, &info, &why), ATTN_E_STRUCT_SIZE, NULL);
  attn_plan_destroy(NULL);
  scene_close(&s);
  scene_free(&s);
}

/* A schedule that has to be refused; the workspace keeps its last good one. */
static void expect_no_schedule(scene *s, attn_status status, const char *named) {
  EXPECT_STATUS(attn_plan_schedule(s->plan, &s->batch, &s->workspace, &why), status, named);
}

static void schedule_tensors(const char *backend) {
  scene s;
  small_scene(&s);
  scene_open(&s, backend);
  EXPECT_STATUS(attn_plan_schedule(NULL, &s.batch, &s.workspace, &why), ATTN_E_NULL, "plan");
  EXPECT_STATUS(attn_plan_schedule(s.plan, NULL, &s.workspace, &why), ATTN_E_NULL, "batch");
  s.batch.query_start_loc = NULL;
  expect_no_schedule(&s, ATTN_E_NULL, "query_start_loc");
  s.batch.query_start_loc = &s.t_starts.t;
  s.batch.seq_lens = NULL;
  expect_no_schedule(&s, ATTN_E_NULL, "seq_lens");
  s.batch.seq_lens = &s.t_lens.t;
  s.batch.kv_start_loc = &s.t_starts.t;
  expect_no_schedule(&s, ATTN_E_NULL, "kv_start_loc");
  s.batch.kv_start_loc = NULL;
  s.batch.size = 2;
  expect_no_schedule(&s, ATTN_E_STRUCT_SIZE, NULL);
  s.batch.size = sizeof s.batch;
  s.t_lens.shape[0] = 1;
  expect_no_schedule(&s, ATTN_E_SHAPE, "seq_lens");
  s.t_lens.shape[0] = 2;
  s.t_starts.shape[0] = 0;
  expect_no_schedule(&s, ATTN_E_SHAPE, "query_start_loc");
  s.t_starts.shape[0] = 3;
  s.t_starts.t.ndim = 2;
  expect_no_schedule(&s, ATTN_E_SHAPE, "query_start_loc");
  s.t_starts.t.ndim = 1;
  s.t_starts.t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT64);
  expect_no_schedule(&s, ATTN_E_DTYPE, "query_start_loc");
  s.t_starts.t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT32);
  s.t_starts.strides[0] = -1;
  expect_no_schedule(&s, ATTN_E_STRIDE, "query_start_loc");
  s.t_starts.strides[0] = 1;
  s.t_starts.t.byte_offset = 1;
  expect_no_schedule(&s, ATTN_E_ALIGN, "query_start_loc");
  s.t_starts.t.byte_offset = UINT64_C(1) << 63;
  expect_no_schedule(&s, ATTN_E_OVERFLOW, "byte_offset");
  s.t_starts.t.byte_offset = 0;
  s.t_starts.strides[0] = 0; /* costs no memory: refused by its count, not walked */
  s.t_starts.shape[0] = INT64_C(1) << 60;
  expect_no_schedule(&s, ATTN_E_CAPACITY, "max_seqs");
  s.t_starts.strides[0] = 1;
  s.t_starts.shape[0] = 3;
  s.t_lens.t.device.device_type = kDLCUDA;
  expect_no_schedule(&s, ATTN_E_TENSOR_DEVICE, "seq_lens");
  s.t_lens.t.device.device_type = kDLCUDAHost; /* is CPU memory */
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  scene_close(&s);
  scene_free(&s);
}

static void schedule_entries(const char *backend) {
  static const struct {
    int32_t starts[3], lens[2];
    attn_status status;
    const char *named;
  } rows[] = {
      {{1, 1, 4}, {20, 7}, ATTN_E_INDEX, "query_start_loc"},
      {{-1, 1, 4}, {20, 7}, ATTN_E_INDEX, "query_start_loc"},
      {{0, 2, 1}, {20, 7}, ATTN_E_INDEX, "query_start_loc"},
      {{0, -1, 4}, {20, 7}, ATTN_E_INDEX, "query_start_loc"},
      {{0, 1, 4}, {-1, 7}, ATTN_E_INDEX, "seq_lens"},
      {{0, 1, 4}, {20, INT32_MIN}, ATTN_E_INDEX, "seq_lens"},
      {{0, 1, 5}, {20, 7}, ATTN_E_CAPACITY, "4"},
      {{0, 1, INT32_MAX}, {20, 7}, ATTN_E_CAPACITY, "4"},
      {{0, 1, 4}, {21, 7}, ATTN_E_CAPACITY, "20"},
      {{0, 1, 4}, {20, INT32_MAX}, ATTN_E_CAPACITY, "20"},
  };
  scene s;
  small_scene(&s);
  scene_open(&s, backend);
  EXPECT_OK(scene_step(&s, &why));
  guarded first = guard_make(s.out_data.bytes);
  memcpy(first.data, s.out_data.data, first.bytes);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    memcpy(s.starts, rows[i].starts, sizeof rows[i].starts);
    memcpy(s.lens, rows[i].lens, sizeof rows[i].lens);
    expect_no_schedule(&s, rows[i].status, rows[i].named);
  }
  memset(s.out_data.data, 0xFF, s.out_data.bytes);
  EXPECT_OK(attn_run(s.plan, &s.args, &s.workspace, &why)); /* the schedule of before still stands */
  assert_memory_equal(first.data, s.out_data.data, first.bytes);
  guard_free(&first);
  scene_close(&s);
  s.limits.max_seqs = 1;
  memcpy(s.starts, (const int32_t[]){0, 1, 4}, 3 * sizeof(int32_t));
  memcpy(s.lens, (const int32_t[]){20, 7}, 2 * sizeof(int32_t));
  scene_open(&s, backend);
  expect_no_schedule(&s, ATTN_E_CAPACITY, "1");
  scene_close(&s);
  scene_free(&s);
}

/* Any batch within the limits, the empty one included. */
static void schedule_smaller_batches(const char *backend) {
  scene s;
  small_scene(&s);
  scene_open(&s, backend);
  for (int32_t n = 2; n >= 0; n--) {
    s.num_seqs = n;
    s.tokens = s.starts[n];
    s.t_starts.shape[0] = n + 1;
    s.t_lens.shape[0] = n;
    s.t_table.shape[0] = n;
    EXPECT_OK(scene_step(&s, &why));
    scene_check(&s);
    assert_int_equal(s.schedule_info.num_seqs, n);
    assert_int_equal(s.schedule_info.num_tokens, s.tokens);
  }
  s.num_seqs = 2;
  scene_close(&s);
  scene_free(&s);
}

static void workspaces(const char *backend) {
  attn_schedule_info info = ATTN_SCHEDULE_INFO_INIT;
  scene s;
  small_scene(&s);
  scene_open(&s, backend);
  attn_workspace bad = s.workspace;
  EXPECT_STATUS(attn_schedule_get_info(s.plan, &s.workspace, &info, &why), ATTN_E_STATE, NULL);
  EXPECT_STATUS(attn_run(s.plan, &s.args, &s.workspace, &why), ATTN_E_STATE, NULL);
  EXPECT_STATUS(attn_plan_schedule(s.plan, &s.batch, NULL, &why), ATTN_E_STATE, "workspace");
  EXPECT_STATUS(attn_run(s.plan, &s.args, NULL, &why), ATTN_E_STATE, "workspace");
  EXPECT_STATUS(attn_schedule_get_info(s.plan, NULL, &info, &why), ATTN_E_STATE, NULL);
  bad.bytes -= 1;
  char needed[24];
  snprintf(needed, sizeof needed, "%zu", s.workspace.bytes);
  EXPECT_STATUS(attn_plan_schedule(s.plan, &s.batch, &bad, &why), ATTN_E_WORKSPACE, needed);
  bad.bytes = 0;
  EXPECT_STATUS(attn_plan_schedule(s.plan, &s.batch, &bad, &why), ATTN_E_WORKSPACE, needed);
  bad = s.workspace;
  bad.data = NULL;
  EXPECT_REFUSED(attn_plan_schedule(s.plan, &s.batch, &bad, &why), "workspace");
  EXPECT_OK(scene_schedule(&s, &why));
  bad = s.workspace;
  bad.bytes -= 1;
  EXPECT_STATUS(attn_run(s.plan, &s.args, &bad, &why), ATTN_E_WORKSPACE, needed);
  EXPECT_STATUS(attn_schedule_get_info(s.plan, &bad, &info, &why), ATTN_E_WORKSPACE, needed);
  CHECK(all_bytes(s.out_data.data, s.out_data.bytes, 0xFF), "a failing run wrote");
  guarded larger = guard_make(s.workspace.bytes + ATTN_WORKSPACE_ALIGN);
  bad.data = larger.data + 64;
  bad.bytes = s.workspace.bytes;
  EXPECT_STATUS(attn_plan_schedule(s.plan, &s.batch, &bad, &why), ATTN_E_ALIGN, "workspace");
  EXPECT_STATUS(attn_schedule_get_info(NULL, &s.workspace, &info, &why), ATTN_E_NULL, "plan");
  EXPECT_STATUS(attn_schedule_get_info(s.plan, &s.workspace, NULL, &why), ATTN_E_NULL, "info");
  info.size = 1;
  EXPECT_STATUS(attn_schedule_get_info(s.plan, &s.workspace, &info, &why), ATTN_E_STRUCT_SIZE, NULL);
  guard_free(&larger);
  scene_close(&s);
  scene_free(&s);
}

/* A schedule of one plan is not a schedule of another. */
static void schedule_of_another_plan(const char *backend) {
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan *other = NULL;
  scene s;
  small_scene(&s);
  s.options.backend = backend;
  scene_open(&s, backend);
  limits.max_tokens = s.tokens;
  limits.max_kv_len = 20;
  limits.max_seqs = 2;
  EXPECT_OK(attn_plan_create(s.context, &s.problem, &limits, &s.options, &other, &why));
  EXPECT_OK(scene_schedule(&s, &why));
  EXPECT_STATUS(attn_run(other, &s.args, &s.workspace, &why), ATTN_E_STATE, NULL);
  attn_plan_destroy(other);
  guarded elsewhere = guard_make(s.workspace.bytes); /* a schedule does not move with its bytes */
  attn_workspace moved = {elsewhere.data, elsewhere.bytes};
  memcpy(elsewhere.data, s.workspace.data, elsewhere.bytes);
  EXPECT_STATUS(attn_run(s.plan, &s.args, &moved, &why), ATTN_E_STATE, NULL);
  guard_free(&elsewhere);
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  scene_close(&s);
  scene_free(&s);
}

/* Nor of a plan that comes to lie where the first one lay. */
static void schedule_of_a_plan_that_is_gone(const char *backend) {
  scene s;
  small_scene(&s);
  s.options.backend = backend;
  scene_open(&s, backend);
  for (int32_t step = 1; step <= 3; step++) {
    attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
    EXPECT_OK(scene_schedule(&s, &why));
    attn_plan_destroy(s.plan);
    limits.max_tokens = s.tokens;
    limits.max_kv_len = 20 - step; /* less than the schedule holds */
    limits.max_seqs = 2;
    EXPECT_OK(attn_plan_create(s.context, &s.problem, &limits, &s.options, &s.plan, &why));
    CHECK(attn_plan_workspace_bytes(s.plan) <= s.workspace.bytes, "smaller limits need a larger workspace");
    EXPECT_STATUS(attn_run(s.plan, &s.args, &s.workspace, &why), ATTN_E_STATE, NULL);
    s.lens[0] = 20 - step;
    s.kv_len[0] = 20 - step;
  }
  scene_close(&s);
  scene_free(&s);
}

static void owned_workspace(const char *backend) {
  attn_schedule_info info = ATTN_SCHEDULE_INFO_INIT;
  scene s;
  small_scene(&s);
  s.options.own_workspace = 1;
  scene_open(&s, backend);
  EXPECT_STATUS(attn_run(s.plan, &s.args, NULL, &why), ATTN_E_STATE, NULL);
  EXPECT_OK(attn_plan_schedule(s.plan, &s.batch, NULL, &why));
  EXPECT_OK(attn_schedule_get_info(s.plan, NULL, &info, &why));
  assert_int_equal(info.num_tokens, s.tokens);
  EXPECT_OK(attn_run(s.plan, &s.args, NULL, &why));
  guarded first = guard_make(s.out_data.bytes);
  memcpy(first.data, s.out_data.data, first.bytes);
  EXPECT_OK(scene_step(&s, &why)); /* a given one is used, and gives the same bits */
  scene_check(&s);
  assert_memory_equal(first.data, s.out_data.data, first.bytes);
  guard_free(&first);
  scene_close(&s);
  scene_free(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(plan_arguments),
      BACKEND_TEST(plan_limits),
      BACKEND_TEST(plan_options),
      BACKEND_TEST(plan_of_the_largest_limits),
      BACKEND_TEST(plan_info),
      BACKEND_TEST(schedule_tensors),
      BACKEND_TEST(schedule_entries),
      BACKEND_TEST(schedule_smaller_batches),
      BACKEND_TEST(workspaces),
      BACKEND_TEST(schedule_of_another_plan),
      BACKEND_TEST(schedule_of_a_plan_that_is_gone),
      BACKEND_TEST(owned_workspace),
  };
  return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
