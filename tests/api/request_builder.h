/* SPDX-License-Identifier: Apache-2.0 */
/* request_builder.h: request files in words, so that a table of tests can say what is wrong with each; good requests to
 * start from; and what is expected of a run. Words, with blanks between:
 *   key=value          sets a key                 name:F32[2,3]         sets a tensor of random values
 *   !name              drops a key or tensor      name:I32[2]=5,7       sets a tensor of these values
 * A later word replaces an earlier one of the same name.
 */
#ifndef ATTN_TESTS_REQUEST_BUILDER_H
#define ATTN_TESTS_REQUEST_BUILDER_H

#include <setjmp.h>

#include <cmocka.h>

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

/* ---- Good requests ---- */

#define REQUEST_CACHED                                                                                                 \
  "op=attention q:F32[5,4,8] k_cache:F32[6,4,2,8] v_cache:F32[6,4,2,8] block_table:I32[2,2]=1,2,3,4 "                  \
  "query_start_loc:I32[3]=0,3,5 seq_lens:I32[2]=5,7"
#define REQUEST_WRITTEN REQUEST_CACHED " k:F32[5,2,8] v:F32[5,2,8] slot_mapping:I64[5]=6,7,8,17,18"
#define REQUEST_DIRECT "op=attention q:F32[5,4,8] k:F32[5,2,8] v:F32[5,2,6] query_start_loc:I32[3]=0,3,5"
#define REQUEST_CROSS                                                                                                  \
  "op=attention q:F32[5,4,8] k:F32[9,2,8] v:F32[9,2,8] query_start_loc:I32[3]=0,3,5 kv_start_loc:I32[3]=0,4,9"
#define REQUEST_WRITE                                                                                                  \
  "op=cache_write k:F32[3,2,8] v:F32[3,2,4] k_cache:BF16[4,4,2,8] v_cache:F16[4,4,2,4] slot_mapping:I64[3]=5,-1,9"
#define REQUEST_GATHER                                                                                                 \
  "op=cache_gather k_cache:BF16[4,4,2,8] v_cache:F16[4,4,2,4] block_table:I32[2,2]=1,2,3,0 seq_lens:I32[2]=6,5"
#define REQUEST_MERGE "op=merge out_0:F32[3,2,4] lse_0:F32[3,2] out_1:F16[3,2,4] lse_1:F32[3,2]"

/* ---- Files and runs ---- */

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

/* What a request needs around it: where it lies and where its result goes. */
typedef struct request_files {
  fixture fix;
  char in_path[300];
  char out_path[300];
} request_files;

static inline int request_open(request_files *files) {
  if (!fixture_open(&files->fix)) {
    return 0;
  }
  fixture_path(&files->fix, "in.safetensors", files->in_path, sizeof(files->in_path));
  fixture_path(&files->fix, "out.safetensors", files->out_path, sizeof(files->out_path));
  return 1;
}

static inline int request_save(const request_files *files, const char *base, const char *changes) {
  builder *made = build_request(base, changes);
  int saved = made != NULL && build_save(made, files->in_path);
  free(made);
  return saved;
}

/* Whether the request runs: exit code 0, a file, nothing on standard error. Says so where it does not. */
static inline int request_runs(request_files *files, const char *base, const char *changes, const char *flag,
                               const char *value) {
  fixture *fix = &files->fix;
  unlink(files->out_path);
  if (request_save(files, base, changes) &&
      fixture_run(fix, "run", files->in_path, "-o", files->out_path, flag, value, NULL) == 0 && fix->err[0] == '\0' &&
      access(files->out_path, F_OK) == 0) {
    return 1;
  }
  print_error("%.24s with \"%s\" %s: exit %d: %s\n", base, changes, flag != NULL ? flag : "", fix->status, fix->err);
  return 0;
}

/* Files of the folder whose name starts so. */
static inline int request_count_files(const request_files *files, const char *prefix) {
  int count = 0;
  DIR *folder = opendir(files->fix.folder);
  for (struct dirent *entry = folder != NULL ? readdir(folder) : NULL; entry != NULL; entry = readdir(folder)) {
    count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
  }
  if (folder != NULL) {
    closedir(folder);
  }
  return count;
}

/* Whether the request is refused: exit code 2, one line that has `named`, and the OUT that existed as it was. */
static inline int request_is_refused(request_files *files, const char *base, const char *changes, const char *flag,
                                     const char *value, const char *named) {
  static const char before[] = "what was there before";
  fixture *fix = &files->fix;
  int saved = request_save(files, base, changes) && fixture_write(files->out_path, before, sizeof(before));
  int code = fixture_run(fix, "run", files->in_path, "-o", files->out_path, flag, value, NULL);
  if (!saved || code != 2 || !fixture_one_line(fix) || strstr(fix->err, named) == NULL || fix->out[0] != '\0') {
    print_error("%.24s with \"%s\" %s: exit %d, expected 2 and a line with \"%s\", found: %s\n", base, changes,
                flag != NULL ? flag : "", code, named, fix->err);
    return 0;
  }
  size_t bytes = 0;
  unsigned char *after = fixture_read(files->out_path, &bytes);
  int kept = after != NULL && bytes == sizeof(before) && memcmp(after, before, bytes) == 0;
  free(after);
  if (!kept || request_count_files(files, "out.safetensors") != 1) {
    print_error("%.24s with \"%s\": the output file that existed is gone or has company\n", base, changes);
    return 0;
  }
  return 1;
}

/* Where a tensor of a result lies in the file, and how many bytes it has; NULL if it is not as `like` ("dtype":...). */
static inline const unsigned char *request_result(const unsigned char *file, const char *name, const char *like,
                                                  size_t *bytes) {
  char word[160];
  uint64_t header = 0;
  size_t begin = 0;
  size_t end = 0;
  memcpy(&header, file, sizeof(header)); /* little-endian, as this machine */
  snprintf(word, sizeof(word), "\"%s\":{%s,\"data_offsets\":[", name, like);
  const char *found = strstr((const char *)file + 8, word);
  if (found == NULL || sscanf(found + strlen(word), "%zu,%zu", &begin, &end) != 2) {
    return NULL;
  }
  *bytes = end - begin;
  return file + 8 + header + begin;
}

#endif
