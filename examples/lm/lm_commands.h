/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of attn-lm, each on a session whose options are parsed. They print their answers on standard output. */
#ifndef LM_COMMANDS_H
#define LM_COMMANDS_H

#include "lm_session.h"

ATTN_NODISCARD attn_status command_generate(lm_session *s, attn_message *message);
ATTN_NODISCARD attn_status command_chat(lm_session *s, attn_message *message);
ATTN_NODISCARD attn_status command_perplexity(lm_session *s, attn_message *message);
ATTN_NODISCARD attn_status command_bench(lm_session *s, attn_message *message);

#endif
