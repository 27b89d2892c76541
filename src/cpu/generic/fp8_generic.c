/* SPDX-License-Identifier: Apache-2.0 */
/* fp8_generic.c: fp32 rows to fp8 codes, and the largest magnitude that their scale follows from. No branch or call in
   the loops, so that they vectorise. */
#include "core/fault.h"
#include "core/fp8.h"
#include "cpu/table.h"

/* e4m3 of y, or what a planted fault makes of it. */
static inline uint8_t encode(float y) {
  uint32_t bits = attn_fp8_bits(y);
  uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (attn_fault(ATTN_FAULT_FP8_OVERFLOW) && magnitude > 0x43E80000u) { /* 464, halfway to the next step */
    return (uint8_t)(ATTN_FP8_NAN | (bits >> 24 & 0x80u));
  }
  if (attn_fault(ATTN_FAULT_FP8_TRUNCATE) && magnitude >= 0x3C800000u && magnitude <= 0x7F800000u) {
    return attn_fp8_e4m3_encode(attn_fp8_float(bits & 0xFFF00000u));
  }
  if (attn_fault(ATTN_FAULT_FP8_SUBNORMAL) && magnitude < 0x3C800000u) {
    return 0;
  }
  return attn_fp8_e4m3_encode(y);
}

void attn_fp8_divide_e4m3__generic(unsigned char *dst, const float *src, float scale, int32_t size) {
  for (int32_t i = 0; i < size; i++) {
    dst[i] = encode(attn_fault(ATTN_FAULT_FP8_MULTIPLY) ? src[i] * scale : src[i] / scale);
  }
}

void attn_fp8_multiply_e4m3__generic(unsigned char *dst, const float *src, float factor, int32_t size) {
  for (int32_t i = 0; i < size; i++) {
    dst[i] = encode(src[i] * factor);
  }
}

/* Magnitudes in the order of their bits: a NaN is above infinity. */
float attn_absmax_f32__generic(const float *src, int32_t size) {
  uint32_t most = 0;
  for (int32_t i = 0; i < size; i++) {
    uint32_t magnitude = attn_fp8_bits(src[i]) & 0x7FFFFFFFu;
    if (attn_fault(ATTN_FAULT_FP8_NAN) && magnitude > 0x7F800000u) {
      magnitude = 0;
    }
    most = magnitude > most ? magnitude : most;
  }
  return attn_fp8_float(most);
}
