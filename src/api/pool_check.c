/* SPDX-License-Identifier: Apache-2.0 */
/* pool_check.c: the proof that the block manager's books balance. Counts in the pool's `found`: first what can be
 * reused, then what the sequences hold and what is free.
 */
#include "api/pool_impl.h"

#include <string.h>

/* ---- What can be reused ------------------------------------------------------------------------------------------ */

static attn_status check_chains(const attn_pool *pool, attn_message *message) {
  for (uint64_t bucket = 0; bucket < pool->num_buckets; bucket++) {
    int32_t before = ATTN_NULL_BLOCK;
    for (int32_t block = pool->buckets[bucket]; block != ATTN_NULL_BLOCK; block = pool->nodes[block].chain_next) {
      if (block < 0 || block >= pool->fresh || pool->found[block]++ != 0) {
        return attn_fail(message, ATTN_E_INTERNAL, "pool: block %d is in a chain of reusable blocks, and also %s",
                         (int)block, block < 0 || block >= pool->fresh ? "outside the pool" : "a second time");
      }
      const attn_pool_node *node = &pool->nodes[block];
      if (node->serial == 0 || node->chain_prev != before || attn_pool_bucket(pool, node->hash) != bucket) {
        return attn_fail(message, ATTN_E_INTERNAL,
                         "pool: block %d is in a chain of reusable blocks that is not its own", (int)block);
      }
      before = block;
    }
  }
  return ATTN_OK;
}

/* Marks by 2 what the chains marked by 1. */
static attn_status check_ring(const attn_pool *pool, attn_message *message) {
  int32_t count = 0;
  int32_t before = ATTN_NULL_BLOCK;
  for (int32_t block = pool->nodes[ATTN_NULL_BLOCK].newer; block != ATTN_NULL_BLOCK; block = pool->nodes[block].newer) {
    if (block < 0 || block >= pool->fresh || pool->found[block] != 1 || pool->references[block] != 0 ||
        pool->nodes[block].older != before) {
      return attn_fail(message, ATTN_E_INTERNAL, "pool: block %d is kept for reuse, expected: once, reusable, unused",
                       (int)block);
    }
    pool->found[block] = 2;
    before = block;
    count++;
  }
  if (count != pool->num_cached || pool->nodes[ATTN_NULL_BLOCK].older != before) {
    return attn_fail(message, ATTN_E_INTERNAL, "pool: %d blocks kept for reuse, %d were counted", (int)count,
                     (int)pool->num_cached);
  }
  return ATTN_OK;
}

/* A reusable block is found by what it holds, and is kept when nobody uses it. */
static attn_status check_reusable(const attn_pool *pool, attn_message *message) {
  for (int32_t block = ATTN_NULL_BLOCK + 1; block < pool->fresh; block++) {
    const attn_pool_node *node = &pool->nodes[block];
    int32_t wanted = node->serial == 0 ? 0 : 1 + (pool->references[block] == 0);
    if (pool->found[block] != wanted) {
      return attn_fail(message, ATTN_E_INTERNAL, "pool: block %d is %sreusable with %d references and %skept",
                       (int)block, node->serial == 0 ? "not " : "", (int)pool->references[block],
                       pool->found[block] == 2 ? "" : "not ");
    }
    if (node->serial == 0) {
      continue;
    }
    attn_pool_key key = node->group == pool->index
                            ? attn_pool_index_key(pool, node->parent, attn_pool_tokens(pool, block))
                            : attn_pool_part_key(pool, node->parent, node->group, node->column);
    int64_t collisions = 0;
    int32_t first = attn_pool_find(pool, &key, &collisions);
    if (node->group < 0 || node->group >= pool->num_groups || node->parent >= node->serial ||
        node->serial > pool->last_serial || pool->nodes[first].serial != node->serial || key.hash != node->hash) {
      return attn_fail(message, ATTN_E_INTERNAL, "pool: block %d is reusable and not found by its tokens and parent",
                       (int)block);
    }
    if (wanted == 2 && attn_pool_has_twin(pool, block)) {
      return attn_fail(message, ATTN_E_INTERNAL, "pool: block %d is kept for reuse, and its content is in another too",
                       (int)block);
    }
  }
  return ATTN_OK;
}

/* The blocks of the index that a sequence made reusable follow one another. */
static attn_status check_path(const attn_pool *pool, int32_t seq, attn_message *message) {
  int32_t known = pool->known[seq];
  int32_t committed = pool->committed[seq];
  if (known < 0 || known > pool->lens[seq] || committed < 0 || committed > known / attn_pool_index(pool)->block_size) {
    return attn_fail(message, ATTN_E_INTERNAL, "pool: seq %d has %d tokens, the ids of %d, %d reusable blocks",
                     (int)seq, (int)pool->lens[seq], (int)known, (int)committed);
  }
  const int32_t *row = attn_pool_row(pool, seq, attn_pool_index(pool));
  int32_t first = attn_pool_trimmed(pool, seq)[pool->index];
  uint64_t parent = committed > first ? pool->nodes[row[first]].parent : pool->serials[seq];
  for (int32_t column = first; column < committed; column++) {
    const attn_pool_node *node = &pool->nodes[row[column]];
    if (node->serial == 0 || node->parent != parent || node->group != pool->index || (column == 0) != (parent == 0)) {
      return attn_fail(message, ATTN_E_INTERNAL,
                       "pool: seq %d has block %d in column %d, which does not follow the one before it", (int)seq,
                       (int)row[column], (int)column);
    }
    parent = node->serial;
  }
  if (parent != pool->serials[seq] || (committed == 0) != (parent == 0)) {
    return attn_fail(message, ATTN_E_INTERNAL, "pool: seq %d has %d reusable blocks, the serial of the last is %llu",
                     (int)seq, (int)committed, (unsigned long long)pool->serials[seq]);
  }
  return ATTN_OK;
}

/* A reusable block of another group is one of its own place. */
static attn_status check_part(const attn_pool *pool, int32_t seq, int32_t g, int32_t column, attn_message *message) {
  int32_t block = attn_pool_row(pool, seq, &pool->lanes[g])[column];
  const attn_pool_node *node = &pool->nodes[block];
  if (node->serial != 0 && (node->group != g || node->column != column)) {
    return attn_fail(message, ATTN_E_INTERNAL,
                     "pool: seq %d has block %d in column %d of group %d, it is reusable in column %d of group %d",
                     (int)seq, (int)block, (int)column, (int)g, (int)node->column, (int)node->group);
  }
  return ATTN_OK;
}

/* ---- Who has what ------------------------------------------------------------------------------------------------ */

static attn_status check_lists(const attn_pool *pool, attn_message *message) {
  if (pool->fresh < 1 || pool->fresh > pool->num_blocks || pool->num_stacked < 0 || pool->num_stacked >= pool->fresh) {
    return attn_fail(message, ATTN_E_INTERNAL, "pool: %d blocks on the free list, %d handed out so far, of %d",
                     (int)pool->num_stacked, (int)(pool->fresh - 1), (int)(pool->num_blocks - 1));
  }
  if (pool->references[ATTN_NULL_BLOCK] != 0) {
    return attn_fail(message, ATTN_E_INTERNAL, "pool: the null block has %d references, expected 0",
                     (int)pool->references[ATTN_NULL_BLOCK]);
  }
  return ATTN_OK;
}

/* One row of a sequence: null blocks behind the window, blocks as its length needs, null blocks beyond. Counts them in
   `found`. */
static attn_status check_row(const attn_pool *pool, int32_t seq, int32_t g, attn_message *message) {
  const attn_pool_lane *lane = &pool->lanes[g];
  const int32_t *row = attn_pool_row(pool, seq, lane);
  int32_t first = attn_pool_trimmed(pool, seq)[g];
  int32_t held = attn_pool_held(pool, seq, lane);
  if (first < 0 || first > attn_pool_first_seen(lane, pool->lens[seq])) {
    return attn_fail(message, ATTN_E_INTERNAL, "pool: seq %d has %d columns of group %d behind window %d at length %d",
                     (int)seq, (int)first, (int)g, (int)lane->window, (int)pool->lens[seq]);
  }
  for (int32_t column = 0; column < lane->max_blocks; column++) {
    int32_t block = row[column];
    int holds = first <= column && column < held;
    if (holds ? block <= ATTN_NULL_BLOCK || block >= pool->fresh : block != ATTN_NULL_BLOCK) {
      return attn_fail(message, ATTN_E_INTERNAL,
                       "pool: seq %d has block %d in column %d of group %d, its length needs columns %d to %d",
                       (int)seq, (int)block, (int)column, (int)g, (int)first, (int)held - 1);
    }
    if (holds) {
      pool->found[block]++;
    }
    if (holds && pool->nodes != NULL) {
      ATTN_TRY(check_part(pool, seq, g, column, message));
    }
  }
  return ATTN_OK;
}

static attn_status check_seq(const attn_pool *pool, int32_t seq, attn_message *message) {
  if (pool->lens[seq] < 0 || pool->lens[seq] > pool->max_tokens) {
    return attn_fail(message, ATTN_E_INTERNAL, "pool: seq %d has length %d, its rows hold %d tokens", (int)seq,
                     (int)pool->lens[seq], (int)pool->max_tokens);
  }
  for (int32_t g = 0; g < pool->num_groups; g++) {
    ATTN_TRY(check_row(pool, seq, g, message));
  }
  return pool->nodes == NULL ? ATTN_OK : check_path(pool, seq, message);
}

/* Marks a free block by -1 in `found`. */
static attn_status mark_free(const attn_pool *pool, int32_t block, attn_message *message) {
  if (pool->found[block] != 0) {
    return attn_fail(message, ATTN_E_INTERNAL, "pool: block %d is on the free list, and also %s", (int)block,
                     pool->found[block] < 0 ? "a second time" : "in a sequence");
  }
  pool->found[block] = -1;
  return ATTN_OK;
}

static attn_status check_stack(const attn_pool *pool, attn_message *message) {
  for (int32_t i = 0; i < pool->num_stacked; i++) {
    int32_t block = pool->stack[i];
    if (block <= ATTN_NULL_BLOCK || block >= pool->fresh || attn_pool_is_reusable(pool, block)) {
      return attn_fail(message, ATTN_E_INTERNAL, "pool: block %d is on the free list, expected 1 to %d, not reusable",
                       (int)block, (int)(pool->fresh - 1));
    }
    ATTN_TRY(mark_free(pool, block, message));
  }
  return ATTN_OK;
}

/* The blocks kept for reuse are free as well; check_ring() has seen that they are in the pool. */
static attn_status check_kept(const attn_pool *pool, attn_message *message) {
  if (pool->nodes == NULL) {
    return ATTN_OK;
  }
  for (int32_t block = pool->nodes[ATTN_NULL_BLOCK].newer; block != ATTN_NULL_BLOCK; block = pool->nodes[block].newer) {
    ATTN_TRY(mark_free(pool, block, message));
  }
  return ATTN_OK;
}

static attn_status check_blocks(const attn_pool *pool, attn_message *message) {
  int32_t shared = 0;
  for (int32_t block = ATTN_NULL_BLOCK + 1; block < pool->num_blocks; block++) {
    int32_t references = pool->references[block];
    int32_t found = pool->found[block];
    int is_free = block >= pool->fresh || found < 0;
    if (is_free != (references == 0)) {
      return attn_fail(message, ATTN_E_INTERNAL, "pool: block %d has %d references and is %s the free list", (int)block,
                       (int)references, is_free ? "on" : "not on");
    }
    if (references < 0 || (found > 0 && references < found)) {
      return attn_fail(message, ATTN_E_INTERNAL, "pool: block %d has %d references, %d were found in sequences",
                       (int)block, (int)references, (int)found);
    }
    if (pool->holders[block] != (found > 0 ? found : 0)) {
      return attn_fail(message, ATTN_E_INTERNAL, "pool: block %d counts %d table entries, %d were found", (int)block,
                       (int)pool->holders[block], found > 0 ? (int)found : 0);
    }
    shared += found > 1;
  }
  if (shared != pool->num_shared) {
    return attn_fail(message, ATTN_E_INTERNAL, "pool: %d shared blocks were counted, %d were found",
                     (int)pool->num_shared, (int)shared);
  }
  return ATTN_OK;
}

static void clear_counts(const attn_pool *pool) {
  memset(pool->found, 0, (size_t)pool->num_blocks * sizeof *pool->found);
}

attn_status attn_pool_check(const attn_pool *pool, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(check_lists(pool, message));
  if (pool->nodes != NULL) {
    clear_counts(pool);
    ATTN_TRY(check_chains(pool, message));
    ATTN_TRY(check_ring(pool, message));
    ATTN_TRY(check_reusable(pool, message));
  }
  clear_counts(pool);
  for (int32_t seq = 0; seq < pool->max_seqs; seq++) {
    ATTN_TRY(check_seq(pool, seq, message));
  }
  ATTN_TRY(check_stack(pool, message));
  ATTN_TRY(check_kept(pool, message));
  return check_blocks(pool, message);
}
