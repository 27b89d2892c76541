/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention of the runner: everything that it does with libattn, and all of it through the public headers. One plan
 * serves all layers; each layer has a K and a V pool of its own, and one block manager numbers the blocks of all of
 * them. A step is: lm_attention_begin with the tokens that each sequence adds, then one lm_attention_layer per layer.
 */
#ifndef LM_ATTENTION_H
#define LM_ATTENTION_H

#include "model.h"

#include <attn/attn.h>

typedef struct lm_attention lm_attention;

typedef struct lm_attention_options {
  const char *backend; /**< NULL: the library chooses */
  attn_format format;
  int32_t threads;
  const attn_executor *executor; /**< the threads to use; NULL: the library's own pool */
  int32_t block_size;            /**< 0: what the plan prefers */
  bool batch_invariant;
  int32_t max_seqs;       /**< sequences in flight */
  int64_t max_tokens;     /**< tokens of a step */
  int32_t max_length;     /**< tokens of the longest sequence, prompt and continuation */
  const int32_t *lengths; /**< [length_count] tokens that each sequence may come to */
  size_t length_count;
  uint64_t cache_limit; /**< bytes that all pools together should not exceed, if one sequence still fits */
} lm_attention_options;

/** Plan and block manager; the pools come with lm_attention_allocate. */
ATTN_NODISCARD attn_status lm_attention_create(const model_params *params, const lm_attention_options *options,
                                               lm_attention **out, attn_message *message);
ATTN_NODISCARD attn_status lm_attention_allocate(lm_attention *attention, attn_message *message);
void lm_attention_destroy(lm_attention *attention);

const char *lm_attention_backend(const lm_attention *attention);
uint64_t lm_attention_cache_bytes(const lm_attention *attention);

/** Blocks that `tokens` more tokens of a fresh sequence take, and blocks that are free now. */
int32_t lm_attention_blocks_for(const lm_attention *attention, int32_t tokens);
int32_t lm_attention_free_blocks(const lm_attention *attention);
int32_t lm_attention_total_blocks(const lm_attention *attention);

/** Grows each sequence by its count and schedules the step; sequences come in the order of their rows. */
ATTN_NODISCARD attn_status lm_attention_begin(lm_attention *attention, int32_t num_seqs, const int32_t *seqs,
                                              const int32_t *counts, attn_message *message);

/** The model's callback: writes the new rows into the layer's pools and attends to all of each sequence. */
ATTN_NODISCARD attn_status lm_attention_layer(void *attention, const model_rows *rows, attn_message *message);

/** Gives a finished sequence's blocks back. */
ATTN_NODISCARD attn_status lm_attention_finish(lm_attention *attention, int32_t seq, attn_message *message);

#endif
