/* SPDX-License-Identifier: Apache-2.0 */
/* 06_block_pool.c: the block manager through the life of a growing batch: sequences take blocks as they grow, give
   tables and slots to the attention calls, fill the pool, and leave their blocks to whoever waits when they finish.
   Then sequences that share: two that go on from one prompt, and one that starts from a finished one's blocks. */
#include <attn/attn.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 16, BLOCKS = 9, SEQS = 3, WIDTH = 6 }; /* block 0 is the null block: 8 can be handed out */

static attn_pool *pool;
static attn_message message;

static int fail(const char *what) {
  (void)fprintf(stderr, "06_block_pool: %s: %s\n", what, message.text);
  attn_pool_destroy(pool);
  pool = NULL;
  return 1;
}

/* Append, and say what happened. */
static attn_status append(int32_t seq, int32_t count, int64_t *slots) {
  attn_status status = attn_pool_append(pool, seq, count, slots, &message);
  if (status == ATTN_OK) {
    printf("sequence %d + %d tokens: first slot %lld, %d blocks free\n", (int)seq, (int)count, (long long)slots[0],
           (int)attn_pool_num_free(pool));
  } else {
    printf("sequence %d + %d tokens: %s: %s\n", (int)seq, (int)count, attn_status_name(status), message.text);
  }
  return status;
}

static attn_status print_table(int32_t count, const int32_t *seqs) {
  int32_t table[SEQS][WIDTH], lens[SEQS];
  attn_status status = attn_pool_block_table(pool, count, seqs, WIDTH, &table[0][0], lens, &message);
  for (int32_t i = 0; status == ATTN_OK && i < count; i++) {
    printf("  sequence %d, %d tokens:", (int)seqs[i], (int)lens[i]);
    for (int32_t c = 0; c < WIDTH; c++) {
      printf(" %d", (int)table[i][c]);
    }
    printf("\n");
  }
  return status;
}

/* Sharing. `slots` takes what an append writes. */
static int share(int64_t *slots) {
  int32_t tokens[64], reused = 0;
  int64_t map[2];
  attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  copies.capacity = 1;
  copies.block_map = map;
  for (int32_t i = 0; i < 64; i++) {
    tokens[i] = 1000 + i; /* a tokenizer's ids */
  }
  /* A prompt of 40 tokens with its ids. Once a step's rows are written, its full blocks may be reused. */
  if (attn_pool_append_cow(pool, 0, 40, tokens, slots, NULL, &message) != ATTN_OK ||
      attn_pool_commit(pool, 0, &message) != ATTN_OK) {
    return fail("prompt");
  }
  /* Two answers to it: nothing is copied until one of them writes into the block that is not full. */
  if (attn_pool_fork(pool, 0, 1, &message) != ATTN_OK ||
      attn_pool_append_cow(pool, 1, 1, tokens + 40, slots, &copies, &message) != ATTN_OK) {
    return fail("fork");
  }
  printf("sequence 1 + 1 token: before it is written, attn_cache_copy() %d block, %lld to %lld\n", (int)copies.count,
         (long long)map[0], (long long)map[1]);
  int right = copies.count == 1 && slots[0] == map[1] * BLOCK + 8 && attn_pool_num_used(pool) == 4;
  /* Both finish. The prompt's 2 full blocks count as free, and are found by whoever comes with the same 32 tokens. */
  if (attn_pool_free_seq(pool, 0, &message) != ATTN_OK || attn_pool_free_seq(pool, 1, &message) != ATTN_OK ||
      attn_pool_reuse_prefix(pool, 2, tokens, 64, &reused, &message) != ATTN_OK ||
      attn_pool_get_info(pool, &info, &message) != ATTN_OK) {
    return fail("reuse");
  }
  printf("sequence 2 starts with %d tokens in %lld blocks that were there\n", (int)reused, (long long)info.hits);
  right &= reused == 32 && info.used == 2 && attn_pool_seq_len(pool, 2) == 32;
  if (attn_pool_free_seq(pool, 2, &message) != ATTN_OK || attn_pool_check(pool, &message) != ATTN_OK) {
    return fail("check of the shared blocks");
  }
  return right ? 0 : 1;
}

int main(void) {
  const int32_t both[] = {0, 1}, later[] = {1, 2};
  int64_t slots[64];
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  options.num_blocks = BLOCKS;
  options.block_size = BLOCK;
  options.max_seqs = SEQS;
  options.max_seq_blocks = WIDTH;
  options.prefix_cache = 1; /* only for the second half */
  if (attn_pool_create(&options, &pool, &message) != ATTN_OK) {
    return fail("create");
  }

  /* Two prompts, then decode steps: the table and the slots are what attn_run() and attn_cache_write() take. */
  if (append(0, 40, slots) != ATTN_OK || append(1, 60, slots) != ATTN_OK) {
    return fail("prompts");
  }
  for (int step = 0; step < 5; step++) {
    if (append(0, 1, slots) != ATTN_OK || append(1, 1, slots) != ATTN_OK) {
      return fail("decode");
    }
  }
  if (print_table(2, both) != ATTN_OK) {
    return fail("block table");
  }
  int right = attn_pool_num_free(pool) == 0; /* 3 blocks for 45 tokens, 5 for 65 */

  /* A third prompt does not fit: it is told so, and nothing changes. */
  right &= attn_pool_blocks_needed(pool, 2, 20) == 2;
  right &= append(2, 20, slots) == ATTN_E_FULL && attn_pool_seq_len(pool, 2) == 0;

  /* The first sequence finishes; its blocks serve the third. */
  if (attn_pool_free_seq(pool, 0, &message) != ATTN_OK || append(2, 20, slots) != ATTN_OK ||
      print_table(2, later) != ATTN_OK) {
    return fail("after the first sequence finished");
  }

  /* A block may have further owners: it is free when the last reference goes. */
  int32_t block = (int32_t)(slots[0] / BLOCK);
  if (attn_pool_retain(pool, block, &message) != ATTN_OK || attn_pool_free_seq(pool, 2, &message) != ATTN_OK) {
    return fail("references");
  }
  right &= attn_pool_references(pool, block) == 1 && attn_pool_num_free(pool) == 2;
  if (attn_pool_release(pool, block, &message) != ATTN_OK || attn_pool_free_seq(pool, 1, &message) != ATTN_OK) {
    return fail("release");
  }
  if (attn_pool_check(pool, &message) != ATTN_OK) { /* the books balance, provable at any time */
    return fail("check");
  }
  right &= attn_pool_num_free(pool) == BLOCKS - 1 && attn_pool_num_used(pool) == 0;
  printf("all %d blocks are free again\n", (int)attn_pool_num_free(pool));
  int failed = share(slots);
  attn_pool_destroy(pool);
  return right && !failed ? 0 : 1;
}
