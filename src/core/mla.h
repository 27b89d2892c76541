/* SPDX-License-Identifier: Apache-2.0 */
/* mla.h: the expanding projection of a latent layer as the backends read it. */
#ifndef ATTN_CORE_MLA_H
#define ATTN_CORE_MLA_H

#include "attn/mla.h"

#define ATTN_MLA_PAD 8 /* rows and their number are rounded up to it, the pad is zero */

struct attn_mla_weights {
  int32_t num_heads;
  int32_t rank;
  int32_t nope;
  int32_t v;
  int32_t padded;    /* floats from one row to the next */
  int64_t nope_rows; /* nope and v rounded up: what lies between is zero too, so that products may go in whole steps */
  int64_t v_rows;
  float *rows; /* [num_heads, nope_rows + v_rows, padded], 64-byte aligned */
};

/* Row n of W_UK, and row d of W_UV, of a head. */
static inline const float *attn_mla_uk(const attn_mla_weights *w, int64_t head, int64_t n) {
  return w->rows + (head * (w->nope_rows + w->v_rows) + n) * w->padded;
}
static inline const float *attn_mla_uv(const attn_mla_weights *w, int64_t head, int64_t d) {
  return attn_mla_uk(w, head, w->nope_rows + d);
}

#endif
