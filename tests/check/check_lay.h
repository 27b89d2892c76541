/* SPDX-License-Identifier: Apache-2.0 */
/* check_lay.h: the steps that laying out rows of K and V (check_lay.c) and latent rows (check_latent_lay.c) share. */
#ifndef ATTN_CHECK_LAY_H
#define ATTN_CHECK_LAY_H

#include "check_attention.h"

/* What laying out needs at every step. */
typedef struct check_lay_state {
  check_arena *arena;
  check_case *c;
  check_model *m;
  check_laid *l;
  check_poison poison;
  int stride_class;
  int before;
} check_lay_state;

/* A poisoned tensor in the case's stride class. */
void check_lay_make(check_lay_state *y, check_tensor *t, attn_dtype dtype, int ndim, const int64_t *shape);

/* A tensor of compact floats; `rows` of shape[0] are given, the rest stays poison. */
void check_lay_floats(check_lay_state *y, check_tensor *t, attn_dtype dtype, int64_t extent, int64_t rows,
                      int64_t heads, int64_t size, const float *values);
void check_lay_vector(check_lay_state *y, check_tensor *t, int64_t count, const float *values);

/* Tokens of a tensor beyond the batch's last one. */
int64_t check_lay_extra(check_lay_state *y);

/* Which columns own which block, and the width of the table; the table itself. */
void check_lay_blocks(check_lay_state *y, int odd_ids, int64_t *width);
void check_lay_table(check_lay_state *y, int64_t width);

#endif
