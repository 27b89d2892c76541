/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 75 to 91: head counts and sizes, page sizes, pool sizes, strides, layouts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"
#include "test_counts.h"

/* Long problems, of which a sanitized tree has time for every third pair. */
static int is_left_out(attn_format k, attn_format v) {
  return ((int)k + (int)v) % test_count(1, 3) != 0;
}

/* ---- 75: query heads have to be a multiple of KV heads */

static void odd_heads(const char *backend, attn_format k, attn_format v) {
  static const int32_t heads[][2] = {{33, 2}, {3, 2}, {2, 4}};
  attn_context *context = open_context(1);
  for (size_t i = 0; i < 3; i++) {
    attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
    attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
    attn_plan *plan = NULL;
    scene s;
    scene_init(&s, heads[i][0], heads[i][1], 16, 16);
    scene_pair(&s, k, v);
    limits.max_tokens = 1;
    limits.max_kv_len = 16;
    options.backend = backend;
    EXPECT_STATUS(attn_plan_create(context, &s.problem, &limits, &options, &plan, &why), ATTN_E_RANGE, "num_q_heads");
    CHECK(plan == NULL, "a failing call set the plan");
  }
  attn_context_destroy(context);
}

static void case_075_query_heads_not_divisible(void **state) {
  (void)state;
  for_each_pair(odd_heads);
}

/* ---- 79: a head size with a tail, long, non-causal, between guard pages */

/* 1000 rows as an encoder in float32, fewer rows on 1000 keys in the other types and from a cache, and over codes or
   where K and V differ. */
static void image_attention(const char *backend, attn_format k, attn_format v) {
  int is_codes = k > ATTN_FORMAT_BFLOAT16 || k != v;
  if (is_left_out(k, v)) {
    return;
  }
  for (int source = is_codes; source < 2; source++) {
    scene s;
    scene_init(&s, 1, 1, 72, 72);
    s.problem.kv_source = source == 0 ? ATTN_KV_DIRECT : ATTN_KV_CACHE;
    s.problem.block_size = source == 0 ? 0 : 16;
    scene_format(&s, k);
    if (source == 1) {
      scene_pair(&s, k, v);
      scene_scales(&s, 1);
    }
    s.problem.causal = 0;
    s.extra_columns = 0;
    s.extra_blocks = 0;
    s.check_step = 97;
    scene_one(&s, source == 0 && k == ATTN_FORMAT_FLOAT32 ? 1000 : is_codes ? 10 : 100, 1000);
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void case_079_head_size_72_non_causal(void **state) {
  (void)state;
  for_each_pair(image_attention);
}

/* ---- 80: K rows and V rows of different sizes (the latent part is not built) */

static void unlike_sizes(const char *backend, attn_format k, attn_format v) {
  static const int32_t sizes[][2] = {{192, 128}, {96, 64}, {64, 96}, {1, 5}, {65, 33}};
  static const int32_t q_len[] = {1, 6};
  static const int32_t kv_len[] = {37, 21};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    scene s;
    scene_init(&s, 4, 2, sizes[i][0], sizes[i][1]);
    scene_pair(&s, k, v);
    scene_scales(&s, (int)i % 3);
    scene_seqs(&s, 2, q_len, kv_len);
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void case_080_k_size_differs_from_v_size(void **state) {
  (void)state;
  for_each_pair(unlike_sizes);
}

/* ---- 81: pages of one position */

static void pages_of_one(const char *backend, attn_format k, attn_format v) {
  static const int32_t ids[] = {2, 0, 1};
  for (int place = 0; place < 2; place++) {
    scene s;
    scene_init(&s, 2, 2, 16, 16);
    scene_pair(&s, k, v);
    scene_scales(&s, place);
    s.problem.block_size = 1;
    s.fixed_blocks = ids;
    s.extra_blocks = 0;
    scene_one(&s, 1, 3);
    scene_store(&s);
    CHECK(s.t_k.shape[0] == 3 && s.t_k.shape[1] == 1, "the pool is not 3 pages of 1");
    scene_run(&s, backend);
    scene_check(&s);
    scene_free(&s);
  }
}

static void case_081_page_size_1(void **state) {
  (void)state;
  for_each_pair(pages_of_one);
}

/* ---- 83: any page size */

static void any_page(const char *backend, attn_format k, attn_format v) {
  static const int32_t sizes[] = {1, 3, 7, 8, 48, 480, 528, 544, 784, 1600};
  int is_wanted_pair = k == ATTN_FORMAT_INT8_PER_TOKEN_HEAD && v == ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    scene s;
    if (sizes[i] > 48 && k != v && !is_wanted_pair) {
      continue; /* long sequences take their time */
    }
    scene_init(&s, 2, 1, 16, 16);
    scene_pair(&s, k, v);
    scene_scales(&s, (int)i % 2);
    s.problem.block_size = sizes[i];
    scene_one(&s, 2, 2 * sizes[i] + 1);
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void case_083_page_sizes_not_a_power_of_two(void **state) {
  (void)state;
  for_each_pair(any_page);
}

/* ---- 84: a huge page is not a tile */

static void huge_page(const char *backend, attn_format k, attn_format v) {
  static const int32_t sizes[] = {16, 2048};
  uint64_t on_chip[2];
  uint64_t bytes[2];
  if (is_left_out(k, v)) {
    return;
  }
  for (size_t i = 0; i < 2; i++) {
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    scene s;
    scene_init(&s, 2, 1, 128, 128);
    scene_pair(&s, k, v);
    scene_scales(&s, 2);
    s.problem.block_size = sizes[i];
    s.extra_blocks = 1;
    scene_one(&s, 1, 2100);
    scene_store(&s);
    scene_open(&s, backend);
    EXPECT_OK(scene_step(&s, &why));
    scene_check(&s);
    s.options.backend = backend;
    EXPECT_OK(attn_explain(s.context, &s.problem, NULL, &s.options, &explanation, &why));
    on_chip[i] = explanation.on_chip_bytes;
    bytes[i] = attn_plan_workspace_bytes(s.plan);
    scene_close(&s);
    scene_free(&s);
  }
  CHECK(on_chip[0] == on_chip[1] && bytes[0] == bytes[1], "the page size changes the tile");
}

static void case_084_huge_page_is_not_a_tile(void **state) {
  (void)state;
  for_each_pair(huge_page);
}

/* ---- 86: the table's width is not the pool's size */

static void narrow_table_wide_pool(const char *backend, attn_format k, attn_format v) {
  static const int32_t ids[] = {97, 3};
  for (int place = 0; place < 2; place++) {
    scene s;
    scene_init(&s, 2, 1, 16, 16);
    scene_pair(&s, k, v);
    scene_scales(&s, place);
    s.fixed_blocks = ids;
    s.extra_blocks = 2;
    s.extra_columns = 0;
    scene_one(&s, 1, 30);
    scene_store(&s);
    CHECK(s.t_k.shape[0] == 100 && s.t_table.shape[1] == 2, "not 100 pages and 2 columns");
    scene_run(&s, backend);
    scene_check(&s);
    scene_free(&s);
  }
}

static void case_086_table_width_is_not_pool_size(void **state) {
  (void)state;
  for_each_pair(narrow_table_wide_pool);
}

/* ---- 87: real block strides, K and V in one allocation */

static void shared_allocation(const char *backend, attn_format k, attn_format v) {
  static const int32_t q_len[] = {1, 5};
  static const int32_t kv_len[] = {35, 20};
  for (int place = 0; place < 3; place++) {
    scene s;
    scene_init(&s, 4, 2, 16, 16);
    scene_pair(&s, k, v);
    scene_scales(&s, place);
    s.interleaved = 1;
    scene_seqs(&s, 2, q_len, kv_len);
    scene_store(&s);
    CHECK(place == 2 || k != v || s.t_k.strides[0] == 2 * 16 * 2 * s.t_k.shape[3],
          "the block stride is not twice the compact one");
    scene_run(&s, backend);
    scene_check(&s);
    scene_free(&s);
  }
}

static void case_087_real_block_stride(void **state) {
  (void)state;
  for_each_pair(shared_allocation);
}

/* ---- 89: strides count in every call */

static void strided_twice(const char *backend, attn_format k, attn_format v) {
  static const int32_t q_len[] = {1, 7};
  static const int32_t kv_len[] = {35, 20};
  scene s;
  scene_init(&s, 4, 2, 16, 16);
  scene_pair(&s, k, v);
  scene_scales(&s, 1);
  s.q_stride = 29;
  s.spare_rows = 2;
  scene_seqs(&s, 2, q_len, kv_len);
  scene_store(&s);
  scene_open(&s, backend);
  for (int i = 0; i < 3; i++) {
    EXPECT_OK(scene_step(&s, &why));
    scene_check(&s);
  }
  scene_close(&s);
  scene_free(&s);
}

static void case_089_strided_query_in_every_call(void **state) {
  (void)state;
  for_each_pair(strided_twice);
}

/* ---- 91: heads before tokens, or tokens before heads */

static void layouts(const char *backend, attn_format k, attn_format v) {
  static const int32_t q_len[] = {1, 5, 20};
  static const int32_t kv_len[] = {35, 20, 20};
  float first[26 * 4 * 24];
  for (int n = 0; n < 4; n++) { /* scales inline and apart too: all have the same content */
    scene s;
    scene_init(&s, 4, 2, 16, 24);
    scene_pair(&s, k, v);
    scene_scales(&s, n / 2);
    s.problem.layout = n % 2 ? ATTN_LAYOUT_HND : ATTN_LAYOUT_NHD;
    scene_seqs(&s, 3, q_len, kv_len);
    scene_prove(&s, backend);
    CHECK(n == 0 || same_bits(first, s.out, scene_out_count(&s)), "layout %d gives other bits than the first", n);
    memcpy(first, s.out, sizeof first);
    scene_free(&s);
  }
}

static void case_091_layout_request_obeyed(void **state) {
  (void)state;
  for_each_pair(layouts);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_075_query_heads_not_divisible),     cmocka_unit_test(case_079_head_size_72_non_causal),
      cmocka_unit_test(case_080_k_size_differs_from_v_size),    cmocka_unit_test(case_081_page_size_1),
      cmocka_unit_test(case_083_page_sizes_not_a_power_of_two), cmocka_unit_test(case_084_huge_page_is_not_a_tile),
      cmocka_unit_test(case_086_table_width_is_not_pool_size),  cmocka_unit_test(case_087_real_block_stride),
      cmocka_unit_test(case_089_strided_query_in_every_call),   cmocka_unit_test(case_091_layout_request_obeyed),
  };
  return cmocka_run_group_tests_name("cases_heads", tests, NULL, NULL);
}
