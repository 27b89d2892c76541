/* SPDX-License-Identifier: Apache-2.0 */
/* threads.c: see threads.h. */
#include "core/threads.h"

#include <string.h>

#if ATTN_HAVE_PTHREADPOOL
#include <pthreadpool.h>
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
  threads->pool = pthreadpool_create((size_t)num_threads);
  if (threads->pool == NULL) {
    return attn_fail(message, ATTN_E_NOMEM, "num_threads: a pool of %d threads could not be made", (int)num_threads);
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
