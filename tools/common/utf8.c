/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.c: see utf8.h. Overlong forms, surrogates and codes beyond U+10FFFF are no characters. */
#include "utf8.h"

#include <stdint.h>

size_t utf8_first_invalid(const char *text, size_t length) {
  const unsigned char *bytes = (const unsigned char *)text;
  size_t at = 0;
  while (at < length) {
    const unsigned lead = bytes[at];
    size_t extra = 0;
    uint32_t least = 0;
    uint32_t code = lead;
    if (lead >= 0x80) {
      if (lead < 0xc2 || lead > 0xf4) {
        return at;
      }
      extra = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
      least = extra == 1 ? 0x80u : extra == 2 ? 0x800u : 0x10000u;
      code = lead & (0x3fu >> extra);
    }
    if (extra >= length - at) {
      return at;
    }
    for (size_t i = 1; i <= extra; i++) {
      if ((bytes[at + i] & 0xc0) != 0x80) {
        return at;
      }
      code = code << 6 | (bytes[at + i] & 0x3fu);
    }
    if (code < least || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
      return at;
    }
    at += extra + 1;
  }
  return length;
}
