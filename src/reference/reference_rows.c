/* SPDX-License-Identifier: Apache-2.0 */
/* reference_rows.c: rows of K and V as they are stored, in double and back in the domain they were written in.
 *
 * A code times its scale is exact in double. An int4 row is rotated back in double too, so that the scores are those of
 * the un-rotated rows and nothing has to be done to q or to the output.
 */
#include "reference.h"

#include <math.h>

#include "core/rotation.h"

static double e4m3_value(unsigned char code) {
  int exponent = code >> 3 & 0xF;
  int fraction = code & 7;
  double sign = code & 0x80 ? -1.0 : 1.0;
  if (exponent == 15 && fraction == 7) {
    return NAN;
  }
  return sign * (exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10));
}

static double e5m2_value(unsigned char code) {
  int exponent = code >> 2 & 0x1F;
  int fraction = code & 3;
  double sign = code & 0x80 ? -1.0 : 1.0;
  if (exponent == 31) {
    return fraction == 0 ? sign * INFINITY : NAN;
  }
  return sign * (exponent == 0 ? ldexp(fraction, -16) : ldexp(4 + fraction, exponent - 17));
}

void attn_reference_load_codes(double *row, const unsigned char *from, int64_t stride, attn_code code, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    switch (code) {
    case ATTN_CODE_INT4:
      row[i] = from[i / 2 * stride] >> (i % 2 * 4) & 0xF;
      break;
    case ATTN_CODE_INT8:
      row[i] = from[i * stride] < 128 ? from[i * stride] : from[i * stride] - 256;
      break;
    case ATTN_CODE_E5M2:
      row[i] = e5m2_value(from[i * stride]);
      break;
    default:
      row[i] = e4m3_value(from[i * stride]);
      break;
    }
  }
}

/* The four bytes of a scale, which may lie apart. */
static uint32_t scale_bits(const attn_row *from) {
  unsigned char bytes[4];
  for (int i = 0; i < 4; i++) {
    bytes[i] = from->scale[i * from->scale_stride];
  }
  uint32_t bits;
  memcpy(&bits, bytes, sizeof bits);
  return bits;
}

/* One block of a row: n values of rotated * factor to s * H / n. */
static void undo_block(double *row, int64_t begin, int64_t n, double factor) {
  for (int64_t h = 1; h < n; h *= 2) {
    for (int64_t i = 0; i < n; i++) {
      if ((i & h) == 0) {
        double a = row[i];
        double b = row[i + h];
        row[i] = a + b;
        row[i + h] = a - b;
      }
    }
  }
  for (int64_t i = 0; i < n; i++) {
    double value = row[i] / ((double)n * factor);
    row[i] = attn_rotation_sign(begin + i) != 0 ? -value : value;
  }
}

static void undo_rotation(double *row, int64_t size) {
  for (int64_t begin = 0; begin < size;) {
    int64_t n = attn_rotation_block(size, begin);
    undo_block(row + begin, begin, n, (double)attn_rotation_factor(size, n));
    begin += n;
  }
}

void attn_reference_load_stored(double *row, const attn_rows *rows, attn_dtype dtype, const attn_row *from) {
  const attn_format_facts *facts = rows->facts;
  if (facts->scale == ATTN_SCALE_NONE) {
    attn_reference_load_row(row, from->codes, from->code_stride, dtype, rows->size);
    return;
  }
  float scale = 1.0f;
  double zero_point = 0.0;
  if (facts->scale == ATTN_SCALE_ROW) {
    uint32_t bits = scale_bits(from);
    if (facts->code == ATTN_CODE_INT4) {
      zero_point = bits & 0xF;
      bits &= ~(uint32_t)0xF;
    }
    memcpy(&scale, &bits, sizeof scale);
  } else if (from->scale != NULL) {
    memcpy(&scale, from->scale, sizeof scale);
  }
  attn_reference_load_codes(row, from->codes, from->code_stride, facts->code, rows->size);
  for (int64_t i = 0; i < rows->size; i++) {
    row[i] = (row[i] - zero_point) * (double)scale;
  }
  if (facts->rotated) {
    undo_rotation(row, rows->size);
  }
}
