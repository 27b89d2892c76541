/* SPDX-License-Identifier: Apache-2.0 */
/* pv_generic.c: weights times values of a tile. Blocks of 4 rows x 8 elements; products of neighbouring keys are added
   first, four such pairs make a group of 8 keys, groups are added up, and the tile's sum joins the accumulator at the end:
   chains stay short, which is what holds the error on constant rows. The order is the same for every row. */
#include "cpu/generic/vec4.h"
#include "cpu/table.h"

/* `rows` at most 4, a constant at every call; 8 elements of the head. */
ATTN_INLINE void block(float *acc, const float *alpha, const float *p, const float *v, int rows, int32_t keys,
                       int32_t padded) {
  attn_vec4 sum[4][2];
  for (int r = 0; r < rows; r++) {
    sum[r][0] = vec4_splat(0.0f);
    sum[r][1] = vec4_splat(0.0f);
  }
  for (int32_t j = 0; j < keys; j += ATTN_CPU_KEY_STEP) {
    attn_vec4 part[4][2];
    for (int r = 0; r < rows; r++) {
      part[r][0] = vec4_splat(0.0f);
      part[r][1] = vec4_splat(0.0f);
    }
    for (int32_t pair = j; pair < j + ATTN_CPU_KEY_STEP; pair += 2) {
      const float *v0 = v + (int64_t)pair * padded;
      const float *v1 = v0 + padded;
      attn_vec4 a0 = vec4_load(v0);
      attn_vec4 b0 = vec4_load(v0 + 4);
      attn_vec4 a1 = vec4_load(v1);
      attn_vec4 b1 = vec4_load(v1 + 4);
      for (int r = 0; r < rows; r++) {
        attn_vec4 p0 = vec4_splat(p[r * ATTN_CPU_KEYS + pair]);
        attn_vec4 p1 = vec4_splat(p[r * ATTN_CPU_KEYS + pair + 1]);
        part[r][0] = vec4_add(part[r][0], vec4_add(vec4_mul(p0, a0), vec4_mul(p1, a1)));
        part[r][1] = vec4_add(part[r][1], vec4_add(vec4_mul(p0, b0), vec4_mul(p1, b1)));
      }
    }
    for (int r = 0; r < rows; r++) {
      sum[r][0] = vec4_add(sum[r][0], part[r][0]);
      sum[r][1] = vec4_add(sum[r][1], part[r][1]);
    }
  }
  for (int r = 0; r < rows; r++) {
    attn_vec4 a = vec4_splat(alpha[r]);
    float *out = acc + (int64_t)r * padded;
    vec4_store(out, vec4_add(vec4_mul(a, vec4_load(out)), sum[r][0]));
    vec4_store(out + 4, vec4_add(vec4_mul(a, vec4_load(out + 4)), sum[r][1]));
  }
}

void attn_pv_f32__generic(float *acc, const float *alpha, const float *p, const float *v, int32_t rows, int32_t keys,
                          int32_t padded) {
  for (int32_t i = 0; i < padded; i += 8) {
    int32_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      block(acc + (int64_t)r * padded + i, alpha + r, p + r * ATTN_CPU_KEYS, v + i, 4, keys, padded);
    }
    if (r + 2 <= rows) {
      block(acc + (int64_t)r * padded + i, alpha + r, p + r * ATTN_CPU_KEYS, v + i, 2, keys, padded);
      r += 2;
    }
    if (r < rows) {
      block(acc + (int64_t)r * padded + i, alpha + r, p + r * ATTN_CPU_KEYS, v + i, 1, keys, padded);
    }
  }
}
