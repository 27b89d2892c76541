/* SPDX-License-Identifier: Apache-2.0 */
/* reference_convert.c: element types by their definitions.
 *
 * A small float is a sign, an exponent and a fraction; its non-negative values in rising order have the bit patterns
 * 0, 1, 2, ... up to the largest. Rounding therefore counts units in the last place: a value is n units of 2^e, and its
 * pattern is n plus one whole binade of patterns for every e above that of the subnormals. Both 16-bit types are
 * rounded straight from double, never through float, so that nothing is rounded twice; fp8 is rounded from the float
 * that a quantiser has made.
 */
#include "reference.h"

#include <math.h>

/* A binary format. */
typedef struct small_format {
  int precision;      /* significant bits, the hidden one included */
  int least_exponent; /* exponent of the smallest subnormal: a power of two */
  uint32_t largest;   /* pattern of what lies beyond the finite values: +inf, or the largest where it saturates */
} small_format;

static const small_format float16_format = {11, -24, 0x7C00u};
static const small_format bfloat16_format = {8, -133, 0x7F80u};
static const small_format fp8_e4m3_format = {4, -9, 0x7Eu};

static uint64_t bits_of(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* A whole number to the nearest, ties to even; value is non-negative and small enough to be exact. */
static double round_half_even(double value) {
  double below = floor(value);
  double rest = value - below;
  if (rest > 0.5 || (rest == 0.5 && fmod(below, 2.0) != 0.0)) {
    below += 1.0;
  }
  return below;
}

/* The pattern of a magnitude that is a number. */
static uint32_t pattern_of(double magnitude, const small_format *format) {
  int exponent = 0;
  if (isinf(magnitude)) {
    return format->largest;
  }
  (void)frexp(magnitude, &exponent);
  int unit = exponent - format->precision;
  if (magnitude == 0.0 || unit < format->least_exponent) {
    unit = format->least_exponent;
  }
  if (unit > 128) {
    return format->largest;
  }
  uint32_t units = (uint32_t)round_half_even(ldexp(magnitude, -unit));
  uint32_t pattern = ((uint32_t)(unit - format->least_exponent) << (format->precision - 1)) + units;
  return pattern < format->largest ? pattern : format->largest;
}

static uint16_t round_to_16(double value, const small_format *format) {
  uint32_t sign = (uint32_t)(bits_of(value) >> 63) << 15;
  if (isnan(value)) {
    int fraction_bits = format->precision - 1;
    uint32_t payload = (uint32_t)((bits_of(value) & 0xFFFFFFFFFFFFFu) >> (52 - fraction_bits));
    uint32_t quiet = 1u << (fraction_bits - 1);
    return (uint16_t)(sign | format->largest | quiet | payload);
  }
  return (uint16_t)(sign | pattern_of(fabs(value), format));
}

unsigned char attn_reference_fp8_e4m3(float value) {
  if (isnan(value)) {
    return 0x7Fu;
  }
  return (unsigned char)((signbit(value) ? 0x80u : 0u) | pattern_of(fabs((double)value), &fp8_e4m3_format));
}

static inline double load_float32(const unsigned char *from) {
  float value;
  memcpy(&value, from, sizeof value);
  return (double)value;
}

static inline double load_float16(const unsigned char *from) {
  uint16_t pattern;
  memcpy(&pattern, from, sizeof pattern);
  uint64_t sign = (uint64_t)(pattern >> 15) << 63;
  uint64_t exponent = (pattern >> 10) & 0x1Fu;
  uint64_t fraction = pattern & 0x3FFu;
  if (exponent == 0) {
    double value = (double)fraction * 0x1p-24;
    return sign ? -value : value;
  }
  uint64_t bits = sign | fraction << 42;
  if (exponent == 31) {
    bits |= (uint64_t)0x7FF << 52;
    if (fraction != 0) {
      bits |= (uint64_t)1 << 51;
    }
  } else {
    bits |= (exponent - 15 + 1023) << 52;
  }
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* A bfloat16 is the upper half of a float32. */
static inline double load_bfloat16(const unsigned char *from) {
  uint16_t pattern;
  memcpy(&pattern, from, sizeof pattern);
  uint32_t bits = (uint32_t)pattern << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return (double)value;
}

double attn_reference_load(const unsigned char *from, attn_dtype dtype) {
  double value;
  attn_reference_load_row(&value, from, 0, dtype, 1);
  return value;
}

void attn_reference_load_row(double *row, const unsigned char *from, int64_t stride, attn_dtype dtype, int64_t n) {
  if (dtype == ATTN_DTYPE_FLOAT32) {
    for (int64_t i = 0; i < n; i++) {
      row[i] = load_float32(from + i * stride);
    }
  } else if (dtype == ATTN_DTYPE_FLOAT16) {
    for (int64_t i = 0; i < n; i++) {
      row[i] = load_float16(from + i * stride);
    }
  } else {
    for (int64_t i = 0; i < n; i++) {
      row[i] = load_bfloat16(from + i * stride);
    }
  }
}

void attn_reference_store(unsigned char *to, attn_dtype dtype, double value) {
  if (dtype == ATTN_DTYPE_FLOAT32) {
    float rounded = (float)value;
    memcpy(to, &rounded, sizeof rounded);
    return;
  }
  uint16_t pattern = round_to_16(value, dtype == ATTN_DTYPE_FLOAT16 ? &float16_format : &bfloat16_format);
  memcpy(to, &pattern, sizeof pattern);
}

void attn_reference_convert(unsigned char *to, attn_dtype to_dtype, const unsigned char *from, attn_dtype from_dtype) {
  if (to_dtype == from_dtype) {
    memcpy(to, from, attn_dtype_bytes(from_dtype));
  } else {
    attn_reference_store(to, to_dtype, attn_reference_load(from, from_dtype));
  }
}
