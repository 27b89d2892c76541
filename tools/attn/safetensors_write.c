/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a safetensors file: the header is padded with spaces, so that the data starts at a multiple of 8. The file
   grows beside its target under a name of its own and is renamed at the end, so a target that existed is either
   untouched or wholly new. */
#define _XOPEN_SOURCE 700
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json_write.h"
#include "safetensors.h"

/* The header's text. */
typedef struct header_text {
  char *data;
  size_t bytes;
} header_text;

static void write_tensor(json_writer *w, const st_tensor *tensor, uint64_t begin) {
  json_object(w, tensor->name);
  json_string(w, "dtype", st_dtype_name(tensor->dtype));
  json_array(w, "shape");
  for (int32_t i = 0; i < tensor->rank; ++i) {
    json_integer(w, NULL, tensor->shape[i]);
  }
  json_end(w);
  json_array(w, "data_offsets");
  json_unsigned(w, NULL, begin);
  json_unsigned(w, NULL, begin + tensor->bytes);
  json_end(w);
  json_end(w);
}

static void write_header(FILE *file, const st_tensor *tensors, size_t num_tensors, const st_entry *metadata,
                         size_t num_metadata) {
  json_writer w;
  uint64_t begin = 0;
  json_start(&w, file);
  json_object(&w, NULL);
  json_object(&w, "__metadata__");
  for (size_t i = 0; i < num_metadata; ++i) {
    json_string(&w, metadata[i].key, metadata[i].value);
  }
  json_end(&w);
  for (size_t i = 0; i < num_tensors; ++i) {
    write_tensor(&w, &tensors[i], begin);
    begin += tensors[i].bytes;
  }
  json_end(&w);
  while (ftell(file) % 8 != 0) {
    fputc(' ', file);
  }
}

/* 0 without memory; free(text->data) in any case. */
static int make_header(const st_tensor *tensors, size_t num_tensors, const st_entry *metadata, size_t num_metadata,
                       header_text *text) {
  FILE *file = open_memstream(&text->data, &text->bytes);
  if (file == NULL) {
    return 0;
  }
  write_header(file, tensors, num_tensors, metadata, num_metadata);
  int complete = !ferror(file);
  return fclose(file) == 0 && complete;
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

static int write_file(int descriptor, const header_text *header, const st_tensor *tensors, size_t num_tensors) {
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) {
    length[i] = (unsigned char)((uint64_t)header->bytes >> (8 * i));
  }
  if (write_all(descriptor, length, sizeof(length)) != 0 || write_all(descriptor, header->data, header->bytes) != 0) {
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

static int write_and_rename(const char *target, const header_text *header, const st_tensor *tensors, size_t num_tensors,
                            cli_report *report) {
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
  header_text header = {0};
  int code;
  if (target == NULL || !make_header(tensors, num_tensors, metadata, num_metadata, &header)) {
    code = cli_fail(report, CLI_FAILED, "no memory for the header of %.200s", path);
  } else {
    code = write_and_rename(target, &header, tensors, num_tensors, report);
  }
  free(header.data);
  free(target);
  return code;
}
