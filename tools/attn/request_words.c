/* SPDX-License-Identifier: Apache-2.0 */
/* A request without a file, for `attn explain` and `attn bench`: keys as key=value, tensors as name=TYPE[extents],
   lists of integers with their entries behind another "=". Works in every build, since no JSON is read. */
#include <stdlib.h>
#include <string.h>

#include "request.h"

/* The extents in "a,b,..." into *tensor; 0 for anything else. */
static int read_extents(char *text, st_tensor *tensor) {
  while (*text != '\0') {
    char *comma = strchr(text, ',');
    char *next = comma != NULL ? comma + 1 : text + strlen(text);
    if (comma != NULL) {
      *comma = '\0';
    }
    if (tensor->rank == ST_MAX_RANK || !cli_parse_int(text, &tensor->shape[tensor->rank]) ||
        tensor->shape[tensor->rank] < 0) {
      return 0;
    }
    ++tensor->rank;
    text = next;
  }
  return st_tensor_bytes(tensor->dtype, tensor->rank, tensor->shape, &tensor->bytes);
}

static void put_entry(const st_tensor *tensor, uint64_t i, int64_t value) {
  int32_t narrow = (int32_t)value;
  if (tensor->dtype == ST_I64) {
    memcpy(tensor->data + i * sizeof(value), &value, sizeof(value));
  } else {
    memcpy(tensor->data + i * sizeof(narrow), &narrow, sizeof(narrow));
  }
}

/* Entries "v" (for all) or "v,v,..." (one each) of an I32 or I64 tensor; 0 for anything else. */
static int read_entries(char *text, st_tensor *tensor) {
  uint64_t count = tensor->bytes / (tensor->dtype == ST_I64 ? 8 : 4);
  uint64_t found = 0;
  int64_t value = 0;
  if ((tensor->dtype != ST_I32 && tensor->dtype != ST_I64) || *text == '\0' || count == 0) {
    return 0;
  }
  tensor->data = cli_alloc(tensor->bytes, 0);
  tensor->owned = tensor->data != NULL;
  while (tensor->owned && *text != '\0') {
    char *comma = strchr(text, ',');
    char *next = comma != NULL ? comma + 1 : text + strlen(text);
    if (comma != NULL) {
      *comma = '\0';
    }
    if (!cli_parse_int(text, &value) || found == count || (comma != NULL && *next == '\0') ||
        (tensor->dtype == ST_I32 && (value < INT32_MIN || value > INT32_MAX))) {
      return 0;
    }
    put_entry(tensor, found++, value);
    text = next;
  }
  for (; found == 1 && count > 1; --count) {
    put_entry(tensor, count - 1, value);
  }
  return tensor->owned && found == count;
}

/* TYPE[a,b,...] or TYPE[a,b,...]=v,v,... into *tensor. Returns 0 for text of another form, -1 for a tensor that cannot
   be. */
static int read_shape(char *text, st_tensor *tensor) {
  char *open = strchr(text, '[');
  char *close = open != NULL ? strchr(open, ']') : NULL;
  if (close == NULL || (close[1] != '\0' && close[1] != '=')) {
    return 0;
  }
  char *entries = close[1] == '=' ? close + 2 : NULL;
  *open = '\0';
  *close = '\0';
  if (!st_dtype_from_name(text, &tensor->dtype) || !read_extents(open + 1, tensor)) {
    return -1;
  }
  return entries == NULL || read_entries(entries, tensor) ? 1 : -1;
}

static int read_word(char *word, st_file *file, cli_report *report) {
  char *equals = strchr(word, '=');
  st_tensor tensor = {.name = word};
  *equals = '\0';
  int found = read_shape(equals + 1, &tensor);
  if (found < 0) {
    free(tensor.data);
    return cli_fail(
        report, CLI_BAD_INPUT,
        "tensor %.64s: accepted: TYPE[extents], such as BF16[4,8,64], and for I32 and I64 the entries, such "
        "as I32[2]=5,9; types: F32, F16, BF16, F8_E4M3, F8_E5M2, U8, I32, I64",
        word);
  }
  for (size_t i = 0; i < file->num_tensors; ++i) {
    if (strcmp(file->tensors[i].name, word) == 0) {
      free(tensor.data);
      return cli_fail(report, CLI_BAD_INPUT, "tensor %.64s is given twice", word);
    }
  }
  for (size_t i = 0; i < file->num_metadata; ++i) {
    if (strcmp(file->metadata[i].key, word) == 0) {
      free(tensor.data);
      return cli_fail(report, CLI_BAD_INPUT, "key %.64s is given twice", word);
    }
  }
  if (found) {
    file->tensors[file->num_tensors++] = tensor;
  } else {
    file->metadata[file->num_metadata++] = (st_entry){word, equals + 1};
  }
  return CLI_OK;
}

int request_from_words(size_t count, char *const *words, st_file *file, cli_report *report) {
  memset(file, 0, sizeof(*file));
  file->tensors = calloc(count + 1, sizeof(*file->tensors));
  file->metadata = calloc(count + 1, sizeof(*file->metadata));
  int code = CLI_OK;
  if (file->tensors == NULL || file->metadata == NULL) {
    code = cli_fail(report, CLI_FAILED, "no memory for the request");
  }
  for (size_t i = 0; code == CLI_OK && i < count; ++i) {
    code = read_word(words[i], file, report);
  }
  if (code != CLI_OK) {
    st_free(file);
  }
  return code;
}
