/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_pool.c: the block manager's operations. The first bytes of an input say how large the pool is, the others are
 * operations. After every one the books are checked, and a cache that the pool's answers drive is looked at: each row
 * is one number, which stands for the row's token and all tokens before it, and every sequence must find its own in the
 * blocks of its table. A block shared, copied, kept or handed out wrongly shows as a foreign number. References, free
 * blocks and the status of each call are counted from the tables alone.
 *
 * With the first byte odd the caller also releases references that are not its own; then nothing is promised but that
 * no call steps outside of the pool's memory.
 */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

enum { BLOCKS = 20, BLOCK_SIZE = 6, SEQS = 5, WIDTH = 7, TOKENS = WIDTH * BLOCK_SIZE, BATCH = 40, COPIES = 4 };

typedef struct sequence {
  int32_t len;
  int32_t known;     /* leading tokens whose ids the pool was given */
  int32_t committed; /* leading blocks that must be found again */
  int32_t tokens[TOKENS];
  uint64_t rows[TOKENS]; /* what the cache must hold */
} sequence;

typedef struct row_write {
  int64_t slot;
  uint64_t row;
} row_write;

typedef struct world {
  attn_pool_options options;
  attn_pool *pool;
  int hostile;
  sequence seqs[SEQS];
  int32_t extra[BLOCKS]; /* references of the caller */
  uint64_t cache[BLOCKS][BLOCK_SIZE];
  uint64_t stamp; /* of the last row whose token nobody knows */
  /* The step that is not performed yet. */
  int64_t map[2 * COPIES];
  attn_pool_copies copies;
  row_write writes[BATCH];
  int32_t num_writes;
} world;

static attn_message message;

/* ---- What the tables say ----------------------------------------------------------------------------------------- */

static int32_t blocks_of(const world *w, int32_t tokens) {
  return (tokens + w->options.block_size - 1) / w->options.block_size;
}

typedef struct snapshot {
  int32_t table[SEQS][WIDTH];
  int32_t lens[SEQS];
  int32_t references[BLOCKS];
  int32_t holders[BLOCKS];
  attn_pool_info info;
} snapshot;

static void take_snapshot(const world *w, snapshot *now) {
  static const int32_t seqs[SEQS] = {0, 1, 2, 3, 4};
  const attn_pool_info initial = ATTN_POOL_INFO_INIT;
  memset(now, 0, sizeof *now);
  now->info = initial;
  fuzz_message_reset(&message);
  attn_status status = attn_pool_get_info(w->pool, &now->info, &message);
  FUZZ_CHECK(status == ATTN_OK, "info: %s", message.text);
  for (int32_t i = 0; i < w->options.max_seqs; i++) {
    status = attn_pool_block_table(w->pool, 1, &seqs[i], WIDTH, now->table[i], &now->lens[i], &message);
    FUZZ_CHECK(status == ATTN_OK, "table: %s", message.text);
    for (int32_t column = 0; !w->hostile && column < WIDTH; column++) {
      int32_t block = now->table[i][column];
      int held = column < blocks_of(w, now->lens[i]);
      FUZZ_CHECK(held ? block > 0 && block < w->options.num_blocks : block == 0, "seq %d has block %d in column %d",
                 (int)i, (int)block, (int)column);
      now->holders[block] += held;
    }
  }
  for (int32_t block = 0; block < w->options.num_blocks; block++) {
    now->references[block] = attn_pool_references(w->pool, block);
  }
}

static int32_t tail_of(const world *w, const snapshot *now, int32_t seq) {
  int32_t len = now->lens[seq];
  return len % w->options.block_size != 0 ? now->table[seq][len / w->options.block_size] : 0;
}

/* The books, the counts and every row of every sequence. */
static void check_world(world *w) {
  snapshot now;
  int32_t used = 0;
  int32_t shared = 0;
  fuzz_message_reset(&message);
  attn_status status = attn_pool_check(w->pool, &message);
  take_snapshot(w, &now);
  if (w->hostile) {
    FUZZ_CHECK(status == ATTN_OK || status == ATTN_E_INTERNAL, "check: status %d", (int)status);
    return;
  }
  FUZZ_CHECK(status == ATTN_OK, "%s", message.text);
  for (int32_t block = 1; block < w->options.num_blocks; block++) {
    FUZZ_CHECK(now.references[block] == now.holders[block] + w->extra[block], "block %d has %d references, not %d",
               (int)block, (int)now.references[block], (int)(now.holders[block] + w->extra[block]));
    used += now.references[block] > 0;
    shared += now.holders[block] > 1;
  }
  FUZZ_CHECK(now.info.used == used && now.info.free == w->options.num_blocks - 1 - used && now.info.shared == shared &&
                 now.info.cached >= 0 && now.info.cached <= now.info.free,
             "used %d, free %d, shared %d, kept %d; %d and %d were found", (int)now.info.used, (int)now.info.free,
             (int)now.info.shared, (int)now.info.cached, (int)used, (int)shared);
  for (int32_t i = 0; i < w->options.max_seqs; i++) {
    const sequence *s = &w->seqs[i];
    FUZZ_CHECK(now.lens[i] == s->len, "seq %d has %d tokens, not %d", (int)i, (int)now.lens[i], (int)s->len);
    for (int32_t t = 0; w->num_writes == 0 && w->copies.count == 0 && t < s->len; t++) {
      int32_t block = now.table[i][t / w->options.block_size];
      FUZZ_CHECK(w->cache[block][t % w->options.block_size] == s->rows[t], "seq %d finds a foreign row at token %d",
                 (int)i, (int)t);
    }
  }
}

/* ---- The step ---------------------------------------------------------------------------------------------------- */

/* All copies, then all rows: what the caller owes before it frees, forks, commits or reuses. */
static void perform_step(world *w) {
  for (int32_t i = 0; i < w->copies.count; i++) {
    memcpy(w->cache[w->map[2 * i + 1]], w->cache[w->map[2 * i]], sizeof w->cache[0]);
  }
  for (int32_t i = 0; i < w->num_writes; i++) {
    w->cache[w->writes[i].slot / w->options.block_size][w->writes[i].slot % w->options.block_size] = w->writes[i].row;
  }
  w->copies.count = 0;
  w->num_writes = 0;
}

/* The row of a token is made of it and of the rows before it. */
static uint64_t next_row(const sequence *s, int32_t at, int32_t token) {
  uint64_t before = at > 0 ? s->rows[at - 1] : 0x9E3779B97F4A7C15u;
  uint64_t row = (before ^ (uint32_t)token) * 0xD6E8FEB86659FD93u;
  return (row ^ (row >> 29)) | 1;
}

static void append_rows(world *w, sequence *s, int32_t count, const int32_t *tokens, const int64_t *slots) {
  int follows = tokens != NULL && s->known == s->len;
  for (int32_t i = 0; i < count; i++) {
    int32_t at = s->len + i;
    s->tokens[at] = follows ? tokens[i] : 0;
    s->rows[at] = follows ? next_row(s, at, tokens[i]) : (++w->stamp << 1);
    w->writes[w->num_writes++] = (row_write){slots[i], s->rows[at]};
  }
  s->len += count;
  s->known += follows ? count : 0;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static int32_t draw_seq(const world *w, fuzz_bytes *in) {
  return fuzz_below(in, w->options.max_seqs);
}

/* Few ids: prefixes meet often. */
static void draw_tokens(fuzz_bytes *in, int32_t count, int32_t *tokens) {
  int32_t common = fuzz_u8(in);
  for (int32_t i = 0; i < count; i++) {
    tokens[i] = common < 192 ? common % 3 : fuzz_u8(in) % 2;
  }
}

static void do_append(world *w, fuzz_bytes *in) {
  int32_t seq = draw_seq(w, in);
  int32_t count = fuzz_below(in, 2 * w->options.block_size + 2);
  int32_t how = fuzz_u8(in);
  int32_t tokens[2 * BLOCK_SIZE + 2];
  int64_t slots[2 * BLOCK_SIZE + 2];
  snapshot before;
  snapshot after;
  draw_tokens(in, count, tokens);
  if (w->num_writes + count > BATCH || w->copies.count == w->copies.capacity) {
    perform_step(w);
  }
  take_snapshot(w, &before);
  const int32_t *given = how % 4 != 0 && w->options.prefix_cache ? tokens : NULL;
  attn_pool_copies *copies = how % 8 < 6 ? &w->copies : NULL;
  int32_t tail = count > 0 ? tail_of(w, &before, seq) : 0;
  int32_t copied = !w->hostile && tail != 0 && before.holders[tail] > 1;
  int32_t len = before.lens[seq] + count;
  int32_t needed = blocks_of(w, len) - blocks_of(w, before.lens[seq]) + copied;
  attn_status wanted = ATTN_OK;
  if (len > w->options.max_seq_blocks * w->options.block_size) {
    wanted = ATTN_E_CAPACITY;
  } else if (copied && copies == NULL) {
    wanted = ATTN_E_STATE;
  } else if (needed > before.info.free) {
    wanted = ATTN_E_FULL;
  }
  int32_t first = w->copies.count;
  FUZZ_CHECK(w->hostile || attn_pool_blocks_needed(w->pool, seq, count) == needed, "%d blocks needed, not %d",
             (int)attn_pool_blocks_needed(w->pool, seq, count), (int)needed);
  fuzz_message_reset(&message);
  attn_status status = given == NULL && copies == NULL
                           ? attn_pool_append(w->pool, seq, count, slots, &message)
                           : attn_pool_append_cow(w->pool, seq, count, given, slots, copies, &message);
  fuzz_message_check(status, &message);
  if (w->hostile) {
    w->copies.count = 0;
    return;
  }
  FUZZ_CHECK(status == wanted, "append of %d: status %d, not %d", (int)count, (int)status, (int)wanted);
  take_snapshot(w, &after);
  if (status != ATTN_OK) {
    FUZZ_CHECK(memcmp(&before, &after, sizeof after) == 0 && w->copies.count == first,
               "a failing append did something");
    return;
  }
  FUZZ_CHECK(w->copies.count == first + copied && (!copied || w->map[2 * first] == tail), "the copies of an append");
  FUZZ_CHECK(after.info.free == before.info.free - needed, "an append took %d blocks, not %d",
             (int)(before.info.free - after.info.free), (int)needed);
  for (int32_t i = 0; i < count; i++) {
    int32_t at = before.lens[seq] + i;
    int32_t block = after.table[seq][at / w->options.block_size];
    FUZZ_CHECK(slots[i] == (int64_t)block * w->options.block_size + at % w->options.block_size, "slot %d of an append",
               (int)i);
    FUZZ_CHECK(after.holders[block] == 1, "a token goes into a block that is shared");
  }
  append_rows(w, &w->seqs[seq], count, given, slots);
}

static void do_free(world *w, fuzz_bytes *in) {
  int32_t seq = draw_seq(w, in);
  perform_step(w);
  fuzz_message_reset(&message);
  attn_status status = attn_pool_free_seq(w->pool, seq, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status == ATTN_OK, "free: %s", message.text);
  memset(&w->seqs[seq], 0, sizeof w->seqs[seq]);
}

static void do_fork(world *w, fuzz_bytes *in) {
  int32_t parent = draw_seq(w, in);
  int32_t child = draw_seq(w, in);
  perform_step(w);
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
  perform_step(w);
  fuzz_message_reset(&message);
  attn_status status = attn_pool_commit(w->pool, seq, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status == (w->options.prefix_cache ? ATTN_OK : ATTN_E_STATE), "commit: status %d", (int)status);
  if (status == ATTN_OK) {
    w->seqs[seq].committed = w->seqs[seq].known / w->options.block_size;
  }
}

/* Blocks of the beginning of `tokens` that some sequence holds and has committed. */
static int32_t must_find(const world *w, const int32_t *tokens, int32_t full) {
  int32_t most = 0;
  for (int32_t i = 0; i < w->options.max_seqs; i++) {
    const sequence *s = &w->seqs[i];
    int32_t blocks = 0;
    while (blocks < full && blocks < s->committed &&
           memcmp(tokens, s->tokens, (size_t)((blocks + 1) * w->options.block_size) * sizeof *tokens) == 0) {
      blocks++;
    }
    most = blocks > most ? blocks : most;
  }
  return most;
}

static void do_reuse(world *w, fuzz_bytes *in) {
  int32_t seq = draw_seq(w, in);
  int32_t like = draw_seq(w, in);
  int32_t count = fuzz_below(in, TOKENS + 1);
  int32_t tokens[TOKENS];
  int32_t reused = -7;
  sequence *s = &w->seqs[seq];
  draw_tokens(in, count, tokens);
  if (fuzz_u8(in) % 4 != 0) { /* the beginning of another sequence, and then something else */
    int32_t same = w->seqs[like].known < count ? w->seqs[like].known : count;
    memcpy(tokens, w->seqs[like].tokens, (size_t)same * sizeof *tokens);
  }
  perform_step(w);
  attn_status wanted = !w->options.prefix_cache || attn_pool_seq_len(w->pool, seq) != 0 ? ATTN_E_STATE : ATTN_OK;
  fuzz_message_reset(&message);
  attn_status status = attn_pool_reuse_prefix(w->pool, seq, tokens, count, &reused, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status == wanted, "reuse: status %d, not %d", (int)status, (int)wanted);
  if (status != ATTN_OK) {
    FUZZ_CHECK(reused == -7, "a failing reuse wrote its answer");
    return;
  }
  int32_t full = count / w->options.block_size;
  full = full < w->options.max_seq_blocks ? full : w->options.max_seq_blocks;
  FUZZ_CHECK(reused >= 0 && reused % w->options.block_size == 0 && reused <= full * w->options.block_size,
             "%d tokens reused of %d", (int)reused, (int)count);
  FUZZ_CHECK(w->hostile || reused >= must_find(w, tokens, full) * w->options.block_size,
             "%d tokens reused, others hold more", (int)reused);
  memset(s, 0, sizeof *s);
  for (; s->len < reused; s->len++) {
    s->tokens[s->len] = tokens[s->len];
    s->rows[s->len] = next_row(s, s->len, tokens[s->len]);
  }
  s->known = reused;
  s->committed = reused / w->options.block_size;
}

static void do_allocate(world *w, fuzz_bytes *in) {
  int32_t blocks[4] = {-7, -7, -7, -7};
  int32_t count = fuzz_below(in, 5);
  perform_step(w);
  attn_status wanted = count > attn_pool_num_free(w->pool) ? ATTN_E_FULL : ATTN_OK;
  fuzz_message_reset(&message);
  attn_status status = attn_pool_allocate(w->pool, count, blocks, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status == wanted, "allocate %d: status %d, not %d", (int)count, (int)status, (int)wanted);
  for (int32_t i = 0; i < 4; i++) {
    int taken = status == ATTN_OK && i < count;
    FUZZ_CHECK(taken ? blocks[i] > 0 && blocks[i] < w->options.num_blocks : blocks[i] == -7, "block %d allocated",
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
  int inside = block > 0 && block < w->options.num_blocks;
  int used = attn_pool_references(w->pool, block) > 0;
  if (used && !w->hostile && w->extra[block] == 0) {
    return; /* it is a sequence's */
  }
  perform_step(w);
  fuzz_message_reset(&message);
  attn_status status = attn_pool_release(w->pool, block, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status == (used ? ATTN_OK : ATTN_E_INDEX), "release %d: status %d", (int)block, (int)status);
  if (used && inside) {
    w->extra[block]--;
  }
}

/* Arguments that no call accepts: each is refused, and nothing changes. */
static void do_nonsense(world *w, fuzz_bytes *in) {
  static const int32_t outside[] = {-1, INT32_MIN, INT32_MAX, SEQS, 1000};
  int32_t bad = outside[fuzz_below(in, 5)];
  int32_t seq = draw_seq(w, in);
  int32_t table[1] = {-7};
  int64_t slot = -7;
  snapshot before;
  snapshot after;
  attn_status status = ATTN_OK;
  attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  copies.count = 1;
  take_snapshot(w, &before);
  fuzz_message_reset(&message);
  switch (fuzz_below(in, 14)) {
  case 0:
    status = attn_pool_append(w->pool, bad, 1, &slot, &message);
    break;
  case 1:
    status = attn_pool_append(w->pool, seq, -1, &slot, &message);
    break;
  case 2:
    status = attn_pool_append(w->pool, seq, 1, NULL, &message);
    break;
  case 3:
    status = attn_pool_append(w->pool, seq, INT32_MAX, &slot, &message);
    break;
  case 4:
    status = attn_pool_append_cow(w->pool, seq, 1, NULL, &slot, &copies, &message);
    break;
  case 5:
    status = attn_pool_free_seq(w->pool, bad, &message);
    break;
  case 6:
    status = attn_pool_fork(w->pool, bad, seq, &message);
    break;
  case 7:
    status = attn_pool_fork(w->pool, seq, bad, &message);
    break;
  case 8:
    status = attn_pool_commit(w->pool, bad, &message);
    break;
  case 9:
    status = attn_pool_reuse_prefix(w->pool, bad, table, 0, table, &message);
    break;
  case 10:
    status = attn_pool_block_table(w->pool, 1, &bad, 1, table, NULL, &message);
    break;
  case 11:
    status = attn_pool_block_table(w->pool, bad == SEQS || bad > 0 ? -1 : bad, &seq, 1, table, NULL, &message);
    break;
  case 12:
    status = attn_pool_allocate(w->pool, INT32_MAX, table, &message);
    break;
  default:
    status = before.lens[seq] > 0 ? attn_pool_block_table(w->pool, 1, &seq, 0, table, NULL, &message)
                                  : attn_pool_release(w->pool, 0, &message);
    break;
  }
  fuzz_message_check(status, &message);
  take_snapshot(w, &after);
  FUZZ_CHECK(status != ATTN_OK && memcmp(&before, &after, sizeof after) == 0 && table[0] == -7 && slot == -7,
             "a refused call did something, or was not refused");
  FUZZ_CHECK(attn_pool_seq_len(w->pool, bad) == 0 && attn_pool_blocks_needed(w->pool, bad, 1) == -1,
             "a slot outside has tokens");
}

/* ---- The pool ---------------------------------------------------------------------------------------------------- */

/* Options that may be anything: a pool of a size that this machine has, or a refusal. */
static void create_any(fuzz_bytes *in) {
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  attn_pool *pool = NULL;
  options.num_blocks = fuzz_i32(in);
  options.block_size = fuzz_i32(in);
  options.max_seqs = fuzz_i32(in);
  options.max_seq_blocks = fuzz_i32(in);
  options.prefix_cache = fuzz_i32(in);
  options.hash_mask = (uint64_t)fuzz_i64(in);
  double bytes = 4.0 * ((double)options.max_seqs * options.max_seq_blocks) + 64.0 * (double)options.num_blocks;
  if (options.prefix_cache == 1) {
    bytes += 4.0 * ((double)options.num_blocks * options.block_size);
  }
  if (bytes > 1e7 && bytes < 1e19) {
    return; /* valid, perhaps, and too large to try */
  }
  fuzz_message_reset(&message);
  attn_status status = attn_pool_create(&options, &pool, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK((status == ATTN_OK) == (pool != NULL), "status %d and a pool", (int)status);
  FUZZ_CHECK(status != ATTN_OK || attn_pool_check(pool, &message) == ATTN_OK, "a new pool: %s", message.text);
  attn_pool_destroy(pool);
}

static void open_world(world *w, fuzz_bytes *in) {
  static const uint64_t masks[] = {0, 0, 1, UINT64_C(1) << 63, 3};
  const attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  const attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  memset(w, 0, sizeof *w);
  uint8_t kind = fuzz_u8(in);
  w->hostile = kind & 1;
  w->options = options;
  w->options.prefix_cache = kind % 8 < 6;
  w->options.num_blocks = 2 + fuzz_below(in, BLOCKS - 1);
  w->options.block_size = 1 + fuzz_below(in, BLOCK_SIZE);
  w->options.max_seqs = 1 + fuzz_below(in, SEQS);
  w->options.max_seq_blocks = 1 + fuzz_below(in, WIDTH);
  w->options.hash_mask = w->options.prefix_cache ? masks[fuzz_below(in, 5)] : 0;
  w->copies = copies;
  w->copies.capacity = COPIES;
  w->copies.block_map = w->map;
  fuzz_message_reset(&message);
  FUZZ_CHECK(attn_pool_create(&w->options, &w->pool, &message) == ATTN_OK, "no pool: %s", message.text);
}

static void step(world *w, fuzz_bytes *in) {
  uint8_t kind = fuzz_u8(in) % 32;
  if (kind < 10) {
    do_append(w, in);
  } else if (kind < 14) {
    do_commit(w, in);
  } else if (kind < 18) {
    do_fork(w, in);
  } else if (kind < 21) {
    do_free(w, in);
  } else if (kind < 25) {
    do_reuse(w, in);
  } else if (kind < 27) {
    do_allocate(w, in);
  } else if (kind < 28) {
    do_retain(w, in);
  } else if (kind < 30) {
    do_release(w, in);
  } else if (kind < 31) {
    do_nonsense(w, in);
  } else {
    perform_step(w);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static world w;
  fuzz_bytes in = {data, size};
  if (size > 0 && data[0] >= 0xF8) {
    create_any(&in);
    return 0;
  }
  open_world(&w, &in);
  while (in.left > 0) {
    step(&w, &in);
    check_world(&w);
  }
  attn_pool_destroy(w.pool);
  return 0;
}
