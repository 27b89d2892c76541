/* SPDX-License-Identifier: Apache-2.0 */
/* The command `attn`: which subcommand, and what answers without one. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <string.h>

#include "check.h"
#include "cli.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
} commands[] = {
    {"info", cli_info_command},   {"explain", cli_explain_command}, {"check", attn_check_main},
    {"bench", cli_bench_command}, {"run", cli_run_command},
};

int main(int argc, char **argv) {
  const char *word = argc > 1 ? argv[1] : "--help";
  signal(SIGXFSZ, SIG_IGN); /* a write beyond the file size limit fails and is told, as any other */
  for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); ++i) {
    if (strcmp(commands[i].name, word) == 0) {
      return commands[i].run(argc - 1, argv + 1);
    }
  }
  if (strcmp(word, "--version") == 0) {
    printf("attn %s\n", attn_version());
    return cli_flush("attn");
  }
  cli_report report;
  char names[128];
  cli_command_names(names, sizeof(names));
  if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
    const char *command = argc > 2 ? argv[2] : "";
    if (!cli_print_help(command)) {
      cli_fail(&report, CLI_BAD_INPUT, "%.64s is no command; accepted: %s", command, names);
      return cli_print_failure("attn", &report, CLI_BAD_INPUT);
    }
    return cli_flush("attn");
  }
  cli_fail(&report, CLI_BAD_INPUT, "%.64s is no command; accepted: %s, --help, --version", word, names);
  return cli_print_failure("attn", &report, CLI_BAD_INPUT);
}
