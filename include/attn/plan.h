/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan.h  Plan once, schedule each step, run each layer.   (stable)
 *
 *     attn_plan_create()    once per kind of layer: backend chosen, split rule fixed, workspace size known
 *     attn_plan_schedule()  once per step: this batch's lengths into a workspace
 *     attn_run()            once per layer of the step
 *
 * Only attn_plan_create() allocates. A plan is read-only afterwards and may be used from several threads at once, each
 * with a workspace of its own. With a context of several threads such runs take turns on the context's pool; for runs
 * side by side make contexts of one thread each, or give the context your own executor.
 */
#ifndef ATTN_PLAN_H
#define ATTN_PLAN_H

#include "backend.h"
#include "problem.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The workspace's alignment in bytes. */
#define ATTN_WORKSPACE_ALIGN 256

/** The maxima that a plan serves. Start from ATTN_PLAN_LIMITS_INIT. A batch beyond them is ATTN_E_CAPACITY. */
typedef struct attn_plan_limits {
  uint32_t size;      /**< sizeof(attn_plan_limits) */
  int32_t max_seqs;   /**< sequences of a batch, 1 to 2^24; 0: max_tokens */
  int64_t max_tokens; /**< query tokens of a batch, required, 1 to 2^31 - 1 */
  int64_t max_kv_len; /**< keys of one sequence, required, 1 to 2^31 - 1 */
} attn_plan_limits;
#define ATTN_PLAN_LIMITS_INIT ATTN_INIT(attn_plan_limits)

/** How automatic split counts are chosen. */
typedef enum attn_split_rule {
  ATTN_SPLIT_DEFAULT = 0,   /**< by batch, heads, lengths and the device */
  ATTN_SPLIT_COMPATIBLE = 1 /**< as vLLM's Triton kernels cut, so that results can be compared piece by piece: latent
                                 problems: min(next power of two >= longest kv_len / 512, 2 * threads) pieces, each
                                 sequence cut at multiples of ceil(kv_len / pieces); others: 16 pieces of
                                 ceil(kv_len / 256) * 16 keys where every sequence has one token and there are at most
                                 128 / num_kv_heads, else 1. Refused with batch_invariant */
} attn_split_rule;

/** Options of a plan. Start from ATTN_PLAN_OPTIONS_INIT. */
typedef struct attn_plan_options {
  uint32_t size;       /**< sizeof(attn_plan_options) */
  const char *backend; /**< NULL, "" or "auto": the selector (and ATTN_BACKEND); else obeyed or refused */
  int32_t num_splits;  /**< pieces each row's keys are cut into, 1 to 4096, capped so that no piece is shorter than
                                   one tile; 0: automatic. REFERENCE accepts any and always uses 1. With
                                   batch_invariant the cuts are at fixed positions and only 0 is accepted */
  attn_split_rule split_rule; /**< 0: default */
  int32_t own_workspace;      /**< 1: the plan allocates its workspace now, and NULL may be passed as workspace; such a
                                   plan then serves one thread at a time */
} attn_plan_options;
#define ATTN_PLAN_OPTIONS_INIT ATTN_INIT(attn_plan_options)

/** A backend's promise for one problem within stated maxima. Opaque. */
typedef struct attn_plan attn_plan;

/**
 * Make a plan. Everything that can be refused for the problem's sake is refused here, by name, before anything is
 * allocated or launched.
 *
 * `limits` is required, `options` may be NULL; both are copied. *plan belongs to the caller: attn_plan_destroy(),
 * before the context.
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_RANGE; ATTN_E_DTYPE; ATTN_E_NAME, ATTN_E_BACKEND,
 *         ATTN_E_UNSUPPORTED (see attn_select()); ATTN_E_OVERFLOW (workspace beyond 64 bits); ATTN_E_NOMEM.
 */
ATTN_API ATTN_NODISCARD attn_status attn_plan_create(attn_context *context, const attn_problem *problem,
                                                     const attn_plan_limits *limits, const attn_plan_options *options,
                                                     attn_plan **plan, attn_message *message);

/** Destroy a plan. NULL is allowed. */
ATTN_API void attn_plan_destroy(attn_plan *plan);

/** Bytes of workspace that schedule and run need, a multiple of ATTN_WORKSPACE_ALIGN, known from the plan alone. */
ATTN_API size_t attn_plan_workspace_bytes(const attn_plan *plan);

/** What a plan is. Start from ATTN_PLAN_INFO_INIT. */
typedef struct attn_plan_info {
  uint32_t size;                  /**< sizeof(attn_plan_info) */
  const char *backend;            /**< static storage */
  char reason[ATTN_REASON_BYTES]; /**< why this backend */
  uint64_t workspace_bytes;       /**< attn_plan_workspace_bytes() */
  int32_t block_size;             /**< the problem's, or the preferred one if it had 0; 0 without a cache */
  int32_t max_splits;             /**< the most pieces that a row's keys are cut into */
  int32_t num_threads;            /**< threads of a run */
  int32_t batch_invariant;        /**< the problem's */
  int32_t mla_threshold; /**< ATTN_MLA_LAYER: the most new tokens of a sequence that goes absorbed; 0 for others */
} attn_plan_info;
#define ATTN_PLAN_INFO_INIT ATTN_INIT(attn_plan_info)

/** Fill *info. @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE. */
ATTN_API ATTN_NODISCARD attn_status attn_plan_get_info(const attn_plan *plan, attn_plan_info *info,
                                                       attn_message *message);

/** Memory for one schedule and the runs that follow it. Borrowed; nothing in it has to be initialised, and a schedule
    reads nothing in it. */
typedef struct attn_workspace {
  void *data;   /**< aligned to ATTN_WORKSPACE_ALIGN, on the plan's device */
  size_t bytes; /**< at least attn_plan_workspace_bytes() */
} attn_workspace;

/** One step's sequences. Start from ATTN_BATCH_INIT. Tensors are borrowed for the call; their entries are copied. */
typedef struct attn_batch {
  uint32_t size;                   /**< sizeof(attn_batch) */
  const DLTensor *query_start_loc; /**< [seqs + 1]  int32: starts at 0, does not fall; the last entry is the batch's
                                        token count. Sequence s owns the rows from its entry to the next one */
  const DLTensor *seq_lens;        /**< [seqs]  int32, >= 0: keys per sequence, this call's tokens included. Required
                                        with a cache; must be NULL without one. q_len may exceed it */
  const DLTensor *kv_start_loc;    /**< [seqs + 1]  int32: packed K/V of cross attention without a cache. NULL there:
                                        kv_len = q_len. Must be NULL with a cache */
} attn_batch;
#define ATTN_BATCH_INIT ATTN_INIT(attn_batch)

/**
 * Prepare one step from host lengths: checks them, cuts the work, writes the schedule into the workspace.
 *
 * The schedule stays valid for any number of runs until the next schedule into the same workspace. Allocates nothing.
 * @param workspace  NULL: the plan's own (options.own_workspace); one given is used instead of it. A scheduled
 *                   workspace holds addresses into itself: moved or copied elsewhere it counts as not scheduled
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_SHAPE; ATTN_E_DTYPE; ATTN_E_STRIDE; ATTN_E_ALIGN;
 *         ATTN_E_TENSOR_DEVICE; ATTN_E_INDEX (an entry negative or falling); ATTN_E_CAPACITY (beyond the plan's
 *         limits); ATTN_E_WORKSPACE (too small, with the bytes needed); ATTN_E_STATE (no workspace given or owned, or a
 *         run in checked mode, or another schedule, of the same context uses bytes of it at this moment).
 */
ATTN_API ATTN_NODISCARD attn_status attn_plan_schedule(const attn_plan *plan, const attn_batch *batch,
                                                       const attn_workspace *workspace, attn_message *message);

/** What the last schedule into a workspace decided. Start from ATTN_SCHEDULE_INFO_INIT. */
typedef struct attn_schedule_info {
  uint32_t size; /**< sizeof(attn_schedule_info) */
  int32_t num_seqs;
  int64_t num_tokens; /**< query_start_loc[seqs] */
  int32_t splits;     /**< the most pieces that any row's keys are cut into in this batch */
  int64_t work_items; /**< pieces handed to the threads */
} attn_schedule_info;
#define ATTN_SCHEDULE_INFO_INIT ATTN_INIT(attn_schedule_info)

/** Fill *info. @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_STATE (nothing scheduled); ATTN_E_WORKSPACE. */
ATTN_API ATTN_NODISCARD attn_status attn_schedule_get_info(const attn_plan *plan, const attn_workspace *workspace,
                                                           attn_schedule_info *info, attn_message *message);

/** Arguments of attn_run(). Start from ATTN_RUN_INIT. All tensors are borrowed for the call. */
typedef struct attn_run_args {
  uint32_t size;                  /**< sizeof(attn_run_args) */
  int32_t unchecked;              /**< 0: a bad id or length is ATTN_E_INDEX before anything is written, and a workspace
                                       that another call of this context uses is ATTN_E_STATE. 1: such a position
                                       counts as masked, and nobody looks whether the workspace is in use */
  const DLTensor *q;              /**< [tokens, num_q_heads, qk_head_size]  problem's q_dtype; tokens >= the batch's */
  const DLTensor *k;              /**< ATTN_KV_DIRECT: [kv tokens, num_kv_heads, qk_head_size] */
  const DLTensor *v;              /**< ATTN_KV_DIRECT: [kv tokens, num_kv_heads, v_head_size] */
  const DLTensor *k_cache;        /**< ATTN_KV_CACHE: pool of K, axes by the problem's layout, block_size positions */
  const DLTensor *v_cache;        /**< ATTN_KV_CACHE: pool of V */
  const DLTensor *k_scale;        /**< float32. fp8_e4m3, fp8_e5m2: the static scale, [1] or [num_kv_heads], NULL: 1.
                                       Separate scales of the problem: [blocks, block_size, num_kv_heads], axes by its
                                       layout; required. Else NULL */
  const DLTensor *v_scale;        /**< likewise */
  const DLTensor *block_table;    /**< ATTN_KV_CACHE: [seqs, width]  int32; columns at or past
                                       ceil(kv_len / block_size) are never read. Id 0 is a block like any other */
  const DLTensor *q_scale;        /**< fp8 queries: [1]  float32, finite and > 0: a query is its code times this */
  const DLTensor *alibi_slopes;   /**< [num_q_heads]  float32; with problem.alibi */
  const DLTensor *sinks;          /**< [num_q_heads]  float32, finite, or -inf for none; with has_sinks */
  const DLTensor *bias;           /**< [tokens, num_q_heads or 1, >= longest kv_len]  float32; with has_bias. The tokens
                                       extent may be larger than the batch's */
  const DLTensor *prefix_ranges;  /**< [seqs, n, 2]  int32 half-open position ranges; with has_prefix_ranges. a == b is
                                       none, b beyond kv_len is clamped, a > b is ATTN_E_INDEX */
  const DLTensor *causal_per_seq; /**< [seqs]  int32 of 0, 1; with has_causal_per_seq */
  const DLTensor *out;            /**< [tokens, num_q_heads, v_head_size]  out_dtype; written. tokens >= the batch's;
                                       rows at or beyond the batch's token count are not touched */
  const DLTensor *lse;            /**< [tokens, num_q_heads]  float32; written; with wants_lse. Engines that keep
                                       [heads, tokens] give that memory with its axes swapped by strides */
  const DLTensor *output_scale;   /**< [1]  float32, finite, > 0; with out_dtype fp8_e4m3 and output_block 0: a value
                                       is stored as e4m3(value / output_scale) (problem.h) */
  const DLTensor *out_scale;      /**< [tokens, num_q_heads, ceil(v_head_size / output_block)]  float32; written; with
                                       output_block 64 or 128. Any strides, tokens >= the batch's, rows at or beyond
                                       the batch's token count not touched, all as for out and lse */
} attn_run_args;
#define ATTN_RUN_INIT ATTN_INIT(attn_run_args)

/**
 * Compute one layer of the scheduled step (the equation is in problem.h).
 *
 * Products accumulate in fp32 or wider whatever the storage; the result is rounded once to the output's type (an fp8
 * output: to float32, then quantised as problem.h says). Same plan, same input: same bits. Finished on return on a CPU
 * context; allocates nothing. May run from several threads at once, each with its own workspace and outputs. Outputs
 * may not overlap anything else.
 *
 * Bytes that no visible position names never influence a result, whatever bits they hold, scales included: positions at
 * or beyond kv_len, positions masked for every row of their sequence, blocks of other sequences, surplus table columns.
 * @return ATTN_OK; ATTN_E_NULL (a tensor that the problem demands is missing, or one is given that it does not
 *         declare); ATTN_E_STRUCT_SIZE; ATTN_E_SHAPE; ATTN_E_STRIDE; ATTN_E_ALIGN; ATTN_E_DTYPE; ATTN_E_TENSOR_DEVICE;
 *         ATTN_E_OVERLAP; ATTN_E_INDEX (block id outside the pool at a visible position, length beyond the table,
 *         reversed range, causal flag not 0 or 1); ATTN_E_RANGE (a sink or slope that is not finite, a static scale
 *         that is not finite and above 0; in unchecked mode too); ATTN_E_WORKSPACE;
 *         ATTN_E_STATE (this workspace holds no schedule of this plan; or, in checked mode, another run or a schedule
 *         of the same context uses bytes of it at this moment). Nothing was written.
 */
ATTN_API ATTN_NODISCARD attn_status attn_run(const attn_plan *plan, const attn_run_args *args,
                                             const attn_workspace *workspace, attn_message *message);

#ifdef __cplusplus
}
#endif
#endif
