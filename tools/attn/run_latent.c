/* SPDX-License-Identifier: Apache-2.0 */
/* The operations on latent rows: mla_mqa, mla_mha, mla_layer, and cache_write and cache_gather of a latent pool. */
#include <stdlib.h>

#include "run.h"

/* Everything of a call that has to be given back. */
typedef struct latent_call {
  attn_problem problem;
  attn_plan *plan;
  attn_workspace workspace;
  attn_mla_weights *weights;
  run_ownership owned;
  run_view tensors[TENSOR_COUNT];
  run_view out;
  run_view lse;
  run_view out_scale;
  int64_t rows; /* gathered */
} latent_call;

static void close_call(void *opened) {
  latent_call *call = opened;
  for (int i = 0; i < TENSOR_COUNT; ++i) {
    run_view_close(&call->tensors[i]);
  }
  run_view_close(&call->out);
  run_view_close(&call->lse);
  run_view_close(&call->out_scale);
  run_own_free(&call->owned);
  free(call->workspace.data);
  attn_mla_weights_destroy(call->weights);
  attn_plan_destroy(call->plan);
  free(call);
}

static int new_call(const run_job *job, void **opened) {
  *opened = calloc(1, sizeof(latent_call));
  return *opened != NULL ? CLI_OK : cli_fail(job->report, CLI_FAILED, "no memory for the call");
}

static int is_written(const request *parsed) {
  return parsed->tensor[TENSOR_SLOT_MAPPING] != NULL;
}

/* Inputs with unowned bytes, and which of them. */
static run_owned owner_of(const request *parsed, request_tensor id) {
  switch (id) {
  case TENSOR_Q:
    return run_owns_query;
  case TENSOR_KV_C:
  case TENSOR_K_PE:
    return is_written(parsed) ? run_owns_new_row : parsed->has_cache ? run_owns_query : run_owns_direct_row;
  case TENSOR_KV_CACHE:
    return parsed->op->op == OP_CACHE_WRITE ? run_owns_none : run_owns_pool;
  case TENSOR_BLOCK_TABLE:
    return run_owns_table;
  case TENSOR_BIAS:
    return run_owns_bias;
  default:
    return NULL;
  }
}

static int open_inputs(const run_job *job, latent_call *call) {
  int poison = job->flags->poison;
  const run_ownership *scales = call->owned.slots != NULL ? &call->owned : NULL;
  int code = CLI_OK;
  call->owned.request = job->request;
  for (int i = 0; code == CLI_OK && i < TENSOR_COUNT; ++i) {
    if (i == TENSOR_KV_SCALE) {
      code = run_view_scales(&call->tensors[i], job->request, 0, poison, scales, job->report);
      continue;
    }
    code = run_view_open(&call->tensors[i], job->request->tensor[i], poison, owner_of(job->request, (request_tensor)i),
                         &call->owned, job->report);
  }
  return code;
}

/* ---- Writing and gathering --------------------------------------------------------------------------------------- */

static int write_rows(const run_job *job, void *opened) {
  const latent_call *call = opened;
  const request *parsed = job->request;
  attn_message message;
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  args.k_format = parsed->k_format;
  args.rotary_dtype = parsed->rotary_dtype;
  args.unchecked = parsed->key[KEY_CHECKED].integer == 0;
  args.backend = job->flags->backend;
  args.kv_c = call->tensors[TENSOR_KV_C].tensor;
  args.k_pe = call->tensors[TENSOR_K_PE].tensor;
  args.slot_mapping = call->tensors[TENSOR_SLOT_MAPPING].tensor;
  args.kv_cache = call->tensors[TENSOR_KV_CACHE].tensor;
  args.kv_scale = call->tensors[TENSOR_KV_SCALE].tensor;
  return cli_library(job->report, attn_cache_write(job->context, &args, &message), &message);
}

/* The parts' widths are said by keys, which the tensors have to have. */
static int check_width(const run_job *job, request_tensor id, request_key key) {
  const st_tensor *tensor = job->request->tensor[id];
  int64_t wanted = job->request->key[key].integer;
  if (tensor != NULL && tensor->shape[1] != wanted) {
    return cli_fail(job->report, CLI_BAD_INPUT, "tensor %s: axis 1 is %lld; accepted: %lld, the %s", tensor->name,
                    (long long)tensor->shape[1], (long long)wanted, request_keys[key].name);
  }
  return CLI_OK;
}

static int open_write(const run_job *job, void **opened) {
  int code = new_call(job, opened);
  if (code == CLI_OK) {
    code = check_width(job, TENSOR_KV_C, KEY_KV_LORA_RANK);
  }
  if (code == CLI_OK) {
    code = check_width(job, TENSOR_K_PE, KEY_QK_ROPE_HEAD_DIM);
  }
  return code == CLI_OK ? open_inputs(job, *opened) : code;
}

static void collect_written(const run_job *job, void *opened) {
  const latent_call *call = opened;
  run_collect_written(job, call->tensors);
}

const run_steps run_latent_write = {OP_CACHE_WRITE, open_write, write_rows, collect_written, close_call};

static int gather_rows(const run_job *job, void *opened) {
  const latent_call *call = opened;
  const request *parsed = job->request;
  attn_message message;
  attn_cache_gather_args args = ATTN_CACHE_GATHER_INIT;
  args.k_format = parsed->k_format;
  args.rotary_dtype = parsed->rotary_dtype;
  args.qk_rope_head_dim = (int32_t)parsed->key[KEY_QK_ROPE_HEAD_DIM].integer;
  args.unchecked = parsed->key[KEY_CHECKED].integer == 0;
  args.backend = job->flags->backend;
  args.kv_cache = call->tensors[TENSOR_KV_CACHE].tensor;
  args.kv_scale = call->tensors[TENSOR_KV_SCALE].tensor;
  args.block_table = call->tensors[TENSOR_BLOCK_TABLE].tensor;
  args.seq_lens = call->tensors[TENSOR_SEQ_LENS].tensor;
  args.seq_starts = call->tensors[TENSOR_SEQ_STARTS].tensor;
  args.kv = call->out.tensor;
  return cli_library(job->report, attn_cache_gather(job->context, &args, &message), &message);
}

static int open_gather(const run_job *job, void **opened) {
  const request *parsed = job->request;
  st_tensor *tensor = NULL;
  int code = new_call(job, opened);
  latent_call *call = *opened;
  if (code == CLI_OK) {
    code = run_count_rows(job, &call->rows);
  }
  if (code != CLI_OK) {
    return code;
  }
  int64_t shape[2] = {call->rows, parsed->key[KEY_KV_LORA_RANK].integer + parsed->key[KEY_QK_ROPE_HEAD_DIM].integer};
  code = run_add_output(job, "kv", parsed->out_dtype, 2, shape, &tensor);
  if (code == CLI_OK) {
    code = run_view_output(&call->out, tensor, job->flags->poison, job->report);
  }
  if (code == CLI_OK && job->flags->poison) {
    code = run_own_gather(parsed, &call->owned, job->report);
  }
  return code == CLI_OK ? open_inputs(job, call) : code;
}

static void collect_gathered(const run_job *job, void *opened) {
  const latent_call *call = opened;
  run_view_collect(&call->out, &job->result->tensors[0], call->rows);
}

const run_steps run_latent_gather = {OP_CACHE_GATHER, open_gather, gather_rows, collect_gathered, close_call};

/* ---- Attention --------------------------------------------------------------------------------------------------- */

static int add_output(const run_job *job, const char *name, attn_dtype dtype, int32_t rank, const int64_t *shape,
                      run_view *view) {
  st_tensor *tensor;
  int code = run_add_output(job, name, dtype, rank, shape, &tensor);
  return code == CLI_OK ? run_view_output(view, tensor, job->flags->poison, job->report) : code;
}

static int make_outputs(const run_job *job, latent_call *call) {
  const request *parsed = job->request;
  int layer = parsed->op->op == OP_MLA_LAYER;
  int64_t size =
      parsed->op->op == OP_MLA_MQA ? parsed->key[KEY_KV_LORA_RANK].integer : parsed->key[KEY_V_HEAD_DIM].integer;
  int64_t block = call->problem.output_block;
  const int64_t shape[3] = {parsed->tensor[TENSOR_Q]->shape[0],
                            layer ? parsed->num_q_heads * size : parsed->num_q_heads, size};
  const int64_t scales[3] = {shape[0], parsed->num_q_heads, block > 0 ? (size + block - 1) / block : 0};
  int code = add_output(job, "out", parsed->out_dtype, layer ? 2 : 3, shape, &call->out);
  if (code == CLI_OK && !layer) {
    code = add_output(job, "lse", ATTN_DTYPE_FLOAT32, 2, scales, &call->lse);
  }
  return code == CLI_OK && block > 0 ? add_output(job, "out_scale", ATTN_DTYPE_FLOAT32, 3, scales, &call->out_scale)
                                     : code;
}

static int make_weights(const run_job *job, latent_call *call) {
  attn_mla_weights_args args = ATTN_MLA_WEIGHTS_ARGS_INIT;
  attn_message message;
  args.num_heads = call->problem.num_q_heads;
  args.kv_lora_rank = call->problem.kv_lora_rank;
  args.qk_nope_head_dim = call->problem.qk_nope_head_dim;
  args.v_head_dim = call->problem.mla_v_head_dim;
  args.w_kv_b = call->tensors[TENSOR_W_KV_B].tensor;
  return cli_library(job->report, attn_mla_weights_create(job->context, &args, &call->weights, &message), &message);
}

static int open_call(const run_job *job, void **opened) {
  const request *parsed = job->request;
  int mqa = parsed->op->op == OP_MLA_MQA;
  int code = new_call(job, opened);
  latent_call *call = *opened;
  if (code == CLI_OK) {
    code = request_problem(parsed, job->flags, &call->problem, job->report);
  }
  if (code == CLI_OK) {
    code = run_make_plan(job, &call->problem, &call->plan, &call->workspace);
  }
  if (code == CLI_OK) {
    code = make_outputs(job, call);
  }
  if (code == CLI_OK && job->flags->poison) {
    code = run_own_attention(parsed, &call->problem, &call->owned, job->report);
  }
  if (code == CLI_OK) {
    code = open_inputs(job, call);
  }
  if (code == CLI_OK && !mqa) {
    code = make_weights(job, call);
  }
  if (code == CLI_OK && mqa && is_written(parsed)) {
    code = write_rows(job, call);
  }
  return code == CLI_OK ? run_schedule(job, call->plan, &call->workspace, call->tensors) : code;
}

static int compute(const run_job *job, void *opened) {
  const latent_call *call = opened;
  const run_view *tensors = call->tensors;
  attn_message message;
  attn_status status;
  attn_mla_args args = ATTN_MLA_ARGS_INIT;
  int mqa = job->request->op->op == OP_MLA_MQA;
  args.unchecked = job->request->key[KEY_CHECKED].integer == 0;
  args.q = tensors[TENSOR_Q].tensor;
  args.kv_c = mqa ? NULL : tensors[TENSOR_KV_C].tensor;
  args.k_pe = mqa ? NULL : tensors[TENSOR_K_PE].tensor;
  args.slot_mapping = mqa ? NULL : tensors[TENSOR_SLOT_MAPPING].tensor;
  args.kv_cache = tensors[TENSOR_KV_CACHE].tensor;
  args.kv_scale = tensors[TENSOR_KV_SCALE].tensor;
  args.block_table = tensors[TENSOR_BLOCK_TABLE].tensor;
  args.weights = call->weights;
  args.alibi_slopes = tensors[TENSOR_ALIBI_SLOPES].tensor;
  args.sinks = tensors[TENSOR_SINKS].tensor;
  args.bias = tensors[TENSOR_BIAS].tensor;
  args.prefix_ranges = tensors[TENSOR_PREFIX_RANGES].tensor;
  args.causal_per_seq = tensors[TENSOR_CAUSAL_PER_SEQ].tensor;
  args.out = call->out.tensor;
  args.lse = call->lse.tensor;
  args.output_scale = tensors[TENSOR_OUTPUT_SCALE].tensor;
  args.out_scale = call->out_scale.tensor;
  status = mqa                                  ? attn_mla_run_mqa(call->plan, &args, &call->workspace, &message)
           : job->request->op->op == OP_MLA_MHA ? attn_mla_run_mha(call->plan, &args, &call->workspace, &message)
                                                : attn_mla_layer_run(call->plan, &args, &call->workspace, &message);
  return cli_library(job->report, status, &message);
}

static void collect(const run_job *job, void *opened) {
  const latent_call *call = opened;
  const run_view *views[] = {&call->out, &call->lse, &call->out_scale};
  size_t view = 0;
  for (size_t i = 0; i < job->result->num_tensors; ++i, ++view) {
    while (views[view]->tensor == NULL) { /* a layer has no lse */
      ++view;
    }
    run_view_collect(views[view], &job->result->tensors[i], job->request->num_tokens);
  }
  if (is_written(job->request)) {
    run_collect_written(job, call->tensors);
  }
}

const run_steps run_mla_mqa = {OP_MLA_MQA, open_call, compute, collect, close_call};
const run_steps run_mla_mha = {OP_MLA_MHA, open_call, compute, collect, close_call};
const run_steps run_mla_layer = {OP_MLA_LAYER, open_call, compute, collect, close_call};
