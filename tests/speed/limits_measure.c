/* SPDX-License-Identifier: Apache-2.0 */
/* limits_measure.c: timing around the loops of limits.c. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <time.h>

#include "limits.h"

#define REPEATS 4000 /* about 16 million multiply-adds: a few milliseconds */

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

typedef struct lane {
  pthread_barrier_t *start;
  double begin;
  double end;
  double cpu; /* seconds that the thread really ran */
} lane;

static void *run_lane(void *argument) {
  lane *l = argument;
  float x[LIMIT_FLOATS];
  float y[LIMIT_FLOATS];
  for (int i = 0; i < LIMIT_FLOATS; i++) {
    x[i] = (float)(i * 37 % 101) * 0.01f - 0.5f;
    y[i] = (float)(i * 53 % 97) * 0.01f;
  }
  limit_axpy(y, x, 1e-5f, 10);
  (void)pthread_barrier_wait(l->start);
  double cpu = limit_cpu_seconds();
  l->begin = limit_seconds();
  limit_axpy(y, x, 1e-5f, REPEATS);
  l->end = limit_seconds();
  l->cpu = limit_cpu_seconds() - cpu;
  volatile float sink = y[17];
  (void)sink;
  return NULL;
}

double limit_flops_once(int threads, double *cpu_rate) {
  pthread_barrier_t start;
  pthread_t thread[8];
  lane lanes[8];
  if (threads > 8 || pthread_barrier_init(&start, NULL, (unsigned)threads) != 0) {
    return 0.0;
  }
  for (int i = 0; i < threads; i++) {
    lanes[i].start = &start;
    if (i > 0 && pthread_create(&thread[i], NULL, run_lane, &lanes[i]) != 0) {
      return 0.0;
    }
  }
  (void)run_lane(&lanes[0]);
  double begin = lanes[0].begin;
  double end = lanes[0].end;
  for (int i = 1; i < threads; i++) {
    (void)pthread_join(thread[i], NULL);
    begin = lanes[i].begin < begin ? lanes[i].begin : begin;
    end = lanes[i].end > end ? lanes[i].end : end;
  }
  (void)pthread_barrier_destroy(&start);
  if (threads == 1) {
    *cpu_rate = 2.0 * LIMIT_FLOATS * REPEATS / lanes[0].cpu;
  }
  return 2.0 * LIMIT_FLOATS * REPEATS * threads / (end - begin);
}

double limit_read_once(const uint64_t *words, size_t bytes) {
  double begin = limit_cpu_seconds();
  volatile uint64_t sum = limit_sum(words, bytes / sizeof *words);
  double end = limit_cpu_seconds();
  (void)sum;
  return (double)bytes / (end - begin);
}
