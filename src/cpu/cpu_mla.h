/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_mla.h: how CPU_MLA serves the three forms of a latent problem.
 *
 * mqa is a walk of CPU_ATTN over one KV head whose values are the beginning of its keys (cpu_tile.c, cpu_latent.c).
 *
 * mha expands (cpu_expand.c): an item is one head of up to ATTN_CPU_EXPAND_ROWS tokens of a sequence. It takes the keys
 * in chunks, expands a chunk's rows by the head's projection, and lets every row tile of the item see them; the online
 * softmax of all its rows goes on from chunk to chunk, so that nothing is left to merge and the memory does not depend
 * on the context.
 *
 * A layer (cpu_layer.c) does so with its long sequences. Tokens of short ones go in rounds that the workspace has room
 * for: queries absorbed head by head, mqa in fp32, results projected up head by head.
 */
#ifndef ATTN_CPU_MLA_H
#define ATTN_CPU_MLA_H

#include "cpu/cpu_tile.h"

#define ATTN_CPU_EXPAND_ROWS 4096
#define ATTN_CPU_TOKENS 64 /* tokens of one head that a projection takes at a time */

/* Sizes of the expanded part; nothing depends on the length of a sequence. */
typedef struct attn_cpu_expand {
  attn_cpu_shape shape; /* of a row tile: one head */
  int32_t chunk;        /* keys expanded at a time */
  int32_t item_rows;    /* most rows of an item */
  int32_t raw_padded;   /* rank + rotary, padded */
  int32_t rank_padded;
  uint64_t thread_bytes;
} attn_cpu_expand;

/* 1 when the sizes fit 64 bits. */
int attn_cpu_expand_of(const attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                       attn_cpu_expand *expand);

/* The expanded part of a run: the sequences with more than `threshold` tokens. */
typedef struct attn_cpu_expand_job {
  attn_cpu_job job; /* scratch.threads: [threads, thread_bytes] */
  attn_cpu_expand sizes;
  int32_t threshold;
  uint64_t thread_bytes; /* from one thread's memory to the next */
} attn_cpu_expand_job;

/* Items of a step. */
int64_t attn_cpu_expand_items(const attn_problem *problem, const attn_step *step, const attn_cpu_expand *sizes,
                              int32_t threshold);
void attn_cpu_expand_item(const attn_cpu_expand_job *e, int64_t item, size_t thread);

/* Sizes of a layer. */
typedef struct attn_cpu_layer {
  attn_problem inner;      /* the absorbed part as an mqa problem in fp32 */
  attn_cpu_shape absorbed; /* of a round */
  attn_cpu_expand expand;
  int32_t threshold;
  int32_t round_tokens;
  int32_t q_padded; /* floats of a (token, head) of absorbed queries and of latent results */
  int32_t o_padded;
  uint64_t threads_at; /* offsets into the scratch; what all threads need of whichever part is the largest */
  uint64_t queries_at;
  uint64_t results_at;
  uint64_t thread_bytes;
  uint64_t total_bytes;
} attn_cpu_layer;

int attn_cpu_layer_of(const attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                      int32_t num_splits, attn_split_rule split_rule, attn_cpu_layer *layer);
void attn_cpu_layer_schedule(const attn_plan *plan, attn_step *step, void *memory);
void attn_cpu_layer_run(const attn_plan *plan, const attn_run_view *view, void *memory);

/* Where the two forms cost the same: tokens of a sequence. Per key and head, absorbed 2 q (2 L + R) operations,
   expanded 2 L (nope + v) + 2 q (nope + R + v). */
int32_t attn_cpu_mla_threshold(const attn_problem *problem);

/* count items on all threads of a context. */
void attn_cpu_run_items(const attn_context *context, void (*run)(const void *job, int64_t item, size_t thread),
                        const void *job, int64_t count);

#endif
