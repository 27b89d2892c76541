/* SPDX-License-Identifier: Apache-2.0 */
/* reference_mask.c: which key a query sees, decided one pair at a time and word for word as problem.h states it.
 *
 * Positions are 64-bit: those of queries are negative when a sequence has more new rows than keys.
 */
#include "reference.h"

/* Towards minus infinity; divisor > 0. */
static int64_t floor_divide(int64_t dividend, int64_t divisor) {
  int64_t quotient = dividend / divisor;
  return dividend % divisor < 0 ? quotient - 1 : quotient;
}

static int is_causal(const attn_run_view *view, int64_t seq) {
  if (view->problem->has_causal_per_seq) {
    return attn_reference_int32(attn_reference_at1(&view->causal_per_seq, seq)) != 0;
  }
  return view->problem->causal != 0;
}

static int window_holds(const attn_problem *problem, int64_t q, int64_t k) {
  return (problem->window_left < 0 || q - k <= problem->window_left) &&
         (problem->window_right < 0 || k - q <= problem->window_right);
}

static int chunk_holds(const attn_problem *problem, int causal, int64_t q, int64_t k) {
  if (problem->chunk_size == 0) {
    return 1;
  }
  int64_t behind = floor_divide(q, problem->chunk_size) - floor_divide(k, problem->chunk_size);
  return (0 <= behind && behind <= problem->chunk_lookback) || (!causal && behind == 0);
}

static int range_holds(int64_t a, int64_t b, int64_t position) {
  return a <= position && position < b;
}

static int prefix_holds(const attn_run_view *view, int64_t seq, int64_t kv_len, int64_t q, int64_t k) {
  const attn_view *ranges = &view->prefix_ranges;
  if (!view->problem->has_prefix_ranges || (view->problem->prefix_clamp && !window_holds(view->problem, q, k))) {
    return 0;
  }
  for (int64_t r = 0; r < ranges->shape[1]; r++) {
    int64_t a = attn_reference_int32(attn_reference_at3(ranges, seq, r, 0));
    int64_t b = attn_reference_int32(attn_reference_at3(ranges, seq, r, 1));
    b = b < kv_len ? b : kv_len;
    if (range_holds(a, b, q) && range_holds(a, b, k)) {
      return 1;
    }
  }
  return 0;
}

int attn_reference_visible(const attn_run_view *view, int64_t seq, int64_t q, int64_t k) {
  int64_t kv_len = view->step->kv_lens[seq];
  int causal = is_causal(view, seq);
  if (k < 0 || k >= kv_len) {
    return 0;
  }
  if ((!causal || k <= q) && window_holds(view->problem, q, k) && chunk_holds(view->problem, causal, q, k)) {
    return 1;
  }
  return prefix_holds(view, seq, kv_len, q, k);
}
