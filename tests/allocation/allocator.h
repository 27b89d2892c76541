/* SPDX-License-Identifier: Apache-2.0 */
/* allocator.h: the allocations of a program's own objects and of the static libraries it links: counted, balanced, and
 * failed on request. For programs that attn_watch_allocations() of CMakeLists.txt links: --wrap puts this file's
 * functions before malloc, its kin, and what else takes memory or threads. What shared libraries allocate for
 * themselves is not seen. Works under the address sanitizer too. For any number of threads.
 */
#ifndef ATTN_TESTS_ALLOCATOR_H
#define ATTN_TESTS_ALLOCATOR_H

#include <stddef.h>

/* Calls so far that asked for something: malloc, calloc, realloc, aligned_alloc, posix_memalign, strdup,
   pthread_create, pthreadpool_create. */
long allocator_allocations(void);

/* Calls so far that gave something back: free, pthreadpool_destroy. */
long allocator_frees(void);

/* Pieces of memory and pools of threads had and not given back. */
size_t allocator_live(void);

/* The nth allocation from now on fails, with `onward` every later one too. 0: none. */
void allocator_fail(long nth, int onward);

/* Allocations that failed on request since the last allocator_fail(). */
long allocator_failed(void);

#endif
