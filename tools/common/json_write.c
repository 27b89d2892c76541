/* SPDX-License-Identifier: Apache-2.0 */
/* json_write.c: see json_write.h. Whether the file took it all is asked of the file once, by who closes or flushes it.
   No program here calls setlocale(), so the decimal point is a point. */
#include "json_write.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "utf8.h"

void json_start(json_writer *w, FILE *file) {
  memset(w, 0, sizeof(*w));
  w->file = file;
}

static void put_escaped(FILE *file, const char *text, size_t length) {
  for (size_t i = 0; i < length; ++i) {
    const unsigned char c = (unsigned char)text[i];
    if (c == '"' || c == '\\') {
      (void)fprintf(file, "\\%c", c);
    } else if (c < 0x20 || c == 0x7f) {
      (void)fprintf(file, "\\u%04x", c);
    } else {
      (void)fputc(c, file);
    }
  }
}

static void put_string(FILE *file, const char *text, size_t length) {
  (void)fputc('"', file);
  while (length > 0) {
    size_t valid = utf8_first_invalid(text, length);
    put_escaped(file, text, valid);
    if (valid < length) {
      (void)fputs("\\ufffd", file);
      ++valid;
    }
    text += valid;
    length -= valid;
  }
  (void)fputc('"', file);
}

/* What stands before a value: the comma, the line's end, the key. */
static void begin_value(json_writer *w, const char *key) {
  if (w->depth > 0 && w->filled[w->depth - 1]) {
    (void)fputc(',', w->file);
  }
  if (w->new_line) {
    (void)fputc('\n', w->file);
    w->new_line = 0;
  }
  if (w->depth > 0) {
    w->filled[w->depth - 1] = 1;
  }
  if (key != NULL) {
    put_string(w->file, key, strlen(key));
    (void)fputc(':', w->file);
  }
}

static void open_value(json_writer *w, const char *key, char open, char close) {
  begin_value(w, key);
  (void)fputc(open, w->file);
  if (w->depth < JSON_MAX_DEPTH) {
    w->close[w->depth] = close;
    w->filled[w->depth] = 0;
    ++w->depth;
  }
}

void json_object(json_writer *w, const char *key) {
  open_value(w, key, '{', '}');
}

void json_array(json_writer *w, const char *key) {
  open_value(w, key, '[', ']');
}

void json_end(json_writer *w) {
  if (w->depth > 0) {
    --w->depth;
    (void)fputc(w->close[w->depth], w->file);
    w->new_line = 0;
  }
}

void json_finish(json_writer *w) {
  while (w->depth > 0) {
    json_end(w);
  }
  (void)fputc('\n', w->file);
}

void json_line(json_writer *w) {
  w->new_line = 1;
}

void json_bytes(json_writer *w, const char *key, const char *text, size_t length) {
  begin_value(w, key);
  put_string(w->file, text, length);
}

void json_string(json_writer *w, const char *key, const char *text) {
  if (text != NULL) {
    json_bytes(w, key, text, strlen(text));
    return;
  }
  begin_value(w, key);
  (void)fputs("null", w->file);
}

void json_integer(json_writer *w, const char *key, int64_t value) {
  begin_value(w, key);
  (void)fprintf(w->file, "%" PRId64, value);
}

void json_unsigned(json_writer *w, const char *key, uint64_t value) {
  begin_value(w, key);
  (void)fprintf(w->file, "%" PRIu64, value);
}

void json_number(json_writer *w, const char *key, double value, int digits) {
  begin_value(w, key);
  if (isfinite(value)) {
    (void)fprintf(w->file, "%.*g", digits, value);
  } else {
    (void)fputs("null", w->file);
  }
}

void json_int32_list(json_writer *w, const char *key, const int32_t *values, size_t count) {
  json_array(w, key);
  for (size_t i = 0; i < count; ++i) {
    json_integer(w, NULL, values[i]);
  }
  json_end(w);
}

void json_boolean(json_writer *w, const char *key, int value) {
  begin_value(w, key);
  (void)fputs(value ? "true" : "false", w->file);
}
