/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_keys.c: what a walk reads: the rows of q of its tile, and the rows of K and V of one key tile, as fp32. Codes of
 * a quantised cache are decoded here without their scales, which the walk applies to scores and weights. */
#include <string.h>

#include "core/fault.h"
#include "core/load.h"
#include "core/quantise.h"
#include "core/rotation.h"
#include "cpu/cpu_tile.h"

#if defined(__GNUC__)
#define ATTN_PREFETCH(address) __builtin_prefetch(address, 0, 2)
#else
#define ATTN_PREFETCH(address) ((void)(address))
#endif

/* Bytes of a row of adjacent elements; 0, nothing to prefetch, where they lie apart. */
static int64_t adjacent_bytes(const attn_view *view) {
  int32_t last = view->ndim - 1;
  int64_t element = (int64_t)attn_dtype_bytes(view->dtype);
  return view->stride[last] == element ? view->shape[last] * element : 0;
}

attn_cpu_rows attn_cpu_rows_of(const attn_view *direct, const attn_view *cache, const attn_rows *rows, int32_t size,
                               int32_t padded) {
  attn_cpu_rows of;
  of.direct = direct;
  of.cache = cache;
  of.rows = rows;
  of.quantised = direct->ndim == 0 && rows->facts->scale != ATTN_SCALE_NONE;
  of.size = size;
  of.padded = padded;
  of.adjacent_bytes = adjacent_bytes(direct->ndim > 0 ? direct : cache);
  return of;
}

/* ---- q ----------------------------------------------------------------------------------------------------------- */

/* What the planted faults of rotated queries change, before and after the rotation. */
static void spoil_query(float *row, int32_t size, int before) {
  int64_t largest = attn_rotation_block(size, 0);
  for (int64_t begin = 0; begin < size;) {
    int64_t n = attn_rotation_block(size, begin);
    for (int64_t i = begin; i < begin + n; i++) {
      if (before && attn_fault(ATTN_FAULT_SIGN_RESTART) && attn_rotation_sign(i) != attn_rotation_sign(i - begin)) {
        row[i] = -row[i];
      }
      if (!before && attn_fault(ATTN_FAULT_BLOCK_DIVISOR)) {
        row[i] *= (float)n / (float)largest;
      }
      if (!before && attn_fault(ATTN_FAULT_BLOCK_FACTOR)) {
        row[i] *= attn_rotation_factor(size, n);
      }
    }
    begin += n;
  }
}

static void rotate_query(float *row, int32_t size) {
  spoil_query(row, size, 1);
  attn_rotation_query(row, size);
  spoil_query(row, size, 0);
}

static void scale_query(const attn_cpu_walk *w, float *row) {
  float scale = attn_fault(ATTN_FAULT_Q_SCALE) ? 1.0f : attn_float_at(&w->job->view->q_scale, 0);
  for (int32_t i = 0; i < w->k.size; i++) {
    row[i] *= scale;
  }
}

void attn_cpu_load_queries(const attn_cpu_walk *w) {
  const attn_view *q = &w->job->view->q;
  int rotated = w->k.quantised && w->k.rows->facts->rotated;
  for (int32_t r = 0; r < w->tile->rows; r++) {
    const unsigned char *row = q->data + (w->first_token + attn_cpu_token_of(w, r)) * q->stride[0] +
                               (int64_t)attn_cpu_head_of(w, r) * q->stride[1];
    float *dst = w->b.q + (int64_t)r * w->k.padded;
    if (q->dtype == ATTN_DTYPE_FP8_E4M3) {
      attn_cpu_decode_rows(w->job->table, ATTN_CODE_E4M3, dst, row, 0, q->stride[2], NULL, 1, w->k.size, w->k.padded);
      scale_query(w, dst);
    } else {
      attn_cpu_load_rows(w->job->table, q->dtype, dst, row, 0, q->stride[2], 1, w->k.size, w->k.padded);
    }
    if (rotated) {
      rotate_query(dst, w->k.size);
    }
    if (attn_fault(ATTN_FAULT_QK_TAIL) && w->k.size % 2 == 1) {
      dst[w->k.size - 1] = 0.0f;
    }
  }
}

/* ---- K and V of a key tile --------------------------------------------------------------------------------------- */

int64_t attn_cpu_block_of(const attn_cpu_walk *w, int64_t column) {
  const attn_view *table = &w->job->view->block_table;
  if (column >= table->shape[1]) {
    return -1;
  }
  if (attn_fault(ATTN_FAULT_BLOCK_NEIGHBOUR) && column > 0 &&
      column == attn_ceil_div(w->mask.kv_len, w->job->problem->block_size) - 1) {
    column--;
  }
  return attn_load_int32(table->data + w->tile->seq * table->stride[0] + column * table->stride[1]);
}

attn_cpu_run attn_cpu_run_at(const attn_cpu_walk *w, const attn_cpu_rows *from, int64_t k) {
  const attn_run_view *view = w->job->view;
  const attn_view *direct = from->direct;
  const attn_view *cache = from->cache;
  attn_cpu_run at;
  at.head = w->tile->kv_head;
  if (attn_fault(ATTN_FAULT_KV_HEAD)) {
    at.head = at.head * w->group % w->job->problem->num_kv_heads;
  }
  if (view->step->kv_start_loc != NULL) {
    at.block = at.offset = 0;
    at.stride = direct->stride[0];
    at.element_stride = direct->stride[2];
    at.count = w->mask.kv_len - k;
    at.data =
        direct->data + (view->step->kv_start_loc[w->tile->seq] + k) * direct->stride[0] + at.head * direct->stride[1];
    return at;
  }
  int64_t block_size = cache->shape[1];
  int64_t column = k / block_size;
  at.offset = k - column * block_size;
  if (attn_fault(ATTN_FAULT_BLOCK_ROUNDED)) {
    at.offset = k & (block_size - 1);
  }
  at.stride = cache->stride[1];
  at.element_stride = cache->stride[3];
  at.count = block_size - at.offset;
  at.block = attn_cpu_block_of(w, column);
  int64_t base = at.block * cache->stride[0];
  if (attn_fault(ATTN_FAULT_OFFSET_32)) {
    base = (int64_t)(uint32_t)base;
  }
  at.data = cache->data + base + at.offset * cache->stride[1] + at.head * cache->stride[2];
  return at;
}

/* The row whose scale a planted fault takes instead. */
static attn_row scale_row(const attn_cpu_walk *w, const attn_cpu_rows *from, const attn_cpu_run *at, int32_t i) {
  int64_t offset = attn_fault(ATTN_FAULT_SCALE_SLOT) ? 0 : at->offset + i;
  int64_t head = attn_fault(ATTN_FAULT_SCALE_HEAD) ? 0 : at->head;
  attn_row row = attn_row_at(from->rows, from->cache, at->block, offset, head);
  if (attn_fault(ATTN_FAULT_SCALE_K_ON_V) && w->k.quantised && w->k.rows->facts->scale == from->rows->facts->scale) {
    row = attn_row_at(w->k.rows, w->k.cache, at->block, offset, head);
  }
  if (attn_fault(ATTN_FAULT_SCALE_UNALIGNED) && from->rows->facts->scale == ATTN_SCALE_ROW && !from->rows->separate) {
    row.scale = row.codes + attn_format_code_bytes(from->rows->facts, from->size) * row.code_stride;
  }
  return row;
}

/* The scales and zero points of the first `rows` of a run. */
static void load_scales(const attn_cpu_walk *w, const attn_cpu_rows *from, const attn_cpu_run *at, int32_t rows,
                        float *scales, float *zero_points) {
  for (int32_t i = 0; i < rows; i++) {
    attn_row row = scale_row(w, from, at, i);
    int32_t zero_point;
    scales[i] = attn_row_scale(from->rows, &row, &zero_point);
    zero_points[i] = (float)zero_point;
  }
}

static void load_run(const attn_cpu_walk *w, const attn_cpu_rows *from, const attn_cpu_run *at, int32_t rows,
                     float *dst, float *scales) {
  const attn_cpu_table *table = w->job->table;
  if (!from->quantised) {
    attn_dtype dtype = from->direct->ndim > 0 ? from->direct->dtype : from->cache->dtype;
    attn_cpu_load_rows(table, dtype, dst, at->data, at->stride, at->element_stride, rows, from->size, from->padded);
    return;
  }
  float zero_points[ATTN_CPU_KEYS];
  load_scales(w, from, at, rows, scales, zero_points);
  attn_cpu_decode_rows(table, from->rows->facts->code, dst, at->data, at->stride, at->element_stride, zero_points, rows,
                       from->size, from->padded);
}

void attn_cpu_load_tile(const attn_cpu_walk *w, const attn_cpu_rows *from, int64_t begin, uint64_t visible,
                        int32_t first, int32_t end, float scales[ATTN_CPU_KEYS]) {
  for (int32_t j = first; j < end;) {
    float *dst = w->b.kv + (int64_t)j * from->padded;
    if ((visible >> j & 1u) == 0) {
      memset(dst, 0, (size_t)from->padded * sizeof *dst);
      scales[j] = 0.0f;
      j++;
      continue;
    }
    attn_cpu_run at = attn_cpu_run_at(w, from, begin + j);
    int32_t rows = 1;
    while (j + rows < end && rows < at.count && (visible >> (j + rows) & 1u) != 0) {
      rows++;
    }
    load_run(w, from, &at, rows, dst, scales + j);
    j += rows;
  }
}

void attn_cpu_prefetch_tile(const attn_cpu_walk *w, const attn_cpu_rows *from, attn_interval keys) {
  for (int64_t k = keys.begin; from->adjacent_bytes > 0 && k < keys.end;) {
    if (from->direct->ndim == 0) {
      int64_t id = attn_cpu_block_of(w, k / from->cache->shape[1]);
      if (id < 0 || id >= from->cache->shape[0]) {
        return; /* a column that nobody sees may hold anything */
      }
    }
    attn_cpu_run at = attn_cpu_run_at(w, from, k);
    const unsigned char *src = at.data;
    int64_t end = attn_min(k + at.count, keys.end);
    for (; k < end; k++, src += at.stride) {
      for (int64_t line = 0; line < from->adjacent_bytes; line += 64) {
        ATTN_PREFETCH(src + line);
      }
    }
  }
}
