/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_cache.c: writing by slot and gathering by table. A row of one head moves at a time: copied when both sides have
   one type, else through fp32 (every conversion from a 16-bit type is exact, the one to it rounds to nearest even).
   Tasks take ranges of tokens. */
#include <stdatomic.h>
#include <string.h>

#include "core/fault.h"
#include "core/load.h"
#include "core/threads.h"
#include "cpu/cpu_work.h"

#define PART 64   /* elements converted at a time */
#define TOKENS 16 /* tokens that a task takes at a time */

/* Where one row of `size` elements lies. */
typedef struct row_ref {
  unsigned char *data;
  int64_t element_stride;
  attn_dtype dtype;
} row_ref;

static row_ref token_row(const attn_view *view, int64_t token, int64_t head) {
  row_ref row = {view->data + token * view->stride[0] + head * view->stride[1], view->stride[2], view->dtype};
  return row;
}

static row_ref pool_row(const attn_view *pool, int64_t block, int64_t offset, int64_t head) {
  row_ref row = {pool->data + block * pool->stride[0] + offset * pool->stride[1] + head * pool->stride[2],
                 pool->stride[3], pool->dtype};
  return row;
}

static void copy_row(row_ref dst, row_ref src, int32_t size) {
  size_t element = attn_dtype_bytes(src.dtype);
  if (dst.element_stride == (int64_t)element && src.element_stride == (int64_t)element) {
    memcpy(dst.data, src.data, (size_t)size * element);
    return;
  }
  for (int32_t i = 0; i < size; i++) {
    memcpy(dst.data + i * dst.element_stride, src.data + i * src.element_stride, element);
  }
}

static void truncate_row(float *row, int32_t size) {
  for (int32_t i = 0; i < size; i++) {
    uint32_t bits;
    memcpy(&bits, &row[i], sizeof bits);
    bits &= 0xffff0000u;
    memcpy(&row[i], &bits, sizeof bits);
  }
}

static void move_row(const attn_cpu_table *table, row_ref dst, row_ref src, int64_t size) {
  if (dst.dtype == src.dtype) {
    for (int64_t begin = 0; begin < size; begin += INT32_MAX) {
      row_ref to = {dst.data + begin * dst.element_stride, dst.element_stride, dst.dtype};
      row_ref from = {src.data + begin * src.element_stride, src.element_stride, src.dtype};
      copy_row(to, from, (int32_t)attn_min(size - begin, INT32_MAX));
    }
    return;
  }
  float part[PART];
  for (int64_t begin = 0; begin < size; begin += PART) {
    int32_t n = (int32_t)attn_min(size - begin, PART);
    attn_cpu_load_rows(table, src.dtype, part, src.data + begin * src.element_stride, 0, src.element_stride, 1, n, n);
    if (attn_fault(ATTN_FAULT_WRITE_ROUND) && dst.dtype == ATTN_DTYPE_BFLOAT16) {
      truncate_row(part, n);
    }
    attn_cpu_store_row(table, dst.dtype, dst.data + begin * dst.element_stride, dst.element_stride, part, 1.0f, n);
  }
}

/* ---- write ------------------------------------------------------------------------------------------------------- */

typedef struct write_job {
  const attn_cpu_table *table;
  const attn_write_view *view;
  atomic_llong next;
} write_job;

static int64_t slot_at(const attn_write_view *view, int64_t i) {
  int64_t slot = attn_int64_at(&view->slot_mapping, i);
  if (attn_fault(ATTN_FAULT_SLOT_NARROWED)) {
    slot = (int32_t)(uint32_t)(uint64_t)slot;
  }
  if (attn_fault(ATTN_FAULT_SLOT_PADDING) && slot == -1) {
    slot = 0;
  }
  return slot;
}

static void write_token(const write_job *job, int64_t token) {
  const attn_write_view *view = job->view;
  int64_t slot = slot_at(view, token);
  if (slot < 0 || slot >= view->capacity) {
    return;
  }
  int64_t block = slot / view->block_size;
  int64_t offset = slot % view->block_size;
  for (int64_t h = 0; h < view->k.shape[1]; h++) {
    move_row(job->table, pool_row(&view->k_cache, block, offset, h), token_row(&view->k, token, h), view->k.shape[2]);
    move_row(job->table, pool_row(&view->v_cache, block, offset, h), token_row(&view->v, token, h), view->v.shape[2]);
  }
}

static void write_thread(void *argument, size_t thread) {
  (void)thread;
  write_job *job = argument;
  for (;;) {
    int64_t begin = atomic_fetch_add_explicit(&job->next, TOKENS, memory_order_relaxed);
    int64_t end = attn_min(begin + TOKENS, job->view->num_slots);
    if (begin >= end) {
      return;
    }
    for (int64_t token = begin; token < end; token++) {
      write_token(job, token);
    }
  }
}

attn_status attn_cpu_cache_write(const attn_context *context, const attn_write_view *view, attn_message *message) {
  (void)message;
  write_job job;
  job.table = context->table;
  job.view = view;
  atomic_init(&job.next, 0);
  if (view->num_slots <= TOKENS) {
    write_thread(&job, 0); /* waking threads would cost more */
  } else {
    attn_threads_run(&context->threads, write_thread, &job);
  }
  return ATTN_OK;
}

/* ---- gather ------------------------------------------------------------------------------------------------------ */

typedef struct gather_job {
  const attn_cpu_table *table;
  const attn_gather_view *view;
  atomic_llong next;
} gather_job;

/* The id of a position's block, or -1 where it cannot be reached. */
static int64_t block_at(const attn_gather_view *view, int64_t seq, int64_t column) {
  if (column >= view->block_table.shape[1]) {
    return -1;
  }
  int32_t id = attn_load_int32(view->block_table.data + seq * view->block_table.stride[0] +
                               column * view->block_table.stride[1]);
  return id >= 0 && id < view->num_blocks ? id : -1;
}

static void clear_row(row_ref dst, int64_t size) {
  size_t element = attn_dtype_bytes(dst.dtype);
  for (int64_t i = 0; i < size; i++) {
    memset(dst.data + i * dst.element_stride, 0, element);
  }
}

/* One position of K or of V, all heads. */
static void gather_one(const gather_job *job, const attn_view *pool, const attn_view *out, int64_t block,
                       int64_t offset, int64_t row) {
  for (int64_t h = 0; out->ndim > 0 && h < out->shape[1]; h++) {
    if (block < 0) {
      clear_row(token_row(out, row, h), out->shape[2]);
    } else {
      move_row(job->table, token_row(out, row, h), pool_row(pool, block, offset, h), out->shape[2]);
    }
  }
}

static void gather_seq(const gather_job *job, int64_t seq, int64_t first_row) {
  const attn_gather_view *view = job->view;
  int64_t start = view->seq_starts.ndim > 0 ? attn_int32_at(&view->seq_starts, seq) : 0;
  int64_t len = attn_int32_at(&view->seq_lens, seq);
  for (int64_t p = start; p < len; p++) {
    int64_t source = attn_fault(ATTN_FAULT_GATHER_START) ? p - start : p;
    int64_t block = block_at(view, seq, source / view->block_size);
    gather_one(job, &view->k_cache, &view->k, block, source % view->block_size, first_row + p - start);
    gather_one(job, &view->v_cache, &view->v, block, source % view->block_size, first_row + p - start);
  }
}

static void gather_thread(void *argument, size_t thread) {
  (void)thread;
  gather_job *job = argument;
  const attn_gather_view *view = job->view;
  int64_t mine = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
  int64_t row = 0;
  for (int64_t s = 0; s < view->num_seqs; s++) {
    if (s == mine) {
      gather_seq(job, s, row);
      mine = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    }
    row += attn_int32_at(&view->seq_lens, s) - (view->seq_starts.ndim > 0 ? attn_int32_at(&view->seq_starts, s) : 0);
  }
}

attn_status attn_cpu_cache_gather(const attn_context *context, const attn_gather_view *view, attn_message *message) {
  (void)message;
  gather_job job;
  job.table = context->table;
  job.view = view;
  atomic_init(&job.next, 0);
  attn_threads_run(&context->threads, gather_thread, &job);
  return ATTN_OK;
}
