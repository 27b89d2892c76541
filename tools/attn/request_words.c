/* SPDX-License-Identifier: Apache-2.0 */
/* A request without a file, for `attn explain`: keys as key=value, tensors as name=TYPE[extents]. Works in every build,
   since no JSON is read. */
#include <stdlib.h>
#include <string.h>

#include "request.h"

/* TYPE[a,b,...] into *tensor. Returns 0 for text of another form, -1 for a tensor that cannot be. */
static int read_shape(char *text, st_tensor *tensor) {
  char *open = strchr(text, '[');
  size_t length = strlen(text);
  if (open == NULL || text[length - 1] != ']') {
    return 0;
  }
  *open = '\0';
  text[length - 1] = '\0';
  if (!st_dtype_from_name(text, &tensor->dtype)) {
    return -1;
  }
  char *cursor = open + 1;
  while (*cursor != '\0') {
    char *comma = strchr(cursor, ',');
    char *next = comma != NULL ? comma + 1 : cursor + strlen(cursor);
    if (comma != NULL) {
      *comma = '\0';
    }
    if (tensor->rank == ST_MAX_RANK || !cli_parse_int(cursor, &tensor->shape[tensor->rank]) ||
        tensor->shape[tensor->rank] < 0) {
      return -1;
    }
    ++tensor->rank;
    cursor = next;
  }
  return st_tensor_bytes(tensor->dtype, tensor->rank, tensor->shape, &tensor->bytes) ? 1 : -1;
}

static int read_word(char *word, st_file *file, cli_report *report) {
  char *equals = strchr(word, '=');
  st_tensor tensor = {.name = word};
  *equals = '\0';
  int found = read_shape(equals + 1, &tensor);
  if (found < 0) {
    return cli_fail(report, CLI_BAD_INPUT,
                    "tensor %.64s: accepted: TYPE[extents], such as BF16[4,8,64]; types: F32, "
                    "F16, BF16, F8_E4M3, F8_E5M2, U8, I32, I64",
                    word);
  }
  for (size_t i = 0; i < file->num_tensors; ++i) {
    if (strcmp(file->tensors[i].name, word) == 0) {
      return cli_fail(report, CLI_BAD_INPUT, "tensor %.64s is given twice", word);
    }
  }
  for (size_t i = 0; i < file->num_metadata; ++i) {
    if (strcmp(file->metadata[i].key, word) == 0) {
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
