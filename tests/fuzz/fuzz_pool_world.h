/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_pool_world.h: what fuzz_pool.c holds against the block manager: the sequences as they must be, a cache that the
 * pool's answers drive, and what its tables say. A row of the cache is one number, which stands for its group, its
 * token and all tokens before it.
 */
#ifndef ATTN_FUZZ_POOL_WORLD_H
#define ATTN_FUZZ_POOL_WORLD_H

#include "fuzz.h"

enum { BLOCKS = 24, BLOCK_SIZE = 6, SEQS = 5, GROUPS = 3, TOKENS = 42, BATCH = 60, COPIES = 9, MOST = 14 };

typedef struct sequence {
  int32_t len;
  int32_t known;           /* leading tokens whose ids the pool was given */
  int32_t committed;       /* leading tokens that must be found again */
  int32_t trimmed[GROUPS]; /* leading columns that were given back */
  int32_t tokens[TOKENS];
  uint64_t rows[TOKENS]; /* what the cache must hold, up to the group */
} sequence;

typedef struct row_write {
  int64_t slot;
  int32_t group;
  uint64_t row;
} row_write;

/* The tables, in blocks, and the counts. */
typedef struct snapshot {
  int32_t table[GROUPS][SEQS][TOKENS];
  int32_t lens[SEQS];
  int32_t references[BLOCKS];
  int32_t holders[BLOCKS];
  attn_pool_info info;
} snapshot;

typedef struct world {
  attn_pool *pool;
  attn_pool_group groups[GROUPS];
  int32_t num_groups;
  int32_t num_blocks;
  int32_t max_seqs;
  int32_t max_len;
  int prefix_cache;
  int has_window;
  int hostile;
  sequence seqs[SEQS];
  int32_t extra[BLOCKS]; /* references of the caller */
  uint64_t cache[BLOCKS][BLOCK_SIZE];
  uint64_t stamp;          /* of the last row whose token nobody knows */
  int64_t trimmed[GROUPS]; /* entries given back so far */
  /* The step that is not performed yet. */
  int64_t map[2 * COPIES];
  attn_pool_copies copies;
  row_write writes[BATCH * GROUPS];
  int32_t num_writes;
  snapshot now; /* of the last world_check() */
} world;

static inline int32_t world_ceil_div(int32_t a, int32_t b) {
  return (a + b - 1) / b;
}

void world_snapshot(const world *w, snapshot *now);

/* The last block of a row where others hold it too, so that an append has to copy it; 0 otherwise. */
int32_t world_shared_tail(const world *w, const snapshot *now, int32_t g, int32_t seq);

/* Columns of a group that a query at this position and every later one look past. */
int32_t world_behind(const world *w, int32_t g, int32_t position);

/* The books, the counts, and every row of every sequence, once the step is performed. */
void world_check(world *w);

/* All copies, then all rows: what the caller owes before it frees, forks, commits or reuses. */
void world_perform(world *w);

/* The sequence has these tokens (NULL: nobody knows) more; slots[g * MOST + i] is where the step writes them. */
void world_append(world *w, int32_t seq, int32_t count, const int32_t *tokens, const int64_t *slots);

/* The sequence begins with tokens whose rows are in the cache. */
void world_start(world *w, int32_t seq, int32_t count, const int32_t *tokens);

#endif
