/* SPDX-License-Identifier: Apache-2.0 */
/* check_report.h: a whole run of `attn check`: settings, workers, what is printed. */
#ifndef ATTN_CHECK_REPORT_H
#define ATTN_CHECK_REPORT_H

#include <stdatomic.h>
#include <stdint.h>

#include "check_case.h"

#define CHECK_MAX_JOBS 64
#define CHECK_MAX_WITH 16

typedef struct check_settings {
  const char *backend;
  uint64_t cases;
  uint64_t seed;
  uint64_t only; /* with one_case */
  unsigned ops;
  check_value with[CHECK_MAX_WITH]; /* only cases that have these */
  int num_with;
  const char *fault; /* NULL: none */
  int32_t threads;
  int32_t jobs;
  int own_executor;
  int one_case;
  int pairs;
  int quiet;
  int json; /* one JSON object on standard output; failures are in it instead of lines of their own */
} check_settings;

/* The stream that the cases are drawn from: over latent rows where only such operations are asked for. */
static inline unsigned check_stream(const check_settings *settings) {
  return (settings->ops & CHECK_KV_OPS) == 0 ? CHECK_LATENT_OPS : CHECK_KV_OPS;
}

/* Worker processes that suit this machine. */
int32_t check_default_jobs(void);

/* 1 when the case is one of those that the settings ask for. */
int check_wanted(const check_settings *settings, const check_case *c);

/* Run as the settings say; the exit status. */
int check_execute(const check_settings *settings);

#define CHECK_MAX_FAILURES 64
#define CHECK_NO_CASE UINT64_MAX

/* A failure, kept for the report. */
typedef struct check_failure {
  uint64_t index; /* CHECK_NO_CASE: after a worker's last case */
  char backend[32];
  char what[CHECK_FAILURE_BYTES];
} check_failure;

/* What all workers of a run know of each other. Lies in shared memory. */
typedef struct check_shared {
  _Atomic uint64_t next; /* first index that nobody has taken */
  uint64_t end;          /* one past the last index */
  _Atomic uint64_t done; /* cases run */
  _Atomic uint64_t failed;
  _Atomic uint64_t first_failed;            /* smallest index that failed, UINT64_MAX: none */
  _Atomic int stop;                         /* no new cases: a fault was caught */
  _Atomic uint64_t running[CHECK_MAX_JOBS]; /* index in work, UINT64_MAX: none */
  check_worst worst[CHECK_MAX_JOBS][CHECK_MAX_BACKENDS];
  _Atomic uint32_t num_kept; /* failures met; the first CHECK_MAX_FAILURES are kept */
  check_failure kept[CHECK_MAX_FAILURES];
} check_shared;

/* The command line that repeats a case. */
void check_repeat_line(const check_settings *settings, uint64_t index, char *line, size_t bytes);

/* Run the indices of `shared` in worker processes: a crash or hang is a failed case and the run goes on. */
int check_run_workers(const check_settings *settings, const check_env *model_env, check_shared *shared);

#endif
