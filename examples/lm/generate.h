/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generation for several prompts by continuous batching. Each step takes one token of every sequence that is
 * decoding and fills the rest of its token budget with chunks of prompts, all in one batch. A request starts once the
 * cache can hold all it may come to, so that none is ever thrown out, and gives its blocks back when it is done.
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
} lm_request;

typedef struct generate_options {
  int32_t in_flight;  /**< most sequences at once, as the attention was made for */
  int32_t max_tokens; /**< of a step, likewise */
  int32_t eos;        /**< the id that ends a sequence, or -1 */
  sampler_options sampling;
} generate_options;

typedef struct generate_stats {
  int64_t steps;
  int64_t prefill_tokens;
  int64_t decode_tokens;
  double prefill_seconds; /**< a step's time is shared out by its tokens of either kind */
  double decode_seconds;
} generate_stats;

/** Runs all requests to their end, in order of arrival. */
ATTN_NODISCARD attn_status generate_run(model *m, const model_params *params, lm_attention *attention,
                                        const generate_options *options, lm_request *requests, size_t count,
                                        generate_stats *stats, attn_message *message);

#endif
