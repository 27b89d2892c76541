/* SPDX-License-Identifier: Apache-2.0 */
/* test_pool.c: the block manager: every documented status of every call, the books after each step of random workloads
 * against a plain model. test_pool_sharing.c, test_pool_prefix.c and test_pool_model.c are about shared blocks,
 * test_pool_cases.c goes on to the attention that reads the tables.
 */
#include "harness.h"

#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POOL_TEST_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(POOL_TEST_ASAN)
/* Some tests ask for more than there is: calloc then has to answer NULL, as it does without the sanitizer. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
  return "allocator_may_return_null=1";
}
#endif

static attn_pool *make_pool(int32_t num_blocks, int32_t block_size, int32_t max_seqs, int32_t max_seq_blocks) {
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  attn_pool *pool = NULL;
  options.num_blocks = num_blocks;
  options.block_size = block_size;
  options.max_seqs = max_seqs;
  options.max_seq_blocks = max_seq_blocks;
  EXPECT_OK(attn_pool_create(&options, &pool, &why));
  assert_non_null(pool);
  EXPECT_OK(attn_pool_check(pool, &why));
  return pool;
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static void expect_refused_options(int32_t num_blocks, int32_t block_size, int32_t max_seqs, int32_t max_seq_blocks,
                                   attn_status status, const char *named) {
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  attn_pool *pool = NULL;
  options.num_blocks = num_blocks;
  options.block_size = block_size;
  options.max_seqs = max_seqs;
  options.max_seq_blocks = max_seq_blocks;
  EXPECT_STATUS(attn_pool_create(&options, &pool, &why), status, named);
  assert_null(pool);
}

static void expect_refused_sharing(int32_t prefix_cache, uint64_t hash_mask, const char *named) {
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  attn_pool *pool = NULL;
  options.num_blocks = options.block_size = options.max_seqs = options.max_seq_blocks = 4;
  options.prefix_cache = prefix_cache;
  options.hash_mask = hash_mask;
  EXPECT_STATUS(attn_pool_create(&options, &pool, &why), ATTN_E_RANGE, named);
  assert_null(pool);
}

static void test_create(void **state) {
  (void)state;
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  attn_pool *pool = NULL;
  EXPECT_STATUS(attn_pool_create(NULL, &pool, &why), ATTN_E_NULL, "options");
  EXPECT_STATUS(attn_pool_create(&options, NULL, &why), ATTN_E_NULL, "pool");
  options.size = 3;
  EXPECT_STATUS(attn_pool_create(&options, &pool, &why), ATTN_E_STRUCT_SIZE, "size");
  assert_null(pool);
  expect_refused_options(1, 16, 4, 4, ATTN_E_RANGE, "num_blocks");
  expect_refused_options(-5, 16, 4, 4, ATTN_E_RANGE, "-5");
  expect_refused_options(8, 0, 4, 4, ATTN_E_RANGE, "block_size");
  expect_refused_options(8, 16, 0, 4, ATTN_E_RANGE, "max_seqs");
  expect_refused_options(8, 16, 4, -1, ATTN_E_RANGE, "max_seq_blocks");
  expect_refused_options(INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, ATTN_E_OVERFLOW, "max_seq_blocks");
  expect_refused_options(2, 1, 1 << 30, 1 << 29, ATTN_E_NOMEM, "bytes");
  expect_refused_sharing(2, 0, "options.prefix_cache: 2");
  expect_refused_sharing(-1, 0, "options.prefix_cache: -1");
  expect_refused_sharing(0, 6, "options.hash_mask: 6");
  attn_pool_destroy(NULL);
  attn_pool_destroy(make_pool(2, 1, 1, 1));
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static void test_blocks(void **state) {
  (void)state;
  attn_pool *pool = make_pool(5, 4, 2, 4);
  int32_t blocks[5] = {-7, -7, -7, -7, -7};
  assert_int_equal(attn_pool_num_free(pool), 4);
  assert_int_equal(attn_pool_num_used(pool), 0);
  EXPECT_STATUS(attn_pool_allocate(NULL, 1, blocks, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_allocate(pool, 1, NULL, &why), ATTN_E_NULL, "blocks");
  EXPECT_STATUS(attn_pool_allocate(pool, -1, blocks, &why), ATTN_E_RANGE, "-1");
  EXPECT_STATUS(attn_pool_allocate(pool, 5, blocks, &why), ATTN_E_FULL, "5 blocks wanted, 4 free");
  assert_int_equal(blocks[0], -7);
  EXPECT_OK(attn_pool_allocate(pool, 0, NULL, &why));
  EXPECT_OK(attn_pool_allocate(pool, 4, blocks, &why));
  int32_t seen[5] = {0};
  for (int i = 0; i < 4; i++) {
    assert_in_range(blocks[i], 1, 4);
    assert_int_equal(seen[blocks[i]]++, 0);
    assert_int_equal(attn_pool_references(pool, blocks[i]), 1);
  }
  assert_int_equal(blocks[4], -7);
  assert_int_equal(attn_pool_num_free(pool), 0);
  assert_int_equal(attn_pool_num_used(pool), 4);
  EXPECT_STATUS(attn_pool_allocate(pool, 1, blocks, &why), ATTN_E_FULL, "1 blocks wanted, 0 free");
  EXPECT_OK(attn_pool_check(pool, &why));
  attn_pool_destroy(pool);
}

static void test_references(void **state) {
  (void)state;
  attn_pool *pool = make_pool(4, 4, 2, 4);
  int32_t block = 0;
  EXPECT_OK(attn_pool_allocate(pool, 1, &block, &why));
  EXPECT_OK(attn_pool_retain(pool, block, &why));
  assert_int_equal(attn_pool_references(pool, block), 2);
  EXPECT_OK(attn_pool_check(pool, &why));
  EXPECT_OK(attn_pool_release(pool, block, &why));
  assert_int_equal(attn_pool_num_used(pool), 1);
  EXPECT_OK(attn_pool_release(pool, block, &why));
  assert_int_equal(attn_pool_references(pool, block), 0);
  assert_int_equal(attn_pool_num_free(pool), 3);
  const int32_t bad[] = {0, block, -1, 4, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    EXPECT_STATUS(attn_pool_retain(pool, bad[i], &why), ATTN_E_INDEX, "block");
    EXPECT_STATUS(attn_pool_release(pool, bad[i], &why), ATTN_E_INDEX, "block");
    assert_int_equal(attn_pool_references(pool, bad[i]), 0);
  }
  EXPECT_STATUS(attn_pool_retain(pool, 0, &why), ATTN_E_INDEX, "null block");
  EXPECT_STATUS(attn_pool_release(pool, block, &why), ATTN_E_INDEX, "free");
  EXPECT_STATUS(attn_pool_retain(NULL, 1, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_release(NULL, 1, &why), ATTN_E_NULL, "pool");
  assert_int_equal(attn_pool_num_free(NULL), 0);
  assert_int_equal(attn_pool_num_used(NULL), 0);
  assert_int_equal(attn_pool_references(NULL, 1), 0);
  EXPECT_OK(attn_pool_check(pool, &why));
  attn_pool_destroy(pool);
}

/* ---- Sequences --------------------------------------------------------------------------------------------------- */

static void test_append(void **state) {
  (void)state;
  attn_pool *pool = make_pool(8, 3, 2, 5);
  int64_t slots[16];
  int32_t table[5];
  const int32_t seq = 1;
  memset(slots, 0x55, sizeof slots);
  EXPECT_OK(attn_pool_append(pool, seq, 2, slots, &why));
  EXPECT_OK(attn_pool_append(pool, seq, 0, NULL, &why));
  assert_int_equal(attn_pool_blocks_needed(pool, seq, 1), 0);
  assert_int_equal(attn_pool_blocks_needed(pool, seq, 6), 2);
  EXPECT_OK(attn_pool_append(pool, seq, 6, slots + 2, &why));
  assert_int_equal(attn_pool_seq_len(pool, seq), 8);
  assert_int_equal(attn_pool_num_used(pool), 3);
  EXPECT_OK(attn_pool_block_table(pool, 1, &seq, 5, table, NULL, &why));
  for (int64_t p = 0; p < 8; p++) {
    assert_int_equal(slots[p], (int64_t)table[p / 3] * 3 + p % 3);
  }
  assert_true(all_bytes(slots + 8, sizeof slots - 8 * sizeof slots[0], 0x55));
  EXPECT_OK(attn_pool_check(pool, &why));
  attn_pool_destroy(pool);
}

static void test_append_refusals(void **state) {
  (void)state;
  attn_pool *pool = make_pool(6, 4, 3, 3);
  int64_t slots[16];
  memset(slots, 0x55, sizeof slots);
  EXPECT_STATUS(attn_pool_append(NULL, 0, 1, slots, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_append(pool, 0, 1, NULL, &why), ATTN_E_NULL, "slot_mapping");
  EXPECT_STATUS(attn_pool_append(pool, 0, -2, slots, &why), ATTN_E_RANGE, "-2");
  EXPECT_STATUS(attn_pool_append(pool, 3, 1, slots, &why), ATTN_E_INDEX, "seq: 3");
  EXPECT_STATUS(attn_pool_append(pool, -1, 1, slots, &why), ATTN_E_INDEX, "seq: -1");
  EXPECT_STATUS(attn_pool_append(pool, 0, 13, slots, &why), ATTN_E_CAPACITY, "max_seq_blocks");
  EXPECT_STATUS(attn_pool_append(pool, 0, INT32_MAX, slots, &why), ATTN_E_CAPACITY, "2147483647");
  assert_int_equal(attn_pool_seq_len(pool, 0), 0);
  assert_int_equal(attn_pool_num_used(pool), 0);
  EXPECT_OK(attn_pool_append(pool, 0, 12, slots, &why));
  EXPECT_STATUS(attn_pool_append(pool, 0, 1, slots, &why), ATTN_E_CAPACITY, "13 tokens");
  EXPECT_OK(attn_pool_append(pool, 1, 1, slots, &why));
  memset(slots, 0x55, sizeof slots);
  EXPECT_STATUS(attn_pool_append(pool, 1, 8, slots, &why), ATTN_E_FULL, "2 blocks wanted, 1 free");
  assert_true(all_bytes(slots, sizeof slots, 0x55));
  assert_int_equal(attn_pool_seq_len(pool, 1), 1);
  assert_int_equal(attn_pool_num_free(pool), 1);
  EXPECT_OK(attn_pool_check(pool, &why));
  attn_pool_destroy(pool);
}

static void test_long_lengths(void **state) {
  (void)state;
  attn_pool *pool = make_pool(4, INT32_MAX, 1, 3);
  int64_t slot = 0;
  EXPECT_OK(attn_pool_append(pool, 0, 1, &slot, &why));
  assert_int_equal(slot, (int64_t)INT32_MAX);
  EXPECT_STATUS(attn_pool_append(pool, 0, INT32_MAX, &slot, &why), ATTN_E_CAPACITY, "2147483648 tokens");
  assert_int_equal(attn_pool_blocks_needed(pool, 0, INT32_MAX), 1);
  EXPECT_OK(attn_pool_check(pool, &why));
  attn_pool_destroy(pool);
}

static void test_free_seq(void **state) {
  (void)state;
  attn_pool *pool = make_pool(8, 2, 3, 4);
  int64_t slots[8];
  EXPECT_STATUS(attn_pool_free_seq(NULL, 0, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_free_seq(pool, 3, &why), ATTN_E_INDEX, "seq: 3");
  EXPECT_STATUS(attn_pool_free_seq(pool, -1, &why), ATTN_E_INDEX, "seq: -1");
  EXPECT_OK(attn_pool_free_seq(pool, 0, &why));
  EXPECT_OK(attn_pool_append(pool, 0, 7, slots, &why));
  /* A block that the caller holds too outlives the sequence. */
  int32_t kept = (int32_t)(slots[2] / 2);
  EXPECT_OK(attn_pool_retain(pool, kept, &why));
  EXPECT_OK(attn_pool_free_seq(pool, 0, &why));
  assert_int_equal(attn_pool_seq_len(pool, 0), 0);
  assert_int_equal(attn_pool_num_used(pool), 1);
  assert_int_equal(attn_pool_references(pool, kept), 1);
  EXPECT_OK(attn_pool_check(pool, &why));
  EXPECT_OK(attn_pool_release(pool, kept, &why));
  assert_int_equal(attn_pool_num_free(pool), 7);
  assert_int_equal(attn_pool_seq_len(pool, -1), 0);
  assert_int_equal(attn_pool_seq_len(pool, 3), 0);
  assert_int_equal(attn_pool_seq_len(NULL, 0), 0);
  assert_int_equal(attn_pool_blocks_needed(pool, 3, 1), -1);
  assert_int_equal(attn_pool_blocks_needed(pool, 0, -1), -1);
  assert_int_equal(attn_pool_blocks_needed(NULL, 0, 1), -1);
  EXPECT_OK(attn_pool_check(pool, &why));
  attn_pool_destroy(pool);
}

static void test_block_table(void **state) {
  (void)state;
  attn_pool *pool = make_pool(8, 2, 3, 4);
  int64_t slots[8];
  const int32_t seqs[] = {2, 0, 1, 2};
  const int32_t bad[] = {0, 3, 1};
  int32_t table[4 * 5 + 1];
  int32_t lens[5];
  EXPECT_OK(attn_pool_append(pool, 0, 3, slots, &why));
  EXPECT_OK(attn_pool_append(pool, 2, 5, slots, &why));
  memset(table, 0x55, sizeof table);
  memset(lens, 0x55, sizeof lens);
  EXPECT_STATUS(attn_pool_block_table(NULL, 4, seqs, 5, table, lens, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_pool_block_table(pool, 4, NULL, 5, table, lens, &why), ATTN_E_NULL, "seqs");
  EXPECT_STATUS(attn_pool_block_table(pool, 4, seqs, 5, NULL, lens, &why), ATTN_E_NULL, "block_table");
  EXPECT_STATUS(attn_pool_block_table(pool, -1, seqs, 5, table, lens, &why), ATTN_E_RANGE, "num_seqs");
  EXPECT_STATUS(attn_pool_block_table(pool, 4, seqs, -5, table, lens, &why), ATTN_E_RANGE, "width");
  EXPECT_STATUS(attn_pool_block_table(pool, 3, bad, 5, table, lens, &why), ATTN_E_INDEX, "seqs[1]");
  EXPECT_STATUS(attn_pool_block_table(pool, 4, seqs, 2, table, lens, &why), ATTN_E_SHAPE, "3 or more");
  assert_true(all_bytes(table, sizeof table, 0x55));
  assert_true(all_bytes(lens, sizeof lens, 0x55));
  EXPECT_OK(attn_pool_block_table(pool, 0, NULL, 0, NULL, NULL, &why));
  EXPECT_OK(attn_pool_block_table(pool, 1, seqs + 2, 0, NULL, NULL, &why));
  EXPECT_OK(attn_pool_block_table(pool, 4, seqs, 5, table, lens, &why));
  const int32_t wanted_lens[] = {5, 3, 0, 5};
  const int32_t held[] = {3, 2, 0, 3};
  for (int row = 0; row < 4; row++) {
    assert_int_equal(lens[row], wanted_lens[row]);
    for (int column = 0; column < 5; column++) {
      assert_int_equal(table[row * 5 + column] != 0, column < held[row]);
    }
  }
  assert_memory_equal(table, table + 3 * 5, 5 * sizeof table[0]);
  assert_true(all_bytes(table + 20, sizeof table[0], 0x55));
  assert_true(all_bytes(lens + 4, sizeof lens[0], 0x55));
  attn_pool_destroy(pool);
}

/* ---- The books --------------------------------------------------------------------------------------------------- */

/* A caller who releases a reference that is a sequence's: the books say so, and nothing worse follows. */
static void test_check(void **state) {
  (void)state;
  attn_pool *pool = make_pool(6, 2, 3, 3);
  int64_t slots[6];
  EXPECT_STATUS(attn_pool_check(NULL, &why), ATTN_E_NULL, "pool");
  EXPECT_OK(attn_pool_append(pool, 0, 6, slots, &why));
  int32_t stolen = (int32_t)(slots[2] / 2);
  EXPECT_OK(attn_pool_release(pool, stolen, &why));
  EXPECT_STATUS(attn_pool_check(pool, &why), ATTN_E_INTERNAL, "also in a sequence");
  EXPECT_OK(attn_pool_append(pool, 1, 2, slots, &why));
  assert_int_equal(slots[0] / 2, stolen);
  EXPECT_STATUS(attn_pool_check(pool, &why), ATTN_E_INTERNAL, "has 1 references, 2 were found");
  EXPECT_OK(attn_pool_retain(pool, stolen, &why));
  EXPECT_OK(attn_pool_check(pool, &why));
  EXPECT_OK(attn_pool_release(pool, stolen, &why));
  EXPECT_OK(attn_pool_free_seq(pool, 1, &why));
  EXPECT_OK(attn_pool_free_seq(pool, 0, &why));
  assert_int_equal(attn_pool_num_free(pool), 5);
  EXPECT_OK(attn_pool_check(pool, &why));
  attn_pool_destroy(pool);
}

/* ---- Random workloads -------------------------------------------------------------------------------------------- */

#define MODEL_BLOCKS 24
#define MODEL_SEQS 5
#define MODEL_WIDTH 7

/* The plainest pool: who holds which block, by lists. */
typedef struct model {
  attn_pool *pool;
  int32_t block_size;
  int32_t seq_len[MODEL_SEQS];
  int32_t table[MODEL_SEQS][MODEL_WIDTH];
  int32_t extra[MODEL_BLOCKS]; /* references that the caller holds */
  uint32_t random;
} model;

static int32_t draw(model *m, int32_t below) {
  return (int32_t)(random_bits(&m->random) % (uint32_t)below);
}

static int32_t model_held(const model *m, int32_t seq) {
  return (m->seq_len[seq] + m->block_size - 1) / m->block_size;
}

static int32_t model_references(const model *m, int32_t block) {
  int32_t references = m->extra[block];
  for (int32_t seq = 0; seq < MODEL_SEQS; seq++) {
    for (int32_t column = 0; column < model_held(m, seq); column++) {
      references += m->table[seq][column] == block;
    }
  }
  return references;
}

static int32_t model_free(const model *m) {
  int32_t count = 0;
  for (int32_t block = 1; block < MODEL_BLOCKS; block++) {
    count += model_references(m, block) == 0;
  }
  return count;
}

static void step_append(model *m) {
  int32_t seq = draw(m, MODEL_SEQS);
  int32_t count = draw(m, 3 * m->block_size + 1);
  int64_t slots[3 * 16];
  int32_t old_len = m->seq_len[seq];
  int32_t held = model_held(m, seq);
  int32_t needed = (old_len + count + m->block_size - 1) / m->block_size;
  assert_int_equal(attn_pool_blocks_needed(m->pool, seq, count), needed - held);
  if (needed > MODEL_WIDTH) {
    EXPECT_STATUS(attn_pool_append(m->pool, seq, count, slots, &why), ATTN_E_CAPACITY, NULL);
    return;
  }
  if (needed - held > model_free(m)) {
    EXPECT_STATUS(attn_pool_append(m->pool, seq, count, slots, &why), ATTN_E_FULL, NULL);
    return;
  }
  EXPECT_OK(attn_pool_append(m->pool, seq, count, slots, &why));
  for (int32_t i = 0; i < count; i++) {
    int32_t column = (old_len + i) / m->block_size;
    int32_t block = (int32_t)(slots[i] / m->block_size);
    assert_int_equal(slots[i] % m->block_size, (old_len + i) % m->block_size);
    assert_in_range(block, 1, MODEL_BLOCKS - 1);
    if (column >= held && (old_len + i) % m->block_size == 0) {
      assert_int_equal(model_references(m, block), 0);
      m->table[seq][column] = block;
      m->seq_len[seq] = old_len + i + 1;
    }
    assert_int_equal(m->table[seq][column], block);
  }
  m->seq_len[seq] = old_len + count;
}

static void step_blocks(model *m) {
  int32_t blocks[4];
  int32_t count = draw(m, 5);
  if (count > model_free(m)) {
    EXPECT_STATUS(attn_pool_allocate(m->pool, count, blocks, &why), ATTN_E_FULL, NULL);
    return;
  }
  EXPECT_OK(attn_pool_allocate(m->pool, count, blocks, &why));
  for (int32_t i = 0; i < count; i++) {
    assert_in_range(blocks[i], 1, MODEL_BLOCKS - 1);
    assert_int_equal(model_references(m, blocks[i]), 0);
    m->extra[blocks[i]]++;
  }
}

static void step_references(model *m) {
  int32_t block = draw(m, MODEL_BLOCKS);
  if (draw(m, 3) == 0) {
    if (block == 0 || model_references(m, block) == 0) {
      EXPECT_STATUS(attn_pool_retain(m->pool, block, &why), ATTN_E_INDEX, NULL);
    } else {
      EXPECT_OK(attn_pool_retain(m->pool, block, &why));
      m->extra[block]++;
    }
  } else if (m->extra[block] > 0) {
    EXPECT_OK(attn_pool_release(m->pool, block, &why));
    m->extra[block]--;
  }
}

static void compare_with_model(const model *m) {
  static const int32_t all[MODEL_SEQS] = {4, 3, 2, 1, 0};
  int32_t table[MODEL_SEQS * (MODEL_WIDTH + 1)];
  int32_t lens[MODEL_SEQS];
  EXPECT_OK(attn_pool_check(m->pool, &why));
  assert_int_equal(attn_pool_num_free(m->pool), model_free(m));
  assert_int_equal(attn_pool_num_used(m->pool), MODEL_BLOCKS - 1 - model_free(m));
  for (int32_t block = 0; block < MODEL_BLOCKS; block++) {
    assert_int_equal(attn_pool_references(m->pool, block), model_references(m, block));
  }
  EXPECT_OK(attn_pool_block_table(m->pool, MODEL_SEQS, all, MODEL_WIDTH + 1, table, lens, &why));
  for (int32_t i = 0; i < MODEL_SEQS; i++) {
    assert_int_equal(lens[i], m->seq_len[all[i]]);
    assert_int_equal(attn_pool_seq_len(m->pool, all[i]), m->seq_len[all[i]]);
    for (int32_t column = 0; column <= MODEL_WIDTH; column++) {
      int32_t wanted = column < model_held(m, all[i]) ? m->table[all[i]][column] : 0;
      assert_int_equal(table[i * (MODEL_WIDTH + 1) + column], wanted);
    }
  }
}

static void test_random_workload(void **state) {
  (void)state;
  static const int32_t block_sizes[] = {1, 3, 16};
  for (size_t round = 0; round < sizeof block_sizes / sizeof block_sizes[0]; round++) {
    model m = {.block_size = block_sizes[round], .random = 17u + (uint32_t)round};
    m.pool = make_pool(MODEL_BLOCKS, m.block_size, MODEL_SEQS, MODEL_WIDTH);
    for (int step = 0; step < 2000; step++) {
      int32_t kind = draw(&m, 10);
      if (kind < 5) {
        step_append(&m);
      } else if (kind < 6) {
        int32_t seq = draw(&m, MODEL_SEQS);
        EXPECT_OK(attn_pool_free_seq(m.pool, seq, &why));
        m.seq_len[seq] = 0;
      } else if (kind < 7) {
        step_blocks(&m);
      } else {
        step_references(&m);
      }
      compare_with_model(&m);
    }
    attn_pool_destroy(m.pool);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_create),          cmocka_unit_test(test_blocks),
      cmocka_unit_test(test_references),      cmocka_unit_test(test_append),
      cmocka_unit_test(test_append_refusals), cmocka_unit_test(test_long_lengths),
      cmocka_unit_test(test_free_seq),        cmocka_unit_test(test_block_table),
      cmocka_unit_test(test_check),           cmocka_unit_test(test_random_workload),
  };
  return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
