/* SPDX-License-Identifier: Apache-2.0 */
/* threads.c: see threads.h. */
#include "core/threads.h"

#include <string.h>

#if ATTN_HAVE_PTHREADPOOL
#include <pthreadpool.h>
#include <stdlib.h>
#endif

static void run_serially(void *user, attn_task task, void *argument, size_t count) {
  (void)user;
  for (size_t i = 0; i < count; i++) {
    task(argument, i);
  }
}

#if ATTN_HAVE_PTHREADPOOL
static void run_in_pool(void *user, attn_task task, void *argument, size_t count) {
  pthreadpool_parallelize_1d((pthreadpool_t)user, task, argument, count, 0);
}

static void *wait_for_gate(void *gate) {
  pthread_mutex_lock(gate);
  pthread_mutex_unlock(gate);
  return NULL;
}

/* 1 when so many threads more can live at once. pthreadpool does not look whether its threads start and then waits for
   them for ever, so a limit of the system is found here. */
static int can_start(size_t count) {
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
  pthread_t *threads = malloc(count * sizeof *threads);
  size_t started = 0;
  if (threads == NULL) {
    return 0;
  }
  pthread_mutex_lock(&gate);
  while (started < count && pthread_create(&threads[started], NULL, wait_for_gate, &gate) == 0) {
    started++;
  }
  pthread_mutex_unlock(&gate);
  for (size_t i = 0; i < started; i++) {
    pthread_join(threads[i], NULL);
  }
  pthread_mutex_destroy(&gate);
  free(threads);
  return started == count;
}
#endif

attn_status attn_threads_create(attn_threads *threads, int32_t num_threads, const attn_executor *executor,
                                attn_message *message) {
  memset(threads, 0, sizeof *threads);
  threads->num_threads = num_threads;
  threads->executor.run = run_serially;
  if (executor != NULL) {
    threads->executor = *executor;
    return ATTN_OK;
  }
  if (num_threads == 1) {
    return ATTN_OK;
  }
#if ATTN_HAVE_PTHREADPOOL
  threads->pool = can_start((size_t)num_threads - 1) ? pthreadpool_create((size_t)num_threads) : NULL;
  if (threads->pool == NULL) {
    return attn_fail(message, ATTN_E_NOMEM, "num_threads: %d threads could not be started", (int)num_threads);
  }
  threads->executor.user = threads->pool;
  threads->executor.run = run_in_pool;
  return ATTN_OK;
#else
  return attn_fail(message, ATTN_E_UNSUPPORTED,
                   "num_threads: %d, this build lacks the library pthreadpool; accepted: 1, or an executor",
                   (int)num_threads);
#endif
}

void attn_threads_destroy(attn_threads *threads) {
#if ATTN_HAVE_PTHREADPOOL
  if (threads->pool != NULL) {
    pthreadpool_destroy((pthreadpool_t)threads->pool);
  }
#endif
  threads->pool = NULL;
}

void attn_threads_run(const attn_threads *threads, attn_task task, void *argument) {
  if (threads->num_threads == 1) {
    task(argument, 0);
    return;
  }
  threads->executor.run(threads->executor.user, task, argument, (size_t)threads->num_threads);
}
