/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-line errors of attn-lm. The runner reuses the library's attn_status and attn_message, so that every failure, ours
 * or the library's, maps to an exit code by one rule. Bytes taken from a file or an argument are quoted before they
 * enter a message, so that no input can break the line.
 */
#ifndef LM_ERROR_H
#define LM_ERROR_H

#include <attn/status.h>

#if defined(__GNUC__)
#define LM_PRINTF(text, first) __attribute__((__format__(__printf__, text, first)))
#else
#define LM_PRINTF(text, first)
#endif

/** A short printable copy of foreign bytes. */
typedef struct lm_quoted {
  char text[72];
} lm_quoted;

/** Fills `message` (may be NULL) and returns `code`. */
attn_status lm_fail(attn_message *message, attn_status code, const char *format, ...) LM_PRINTF(3, 4);

/** Copies `bytes`, escaping what is not printable ASCII and cutting what is long. */
lm_quoted lm_quote(const char *bytes, uint64_t length);

/** 2 for a bad or refused request, 1 for a valid call that failed, 0 for success. */
int lm_exit_code(attn_status status);

#endif
