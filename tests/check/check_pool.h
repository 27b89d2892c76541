/* SPDX-License-Identifier: Apache-2.0 */
/* check_pool.h: the two tensors of a paged cache, in every way they may lie. */
#ifndef ATTN_CHECK_POOL_H
#define ATTN_CHECK_POOL_H

#include "check_case.h"

/* Strides of a pool of `ndim` axes in a class that lies in one allocation of its own. */
void check_pool_strides(check_rng *rng, int pool_class, int ndim, const int64_t *shape, size_t element,
                        int64_t *strides);

/* K and V pools of the case's sizes and types in its layout; pool_class is CHECK_COMPACT ... CHECK_LAYERS. */
void check_pool_make(check_arena *arena, check_case *c, int64_t num_blocks, int pool_class, check_tensor *k_cache,
                     check_tensor *v_cache);

/* Tensors of their own for the pool's scales, float32 [blocks, offsets, heads] or in HND order, poisoned: where rows
   keep their scales apart. */
void check_pool_scales(check_arena *arena, check_case *c, int64_t num_blocks, int stride_class, check_tensor *scales);

/* Store or compare row `row` of a set, quantised, at a place of the pool: codes, and the scale where it lies. Padding
   is written as zero bytes where `padding`, else left. */
void check_pool_put(const check_case *c, const check_tensor *pool, const check_tensor *scales, const check_rows *rows,
                    int64_t row, int64_t block, int64_t offset, int64_t head, int padding);

/* The bytes of a quantised row as check_pool_put() addresses them, one after the other: their addresses and what they
   have to be. Returns how many; `at` and `want` have room for CHECK_ROW_BYTES. */
#define CHECK_ROW_BYTES 1040
int32_t check_pool_bytes(const check_case *c, const check_tensor *pool, const check_tensor *scales,
                         const check_rows *rows, int64_t row, int64_t block, int64_t offset, int64_t head, int padding,
                         unsigned char **at, unsigned char *want);

/* Static scales as a tensor, [1] or [heads]; nothing is made where none are given, and 0 comes back. */
int check_static_scales(check_arena *arena, const check_case *c, const check_rows *rows, check_tensor *scales);

/* What rows of a pool have to be: the codes of `rows`, or in a float format the values, rounded to its type. */
typedef struct check_wanted {
  const char *name;
  const check_tensor *pool;
  const check_tensor *scales; /* where the rows' scales lie apart */
  const check_rows *rows;
  const float *values; /* [positions, heads, size] */
} check_wanted;

/* All heads of position `position` of the set are what lies at a place of the pool, byte by byte, padding and scales
   included; then the old bytes are put back, so that whatever is left has to be unchanged. */
int check_pool_judge(check_env *env, const check_case *c, const check_wanted *want, int64_t position, int64_t block,
                     int64_t offset);

/* Values of one position that conversions to this format get wrong: ties, subnormals, overflow, infinities, NaN; in
   quantised formats mostly plain ones of some magnitude, since a row with one infinity has no other codes. */
void check_draw_position(check_rng *rng, attn_format format, int64_t count, float *values);

/* Element e of a head's row at an offset of a block, whatever the layout. */
void *check_pool_at(const check_case *c, const check_tensor *pool, int64_t block, int64_t offset, int64_t head,
                    int64_t e);

#endif
