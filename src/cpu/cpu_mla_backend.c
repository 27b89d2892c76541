/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_mla_backend.c: the CPU_MLA backend (cpu_mla.h): which form a plan is for, what it costs, and its run. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/fault.h"
#include "core/threads.h"
#include "cpu/cpu_mla.h"

#define PREFERRED_BLOCK_SIZE 64 /* one key tile */

static int supports(const attn_context *context, const attn_problem *p, const attn_plan_options *options,
                    char reason[ATTN_REASON_BYTES]) {
  const int32_t most = INT32_MAX / 2;
  (void)context;
  (void)options;
  if (p->kv_lora_rank == 0) {
    (void)snprintf(reason, ATTN_REASON_BYTES, "kv_lora_rank: 0, accepted: 1 or more (CPU_ATTN serves rows of K and V)");
    return 0;
  }
  if (p->qk_head_size > most || p->v_head_size > most || p->kv_lora_rank > most - p->qk_rope_head_dim) {
    int32_t size = p->qk_head_size > p->v_head_size ? p->qk_head_size : p->v_head_size;
    (void)snprintf(reason, ATTN_REASON_BYTES, "rows of %d elements, accepted: up to %d",
                   (int)(size > most ? size : p->kv_lora_rank), (int)most);
    return 0;
  }
  return 1;
}

static int add_cost(const attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                    int32_t num_splits, attn_split_rule split_rule, attn_plan_cost *cost) {
  attn_cpu_shape shape;
  attn_cpu_expand expand;
  attn_cpu_layer layer;
  switch (problem->mla_form) {
  case ATTN_MLA_MQA:
    if (!attn_cpu_shape_of(context, problem, limits, num_splits, split_rule, &shape)) {
      return 0;
    }
    cost->scratch_bytes = shape.total_bytes;
    cost->on_chip_bytes = shape.thread_bytes;
    cost->max_splits = shape.max_pieces;
    return 1;
  case ATTN_MLA_MHA:
    if (!attn_cpu_expand_of(context, problem, limits, &expand) ||
        attn_mul_overflow(expand.thread_bytes, (uint64_t)context->threads.num_threads, &cost->scratch_bytes)) {
      return 0;
    }
    cost->on_chip_bytes = expand.thread_bytes;
    cost->max_splits = 1;
    return 1;
  default:
    if (!attn_cpu_layer_of(context, problem, limits, num_splits, split_rule, &layer)) {
      return 0;
    }
    cost->scratch_bytes = layer.total_bytes;
    cost->on_chip_bytes = layer.thread_bytes;
    cost->max_splits = layer.absorbed.max_pieces;
    cost->mla_threshold = layer.threshold;
    return 1;
  }
}

static attn_status cost(const attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                        const attn_plan_options *options, attn_plan_cost *cost, attn_message *message) {
  attn_plan_cost automatic;
  memset(&automatic, 0, sizeof automatic);
  if (!add_cost(context, problem, limits, options->num_splits, options->split_rule, cost) ||
      !add_cost(context, problem, limits, 0, ATTN_SPLIT_DEFAULT, &automatic)) {
    return attn_fail(
        message, ATTN_E_OVERFLOW,
        "workspace: %lld tokens of %d heads in %d splits do not fit 64 bits; lower the limits or num_splits",
        (long long)limits->max_tokens, (int)problem->num_q_heads, (int)options->num_splits);
  }
  cost->excess_bytes =
      cost->scratch_bytes > automatic.scratch_bytes ? cost->scratch_bytes - automatic.scratch_bytes : 0;
  cost->preferred_block_size = PREFERRED_BLOCK_SIZE;
  return ATTN_OK;
}

static void schedule(const attn_plan *plan, attn_step *step, void *scratch) {
  attn_cpu_expand expand;
  switch (plan->problem.mla_form) {
  case ATTN_MLA_MQA:
    attn_cpu_schedule(plan, step, scratch);
    break;
  case ATTN_MLA_MHA:
    (void)attn_cpu_expand_of(plan->context, &plan->problem, &plan->limits, &expand);
    step->splits = 1;
    step->work_items = attn_cpu_expand_items(&plan->problem, step, &expand, 0);
    break;
  default:
    attn_cpu_layer_schedule(plan, step, scratch);
    break;
  }
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

typedef struct pass {
  const void *job;
  void (*run)(const void *job, int64_t item, size_t thread);
  int64_t count;
  atomic_llong next;
} pass;

static void run_pass_thread(void *argument, size_t thread) {
  pass *p = argument;
  for (;;) {
    int64_t item = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
    if (item >= p->count) {
      return;
    }
    p->run(p->job, item, thread);
  }
}

void attn_cpu_run_items(const attn_context *context, void (*run)(const void *job, int64_t item, size_t thread),
                        const void *job, int64_t count) {
  pass p;
  p.job = job;
  p.run = run;
  p.count = count;
  atomic_init(&p.next, 0);
  if (count > 0) {
    attn_threads_run(&context->threads, run_pass_thread, &p);
  }
}

static void run_expanded_item(const void *job, int64_t item, size_t thread) {
  attn_cpu_expand_item(job, item, thread);
}

static void run_mha(const attn_plan *plan, const attn_run_view *view, unsigned char *scratch) {
  attn_cpu_expand_job e;
  memset(&e, 0, sizeof e);
  e.job.plan = plan;
  e.job.problem = &plan->problem;
  e.job.view = view;
  e.job.table = plan->context->table;
  (void)attn_cpu_expand_of(plan->context, &plan->problem, &plan->limits, &e.sizes);
  e.job.shape = e.sizes.shape;
  e.job.scratch.threads = scratch;
  e.thread_bytes = e.sizes.thread_bytes;
  attn_cpu_run_items(plan->context, run_expanded_item, &e,
                     attn_cpu_expand_items(&plan->problem, view->step, &e.sizes, e.threshold));
}

static attn_status run(const attn_plan *plan, const attn_run_view *view, void *scratch, attn_message *message) {
  switch (plan->problem.mla_form) {
  case ATTN_MLA_MQA:
    return attn_cpu_run_plan(plan, view, scratch, message);
  case ATTN_MLA_MHA:
    run_mha(plan, view, scratch);
    return ATTN_OK;
  default:
    attn_cpu_layer_run(plan, view, scratch);
    return ATTN_OK;
  }
}

const attn_backend attn_cpu_mla_backend = {
    .name = "CPU_MLA",
    .device = ATTN_DEVICE_CPU,
    .rows = ATTN_ROWS_LATENT,
    .supports = supports,
    .cost = cost,
    .schedule = schedule,
    .run = run,
    .cache_write = attn_cpu_cache_write,
    .cache_gather = attn_cpu_cache_gather,
    .cache_copy = attn_cpu_cache_copy,
    .cache_swap = attn_cpu_cache_swap,
    .cache_requantise = attn_cpu_cache_requantise,
    .merge = attn_cpu_merge,
};
