/* SPDX-License-Identifier: Apache-2.0 */
/* check_pool.c: see check_pool.h. */
#include "check_pool.h"

#include <math.h>
#include <string.h>

#include "check_float.h"

/* Distance that the farthest block reaches: offsets that do not fit 32 bits. */
#define HUGE_POOL_BYTES ((uint64_t)1 << 33)

void check_pool_strides(check_rng *rng, int pool_class, int ndim, const int64_t *shape, size_t element,
                        int64_t *strides) {
  int stride_class =
      pool_class == CHECK_PADDED_ROWS || pool_class == CHECK_GAPPED_ELEMENTS ? pool_class : CHECK_COMPACT;
  check_strides(rng, stride_class, ndim, shape, strides);
  if (pool_class == CHECK_PADDED_BLOCKS) {
    strides[0] += check_between(rng, 1, 50);
  } else if (pool_class == CHECK_HUGE_BLOCKS && shape[0] > 0) {
    int64_t far = (int64_t)(HUGE_POOL_BYTES / element) / shape[0];
    strides[0] = far > strides[0] ? far : strides[0];
  }
}

static void pool_shape(const check_case *c, int64_t num_blocks, int64_t size, int64_t *shape) {
  int hnd = check_is(c, CHECK_LAYOUT, 1);
  shape[0] = num_blocks;
  shape[1] = hnd ? c->kv_heads : c->block_size;
  shape[2] = hnd ? c->block_size : c->kv_heads;
  shape[3] = size;
}

void check_pool_make(check_arena *arena, check_case *c, int64_t num_blocks, int pool_class, check_tensor *k_cache,
                     check_tensor *v_cache) {
  int64_t k_shape[4];
  int64_t v_shape[4];
  int64_t k_strides[4];
  int64_t v_strides[4];
  int before = check_is(c, CHECK_GUARD, 1);
  size_t k_element = attn_dtype_bytes(c->k_type);
  size_t v_element = attn_dtype_bytes(c->v_type);
  pool_shape(c, num_blocks, check_row_extent(c->k_format, c->size, check_separate(c, c->k_format)), k_shape);
  pool_shape(c, num_blocks, check_row_extent(c->v_format, c->v_size, check_separate(c, c->v_format)), v_shape);
  check_pool_strides(&c->rng, pool_class, 4, k_shape, k_element, k_strides);
  check_pool_strides(&c->rng, pool_class, 4, v_shape, v_element, v_strides);
  unsigned char *k_first = NULL;
  unsigned char *v_first = NULL;
  int layered = pool_class == CHECK_LAYERS;
  if ((layered || pool_class == CHECK_INTERLEAVED) &&
      num_blocks > 0) { /* each block: K, then V, of one layer or more */
    size_t k_block = ((size_t)k_strides[0] * k_element + 3) / 4 * 4;
    size_t v_block = ((size_t)v_strides[0] * v_element + 3) / 4 * 4;
    size_t layers = layered ? (size_t)check_between(&c->rng, 2, 3) : 1;
    size_t page = (k_block + v_block) * layers + (layered ? 4 * (size_t)check_between(&c->rng, 0, 9) : 0);
    size_t before_k = layered ? (k_block + v_block) * (size_t)check_between(&c->rng, 0, (int64_t)layers - 1) : 0;
    k_strides[0] = (int64_t)(page / k_element);
    v_strides[0] = (int64_t)(page / v_element);
    size_t v_extent = check_extent(4, v_shape, v_strides, v_element);
    k_first = check_guarded(arena, (before_k + k_block + v_extent + 3) / 4 * 4, before) + before_k;
    v_first = k_first + k_block;
  }
  check_lie lie = {k_strides, 0, before, pool_class == CHECK_HUGE_BLOCKS};
  check_tensor_make(arena, k_cache, c->k_type, 4, k_shape, &lie, k_first);
  lie.strides = v_strides;
  check_tensor_make(arena, v_cache, c->v_type, 4, v_shape, &lie, v_first);
}

void *check_pool_at(const check_case *c, const check_tensor *pool, int64_t block, int64_t offset, int64_t head,
                    int64_t e) {
  return check_is(c, CHECK_LAYOUT, 1) ? check_at(pool, block, head, offset, e) : check_at(pool, block, offset, head, e);
}

void check_pool_scales(check_arena *arena, check_case *c, int64_t num_blocks, int stride_class, check_tensor *scales) {
  int64_t shape[4];
  int64_t strides[4];
  pool_shape(c, num_blocks, 1, shape);
  check_strides(&c->rng, stride_class, 3, shape, strides);
  check_lie lie = {strides, 0, check_is(c, CHECK_GUARD, 1), 0};
  check_tensor_make(arena, scales, ATTN_DTYPE_FLOAT32, 3, shape, &lie, NULL);
  check_fill_poison(scales, CHECK_POISON_NAN);
}

int check_static_scales(check_arena *arena, const check_case *c, const check_rows *rows, check_tensor *scales) {
  int64_t count = rows->num_statics;
  if (count == 0) {
    return 0;
  }
  check_lie lie = {NULL, 0, check_is(c, CHECK_GUARD, 1), 0};
  check_tensor_make(arena, scales, ATTN_DTYPE_FLOAT32, 1, &count, &lie, NULL);
  for (int64_t h = 0; h < count; h++) {
    memcpy(check_at(scales, h, 0, 0, 0), &rows->statics[h], sizeof(float));
  }
  return 1;
}

int32_t check_pool_bytes(const check_case *c, const check_tensor *pool, const check_tensor *scales,
                         const check_rows *rows, int64_t row, int64_t block, int64_t offset, int64_t head, int padding,
                         unsigned char **at, unsigned char *want) {
  int32_t count = 0;
  for (int32_t i = 0; i < rows->code_bytes; i++) {
    at[count] = check_pool_at(c, pool, block, offset, head, i);
    want[count++] = rows->codes[row * rows->code_bytes + i];
  }
  if (rows->scales == NULL) {
    return count;
  }
  int separate = check_separate(c, rows->format);
  int64_t place = check_row_scale_at(rows->format, rows->size);
  for (int64_t i = rows->code_bytes; padding && !separate && i < place; i++) {
    at[count] = check_pool_at(c, pool, block, offset, head, i);
    want[count++] = 0;
  }
  unsigned char bytes[4];
  memcpy(bytes, &rows->scales[row], sizeof bytes);
  for (int64_t i = 0; i < 4; i++) {
    at[count] = separate ? (unsigned char *)check_pool_at(c, scales, block, offset, head, 0) + i
                         : check_pool_at(c, pool, block, offset, head, place + i);
    want[count++] = bytes[i];
  }
  return count;
}

void check_pool_put(const check_case *c, const check_tensor *pool, const check_tensor *scales, const check_rows *rows,
                    int64_t row, int64_t block, int64_t offset, int64_t head, int padding) {
  unsigned char *at[CHECK_ROW_BYTES];
  unsigned char want[CHECK_ROW_BYTES];
  int32_t count = check_pool_bytes(c, pool, scales, rows, row, block, offset, head, padding, at, want);
  for (int32_t i = 0; i < count; i++) {
    *at[i] = want[i];
  }
}

/* ---- judging ----------------------------------------------------------------------------------------------------- */

static int judge_floats(check_env *env, const check_case *c, const check_wanted *w, int64_t position, int64_t block,
                        int64_t offset) {
  int64_t size = w->rows->size;
  const float *values = w->values + position * c->kv_heads * size;
  for (int64_t i = 0; i < c->kv_heads * size; i++) {
    unsigned char want[4];
    void *at = check_pool_at(c, w->pool, block, offset, i / size, i % size);
    check_store(want, w->pool->dtype, values[i]);
    int same = isnan(values[i]) ? isnan(check_load(at, w->pool->dtype)) : memcmp(at, want, w->pool->element) == 0;
    if (!same) {
      return check_fail(env, "%s: block %lld, offset %lld, head %lld, element %lld: got %.9g, want %.9g", w->name,
                        (long long)block, (long long)offset, (long long)(i / size), (long long)(i % size),
                        (double)check_load(at, w->pool->dtype), (double)check_load(want, w->pool->dtype));
    }
    memcpy(at, check_old_bytes(w->pool, at), w->pool->element);
  }
  return 1;
}

static int judge_codes(check_env *env, const check_case *c, const check_wanted *w, int64_t position, int64_t block,
                       int64_t offset) {
  unsigned char *at[CHECK_ROW_BYTES];
  unsigned char want[CHECK_ROW_BYTES];
  for (int64_t h = 0; h < c->kv_heads; h++) {
    int32_t count =
        check_pool_bytes(c, w->pool, w->scales, w->rows, position * c->kv_heads + h, block, offset, h, 1, at, want);
    for (int32_t i = 0; i < count; i++) {
      if (*at[i] != want[i]) {
        return check_fail(env, "%s: block %lld, offset %lld, head %lld, byte %d of %d: got %02x, want %02x", w->name,
                          (long long)block, (long long)offset, (long long)h, (int)i, (int)count, (unsigned)*at[i],
                          (unsigned)want[i]);
      }
    }
    for (int32_t i = 0; i < count; i++) {
      int in_scales = check_separate(c, w->rows->format) && i >= w->rows->code_bytes;
      *at[i] = *check_old_bytes(in_scales ? w->scales : w->pool, at[i]);
    }
  }
  return 1;
}

int check_pool_judge(check_env *env, const check_case *c, const check_wanted *want, int64_t position, int64_t block,
                     int64_t offset) {
  return want->rows->codes != NULL ? judge_codes(env, c, want, position, block, offset)
                                   : judge_floats(env, c, want, position, block, offset);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static float hostile(check_rng *rng) {
  switch (check_between(rng, 0, 11)) {
  case 0:
    return ldexpf(1.0f + (float)check_between(rng, 0, 4095) * 0x1p-12f, (int)check_between(rng, -20, 15));
  case 1:
    return ldexpf(check_normal(rng), -17);
  case 2:
    return ldexpf(check_normal(rng), -132);
  case 3:
    return ldexpf(check_normal(rng), 16);
  case 4:
    return check_chance(rng, 50) ? INFINITY : -INFINITY;
  case 5:
    return check_chance(rng, 30) ? NAN : -0.0f;
  case 6:
    return ldexpf(1.0f + (float)check_between(rng, 0, 511) * 0x1p-9f, (int)check_between(rng, -3, 3));
  default:
    return check_normal(rng);
  }
}

void check_draw_position(check_rng *rng, attn_format format, int64_t count, float *values) {
  int quantised = check_format_per_row(format) || check_format_static(format);
  int wild = !quantised || check_chance(rng, 20);
  int32_t power = (int32_t)check_between(rng, -22, 12);
  for (int64_t i = 0; i < count; i++) {
    values[i] = wild ? hostile(rng) : ldexpf(check_normal(rng), power);
  }
}
