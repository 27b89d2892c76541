/* SPDX-License-Identifier: Apache-2.0 */
/* check_main.c: the command line of `attn check`. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "check_report.h"

static const char help[] =
    "usage: attn check [--backend all|NAME] [--cases N] [--seed S] [--case K] [--op all|attention|cache_write|\n"
    "                  cache_gather|cache_copy|cache_swap|merge] [--threads N] [--jobs N] [--pairs]\n"
    "                  [--list-options] [--quiet]\n"
    "                  [--fault NAME|all|list] [--help]\n"
    "\n"
    "Runs every backend of this machine on random problems against the numerical contract.\n"
    "\n"
    "  --backend NAME   one backend; all (default): every backend that is built\n"
    "  --cases N        number of cases, default 2000\n"
    "  --seed S         default 1; a case is a function of its seed and index alone\n"
    "  --case K         run case K only, as a failure's line says\n"
    "  --op NAME        only cases of one operation\n"
    "  --threads N      most threads of a context, default 4; each case draws its own count\n"
    "  --jobs N         worker processes, default one per processor\n"
    "  --pairs          print how often each pair of option values was drawn\n"
    "  --list-options   print the option table and stop\n"
    "  --quiet          print failures and the last line only\n"
    "  --fault NAME     test-only build: activate one planted fault (all: each in turn; list: print them) and\n"
    "                   succeed when a case catches it\n"
    "\n"
    "Exit status: 0 every case passed (with --fault: caught), 1 a case failed (a fault was not caught), 2 bad usage.\n";

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

/* The operations of --op as a mask over CHECK_ATTENTION ... CHECK_SWAP. */
static int parse_op(const char *name, unsigned *ops) {
  const struct {
    const char *name;
    unsigned ops;
  } known[] = {{"all", ~0u},
               {"attention", 1u << CHECK_ATTENTION | 1u << CHECK_ENCODER | 1u << CHECK_CROSS | 1u << CHECK_CROSS_CACHE},
               {"cache_write", 1u << CHECK_WRITE},
               {"cache_gather", 1u << CHECK_GATHER},
               {"cache_copy", 1u << CHECK_COPY},
               {"cache_swap", 1u << CHECK_SWAP},
               {"merge", 1u << CHECK_MERGE}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (strcmp(name, known[i].name) == 0) {
      *ops = known[i].ops;
      return 1;
    }
  }
  return 0;
}

typedef struct numbered {
  const char *flag;
  uint64_t low;
  uint64_t high;
  uint64_t *value;
} numbered;

static int parse(int argc, char **argv, check_settings *s) {
  uint64_t threads = (uint64_t)s->threads;
  uint64_t jobs = (uint64_t)s->jobs;
  const numbered numbers[] = {{"--cases", 1, (uint64_t)1 << 40, &s->cases},
                              {"--seed", 0, UINT64_MAX, &s->seed},
                              {"--case", 0, (uint64_t)1 << 62, &s->only},
                              {"--threads", 1, 64, &threads},
                              {"--jobs", 1, CHECK_MAX_JOBS, &jobs}};
  for (int i = 1; i < argc; i++) {
    const char *flag = argv[i];
    if (strcmp(flag, "--pairs") == 0) {
      s->pairs = 1;
      continue;
    }
    if (strcmp(flag, "--quiet") == 0) {
      s->quiet = 1;
      continue;
    }
    const char *value = i + 1 < argc ? argv[i + 1] : NULL;
    int known = strcmp(flag, "--backend") == 0 || strcmp(flag, "--op") == 0 || strcmp(flag, "--fault") == 0;
    const numbered *number = NULL;
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
      number = strcmp(flag, numbers[n].flag) == 0 ? &numbers[n] : number;
    }
    if (!known && number == NULL) {
      return usage("unknown argument '%s' (attn check --help lists what is accepted)", flag);
    }
    if (value == NULL) {
      return usage("%s needs a value", flag);
    }
    i++;
    if (number != NULL) {
      if (!parse_number(value, number->low, number->high, number->value)) {
        fprintf(stderr, "attn check: %s '%s' is not accepted: a whole number from %llu to %llu\n", flag, value,
                (unsigned long long)number->low, (unsigned long long)number->high);
        return 2;
      }
      s->one_case |= strcmp(flag, "--case") == 0;
    } else if (strcmp(flag, "--backend") == 0) {
      s->backend = value;
    } else if (strcmp(flag, "--fault") == 0) {
      s->fault = value;
    } else if (!parse_op(value, &s->ops)) {
      return usage(
          "--op '%s' is not accepted: all, attention, cache_write, cache_gather, cache_copy, cache_swap or merge",
          value);
    }
  }
  s->threads = (int32_t)threads;
  s->jobs = (int32_t)jobs;
  return 0;
}

int attn_check_main(int argc, char **argv) {
  check_settings settings = {.backend = "all", .cases = 2000, .seed = 1, .ops = ~0u, .threads = 4};
  settings.jobs = check_default_jobs();
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      fputs(help, stdout);
      return 0;
    }
  }
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--list-options") == 0) {
      check_list_options(stdout);
      return 0;
    }
  }
  int status = parse(argc, argv, &settings);
  return status != 0 ? status : check_execute(&settings);
}
