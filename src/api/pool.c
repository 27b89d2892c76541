/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: the block manager's blocks, and what it counts. See pool_impl.h. */
#include "api/pool_impl.h"

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

int32_t attn_pool_count_free(const attn_pool *pool) {
  return pool->num_blocks - pool->fresh + pool->num_stacked + pool->num_cached;
}

int32_t attn_pool_take(attn_pool *pool) {
  int32_t block = ATTN_NULL_BLOCK;
  if (pool->num_stacked > 0) {
    block = pool->stack[--pool->num_stacked];
  } else if (pool->fresh < pool->num_blocks) {
    block = pool->fresh++;
  } else {
    block = attn_pool_evict(pool);
  }
  pool->references[block] = 1;
  return block;
}

void attn_pool_drop(attn_pool *pool, int32_t block) {
  if (--pool->references[block] == 0 && !(attn_pool_is_reusable(pool, block) && attn_pool_keep(pool, block))) {
    pool->stack[pool->num_stacked++] = block;
  }
}

static attn_status check_in_use(const attn_pool *pool, int32_t block, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  if (block == ATTN_NULL_BLOCK) {
    return attn_fail(message, ATTN_E_INDEX, "block: 0 is the null block, accepted: a block in use");
  }
  if (block < 0 || block >= pool->num_blocks) {
    return attn_fail(message, ATTN_E_INDEX, "block: %d, accepted: a block in use, 1 to %d", (int)block,
                     (int)(pool->num_blocks - 1));
  }
  if (pool->references[block] == 0) {
    return attn_fail(message, ATTN_E_INDEX, "block: %d is free, accepted: a block in use", (int)block);
  }
  return ATTN_OK;
}

attn_status attn_pool_check_count(int32_t count, attn_message *message) {
  if (count < 0) {
    return attn_fail(message, ATTN_E_RANGE, "count: %d, accepted: 0 or more", (int)count);
  }
  return ATTN_OK;
}

attn_status attn_pool_check_free(const attn_pool *pool, int64_t wanted, attn_message *message) {
  if (wanted > attn_pool_count_free(pool)) {
    return attn_fail(message, ATTN_E_FULL, "pool: %lld blocks wanted, %d free of %d", (long long)wanted,
                     (int)attn_pool_count_free(pool), (int)(pool->num_blocks - 1));
  }
  return ATTN_OK;
}

int32_t attn_pool_num_free(const attn_pool *pool) {
  return pool == NULL ? 0 : attn_pool_count_free(pool);
}

int32_t attn_pool_num_used(const attn_pool *pool) {
  return pool == NULL ? 0 : pool->num_blocks - 1 - attn_pool_count_free(pool);
}

int32_t attn_pool_references(const attn_pool *pool, int32_t block) {
  return pool == NULL || block < 0 || block >= pool->num_blocks ? 0 : pool->references[block];
}

attn_status attn_pool_allocate(attn_pool *pool, int32_t count, int32_t *blocks, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(attn_pool_check_count(count, message));
  if (count > 0) {
    ATTN_CHECK_POINTER(blocks, "blocks", message);
  }
  ATTN_TRY(attn_pool_check_free(pool, count, message));
  for (int32_t i = 0; i < count; i++) {
    blocks[i] = attn_pool_take(pool);
  }
  return ATTN_OK;
}

attn_status attn_pool_retain(attn_pool *pool, int32_t block, attn_message *message) {
  ATTN_TRY(check_in_use(pool, block, message));
  if (pool->references[block] == INT32_MAX) {
    return attn_fail(message, ATTN_E_INDEX, "block: %d has 2147483647 references, the most that are counted",
                     (int)block);
  }
  pool->references[block]++;
  return ATTN_OK;
}

attn_status attn_pool_release(attn_pool *pool, int32_t block, attn_message *message) {
  ATTN_TRY(check_in_use(pool, block, message));
  attn_pool_drop(pool, block);
  return ATTN_OK;
}

attn_status attn_pool_get_info(const attn_pool *pool, attn_pool_info *info, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_CHECK_STRUCT(info, "info", attn_pool_info, message);
  info->free = attn_pool_num_free(pool);
  info->used = attn_pool_num_used(pool);
  info->cached = pool->num_cached;
  info->shared = pool->num_shared;
  info->hits = pool->hits;
  info->evictions = pool->evictions;
  info->copies = pool->copies;
  info->collisions = pool->collisions;
  return ATTN_OK;
}
