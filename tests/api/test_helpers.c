/* SPDX-License-Identifier: Apache-2.0 */
/* problem.h, the helpers: ALiBi slopes, window bounds, the softmax scale. */
#include <math.h>
#include <string.h>

#include "harness.h"

static void check_slopes(int32_t heads, const float *right) {
  float slopes[64];
  for (int32_t i = 0; i < 64; i++) {
    slopes[i] = -7.0f;
  }
  EXPECT_OK(attn_alibi_slopes(heads, slopes, &why));
  for (int32_t i = 0; i < heads; i++) {
    CHECK(fabsf(slopes[i] - right[i]) <= 1e-7f * right[i], "slope %d of %d heads is %.9g, published %.9g", i, heads,
          (double)slopes[i], (double)right[i]);
  }
  CHECK(slopes[heads] == -7.0f, "a slope beyond the heads was written");
}

static void published_slopes(void **state) {
  static const float of_1[] = {0.00390625f};
  static const float of_2[] = {0.0625f, 0.00390625f};
  static const float of_3[] = {0.0625f, 0.00390625f, 0.25f};
  static const float of_8[] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f};
  static const float of_12[] = {0.5f,       0.25f,       0.125f,      0.0625f,      0.03125f,    0.015625f,
                                0.0078125f, 0.00390625f, 0.70710678f, 0.353553391f, 0.17677670f, 0.088388348f};
  (void)state;
  check_slopes(1, of_1);
  check_slopes(2, of_2);
  check_slopes(3, of_3);
  check_slopes(8, of_8);
  check_slopes(12, of_12);
}

/* Every count: the first n of the nearest power of two below, then every other slope of twice as many heads. */
static void slopes_of_every_count(void **state) {
  (void)state;
  for (int32_t heads = 1; heads <= 63; heads++) {
    float right[64];
    int32_t n = 1;
    while (2 * n <= heads) {
      n *= 2;
    }
    for (int32_t i = 0; i < heads; i++) {
      double exponent = i < n ? 8.0 * (i + 1) / n : 8.0 * (2 * (i - n) + 1) / (2 * n);
      right[i] = (float)pow(2.0, -exponent);
    }
    check_slopes(heads, right);
  }
}

static void slopes_refused(void **state) {
  float slopes[2] = {5, 5};
  (void)state;
  EXPECT_STATUS(attn_alibi_slopes(0, slopes, &why), ATTN_E_RANGE, "num_heads");
  EXPECT_STATUS(attn_alibi_slopes(-3, slopes, &why), ATTN_E_RANGE, "num_heads");
  EXPECT_STATUS(attn_alibi_slopes(2, NULL, &why), ATTN_E_NULL, "slopes");
  assert_true(slopes[0] == 5 && slopes[1] == 5);
}

static void window_of_a_count(void **state) {
  static const int32_t counts[] = {1, 2, 4096, INT32_MAX};
  int32_t left = 77, right = 88;
  (void)state;
  for (size_t i = 0; i < 4; i++) {
    EXPECT_OK(attn_window_from_count(counts[i], &left, &right, &why));
    assert_int_equal(left, counts[i] - 1);
    assert_int_equal(right, 0);
  }
  left = 77;
  right = 88;
  EXPECT_STATUS(attn_window_from_count(0, &left, &right, &why), ATTN_E_RANGE, "0");
  EXPECT_STATUS(attn_window_from_count(-1, &left, &right, &why), ATTN_E_RANGE, "-1");
  EXPECT_STATUS(attn_window_from_count(4, NULL, &right, &why), ATTN_E_NULL, "window_left");
  EXPECT_STATUS(attn_window_from_count(4, &left, NULL, &why), ATTN_E_NULL, "window_right");
  assert_true(left == 77 && right == 88);
}

static void softmax_scale(void **state) {
  (void)state;
  for (int32_t d = 1; d <= 1024; d++) {
    float right = (float)(1.0 / sqrt((double)d));
    CHECK(attn_softmax_scale(d) == right, "scale of %d is %.9g", d, (double)attn_softmax_scale(d));
  }
  assert_true(attn_softmax_scale(0) == 0.0f && attn_softmax_scale(-4) == 0.0f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(published_slopes),  cmocka_unit_test(slopes_of_every_count), cmocka_unit_test(slopes_refused),
      cmocka_unit_test(window_of_a_count), cmocka_unit_test(softmax_scale),
  };
  return cmocka_run_group_tests_name("helpers", tests, NULL, NULL);
}
