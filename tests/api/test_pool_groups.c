/* SPDX-License-Identifier: Apache-2.0 */
/* test_pool_groups.c: pools of several groups: every documented status of their calls, what one window and one prefix
 * do step by step, and a broken entry in each of the books that groups have, found by attn_pool_check().
 */
#include "harness.h"

#include <string.h>

#include "api/pool_impl.h"

#define WIDTH 24

/* A full group with blocks of 4 in two kernel blocks, one with a window of 5 keys and blocks of 2. */
static attn_pool *make_pool(int32_t num_blocks, int32_t prefix_cache) {
  attn_pool_group groups[2] = {ATTN_POOL_GROUP_INIT, ATTN_POOL_GROUP_INIT};
  attn_pool_groups_options options = ATTN_POOL_GROUPS_OPTIONS_INIT;
  attn_pool *pool = NULL;
  groups[0].block_size = 4;
  groups[0].kernel_block = 2;
  groups[1].block_size = 2;
  groups[1].window = 5;
  options.num_blocks = num_blocks;
  options.num_groups = 2;
  options.groups = groups;
  options.max_seqs = 3;
  options.max_seq_len = WIDTH;
  options.prefix_cache = prefix_cache;
  EXPECT_OK(attn_pool_create_groups(&options, &pool, &why));
  return pool;
}

static void close_pool(attn_pool *pool) {
  EXPECT_OK(attn_pool_check(pool, &why));
  attn_pool_destroy(pool);
}

static void expect_row(const attn_pool *pool, int32_t group, int32_t seq, int32_t count, const int32_t *wanted) {
  int32_t row[WIDTH];
  EXPECT_OK(attn_pool_group_table(pool, group, 1, &seq, WIDTH, row, NULL, &why));
  for (int32_t i = 0; i < WIDTH; i++) {
    CHECK(row[i] == (i < count ? wanted[i] : 0), "column %d of group %d: %d, wanted %d", (int)i, (int)group,
          (int)row[i], i < count ? (int)wanted[i] : 0);
  }
}

/* ---- Step by step ------------------------------------------------------------------------------------------------ */

/* One sequence grows, its window moves on, and what lies behind becomes another group's. */
static void test_window_moves(void **state) {
  (void)state;
  attn_pool *pool = make_pool(9, 0);
  int64_t slots[2][12];
  int32_t released = -1;
  attn_pool_group_info info = ATTN_POOL_GROUP_INFO_INIT;
  /* 9 tokens: 3 blocks of 4 and 5 of 2; ids are handed out from 1 on, group after group. */
  assert_int_equal(attn_pool_blocks_needed(pool, 0, 9), 8);
  EXPECT_OK(attn_pool_append_groups(pool, 0, 9, NULL, slots[0], 12, NULL, &why));
  expect_row(pool, 0, 0, 5, (const int32_t[]){2, 3, 4, 5, 6});
  expect_row(pool, 1, 0, 5, (const int32_t[]){4, 5, 6, 7, 8});
  assert_int_equal(slots[0][8], 3 * 4 + 0);
  assert_int_equal(slots[1][8], 8 * 2 + 0);
  assert_int_equal(slots[1][3], 5 * 2 + 1);
  EXPECT_STATUS(attn_pool_append_groups(pool, 0, 2, NULL, slots[0], 12, NULL, &why), ATTN_E_FULL,
                "1 blocks wanted, 0 free");
  /* Before any query is done position 0 may still ask: nothing goes. A query at 6 sees 2 to 6: block 4 (0, 1) goes. At
     7 it sees 3 to 7: block 5 (2, 3) is seen in part. At 9, the next to come, 5 to 9: block 5 goes, 6 (4, 5) stays. */
  EXPECT_OK(attn_pool_trim(pool, 0, 0, &released, &why));
  assert_int_equal(released, 0);
  EXPECT_OK(attn_pool_trim(pool, 0, 5, &released, &why));
  assert_int_equal(released, 0);
  EXPECT_OK(attn_pool_trim(pool, 0, 6, &released, &why));
  assert_int_equal(released, 1);
  EXPECT_OK(attn_pool_trim(pool, 0, 7, &released, &why));
  assert_int_equal(released, 0);
  EXPECT_OK(attn_pool_trim(pool, 0, 9, NULL, &why));
  EXPECT_OK(attn_pool_trim(pool, 0, 2, &released, &why)); /* going back changes nothing */
  assert_int_equal(released, 0);
  expect_row(pool, 1, 0, 5, (const int32_t[]){0, 0, 6, 7, 8});
  expect_row(pool, 0, 0, 5, (const int32_t[]){2, 3, 4, 5, 6});
  EXPECT_OK(attn_pool_get_group(pool, 1, &info, &why));
  assert_int_equal(info.num_groups, 2);
  assert_int_equal(info.block_size, 2);
  assert_int_equal(info.kernel_block, 2);
  assert_int_equal(info.window, 5);
  assert_int_equal(info.table_width, WIDTH / 2);
  assert_int_equal(info.entries, 3);
  assert_int_equal(info.trimmed, 2);
  EXPECT_OK(attn_pool_get_group(pool, 0, &info, &why));
  assert_int_equal(info.kernel_block, 2);
  assert_int_equal(info.table_width, WIDTH / 2);
  assert_int_equal(info.entries, 3);
  assert_int_equal(info.trimmed, 0);
  /* 5 and 4 serve the next blocks of both groups: tokens 9 to 12 end block 8 and fill two more of 2, and one of 4. */
  EXPECT_OK(attn_pool_append_groups(pool, 0, 3, NULL, slots[0], 12, NULL, &why));
  expect_row(pool, 1, 0, 6, (const int32_t[]){0, 0, 6, 7, 8, 5});
  EXPECT_OK(attn_pool_trim(pool, 0, 12, &released, &why));
  assert_int_equal(released, 2); /* at 12 it sees 8 to 12 */
  EXPECT_OK(attn_pool_append_groups(pool, 0, 1, NULL, slots[0], 12, NULL, &why));
  expect_row(pool, 0, 0, 7, (const int32_t[]){2, 3, 4, 5, 6, 7, 14}); /* block 7, the window's until now */
  EXPECT_OK(attn_pool_free_seq(pool, 0, &why));
  assert_int_equal(attn_pool_num_free(pool), 8);
  close_pool(pool);
}

/* Two go on from one: both groups copy their last block, and trimming one leaves the other what it needs. */
static void test_fork_and_trim(void **state) {
  (void)state;
  attn_pool *pool = make_pool(20, 0);
  int64_t slots[2][12];
  int64_t map[4];
  attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  copies.capacity = 1;
  copies.block_map = map;
  EXPECT_OK(attn_pool_append_groups(pool, 0, 9, NULL, slots[0], 12, NULL, &why));
  EXPECT_OK(attn_pool_trim(pool, 0, 9, NULL, &why));
  EXPECT_OK(attn_pool_fork(pool, 0, 2, &why));
  expect_row(pool, 1, 2, 5, (const int32_t[]){0, 0, 6, 7, 8});
  assert_int_equal(attn_pool_blocks_needed(pool, 2, 1), 2);
  EXPECT_STATUS(attn_pool_append_groups(pool, 2, 1, NULL, slots[0], 12, NULL, &why), ATTN_E_STATE, "block 3");
  EXPECT_STATUS(attn_pool_append_groups(pool, 2, 1, NULL, slots[0], 12, &copies, &why), ATTN_E_CAPACITY,
                "copies.capacity: 1");
  assert_int_equal(copies.count, 0);
  assert_int_equal(attn_pool_seq_len(pool, 2), 9);
  copies.capacity = 2;
  EXPECT_OK(attn_pool_append_groups(pool, 2, 1, NULL, slots[0], 12, &copies, &why));
  assert_int_equal(copies.count, 2);
  assert_int_equal(map[0], 3);
  assert_int_equal(map[2], 8);
  assert_int_equal(slots[0][0], map[1] * 4 + 1);
  assert_int_equal(slots[1][0], map[3] * 2 + 1);
  EXPECT_OK(attn_pool_append_groups(pool, 0, 4, NULL, slots[0], 12, NULL, &why)); /* its tail is its own again */
  EXPECT_OK(attn_pool_trim(pool, 0, 13, NULL, &why));
  assert_int_equal(attn_pool_references(pool, 6), 1); /* the child sees 6, 7 and its copy */
  assert_int_equal(attn_pool_references(pool, 7), 1);
  EXPECT_OK(attn_pool_get_info(pool, &info, &why));
  assert_int_equal(info.copies, 2);
  assert_int_equal(info.shared, 2); /* the first two blocks of 4 */
  EXPECT_OK(attn_pool_free_seq(pool, 2, &why));
  assert_int_equal(attn_pool_references(pool, 6), 0);
  close_pool(pool);
}

/* A start needs of a window what is seen behind it, and of the others all. */
static void test_start_with_window(void **state) {
  (void)state;
  attn_pool *pool = make_pool(40, 1);
  int32_t tokens[WIDTH];
  int32_t reused = -1;
  int64_t slots[2][WIDTH];
  for (int i = 0; i < WIDTH; i++) {
    tokens[i] = 100 + i;
  }
  /* 13 tokens computed and committed, the window trimmed: of blocks of 2 the first 4 are kept (positions 0 to 7), the
     rest in use. */
  EXPECT_OK(attn_pool_append_groups(pool, 0, 13, tokens, slots[0], WIDTH, NULL, &why));
  EXPECT_OK(attn_pool_commit(pool, 0, &why));
  EXPECT_OK(attn_pool_trim(pool, 0, 13, NULL, &why));
  int32_t full[2 * 3] = {2, 3, 4, 5, 6, 7};
  int32_t window[6] = {0, 0, 0, 0, 9, 10};
  /* The start ends at 12, where a query sees 8 to 12: blocks of positions 8 to 11. */
  EXPECT_OK(attn_pool_reuse_prefix(pool, 1, tokens, WIDTH, &reused, &why));
  assert_int_equal(reused, 12);
  expect_row(pool, 0, 1, 6, full);
  expect_row(pool, 1, 1, 6, window);
  EXPECT_OK(attn_pool_check(pool, &why));
  EXPECT_OK(attn_pool_append_groups(pool, 1, 2, tokens + 12, slots[0], WIDTH, NULL, &why));
  EXPECT_OK(attn_pool_free_seq(pool, 1, &why));
  /* A shorter prompt: at 8 it sees 4 to 8, blocks that nobody holds but that are kept. */
  EXPECT_OK(attn_pool_reuse_prefix(pool, 1, tokens, 11, &reused, &why));
  assert_int_equal(reused, 8);
  expect_row(pool, 1, 1, 4, (const int32_t[]){0, 0, 7, 8});
  EXPECT_OK(attn_pool_free_seq(pool, 1, &why));
  /* Everything kept is evicted: block 7 (positions 4 and 5) is needed at 8, not at 12. */
  int32_t rest[40];
  int32_t free = attn_pool_num_free(pool);
  EXPECT_OK(attn_pool_allocate(pool, free, rest, &why));
  EXPECT_OK(attn_pool_reuse_prefix(pool, 1, tokens, 11, &reused, &why));
  assert_int_equal(reused, 0);
  assert_int_equal(attn_pool_seq_len(pool, 1), 0);
  expect_row(pool, 0, 1, 0, NULL);
  EXPECT_OK(attn_pool_reuse_prefix(pool, 1, tokens, WIDTH, &reused, &why));
  assert_int_equal(reused, 12);
  for (int32_t i = 0; i < free; i++) {
    EXPECT_OK(attn_pool_release(pool, rest[i], &why));
  }
  close_pool(pool);
}

/* Trimmed before it was committed: that block is gone, and the rest is found all the same. */
static void test_trim_before_commit(void **state) {
  (void)state;
  attn_pool *pool = make_pool(40, 1);
  int32_t tokens[WIDTH] = {0};
  int32_t reused = -1;
  int64_t slots[2][WIDTH];
  EXPECT_OK(attn_pool_append_groups(pool, 0, 16, tokens, slots[0], WIDTH, NULL, &why));
  EXPECT_OK(attn_pool_trim(pool, 0, 12, NULL, &why));
  EXPECT_OK(attn_pool_commit(pool, 0, &why));
  EXPECT_OK(attn_pool_free_seq(pool, 0, &why));
  EXPECT_OK(attn_pool_reuse_prefix(pool, 1, tokens, 11, &reused, &why)); /* at 8 it would see positions 4 to 7 */
  assert_int_equal(reused, 0);
  EXPECT_OK(attn_pool_reuse_prefix(pool, 1, tokens, WIDTH, &reused, &why));
  assert_int_equal(reused, 16);
  close_pool(pool);
}

/* A window alone: its blocks from the first on are what tokens are compared by, and those behind may wait unused. */
static void test_every_group_has_a_window(void **state) {
  (void)state;
  attn_pool_group group = ATTN_POOL_GROUP_INIT;
  attn_pool_groups_options options = ATTN_POOL_GROUPS_OPTIONS_INIT;
  attn_pool *pool = NULL;
  int32_t tokens[WIDTH] = {3, 1, 4};
  int64_t slots[WIDTH];
  int32_t reused = -1;
  group.block_size = 2;
  group.window = 3;
  options.num_blocks = 13;
  options.num_groups = 1;
  options.groups = &group;
  options.max_seqs = 2;
  options.max_seq_len = WIDTH;
  options.prefix_cache = 1;
  EXPECT_OK(attn_pool_create_groups(&options, &pool, &why));
  EXPECT_OK(attn_pool_append_cow(pool, 0, 10, tokens, slots, NULL, &why));
  EXPECT_OK(attn_pool_commit(pool, 0, &why));
  EXPECT_OK(attn_pool_trim(pool, 0, 10, NULL, &why));
  EXPECT_OK(attn_pool_check(pool, &why));
  EXPECT_OK(attn_pool_reuse_prefix(pool, 1, tokens, 9, &reused, &why));
  assert_int_equal(reused, 8); /* it sees 6, 7 and itself: one block in use, the first three stay kept */
  assert_int_equal(attn_pool_num_used(pool), 2);
  EXPECT_OK(attn_pool_append(pool, 1, 3, slots, &why));
  EXPECT_OK(attn_pool_commit(pool, 1, &why));
  EXPECT_OK(attn_pool_free_seq(pool, 1, &why));
  EXPECT_OK(attn_pool_append(pool, 1, 20, slots, &why)); /* evicts them */
  EXPECT_OK(attn_pool_free_seq(pool, 1, &why));
  EXPECT_OK(attn_pool_reuse_prefix(pool, 1, tokens, 9, &reused, &why));
  assert_int_equal(reused, 0);
  close_pool(pool);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void test_create_refusals(void **state) {
  (void)state;
  attn_pool_group groups[2] = {ATTN_POOL_GROUP_INIT, ATTN_POOL_GROUP_INIT};
  attn_pool_groups_options options = ATTN_POOL_GROUPS_OPTIONS_INIT;
  attn_pool *pool = NULL;
  groups[0].block_size = groups[1].block_size = 6;
  options.num_blocks = options.num_groups = 2;
  options.groups = groups;
  options.max_seqs = options.max_seq_len = 4;
  EXPECT_STATUS(attn_pool_create_groups(NULL, &pool, &why), ATTN_E_NULL, "options");
  EXPECT_STATUS(attn_pool_create_groups(&options, NULL, &why), ATTN_E_NULL, "pool");
#define WRONG(field, value, status, named)                                                                             \
  do {                                                                                                                 \
    attn_pool_groups_options kept = options;                                                                           \
    attn_pool_group kept_group = groups[1];                                                                            \
    (field) = (value);                                                                                                 \
    EXPECT_STATUS(attn_pool_create_groups(&options, &pool, &why), status, named);                                      \
    assert_null(pool);                                                                                                 \
    options = kept;                                                                                                    \
    groups[1] = kept_group;                                                                                            \
  } while (0)
  WRONG(options.size, 3, ATTN_E_STRUCT_SIZE, "options.size: 3");
  WRONG(options.num_blocks, 1, ATTN_E_RANGE, "options.num_blocks: 1");
  WRONG(options.num_groups, 0, ATTN_E_RANGE, "options.num_groups: 0, accepted: 1 to 64");
  WRONG(options.num_groups, 65, ATTN_E_RANGE, "options.num_groups: 65");
  WRONG(options.groups, NULL, ATTN_E_NULL, "options.groups");
  WRONG(options.max_seqs, 0, ATTN_E_RANGE, "options.max_seqs: 0");
  WRONG(options.max_seq_len, -4, ATTN_E_RANGE, "options.max_seq_len: -4");
  WRONG(options.prefix_cache, 2, ATTN_E_RANGE, "options.prefix_cache: 2");
  WRONG(options.hash_mask, 2, ATTN_E_RANGE, "options.hash_mask: 2");
  WRONG(groups[1].size, 4, ATTN_E_STRUCT_SIZE, "options.groups[1].size: 4");
  WRONG(groups[1].block_size, 0, ATTN_E_RANGE, "options.groups[1].block_size: 0");
  WRONG(groups[1].kernel_block, 4, ATTN_E_RANGE, "options.groups[1].kernel_block: 4, accepted: 0 or a divisor of 6");
  WRONG(groups[1].kernel_block, -2, ATTN_E_RANGE, "options.groups[1].kernel_block: -2");
  WRONG(groups[1].kernel_block, 12, ATTN_E_RANGE, "options.groups[1].kernel_block: 12");
  WRONG(groups[1].window, -1, ATTN_E_RANGE, "options.groups[1].window: -1");
  groups[1].kernel_block = 1;
  WRONG(options.num_blocks, INT32_MAX / 6 + 1, ATTN_E_OVERFLOW, "options.groups[1]: 357913942 blocks of 6");
  groups[0].block_size = groups[1].block_size = groups[1].kernel_block = 1;
  options.num_blocks = options.max_seqs = options.max_seq_len = INT32_MAX;
  EXPECT_STATUS(attn_pool_create_groups(&options, &pool, &why), ATTN_E_OVERFLOW, "max_seq_len");
  assert_null(pool);
}

static void test_call_refusals(void **state) {
  (void)state;
  attn_pool *pool = make_pool(30, 1);
  attn_pool_group_info info = ATTN_POOL_GROUP_INFO_INIT;
  attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  const int32_t seq = 0;
  const int32_t bad_seq = 3;
  int32_t tokens[4] = {1, 2, 3, 4};
  int32_t row[WIDTH];
  int32_t released = -7;
  int64_t slots[8];
  EXPECT_STATUS(attn_pool_append(pool, 0, 1, slots, &why), ATTN_E_STATE, "attn_pool_append_groups");
  EXPECT_STATUS(attn_pool_append_cow(pool, 0, 1, NULL, slots, NULL, &why), ATTN_E_STATE, "attn_pool_append_groups");
  EXPECT_STATUS(attn_pool_block_table(pool, 1, &seq, WIDTH, row, NULL, &why), ATTN_E_STATE, "attn_pool_group_table");
  EXPECT_STATUS(attn_pool_append_groups(NULL, 0, 1, NULL, slots, 4, NULL, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_append_groups(pool, 0, 1, NULL, NULL, 4, NULL, &why), ATTN_E_NULL, "slot_mapping");
  EXPECT_STATUS(attn_pool_append_groups(pool, 0, -1, NULL, slots, 4, NULL, &why), ATTN_E_RANGE, "count: -1");
  EXPECT_STATUS(attn_pool_append_groups(pool, 0, 4, NULL, slots, 3, NULL, &why), ATTN_E_RANGE, "group_stride: 3");
  EXPECT_STATUS(attn_pool_append_groups(pool, 3, 1, NULL, slots, 4, NULL, &why), ATTN_E_INDEX, "seq: 3");
  EXPECT_STATUS(attn_pool_append_groups(pool, 0, WIDTH + 1, NULL, slots, 99, NULL, &why), ATTN_E_CAPACITY,
                "25 tokens, accepted: up to 24 (max_seq_len)");
  copies.capacity = -1;
  EXPECT_STATUS(attn_pool_append_groups(pool, 0, 1, NULL, slots, 4, &copies, &why), ATTN_E_RANGE, "copies");
  copies.capacity = 1;
  EXPECT_STATUS(attn_pool_append_groups(pool, 0, 1, NULL, slots, 4, &copies, &why), ATTN_E_NULL, "block_map");
  copies.size = 2;
  EXPECT_STATUS(attn_pool_append_groups(pool, 0, 1, NULL, slots, 4, &copies, &why), ATTN_E_STRUCT_SIZE, "copies.size");
  EXPECT_OK(attn_pool_append_groups(pool, 0, 0, NULL, NULL, 0, NULL, &why));
  EXPECT_OK(attn_pool_append_groups(pool, 0, 4, tokens, slots, 4, NULL, &why));
  EXPECT_STATUS(attn_pool_trim(NULL, 0, 0, &released, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_trim(pool, -1, 0, &released, &why), ATTN_E_INDEX, "seq: -1");
  EXPECT_STATUS(attn_pool_trim(pool, 0, 5, &released, &why), ATTN_E_RANGE, "computed: 5, accepted: 0 to 4");
  EXPECT_STATUS(attn_pool_trim(pool, 0, -1, &released, &why), ATTN_E_RANGE, "computed: -1");
  assert_int_equal(released, -7);
  memset(row, 0x5A, sizeof row);
  EXPECT_STATUS(attn_pool_group_table(NULL, 0, 1, &seq, WIDTH, row, NULL, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_group_table(pool, 2, 1, &seq, WIDTH, row, NULL, &why), ATTN_E_INDEX, "group: 2");
  EXPECT_STATUS(attn_pool_group_table(pool, -1, 1, &seq, WIDTH, row, NULL, &why), ATTN_E_INDEX, "group: -1");
  EXPECT_STATUS(attn_pool_group_table(pool, 0, 1, NULL, WIDTH, row, NULL, &why), ATTN_E_NULL, "seqs");
  EXPECT_STATUS(attn_pool_group_table(pool, 0, 1, &seq, WIDTH, NULL, NULL, &why), ATTN_E_NULL, "block_table");
  EXPECT_STATUS(attn_pool_group_table(pool, 0, -1, &seq, WIDTH, row, NULL, &why), ATTN_E_RANGE, "num_seqs: -1");
  EXPECT_STATUS(attn_pool_group_table(pool, 0, 1, &seq, -1, row, NULL, &why), ATTN_E_RANGE, "width: -1");
  EXPECT_STATUS(attn_pool_group_table(pool, 0, 1, &bad_seq, WIDTH, row, NULL, &why), ATTN_E_INDEX, "seqs[0]: 3");
  EXPECT_STATUS(attn_pool_group_table(pool, 0, 1, &seq, 1, row, NULL, &why), ATTN_E_SHAPE, "width: 1, accepted: 2");
  assert_true(all_bytes(row, sizeof row, 0x5A));
  EXPECT_STATUS(attn_pool_get_group(NULL, 0, &info, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_get_group(pool, 0, NULL, &why), ATTN_E_NULL, "info");
  EXPECT_STATUS(attn_pool_get_group(pool, 2, &info, &why), ATTN_E_INDEX, "group: 2");
  info.size = 8;
  EXPECT_STATUS(attn_pool_get_group(pool, 0, &info, &why), ATTN_E_STRUCT_SIZE, "info.size: 8");
  close_pool(pool);
  pool = make_pool(30, 0);
  EXPECT_STATUS(attn_pool_append_groups(pool, 0, 1, tokens, slots, 4, NULL, &why), ATTN_E_STATE, "prefix_cache");
  close_pool(pool);
}

/* ---- The books --------------------------------------------------------------------------------------------------- */

static void expect_noticed(attn_pool *pool, int32_t *entry, int32_t value, const char *named) {
  int32_t right = *entry;
  *entry = value;
  EXPECT_STATUS(attn_pool_check(pool, &why), ATTN_E_INTERNAL, named);
  *entry = right;
  EXPECT_OK(attn_pool_check(pool, &why));
}

static void test_check_finds(void **state) {
  (void)state;
  attn_pool *pool = make_pool(40, 1);
  int32_t tokens[WIDTH] = {0};
  int64_t slots[2][WIDTH];
  EXPECT_OK(attn_pool_append_groups(pool, 0, 13, tokens, slots[0], WIDTH, NULL, &why));
  EXPECT_OK(attn_pool_commit(pool, 0, &why));
  EXPECT_OK(attn_pool_trim(pool, 0, 13, NULL, &why));
  int32_t *window = attn_pool_row(pool, 0, &pool->lanes[1]);
  expect_noticed(pool, &pool->trimmed[1], 3, "seq 0 has block 0 in column 3 of group 1");
  expect_noticed(pool, &pool->trimmed[1], 5, "5 columns of group 1 behind window 5 at length 13");
  expect_noticed(pool, &pool->trimmed[1], -1, "-1 columns of group 1 behind");
  expect_noticed(pool, &pool->trimmed[0], 1, "1 columns of group 0 behind window 0");
  expect_noticed(pool, &window[5], 0, "in column 5 of group 1, its length needs columns 4 to 6");
  expect_noticed(pool, &window[7], 9, "seq 0 has block 9 in column 7 of group 1");
  expect_noticed(pool, &window[4], window[5], "it is reusable in column 5 of group 1");
  expect_noticed(pool, &pool->nodes[window[4]].column, 3, "not found by");
  expect_noticed(pool, &pool->nodes[window[4]].group, 0, "not found by");
  expect_noticed(pool, &pool->nodes[window[4]].group, 2, "not found by");
  expect_noticed(pool, &pool->nodes[window[4]].group, -1, "not found by");
  uint64_t serial = pool->serials[0];
  pool->serials[0] = 1;
  EXPECT_STATUS(attn_pool_check(pool, &why), ATTN_E_INTERNAL, "the serial of the last is 1");
  pool->serials[0] = serial;
  pool->serials[2] = 1;
  EXPECT_STATUS(attn_pool_check(pool, &why), ATTN_E_INTERNAL, "seq 2 has 0 reusable blocks");
  pool->serials[2] = 0;
  close_pool(pool);
}

/* A caller who drops a reference that is a sequence's breaks the books, and nothing else: here one group takes the
   block that is the last of another group's row. */
static void test_foreign_release(void **state) {
  (void)state;
  attn_pool *pool = make_pool(9, 0);
  int64_t slots[2][12];
  EXPECT_OK(attn_pool_append_groups(pool, 0, 5, NULL, slots[0], 12, NULL, &why));
  expect_row(pool, 1, 0, 3, (const int32_t[]){3, 4, 5});
  EXPECT_OK(attn_pool_release(pool, 5, &why));
  EXPECT_OK(attn_pool_append_groups(pool, 0, 4, NULL, slots[0], 12, NULL, &why));
  expect_row(pool, 0, 0, 5, (const int32_t[]){2, 3, 4, 5, 10});
  EXPECT_STATUS(attn_pool_check(pool, &why), ATTN_E_INTERNAL, "block 5");
  EXPECT_OK(attn_pool_free_seq(pool, 0, &why));
  close_pool(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_window_moves),
      cmocka_unit_test(test_fork_and_trim),
      cmocka_unit_test(test_start_with_window),
      cmocka_unit_test(test_trim_before_commit),
      cmocka_unit_test(test_every_group_has_a_window),
      cmocka_unit_test(test_create_refusals),
      cmocka_unit_test(test_call_refusals),
      cmocka_unit_test(test_check_finds),
      cmocka_unit_test(test_foreign_release),
  };
  return cmocka_run_group_tests_name("pool_groups", tests, NULL, NULL);
}
