/* SPDX-License-Identifier: Apache-2.0 */
/* quantise.c: see quantise.h. */
#include "core/quantise.h"

#include <math.h>
#include <string.h>

#include "core/fault.h"
#include "core/fp8.h"
#include "core/rotation.h"

#define LEAST_SCALE 1e-6f
#define PART 64              /* elements that are quantised before their codes are brought to their places */
#define INT4_ZERO_POINT 0xFu /* the scale's bits that hold the zero point */

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* The four bytes of a row's scale, which may lie apart from each other. */
static void store_scale(const attn_row *to, uint32_t bits) {
  unsigned char bytes[4];
  memcpy(bytes, &bits, sizeof bytes);
  for (int i = 0; i < 4; i++) {
    to->scale[i * to->scale_stride] = bytes[i];
  }
}

static uint32_t load_scale(const attn_row *from) {
  unsigned char bytes[4];
  for (int i = 0; i < 4; i++) {
    bytes[i] = from->scale[i * from->scale_stride];
  }
  uint32_t bits;
  memcpy(&bits, bytes, sizeof bits);
  return bits;
}

/* In the caller's tensor of floats, or 1. */
static float static_scale(const attn_row *row) {
  float scale = 1.0f;
  if (row->scale != NULL) {
    memcpy(&scale, row->scale, sizeof scale);
  }
  return scale;
}

/* Round half away from zero, within [least, most]; NaN gives least. Bounded before the conversion: what lies far beyond
   fits no integer. By selects, so that loops around it vectorise. */
static inline int32_t rha(float y, float least, float most) {
  float away = y + copysignf(0.5f, y);
  float bounded = away > least ? away : least;
  bounded = bounded < most ? bounded : most;
  return (int32_t)bounded;
}

/* The largest magnitude's bits: 0x7F800000 and beyond where the row holds an infinity or a NaN. */
static uint32_t absmax_bits(const float *values, int64_t n) {
  int32_t most = 0; /* magnitudes are positive numbers, whose order is that of their bits */
  for (int64_t i = 0; i < n; i++) {
    int32_t magnitude = (int32_t)(bits_of(values[i]) & 0x7FFFFFFFu);
    most = magnitude > most ? magnitude : most;
  }
  return (uint32_t)most;
}

/* The codes of a row, brought to their places. */
static void put_codes(const attn_row *to, const unsigned char *codes, int64_t n) {
  if (to->code_stride == 1) {
    memcpy(to->codes, codes, (size_t)n);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    to->codes[i * to->code_stride] = codes[i];
  }
}

/* `count` bytes from `begin` on. */
static void store_zeros(const attn_row *to, int64_t begin, int64_t count) {
  for (int64_t i = begin; i < begin + count; i++) {
    to->codes[i * to->code_stride] = 0;
  }
}

void attn_quantise_place(const attn_rows *rows, const attn_row *to, const unsigned char *codes, uint32_t scale_bits) {
  int64_t bytes = attn_format_code_bytes(rows->facts, rows->size);
  if (codes != NULL) {
    put_codes(to, codes, bytes);
  } else {
    store_zeros(to, 0, bytes);
  }
  if (!rows->separate || rows->latent) {
    store_zeros(to, bytes, attn_format_scale_offset(rows->facts, rows->size) - bytes);
  }
  store_scale(to, scale_bits);
}

/* int8 and fp8: symmetric about 0. */
static void store_symmetric(const attn_rows *rows, const attn_row *to, const float *values, uint32_t absmax) {
  int is_int8 = rows->facts->code == ATTN_CODE_INT8;
  unsigned char codes[ATTN_ROW_MAX];
  float scale = float_of(absmax) / (is_int8 ? 127.0f : ATTN_FP8_E4M3_MAX);
  scale = scale > LEAST_SCALE || (attn_fault(ATTN_FAULT_SCALE_LEAST) && absmax > 0) ? scale : LEAST_SCALE;
  float inverse = 1.0f / scale;
  if (is_int8) {
    for (int64_t i = 0; i < rows->size; i++) {
      float y = values[i] * inverse;
      codes[i] = (unsigned char)(uint32_t)rha(attn_fault(ATTN_FAULT_INT8_TRUNCATE) ? truncf(y) : y, -128.0f, 127.0f);
    }
  } else {
    for (int64_t i = 0; i < rows->size; i++) {
      codes[i] = attn_fp8_e4m3_encode(values[i] * inverse);
    }
  }
  attn_quantise_place(rows, to, codes, bits_of(scale));
}

/* The least and the largest of the values and 0; of NaN any. Lanes apart, since their order does not matter. */
static void find_range(const float *values, int64_t n, float *least, float *most) {
  enum { LANES = 8 };
  float low[LANES];
  float high[LANES];
  for (int j = 0; j < LANES; j++) {
    low[j] = high[j] = 0.0f;
  }
  int64_t whole = n / LANES * LANES;
  for (int64_t i = 0; i < whole; i += LANES) {
    for (int j = 0; j < LANES; j++) {
      float x = values[i + j];
      low[j] = x < low[j] ? x : low[j];
      high[j] = x > high[j] ? x : high[j];
    }
  }
  for (int64_t i = whole; i < n; i++) {
    low[0] = values[i] < low[0] ? values[i] : low[0];
    high[0] = values[i] > high[0] ? values[i] : high[0];
  }
  *least = low[0];
  *most = high[0];
  for (int j = 1; j < LANES; j++) {
    *least = low[j] < *least ? low[j] : *least;
    *most = high[j] > *most ? high[j] : *most;
  }
}

int attn_quantise_int4_scale(float least, float most, float *scale, float *zero_point) {
  float range = most - least;
  if (!(range <= 3.402823466e38f)) {
    return 0;
  }
  *scale = range / 15.0f;
  *scale = *scale > LEAST_SCALE ? *scale : LEAST_SCALE;
  *zero_point = (float)rha(-least / *scale, 0.0f, 15.0f);
  return 1;
}

uint32_t attn_quantise_int4_bits(float scale, float zero_point) {
  return (bits_of(scale) & ~INT4_ZERO_POINT) | (uint32_t)zero_point;
}

/* int4 of a rotated row. 0: its range is not finite. */
static int store_int4(const attn_rows *rows, const attn_row *to, const float *values) {
  float least;
  float most;
  float scale;
  float zero_point;
  find_range(values, rows->size, &least, &most);
  if (absmax_bits(values, rows->size) >= 0x7F800000u || !attn_quantise_int4_scale(least, most, &scale, &zero_point)) {
    return 0;
  }
  float inverse = 1.0f / scale;
  unsigned char codes[ATTN_ROW_MAX + 1];
  for (int64_t i = 0; i < rows->size; i++) {
    codes[i] = (unsigned char)(uint32_t)rha(values[i] * inverse + zero_point, 0.0f, 15.0f);
  }
  codes[rows->size] = 0; /* the spare half of an odd row's last byte */
  unsigned char pairs[ATTN_ROW_MAX / 2 + 1];
  int64_t bytes = attn_format_code_bytes(rows->facts, rows->size);
  for (int64_t i = 0; i < bytes; i++) {
    pairs[i] = (unsigned char)(codes[2 * i] | codes[2 * i + 1] << 4);
  }
  attn_quantise_place(rows, to, pairs, attn_quantise_int4_bits(scale, zero_point));
  return 1;
}

void attn_quantise_row(const attn_rows *rows, const attn_row *to, float *values) {
  uint32_t absmax = absmax_bits(values, rows->size);
  int finite = absmax < 0x7F800000u;
  if (finite && rows->facts->rotated) {
    attn_rotation_apply(values, rows->size);
    finite = store_int4(rows, to, values);
  } else if (finite) {
    store_symmetric(rows, to, values, absmax);
  }
  if (!finite) {
    attn_quantise_place(rows, to, NULL, ATTN_ROW_NAN_BITS);
  }
}

static inline float scaled(float value, float scale) {
  return attn_fault(ATTN_FAULT_STATIC_RECIPROCAL) ? value * (1.0f / scale) : value / scale;
}

void attn_quantise_part(const attn_rows *rows, const attn_row *to, int64_t begin, int32_t n, const float *values) {
  float scale = static_scale(to);
  int is_e4m3 = rows->facts->code == ATTN_CODE_E4M3;
  unsigned char codes[PART];
  for (int32_t first = 0; first < n; first += PART) {
    int32_t count = n - first < PART ? n - first : PART;
    if (is_e4m3) {
      for (int32_t i = 0; i < count; i++) {
        codes[i] = attn_fp8_e4m3_encode(scaled(values[first + i], scale));
      }
    } else {
      for (int32_t i = 0; i < count; i++) {
        codes[i] = attn_fp8_e5m2_encode(scaled(values[first + i], scale));
      }
    }
    attn_row part = *to;
    part.codes += (begin + first) * to->code_stride;
    put_codes(&part, codes, count);
  }
}

float attn_row_scale(const attn_rows *rows, const attn_row *from, int32_t *zero_point) {
  *zero_point = 0;
  if (rows->facts->scale != ATTN_SCALE_ROW) {
    return static_scale(from);
  }
  uint32_t bits = load_scale(from);
  if (rows->facts->code == ATTN_CODE_INT4) {
    *zero_point = (int32_t)(bits & INT4_ZERO_POINT);
    bits &= ~INT4_ZERO_POINT;
  }
  return float_of(bits);
}

/* The value of the element's code, before the scale. */
static float code_at(const attn_rows *rows, const attn_row *from, int64_t i, int32_t zero_point) {
  if (rows->facts->code == ATTN_CODE_INT4) {
    uint32_t byte = from->codes[i / 2 * from->code_stride];
    return (float)((int32_t)(byte >> (i % 2 * 4) & 0xFu) - zero_point);
  }
  unsigned char code = from->codes[i * from->code_stride];
  switch (rows->facts->code) {
  case ATTN_CODE_INT8:
    return (float)(code < 128 ? (int32_t)code : (int32_t)code - 256);
  case ATTN_CODE_E5M2:
    return attn_fp8_e5m2_decode(code);
  default:
    return attn_fp8_e4m3_decode(code);
  }
}

void attn_dequantise_part(const attn_rows *rows, const attn_row *from, int64_t begin, int32_t n, float *values) {
  int32_t zero_point;
  float scale = attn_row_scale(rows, from, &zero_point);
  for (int32_t i = 0; i < n; i++) {
    values[i] = code_at(rows, from, begin + i, zero_point) * scale;
  }
}

void attn_dequantise_row(const attn_rows *rows, const attn_row *from, float *values) {
  attn_dequantise_part(rows, from, 0, (int32_t)rows->size, values);
  if (rows->facts->rotated) {
    attn_rotation_undo(values, rows->size);
  }
}
