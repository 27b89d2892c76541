/* SPDX-License-Identifier: Apache-2.0 */
/* load_generic.c: rows of a cache, or of q, to padded fp32 rows. Bit arithmetic without branches, so the loops
   vectorise. */
#include <string.h>

#include "core/fault.h"
#include "cpu/generic/exp_generic.h"
#include "cpu/table.h"

static void pad_row(float *dst, int32_t size, int32_t padded) {
  for (int32_t i = size; i < padded; i++) {
    dst[i] = 0.0f;
  }
}

void attn_load_f32__generic(float *dst, const unsigned char *src, int64_t src_stride, int32_t rows, int32_t size,
                            int32_t padded) {
  for (int32_t r = 0; r < rows; r++, dst += padded, src += src_stride) {
    memcpy(dst, src, (size_t)size * sizeof *dst);
    pad_row(dst, size, padded);
  }
}

/* Exponent and mantissa moved into place and scaled by 2^112, which also makes subnormals exact; infinities and NaN get
   their exponent by a select. */
static float half_to_float(uint16_t half) {
  uint32_t magnitude = (uint32_t)(half & 0x7fffu) << 13;
  float finite = attn_bits_to_float(magnitude) * 0x1p112f;
  uint32_t bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : attn_float_to_bits(finite);
  return attn_bits_to_float(bits | (uint32_t)(half & 0x8000u) << 16);
}

void attn_load_f16__generic(float *dst, const unsigned char *src, int64_t src_stride, int32_t rows, int32_t size,
                            int32_t padded) {
  for (int32_t r = 0; r < rows; r++, dst += padded, src += src_stride) {
    const uint16_t *half = (const uint16_t *)(const void *)src;
    for (int32_t i = 0; i < size; i++) {
      dst[i] = half_to_float(half[i]);
      if (attn_fault(ATTN_FAULT_FP16_SUBNORMAL) && (half[i] & 0x7c00u) == 0) {
        dst[i] = 0.0f;
      }
    }
    pad_row(dst, size, padded);
  }
}

void attn_load_bf16__generic(float *dst, const unsigned char *src, int64_t src_stride, int32_t rows, int32_t size,
                             int32_t padded) {
  for (int32_t r = 0; r < rows; r++, dst += padded, src += src_stride) {
    const uint16_t *brain = (const uint16_t *)(const void *)src;
    for (int32_t i = 0; i < size; i++) {
      dst[i] = attn_bits_to_float((uint32_t)brain[i] << 16);
    }
    pad_row(dst, size, padded);
  }
}
