/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_pool.c: the block manager's operations. The first bytes of an input say what the pool is (its size, its groups,
 * their windows), the others are operations. After every one the books are checked, and a cache that the pool's answers
 * drive is looked at: each row is one number, which stands for its group, its token and all tokens before it, and every
 * sequence must find its own in the blocks of its tables. A block shared, copied, kept or handed out wrongly shows as a
 * foreign number. References, free blocks and the status of each call are counted from the tables alone.
 *
 * With the first byte odd the caller also releases references that are not its own; then nothing is promised but that
 * no call steps outside of the pool's memory.
 */
#include <stdlib.h>
#include <string.h>

#include "fuzz_pool_world.h"

static attn_message message;

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static int32_t draw_seq(const world *w, fuzz_bytes *in) {
  return fuzz_below(in, w->max_seqs);
}

/* Few ids: prefixes meet often. */
static void draw_tokens(fuzz_bytes *in, int32_t count, int32_t *tokens) {
  int32_t common = fuzz_u8(in);
  for (int32_t i = 0; i < count; i++) {
    tokens[i] = common < 192 ? common % 3 : fuzz_u8(in) % 2;
  }
}

/* What an append has to do. */
typedef struct append_plan {
  attn_status status;
  int32_t needed;
  int32_t copied;
  int32_t tails[GROUPS]; /* the blocks to be copied */
} append_plan;

static append_plan plan_append(const world *w, const snapshot *before, int32_t seq, int32_t count, int with_copies) {
  append_plan plan = {ATTN_OK, 0, 0, {0}};
  int32_t len = before->lens[seq];
  for (int32_t g = 0; g < w->num_groups; g++) {
    int32_t tail = count > 0 ? world_shared_tail(w, before, g, seq) : 0;
    plan.needed += world_ceil_div(len + count, w->groups[g].block_size) - world_ceil_div(len, w->groups[g].block_size);
    if (tail != 0) {
      plan.tails[plan.copied++] = tail;
    }
  }
  plan.needed += plan.copied;
  if (len + count > w->max_len) {
    plan.status = ATTN_E_CAPACITY;
  } else if (plan.copied > 0 && !with_copies) {
    plan.status = ATTN_E_STATE;
  } else if (plan.copied > w->copies.capacity - w->copies.count) {
    plan.status = ATTN_E_CAPACITY;
  } else if (plan.needed > before->info.free) {
    plan.status = ATTN_E_FULL;
  }
  return plan;
}

/* One group can be asked without a word of groups. */
static attn_status append(world *w, int32_t seq, int32_t count, const int32_t *tokens, int64_t *slots,
                          attn_pool_copies *copies, int plain) {
  if (!plain || w->num_groups > 1) {
    return attn_pool_append_groups(w->pool, seq, count, tokens, slots, MOST, copies, &message);
  }
  if (tokens == NULL && copies == NULL) {
    return attn_pool_append(w->pool, seq, count, slots, &message);
  }
  return attn_pool_append_cow(w->pool, seq, count, tokens, slots, copies, &message);
}

static void check_appended(const world *w, const snapshot *before, int32_t seq, int32_t count, const append_plan *plan,
                           int32_t first, const int64_t *slots) {
  snapshot after;
  world_snapshot(w, &after);
  FUZZ_CHECK(w->copies.count == first + plan->copied && after.info.free == before->info.free - plan->needed,
             "an append made %d copies and took %d blocks", (int)(w->copies.count - first),
             (int)(before->info.free - after.info.free));
  for (int32_t i = 0; i < plan->copied; i++) {
    FUZZ_CHECK(w->map[2 * (first + i)] == plan->tails[i], "another block is to be copied");
  }
  for (int32_t g = 0; g < w->num_groups; g++) {
    int32_t block_size = w->groups[g].block_size;
    for (int32_t i = 0; i < count; i++) {
      int32_t at = before->lens[seq] + i;
      int32_t block = after.table[g][seq][at / block_size];
      FUZZ_CHECK(slots[g * MOST + i] == (int64_t)block * block_size + at % block_size && after.holders[block] == 1,
                 "slot %d of an append", (int)i);
    }
  }
}

static void do_append(world *w, fuzz_bytes *in) {
  int32_t seq = draw_seq(w, in);
  int32_t count = fuzz_below(in, MOST + 1);
  int32_t how = fuzz_u8(in);
  int32_t tokens[MOST];
  int64_t slots[GROUPS * MOST];
  snapshot after;
  draw_tokens(in, count, tokens);
  if (w->num_writes / GROUPS + count > BATCH || how >= 192) {
    world_perform(w);
  }
  attn_pool_copies *copies = how % 8 < 6 ? &w->copies : NULL;
  const int32_t *given = how % 4 != 0 && w->prefix_cache ? tokens : NULL;
  append_plan plan = plan_append(w, &w->now, seq, count, copies != NULL);
  int32_t first = w->copies.count;
  FUZZ_CHECK(w->hostile || attn_pool_blocks_needed(w->pool, seq, count) == plan.needed, "%d blocks needed, not %d",
             (int)attn_pool_blocks_needed(w->pool, seq, count), (int)plan.needed);
  fuzz_message_reset(&message);
  attn_status status = append(w, seq, count, given, slots, copies, how % 3);
  fuzz_message_check(status, &message);
  if (w->hostile) {
    w->copies.count = 0;
    return;
  }
  FUZZ_CHECK(status == plan.status, "append of %d: status %d, not %d", (int)count, (int)status, (int)plan.status);
  if (status == ATTN_OK) {
    check_appended(w, &w->now, seq, count, &plan, first, slots);
    world_append(w, seq, count, given, slots);
    return;
  }
  world_snapshot(w, &after);
  FUZZ_CHECK(memcmp(&w->now, &after, sizeof after) == 0 && w->copies.count == first, "a failing append did something");
}

static void do_free(world *w, fuzz_bytes *in) {
  int32_t seq = draw_seq(w, in);
  world_perform(w);
  fuzz_message_reset(&message);
  attn_status status = attn_pool_free_seq(w->pool, seq, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status == ATTN_OK, "free: %s", message.text);
  memset(&w->seqs[seq], 0, sizeof w->seqs[seq]);
}

static void do_trim(world *w, fuzz_bytes *in) {
  int32_t seq = draw_seq(w, in);
  int32_t computed = fuzz_below(in, TOKENS + 2) - 1;
  int32_t released = -7;
  int32_t wanted = 0;
  world_perform(w);
  sequence *s = &w->seqs[seq];
  int valid = computed >= 0 && computed <= attn_pool_seq_len(w->pool, seq);
  fuzz_message_reset(&message);
  attn_status status = attn_pool_trim(w->pool, seq, computed, &released, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status == (valid ? ATTN_OK : ATTN_E_RANGE), "trim to %d: status %d", (int)computed, (int)status);
  for (int32_t g = 0; valid && !w->hostile && g < w->num_groups; g++) {
    int32_t more = world_behind(w, g, computed) - s->trimmed[g];
    more = more > 0 ? more : 0;
    s->trimmed[g] += more;
    w->trimmed[g] += more;
    wanted += more;
  }
  FUZZ_CHECK(w->hostile || released == (valid ? wanted : -7), "%d entries given back, not %d", (int)released,
             (int)wanted);
}

static void do_fork(world *w, fuzz_bytes *in) {
  int32_t parent = draw_seq(w, in);
  int32_t child = draw_seq(w, in);
  world_perform(w);
  attn_status wanted = attn_pool_seq_len(w->pool, child) != 0 ? ATTN_E_STATE : ATTN_OK;
  fuzz_message_reset(&message);
  attn_status status = attn_pool_fork(w->pool, parent, child, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(w->hostile || status == wanted, "fork: status %d, not %d", (int)status, (int)wanted);
  if (status == ATTN_OK) {
    w->seqs[child] = w->seqs[parent];
  }
}

static void do_commit(world *w, fuzz_bytes *in) {
  int32_t seq = draw_seq(w, in);
  world_perform(w);
  fuzz_message_reset(&message);
  attn_status status = attn_pool_commit(w->pool, seq, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status == (w->prefix_cache ? ATTN_OK : ATTN_E_STATE), "commit: status %d", (int)status);
  if (status == ATTN_OK && !w->has_window) { /* blocks given back are not there to be found */
    w->seqs[seq].committed = w->seqs[seq].known / w->groups[0].block_size * w->groups[0].block_size;
  }
}

/* The multiple of every block size. */
static int32_t unit_of(const world *w) {
  int32_t unit = 1;
  for (int32_t g = 0; g < w->num_groups; unit++) {
    for (g = 0; g < w->num_groups && unit % w->groups[g].block_size == 0; g++) {
    }
    if (g == w->num_groups) {
      break;
    }
  }
  return unit;
}

/* Tokens of the beginning that some sequence holds in blocks that it has committed. */
static int32_t must_find(const world *w, const int32_t *tokens, int32_t count) {
  int32_t most = 0;
  for (int32_t i = 0; i < w->max_seqs; i++) {
    const sequence *s = &w->seqs[i];
    int32_t same = 0;
    while (same < count && same < s->committed && tokens[same] == s->tokens[same]) {
      same++;
    }
    most = same > most ? same : most;
  }
  return most;
}

static void do_reuse(world *w, fuzz_bytes *in) {
  int32_t seq = draw_seq(w, in);
  int32_t like = draw_seq(w, in);
  int32_t count = fuzz_below(in, TOKENS + 1);
  int32_t tokens[TOKENS];
  int32_t reused = -7;
  int32_t unit = unit_of(w);
  draw_tokens(in, count, tokens);
  if (fuzz_u8(in) % 4 != 0) { /* the beginning of another sequence, and then something else */
    int32_t same = w->seqs[like].known < count ? w->seqs[like].known : count;
    memcpy(tokens, w->seqs[like].tokens, (size_t)same * sizeof *tokens);
  }
  world_perform(w);
  attn_status wanted = !w->prefix_cache || attn_pool_seq_len(w->pool, seq) != 0 ? ATTN_E_STATE : ATTN_OK;
  fuzz_message_reset(&message);
  attn_status status = attn_pool_reuse_prefix(w->pool, seq, tokens, count, &reused, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status == wanted, "reuse: status %d, not %d", (int)status, (int)wanted);
  if (status != ATTN_OK) {
    FUZZ_CHECK(reused == -7, "a failing reuse wrote its answer");
    return;
  }
  FUZZ_CHECK(reused >= 0 && reused % unit == 0 && reused <= count && reused <= w->max_len, "%d tokens reused of %d",
             (int)reused, (int)count);
  FUZZ_CHECK(w->hostile || reused >= must_find(w, tokens, count < w->max_len ? count : w->max_len) / unit * unit,
             "%d tokens reused, another sequence holds more", (int)reused);
  world_start(w, seq, reused, tokens);
}

static void do_allocate(world *w, fuzz_bytes *in) {
  int32_t blocks[4] = {-7, -7, -7, -7};
  int32_t count = fuzz_below(in, 5);
  world_perform(w);
  attn_status wanted = count > attn_pool_num_free(w->pool) ? ATTN_E_FULL : ATTN_OK;
  fuzz_message_reset(&message);
  attn_status status = attn_pool_allocate(w->pool, count, blocks, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status == wanted, "allocate %d: status %d, not %d", (int)count, (int)status, (int)wanted);
  for (int32_t i = 0; i < 4; i++) {
    int taken = status == ATTN_OK && i < count;
    FUZZ_CHECK(taken ? blocks[i] > 0 && blocks[i] < w->num_blocks : blocks[i] == -7, "block %d allocated",
               (int)blocks[i]);
    if (taken) {
      w->extra[blocks[i]]++;
      memset(w->cache[blocks[i]], 0, sizeof w->cache[0]); /* it is the caller's to write */
    }
  }
}

static void do_retain(world *w, fuzz_bytes *in) {
  int32_t block = fuzz_below(in, BLOCKS + 2) - 1;
  int used = attn_pool_references(w->pool, block) > 0;
  fuzz_message_reset(&message);
  attn_status status = attn_pool_retain(w->pool, block, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status == (used ? ATTN_OK : ATTN_E_INDEX), "retain %d: status %d", (int)block, (int)status);
  if (used) {
    w->extra[block]++;
  }
}

static void do_release(world *w, fuzz_bytes *in) {
  int32_t block = fuzz_below(in, BLOCKS + 2) - 1;
  int used = attn_pool_references(w->pool, block) > 0;
  if (used && !w->hostile && w->extra[block] == 0) {
    return; /* it is a sequence's */
  }
  world_perform(w);
  fuzz_message_reset(&message);
  attn_status status = attn_pool_release(w->pool, block, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status == (used ? ATTN_OK : ATTN_E_INDEX), "release %d: status %d", (int)block, (int)status);
  if (used) {
    w->extra[block]--;
  }
}

/* A call with an argument that none accepts. */
static attn_status call_wrongly(const world *w, int32_t kind, int32_t bad, int32_t seq, int32_t *table, int64_t *slot) {
  attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  copies.count = 1;
  switch (kind) {
  case 0:
    return attn_pool_append_groups(w->pool, bad, 1, NULL, slot, 1, NULL, &message);
  case 1:
    return attn_pool_append_groups(w->pool, seq, -1, NULL, slot, 1, NULL, &message);
  case 2:
    return attn_pool_append_groups(w->pool, seq, 1, NULL, NULL, 1, NULL, &message);
  case 3:
    return attn_pool_append_groups(w->pool, seq, INT32_MAX, NULL, slot, INT64_MAX, NULL, &message);
  case 4:
    return attn_pool_append_groups(w->pool, seq, 1, NULL, slot, 1, &copies, &message);
  case 5:
    return attn_pool_free_seq(w->pool, bad, &message);
  case 6:
    return attn_pool_fork(w->pool, bad, seq, &message);
  case 7:
    return attn_pool_fork(w->pool, seq, bad, &message);
  case 8:
    return attn_pool_commit(w->pool, bad, &message);
  case 9:
    return attn_pool_reuse_prefix(w->pool, bad, table, 0, table, &message);
  case 10:
    return attn_pool_group_table(w->pool, 0, 1, &bad, 1, table, NULL, &message);
  case 11:
    return attn_pool_group_table(w->pool, bad, 1, &seq, 1, table, NULL, &message);
  case 12:
    return attn_pool_allocate(w->pool, INT32_MAX, table, &message);
  case 13:
    return attn_pool_trim(w->pool, bad, 0, table, &message);
  case 14:
    return w->num_groups > 1 ? attn_pool_block_table(w->pool, 1, &seq, TOKENS, table, NULL, &message)
                             : attn_pool_block_table(w->pool, 1, &bad, TOKENS, table, NULL, &message);
  default:
    return attn_pool_release(w->pool, 0, &message);
  }
}

/* Each is refused, and nothing changes. */
static void do_nonsense(world *w, fuzz_bytes *in) {
  static const int32_t outside[] = {-1, INT32_MIN, INT32_MAX, SEQS, 1000};
  int32_t bad = outside[fuzz_below(in, 5)];
  int32_t seq = draw_seq(w, in);
  int32_t table[1] = {-7};
  int64_t slot = -7;
  snapshot after;
  fuzz_message_reset(&message);
  attn_status status = call_wrongly(w, fuzz_below(in, 16), bad, seq, table, &slot);
  fuzz_message_check(status, &message);
  world_snapshot(w, &after);
  FUZZ_CHECK(status != ATTN_OK && memcmp(&w->now, &after, sizeof after) == 0 && table[0] == -7 && slot == -7,
             "a refused call did something, or was not refused");
  FUZZ_CHECK(attn_pool_seq_len(w->pool, bad) == 0 && attn_pool_blocks_needed(w->pool, bad, 1) == -1,
             "a slot outside has tokens");
}

/* ---- The pool ---------------------------------------------------------------------------------------------------- */

/* Options that may be anything: a pool of a size that this machine has, or a refusal. */
static void create_any(fuzz_bytes *in) {
  attn_pool_options plain = ATTN_POOL_OPTIONS_INIT;
  attn_pool_groups_options options = ATTN_POOL_GROUPS_OPTIONS_INIT;
  attn_pool_group groups[GROUPS] = {ATTN_POOL_GROUP_INIT, ATTN_POOL_GROUP_INIT, ATTN_POOL_GROUP_INIT};
  attn_pool *pool = NULL;
  int with_groups = fuzz_below(in, 2);
  double columns = 0;
  double positions = 0;
  plain.num_blocks = options.num_blocks = fuzz_i32(in);
  plain.max_seqs = options.max_seqs = fuzz_i32(in);
  plain.max_seq_blocks = options.max_seq_len = fuzz_i32(in);
  plain.prefix_cache = options.prefix_cache = fuzz_i32(in);
  plain.hash_mask = options.hash_mask = (uint64_t)fuzz_i64(in);
  options.num_groups = fuzz_below(in, 8) == 7 ? fuzz_i32(in) : 1 + fuzz_below(in, GROUPS);
  options.num_groups = options.num_groups > GROUPS && options.num_groups <= ATTN_MAX_GROUPS ? 1 : options.num_groups;
  options.groups = fuzz_below(in, 8) == 7 ? NULL : groups;
  for (int32_t g = 0; g < GROUPS; g++) {
    groups[g].block_size = fuzz_i32(in);
    groups[g].kernel_block = fuzz_i32(in);
    groups[g].window = fuzz_i32(in);
    columns += groups[g].block_size > 0 ? (double)options.max_seq_len / groups[g].block_size + 1 : 0;
    positions += groups[g].block_size;
  }
  plain.block_size = groups[0].block_size;
  double bytes = 4.0 * options.max_seqs * (with_groups ? columns + 6 : plain.max_seq_blocks + 4.0) +
                 80.0 * options.num_blocks + (options.prefix_cache == 1 ? 4.0 * options.num_blocks * positions : 0);
  if (bytes > 1e7 && bytes < 1e20) {
    return; /* valid, perhaps, and too large to try */
  }
  fuzz_message_reset(&message);
  attn_status status =
      with_groups ? attn_pool_create_groups(&options, &pool, &message) : attn_pool_create(&plain, &pool, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK((status == ATTN_OK) == (pool != NULL), "status %d and a pool", (int)status);
  FUZZ_CHECK(status != ATTN_OK || attn_pool_check(pool, &message) == ATTN_OK, "a new pool: %s", message.text);
  attn_pool_destroy(pool);
}

static void draw_groups(world *w, fuzz_bytes *in) {
  static const int32_t counts[] = {1, 1, 2, 3};
  static const int32_t windows[] = {0, 0, 0, 1, 2, 5, 9};
  const attn_pool_group initial = ATTN_POOL_GROUP_INIT;
  w->num_groups = counts[fuzz_below(in, 4)];
  for (int32_t g = 0; g < w->num_groups; g++) {
    int32_t size = 1 + fuzz_below(in, BLOCK_SIZE);
    int32_t part = 1 + fuzz_below(in, 3);
    w->groups[g] = initial;
    w->groups[g].block_size = size;
    w->groups[g].kernel_block = size % part == 0 ? size / part : size;
    w->groups[g].window = windows[fuzz_below(in, 7)];
    w->has_window |= w->groups[g].window > 0;
  }
}

static void open_world(world *w, fuzz_bytes *in) {
  static const uint64_t masks[] = {0, 0, 1, UINT64_C(1) << 63, 3};
  attn_pool_groups_options options = ATTN_POOL_GROUPS_OPTIONS_INIT;
  const attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  memset(w, 0, sizeof *w);
  uint8_t kind = fuzz_u8(in);
  w->hostile = kind & 1;
  draw_groups(w, in);
  options.groups = w->groups;
  options.num_groups = w->num_groups;
  options.prefix_cache = w->prefix_cache = kind % 8 < 6;
  options.num_blocks = w->num_blocks = 2 + fuzz_below(in, BLOCKS - 1);
  options.max_seqs = w->max_seqs = 1 + fuzz_below(in, SEQS);
  options.max_seq_len = w->max_len = 1 + fuzz_below(in, TOKENS);
  options.hash_mask = w->prefix_cache ? masks[fuzz_below(in, 5)] : 0;
  w->copies = copies;
  w->copies.capacity = COPIES;
  w->copies.block_map = w->map;
  fuzz_message_reset(&message);
  FUZZ_CHECK(attn_pool_create_groups(&options, &w->pool, &message) == ATTN_OK, "no pool: %s", message.text);
}

static void step(world *w, fuzz_bytes *in) {
  static void (*const steps[])(world *, fuzz_bytes *) = {
      do_append, do_append, do_append, do_append,   do_append, do_append,  do_append,  do_append, do_append,  do_commit,
      do_commit, do_commit, do_commit, do_fork,     do_fork,   do_fork,    do_free,    do_free,   do_free,    do_reuse,
      do_reuse,  do_reuse,  do_reuse,  do_allocate, do_retain, do_release, do_release, do_trim,   do_nonsense};
  int32_t kind = fuzz_below(in, 32);
  if (kind < (int32_t)(sizeof steps / sizeof steps[0])) {
    steps[kind](w, in);
  } else {
    world_perform(w);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static world w;
  fuzz_bytes in = {data, size};
  if (size > 0 && data[0] >= 0xF8) {
    (void)fuzz_u8(&in);
    create_any(&in);
    return 0;
  }
  open_world(&w, &in);
  world_check(&w);
  while (in.left > 0) {
    step(&w, &in);
    world_check(&w);
  }
  attn_pool_destroy(w.pool);
  return 0;
}
