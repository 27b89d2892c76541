/* SPDX-License-Identifier: Apache-2.0 */
/* backend.h, second half: the names of the registry, forcing, the environment, the dry run. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "scene.h"

static const char *const ours[] = {"REFERENCE",    "CPU_ATTN",   "CPU_MLA",     "PORTABLE_ATTN",
                                   "PORTABLE_MLA", "HOPPER_MLA", "HOPPER_ATTN", "BLACKWELL_MLA"};
static const char *const theirs[] = {"TRITON_ATTN", "TRITON_MLA",  "FLASH_ATTN_MLA", "FLASHINFER_MLA",
                                     "FLASHMLA",    "CUTLASS_MLA", "TOKENSPEED_MLA", "ROCM_AITER_MLA",
                                     "FLASH_ATTN",  "FLASHINFER",  "FLEX_ATTENTION"};
enum { OURS = sizeof ours / sizeof ours[0], THEIRS = sizeof theirs / sizeof theirs[0] };

typedef struct desk {
  attn_context *context;
  attn_problem problem;
  attn_plan_limits limits;
  attn_plan_options options;
} desk;

static desk desk_open(void) {
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  desk d;
  scene s;
  unsetenv("ATTN_BACKEND");
  scene_init(&s, 4, 2, 16, 16);
  d.context = open_context(1);
  d.problem = s.problem;
  d.limits = limits;
  d.limits.max_tokens = 8;
  d.limits.max_kv_len = 64;
  d.options = options;
  return d;
}

static void desk_close(desk *d) {
  attn_context_destroy(d->context);
  unsetenv("ATTN_BACKEND");
}

static int find_name(const char *name, attn_backend_info *info) {
  for (size_t i = 0; attn_backend_get(i, info); i++) {
    if (strcmp(info->name, name) == 0) {
      return 1;
    }
  }
  return 0;
}

/* attn_select, attn_plan_create and attn_explain refuse alike. */
static void expect_refused(desk *d, attn_status status, const char *named) {
  const char *name = "untouched";
  attn_plan *plan = NULL;
  attn_explanation explanation = ATTN_EXPLANATION_INIT;
  EXPECT_STATUS(attn_select(d->context, &d->problem, &d->limits, &d->options, &name, &why), status, named);
  CHECK(strcmp(name, "untouched") == 0, "a failing select wrote the name");
  EXPECT_STATUS(attn_plan_create(d->context, &d->problem, &d->limits, &d->options, &plan, &why), status, named);
  CHECK(plan == NULL, "a failing call set the plan");
  EXPECT_OK(attn_explain(d->context, &d->problem, &d->limits, &d->options, &explanation, &why));
  CHECK(explanation.status == status, "explain says %s", attn_status_name(explanation.status));
  CHECK(explanation.pick[0] == 0, "explain picks %s though no plan would be made", explanation.pick);
  CHECK(strstr(explanation.reason, named) != NULL, "explain's reason lacks '%s': %s", named, explanation.reason);
  CHECK(explanation.num_rows > 0, "explain has no rows");
}

/* The line that refuses the forced backend. */
static const char *refusal(desk *d) {
  const char *name = NULL;
  EXPECT_STATUS(attn_select(d->context, &d->problem, &d->limits, &d->options, &name, &why), ATTN_E_BACKEND, NULL);
  return why.text;
}

static const char *selected(desk *d) {
  const char *name = NULL;
  attn_plan *plan = NULL;
  attn_plan_info info = ATTN_PLAN_INFO_INIT;
  attn_explanation explanation = ATTN_EXPLANATION_INIT;
  EXPECT_OK(attn_select(d->context, &d->problem, &d->limits, &d->options, &name, &why));
  EXPECT_OK(attn_plan_create(d->context, &d->problem, &d->limits, &d->options, &plan, &why));
  EXPECT_OK(attn_plan_get_info(plan, &info, &why));
  EXPECT_OK(attn_explain(d->context, &d->problem, &d->limits, &d->options, &explanation, &why));
  CHECK(strcmp(info.backend, name) == 0 && strcmp(explanation.pick, name) == 0, "select %s, plan %s, explain %s", name,
        info.backend, explanation.pick);
  CHECK(info.workspace_bytes == attn_plan_workspace_bytes(plan), "two sizes of one workspace");
  CHECK(explanation.workspace_bytes == info.workspace_bytes, "explain and plan differ in workspace bytes");
  CHECK(explanation.max_splits == info.max_splits, "explain and plan differ in splits");
  CHECK(explanation.block_size == info.block_size, "explain and plan differ in block size");
  CHECK(info.reason[0] != 0, "the plan has no reason");
  attn_plan_destroy(plan);
  return name;
}

static void every_name_is_known(void **state) {
  attn_backend_info info;
  int foreign = 0;
  (void)state;
  for (int i = 0; i < OURS; i++) {
    CHECK(find_name(ours[i], &info) && !info.foreign, "%s is not one of ours", ours[i]);
    CHECK(info.plays != NULL && info.summary != NULL && info.summary[0] != 0, "%s has no summary", ours[i]);
    CHECK(info.built == (i < 3), "%s: built is %d", ours[i], info.built);
    int rows = i == 0 ? ATTN_ROWS_KV | ATTN_ROWS_LATENT : i == 1 ? ATTN_ROWS_KV : i == 2 ? ATTN_ROWS_LATENT : 0;
    CHECK(info.rows == rows, "%s: rows is %d", ours[i], info.rows);
  }
  for (int i = 0; i < THEIRS; i++) {
    CHECK(find_name(theirs[i], &info) && info.foreign && !info.built, "%s is not foreign", theirs[i]);
    CHECK(info.plays != NULL, "%s plays is NULL", theirs[i]);
    attn_backend_info stand_in;
    CHECK(info.plays[0] == 0 || (find_name(info.plays, &stand_in) && !stand_in.foreign), "%s plays %s", theirs[i],
          info.plays);
  }
  for (size_t i = 0; attn_backend_get(i, &info); i++) {
    CHECK(!(foreign && !info.foreign), "%s comes after foreign names", info.name);
    foreign = info.foreign;
    attn_backend_info again;
    CHECK(find_name(info.name, &again) && again.name == info.name, "%s is there twice", info.name);
  }
  assert_int_equal(attn_backend_get(SIZE_MAX, &info), 0);
}

/* The fixed priority of the CPU: CPU_ATTN before REFERENCE. */
static void fixed_priority(void **state) {
  desk d = desk_open();
  attn_explanation explanation = ATTN_EXPLANATION_INIT;
  (void)state;
  assert_string_equal(selected(&d), "CPU_ATTN");
  EXPECT_OK(attn_explain(d.context, &d.problem, NULL, NULL, &explanation, &why));
  for (int32_t i = 0; i < explanation.num_rows; i++) {
    const attn_explain_row *row = &explanation.rows[i];
    attn_backend_info info;
    CHECK(find_name(row->backend, &info), "%s is no name of the registry", row->backend);
    attn_verdict right = info.foreign                         ? ATTN_VERDICT_FOREIGN
                         : !info.built                        ? ATTN_VERDICT_NOT_BUILT
                         : strcmp(info.name, "CPU_ATTN") == 0 ? ATTN_VERDICT_TAKEN
                         : strcmp(info.name, "CPU_MLA") == 0  ? ATTN_VERDICT_REFUSED
                                                              : ATTN_VERDICT_ABLE;
    CHECK(row->verdict == right, "%s: verdict %s, right is %s", row->backend, attn_verdict_name(row->verdict),
          attn_verdict_name(right));
    CHECK(!info.foreign || info.plays[0] == 0 || strstr(row->reason, info.plays) != NULL, "%s: '%s' lacks %s",
          row->backend, row->reason, info.plays);
  }
  desk_close(&d);
}

/* Without a cache there are no blocks, and both say so. */
static void direct_problem_has_no_blocks(void **state) {
  desk d = desk_open();
  attn_explanation explanation = ATTN_EXPLANATION_INIT;
  (void)state;
  d.problem.kv_source = ATTN_KV_DIRECT;
  d.problem.block_size = 0;
  d.problem.k_format = ATTN_FORMAT_AUTO;
  d.problem.v_format = ATTN_FORMAT_AUTO;
  assert_string_equal(selected(&d), "CPU_ATTN");
  EXPECT_OK(attn_explain(d.context, &d.problem, &d.limits, NULL, &explanation, &why));
  assert_int_equal(explanation.block_size, 0);
  desk_close(&d);
}

static void argument_forces(void **state) {
  static const char *const none[] = {NULL, "", "auto"};
  desk d = desk_open();
  (void)state;
  d.options.backend = "REFERENCE";
  assert_string_equal(selected(&d), "REFERENCE");
  d.options.backend = "CPU_ATTN";
  assert_string_equal(selected(&d), "CPU_ATTN");
  for (size_t i = 0; i < 3; i++) {
    d.options.backend = none[i];
    assert_string_equal(selected(&d), "CPU_ATTN");
  }
  desk_close(&d);
}

static void environment_forces_and_argument_beats_it(void **state) {
  desk d = desk_open();
  (void)state;
  setenv("ATTN_BACKEND", "REFERENCE", 1);
  assert_string_equal(selected(&d), "REFERENCE");
  d.options.backend = "CPU_ATTN";
  assert_string_equal(selected(&d), "CPU_ATTN");
  d.options.backend = NULL;
  setenv("ATTN_BACKEND", "auto", 1);
  assert_string_equal(selected(&d), "CPU_ATTN");
  setenv("ATTN_BACKEND", "", 1);
  assert_string_equal(selected(&d), "CPU_ATTN");
  setenv("ATTN_BACKEND", "BOGUS", 1);
  expect_refused(&d, ATTN_E_NAME, "ATTN_BACKEND");
  setenv("ATTN_BACKEND", "TRITON_ATTN", 1);
  expect_refused(&d, ATTN_E_BACKEND, "TRITON_ATTN");
  desk_close(&d);
}

static void unknown_names_are_errors(void **state) {
  static const char *const names[] = {"BOGUS", "CPU_ATTN2", "CPU", " CPU_ATTN", "cpu attn"};
  desk d = desk_open();
  (void)state;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    d.options.backend = names[i];
    expect_refused(&d, ATTN_E_NAME, names[i]);
  }
  desk_close(&d);
}

static void foreign_and_unbuilt_names_are_refused(void **state) {
  desk d = desk_open();
  attn_backend_info info;
  (void)state;
  for (int i = 0; i < THEIRS; i++) {
    d.options.backend = theirs[i];
    CHECK(find_name(theirs[i], &info), "%s is not known", theirs[i]);
    expect_refused(&d, ATTN_E_BACKEND, theirs[i]);
    CHECK(info.plays[0] == 0 || strstr(refusal(&d), info.plays) != NULL, "'%s' lacks %s", why.text, info.plays);
  }
  for (int i = 2; i < OURS; i++) {
    d.options.backend = ours[i];
    expect_refused(&d, ATTN_E_BACKEND, ours[i]);
  }
  desk_close(&d);
}

/* The other calls that select obey the same two sources. */
static void cache_and_merge_select_too(void **state) {
  static const char *const names[] = {"BOGUS", "TRITON_ATTN", "PORTABLE_ATTN"};
  static const attn_status statuses[] = {ATTN_E_NAME, ATTN_E_BACKEND, ATTN_E_BACKEND};
  desk d = desk_open();
  float k[2 * 4], v[2 * 4], pool_k[8 * 4], pool_v[8 * 4], out[8], lse[2];
  int64_t slot[] = {1, 5};
  int32_t table[] = {0, 1}, len[] = {8};
  float rows[8 * 4], rows_v[8 * 4];
  tensor t_k, t_v, t_pk, t_pv, t_slot, t_out, t_lse, t_to, t_tl, t_table, t_len, t_rows, t_rows_v;
  attn_cache_write_args write = ATTN_CACHE_WRITE_INIT;
  attn_cache_gather_args gather = ATTN_CACHE_GATHER_INIT;
  attn_merge_args merge = ATTN_MERGE_INIT;
  (void)state;
  fill_floats(k, 8, 1);
  fill_floats(v, 8, 2);
  fill_floats(pool_k, 32, 3);
  fill_floats(pool_v, 32, 4);
  tensor_3(&t_k, k, ATTN_DTYPE_FLOAT32, 2, 1, 4);
  tensor_3(&t_v, v, ATTN_DTYPE_FLOAT32, 2, 1, 4);
  tensor_4(&t_pk, pool_k, ATTN_DTYPE_FLOAT32, 2, 4, 1, 4);
  tensor_4(&t_pv, pool_v, ATTN_DTYPE_FLOAT32, 2, 4, 1, 4);
  tensor_1(&t_slot, slot, ATTN_DTYPE_INT64, 2);
  tensor_2(&t_table, table, ATTN_DTYPE_INT32, 1, 2);
  tensor_1(&t_len, len, ATTN_DTYPE_INT32, 1);
  tensor_3(&t_rows, rows, ATTN_DTYPE_FLOAT32, 8, 1, 4);
  tensor_3(&t_rows_v, rows_v, ATTN_DTYPE_FLOAT32, 8, 1, 4);
  tensor_3(&t_out, out, ATTN_DTYPE_FLOAT32, 2, 1, 4);
  tensor_2(&t_lse, lse, ATTN_DTYPE_FLOAT32, 2, 1);
  fill_floats(lse, 2, 0);
  tensor_3(&t_to, k, ATTN_DTYPE_FLOAT32, 2, 1, 4);
  tensor_2(&t_tl, lse, ATTN_DTYPE_FLOAT32, 2, 1);
  const DLTensor *outs[] = {&t_to.t};
  const DLTensor *lses[] = {&t_tl.t};
  write.k = &t_k.t;
  write.v = &t_v.t;
  write.slot_mapping = &t_slot.t;
  write.k_cache = gather.k_cache = &t_pk.t;
  write.v_cache = gather.v_cache = &t_pv.t;
  gather.block_table = &t_table.t;
  gather.seq_lens = &t_len.t;
  gather.k = &t_rows.t;
  gather.v = &t_rows_v.t;
  merge.num_parts = 1;
  merge.outs = outs;
  merge.lses = lses;
  merge.out = &t_out.t;
  for (int source = 0; source < 2; source++) {
    for (int i = 0; i < 3; i++) {
      write.backend = gather.backend = merge.backend = source == 0 ? names[i] : NULL;
      if (source == 1) {
        setenv("ATTN_BACKEND", names[i], 1);
      }
      EXPECT_STATUS(attn_cache_write(d.context, &write, &why), statuses[i], names[i]);
      EXPECT_STATUS(attn_cache_gather(d.context, &gather, &why), statuses[i], names[i]);
      EXPECT_STATUS(attn_merge(d.context, &merge, &why), statuses[i], names[i]);
    }
  }
  write.backend = gather.backend = merge.backend = "REFERENCE";
  EXPECT_OK(attn_cache_write(d.context, &write, &why));
  EXPECT_OK(attn_cache_gather(d.context, &gather, &why));
  EXPECT_OK(attn_merge(d.context, &merge, &why));
  desk_close(&d);
}

static void cascade_is_refused_by_name(void **state) {
  desk d = desk_open();
  attn_plan *plan = NULL;
  (void)state;
  d.problem.cascade = 1;
  EXPECT_STATUS(attn_plan_create(d.context, &d.problem, &d.limits, NULL, &plan, &why), ATTN_E_UNSUPPORTED, "cascade");
  CHECK(strstr(why.text, "attn_merge") != NULL, "the message does not say what to use: %s", why.text);
  CHECK(plan == NULL, "a failing call set the plan");
  desk_close(&d);
}

/* attn_select_call names what those calls take, and refuses as they do. */
static void calls_without_a_problem(void **state) {
  desk d = desk_open();
  const char *name = "untouched";
  char reason[ATTN_REASON_BYTES] = "untouched";
  (void)state;
  EXPECT_OK(attn_select_call(d.context, NULL, &name, NULL, &why));
  CHECK(strcmp(name, "CPU_ATTN") == 0, "%s is first", name);
  EXPECT_OK(attn_select_call(d.context, "auto", &name, reason, &why));
  CHECK(strcmp(name, "CPU_ATTN") == 0 && strstr(reason, "first") != NULL, "%s: %s", name, reason);
  EXPECT_OK(attn_select_call(d.context, "REFERENCE", &name, reason, &why));
  CHECK(strcmp(name, "REFERENCE") == 0 && strstr(reason, "argument") != NULL, "%s: %s", name, reason);
  setenv("ATTN_BACKEND", "REFERENCE", 1);
  EXPECT_OK(attn_select_call(d.context, "", &name, reason, &why));
  CHECK(strcmp(name, "REFERENCE") == 0 && strstr(reason, "ATTN_BACKEND") != NULL, "%s: %s", name, reason);
  EXPECT_OK(attn_select_call(d.context, "CPU_ATTN", &name, reason, &why));
  CHECK(strcmp(name, "CPU_ATTN") == 0, "the argument did not beat the variable: %s", name);
  unsetenv("ATTN_BACKEND");
  strcpy(reason, "untouched");
  name = "untouched";
  EXPECT_STATUS(attn_select_call(d.context, "BOGUS", &name, reason, &why), ATTN_E_NAME, "BOGUS");
  EXPECT_STATUS(attn_select_call(d.context, "TRITON_ATTN", &name, reason, &why), ATTN_E_BACKEND, "TRITON_ATTN");
  EXPECT_STATUS(attn_select_call(NULL, NULL, &name, reason, &why), ATTN_E_NULL, "context");
  EXPECT_STATUS(attn_select_call(d.context, NULL, NULL, reason, &why), ATTN_E_NULL, "name");
  CHECK(strcmp(name, "untouched") == 0 && strcmp(reason, "untouched") == 0, "a failing call wrote %s, %s", name,
        reason);
  desk_close(&d);
}

static void null_and_size(void **state) {
  desk d = desk_open();
  attn_explanation e = ATTN_EXPLANATION_INIT;
  const char *name = NULL;
  (void)state;
  EXPECT_STATUS(attn_explain(NULL, &d.problem, NULL, NULL, &e, &why), ATTN_E_NULL, "context");
  EXPECT_STATUS(attn_explain(d.context, NULL, NULL, NULL, &e, &why), ATTN_E_NULL, "problem");
  EXPECT_STATUS(attn_explain(d.context, &d.problem, NULL, NULL, NULL, &why), ATTN_E_NULL, "explanation");
  EXPECT_STATUS(attn_select(NULL, &d.problem, NULL, NULL, &name, &why), ATTN_E_NULL, "context");
  EXPECT_STATUS(attn_select(d.context, NULL, NULL, NULL, &name, &why), ATTN_E_NULL, "problem");
  EXPECT_STATUS(attn_select(d.context, &d.problem, NULL, NULL, NULL, &why), ATTN_E_NULL, "name");
  e.size = 12;
  EXPECT_STATUS(attn_explain(d.context, &d.problem, NULL, NULL, &e, &why), ATTN_E_STRUCT_SIZE, NULL);
  d.limits.size = 1;
  EXPECT_STATUS(attn_select(d.context, &d.problem, &d.limits, NULL, &name, &why), ATTN_E_STRUCT_SIZE, NULL);
  d.options.size = 1;
  EXPECT_STATUS(attn_select(d.context, &d.problem, NULL, &d.options, &name, &why), ATTN_E_STRUCT_SIZE, NULL);
  EXPECT_OK(attn_select(d.context, &d.problem, NULL, NULL, &name, &why));
  desk_close(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_name_is_known),
      cmocka_unit_test(fixed_priority),
      cmocka_unit_test(direct_problem_has_no_blocks),
      cmocka_unit_test(argument_forces),
      cmocka_unit_test(environment_forces_and_argument_beats_it),
      cmocka_unit_test(unknown_names_are_errors),
      cmocka_unit_test(foreign_and_unbuilt_names_are_refused),
      cmocka_unit_test(cache_and_merge_select_too),
      cmocka_unit_test(calls_without_a_problem),
      cmocka_unit_test(cascade_is_refused_by_name),
      cmocka_unit_test(null_and_size),
  };
  return cmocka_run_group_tests_name("registry", tests, NULL, NULL);
}
