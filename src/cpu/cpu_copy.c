/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_copy.c: whole blocks from pool to pool. A block's axes are put in the order of the target's strides and joined
   where both pools step through them alike, so that a compact block is one run of bytes. Tasks take block after block:
   the map was checked, no two pairs touch the same bytes. */
#include <stdatomic.h>
#include <string.h>

#include "core/arithmetic.h"
#include "core/threads.h"
#include "cpu/cpu_work.h"

#define FEW_BYTES ((int64_t)1 << 16) /* below, waking threads would cost more */
#define PART 1024                    /* bytes exchanged at a time */

/* A block as nested loops, the outermost first, around runs of `run` consecutive bytes. */
typedef struct block_walk {
  int32_t depth;
  int64_t extent[ATTN_VIEW_MAX_NDIM];
  int64_t from_step[ATTN_VIEW_MAX_NDIM];
  int64_t to_step[ATTN_VIEW_MAX_NDIM];
  size_t run;
} block_walk;

typedef void (*move_run)(unsigned char *to, unsigned char *from, size_t bytes);

typedef struct copy_job {
  const attn_copy_view *view;
  block_walk walk;
  move_run move;
  atomic_llong next;
} copy_job;

static block_walk walk_of(const attn_copy_view *view) {
  const attn_view *from = &view->source;
  const attn_view *to = &view->target;
  block_walk w;
  memset(&w, 0, sizeof w);
  w.run = attn_dtype_bytes(from->dtype);
  for (int32_t axis = 1; axis < to->ndim; axis++) {
    if (to->shape[axis] == 1) {
      continue;
    }
    int32_t at = w.depth++;
    for (; at > 0 && w.to_step[at - 1] < to->stride[axis]; at--) {
      w.extent[at] = w.extent[at - 1];
      w.from_step[at] = w.from_step[at - 1];
      w.to_step[at] = w.to_step[at - 1];
    }
    w.extent[at] = to->shape[axis];
    w.from_step[at] = from->stride[axis];
    w.to_step[at] = to->stride[axis];
  }
  while (w.depth > 0 && w.to_step[w.depth - 1] == (int64_t)w.run && w.from_step[w.depth - 1] == (int64_t)w.run) {
    w.depth--;
    w.run *= (size_t)w.extent[w.depth];
  }
  return w;
}

static void walk_block(const block_walk *w, int32_t level, move_run move, unsigned char *to, unsigned char *from) {
  if (level == w->depth || level == ATTN_VIEW_MAX_NDIM) { /* the second is never first: it bounds the recursion */
    move(to, from, w->run);
    return;
  }
  for (int64_t i = 0; i < w->extent[level]; i++) {
    walk_block(w, level + 1, move, to + i * w->to_step[level], from + i * w->from_step[level]);
  }
}

static void copy_run(unsigned char *to, unsigned char *from, size_t bytes) {
  memcpy(to, from, bytes);
}

static void swap_run(unsigned char *to, unsigned char *from, size_t bytes) {
  unsigned char part[PART];
  for (size_t begin = 0; begin < bytes; begin += PART) {
    size_t n = bytes - begin < PART ? bytes - begin : PART;
    memcpy(part, to + begin, n);
    memcpy(to + begin, from + begin, n);
    memcpy(from + begin, part, n);
  }
}

static void move_thread(void *argument, size_t thread) {
  (void)thread;
  copy_job *job = argument;
  const attn_copy_view *view = job->view;
  for (;;) {
    int64_t pair = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    if (pair >= view->num_pairs) {
      return;
    }
    int64_t from = attn_copy_block(view, pair, 0);
    int64_t to = attn_copy_block(view, pair, 1);
    if (!view->one_pool || from != to) {
      walk_block(&job->walk, 0, job->move, view->target.data + to * view->target.stride[0],
                 view->source.data + from * view->source.stride[0]);
    }
  }
}

static attn_status move_blocks(const attn_context *context, const attn_copy_view *view, move_run move) {
  int64_t elements = attn_view_elements(&view->source);
  if (elements == 0 || view->num_pairs == 0) {
    return ATTN_OK;
  }
  copy_job job;
  job.view = view;
  job.walk = walk_of(view);
  job.move = move;
  atomic_init(&job.next, 0);
  int64_t block_bytes = elements / view->source.shape[0] * (int64_t)attn_dtype_bytes(view->source.dtype);
  if (view->num_pairs == 1 || block_bytes <= FEW_BYTES / view->num_pairs) {
    move_thread(&job, 0);
  } else {
    attn_threads_run(&context->threads, move_thread, &job);
  }
  return ATTN_OK;
}

attn_status attn_cpu_cache_copy(const attn_context *context, const attn_copy_view *view, attn_message *message) {
  (void)message;
  return move_blocks(context, view, copy_run);
}

attn_status attn_cpu_cache_swap(const attn_context *context, const attn_copy_view *view, attn_message *message) {
  (void)message;
  return move_blocks(context, view, swap_run);
}
