/* SPDX-License-Identifier: Apache-2.0 */
/* caching.c: storage and arguments of the cache tests. */
#include "caching.h"

#include <string.h>

static void fill_rows(guarded *memory, attn_dtype dtype, uint32_t seed) {
  int64_t count = (int64_t)(memory->bytes / attn_dtype_bytes(dtype));
  for (int64_t i = 0; i < count; i++) {
    store_element(memory->data, dtype, i, random_normal(&seed));
  }
}

static void make_pool(caching *c, guarded *memory, tensor *t, int32_t size) {
  *memory = guard_make((size_t)c->num_blocks * (size_t)c->block_size * (size_t)c->heads * (size_t)size *
                       attn_dtype_bytes(c->pool_dtype));
  fill_rows(memory, c->pool_dtype, 99);
  if (c->layout == ATTN_LAYOUT_HND) {
    tensor_4(t, memory->data, c->pool_dtype, c->num_blocks, c->heads, c->block_size, size);
  } else {
    tensor_4(t, memory->data, c->pool_dtype, c->num_blocks, c->block_size, c->heads, size);
  }
}

static void make_rows(caching *c, int64_t tokens) {
  size_t element = attn_dtype_bytes(c->row_dtype);
  guard_free(&c->k);
  guard_free(&c->v);
  c->k = guard_make((size_t)tokens * (size_t)c->heads * (size_t)c->k_size * element);
  c->v = guard_make((size_t)tokens * (size_t)c->heads * (size_t)c->v_size * element);
  tensor_3(&c->t_k, c->k.data, c->row_dtype, tokens, c->heads, c->k_size);
  tensor_3(&c->t_v, c->v.data, c->row_dtype, tokens, c->heads, c->v_size);
}

void caching_open(caching *c, const char *backend, attn_dtype rows, attn_dtype pool, attn_layout layout,
                  int64_t tokens) {
  attn_cache_write_args write = ATTN_CACHE_WRITE_INIT;
  attn_cache_gather_args gather = ATTN_CACHE_GATHER_INIT;
  memset(c, 0, sizeof *c);
  c->context = open_context(1);
  c->row_dtype = rows;
  c->pool_dtype = pool;
  c->layout = layout;
  c->num_blocks = 7;
  c->block_size = 5;
  c->heads = 2;
  c->k_size = 8;
  c->v_size = 6;
  make_pool(c, &c->k_pool, &c->t_k_pool, c->k_size);
  make_pool(c, &c->v_pool, &c->t_v_pool, c->v_size);
  make_rows(c, tokens);
  fill_rows(&c->k, rows, 1);
  fill_rows(&c->v, rows, 2);
  for (int64_t i = 0; i < tokens; i++) {
    c->slots[i] = (i * 12 + 3) % 35; /* 12 and 35 have no common factor */
  }
  tensor_1(&c->t_slots, c->slots, ATTN_DTYPE_INT64, tokens);
  c->write = write;
  c->write.backend = backend;
  c->write.layout = layout;
  c->write.k = &c->t_k.t;
  c->write.v = &c->t_v.t;
  c->write.slot_mapping = &c->t_slots.t;
  c->write.k_cache = &c->t_k_pool.t;
  c->write.v_cache = &c->t_v_pool.t;
  c->gather = gather;
  c->gather.backend = backend;
  c->gather.layout = layout;
}

void caching_gather(caching *c, int32_t start_0, int32_t len_0, int32_t start_1, int32_t len_1) {
  static const int32_t table[2 * CACHING_WIDTH] = {6, 0, 3, -9, 2, 5, 1, 4};
  int64_t rows = (int64_t)(len_0 > start_0 ? len_0 - start_0 : 0) + (len_1 > start_1 ? len_1 - start_1 : 0);
  memcpy(c->table, table, sizeof table);
  c->starts[0] = start_0;
  c->starts[1] = start_1;
  c->lens[0] = len_0;
  c->lens[1] = len_1;
  make_rows(c, rows);
  tensor_2(&c->t_table, c->table, ATTN_DTYPE_INT32, 2, CACHING_WIDTH);
  tensor_1(&c->t_lens, c->lens, ATTN_DTYPE_INT32, 2);
  tensor_1(&c->t_starts, c->starts, ATTN_DTYPE_INT32, 2);
  c->gather.k_cache = &c->t_k_pool.t;
  c->gather.v_cache = &c->t_v_pool.t;
  c->gather.block_table = &c->t_table.t;
  c->gather.seq_lens = &c->t_lens.t;
  c->gather.seq_starts = &c->t_starts.t;
  c->gather.k = &c->t_k.t;
  c->gather.v = &c->t_v.t;
}

void caching_close(caching *c) {
  attn_context_destroy(c->context);
  guard_free(&c->k_pool);
  guard_free(&c->v_pool);
  guard_free(&c->k);
  guard_free(&c->v);
}

int64_t caching_row(const caching *c, int which, int64_t slot, int32_t head) {
  const tensor *t = which == 0 ? &c->t_k_pool : &c->t_v_pool;
  int hnd = c->layout == ATTN_LAYOUT_HND;
  return slot / c->block_size * t->strides[0] + slot % c->block_size * t->strides[hnd ? 2 : 1] +
         head * t->strides[hnd ? 1 : 2];
}
