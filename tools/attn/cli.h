/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h: what the subcommands of `attn` share: exit codes, the one-line error, flags, strict numbers, memory. A
 * function that can fail returns 0 or an exit code, and writes the line of that failure into a cli_report. The command
 * uses nothing of the library but its public headers; `check` alone lives elsewhere (tests/check/check.h).
 */
#ifndef ATTN_TOOL_CLI_H
#define ATTN_TOOL_CLI_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "attn/attn.h"
#include "json_write.h"

#if defined(__GNUC__)
#define CLI_PRINTF(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))
#else
#define CLI_PRINTF(format_index, first_argument)
#endif

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_BAD_INPUT = 2 };

/* The line that a failing command prints. */
typedef struct cli_report {
  char text[768];
} cli_report;

/* Write the line and return `code`. */
int cli_fail(cli_report *report, int code, const char *format, ...) CLI_PRINTF(3, 4);

/* The library's failure as an exit code; its message becomes the line. */
int cli_library(cli_report *report, attn_status status, const attn_message *message);

/* Print "COMMAND: line" on standard error, in one line whatever the text holds, and return `code`. */
int cli_print_failure(const char *command, const cli_report *report, int code);

/* Flush standard output: CLI_OK, or CLI_FAILED when something of it could not be written. */
int cli_flush(const char *command);

/* Whether `bytes` could lie in this machine's memory: at most three quarters of it. */
int cli_fits_memory(uint64_t bytes);

/* Memory of `bytes` (at least 1), all zeros or all 0xFF (NaN in every float type, -1 in every integer), aligned to
   ATTN_WORKSPACE_ALIGN; NULL when it cannot be had. What exceeds the machine's memory is never tried. free() it. */
void *cli_alloc(uint64_t bytes, int poisoned);

/* *product = a * b and 1, or 0 when that does not fit. */
int cli_multiply(uint64_t a, uint64_t b, uint64_t *product);

/* A whole decimal string as a number; 0 when it is anything else. */
int cli_parse_int(const char *text, int64_t *value);
int cli_parse_float(const char *text, float *value);

enum { CLI_MAX_WORDS = 64 };

/* The flags of run, explain, info and bench. NULL, 0 and -1 mean "not given". */
typedef struct cli_options {
  const char *input;
  const char *output;
  attn_device_kind device;
  int32_t device_index;
  const char *backend;
  int32_t num_threads;
  int64_t num_splits;
  int batch_invariant;
  int unchecked;
  int poison;
  int describe;
  int matrix;
  int json;
  int help;
  int csv;
  int list;
  const char *filter;
  const char *fault;
  float seconds;              /* default 4 */
  int64_t rounds;             /* 0: not given */
  int64_t seed;               /* default 1 */
  char *words[CLI_MAX_WORDS]; /* explain, bench: the NAME=VALUE arguments */
  size_t num_words;
} cli_options;

enum { CLI_FOR_RUN = 1, CLI_FOR_EXPLAIN = 2, CLI_FOR_INFO = 4, CLI_FOR_BENCH = 8 };

enum { CLI_BENCH_THREADS = 64 }; /* the most that `attn bench` takes: LIMIT_MAX_THREADS */

/* Read the flags that the command (one of CLI_FOR_*) takes from argv[1] on. */
int cli_parse_options(int argc, char **argv, int command, cli_options *options, cli_report *report);

/* The context that the options ask for. */
int cli_make_context(const cli_options *options, attn_context **context, cli_report *report);

/* The help page of a command ("" for the tool) on standard output; 0 when there is no such command. */
int cli_print_help(const char *command);
/* Its rows for the command's flags (one of CLI_FOR_*). */
void cli_print_flags(int command);
/* The names of all commands with commas. */
void cli_command_names(char *text, size_t bytes);

int cli_run_command(int argc, char **argv);
int cli_explain_command(int argc, char **argv);
int cli_info_command(int argc, char **argv);
int cli_bench_command(int argc, char **argv);

/* What a context is, as members of the open JSON object. */
void cli_write_device(const attn_context_info *info, json_writer *w);

/* The support matrix of this build, asked from the library backend by backend: as Markdown or JSON. */
int cli_print_matrix(const attn_context *context, int json, cli_report *report);

#endif
