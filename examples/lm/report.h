/* SPDX-License-Identifier: Apache-2.0 */
/* What attn-lm prints: the answers and the summary, as text or as one JSON object, and the logits file. */
#ifndef LM_REPORT_H
#define LM_REPORT_H

#include "generate.h"
#include "lm_options.h"

typedef struct report {
  const lm_options *options;
  const tokenizer *tok;
  const model_params *params;
  const lm_attention *attention;
  int32_t threads;
  const lm_request *requests; /**< one per prompt of the options */
  size_t count;
  generate_stats stats;
} report;

/** Writes to standard output. ATTN_E_IO if that fails. */
ATTN_NODISCARD attn_status report_print(const report *r, attn_message *message);

/** The first logits of each request, one after the other; the file appears whole or not at all. */
ATTN_NODISCARD attn_status report_write_logits(const report *r, const char *path, attn_message *message);

#endif
