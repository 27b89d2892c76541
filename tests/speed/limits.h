/* SPDX-License-Identifier: Apache-2.0 */
/* limits.h: the machine's own limits, measured in the process that is judged by them. The two loops lie in limits.c, built
   with the flags of the generic kernels; tests/speed/vectorised.sh looks at the object. */
#ifndef ATTN_TESTS_LIMITS_H
#define ATTN_TESTS_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#define LIMIT_FLOATS 2048 /* 8 KiB: two arrays stay in the first-level cache */

/* y[i] = a * x[i] + y[i] over LIMIT_FLOATS elements, `repeats` times. */
void limit_axpy(float *y, const float *x, float a, int repeats);

/* Sum of `count` words: as fast as memory can be read by plain code. */
uint64_t limit_sum(const uint64_t *words, size_t count);

/* Seconds on a clock that only rises. */
double limit_seconds(void);

/* Multiply-adds counted as two: FLOP/s of one run of limit_axpy on each of `threads` threads at once, and bytes/s of one
   limit_sum over `bytes` of memory. */
double limit_flops_once(int threads);
double limit_read_once(const uint64_t *words, size_t bytes);

#endif
