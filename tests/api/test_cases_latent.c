/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that users of other engines met, over latent rows: each case of docs/testing.md on both backends, against
   dense double arithmetic or the bits of another run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "latent.h"

static void case_022_latent_later_chunk_is_empty(void **state) {
  static const int32_t q[] = {4, 4, 1, 9}, kv[] = {300, 4, 40, 20};
  (void)state;
  for (int as_given = 0; as_given < 2; as_given++) {
    latent s;
    latent_init(&s, ATTN_MLA_MHA, 3, 24, 6, 10, 12);
    latent_seqs(&s, 4, q, kv);
    s.as_given = as_given;
    s.problem.context_chunk = 16;
    latent_prove(&s, ATTN_FORMAT_FLOAT32, "chunks");
  }
}

/* Of a sequence without keys every row is 0 and its lse -inf; a row before the first key likewise, sinks or not. */
static void case_024_latent_rows_that_see_nothing(void **state) {
  static const int32_t q[] = {2, 1, 6}, kv[] = {0, 33, 2};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    for (int sinks = 0; sinks < 2; sinks++) {
      latent s;
      latent_init(&s, (attn_mla_form)form, 4, 24, 6, 10, 12);
      latent_seqs(&s, 3, q, kv);
      s.problem.has_sinks = sinks;
      s.options.num_splits = form == ATTN_MLA_MHA ? 0 : 3;
      latent_prove(&s, ATTN_FORMAT_BFLOAT16, "empty rows");
    }
  }
}

static void case_026_latent_leading_rows_masked_with_sinks(void **state) {
  static const int32_t q[] = {70, 1}, kv[] = {6, 40};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    latent s;
    latent_init(&s, (attn_mla_form)form, 2, 24, 6, 10, 12);
    latent_seqs(&s, 2, q, kv);
    s.problem.has_sinks = 1;
    latent_prove(&s, ATTN_FORMAT_FLOAT32, "leading rows");
  }
}

static void case_031_latent_splits_empty_by_window(void **state) {
  static const int32_t q[] = {1, 3}, kv[] = {500, 90};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form += ATTN_MLA_LAYER - ATTN_MLA_MQA) {
    for (int rule = ATTN_SPLIT_DEFAULT; rule <= ATTN_SPLIT_COMPATIBLE; rule++) {
      latent s;
      latent_init(&s, (attn_mla_form)form, 3, 24, 6, 10, 12);
      latent_seqs(&s, 2, q, kv);
      s.problem.window_left = 3;
      s.options.num_splits = 16;
      s.options.split_rule = (attn_split_rule)rule;
      latent_prove(&s, ATTN_FORMAT_BFLOAT16, "window and splits");
    }
  }
}

static void case_033_latent_split_counts_beyond_any_bucket(void **state) {
  static const int32_t q[] = {1, 2}, kv[] = {300, 33}, splits[] = {65, 129, 161, 257, 4096};
  (void)state;
  for (int i = 0; i < 5; i++) {
    latent s;
    latent_init(&s, ATTN_MLA_MQA, 2, 24, 6, 10, 12);
    latent_seqs(&s, 2, q, kv);
    s.options.num_splits = splits[i];
    latent_prove(&s, ATTN_FORMAT_FLOAT32, "many splits");
  }
}

static void large_queries(latent *s) {
  for (int64_t i = 0; i < (int64_t)s->tokens * s->problem.num_q_heads * 30; i++) {
    s->q[i] *= 128.0f; /* exact in any type */
  }
}

static void case_035_latent_large_queries_in_split_merge(void **state) {
  static const int32_t q[] = {1, 3}, kv[] = {200, 37}, splits[] = {1, 2, 7, 33};
  (void)state;
  for (int i = 0; i < 4; i++) {
    latent s;
    latent_init(&s, ATTN_MLA_MQA, 4, 24, 6, 10, 12);
    latent_seqs(&s, 2, q, kv);
    s.edit = large_queries;
    s.options.num_splits = splits[i];
    latent_prove(&s, ATTN_FORMAT_FLOAT32, "large queries");
  }
}

static void case_037_latent_every_split_count(void **state) {
  static const int32_t q[] = {1, 2}, kv[] = {65, 17};
  (void)state;
  for (int32_t splits = 1; splits <= 20; splits++) {
    latent s;
    latent_init(&s, ATTN_MLA_MQA, 2, 9, 4, 10, 12);
    latent_seqs(&s, 2, q, kv);
    s.options.num_splits = splits;
    latent_prove(&s, ATTN_FORMAT_FLOAT32, "splits");
  }
}

/* 16-bit queries and output, scores of hundreds: a 16-bit lse would be off by one. */
static void case_047_latent_lse_is_float32(void **state) {
  static const int32_t q[] = {1, 3}, kv[] = {200, 37};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_MHA; form++) {
    latent s;
    latent_init(&s, (attn_mla_form)form, 4, 24, 6, 24, 12);
    latent_seqs(&s, 2, q, kv);
    s.problem.q_dtype = ATTN_DTYPE_BFLOAT16;
    s.edit = large_queries;
    latent_prove(&s, ATTN_FORMAT_BFLOAT16, "lse");
  }
}

/* Two sequences of three tokens: two rows of the table. */
static void case_064_latent_one_table_row_per_sequence(void **state) {
  static const int32_t q[] = {3, 3}, kv[] = {20, 14};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    latent s;
    latent_init(&s, (attn_mla_form)form, 3, 24, 6, 10, 12);
    latent_seqs(&s, 2, q, kv);
    latent_prove(&s, ATTN_FORMAT_FLOAT16, "three tokens each");
  }
}

static void huge_last_row(latent *s) {
  for (int32_t i = 0; i < 24; i++) {
    s->rows[(int64_t)(s->keys - 1) * 30 + i] = 30000.0f;
  }
}

static void case_065_latent_verify_step_is_causal(void **state) {
  const int32_t q = 2, kv = 40;
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    for (int b = 0; b < LATENT_BACKENDS; b++) {
      latent s[2];
      for (int huge = 0; huge < 2; huge++) {
        latent_init(&s[huge], (attn_mla_form)form, 3, 24, 6, 10, 12);
        latent_seqs(&s[huge], 1, &q, &kv);
        s[huge].edit = huge ? huge_last_row : NULL;
        latent_fill(&s[huge], ATTN_FORMAT_FLOAT32, 0);
        latent_run(&s[huge], latent_backends[b]);
      }
      size_t row = 3u * (form == ATTN_MLA_MQA ? 24u : 12u);
      CHECK(memcmp(s[0].out, s[1].out, row * sizeof(float)) == 0, "form %d, %s: row 0 saw row 1", form,
            latent_backends[b]);
      CHECK(memcmp(s[0].out + row, s[1].out + row, row * sizeof(float)) != 0, "row 1 does not see itself");
      latent_free(&s[0]);
      latent_free(&s[1]);
    }
  }
}

/* The same sequence with its pages in ten orders: bits. */
static void case_067_latent_pages_anywhere(void **state) {
  static const int32_t steps[] = {1, 5, 7, 11, 13, 17, 19, 23, 25, 29}; /* no divisor in common with 48 blocks */
  const int32_t q = 2, kv = 130;
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    size_t bytes = 2u * 3u * (form == ATTN_MLA_MQA ? 24u : 12u) * sizeof(float);
    for (int b = 0; b < LATENT_BACKENDS; b++) {
      float first[2 * 3 * 24];
      for (int i = 0; i < 10; i++) {
        latent s;
        latent_init(&s, (attn_mla_form)form, 3, 24, 6, 10, 12);
        latent_seqs(&s, 1, &q, &kv);
        s.problem.block_size = 3;
        s.table_step = steps[i];
        latent_fill(&s, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 0);
        assert_int_equal(s.blocks, 48);
        latent_run(&s, latent_backends[b]);
        if (i == 0) {
          memcpy(first, s.out, bytes);
        }
        CHECK(memcmp(first, s.out, bytes) == 0, "form %d, %s, step %d: other bits", form, latent_backends[b],
              (int)steps[i]);
        latent_free(&s);
      }
    }
  }
}

static void case_077_latent_head_counts(void **state) {
  static const int32_t heads[] = {1, 4, 5, 8, 10, 12, 20, 24, 32, 40, 96, 128}, name = 5, q = 1, kv = 33;
  (void)state;
  for (int b = 0; b < LATENT_BACKENDS; b++) {
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
      latent all;
      latent_init(&all, ATTN_MLA_MQA, heads[i], 40, 8, 10, 12);
      latent_seqs(&all, 1, &q, &kv);
      all.names = &name;
      all.problem.batch_invariant = 1;
      latent_fill(&all, ATTN_FORMAT_FLOAT32, 0);
      latent_run(&all, latent_backends[b]);
      latent_compare(&all, 1.0, "heads");
      for (int32_t h = 0; h < heads[i]; h += 1 + heads[i] / 6) {
        latent one;
        latent_init(&one, ATTN_MLA_MQA, 1, 40, 8, 10, 12);
        latent_seqs(&one, 1, &q, &kv);
        one.names = &name;
        one.first_name_head = h;
        one.problem.batch_invariant = 1;
        latent_fill(&one, ATTN_FORMAT_FLOAT32, 0);
        latent_run(&one, latent_backends[b]);
        CHECK(memcmp(one.out, all.out + (int64_t)h * 40, 40 * sizeof(float)) == 0 && one.lse[0] == all.lse[h],
              "%s: head %d of %d differs from the one alone", latent_backends[b], h, heads[i]);
        latent_free(&one);
      }
      latent_free(&all);
    }
  }
}

/* 576 and 512; 192 and 128; 96 and 64; 448 and 256. */
static void case_080_latent_k_size_differs_from_v_size(void **state) {
  static const int32_t sizes[][4] = {{512, 64, 128, 128}, {128, 32, 64, 64}, {512, 64, 192, 256}}, q[] = {1, 3},
                       kv[] = {33, 20};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    for (int i = 0; i < 3; i++) {
      latent s;
      latent_init(&s, (attn_mla_form)form, 2, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
      latent_seqs(&s, 2, q, kv);
      latent_prove(&s, ATTN_FORMAT_BFLOAT16, "sizes");
    }
  }
}

static void case_092_latent_scale_of_the_query_width(void **state) {
  const int32_t q = 1, kv = 2;
  latent s;
  (void)state;
  latent_init(&s, ATTN_MLA_LAYER, 2, 512, 64, 128, 128);
  latent_seqs(&s, 1, &q, &kv);
  assert_true(s.problem.scale == (float)(1.0 / sqrt(192.0)));
  latent_prove(&s, ATTN_FORMAT_FLOAT32, "192");
}

static void case_094_latent_nope_192_and_v_256(void **state) {
  static const int32_t q[] = {1, 20}, kv[] = {9, 30};
  (void)state;
  for (int form = ATTN_MLA_MHA; form <= ATTN_MLA_LAYER; form++) {
    latent s;
    latent_init(&s, (attn_mla_form)form, 2, 512, 64, 192, 256);
    latent_seqs(&s, 2, q, kv);
    latent_prove(&s, ATTN_FORMAT_FP8_DS_MLA, "192 and 256");
  }
}

/* 40 cached and 24 new tokens: expanded in chunks, and a layer that goes absorbed, both near the same answer. */
static void case_096_latent_absorbed_and_expanded(void **state) {
  static const int32_t chunks[] = {8, 16, 64};
  const int32_t q = 24, kv = 64;
  (void)state;
  for (int i = 0; i < 3; i++) {
    for (int form = ATTN_MLA_MHA; form <= ATTN_MLA_LAYER; form++) {
      latent s;
      latent_init(&s, (attn_mla_form)form, 4, 64, 8, 16, 16);
      latent_seqs(&s, 1, &q, &kv);
      s.problem.context_chunk = chunks[i];
      s.problem.batch_invariant = form == ATTN_MLA_LAYER; /* then all goes absorbed */
      latent_prove(&s, ATTN_FORMAT_FLOAT32, "both forms");
    }
  }
}

/* What is accepted at the widths of DeepSeek-V3 in each format: 16 heads, no case for a few. */
static void case_097_latent_every_format_at_576(void **state) {
  static const attn_format formats[] = {ATTN_FORMAT_FLOAT32, ATTN_FORMAT_FP8_E4M3, ATTN_FORMAT_INT8_PER_TOKEN_HEAD,
                                        ATTN_FORMAT_FP8_PER_TOKEN_HEAD, ATTN_FORMAT_FP8_DS_MLA};
  const int32_t q = 1, kv = 33;
  (void)state;
  for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
    latent s;
    latent_init(&s, ATTN_MLA_MQA, 16, 512, 64, 128, 128);
    latent_seqs(&s, 1, &q, &kv);
    latent_prove(&s, formats[i], attn_format_name(formats[i]));
  }
}

static void case_100_latent_one_scale_for_both_roles(void **state) {
  const int32_t q = 1, kv = 2;
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    latent s;
    latent_init(&s, (attn_mla_form)form, 2, 24, 6, 10, 12);
    latent_seqs(&s, 1, &q, &kv);
    s.static_scale = 0.5f;
    latent_prove(&s, ATTN_FORMAT_FP8_E4M3, "scale 0.5");
  }
  latent s;
  latent_init(&s, ATTN_MLA_MQA, 2, 24, 6, 10, 12);
  s.problem.k_format = ATTN_FORMAT_FP8_E4M3;
  s.problem.q_dtype = ATTN_DTYPE_FLOAT32;
  s.problem.v_format = ATTN_FORMAT_FLOAT32;
  EXPECT_STATUS(attn_problem_check(&s.problem, &why), ATTN_E_RANGE, "v_format");
}

static void equal_and_large(latent *s) {
  for (int64_t i = 0; i < (int64_t)s->tokens * s->problem.num_q_heads * 20; i++) {
    s->q[i] = 0.0f;
  }
  for (int64_t i = 0; i < (int64_t)s->keys * 20; i++) {
    s->rows[i] = 60000.0f;
  }
}

static void case_118_latent_values_sum_beyond_65504(void **state) {
  const int32_t q = 1, kv = 64;
  (void)state;
  for (int b = 0; b < LATENT_BACKENDS; b++) {
    latent s;
    latent_init(&s, ATTN_MLA_MQA, 2, 16, 4, 10, 12);
    latent_seqs(&s, 1, &q, &kv);
    s.problem.q_dtype = s.source = ATTN_DTYPE_FLOAT16;
    s.edit = equal_and_large;
    latent_fill(&s, ATTN_FORMAT_FLOAT16, 0);
    latent_run(&s, latent_backends[b]);
    for (int i = 0; i < 2 * 16; i++) {
      assert_true(s.out[i] == 60000.0f);
    }
    latent_free(&s);
  }
}

static void all_30(latent *s) {
  for (int64_t i = 0; i < (int64_t)s->tokens * s->problem.num_q_heads * 128; i++) {
    s->q[i] = 30.0f;
  }
  for (int64_t i = 0; i < (int64_t)s->keys * 128; i++) {
    s->rows[i] = 30.0f;
  }
}

static void case_120_latent_products_beyond_65504(void **state) {
  const int32_t q = 1, kv = 2;
  latent s;
  (void)state;
  latent_init(&s, ATTN_MLA_MQA, 2, 112, 16, 112, 12);
  latent_seqs(&s, 1, &q, &kv);
  s.problem.q_dtype = s.source = ATTN_DTYPE_FLOAT16;
  s.edit = all_30;
  latent_prove(&s, ATTN_FORMAT_FLOAT16, "products of 115200");
}

static void nan_in_the_second(latent *s) {
  int32_t heads = s->problem.num_q_heads, size = s->problem.mla_form == ATTN_MLA_MQA ? 30 : 16;
  s->q[(int64_t)s->starts[1] * heads * size + 3] = NAN;
}

/* A NaN in one head's query of sequence 1. */
static void case_124_latent_nan_stays_in_its_row(void **state) {
  static const int32_t q[] = {2, 2, 3}, kv[] = {40, 33, 50};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    for (int b = 0; b < LATENT_BACKENDS; b++) {
      latent s[2];
      for (int bad = 0; bad < 2; bad++) {
        latent_init(&s[bad], (attn_mla_form)form, 3, 24, 6, 10, 12);
        latent_seqs(&s[bad], 3, q, kv);
        s[bad].edit = bad ? nan_in_the_second : NULL;
        latent_fill(&s[bad], ATTN_FORMAT_FLOAT32, 0);
        latent_run(&s[bad], latent_backends[b]);
      }
      int32_t size = form == ATTN_MLA_MQA ? 24 : 12;
      for (int32_t i = 0; i < s[0].tokens * 3 * size; i++) {
        int mine = i / size == s[0].starts[1] * 3;
        CHECK(mine ? isnan(s[1].out[i]) : s[1].out[i] == s[0].out[i], "form %d, %s: element %d is %g, clean %g", form,
              latent_backends[b], (int)i, (double)s[1].out[i], (double)s[0].out[i]);
      }
      latent_free(&s[0]);
      latent_free(&s[1]);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_022_latent_later_chunk_is_empty),
      cmocka_unit_test(case_024_latent_rows_that_see_nothing),
      cmocka_unit_test(case_026_latent_leading_rows_masked_with_sinks),
      cmocka_unit_test(case_031_latent_splits_empty_by_window),
      cmocka_unit_test(case_033_latent_split_counts_beyond_any_bucket),
      cmocka_unit_test(case_035_latent_large_queries_in_split_merge),
      cmocka_unit_test(case_037_latent_every_split_count),
      cmocka_unit_test(case_047_latent_lse_is_float32),
      cmocka_unit_test(case_064_latent_one_table_row_per_sequence),
      cmocka_unit_test(case_065_latent_verify_step_is_causal),
      cmocka_unit_test(case_067_latent_pages_anywhere),
      cmocka_unit_test(case_077_latent_head_counts),
      cmocka_unit_test(case_080_latent_k_size_differs_from_v_size),
      cmocka_unit_test(case_092_latent_scale_of_the_query_width),
      cmocka_unit_test(case_094_latent_nope_192_and_v_256),
      cmocka_unit_test(case_096_latent_absorbed_and_expanded),
      cmocka_unit_test(case_097_latent_every_format_at_576),
      cmocka_unit_test(case_100_latent_one_scale_for_both_roles),
      cmocka_unit_test(case_118_latent_values_sum_beyond_65504),
      cmocka_unit_test(case_120_latent_products_beyond_65504),
      cmocka_unit_test(case_124_latent_nan_stays_in_its_row),
  };
  return cmocka_run_group_tests_name("cases over latent rows", tests, NULL, NULL);
}
