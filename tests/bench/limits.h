/* SPDX-License-Identifier: Apache-2.0 */
/* limits.h: the machine's own limits, measured in the process that is judged by them. The two loops lie in limits.c,
   built with the flags of the generic kernels; tests/speed/vectorised.sh looks at the object. Copying is memcpy(). */
#ifndef ATTN_BENCH_LIMITS_H
#define ATTN_BENCH_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#define LIMIT_FLOATS 48 /* twelve vectors of four: they stay in registers, and are enough to hide a sum's latency */

/* x[i] = x[i] * a + b over LIMIT_FLOATS elements, `repeats` times: multiplications and additions as fast as plain code
   does them, with nothing loaded or stored between. */
void limit_multiply_add(float *x, float a, float b, int repeats);

/* Sum of `count` words: as fast as memory can be read by plain code. */
uint64_t limit_sum(const uint64_t *words, size_t count);

/* Seconds on a clock that only rises, and seconds that the calling thread really ran: the second leaves out what other
   processes take from a shared machine. */
double limit_seconds(void);
double limit_cpu_seconds(void);

/* What a measurement is read from: the clock, and for a single thread the time that it really ran (else equal). */
typedef struct limit_time {
  double clock;
  double cpu;
} limit_time;

enum { LIMIT_MAX_THREADS = 64 };

/* Each of these runs its loop on `threads` threads at once (1 to LIMIT_MAX_THREADS) and tells the time from the first
   one's begin to the last one's end; 0 in both when a thread could not be started. */

/* `repeats` of limit_multiply_add on each thread: 2 * LIMIT_FLOATS * repeats operations each. */
limit_time limit_time_multiply_add(int threads, int repeats);
/* All `bytes` at `words`, a part for each thread, `passes` times. */
limit_time limit_time_read(int threads, const uint64_t *words, size_t bytes, int passes);
/* `bytes` copied, a part by each thread, `passes` times. */
limit_time limit_time_copy(int threads, uint64_t *to, const uint64_t *from, size_t bytes, int passes);

#endif
