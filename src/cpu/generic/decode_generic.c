/* SPDX-License-Identifier: Apache-2.0 */
/* decode_generic.c: codes of a quantised cache to padded fp32 rows, without their scales: those multiply scores and
 * weights, once per key and not once per element.
 *
 * Sixteen codes at a time are spread over four vectors by interleaving bytes, which every SIMD instruction set has: an
 * integer becomes the mantissa of a float whose exponent makes it count from 2^23, and a normal fp8 code is moved to
 * the upper half of a float. Where thirty-two fp8 codes hold a zero or a subnormal one, all are mended by a subtraction
 * (the plain way, one multiplication of the moved code, has subnormal operands, which processors take a hundred cycles
 * for); where they hold an infinity or NaN, they are decoded one by one.
 */
#include <string.h>

#include "core/fault.h"
#include "core/fp8.h"
#include "cpu/generic/vec4.h"
#include "cpu/table.h"

#define GROUP 16

static void pad_row(float *dst, int32_t size, int32_t padded) {
  for (int32_t i = size; i < padded; i++) {
    dst[i] = 0.0f;
  }
}

/* ---- fp8 --------------------------------------------------------------------------------------------------------- */

/* Where a code's bits go in the upper half of a float. */
typedef struct fp8_move {
  int shift;      /* right, from the upper byte */
  uint16_t keep;  /* sign, exponent and mantissa there */
  uint16_t bias;  /* difference of the exponents' biases */
  uint8_t least;  /* magnitudes below this one are subnormal */
  uint8_t span;   /* this one plus `least` is the largest finite magnitude */
  float smallest; /* normal value */
} fp8_move;

static const fp8_move e4m3_move = {4, 0x87F0, 0x3C00, 0x08, 0x76, 0x1p-6f};
static const fp8_move e5m2_move = {3, 0x8FE0, 0x3800, 0x04, 0x77, 0x1p-14f};

static float e4m3_value(uint8_t code) {
  if (attn_fault(ATTN_FAULT_CODE_NAN) && (code & 0x7F) == 0x7F) {
    return code > 0x7F ? -480.0f : 480.0f;
  }
  return attn_fault(ATTN_FAULT_CODE_SUBNORMAL) && (code & 0x78) == 0 ? 0.0f : attn_fp8_e4m3_decode(code);
}

static float e5m2_value(uint8_t code) {
  return attn_fault(ATTN_FAULT_CODE_E5M2) ? attn_fp8_e4m3_decode(code) : attn_fp8_e5m2_decode(code);
}

#if ATTN_HAVE_BYTES16
ATTN_INLINE void store_normal(float *dst, attn_bytes16 codes, const fp8_move *move) {
  for (int half = 0; half < 2; half++) {
    attn_halves8 upper = bytes16_as_upper(codes, half);
    upper = (halves8_shift_signed(upper, move->shift) & move->keep) + move->bias;
    vec4_store(dst + 8 * half, halves8_as_upper(upper, 0));
    vec4_store(dst + 8 * half + 4, halves8_as_upper(upper, 1));
  }
}

/* A subnormal code moved like a normal one lies below the smallest normal value, by half of what its own value does. */
ATTN_INLINE attn_vec4 mend_subnormals(attn_vec4 magnitude, float smallest) {
  attn_vec4 minus = vec4_splat(-1.0f);
  attn_vec4 below = vec4_add(vec4_splat(smallest), vec4_mul(magnitude, minus));
  return vec4_add(magnitude, vec4_mul(vec4_max(below, vec4_splat(0.0f)), minus));
}

ATTN_INLINE void store_finite(float *dst, attn_bytes16 codes, const fp8_move *move) {
  for (int half = 0; half < 2; half++) {
    attn_halves8 upper = bytes16_as_upper(codes, half);
    attn_halves8 sign = upper & 0x8000;
    upper = (halves8_shift_signed(upper, move->shift) & (uint16_t)(move->keep & 0x7FFF)) + move->bias;
    for (int quarter = 0; quarter < 2; quarter++) {
      attn_vec4 value = mend_subnormals(halves8_as_upper(upper, quarter), move->smallest);
      vec4_store(dst + 8 * half + 4 * quarter, vec4_join(value, halves8_as_upper(sign, quarter)));
    }
  }
}
#endif

/* `move` is a constant at every call. Two groups share one test. */
ATTN_INLINE void decode_fp8(float *dst, const unsigned char *src, int32_t size, const fp8_move *move,
                            float (*value)(uint8_t)) {
  int32_t i = 0;
#if ATTN_HAVE_BYTES16
  for (; i + 2 * GROUP <= size; i += 2 * GROUP) {
    attn_bytes16 first = bytes16_load(src + i);
    attn_bytes16 second = bytes16_load(src + i + GROUP);
    if (bytes16_any_above(bytes16_magnitudes_from(first, move->least), bytes16_magnitudes_from(second, move->least),
                          move->span)) {
      int planted = attn_fault(ATTN_FAULT_CODE_NAN) || attn_fault(ATTN_FAULT_CODE_SUBNORMAL);
      if (planted || bytes16_any_above(bytes16_magnitudes_from(first, 0), bytes16_magnitudes_from(second, 0),
                                       (uint8_t)(move->least + move->span))) {
        for (int32_t j = i; j < i + 2 * GROUP; j++) {
          dst[j] = value(src[j]);
        }
      } else {
        store_finite(dst + i, first, move);
        store_finite(dst + i + GROUP, second, move);
      }
      continue;
    }
    store_normal(dst + i, first, move);
    store_normal(dst + i + GROUP, second, move);
  }
#endif
  for (; i < size; i++) {
    dst[i] = value(src[i]);
  }
}

void attn_decode_e4m3__generic(float *dst, const unsigned char *src, int64_t src_stride, const float *zero_points,
                               int32_t rows, int32_t size, int32_t padded) {
  (void)zero_points;
  for (int32_t r = 0; r < rows; r++, dst += padded, src += src_stride) {
    decode_fp8(dst, src, size, &e4m3_move, e4m3_value);
    pad_row(dst, size, padded);
  }
}

void attn_decode_e5m2__generic(float *dst, const unsigned char *src, int64_t src_stride, const float *zero_points,
                               int32_t rows, int32_t size, int32_t padded) {
  (void)zero_points;
  for (int32_t r = 0; r < rows; r++, dst += padded, src += src_stride) {
    decode_fp8(dst, src, size, attn_fault(ATTN_FAULT_CODE_E5M2) ? &e4m3_move : &e5m2_move, e5m2_value);
    pad_row(dst, size, padded);
  }
}

/* ---- integers ---------------------------------------------------------------------------------------------------- */

#define COUNT 8388608.0f /* 2^23: its mantissa counts ones */

#if ATTN_HAVE_BYTES16
/* Sixteen bytes as floats, less `origin`, which includes COUNT. */
ATTN_INLINE void store_counted(float *dst, attn_bytes16 bytes, float origin) {
  attn_vec4 less = vec4_splat(-origin);
  for (int half = 0; half < 2; half++) {
    attn_halves8 counts = bytes16_as_lower(bytes, half);
    vec4_store(dst + 8 * half, vec4_add(halves8_counted(counts, 0), less));
    vec4_store(dst + 8 * half + 4, vec4_add(halves8_counted(counts, 1), less));
  }
}
#endif

void attn_decode_int8__generic(float *dst, const unsigned char *src, int64_t src_stride, const float *zero_points,
                               int32_t rows, int32_t size, int32_t padded) {
  (void)zero_points;
  for (int32_t r = 0; r < rows; r++, dst += padded, src += src_stride) {
    int32_t i = 0;
#if ATTN_HAVE_BYTES16
    for (; i + GROUP <= size; i += GROUP) {
      store_counted(dst + i, bytes16_load(src + i) ^ 0x80, COUNT + 128.0f);
    }
#endif
    for (; i < size; i++) {
      dst[i] = (float)((int32_t)(src[i] ^ 0x80) - 128);
    }
    pad_row(dst, size, padded);
  }
}

static int32_t nibble(const unsigned char *src, int32_t i) {
  return src[i / 2] >> (i % 2 * 4) & 0xF;
}

void attn_decode_int4__generic(float *dst, const unsigned char *src, int64_t src_stride, const float *zero_points,
                               int32_t rows, int32_t size, int32_t padded) {
  for (int32_t r = 0; r < rows; r++, dst += padded, src += src_stride) {
    float zero = attn_fault(ATTN_FAULT_CODE_ZERO_POINT) ? 0.0f : zero_points[r];
    int32_t i = 0;
#if ATTN_HAVE_BYTES16
    for (; i + 2 * GROUP <= size && !attn_fault(ATTN_FAULT_CODE_NIBBLES); i += 2 * GROUP) {
      attn_bytes16 pairs = bytes16_load(src + i / 2);
      attn_bytes16 even = pairs & 0xF;
      attn_bytes16 odd = pairs >> 4;
      store_counted(dst + i, bytes16_zip(even, odd, 0), COUNT + zero);
      store_counted(dst + i + GROUP, bytes16_zip(even, odd, 1), COUNT + zero);
    }
#endif
    for (; i < size; i++) {
      int32_t from = attn_fault(ATTN_FAULT_CODE_NIBBLES) && (i ^ 1) < size ? i ^ 1 : i;
      dst[i] = (float)nibble(src, from) - zero;
    }
    pad_row(dst, size, padded);
  }
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

void attn_scale_keys_f32__generic(float *s, const float *scales, uint64_t visible, int32_t keys) {
  for (int32_t j = 0; j < keys; j++) {
    s[j] *= scales[j];
  }
  uint64_t all = keys == 64 ? ~(uint64_t)0 : ((uint64_t)1 << keys) - 1;
  if ((visible & all) == all) {
    return;
  }
  for (int32_t j = 0; j < keys; j++) {
    s[j] = (visible >> j & 1u) != 0 ? s[j] : 0.0f;
  }
}
