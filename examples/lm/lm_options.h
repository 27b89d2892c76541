/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of attn-lm: its commands and their flags. */
#ifndef LM_OPTIONS_H
#define LM_OPTIONS_H

#include "gemm.h"
#include "lm_formats.h"
#include "sampler.h"

#include <attn/attn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef enum lm_command { LM_GENERATE, LM_CHAT, LM_PERPLEXITY, LM_BENCH, LM_COMMAND_COUNT } lm_command;

typedef struct lm_prompt {
  const char *text; /**< --prompt */
  const char *ids;  /**< --ids */
  const char *file; /**< --prompt-file, "-" for standard input; exactly one of the three is set */
} lm_prompt;

#define LM_MAX_LENGTHS 16

/** Static scales of a cache of fp8_e4m3 or fp8_e5m2: 1, those of the text's first window, or with each of them. */
typedef enum lm_scales { LM_SCALES_ONE, LM_SCALES_AUTO, LM_SCALES_BOTH } lm_scales;

typedef struct lm_options {
  lm_command command;
  const char *model;
  const char *backend;
  const char *logits;
  const char *file;   /**< of perplexity */
  lm_prompt *prompts; /**< in the order of the command line; lm_options_free */
  size_t prompt_count;
  int32_t max_tokens;
  int32_t threads;
  int32_t block_size;
  int32_t cache_blocks; /**< 0: for all prompts, within a limit */
  int32_t max_batch_tokens;
  int32_t context; /**< most positions of a chat */
  int32_t repeat;
  int32_t lengths[LM_MAX_LENGTHS];
  size_t length_count;
  lm_formats formats;
  gemm_compute compute;
  sampler_options sampling;
  bool chatml;
  bool batch_invariant;
  bool no_prefix_cache;
  bool alone;
  bool all_formats;
  lm_scales scales;
  bool json;
  bool help;
} lm_options;

/** The command of a name, or LM_COMMAND_COUNT. */
lm_command lm_command_from_name(const char *name);

/** Parses what follows the command. Anything unknown to it, doubled or out of range is refused. */
ATTN_NODISCARD attn_status lm_options_parse(lm_command command, int count, char **arguments, lm_options *options,
                                            attn_message *message);
void lm_options_free(lm_options *options);

/** `attn-lm COMMAND --help`, and with LM_COMMAND_COUNT `attn-lm --help`, on standard output. */
void lm_options_print_help(lm_command command);

#endif
