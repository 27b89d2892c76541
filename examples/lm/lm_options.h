/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of `attn-lm generate`. */
#ifndef LM_OPTIONS_H
#define LM_OPTIONS_H

#include "lm_error.h"

#include <attn/attn.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct lm_prompt {
  const char *text; /**< --prompt */
  const char *ids;  /**< --ids; exactly one of the two is set */
} lm_prompt;

typedef struct lm_options {
  const char *model;
  const char *backend;
  const char *logits;
  lm_prompt *prompts; /**< in the order of the command line; lm_options_free */
  size_t prompt_count;
  int32_t max_tokens;
  int32_t threads;
  int32_t block_size;
  int32_t max_batch_tokens;
  attn_format format;
  bool chatml;
  bool batch_invariant;
  bool alone;
  bool json;
  bool help;
} lm_options;

/** Parses what follows `generate`. Anything unknown, doubled or out of range is refused. */
ATTN_NODISCARD attn_status lm_options_parse(int count, char **arguments, lm_options *options, attn_message *message);
void lm_options_free(lm_options *options);

/** The text of `attn-lm generate --help`. */
const char *lm_options_help(void);

#endif
