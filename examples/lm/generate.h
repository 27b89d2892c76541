/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generation for several prompts by continuous batching. Each step takes one token of every sequence that is
 * decoding and fills the rest of its token budget with chunks of prompts, all in one batch. Which sequences run, over a
 * cache that need not hold all of them, is the business of lm_schedule.h. A request that is preempted keeps what it has
 * produced and its random stream; no token is chosen or handed on twice.
 */
#ifndef LM_GENERATE_H
#define LM_GENERATE_H

#include "lm_attention.h"
#include "model.h"
#include "sampler.h"
#include "tokenizer.h"

typedef struct lm_request {
  lm_ids prompt;       /**< at least one id, all inside the vocabulary */
  lm_ids output;       /**< generated ids, the end token left out */
  int32_t max_new;     /**< most ids to generate, >= 1 */
  const char *stop;    /**< why it ended: "eos", "length"; static storage */
  float *first_logits; /**< [vocabulary] of the first step, written; NULL: not wanted */
  sampler_stream stream;
  void (*on_token)(void *context, int32_t id); /**< called with each id as it is made; NULL: not wanted */
  void *context;
  float min_gap;       /**< smallest difference of the model's two best logits over all choices, the end token's too */
  int32_t preemptions; /**< how often its blocks were taken away */
} lm_request;

typedef struct generate_options {
  int32_t in_flight;  /**< most sequences at once, as the attention was made for */
  int32_t max_tokens; /**< of a step, likewise */
  int32_t eos;        /**< the id that ends a sequence, or -1 */
  sampler_options sampling;
} generate_options;

/** What became of the cache's blocks. */
typedef struct generate_sharing {
  int64_t shared_blocks; /**< that requests, as they started first, found in the cache instead of computing them */
  int64_t shared_tokens;
  int64_t forks;             /**< requests that started as a copy of one with the same prompt */
  int64_t copies;            /**< blocks copied before a write, since others shared them */
  int64_t preemptions;       /**< sequences whose blocks were taken away */
  int64_t resumes;           /**< those that started again */
  int64_t resumed_tokens;    /**< that they found in the cache */
  int64_t recomputed_tokens; /**< that were fed again */
  int64_t evictions;         /**< kept blocks that were taken for something else */
  int32_t peak_blocks;       /**< most blocks in use at once */
  int32_t peak_shared;       /**< most blocks in several sequences at once */
  int32_t blocks_in_use;     /**< after the last request: 0 */
} generate_sharing;

typedef struct generate_stats {
  int64_t steps;
  int64_t prefill_tokens; /**< of prompts, and of what is fed again after a preemption */
  int64_t decode_tokens;
  double prefill_seconds; /**< a step's time is shared out by its tokens of either kind */
  double decode_seconds;
  generate_sharing sharing;
} generate_stats;

/** Runs all requests to their end. They start in order of arrival, and each fits the cache alone. */
ATTN_NODISCARD attn_status generate_run(model *m, const model_params *params, lm_attention *attention,
                                        const generate_options *options, lm_request *requests, size_t count,
                                        generate_stats *stats, attn_message *message);

#endif
