/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file problem.h  What one attention layer needs, fixed for its life.   (stable)
 *
 * The value that every backend computes (docs/numerics.md has the whole contract). For query row i of a sequence with
 * q_len new rows and kv_len keys (the new ones included), at position q = kv_len - q_len + i, query head h, and KV head
 * g = h / (num_q_heads / num_kv_heads):
 *
 *     s_j   = scale * <q_i, k_j>
 *     s_j   = softcap * tanh(s_j / softcap)                                              softcap > 0
 *     s_j  += -slope_h * (q - j)                                                         ATTN_ALIBI_LINEAR
 *     s_j  += -slope_h * sqrt(q - j) for j <= q, 0 beyond                                ATTN_ALIBI_SQRT
 *     s_j  += bias[i, h, j]                                                              has_bias; -inf hides the key
 *     out_i = sum_j p_j v_j,  p_j = exp(s_j - m) / (sum_j exp(s_j - m) + exp(sink_h - m))   over the visible j
 *     lse_i = log(sum_j exp(s_j))                                                        natural base, sink excluded
 *
 *     visible(q, k) = k < kv_len AND ( (causal -> k <= q) AND (window_left  < 0 OR q - k <= window_left)
 *                                                         AND (window_right < 0 OR k - q <= window_right)
 *                                                         AND chunk(q, k)   OR   prefix(q, k) )
 *     chunk(q, k)   = chunk_size == 0 OR 0 <= q / C - k / C <= chunk_lookback OR (not causal AND q / C == k / C)
 *     prefix(q, k)  = some range [a, b) of the sequence holds q and k; with prefix_clamp the window tests bind it too
 *
 * A row that sees no key gives out = 0 and lse = -inf. Divisions are towards minus infinity.
 *
 * An fp8 output stores codes of fp8_e4m3 (1 sign, 4 exponent, 3 fraction bits; largest 448). The row is rounded to
 * float32 first, x = float32(out_i), and quantised from there by float32 operations that are each rounded by
 * themselves; e4m3() rounds to nearest, ties to even, and saturates at +-448, infinities included:
 *
 *     static, output_block 0           code = e4m3(x / output_scale)             NaN is stored as 7F
 *     groups of B = output_block       out_scale = max(absmax / 448, 1e-10)      absmax = max |x| of the group
 *       elements of the row            code = e4m3(x * (1 / out_scale))          the row's last group may be shorter
 *
 * and is read as decode(code) * scale. A group with an x that is not finite gets codes 00 and an out_scale of NaN (bits
 * 7FC00000), so that it reads as NaN and no other group does. A row that sees no key gets codes 00, and 1e-10 as the
 * out_scale of each group.
 */
#ifndef ATTN_PROBLEM_H
#define ATTN_PROBLEM_H

#include "cache.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Where keys and values come from. */
typedef enum attn_kv_source {
  ATTN_KV_CACHE = 0, /**< a paged cache through block_table; this call's own tokens are read from it too, as stored */
  ATTN_KV_DIRECT = 1 /**< packed tensors k, v given to the run: encoder (kv_len = q_len) or cross (kv_start_loc) */
} attn_kv_source;

/** Which ALiBi bias is added; slopes are given to the run. */
typedef enum attn_alibi { ATTN_ALIBI_NONE = 0, ATTN_ALIBI_LINEAR = 1, ATTN_ALIBI_SQRT = 2 } attn_alibi;

/** Which call a latent problem is planned for (mla.h has the equations). */
typedef enum attn_mla_form {
  ATTN_MLA_MQA = 0,  /**< attn_mla_run_mqa(): queries in the latent space, results too */
  ATTN_MLA_MHA = 1,  /**< attn_mla_run_mha(): keys and values expanded head by head */
  ATTN_MLA_LAYER = 2 /**< attn_mla_layer_run(): short sequences absorbed, long ones expanded */
} attn_mla_form;

/** The description of a layer. Start from ATTN_PROBLEM_INIT and set at least the fields marked "required". */
typedef struct attn_problem {
  uint32_t size;             /**< sizeof(attn_problem) */
  attn_kv_source kv_source;  /**< 0: a paged cache */
  int32_t num_q_heads;       /**< required, >= 1, a multiple of num_kv_heads */
  int32_t num_kv_heads;      /**< required, >= 1 */
  int32_t qk_head_size;      /**< required, >= 1: elements of a row of q and k */
  int32_t v_head_size;       /**< elements of a row of v and out; 0: as qk_head_size */
  attn_dtype q_dtype;        /**< float32, float16, bfloat16, fp8_e4m3 (the run gives q_scale); 0: float32 */
  attn_dtype out_dtype;      /**< float32, float16, bfloat16, fp8_e4m3 (scaled as output_block says); 0: q_dtype, for
                                  fp8 queries bfloat16 */
  attn_dtype kv_dtype;       /**< ATTN_KV_DIRECT: type of k and v; 0: q_dtype, for fp8 queries bfloat16. Must be 0 with
                                  a cache */
  attn_format k_format;      /**< ATTN_KV_CACHE: how K is stored; AUTO (0): q_dtype. Must be 0 without a cache */
  attn_format v_format;      /**< how V is stored; AUTO (0): as k_format */
  attn_layout layout;        /**< axis order of the pool tensors given to the run; 0: NHD. Where num_kv_heads equals the
                                  block size a wrong order has the right shape and cannot be noticed */
  int32_t separate_scales;   /**< a value of attn_separate_scales: which of K and V have their per-token scales in
                                  tensors of their own. Other than 0 for *_per_token_head formats only */
  int32_t block_size;        /**< positions per block, >= 1, any number; 0: what the plan prefers, told by
                                  attn_plan_info.block_size. The cache has to have the same (see cache.h) */
  float scale;               /**< required, finite, > 0; attn_softmax_scale() computes 1/sqrt(qk_head_size) */
  float softcap;             /**< finite, >= 0; 0: off */
  int32_t causal;            /**< 0 or 1; ATTN_PROBLEM_INIT sets 1 */
  int32_t window_left;       /**< visible neighbours left of the query, >= 0; -1: open. The initialiser sets -1 */
  int32_t window_right;      /**< visible neighbours right of the query, >= 0; -1: open. The initialiser sets -1. With
                                  causal both hold: nothing right of the query is seen */
  int32_t chunk_size;        /**< chunked-local attention, >= 1; 0: off */
  int32_t chunk_lookback;    /**< whole chunks visible before the query's own, >= 0; 0 unless chunk_size is set */
  int32_t prefix_clamp;      /**< 1: the window tests bind prefix ranges too; needs has_prefix_ranges */
  attn_alibi alibi;          /**< 0: none */
  int32_t has_sinks;         /**< 1: the run gives sinks [num_q_heads] */
  int32_t has_bias;          /**< 1: the run gives bias [tokens, num_q_heads or 1, >= longest kv_len] */
  int32_t has_prefix_ranges; /**< 1: the run gives prefix_ranges [seqs, n, 2] */
  int32_t has_causal_per_seq; /**< 1: the run gives causal_per_seq [seqs], which overrides `causal` */
  int32_t wants_lse;          /**< 1: the run gives lse [tokens, num_q_heads] to be written; 0: it must not */
  int32_t batch_invariant;  /**< 1: a row's bits depend on nothing but its own q, keys and values (docs/numerics.md) */
  int32_t context_parallel; /**< ranks of decode context parallelism; 0 or 1: none. More: not built in yet */
  int32_t cascade;          /**< must be 0: cascade attention is refused by name; merge shared prefixes by attn_merge */
  int32_t output_block;     /**< out_dtype fp8_e4m3: 0: one static scale, given to the run as output_scale; 64, 128:
                                 a scale for each group of so many elements of a row, written by the run to
                                 out_scale. Must be 0 for any other out_dtype */
  int32_t kv_lora_rank;     /**< L >= 1: a latent problem (mla.h says what then holds for the other fields); 0: none */
  int32_t qk_rope_head_dim; /**< latent problems: R >= 0, rotary elements of a row */
  int32_t qk_nope_head_dim; /**< ATTN_MLA_MHA, ATTN_MLA_LAYER: elements of q and of an expanded key before its rotary
                                 ones, >= 1; else 0 */
  int32_t mla_v_head_dim;   /**< ATTN_MLA_MHA, ATTN_MLA_LAYER: elements of an expanded value, >= 1; else 0 */
  attn_dtype rotary_dtype;  /**< type of the rotary elements of fp8_ds_mla and *_per_token_head latent rows, float16 or
                                 bfloat16: required there, 0 elsewhere */
  attn_mla_form mla_form;   /**< latent problems: which call the plan is for; 0: attn_mla_run_mqa() */
  int32_t context_chunk;    /**< ATTN_MLA_MHA, ATTN_MLA_LAYER: keys that are expanded at a time, >= 1; 0: automatic */
} attn_problem;

/** kv_source .. block_size 0, scale and softcap 0 (scale must be set), causal 1, both window bounds -1, the rest 0. */
#define ATTN_PROBLEM_INIT                                                                                              \
  {                                                                                                                    \
    sizeof(attn_problem), ATTN_KV_CACHE, 0, 0, 0, 0, ATTN_DTYPE_DEFAULT, ATTN_DTYPE_DEFAULT, ATTN_DTYPE_DEFAULT,       \
        ATTN_FORMAT_AUTO, ATTN_FORMAT_AUTO, ATTN_LAYOUT_NHD, 0, 0, 0.0f, 0.0f, 1, -1, -1, 0, 0, 0, ATTN_ALIBI_NONE, 0, \
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ATTN_DTYPE_DEFAULT, ATTN_MLA_MQA, 0                                        \
  }

/**
 * Check a problem alone, before any context exists: every field against its values and against the others.
 *
 * attn_explain() and attn_plan_create() do the same first. Thread-safe; allocates nothing.
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_RANGE; ATTN_E_DTYPE; ATTN_E_UNSUPPORTED (cascade, and what
 *         is "not built in yet" above); the message names the field, its value and what is accepted.
 */
ATTN_API ATTN_NODISCARD attn_status attn_problem_check(const attn_problem *problem, attn_message *message);

/* ---- Helpers ----------------------------------------------------------------------------------------------------- */

/** 1 / sqrt(head_size), rounded once to float; 0 (which every problem refuses) when head_size < 1. */
ATTN_API float attn_softmax_scale(int32_t head_size);

/**
 * Window bounds from a count of keys that includes the query's own: W -> (W - 1, 0). A count of 1 sees itself alone.
 *
 * @return ATTN_OK, and *window_left, *window_right set; ATTN_E_NULL; ATTN_E_RANGE when num_keys < 1 (for "no window"
 *         use -1 as bounds; a count of 0 is refused because engines disagree on what it means).
 */
ATTN_API ATTN_NODISCARD attn_status attn_window_from_count(int32_t num_keys, int32_t *window_left,
                                                           int32_t *window_right, attn_message *message);

/**
 * The published ALiBi slopes (Press, Smith, Lewis: "Train Short, Test Long", 2022, and the authors' recipe for head
 * counts that are not powers of two). With n the largest power of two <= num_heads:
 *
 *     slopes[i] = 2^(-8 (i + 1) / n)                        i < n
 *     slopes[i] = 2^(-4 (2 (i - n) + 1) / n)                n <= i < num_heads (every other slope of 2n heads)
 *
 * @param slopes  [num_heads], written
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_RANGE when num_heads < 1.
 */
ATTN_API ATTN_NODISCARD attn_status attn_alibi_slopes(int32_t num_heads, float *slopes, attn_message *message);

#ifdef __cplusplus
}
#endif
#endif
