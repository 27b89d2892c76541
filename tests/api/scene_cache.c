/* SPDX-License-Identifier: Apache-2.0 */
/* scene_cache.c: the paged cache of a scene, in any format. Positions of the sequences lie in scattered blocks; every
 * other byte, of scales too, is poison. A quantised row is made by the row functions of core in memory of its own and
 * laid out by this file's own arithmetic; the scene's values become what it decodes to. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/quantise.h"
#include "quantising.h"
#include "scene.h"

/* One of K and V. */
typedef struct side {
  attn_format format;
  int is_v;
  int32_t size;   /* elements of a row */
  int64_t row;    /* elements of the pool tensor's row */
  int separate;   /* its scales */
  attn_rows rows; /* for the row functions */
  tensor *pool, *scale;
  guarded *data, *scale_data;
  const float *statics;
} side;

void scene_pair(scene *s, attn_format k, attn_format v) {
  scene_format(s, k);
  s->problem.v_format = v;
}

void scene_scales(scene *s, int place) {
  static const float k_statics[] = {0.25f, 4.0f, 0.5f, 0.125f, 1.0f}, v_statics[] = {0.5f, 0.03125f, 2.0f, 1.0f, 0.1f};
  attn_format v = s->problem.v_format != ATTN_FORMAT_AUTO ? s->problem.v_format : s->problem.k_format;
  int k_has = format_has_row_scale(s->problem.k_format), v_has = format_has_row_scale(v);
  CHECK(s->problem.num_kv_heads <= 5, "no static scales for so many heads");
  s->problem.separate_scales = place == 0 || !(k_has || v_has) ? ATTN_SEPARATE_NONE
                               : place == 1                    ? ATTN_SEPARATE_BOTH
                               : k_has                         ? ATTN_SEPARATE_K
                                                               : ATTN_SEPARATE_V;
  s->k_statics = k_statics;
  s->v_statics = v_statics;
  s->num_statics = s->problem.num_kv_heads;
}

static int32_t block_size_of(const scene *s) {
  return s->block_size > 0 ? s->block_size : s->problem.block_size;
}

static int32_t blocks_of(const scene *s, int32_t seq) {
  return (int32_t)(((int64_t)s->kv_len[seq] + block_size_of(s) - 1) / block_size_of(s));
}

static attn_format format_of(const scene *s, int is_v) {
  const attn_problem *p = &s->problem;
  attn_format k_format = p->k_format != ATTN_FORMAT_AUTO     ? p->k_format
                         : p->q_dtype == ATTN_DTYPE_FLOAT16  ? ATTN_FORMAT_FLOAT16
                         : p->q_dtype == ATTN_DTYPE_BFLOAT16 ? ATTN_FORMAT_BFLOAT16
                         : p->q_dtype == ATTN_DTYPE_FP8_E4M3 ? ATTN_FORMAT_FP8_E4M3
                                                             : ATTN_FORMAT_FLOAT32;
  return is_v && p->v_format != ATTN_FORMAT_AUTO ? p->v_format : k_format;
}

static attn_dtype dtype_of(const side *d) {
  return format_has_row_scale(d->format) || format_is_static(d->format) ? ATTN_DTYPE_UINT8 : format_dtype(d->format);
}

static side side_of(scene *s, int is_v) {
  const attn_problem *p = &s->problem;
  side d;
  memset(&d, 0, sizeof d);
  d.format = format_of(s, is_v);
  d.is_v = is_v;
  d.size = is_v ? p->v_head_size : p->qk_head_size;
  d.separate = format_has_row_scale(d.format) && (p->separate_scales == ATTN_SEPARATE_BOTH ||
                                                  p->separate_scales == (is_v ? ATTN_SEPARATE_V : ATTN_SEPARATE_K));
  d.row = d.format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? (d.size + 1) / 2 : d.size;
  if (format_has_row_scale(d.format) && !d.separate) {
    d.row = (d.row + 3) / 4 * 4 + 4;
  }
  d.rows.facts = attn_format_of(d.format);
  d.rows.size = d.size;
  d.rows.separate = d.separate;
  d.pool = is_v ? &s->t_v : &s->t_k;
  d.scale = is_v ? &s->t_v_scale : &s->t_k_scale;
  d.data = is_v ? &s->v_data : &s->k_data;
  d.scale_data = is_v ? &s->v_scale_data : &s->k_scale_data;
  d.statics = is_v ? s->v_statics : s->k_statics;
  return d;
}

static void poison(const scene *s, guarded *memory, attn_dtype dtype) {
  uint32_t state = 77;
  int64_t count = (int64_t)(memory->bytes / attn_dtype_bytes(dtype));
  for (int64_t i = 0; s->poison != SCENE_NAN && i < count; i++) {
    if (dtype == ATTN_DTYPE_UINT8) { /* 7C is an infinity of e5m2, and scales of 5e36 */
      memory->data[i] = s->poison == SCENE_INF ? 0x7C : (unsigned char)random_bits(&state);
    } else {
      store_element(memory->data, dtype, i, s->poison == SCENE_INF ? INFINITY : random_normal(&state));
    }
  }
}

/* A pool (or scale) tensor over memory, in the problem's layout; the block stride is in elements. */
static void pool_tensor(const scene *s, tensor *t, void *data, attn_dtype dtype, int64_t num_blocks, int64_t row,
                        int64_t block_stride) {
  const attn_problem *p = &s->problem;
  if (p->layout == ATTN_LAYOUT_HND) {
    tensor_4(t, data, dtype, num_blocks, p->num_kv_heads, block_size_of(s), row);
  } else {
    tensor_4(t, data, dtype, num_blocks, block_size_of(s), p->num_kv_heads, row);
  }
  t->strides[0] = block_stride;
}

/* The block ids of all sequences in order, distinct; returns the number of blocks of the pool. */
static int64_t place_blocks(const scene *s, int32_t *ids, int64_t wanted) {
  int64_t num_blocks = wanted + s->extra_blocks;
  if (s->fixed_blocks != NULL) {
    for (int64_t i = 0; i < wanted; i++) {
      ids[i] = s->fixed_blocks[i];
      num_blocks = ids[i] + 1 + s->extra_blocks > num_blocks ? ids[i] + 1 + s->extra_blocks : num_blocks;
    }
    return num_blocks;
  }
  int32_t *order = calloc((size_t)num_blocks + 1, sizeof *order);
  uint32_t state = s->placement * 7919u + 13u;
  CHECK(order != NULL, "no memory");
  for (int64_t i = 0; i < num_blocks; i++) {
    order[i] = (int32_t)i;
  }
  for (int64_t i = num_blocks - 1; i > 0; i--) {
    int64_t j = (int64_t)(random_bits(&state) % (uint32_t)(i + 1));
    int32_t swap = order[i];
    order[i] = order[j];
    order[j] = swap;
  }
  memcpy(ids, order, (size_t)wanted * sizeof *ids);
  free(order);
  return num_blocks;
}

/* Where the row of a position begins, in elements of the tensor. */
static int64_t row_at(const scene *s, const tensor *t, int32_t block, int32_t offset, int32_t head) {
  int hnd = s->problem.layout == ATTN_LAYOUT_HND;
  return block * t->strides[0] + offset * t->strides[hnd ? 2 : 1] + head * t->strides[hnd ? 1 : 2];
}

/* A quantised row: its bytes to where they belong, and `values` becomes what they decode to. */
static void store_codes(const scene *s, const side *d, int32_t block, int32_t offset, int32_t head, float *values) {
  static float work[ATTN_ROW_MAX];
  static unsigned char bytes[ATTN_ROW_MAX + 8];
  float given = d->statics == NULL ? 1.0f : d->statics[s->num_statics == 1 ? 0 : head];
  unsigned char scale[4];
  attn_row row = {bytes, 1, scale, 1};
  memcpy(work, values, (size_t)d->size * sizeof *work);
  memcpy(scale, &given, sizeof given);
  if (format_has_row_scale(d->format)) {
    attn_quantise_row(&d->rows, &row, work);
  } else {
    attn_quantise_part(&d->rows, &row, 0, d->size, work);
  }
  attn_dequantise_row(&d->rows, &row, values);
  if (format_has_row_scale(d->format) && !d->separate) {
    memcpy(bytes + d->row - 4, scale, sizeof scale);
  }
  unsigned char *to = (unsigned char *)d->pool->t.data + row_at(s, d->pool, block, offset, head);
  memcpy(to, bytes, (size_t)d->row);
  if (d->separate) {
    memcpy((float *)d->scale->t.data + row_at(s, d->scale, block, offset, head), scale, sizeof scale);
  }
}

static void store_positions(scene *s, const side *d, int32_t seq, const int32_t *ids) {
  attn_dtype dtype = dtype_of(d);
  for (int32_t pos = 0; pos < s->kv_len[seq]; pos++) {
    for (int32_t g = 0; g < s->problem.num_kv_heads; g++) {
      float *values = (d->is_v ? s->v : s->k)[seq] + ((int64_t)pos * s->problem.num_kv_heads + g) * d->size;
      int32_t block = ids[pos / block_size_of(s)], offset = pos % block_size_of(s);
      if (dtype == ATTN_DTYPE_UINT8) {
        store_codes(s, d, block, offset, g, values);
        continue;
      }
      for (int32_t e = 0; e < d->size; e++) {
        values[e] = rounded(dtype, values[e]);
        store_element(d->pool->t.data, dtype, row_at(s, d->pool, block, offset, g) + e, values[e]);
      }
    }
  }
}

/* Separate scales, or static ones. */
static const DLTensor *store_scales(scene *s, const side *d, int64_t num_blocks) {
  if (d->separate) {
    int64_t block = (int64_t)block_size_of(s) * s->problem.num_kv_heads * (s->interleaved ? 2 : 1);
    *d->scale_data = guard_make((size_t)(num_blocks * block) * sizeof(float));
    poison(s, d->scale_data, ATTN_DTYPE_FLOAT32);
    pool_tensor(s, d->scale, d->scale_data->data, ATTN_DTYPE_FLOAT32, num_blocks, 1, block);
    d->scale->t.ndim = 3;
    return &d->scale->t;
  }
  if (format_is_static(d->format) && d->statics != NULL) {
    tensor_1(d->scale, (void *)(uintptr_t)d->statics, ATTN_DTYPE_FLOAT32, s->num_statics);
    return &d->scale->t;
  }
  return NULL;
}

/* K and V in pools of their own, or side by side in the blocks of one. */
static void store_pools(scene *s, const side *k, const side *v, int64_t num_blocks) {
  int64_t rows = (int64_t)block_size_of(s) * s->problem.num_kv_heads;
  attn_dtype k_type = dtype_of(k), v_type = dtype_of(v);
  if (s->interleaved) {
    int64_t k_element = (int64_t)attn_dtype_bytes(k_type), v_element = (int64_t)attn_dtype_bytes(v_type);
    int64_t k_bytes = (rows * k->row * k_element + 3) / 4 * 4, v_bytes = (rows * v->row * v_element + 3) / 4 * 4;
    s->k_data = guard_make((size_t)(num_blocks * (k_bytes + v_bytes)));
    poison(s, &s->k_data, k_type == v_type ? k_type : ATTN_DTYPE_UINT8);
    pool_tensor(s, &s->t_k, s->k_data.data, k_type, num_blocks, k->row, (k_bytes + v_bytes) / k_element);
    pool_tensor(s, &s->t_v, s->k_data.data + k_bytes, v_type, num_blocks, v->row, (k_bytes + v_bytes) / v_element);
    return;
  }
  s->k_data = guard_make((size_t)(num_blocks * rows * k->row) * attn_dtype_bytes(k_type));
  s->v_data = guard_make((size_t)(num_blocks * rows * v->row) * attn_dtype_bytes(v_type));
  poison(s, &s->k_data, k_type);
  poison(s, &s->v_data, v_type);
  pool_tensor(s, &s->t_k, s->k_data.data, k_type, num_blocks, k->row, rows * k->row);
  pool_tensor(s, &s->t_v, s->v_data.data, v_type, num_blocks, v->row, rows * v->row);
}

void scene_store_cache(scene *s) {
  side k = side_of(s, 0), v = side_of(s, 1);
  int64_t wanted = 0;
  int32_t width = 0;
  int64_t first = 0;
  for (int32_t i = 0; i < s->num_seqs; i++) {
    wanted += blocks_of(s, i);
    width = blocks_of(s, i) > width ? blocks_of(s, i) : width;
  }
  int32_t *ids = calloc((size_t)wanted + 1, sizeof *ids);
  CHECK(ids != NULL, "no memory");
  int64_t num_blocks = place_blocks(s, ids, wanted);
  store_pools(s, &k, &v, num_blocks);
  s->args.k_scale = store_scales(s, &k, num_blocks);
  s->args.v_scale = store_scales(s, &v, num_blocks);
  width += s->extra_columns;
  s->table_data = guard_make((size_t)s->num_seqs * (size_t)width * sizeof(int32_t));
  int32_t *table = (int32_t *)(void *)s->table_data.data;
  tensor_2(&s->t_table, table, ATTN_DTYPE_INT32, s->num_seqs, width);
  for (int32_t i = 0; i < s->num_seqs; i++) {
    for (int32_t c = 0; c < width; c++) {
      table[(int64_t)i * width + c] = c < blocks_of(s, i) ? ids[first + c] : s->unused_id;
    }
    store_positions(s, &k, i, ids + first);
    store_positions(s, &v, i, ids + first);
    first += blocks_of(s, i);
  }
  free(ids);
  s->args.k_cache = &s->t_k.t;
  s->args.v_cache = &s->t_v.t;
  s->args.block_table = &s->t_table.t;
  tensor_1(&s->t_lens, s->lens, ATTN_DTYPE_INT32, s->num_seqs);
  s->batch.seq_lens = &s->t_lens.t;
}
