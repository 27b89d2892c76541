/* SPDX-License-Identifier: Apache-2.0 */
/* `attn-lm generate`: prompts from arguments, files or standard input to ids, then their continuations. */
#include "chat.h"
#include "generate.h"
#include "lm_commands.h"
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_IN_FLIGHT 64

static attn_status parse_ids(const lm_session *s, size_t number, const char *text, lm_ids *ids, attn_message *message) {
  const char *at = text;
  for (;;) {
    char *end = NULL;
    errno = 0;
    const long id = strtol(at, &end, 10);
    if (end == at || errno != 0 || id < 0 || id >= s->params.vocabulary || (*end != ',' && *end != '\0')) {
      const lm_quoted found = lm_quote(at, strlen(at));
      return lm_fail(message, ATTN_E_RANGE, "prompt %zu: --ids at byte %zu is %s; accepted are ids 0 to %d with commas",
                     number, (size_t)(at - text), found.text, s->params.vocabulary - 1);
    }
    const attn_status status = lm_ids_push(ids, (int32_t)id, message);
    if (status != ATTN_OK || *end == '\0') {
      return status;
    }
    at = end + 1;
  }
}

static attn_status encode_prompt(lm_session *s, size_t number, const char *text, size_t length, lm_ids *ids,
                                 attn_message *message) {
  attn_message reason = {ATTN_OK, ""};
  attn_status status = ATTN_OK;
  if (s->options.chatml) {
    status = chat_encode(&s->file, s->tok, text, length, ids, &reason);
  } else {
    const int32_t bos = tokenizer_bos(s->tok);
    status = bos >= 0 ? lm_ids_push(ids, bos, &reason) : ATTN_OK;
    if (status == ATTN_OK) {
      status = tokenizer_encode(s->tok, text, length, ids, &reason);
    }
  }
  return status == ATTN_OK ? ATTN_OK : lm_fail(message, status, "prompt %zu: %s", number, reason.text);
}

static attn_status encode_file(lm_session *s, size_t number, const char *path, lm_ids *ids, attn_message *message) {
  char *text = NULL;
  size_t length = 0;
  attn_status status = session_read_text("--prompt-file", path, &text, &length, message);
  if (status == ATTN_OK) {
    status = encode_prompt(s, number, text, length, ids, message);
  }
  free(text);
  return status;
}

static attn_status read_prompt(lm_session *s, size_t i, lm_request *request, attn_message *message) {
  const lm_prompt *prompt = &s->options.prompts[i];
  attn_status status = ATTN_OK;
  if (prompt->ids != NULL) {
    status = parse_ids(s, i + 1, prompt->ids, &request->prompt, message);
  } else if (prompt->file != NULL) {
    status = encode_file(s, i + 1, prompt->file, &request->prompt, message);
  } else {
    status = encode_prompt(s, i + 1, prompt->text, strlen(prompt->text), &request->prompt, message);
  }
  if (status != ATTN_OK) {
    return status;
  }
  const size_t count = request->prompt.count;
  if (count == 0 || count >= (size_t)s->params.context) {
    return lm_fail(message, ATTN_E_RANGE, "prompt %zu has %zu tokens; accepted are 1 to %d", i + 1, count,
                   s->params.context - 1);
  }
  const int32_t left = s->params.context - (int32_t)count;
  request->max_new = s->options.max_tokens < left ? s->options.max_tokens : left;
  request->stream = sampler_stream_for(s->options.sampling.seed, i);
  if (s->options.logits != NULL) {
    request->first_logits = malloc((size_t)s->params.vocabulary * sizeof(float));
    if (request->first_logits == NULL) {
      return lm_fail(message, ATTN_E_NOMEM, "no memory for the logits of prompt %zu", i + 1);
    }
  }
  return ATTN_OK;
}

static attn_status prepare(lm_session *s, const lm_request *requests, int32_t *lengths, generate_options *options,
                           attn_message *message) {
  const size_t count = s->options.prompt_count;
  lm_needs needs = {0};
  needs.in_flight = s->options.alone ? 1 : count < MAX_IN_FLIGHT ? (int32_t)count : MAX_IN_FLIGHT;
  needs.lengths = lengths;
  needs.length_count = count;
  needs.prefix_cache = !s->options.no_prefix_cache;
  for (size_t i = 0; i < count; i++) {
    lengths[i] = (int32_t)requests[i].prompt.count + requests[i].max_new - 1; /* the last token is never fed */
    needs.max_length = lengths[i] > needs.max_length ? lengths[i] : needs.max_length;
  }
  *options =
      (generate_options){needs.in_flight, s->options.max_batch_tokens, tokenizer_eos(s->tok), s->options.sampling};
  return session_prepare(s, &needs, message);
}

static void print_token(void *context, int32_t id) {
  const lm_session *s = context;
  const gguf_string bytes = tokenizer_decode(s->tok, id);
  (void)fwrite(bytes.data, 1, (size_t)bytes.length, stdout);
  (void)fflush(stdout);
}

static attn_status answer(lm_session *s, lm_request *requests, const generate_options *options, attn_message *message) {
  const size_t count = s->options.prompt_count;
  report r = {.session = s, .requests = requests, .count = count, .streamed = count == 1 && !s->options.json};
  if (r.streamed) {
    report_print_prompt(&r, 0);
    requests[0].on_token = print_token;
    requests[0].context = s;
  }
  attn_status status = generate_run(s->m, &s->params, s->attention, options, requests, count, &r.stats, message);
  if (status == ATTN_OK && s->options.logits != NULL) {
    status = report_write_logits(&r, s->options.logits, message);
  }
  return status == ATTN_OK ? report_print(&r, message) : status;
}

attn_status command_generate(lm_session *s, attn_message *message) {
  const size_t count = s->options.prompt_count;
  lm_request *requests = calloc(count, sizeof requests[0]);
  int32_t *lengths = calloc(count, sizeof lengths[0]);
  generate_options options;
  attn_status status = requests != NULL && lengths != NULL
                           ? ATTN_OK
                           : lm_fail(message, ATTN_E_NOMEM, "no memory for %zu prompts", count);
  for (size_t i = 0; i < count && status == ATTN_OK; i++) {
    status = read_prompt(s, i, &requests[i], message);
  }
  if (status == ATTN_OK) {
    status = prepare(s, requests, lengths, &options, message);
  }
  if (status == ATTN_OK) {
    status = answer(s, requests, &options, message);
  }
  for (size_t i = 0; requests != NULL && i < count; i++) {
    lm_ids_free(&requests[i].prompt);
    lm_ids_free(&requests[i].output);
    free(requests[i].first_logits);
  }
  free(requests);
  free(lengths);
  return status;
}
