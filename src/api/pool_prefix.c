/* SPDX-License-Identifier: Apache-2.0 */
/* pool_prefix.c: prefix reuse in the block manager: blocks found by content, kept without references, evicted.
 *
 * A reusable block is in the chain of its hash's bucket. A block's content is its token ids and its parent's serial,
 * and a serial stands for one content only, so that comparing one block compares the whole prefix. A sequence that
 * computed what another one has already gets blocks with the same serials. Of such twins all are in use, or there is
 * one alone: it is kept, the others are freed.
 */
#include "api/pool_impl.h"

#include <string.h>

attn_status attn_pool_check_prefix(const attn_pool *pool, const char *name, attn_message *message) {
  if (pool->nodes == NULL) {
    return attn_fail(message, ATTN_E_STATE, "%s: the pool has options.prefix_cache 0, accepted: 1", name);
  }
  return ATTN_OK;
}

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

uint64_t attn_pool_hash(const attn_pool *pool, uint64_t parent, const int32_t *tokens) {
  const uint64_t odd = UINT64_C(0x9E3779B97F4A7C15); /* 2^64 divided by the golden ratio */
  uint64_t hash = (parent + 1) * odd;
  for (int32_t i = 0; i < pool->block_size; i++) {
    hash = (hash ^ (uint32_t)tokens[i]) * odd;
    hash ^= hash >> 32;
  }
  return hash & pool->hash_mask;
}

uint64_t attn_pool_bucket(const attn_pool *pool, uint64_t hash) {
  return hash & (pool->num_buckets - 1);
}

int32_t attn_pool_find(const attn_pool *pool, uint64_t parent, uint64_t hash, const int32_t *tokens,
                       int64_t *collisions) {
  int32_t block = pool->buckets[attn_pool_bucket(pool, hash)];
  for (; block != ATTN_NULL_BLOCK; block = pool->nodes[block].chain_next) {
    const attn_pool_node *node = &pool->nodes[block];
    if (node->hash != hash) {
      continue;
    }
    if (node->parent == parent &&
        memcmp(attn_pool_tokens(pool, block), tokens, (size_t)pool->block_size * sizeof *tokens) == 0) {
      return block;
    }
    ++*collisions;
  }
  return ATTN_NULL_BLOCK;
}

/* ---- Keeping ----------------------------------------------------------------------------------------------------- */

static void enter_ring(attn_pool *pool, int32_t block) {
  attn_pool_node *anchor = &pool->nodes[ATTN_NULL_BLOCK];
  attn_pool_node *node = &pool->nodes[block];
  node->older = anchor->older; /* the newest so far */
  node->newer = ATTN_NULL_BLOCK;
  pool->nodes[anchor->older].newer = block;
  anchor->older = block;
  pool->num_cached++;
}

static void leave_ring(attn_pool *pool, int32_t block) {
  attn_pool_node *node = &pool->nodes[block];
  pool->nodes[node->older].newer = node->newer;
  pool->nodes[node->newer].older = node->older;
  pool->num_cached--;
}

/* No longer reusable: leave the chain. */
static void forget(attn_pool *pool, int32_t block) {
  attn_pool_node *node = &pool->nodes[block];
  if (node->chain_prev != ATTN_NULL_BLOCK) {
    pool->nodes[node->chain_prev].chain_next = node->chain_next;
  } else {
    pool->buckets[attn_pool_bucket(pool, node->hash)] = node->chain_next;
  }
  if (node->chain_next != ATTN_NULL_BLOCK) {
    pool->nodes[node->chain_next].chain_prev = node->chain_prev;
  }
  node->serial = 0;
}

/* Put a full block, whose tokens are in place, where it is found. */
static void make_reusable(attn_pool *pool, int32_t block, uint64_t parent) {
  const int32_t *tokens = attn_pool_tokens(pool, block);
  uint64_t hash = attn_pool_hash(pool, parent, tokens);
  int32_t twin = attn_pool_find(pool, parent, hash, tokens, &pool->collisions);
  int32_t *first = &pool->buckets[attn_pool_bucket(pool, hash)];
  attn_pool_node *node = &pool->nodes[block];
  if (twin == ATTN_NULL_BLOCK) {
    node->serial = ++pool->last_serial;
  } else {
    node->serial = pool->nodes[twin].serial;
    if (pool->references[twin] == 0) {
      leave_ring(pool, twin);
      forget(pool, twin);
      pool->stack[pool->num_stacked++] = twin;
    }
  }
  node->parent = parent;
  node->hash = hash;
  node->chain_next = *first;
  node->chain_prev = ATTN_NULL_BLOCK;
  if (*first != ATTN_NULL_BLOCK) {
    pool->nodes[*first].chain_prev = block;
  }
  *first = block;
}

int attn_pool_has_twin(const attn_pool *pool, int32_t block) {
  uint64_t serial = pool->nodes[block].serial;
  int32_t other = pool->buckets[attn_pool_bucket(pool, pool->nodes[block].hash)];
  while (other != ATTN_NULL_BLOCK && (other == block || pool->nodes[other].serial != serial)) {
    other = pool->nodes[other].chain_next;
  }
  return other != ATTN_NULL_BLOCK;
}

int attn_pool_keep(attn_pool *pool, int32_t block) {
  if (attn_pool_has_twin(pool, block)) {
    forget(pool, block);
    return 0;
  }
  enter_ring(pool, block);
  return 1;
}

int32_t attn_pool_evict(attn_pool *pool) {
  int32_t block = pool->nodes[ATTN_NULL_BLOCK].newer;
  leave_ring(pool, block);
  forget(pool, block);
  pool->evictions++;
  return block;
}

/* ---- Public calls ------------------------------------------------------------------------------------------------ */

attn_status attn_pool_commit(attn_pool *pool, int32_t seq, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(attn_pool_check_prefix(pool, "attn_pool_commit", message));
  ATTN_TRY(attn_pool_check_seq(pool, "seq", seq, message));
  const int32_t *row = attn_pool_row(pool, seq);
  int32_t full = pool->known[seq] / pool->block_size;
  for (int32_t column = pool->committed[seq]; column < full; column++) {
    int32_t block = row[column];
    uint64_t parent = column > 0 ? pool->nodes[row[column - 1]].serial : 0;
    /* Where the caller released a reference that was the sequence's, the rest stays as it is. */
    if (pool->references[block] == 0 || (column > 0 && parent == 0)) {
      break;
    }
    if (pool->nodes[block].serial == 0) {
      make_reusable(pool, block, parent);
    }
    pool->committed[seq] = column + 1;
  }
  return ATTN_OK;
}

attn_status attn_pool_reuse_prefix(attn_pool *pool, int32_t seq, const int32_t *tokens, int32_t count, int32_t *reused,
                                   attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(attn_pool_check_prefix(pool, "attn_pool_reuse_prefix", message));
  ATTN_TRY(attn_pool_check_count(count, message));
  if (count > 0) {
    ATTN_CHECK_POINTER(tokens, "tokens", message);
  }
  ATTN_CHECK_POINTER(reused, "reused", message);
  ATTN_TRY(attn_pool_check_empty(pool, "seq", seq, message));
  int32_t *row = attn_pool_row(pool, seq);
  int32_t full = count / pool->block_size;
  int32_t most = full < pool->max_seq_blocks ? full : pool->max_seq_blocks;
  int32_t column = 0;
  uint64_t parent = 0;
  for (; column < most; column++) {
    const int32_t *wanted = tokens + (size_t)column * (size_t)pool->block_size;
    uint64_t hash = attn_pool_hash(pool, parent, wanted);
    int32_t block = attn_pool_find(pool, parent, hash, wanted, &pool->collisions);
    if (block == ATTN_NULL_BLOCK || pool->references[block] == INT32_MAX) {
      break;
    }
    if (pool->references[block]++ == 0) {
      leave_ring(pool, block);
    }
    attn_pool_hold(pool, block);
    row[column] = block;
    parent = pool->nodes[block].serial;
  }
  pool->hits += column;
  pool->committed[seq] = column;
  pool->known[seq] = column * pool->block_size;
  pool->lens[seq] = pool->known[seq];
  *reused = pool->known[seq];
  return ATTN_OK;
}
