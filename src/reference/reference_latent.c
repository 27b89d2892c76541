/* SPDX-License-Identifier: Apache-2.0 */
/* reference_latent.c: what a latent problem reads, and its projection, in double.
 *
 *     q~ = W_UK^T q_nope, so that <q~, c> = <q_nope, W_UK c>           out = W_UV (sum_j p_j c_j)
 */
#include "reference.h"

#include "core/latent.h"

void attn_reference_load_rotary(double *values, const attn_rows *rows, attn_dtype dtype, const attn_row *from) {
  attn_row behind = *from;
  if (attn_format_is_mixed(rows->facts)) {
    unsigned char elements[2 * ATTN_ROW_MAX];
    attn_latent_get_rotary(rows, from, elements);
    attn_reference_load_row(values, elements, 2, rows->rotary_dtype, rows->rotary);
    return;
  }
  attn_rows part = *rows;
  part.size = rows->rotary;
  behind.codes += rows->size * from->code_stride;
  attn_reference_load_stored(values, &part, dtype, &behind);
}

/* The latent part of a stored row. */
static void load_latent_part(double *values, const attn_rows *rows, attn_dtype dtype, const attn_row *from) {
  if (rows->facts->scale != ATTN_SCALE_TILE) {
    attn_reference_load_stored(values, rows, dtype, from);
    return;
  }
  float scales[ATTN_TILES];
  attn_latent_tile_scales(from, scales);
  attn_reference_load_codes(values, from->codes, from->code_stride, ATTN_CODE_E4M3, rows->size);
  for (int64_t i = 0; i < rows->size; i++) {
    values[i] *= (double)scales[i / ATTN_TILE];
  }
}

/* The row of a new token that is attended as given. */
static void load_given(const attn_run_view *view, int64_t token, int64_t size, double *values) {
  int64_t rank = view->problem->kv_lora_rank;
  attn_reference_load_row(values, attn_reference_at1(&view->kv_c, token), view->kv_c.stride[1], view->kv_c.dtype, rank);
  if (size > rank) {
    attn_reference_load_row(values + rank, attn_reference_at1(&view->k_pe, token), view->k_pe.stride[1],
                            view->k_pe.dtype, size - rank);
  }
}

int attn_reference_load_latent(const attn_run_view *view, int64_t seq, int64_t k, int64_t size, double *values) {
  int64_t cached = attn_cached_keys(view, seq);
  if (k >= cached) {
    int64_t last = view->step->query_start_loc[seq + 1];
    load_given(view, last - view->step->kv_lens[seq] + k, size, values);
    return 1;
  }
  const attn_view *pool = &view->k_cache;
  int64_t block_size = view->problem->block_size;
  int64_t block = attn_reference_block(&view->block_table, pool->shape[0], seq, k, block_size);
  if (block < 0) {
    return 0;
  }
  attn_row from = attn_row_at(&view->k_rows, pool, block, k % block_size, 0);
  load_latent_part(values, &view->k_rows, pool->dtype, &from);
  if (size > view->k_rows.size) {
    attn_reference_load_rotary(values + view->k_rows.size, &view->k_rows, pool->dtype, &from);
  }
  return 1;
}

void attn_reference_load_latent_query(const attn_run_view *view, int64_t token, int64_t head, double *given,
                                      double *q) {
  const attn_problem *p = view->problem;
  const attn_mla_weights *w = view->weights;
  const unsigned char *from = attn_reference_at2(&view->q, token, head);
  attn_reference_load_row(given, from, view->q.stride[2], view->q.dtype, view->q.shape[2]);
  const double *rotary = given + (w != NULL ? p->qk_nope_head_dim : p->kv_lora_rank);
  for (int64_t i = 0; i < p->kv_lora_rank; i++) {
    q[i] = w != NULL ? 0.0 : given[i];
  }
  for (int64_t n = 0; w != NULL && n < w->nope; n++) {
    const float *row = attn_mla_uk(w, head, n);
    for (int64_t i = 0; i < p->kv_lora_rank; i++) {
      q[i] += given[n] * (double)row[i];
    }
  }
  if (view->q_rope.ndim > 0) {
    attn_reference_load_row(q + p->kv_lora_rank, attn_reference_at2(&view->q_rope, token, head), view->q_rope.stride[2],
                            view->q_rope.dtype, p->qk_rope_head_dim);
    return;
  }
  for (int64_t i = 0; i < p->qk_rope_head_dim; i++) {
    q[p->kv_lora_rank + i] = rotary[i];
  }
}

void attn_reference_expand_result(const attn_run_view *view, int64_t head, const double *sum, double *out) {
  const attn_mla_weights *w = view->weights;
  for (int64_t d = 0; d < view->problem->v_head_size; d++) {
    if (w == NULL) {
      out[d] = sum[d];
      continue;
    }
    const float *row = attn_mla_uv(w, head, d);
    out[d] = 0.0;
    for (int64_t i = 0; i < w->rank; i++) {
      out[d] += (double)row[i] * sum[i];
    }
  }
}
