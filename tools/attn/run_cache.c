/* SPDX-License-Identifier: Apache-2.0 */
/* The operations `cache_write` and `cache_gather`. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

typedef struct cache_call {
  run_ownership owned;
  run_view tensors[TENSOR_COUNT];
  run_view k;
  run_view v;
  int64_t rows; /* gathered */
} cache_call;

static int is_scale(int id) {
  return id == TENSOR_K_SCALE || id == TENSOR_V_SCALE;
}

static int open_inputs(const run_job *job, cache_call *call, const run_owned *owners, const run_ownership *scales) {
  int code = CLI_OK;
  for (int i = 0; code == CLI_OK && i < TENSOR_COUNT; ++i) {
    if (is_scale(i)) {
      code = run_view_scales(&call->tensors[i], job->request, i == TENSOR_V_SCALE, job->flags->poison, scales,
                             job->report);
      continue;
    }
    code = run_view_open(&call->tensors[i], job->request->tensor[i], job->flags->poison, owners[i], &call->owned,
                         job->report);
  }
  return code;
}

static void close_call(void *opened) {
  cache_call *call = opened;
  for (int i = 0; i < TENSOR_COUNT; ++i) {
    run_view_close(&call->tensors[i]);
  }
  run_view_close(&call->k);
  run_view_close(&call->v);
  run_own_free(&call->owned);
  free(call);
}

static int write_cache(const run_job *job, void *opened) {
  const cache_call *call = opened;
  const request *parsed = job->request;
  attn_message message;
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  args.k_format = parsed->k_format;
  args.v_format = parsed->v_format;
  args.layout = (attn_layout)parsed->key[KEY_KV_LAYOUT].integer;
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

static int open_write(const run_job *job, void **opened) {
  static const run_owned owners[TENSOR_COUNT] = {[TENSOR_K] = run_owns_new_row,
                                                 [TENSOR_V] = run_owns_new_row,
                                                 [TENSOR_K_CACHE] = run_owns_none,
                                                 [TENSOR_V_CACHE] = run_owns_none};
  cache_call *call = calloc(1, sizeof(*call));
  *opened = call;
  if (call == NULL) {
    return cli_fail(job->report, CLI_FAILED, "no memory for the call");
  }
  call->owned.request = job->request;
  return open_inputs(job, call, owners, NULL);
}

static void collect_written(const run_job *job, void *opened) {
  const cache_call *call = opened;
  run_collect_written(job, call->tensors);
}

const run_steps run_cache_write = {OP_CACHE_WRITE, open_write, write_cache, collect_written, close_call};

/* The blocks that one gather reads are in the pool. */
static int check_blocks(const run_job *job, int64_t seq, int64_t start, int64_t length) {
  const request *parsed = job->request;
  const st_tensor *table = parsed->tensor[TENSOR_BLOCK_TABLE];
  const st_tensor *k = parsed->tensor[parsed->latent ? TENSOR_KV_CACHE : TENSOR_K_CACHE];
  int64_t blocks = (k != NULL ? k : parsed->tensor[TENSOR_V_CACHE])->shape[0];
  for (int64_t c = start / parsed->block_size; c * parsed->block_size < length; ++c) {
    int64_t id = request_i32(table, seq * table->shape[1] + c);
    if (id < 0 || id >= blocks) {
      return cli_fail(job->report, CLI_BAD_INPUT,
                      "tensor block_table: entry [%lld, %lld] is %lld; accepted: a block of the pool, which has %lld",
                      (long long)seq, (long long)c, (long long)id, (long long)blocks);
    }
  }
  return CLI_OK;
}

/* Rows of the result. What makes them is checked here, before memory is asked for: a few bytes of a file that is then
   refused could claim any number of them. In unchecked mode the rows are there, and are 0. */
int run_count_rows(const run_job *job, int64_t *rows) {
  const request *parsed = job->request;
  const st_tensor *lens = parsed->tensor[TENSOR_SEQ_LENS];
  const st_tensor *starts = parsed->tensor[TENSOR_SEQ_STARTS];
  const st_tensor *table = parsed->tensor[TENSOR_BLOCK_TABLE];
  int64_t width = table->shape[1];
  int checked = parsed->key[KEY_CHECKED].integer != 0;
  if (table->shape[0] != lens->shape[0]) {
    return cli_fail(job->report, CLI_BAD_INPUT, "tensor block_table has %lld rows; accepted: %lld, as seq_lens",
                    (long long)table->shape[0], (long long)lens->shape[0]);
  }
  if (starts != NULL && starts->shape[0] != lens->shape[0]) {
    return cli_fail(job->report, CLI_BAD_INPUT, "tensor seq_starts has %lld entries; accepted: %lld, as seq_lens",
                    (long long)starts->shape[0], (long long)lens->shape[0]);
  }
  *rows = 0;
  for (int64_t s = 0; s < lens->shape[0]; ++s) {
    int64_t length = request_i32(lens, s);
    int64_t start = starts != NULL ? request_i32(starts, s) : 0;
    if (length < 0) {
      return cli_fail(job->report, CLI_BAD_INPUT, "tensor seq_lens: entry %lld is %lld; accepted: 0 or more",
                      (long long)s, (long long)length);
    }
    if (start < 0 || start > length) {
      return cli_fail(job->report, CLI_BAD_INPUT,
                      "tensor seq_starts: entry %lld is %lld; accepted: 0 to seq_lens' %lld", (long long)s,
                      (long long)start, (long long)length);
    }
    if (checked && length > 0 && (length - 1) / parsed->block_size >= width) {
      return cli_fail(job->report, CLI_BAD_INPUT,
                      "tensor seq_lens: entry %lld is %lld, beyond the table; accepted: at "
                      "most width %lld times block_size %d",
                      (long long)s, (long long)length, (long long)width, (int)parsed->block_size);
    }
    int code = checked && start < length ? check_blocks(job, s, start, length) : CLI_OK;
    if (code != CLI_OK) {
      return code;
    }
    *rows += length - start;
  }
  return CLI_OK;
}

static int make_outputs(const run_job *job, cache_call *call, int64_t rows) {
  const request *parsed = job->request;
  const char *const names[2] = {"k", "v"};
  const request_tensor pools[2] = {TENSOR_K_CACHE, TENSOR_V_CACHE};
  const int32_t sizes[2] = {parsed->head_size, parsed->v_head_size};
  run_view *const views[2] = {&call->k, &call->v};
  for (int i = 0; i < 2; ++i) {
    st_tensor *tensor;
    const int64_t shape[3] = {rows, parsed->num_kv_heads, sizes[i]};
    if (parsed->tensor[pools[i]] == NULL) {
      continue;
    }
    int code = run_add_output(job, names[i], parsed->out_dtype, 3, shape, &tensor);
    if (code == CLI_OK) {
      code = run_view_output(views[i], tensor, job->flags->poison, job->report);
    }
    if (code != CLI_OK) {
      return code;
    }
  }
  return CLI_OK;
}

static int gather(const run_job *job, void *opened) {
  const cache_call *call = opened;
  const request *parsed = job->request;
  attn_message message;
  attn_cache_gather_args args = ATTN_CACHE_GATHER_INIT;
  args.k_format = parsed->k_format;
  args.v_format = parsed->v_format;
  args.layout = (attn_layout)parsed->key[KEY_KV_LAYOUT].integer;
  args.unchecked = parsed->key[KEY_CHECKED].integer == 0;
  args.backend = job->flags->backend;
  args.k_cache = call->tensors[TENSOR_K_CACHE].tensor;
  args.v_cache = call->tensors[TENSOR_V_CACHE].tensor;
  args.k_scale = call->tensors[TENSOR_K_SCALE].tensor;
  args.v_scale = call->tensors[TENSOR_V_SCALE].tensor;
  args.block_table = call->tensors[TENSOR_BLOCK_TABLE].tensor;
  args.seq_lens = call->tensors[TENSOR_SEQ_LENS].tensor;
  args.seq_starts = call->tensors[TENSOR_SEQ_STARTS].tensor;
  args.k = call->k.tensor;
  args.v = call->v.tensor;
  return cli_library(job->report, attn_cache_gather(job->context, &args, &message), &message);
}

static int open_gather(const run_job *job, void **opened) {
  static const run_owned owners[TENSOR_COUNT] = {
      [TENSOR_K_CACHE] = run_owns_pool, [TENSOR_V_CACHE] = run_owns_pool, [TENSOR_BLOCK_TABLE] = run_owns_table};
  cache_call *call = calloc(1, sizeof(*call));
  *opened = call;
  if (call == NULL) {
    return cli_fail(job->report, CLI_FAILED, "no memory for the call");
  }
  int code = run_count_rows(job, &call->rows);
  if (code == CLI_OK) {
    code = make_outputs(job, call, call->rows);
  }
  if (code == CLI_OK && job->flags->poison) {
    code = run_own_gather(job->request, &call->owned, job->report);
  }
  return code == CLI_OK ? open_inputs(job, call, owners, &call->owned) : code;
}

static void collect_gathered(const run_job *job, void *opened) {
  const cache_call *call = opened;
  for (size_t i = 0; i < job->result->num_tensors; ++i) {
    int is_k = strcmp(job->result->tensors[i].name, "k") == 0;
    run_view_collect(is_k ? &call->k : &call->v, &job->result->tensors[i], call->rows);
  }
}

const run_steps run_cache_gather = {OP_CACHE_GATHER, open_gather, gather, collect_gathered, close_call};
