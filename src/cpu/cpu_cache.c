/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_cache.c: writing by slot, gathering by table, requantising by block map. A row of one head moves at a time
   (cpu_move.c); where nothing is converted, it or all heads' rows are one copy. Tasks take ranges of tokens, sequences,
   or pairs of blocks. */
#include <stdatomic.h>
#include <string.h>

#include "core/fault.h"
#include "core/load.h"
#include "core/threads.h"
#include "cpu/cpu_move.h"

#define TOKENS 16 /* tokens that a task takes at a time */

static attn_cpu_elements token_row(const attn_view *view, int64_t token, int64_t head) {
  attn_cpu_elements row = {view->data + token * view->stride[0] + head * view->stride[1], view->stride[2], view->dtype};
  return row;
}

/* ---- write ------------------------------------------------------------------------------------------------------- */

typedef struct write_job {
  const attn_cpu_table *table;
  const attn_write_view *view;
  attn_cpu_copies k_copies, v_copies;
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

/* One token of K or of V, all heads; not rotated. */
static void write_one(const write_job *job, const attn_cpu_copies *copies, const attn_view *pool, const attn_rows *rows,
                      const attn_view *source, int64_t block, int64_t offset, int64_t token) {
  if (copies->bytes > 0) {
    attn_cpu_copy(copies, pool->data + block * pool->stride[0] + offset * pool->stride[1], pool->stride[2],
                  source->data + token * source->stride[0], source->stride[1]);
    return;
  }
  for (int64_t h = 0; h < source->shape[1]; h++) {
    attn_cpu_source from = {.row = token_row(source, token, h)};
    attn_row to = attn_row_at(rows, pool, block, offset, h);
    attn_cpu_put_row(job->table, rows, pool->dtype, &to, &from);
  }
}

/* The latent row of one token; `memory` holds its rotated elements meanwhile. */
static void write_latent(const write_job *job, int64_t block, int64_t offset, int64_t token, unsigned char *memory) {
  const attn_write_view *view = job->view;
  attn_cpu_elements latent = token_row(&view->k, token, 0);
  attn_cpu_source rotary = {.row = token_row(&view->k_pe, token, 0)};
  attn_row to = attn_row_at(&view->k_rows, &view->k_cache, block, offset, 0);
  if (view->rotary != ATTN_ROTARY_NONE) {
    attn_cpu_rotate(job->table, view, token, &rotary, memory);
  }
  attn_cpu_put_latent(job->table, &view->k_rows, view->k_cache.dtype, &to, &latent, &rotary);
}

/* K and q of one token, rotated. */
static void write_rotated(const write_job *job, int64_t block, int64_t offset, int64_t token) {
  const attn_write_view *view = job->view;
  _Alignas(8) unsigned char memory[ATTN_ROW_MAX * sizeof(float)];
  if (view->k_rows.latent) {
    write_latent(job, block, offset, token, memory);
  }
  for (int64_t h = 0; !view->k_rows.latent && h < view->k.shape[1]; h++) {
    attn_cpu_source k = {.row = token_row(&view->k, token, h)};
    attn_row to = attn_row_at(&view->k_rows, &view->k_cache, block, offset, h);
    attn_cpu_rotate(job->table, view, token, &k, memory);
    attn_cpu_put_row(job->table, &view->k_rows, view->k_cache.dtype, &to, &k);
  }
  for (int64_t h = 0; view->q.ndim > 0 && h < view->q.shape[1]; h++) {
    attn_cpu_source q = {.row = token_row(&view->q, token, h)};
    attn_cpu_elements out = token_row(&view->q_out, token, h);
    attn_cpu_rotate(job->table, view, token, &q, memory);
    attn_cpu_move_elements(job->table, &out, &q.rotated, q.rotary_dim);
    if (out.data != q.row.data && !attn_fault(ATTN_FAULT_ROTARY_REST)) {
      out.data += q.rotary_dim * out.stride;
      q.row.data += q.rotary_dim * q.row.stride;
      attn_cpu_move_elements(job->table, &out, &q.row, view->q.shape[2] - q.rotary_dim);
    }
  }
}

static void write_token(const write_job *job, int64_t token) {
  const attn_write_view *view = job->view;
  int64_t slot = slot_at(view, token);
  if (!attn_write_takes(view, slot, token)) {
    return;
  }
  int64_t block = slot / view->block_size;
  int64_t offset = slot % view->block_size;
  if (view->rotary != ATTN_ROTARY_NONE) {
    write_rotated(job, block, offset, token);
  } else if (view->k_rows.latent) {
    write_latent(job, block, offset, token, NULL);
  } else {
    write_one(job, &job->k_copies, &view->k_cache, &view->k_rows, &view->k, block, offset, token);
  }
  if (!view->k_rows.latent) {
    write_one(job, &job->v_copies, &view->v_cache, &view->v_rows, &view->v, block, offset, token);
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
  memset(&job, 0, sizeof job);
  job.table = context->table;
  job.view = view;
  if (!view->k_rows.latent) {
    job.k_copies = attn_cpu_copies_of(&view->k, &view->k_cache, &view->k_rows);
    job.v_copies = attn_cpu_copies_of(&view->v, &view->v_cache, &view->v_rows);
  }
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
  attn_cpu_copies k_copies, v_copies;
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

static void clear_row(attn_cpu_elements dst, int64_t size) {
  size_t element = attn_dtype_bytes(dst.dtype);
  for (int64_t i = 0; i < size; i++) {
    memset(dst.data + i * dst.stride, 0, element);
  }
}

/* One position of K or of V, all heads. */
static void gather_one(const gather_job *job, const attn_cpu_copies *copies, const attn_view *pool,
                       const attn_rows *rows, const attn_view *out, int64_t block, int64_t offset, int64_t row) {
  if (copies->bytes > 0 && block >= 0) {
    attn_cpu_copy(copies, out->data + row * out->stride[0], out->stride[1],
                  pool->data + block * pool->stride[0] + offset * pool->stride[1], pool->stride[2]);
    return;
  }
  for (int64_t h = 0; out->ndim > 0 && h < out->shape[1]; h++) {
    attn_cpu_elements to = token_row(out, row, h);
    if (block < 0) {
      clear_row(to, out->shape[2]);
    } else {
      attn_row from = attn_row_at(rows, pool, block, offset, h);
      if (rows->latent) {
        attn_cpu_get_latent(job->table, &to, rows, pool->dtype, &from);
      } else {
        attn_cpu_get_row(job->table, &to, rows, pool->dtype, &from);
      }
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
    int64_t offset = source % view->block_size;
    int64_t row = first_row + p - start;
    gather_one(job, &job->k_copies, &view->k_cache, &view->k_rows, &view->k, block, offset, row);
    gather_one(job, &job->v_copies, &view->v_cache, &view->v_rows, &view->v, block, offset, row);
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
  const attn_cpu_copies none = {0, 0};
  gather_job job;
  job.table = context->table;
  job.view = view;
  job.k_copies = view->k_rows.latent ? none : attn_cpu_copies_of(&view->k, &view->k_cache, &view->k_rows);
  job.v_copies = view->k_rows.latent ? none : attn_cpu_copies_of(&view->v, &view->v_cache, &view->v_rows);
  atomic_init(&job.next, 0);
  attn_threads_run(&context->threads, gather_thread, &job);
  return ATTN_OK;
}

/* ---- requantise -------------------------------------------------------------------------------------------------- */

typedef struct requantise_job {
  const attn_cpu_table *table;
  const attn_requantise_view *view;
  atomic_llong next;
} requantise_job;

/* A planted fault. */
static void keep_scale(const attn_requantise_view *view, const attn_row *to, const attn_row *from) {
  for (int i = 0;
       i < 4 && view->source_rows.facts->scale == ATTN_SCALE_ROW && view->target_rows.facts->scale == ATTN_SCALE_ROW;
       i++) {
    to->scale[i * to->scale_stride] = from->scale[i * from->scale_stride];
  }
}

/* One row, through float32: whole where a side has a scale per row, else a part at a time. */
static void requantise_row(const requantise_job *job, const attn_row *to, const attn_row *from) {
  const attn_requantise_view *view = job->view;
  float values[ATTN_ROW_MAX];
  attn_rows source_rows = view->source_rows;
  attn_rows target_rows = view->target_rows;
  int64_t size = source_rows.size;
  for (int64_t begin = 0; begin < size || begin == 0; begin += ATTN_ROW_MAX) {
    attn_row source = *from;
    attn_row target = *to;
    attn_cpu_elements row = {(unsigned char *)values, sizeof(float), ATTN_DTYPE_FLOAT32};
    attn_cpu_source part = {.row = row};
    source_rows.size = target_rows.size = attn_min(size - begin, ATTN_ROW_MAX);
    source.codes += begin * source.code_stride; /* only rows without a scale of their own have a second part */
    target.codes += begin * target.code_stride;
    attn_cpu_get_row(job->table, &row, &source_rows, view->map.source.dtype, &source);
    attn_cpu_put_row(job->table, &target_rows, view->map.target.dtype, &target, &part);
    if (attn_fault(ATTN_FAULT_REQUANTISE_SCALE)) {
      keep_scale(view, &target, &source);
    }
  }
}

/* A latent row: at once where a side has parts of different types, else as a row of elements. */
static void requantise_latent(const requantise_job *job, const attn_row *to, const attn_row *from) {
  const attn_requantise_view *view = job->view;
  const attn_rows *source = &view->source_rows;
  const attn_rows *target = &view->target_rows;
  if (!attn_format_is_mixed(source->facts) && !attn_format_is_mixed(target->facts)) {
    attn_requantise_view plain = *view;
    requantise_job elements = {.table = job->table, .view = &plain};
    plain.source_rows.size = plain.target_rows.size = source->size + source->rotary;
    requantise_row(&elements, to, from);
    return;
  }
  float values[ATTN_ROW_MAX];
  attn_cpu_elements row = {(unsigned char *)values, sizeof(float), ATTN_DTYPE_FLOAT32};
  attn_cpu_elements latent = row;
  attn_cpu_source rotary = {.row = {(unsigned char *)(values + source->size), sizeof(float), ATTN_DTYPE_FLOAT32}};
  attn_cpu_get_latent(job->table, &row, source, view->map.source.dtype, from);
  attn_cpu_put_latent(job->table, target, view->map.target.dtype, to, &latent, &rotary);
}

static void requantise_thread(void *argument, size_t thread) {
  (void)thread;
  requantise_job *job = argument;
  const attn_requantise_view *view = job->view;
  const attn_view *pool = &view->map.source;
  for (;;) {
    int64_t i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    if (i >= view->map.num_pairs) {
      return;
    }
    int64_t source = attn_copy_block(&view->map, i, 0);
    int64_t target = attn_copy_block(&view->map, i, 1);
    int64_t cut = attn_fault(ATTN_FAULT_REQUANTISE_TAIL) ? pool->shape[1] % 2 : 0;
    for (int64_t offset = 0; offset < pool->shape[1] - cut; offset++) {
      for (int64_t h = 0; h < pool->shape[2]; h++) {
        attn_row from = attn_row_at(&view->source_rows, pool, source, offset, h);
        attn_row to = attn_row_at(&view->target_rows, &view->map.target, target, offset, h);
        if (view->source_rows.latent) {
          requantise_latent(job, &to, &from);
        } else {
          requantise_row(job, &to, &from);
        }
      }
    }
  }
}

attn_status attn_cpu_cache_requantise(const attn_context *context, const attn_requantise_view *view,
                                      attn_message *message) {
  (void)message;
  requantise_job job;
  job.table = context->table;
  job.view = view;
  atomic_init(&job.next, 0);
  attn_threads_run(&context->threads, requantise_thread, &job);
  return ATTN_OK;
}
