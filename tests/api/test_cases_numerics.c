/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 118 to 125: 16-bit ranges, uninitialised registers, NaN in one row, rows beside each other. */
#include <math.h>
#include <string.h>

#include "scene.h"

/* ---- 118: sums of weights times V are wide */

static void large_values(const char *backend, attn_format format) {
  for (int narrow = 0; narrow < 2; narrow++) {
    scene s;
    scene_init(&s, 1, 1, 16, 16);
    scene_format(&s, format);
    s.problem.out_dtype = narrow ? format_dtype(format) : ATTN_DTYPE_FLOAT32;
    scene_one(&s, 1, 64);
    fill_floats(s.q, 16, 1.0f);
    fill_floats(s.k[0], 64 * 16, 0.25f);
    fill_floats(s.v[0], 64 * 16, 60000.0f);
    scene_prove(&s, backend);
    for (int d = 0; narrow && d < 16; d++) {
      CHECK(s.out[d] == s.v[0][0], "element %d is %g where %g is right", d, (double)s.out[d], (double)s.v[0][0]);
    }
    scene_free(&s);
  }
}

static void case_118_sum_of_v_beyond_16_bits(void **state) {
  (void)state;
  for_each_format(large_values);
}

/* ---- 120: products of q and k are wide */

static void large_products(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 2};
  for (size_t i = 0; i < 2; i++) {
    scene s;
    scene_init(&s, 1, 1, 128, 128);
    scene_format(&s, format);
    scene_one(&s, q_len[i], 2);
    fill_floats(s.q, s.tokens * 128, 30.0f);
    fill_floats(s.k[0], 2 * 128, 30.0f);
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void case_120_qk_product_beyond_16_bits(void **state) {
  (void)state;
  for_each_cache(large_products);
}

/* ---- 122: nothing is read from a stack that nobody wrote */

static int dirty_stack(int value) {
  volatile unsigned char bytes[200000];
  for (size_t i = 0; i < sizeof bytes; i++) {
    bytes[i] = (unsigned char)value;
  }
  return bytes[(size_t)value * 7];
}

static void poisoned_stack(const char *backend, attn_format format) {
  static const int values[] = {0xFF, 0x00, 0x7F, 0x3C};
  static const int32_t q_len[] = {1, 1, 19};
  static const int32_t kv_len[] = {1, 130, 19};
  float first[21 * 4 * 33];
  scene s;
  scene_init(&s, 4, 2, 33, 33);
  scene_format(&s, format);
  scene_seqs(&s, 3, q_len, kv_len);
  scene_store(&s);
  scene_open(&s, backend);
  for (size_t i = 0; i < 4; i++) {
    CHECK(dirty_stack(values[i]) == values[i], "the stack does not hold what was written");
    EXPECT_OK(scene_step(&s, &why));
    CHECK(i == 0 || same_bits(first, s.out, scene_out_count(&s)), "stack filled with %02x: other bits", values[i]);
    memcpy(first, s.out, sizeof first);
  }
  scene_check(&s);
  scene_close(&s);
  scene_free(&s);
}

static void case_122_poisoned_stack(void **state) {
  (void)state;
  for_each_cache(poisoned_stack);
}

/* ---- 124: a NaN row of q stays in its row */

static void nan_row(const char *backend, attn_format format) {
  static const int32_t decode[] = {1, 1, 1};
  static const int32_t extend[] = {4, 3, 5};
  static const int32_t kv_len[] = {40, 50, 33};
  for (int path = 0; path < 2; path++) {
    scene clean, dirty;
    scene_init(&clean, 4, 2, 32, 32);
    scene_init(&dirty, 4, 2, 32, 32);
    scene_format(&clean, format);
    scene_format(&dirty, format);
    scene_seqs(&clean, 3, path == 0 ? decode : extend, kv_len);
    scene_seqs(&dirty, 3, path == 0 ? decode : extend, kv_len);
    int64_t token = dirty.starts[1] + (path == 0 ? 0 : 1);
    fill_floats(scene_q(&dirty, token, 0), 4 * 32, NAN);
    scene_prove(&clean, backend);
    scene_prove(&dirty, backend);
    for (int64_t t = 0; t < clean.tokens; t++) {
      if (t != token) {
        CHECK(same_bits(scene_out(&clean, t, 0), scene_out(&dirty, t, 0), 4 * 32), "row %d changed", (int)t);
        CHECK(same_bits(scene_lse(&clean, t, 0), scene_lse(&dirty, t, 0), 4), "lse of row %d changed", (int)t);
      }
    }
    for (int i = 0; i < 4 * 32; i++) {
      CHECK(isnan(scene_out(&dirty, token, 0)[i]), "the NaN row has a number");
    }
    CHECK(isnan(*scene_lse(&dirty, token, 0)), "the NaN row's lse is a number");
    scene_free(&clean);
    scene_free(&dirty);
  }
}

static void case_124_nan_stays_in_its_row(void **state) {
  (void)state;
  for_each_cache(nan_row);
}

/* ---- 125: two sequences together, or each alone (batch-invariant; instruction levels are not built) */

static void together_or_alone(const char *backend, attn_format format) {
  static const int32_t q_lens[][2] = {{1, 1}, {9, 1}, {20, 33}};
  static const int32_t kv_len[] = {37, 600};
  for (size_t i = 0; i < 3; i++) {
    scene both;
    scene_init(&both, 4, 2, 24, 24);
    scene_format(&both, format);
    both.problem.batch_invariant = 1;
    scene_seqs(&both, 2, q_lens[i], kv_len);
    scene_prove(&both, backend);
    for (int32_t seq = 0; seq < 2; seq++) {
      scene one;
      scene_init(&one, 4, 2, 24, 24);
      scene_format(&one, format);
      one.problem.batch_invariant = 1;
      scene_one(&one, q_lens[i][seq], kv_len[seq]);
      memcpy(one.q, scene_q(&both, both.starts[seq], 0), (size_t)(one.tokens * 4 * 24) * sizeof(float));
      memcpy(one.k[0], both.k[seq], (size_t)kv_len[seq] * 2 * 24 * sizeof(float));
      memcpy(one.v[0], both.v[seq], (size_t)kv_len[seq] * 2 * 24 * sizeof(float));
      scene_store(&one);
      scene_run(&one, backend);
      CHECK(same_bits(one.out, scene_out(&both, both.starts[seq], 0), scene_out_count(&one)) &&
                same_bits(one.lse, scene_lse(&both, both.starts[seq], 0), scene_lse_count(&one)),
            "sequence %d alone gives other bits", seq);
      scene_free(&one);
    }
    scene_free(&both);
  }
}

static void case_125_batch_of_two_against_two_of_one(void **state) {
  (void)state;
  for_each_format(together_or_alone);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_118_sum_of_v_beyond_16_bits),
      cmocka_unit_test(case_120_qk_product_beyond_16_bits),
      cmocka_unit_test(case_122_poisoned_stack),
      cmocka_unit_test(case_124_nan_stays_in_its_row),
      cmocka_unit_test(case_125_batch_of_two_against_two_of_one),
  };
  return cmocka_run_group_tests_name("cases_numerics", tests, NULL, NULL);
}
