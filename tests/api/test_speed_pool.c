/* SPDX-License-Identifier: Apache-2.0 */
/* test_speed_pool.c: block operations per second of one core: each way in which a pool hands out and takes back blocks
 * does at least 5 million, in a pool too large for the nearer caches. One operation is one block handed out, shared,
 * found, made reusable or taken back; slots of 16 tokens a block are written, and ids hashed and compared, where the
 * call does so.
 */
#define _POSIX_C_SOURCE 200809L
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BLOCK 16
#define SEQ_BLOCKS 64
#define SEQS 512
#define TOKENS (BLOCK * SEQ_BLOCKS)
#define LEAST 5e6
#define TRIES 5

typedef struct bench {
  attn_pool *pool;
  int32_t (*tokens)[TOKENS];
  int64_t slots[TOKENS];
  int32_t order[SEQS];
} bench;

static double seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bench open_bench(int32_t num_blocks, int32_t prefix_cache) {
  bench b = {0};
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  uint32_t random = 4;
  options.num_blocks = num_blocks;
  options.block_size = BLOCK;
  options.max_seqs = SEQS;
  options.max_seq_blocks = SEQ_BLOCKS;
  options.prefix_cache = prefix_cache;
  EXPECT_OK(attn_pool_create(&options, &b.pool, &why));
  b.tokens = malloc(SEQS * sizeof *b.tokens);
  assert_non_null(b.tokens);
  for (int32_t seq = 0; seq < SEQS; seq++) {
    for (int32_t i = 0; i < TOKENS; i++) {
      b.tokens[seq][i] = (int32_t)random_bits(&random);
    }
    int32_t other = (int32_t)(random_bits(&random) % (uint32_t)(seq + 1));
    b.order[seq] = b.order[other];
    b.order[other] = seq;
  }
  return b;
}

static void close_bench(bench *b) {
  EXPECT_OK(attn_pool_check(b->pool, &why));
  attn_pool_destroy(b->pool);
  free(b->tokens);
}

/* ---- Rounds: each returns how many blocks it moved */

static int64_t take_and_release(bench *b) {
  static int32_t blocks[SEQS * SEQ_BLOCKS];
  const int32_t count = SEQS * SEQ_BLOCKS;
  for (int32_t i = 0; i < count; i += 8) {
    EXPECT_OK(attn_pool_allocate(b->pool, 8, blocks + i, &why));
  }
  for (int32_t i = 0; i < count; i++) {
    int32_t scattered = (int32_t)(((int64_t)i * 7919) % count);
    if (attn_pool_release(b->pool, blocks[scattered], NULL) != ATTN_OK) {
      return 0;
    }
  }
  return 2 * (int64_t)count;
}

static int64_t grow_and_free(bench *b) {
  for (int32_t i = 0; i < SEQS; i++) {
    EXPECT_OK(attn_pool_append(b->pool, i, TOKENS, b->slots, &why));
  }
  for (int32_t i = 0; i < SEQS; i++) {
    EXPECT_OK(attn_pool_free_seq(b->pool, b->order[i], &why));
  }
  return 2 * (int64_t)SEQS * SEQ_BLOCKS;
}

/* Every second slot forks from the one before it. */
static int64_t fork_and_free(bench *b) {
  for (int32_t i = 0; i < SEQS; i += 2) {
    EXPECT_OK(attn_pool_append(b->pool, i, TOKENS, b->slots, &why));
    EXPECT_OK(attn_pool_fork(b->pool, i, i + 1, &why));
  }
  for (int32_t i = 0; i < SEQS; i++) {
    EXPECT_OK(attn_pool_free_seq(b->pool, b->order[i], &why));
  }
  return 2 * (int64_t)SEQS * SEQ_BLOCKS;
}

/* In a pool that is too small by half, what is not found is computed, and evicts. */
static int64_t reuse_and_free(bench *b) {
  int64_t moved = 0;
  for (int32_t i = 0; i < SEQS; i++) {
    int32_t seq = b->order[i];
    int32_t reused = 0;
    EXPECT_OK(attn_pool_reuse_prefix(b->pool, seq, b->tokens[seq / 4], TOKENS, &reused, &why));
    int32_t rest = TOKENS - reused;
    EXPECT_OK(attn_pool_append_cow(b->pool, seq, rest, b->tokens[seq / 4] + reused, b->slots, NULL, &why));
    EXPECT_OK(attn_pool_commit(b->pool, seq, &why));
    EXPECT_OK(attn_pool_free_seq(b->pool, seq, &why));
    moved += reused / BLOCK + 2 * rest / BLOCK + SEQ_BLOCKS;
  }
  return moved;
}

/* The best of some tries of at least 0.1 s each: other programs may run. */
static double rate_of(bench *b, int64_t (*round)(bench *b)) {
  double best = 0;
  for (int try = 0; try < TRIES; try++) {
    int64_t moved = 0;
    double start = seconds();
    double passed = 0;
    while (passed < 0.1) {
      moved += round(b);
      passed = seconds() - start;
    }
    best = (double)moved / passed > best ? (double)moved / passed : best;
  }
  return best;
}

static void expect_rate(const char *name, bench b, int64_t (*round)(bench *b)) {
  double rate = rate_of(&b, round);
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  EXPECT_OK(attn_pool_get_info(b.pool, &info, &why));
  (void)printf("%-18s %6.1f million block operations per second, %lld hits, %lld evictions\n", name, rate / 1e6,
               (long long)info.hits, (long long)info.evictions);
  CHECK(rate >= LEAST, "%s: %.1f million block operations per second, wanted %.1f", name, rate / 1e6, LEAST / 1e6);
  close_bench(&b);
}

static void test_rates(void **state) {
  (void)state;
  const int32_t all = SEQS * SEQ_BLOCKS + 1;
  expect_rate("take, release", open_bench(all, 0), take_and_release);
  expect_rate("grow, free", open_bench(all, 0), grow_and_free);
  expect_rate("grow, fork, free", open_bench(all, 0), fork_and_free);
  expect_rate("reuse, grow, free", open_bench(all / 8, 1), reuse_and_free);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rates)};
  return cmocka_run_group_tests_name("speed_pool", tests, NULL, NULL);
}
