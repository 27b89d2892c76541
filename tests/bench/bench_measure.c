/* SPDX-License-Identifier: Apache-2.0 */
/* bench_measure.c: see bench_measure.h. */
#define _DEFAULT_SOURCE
#include "bench_measure.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "limits.h"

#ifndef BENCH_MOST_BYTES /* a sanitized build, whose figures mean nothing, takes less */
#define BENCH_MOST_BYTES ((size_t)512 << 20)
#endif
#define HUGE_BYTES ((size_t)2 << 20)
#define LEAST_BYTES ((size_t)64 << 10)
#define CALL_SECONDS 0.003  /* of the calls in a round, at least one call: short, to fit between disturbances */
#define LIMIT_SECONDS 0.001 /* of each limit in a round */
#define CLOCK_SHARE 3.0     /* of a sitting: seconds by the clock for each one of the thread's own */

struct bench_memory {
  uint64_t *words;
  size_t bytes;
};

/* At most an eighth of the machine's memory. */
static size_t buffer_bytes(void) {
  long pages = sysconf(_SC_PHYS_PAGES);
  long page = sysconf(_SC_PAGESIZE);
  size_t bytes = BENCH_MOST_BYTES;
  while (pages > 0 && page > 0 && bytes > ((size_t)16 << 20) && bytes / (size_t)page > (size_t)pages / 8) {
    bytes /= 2;
  }
  return bytes;
}

bench_memory *bench_memory_new(void) {
  bench_memory *memory = calloc(1, sizeof *memory);
  void *words = NULL;
  if (memory == NULL) {
    return NULL;
  }
  memory->bytes = buffer_bytes();
  if (posix_memalign(&words, HUGE_BYTES, memory->bytes) != 0) {
    free(memory);
    return NULL;
  }
#ifdef MADV_HUGEPAGE
  (void)madvise(words, memory->bytes, MADV_HUGEPAGE); /* a wish: times depend less on where pages lie */
#endif
  memory->words = words;
  for (size_t i = 0; i < memory->bytes / sizeof(uint64_t); i++) {
    memory->words[i] = i * 0x9e3779b97f4a7c15u;
  }
  return memory;
}

void bench_memory_free(bench_memory *memory) {
  if (memory != NULL) {
    free(memory->words);
    free(memory);
  }
}

size_t bench_memory_bytes(const bench_memory *memory) {
  return memory->bytes;
}

static double rate(double amount, limit_time time) {
  return time.cpu > 0.0 ? amount / time.cpu : 0.0;
}

double bench_memory_read(bench_memory *memory, int threads) {
  return rate((double)memory->bytes, limit_time_read(threads, memory->words, memory->bytes, 1));
}

static double copy_rate(bench_memory *memory, int threads, size_t bytes, int passes) {
  uint64_t *half = memory->words + memory->bytes / 2 / sizeof(uint64_t);
  return rate(2.0 * (double)bytes * passes, limit_time_copy(threads, half, memory->words, bytes, passes));
}

double bench_memory_copy(bench_memory *memory, int threads) {
  return copy_rate(memory, threads, memory->bytes / 2, 1);
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Between neighbours, of sorted values. */
static double quantile(const double *values, int n, double share) {
  double at = share * (n - 1);
  int below = (int)at;
  int above = below + 1 < n ? below + 1 : below;
  return values[below] + (at - below) * (values[above] - values[below]);
}

bench_spread bench_spread_of(double *values, int n, int more) {
  if (n == 0) {
    return (bench_spread){0.0, 0.0, 0.0};
  }
  qsort(values, (size_t)n, sizeof *values, by_value);
  return (bench_spread){values[more ? n - 1 : 0], quantile(values, n, 0.5), quantile(values, n, more ? 0.1 : 0.9)};
}

/* Rates of one moment. */
typedef struct moment {
  double arithmetic;
  double read;
  double copy; /* 0: the call writes next to nothing */
} moment;

/* How each limit is measured for this call. */
typedef struct gauge {
  bench_memory *memory;
  int threads;
  int repeats; /* of the arithmetic loop */
  size_t read_bytes;
  int read_passes;
  size_t copy_bytes; /* each way; 0: not measured */
  int copy_passes;
} gauge;

static size_t clamp_bytes(double bytes, size_t most) {
  size_t wanted = bytes < (double)most ? (size_t)bytes : most;
  return (wanted < LEAST_BYTES ? LEAST_BYTES : wanted) / 128 * 128;
}

static int passes_for(double bytes_per_second, double bytes) {
  double passes = bytes_per_second > 0.0 ? LIMIT_SECONDS * bytes_per_second / bytes : 1.0;
  return passes < 1.0 ? 1 : passes > 1e6 ? 1000000 : (int)ceil(passes);
}

static int measure_moment(const gauge *g, moment *m) {
  limit_time time = limit_time_multiply_add(g->threads, g->repeats);
  m->arithmetic = rate(2.0 * LIMIT_FLOATS * g->repeats * g->threads, time);
  time = limit_time_read(g->threads, g->memory->words, g->read_bytes, g->read_passes);
  m->read = rate((double)g->read_bytes * g->read_passes, time);
  m->copy = g->copy_bytes > 0 ? copy_rate(g->memory, g->threads, g->copy_bytes, g->copy_passes) : 0.0;
  return m->arithmetic > 0.0 && m->read > 0.0 && (g->copy_bytes == 0 || m->copy > 0.0);
}

/* Sizes from the work, passes from a first try. */
static int set_gauge(gauge *g, bench_memory *memory, int threads, const bench_work *work) {
  double moved = work->read_bytes < work->written_bytes ? work->read_bytes : work->written_bytes;
  moment first;
  *g = (gauge){.memory = memory, .threads = threads, .repeats = 20000, .read_passes = 1, .copy_passes = 1};
  g->read_bytes = clamp_bytes(work->read_bytes, memory->bytes);
  /* attention writes a row for thousands that it reads: what a copy would cost is not its limit */
  g->copy_bytes = moved * 64.0 > work->read_bytes ? clamp_bytes(moved, memory->bytes / 2) : 0;
  for (int i = 0; i < 2; i++) { /* the first time the caches are those of somebody else */
    if (!measure_moment(g, &first)) {
      return 0;
    }
    g->repeats = passes_for(first.arithmetic / threads, 2.0 * LIMIT_FLOATS);
    g->read_passes = passes_for(first.read, (double)g->read_bytes);
    g->copy_passes = g->copy_bytes > 0 ? passes_for(first.copy, 2.0 * (double)g->copy_bytes) : 1;
  }
  return 1;
}

/* The least time that the rates allow, and whose part is the larger. A byte that is written goes with one that is read
   at the rate of copying; what is left is read at the rate of reading. */
static double least_seconds(const bench_work *work, const moment *m, int *bound) {
  double arithmetic = work->flops / m->arithmetic;
  double moved = m->copy > 0.0 ? work->written_bytes : 0.0;
  double paired = moved < work->read_bytes ? moved : work->read_bytes;
  double memory = (work->read_bytes - paired) / m->read;
  memory += m->copy > 0.0 ? (moved + paired) / m->copy : work->written_bytes / m->read;
  *bound = memory > arithmetic ? BENCH_BOUND_MEMORY : BENCH_BOUND_ARITHMETIC;
  return memory > arithmetic ? memory : arithmetic;
}

/* `calls` of them; seconds of one, 0 when one failed. */
static double time_calls(int threads, bench_call call, void *context, int calls) {
  double clock = limit_seconds();
  double cpu = limit_cpu_seconds();
  for (int i = 0; i < calls; i++) {
    if (!call(context)) {
      return 0.0;
    }
  }
  double spent = threads == 1 ? limit_cpu_seconds() - cpu : limit_seconds() - clock;
  return spent > 0.0 ? spent / calls : 1e-9;
}

struct bench_rounds {
  int n;
  int calls;
  double seconds[BENCH_MAX_ROUNDS];
  double arithmetic[BENCH_MAX_ROUNDS];
  double read[BENCH_MAX_ROUNDS];
  double copy[BENCH_MAX_ROUNDS]; /* all 0: not measured */
};

bench_rounds *bench_rounds_new(void) {
  return calloc(1, sizeof(bench_rounds));
}

void bench_rounds_free(bench_rounds *rounds) {
  free(rounds);
}

static int run_round(const gauge *g, bench_call call, void *context, int calls, bench_rounds *r) {
  moment m;
  double seconds;
  if (!measure_moment(g, &m)) {
    return 0;
  }
  seconds = time_calls(g->threads, call, context, calls);
  if (seconds <= 0.0) {
    return 0;
  }
  r->seconds[r->n] = seconds;
  r->arithmetic[r->n] = m.arithmetic;
  r->read[r->n] = m.read;
  r->copy[r->n] = m.copy;
  r->calls += calls;
  r->n++;
  return 1;
}

/* How much of a sitting is done after `rounds` of it: 1 and more is all. */
static double share_done(const bench_settings *settings, double clock, double cpu, int rounds) {
  double by_clock = limit_seconds() - clock;
  double by_cpu = limit_cpu_seconds() - cpu;
  if (settings->rounds > 0) {
    return (double)rounds / settings->rounds;
  }
  if (settings->threads > 1) {
    return by_clock / settings->seconds;
  }
  return fmax(by_cpu, by_clock / CLOCK_SHARE) / settings->seconds;
}

int bench_measure(bench_memory *memory, const bench_settings *settings, const bench_work *work, bench_call call,
                  void *context, void (*tick)(void *context, double share), bench_rounds *rounds) {
  gauge g;
  double first = time_calls(settings->threads, call, context, 1);
  if (first > 0.0 && first < 0.1) { /* the first one met cold caches */
    first = time_calls(settings->threads, call, context, 1);
  }
  if (first <= 0.0 || !set_gauge(&g, memory, settings->threads, work)) {
    return 0;
  }
  double calls = ceil(CALL_SECONDS / first);
  double clock = limit_seconds();
  double cpu = limit_cpu_seconds();
  int begun = rounds->n;
  double share = 0.0;
  while (share < 1.0 && rounds->n < BENCH_MAX_ROUNDS) {
    if (!run_round(&g, call, context, calls > 1e6 ? 1000000 : (int)calls, rounds)) {
      return 0;
    }
    share = share_done(settings, clock, cpu, rounds->n - begun);
    if (tick != NULL) {
      tick(context, fmin(share, 1.0));
    }
  }
  return 1;
}

void bench_summarize(bench_rounds *r, const bench_work *work, bench_figures *f) {
  int copied = r->copy[0] > 0.0;
  int unused;
  f->rounds = r->n;
  f->calls = r->calls;
  f->seconds = bench_spread_of(r->seconds, r->n, 0);
  f->arithmetic = bench_spread_of(r->arithmetic, r->n, 1);
  f->read = bench_spread_of(r->read, r->n, 1);
  f->copy = bench_spread_of(r->copy, copied ? r->n : 0, 1);
  moment best = {f->arithmetic.best, f->read.best, f->copy.best};
  moment median = {f->arithmetic.median, f->read.median, f->copy.median};
  f->limit_seconds = least_seconds(work, &best, &f->bound);
  f->fraction = f->limit_seconds / f->seconds.best;
  f->fraction_median = least_seconds(work, &median, &unused) / f->seconds.median;
}
