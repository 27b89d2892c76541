/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c: plans and schedules at the border. A schedule lives in the workspace: an attn_step with its lists, then the
   backend's scratch. */
#include "attn/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/cost.h"
#include "api/pool_view.h"
#include "api/step.h"
#include "api/workspace_busy.h"
#include "core/arithmetic.h"
#include "core/fault.h"
#include "core/load.h"
#include "core/registry.h"
#include "core/resolve.h"

#define STEP_MAGIC 0x6174746e2d737470u /* "attn-stp" */

/* Bytes of the step's header and three int32 lists of max_seqs + 1, each list 64-byte aligned. */
static uint64_t list_bytes(int32_t max_seqs) {
  return attn_round_up(((uint64_t)max_seqs + 1) * sizeof(int32_t), 64);
}

attn_status attn_plan_cost_of(const attn_context *context, const attn_backend *backend, const attn_problem *problem,
                              const attn_plan_limits *limits, const attn_plan_options *options, attn_plan_cost *cost,
                              size_t *step_bytes, size_t *workspace_bytes, attn_message *message) {
  memset(cost, 0, sizeof *cost);
  ATTN_TRY(backend->cost(context, problem, limits, options, cost, message));
  uint64_t step =
      attn_round_up(attn_round_up(sizeof(attn_step), 64) + 3 * list_bytes(limits->max_seqs), ATTN_WORKSPACE_ALIGN);
  uint64_t total;
  if (attn_add_overflow(step, cost->scratch_bytes, &total) || total > (uint64_t)(SIZE_MAX / 2)) {
    return attn_fail(message, ATTN_E_OVERFLOW,
                     "workspace: its bytes do not fit this machine; lower the limits or "
                     "num_splits");
  }
  *step_bytes = (size_t)step;
  *workspace_bytes = (size_t)attn_round_up(total, ATTN_WORKSPACE_ALIGN);
  return ATTN_OK;
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
  const unsigned char *byte = data;
  for (size_t i = 0; i < bytes; i++) {
    hash = (hash ^ byte[i]) * 0x100000001b3u; /* FNV-1a */
  }
  return hash;
}

/* Its address alone would not do: a plan made where an old one lay would take the old one's schedules for its own. */
static uint64_t fingerprint_of(const attn_plan *plan, const attn_plan *address) {
  uint64_t hash = 0xcbf29ce484222325u;
  hash = hash_bytes(hash, &address, sizeof address);
  hash = hash_bytes(hash, &plan->problem, sizeof plan->problem); /* neither struct has padding */
  hash = hash_bytes(hash, &plan->limits, sizeof plan->limits);
  hash = hash_bytes(hash, &plan->backend, sizeof plan->backend);
  hash = hash_bytes(hash, &plan->num_splits, sizeof plan->num_splits);
  hash = hash_bytes(hash, &plan->split_rule, sizeof plan->split_rule);
  return hash_bytes(hash, &plan->context->threads.num_threads, sizeof plan->context->threads.num_threads);
}

static attn_status fill_plan(attn_plan *plan, attn_context *context, const attn_problem *problem,
                             const attn_plan_limits *limits, const attn_plan_options *options, attn_message *message) {
  attn_plan_options o;
  ATTN_TRY(attn_problem_resolve(problem, &plan->problem, message));
  if (limits == NULL) {
    return attn_fail(message, ATTN_E_NULL, "limits: NULL, expected an attn_plan_limits");
  }
  ATTN_TRY(attn_limits_resolve(limits, &plan->limits, message));
  ATTN_TRY(attn_options_resolve(options, &plan->problem, &o, message));
  ATTN_TRY(attn_registry_select(context, &plan->problem, &o, &plan->backend, plan->reason, message));
  ATTN_TRY(attn_plan_cost_of(context, plan->backend, &plan->problem, &plan->limits, &o, &plan->cost, &plan->step_bytes,
                             &plan->workspace_bytes, message));
  plan->context = context;
  plan->num_splits = o.num_splits;
  plan->split_rule = o.split_rule;
  if (plan->problem.kv_source == ATTN_KV_CACHE && plan->problem.block_size == 0) {
    plan->problem.block_size = plan->cost.preferred_block_size;
  }
  return ATTN_OK;
}

attn_status attn_plan_create(attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                             const attn_plan_options *options, attn_plan **plan, attn_message *message) {
  ATTN_CHECK_POINTER(context, "context", message);
  ATTN_CHECK_POINTER(plan, "plan", message);
  attn_plan filled;
  memset(&filled, 0, sizeof filled);
  ATTN_TRY(fill_plan(&filled, context, problem, limits, options, message));
  attn_plan *made = malloc(sizeof *made);
  if (made == NULL) {
    return attn_fail(message, ATTN_E_NOMEM, "plan: %lu bytes could not be allocated", (unsigned long)sizeof *made);
  }
  if (options != NULL && options->own_workspace) {
    filled.own_workspace = aligned_alloc(ATTN_WORKSPACE_ALIGN, filled.workspace_bytes);
    if (filled.own_workspace == NULL) {
      free(made);
      return attn_fail(message, ATTN_E_NOMEM, "workspace: %lu bytes could not be allocated",
                       (unsigned long)filled.workspace_bytes);
    }
    memset(filled.own_workspace, 0, sizeof(attn_step)); /* so that a run before any schedule is told apart */
  }
  filled.fingerprint = fingerprint_of(&filled, made);
  *made = filled;
  *plan = made;
  return ATTN_OK;
}

void attn_plan_destroy(attn_plan *plan) {
  if (plan != NULL) {
    free(plan->own_workspace);
    free(plan);
  }
}

size_t attn_plan_workspace_bytes(const attn_plan *plan) {
  return plan != NULL ? plan->workspace_bytes : 0;
}

attn_status attn_plan_get_info(const attn_plan *plan, attn_plan_info *info, attn_message *message) {
  ATTN_CHECK_POINTER(plan, "plan", message);
  ATTN_CHECK_STRUCT(info, "info", attn_plan_info, message);
  info->backend = plan->backend->name;
  memcpy(info->reason, plan->reason, sizeof info->reason);
  info->workspace_bytes = plan->workspace_bytes;
  info->block_size = plan->problem.block_size;
  info->max_splits = plan->cost.max_splits;
  info->num_threads = plan->context->threads.num_threads;
  info->batch_invariant = plan->problem.batch_invariant;
  info->mla_threshold = plan->cost.mla_threshold;
  return ATTN_OK;
}

attn_status attn_workspace_of(const attn_plan *plan, const attn_workspace *workspace, unsigned char **data,
                              attn_message *message) {
  if (workspace == NULL) {
    if (plan->own_workspace == NULL) {
      return attn_fail(message, ATTN_E_STATE,
                       "workspace: NULL, and the plan owns none; give %lu bytes or set options.own_workspace",
                       (unsigned long)plan->workspace_bytes);
    }
    *data = plan->own_workspace;
    return ATTN_OK;
  }
  if (workspace->bytes + (attn_fault(ATTN_FAULT_WORKSPACE_SHORT) ? 1 : 0) < plan->workspace_bytes) {
    return attn_fail(message, ATTN_E_WORKSPACE, "workspace.bytes: %lu, accepted: %lu or more",
                     (unsigned long)workspace->bytes, (unsigned long)plan->workspace_bytes);
  }
  if (workspace->data == NULL) {
    return attn_fail(message, ATTN_E_NULL, "workspace.data: NULL, expected %lu bytes",
                     (unsigned long)plan->workspace_bytes);
  }
  if ((uintptr_t)workspace->data % ATTN_WORKSPACE_ALIGN != 0) {
    return attn_fail(message, ATTN_E_ALIGN, "workspace.data: not aligned to %d bytes", ATTN_WORKSPACE_ALIGN);
  }
  *data = workspace->data;
  return ATTN_OK;
}

attn_view attn_workspace_view(const attn_plan *plan, unsigned char *data) {
  attn_view view;
  memset(&view, 0, sizeof view);
  view.data = data;
  view.dtype = ATTN_DTYPE_UINT8;
  view.ndim = 1;
  view.shape[0] = (int64_t)plan->workspace_bytes;
  view.stride[0] = 1;
  return view;
}

attn_status attn_step_of(const attn_plan *plan, const attn_workspace *workspace, const attn_step **step,
                         unsigned char **scratch, attn_message *message) {
  unsigned char *data;
  ATTN_TRY(attn_workspace_of(plan, workspace, &data, message));
  const attn_step *found = (const attn_step *)(const void *)data;
  if (found->magic != STEP_MAGIC || found->self != found || found->fingerprint != plan->fingerprint) {
    return attn_fail(
        message, ATTN_E_STATE,
        "workspace: holds no schedule of this plan, or was moved since; call attn_plan_schedule with it first");
  }
  *step = found;
  *scratch = data + plan->step_bytes;
  return ATTN_OK;
}

/* ---- schedule ---------------------------------------------------------------------------------------------------- */

/* A list of int32; `extent` or any. */
static attn_status list_view(attn_view *view, const DLTensor *tensor, const char *name, int64_t extent,
                             attn_message *message) {
  return attn_view_make(view, tensor, name, ATTN_READ, ATTN_DTYPE_BIT(ATTN_DTYPE_INT32), 1, &extent, message);
}

/* Starts at 0, does not fall. */
static attn_status check_start_loc(const attn_view *list, const char *name, attn_message *message) {
  if (attn_int32_at(list, 0) != 0) {
    return attn_fail(message, ATTN_E_INDEX, "%s[0]: %d, accepted: 0", name, (int)attn_int32_at(list, 0));
  }
  for (int64_t i = 1; i < list->shape[0]; i++) {
    if (attn_int32_at(list, i) < attn_int32_at(list, i - 1)) {
      return attn_fail(message, ATTN_E_INDEX, "%s[%lld]: %d falls below %d; accepted: entries that do not fall", name,
                       (long long)i, (int)attn_int32_at(list, i), (int)attn_int32_at(list, i - 1));
    }
  }
  return ATTN_OK;
}

typedef struct batch_views {
  attn_view query_start_loc;
  attn_view seq_lens;     /* with a cache */
  attn_view kv_start_loc; /* cross attention without one */
} batch_views;

static attn_status view_batch(const attn_plan *plan, const attn_batch *batch, batch_views *views,
                              attn_message *message) {
  memset(views, 0, sizeof *views);
  ATTN_TRY(list_view(&views->query_start_loc, batch->query_start_loc, "query_start_loc", ATTN_ANY, message));
  int64_t num_seqs = views->query_start_loc.shape[0] - 1;
  if (num_seqs < 0) {
    return attn_fail(message, ATTN_E_SHAPE, "query_start_loc: 0 entries, expected sequences + 1");
  }
  if (num_seqs > plan->limits.max_seqs) {
    return attn_fail(message, ATTN_E_CAPACITY, "query_start_loc: %lld sequences, the plan's max_seqs is %d",
                     (long long)num_seqs, (int)plan->limits.max_seqs);
  }
  ATTN_TRY(check_start_loc(&views->query_start_loc, "query_start_loc", message));
  if (plan->problem.kv_source == ATTN_KV_CACHE) {
    if (batch->kv_start_loc != NULL) {
      return attn_fail(message, ATTN_E_NULL, "kv_start_loc: given, accepted: NULL with a cache (give seq_lens)");
    }
    return list_view(&views->seq_lens, batch->seq_lens, "seq_lens", num_seqs, message);
  }
  if (batch->seq_lens != NULL) {
    return attn_fail(message, ATTN_E_NULL, "seq_lens: given, accepted: NULL without a cache (give kv_start_loc)");
  }
  if (batch->kv_start_loc != NULL && plan->problem.kv_lora_rank > 0) {
    return attn_fail(message, ATTN_E_NULL, "kv_start_loc: given, accepted: NULL with a latent problem");
  }
  if (batch->kv_start_loc != NULL) {
    ATTN_TRY(list_view(&views->kv_start_loc, batch->kv_start_loc, "kv_start_loc", num_seqs + 1, message));
    return check_start_loc(&views->kv_start_loc, "kv_start_loc", message);
  }
  views->kv_start_loc = views->query_start_loc;
  return ATTN_OK;
}

static int64_t kv_len_of(const attn_plan *plan, const batch_views *views, int64_t seq) {
  if (plan->problem.kv_source == ATTN_KV_CACHE) {
    return attn_int32_at(&views->seq_lens, seq);
  }
  return (int64_t)attn_int32_at(&views->kv_start_loc, seq + 1) - attn_int32_at(&views->kv_start_loc, seq);
}

static attn_status check_capacity(const attn_plan *plan, const batch_views *views, attn_message *message) {
  int64_t num_seqs = views->query_start_loc.shape[0] - 1;
  int64_t num_tokens = attn_int32_at(&views->query_start_loc, num_seqs);
  if (num_tokens > plan->limits.max_tokens) {
    return attn_fail(message, ATTN_E_CAPACITY, "query_start_loc[%lld]: %lld tokens, the plan's max_tokens is %lld",
                     (long long)num_seqs, (long long)num_tokens, (long long)plan->limits.max_tokens);
  }
  const char *name = plan->problem.kv_source == ATTN_KV_CACHE ? "seq_lens" : "kv_start_loc";
  for (int64_t s = 0; s < num_seqs; s++) {
    int64_t kv_len = kv_len_of(plan, views, s);
    if (kv_len < 0) {
      return attn_fail(message, ATTN_E_INDEX, "seq_lens[%lld]: %lld, accepted: 0 or more", (long long)s,
                       (long long)kv_len);
    }
    if (kv_len > plan->limits.max_kv_len) {
      return attn_fail(message, ATTN_E_CAPACITY, "%s[%lld]: %lld keys, the plan's max_kv_len is %lld", name,
                       (long long)s, (long long)kv_len, (long long)plan->limits.max_kv_len);
    }
  }
  return ATTN_OK;
}

static void write_step(const attn_plan *plan, const batch_views *views, unsigned char *data) {
  attn_step *step = (attn_step *)(void *)data;
  unsigned char *lists = data + attn_round_up(sizeof *step, 64);
  uint64_t bytes = list_bytes(plan->limits.max_seqs);
  memset(step, 0, sizeof *step);
  step->self = step;
  step->fingerprint = plan->fingerprint;
  step->num_seqs = (int32_t)(views->query_start_loc.shape[0] - 1);
  step->num_tokens = attn_int32_at(&views->query_start_loc, step->num_seqs);
  step->query_start_loc = (int32_t *)(void *)lists;
  step->kv_lens = (int32_t *)(void *)(lists + bytes);
  step->kv_start_loc = plan->problem.kv_source == ATTN_KV_CACHE ? NULL : (int32_t *)(void *)(lists + 2 * bytes);
  for (int32_t s = 0; s <= step->num_seqs; s++) {
    step->query_start_loc[s] = attn_int32_at(&views->query_start_loc, s);
    if (step->kv_start_loc != NULL) {
      step->kv_start_loc[s] = attn_int32_at(&views->kv_start_loc, s);
    }
  }
  for (int32_t s = 0; s < step->num_seqs; s++) {
    step->kv_lens[s] = (int32_t)kv_len_of(plan, views, s);
    step->max_kv_len = attn_max(step->max_kv_len, step->kv_lens[s]);
  }
  step->num_kv_tokens = step->kv_start_loc != NULL ? step->kv_start_loc[step->num_seqs] : 0;
  plan->backend->schedule(plan, step, data + plan->step_bytes);
  step->magic = STEP_MAGIC;
}

attn_status attn_plan_schedule(const attn_plan *plan, const attn_batch *batch, const attn_workspace *workspace,
                               attn_message *message) {
  ATTN_CHECK_POINTER(plan, "plan", message);
  ATTN_CHECK_STRUCT(batch, "batch", attn_batch, message);
  unsigned char *data;
  batch_views views;
  ATTN_TRY(view_batch(plan, batch, &views, message));
  ATTN_TRY(check_capacity(plan, &views, message));
  ATTN_TRY(attn_workspace_of(plan, workspace, &data, message));
  attn_view memory = attn_workspace_view(plan, data);
  ATTN_TRY(attn_refuse_overlap(&memory, "workspace", &views.query_start_loc, "query_start_loc", message));
  ATTN_TRY(attn_refuse_overlap(&memory, "workspace", &views.seq_lens, "seq_lens", message));
  ATTN_TRY(attn_refuse_overlap(&memory, "workspace", &views.kv_start_loc, "kv_start_loc", message));
  ATTN_TRY(attn_workspace_take(plan, data, message));
  write_step(plan, &views, data);
  attn_workspace_give_back(plan, data);
  return ATTN_OK;
}

attn_status attn_schedule_get_info(const attn_plan *plan, const attn_workspace *workspace, attn_schedule_info *info,
                                   attn_message *message) {
  ATTN_CHECK_POINTER(plan, "plan", message);
  ATTN_CHECK_STRUCT(info, "info", attn_schedule_info, message);
  const attn_step *step;
  unsigned char *scratch;
  ATTN_TRY(attn_step_of(plan, workspace, &step, &scratch, message));
  info->num_seqs = step->num_seqs;
  info->num_tokens = step->num_tokens;
  info->splits = step->splits;
  info->work_items = step->work_items;
  return ATTN_OK;
}
