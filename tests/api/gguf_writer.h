/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_writer.h: GGUF files in memory, written piece by piece: right or wrong is the caller's choice. */
#ifndef ATTN_TESTS_GGUF_WRITER_H
#define ATTN_TESTS_GGUF_WRITER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "gguf.h"

/* A file being written. */
typedef struct gguf_writer {
  uint8_t bytes[8192];
  size_t count;
} gguf_writer;

static inline void gguf_put(gguf_writer *w, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) {
    assert_true(w->count < sizeof w->bytes);
    w->bytes[w->count++] = (uint8_t)(value >> (8 * i));
  }
}

static inline void gguf_put_text(gguf_writer *w, const char *text) {
  gguf_put(w, strlen(text), 8);
  for (; *text != '\0'; text++) {
    gguf_put(w, (unsigned char)*text, 1);
  }
}

static inline void gguf_put_key(gguf_writer *w, const char *key, uint32_t kind) {
  gguf_put_text(w, key);
  gguf_put(w, kind, 4);
}

/* Starts over. */
static inline void gguf_put_head(gguf_writer *w, uint32_t version, uint64_t tensors, uint64_t keys) {
  memcpy(w->bytes, "GGUF", 4);
  w->count = 4;
  gguf_put(w, version, 4);
  gguf_put(w, tensors, 8);
  gguf_put(w, keys, 8);
}

static inline void gguf_put_tensor(gguf_writer *w, const char *name, uint32_t rank, uint64_t columns, uint64_t rows,
                                   uint32_t type, uint64_t offset) {
  gguf_put_text(w, name);
  gguf_put(w, rank, 4);
  gguf_put(w, columns, 8);
  if (rank > 1) {
    gguf_put(w, rows, 8);
  }
  gguf_put(w, type, 4);
  gguf_put(w, offset, 8);
}

/* The data section: `count` bytes after padding to 32. */
static inline void gguf_put_data(gguf_writer *w, size_t count) {
  while (w->count % 32 != 0) {
    gguf_put(w, 0xee, 1);
  }
  for (size_t i = 0; i < count; i++) {
    gguf_put(w, i * 37 + 11, 1);
  }
}

#endif
