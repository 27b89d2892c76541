/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 8 to 19 and 79 to 89 over latent rows: bytes that nobody wrote, tables, page sizes and strides; in every latent
   format, on both backends. What a writer must leave alone is in test_cases_latent_writes.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "latent_sizes.h"

enum { HEADS = 2, V = 12 };

static int is_float(attn_format format) {
  return format <= ATTN_FORMAT_BFLOAT16;
}

static void start(latent *s, int form, attn_format format, int32_t count, const int32_t *q_len, const int32_t *kv_len) {
  latent_init_format(s, (attn_mla_form)form, HEADS, format, 10, V);
  latent_seqs(s, count, q_len, kv_len);
}

static void run_and_compare(latent *s, const char *backend, const char *what) {
  harness_label(backend);
  latent_run(s, backend);
  latent_compare(s, latent_room(s), what);
}

/* Each form, format and backend. */
static void everywhere(void (*body)(int form, attn_format format, const char *backend)) {
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    for (int f = 0; f < LATENT_FORMATS; f++) {
      for (int b = 0; b < LATENT_BACKENDS; b++) {
        body(form, latent_formats[f], latent_backends[b]);
      }
    }
  }
}

/* ---- 8: NaN or infinity in rows that nobody wrote */

static void spoil_all_but_the_first(latent *s, int infinite) {
  int64_t slots = (int64_t)s->blocks * s->problem.block_size, row = s->info.k.shape[2];
  size_t bytes = (size_t)s->info.k.bytes / (size_t)slots;
  for (int64_t slot = 0; slot < slots; slot++) {
    if (slot == (int64_t)s->table[0] * s->problem.block_size) {
      continue;
    }
    memset(s->pool + (size_t)slot * bytes, infinite ? 0x7F : 0xFF, bytes);
    for (int64_t e = 0; infinite && is_float(s->problem.k_format) && e < row; e++) {
      store_element(s->pool, s->info.k.dtype, slot * row + e, INFINITY);
    }
  }
}

static void unwritten_tail(int form, attn_format format, const char *backend) {
  const int32_t one = 1;
  for (int infinite = 0; infinite < 2; infinite++) {
    latent s;
    start(&s, form, format, 1, &one, &one);
    latent_fill(&s, format, 0);
    spoil_all_but_the_first(&s, infinite);
    run_and_compare(&s, backend, "one key");
    for (int64_t i = 0; form == ATTN_MLA_MQA && is_float(format) && i < HEADS * v_of(&s); i++) {
      CHECK(s.out[i] == s.seen[i % v_of(&s)], "%s: out is not the latent part exactly", backend);
    }
    latent_free(&s);
  }
}

static void case_008_latent_nan_in_unwritten_rows(void **state) {
  (void)state;
  everywhere(unwritten_tail);
}

/* ---- 10: NaN in positions wholly outside the window */

static int spoilt_part; /* 0: latent, 1: rotary, 2: both */
static void nan_before_28(latent *s) {
  int32_t rank = s->problem.kv_lora_rank, row = rank + s->problem.qk_rope_head_dim;
  for (int32_t i = 0; i < 28 * row; i++) {
    int rotary = i % row >= rank;
    s->rows[i] = spoilt_part == 2 || rotary == spoilt_part ? NAN : s->rows[i];
  }
}

static void outside_window(int form, attn_format format, const char *backend) {
  const int32_t q = 1, kv = 40;
  for (spoilt_part = 0; spoilt_part < 3; spoilt_part++) {
    latent s;
    start(&s, form, format, 1, &q, &kv);
    s.problem.window_left = 11;
    s.problem.block_size = 16;
    s.edit = nan_before_28;
    latent_fill(&s, format, 0);
    run_and_compare(&s, backend, "window");
    latent_free(&s);
  }
}

static void case_010_latent_nan_outside_the_window(void **state) {
  (void)state;
  everywhere(outside_window);
}

/* ---- 16: the last tile reads past the table row */

static void narrow_table(int form, attn_format format, const char *backend) {
  static const int32_t q[] = {1, 17}, kv = 17;
  for (int i = 0; i < 2; i++) {
    latent s;
    tensor table;
    start(&s, form, format, 1, &q[i], &kv);
    s.problem.block_size = 16;
    latent_fill(&s, format, 0);
    latent_open(&s, backend);
    guarded two = guard_make(2 * sizeof(int32_t));
    memcpy(two.data, s.table, two.bytes);
    tensor_2(&table, two.data, ATTN_DTYPE_INT32, 1, 2);
    s.args.block_table = &table.t;
    EXPECT_OK(latent_call(&s));
    latent_close(&s);
    latent_compare(&s, latent_room(&s), "two columns");
    guard_free(&two);
    latent_free(&s);
  }
}

static void case_016_latent_table_row_not_read_past_its_end(void **state) {
  (void)state;
  everywhere(narrow_table);
}

/* ---- 17: stale columns when the batch shrinks */

static void shrinking_batch(int form, attn_format format, const char *backend) {
  static const int32_t q[] = {1, 1, 1, 1}, kv[] = {20, 33, 40, 18};
  latent s;
  start(&s, form, format, 4, q, kv);
  latent_fill(&s, format, 0);
  latent_open(&s, backend);
  latent_step(&s);
  latent_compare(&s, latent_room(&s), "four sequences");
  size_t block = (size_t)s.info.k.bytes / (size_t)s.blocks;
  for (int32_t i = 2; i < 4; i++) {
    for (int32_t c = 0; c * s.problem.block_size < kv[i]; c++) {
      memset(s.pool + (size_t)s.table[i * s.width + c] * block, 0xFF, block);
    }
    s.kv_len[i] = 0;
  }
  latent_step(&s);
  latent_compare(&s, latent_room(&s), "two sequences and two rows of padding");
  for (int64_t i = 2 * HEADS * v_of(&s); i < 4 * HEADS * v_of(&s); i++) {
    CHECK(s.out[i] == 0.0f, "%s: a padding row is not the empty state", backend);
  }
  latent_close(&s);
  latent_free(&s);
}

static void case_017_latent_stale_table_columns(void **state) {
  (void)state;
  everywhere(shrinking_batch);
}

/* ---- 19: padding rows that share a slot (unchecked) */

static void nan_but_the_first(latent *s) {
  int64_t row = s->problem.kv_lora_rank + s->problem.qk_rope_head_dim;
  int64_t query = (int64_t)HEADS * (10 + s->problem.qk_rope_head_dim);
  for (int64_t i = 2 * row; i < s->keys * row; i++) {
    s->rows[i] = NAN;
  }
  for (int64_t i = query; i < s->tokens * query; i++) {
    s->q[i] = NAN;
  }
}

/* Two steps of one real sequence, of one key and of two; the others write and read one slot, NaN. */
static void shared_steps(float *out, int form, attn_format format, const char *backend, int32_t padding) {
  static const int32_t q[] = {1, 1, 1, 1}, kv[] = {2, 1, 1, 1}, names[] = {5, 6, 7, 8};
  latent s;
  start(&s, form, format, 1 + padding, q, kv);
  s.names = names;
  s.edit = nan_but_the_first;
  latent_fill(&s, format, 0);
  for (int32_t i = 2; i <= padding; i++) {
    s.table[i * s.width] = s.table[s.width];
  }
  latent_open(&s, backend);
  s.args.unchecked = 1;
  for (int32_t step = 0; step < 2; step++) {
    s.kv_len[0] = 1 + step;
    latent_step(&s);
    memcpy(out + (ptrdiff_t)step * HEADS * V, s.out, HEADS * V * sizeof *out);
  }
  latent_close(&s);
  latent_free(&s);
}

static void shared_slot(int form, attn_format format, const char *backend) {
  float alone[2 * HEADS * V], padded[2 * HEADS * V];
  if (form == ATTN_MLA_MQA) { /* which writes nothing */
    return;
  }
  shared_steps(alone, form, format, backend, 0);
  shared_steps(padded, form, format, backend, 3);
  CHECK(isfinite(alone[0]) && isfinite(alone[HEADS * V]), "%s: the real row is not finite", backend);
  CHECK(same_bits(alone, padded, 2 * HEADS * V), "form %d, %s, %s: padding rows changed the real row", form,
        attn_format_name(format), backend);
}

static void case_019_latent_padding_rows_share_a_slot_unchecked(void **state) {
  (void)state;
  everywhere(shared_slot);
}

/* ---- 79: 1000 keys, no causality, memory between guard pages */

static void guarded_pool(attn_format format, const char *backend) {
  const int32_t q = 20, kv = 1000;
  latent s;
  tensor pool, queries;
  latent_init(&s, ATTN_MLA_MQA, HEADS, 72, 8, 10, V);
  latent_seqs(&s, 1, &q, &kv);
  s.problem.causal = 0;
  s.table_step = 146; /* of 147 blocks: the second block of the sequence is the last of the pool */
  latent_fill(&s, format, 0);
  assert_int_equal(s.blocks, 147);
  latent_open(&s, backend);
  guarded rows = guard_make((size_t)s.info.k.bytes), given = guard_make((size_t)q * HEADS * 80 * sizeof(float));
  memcpy(rows.data, s.pool, rows.bytes);
  memcpy(given.data, s.q_memory, given.bytes);
  tensor_over(&pool, rows.data, s.info.k.dtype, 3, s.info.k.shape);
  tensor_3(&queries, given.data, ATTN_DTYPE_FLOAT32, q, HEADS, 80);
  s.args.kv_cache = &pool.t;
  s.args.q = &queries.t;
  EXPECT_OK(latent_call(&s));
  latent_close(&s);
  latent_compare(&s, 1.0, "between guard pages");
  guard_free(&rows);
  guard_free(&given);
  latent_free(&s);
}

static void case_079_latent_rank_72_non_causal(void **state) {
  (void)state;
  for (int f = 0; f < LATENT_FORMATS; f++) {
    for (int b = 0; b < LATENT_BACKENDS && latent_formats[f] != ATTN_FORMAT_FP8_DS_MLA; b++) {
      guarded_pool(latent_formats[f], latent_backends[b]);
    }
  }
}

/* ---- 81, 83, 84: pages of any size */

static void pages_of_one(int form, attn_format format, const char *backend) {
  const int32_t q = 1, kv = 3;
  latent s;
  start(&s, form, format, 1, &q, &kv);
  s.problem.block_size = 1;
  latent_fill(&s, format, 0);
  run_and_compare(&s, backend, "pages of one");
  latent_free(&s);
}

static void case_081_latent_page_size_1(void **state) {
  (void)state;
  everywhere(pages_of_one);
}

static void case_083_latent_page_sizes_not_a_power_of_two(void **state) {
  static const int32_t sizes[] = {1, 3, 7, 8, 48, 480, 528, 544, 784, 1600};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    for (int i = 0; i < 10; i++) {
      const int32_t q = 2, kv = 2 * sizes[i] + 1;
      latent s;
      latent_init(&s, (attn_mla_form)form, HEADS, 9, 3, 5, 4);
      latent_seqs(&s, 1, &q, &kv);
      s.problem.block_size = sizes[i];
      latent_prove(&s, i % 2 ? ATTN_FORMAT_FLOAT32 : ATTN_FORMAT_INT4_PER_TOKEN_HEAD, "page size");
    }
  }
}

static void case_084_latent_huge_page_is_not_a_tile(void **state) {
  static const int32_t sizes[] = {16, 2048}, q = 1, kv = 2100;
  (void)state;
  for (int n = 0; n < 3 * LATENT_BACKENDS; n++) {
    uint64_t on_chip[2], bytes[2];
    for (int i = 0; i < 2; i++) {
      attn_explanation explanation = ATTN_EXPLANATION_INIT;
      latent s;
      start(&s, ATTN_MLA_MQA + n % 3, ATTN_FORMAT_BFLOAT16, 1, &q, &kv);
      s.problem.block_size = sizes[i];
      latent_fill(&s, ATTN_FORMAT_BFLOAT16, 0);
      run_and_compare(&s, latent_backends[n / 3], "huge page");
      attn_context *context = open_context(1);
      EXPECT_OK(attn_explain(context, &s.problem, NULL, &s.options, &explanation, &why));
      attn_context_destroy(context);
      on_chip[i] = explanation.on_chip_bytes;
      bytes[i] = s.plan.workspace_bytes;
      latent_free(&s);
    }
    CHECK(on_chip[0] == on_chip[1] && bytes[0] == bytes[1], "%s: the page size changes the tile",
          latent_backends[n / 3]);
  }
}

/* ---- 86, 87: pools with more pages than the table is wide, and with other bytes between pages */

/* The blocks of the filled pool at every `step`-th place, `first` before them, of a pool of `count` blocks. */
static unsigned char *spread(const latent *s, int64_t first, int64_t step, int64_t count) {
  size_t block = (size_t)s->info.k.bytes / (size_t)s->blocks;
  unsigned char *pool = malloc(block * (size_t)count);
  assert_non_null(pool);
  memset(pool, 0xFF, block * (size_t)count);
  for (int64_t i = 0; i < s->blocks && first + i * step < count; i++) {
    memcpy(pool + block * (size_t)(first + i * step), s->pool + block * (size_t)i, block);
  }
  return pool;
}

static void wide_pool(int form, attn_format format, const char *backend) {
  const int32_t q = 1, kv = 30;
  const int64_t width[] = {1, 2};
  latent s;
  tensor table, pool;
  start(&s, form, format, 1, &q, &kv);
  s.problem.block_size = 16;
  s.table_step = 1;
  latent_fill(&s, format, 0);
  unsigned char *memory = spread(&s, 97, 1, 100); /* the first is there */
  size_t block = (size_t)s.info.k.bytes / (size_t)s.blocks;
  memset(memory + 98 * block, 0xFF, 2 * block);
  memcpy(memory + 3 * block, s.pool + block, block);
  s.table[0] = 97;
  s.table[1] = 3;
  int64_t shape[3] = {100, 16, s.info.k.shape[2]};
  latent_open(&s, backend);
  tensor_over(&pool, memory, s.info.k.dtype, 3, shape);
  tensor_over(&table, s.table, ATTN_DTYPE_INT32, 2, width);
  s.args.kv_cache = &pool.t;
  s.args.block_table = &table.t;
  EXPECT_OK(latent_call(&s));
  latent_close(&s);
  latent_compare(&s, latent_room(&s), "pages 97 and 3");
  free(memory);
  latent_free(&s);
}

static void case_086_latent_table_width_is_not_pool_size(void **state) {
  (void)state;
  everywhere(wide_pool);
}

static void padded_blocks(int form, attn_format format, const char *backend) {
  static const int32_t q[] = {1, 5}, kv[] = {35, 20};
  latent s;
  tensor pool;
  start(&s, form, format, 2, q, kv);
  latent_fill(&s, format, 0);
  unsigned char *memory = spread(&s, 1, 2, 2 * (int64_t)s.blocks);
  size_t block = (size_t)s.info.k.bytes / (size_t)s.blocks, bytes = (size_t)(s.tokens * HEADS * v_of(&s));
  run_and_compare(&s, backend, "compact");
  float *compact = malloc(bytes * sizeof *compact);
  assert_non_null(compact);
  memcpy(compact, s.out, bytes * sizeof *compact);
  latent_open(&s, backend);
  tensor_over(&pool, memory + block, s.info.k.dtype, 3, s.info.k.shape);
  pool.strides[0] *= 2;
  s.args.kv_cache = &pool.t;
  EXPECT_OK(latent_call(&s));
  latent_close(&s);
  CHECK(same_bits(compact, s.out, (int64_t)bytes), "form %d, %s, %s: other bits than of the compact pool", form,
        attn_format_name(format), backend);
  for (int64_t i = 0; i < s.blocks; i++) {
    CHECK(all_bytes(memory + (size_t)(2 * i) * block, block, 0xFF), "bytes of another layer were written");
  }
  free(memory);
  free(compact);
  latent_free(&s);
}

static void case_087_latent_real_block_stride(void **state) {
  (void)state;
  everywhere(padded_blocks);
}

/* ---- 89: strides of q count in every call */

static void strided_twice(int form, attn_format format, const char *backend) {
  static const int32_t q[] = {1, 7}, kv[] = {35, 20};
  latent s;
  tensor wide;
  start(&s, form, format, 2, q, kv);
  latent_fill(&s, format, 0);
  run_and_compare(&s, backend, "compact");
  int64_t size = s.problem.qk_rope_head_dim + (form == ATTN_MLA_MQA ? s.problem.kv_lora_rank : 10);
  int64_t stride = size + 5, rows = (int64_t)s.tokens * HEADS, count = rows * v_of(&s);
  float *memory = malloc((size_t)(rows * stride) * sizeof *memory), *compact = malloc((size_t)count * sizeof *compact);
  assert_true(memory != NULL && compact != NULL);
  memset(memory, 0xFF, (size_t)(rows * stride) * sizeof *memory);
  for (int64_t r = 0; r < rows; r++) {
    memcpy(memory + r * stride, s.q + r * size, (size_t)size * sizeof *memory);
  }
  memcpy(compact, s.out, (size_t)count * sizeof *compact);
  latent_open(&s, backend);
  tensor_3(&wide, memory, ATTN_DTYPE_FLOAT32, s.tokens, HEADS, size);
  wide.strides[0] = HEADS * stride;
  wide.strides[1] = stride;
  s.args.q = &wide.t;
  for (int i = 0; i < 3; i++) {
    latent_step(&s);
    CHECK(same_bits(compact, s.out, count), "form %d, %s: call %d gives other bits", form, backend, i);
  }
  latent_close(&s);
  free(memory);
  free(compact);
  latent_free(&s);
}

static void case_089_latent_strided_query_in_every_call(void **state) {
  (void)state;
  everywhere(strided_twice);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_008_latent_nan_in_unwritten_rows),
      cmocka_unit_test(case_010_latent_nan_outside_the_window),
      cmocka_unit_test(case_016_latent_table_row_not_read_past_its_end),
      cmocka_unit_test(case_017_latent_stale_table_columns),
      cmocka_unit_test(case_019_latent_padding_rows_share_a_slot_unchecked),
      cmocka_unit_test(case_079_latent_rank_72_non_causal),
      cmocka_unit_test(case_081_latent_page_size_1),
      cmocka_unit_test(case_083_latent_page_sizes_not_a_power_of_two),
      cmocka_unit_test(case_084_latent_huge_page_is_not_a_tile),
      cmocka_unit_test(case_086_latent_table_width_is_not_pool_size),
      cmocka_unit_test(case_087_latent_real_block_stride),
      cmocka_unit_test(case_089_latent_strided_query_in_every_call),
  };
  return cmocka_run_group_tests_name("cases over latent rows: bytes", tests, NULL, NULL);
}
