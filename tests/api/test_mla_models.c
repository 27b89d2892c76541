/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of published models: absorbed rows, expanded rows and expanded rows in chunks give one result, for every
 * model whose sizes are known. In fp32 within 2e-5 of each other, in bfloat16 each within 3 * 2^-8 of the layer in
 * double; by the root mean square of a row's difference over the row's. (DeepSeek's, Moonshot's, Zhipu's, Mistral's,
 * OpenBMB's, Meituan's, Tencent's published configurations, and of conversions.)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "latent.h"
#include "test_counts.h"

static const struct {
  const char *model;
  int32_t heads, rank, rotary, nope, v;
} models[] = {
    {"DeepSeek-V2, V3, R1; Mistral Large 3", 128, 512, 64, 128, 128},
    {"DeepSeek-V2-Lite; Moonlight; Youtu-LLM", 16, 512, 64, 128, 128},
    {"Kimi-K2; LongCat-Flash", 64, 512, 64, 128, 128},
    {"Kimi-K3", 96, 512, 64, 128, 128},
    {"Kimi-Linear", 32, 512, 64, 128, 128},
    {"MiniCPM3-4B", 40, 256, 32, 64, 64},
    {"GLM-4.7-Flash", 20, 512, 64, 192, 256},
    {"GLM-5", 64, 512, 64, 192, 256},
    {"Mistral Small 4", 32, 256, 64, 64, 128},
    {"Zebra-Llama-1B", 32, 128, 32, 32, 64},
    {"Cosmo_Math_Alpha", 10, 320, 64, 64, 128},
    {"GLM-5.2 fruit", 16, 256, 32, 64, 64},
};
enum { MODELS = sizeof models / sizeof models[0], WAYS = 4 };

/* The same data whatever the form: the generator starts alike and draws q, rows and projection in one order. */
static void run_way(latent *s, int model, int way, attn_dtype dtype, const char *backend) {
  static const int32_t chunks[] = {0, 8, 16, 64};
  static const int32_t q_len[] = {1, 4}, kv_len[] = {37, 21};
  attn_mla_form form = way == 0 ? ATTN_MLA_LAYER : ATTN_MLA_MHA;
  latent_init(s, form, models[model].heads, models[model].rank, models[model].rotary, models[model].nope,
              models[model].v);
  latent_seqs(s, 2, q_len, kv_len);
  s->problem.batch_invariant = way == 0; /* a layer that absorbs every row */
  s->problem.context_chunk = chunks[way];
  s->problem.q_dtype = s->source = dtype;
  s->problem.out_dtype = strcmp(backend, "REFERENCE") == 0 ? ATTN_DTYPE_FLOAT32 : dtype;
  latent_fill(s, dtype == ATTN_DTYPE_FLOAT32 ? ATTN_FORMAT_FLOAT32 : ATTN_FORMAT_BFLOAT16, 0);
  latent_run(s, backend);
}

/* The largest difference of a row, over the row. */
static double difference(const latent *a, const latent *b) {
  int32_t v = a->problem.mla_v_head_dim;
  double worst = 0.0;
  for (int64_t row = 0; row < (int64_t)a->tokens * a->problem.num_q_heads; row++) {
    double apart = 0.0, size = 0.0;
    for (int64_t i = row * v; i < (row + 1) * v; i++) {
      apart += ((double)a->out[i] - (double)b->out[i]) * ((double)a->out[i] - (double)b->out[i]);
      size += (double)b->out[i] * (double)b->out[i];
    }
    double share = sqrt(apart / size);
    worst = share <= worst ? worst : share;
  }
  return worst;
}

static void in_float32(void **state) {
  double worst = 0.0;
  (void)state;
  for (int m = 0; m < MODELS; m += test_count(1, 4)) {
    latent way[WAYS];
    for (int w = 0; w < WAYS; w++) {
      run_way(&way[w], m, w, ATTN_DTYPE_FLOAT32, "CPU_MLA");
    }
    for (int w = 1; w < WAYS; w++) {
      for (int other = 0; other < w; other++) {
        double apart = difference(&way[w], &way[other]);
        CHECK(apart <= 2e-5, "%s: ways %d and %d differ by %g", models[m].model, w, other, apart);
        worst = apart > worst ? apart : worst;
      }
    }
    for (int w = 0; w < WAYS; w++) {
      latent_free(&way[w]);
    }
  }
  print_message("fp32: %d models, largest difference between two ways %.2g\n", MODELS, worst);
}

static void in_bfloat16(void **state) {
  double worst = 0.0;
  (void)state;
  int step = getenv("ATTN_TEST_FULL") != NULL ? 1 : test_count(3, 6);
  for (int m = 0; m < MODELS; m += step) {
    latent right;
    run_way(&right, m, 0, ATTN_DTYPE_BFLOAT16, "REFERENCE");
    for (int w = 0; w < WAYS; w++) {
      latent s;
      run_way(&s, m, w, ATTN_DTYPE_BFLOAT16, "CPU_MLA");
      double apart = difference(&s, &right);
      CHECK(apart <= 3.0 / 256.0, "%s: way %d is %g from the layer in double", models[m].model, w, apart);
      worst = apart > worst ? apart : worst;
      latent_free(&s);
    }
    latent_free(&right);
  }
  print_message("bfloat16: largest distance from the layer in double %.2g\n", worst);
}

/* 128 heads of 192/128 over 32,768 cached rows in 64 MiB: the workspace does not know the context's length. */
static void long_context_in_little_memory(void **state) {
  attn_context *context = open_context(2);
  attn_problem p = ATTN_PROBLEM_INIT;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  size_t bytes[2];
  (void)state;
  p.num_q_heads = 128;
  p.kv_lora_rank = 512;
  p.qk_rope_head_dim = 64;
  p.qk_nope_head_dim = p.mla_v_head_dim = 128;
  p.mla_form = ATTN_MLA_MHA;
  p.q_dtype = ATTN_DTYPE_BFLOAT16;
  p.block_size = 64;
  p.scale = attn_mla_softmax_scale(192, 1.0, 0.0);
  options.backend = "CPU_MLA";
  for (int i = 0; i < 2; i++) {
    attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
    attn_plan *plan;
    limits.max_tokens = 4096;
    limits.max_kv_len = i == 0 ? 32768 : 1 << 20;
    EXPECT_OK(attn_plan_create(context, &p, &limits, &options, &plan, &why));
    bytes[i] = attn_plan_workspace_bytes(plan);
    attn_plan_destroy(plan);
  }
  CHECK(bytes[0] == bytes[1] && bytes[0] <= (size_t)64 << 20, "%zu bytes for 32,768 keys, %zu for 2^20", bytes[0],
        bytes[1]);
  attn_context_destroy(context);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(in_float32),
      cmocka_unit_test(in_bfloat16),
      cmocka_unit_test(long_context_in_little_memory),
  };
  return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
