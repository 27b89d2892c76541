/* SPDX-License-Identifier: Apache-2.0 */
/* golden_trial.h: rows of a K and a V cache, each of a format of its own, written and gathered through the public
   calls, and what a reader of the stored bytes needs. Pools are scattered, some padded, and full of a poison that only
   the written rows may replace. */
#ifndef ATTN_GOLDEN_TRIAL_H
#define ATTN_GOLDEN_TRIAL_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { TRIAL_BLOCK = 16, TRIAL_POISON = 0xA5 };

typedef enum trial_place { PLACE_NONE, PLACE_UNSET, PLACE_ONE, PLACE_HEADS, PLACE_INLINE, PLACE_SEPARATE } trial_place;

/* K or V. */
typedef struct trial_side {
  attn_format format;
  trial_place place;
  int32_t size;
  int64_t row_elements; /* of the pool tensor */
  attn_dtype dtype;     /* of the pool tensor */
  unsigned char *pool, *source;
  size_t pool_bytes;
  uint32_t *scales; /* bits: static ones, or one per block, position and head */
  float *values;    /* gathered */
  tensor t_pool, t_source, t_scales, t_values;
} trial_side;

typedef struct trial {
  attn_context *context;
  const char *backend;
  attn_layout layout;
  attn_dtype source; /* of k and v */
  int32_t tokens, heads, blocks;
  int64_t *slots;
  trial_side side[2];
} trial;

static inline size_t trial_pad4(size_t bytes) {
  return (bytes + 3) / 4 * 4;
}

/* Bytes of a row's codes. */
static inline size_t trial_code_bytes(attn_format format, int32_t size) {
  switch (format) {
  case ATTN_FORMAT_FLOAT32:
    return 4 * (size_t)size;
  case ATTN_FORMAT_FLOAT16:
  case ATTN_FORMAT_BFLOAT16:
    return 2 * (size_t)size;
  case ATTN_FORMAT_INT4_PER_TOKEN_HEAD:
    return ((size_t)size + 1) / 2;
  default:
    return (size_t)size;
  }
}

static inline size_t trial_row_bytes(const trial_side *s) {
  size_t codes = trial_code_bytes(s->format, s->size);
  return s->place == PLACE_INLINE ? trial_pad4(codes) + 4 : codes;
}

/* Prepare a side; `padding`: elements behind every row and block. `typed`: fp8 pools are of the fp8 type, not uint8.
   `statics`: bits of the static scales, [1] or [heads], where the place has them. */
static inline void trial_side_open(trial *t, int which, attn_format format, trial_place place, int32_t size,
                                   int32_t padding, int typed, const uint32_t *statics) {
  trial_side *s = &t->side[which];
  const int64_t positions = (int64_t)t->blocks * TRIAL_BLOCK;
  s->format = format;
  s->place = place;
  s->size = size;
  s->dtype = format == ATTN_FORMAT_FLOAT32    ? ATTN_DTYPE_FLOAT32
             : format == ATTN_FORMAT_FLOAT16  ? ATTN_DTYPE_FLOAT16
             : format == ATTN_FORMAT_BFLOAT16 ? ATTN_DTYPE_BFLOAT16
                                              : ATTN_DTYPE_UINT8;
  if (typed && (format == ATTN_FORMAT_FP8_E4M3 || format == ATTN_FORMAT_FP8_E5M2)) {
    s->dtype = format == ATTN_FORMAT_FP8_E4M3 ? ATTN_DTYPE_FP8_E4M3 : ATTN_DTYPE_FP8_E5M2;
  }
  const int64_t element = (int64_t)attn_dtype_bytes(s->dtype);
  s->row_elements = (int64_t)trial_row_bytes(s) / element;
  /* inline scales want rows at multiples of 4 */
  const int64_t stride = s->row_elements + 4 * padding;
  const int64_t block = stride * TRIAL_BLOCK * t->heads + 8 * padding;
  s->pool_bytes = (size_t)(block * t->blocks * element);
  s->pool = malloc(s->pool_bytes);
  const int hnd = t->layout == ATTN_LAYOUT_HND;
  tensor_4(&s->t_pool, s->pool, s->dtype, t->blocks, hnd ? t->heads : TRIAL_BLOCK, hnd ? TRIAL_BLOCK : t->heads,
           s->row_elements);
  s->t_pool.strides[2] = stride;
  s->t_pool.strides[1] = stride * (hnd ? TRIAL_BLOCK : t->heads);
  s->t_pool.strides[0] = block;
  s->source = malloc((size_t)t->tokens * (size_t)t->heads * (size_t)size * attn_dtype_bytes(t->source));
  tensor_3(&s->t_source, s->source, t->source, t->tokens, t->heads, size);
  s->scales = malloc((size_t)(positions * t->heads) * sizeof(uint32_t));
  s->values = malloc((size_t)(positions * t->heads * size) * sizeof(float));
  assert_true(s->pool != NULL && s->source != NULL && s->scales != NULL && s->values != NULL);
  memset(s->pool, TRIAL_POISON, s->pool_bytes);
  memset(s->scales, TRIAL_POISON, (size_t)(positions * t->heads) * sizeof(uint32_t));
  tensor_3(&s->t_values, s->values, ATTN_DTYPE_FLOAT32, positions, t->heads, size);
  if (place == PLACE_ONE || place == PLACE_HEADS) {
    const int64_t count = place == PLACE_ONE ? 1 : t->heads;
    memcpy(s->scales, statics, (size_t)count * sizeof(uint32_t));
    tensor_1(&s->t_scales, s->scales, ATTN_DTYPE_FLOAT32, count);
  } else {
    tensor_3(&s->t_scales, s->scales, ATTN_DTYPE_FLOAT32, t->blocks, s->t_pool.shape[1], s->t_pool.shape[2]);
  }
}

static inline void trial_open(trial *t, const char *backend, attn_layout layout, attn_dtype source, int32_t tokens,
                              int32_t heads) {
  memset(t, 0, sizeof *t);
  t->context = open_context(1);
  t->backend = backend;
  t->layout = layout;
  t->source = source;
  t->tokens = tokens;
  t->heads = heads;
  t->blocks = (tokens + TRIAL_BLOCK - 1) / TRIAL_BLOCK + 1;
  while (t->blocks % 7 == 0) {
    t->blocks++; /* 7 steps visit every slot */
  }
  t->slots = malloc((size_t)tokens * sizeof *t->slots);
  assert_non_null(t->slots);
  for (int32_t i = 0; i < tokens; i++) {
    t->slots[i] = ((int64_t)i * 7 + 3) % ((int64_t)t->blocks * TRIAL_BLOCK);
  }
}

static inline void trial_close(trial *t) {
  for (int which = 0; which < 2; which++) {
    free(t->side[which].pool);
    free(t->side[which].source);
    free(t->side[which].scales);
    free(t->side[which].values);
  }
  free(t->slots);
  attn_context_destroy(t->context);
}

/* Element (token, head, 0) of k or v from words of bits. */
static inline void trial_set_source(trial *t, int which, int32_t token, int32_t head, const uint32_t *bits) {
  trial_side *s = &t->side[which];
  const size_t element = attn_dtype_bytes(t->source), at = (size_t)(token * t->heads + head) * (size_t)s->size;
  for (int32_t j = 0; j < s->size; j++) {
    const uint16_t half = (uint16_t)bits[j];
    memcpy(s->source + (at + (size_t)j) * element, element == 4 ? (const void *)&bits[j] : (const void *)&half,
           element);
  }
}

static inline const DLTensor *trial_scales(trial_side *s) {
  return s->place == PLACE_ONE || s->place == PLACE_HEADS || s->place == PLACE_SEPARATE ? &s->t_scales.t : NULL;
}

static inline attn_status trial_write(trial *t) {
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  tensor slots;
  tensor_1(&slots, t->slots, ATTN_DTYPE_INT64, t->tokens);
  args.k_format = t->side[0].format;
  args.v_format = t->side[1].format;
  args.layout = t->layout;
  args.backend = t->backend;
  args.k = &t->side[0].t_source.t;
  args.v = &t->side[1].t_source.t;
  args.slot_mapping = &slots.t;
  args.k_cache = &t->side[0].t_pool.t;
  args.v_cache = &t->side[1].t_pool.t;
  args.k_scale = trial_scales(&t->side[0]);
  args.v_scale = trial_scales(&t->side[1]);
  return attn_cache_write(t->context, &args, &why);
}

/* Gather every position of the pools, in the order of slots. */
static inline attn_status trial_gather(trial *t) {
  attn_cache_gather_args args = ATTN_CACHE_GATHER_INIT;
  tensor table, lens;
  int32_t length = t->blocks * TRIAL_BLOCK;
  int32_t *column = malloc((size_t)t->blocks * sizeof *column);
  assert_non_null(column);
  for (int32_t i = 0; i < t->blocks; i++) {
    column[i] = i;
  }
  tensor_2(&table, column, ATTN_DTYPE_INT32, 1, t->blocks);
  tensor_1(&lens, &length, ATTN_DTYPE_INT32, 1);
  args.k_format = t->side[0].format;
  args.v_format = t->side[1].format;
  args.layout = t->layout;
  args.backend = t->backend;
  args.k_cache = &t->side[0].t_pool.t;
  args.v_cache = &t->side[1].t_pool.t;
  args.k_scale = trial_scales(&t->side[0]);
  args.v_scale = trial_scales(&t->side[1]);
  args.block_table = &table.t;
  args.seq_lens = &lens.t;
  args.k = &t->side[0].t_values.t;
  args.v = &t->side[1].t_values.t;
  attn_status status = attn_cache_gather(t->context, &args, &why);
  free(column);
  return status;
}

/* Where a token's row lies. */
static inline unsigned char *trial_row(const trial *t, int which, int32_t token, int32_t head) {
  const trial_side *s = &t->side[which];
  const int hnd = t->layout == ATTN_LAYOUT_HND;
  const int64_t slot = t->slots[token];
  const int64_t at = slot / TRIAL_BLOCK * s->t_pool.strides[0] + slot % TRIAL_BLOCK * s->t_pool.strides[hnd ? 2 : 1] +
                     head * s->t_pool.strides[hnd ? 1 : 2];
  return s->pool + (size_t)at * attn_dtype_bytes(s->dtype);
}

/* Its scale in a tensor of scales of its own. */
static inline uint32_t *trial_scale(const trial *t, int which, int32_t token, int32_t head) {
  const int64_t slot = t->slots[token], block = slot / TRIAL_BLOCK, offset = slot % TRIAL_BLOCK;
  const int64_t inside = t->layout == ATTN_LAYOUT_HND ? head * TRIAL_BLOCK + offset : offset * t->heads + head;
  return t->side[which].scales + block * TRIAL_BLOCK * t->heads + inside;
}

/* The scale bits that belong to a row: inline, separate or static; 1.0 where there are none. */
static inline uint32_t trial_scale_bits(const trial *t, int which, int32_t token, int32_t head) {
  const trial_side *s = &t->side[which];
  uint32_t bits = 0x3F800000;
  if (s->place == PLACE_INLINE) {
    memcpy(&bits, trial_row(t, which, token, head) + trial_row_bytes(s) - 4, 4);
  } else if (s->place == PLACE_SEPARATE) {
    bits = *trial_scale(t, which, token, head);
  } else if (s->place == PLACE_ONE || s->place == PLACE_HEADS) {
    bits = s->scales[s->place == PLACE_HEADS ? head : 0];
  }
  return bits;
}

static inline const float *trial_values(const trial *t, int which, int32_t token, int32_t head) {
  const trial_side *s = &t->side[which];
  return s->values + ((size_t)t->slots[token] * (size_t)t->heads + (size_t)head) * (size_t)s->size;
}

/* 1 when nothing but the rows of the tokens lost its poison. */
static inline int trial_rest_is_poison(const trial *t, int which) {
  const trial_side *s = &t->side[which];
  const size_t positions = (size_t)t->blocks * TRIAL_BLOCK * (size_t)t->heads;
  unsigned char *copy = malloc(s->pool_bytes + 4 * positions);
  assert_non_null(copy);
  memcpy(copy, s->pool, s->pool_bytes);
  memcpy(copy + s->pool_bytes, s->scales, 4 * positions);
  for (int32_t token = 0; token < t->tokens; token++) {
    for (int32_t head = 0; head < t->heads; head++) {
      memset(copy + (trial_row(t, which, token, head) - s->pool), TRIAL_POISON, trial_row_bytes(s));
      if (s->place == PLACE_SEPARATE) {
        memset(copy + s->pool_bytes + 4 * (size_t)(trial_scale(t, which, token, head) - s->scales), TRIAL_POISON, 4);
      }
    }
  }
  const int statics = s->place == PLACE_ONE || s->place == PLACE_HEADS;
  const int fine = all_bytes(copy, s->pool_bytes + (statics ? 0 : 4 * positions), TRIAL_POISON);
  free(copy);
  return fine;
}

/* ---- The exact value of int4 codes ------------------------------------------------------------------------------- */

/* s of an element of a head: +1 when bit 23 of draw i of the Mersenne Twister seeded with 9E3779B9 is 0; i < 624. */
static inline double trial_sign(int32_t i) {
  static int8_t signs[624];
  if (signs[0] == 0) {
    uint32_t state[624] = {0x9E3779B9u};
    for (uint32_t k = 1; k < 624; k++) {
      state[k] = 1812433253u * (state[k - 1] ^ state[k - 1] >> 30) + k;
    }
    for (uint32_t k = 0; k < 624; k++) {
      uint32_t y = (state[k] & 0x80000000u) | (state[(k + 1) % 624] & 0x7FFFFFFFu);
      state[k] = state[(k + 397) % 624] ^ y >> 1 ^ (y % 2 != 0 ? 0x9908B0DFu : 0);
      y = state[k] ^ state[k] >> 11;
      y ^= y << 7 & 0x9D2C5680u;
      y ^= y << 15 & 0xEFC60000u;
      signs[k] = ((y ^ y >> 18) >> 23 & 1) != 0 ? -1 : 1;
    }
  }
  return signs[i];
}

/* The values of int4 codes behind the inverse rotation. Sums of at most 512 products of a 4-bit and a 20-bit number:
   exact in double. */
static inline void trial_exact_int4(const unsigned char *codes, uint32_t scale_bits, int32_t size, double *out) {
  const uint32_t high = scale_bits & 0xFFFFFFF0u;
  float scale;
  memcpy(&scale, &high, 4);
  for (int32_t i = 0; i < size; i++) {
    out[i] = ((codes[i / 2] >> 4 * (i % 2) & 15) - (int)(scale_bits & 15)) * (double)scale;
  }
  int32_t first = 0;
  for (int32_t start = 0, n; start < size; start += n) {
    for (n = 1; 2 * n <= size - start;) {
      n *= 2;
    }
    first = start == 0 ? n : first;
    int32_t factor = 1;
    while ((int64_t)4 * factor * factor * n <= first) {
      factor *= 2; /* 2^floor(log2(first / n) / 2) */
    }
    for (int32_t h = 1; h < n; h *= 2) {
      for (int32_t i = 0; i < n; i++) {
        if ((i & h) == 0) {
          const double a = out[start + i], b = out[start + i + h];
          out[start + i] = a + b;
          out[start + i + h] = a - b;
        }
      }
    }
    for (int32_t i = start; i < start + n; i++) {
      out[i] = out[i] * trial_sign(i) / n / factor + 0.0; /* zeros are +0 */
    }
  }
}

#endif
