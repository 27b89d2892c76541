/* SPDX-License-Identifier: Apache-2.0 */
/* pool_table.c: what the block manager tells of groups and batches: tables in kernel blocks, lengths, counts. */
#include "api/pool_impl.h"

#include <string.h>

static attn_status check_size(const char *name, int32_t value, attn_message *message) {
  if (value < 0) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: 0 or more", name, (int)value);
  }
  return ATTN_OK;
}

static attn_status check_group(const attn_pool *pool, int32_t group, attn_message *message) {
  if (group < 0 || group >= pool->num_groups) {
    return attn_fail(message, ATTN_E_INDEX, "group: %d, accepted: 0 to %d", (int)group, (int)(pool->num_groups - 1));
  }
  return ATTN_OK;
}

static int32_t kernel_block(const attn_pool_lane *lane) {
  return lane->block_size / lane->ratio;
}

static attn_status check_batch(const attn_pool *pool, const attn_pool_lane *lane, int32_t num_seqs, const int32_t *seqs,
                               int32_t width, attn_message *message) {
  int32_t longest = 0;
  for (int32_t i = 0; i < num_seqs; i++) {
    if (!attn_pool_is_seq(pool, seqs[i])) {
      return attn_fail(message, ATTN_E_INDEX, "seqs[%d]: %d, accepted: 0 to %d", (int)i, (int)seqs[i],
                       (int)(pool->max_seqs - 1));
    }
    longest = pool->lens[seqs[i]] > longest ? pool->lens[seqs[i]] : longest;
  }
  int64_t wanted = attn_ceil_div(longest, kernel_block(lane));
  if (wanted > width) {
    return attn_fail(message, ATTN_E_SHAPE, "width: %d, accepted: %lld or more (the longest row's blocks)", (int)width,
                     (long long)wanted);
  }
  return ATTN_OK;
}

/* A row in kernel blocks. */
static void write_row(const attn_pool *pool, const attn_pool_lane *lane, int32_t seq, int32_t width, int32_t *to) {
  const int32_t *row = attn_pool_row(pool, seq, lane);
  size_t columns = (size_t)attn_ceil_div(pool->lens[seq], kernel_block(lane));
  if (lane->ratio == 1) {
    memcpy(to, row, columns * sizeof *to);
  } else {
    for (size_t column = 0; column < columns; column++) {
      int32_t block = row[column / (size_t)lane->ratio];
      int32_t within = (int32_t)(column % (size_t)lane->ratio);
      to[column] = block == ATTN_NULL_BLOCK ? ATTN_NULL_BLOCK : block * lane->ratio + within;
    }
  }
  memset(to + columns, 0, ((size_t)width - columns) * sizeof *to);
}

static attn_status write_tables(const attn_pool *pool, const attn_pool_lane *lane, int32_t num_seqs,
                                const int32_t *seqs, int32_t width, int32_t *block_table, int32_t *seq_lens,
                                attn_message *message) {
  ATTN_TRY(check_size("num_seqs", num_seqs, message));
  ATTN_TRY(check_size("width", width, message));
  if (num_seqs > 0) {
    ATTN_CHECK_POINTER(seqs, "seqs", message);
  }
  if (num_seqs > 0 && width > 0) {
    ATTN_CHECK_POINTER(block_table, "block_table", message);
  }
  ATTN_TRY(check_batch(pool, lane, num_seqs, seqs, width, message));
  for (int32_t i = 0; i < num_seqs; i++) {
    if (width > 0) {
      write_row(pool, lane, seqs[i], width, block_table + (size_t)i * (size_t)width);
    }
    if (seq_lens != NULL) {
      seq_lens[i] = pool->lens[seqs[i]];
    }
  }
  return ATTN_OK;
}

attn_status attn_pool_block_table(const attn_pool *pool, int32_t num_seqs, const int32_t *seqs, int32_t width,
                                  int32_t *block_table, int32_t *seq_lens, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(attn_pool_check_single(pool, "attn_pool_block_table", "attn_pool_group_table", message));
  return write_tables(pool, pool->lanes, num_seqs, seqs, width, block_table, seq_lens, message);
}

attn_status attn_pool_group_table(const attn_pool *pool, int32_t group, int32_t num_seqs, const int32_t *seqs,
                                  int32_t width, int32_t *block_table, int32_t *seq_lens, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(check_group(pool, group, message));
  return write_tables(pool, &pool->lanes[group], num_seqs, seqs, width, block_table, seq_lens, message);
}

attn_status attn_pool_get_group(const attn_pool *pool, int32_t group, attn_pool_group_info *info,
                                attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_CHECK_STRUCT(info, "info", attn_pool_group_info, message);
  ATTN_TRY(check_group(pool, group, message));
  const attn_pool_lane *lane = &pool->lanes[group];
  info->num_groups = pool->num_groups;
  info->block_size = lane->block_size;
  info->kernel_block = kernel_block(lane);
  info->window = lane->window;
  info->table_width = (int32_t)attn_ceil_div(pool->max_tokens, kernel_block(lane));
  info->entries = 0;
  for (int32_t seq = 0; seq < pool->max_seqs; seq++) {
    info->entries += attn_pool_held(pool, seq, lane) - attn_pool_trimmed(pool, seq)[group];
  }
  info->trimmed = lane->trimmed;
  return ATTN_OK;
}
