/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mla.h  Multi-head Latent Attention over a cache of latent rows.   (stable)
 *
 * The cache holds one row per token, shared by all heads: c_j = (latent part [L], rotary part [R]), L = kv_lora_rank,
 * R = qk_rope_head_dim. With w_kv_b = the projection that expands a latent part, head after head, in each head first
 * qk_nope_head_dim rows W_UK, then v_head_dim rows W_UV, all of L elements:
 *
 *     mqa     s_j = scale * <q, c_j>                                  out = sum_j p_j c_j[0 : L]
 *     mha     s_j = scale * (<q_nope, W_UK c_j[0 : L]> + <q_rope, c_j[L :]>)   out = sum_j p_j (W_UV c_j[0 : L])
 *     layer   mha for every row, computed as mha or, where that is cheaper, as mqa with q = (W_UK^T q_nope, q_rope) and
 *             out = W_UV (sum_j p_j c_j[0 : L])
 *
 * with the masks, biases, sinks and the LSE of problem.h. (DeepSeek-AI: "DeepSeek-V2", 2024, section 2.1; the identity
 * of the two forms is its appendix.)
 *
 * A latent problem is an attn_problem with kv_lora_rank > 0 and mla_form for one of these calls. Of its other fields:
 *
 *     num_kv_heads, qk_head_size, v_head_size   0, or what follows: 1; L + R and L (mqa), nope + R and v (mha, layer)
 *     kv_source                                 the cache; mha alone may have none: new tokens only, kv_len = q_len
 *     k_format                                  of the latent rows (cache.h); v_format 0 or the same
 *     layout                                    0;   separate_scales  0 or ATTN_SEPARATE_BOTH
 *     causal                                    mha and layer: 1, has_causal_per_seq 0
 *     q_dtype                                   float32, float16, bfloat16
 *     wants_lse                                 layer: 0
 *     scale                                     1 / sqrt(nope + R) in models, times attn_mla_softmax_scale()'s
 *                                               correction, in all three forms; never 1 / sqrt(L + R)
 *
 * All else is as for any problem: limits, schedule, workspace. seq_lens counts this call's tokens; the context of a
 * sequence is what lies before them.
 */
#ifndef ATTN_MLA_H
#define ATTN_MLA_H

#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/** What attn_mla_weights_create() takes. Start from ATTN_MLA_WEIGHTS_ARGS_INIT. Tensors are borrowed for the call. */
typedef struct attn_mla_weights_args {
  uint32_t size;            /**< sizeof(attn_mla_weights_args) */
  int32_t num_heads;        /**< >= 1 */
  int32_t kv_lora_rank;     /**< L >= 1 */
  int32_t qk_nope_head_dim; /**< >= 1 */
  int32_t v_head_dim;       /**< >= 1 */
  const DLTensor *w_kv_b;   /**< [num_heads * (qk_nope_head_dim + v_head_dim), L]  float32 | float16 | bfloat16 |
                                  fp8_e4m3; any strides */
  const DLTensor *w_scale;  /**< fp8_e4m3: [ceil(rows / 128), ceil(L / 128)]  float32, finite: the multiplier of each
                                  block of 128 x 128 elements, counted over the whole matrix, the last ones shorter.
                                  Else NULL */
} attn_mla_weights_args;
#define ATTN_MLA_WEIGHTS_ARGS_INIT ATTN_INIT(attn_mla_weights_args)

/** A layer's expanding projection, in float32, ready for mha and layer. Opaque. */
typedef struct attn_mla_weights attn_mla_weights;

/**
 * Copy the projection, once per layer. A code of fp8_e4m3 becomes float32(code * scale).
 *
 * *weights belongs to the caller: attn_mla_weights_destroy(). It is read-only and may serve any number of plans,
 * contexts of the same device and threads at once. Memory: rows * (L rounded up to 8) * 4 bytes.
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_RANGE (also a w_scale that is not finite); ATTN_E_SHAPE;
 *         ATTN_E_STRIDE; ATTN_E_ALIGN; ATTN_E_DTYPE; ATTN_E_TENSOR_DEVICE; ATTN_E_OVERFLOW; ATTN_E_NOMEM.
 */
ATTN_API ATTN_NODISCARD attn_status attn_mla_weights_create(attn_context *context, const attn_mla_weights_args *args,
                                                            attn_mla_weights **weights, attn_message *message);

/** Destroy weights. NULL is allowed. */
ATTN_API void attn_mla_weights_destroy(attn_mla_weights *weights);

/**
 * The softmax scale of a model whose context was stretched (YaRN, Peng et al. 2023, as DeepSeek applies it):
 *
 *     m = 0.1 * mscale_all_dim * ln(factor) + 1   for factor > 1, else 1          scale = m^2 / sqrt(qk_head_dim)
 *
 * @param qk_head_dim     qk_nope_head_dim + qk_rope_head_dim
 * @param factor          the stretch of the context; 1 or less: none
 * @param mscale_all_dim  of the model's rope parameters; 0: no correction
 * @return the scale, rounded once to float; 0 (which every problem refuses) when qk_head_dim < 1 or an argument is not
 *         finite.
 */
ATTN_API float attn_mla_softmax_scale(int32_t qk_head_dim, double factor, double mscale_all_dim);

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

/** Arguments of the three latent calls; each names what it reads, the rest must be NULL. Start from
    ATTN_MLA_ARGS_INIT. All tensors are borrowed for the call. */
typedef struct attn_mla_args {
  uint32_t size;               /**< sizeof(attn_mla_args) */
  int32_t unchecked;           /**< as in attn_run_args; slots as in attn_cache_write_args */
  const DLTensor *q;           /**< mqa: [tokens, heads, L + R]; mha, layer: [tokens, heads, nope + R]. Problem's
                                     q_dtype */
  const DLTensor *q_rope;      /**< mqa: NULL, or [tokens, heads, R], and q is then [tokens, heads, L]: no copy is made
                                     to join them */
  const DLTensor *kv_c;        /**< mha: [tokens, L] new latent rows, already normalised. Required by mha; by layer with
                                     slot_mapping; NULL for mqa. float32 | float16 | bfloat16 */
  const DLTensor *k_pe;        /**< mha, layer: [tokens, R], already rotated; given for R = 0 too */
  const DLTensor *kv_cache;    /**< [num_blocks, block_size, row]; NULL without a cache. Written with slot_mapping */
  const DLTensor *kv_scale;    /**< as in attn_cache_write_args */
  const DLTensor *block_table; /**< [seqs, width]  int32; NULL without a cache */
  const DLTensor *slot_mapping; /**< mha: NULL, and new tokens are attended as given: the table need cover the context
                                     only; or [n]  int64: rows are written first, and attended as stored. Required by
                                     layer, where n = 0 says that all rows were written before; NULL for mqa */
  const attn_mla_weights *weights; /**< mha, layer: of the problem's heads and sizes; NULL for mqa */
  const DLTensor *alibi_slopes;    /**< as in attn_run_args, likewise the four below */
  const DLTensor *sinks;
  const DLTensor *bias;
  const DLTensor *prefix_ranges;
  const DLTensor *causal_per_seq; /**< mqa */
  const DLTensor *out; /**< mqa: [tokens, heads, L]; mha: [tokens, heads, v]; layer: [tokens, heads * v]. Problem's
                            out_dtype; written */
  const DLTensor *lse; /**< mqa, mha, with wants_lse: [tokens, heads]  float32; written */
  const DLTensor *output_scale; /**< static fp8 output: [1] */
  const DLTensor *out_scale;    /**< block-scaled fp8 output: [tokens, heads, ceil(L or v / output_block)]  float32;
                                     written. Groups are counted head by head, in layer too */
} attn_mla_args;
#define ATTN_MLA_ARGS_INIT ATTN_INIT(attn_mla_args)

/**
 * Absorbed attention of the scheduled step (ATTN_MLA_MQA). Any number of query tokens per sequence; the rest is as for
 * attn_run(), of which this is the latent form.
 * @return as attn_run(); ATTN_E_STATE also when the plan is for another call, which is named.
 */
ATTN_API ATTN_NODISCARD attn_status attn_mla_run_mqa(const attn_plan *plan, const attn_mla_args *args,
                                                     const attn_workspace *workspace, attn_message *message);

/**
 * Expanded attention of the scheduled step (ATTN_MLA_MHA): keys and values of a few positions at a time are formed in
 * the workspace, whose size does not depend on the length of the context.
 * @return as attn_run() and, with slot_mapping, attn_cache_write(); ATTN_E_STATE also when the plan is for another
 *         call. Nothing was written.
 */
ATTN_API ATTN_NODISCARD attn_status attn_mla_run_mha(const attn_plan *plan, const attn_mla_args *args,
                                                     const attn_workspace *workspace, attn_message *message);

/**
 * The layer between its projections (ATTN_MLA_LAYER): writes the new rows, then attends from the cache. Sequences of at
 * most attn_plan_info.mla_threshold new tokens go absorbed, longer ones expanded, so that a row's bits may depend on
 * its sequence's length, but not on which other sequences there are. With batch_invariant all go absorbed.
 * @return as attn_mla_run_mha().
 */
ATTN_API ATTN_NODISCARD attn_status attn_mla_layer_run(const attn_plan *plan, const attn_mla_args *args,
                                                       const attn_workspace *workspace, attn_message *message);

#ifdef __cplusplus
}
#endif
#endif
