/* SPDX-License-Identifier: Apache-2.0 */
/* rotate_generic.c: the rotation of int4 rows (core/rotation.h) and back, to the bit: butterflies of steps 1, 2, 4, ...
 * in that order, each sum rounded by itself.
 *
 * Sixteen elements at a time take their signs and the first four steps in registers: turned so that elements four apart
 * lie in one vector, steps 1 and 2 are sums of vectors; turned back, steps 4 and 8 are. Beyond, two steps at a time.
 */
#include "core/rotation.h"

#include "cpu/generic/vec4.h"
#include "cpu/table.h"

#define GROUP 16

/* Signs of four elements by four bits of attn_rotation_signs(), the first element's lowest. */
#define SIGN(bits, i) ((uint32_t)(bits) >> (i) << 31)
#define SIGNS(bits)                                                                                                    \
  { SIGN(bits, 0), SIGN(bits, 1), SIGN(bits, 2), SIGN(bits, 3) }
static const uint32_t signs_of[16][4] = {SIGNS(0),  SIGNS(1),  SIGNS(2),  SIGNS(3), SIGNS(4),  SIGNS(5),
                                         SIGNS(6),  SIGNS(7),  SIGNS(8),  SIGNS(9), SIGNS(10), SIGNS(11),
                                         SIGNS(12), SIGNS(13), SIGNS(14), SIGNS(15)};

/* (a, b) becomes (a + b, a - b). */
ATTN_INLINE void add_subtract(attn_vec4 *a, attn_vec4 *b) {
  attn_vec4 sum = vec4_add(*a, *b);
  *b = vec4_subtract(*a, *b);
  *a = sum;
}

/* Two steps of four vectors, the first between neighbours. */
ATTN_INLINE void two_steps(attn_vec4 v[4]) {
  add_subtract(&v[0], &v[1]);
  add_subtract(&v[2], &v[3]);
  add_subtract(&v[0], &v[2]);
  add_subtract(&v[1], &v[3]);
}

/* Signs and steps 1 to 8 of sixteen elements; `signs` holds a bit for each. */
ATTN_INLINE void first_steps(float *row, uint32_t signs) {
  attn_vec4 v[4];
  for (int i = 0; i < 4; i++) {
    v[i] = vec4_toggle(vec4_load(row + 4 * i), signs_of[signs >> (4 * i) & 0xFu]);
  }
  vec4_transpose(v);
  two_steps(v);
  vec4_transpose(v);
  two_steps(v);
  for (int i = 0; i < 4; i++) {
    vec4_store(row + 4 * i, v[i]);
  }
}

/* Steps h and 2 h of n elements. */
static void next_steps(float *row, int64_t n, int64_t h) {
  for (int64_t i = 0; i < n; i += 4 * h) {
    for (int64_t j = i; j < i + h; j += 4) {
      attn_vec4 v[4] = {vec4_load(row + j), vec4_load(row + j + h), vec4_load(row + j + 2 * h),
                        vec4_load(row + j + 3 * h)};
      two_steps(v);
      for (int k = 0; k < 4; k++) {
        vec4_store(row + j + k * h, v[k]);
      }
    }
  }
}

/* The last step of n elements. */
static void last_step(float *row, int64_t n) {
  for (int64_t j = 0; j < n / 2; j += 4) {
    attn_vec4 a = vec4_load(row + j);
    attn_vec4 b = vec4_load(row + j + n / 2);
    add_subtract(&a, &b);
    vec4_store(row + j, a);
    vec4_store(row + j + n / 2, b);
  }
}

/* Of n elements, a power of two. */
static void butterflies_of_few(float *row, int64_t n) {
  for (int64_t h = 1; h < n; h *= 2) {
    for (int64_t i = 0; i < n; i += 2 * h) {
      for (int64_t j = i; j < i + h; j++) {
        float a = row[j];
        float b = row[j + h];
        row[j] = a + b;
        row[j + h] = a - b;
      }
    }
  }
}

/* The signs of the block of n elements that begins at element `begin` of the row, a multiple of n. */
static void apply_signs(float *block, int64_t begin, int64_t n) {
  if (n < 4) {
    for (int64_t i = 0; i < n; i++) {
      block[i] = attn_rotation_sign(begin + i) != 0 ? -block[i] : block[i];
    }
    return;
  }
  for (int64_t i = 0; i < n; i += 4) {
    vec4_store(block + i, vec4_toggle(vec4_load(block + i), signs_of[attn_rotation_signs(begin + i) & 0xFu]));
  }
}

/* The transform of such a block, of its signed elements where `is_signed`. */
static void transform(float *block, int64_t begin, int64_t n, int is_signed) {
  if (n < GROUP) {
    if (is_signed) {
      apply_signs(block, begin, n);
    }
    butterflies_of_few(block, n);
    return;
  }
  for (int64_t i = 0; i < n; i += GROUP) {
    first_steps(block + i, is_signed ? attn_rotation_signs(begin + i) : 0);
  }
  int64_t h = GROUP;
  for (; 4 * h <= n; h *= 4) {
    next_steps(block, n, h);
  }
  if (h < n) {
    last_step(block, n);
  }
}

static void multiply(float *block, int64_t n, float factor) {
  for (int64_t i = 0; i < n && factor != 1.0f; i++) {
    block[i] *= factor;
  }
}

void attn_rotate_f32__generic(float *row, int32_t size) {
  for (int64_t begin = 0; begin < size;) {
    int64_t n = attn_rotation_block(size, begin);
    transform(row + begin, begin, n, 1);
    multiply(row + begin, n, attn_rotation_factor(size, n));
    begin += n;
  }
}

void attn_unrotate_f32__generic(float *row, int32_t size) {
  for (int64_t begin = 0; begin < size;) {
    int64_t n = attn_rotation_block(size, begin);
    multiply(row + begin, n, 1.0f / ((float)n * attn_rotation_factor(size, n))); /* first: sums would overflow */
    transform(row + begin, begin, n, 0);
    apply_signs(row + begin, begin, n);
    begin += n;
  }
}
