/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 43 to 49: the base, the layout, the width and the range of LSE. */
#include <math.h>
#include <string.h>

#include "merging.h"
#include "scene.h"

/* Two parts of one row with outs 0 and 1: the result is the second part's weight. */
static void two_parts(merging *m, const char *backend, attn_format format, float lse_0, float lse_1) {
  merging_init(m, backend, 2, 1, 1, 4, format_dtype(format));
  fill_floats(m->out[0], 4, 0.0f);
  fill_floats(m->out[1], 4, 1.0f);
  m->lse[0][0] = lse_0;
  m->lse[1][0] = lse_1;
}

static void check_weight(merging *m, double weight, double lse) {
  merging_prove(m);
  CHECK(fabs((double)m->result_out[0] - weight) < 5e-5, "weight %g, right is %g", (double)m->result_out[0], weight);
  CHECK(fabs((double)m->result_lse[0] - lse) < 1e-6 * (1 + fabs(lse)), "lse %g, right is %g", (double)m->result_lse[0],
        lse);
}

/* ---- 43: base-2 and natural */

static void bases(const char *backend, attn_format format) {
  merging m;
  two_parts(&m, backend, format, 0.0f, 1.0f);
  check_weight(&m, 0.731058579, 1.313261688);
  merging_free(&m);
  two_parts(&m, backend, format, 0.0f, 1.44269504f);
  m.args.lse_base = ATTN_LSE_BASE_2;
  check_weight(&m, 0.731058579, 1.313261688);
  merging_free(&m);
  two_parts(&m, backend, format, 0.0f, 1.0f);
  m.args.lse_base = ATTN_LSE_BASE_2;
  check_weight(&m, 2.0 / 3.0, log(3.0));
  merging_free(&m);
}

static void case_043_base_2_and_natural_lse(void **state) {
  (void)state;
  for_each_format(bases);
}

/* ---- 44: the softmax has temperature 1 */

static void temperature(const char *backend, attn_format format) {
  scene s;
  scene_init(&s, 1, 1, 4, 4);
  scene_format(&s, format);
  s.problem.scale = 1.0f;
  scene_one(&s, 1, 2);
  fill_floats(s.q, 4, 0.5f);
  fill_floats(scene_k(&s, 0, 0, 0), 4, 0.0f);
  fill_floats(scene_k(&s, 0, 1, 0), 4, 0.5f);
  fill_floats(scene_v(&s, 0, 0, 0), 4, 0.0f);
  fill_floats(scene_v(&s, 0, 1, 0), 4, 1.0f);
  scene_prove(&s, backend);
  CHECK(fabsf(s.out[0] - 0.7310586f) < 1e-3f, "weight %g where 0.7311 is right", (double)s.out[0]);
  CHECK(fabsf(s.lse[0] - 1.3132617f) < 1e-5f, "lse %g where 1.31326 is right", (double)s.lse[0]);
  scene_free(&s);
}

static void case_044_natural_exponentials(void **state) {
  (void)state;
  for_each_format(temperature);
}

/* ---- 45: tokens by heads, or heads by tokens */

static void lse_layouts(const char *backend, attn_format format) {
  static const int32_t shapes[][2] = {{3, 2}, {4, 4}, {2, 3}};
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    for (int transposed = 0; transposed < 2; transposed++) {
      scene s;
      merging m;
      scene_init(&s, shapes[i][1], 1, 16, 16);
      scene_format(&s, format);
      s.lse_transposed = transposed;
      scene_one(&s, shapes[i][0], 20);
      scene_prove(&s, backend);
      scene_free(&s);
      merging_init(&m, backend, 3, shapes[i][0], shapes[i][1], 8, format_dtype(format));
      m.lse_transposed = transposed;
      merging_prove(&m);
      merging_free(&m);
    }
  }
}

static void case_045_lse_layout_is_explicit(void **state) {
  (void)state;
  for_each_format(lse_layouts);
}

/* ---- 47: LSE is fp32 */

static void wide_lse(const char *backend, attn_format format) {
  merging m;
  scene s;
  two_parts(&m, backend, format, 300.0f, 300.9f);
  check_weight(&m, 0.71094950, 301.2411);
  merging_free(&m);
  two_parts(&m, backend, format, 300.0f, 300.9f);
  merging_store(&m);
  m.t_lse[0].t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_FLOAT16);
  EXPECT_STATUS(merging_call(&m, &why), ATTN_E_DTYPE, "lse");
  merging_free(&m);
  scene_init(&s, 1, 1, 16, 16);
  scene_format(&s, format);
  scene_one(&s, 1, 3);
  scene_store(&s);
  scene_open(&s, backend);
  s.t_lse.t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_BFLOAT16);
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_DTYPE, "lse");
  scene_close(&s);
  scene_free(&s);
}

static void case_047_lse_is_always_float32(void **state) {
  (void)state;
  for_each_format(wide_lse);
}

/* ---- 49: no raw exponentials */

static void far_lse(const char *backend, attn_format format) {
  static const float lses[][2] = {{1000, 1001}, {-1001, -1000}, {-1e30f, 5}, {80000, 80001}};
  for (size_t i = 0; i < sizeof lses / sizeof lses[0]; i++) {
    merging m;
    two_parts(&m, backend, format, lses[i][0], lses[i][1]);
    check_weight(&m, i == 2 ? 1.0 : 0.731058579, (double)lses[i][1] + (i == 2 ? 0.0 : 0.313261688));
    merging_free(&m);
  }
}

static void case_049_max_shifted_merge(void **state) {
  (void)state;
  for_each_format(far_lse);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_043_base_2_and_natural_lse), cmocka_unit_test(case_044_natural_exponentials),
      cmocka_unit_test(case_045_lse_layout_is_explicit), cmocka_unit_test(case_047_lse_is_always_float32),
      cmocka_unit_test(case_049_max_shifted_merge),
  };
  return cmocka_run_group_tests_name("cases_lse", tests, NULL, NULL);
}
