/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ChatML turns: <|im_start|>ROLE newline TEXT <|im_end|> newline. Of the file's Jinja template only the default system
 * turn is wanted, which stands in it as one string literal; no Jinja is interpreted. A template that has none gives no
 * system turn.
 */
#include "chat.h"

#include <stdlib.h>
#include <string.h>

#define TURN_START "<|im_start|>"
#define TURN_END "<|im_end|>"
#define SYSTEM_TURN TURN_START "system"

typedef struct chat_tokens {
  int32_t start;
  int32_t end;
} chat_tokens;

static const char *find_bytes(const char *from, const char *end, const char *what) {
  const size_t length = strlen(what);
  for (; (size_t)(end - from) >= length; from++) {
    if (memcmp(from, what, length) == 0) {
      return from;
    }
  }
  return NULL;
}

/* Copies a Jinja string literal's text; of its escapes only the usual ones are known, others stay as they are. */
static size_t unescape(const char *from, const char *end, char *out) {
  static const char escapes[][2] = {{'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'\\', '\\'}, {'\'', '\''}, {'"', '"'}};
  size_t length = 0;
  while (from < end) {
    char c = *from++;
    if (c == '\\' && from < end) {
      for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++) {
        if (escapes[i][0] == *from) {
          c = escapes[i][1];
          from++;
          break;
        }
      }
    }
    out[length++] = c;
  }
  return length;
}

/* The text between "<|im_start|>system" and "<|im_end|>" inside one literal, or an empty range. */
static void find_system(gguf_string text, const char **from, const char **to) {
  const char *end = text.data + text.length;
  *from = NULL;
  *to = NULL;
  const char *start = find_bytes(text.data, end, SYSTEM_TURN);
  if (start == NULL || start == text.data || (start[-1] != '\'' && start[-1] != '"')) {
    return;
  }
  const char *body = start + strlen(TURN_START);
  const char *turn_end = find_bytes(body, end, TURN_END);
  if (turn_end == NULL) {
    return;
  }
  for (const char *at = body; at < turn_end; at++) {
    if (*at == '\\') {
      at++;
    } else if (*at == start[-1]) {
      return; /* the literal ends before the turn does: the rest is computed */
    }
  }
  *from = body;
  *to = turn_end;
}

static attn_status add_turn(tokenizer *tok, const chat_tokens *special, const char *role, const char *text,
                            size_t length, lm_ids *ids, attn_message *message) {
  const size_t role_length = strlen(role);
  char *joined = malloc(role_length + length + 1);
  if (joined == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for a prompt of %zu bytes", length);
  }
  memcpy(joined, role, role_length);
  memcpy(joined + role_length, text, length);
  attn_status status = lm_ids_push(ids, special->start, message);
  if (status == ATTN_OK) {
    status = tokenizer_encode(tok, joined, role_length + length, ids, message);
  }
  if (status == ATTN_OK) {
    status = lm_ids_push(ids, special->end, message);
  }
  if (status == ATTN_OK) {
    status = tokenizer_encode(tok, "\n", 1, ids, message);
  }
  free(joined);
  return status;
}

static attn_status add_system(const gguf_file *file, tokenizer *tok, const chat_tokens *special, lm_ids *ids,
                              attn_message *message) {
  gguf_string text = {NULL, 0};
  const char *from = NULL;
  const char *to = NULL;
  if (gguf_find(file, "tokenizer.chat_template") == NULL) {
    return ATTN_OK;
  }
  attn_status status = gguf_get_string(file, "tokenizer.chat_template", &text, message);
  if (status != ATTN_OK) {
    return status;
  }
  find_system(text, &from, &to);
  if (from == NULL) {
    return ATTN_OK;
  }
  char *plain = malloc((size_t)(to - from) + 1);
  if (plain == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the system turn");
  }
  const size_t length = unescape(from, to, plain);
  status = add_turn(tok, special, "", plain, length, ids, message);
  free(plain);
  return status;
}

attn_status chat_encode(const gguf_file *file, tokenizer *tok, const char *text, size_t length, lm_ids *ids,
                        attn_message *message) {
  const chat_tokens special = {tokenizer_special(tok, TURN_START), tokenizer_special(tok, TURN_END)};
  if (special.start < 0 || special.end < 0) {
    return lm_fail(message, ATTN_E_NAME,
                   "%s: --chatml needs the control tokens " TURN_START " and " TURN_END ", which the vocabulary lacks",
                   file->path);
  }
  /* the user's text is looked at alone, so that a message's byte offset is the user's own */
  const size_t before = ids->count;
  attn_status status = tokenizer_encode(tok, text, length, ids, message);
  ids->count = before;
  if (status == ATTN_OK) {
    status = add_system(file, tok, &special, ids, message);
  }
  if (status == ATTN_OK) {
    status = add_turn(tok, &special, "user\n", text, length, ids, message);
  }
  if (status == ATTN_OK) {
    status = lm_ids_push(ids, special.start, message);
  }
  if (status == ATTN_OK) {
    status = tokenizer_encode(tok, "assistant\n", strlen("assistant\n"), ids, message);
  }
  return status;
}
