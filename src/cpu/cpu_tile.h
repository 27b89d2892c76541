/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_tile.h: a row tile's walk over the keys: from an item's number to its row tile, and the rows of K and V that one
   key tile needs. */
#ifndef ATTN_CPU_TILE_H
#define ATTN_CPU_TILE_H

#include "cpu/cpu_work.h"

/* The row tile of work item `item` or, when `merge` is 1, of merge item `item` (then piece is 0). */
attn_cpu_tile attn_cpu_find_tile(const attn_cpu_job *job, int64_t item, int merge);

/* K or V as a walk reads it. */
typedef struct attn_cpu_rows {
  const attn_view *direct; /* [tokens, heads, size]; ndim 0 with a cache */
  const attn_view *cache;  /* [blocks, offset, head, row] */
  const attn_rows *rows;   /* what a row of the cache is */
  int quantised;           /* rows are codes, whose scales come apart: attn_cpu_load_tile's `scales` */
  int32_t size;
  int32_t padded;
  int64_t adjacent_bytes; /* of one row, for prefetching; 0: its elements lie apart */
} attn_cpu_rows;

/* The state of one walk. */
typedef struct attn_cpu_walk {
  const attn_cpu_job *job;
  const attn_cpu_tile *tile;
  attn_cpu_buffers b;
  attn_mask mask;
  int64_t q_len;
  int64_t first_token; /* batch token of the sequence's first row */
  int32_t group;
  attn_cpu_rows k;
  attn_cpu_rows v; /* unused where the value is a part of the latent row */
} attn_cpu_walk;

/* Token and query head of the tile's row r, the token counted from the sequence's first. */
static inline int64_t attn_cpu_token_of(const attn_cpu_walk *w, int32_t r) {
  return (w->tile->first_row + r) / w->group;
}

static inline int32_t attn_cpu_head_of(const attn_cpu_walk *w, int32_t r) {
  return w->tile->kv_head * w->group + (int32_t)((w->tile->first_row + r) % w->group);
}

attn_cpu_rows attn_cpu_rows_of(const attn_view *direct, const attn_view *cache, const attn_rows *rows, int32_t size,
                               int32_t padded);

/* The block id of a column of the tile's sequence; -1 where the table has no such column. */
int64_t attn_cpu_block_of(const attn_cpu_walk *w, int64_t column);

/* Rows of consecutive positions of one head, the same distance apart. */
typedef struct attn_cpu_run {
  const unsigned char *data;
  int64_t stride;
  int64_t element_stride;
  int64_t count; /* positions from the first one on */
  int64_t block; /* of a cache: where the first one lies */
  int64_t offset;
  int64_t head;
} attn_cpu_run;

/* The run that position k begins. */
attn_cpu_run attn_cpu_run_at(const attn_cpu_walk *w, const attn_cpu_rows *from, int64_t k);

/* Rows of the keys begin + j, first <= j < end, whose bit j of `visible` is set to w->b.kv as fp32, zero rows
   elsewhere. Of quantised rows the codes' values; their scales go to scales[j], 0 where no row stands (of others
   nothing is written there). */
void attn_cpu_load_tile(const attn_cpu_walk *w, const attn_cpu_rows *from, int64_t begin, uint64_t visible,
                        int32_t first, int32_t end, float scales[ATTN_CPU_KEYS]);

/* Ask for the cache lines of the rows that attn_cpu_load_tile() will read, into the second level: the first one holds
   the tile at work. Rows of one head lie far apart in a token-major pool, which the hardware does not foresee. */
void attn_cpu_prefetch_tile(const attn_cpu_walk *w, const attn_cpu_rows *from, attn_interval keys);

/* The rows of q to w->b.q: scaled where they are codes, rotated where K's rows are. */
void attn_cpu_load_queries(const attn_cpu_walk *w);

/* ---- What the expanded walk (cpu_expand.c) shares with that over a cache ----------------------------------------- */

/* Everything of a walk but its tile's buffers and its rows of K and V. */
void attn_cpu_start_walk(attn_cpu_walk *w, const attn_cpu_job *job, const attn_cpu_tile *tile, int32_t group);

/* The keys that some row of the tile may see. */
attn_interval attn_cpu_hull(const attn_cpu_walk *w);

/* Fill b.visible for the key tile at `begin`, within `share`; returns the union. */
uint64_t attn_cpu_find_visible(const attn_cpu_walk *w, int64_t begin, attn_interval share);

/* Soft cap, ALiBi and bias on the scores of a key tile, then the online softmax of each row. */
void attn_cpu_finish_scores(const attn_cpu_walk *w, int64_t begin, int32_t keys, float *m, float *l);

/* ---- Latent rows (cpu_latent.c) ---------------------------------------------------------------------------------- */

/* Latent rows of a key tile to `dst` as fp32, `stride` floats apart, scales applied: the latent part (of int4:
   rotated), then the rotary one; zero rows where the bit is clear, zeros behind the row. Rows of new tokens that are
   not written come from where they were given. */
void attn_cpu_load_latent(const attn_cpu_walk *w, int64_t begin, uint64_t visible, int32_t first, int32_t end,
                          float *dst, int32_t stride);

/* The rows of q, of one tensor or two, to w->b.q, their latent part rotated where the rows' is. */
void attn_cpu_load_latent_queries(const attn_cpu_walk *w);

#endif
