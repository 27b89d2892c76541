/* SPDX-License-Identifier: Apache-2.0 */
/* The operation `attention`: plan, write the new tokens if there are slots for them, schedule; then the run alone is
   the call. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

/* Everything of a run that has to be given back. */
typedef struct attention_call {
  attn_problem problem;
  attn_plan *plan;
  attn_workspace workspace;
  run_ownership owned;
  run_view tensors[TENSOR_COUNT];
  run_view out;
  run_view lse;
  run_view out_scale;
} attention_call;

/* Inputs with unowned bytes, and which of them. The other inputs of the run are owned whole. */
static run_owned owner_of(const request *parsed, request_tensor id) {
  switch (id) {
  case TENSOR_Q:
    return run_owns_query;
  case TENSOR_K:
  case TENSOR_V:
    return parsed->has_cache ? run_owns_new_row : run_owns_direct_row;
  case TENSOR_K_CACHE:
  case TENSOR_V_CACHE:
    return run_owns_pool;
  case TENSOR_BLOCK_TABLE:
    return run_owns_table;
  case TENSOR_BIAS:
    return run_owns_bias;
  default:
    return NULL;
  }
}

int run_make_plan(const run_job *job, const attn_problem *problem, attn_plan **plan, attn_workspace *workspace) {
  attn_plan_limits limits;
  attn_plan_options options;
  attn_message message;
  request_limits(job->request, &limits);
  request_plan_options(job->request, job->flags, &options);
  int code =
      cli_library(job->report, attn_plan_create(job->context, problem, &limits, &options, plan, &message), &message);
  attn_plan_info info = ATTN_PLAN_INFO_INIT;
  if (code == CLI_OK) {
    code = cli_library(job->report, attn_plan_get_info(*plan, &info, &message), &message);
  }
  if (code != CLI_OK) {
    return code;
  }
  snprintf(job->result->backend, sizeof(job->result->backend), "%s", info.backend);
  snprintf(job->result->reason, sizeof(job->result->reason), "%s", info.reason);
  job->result->workspace_bytes = info.workspace_bytes;
  workspace->bytes = (size_t)info.workspace_bytes;
  workspace->data = cli_alloc(info.workspace_bytes, job->flags->poison);
  return workspace->data != NULL ? CLI_OK
                                 : cli_fail(job->report, CLI_FAILED, "no memory for a workspace of %llu bytes",
                                            (unsigned long long)info.workspace_bytes);
}

static int make_plan(const run_job *job, attention_call *call) {
  int code = request_problem(job->request, job->flags, &call->problem, job->report);
  return code == CLI_OK ? run_make_plan(job, &call->problem, &call->plan, &call->workspace) : code;
}

static int make_outputs(const run_job *job, attention_call *call) {
  const request *parsed = job->request;
  int64_t tokens = parsed->tensor[TENSOR_Q]->shape[0];
  const int64_t shape[3] = {tokens, parsed->num_q_heads, parsed->v_head_size};
  int poison = job->flags->poison;
  st_tensor *tensor;
  int code = run_add_output(job, "out", parsed->out_dtype, 3, shape, &tensor);
  if (code == CLI_OK) {
    code = run_view_output(&call->out, tensor, poison, job->report);
  }
  if (code == CLI_OK) {
    code = run_add_output(job, "lse", ATTN_DTYPE_FLOAT32, 2, shape, &tensor);
  }
  if (code == CLI_OK) {
    code = run_view_output(&call->lse, tensor, poison, job->report);
  }
  int64_t block = call->problem.output_block;
  if (code != CLI_OK || block == 0) {
    return code;
  }
  const int64_t scales[3] = {tokens, parsed->num_q_heads, (parsed->v_head_size + block - 1) / block};
  code = run_add_output(job, "out_scale", ATTN_DTYPE_FLOAT32, 3, scales, &tensor);
  return code == CLI_OK ? run_view_output(&call->out_scale, tensor, poison, job->report) : code;
}

static int open_inputs(const run_job *job, attention_call *call) {
  int poison = job->flags->poison;
  int code = poison ? run_own_attention(job->request, &call->problem, &call->owned, job->report) : CLI_OK;
  for (int i = 0; code == CLI_OK && i < TENSOR_COUNT; ++i) {
    if (i == TENSOR_K_SCALE || i == TENSOR_V_SCALE) {
      code = run_view_scales(&call->tensors[i], job->request, i == TENSOR_V_SCALE, poison, &call->owned, job->report);
      continue;
    }
    code = run_view_open(&call->tensors[i], job->request->tensor[i], poison, owner_of(job->request, (request_tensor)i),
                         &call->owned, job->report);
  }
  return code;
}

static int write_new_tokens(const run_job *job, const attention_call *call) {
  const request *parsed = job->request;
  attn_message message;
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  if (parsed->tensor[TENSOR_SLOT_MAPPING] == NULL) {
    return CLI_OK;
  }
  args.k_format = parsed->k_format;
  args.v_format = parsed->v_format;
  args.layout = call->problem.layout;
  args.unchecked = parsed->key[KEY_CHECKED].integer == 0;
  args.backend = job->flags->backend;
  args.k = call->tensors[TENSOR_K].tensor;
  args.v = call->tensors[TENSOR_V].tensor;
  args.slot_mapping = call->tensors[TENSOR_SLOT_MAPPING].tensor;
  args.k_cache = call->tensors[TENSOR_K_CACHE].tensor;
  args.v_cache = call->tensors[TENSOR_V_CACHE].tensor;
  args.k_scale = call->tensors[TENSOR_K_SCALE].tensor;
  args.v_scale = call->tensors[TENSOR_V_SCALE].tensor;
  return cli_library(job->report, attn_cache_write(job->context, &args, &message), &message);
}

int run_schedule(const run_job *job, const attn_plan *plan, const attn_workspace *workspace, const run_view *tensors) {
  attn_message message;
  attn_batch batch = ATTN_BATCH_INIT;
  attn_schedule_info info = ATTN_SCHEDULE_INFO_INIT;
  batch.query_start_loc = tensors[TENSOR_QUERY_START_LOC].tensor;
  batch.seq_lens = tensors[TENSOR_SEQ_LENS].tensor;
  batch.kv_start_loc = tensors[TENSOR_KV_START_LOC].tensor;
  int code = cli_library(job->report, attn_plan_schedule(plan, &batch, workspace, &message), &message);
  if (code == CLI_OK) {
    code = cli_library(job->report, attn_schedule_get_info(plan, workspace, &info, &message), &message);
  }
  job->result->splits = info.splits;
  return code;
}

static int compute(const run_job *job, void *opened) {
  const attention_call *call = opened;
  attn_message message;
  attn_run_args args = ATTN_RUN_INIT;
  const run_view *tensors = call->tensors;
  int has_cache = job->request->has_cache;
  args.unchecked = job->request->key[KEY_CHECKED].integer == 0;
  args.q = tensors[TENSOR_Q].tensor;
  args.k = has_cache ? NULL : tensors[TENSOR_K].tensor;
  args.v = has_cache ? NULL : tensors[TENSOR_V].tensor;
  args.k_cache = tensors[TENSOR_K_CACHE].tensor;
  args.v_cache = tensors[TENSOR_V_CACHE].tensor;
  args.k_scale = tensors[TENSOR_K_SCALE].tensor;
  args.v_scale = tensors[TENSOR_V_SCALE].tensor;
  args.block_table = tensors[TENSOR_BLOCK_TABLE].tensor;
  args.q_scale = tensors[TENSOR_Q_SCALE].tensor;
  args.alibi_slopes = tensors[TENSOR_ALIBI_SLOPES].tensor;
  args.sinks = tensors[TENSOR_SINKS].tensor;
  args.bias = tensors[TENSOR_BIAS].tensor;
  args.prefix_ranges = tensors[TENSOR_PREFIX_RANGES].tensor;
  args.causal_per_seq = tensors[TENSOR_CAUSAL_PER_SEQ].tensor;
  args.out = call->out.tensor;
  args.lse = call->lse.tensor;
  args.output_scale = tensors[TENSOR_OUTPUT_SCALE].tensor;
  args.out_scale = call->out_scale.tensor;
  return cli_library(job->report, attn_run(call->plan, &args, &call->workspace, &message), &message);
}

static void collect(const run_job *job, void *opened) {
  const attention_call *call = opened;
  const request *parsed = job->request;
  const run_view *views[] = {&call->out, &call->lse, &call->out_scale};
  for (size_t i = 0; i < job->result->num_tensors; ++i) {
    run_view_collect(views[i], &job->result->tensors[i], parsed->num_tokens);
  }
  if (parsed->tensor[TENSOR_SLOT_MAPPING] != NULL) {
    run_collect_written(job, call->tensors);
  }
}

static void close_call(void *opened) {
  attention_call *call = opened;
  for (int i = 0; i < TENSOR_COUNT; ++i) {
    run_view_close(&call->tensors[i]);
  }
  run_view_close(&call->out);
  run_view_close(&call->lse);
  run_view_close(&call->out_scale);
  run_own_free(&call->owned);
  free(call->workspace.data);
  attn_plan_destroy(call->plan);
  free(call);
}

static int open_call(const run_job *job, void **opened) {
  attention_call *call = calloc(1, sizeof(*call));
  *opened = call;
  if (call == NULL) {
    return cli_fail(job->report, CLI_FAILED, "no memory for the call");
  }
  int code = make_plan(job, call);
  if (code == CLI_OK) {
    code = make_outputs(job, call);
  }
  if (code == CLI_OK) {
    code = open_inputs(job, call);
  }
  if (code == CLI_OK) {
    code = write_new_tokens(job, call);
  }
  return code == CLI_OK ? run_schedule(job, call->plan, &call->workspace, call->tensors) : code;
}

const run_steps run_attention = {OP_ATTENTION, open_call, compute, collect, close_call};
