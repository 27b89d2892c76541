/* SPDX-License-Identifier: Apache-2.0 */
/* command_fixture.h: run the command under test as a user does, and read what it said. The binary's path comes in the
   variable ATTN_BIN, which ctest sets. Files live in a fresh folder that fixture_close() removes. */
#ifndef ATTN_TESTS_COMMAND_FIXTURE_H
#define ATTN_TESTS_COMMAND_FIXTURE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct fixture {
  char folder[256];
  int status;      /* exit code of the last run; 128 + signal where it was killed */
  char out[65536]; /* its standard output, cut */
  char err[8192];  /* its standard error, cut */
} fixture;

static inline const char *fixture_path(const fixture *fix, const char *name, char *path, size_t bytes) {
  snprintf(path, bytes, "%s/%s", fix->folder, name);
  return path;
}

/* 0 when the folder could not be made or ATTN_BIN is not set. The library's own variables do not reach the command. */
static inline int fixture_open(fixture *fix) {
  const char *base = getenv("TMPDIR");
  memset(fix, 0, sizeof(*fix));
  unsetenv("ATTN_BACKEND");
  unsetenv("ATTN_CPU");
  snprintf(fix->folder, sizeof(fix->folder), "%s/attn-command-XXXXXX", base != NULL ? base : "/tmp");
  return getenv("ATTN_BIN") != NULL && mkdtemp(fix->folder) != NULL;
}

static inline void fixture_close(fixture *fix) {
  DIR *folder = opendir(fix->folder);
  for (struct dirent *entry = folder != NULL ? readdir(folder) : NULL; entry != NULL; entry = readdir(folder)) {
    char path[600];
    snprintf(path, sizeof(path), "%s/%s", fix->folder, entry->d_name);
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
      unlink(path);
    }
  }
  if (folder != NULL) {
    closedir(folder);
  }
  rmdir(fix->folder);
}

/* A file whole, with a NUL behind it; NULL when it cannot be read. free() it. */
static inline unsigned char *fixture_read(const char *path, size_t *bytes) {
  FILE *file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
    return NULL;
  }
  long length = ftell(file);
  unsigned char *data = malloc((size_t)length + 1);
  rewind(file);
  if (data == NULL || fread(data, 1, (size_t)length, file) != (size_t)length) {
    free(data);
    data = NULL;
  } else {
    data[length] = '\0';
    *bytes = (size_t)length;
  }
  fclose(file);
  return data;
}

static inline int fixture_write(const char *path, const void *data, size_t bytes) {
  FILE *file = fopen(path, "wb");
  if (file == NULL) {
    return 0;
  }
  int written = fwrite(data, 1, bytes, file) == bytes;
  return fclose(file) == 0 && written;
}

static inline void fixture_take(const char *path, char *text, size_t bytes) {
  size_t found = 0;
  unsigned char *data = fixture_read(path, &found);
  size_t kept = found < bytes - 1 ? found : bytes - 1;
  text[0] = '\0';
  if (data != NULL) {
    memcpy(text, data, kept);
    text[kept] = '\0';
  }
  free(data);
}

/* Run the command with these arguments (argv[0] is put in front) and return its exit code. */
static inline int fixture_run_list(fixture *fix, char *const *arguments) {
  char *argv[48] = {getenv("ATTN_BIN")};
  char out_path[300];
  char err_path[300];
  size_t count = 1;
  for (; arguments[count - 1] != NULL && count < 47; ++count) {
    argv[count] = arguments[count - 1];
  }
  fixture_path(fix, "stdout", out_path, sizeof(out_path));
  fixture_path(fix, "stderr", err_path, sizeof(err_path));
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    int out = open(out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int err = open(err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (out >= 0 && err >= 0 && dup2(out, 1) >= 0 && dup2(err, 2) >= 0) {
      execv(argv[0], argv);
    }
    _exit(127);
  }
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  fix->status = child < 0 ? 126 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  fixture_take(out_path, fix->out, sizeof(fix->out));
  fixture_take(err_path, fix->err, sizeof(fix->err));
  return fix->status;
}

/* The same with arguments one by one, the last one NULL. */
static inline int fixture_run(fixture *fix, ...) {
  char *arguments[48] = {NULL};
  va_list list;
  va_start(list, fix);
  for (size_t i = 0; i < 46; ++i) {
    arguments[i] = (char *)va_arg(list, const char *);
    if (arguments[i] == NULL) {
      break;
    }
  }
  va_end(list);
  return fixture_run_list(fix, arguments);
}

/* Whether standard error is exactly one line. */
static inline int fixture_one_line(const fixture *fix) {
  size_t length = strlen(fix->err);
  return length > 1 && strchr(fix->err, '\n') == fix->err + length - 1;
}

#endif
