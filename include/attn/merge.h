/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file merge.h  Merge partial results (out, lse): splits, chunks, shared prefixes, ranks.   (stable)
 *
 * How to obtain parts. A run counts a query's position from the end of the keys that it is given (kv_len - q_len +
 * i), so keys cut off at the end move every position. A part that holds only earlier keys of a sequence is therefore
 * run with causal = 0, no window, no chunk and no ALiBi; where the model has one of these, give such a run all keys
 * and hide those of the other parts by a bias of -inf. Every part is run with wants_lse = 1 and without sinks: sinks
 * are given here.
 */
#ifndef ATTN_MERGE_H
#define ATTN_MERGE_H

#include "backend.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum attn_lse_base { ATTN_LSE_BASE_E = 0, ATTN_LSE_BASE_2 = 1 } attn_lse_base;

/** Arguments of attn_merge(). Start from ATTN_MERGE_INIT. All tensors are borrowed for the call. */
typedef struct attn_merge_args {
  uint32_t size;               /**< sizeof(attn_merge_args) */
  int32_t num_parts;           /**< >= 1 */
  const DLTensor *const *outs; /**< num_parts tensors [tokens, heads, size]  float32 | float16 | bfloat16, may differ */
  const DLTensor *const *lses; /**< num_parts tensors [tokens, heads]  float32 */
  attn_lse_base lse_base;      /**< base of the input lses; the result is always natural */
  const DLTensor *sinks;       /**< [heads]  float32 or NULL: enter the denominator once, here. -inf: none */
  const DLTensor *out;         /**< [tokens, heads, size]  float32 | float16 | bfloat16; written */
  const DLTensor *lse;         /**< [tokens, heads]  float32 or NULL; written, sink excluded */
  const char *backend;         /**< NULL: choose; else obeyed or refused */
} attn_merge_args;
#define ATTN_MERGE_INIT ATTN_INIT(attn_merge_args)

/**
 * Merge partial results of disjoint sets of keys.
 *
 *     m = max_r lse_r,  w_r = exp(lse_r - m),  out = sum_r w_r out_r / (sum_r w_r + exp(sink - m)),
 *     lse = m + log(sum_r w_r)
 *
 * A part whose lse is -inf or +inf is neutral and its out is not read, even if NaN; all neutral gives out = 0 and
 * lse = -inf. A NaN lse makes its row NaN, lse included; a NaN element of a part with finite lse makes that element
 * NaN. fp32 throughout; out is rounded once. `out` may be exactly one of `outs` and `lse` one of `lses` (same data,
 * type and strides); any other overlap is ATTN_E_OVERLAP.
 *
 * Finished on return on a CPU context. Allocates nothing. Thread-safe on different outputs.
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_RANGE (num_parts, lse_base, a sink that is NaN or +inf);
 *         ATTN_E_SHAPE; ATTN_E_STRIDE; ATTN_E_ALIGN; ATTN_E_DTYPE; ATTN_E_TENSOR_DEVICE; ATTN_E_OVERLAP;
 *         ATTN_E_NAME, ATTN_E_BACKEND.
 */
ATTN_API ATTN_NODISCARD attn_status attn_merge(attn_context *context, const attn_merge_args *args,
                                               attn_message *message);

#ifdef __cplusplus
}
#endif
#endif
