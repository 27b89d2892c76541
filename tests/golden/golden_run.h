/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running attn-lm on the model's file and reading what it says, for the golden tests. They need the program
 * (ATTN_LM_BIN) and the file (ATTN_MODEL), and fail without them.
 */
#ifndef ATTN_TESTS_GOLDEN_RUN_H
#define ATTN_TESTS_GOLDEN_RUN_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_ARGUMENTS 192

/* The whole stream with a NUL behind it. */
static inline char *read_stream(FILE *file, size_t *length) {
  char *bytes = NULL;
  size_t used = 0;
  for (;;) {
    char *grown = realloc(bytes, used + 65537);
    assert_non_null(grown);
    bytes = grown;
    const size_t count = fread(bytes + used, 1, 65536, file);
    used += count;
    if (count == 0) {
      break;
    }
  }
  bytes[used] = '\0';
  *length = used;
  return bytes;
}

static inline char *read_file(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    fail_msg("%s cannot be opened", path);
  }
  char *bytes = read_stream(file, length);
  assert_int_equal(fclose(file), 0);
  return bytes;
}

static inline const char *need(const char *variable) {
  const char *value = getenv(variable);
  if (value == NULL || value[0] == '\0') {
    fail_msg("%s is not set (the program attn-lm in ATTN_LM_BIN, the model's file in ATTN_MODEL)", variable);
  }
  return value;
}

/* Runs attn-lm generate with the arguments (NULL-terminated) and parses the JSON that it prints. */
static inline cJSON *run_lm(const char *const *arguments) {
  const char *argv[MAX_ARGUMENTS] = {need("ATTN_LM_BIN"), "generate", "--json", "--model", need("ATTN_MODEL")};
  size_t count = 5;
  for (; *arguments != NULL; arguments++) {
    assert_true(count + 1 < MAX_ARGUMENTS);
    argv[count++] = *arguments;
  }
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    (void)dup2(ends[1], STDOUT_FILENO);
    (void)close(ends[0]);
    (void)close(ends[1]);
    (void)execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
  }
  (void)close(ends[1]);
  FILE *stream = fdopen(ends[0], "rb");
  assert_non_null(stream);
  size_t length = 0;
  char *text = read_stream(stream, &length);
  (void)fclose(stream);
  int state = 0;
  assert_int_equal(waitpid(child, &state, 0), child);
  if (!WIFEXITED(state) || WEXITSTATUS(state) != 0) {
    fail_msg("%s ended with status %d", argv[0], state);
  }
  cJSON *answer = cJSON_ParseWithLength(text, length);
  assert_non_null(answer);
  free(text);
  return answer;
}

static inline const cJSON *member(const cJSON *object, const char *name) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
  if (item == NULL) {
    fail_msg("JSON member %s is missing", name);
  }
  return item;
}

static inline void check_ids(const char *name, const char *what, const cJSON *found, const cJSON *expected, int count) {
  for (int i = 0; i < count; i++) {
    const cJSON *have = cJSON_GetArrayItem(found, i);
    const cJSON *want = cJSON_GetArrayItem(expected, i);
    assert_non_null(want);
    if (have == NULL || have->valueint != want->valueint) {
      fail_msg("%s: %s %d is %d, expected %d", name, what, i, have != NULL ? have->valueint : -1, want->valueint);
    }
  }
  if (cJSON_GetArraySize(found) != count) {
    fail_msg("%s: %d %s, expected %d", name, cJSON_GetArraySize(found), what, count);
  }
}

#endif
