/* SPDX-License-Identifier: Apache-2.0 */
/* limits.h: the machine's own limits, measured in the process that is judged by them. The two loops lie in limits.c,
   built with the flags of the generic kernels; tests/speed/vectorised.sh looks at the object. */
#ifndef ATTN_TESTS_LIMITS_H
#define ATTN_TESTS_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#define LIMIT_FLOATS 2048 /* 8 KiB: two arrays stay in the first-level cache */

/* y[i] = a * x[i] + y[i] over LIMIT_FLOATS elements, `repeats` times. */
void limit_axpy(float *y, const float *x, float a, int repeats);

/* Sum of `count` words: as fast as memory can be read by plain code. */
uint64_t limit_sum(const uint64_t *words, size_t count);

/* Seconds on a clock that only rises, and seconds that the calling thread really ran: the second leaves out what other
   processes take from a shared machine. */
double limit_seconds(void);
double limit_cpu_seconds(void);

/* FLOP/s of limit_axpy on each of `threads` threads at once, by the clock (a multiply-add counts as two); with one
 * thread
   *cpu_rate also gets the rate by the time that it really ran. */
double limit_flops_once(int threads, double *cpu_rate);

/* Bytes/s of one limit_sum over `bytes` of memory, by the time that the thread really ran. */
double limit_read_once(const uint64_t *words, size_t bytes);

#endif
