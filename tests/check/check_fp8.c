/* SPDX-License-Identifier: Apache-2.0 */
/* check_fp8.c: see check_fp8.h. A code stands for an interval of quotients, a scale for an interval of largest
 * magnitudes; the distance of the oracle's row from all of them together is what the float32 bound has to cover. The
 * quantiser's own roundings get no allowance on top. */
#include "check_fp8.h"

#include <math.h>
#include <string.h>

#include "check_compare.h"

#define LARGEST 448.0
#define STEP 0x1p-9 /* of the subnormals */

/* Half the distance from a magnitude to its neighbour above (`up` 1) or below. */
static double half_gap(double magnitude, int up) {
  int exponent;
  if (magnitude < 0x1p-6) {
    return STEP / 2;
  }
  double fraction = frexp(magnitude, &exponent);
  int lowest = fraction == 0.5 && magnitude > 0x1p-6; /* a power of two: the binade below is finer */
  return ldexp(1.0, exponent - 5 - (lowest && !up ? 1 : 0));
}

/* The numbers that a code stands for, ends included: [*low, *high]. A zero stands for its own sign's side. */
static void interval_of(float code, double *low, double *high) {
  double magnitude = fabs((double)code);
  double below = magnitude == 0.0 ? 0.0 : magnitude - half_gap(magnitude, 0);
  double above = magnitude >= LARGEST ? INFINITY : magnitude + half_gap(magnitude, 1);
  *low = signbit(code) ? -above : below;
  *high = signbit(code) ? -below : above;
}

/* How far x is from [low, high]. */
static double distance(double x, double low, double high) {
  return x < low ? low - x : x > high ? x - high : 0.0;
}

/* A code that is NaN has to be 7F exactly. */
static int is_stored_nan(float code) {
  return isnan(code) && !signbit(code);
}

/* Squares of the distances of elements [begin, end) under a scale; magnitudes above `most` are not possible. -1: a NaN
   is wrong. */
static double squares_of(const check_fp8_row *row, const double *out, int nan, int64_t begin, int64_t end, double scale,
                         double most) {
  double squares = 0.0;
  for (int64_t i = begin; i < end; i++) {
    int want_nan = nan || isnan(out[i]);
    if (want_nan != (isnan(row->codes[i]) != 0) || (want_nan && !is_stored_nan(row->codes[i]))) {
      return -1.0;
    }
    if (want_nan) {
      continue;
    }
    double low;
    double high;
    interval_of(row->codes[i], &low, &high);
    low = fmax(low * scale, -most);
    high = fmin(high * scale, most);
    double d = distance(out[i], low, high);
    squares += d * d;
  }
  return squares;
}

static int is_nan_group(const check_fp8_row *row, int64_t begin, int64_t end, float scale) {
  uint32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  for (int64_t i = begin; i < end; i++) {
    if (row->codes[i] != 0.0f || signbit(row->codes[i])) {
      return 0;
    }
  }
  return bits == 0x7FC00000u;
}

/* One group: its elements under its scale, and some element that reaches the magnitude which the scale tells of. */
static double group_squares(const check_fp8_row *row, const double *out, int nan, int64_t begin, int64_t end,
                            float scale) {
  const float floor_scale = 1e-10f;
  double most = LARGEST * (double)scale;
  double largest = 0.0;
  int want_nan = nan;
  for (int64_t i = begin; i < end; i++) {
    want_nan |= isnan(out[i]);
    largest = fmax(largest, fabs(out[i]));
  }
  if (want_nan) {
    return is_nan_group(row, begin, end, scale) ? 0.0 : -1.0;
  }
  if (!(scale >= floor_scale) || isinf(scale)) {
    return -1.0;
  }
  double squares = squares_of(row, out, 0, begin, end, (double)scale, most);
  double reach = scale > floor_scale ? fmax(most - largest, 0.0) : 0.0;
  return squares < 0.0 ? squares : squares + reach * reach;
}

/* A row that sees nothing: codes 00, and the floor for a scale. */
static int is_empty_row(const check_fp8_row *row) {
  for (int64_t i = 0; i < row->size; i++) {
    if (row->codes[i] != 0.0f || signbit(row->codes[i])) {
      return 0;
    }
  }
  for (int64_t g = 0; row->block > 0 && g * row->block < row->size; g++) {
    if (row->scales[g] != 1e-10f) {
      return 0;
    }
  }
  return 1;
}

double check_fp8_fraction(const check_fp8_row *row, const double *out, const check_truth *truth, int64_t terms) {
  if (!truth->nan && truth->lse == -INFINITY) {
    return is_empty_row(row) ? 0.0 : INFINITY;
  }
  double squares = 0.0;
  int64_t block = row->block > 0 ? row->block : row->size;
  for (int64_t begin = 0; begin < row->size; begin += block) {
    int64_t end = begin + block < row->size ? begin + block : row->size;
    double part = row->block > 0 ? group_squares(row, out, truth->nan, begin, end, row->scales[begin / block])
                                 : squares_of(row, out, truth->nan, begin, end, (double)row->static_scale, INFINITY);
    if (part < 0.0) {
      return INFINITY;
    }
    squares += part;
  }
  if (squares == 0.0) {
    return 0.0;
  }
  return sqrt(squares / (double)row->size) / check_out_bound(ATTN_DTYPE_FLOAT32, truth->rms, truth, terms);
}
