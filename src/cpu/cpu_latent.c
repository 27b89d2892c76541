/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_latent.c: what a latent walk reads: rows of the cache, or of new tokens as they were given, to fp32 with their
   scales applied (a tile serves many rows of q), and rows of q. */
#include <string.h>

#include "core/fault.h"
#include "core/latent.h"
#include "core/quantise.h"
#include "core/rotation.h"
#include "cpu/cpu_tile.h"

/* The rotary elements of one mixed row. */
static void load_rotary(const attn_cpu_walk *w, const attn_row *from, float *dst) {
  const attn_rows *rows = w->k.rows;
  _Alignas(8) unsigned char elements[2 * ATTN_ROW_MAX];
  attn_dtype dtype = rows->rotary_dtype;
  if (attn_fault(ATTN_FAULT_ROTARY_TYPE)) {
    dtype = dtype == ATTN_DTYPE_FLOAT16 ? ATTN_DTYPE_BFLOAT16 : ATTN_DTYPE_FLOAT16;
  }
  attn_latent_get_rotary(rows, from, elements);
  if (rows->rotary > 0) {
    attn_cpu_load_rows(w->job->table, dtype, dst, elements, 0, 2, 1, (int32_t)rows->rotary, (int32_t)rows->rotary);
  }
}

static void scale_row(float *row, int64_t size, float scale) {
  for (int64_t i = 0; i < size; i++) {
    row[i] *= scale;
  }
}

/* Codes of one row to values; `scale` is that of the whole row. */
static void finish_row(const attn_cpu_walk *w, const attn_row *from, float scale, float *dst) {
  const attn_rows *rows = w->k.rows;
  if (rows->facts->scale == ATTN_SCALE_STATIC) {
    scale_row(dst, rows->size + rows->rotary, scale);
    return;
  }
  if (rows->facts->scale == ATTN_SCALE_TILE) {
    float scales[ATTN_TILES];
    attn_latent_tile_scales(from, scales);
    for (int t = 0; t < ATTN_TILES; t++) {
      scale_row(dst + (int64_t)t * ATTN_TILE, ATTN_TILE,
                scales[attn_fault(ATTN_FAULT_TILE_SCALE) ? (t + 1) % ATTN_TILES : t]);
    }
  } else {
    scale_row(dst, rows->size, scale);
  }
  load_rotary(w, from, dst + rows->size);
  if (attn_fault(ATTN_FAULT_ROTARY_SCALED) && rows->facts->scale == ATTN_SCALE_ROW) {
    scale_row(dst + rows->size, rows->rotary, scale);
  }
}

/* `count` rows of the cache that lie one after the other. */
static void load_cached(const attn_cpu_walk *w, const attn_cpu_run *at, int32_t count, float *dst, int32_t stride) {
  const attn_rows *rows = w->k.rows;
  const attn_cpu_table *table = w->job->table;
  int32_t all = (int32_t)(rows->size + rows->rotary);
  if (rows->facts->scale == ATTN_SCALE_NONE) {
    attn_cpu_load_rows(table, w->k.cache->dtype, dst, at->data, at->stride, at->element_stride, count, all, stride);
    return;
  }
  int32_t size = attn_format_is_mixed(rows->facts) ? (int32_t)rows->size : all;
  float zero_points[ATTN_CPU_KEYS] = {0};
  float scales[ATTN_CPU_KEYS] = {0};
  for (int32_t i = 0; i < count; i++) {
    int32_t zero_point;
    attn_row from = attn_row_at(rows, w->k.cache, at->block, at->offset + i, 0);
    scales[i] = attn_row_scale(rows, &from, &zero_point);
    zero_points[i] = (float)zero_point;
  }
  attn_cpu_decode_rows(table, rows->facts->code, dst, at->data, at->stride, at->element_stride, zero_points, count,
                       size, stride);
  for (int32_t i = 0; i < count; i++) {
    attn_row from = attn_row_at(rows, w->k.cache, at->block, at->offset + i, 0);
    finish_row(w, &from, scales[i], dst + (int64_t)i * stride);
  }
}

/* The row of a new token that is not written: position k of the sequence. */
static void load_given(const attn_cpu_walk *w, int64_t k, float *dst, int32_t stride) {
  const attn_run_view *view = w->job->view;
  const attn_cpu_table *table = w->job->table;
  const attn_view *latent = &view->kv_c;
  const attn_view *rotary = &view->k_pe;
  int64_t token = w->first_token + w->q_len - w->mask.kv_len + k;
  if (attn_fault(ATTN_FAULT_GIVEN_ROW) && token > 0) {
    token--;
  }
  attn_cpu_load_rows(table, latent->dtype, dst, latent->data + token * latent->stride[0], 0, latent->stride[1], 1,
                     (int32_t)latent->shape[1], stride);
  if (rotary->shape[1] > 0) {
    attn_cpu_load_rows(table, rotary->dtype, dst + latent->shape[1], rotary->data + token * rotary->stride[0], 0,
                       rotary->stride[1], 1, (int32_t)rotary->shape[1], (int32_t)rotary->shape[1]);
  }
}

void attn_cpu_load_latent(const attn_cpu_walk *w, int64_t begin, uint64_t visible, int32_t first, int32_t end,
                          float *dst, int32_t stride) {
  int64_t cached = attn_cached_keys(w->job->view, w->tile->seq);
  for (int32_t j = first; j < end;) {
    float *row = dst + (int64_t)(j - first) * stride;
    if ((visible >> j & 1u) == 0) {
      memset(row, 0, (size_t)stride * sizeof *row);
      j++;
      continue;
    }
    if (begin + j >= cached) {
      load_given(w, begin + j, row, stride);
      j++;
      continue;
    }
    attn_cpu_run at = attn_cpu_run_at(w, &w->k, begin + j);
    int64_t most = attn_min(at.count, cached - begin - j);
    int32_t count = 1;
    while (j + count < end && count < most && (visible >> (j + count) & 1u) != 0) {
      count++;
    }
    load_cached(w, &at, count, row, stride);
    j += count;
  }
}

void attn_cpu_load_latent_queries(const attn_cpu_walk *w) {
  const attn_run_view *view = w->job->view;
  const attn_cpu_table *table = w->job->table;
  const attn_problem *p = w->job->problem;
  for (int32_t r = 0; r < w->tile->rows; r++) {
    float *dst = w->b.q + (int64_t)r * w->k.padded;
    int64_t token = w->first_token + attn_cpu_token_of(w, r) - w->job->token_base;
    int64_t head = attn_cpu_head_of(w, r);
    const attn_view *q = &view->q;
    attn_cpu_load_rows(table, q->dtype, dst, q->data + token * q->stride[0] + head * q->stride[1], 0, q->stride[2], 1,
                       (int32_t)q->shape[2], w->k.padded);
    if (view->q_rope.ndim > 0 && p->qk_rope_head_dim > 0) {
      const attn_view *rope = &view->q_rope;
      if (attn_fault(ATTN_FAULT_ROPE_HEAD)) {
        head = 0;
      }
      attn_cpu_load_rows(table, rope->dtype, dst + p->kv_lora_rank,
                         rope->data + token * rope->stride[0] + head * rope->stride[1], 0, rope->stride[2], 1,
                         p->qk_rope_head_dim, p->qk_rope_head_dim);
    }
    if (w->k.rows->facts->rotated) {
      attn_rotation_query(dst, p->kv_lora_rank);
    }
    for (int32_t i = p->kv_lora_rank; attn_fault(ATTN_FAULT_ROTARY_DROPPED) && i < w->k.padded; i++) {
      dst[i] = 0.0f;
    }
  }
}
