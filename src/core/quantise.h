/* SPDX-License-Identifier: Apache-2.0 */
/* quantise.h: float32 to the codes of a cache row and back, one row at a time: the scalar form that every backend may
 * fall back on, and whose bytes every other form has to give. Formats of ATTN_CODE_FLOAT are not its concern: their
 * elements are converted by each backend's own means.
 *
 * Every operation is rounded by itself (the whole tree is compiled without contraction), division is division, and no
 * step meets a subnormal whose loss would change a byte.
 *
 *     static fp8            code = fp8(x / scale)                           value = code * scale
 *     int8_per_token_head   scale = max(absmax / 127, 1e-6)                 value = code * scale
 *                           code = rha(x * (1 / scale)) within [-128, 127]
 *     fp8_per_token_head    scale = max(absmax / 448, 1e-6)                 value = code * scale
 *                           code = e4m3(x * (1 / scale))
 *     int4_per_token_head   x is rotated; min, max widened to contain 0     value = (code - zp) * scale, low 4 bits of
 *                           scale = max((max - min) / 15, 1e-6)             the scale's bits cleared; still rotated
 *                           zp = rha(-min / scale) within [0, 15]
 *                           code = rha(x * (1 / scale) + zp) within [0, 15]
 *
 * rha(y) = trunc(y + copysign(0.5, y)). A row with a NaN or infinity, or whose int4 range is not finite, is stored as
 * code bytes 0 and scale bits 7FC00000.
 */
#ifndef ATTN_CORE_QUANTISE_H
#define ATTN_CORE_QUANTISE_H

#include "core/format.h"

#define ATTN_ROW_NAN_BITS 0x7FC00000u /* scale bits of a row that decodes to NaN */

/* ATTN_SCALE_ROW: store a row of rows->size elements (of a latent row the latent ones), its padding and its scale.
   `values` is working memory: a rotated format rotates it. */
void attn_quantise_row(const attn_rows *rows, const attn_row *to, float *values);

/* ATTN_SCALE_STATIC: store the elements [begin, begin + n). */
void attn_quantise_part(const attn_rows *rows, const attn_row *to, int64_t begin, int32_t n, const float *values);

/* int4: scale and zero point (a whole number) of a rotated row whose least and largest value and 0 lie within [least,
   most]. 0: the range is not finite. */
int attn_quantise_int4_scale(float least, float most, float *scale, float *zero_point);

/* The bits of an int4 row's scale, which hold its zero point. */
uint32_t attn_quantise_int4_bits(float scale, float zero_point);

/* ATTN_SCALE_ROW: bring a row's code bytes, its padding and its scale's bits to their places. Codes NULL: zeros. */
void attn_quantise_place(const attn_rows *rows, const attn_row *to, const unsigned char *codes, uint32_t scale_bits);

/* The scale of a row: 1 where none was given; for int4 with the zero point taken out of it, into *zero_point (else
   0). */
float attn_row_scale(const attn_rows *rows, const attn_row *from, int32_t *zero_point);

/* The elements [begin, begin + n) of a row, as stored: a rotated row stays rotated. */
void attn_dequantise_part(const attn_rows *rows, const attn_row *from, int64_t begin, int32_t n, float *values);

/* A whole row of at most ATTN_ROW_MAX elements, un-rotated. */
void attn_dequantise_row(const attn_rows *rows, const attn_row *from, float *values);

#endif
