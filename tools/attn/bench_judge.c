/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is what a call wrote right? Attention and merge: rows against the contract in fp64, by the oracle and the bounds of
 * `attn check`; where they are many, the first and last sequences and heads and some between, as far as a bounded
 * effort goes, and no NaN anywhere. Writes and gathers: every byte against REFERENCE.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check_compare.h"
#include "check_float.h"
#include "check_fp8.h"
#include "check_oracle.h"

#define EFFORT 6e7 /* multiply-adds of the oracle: a few tenths of a second */

static const char *backend_of(const run_job *job) {
  return job->flags->backend != NULL ? job->flags->backend : "the backend";
}

static float load(const st_tensor *tensor, int64_t i) {
  attn_dtype dtype = st_dtype_of_library(tensor->dtype);
  return check_load(tensor->data + (size_t)i * attn_dtype_bytes(dtype), dtype);
}

/* Random inputs are numbers and outputs were NaN before: what is still NaN was not written. A file may mean its NaN. */
static int all_written(const run_job *job, const st_tensor *tensor, int64_t rows) {
  int64_t row = 1;
  rows = job->flags->input == NULL ? rows : 0;
  for (int32_t axis = 1; axis < tensor->rank; ++axis) {
    row *= tensor->shape[axis];
  }
  for (int64_t i = 0; i < rows * row; ++i) {
    if (isnan(load(tensor, i))) {
      return cli_fail(job->report, CLI_FAILED, "%s is wrong: %s is not a number in row %lld, element %lld",
                      backend_of(job), tensor->name, (long long)(i / row), (long long)(i % row));
    }
  }
  return CLI_OK;
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

/* One sequence of one head as plain numbers, for the oracle. */
typedef struct judged {
  const run_job *job;
  const attn_problem *problem;
  int64_t seq;
  int64_t first_row;
  int64_t num_rows;
  int64_t kv_len;
  float *k; /* [kv_len, kv heads, head size] */
  float *v;
  check_case c;
  check_model m;
  float *q_head; /* [rows, head size] */
  float *k_head; /* [kv_len, head size] */
  float *v_head;
  float *bias; /* [rows, kv_len] or NULL */
  float slope;
  float sink;
  double *scores; /* [2 kv_len] */
  double *out;    /* [v head size] */
} judged;

/* The sequence's keys and values as the reference reads them from the pools. */
static int gather_sequence(judged *j) {
  const request *parsed = j->job->request;
  const st_tensor *table = parsed->tensor[TENSOR_BLOCK_TABLE];
  DLTensor views[4];
  DLTensor row;
  DLTensor length;
  DLTensor k;
  DLTensor v;
  int32_t kv_len = (int32_t)j->kv_len;
  int64_t row_shape[2] = {1, table->shape[1]};
  int64_t one[1] = {1};
  int64_t k_shape[3] = {j->kv_len, parsed->num_kv_heads, parsed->head_size};
  int64_t v_shape[3] = {j->kv_len, parsed->num_kv_heads, parsed->v_head_size};
  attn_message message;
  attn_cache_gather_args args = ATTN_CACHE_GATHER_INIT;
  attn_tensor_cpu(&row, table->data + (size_t)(j->seq * table->shape[1]) * sizeof(int32_t), ATTN_DTYPE_INT32, 2,
                  row_shape);
  attn_tensor_cpu(&length, &kv_len, ATTN_DTYPE_INT32, 1, one);
  attn_tensor_cpu(&k, j->k, ATTN_DTYPE_FLOAT32, 3, k_shape);
  attn_tensor_cpu(&v, j->v, ATTN_DTYPE_FLOAT32, 3, v_shape);
  args.k_format = parsed->k_format;
  args.v_format = parsed->v_format;
  args.layout = j->problem->layout;
  args.backend = "REFERENCE";
  args.unchecked = 1; /* what no row sees may lie nowhere */
  args.k_cache = request_view(parsed->tensor[TENSOR_K_CACHE], &views[0]);
  args.v_cache = request_view(parsed->tensor[TENSOR_V_CACHE], &views[1]);
  args.k_scale = request_view(parsed->tensor[TENSOR_K_SCALE], &views[2]);
  args.v_scale = request_view(parsed->tensor[TENSOR_V_SCALE], &views[3]);
  args.block_table = &row;
  args.seq_lens = &length;
  args.k = &k;
  args.v = &v;
  return cli_library(j->job->report, attn_cache_gather(j->job->context, &args, &message), &message);
}

/* The sequence's part of the packed tensors. */
static void unpack_sequence(judged *j) {
  const request *parsed = j->job->request;
  const st_tensor *starts = parsed->tensor[TENSOR_KV_START_LOC];
  int64_t first = starts != NULL ? request_i32(starts, j->seq) : j->first_row;
  int64_t k_row = (int64_t)parsed->num_kv_heads * parsed->head_size;
  int64_t v_row = (int64_t)parsed->num_kv_heads * parsed->v_head_size;
  for (int64_t i = 0; i < j->kv_len * k_row; ++i) {
    j->k[i] = load(parsed->tensor[TENSOR_K], first * k_row + i);
  }
  for (int64_t i = 0; i < j->kv_len * v_row; ++i) {
    j->v[i] = load(parsed->tensor[TENSOR_V], first * v_row + i);
  }
}

static void find_lengths(judged *j) {
  const request *parsed = j->job->request;
  const st_tensor *starts = parsed->tensor[TENSOR_QUERY_START_LOC];
  const st_tensor *packed = parsed->tensor[TENSOR_KV_START_LOC];
  j->first_row = request_i32(starts, j->seq);
  j->num_rows = request_i32(starts, j->seq + 1) - j->first_row;
  j->kv_len = parsed->has_cache ? request_i32(parsed->tensor[TENSOR_SEQ_LENS], j->seq)
              : packed != NULL  ? (int64_t)request_i32(packed, j->seq + 1) - request_i32(packed, j->seq)
                                : j->num_rows;
}

static void set_model(judged *j) {
  const request *parsed = j->job->request;
  const attn_problem *p = j->problem;
  const st_tensor *ranges = parsed->tensor[TENSOR_PREFIX_RANGES];
  j->c.op = parsed->has_cache ? CHECK_ATTENTION : CHECK_CROSS;
  j->c.num_seqs = 1;
  j->c.seqs[0].q_len = (int32_t)j->num_rows;
  j->c.seqs[0].kv_len = (int32_t)j->kv_len;
  j->c.tokens = j->num_rows;
  j->c.keys = j->kv_len;
  j->c.max_kv = (int32_t)j->kv_len;
  j->c.kv_heads = j->c.group = j->c.q_heads = 1;
  j->c.size = parsed->head_size;
  j->c.v_size = parsed->v_head_size;
  j->m.c = &j->c;
  j->m.scale = p->scale;
  j->m.softcap = p->softcap;
  j->m.causal[0] = p->has_causal_per_seq ? request_i32(parsed->tensor[TENSOR_CAUSAL_PER_SEQ], j->seq) : p->causal;
  j->m.left = p->window_left;
  j->m.right = p->window_right;
  j->m.chunk = p->chunk_size;
  j->m.lookback = p->chunk_lookback;
  j->m.clamp = p->prefix_clamp;
  j->m.alibi = (int32_t)p->alibi;
  j->m.num_ranges = ranges != NULL ? (int32_t)ranges->shape[1] : 0;
  for (int64_t i = 0; i < 2 * j->m.num_ranges; ++i) {
    j->m.ranges[0][i / 2][i % 2] = request_i32(ranges, j->seq * 2 * j->m.num_ranges + i);
  }
  j->m.slopes = p->alibi != ATTN_ALIBI_NONE ? &j->slope : NULL;
  j->m.sinks = p->has_sinks ? &j->sink : NULL;
  j->m.q = j->q_head;
  j->m.k = j->k_head;
  j->m.v = j->v_head;
  j->m.bias = j->bias;
  j->m.bias_heads = 1;
}

/* Numbers of one query head into the model's arrays. */
static void take_head(judged *j, int64_t head) {
  const request *parsed = j->job->request;
  const st_tensor *bias = parsed->tensor[TENSOR_BIAS];
  int64_t size = parsed->head_size;
  int64_t v_size = parsed->v_head_size;
  int64_t kv_head = head / (parsed->num_q_heads / parsed->num_kv_heads);
  for (int64_t i = 0; i < j->num_rows * size; ++i) {
    int64_t row = (j->first_row + i / size) * parsed->num_q_heads + head;
    j->q_head[i] = load(parsed->tensor[TENSOR_Q], row * size + i % size);
  }
  for (int64_t k = 0; k < j->kv_len; ++k) {
    int64_t row = k * parsed->num_kv_heads + kv_head;
    memcpy(j->k_head + k * size, j->k + row * size, (size_t)size * sizeof(float));
    memcpy(j->v_head + k * v_size, j->v + row * v_size, (size_t)v_size * sizeof(float));
  }
  for (int64_t i = 0; bias != NULL && i < j->num_rows * j->kv_len; ++i) {
    int64_t row = (j->first_row + i / j->kv_len) * bias->shape[1] + (bias->shape[1] > 1 ? head : 0);
    j->bias[i] = load(bias, row * bias->shape[2] + i % j->kv_len);
  }
  j->slope = j->m.slopes != NULL ? load(parsed->tensor[TENSOR_ALIBI_SLOPES], head) : 0.0f;
  j->sink = j->m.sinks != NULL ? load(parsed->tensor[TENSOR_SINKS], head) : 0.0f;
}

/* How much of its bound an output row takes. */
static double out_fraction(const judged *j, int64_t at, const float *got, const check_truth *truth) {
  const request *parsed = j->job->request;
  int64_t size = parsed->v_head_size;
  if (parsed->out_dtype != ATTN_DTYPE_FP8_E4M3) {
    return check_out_fraction(parsed->out_dtype, size, got, j->out, truth, j->kv_len);
  }
  int32_t block = j->problem->output_block;
  check_fp8_row row = {.size = size, .codes = got, .block = block};
  if (block == 0) {
    row.static_scale = load(parsed->tensor[TENSOR_OUTPUT_SCALE], 0);
  } else {
    row.scales = (const float *)(const void *)j->job->result->tensors[2].data + at * ((size + block - 1) / block);
  }
  return check_fp8_fraction(&row, j->out, truth, j->kv_len);
}

static int judge_row(judged *j, int64_t head, int64_t row, float *got) {
  const run_job *job = j->job;
  const request *parsed = job->request;
  const st_tensor *out = &job->result->tensors[0];
  int64_t at = (j->first_row + row) * parsed->num_q_heads + head;
  check_truth truth;
  check_attention_row(&j->m, 0, (int32_t)row, 0, j->scores, j->out, &truth);
  for (int64_t i = 0; i < parsed->v_head_size; ++i) {
    got[i] = load(out, at * parsed->v_head_size + i);
  }
  double of_out = out_fraction(j, at, got, &truth);
  double of_lse = check_lse_fraction(load(&job->result->tensors[1], at), &truth, parsed->head_size);
  if (of_out <= 1.0 && of_lse <= 1.0) {
    return CLI_OK;
  }
  return cli_fail(job->report, CLI_FAILED,
                  "%s is wrong: sequence %lld, row %lld, head %lld: out at %.3g of its bound (element 0: got %.9g, "
                  "want %.9g), lse at %.3g",
                  backend_of(job), (long long)j->seq, (long long)row, (long long)head, of_out, (double)got[0],
                  j->out[0], of_lse);
}

static void free_sequence(judged *j) {
  free(j->k);
  free(j->v);
  free(j->q_head);
  free(j->k_head);
  free(j->v_head);
  free(j->bias);
  free(j->scores);
  free(j->out);
}

static float *floats(int64_t rows, int64_t heads, int64_t size) {
  return cli_alloc((uint64_t)rows * (uint64_t)heads * (uint64_t)size * sizeof(float), 0);
}

static int open_sequence(judged *j) {
  const request *parsed = j->job->request;
  int has_bias = parsed->tensor[TENSOR_BIAS] != NULL;
  find_lengths(j);
  j->k = floats(j->kv_len, parsed->num_kv_heads, parsed->head_size);
  j->v = floats(j->kv_len, parsed->num_kv_heads, parsed->v_head_size);
  j->q_head = floats(j->num_rows, 1, parsed->head_size);
  j->k_head = floats(j->kv_len, 1, parsed->head_size);
  j->v_head = floats(j->kv_len, 1, parsed->v_head_size);
  j->bias = has_bias ? floats(j->num_rows, 1, j->kv_len) : NULL;
  j->scores = cli_alloc((uint64_t)j->kv_len * 2 * sizeof(double), 0);
  j->out = cli_alloc((uint64_t)parsed->v_head_size * sizeof(double), 0);
  if (j->k == NULL || j->v == NULL || j->q_head == NULL || j->k_head == NULL || j->v_head == NULL ||
      (has_bias && j->bias == NULL) || j->scores == NULL || j->out == NULL) {
    return cli_fail(j->job->report, CLI_FAILED, "no memory to judge the result");
  }
  set_model(j);
  if (!parsed->has_cache) {
    unpack_sequence(j);
    return CLI_OK;
  }
  return gather_sequence(j);
}

/* The i-th of n to look at: the first, the last, then any. */
static int64_t choose(int64_t i, int64_t n, check_rng *rng) {
  return i == 0 ? 0 : i == 1 ? n - 1 : check_between(rng, 0, n - 1);
}

/* Rows of some heads, until the effort is spent. */
static int judge_heads(judged *j, double effort, check_rng *rng) {
  const request *parsed = j->job->request;
  double row_cost = (double)(j->kv_len > 0 ? j->kv_len : 1) * (parsed->head_size + parsed->v_head_size);
  float *got = floats(1, 1, parsed->v_head_size);
  int code = got != NULL ? CLI_OK : cli_fail(j->job->report, CLI_FAILED, "no memory to judge the result");
  double spent = 0.0;
  for (int64_t i = 0; code == CLI_OK && j->num_rows > 0 && i < parsed->num_q_heads && (i < 2 || spent < effort); ++i) {
    int64_t head = choose(i, parsed->num_q_heads, rng);
    take_head(j, head);
    for (int64_t k = 0; code == CLI_OK && k < j->num_rows && k < 16 && (k < 2 || spent < effort); ++k) {
      code = judge_row(j, head, choose(k, j->num_rows, rng), got);
      spent += row_cost;
    }
  }
  free(got);
  return code;
}

static int judge_attention(const run_job *job, const attn_problem *problem, check_rng *rng) {
  const request *parsed = job->request;
  const st_tensor *ranges = parsed->tensor[TENSOR_PREFIX_RANGES];
  int64_t count = parsed->num_seqs < 3 ? parsed->num_seqs : 3;
  if (ranges != NULL && ranges->shape[1] > CHECK_MAX_RANGES) {
    return cli_fail(job->report, CLI_BAD_INPUT,
                    "tensor prefix_ranges: axis 1 is %lld; accepted by attn bench: at most %d",
                    (long long)ranges->shape[1], CHECK_MAX_RANGES);
  }
  int code = all_written(job, &job->result->tensors[0], parsed->num_tokens);
  for (int64_t i = 0; code == CLI_OK && i < count; ++i) {
    judged *j = calloc(1, sizeof(*j));
    if (j == NULL) {
      return cli_fail(job->report, CLI_FAILED, "no memory to judge the result");
    }
    j->job = job;
    j->problem = problem;
    j->seq = choose(i, parsed->num_seqs, rng);
    code = open_sequence(j);
    if (code == CLI_OK) {
      code = judge_heads(j, EFFORT / (double)count, rng);
    }
    free_sequence(j);
    free(j);
  }
  return code;
}

/* ---- Merge ------------------------------------------------------------------------------------------------------- */

static int judge_merged_row(const run_job *job, int64_t row, float *values, double *lses, double *want) {
  const request *parsed = job->request;
  int64_t size = parsed->outs[0]->shape[2];
  int64_t heads = parsed->outs[0]->shape[1];
  double unit = parsed->key[KEY_LSE_BASE].integer == ATTN_LSE_BASE_2 ? log(2.0) : 1.0;
  const st_tensor *sinks = parsed->tensor[TENSOR_SINKS];
  check_truth truth;
  for (size_t r = 0; r < parsed->num_parts; ++r) {
    lses[r] = (double)load(parsed->lses[r], row) * unit;
    for (int64_t i = 0; i < size; ++i) {
      values[(int64_t)r * size + i] = load(parsed->outs[r], row * size + i);
    }
  }
  check_merge_row((int32_t)parsed->num_parts, lses, values, size,
                  sinks != NULL ? (double)load(sinks, row % heads) : -INFINITY, want, &truth);
  float *got = values; /* the parts are not needed any more */
  for (int64_t i = 0; i < size; ++i) {
    got[i] = load(&job->result->tensors[0], row * size + i);
  }
  double of_out = check_out_fraction(parsed->out_dtype, size, got, want, &truth, (int64_t)parsed->num_parts);
  double of_lse = check_lse_fraction(load(&job->result->tensors[1], row), &truth, 0);
  if (of_out <= 1.0 && of_lse <= 1.0) {
    return CLI_OK;
  }
  return cli_fail(job->report, CLI_FAILED, "%s is wrong: token %lld, head %lld: out at %.3g of its bound, lse at %.3g",
                  backend_of(job), (long long)(row / heads), (long long)(row % heads), of_out, of_lse);
}

static int judge_merge(const run_job *job, check_rng *rng) {
  const request *parsed = job->request;
  const st_tensor *first = parsed->outs[0];
  int64_t rows = first->shape[0] * first->shape[1];
  int64_t size = first->shape[2];
  double cost = (double)size * (double)parsed->num_parts;
  float *values = floats((int64_t)parsed->num_parts, 1, size);
  double *lses = calloc(parsed->num_parts + 1, sizeof(double));
  double *want = calloc((size_t)size + 1, sizeof(double));
  int code = values != NULL && lses != NULL && want != NULL
                 ? all_written(job, &job->result->tensors[0], first->shape[0])
                 : cli_fail(job->report, CLI_FAILED, "no memory to judge the result");
  int whole = (double)rows * cost <= EFFORT;
  for (int64_t i = 0; code == CLI_OK && i < rows && (double)i * cost <= EFFORT; ++i) {
    code = judge_merged_row(job, whole ? i : choose(i, rows, rng), values, lses, want);
  }
  free(values);
  free(lses);
  free(want);
  return code;
}

/* ---- Caches ------------------------------------------------------------------------------------------------------ */

static int same_bytes(const run_job *job, const st_tensor *got, const unsigned char *want) {
  for (uint64_t i = 0; i < got->bytes; ++i) {
    if (got->data[i] != want[i]) {
      return cli_fail(job->report, CLI_FAILED, "%s is wrong: byte %llu of %s is %02X, REFERENCE wrote %02X",
                      backend_of(job), (unsigned long long)i, got->name, got->data[i], want[i]);
    }
  }
  return CLI_OK;
}

/* The same call by REFERENCE, with a result of its own. */
static int run_reference(const run_job *job, run_result *result) {
  cli_options flags = *job->flags;
  run_job again = *job;
  const run_steps *steps = run_steps_of(job->request);
  void *call = NULL;
  flags.backend = "REFERENCE";
  again.flags = &flags;
  again.result = result;
  int code = steps->open(&again, &call);
  if (code == CLI_OK) {
    code = steps->compute(&again, call);
  }
  if (call != NULL) {
    steps->close(call);
  }
  return code;
}

static int judge_gather(const run_job *job) {
  run_result wanted;
  memset(&wanted, 0, sizeof(wanted));
  int code = run_reference(job, &wanted);
  for (size_t i = 0; code == CLI_OK && i < wanted.num_tensors; ++i) {
    code = same_bytes(job, &job->result->tensors[i], wanted.tensors[i].data);
  }
  run_result_free(&wanted);
  return code;
}

/* The pools are put aside, made what they were before the call, and written again by REFERENCE. */
static int judge_write(const run_job *job) {
  const st_tensor *pools[2] = {job->request->tensor[TENSOR_K_CACHE], job->request->tensor[TENSOR_V_CACHE]};
  unsigned char *kept[2] = {NULL, NULL};
  run_result none;
  int code = CLI_OK;
  memset(&none, 0, sizeof(none));
  for (int i = 0; code == CLI_OK && i < 2; ++i) {
    kept[i] = cli_alloc(pools[i]->bytes, 0);
    if (kept[i] == NULL) {
      code = cli_fail(job->report, CLI_FAILED, "no memory to judge the result");
    } else {
      memcpy(kept[i], pools[i]->data, pools[i]->bytes);
      memset(pools[i]->data, 0xFF, pools[i]->bytes);
    }
  }
  if (code == CLI_OK) {
    code = run_reference(job, &none);
  }
  for (int i = 0; code == CLI_OK && i < 2; ++i) {
    st_tensor got = *pools[i];
    got.data = kept[i];
    code = same_bytes(job, &got, pools[i]->data);
  }
  free(kept[0]);
  free(kept[1]);
  return code;
}

int bench_judge(const run_job *job, const attn_problem *problem, check_rng *rng) {
  switch (job->request->op->op) {
  case OP_ATTENTION:
    return judge_attention(job, problem, rng);
  case OP_CACHE_WRITE:
    return judge_write(job);
  case OP_CACHE_GATHER:
    return judge_gather(job);
  default:
    return judge_merge(job, rng);
  }
}
