/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 55 to 67: windows, causal tails, lengths beside block and tile edges, tables. */
#include <math.h>
#include <string.h>

#include "scene.h"

static void set_window(scene *s, int32_t count) {
  EXPECT_OK(attn_window_from_count(count, &s->problem.window_left, &s->problem.window_right, &why));
}

/* ---- 55: a window of W keys is W keys */

static void window_of_four(const char *backend, attn_format format) {
  scene s;
  scene_init(&s, 1, 1, 16, 16);
  scene_format(&s, format);
  set_window(&s, 4);
  scene_one(&s, 1, 6);
  fill_floats(s.q, 16, 0.0f);
  for (int32_t pos = 0; pos < 6; pos++) {
    fill_floats(scene_v(&s, 0, pos, 0), 16, (float)(1 << (2 * pos)));
  }
  scene_prove(&s, backend);
  CHECK(s.out[0] == (16.0f + 64.0f + 256.0f + 1024.0f) / 4, "out %g: not the mean of positions 2 to 5",
        (double)s.out[0]);
  scene_free(&s);
}

static void case_055_window_has_all_its_keys(void **state) {
  (void)state;
  for_each_format(window_of_four);
}

/* ---- 57: count of keys, or left and right */

static void conventions(const char *backend, attn_format format) {
  static const int32_t counts[] = {1, 2, 4, 16, 17};
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    scene s, t;
    scene_init(&s, 2, 2, 16, 16);
    scene_init(&t, 2, 2, 16, 16);
    scene_format(&s, format);
    scene_format(&t, format);
    set_window(&s, counts[i]);
    t.problem.window_left = counts[i] - 1;
    t.problem.window_right = 0;
    scene_one(&s, 3, 20);
    scene_one(&t, 3, 20);
    scene_prove(&s, backend);
    scene_prove(&t, backend);
    CHECK(same_bits(s.out, t.out, scene_out_count(&s)), "count %d and its bounds differ", counts[i]);
    for (int32_t row = 0; counts[i] == 1 && row < 3; row++) {
      CHECK(same_bits(scene_out(&s, row, 1), scene_v(&s, 0, 17 + row, 1), 16), "a window of 1 is not V[self]");
    }
    scene_free(&s);
    scene_free(&t);
  }
}

static void case_057_window_conventions_agree(void **state) {
  (void)state;
  for_each_cache(conventions);
}

/* ---- 58: the window holds in prefill, extend and decode */

static void every_path(const char *backend, attn_format format) {
  static const int32_t q_len[] = {9, 4, 1};
  for (size_t i = 0; i < 3; i++) {
    scene s, full;
    scene_init(&s, 2, 1, 16, 16);
    scene_init(&full, 2, 1, 16, 16);
    scene_format(&s, format);
    scene_format(&full, format);
    set_window(&s, 8);
    scene_one(&s, q_len[i], 9);
    scene_one(&full, q_len[i], 9);
    scene_prove(&s, backend);
    scene_prove(&full, backend);
    int64_t last = q_len[i] - 1;
    CHECK(!same_bits(scene_out(&s, last, 0), scene_out(&full, last, 0), 16), "the window was ignored, q_len %d",
          q_len[i]);
    scene_free(&s);
    scene_free(&full);
  }
}

static void case_058_window_is_never_ignored(void **state) {
  (void)state;
  for_each_cache(every_path);
}

/* ---- 59: a window without causality is what it says: symmetric, or left only */

static void non_causal_window(const char *backend, attn_format format) {
  static const int32_t right[] = {3, 0, -1};
  float first[8 * 2 * 16];
  for (size_t i = 0; i < 3; i++) {
    scene s;
    scene_init(&s, 2, 1, 16, 16);
    scene_format(&s, format);
    s.problem.causal = 0;
    s.problem.window_left = 3;
    s.problem.window_right = right[i];
    scene_one(&s, 8, 28);
    scene_prove(&s, backend);
    CHECK(i == 0 || !same_bits(first, s.out, scene_out_count(&s)), "window_right %d was ignored", right[i]);
    memcpy(first, s.out, sizeof first);
    scene_free(&s);
  }
}

static void case_059_window_with_non_causal_block(void **state) {
  (void)state;
  for_each_cache(non_causal_window);
}

/* ---- 61: lengths beside the edge of a block that is a tile */

static void at_the_edge(const char *backend, attn_format format) {
  static const int32_t sizes[] = {16, 32, 64, 128};
  static const int32_t q_len[] = {1, 5};
  for (size_t i = 0; i < 4; i++) {
    for (int32_t beyond = -1; beyond <= 1; beyond++) {
      for (size_t j = 0; j < 2; j++) {
        scene s;
        scene_init(&s, 2, 1, 32, 32);
        scene_format(&s, format);
        s.problem.block_size = sizes[i];
        scene_one(&s, q_len[j], sizes[i] + beyond);
        scene_prove(&s, backend);
        scene_free(&s);
      }
    }
  }
}

static void case_061_tail_masked_when_tile_is_block(void **state) {
  (void)state;
  for_each_cache(at_the_edge);
}

/* ---- 62: the true length, not the block's */

static void half_a_block(const char *backend, attn_format format) {
  for (int causal = 0; causal < 2; causal++) {
    scene s;
    scene_init(&s, 1, 1, 16, 16);
    scene_format(&s, format);
    s.problem.block_size = 128;
    s.problem.causal = causal;
    s.poison = SCENE_RANDOM;
    scene_one(&s, 1, 64);
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void case_062_length_not_a_multiple_of_the_block(void **state) {
  (void)state;
  for_each_cache(half_a_block);
}

/* ---- 64: several query tokens share one table row */

static void several_tokens(const char *backend, attn_format format) {
  static const int32_t q_len[] = {3, 3};
  static const int32_t kv_len[] = {18, 35};
  scene s;
  scene_init(&s, 4, 2, 32, 32);
  scene_format(&s, format);
  s.extra_columns = 0;
  scene_seqs(&s, 2, q_len, kv_len);
  scene_prove(&s, backend);
  scene_free(&s);
}

static void case_064_one_table_row_per_sequence(void **state) {
  (void)state;
  for_each_cache(several_tokens);
}

/* ---- 65: draft tokens do not see later drafts */

static void drafts(const char *backend, attn_format format) {
  for (int32_t cached = 0; cached <= 31; cached += 31) {
    scene s;
    scene_init(&s, 2, 1, 16, 16);
    scene_format(&s, format);
    scene_one(&s, 2, cached + 2);
    fill_floats(scene_v(&s, 0, cached + 1, 0), 16, 60000.0f);
    scene_prove(&s, backend);
    CHECK(fabsf(s.out[0]) < 100.0f && fabsf(*scene_out(&s, 1, 0)) > 100.0f, "row 0 saw the token after it");
    scene_free(&s);
  }
}

static void case_065_verify_step_is_causal(void **state) {
  (void)state;
  for_each_format(drafts);
}

/* ---- 67: where the pages lie does not matter */

static void placements(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 20};
  for (size_t i = 0; i < 2; i++) {
    float first[20 * 2 * 16];
    for (uint32_t placement = 0; placement < 10; placement++) {
      scene s;
      scene_init(&s, 2, 1, 16, 16);
      scene_format(&s, format);
      s.placement = placement;
      scene_one(&s, q_len[i], 200);
      scene_store(&s);
      scene_run(&s, backend);
      if (placement == 0) {
        scene_check(&s);
        memcpy(first, s.out, (size_t)scene_out_count(&s) * sizeof(float));
      }
      CHECK(same_bits(first, s.out, scene_out_count(&s)), "placement %u gives other bits", placement);
      scene_free(&s);
    }
  }
}

static void case_067_placement_of_pages_does_not_matter(void **state) {
  (void)state;
  for_each_cache(placements);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_055_window_has_all_its_keys),
      cmocka_unit_test(case_057_window_conventions_agree),
      cmocka_unit_test(case_058_window_is_never_ignored),
      cmocka_unit_test(case_059_window_with_non_causal_block),
      cmocka_unit_test(case_061_tail_masked_when_tile_is_block),
      cmocka_unit_test(case_062_length_not_a_multiple_of_the_block),
      cmocka_unit_test(case_064_one_table_row_per_sequence),
      cmocka_unit_test(case_065_verify_step_is_causal),
      cmocka_unit_test(case_067_placement_of_pages_does_not_matter),
  };
  return cmocka_run_group_tests_name("cases_mask", tests, NULL, NULL);
}
