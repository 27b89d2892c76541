/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: the block manager.
 *
 * Free blocks are a stack of released ids above a counter `fresh` of ids never handed out, so that creating a pool does
 * not touch its memory. A block is on the stack exactly while its reference count is 0 and its id is below `fresh`. How
 * many blocks a sequence holds follows from its length; its table row is null blocks from there on. All arrays, with
 * the one in which attn_pool_check() counts, are carved from a single zeroed allocation.
 */
#include "attn/pool.h"

#include <stdlib.h>
#include <string.h>

#include "core/arithmetic.h"
#include "core/error.h"
#include "core/resolve.h"

#define NULL_BLOCK 0

struct attn_pool {
  int32_t num_blocks;
  int32_t block_size;
  int32_t max_seqs;
  int32_t max_seq_blocks;
  int32_t fresh;       /* ids from here on were never handed out */
  int32_t num_stacked; /* released ids in `stack` */
  int32_t *references; /* [num_blocks] */
  int32_t *stack;      /* [num_blocks] */
  int32_t *found;      /* [num_blocks] attn_pool_check() counts here */
  int32_t *lens;       /* [max_seqs] tokens */
  int32_t *tables;     /* [max_seqs, max_seq_blocks] */
};

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static attn_status check_field(const char *name, int32_t value, int32_t least, attn_message *message) {
  if (value < least) {
    return attn_fail(message, ATTN_E_RANGE, "options.%s: %d, accepted: %d to 2147483647", name, (int)value, (int)least);
  }
  return ATTN_OK;
}

/* Entries of all arrays together. */
static attn_status count_entries(const attn_pool_options *options, size_t *entries, attn_message *message) {
  uint64_t total = 0;
  uint64_t bytes = 0;
  if (attn_mul_overflow((uint64_t)options->max_seqs, (uint64_t)options->max_seq_blocks, &total) ||
      attn_add_overflow(total, (uint64_t)options->max_seqs, &total) ||
      attn_add_overflow(total, 3 * (uint64_t)options->num_blocks, &total) ||
      attn_mul_overflow(total, sizeof(int32_t), &bytes) || bytes > PTRDIFF_MAX) {
    return attn_fail(message, ATTN_E_OVERFLOW,
                     "options: tables of max_seqs %d by max_seq_blocks %d entries do not fit the address space",
                     (int)options->max_seqs, (int)options->max_seq_blocks);
  }
  *entries = (size_t)total;
  return ATTN_OK;
}

attn_status attn_pool_create(const attn_pool_options *options, attn_pool **pool, attn_message *message) {
  size_t entries = 0;
  ATTN_CHECK_STRUCT(options, "options", attn_pool_options, message);
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(check_field("num_blocks", options->num_blocks, 2, message));
  ATTN_TRY(check_field("block_size", options->block_size, 1, message));
  ATTN_TRY(check_field("max_seqs", options->max_seqs, 1, message));
  ATTN_TRY(check_field("max_seq_blocks", options->max_seq_blocks, 1, message));
  ATTN_TRY(count_entries(options, &entries, message));
  attn_pool *made = malloc(sizeof *made);
  int32_t *arrays = calloc(entries, sizeof *arrays);
  if (made == NULL || arrays == NULL) {
    free(arrays);
    free(made);
    return attn_fail(message, ATTN_E_NOMEM, "pool: %llu bytes for its tables could not be allocated",
                     (unsigned long long)entries * sizeof *arrays);
  }
  made->num_blocks = options->num_blocks;
  made->block_size = options->block_size;
  made->max_seqs = options->max_seqs;
  made->max_seq_blocks = options->max_seq_blocks;
  made->fresh = NULL_BLOCK + 1;
  made->num_stacked = 0;
  made->references = arrays;
  made->stack = made->references + options->num_blocks;
  made->found = made->stack + options->num_blocks;
  made->lens = made->found + options->num_blocks;
  made->tables = made->lens + options->max_seqs;
  *pool = made;
  return ATTN_OK;
}

void attn_pool_destroy(attn_pool *pool) {
  if (pool != NULL) {
    free(pool->references);
    free(pool);
  }
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static int32_t num_free(const attn_pool *pool) {
  return pool->num_blocks - pool->fresh + pool->num_stacked;
}

/* The caller has seen that one is free. */
static int32_t take_block(attn_pool *pool) {
  int32_t block = pool->num_stacked > 0 ? pool->stack[--pool->num_stacked] : pool->fresh++;
  pool->references[block] = 1;
  return block;
}

/* The block is in use. */
static void drop_reference(attn_pool *pool, int32_t block) {
  if (--pool->references[block] == 0) {
    pool->stack[pool->num_stacked++] = block;
  }
}

static attn_status check_in_use(const attn_pool *pool, int32_t block, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  if (block == NULL_BLOCK) {
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

static attn_status check_count(int32_t count, attn_message *message) {
  if (count < 0) {
    return attn_fail(message, ATTN_E_RANGE, "count: %d, accepted: 0 or more", (int)count);
  }
  return ATTN_OK;
}

static attn_status check_free(const attn_pool *pool, int32_t wanted, attn_message *message) {
  if (wanted > num_free(pool)) {
    return attn_fail(message, ATTN_E_FULL, "pool: %d blocks wanted, %d free of %d", (int)wanted, (int)num_free(pool),
                     (int)(pool->num_blocks - 1));
  }
  return ATTN_OK;
}

int32_t attn_pool_num_free(const attn_pool *pool) {
  return pool == NULL ? 0 : num_free(pool);
}

int32_t attn_pool_num_used(const attn_pool *pool) {
  return pool == NULL ? 0 : pool->num_blocks - 1 - num_free(pool);
}

int32_t attn_pool_references(const attn_pool *pool, int32_t block) {
  return pool == NULL || block < 0 || block >= pool->num_blocks ? 0 : pool->references[block];
}

attn_status attn_pool_allocate(attn_pool *pool, int32_t count, int32_t *blocks, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(check_count(count, message));
  if (count > 0) {
    ATTN_CHECK_POINTER(blocks, "blocks", message);
  }
  ATTN_TRY(check_free(pool, count, message));
  for (int32_t i = 0; i < count; i++) {
    blocks[i] = take_block(pool);
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
  drop_reference(pool, block);
  return ATTN_OK;
}

/* ---- Sequences --------------------------------------------------------------------------------------------------- */

static int32_t *table_row(const attn_pool *pool, int32_t seq) {
  return pool->tables + (size_t)seq * (size_t)pool->max_seq_blocks;
}

/* Blocks that hold so many tokens. */
static int64_t blocks_of(const attn_pool *pool, int64_t tokens) {
  return attn_ceil_div(tokens, pool->block_size);
}

static int32_t held_blocks(const attn_pool *pool, int32_t seq) {
  return (int32_t)blocks_of(pool, pool->lens[seq]);
}

static int is_seq(const attn_pool *pool, int32_t seq) {
  return 0 <= seq && seq < pool->max_seqs;
}

static attn_status check_seq(const attn_pool *pool, int32_t seq, attn_message *message) {
  if (!is_seq(pool, seq)) {
    return attn_fail(message, ATTN_E_INDEX, "seq: %d, accepted: 0 to %d", (int)seq, (int)(pool->max_seqs - 1));
  }
  return ATTN_OK;
}

/* A sequence of `tokens` fits its table row, and its length an int32. */
static attn_status check_capacity(const attn_pool *pool, int32_t seq, int64_t tokens, attn_message *message) {
  int64_t most = (int64_t)pool->max_seq_blocks * pool->block_size;
  most = attn_min(most, INT32_MAX);
  if (tokens > most) {
    return attn_fail(message, ATTN_E_CAPACITY,
                     "seq %d: %lld tokens, accepted: up to %lld (max_seq_blocks %d, block_size %d)", (int)seq,
                     (long long)tokens, (long long)most, (int)pool->max_seq_blocks, (int)pool->block_size);
  }
  return ATTN_OK;
}

static void write_slots(const attn_pool *pool, int32_t seq, int64_t first, int32_t count, int64_t *slot_mapping) {
  const int32_t *row = table_row(pool, seq);
  int64_t column = first / pool->block_size;
  int64_t offset = first % pool->block_size;
  for (int32_t i = 0; i < count; i++) {
    slot_mapping[i] = (int64_t)row[column] * pool->block_size + offset;
    if (++offset == pool->block_size) {
      offset = 0;
      column++;
    }
  }
}

attn_status attn_pool_append(attn_pool *pool, int32_t seq, int32_t count, int64_t *slot_mapping,
                             attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(check_count(count, message));
  if (count > 0) {
    ATTN_CHECK_POINTER(slot_mapping, "slot_mapping", message);
  }
  ATTN_TRY(check_seq(pool, seq, message));
  int32_t old_len = pool->lens[seq];
  int64_t new_len = (int64_t)old_len + count;
  ATTN_TRY(check_capacity(pool, seq, new_len, message));
  int32_t held = held_blocks(pool, seq);
  int32_t needed = (int32_t)blocks_of(pool, new_len);
  ATTN_TRY(check_free(pool, needed - held, message));
  int32_t *row = table_row(pool, seq);
  for (int32_t column = held; column < needed; column++) {
    row[column] = take_block(pool);
  }
  pool->lens[seq] = (int32_t)new_len;
  write_slots(pool, seq, old_len, count, slot_mapping);
  return ATTN_OK;
}

attn_status attn_pool_free_seq(attn_pool *pool, int32_t seq, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(check_seq(pool, seq, message));
  int32_t *row = table_row(pool, seq);
  /* Last block first: the stack then gives them out in the order of this sequence. */
  for (int32_t column = held_blocks(pool, seq) - 1; column >= 0; column--) {
    /* A block may be free already where the caller released a reference that was not its own. */
    if (pool->references[row[column]] > 0) {
      drop_reference(pool, row[column]);
    }
    row[column] = NULL_BLOCK;
  }
  pool->lens[seq] = 0;
  return ATTN_OK;
}

int32_t attn_pool_seq_len(const attn_pool *pool, int32_t seq) {
  return pool == NULL || !is_seq(pool, seq) ? 0 : pool->lens[seq];
}

int32_t attn_pool_blocks_needed(const attn_pool *pool, int32_t seq, int32_t count) {
  if (pool == NULL || !is_seq(pool, seq) || count < 0) {
    return -1;
  }
  return (int32_t)(blocks_of(pool, (int64_t)pool->lens[seq] + count) - held_blocks(pool, seq));
}

static attn_status check_size(const char *name, int32_t value, attn_message *message) {
  if (value < 0) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: 0 or more", name, (int)value);
  }
  return ATTN_OK;
}

static attn_status check_batch(const attn_pool *pool, int32_t num_seqs, const int32_t *seqs, int32_t width,
                               attn_message *message) {
  int32_t longest = 0;
  for (int32_t i = 0; i < num_seqs; i++) {
    if (!is_seq(pool, seqs[i])) {
      return attn_fail(message, ATTN_E_INDEX, "seqs[%d]: %d, accepted: 0 to %d", (int)i, (int)seqs[i],
                       (int)(pool->max_seqs - 1));
    }
    int32_t held = held_blocks(pool, seqs[i]);
    longest = held > longest ? held : longest;
  }
  if (longest > width) {
    return attn_fail(message, ATTN_E_SHAPE, "width: %d, accepted: %d or more (the longest row's blocks)", (int)width,
                     (int)longest);
  }
  return ATTN_OK;
}

attn_status attn_pool_block_table(const attn_pool *pool, int32_t num_seqs, const int32_t *seqs, int32_t width,
                                  int32_t *block_table, int32_t *seq_lens, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(check_size("num_seqs", num_seqs, message));
  ATTN_TRY(check_size("width", width, message));
  if (num_seqs > 0) {
    ATTN_CHECK_POINTER(seqs, "seqs", message);
  }
  if (num_seqs > 0 && width > 0) {
    ATTN_CHECK_POINTER(block_table, "block_table", message);
  }
  ATTN_TRY(check_batch(pool, num_seqs, seqs, width, message));
  for (int32_t i = 0; i < num_seqs; i++) {
    size_t held = (size_t)held_blocks(pool, seqs[i]);
    if (width > 0) {
      int32_t *to = block_table + (size_t)i * (size_t)width;
      memcpy(to, table_row(pool, seqs[i]), held * sizeof *to);
      for (size_t column = held; column < (size_t)width; column++) {
        to[column] = NULL_BLOCK;
      }
    }
    if (seq_lens != NULL) {
      seq_lens[i] = pool->lens[seqs[i]];
    }
  }
  return ATTN_OK;
}

/* ---- The books --------------------------------------------------------------------------------------------------- */

static attn_status check_lists(const attn_pool *pool, attn_message *message) {
  if (pool->fresh < 1 || pool->fresh > pool->num_blocks || pool->num_stacked < 0 || pool->num_stacked >= pool->fresh) {
    return attn_fail(message, ATTN_E_INTERNAL, "pool: %d blocks on the free list, %d handed out so far, of %d",
                     (int)pool->num_stacked, (int)(pool->fresh - 1), (int)(pool->num_blocks - 1));
  }
  if (pool->references[NULL_BLOCK] != 0) {
    return attn_fail(message, ATTN_E_INTERNAL, "pool: the null block has %d references, expected 0",
                     (int)pool->references[NULL_BLOCK]);
  }
  return ATTN_OK;
}

/* One table row: blocks as its length needs, null blocks beyond. Counts them in `found`. */
static attn_status check_row(const attn_pool *pool, int32_t seq, attn_message *message) {
  const int32_t *row = table_row(pool, seq);
  if (pool->lens[seq] < 0 || blocks_of(pool, pool->lens[seq]) > pool->max_seq_blocks) {
    return attn_fail(message, ATTN_E_INTERNAL, "pool: seq %d has length %d, its row holds %d blocks of %d", (int)seq,
                     (int)pool->lens[seq], (int)pool->max_seq_blocks, (int)pool->block_size);
  }
  int32_t held = held_blocks(pool, seq);
  for (int32_t column = 0; column < pool->max_seq_blocks; column++) {
    int32_t block = row[column];
    if (column < held ? block <= NULL_BLOCK || block >= pool->fresh : block != NULL_BLOCK) {
      return attn_fail(message, ATTN_E_INTERNAL, "pool: seq %d has block %d in column %d, its length needs %d columns",
                       (int)seq, (int)block, (int)column, (int)held);
    }
    if (column < held) {
      pool->found[block]++;
    }
  }
  return ATTN_OK;
}

/* Marks every block of the free list by -1 in `found`. */
static attn_status check_stack(const attn_pool *pool, attn_message *message) {
  for (int32_t i = 0; i < pool->num_stacked; i++) {
    int32_t block = pool->stack[i];
    if (block <= NULL_BLOCK || block >= pool->fresh) {
      return attn_fail(message, ATTN_E_INTERNAL, "pool: block %d is on the free list, expected 1 to %d", (int)block,
                       (int)(pool->fresh - 1));
    }
    if (pool->found[block] != 0) {
      return attn_fail(message, ATTN_E_INTERNAL, "pool: block %d is on the free list, and also %s", (int)block,
                       pool->found[block] < 0 ? "a second time" : "in a sequence");
    }
    pool->found[block] = -1;
  }
  return ATTN_OK;
}

static attn_status check_blocks(const attn_pool *pool, attn_message *message) {
  for (int32_t block = NULL_BLOCK + 1; block < pool->num_blocks; block++) {
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
  }
  return ATTN_OK;
}

attn_status attn_pool_check(const attn_pool *pool, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(check_lists(pool, message));
  memset(pool->found, 0, (size_t)pool->num_blocks * sizeof *pool->found);
  for (int32_t seq = 0; seq < pool->max_seqs; seq++) {
    ATTN_TRY(check_row(pool, seq, message));
  }
  ATTN_TRY(check_stack(pool, message));
  return check_blocks(pool, message);
}

/* ---- Sharing ----------------------------------------------------------------------------------------------------- */

attn_status attn_pool_fork(attn_pool *pool, int32_t parent, int32_t child, attn_message *message) {
  (void)pool;
  (void)parent;
  (void)child;
  return attn_fail(message, ATTN_E_UNSUPPORTED, "attn_pool_fork: not built in yet");
}

attn_status attn_pool_reuse_prefix(attn_pool *pool, int32_t seq, const int32_t *tokens, int32_t count, int32_t *reused,
                                   attn_message *message) {
  (void)pool;
  (void)seq;
  (void)tokens;
  (void)count;
  (void)reused;
  return attn_fail(message, ATTN_E_UNSUPPORTED, "attn_pool_reuse_prefix: not built in yet");
}
