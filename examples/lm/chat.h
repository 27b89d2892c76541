/* SPDX-License-Identifier: Apache-2.0 */
/* A prompt as a ChatML turn. The only place where special tokens enter a prompt. */
#ifndef LM_CHAT_H
#define LM_CHAT_H

#include "tokenizer.h"

/**
 * Appends the template's default system turn (if tokenizer.chat_template has one), the user's turn with `text`, and the
 * assistant's header. `text` is only ever text. ATTN_E_NAME if the vocabulary lacks <|im_start|> or <|im_end|>.
 */
ATTN_NODISCARD attn_status chat_encode(const gguf_file *file, tokenizer *tok, const char *text, size_t length,
                                       lm_ids *ids, attn_message *message);

/** ATTN_E_UNSUPPORTED unless the file's chat template is plain ChatML, with a default system turn or without one. */
ATTN_NODISCARD attn_status chat_check_template(const gguf_file *file, attn_message *message);

/**
 * Appends the next turn of a conversation whose assistant has spoken: the end of its turn, the user's turn with `text`
 * and the assistant's header. On failure `ids` keeps what it had.
 */
ATTN_NODISCARD attn_status chat_encode_next(const gguf_file *file, tokenizer *tok, const char *text, size_t length,
                                            lm_ids *ids, attn_message *message);

#endif
