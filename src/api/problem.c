/* SPDX-License-Identifier: Apache-2.0 */
/* problem.c: the problem's check and its helpers at the border. */
#include "attn/problem.h"

#include <math.h>

#include "core/resolve.h"

attn_status attn_problem_check(const attn_problem *problem, attn_message *message) {
  attn_problem resolved;
  return attn_problem_resolve(problem, &resolved, message);
}

float attn_softmax_scale(int32_t head_size) {
  return head_size >= 1 ? (float)(1.0 / sqrt((double)head_size)) : 0.0f;
}

attn_status attn_window_from_count(int32_t num_keys, int32_t *window_left, int32_t *window_right,
                                   attn_message *message) {
  ATTN_CHECK_POINTER(window_left, "window_left", message);
  ATTN_CHECK_POINTER(window_right, "window_right", message);
  if (num_keys < 1) {
    return attn_fail(message, ATTN_E_RANGE, "num_keys: %d, accepted: 1 or more (for no window set the bounds to -1)",
                     (int)num_keys);
  }
  *window_left = num_keys - 1;
  *window_right = 0;
  return ATTN_OK;
}

attn_status attn_alibi_slopes(int32_t num_heads, float *slopes, attn_message *message) {
  ATTN_CHECK_POINTER(slopes, "slopes", message);
  if (num_heads < 1) {
    return attn_fail(message, ATTN_E_RANGE, "num_heads: %d, accepted: 1 or more", (int)num_heads);
  }
  int32_t n = 1;
  while (n <= num_heads / 2) {
    n *= 2;
  }
  for (int32_t i = 0; i < num_heads; i++) {
    double exponent = i < n ? -8.0 * (i + 1) / n : -4.0 * (2.0 * (i - n) + 1.0) / n;
    slopes[i] = (float)exp2(exponent);
  }
  return ATTN_OK;
}
