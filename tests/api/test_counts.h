/* SPDX-License-Identifier: Apache-2.0 */
/* test_counts.h: how often a loop goes round whose point is the number of tries. */
#ifndef ATTN_TESTS_TEST_COUNTS_H
#define ATTN_TESTS_TEST_COUNTS_H

#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ATTN_TEST_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ATTN_TEST_ADDRESS_SANITIZER 1
#endif

/* `full`; in a tree with AddressSanitizer, where a round costs several times as much and the same rounds run without it
   in the release tree, `less`, unless ATTN_TEST_FULL is set (make check-long PART=full). */
static inline int test_count(int full, int less) {
#if defined(ATTN_TEST_ADDRESS_SANITIZER)
  return getenv("ATTN_TEST_FULL") == NULL ? less : full;
#else
  (void)less;
  return full;
#endif
}

#endif
