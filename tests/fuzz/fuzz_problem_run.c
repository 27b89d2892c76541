/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_problem_run.c: a small batch of a problem, run by REFERENCE, by the backend that the options ask for and by the
 * same with three threads. Each tensor lies in an allocation of its own size with strides that may be padded. A batch
 * that is well-formed must run, within a loose distance of REFERENCE and inside the range of V, whatever the cache's
 * format; one whose lists were spoilt may be refused, and then no output byte has changed. Bytes that no row owns never
 * change.
 */
#define _XOPEN_SOURCE 700
#include "fuzz_problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SEQS = 4, MAX_RANGES = 2, MAX_HEADS = 32, MAX_SIZE = 160, MAX_BLOCK = 64, MAX_KV = 8192, RUNS = 3 };
enum { MAX_WORKSPACE = 1 << 23, POISON = 0xFF };

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

typedef struct array {
  DLTensor tensor;
  int64_t shape[4];
  int64_t strides[4];
  size_t element;
  size_t bytes;
  unsigned char *data;
} array;

/* All bytes poisoned. `padding` elements lie between the rows of each axis. */
static void make(array *a, attn_dtype dtype, int32_t ndim, const int64_t *shape, int64_t padding) {
  int64_t elements = 1;
  int64_t last = 0;
  memset(a, 0, sizeof *a);
  for (int32_t axis = ndim - 1; axis >= 0; axis--) {
    a->shape[axis] = shape[axis];
    a->strides[axis] = elements;
    last += (shape[axis] - 1) * elements;
    elements = elements * (shape[axis] > 0 ? shape[axis] : 1) + (axis > 0 ? padding : 0);
  }
  a->element = attn_dtype_bytes(dtype);
  for (int32_t axis = 0; axis < ndim; axis++) {
    last = shape[axis] == 0 ? -1 : last;
    if (last < 0) {
      break;
    }
  }
  a->bytes = (size_t)(last + 1) * a->element;
  a->data = fuzz_alloc(a->bytes);
  memset(a->data, POISON, a->bytes);
  attn_tensor_cpu(&a->tensor, a->data, dtype, ndim, a->shape);
  a->tensor.strides = a->strides;
}

static int64_t count_of(const array *a) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < a->tensor.ndim; axis++) {
    count *= a->shape[axis];
  }
  return count;
}

/* Address of element i in row-major order. */
static unsigned char *at(const array *a, int64_t i) {
  int64_t offset = 0;
  for (int32_t axis = a->tensor.ndim - 1; axis >= 0; axis--) {
    offset += i % a->shape[axis] * a->strides[axis];
    i /= a->shape[axis];
  }
  return a->data + (size_t)offset * a->element;
}

static void set_i32(const array *a, int64_t i, int32_t value) {
  memcpy(at(a, i), &value, sizeof value);
}

static void set_float(const array *a, int64_t i, float value) {
  memcpy(at(a, i), &value, sizeof value);
}

static float get_float(const array *a, int64_t i) {
  uint32_t bits = 0;
  float value;
  memcpy(&bits, at(a, i), a->element);
  if (a->tensor.dtype.code == kDLFloat && a->element == 2) {
    int32_t exponent = (int32_t)(bits >> 10 & 31);
    int32_t fraction = (int32_t)(bits & 1023);
    value = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
            : exponent == 0 ? ldexpf((float)fraction, -24)
                            : ldexpf((float)(1024 + fraction), exponent - 25);
    return (bits >> 15) != 0 ? -value : value;
  }
  bits = a->element == 2 ? bits << 16 : bits;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t next_random(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

static float random_value(uint32_t *state, float most) {
  return ((float)(next_random(state) % 2001) / 1000.0f - 1.0f) * most;
}

/* Values below 1; any byte where bytes are no numbers. */
static void fill(const array *a, uint32_t *state) {
  for (int64_t i = count_of(a) - 1; i >= 0; i--) {
    uint32_t bits = next_random(state);
    uint16_t half = (uint16_t)((bits & 1) << 15);
    if (a->element == 4) {
      set_float(a, i, random_value(state, 1.0f));
    } else if (a->element == 1) {
      unsigned least = a->tensor.dtype.code == kDLFloat8_e4m3fn ? 0x38 /* the code of 1 */
                       : a->tensor.dtype.code == kDLFloat8_e5m2 ? 0x3C
                                                                : 0;
      *at(a, i) = (unsigned char)(least == 0 ? bits : (bits >> 8) % least | (bits & 0x80));
    } else {
      half |= a->tensor.dtype.code == kDLFloat ? (uint16_t)((8 + (bits >> 1) % 7) << 10 | (bits >> 4 & 1023))
                                               : (uint16_t)((120 + (bits >> 1) % 7) << 7 | (bits >> 4 & 127));
      memcpy(at(a, i), &half, sizeof half);
    }
  }
}

/* ---- A batch ----------------------------------------------------------------------------------------------------- */

typedef struct call {
  attn_problem problem; /* with its defaults filled in */
  int32_t num_seqs;
  int64_t tokens;
  int64_t kv_tokens; /* of all sequences */
  int64_t max_kv_len;
  int strict;   /* well-formed: it must run */
  int moderate; /* no score can overflow: values can be judged */
  int64_t padding;
  array q, k, v, k_pool, v_pool, k_scale, v_scale, q_scale, output_scale, slopes, sinks, bias, ranges, causal;
  array starts, lens, kv_starts, table;
  array out, lse, out_scale;
  attn_batch batch;
  attn_run_args args;
} call;

static attn_format format_of(attn_dtype dtype) {
  return dtype == ATTN_DTYPE_FLOAT16    ? ATTN_FORMAT_FLOAT16
         : dtype == ATTN_DTYPE_BFLOAT16 ? ATTN_FORMAT_BFLOAT16
         : dtype == ATTN_DTYPE_FP8_E4M3 ? ATTN_FORMAT_FP8_E4M3
                                        : ATTN_FORMAT_FLOAT32;
}

static void fill_defaults(attn_problem *p, int32_t block_size) {
  p->v_head_size = p->v_head_size != 0 ? p->v_head_size : p->qk_head_size;
  p->q_dtype = p->q_dtype != ATTN_DTYPE_DEFAULT ? p->q_dtype : ATTN_DTYPE_FLOAT32;
  attn_dtype plain = p->q_dtype == ATTN_DTYPE_FP8_E4M3 ? ATTN_DTYPE_BFLOAT16 : p->q_dtype;
  p->out_dtype = p->out_dtype != ATTN_DTYPE_DEFAULT ? p->out_dtype : plain;
  p->kv_dtype = p->kv_dtype != ATTN_DTYPE_DEFAULT ? p->kv_dtype : plain;
  p->k_format = p->k_format != ATTN_FORMAT_AUTO ? p->k_format : format_of(p->q_dtype);
  p->v_format = p->v_format != ATTN_FORMAT_AUTO ? p->v_format : p->k_format;
  p->block_size = p->block_size != 0 ? p->block_size : block_size;
}

/* Rows and keys of each sequence, and the lists that say so. */
static void draw_lengths(call *c, fuzz_bytes *in) {
  static const int32_t lengths[] = {0, 1, 2, 3, 7, 15, 16, 17, 33, 40};
  const int64_t entries[1] = {c->num_seqs + 1};
  const int64_t seqs[1] = {c->num_seqs};
  int cross = c->problem.kv_source == ATTN_KV_DIRECT && fuzz_below(in, 2);
  make(&c->starts, ATTN_DTYPE_INT32, 1, entries, 0);
  make(&c->kv_starts, ATTN_DTYPE_INT32, 1, entries, 0);
  make(&c->lens, ATTN_DTYPE_INT32, 1, seqs, 0);
  set_i32(&c->starts, 0, 0);
  set_i32(&c->kv_starts, 0, 0);
  for (int32_t s = 0; s < c->num_seqs; s++) {
    int32_t q_len = fuzz_below(in, 6);
    int32_t kv_len = lengths[fuzz_below(in, 10)];
    kv_len = c->problem.kv_source == ATTN_KV_DIRECT && !cross ? q_len : kv_len;
    c->tokens += q_len;
    c->kv_tokens += kv_len;
    c->max_kv_len = kv_len > c->max_kv_len ? kv_len : c->max_kv_len;
    set_i32(&c->starts, s + 1, (int32_t)c->tokens);
    set_i32(&c->kv_starts, s + 1, (int32_t)c->kv_tokens);
    set_i32(&c->lens, s, kv_len);
  }
  c->batch.query_start_loc = &c->starts.tensor;
  c->batch.seq_lens = c->problem.kv_source == ATTN_KV_CACHE ? &c->lens.tensor : NULL;
  c->batch.kv_start_loc = cross ? &c->kv_starts.tensor : NULL;
}

static int is_per_token(attn_format format) {
  return format == ATTN_FORMAT_INT8_PER_TOKEN_HEAD || format == ATTN_FORMAT_FP8_PER_TOKEN_HEAD ||
         format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
}

/* A row's scale with which no element exceeds 1. That of int4 has a zero point in its low bits. */
static float row_scale(attn_format format, uint32_t *random) {
  float value = format == ATTN_FORMAT_INT8_PER_TOKEN_HEAD   ? 1.0f / 128.0f
                : format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? 1.0f / 32.0f
                                                            : 1.0f;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits |= format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? next_random(random) % 16 : 0;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Rows of codes: fp8 codes below 1, and scales at their ends where they are not apart. */
static void fill_rows(const array *pool, attn_format format, int apart, uint32_t *random) {
  int64_t bytes = pool->shape[3];
  for (int64_t i = count_of(pool) - 1; format == ATTN_FORMAT_FP8_PER_TOKEN_HEAD && i >= 0; i--) {
    *at(pool, i) = (unsigned char)(next_random(random) % 0x38 | (next_random(random) & 0x80));
  }
  for (int64_t row = bytes > 0 ? count_of(pool) / bytes - 1 : -1; !apart && row >= 0; row--) {
    float scale = row_scale(format, random);
    memcpy(at(pool, (row + 1) * bytes - 4), &scale, sizeof scale);
  }
}

static void make_scales(const call *c, array *scale, attn_format format, int apart, const array *pool,
                        uint32_t *random) {
  const int64_t heads[1] = {c->problem.num_kv_heads};
  if (is_per_token(format)) {
    fill_rows(pool, format, apart, random);
    if (apart) {
      make(scale, ATTN_DTYPE_FLOAT32, 3, pool->shape, c->padding);
    }
    for (int64_t i = apart ? count_of(scale) - 1 : -1; i >= 0; i--) {
      set_float(scale, i, row_scale(format, random));
    }
  } else if ((format == ATTN_FORMAT_FP8_E4M3 || format == ATTN_FORMAT_FP8_E5M2) && next_random(random) % 2 == 0) {
    make(scale, ATTN_DTYPE_FLOAT32, 1, heads, 0);
    for (int64_t i = 0; i < heads[0]; i++) {
      set_float(scale, i, 0.01f + (float)(next_random(random) % 100) / 101.0f);
    }
  }
}

static void make_pools(call *c, fuzz_bytes *in, uint32_t *random) {
  attn_cache_desc desc = ATTN_CACHE_DESC_INIT;
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  const attn_problem *p = &c->problem;
  desc.k_format = p->k_format;
  desc.v_format = p->v_format;
  desc.layout = p->layout;
  desc.num_blocks = 1 + fuzz_below(in, 6);
  desc.block_size = p->block_size;
  desc.num_kv_heads = p->num_kv_heads;
  desc.head_size = p->qk_head_size;
  desc.v_head_size = p->v_head_size;
  desc.separate_scales = p->separate_scales;
  attn_message message = {ATTN_OK, ""};
  FUZZ_CHECK(attn_cache_describe(&desc, &info, &message) == ATTN_OK, "planned, and no such cache: %s", message.text);
  make(&c->k_pool, info.k.dtype, 4, info.k.shape, c->padding);
  make(&c->v_pool, info.v.dtype, 4, info.v.shape, c->padding);
  fill(&c->k_pool, random);
  fill(&c->v_pool, random);
  int both = p->separate_scales == ATTN_SEPARATE_BOTH;
  make_scales(c, &c->k_scale, p->k_format, both || p->separate_scales == ATTN_SEPARATE_K, &c->k_pool, random);
  make_scales(c, &c->v_scale, p->v_format, both || p->separate_scales == ATTN_SEPARATE_V, &c->v_pool, random);
  const int64_t table[2] = {c->num_seqs, (c->max_kv_len + p->block_size - 1) / p->block_size + fuzz_below(in, 2)};
  make(&c->table, ATTN_DTYPE_INT32, 2, table, c->padding);
  for (int64_t i = count_of(&c->table) - 1; i >= 0; i--) {
    set_i32(&c->table, i, (int32_t)(next_random(random) % (uint32_t)desc.num_blocks));
  }
  c->args.k_cache = &c->k_pool.tensor;
  c->args.v_cache = &c->v_pool.tensor;
  c->args.k_scale = c->k_scale.data != NULL ? &c->k_scale.tensor : NULL;
  c->args.v_scale = c->v_scale.data != NULL ? &c->v_scale.tensor : NULL;
  c->args.block_table = &c->table.tensor;
}

static void make_direct(call *c, uint32_t *random) {
  const int64_t k[3] = {c->kv_tokens, c->problem.num_kv_heads, c->problem.qk_head_size};
  const int64_t v[3] = {c->kv_tokens, c->problem.num_kv_heads, c->problem.v_head_size};
  make(&c->k, c->problem.kv_dtype, 3, k, c->padding);
  make(&c->v, c->problem.kv_dtype, 3, v, c->padding);
  fill(&c->k, random);
  fill(&c->v, random);
  c->args.k = &c->k.tensor;
  c->args.v = &c->v.tensor;
}

static void make_features(call *c, fuzz_bytes *in, uint32_t *random) {
  const attn_problem *p = &c->problem;
  const int64_t heads[1] = {p->num_q_heads};
  const int64_t seqs[1] = {c->num_seqs};
  const int64_t bias[3] = {c->tokens, fuzz_below(in, 2) ? 1 : p->num_q_heads, c->max_kv_len + fuzz_below(in, 3)};
  const int64_t ranges[3] = {c->num_seqs, fuzz_below(in, MAX_RANGES + 1), 2};
  make(&c->slopes, ATTN_DTYPE_FLOAT32, 1, heads, 0);
  make(&c->sinks, ATTN_DTYPE_FLOAT32, 1, heads, 0);
  for (int64_t i = 0; i < p->num_q_heads; i++) {
    set_float(&c->slopes, i, 0.5f / (float)(i + 1));
    set_float(&c->sinks, i, next_random(random) % 4 == 0 ? -INFINITY : random_value(random, 2.0f));
  }
  make(&c->bias, ATTN_DTYPE_FLOAT32, 3, bias, c->padding);
  for (int64_t i = count_of(&c->bias) - 1; i >= 0; i--) {
    set_float(&c->bias, i, next_random(random) % 4 == 0 ? -INFINITY : random_value(random, 2.0f));
  }
  make(&c->ranges, ATTN_DTYPE_INT32, 3, ranges, 0);
  for (int64_t i = 0; i + 1 < count_of(&c->ranges); i += 2) {
    int32_t begin = (int32_t)(next_random(random) % 30);
    set_i32(&c->ranges, i, begin);
    set_i32(&c->ranges, i + 1, begin + (int32_t)(next_random(random) % 20));
  }
  make(&c->causal, ATTN_DTYPE_INT32, 1, seqs, 0);
  for (int64_t i = 0; i < c->num_seqs; i++) {
    set_i32(&c->causal, i, (int32_t)(next_random(random) % 2));
  }
  c->args.alibi_slopes = p->alibi != ATTN_ALIBI_NONE ? &c->slopes.tensor : NULL;
  c->args.sinks = p->has_sinks ? &c->sinks.tensor : NULL;
  c->args.bias = p->has_bias ? &c->bias.tensor : NULL;
  c->args.prefix_ranges = p->has_prefix_ranges ? &c->ranges.tensor : NULL;
  c->args.causal_per_seq = p->has_causal_per_seq ? &c->causal.tensor : NULL;
}

static void make_outputs(call *c, fuzz_bytes *in) {
  const attn_problem *p = &c->problem;
  const int64_t rows = c->tokens + fuzz_below(in, 3);
  const int64_t out[3] = {rows, p->num_q_heads, p->v_head_size};
  const int64_t block = p->output_block > 0 ? p->output_block : 1;
  const int64_t scales[3] = {rows, p->num_q_heads, (p->v_head_size + block - 1) / block};
  const int64_t one[1] = {1};
  int fp8 = p->out_dtype == ATTN_DTYPE_FP8_E4M3;
  make(&c->out, p->out_dtype, 3, out, c->padding);
  make(&c->lse, ATTN_DTYPE_FLOAT32, 2, out, c->padding);
  make(&c->out_scale, ATTN_DTYPE_FLOAT32, 3, scales, c->padding);
  make(&c->output_scale, ATTN_DTYPE_FLOAT32, 1, one, 0);
  set_float(&c->output_scale, 0, 0.25f);
  c->args.out = &c->out.tensor;
  c->args.lse = p->wants_lse ? &c->lse.tensor : NULL;
  c->args.out_scale = fp8 && p->output_block > 0 ? &c->out_scale.tensor : NULL;
  c->args.output_scale = fp8 && p->output_block == 0 ? &c->output_scale.tensor : NULL;
}

/* Entries of the lists become anything. */
static void spoil_lists(call *c, fuzz_bytes *in) {
  int32_t changes = fuzz_below(in, 8) - 4;
  c->args.unchecked = fuzz_below(in, 4) == 3;
  for (; changes > 0; changes--) {
    array *const lists[] = {&c->starts, &c->lens, &c->kv_starts, &c->table, &c->ranges, &c->causal};
    const array *list = lists[fuzz_below(in, 6)];
    int32_t entry = fuzz_u8(in);
    int32_t value = fuzz_i32(in);
    if (list->data != NULL && count_of(list) > 0) {
      set_i32(list, entry % count_of(list), value);
      c->strict = 0;
    }
  }
}

static void make_call(call *c, fuzz_bytes *in) {
  const attn_batch batch = ATTN_BATCH_INIT;
  const attn_run_args args = ATTN_RUN_INIT;
  const attn_problem *p = &c->problem;
  uint32_t random = fuzz_u8(in);
  c->batch = batch;
  c->args = args;
  c->num_seqs = fuzz_below(in, MAX_SEQS + 1);
  c->padding = fuzz_below(in, 3);
  c->strict = 1;
  c->moderate =
      p->scale >= 0x1p-10f && p->scale <= 4.0f && (p->softcap == 0.0f || (p->softcap >= 0x1p-6f && p->softcap <= 1e4f));
  draw_lengths(c, in);
  const int64_t q[3] = {c->tokens + fuzz_below(in, 2), p->num_q_heads, p->qk_head_size};
  make(&c->q, p->q_dtype, 3, q, c->padding);
  fill(&c->q, &random);
  c->args.q = &c->q.tensor;
  const int64_t one[1] = {1};
  make(&c->q_scale, ATTN_DTYPE_FLOAT32, 1, one, 0);
  set_float(&c->q_scale, 0, 0.5f);
  c->args.q_scale = p->q_dtype == ATTN_DTYPE_FP8_E4M3 ? &c->q_scale.tensor : NULL;
  if (p->kv_source == ATTN_KV_DIRECT) {
    make_direct(c, &random);
  } else {
    make_pools(c, in, &random);
  }
  make_features(c, in, &random);
  make_outputs(c, in);
  spoil_lists(c, in);
}

static void free_call(call *c) {
  array *const arrays[] = {&c->q,         &c->k,         &c->v,      &c->k_pool, &c->v_pool, &c->k_scale,
                           &c->v_scale,   &c->slopes,    &c->sinks,  &c->bias,   &c->ranges, &c->causal,
                           &c->starts,    &c->lens,      &c->table,  &c->out,    &c->lse,    &c->output_scale,
                           &c->kv_starts, &c->out_scale, &c->q_scale};
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
    free(arrays[i]->data);
  }
}

/* ---- Running it -------------------------------------------------------------------------------------------------- */

typedef struct outputs {
  attn_status status;
  unsigned char *out;
  unsigned char *lse;
  unsigned char *out_scale;
} outputs;

/* Bytes that belong to no row of the batch still hold what was there. */
static void check_unowned(const array *a, int64_t rows, int written) {
  array left = *a;
  left.data = fuzz_copy(a->data, a->bytes);
  int64_t row = a->shape[0] > 0 ? count_of(a) / a->shape[0] : 0;
  for (int64_t i = 0; written && i < rows * row; i++) {
    memset(at(&left, i), POISON, left.element);
  }
  for (size_t i = 0; i < left.bytes; i++) {
    FUZZ_CHECK(left.data[i] == POISON, "byte %zu of an output is not the call's and was written", i);
  }
  free(left.data);
}

static outputs collect(const call *c, attn_status status) {
  int written = status == ATTN_OK;
  int32_t tokens = 0; /* of the list, which may have been spoilt */
  outputs o = {status, NULL, NULL, NULL};
  memcpy(&tokens, at(&c->starts, c->num_seqs), sizeof tokens);
  check_unowned(&c->out, tokens, written);
  check_unowned(&c->lse, tokens, written && c->args.lse != NULL);
  check_unowned(&c->out_scale, tokens, written && c->args.out_scale != NULL);
  o.out = fuzz_copy(c->out.data, c->out.bytes);
  o.lse = fuzz_copy(c->lse.data, c->lse.bytes);
  o.out_scale = fuzz_copy(c->out_scale.data, c->out_scale.bytes);
  return o;
}

static void free_outputs(outputs *o) {
  free(o->out);
  free(o->lse);
  free(o->out_scale);
}

/* The batch fits the limits; so says plan.h. */
static int fits(const call *c, const attn_plan_limits *l) {
  int64_t seqs = l->max_seqs != 0 ? l->max_seqs : l->max_tokens;
  return c->num_seqs <= seqs && c->tokens <= l->max_tokens && c->max_kv_len <= l->max_kv_len;
}

static attn_status schedule_and_run(const call *c, const attn_plan *plan, const attn_workspace *workspace) {
  attn_message message;
  attn_schedule_info info = ATTN_SCHEDULE_INFO_INIT;
  fuzz_message_reset(&message);
  attn_status status = attn_run(plan, &c->args, workspace, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status != ATTN_OK, "a run before its schedule");
  fuzz_message_reset(&message);
  status = attn_plan_schedule(plan, &c->batch, workspace, &message);
  fuzz_message_check(status, &message);
  if (status == ATTN_OK) {
    FUZZ_CHECK(attn_schedule_get_info(plan, workspace, &info, NULL) == ATTN_OK, "a schedule that is not there");
    FUZZ_CHECK(info.num_seqs == c->num_seqs && (!c->strict || info.num_tokens == c->tokens) && info.splits >= 0,
               "a schedule of %d sequences, %lld tokens", (int)info.num_seqs, (long long)info.num_tokens);
    fuzz_message_reset(&message);
    status = attn_run(plan, &c->args, workspace, &message);
    fuzz_message_check(status, &message);
  }
  return status;
}

static outputs run_once(call *c, attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                        const attn_plan_options *options) {
  attn_plan *plan = NULL;
  attn_workspace workspace = {NULL, 0};
  array *const written[] = {&c->out, &c->lse, &c->out_scale};
  attn_message message = {ATTN_OK, ""};
  FUZZ_CHECK(attn_plan_create(context, problem, limits, options, &plan, &message) == ATTN_OK, "no plan any more: %s",
             message.text);
  for (size_t i = 0; i < sizeof written / sizeof written[0]; i++) {
    memset(written[i]->data, POISON, written[i]->bytes);
  }
  workspace.bytes = attn_plan_workspace_bytes(plan);
  if (options->own_workspace == 0) {
    FUZZ_CHECK(posix_memalign(&workspace.data, ATTN_WORKSPACE_ALIGN, workspace.bytes) == 0, "no memory");
    memset(workspace.data, POISON, workspace.bytes);
  }
  attn_status status = schedule_and_run(c, plan, options->own_workspace ? NULL : &workspace);
  FUZZ_CHECK(!c->strict || status == (fits(c, limits) ? ATTN_OK : ATTN_E_CAPACITY), "a well-formed batch: status %d",
             (int)status);
  outputs o = collect(c, status);
  free(workspace.data);
  attn_plan_destroy(plan);
  return o;
}

/* ---- What came out ----------------------------------------------------------------------------------------------- */

static void judge_values(call *c, const outputs *o, const outputs *reference) {
  array a = c->out;
  array b = c->out;
  a.data = o->out;
  b.data = reference->out;
  for (int64_t i = c->tokens * c->problem.num_q_heads * c->problem.v_head_size - 1; a.element > 1 && i >= 0; i--) {
    float found = get_float(&a, i);
    float wanted = get_float(&b, i);
    FUZZ_CHECK(fabsf(found) <= 1.01f && fabsf(found - wanted) <= 0x1p-6f, "element %lld of out is %g, REFERENCE has %g",
               (long long)i, (double)found, (double)wanted);
  }
  a = c->lse;
  b = c->lse;
  a.data = o->lse;
  b.data = reference->lse;
  for (int64_t i = c->tokens * c->problem.num_q_heads - 1; c->problem.wants_lse && i >= 0; i--) {
    float found = get_float(&a, i);
    float wanted = get_float(&b, i);
    FUZZ_CHECK(isinf(wanted) ? found == wanted && wanted < 0 : fabsf(found - wanted) <= 0x1p-8f * (1 + fabsf(wanted)),
               "entry %lld of lse is %g, REFERENCE has %g", (long long)i, (double)found, (double)wanted);
  }
}

static void judge_outputs(call *c, const outputs runs[RUNS]) {
  FUZZ_CHECK(runs[1].status == runs[2].status, "status %d with one thread, %d with three", (int)runs[1].status,
             (int)runs[2].status);
  FUZZ_CHECK(runs[0].status == runs[1].status, "REFERENCE says %d, the other %d", (int)runs[0].status,
             (int)runs[1].status);
  if (runs[0].status != ATTN_OK || !c->strict) {
    return;
  }
  for (int i = 0; c->moderate && i < RUNS; i++) {
    judge_values(c, &runs[i], &runs[0]);
  }
  if (c->problem.batch_invariant) {
    FUZZ_CHECK(memcmp(runs[1].out, runs[2].out, c->out.bytes) == 0 &&
                   memcmp(runs[1].lse, runs[2].lse, c->lse.bytes) == 0,
               "batch-invariant, and threads change bits");
  }
}

/* Whether the plan's cost lets it be run here; its block size then. */
static int affordable(attn_context *context, const attn_problem *p, const attn_plan_limits *l,
                      const attn_plan_options *o, int32_t *block_size) {
  attn_explanation e = ATTN_EXPLANATION_INIT;
  *block_size = 0;
  if (attn_explain(context, p, l, o, &e, NULL) != ATTN_OK || e.status != ATTN_OK) {
    return 0;
  }
  *block_size = e.block_size;
  return e.workspace_bytes <= MAX_WORKSPACE;
}

void fuzz_run_problem(attn_context *const contexts[FUZZ_CONTEXTS], const attn_problem *problem,
                      const attn_plan_limits *limits, const attn_plan_options *options, fuzz_bytes *in) {
  attn_problem fixed = *problem;
  attn_plan_options reference = *options;
  int32_t block_size;
  int32_t ignored;
  call c;
  memset(&c, 0, sizeof c);
  reference.backend = "REFERENCE";
  if (problem->num_q_heads > MAX_HEADS || problem->qk_head_size > MAX_SIZE || problem->v_head_size > MAX_SIZE ||
      problem->block_size > MAX_BLOCK || problem->kv_lora_rank != 0 || problem->context_parallel > 1 ||
      limits->max_kv_len > MAX_KV || !affordable(contexts[0], problem, limits, options, &block_size) ||
      !affordable(contexts[1], problem, limits, options, &ignored)) {
    return;
  }
  c.problem = *problem;
  if (problem->kv_source == ATTN_KV_CACHE) {
    fixed.block_size = block_size; /* REFERENCE may prefer another */
  }
  fill_defaults(&c.problem, block_size);
  make_call(&c, in);
  outputs runs[RUNS] = {run_once(&c, contexts[0], &fixed, limits, &reference),
                        run_once(&c, contexts[0], &fixed, limits, options),
                        run_once(&c, contexts[1], &fixed, limits, options)};
  judge_outputs(&c, runs);
  for (int i = 0; i < RUNS; i++) {
    free_outputs(&runs[i]);
  }
  free_call(&c);
}
