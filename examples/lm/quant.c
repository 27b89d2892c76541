/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversion of GGUF tensor blocks to float32, bit for bit as the format defines it: every product and sum is rounded
 * by itself in float32. Blocks are read byte by byte, so they may lie at any address and on any byte order.
 */
#include "quant.h"

#include <stddef.h>
#include <string.h>

static uint16_t load_u16(const uint8_t *bytes) {
  return (uint16_t)(bytes[0] | (uint16_t)(bytes[1] << 8));
}

static float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

float quant_half_to_float(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
  uint32_t exponent = (bits >> 10) & 31u;
  uint32_t fraction = bits & 0x3ffu;
  if (exponent == 31) {
    return float_from_bits(sign | 0x7f800000u | (fraction << 13));
  }
  if (exponent != 0) {
    return float_from_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
  }
  float magnitude = (float)fraction * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

static void float32_to_float(const uint8_t *blocks, uint64_t elements, float *out) {
  for (uint64_t i = 0; i < elements; i++) {
    const uint8_t *b = blocks + 4 * i;
    out[i] = float_from_bits((uint32_t)load_u16(b) | ((uint32_t)load_u16(b + 2) << 16));
  }
}

static void float16_to_float(const uint8_t *blocks, uint64_t elements, float *out) {
  for (uint64_t i = 0; i < elements; i++) {
    out[i] = quant_half_to_float(load_u16(blocks + 2 * i));
  }
}

/* 32 elements: scale, minimum, 16 bytes; the low nibbles are the first half of the block, the high ones the second. */
static void q4_1_to_float(const uint8_t *blocks, uint64_t elements, float *out) {
  for (uint64_t b = 0; b < elements / 32; b++) {
    const uint8_t *block = blocks + 20 * b;
    const float scale = quant_half_to_float(load_u16(block));
    const float minimum = quant_half_to_float(load_u16(block + 2));
    float *row = out + 32 * b;
    for (int i = 0; i < 16; i++) {
      row[i] = (float)(block[4 + i] & 15) * scale + minimum;
      row[i + 16] = (float)(block[4 + i] >> 4) * scale + minimum;
    }
  }
}

/* 32 elements: scale, 32 signed bytes. */
static void q8_0_to_float(const uint8_t *blocks, uint64_t elements, float *out) {
  for (uint64_t b = 0; b < elements / 32; b++) {
    const uint8_t *block = blocks + 34 * b;
    const float scale = quant_half_to_float(load_u16(block));
    float *row = out + 32 * b;
    for (int i = 0; i < 32; i++) {
      row[i] = (float)((int)(block[2 + i] ^ 0x80) - 128) * scale;
    }
  }
}

static void bfloat16_to_float(const uint8_t *blocks, uint64_t elements, float *out) {
  for (uint64_t i = 0; i < elements; i++) {
    out[i] = float_from_bits((uint32_t)load_u16(blocks + 2 * i) << 16);
  }
}

/* 32 elements: scale, 16 bytes; nibbles as in Q4_1, stored with 8 added. */
static void q4_0_to_float(const uint8_t *blocks, uint64_t elements, float *out) {
  for (uint64_t b = 0; b < elements / 32; b++) {
    const uint8_t *block = blocks + 18 * b;
    const float scale = quant_half_to_float(load_u16(block));
    float *row = out + 32 * b;
    for (int i = 0; i < 16; i++) {
      row[i] = (float)((block[2 + i] & 15) - 8) * scale;
      row[i + 16] = (float)((block[2 + i] >> 4) - 8) * scale;
    }
  }
}

/* Group j's 6-bit scale and minimum out of the 12 bytes that hold eight of each: the first four of either kind are the
   low six bits of a byte; the others have their low four bits in the last four bytes, the high two above the first. */
static void q4_k_scales(const uint8_t *packed, int j, float *scale, float *minimum) {
  if (j < 4) {
    *scale = (float)(packed[j] & 63);
    *minimum = (float)(packed[j + 4] & 63);
  } else {
    *scale = (float)((packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4);
    *minimum = (float)((packed[j + 4] >> 4) | (packed[j] >> 6) << 4);
  }
}

/* 256 elements: scale, scale of the minimums, 12 bytes for 8 groups of 32, 128 bytes; 32 bytes hold two groups, the
   first in their low nibbles. */
static void q4_k_to_float(const uint8_t *blocks, uint64_t elements, float *out) {
  for (uint64_t b = 0; b < elements / 256; b++) {
    const uint8_t *block = blocks + 144 * b;
    const float super = quant_half_to_float(load_u16(block));
    const float super_minimum = quant_half_to_float(load_u16(block + 2));
    for (int j = 0; j < 8; j++) {
      const uint8_t *bytes = block + 16 + 32 * (j / 2);
      float *group = out + 256 * b + 32 * j;
      float scale, minimum;
      q4_k_scales(block + 4, j, &scale, &minimum);
      scale *= super;
      minimum *= super_minimum;
      for (int i = 0; i < 32; i++) {
        group[i] = (float)(bytes[i] >> 4 * (j % 2) & 15) * scale - minimum;
      }
    }
  }
}

/* 256 elements: 128 bytes of low nibbles, 64 of high bit pairs, 16 signed group scales, scale. In each half of the
   block, quarter j has the low nibbles (j < 2) or the high ones of 32 of the half's 64 bytes, and bit pair j of its 32
   high bytes. Values are stored with 32 added. */
static void q6_k_to_float(const uint8_t *blocks, uint64_t elements, float *out) {
  for (uint64_t b = 0; b < elements / 256; b++) {
    const uint8_t *block = blocks + 210 * b;
    const float super = quant_half_to_float(load_u16(block + 208));
    for (int quarter = 0; quarter < 8; quarter++) {
      const int j = quarter % 4;
      const uint8_t *low = block + 64 * (quarter / 4) + 32 * (j % 2);
      const uint8_t *high = block + 128 + 32 * (quarter / 4);
      float *group = out + 256 * b + 32 * quarter;
      for (int i = 0; i < 32; i++) {
        const int scale = (block[192 + 2 * quarter + i / 16] ^ 0x80) - 128;
        const int value = ((low[i] >> 4 * (j / 2) & 15) | (high[i] >> 2 * j & 3) << 4) - 32;
        group[i] = (float)value * (super * (float)scale);
      }
    }
  }
}

static const quant_type types[] = {
    {0, "F32", 1, 4, float32_to_float},
    {1, "F16", 1, 2, float16_to_float},
    {30, "BF16", 1, 2, bfloat16_to_float},
    {2, "Q4_0", 32, 18, q4_0_to_float},
    {3, "Q4_1", 32, 20, q4_1_to_float},
    {8, "Q8_0", 32, 34, q8_0_to_float},
    {12, "Q4_K", 256, 144, q4_k_to_float},
    {14, "Q6_K", 256, 210, q6_k_to_float},
    {6, "Q5_0", 32, 22, NULL},
    {7, "Q5_1", 32, 24, NULL},
    {9, "Q8_1", 32, 36, NULL},
    {10, "Q2_K", 256, 84, NULL},
    {11, "Q3_K", 256, 110, NULL},
    {13, "Q5_K", 256, 176, NULL},
    {15, "Q8_K", 256, 292, NULL},
};

const quant_type *quant_find(uint32_t id) {
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    if (types[i].id == id) {
      return &types[i];
    }
  }
  return NULL;
}

const char *quant_supported_names(void) {
  return "F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K";
}
