/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mla.h  Multi-head Latent Attention over a cache of latent rows.   (experimental: declared, not built in yet)
 *
 * The cache holds one row per token, c_j = (latent [kv_lora_rank], rotary [qk_rope_head_dim]), shared by all heads.
 * Every call here returns ATTN_E_UNSUPPORTED, which names it, until latent attention is built; the declarations are
 * the shape that it will have. A plan for a latent problem is made by attn_plan_create() and scheduled as any other.
 */
#ifndef ATTN_MLA_H
#define ATTN_MLA_H

#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Arguments of the three latent calls; each names what it reads. Start from ATTN_MLA_ARGS_INIT. */
typedef struct attn_mla_args {
  uint32_t size;                /**< sizeof(attn_mla_args) */
  int32_t unchecked;            /**< as in attn_run_args */
  int32_t context_chunk;        /**< mha, layer: rows of cached context expanded at a time; 0: automatic */
  const DLTensor *q;            /**< mqa: [tokens, heads, L + R]; mha, layer: [tokens, heads, nope + R] */
  const DLTensor *q_rope;       /**< mqa: [tokens, heads, R] when q holds the latent part alone */
  const DLTensor *kv_c;         /**< mha, layer: [tokens, L] new latent rows */
  const DLTensor *k_pe;         /**< mha, layer: [tokens, R] */
  const DLTensor *kv_cache;     /**< [num_blocks, block_size, row] */
  const DLTensor *kv_scale;     /**< [1], or [num_blocks, block_size] with separate scales */
  const DLTensor *block_table;  /**< [seqs, width]  int32 */
  const DLTensor *slot_mapping; /**< mha, layer: [n]  int64: rows written first */
  const DLTensor *w_kv_b;       /**< mha, layer: [heads * (nope + v), L] */
  const DLTensor *alibi_slopes; /**< as in attn_run_args, likewise the four below */
  const DLTensor *sinks;
  const DLTensor *bias;
  const DLTensor *prefix_ranges;
  const DLTensor *causal_per_seq;
  const DLTensor *out;          /**< mqa: [tokens, heads, L]; mha: [tokens, heads, v]; layer: [tokens, heads * v] */
  const DLTensor *lse;          /**< mqa, mha: [tokens, heads]  float32 */
  const DLTensor *output_scale; /**< static fp8 output: [1] */
  const DLTensor *out_scale;    /**< block-scaled fp8 output: written */
} attn_mla_args;
#define ATTN_MLA_ARGS_INIT ATTN_INIT(attn_mla_args)

/**
 * Absorbed attention: s_j = scale * <q, c_j>, out = sum_j p_j c_j[0 : L].
 * @return ATTN_E_UNSUPPORTED until built in.
 */
ATTN_API ATTN_NODISCARD attn_status attn_mla_run_mqa(const attn_plan *plan, const attn_mla_args *args,
                                                     const attn_workspace *workspace, attn_message *message);

/**
 * Expanded attention: k_j = (W_UK c_j[0 : L], rotary_j), v_j = W_UV c_j[0 : L], cached context in chunks.
 * @return ATTN_E_UNSUPPORTED until built in.
 */
ATTN_API ATTN_NODISCARD attn_status attn_mla_run_mha(const attn_plan *plan, const attn_mla_args *args,
                                                     const attn_workspace *workspace, attn_message *message);

/**
 * The whole layer: decode rows absorbed, prefill rows expanded, up-projection after.
 * @return ATTN_E_UNSUPPORTED until built in.
 */
ATTN_API ATTN_NODISCARD attn_status attn_mla_layer_run(const attn_plan *plan, const attn_mla_args *args,
                                                       const attn_workspace *workspace, attn_message *message);

#ifdef __cplusplus
}
#endif
#endif
