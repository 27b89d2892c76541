/* SPDX-License-Identifier: Apache-2.0 */
/* mask.h: visibility as intervals, for argument checks and for every backend but REFERENCE (which has its own).
 *
 * For one row at position q the visible keys are one interval (causal, windows and chunk all cut intervals) united with
 * one interval per prefix range that holds q. Positions are int64: q is negative where q_len exceeds kv_len.
 */
#ifndef ATTN_CORE_MASK_H
#define ATTN_CORE_MASK_H

#include "core/arithmetic.h"
#include "core/plan_impl.h"

typedef struct attn_interval {
  int64_t begin;
  int64_t end; /* one past; empty when end <= begin */
} attn_interval;

/* The mask of one sequence. */
typedef struct attn_mask {
  int64_t kv_len;
  int64_t window_left;  /* -1: open */
  int64_t window_right; /* -1: open */
  int64_t chunk_size;   /* 0: off */
  int64_t chunk_lookback;
  int causal;
  int prefix_clamp;
  int has_room; /* the last block holds a position at kv_len (planted faults only) */
  int64_t num_ranges;
  const unsigned char *ranges; /* [num_ranges, 2] int32 */
  int64_t range_stride;        /* bytes */
  int64_t bound_stride;        /* bytes */
} attn_mask;

/* The mask of sequence `seq` of a run. */
attn_mask attn_mask_of(const attn_run_view *view, int32_t seq);

/* Keys that the row sees without its prefix ranges. */
attn_interval attn_mask_base(const attn_mask *mask, int64_t q);

/* Keys that range i adds to the row; empty when it does not hold q. */
attn_interval attn_mask_prefix(const attn_mask *mask, int64_t i, int64_t q);

/* Smallest interval that holds every key seen by some row q_begin <= q < q_end. */
attn_interval attn_mask_hull(const attn_mask *mask, int64_t q_begin, int64_t q_end);

/* 1 when row q sees key k. */
int attn_mask_sees(const attn_mask *mask, int64_t q, int64_t k);

#endif
