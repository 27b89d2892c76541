/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte-level BPE from a GGUF file's own metadata: text to token ids and back. Text is only ever text: the spelling of a
 * special token in it is cut like any other, and special ids enter a prompt through tokenizer_special alone. Decoding
 * needs no PCRE2. A tokenizer keeps views of the file, which has to stay open. Not for two threads at once.
 */
#ifndef LM_TOKENIZER_H
#define LM_TOKENIZER_H

#include "gguf.h"

typedef struct tokenizer tokenizer;

/** A growing list of token ids; zero-initialised, released by lm_ids_free. */
typedef struct lm_ids {
  int32_t *data;
  size_t count;
  size_t capacity;
} lm_ids;

ATTN_NODISCARD attn_status lm_ids_push(lm_ids *ids, int32_t id, attn_message *message);
void lm_ids_free(lm_ids *ids);

ATTN_NODISCARD attn_status tokenizer_create(const gguf_file *file, tokenizer **out, attn_message *message);
void tokenizer_free(tokenizer *tok);

/** Appends the ids of `text`. Invalid UTF-8 is refused with its byte offset. On failure `ids` keeps what it had. */
ATTN_NODISCARD attn_status tokenizer_encode(tokenizer *tok, const char *text, size_t length, lm_ids *ids,
                                            attn_message *message);

/** The bytes that an id stands for (a special token: its spelling); empty for an id outside the vocabulary. */
gguf_string tokenizer_decode(const tokenizer *tok, int32_t id);

/** The id of a control token by its exact spelling, or -1. */
int32_t tokenizer_special(const tokenizer *tok, const char *text);

int32_t tokenizer_size(const tokenizer *tok);

/** The id at which generation stops, or -1 if the file names none. */
int32_t tokenizer_eos(const tokenizer *tok);

/** The id that starts every text prompt, or -1 if the file asks for none. */
int32_t tokenizer_bos(const tokenizer *tok);

#endif
