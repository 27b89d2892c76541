/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_expand.c: see cpu_mla.h. */
#include <math.h>
#include <string.h>

#include "core/fault.h"
#include "cpu/cpu_mla.h"

#define AUTOMATIC_CHUNK 256
#define MAX_TILE_ROWS 64
#define ALIGN ATTN_WORKSPACE_ALIGN

/* One thread's buffers beside those of a row tile. */
typedef struct expand_buffers {
  float *m, *l;   /* [item rows] */
  float *acc;     /* [item rows, v_padded] */
  float *raw;     /* [ATTN_CPU_KEYS, raw_padded] latent rows */
  float *latent;  /* [ATTN_CPU_KEYS, rank_padded] their latent parts */
  float *product; /* [ATTN_CPU_KEYS, ATTN_CPU_KEYS] */
  float *k;       /* [chunk, qk_padded] */
  float *v;       /* [chunk, v_padded] */
} expand_buffers;

static int32_t pad(int64_t size) {
  return (int32_t)attn_round_up((uint64_t)size, ATTN_CPU_PAD);
}

/* Positions that are attended to at a time: a chunk, or as many whole ones as a tile of keys holds. (Chunks of a few
   keys, each attended by itself, would add their values in one plain chain.) */
static int32_t group_size(const attn_cpu_expand *e) {
  return e->chunk < ATTN_CPU_KEYS ? ATTN_CPU_KEYS / e->chunk * e->chunk : e->chunk;
}

static int32_t chunk_rows(const attn_cpu_expand *e) {
  return (int32_t)attn_round_up((uint64_t)e->chunk, ATTN_CPU_KEYS);
}

/* The buffers one after the other, each on a cache line of its own; `memory` NULL: only how far they reach. */
static uint64_t lay_out(const attn_cpu_expand *e, unsigned char *memory, expand_buffers *b) {
  uint64_t at = e->shape.thread_bytes;
  const struct {
    float **buffer;
    uint64_t floats;
  } parts[] = {
      {&b->m, (uint64_t)e->item_rows},
      {&b->l, (uint64_t)e->item_rows},
      {&b->acc, (uint64_t)e->item_rows * (uint64_t)e->shape.v_padded},
      {&b->raw, (uint64_t)ATTN_CPU_KEYS * (uint64_t)e->raw_padded},
      {&b->latent, (uint64_t)ATTN_CPU_KEYS * (uint64_t)e->rank_padded},
      {&b->product, (uint64_t)ATTN_CPU_KEYS * ATTN_CPU_KEYS},
      {&b->k, (uint64_t)chunk_rows(e) * (uint64_t)e->shape.qk_padded},
      {&b->v, (uint64_t)chunk_rows(e) * (uint64_t)e->shape.v_padded},
  };
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    if (memory != NULL) {
      *parts[i].buffer = (float *)(void *)(memory + at);
    }
    at += attn_round_up(parts[i].floats * sizeof(float), 64);
  }
  return attn_round_up(at, ALIGN);
}

int attn_cpu_expand_of(const attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                       attn_cpu_expand *expand) {
  expand_buffers unused;
  attn_problem one = *problem; /* head: a row tile holds tokens of one */
  attn_plan_limits rows = *limits;
  memset(expand, 0, sizeof *expand);
  one.num_q_heads = one.num_kv_heads = 1;
  one.batch_invariant = 0;
  rows.max_tokens = attn_min(limits->max_tokens, MAX_TILE_ROWS);
  rows.max_seqs = 1;
  if (!attn_cpu_shape_of(context, &one, &rows, 1, ATTN_SPLIT_DEFAULT, &expand->shape)) {
    return 0;
  }
  int64_t chunk = problem->context_chunk > 0 ? problem->context_chunk : AUTOMATIC_CHUNK;
  chunk = attn_min(chunk, limits->max_kv_len);
  if (chunk > INT32_MAX - ATTN_CPU_KEYS) {
    return 0;
  }
  expand->chunk = (int32_t)chunk;
  expand->item_rows = (int32_t)attn_min(limits->max_tokens, ATTN_CPU_EXPAND_ROWS);
  expand->raw_padded = pad((int64_t)problem->kv_lora_rank + problem->qk_rope_head_dim);
  expand->rank_padded = pad(problem->kv_lora_rank);
  expand->thread_bytes = lay_out(expand, NULL, &unused); /* products of 31-bit numbers */
  return 1;
}

static int64_t blocks_of(const attn_step *step, const attn_cpu_expand *sizes, int32_t seq, int32_t threshold) {
  int64_t q_len = (int64_t)step->query_start_loc[seq + 1] - step->query_start_loc[seq];
  return q_len > threshold ? attn_ceil_div(q_len, sizes->item_rows) : 0;
}

int64_t attn_cpu_expand_items(const attn_problem *problem, const attn_step *step, const attn_cpu_expand *sizes,
                              int32_t threshold) {
  int64_t items = 0;
  for (int32_t s = 0; s < step->num_seqs; s++) {
    items += blocks_of(step, sizes, s, threshold) * problem->num_q_heads;
  }
  return items;
}

/* ---- One item ---------------------------------------------------------------------------------------------------- */

typedef struct item_walk {
  const attn_cpu_expand_job *e;
  attn_cpu_walk w;    /* of the row tile at hand; w.tile is `tile` */
  attn_cpu_tile tile; /* kv_head: the head */
  expand_buffers b;
  int64_t first_row; /* of the item */
  int64_t rows;
  attn_interval hull; /* keys that some row of the item may see */
  int64_t cached;
} item_walk;

/* Sequence by sequence, head by head, the last rows first: they are the longest work. */
static void find_item(item_walk *i, int64_t item) {
  const attn_step *step = i->e->job.view->step;
  int64_t heads = i->e->job.problem->num_q_heads;
  int32_t seq = 0;
  int64_t blocks = blocks_of(step, &i->e->sizes, seq, i->e->threshold);
  while (item >= blocks * heads) {
    item -= blocks * heads;
    seq++;
    blocks = blocks_of(step, &i->e->sizes, seq, i->e->threshold);
  }
  int64_t block = blocks - 1 - item / heads;
  int64_t q_len = (int64_t)step->query_start_loc[seq + 1] - step->query_start_loc[seq];
  i->tile.seq = seq;
  i->tile.kv_head = (int32_t)(item % heads);
  i->first_row = block * i->e->sizes.item_rows;
  i->rows = attn_min(q_len - i->first_row, i->e->sizes.item_rows);
}

/* Make tile.rows rows from `row` (of the item) on the tile at hand. */
static void take_rows(item_walk *i, int64_t row) {
  i->tile.first_row = i->first_row + row;
  i->tile.rows = (int32_t)attn_min(i->e->sizes.shape.tile_rows, i->rows - row);
}

/* Bits of the keys of the tile at `begin` that some row of the item sees. */
static uint64_t seen_by_any(item_walk *i, int64_t begin, attn_interval share) {
  uint64_t any = 0;
  for (int64_t row = 0; row < i->rows; row += i->e->sizes.shape.tile_rows) {
    take_rows(i, row);
    any |= attn_cpu_find_visible(&i->w, begin, share);
  }
  return any;
}

/* Products of `keys` latent parts with the rows of the projection from `from` on, to columns of `to`. */
static void project(const item_walk *i, const float *from, int32_t count, int32_t keys, float *to, int32_t to_padded) {
  const attn_mla_weights *w = i->e->job.view->weights;
  const attn_cpu_table *table = i->e->job.table;
  for (int32_t first = 0; first < count; first += ATTN_CPU_KEYS) {
    int32_t n = (int32_t)attn_min(count - first, ATTN_CPU_KEYS);
    int32_t whole = (int32_t)attn_round_up((uint64_t)n, ATTN_CPU_KEY_STEP);
    table->qk(i->b.product, i->b.latent, from + (int64_t)first * w->padded, 1.0f, keys, whole, w->padded);
    for (int32_t j = 0; j < keys; j++) {
      memcpy(to + (int64_t)j * to_padded + first, i->b.product + (int64_t)j * ATTN_CPU_KEYS, (size_t)n * sizeof(float));
    }
  }
}

static void clear_columns(float *rows, int32_t keys, int32_t size, int32_t padded) {
  for (int32_t j = 0; j < keys; j++) {
    for (int32_t c = size; c < padded; c++) {
      rows[(int64_t)j * padded + c] = 0.0f;
    }
  }
}

/* The keys [begin, begin + keys) as rows of k and v. */
static void expand_tile(const item_walk *i, int64_t begin, uint64_t seen, int32_t keys, float *k, float *v) {
  const attn_problem *p = i->e->job.problem;
  const attn_mla_weights *w = i->e->job.view->weights;
  const attn_cpu_expand *sizes = &i->e->sizes;
  int64_t head = attn_fault(ATTN_FAULT_EXPAND_HEAD) ? 0 : i->tile.kv_head;
  int rotated = i->w.k.rows != NULL && i->w.k.rows->facts->rotated;
  attn_cpu_load_latent(&i->w, begin, seen, 0, keys, i->b.raw, sizes->raw_padded);
  for (int32_t j = 0; j < keys; j++) {
    float *raw = i->b.raw + (int64_t)j * sizes->raw_padded;
    float *latent = i->b.latent + (int64_t)j * sizes->rank_padded;
    memcpy(latent, raw, (size_t)p->kv_lora_rank * sizeof(float));
    if (rotated && begin + j < i->cached) {
      i->e->job.table->unrotate(latent, p->kv_lora_rank);
    }
  }
  clear_columns(i->b.latent, keys, p->kv_lora_rank, sizes->rank_padded);
  project(i, attn_mla_uk(w, head, 0), p->qk_nope_head_dim, keys, k, sizes->shape.qk_padded);
  project(i, attn_mla_uv(w, head, attn_fault(ATTN_FAULT_EXPAND_ROW) ? -1 : 0), p->mla_v_head_dim, keys, v,
          sizes->shape.v_padded);
  for (int32_t j = 0; j < keys && p->qk_rope_head_dim > 0; j++) {
    memcpy(k + (int64_t)j * sizes->shape.qk_padded + p->qk_nope_head_dim,
           i->b.raw + (int64_t)j * sizes->raw_padded + p->kv_lora_rank, (size_t)p->qk_rope_head_dim * sizeof(float));
  }
  clear_columns(k, keys, p->qk_head_size, sizes->shape.qk_padded);
  clear_columns(v, keys, p->v_head_size, sizes->shape.v_padded);
}

static int32_t keys_at(int64_t begin, attn_interval share) {
  return (int32_t)attn_round_up((uint64_t)attn_min(share.end - begin, ATTN_CPU_KEYS), ATTN_CPU_KEY_STEP);
}

/* The keys of a tile, a chunk at a time where several lie in it. `keys` reaches beyond the last position by rows that
   are cleared with it. */
static void expand_chunks(const item_walk *i, int64_t begin, uint64_t seen, int32_t keys, float *k, float *v) {
  const attn_cpu_expand *sizes = &i->e->sizes;
  int64_t chunk = sizes->chunk;
  for (int32_t at = 0; at < keys;) {
    int64_t left = chunk < ATTN_CPU_KEYS ? chunk - (begin + at) % chunk : keys;
    int32_t count = (int32_t)attn_min(left, keys - at);
    expand_tile(i, begin + at, seen >> at, count, k + (int64_t)at * sizes->shape.qk_padded,
                v + (int64_t)at * sizes->shape.v_padded);
    at += count;
  }
}

/* One row tile over the expanded keys of a group. */
static void walk_group(item_walk *i, int64_t row, int64_t group_begin, attn_interval share) {
  const attn_cpu_job *job = &i->e->job;
  const attn_cpu_shape *shape = &i->e->sizes.shape;
  int loaded = 0;
  take_rows(i, row);
  for (int64_t begin = group_begin; begin < share.end; begin += ATTN_CPU_KEYS) {
    int32_t keys = keys_at(begin, share);
    const float *k = i->b.k + (begin - group_begin) * shape->qk_padded;
    const float *v = i->b.v + (begin - group_begin) * shape->v_padded;
    if (attn_cpu_find_visible(&i->w, begin, share) == 0) {
      continue;
    }
    if (!loaded) {
      attn_cpu_load_queries(&i->w);
      loaded = 1;
    }
    job->table->qk(i->w.b.s, i->w.b.q, k, job->problem->scale, i->tile.rows, keys, shape->qk_padded);
    attn_cpu_finish_scores(&i->w, begin, keys, i->b.m + row, i->b.l + row);
    job->table->pv(i->b.acc + row * shape->v_padded, i->w.b.alpha, i->w.b.s, v, i->tile.rows, keys, shape->v_padded,
                   shape->v_padded);
  }
}

static void take_group(item_walk *i, int64_t group_begin, attn_interval share) {
  const attn_cpu_shape *shape = &i->e->sizes.shape;
  uint64_t any = 0;
  for (int64_t begin = group_begin; begin < share.end; begin += ATTN_CPU_KEYS) {
    uint64_t seen = seen_by_any(i, begin, share);
    any |= seen;
    if (seen != 0) {
      expand_chunks(i, begin, seen, keys_at(begin, share), i->b.k + (begin - group_begin) * shape->qk_padded,
                    i->b.v + (begin - group_begin) * shape->v_padded);
    }
  }
  for (int64_t row = 0; any != 0 && row < i->rows; row += shape->tile_rows) {
    walk_group(i, row, group_begin, share);
  }
}

/* Unchecked lengths may lie far beyond the table: one past the last position that it can name. */
static int64_t table_end(const item_walk *i) {
  const attn_view *table = &i->e->job.view->block_table;
  int64_t block_size = i->e->job.problem->block_size;
  if (table->ndim == 0 || table->shape[1] > i->cached / block_size) {
    return i->cached;
  }
  return attn_min(table->shape[1] * block_size, i->cached);
}

static void take_keys(item_walk *i) {
  int64_t size = group_size(&i->e->sizes);
  int64_t last = table_end(i);
  for (int64_t c = i->hull.begin / size; c * size < i->hull.end; c++) {
    if (c * size >= last && (c + 1) * size <= i->cached) {
      c = i->cached / size; /* nothing lies between */
    }
    attn_interval share = {attn_max(c * size, i->hull.begin), attn_min((c + 1) * size, i->hull.end)};
    if (attn_fault(ATTN_FAULT_CHUNK_TAIL) && i->cached < i->hull.end && i->cached % size != 0 &&
        c == i->cached / size) {
      attn_interval before = {share.begin, i->cached - 1};
      take_group(i, c * size, before);
      share.begin = i->cached;
    }
    take_group(i, c * size, share);
    if (attn_fault(ATTN_FAULT_CHUNK_TWICE) && c == 1) {
      take_group(i, c * size, share);
    }
  }
}

/* What its walks share: the rows of q as floats, latent rows of the cache. */
static void start_item(item_walk *i, size_t thread) {
  const attn_cpu_expand_job *e = i->e;
  const attn_run_view *view = e->job.view;
  attn_cpu_scratch scratch = e->job.scratch;
  scratch.threads += thread * e->thread_bytes;
  i->w.b = attn_cpu_buffers_at(&e->sizes.shape, &scratch, 0);
  (void)lay_out(&e->sizes, scratch.threads, &i->b);
  attn_cpu_start_walk(&i->w, &e->job, &i->tile, 1);
  i->w.k.direct = &view->k; /* none */
  i->w.k.cache = &view->k_cache;
  i->w.k.rows = view->k_cache.ndim > 0 ? &view->k_rows : NULL;
  i->w.k.size = e->job.problem->qk_head_size;
  i->w.k.padded = e->sizes.shape.qk_padded;
  i->cached = attn_cached_keys(view, i->tile.seq);
  i->tile.first_row = i->first_row;
  i->tile.rows = (int32_t)i->rows;
  i->hull = attn_cpu_hull(&i->w);
  i->hull.end = attn_min(i->hull.end, i->w.mask.kv_len);
  for (int64_t r = 0; r < i->rows; r++) {
    i->b.m[r] = -INFINITY;
    i->b.l[r] = 0.0f;
  }
  memset(i->b.acc, 0, (size_t)i->rows * (size_t)e->sizes.shape.v_padded * sizeof(float));
}

void attn_cpu_expand_item(const attn_cpu_expand_job *e, int64_t item, size_t thread) {
  item_walk i;
  memset(&i, 0, sizeof i);
  i.e = e;
  find_item(&i, item);
  start_item(&i, thread);
  if (i.hull.end > i.hull.begin) {
    take_keys(&i);
  }
  for (int64_t row = 0; row < i.rows; row += e->sizes.shape.tile_rows) {
    take_rows(&i, row);
    attn_cpu_finish_rows(&e->job, &i.tile, i.b.m + row, i.b.l + row, i.b.acc + row * e->sizes.shape.v_padded);
  }
}
