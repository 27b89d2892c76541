/* SPDX-License-Identifier: Apache-2.0 */
/* check_rng.c: see check_rng.h. */
#include "check_rng.h"

static uint64_t splitmix(uint64_t *state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

void check_rng_seed(check_rng *rng, uint64_t seed, uint64_t index, uint64_t stream) {
  uint64_t state = seed;
  state = splitmix(&state) ^ index;
  state = splitmix(&state) ^ stream;
  for (int i = 0; i < 4; i++) {
    rng->s[i] = splitmix(&state);
  }
}

static uint64_t rotate(uint64_t x, int by) {
  return (x << by) | (x >> (64 - by));
}

uint64_t check_next(check_rng *rng) {
  uint64_t *s = rng->s;
  uint64_t result = rotate(s[1] * 5, 7) * 9;
  uint64_t t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = rotate(s[3], 45);
  return result;
}

int64_t check_between(check_rng *rng, int64_t low, int64_t high) {
  return high <= low ? low : low + (int64_t)(check_next(rng) % (uint64_t)(high - low + 1));
}

int check_chance(check_rng *rng, int percent) {
  return check_between(rng, 0, 99) < percent;
}

double check_uniform(check_rng *rng) {
  return (double)(check_next(rng) >> 11) * 0x1p-53;
}

float check_normal(check_rng *rng) {
  uint64_t x = check_next(rng);
  int32_t sum =
      (int32_t)(x & 0xFFFF) + (int32_t)((x >> 16) & 0xFFFF) + (int32_t)((x >> 32) & 0xFFFF) + (int32_t)(x >> 48);
  return (float)(sum - 131070) * (1.0f / 37837.0f); /* the sum's deviation is 65536 / sqrt(3) */
}
