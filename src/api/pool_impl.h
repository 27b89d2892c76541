/* SPDX-License-Identifier: Apache-2.0 */
/* pool_impl.h: a pool from within. pool_create.c makes it, pool.c has blocks, pool_seq.c sequences, pool_table.c
 * tables, pool_prefix.c reuse, pool_check.c the books.
 *
 * There is one implementation for one group and for several: blocks know no group, a sequence has a row of blocks in
 * each, and every walk over rows is a loop over groups. A group with a window holds the columns from `trimmed` on.
 * Free blocks are a stack of released ids above a counter `fresh` of ids never handed out, so that creating a pool does
 * not touch its memory. A block without references is on the stack, or past `fresh`, or kept for reuse; a kept one is
 * in a ring from the least to the most recently used, whose anchor is the node of the null block. Where a row ends
 * follows from the sequence's length; it is null blocks from there on. All arrays, with the one in which
 * attn_pool_check() counts, are carved from a single zeroed allocation.
 *
 * Token ids are kept once, beside the blocks of one group, the index: that group's blocks are found by content, and
 * those of the others through the index block in which they end.
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
  uint64_t parent; /* index: the serial of the block before it, 0 for a first block. Else: of the index block in which
                      its last token is */
  uint64_t hash;
  int32_t group;
  int32_t column;     /* in its group's row */
  int32_t chain_next; /* reusable blocks of one bucket; the null block ends it */
  int32_t chain_prev;
  int32_t newer; /* the ring */
  int32_t older;
} attn_pool_node;

/* What a reusable block is looked for by. */
typedef struct attn_pool_key {
  uint64_t parent;
  uint64_t hash;
  int32_t group;
  int32_t column;
  const int32_t *tokens; /* index: [block_size] ids that it holds. Else: NULL, parent and column say what it holds */
} attn_pool_key;

typedef struct attn_pool_lane {
  int64_t trimmed; /* entries that attn_pool_trim() gave back */
  int32_t block_size;
  int32_t window;     /* 0: none */
  int32_t ratio;      /* kernel blocks in a block */
  int32_t max_blocks; /* columns of a row */
  size_t first;       /* where its row begins among a sequence's columns */
  int32_t gap;        /* attn_pool_reuse_prefix(): the column after the last block that was not found */
} attn_pool_lane;

struct attn_pool {
  void *memory; /* of all arrays */
  int32_t num_blocks;
  int32_t num_groups;
  int32_t index; /* the group along which tokens are kept and compared */
  int32_t max_seqs;
  int32_t max_tokens;     /* of a sequence */
  int32_t max_seq_blocks; /* as attn_pool_create() was told; 0: attn_pool_create_groups() was called */
  size_t seq_columns;     /* of all groups together */
  int32_t fresh;          /* ids from here on were never handed out */
  int32_t num_stacked;    /* released ids in `stack` */
  int32_t num_cached;     /* blocks in the ring */
  int32_t num_shared;     /* blocks with more than one holder */
  int32_t *references;    /* [num_blocks] */
  int32_t *holders;       /* [num_blocks] table entries that name the block */
  int32_t *stack;         /* [num_blocks] */
  int32_t *found;         /* [num_blocks] attn_pool_check() counts here */
  int32_t *lens;          /* [max_seqs] tokens */
  int32_t *known;         /* [max_seqs] leading tokens whose ids are known */
  int32_t *committed;     /* [max_seqs] leading blocks of the index that are reusable */
  int32_t *trimmed;       /* [max_seqs, num_groups] leading columns that are null blocks: behind the window */
  int32_t *tables;        /* [max_seqs, seq_columns] */
  /* The rest is for pools with options.prefix_cache; NULL elsewhere. */
  attn_pool_node *nodes; /* [num_blocks] */
  int32_t *buckets;      /* [num_buckets] first block of each chain */
  int32_t *tokens;       /* [num_blocks, block_size of the index] */
  uint64_t *serials;     /* [max_seqs] serial of the last of the `committed` blocks */
  uint64_t num_buckets;  /* a power of two */
  uint64_t hash_mask;
  uint64_t last_serial;
  int64_t hits;
  int64_t evictions;
  int64_t copies;
  int64_t collisions;
  attn_pool_lane lanes[]; /* [num_groups] */
};

/* ---- pool.c */

int32_t attn_pool_count_free(const attn_pool *pool);

/* A block with one reference; the caller has seen that one is free. */
int32_t attn_pool_take(attn_pool *pool);

/* The block is in use. */
void attn_pool_drop(attn_pool *pool, int32_t block);

attn_status attn_pool_check_count(int32_t count, attn_message *message);
attn_status attn_pool_check_free(const attn_pool *pool, int64_t wanted, attn_message *message);

/* ---- pool_seq.c */

attn_status attn_pool_check_seq(const attn_pool *pool, const char *name, int32_t seq, attn_message *message);

/* A slot to start a sequence in. */
attn_status attn_pool_check_empty(const attn_pool *pool, const char *name, int32_t seq, attn_message *message);

/* A call that says nothing of groups; `instead` is the one that does. */
attn_status attn_pool_check_single(const attn_pool *pool, const char *name, const char *instead, attn_message *message);

static inline int attn_pool_is_seq(const attn_pool *pool, int32_t seq) {
  return 0 <= seq && seq < pool->max_seqs;
}

static inline int32_t *attn_pool_row(const attn_pool *pool, int32_t seq, const attn_pool_lane *lane) {
  return pool->tables + (size_t)seq * pool->seq_columns + lane->first;
}

static inline int32_t *attn_pool_trimmed(const attn_pool *pool, int32_t seq) {
  return pool->trimmed + (size_t)seq * (size_t)pool->num_groups;
}

/* Where a row of the sequence ends: the columns that hold its tokens, those behind the window included. */
static inline int32_t attn_pool_held(const attn_pool *pool, int32_t seq, const attn_pool_lane *lane) {
  return (int32_t)attn_ceil_div(pool->lens[seq], lane->block_size);
}

/* The first column that the query at `position`, or a later one, sees. */
static inline int32_t attn_pool_first_seen(const attn_pool_lane *lane, int64_t position) {
  int64_t first = lane->window == 0 ? 0 : position - (lane->window - 1);
  return first <= 0 ? 0 : (int32_t)(first / lane->block_size);
}

/* A table entry names the block, or no longer does. */
static inline void attn_pool_hold(attn_pool *pool, int32_t block) {
  pool->num_shared += ++pool->holders[block] == 2;
}

static inline void attn_pool_unhold(attn_pool *pool, int32_t block) {
  pool->num_shared -= --pool->holders[block] == 1;
}

/* ---- pool_prefix.c */

static inline const attn_pool_lane *attn_pool_index(const attn_pool *pool) {
  return &pool->lanes[pool->index];
}

/* Token ids of a block of the index. */
static inline int32_t *attn_pool_tokens(const attn_pool *pool, int32_t block) {
  return pool->tokens + (size_t)block * (size_t)attn_pool_index(pool)->block_size;
}

static inline int attn_pool_is_reusable(const attn_pool *pool, int32_t block) {
  return pool->nodes != NULL && pool->nodes[block].serial != 0;
}

attn_status attn_pool_check_prefix(const attn_pool *pool, const char *name, attn_message *message);

/* The key of a block of the index with these tokens after this parent, and of a block of another group that ends in the
   index block `parent`. */
attn_pool_key attn_pool_index_key(const attn_pool *pool, uint64_t parent, const int32_t *tokens);
attn_pool_key attn_pool_part_key(const attn_pool *pool, uint64_t parent, int32_t group, int32_t column);

uint64_t attn_pool_bucket(const attn_pool *pool, uint64_t hash);

/* A reusable block by its key; the null block when there is none. Blocks with that hash and another content are added
   to *collisions. */
int32_t attn_pool_find(const attn_pool *pool, const attn_pool_key *key, int64_t *collisions);

/* Whether another reusable block has the content of this one. */
int attn_pool_has_twin(const attn_pool *pool, int32_t block);

/* A reusable block lost its last reference: keep it, or, where the same content is in use, make it an ordinary one.
   @return 1 when it is kept, 0 when it has to be freed. */
int attn_pool_keep(attn_pool *pool, int32_t block);

/* The least recently used block, no longer reusable; the caller has seen that one is kept. */
int32_t attn_pool_evict(attn_pool *pool);

#endif
