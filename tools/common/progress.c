/* SPDX-License-Identifier: Apache-2.0 */
/* progress.c: see progress.h. */
#define _DEFAULT_SOURCE
#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define SILENT_SECONDS 2.0
#define BETWEEN_SECONDS 0.1
#define ERASE "\r\033[K" /* to the line's start, and clear to its end */

static double now(void) {
  struct timespec time;
  (void)clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int is_terminal(void) {
  const char *kind = getenv("TERM");
  return isatty(STDERR_FILENO) && (kind == NULL || strcmp(kind, "dumb") != 0);
}

/* Characters that fit on a line; one is left free, since some terminals wrap at the last. */
static int width(void) {
  struct winsize size;
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
}

/* One write, so that lines of several processes do not mix. */
static void put(const char *text, size_t length) {
  if (write(STDERR_FILENO, text, length) < 0) {
    return; /* a line that cannot be shown is no failure */
  }
}

void progress_start(progress *p) {
  p->active = is_terminal();
  p->shown = 0;
  p->started = now();
  p->last = 0.0;
}

void progress_show(progress *p, const char *format, ...) {
  char line[256] = ERASE;
  const size_t prefix = sizeof(ERASE) - 1;
  if (!p->active) {
    return;
  }
  const double time = now();
  if (time - p->started < SILENT_SECONDS || time - p->last < BETWEEN_SECONDS) {
    return;
  }
  const int columns = width();
  const size_t room = (size_t)columns < sizeof(line) - prefix ? (size_t)columns + 1 : sizeof(line) - prefix;
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(line + prefix, room, format, arguments);
  va_end(arguments);
  put(line, strlen(line));
  p->shown = 1;
  p->last = time;
}

void progress_hide(progress *p) {
  if (p->shown) {
    put(ERASE, sizeof(ERASE) - 1);
    p->shown = 0;
  }
}

void progress_erase(void) {
  if (is_terminal()) {
    put(ERASE, sizeof(ERASE) - 1);
  }
}

double progress_left(const progress *p, double done, double total) {
  const double spent = now() - p->started;
  return p->active && done > 0.0 && total >= done ? spent / done * (total - done) : -1.0;
}
