/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.h: one line on the terminal for what takes longer than two seconds. It stands on standard error, only where
 * that is a terminal, is rewritten at most ten times a second, and is gone before anything else is printed. In a pipe
 * or a file nothing of it appears.
 */
#ifndef ATTN_TOOL_PROGRESS_H
#define ATTN_TOOL_PROGRESS_H

#if defined(__GNUC__)
#define PROGRESS_PRINTF(format_index, first_argument)                                                                  \
  __attribute__((__format__(__printf__, format_index, first_argument)))
#else
#define PROGRESS_PRINTF(format_index, first_argument)
#endif

typedef struct progress {
  int active;     /* standard error is a terminal */
  int shown;      /* a line stands there */
  double started; /* seconds */
  double last;    /* when the line was last written */
} progress;

/* The two seconds begin here. */
void progress_start(progress *p);

/* Say what is being done, in plain ASCII without a line's end: cut to the terminal's width. */
void progress_show(progress *p, const char *format, ...) PROGRESS_PRINTF(2, 3);

/* Take the line away: before anything else is printed, and at the end. */
void progress_hide(progress *p);

/* Take away the line that another process of this command may have put there. */
void progress_erase(void);

/* Seconds left once `done` of `total` is done, -1 while that cannot be told. */
double progress_left(const progress *p, double done, double total);

#endif
