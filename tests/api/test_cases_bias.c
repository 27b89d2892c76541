/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 68 to 74: soft cap, ALiBi, the order of biases. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

/* ---- 68: a tanh that cannot overflow */

static void huge_scores(const char *backend, attn_format format) {
  static const float keys[] = {5000.0f, -10000.0f};
  for (int32_t count = 1; count <= 2; count++) {
    for (int which = 0; which < 2; which++) {
      scene s;
      scene_init(&s, 1, 1, 1, 4);
      scene_format(&s, format);
      s.problem.scale = 1.0f;
      s.problem.softcap = 50.0f;
      scene_one(&s, 1, count);
      s.q[0] = 1.0f;
      for (int32_t pos = 0; pos < count; pos++) {
        *scene_k(&s, 0, pos, 0) = keys[(pos + which) % 2];
      }
      scene_prove(&s, backend);
      float right = count == 2 || which == 0 ? 50.0f : -50.0f;
      CHECK(fabsf(s.lse[0] - right) < 1e-3f, "lse %g where %g is right", (double)s.lse[0], (double)right);
      CHECK(same_bits(s.out, scene_v(&s, 0, count == 2 ? which : 0, 0), 4), "out is not V of the larger score");
      scene_free(&s);
    }
  }
}

static void case_068_softcap_of_huge_scores(void **state) {
  (void)state;
  for_each_format(huge_scores);
}

/* ---- 70: the cap holds on every path (the quantised caches are not built) */

static void cap_on_every_path(const char *backend, attn_format format) {
  static const float caps[] = {0.0f, 5.0f, 50.0f};
  static const int32_t paths[][3] = {{20, 20, 0}, {4, 20, 0}, {1, 300, 0}, {1, 300, 4}}; /* q_len, kv_len, splits */
  for (size_t path = 0; path < 4; path++) {
    float seen[3][16];
    for (size_t c = 0; c < 3; c++) {
      scene s;
      scene_init(&s, 2, 1, 16, 16);
      scene_format(&s, format);
      s.problem.softcap = caps[c];
      s.problem.scale = 2.0f;
      s.options.num_splits = paths[path][2];
      scene_one(&s, paths[path][0], paths[path][1]);
      scene_prove(&s, backend);
      memcpy(seen[c], scene_out(&s, s.tokens - 1, 1), sizeof seen[c]);
      scene_free(&s);
    }
    CHECK(!same_bits(seen[0], seen[1], 16) && !same_bits(seen[0], seen[2], 16) && !same_bits(seen[1], seen[2], 16),
          "a cap was ignored on path %d", (int)path);
  }
}

static void case_070_softcap_on_every_path(void **state) {
  (void)state;
  for_each_cache(cap_on_every_path);
}

/* ---- 72: ALiBi is -slope * (q - k) in fp32 */

static void alibi_distance(const char *backend, attn_format format) {
  scene s;
  scene_init(&s, 1, 1, 4, 4);
  scene_format(&s, format);
  scene_one(&s, 1, 3);
  scene_alibi(&s, ATTN_ALIBI_LINEAR);
  s.slopes[0] = 0.5f;
  fill_floats(s.q, 4, 0.0f);
  scene_prove(&s, backend);
  double right = log(exp(-1.0) + exp(-0.5) + 1.0);
  CHECK(fabs((double)s.lse[0] - right) < 1e-5, "lse %g where %g is right", (double)s.lse[0], right);
  scene_free(&s);
  for (int form = ATTN_ALIBI_LINEAR; form <= ATTN_ALIBI_SQRT; form++) {
    static const float slopes[] = {0.5f, 0.0001220703125f};
    scene_init(&s, 2, 1, 4, 4);
    scene_format(&s, format);
    scene_one(&s, 2, 100000);
    scene_alibi(&s, (attn_alibi)form);
    memcpy(s.slopes, slopes, sizeof slopes);
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void case_072_alibi_distance_origin(void **state) {
  (void)state;
  for_each_format(alibi_distance);
}

/* ---- 73: published slopes for any head count */

static void check_slopes(int32_t heads, const double *exponents) {
  float slopes[16];
  EXPECT_OK(attn_alibi_slopes(heads, slopes, &why));
  for (int32_t i = 0; i < heads; i++) {
    double right = pow(2.0, -exponents[i]);
    CHECK(fabs((double)slopes[i] - right) <= 1e-7 * right, "slope %d of %d is %.9g, published %.9g", i, heads,
          (double)slopes[i], right);
  }
}

static void case_073_alibi_slopes_for_any_head_count(void **state) {
  static const double of_12[] = {1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5};
  static const double of_3[] = {4, 8, 2};
  (void)state;
  check_slopes(12, of_12);
  check_slopes(3, of_3);
}

/* ---- 74: scale, cap, bias, mask, softmax */

static void cap_then_bias(const char *backend, attn_format format) {
  scene s;
  scene_init(&s, 1, 1, 1, 4);
  scene_format(&s, format);
  s.problem.scale = 1.0f;
  s.problem.softcap = 5.0f;
  scene_one(&s, 1, 2);
  scene_bias(&s, 1);
  s.bias[0] = 3.0f;
  s.bias[1] = 0.0f;
  s.q[0] = 2.0f;
  *scene_k(&s, 0, 0, 0) = 4.0f;
  *scene_k(&s, 0, 1, 0) = -1.0f;
  scene_prove(&s, backend);
  double right = log(exp(5 * tanh(8.0 / 5) + 3) + exp(5 * tanh(-2.0 / 5)));
  CHECK(fabs((double)s.lse[0] - right) < 1e-4, "lse %g where %g is right", (double)s.lse[0], right);
  scene_free(&s);
}

/* Everything at once, per head and shared, in each path. */
static void all_biases(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 3, 21};
  static const int32_t kv_len[] = {50, 33, 21};
  for (int32_t heads = 1; heads <= 4; heads += 3) {
    scene s;
    scene_init(&s, 4, 2, 16, 16);
    scene_format(&s, format);
    s.problem.softcap = 5.0f;
    s.problem.window_left = 20;
    scene_seqs(&s, 3, q_len, kv_len);
    scene_alibi(&s, heads == 1 ? ATTN_ALIBI_LINEAR : ATTN_ALIBI_SQRT);
    scene_bias(&s, heads);
    scene_sinks(&s, 0.25f);
    s.bias[7] = -INFINITY;
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void case_074_order_of_cap_and_biases(void **state) {
  (void)state;
  for_each_cache(cap_then_bias);
  for_each_cache(all_biases);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_068_softcap_of_huge_scores),  cmocka_unit_test(case_070_softcap_on_every_path),
      cmocka_unit_test(case_072_alibi_distance_origin),   cmocka_unit_test(case_073_alibi_slopes_for_any_head_count),
      cmocka_unit_test(case_074_order_of_cap_and_biases),
  };
  return cmocka_run_group_tests_name("cases_bias", tests, NULL, NULL);
}
