/* SPDX-License-Identifier: Apache-2.0 */
/* Flags of run, explain, info and bench, from one table, which their help is printed from. A flag's value is its next
   argument, or follows "=". */
#include <string.h>

#include "cli.h"
#include "help_text.h"

typedef enum flag_id {
  FLAG_OUTPUT,
  FLAG_DEVICE,
  FLAG_BACKEND,
  FLAG_BATCH_INVARIANT,
  FLAG_SPLITS,
  FLAG_THREADS,
  FLAG_UNCHECKED,
  FLAG_POISON,
  FLAG_DESCRIBE,
  FLAG_MATRIX,
  FLAG_JSON,
  FLAG_CSV,
  FLAG_FILTER,
  FLAG_LIST,
  FLAG_SECONDS,
  FLAG_ROUNDS,
  FLAG_SEED,
  FLAG_FAULT,
  FLAG_HELP
} flag_id;

#define RUN CLI_FOR_RUN
#define EXPLAIN CLI_FOR_EXPLAIN
#define INFO CLI_FOR_INFO
#define BENCH CLI_FOR_BENCH
#define CALLS (RUN | EXPLAIN)

/* A flag's row; two rows may have one name where its meaning differs between commands. */
static const struct {
  const char *name;
  flag_id id;
  const char *value; /* NULL: it takes none */
  int commands;
  const char *help;
} flags[] = {
    {"-o", FLAG_OUTPUT, "OUT.safetensors", RUN,
     "where the results go (required): a whole new file or none; may be IN.safetensors"},
    {"-o", FLAG_OUTPUT, "OUT.safetensors", EXPLAIN, "accepted as attn run has it; nothing is written"},
    {"--device", FLAG_DEVICE, "cpu|cuda:N|opencl:N", CALLS | INFO | BENCH, "where (default cpu)"},
    {"--backend", FLAG_BACKEND, "NAME", CALLS,
     "this backend of `attn info`, or a refusal; beats ATTN_BACKEND (default auto: the library chooses)"},
    {"--backend", FLAG_BACKEND, "NAME", BENCH,
     "this backend of `attn info`, or all that are built, one after the other; beats ATTN_BACKEND (default auto: the "
     "library chooses)"},
    {"--threads", FLAG_THREADS, "N", CALLS | INFO, "threads of a call, 1 to 1024 (default 1)"},
    {"--threads", FLAG_THREADS, "N", BENCH,
     "threads of a call, 1 to 64 (default 1); the limits are measured on as many"},
    {"--splits", FLAG_SPLITS, "N", CALLS | BENCH,
     "pieces that each row's keys are cut into, 1 to 4096, 0 automatic; beats the key num_splits (default 0)"},
    {"--batch-invariant", FLAG_BATCH_INVARIANT, NULL, CALLS | BENCH,
     "a row's bits depend on nothing but its own q, keys and values"},
    {"--unchecked", FLAG_UNCHECKED, NULL, CALLS | BENCH,
     "bad slots and block ids are skipped, not errors; beats the key checked"},
    {"--poison", FLAG_POISON, NULL, RUN, "fill every byte that the call does not own with NaN first"},
    {"--poison", FLAG_POISON, NULL, EXPLAIN, "accepted as attn run has it; nothing is computed"},
    {"--describe", FLAG_DESCRIBE, NULL, RUN,
     "print the format of the files (operations, keys, tensors, rows, results) and stop"},
    {"--matrix", FLAG_MATRIX, NULL, INFO,
     "print instead what each backend of this build serves, as Markdown, asked from the library"},
    {"--json", FLAG_JSON, NULL, RUN, "with --describe: as one JSON object"},
    {"--filter", FLAG_FILTER, "TEXT", BENCH, "only the built-in cases whose name holds TEXT (default all of them)"},
    {"--list", FLAG_LIST, NULL, BENCH, "print the built-in cases and the words of each, and stop"},
    {"--seconds", FLAG_SECONDS, "X", BENCH,
     "seconds for the rounds of each case, above 0 to 3600 (default 4), in ten sittings; there are at least ten"},
    {"--rounds", FLAG_ROUNDS, "N", BENCH,
     "so many rounds of each case, 1 to 1000, whatever --seconds says; above 5 the next multiple of 5"},
    {"--seed", FLAG_SEED, "N", BENCH, "of the random data, 0 to 2^63 - 1 (default 1)"},
    {"--fault", FLAG_FAULT, "NAME", BENCH,
     "test-only build (attn-faulty): plant a fault of `attn-faulty check --fault list`"},
    {"--json", FLAG_JSON, NULL, EXPLAIN | INFO | BENCH, "print one JSON object instead of text"},
    {"--csv", FLAG_CSV, NULL, BENCH, "print a line of names, then a line for each case, instead of the table"},
    {"--help", FLAG_HELP, NULL, CALLS | INFO | BENCH, "this text; also -h"},
};

/* "-o OUT.safetensors", or the name alone. */
static void spell_flag(size_t i, char *text, size_t bytes) {
  snprintf(text, bytes, "%s%s%s", flags[i].name, flags[i].value != NULL ? " " : "",
           flags[i].value != NULL ? flags[i].value : "");
}

void cli_print_flags(int command) {
  for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); ++i) {
    char left[64];
    if ((flags[i].commands & command) != 0) {
      spell_flag(i, left, sizeof(left));
      help_row(left, flags[i].help);
    }
  }
}

static int find_flag(const char *word, int command, size_t *found, const char **value) {
  for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); ++i) {
    const char *name = flags[i].id == FLAG_HELP && strcmp(word, "-h") == 0 ? "-h" : flags[i].name;
    size_t length = strlen(name);
    if ((flags[i].commands & command) == 0 || strncmp(word, name, length) != 0) {
      continue;
    }
    if (word[length] == '\0' || (word[length] == '=' && flags[i].value != NULL)) {
      *found = i;
      *value = word[length] == '=' ? word + length + 1 : NULL;
      return 1;
    }
  }
  return 0;
}

static int read_device(const char *value, cli_options *options, cli_report *report) {
  const struct {
    const char *spelling;
    attn_device_kind kind;
  } kinds[] = {
#define DEVICE_ROW(name, number, spelling, dlpack, built) {spelling, name},
      ATTN_DEVICE_LIST(DEVICE_ROW)
#undef DEVICE_ROW
  };
  for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); ++i) {
    size_t length = strlen(kinds[i].spelling);
    int64_t index = 0;
    if (strncmp(value, kinds[i].spelling, length) != 0) {
      continue;
    }
    int is_cpu = kinds[i].kind == ATTN_DEVICE_CPU;
    int numbered =
        value[length] == ':' && cli_parse_int(value + length + 1, &index) && index >= 0 && index <= INT32_MAX;
    if (is_cpu ? value[length] == '\0' : numbered) {
      options->device = kinds[i].kind;
      options->device_index = (int32_t)index;
      return CLI_OK;
    }
  }
  return cli_fail(report, CLI_BAD_INPUT, "--device is \"%.64s\"; accepted: cpu, cuda:N, opencl:N", value);
}

static int read_count(const char *name, const char *value, int64_t low, int64_t high, int64_t *count,
                      cli_report *report) {
  if (!cli_parse_int(value, count) || *count < low || *count > high) {
    return cli_fail(report, CLI_BAD_INPUT, "%s is \"%.64s\"; accepted: %lld to %lld", name, value, (long long)low,
                    (long long)high);
  }
  return CLI_OK;
}

static int read_seconds(const char *value, float *seconds, cli_report *report) {
  if (!cli_parse_float(value, seconds) || !(*seconds > 0.0f && *seconds <= 3600.0f)) {
    return cli_fail(report, CLI_BAD_INPUT, "--seconds is \"%.64s\"; accepted: above 0, at most 3600", value);
  }
  return CLI_OK;
}

static int read_flag(flag_id id, int command, const char *value, cli_options *options, cli_report *report) {
  int64_t count = 0;
  int code = CLI_OK;
  switch (id) {
  case FLAG_OUTPUT:
    options->output = value;
    break;
  case FLAG_DEVICE:
    return read_device(value, options, report);
  case FLAG_BACKEND:
    options->backend = value;
    break;
  case FLAG_SPLITS:
    return read_count("--splits", value, 0, 4096, &options->num_splits, report);
  case FLAG_THREADS:
    code = read_count("--threads", value, 1, command == CLI_FOR_BENCH ? CLI_BENCH_THREADS : 1024, &count, report);
    options->num_threads = (int32_t)count;
    break;
  case FLAG_BATCH_INVARIANT:
    options->batch_invariant = 1;
    break;
  case FLAG_UNCHECKED:
    options->unchecked = 1;
    break;
  case FLAG_POISON:
    options->poison = 1;
    break;
  case FLAG_DESCRIBE:
    options->describe = 1;
    break;
  case FLAG_MATRIX:
    options->matrix = 1;
    break;
  case FLAG_JSON:
    options->json = 1;
    break;
  case FLAG_CSV:
    options->csv = 1;
    break;
  case FLAG_FAULT:
    options->fault = value;
    break;
  case FLAG_FILTER:
    options->filter = value;
    break;
  case FLAG_LIST:
    options->list = 1;
    break;
  case FLAG_SECONDS:
    return read_seconds(value, &options->seconds, report);
  case FLAG_ROUNDS:
    return read_count("--rounds", value, 1, 1000, &options->rounds, report);
  case FLAG_SEED:
    return read_count("--seed", value, 0, INT64_MAX, &options->seed, report);
  case FLAG_HELP:
    options->help = 1;
    break;
  }
  return code;
}

/* Whether a word is NAME=VALUE; a path with "=" in it has a dot or a slash before. */
static int is_assignment(const char *word) {
  size_t length = strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789_");
  return length > 0 && word[length] == '=';
}

/* A word that is no flag: the input file or, for explain and bench, NAME=VALUE. Returns 0 for a word that has no place.
   */
static int read_word(char *word, int command, cli_options *options) {
  if ((command == CLI_FOR_EXPLAIN || command == CLI_FOR_BENCH) && options->input == NULL && is_assignment(word)) {
    if (options->num_words == CLI_MAX_WORDS) {
      return 0;
    }
    options->words[options->num_words++] = word;
    return 1;
  }
  if (command == CLI_FOR_INFO || options->input != NULL || options->num_words > 0) {
    return 0;
  }
  options->input = word;
  return 1;
}

static int check_complete(int command, const cli_options *options, cli_report *report) {
  if (options->json && options->csv) {
    return cli_fail(report, CLI_BAD_INPUT, "--json and --csv are given; accepted: one of both");
  }
  if (options->help || options->describe || command == CLI_FOR_INFO || command == CLI_FOR_BENCH) {
    return CLI_OK;
  }
  if (options->input == NULL && options->num_words == 0) {
    return cli_fail(report, CLI_BAD_INPUT, "IN.safetensors is missing (--help shows the use)");
  }
  if (command == CLI_FOR_RUN && options->json) {
    return cli_fail(report, CLI_BAD_INPUT, "--json is not used without --describe: the results are the file after -o");
  }
  if (command == CLI_FOR_RUN && options->output == NULL) {
    return cli_fail(report, CLI_BAD_INPUT, "-o OUT.safetensors is missing (--help shows the use)");
  }
  return CLI_OK;
}

int cli_parse_options(int argc, char **argv, int command, cli_options *options, cli_report *report) {
  unsigned seen = 0; /* bits of flag_id: a flag given twice is more likely a mistake than a wish */
  memset(options, 0, sizeof(*options));
  options->num_splits = -1;
  options->seconds = 4.0f;
  options->seed = 1;
  for (int i = 1; i < argc; ++i) {
    size_t found = 0;
    const char *value = NULL;
    if (argv[i][0] != '-' || argv[i][1] == '\0') {
      if (!read_word(argv[i], command, options)) {
        return cli_fail(report, CLI_BAD_INPUT, "\"%.64s\" is one argument too many", argv[i]);
      }
      continue;
    }
    if (!find_flag(argv[i], command, &found, &value)) {
      return cli_fail(report, CLI_BAD_INPUT, "%.64s is not a flag of this command (--help lists them)", argv[i]);
    }
    if ((seen >> flags[found].id & 1u) != 0) {
      return cli_fail(report, CLI_BAD_INPUT, "%s is given twice; accepted: once", flags[found].name);
    }
    seen |= 1u << flags[found].id;
    if (flags[found].value != NULL && value == NULL) {
      value = i + 1 < argc ? argv[++i] : NULL;
      if (value == NULL) {
        return cli_fail(report, CLI_BAD_INPUT, "%s needs a value (--help shows the use)", flags[found].name);
      }
    }
    int code = read_flag(flags[found].id, command, value, options, report);
    if (code != CLI_OK) {
      return code;
    }
  }
  return check_complete(command, options, report);
}

int cli_make_context(const cli_options *options, attn_context **context, cli_report *report) {
  attn_context_options wanted = ATTN_CONTEXT_OPTIONS_INIT;
  attn_message message;
  wanted.device = options->device;
  wanted.device_index = options->device_index;
  wanted.num_threads = options->num_threads;
  return cli_library(report, attn_context_create(&wanted, context, &message), &message);
}
