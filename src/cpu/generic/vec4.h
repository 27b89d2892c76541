/* SPDX-License-Identifier: Apache-2.0 */
/* vec4.h: four floats, for the generic kernels whose sums and maxima a compiler may not reorder by itself. Vector
   extensions where the compiler has them (gcc, clang: any target), plain C elsewhere; both compute the same bits. */
#ifndef ATTN_CPU_VEC4_H
#define ATTN_CPU_VEC4_H

#include <stdint.h>
#include <string.h>

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
/* a > b ? a : b in each lane: b where either is NaN. */
ATTN_INLINE attn_vec4 vec4_max(attn_vec4 a, attn_vec4 b) {
  typedef int32_t mask4 __attribute__((vector_size(16)));
  mask4 greater = a > b;
  return (attn_vec4)((greater & (mask4)a) | (~greater & (mask4)b));
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
ATTN_INLINE attn_vec4 vec4_max(attn_vec4 a, attn_vec4 b) {
  for (int i = 0; i < 4; i++) {
    a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
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

#endif
