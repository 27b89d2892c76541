/* SPDX-License-Identifier: Apache-2.0 */
/* caching.h: one paged K/V cache of floats with calls of attn_cache_write() and attn_cache_gather() over it. */
#ifndef ATTN_TESTS_CACHING_H
#define ATTN_TESTS_CACHING_H

#include "harness.h"

#define CACHING_WIDTH 4

typedef struct caching {
  attn_context *context;
  attn_dtype row_dtype; /* of k and v; the pools have `pool_dtype` */
  attn_dtype pool_dtype;
  attn_layout layout;
  int64_t num_blocks;
  int32_t block_size, heads, k_size, v_size;
  guarded k_pool, v_pool, k, v;
  tensor t_k_pool, t_v_pool, t_k, t_v, t_slots, t_table, t_lens, t_starts;
  int64_t slots[64];
  int32_t table[2 * CACHING_WIDTH];
  int32_t lens[2];
  int32_t starts[2];
  attn_cache_write_args write;
  attn_cache_gather_args gather;
} caching;

/* A pool of 7 blocks of 5 positions, 2 heads, K rows of 8 and V rows of 6, all bytes random; `tokens` random rows, and
   as many distinct scattered slots, in `slots`. */
void caching_open(caching *c, const char *backend, attn_dtype rows, attn_dtype pool, attn_layout layout,
                  int64_t tokens);
void caching_close(caching *c);

/* Prepare a gather of two sequences into k and v, which become 0xFF. */
void caching_gather(caching *c, int32_t start_0, int32_t len_0, int32_t start_1, int32_t len_1);

/* Element index of a position's row in the K (which 0) or V pool. */
int64_t caching_row(const caching *c, int which, int64_t slot, int32_t head);

#endif
