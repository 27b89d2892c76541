/* SPDX-License-Identifier: Apache-2.0 */
/* allocator.c: see allocator.h. */
#include "allocator.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LIVE 65536

/* What the linker makes of each name: the C library's own. */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);
char *__real_strdup(const char *text);
void __real_free(void *memory);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
#if ATTN_HAVE_PTHREADPOOL
void *__real_pthreadpool_create(size_t threads);
void __real_pthreadpool_destroy(void *pool);
#endif

/* And what calls it. */
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);
char *__wrap_strdup(const char *text);
void __wrap_free(void *memory);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
#if ATTN_HAVE_PTHREADPOOL
void *__wrap_pthreadpool_create(size_t threads);
void __wrap_pthreadpool_destroy(void *pool);
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of everything below */
static void *live[MOST_LIVE];
static size_t num_live;
static long allocations;
static long frees;
static long until_failure; /* 0: none */
static int fails_onward;
static long failed;

/* An allocation begins: 1 when it has to fail. */
static int refused(void) {
  pthread_mutex_lock(&lock);
  allocations++;
  int fails = until_failure == 1;
  if (until_failure > 1 || (fails && !fails_onward)) {
    until_failure--;
  }
  failed += fails;
  pthread_mutex_unlock(&lock);
  return fails;
}

/* Something was had. */
static void *had(void *piece) {
  pthread_mutex_lock(&lock);
  if (piece != NULL) {
    if (num_live == MOST_LIVE) {
      fputs("allocator: more live pieces than it can follow\n", stderr);
      abort();
    }
    live[num_live++] = piece;
  }
  pthread_mutex_unlock(&lock);
  return piece;
}

/* Something is given back; a piece that a shared library made is not among those followed. */
static void gone(void *piece) {
  pthread_mutex_lock(&lock);
  frees++;
  size_t i = num_live;
  while (i > 0 && live[i - 1] != piece) {
    i--;
  }
  if (piece != NULL && i > 0) {
    live[i - 1] = live[--num_live];
  }
  pthread_mutex_unlock(&lock);
}

static void *no_memory(void) {
  errno = ENOMEM;
  return NULL;
}

void *__wrap_malloc(size_t bytes) {
  return refused() ? no_memory() : had(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes) {
  return refused() ? no_memory() : had(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *memory, size_t bytes) {
  if (refused()) {
    return no_memory();
  }
  void *moved = __real_realloc(memory, bytes);
  if (moved != NULL) {
    gone(memory);
    had(moved);
  }
  return moved;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
  return refused() ? no_memory() : had(__real_aligned_alloc(alignment, bytes));
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes) {
  int error = refused() ? ENOMEM : __real_posix_memalign(memory, alignment, bytes);
  if (error == 0) {
    had(*memory);
  }
  return error;
}

char *__wrap_strdup(const char *text) {
  return refused() ? no_memory() : had(__real_strdup(text));
}

void __wrap_free(void *memory) {
  gone(memory); /* first: another thread may have the address at once */
  __real_free(memory);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
  return refused() ? EAGAIN : __real_pthread_create(thread, attributes, start, argument);
}

#if ATTN_HAVE_PTHREADPOOL
void *__wrap_pthreadpool_create(size_t threads) {
  return refused() ? NULL : had(__real_pthreadpool_create(threads));
}

void __wrap_pthreadpool_destroy(void *pool) {
  gone(pool);
  __real_pthreadpool_destroy(pool);
}
#endif

static long read_long(const long *value) {
  pthread_mutex_lock(&lock);
  long found = *value;
  pthread_mutex_unlock(&lock);
  return found;
}

long allocator_allocations(void) {
  return read_long(&allocations);
}

long allocator_frees(void) {
  return read_long(&frees);
}

long allocator_failed(void) {
  return read_long(&failed);
}

size_t allocator_live(void) {
  pthread_mutex_lock(&lock);
  size_t found = num_live;
  pthread_mutex_unlock(&lock);
  return found;
}

void allocator_fail(long nth, int onward) {
  pthread_mutex_lock(&lock);
  until_failure = nth;
  fails_onward = onward;
  failed = 0;
  pthread_mutex_unlock(&lock);
}
