/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which sequences run and what a step feeds, over a pool of blocks that need not hold them all.
 *
 * Requests start in order of arrival, each in a slot whose number is its name in the pool. A step takes one token of
 * every decoding sequence and fills the rest of its budget with chunks of prompts; blocks are taken as they are needed.
 * Where they do not suffice, the sequence started last is preempted: its blocks go back, and it waits at the head of
 * the line until its tokens, those already produced among them, are fed again. The oldest sequence is never preempted
 * and fits alone, so that all requests end.
 *
 * A request starts once free blocks remain for the tokens that all running ones have still to be fed, and one block
 * beyond for each that may grow further. A decoding sequence takes at most one block in block_size steps: nobody is
 * preempted so soon that starting it was in vain, and a pool that holds all requests whole delays none.
 *
 * Where the attention keeps prefixes, a request starts from the full blocks of its tokens that the cache has. While a
 * running sequence is about to compute such blocks, the request waits for them rather than computing them beside it;
 * those behind it wait too. One whose prompt is the very prompt that has just been fed forks from it, with its logits.
 */
#ifndef LM_SCHEDULE_H
#define LM_SCHEDULE_H

#include "generate.h"

typedef struct lm_flight {
  lm_request *request; /**< NULL: the slot is free */
  size_t fed;          /**< tokens that the cache holds */
} lm_flight;

typedef struct lm_waiting {
  bool waits;      /**< not running, not done */
  bool preempted;  /**< it ran before */
  size_t most_fed; /**< tokens that the cache held at most */
} lm_waiting;

typedef struct lm_schedule {
  lm_attention *attention;
  int32_t in_flight;
  int32_t max_tokens;
  lm_request *requests;
  size_t count;
  lm_waiting *waiting; /**< [count] */
  size_t head;         /**< the first that waits; count: none */
  lm_flight *flights;  /**< [in_flight] by slot */
  int32_t *running;    /**< [in_flight] slots in order of arrival */
  int32_t num_running;
  int32_t *ids; /**< tokens of the longest request */
  /* the step: rows in this order */
  int32_t num_seqs;
  int64_t num_tokens;
  int64_t num_decodes; /**< those of its first sequences that feed the token produced last */
  int32_t *seqs;       /**< [in_flight] slots */
  int32_t *counts;     /**< [in_flight] tokens of each */
  generate_sharing sharing;
} lm_schedule;

/** All requests wait. Their outputs are empty. */
ATTN_NODISCARD attn_status lm_schedule_create(lm_attention *attention, const generate_options *options,
                                              lm_request *requests, size_t count, lm_schedule *s,
                                              attn_message *message);
/** Safe on a zeroed struct. */
void lm_schedule_free(lm_schedule *s);

/** Starts what can start and lays out the next step, preempting where blocks lack. num_tokens is 0 once all ended. */
ATTN_NODISCARD attn_status lm_schedule_next(lm_schedule *s, attn_message *message);

/** Token i of a sequence: of its prompt, then of its output. */
int32_t lm_schedule_token(const lm_flight *f, size_t i);

/** Whether all tokens of a sequence are in the cache, those that this step feeds included. */
bool lm_schedule_complete(const lm_flight *f, size_t step_tokens);

/** After the step ran: its tokens are in the cache. */
ATTN_NODISCARD attn_status lm_schedule_fed(lm_schedule *s, attn_message *message);

/** Starts waiting requests with the prompt of `slot`, whose last token has just been fed, as copies that share all its
    blocks. `children` takes their slots, in order. */
ATTN_NODISCARD attn_status lm_schedule_fork(lm_schedule *s, int32_t slot, int32_t *children, int32_t *count,
                                            attn_message *message);

/** The request of a slot is done: its blocks go back. */
ATTN_NODISCARD attn_status lm_schedule_end(lm_schedule *s, int32_t slot, attn_message *message);

/** What was counted, with the pool's own counts. */
ATTN_NODISCARD attn_status lm_schedule_report(lm_schedule *s, generate_sharing *out, attn_message *message);

#endif
