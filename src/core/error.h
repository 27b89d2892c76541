/* SPDX-License-Identifier: Apache-2.0 */
/* error.h: how a failing call leaves: one formatted line in the caller's message, the code as result. */
#ifndef ATTN_CORE_ERROR_H
#define ATTN_CORE_ERROR_H

#include "attn/status.h"

#if defined(__GNUC__)
#define ATTN_PRINTF(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))
#else
#define ATTN_PRINTF(format_index, first_argument)
#endif

/* Write the line (cut at ATTN_MESSAGE_BYTES, newlines and control characters replaced) if a message was given, and
   return `code`. Allocates nothing. */
attn_status attn_fail(attn_message *message, attn_status code, const char *format, ...) ATTN_PRINTF(3, 4);

/* Add to the line of a failure, if a message was given. */
void attn_append(attn_message *message, const char *format, ...) ATTN_PRINTF(2, 3);

/* Forward a failure. */
#define ATTN_TRY(expression)                                                                                           \
  do {                                                                                                                 \
    attn_status attn_try_status_ = (expression);                                                                       \
    if (attn_try_status_ != ATTN_OK) {                                                                                 \
      return attn_try_status_;                                                                                         \
    }                                                                                                                  \
  } while (0)

#endif
