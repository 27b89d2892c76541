/* SPDX-License-Identifier: Apache-2.0 */
/* qk_generic.c: scores of a tile. Blocks of 4 rows x 2 keys keep eight sums in registers; each sum adds products in
   pairs over 64 elements, then joins those partial sums, so that chains stay short. Every (row, key) sum has the same
   order of operations in every block shape. */
#include "cpu/generic/vec4.h"
#include "cpu/table.h"

#define CHUNK 64 /* elements of one partial sum */

/* s[r][j] for `rows` x `keys` at most 4 x 2; both are constants at every call. */
ATTN_INLINE void block(float *s, const float *q, const float *k, double scale, int rows, int keys, int32_t padded) {
  attn_vec4 sum[4][2];
  for (int r = 0; r < rows; r++) {
    for (int j = 0; j < keys; j++) {
      sum[r][j] = vec4_splat(0.0f);
    }
  }
  for (int32_t begin = 0; begin < padded; begin += CHUNK) {
    int32_t end = begin + CHUNK < padded ? begin + CHUNK : padded;
    attn_vec4 part[4][2];
    for (int r = 0; r < rows; r++) {
      for (int j = 0; j < keys; j++) {
        part[r][j] = vec4_splat(0.0f);
      }
    }
    for (int32_t i = begin; i < end; i += 8) {
      attn_vec4 k_low[2];
      attn_vec4 k_high[2];
      for (int j = 0; j < keys; j++) {
        k_low[j] = vec4_load(k + (int64_t)j * padded + i);
        k_high[j] = vec4_load(k + (int64_t)j * padded + i + 4);
      }
      for (int r = 0; r < rows; r++) {
        attn_vec4 q_low = vec4_load(q + (int64_t)r * padded + i);
        attn_vec4 q_high = vec4_load(q + (int64_t)r * padded + i + 4);
        for (int j = 0; j < keys; j++) {
          part[r][j] = vec4_add(part[r][j], vec4_add(vec4_mul(q_low, k_low[j]), vec4_mul(q_high, k_high[j])));
        }
      }
    }
    for (int r = 0; r < rows; r++) {
      for (int j = 0; j < keys; j++) {
        sum[r][j] = vec4_add(sum[r][j], part[r][j]);
      }
    }
  }
  for (int r = 0; r < rows; r++) {
    for (int j = 0; j < keys; j++) {
      s[r * ATTN_CPU_KEYS + j] = (float)(scale * vec4_sum_double(sum[r][j]));
    }
  }
}

void attn_qk_f32__generic(float *s, const float *q, const float *k, float scale, int32_t rows, int32_t keys,
                          int32_t padded) {
  for (int32_t j = 0; j < keys; j += 2) { /* keys is even */
    const float *kj = k + (int64_t)j * padded;
    int32_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      block(s + r * ATTN_CPU_KEYS + j, q + (int64_t)r * padded, kj, scale, 4, 2, padded);
    }
    if (r + 2 <= rows) {
      block(s + r * ATTN_CPU_KEYS + j, q + (int64_t)r * padded, kj, scale, 2, 2, padded);
      r += 2;
    }
    if (r < rows) {
      block(s + r * ATTN_CPU_KEYS + j, q + (int64_t)r * padded, kj, scale, 1, 2, padded);
    }
  }
}
