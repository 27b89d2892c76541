/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_finish.c: what surrounds the walk over the keys: finding a row tile by its number, folding the pieces of cut
   rows, and writing finished rows. */
#include <math.h>
#include <string.h>

#include "core/fault.h"
#include "core/load.h"
#include "core/rotation.h"
#include "cpu/cpu_tile.h"

/* The share whose items hold number `item`: the last one that starts at or before it and is not empty. */
static int32_t find_share(const attn_cpu_seq *seqs, int32_t shares, int64_t item, int merge) {
  int32_t low = 0;
  int32_t high = shares - 1;
  while (low < high) {
    int32_t middle = low + (high - low + 1) / 2;
    if ((merge ? seqs[middle].first_merge : seqs[middle].first_item) <= item) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

attn_cpu_tile attn_cpu_find_tile(const attn_cpu_job *job, int64_t item, int merge) {
  attn_cpu_tile tile;
  tile.share = find_share(job->scratch.seqs, job->shares, item, merge);
  const attn_cpu_seq *seq = &job->scratch.seqs[tile.share];
  tile.seq = seq->seq;
  int64_t within = item - (merge ? seq->first_merge : seq->first_item);
  tile.piece = merge ? 0 : (int32_t)(within % seq->pieces);
  int64_t row_tile = merge ? within : within / seq->pieces;
  tile.kv_head = (int32_t)(row_tile / seq->tiles);
  int64_t row = row_tile % seq->tiles * job->shape.tile_rows;
  tile.first_row = seq->first_row + row;
  tile.rows = (int32_t)attn_min(job->shape.tile_rows, seq->rows - row);
  tile.first_slot = seq->first_slot + (tile.kv_head * seq->rows + row) * seq->pieces + (int64_t)tile.piece * tile.rows;
  return tile;
}

/* exp(sink - m) in the units of l and acc; where the sink is the larger, both are scaled down instead. The difference
   is taken in double: its rounding would be the result's relative error. */
static float denominator(float m, float l, float sink, float *factor) {
  *factor = 1.0f;
  if (sink == -INFINITY || l == 0.0f) {
    return l;
  }
  if (sink > m) {
    *factor = (float)exp((double)m - (double)sink);
    return l * *factor + 1.0f;
  }
  return l + (float)exp((double)sink - (double)m);
}

static float sink_of(const attn_cpu_job *job, const attn_cpu_tile *tile, int64_t head) {
  if (!job->problem->has_sinks) {
    return -INFINITY;
  }
  float sink = attn_float_at(&job->view->sinks, head);
  if (attn_fault(ATTN_FAULT_SINK_TWICE)) {
    sink += logf(2.0f);
  }
  if (attn_fault(ATTN_FAULT_SINK_SPLIT)) {
    sink += job->scratch.seqs != NULL ? logf((float)job->scratch.seqs[tile->share].pieces) : 0.0f;
  }
  return sink;
}

static float lse_of(float m, float l, float sink) {
  if (attn_fault(ATTN_FAULT_SINK_LSE) && sink != -INFINITY) {
    return (float)(log((double)l * exp((double)m) + exp((double)sink)));
  }
  double lse = (double)m + log((double)l);
  return (float)(attn_fault(ATTN_FAULT_LSE_BASE2) ? lse * 1.4426950408889634 : lse);
}

static void store_lse(const attn_cpu_job *job, int64_t token, int64_t head, float lse) {
  const attn_view *view = &job->view->lse;
  if (view->ndim == 0) {
    return;
  }
  unsigned char *address = view->data + token * view->stride[0] + head * view->stride[1];
  if (attn_fault(ATTN_FAULT_LSE_TRANSPOSED)) {
    address = view->data + (head * job->view->step->num_tokens + token) * (int64_t)sizeof lse;
  }
  memcpy(address, &lse, sizeof lse);
}

/* The wrong answer of ATTN_FAULT_EMPTY_MEAN: a constant stands for the mean. */
static void spoil_empty(float *row, int32_t size) {
  for (int32_t i = 0; i < size; i++) {
    row[i] = 0.25f;
  }
}

/* V's rows are stored rotated, and so is their weighted sum. */
static int has_rotated_values(const attn_cpu_job *job) {
  const attn_format_facts *facts = job->problem->kv_lora_rank == 0          ? job->view->v_rows.facts
                                   : job->problem->mla_form == ATTN_MLA_MQA ? job->view->k_rows.facts
                                                                            : NULL; /* expanded from un-rotated rows */
  return job->view->v.ndim == 0 && facts != NULL && facts->rotated;
}

static void unrotate(float *acc, int32_t size) {
  attn_rotation_undo(acc, size);
  for (int32_t i = 0; attn_fault(ATTN_FAULT_ROTATION_OUT) && i < size; i++) {
    acc[i] = attn_rotation_sign(i) != 0 ? -acc[i] : acc[i];
  }
}

static void finish_row(const attn_cpu_job *job, const attn_cpu_tile *tile, int32_t r, float m, float l, float *acc) {
  const attn_view *out = &job->view->out;
  const attn_problem *p = job->problem;
  int64_t row = tile->first_row + r;
  int64_t token = job->view->step->query_start_loc[tile->seq] + row / job->shape.group - job->token_base;
  int64_t head = (int64_t)tile->kv_head * job->shape.group + row % job->shape.group;
  float sink = sink_of(job, tile, head);
  store_lse(job, token, head, l == 0.0f ? -INFINITY : lse_of(m, l, sink));
  if (attn_fault(ATTN_FAULT_GROUP_ORDER)) {
    head = (int64_t)tile->kv_head * job->shape.group + (job->shape.group - 1 - row % job->shape.group);
  }
  float factor;
  float divisor = denominator(m, l, sink, &factor);
  if (factor != 1.0f) {
    for (int32_t i = 0; i < p->v_head_size; i++) {
      acc[i] *= factor;
    }
  }
  if (l == 0.0f) { /* no key seen: the empty state, whatever the buffer holds */
    memset(acc, 0, (size_t)p->v_head_size * sizeof *acc);
    divisor = 1.0f;
    if (attn_fault(ATTN_FAULT_EMPTY_UNWRITTEN)) {
      return;
    }
    if (attn_fault(ATTN_FAULT_EMPTY_MEAN)) {
      spoil_empty(acc, p->v_head_size);
    }
  }
  if (l != 0.0f && has_rotated_values(job)) {
    unrotate(acc, p->v_head_size);
  }
  if (out->dtype == ATTN_DTYPE_FP8_E4M3) {
    attn_cpu_store_fp8(job, token, head, acc, divisor);
    return;
  }
  attn_cpu_store_row(job->table, out->dtype, out->data + token * out->stride[0] + head * out->stride[1], out->stride[2],
                     acc, divisor, p->v_head_size);
}

void attn_cpu_finish_rows(const attn_cpu_job *job, const attn_cpu_tile *tile, const float *m, const float *l,
                          float *acc) {
  for (int32_t r = 0; r < tile->rows; r++) {
    finish_row(job, tile, r, m[r], l[r], acc + (int64_t)r * job->shape.v_padded);
  }
}

void attn_cpu_run_merge(const attn_cpu_job *job, int64_t item, size_t thread) {
  attn_cpu_tile tile = attn_cpu_find_tile(job, item, 1);
  attn_cpu_buffers b = attn_cpu_buffers_at(&job->shape, &job->scratch, thread);
  const attn_cpu_scratch *scratch = &job->scratch;
  int32_t padded = job->shape.v_padded;
  int32_t pieces = scratch->seqs[tile.share].pieces;
  for (int32_t r = 0; r < tile.rows; r++) {
    float *acc = b.acc + (int64_t)r * padded;
    b.m[r] = -INFINITY;
    b.l[r] = 0.0f;
    memset(acc, 0, (size_t)padded * sizeof *acc);
    for (int32_t piece = 0; piece < pieces; piece++) {
      int32_t from = attn_fault(ATTN_FAULT_SPLIT_STALE) && piece == pieces - 1 ? piece - 1 : piece;
      int64_t slot = tile.first_slot + (int64_t)from * tile.rows + r;
      job->table->fold(&b.m[r], &b.l[r], acc, scratch->slot_m[slot], scratch->slot_l[slot],
                       scratch->slot_acc + slot * padded, padded);
    }
  }
  attn_cpu_finish_rows(job, &tile, b.m, b.l, b.acc);
}
