/* SPDX-License-Identifier: Apache-2.0 */
/* check_float.c: see check_float.h. */
#include "check_float.h"

#include <string.h>

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* value / 2^shift, rounded to nearest even. */
static uint32_t shift_round(uint32_t value, uint32_t shift) {
  uint32_t kept = value >> shift;
  uint32_t rest = value & ((1u << shift) - 1u);
  uint32_t half = 1u << (shift - 1u);
  return kept + (rest > half || (rest == half && (kept & 1u)) ? 1u : 0u);
}

uint16_t check_to_f16(float x) {
  uint32_t bits = bits_of(x);
  uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return (uint16_t)(sign | 0x7E00u);
  }
  int32_t exponent = (int32_t)(magnitude >> 23) - 127;
  if (exponent > 15) {
    return (uint16_t)(sign | 0x7C00u);
  }
  if (exponent >= -14) { /* a carry out of the mantissa raises the exponent, up to infinity */
    return (uint16_t)(sign | shift_round(magnitude - ((127u - 15u) << 23), 13));
  }
  if (exponent < -25) {
    return (uint16_t)sign;
  }
  uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
  return (uint16_t)(sign | shift_round(mantissa, (uint32_t)(-1 - exponent)));
}

uint16_t check_to_bf16(float x) {
  uint32_t bits = bits_of(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return (uint16_t)((bits >> 16) | 0x40u);
  }
  return (uint16_t)shift_round(bits, 16);
}

float check_from_f16(uint16_t x) {
  uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
  uint32_t exponent = (x >> 10) & 0x1Fu;
  uint32_t mantissa = x & 0x3FFu;
  if (exponent == 31) {
    return float_of(sign | 0x7F800000u | (mantissa << 13));
  }
  if (exponent == 0) {
    float value = (float)mantissa * 0x1p-24f;
    return sign ? -value : value;
  }
  return float_of(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

float check_from_bf16(uint16_t x) {
  return float_of((uint32_t)x << 16);
}

void check_store(void *p, attn_dtype dtype, float x) {
  if (dtype == ATTN_DTYPE_FLOAT32) {
    memcpy(p, &x, sizeof x);
  } else {
    uint16_t half = dtype == ATTN_DTYPE_FLOAT16 ? check_to_f16(x) : check_to_bf16(x);
    memcpy(p, &half, sizeof half);
  }
}

static float from_e4m3(uint8_t x) {
  uint32_t sign = (uint32_t)(x & 0x80u) << 24;
  uint32_t exponent = (x >> 3) & 0xFu;
  uint32_t mantissa = x & 7u;
  if ((x & 0x7Fu) == 0x7Fu) {
    return float_of(sign | 0x7FC00000u);
  }
  if (exponent == 0) {
    float value = (float)mantissa * 0x1p-9f;
    return sign ? -value : value;
  }
  return float_of(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

float check_load(const void *p, attn_dtype dtype) {
  if (dtype == ATTN_DTYPE_FP8_E4M3) {
    uint8_t code;
    memcpy(&code, p, sizeof code);
    return from_e4m3(code);
  }
  if (dtype == ATTN_DTYPE_FLOAT32) {
    float x;
    memcpy(&x, p, sizeof x);
    return x;
  }
  uint16_t half;
  memcpy(&half, p, sizeof half);
  return dtype == ATTN_DTYPE_FLOAT16 ? check_from_f16(half) : check_from_bf16(half);
}

float check_rounded(attn_dtype dtype, float x) {
  unsigned char stored[4];
  check_store(stored, dtype, x);
  return check_load(stored, dtype);
}
