/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a safetensors file: the header is text of our own making (names and values are escaped), padded with
   spaces so that the data starts at a multiple of 8. The file grows beside its target under a name of its own and
   is renamed at the end, so a target that existed is either untouched or wholly new. */
#define _XOPEN_SOURCE 700
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "safetensors.h"

/* Text that grows; `failed` once memory ran out. */
typedef struct growing_text {
  char *data;
  size_t used;
  size_t capacity;
  int failed;
} growing_text;

static void append_bytes(growing_text *text, const char *bytes, size_t count) {
  if (text->failed) {
    return;
  }
  if (count > text->capacity - text->used) {
    size_t capacity = (text->capacity + count) * 2;
    char *larger = realloc(text->data, capacity);
    if (larger == NULL) {
      text->failed = 1;
      return;
    }
    text->data = larger;
    text->capacity = capacity;
  }
  memcpy(text->data + text->used, bytes, count);
  text->used += count;
}

static void append(growing_text *text, const char *string) {
  append_bytes(text, string, strlen(string));
}

static void append_number(growing_text *text, uint64_t number) {
  char digits[24];
  snprintf(digits, sizeof(digits), "%llu", (unsigned long long)number);
  append(text, digits);
}

static void append_quoted(growing_text *text, const char *string) {
  append(text, "\"");
  for (; *string != '\0'; ++string) {
    unsigned char byte = (unsigned char)*string;
    char escaped[8];
    if (byte == '"' || byte == '\\') {
      snprintf(escaped, sizeof(escaped), "\\%c", byte);
    } else if (byte < 0x20) {
      snprintf(escaped, sizeof(escaped), "\\u%04x", byte);
    } else {
      snprintf(escaped, sizeof(escaped), "%c", byte);
    }
    append(text, escaped);
  }
  append(text, "\"");
}

static void append_tensor(growing_text *text, const st_tensor *tensor, uint64_t begin) {
  append_quoted(text, tensor->name);
  append(text, ":{\"dtype\":");
  append_quoted(text, st_dtype_name(tensor->dtype));
  append(text, ",\"shape\":[");
  for (int32_t i = 0; i < tensor->rank; ++i) {
    append(text, i > 0 ? "," : "");
    append_number(text, (uint64_t)tensor->shape[i]);
  }
  append(text, "],\"data_offsets\":[");
  append_number(text, begin);
  append(text, ",");
  append_number(text, begin + tensor->bytes);
  append(text, "]}");
}

static void make_header(growing_text *text, const st_tensor *tensors, size_t num_tensors, const st_entry *metadata,
                        size_t num_metadata) {
  append(text, "{\"__metadata__\":{");
  for (size_t i = 0; i < num_metadata; ++i) {
    append(text, i > 0 ? "," : "");
    append_quoted(text, metadata[i].key);
    append(text, ":");
    append_quoted(text, metadata[i].value);
  }
  append(text, "}");
  uint64_t begin = 0;
  for (size_t i = 0; i < num_tensors; ++i) {
    append(text, ",");
    append_tensor(text, &tensors[i], begin);
    begin += tensors[i].bytes;
  }
  append(text, "}");
  while (!text->failed && text->used % 8 != 0) {
    append(text, " ");
  }
}

static int write_all(int descriptor, const void *data, uint64_t bytes) {
  const unsigned char *cursor = data;
  while (bytes > 0) {
    ssize_t count = write(descriptor, cursor, bytes > 1 << 30 ? 1 << 30 : (size_t)bytes);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return -1;
    }
    cursor += count;
    bytes -= (uint64_t)count;
  }
  return 0;
}

static int write_file(int descriptor, const growing_text *header, const st_tensor *tensors, size_t num_tensors) {
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) {
    length[i] = (unsigned char)((uint64_t)header->used >> (8 * i));
  }
  if (write_all(descriptor, length, sizeof(length)) != 0 || write_all(descriptor, header->data, header->used) != 0) {
    return -1;
  }
  for (size_t i = 0; i < num_tensors; ++i) {
    if (write_all(descriptor, tensors[i].data, tensors[i].bytes) != 0) {
      return -1;
    }
  }
  return 0;
}

/* Open a new file beside `target` under a free name, which is written to `name`. */
static int open_beside(const char *target, char *name, size_t name_bytes) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    snprintf(name, name_bytes, "%s.tmp-%ld-%d", target, (long)getpid(), attempt);
    int descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0 || errno != EEXIST) {
      return descriptor;
    }
  }
  return -1;
}

static int write_and_rename(const char *target, const growing_text *header, const st_tensor *tensors,
                            size_t num_tensors, cli_report *report) {
  size_t name_bytes = strlen(target) + 48;
  char *name = malloc(name_bytes);
  if (name == NULL) {
    return cli_fail(report, CLI_FAILED, "no memory for a file name");
  }
  int descriptor = open_beside(target, name, name_bytes);
  int failed = descriptor < 0;
  int reason = errno;
  if (!failed) {
    failed = write_file(descriptor, header, tensors, num_tensors) != 0;
    reason = errno;
    if (close(descriptor) != 0 && !failed) {
      failed = 1;
      reason = errno;
    }
    if (!failed && rename(name, target) != 0) {
      failed = 1;
      reason = errno;
    }
    if (failed) {
      unlink(name);
    }
  }
  free(name);
  if (failed) {
    return cli_fail(report, CLI_FAILED, "%.200s cannot be written: %s", target, strerror(reason));
  }
  return CLI_OK;
}

int st_write(const char *path, const st_tensor *tensors, size_t num_tensors, const st_entry *metadata,
             size_t num_metadata, cli_report *report) {
  struct stat status;
  char *target = NULL;
  if (stat(path, &status) == 0) {
    if (!S_ISREG(status.st_mode)) {
      return cli_fail(report, CLI_FAILED, "%.200s cannot be written: it exists and is not a regular file", path);
    }
    target = realpath(path, NULL);
  } else {
    target = strdup(path);
  }
  growing_text header = {0};
  make_header(&header, tensors, num_tensors, metadata, num_metadata);
  int code;
  if (target == NULL || header.failed) {
    code = cli_fail(report, CLI_FAILED, "no memory for the header of %.200s", path);
  } else {
    code = write_and_rename(target, &header, tensors, num_tensors, report);
  }
  free(header.data);
  free(target);
  return code;
}
