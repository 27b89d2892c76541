/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `attn-lm chat`: a conversation in sequence 0, whose cache stays from turn to turn, so that only what is new is fed.
 * The bytes of a token are written as they come.
 */
#define _POSIX_C_SOURCE 200809L
#include "chat.h"
#include "lm_commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_CONTEXT 2048

typedef struct conversation {
  lm_session *s;
  int32_t context;
  lm_ids ids;
  int32_t fed;   /* ids that the cache holds */
  float *logits; /* [vocabulary] */
  sampler sampler;
  sampler_stream stream;
} conversation;

static attn_status make(lm_session *s, conversation *c, attn_message *message) {
  c->s = s;
  const int32_t most = s->params.context;
  if (s->options.context > most) {
    return lm_fail(message, ATTN_E_RANGE, "--context is %d; accepted are 1 to %d", s->options.context, most);
  }
  c->context = s->options.context > 0 ? s->options.context : most < DEFAULT_CONTEXT ? most : DEFAULT_CONTEXT;
  c->stream = sampler_stream_for(s->options.sampling.seed, 0);
  const lm_needs needs = {1, c->context, NULL, 0, false};
  attn_status status = session_prepare(s, &needs, message);
  if (status == ATTN_OK) {
    c->logits = malloc((size_t)s->params.vocabulary * sizeof c->logits[0]);
    status = c->logits != NULL ? sampler_create(&s->options.sampling, s->params.vocabulary, &c->sampler, message)
                               : lm_fail(message, ATTN_E_NOMEM, "no memory for the logits");
  }
  return status;
}

/* One token after all that is known, which has to leave room for it. */
static attn_status next_token(conversation *c, int32_t *id, attn_message *message) {
  const int32_t count = (int32_t)c->ids.count - c->fed;
  attn_status status = session_feed(c->s, c->ids.data + c->fed, c->fed, count, 1, c->logits, message);
  if (status != ATTN_OK) {
    return status;
  }
  c->fed += count;
  const sampler_history history = {c->ids.data, c->ids.count, NULL, 0};
  return sampler_choose(&c->sampler, c->logits, &history, &c->stream, id, message);
}

static attn_status answer(conversation *c, attn_message *message) {
  const int32_t eos = tokenizer_eos(c->s->tok);
  const int32_t turn_end = tokenizer_special(c->s->tok, "<|im_end|>");
  attn_status status = ATTN_OK;
  for (int32_t i = 0; i < c->s->options.max_tokens && c->ids.count < (size_t)c->context; i++) {
    int32_t id = -1;
    status = next_token(c, &id, message);
    if (status != ATTN_OK || id == eos || id == turn_end) {
      break;
    }
    status = lm_ids_push(&c->ids, id, message);
    if (status != ATTN_OK) {
      break;
    }
    const gguf_string bytes = tokenizer_decode(c->s->tok, id);
    (void)fwrite(bytes.data, 1, (size_t)bytes.length, stdout);
    (void)fflush(stdout);
  }
  (void)putchar('\n');
  return status == ATTN_OK ? session_flush(message) : status;
}

static attn_status take_turn(conversation *c, size_t number, const char *text, size_t length, attn_message *message) {
  attn_message reason = {ATTN_OK, ""};
  lm_session *s = c->s;
  const attn_status status = c->ids.count == 0 ? chat_encode(&s->file, s->tok, text, length, &c->ids, &reason)
                                               : chat_encode_next(&s->file, s->tok, text, length, &c->ids, &reason);
  if (status != ATTN_OK) {
    return lm_fail(message, status, "turn %zu: %s", number, reason.text);
  }
  if (c->ids.count >= (size_t)c->context) {
    return lm_fail(message, ATTN_E_CAPACITY, "turn %zu: the conversation has %zu tokens; accepted are 1 to %d", number,
                   c->ids.count, c->context - 1);
  }
  return answer(c, message);
}

static attn_status converse(conversation *c, attn_message *message) {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  char *line = NULL;
  size_t room = 0;
  size_t number = 0;
  attn_status status = ATTN_OK;
  while (status == ATTN_OK) {
    if (terminal) {
      (void)fputs("> ", stdout);
      (void)fflush(stdout);
    }
    errno = 0;
    ssize_t length = getline(&line, &room, stdin);
    if (length < 0) {
      if (ferror(stdin) || errno == ENOMEM) {
        status = lm_fail(message, ATTN_E_IO, "standard input cannot be read: %s", strerror(errno));
      }
      break;
    }
    if (length > 0 && line[length - 1] == '\n') {
      length--;
    }
    if (length > 0) {
      status = take_turn(c, ++number, line, (size_t)length, message);
    }
  }
  free(line);
  return status;
}

attn_status command_chat(lm_session *s, attn_message *message) {
  conversation c = {0};
  attn_status status = chat_check_template(&s->file, message);
  if (status == ATTN_OK) {
    status = make(s, &c, message);
  }
  if (status == ATTN_OK) {
    status = converse(&c, message);
  }
  lm_ids_free(&c.ids);
  free(c.logits);
  sampler_free(&c.sampler);
  return status;
}
