/* SPDX-License-Identifier: Apache-2.0 */
/* error.c: the message of a failing call. Formatting happens straight into the caller's buffer; nothing is kept. */
#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* names come from callers and files: one line must stay one line */
static void keep_one_line(attn_message *message) {
  for (char *c = message->text; *c != '\0'; c++) {
    if ((unsigned char)*c < 0x20 || *c == 0x7f) {
      *c = '?';
    }
  }
}

attn_status attn_fail(attn_message *message, attn_status code, const char *format, ...) {
  if (message != NULL) {
    va_list arguments;
    va_start(arguments, format);
    message->code = code;
    (void)vsnprintf(message->text, sizeof message->text, format, arguments);
    va_end(arguments);
    keep_one_line(message);
  }
  return code;
}

void attn_append(attn_message *message, const char *format, ...) {
  if (message != NULL) {
    size_t used = strlen(message->text);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message->text + used, sizeof message->text - used, format, arguments);
    va_end(arguments);
    keep_one_line(message);
  }
}
