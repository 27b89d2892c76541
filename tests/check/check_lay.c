/* SPDX-License-Identifier: Apache-2.0 */
/* check_lay.c: a model as tensors. Bytes that the call owns hold the model's numbers, all others poison: block tails,
 * blocks and columns that nobody sees, padding between strides, rows beyond the batch. Blocks are scattered over a
 * larger pool.
 */
#include <string.h>

#include "check_attention.h"
#include "check_float.h"
#include "check_latent.h"
#include "check_lay.h"
#include "check_pool.h"

void check_lay_make(check_lay_state *y, check_tensor *t, attn_dtype dtype, int ndim, const int64_t *shape) {
  int64_t strides[4];
  check_lie lie = {strides, 0, y->before, 0};
  check_strides(&y->c->rng, y->stride_class, ndim, shape, strides);
  if (y->stride_class == CHECK_BYTE_OFFSET) {
    lie.byte_offset = (int32_t)check_between(&y->c->rng, 1, 40);
  }
  if (y->stride_class == CHECK_COMPACT && check_chance(&y->c->rng, 50)) {
    lie.strides = NULL;
  }
  check_tensor_make(y->arena, t, dtype, ndim, shape, &lie, NULL);
  check_fill_poison(t, y->poison);
}

/* A tensor of compact floats; `rows` of shape[0] are given, the rest stays poison. */
void check_lay_floats(check_lay_state *y, check_tensor *t, attn_dtype dtype, int64_t extent, int64_t rows,
                      int64_t heads, int64_t size, const float *values) {
  check_lay_make(y, t, dtype, 3, (const int64_t[]){extent, heads, size});
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t h = 0; h < heads; h++) {
      for (int64_t e = 0; e < size; e++) {
        check_store(check_at(t, i, h, e, 0), dtype, values[(i * heads + h) * size + e]);
      }
    }
  }
}

void check_lay_vector(check_lay_state *y, check_tensor *t, int64_t count, const float *values) {
  check_lay_make(y, t, ATTN_DTYPE_FLOAT32, 1, (const int64_t[]){count});
  for (int64_t i = 0; i < count; i++) {
    check_store(check_at(t, i, 0, 0, 0), ATTN_DTYPE_FLOAT32, values[i]);
  }
}

static void put_int(const check_tensor *t, int64_t i, int64_t j, int64_t k, int32_t value) {
  memcpy(check_at(t, i, j, k, 0), &value, sizeof value);
}

int64_t check_lay_extra(check_lay_state *y) {
  return check_is(y->c, CHECK_TRAILING, 1) ? check_between(&y->c->rng, 1, 3) : 0;
}

static int bias_hides(const check_model *m, int64_t token, int64_t k) {
  for (int32_t h = 0; m->bias != NULL && h < m->bias_heads; h++) {
    if (m->bias[(token * m->bias_heads + h) * m->c->max_kv + k] >= -3.0e38f) {
      return 0;
    }
  }
  return m->bias != NULL;
}

/* Positions that some row sees: its mask shows them, and its bias does not hide them from every head. */
static void find_seen(check_lay_state *y) {
  const check_case *c = y->c;
  uint8_t *seen = check_alloc(y->arena, (size_t)c->keys, 1);
  y->l->seen = seen;
  y->l->needed = seen;
  for (int32_t s = 0; s < c->num_seqs; s++) {
    const check_seq *seq = &c->seqs[s];
    for (int32_t k = 0; k < seq->kv_len; k++) {
      int64_t key = seq->k_start + k;
      for (int32_t i = 0; i < seq->q_len && !seen[key]; i++) {
        if (check_mask_shows(y->m, s, (int64_t)seq->kv_len - seq->q_len + i, k)) {
          seen[key] = !bias_hides(y->m, seq->q_start + i, k);
        }
      }
    }
  }
}

/* fp8 queries: the codes as they are. */
static void make_codes(check_lay_state *y, check_tensor *t, attn_dtype dtype) {
  const check_case *c = y->c;
  check_lay_make(y, t, dtype, 3, (const int64_t[]){c->tokens + check_lay_extra(y), c->q_heads, c->size});
  for (int64_t i = 0; i < c->tokens * c->q_heads * c->size; i++) {
    int64_t row = i / c->size;
    *(uint8_t *)check_at(t, row / c->q_heads, row % c->q_heads, i % c->size, 0) = y->m->q_rows.codes[i];
  }
}

static void lay_queries(check_lay_state *y) {
  const check_case *c = y->c;
  check_laid *l = y->l;
  attn_dtype in_type = (attn_dtype)check_number(&c->choice, CHECK_IN_TYPE);
  attn_dtype out_type = check_out_dtype(c);
  if (in_type == ATTN_DTYPE_FP8_E4M3) {
    make_codes(y, &l->q, in_type);
    check_lay_vector(y, &l->q_scale, 1, y->m->q_rows.statics);
    l->args.q_scale = &l->q_scale.dl;
  } else {
    check_lay_floats(y, &l->q, in_type, c->tokens + check_lay_extra(y), c->tokens, c->q_heads, c->size, y->m->q);
  }
  check_lay_make(y, &l->out, out_type, 3, (const int64_t[]){c->tokens + check_lay_extra(y), c->q_heads, c->v_size});
  if (check_is(c, CHECK_LSE, 1)) {
    check_lay_make(y, &l->lse, ATTN_DTYPE_FLOAT32, 2, (const int64_t[]){c->tokens + check_lay_extra(y), c->q_heads});
    l->args.lse = &l->lse.dl;
  }
  if (check_groups(c) > 0) {
    check_lay_make(y, &l->out_scale, ATTN_DTYPE_FLOAT32, 3,
                   (const int64_t[]){c->tokens + check_lay_extra(y), c->q_heads, check_groups(c)});
    l->args.out_scale = &l->out_scale.dl;
  } else if (out_type == ATTN_DTYPE_FP8_E4M3) {
    check_lay_vector(y, &l->output_scale, 1, &y->m->output_scale);
    l->args.output_scale = &l->output_scale.dl;
  }
  l->args.q = &l->q.dl;
  l->args.out = &l->out.dl;
}

static void lay_direct(check_lay_state *y) {
  const check_case *c = y->c;
  check_laid *l = y->l;
  int64_t row_k = (int64_t)c->kv_heads * c->size;
  int64_t row_v = (int64_t)c->kv_heads * c->v_size;
  check_lay_make(y, &l->k, c->k_type, 3, (const int64_t[]){c->keys + check_lay_extra(y), c->kv_heads, c->size});
  check_lay_make(y, &l->v, c->v_type, 3, (const int64_t[]){c->keys + check_lay_extra(y), c->kv_heads, c->v_size});
  for (int64_t key = 0; key < c->keys; key++) {
    for (int64_t e = 0; l->seen[key] && e < row_k; e++) {
      check_store(check_at(&l->k, key, e / c->size, e % c->size, 0), c->k_type, y->m->k[key * row_k + e]);
    }
    for (int64_t e = 0; l->seen[key] && e < row_v; e++) {
      check_store(check_at(&l->v, key, e / c->v_size, e % c->v_size, 0), c->v_type, y->m->v[key * row_v + e]);
    }
  }
  l->args.k = &l->k.dl;
  l->args.v = &l->v.dl;
}

static int32_t blocks_of(const check_case *c, int32_t seq) {
  return (int32_t)(((int64_t)c->seqs[seq].kv_len + c->block_size - 1) / c->block_size);
}

static int32_t bad_id(check_rng *rng, int64_t num_blocks) {
  const int32_t ids[] = {-1, (int32_t)num_blocks, INT32_MAX, INT32_MIN, (int32_t)num_blocks + 7};
  return ids[check_between(rng, 0, 4)];
}

/* Does any row see a position of this column? */
static int column_seen(const check_lay_state *y, int32_t seq, int32_t column) {
  const check_seq *s = &y->c->seqs[seq];
  int64_t end = ((int64_t)column + 1) * y->c->block_size;
  for (int64_t k = (int64_t)column * y->c->block_size; k < end && k < s->kv_len; k++) {
    if (y->l->needed[s->k_start + k]) {
      return 1;
    }
  }
  return 0;
}

static void mark_unreachable(check_lay_state *y, int32_t seq, int32_t column) {
  const check_seq *s = &y->c->seqs[seq];
  int64_t end = ((int64_t)column + 1) * y->c->block_size;
  for (int64_t k = (int64_t)column * y->c->block_size; k < end && k < s->kv_len; k++) {
    y->l->unreachable[s->k_start + k] = 1;
  }
}

/* Decide which columns own a block (numbered in order here, scattered by shuffle()), and how wide the table is. */
static int64_t choose_columns(check_lay_state *y, int odd_ids, int64_t *width) {
  check_case *c = y->c;
  check_laid *l = y->l;
  for (int32_t s = 0; s < c->num_seqs; s++) {
    l->columns = blocks_of(c, s) > l->columns ? blocks_of(c, s) : l->columns;
  }
  l->block_of = check_alloc(y->arena, (size_t)(c->num_seqs * l->columns), sizeof *l->block_of);
  l->unreachable = check_alloc(y->arena, (size_t)c->keys, 1);
  *width = l->columns;
  if (odd_ids && l->columns > 1 && check_chance(&c->rng, 35)) {
    *width = check_between(&c->rng, 1, l->columns - 1);
  } else if (check_is(c, CHECK_TABLE, 1)) {
    *width += check_between(&c->rng, 1, 4);
  }
  int64_t used = 0;
  int hide = check_chance(&c->rng, 60);
  for (int32_t s = 0; s < c->num_seqs; s++) {
    for (int32_t b = 0; b < l->columns; b++) {
      int owned = b < blocks_of(c, s) && (!hide || column_seen(y, s, b));
      if (b < blocks_of(c, s) && (b >= *width || (odd_ids && check_chance(&c->rng, 15)))) {
        mark_unreachable(y, s, b);
        owned = 0;
      }
      l->block_of[s * l->columns + b] = owned ? used++ : -1;
    }
  }
  return used;
}

static void shuffle(check_lay_state *y, int64_t used) {
  check_laid *l = y->l;
  l->num_blocks = used + check_between(&y->c->rng, used == 0 ? 0 : 1, 5);
  int64_t *order = check_alloc(y->arena, (size_t)l->num_blocks, sizeof *order);
  for (int64_t i = 0; i < l->num_blocks; i++) {
    int64_t j = check_between(&y->c->rng, 0, i);
    order[i] = order[j];
    order[j] = i;
  }
  for (int64_t i = 0; i < y->c->num_seqs * l->columns; i++) {
    l->block_of[i] = l->block_of[i] < 0 ? -1 : order[l->block_of[i]];
  }
}

void check_lay_blocks(check_lay_state *y, int odd_ids, int64_t *width) {
  shuffle(y, choose_columns(y, odd_ids, width));
}

void check_lay_table(check_lay_state *y, int64_t width) {
  check_case *c = y->c;
  check_laid *l = y->l;
  check_lay_make(y, &l->table, ATTN_DTYPE_INT32, 2, (const int64_t[]){c->num_seqs, width});
  for (int32_t s = 0; s < c->num_seqs; s++) {
    for (int64_t b = 0; b < width; b++) {
      int64_t block = b < l->columns ? l->block_of[s * l->columns + b] : -1;
      int random_id = block < 0 && l->num_blocks > 0 && check_chance(&c->rng, 50) &&
                      (b >= blocks_of(c, s) || !column_seen(y, s, (int32_t)b));
      put_int(&l->table, s, b, 0,
              block >= 0  ? (int32_t)block
              : random_id ? (int32_t)check_between(&c->rng, 0, l->num_blocks - 1)
                          : bad_id(&c->rng, l->num_blocks));
    }
  }
  l->args.block_table = &l->table.dl;
}

/* Position `key` of a pool: floats, or codes with their scales. */
static void store_row(const check_case *c, const check_tensor *pool, const check_tensor *scales, const check_rows *rows,
                      int64_t key, int64_t block, int64_t offset, const float *values) {
  for (int64_t h = 0; h < c->kv_heads; h++) {
    int64_t row = key * c->kv_heads + h;
    if (rows->codes != NULL) {
      check_pool_put(c, pool, scales, rows, row, block, offset, h, 0);
      continue;
    }
    for (int64_t e = 0; e < rows->size; e++) {
      check_store(check_pool_at(c, pool, block, offset, h, e), pool->dtype, values[row * rows->size + e]);
    }
  }
}

/* The scales that lie outside of the rows. */
static const DLTensor *lay_scales(check_lay_state *y, const check_rows *rows, check_tensor *scales) {
  if (check_separate(y->c, rows->format)) {
    check_pool_scales(y->arena, y->c, y->l->num_blocks, y->stride_class, scales);
    return &scales->dl;
  }
  return check_static_scales(y->arena, y->c, rows, scales) ? &scales->dl : NULL;
}

static void lay_cache(check_lay_state *y, int pool_class, int odd_ids) {
  const check_case *c = y->c;
  check_laid *l = y->l;
  int64_t width;
  check_lay_blocks(y, odd_ids, &width);
  check_pool_make(y->arena, y->c, l->num_blocks, pool_class, &l->k_cache, &l->v_cache);
  check_fill_poison(&l->k_cache, y->poison);
  check_fill_poison(&l->v_cache, y->poison);
  l->args.k_scale = lay_scales(y, &y->m->k_rows, &l->k_scale);
  l->args.v_scale = lay_scales(y, &y->m->v_rows, &l->v_scale);
  check_lay_table(y, width);
  for (int32_t s = 0; s < c->num_seqs; s++) {
    for (int64_t k = 0; k < c->seqs[s].kv_len; k++) {
      int64_t key = c->seqs[s].k_start + k;
      int64_t block = l->block_of[s * l->columns + k / c->block_size];
      if (l->seen[key] && block >= 0) {
        store_row(c, &l->k_cache, &l->k_scale, &y->m->k_rows, key, block, k % c->block_size, y->m->k);
        store_row(c, &l->v_cache, &l->v_scale, &y->m->v_rows, key, block, k % c->block_size, y->m->v);
      }
    }
  }
  l->args.k_cache = &l->k_cache.dl;
  l->args.v_cache = &l->v_cache.dl;
  y->m->unreachable = l->unreachable;
}

/* Bias by [token, head, key]; where the row does not see the key it holds poison. */
static void lay_bias(check_lay_state *y) {
  const check_case *c = y->c;
  const check_model *m = y->m;
  int64_t keys = c->max_kv + (check_is(c, CHECK_TRAILING, 1) ? check_between(&y->c->rng, 1, 5) : 0);
  check_lay_make(y, &y->l->bias, ATTN_DTYPE_FLOAT32, 3,
                 (const int64_t[]){c->tokens + check_lay_extra(y), m->bias_heads, keys});
  for (int32_t s = 0; s < c->num_seqs; s++) {
    const check_seq *seq = &c->seqs[s];
    for (int64_t i = 0; i < seq->q_len; i++) {
      for (int64_t k = 0; k < seq->kv_len; k++) {
        int64_t token = seq->q_start + i;
        for (int32_t h = 0; check_mask_shows(m, s, seq->kv_len - seq->q_len + i, k) && h < m->bias_heads; h++) {
          check_store(check_at(&y->l->bias, token, h, k, 0), ATTN_DTYPE_FLOAT32,
                      m->bias[(token * m->bias_heads + h) * c->max_kv + k]);
        }
      }
    }
  }
  y->l->args.bias = &y->l->bias.dl;
}

static void lay_extras(check_lay_state *y) {
  const check_case *c = y->c;
  const check_model *m = y->m;
  check_laid *l = y->l;
  if (m->slopes != NULL) {
    check_lay_vector(y, &l->slopes, c->q_heads, m->slopes);
    l->args.alibi_slopes = &l->slopes.dl;
  }
  if (m->sinks != NULL) {
    check_lay_vector(y, &l->sinks, c->q_heads, m->sinks);
    l->args.sinks = &l->sinks.dl;
  }
  if (m->bias != NULL) {
    lay_bias(y);
  }
  if (m->num_ranges > 0) {
    check_lay_make(y, &l->ranges, ATTN_DTYPE_INT32, 3, (const int64_t[]){c->num_seqs, m->num_ranges, 2});
    for (int64_t i = 0; i < c->num_seqs * m->num_ranges * 2; i++) {
      int64_t s = i / (m->num_ranges * 2);
      int64_t r = i / 2 % m->num_ranges;
      put_int(&l->ranges, s, r, i % 2, m->ranges[s][r][i % 2]);
    }
    l->args.prefix_ranges = &l->ranges.dl;
  }
  if (check_is(c, CHECK_CAUSAL, CHECK_CAUSAL_PER_SEQ)) {
    check_lay_make(y, &l->causal, ATTN_DTYPE_INT32, 1, (const int64_t[]){c->num_seqs});
    for (int32_t s = 0; s < c->num_seqs; s++) {
      put_int(&l->causal, s, 0, 0, m->causal[s]);
    }
    l->args.causal_per_seq = &l->causal.dl;
  }
}

static void lay_batch(check_lay_state *y) {
  const check_case *c = y->c;
  check_laid *l = y->l;
  l->batch = (attn_batch)ATTN_BATCH_INIT;
  check_lay_make(y, &l->query_start_loc, ATTN_DTYPE_INT32, 1, (const int64_t[]){c->num_seqs + 1});
  for (int32_t s = 0; s <= c->num_seqs; s++) {
    put_int(&l->query_start_loc, s, 0, 0, (int32_t)(s < c->num_seqs ? c->seqs[s].q_start : c->tokens));
  }
  l->batch.query_start_loc = &l->query_start_loc.dl;
  if (check_paged(c)) {
    check_lay_make(y, &l->seq_lens, ATTN_DTYPE_INT32, 1, (const int64_t[]){c->num_seqs});
    for (int32_t s = 0; s < c->num_seqs; s++) {
      put_int(&l->seq_lens, s, 0, 0, c->seqs[s].kv_len);
    }
    l->batch.seq_lens = &l->seq_lens.dl;
  } else if (c->op == CHECK_CROSS) {
    check_lay_make(y, &l->kv_start_loc, ATTN_DTYPE_INT32, 1, (const int64_t[]){c->num_seqs + 1});
    for (int32_t s = 0; s <= c->num_seqs; s++) {
      put_int(&l->kv_start_loc, s, 0, 0, (int32_t)(s < c->num_seqs ? c->seqs[s].k_start : c->keys));
    }
    l->batch.kv_start_loc = &l->kv_start_loc.dl;
  }
}

static void lay_problem(check_lay_state *y) {
  const check_case *c = y->c;
  const check_model *m = y->m;
  check_laid *l = y->l;
  attn_problem p = ATTN_PROBLEM_INIT;
  p.kv_source = check_paged(c) ? ATTN_KV_CACHE : ATTN_KV_DIRECT;
  p.num_q_heads = c->q_heads;
  if (l->latent == NULL) {
    p.num_kv_heads = c->kv_heads;
    p.qk_head_size = c->size;
    p.v_head_size = c->v_size == c->size && check_chance(&y->c->rng, 50) ? 0 : c->v_size;
  }
  p.q_dtype = l->q.dtype;
  attn_dtype usual = l->q.dtype == ATTN_DTYPE_FP8_E4M3 ? ATTN_DTYPE_BFLOAT16 : l->q.dtype;
  p.out_dtype = l->out.dtype == usual && check_chance(&y->c->rng, 50) ? ATTN_DTYPE_DEFAULT : l->out.dtype;
  p.output_block = check_output_block(c);
  if (l->latent != NULL) {
    check_latent_problem(c, l->latent, &p);
  } else if (check_paged(c)) {
    int automatic = c->k_type == l->q.dtype && c->k_format <= ATTN_FORMAT_BFLOAT16 && check_chance(&y->c->rng, 50);
    p.k_format = automatic ? ATTN_FORMAT_AUTO : c->k_format;
    p.v_format = c->v_format == c->k_format && check_chance(&y->c->rng, 50) ? ATTN_FORMAT_AUTO : c->v_format;
    p.separate_scales =
        check_separate(c, c->k_format) || check_separate(c, c->v_format) ? ATTN_SEPARATE_BOTH : ATTN_SEPARATE_NONE;
    p.layout = (attn_layout)check_number(&c->choice, CHECK_LAYOUT);
    p.block_size = c->block_size;
  } else {
    p.kv_dtype = c->k_type;
  }
  p.scale = m->scale;
  p.softcap = m->softcap;
  p.causal = check_is(c, CHECK_CAUSAL, CHECK_CAUSAL_PER_SEQ) ? check_chance(&y->c->rng, 50) : m->causal[0];
  p.window_left = m->left;
  p.window_right = m->right;
  p.chunk_size = m->chunk;
  p.chunk_lookback = m->lookback;
  p.prefix_clamp = m->clamp;
  p.alibi = (attn_alibi)m->alibi;
  p.has_sinks = m->sinks != NULL;
  p.has_bias = m->bias != NULL;
  p.has_prefix_ranges = m->num_ranges > 0;
  p.has_causal_per_seq = check_is(c, CHECK_CAUSAL, CHECK_CAUSAL_PER_SEQ);
  p.wants_lse = check_is(c, CHECK_LSE, 1);
  p.batch_invariant = check_is(c, CHECK_INVARIANT, 1);
  l->problem = p;
  l->num_splits = check_is(c, CHECK_SPLITS, CHECK_ABSENT) ? 0 : check_number(&c->choice, CHECK_SPLITS);
  l->split_rule = check_is(c, CHECK_SPLIT_RULE, 1) ? ATTN_SPLIT_COMPATIBLE : ATTN_SPLIT_DEFAULT;
  int slack = check_chance(&y->c->rng, 40);
  l->limits = (attn_plan_limits)ATTN_PLAN_LIMITS_INIT;
  l->limits.max_seqs = c->num_seqs + (slack ? 3 : 0);
  l->limits.max_tokens = (c->tokens > 0 ? c->tokens : 1) + (slack ? 5 : 0);
  l->limits.max_kv_len = (c->max_kv > 0 ? c->max_kv : 1) + (slack ? 77 : 0);
}

void check_lay(check_arena *arena, check_case *c, check_model *model, int stride_class, int pool_class, int odd_ids,
               check_latent *latent, check_laid *laid) {
  check_lay_state y = {arena, c, model, laid, CHECK_POISON_NAN, stride_class, check_is(c, CHECK_GUARD, 1)};
  y.poison = check_chance(&c->rng, 60)   ? CHECK_POISON_NAN
             : check_chance(&c->rng, 50) ? CHECK_POISON_INF
                                         : CHECK_POISON_BIG;
  memset(laid, 0, sizeof *laid);
  laid->args = (attn_run_args)ATTN_RUN_INIT;
  laid->unchecked = check_is(c, CHECK_CHECKED, 1);
  laid->args.unchecked = laid->unchecked;
  model->unreachable = NULL;
  find_seen(&y);
  laid->latent = latent;
  if (latent == NULL) {
    lay_queries(&y);
  }
  if (latent != NULL) {
    check_lay_latent(&y, pool_class);
  } else if (check_paged(c)) {
    lay_cache(&y, pool_class, odd_ids);
  } else {
    lay_direct(&y);
  }
  lay_extras(&y);
  lay_batch(&y);
  lay_problem(&y);
  if (latent != NULL) {
    check_latent_finish(latent, laid);
  }
  check_tensor *inputs[] = {
      &laid->q,       &laid->k,       &laid->v,       &laid->k_cache,  &laid->v_cache,      &laid->table,
      &laid->slopes,  &laid->sinks,   &laid->bias,    &laid->ranges,   &laid->causal,       &laid->output_scale,
      &laid->q_scale, &laid->k_scale, &laid->v_scale, &laid->seq_lens, &laid->kv_start_loc, &laid->query_start_loc};
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
    check_snapshot(arena, inputs[i]);
  }
  check_tensor *news[] = {latent == NULL ? NULL : &latent->q_rope, latent == NULL ? NULL : &latent->kv_c,
                          latent == NULL ? NULL : &latent->k_pe, latent == NULL ? NULL : &latent->slots};
  for (size_t i = 0; latent != NULL && i < sizeof news / sizeof *news; i++) {
    check_snapshot(arena, news[i]);
  }
}
