/* SPDX-License-Identifier: Apache-2.0 */
/* test_pool_model.c: random operations on pools that share blocks, against a plain model, the books after every one.
 *
 * The model has no hashes and no lists: contents are compared token by token over whole prefixes, the least recently
 * used block is searched for. Where the pool may choose (which free block, which of two equal ones), its choice is
 * taken over if it is allowed. ATTN_POOL_OPERATIONS=N sets how many operations there are, 20000 without it.
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 24
#define SEQS 6
#define WIDTH 7
#define MAX_BLOCK_SIZE 16
#define MAX_TOKENS (WIDTH * MAX_BLOCK_SIZE)

/* A sequence, or the prefix that ends in a reusable block. */
typedef struct path {
  int32_t len;
  int32_t tokens[MAX_TOKENS];
} path;

typedef struct sequence {
  path all; /* beyond `known` without meaning */
  int32_t known;
  int32_t table[WIDTH];
} sequence;

typedef struct block {
  int32_t extra;   /* references that the caller holds */
  int32_t content; /* equal numbers, equal contents; 0: not reusable */
  int32_t parent;  /* content of the block before */
  int64_t used_at; /* when its last reference went */
  path prefix;
} block;

typedef struct model {
  attn_pool *pool;
  int32_t block_size;
  sequence seqs[SEQS];
  block blocks[BLOCKS];
  int32_t references[BLOCKS]; /* of counted() */
  int32_t last_content;
  int64_t now;
  int64_t steps, hits, evictions, copies, full;
  uint32_t random;
} model;

static int32_t draw(model *m, int32_t below) {
  return (int32_t)((random_bits(&m->random) >> 8) % (uint32_t)below);
}

/* ---- The model's own questions ----------------------------------------------------------------------------------- */

static int32_t blocks_of(const model *m, int32_t tokens) {
  return (tokens + m->block_size - 1) / m->block_size;
}

static int32_t holders(const model *m, int32_t id) {
  int32_t count = 0;
  for (int32_t seq = 0; seq < SEQS; seq++) {
    for (int32_t column = 0; column < blocks_of(m, m->seqs[seq].all.len); column++) {
      count += m->seqs[seq].table[column] == id;
    }
  }
  return count;
}

static void count_references(model *m) {
  for (int32_t id = 0; id < BLOCKS; id++) {
    m->references[id] = m->blocks[id].extra;
  }
  for (int32_t seq = 0; seq < SEQS; seq++) {
    for (int32_t column = 0; column < blocks_of(m, m->seqs[seq].all.len); column++) {
      m->references[m->seqs[seq].table[column]]++;
    }
  }
}

static int32_t count_free(const model *m) {
  int32_t count = 0;
  for (int32_t id = 1; id < BLOCKS; id++) {
    count += m->references[id] == 0;
  }
  return count;
}

static int32_t count_kept(const model *m) {
  int32_t count = 0;
  for (int32_t id = 1; id < BLOCKS; id++) {
    count += m->references[id] == 0 && m->blocks[id].content != 0;
  }
  return count;
}

/* A reusable block other than `but` with this content number. */
static int32_t other_of(const model *m, int32_t content, int32_t but) {
  for (int32_t id = 1; id < BLOCKS; id++) {
    if (id != but && m->blocks[id].content == content) {
      return id;
    }
  }
  return 0;
}

/* The content number of these tokens after that content; 0: there is no such block. */
static int32_t content_of(const model *m, int32_t parent, const int32_t *tokens) {
  size_t bytes = (size_t)m->block_size * sizeof *tokens;
  for (int32_t id = 1; id < BLOCKS; id++) {
    const block *b = &m->blocks[id];
    if (b->content != 0 && b->parent == parent &&
        memcmp(b->prefix.tokens + b->prefix.len - m->block_size, tokens, bytes) == 0) {
      return b->content;
    }
  }
  return 0;
}

/* ---- What happens to blocks -------------------------------------------------------------------------------------- */

/* The pool took this block: it was free, and kept ones go last and in their order. */
static void taken(model *m, int32_t id) {
  assert_in_range(id, 1, BLOCKS - 1);
  assert_int_equal(m->references[id], 0);
  if (count_free(m) > count_kept(m)) {
    assert_int_equal(m->blocks[id].content, 0);
  } else {
    for (int32_t other = 1; other < BLOCKS; other++) {
      assert_true(m->references[other] != 0 || m->blocks[other].used_at >= m->blocks[id].used_at);
    }
    m->evictions++;
  }
  m->blocks[id].content = 0;
  m->references[id]++;
}

static void dropped(model *m, int32_t id) {
  block *b = &m->blocks[id];
  if (--m->references[id] > 0 || b->content == 0) {
    return;
  }
  if (other_of(m, b->content, id) != 0) {
    b->content = 0; /* the other one is in use */
  } else {
    b->used_at = ++m->now;
  }
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static void random_tokens(model *m, int32_t count, int32_t *tokens) {
  /* Few ids, and blocks alike inside: prefixes meet often. */
  for (int32_t i = 0; i < count; i++) {
    tokens[i] = i % 3 == 0 && m->block_size < 3 ? -draw(m, 2) : 7;
  }
  if (count > 0 && m->block_size >= 3) {
    tokens[draw(m, count)] = draw(m, 3);
  }
}

/* What the append has to do, and that it did it. `tokens` NULL: ids not given. */
static void append_and_compare(model *m, int32_t seq, int32_t count, const int32_t *tokens, int with_copies) {
  sequence *s = &m->seqs[seq];
  int64_t slots[3 * MAX_BLOCK_SIZE];
  int64_t map[4] = {-7, -7, -7, -7};
  attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  copies.capacity = 2;
  copies.count = draw(m, 2);
  copies.block_map = map;
  int32_t first = copies.count;
  int32_t old_len = s->all.len;
  int32_t held = blocks_of(m, old_len);
  int32_t needed = blocks_of(m, old_len + count);
  int32_t tail = old_len % m->block_size != 0 ? s->table[held - 1] : 0;
  int32_t copied = count > 0 && tail != 0 && holders(m, tail) > 1;
  attn_status wanted = ATTN_OK;
  if (needed > WIDTH) {
    wanted = ATTN_E_CAPACITY;
  } else if (copied && !with_copies) {
    wanted = ATTN_E_STATE;
  } else if (needed - held + copied > count_free(m)) {
    wanted = ATTN_E_FULL;
    m->full++;
  }
  assert_int_equal(attn_pool_blocks_needed(m->pool, seq, count), needed - held + copied);
  harness_reset();
  attn_status got = with_copies || tokens != NULL
                        ? attn_pool_append_cow(m->pool, seq, count, tokens, slots, with_copies ? &copies : NULL, &why)
                        : attn_pool_append(m->pool, seq, count, slots, &why);
  harness_expect(got, wanted, NULL, __FILE__, __LINE__);
  if (wanted != ATTN_OK) {
    assert_int_equal(copies.count, first);
    return;
  }
  assert_int_equal(copies.count, first + copied);
  if (copied) {
    assert_int_equal(map[2 * first], tail);
    taken(m, (int32_t)map[2 * first + 1]);
    s->table[held - 1] = (int32_t)map[2 * first + 1];
    dropped(m, tail);
    m->copies++;
  }
  for (int32_t i = 0; i < count; i++) {
    int32_t at = old_len + i;
    if (at % m->block_size == 0) {
      s->table[at / m->block_size] = (int32_t)(slots[i] / m->block_size);
      taken(m, s->table[at / m->block_size]);
    }
    assert_int_equal(slots[i], (int64_t)s->table[at / m->block_size] * m->block_size + at % m->block_size);
    if (tokens != NULL) {
      s->all.tokens[at] = tokens[i];
    }
  }
  if (tokens != NULL && s->known == old_len) {
    s->known += count;
  }
  s->all.len += count;
}

static void step_append(model *m) {
  int32_t count = draw(m, 3 * m->block_size + 1);
  int32_t tokens[3 * MAX_BLOCK_SIZE];
  random_tokens(m, count, tokens);
  append_and_compare(m, draw(m, SEQS), count, draw(m, 8) == 0 ? NULL : tokens, draw(m, 4) != 0);
}

static void commit(model *m, int32_t seq) {
  sequence *s = &m->seqs[seq];
  EXPECT_OK(attn_pool_commit(m->pool, seq, &why));
  int32_t parent = 0;
  for (int32_t column = 0; (column + 1) * m->block_size <= s->known; column++) {
    block *b = &m->blocks[s->table[column]];
    if (b->content == 0) {
      int32_t same = content_of(m, parent, s->all.tokens + column * m->block_size);
      b->prefix = s->all;
      b->prefix.len = (column + 1) * m->block_size;
      b->parent = parent;
      int32_t kept = same != 0 ? other_of(m, same, 0) : 0;
      if (kept != 0 && m->references[kept] == 0) {
        m->blocks[kept].content = 0; /* this one takes its place */
      }
      b->content = same != 0 ? same : ++m->last_content;
    }
    parent = b->content;
  }
}

static void free_sequence(model *m, int32_t seq) {
  sequence *s = &m->seqs[seq];
  EXPECT_OK(attn_pool_free_seq(m->pool, seq, &why));
  int32_t held = blocks_of(m, s->all.len);
  s->all.len = s->known = 0;
  for (int32_t column = held - 1; column >= 0; column--) {
    dropped(m, s->table[column]);
  }
}

static void step_fork(model *m) {
  int32_t parent = draw(m, SEQS);
  int32_t child = draw(m, SEQS);
  for (int32_t tried = 1; tried < SEQS && m->seqs[child].all.len > 0 && draw(m, 4) != 0; tried++) {
    child = (child + 1) % SEQS;
  }
  if (m->seqs[child].all.len > 0) {
    EXPECT_STATUS(attn_pool_fork(m->pool, parent, child, &why), ATTN_E_STATE, "child");
    return;
  }
  EXPECT_OK(attn_pool_fork(m->pool, parent, child, &why));
  m->seqs[child] = m->seqs[parent];
}

/* Start a sequence from these tokens; its blocks are told by the pool's table. */
static void reuse(model *m, int32_t seq, const path *wanted) {
  sequence *s = &m->seqs[seq];
  int32_t found = 0;
  int32_t parent = 0;
  int32_t reused = -7;
  int32_t most = wanted->len / m->block_size;
  while (found < most) {
    int32_t content = content_of(m, parent, wanted->tokens + found * m->block_size);
    if (content == 0) {
      break;
    }
    parent = content;
    found++;
  }
  EXPECT_OK(attn_pool_reuse_prefix(m->pool, seq, wanted->tokens, wanted->len, &reused, &why));
  assert_int_equal(reused, found * m->block_size);
  EXPECT_OK(attn_pool_block_table(m->pool, 1, &seq, WIDTH, s->table, NULL, &why));
  for (int32_t column = 0; column < found; column++) {
    const block *b = &m->blocks[s->table[column]];
    assert_int_not_equal(b->content, 0);
    assert_int_equal(b->prefix.len, (column + 1) * m->block_size);
    assert_memory_equal(b->prefix.tokens, wanted->tokens, (size_t)b->prefix.len * sizeof(int32_t));
  }
  s->all = *wanted;
  s->all.len = s->known = reused;
  m->hits += found;
}

static void step_reuse(model *m) {
  int32_t seq = draw(m, SEQS);
  path wanted;
  wanted.len = draw(m, WIDTH * m->block_size + 1);
  random_tokens(m, wanted.len, wanted.tokens);
  if (draw(m, 2) == 0) { /* what some block ends, and a little more */
    const block *b = &m->blocks[draw(m, BLOCKS)];
    if (b->prefix.len <= wanted.len) {
      memcpy(wanted.tokens, b->prefix.tokens, (size_t)b->prefix.len * sizeof(int32_t));
    }
  }
  if (m->seqs[seq].all.len > 0) {
    int32_t reused = -7;
    EXPECT_STATUS(attn_pool_reuse_prefix(m->pool, seq, wanted.tokens, wanted.len, &reused, &why), ATTN_E_STATE, "seq");
    assert_int_equal(reused, -7);
    return;
  }
  reuse(m, seq, &wanted);
}

/* Preempted in favour of the others, and back. */
static void step_preempt(model *m) {
  int32_t seq = draw(m, SEQS);
  path before = m->seqs[seq].all;
  before.len = m->seqs[seq].known;
  free_sequence(m, seq);
  if (draw(m, 2) == 0) {
    int32_t tokens[MAX_TOKENS];
    memcpy(tokens, before.tokens, sizeof tokens);
    count_references(m);
    reuse(m, seq, &before);
    int32_t rest = before.len - m->seqs[seq].all.len;
    if (rest <= 3 * m->block_size) {
      count_references(m);
      append_and_compare(m, seq, rest, tokens + m->seqs[seq].all.len, 1);
    }
  }
}

static void step_allocate(model *m) {
  int32_t ids[4];
  int32_t count = draw(m, 5);
  if (count > count_free(m)) {
    EXPECT_STATUS(attn_pool_allocate(m->pool, count, ids, &why), ATTN_E_FULL, NULL);
    m->full++;
    return;
  }
  EXPECT_OK(attn_pool_allocate(m->pool, count, ids, &why));
  for (int32_t i = 0; i < count; i++) {
    taken(m, ids[i]);
    m->blocks[ids[i]].extra++;
  }
}

static void step_references(model *m) {
  int32_t id = draw(m, BLOCKS);
  if (draw(m, 4) == 0) {
    if (id == 0 || m->references[id] == 0) {
      EXPECT_STATUS(attn_pool_retain(m->pool, id, &why), ATTN_E_INDEX, NULL);
    } else {
      EXPECT_OK(attn_pool_retain(m->pool, id, &why));
      m->blocks[id].extra++;
    }
    return;
  }
  for (int32_t tried = 0; tried < BLOCKS && m->blocks[id].extra == 0; tried++) {
    id = (id + 1) % BLOCKS;
  }
  if (m->blocks[id].extra > 0) {
    EXPECT_OK(attn_pool_release(m->pool, id, &why));
    m->blocks[id].extra--;
    dropped(m, id);
  }
}

/* ---- The comparison ---------------------------------------------------------------------------------------------- */

static void compare(model *m) {
  static const int32_t all[SEQS] = {0, 1, 2, 3, 4, 5};
  int32_t table[SEQS][WIDTH];
  int32_t lens[SEQS];
  int32_t shared = 0;
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  EXPECT_OK(attn_pool_check(m->pool, &why));
  EXPECT_OK(attn_pool_get_info(m->pool, &info, &why));
  EXPECT_OK(attn_pool_block_table(m->pool, SEQS, all, WIDTH, &table[0][0], lens, &why));
  count_references(m);
  int ok = info.free == count_free(m) && info.used == BLOCKS - 1 - info.free && info.cached == count_kept(m) &&
           info.hits == m->hits && info.evictions == m->evictions && info.copies == m->copies;
  for (int32_t id = 0; id < BLOCKS; id++) {
    ok &= attn_pool_references(m->pool, id) == m->references[id];
    shared += id > 0 && m->references[id] - m->blocks[id].extra > 1;
  }
  ok &= info.shared == shared;
  for (int32_t seq = 0; seq < SEQS; seq++) {
    ok &= lens[seq] == m->seqs[seq].all.len;
    for (int32_t column = 0; column < WIDTH; column++) {
      int32_t wanted = column < blocks_of(m, lens[seq]) ? m->seqs[seq].table[column] : 0;
      ok &= table[seq][column] == wanted;
    }
  }
  CHECK(ok, "the pool and the model differ after %lld steps: free %d and %d, kept %d and %d, shared %d and %d",
        (long long)m->steps, (int)info.free, (int)count_free(m), (int)info.cached, (int)count_kept(m), (int)info.shared,
        (int)shared);
}

static void step(model *m) {
  int32_t kind = draw(m, 32);
  if (kind < 12) {
    step_append(m);
  } else if (kind < 18) {
    commit(m, draw(m, SEQS));
  } else if (kind < 21) {
    step_reuse(m);
  } else if (kind < 24) {
    step_fork(m);
  } else if (kind < 26) {
    free_sequence(m, draw(m, SEQS));
  } else if (kind < 27) {
    step_preempt(m);
  } else if (kind < 28) {
    step_allocate(m);
  } else {
    step_references(m);
  }
}

static int64_t operations(void) {
  const char *text = getenv("ATTN_POOL_OPERATIONS");
  long long count = text != NULL ? strtoll(text, NULL, 10) : 20000;
  CHECK(count > 0, "ATTN_POOL_OPERATIONS: '%s', accepted: a count above 0", text);
  return count;
}

static void workload(int32_t block_size, uint64_t hash_mask, int64_t steps) {
  static model m;
  memset(&m, 0, sizeof m);
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  options.num_blocks = BLOCKS;
  options.block_size = m.block_size = block_size;
  options.max_seqs = SEQS;
  options.max_seq_blocks = WIDTH;
  options.prefix_cache = 1;
  options.hash_mask = hash_mask;
  m.random = 29u + (uint32_t)block_size;
  EXPECT_OK(attn_pool_create(&options, &m.pool, &why));
  for (; m.steps < steps; m.steps++) {
    step(&m);
    compare(&m);
  }
  EXPECT_OK(attn_pool_get_info(m.pool, &info, &why));
  assert_true(m.hits > 0 && m.evictions > 0 && m.full > 0);
  assert_true(m.copies > 0 || block_size == 1);
  assert_true(info.collisions > 0 || hash_mask == 0);
  (void)printf("block_size %d, %lld operations: %lld hits, %lld evictions, %lld copies, %lld full, %lld collisions\n",
               (int)block_size, (long long)steps, (long long)m.hits, (long long)m.evictions, (long long)m.copies,
               (long long)m.full, (long long)info.collisions);
  attn_pool_destroy(m.pool);
}

static void test_random_operations(void **state) {
  (void)state;
  static const struct {
    int32_t block_size;
    uint64_t hash_mask;
  } rounds[] = {{4, 0}, {1, 0}, {2, 1}, {16, 0}, {3, UINT64_C(1) << 63}};
  const int64_t count = sizeof rounds / sizeof rounds[0];
  for (int64_t i = 0; i < count; i++) {
    workload(rounds[i].block_size, rounds[i].hash_mask, (operations() + count - 1) / count);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_operations)};
  return cmocka_run_group_tests_name("pool_model", tests, NULL, NULL);
}
