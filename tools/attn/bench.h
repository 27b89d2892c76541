/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h: inside `attn bench`. A case is a request in words (or a file), whose tensors are filled with random data; an
 * operation's steps (run.h) open it, its first result is judged by the contract, and then the call alone is timed
 * between the machine's limits (tests/bench), in several sittings between those of the other cases. Copying blocks is
 * no operation of the request file; it has a case of its own (bench_copy.c).
 */
#ifndef ATTN_TOOL_BENCH_H
#define ATTN_TOOL_BENCH_H

#include "bench_measure.h"
#include "check_rng.h"
#include "progress.h"
#include "run.h"

enum { BENCH_NAME_BYTES = 64, BENCH_WORDS_BYTES = 600, BENCH_MAX_CASES = 128, BENCH_MAX_ITEMS = 1024 };

/* One case of the list. */
typedef struct bench_case {
  char name[BENCH_NAME_BYTES];   /* "decode 32/8x128 bfloat16 8x4096" */
  char words[BENCH_WORDS_BYTES]; /* NAME=VALUE, blanks between: what `attn bench` takes to measure it again */
  int attends;                   /* --splits and --batch-invariant apply */
} bench_case;

/* One case on one backend, and what was measured of it. */
typedef struct bench_item {
  const char *name;
  const char *words;
  const char *wanted; /* the backend, NULL: the library chooses */
  const char *op;
  char backend[32]; /* what ran */
  int32_t splits;
  bench_work work;
  bench_rounds *rounds;
  bench_figures figures;
  char *refusal; /* why the backend does not serve the case; NULL: it does */
} bench_item;

enum { BENCH_SITTINGS = 10 };

/* A whole run of the command. */
typedef struct bench_session {
  const cli_options *flags; /* `backend` is the item's */
  attn_context *context;
  attn_context_info device;
  bench_memory *memory;
  bench_settings settings; /* of one sitting */
  int sittings;
  int sitting; /* the one that runs; results are judged in the first */
  progress line;
  const bench_item *item; /* for the progress line */
  size_t step;            /* items of all sittings that are done */
  size_t steps;
  cli_report *report;
  double arithmetic[BENCH_MAX_ITEMS]; /* each item's best */
  size_t num_items;
  double memory_read[BENCH_SITTINGS]; /* rates of memory itself, once in each sitting */
  double memory_copy[BENCH_SITTINGS];
} bench_session;

/* The built-in cases; those of formats that this build has. Returns their count. */
size_t bench_list(bench_case *cases, size_t most);

/* One sitting of an item, whose words are NAME=VALUE or (bench_run_file) a path, on the backend of session->flags. */
int bench_run_words(bench_session *session, bench_item *item);
int bench_run_file(bench_session *session, bench_item *item);

/* op=cache_copy, whose words are cut like all others. */
int bench_is_copy(size_t count, char *const *words);
int bench_run_copy(bench_session *session, size_t count, char *const *words, bench_item *item);

/* Time the call: rounds are added to the item's. */
int bench_time(bench_session *session, bench_call call, void *context, bench_item *item);

/* Give every tensor that has none its data: random values, scattered blocks, lists that fill the shapes. */
int bench_fill(const bench_session *session, const request *parsed, st_file *file);
/* Fill a float tensor, or any other with random bytes, none of which is NaN as fp8. */
int bench_fill_random(st_tensor *tensor, check_rng *rng, cli_report *report);

/* What the request cannot do without. `problem` of an attention, else NULL. */
void bench_count(const request *parsed, const attn_problem *problem, bench_work *work);

/* Judge what the call has written by the contract: CLI_FAILED with the line that says what is wrong. */
int bench_judge(const run_job *job, const attn_problem *problem, check_rng *rng);

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

void bench_print_head(const bench_session *session, json_writer *w);
void bench_print_item(const bench_session *session, const bench_item *item, json_writer *w);
void bench_print_end(bench_session *session, json_writer *w);

#endif
