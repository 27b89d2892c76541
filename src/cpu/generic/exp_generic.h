/* SPDX-License-Identifier: Apache-2.0 */
/* exp_generic.h: exp in float without a branch or a call, so that loops around it vectorise.
 *
 * exp(x) = 2^n exp(r), n = round(x / ln 2), r = x - n ln 2 in two parts, exp(r) = 1 + r + r^2 P(r) with a polynomial
 * fitted for the smallest relative error (2^-28 before rounding). Exact: exp(0) = 1. Below -87.3 the result is 0 (no
 * subnormals), above 88 it is not meant to be used; NaN stays NaN.
 */
#ifndef ATTN_CPU_EXP_GENERIC_H
#define ATTN_CPU_EXP_GENERIC_H

#include <stdint.h>
#include <string.h>

static inline float attn_bits_to_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline uint32_t attn_float_to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float attn_exp_float(float x) {
  const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
  float shifted = x * 1.44269504f + round;
  float n = shifted - round;
  float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 0x1.6a2432p-10f;
  p = p * r + 0x1.1239e2p-7f;
  p = p * r + 0x1.5558f2p-5f;
  p = p * r + 0x1.555492p-3f;
  p = p * r + 0x1.fffffcp-2f;
  p = p * (r * r) + r + 1.0f;
  float scale = attn_bits_to_float((attn_float_to_bits(shifted) << 23) + 0x3f800000u);
  float e = p * scale;
  return x < -87.3f ? 0.0f : e;
}

#endif
