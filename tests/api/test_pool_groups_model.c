/* SPDX-License-Identifier: Apache-2.0 */
/* test_pool_groups_model.c: random operations on pools of several groups, against a plain model, the books after every
 * one: rows of each group, windows, forks, copies, reuse and eviction in one id space.
 *
 * As in test_pool_model.c the model has no hashes and no lists, and takes over the pool's choice where it has one. It
 * finds the longest start by trying them all, and what a window needs key by key. ATTN_POOL_OPERATIONS=N sets how many
 * operations there are, 20000 without it.
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GROUPS 4
#define MAX_BLOCKS 64
#define SEQS 5
#define MAX_TOKENS 72
#define MAX_STEP 20

typedef struct setup {
  int32_t groups, blocks, prefix_cache;
  int32_t block_size[MAX_GROUPS];
  int32_t kernel_block[MAX_GROUPS];
  int32_t window[MAX_GROUPS];
  uint64_t hash_mask;
  int32_t index; /* along which tokens are compared */
} setup;

typedef struct sequence {
  int32_t len, known, committed;
  int32_t content; /* of the last committed block of the index */
  int32_t tokens[MAX_TOKENS];
  int32_t table[MAX_GROUPS][MAX_TOKENS]; /* by block; 0 where there is none */
} sequence;

typedef struct block {
  int32_t extra;           /* references that the caller holds */
  int32_t content;         /* equal numbers, equal contents; 0: not reusable */
  int32_t parent;          /* content of the index block before it, or that it ends in */
  int32_t group, column;   /* of its content */
  int32_t ids[MAX_TOKENS]; /* index: its tokens */
  int64_t used_at;         /* when its last reference went */
} block;

typedef struct model {
  attn_pool *pool;
  const setup *s;
  sequence seqs[SEQS];
  block blocks[MAX_BLOCKS];
  int32_t references[MAX_BLOCKS]; /* of count_references() */
  int32_t last_content;
  int64_t now, steps, hits, evictions, copies, full, trimmed[MAX_GROUPS], shortened;
  uint32_t random;
} model;

static int32_t draw(model *m, int32_t below) {
  return (int32_t)((random_bits(&m->random) >> 8) % (uint32_t)below);
}

/* ---- The model's own questions ----------------------------------------------------------------------------------- */

static int32_t size_of(const model *m, int32_t g) {
  return m->s->block_size[g];
}

static int32_t blocks_of(const model *m, int32_t g, int32_t tokens) {
  return (tokens + size_of(m, g) - 1) / size_of(m, g);
}

/* Whether a query at `position` or later sees a key of this block; the last key is the one seen longest. */
static int is_seen(const model *m, int32_t g, int32_t column, int32_t position) {
  int32_t last_key = (column + 1) * size_of(m, g) - 1;
  return m->s->window[g] == 0 || position - last_key <= m->s->window[g] - 1;
}

static void count_references(model *m) {
  for (int32_t id = 0; id < MAX_BLOCKS; id++) {
    m->references[id] = m->blocks[id].extra;
  }
  for (int32_t seq = 0; seq < SEQS; seq++) {
    for (int32_t g = 0; g < m->s->groups; g++) {
      for (int32_t column = 0; column < MAX_TOKENS; column++) {
        m->references[m->seqs[seq].table[g][column]]++;
      }
    }
  }
  m->references[0] = 0;
}

static int32_t holders(const model *m, int32_t id) {
  return m->references[id] - m->blocks[id].extra;
}

static int32_t count_free(const model *m, int kept_only) {
  int32_t count = 0;
  for (int32_t id = 1; id < m->s->blocks; id++) {
    count += m->references[id] == 0 && (!kept_only || m->blocks[id].content != 0);
  }
  return count;
}

static int32_t other_of(const model *m, int32_t content, int32_t but) {
  for (int32_t id = 1; id < m->s->blocks; id++) {
    if (id != but && m->blocks[id].content == content) {
      return id;
    }
  }
  return 0;
}

/* A block with this content; `ids` counts in the index alone. */
static int32_t find(const model *m, int32_t g, int32_t column, int32_t parent, const int32_t *ids) {
  for (int32_t id = 1; id < m->s->blocks; id++) {
    const block *b = &m->blocks[id];
    if (b->content != 0 && b->group == g && b->column == column && b->parent == parent &&
        (g != m->s->index || memcmp(b->ids, ids, (size_t)size_of(m, g) * sizeof *ids) == 0)) {
      return id;
    }
  }
  return 0;
}

/* ---- What happens to blocks -------------------------------------------------------------------------------------- */

static void taken(model *m, int32_t id) {
  assert_in_range(id, 1, m->s->blocks - 1);
  assert_int_equal(m->references[id], 0);
  if (count_free(m, 0) > count_free(m, 1)) {
    assert_int_equal(m->blocks[id].content, 0);
  } else {
    for (int32_t other = 1; other < m->s->blocks; other++) {
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
  for (int32_t i = 0; i < count; i++) {
    tokens[i] = 7;
  }
  if (count > 0 && draw(m, 2) == 0) {
    tokens[draw(m, count)] = draw(m, 3);
  }
}

static void append_and_compare(model *m, int32_t seq, int32_t count, const int32_t *tokens, int with_copies) {
  sequence *s = &m->seqs[seq];
  int64_t slots[MAX_GROUPS][MAX_STEP + 3];
  int64_t map[2 * MAX_GROUPS + 2];
  attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  copies.capacity = 1 + draw(m, MAX_GROUPS + 1);
  copies.count = draw(m, 2);
  copies.block_map = map;
  int32_t first = copies.count;
  int32_t wanted_blocks = 0;
  int32_t wanted_copies = 0;
  int32_t old_len = s->len;
  for (int32_t g = 0; g < m->s->groups; g++) {
    int32_t tail = old_len % size_of(m, g) != 0 ? s->table[g][old_len / size_of(m, g)] : 0;
    wanted_copies += count > 0 && tail != 0 && holders(m, tail) > 1;
    wanted_blocks += blocks_of(m, g, old_len + count) - blocks_of(m, g, old_len);
  }
  attn_status wanted = ATTN_OK;
  if (old_len + count > MAX_TOKENS) {
    wanted = ATTN_E_CAPACITY;
  } else if (wanted_copies > 0 && !with_copies) {
    wanted = ATTN_E_STATE;
  } else if (wanted_copies > copies.capacity - first && with_copies) {
    wanted = ATTN_E_CAPACITY;
  } else if (wanted_blocks + wanted_copies > count_free(m, 0)) {
    wanted = ATTN_E_FULL;
    m->full++;
  }
  assert_int_equal(attn_pool_blocks_needed(m->pool, seq, count), wanted_blocks + wanted_copies);
  EXPECT_STATUS(attn_pool_append_groups(m->pool, seq, count, tokens, &slots[0][0], MAX_STEP + 3,
                                        with_copies ? &copies : NULL, &why),
                wanted, NULL);
  if (wanted != ATTN_OK) {
    assert_int_equal(copies.count, first);
    return;
  }
  assert_int_equal(copies.count, first + wanted_copies);
  int32_t nth = first;
  for (int32_t g = 0; g < m->s->groups; g++) {
    int32_t size = size_of(m, g);
    int32_t tail = old_len % size != 0 ? s->table[g][old_len / size] : 0;
    if (count > 0 && tail != 0 && holders(m, tail) > 1) {
      assert_int_equal(map[2 * nth], tail);
      taken(m, (int32_t)map[2 * nth + 1]);
      s->table[g][old_len / size] = (int32_t)map[2 * nth + 1];
      dropped(m, tail);
      m->copies++;
      nth++;
    }
    for (int32_t i = 0; i < count; i++) {
      int32_t at = old_len + i;
      if (at % size == 0) {
        s->table[g][at / size] = (int32_t)(slots[g][i] / size);
        taken(m, s->table[g][at / size]);
      }
      assert_int_equal(slots[g][i], (int64_t)s->table[g][at / size] * size + at % size);
    }
  }
  if (tokens != NULL && s->known == old_len) {
    memcpy(s->tokens + old_len, tokens, (size_t)count * sizeof *tokens);
    s->known += count;
  }
  s->len += count;
}

static void step_append(model *m) {
  int32_t count = draw(m, MAX_STEP + 1);
  int32_t tokens[MAX_STEP];
  random_tokens(m, count, tokens);
  append_and_compare(m, draw(m, SEQS), count, m->s->prefix_cache && draw(m, 8) != 0 ? tokens : NULL, draw(m, 4) != 0);
}

/* A full block becomes reusable. */
static void commit_block(model *m, int32_t id, int32_t g, int32_t column, int32_t parent, const int32_t *ids) {
  block *b = &m->blocks[id];
  if (b->content != 0) {
    return;
  }
  int32_t same = find(m, g, column, parent, ids);
  int32_t content = same != 0 ? m->blocks[same].content : ++m->last_content;
  if (same != 0 && m->references[same] == 0) {
    m->blocks[same].content = 0; /* this one takes its place */
  }
  b->content = content;
  b->parent = parent;
  b->group = g;
  b->column = column;
  if (g == m->s->index) {
    memcpy(b->ids, ids, (size_t)size_of(m, g) * sizeof *ids);
  }
}

static void step_commit(model *m, int32_t seq) {
  sequence *s = &m->seqs[seq];
  if (!m->s->prefix_cache) {
    EXPECT_STATUS(attn_pool_commit(m->pool, seq, &why), ATTN_E_STATE, "prefix_cache");
    return;
  }
  EXPECT_OK(attn_pool_commit(m->pool, seq, &why));
  int32_t size = size_of(m, m->s->index);
  for (; (s->committed + 1) * size <= s->known; s->committed++) {
    int32_t column = s->committed;
    int32_t id = s->table[m->s->index][column];
    if (id == 0) {
      return;
    }
    commit_block(m, id, m->s->index, column, s->content, s->tokens + column * size);
    s->content = m->blocks[id].content;
    for (int32_t g = 0; g < m->s->groups; g++) {
      for (int32_t part = 0; g != m->s->index && (part + 1) * size_of(m, g) <= (column + 1) * size; part++) {
        if ((part + 1) * size_of(m, g) > column * size && s->table[g][part] != 0) {
          commit_block(m, s->table[g][part], g, part, s->content, NULL);
        }
      }
    }
  }
}

static void step_trim(model *m) {
  int32_t seq = draw(m, SEQS);
  sequence *s = &m->seqs[seq];
  int32_t computed = draw(m, 2) == 0 ? s->len : draw(m, s->len + 1);
  int32_t released = -7;
  int32_t wanted = 0;
  EXPECT_OK(attn_pool_trim(m->pool, seq, computed, &released, &why));
  for (int32_t g = 0; g < m->s->groups; g++) {
    for (int32_t column = 0; column < blocks_of(m, g, s->len); column++) {
      if (s->table[g][column] != 0 && !is_seen(m, g, column, computed)) {
        dropped(m, s->table[g][column]);
        s->table[g][column] = 0;
        m->trimmed[g]++;
        wanted++;
      }
    }
  }
  assert_int_equal(released, wanted);
}

static void free_sequence(model *m, int32_t seq) {
  sequence *s = &m->seqs[seq];
  EXPECT_OK(attn_pool_free_seq(m->pool, seq, &why));
  for (int32_t end = 2 * MAX_TOKENS; end > 0; end--) { /* the block that ends farthest goes first */
    for (int32_t g = 0; g < m->s->groups; g++) {
      int32_t column = end / size_of(m, g) - 1;
      if (end % size_of(m, g) == 0 && column < MAX_TOKENS && s->table[g][column] != 0) {
        dropped(m, s->table[g][column]);
        s->table[g][column] = 0;
      }
    }
  }
  memset(s, 0, sizeof *s);
}

static void step_fork(model *m) {
  int32_t parent = draw(m, SEQS);
  int32_t child = draw(m, SEQS);
  for (int32_t tried = 1; tried < SEQS && m->seqs[child].len > 0 && draw(m, 4) != 0; tried++) {
    child = (child + 1) % SEQS;
  }
  if (m->seqs[child].len > 0) {
    EXPECT_STATUS(attn_pool_fork(m->pool, parent, child, &why), ATTN_E_STATE, "child");
    return;
  }
  EXPECT_OK(attn_pool_fork(m->pool, parent, child, &why));
  m->seqs[child] = m->seqs[parent];
}

/* What a start of these tokens would find: one block of each content, 0 where there is none. @return tokens walked. */
static int32_t look_up(const model *m, const int32_t *tokens, int32_t count, int32_t found[MAX_GROUPS][MAX_TOKENS],
                       int32_t *contents) {
  int32_t size = size_of(m, m->s->index);
  int32_t parent = 0;
  int32_t column = 0;
  memset(found, 0, MAX_GROUPS * sizeof *found);
  for (; (column + 1) * size <= count; column++) {
    int32_t id = find(m, m->s->index, column, parent, tokens + column * size);
    if (id == 0) {
      break;
    }
    found[m->s->index][column] = id;
    parent = contents[column] = m->blocks[id].content;
    for (int32_t g = 0; g < m->s->groups; g++) {
      for (int32_t part = 0; g != m->s->index && (part + 1) * size_of(m, g) <= (column + 1) * size; part++) {
        if ((part + 1) * size_of(m, g) > column * size) {
          found[g][part] = find(m, g, part, parent, NULL);
        }
      }
    }
  }
  return column * size;
}

/* Whether all groups have all blocks that a query at `start` sees, and blocks of each end there. */
static int is_start(const model *m, int32_t start, int32_t found[MAX_GROUPS][MAX_TOKENS]) {
  for (int32_t g = 0; g < m->s->groups; g++) {
    if (start % size_of(m, g) != 0) {
      return 0;
    }
    for (int32_t column = 0; column < start / size_of(m, g); column++) {
      if (is_seen(m, g, column, start) && found[g][column] == 0) {
        return 0;
      }
    }
  }
  return 1;
}

static void reuse(model *m, int32_t seq, const int32_t *tokens, int32_t count) {
  sequence *s = &m->seqs[seq];
  int32_t found[MAX_GROUPS][MAX_TOKENS];
  int32_t contents[MAX_TOKENS];
  int32_t reused = -7;
  int32_t walked = look_up(m, tokens, count, found, contents);
  int32_t start = walked;
  while (!is_start(m, start, found)) {
    start--;
  }
  m->shortened += start < walked;
  EXPECT_OK(attn_pool_reuse_prefix(m->pool, seq, tokens, count, &reused, &why));
  CHECK(reused == start, "step %lld: %d tokens reused, %d can be", (long long)m->steps, (int)reused, (int)start);
  for (int32_t g = 0; g < m->s->groups; g++) {
    int32_t ratio = m->s->block_size[g] / m->s->kernel_block[g];
    int32_t row[MAX_TOKENS];
    EXPECT_OK(attn_pool_group_table(m->pool, g, 1, &seq, MAX_TOKENS, row, NULL, &why));
    for (int32_t column = 0; column < start / size_of(m, g); column++) {
      int32_t id = row[column * ratio] / ratio;
      if (!is_seen(m, g, column, start)) {
        assert_int_equal(id, 0);
        continue;
      }
      assert_int_equal(m->blocks[id].content, m->blocks[found[g][column]].content);
      s->table[g][column] = id;
      m->hits++;
    }
  }
  memcpy(s->tokens, tokens, (size_t)start * sizeof *tokens);
  s->len = s->known = start;
  s->committed = start / size_of(m, m->s->index);
  s->content = s->committed > 0 ? contents[s->committed - 1] : 0;
}

static void step_reuse(model *m) {
  int32_t seq = draw(m, SEQS);
  int32_t tokens[MAX_TOKENS];
  int32_t reused = -7;
  if (!m->s->prefix_cache || m->seqs[seq].len > 0) {
    EXPECT_STATUS(attn_pool_reuse_prefix(m->pool, seq, tokens, 0, &reused, &why), ATTN_E_STATE, NULL);
    assert_int_equal(reused, -7);
    return;
  }
  random_tokens(m, MAX_TOKENS, tokens);
  if (draw(m, 2) == 0) {
    memcpy(tokens, m->seqs[draw(m, SEQS)].tokens, sizeof tokens);
  }
  reuse(m, seq, tokens, draw(m, MAX_TOKENS + 1));
}

/* Preempted in favour of the others, and back. */
static void step_preempt(model *m) {
  int32_t seq = draw(m, SEQS);
  sequence before = m->seqs[seq];
  free_sequence(m, seq);
  if (m->s->prefix_cache && draw(m, 2) == 0) {
    count_references(m);
    reuse(m, seq, before.tokens, before.known);
  }
}

static void step_references(model *m) {
  int32_t id = 1 + draw(m, m->s->blocks - 1);
  int32_t kind = draw(m, 6);
  if (kind == 0) {
    if (count_free(m, 0) == 0) {
      EXPECT_STATUS(attn_pool_allocate(m->pool, 1, &id, &why), ATTN_E_FULL, NULL);
      return;
    }
    EXPECT_OK(attn_pool_allocate(m->pool, 1, &id, &why));
    taken(m, id);
    m->blocks[id].extra++;
  } else if (kind == 1 && m->references[id] > 0) {
    EXPECT_OK(attn_pool_retain(m->pool, id, &why));
    m->blocks[id].extra++;
  } else {
    for (int32_t tried = 0; tried < m->s->blocks && m->blocks[id].extra == 0; tried++) {
      id = 1 + id % (m->s->blocks - 1);
    }
    if (m->blocks[id].extra > 0) {
      EXPECT_OK(attn_pool_release(m->pool, id, &why));
      m->blocks[id].extra--;
      dropped(m, id);
    }
  }
}

/* ---- The comparison ---------------------------------------------------------------------------------------------- */

static int same_rows(const model *m, int32_t g) {
  static const int32_t all[SEQS] = {0, 1, 2, 3, 4};
  int32_t table[SEQS][MAX_TOKENS];
  int32_t lens[SEQS];
  int32_t kernel = m->s->kernel_block[g];
  int32_t ratio = size_of(m, g) / kernel;
  int ok = 1;
  EXPECT_OK(attn_pool_group_table(m->pool, g, SEQS, all, MAX_TOKENS, &table[0][0], lens, &why));
  for (int32_t seq = 0; seq < SEQS; seq++) {
    const sequence *s = &m->seqs[seq];
    ok &= lens[seq] == s->len;
    for (int32_t column = 0; column < MAX_TOKENS; column++) {
      int32_t id = column * kernel < s->len ? s->table[g][column / ratio] : 0;
      ok &= table[seq][column] == (id == 0 ? 0 : id * ratio + column % ratio);
    }
  }
  return ok;
}

static void compare(model *m) {
  int32_t shared = 0;
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  EXPECT_OK(attn_pool_check(m->pool, &why));
  EXPECT_OK(attn_pool_get_info(m->pool, &info, &why));
  count_references(m);
  int ok = info.free == count_free(m, 0) && info.used == m->s->blocks - 1 - info.free &&
           info.cached == count_free(m, 1) && info.hits == m->hits && info.evictions == m->evictions &&
           info.copies == m->copies;
  for (int32_t id = 0; id < m->s->blocks; id++) {
    ok &= attn_pool_references(m->pool, id) == m->references[id];
    shared += id > 0 && holders(m, id) > 1;
  }
  ok &= info.shared == shared;
  for (int32_t g = 0; g < m->s->groups; g++) {
    ok &= same_rows(m, g);
  }
  CHECK(ok, "the pool and the model differ after %lld steps: free %d and %d, kept %d and %d, shared %d and %d",
        (long long)m->steps, (int)info.free, (int)count_free(m, 0), (int)info.cached, (int)count_free(m, 1),
        (int)info.shared, (int)shared);
}

static void step(model *m) {
  int32_t kind = draw(m, 32);
  if (kind < 12) {
    step_append(m);
  } else if (kind < 17) {
    step_commit(m, draw(m, SEQS));
  } else if (kind < 20) {
    step_trim(m);
  } else if (kind < 24) {
    step_reuse(m);
  } else if (kind < 27) {
    step_fork(m);
  } else if (kind < 29) {
    free_sequence(m, draw(m, SEQS));
  } else if (kind < 31) {
    step_preempt(m);
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

static void workload(const setup *s, int64_t steps) {
  static model m;
  memset(&m, 0, sizeof m);
  attn_pool_group groups[MAX_GROUPS];
  attn_pool_groups_options options = ATTN_POOL_GROUPS_OPTIONS_INIT;
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  int windows = 0;
  for (int32_t g = 0; g < s->groups; g++) {
    attn_pool_group group = ATTN_POOL_GROUP_INIT;
    group.block_size = s->block_size[g];
    group.kernel_block = s->kernel_block[g];
    group.window = s->window[g];
    groups[g] = group;
    windows += s->window[g] > 0;
  }
  options.num_blocks = s->blocks;
  options.num_groups = s->groups;
  options.groups = groups;
  options.max_seqs = SEQS;
  options.max_seq_len = MAX_TOKENS;
  options.prefix_cache = s->prefix_cache;
  options.hash_mask = s->hash_mask;
  m.s = s;
  m.random = 41u + (uint32_t)s->blocks;
  EXPECT_OK(attn_pool_create_groups(&options, &m.pool, &why));
  for (; m.steps < steps; m.steps++) {
    step(&m);
    compare(&m);
  }
  EXPECT_OK(attn_pool_get_info(m.pool, &info, &why));
  (void)printf("%d groups (%d with a window), %lld operations: %lld hits, %lld starts shortened, %lld evictions, "
               "%lld copies, %lld full, %lld collisions; trimmed %lld %lld %lld %lld\n",
               (int)s->groups, windows, (long long)steps, (long long)m.hits, (long long)m.shortened,
               (long long)m.evictions, (long long)m.copies, (long long)m.full, (long long)info.collisions,
               (long long)m.trimmed[0], (long long)m.trimmed[1], (long long)m.trimmed[2], (long long)m.trimmed[3]);
  assert_true(m.copies > 0 && m.full > 0);
  assert_true(!s->prefix_cache || (m.hits > 0 && m.evictions > 0));
  assert_true(s->hash_mask == 0 || info.collisions > 0);
  for (int32_t g = 0; g < s->groups; g++) {
    attn_pool_group_info group = ATTN_POOL_GROUP_INFO_INIT;
    EXPECT_OK(attn_pool_get_group(m.pool, g, &group, &why));
    assert_int_equal(group.trimmed, m.trimmed[g]);
    assert_true((m.trimmed[g] > 0) == (s->window[g] > 0));
  }
  attn_pool_destroy(m.pool);
}

static void test_random_operations(void **state) {
  (void)state;
  static const setup setups[] = {
      {4, 60, 1, {4, 2, 6, 12}, {2, 2, 3, 4}, {0, 5, 9, 0}, 0, 0},
      {4, 40, 1, {6, 6, 6, 6}, {6, 3, 2, 1}, {7, 0, 13, 0}, 0, 1},
      {2, 30, 1, {3, 4}, {3, 2}, {8, 6}, UINT64_C(1) << 63, 0},
      {1, 20, 1, {4}, {1}, {6}, 0, 0},
      {3, 50, 0, {8, 2, 3}, {4, 1, 3}, {0, 1, 20}, 0, 0},
      {2, 40, 1, {1, 5}, {1, 1}, {0, 3}, 2, 0},
      {2, 40, 1, {6, 2}, {3, 2}, {0, 5}, 2, 0},
  };
  const int64_t count = sizeof setups / sizeof setups[0];
  for (int64_t i = 0; i < count; i++) {
    workload(&setups[i], (operations() + count - 1) / count);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_operations)};
  return cmocka_run_group_tests_name("pool_groups_model", tests, NULL, NULL);
}
