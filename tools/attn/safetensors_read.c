/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a safetensors file: take it whole into memory, check the length of its header, hand the header to the parser,
   and give every tensor an aligned pointer. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "safetensors.h"

static const struct {
  const char *name;
  attn_dtype dtype;
} dtypes[ST_DTYPE_COUNT] = {
#define ST_DTYPE_ROW(name, spelling, dtype) {spelling, dtype},
    ST_DTYPE_LIST(ST_DTYPE_ROW)
#undef ST_DTYPE_ROW
};

const char *st_dtype_name(st_dtype dtype) {
  return dtype < ST_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

attn_dtype st_dtype_of_library(st_dtype dtype) {
  return dtype < ST_DTYPE_COUNT ? dtypes[dtype].dtype : ATTN_DTYPE_DEFAULT;
}

const char *st_name_of(attn_dtype dtype) {
  for (size_t i = 0; i < ST_DTYPE_COUNT; ++i) {
    if (dtypes[i].dtype == dtype) {
      return dtypes[i].name;
    }
  }
  return "?";
}

int st_dtype_from_name(const char *name, st_dtype *dtype) {
  for (size_t i = 0; i < ST_DTYPE_COUNT; ++i) {
    if (strcmp(dtypes[i].name, name) == 0) {
      *dtype = (st_dtype)i;
      return 1;
    }
  }
  return 0;
}

int st_tensor_bytes(st_dtype dtype, int32_t rank, const int64_t *shape, uint64_t *bytes) {
  uint64_t total = attn_dtype_bytes(st_dtype_of_library(dtype));
  for (int32_t i = 0; i < rank; ++i) {
    if (shape[i] == 0) {
      *bytes = 0;
      return 1;
    }
  }
  for (int32_t i = 0; i < rank; ++i) {
    if (!cli_multiply(total, (uint64_t)shape[i], &total) || total > INT64_MAX) {
      return 0;
    }
  }
  *bytes = total;
  return 1;
}

/* Open a regular file: a pipe could hang and a device need not end. */
static int open_regular(const char *path, int *descriptor, uint64_t *bytes, cli_report *report) {
  struct stat status;
  *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (*descriptor < 0) {
    return cli_fail(report, CLI_FAILED, "%.200s cannot be opened: %s", path, strerror(errno));
  }
  if (fstat(*descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(*descriptor);
    return cli_fail(report, CLI_FAILED, "%.200s cannot be read: it is not a regular file", path);
  }
  *bytes = (uint64_t)status.st_size;
  return CLI_OK;
}

/* Fill the buffer; what a file that shrank no longer has is cut off *bytes. Returns 0 or an errno. */
static int read_all(int descriptor, unsigned char *buffer, size_t *bytes) {
  size_t used = 0;
  while (used < *bytes) {
    ssize_t count = read(descriptor, buffer + used, *bytes - used);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return errno;
    }
    if (count == 0) {
      break;
    }
    used += (size_t)count;
  }
  *bytes = used;
  return 0;
}

static int read_whole(const char *path, unsigned char **content, size_t *bytes, cli_report *report) {
  int descriptor = -1;
  uint64_t file_bytes = 0;
  int code = open_regular(path, &descriptor, &file_bytes, report);
  if (code != CLI_OK) {
    return code;
  }
  *bytes = (size_t)file_bytes;
  *content = cli_fits_memory(file_bytes) ? malloc(*bytes + 1) : NULL;
  if (*content == NULL) {
    close(descriptor);
    return cli_fail(report, CLI_FAILED, "%.200s does not fit in memory", path);
  }
  int reason = read_all(descriptor, *content, bytes);
  close(descriptor);
  return reason == 0 ? CLI_OK : cli_fail(report, CLI_FAILED, "%.200s cannot be read: %s", path, strerror(reason));
}

static int align_tensor(st_tensor *tensor, cli_report *report) {
  size_t element = attn_dtype_bytes(st_dtype_of_library(tensor->dtype));
  if (tensor->bytes == 0 || (uintptr_t)tensor->data % element == 0) {
    return CLI_OK;
  }
  void *copy = malloc((size_t)tensor->bytes);
  if (copy == NULL) {
    return cli_fail(report, CLI_FAILED, "no memory for tensor %.64s", tensor->name);
  }
  memcpy(copy, tensor->data, (size_t)tensor->bytes);
  tensor->data = copy;
  tensor->owned = 1;
  return CLI_OK;
}

static int read_content(const char *path, size_t bytes, st_file *file, cli_report *report) {
  uint64_t header_bytes = 0;
  if (bytes < 8) {
    return cli_fail(report, CLI_BAD_INPUT, "%.200s has %zu bytes; a safetensors file starts with a length of 8 bytes",
                    path, bytes);
  }
  for (int i = 7; i >= 0; --i) {
    header_bytes = header_bytes << 8 | file->content[i];
  }
  if (header_bytes > ST_MAX_HEADER) {
    return cli_fail(report, CLI_BAD_INPUT, "%.200s: the header claims %llu bytes; at most %d are accepted", path,
                    (unsigned long long)header_bytes, (int)ST_MAX_HEADER);
  }
  if (header_bytes > bytes - 8) {
    return cli_fail(report, CLI_BAD_INPUT,
                    "%.200s is truncated: the header claims %llu bytes, the file has %zu after "
                    "the length",
                    path, (unsigned long long)header_bytes, bytes - 8);
  }
  size_t begin = 8 + (size_t)header_bytes;
  int code = st_parse_header((const char *)file->content + 8, (size_t)header_bytes, file->content + begin,
                             bytes - begin, file, report);
  for (size_t i = 0; code == CLI_OK && i < file->num_tensors; ++i) {
    code = align_tensor(&file->tensors[i], report);
  }
  return code;
}

int st_read(const char *path, st_file *file, cli_report *report) {
  size_t bytes = 0;
  memset(file, 0, sizeof(*file));
#if !ATTN_HAVE_CJSON
  return cli_fail(report, CLI_BAD_INPUT,
                  "%.200s cannot be read: this build is without cJSON, which reads the files' "
                  "headers",
                  path);
#endif
  int code = read_whole(path, &file->content, &bytes, report);
  if (code == CLI_OK) {
    code = read_content(path, bytes, file, report);
  }
  if (code != CLI_OK) {
    st_free(file);
  }
  return code;
}
