/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_mutate.c: how libFuzzer changes a safetensors file, for fuzzers alone (the corpora are replayed without). Bytes
 * changed at random mostly break the JSON header or its offsets; here a file that can be read is changed as what it is:
 * keys, values, types, extents, entries; and written again with the offsets that it then needs. One in four changes is
 * of plain bytes all the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "request.h"

/* Of libFuzzer. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

enum { MAX_PIECES = 48, NAME_BYTES = 64, MAX_DATA = 1 << 14 };

typedef struct piece {
  char name[NAME_BYTES];
  st_dtype dtype;
  int32_t rank;
  int64_t shape[ST_MAX_RANK];
  size_t bytes;
  unsigned char *data; /* [MAX_DATA] */
} piece;

typedef struct word {
  char key[NAME_BYTES];
  char value[NAME_BYTES];
} word;

typedef struct content {
  size_t num_pieces;
  piece pieces[MAX_PIECES];
  size_t num_words;
  word words[MAX_PIECES];
  uint32_t random;
} content;

static uint32_t draw(content *c, uint32_t count) {
  c->random = c->random * 1664525u + 1013904223u;
  return (c->random >> 8) % count;
}

/* ---- Reading and writing ----------------------------------------------------------------------------------------- */

static size_t header_bytes(const uint8_t *data, size_t size) {
  uint64_t bytes = 0;
  for (size_t i = 8; size >= 8 && i > 0; i--) {
    bytes = bytes << 8 | data[i - 1];
  }
  return size >= 8 && bytes <= size - 8 ? (size_t)bytes : 0;
}

static int resize(content *c, piece *p) {
  uint64_t bytes;
  if (!st_tensor_bytes(p->dtype, p->rank, p->shape, &bytes) || bytes > MAX_DATA) {
    return 0;
  }
  for (size_t i = p->bytes; i < bytes; i++) { /* mostly small numbers, whatever the type */
    p->data[i] = (unsigned char)(draw(c, 4) == 0 ? draw(c, 256) : i % 4 == 3 ? 0x3F : draw(c, 3));
  }
  p->bytes = (size_t)bytes;
  return 1;
}

static piece *new_piece(content *c) {
  if (c->num_pieces == MAX_PIECES) {
    return NULL;
  }
  piece *p = &c->pieces[c->num_pieces];
  memset(p, 0, sizeof *p);
  p->data = fuzz_alloc(MAX_DATA);
  c->num_pieces++;
  return p;
}

static int load(content *c, const st_file *file) {
  for (size_t i = 0; i < file->num_tensors; i++) {
    const st_tensor *tensor = &file->tensors[i];
    piece *p = tensor->bytes <= MAX_DATA ? new_piece(c) : NULL;
    if (p == NULL) {
      return 0;
    }
    (void)snprintf(p->name, sizeof p->name, "%s", tensor->name);
    p->dtype = tensor->dtype;
    p->rank = tensor->rank;
    memcpy(p->shape, tensor->shape, sizeof p->shape);
    p->bytes = (size_t)tensor->bytes;
    memcpy(p->data, tensor->data, p->bytes);
  }
  for (size_t i = 0; i < file->num_metadata && i < MAX_PIECES; i++) {
    (void)snprintf(c->words[i].key, NAME_BYTES, "%s", file->metadata[i].key);
    (void)snprintf(c->words[i].value, NAME_BYTES, "%s", file->metadata[i].value);
    c->num_words++;
  }
  return 1;
}

static size_t put(char *text, size_t used, size_t room, const char *more) {
  size_t length = strlen(more);
  if (used + length < room) {
    memcpy(text + used, more, length);
  }
  return used + length;
}

static size_t put_quoted(char *text, size_t used, size_t room, const char *string) {
  used = put(text, used, room, "\"");
  for (; *string != '\0'; string++) {
    char one[8] = {*string, '\0'};
    if ((unsigned char)*string < 0x20 || *string == '"' || *string == '\\') {
      (void)snprintf(one, sizeof one, "\\u%04x", (unsigned)(unsigned char)*string);
    }
    used = put(text, used, room, one);
  }
  return put(text, used, room, "\"");
}

static size_t put_piece(const piece *p, char *text, size_t used, size_t room, size_t begin) {
  char number[80];
  used = put_quoted(text, used, room, p->name);
  (void)snprintf(number, sizeof number, ":{\"dtype\":\"%s\",\"shape\":[", st_dtype_name(p->dtype));
  used = put(text, used, room, number);
  for (int32_t axis = 0; axis < p->rank; axis++) {
    (void)snprintf(number, sizeof number, "%s%lld", axis > 0 ? "," : "", (long long)p->shape[axis]);
    used = put(text, used, room, number);
  }
  (void)snprintf(number, sizeof number, "],\"data_offsets\":[%zu,%zu]}", begin, begin + p->bytes);
  return put(text, used, room, number);
}

/* The file's bytes in data[room], or 0 when they do not fit. */
static size_t save(const content *c, uint8_t *data, size_t room) {
  char *text = (char *)data;
  size_t used = put(text, 8, room, "{\"__metadata__\":{");
  size_t begin = 0;
  for (size_t i = 0; i < c->num_words; i++) {
    used = i > 0 ? put(text, used, room, ",") : used;
    used = put_quoted(text, used, room, c->words[i].key);
    used = put(text, used, room, ":");
    used = put_quoted(text, used, room, c->words[i].value);
  }
  used = put(text, used, room, "}");
  for (size_t i = 0; i < c->num_pieces; i++) {
    used = put_piece(&c->pieces[i], text, put(text, used, room, ","), room, begin);
    begin += c->pieces[i].bytes;
  }
  used = put(text, used, room, "}");
  while (used % 8 != 0) {
    used = put(text, used, room, " ");
  }
  if (used >= room || begin > room - used) {
    return 0;
  }
  for (size_t i = 0; i < 8; i++) {
    data[i] = (uint8_t)((uint64_t)(used - 8) >> (8 * i));
  }
  for (size_t i = 0; i < c->num_pieces; i++) {
    if (c->pieces[i].bytes > 0) {
      memcpy(data + used, c->pieces[i].data, c->pieces[i].bytes);
    }
    used += c->pieces[i].bytes;
  }
  return used;
}

/* ---- Changes ----------------------------------------------------------------------------------------------------- */

static int64_t draw_extent(content *c) {
  static const int64_t extents[] = {0, 1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 16, 17, 32, 64, 65, 4096};
  if (c->num_pieces > 0 && draw(c, 2) == 0) { /* what another tensor says */
    const piece *p = &c->pieces[draw(c, (uint32_t)c->num_pieces)];
    if (p->rank > 0) {
      return p->shape[draw(c, (uint32_t)p->rank)];
    }
  }
  return extents[draw(c, sizeof extents / sizeof extents[0])];
}

static void set_word(content *c) {
  static const char *const values[] = {"0", "1", "-1", "2",   "3",     "7",   "16",     "64",         "4096",
                                       "",  "e", "-0", "0.5", "1e-3",  "1e9", "3.4e38", "2147483647", "auto",
                                       "a", "5", "9",  "128", "1e-40", ".5",  "50.0",   "-2"};
  static const char *const formats[] = {"float32",
                                        "float16",
                                        "bfloat16",
                                        "fp8_e4m3",
                                        "fp8_e5m2",
                                        "auto",
                                        "int8_per_token_head",
                                        "int4_per_token_head+separate_scales"};
  const key_row *row = &request_keys[draw(c, KEY_COUNT)];
  size_t at = 0;
  while (at < c->num_words && strcmp(c->words[at].key, row->name) != 0) {
    at++;
  }
  if (at == MAX_PIECES) {
    return;
  }
  c->num_words = at == c->num_words ? at + 1 : c->num_words;
  const char *value = values[draw(c, sizeof values / sizeof values[0])];
  if (row->kind == KEY_IS_CHOICE && draw(c, 8) != 0) {
    const char *choice = row->choices[draw(c, KEY_MAX_CHOICES)];
    value = choice != NULL ? choice : row->choices[0];
  } else if (row->kind == KEY_IS_FORMAT) {
    value = formats[draw(c, sizeof formats / sizeof formats[0])];
  }
  (void)snprintf(c->words[at].key, NAME_BYTES, "%s", row->name);
  (void)snprintf(c->words[at].value, NAME_BYTES, "%s", value);
}

static void set_entries(content *c, piece *p) {
  static const int64_t entries[] = {0,  1,  2,  3,  4,       5,         7,         8,        15,
                                    16, 17, -1, -2, 1 << 30, INT32_MAX, INT32_MIN, INT64_MAX};
  size_t element = attn_dtype_bytes(st_dtype_of_library(p->dtype));
  if (p->bytes == 0) {
    return;
  }
  if (p->dtype != ST_I32 && p->dtype != ST_I64) {
    (void)LLVMFuzzerMutate(p->data, p->bytes, p->bytes);
    return;
  }
  int64_t value = entries[draw(c, sizeof entries / sizeof entries[0])];
  size_t at = draw(c, (uint32_t)(p->bytes / element)) * element;
  for (size_t i = 0; i < element; i++) {
    p->data[at + i] = (unsigned char)((uint64_t)value >> (8 * i));
  }
}

static void add_tensor(content *c) {
  int id = (int)draw(c, TENSOR_COUNT);
  const tensor_row *row = &request_tensors[id];
  piece *p = new_piece(c);
  if (p == NULL) {
    return;
  }
  (void)snprintf(p->name, sizeof p->name, "%s", row->name);
  if (id >= TENSOR_OUT_PART) {
    (void)snprintf(p->name, sizeof p->name, "%s%u", row->name, (unsigned)draw(c, 3));
  }
  do {
    p->dtype = (st_dtype)draw(c, ST_DTYPE_COUNT);
  } while ((row->dtypes >> p->dtype & 1u) == 0);
  p->rank = row->min_rank + (int32_t)draw(c, (uint32_t)(row->max_rank - row->min_rank + 1));
  for (int32_t axis = 0; axis < p->rank; axis++) {
    p->shape[axis] = draw_extent(c);
  }
  if (!resize(c, p)) {
    free(p->data);
    c->num_pieces--;
  }
}

/* Every axis of one extent gets another, so that tensors go on agreeing. */
static int change_everywhere(content *c) {
  const piece *p = &c->pieces[draw(c, (uint32_t)c->num_pieces)];
  if (p->rank == 0) {
    return 1;
  }
  int64_t from = p->shape[draw(c, (uint32_t)p->rank)];
  int64_t to = draw_extent(c);
  for (size_t i = 0; i < c->num_pieces; i++) {
    for (int32_t axis = 0; axis < c->pieces[i].rank; axis++) {
      int64_t *extent = &c->pieces[i].shape[axis];
      *extent = *extent == from ? to : *extent;
    }
    if (!resize(c, &c->pieces[i])) {
      return 0;
    }
  }
  return 1;
}

static int change_piece(content *c) {
  piece *p = &c->pieces[draw(c, (uint32_t)c->num_pieces)];
  piece *other = &c->pieces[draw(c, (uint32_t)c->num_pieces)];
  char name[NAME_BYTES];
  switch (draw(c, 8)) {
  case 0:
    p->dtype = (st_dtype)draw(c, ST_DTYPE_COUNT);
    return resize(c, p);
  case 1:
    if (p->rank > 0) {
      p->shape[draw(c, (uint32_t)p->rank)] = draw_extent(c);
    }
    return resize(c, p);
  case 2:
    free(p->data);
    *p = c->pieces[--c->num_pieces];
    return 1;
  case 3:
    memcpy(name, p->name, sizeof name);
    memcpy(p->name, other->name, sizeof name);
    memcpy(other->name, name, sizeof name);
    return 1;
  case 4:
    return change_everywhere(c);
  default:
    set_entries(c, p);
    return 1;
  }
}

/* 0 when the file became too large. */
static int change(content *c) {
  uint32_t kind = draw(c, 8);
  if (kind == 0) {
    add_tensor(c);
  } else if (kind == 1 && c->num_words > 0) {
    c->words[draw(c, (uint32_t)c->num_words)] = c->words[c->num_words - 1];
    c->num_words--;
  } else if (kind < 4 || c->num_pieces == 0) {
    set_word(c);
  } else {
    return change_piece(c);
  }
  return 1;
}

/* The changed file in data[max_size], or 0. */
static size_t change_file(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
  static content c;
  cli_report report;
  st_file file;
  size_t header = header_bytes(data, size);
  size_t saved = 0;
  memset(&c, 0, sizeof c);
  memset(&file, 0, sizeof file);
  c.random = seed;
  uint8_t *copy = fuzz_copy(data, size);
  if (header > 0 &&
      st_parse_header((const char *)copy + 8, header, copy + 8 + header, size - 8 - header, &file, &report) == CLI_OK &&
      load(&c, &file)) {
    int fine = 1;
    for (uint32_t changes = 1 + draw(&c, 3); fine && changes > 0; changes--) {
      fine = change(&c);
    }
    saved = fine ? save(&c, data, max_size) : 0;
  }
  if (saved == 0) {
    memcpy(data, copy, size);
  }
  for (size_t i = 0; i < c.num_pieces; i++) {
    free(c.pieces[i].data);
  }
  st_free(&file);
  free(copy);
  return saved;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
  if (seed % 4 != 0) {
    size_t saved = change_file(data, size, max_size, seed);
    if (saved > 0) {
      return saved;
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
