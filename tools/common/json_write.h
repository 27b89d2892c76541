/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_write.h: the one writer of JSON. Values go out as they come; the writer keeps the commas and the nesting. A key
 * is NULL inside an array and for the outermost value. Strings are repaired: bytes that are no UTF-8 become U+FFFD.
 */
#ifndef ATTN_TOOL_JSON_WRITE_H
#define ATTN_TOOL_JSON_WRITE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { JSON_MAX_DEPTH = 16 };

typedef struct json_writer {
  FILE *file;
  int depth;                  /* open objects and arrays */
  char close[JSON_MAX_DEPTH]; /* what ends each of them */
  int filled[JSON_MAX_DEPTH]; /* each has a value already */
  int new_line;               /* the next value starts on a line of its own */
} json_writer;

void json_start(json_writer *w, FILE *file);

void json_object(json_writer *w, const char *key);
void json_array(json_writer *w, const char *key);
/* Close the innermost. */
void json_end(json_writer *w);
/* Close all that is open, and end the line. */
void json_finish(json_writer *w);
/* The next value of this object or array starts on a line of its own: for people who look at long answers. */
void json_line(json_writer *w);

/* NULL writes null. */
void json_string(json_writer *w, const char *key, const char *text);
void json_bytes(json_writer *w, const char *key, const char *text, size_t length);
void json_integer(json_writer *w, const char *key, int64_t value);
void json_unsigned(json_writer *w, const char *key, uint64_t value);
/* With so many significant digits; null where it is no finite number. */
void json_number(json_writer *w, const char *key, double value, int digits);
/* A whole array in one line. */
void json_int32_list(json_writer *w, const char *key, const int32_t *values, size_t count);
void json_boolean(json_writer *w, const char *key, int value);

#endif
