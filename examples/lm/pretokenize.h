/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cutting text into the pieces inside which byte pairs may merge. Each known pre-tokenizer is one row of a table in
 * pretokenize.c; PCRE2 supplies the Unicode classes. Without it the names are known but text is refused.
 */
#ifndef LM_PRETOKENIZE_H
#define LM_PRETOKENIZE_H

#include "gguf.h"

typedef struct pretokenizer pretokenizer;

/** Receives one piece; a status other than ATTN_OK stops the cutting and is passed on. */
typedef attn_status (*pretokenizer_sink)(void *context, const char *piece, size_t length, attn_message *message);

/** The pre-tokenizer of that name; ATTN_E_NAME names what was found and what is known. */
ATTN_NODISCARD attn_status pretokenizer_create(gguf_string name, pretokenizer **out, attn_message *message);

void pretokenizer_free(pretokenizer *cutter);

/** Cuts valid UTF-8; every byte lands in exactly one piece. */
ATTN_NODISCARD attn_status pretokenizer_cut(const pretokenizer *cutter, const char *text, size_t length,
                                            pretokenizer_sink sink, void *context, attn_message *message);

#endif
