/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 8 to 19: bytes that nobody wrote (padding, null block, stale tables, slots that are not the call's). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

/* ---- 8: NaN in the unwritten tail of V */

static void tail_of_v(const char *backend, attn_format format) {
  for (int poison = SCENE_NAN; poison <= SCENE_RANDOM; poison++) {
    scene s;
    scene_init(&s, 1, 1, 64, 64);
    scene_format(&s, format);
    scene_one(&s, 1, 1);
    s.poison = (scene_poison)poison;
    scene_store(&s);
    scene_run(&s, backend);
    for (int i = 0; i < 64; i++) { /* the scene undoes the rotation in float32 */
      float slack = format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? 0x1p-20f * 4.0f : 0.0f;
      CHECK(fabsf(s.out[i] - s.v[0][i]) <= slack, "out is not V[0] exactly");
    }
    scene_check(&s);
    scene_free(&s);
  }
}

static void case_008_nan_in_unwritten_tail_of_v(void **state) {
  (void)state;
  for_each_cache(tail_of_v);
}

/* ---- 10: NaN in positions wholly outside the window */

static void outside_window(const char *backend, attn_format format) {
  for (int which = 0; which < 3; which++) {
    scene s;
    scene_init(&s, 2, 1, 32, 32);
    scene_format(&s, format);
    s.problem.window_left = 11;
    s.problem.window_right = 0;
    scene_one(&s, 1, 40);
    for (int32_t pos = 0; pos < 28; pos++) {
      if (which != 1) {
        fill_floats(scene_k(&s, 0, pos, 0), 32, NAN);
      }
      if (which != 0) {
        fill_floats(scene_v(&s, 0, pos, 0), 32, NAN);
      }
    }
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void case_010_nan_outside_the_window(void **state) {
  (void)state;
  for_each_cache(outside_window);
}

/* ---- Cache writes */

typedef struct writer {
  attn_context *context;
  attn_dtype dtype;
  guarded k_pool, v_pool, k_rows, v_rows, slots;
  tensor t_k_pool, t_v_pool, t_k, t_v, t_slots;
  attn_cache_write_args args;
} writer;

enum { HEADS = 2, SIZE = 8, BLOCK = 16 };

static void writer_open(writer *w, const char *backend, attn_format format, int64_t blocks, int64_t rows, int64_t slots,
                        const int64_t *slot) {
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  uint32_t seed = 5;
  w->context = open_context(1);
  w->dtype = format_dtype(format);
  size_t element = attn_dtype_bytes(w->dtype);
  w->k_pool = guard_make((size_t)blocks * BLOCK * HEADS * SIZE * element);
  w->v_pool = guard_make((size_t)blocks * BLOCK * HEADS * SIZE * element);
  w->k_rows = guard_make((size_t)rows * HEADS * SIZE * element);
  w->v_rows = guard_make((size_t)rows * HEADS * SIZE * element);
  w->slots = guard_make((size_t)slots * sizeof(int64_t));
  memset(w->k_pool.data, 0xA5, w->k_pool.bytes);
  memset(w->v_pool.data, 0x5A, w->v_pool.bytes);
  memcpy(w->slots.data, slot, (size_t)slots * sizeof(int64_t));
  for (int64_t i = 0; i < rows * HEADS * SIZE; i++) {
    store_element(w->k_rows.data, w->dtype, i, random_normal(&seed));
    store_element(w->v_rows.data, w->dtype, i, random_normal(&seed));
  }
  tensor_4(&w->t_k_pool, w->k_pool.data, w->dtype, blocks, BLOCK, HEADS, SIZE);
  tensor_4(&w->t_v_pool, w->v_pool.data, w->dtype, blocks, BLOCK, HEADS, SIZE);
  tensor_3(&w->t_k, w->k_rows.data, w->dtype, rows, HEADS, SIZE);
  tensor_3(&w->t_v, w->v_rows.data, w->dtype, rows, HEADS, SIZE);
  tensor_1(&w->t_slots, w->slots.data, ATTN_DTYPE_INT64, slots);
  args.backend = backend;
  args.k = &w->t_k.t;
  args.v = &w->t_v.t;
  args.slot_mapping = &w->t_slots.t;
  args.k_cache = &w->t_k_pool.t;
  args.v_cache = &w->t_v_pool.t;
  w->args = args;
}

static void writer_close(writer *w) {
  attn_context_destroy(w->context);
  guard_free(&w->k_pool);
  guard_free(&w->v_pool);
  guard_free(&w->k_rows);
  guard_free(&w->v_rows);
  guard_free(&w->slots);
}

/* Every byte of a pool is the fill, except the rows at `slot[i]`, which are row i of `rows`; a slot < 0 names none. */
static void check_pool(const guarded *pool, unsigned char fill, const guarded *rows, int64_t count, const int64_t *slot,
                       size_t row_bytes) {
  for (size_t at = 0; at < pool->bytes / row_bytes; at++) {
    const unsigned char *want = NULL;
    for (int64_t i = 0; i < count; i++) {
      if (slot[i] == (int64_t)at) {
        want = rows->data + (size_t)i * row_bytes;
      }
    }
    const unsigned char *got = pool->data + at * row_bytes;
    CHECK(want != NULL ? memcmp(got, want, row_bytes) == 0 : all_bytes(got, row_bytes, fill), "slot %zu is wrong", at);
  }
}

static void writer_check(const writer *w, int64_t count, const int64_t *slot) {
  size_t row_bytes = HEADS * SIZE * attn_dtype_bytes(w->dtype);
  check_pool(&w->k_pool, 0xA5, &w->k_rows, count, slot, row_bytes);
  check_pool(&w->v_pool, 0x5A, &w->v_rows, count, slot, row_bytes);
}

/* ---- 12: padding rows are skipped */

static void padding_rows(const char *backend, attn_format format) {
  static const int64_t slots[] = {5, -1, -1};
  for (int unchecked = 0; unchecked < 2; unchecked++) {
    writer w;
    writer_open(&w, backend, format, 2, 3, 3, slots);
    size_t row_bytes = w.k_rows.bytes / 3;
    memset(w.k_rows.data + row_bytes, 0xFF, 2 * row_bytes);
    memset(w.v_rows.data + row_bytes, 0xFF, 2 * row_bytes);
    w.args.unchecked = unchecked;
    EXPECT_OK(attn_cache_write(w.context, &w.args, &why));
    writer_check(&w, 3, slots);
    writer_close(&w);
  }
}

static void case_012_padding_rows_write_nothing(void **state) {
  (void)state;
  for_each_format(padding_rows);
}

/* ---- 14: slots beyond the capacity, or cut to 32 bits */

static void wide_slots(const char *backend, attn_format format) {
  static const int64_t bad[] = {32, (INT64_C(1) << 32) + 3, (INT64_C(1) << 40) + 17, INT64_MAX};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    int64_t slots[] = {7, bad[i]};
    writer w;
    writer_open(&w, backend, format, 2, 2, 2, slots);
    EXPECT_STATUS(attn_cache_write(w.context, &w.args, &why), ATTN_E_INDEX, "slot_mapping");
    writer_check(&w, 0, slots);
    w.args.unchecked = 1;
    EXPECT_OK(attn_cache_write(w.context, &w.args, &why));
    writer_check(&w, 1, slots);
    writer_close(&w);
  }
  writer w;
  int64_t pair[] = {3, 4};
  writer_open(&w, backend, format, 2, 2, 2, pair);
  for (int unchecked = 0; unchecked < 2; unchecked++) {
    tensor_1(&w.t_slots, w.slots.data, ATTN_DTYPE_INT32, 2);
    w.args.unchecked = unchecked;
    EXPECT_STATUS(attn_cache_write(w.context, &w.args, &why), ATTN_E_DTYPE, "slot_mapping");
  }
  writer_check(&w, 0, pair);
  writer_close(&w);
}

static void case_014_slot_beyond_capacity_or_narrowed(void **state) {
  (void)state;
  for_each_format(wide_slots);
}

/* ---- 15: slot list shorter or longer than the rows */

static void short_slots(const char *backend, attn_format format) {
  static const int64_t slots[] = {30, 1, 17, 0, 9, 2, 3, 4, 5};
  writer w;
  writer_open(&w, backend, format, 2, 8, 5, slots);
  EXPECT_OK(attn_cache_write(w.context, &w.args, &why));
  writer_check(&w, 5, slots);
  writer_close(&w);
  writer_open(&w, backend, format, 2, 8, 9, slots);
  EXPECT_STATUS(attn_cache_write(w.context, &w.args, &why), ATTN_E_SHAPE, "slot_mapping");
  writer_check(&w, 0, slots);
  writer_close(&w);
}

static void case_015_slot_list_shorter_or_longer_than_rows(void **state) {
  (void)state;
  for_each_format(short_slots);
}

/* ---- 16: the last tile reads past the table row */

static void narrow_table(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 17};
  for (size_t i = 0; i < 2; i++) {
    scene s;
    scene_init(&s, 2, 2, 64, 64);
    scene_format(&s, format);
    s.extra_columns = 0;
    scene_one(&s, q_len[i], 17);
    scene_store(&s);
    CHECK(s.t_table.shape[1] == 2, "the table is not 2 wide");
    scene_run(&s, backend);
    scene_check(&s);
    scene_free(&s);
  }
}

static void case_016_table_row_not_read_past_its_end(void **state) {
  (void)state;
  for_each_cache(narrow_table);
}

/* ---- 17: stale columns when the batch shrinks */

static void shrinking_batch(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 1, 1, 1};
  static const int32_t kv_len[] = {20, 33, 40, 18};
  scene s;
  scene_init(&s, 4, 2, 16, 16);
  scene_format(&s, format);
  scene_seqs(&s, 4, q_len, kv_len);
  scene_store(&s);
  scene_open(&s, backend);
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  for (int32_t i = 2; i < 4; i++) {
    fill_floats(s.k[i], (int64_t)s.kv_len[i] * 2 * 16, NAN);
    fill_floats(s.v[i], (int64_t)s.kv_len[i] * 2 * 16, NAN);
    const int32_t *table = (const int32_t *)(const void *)s.table_data.data;
    size_t block = (size_t)s.t_k.strides[0] * (s.t_k.t.dtype.bits / 8);
    for (int32_t c = 0; c < 2; c++) {
      size_t at = (size_t)table[i * s.t_table.shape[1] + c] * block;
      memset(s.k_data.data + at, 0xFF, block);
      memset(s.v_data.data + at, 0xFF, block);
    }
    s.kv_len[i] = 0;
    s.lens[i] = 0;
  }
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  for (int32_t h = 0; h < 4; h++) {
    CHECK(isinf(*scene_lse(&s, 3, h)) && *scene_out(&s, 3, h) == 0, "row 3 is not the empty state");
  }
  scene_close(&s);
  scene_free(&s);
}

static void case_017_stale_table_columns(void **state) {
  (void)state;
  for_each_cache(shrinking_batch);
}

/* ---- 19: padding rows that share a slot (unchecked) */

typedef struct trash {
  writer w;
  float out[2][HEADS * SIZE];
} trash;

/* Two steps of one real sequence (block 0) and `padding` rows that read and write slot 16 (block 1). */
static void trash_steps(trash *t, const char *backend, attn_format format, int32_t padding) {
  attn_problem problem = ATTN_PROBLEM_INIT;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  int32_t starts[5] = {0, 1, 2, 3, 4};
  int32_t table[4] = {0, 1, 1, 1};
  int64_t slots[4] = {0, 16, 16, 16};
  int32_t rows = 1 + padding;
  attn_plan *plan = NULL;
  guarded memory;
  writer_open(&t->w, backend, format, 2, rows, rows, slots);
  problem.num_q_heads = HEADS;
  problem.num_kv_heads = HEADS;
  problem.qk_head_size = SIZE;
  problem.q_dtype = t->w.dtype;
  problem.out_dtype = ATTN_DTYPE_FLOAT32;
  problem.block_size = BLOCK;
  problem.scale = attn_softmax_scale(SIZE);
  problem.batch_invariant = 1;
  limits.max_tokens = 4;
  limits.max_kv_len = 32;
  options.backend = backend;
  EXPECT_OK(attn_plan_create(t->w.context, &problem, &limits, &options, &plan, &why));
  attn_workspace workspace = workspace_make(plan, &memory);
  for (int32_t step = 0; step < 2; step++) {
    float out[4 * HEADS * SIZE];
    int32_t lens[4] = {step + 1, 1, 1, 1};
    tensor t_starts, t_lens, t_table, t_out;
    attn_batch batch = ATTN_BATCH_INIT;
    attn_run_args run = ATTN_RUN_INIT;
    size_t row_bytes = t->w.k_rows.bytes / (size_t)rows;
    memset(t->w.k_rows.data + row_bytes, 0xFF, t->w.k_rows.bytes - row_bytes);
    memset(t->w.v_rows.data + row_bytes, 0xFF, t->w.v_rows.bytes - row_bytes);
    memcpy(t->w.slots.data, &(int64_t){step}, sizeof(int64_t));
    t->w.args.unchecked = 1;
    EXPECT_OK(attn_cache_write(t->w.context, &t->w.args, &why));
    tensor_1(&t_starts, starts, ATTN_DTYPE_INT32, rows + 1);
    tensor_1(&t_lens, lens, ATTN_DTYPE_INT32, rows);
    tensor_2(&t_table, table, ATTN_DTYPE_INT32, rows, 1);
    tensor_3(&t_out, out, ATTN_DTYPE_FLOAT32, rows, HEADS, SIZE);
    batch.query_start_loc = &t_starts.t;
    batch.seq_lens = &t_lens.t;
    run.unchecked = 1;
    run.q = &t->w.t_k.t;
    run.k_cache = &t->w.t_k_pool.t;
    run.v_cache = &t->w.t_v_pool.t;
    run.block_table = &t_table.t;
    run.out = &t_out.t;
    EXPECT_OK(attn_plan_schedule(plan, &batch, &workspace, &why));
    EXPECT_OK(attn_run(plan, &run, &workspace, &why));
    memcpy(t->out[step], out, sizeof t->out[step]);
  }
  attn_plan_destroy(plan);
  guard_free(&memory);
  writer_close(&t->w);
}

static void shared_slot(const char *backend, attn_format format) {
  trash alone;
  trash padded;
  trash_steps(&alone, backend, format, 0);
  trash_steps(&padded, backend, format, 3);
  for (int step = 0; step < 2; step++) {
    CHECK(isfinite(alone.out[step][0]), "the real row is not finite");
    CHECK(same_bits(alone.out[step], padded.out[step], HEADS * SIZE), "padding rows changed the real row");
  }
}

static void case_019_padding_rows_share_a_slot_unchecked(void **state) {
  (void)state;
  for_each_format(shared_slot);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_008_nan_in_unwritten_tail_of_v),
      cmocka_unit_test(case_010_nan_outside_the_window),
      cmocka_unit_test(case_012_padding_rows_write_nothing),
      cmocka_unit_test(case_014_slot_beyond_capacity_or_narrowed),
      cmocka_unit_test(case_015_slot_list_shorter_or_longer_than_rows),
      cmocka_unit_test(case_016_table_row_not_read_past_its_end),
      cmocka_unit_test(case_017_stale_table_columns),
      cmocka_unit_test(case_019_padding_rows_share_a_slot_unchecked),
  };
  return cmocka_run_group_tests_name("cases_bytes", tests, NULL, NULL);
}
