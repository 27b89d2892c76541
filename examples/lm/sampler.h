/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From logits to a token. The steps and their order: repetition penalty on the logits; at temperature 0 the best id,
 * the lowest of equals; otherwise logits / temperature, then top-k, top-p and min-p on the candidates in descending
 * order of logit (equals in ascending order of id), each of which keeps a first part of that list and at least one;
 * then one draw by the probabilities that are left. A filter's probabilities are renormalised over what the one before
 * it kept. Each sequence has its own random stream, so that a draw does not depend on the batch.
 */
#ifndef LM_SAMPLER_H
#define LM_SAMPLER_H

#include "lm_error.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct sampler_options {
  double temperature;        /**< 0: greedy */
  int32_t top_k;             /**< 0: all */
  double top_p;              /**< 1: all */
  double min_p;              /**< 0: all */
  double repetition_penalty; /**< 1: none */
  uint64_t seed;
} sampler_options;

typedef struct sampler_candidate {
  int32_t id;
  float logit;   /**< after penalty and temperature */
  double weight; /**< exp(logit - best logit); proportional to the probability */
} sampler_candidate;

/** A random stream: a counter that is mixed. */
typedef struct sampler_stream {
  uint64_t state;
} sampler_stream;

sampler_stream sampler_stream_for(uint64_t seed, uint64_t index);

/** The next draw, uniform in [0, 1), a multiple of 2^-53. */
double sampler_draw(sampler_stream *stream);

/** Divides the positive logits of the ids by `penalty`, multiplies the others; each id once, however often listed. */
void sampler_penalise(float *logits, const int32_t *ids, size_t count, double penalty);

/** The best id, the lowest of equals; -1 if a logit is not a number. */
int32_t sampler_best(const float *logits, int32_t count);

/** Fills [count] candidates in their order. The logits are finite or -infinity, the best is finite. */
void sampler_sort(const float *logits, int32_t count, double temperature, sampler_candidate *candidates);

/* How many of the first candidates a filter keeps. */

/** The first k; 0 keeps all. */
size_t sampler_top_k(const sampler_candidate *candidates, size_t count, int32_t k);

/** The fewest whose probabilities come to at least p; 1 keeps all. */
size_t sampler_top_p(const sampler_candidate *candidates, size_t count, double p);

/** Those whose probability is at least p times the best one's. */
size_t sampler_min_p(const sampler_candidate *candidates, size_t count, double p);

/** Room for one choice; zero-initialised, released by sampler_free. */
typedef struct sampler {
  sampler_options options;
  int32_t vocabulary;
  float *logits;                 /**< [vocabulary] */
  sampler_candidate *candidates; /**< [vocabulary] */
} sampler;

ATTN_NODISCARD attn_status sampler_create(const sampler_options *options, int32_t vocabulary, sampler *out,
                                          attn_message *message);
void sampler_free(sampler *s);

/** The ids that a sequence has so far, in two parts. */
typedef struct sampler_history {
  const int32_t *prompt;
  size_t prompt_count;
  const int32_t *output;
  size_t output_count;
} sampler_history;

/** Chooses a token from [vocabulary] logits, which stay as they are. ATTN_E_RANGE if one is not a number. */
ATTN_NODISCARD attn_status sampler_choose(sampler *s, const float *logits, const sampler_history *history,
                                          sampler_stream *stream, int32_t *id, attn_message *message);

#endif
