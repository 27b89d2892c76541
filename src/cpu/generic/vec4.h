/* SPDX-License-Identifier: Apache-2.0 */
/* vec4.h: four floats, or sixteen bytes on their way to four times four floats, for the generic kernels whose sums and
   maxima a compiler may not reorder by itself. Vector extensions where the compiler has them (gcc, clang: any target),
   plain C elsewhere; both compute the same bits. */
#ifndef ATTN_CPU_VEC4_H
#define ATTN_CPU_VEC4_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#if defined(__GNUC__)
#define ATTN_INLINE static inline __attribute__((always_inline))
#define ATTN_NOINLINE __attribute__((noinline))
typedef float attn_vec4 __attribute__((vector_size(16)));

ATTN_INLINE attn_vec4 vec4_splat(float x) {
  attn_vec4 v = {x, x, x, x};
  return v;
}
ATTN_INLINE attn_vec4 vec4_add(attn_vec4 a, attn_vec4 b) {
  return a + b;
}
ATTN_INLINE attn_vec4 vec4_mul(attn_vec4 a, attn_vec4 b) {
  return a * b;
}
ATTN_INLINE attn_vec4 vec4_subtract(attn_vec4 a, attn_vec4 b) {
  return a - b;
}
/* a > b ? a : b in each lane: b where either is NaN. x86 has an instruction with this very meaning, which gcc does not
   find by itself. */
ATTN_INLINE attn_vec4 vec4_max(attn_vec4 a, attn_vec4 b) {
#if defined(__SSE__)
  return _mm_max_ps(a, b);
#else
  typedef int32_t mask4 __attribute__((vector_size(16)));
  mask4 greater = a > b;
  return (attn_vec4)((greater & (mask4)a) | (~greater & (mask4)b));
#endif
}
/* a < b ? a : b, likewise. */
ATTN_INLINE attn_vec4 vec4_min(attn_vec4 a, attn_vec4 b) {
#if defined(__SSE__)
  return _mm_min_ps(a, b);
#else
  typedef int32_t mask4 __attribute__((vector_size(16)));
  mask4 less = a < b;
  return (attn_vec4)((less & (mask4)a) | (~less & (mask4)b));
#endif
}
#else
#define ATTN_INLINE static inline
#define ATTN_NOINLINE
typedef struct attn_vec4 {
  float lane[4];
} attn_vec4;

ATTN_INLINE attn_vec4 vec4_splat(float x) {
  attn_vec4 v = {{x, x, x, x}};
  return v;
}
ATTN_INLINE attn_vec4 vec4_add(attn_vec4 a, attn_vec4 b) {
  for (int i = 0; i < 4; i++) {
    a.lane[i] += b.lane[i];
  }
  return a;
}
ATTN_INLINE attn_vec4 vec4_mul(attn_vec4 a, attn_vec4 b) {
  for (int i = 0; i < 4; i++) {
    a.lane[i] *= b.lane[i];
  }
  return a;
}
ATTN_INLINE attn_vec4 vec4_subtract(attn_vec4 a, attn_vec4 b) {
  for (int i = 0; i < 4; i++) {
    a.lane[i] -= b.lane[i];
  }
  return a;
}
ATTN_INLINE attn_vec4 vec4_max(attn_vec4 a, attn_vec4 b) {
  for (int i = 0; i < 4; i++) {
    a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  }
  return a;
}
ATTN_INLINE attn_vec4 vec4_min(attn_vec4 a, attn_vec4 b) {
  for (int i = 0; i < 4; i++) {
    a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  }
  return a;
}
#endif

ATTN_INLINE attn_vec4 vec4_load(const float *p) {
  attn_vec4 v;
  memcpy(&v, p, sizeof v);
  return v;
}
ATTN_INLINE void vec4_store(float *p, attn_vec4 v) {
  memcpy(p, &v, sizeof v);
}

/* (lane 0 + lane 1) + (lane 2 + lane 3) */
ATTN_INLINE float vec4_sum(attn_vec4 v) {
  float lane[4];
  memcpy(lane, &v, sizeof lane);
  return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

/* The same, without a rounding. */
ATTN_INLINE double vec4_sum_double(attn_vec4 v) {
  float lane[4];
  memcpy(lane, &v, sizeof lane);
  return ((double)lane[0] + lane[1]) + ((double)lane[2] + lane[3]);
}

/* The bits of a, those toggled that are set in `bits`. */
ATTN_INLINE attn_vec4 vec4_toggle(attn_vec4 a, const uint32_t bits[4]) {
  uint32_t lane[4];
  memcpy(lane, &a, sizeof lane);
  for (int i = 0; i < 4; i++) {
    lane[i] ^= bits[i];
  }
  memcpy(&a, lane, sizeof a);
  return a;
}

/* Sixteen bytes: only where the compiler shuffles by constants and a float's low half comes first in memory. */
#if defined(__GNUC__) && defined(__has_builtin) && defined(__BYTE_ORDER__)
#if __has_builtin(__builtin_shufflevector) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ATTN_HAVE_BYTES16 1
#endif
#endif

#if ATTN_HAVE_BYTES16
typedef uint8_t attn_bytes16 __attribute__((vector_size(16)));
typedef uint16_t attn_halves8 __attribute__((vector_size(16)));

ATTN_INLINE attn_bytes16 bytes16_load(const unsigned char *p) {
  attn_bytes16 v;
  memcpy(&v, p, sizeof v);
  return v;
}

/* a0 b0 a1 b1 ...: the first (half 0) or last (half 1) eight of both. */
ATTN_INLINE attn_bytes16 bytes16_zip(attn_bytes16 a, attn_bytes16 b, int half) {
  return half == 0 ? __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
                   : __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/* Eight of the bytes as the lower, or the upper, bytes of words of 16 bits. */
ATTN_INLINE attn_halves8 bytes16_as_lower(attn_bytes16 a, int half) {
  const attn_bytes16 zero = {0};
  return (attn_halves8)bytes16_zip(a, zero, half);
}
ATTN_INLINE attn_halves8 bytes16_as_upper(attn_bytes16 a, int half) {
  const attn_bytes16 zero = {0};
  return (attn_halves8)bytes16_zip(zero, a, half);
}

/* Each byte without its highest bit, less `least` (modulo 256). */
ATTN_INLINE attn_bytes16 bytes16_magnitudes_from(attn_bytes16 a, uint8_t least) {
  return (a & 0x7F) - least;
}

/* The bits of `flag` where a byte is above `most`. */
ATTN_INLINE attn_bytes16 bytes16_flag_above(attn_bytes16 a, uint8_t most, uint8_t flag) {
  return (attn_bytes16)(a > most) & flag;
}

/* The first (half 0) or last eight bytes as a word. */
ATTN_INLINE uint64_t bytes16_word(attn_bytes16 a, int half) {
  typedef uint64_t words2 __attribute__((vector_size(16)));
  return ((words2)a)[half];
}

typedef uint32_t attn_bits4 __attribute__((vector_size(16)));

/* Whole numbers from lanes of 0 to 2^31 - 128, towards zero. */
ATTN_INLINE attn_bits4 vec4_to_whole(attn_vec4 a) {
  typedef int32_t signed4 __attribute__((vector_size(16)));
  return (attn_bits4) __builtin_convertvector(a, signed4);
}

ATTN_INLINE attn_halves8 halves8_shift_signed(attn_halves8 a, int shift) {
  typedef int16_t signed8 __attribute__((vector_size(16)));
  return (attn_halves8)((signed8)a >> shift);
}

/* Words of 16 bits between each other, the first (quarter 0) or last (quarter 1) four of both, as floats. */
ATTN_INLINE attn_vec4 halves8_zip(attn_halves8 lower, attn_halves8 upper, int quarter) {
  return (attn_vec4)(quarter == 0 ? __builtin_shufflevector(lower, upper, 0, 8, 1, 9, 2, 10, 3, 11)
                                  : __builtin_shufflevector(lower, upper, 4, 12, 5, 13, 6, 14, 7, 15));
}
ATTN_INLINE attn_vec4 halves8_as_upper(attn_halves8 upper, int quarter) {
  const attn_halves8 zero = {0};
  return halves8_zip(zero, upper, quarter);
}

/* 2^23 + a. */
ATTN_INLINE attn_vec4 halves8_counted(attn_halves8 a, int quarter) {
  const attn_halves8 exponent = {0x4B00, 0x4B00, 0x4B00, 0x4B00, 0x4B00, 0x4B00, 0x4B00, 0x4B00};
  return halves8_zip(a, exponent, quarter);
}
#endif

/* Lane j of vector i becomes lane i of vector j. */
ATTN_INLINE void vec4_transpose(attn_vec4 v[4]) {
#if ATTN_HAVE_BYTES16
  attn_vec4 low = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
  attn_vec4 high = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
  attn_vec4 next_low = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
  attn_vec4 next_high = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
  v[0] = __builtin_shufflevector(low, next_low, 0, 1, 4, 5);
  v[1] = __builtin_shufflevector(low, next_low, 2, 3, 6, 7);
  v[2] = __builtin_shufflevector(high, next_high, 0, 1, 4, 5);
  v[3] = __builtin_shufflevector(high, next_high, 2, 3, 6, 7);
#else
  float lane[4][4];
  float turned[4][4];
  memcpy(lane, v, sizeof lane);
  for (int i = 0; i < 4; i++) {
    for (int j = 0; j < 4; j++) {
      turned[j][i] = lane[i][j];
    }
  }
  memcpy(v, turned, sizeof turned);
#endif
}

#endif
