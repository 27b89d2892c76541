/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a safetensors file, parsed by cJSON and then checked. Before cJSON sees a byte, what it would
   silently change is refused: control bytes, text that is not UTF-8, and \u0000, which would cut a name short.
   Numbers are doubles there, so only whole ones up to 2^53 are believed. */
#include <stdlib.h>
#include <string.h>

#include "safetensors.h"

#if ATTN_HAVE_CJSON
#include <cjson/cJSON.h>

#define NAME_WIDTH 64 /* of a name in a message */

/* Bytes of the UTF-8 sequence at `text`, 0 if it is none. */
static size_t utf8_sequence(const unsigned char *text, size_t bytes) {
  unsigned char first = text[0];
  size_t count = first < 0x80 ? 1 : first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3 : 4;
  if ((first >= 0x80 && first < 0xC2) || first > 0xF4 || count > bytes) {
    return 0;
  }
  for (size_t i = 1; i < count; ++i) {
    if ((text[i] & 0xC0) != 0x80) {
      return 0;
    }
  }
  if ((first == 0xE0 && text[1] < 0xA0) || (first == 0xED && text[1] >= 0xA0) || (first == 0xF0 && text[1] < 0x90) ||
      (first == 0xF4 && text[1] >= 0x90)) {
    return 0;
  }
  return count;
}

static int check_text(const char *header, size_t bytes, cli_report *report) {
  const unsigned char *text = (const unsigned char *)header;
  for (size_t i = 0; i < bytes;) {
    if (text[i] < 0x20 && text[i] != '\t' && text[i] != '\n' && text[i] != '\r') {
      return cli_fail(report, CLI_BAD_INPUT, "the header has a control byte 0x%02X at %zu; JSON text is accepted",
                      text[i], i);
    }
    if (text[i] == '\\' && bytes - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0) {
      return cli_fail(report, CLI_BAD_INPUT, "the header has \\u0000 at %zu; names and values without NUL are accepted",
                      i);
    }
    size_t step = text[i] == '\\' && i + 1 < bytes && text[i + 1] < 0x80 ? 2 : utf8_sequence(text + i, bytes - i);
    if (step == 0) {
      return cli_fail(report, CLI_BAD_INPUT, "the header is not UTF-8 at byte %zu", i);
    }
    i += step;
  }
  return CLI_OK;
}

static int whole_number(const cJSON *item, int64_t *value) {
  if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0.0 && item->valuedouble <= 9007199254740992.0)) {
    return 0;
  }
  *value = (int64_t)item->valuedouble;
  return (double)*value == item->valuedouble;
}

static int read_metadata(const cJSON *object, st_file *file, cli_report *report) {
  if (!cJSON_IsObject(object)) {
    return cli_fail(report, CLI_BAD_INPUT, "__metadata__ is not an object of strings");
  }
  size_t count = 0;
  for (const cJSON *item = object->child; item != NULL; item = item->next) {
    ++count;
  }
  file->metadata = calloc(count + 1, sizeof(*file->metadata));
  if (file->metadata == NULL) {
    return cli_fail(report, CLI_FAILED, "no memory for %zu keys", count);
  }
  for (const cJSON *item = object->child; item != NULL; item = item->next) {
    if (!cJSON_IsString(item)) {
      return cli_fail(report, CLI_BAD_INPUT, "key %.*s in __metadata__ is not a string; all values are strings",
                      NAME_WIDTH, item->string);
    }
    file->metadata[file->num_metadata].key = item->string;
    file->metadata[file->num_metadata++].value = item->valuestring;
  }
  return CLI_OK;
}

static int read_shape(const cJSON *array, st_tensor *tensor, cli_report *report) {
  if (!cJSON_IsArray(array)) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor %.*s: shape is not an array", NAME_WIDTH, tensor->name);
  }
  for (const cJSON *item = array->child; item != NULL; item = item->next) {
    if (tensor->rank == ST_MAX_RANK) {
      return cli_fail(report, CLI_BAD_INPUT, "tensor %.*s has more than %d axes", NAME_WIDTH, tensor->name,
                      (int)ST_MAX_RANK);
    }
    if (!whole_number(item, &tensor->shape[tensor->rank++])) {
      return cli_fail(report, CLI_BAD_INPUT, "tensor %.*s: shape[%d] is not a whole number from 0 to 2^53", NAME_WIDTH,
                      tensor->name, (int)tensor->rank - 1);
    }
  }
  return CLI_OK;
}

static int read_offsets(const cJSON *array, uint64_t data_bytes, int64_t *begin, int64_t *end, st_tensor *tensor,
                        cli_report *report) {
  const cJSON *first = cJSON_IsArray(array) ? array->child : NULL;
  const cJSON *second = first != NULL ? first->next : NULL;
  if (second == NULL || second->next != NULL || !whole_number(first, begin) || !whole_number(second, end)) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor %.*s: data_offsets is not two whole numbers from 0 to 2^53",
                    NAME_WIDTH, tensor->name);
  }
  if (*begin > *end || (uint64_t)*end > data_bytes) {
    return cli_fail(report, CLI_BAD_INPUT,
                    "tensor %.*s: data_offsets [%lld, %lld] do not lie in the %llu bytes of data that the file has",
                    NAME_WIDTH, tensor->name, (long long)*begin, (long long)*end, (unsigned long long)data_bytes);
  }
  if (!st_tensor_bytes(tensor->dtype, tensor->rank, tensor->shape, &tensor->bytes)) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor %.*s: its shape's bytes do not fit 64 bits", NAME_WIDTH,
                    tensor->name);
  }
  if (tensor->bytes != (uint64_t)(*end - *begin)) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor %.*s: data_offsets hold %lld bytes, its type and shape need %llu",
                    NAME_WIDTH, tensor->name, (long long)(*end - *begin), (unsigned long long)tensor->bytes);
  }
  return CLI_OK;
}

static int read_tensor(const cJSON *object, unsigned char *data, uint64_t data_bytes, st_tensor *tensor,
                       cli_report *report) {
  tensor->name = object->string;
  const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(object, "dtype");
  const cJSON *shape = cJSON_GetObjectItemCaseSensitive(object, "shape");
  const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(object, "data_offsets");
  if (!cJSON_IsObject(object) || dtype == NULL || shape == NULL || offsets == NULL || cJSON_GetArraySize(object) != 3) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor %.*s is not an object of dtype, shape and data_offsets", NAME_WIDTH,
                    tensor->name);
  }
  if (!cJSON_IsString(dtype) || !st_dtype_from_name(dtype->valuestring, &tensor->dtype)) {
    return cli_fail(report, CLI_BAD_INPUT,
                    "tensor %.*s has type %.16s; accepted: F32, F16, BF16, F8_E4M3, F8_E5M2, U8, I32, I64", NAME_WIDTH,
                    tensor->name, cJSON_IsString(dtype) ? dtype->valuestring : "(not a string)");
  }
  int64_t begin = 0;
  int64_t end = 0;
  int code = read_shape(shape, tensor, report);
  if (code == CLI_OK) {
    code = read_offsets(offsets, data_bytes, &begin, &end, tensor, report);
  }
  tensor->data = data + begin;
  return code;
}

static int by_data(const void *left, const void *right) {
  const st_tensor *a = *(const st_tensor *const *)left;
  const st_tensor *b = *(const st_tensor *const *)right;
  if (a->data != b->data) {
    return a->data < b->data ? -1 : 1;
  }
  return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static int by_name(const void *left, const void *right) {
  return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* The tensors lie one after the other and fill the data. */
static int check_coverage(st_file *file, const unsigned char *data, uint64_t data_bytes, cli_report *report) {
  const st_tensor **order = calloc(file->num_tensors + 1, sizeof(*order));
  if (order == NULL) {
    return cli_fail(report, CLI_FAILED, "no memory for %zu tensors", file->num_tensors);
  }
  for (size_t i = 0; i < file->num_tensors; ++i) {
    order[i] = &file->tensors[i];
  }
  qsort(order, file->num_tensors, sizeof(*order), by_data);
  int code = CLI_OK;
  uint64_t covered = 0;
  for (size_t i = 0; code == CLI_OK && i < file->num_tensors; ++i) {
    uint64_t begin = (uint64_t)(order[i]->data - data);
    if (begin != covered) {
      code = cli_fail(report, CLI_BAD_INPUT, "tensor %.*s starts at byte %llu of the data, %s byte %llu", NAME_WIDTH,
                      order[i]->name, (unsigned long long)begin,
                      begin < covered ? "inside a tensor that ends at" : "after a hole that starts at",
                      (unsigned long long)covered);
    }
    covered = begin + order[i]->bytes;
  }
  if (code == CLI_OK && covered != data_bytes) {
    code = cli_fail(report, CLI_BAD_INPUT, "the tensors end at byte %llu of the data, the file has %llu",
                    (unsigned long long)covered, (unsigned long long)data_bytes);
  }
  free(order);
  return code;
}

static int check_unique(const char *kind, const char **names, size_t count, cli_report *report) {
  qsort(names, count, sizeof(*names), by_name);
  for (size_t i = 1; i < count; ++i) {
    if (strcmp(names[i - 1], names[i]) == 0) {
      return cli_fail(report, CLI_BAD_INPUT, "%s %.*s is given twice", kind, NAME_WIDTH, names[i]);
    }
  }
  return CLI_OK;
}

static int check_names(const st_file *file, cli_report *report) {
  size_t most = file->num_tensors > file->num_metadata ? file->num_tensors : file->num_metadata;
  const char **names = calloc(most + 1, sizeof(*names));
  if (names == NULL) {
    return cli_fail(report, CLI_FAILED, "no memory for %zu names", most);
  }
  for (size_t i = 0; i < file->num_tensors; ++i) {
    names[i] = file->tensors[i].name;
  }
  int code = check_unique("tensor", names, file->num_tensors, report);
  for (size_t i = 0; code == CLI_OK && i < file->num_metadata; ++i) {
    names[i] = file->metadata[i].key;
  }
  if (code == CLI_OK) {
    code = check_unique("key", names, file->num_metadata, report);
  }
  free(names);
  return code;
}

static int read_entries(const cJSON *root, unsigned char *data, uint64_t data_bytes, st_file *file,
                        cli_report *report) {
  size_t count = 0;
  for (const cJSON *item = root->child; item != NULL; item = item->next) {
    ++count;
  }
  file->tensors = calloc(count + 1, sizeof(*file->tensors));
  if (file->tensors == NULL) {
    return cli_fail(report, CLI_FAILED, "no memory for %zu tensors", count);
  }
  for (const cJSON *item = root->child; item != NULL; item = item->next) {
    int code;
    if (strcmp(item->string, "__metadata__") != 0) {
      code = read_tensor(item, data, data_bytes, &file->tensors[file->num_tensors++], report);
    } else if (file->metadata != NULL) {
      code = cli_fail(report, CLI_BAD_INPUT, "__metadata__ is given twice");
    } else {
      code = read_metadata(item, file, report);
    }
    if (code != CLI_OK) {
      return code;
    }
  }
  return CLI_OK;
}

int st_parse_header(const char *header, size_t bytes, unsigned char *data, uint64_t data_bytes, st_file *file,
                    cli_report *report) {
  int code = check_text(header, bytes, report);
  if (code != CLI_OK) {
    return code;
  }
  const char *end = header;
  cJSON *root = bytes > 0 && header[0] == '{' ? cJSON_ParseWithLengthOpts(header, bytes, &end, 0) : NULL;
  file->json = root;
  if (root == NULL) {
    return cli_fail(report, CLI_BAD_INPUT, "the header is not a JSON object (the parser stopped at byte %zu of %zu)",
                    (size_t)(end - header), bytes);
  }
  for (; end < header + bytes; ++end) {
    if (*end != ' ' && *end != '\n' && *end != '\r' && *end != '\t') {
      return cli_fail(report, CLI_BAD_INPUT, "the header goes on after its JSON object, at byte %zu",
                      (size_t)(end - header));
    }
  }
  code = read_entries(root, data, data_bytes, file, report);
  if (code == CLI_OK) {
    code = check_names(file, report);
  }
  return code == CLI_OK ? check_coverage(file, data, data_bytes, report) : code;
}

static void free_json(void *json) {
  cJSON_Delete(json);
}

#else

int st_parse_header(const char *header, size_t bytes, unsigned char *data, uint64_t data_bytes, st_file *file,
                    cli_report *report) {
  (void)header, (void)bytes, (void)data, (void)data_bytes, (void)file;
  return cli_fail(report, CLI_BAD_INPUT, "this build is without cJSON, which reads the files' headers");
}

static void free_json(void *json) {
  (void)json;
}

#endif

void st_free(st_file *file) {
  for (size_t i = 0; i < file->num_tensors; ++i) {
    if (file->tensors[i].owned) {
      free(file->tensors[i].data);
    }
  }
  free(file->tensors);
  free(file->metadata);
  free(file->content);
  free_json(file->json);
  memset(file, 0, sizeof(*file));
}
