/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 20 to 29: empty states, length 0, rows that see nothing. */
#include <math.h>
#include <string.h>

#include "merging.h"
#include "scene.h"

static void check_empty_row(scene *s, int64_t token) {
  for (int32_t h = 0; h < s->problem.num_q_heads; h++) {
    const float *out = scene_out(s, token, h);
    for (int32_t d = 0; d < s->problem.v_head_size; d++) {
      CHECK(out[d] == 0, "token %d: out %g of a row that sees nothing", (int)token, (double)out[d]);
    }
    float lse = *scene_lse(s, token, h);
    CHECK(isinf(lse) && lse < 0, "token %d: lse %g of a row that sees nothing", (int)token, (double)lse);
  }
}

/* ---- 20: merging empty states */

static void merge_empty(const char *backend, attn_format format) {
  for (int32_t parts = 1; parts <= 5; parts++) {
    for (int form = 0; form < 3; form++) {
      merging m;
      merging_init(&m, backend, parts, 2, 3, 64, format_dtype(format));
      for (int32_t r = 0; r < parts; r++) {
        memset(m.out[r], form == 2 ? 0xFF : 0, (size_t)(2 * 3 * 64) * sizeof(float));
        for (int i = 0; i < 6; i++) {
          m.lse[r][i] = form == 1 && r % 2 == 1 ? INFINITY : -INFINITY;
        }
      }
      merging_prove(&m);
      m.result_dtype = m.dtype;
      m.args.out = m.outs[0]; /* in place */
      m.args.lse = m.lses[0];
      EXPECT_OK(merging_call(&m, &why));
      merging_check(&m);
      merging_free(&m);
    }
  }
}

static void case_020_merging_two_empty_states(void **state) {
  (void)state;
  for_each_format(merge_empty);
}

/* ---- 22: a later chunk of context is empty for one request */

static void empty_chunk(const char *backend, attn_format format) {
  static const int32_t ones[] = {1, 1};
  static const int32_t first_len[] = {8, 32};
  static const int32_t later_len[] = {0, 8};
  static const int32_t whole_len[] = {8, 40};
  enum { H = 2, D = 32, ROW = H * D };
  scene first, later, whole;
  scene *all[] = {&first, &later, &whole};
  const int32_t *lens[] = {first_len, later_len, whole_len};
  merging m;
  for (int i = 0; i < 3; i++) {
    scene_init(all[i], H, H, D, D);
    scene_format(all[i], format);
    all[i]->problem.causal = 0;
    scene_seqs(all[i], 2, ones, lens[i]);
  }
  memcpy(whole.k[1], first.k[1], 32 * ROW * sizeof(float));
  memcpy(whole.v[1], first.v[1], 32 * ROW * sizeof(float));
  memcpy(whole.k[1] + 32 * ROW, later.k[1], 8 * ROW * sizeof(float));
  memcpy(whole.v[1] + 32 * ROW, later.v[1], 8 * ROW * sizeof(float));
  for (int i = 0; i < 3; i++) {
    scene_prove(all[i], backend);
  }
  check_empty_row(&later, 0);
  merging_init(&m, backend, 2, 2, H, D, ATTN_DTYPE_FLOAT32);
  for (int i = 0; i < 2; i++) {
    memcpy(m.out[i], all[i]->out, 2 * ROW * sizeof(float));
    memcpy(m.lse[i], all[i]->lse, 2 * H * sizeof(float));
  }
  merging_prove(&m);
  CHECK(same_bits(m.result_out, first.out, ROW) && same_bits(m.result_lse, first.lse, H),
        "an empty chunk changed request 0");
  for (int i = ROW; i < 2 * ROW; i++) {
    CHECK(fabsf(m.result_out[i] - whole.out[i]) <= 0.01f, "request 1 differs from one pass");
  }
  for (int i = 0; i < 3; i++) {
    scene_free(all[i]);
  }
  merging_free(&m);
}

static void case_022_later_chunk_empty_for_a_request(void **state) {
  (void)state;
  for_each_format(empty_chunk);
}

/* ---- 23: a row of length 0 is written */

static void length_zero(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 1};
  static const int32_t kv_len[] = {0, 3};
  scene s;
  scene_init(&s, 2, 1, 32, 32);
  scene_format(&s, format);
  scene_seqs(&s, 2, q_len, kv_len);
  scene_prove(&s, backend);
  check_empty_row(&s, 0);
  scene_free(&s);
}

static void case_023_row_of_length_0_is_written(void **state) {
  (void)state;
  for_each_cache(length_zero);
}

/* ---- 24: no 0/0 after the splits of a row of length 0 */

static void zero_in_splits(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 1, 1, 1};
  static const int32_t kv_len[] = {5, 7, 9, 0};
  for (int32_t splits = 1; splits <= 4; splits += 3) {
    scene four, three;
    scene_init(&four, 4, 2, 32, 32);
    scene_init(&three, 4, 2, 32, 32);
    scene_format(&four, format);
    scene_format(&three, format);
    four.options.num_splits = splits;
    three.options.num_splits = splits;
    scene_seqs(&four, 4, q_len, kv_len);
    scene_seqs(&three, 3, q_len, kv_len);
    memcpy(three.q, four.q, (size_t)(3 * 4 * 32) * sizeof(float));
    scene_prove(&four, backend);
    scene_prove(&three, backend);
    check_empty_row(&four, 3);
    CHECK(same_bits(four.out, three.out, scene_out_count(&three)), "rows 0 to 2 changed beside a row of length 0");
    CHECK(same_bits(four.lse, three.lse, scene_lse_count(&three)), "lse 0 to 2 changed beside a row of length 0");
    scene_free(&four);
    scene_free(&three);
  }
}

static void case_024_zero_over_zero_after_splits(void **state) {
  (void)state;
  for_each_cache(zero_in_splits);
}

/* ---- 26: the leading rows see nothing, with sinks */

static void leading_rows(const char *backend, attn_format format) {
  for (int form = 0; form < 2; form++) {
    scene s;
    scene_init(&s, 1, 1, 512, 512);
    scene_format(&s, format);
    scene_one(&s, 16, form == 0 ? 2 : 16);
    scene_sinks(&s, 0.5f);
    if (form == 1) {
      scene_bias(&s, 1);
      fill_floats(s.bias, 14 * 16, -INFINITY);
    }
    scene_prove(&s, backend);
    for (int64_t row = 0; row < 14; row++) {
      check_empty_row(&s, row);
    }
    CHECK(isfinite(*scene_lse(&s, 14, 0)) && isfinite(*scene_lse(&s, 15, 0)), "rows 14 and 15 see keys");
    scene_free(&s);
  }
}

static void case_026_leading_rows_masked_with_sinks(void **state) {
  (void)state;
  for_each_cache(leading_rows);
}

/* ---- 28: a row that sees nothing is not the mean of V */

static void more_queries_than_keys(const char *backend, attn_format format) {
  scene s;
  scene_init(&s, 2, 1, 16, 16);
  scene_format(&s, format);
  scene_one(&s, 6, 4);
  scene_prove(&s, backend);
  check_empty_row(&s, 0);
  check_empty_row(&s, 1);
  CHECK(isfinite(*scene_lse(&s, 2, 0)), "row 2 sees one key");
  scene_free(&s);
}

static void case_028_masked_row_is_not_the_mean_of_v(void **state) {
  (void)state;
  for_each_cache(more_queries_than_keys);
}

/* ---- 29: a query of length 0 in a packed batch */

static void zero_query(const char *backend, attn_format format) {
  static const int32_t q_len[] = {0, 1, 0, 0, 2, 0};
  static const int32_t kv_len[] = {3, 5, 0, 7, 20, 1};
  for (int32_t n = 2; n <= 6; n += 2) {
    scene s;
    scene_init(&s, 4, 2, 16, 16);
    scene_format(&s, format);
    scene_seqs(&s, n, q_len, kv_len);
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void case_029_query_of_length_0_in_a_batch(void **state) {
  (void)state;
  for_each_cache(zero_query);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_020_merging_two_empty_states),
      cmocka_unit_test(case_022_later_chunk_empty_for_a_request),
      cmocka_unit_test(case_023_row_of_length_0_is_written),
      cmocka_unit_test(case_024_zero_over_zero_after_splits),
      cmocka_unit_test(case_026_leading_rows_masked_with_sinks),
      cmocka_unit_test(case_028_masked_row_is_not_the_mean_of_v),
      cmocka_unit_test(case_029_query_of_length_0_in_a_batch),
  };
  return cmocka_run_group_tests_name("cases_empty", tests, NULL, NULL);
}
