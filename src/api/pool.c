/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: the block manager: its memory, its blocks, what it counts. See pool_impl.h. */
#include "api/pool_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static attn_status check_field(const char *name, int32_t value, int32_t least, attn_message *message) {
  if (value < least) {
    return attn_fail(message, ATTN_E_RANGE, "options.%s: %d, accepted: %d to 2147483647", name, (int)value, (int)least);
  }
  return ATTN_OK;
}

static attn_status check_options(const attn_pool_options *options, attn_message *message) {
  ATTN_TRY(check_field("num_blocks", options->num_blocks, 2, message));
  ATTN_TRY(check_field("block_size", options->block_size, 1, message));
  ATTN_TRY(check_field("max_seqs", options->max_seqs, 1, message));
  ATTN_TRY(check_field("max_seq_blocks", options->max_seq_blocks, 1, message));
  if (options->prefix_cache != 0 && options->prefix_cache != 1) {
    return attn_fail(message, ATTN_E_RANGE, "options.prefix_cache: %d, accepted: 0 or 1", (int)options->prefix_cache);
  }
  if (options->prefix_cache == 0 && options->hash_mask != 0) {
    return attn_fail(message, ATTN_E_RANGE, "options.hash_mask: %llu, accepted: 0 (prefix_cache is 0)",
                     (unsigned long long)options->hash_mask);
  }
  return ATTN_OK;
}

/* A part of the pool's one allocation: so many entries of so many bytes, from `*bytes` on. */
static int add_part(uint64_t count, uint64_t entry, uint64_t *bytes) {
  uint64_t part = 0;
  return attn_mul_overflow(count, entry, &part) || attn_add_overflow(*bytes, part, bytes);
}

static uint64_t bucket_count(int32_t num_blocks) {
  uint64_t count = 1;
  while (count < (uint64_t)num_blocks) {
    count *= 2;
  }
  return count;
}

/* Bytes of all arrays together. */
static attn_status count_bytes(const attn_pool_options *options, size_t *bytes, attn_message *message) {
  uint64_t blocks = (uint64_t)options->num_blocks;
  uint64_t seqs = (uint64_t)options->max_seqs;
  uint64_t positions = blocks * (uint64_t)options->block_size;
  uint64_t total = 0;
  int overflow = 0;
  if (options->prefix_cache) {
    overflow |= add_part(blocks, sizeof(attn_pool_node), &total);
    overflow |= add_part(bucket_count(options->num_blocks), sizeof(int32_t), &total);
    overflow |= add_part(positions, sizeof(int32_t), &total);
  }
  overflow |= add_part(4 * blocks, sizeof(int32_t), &total);
  overflow |= add_part(3 * seqs, sizeof(int32_t), &total);
  overflow |= add_part(seqs * (uint64_t)options->max_seq_blocks, sizeof(int32_t), &total);
  if (overflow || total > PTRDIFF_MAX) {
    return attn_fail(
        message, ATTN_E_OVERFLOW,
        "options: %d blocks of %d, tables of max_seqs %d by max_seq_blocks %d do not fit the address space",
        (int)options->num_blocks, (int)options->block_size, (int)options->max_seqs, (int)options->max_seq_blocks);
  }
  *bytes = (size_t)total;
  return ATTN_OK;
}

/* The parts in the order of their alignment. */
static void carve(attn_pool *pool, int prefix_cache) {
  size_t blocks = (size_t)pool->num_blocks;
  size_t seqs = (size_t)pool->max_seqs;
  int32_t *at = pool->memory;
  if (prefix_cache) {
    pool->nodes = pool->memory;
    pool->num_buckets = bucket_count(pool->num_blocks);
    pool->buckets = (int32_t *)(pool->nodes + blocks);
    pool->tokens = pool->buckets + pool->num_buckets;
    at = pool->tokens + blocks * (size_t)pool->block_size;
  }
  pool->references = at;
  pool->holders = pool->references + blocks;
  pool->stack = pool->holders + blocks;
  pool->found = pool->stack + blocks;
  pool->lens = pool->found + blocks;
  pool->known = pool->lens + seqs;
  pool->committed = pool->known + seqs;
  pool->tables = pool->committed + seqs;
}

attn_status attn_pool_create(const attn_pool_options *options, attn_pool **pool, attn_message *message) {
  size_t bytes = 0;
  ATTN_CHECK_STRUCT(options, "options", attn_pool_options, message);
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(check_options(options, message));
  ATTN_TRY(count_bytes(options, &bytes, message));
  attn_pool *made = calloc(1, sizeof *made);
  void *memory = calloc(bytes, 1);
  if (made == NULL || memory == NULL) {
    free(memory);
    free(made);
    return attn_fail(message, ATTN_E_NOMEM, "pool: %llu bytes for its tables could not be allocated",
                     (unsigned long long)bytes);
  }
  made->num_blocks = options->num_blocks;
  made->block_size = options->block_size;
  made->max_seqs = options->max_seqs;
  made->max_seq_blocks = options->max_seq_blocks;
  made->fresh = ATTN_NULL_BLOCK + 1;
  made->hash_mask = options->hash_mask != 0 ? options->hash_mask : UINT64_MAX;
  made->memory = memory;
  carve(made, options->prefix_cache);
  *pool = made;
  return ATTN_OK;
}

void attn_pool_destroy(attn_pool *pool) {
  if (pool != NULL) {
    free(pool->memory);
    free(pool);
  }
}

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

attn_status attn_pool_check_free(const attn_pool *pool, int32_t wanted, attn_message *message) {
  if (wanted > attn_pool_count_free(pool)) {
    return attn_fail(message, ATTN_E_FULL, "pool: %d blocks wanted, %d free of %d", (int)wanted,
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
