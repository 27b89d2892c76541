/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 12 to 19: what a cache writer must leave alone: rows without a slot, slots that are not the pool's, rows beyond
   the list. Over every format, in every lay of memory, every byte of pools and scales against a model. */
#include <math.h>
#include <string.h>

#include "quantising.h"

enum { BLOCK = QUANTISING_BLOCK, HEADS = QUANTISING_HEADS, TOKENS = QUANTISING_TOKENS };
enum { CAPACITY = QUANTISING_BLOCKS * BLOCK, SIZE = 18, V_SIZE = 9 };

static void set_side(quantising_side *side, attn_format format, int32_t size, int separate) {
  side->format = format;
  side->size = size;
  side->separate = separate && format_has_row_scale(format);
  side->num_statics = format_is_static(format) ? 2 : 0;
  side->statics[0] = 0.25f;
  side->statics[1] = 3.0f;
}

/* The n-th way that a cache of these formats can lie. */
static void open_case(quantising *q, const char *backend, attn_format k, attn_format v, int n) {
  memset(q, 0, sizeof *q);
  q->context = open_context(1 + n % 2);
  q->backend = backend;
  q->layout = n % 2 ? ATTN_LAYOUT_HND : ATTN_LAYOUT_NHD;
  set_side(&q->side[0], k, SIZE, n / 2 % 2);
  set_side(&q->side[1], v, V_SIZE, n / 2 % 2);
  quantising_open(q, (quantising_lay)(n % LAY_COUNT));
}

static void close_case(quantising *q) {
  attn_context_destroy(q->context);
  quantising_close(q);
}

static void set_slots(quantising *q, const int64_t *slots, int64_t count) {
  memcpy(q->slots, slots, (size_t)count * sizeof *slots);
  q->t_slots.shape[0] = count;
}

/* NaN in every row from `first` on. */
static void spoil_rows(quantising *q, int64_t first) {
  for (int i = 0; i < 2; i++) {
    int64_t row = (int64_t)HEADS * q->side[i].size;
    for (int64_t e = first * row; e < TOKENS * row; e++) {
      q->side[i].values[e] = NAN;
    }
  }
}

/* ---- 12: padding rows are skipped */

static void padding_rows(const char *backend, attn_format k, attn_format v) {
  static const int64_t slots[] = {5, -1, -1};
  for (int n = 0; n < 2 * LAY_COUNT; n++) {
    quantising q;
    open_case(&q, backend, k, v, n);
    set_slots(&q, slots, 3);
    spoil_rows(&q, 1);
    attn_cache_write_args args = quantising_write(&q);
    args.unchecked = n / LAY_COUNT;
    EXPECT_OK(attn_cache_write(q.context, &args, &why));
    quantising_expect(&q, 0);
    quantising_check(&q, "after slots 5, -1, -1");
    close_case(&q);
  }
}

static void case_012_padding_rows_write_nothing(void **state) {
  (void)state;
  for_each_pair(padding_rows);
}

/* ---- 14: slots beyond the capacity, or cut to 32 bits */

static void wide_slots(const char *backend, attn_format k, attn_format v) {
  static const int64_t bad[] = {CAPACITY, (INT64_C(1) << 32) + 3, (INT64_C(1) << 40) + 17, INT64_MAX};
  for (int n = 0; n < 4; n++) {
    int64_t slots[] = {7, bad[n]};
    quantising q;
    open_case(&q, backend, k, v, n);
    set_slots(&q, slots, 2);
    attn_cache_write_args args = quantising_write(&q);
    EXPECT_STATUS(attn_cache_write(q.context, &args, &why), ATTN_E_INDEX, "slot_mapping");
    quantising_check(&q, "after a refused slot");
    args.unchecked = 1;
    EXPECT_OK(attn_cache_write(q.context, &args, &why));
    quantising_expect(&q, 0);
    quantising_check(&q, "after a skipped slot");
    tensor_1(&q.t_slots, q.slots, ATTN_DTYPE_INT32, 2); /* the halves of one slot are not two */
    for (args.unchecked = 0; args.unchecked < 2; args.unchecked++) {
      EXPECT_STATUS(attn_cache_write(q.context, &args, &why), ATTN_E_DTYPE, "slot_mapping");
    }
    quantising_check(&q, "after slots of int32");
    close_case(&q);
  }
}

static void case_014_slot_beyond_capacity_or_narrowed(void **state) {
  (void)state;
  for_each_pair(wide_slots);
}

/* ---- 15: slot list shorter or longer than the rows */

static void short_slots(const char *backend, attn_format k, attn_format v) {
  static const int64_t slots[] = {14, 1, 9, 0, 3, 4, 5};
  for (int n = 0; n < 4; n++) {
    quantising q;
    tensor longer;
    open_case(&q, backend, k, v, n);
    tensor_1(&longer, (void *)(uintptr_t)slots, ATTN_DTYPE_INT64, TOKENS + 1);
    attn_cache_write_args args = quantising_write(&q);
    args.slot_mapping = &longer.t;
    EXPECT_STATUS(attn_cache_write(q.context, &args, &why), ATTN_E_SHAPE, "slot_mapping");
    quantising_check(&q, "after more slots than rows");
    guarded list = guard_make(4 * sizeof(int64_t)); /* nothing is read behind it */
    memcpy(list.data, slots, list.bytes);
    memcpy(q.slots, slots, list.bytes);
    tensor_1(&q.t_slots, list.data, ATTN_DTYPE_INT64, 4);
    spoil_rows(&q, 4);
    args = quantising_write(&q);
    EXPECT_OK(attn_cache_write(q.context, &args, &why));
    for (int64_t t = 0; t < 4; t++) {
      quantising_expect(&q, t);
    }
    quantising_check(&q, "after fewer slots than rows");
    guard_free(&list);
    close_case(&q);
  }
}

static void case_015_slot_list_shorter_or_longer_than_rows(void **state) {
  (void)state;
  for_each_pair(short_slots);
}

/* ---- 19: padding rows that share a slot (unchecked) */

enum { Q_HEADS = HEADS * QUANTISING_GROUP, ROW = Q_HEADS * V_SIZE };

/* Two steps of one real sequence (block 0) and `padding` rows of NaN that write and read the first slot of block 1. */
static void trash_steps(float *out, const char *backend, attn_format k, attn_format v, int n, int32_t padding) {
  static float query[4 * Q_HEADS * SIZE];
  quantising q;
  uint32_t seed = 11;
  for (int i = 0; i < 4 * Q_HEADS * SIZE; i++) {
    query[i] = i < Q_HEADS * SIZE ? random_normal(&seed) : NAN;
  }
  open_case(&q, backend, k, v, n);
  spoil_rows(&q, 1);
  for (int32_t step = 0; step < 2; step++) {
    float all[4 * ROW], lse[4 * Q_HEADS];
    int64_t slots[4] = {step, BLOCK, BLOCK, BLOCK};
    int32_t table[4] = {0, 1, 1, 1};
    quantising_call call = {.num_seqs = 1 + padding,
                            .q_len = {1, 1, 1, 1},
                            .kv_len = {step + 1, 1, 1, 1},
                            .width = 1,
                            .table = table,
                            .unchecked = 1,
                            .window_left = -1,
                            .query = query,
                            .out = all,
                            .lse = lse};
    set_slots(&q, slots, 1 + padding);
    attn_cache_write_args args = quantising_write(&q);
    args.unchecked = 1;
    EXPECT_OK(attn_cache_write(q.context, &args, &why));
    quantising_attend(&q, &call);
    memcpy(out + step * ROW, all, ROW * sizeof *out);
  }
  close_case(&q);
}

static void shared_slot(const char *backend, attn_format k, attn_format v) {
  for (int n = 0; n < 4; n++) {
    float alone[2 * ROW], padded[2 * ROW];
    trash_steps(alone, backend, k, v, n, 0);
    trash_steps(padded, backend, k, v, n, 3);
    CHECK(isfinite(alone[0]) && isfinite(alone[ROW]), "the real row is not finite");
    CHECK(same_bits(alone, padded, 2 * ROW), "padding rows changed the real row");
  }
}

static void case_019_padding_rows_share_a_slot_unchecked(void **state) {
  (void)state;
  for_each_pair(shared_slot);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_012_padding_rows_write_nothing),
      cmocka_unit_test(case_014_slot_beyond_capacity_or_narrowed),
      cmocka_unit_test(case_015_slot_list_shorter_or_longer_than_rows),
      cmocka_unit_test(case_019_padding_rows_share_a_slot_unchecked),
  };
  return cmocka_run_group_tests_name("cases_writes", tests, NULL, NULL);
}
