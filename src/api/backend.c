/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c: contexts, the registry and the dry run at the border. */
#include "attn/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/cost.h"
#include "api/workspace_busy.h"
#include "core/registry.h"
#include "core/resolve.h"
#include "core/threads.h"
#include "cpu/cpu_features.h"
#include "cpu/table.h"

#define MAX_THREADS 1024

int32_t attn_device_count(attn_device_kind kind) {
  return kind == ATTN_DEVICE_CPU ? 1 : 0;
}

static attn_status check_device(const attn_context_options *options, attn_message *message) {
  if (options->device != ATTN_DEVICE_CPU && options->device != ATTN_DEVICE_CUDA &&
      options->device != ATTN_DEVICE_OPENCL) {
    return attn_fail(message, ATTN_E_RANGE, "device: %d, accepted: a value of attn_device_kind", (int)options->device);
  }
  if (options->device != ATTN_DEVICE_CPU) {
    return attn_fail(message, ATTN_E_NO_DEVICE, "device: %s is not built in; accepted: cpu",
                     attn_device_kind_name(options->device));
  }
  if (options->device_index != 0) {
    return attn_fail(message, ATTN_E_NO_DEVICE, "device_index: %d, accepted: 0 (the CPU is one device)",
                     (int)options->device_index);
  }
  return ATTN_OK;
}

attn_status attn_context_create(const attn_context_options *options, attn_context **context, attn_message *message) {
  ATTN_CHECK_POINTER(context, "context", message);
  attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
  if (options != NULL) {
    ATTN_CHECK_STRUCT(options, "options", attn_context_options, message);
    o = *options;
  }
  ATTN_TRY(check_device(&o, message));
  if (o.num_threads < 0 || o.num_threads > MAX_THREADS) {
    return attn_fail(message, ATTN_E_RANGE, "num_threads: %d, accepted: 0 (one) or 1 to %d", (int)o.num_threads,
                     MAX_THREADS);
  }
  if (o.executor != NULL && o.executor->run == NULL) {
    return attn_fail(message, ATTN_E_NULL, "executor.run: NULL, expected a function");
  }
  attn_cpu_features features;
  ATTN_TRY(attn_cpu_features_find(getenv("ATTN_CPU"), &features, message));
  attn_context *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return attn_fail(message, ATTN_E_NOMEM, "context: %lu bytes could not be allocated", (unsigned long)sizeof *made);
  }
  attn_status status = attn_threads_create(&made->threads, o.num_threads > 0 ? o.num_threads : 1, o.executor, message);
  if (status != ATTN_OK) {
    free(made);
    return status;
  }
  attn_busy_init(&made->busy);
  made->device = o.device;
  made->table = attn_cpu_table_of(features.level);
  made->info.size = sizeof made->info;
  made->info.device = o.device;
  made->info.num_threads = made->threads.num_threads;
  made->info.has_executor = o.executor != NULL;
  attn_cpu_features_describe(&features, &made->info);
  *context = made;
  return ATTN_OK;
}

void attn_context_destroy(attn_context *context) {
  if (context != NULL) {
    attn_threads_destroy(&context->threads);
    attn_busy_end(&context->busy);
    free(context);
  }
}

attn_status attn_context_get_info(const attn_context *context, attn_context_info *info, attn_message *message) {
  ATTN_CHECK_POINTER(context, "context", message);
  ATTN_CHECK_STRUCT(info, "info", attn_context_info, message);
  *info = context->info;
  return ATTN_OK;
}

int attn_context_kernel(const attn_context *context, size_t index, attn_kernel_info *info) {
  if (context == NULL || info == NULL) {
    return 0;
  }
  return attn_cpu_table_kernel(context->table, index, info);
}

int attn_backend_get(size_t index, attn_backend_info *info) {
  if (info == NULL || index >= attn_registry_count) {
    return 0;
  }
  const attn_registry_row *row = &attn_registry[index];
  info->name = row->name;
  info->device = row->device;
  info->foreign = row->foreign;
  info->built = row->backend != NULL;
  info->rows = row->backend != NULL ? row->backend->rows : 0;
  info->plays = row->plays;
  info->summary = row->summary;
  if (row->foreign) {
    const attn_backend *part = attn_registry_part(row, row->device);
    if (part == NULL) {
      part = attn_registry_part(row, ATTN_DEVICE_CPU);
    }
    info->plays = part != NULL ? part->name : "";
  }
  return 1;
}

/* Problem, limits and options resolved together, as explain, select and plan all need them. */
static attn_status resolve_all(const attn_problem *problem, const attn_plan_limits *limits,
                               const attn_plan_options *options, attn_problem *p, attn_plan_limits *l,
                               attn_plan_options *o, attn_message *message) {
  ATTN_TRY(attn_problem_resolve(problem, p, message));
  ATTN_TRY(attn_limits_resolve(limits, l, message));
  return attn_options_resolve(options, p, o, message);
}

static void explain_rows(const attn_context *context, const attn_problem *p, const attn_plan_options *o,
                         attn_explanation *e) {
  for (size_t i = 0; i < attn_registry_count && i < ATTN_EXPLAIN_ROWS; i++) {
    attn_explain_row *row = &e->rows[i];
    row->backend = attn_registry[i].name;
    row->verdict = attn_registry_judge(&attn_registry[i], context, p, o, row->reason);
    if (row->verdict == ATTN_VERDICT_ABLE && strcmp(row->backend, e->pick) == 0) {
      row->verdict = ATTN_VERDICT_TAKEN;
      (void)snprintf(row->reason, sizeof row->reason, "%s", e->reason);
    }
    e->num_rows++;
  }
}

attn_status attn_explain(const attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                         const attn_plan_options *options, attn_explanation *explanation, attn_message *message) {
  ATTN_CHECK_POINTER(context, "context", message);
  ATTN_CHECK_STRUCT(explanation, "explanation", attn_explanation, message);
  attn_problem p;
  attn_plan_limits l;
  attn_plan_options o;
  ATTN_TRY(resolve_all(problem, limits, options, &p, &l, &o, message));
  attn_explanation e = ATTN_EXPLANATION_INIT;
  const attn_backend *backend = NULL;
  attn_message why = {ATTN_OK, ""};
  e.status = attn_registry_select(context, &p, &o, &backend, e.reason, &why);
  if (e.status == ATTN_OK) {
    attn_plan_cost cost;
    size_t step_bytes;
    size_t workspace_bytes;
    e.status = attn_plan_cost_of(context, backend, &p, &l, &o, &cost, &step_bytes, &workspace_bytes, &why);
    if (e.status == ATTN_OK) {
      (void)snprintf(e.pick, sizeof e.pick, "%s", backend->name);
      e.workspace_bytes = workspace_bytes;
      e.excess_workspace_bytes = cost.excess_bytes;
      e.on_chip_bytes = cost.on_chip_bytes;
      e.preferred_block_size = cost.preferred_block_size;
      e.block_size = p.block_size != 0 || p.kv_source != ATTN_KV_CACHE ? p.block_size : cost.preferred_block_size;
      e.max_splits = cost.max_splits;
    }
  }
  if (e.status != ATTN_OK) {
    (void)snprintf(e.reason, sizeof e.reason, "%.*s", (int)sizeof e.reason - 1, why.text);
  }
  explain_rows(context, &p, &o, &e);
  *explanation = e;
  return ATTN_OK;
}

attn_status attn_select(const attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                        const attn_plan_options *options, const char **name, attn_message *message) {
  ATTN_CHECK_POINTER(context, "context", message);
  ATTN_CHECK_POINTER(name, "name", message);
  attn_problem p;
  attn_plan_limits l;
  attn_plan_options o;
  ATTN_TRY(resolve_all(problem, limits, options, &p, &l, &o, message));
  const attn_backend *backend;
  char reason[ATTN_REASON_BYTES];
  ATTN_TRY(attn_registry_select(context, &p, &o, &backend, reason, message));
  *name = backend->name;
  return ATTN_OK;
}

attn_status attn_select_call(const attn_context *context, const char *backend, const char **name,
                             char reason[ATTN_REASON_BYTES], attn_message *message) {
  ATTN_CHECK_POINTER(context, "context", message);
  ATTN_CHECK_POINTER(name, "name", message);
  const attn_backend *chosen;
  ATTN_TRY(attn_registry_explain_call(context, backend, &chosen, reason, message));
  *name = chosen->name;
  return ATTN_OK;
}

attn_status attn_backend_register(attn_context *context, const char *path, attn_message *message) {
  (void)context;
  (void)path;
  return attn_fail(message, ATTN_E_UNSUPPORTED, "attn_backend_register: plug-ins are not built in");
}
