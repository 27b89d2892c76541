/* SPDX-License-Identifier: Apache-2.0 */
/* check_main.c: the command line of `attn check`. One table holds all that is known of a flag; the help is printed from
 * it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "check_report.h"
#include "help_text.h"

const char attn_check_purpose[] = "every backend of this machine against the numerical contract, on random problems";

typedef enum flag_id {
  FLAG_BACKEND,
  FLAG_CASES,
  FLAG_SEED,
  FLAG_CASE,
  FLAG_OP,
  FLAG_WITH,
  FLAG_THREADS,
  FLAG_JOBS,
  FLAG_EXECUTOR,
  FLAG_PAIRS,
  FLAG_LIST_OPTIONS,
  FLAG_QUIET,
  FLAG_JSON,
  FLAG_FAULT,
  FLAG_HELP,
  FLAG_COUNT
} flag_id;

/* The operations of --op as masks over CHECK_ATTENTION ... CHECK_REQUANTISE. */
static const struct {
  const char *name;
  unsigned ops;
} operations[] = {
    {"all", CHECK_KV_OPS},
    {"attention", 1u << CHECK_ATTENTION | 1u << CHECK_ENCODER | 1u << CHECK_CROSS | 1u << CHECK_CROSS_CACHE},
    {"cache_write", 1u << CHECK_WRITE},
    {"cache_gather", 1u << CHECK_GATHER},
    {"cache_copy", 1u << CHECK_COPY},
    {"cache_swap", 1u << CHECK_SWAP},
    {"cache_requantise", 1u << CHECK_REQUANTISE},
    {"merge", 1u << CHECK_MERGE},
    {"latent", CHECK_LATENT_OPS},
    {"mla_mqa", 1u << CHECK_MQA},
    {"mla_mha", 1u << CHECK_MHA},
    {"mla_layer", 1u << CHECK_LAYER}};

static const struct {
  const char *name;
  const char *value; /* NULL: it takes none */
  uint64_t low;      /* a number from low to high; high 0: a word */
  uint64_t high;
  const char *help;
} flags[FLAG_COUNT] = {
    [FLAG_BACKEND] = {"--backend", "NAME", 0, 0, "one backend of `attn info`; all (default): every one that is built"},
    [FLAG_CASES] = {"--cases", "N", 1, (uint64_t)1 << 40, "number of cases, 1 to 2^40 (default 2000)"},
    [FLAG_SEED] = {"--seed", "S", 0, UINT64_MAX,
                   "0 to 2^64 - 1 (default 1); a case is a function of its seed and index alone"},
    [FLAG_CASE] = {"--case", "K", 0, (uint64_t)1 << 62, "run case K only, as a failure's line says"},
    [FLAG_OP] =
        {"--op", "NAME", 0, 0,
         "only cases of one operation; all (default): those over rows of K and V; latent: all over latent rows: "},
    [FLAG_WITH] = {"--with", "OPTION=VALUE", 0, 0,
                   "only cases whose option has this value, both as --list-options names them; may be repeated: of one "
                   "option either value will do, of several each counts"},
    [FLAG_THREADS] = {"--threads", "N", 1, 64,
                      "most threads of a context, 1 to 64 (default 4); each case draws its own count"},
    [FLAG_JOBS] = {"--jobs", "N", 1, CHECK_MAX_JOBS, "worker processes, 1 to 64 (default one per processor)"},
    [FLAG_EXECUTOR] = {"--executor", "WHOSE", 0, 0,
                       "own: threads are always plain ones of the checker, for tools that look into threads; drawn "
                       "(default): each case draws those or the library's pool"},
    [FLAG_PAIRS] = {"--pairs", NULL, 0, 0, "print how often each pair of option values was drawn"},
    [FLAG_LIST_OPTIONS] = {"--list-options", NULL, 0, 0, "print the table that cases are drawn from, and stop"},
    [FLAG_QUIET] = {"--quiet", NULL, 0, 0, "print failures and the last line only"},
    [FLAG_JSON] = {"--json", NULL, 0, 0, "print one JSON object instead of text"},
    [FLAG_FAULT] = {"--fault", "NAME", 0, 0,
                    "test-only build (attn-faulty): plant one fault, all in turn, or list them; 0 when caught"},
    [FLAG_HELP] = {"--help", NULL, 0, 0, "this text; also -h"},
};

static void op_names(char *text, size_t bytes) {
  text[0] = '\0';
  for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%s", i > 0 ? ", " : "", operations[i].name);
  }
}

void attn_check_help(void) {
  char text[400];
  char names[200];
  printf("attn check: %s\n\nUsage:\n  attn check [flags]\n\n", attn_check_purpose);
  help_paragraph(
      "Draws problems with hostile values and lengths, lays them out between guard pages with canaries around "
      "what a call owns, and judges each result by the bounds of the contract (docs/numerics.md). Prints the "
      "worst fraction of the bounds that each backend came to; above 1 fails. A failed case prints the "
      "command that repeats it.\n");
  snprintf(text, sizeof text,
           "--json gives an object: cases, seed, failed, complete, seconds, backends (name, worst_out, worst_fp8_out, "
           "worst_lse, "
           "worst_merge_out, worst_merge_lse), pairs (possible, least, rarest_first, rarest_second; with --pairs also "
           "drawn: first, second, count), failures (backend, what, repeat; the first %d).",
           CHECK_MAX_FAILURES);
  help_paragraph(text);
  puts("\nFlags:");
  op_names(names, sizeof names);
  for (int i = 0; i < FLAG_COUNT; i++) {
    char left[40];
    snprintf(left, sizeof left, "%s %s", flags[i].name, flags[i].value != NULL ? flags[i].value : "");
    snprintf(text, sizeof text, "%s%s", flags[i].help, i == FLAG_OP ? names : "");
    help_row(left, text);
  }
  puts("\nExamples:\n"
       "  attn check --cases 200\n"
       "  attn check --backend CPU_ATTN --op merge --cases 5000 --seed 3 --json\n");
  help_paragraph(
      "Exit status: 0 when every case passed (with --fault: each fault was caught); 1 when one failed; 2 for "
      "bad input, with one line on standard error.");
}

static int usage(const char *format, const char *what) {
  fputs("attn check: ", stderr);
  fprintf(stderr, format, what);
  fputc('\n', stderr);
  return 2;
}

static int parse_number(const char *text, uint64_t low, uint64_t high, uint64_t *number) {
  char *end = NULL;
  errno = 0;
  unsigned long long value = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
  if (end == NULL || *end != '\0' || errno != 0 || value < low || value > high) {
    return 0;
  }
  *number = value;
  return 1;
}

static int parse_op(const char *name, unsigned *ops) {
  for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
    if (strcmp(name, operations[i].name) == 0) {
      *ops = operations[i].ops;
      return 0;
    }
  }
  char names[200];
  op_names(names, sizeof names);
  fprintf(stderr, "attn check: --op '%s' is not accepted: %s\n", name, names);
  return 2;
}

/* What a run is told to do, and what is printed in its place. */
typedef struct wishes {
  check_settings settings;
  int help;
  int list_options;
} wishes;

static int apply(flag_id id, const char *value, wishes *w) {
  check_settings *s = &w->settings;
  uint64_t number = 0;
  if (flags[id].high != 0 && !parse_number(value, flags[id].low, flags[id].high, &number)) {
    fprintf(stderr, "attn check: %s '%s' is not accepted: a whole number from %llu to %llu\n", flags[id].name, value,
            (unsigned long long)flags[id].low, (unsigned long long)flags[id].high);
    return 2;
  }
  switch (id) {
  case FLAG_BACKEND:
    s->backend = value;
    break;
  case FLAG_CASES:
    s->cases = number;
    break;
  case FLAG_SEED:
    s->seed = number;
    break;
  case FLAG_CASE:
    s->only = number;
    s->one_case = 1;
    break;
  case FLAG_OP:
    return parse_op(value, &s->ops);
  case FLAG_WITH:
    if (s->num_with == CHECK_MAX_WITH) {
      return usage("--with '%s' is one too many: at most 16 are accepted", value);
    }
    if (!check_parse_value(value, &s->with[s->num_with++])) {
      return usage("--with '%s' is not accepted: OPTION=VALUE as attn check --list-options names them", value);
    }
    break;
  case FLAG_THREADS:
    s->threads = (int32_t)number;
    break;
  case FLAG_JOBS:
    s->jobs = (int32_t)number;
    break;
  case FLAG_EXECUTOR:
    s->own_executor = strcmp(value, "own") == 0;
    if (!s->own_executor && strcmp(value, "drawn") != 0) {
      return usage("--executor '%s' is not accepted: drawn or own", value);
    }
    break;
  case FLAG_PAIRS:
    s->pairs = 1;
    break;
  case FLAG_LIST_OPTIONS:
    w->list_options = 1;
    break;
  case FLAG_QUIET:
    s->quiet = 1;
    break;
  case FLAG_JSON:
    s->json = 1;
    break;
  case FLAG_FAULT:
    s->fault = value;
    break;
  case FLAG_HELP:
  case FLAG_COUNT:
    w->help = 1;
    break;
  }
  return 0;
}

static flag_id find_flag(const char *word) {
  int i = 0;
  if (strcmp(word, "-h") == 0) {
    return FLAG_HELP;
  }
  while (i < FLAG_COUNT && strcmp(flags[i].name, word) != 0) {
    i++;
  }
  return (flag_id)i;
}

static int parse(int argc, char **argv, wishes *w) {
  for (int i = 1; i < argc; i++) {
    flag_id id = find_flag(argv[i]);
    const char *value = NULL;
    if (id == FLAG_COUNT) {
      return usage("unknown argument '%s' (attn check --help lists what is accepted)", argv[i]);
    }
    if (flags[id].value != NULL) {
      value = i + 1 < argc ? argv[++i] : NULL;
      if (value == NULL) {
        return usage("%s needs a value", flags[id].name);
      }
    }
    int status = apply(id, value, w);
    if (status != 0) {
      return status;
    }
  }
  if (w->settings.json && w->settings.fault != NULL) {
    return usage("%s is not used with --fault", "--json");
  }
  return 0;
}

/* A backend that attends to latent rows alone is asked about these. */
static void choose_stream(check_settings *s) {
  attn_backend_info info;
  for (size_t i = 0; s->ops == CHECK_KV_OPS && attn_backend_get(i, &info); i++) {
    if (strcmp(s->backend, info.name) == 0 && info.rows == ATTN_ROWS_LATENT) {
      s->ops = CHECK_LATENT_OPS;
    }
  }
}

static int flush(int status) {
  if (fflush(stdout) != 0 || ferror(stdout)) {
    fprintf(stderr, "attn check: standard output cannot be written: %s\n", strerror(errno));
    return 1;
  }
  return status;
}

int attn_check_main(int argc, char **argv) {
  wishes w = {.settings = {.backend = "all", .cases = 2000, .seed = 1, .ops = CHECK_KV_OPS, .threads = 4}};
  w.settings.jobs = check_default_jobs();
  int status = parse(argc, argv, &w);
  if (status != 0) {
    return status;
  }
  if (w.help) {
    attn_check_help();
    return flush(0);
  }
  if (w.list_options) {
    check_list_options(stdout, w.settings.json);
    return flush(0);
  }
  choose_stream(&w.settings);
  return flush(check_execute(&w.settings));
}
