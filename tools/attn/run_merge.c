/* SPDX-License-Identifier: Apache-2.0 */
/* The operation `merge`. */
#include <stdlib.h>

#include "run.h"

typedef struct merge_call {
  size_t num_parts;
  run_view *outs;
  run_view *lses;
  const DLTensor **out_list;
  const DLTensor **lse_list;
  run_view sinks;
  run_view out;
  run_view lse;
} merge_call;

static int open_parts(const run_job *job, merge_call *call) {
  const request *parsed = job->request;
  int poison = job->flags->poison;
  size_t n = parsed->num_parts;
  call->num_parts = n;
  call->outs = calloc(n, sizeof(*call->outs));
  call->lses = calloc(n, sizeof(*call->lses));
  call->out_list = calloc(n, sizeof(*call->out_list));
  call->lse_list = calloc(n, sizeof(*call->lse_list));
  if (call->outs == NULL || call->lses == NULL || call->out_list == NULL || call->lse_list == NULL) {
    return cli_fail(job->report, CLI_FAILED, "no memory for %zu parts", n);
  }
  int code = run_view_open(&call->sinks, parsed->tensor[TENSOR_SINKS], poison, NULL, NULL, job->report);
  for (size_t i = 0; code == CLI_OK && i < n; ++i) {
    code = run_view_open(&call->outs[i], parsed->outs[i], poison, NULL, NULL, job->report);
    if (code == CLI_OK) {
      code = run_view_open(&call->lses[i], parsed->lses[i], poison, NULL, NULL, job->report);
    }
    call->out_list[i] = call->outs[i].tensor;
    call->lse_list[i] = call->lses[i].tensor;
  }
  return code;
}

/* Before memory is asked for: rows of no elements have no bytes, and their lse has. */
static int check_first(const run_job *job) {
  const int64_t *out = job->request->outs[0]->shape;
  const int64_t *lse = job->request->lses[0]->shape;
  if (out[0] != lse[0] || out[1] != lse[1]) {
    return cli_fail(job->report, CLI_BAD_INPUT,
                    "tensor lse_0 is [%lld, %lld]; accepted: [%lld, %lld], tokens and heads of out_0",
                    (long long)lse[0], (long long)lse[1], (long long)out[0], (long long)out[1]);
  }
  return CLI_OK;
}

static int make_outputs(const run_job *job, merge_call *call) {
  const st_tensor *first = job->request->outs[0];
  st_tensor *tensor;
  int code = check_first(job);
  if (code != CLI_OK) {
    return code;
  }
  code = run_add_output(job, "out", job->request->out_dtype, 3, first->shape, &tensor);
  if (code == CLI_OK) {
    code = run_view_output(&call->out, tensor, job->flags->poison, job->report);
  }
  if (code == CLI_OK) {
    code = run_add_output(job, "lse", ATTN_DTYPE_FLOAT32, 2, first->shape, &tensor);
  }
  return code == CLI_OK ? run_view_output(&call->lse, tensor, job->flags->poison, job->report) : code;
}

static int merge(const run_job *job, void *opened) {
  const merge_call *call = opened;
  attn_message message;
  attn_merge_args args = ATTN_MERGE_INIT;
  args.num_parts = (int32_t)call->num_parts;
  args.outs = call->out_list;
  args.lses = call->lse_list;
  args.lse_base = (attn_lse_base)job->request->key[KEY_LSE_BASE].integer;
  args.sinks = call->sinks.tensor;
  args.out = call->out.tensor;
  args.lse = call->lse.tensor;
  args.backend = job->flags->backend;
  return cli_library(job->report, attn_merge(job->context, &args, &message), &message);
}

static void close_call(void *opened) {
  merge_call *call = opened;
  for (size_t i = 0; call->outs != NULL && i < call->num_parts; ++i) {
    run_view_close(&call->outs[i]);
  }
  for (size_t i = 0; call->lses != NULL && i < call->num_parts; ++i) {
    run_view_close(&call->lses[i]);
  }
  free(call->outs);
  free(call->lses);
  free(call->out_list);
  free(call->lse_list);
  run_view_close(&call->sinks);
  run_view_close(&call->out);
  run_view_close(&call->lse);
  free(call);
}

static int open_merge(const run_job *job, void **opened) {
  merge_call *call = calloc(1, sizeof(*call));
  *opened = call;
  if (call == NULL) {
    return cli_fail(job->report, CLI_FAILED, "no memory for the call");
  }
  int code = open_parts(job, call);
  return code == CLI_OK ? make_outputs(job, call) : code;
}

static void collect_merged(const run_job *job, void *opened) {
  const merge_call *call = opened;
  int64_t rows = job->request->outs[0]->shape[0];
  run_view_collect(&call->out, &job->result->tensors[0], rows);
  run_view_collect(&call->lse, &job->result->tensors[1], rows);
}

const run_steps run_merge = {OP_MERGE, open_merge, merge, collect_merged, close_call};
