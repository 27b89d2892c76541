/* SPDX-License-Identifier: Apache-2.0 */
/* limits_measure.c: timing around the loops of limits.c. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "limits.h"

static double seconds_of(clockid_t clock) {
  struct timespec now;
  (void)clock_gettime(clock, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double limit_seconds(void) {
  return seconds_of(CLOCK_MONOTONIC);
}

double limit_cpu_seconds(void) {
  return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

/* The line that all threads start from. */
enum { WAIT, GO, ABANDON };
typedef struct start_line {
  atomic_int ready;
  atomic_int sign;
} start_line;

/* One thread's part of a loop. */
typedef struct lane {
  void (*loop)(const struct lane *l);
  start_line *start; /* NULL: the calling thread, which gives the sign itself */
  const uint64_t *from;
  uint64_t *to;
  size_t bytes;
  int repeats;
  double begin;
  double end;
  double cpu; /* seconds that the thread really ran */
} lane;

static void loop_multiply_add(const lane *l) {
  float x[LIMIT_FLOATS];
  for (int i = 0; i < LIMIT_FLOATS; i++) {
    x[i] = (float)i * 0.01f;
  }
  limit_multiply_add(x, 0.75f, 0.5f, l->repeats);
  volatile float sink = x[17];
  (void)sink;
}

static void loop_read(const lane *l) {
  for (int i = 0; i < l->repeats; i++) {
    volatile uint64_t sum = limit_sum(l->from, l->bytes / sizeof(uint64_t));
    (void)sum;
  }
}

static void loop_copy(const lane *l) {
  for (int i = 0; i < l->repeats; i++) {
    memcpy(l->to, l->from, l->bytes);
  }
}

/* Say that this thread is ready, and wait for the sign; busily, so that all begin at once. */
static int may_go(start_line *start) {
  int sign;
  (void)atomic_fetch_add(&start->ready, 1);
  while ((sign = atomic_load(&start->sign)) == WAIT) {
    (void)sched_yield();
  }
  return sign == GO;
}

static void *run_lane(void *argument) {
  lane *l = argument;
  if (l->start != NULL && !may_go(l->start)) {
    return NULL;
  }
  double cpu = limit_cpu_seconds();
  l->begin = limit_seconds();
  l->loop(l);
  l->end = limit_seconds();
  l->cpu = limit_cpu_seconds() - cpu;
  return NULL;
}

/* The calling thread is the first lane. Threads that did start are waited for, whatever fails. */
static limit_time run_lanes(int threads, lane *lanes) {
  start_line start;
  pthread_t thread[LIMIT_MAX_THREADS];
  int started = 1;
  atomic_init(&start.ready, 1);
  atomic_init(&start.sign, WAIT);
  for (int i = 1; i < threads; i++) {
    lanes[i].start = &start;
  }
  while (started < threads && pthread_create(&thread[started], NULL, run_lane, &lanes[started]) == 0) {
    started++;
  }
  while (started == threads && atomic_load(&start.ready) < threads) {
    (void)sched_yield();
  }
  atomic_store(&start.sign, started == threads ? GO : ABANDON);
  if (started == threads) {
    (void)run_lane(&lanes[0]);
  }
  double begin = lanes[0].begin;
  double end = lanes[0].end;
  for (int i = 1; i < started; i++) {
    (void)pthread_join(thread[i], NULL);
    begin = lanes[i].begin < begin ? lanes[i].begin : begin;
    end = lanes[i].end > end ? lanes[i].end : end;
  }
  if (started < threads) {
    return (limit_time){0.0, 0.0};
  }
  return (limit_time){end - begin, threads == 1 ? lanes[0].cpu : end - begin};
}

/* Part i of `threads` of so many bytes, in whole 128-byte steps, the last one with the rest. */
static void cut(int threads, int i, size_t bytes, size_t *begin, size_t *length) {
  size_t part = bytes / (size_t)threads / 128 * 128;
  *begin = part * (size_t)i;
  *length = i + 1 < threads ? part : bytes - *begin;
}

static limit_time run(int threads, void (*loop)(const lane *l), uint64_t *to, const uint64_t *from, size_t bytes,
                      int repeats) {
  lane lanes[LIMIT_MAX_THREADS];
  if (threads < 1 || threads > LIMIT_MAX_THREADS) {
    return (limit_time){0.0, 0.0};
  }
  for (int i = 0; i < threads; i++) {
    size_t begin;
    memset(&lanes[i], 0, sizeof lanes[i]);
    lanes[i].loop = loop;
    lanes[i].repeats = repeats;
    cut(threads, i, bytes, &begin, &lanes[i].bytes);
    lanes[i].from = from == NULL ? NULL : from + begin / sizeof(uint64_t);
    lanes[i].to = to == NULL ? NULL : to + begin / sizeof(uint64_t);
  }
  return run_lanes(threads, lanes);
}

limit_time limit_time_multiply_add(int threads, int repeats) {
  return run(threads, loop_multiply_add, NULL, NULL, 0, repeats);
}

limit_time limit_time_read(int threads, const uint64_t *words, size_t bytes, int passes) {
  return run(threads, loop_read, NULL, words, bytes, passes);
}

limit_time limit_time_copy(int threads, uint64_t *to, const uint64_t *from, size_t bytes, int passes) {
  return run(threads, loop_copy, to, from, bytes, passes);
}
