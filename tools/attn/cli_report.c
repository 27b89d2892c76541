/* SPDX-License-Identifier: Apache-2.0 */
/* Failures in one line, guarded memory and strict numbers. Numbers are decimal and fill the whole string: no leading
   blank, no hexadecimal, no "inf" or "nan". The tool never calls setlocale(), so the decimal point is a point. */
#define _DEFAULT_SOURCE
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_BYTES ((size_t)2 << 20)

int cli_fail(cli_report *report, int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(report->text, sizeof(report->text), format, arguments);
  va_end(arguments);
  return code;
}

int cli_library(cli_report *report, attn_status status, const attn_message *message) {
  int refused = (int)status < 40 || status == ATTN_E_NO_DEVICE;
  if (status == ATTN_OK) {
    return CLI_OK;
  }
  return cli_fail(report, refused ? CLI_BAD_INPUT : CLI_FAILED, "%s (%s)", message->text, attn_status_name(status));
}

int cli_print_failure(const char *command, const cli_report *report, int code) {
  char line[sizeof(report->text)];
  size_t i = 0;
  for (; report->text[i] != '\0' && i + 1 < sizeof(line); ++i) {
    unsigned char byte = (unsigned char)report->text[i];
    line[i] = byte < 0x20 || byte >= 0x7F ? '?' : (char)byte;
  }
  line[i] = '\0';
  fprintf(stderr, "%s: %s\n", command, line);
  return code;
}

int cli_flush(const char *command) {
  if (fflush(stdout) != 0 || ferror(stdout)) {
    fprintf(stderr, "%s: standard output cannot be written: %s\n", command, strerror(errno));
    return CLI_FAILED;
  }
  return CLI_OK;
}

/* The limit of the container that this process runs in, where there is one (Linux, cgroup version 2). */
static uint64_t container_limit(void) {
  unsigned long long limit = 0;
  FILE *file = fopen("/sys/fs/cgroup/memory.max", "r");
  if (file == NULL) {
    return UINT64_MAX;
  }
  int found = fscanf(file, "%llu", &limit);
  fclose(file);
  return found == 1 ? (uint64_t)limit : UINT64_MAX;
}

int cli_fits_memory(uint64_t bytes) {
  long pages = sysconf(_SC_PHYS_PAGES);
  long page_bytes = sysconf(_SC_PAGESIZE);
  uint64_t limit = container_limit();
  if (pages > 0 && page_bytes > 0 && (uint64_t)pages <= UINT64_MAX / (uint64_t)page_bytes) {
    uint64_t physical = (uint64_t)pages * (uint64_t)page_bytes;
    limit = physical < limit ? physical : limit;
  }
  return bytes <= SIZE_MAX / 2 && bytes <= limit - limit / 4;
}

void *cli_alloc(uint64_t bytes, int poisoned) {
  void *data = NULL;
  if (!cli_fits_memory(bytes)) {
    return NULL;
  }
  size_t align = bytes >= HUGE_BYTES ? HUGE_BYTES : ATTN_WORKSPACE_ALIGN;
  size_t rounded = (size_t)(bytes / align + 1) * align;
  if (posix_memalign(&data, align, rounded) != 0) {
    return NULL;
  }
#ifdef MADV_HUGEPAGE
  if (align == HUGE_BYTES) { /* a wish: times depend less on where pages lie */
    (void)madvise(data, rounded, MADV_HUGEPAGE);
  }
#endif
  memset(data, poisoned ? 0xFF : 0, rounded);
  return data;
}

int cli_multiply(uint64_t a, uint64_t b, uint64_t *product) {
  if (b != 0 && a > UINT64_MAX / b) {
    return 0;
  }
  *product = a * b;
  return 1;
}

static const char *skip_digits(const char *text) {
  while (*text >= '0' && *text <= '9') {
    ++text;
  }
  return text;
}

int cli_parse_int(const char *text, int64_t *value) {
  const char *digits = *text == '-' ? text + 1 : text;
  const char *end = skip_digits(digits);
  if (end == digits || *end != '\0') {
    return 0;
  }
  errno = 0;
  long long parsed = strtoll(text, NULL, 10);
  if (errno != 0) {
    return 0;
  }
  *value = (int64_t)parsed;
  return 1;
}

int cli_parse_float(const char *text, float *value) {
  const char *digits = *text == '-' ? text + 1 : text;
  const char *cursor = skip_digits(digits);
  size_t count = (size_t)(cursor - digits);
  if (*cursor == '.') {
    const char *fraction = cursor + 1;
    cursor = skip_digits(fraction);
    count += (size_t)(cursor - fraction);
  }
  if (count == 0) {
    return 0;
  }
  if (*cursor == 'e' || *cursor == 'E') {
    const char *exponent = cursor[1] == '+' || cursor[1] == '-' ? cursor + 2 : cursor + 1;
    cursor = skip_digits(exponent);
    if (cursor == exponent) {
      return 0;
    }
  }
  if (*cursor != '\0') {
    return 0;
  }
  float parsed = strtof(text, NULL);
  if (!(parsed <= 3.402823466e+38f && parsed >= -3.402823466e+38f)) {
    return 0;
  }
  *value = parsed;
  return 1;
}
