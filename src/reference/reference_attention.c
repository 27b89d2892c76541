/* SPDX-License-Identifier: Apache-2.0 */
/* reference_attention.c: one (token, head) row after the other, in double.
 *
 * Each row walks its keys twice, recomputing the scores: first for their maximum, then for the weights. So the working
 * memory does not grow with the length of a sequence. A key that the row does not see is skipped before anything of it
 * is read; its score is never formed, not even to be multiplied by 0.
 *
 * A latent problem is computed in the latent space whatever its form: the query of mha and layer is brought there by
 * W_UK, and their result back by W_UV (reference_latent.c).
 */
#include "reference.h"

#include <math.h>

/* One row: where it is, and the buffers that all rows share in turn. */
typedef struct row {
  const attn_run_view *view;
  int64_t seq;
  int64_t token;
  int64_t head;
  int64_t kv_head;
  int64_t position; /* of the query; may be negative */
  int64_t keys;     /* walked: kv_len, or fewer where the table ends before it */
  int64_t qk_size;  /* elements of q and of a key, as they are multiplied */
  int64_t v_size;   /* elements of a value, as they are summed */
  double *q;        /* [qk size] the query */
  double *key;      /* [qk size] the key at hand */
  double *value;    /* [v size] the value at hand */
  double *sum;      /* [v size] weighted sum of the values */
  double *out;      /* [v_head_size] the result: sum itself, or what W_UV makes of it */
  double *given;    /* [qk_head_size] of a latent query: as it was given */
} row;

static int64_t qk_size_of(const attn_problem *problem) {
  return problem->kv_lora_rank > 0 ? (int64_t)problem->kv_lora_rank + problem->qk_rope_head_dim : problem->qk_head_size;
}

static int64_t v_size_of(const attn_problem *problem) {
  return problem->kv_lora_rank > 0 ? problem->kv_lora_rank : problem->v_head_size;
}

uint64_t attn_reference_attention_bytes(const attn_problem *problem) {
  uint64_t doubles = 2 * ((uint64_t)qk_size_of(problem) + (uint64_t)v_size_of(problem)) +
                     (uint64_t)problem->v_head_size + (uint64_t)problem->qk_head_size;
  return doubles * sizeof(double);
}

/* K (is_v 0) or V (1) of a position into `values`. 0: it cannot be reached and counts as masked. */
static int load_key(const row *r, int64_t k, int is_v, double *values) {
  const attn_run_view *view = r->view;
  if (view->problem->kv_lora_rank > 0) {
    return attn_reference_load_latent(view, r->seq, k, is_v ? r->v_size : r->qk_size, values);
  }
  if (view->problem->kv_source == ATTN_KV_DIRECT) {
    const attn_view *tensor = is_v ? &view->v : &view->k;
    const unsigned char *from = attn_reference_at2(tensor, view->step->kv_start_loc[r->seq] + k, r->kv_head);
    attn_reference_load_row(values, from, tensor->stride[2], tensor->dtype, tensor->shape[2]);
    return 1;
  }
  const attn_view *pool = is_v ? &view->v_cache : &view->k_cache;
  const attn_rows *rows = is_v ? &view->v_rows : &view->k_rows;
  int64_t block_size = view->problem->block_size;
  int64_t block = attn_reference_block(&view->block_table, pool->shape[0], r->seq, k, block_size);
  if (block < 0) {
    return 0;
  }
  attn_row from = attn_row_at(rows, pool, block, k % block_size, r->kv_head);
  attn_reference_load_stored(values, rows, pool->dtype, &from);
  return 1;
}

static double alibi(const row *r, int64_t k) {
  const attn_run_view *view = r->view;
  if (view->problem->alibi == ATTN_ALIBI_NONE) {
    return 0.0;
  }
  double slope = attn_reference_load(attn_reference_at1(&view->alibi_slopes, r->head), ATTN_DTYPE_FLOAT32);
  double distance = (double)(r->position - k);
  if (view->problem->alibi == ATTN_ALIBI_LINEAR) {
    return -slope * distance;
  }
  return distance >= 0.0 ? -slope * sqrt(distance) : 0.0;
}

/* The score of key k. 0: the row does not see it, and nothing of it was read. */
static int score(const row *r, int64_t k, double *s) {
  const attn_problem *problem = r->view->problem;
  double bias = 0.0;
  if (problem->has_bias) {
    bias = attn_reference_load(attn_reference_at3(&r->view->bias, r->token, r->head, k), ATTN_DTYPE_FLOAT32);
    if (isinf(bias) && bias < 0.0) {
      return 0;
    }
  }
  if (!attn_reference_visible(r->view, r->seq, r->position, k) || !load_key(r, k, 0, r->key)) {
    return 0;
  }
  const double *q_row = r->q;
  const double *k_row = r->key;
  double product = 0.0;
  for (int64_t d = 0; d < r->qk_size; d++) {
    product += q_row[d] * k_row[d];
  }
  double value = (double)problem->scale * product;
  if (problem->softcap > 0.0f) {
    value = (double)problem->softcap * tanh(value / (double)problem->softcap);
  }
  *s = value + alibi(r, k) + bias;
  return 1;
}

/* exp(s - max). A score of -inf weighs nothing, also where it is the largest. */
static double weight(double s, double max) {
  return isinf(s) && s < 0.0 ? 0.0 : exp(s - max);
}

static void add_value(const row *r, int64_t k, double w) {
  if (!load_key(r, k, 1, r->value)) {
    return;
  }
  for (int64_t d = 0; d < r->v_size; d++) {
    r->sum[d] += w * r->value[d];
  }
}

static void store_row(const row *r, double denominator, double lse) {
  const attn_run_view *view = r->view;
  const attn_view *out = &view->out;
  for (int64_t d = 0; d < r->v_size; d++) {
    r->sum[d] = denominator == 0.0 ? 0.0 : r->sum[d] / denominator;
  }
  attn_reference_expand_result(view, r->head, r->sum, r->out);
  if (out->dtype == ATTN_DTYPE_FP8_E4M3) {
    attn_reference_store_fp8_row(view, r->token, r->head, r->out);
  } else {
    for (int64_t d = 0; d < view->problem->v_head_size; d++) {
      attn_reference_store(attn_reference_at3(out, r->token, r->head, d), out->dtype, r->out[d]);
    }
  }
  if (view->problem->wants_lse) {
    attn_reference_store(attn_reference_at2(&view->lse, r->token, r->head), ATTN_DTYPE_FLOAT32, lse);
  }
}

/* An fp8 query is its code times the one scale. */
static void load_query(const row *r) {
  const attn_view *q = &r->view->q;
  if (r->view->problem->kv_lora_rank > 0) {
    attn_reference_load_latent_query(r->view, r->token, r->head, r->given, r->q);
    return;
  }
  const unsigned char *from = attn_reference_at2(q, r->token, r->head);
  int64_t size = r->view->problem->qk_head_size;
  if (q->dtype != ATTN_DTYPE_FP8_E4M3) {
    attn_reference_load_row(r->q, from, q->stride[2], q->dtype, size);
    return;
  }
  double scale = attn_reference_load(r->view->q_scale.data, ATTN_DTYPE_FLOAT32);
  attn_reference_load_codes(r->q, from, q->stride[2], ATTN_CODE_E4M3, size);
  for (int64_t d = 0; d < size; d++) {
    r->q[d] *= scale;
  }
}

static void compute_row(const row *r) {
  const attn_run_view *view = r->view;
  const attn_problem *problem = view->problem;
  load_query(r);
  double s = 0.0;
  double max = -INFINITY;
  for (int64_t k = 0; k < r->keys; k++) {
    if (score(r, k, &s) && s > max) {
      max = s;
    }
  }
  double total = 0.0;
  for (int64_t d = 0; d < r->v_size; d++) {
    r->sum[d] = 0.0;
  }
  for (int64_t k = 0; k < r->keys; k++) {
    if (score(r, k, &s)) {
      double w = weight(s, max);
      total += w;
      add_value(r, k, w);
    }
  }
  if (total == 0.0) {
    store_row(r, 0.0, -INFINITY);
    return;
  }
  double denominator = total;
  if (problem->has_sinks) {
    denominator += exp(attn_reference_load(attn_reference_at1(&view->sinks, r->head), ATTN_DTYPE_FLOAT32) - max);
  }
  store_row(r, denominator, max + log(total));
}

/* In unchecked mode a length may lie far beyond the table; positions there count as masked, so the walk ends with it.
   */
static int64_t walked_keys(const attn_run_view *view, int64_t seq) {
  int64_t kv_len = view->step->kv_lens[seq];
  if (view->problem->kv_source == ATTN_KV_DIRECT || view->kv_c.ndim > 0 ||
      kv_len / view->problem->block_size < view->block_table.shape[1]) {
    return kv_len;
  }
  return view->block_table.shape[1] * view->problem->block_size < kv_len
             ? view->block_table.shape[1] * view->problem->block_size
             : kv_len;
}

void attn_reference_attention(const attn_run_view *view, double *buffers) {
  const attn_problem *problem = view->problem;
  const attn_step *step = view->step;
  int64_t group = problem->num_q_heads / problem->num_kv_heads;
  row r = {.view = view, .qk_size = qk_size_of(problem), .v_size = v_size_of(problem)};
  r.q = buffers;
  r.key = r.q + r.qk_size;
  r.value = r.key + r.qk_size;
  r.sum = r.value + r.v_size;
  r.out = r.sum + r.v_size;
  r.given = r.out + problem->v_head_size;
  for (r.seq = 0; r.seq < step->num_seqs; r.seq++) {
    int64_t begin = step->query_start_loc[r.seq];
    int64_t end = step->query_start_loc[r.seq + 1];
    r.keys = walked_keys(view, r.seq);
    for (r.token = begin; r.token < end; r.token++) {
      r.position = step->kv_lens[r.seq] - (end - begin) + (r.token - begin);
      for (r.head = 0; r.head < problem->num_q_heads; r.head++) {
        r.kv_head = r.head / group;
        compute_row(&r);
      }
    }
  }
}
