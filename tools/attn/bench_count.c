/* SPDX-License-Identifier: Apache-2.0 */
/* What a call cannot do without: each input byte that it has to look at once, each output byte once, and the
   multiply-adds of the two products (exponentials, masks and biases are left out: they are the price of the kernel).
   In a decode of 8 sequences of 4096 keys, 32 query heads over 8 KV heads of 128 in bfloat16: 134 MB, 537 MFLOP. */
#include <string.h>

#include "bench.h"

static double bytes_of(const st_tensor *tensor) {
  return tensor != NULL ? (double)tensor->bytes : 0.0;
}

/* Bytes of one token's row of all heads in a pool; 0 for one that is not given. */
static double row_bytes(const request *parsed, const st_tensor *pool) {
  return pool != NULL ? (double)pool->shape[3] * (double)attn_dtype_bytes(st_dtype_of_library(pool->dtype)) *
                            parsed->num_kv_heads
                      : 0.0;
}

static double pool_row_bytes(const request *parsed) {
  return row_bytes(parsed, parsed->tensor[TENSOR_K_CACHE]) + row_bytes(parsed, parsed->tensor[TENSOR_V_CACHE]);
}

static void count_attention(const request *parsed, const attn_problem *problem, bench_work *work) {
  run_work seen = run_count_attention(parsed, problem);
  double out_row = (double)parsed->num_q_heads * parsed->v_head_size * (double)attn_dtype_bytes(parsed->out_dtype);
  double direct =
      parsed->has_cache || parsed->max_kv_len == 0
          ? 0.0
          : (bytes_of(parsed->tensor[TENSOR_K]) + bytes_of(parsed->tensor[TENSOR_V])) / (double)parsed->max_kv_len;
  work->flops = 2.0 * (double)seen.pairs * parsed->num_q_heads * (parsed->head_size + parsed->v_head_size);
  work->read_bytes = (double)seen.keys * (parsed->has_cache ? pool_row_bytes(parsed) : direct) +
                     bytes_of(parsed->tensor[TENSOR_Q]) + bytes_of(parsed->tensor[TENSOR_BIAS]);
  work->written_bytes = (double)parsed->num_tokens * (out_row + (double)parsed->num_q_heads * 4.0);
}

static void count_write(const request *parsed, bench_work *work) {
  const st_tensor *slots = parsed->tensor[TENSOR_SLOT_MAPPING];
  const st_tensor *k = parsed->tensor[TENSOR_K];
  double share = 0.0; /* of the rows that have a slot */
  for (int64_t i = 0; i < slots->shape[0]; ++i) {
    int64_t slot;
    memcpy(&slot, slots->data + (size_t)i * sizeof(slot), sizeof(slot));
    share += slot >= 0 ? 1.0 / (double)k->shape[0] : 0.0;
  }
  work->read_bytes = share * (bytes_of(k) + bytes_of(parsed->tensor[TENSOR_V]));
  work->written_bytes = share * (double)k->shape[0] * pool_row_bytes(parsed);
}

static void count_gather(const request *parsed, bench_work *work) {
  const st_tensor *lens = parsed->tensor[TENSOR_SEQ_LENS];
  const st_tensor *starts = parsed->tensor[TENSOR_SEQ_STARTS];
  double rows = 0.0;
  double row = 0.0;
  for (int64_t s = 0; s < lens->shape[0]; ++s) {
    rows += request_i32(lens, s) - (starts != NULL ? request_i32(starts, s) : 0);
  }
  row += parsed->tensor[TENSOR_K_CACHE] != NULL ? parsed->head_size : 0;
  row += parsed->tensor[TENSOR_V_CACHE] != NULL ? parsed->v_head_size : 0;
  work->read_bytes = rows * pool_row_bytes(parsed);
  work->written_bytes = rows * row * parsed->num_kv_heads * (double)attn_dtype_bytes(parsed->out_dtype);
}

static void count_merge(const request *parsed, bench_work *work) {
  const st_tensor *first = parsed->outs[0];
  double rows = (double)first->shape[0] * (double)first->shape[1];
  for (size_t i = 0; i < parsed->num_parts; ++i) {
    work->read_bytes += bytes_of(parsed->outs[i]) + bytes_of(parsed->lses[i]);
  }
  work->written_bytes = rows * ((double)first->shape[2] * (double)attn_dtype_bytes(parsed->out_dtype) + 4.0);
  work->flops = 2.0 * rows * (double)first->shape[2] * (double)parsed->num_parts;
}

void bench_count(const request *parsed, const attn_problem *problem, bench_work *work) {
  memset(work, 0, sizeof(*work));
  switch (parsed->op->op) {
  case OP_ATTENTION:
    count_attention(parsed, problem, work);
    break;
  case OP_CACHE_WRITE:
    count_write(parsed, work);
    break;
  case OP_CACHE_GATHER:
    count_gather(parsed, work);
    break;
  default:
    count_merge(parsed, work);
    break;
  }
}
