/* SPDX-License-Identifier: Apache-2.0 */
/* golden_rows.h: the source rows of formats/make_rows.py, made again by integers alone, and the hashes of its files.
   formats/README.md says what each kind of row is for; the two sides are compared by the hash of the rows' bits. */
#ifndef ATTN_GOLDEN_ROWS_H
#define ATTN_GOLDEN_ROWS_H

#include <stdint.h>
#include <stddef.h>

#include "attn/tensor.h"

enum { ROWS_COUNT = 1000, ROWS_HEADS = 4, ROWS_TOKENS = ROWS_COUNT / ROWS_HEADS, ROWS_KINDS = 20 };

/* ---- splitmix64 -------------------------------------------------------------------------------------------------- */

static inline uint64_t rows_mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

static inline uint64_t rows_word(uint64_t stream, uint64_t index) {
  return rows_mix(stream + (index + 1) * 0x9E3779B97F4A7C15u);
}

static inline int32_t rows_below(uint64_t value, uint32_t count) {
  return (int32_t)(value % count);
}

/* ---- FNV-1a, 64 bits --------------------------------------------------------------------------------------------- */

#define ROWS_BASIS 0xCBF29CE484222325u

static inline uint64_t rows_hash(uint64_t state, const void *data, size_t bytes) {
  const unsigned char *p = data;
  for (size_t i = 0; i < bytes; i++) {
    state = (state ^ p[i]) * 0x100000001B3u;
  }
  return state;
}

/* The hash of `count` hashes, or of those of one kind of row (kind < 0: all). */
static inline uint64_t rows_fold(const uint64_t *hashes, int kind) {
  uint64_t state = ROWS_BASIS;
  for (int row = 0; row < ROWS_COUNT; row++) {
    if (kind < 0 || row / ROWS_HEADS % ROWS_KINDS == kind) {
      unsigned char bytes[8];
      for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(hashes[row] >> 8 * i);
      }
      state = rows_hash(state, bytes, 8);
    }
  }
  return state;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

typedef struct rows_type {
  int32_t width, mantissa, bias, number;
} rows_type;

static inline rows_type rows_type_of(attn_dtype source) {
  static const rows_type float32 = {32, 23, 127, 0}, float16 = {16, 10, 15, 1}, bfloat16 = {16, 7, 127, 2};
  return source == ATTN_DTYPE_FLOAT32 ? float32 : source == ATTN_DTYPE_FLOAT16 ? float16 : bfloat16;
}

static inline int32_t rows_log2(uint32_t value) {
  int32_t power = 0;
  while (value >> 1 >> power != 0) {
    power++;
  }
  return power;
}

/* (-1)^sign * 2^exponent * (1 + fraction / 2^24), the fraction cut, the exponent clamped to the normal numbers. */
static inline uint32_t rows_bits(rows_type t, uint32_t sign, int32_t exponent, uint32_t fraction) {
  int32_t field = exponent + t.bias;
  field = field < 1 ? 1 : field > 2 * t.bias ? 2 * t.bias : field;
  return sign << (t.width - 1) | (uint32_t)field << t.mantissa | fraction >> (24 - t.mantissa);
}

/* Near to normal, from the sum of four 16-bit numbers. */
static inline uint32_t rows_normal(rows_type t, uint64_t draw, int32_t exponent) {
  int32_t total = -131070;
  for (int i = 0; i < 4; i++) {
    total += (int32_t)(draw >> 16 * i & 0xFFFF);
  }
  uint32_t size = (uint32_t)(total < 0 ? -total : total);
  if (size == 0) {
    return 0;
  }
  int32_t power = rows_log2(size);
  uint32_t filler = (uint32_t)(rows_mix(draw) & 0xFFFFFF) >> power;
  uint32_t fraction = (uint32_t)((uint64_t)size << 24 >> power & 0xFFFFFF) | filler;
  return rows_bits(t, total < 0, exponent + power - 16, fraction);
}

/* (-1)^sign * numerator * 2^exponent. */
static inline uint32_t rows_small(rows_type t, uint32_t sign, uint32_t numerator, int32_t exponent) {
  int32_t power = rows_log2(numerator);
  return rows_bits(t, sign, exponent + power, numerator << (24 - power) & 0xFFFFFF);
}

/* 0: NaN, 1: infinity, 2: -infinity. */
static inline uint32_t rows_special(rows_type t, int32_t which) {
  uint32_t field = (uint32_t)(2 * t.bias + 1) << t.mantissa;
  return which == 0 ? field | 1u << (t.mantissa - 1) : field | (uint32_t)(which == 2) << (t.width - 1);
}

/* What an element is made of: the row's two words p and p2 and the element's own. */
typedef struct rows_draw {
  uint64_t p, p2, draw;
  int32_t row, j, beyond; /* beyond: (j - place) mod size, 0 at the row's chosen place */
} rows_draw;

static inline uint32_t rows_tie(rows_type t, const rows_draw *d, uint32_t sign) {
  int32_t scaled = rows_below(d->p, 2) * (rows_below(d->p2, 7) - 3);
  uint32_t numerator =
      d->draw >> 62 & 1 ? 17u + 2u * (uint32_t)rows_below(d->draw, 8) : 9u + 2u * (uint32_t)rows_below(d->draw, 4);
  return d->beyond == 0 ? rows_small(t, sign, 7, 6 + scaled)
                        : rows_small(t, sign, numerator, rows_below(d->draw >> 8, 15) - 9 + scaled);
}

static inline uint32_t rows_element(rows_type t, int32_t kind, const rows_draw *d) {
  const int32_t top = t.bias; /* the largest exponent */
  const uint32_t sign = (uint32_t)(d->draw >> 63), minus = 1u << (t.width - 1);
  const uint32_t fraction = (uint32_t)(d->draw & 0xFFFFFF);
  switch (kind) {
  case 7:
    return rows_normal(t, d->draw, rows_below(d->p, 29) - 14);
  case 8: /* every element of its own size */
    return rows_normal(t, d->draw, rows_below(rows_mix(d->draw + 1), 41) - 20);
  case 9: /* subnormal */
    return sign << (t.width - 1) | fraction >> (24 - t.mantissa);
  case 10: /* about the smallest scale */
    return rows_normal(t, d->draw, rows_below(d->p, 12) - 20);
  case 11: /* sums overflow */
    return rows_bits(t, sign, top - rows_below(d->draw >> 32, 4), fraction);
  case 12: /* large, but sums do not */
    return rows_normal(t, d->draw, top - 4 - rows_below(d->p, 10));
  case 13: /* constant */
    return rows_normal(t, d->p2, rows_below(d->p, 13) - 6);
  case 14: /* one to three elements */
    return d->beyond <= d->row % 3 ? rows_normal(t, d->draw, rows_below(d->p, 13) - 6) : 0;
  case 15: /* zeros of both signs */
    return sign << (t.width - 1);
  case 16: /* one-sided */
    return (rows_normal(t, d->draw, rows_below(d->p, 13) - 6) & (minus - 1)) | (d->row % 2 != 0 ? minus : 0);
  case 17: /* int8 ties */
    return d->beyond == 0 ? rows_small(t, sign, 127, rows_below(d->p, 5) - 2)
                          : rows_small(t, sign, 2u * (uint32_t)rows_below(d->draw, 127) + 1, rows_below(d->p, 5) - 3);
  case 18: /* fp8 ties */
    return rows_tie(t, d, sign);
  case 19: /* not finite */
    return d->beyond <= rows_below(d->p, 3) ? rows_special(t, d->row % 4 == 3 ? (d->row + d->j) % 3 : d->row % 4)
                                            : rows_normal(t, d->draw, 0);
  default: /* everyday values */
    return rows_normal(t, d->draw, rows_below(d->p, 13) - 6);
  }
}

/* The bits of row `row` of a source type: `size` words; a part of a row by its tag, its kinds those of `later` tokens
   later. */
static inline void rows_make_part(attn_dtype source, int32_t size, int32_t row, int tag, int later, uint32_t *bits) {
  const rows_type t = rows_type_of(source);
  const uint64_t stream =
      rows_mix((uint64_t)tag << 60 | (uint64_t)t.number << 40 | (uint64_t)(uint32_t)size << 20 | (uint32_t)row);
  rows_draw d = {rows_word(stream, 1u << 20), rows_word(stream, (1u << 20) + 1), 0, row, 0, 0};
  const int32_t place = rows_below(d.p2, (uint32_t)size);
  for (int32_t j = 0; j < size; j++) {
    d.draw = rows_word(stream, (uint64_t)j);
    d.j = j;
    d.beyond = (j - place + size) % size;
    bits[j] = rows_element(t, (row / ROWS_HEADS + later) % ROWS_KINDS, &d);
  }
}

static inline void rows_make(attn_dtype source, int32_t size, int32_t row, uint32_t *bits) {
  rows_make_part(source, size, row, 0, 0, bits);
}

#endif
