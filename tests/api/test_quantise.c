/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of each quantised format, worked out by hand: codes, scales, zero points, padding, and what reading gives back.
   One row is written and gathered through the public calls, on each backend, with inline and with separate scales. */
#include <math.h>
#include <string.h>

#include "harness.h"

enum { MOST = 12, ROW_BYTES = 32 };

typedef struct hand_row {
  const char *what;
  attn_format format;
  int size;
  float values[MOST];
  float static_scale; /* 0: none given */
  uint32_t scale;     /* bits of the row's own scale */
  int num_codes;      /* bytes */
  unsigned char codes[MOST];
  float back[MOST]; /* as it is read */
} hand_row;

#define NAN_ROW 0x7FC00000u
#define LEAST 0x358637BDu /* 1e-6 */

static const hand_row rows[] = {
    {"int8: ties go away from zero",
     ATTN_FORMAT_INT8_PER_TOKEN_HEAD,
     6,
     {127, -63.5f, 0.5f, -0.5f, 1.5f, 0.49f},
     0,
     0x3F800000u,
     6,
     {127, 0xC0, 1, 0xFF, 2, 0},
     {127, -64, 1, -1, 2, 0}},
    {"int8: scale 2",
     ATTN_FORMAT_INT8_PER_TOKEN_HEAD,
     3,
     {254, -254, 5},
     0,
     0x40000000u,
     3,
     {127, 0x81, 3},
     {254, -254, 6}},
    {"int8: one element", ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 1, {-15.875f}, 0, 0x3E000000u, 1, {0x81}, {-15.875f}},
    {"int8: zeros", ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 4, {0, -0.0f, 0, 0}, 0, LEAST, 4, {0}, {0, 0, 0, 0}},
    {"int8: below the least scale",
     ATTN_FORMAT_INT8_PER_TOKEN_HEAD,
     2,
     {1e-6f, -1e-7f},
     0,
     LEAST,
     2,
     {1, 0},
     {1e-6f, 0}},
    {"int8: a NaN", ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 3, {1, NAN, 2}, 0, NAN_ROW, 3, {0}, {NAN, NAN, NAN}},
    {"int8: an infinity",
     ATTN_FORMAT_INT8_PER_TOKEN_HEAD,
     5,
     {1, -INFINITY, 2, 3, 4},
     0,
     NAN_ROW,
     5,
     {0},
     {NAN, NAN, NAN, NAN, NAN}},
    /* e4m3: 1 is 38, 1.0625 ties down to 1, 1.1875 up to 1.25 (3A), 2^-9 is 01, 2^-10 ties to 0, 3 * 2^-10 to 02 */
    {"fp8 per token: scale 1",
     ATTN_FORMAT_FP8_PER_TOKEN_HEAD,
     7,
     {-448, 1, 1.0625f, 1.1875f, 0x1p-9f, 0x1p-10f, 0x1.8p-9f},
     0,
     0x3F800000u,
     7,
     {0xFE, 0x38, 0x38, 0x3A, 0x01, 0x00, 0x02},
     {-448, 1, 1, 1.25f, 0x1p-9f, 0, 0x1p-8f}},
    {"fp8 per token: scale 1/4",
     ATTN_FORMAT_FP8_PER_TOKEN_HEAD,
     2,
     {112, -0.25f},
     0,
     0x3E800000u,
     2,
     {0x7E, 0xB8},
     {112, -0.25f}},
    {"fp8 per token: a NaN", ATTN_FORMAT_FP8_PER_TOKEN_HEAD, 2, {NAN, 1}, 0, NAN_ROW, 2, {0}, {NAN, NAN}},
    {"e4m3, static scale 2",
     ATTN_FORMAT_FP8_E4M3,
     8,
     {896, 1e6f, -3, NAN, INFINITY, -INFINITY, 0, -0.0f},
     2,
     0,
     8,
     {0x7E, 0x7E, 0xBC, 0x7F, 0x7E, 0xFE, 0x00, 0x80},
     {896, 896, -3, NAN, 896, -896, 0, -0.0f}},
    {"e4m3, no scale", ATTN_FORMAT_FP8_E4M3, 3, {1.1875f, 449, -464}, 0, 0, 3, {0x3A, 0x7E, 0xFE}, {1.25f, 448, -448}},
    /* e5m2: 1.5 is 3E, 1.125 ties down to 1 (3C), 1.375 up to 1.5, 57344 is 7B */
    {"e5m2, static scale 1/2",
     ATTN_FORMAT_FP8_E5M2,
     7,
     {0.75f, 0.5625f, 0.6875f, 1e6f, -INFINITY, NAN, 0x1p-17f},
     0.5f,
     0,
     7,
     {0x3E, 0x3C, 0x3E, 0x7B, 0xFB, 0x7F, 0x01},
     {0.75f, 0.5f, 0.75f, 28672, -28672, NAN, 0x1p-17f}},
    /* int4: signs + - + + -. (2.5, 7.5) rotates to (-5, 10): scale 1, zero point 5, codes 0 and 15 */
    {"int4: two elements", ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 2, {2.5f, 7.5f}, 0, 0x3F800005u, 1, {0xF0}, {2.5f, 7.5f}},
    /* blocks of 2 and 1, the third element as it is: code 4 + 5 */
    {"int4: three elements",
     ATTN_FORMAT_INT4_PER_TOKEN_HEAD,
     3,
     {2.5f, 7.5f, 4},
     0,
     0x3F800005u,
     2,
     {0xF0, 0x09},
     {2.5f, 7.5f, 4}},
    /* blocks of 4 and 1: (15, 0, 0, 0), and the fifth times -1 and 2 */
    {"int4: five elements",
     ATTN_FORMAT_INT4_PER_TOKEN_HEAD,
     5,
     {3.75f, -3.75f, 3.75f, 3.75f, -1},
     0,
     0x3F800000u,
     3,
     {0x0F, 0x00, 0x02},
     {3.75f, -3.75f, 3.75f, 3.75f, -1}},
    /* one element, all above 0: the range is widened to contain 0; below 0: the zero point is 15 */
    {"int4: widened upwards", ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 1, {30}, 0, 0x40000000u, 1, {0x0F}, {30}},
    {"int4: widened downwards", ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 1, {-30}, 0, 0x4000000Fu, 1, {0x00}, {-30}},
    {"int4: zeros", ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 4, {0, 0, 0, 0}, 0, LEAST & ~0xFu, 2, {0}, {0, 0, 0, 0}},
    /* 1.5 / 15 = 0.1 (3DCCCCCD): its low bits go to the zero point, 0.75 / 0.1 = 7.5 away from zero to 8; then the
       codes are rha(-7.5 + 8) = 1, since -0.75 * 10 + 8 = 0.5, and 15.5 cut to 15 */
    {"int4: ties", ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 2, {0, 0.75f}, 0, 0x3DCCCCC8u, 1, {0xF1}, {0, 0.7f}},
    {"int4: a NaN", ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 3, {1, 2, NAN}, 0, NAN_ROW, 2, {0}, {NAN, NAN, NAN}},
    {"int4: a range beyond float32", ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 2, {0, 3e38f}, 0, NAN_ROW, 1, {0}, {NAN, NAN}},
    {"int4: a rotation beyond float32",
     ATTN_FORMAT_INT4_PER_TOKEN_HEAD,
     2,
     {3e38f, -3e38f},
     0,
     NAN_ROW,
     1,
     {0},
     {NAN, NAN}},
};

static int has_row_scale(attn_format format) {
  return format >= ATTN_FORMAT_INT8_PER_TOKEN_HEAD && format <= ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
}

/* The bytes of a row, its scale inline where it has one and it is not separate. */
static int expected_bytes(const hand_row *row, int separate, unsigned char *bytes) {
  memset(bytes, 0, ROW_BYTES);
  memcpy(bytes, row->codes, (size_t)row->num_codes);
  if (!has_row_scale(row->format) || separate) {
    return row->num_codes;
  }
  int at = (row->num_codes + 3) / 4 * 4;
  memcpy(bytes + at, &row->scale, sizeof row->scale);
  return at + 4;
}

static void check_back(const hand_row *row, const float *back, const char *which) {
  for (int i = 0; i < row->size; i++) {
    float wanted = row->back[i];
    int right = isnan(wanted) ? isnan(back[i]) : fabsf(back[i] - wanted) <= 1e-5f * fabsf(wanted) + 1e-12f;
    CHECK(right, "%s, %s: element %d comes back as %g, expected %g", row->what, which, i, (double)back[i],
          (double)wanted);
  }
}

static void one_row(const char *backend, const hand_row *row, int separate) {
  attn_context *context = open_context(1);
  attn_cache_write_args write = ATTN_CACHE_WRITE_INIT;
  attn_cache_gather_args gather = ATTN_CACHE_GATHER_INIT;
  unsigned char wanted[ROW_BYTES];
  int bytes = expected_bytes(row, separate, wanted);
  guarded pools[2] = {guard_make((size_t)bytes), guard_make((size_t)bytes)};
  float scales[2], back[2][MOST];
  int64_t slot = 0;
  int32_t block = 0, len = 1;
  tensor t_values, t_pool[2], t_scale[2], t_slot, t_table, t_len, t_back[2];
  tensor_3(&t_values, (void *)(uintptr_t)row->values, ATTN_DTYPE_FLOAT32, 1, 1, row->size);
  tensor_1(&t_slot, &slot, ATTN_DTYPE_INT64, 1);
  tensor_2(&t_table, &block, ATTN_DTYPE_INT32, 1, 1);
  tensor_1(&t_len, &len, ATTN_DTYPE_INT32, 1);
  for (int i = 0; i < 2; i++) {
    scales[i] = row->static_scale;
    tensor_4(&t_pool[i], pools[i].data, ATTN_DTYPE_UINT8, 1, 1, 1, bytes);
    tensor_3(&t_back[i], back[i], ATTN_DTYPE_FLOAT32, 1, 1, row->size);
    if (separate) {
      tensor_3(&t_scale[i], &scales[i], ATTN_DTYPE_FLOAT32, 1, 1, 1);
    } else {
      tensor_1(&t_scale[i], &scales[i], ATTN_DTYPE_FLOAT32, 1);
    }
  }
  int gives_scale = separate || row->static_scale != 0;
  write.backend = gather.backend = backend;
  write.k_format = gather.k_format = row->format;
  write.k = write.v = &t_values.t;
  write.slot_mapping = &t_slot.t;
  write.k_cache = gather.k_cache = &t_pool[0].t;
  write.v_cache = gather.v_cache = &t_pool[1].t;
  write.k_scale = gather.k_scale = gives_scale ? &t_scale[0].t : NULL;
  write.v_scale = gather.v_scale = gives_scale ? &t_scale[1].t : NULL;
  gather.block_table = &t_table.t;
  gather.seq_lens = &t_len.t;
  gather.k = &t_back[0].t;
  gather.v = &t_back[1].t;
  EXPECT_OK(attn_cache_write(context, &write, &why));
  EXPECT_OK(attn_cache_gather(context, &gather, &why));
  for (int i = 0; i < 2; i++) {
    for (int b = 0; b < bytes; b++) {
      CHECK(pools[i].data[b] == wanted[b], "%s, %s: byte %d is %02X, expected %02X", row->what, i ? "v" : "k", b,
            pools[i].data[b], wanted[b]);
    }
    CHECK(!separate || memcmp(&scales[i], &row->scale, sizeof row->scale) == 0, "%s: the separate scale", row->what);
    check_back(row, back[i], i ? "v" : "k");
    guard_free(&pools[i]);
  }
  attn_context_destroy(context);
}

static void by_hand(const char *backend) {
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    one_row(backend, &rows[i], 0);
    if (has_row_scale(rows[i].format)) {
      one_row(backend, &rows[i], 1);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(by_hand),
  };
  return cmocka_run_group_tests_name("quantise", tests, NULL, NULL);
}
