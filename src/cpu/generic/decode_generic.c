/* SPDX-License-Identifier: Apache-2.0 */
/* decode_generic.c: codes of a quantised cache to padded fp32 rows, without their scales: those multiply scores and
 * weights, once per key and not once per element.
 *
 * Sixteen codes at a time are spread over four vectors by interleaving bytes, which every SIMD instruction set has: an
 * integer becomes the mantissa of a float whose exponent makes it count from 2^23, and an fp8 code is moved to the
 * upper half of a float as if it were normal. Those that are not (zeros, subnormals, infinities, NaN) are noted on the
 * way, without a branch, and decoded one by one at the end: they are few, and branches that ask for them are foreseen
 * badly. (The plain way, one multiplication of the moved code, has subnormal operands, which processors take a hundred
 * cycles for.)
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
  int shift;     /* right, from the upper byte */
  uint16_t keep; /* sign, exponent and mantissa there */
  uint16_t bias; /* difference of the exponents' biases */
  uint8_t least; /* magnitudes below this one are subnormal */
  uint8_t span;  /* this one plus `least` is the largest finite magnitude */
} fp8_move;

static const fp8_move e4m3_move = {4, 0x87F0, 0x3C00, 0x08, 0x76};
static const fp8_move e5m2_move = {3, 0x8FE0, 0x3800, 0x04, 0x77};

static float e4m3_value(uint8_t code) {
  if (attn_fault(ATTN_FAULT_CODE_NAN) && (code & 0x7F) == 0x7F) {
    return code > 0x7F ? -480.0f : 480.0f;
  }
  return attn_fault(ATTN_FAULT_CODE_SUBNORMAL) && (code & 0x78) == 0 ? 0.0f : attn_fp8_e4m3_decode(code);
}

static float e5m2_value(uint8_t code) {
  return attn_fault(ATTN_FAULT_CODE_E5M2) ? attn_fp8_e4m3_decode(code) : attn_fp8_e5m2_decode(code);
}

#define FLAG_GROUPS 8 /* groups whose flags make two words of 64 bits */
#define MOST_ODD 1024 /* codes that are noted before they are decoded; more than FLAG_GROUPS groups have */

/* Codes that are not normal: their places. */
typedef struct odd_codes {
  int32_t count;
  int32_t row[MOST_ODD];
  int32_t column[MOST_ODD];
} odd_codes;

#if ATTN_HAVE_BYTES16
ATTN_INLINE void store_moved(float *dst, attn_bytes16 codes, const fp8_move *move) {
  for (int half = 0; half < 2; half++) {
    attn_halves8 upper = bytes16_as_upper(codes, half);
    upper = (halves8_shift_signed(upper, move->shift) & move->keep) + move->bias;
    vec4_store(dst + 8 * half, halves8_as_upper(upper, 0));
    vec4_store(dst + 8 * half + 4, halves8_as_upper(upper, 1));
  }
}

/* Note the code of one set flag and clear it; without one, nothing. Bit 8 b + g of word w: byte 8 w + b of group g. */
ATTN_INLINE uint64_t note_one(odd_codes *odd, uint64_t flags, int32_t row, int32_t column) {
  int bit = __builtin_ctzll(flags | (uint64_t)1 << 63);
  odd->row[odd->count] = row;
  odd->column[odd->count] = column + bit % 8 * GROUP + bit / 8;
  odd->count += flags != 0;
  return flags & (flags - 1);
}

ATTN_INLINE void note(odd_codes *odd, uint64_t flags, int32_t row, int32_t column) {
  flags = note_one(odd, flags, row, column);
  flags = note_one(odd, flags, row, column);
  while (flags != 0) {
    flags = note_one(odd, flags, row, column);
  }
}

/* Up to FLAG_GROUPS groups of a row from `column` on. */
ATTN_INLINE void decode_groups(float *dst, const unsigned char *src, int32_t groups, int32_t row, int32_t column,
                               const fp8_move *move, odd_codes *odd) {
  attn_bytes16 flags = {0};
  for (int32_t g = 0; g < groups; g++) {
    attn_bytes16 codes = bytes16_load(src + column + (int64_t)g * GROUP);
    store_moved(dst + column + (int64_t)g * GROUP, codes, move);
    flags |= bytes16_flag_above(bytes16_magnitudes_from(codes, move->least), move->span, (uint8_t)(1 << g));
  }
  note(odd, bytes16_word(flags, 0), row, column);
  note(odd, bytes16_word(flags, 1), row, column + GROUP / 2);
}
#endif

static void decode_odd(float *dst, const unsigned char *src, int64_t src_stride, int32_t padded, odd_codes *odd,
                       float (*value)(uint8_t)) {
  for (int32_t n = 0; n < odd->count; n++) {
    int64_t row = odd->row[n];
    dst[row * padded + odd->column[n]] = value(src[row * src_stride + odd->column[n]]);
  }
  odd->count = 0;
}

/* `move` and `value` are constants at every call. */
ATTN_INLINE void decode_fp8(float *dst, const unsigned char *src, int64_t src_stride, int32_t rows, int32_t size,
                            int32_t padded, const fp8_move *move, float (*value)(uint8_t)) {
  odd_codes odd;
  odd.count = 0;
  for (int32_t r = 0; r < rows; r++) {
    float *row = dst + (int64_t)r * padded;
    const unsigned char *codes = src + r * src_stride;
    int32_t i = 0;
#if ATTN_HAVE_BYTES16
    for (; i + GROUP <= size; i += FLAG_GROUPS * GROUP) {
      int32_t groups = (size - i) / GROUP;
      decode_groups(row, codes, groups < FLAG_GROUPS ? groups : FLAG_GROUPS, r, i, move, &odd);
      if (odd.count > MOST_ODD - FLAG_GROUPS * GROUP - 1) {
        decode_odd(dst, src, src_stride, padded, &odd, value);
      }
    }
    i = size / GROUP * GROUP;
#endif
    for (; i < size; i++) {
      row[i] = value(codes[i]);
    }
    pad_row(row, size, padded);
  }
  decode_odd(dst, src, src_stride, padded, &odd, value);
}

void attn_decode_e4m3__generic(float *dst, const unsigned char *src, int64_t src_stride, const float *zero_points,
                               int32_t rows, int32_t size, int32_t padded) {
  (void)zero_points;
  decode_fp8(dst, src, src_stride, rows, size, padded, &e4m3_move, e4m3_value);
}

void attn_decode_e5m2__generic(float *dst, const unsigned char *src, int64_t src_stride, const float *zero_points,
                               int32_t rows, int32_t size, int32_t padded) {
  (void)zero_points;
  decode_fp8(dst, src, src_stride, rows, size, padded, attn_fault(ATTN_FAULT_CODE_E5M2) ? &e4m3_move : &e5m2_move,
             e5m2_value);
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
