/* SPDX-License-Identifier: Apache-2.0 */
/* pool_impl.h: a pool from within. pool.c has blocks, pool_seq.c sequences, pool_prefix.c reuse, pool_check.c books.
 *
 * Free blocks are a stack of released ids above a counter `fresh` of ids never handed out, so that creating a pool does
 * not touch its memory. A block without references is on the stack, or past `fresh`, or kept for reuse; a kept one is
 * in a ring from the least to the most recently used, whose anchor is the node of the null block. How many blocks a
 * sequence holds follows from its length; its table row is null blocks from there on. All arrays, with the one in which
 * attn_pool_check() counts, are carved from a single zeroed allocation.
 */
#ifndef ATTN_API_POOL_IMPL_H
#define ATTN_API_POOL_IMPL_H

#include "attn/pool.h"
#include "core/arithmetic.h"
#include "core/error.h"
#include "core/resolve.h"

#define ATTN_NULL_BLOCK 0

/* What a block is to those who look for a prefix. A serial stands for a content: blocks with the same tokens after the
   same parent have the same one. Serials are never used twice, so that a parent that was evicted is never mistaken. */
typedef struct attn_pool_node {
  uint64_t serial; /* 0: not reusable, and the rest but the ring is without meaning */
  uint64_t parent; /* the serial of the block before it, 0 for a first block */
  uint64_t hash;
  int32_t chain_next; /* reusable blocks of one bucket; the null block ends it */
  int32_t chain_prev;
  int32_t newer; /* the ring */
  int32_t older;
} attn_pool_node;

struct attn_pool {
  void *memory; /* of all arrays */
  int32_t num_blocks;
  int32_t block_size;
  int32_t max_seqs;
  int32_t max_seq_blocks;
  int32_t fresh;       /* ids from here on were never handed out */
  int32_t num_stacked; /* released ids in `stack` */
  int32_t num_cached;  /* blocks in the ring */
  int32_t num_shared;  /* blocks with more than one holder */
  int32_t *references; /* [num_blocks] */
  int32_t *holders;    /* [num_blocks] table entries that name the block */
  int32_t *stack;      /* [num_blocks] */
  int32_t *found;      /* [num_blocks] attn_pool_check() counts here */
  int32_t *lens;       /* [max_seqs] tokens */
  int32_t *known;      /* [max_seqs] leading tokens whose ids are known */
  int32_t *committed;  /* [max_seqs] leading blocks that are reusable */
  int32_t *tables;     /* [max_seqs, max_seq_blocks] */
  /* The rest is for pools with options.prefix_cache; NULL elsewhere. */
  attn_pool_node *nodes; /* [num_blocks] */
  int32_t *buckets;      /* [num_buckets] first block of each chain */
  int32_t *tokens;       /* [num_blocks, block_size] */
  uint64_t num_buckets;  /* a power of two */
  uint64_t hash_mask;
  uint64_t last_serial;
  int64_t hits;
  int64_t evictions;
  int64_t copies;
  int64_t collisions;
};

/* ---- pool.c */

int32_t attn_pool_count_free(const attn_pool *pool);

/* A block with one reference; the caller has seen that one is free. */
int32_t attn_pool_take(attn_pool *pool);

/* The block is in use. */
void attn_pool_drop(attn_pool *pool, int32_t block);

attn_status attn_pool_check_count(int32_t count, attn_message *message);
attn_status attn_pool_check_free(const attn_pool *pool, int32_t wanted, attn_message *message);

/* ---- pool_seq.c */

attn_status attn_pool_check_seq(const attn_pool *pool, const char *name, int32_t seq, attn_message *message);

/* A slot to start a sequence in. */
attn_status attn_pool_check_empty(const attn_pool *pool, const char *name, int32_t seq, attn_message *message);

static inline int attn_pool_is_seq(const attn_pool *pool, int32_t seq) {
  return 0 <= seq && seq < pool->max_seqs;
}

static inline int32_t *attn_pool_row(const attn_pool *pool, int32_t seq) {
  return pool->tables + (size_t)seq * (size_t)pool->max_seq_blocks;
}

/* Blocks that hold so many tokens. */
static inline int64_t attn_pool_blocks_of(const attn_pool *pool, int64_t tokens) {
  return attn_ceil_div(tokens, pool->block_size);
}

static inline int32_t attn_pool_held(const attn_pool *pool, int32_t seq) {
  return (int32_t)attn_pool_blocks_of(pool, pool->lens[seq]);
}

/* A table entry names the block, or no longer does. */
static inline void attn_pool_hold(attn_pool *pool, int32_t block) {
  pool->num_shared += ++pool->holders[block] == 2;
}

static inline void attn_pool_unhold(attn_pool *pool, int32_t block) {
  pool->num_shared -= --pool->holders[block] == 1;
}

/* ---- pool_prefix.c */

/* Token ids of a block. */
static inline int32_t *attn_pool_tokens(const attn_pool *pool, int32_t block) {
  return pool->tokens + (size_t)block * (size_t)pool->block_size;
}

static inline int attn_pool_is_reusable(const attn_pool *pool, int32_t block) {
  return pool->nodes != NULL && pool->nodes[block].serial != 0;
}

attn_status attn_pool_check_prefix(const attn_pool *pool, const char *name, attn_message *message);

uint64_t attn_pool_hash(const attn_pool *pool, uint64_t parent, const int32_t *tokens);
uint64_t attn_pool_bucket(const attn_pool *pool, uint64_t hash);

/* A reusable block with these tokens after this parent; the null block when there is none. Blocks with that hash and
   another content are added to *collisions. */
int32_t attn_pool_find(const attn_pool *pool, uint64_t parent, uint64_t hash, const int32_t *tokens,
                       int64_t *collisions);

/* Whether another reusable block has the content of this one. */
int attn_pool_has_twin(const attn_pool *pool, int32_t block);

/* A reusable block lost its last reference: keep it, or, where the same content is in use, make it an ordinary one.
   @return 1 when it is kept, 0 when it has to be freed. */
int attn_pool_keep(attn_pool *pool, int32_t block);

/* The least recently used block, no longer reusable; the caller has seen that one is kept. */
int32_t attn_pool_evict(attn_pool *pool);

#endif
