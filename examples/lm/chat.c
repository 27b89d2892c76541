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

static attn_status find_tokens(const gguf_file *file, const tokenizer *tok, chat_tokens *special,
                               attn_message *message) {
  *special = (chat_tokens){tokenizer_special(tok, TURN_START), tokenizer_special(tok, TURN_END)};
  if (special->start < 0 || special->end < 0) {
    return lm_fail(message, ATTN_E_NAME,
                   "%s: ChatML needs the control tokens " TURN_START " and " TURN_END ", which the vocabulary lacks",
                   file->path);
  }
  return ATTN_OK;
}

/* The user's turn and the assistant's header. */
static attn_status add_exchange(tokenizer *tok, const chat_tokens *special, const char *text, size_t length,
                                lm_ids *ids, attn_message *message) {
  attn_status status = add_turn(tok, special, "user\n", text, length, ids, message);
  if (status == ATTN_OK) {
    status = lm_ids_push(ids, special->start, message);
  }
  return status == ATTN_OK ? tokenizer_encode(tok, "assistant\n", strlen("assistant\n"), ids, message) : status;
}

attn_status chat_encode(const gguf_file *file, tokenizer *tok, const char *text, size_t length, lm_ids *ids,
                        attn_message *message) {
  chat_tokens special;
  attn_status status = find_tokens(file, tok, &special, message);
  if (status != ATTN_OK) {
    return status;
  }
  /* the user's text is looked at alone, so that a message's byte offset is the user's own */
  const size_t before = ids->count;
  status = tokenizer_encode(tok, text, length, ids, message);
  ids->count = before;
  if (status == ATTN_OK) {
    status = add_system(file, tok, &special, ids, message);
  }
  return status == ATTN_OK ? add_exchange(tok, &special, text, length, ids, message) : status;
}

attn_status chat_encode_next(const gguf_file *file, tokenizer *tok, const char *text, size_t length, lm_ids *ids,
                             attn_message *message) {
  chat_tokens special;
  attn_status status = find_tokens(file, tok, &special, message);
  if (status != ATTN_OK) {
    return status;
  }
  const size_t before = ids->count;
  status = tokenizer_encode(tok, text, length, ids, message);
  ids->count = before;
  if (status == ATTN_OK) {
    status = lm_ids_push(ids, special.end, message);
  }
  if (status == ATTN_OK) {
    status = tokenizer_encode(tok, "\n", 1, ids, message);
  }
  if (status == ATTN_OK) {
    status = add_exchange(tok, &special, text, length, ids, message);
  }
  ids->count = status == ATTN_OK ? ids->count : before;
  return status;
}

/* The template without the spaces inside its tags, double quotes as single ones and newlines in literals as such; what
   is outside of tags stays. `out` has room for as much as `text` has. Returns the length. */
static size_t reduce(gguf_string text, char *out) {
  size_t length = 0;
  int depth = 0;
  char quote = '\0';
  for (uint64_t i = 0; i < text.length; i++) {
    const char c = text.data[i];
    const char next = i + 1 < text.length ? text.data[i + 1] : '\0';
    if (quote != '\0') {
      if (c == '\\' && next == 'n') {
        out[length++] = '\n';
        i++;
        continue;
      }
      out[length++] = c == quote ? '\'' : c;
      quote = c == quote ? '\0' : quote;
      continue;
    }
    if (depth == 0) {
      depth = c == '{' && (next == '{' || next == '%');
      out[length++] = c;
      continue;
    }
    if (c == '\'' || c == '"') {
      quote = c;
      out[length++] = '\'';
    } else if (c != ' ' && c != '\n' && c != '\t' && c != '\r') {
      out[length++] = c;
      depth = !((c == '}' || c == '%') && next == '}');
      if (depth == 0) {
        out[length++] = '}';
        i++;
      }
    }
  }
  return length;
}

/* Whether the reduced template is LOOP, perhaps DEFAULT around one literal's text, and TURNS. */
static bool is_plain(const char *text, size_t length) {
  static const char loop[] = "{%formessageinmessages%}";
  static const char begin[] = "{%ifloop.firstandmessages[0]['role']!='system'%}{{'" SYSTEM_TURN "\n";
  static const char finish[] = TURN_END "\n'}}{%endif%}";
  static const char turns[] = "{{'" TURN_START "'+message['role']+'\n'+message['content']+'" TURN_END
                              "'+'\n'}}{%endfor%}{%ifadd_generation_prompt%}{{'" TURN_START "assistant\n'}}{%endif%}";
  const char *end = text + length;
  if (length < sizeof loop - 1 + sizeof turns - 1 || memcmp(text, loop, sizeof loop - 1) != 0 ||
      memcmp(end - (sizeof turns - 1), turns, sizeof turns - 1) != 0) {
    return false;
  }
  text += sizeof loop - 1;
  end -= sizeof turns - 1;
  if (text == end) {
    return true;
  }
  if ((size_t)(end - text) < sizeof begin - 1 + sizeof finish - 1 || memcmp(text, begin, sizeof begin - 1) != 0 ||
      memcmp(end - (sizeof finish - 1), finish, sizeof finish - 1) != 0) {
    return false;
  }
  text += sizeof begin - 1;
  end -= sizeof finish - 1;
  for (; text < end; text++) {
    if (*text == '\'') {
      return false;
    }
  }
  return true;
}

attn_status chat_check_template(const gguf_file *file, attn_message *message) {
  static const char key[] = "tokenizer.chat_template";
  gguf_string text = {NULL, 0};
  const attn_status status = gguf_get_string(file, key, &text, message);
  if (status != ATTN_OK) {
    return status;
  }
  char *reduced = malloc((size_t)text.length + 1);
  if (reduced == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the chat template");
  }
  const bool plain = is_plain(reduced, reduce(text, reduced));
  free(reduced);
  if (!plain) {
    const lm_quoted found = lm_quote(text.data, text.length);
    return lm_fail(message, ATTN_E_UNSUPPORTED, "%s: %s is %s; accepted is the plain ChatML form", file->path, key,
                   found.text);
  }
  return ATTN_OK;
}
