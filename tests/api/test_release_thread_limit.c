/* SPDX-License-Identifier: Apache-2.0 */
/* A system that starts no more threads: attn_context_create says so, where the pool's library would wait for ever. In
 * release alone, since a sanitizer cannot live within such limits. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

#define THREADS 32

/* Address space for what the process has and half of the threads' stacks. */
static int limit_stacks(struct rlimit *before) {
  struct rlimit stack, space;
  unsigned long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%lu", &pages) != 1 || getrlimit(RLIMIT_STACK, &stack) != 0 ||
      getrlimit(RLIMIT_AS, before) != 0) {
    return 0;
  }
  fclose(file);
  size_t one = stack.rlim_cur == RLIM_INFINITY ? (size_t)8 << 20 : (size_t)stack.rlim_cur;
  space = *before;
  space.rlim_cur = pages * (size_t)sysconf(_SC_PAGESIZE) + THREADS / 2 * one;
  return setrlimit(RLIMIT_AS, &space) == 0;
}

/* 0: as promised. Run in a process of its own, which the alarm ends if it hangs. */
static int in_a_small_space(void) {
  attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
  attn_context *context = NULL;
  attn_message message = {ATTN_OK, ""};
  struct rlimit before;
  alarm(60);
  options.num_threads = THREADS;
  if (!limit_stacks(&before)) {
    return 2;
  }
  attn_status status = attn_context_create(&options, &context, &message);
  if (status == ATTN_E_UNSUPPORTED) {
    return 0; /* a build without the pool: test_context.c looks at the refusal */
  }
  if (status != ATTN_E_NOMEM || context != NULL || strstr(message.text, "32 threads could not be started") == NULL) {
    return 3;
  }
  if (setrlimit(RLIMIT_AS, &before) != 0 || attn_context_create(&options, &context, &message) != ATTN_OK) {
    return 4;
  }
  attn_context_destroy(context);
  return 0;
}

static void threads_that_do_not_start(void **state) {
  int status = 0;
  (void)state;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    _exit(in_a_small_space());
  }
  CHECK(child > 0 && waitpid(child, &status, 0) == child, "no child");
  CHECK(!WIFSIGNALED(status), "ended by signal %d", WTERMSIG(status));
  CHECK(WEXITSTATUS(status) == 0, "ended with %d", WEXITSTATUS(status));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(threads_that_do_not_start)};
  return cmocka_run_group_tests_name("thread_limit", tests, NULL, NULL);
}
