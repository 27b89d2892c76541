/* SPDX-License-Identifier: Apache-2.0 */
/* `attn bench`: which cases on which backends, one after the other. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check.h"
#include "limits.h"

enum { MAX_BACKENDS = 16 };

/* What is measured: cases of the list, or the one problem that the command line gives. */
typedef struct work_list {
  bench_case *cases;
  size_t num_cases;
  char *given;                        /* words with blanks between, or the file's path; NULL: the list */
  const char *backends[MAX_BACKENDS]; /* NULL: the library chooses */
  size_t num_backends;
  bench_item *items; /* [cases, backends] */
  size_t num_items;
} work_list;

/* A call with what its progress line needs. */
typedef struct timed_call {
  bench_session *session;
  bench_call call;
  void *context;
} timed_call;

static int call_timed(void *context) {
  const timed_call *t = context;
  return t->call(t->context);
}

static void tick(void *context, double share) {
  bench_session *s = ((timed_call *)context)->session;
  double done = ((double)s->step + share) / (double)s->steps;
  progress_show(&s->line, "attn bench: %.0f %%, %.0f s left: %s", 100.0 * done, progress_left(&s->line, done, 1.0),
                s->item->name);
}

int bench_time(bench_session *s, bench_call call, void *context, bench_item *item) {
  timed_call t = {s, call, context};
  s->report->text[0] = '\0';
  if (!bench_measure(s->memory, &s->settings, &item->work, call_timed, &t, tick, item->rounds)) {
    return s->report->text[0] != '\0'
               ? CLI_FAILED
               : cli_fail(s->report, CLI_FAILED, "%d threads could not be started", s->settings.threads);
  }
  return CLI_OK;
}

/* ---- What to measure --------------------------------------------------------------------------------------------- */

/* A name that no case can be measured with is refused before any is tried. */
static int choose_backends(const cli_options *flags, const bench_session *s, work_list *list) {
  attn_backend_info info;
  attn_message message;
  const char *name;
  if (flags->backend == NULL || strcmp(flags->backend, "all") != 0) {
    list->backends[list->num_backends++] = flags->backend;
    return cli_library(s->report, attn_select_call(s->context, flags->backend, &name, NULL, &message), &message);
  }
  for (size_t i = 0; attn_backend_get(i, &info); ++i) {
    if ((info.rows & ATTN_ROWS_KV) != 0 && info.device == s->device.device && list->num_backends < MAX_BACKENDS) {
      list->backends[list->num_backends++] = info.name;
    }
  }
  return CLI_OK;
}

/* The words of the command line, as the cases of the list have them. */
static char *join_words(const cli_options *flags) {
  size_t bytes = 1;
  for (size_t i = 0; i < flags->num_words; ++i) {
    bytes += strlen(flags->words[i]) + 1;
  }
  char *text = calloc(bytes, 1);
  for (size_t i = 0; text != NULL && i < flags->num_words; ++i) {
    strcat(strcat(text, i > 0 ? " " : ""), flags->words[i]);
  }
  return text;
}

/* The cases whose names hold the filter, and that have a use for the flags. */
static int filter_cases(const cli_options *flags, work_list *list, cli_report *report) {
  int attention_only = flags->num_splits >= 0 || flags->batch_invariant;
  size_t kept = 0;
  list->cases = calloc(BENCH_MAX_CASES, sizeof(*list->cases));
  if (list->cases == NULL) {
    return cli_fail(report, CLI_FAILED, "no memory for the cases");
  }
  list->num_cases = bench_list(list->cases, BENCH_MAX_CASES);
  for (size_t i = 0; i < list->num_cases; ++i) {
    if ((flags->filter == NULL || strstr(list->cases[i].name, flags->filter) != NULL) &&
        (!attention_only || list->cases[i].attends)) {
      list->cases[kept++] = list->cases[i];
    }
  }
  list->num_cases = kept;
  return kept > 0 ? CLI_OK
                  : cli_fail(report, CLI_BAD_INPUT,
                             "--filter is \"%.64s\"; accepted: a part of a name that attn bench "
                             "--list prints",
                             flags->filter != NULL ? flags->filter : "");
}

static int make_list(const cli_options *flags, work_list *list, cli_report *report) {
  if (flags->input == NULL && flags->num_words == 0) {
    return filter_cases(flags, list, report);
  }
  if (flags->filter != NULL || flags->list) {
    return cli_fail(report, CLI_BAD_INPUT,
                    "%s picks from the list of cases, and a problem is given; accepted: one of both",
                    flags->filter != NULL ? "--filter" : "--list");
  }
  list->given = flags->input != NULL ? calloc(strlen(flags->input) + 1, 1) : join_words(flags);
  if (list->given == NULL) {
    return cli_fail(report, CLI_FAILED, "no memory for the problem");
  }
  if (flags->input != NULL) {
    strcpy(list->given, flags->input);
  }
  list->num_cases = 1;
  return CLI_OK;
}

static void print_list(const work_list *list, int json) {
  json_writer w;
  json_start(&w, stdout);
  if (json) {
    json_object(&w, NULL);
    json_array(&w, "cases");
  }
  for (size_t i = 0; i < list->num_cases; ++i) {
    if (json) {
      json_line(&w);
      json_object(&w, NULL);
      json_string(&w, "case", list->cases[i].name);
      json_string(&w, "problem", list->cases[i].words);
      json_end(&w);
    } else {
      printf("%s\n  %s\n", list->cases[i].name, list->cases[i].words);
    }
  }
  if (json) {
    json_finish(&w);
  }
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

static int make_items(work_list *list, cli_report *report) {
  list->num_items = list->num_cases * list->num_backends;
  list->items = calloc(list->num_items, sizeof(*list->items));
  for (size_t i = 0; list->items != NULL && i < list->num_items; ++i) {
    bench_item *item = &list->items[i];
    const bench_case *c = list->given == NULL ? &list->cases[i / list->num_backends] : NULL;
    item->name = c != NULL ? c->name : "given";
    item->words = c != NULL ? c->words : list->given;
    item->wanted = list->backends[i % list->num_backends];
    item->rounds = bench_rounds_new();
    if (item->rounds == NULL) {
      return cli_fail(report, CLI_FAILED, "no memory for the rounds");
    }
  }
  return list->items != NULL ? CLI_OK : cli_fail(report, CLI_FAILED, "no memory for the cases");
}

/* One sitting of one item. A refusal is kept, where it is the first that is heard of the item; anything else that fails
   ends the run. */
static int sit(bench_session *s, cli_options *flags, bench_item *item) {
  cli_report told;
  flags->backend = item->wanted;
  s->item = item;
  int code = s->flags->input != NULL ? bench_run_file(s, item) : bench_run_words(s, item);
  if (code == CLI_BAD_INPUT && s->sitting == 0) {
    item->refusal = calloc(1, sizeof(told.text));
    if (item->refusal != NULL) {
      memcpy(item->refusal, s->report->text, sizeof(told.text));
      return CLI_OK;
    }
  }
  if (code != CLI_OK) {
    told = *s->report;
    cli_fail(s->report, CLI_FAILED, "%s: %.600s", item->name, told.text);
  }
  return code == CLI_OK ? CLI_OK : CLI_FAILED;
}

static int measure_all(bench_session *s, cli_options *flags, work_list *list) {
  int code = CLI_OK;
  for (s->sitting = 0; code == CLI_OK && s->sitting < s->sittings; ++s->sitting) {
    s->memory_read[s->sitting] = bench_memory_read(s->memory, s->settings.threads);
    s->memory_copy[s->sitting] = bench_memory_copy(s->memory, s->settings.threads);
    for (size_t i = 0; code == CLI_OK && i < list->num_items; ++i, ++s->step) {
      if (list->items[i].refusal == NULL) {
        code = sit(s, flags, &list->items[i]);
      }
    }
  }
  return code;
}

/* Print what was measured, if anything was. */
static int report_all(bench_session *s, work_list *list) {
  json_writer w;
  for (size_t i = 0; i < list->num_items; ++i) {
    bench_item *item = &list->items[i];
    if (item->refusal == NULL) {
      bench_summarize(item->rounds, &item->work, &item->figures);
      s->arithmetic[s->num_items++] = item->figures.arithmetic.best;
    }
  }
  if (s->num_items == 0) {
    return cli_fail(s->report, CLI_BAD_INPUT, "%s", list->items[0].refusal);
  }
  bench_print_head(s, &w);
  for (size_t i = 0; i < list->num_items; ++i) {
    bench_print_item(s, &list->items[i], &w);
  }
  bench_print_end(s, &w);
  return CLI_OK;
}

static int run_session(cli_options *flags, work_list *list, bench_session *s) {
  int64_t rounds = flags->rounds;
  s->memory = bench_memory_new();
  if (s->memory == NULL) {
    return cli_fail(s->report, CLI_FAILED, "no memory to measure the limits on");
  }
  s->sittings = rounds > 0 && rounds < BENCH_SITTINGS ? (int)rounds : BENCH_SITTINGS;
  s->settings.threads = s->device.num_threads;
  s->settings.seconds = (double)flags->seconds / s->sittings;
  s->settings.rounds = (int)((rounds + s->sittings - 1) / s->sittings);
  s->steps = (size_t)s->sittings * list->num_items;
  progress_start(&s->line);
  int code = measure_all(s, flags, list);
  progress_hide(&s->line);
  if (code == CLI_OK) {
    code = report_all(s, list);
  }
  bench_memory_free(s->memory);
  return code;
}

static void free_list(work_list *list) {
  for (size_t i = 0; list->items != NULL && i < list->num_items; ++i) {
    bench_rounds_free(list->items[i].rounds);
    free(list->items[i].refusal);
  }
  free(list->items);
  free(list->cases);
  free(list->given);
}

static int bench(cli_options *flags, cli_report *report) {
  work_list list = {0};
  bench_session *s = calloc(1, sizeof(*s));
  attn_message message;
  int code = s != NULL ? make_list(flags, &list, report) : cli_fail(report, CLI_FAILED, "no memory");
  if (code == CLI_OK && flags->fault != NULL && !attn_check_plant(flags->fault)) {
    code = cli_fail(report, CLI_BAD_INPUT,
                    "--fault is \"%.64s\"; accepted, in the test-only build attn-faulty alone: a "
                    "name of its check --fault list",
                    flags->fault);
  }
  if (code == CLI_OK && flags->list) {
    print_list(&list, flags->json);
  } else if (code == CLI_OK) {
    s->flags = flags;
    s->report = report;
    s->device = (attn_context_info)ATTN_CONTEXT_INFO_INIT;
    code = cli_make_context(flags, &s->context, report);
    if (code == CLI_OK) {
      code = cli_library(report, attn_context_get_info(s->context, &s->device, &message), &message);
    }
    if (code == CLI_OK) {
      code = choose_backends(flags, s, &list);
    }
    if (code == CLI_OK) {
      code = make_items(&list, report);
    }
    if (code == CLI_OK) {
      code = run_session(flags, &list, s);
    }
    attn_context_destroy(s->context);
  }
  free_list(&list);
  free(s);
  return code;
}

int cli_bench_command(int argc, char **argv) {
  cli_options flags;
  cli_report report;
  int code = cli_parse_options(argc, argv, CLI_FOR_BENCH, &flags, &report);
  if (code == CLI_OK && flags.help) {
    cli_print_help("bench");
  } else if (code == CLI_OK) {
    code = bench(&flags, &report);
  }
  int flushed = cli_flush("attn bench");
  return code == CLI_OK ? flushed : cli_print_failure("attn bench", &report, code);
}
