/* SPDX-License-Identifier: Apache-2.0 */
/* store_generic.c: fp32 rows divided and rounded to nearest even into the output's type, without a branch or a call. */
#include "core/fault.h"
#include "cpu/generic/exp_generic.h"
#include "cpu/table.h"

void attn_store_f32__generic(unsigned char *dst, const float *src, float divisor, int32_t size) {
  float *out = (float *)(void *)dst;
  for (int32_t i = 0; i < size; i++) {
    out[i] = src[i] / divisor;
  }
}

/* Three cases by select: NaN and what rounds beyond 65504; subnormal results, rounded by adding 0.5 (whose unit in the
   last place is float16's smallest step); the rest, rounded in integer arithmetic. */
static uint16_t float_to_half(float x) {
  uint32_t bits = attn_float_to_bits(x);
  uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t special = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x3ffu) : 0x7c00u;
  uint32_t subnormal = attn_float_to_bits(attn_bits_to_float(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? special : half;
  return (uint16_t)(half | (bits >> 16 & 0x8000u));
}

void attn_store_f16__generic(unsigned char *dst, const float *src, float divisor, int32_t size) {
  uint16_t *out = (uint16_t *)(void *)dst;
  for (int32_t i = 0; i < size; i++) {
    out[i] = float_to_half(src[i] / divisor);
  }
}

static uint16_t float_to_brain(float x) {
  uint32_t bits = attn_float_to_bits(x);
  uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  uint32_t quiet = bits >> 16 | 0x40u;
  if (attn_fault(ATTN_FAULT_BF16_TRUNCATE)) {
    rounded = bits >> 16;
  }
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

void attn_store_bf16__generic(unsigned char *dst, const float *src, float divisor, int32_t size) {
  uint16_t *out = (uint16_t *)(void *)dst;
  for (int32_t i = 0; i < size; i++) {
    out[i] = float_to_brain(src[i] / divisor);
  }
}
