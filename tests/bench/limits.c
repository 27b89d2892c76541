/* SPDX-License-Identifier: Apache-2.0 */
/* limits.c: the two loops of limits.h, left to the compiler's vectoriser. */
#include "limits.h"

void limit_multiply_add(float *y, float a, float b, int repeats) {
  float x[LIMIT_FLOATS];
  for (int i = 0; i < LIMIT_FLOATS; i++) {
    x[i] = y[i];
  }
  for (int r = 0; r < repeats; r++) {
    for (int i = 0; i < LIMIT_FLOATS; i++) {
      x[i] = x[i] * a + b;
    }
  }
  for (int i = 0; i < LIMIT_FLOATS; i++) {
    y[i] = x[i];
  }
}

uint64_t limit_sum(const uint64_t *words, size_t count) {
  uint64_t lane[16] = {0};
  for (size_t i = 0; i + 16 <= count; i += 16) {
    for (size_t j = 0; j < 16; j++) {
      lane[j] += words[i + j];
    }
  }
  uint64_t sum = 0;
  for (size_t j = 0; j < 16; j++) {
    sum += lane[j];
  }
  return sum;
}
