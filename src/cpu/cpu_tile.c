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

#if defined(__GNUC__)
#define ATTN_PREFETCH(address) __builtin_prefetch(address, 0, 2)
#else
#define ATTN_PREFETCH(address) ((void)(address))
#endif

/* The state of one walk; everything below works on it. */
typedef struct walk {
  const attn_cpu_job *job;
  const attn_cpu_tile *tile;
  attn_cpu_buffers b;
  attn_mask mask;
  int64_t q_len;
  int64_t first_token; /* batch token of the sequence's first row */
  int32_t group;
  int64_t k_row_bytes; /* of one head, for prefetching */
  int64_t v_row_bytes;
} walk;

static int64_t token_of(const walk *w, int32_t r) {
  return (w->tile->first_row + r) / w->group;
}

static int32_t head_of(const walk *w, int32_t r) {
  return w->tile->kv_head * w->group + (int32_t)((w->tile->first_row + r) % w->group);
}

/* Position of the row's query among the keys. */
static int64_t position_of(const walk *w, int64_t token) {
  if (attn_fault(ATTN_FAULT_CAUSAL_ALIGN)) {
    return token;
  }
  return w->mask.kv_len - w->q_len + token;
}

static void load_queries(const walk *w) {
  const attn_view *q = &w->job->view->q;
  const attn_problem *p = &w->job->plan->problem;
  for (int32_t r = 0; r < w->tile->rows; r++) {
    const unsigned char *row =
        q->data + (w->first_token + token_of(w, r)) * q->stride[0] + (int64_t)head_of(w, r) * q->stride[1];
    float *dst = w->b.q + (int64_t)r * w->job->shape.qk_padded;
    attn_cpu_load_rows(w->job->table, q->dtype, dst, row, 0, q->stride[2], 1, p->qk_head_size, w->job->shape.qk_padded);
    if (attn_fault(ATTN_FAULT_QK_TAIL) && p->qk_head_size % 2 == 1) {
      dst[p->qk_head_size - 1] = 0.0f;
    }
  }
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

static uint64_t token_bits(const walk *w, int64_t token, int64_t begin) {
  int64_t q = position_of(w, token);
  uint64_t bits = interval_bits(attn_mask_base(&w->mask, q), begin);
  for (int64_t i = 0; i < w->mask.num_ranges; i++) {
    bits |= interval_bits(attn_mask_prefix(&w->mask, i, q), begin);
  }
  return bits;
}

/* The block id of a column; -1 where the table has no such column. */
static int64_t block_of(const walk *w, int64_t column) {
  const attn_view *table = &w->job->view->block_table;
  if (column >= table->shape[1]) {
    return -1;
  }
  if (attn_fault(ATTN_FAULT_BLOCK_NEIGHBOUR) && column > 0 &&
      column == attn_ceil_div(w->mask.kv_len, w->job->plan->problem.block_size) - 1) {
    column--;
  }
  return attn_load_int32(table->data + w->tile->seq * table->stride[0] + column * table->stride[1]);
}

/* Unchecked mode: bits of the positions whose column exists and whose id lies in the pool. */
static uint64_t reachable_bits(const walk *w, int64_t begin) {
  int64_t block_size = w->job->plan->problem.block_size;
  int64_t end = attn_min(begin + ATTN_CPU_KEYS, w->mask.kv_len);
  uint64_t bits = 0;
  for (int64_t k = begin; k < end;) {
    attn_interval block = {k, attn_min((k / block_size + 1) * block_size, end)};
    int64_t id = block_of(w, k / block_size);
    if (id >= 0 && id < w->job->view->k_cache.shape[0]) {
      bits |= interval_bits(block, begin);
    }
    k = block.end;
  }
  return bits;
}

static const unsigned char *bias_row(const walk *w, int32_t r) {
  const attn_view *bias = &w->job->view->bias;
  int64_t token = attn_fault(ATTN_FAULT_BIAS_TOKEN) ? token_of(w, r) : w->first_token + token_of(w, r);
  int64_t head = attn_fault(ATTN_FAULT_BIAS_HEAD) ? 0 : head_of(w, r);
  return bias->data + token * bias->stride[0] + head * bias->stride[1];
}

static float bias_at(const walk *w, const unsigned char *row, int64_t key) {
  return attn_load_float(row + key * w->job->view->bias.stride[2]);
}

/* Keys that the caller's bias leaves: -inf hides by select. Only keys seen so far are read: others may hold anything.
   */
static uint64_t unhidden_bits(const walk *w, int32_t r, int64_t begin, uint64_t seen) {
  const unsigned char *row = bias_row(w, r);
  for (int32_t j = 0; j < ATTN_CPU_KEYS; j++) {
    if ((seen >> j & 1u) != 0 && bias_at(w, row, begin + j) == -INFINITY) {
      seen &= ~((uint64_t)1 << j);
    }
  }
  return seen;
}

/* Fill b.visible for the key tile at `begin`, within `share`; returns the union. */
static uint64_t find_visible(const walk *w, int64_t begin, attn_interval share) {
  uint64_t allowed = interval_bits(share, begin);
  if (w->job->view->unchecked && w->job->plan->problem.kv_source == ATTN_KV_CACHE) {
    allowed &= reachable_bits(w, begin);
  }
  uint64_t any = 0;
  int64_t token = -1;
  uint64_t bits = 0;
  for (int32_t r = 0; r < w->tile->rows; r++) {
    if (token_of(w, r) != token) {
      token = token_of(w, r);
      bits = token_bits(w, token, begin) & allowed;
    }
    w->b.visible[r] = bits;
    if (w->job->plan->problem.has_bias) {
      w->b.visible[r] = unhidden_bits(w, r, begin, bits);
    }
    any |= w->b.visible[r];
  }
  return any;
}

/* ---- K and V of a key tile --------------------------------------------------------------------------------------- */

/* Address of position `k` of one head, and in *run how many positions from there on are `*stride` bytes apart. */
static const unsigned char *row_address(const walk *w, const attn_view *direct, const attn_view *cache, int64_t k,
                                        int64_t *stride, int64_t *element_stride, int64_t *run) {
  const attn_run_view *view = w->job->view;
  int64_t head = w->tile->kv_head;
  if (attn_fault(ATTN_FAULT_KV_HEAD)) {
    head = head * w->group % w->job->plan->problem.num_kv_heads;
  }
  if (view->step->kv_start_loc != NULL) {
    *stride = direct->stride[0];
    *element_stride = direct->stride[2];
    *run = w->mask.kv_len - k;
    return direct->data + (view->step->kv_start_loc[w->tile->seq] + k) * direct->stride[0] + head * direct->stride[1];
  }
  int64_t block_size = cache->shape[1];
  int64_t column = k / block_size;
  int64_t offset = k - column * block_size;
  if (attn_fault(ATTN_FAULT_BLOCK_ROUNDED)) {
    offset = k & (block_size - 1);
  }
  *stride = cache->stride[1];
  *element_stride = cache->stride[3];
  *run = block_size - offset;
  int64_t base = block_of(w, column) * cache->stride[0];
  if (attn_fault(ATTN_FAULT_OFFSET_32)) {
    base = (int64_t)(uint32_t)base;
  }
  return cache->data + base + offset * cache->stride[1] + head * cache->stride[2];
}

/* Rows of the visible keys to w->b.kv, zero rows elsewhere up to `keys`. */
static void load_tile(const walk *w, const attn_view *direct, const attn_view *cache, int64_t begin, uint64_t visible,
                      int32_t keys, int32_t size, int32_t padded) {
  attn_dtype dtype = direct->ndim > 0 ? direct->dtype : cache->dtype;
  for (int32_t j = 0; j < keys;) {
    float *dst = w->b.kv + (int64_t)j * padded;
    if ((visible >> j & 1u) == 0) {
      memset(dst, 0, (size_t)padded * sizeof *dst);
      j++;
      continue;
    }
    int64_t stride;
    int64_t element_stride;
    int64_t run;
    const unsigned char *src = row_address(w, direct, cache, begin + j, &stride, &element_stride, &run);
    int32_t rows = 1;
    while (j + rows < keys && rows < run && (visible >> (j + rows) & 1u) != 0) {
      rows++;
    }
    attn_cpu_load_rows(w->job->table, dtype, dst, src, stride, element_stride, rows, size, padded);
    j += rows;
  }
}

/* Ask for the cache lines of the rows that load_tile() will read, into the second level: the first one holds the tile
   at work. Rows of one head lie far apart in a token-major pool, which the hardware does not foresee. */
static void prefetch_tile(const walk *w, const attn_view *direct, const attn_view *cache, attn_interval keys,
                          int64_t bytes) {
  for (int64_t k = keys.begin; bytes > 0 && k < keys.end;) {
    int64_t stride;
    int64_t element_stride;
    int64_t run;
    if (direct->ndim == 0) {
      int64_t id = block_of(w, k / cache->shape[1]);
      if (id < 0 || id >= cache->shape[0]) {
        return; /* a column that nobody sees may hold anything */
      }
    }
    const unsigned char *src = row_address(w, direct, cache, k, &stride, &element_stride, &run);
    int64_t end = attn_min(k + run, keys.end);
    for (; k < end; k++, src += stride) {
      for (int64_t line = 0; line < bytes; line += 64) {
        ATTN_PREFETCH(src + line);
      }
    }
  }
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

static void add_alibi(const walk *w, int32_t r, float *s, int64_t begin, int32_t keys) {
  const attn_problem *p = &w->job->plan->problem;
  float slope =
      attn_float_at(&w->job->view->alibi_slopes, attn_fault(ATTN_FAULT_ALIBI_HEAD) ? w->tile->kv_head : head_of(w, r));
  int64_t distance = position_of(w, token_of(w, r)) - begin;
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

static void add_bias(const walk *w, int32_t r, float *s, int64_t begin, int32_t keys) {
  const unsigned char *row = bias_row(w, r);
  for (int32_t j = 0; j < keys; j++) {
    if ((w->b.visible[r] >> j & 1u) != 0) {
      s[j] += bias_at(w, row, begin + j);
    }
  }
}

static void finish_scores(const walk *w, int64_t begin, int32_t keys) {
  const attn_problem *p = &w->job->plan->problem;
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

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

static void clear_state(float *m, float *l, float *acc, int32_t rows, int32_t padded) {
  for (int32_t r = 0; r < rows; r++) {
    m[r] = -INFINITY;
    l[r] = 0.0f;
  }
  memset(acc, 0, (size_t)rows * (size_t)padded * sizeof *acc);
}

static void round_accumulator(const walk *w, float *acc) {
  int64_t n = (int64_t)w->tile->rows * w->job->shape.v_padded;
  for (int64_t i = 0; i < n; i++) {
    unsigned char half[2];
    uint16_t aligned;
    w->job->table->store[ATTN_CPU_F16]((unsigned char *)&aligned, acc + i, 1.0f, 1);
    memcpy(half, &aligned, sizeof half);
    w->job->table->load[ATTN_CPU_F16](acc + i, (const unsigned char *)&aligned, 0, 1, 1, 1);
  }
}

static void walk_key_tile(const walk *w, int64_t begin, attn_interval share, float *m, float *l, float *acc) {
  const attn_cpu_job *job = w->job;
  const attn_problem *p = &job->plan->problem;
  const attn_run_view *view = job->view;
  uint64_t any = find_visible(w, begin, share);
  if (any == 0) {
    return;
  }
  int64_t length = attn_min(attn_max(w->mask.kv_len, share.end) - begin, ATTN_CPU_KEYS);
  int32_t keys = (int32_t)attn_round_up((uint64_t)length, ATTN_CPU_KEY_STEP);
  attn_interval here = {begin, attn_min(begin + ATTN_CPU_KEYS, share.end)};
  attn_interval next = {here.end, attn_min(here.end + ATTN_CPU_KEYS, share.end)};
  load_tile(w, &view->k, &view->k_cache, begin, any, keys, p->qk_head_size, job->shape.qk_padded);
  prefetch_tile(w, &view->v, &view->v_cache, here, w->v_row_bytes);
  job->table->qk(w->b.s, w->b.q, w->b.kv, p->scale, w->tile->rows, keys, job->shape.qk_padded);
  finish_scores(w, begin, keys);
  for (int32_t r = 0; r < w->tile->rows; r++) {
    job->table->softmax(w->b.s + (int64_t)r * ATTN_CPU_KEYS, w->b.visible[r], keys, &m[r], &l[r], &w->b.alpha[r]);
  }
  prefetch_tile(w, &view->k, &view->k_cache, next, w->k_row_bytes);
  if (attn_fault(ATTN_FAULT_MASKED_V) && view->step->kv_start_loc == NULL) {
    any = ~(uint64_t)0 >> (64 - attn_min(64, attn_ceil_div(begin + length, p->block_size) * p->block_size - begin));
  }
  load_tile(w, &view->v, &view->v_cache, begin, any, keys, p->v_head_size, job->shape.v_padded);
  job->table->pv(acc, w->b.alpha, w->b.s, w->b.kv, w->tile->rows, keys, job->shape.v_padded);
  if (attn_fault(ATTN_FAULT_FP16_ACCUMULATE)) {
    round_accumulator(w, acc);
  }
}

/* All key tiles that meet `share`. */
static void walk_keys(const walk *w, attn_interval share, float *m, float *l, float *acc) {
  clear_state(m, l, acc, w->tile->rows, w->job->shape.v_padded);
  for (int64_t begin = share.begin / ATTN_CPU_KEYS * ATTN_CPU_KEYS; begin < share.end; begin += ATTN_CPU_KEYS) {
    walk_key_tile(w, begin, share, m, l, acc);
  }
}

/* Chunk c of the keys, at its fixed place. */
static attn_interval chunk_keys(const walk *w, int64_t c) {
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

static void fold_rows(const walk *w) {
  int32_t padded = w->job->shape.v_padded;
  for (int32_t r = 0; r < w->tile->rows; r++) {
    w->job->table->fold(&w->b.m[r], &w->b.l[r], w->b.acc + (int64_t)r * padded, w->b.chunk_m[r], w->b.chunk_l[r],
                        w->b.chunk_acc + (int64_t)r * padded, padded);
  }
}

/* Batch-invariant, uncut: the chunks one after the other, folded as the merge of a cut row folds them. */
static void walk_chunks(const walk *w, attn_interval hull) {
  clear_state(w->b.m, w->b.l, w->b.acc, w->tile->rows, w->job->shape.v_padded);
  if (hull.end <= hull.begin) {
    return;
  }
  for (int64_t c = hull.begin / ATTN_CPU_CHUNK; c < attn_ceil_div(hull.end, ATTN_CPU_CHUNK); c++) {
    walk_keys(w, meet(hull, chunk_keys(w, c)), w->b.chunk_m, w->b.chunk_l, w->b.chunk_acc);
    fold_rows(w);
  }
}

/* The keys of one piece: a chunk, or a share of the hull's key tiles. */
static attn_interval piece_keys(const walk *w, const attn_cpu_seq *seq, attn_interval hull) {
  attn_interval keys = {0, 0};
  if (hull.end <= hull.begin) {
    return keys;
  }
  if (w->job->plan->problem.batch_invariant) {
    return meet(hull, chunk_keys(w, (int64_t)seq->first_chunk + w->tile->piece));
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

static void store_slots(const walk *w) {
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

/* Bytes of a row of adjacent elements; 0, nothing to prefetch, where they lie apart. */
static int64_t row_bytes(const attn_view *direct, const attn_view *cache) {
  const attn_view *view = direct->ndim > 0 ? direct : cache;
  int32_t last = view->ndim - 1;
  int64_t element = (int64_t)attn_dtype_bytes(view->dtype);
  return view->stride[last] == element ? view->shape[last] * element : 0;
}

/* One past the last position that the table can name: unchecked lengths may lie far beyond it. */
static int64_t table_end(const walk *w) {
  const attn_view *table = &w->job->view->block_table;
  int64_t block_size = w->job->plan->problem.block_size;
  if (table->ndim == 0 || table->shape[1] > w->mask.kv_len / block_size) {
    return w->mask.kv_len + 1; /* + 1: a planted fault may look one key too far */
  }
  return table->shape[1] * block_size;
}

void attn_cpu_run_item(const attn_cpu_job *job, int64_t item, size_t thread) {
  attn_cpu_tile tile = attn_cpu_find_tile(job, item, 0);
  const attn_step *step = job->view->step;
  walk w;
  w.job = job;
  w.tile = &tile;
  w.b = attn_cpu_buffers_at(&job->shape, &job->scratch, thread);
  w.mask = attn_mask_of(job->view, tile.seq);
  w.first_token = step->query_start_loc[tile.seq];
  w.q_len = step->query_start_loc[tile.seq + 1] - w.first_token;
  w.group = job->shape.group;
  w.k_row_bytes = row_bytes(&job->view->k, &job->view->k_cache);
  w.v_row_bytes = row_bytes(&job->view->v, &job->view->v_cache);
  load_queries(&w);
  const attn_cpu_seq *seq = &job->scratch.seqs[tile.seq];
  attn_interval hull =
      attn_mask_hull(&w.mask, position_of(&w, token_of(&w, 0)), position_of(&w, token_of(&w, tile.rows - 1)) + 1);
  hull.begin = attn_max(hull.begin, 0);
  hull.end = attn_min(hull.end, table_end(&w));
  if (seq->pieces > 1) {
    walk_keys(&w, piece_keys(&w, seq, hull), w.b.m, w.b.l, w.b.acc);
    store_slots(&w);
    return;
  }
  if (job->plan->problem.batch_invariant) {
    walk_chunks(&w, hull);
  } else {
    walk_keys(&w, hull, w.b.m, w.b.l, w.b.acc);
  }
  attn_cpu_finish_rows(job, &tile, w.b.m, w.b.l, w.b.acc);
}
