/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of int4 of every size, of K in float32 and of V in bfloat16, as every backend writes them, against the scalar form
   of core/quantise.h, byte by byte: normal rows, rows around a tie of every code, tiny and huge ones, rows whose rotation
   or range overflows, and rows that hold NaN or infinities. */
#include <math.h>
#include <string.h>

#include "core/quantise.h"
#include "harness.h"

enum { KINDS = 10, MOST = ATTN_ROW_MAX, ROW_BYTES = MOST / 2 + 8 };

static uint32_t seed = 20;

static float uniform(void) {
  return (float)(random_bits(&seed) >> 8) * 0x1p-24f;
}

static void make_row(float *row, int32_t size, int kind) {
  static const float special[] = {NAN, INFINITY, -INFINITY, 3.3e38f, -3.3e38f};
  float magnitude = ldexpf(1.0f, (int)(random_bits(&seed) % 60) - 30);
  for (int32_t i = 0; i < size; i++) {
    switch (kind) {
    case 0: /* a constant row, which rotates to a single large element in each block */
      row[i] = magnitude;
      break;
    case 1: /* whole numbers: many ties */
      row[i] = (float)((int)(random_bits(&seed) % 31) - 15);
      break;
    case 2:
      row[i] = magnitude * uniform();
      break;
    case 3: /* below the least scale */
      row[i] = 1e-7f * random_normal(&seed);
      break;
    case 4: /* about where sums overflow */
      row[i] = 1e37f * random_normal(&seed);
      break;
    case 5: /* few elements that are not 0 */
      row[i] = random_bits(&seed) % 16 == 0 ? -magnitude : 0.0f;
      break;
    default:
      row[i] = magnitude * random_normal(&seed);
      break;
    }
  }
  for (int i = 0; kind >= 8 && i < kind - 7; i++) { /* one special value, or two */
    row[random_bits(&seed) % (uint32_t)size] = special[random_bits(&seed) % 5];
  }
}

/* The row's bytes in the scalar form, its scale inline. */
static int64_t scalar_form(const float *row, int32_t size, unsigned char *bytes) {
  static float values[MOST];
  attn_rows rows;
  memset(&rows, 0, sizeof rows);
  rows.facts = attn_format_of(ATTN_FORMAT_INT4_PER_TOKEN_HEAD);
  rows.size = size;
  int64_t at = attn_format_scale_offset(rows.facts, size);
  attn_row to = {bytes, 1, bytes + at, 1};
  memset(bytes, 0xA5, (size_t)at + 4);
  memcpy(values, row, (size_t)size * sizeof *row);
  attn_quantise_row(&rows, &to, values);
  return at + 4;
}

static void check_size(attn_context *context, const char *backend, int32_t size) {
  static float k[KINDS * MOST];
  static float v_values[KINDS * MOST];
  static uint16_t v[KINDS * MOST];
  static unsigned char wanted[ROW_BYTES];
  int64_t slots[KINDS];
  int64_t bytes = (size + 1) / 2 + 3;
  bytes = bytes / 4 * 4 + 4;
  guarded pools[2] = {guard_make((size_t)(KINDS * bytes)), guard_make((size_t)(KINDS * bytes))};
  tensor t_k, t_v, t_slots, t_pool[2];
  for (int kind = 0; kind < KINDS; kind++) {
    slots[kind] = KINDS - 1 - kind;
    make_row(k + kind * size, size, kind);
  }
  for (int32_t i = 0; i < KINDS * size; i++) { /* cut off: NaN has its highest bit set */
    uint32_t bits;
    memcpy(&bits, &k[i], sizeof bits);
    v[i] = (uint16_t)(bits >> 16);
    bits &= 0xFFFF0000u;
    memcpy(&v_values[i], &bits, sizeof bits);
  }
  tensor_3(&t_k, k, ATTN_DTYPE_FLOAT32, KINDS, 1, size);
  tensor_3(&t_v, v, ATTN_DTYPE_BFLOAT16, KINDS, 1, size);
  tensor_1(&t_slots, slots, ATTN_DTYPE_INT64, KINDS);
  for (int i = 0; i < 2; i++) {
    memset(pools[i].data, 0x5A, (size_t)(KINDS * bytes));
    tensor_4(&t_pool[i], pools[i].data, ATTN_DTYPE_UINT8, 1, KINDS, 1, bytes);
  }
  attn_cache_write_args write = ATTN_CACHE_WRITE_INIT;
  write.backend = backend;
  write.k_format = write.v_format = ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
  write.k = &t_k.t;
  write.v = &t_v.t;
  write.slot_mapping = &t_slots.t;
  write.k_cache = &t_pool[0].t;
  write.v_cache = &t_pool[1].t;
  EXPECT_OK(attn_cache_write(context, &write, &why));
  for (int row = 0; row < 2 * KINDS; row++) {
    int kind = row / 2;
    int is_v = row % 2;
    CHECK(scalar_form((is_v ? v_values : k) + kind * size, size, wanted) == bytes, "size %d: a row's bytes", (int)size);
    for (int64_t b = 0; b < bytes; b++) {
      unsigned char got = pools[is_v].data[slots[kind] * bytes + b];
      CHECK(got == wanted[b], "size %d, kind %d, %s: byte %d is %02X, expected %02X", (int)size, kind, is_v ? "v" : "k",
            (int)b, got, wanted[b]);
    }
  }
  guard_free(&pools[0]);
  guard_free(&pools[1]);
}

static void every_size(const char *backend) {
  static const int32_t large[] = {1000, 1024, 2047, 4096, 5000, MOST - 1, MOST};
  attn_context *context = open_context(1);
  for (int32_t size = 1; size <= 324; size++) {
    check_size(context, backend, size);
  }
  for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
    check_size(context, backend, large[i]);
  }
  attn_context_destroy(context);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(every_size),
  };
  return cmocka_run_group_tests_name("int4_rows", tests, NULL, NULL);
}
