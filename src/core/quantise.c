/* SPDX-License-Identifier: Apache-2.0 */
/* quantise.c: see quantise.h. */
#include "core/quantise.h"

#include <math.h>
#include <string.h>

#include "core/fp8.h"
#include "core/rotation.h"

#define LEAST_SCALE 1e-6f
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

/* Round half away from zero, within [least, most]. The bounds are tested first: what lies far beyond fits no integer. */
static int32_t rha(float y, int32_t least, int32_t most) {
  float away = y + copysignf(0.5f, y);
  if (!(away > (float)least)) {
    return least;
  }
  return away >= (float)most ? most : (int32_t)away;
}

/* The largest magnitude's bits: 0x7F800000 and beyond where the row holds an infinity or a NaN. */
static uint32_t absmax_bits(const float *values, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; i++) {
    uint32_t magnitude = bits_of(values[i]) & 0x7FFFFFFFu;
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

static void store_codes_zero(const attn_rows *rows, const attn_row *to) {
  int64_t bytes = attn_format_code_bytes(rows->facts, rows->size);
  for (int64_t i = 0; i < bytes; i++) {
    to->codes[i * to->code_stride] = 0;
  }
}

/* The zero bytes between the codes and an inline scale. */
static void store_padding(const attn_rows *rows, const attn_row *to) {
  if (!rows->separate) {
    int64_t end = attn_format_scale_offset(rows->facts, rows->size);
    for (int64_t i = attn_format_code_bytes(rows->facts, rows->size); i < end; i++) {
      to->codes[i * to->code_stride] = 0;
    }
  }
}

/* int8 and fp8: symmetric about 0. */
static void store_symmetric(const attn_rows *rows, const attn_row *to, const float *values, uint32_t absmax) {
  int is_int8 = rows->facts->code == ATTN_CODE_INT8;
  float scale = float_of(absmax) / (is_int8 ? 127.0f : ATTN_FP8_E4M3_MAX);
  scale = scale > LEAST_SCALE ? scale : LEAST_SCALE;
  float inverse = 1.0f / scale;
  for (int64_t i = 0; i < rows->size; i++) {
    float y = values[i] * inverse;
    to->codes[i * to->code_stride] =
        is_int8 ? (unsigned char)(uint32_t)rha(y, -128, 127) : (unsigned char)attn_fp8_e4m3_encode(y);
  }
  store_scale(to, bits_of(scale));
}

/* int4 of a rotated row. 0: its range is not finite. */
static int store_int4(const attn_rows *rows, const attn_row *to, const float *values) {
  float least = 0.0f;
  float most = 0.0f;
  for (int64_t i = 0; i < rows->size; i++) {
    least = values[i] < least ? values[i] : least;
    most = values[i] > most ? values[i] : most;
  }
  float range = most - least;
  if (absmax_bits(values, rows->size) >= 0x7F800000u || !(range <= 3.402823466e38f)) {
    return 0;
  }
  float scale = range / 15.0f;
  scale = scale > LEAST_SCALE ? scale : LEAST_SCALE;
  int32_t zero_point = rha(-least / scale, 0, 15);
  float inverse = 1.0f / scale;
  for (int64_t i = 0; i < rows->size; i += 2) {
    uint32_t low = (uint32_t)rha(values[i] * inverse + (float)zero_point, 0, 15);
    uint32_t high = i + 1 < rows->size ? (uint32_t)rha(values[i + 1] * inverse + (float)zero_point, 0, 15) : 0;
    to->codes[i / 2 * to->code_stride] = (unsigned char)(low | high << 4);
  }
  store_scale(to, (bits_of(scale) & ~INT4_ZERO_POINT) | (uint32_t)zero_point);
  return 1;
}

void attn_quantise_row(const attn_rows *rows, const attn_row *to, float *values) {
  uint32_t absmax = absmax_bits(values, rows->size);
  int finite = absmax < 0x7F800000u;
  store_padding(rows, to);
  if (finite && rows->facts->rotated) {
    attn_rotation_apply(values, rows->size);
    finite = store_int4(rows, to, values);
  } else if (finite) {
    store_symmetric(rows, to, values, absmax);
  }
  if (!finite) {
    store_codes_zero(rows, to);
    store_scale(to, ATTN_ROW_NAN_BITS);
  }
}

void attn_quantise_part(const attn_rows *rows, const attn_row *to, int64_t begin, int32_t n, const float *values) {
  float scale = static_scale(to);
  int is_e4m3 = rows->facts->code == ATTN_CODE_E4M3;
  for (int32_t i = 0; i < n; i++) {
    float y = values[i] / scale;
    to->codes[(begin + i) * to->code_stride] = is_e4m3 ? attn_fp8_e4m3_encode(y) : attn_fp8_e5m2_encode(y);
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
