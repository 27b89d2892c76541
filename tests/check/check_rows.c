/* SPDX-License-Identifier: Apache-2.0 */
/* check_rows.c: see check_rows.h. fp8 by searching the list of its values; the rotation by recursion, its signs from
   the generator that the contract names. Float operations are those of the contract, one by one. */
#include "check_rows.h"

#include <math.h>
#include <string.h>

#include "check_float.h"

#define MOST 1024 /* elements of a row; the engine draws fewer */

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

/* ---- formats ----------------------------------------------------------------------------------------------------- */

int check_format_per_row(attn_format format) {
  return format == ATTN_FORMAT_INT8_PER_TOKEN_HEAD || format == ATTN_FORMAT_FP8_PER_TOKEN_HEAD ||
         format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
}

int check_format_static(attn_format format) {
  return format == ATTN_FORMAT_FP8_E4M3 || format == ATTN_FORMAT_FP8_E5M2;
}

static int64_t code_bytes(attn_format format, int64_t size) {
  return format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? (size + 1) / 2 : size;
}

int64_t check_row_scale_at(attn_format format, int64_t size) {
  return (code_bytes(format, size) + 3) / 4 * 4;
}

int64_t check_row_extent(attn_format format, int64_t size, int separate) {
  if (!check_format_per_row(format)) {
    return size;
  }
  return separate ? code_bytes(format, size) : check_row_scale_at(format, size) + 4;
}

/* ---- fp8 --------------------------------------------------------------------------------------------------------- */

static float decode_fp8(uint8_t code, int e5m2) {
  int mantissa_bits = e5m2 ? 2 : 3;
  int bias = e5m2 ? 15 : 7;
  int exponent = (code & 0x7F) >> mantissa_bits;
  int mantissa = code & ((1 << mantissa_bits) - 1);
  float sign = code & 0x80 ? -1.0f : 1.0f;
  if (e5m2 && exponent == 31) {
    return mantissa == 0 ? sign * INFINITY : NAN;
  }
  if (!e5m2 && (code & 0x7F) == 0x7F) {
    return NAN;
  }
  int scale = (exponent == 0 ? 1 : exponent) - bias - mantissa_bits;
  return sign * ldexpf((float)(mantissa + (exponent == 0 ? 0 : 1 << mantissa_bits)), scale);
}

/* Values of all codes, worked out at the first call; workers are processes of one thread here. */
float check_from_fp8(uint8_t code, int e5m2) {
  static float values[2][256];
  static int known = 0;
  for (int i = 0; !known && i < 512; i++) {
    values[i / 256][i % 256] = decode_fp8((uint8_t)(i % 256), i / 256);
  }
  known = 1;
  return values[e5m2][code];
}

uint8_t check_to_fp8(float x, int e5m2) {
  int last = e5m2 ? 0x7B : 0x7E; /* the largest finite magnitude */
  if (isnan(x)) {
    return 0x7F;
  }
  float magnitude = fabsf(x);
  int low = 0; /* the largest code whose value is not above the magnitude */
  int high = last;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (check_from_fp8((uint8_t)middle, e5m2) <= magnitude) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  if (low < last) {
    double below = (double)magnitude - (double)check_from_fp8((uint8_t)low, e5m2);
    double above = (double)check_from_fp8((uint8_t)(low + 1), e5m2) - (double)magnitude;
    low += above < below || (above == below && low % 2 == 1);
  }
  return (uint8_t)(low | (signbit(x) ? 0x80 : 0));
}

/* ---- rotation ---------------------------------------------------------------------------------------------------- */

/* Signs of the rotation: draws of a 32-bit Mersenne twister; -1 where bit 23 of the draw is set. */
static void draw_signs(float *signs) {
  uint32_t state[624];
  int used = 624;
  state[0] = 0x9E3779B9u;
  for (uint32_t i = 1; i < 624; i++) {
    state[i] = 1812433253u * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
  }
  for (int n = 0; n < MOST; n++) {
    if (used == 624) {
      for (int i = 0; i < 624; i++) {
        uint32_t y = (state[i] & 0x80000000u) | (state[(i + 1) % 624] & 0x7FFFFFFFu);
        state[i] = state[(i + 397) % 624] ^ (y >> 1) ^ (y & 1u ? 0x9908B0DFu : 0u);
      }
      used = 0;
    }
    uint32_t y = state[used++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9D2C5680u;
    y ^= (y << 15) & 0xEFC60000u;
    y ^= y >> 18;
    signs[n] = y >> 23 & 1u ? -1.0f : 1.0f;
  }
}

static const float *rotation_signs(void) {
  static float signs[MOST];
  static int known = 0;
  if (!known) {
    draw_signs(signs);
    known = 1;
  }
  return signs;
}

static int largest_power(int n) {
  int power = 1;
  while (power * 2 <= n) {
    power *= 2;
  }
  return power;
}

/* 2^floor(log2(first / n) / 2) */
static float block_factor(int first, int n) {
  int log = 0;
  while (n << (log + 1) <= first) {
    log++;
  }
  return ldexpf(1.0f, log / 2);
}

static void hadamard(float *x, int n) {
  if (n == 1) {
    return;
  }
  hadamard(x, n / 2);
  hadamard(x + n / 2, n / 2);
  for (int i = 0; i < n / 2; i++) {
    float a = x[i];
    float b = x[i + n / 2];
    x[i] = a + b;
    x[i + n / 2] = a - b;
  }
}

static void rotate(float *x, int size) {
  const float *signs = rotation_signs();
  int first = largest_power(size);
  for (int begin = 0; begin < size;) {
    int n = largest_power(size - begin);
    for (int i = begin; i < begin + n; i++) {
      x[i] *= signs[i];
    }
    hadamard(x + begin, n);
    for (int i = begin; i < begin + n; i++) {
      x[i] *= block_factor(first, n);
    }
    begin += n;
  }
}

static void hadamard_double(double *x, int n) {
  for (int half = n / 2; half > 0; half /= 2) {
    for (int i = 0; i < n; i++) {
      if ((i & half) == 0) {
        double a = x[i];
        double b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
}

static void rotate_back(double *x, int size) {
  const float *signs = rotation_signs();
  int first = largest_power(size);
  for (int begin = 0; begin < size;) {
    int n = largest_power(size - begin);
    hadamard_double(x + begin, n);
    for (int i = begin; i < begin + n; i++) {
      x[i] *= (double)signs[i] / ((double)n * (double)block_factor(first, n));
    }
    begin += n;
  }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static int32_t away(float y, int32_t low, int32_t high) {
  float rounded = truncf(y + copysignf(0.5f, y));
  return rounded < (float)low ? low : rounded > (float)high ? high : (int32_t)rounded;
}

static float largest(const float *x, int32_t size) {
  float most = 0.0f;
  for (int32_t i = 0; i < size; i++) {
    if (!isfinite(x[i])) {
      return INFINITY;
    }
    most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
  }
  return most;
}

static void encode_nan(int32_t bytes, uint8_t *codes, uint32_t *scale) {
  memset(codes, 0, (size_t)bytes);
  *scale = 0x7FC00000u;
}

static void encode_int4(const check_rows *rows, const float *values, uint8_t *codes, uint32_t *scale) {
  float x[MOST];
  memcpy(x, values, (size_t)rows->size * sizeof *x);
  rotate(x, rows->size);
  float low = 0.0f;
  float high = 0.0f;
  for (int32_t i = 0; i < rows->size; i++) {
    low = fminf(low, x[i]);
    high = fmaxf(high, x[i]);
  }
  float range = high - low;
  if (!isfinite(range) || !isfinite(largest(x, rows->size))) {
    encode_nan(rows->code_bytes, codes, scale);
    return;
  }
  float step = fmaxf(range / 15.0f, 1e-6f);
  int32_t zero = away(-low / step, 0, 15);
  float inverse = 1.0f / step;
  memset(codes, 0, (size_t)rows->code_bytes);
  for (int32_t i = 0; i < rows->size; i++) {
    float y = x[i] * inverse;
    int32_t code = away(y + (float)zero, 0, 15);
    codes[i / 2] |= (uint8_t)(i % 2 ? code << 4 : code);
  }
  *scale = (bits_of(step) & ~0xFu) | (uint32_t)zero;
}

void check_row_encode(const check_rows *rows, int32_t head, const float *values, uint8_t *codes, uint32_t *scale) {
  int e5m2 = rows->format == ATTN_FORMAT_FP8_E5M2;
  if (check_format_static(rows->format)) {
    for (int32_t i = 0; i < rows->size; i++) {
      float quotient = values[i] / rows->statics[head];
      codes[i] = check_to_fp8(quotient, e5m2);
    }
    return;
  }
  float most = largest(values, rows->size);
  if (!isfinite(most)) {
    encode_nan(rows->code_bytes, codes, scale);
    return;
  }
  if (rows->format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD) {
    encode_int4(rows, values, codes, scale);
    return;
  }
  int int8 = rows->format == ATTN_FORMAT_INT8_PER_TOKEN_HEAD;
  float step = fmaxf(most / (int8 ? 127.0f : 448.0f), 1e-6f);
  float inverse = 1.0f / step;
  for (int32_t i = 0; i < rows->size; i++) {
    float y = values[i] * inverse;
    codes[i] = int8 ? (uint8_t)(int8_t)away(y, -128, 127) : check_to_fp8(y, 0);
  }
  *scale = bits_of(step);
}

void check_row_decode(const check_rows *rows, int64_t row, float *values) {
  const uint8_t *codes = rows->codes + row * rows->code_bytes;
  int32_t size = rows->size;
  if (rows->format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD) {
    double x[MOST];
    uint32_t bits = rows->scales[row];
    for (int32_t i = 0; i < size; i++) {
      int32_t code = codes[i / 2] >> (i % 2 * 4) & 0xF;
      x[i] = (double)(code - (int32_t)(bits & 0xFu)) * (double)float_of(bits & ~0xFu);
    }
    rotate_back(x, size);
    for (int32_t i = 0; i < size; i++) {
      values[i] = (float)x[i];
    }
    return;
  }
  float scale = rows->scales != NULL ? float_of(rows->scales[row]) : rows->statics[row % rows->heads];
  for (int32_t i = 0; i < size; i++) {
    float code = rows->format == ATTN_FORMAT_INT8_PER_TOKEN_HEAD
                     ? (float)(int8_t)codes[i]
                     : check_from_fp8(codes[i], rows->format == ATTN_FORMAT_FP8_E5M2);
    values[i] = code * scale;
  }
}

static void draw_statics(check_rng *rng, check_rows *rows, check_statics statics, const float *values) {
  float most = rows->format == ATTN_FORMAT_FP8_E5M2 ? 57344.0f : 448.0f;
  for (int32_t h = 0; h < rows->heads; h++) {
    float top = 0.0f;
    for (int64_t i = 0; i < rows->positions * rows->size; i++) {
      float x = fabsf(values[(i / rows->size * rows->heads + h) * rows->size + i % rows->size]);
      top = isfinite(x) && x > top ? x : top;
    }
    float span = ldexpf(1.0f + (float)check_uniform(rng), (int)check_between(rng, -2, 4));
    rows->statics[h] = fmaxf(top / most * span, 1e-30f);
    if (statics == CHECK_STATICS_ONE) {
      rows->statics[h] = rows->statics[0];
    } else if (statics == CHECK_STATICS_NONE) {
      rows->statics[h] = 1.0f;
    }
  }
  rows->num_statics = statics == CHECK_STATICS_NONE ? 0 : statics == CHECK_STATICS_ONE ? 1 : rows->heads;
}

void check_rows_make(check_arena *arena, check_rng *rng, check_rows *rows, attn_format format, check_statics statics,
                     int64_t positions, int32_t heads, int32_t size, float *values) {
  int64_t count = positions * heads;
  memset(rows, 0, sizeof *rows);
  rows->format = format;
  rows->size = size;
  rows->heads = heads;
  rows->positions = positions;
  if (!check_format_per_row(format) && !check_format_static(format)) {
    for (int64_t i = 0; i < count * size; i++) {
      values[i] = check_rounded((attn_dtype)format, values[i]); /* float formats share the numbers of their types */
    }
    return;
  }
  rows->code_bytes = (int32_t)code_bytes(format, size);
  rows->codes = check_alloc(arena, (size_t)(count * rows->code_bytes), 1);
  if (check_format_static(format)) {
    rows->statics = check_alloc(arena, (size_t)heads, sizeof *rows->statics);
    draw_statics(rng, rows, statics, values);
  } else {
    rows->scales = check_alloc(arena, (size_t)count, sizeof *rows->scales);
  }
  for (int64_t i = 0; i < count; i++) {
    uint32_t none = 0;
    check_row_encode(rows, (int32_t)(i % heads), values + i * size, rows->codes + i * rows->code_bytes,
                     rows->scales != NULL ? &rows->scales[i] : &none);
    check_row_decode(rows, i, values + i * size);
  }
}

void check_rows_random(check_rng *rng, check_rows *rows, float *values) {
  int64_t count = rows->positions * rows->heads;
  int e5m2 = rows->format == ATTN_FORMAT_FP8_E5M2;
  int fp8 = e5m2 || rows->format == ATTN_FORMAT_FP8_E4M3 || rows->format == ATTN_FORMAT_FP8_PER_TOKEN_HEAD;
  int shift = e5m2 ? -14 : fp8 ? -7 : rows->format == ATTN_FORMAT_INT8_PER_TOKEN_HEAD ? -6 : -3;
  for (int32_t h = 0; h < rows->heads && rows->statics != NULL && rows->num_statics > 0; h++) {
    rows->statics[h] =
        h == 0 || rows->num_statics > 1 ? ldexpf(1.0f + (float)check_uniform(rng), shift) : rows->statics[0];
  }
  for (int64_t i = 0; i < count; i++) {
    uint8_t *codes = rows->codes + i * rows->code_bytes;
    for (int32_t b = 0; b < rows->code_bytes; b++) {
      codes[b] = (uint8_t)check_between(rng, 0, 255);
      if (fp8 && !isfinite(check_from_fp8(codes[b], e5m2))) {
        codes[b] ^= 0x40; /* inputs are finite */
      }
    }
    if (rows->scales != NULL) {
      rows->scales[i] = bits_of(ldexpf(1.0f + (float)check_uniform(rng), shift));
    }
    check_row_decode(rows, i, values + i * rows->size);
  }
}

check_rows check_rows_slice(check_arena *arena, const check_rows *rows, int64_t first, int64_t count, int32_t head,
                            int32_t heads) {
  check_rows cut = *rows;
  cut.positions = count;
  cut.heads = heads;
  if (rows->codes == NULL) {
    return cut;
  }
  cut.codes = check_alloc(arena, (size_t)(count * heads * rows->code_bytes), 1);
  cut.scales = rows->scales != NULL ? check_alloc(arena, (size_t)(count * heads), sizeof *cut.scales) : NULL;
  for (int64_t i = 0; i < count; i++) {
    int64_t from = (first + i) * rows->heads + head;
    memcpy(cut.codes + i * heads * rows->code_bytes, rows->codes + from * rows->code_bytes,
           (size_t)(heads * rows->code_bytes));
    if (rows->scales != NULL) {
      memcpy(cut.scales + i * heads, rows->scales + from, (size_t)heads * sizeof *cut.scales);
    }
  }
  if (rows->statics != NULL) {
    cut.statics = rows->statics + head;
    cut.num_statics = rows->num_statics > 1 ? heads : rows->num_statics;
  }
  return cut;
}
