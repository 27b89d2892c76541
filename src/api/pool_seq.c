/* SPDX-License-Identifier: Apache-2.0 */
/* pool_seq.c: sequences in the block manager: growing, forking, trimming, freeing.
 *
 * An append fails before it changes anything. In each group it can write into one block that is there already, the
 * last: only that one may have to be copied. Token ids are kept beside the blocks of the index.
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

attn_status attn_pool_check_single(const attn_pool *pool, const char *name, const char *instead,
                                   attn_message *message) {
  if (pool->num_groups != 1) {
    return attn_fail(message, ATTN_E_STATE, "%s: the pool has %d groups, accepted: 1 (%s takes any number)", name,
                     (int)pool->num_groups, instead);
  }
  return ATTN_OK;
}

/* A sequence of `tokens` fits its rows, and its length an int32. */
static attn_status check_capacity(const attn_pool *pool, int32_t seq, int64_t tokens, attn_message *message) {
  if (tokens <= pool->max_tokens) {
    return ATTN_OK;
  }
  if (pool->max_seq_blocks == 0) {
    return attn_fail(message, ATTN_E_CAPACITY, "seq %d: %lld tokens, accepted: up to %d (max_seq_len)", (int)seq,
                     (long long)tokens, (int)pool->max_tokens);
  }
  return attn_fail(message, ATTN_E_CAPACITY,
                   "seq %d: %lld tokens, accepted: up to %d (max_seq_blocks %d, block_size %d)", (int)seq,
                   (long long)tokens, (int)pool->max_tokens, (int)pool->max_seq_blocks, (int)pool->lanes->block_size);
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

/* The block of a group that the next token would go into, if others hold it too; else the null block. */
static int32_t shared_tail(const attn_pool *pool, int32_t seq, const attn_pool_lane *lane) {
  if (pool->lens[seq] % lane->block_size == 0) {
    return ATTN_NULL_BLOCK;
  }
  int32_t block = attn_pool_row(pool, seq, lane)[pool->lens[seq] / lane->block_size];
  return pool->holders[block] > 1 ? block : ATTN_NULL_BLOCK;
}

/* `block` is the shared one, `nth` how many are copied before it in this append. */
static attn_status check_copy(int32_t seq, int32_t block, int32_t nth, const attn_pool_copies *copies,
                              attn_message *message) {
  if (copies == NULL) {
    return attn_fail(message, ATTN_E_STATE,
                     "seq %d: its next token goes into block %d, which another sequence shares, accepted: "
                     "attn_pool_append_cow with copies",
                     (int)seq, (int)block);
  }
  if (nth >= copies->capacity - copies->count) {
    return attn_fail(message, ATTN_E_CAPACITY, "copies.capacity: %d, all in use, accepted: room for one more",
                     (int)copies->capacity);
  }
  return ATTN_OK;
}

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

static void write_slots(const attn_pool_lane *lane, const int32_t *row, int64_t first, int32_t count,
                        int64_t *slot_mapping) {
  int64_t column = first / lane->block_size;
  int64_t offset = first % lane->block_size;
  for (int32_t i = 0; i < count; i++) {
    slot_mapping[i] = (int64_t)row[column] * lane->block_size + offset;
    if (++offset == lane->block_size) {
      offset = 0;
      column++;
    }
  }
}

/* Give the sequence a block of its own in place of the shared one, the last of its row in this group. */
static void copy_tail(attn_pool *pool, int32_t seq, const attn_pool_lane *lane, int32_t shared,
                      attn_pool_copies *copies) {
  int32_t own = attn_pool_take(pool);
  size_t filled = (size_t)(pool->lens[seq] % lane->block_size);
  if (pool->nodes != NULL && lane == attn_pool_index(pool)) {
    memmove(attn_pool_tokens(pool, own), attn_pool_tokens(pool, shared), filled * sizeof(int32_t));
  }
  attn_pool_row(pool, seq, lane)[pool->lens[seq] / lane->block_size] = own;
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
  const attn_pool_lane *lane = attn_pool_index(pool);
  const int32_t *row = attn_pool_row(pool, seq, lane);
  int32_t column = pool->lens[seq] / lane->block_size;
  int32_t offset = pool->lens[seq] % lane->block_size;
  while (count > 0) {
    int32_t room = lane->block_size - offset;
    int32_t part = count < room ? count : room;
    memcpy(attn_pool_tokens(pool, row[column]) + offset, tokens, (size_t)part * sizeof *tokens);
    tokens += part;
    count -= part;
    offset = 0;
    column++;
  }
}

/* The sequence's row in one group, for its new length; `shared` is the block to be copied, or the null block. */
static void grow(attn_pool *pool, int32_t seq, const attn_pool_lane *lane, int64_t new_len, int32_t shared,
                 attn_pool_copies *copies) {
  if (shared != ATTN_NULL_BLOCK) {
    copy_tail(pool, seq, lane, shared, copies);
  }
  int32_t *row = attn_pool_row(pool, seq, lane);
  int32_t needed = (int32_t)attn_ceil_div(new_len, lane->block_size);
  for (int32_t column = attn_pool_held(pool, seq, lane); column < needed; column++) {
    row[column] = attn_pool_take(pool);
    attn_pool_hold(pool, row[column]);
  }
}

static attn_status append(attn_pool *pool, int32_t seq, int32_t count, const int32_t *tokens, int64_t *slot_mapping,
                          int64_t group_stride, attn_pool_copies *copies, attn_message *message) {
  ATTN_TRY(attn_pool_check_count(count, message));
  if (count > 0) {
    ATTN_CHECK_POINTER(slot_mapping, "slot_mapping", message);
  }
  ATTN_TRY(attn_pool_check_seq(pool, "seq", seq, message));
  int32_t old_len = pool->lens[seq];
  int64_t new_len = (int64_t)old_len + count;
  ATTN_TRY(check_capacity(pool, seq, new_len, message));
  int64_t wanted = 0;
  int32_t copied = 0;
  /* Looked up once: where the caller released a reference that was the sequence's, what one group takes may be the tail
     of another. */
  int32_t shared[ATTN_MAX_GROUPS];
  for (int32_t g = 0; g < pool->num_groups; g++) {
    const attn_pool_lane *lane = &pool->lanes[g];
    shared[g] = count > 0 ? shared_tail(pool, seq, lane) : ATTN_NULL_BLOCK;
    if (shared[g] != ATTN_NULL_BLOCK) {
      ATTN_TRY(check_copy(seq, shared[g], copied, copies, message));
      copied++;
    }
    wanted += attn_ceil_div(new_len, lane->block_size) - attn_pool_held(pool, seq, lane);
  }
  ATTN_TRY(attn_pool_check_free(pool, wanted + copied, message));
  for (int32_t g = 0; g < pool->num_groups; g++) {
    const attn_pool_lane *lane = &pool->lanes[g];
    grow(pool, seq, lane, new_len, shared[g], copies);
    if (count > 0) { /* else slot_mapping may be NULL */
      write_slots(lane, attn_pool_row(pool, seq, lane), old_len, count, slot_mapping + g * group_stride);
    }
  }
  if (tokens != NULL && pool->known[seq] == old_len) {
    keep_tokens(pool, seq, count, tokens);
    pool->known[seq] = (int32_t)new_len;
  }
  pool->lens[seq] = (int32_t)new_len;
  return ATTN_OK;
}

attn_status attn_pool_append(attn_pool *pool, int32_t seq, int32_t count, int64_t *slot_mapping,
                             attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(attn_pool_check_single(pool, "attn_pool_append", "attn_pool_append_groups", message));
  return append(pool, seq, count, NULL, slot_mapping, 0, NULL, message);
}

static attn_status check_tokens_and_copies(const attn_pool *pool, const int32_t *tokens, const attn_pool_copies *copies,
                                           attn_message *message) {
  if (tokens != NULL) {
    ATTN_TRY(attn_pool_check_prefix(pool, "tokens", message));
  }
  return copies != NULL ? check_copies(copies, message) : ATTN_OK;
}

attn_status attn_pool_append_cow(attn_pool *pool, int32_t seq, int32_t count, const int32_t *tokens,
                                 int64_t *slot_mapping, attn_pool_copies *copies, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(attn_pool_check_single(pool, "attn_pool_append_cow", "attn_pool_append_groups", message));
  ATTN_TRY(check_tokens_and_copies(pool, tokens, copies, message));
  return append(pool, seq, count, tokens, slot_mapping, 0, copies, message);
}

attn_status attn_pool_append_groups(attn_pool *pool, int32_t seq, int32_t count, const int32_t *tokens,
                                    int64_t *slot_mapping, int64_t group_stride, attn_pool_copies *copies,
                                    attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(check_tokens_and_copies(pool, tokens, copies, message));
  if (pool->num_groups > 1 && group_stride < count) {
    return attn_fail(message, ATTN_E_RANGE, "group_stride: %lld, accepted: count (%d) or more", (long long)group_stride,
                     (int)count);
  }
  return append(pool, seq, count, tokens, slot_mapping, pool->num_groups > 1 ? group_stride : 0, copies, message);
}

int32_t attn_pool_blocks_needed(const attn_pool *pool, int32_t seq, int32_t count) {
  if (pool == NULL || !attn_pool_is_seq(pool, seq) || count < 0) {
    return -1;
  }
  int64_t needed = 0;
  for (int32_t g = 0; g < pool->num_groups; g++) {
    const attn_pool_lane *lane = &pool->lanes[g];
    needed += attn_ceil_div((int64_t)pool->lens[seq] + count, lane->block_size) - attn_pool_held(pool, seq, lane);
    needed += count > 0 && shared_tail(pool, seq, lane) != ATTN_NULL_BLOCK;
  }
  return (int32_t)attn_min(needed, INT32_MAX);
}

int32_t attn_pool_seq_len(const attn_pool *pool, int32_t seq) {
  return pool == NULL || !attn_pool_is_seq(pool, seq) ? 0 : pool->lens[seq];
}

/* ---- Forking, trimming and freeing ------------------------------------------------------------------------------- */

attn_status attn_pool_fork(attn_pool *pool, int32_t parent, int32_t child, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(attn_pool_check_seq(pool, "parent", parent, message));
  ATTN_TRY(attn_pool_check_empty(pool, "child", child, message));
  const int32_t *trimmed = attn_pool_trimmed(pool, parent);
  for (int32_t g = 0; g < pool->num_groups; g++) {
    const int32_t *from = attn_pool_row(pool, parent, &pool->lanes[g]);
    int32_t held = attn_pool_held(pool, parent, &pool->lanes[g]);
    for (int32_t column = trimmed[g]; column < held; column++) {
      int32_t references = pool->references[from[column]];
      if (references == 0 || references == INT32_MAX) {
        return attn_fail(message, ATTN_E_INDEX, "parent: its block %d has %d references, accepted: 1 to 2147483646",
                         (int)from[column], (int)references);
      }
    }
  }
  for (int32_t g = 0; g < pool->num_groups; g++) {
    const int32_t *from = attn_pool_row(pool, parent, &pool->lanes[g]);
    int32_t *to = attn_pool_row(pool, child, &pool->lanes[g]);
    int32_t held = attn_pool_held(pool, parent, &pool->lanes[g]);
    for (int32_t column = trimmed[g]; column < held; column++) {
      to[column] = from[column];
      pool->references[to[column]]++;
      attn_pool_hold(pool, to[column]);
    }
    attn_pool_trimmed(pool, child)[g] = trimmed[g];
  }
  pool->lens[child] = pool->lens[parent];
  pool->known[child] = pool->known[parent];
  pool->committed[child] = pool->committed[parent];
  if (pool->nodes != NULL) {
    pool->serials[child] = pool->serials[parent];
  }
  return ATTN_OK;
}

/* An entry of a row becomes the null block. */
static void clear_entry(attn_pool *pool, int32_t *entry) {
  int32_t block = *entry;
  attn_pool_unhold(pool, block);
  /* A block may be free already where the caller released a reference that was not its own. */
  if (pool->references[block] > 0) {
    attn_pool_drop(pool, block);
  }
  *entry = ATTN_NULL_BLOCK;
}

attn_status attn_pool_trim(attn_pool *pool, int32_t seq, int32_t computed, int32_t *released, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(attn_pool_check_seq(pool, "seq", seq, message));
  if (computed < 0 || computed > pool->lens[seq]) {
    return attn_fail(message, ATTN_E_RANGE, "computed: %d, accepted: 0 to %d, the tokens of seq %d", (int)computed,
                     (int)pool->lens[seq], (int)seq);
  }
  int32_t *trimmed = attn_pool_trimmed(pool, seq);
  int64_t count = 0;
  for (int32_t g = 0; g < pool->num_groups; g++) {
    attn_pool_lane *lane = &pool->lanes[g];
    int32_t *row = attn_pool_row(pool, seq, lane);
    int32_t first = attn_pool_first_seen(lane, computed);
    for (int32_t column = trimmed[g]; column < first; column++) {
      clear_entry(pool, &row[column]);
      lane->trimmed++;
      count++;
    }
    trimmed[g] = first > trimmed[g] ? first : trimmed[g];
  }
  if (released != NULL) {
    *released = (int32_t)attn_min(count, INT32_MAX);
  }
  return ATTN_OK;
}

/* Free the last of the entries that rows have left, the one that ends farthest into the sequence, and in its row those
   that end beyond every other row. @return 0 when nothing is left. */
static int free_farthest(attn_pool *pool, int32_t seq, int32_t *left) {
  const int32_t *trimmed = attn_pool_trimmed(pool, seq);
  int32_t found = -1;
  int64_t most = 0;
  int64_t next = 0;
  for (int32_t g = 0; g < pool->num_groups; g++) {
    int64_t end = left[g] > trimmed[g] ? (int64_t)left[g] * pool->lanes[g].block_size : 0;
    if (end > most) {
      next = most;
      most = end;
      found = g;
    } else if (end > next) {
      next = end;
    }
  }
  if (found < 0) {
    return 0;
  }
  int32_t *row = attn_pool_row(pool, seq, &pool->lanes[found]);
  int64_t beyond = attn_max(next / pool->lanes[found].block_size, trimmed[found]);
  int32_t column = left[found];
  do {
    clear_entry(pool, &row[--column]);
  } while (column > beyond);
  left[found] = column;
  return 1;
}

attn_status attn_pool_free_seq(attn_pool *pool, int32_t seq, attn_message *message) {
  ATTN_CHECK_POINTER(pool, "pool", message);
  ATTN_TRY(attn_pool_check_seq(pool, "seq", seq, message));
  int32_t *trimmed = attn_pool_trimmed(pool, seq);
  int32_t left[ATTN_MAX_GROUPS];
  for (int32_t g = 0; g < pool->num_groups; g++) {
    left[g] = attn_pool_held(pool, seq, &pool->lanes[g]);
  }
  /* Last block first: the stack then gives them out in the order of this sequence, and a block that is kept is evicted
     after the ones that are found through it. */
  while (free_farthest(pool, seq, left)) {
  }
  memset(trimmed, 0, (size_t)pool->num_groups * sizeof *trimmed);
  pool->lens[seq] = 0;
  pool->known[seq] = 0;
  pool->committed[seq] = 0;
  if (pool->nodes != NULL) {
    pool->serials[seq] = 0;
  }
  return ATTN_OK;
}
