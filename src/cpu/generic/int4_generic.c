/* SPDX-License-Identifier: Apache-2.0 */
/* int4_generic.c: the range of a row of floats, and its codes of four bits. */
#include "core/fault.h"
#include "cpu/generic/vec4.h"
#include "cpu/table.h"

#define GROUP 32 /* elements whose codes fill a vector */

typedef struct range {
  attn_vec4 low, high;
  attn_vec4 odd; /* 0, or NaN where a lane met NaN or an infinity */
} range;

ATTN_INLINE void widen(range *r, attn_vec4 x) {
  r->low = vec4_min(x, r->low);
  r->high = vec4_max(x, r->high);
  r->odd = vec4_add(r->odd, vec4_mul(x, vec4_splat(0.0f)));
}

/* Two chains of four lanes: the order of a minimum does not matter. */
void attn_range_f32__generic(const float *src, int32_t size, float *least, float *most) {
  attn_vec4 zero = vec4_splat(0.0f);
  attn_vec4 first = vec4_splat(attn_fault(ATTN_FAULT_INT4_RANGE) ? src[0] : 0.0f);
  range even = {first, first, zero};
  range odd = even;
  int32_t i = 0;
  for (; i + 8 <= size; i += 8) {
    widen(&even, vec4_load(src + i));
    widen(&odd, vec4_load(src + i + 4));
  }
  for (; i < size; i++) {
    widen(&even, vec4_splat(src[i]));
  }
  float low[4];
  float high[4];
  vec4_store(low, vec4_min(even.low, odd.low));
  vec4_store(high, vec4_max(even.high, odd.high));
  float spoiled = vec4_sum(vec4_add(even.odd, odd.odd));
  for (int j = 1; j < 4; j++) {
    low[0] = low[j] < low[0] ? low[j] : low[0];
    high[0] = high[j] > high[0] ? high[j] : high[0];
  }
  *least = low[0] + spoiled;
  *most = high[0] + spoiled;
}

/* rha(y) within [0, 15] is y + 0.5 within them, towards zero: what y below 0 gives is 0 either way. */
static inline uint32_t code(float x, float inverse, float zero_point) {
  float above = x * inverse + zero_point + 0.5f;
  above = above < 15.0f ? above : 15.0f;
  return (uint32_t)(above > 0.0f ? above : 0.0f);
}

#if ATTN_HAVE_BYTES16
ATTN_INLINE attn_bits4 codes4(attn_vec4 x, attn_vec4 inverse, attn_vec4 zero_point) {
  attn_vec4 above = vec4_add(vec4_add(vec4_mul(x, inverse), zero_point), vec4_splat(0.5f));
  return vec4_to_whole(vec4_max(vec4_min(above, vec4_splat(15.0f)), vec4_splat(0.0f)));
}

/* Eight elements' codes to each of four words of 32 bits. */
ATTN_INLINE void store_group(unsigned char *dst, const float *src, attn_vec4 inverse, attn_vec4 zero_point) {
  attn_bits4 words = {0, 0, 0, 0};
  for (int half = 1; half >= 0; half--) {
    attn_vec4 v[4];
    for (int i = 0; i < 4; i++) {
      v[i] = vec4_load(src + 8 * i + 4 * half);
    }
    vec4_transpose(v);
    for (int i = 3; i >= 0; i--) {
      words = words << 4 | codes4(v[i], inverse, zero_point);
    }
  }
  memcpy(dst, &words, sizeof words);
}
#endif

void attn_quantise_int4__generic(unsigned char *dst, const float *src, float inverse, float zero_point, int32_t size) {
  int32_t i = 0;
#if ATTN_HAVE_BYTES16
  for (; i + GROUP <= size; i += GROUP) {
    store_group(dst + i / 2, src + i, vec4_splat(inverse), vec4_splat(zero_point));
  }
#endif
  for (; i + 1 < size; i += 2) {
    dst[i / 2] = (unsigned char)(code(src[i], inverse, zero_point) | code(src[i + 1], inverse, zero_point) << 4);
  }
  if (i < size) {
    dst[i / 2] = (unsigned char)code(src[i], inverse, zero_point);
  }
}
