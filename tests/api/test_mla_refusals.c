/* SPDX-License-Identifier: Apache-2.0 */
/* What latent problems, pools, weights and calls refuse, by name and with nothing written; and the values of the
   projection in each type. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "latent.h"

/* ---- Problems ---------------------------------------------------------------------------------------------------- */

static attn_problem problem_of(attn_mla_form form) {
  attn_problem p = ATTN_PROBLEM_INIT;
  p.num_q_heads = 4;
  p.kv_lora_rank = 512;
  p.qk_rope_head_dim = 64;
  p.block_size = 16;
  p.scale = 0.07f;
  p.mla_form = form;
  if (form != ATTN_MLA_MQA) {
    p.qk_nope_head_dim = 128;
    p.mla_v_head_dim = 128;
  }
  return p;
}

#define REFUSED(form, field, value, status, named)                                                                     \
  do {                                                                                                                 \
    attn_problem p = problem_of(form);                                                                                 \
    p.field = value;                                                                                                   \
    EXPECT_STATUS(attn_problem_check(&p, &why), status, named);                                                        \
  } while (0)

static void problems(void **state) {
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    attn_problem p = problem_of((attn_mla_form)form);
    EXPECT_OK(attn_problem_check(&p, &why));
    p.num_kv_heads = 1;
    p.qk_head_size = form == ATTN_MLA_MQA ? 576 : 192;
    p.v_head_size = form == ATTN_MLA_MQA ? 512 : 128;
    EXPECT_OK(attn_problem_check(&p, &why));
  }
  REFUSED(ATTN_MLA_MQA, num_kv_heads, 2, ATTN_E_RANGE, "num_kv_heads: 2, accepted: 0 or 1");
  REFUSED(ATTN_MLA_MQA, qk_head_size, 512, ATTN_E_RANGE, "qk_head_size: 512, accepted: 0 or 576");
  REFUSED(ATTN_MLA_MHA, v_head_size, 512, ATTN_E_RANGE, "v_head_size: 512, accepted: 0 or 128");
  REFUSED(ATTN_MLA_MQA, qk_rope_head_dim, -1, ATTN_E_RANGE, "qk_rope_head_dim");
  REFUSED(ATTN_MLA_MQA, qk_rope_head_dim, INT32_MAX, ATTN_E_RANGE, "qk_rope_head_dim");
  REFUSED(ATTN_MLA_MQA, qk_nope_head_dim, 128, ATTN_E_RANGE, "qk_nope_head_dim");
  REFUSED(ATTN_MLA_MQA, mla_v_head_dim, 128, ATTN_E_RANGE, "mla_v_head_dim");
  REFUSED(ATTN_MLA_MQA, context_chunk, 64, ATTN_E_RANGE, "context_chunk");
  REFUSED(ATTN_MLA_MHA, context_chunk, -1, ATTN_E_RANGE, "context_chunk");
  REFUSED(ATTN_MLA_MHA, qk_nope_head_dim, 0, ATTN_E_RANGE, "qk_nope_head_dim");
  REFUSED(ATTN_MLA_LAYER, mla_v_head_dim, 0, ATTN_E_RANGE, "mla_v_head_dim");
  REFUSED(ATTN_MLA_MHA, causal, 0, ATTN_E_RANGE, "causal");
  REFUSED(ATTN_MLA_LAYER, has_causal_per_seq, 1, ATTN_E_RANGE, "has_causal_per_seq");
  REFUSED(ATTN_MLA_LAYER, wants_lse, 1, ATTN_E_RANGE, "wants_lse");
  REFUSED(ATTN_MLA_MQA, q_dtype, ATTN_DTYPE_FP8_E4M3, ATTN_E_DTYPE, "q_dtype: fp8_e4m3");
  REFUSED(ATTN_MLA_MQA, layout, ATTN_LAYOUT_HND, ATTN_E_RANGE, "layout");
  REFUSED(ATTN_MLA_MQA, kv_source, ATTN_KV_DIRECT, ATTN_E_RANGE, "kv_source");
  REFUSED(ATTN_MLA_LAYER, kv_source, ATTN_KV_DIRECT, ATTN_E_RANGE, "kv_source");
  REFUSED(ATTN_MLA_MQA, mla_form, (attn_mla_form)3, ATTN_E_RANGE, "mla_form: 3");
  REFUSED(ATTN_MLA_MQA, k_format, ATTN_FORMAT_FP8_E5M2, ATTN_E_UNSUPPORTED, "fp8_e5m2 does not store latent rows");
  REFUSED(ATTN_MLA_MQA, v_format, ATTN_FORMAT_FLOAT16, ATTN_E_RANGE, "v_format");
  REFUSED(ATTN_MLA_MQA, k_format, ATTN_FORMAT_FP8_DS_MLA, ATTN_E_DTYPE, "rotary_dtype");
  REFUSED(ATTN_MLA_MQA, k_format, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, ATTN_E_DTYPE, "rotary_dtype");
  REFUSED(ATTN_MLA_MQA, rotary_dtype, ATTN_DTYPE_BFLOAT16, ATTN_E_DTYPE, "rotary_dtype: bfloat16");
  REFUSED(ATTN_MLA_MQA, separate_scales, ATTN_SEPARATE_K, ATTN_E_RANGE, "separate_scales");
  attn_problem p = problem_of(ATTN_MLA_MQA);
  p.k_format = ATTN_FORMAT_FP8_DS_MLA;
  p.rotary_dtype = ATTN_DTYPE_BFLOAT16;
  EXPECT_OK(attn_problem_check(&p, &why));
  p.separate_scales = ATTN_SEPARATE_BOTH;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "separate_scales");
  p.separate_scales = ATTN_SEPARATE_NONE;
  p.kv_lora_rank = 256;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "kv_lora_rank: 256 with fp8_ds_mla, accepted: 512");
  p.kv_lora_rank = 512;
  p.qk_rope_head_dim = 32;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "qk_rope_head_dim: 32 with fp8_ds_mla, accepted: 64");
  p.k_format = ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
  p.kv_lora_rank = 8190;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "8192");
}

/* Latent problems never reach another backend, and the reverse; a plan's options. */
static void backends_and_options(void **state) {
  attn_context *context = open_context(1);
  attn_problem absorbed = problem_of(ATTN_MLA_MQA), expanded = problem_of(ATTN_MLA_MHA), plain = ATTN_PROBLEM_INIT;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan *plan = NULL;
  const char *name = NULL;
  (void)state;
  plain.num_q_heads = plain.num_kv_heads = 1;
  plain.qk_head_size = plain.block_size = 16;
  plain.scale = 0.25f;
  limits.max_tokens = limits.max_kv_len = 64;
  EXPECT_OK(attn_select(context, &absorbed, NULL, NULL, &name, &why));
  assert_string_equal(name, "CPU_MLA");
  EXPECT_OK(attn_select(context, &plain, NULL, NULL, &name, &why));
  assert_string_equal(name, "CPU_ATTN");
  options.backend = "CPU_ATTN";
  EXPECT_STATUS(attn_select(context, &absorbed, NULL, &options, &name, &why), ATTN_E_BACKEND, "kv_lora_rank: 512");
  options.backend = "CPU_MLA";
  EXPECT_STATUS(attn_select(context, &plain, NULL, &options, &name, &why), ATTN_E_BACKEND, "kv_lora_rank: 0");
  options.backend = NULL;
  options.num_splits = 2;
  EXPECT_STATUS(attn_plan_create(context, &expanded, &limits, &options, &plan, &why), ATTN_E_RANGE, "num_splits: 2");
  options.num_splits = 0;
  options.split_rule = ATTN_SPLIT_COMPATIBLE;
  EXPECT_STATUS(attn_plan_create(context, &expanded, &limits, &options, &plan, &why), ATTN_E_RANGE, "split_rule");
  absorbed.batch_invariant = 1;
  EXPECT_STATUS(attn_plan_create(context, &absorbed, &limits, &options, &plan, &why), ATTN_E_RANGE, "split_rule");
  assert_null(plan);
  attn_context_destroy(context);
}

/* The rule's own figures: spec's examples for latent problems, 16 segments for others. */
static void compatible_pieces(void **state) {
  static const int32_t lens[] = {511, 1023, 1537, 4096, 70000}, right[] = {1, 1, 4, 8, 8};
  (void)state;
  for (int i = 0; i < 5; i++) {
    latent s;
    int32_t one = 1;
    latent_init(&s, ATTN_MLA_MQA, 1, 2, 0, 1, 1);
    latent_seqs(&s, 1, &one, &lens[i]);
    s.threads = 4;
    s.options.split_rule = ATTN_SPLIT_COMPATIBLE;
    latent_fill(&s, ATTN_FORMAT_FLOAT32, 0);
    latent_open(&s, "CPU_MLA");
    CHECK(s.schedule.splits == right[i], "%d keys, 4 threads: %d pieces, right are %d", lens[i], s.schedule.splits,
          right[i]);
    EXPECT_OK(latent_call(&s));
    latent_close(&s);
    latent_compare(&s, 1.0, "compatible");
    latent_free(&s);
  }
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static void untouched(const latent *s, int32_t v) {
  CHECK(all_bytes(s->out_memory, (size_t)s->tokens * (size_t)s->problem.num_q_heads * (size_t)v * 4, 0xFF),
        "a refused call wrote into out");
}

#define WRONG(field, value, status, named)                                                                             \
  do {                                                                                                                 \
    attn_mla_args kept = s.args;                                                                                       \
    s.args.field = value;                                                                                              \
    EXPECT_STATUS(latent_call(&s), status, named);                                                                     \
    untouched(&s, v);                                                                                                  \
    s.args = kept;                                                                                                     \
  } while (0)

static void calls(void **state) {
  static const int32_t q_len[] = {2, 3}, kv_len[] = {9, 20};
  static const char *const names[] = {"attn_mla_run_mqa", "attn_mla_run_mha", "attn_mla_layer_run"};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    latent s;
    int32_t v = form == ATTN_MLA_MQA ? 16 : 8;
    latent_init(&s, (attn_mla_form)form, 2, 16, 4, 6, 8);
    latent_seqs(&s, 2, q_len, kv_len);
    latent_fill(&s, ATTN_FORMAT_FLOAT32, 0);
    unsigned char *pool = malloc((size_t)s.info.k.bytes);
    assert_non_null(pool);
    memcpy(pool, s.pool, (size_t)s.info.k.bytes);
    latent_open(&s, NULL);
    tensor other;
    int64_t shape[3] = {5, 2, 3};
    tensor_over(&other, s.rows, ATTN_DTYPE_FLOAT32, 3, shape);
    WRONG(q, NULL, ATTN_E_NULL, "q");
    WRONG(q, &other.t, ATTN_E_SHAPE, "q");
    WRONG(out, NULL, ATTN_E_NULL, "out");
    WRONG(kv_cache, NULL, ATTN_E_NULL, "kv_cache");
    WRONG(kv_cache, &other.t, ATTN_E_SHAPE, "kv_cache");
    WRONG(block_table, NULL, ATTN_E_NULL, "block_table");
    WRONG(unchecked, 2, ATTN_E_RANGE, "unchecked");
    WRONG(sinks, &other.t, ATTN_E_NULL, "sinks");
    WRONG(kv_scale, &other.t, ATTN_E_NULL, "kv_scale");
    WRONG(size, 1, ATTN_E_STRUCT_SIZE, "args.size");
    WRONG(out, s.args.q, form == ATTN_MLA_MQA ? ATTN_E_SHAPE : ATTN_E_SHAPE, "out");
    s.table[0] = 1 << 20;
    EXPECT_STATUS(latent_call(&s), ATTN_E_INDEX, form == ATTN_MLA_MQA ? "block_table[0][0]" : NULL);
    untouched(&s, v);
    s.table[0] = 0;
    if (form == ATTN_MLA_MQA) {
      WRONG(kv_c, &other.t, ATTN_E_NULL, "kv_c");
      WRONG(slot_mapping, &other.t, ATTN_E_NULL, "slot_mapping");
      WRONG(q_rope, &other.t, ATTN_E_SHAPE, "q_rope");
    } else {
      WRONG(weights, NULL, ATTN_E_NULL, "weights");
      WRONG(kv_c, NULL, ATTN_E_NULL, "kv_c");
      WRONG(k_pe, NULL, ATTN_E_NULL, "k_pe");
      WRONG(k_pe, s.args.kv_c, ATTN_E_SHAPE, "k_pe");
      WRONG(q_rope, &other.t, ATTN_E_NULL, "q_rope");
      int64_t kept = s.slots[1];
      s.slots[1] = 1 << 30;
      EXPECT_STATUS(latent_call(&s), ATTN_E_INDEX, "slot_mapping[1]");
      s.slots[1] = s.slots[0];
      EXPECT_STATUS(latent_call(&s), ATTN_E_INDEX, "stands twice");
      s.slots[1] = kept;
      assert_memory_equal(pool, s.pool, (size_t)s.info.k.bytes);
    }
    if (form == ATTN_MLA_LAYER) {
      WRONG(slot_mapping, NULL, ATTN_E_NULL, "slot_mapping");
      WRONG(lse, &other.t, ATTN_E_NULL, "lse");
    }
    for (int f = ATTN_MLA_MQA; f <= ATTN_MLA_LAYER; f++) { /* the plan is for one call */
      attn_run_args run = ATTN_RUN_INIT;
      attn_status status = f == ATTN_MLA_MQA   ? attn_mla_run_mqa(s.made, &s.args, &s.workspace, &why)
                           : f == ATTN_MLA_MHA ? attn_mla_run_mha(s.made, &s.args, &s.workspace, &why)
                                               : attn_mla_layer_run(s.made, &s.args, &s.workspace, &why);
      CHECK(f == form ? status == ATTN_OK : status == ATTN_E_STATE && strstr(why.text, names[form]) != NULL,
            "%s with a plan for %s: %s", names[f], names[form], attn_status_name(status));
      EXPECT_STATUS(attn_run(s.made, &run, &s.workspace, &why), ATTN_E_STATE, names[form]);
    }
    latent_close(&s);
    latent_compare(&s, 4.0, names[form]);
    latent_free(&s);
    free(pool);
  }
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

static float e4m3(unsigned char code) {
  return load_element(&code, ATTN_DTYPE_FP8_E4M3, 0);
}

/* A layer of one token that attends to itself alone gives W_UV c: every element of the projection can be seen. */
static void every_type_of_projection(void **state) {
  enum { HEADS = 2, NOPE = 192, V = 256, RANK = 130, ROWS = HEADS * (NOPE + V) };
  static const attn_dtype types[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16, ATTN_DTYPE_FP8_E4M3};
  const int32_t one = 1;
  (void)state;
  for (int t = 0; t < 4; t++) {
    latent s;
    latent_init(&s, ATTN_MLA_LAYER, HEADS, RANK, 4, NOPE, V);
    latent_seqs(&s, 1, &one, &one);
    latent_fill(&s, ATTN_FORMAT_FLOAT32, 0);
    unsigned char *matrix = malloc(ROWS * RANK * 4);
    float scales[(ROWS + 127) / 128][2];
    assert_non_null(matrix);
    for (int i = 0; i < (ROWS + 127) / 128; i++) {
      scales[i][0] = 0.01f * (float)(i + 1);
      scales[i][1] = 0.02f * (float)(i + 3);
    }
    for (int64_t i = 0; i < ROWS * RANK; i++) {
      if (types[t] == ATTN_DTYPE_FP8_E4M3) {
        matrix[i] = (unsigned char)(random_bits(&s.random) % 0x7F | (random_bits(&s.random) & 0x80));
        s.w[i] = e4m3(matrix[i]) * scales[i / RANK / 128][i % RANK / 128];
      } else {
        store_element(matrix, types[t], i, s.w[i]);
        s.w[i] = load_element(matrix, types[t], i);
      }
    }
    attn_mla_weights_args args = ATTN_MLA_WEIGHTS_ARGS_INIT;
    attn_context *context = open_context(1);
    tensor w, scale;
    int64_t shape[2] = {ROWS, RANK}, blocks[2] = {(ROWS + 127) / 128, 2};
    tensor_over(&w, matrix, types[t], 2, shape);
    tensor_over(&scale, scales, ATTN_DTYPE_FLOAT32, 2, blocks);
    args.num_heads = HEADS;
    args.kv_lora_rank = RANK;
    args.qk_nope_head_dim = NOPE;
    args.v_head_dim = V;
    args.w_kv_b = &w.t;
    args.w_scale = types[t] == ATTN_DTYPE_FP8_E4M3 ? &scale.t : NULL;
    attn_mla_weights_destroy(s.weights);
    EXPECT_OK(attn_mla_weights_create(context, &args, &s.weights, &why));
    latent_run(&s, "CPU_MLA");
    latent_compare(&s, 4.0, attn_dtype_name(types[t]));
    latent_run(&s, "REFERENCE");
    latent_compare(&s, 4.0, attn_dtype_name(types[t]));
    attn_mla_weights *none = NULL;
    args.w_scale = types[t] == ATTN_DTYPE_FP8_E4M3 ? NULL : &scale.t;
    EXPECT_STATUS(attn_mla_weights_create(context, &args, &none, &why), ATTN_E_NULL, "w_scale");
    args.w_scale = types[t] == ATTN_DTYPE_FP8_E4M3 ? &scale.t : NULL;
    args.kv_lora_rank = 0;
    EXPECT_STATUS(attn_mla_weights_create(context, &args, &none, &why), ATTN_E_RANGE, "kv_lora_rank");
    args.kv_lora_rank = RANK - 1;
    EXPECT_STATUS(attn_mla_weights_create(context, &args, &none, &why), ATTN_E_SHAPE, "w_kv_b");
    args.kv_lora_rank = RANK;
    scales[3][1] = INFINITY;
    if (args.w_scale != NULL) {
      EXPECT_STATUS(attn_mla_weights_create(context, &args, &none, &why), ATTN_E_RANGE, "w_scale[3][1]");
    }
    assert_null(none);
    attn_context_destroy(context);
    latent_free(&s);
    free(matrix);
  }
}

static void softmax_scales(void **state) {
  (void)state;
  assert_true(attn_mla_softmax_scale(192, 1.0, 0.0) == (float)(1.0 / sqrt(192.0)));
  assert_true(attn_mla_softmax_scale(192, 0.5, 1.0) == (float)(1.0 / sqrt(192.0)));
  double m = 0.1 * 0.707 * log(40.0) + 1.0; /* DeepSeek-V2 */
  assert_true(attn_mla_softmax_scale(192, 40.0, 0.707) == (float)(m * m / sqrt(192.0)));
  assert_true(attn_mla_softmax_scale(0, 1.0, 1.0) == 0.0f);
  assert_true(attn_mla_softmax_scale(192, INFINITY, 1.0) == 0.0f);
  assert_true(attn_mla_softmax_scale(192, 40.0, NAN) == 0.0f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(problems), cmocka_unit_test(backends_and_options),     cmocka_unit_test(compatible_pieces),
      cmocka_unit_test(calls),    cmocka_unit_test(every_type_of_projection), cmocka_unit_test(softmax_scales),
  };
  return cmocka_run_group_tests_name("latent refusals", tests, NULL, NULL);
}
