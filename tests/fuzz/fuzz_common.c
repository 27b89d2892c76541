/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_common.c: see fuzz.h. */
#define _XOPEN_SOURCE 700
#include "fuzz.h"

#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void fuzz_fail(const char *file, int line, const char *format, ...) {
  va_list arguments;
  (void)fflush(stdout);
  (void)fprintf(stderr, "%s:%d: ", file, line);
  va_start(arguments, format);
  (void)vfprintf(stderr, format, arguments);
  va_end(arguments);
  (void)fprintf(stderr, "\n");
  abort();
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

void fuzz_check_line(const char *text, size_t bytes) {
  const char *end = memchr(text, '\0', bytes);
  FUZZ_CHECK(end != NULL, "a line without an end: %.*s", (int)bytes, text);
  FUZZ_CHECK(end != text, "an empty line");
  for (const char *c = text; c < end; c++) {
    FUZZ_CHECK((unsigned char)*c >= 0x20 && *c != 0x7F, "byte 0x%02X in a line: %s", (unsigned)(unsigned char)*c, text);
  }
}

#define UNTOUCHED 0xA5

void fuzz_message_reset(attn_message *message) {
  memset(message, UNTOUCHED, sizeof *message);
}

void fuzz_message_check(attn_status status, const attn_message *message) {
  if (status == ATTN_OK) {
    const unsigned char *bytes = (const unsigned char *)message;
    for (size_t i = 0; i < sizeof *message; i++) {
      FUZZ_CHECK(bytes[i] == UNTOUCHED, "a success wrote a message");
    }
    return;
  }
  FUZZ_CHECK(message->code == status, "status %d, its message says %d", (int)status, (int)message->code);
  fuzz_check_line(message->text, sizeof message->text);
  FUZZ_CHECK(status != ATTN_E_INTERNAL && strcmp(attn_status_name(status), "ATTN_E_UNKNOWN") != 0, "status %d: %s",
             (int)status, message->text);
}

/* ---- Input as a stream of choices -------------------------------------------------------------------------------- */

uint8_t fuzz_u8(fuzz_bytes *bytes) {
  if (bytes->left == 0) {
    return 0;
  }
  bytes->left--;
  return *bytes->at++;
}

int32_t fuzz_below(fuzz_bytes *bytes, int32_t count) {
  return fuzz_u8(bytes) % count;
}

static uint64_t raw(fuzz_bytes *bytes, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; i++) {
    value |= (uint64_t)fuzz_u8(bytes) << (8 * i);
  }
  return value;
}

int32_t fuzz_i32(fuzz_bytes *bytes) {
  static const int32_t edges[] = {-1,        -2,      INT32_MAX, INT32_MIN, INT32_MAX - 1, INT32_MAX / 2,
                                  1 << 30,   1 << 24, 1 << 16,   4096,      4097,          1000,
                                  0x7FFFFF0, 256,     255,       127,       128,           -128};
  const int32_t count = (int32_t)(sizeof edges / sizeof edges[0]);
  int32_t choice = fuzz_u8(bytes);
  if (choice < 200) {
    return choice;
  }
  return choice < 200 + count ? edges[choice - 200] : (int32_t)(uint32_t)raw(bytes, 4);
}

int64_t fuzz_i64(fuzz_bytes *bytes) {
  static const int64_t edges[] = {INT64_MAX,           INT64_MIN,           INT64_MAX - 1,    INT64_MAX / 2,
                                  INT64_C(1) << 31,    INT64_C(1) << 32,    INT64_C(1) << 40, (INT64_C(1) << 31) + 1,
                                  -(INT64_C(1) << 31), -(INT64_C(1) << 32), INT64_MAX / 4 + 1};
  const int32_t count = (int32_t)(sizeof edges / sizeof edges[0]);
  int32_t choice = fuzz_u8(bytes);
  if (choice < 200) {
    return fuzz_i32(bytes);
  }
  return choice < 200 + count ? edges[choice - 200] : (int64_t)raw(bytes, 8);
}

float fuzz_float(fuzz_bytes *bytes) {
  static const float edges[] = {0.0f,         -0.0f, NAN,   INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, FLT_MIN,
                                FLT_TRUE_MIN, 1.0f,  -1.0f, 0.125f,   30.0f,     50.0f,   1e-30f,   1e30f};
  const int32_t count = (int32_t)(sizeof edges / sizeof edges[0]);
  int32_t choice = fuzz_u8(bytes);
  if (choice < 200) {
    return (float)choice / 64.0f;
  }
  if (choice < 200 + count) {
    return edges[choice - 200];
  }
  uint32_t bits = (uint32_t)raw(bytes, 4);
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* ---- Memory and files -------------------------------------------------------------------------------------------- */

void *fuzz_alloc(size_t bytes) {
  void *memory = malloc(bytes > 0 ? bytes : 1);
  FUZZ_CHECK(memory != NULL, "no memory for %zu bytes", bytes);
  return memory;
}

void *fuzz_copy(const void *data, size_t bytes) {
  void *memory = fuzz_alloc(bytes);
  if (bytes > 0) {
    memcpy(memory, data, bytes);
  }
  return memory;
}

enum { MAX_PATHS = 4, PATH_BYTES = 256 };

static char folder[PATH_BYTES / 2];
static char paths[MAX_PATHS][PATH_BYTES];
static int num_paths;

static void remove_folder(void) {
  for (int i = 0; i < num_paths; i++) {
    (void)unlink(paths[i]);
  }
  (void)rmdir(folder);
}

static void make_folder(void) {
  const char *parent = getenv("TMPDIR");
  int used = snprintf(folder, sizeof folder, "%s/attn-fuzz-XXXXXX", parent != NULL ? parent : "/tmp");
  FUZZ_CHECK(used > 0 && (size_t)used < sizeof folder && mkdtemp(folder) != NULL, "no temporary folder %s", folder);
  (void)atexit(remove_folder);
}

const char *fuzz_path(const char *name) {
  if (num_paths == 0) {
    make_folder();
  }
  for (int i = 0; i < num_paths; i++) {
    if (strcmp(paths[i] + strlen(folder) + 1, name) == 0) {
      return paths[i];
    }
  }
  FUZZ_CHECK(num_paths < MAX_PATHS, "too many paths");
  int used = snprintf(paths[num_paths], PATH_BYTES, "%s/%s", folder, name);
  FUZZ_CHECK(used > 0 && used < PATH_BYTES, "path %s is too long", name);
  return paths[num_paths++];
}

void fuzz_write(const char *path, const void *data, size_t bytes) {
  int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  FUZZ_CHECK(descriptor >= 0, "%s cannot be opened", path);
  FUZZ_CHECK(write(descriptor, data, bytes) == (ssize_t)bytes, "%s cannot be written", path);
  (void)close(descriptor);
}

unsigned char *fuzz_read(const char *path, size_t *bytes) {
  struct stat status;
  int descriptor = open(path, O_RDONLY);
  if (descriptor < 0 || fstat(descriptor, &status) != 0) {
    return NULL;
  }
  *bytes = (size_t)status.st_size;
  unsigned char *data = fuzz_alloc(*bytes);
  FUZZ_CHECK(read(descriptor, data, *bytes) == (ssize_t)*bytes, "%s cannot be read", path);
  (void)close(descriptor);
  return data;
}

uint32_t fuzz_hash(const uint8_t *data, size_t size) {
  uint32_t hash = 2166136261u; /* FNV-1a */
  for (size_t i = 0; i < size; i++) {
    hash = (hash ^ data[i]) * 16777619u;
  }
  return hash;
}
