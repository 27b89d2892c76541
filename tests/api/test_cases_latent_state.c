/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 20 and 38 to 49 over latent rows, 122 too: states that are merged, what plans promise about scratch, repeated
   calls. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "latent_sizes.h"

enum { L = 24, R = 6, NOPE = 10, V = 12 };

static size_t out_bytes(const latent *s) {
  return (size_t)s->tokens * (size_t)s->problem.num_q_heads * (size_t)v_of(s) * sizeof(float);
}

/* ---- 20, 43, 49: two halves of a row's keys, each attended alone, and merged */

/* attn_merge() of tokens 0 and 1 of the last run, which had one head. */
static void merge_two(const latent *s, const char *backend, float *out, float *lse) {
  attn_context *context = open_context(1);
  attn_merge_args args = ATTN_MERGE_INIT;
  int64_t rank = s->problem.kv_lora_rank;
  tensor parts[4], result[2];
  const DLTensor *outs[2], *lses[2];
  for (int i = 0; i < 2; i++) {
    tensor_3(&parts[i], s->out + i * rank, ATTN_DTYPE_FLOAT32, 1, 1, rank);
    tensor_2(&parts[2 + i], s->lse + i, ATTN_DTYPE_FLOAT32, 1, 1);
    outs[i] = &parts[i].t;
    lses[i] = &parts[2 + i].t;
  }
  tensor_3(&result[0], out, ATTN_DTYPE_FLOAT32, 1, 1, rank);
  tensor_2(&result[1], lse, ATTN_DTYPE_FLOAT32, 1, 1);
  args.num_parts = 2;
  args.outs = outs;
  args.lses = lses;
  args.out = &result[0].t;
  args.lse = &result[1].t;
  args.backend = strcmp(backend, "REFERENCE") == 0 ? backend : NULL;
  EXPECT_OK(attn_merge(context, &args, &why));
  attn_context_destroy(context);
}

/* One key in each of two sequences, logits two_logits, V 0 and 1 beside. */
static float two_logits[2];
static void one_key_each(latent *s) {
  for (int i = 0; i < 2; i++) {
    float q[3] = {1.0f, 0.0f, 0.0f}, row[3] = {two_logits[i], (float)i, 0.0f};
    memcpy(s->q + (ptrdiff_t)i * 3, q, sizeof q);
    memcpy(s->rows + (ptrdiff_t)i * 3, row, sizeof row);
  }
}

static void merge_logits(const char *backend, float first, float second) {
  static const int32_t q[] = {1, 1}, kv[] = {1, 1};
  float out[2], lse;
  double weight = 1.0 / (1.0 + exp((double)first - (double)second));
  latent s;
  latent_init(&s, ATTN_MLA_MQA, 1, 2, 1, 1, 1);
  latent_seqs(&s, 2, q, kv);
  s.problem.scale = 1.0f;
  two_logits[0] = first;
  two_logits[1] = second;
  s.edit = one_key_each;
  latent_fill(&s, ATTN_FORMAT_FLOAT32, 0);
  latent_run(&s, backend);
  CHECK(s.lse[0] == first && s.lse[1] == second, "%s: lses %g and %g", backend, (double)s.lse[0], (double)s.lse[1]);
  merge_two(&s, backend, out, &lse);
  CHECK(fabs((double)out[1] - weight) < 5e-5, "%s: weight %g, right is %g", backend, (double)out[1], weight);
  CHECK(fabs((double)lse - ((double)second - log(weight))) < 1e-4, "%s: lse %g", backend, (double)lse);
  latent_free(&s);
}

static void case_020_latent_merging_two_empty_states(void **state) {
  static const int32_t q[] = {1, 1}, kv[] = {0, 0};
  (void)state;
  for (int b = 0; b < LATENT_BACKENDS; b++) {
    float out[L], lse;
    latent s;
    latent_init(&s, ATTN_MLA_MQA, 1, L, R, NOPE, V);
    latent_seqs(&s, 2, q, kv);
    latent_fill(&s, ATTN_FORMAT_FLOAT32, 0);
    latent_run(&s, latent_backends[b]);
    merge_two(&s, latent_backends[b], out, &lse);
    for (int i = 0; i < L; i++) {
      CHECK(out[i] == 0.0f, "%s: %g where 0 is right", latent_backends[b], (double)out[i]);
    }
    CHECK(isinf(lse) && lse < 0, "%s: lse %g", latent_backends[b], (double)lse);
    latent_free(&s);
  }
}

static void case_043_latent_lse_is_natural(void **state) {
  (void)state;
  for (int b = 0; b < LATENT_BACKENDS; b++) {
    merge_logits(latent_backends[b], 0.0f, 1.0f);
    merge_logits(latent_backends[b], 300.0f, 300.875f);
  }
}

static void case_049_latent_max_shifted_merge(void **state) {
  (void)state;
  for (int b = 0; b < LATENT_BACKENDS; b++) {
    merge_logits(latent_backends[b], 1000.0f, 1001.0f);
    merge_logits(latent_backends[b], -1001.0f, -1000.0f);
  }
}

/* ---- 44: the softmax has temperature 1 */

static void two_keys(latent *s) {
  const float q[3] = {1.0f, 0.0f, 0.0f}, rows[6] = {0.0f, 0.0f, 0.0f, 1.0f, 1.0f, 0.0f};
  memcpy(s->q, q, sizeof q);
  memcpy(s->rows, rows, sizeof rows);
}

static void case_044_latent_natural_exponentials(void **state) {
  const int32_t q = 1, kv = 2;
  (void)state;
  for (int b = 0; b < LATENT_BACKENDS; b++) {
    latent s;
    latent_init(&s, ATTN_MLA_MQA, 1, 2, 1, 1, 1);
    latent_seqs(&s, 1, &q, &kv);
    s.problem.scale = 1.0f;
    s.edit = two_keys;
    latent_fill(&s, ATTN_FORMAT_FLOAT32, 0);
    latent_run(&s, latent_backends[b]);
    CHECK(fabsf(s.out[1] - 0.7310586f) < 1e-6f, "weight %g where 0.7311 is right", (double)s.out[1]);
    CHECK(fabsf(s.lse[0] - 1.3132617f) < 1e-6f, "lse %g where 1.31326 is right", (double)s.lse[0]);
    latent_free(&s);
  }
}

/* ---- 45: tokens by heads, or heads by tokens */

static void transposed(int form, const char *backend, int32_t tokens, int32_t heads) {
  float plain[16], other[16];
  const int32_t kv = 20;
  latent s;
  tensor lse;
  latent_init(&s, (attn_mla_form)form, heads, L, R, NOPE, V);
  latent_seqs(&s, 1, &tokens, &kv);
  latent_fill(&s, ATTN_FORMAT_FLOAT32, 0);
  latent_run(&s, backend);
  latent_compare(&s, latent_room(&s), "tokens by heads");
  memcpy(plain, s.lse, (size_t)(tokens * heads) * sizeof *plain);
  latent_open(&s, backend);
  tensor_2(&lse, other, ATTN_DTYPE_FLOAT32, tokens, heads);
  lse.strides[0] = 1;
  lse.strides[1] = tokens;
  s.args.lse = &lse.t;
  EXPECT_OK(latent_call(&s));
  latent_close(&s);
  for (int32_t i = 0; i < tokens * heads; i++) {
    CHECK(plain[i] == other[i % heads * tokens + i / heads], "form %d, %s, %d x %d: lse %d", form, backend, tokens,
          heads, i);
  }
  latent_free(&s);
}

static void case_045_latent_lse_layout_is_explicit(void **state) {
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_MHA; form++) {
    for (int b = 0; b < LATENT_BACKENDS; b++) {
      transposed(form, latent_backends[b], 3, 2);
      transposed(form, latent_backends[b], 4, 4);
    }
  }
}

/* ---- 38: a later, larger plan leaves an earlier one and its workspace alone */

static void growing_plans(int form, const char *backend) {
  const int32_t q = 2, kv[] = {70, 900};
  latent small, large;
  latent_init(&small, (attn_mla_form)form, 4, L, R, NOPE, V);
  latent_init(&large, (attn_mla_form)form, 4, L, R, NOPE, V);
  latent_seqs(&small, 1, &q, &kv[0]);
  latent_seqs(&large, 1, &q, &kv[1]);
  latent_fill(&small, ATTN_FORMAT_BFLOAT16, 0);
  latent_fill(&large, ATTN_FORMAT_BFLOAT16, 0);
  latent_open(&small, backend);
  EXPECT_OK(latent_call(&small));
  size_t bytes = attn_plan_workspace_bytes(small.made);
  latent_open(&large, backend);
  EXPECT_OK(latent_call(&large));
  CHECK(attn_plan_workspace_bytes(small.made) == bytes, "the first plan's workspace changed its size");
  memset(small.out_memory, 0xFF, out_bytes(&small));
  EXPECT_OK(latent_call(&small)); /* the schedule of before */
  latent_close(&large);
  latent_close(&small);
  latent_compare(&small, latent_room(&small), "replayed");
  latent_compare(&large, latent_room(&large), "larger");
  latent_free(&small);
  latent_free(&large);
}

static void case_038_latent_scratch_is_known_up_front(void **state) {
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    for (int b = 0; b < LATENT_BACKENDS; b++) {
      growing_plans(form, latent_backends[b]);
    }
  }
}

/* ---- 40: two kinds of layer, each with its own head count */

static void one_layer(int form, const char *backend, int32_t heads) {
  int32_t q[LATENT_SEQS], kv[LATENT_SEQS];
  attn_workspace tight;
  latent s;
  for (int i = 0; i < LATENT_SEQS; i++) {
    q[i] = 1;
    kv[i] = 1 + 7 * i;
  }
  latent_init(&s, (attn_mla_form)form, heads, L, R, NOPE, V);
  latent_seqs(&s, LATENT_SEQS, q, kv);
  latent_fill(&s, ATTN_FORMAT_FLOAT32, 0);
  latent_open(&s, backend);
  EXPECT_OK(latent_call(&s));
  tight = s.workspace;
  tight.bytes -= 1;
  s.workspace = tight;
  EXPECT_STATUS(latent_call(&s), ATTN_E_WORKSPACE, NULL);
  latent_close(&s);
  latent_compare(&s, latent_room(&s), "one layer");
  latent_free(&s);
}

static void case_040_latent_plan_is_per_layer(void **state) {
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    for (int b = 0; b < LATENT_BACKENDS; b++) {
      one_layer(form, latent_backends[b], 5);
      one_layer(form, latent_backends[b], 1);
    }
  }
}

/* ---- 41, 122: a plan run again and again, over a stack of any content */

static int dirty_stack(int value) {
  volatile unsigned char bytes[64 * 1024];
  for (size_t i = 0; i < sizeof bytes; i++) {
    bytes[i] = (unsigned char)value;
  }
  return bytes[(size_t)value * 7];
}

static void again(int form, const char *backend, int dirty) {
  static const int values[] = {0xFF, 0x00, 0x7F, 0x3C};
  static const int32_t q[] = {1, 1, 19}, kv[] = {1, 130, 19};
  latent s;
  latent_init(&s, (attn_mla_form)form, 2, L, R, NOPE, V);
  latent_seqs(&s, 3, q, kv);
  s.options.num_splits = form == ATTN_MLA_MHA ? 0 : 4;
  s.threads = 2;
  latent_fill(&s, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 0);
  latent_open(&s, backend);
  unsigned char *first = malloc(out_bytes(&s));
  assert_non_null(first);
  for (int i = 0; i < 4; i++) {
    CHECK(!dirty || dirty_stack(values[i]) == values[i], "the stack does not hold what was written");
    EXPECT_OK(latent_call(&s));
    CHECK(i == 0 || memcmp(first, s.out_memory, out_bytes(&s)) == 0, "form %d, %s: other bits in call %d", form,
          backend, i);
    memcpy(first, s.out_memory, out_bytes(&s));
  }
  free(first);
  latent_close(&s);
  latent_compare(&s, latent_room(&s), "again");
  latent_free(&s);
}

static void every_form_again(int dirty) {
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    for (int b = 0; b < LATENT_BACKENDS; b++) {
      again(form, latent_backends[b], dirty);
    }
  }
}

static void case_041_latent_plan_run_again_at_once(void **state) {
  (void)state;
  every_form_again(0);
}

static void case_122_latent_poisoned_stack(void **state) {
  (void)state;
  every_form_again(1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_020_latent_merging_two_empty_states),
      cmocka_unit_test(case_038_latent_scratch_is_known_up_front),
      cmocka_unit_test(case_040_latent_plan_is_per_layer),
      cmocka_unit_test(case_041_latent_plan_run_again_at_once),
      cmocka_unit_test(case_043_latent_lse_is_natural),
      cmocka_unit_test(case_044_latent_natural_exponentials),
      cmocka_unit_test(case_045_latent_lse_layout_is_explicit),
      cmocka_unit_test(case_049_latent_max_shifted_merge),
      cmocka_unit_test(case_122_latent_poisoned_stack),
  };
  return cmocka_run_group_tests_name("cases over latent rows: states", tests, NULL, NULL);
}
