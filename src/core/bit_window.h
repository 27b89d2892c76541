/* SPDX-License-Identifier: Apache-2.0 */
/* bit_window.h: which numbers of [first, first + ATTN_WINDOW_NUMBERS) were seen. A list of any length is searched for
   repeated numbers with it in fixed memory: once per window that holds any. 8 KiB, meant for the stack. */
#ifndef ATTN_CORE_BIT_WINDOW_H
#define ATTN_CORE_BIT_WINDOW_H

#include <stdint.h>
#include <string.h>

#define ATTN_WINDOW_NUMBERS ((int64_t)1 << 16)

typedef struct attn_bit_window {
  int64_t first;
  uint64_t bits[ATTN_WINDOW_NUMBERS / 64];
} attn_bit_window;

static inline void attn_window_start(attn_bit_window *window, int64_t first) {
  window->first = first;
  memset(window->bits, 0, sizeof window->bits);
}

static inline int attn_window_covers(const attn_bit_window *window, int64_t number) {
  return number >= window->first && number - window->first < ATTN_WINDOW_NUMBERS;
}

static inline int attn_window_holds(const attn_bit_window *window, int64_t number) {
  int64_t at = number - window->first;
  return attn_window_covers(window, number) && ((window->bits[at / 64] >> (at % 64)) & 1) != 0;
}

/* 1 when it was marked before. A number outside the window is not marked. */
static inline int attn_window_mark(attn_bit_window *window, int64_t number) {
  if (!attn_window_covers(window, number)) {
    return 0;
  }
  int64_t at = number - window->first;
  int before = attn_window_holds(window, number);
  window->bits[at / 64] |= (uint64_t)1 << (at % 64);
  return before;
}

/* Where the window after the one at `first` may begin; INT64_MAX: there is none. */
static inline int64_t attn_window_end(int64_t first) {
  return first > INT64_MAX - ATTN_WINDOW_NUMBERS ? INT64_MAX : first + ATTN_WINDOW_NUMBERS;
}

#endif
