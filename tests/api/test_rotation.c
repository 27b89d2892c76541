/* SPDX-License-Identifier: Apache-2.0 */
/* The rotation of int4 rows: its signs made anew by the generator that defines them, its transform against the plain
   matrix, its way back, and the product that it keeps. */
#include <math.h>

#include "core/format.h"
#include "core/rotation.h"
#include "harness.h"

/* MT19937 with its standard 32-bit initialisation, `count` draws. */
static void draw(uint32_t seed, uint32_t *draws, int count) {
  enum { N = 624, M = 397 };
  uint32_t state[N];
  state[0] = seed;
  for (int i = 1; i < N; i++) {
    state[i] = 1812433253u * (state[i - 1] ^ (state[i - 1] >> 30)) + (uint32_t)i;
  }
  for (int made = 0; made < count; made++) {
    if (made % N == 0) {
      for (int i = 0; i < N; i++) {
        uint32_t y = (state[i] & 0x80000000u) | (state[(i + 1) % N] & 0x7FFFFFFFu);
        state[i] = state[(i + M) % N] ^ (y >> 1) ^ (y % 2 != 0 ? 0x9908B0DFu : 0);
      }
    }
    uint32_t y = state[made % N];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9D2C5680u;
    y ^= (y << 15) & 0xEFC60000u;
    draws[made] = y ^ (y >> 18);
  }
}

static float sign(int64_t i) {
  return attn_rotation_sign(i) != 0 ? -1.0f : 1.0f;
}

static void signs(void **state) {
  static uint32_t draws[ATTN_ROW_MAX];
  static const uint32_t first[] = {0x5F22AC2Cu, 0xD4E1E072u, 0x1B0C0A07u, 0xEA5F4EBCu};
  static const uint64_t number[] = {0x808035B16573590Du, 0x6B7F5438A6443D6Cu}; /* bit i: element i is +1 */
  (void)state;
  draw(5489, draws, 1);
  assert_int_equal(draws[0], 3499211612u); /* the generator's published first output */
  draw(0x9E3779B9u, draws, ATTN_ROW_MAX);
  assert_memory_equal(draws, first, sizeof first);
  int plus = 0;
  for (int i = 0; i < ATTN_ROW_MAX; i++) {
    float wanted = (draws[i] >> 23 & 1) == 0 ? 1.0f : -1.0f;
    CHECK(sign(i) == wanted, "sign of element %d", i);
    CHECK(i >= 128 || (number[i / 64] >> (i % 64) & 1) == (wanted > 0), "sign %d against the published number", i);
    plus += wanted > 0;
    CHECK(i != 63 || plus == 26, "%d of 64", plus);
    CHECK(i != 127 || plus == 59, "%d of 128", plus);
    CHECK(i != 255 || plus == 110, "%d of 256", plus);
    CHECK(i != 511 || plus == 231, "%d of 512", plus);
  }
}

/* Blocks and factors, as contract and header have them. */
static void blocks(void **state) {
  static const struct {
    int64_t size;
    int count;
    int64_t n[8];
    float factor[8];
  } rows[] = {
      {1, 1, {1}, {1}},
      {17, 2, {16, 1}, {1, 4}},
      {40, 2, {32, 8}, {1, 2}},
      {65, 2, {64, 1}, {1, 8}},
      {96, 2, {64, 32}, {1, 1}},
      {127, 7, {64, 32, 16, 8, 4, 2, 1}, {1, 1, 2, 2, 4, 4, 8}},
      {192, 2, {128, 64}, {1, 1}},
      {256, 1, {256}, {1}},
      {320, 2, {256, 64}, {1, 2}},
      {513, 2, {512, 1}, {1, 16}},
  };
  (void)state;
  for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
    int64_t begin = 0;
    for (int i = 0; i < rows[r].count; i++) {
      CHECK(attn_rotation_block(rows[r].size, begin) == rows[r].n[i], "size %d, block %d", (int)rows[r].size, i);
      CHECK(attn_rotation_factor(rows[r].size, rows[r].n[i]) == rows[r].factor[i], "size %d, factor %d",
            (int)rows[r].size, i);
      begin += rows[r].n[i];
    }
    CHECK(begin == rows[r].size, "size %d", (int)rows[r].size);
  }
}

/* Entry (i, j) of the unnormalised transform in natural order. */
static double hadamard(int64_t i, int64_t j) {
  int odd = 0;
  for (int64_t both = i & j; both != 0; both &= both - 1) {
    odd ^= 1;
  }
  return odd ? -1.0 : 1.0;
}

/* Whole numbers: every sum is exact, so the transform is too. */
static void against_the_matrix(void **state) {
  static const int sizes[] = {1, 2, 3, 5, 8, 17, 40, 64, 65, 96, 128, 320};
  (void)state;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    int size = sizes[s];
    float row[320], rotated[320];
    uint32_t seed = (uint32_t)size;
    for (int i = 0; i < size; i++) {
      row[i] = rotated[i] = (float)((int)(random_bits(&seed) % 201) - 100);
    }
    attn_rotation_apply(rotated, size);
    for (int64_t begin = 0; begin < size;) {
      int64_t n = attn_rotation_block(size, begin);
      for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++) {
          sum += hadamard(i, j) * (double)(sign(begin + j) * row[begin + j]);
        }
        sum *= (double)attn_rotation_factor(size, n);
        CHECK((double)rotated[begin + i] == sum, "size %d, element %d: %g, expected %g", size, (int)(begin + i),
              (double)rotated[begin + i], sum);
      }
      begin += n;
    }
    attn_rotation_undo(rotated, size);
    for (int i = 0; i < size; i++) {
      CHECK(rotated[i] == row[i], "size %d: element %d does not come back", size, i);
    }
  }
}

static void products_are_kept(void **state) {
  (void)state;
  for (int size = 1; size <= 200; size++) {
    float q[200], k[200];
    double wanted = 0, got = 0, norm = 0;
    uint32_t seed = (uint32_t)size * 7;
    for (int i = 0; i < size; i++) {
      q[i] = random_normal(&seed);
      k[i] = random_normal(&seed);
      wanted += (double)q[i] * (double)k[i];
      norm += fabs((double)q[i] * (double)k[i]);
    }
    attn_rotation_query(q, size);
    attn_rotation_apply(k, size);
    for (int i = 0; i < size; i++) {
      got += (double)q[i] * (double)k[i];
    }
    CHECK(fabs(got - wanted) <= 0x1p-18 * norm, "size %d: %g, expected %g", size, got, wanted);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(signs),
      cmocka_unit_test(blocks),
      cmocka_unit_test(against_the_matrix),
      cmocka_unit_test(products_are_kept),
  };
  return cmocka_run_group_tests_name("rotation", tests, NULL, NULL);
}
