/* SPDX-License-Identifier: Apache-2.0 */
/* threads.h: how a call spreads over the threads of its context: pthreadpool, the host's executor, or none. */
#ifndef ATTN_CORE_THREADS_H
#define ATTN_CORE_THREADS_H

#include "core/plan_impl.h"

/* Executor NULL and num_threads > 1: a pool of our own; ATTN_E_UNSUPPORTED without pthreadpool. */
attn_status attn_threads_create(attn_threads *threads, int32_t num_threads, const attn_executor *executor,
                                attn_message *message);

void attn_threads_destroy(attn_threads *threads);

/* Call task(argument, i) for each i < num_threads and return when all are done. Tasks take their work from a shared
   counter, so it does not matter how many really run at once. */
void attn_threads_run(const attn_threads *threads, attn_task task, void *argument);

#endif
