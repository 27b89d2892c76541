/* SPDX-License-Identifier: Apache-2.0 */
/* request_builder.h: request files in words, so that a table of tests can say what is wrong with each. Words, with blanks
 * between:
 *   key=value          sets a key                 name:F32[2,3]         sets a tensor of random values
 *   !name              drops a key or tensor      name:I32[2]=5,7       sets a tensor of these values
 * A later word replaces an earlier one of the same name.
 */
#ifndef ATTN_TESTS_REQUEST_BUILDER_H
#define ATTN_TESTS_REQUEST_BUILDER_H

#include "command_fixture.h"

enum { BUILD_MAX = 40, BUILD_DATA = 1 << 16 };

typedef struct built_tensor {
  char name[64];
  char dtype[12];
  char shape[64];
  size_t bytes;
  unsigned char data[BUILD_DATA];
} built_tensor;

typedef struct built_key {
  char name[64];
  char value[256];
} built_key;

typedef struct builder {
  size_t num_keys;
  built_key keys[BUILD_MAX];
  size_t num_tensors;
  built_tensor tensors[BUILD_MAX];
  uint64_t random;
  int unaligned; /* the first tensor of one byte makes every offset odd */
} builder;

static inline uint64_t build_random(builder *made) {
  made->random = made->random * 6364136223846793005u + 1442695040888963407u;
  return made->random >> 33;
}

static inline size_t build_element(const char *dtype) {
  return strcmp(dtype, "I64") == 0 || strcmp(dtype, "F64") == 0    ? 8
         : strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0  ? 4
         : strcmp(dtype, "F16") == 0 || strcmp(dtype, "BF16") == 0 ? 2
                                                                   : 1;
}

static inline void build_drop(builder *made, const char *name) {
  for (size_t i = 0; i < made->num_keys; ++i) {
    if (strcmp(made->keys[i].name, name) == 0) {
      made->keys[i] = made->keys[--made->num_keys];
    }
  }
  for (size_t i = 0; i < made->num_tensors; ++i) {
    if (strcmp(made->tensors[i].name, name) == 0) {
      memmove(&made->tensors[i], &made->tensors[i + 1], (made->num_tensors - i - 1) * sizeof(made->tensors[0]));
      --made->num_tensors;
    }
  }
}

static inline void build_key(builder *made, const char *name, const char *value) {
  build_drop(made, name);
  built_key *key = &made->keys[made->num_keys++];
  snprintf(key->name, sizeof(key->name), "%.63s", name);
  snprintf(key->value, sizeof(key->value), "%.255s", value);
}

static inline void build_value(builder *made, built_tensor *tensor, size_t i, const char *text) {
  size_t element = build_element(tensor->dtype);
  unsigned char *at = tensor->data + i * element;
  uint64_t bits = build_random(made);
  if (tensor->dtype[0] == 'I') {
    int64_t value = text != NULL ? strtoll(text, NULL, 10) : (int64_t)(bits % 3);
    for (size_t byte = 0; byte < element; ++byte) {
      at[byte] = (unsigned char)((uint64_t)value >> (8 * byte));
    }
  } else if (strcmp(tensor->dtype, "F32") == 0) {
    float value = text != NULL ? strtof(text, NULL) : (float)bits / 1073741824.0f - 1.0f;
    memcpy(at, &value, sizeof(value));
  } else if (element == 2) {
    uint16_t base = strcmp(tensor->dtype, "F16") == 0 ? 0x3800 : 0x3F00; /* magnitudes near a half */
    uint16_t value = (uint16_t)(base | (bits & 0x7F) | (bits & 0x80) << 8);
    memcpy(at, &value, sizeof(value));
  } else {
    for (size_t byte = 0; byte < element; ++byte) {
      at[byte] = (unsigned char)(bits >> (8 * byte));
    }
  }
}

/* "F32[2,3]" or "I32[2]=5,7". */
static inline void build_tensor(builder *made, const char *name, const char *text) {
  build_drop(made, name);
  built_tensor *tensor = &made->tensors[made->num_tensors++];
  memset(tensor, 0, sizeof(*tensor));
  snprintf(tensor->name, sizeof(tensor->name), "%.63s", name);
  size_t length = strcspn(text, "[");
  snprintf(tensor->dtype, sizeof(tensor->dtype), "%.*s", (int)length, text);
  const char *shape = text + length + 1;
  snprintf(tensor->shape, sizeof(tensor->shape), "%.*s", (int)strcspn(shape, "]"), shape);
  size_t elements = 1;
  for (const char *axis = tensor->shape; *axis != '\0'; axis += *axis == ',') {
    char *end;
    elements *= (size_t)strtoull(axis, &end, 10);
    axis = end;
  }
  tensor->bytes = elements * build_element(tensor->dtype);
  if (tensor->bytes > BUILD_DATA) {
    tensor->bytes = BUILD_DATA; /* the shape then lies, which the reader has to see */
    elements = 0;
  }
  const char *value = strchr(text, '=');
  for (size_t i = 0; i < elements; ++i) {
    build_value(made, tensor, i, value != NULL ? value + 1 : NULL);
    value = value != NULL ? strchr(value + 1, ',') : NULL;
  }
}

static inline void build_words(builder *made, const char *words) {
  while (*words != '\0') {
    char word[512];
    size_t length = strcspn(words, " ");
    snprintf(word, sizeof(word), "%.*s", (int)length, words);
    words += length;
    words += strspn(words, " ");
    char *cut = word + strcspn(word, ":=");
    if (word[0] == '!') {
      build_drop(made, word + 1);
    } else if (*cut == '=') {
      *cut = '\0';
      build_key(made, word, cut + 1);
    } else if (*cut == ':') {
      *cut = '\0';
      build_tensor(made, word, cut + 1);
    }
  }
}

/* A new request of these words; free() it. */
static inline builder *build_request(const char *words, const char *changes) {
  builder *made = calloc(1, sizeof(*made));
  if (made != NULL) {
    made->random = 7;
    build_words(made, words);
    build_words(made, changes);
  }
  return made;
}

static inline int build_save(const builder *made, const char *path) {
  size_t capacity = 16384 + BUILD_MAX * (sizeof(built_key) + 256) + made->num_tensors * BUILD_DATA;
  char *file = calloc(1, capacity);
  if (file == NULL) {
    return 0;
  }
  size_t used = 8;
  size_t begin = 0;
  used += (size_t)sprintf(file + used, "{\"__metadata__\":{");
  for (size_t i = 0; i < made->num_keys; ++i) {
    used += (size_t)sprintf(file + used, "%s\"%s\":\"%s\"", i > 0 ? "," : "", made->keys[i].name, made->keys[i].value);
  }
  used += (size_t)sprintf(file + used, "}");
  for (size_t i = 0; i < made->num_tensors; ++i) {
    const built_tensor *tensor = &made->tensors[i];
    used += (size_t)sprintf(file + used, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                            tensor->name, tensor->dtype, tensor->shape, begin, begin + tensor->bytes);
    begin += tensor->bytes;
  }
  used += (size_t)sprintf(file + used, "}");
  while (used % 8 != (made->unaligned ? 1 : 0)) {
    file[used++] = ' ';
  }
  for (size_t i = 0; i < 8; ++i) {
    file[i] = (char)((used - 8) >> (8 * i));
  }
  for (size_t i = 0; i < made->num_tensors; ++i) {
    memcpy(file + used, made->tensors[i].data, made->tensors[i].bytes);
    used += made->tensors[i].bytes;
  }
  int saved = fixture_write(path, file, used);
  free(file);
  return saved;
}

#endif
