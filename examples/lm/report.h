/* SPDX-License-Identifier: Apache-2.0 */
/* What attn-lm prints: the answers and the summary, as text or as one JSON object, and the logits file. */
#ifndef LM_REPORT_H
#define LM_REPORT_H

#include "generate.h"
#include "lm_session.h"

typedef struct report {
  const lm_session *session;
  const lm_request *requests; /**< one per prompt of the options */
  size_t count;
  bool streamed; /**< the prompt and its text are on standard output already */
  generate_stats stats;
} report;

/** The line that stands above a text. */
void report_print_prompt(const report *r, size_t i);

/** Writes to standard output. ATTN_E_IO if that fails. */
ATTN_NODISCARD attn_status report_print(const report *r, attn_message *message);

/** The first logits of each request, one after the other; the file appears whole or not at all. */
ATTN_NODISCARD attn_status report_write_logits(const report *r, const char *path, attn_message *message);

#endif
