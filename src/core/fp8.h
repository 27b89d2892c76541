/* SPDX-License-Identifier: Apache-2.0 */
/* fp8.h: float32 to and from the two 8-bit floats, for every backend but REFERENCE (which has its own conversions).
 *
 *     e4m3   s eeee mmm, bias 7:  normal from 2^-6 to 448, subnormal steps of 2^-9; 7F and FF are NaN, no infinities
 *     e5m2   s eeeee mm, bias 15: normal from 2^-14 to 57344, steps of 2^-16; 7C and FC infinities, 7D-7F, FD-FF NaN
 *
 * Encoding rounds to nearest even and saturates: what lies beyond the largest finite value, infinities included,
 * becomes that value with its sign; NaN of either sign becomes 7F. Decoding is exact; a NaN comes out quiet, with the
 * code's sign. All four are integer arithmetic and selects, without a branch or a call, so that loops around them
 * vectorise; none depends on whether the processor flushes subnormals, since none of their float operations meets one.
 */
#ifndef ATTN_CORE_FP8_H
#define ATTN_CORE_FP8_H

#include <stdint.h>
#include <string.h>

#define ATTN_FP8_E4M3_MAX 448.0f
#define ATTN_FP8_E5M2_MAX 57344.0f
#define ATTN_FP8_NAN 0x7Fu /* what every NaN is stored as */

/* Smallest scale of a group of a block-scaled output. */
#define ATTN_FP8_GROUP_FLOOR 1e-10f

static inline float attn_fp8_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline uint32_t attn_fp8_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* A magnitude below the smallest normal value is rounded by adding the power of two whose unit in the last place is
   the format's smallest step; a larger one in integer arithmetic, where a carry out of the mantissa moves on to the
   next exponent. A subnormal float32 is far below half a step and may be flushed by that addition. */
static inline uint8_t attn_fp8_e4m3_encode(float x) {
  uint32_t bits = attn_fp8_bits(x);
  uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t bounded = magnitude < 0x43E00000u ? magnitude : 0x43E00000u; /* 448 */
  uint32_t small = attn_fp8_bits(attn_fp8_float(bounded) + 16384.0f) - 0x46800000u;
  uint32_t normal = (bounded + 0x7FFFFu + (bounded >> 20 & 1u) - 0x3C000000u) >> 20;
  uint32_t code = (bounded < 0x3C800000u ? small : normal) | (bits >> 24 & 0x80u); /* 2^-6 */
  return (uint8_t)(magnitude > 0x7F800000u ? ATTN_FP8_NAN : code);
}

static inline uint8_t attn_fp8_e5m2_encode(float x) {
  uint32_t bits = attn_fp8_bits(x);
  uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t bounded = magnitude < 0x47600000u ? magnitude : 0x47600000u; /* 57344 */
  uint32_t small = attn_fp8_bits(attn_fp8_float(bounded) + 128.0f) - 0x43000000u;
  uint32_t normal = (bounded + 0xFFFFFu + (bounded >> 21 & 1u) - 0x38000000u) >> 21;
  uint32_t code = (bounded < 0x38800000u ? small : normal) | (bits >> 24 & 0x80u); /* 2^-14 */
  return (uint8_t)(magnitude > 0x7F800000u ? ATTN_FP8_NAN : code);
}

static inline float attn_fp8_e4m3_decode(uint8_t code) {
  uint32_t magnitude = code & 0x7Fu;
  uint32_t normal = (magnitude << 20) + 0x3C000000u;
  uint32_t small = attn_fp8_bits((float)(int32_t)magnitude * 0x1p-9f);
  uint32_t finite = magnitude < 8u ? small : normal;
  uint32_t decoded = magnitude == 0x7Fu ? 0x7FC00000u : finite;
  return attn_fp8_float(decoded | (code & 0x80u) << 24);
}

static inline float attn_fp8_e5m2_decode(uint8_t code) {
  uint32_t magnitude = code & 0x7Fu;
  uint32_t normal = (magnitude << 21) + 0x38000000u;
  uint32_t small = attn_fp8_bits((float)(int32_t)magnitude * 0x1p-16f);
  uint32_t finite = magnitude < 4u ? small : normal;
  uint32_t special = magnitude == 0x7Cu ? 0x7F800000u : 0x7FC00000u;
  uint32_t decoded = magnitude >= 0x7Cu ? special : finite;
  return attn_fp8_float(decoded | (code & 0x80u) << 24);
}

#endif
