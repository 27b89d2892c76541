/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 31 to 40: keys cut into splits, and what plans promise about scratch. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

static int is_reference(const char *backend) {
  return strcmp(backend, "REFERENCE") == 0;
}

/* The plan capped the splits that were asked for, and the batch stayed within. */
static void check_splits(const scene *s, const char *backend, int32_t asked) {
  CHECK(s->plan_info.max_splits >= 1 && s->plan_info.max_splits <= asked, "plan has %d splits, asked for %d",
        s->plan_info.max_splits, asked);
  CHECK(s->schedule_info.splits <= s->plan_info.max_splits, "schedule has %d splits, plan %d", s->schedule_info.splits,
        s->plan_info.max_splits);
  CHECK(!is_reference(backend) || s->schedule_info.splits == 1, "REFERENCE reports %d splits", s->schedule_info.splits);
}

/* ---- 31: splits that the window made empty */

static void empty_by_window(const char *backend, attn_format format) {
  static const int32_t splits[] = {1, 8, 64};
  for (size_t i = 0; i < 3; i++) {
    scene s;
    scene_init(&s, 2, 1, 16, 16);
    scene_format(&s, format);
    s.problem.window_left = 3;
    s.problem.window_right = 0;
    s.options.num_splits = splits[i];
    scene_one(&s, 1, 4096);
    scene_prove(&s, backend);
    check_splits(&s, backend, splits[i]);
    scene_free(&s);
  }
}

static void case_031_splits_empty_by_window(void **state) {
  (void)state;
  for_each_format(empty_by_window);
}

/* ---- 33: more splits than any merge expects */

static void many_splits(const char *backend, attn_format format) {
  static const int32_t splits[] = {161, 256, 4096};
  for (size_t i = 0; i < 3; i++) {
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    scene s;
    scene_init(&s, 2, 1, 16, 16);
    scene_format(&s, format);
    s.options.num_splits = splits[i];
    scene_one(&s, 1, 6000);
    scene_store(&s);
    scene_open(&s, backend);
    EXPECT_OK(scene_step(&s, &why));
    scene_check(&s);
    check_splits(&s, backend, splits[i]);
    s.options.backend = backend;
    s.limits.max_tokens = 1;
    s.limits.max_seqs = 1;
    s.limits.max_kv_len = 6000;
    EXPECT_OK(attn_explain(s.context, &s.problem, &s.limits, &s.options, &explanation, &why));
    CHECK(explanation.max_splits == s.plan_info.max_splits, "explain has %d splits, the plan %d",
          explanation.max_splits, s.plan_info.max_splits);
    CHECK(explanation.workspace_bytes == attn_plan_workspace_bytes(s.plan), "explain and plan differ in workspace");
    scene_close(&s);
    scene_free(&s);
  }
}

static void case_033_split_count_above_any_bucket(void **state) {
  (void)state;
  for_each_format(many_splits);
}

/* ---- 35: large queries (the latent part is not built) */

static void large_queries(const char *backend, attn_format format) {
  static const float deviations[] = {10.0f, 100.0f};
  for (int i = 0; i < 4; i++) {
    scene s;
    scene_init(&s, 16, 4, 128, 128);
    scene_format(&s, format);
    s.options.num_splits = 1 + i % 2;
    scene_one(&s, 1, 256);
    for (int64_t j = 0; j < s.tokens * 16 * 128; j++) {
      s.q[j] *= deviations[i / 2];
    }
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void case_035_large_queries_in_split_merge(void **state) {
  (void)state;
  for_each_format(large_queries);
}

/* ---- 37: each split count gives the same bits each time */

static void stable_bits(const char *backend, attn_format format) {
  int repeats = is_reference(backend) ? 20 : 200;
  for (int32_t splits = 1; splits <= 32; splits *= 2) {
    scene s;
    scene_init(&s, 2, 1, 16, 16);
    scene_format(&s, format);
    s.options.num_splits = splits;
    scene_one(&s, 1, 700);
    scene_store(&s);
    scene_open(&s, backend);
    EXPECT_OK(scene_step(&s, &why));
    scene_check(&s);
    float first[2 * 16 + 2];
    memcpy(first, s.out, 2 * 16 * sizeof(float));
    memcpy(first + 2 * 16, s.lse, 2 * sizeof(float));
    for (int i = 1; i < repeats; i++) {
      EXPECT_OK(scene_step(&s, &why));
      CHECK(same_bits(first, s.out, 2 * 16) && same_bits(first + 2 * 16, s.lse, 2), "%d splits: repeat %d differs",
            splits, i);
    }
    scene_close(&s);
    scene_free(&s);
  }
}

static void case_037_every_split_count_is_bit_stable(void **state) {
  (void)state;
  for_each_format(stable_bits);
}

/* ---- 38: a later, larger plan leaves an earlier one and its workspace alone */

static void growing_plans(const char *backend, attn_format format) {
  scene small, large;
  scene_init(&small, 2, 1, 16, 16);
  scene_init(&large, 2, 1, 16, 16);
  scene_format(&small, format);
  scene_format(&large, format);
  small.limits.max_kv_len = 512;
  large.limits.max_kv_len = 8192;
  scene_one(&small, 1, 500);
  scene_one(&large, 1, 5000);
  scene_store(&small);
  scene_store(&large);
  scene_open(&small, backend);
  EXPECT_OK(scene_step(&small, &why));
  size_t bytes = attn_plan_workspace_bytes(small.plan);
  scene_open(&large, backend);
  EXPECT_OK(scene_step(&large, &why));
  scene_check(&large);
  CHECK(attn_plan_workspace_bytes(small.plan) == bytes, "the first plan's workspace changed its size");
  memset(small.out_data.data, 0xFF, small.out_data.bytes);
  EXPECT_OK(attn_run(small.plan, &small.args, &small.workspace, &why)); /* the schedule of before */
  CHECK(!all_bytes(small.out_data.data, small.out_data.bytes, 0xFF), "the replay wrote nothing");
  EXPECT_OK(scene_step(&small, &why));
  scene_check(&small);
  small.lens[0] = 513;
  EXPECT_STATUS(scene_step(&small, &why), ATTN_E_CAPACITY, "512");
  scene_close(&small);
  scene_close(&large);
  scene_free(&small);
  scene_free(&large);
}

static void case_038_scratch_is_known_up_front(void **state) {
  (void)state;
  for_each_format(growing_plans);
}

/* ---- 40: two kinds of layer, each with its own head count */

static void two_layers(const char *backend, attn_format format) {
  static const int32_t kv_heads[] = {4, 1};
  int32_t q_len[36];
  int32_t kv_len[36];
  for (int32_t i = 0; i < 36; i++) {
    q_len[i] = 1;
    kv_len[i] = 1 + 7 * i;
  }
  for (int i = 0; i < 2; i++) {
    scene s;
    scene_init(&s, 4, kv_heads[i], 16, 16);
    scene_format(&s, format);
    scene_seqs(&s, 36, q_len, kv_len);
    scene_store(&s);
    scene_open(&s, backend);
    EXPECT_OK(scene_step(&s, &why));
    scene_check(&s);
    attn_workspace tight = s.workspace;
    tight.bytes -= 1;
    EXPECT_STATUS(attn_plan_schedule(s.plan, &s.batch, &tight, &why), ATTN_E_WORKSPACE, NULL);
    scene_close(&s);
    scene_free(&s);
  }
}

static void case_040_plan_is_per_layer(void **state) {
  (void)state;
  for_each_format(two_layers);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_031_splits_empty_by_window),
      cmocka_unit_test(case_033_split_count_above_any_bucket),
      cmocka_unit_test(case_035_large_queries_in_split_merge),
      cmocka_unit_test(case_037_every_split_count_is_bit_stable),
      cmocka_unit_test(case_038_scratch_is_known_up_front),
      cmocka_unit_test(case_040_plan_is_per_layer),
  };
  return cmocka_run_group_tests_name("cases_split", tests, NULL, NULL);
}
