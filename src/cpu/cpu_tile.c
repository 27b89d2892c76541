/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_tile.c: one work item of CPU_ATTN: a row tile over its share of the keys, one key tile at a time:
 *   which keys each row sees (bits) -> K rows to fp32 -> scores -> soft cap, ALiBi, bias -> online softmax -> V rows
 *   to fp32
 *   -> accumulate.
 * Rows of K and V that no row of the tile sees are never read; their place in the V tile is zero.
 */
#include <math.h>
#include <string.h>

#include "core/fault.h"
#include "core/load.h"
#include "cpu/cpu_tile.h"

#define PREFETCH_KEYS 8 /* a multiple of ATTN_CPU_KEY_STEP */
#define COMPATIBLE_TILE                                                                                                \
  16 /* keys that the `compatible` rule's segments are multiples of; of fp8 queries twice as many */

/* Position of the row's query among the keys. */
static int64_t position_of(const attn_cpu_walk *w, int64_t token) {
  if (attn_fault(ATTN_FAULT_CAUSAL_ALIGN)) {
    return token;
  }
  return w->mask.kv_len - w->q_len + token;
}

/* ---- which keys -------------------------------------------------------------------------------------------------- */

/* Bits of the keys [begin, begin + 64) that the interval holds. */
static uint64_t interval_bits(attn_interval keys, int64_t begin) {
  int64_t low = attn_max(keys.begin - begin, 0);
  int64_t high = attn_min(keys.end - begin, ATTN_CPU_KEYS);
  if (high <= low) {
    return 0;
  }
  uint64_t below_high = high == 64 ? ~(uint64_t)0 : ((uint64_t)1 << high) - 1;
  return below_high & ~(((uint64_t)1 << low) - 1);
}

static uint64_t token_bits(const attn_cpu_walk *w, int64_t token, int64_t begin) {
  int64_t q = position_of(w, token);
  uint64_t bits = interval_bits(attn_mask_base(&w->mask, q), begin);
  for (int64_t i = 0; i < w->mask.num_ranges; i++) {
    bits |= interval_bits(attn_mask_prefix(&w->mask, i, q), begin);
  }
  return bits;
}

/* Unchecked mode: bits of the positions whose column exists and whose id lies in the pool, and of those that are given
   rather than cached. */
static uint64_t reachable_bits(const attn_cpu_walk *w, int64_t begin) {
  int64_t block_size = w->job->problem->block_size;
  attn_interval given = {attn_cached_keys(w->job->view, w->tile->seq), w->mask.kv_len};
  int64_t end = attn_min(begin + ATTN_CPU_KEYS, given.begin);
  uint64_t bits = interval_bits(given, begin);
  for (int64_t k = begin; k < end;) {
    attn_interval block = {k, attn_min((k / block_size + 1) * block_size, end)};
    int64_t id = attn_cpu_block_of(w, k / block_size);
    if (id >= 0 && id < w->job->view->k_cache.shape[0]) {
      bits |= interval_bits(block, begin);
    }
    k = block.end;
  }
  return bits;
}

static const unsigned char *bias_row(const attn_cpu_walk *w, int32_t r) {
  const attn_view *bias = &w->job->view->bias;
  int64_t token =
      attn_fault(ATTN_FAULT_BIAS_TOKEN) ? attn_cpu_token_of(w, r) : w->first_token + attn_cpu_token_of(w, r);
  int64_t head = attn_fault(ATTN_FAULT_BIAS_HEAD) ? 0 : attn_cpu_head_of(w, r);
  return bias->data + token * bias->stride[0] + head * bias->stride[1];
}

static float bias_at(const attn_cpu_walk *w, const unsigned char *row, int64_t key) {
  return attn_load_float(row + key * w->job->view->bias.stride[2]);
}

/* Keys that the caller's bias leaves: -inf hides by select. Only keys seen so far are read: others may hold anything.
   */
static uint64_t unhidden_bits(const attn_cpu_walk *w, int32_t r, int64_t begin, uint64_t seen) {
  const unsigned char *row = bias_row(w, r);
  for (int32_t j = 0; j < ATTN_CPU_KEYS; j++) {
    if ((seen >> j & 1u) != 0 && bias_at(w, row, begin + j) == -INFINITY) {
      seen &= ~((uint64_t)1 << j);
    }
  }
  return seen;
}

uint64_t attn_cpu_find_visible(const attn_cpu_walk *w, int64_t begin, attn_interval share) {
  uint64_t allowed = interval_bits(share, begin);
  if (w->job->view->unchecked && w->job->problem->kv_source == ATTN_KV_CACHE) {
    allowed &= reachable_bits(w, begin);
  }
  uint64_t any = 0;
  int64_t token = -1;
  uint64_t bits = 0;
  for (int32_t r = 0; r < w->tile->rows; r++) {
    if (attn_cpu_token_of(w, r) != token) {
      token = attn_cpu_token_of(w, r);
      bits = token_bits(w, token, begin) & allowed;
    }
    w->b.visible[r] = bits;
    if (w->job->problem->has_bias) {
      w->b.visible[r] = unhidden_bits(w, r, begin, bits);
    }
    any |= w->b.visible[r];
  }
  return any;
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

static void add_alibi(const attn_cpu_walk *w, int32_t r, float *s, int64_t begin, int32_t keys) {
  const attn_problem *p = w->job->problem;
  float slope = attn_float_at(&w->job->view->alibi_slopes,
                              attn_fault(ATTN_FAULT_ALIBI_HEAD) ? w->tile->kv_head : attn_cpu_head_of(w, r));
  int64_t distance = position_of(w, attn_cpu_token_of(w, r)) - begin;
  if (attn_fault(ATTN_FAULT_ALIBI_SIGN)) {
    slope = -slope;
  }
  if (attn_fault(ATTN_FAULT_ALIBI_ABSOLUTE)) {
    distance = -begin;
  }
  if (p->alibi == ATTN_ALIBI_LINEAR) {
    w->job->table->alibi_linear(s, slope, (int32_t)distance, keys);
  } else {
    w->job->table->alibi_sqrt(s, slope, (int32_t)distance, keys);
  }
}

static void add_bias(const attn_cpu_walk *w, int32_t r, float *s, int64_t begin, int32_t keys) {
  const unsigned char *row = bias_row(w, r);
  for (int32_t j = 0; j < keys; j++) {
    if ((w->b.visible[r] >> j & 1u) != 0) {
      s[j] += bias_at(w, row, begin + j);
    }
  }
}

static void adjust_scores(const attn_cpu_walk *w, int64_t begin, int32_t keys) {
  const attn_problem *p = w->job->problem;
  for (int32_t r = 0; r < w->tile->rows; r++) {
    float *s = w->b.s + (int64_t)r * ATTN_CPU_KEYS;
    if (p->softcap > 0.0f && !attn_fault(ATTN_FAULT_SOFTCAP_ORDER)) {
      w->job->table->softcap(s, p->softcap, keys);
    }
    if (p->alibi != ATTN_ALIBI_NONE) {
      add_alibi(w, r, s, begin, keys);
    }
    if (p->has_bias) {
      add_bias(w, r, s, begin, keys);
    }
    if (p->softcap > 0.0f && attn_fault(ATTN_FAULT_SOFTCAP_ORDER)) {
      w->job->table->softcap(s, p->softcap, keys);
    }
  }
}

void attn_cpu_finish_scores(const attn_cpu_walk *w, int64_t begin, int32_t keys, float *m, float *l) {
  adjust_scores(w, begin, keys);
  for (int32_t r = 0; r < w->tile->rows; r++) {
    w->job->table->softmax(w->b.s + (int64_t)r * ATTN_CPU_KEYS, w->b.visible[r], keys, &m[r], &l[r], &w->b.alpha[r]);
  }
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

static void clear_state(float *m, float *l, float *acc, int32_t rows, int32_t padded) {
  for (int32_t r = 0; r < rows; r++) {
    m[r] = -INFINITY;
    l[r] = 0.0f;
  }
  memset(acc, 0, (size_t)rows * (size_t)padded * sizeof *acc);
}

static void round_accumulator(const attn_cpu_walk *w, float *acc) {
  int64_t n = (int64_t)w->tile->rows * w->job->shape.v_padded;
  for (int64_t i = 0; i < n; i++) {
    unsigned char half[2];
    uint16_t aligned;
    w->job->table->store[ATTN_CPU_F16]((unsigned char *)&aligned, acc + i, 1.0f, 1);
    memcpy(half, &aligned, sizeof half);
    w->job->table->load[ATTN_CPU_F16](acc + i, (const unsigned char *)&aligned, 0, 1, 1, 1);
  }
}

/* The scales of a tile's keys on the scores, or on the weights. */
static void scale_keys(const attn_cpu_walk *w, int quantised, const float *scales, int32_t keys) {
  for (int32_t r = 0; quantised && r < w->tile->rows; r++) {
    w->job->table->scale_keys(w->b.s + (int64_t)r * ATTN_CPU_KEYS, scales, w->b.visible[r], keys);
  }
}

/* The part of an interval that lies `first` to `end` keys behind its beginning. */
static attn_interval part_of(attn_interval keys, int32_t first, int32_t end) {
  attn_interval part = {keys.begin + first, attn_min(keys.begin + end, keys.end)};
  return part;
}

/* Scores, a few keys at a time, and after each the request for as many rows that are read next: a burst of them would
   have to wait for the memory, as the computation then does. */
static void form_scores(const attn_cpu_walk *w, const attn_cpu_rows *from, attn_interval next, int32_t keys) {
  const attn_cpu_job *job = w->job;
  int32_t padded = job->shape.qk_padded;
  for (int32_t j = 0; j < keys; j += PREFETCH_KEYS) {
    int32_t end = (int32_t)attn_min(j + PREFETCH_KEYS, keys);
    job->table->qk(w->b.s + j, w->b.q, w->b.kv + (int64_t)j * padded, job->problem->scale, w->tile->rows, end - j,
                   padded);
    attn_cpu_prefetch_tile(w, from, part_of(next, j, end));
  }
}

/* Rows of V, likewise with those of the next tile's K. */
static void load_values(const attn_cpu_walk *w, int64_t begin, uint64_t visible, attn_interval next, int32_t keys,
                        float scales[ATTN_CPU_KEYS]) {
  for (int32_t j = 0; j < keys; j += PREFETCH_KEYS) {
    int32_t end = (int32_t)attn_min(j + PREFETCH_KEYS, keys);
    attn_cpu_load_tile(w, &w->v, begin, visible, j, end, scales);
    attn_cpu_prefetch_tile(w, &w->k, part_of(next, j, end));
  }
}

/* Latent rows: read once, for the scores and, from the same tile, for the values. */
static void walk_latent_tile(const attn_cpu_walk *w, int64_t begin, attn_interval share, float *m, float *l,
                             float *acc) {
  const attn_cpu_job *job = w->job;
  const attn_cpu_shape *shape = &job->shape;
  uint64_t any = attn_cpu_find_visible(w, begin, share);
  if (any == 0) {
    return;
  }
  int64_t length = attn_min(attn_max(w->mask.kv_len, share.end) - begin, ATTN_CPU_KEYS);
  int32_t keys = (int32_t)attn_round_up((uint64_t)length, ATTN_CPU_KEY_STEP);
  attn_interval next = {begin + ATTN_CPU_KEYS, attn_min(begin + 2 * ATTN_CPU_KEYS, share.end)};
  attn_cpu_load_latent(w, begin, any, 0, keys, w->b.kv, shape->qk_padded);
  form_scores(w, &w->k, next, keys);
  attn_cpu_finish_scores(w, begin, keys, m, l);
  const float *values = w->b.kv + (attn_fault(ATTN_FAULT_LATENT_COLUMN) ? 1 : 0);
  job->table->pv(acc, w->b.alpha, w->b.s, values, w->tile->rows, keys, shape->v_padded, shape->qk_padded);
}

static void walk_key_tile(const attn_cpu_walk *w, int64_t begin, attn_interval share, float *m, float *l, float *acc) {
  const attn_cpu_job *job = w->job;
  const attn_problem *p = job->problem;
  const attn_run_view *view = job->view;
  if (p->kv_lora_rank > 0) {
    walk_latent_tile(w, begin, share, m, l, acc);
    return;
  }
  uint64_t any = attn_cpu_find_visible(w, begin, share);
  if (any == 0) {
    return;
  }
  int64_t length = attn_min(attn_max(w->mask.kv_len, share.end) - begin, ATTN_CPU_KEYS);
  int32_t keys = (int32_t)attn_round_up((uint64_t)length, ATTN_CPU_KEY_STEP);
  attn_interval here = {begin, attn_min(begin + ATTN_CPU_KEYS, share.end)};
  attn_interval next = {here.end, attn_min(here.end + ATTN_CPU_KEYS, share.end)};
  float scales[ATTN_CPU_KEYS];
  attn_cpu_load_tile(w, &w->k, begin, any, 0, keys, scales);
  form_scores(w, &w->v, here, keys);
  scale_keys(w, w->k.quantised, scales, keys);
  attn_cpu_finish_scores(w, begin, keys, m, l);
  if (attn_fault(ATTN_FAULT_MASKED_V) && view->step->kv_start_loc == NULL) {
    any = ~(uint64_t)0 >> (64 - attn_min(64, attn_ceil_div(begin + length, p->block_size) * p->block_size - begin));
  }
  load_values(w, begin, any, next, keys, scales);
  scale_keys(w, w->v.quantised, scales, keys);
  job->table->pv(acc, w->b.alpha, w->b.s, w->b.kv, w->tile->rows, keys, job->shape.v_padded, job->shape.v_padded);
  if (attn_fault(ATTN_FAULT_FP16_ACCUMULATE)) {
    round_accumulator(w, acc);
  }
}

/* All key tiles that meet `share`. */
static void walk_keys(const attn_cpu_walk *w, attn_interval share, float *m, float *l, float *acc) {
  clear_state(m, l, acc, w->tile->rows, w->job->shape.v_padded);
  for (int64_t begin = share.begin / ATTN_CPU_KEYS * ATTN_CPU_KEYS; begin < share.end; begin += ATTN_CPU_KEYS) {
    walk_key_tile(w, begin, share, m, l, acc);
  }
}

/* Chunk c of the keys, at its fixed place. */
static attn_interval chunk_keys(const attn_cpu_walk *w, int64_t c) {
  attn_interval keys = {c * ATTN_CPU_CHUNK, (c + 1) * ATTN_CPU_CHUNK};
  if (attn_fault(ATTN_FAULT_INVARIANCE)) {
    int64_t move = w->job->view->step->num_seqs;
    keys.begin += c == 1 ? move : 0;
    keys.end += c == 0 ? move : 0;
  }
  return keys;
}

static attn_interval meet(attn_interval a, attn_interval b) {
  attn_interval both = {attn_max(a.begin, b.begin), attn_min(a.end, b.end)};
  return both;
}

static void fold_rows(const attn_cpu_walk *w) {
  int32_t padded = w->job->shape.v_padded;
  for (int32_t r = 0; r < w->tile->rows; r++) {
    w->job->table->fold(&w->b.m[r], &w->b.l[r], w->b.acc + (int64_t)r * padded, w->b.chunk_m[r], w->b.chunk_l[r],
                        w->b.chunk_acc + (int64_t)r * padded, padded);
  }
}

/* Batch-invariant, uncut: the chunks one after the other, folded as the merge of a cut row folds them. */
static void walk_chunks(const attn_cpu_walk *w, attn_interval hull) {
  clear_state(w->b.m, w->b.l, w->b.acc, w->tile->rows, w->job->shape.v_padded);
  if (hull.end <= hull.begin) {
    return;
  }
  for (int64_t c = hull.begin / ATTN_CPU_CHUNK; c < attn_ceil_div(hull.end, ATTN_CPU_CHUNK); c++) {
    walk_keys(w, meet(hull, chunk_keys(w, c)), w->b.chunk_m, w->b.chunk_l, w->b.chunk_acc);
    fold_rows(w);
  }
}

/* Keys of one piece of the `compatible` rule, which knows no masks: pieces may lie outside of the hull. */
static int64_t compatible_keys(const attn_cpu_walk *w, int32_t pieces) {
  if (w->job->problem->kv_lora_rank > 0) {
    return attn_ceil_div(w->mask.kv_len, pieces);
  }
  int64_t tile = w->job->problem->q_dtype == ATTN_DTYPE_FP8_E4M3 ? 2 * COMPATIBLE_TILE : COMPATIBLE_TILE;
  return attn_ceil_div(w->mask.kv_len, pieces * tile) * tile;
}

/* The keys of one piece: a chunk, or a share of the hull's key tiles. */
static attn_interval piece_keys(const attn_cpu_walk *w, const attn_cpu_seq *seq, attn_interval hull) {
  attn_interval keys = {0, 0};
  if (hull.end <= hull.begin) {
    return keys;
  }
  if (w->job->problem->batch_invariant) {
    return meet(hull, chunk_keys(w, (int64_t)seq->first_chunk + w->tile->piece));
  }
  if (w->job->plan->split_rule == ATTN_SPLIT_COMPATIBLE && w->job->plan->num_splits == 0) {
    int64_t share = compatible_keys(w, seq->pieces);
    keys.begin = share * w->tile->piece;
    keys.end = share * (w->tile->piece + 1);
    return meet(hull, keys);
  }
  int64_t first = hull.begin / ATTN_CPU_KEYS;
  int64_t tiles = attn_ceil_div(hull.end, ATTN_CPU_KEYS) - first;
  keys.begin = (first + tiles * w->tile->piece / seq->pieces) * ATTN_CPU_KEYS;
  keys.end = (first + tiles * (w->tile->piece + 1) / seq->pieces) * ATTN_CPU_KEYS;
  if (attn_fault(ATTN_FAULT_SPLIT_TWICE) && w->tile->piece > 0 && keys.end > keys.begin) {
    keys.begin--;
  }
  return meet(hull, keys);
}

static void store_slots(const attn_cpu_walk *w) {
  const attn_cpu_scratch *scratch = &w->job->scratch;
  size_t padded = (size_t)w->job->shape.v_padded;
  for (int32_t r = 0; r < w->tile->rows; r++) {
    int64_t slot = w->tile->first_slot + r;
    if (attn_fault(ATTN_FAULT_SPLIT_EMPTY) && w->b.l[r] == 0.0f) {
      continue;
    }
    scratch->slot_m[slot] = w->b.m[r];
    scratch->slot_l[slot] = w->b.l[r];
    memcpy(scratch->slot_acc + (size_t)slot * padded, w->b.acc + (size_t)r * padded, padded * sizeof(float));
  }
}

/* One past the last position that the table can name: unchecked lengths may lie far beyond it. */
static int64_t table_end(const attn_cpu_walk *w) {
  const attn_view *table = &w->job->view->block_table;
  int64_t block_size = w->job->problem->block_size;
  if (table->ndim == 0 || w->job->view->kv_c.ndim > 0 || table->shape[1] > w->mask.kv_len / block_size) {
    return w->mask.kv_len + 1; /* + 1: a planted fault may look one key too far */
  }
  return table->shape[1] * block_size;
}

void attn_cpu_start_walk(attn_cpu_walk *w, const attn_cpu_job *job, const attn_cpu_tile *tile, int32_t group) {
  const attn_step *step = job->view->step;
  w->job = job;
  w->tile = tile;
  w->mask = attn_mask_of(job->view, tile->seq);
  w->first_token = step->query_start_loc[tile->seq];
  w->q_len = step->query_start_loc[tile->seq + 1] - w->first_token;
  w->group = group;
}

attn_interval attn_cpu_hull(const attn_cpu_walk *w) {
  attn_interval hull = attn_mask_hull(&w->mask, position_of(w, attn_cpu_token_of(w, 0)),
                                      position_of(w, attn_cpu_token_of(w, w->tile->rows - 1)) + 1);
  hull.begin = attn_max(hull.begin, 0);
  hull.end = attn_min(hull.end, table_end(w));
  return hull;
}

static void find_rows(attn_cpu_walk *w) {
  const attn_cpu_job *job = w->job;
  const attn_problem *p = job->problem;
  const attn_run_view *view = job->view;
  w->k = attn_cpu_rows_of(&view->k, &view->k_cache, &view->k_rows, p->qk_head_size, job->shape.qk_padded);
  if (p->kv_lora_rank > 0) {
    attn_cpu_load_latent_queries(w);
    return;
  }
  w->v = attn_cpu_rows_of(&view->v, &view->v_cache, &view->v_rows, p->v_head_size, job->shape.v_padded);
  attn_cpu_load_queries(w);
}

void attn_cpu_run_item(const attn_cpu_job *job, int64_t item, size_t thread) {
  attn_cpu_tile tile = attn_cpu_find_tile(job, item, 0);
  attn_cpu_walk w;
  memset(&w, 0, sizeof w);
  w.b = attn_cpu_buffers_at(&job->shape, &job->scratch, thread);
  attn_cpu_start_walk(&w, job, &tile, job->shape.group);
  find_rows(&w);
  const attn_cpu_seq *share = &job->scratch.seqs[tile.share];
  attn_interval hull = attn_cpu_hull(&w);
  if (share->pieces > 1) {
    walk_keys(&w, piece_keys(&w, share, hull), w.b.m, w.b.l, w.b.acc);
    store_slots(&w);
    return;
  }
  if (job->problem->batch_invariant) {
    walk_chunks(&w, hull);
  } else {
    walk_keys(&w, hull, w.b.m, w.b.l, w.b.acc);
  }
  attn_cpu_finish_rows(job, &tile, w.b.m, w.b.l, w.b.acc);
}
