/* SPDX-License-Identifier: Apache-2.0 */
/* pool_prefix.c: prefix reuse in the block manager: blocks found by content, kept without references, evicted.
 *
 * A reusable block is in the chain of its hash's bucket. A block's content is its token ids and its parent's serial,
 * and a serial stands for one content only, so that comparing one block compares the whole prefix. A sequence that
 * computed what another one has already gets blocks with the same serials. Of such twins all are in use, or there is
 * one alone: it is kept, the others are freed.
 *
 * Token ids belong to the blocks of one group, the index. A block of another group that ends in an index block has for
 * content that block's serial and its own place: a start that uses it ends no earlier than the index block does, so
 * nothing is lost. Behind a window a start may lack blocks, and is found all the same.
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

static const uint64_t odd = UINT64_C(0x9E3779B97F4A7C15); /* 2^64 divided by the golden ratio */

attn_pool_key attn_pool_index_key(const attn_pool *pool, uint64_t parent, const int32_t *tokens) {
  uint64_t hash = (parent + 1) * odd;
  int32_t block_size = attn_pool_index(pool)->block_size;
  for (int32_t i = 0; i < block_size; i++) {
    hash = (hash ^ (uint32_t)tokens[i]) * odd;
    hash ^= hash >> 32;
  }
  return (attn_pool_key){parent, hash & pool->hash_mask, pool->index, 0, tokens};
}

attn_pool_key attn_pool_part_key(const attn_pool *pool, uint64_t parent, int32_t group, int32_t column) {
  uint64_t hash = (parent + 1) * odd;
  hash = (hash ^ (uint32_t)column ^ ((uint64_t)(uint32_t)(group + 1) << 32)) * odd;
  hash ^= hash >> 32;
  return (attn_pool_key){parent, hash & pool->hash_mask, group, column, NULL};
}

uint64_t attn_pool_bucket(const attn_pool *pool, uint64_t hash) {
  return hash & (pool->num_buckets - 1);
}

static int is_wanted(const attn_pool *pool, int32_t block, const attn_pool_key *key) {
  const attn_pool_node *node = &pool->nodes[block];
  if (node->parent != key->parent || node->group != key->group) {
    return 0;
  }
  size_t bytes = (size_t)attn_pool_index(pool)->block_size * sizeof *key->tokens;
  return key->tokens == NULL ? node->column == key->column
                             : memcmp(attn_pool_tokens(pool, block), key->tokens, bytes) == 0;
}

int32_t attn_pool_find(const attn_pool *pool, const attn_pool_key *key, int64_t *collisions) {
  int32_t block = pool->buckets[attn_pool_bucket(pool, key->hash)];
  for (; block != ATTN_NULL_BLOCK; block = pool->nodes[block].chain_next) {
    if (pool->nodes[block].hash != key->hash) {
      continue;
    }
    if (is_wanted(pool, block, key)) {
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

/* Put a full block where its key finds it. */
static void make_reusable(attn_pool *pool, int32_t block, const attn_pool_key *key, int32_t column) {
  int32_t twin = attn_pool_find(pool, key, &pool->collisions);
  int32_t *first = &pool->buckets[attn_pool_bucket(pool, key->hash)];
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
  node->parent = key->parent;
  node->hash = key->hash;
  node->group = key->group;
  node->column = column;
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

/* ---- Committing -------------------------------------------------------------------------------------------------- */

/* The columns of a group whose last token is in column `of` of the index. */
static int64_t first_ending(const attn_pool *pool, const attn_pool_lane *lane, int32_t of) {
  return (int64_t)of * attn_pool_index(pool)->block_size / lane->block_size;
}

/* The blocks of the other groups that end in an index block are found through its serial. */
static void commit_parts(attn_pool *pool, int32_t seq, int32_t of, uint64_t serial) {
  for (int32_t g = 0; g < pool->num_groups; g++) {
    const attn_pool_lane *lane = &pool->lanes[g];
    const int32_t *row = attn_pool_row(pool, seq, lane);
    int64_t end = g == pool->index ? 0 : first_ending(pool, lane, of + 1);
    for (int64_t column = first_ending(pool, lane, of); column < end; column++) {
      int32_t block = row[column];
      if (block != ATTN_NULL_BLOCK && pool->references[block] > 0 && pool->nodes[block].serial == 0) {
        attn_pool_key key = attn_pool_part_key(pool, serial, g, (int32_t)column);
        make_reusable(pool, block, &key, (int32_t)column);
      }
    }
  }
}

attn_status attn_pool_commit(attn_pool *pool, int32_t seq, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(attn_pool_check_prefix(pool, "attn_pool_commit", message));
  ATTN_TRY(attn_pool_check_seq(pool, "seq", seq, message));
  const int32_t *row = attn_pool_row(pool, seq, attn_pool_index(pool));
  int32_t full = pool->known[seq] / attn_pool_index(pool)->block_size;
  for (int32_t column = pool->committed[seq]; column < full; column++) {
    int32_t block = row[column];
    /* Where a block went before it was committed (behind the window), or the caller released a reference that was the
       sequence's, the rest stays as it is. */
    if (block == ATTN_NULL_BLOCK || pool->references[block] == 0 ||
        (column > 0 && row[column - 1] != ATTN_NULL_BLOCK && pool->nodes[row[column - 1]].serial == 0)) {
      break;
    }
    if (pool->nodes[block].serial == 0) {
      attn_pool_key key = attn_pool_index_key(pool, pool->serials[seq], attn_pool_tokens(pool, block));
      make_reusable(pool, block, &key, column);
    }
    pool->serials[seq] = pool->nodes[block].serial;
    pool->committed[seq] = column + 1;
    if (pool->num_groups > 1) {
      commit_parts(pool, seq, column, pool->serials[seq]);
    }
  }
  return ATTN_OK;
}

/* ---- Reusing ----------------------------------------------------------------------------------------------------- */

/* Look up the blocks of the other groups that end in an index block; what is found goes into the row. */
static void find_parts(attn_pool *pool, int32_t seq, int32_t of, uint64_t serial) {
  for (int32_t g = 0; g < pool->num_groups; g++) {
    attn_pool_lane *lane = &pool->lanes[g];
    int32_t *row = attn_pool_row(pool, seq, lane);
    int64_t end = g == pool->index ? 0 : first_ending(pool, lane, of + 1);
    for (int64_t column = first_ending(pool, lane, of); column < end; column++) {
      attn_pool_key key = attn_pool_part_key(pool, serial, g, (int32_t)column);
      int32_t block = attn_pool_find(pool, &key, &pool->collisions);
      row[column] = block != ATTN_NULL_BLOCK && pool->references[block] == INT32_MAX ? ATTN_NULL_BLOCK : block;
      lane->gap = row[column] == ATTN_NULL_BLOCK ? (int32_t)column + 1 : lane->gap;
    }
  }
}

/* Whether a sequence may start with `tokens` tokens: blocks of every group end there, and none that is seen from there
   on is missing. */
static int is_start(const attn_pool *pool, int64_t tokens) {
  for (int32_t g = 0; g < pool->num_groups; g++) {
    const attn_pool_lane *lane = &pool->lanes[g];
    if (tokens % lane->block_size != 0 || lane->gap > attn_pool_first_seen(lane, tokens)) {
      return 0;
    }
  }
  return 1;
}

/* Whether a group without a window lacks a block: no longer beginning will do. */
static int is_broken(const attn_pool *pool) {
  int broken = 0;
  for (int32_t g = 0; g < pool->num_groups; g++) {
    broken |= pool->lanes[g].window == 0 && pool->lanes[g].gap > 0;
  }
  return broken;
}

/* Write the blocks found into the rows of the sequence, from its first token on.
   @return columns of the index that make the longest start; *walked is how many were found. */
static int32_t find_start(attn_pool *pool, int32_t seq, const int32_t *tokens, int32_t count, int32_t *walked) {
  int32_t block_size = attn_pool_index(pool)->block_size;
  int32_t *row = attn_pool_row(pool, seq, attn_pool_index(pool));
  int32_t most = (count < pool->max_tokens ? count : pool->max_tokens) / block_size;
  int32_t start = 0;
  int32_t column = 0;
  uint64_t parent = 0;
  for (int32_t g = 0; g < pool->num_groups; g++) {
    pool->lanes[g].gap = 0;
  }
  while (column < most && !is_broken(pool)) {
    attn_pool_key key = attn_pool_index_key(pool, parent, tokens + (size_t)column * (size_t)block_size);
    int32_t block = attn_pool_find(pool, &key, &pool->collisions);
    if (block == ATTN_NULL_BLOCK || pool->references[block] == INT32_MAX) {
      break;
    }
    parent = pool->nodes[block].serial;
    row[column] = block;
    if (pool->num_groups > 1) {
      find_parts(pool, seq, column, parent);
    }
    column++;
    if (is_start(pool, (int64_t)column * block_size)) {
      start = column;
      pool->serials[seq] = parent;
    }
  }
  *walked = column;
  return start;
}

/* Keep of the blocks found in a group those that a sequence of `tokens` tokens sees; `walked` tokens were looked up. */
static void take_start(attn_pool *pool, int32_t seq, int32_t g, int32_t tokens, int64_t walked) {
  const attn_pool_lane *lane = &pool->lanes[g];
  int32_t *row = attn_pool_row(pool, seq, lane);
  int32_t first = attn_pool_first_seen(lane, tokens);
  int32_t end = tokens / lane->block_size;
  int64_t found = walked / lane->block_size;
  for (int64_t column = 0; column < found; column++) {
    if (column < first || column >= end) {
      row[column] = ATTN_NULL_BLOCK;
      continue;
    }
    if (pool->references[row[column]]++ == 0) {
      leave_ring(pool, row[column]);
    }
    attn_pool_hold(pool, row[column]);
    pool->hits++;
  }
  attn_pool_trimmed(pool, seq)[g] = first;
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
  int32_t walked = 0;
  int32_t start = find_start(pool, seq, tokens, count, &walked);
  int32_t block_size = attn_pool_index(pool)->block_size;
  for (int32_t g = 0; g < pool->num_groups; g++) {
    take_start(pool, seq, g, start * block_size, (int64_t)walked * block_size);
  }
  pool->committed[seq] = start;
  pool->known[seq] = start * block_size;
  pool->lens[seq] = pool->known[seq];
  *reused = pool->known[seq];
  return ATTN_OK;
}
