/* SPDX-License-Identifier: Apache-2.0 */
/* test_pool_prefix.c: prefix reuse in the block manager: statuses of attn_pool_commit() and attn_pool_reuse_prefix(),
 * what is found and what is not, forced collisions, the order of eviction, preempting and resuming.
 */
#include "harness.h"

#include <string.h>

#define BLOCK 4
#define WIDTH 6
#define SEQS 8

static attn_pool *make_pool(int32_t num_blocks, uint64_t hash_mask) {
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  attn_pool *pool = NULL;
  options.num_blocks = num_blocks;
  options.block_size = BLOCK;
  options.max_seqs = SEQS;
  options.max_seq_blocks = WIDTH;
  options.prefix_cache = 1;
  options.hash_mask = hash_mask;
  EXPECT_OK(attn_pool_create(&options, &pool, &why));
  return pool;
}

static void close_pool(attn_pool *pool) {
  EXPECT_OK(attn_pool_check(pool, &why));
  for (int32_t seq = 0; seq < SEQS; seq++) {
    EXPECT_OK(attn_pool_free_seq(pool, seq, &why));
  }
  EXPECT_OK(attn_pool_check(pool, &why));
  assert_int_equal(attn_pool_num_used(pool), 0);
  attn_pool_destroy(pool);
}

static attn_pool_info info_of(const attn_pool *pool) {
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  EXPECT_OK(attn_pool_get_info(pool, &info, &why));
  return info;
}

static int32_t block_at(const attn_pool *pool, int32_t seq, int32_t column) {
  int32_t row[WIDTH];
  EXPECT_OK(attn_pool_block_table(pool, 1, &seq, WIDTH, row, NULL, &why));
  return row[column];
}

/* Tokens first, first + 1, .. */
static const int32_t *count_from(int32_t first) {
  static int32_t tokens[WIDTH * BLOCK];
  for (int32_t i = 0; i < WIDTH * BLOCK; i++) {
    tokens[i] = first + i;
  }
  return tokens;
}

static void append(attn_pool *pool, int32_t seq, int32_t count, const int32_t *tokens) {
  int64_t slots[WIDTH * BLOCK];
  EXPECT_OK(attn_pool_append_cow(pool, seq, count, tokens, slots, NULL, &why));
}

/* A sequence comes, is computed, and goes. */
static void serve(attn_pool *pool, int32_t seq, int32_t count, const int32_t *tokens) {
  append(pool, seq, count, tokens);
  EXPECT_OK(attn_pool_commit(pool, seq, &why));
  EXPECT_OK(attn_pool_free_seq(pool, seq, &why));
  EXPECT_OK(attn_pool_check(pool, &why));
}

/* Reuse, say how much, and leave the slot as it was. */
static int32_t found(attn_pool *pool, const int32_t *tokens, int32_t count) {
  int32_t reused = -7;
  EXPECT_OK(attn_pool_reuse_prefix(pool, SEQS - 1, tokens, count, &reused, &why));
  assert_int_equal(attn_pool_seq_len(pool, SEQS - 1), reused);
  EXPECT_OK(attn_pool_check(pool, &why));
  EXPECT_OK(attn_pool_free_seq(pool, SEQS - 1, &why));
  return reused;
}

/* ---- Statuses ---------------------------------------------------------------------------------------------------- */

static void test_refusals(void **state) {
  (void)state;
  attn_pool *pool = make_pool(8, 0);
  const int32_t *tokens = count_from(1);
  int32_t reused = -7;
  EXPECT_STATUS(attn_pool_commit(NULL, 0, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_commit(pool, SEQS, &why), ATTN_E_INDEX, "seq: 8");
  EXPECT_STATUS(attn_pool_reuse_prefix(NULL, 0, tokens, 8, &reused, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_reuse_prefix(pool, 0, NULL, 8, &reused, &why), ATTN_E_NULL, "tokens");
  EXPECT_STATUS(attn_pool_reuse_prefix(pool, 0, tokens, 8, NULL, &why), ATTN_E_NULL, "reused");
  EXPECT_STATUS(attn_pool_reuse_prefix(pool, 0, tokens, -1, &reused, &why), ATTN_E_RANGE, "count: -1");
  EXPECT_STATUS(attn_pool_reuse_prefix(pool, -1, tokens, 8, &reused, &why), ATTN_E_INDEX, "seq: -1");
  append(pool, 2, 3, tokens);
  EXPECT_STATUS(attn_pool_reuse_prefix(pool, 2, tokens, 8, &reused, &why), ATTN_E_STATE, "seq: 2 has 3 tokens");
  assert_int_equal(reused, -7);
  EXPECT_OK(attn_pool_reuse_prefix(pool, 0, NULL, 0, &reused, &why));
  assert_int_equal(reused, 0);
  EXPECT_OK(attn_pool_commit(pool, 0, &why));
  close_pool(pool);
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  options.num_blocks = options.block_size = options.max_seqs = options.max_seq_blocks = 4;
  EXPECT_OK(attn_pool_create(&options, &pool, &why));
  reused = -7;
  EXPECT_STATUS(attn_pool_commit(pool, 0, &why), ATTN_E_STATE, "prefix_cache");
  EXPECT_STATUS(attn_pool_reuse_prefix(pool, 0, tokens, 8, &reused, &why), ATTN_E_STATE, "prefix_cache");
  assert_int_equal(reused, -7);
  attn_pool_destroy(pool);
}

/* The ids of every position, with their sizes, are judged before memory is asked for. */
static void test_sizes(void **state) {
  (void)state;
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  attn_pool *pool = NULL;
  options.num_blocks = options.block_size = INT32_MAX;
  options.max_seqs = options.max_seq_blocks = 1;
  options.prefix_cache = 1;
  EXPECT_STATUS(attn_pool_create(&options, &pool, &why), ATTN_E_OVERFLOW, "2147483647 blocks of 2147483647");
  assert_null(pool);
}

/* ---- What is found ----------------------------------------------------------------------------------------------- */

static void test_found(void **state) {
  (void)state;
  attn_pool *pool = make_pool(16, 0);
  int32_t tokens[WIDTH * BLOCK];
  memcpy(tokens, count_from(1), sizeof tokens);
  append(pool, 0, 5, tokens);
  append(pool, 0, 5, tokens + 5);
  assert_int_equal(found(pool, tokens, 10), 0); /* not committed */
  EXPECT_OK(attn_pool_commit(pool, 0, &why));
  EXPECT_OK(attn_pool_commit(pool, 0, &why));
  assert_int_equal(found(pool, tokens, 3), 0);
  assert_int_equal(found(pool, tokens, 4), 4);
  assert_int_equal(found(pool, tokens, 7), 4);
  assert_int_equal(found(pool, tokens, 24), 8); /* the third block is not full */
  int32_t reused = 0;
  EXPECT_OK(attn_pool_reuse_prefix(pool, 1, tokens, 24, &reused, &why));
  assert_int_equal(block_at(pool, 1, 0), block_at(pool, 0, 0));
  assert_int_equal(block_at(pool, 1, 1), block_at(pool, 0, 1));
  assert_int_equal(info_of(pool).shared, 2);
  append(pool, 1, 4, tokens + 8); /* a boundary: a block of its own, no copy */
  EXPECT_OK(attn_pool_commit(pool, 1, &why));
  assert_int_equal(found(pool, tokens, 24), 12);
  tokens[5]++;
  assert_int_equal(found(pool, tokens, 24), 4);
  tokens[5]--;
  tokens[0]++;
  assert_int_equal(found(pool, tokens, 24), 0);
  /* the second block alone is not a first block */
  assert_int_equal(found(pool, count_from(5), 4), 0);
  assert_int_equal(info_of(pool).hits, 1 + 1 + 2 + 2 + 3 + 1);
  close_pool(pool);
}

/* Tokens appended without ids end what can be found, and those before stay. */
static void test_unknown_tokens(void **state) {
  (void)state;
  attn_pool *pool = make_pool(16, 0);
  int64_t slot = 0;
  append(pool, 0, 6, count_from(1));
  EXPECT_OK(attn_pool_append(pool, 0, 1, &slot, &why));
  append(pool, 0, 9, count_from(8));
  EXPECT_OK(attn_pool_commit(pool, 0, &why));
  assert_int_equal(found(pool, count_from(1), 16), 4);
  EXPECT_OK(attn_pool_check(pool, &why));
  close_pool(pool);
}

/* A copied block takes its tokens along; both branches are found, and a freed uncommitted sequence leaves nothing. */
static void test_forks_are_found(void **state) {
  (void)state;
  attn_pool *pool = make_pool(16, 0);
  int64_t slots[8];
  int64_t map[2];
  attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  copies.capacity = 1;
  copies.block_map = map;
  int32_t other[8] = {1, 2, 3, 4, 5, 6, 70, 80};
  append(pool, 0, 6, count_from(1));
  EXPECT_OK(attn_pool_fork(pool, 0, 1, &why));
  EXPECT_OK(attn_pool_append_cow(pool, 1, 2, other + 6, slots, &copies, &why));
  append(pool, 0, 2, count_from(7));
  EXPECT_OK(attn_pool_commit(pool, 1, &why));
  EXPECT_OK(attn_pool_commit(pool, 0, &why));
  EXPECT_OK(attn_pool_free_seq(pool, 0, &why));
  EXPECT_OK(attn_pool_free_seq(pool, 1, &why));
  assert_int_equal(info_of(pool).cached, 3);
  assert_int_equal(found(pool, other, 8), 8);
  assert_int_equal(found(pool, count_from(1), 8), 8);
  append(pool, 2, 8, count_from(50));
  EXPECT_OK(attn_pool_free_seq(pool, 2, &why));
  assert_int_equal(found(pool, count_from(50), 8), 0);
  close_pool(pool);
}

/* Two who computed the same: either one's going leaves the other's blocks to be found, none is kept twice. */
static void test_twins(void **state) {
  (void)state;
  for (int32_t first = 0; first < 2; first++) {
    attn_pool *pool = make_pool(16, 0);
    append(pool, 0, 8, count_from(1));
    append(pool, 1, 8, count_from(1));
    EXPECT_OK(attn_pool_commit(pool, 0, &why));
    EXPECT_OK(attn_pool_commit(pool, 1, &why));
    append(pool, 1 - first, 4, count_from(9));
    EXPECT_OK(attn_pool_commit(pool, 1 - first, &why));
    EXPECT_OK(attn_pool_free_seq(pool, first, &why));
    EXPECT_OK(attn_pool_check(pool, &why));
    assert_int_equal(info_of(pool).cached, 0);
    assert_int_equal(found(pool, count_from(1), 12), 12);
    EXPECT_OK(attn_pool_free_seq(pool, 1 - first, &why));
    assert_int_equal(info_of(pool).cached, 3);
    /* computed once more beside the kept ones: those make room */
    append(pool, 2, 12, count_from(1));
    EXPECT_OK(attn_pool_commit(pool, 2, &why));
    assert_int_equal(info_of(pool).cached, 0);
    assert_int_equal(found(pool, count_from(1), 12), 12);
    close_pool(pool);
  }
}

/* ---- Equal hashes ------------------------------------------------------------------------------------------------ */

/* Two values of the hash for many contents: chains are long, comparisons decide. */
static void collide(uint64_t hash_mask) {
  attn_pool *pool = make_pool(64, hash_mask);
  int32_t tokens[7][8];
  for (int32_t i = 0; i < 7; i++) {
    memcpy(tokens[i], count_from(1), sizeof tokens[i]);
    tokens[i][i + 1]++; /* i < 3: the first block differs, and the second has another parent */
    serve(pool, i, 8, tokens[i]);
  }
  assert_int_equal(info_of(pool).cached, 3 + 3 + 1 + 4);
  for (int32_t i = 0; i < 7; i++) {
    assert_int_equal(found(pool, tokens[i], 8), 8);
    for (int32_t at = 0; at < 8; at++) {
      tokens[i][at] += 100;
      assert_int_equal(found(pool, tokens[i], 8), at / BLOCK * BLOCK);
      tokens[i][at] -= 100;
    }
  }
  assert_true(info_of(pool).collisions > 0);
  /* the blocks found are those of the prefix asked for: no two of the seven end in the same block */
  int32_t last[7];
  for (int32_t i = 0; i < 7; i++) {
    int32_t reused = 0;
    EXPECT_OK(attn_pool_reuse_prefix(pool, i, tokens[i], 8, &reused, &why));
    last[i] = block_at(pool, i, 1);
    for (int32_t j = 0; j < i; j++) {
      assert_int_not_equal(last[i], last[j]);
    }
  }
  close_pool(pool);
}

static void test_forced_collisions(void **state) {
  (void)state;
  collide(1);
  collide(UINT64_C(1) << 63);
}

/* ---- Eviction ---------------------------------------------------------------------------------------------------- */

static void test_eviction_order(void **state) {
  (void)state;
  attn_pool *pool = make_pool(7, 0); /* 6 blocks */
  serve(pool, 0, 8, count_from(100));
  serve(pool, 0, 8, count_from(200));
  serve(pool, 0, 4, count_from(300));
  assert_int_equal(attn_pool_num_free(pool), 6);
  assert_int_equal(info_of(pool).cached, 5);
  assert_int_equal(found(pool, count_from(100), 4), 4); /* its first block is the newest now */
  int32_t taken[6];
  EXPECT_OK(attn_pool_allocate(pool, 1, taken, &why)); /* the free list first */
  assert_int_equal(info_of(pool).evictions, 0);
  EXPECT_OK(attn_pool_allocate(pool, 1, taken + 1, &why)); /* the end of 100 .. 107 */
  EXPECT_OK(attn_pool_check(pool, &why));
  assert_int_equal(info_of(pool).evictions, 1);
  EXPECT_OK(attn_pool_allocate(pool, 1, taken + 2, &why)); /* the end of 200 .. 207 */
  int32_t reused = 0;
  EXPECT_OK(attn_pool_reuse_prefix(pool, 1, count_from(200), 8, &reused, &why));
  assert_int_equal(reused, 4);
  EXPECT_OK(attn_pool_allocate(pool, 1, taken + 3, &why)); /* 300 .. 303; 200 .. 203 is in use */
  assert_int_equal(found(pool, count_from(300), 4), 0);
  assert_int_equal(found(pool, count_from(100), 8), 4);
  assert_int_equal(info_of(pool).evictions, 3);
  assert_int_equal(attn_pool_num_free(pool), 1);
  EXPECT_STATUS(attn_pool_allocate(pool, 2, taken + 4, &why), ATTN_E_FULL, "2 blocks wanted, 1 free");
  assert_int_equal(found(pool, count_from(100), 8), 4); /* a refusal evicts nothing */
  for (int32_t i = 0; i < 4; i++) {
    EXPECT_OK(attn_pool_release(pool, taken[i], &why));
  }
  close_pool(pool);
}

/* A parent that was evicted and computed again is another block: what followed the old one is not found through it. */
static void test_orphans(void **state) {
  (void)state;
  attn_pool *pool = make_pool(5, 0);
  int32_t taken[3];
  append(pool, 0, 8, count_from(1));
  EXPECT_OK(attn_pool_commit(pool, 0, &why));
  int32_t second = block_at(pool, 0, 1);
  EXPECT_OK(attn_pool_retain(pool, second, &why));
  EXPECT_OK(attn_pool_free_seq(pool, 0, &why));
  EXPECT_OK(attn_pool_allocate(pool, 3, taken, &why));
  assert_int_equal(info_of(pool).evictions, 1);
  assert_int_equal(found(pool, count_from(1), 8), 0);
  for (int32_t i = 0; i < 3; i++) {
    EXPECT_OK(attn_pool_release(pool, taken[i], &why));
  }
  serve(pool, 0, 4, count_from(1));
  assert_int_equal(found(pool, count_from(1), 8), 4);
  EXPECT_OK(attn_pool_release(pool, second, &why));
  assert_int_equal(found(pool, count_from(1), 8), 4);
  serve(pool, 0, 8, count_from(1));
  assert_int_equal(found(pool, count_from(1), 8), 8);
  close_pool(pool);
}

static void test_preempt_and_resume(void **state) {
  (void)state;
  attn_pool *pool = make_pool(6, 0);
  int64_t slots[8];
  append(pool, 0, 10, count_from(1));
  EXPECT_OK(attn_pool_commit(pool, 0, &why));
  append(pool, 1, 8, count_from(500));
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, 1, count_from(508), slots, NULL, &why), ATTN_E_FULL, "1 blocks wanted");
  EXPECT_OK(attn_pool_free_seq(pool, 0, &why)); /* preempted: one block free, two kept */
  append(pool, 1, 1, count_from(508));
  assert_int_equal(info_of(pool).evictions, 0);
  EXPECT_OK(attn_pool_free_seq(pool, 1, &why));
  int32_t reused = 0;
  EXPECT_OK(attn_pool_reuse_prefix(pool, 0, count_from(1), 10, &reused, &why));
  assert_int_equal(reused, 8);
  append(pool, 0, 2, count_from(9));
  assert_int_equal(attn_pool_seq_len(pool, 0), 10);
  close_pool(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_refusals),           cmocka_unit_test(test_sizes),           cmocka_unit_test(test_found),
      cmocka_unit_test(test_unknown_tokens),     cmocka_unit_test(test_forks_are_found), cmocka_unit_test(test_twins),
      cmocka_unit_test(test_forced_collisions),  cmocka_unit_test(test_eviction_order),  cmocka_unit_test(test_orphans),
      cmocka_unit_test(test_preempt_and_resume),
  };
  return cmocka_run_group_tests_name("pool_prefix", tests, NULL, NULL);
}
