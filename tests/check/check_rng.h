/* SPDX-License-Identifier: Apache-2.0 */
/* check_rng.h: the one generator of `attn check`. xoshiro256** seeded by splitmix64 from (seed, index, stream): a case
 * is a function of its seed and index alone, whatever ran before it. */
#ifndef ATTN_CHECK_RNG_H
#define ATTN_CHECK_RNG_H

#include <stdint.h>

typedef struct check_rng {
  uint64_t s[4];
} check_rng;

void check_rng_seed(check_rng *rng, uint64_t seed, uint64_t index, uint64_t stream);
uint64_t check_next(check_rng *rng);

/* Uniform in [low, high], both included. */
int64_t check_between(check_rng *rng, int64_t low, int64_t high);

/* 1 with the probability of percent / 100. */
int check_chance(check_rng *rng, int percent);

/* Uniform in [0, 1). */
double check_uniform(check_rng *rng);

/* Mean 0, deviation 1, from four 16-bit uniforms: near enough to normal, and one draw. */
float check_normal(check_rng *rng);

#endif
