/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of int4 of every size, of K in float32 and of V in bfloat16, as every backend writes and gathers them, against
   the scalar form of core/quantise.h, to the bit: normal rows, constant ones, whole numbers (ties), tiny and huge ones,
   rows whose rotation or range overflows, and rows that hold NaN or infinities. */
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

/* Rows as they are given, stored (scales inline) and read back, K and V. */
static float given[2][KINDS * MOST];
static uint16_t given_v[KINDS * MOST];
static float back[2][KINDS * MOST];

static void make_rows(int32_t size) {
  for (int kind = 0; kind < KINDS; kind++) {
    make_row(given[0] + kind * size, size, kind);
  }
  for (int32_t i = 0; i < KINDS * size; i++) { /* cut off: NaN has its highest bit set */
    uint32_t bits;
    memcpy(&bits, &given[0][i], sizeof bits);
    given_v[i] = (uint16_t)(bits >> 16);
    bits &= 0xFFFF0000u;
    memcpy(&given[1][i], &bits, sizeof bits);
  }
}

static int is_same(float a, float b) {
  return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* One row's bytes, and what it was read back as. */
static void check_row(const attn_rows *rows, const float *row, const unsigned char *stored, const float *read,
                      const char *what) {
  static float values[MOST];
  static unsigned char wanted[ROW_BYTES];
  int64_t at = attn_format_scale_offset(rows->facts, rows->size);
  attn_row to = {wanted, 1, wanted + at, 1};
  memset(wanted, 0xA5, sizeof wanted);
  memcpy(values, row, (size_t)rows->size * sizeof *row);
  attn_quantise_row(rows, &to, values);
  for (int64_t b = 0; b < at + 4; b++) {
    CHECK(stored[b] == wanted[b], "size %d, %s: byte %d is %02X, expected %02X", (int)rows->size, what, (int)b,
          stored[b], wanted[b]);
  }
  attn_dequantise_row(rows, &to, values);
  for (int64_t i = 0; i < rows->size; i++) {
    CHECK(is_same(read[i], values[i]), "size %d, %s: element %d comes back as %.9g, expected %.9g", (int)rows->size,
          what, (int)i, (double)read[i], (double)values[i]);
  }
}

static void check_size(attn_context *context, const char *backend, int32_t size) {
  attn_rows rows;
  memset(&rows, 0, sizeof rows);
  rows.facts = attn_format_of(ATTN_FORMAT_INT4_PER_TOKEN_HEAD);
  rows.size = size;
  int64_t bytes = attn_format_row_extent(rows.facts, size, 0);
  guarded pools[2] = {guard_make((size_t)(KINDS * bytes)), guard_make((size_t)(KINDS * bytes))};
  int64_t slots[KINDS];
  int32_t block = 0;
  int32_t len = KINDS;
  tensor t_rows[2], t_back[2], t_pool[2], t_slots, t_table, t_len;
  make_rows(size);
  for (int kind = 0; kind < KINDS; kind++) {
    slots[kind] = KINDS - 1 - kind;
  }
  tensor_3(&t_rows[0], given[0], ATTN_DTYPE_FLOAT32, KINDS, 1, size);
  tensor_3(&t_rows[1], given_v, ATTN_DTYPE_BFLOAT16, KINDS, 1, size);
  tensor_1(&t_slots, slots, ATTN_DTYPE_INT64, KINDS);
  tensor_2(&t_table, &block, ATTN_DTYPE_INT32, 1, 1);
  tensor_1(&t_len, &len, ATTN_DTYPE_INT32, 1);
  for (int i = 0; i < 2; i++) {
    memset(pools[i].data, 0x5A, (size_t)(KINDS * bytes));
    memset(back[i], 0x5A, sizeof(float) * KINDS * (size_t)size);
    tensor_4(&t_pool[i], pools[i].data, ATTN_DTYPE_UINT8, 1, KINDS, 1, bytes);
    tensor_3(&t_back[i], back[i], ATTN_DTYPE_FLOAT32, KINDS, 1, size);
  }
  attn_cache_write_args write = ATTN_CACHE_WRITE_INIT;
  attn_cache_gather_args gather = ATTN_CACHE_GATHER_INIT;
  write.backend = gather.backend = backend;
  write.k_format = write.v_format = gather.k_format = gather.v_format = ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
  write.k = &t_rows[0].t;
  write.v = &t_rows[1].t;
  write.slot_mapping = &t_slots.t;
  write.k_cache = gather.k_cache = &t_pool[0].t;
  write.v_cache = gather.v_cache = &t_pool[1].t;
  gather.block_table = &t_table.t;
  gather.seq_lens = &t_len.t;
  gather.k = &t_back[0].t;
  gather.v = &t_back[1].t;
  EXPECT_OK(attn_cache_write(context, &write, &why));
  EXPECT_OK(attn_cache_gather(context, &gather, &why));
  for (int row = 0; row < 2 * KINDS; row++) {
    int kind = row / 2;
    int i = row % 2;
    check_row(&rows, given[i] + kind * size, pools[i].data + slots[kind] * bytes, back[i] + slots[kind] * size,
              i == 1 ? "v" : "k");
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
