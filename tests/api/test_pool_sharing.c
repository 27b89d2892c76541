/* SPDX-License-Identifier: Apache-2.0 */
/* test_pool_sharing.c: sequences that share blocks: every documented status of attn_pool_fork(), attn_pool_append_cow()
 * and attn_pool_get_info(), and a broken entry in each of the pool's books, found by attn_pool_check().
 */
#include "harness.h"

#include <string.h>

#include "api/pool_impl.h"

#define BLOCK 4
#define WIDTH 4

static attn_pool *make_pool(int32_t num_blocks, int32_t prefix_cache) {
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  attn_pool *pool = NULL;
  options.num_blocks = num_blocks;
  options.block_size = BLOCK;
  options.max_seqs = 4;
  options.max_seq_blocks = WIDTH;
  options.prefix_cache = prefix_cache;
  EXPECT_OK(attn_pool_create(&options, &pool, &why));
  return pool;
}

static void close_pool(attn_pool *pool) {
  EXPECT_OK(attn_pool_check(pool, &why));
  attn_pool_destroy(pool);
}

static attn_pool_copies make_copies(int64_t *map, int32_t capacity) {
  attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  copies.capacity = capacity;
  copies.block_map = map;
  return copies;
}

static int32_t block_at(const attn_pool *pool, int32_t seq, int32_t column) {
  int32_t row[WIDTH];
  EXPECT_OK(attn_pool_block_table(pool, 1, &seq, WIDTH, row, NULL, &why));
  return row[column];
}

static attn_pool_info info_of(const attn_pool *pool) {
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  EXPECT_OK(attn_pool_get_info(pool, &info, &why));
  return info;
}

/* ---- Forks ------------------------------------------------------------------------------------------------------- */

static void test_fork(void **state) {
  (void)state;
  attn_pool *pool = make_pool(8, 0);
  int64_t slots[8];
  EXPECT_STATUS(attn_pool_fork(NULL, 0, 1, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_fork(pool, 4, 1, &why), ATTN_E_INDEX, "parent: 4");
  EXPECT_STATUS(attn_pool_fork(pool, -1, 1, &why), ATTN_E_INDEX, "parent: -1");
  EXPECT_STATUS(attn_pool_fork(pool, 0, 4, &why), ATTN_E_INDEX, "child: 4");
  EXPECT_OK(attn_pool_fork(pool, 0, 1, &why)); /* nothing from nothing */
  assert_int_equal(attn_pool_seq_len(pool, 1), 0);
  EXPECT_OK(attn_pool_append(pool, 0, 6, slots, &why));
  EXPECT_STATUS(attn_pool_fork(pool, 0, 0, &why), ATTN_E_STATE, "child: 0 has 6 tokens");
  EXPECT_OK(attn_pool_fork(pool, 0, 1, &why));
  EXPECT_STATUS(attn_pool_fork(pool, 0, 1, &why), ATTN_E_STATE, "child: 1 has 6 tokens");
  assert_int_equal(attn_pool_seq_len(pool, 1), 6);
  assert_int_equal(attn_pool_num_used(pool), 2);
  assert_int_equal(info_of(pool).shared, 2);
  for (int32_t column = 0; column < 2; column++) {
    assert_int_equal(block_at(pool, 1, column), block_at(pool, 0, column));
    assert_int_equal(attn_pool_references(pool, block_at(pool, 0, column)), 2);
  }
  EXPECT_OK(attn_pool_check(pool, &why));
  EXPECT_OK(attn_pool_free_seq(pool, 0, &why));
  assert_int_equal(attn_pool_num_used(pool), 2);
  assert_int_equal(info_of(pool).shared, 0);
  EXPECT_OK(attn_pool_free_seq(pool, 1, &why));
  assert_int_equal(attn_pool_num_used(pool), 0);
  close_pool(pool);
}

static void test_fork_counts_no_further(void **state) {
  (void)state;
  attn_pool *pool = make_pool(8, 0);
  int64_t slots[6];
  EXPECT_OK(attn_pool_append(pool, 0, 6, slots, &why));
  int32_t last = block_at(pool, 0, 1);
  pool->references[last] = INT32_MAX;
  EXPECT_STATUS(attn_pool_fork(pool, 0, 1, &why), ATTN_E_INDEX, "2147483647 references");
  EXPECT_STATUS(attn_pool_retain(pool, last, &why), ATTN_E_INDEX, "2147483647 references");
  pool->references[last] = 1;
  assert_int_equal(attn_pool_references(pool, block_at(pool, 0, 0)), 1);
  /* a caller who releases a sequence's block: the fork would revive what is free */
  EXPECT_OK(attn_pool_release(pool, last, &why));
  EXPECT_STATUS(attn_pool_fork(pool, 0, 1, &why), ATTN_E_INDEX, "0 references");
  assert_int_equal(attn_pool_seq_len(pool, 1), 0);
  EXPECT_OK(attn_pool_free_seq(pool, 0, &why));
  close_pool(pool);
}

/* ---- Copy on write ----------------------------------------------------------------------------------------------- */

static void test_append_copies(void **state) {
  (void)state;
  attn_pool *pool = make_pool(8, 0);
  int64_t slots[4];
  int64_t map[6] = {-7, -7, -7, -7, -7, -7};
  attn_pool_copies copies = make_copies(map, 3);
  EXPECT_OK(attn_pool_append(pool, 0, 2, slots, &why));
  EXPECT_OK(attn_pool_append(pool, 0, 4, slots, &why));
  EXPECT_OK(attn_pool_fork(pool, 0, 1, &why));
  EXPECT_OK(attn_pool_fork(pool, 1, 2, &why));
  int32_t shared = block_at(pool, 0, 1);
  assert_int_equal(attn_pool_blocks_needed(pool, 1, 0), 0);
  assert_int_equal(attn_pool_blocks_needed(pool, 1, 1), 1);
  assert_int_equal(attn_pool_blocks_needed(pool, 1, 3), 2);
  /* the plain call, and no list: refused, and the call to use is named */
  EXPECT_STATUS(attn_pool_append(pool, 1, 1, slots, &why), ATTN_E_STATE, "attn_pool_append_cow");
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, 1, NULL, slots, NULL, &why), ATTN_E_STATE, "attn_pool_append_cow");
  EXPECT_OK(attn_pool_append(pool, 1, 0, NULL, &why));
  assert_int_equal(attn_pool_seq_len(pool, 1), 6);
  /* the first two who write get blocks of their own, the last one has the old block to itself */
  EXPECT_OK(attn_pool_append_cow(pool, 1, 1, NULL, slots, &copies, &why));
  assert_int_equal(slots[0], (int64_t)block_at(pool, 1, 1) * BLOCK + 2);
  EXPECT_OK(attn_pool_append_cow(pool, 0, 1, NULL, slots, &copies, &why));
  assert_int_equal(copies.count, 2);
  EXPECT_OK(attn_pool_append(pool, 2, 1, slots, &why));
  EXPECT_OK(attn_pool_append(pool, 1, 1, slots, &why));
  EXPECT_OK(attn_pool_append_cow(pool, 1, 1, NULL, slots, &copies, &why)); /* a block boundary: nothing to copy */
  assert_int_equal(copies.count, 2);
  assert_int_equal(map[0], shared);
  assert_int_equal(map[1], block_at(pool, 1, 1));
  assert_int_equal(map[2], shared);
  assert_int_equal(map[3], block_at(pool, 0, 1));
  assert_int_equal(map[4], -7);
  assert_int_equal(block_at(pool, 2, 1), shared);
  assert_int_equal(block_at(pool, 0, 0), block_at(pool, 2, 0));
  assert_int_equal(info_of(pool).copies, 2);
  assert_int_equal(info_of(pool).shared, 1);
  assert_int_equal(attn_pool_references(pool, shared), 1);
  close_pool(pool);
}

/* References that the caller holds do not make a block shared: they are not sequences that will write. */
static void test_callers_references_do_not_copy(void **state) {
  (void)state;
  attn_pool *pool = make_pool(8, 0);
  int64_t slot = 0;
  EXPECT_OK(attn_pool_append(pool, 0, 1, &slot, &why));
  EXPECT_OK(attn_pool_retain(pool, block_at(pool, 0, 0), &why));
  EXPECT_OK(attn_pool_append(pool, 0, 1, &slot, &why));
  EXPECT_OK(attn_pool_release(pool, block_at(pool, 0, 0), &why));
  close_pool(pool);
}

static void test_append_cow_refusals(void **state) {
  (void)state;
  attn_pool *pool = make_pool(4, 0);
  const int32_t tokens[] = {1, 2, 3};
  int64_t slots[16];
  int64_t map[4];
  memset(slots, 0x55, sizeof slots);
  memset(map, 0x55, sizeof map);
  attn_pool_copies copies = make_copies(map, 1);
  EXPECT_OK(attn_pool_append(pool, 0, 6, slots + 8, &why));
  EXPECT_OK(attn_pool_fork(pool, 0, 1, &why));
  EXPECT_STATUS(attn_pool_append_cow(NULL, 1, 1, NULL, slots, &copies, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, 1, NULL, NULL, &copies, &why), ATTN_E_NULL, "slot_mapping");
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, -1, NULL, slots, &copies, &why), ATTN_E_RANGE, "count: -1");
  EXPECT_STATUS(attn_pool_append_cow(pool, 4, 1, NULL, slots, &copies, &why), ATTN_E_INDEX, "seq: 4");
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, 11, NULL, slots, &copies, &why), ATTN_E_CAPACITY, "17 tokens");
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, 3, tokens, slots, &copies, &why), ATTN_E_STATE, "prefix_cache");
  copies.size = 1;
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, 1, NULL, slots, &copies, &why), ATTN_E_STRUCT_SIZE, "copies.size");
  copies = make_copies(NULL, 1);
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, 1, NULL, slots, &copies, &why), ATTN_E_NULL, "copies.block_map");
  copies = make_copies(map, -1);
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, 1, NULL, slots, &copies, &why), ATTN_E_RANGE, "capacity -1");
  copies = make_copies(map, 1);
  copies.count = -1;
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, 1, NULL, slots, &copies, &why), ATTN_E_RANGE, "count -1");
  copies.count = 2;
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, 1, NULL, slots, &copies, &why), ATTN_E_RANGE, "count 2");
  copies.count = 1;
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, 1, NULL, slots, &copies, &why), ATTN_E_CAPACITY, "copies.capacity: 1");
  copies = make_copies(NULL, 0);
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, 1, NULL, slots, &copies, &why), ATTN_E_CAPACITY, "copies.capacity: 0");
  /* one block is free: enough for the copy, not for the copy and one more */
  copies = make_copies(map, 1);
  EXPECT_STATUS(attn_pool_append_cow(pool, 1, 3, NULL, slots, &copies, &why), ATTN_E_FULL, "2 blocks wanted, 1 free");
  assert_int_equal(copies.count, 0);
  assert_true(all_bytes(map, sizeof map, 0x55));
  assert_true(all_bytes(slots, 8 * sizeof slots[0], 0x55));
  assert_int_equal(attn_pool_seq_len(pool, 1), 6);
  assert_int_equal(info_of(pool).copies, 0);
  EXPECT_OK(attn_pool_append_cow(pool, 1, 2, NULL, slots, &copies, &why));
  assert_int_equal(copies.count, 1);
  close_pool(pool);
}

static void test_info(void **state) {
  (void)state;
  attn_pool *pool = make_pool(8, 0);
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  EXPECT_STATUS(attn_pool_get_info(NULL, &info, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_get_info(pool, NULL, &why), ATTN_E_NULL, "info");
  info.size = 2;
  EXPECT_STATUS(attn_pool_get_info(pool, &info, &why), ATTN_E_STRUCT_SIZE, "info.size");
  info = info_of(pool);
  assert_int_equal(info.free, 7);
  assert_true(info.used == 0 && info.cached == 0 && info.shared == 0 && info.hits == 0 && info.evictions == 0);
  assert_true(info.copies == 0 && info.collisions == 0);
  close_pool(pool);
}

/* ---- The books --------------------------------------------------------------------------------------------------- */

/* One sequence with a shared block, one reusable block in use, two kept. */
static attn_pool *make_busy_pool(void) {
  static const int32_t tokens[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  attn_pool *pool = make_pool(12, 1);
  int64_t slots[12];
  int32_t reused = 0;
  EXPECT_OK(attn_pool_append_cow(pool, 0, 12, tokens, slots, NULL, &why));
  EXPECT_OK(attn_pool_commit(pool, 0, &why));
  EXPECT_OK(attn_pool_free_seq(pool, 0, &why));
  EXPECT_OK(attn_pool_reuse_prefix(pool, 1, tokens, 4, &reused, &why));
  EXPECT_OK(attn_pool_append(pool, 1, 2, slots, &why));
  EXPECT_OK(attn_pool_fork(pool, 1, 2, &why));
  EXPECT_OK(attn_pool_append(pool, 3, 9, slots, &why));
  EXPECT_OK(attn_pool_free_seq(pool, 3, &why));
  EXPECT_OK(attn_pool_check(pool, &why));
  return pool;
}

/* Break an int32, see that the check says so, repair it. */
static void expect_noticed(attn_pool *pool, int32_t *entry, int32_t value, const char *named) {
  int32_t right = *entry;
  *entry = value;
  EXPECT_STATUS(attn_pool_check(pool, &why), ATTN_E_INTERNAL, named);
  *entry = right;
  EXPECT_OK(attn_pool_check(pool, &why));
}

static void expect_noticed_64(attn_pool *pool, uint64_t *entry, uint64_t value, const char *named) {
  uint64_t right = *entry;
  *entry = value;
  EXPECT_STATUS(attn_pool_check(pool, &why), ATTN_E_INTERNAL, named);
  *entry = right;
  EXPECT_OK(attn_pool_check(pool, &why));
}

static void test_check_finds(void **state) {
  (void)state;
  attn_pool *pool = make_busy_pool();
  int32_t used = block_at(pool, 1, 0); /* reusable and shared */
  int32_t oldest = pool->nodes[0].newer;
  int32_t newest = pool->nodes[0].older;
  int32_t plain = block_at(pool, 1, 1);
  assert_true(oldest != 0 && oldest != newest);
  expect_noticed(pool, &pool->fresh, 99, "handed out");
  expect_noticed(pool, &pool->references[0], 1, "null block");
  expect_noticed(pool, &pool->references[used], 1, "references");
  expect_noticed(pool, &pool->references[oldest], 1, "kept for reuse");
  expect_noticed(pool, &pool->references[plain], -3, "references");
  expect_noticed(pool, &pool->holders[plain], 1, "table entries");
  expect_noticed(pool, &pool->num_shared, 1, "shared");
  expect_noticed(pool, &pool->num_cached, 1, "kept for reuse");
  expect_noticed(pool, &pool->stack[0], pool->stack[1], "second time");
  expect_noticed(pool, &pool->stack[0], oldest, "not reusable");
  expect_noticed(pool, &pool->stack[0], -5, "free list");
  expect_noticed(pool, &pool->lens[1], -1, "length -1");
  expect_noticed(pool, &pool->lens[1], 9, "column 2");
  expect_noticed(pool, &pool->tables[WIDTH], plain, "does not follow");
  close_pool(pool);
}

static void test_check_finds_reuse(void **state) {
  (void)state;
  attn_pool *pool = make_busy_pool();
  int32_t used = block_at(pool, 1, 0);
  int32_t oldest = pool->nodes[0].newer;
  int32_t newest = pool->nodes[0].older;
  attn_pool_node *node = &pool->nodes[oldest];
  int32_t *first = &pool->buckets[attn_pool_bucket(pool, node->hash)];
  expect_noticed(pool, &pool->known[1], 7, "the ids of 7");
  expect_noticed(pool, &pool->committed[1], 2, "2 reusable blocks");
  expect_noticed(pool, &pool->nodes[0].newer, newest, "kept for reuse");
  expect_noticed(pool, &pool->nodes[0].older, oldest, "kept for reuse");
  expect_noticed(pool, &node->newer, oldest, "kept for reuse");
  expect_noticed(pool, &node->chain_prev, newest, "not its own");
  expect_noticed(pool, &node->chain_next, oldest, "second time");
  expect_noticed(pool, &node->chain_next, 77, "outside the pool");
  expect_noticed(pool, first, 0, "reusable");
  expect_noticed(pool, attn_pool_tokens(pool, oldest), 1234, "not found by");
  expect_noticed_64(pool, &node->hash, node->hash + pool->num_buckets, "not found by");
  expect_noticed_64(pool, &node->hash, node->hash + 1, "not its own");
  expect_noticed_64(pool, &node->serial, 0, "not its own");
  expect_noticed_64(pool, &node->parent, node->serial, "not found by");
  expect_noticed_64(pool, &pool->last_serial, 0, "not found by");
  expect_noticed_64(pool, &pool->nodes[used].serial, 0, "not its own");
  close_pool(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fork),
      cmocka_unit_test(test_fork_counts_no_further),
      cmocka_unit_test(test_append_copies),
      cmocka_unit_test(test_callers_references_do_not_copy),
      cmocka_unit_test(test_append_cow_refusals),
      cmocka_unit_test(test_info),
      cmocka_unit_test(test_check_finds),
      cmocka_unit_test(test_check_finds_reuse),
  };
  return cmocka_run_group_tests_name("pool_sharing", tests, NULL, NULL);
}
