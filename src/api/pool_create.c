/* SPDX-License-Identifier: Apache-2.0 */
/* pool_create.c: the block manager's options and its memory. See pool_impl.h.
 *
 * attn_pool_create() is attn_pool_create_groups() with one group whose rows are max_seq_blocks wide.
 */
#include <stdlib.h>

#include "api/pool_impl.h"

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static attn_status check_field(const char *name, int32_t value, int32_t least, attn_message *message) {
  if (value < least) {
    return attn_fail(message, ATTN_E_RANGE, "options.%s: %d, accepted: %d to 2147483647", name, (int)value, (int)least);
  }
  return ATTN_OK;
}

static attn_status check_reuse(int32_t prefix_cache, uint64_t hash_mask, attn_message *message) {
  if (prefix_cache != 0 && prefix_cache != 1) {
    return attn_fail(message, ATTN_E_RANGE, "options.prefix_cache: %d, accepted: 0 or 1", (int)prefix_cache);
  }
  if (prefix_cache == 0 && hash_mask != 0) {
    return attn_fail(message, ATTN_E_RANGE, "options.hash_mask: %llu, accepted: 0 (prefix_cache is 0)",
                     (unsigned long long)hash_mask);
  }
  return ATTN_OK;
}

static attn_status check_group(const attn_pool_group *group, int32_t at, int32_t num_blocks, attn_message *message) {
  if (group->size != sizeof *group) {
    return attn_fail(message, ATTN_E_STRUCT_SIZE,
                     "options.groups[%d].size: %lu, accepted: %lu (start from the initialiser of attn_pool_group)",
                     (int)at, (unsigned long)group->size, (unsigned long)sizeof *group);
  }
  if (group->block_size < 1) {
    return attn_fail(message, ATTN_E_RANGE, "options.groups[%d].block_size: %d, accepted: 1 to 2147483647", (int)at,
                     (int)group->block_size);
  }
  if (group->kernel_block < 0 || (group->kernel_block > 0 && group->block_size % group->kernel_block != 0)) {
    return attn_fail(message, ATTN_E_RANGE, "options.groups[%d].kernel_block: %d, accepted: 0 or a divisor of %d",
                     (int)at, (int)group->kernel_block, (int)group->block_size);
  }
  if (group->window < 0) {
    return attn_fail(message, ATTN_E_RANGE, "options.groups[%d].window: %d, accepted: 0 (none) or more", (int)at,
                     (int)group->window);
  }
  int32_t ratio = group->kernel_block == 0 ? 1 : group->block_size / group->kernel_block;
  if (num_blocks > INT32_MAX / ratio) {
    return attn_fail(message, ATTN_E_OVERFLOW,
                     "options.groups[%d]: %d blocks of %d kernel blocks, accepted: up to 2147483647 kernel blocks",
                     (int)at, (int)num_blocks, (int)ratio);
  }
  return ATTN_OK;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static uint64_t bucket_count(int32_t num_blocks) {
  uint64_t count = 1;
  while (count < (uint64_t)num_blocks) {
    count *= 2;
  }
  return count;
}

/* A part of the pool's one allocation: so many entries of so many bytes, from `*bytes` on. */
static int add_part(uint64_t count, uint64_t entry, uint64_t *bytes) {
  uint64_t part = 0;
  return attn_mul_overflow(count, entry, &part) || attn_add_overflow(*bytes, part, bytes);
}

/* Bytes of all arrays together; 1 when they do not fit. */
static int count_bytes(const attn_pool *pool, int32_t index_block, uint64_t columns, int prefix_cache, size_t *bytes) {
  uint64_t blocks = (uint64_t)pool->num_blocks;
  uint64_t seqs = (uint64_t)pool->max_seqs;
  uint64_t groups = (uint64_t)pool->num_groups;
  uint64_t table = 0;
  uint64_t total = 0;
  int overflow = 0;
  if (prefix_cache) {
    overflow |= add_part(blocks, sizeof(attn_pool_node), &total);
    overflow |= add_part(seqs, sizeof(uint64_t), &total);
    overflow |= add_part(bucket_count(pool->num_blocks), sizeof(int32_t), &total);
    overflow |= add_part(blocks * (uint64_t)index_block, sizeof(int32_t), &total);
  }
  overflow |= add_part(4 * blocks, sizeof(int32_t), &total);
  overflow |= add_part((3 + groups) * seqs, sizeof(int32_t), &total);
  overflow |= attn_mul_overflow(seqs, columns, &table);
  overflow |= add_part(table, sizeof(int32_t), &total);
  *bytes = (size_t)total;
  return overflow || total > PTRDIFF_MAX;
}

/* The parts in the order of their alignment. */
static void carve(attn_pool *pool, int32_t index_block, int prefix_cache) {
  size_t blocks = (size_t)pool->num_blocks;
  size_t seqs = (size_t)pool->max_seqs;
  int32_t *at = pool->memory;
  if (prefix_cache) {
    pool->nodes = pool->memory;
    pool->serials = (uint64_t *)(pool->nodes + blocks);
    pool->num_buckets = bucket_count(pool->num_blocks);
    pool->buckets = (int32_t *)(pool->serials + seqs);
    pool->tokens = pool->buckets + pool->num_buckets;
    at = pool->tokens + blocks * (size_t)index_block;
  }
  pool->references = at;
  pool->holders = pool->references + blocks;
  pool->stack = pool->holders + blocks;
  pool->found = pool->stack + blocks;
  pool->lens = pool->found + blocks;
  pool->known = pool->lens + seqs;
  pool->committed = pool->known + seqs;
  pool->trimmed = pool->committed + seqs;
  pool->tables = pool->trimmed + seqs * (size_t)pool->num_groups;
}

/* Columns of a row that holds `tokens`. */
static int32_t columns_of(const attn_pool_group *group, int32_t tokens) {
  return (int32_t)attn_ceil_div(tokens, group->block_size);
}

static void fill_lanes(attn_pool *pool, const attn_pool_group *groups) {
  for (int32_t g = 0; g < pool->num_groups; g++) {
    attn_pool_lane *lane = &pool->lanes[g];
    *lane = (attn_pool_lane){
        .block_size = groups[g].block_size,
        .window = groups[g].window,
        .ratio = groups[g].kernel_block == 0 ? 1 : groups[g].block_size / groups[g].kernel_block,
        .max_blocks = pool->max_seq_blocks > 0 ? pool->max_seq_blocks : columns_of(&groups[g], pool->max_tokens),
        .first = pool->seq_columns,
    };
    pool->seq_columns += (size_t)lane->max_blocks;
  }
}

/* `shape` has the numbers of the pool to be made; the options are checked. */
static attn_status make(const attn_pool *shape, const attn_pool_group *groups, int prefix_cache, attn_pool **pool,
                        attn_message *message) {
  size_t bytes = 0;
  uint64_t columns = 0;
  for (int32_t g = 0; g < shape->num_groups; g++) {
    columns +=
        (uint64_t)(shape->max_seq_blocks > 0 ? shape->max_seq_blocks : columns_of(&groups[g], shape->max_tokens));
  }
  int32_t index_block = groups[shape->index].block_size;
  if (count_bytes(shape, index_block, columns, prefix_cache, &bytes)) {
    return attn_fail(message, ATTN_E_OVERFLOW,
                     "options: %d blocks of %d, tables of max_seqs %d by %llu (%s) do not fit the address space",
                     (int)shape->num_blocks, (int)index_block, (int)shape->max_seqs, (unsigned long long)columns,
                     shape->max_seq_blocks > 0 ? "max_seq_blocks" : "max_seq_len in blocks, of all groups");
  }
  attn_pool *made = malloc(sizeof *made + (size_t)shape->num_groups * sizeof made->lanes[0]);
  void *memory = calloc(bytes, 1);
  if (made == NULL || memory == NULL) {
    free(memory);
    free(made);
    return attn_fail(message, ATTN_E_NOMEM, "pool: %llu bytes for its tables could not be allocated",
                     (unsigned long long)bytes);
  }
  *made = *shape;
  made->memory = memory;
  carve(made, index_block, prefix_cache);
  fill_lanes(made, groups);
  *pool = made;
  return ATTN_OK;
}

/* ---- Public calls ------------------------------------------------------------------------------------------------ */

attn_status attn_pool_create(const attn_pool_options *options, attn_pool **pool, attn_message *message) {
  ATTN_CHECK_STRUCT(options, "options", attn_pool_options, message);
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(check_field("num_blocks", options->num_blocks, 2, message));
  ATTN_TRY(check_field("block_size", options->block_size, 1, message));
  ATTN_TRY(check_field("max_seqs", options->max_seqs, 1, message));
  ATTN_TRY(check_field("max_seq_blocks", options->max_seq_blocks, 1, message));
  ATTN_TRY(check_reuse(options->prefix_cache, options->hash_mask, message));
  attn_pool_group group = ATTN_POOL_GROUP_INIT;
  group.block_size = options->block_size;
  attn_pool shape = {.num_blocks = options->num_blocks,
                     .num_groups = 1,
                     .max_seqs = options->max_seqs,
                     .max_seq_blocks = options->max_seq_blocks,
                     .fresh = ATTN_NULL_BLOCK + 1,
                     .hash_mask = options->hash_mask != 0 ? options->hash_mask : UINT64_MAX};
  shape.max_tokens = (int32_t)attn_min((int64_t)options->max_seq_blocks * options->block_size, INT32_MAX);
  return make(&shape, &group, options->prefix_cache, pool, message);
}

attn_status attn_pool_create_groups(const attn_pool_groups_options *options, attn_pool **pool, attn_message *message) {
  ATTN_CHECK_STRUCT(options, "options", attn_pool_groups_options, message);
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(check_field("num_blocks", options->num_blocks, 2, message));
  if (options->num_groups < 1 || options->num_groups > ATTN_MAX_GROUPS) {
    return attn_fail(message, ATTN_E_RANGE, "options.num_groups: %d, accepted: 1 to %d", (int)options->num_groups,
                     ATTN_MAX_GROUPS);
  }
  ATTN_CHECK_POINTER(options->groups, "options.groups", message);
  int32_t index = options->num_groups;
  for (int32_t g = options->num_groups - 1; g >= 0; g--) {
    index = options->groups[g].window == 0 ? g : index;
  }
  for (int32_t g = 0; g < options->num_groups; g++) {
    ATTN_TRY(check_group(&options->groups[g], g, options->num_blocks, message));
  }
  ATTN_TRY(check_field("max_seqs", options->max_seqs, 1, message));
  ATTN_TRY(check_field("max_seq_len", options->max_seq_len, 1, message));
  ATTN_TRY(check_reuse(options->prefix_cache, options->hash_mask, message));
  attn_pool shape = {.num_blocks = options->num_blocks,
                     .num_groups = options->num_groups,
                     .index = index < options->num_groups ? index : 0,
                     .max_seqs = options->max_seqs,
                     .max_tokens = options->max_seq_len,
                     .fresh = ATTN_NULL_BLOCK + 1,
                     .hash_mask = options->hash_mask != 0 ? options->hash_mask : UINT64_MAX};
  return make(&shape, options->groups, options->prefix_cache, pool, message);
}

void attn_pool_destroy(attn_pool *pool) {
  if (pool != NULL) {
    free(pool->memory);
    free(pool);
  }
}
