/* SPDX-License-Identifier: Apache-2.0 */
/* One-line errors of attn-lm: formatting, quoting and the exit code. */
#include "lm_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

attn_status lm_fail(attn_message *message, attn_status code, const char *format, ...) {
  if (message != NULL) {
    va_list arguments;
    va_start(arguments, format);
    message->code = code;
    (void)vsnprintf(message->text, sizeof message->text, format, arguments);
    va_end(arguments);
    for (char *byte = message->text; *byte != '\0'; byte++) { /* a path may hold anything, the message stays one line */
      if ((unsigned char)*byte < 0x20 || *byte == 0x7f) {
        *byte = '?';
      }
    }
  }
  return code;
}

lm_quoted lm_quote(const char *bytes, uint64_t length) {
  static const char hex[] = "0123456789abcdef";
  lm_quoted quoted;
  size_t used = 0;
  const size_t limit = sizeof quoted.text - 8; /* an escape, the ellipsis and the NUL always fit */
  quoted.text[used++] = '\'';
  for (uint64_t i = 0; i < length; i++) {
    if (used >= limit) {
      memcpy(quoted.text + used, "...", 3);
      used += 3;
      break;
    }
    unsigned char byte = (unsigned char)bytes[i];
    if (byte >= 0x20 && byte < 0x7f && byte != '\\' && byte != '\'') {
      quoted.text[used++] = (char)byte;
    } else {
      quoted.text[used++] = '\\';
      quoted.text[used++] = 'x';
      quoted.text[used++] = hex[byte >> 4];
      quoted.text[used++] = hex[byte & 15];
    }
  }
  quoted.text[used++] = '\'';
  quoted.text[used] = '\0';
  return quoted;
}

int lm_exit_code(attn_status status) {
  if (status == ATTN_OK) {
    return 0;
  }
  return ((int)status < 40 || status == ATTN_E_NO_DEVICE) ? 2 : 1;
}
