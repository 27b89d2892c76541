/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_backend.c: the CPU_ATTN backend: what it costs, and a run as two passes over a shared counter: the work items,
   then the merges of those rows whose keys were cut. */
#include <stdio.h>
#include <string.h>

#include "core/fault.h"
#include "core/threads.h"
#include "cpu/cpu_mla.h"

#define PREFERRED_BLOCK_SIZE 64 /* one key tile: a tile is then one run of consecutive rows */

static int supports(const attn_context *context, const attn_problem *problem, const attn_plan_options *options,
                    char reason[ATTN_REASON_BYTES]) {
  (void)context;
  (void)options;
  if (problem->kv_lora_rank > 0) {
    (void)snprintf(reason, ATTN_REASON_BYTES, "kv_lora_rank: %d, accepted: 0 (CPU_MLA serves latent rows)",
                   (int)problem->kv_lora_rank);
    return 0;
  }
  /* the buffers of one row tile are sized in 64 bits, head sizes are padded in 32 */
  if (problem->qk_head_size > INT32_MAX / 2 || problem->v_head_size > INT32_MAX / 2) {
    (void)snprintf(reason, ATTN_REASON_BYTES, "%s: %d, accepted: up to %d",
                   problem->qk_head_size > INT32_MAX / 2 ? "qk_head_size" : "v_head_size",
                   (int)(problem->qk_head_size > INT32_MAX / 2 ? problem->qk_head_size : problem->v_head_size),
                   INT32_MAX / 2);
    return 0;
  }
  return 1;
}

static attn_status cost(const attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                        const attn_plan_options *options, attn_plan_cost *cost, attn_message *message) {
  attn_cpu_shape shape;
  attn_cpu_shape automatic;
  if (!attn_cpu_shape_of(context, problem, limits, options->num_splits, options->split_rule, &shape) ||
      !attn_cpu_shape_of(context, problem, limits, 0, ATTN_SPLIT_DEFAULT, &automatic)) {
    return attn_fail(
        message, ATTN_E_OVERFLOW,
        "workspace: %lld tokens of %d heads in %d splits do not fit 64 bits; lower the limits or num_splits",
        (long long)limits->max_tokens, (int)problem->num_q_heads, (int)options->num_splits);
  }
  cost->scratch_bytes = shape.total_bytes;
  cost->excess_bytes = shape.total_bytes > automatic.total_bytes ? shape.total_bytes - automatic.total_bytes : 0;
  cost->on_chip_bytes = shape.thread_bytes;
  cost->preferred_block_size = PREFERRED_BLOCK_SIZE;
  cost->max_splits = shape.max_pieces;
  return ATTN_OK;
}

static void run_item(const void *job, int64_t item, size_t thread) {
  attn_cpu_run_item(job, item, thread);
}

static void run_merge(const void *job, int64_t item, size_t thread) {
  attn_cpu_run_merge(job, item, thread);
}

attn_status attn_cpu_run_plan(const attn_plan *plan, const attn_run_view *view, void *scratch, attn_message *message) {
  (void)message;
  attn_cpu_job job;
  memset(&job, 0, sizeof job);
  job.plan = plan;
  job.problem = &plan->problem;
  job.view = view;
  job.table = plan->context->table;
  job.shares = view->step->num_seqs;
  (void)attn_cpu_shape_of(plan->context, &plan->problem, &plan->limits, plan->num_splits, plan->split_rule, &job.shape);
  job.scratch = attn_cpu_scratch_at(&job.shape, scratch);
  const attn_cpu_seq *totals = &job.scratch.seqs[view->step->num_seqs];
  attn_cpu_run_items(plan->context, run_item, &job, totals->first_item);
  attn_cpu_run_items(plan->context, run_merge, &job, totals->first_merge);
  if (attn_fault(ATTN_FAULT_OUT_BEYOND) && view->out.shape[0] > view->step->num_tokens) {
    unsigned char *beyond = view->out.data + view->step->num_tokens * view->out.stride[0];
    memset(beyond, 0, attn_dtype_bytes(view->out.dtype));
  }
  return ATTN_OK;
}

const attn_backend attn_cpu_backend = {
    .name = "CPU_ATTN",
    .device = ATTN_DEVICE_CPU,
    .rows = ATTN_ROWS_KV,
    .supports = supports,
    .cost = cost,
    .schedule = attn_cpu_schedule,
    .run = attn_cpu_run_plan,
    .cache_write = attn_cpu_cache_write,
    .cache_gather = attn_cpu_cache_gather,
    .cache_copy = attn_cpu_cache_copy,
    .cache_swap = attn_cpu_cache_swap,
    .cache_requantise = attn_cpu_cache_requantise,
    .merge = attn_cpu_merge,
};
