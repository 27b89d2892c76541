/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pool.h  The block manager: which blocks belong to whom, and the tables that say so.   (stable)
 *
 * A pool hands out block ids; it knows nothing of the bytes in them. Block 0 is the null block: never handed out, the
 * padding of every table. Each block has a reference count; it returns to the free list when the count falls to 0.
 * Sequences are numbered by the caller's slots 0 .. max_seqs - 1 and grow token by token. All memory is allocated by
 * attn_pool_create(); every later call is O(1) per block it touches and allocates nothing.
 *
 * A pool is not locked: one thread at a time.
 */
#ifndef ATTN_POOL_H
#define ATTN_POOL_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Options of attn_pool_create(). Start from ATTN_POOL_OPTIONS_INIT. */
typedef struct attn_pool_options {
  uint32_t size;          /**< sizeof(attn_pool_options) */
  int32_t num_blocks;     /**< blocks of the pool, the null block included, 2 to 2^31 - 1 */
  int32_t block_size;     /**< positions per block, >= 1 */
  int32_t max_seqs;       /**< sequence slots, >= 1 */
  int32_t max_seq_blocks; /**< blocks that one sequence may hold, >= 1 (the width of its table row) */
} attn_pool_options;
#define ATTN_POOL_OPTIONS_INIT ATTN_INIT(attn_pool_options)

/** Opaque. */
typedef struct attn_pool attn_pool;

/**
 * Make a pool. *pool belongs to the caller: attn_pool_destroy().
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_RANGE; ATTN_E_OVERFLOW; ATTN_E_NOMEM.
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_create(const attn_pool_options *options, attn_pool **pool,
                                                     attn_message *message);

/** Destroy a pool. NULL is allowed. */
ATTN_API void attn_pool_destroy(attn_pool *pool);

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/** Blocks that attn_pool_allocate() can still hand out. */
ATTN_API int32_t attn_pool_num_free(const attn_pool *pool);

/** Blocks with at least one reference (the null block is not counted). */
ATTN_API int32_t attn_pool_num_used(const attn_pool *pool);

/** Reference count of a block: 0 when free, 0 for the null block and for an id outside the pool. */
ATTN_API int32_t attn_pool_references(const attn_pool *pool, int32_t block);

/**
 * Take `count` free blocks, each with one reference. All or nothing.
 * @param blocks  [count], written on success
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_RANGE (count < 0); ATTN_E_FULL (the message names wanted and free).
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_allocate(attn_pool *pool, int32_t count, int32_t *blocks,
                                                       attn_message *message);

/** Add a reference to a block in use. @return ATTN_OK; ATTN_E_NULL; ATTN_E_INDEX (null block, free, or outside). */
ATTN_API ATTN_NODISCARD attn_status attn_pool_retain(attn_pool *pool, int32_t block, attn_message *message);

/** Drop a reference; at 0 the block is free. @return ATTN_OK; ATTN_E_NULL; ATTN_E_INDEX (null block, free, outside). */
ATTN_API ATTN_NODISCARD attn_status attn_pool_release(attn_pool *pool, int32_t block, attn_message *message);

/* ---- Sequences --------------------------------------------------------------------------------------------------- */

/**
 * Grow a sequence by `count` tokens, taking blocks as needed, and write their slots. A slot that has no tokens yet
 * starts a new sequence. All or nothing.
 *
 *     slot_mapping[i] = table[p / block_size] * block_size + p % block_size,   p = old length + i
 *
 * @param seq           0 .. max_seqs - 1
 * @param slot_mapping  [count] int64, written on success; may be NULL when count is 0
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_RANGE (count < 0); ATTN_E_INDEX (seq); ATTN_E_CAPACITY (beyond max_seq_blocks);
 *         ATTN_E_FULL (the message names wanted and free blocks; the sequence is as before).
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_append(attn_pool *pool, int32_t seq, int32_t count, int64_t *slot_mapping,
                                                     attn_message *message);

/** Free a sequence: drop its references, length 0. @return ATTN_OK; ATTN_E_NULL; ATTN_E_INDEX (seq). */
ATTN_API ATTN_NODISCARD attn_status attn_pool_free_seq(attn_pool *pool, int32_t seq, attn_message *message);

/** Tokens of a sequence; 0 for a slot without one or outside the pool. */
ATTN_API int32_t attn_pool_seq_len(const attn_pool *pool, int32_t seq);

/** Blocks that appending `count` tokens would take from the free list; -1 for a bad seq or count. */
ATTN_API int32_t attn_pool_blocks_needed(const attn_pool *pool, int32_t seq, int32_t count);

/**
 * Write the table and lengths of a batch: row i is seqs[i]'s blocks, padded with the null block.
 *
 * @param seqs         [num_seqs]
 * @param block_table  [num_seqs, width] int32, compact, written; width >= the longest row's blocks
 * @param seq_lens     [num_seqs] int32, written; may be NULL
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_RANGE (num_seqs or width < 0); ATTN_E_INDEX (a seq); ATTN_E_SHAPE (width too
 *         small, the message names the width needed). Nothing is written on failure.
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_block_table(const attn_pool *pool, int32_t num_seqs, const int32_t *seqs,
                                                          int32_t width, int32_t *block_table, int32_t *seq_lens,
                                                          attn_message *message);

/**
 * Prove that the books balance: every block is free or referenced, each count equals the references found, no block is
 * twice on the free list, every table row holds what its length needs. Callable at any time; O(blocks + table entries).
 * References taken by attn_pool_allocate() and attn_pool_retain() are the caller's: they count as allowed surplus.
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_INTERNAL with the first contradiction.
 */
ATTN_API ATTN_NODISCARD attn_status attn_pool_check(const attn_pool *pool, attn_message *message);

/* ---- Sharing (declared; not built in yet: each returns ATTN_E_UNSUPPORTED) --------------------------------------- */

/** Start `child` as a copy of `parent` that shares its blocks (copy-on-write). @return ATTN_E_UNSUPPORTED. */
ATTN_API ATTN_NODISCARD attn_status attn_pool_fork(attn_pool *pool, int32_t parent, int32_t child,
                                                   attn_message *message);

/** Start a sequence from cached blocks whose tokens equal a prefix of `tokens`. @return ATTN_E_UNSUPPORTED. */
ATTN_API ATTN_NODISCARD attn_status attn_pool_reuse_prefix(attn_pool *pool, int32_t seq, const int32_t *tokens,
                                                           int32_t count, int32_t *reused, attn_message *message);

#ifdef __cplusplus
}
#endif
#endif
