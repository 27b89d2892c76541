/* SPDX-License-Identifier: Apache-2.0 */
/* attn-lm: a language-model runner on libattn. This file chooses the command and turns its status into an exit code. */
#define _POSIX_C_SOURCE 200809L
#include "lm_commands.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static attn_status (*const runners[LM_COMMAND_COUNT])(lm_session *s, attn_message *message) = {
    [LM_GENERATE] = command_generate,
    [LM_CHAT] = command_chat,
    [LM_PERPLEXITY] = command_perplexity,
    [LM_BENCH] = command_bench,
};

static int run_command(lm_command command, int count, char **arguments) {
  lm_session s = {0};
  attn_message message = {ATTN_OK, ""};
  attn_status status = lm_options_parse(command, count, arguments, &s.options, &message);
  if (status == ATTN_OK && s.options.help) {
    lm_options_print_help(command);
    status = session_flush(&message);
  } else if (status == ATTN_OK) {
    status = session_open(&s, &message);
    if (status == ATTN_OK) {
      status = runners[command](&s, &message);
    }
  }
  session_close(&s);
  if (status != ATTN_OK) {
    (void)fprintf(stderr, "attn-lm: %s\n", message.text);
  }
  return lm_exit_code(status);
}

int main(int argc, char **argv) {
  static const char accepted[] = "generate, chat, perplexity, bench, --help, --version";
  gemm_prepare_process(argv);
  (void)signal(SIGXFSZ, SIG_IGN); /* a write beyond the file size limit fails and is told, as any other */
  const lm_command command = argc >= 2 ? lm_command_from_name(argv[1]) : LM_COMMAND_COUNT;
  if (command != LM_COMMAND_COUNT) {
    return run_command(command, argc - 2, argv + 2);
  }
  if (argc == 2 && strcmp(argv[1], "--help") == 0) {
    lm_options_print_help(LM_COMMAND_COUNT);
    return 0;
  }
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    (void)printf("attn-lm %s\n", attn_version());
    return 0;
  }
  if (argc < 2) {
    (void)fprintf(stderr, "attn-lm: no command; accepted are %s\n", accepted);
  } else {
    const lm_quoted found = lm_quote(argv[1], strlen(argv[1]));
    (void)fprintf(stderr, "attn-lm: unknown command %s; accepted are %s\n", found.text, accepted);
  }
  return 2;
}
