/* SPDX-License-Identifier: Apache-2.0 */
/* problem.h: the initialiser, each field against its values and against the others. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static attn_problem valid(void) {
  attn_problem p = ATTN_PROBLEM_INIT;
  p.num_q_heads = 4;
  p.num_kv_heads = 2;
  p.qk_head_size = 16;
  p.block_size = 16;
  p.scale = 0.25f;
  return p;
}

static void the_initialiser_sets_what_it_says(void **state) {
  attn_problem p = ATTN_PROBLEM_INIT;
  attn_problem rest;
  (void)state;
  assert_int_equal(p.size, sizeof p);
  assert_int_equal(p.causal, 1);
  assert_int_equal(p.window_left, -1);
  assert_int_equal(p.window_right, -1);
  p.size = 0;
  p.causal = p.window_left = p.window_right = 0;
  memset(&rest, 0, sizeof rest);
  assert_memory_equal(&p, &rest, sizeof rest);
}

static void valid_problems_pass(void **state) {
  (void)state;
  attn_problem p = valid();
  EXPECT_OK(attn_problem_check(&p, &why));
  p.block_size = 0;
  p.window_left = 0;
  p.window_right = 0;
  p.softcap = 30;
  p.alibi = ATTN_ALIBI_SQRT;
  p.has_sinks = p.has_bias = p.has_prefix_ranges = p.has_causal_per_seq = p.wants_lse = p.batch_invariant = 1;
  p.prefix_clamp = 1;
  p.chunk_size = 1;
  p.chunk_lookback = 3;
  p.context_parallel = 1;
  p.q_dtype = ATTN_DTYPE_BFLOAT16;
  p.out_dtype = ATTN_DTYPE_FLOAT16;
  p.k_format = ATTN_FORMAT_FLOAT32;
  p.v_format = ATTN_FORMAT_FLOAT16;
  p.layout = ATTN_LAYOUT_HND;
  p.num_q_heads = 14;
  p.num_kv_heads = 7;
  p.qk_head_size = 577;
  p.v_head_size = 1;
  EXPECT_OK(attn_problem_check(&p, &why));
  p = valid();
  p.kv_source = ATTN_KV_DIRECT;
  p.block_size = 0;
  p.kv_dtype = ATTN_DTYPE_BFLOAT16;
  EXPECT_OK(attn_problem_check(&p, &why));
}

/* The int32 fields that have one range, with values on the wrong side of it. */
static void each_number_outside_its_range(void **state) {
#define FIELD(name, status, ...)                                                                                       \
  {                                                                                                                    \
#name, offsetof(attn_problem, name), status, {                                                                     \
      __VA_ARGS__                                                                                                      \
    }                                                                                                                  \
  }
  static const struct {
    const char *name;
    size_t offset;
    attn_status status;
    int32_t values[3]; /* a 0 at the end is not tried */
  } rows[] = {
      FIELD(num_q_heads, ATTN_E_RANGE, -4, INT32_MIN),
      FIELD(num_kv_heads, ATTN_E_RANGE, -2, 3, INT32_MIN),
      FIELD(qk_head_size, ATTN_E_RANGE, -1, INT32_MIN),
      FIELD(v_head_size, ATTN_E_RANGE, -1, INT32_MIN),
      FIELD(block_size, ATTN_E_RANGE, -1, INT32_MIN),
      FIELD(causal, ATTN_E_RANGE, 2, -1),
      FIELD(window_left, ATTN_E_RANGE, -2, INT32_MIN),
      FIELD(window_right, ATTN_E_RANGE, -2, INT32_MIN),
      FIELD(chunk_size, ATTN_E_RANGE, -1, INT32_MIN),
      FIELD(chunk_lookback, ATTN_E_RANGE, 1, -1), /* no chunk_size */
      FIELD(prefix_clamp, ATTN_E_RANGE, 1, 2),    /* no prefix ranges */
      FIELD(alibi, ATTN_E_RANGE, 3, -1),
      FIELD(layout, ATTN_E_RANGE, 2, -1),
      FIELD(kv_source, ATTN_E_RANGE, 2, -1),
      FIELD(has_sinks, ATTN_E_RANGE, 2, -1),
      FIELD(has_bias, ATTN_E_RANGE, 2, -1),
      FIELD(has_prefix_ranges, ATTN_E_RANGE, 2, -1),
      FIELD(has_causal_per_seq, ATTN_E_RANGE, 2, -1),
      FIELD(wants_lse, ATTN_E_RANGE, 2, -1),
      FIELD(batch_invariant, ATTN_E_RANGE, 2, -1),
      FIELD(context_parallel, ATTN_E_RANGE, -1, INT32_MIN),
      FIELD(context_parallel, ATTN_E_UNSUPPORTED, 2, 8),
      FIELD(cascade, ATTN_E_UNSUPPORTED, 1),
      FIELD(output_block, ATTN_E_RANGE, 64, 128), /* no fp8 output */
      FIELD(output_block, ATTN_E_RANGE, 32, -1),
      FIELD(kv_lora_rank, ATTN_E_RANGE, -1, INT32_MIN),
      FIELD(qk_rope_head_dim, ATTN_E_RANGE, 64, -1), /* no kv_lora_rank */
      FIELD(qk_nope_head_dim, ATTN_E_RANGE, 64, -1),
      FIELD(mla_v_head_dim, ATTN_E_RANGE, 64, -1),
      FIELD(rotary_dtype, ATTN_E_RANGE, ATTN_DTYPE_BFLOAT16, -1),
      FIELD(mla_form, ATTN_E_RANGE, ATTN_MLA_LAYER, -1),
      FIELD(context_chunk, ATTN_E_RANGE, 64, -1),
      FIELD(q_dtype, ATTN_E_DTYPE, ATTN_DTYPE_FP8_E5M2, ATTN_DTYPE_UINT8, 99),
      FIELD(out_dtype, ATTN_E_DTYPE, ATTN_DTYPE_INT64, ATTN_DTYPE_FP8_E5M2, -1),
      FIELD(k_format, ATTN_E_UNSUPPORTED, ATTN_FORMAT_FP8_DS_MLA),
      FIELD(k_format, ATTN_E_RANGE, 10, -1),
      FIELD(v_format, ATTN_E_UNSUPPORTED, ATTN_FORMAT_FP8_DS_MLA),
      FIELD(v_format, ATTN_E_RANGE, 10, -1),
      FIELD(separate_scales, ATTN_E_RANGE, 1, 2, 4),
  };
#undef FIELD
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    for (size_t j = 0; j < 3 && rows[i].values[j] != 0; j++) {
      attn_problem p = valid();
      memcpy((char *)&p + rows[i].offset, &rows[i].values[j], sizeof(int32_t));
      harness_label(rows[i].name);
      EXPECT_STATUS(attn_problem_check(&p, &why), rows[i].status, rows[i].name);
    }
  }
  harness_label("-");
}

/* Refusals whose code the headers leave open, and zeros of required fields. */
static void fields_against_each_other(void **state) {
  attn_problem p = valid();
  (void)state;
  p.num_q_heads = 0;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "num_q_heads");
  p = valid();
  p.num_kv_heads = 0;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "num_kv_heads");
  p = valid();
  p.qk_head_size = 0;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "qk_head_size");
  p = valid();
  p.k_format = (attn_format)50;
  EXPECT_REFUSED(attn_problem_check(&p, &why), "k_format");
  p = valid();
  p.kv_dtype = ATTN_DTYPE_FLOAT16; /* with a cache */
  EXPECT_REFUSED(attn_problem_check(&p, &why), "kv_dtype");
  p = valid();
  p.kv_source = ATTN_KV_DIRECT;
  p.block_size = 0;
  p.k_format = ATTN_FORMAT_FLOAT16;
  EXPECT_REFUSED(attn_problem_check(&p, &why), "k_format");
  p.k_format = ATTN_FORMAT_AUTO;
  p.kv_dtype = ATTN_DTYPE_INT32;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_DTYPE, "kv_dtype");
  p = valid();
  p.separate_scales = 1; /* a float cache has none */
  EXPECT_REFUSED(attn_problem_check(&p, &why), "separate_scales");
}

static void scale_and_softcap(void **state) {
  static const float scales[] = {0.0f, -0.0f, -1.0f, NAN, INFINITY, -INFINITY};
  static const float caps[] = {-1.0f, NAN, INFINITY, -INFINITY};
  (void)state;
  for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
    attn_problem p = valid();
    p.scale = scales[i];
    EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "scale");
  }
  for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++) {
    attn_problem p = valid();
    p.softcap = caps[i];
    EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "softcap");
  }
}

static void null_and_size(void **state) {
  static const uint32_t sizes[] = {0, 1, sizeof(attn_problem) - 1, sizeof(attn_problem) + 4, UINT32_MAX};
  (void)state;
  EXPECT_STATUS(attn_problem_check(NULL, &why), ATTN_E_NULL, "problem");
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    attn_problem p = valid();
    p.size = sizes[i];
    EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_STRUCT_SIZE, NULL);
  }
}

/* explain, select and plan check the problem first. */
static void every_entry_checks_the_problem(void **state) {
  attn_context *context = open_context(1);
  attn_explanation explanation = ATTN_EXPLANATION_INIT;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan *plan = NULL;
  const char *name = NULL;
  attn_problem p = valid();
  (void)state;
  limits.max_tokens = 1;
  limits.max_kv_len = 1;
  p.window_left = -2;
  EXPECT_STATUS(attn_explain(context, &p, &limits, NULL, &explanation, &why), ATTN_E_RANGE, "window_left");
  EXPECT_STATUS(attn_select(context, &p, &limits, NULL, &name, &why), ATTN_E_RANGE, "window_left");
  EXPECT_STATUS(attn_plan_create(context, &p, &limits, NULL, &plan, &why), ATTN_E_RANGE, "window_left");
  CHECK(name == NULL && plan == NULL && explanation.num_rows == 0, "a failing call wrote its output");
  attn_context_destroy(context);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_initialiser_sets_what_it_says),
      cmocka_unit_test(valid_problems_pass),
      cmocka_unit_test(each_number_outside_its_range),
      cmocka_unit_test(fields_against_each_other),
      cmocka_unit_test(scale_and_softcap),
      cmocka_unit_test(null_and_size),
      cmocka_unit_test(every_entry_checks_the_problem),
  };
  return cmocka_run_group_tests_name("problem", tests, NULL, NULL);
}
