/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_measure.h: a call timed between the machine's limits.
 *
 * Rounds alternate: limits, calls, limits, calls, so that a drift of the machine meets both. What disturbs a machine
 * that is shared only ever costs time; so a limit and a call are each taken at their best round (docs/performance.md has
 * the comparison with other quantiles). Rounds may be added in several sittings, which meet the machine at several
 * moments and the data at several places.
 *
 * One thread is judged by the time that it really ran, several by the clock. Reading and copying are measured over as
 * many bytes as the call itself reads or moves: a call whose data stay in a cache is held against that cache, one whose
 * data do not against memory.
 */
#ifndef ATTN_BENCH_MEASURE_H
#define ATTN_BENCH_MEASURE_H

#include <stddef.h>
#include <stdint.h>

/* What a call cannot do without. */
typedef struct bench_work {
  double flops;         /* a multiply-add counts as two */
  double read_bytes;    /* each input byte once */
  double written_bytes; /* each output byte once */
} bench_work;

/* One call; 0 when it failed. */
typedef int (*bench_call)(void *context);

typedef struct bench_settings {
  int threads;    /* of the call, 1 to LIMIT_MAX_THREADS */
  double seconds; /* as many rounds as fit into them (one thread: of its own time, within three times as many by the
                     clock), at least one */
  int rounds;     /* > 0: exactly so many instead */
} bench_settings;

enum { BENCH_MAX_ROUNDS = 2000 };

/* No value is better than `best`, half are than `median`, nine tenths than `worst`. */
typedef struct bench_spread {
  double best;
  double median;
  double worst;
} bench_spread;

enum { BENCH_BOUND_ARITHMETIC, BENCH_BOUND_MEMORY };

typedef struct bench_figures {
  int rounds;
  int calls;               /* in all rounds */
  bench_spread seconds;    /* of one call */
  bench_spread arithmetic; /* operations per second */
  bench_spread read;       /* bytes per second, over as many bytes as the call reads */
  bench_spread copy;       /* bytes read and bytes written per second, over as many as it moves; 0: not measured */
  double limit_seconds;    /* least seconds of a call that the best limits allow */
  double fraction;         /* limit_seconds / seconds.best */
  double fraction_median;  /* the same of the medians */
  int bound;               /* BENCH_BOUND_ARITHMETIC ...: where limit_seconds comes from */
} bench_figures;

/* Memory that the limits are measured on, and the rates over all of it: what memory itself gives. */
typedef struct bench_memory bench_memory;

/* NULL when memory is short. */
bench_memory *bench_memory_new(void);
void bench_memory_free(bench_memory *memory);
size_t bench_memory_bytes(const bench_memory *memory);

/* Bytes per second of one pass over all of it, and of copying one half of it to the other (read and written bytes
   counted); 0 when a thread could not be started. */
double bench_memory_read(bench_memory *memory, int threads);
double bench_memory_copy(bench_memory *memory, int threads);

/* What the rounds of one call gave so far. */
typedef struct bench_rounds bench_rounds;

/* NULL when memory is short. */
bench_rounds *bench_rounds_new(void);
void bench_rounds_free(bench_rounds *rounds);

/* Add rounds. `tick` (or NULL) is called after each with the share of this sitting that is done. 0 when the call failed
   (it says why itself) or a thread could not be started. */
int bench_measure(bench_memory *memory, const bench_settings *settings, const bench_work *work, bench_call call,
                  void *context, void (*tick)(void *context, double share), bench_rounds *rounds);

/* The figures of all rounds, of which there has to be one. */
void bench_summarize(bench_rounds *rounds, const bench_work *work, bench_figures *figures);

/* Of n values, which are sorted; `more`: larger is better. */
bench_spread bench_spread_of(double *values, int n, int more);

#endif
