/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_work.h: how CPU_ATTN cuts a step into work items, and where its scratch memory lies.
 *
 * The rows of a sequence and KV head are its (token, head of the group) pairs, token-major; up to `tile_rows`
 * consecutive rows form a row tile, so that all heads of a group, and neighbouring tokens, share one pass over the
 * cache. The keys of a row tile are walked in tiles of ATTN_CPU_KEYS at fixed positions and may be cut into `pieces`,
 * each a work item whose partial state (m, l, acc) lies in a slot until a second pass folds the pieces in order.
 *
 * Batch-invariant plans cut the keys at multiples of ATTN_CPU_CHUNK, fold chunk by chunk in order whether the chunks
 * were computed by one item or by many, and so give the same bits either way.
 */
#ifndef ATTN_CPU_WORK_H
#define ATTN_CPU_WORK_H

#include "core/mask.h"
#include "core/plan_impl.h"
#include "cpu/table.h"

#define ATTN_CPU_CHUNK 512 /* keys between two cuts of a batch-invariant plan; a multiple of ATTN_CPU_KEYS */

/* Sizes that follow from problem, limits, threads and split count alone: the one place that sizes the scratch. */
typedef struct attn_cpu_shape {
  int32_t group;     /* query heads per KV head */
  int32_t qk_padded; /* head sizes rounded up to ATTN_CPU_PAD */
  int32_t v_padded;
  int32_t tile_rows;
  int32_t max_pieces; /* most pieces of a row tile */
  int64_t slot_rows;  /* rows of partial state */
  uint64_t seqs_bytes;
  uint64_t slot_state_bytes; /* m and l of all slot rows */
  uint64_t slot_acc_bytes;
  uint64_t thread_bytes;
  uint64_t total_bytes;
} attn_cpu_shape;

/* 1 when the sizes fit 64 bits. num_splits 0: automatic. */
int attn_cpu_shape_of(const attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                      int32_t num_splits, attn_split_rule split_rule, attn_cpu_shape *shape);

/* One share of the schedule: rows of one sequence; all of them, but where a layer takes a step in rounds. */
typedef struct attn_cpu_seq {
  int32_t seq;
  int64_t first_row;   /* (token, head of the group) pairs of the sequence before this share */
  int64_t rows;        /* of this share, per KV head */
  int64_t first_item;  /* items of earlier sequences */
  int64_t first_merge; /* merge items of earlier sequences */
  int64_t first_slot;  /* slot rows of earlier sequences */
  int64_t tiles;       /* row tiles per KV head */
  int32_t pieces;      /* pieces per row tile; > 1: merged afterwards */
  int32_t first_chunk; /* batch-invariant: chunk of piece 0 */
} attn_cpu_seq;

/* The scratch, laid out. */
typedef struct attn_cpu_scratch {
  attn_cpu_seq *seqs; /* [shares + 1]: the last one holds the totals */
  float *slot_m;      /* [slot_rows] */
  float *slot_l;      /* [slot_rows] */
  float *slot_acc;    /* [slot_rows, v_padded] */
  unsigned char *threads;
} attn_cpu_scratch;

attn_cpu_scratch attn_cpu_scratch_at(const attn_cpu_shape *shape, void *memory);

/* One thread's buffers. */
typedef struct attn_cpu_buffers {
  float *q;                                 /* [tile_rows, qk_padded] */
  float *kv;                                /* [ATTN_CPU_KEYS, max(qk_padded, v_padded)] */
  float *s;                                 /* [tile_rows, ATTN_CPU_KEYS] */
  float *acc;                               /* [tile_rows, v_padded] */
  float *chunk_acc;                         /* [tile_rows, v_padded] */
  float *m, *l, *alpha, *chunk_m, *chunk_l; /* [tile_rows] */
  uint64_t *visible;                        /* [tile_rows] keys of the tile that each row sees */
} attn_cpu_buffers;

attn_cpu_buffers attn_cpu_buffers_at(const attn_cpu_shape *shape, const attn_cpu_scratch *scratch, size_t thread);

/* What the split rule looks at. */
typedef struct attn_cpu_cut {
  const attn_problem *problem;
  const attn_cpu_shape *shape;
  const attn_step *step;
  int32_t threads;
  int32_t num_splits; /* 0: automatic */
  attn_split_rule split_rule;
} attn_cpu_cut;

/* Cut the rows of `count` shares (seq, first_row, rows are set) into items; seqs[count] gets the totals. The most
   pieces that a row's keys are cut into, as reported. */
int32_t attn_cpu_cut_rows(const attn_cpu_cut *cut, attn_cpu_seq *seqs, int32_t count);

/* Pieces of the `compatible` rule for a batch whose longest sequence has max_kv_len keys; 0: as the default rule. */
int64_t attn_cpu_compatible_pieces(const attn_problem *problem, int32_t threads, const attn_step *step,
                                   int64_t max_kv_len);

/* The backend's schedule(). */
void attn_cpu_schedule(const attn_plan *plan, attn_step *step, void *memory);

/* Everything that the items of one run share. */
typedef struct attn_cpu_job {
  const attn_plan *plan;
  const attn_problem *problem; /* the plan's, or what a layer's part of it is */
  const attn_run_view *view;
  int32_t shares;     /* of scratch.seqs */
  int64_t token_base; /* the batch's token that row 0 of q, out and lse belongs to */
  const attn_cpu_table *table;
  attn_cpu_shape shape;
  attn_cpu_scratch scratch;
} attn_cpu_job;

/* A run of CPU_ATTN, or of a latent problem of form mqa. */
attn_status attn_cpu_run_plan(const attn_plan *plan, const attn_run_view *view, void *scratch, attn_message *message);

/* Compute work item `item` with the buffers of `thread`. */
void attn_cpu_run_item(const attn_cpu_job *job, int64_t item, size_t thread);

/* Fold the pieces of merge item `item` and write its rows. */
void attn_cpu_run_merge(const attn_cpu_job *job, int64_t item, size_t thread);

/* A row tile, found from an item's number. */
typedef struct attn_cpu_tile {
  int32_t share;
  int32_t seq;
  int32_t kv_head;
  int32_t piece;
  int64_t first_row; /* within the sequence's rows */
  int32_t rows;
  int64_t first_slot; /* slot row of this piece's first row */
} attn_cpu_tile;

/* Write the rows of a finished row tile: out, lse, out_scale. */
void attn_cpu_finish_rows(const attn_cpu_job *job, const attn_cpu_tile *tile, const float *m, const float *l,
                          float *acc);

/* Keys of rows to an fp32 tile of `padded` columns: `rows` rows, `stride` bytes apart, elements `element_stride`
   apart. */
void attn_cpu_load_rows(const attn_cpu_table *table, attn_dtype dtype, float *dst, const unsigned char *src,
                        int64_t stride, int64_t element_stride, int32_t rows, int32_t size, int32_t padded);

/* Rows of codes to fp32, without their scales (attn_decode_kernel). `element_stride` is the distance of the pool's
   elements, its bytes. */
void attn_cpu_decode_rows(const attn_cpu_table *table, attn_code code, float *dst, const unsigned char *src,
                          int64_t stride, int64_t element_stride, const float *zero_points, int32_t rows, int32_t size,
                          int32_t padded);

/* One row divided, rounded and stored, elements `element_stride` bytes apart. */
void attn_cpu_store_row(const attn_cpu_table *table, attn_dtype dtype, unsigned char *dst, int64_t element_stride,
                        const float *src, float divisor, int32_t size);

/* One row divided, in place, quantised and stored as fp8, with the scales of its groups where the problem has them. */
void attn_cpu_store_fp8(const attn_cpu_job *job, int64_t token, int64_t head, float *row, float divisor);

attn_status attn_cpu_cache_write(const attn_context *context, const attn_write_view *view, attn_message *message);
attn_status attn_cpu_cache_gather(const attn_context *context, const attn_gather_view *view, attn_message *message);
attn_status attn_cpu_cache_requantise(const attn_context *context, const attn_requantise_view *view,
                                      attn_message *message);
attn_status attn_cpu_cache_copy(const attn_context *context, const attn_copy_view *view, attn_message *message);
attn_status attn_cpu_cache_swap(const attn_context *context, const attn_copy_view *view, attn_message *message);
attn_status attn_cpu_merge(const attn_context *context, const attn_merge_view *view, attn_message *message);

#endif
