/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input and odd input: block ids and lengths against the table, the pool and the masks; packed K and V; NULL
 * strides and byte offsets; extents that only stride tricks can name. test_run.c, test_cache_*.c, test_merge.c and
 * test_problem.c refuse bad tensors and fields one by one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

static int32_t *table_of(scene *s) {
  return (int32_t *)(void *)s->table_data.data;
}

/* ---- Ids and lengths */

static void ids_that_a_mask_shows(const char *backend) {
  static const int32_t bad[] = {-1, 8, INT32_MAX, INT32_MIN, 1 << 30};
  static const int32_t q_len[] = {1, 3};
  static const int32_t kv_len[] = {40, 33};
  for (int path = 0; path < 2; path++) {
    scene s;
    scene_init(&s, 2, 1, 16, 16);
    s.extra_blocks = 2;
    scene_seqs(&s, 2, q_len, kv_len);
    scene_store(&s);
    CHECK(s.t_k.shape[0] == 8, "the pool has %d blocks", (int)s.t_k.shape[0]);
    scene_open(&s, backend);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
      int64_t at = path * s.t_table.shape[1] + (int64_t)(i % 3);
      int32_t kept = table_of(&s)[at];
      table_of(&s)[at] = bad[i];
      EXPECT_STATUS(scene_step(&s, &why), ATTN_E_INDEX, "block_table");
      table_of(&s)[at] = kept;
    }
    EXPECT_OK(scene_step(&s, &why));
    scene_check(&s);
    scene_close(&s);
    scene_free(&s);
  }
}

/* Columns that no row's mask shows may hold anything: left of a window, before a chunk. */
static void ids_that_nobody_sees(const char *backend, attn_format format) {
  for (int form = 0; form < 4; form++) {
    scene s;
    scene_init(&s, 2, 1, 16, 16);
    scene_format(&s, format);
    if (form == 0) {
      s.problem.window_left = 10; /* row 38 on sees 28 on: block 0 is hidden */
    } else if (form == 1) {
      s.problem.chunk_size = 20; /* rows 38, 39 see 20 on */
    } else {
      s.problem.causal = 0;
      s.problem.window_left = form == 2 ? 3 : 0;
      s.problem.window_right = form == 2 ? 0 : 4;
    }
    scene_one(&s, 2, 40);
    scene_store(&s);
    table_of(&s)[0] = form % 2 == 0 ? INT32_MAX : -7;
    scene_run(&s, backend);
    scene_check(&s);
    scene_free(&s);
  }
}

/* A hidden position becomes visible through a prefix range, or to one row of several. */
static void ids_that_one_row_sees(const char *backend) {
  static const int32_t ranges[] = {3, 40};
  scene s;
  scene_init(&s, 2, 1, 16, 16);
  s.problem.window_left = 10;
  scene_one(&s, 2, 40);
  scene_ranges(&s, 1, ranges);
  scene_store(&s);
  scene_open(&s, backend);
  table_of(&s)[0] = 99;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_INDEX, "block_table");
  s.ranges[0] = 16; /* now block 0 lies outside the range */
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  scene_close(&s);
  scene_free(&s);
  scene_init(&s, 2, 1, 16, 16);
  s.problem.window_left = 10;
  scene_one(&s, 15, 40); /* row 0 stands at 25 and sees 15 */
  scene_store(&s);
  scene_open(&s, backend);
  table_of(&s)[0] = 99;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_INDEX, "block_table");
  scene_close(&s);
  scene_free(&s);
}

static void id_0_is_an_ordinary_block(const char *backend, attn_format format) {
  static const int32_t ids[] = {0, 2, 1};
  scene s;
  scene_init(&s, 2, 1, 16, 16);
  scene_format(&s, format);
  s.fixed_blocks = ids;
  scene_one(&s, 2, 45);
  scene_prove(&s, backend);
  scene_free(&s);
}

/* Checked: an error. Unchecked: what cannot be reached is masked. */
static void lengths_beyond_the_table(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 2};
  static const int32_t kv_len[] = {40, 10};
  scene s;
  scene_init(&s, 2, 1, 16, 16);
  scene_format(&s, format);
  s.problem.causal = 0;
  s.extra_columns = 0;
  scene_seqs(&s, 2, q_len, kv_len);
  scene_store(&s);
  scene_open(&s, backend);
  s.t_table.shape[1] = 2; /* 32 positions */
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_INDEX, NULL);
  s.args.unchecked = 1;
  EXPECT_OK(scene_step(&s, &why));
  s.kv_len[0] = 32; /* without causality the answer is that of 32 keys */
  scene_check(&s);
  s.kv_len[0] = 40;
  s.t_table.shape[1] = 3;
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  s.t_table.shape[1] = 0;
  s.args.unchecked = 0;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_INDEX, NULL);
  s.args.unchecked = 1;
  EXPECT_OK(scene_step(&s, &why));
  s.kv_len[0] = s.kv_len[1] = 0;
  scene_check(&s);
  s.kv_len[0] = 40;
  s.kv_len[1] = 10;
  scene_close(&s);
  scene_free(&s);
}

/* Unchecked: every position of a block outside the pool is masked, for any id. */
static void ids_outside_the_pool_unchecked(const char *backend, attn_format format) {
  static const int32_t bad[] = {-1, 1000, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < 4; i++) {
    for (int32_t q_len = 1; q_len <= 20; q_len += 19) {
      scene s;
      scene_init(&s, 2, 1, 16, 16);
      scene_format(&s, format);
      scene_one(&s, q_len, 60);
      scene_bias(&s, 1);
      memset(s.bias, 0, (size_t)q_len * 60 * sizeof(float));
      for (int32_t row = 0; row < q_len; row++) {
        fill_floats(s.bias + row * 60 + 16, 16, -INFINITY); /* what the naive answer does not see either */
      }
      scene_store(&s);
      s.args.unchecked = 1;
      table_of(&s)[1] = bad[i];
      scene_run(&s, backend);
      scene_check(&s);
      scene_free(&s);
    }
  }
}

/* ---- Packed K and V */

static void direct_scene(scene *s, int cross) {
  static const int32_t q_len[] = {5, 1, 8};
  static const int32_t kv_len[] = {7, 20, 0};
  scene_init(s, 4, 2, 16, 8);
  s->problem.kv_source = ATTN_KV_DIRECT;
  s->problem.block_size = 0;
  s->problem.causal = 0;
  scene_seqs(s, 3, q_len, cross ? kv_len : q_len);
  scene_store(s);
}

static void packed_lists(const char *backend) {
  scene s;
  direct_scene(&s, 1);
  scene_open(&s, backend);
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  s.batch.seq_lens = &s.t_starts.t;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_NULL, "seq_lens");
  s.batch.seq_lens = NULL;
  s.kv_starts[0] = 1;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_INDEX, "kv_start_loc");
  s.kv_starts[0] = 0;
  s.kv_starts[2] = 3; /* falls */
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_INDEX, "kv_start_loc");
  s.kv_starts[2] = 27;
  s.t_kv_starts.shape[0] = 3;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_SHAPE, "kv_start_loc");
  s.t_kv_starts.shape[0] = 4;
  s.t_k.shape[0] = 26; /* fewer rows than the list names */
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_SHAPE, "k");
  s.t_k.shape[0] = 27;
  s.args.k_cache = &s.t_k.t;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_NULL, "k_cache");
  s.args.k_cache = NULL;
  s.args.block_table = &s.t_k.t;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_NULL, "block_table");
  s.args.block_table = NULL;
  s.args.v = NULL;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_NULL, "v");
  s.args.v = &s.t_v.t;
  s.t_out.t.data = s.t_v.t.data;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_OVERLAP, "out");
  s.t_out.t.data = s.out_data.data;
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  scene_close(&s);
  scene_free(&s);
}

static void encoder_and_cross(const char *backend, attn_format format) {
  for (int cross = 0; cross < 2; cross++) {
    for (int causal = 0; causal < 2; causal++) {
      static const int32_t q_len[] = {5, 1, 8, 30};
      static const int32_t kv_len[] = {7, 20, 0, 33};
      scene s;
      scene_init(&s, 4, 2, 16, 8);
      s.problem.kv_source = ATTN_KV_DIRECT;
      s.problem.block_size = 0;
      s.problem.causal = causal;
      scene_format(&s, format);
      scene_seqs(&s, 4, q_len, cross ? kv_len : q_len);
      scene_prove(&s, backend);
      scene_free(&s);
    }
  }
}

/* ---- Strides and offsets as given */

static void null_strides_and_byte_offsets(const char *backend, attn_format format) {
  scene s;
  scene_init(&s, 2, 1, 16, 8);
  scene_format(&s, format);
  scene_one(&s, 3, 40);
  scene_alibi(&s, ATTN_ALIBI_LINEAR);
  scene_sinks(&s, 1.0f);
  scene_bias(&s, 1);
  scene_store(&s);
  tensor *list[] = {&s.t_q,    &s.t_k,   &s.t_v,   &s.t_table,  &s.t_slopes, &s.t_sinks,
                    &s.t_bias, &s.t_out, &s.t_lse, &s.t_starts, &s.t_lens};
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    list[i]->t.strides = NULL;
    list[i]->t.data = (char *)list[i]->t.data - 64;
    list[i]->t.byte_offset = 64;
  }
  scene_run(&s, backend);
  scene_check(&s);
  scene_free(&s);
}

/* Inputs may repeat themselves: one q row for all heads, one bias row for all tokens, one sink. */
static void zero_strides_of_inputs(const char *backend) {
  scene s;
  scene_init(&s, 4, 2, 16, 16);
  scene_one(&s, 3, 40);
  scene_sinks(&s, 0.75f);
  scene_bias(&s, 1);
  for (int64_t i = 1; i < 3 * 4; i++) {
    memcpy(s.q + i * 16, s.q, 16 * sizeof(float));
  }
  for (int64_t i = 1; i < 3; i++) {
    memcpy(s.bias + i * 40, s.bias, 40 * sizeof(float));
  }
  scene_store(&s);
  s.t_q.strides[0] = s.t_q.strides[1] = 0;
  s.t_sinks.strides[0] = 0;
  s.t_bias.strides[0] = 0;
  scene_run(&s, backend);
  scene_check(&s);
  scene_free(&s);
}

/* A pool of 2^40 blocks, all the same one: block ids are multiplied in 64 bits, and nothing is walked. */
static void huge_extents_by_zero_strides(const char *backend) {
  scene s;
  scene_init(&s, 2, 1, 16, 16);
  s.extra_blocks = 0;
  scene_one(&s, 1, 10);
  scene_store(&s);
  scene_open(&s, backend);
  s.t_k.shape[0] = s.t_v.shape[0] = INT64_C(1) << 40;
  s.t_k.strides[0] = s.t_v.strides[0] = 0;
  table_of(&s)[0] = INT32_MAX;
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  scene_close(&s);
  scene_free(&s);
}

static void every_format(void **state) {
  (void)state;
  for_each_cache(ids_that_nobody_sees);
  for_each_cache(id_0_is_an_ordinary_block);
  for_each_cache(lengths_beyond_the_table);
  for_each_cache(ids_outside_the_pool_unchecked);
  for_each_format(encoder_and_cross);
  for_each_cache(null_strides_and_byte_offsets);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(ids_that_a_mask_shows),  BACKEND_TEST(ids_that_one_row_sees),        BACKEND_TEST(packed_lists),
      BACKEND_TEST(zero_strides_of_inputs), BACKEND_TEST(huge_extents_by_zero_strides), cmocka_unit_test(every_format),
  };
  return cmocka_run_group_tests_name("bad_input", tests, NULL, NULL);
}
