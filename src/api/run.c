/* SPDX-License-Identifier: Apache-2.0 */
/* run.c: attn_run() at the border: every tensor against the plan and the schedule, then every list's contents, then the
   backend. Nothing is written before the last check has passed. */
#include <stdio.h>
#include <string.h>

#include "api/rows_view.h"
#include "api/run_lists.h"
#include "api/run_view.h"
#include "api/step.h"
#include "api/workspace_busy.h"
#include "core/arithmetic.h"
#include "core/resolve.h"

#define FLOAT32_ONLY ATTN_DTYPE_BIT(ATTN_DTYPE_FLOAT32)
#define INT32_ONLY ATTN_DTYPE_BIT(ATTN_DTYPE_INT32)

/* A tensor that the problem declares has to be given, and the reverse. */
attn_status attn_run_declared(const DLTensor *tensor, const char *name, int is_declared, const char *field,
                              attn_message *message) {
  if (is_declared && tensor == NULL) {
    return attn_fail(message, ATTN_E_NULL, "%s: NULL, expected a tensor because the problem has %s", name, field);
  }
  if (!is_declared && tensor != NULL) {
    return attn_fail(message, ATTN_E_NULL, "%s: given, accepted: NULL because the problem has no %s", name, field);
  }
  return ATTN_OK;
}

/* A tensor disagrees with the plan: say which field of the problem it was held against. */
attn_status attn_run_hint(attn_status status, attn_status code, const char *hint, attn_message *message) {
  if (status == code && message != NULL) {
    size_t used = strlen(message->text);
    (void)snprintf(message->text + used, sizeof message->text - used, " (%s)", hint);
  }
  return status;
}

attn_status attn_run_at_least_tokens(const attn_view *view, const char *name, const attn_step *step,
                                     attn_message *message) {
  if (view->shape[0] < step->num_tokens) {
    return attn_fail(message, ATTN_E_SHAPE, "%s: axis 0 has extent %lld, expected the batch's %lld tokens or more",
                     name, (long long)view->shape[0], (long long)step->num_tokens);
  }
  return ATTN_OK;
}

/* [tokens or more, heads, size] of one type. */
attn_status attn_run_token_view(attn_view *view, const DLTensor *tensor, const char *name, attn_access access,
                                attn_dtype dtype, int64_t heads, int64_t size, const attn_step *step,
                                attn_message *message) {
  int64_t shape[3] = {ATTN_ANY, heads, size};
  ATTN_TRY(attn_view_make(view, tensor, name, access, ATTN_DTYPE_BIT(dtype), 3, shape, message));
  return attn_run_at_least_tokens(view, name, step, message);
}

static attn_status view_direct(const attn_plan *plan, const attn_run_args *args, attn_run_view *view,
                               attn_message *message) {
  const attn_problem *p = &plan->problem;
  const char *why = "the problem has no cache";
  ATTN_TRY(attn_refuse_tensor(args->k_cache, "k_cache", why, message));
  ATTN_TRY(attn_refuse_tensor(args->v_cache, "v_cache", why, message));
  ATTN_TRY(attn_refuse_tensor(args->block_table, "block_table", why, message));
  ATTN_TRY(attn_refuse_tensor(args->k_scale, "k_scale", why, message));
  ATTN_TRY(attn_refuse_tensor(args->v_scale, "v_scale", why, message));
  int64_t k_shape[3] = {ATTN_ANY, p->num_kv_heads, p->qk_head_size};
  int64_t v_shape[3] = {ATTN_ANY, p->num_kv_heads, p->v_head_size};
  unsigned type = ATTN_DTYPE_BIT(p->kv_dtype);
  ATTN_TRY(attn_view_make(&view->k, args->k, "k", ATTN_READ, type, 3, k_shape, message));
  ATTN_TRY(attn_view_make(&view->v, args->v, "v", ATTN_READ, type, 3, v_shape, message));
  int64_t rows = attn_min(view->k.shape[0], view->v.shape[0]);
  if (rows < view->step->num_kv_tokens) {
    return attn_fail(message, ATTN_E_SHAPE, "%s: axis 0 has extent %lld, expected the batch's %lld keys or more",
                     view->k.shape[0] <= view->v.shape[0] ? "k" : "v", (long long)rows,
                     (long long)view->step->num_kv_tokens);
  }
  return ATTN_OK;
}

/* Queries and, where they are codes, their scale. */
static attn_status view_queries(const attn_plan *plan, const attn_run_args *args, attn_run_view *view,
                                attn_message *message) {
  const attn_problem *p = &plan->problem;
  attn_status status = attn_run_token_view(&view->q, args->q, "q", ATTN_READ, p->q_dtype, p->num_q_heads,
                                           p->qk_head_size, view->step, message);
  ATTN_TRY(attn_run_hint(status, ATTN_E_DTYPE, "problem.q_dtype", message));
  ATTN_TRY(attn_run_declared(args->q_scale, "q_scale", p->q_dtype == ATTN_DTYPE_FP8_E4M3, "an fp8 q_dtype", message));
  if (args->q_scale == NULL) {
    return ATTN_OK;
  }
  int64_t one = 1;
  ATTN_TRY(attn_view_make(&view->q_scale, args->q_scale, "q_scale", ATTN_READ, FLOAT32_ONLY, 1, &one, message));
  return attn_check_positive(&view->q_scale, "q_scale", message);
}

/* A pool, its rows and their scales. Where the plan says that scales are separate they have to be given, and the
   reverse. */
static attn_status view_pool(const attn_plan *plan, attn_rows_given *given, int is_v, attn_view *view, attn_rows *rows,
                             attn_message *message) {
  const attn_problem *p = &plan->problem;
  if (attn_format_of(given->format)->scale == ATTN_SCALE_ROW) {
    ATTN_TRY(attn_run_declared(given->scale, given->scale_name, attn_format_is_separate(p->separate_scales, is_v),
                               "separate scales of it", message));
  }
  given->layout = p->layout;
  given->access = ATTN_READ;
  given->block_size = p->block_size;
  given->num_heads = p->num_kv_heads;
  attn_status status = attn_rows_view_make(rows, view, given, message);
  status = attn_run_hint(status, ATTN_E_DTYPE, is_v ? "problem.v_format" : "problem.k_format", message);
  return attn_run_hint(status, ATTN_E_SHAPE,
                       p->layout == ATTN_LAYOUT_HND ? "HND: blocks, num_kv_heads, the plan's block_size, row"
                                                    : "NHD: blocks, the plan's block_size, num_kv_heads, row",
                       message);
}

static attn_status view_cache(const attn_plan *plan, const attn_run_args *args, attn_run_view *view,
                              attn_message *message) {
  const attn_problem *p = &plan->problem;
  const char *why = "the problem reads keys and values from the cache";
  ATTN_TRY(attn_refuse_tensor(args->k, "k", why, message));
  ATTN_TRY(attn_refuse_tensor(args->v, "v", why, message));
  attn_rows_given k = {.pool_name = "k_cache",
                       .scale_name = "k_scale",
                       .format_name = "problem.k_format",
                       .pool = args->k_cache,
                       .scale = args->k_scale,
                       .format = p->k_format,
                       .num_blocks = ATTN_ANY,
                       .size = p->qk_head_size};
  attn_rows_given v = {.pool_name = "v_cache",
                       .scale_name = "v_scale",
                       .format_name = "problem.v_format",
                       .pool = args->v_cache,
                       .scale = args->v_scale,
                       .format = p->v_format,
                       .size = p->v_head_size};
  ATTN_TRY(view_pool(plan, &k, 0, &view->k_cache, &view->k_rows, message));
  v.num_blocks = view->k_cache.shape[0];
  ATTN_TRY(view_pool(plan, &v, 1, &view->v_cache, &view->v_rows, message));
  int64_t table[2] = {view->step->num_seqs, ATTN_ANY};
  return attn_view_make(&view->block_table, args->block_table, "block_table", ATTN_READ, INT32_ONLY, 2, table, message);
}

static attn_status view_bias(const attn_plan *plan, const DLTensor *tensor, attn_run_view *view,
                             attn_message *message) {
  int64_t shape[3] = {ATTN_ANY, ATTN_ANY, ATTN_ANY};
  ATTN_TRY(attn_view_make(&view->bias, tensor, "bias", ATTN_READ, FLOAT32_ONLY, 3, shape, message));
  ATTN_TRY(attn_run_at_least_tokens(&view->bias, "bias", view->step, message));
  if (view->bias.shape[1] != plan->problem.num_q_heads && view->bias.shape[1] != 1) {
    return attn_fail(message, ATTN_E_SHAPE, "bias: axis 1 has extent %lld, expected %d or 1",
                     (long long)view->bias.shape[1], (int)plan->problem.num_q_heads);
  }
  if (view->bias.shape[2] < view->step->max_kv_len) {
    return attn_fail(message, ATTN_E_SHAPE, "bias: axis 2 has extent %lld, expected the longest kv_len (%lld) or more",
                     (long long)view->bias.shape[2], (long long)view->step->max_kv_len);
  }
  if (view->bias.shape[1] == 1) {
    view->bias.stride[1] = 0;
    view->bias.shape[1] = plan->problem.num_q_heads;
  }
  return ATTN_OK;
}

attn_status attn_run_view_options(const attn_plan *plan, const attn_run_args *args, attn_run_view *view,
                                  attn_message *message) {
  const attn_problem *p = &plan->problem;
  const int64_t heads = p->num_q_heads;
  const int64_t seqs = view->step->num_seqs;
  ATTN_TRY(attn_run_declared(args->alibi_slopes, "alibi_slopes", p->alibi != ATTN_ALIBI_NONE, "alibi", message));
  ATTN_TRY(attn_run_declared(args->sinks, "sinks", p->has_sinks, "has_sinks", message));
  ATTN_TRY(attn_run_declared(args->bias, "bias", p->has_bias, "has_bias", message));
  ATTN_TRY(attn_run_declared(args->prefix_ranges, "prefix_ranges", p->has_prefix_ranges, "has_prefix_ranges", message));
  ATTN_TRY(
      attn_run_declared(args->causal_per_seq, "causal_per_seq", p->has_causal_per_seq, "has_causal_per_seq", message));
  if (args->alibi_slopes != NULL) {
    ATTN_TRY(attn_view_make(&view->alibi_slopes, args->alibi_slopes, "alibi_slopes", ATTN_READ, FLOAT32_ONLY, 1, &heads,
                            message));
  }
  if (args->sinks != NULL) {
    ATTN_TRY(attn_view_make(&view->sinks, args->sinks, "sinks", ATTN_READ, FLOAT32_ONLY, 1, &heads, message));
  }
  if (args->bias != NULL) {
    ATTN_TRY(view_bias(plan, args->bias, view, message));
  }
  if (args->prefix_ranges != NULL) {
    int64_t shape[3] = {seqs, ATTN_ANY, 2};
    ATTN_TRY(attn_view_make(&view->prefix_ranges, args->prefix_ranges, "prefix_ranges", ATTN_READ, INT32_ONLY, 3, shape,
                            message));
    if (view->prefix_ranges.stride[1] == 0 && view->prefix_ranges.shape[1] > 1) {
      view->prefix_ranges.shape[1] = 1; /* one range, broadcast: walked once */
    }
  }
  if (args->causal_per_seq != NULL) {
    ATTN_TRY(attn_view_make(&view->causal_per_seq, args->causal_per_seq, "causal_per_seq", ATTN_READ, INT32_ONLY, 1,
                            &seqs, message));
  }
  return ATTN_OK;
}

/* The scales of an fp8 output: one given, or one a group written. */
attn_status attn_run_view_output_scales(const attn_plan *plan, const attn_run_args *args, attn_run_view *view,
                                        attn_message *message) {
  const attn_problem *p = &plan->problem;
  int is_fp8 = p->out_dtype == ATTN_DTYPE_FP8_E4M3;
  ATTN_TRY(attn_run_declared(args->output_scale, "output_scale", is_fp8 && p->output_block == 0,
                             "out_dtype fp8_e4m3 with output_block 0", message));
  ATTN_TRY(attn_run_declared(args->out_scale, "out_scale", p->output_block != 0, "output_block", message));
  if (args->output_scale != NULL) {
    const int64_t one = 1;
    ATTN_TRY(attn_view_make(&view->output_scale, args->output_scale, "output_scale", ATTN_READ, FLOAT32_ONLY, 1, &one,
                            message));
  }
  if (args->out_scale == NULL) {
    return ATTN_OK;
  }
  attn_status status =
      attn_run_token_view(&view->out_scale, args->out_scale, "out_scale", ATTN_WRITE, ATTN_DTYPE_FLOAT32,
                          p->num_q_heads, attn_output_groups(p), view->step, message);
  return attn_run_hint(status, ATTN_E_SHAPE, "tokens, num_q_heads, ceil(v_head_size / output_block)", message);
}

attn_status attn_run_view_outputs(const attn_plan *plan, const attn_run_args *args, attn_run_view *view,
                                  attn_message *message) {
  const attn_problem *p = &plan->problem;
  attn_status status = attn_run_token_view(&view->out, args->out, "out", ATTN_WRITE, p->out_dtype, p->num_q_heads,
                                           p->v_head_size, view->step, message);
  ATTN_TRY(attn_run_hint(status, ATTN_E_DTYPE, "problem.out_dtype", message));
  ATTN_TRY(attn_run_declared(args->lse, "lse", p->wants_lse, "wants_lse", message));
  if (args->lse != NULL) {
    int64_t shape[2] = {ATTN_ANY, p->num_q_heads};
    ATTN_TRY(attn_view_make(&view->lse, args->lse, "lse", ATTN_WRITE, FLOAT32_ONLY, 2, shape, message));
    ATTN_TRY(attn_run_at_least_tokens(&view->lse, "lse", view->step, message));
  }
  return attn_run_view_output_scales(plan, args, view, message);
}

typedef struct named_view {
  const attn_view *view;
  const char *name;
} named_view;

/* Outputs and workspace apart from each other and from every input. */
static attn_status check_overlaps(const attn_plan *plan, const attn_run_view *view, unsigned char *scratch,
                                  attn_message *message) {
  attn_view workspace = attn_workspace_view(plan, scratch - plan->step_bytes);
  attn_view k_scale = attn_rows_scale_tensor(&view->k_rows);
  attn_view v_scale = attn_rows_scale_tensor(&view->v_rows);
  const named_view written[] = {
      {&workspace, "workspace"},
      {&view->out, "out"},
      {&view->lse, "lse"},
      {&view->out_scale, "out_scale"},
  };
  const named_view inputs[] = {
      {&view->q, "q"},
      {&view->k, "k"},
      {&view->v, "v"},
      {&view->k_cache, "k_cache"},
      {&view->v_cache, "v_cache"},
      {&k_scale, "k_scale"},
      {&v_scale, "v_scale"},
      {&view->q_scale, "q_scale"},
      {&view->block_table, "block_table"},
      {&view->alibi_slopes, "alibi_slopes"},
      {&view->sinks, "sinks"},
      {&view->bias, "bias"},
      {&view->prefix_ranges, "prefix_ranges"},
      {&view->causal_per_seq, "causal_per_seq"},
      {&view->output_scale, "output_scale"},
  };
  for (size_t i = 0; i < sizeof written / sizeof written[0]; i++) {
    const named_view *w = &written[i];
    for (size_t j = 0; j < i; j++) { /* each pair once */
      ATTN_TRY(attn_refuse_overlap(w->view, w->name, written[j].view, written[j].name, message));
    }
    for (size_t j = 0; j < sizeof inputs / sizeof inputs[0]; j++) {
      ATTN_TRY(attn_refuse_overlap(w->view, w->name, inputs[j].view, inputs[j].name, message));
    }
  }
  return ATTN_OK;
}

static attn_status run_scheduled(const attn_plan *plan, const attn_run_args *args, const attn_workspace *workspace,
                                 attn_message *message) {
  if (plan->problem.kv_lora_rank > 0) {
    return attn_fail(message, ATTN_E_STATE,
                     "plan: of a latent problem; accepted: one with kv_lora_rank 0 (this one is for %s)",
                     attn_mla_call_name(plan->problem.mla_form));
  }
  attn_run_view view;
  memset(&view, 0, sizeof view);
  unsigned char *scratch;
  ATTN_TRY(attn_step_of(plan, workspace, &view.step, &scratch, message));
  view.problem = &plan->problem;
  if (args->unchecked != 0 && args->unchecked != 1) {
    return attn_fail(message, ATTN_E_RANGE, "unchecked: %d, accepted: 0 or 1", (int)args->unchecked);
  }
  view.unchecked = args->unchecked;
  ATTN_TRY(view_queries(plan, args, &view, message));
  if (plan->problem.kv_source == ATTN_KV_CACHE) {
    ATTN_TRY(view_cache(plan, args, &view, message));
  } else {
    ATTN_TRY(view_direct(plan, args, &view, message));
  }
  ATTN_TRY(attn_run_view_options(plan, args, &view, message));
  ATTN_TRY(attn_run_view_outputs(plan, args, &view, message));
  ATTN_TRY(check_overlaps(plan, &view, scratch, message));
  ATTN_TRY(attn_run_check_lists(&view, message));
  return plan->backend->run(plan, &view, scratch, message);
}

attn_status attn_run(const attn_plan *plan, const attn_run_args *args, const attn_workspace *workspace,
                     attn_message *message) {
  ATTN_CHECK_POINTER(plan, "plan", message);
  ATTN_CHECK_STRUCT(args, "args", attn_run_args, message);
  if (args->unchecked) {
    return run_scheduled(plan, args, workspace, message);
  }
  unsigned char *data;
  ATTN_TRY(attn_workspace_of(plan, workspace, &data, message));
  ATTN_TRY(attn_workspace_take(plan, data, message));
  attn_status status = run_scheduled(plan, args, workspace, message);
  attn_workspace_give_back(plan, data);
  return status;
}
