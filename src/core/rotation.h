/* SPDX-License-Identifier: Apache-2.0 */
/* rotation.h: the rotation of int4 rows: a fixed sign for each element, then Walsh-Hadamard transforms.
 *
 * A row of `size` elements is cut into blocks of descending powers of two (96 = 64 + 32, 65 = 64 + 1). With H_n the
 * unnormalised transform in natural order, s the signs (by the element's index in the row, not in its block), and for a
 * block of n elements the factor f = 2^floor(log2(n0 / n) / 2), n0 being the row's largest block:
 *
 *     rotated block = f * H_n (s x)            x = s * H_n (rotated block / (n f))
 *
 * so that <q, k> = sum over the blocks of <H_n (s q) / (n f), rotated k>. Everything is float32: butterflies for steps
 * 1, 2, 4, ... as (a + b, a - b), each operation rounded by itself; n and f are powers of two, so scaling is exact.
 */
#ifndef ATTN_CORE_ROTATION_H
#define ATTN_CORE_ROTATION_H

#include <stdint.h>

/* The sign of element `index` < ATTN_ROW_MAX: 0, or 0x80000000 for -1, to be XORed to the element's bits. */
uint32_t attn_rotation_sign(int64_t index);

/* The signs of the elements from `index` to the next multiple of 32, the first one's the lowest bit: 1 for -1. */
uint32_t attn_rotation_signs(int64_t index);

/* A block of a row that begins at `begin`: its elements, a power of two. */
int64_t attn_rotation_block(int64_t size, int64_t begin);

/* The factor f of a block of n elements in a row of `size`. */
float attn_rotation_factor(int64_t size, int64_t n);

/* A key or value before it is quantised: row becomes its rotated form. */
void attn_rotation_apply(float *row, int64_t size);

/* A query: row becomes H_n (s q) / (n f), whose product with a rotated key is that of the two before. */
void attn_rotation_query(float *row, int64_t size);

/* Back: a rotated row, or a weighted sum of such rows, becomes what it was before. */
void attn_rotation_undo(float *row, int64_t size);

#endif
