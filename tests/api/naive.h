/* SPDX-License-Identifier: Apache-2.0 */
/* naive.h: the contract for one row in dense double arithmetic, as short as it can be, and the bounds around it. */
#ifndef ATTN_TESTS_NAIVE_H
#define ATTN_TESTS_NAIVE_H

#include "scene.h"

#define NAIVE_SIZE 1024

/* One (token, head) row: the value, and what the bounds of docs/numerics.md are made of. */
typedef struct naive_row {
  double out[NAIVE_SIZE];
  double lse;
  double a;    /* sum p |v| / sqrt(dv) */
  double b;    /* sqrt(sum p^2 |v|^2 / dv) */
  double smax; /* largest |scale| |q| |k| + |bias| of a key that counts */
} naive_row;

/* 1 when query position q of sequence `seq` sees key k. */
int naive_visible(const scene *s, int32_t seq, int64_t q, int64_t k);

void naive_attention(const scene *s, int32_t seq, int32_t row, int32_t head, naive_row *answer);

/* Fails the test unless the row of `out` and its lse lie within the bounds. */
void naive_compare(const scene *s, int32_t seq, const naive_row *answer, const float *out, float lse,
                   const char *where);

#endif
