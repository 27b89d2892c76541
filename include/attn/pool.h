/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pool.h  The block manager: which blocks belong to whom, and the tables that say so.   (stable)
 *
 * A pool hands out block ids; it knows nothing of the bytes in them. Block 0 is the null block: never handed out, the
 * padding of every table. Each block has a reference count; it returns to the free list when the count falls to 0.
 * Sequences are numbered by the caller's slots 0 .. max_seqs - 1 and grow token by token. All memory is allocated by
 * attn_pool_create(); every later call is O(1) per block it touches and allocates nothing.
 *
 * Sequences can share blocks: attn_pool_fork() lets two sequences go on from one, and a later append copies the block
 * that both would write (copy-on-write). With options.prefix_cache, full blocks whose token ids are known are kept when
 * their last reference goes, and attn_pool_reuse_prefix() starts a sequence from them; while they wait they count as
 * free, and are evicted, least recently used first, once the free list is empty.
 *
 * A model whose layers differ has one pool of several groups: attn_pool_create_groups(). A block then belongs to one
 * group at a time, holds all layers of it, and is as large in bytes as the blocks of the others (geometry.h finds such
 * sizes): what one group frees serves any other. Each sequence has a list of blocks in every group.
 *
 * A pool is not locked: one thread at a time.
 */
#ifndef ATTN_POOL_H
#define ATTN_POOL_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Options of attn_pool_create(): a pool of one group, without a window. Start from ATTN_POOL_OPTIONS_INIT. */
typedef struct attn_pool_options {
  uint32_t size;          /**< sizeof(attn_pool_options) */
  int32_t num_blocks;     /**< blocks of the pool, the null block included, 2 to 2^31 - 1 */
  int32_t block_size;     /**< positions per block, >= 1 */
  int32_t max_seqs;       /**< sequence slots, >= 1 */
  int32_t max_seq_blocks; /**< blocks that one sequence may hold, >= 1 (the width of its table row) */
  int32_t prefix_cache;   /**< 1: full blocks can be reused; takes 4 bytes a position and up to 56 a block */
  uint64_t hash_mask;     /**< for tests: the bits kept of a block's hash, so that hashes collide; 0: all */
} attn_pool_options;
#define ATTN_POOL_OPTIONS_INIT ATTN_INIT(attn_pool_options)

/** Opaque. */
typedef struct attn_pool attn_pool;

/**
 * Make a pool. *pool belongs to the caller: attn_pool_destroy().
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_RANGE (hash_mask too, where it has no prefix_cache);
 *         ATTN_E_OVERFLOW; ATTN_E_NOMEM.
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_create(const attn_pool_options *options, attn_pool **pool,
                                                     attn_message *message);

/** The most groups that a pool has. */
#define ATTN_MAX_GROUPS 64

/** Layers whose blocks are handed out together. Start from ATTN_POOL_GROUP_INIT. */
typedef struct attn_pool_group {
  uint32_t size;        /**< sizeof(attn_pool_group) */
  int32_t block_size;   /**< positions per block, >= 1 */
  int32_t kernel_block; /**< positions per block as tables and plans count them; divides block_size. 0: block_size */
  int32_t window;       /**< keys that a query sees to its left, itself included: W of attn_window_from_count(), so that
                             the problems have window_left W - 1. 0: all keys */
} attn_pool_group;
#define ATTN_POOL_GROUP_INIT ATTN_INIT(attn_pool_group)

/** Options of attn_pool_create_groups(). Start from ATTN_POOL_GROUPS_OPTIONS_INIT. */
typedef struct attn_pool_groups_options {
  uint32_t size;                 /**< sizeof(attn_pool_groups_options) */
  int32_t num_blocks;            /**< blocks of the pool, the null block included, 2 to 2^31 - 1; of no group may
                                      num_blocks * block_size / kernel_block exceed 2^31 - 1 */
  int32_t num_groups;            /**< 1 to ATTN_MAX_GROUPS */
  const attn_pool_group *groups; /**< [num_groups], copied */
  int32_t max_seqs;              /**< sequence slots, >= 1 */
  int32_t max_seq_len;           /**< tokens that one sequence may have, >= 1 */
  int32_t prefix_cache;          /**< 1: full blocks can be reused. Memory as in attn_pool_options, the positions being
                                      those of the first group without a window (of group 0, if all have one) */
  uint64_t hash_mask;            /**< as in attn_pool_options */
} attn_pool_groups_options;
#define ATTN_POOL_GROUPS_OPTIONS_INIT ATTN_INIT(attn_pool_groups_options)

/**
 * Make a pool of one group or more. Every call of this header takes it, but attn_pool_append(), attn_pool_append_cow()
 * and attn_pool_block_table(), which say nothing of groups: with more than one they are ATTN_E_STATE, and
 * attn_pool_append_groups() and attn_pool_group_table() take their place. *pool belongs to the caller:
 * attn_pool_destroy().
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE (of a group too); ATTN_E_RANGE; ATTN_E_OVERFLOW; ATTN_E_NOMEM.
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_create_groups(const attn_pool_groups_options *options, attn_pool **pool,
                                                            attn_message *message);

/** Destroy a pool. NULL is allowed. */
ATTN_API void attn_pool_destroy(attn_pool *pool);

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/** Blocks that attn_pool_allocate() can still hand out; those kept for reuse are among them. */
ATTN_API int32_t attn_pool_num_free(const attn_pool *pool);

/** Blocks with at least one reference (the null block is not counted). */
ATTN_API int32_t attn_pool_num_used(const attn_pool *pool);

/** Reference count of a block: 0 when free or kept for reuse, 0 for the null block and for an id outside the pool. */
ATTN_API int32_t attn_pool_references(const attn_pool *pool, int32_t block);

/**
 * Take `count` free blocks, each with one reference. All or nothing.
 * @param blocks  [count], written on success
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_RANGE (count < 0); ATTN_E_FULL (the message names wanted and free).
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_allocate(attn_pool *pool, int32_t count, int32_t *blocks,
                                                       attn_message *message);

/**
 * Add a reference to a block in use. It keeps the block from being handed out, and not its sequence from writing on.
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_INDEX (null block, free, outside, or 2^31 - 1 references already).
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_retain(attn_pool *pool, int32_t block, attn_message *message);

/** Drop a reference; at 0 the block is free. @return ATTN_OK; ATTN_E_NULL; ATTN_E_INDEX (null block, free, outside). */
ATTN_API ATTN_NODISCARD attn_status attn_pool_release(attn_pool *pool, int32_t block, attn_message *message);

/** What attn_pool_get_info() tells. Start from ATTN_POOL_INFO_INIT. */
typedef struct attn_pool_info {
  uint32_t size;      /**< sizeof(attn_pool_info) */
  int32_t free;       /**< attn_pool_num_free(); free + used = num_blocks - 1 */
  int32_t used;       /**< attn_pool_num_used() */
  int32_t cached;     /**< those of the free blocks that are kept for reuse */
  int32_t shared;     /**< blocks that are in more than one sequence now */
  int64_t hits;       /**< blocks that attn_pool_reuse_prefix() found, since the pool was made */
  int64_t evictions;  /**< kept blocks that were handed out for something else */
  int64_t copies;     /**< copies that attn_pool_append_cow() asked for */
  int64_t collisions; /**< blocks met whose hash was the one looked for, and whose tokens or parent were not */
} attn_pool_info;
#define ATTN_POOL_INFO_INIT ATTN_INIT(attn_pool_info)

/** Counts of a pool. @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE. */
ATTN_API ATTN_NODISCARD attn_status attn_pool_get_info(const attn_pool *pool, attn_pool_info *info,
                                                       attn_message *message);

/* ---- Sequences --------------------------------------------------------------------------------------------------- */

/**
 * Grow a sequence by `count` tokens, taking blocks as needed, and write their slots. A slot that has no tokens yet
 * starts a new sequence. All or nothing.
 *
 *     slot_mapping[i] = table[p / block_size] * block_size + p % block_size,   p = old length + i
 *
 * @param seq           0 .. max_seqs - 1
 * @param slot_mapping  [count] int64, written on success; may be NULL when count is 0
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_RANGE (count < 0); ATTN_E_INDEX (seq); ATTN_E_CAPACITY (beyond max_seq_blocks or
 *         max_seq_len); ATTN_E_STATE (the first token goes into a block that another sequence shares:
 *         attn_pool_append_cow(); or the pool has several groups: attn_pool_append_groups());
 *         ATTN_E_FULL (the message names wanted and free blocks; the sequence is as before).
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_append(attn_pool *pool, int32_t seq, int32_t count, int64_t *slot_mapping,
                                                     attn_message *message);

/**
 * Free a sequence: drop its references, length 0. Blocks made reusable by attn_pool_commit() are kept, the last one as
 * the first to be evicted: a preempted sequence resumes by attn_pool_reuse_prefix().
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_INDEX (seq).
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_free_seq(attn_pool *pool, int32_t seq, attn_message *message);

/** Tokens of a sequence; 0 for a slot without one or outside the pool. */
ATTN_API int32_t attn_pool_seq_len(const attn_pool *pool, int32_t seq);

/** Free blocks that appending `count` tokens would take, in all groups, those of copies included; -1 for a bad seq or
    count. */
ATTN_API int32_t attn_pool_blocks_needed(const attn_pool *pool, int32_t seq, int32_t count);

/**
 * Write the table and lengths of a batch: row i is seqs[i]'s blocks, padded with the null block. For pools of one
 * group: attn_pool_group_table() of group 0.
 *
 * @param seqs         [num_seqs]
 * @param block_table  [num_seqs, width] int32, compact, written; width >= the longest row's blocks
 * @param seq_lens     [num_seqs] int32, written; may be NULL
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_RANGE (num_seqs or width < 0); ATTN_E_INDEX (a seq); ATTN_E_SHAPE (width too
 *         small, the message names the width needed); ATTN_E_STATE (several groups). Nothing is written on failure.
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_block_table(const attn_pool *pool, int32_t num_seqs, const int32_t *seqs,
                                                          int32_t width, int32_t *block_table, int32_t *seq_lens,
                                                          attn_message *message);

/**
 * Prove that the books balance: every block is free or referenced, each count equals the references found, no block is
 * twice on the free list, every table row holds what its length and window need, each reusable block is found by its
 * tokens and parent. Callable at any time; O(blocks + table entries), with options.prefix_cache O(positions + table
 * entries). References taken by attn_pool_allocate() and attn_pool_retain() are the caller's: they count as allowed
 * surplus.
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_INTERNAL with the first contradiction.
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_check(const attn_pool *pool, attn_message *message);

/* ---- Sharing ----------------------------------------------------------------------------------------------------- */

/**
 * Start `child` as a copy of `parent` that shares all its blocks. Both go on by attn_pool_append_cow(). The rows of the
 * parent's tokens must be in the cache before the copies of those appends are performed.
 * @param child  a slot without tokens
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_INDEX (parent, child, or a block with 2^31 - 1 references); ATTN_E_STATE (child
 *         has tokens).
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_fork(attn_pool *pool, int32_t parent, int32_t child,
                                                   attn_message *message);

/** The blocks to be copied in a step: attn_cache_copy() takes `count` rows of it. Start from ATTN_POOL_COPIES_INIT. */
typedef struct attn_pool_copies {
  uint32_t size;      /**< sizeof(attn_pool_copies) */
  int32_t capacity;   /**< pairs that fit; an append adds at most one in each group, so the batch's sequences times
                           the groups are enough */
  int32_t count;      /**< pairs so far; attn_pool_append_cow() adds to it, the caller sets it to 0 for a new step */
  int64_t *block_map; /**< [capacity, 2]: source block, target block */
} attn_pool_copies;
#define ATTN_POOL_COPIES_INIT ATTN_INIT(attn_pool_copies)

/**
 * attn_pool_append() for sequences that share blocks, and for those whose blocks are to be reused.
 *
 * Where the first token goes into a block that another sequence shares, the sequence gets a fresh block in its place
 * and (shared block, fresh block) is added to `copies`. The caller performs all copies, in every layer's cache, before
 * it writes any row of the step, and before the next call that frees, releases, forks or reuses. slot_mapping is that
 * of the fresh block. All or nothing, `copies` included.
 *
 * @param tokens  [count] ids of the tokens appended, any values; NULL: not known, and no block that this sequence fills
 *                from here on becomes reusable
 * @param copies  NULL: refuse where a copy is needed
 * @return as attn_pool_append(); ATTN_E_STRUCT_SIZE, ATTN_E_NULL (block_map), ATTN_E_RANGE (copies: capacity < 0, or
 *         count outside 0 .. capacity), ATTN_E_CAPACITY (a copy is needed and copies is full); ATTN_E_STATE also for
 *         tokens without options.prefix_cache, and (attn_pool_append_groups()) for a pool of several groups.
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_append_cow(attn_pool *pool, int32_t seq, int32_t count,
                                                         const int32_t *tokens, int64_t *slot_mapping,
                                                         attn_pool_copies *copies, attn_message *message);

/**
 * Say that the rows of all tokens of a sequence are in the cache: its full blocks whose ids are known become reusable.
 * Called after a step's writes; a block is never reusable before, so that a sequence freed in the middle of a step
 * leaves nothing unwritten behind.
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_INDEX (seq); ATTN_E_STATE (no options.prefix_cache).
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_commit(attn_pool *pool, int32_t seq, attn_message *message);

/**
 * Start a sequence from reusable blocks: as many full blocks as equal the beginning of `tokens`. A block is found by a
 * hash and taken only if its token ids and the block before it are the ones wanted; equal hashes alone share nothing.
 * The sequence then has *reused tokens, and appends those from there on. Where the last token's output is needed, pass
 * one token less, so that it is left to be computed.
 *
 * In a pool of several groups the beginning ends where blocks of all groups end (at a multiple of every block size),
 * and is the longest for which every group has what its next query can see: all blocks, or, with a window, those that
 * are not wholly behind it. The tokens are compared along the first group without a window. Where every group has one,
 * that is group 0, of which then no block of the beginning may have been evicted, those behind the window included.
 *
 * @param seq     a slot without tokens
 * @param tokens  [count]; may be NULL when count is 0
 * @param reused  written on success: tokens found, a multiple of every block_size, 0 when there are none
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_RANGE (count < 0); ATTN_E_INDEX (seq); ATTN_E_STATE (seq has tokens, or no
 *         options.prefix_cache).
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_reuse_prefix(attn_pool *pool, int32_t seq, const int32_t *tokens,
                                                           int32_t count, int32_t *reused, attn_message *message);

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

/**
 * attn_pool_append_cow() for pools of any number of groups: the sequence grows in each of them.
 *
 *     slot_mapping[g * group_stride + i] = table_g[p / b] * b + p % b,   p = old length + i,  b = block_size of group g
 *
 * These are the slots of kernel blocks as well as of blocks, for both count the same positions. The pairs added to
 * `copies` are of whole blocks, whatever their group: attn_cache_copy() over the allocation as a tensor of pages
 * (geometry.h) performs them all in one call. All or nothing, over all groups.
 *
 * @param group_stride  slots from one group's list to the next one's, >= count; of no account with one group
 * @return as attn_pool_append_cow(); ATTN_E_RANGE also for group_stride.
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_append_groups(attn_pool *pool, int32_t seq, int32_t count,
                                                            const int32_t *tokens, int64_t *slot_mapping,
                                                            int64_t group_stride, attn_pool_copies *copies,
                                                            attn_message *message);

/**
 * Give back the blocks that no later query of a sequence sees. In each group with a window W these are the blocks that
 * lie wholly before position computed - (W - 1), the leftmost that a query at `computed` sees; the null block takes
 * their place in the tables. Another sequence that shares such a block keeps it, and a reusable one can be found until
 * it is evicted: call attn_pool_commit() first.
 *
 * A window here is that of contract and problem.h, without prefix ranges: where a range lets queries see keys behind
 * the window, either the whole range is computed in one step, or the group has to be one without a window.
 *
 * @param computed  tokens of the sequence whose queries are done: every later query is at this position or beyond it. 0
 *                  to the length; after a step that computed all tokens, the length
 * @param released  table entries that became the null block; may be NULL
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_INDEX (seq); ATTN_E_RANGE (computed).
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_trim(attn_pool *pool, int32_t seq, int32_t computed, int32_t *released,
                                                   attn_message *message);

/**
 * attn_pool_block_table() for one group, in kernel blocks: with r = block_size / kernel_block, block b is the kernel
 * blocks b * r to b * r + r - 1, and
 *
 *     row i, column c = table[c / r] * r + c % r;  0 where table[c / r] is the null block, and beyond the length
 *
 * Entries of blocks given back by attn_pool_trim() are 0: they are masked for every query that comes, and not read.
 *
 * @param group        0 .. groups - 1
 * @param block_table  [num_seqs, width] int32, compact, written; width >= the longest row's kernel blocks
 * @return as attn_pool_block_table(), several groups excepted; ATTN_E_INDEX also for group.
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_group_table(const attn_pool *pool, int32_t group, int32_t num_seqs,
                                                          const int32_t *seqs, int32_t width, int32_t *block_table,
                                                          int32_t *seq_lens, attn_message *message);

/** What attn_pool_get_group() tells. Start from ATTN_POOL_GROUP_INFO_INIT. */
typedef struct attn_pool_group_info {
  uint32_t size;        /**< sizeof(attn_pool_group_info) */
  int32_t num_groups;   /**< of the pool */
  int32_t block_size;   /**< positions per block */
  int32_t kernel_block; /**< positions per kernel block */
  int32_t window;       /**< 0: none */
  int32_t table_width;  /**< columns that the longest sequence needs */
  int64_t entries;      /**< blocks in the lists of all sequences now, a shared one as often as it is there */
  int64_t trimmed;      /**< entries that attn_pool_trim() gave back, since the pool was made */
} attn_pool_group_info;
#define ATTN_POOL_GROUP_INFO_INIT ATTN_INIT(attn_pool_group_info)

/** Sizes and counts of a group; O(max_seqs). @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_INDEX (group). */
ATTN_API ATTN_NODISCARD attn_status attn_pool_get_group(const attn_pool *pool, int32_t group,
                                                        attn_pool_group_info *info, attn_message *message);

#ifdef __cplusplus
}
#endif
#endif
