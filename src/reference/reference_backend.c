/* SPDX-License-Identifier: Apache-2.0 */
/* reference_backend.c: REFERENCE as the registry sees it: it accepts every valid problem and any split count, of which
 * it always uses 1, and needs the same small scratch whatever the lengths. */
#include "reference.h"

static int reference_supports(const attn_context *context, const attn_problem *problem,
                              const attn_plan_options *options, char reason[ATTN_REASON_BYTES]) {
  (void)context;
  (void)problem;
  (void)options;
  (void)reason;
  return 1;
}

static attn_status reference_cost(const attn_context *context, const attn_problem *problem,
                                  const attn_plan_limits *limits, const attn_plan_options *options,
                                  attn_plan_cost *cost, attn_message *message) {
  (void)context;
  (void)limits;
  (void)options;
  (void)message;
  cost->scratch_bytes = attn_reference_attention_bytes(problem);
  cost->excess_bytes = 0;
  cost->on_chip_bytes = cost->scratch_bytes;
  cost->preferred_block_size = 16;
  cost->max_splits = 1;
  return ATTN_OK;
}

static void reference_schedule(const attn_plan *plan, attn_step *step, void *scratch) {
  (void)scratch;
  step->splits = 1;
  step->work_items = step->num_tokens * plan->problem.num_q_heads;
}

static attn_status reference_run(const attn_plan *plan, const attn_run_view *view, void *scratch,
                                 attn_message *message) {
  (void)plan;
  (void)message;
  attn_reference_attention(view, scratch);
  return ATTN_OK;
}

static attn_status reference_cache_write(const attn_context *context, const attn_write_view *view,
                                         attn_message *message) {
  (void)context;
  (void)message;
  attn_reference_cache_write(view);
  return ATTN_OK;
}

static attn_status reference_cache_gather(const attn_context *context, const attn_gather_view *view,
                                          attn_message *message) {
  (void)context;
  (void)message;
  attn_reference_cache_gather(view);
  return ATTN_OK;
}

static attn_status reference_cache_copy(const attn_context *context, const attn_copy_view *view,
                                        attn_message *message) {
  (void)context;
  (void)message;
  attn_reference_cache_copy(view);
  return ATTN_OK;
}

static attn_status reference_cache_swap(const attn_context *context, const attn_copy_view *view,
                                        attn_message *message) {
  (void)context;
  (void)message;
  attn_reference_cache_swap(view);
  return ATTN_OK;
}

static attn_status reference_cache_requantise(const attn_context *context, const attn_requantise_view *view,
                                              attn_message *message) {
  (void)context;
  (void)message;
  attn_reference_cache_requantise(view);
  return ATTN_OK;
}

static attn_status reference_merge(const attn_context *context, const attn_merge_view *view, attn_message *message) {
  (void)context;
  attn_status status = attn_reference_merge(view);
  if (status != ATTN_OK) {
    return attn_fail(message, ATTN_E_INTERNAL, "REFERENCE: a part that was checked has no view");
  }
  return ATTN_OK;
}

const attn_backend attn_reference_backend = {
    .name = "REFERENCE",
    .device = ATTN_DEVICE_CPU,
    .rows = ATTN_ROWS_KV | ATTN_ROWS_LATENT,
    .supports = reference_supports,
    .cost = reference_cost,
    .schedule = reference_schedule,
    .run = reference_run,
    .cache_write = reference_cache_write,
    .cache_gather = reference_cache_gather,
    .cache_copy = reference_cache_copy,
    .cache_swap = reference_cache_swap,
    .cache_requantise = reference_cache_requantise,
    .merge = reference_merge,
};
