/* SPDX-License-Identifier: Apache-2.0 */
/* check_env.c: what a worker has: contexts made once, an executor of its own (plain threads, tasks in falling order),
 * the record of the case's first failure. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "check_case.h"

#define EXECUTOR_THREADS 3
#define OTHER_THREADS 5
#define MOST_THREADS 64

typedef struct job {
  attn_task task;
  void *argument;
  size_t index;
} job;

static void *run_job(void *argument) {
  job *j = argument;
  j->task(j->argument, j->index);
  return NULL;
}

/* The host's threads of the library's contract: each index once, any order, done on return. */
static void run_tasks(void *user, attn_task task, void *argument, size_t count) {
  job jobs[MOST_THREADS];
  pthread_t threads[MOST_THREADS];
  size_t started = 0;
  (void)user;
  for (size_t i = count; i-- > 0;) {
    job *j = &jobs[started];
    *j = (job){task, argument, i};
    if (i == 0 || started == MOST_THREADS || pthread_create(&threads[started], NULL, run_job, j) != 0) {
      task(argument, i);
    } else {
      started++;
    }
  }
  for (size_t i = 0; i < started; i++) {
    pthread_join(threads[i], NULL);
  }
}

static attn_status make_context(int32_t threads, int own, attn_context **context, attn_message *message) {
  static const attn_executor executor = {NULL, run_tasks};
  attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
  options.num_threads = threads;
  options.executor = own ? &executor : NULL;
  return attn_context_create(&options, context, message);
}

attn_context *check_context(check_env *env, int32_t threads) {
  attn_context **slot = threads == CHECK_ABSENT ? &env->other : &env->contexts[threads];
  if (*slot != NULL) {
    return *slot;
  }
  int32_t most = env->max_threads < MOST_THREADS ? env->max_threads : MOST_THREADS;
  int own = env->own_executor || threads == CHECK_THREADS_EXECUTOR || threads == CHECK_ABSENT;
  int32_t count = threads == CHECK_THREADS_ONE        ? 1
                  : threads == CHECK_THREADS_TWO      ? 2
                  : threads == CHECK_THREADS_MORE     ? most
                  : threads == CHECK_THREADS_EXECUTOR ? EXECUTOR_THREADS
                                                      : OTHER_THREADS;
  count = count < most ? count : most;
  attn_message message = {ATTN_OK, ""};
  attn_status status = make_context(count, own, slot, &message);
  if (status == ATTN_E_UNSUPPORTED && !own) { /* built without pthreadpool: threads come from the caller */
    status = make_context(count, 1, slot, &message);
  }
  if (status != ATTN_OK) {
    check_fail(env, "attn_context_create: %s: %s", attn_status_name(status), message.text);
    return NULL;
  }
  return *slot;
}

void check_env_end(check_env *env) {
  for (size_t i = 0; i < sizeof env->contexts / sizeof *env->contexts; i++) {
    attn_context_destroy(env->contexts[i]);
    env->contexts[i] = NULL;
  }
  attn_context_destroy(env->other);
  env->other = NULL;
}

int check_fail(check_env *env, const char *format, ...) {
  if (env->failure[0] == '\0') {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(env->failure, sizeof env->failure, format, arguments);
    va_end(arguments);
  }
  return 0;
}

int check_refused(check_env *env, const char *what, attn_status status, attn_status expected,
                  const attn_message *message) {
  if (status != expected) {
    return check_fail(env, "%s: got %s, documented is %s (%s)", what, attn_status_name(status),
                      attn_status_name(expected), status == ATTN_OK ? "accepted" : message->text);
  }
  if (message->code != expected || message->text[0] == '\0' || memchr(message->text, 0, sizeof message->text) == NULL ||
      strpbrk(message->text, "\r\n") != NULL) {
    return check_fail(env, "%s: refused with %s, but its message is no line of text", what, attn_status_name(status));
  }
  return 1;
}

int check_run_case(check_env *env, const check_case *drawn) {
  check_case c = *drawn;
  check_arena *arena = check_arena_new();
  env->failure[0] = '\0';
  env->backend = 0;
  int moves = c.op == CHECK_COPY || c.op == CHECK_SWAP;
  int passed = c.op == CHECK_WRITE        ? check_run_write(env, &c, arena)
               : c.op == CHECK_GATHER     ? check_run_gather(env, &c, arena)
               : c.op == CHECK_MERGE      ? check_run_merge(env, &c, arena)
               : c.op == CHECK_REQUANTISE ? check_run_requantise(env, &c, arena)
               : check_is_latent(&c)      ? check_run_latent(env, &c, arena)
               : moves                    ? check_run_copy(env, &c, arena)
                                          : check_run_attention(env, &c, arena);
  check_arena_free(arena);
  return passed;
}
