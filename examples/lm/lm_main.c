/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn-lm: a language-model runner on libattn. This file is the command: it reads the file's header, turns prompts into
 * ids and makes the plan before it loads a single weight, so that whatever is wrong with a request is told at once.
 */
#define _POSIX_C_SOURCE 200809L
#include "chat.h"
#include "generate.h"
#include "lm_options.h"
#include "report.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_IN_FLIGHT 64
#define CACHE_LIMIT (UINT64_C(192) << 20)

static const char usage[] = "usage: attn-lm COMMAND\n"
                            "\n"
                            "  generate    continue prompts with a GGUF model (attn-lm generate --help)\n"
                            "  --help      this text\n"
                            "  --version   the version of libattn\n";

/* All that a run owns, for one way out. */
typedef struct session {
  lm_options options;
  gguf_file file;
  tokenizer *tok;
  model_params params;
  lm_request *requests;
  int32_t *lengths;
  lm_attention *attention;
  gemm_engine *engine;
  int32_t threads;
  model *m;
  generate_options generation;
} session;

static attn_status parse_ids(const session *s, size_t number, const char *text, lm_ids *ids, attn_message *message) {
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

static attn_status encode_prompt(session *s, size_t number, const char *text, lm_ids *ids, attn_message *message) {
  attn_message reason = {ATTN_OK, ""};
  const size_t length = strlen(text);
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

static attn_status read_prompt(session *s, size_t i, attn_message *message) {
  lm_request *request = &s->requests[i];
  const lm_prompt *prompt = &s->options.prompts[i];
  const attn_status status = prompt->ids != NULL ? parse_ids(s, i + 1, prompt->ids, &request->prompt, message)
                                                 : encode_prompt(s, i + 1, prompt->text, &request->prompt, message);
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
  s->lengths[i] = (int32_t)count + request->max_new;
  if (s->options.logits != NULL) {
    request->first_logits = malloc((size_t)s->params.vocabulary * sizeof(float));
    if (request->first_logits == NULL) {
      return lm_fail(message, ATTN_E_NOMEM, "no memory for the logits of prompt %zu", i + 1);
    }
  }
  return ATTN_OK;
}

static attn_status read_prompts(session *s, attn_message *message) {
  s->requests = calloc(s->options.prompt_count, sizeof s->requests[0]);
  s->lengths = calloc(s->options.prompt_count, sizeof s->lengths[0]);
  if (s->requests == NULL || s->lengths == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for %zu prompts", s->options.prompt_count);
  }
  attn_status status = ATTN_OK;
  for (size_t i = 0; i < s->options.prompt_count && status == ATTN_OK; i++) {
    status = read_prompt(s, i, message);
  }
  return status;
}

static attn_status make_attention(session *s, int32_t threads, attn_message *message) {
  const size_t count = s->options.prompt_count;
  s->generation.in_flight = s->options.alone ? 1 : count < MAX_IN_FLIGHT ? (int32_t)count : MAX_IN_FLIGHT;
  s->generation.max_tokens = s->options.max_batch_tokens;
  s->generation.eos = tokenizer_eos(s->tok);
  lm_attention_options options = {0};
  options.backend = s->options.backend;
  options.format = s->options.format;
  options.threads = threads;
  options.executor = gemm_executor(s->engine);
  options.block_size = s->options.block_size;
  options.batch_invariant = s->options.batch_invariant;
  options.max_seqs = s->generation.in_flight;
  options.max_tokens = s->generation.max_tokens;
  options.lengths = s->lengths;
  options.length_count = s->options.alone ? 0 : count;
  options.cache_limit = CACHE_LIMIT;
  for (size_t i = 0; i < count; i++) {
    options.max_length = s->lengths[i] > options.max_length ? s->lengths[i] : options.max_length;
  }
  return lm_attention_create(&s->params, &options, &s->attention, message);
}

/* Products and attention with as many threads. Without a wish, one per processor, or one where that is refused. */
static attn_status make_engines(session *s, attn_message *message) {
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  const int32_t wanted = processors > 64 ? 64 : processors > 1 ? (int32_t)processors : 1;
  s->threads = s->options.threads > 0 ? s->options.threads : wanted;
  attn_status status = gemm_create(s->threads, &s->engine, message);
  if (status == ATTN_OK) {
    status = make_attention(s, s->threads, message);
  }
  if (status == ATTN_E_UNSUPPORTED && s->options.threads == 0 && s->threads > 1) {
    gemm_destroy(s->engine);
    s->engine = NULL;
    s->threads = 1;
    status = gemm_create(1, &s->engine, message);
    if (status == ATTN_OK) {
      status = make_attention(s, 1, message);
    }
  }
  return status;
}

static attn_status load(session *s, attn_message *message) {
  attn_status status = gguf_open(s->options.model, &s->file, message);
  if (status == ATTN_OK) {
    status = model_read_params(&s->file, &s->params, message);
  }
  if (status == ATTN_OK) {
    status = tokenizer_create(&s->file, &s->tok, message);
  }
  if (status == ATTN_OK) {
    status = read_prompts(s, message);
  }
  if (status == ATTN_OK) {
    status = make_engines(s, message);
  }
  if (status == ATTN_OK) {
    status = model_create(&s->file, &s->params, s->engine, s->generation.max_tokens, &s->m, message);
  }
  return status == ATTN_OK ? lm_attention_allocate(s->attention, message) : status;
}

static attn_status answer(session *s, attn_message *message) {
  report r = {.options = &s->options,
              .tok = s->tok,
              .params = &s->params,
              .attention = s->attention,
              .threads = s->threads,
              .requests = s->requests,
              .count = s->options.prompt_count};
  attn_status status = generate_run(s->m, &s->params, s->attention, &s->generation, s->requests,
                                    s->options.prompt_count, &r.stats, message);
  if (status == ATTN_OK && s->options.logits != NULL) {
    status = report_write_logits(&r, s->options.logits, message);
  }
  return status == ATTN_OK ? report_print(&r, message) : status;
}

static void close_session(session *s) {
  model_destroy(s->m);
  lm_attention_destroy(s->attention); /* before the engine, whose threads it borrows */
  gemm_destroy(s->engine);
  for (size_t i = 0; s->requests != NULL && i < s->options.prompt_count; i++) {
    lm_ids_free(&s->requests[i].prompt);
    lm_ids_free(&s->requests[i].output);
    free(s->requests[i].first_logits);
  }
  free(s->requests);
  free(s->lengths);
  tokenizer_free(s->tok);
  gguf_close(&s->file);
  lm_options_free(&s->options);
}

static int run_generate(int count, char **arguments) {
  session s = {0};
  attn_message message = {ATTN_OK, ""};
  attn_status status = lm_options_parse(count, arguments, &s.options, &message);
  if (status == ATTN_OK && s.options.help) {
    (void)fputs(lm_options_help(), stdout);
  } else if (status == ATTN_OK) {
    status = load(&s, &message);
    if (status == ATTN_OK) {
      status = answer(&s, &message);
    }
  }
  close_session(&s);
  if (status != ATTN_OK) {
    (void)fprintf(stderr, "attn-lm: %s\n", message.text);
  }
  return lm_exit_code(status);
}

int main(int argc, char **argv) {
  gemm_prepare_process(argv);
  (void)signal(SIGXFSZ, SIG_IGN); /* a write beyond the file size limit fails and is told, as any other */
  if (argc >= 2 && strcmp(argv[1], "generate") == 0) {
    return run_generate(argc - 2, argv + 2);
  }
  if (argc == 2 && strcmp(argv[1], "--help") == 0) {
    (void)fputs(usage, stdout);
    return 0;
  }
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    (void)printf("attn-lm %s\n", attn_version());
    return 0;
  }
  if (argc < 2) {
    (void)fprintf(stderr, "attn-lm: no command; accepted are generate, --help, --version\n");
  } else {
    const lm_quoted found = lm_quote(argv[1], strlen(argv[1]));
    (void)fprintf(stderr, "attn-lm: unknown command %s; accepted are generate, --help, --version\n", found.text);
  }
  return 2;
}
