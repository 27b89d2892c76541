/* SPDX-License-Identifier: Apache-2.0 */
/* arithmetic.h: sizes that may not fit. Every product and sum of caller-given extents goes through these. */
#ifndef ATTN_CORE_ARITHMETIC_H
#define ATTN_CORE_ARITHMETIC_H

#include <stdint.h>

/* *r = a * b; 1 when it does not fit. */
static inline int attn_mul_overflow(uint64_t a, uint64_t b, uint64_t *r) {
  if (a != 0 && b > UINT64_MAX / a) {
    return 1;
  }
  *r = a * b;
  return 0;
}

/* *r = a + b; 1 when it does not fit. */
static inline int attn_add_overflow(uint64_t a, uint64_t b, uint64_t *r) {
  if (b > UINT64_MAX - a) {
    return 1;
  }
  *r = a + b;
  return 0;
}

/* Round up to a multiple of `step` (a power of two); the caller knows that it fits. */
static inline uint64_t attn_round_up(uint64_t n, uint64_t step) {
  return (n + step - 1) & ~(step - 1);
}

/* Division towards plus infinity of non-negative numbers. */
static inline int64_t attn_ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

/* Division towards minus infinity, b > 0: positions before a sequence's first key are negative. */
static inline int64_t attn_floor_div(int64_t a, int64_t b) {
  return a / b - (a % b < 0);
}

static inline int64_t attn_min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static inline int64_t attn_max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

#endif
