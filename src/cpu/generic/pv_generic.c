/* SPDX-License-Identifier: Apache-2.0 */
/* pv_generic.c: weights times values of a tile. Blocks of 4 rows x 8 elements; products of neighbouring keys are added
   first, four such pairs make a group of 8 keys, groups are added up, and the tile's sum joins the accumulator at the
   end: chains stay short, which is what holds the error on constant rows. The order is the same for every row. The
   weights of a block of rows are first spread over four lanes each, once for all elements of the head. */
#include "cpu/generic/vec4.h"
#include "cpu/table.h"

#define ROWS 4

/* Weights of a block of rows, each in all four lanes: [key][row]. */
typedef struct spread {
  attn_vec4 p[ATTN_CPU_KEYS][ROWS];
} spread;

/* `rows` at most ROWS, a constant at every call; 8 elements of the head. */
ATTN_INLINE void block(float *acc, const float *alpha, const spread *w, const float *v, int rows, int32_t keys,
                       int32_t padded, int32_t v_stride) {
  attn_vec4 sum[ROWS][2];
  for (int r = 0; r < rows; r++) {
    sum[r][0] = vec4_splat(0.0f);
    sum[r][1] = vec4_splat(0.0f);
  }
  for (int32_t j = 0; j < keys; j += ATTN_CPU_KEY_STEP) {
    attn_vec4 part[ROWS][2];
    for (int r = 0; r < rows; r++) {
      part[r][0] = vec4_splat(0.0f);
      part[r][1] = vec4_splat(0.0f);
    }
    for (int32_t pair = j; pair < j + ATTN_CPU_KEY_STEP; pair += 2) {
      const float *v0 = v + (int64_t)pair * v_stride;
      const float *v1 = v0 + v_stride;
      attn_vec4 a0 = vec4_load(v0);
      attn_vec4 b0 = vec4_load(v0 + 4);
      attn_vec4 a1 = vec4_load(v1);
      attn_vec4 b1 = vec4_load(v1 + 4);
      for (int r = 0; r < rows; r++) {
        attn_vec4 p0 = w->p[pair][r];
        attn_vec4 p1 = w->p[pair + 1][r];
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

/* One block of rows over the whole head. */
ATTN_INLINE void block_rows(float *acc, const float *alpha, const float *p, const float *v, int rows, int32_t keys,
                            int32_t padded, int32_t v_stride) {
  spread w;
  for (int32_t j = 0; j < keys; j++) {
    for (int r = 0; r < rows; r++) {
      w.p[j][r] = vec4_splat(p[r * ATTN_CPU_KEYS + j]);
    }
  }
  for (int32_t i = 0; i < padded; i += 8) {
    block(acc + i, alpha, &w, v + i, rows, keys, padded, v_stride);
  }
}

void attn_pv_f32__generic(float *acc, const float *alpha, const float *p, const float *v, int32_t rows, int32_t keys,
                          int32_t padded, int32_t v_stride) {
  int32_t r = 0;
  for (; r + ROWS <= rows; r += ROWS) {
    block_rows(acc + (int64_t)r * padded, alpha + r, p + r * ATTN_CPU_KEYS, v, ROWS, keys, padded, v_stride);
  }
  if (r + 2 <= rows) {
    block_rows(acc + (int64_t)r * padded, alpha + r, p + r * ATTN_CPU_KEYS, v, 2, keys, padded, v_stride);
    r += 2;
  }
  if (r < rows) {
    block_rows(acc + (int64_t)r * padded, alpha + r, p + r * ATTN_CPU_KEYS, v, 1, keys, padded, v_stride);
  }
}
