/* SPDX-License-Identifier: Apache-2.0 */
/* table.h: the CPU kernels: their contracts, and the table that a context fills for its instruction set level.
 *
 * The table is filled with the generic C kernels and then overwritten in rising order of capability by what kernels.inc
 * lists. Kernels never allocate, never branch on a problem's features and never see a block table: the drivers hand
 * them rows of fp32 in padded tiles, and runs of consecutive rows of a cache.
 *
 * Common rules. `padded` is a head size rounded up to ATTN_CPU_PAD floats; the pad is zero in every tile, so no
 * kernel has a tail along the head. A tile holds ATTN_CPU_KEYS keys; `keys` is how many of them a call covers, a
 * multiple of ATTN_CPU_KEY_STEP, the surplus being zero rows of V and zero weights. Every row is computed by the same
 * operations in the same order whatever the other rows, so a row's bits do not depend on them: that is what batch
 * invariance rests on.
 */
#ifndef ATTN_CPU_TABLE_H
#define ATTN_CPU_TABLE_H

#include <stdint.h>

#include "attn/backend.h"
#include "core/format.h"
#include "cpu/cpu_features.h"

#define ATTN_CPU_PAD 8
#define ATTN_CPU_KEYS 64
#define ATTN_CPU_KEY_STEP 8

/* Index of a float type in the table. */
typedef enum attn_cpu_type { ATTN_CPU_F32, ATTN_CPU_F16, ATTN_CPU_BF16, ATTN_CPU_TYPES } attn_cpu_type;

/* dst[r][i] = (float)src[r][i] for i < size, 0 for size <= i < padded. Rows of src are src_stride bytes apart, elements
   are adjacent and aligned to their type; rows of dst are `padded` floats apart. Reads no byte beyond the last element.
   */
typedef void attn_load_kernel(float *dst, const unsigned char *src, int64_t src_stride, int32_t rows, int32_t size,
                              int32_t padded);

/* dst[r][i] = the value of code i of row r, without its scale, for i < size, 0 for size <= i < padded. Integer codes of
   4 bits have zero_points[r] taken off; others ignore it. Every code decodes exactly. Strides as in attn_load_kernel;
   rows may lie at any address. Reads no byte beyond the last code. */
typedef void attn_decode_kernel(float *dst, const unsigned char *src, int64_t src_stride, const float *zero_points,
                                int32_t rows, int32_t size, int32_t padded);

/* s_j *= scales_j where bit j of `visible` is set, 0 elsewhere: a key that a row does not see may have any scale. */
typedef void attn_scale_keys_kernel(float *s, const float *scales, uint64_t visible, int32_t keys);

/* dst[i] = round_to_nearest_even(src[i] / divisor), adjacent elements. NaN stays NaN, overflow becomes infinity. */
typedef void attn_store_kernel(unsigned char *dst, const float *src, float divisor, int32_t size);

/* dst[i] = e4m3(src[i] / scale), adjacent elements; the division and the conversion round each by itself, and the
   conversion saturates (core/fp8.h). */
typedef void attn_fp8_divide_kernel(unsigned char *dst, const float *src, float scale, int32_t size);

/* dst[i] = e4m3(src[i] * factor), likewise. */
typedef void attn_fp8_multiply_kernel(unsigned char *dst, const float *src, float factor, int32_t size);

/* max_i |src[i]|; NaN if any is NaN. */
typedef float attn_absmax_kernel(const float *src, int32_t size);

/* row = its rotated form, or what it was before, as attn_rotation_apply() and attn_rotation_undo() give them, to the
   bit; size <= ATTN_ROW_MAX. */
typedef void attn_rotate_kernel(float *row, int32_t size);

/* The least and the largest of 0 and the elements; both NaN if an element is NaN or infinite. */
typedef void attn_range_kernel(const float *src, int32_t size, float *least, float *most);

/* Code i = rha(src[i] * inverse + zero_point) within [0, 15] (core/quantise.h), each operation rounded by itself; two
   codes to a byte, the first in its low half, a spare half 0. */
typedef void attn_quantise_int4_kernel(unsigned char *dst, const float *src, float inverse, float zero_point,
                                       int32_t size);

/* s[r][j] = scale * sum_i q[r][i] k[j][i], r < rows, j < keys. Rows of q and k are `padded` floats apart, rows of s
   ATTN_CPU_KEYS. Sums in short chains (about padded / 16 + padded / 64 additions). */
typedef void attn_qk_kernel(float *s, const float *q, const float *k, float scale, int32_t rows, int32_t keys,
                            int32_t padded);

/* acc[r][i] = alpha[r] acc[r][i] + sum_j p[r][j] v[j][i]. The tile's sum is formed apart from acc, in chains of at most
   keys / 8 + 5 additions. Rows of acc are `padded` floats apart, those of v `v_stride` (of a latent row the value is
   the beginning), rows of p ATTN_CPU_KEYS. */
typedef void attn_pv_kernel(float *acc, const float *alpha, const float *p, const float *v, int32_t rows, int32_t keys,
                            int32_t padded, int32_t v_stride);

/* One row's share of a tile in the online softmax: keys whose bit of `visible` is clear count as s = -inf.
     m' = max(m, max_j s_j); alpha = exp(m - m'); s_j becomes p_j = exp(s_j - m'); l = alpha l + sum_j p_j; m = m'
   A NaN among the visible s makes l NaN. m' = -inf is replaced by 0 inside the exponentials, so that no visible key
   gives alpha 0 (or 1) and p 0, never NaN. */
typedef void attn_softmax_kernel(float *s, uint64_t visible, int32_t keys, float *m, float *l, float *alpha);

/* s_j = cap tanh(s_j / cap), j < keys. Cannot overflow; relative error a few units in the last place. */
typedef void attn_softcap_kernel(float *s, float cap, int32_t keys);

/* s_j -= slope (distance - j), j < keys; `distance` is q minus the tile's first key. */
typedef void attn_alibi_kernel(float *s, float slope, int32_t distance, int32_t keys);

/* Fold the state (m2, l2, acc2) of later keys into (m, l, acc): the merge of contract section 3 on unnormalised sums.
   A state with l2 = 0 leaves the row as it is, to the bit. */
typedef void attn_fold_kernel(float *m, float *l, float *acc, float m2, float l2, const float *acc2, int32_t padded);

typedef struct attn_cpu_table {
  attn_cpu_level level;
  attn_load_kernel *load[ATTN_CPU_TYPES];
  attn_store_kernel *store[ATTN_CPU_TYPES];
  attn_fp8_divide_kernel *fp8_divide;
  attn_fp8_multiply_kernel *fp8_multiply;
  attn_absmax_kernel *absmax;
  attn_rotate_kernel *rotate;
  attn_rotate_kernel *unrotate;
  attn_range_kernel *range;
  attn_quantise_int4_kernel *quantise_int4;
  attn_decode_kernel *decode[ATTN_CODES]; /* by attn_code; none of ATTN_CODE_FLOAT */
  attn_scale_keys_kernel *scale_keys;
  attn_qk_kernel *qk;
  attn_pv_kernel *pv;
  attn_softmax_kernel *softmax;
  attn_softcap_kernel *softcap;
  attn_alibi_kernel *alibi_linear;
  attn_alibi_kernel *alibi_sqrt;
  attn_fold_kernel *fold;
} attn_cpu_table;

/* Declarations of all kernels. */
#define ATTN_CPU_KERNEL(level, slot, type, operation, types, head_class, symbol) type symbol;
#include "cpu/kernels.inc"
#undef ATTN_CPU_KERNEL

/* The table of a level: constant, static storage. */
const attn_cpu_table *attn_cpu_table_of(attn_cpu_level level);

/* Row `index` of kernels.inc, for attn_context_kernel(). */
int attn_cpu_table_kernel(const attn_cpu_table *table, size_t index, attn_kernel_info *info);

#endif
