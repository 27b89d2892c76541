/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 23 to 29 and 55 to 74 over latent rows: rows that see nothing, windows, lengths beside block edges, soft cap,
   ALiBi, the order of biases; on both backends against dense double arithmetic. */
#include <math.h>
#include <string.h>

#include "latent_sizes.h"

enum { L = 24, R = 6, NOPE = 10, V = 12, HEADS = 3 };

static void start(latent *s, int form, int32_t q_len, int32_t kv_len) {
  latent_init(s, (attn_mla_form)form, HEADS, L, R, NOPE, V);
  latent_seqs(s, 1, &q_len, &kv_len);
}

static int64_t out_count(const latent *s) {
  return (int64_t)s->tokens * s->problem.num_q_heads * v_of(s);
}

static void set_window(latent *s, int32_t count) {
  EXPECT_OK(attn_window_from_count(count, &s->problem.window_left, &s->problem.window_right, &why));
}

/* ---- 23: a row of length 0 is written */

static void case_023_latent_row_of_length_0_is_written(void **state) {
  static const int32_t q[] = {1, 2}, kv[] = {0, 3};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    latent s;
    latent_init(&s, (attn_mla_form)form, HEADS, L, R, NOPE, V);
    latent_seqs(&s, 2, q, kv);
    latent_fill(&s, ATTN_FORMAT_BFLOAT16, 0);
    for (int b = 0; b < LATENT_BACKENDS; b++) {
      harness_label(latent_backends[b]);
      latent_run(&s, latent_backends[b]);
      latent_compare(&s, latent_room(&s), "length 0");
      for (int64_t i = 0; i < HEADS * v_of(&s); i++) {
        CHECK(s.out[i] == 0.0f, "element %d of the empty row is %g", (int)i, (double)s.out[i]);
      }
      for (int h = 0; s.problem.wants_lse && h < HEADS; h++) {
        CHECK(isinf(s.lse[h]) && s.lse[h] < 0, "lse of the empty row is %g", (double)s.lse[h]);
      }
    }
    latent_free(&s);
  }
}

/* ---- 28: a row that sees nothing is not the mean of V */

static void case_028_latent_masked_row_is_not_the_mean_of_v(void **state) {
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    latent s;
    start(&s, form, 6, 4);
    latent_fill(&s, ATTN_FORMAT_FLOAT32, 0);
    for (int b = 0; b < LATENT_BACKENDS; b++) {
      harness_label(latent_backends[b]);
      latent_run(&s, latent_backends[b]);
      latent_compare(&s, latent_room(&s), "rows before the first key");
      for (int64_t i = 0; i < 2 * HEADS * v_of(&s); i++) {
        CHECK(s.out[i] == 0.0f, "element %d of the first two rows is %g", (int)i, (double)s.out[i]);
      }
    }
    latent_free(&s);
  }
}

/* ---- 29: a query of length 0 inside a packed batch */

static void case_029_latent_query_of_length_0_in_a_batch(void **state) {
  static const int32_t q[] = {0, 1, 0, 3, 0}, kv[] = {9, 5, 0, 33, 70};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    latent s;
    latent_init(&s, (attn_mla_form)form, HEADS, L, R, NOPE, V);
    latent_seqs(&s, 5, q, kv);
    latent_prove(&s, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, "query of length 0");
  }
}

/* ---- 55: a window of W keys is W keys */

/* Equal scores; values 1, 4, 16, ... */
static void powers_of_four(latent *s) {
  memset(s->q, 0, (size_t)s->problem.num_q_heads * (L + R) * sizeof *s->q);
  for (int32_t k = 0; k < s->keys; k++) {
    for (int i = 0; i < L; i++) {
      s->rows[k * (L + R) + i] = (float)(1 << (2 * k));
    }
  }
}

static void case_055_latent_window_has_all_its_keys(void **state) {
  (void)state;
  for (int b = 0; b < LATENT_BACKENDS; b++) {
    latent s;
    start(&s, ATTN_MLA_MQA, 1, 6);
    set_window(&s, 4);
    s.edit = powers_of_four;
    latent_fill(&s, ATTN_FORMAT_BFLOAT16, 0);
    latent_run(&s, latent_backends[b]);
    for (int i = 0; i < HEADS * L; i++) {
      CHECK(s.out[i] == (16.0f + 64.0f + 256.0f + 1024.0f) / 4, "%s: %g is not the mean of positions 2 to 5",
            latent_backends[b], (double)s.out[i]);
    }
    latent_free(&s);
  }
}

/* ---- 57: count of keys, or left and right */

static void one_convention(int form, const char *backend, int32_t count) {
  latent s[2];
  for (int n = 0; n < 2; n++) {
    start(&s[n], form, 3, 20);
    set_window(&s[n], count);
    if (n == 1) {
      s[n].problem.window_left = count - 1;
      s[n].problem.window_right = 0;
    }
    latent_fill(&s[n], ATTN_FORMAT_FLOAT16, 0);
    latent_run(&s[n], backend);
    latent_compare(&s[n], latent_room(&s[n]), "window");
  }
  CHECK(same_bits(s[0].out, s[1].out, out_count(&s[0])), "form %d, %s: count %d and its bounds differ", form, backend,
        count);
  for (int row = 0; form == ATTN_MLA_MQA && count == 1 && row < 3; row++) {
    CHECK(same_bits(s[0].out + (int64_t)row * HEADS * L, s[0].seen + (17 + row) * (L + R), L),
          "%s: a window of 1 is not the latent part of the row itself", backend);
  }
  latent_free(&s[0]);
  latent_free(&s[1]);
}

static void case_057_latent_window_conventions_agree(void **state) {
  static const int32_t counts[] = {1, 2, 4, 16, 17};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    for (int b = 0; b < LATENT_BACKENDS; b++) {
      for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        one_convention(form, latent_backends[b], counts[i]);
      }
    }
  }
}

/* ---- 58: the window holds in prefill, extend and decode */

static void case_058_latent_window_is_never_ignored(void **state) {
  static const int32_t q[] = {9, 4, 1};
  (void)state;
  for (int n = 0; n < 9 * LATENT_BACKENDS; n++) {
    int form = ATTN_MLA_MQA + n % 3;
    const char *backend = latent_backends[n / 9];
    latent s, full;
    start(&s, form, q[n / 3 % 3], 9);
    start(&full, form, q[n / 3 % 3], 9);
    set_window(&s, 8);
    latent_fill(&s, ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 0);
    latent_fill(&full, ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 0);
    latent_run(&s, backend);
    latent_run(&full, backend);
    latent_compare(&s, latent_room(&s), "window of 8");
    int64_t last = (q[n / 3 % 3] - 1) * HEADS * v_of(&s);
    CHECK(!same_bits(s.out + last, full.out + last, v_of(&s)), "form %d, %s: the window was ignored", form, backend);
    latent_free(&s);
    latent_free(&full);
  }
}

/* ---- 59: a window without causality is what it says */

static void case_059_latent_window_with_non_causal_block(void **state) {
  static const int32_t right[] = {3, 0, -1};
  (void)state;
  for (int b = 0; b < LATENT_BACKENDS; b++) {
    float first[8 * HEADS * L];
    for (int i = 0; i < 3; i++) {
      latent s;
      start(&s, ATTN_MLA_MQA, 8, 28);
      s.problem.causal = 0;
      s.problem.window_left = 3;
      s.problem.window_right = right[i];
      latent_fill(&s, ATTN_FORMAT_FLOAT32, 0);
      latent_run(&s, latent_backends[b]);
      latent_compare(&s, latent_room(&s), "not causal");
      CHECK(i == 0 || !same_bits(first, s.out, out_count(&s)), "%s: window_right %d was ignored", latent_backends[b],
            right[i]);
      memcpy(first, s.out, sizeof first);
      latent_free(&s);
    }
  }
}

/* ---- 61, 62: lengths beside the edge of a block, and inside it */

static void case_061_latent_tail_masked_when_tile_is_block(void **state) {
  static const int32_t sizes[] = {16, 32, 64, 128}, q[] = {1, 5};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    for (int n = 0; n < 8; n++) {
      for (int32_t beyond = -1; beyond <= 1; beyond++) {
        latent s;
        start(&s, form, q[n % 2], sizes[n / 2] + beyond);
        s.problem.block_size = sizes[n / 2];
        latent_prove(&s, n % 2 ? ATTN_FORMAT_FLOAT32 : ATTN_FORMAT_FP8_PER_TOKEN_HEAD, "edge");
      }
    }
  }
}

static void case_062_latent_length_not_a_multiple_of_the_block(void **state) {
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    for (int causal = form != ATTN_MLA_MQA; causal < 2; causal++) {
      latent s;
      start(&s, form, 1, 64);
      s.problem.block_size = 128;
      s.problem.causal = causal;
      latent_prove(&s, ATTN_FORMAT_BFLOAT16, "half a block");
    }
  }
}

/* ---- 68: a tanh that cannot overflow */

static int smaller_first;
static void five_thousand(latent *s) {
  s->q[0] = 1.0f;
  for (int32_t k = 0; k < s->keys; k++) {
    s->rows[k] = (k + smaller_first) % 2 ? -10000.0f : 5000.0f;
  }
}

static void case_068_latent_softcap_of_huge_scores(void **state) {
  (void)state;
  for (int n = 0; n < 4 * LATENT_BACKENDS; n++) {
    const int32_t q = 1, kv = 1 + n % 2;
    latent s;
    smaller_first = n / 2 % 2;
    latent_init(&s, ATTN_MLA_MQA, 1, 1, 0, 1, 1);
    latent_seqs(&s, 1, &q, &kv);
    s.problem.scale = 1.0f;
    s.problem.softcap = 50.0f;
    s.edit = five_thousand;
    latent_fill(&s, ATTN_FORMAT_FLOAT16, 0);
    latent_run(&s, latent_backends[n / 4]);
    latent_compare(&s, latent_room(&s), "cap");
    float right = kv == 2 || !smaller_first ? 50.0f : -50.0f;
    CHECK(fabsf(s.lse[0] - right) < 1e-3f, "lse %g where %g is right", (double)s.lse[0], (double)right);
    CHECK(s.out[0] == (right > 0 ? 5000.0f : -10000.0f), "out %g is not the latent of the larger score",
          (double)s.out[0]);
    latent_free(&s);
  }
}

/* ---- 70: the cap holds on every path */

static void case_070_latent_softcap_on_every_path(void **state) {
  static const float caps[] = {0.0f, 5.0f, 50.0f};
  static const int32_t paths[][3] = {{20, 20, 0}, {4, 20, 0}, {1, 300, 0}, {1, 300, 4}}; /* q_len, kv_len, splits */
  (void)state;
  for (int n = 0; n < 12 * LATENT_BACKENDS; n++) {
    int form = ATTN_MLA_MQA + n % 3, path = n / 3 % 4;
    float seen[3][L] = {{0}};
    for (int c = 0; c < 3; c++) {
      latent s;
      start(&s, form, paths[path][0], paths[path][1]);
      s.problem.softcap = caps[c];
      s.problem.scale = 2.0f;
      s.options.num_splits = form == ATTN_MLA_MHA ? 0 : paths[path][2];
      latent_fill(&s, path % 2 ? ATTN_FORMAT_FP8_E4M3 : ATTN_FORMAT_FLOAT32, 0);
      latent_run(&s, latent_backends[n / 12]);
      latent_compare(&s, latent_room(&s), "cap");
      memcpy(seen[c], s.out + out_count(&s) - v_of(&s), (size_t)v_of(&s) * sizeof(float));
      latent_free(&s);
    }
    CHECK(!same_bits(seen[0], seen[1], V) && !same_bits(seen[0], seen[2], V) && !same_bits(seen[1], seen[2], V),
          "%s: a cap was ignored, form %d, path %d", latent_backends[n / 12], form, path);
  }
}

/* ---- 72: ALiBi is -slope * (q - k) in fp32 */

static void zero_queries(latent *s) {
  memset(s->q, 0, (size_t)s->tokens * (size_t)s->problem.num_q_heads * (L + R) * sizeof *s->q);
}

static void case_072_latent_alibi_distance_origin(void **state) {
  static const float small[HEADS] = {0.5f, 0.0001220703125f, 0.001f};
  double right = log(exp(-1.0) + exp(-0.5) + 1.0);
  (void)state;
  for (int b = 0; b < LATENT_BACKENDS; b++) {
    latent s;
    harness_label(latent_backends[b]);
    start(&s, ATTN_MLA_MQA, 1, 3);
    s.problem.alibi = ATTN_ALIBI_LINEAR;
    s.edit = zero_queries;
    latent_fill(&s, ATTN_FORMAT_FLOAT32, 0);
    for (int h = 0; h < HEADS; h++) {
      s.slopes[h] = 0.5f;
    }
    latent_run(&s, latent_backends[b]);
    latent_compare(&s, latent_room(&s), "slope 0.5");
    for (int h = 0; h < HEADS; h++) {
      CHECK(fabs((double)s.lse[h] - right) < 1e-5, "lse %g where %g is right", (double)s.lse[h], right);
    }
    latent_free(&s);
    for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
      start(&s, form, 1, form == ATTN_MLA_MQA ? 100000 : 3000);
      s.problem.alibi = form == ATTN_MLA_LAYER ? ATTN_ALIBI_SQRT : ATTN_ALIBI_LINEAR;
      latent_fill(&s, ATTN_FORMAT_FLOAT16, 0);
      memcpy(s.slopes, small, sizeof small);
      latent_run(&s, latent_backends[b]);
      latent_compare(&s, latent_room(&s), "far keys");
      latent_free(&s);
    }
  }
}

/* ---- 74: scale, cap, bias, mask, softmax */

static void cap_before_bias(latent *s) {
  s->q[0] = 2.0f;
  s->rows[0] = 4.0f;
  s->rows[1] = -1.0f;
}

static void everything(int form) {
  static const int32_t q[] = {1, 3, 21}, kv[] = {50, 33, 21};
  latent s;
  latent_init(&s, (attn_mla_form)form, HEADS, L, R, NOPE, V);
  latent_seqs(&s, 3, q, kv);
  s.problem.softcap = 5.0f;
  s.problem.window_left = 20;
  s.problem.alibi = form == ATTN_MLA_MHA ? ATTN_ALIBI_SQRT : ATTN_ALIBI_LINEAR;
  s.problem.has_bias = s.problem.has_sinks = 1;
  latent_prove(&s, ATTN_FORMAT_FLOAT32, "everything at once");
}

static void case_074_latent_order_of_cap_and_biases(void **state) {
  const int32_t q = 1, kv = 2;
  double right = log(exp(5 * tanh(8.0 / 5) + 3) + exp(5 * tanh(-2.0 / 5)));
  (void)state;
  for (int b = 0; b < LATENT_BACKENDS; b++) {
    latent s;
    latent_init(&s, ATTN_MLA_MQA, 1, 1, 0, 1, 1);
    latent_seqs(&s, 1, &q, &kv);
    s.problem.scale = 1.0f;
    s.problem.softcap = 5.0f;
    s.problem.has_bias = 1;
    s.edit = cap_before_bias;
    latent_fill(&s, ATTN_FORMAT_FLOAT32, 0);
    s.bias[0] = 3.0f;
    s.bias[1] = 0.0f;
    latent_run(&s, latent_backends[b]);
    CHECK(fabs((double)s.lse[0] - right) < 1e-4, "%s: lse %g where %g is right", latent_backends[b], (double)s.lse[0],
          right);
    latent_free(&s);
  }
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    everything(form);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_023_latent_row_of_length_0_is_written),
      cmocka_unit_test(case_028_latent_masked_row_is_not_the_mean_of_v),
      cmocka_unit_test(case_029_latent_query_of_length_0_in_a_batch),
      cmocka_unit_test(case_055_latent_window_has_all_its_keys),
      cmocka_unit_test(case_057_latent_window_conventions_agree),
      cmocka_unit_test(case_058_latent_window_is_never_ignored),
      cmocka_unit_test(case_059_latent_window_with_non_causal_block),
      cmocka_unit_test(case_061_latent_tail_masked_when_tile_is_block),
      cmocka_unit_test(case_062_latent_length_not_a_multiple_of_the_block),
      cmocka_unit_test(case_068_latent_softcap_of_huge_scores),
      cmocka_unit_test(case_070_latent_softcap_on_every_path),
      cmocka_unit_test(case_072_latent_alibi_distance_origin),
      cmocka_unit_test(case_074_latent_order_of_cap_and_biases),
  };
  return cmocka_run_group_tests_name("cases over latent rows: masks", tests, NULL, NULL);
}
