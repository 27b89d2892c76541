/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_work.c: see cpu_work.h. The split rule:
 *   cost of a row tile = its key tiles x its rows;  target = cost of the step / (ITEMS_PER_THREAD x threads)
 *   pieces = cost / target, no piece below MIN_PIECE_TILES key tiles, within the slots that the plan reserved
 * A forced count is obeyed, capped at one key tile per piece. One thread never splits by itself.
 * The `compatible` rule (plan.h) counts threads as the reference system counts its compute units.
 */
#include "cpu/cpu_work.h"

#include <string.h>

#define MAX_TILE_ROWS 64
#define MIN_TILE_ROWS 16
#define TILE_BYTES ((uint64_t)512 << 10) /* q and acc of a row tile are meant to stay in L2 */
#define SLOT_BYTES_PER_THREAD ((uint64_t)4 << 20)
#define ITEMS_PER_THREAD 4
#define MIN_PIECE_TILES 4
#define COMPATIBLE_KEYS 512    /* latent: keys of a piece that its rule aims at */
#define COMPATIBLE_SEGMENTS 16 /* else */
#define COMPATIBLE_SEQS 128    /* sequences times KV heads up to which it cuts */
#define ALIGN ATTN_WORKSPACE_ALIGN

static int32_t pad_head(int32_t size) {
  return (int32_t)attn_round_up((uint64_t)size, ATTN_CPU_PAD);
}

static int64_t key_tiles(int64_t keys) {
  return attn_ceil_div(keys, ATTN_CPU_KEYS);
}

/* Rows that a plan keeps in slots: what is forced, or what fits the budget and can be used. */
static int plan_slots(const attn_problem *p, const attn_plan_limits *limits, int32_t threads, int32_t num_splits,
                      attn_split_rule split_rule, attn_cpu_shape *shape) {
  uint64_t all_rows;
  uint64_t rows;
  int64_t most = p->batch_invariant ? attn_ceil_div(limits->max_kv_len, ATTN_CPU_CHUNK) : key_tiles(limits->max_kv_len);
  if (attn_mul_overflow((uint64_t)limits->max_tokens, (uint64_t)p->num_q_heads, &all_rows)) {
    return 0;
  }
  int64_t pieces = num_splits;
  int compatible = num_splits == 0 && split_rule == ATTN_SPLIT_COMPATIBLE;
  if (compatible) {
    most = pieces = attn_cpu_compatible_pieces(p, threads, NULL, limits->max_kv_len);
  } else if (num_splits == 0) {
    pieces = threads == 1         ? 1
             : p->batch_invariant ? most
                                  : attn_max(1, key_tiles(limits->max_kv_len) / MIN_PIECE_TILES);
  }
  pieces = attn_min(pieces, most);
  shape->max_pieces = (int32_t)(num_splits == 0 && p->batch_invariant ? most : pieces);
  shape->slot_rows = 0;
  if (pieces <= 1) {
    return 1;
  }
  if (attn_mul_overflow(all_rows, (uint64_t)pieces, &rows)) {
    return 0;
  }
  if (num_splits == 0 && !compatible) {
    uint64_t row_bytes = ((uint64_t)shape->v_padded + 2) * sizeof(float);
    uint64_t budget = SLOT_BYTES_PER_THREAD * (uint64_t)threads / row_bytes;
    rows = rows < budget ? rows : budget;
  }
  shape->slot_rows = (int64_t)rows;
  return rows <= (uint64_t)INT64_MAX;
}

static uint64_t buffer_bytes(const attn_cpu_shape *s) {
  uint64_t rows = (uint64_t)s->tile_rows;
  uint64_t widest = (uint64_t)(s->qk_padded > s->v_padded ? s->qk_padded : s->v_padded);
  uint64_t floats = rows * (uint64_t)s->qk_padded + (uint64_t)ATTN_CPU_KEYS * widest + rows * ATTN_CPU_KEYS +
                    2 * rows * (uint64_t)s->v_padded + 5 * rows;
  /* each of the eleven buffers starts on a cache line */
  return attn_round_up(floats * sizeof(float) + rows * sizeof(uint64_t) + 11 * 64, ALIGN);
}

int attn_cpu_shape_of(const attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                      int32_t num_splits, attn_split_rule split_rule, attn_cpu_shape *shape) {
  memset(shape, 0, sizeof *shape);
  if (problem->qk_head_size > INT32_MAX / 2 || problem->v_head_size > INT32_MAX / 2) {
    return 0;
  }
  shape->group = problem->num_q_heads / problem->num_kv_heads;
  shape->qk_padded = pad_head(problem->qk_head_size);
  shape->v_padded = pad_head(problem->v_head_size);
  uint64_t row_bytes = ((uint64_t)shape->qk_padded + (uint64_t)shape->v_padded) * sizeof(float);
  shape->tile_rows = MAX_TILE_ROWS;
  while (shape->tile_rows > MIN_TILE_ROWS && (uint64_t)shape->tile_rows * row_bytes > TILE_BYTES) {
    shape->tile_rows /= 2;
  }
  if (limits->max_tokens < shape->tile_rows / shape->group) {
    shape->tile_rows = (int32_t)limits->max_tokens * shape->group;
  }
  int32_t threads = context->threads.num_threads;
  if (!plan_slots(problem, limits, threads, num_splits, split_rule, shape)) {
    return 0;
  }
  shape->seqs_bytes = attn_round_up(((uint64_t)limits->max_seqs + 1) * sizeof(attn_cpu_seq), ALIGN);
  shape->thread_bytes = buffer_bytes(shape);
  uint64_t acc;
  uint64_t state;
  uint64_t buffers;
  if (attn_mul_overflow((uint64_t)shape->slot_rows, (uint64_t)shape->v_padded * sizeof(float), &acc) ||
      attn_mul_overflow((uint64_t)shape->slot_rows, 2 * sizeof(float), &state) || acc > UINT64_MAX / 4 ||
      state > UINT64_MAX / 4 || attn_mul_overflow(shape->thread_bytes, (uint64_t)threads, &buffers) ||
      buffers > UINT64_MAX / 4) {
    return 0;
  }
  shape->slot_acc_bytes = attn_round_up(acc, ALIGN);
  shape->slot_state_bytes = attn_round_up(state, ALIGN);
  shape->total_bytes = shape->seqs_bytes + shape->slot_state_bytes + shape->slot_acc_bytes + buffers;
  return 1;
}

attn_cpu_scratch attn_cpu_scratch_at(const attn_cpu_shape *shape, void *memory) {
  unsigned char *at = memory;
  attn_cpu_scratch scratch;
  scratch.seqs = (attn_cpu_seq *)(void *)at;
  at += shape->seqs_bytes;
  scratch.slot_m = (float *)(void *)at;
  scratch.slot_l = scratch.slot_m + shape->slot_rows;
  at += shape->slot_state_bytes;
  scratch.slot_acc = (float *)(void *)at;
  at += shape->slot_acc_bytes;
  scratch.threads = at;
  return scratch;
}

static float *take(unsigned char **at, uint64_t floats) {
  float *p = (float *)(void *)*at;
  *at += attn_round_up(floats * sizeof(float), 64);
  return p;
}

attn_cpu_buffers attn_cpu_buffers_at(const attn_cpu_shape *shape, const attn_cpu_scratch *scratch, size_t thread) {
  unsigned char *at = scratch->threads + thread * shape->thread_bytes;
  uint64_t rows = (uint64_t)shape->tile_rows;
  uint64_t widest = (uint64_t)(shape->qk_padded > shape->v_padded ? shape->qk_padded : shape->v_padded);
  attn_cpu_buffers b;
  b.q = take(&at, rows * (uint64_t)shape->qk_padded);
  b.kv = take(&at, ATTN_CPU_KEYS * widest);
  b.s = take(&at, rows * ATTN_CPU_KEYS);
  b.acc = take(&at, rows * (uint64_t)shape->v_padded);
  b.chunk_acc = take(&at, rows * (uint64_t)shape->v_padded);
  b.m = take(&at, rows);
  b.l = take(&at, rows);
  b.alpha = take(&at, rows);
  b.chunk_m = take(&at, rows);
  b.chunk_l = take(&at, rows);
  b.visible = (uint64_t *)(void *)take(&at, 2 * rows);
  return b;
}

/* ---- schedule ---------------------------------------------------------------------------------------------------- */

/* The keys that rows q_begin <= q < q_end may see, whatever the tensors of the run say. */
static attn_interval widest_hull(const attn_problem *p, int64_t kv_len, int64_t q_begin, int64_t q_end) {
  attn_interval all = {0, kv_len};
  if (p->has_prefix_ranges) {
    return all;
  }
  attn_mask mask;
  memset(&mask, 0, sizeof mask);
  mask.kv_len = kv_len;
  mask.window_left = p->window_left;
  mask.window_right = p->window_right;
  mask.chunk_size = p->chunk_size;
  mask.chunk_lookback = p->chunk_lookback;
  mask.causal = p->causal && !p->has_causal_per_seq;
  return attn_mask_hull(&mask, q_begin, q_end);
}

/* What the split rule needs of one share. */
typedef struct share_cost {
  int64_t tiles; /* row tiles per KV head */
  int64_t key_tiles;
  attn_interval hull; /* of the last row tile, which sees most (of all rows when batch-invariant) */
} share_cost;

static share_cost cost_of(const attn_cpu_cut *cut, const attn_cpu_seq *share) {
  const attn_cpu_shape *shape = cut->shape;
  share_cost c;
  int64_t q_len = (int64_t)cut->step->query_start_loc[share->seq + 1] - cut->step->query_start_loc[share->seq];
  int64_t kv_len = cut->step->kv_lens[share->seq];
  c.tiles = attn_ceil_div(share->rows, shape->tile_rows);
  int64_t last = c.tiles > 0 && !cut->problem->batch_invariant ? (c.tiles - 1) * shape->tile_rows : 0;
  int64_t first_token = (share->first_row + last) / shape->group;
  int64_t end_token = attn_ceil_div(share->first_row + share->rows, shape->group);
  c.hull = widest_hull(cut->problem, kv_len, kv_len - q_len + first_token, kv_len - q_len + end_token);
  c.hull.begin = attn_max(c.hull.begin, 0);
  c.key_tiles = c.hull.end > c.hull.begin ? key_tiles(c.hull.end) - c.hull.begin / ATTN_CPU_KEYS : 0;
  return c;
}

static int64_t tile_cost(const attn_cpu_cut *cut, const attn_cpu_seq *share, const share_cost *c) {
  return (c->key_tiles + 1) * attn_min(share->rows, cut->shape->tile_rows);
}

int64_t attn_cpu_compatible_pieces(const attn_problem *problem, int32_t threads, const attn_step *step,
                                   int64_t max_kv_len) {
  if (problem->kv_lora_rank > 0) {
    int64_t ideal = 1;
    while (ideal < max_kv_len / COMPATIBLE_KEYS) {
      ideal *= 2;
    }
    return attn_min(ideal, 2 * (int64_t)threads);
  }
  for (int32_t s = 0; step != NULL && s < step->num_seqs; s++) {
    if (step->query_start_loc[s + 1] - step->query_start_loc[s] > 1) {
      return 1;
    }
  }
  return step != NULL && step->num_seqs > COMPATIBLE_SEQS / problem->num_kv_heads ? 1 : COMPATIBLE_SEGMENTS;
}

/* Pieces of a row tile before the slots are counted. */
static int64_t wanted_pieces(const attn_cpu_cut *cut, const attn_cpu_seq *share, const share_cost *c, int64_t target) {
  if (cut->num_splits > 0) {
    return attn_max(1, attn_min(cut->num_splits, c->key_tiles));
  }
  if (cut->split_rule == ATTN_SPLIT_COMPATIBLE) {
    return attn_cpu_compatible_pieces(cut->problem, cut->threads, cut->step, cut->step->max_kv_len);
  }
  if (cut->shape->slot_rows == 0 || c->key_tiles == 0) {
    return 1;
  }
  int64_t pieces = attn_ceil_div(tile_cost(cut, share, c), target);
  if (cut->problem->batch_invariant) {
    int64_t chunks = attn_ceil_div(c->hull.end, ATTN_CPU_CHUNK) - c->hull.begin / ATTN_CPU_CHUNK;
    return pieces > 1 ? chunks : 1;
  }
  return attn_max(1, attn_min(pieces, c->key_tiles / MIN_PIECE_TILES));
}

/* Pieces that a row's keys are cut into, as reported. */
static int64_t reported_splits(const attn_cpu_cut *cut, const share_cost *c, int64_t pieces) {
  if (!cut->problem->batch_invariant || c->key_tiles == 0) {
    return pieces;
  }
  return attn_ceil_div(c->hull.end, ATTN_CPU_CHUNK) - c->hull.begin / ATTN_CPU_CHUNK;
}

/* Cost of a thread's fair part of the items. */
static int64_t target_of(const attn_cpu_cut *cut, const attn_cpu_seq *seqs, int32_t count) {
  double total = 0.0; /* costs of many long sequences may not fit 64 bits */
  for (int32_t i = 0; i < count; i++) {
    share_cost c = cost_of(cut, &seqs[i]);
    total += (double)tile_cost(cut, &seqs[i], &c) * (double)c.tiles * (double)cut->problem->num_kv_heads;
  }
  double share = total / (double)(ITEMS_PER_THREAD * (int64_t)cut->threads);
  return share < 1.0 ? 1 : share > 4e18 ? (int64_t)4e18 : (int64_t)share;
}

int32_t attn_cpu_cut_rows(const attn_cpu_cut *cut, attn_cpu_seq *seqs, int32_t count) {
  const int64_t heads = cut->problem->num_kv_heads;
  int64_t target = target_of(cut, seqs, count);
  int64_t splits = 1;
  attn_cpu_seq next;
  memset(&next, 0, sizeof next);
  for (int32_t i = 0; i < count; i++) {
    attn_cpu_seq *share = &seqs[i];
    share_cost c = cost_of(cut, share);
    int64_t pieces = wanted_pieces(cut, share, &c, target);
    /* slots: one per piece and row of every row tile */
    int64_t room = cut->shape->slot_rows - next.first_slot;
    if (pieces > 1 && room / pieces < share->rows * heads) {
      pieces = cut->problem->batch_invariant ? 1 : attn_max(1, room / attn_max(1, share->rows * heads));
    }
    share->tiles = c.tiles;
    share->pieces = (int32_t)pieces;
    share->first_chunk = (int32_t)(c.hull.begin / ATTN_CPU_CHUNK);
    share->first_item = next.first_item;
    share->first_merge = next.first_merge;
    share->first_slot = next.first_slot;
    next.first_item += heads * c.tiles * pieces;
    if (pieces > 1) {
      next.first_merge += heads * c.tiles;
      next.first_slot += heads * share->rows * pieces;
    }
    if (c.tiles > 0) {
      splits = attn_max(splits, reported_splits(cut, &c, pieces));
    }
  }
  seqs[count] = next;
  return (int32_t)splits;
}

void attn_cpu_schedule(const attn_plan *plan, attn_step *step, void *memory) {
  attn_cpu_shape shape;
  (void)attn_cpu_shape_of(plan->context, &plan->problem, &plan->limits, plan->num_splits, plan->split_rule, &shape);
  attn_cpu_scratch scratch = attn_cpu_scratch_at(&shape, memory);
  attn_cpu_cut cut = {&plan->problem,   &shape,          step, plan->context->threads.num_threads,
                      plan->num_splits, plan->split_rule};
  for (int32_t s = 0; s < step->num_seqs; s++) {
    scratch.seqs[s].seq = s;
    scratch.seqs[s].first_row = 0;
    scratch.seqs[s].rows = ((int64_t)step->query_start_loc[s + 1] - step->query_start_loc[s]) * shape.group;
  }
  step->splits = attn_cpu_cut_rows(&cut, scratch.seqs, step->num_seqs);
  step->work_items = scratch.seqs[step->num_seqs].first_item;
}
