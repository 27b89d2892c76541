/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h: which bytes are text. */
#ifndef ATTN_TOOL_UTF8_H
#define ATTN_TOOL_UTF8_H

#include <stddef.h>

/* Offset of the first byte that starts no valid UTF-8 character, or `length` if there is none. */
size_t utf8_first_invalid(const char *text, size_t length);

#endif
