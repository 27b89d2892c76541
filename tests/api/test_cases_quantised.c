/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 98 to 115: attention over quantised caches. Scales of the right head and slot, fp8 queries, sizes that are no
   power of two or whose scale lies at an odd byte; and every pair of formats with every mask and option. */
#include <math.h>
#include <string.h>

#include "quantising.h"
#include "scene.h"

/* ---- every pair, with each mask and option ----------------------------------------------------------------------- */

enum { WINDOW, CHUNK, PREFIX, SOFTCAP, ALIBI, SINKS, BIAS, PER_SEQ, NON_CAUSAL, FEATURES };

static void add_feature(scene *s, int feature) {
  static const int32_t ranges[] = {2, 9, 20, 31, 0, 5, 4, 4}, causal[] = {0, 1};
  switch (feature) {
  case WINDOW:
    s->problem.window_left = 9;
    break;
  case CHUNK:
    s->problem.chunk_size = 7;
    s->problem.chunk_lookback = 1;
    break;
  case PREFIX:
    scene_ranges(s, 2, ranges);
    break;
  case SOFTCAP:
    s->problem.softcap = 1.5f;
    break;
  case ALIBI:
    scene_alibi(s, ATTN_ALIBI_SQRT);
    break;
  case SINKS:
    scene_sinks(s, 0.7f);
    break;
  case BIAS:
    scene_bias(s, 1);
    break;
  case PER_SEQ:
    scene_causal(s, causal);
    break;
  default:
    s->problem.causal = 0;
    break;
  }
}

static void one_pair(const char *backend, attn_format k, attn_format v) {
  static const int32_t q_len[] = {3, 1}, kv_len[] = {37, 21};
  static int n;
  for (int feature = 0; feature < FEATURES; feature++, n++) {
    scene s;
    scene_init(&s, 6, 3, n % 2 ? 40 : 17, n % 3 ? 0 : 24);
    scene_pair(&s, k, v);
    scene_scales(&s, n % 3);
    s.problem.layout = n % 4 < 2 ? ATTN_LAYOUT_NHD : ATTN_LAYOUT_HND;
    s.problem.block_size = n % 5 ? 16 : 3;
    s.poison = (scene_poison)(n % 3);
    scene_seqs(&s, 2, q_len, kv_len);
    add_feature(&s, feature);
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

/* Every ordered pair that a backend has attention over. */
static void pairs_of(const char *backend, attn_format k) {
  for (int v = ATTN_FORMAT_FLOAT32; v <= ATTN_FORMAT_INT4_PER_TOKEN_HEAD; v++) {
    if (backend_serves(backend, k, (attn_format)v)) {
      one_pair(backend, k, (attn_format)v);
    }
  }
}

static void every_pair_and_option(void **state) {
  (void)state;
  for_each_cache(pairs_of);
}

/* ---- 98: the scales count whatever type q has -------------------------------------------------------------------- */

static void query_types(const char *backend, attn_format k, attn_format v) {
  static const attn_dtype types[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16, ATTN_DTYPE_FP8_E4M3,
                                     ATTN_DTYPE_FP8_E4M3};
  int fp8 = backend_serves_fp8_queries(backend);
  for (int n = 0; n < 15 && (types[n / 3] != ATTN_DTYPE_FP8_E4M3 || fp8); n++) {
    scene s;
    scene_init(&s, 4, 2, 32, 32);
    scene_pair(&s, k, v);
    scene_scales(&s, n % 3); /* static: K 0.25 and 4, V 0.5 and 0.03125 */
    s.problem.q_dtype = types[n / 3];
    s.problem.out_dtype = n % 2 ? ATTN_DTYPE_BFLOAT16 : ATTN_DTYPE_FLOAT32;
    s.q_scale = n < 12 ? 1.0f : 0.0075f;
    scene_one(&s, 3, 40);
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void case_098_scales_with_fp8_queries(void **state) {
  (void)state;
  for_each_pair(query_types);
}

/* ---- 102: scales of each head ------------------------------------------------------------------------------------ */

static void head_scales(const char *backend, attn_format format) {
  static const float scales[] = {1, 4}, one[] = {2};
  for (int n = 0; n < 2; n++) {
    scene s;
    scene_init(&s, 4, 2, 32, 32);
    scene_format(&s, format);
    s.k_statics = s.v_statics = n ? one : scales;
    s.num_statics = n ? 1 : 2;
    scene_one(&s, 2, 20);
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void case_102_scale_of_each_head(void **state) {
  (void)state;
  for_each_cache(head_scales);
}

/* ---- 109, 110: any head size, scales at odd bytes ---------------------------------------------------------------- */

static void size_of(const char *backend, attn_format format, int32_t size, int separate) {
  scene s;
  scene_init(&s, 8, 2, size, size);
  scene_format(&s, format);
  scene_scales(&s, separate);
  s.problem.causal = size % 3 != 0;
  scene_one(&s, 2, 19);
  scene_prove(&s, backend);
  scene_free(&s);
}

static void any_size(const char *backend, attn_format format) {
  static const int32_t sizes[] = {1, 2, 3, 17, 40, 96, 127, 128, 192, 320};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    size_of(backend, format, sizes[i], (int)(i % 2));
  }
}

static void case_109_any_head_size(void **state) {
  (void)state;
  for_each_cache(any_size);
}

static void odd_bytes(const char *backend, attn_format format) {
  for (int32_t size = 65; size <= 67; size++) {
    size_of(backend, format, size, 0);
    size_of(backend, format, size, 1);
  }
}

static void case_110_scale_after_odd_bytes(void **state) {
  (void)state;
  for_each_cache(odd_bytes);
}

/* ---- 111: an inline scale makes a row of 256 codes 260 bytes: rows may be padded, or their scales lie apart ------ */

static void in_one_lay(const char *backend, attn_format format, quantising_lay lay, int separate, float *out) {
  enum { HEADS = QUANTISING_HEADS * QUANTISING_GROUP };
  static float query[HEADS * 256];
  float lse[HEADS];
  int32_t table[] = {3, 1};
  uint32_t seed = 9;
  quantising q = {.context = open_context(1), .backend = backend, .layout = ATTN_LAYOUT_NHD};
  for (int i = 0; i < 2; i++) {
    q.side[i].format = format;
    q.side[i].size = 256;
    q.side[i].separate = separate;
  }
  for (int i = 0; i < HEADS * 256; i++) {
    query[i] = random_normal(&seed);
  }
  quantising_open(&q, lay);
  CHECK(q.side[0].pool.shape[3] == (format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? 128 : 256) + (separate ? 0 : 4),
        "a row has %d bytes", (int)q.side[0].pool.shape[3]);
  for (int64_t t = 0; t < QUANTISING_TOKENS; t++) {
    q.slots[t] = table[t / QUANTISING_BLOCK] * QUANTISING_BLOCK + t % QUANTISING_BLOCK;
  }
  attn_cache_write_args write = quantising_write(&q);
  EXPECT_OK(attn_cache_write(q.context, &write, &why));
  quantising_call call = {.num_seqs = 1,
                          .q_len = {1},
                          .kv_len = {QUANTISING_TOKENS},
                          .width = 2,
                          .table = table,
                          .window_left = -1,
                          .query = query,
                          .out = out,
                          .lse = lse};
  quantising_attend(&q, &call);
  quantising_close(&q);
  attn_context_destroy(q.context);
}

static void lays_of_256(const char *backend, attn_format format) {
  float inline_out[QUANTISING_HEADS * QUANTISING_GROUP * 256], out[QUANTISING_HEADS * QUANTISING_GROUP * 256];
  if (!format_has_row_scale(format)) {
    return;
  }
  in_one_lay(backend, format, LAY_COMPACT, 0, inline_out);
  for (int lay = LAY_COMPACT; lay <= LAY_PADDED; lay++) {
    for (int separate = 0; separate < 2; separate++) {
      in_one_lay(backend, format, (quantising_lay)lay, separate, out);
      CHECK(memcmp(inline_out, out, sizeof out) == 0, "lay %d, scales %s: other bits", lay,
            separate ? "apart" : "inline");
    }
  }
}

static void case_111_scales_inline_or_apart(void **state) {
  (void)state;
  for_each_cache(lays_of_256);
}

/* ---- 115: grouped heads of 256 ---------------------------------------------------------------------------------- */

static void grouped_256(const char *backend, attn_format format) {
  scene s;
  scene_init(&s, 4, 1, 256, 256);
  scene_pair(&s, format, ATTN_FORMAT_INT8_PER_TOKEN_HEAD);
  scene_one(&s, 3, 33);
  if (backend_serves(backend, format, ATTN_FORMAT_INT8_PER_TOKEN_HEAD)) {
    scene_prove(&s, backend);
  }
  scene_free(&s);
}

static void case_115_int8_values_of_256(void **state) {
  (void)state;
  for_each_cache(grouped_256);
}

/* ---- arguments of plan and run ----------------------------------------------------------------------------------- */

static void problems(void **state) {
  attn_problem p = ATTN_PROBLEM_INIT;
  (void)state;
  p.num_q_heads = p.num_kv_heads = 2;
  p.qk_head_size = 64;
  p.scale = 0.125f;
  p.k_format = ATTN_FORMAT_FP8_DS_MLA;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_UNSUPPORTED, "fp8_ds_mla");
  p.k_format = ATTN_FORMAT_INT8_PER_TOKEN_HEAD;
  for (int32_t separate = ATTN_SEPARATE_NONE; separate <= ATTN_SEPARATE_V; separate++) {
    p.separate_scales = separate;
    EXPECT_OK(attn_problem_check(&p, &why));
  }
  p.separate_scales = 4;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "separate_scales");
  p.v_format = ATTN_FORMAT_FP8_E4M3;
  p.separate_scales = ATTN_SEPARATE_V; /* a static scale is not one of a row */
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "separate_scales");
  p.separate_scales = ATTN_SEPARATE_BOTH;
  EXPECT_OK(attn_problem_check(&p, &why));
  p.k_format = ATTN_FORMAT_FLOAT16;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "separate_scales");
  p.separate_scales = 0;
  p.k_format = ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
  p.qk_head_size = 8193;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "qk_head_size");
  p.k_format = ATTN_FORMAT_FP8_E5M2;
  EXPECT_OK(attn_problem_check(&p, &why));
  p.v_format = ATTN_FORMAT_FP8_PER_TOKEN_HEAD;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "v_head_size");
  p.qk_head_size = 64;
  p.kv_source = ATTN_KV_DIRECT;
  p.k_format = p.v_format = ATTN_FORMAT_AUTO;
  p.q_dtype = ATTN_DTYPE_FP8_E4M3;
  EXPECT_OK(attn_problem_check(&p, &why)); /* kv_dtype and out_dtype are bfloat16 */
  p.kv_dtype = ATTN_DTYPE_FP8_E4M3;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_DTYPE, "kv_dtype");
  p.kv_dtype = ATTN_DTYPE_DEFAULT;
  p.separate_scales = ATTN_SEPARATE_BOTH;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_RANGE, "separate_scales");
  p.separate_scales = 0;
  p.q_dtype = ATTN_DTYPE_FP8_E5M2;
  EXPECT_STATUS(attn_problem_check(&p, &why), ATTN_E_DTYPE, "q_dtype");
}

static void refuse(scene *s, attn_status status, const char *named) {
  EXPECT_STATUS(scene_step(s, &why), status, named);
}

static void row_scale_arguments(const char *backend, attn_format format) {
  scene s;
  for (int separate = 0; format_has_row_scale(format) && separate < 2; separate++) {
    scene_init(&s, 4, 2, 17, 17);
    scene_format(&s, format);
    s.problem.separate_scales = separate;
    scene_one(&s, 1, 20);
    scene_store(&s);
    scene_open(&s, backend);
    const DLTensor *k_scale = s.args.k_scale, *v_scale = s.args.v_scale;
    if (!separate) {
      s.args.k_scale = &s.t_lse.t;
      refuse(&s, ATTN_E_NULL, "k_scale");
      s.args.k_scale = NULL;
      s.t_k.shape[3]--;
      refuse(&s, ATTN_E_SHAPE, "inline");
      s.t_k.shape[3]++;
    } else {
      s.args.v_scale = NULL;
      refuse(&s, ATTN_E_NULL, "v_scale");
      s.args.v_scale = v_scale;
      s.t_k_scale.shape[0]--; /* a scale for each row of the pool */
      refuse(&s, ATTN_E_SHAPE, "k_scale");
      s.t_k_scale.shape[0]++;
      s.t_k_scale.t.dtype.bits = 16;
      refuse(&s, ATTN_E_DTYPE, "k_scale");
      s.t_k_scale.t.dtype.bits = 32;
      s.t_k_scale.t.data = s.out_data.data; /* an input in the output */
      s.t_k_scale.strides[0] = s.t_k_scale.strides[1] = s.t_k_scale.strides[2] = 0;
      refuse(&s, ATTN_E_OVERLAP, "k_scale");
      s.args.k_scale = NULL;
      refuse(&s, ATTN_E_NULL, "k_scale");
    }
    (void)k_scale;
    scene_close(&s);
    scene_free(&s);
  }
}

static void static_scale_arguments(const char *backend, attn_format format) {
  static const float bad[] = {0, -1, NAN, INFINITY};
  scene s;
  float scales[2] = {1, 1};
  if (!format_is_static(format)) {
    return;
  }
  scene_init(&s, 4, 2, 16, 16);
  scene_format(&s, format);
  s.k_statics = s.v_statics = scales;
  s.num_statics = 2;
  scene_one(&s, 1, 20);
  scene_store(&s);
  scene_open(&s, backend);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    scales[1] = bad[i];
    refuse(&s, ATTN_E_RANGE, "k_scale[1]");
  }
  scales[1] = 1;
  tensor wrong;
  tensor_1(&wrong, scales, ATTN_DTYPE_FLOAT32, 3);
  s.args.v_scale = &wrong.t;
  refuse(&s, ATTN_E_SHAPE, "v_scale");
  s.args.v_scale = NULL; /* 1, as they all are */
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  s.args.q_scale = &wrong.t;
  refuse(&s, ATTN_E_NULL, "q_scale");
  scene_close(&s);
  scene_free(&s);
}

static void float_and_query_arguments(const char *backend) {
  scene s;
  scene_init(&s, 4, 2, 16, 16);
  scene_one(&s, 1, 20);
  scene_store(&s);
  scene_open(&s, backend);
  s.args.k_scale = &s.t_lse.t;
  refuse(&s, ATTN_E_NULL, "k_scale");
  scene_close(&s);
  scene_free(&s);
  if (!backend_serves_fp8_queries(backend)) {
    return;
  }
  static const float bad[] = {0, -1, NAN, INFINITY};
  scene_init(&s, 4, 2, 16, 16);
  scene_format(&s, ATTN_FORMAT_BFLOAT16);
  s.problem.q_dtype = ATTN_DTYPE_FP8_E4M3;
  scene_one(&s, 1, 20);
  scene_store(&s);
  scene_open(&s, backend);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    s.q_scale = bad[i];
    refuse(&s, ATTN_E_RANGE, "q_scale");
  }
  s.q_scale = 1;
  s.t_q_scale.shape[0] = 2;
  refuse(&s, ATTN_E_SHAPE, "q_scale");
  s.args.q_scale = NULL;
  refuse(&s, ATTN_E_NULL, "q_scale");
  scene_close(&s);
  scene_free(&s);
}

static void arguments(void **state) {
  (void)state;
  for_each_cache(row_scale_arguments);
  for_each_cache(static_scale_arguments);
  for_each_backend(float_and_query_arguments);
}

/* ---- rows that decode to NaN ------------------------------------------------------------------------------------- */

/* Only the rows that see it. */
static void nan_rows(const char *backend, attn_format format) {
  scene s;
  scene_init(&s, 2, 1, 32, 32);
  scene_format(&s, format);
  scene_one(&s, 4, 40);
  scene_k(&s, 0, 38, 0)[5] = NAN; /* seen by the last two rows */
  scene_store(&s);
  scene_run(&s, backend);
  for (int64_t row = 0; row < 4; row++) {
    int sees = row >= 2;
    CHECK(isnan(*scene_lse(&s, row, 0)) == sees && isnan(scene_out(&s, row, 1)[7]) == sees, "row %d", (int)row);
  }
  scene_free(&s);
}

static void a_nan_in_the_cache(void **state) {
  (void)state;
  for_each_cache(nan_rows);
}

/* ---- bytes that nobody owns -------------------------------------------------------------------------------------- */

/* Whatever they hold, scale slots of foreign positions included, the bits are the same. */
static void same_bits_over(const char *backend, attn_format format) {
  for (int separate = 0; separate < 2; separate++) {
    scene s[3];
    for (int poison = 0; poison < 3; poison++) {
      scene_init(&s[poison], 4, 2, 40, 24);
      scene_format(&s[poison], format);
      scene_scales(&s[poison], separate);
      s[poison].problem.window_left = 20;
      s[poison].poison = (scene_poison)poison;
      scene_one(&s[poison], 3, 50);
      scene_prove(&s[poison], backend);
      CHECK(same_bits(s[0].out, s[poison].out, scene_out_count(&s[0])) &&
                same_bits(s[0].lse, s[poison].lse, scene_lse_count(&s[0])),
            "poison %d changes a bit", poison);
    }
    for (int poison = 0; poison < 3; poison++) {
      scene_free(&s[poison]);
    }
  }
}

static void poison_changes_no_bit(void **state) {
  (void)state;
  for_each_cache(same_bits_over);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_pair_and_option),
      cmocka_unit_test(case_098_scales_with_fp8_queries),
      cmocka_unit_test(case_102_scale_of_each_head),
      cmocka_unit_test(case_109_any_head_size),
      cmocka_unit_test(case_110_scale_after_odd_bytes),
      cmocka_unit_test(case_111_scales_inline_or_apart),
      cmocka_unit_test(case_115_int8_values_of_256),
      cmocka_unit_test(problems),
      cmocka_unit_test(arguments),
      cmocka_unit_test(a_nan_in_the_cache),
      cmocka_unit_test(poison_changes_no_bit),
  };
  return cmocka_run_group_tests_name("cases_quantised", tests, NULL, NULL);
}
