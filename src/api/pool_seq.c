/* SPDX-License-Identifier: Apache-2.0 */
/* pool_seq.c: sequences in the block manager: growing, forking, freeing, and the tables of a batch.
 *
 * An append fails before it changes anything. It can write into one block that is there already, the last: only that
 * one may have to be copied. Token ids are kept beside the block that holds the tokens' rows.
 */
#include "api/pool_impl.h"

#include <string.h>

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

attn_status attn_pool_check_seq(const attn_pool *pool, const char *name, int32_t seq, attn_message *message) {
  if (!attn_pool_is_seq(pool, seq)) {
    return attn_fail(message, ATTN_E_INDEX, "%s: %d, accepted: 0 to %d", name, (int)seq, (int)(pool->max_seqs - 1));
  }
  return ATTN_OK;
}

attn_status attn_pool_check_empty(const attn_pool *pool, const char *name, int32_t seq, attn_message *message) {
  ATTN_TRY(attn_pool_check_seq(pool, name, seq, message));
  if (pool->lens[seq] != 0) {
    return attn_fail(message, ATTN_E_STATE, "%s: %d has %d tokens, accepted: a slot without (attn_pool_free_seq)", name,
                     (int)seq, (int)pool->lens[seq]);
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

static attn_status check_copies(const attn_pool_copies *copies, attn_message *message) {
  ATTN_CHECK_STRUCT(copies, "copies", attn_pool_copies, message);
  if (copies->capacity < 0 || copies->count < 0 || copies->count > copies->capacity) {
    return attn_fail(message, ATTN_E_RANGE, "copies: count %d of capacity %d, accepted: count 0 to capacity",
                     (int)copies->count, (int)copies->capacity);
  }
  if (copies->capacity > 0) {
    ATTN_CHECK_POINTER(copies->block_map, "copies.block_map", message);
  }
  return ATTN_OK;
}

/* The block that the next token would go into, if others hold it too; else the null block. */
static int32_t shared_tail(const attn_pool *pool, int32_t seq) {
  if (pool->lens[seq] % pool->block_size == 0) {
    return ATTN_NULL_BLOCK;
  }
  int32_t block = attn_pool_row(pool, seq)[pool->lens[seq] / pool->block_size];
  return pool->holders[block] > 1 ? block : ATTN_NULL_BLOCK;
}

static attn_status check_copy(int32_t seq, int32_t block, const attn_pool_copies *copies, attn_message *message) {
  if (block == ATTN_NULL_BLOCK) {
    return ATTN_OK;
  }
  if (copies == NULL) {
    return attn_fail(message, ATTN_E_STATE,
                     "seq %d: its next token goes into block %d, which another sequence shares, accepted: "
                     "attn_pool_append_cow with copies",
                     (int)seq, (int)block);
  }
  if (copies->count == copies->capacity) {
    return attn_fail(message, ATTN_E_CAPACITY, "copies.capacity: %d, all in use, accepted: room for one more",
                     (int)copies->capacity);
  }
  return ATTN_OK;
}

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

static void write_slots(const attn_pool *pool, int32_t seq, int64_t first, int32_t count, int64_t *slot_mapping) {
  const int32_t *row = attn_pool_row(pool, seq);
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

/* Give the sequence a block of its own in place of the shared one. */
static void copy_tail(attn_pool *pool, int32_t seq, int32_t shared, attn_pool_copies *copies) {
  int32_t own = attn_pool_take(pool);
  size_t filled = (size_t)(pool->lens[seq] % pool->block_size);
  if (pool->nodes != NULL) {
    memmove(attn_pool_tokens(pool, own), attn_pool_tokens(pool, shared), filled * sizeof(int32_t));
  }
  attn_pool_row(pool, seq)[pool->lens[seq] / pool->block_size] = own;
  attn_pool_hold(pool, own);
  attn_pool_unhold(pool, shared);
  if (pool->references[shared] > 0) {
    attn_pool_drop(pool, shared);
  }
  copies->block_map[2 * (size_t)copies->count] = shared;
  copies->block_map[2 * (size_t)copies->count + 1] = own;
  copies->count++;
  pool->copies++;
}

/* Keep the ids of `count` tokens from the sequence's end on; the blocks are in its row. */
static void keep_tokens(attn_pool *pool, int32_t seq, int32_t count, const int32_t *tokens) {
  const int32_t *row = attn_pool_row(pool, seq);
  int32_t column = pool->lens[seq] / pool->block_size;
  int32_t offset = pool->lens[seq] % pool->block_size;
  while (count > 0) {
    int32_t room = pool->block_size - offset;
    int32_t part = count < room ? count : room;
    memcpy(attn_pool_tokens(pool, row[column]) + offset, tokens, (size_t)part * sizeof *tokens);
    tokens += part;
    count -= part;
    offset = 0;
    column++;
  }
}

static attn_status append(attn_pool *pool, int32_t seq, int32_t count, const int32_t *tokens, int64_t *slot_mapping,
                          attn_pool_copies *copies, attn_message *message) {
  ATTN_TRY(attn_pool_check_count(count, message));
  if (count > 0) {
    ATTN_CHECK_POINTER(slot_mapping, "slot_mapping", message);
  }
  ATTN_TRY(attn_pool_check_seq(pool, "seq", seq, message));
  int32_t old_len = pool->lens[seq];
  int64_t new_len = (int64_t)old_len + count;
  ATTN_TRY(check_capacity(pool, seq, new_len, message));
  int32_t shared = count > 0 ? shared_tail(pool, seq) : ATTN_NULL_BLOCK;
  ATTN_TRY(check_copy(seq, shared, copies, message));
  int32_t held = attn_pool_held(pool, seq);
  int32_t needed = (int32_t)attn_pool_blocks_of(pool, new_len);
  ATTN_TRY(attn_pool_check_free(pool, needed - held + (shared != ATTN_NULL_BLOCK), message));
  if (shared != ATTN_NULL_BLOCK) {
    copy_tail(pool, seq, shared, copies);
  }
  int32_t *row = attn_pool_row(pool, seq);
  for (int32_t column = held; column < needed; column++) {
    row[column] = attn_pool_take(pool);
    attn_pool_hold(pool, row[column]);
  }
  if (tokens != NULL && pool->known[seq] == old_len) {
    keep_tokens(pool, seq, count, tokens);
    pool->known[seq] = (int32_t)new_len;
  }
  pool->lens[seq] = (int32_t)new_len;
  write_slots(pool, seq, old_len, count, slot_mapping);
  return ATTN_OK;
}

attn_status attn_pool_append(attn_pool *pool, int32_t seq, int32_t count, int64_t *slot_mapping,
                             attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  return append(pool, seq, count, NULL, slot_mapping, NULL, message);
}

attn_status attn_pool_append_cow(attn_pool *pool, int32_t seq, int32_t count, const int32_t *tokens,
                                 int64_t *slot_mapping, attn_pool_copies *copies, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  if (tokens != NULL) {
    ATTN_TRY(attn_pool_check_prefix(pool, "tokens", message));
  }
  if (copies != NULL) {
    ATTN_TRY(check_copies(copies, message));
  }
  return append(pool, seq, count, tokens, slot_mapping, copies, message);
}

/* ---- Forking and freeing ----------------------------------------------------------------------------------------- */

attn_status attn_pool_fork(attn_pool *pool, int32_t parent, int32_t child, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(attn_pool_check_seq(pool, "parent", parent, message));
  ATTN_TRY(attn_pool_check_empty(pool, "child", child, message));
  const int32_t *from = attn_pool_row(pool, parent);
  int32_t held = attn_pool_held(pool, parent);
  for (int32_t column = 0; column < held; column++) {
    int32_t references = pool->references[from[column]];
    if (references == 0 || references == INT32_MAX) {
      return attn_fail(message, ATTN_E_INDEX, "parent: its block %d has %d references, accepted: 1 to 2147483646",
                       (int)from[column], (int)references);
    }
  }
  int32_t *to = attn_pool_row(pool, child);
  for (int32_t column = 0; column < held; column++) {
    to[column] = from[column];
    pool->references[to[column]]++;
    attn_pool_hold(pool, to[column]);
  }
  pool->lens[child] = pool->lens[parent];
  pool->known[child] = pool->known[parent];
  pool->committed[child] = pool->committed[parent];
  return ATTN_OK;
}

attn_status attn_pool_free_seq(attn_pool *pool, int32_t seq, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(attn_pool_check_seq(pool, "seq", seq, message));
  int32_t *row = attn_pool_row(pool, seq);
  /* Last block first: the stack then gives them out in the order of this sequence, and a block that is kept is evicted
     after the ones that are found through it. */
  for (int32_t column = attn_pool_held(pool, seq) - 1; column >= 0; column--) {
    attn_pool_unhold(pool, row[column]);
    /* A block may be free already where the caller released a reference that was not its own. */
    if (pool->references[row[column]] > 0) {
      attn_pool_drop(pool, row[column]);
    }
    row[column] = ATTN_NULL_BLOCK;
  }
  pool->lens[seq] = 0;
  pool->known[seq] = 0;
  pool->committed[seq] = 0;
  return ATTN_OK;
}

/* ---- Lengths and tables ------------------------------------------------------------------------------------------ */

int32_t attn_pool_seq_len(const attn_pool *pool, int32_t seq) {
  return pool == NULL || !attn_pool_is_seq(pool, seq) ? 0 : pool->lens[seq];
}

int32_t attn_pool_blocks_needed(const attn_pool *pool, int32_t seq, int32_t count) {
  if (pool == NULL || !attn_pool_is_seq(pool, seq) || count < 0) {
    return -1;
  }
  int32_t copied = count > 0 && shared_tail(pool, seq) != ATTN_NULL_BLOCK;
  return (int32_t)(attn_pool_blocks_of(pool, (int64_t)pool->lens[seq] + count) - attn_pool_held(pool, seq)) + copied;
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
    if (!attn_pool_is_seq(pool, seqs[i])) {
      return attn_fail(message, ATTN_E_INDEX, "seqs[%d]: %d, accepted: 0 to %d", (int)i, (int)seqs[i],
                       (int)(pool->max_seqs - 1));
    }
    int32_t held = attn_pool_held(pool, seqs[i]);
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
    size_t held = (size_t)attn_pool_held(pool, seqs[i]);
    if (width > 0) {
      int32_t *to = block_table + (size_t)i * (size_t)width;
      memcpy(to, attn_pool_row(pool, seqs[i]), held * sizeof *to);
      for (size_t column = held; column < (size_t)width; column++) {
        to[column] = ATTN_NULL_BLOCK;
      }
    }
    if (seq_lens != NULL) {
      seq_lens[i] = pool->lens[seqs[i]];
    }
  }
  return ATTN_OK;
}
