/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention of the runner: everything that it does with libattn, and all of it through the public headers. One plan
 * serves all layers; each layer has a K and a V pool of its own, with their scales where these are separate, and one
 * block manager numbers the blocks of all of them. A step is: lm_attention_begin with the tokens that each sequence
 * adds, then one lm_attention_layer per layer, and where prefixes are kept lm_attention_commit of each sequence.
 */
#ifndef LM_ATTENTION_H
#define LM_ATTENTION_H

#include "lm_formats.h"
#include "model.h"

#include <attn/attn.h>

typedef struct lm_attention lm_attention;

/** How the cache stores rows. */
typedef struct lm_storage {
  lm_formats formats;
  const float
      *scales;    /**< [layers, 2, kv_heads] static scales of fp8_e4m3 and fp8_e5m2, K's then V's, copied; NULL: 1 */
  float *largest; /**< NULL, or [layers, 2, kv_heads]: raised to the largest |element| of all rows of K and of V */
} lm_storage;

typedef struct lm_attention_options {
  const char *backend; /**< NULL: the library chooses */
  lm_storage storage;
  int32_t threads;
  const attn_executor *executor; /**< the threads to use; NULL: the library's own pool */
  int32_t block_size;            /**< 0: what the plan prefers */
  bool batch_invariant;
  int32_t max_seqs;       /**< sequences in flight */
  int64_t max_tokens;     /**< tokens of a step */
  int32_t max_length;     /**< tokens of the longest sequence, prompt and continuation */
  const int32_t *lengths; /**< [length_count] tokens that each prompt's sequence may come to */
  size_t length_count;
  int32_t cache_blocks; /**< blocks of a pool; 0: for all lengths, or the longest where max_seqs is 1 */
  uint64_t cache_limit; /**< without cache_blocks: bytes that all pools should not exceed, if one sequence still fits */
  bool prefix_cache;    /**< keep full blocks, for sequences that begin with the same tokens */
} lm_attention_options;

/** Plan and block manager; the pools come with lm_attention_allocate. ATTN_E_CAPACITY: a prompt that never fits. */
ATTN_NODISCARD attn_status lm_attention_create(const model_params *params, const lm_attention_options *options,
                                               lm_attention **out, attn_message *message);
ATTN_NODISCARD attn_status lm_attention_allocate(lm_attention *attention, attn_message *message);
void lm_attention_destroy(lm_attention *attention);

const char *lm_attention_backend(const lm_attention *attention);
uint64_t lm_attention_cache_bytes(const lm_attention *attention);

/** Bytes of a position in all layers: K and V of all heads, and their scales but static ones. */
double lm_attention_bytes_per_token(const lm_attention *attention);

int32_t lm_attention_block_size(const lm_attention *attention);
bool lm_attention_shares(const lm_attention *attention); /**< options.prefix_cache */

/** Blocks that `tokens` tokens take, that a sequence takes to grow by `count`, that are free now, and of a pool. */
int32_t lm_attention_blocks_for(const lm_attention *attention, int32_t tokens);
int32_t lm_attention_needs(const lm_attention *attention, int32_t seq, int32_t count);
int32_t lm_attention_free_blocks(const lm_attention *attention);
int32_t lm_attention_total_blocks(const lm_attention *attention);

/** Starts a sequence from the full blocks of [count] ids that are kept; `reused` tokens need not be fed. */
ATTN_NODISCARD attn_status lm_attention_start(lm_attention *attention, int32_t seq, const int32_t *ids, int32_t count,
                                              int32_t *reused, attn_message *message);

/** Starts `child` as a copy of `parent`, between two steps; the first of them to write into a shared block copies it. */
ATTN_NODISCARD attn_status lm_attention_fork(lm_attention *attention, int32_t parent, int32_t child,
                                             attn_message *message);

/** Grows each sequence by its count and schedules the step; sequences and ids come in the order of their rows. */
ATTN_NODISCARD attn_status lm_attention_begin(lm_attention *attention, int32_t num_seqs, const int32_t *seqs,
                                              const int32_t *counts, const int32_t *ids, attn_message *message);

/** The model's callback: writes the new rows into the layer's pools and attends to all of each sequence. */
ATTN_NODISCARD attn_status lm_attention_layer(void *attention, const model_rows *rows, attn_message *message);

/** A layer's rows of K (which 0) or V of a position of the last step's first sequence, all heads one after the other, as
    the cache holds them, inline scales included: until another sequence is written. */
const void *lm_attention_rows(const lm_attention *attention, int32_t layer, int which, int32_t position, size_t *bytes);

/** After a step's last layer: the sequence's full blocks can be shared from now on. Nothing without prefix_cache. */
ATTN_NODISCARD attn_status lm_attention_commit(lm_attention *attention, int32_t seq, attn_message *message);

/** The block manager's counts, and the proof that its books balance. */
ATTN_NODISCARD attn_status lm_attention_pool_info(const lm_attention *attention, attn_pool_info *info,
                                                  attn_message *message);
ATTN_NODISCARD attn_status lm_attention_check(const lm_attention *attention, attn_message *message);

/** Gives a sequence's blocks back. */
ATTN_NODISCARD attn_status lm_attention_finish(lm_attention *attention, int32_t seq, attn_message *message);

#endif
