/* SPDX-License-Identifier: Apache-2.0 */
/* test_pool_bytes.c: shared blocks with bytes in them. Sequences fork, go on, go, and start from reusable blocks in one
 * cache; in a second one each has blocks of its own and every row is written. Attention over both gives the same bits.
 *
 * A row of K or V follows from all tokens up to it, as in a language model: a wrong block shows.
 */
#include "harness.h"

#include <string.h>

#define BLOCK 4
#define SEQS 4
#define WIDTH 6
#define BLOCKS (SEQS * WIDTH + 1)
#define ROW 8
#define MAX_STEP 5

/* A pool and the cache behind it. */
typedef struct cache {
  attn_pool *pool;
  float k[BLOCKS * BLOCK * ROW];
  float v[BLOCKS * BLOCK * ROW];
  tensor t_k, t_v;
  float out[SEQS * ROW];
} cache;

typedef struct world {
  const char *backend;
  attn_context *context;
  attn_plan *plan;
  cache shared;
  cache plain;
  int32_t lens[SEQS];
  int32_t tokens[SEQS][WIDTH * BLOCK];
  uint32_t random;
} world;

static int32_t draw(world *w, uint32_t below) {
  return (int32_t)((random_bits(&w->random) >> 8) % below);
}

static void cache_open(cache *c, int32_t num_blocks, int32_t prefix_cache) {
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  options.num_blocks = num_blocks;
  options.block_size = BLOCK;
  options.max_seqs = SEQS;
  options.max_seq_blocks = WIDTH;
  options.prefix_cache = prefix_cache;
  EXPECT_OK(attn_pool_create(&options, &c->pool, &why));
  tensor_4(&c->t_k, c->k, ATTN_DTYPE_FLOAT32, BLOCKS, BLOCK, 1, ROW);
  tensor_4(&c->t_v, c->v, ATTN_DTYPE_FLOAT32, BLOCKS, BLOCK, 1, ROW);
}

static void world_open(world *w, const char *backend) {
  attn_problem problem = ATTN_PROBLEM_INIT;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  memset(w, 0xFF, sizeof *w);
  memset(w->lens, 0, sizeof w->lens);
  w->backend = backend;
  w->random = 3;
  w->context = open_context(1);
  cache_open(&w->shared, 14, 1); /* fuller than the other one, which has blocks for all */
  cache_open(&w->plain, BLOCKS, 0);
  problem.num_q_heads = problem.num_kv_heads = 1;
  problem.qk_head_size = ROW;
  problem.block_size = BLOCK;
  problem.scale = attn_softmax_scale(ROW);
  limits.max_tokens = SEQS;
  limits.max_kv_len = WIDTH * BLOCK;
  options.backend = backend;
  options.own_workspace = 1;
  EXPECT_OK(attn_plan_create(w->context, &problem, &limits, &options, &w->plan, &why));
}

static void world_close(world *w) {
  attn_pool_destroy(w->shared.pool);
  attn_pool_destroy(w->plain.pool);
  attn_plan_destroy(w->plan);
  attn_context_destroy(w->context);
}

/* The row of a position: of all tokens up to it. */
static void make_row(const int32_t *tokens, int32_t position, uint32_t salt, float *row) {
  uint32_t random = salt;
  for (int32_t i = 0; i <= position; i++) {
    random = (random + (uint32_t)tokens[i] + 1) * 2654435761u;
  }
  for (int i = 0; i < ROW; i++) {
    row[i] = random_normal(&random);
  }
}

/* Write rows `from` to the end of a sequence. */
static void write_rows(world *w, cache *c, int32_t seq, int32_t from, int64_t *slots) {
  float k[WIDTH * BLOCK * ROW];
  float v[WIDTH * BLOCK * ROW];
  int32_t rows = w->lens[seq] - from;
  tensor t_k, t_v, t_slots;
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  for (int32_t i = 0; i < rows; i++) {
    make_row(w->tokens[seq], from + i, 1, k + i * ROW);
    make_row(w->tokens[seq], from + i, 2, v + i * ROW);
  }
  tensor_3(&t_k, k, ATTN_DTYPE_FLOAT32, rows, 1, ROW);
  tensor_3(&t_v, v, ATTN_DTYPE_FLOAT32, rows, 1, ROW);
  tensor_1(&t_slots, slots, ATTN_DTYPE_INT64, rows);
  args.backend = w->backend;
  args.k = &t_k.t;
  args.v = &t_v.t;
  args.slot_mapping = &t_slots.t;
  args.k_cache = &c->t_k.t;
  args.v_cache = &c->t_v.t;
  EXPECT_OK(attn_cache_write(w->context, &args, &why));
}

static void perform(world *w, attn_pool_copies *copies) {
  attn_cache_copy_args args = ATTN_CACHE_COPY_INIT;
  tensor map;
  tensor_2(&map, copies->block_map, ATTN_DTYPE_INT64, copies->count, 2);
  args.block_map = &map.t;
  args.source = args.target = &w->shared.t_k.t;
  EXPECT_OK(attn_cache_copy(w->context, &args, &why));
  args.source = args.target = &w->shared.t_v.t;
  EXPECT_OK(attn_cache_copy(w->context, &args, &why));
  copies->count = 0;
}

static void run(world *w, cache *c) {
  static const int32_t seqs[SEQS] = {0, 1, 2, 3};
  int32_t starts[SEQS + 1] = {0, 1, 2, 3, 4};
  int32_t table[SEQS * WIDTH];
  int32_t lens[SEQS];
  float q[SEQS * ROW];
  uint32_t random = 77;
  tensor t_q, t_table, t_lens, t_starts, t_out;
  attn_batch batch = ATTN_BATCH_INIT;
  attn_run_args args = ATTN_RUN_INIT;
  for (int i = 0; i < SEQS * ROW; i++) {
    q[i] = random_normal(&random);
  }
  EXPECT_OK(attn_pool_block_table(c->pool, SEQS, seqs, WIDTH, table, lens, &why));
  assert_memory_equal(lens, w->lens, sizeof lens);
  tensor_3(&t_q, q, ATTN_DTYPE_FLOAT32, SEQS, 1, ROW);
  tensor_2(&t_table, table, ATTN_DTYPE_INT32, SEQS, WIDTH);
  tensor_1(&t_lens, lens, ATTN_DTYPE_INT32, SEQS);
  tensor_1(&t_starts, starts, ATTN_DTYPE_INT32, SEQS + 1);
  tensor_3(&t_out, c->out, ATTN_DTYPE_FLOAT32, SEQS, 1, ROW);
  batch.query_start_loc = &t_starts.t;
  batch.seq_lens = &t_lens.t;
  args.q = &t_q.t;
  args.k_cache = &c->t_k.t;
  args.v_cache = &c->t_v.t;
  args.block_table = &t_table.t;
  args.out = &t_out.t;
  EXPECT_OK(attn_plan_schedule(w->plan, &batch, NULL, &why));
  EXPECT_OK(attn_run(w->plan, &args, NULL, &why));
}

static void free_sequence(world *w, int32_t seq) {
  EXPECT_OK(attn_pool_free_seq(w->shared.pool, seq, &why));
  EXPECT_OK(attn_pool_free_seq(w->plain.pool, seq, &why));
  w->lens[seq] = 0;
}

/* In the plain cache the sequence is computed from its first token. */
static void write_plain(world *w, int32_t seq, int32_t from) {
  int64_t slots[WIDTH * BLOCK];
  EXPECT_OK(attn_pool_append(w->plain.pool, seq, w->lens[seq] - from, slots, &why));
  write_rows(w, &w->plain, seq, from, slots);
}

static void fork_sequence(world *w, int32_t parent, int32_t child) {
  EXPECT_OK(attn_pool_fork(w->shared.pool, parent, child, &why));
  memcpy(w->tokens[child], w->tokens[parent], sizeof w->tokens[child]);
  w->lens[child] = w->lens[parent];
  write_plain(w, child, 0);
}

/* Start from what the cache has of another sequence's tokens, the last of them changed now and then. */
static void start_again(world *w, int32_t seq) {
  int32_t reused = -1;
  memcpy(w->tokens[seq], w->tokens[draw(w, SEQS)], sizeof w->tokens[seq]);
  w->tokens[seq][draw(w, WIDTH * BLOCK)] = draw(w, 2);
  EXPECT_OK(attn_pool_reuse_prefix(w->shared.pool, seq, w->tokens[seq], WIDTH * BLOCK - MAX_STEP, &reused, &why));
  w->lens[seq] = reused;
  write_plain(w, seq, 0);
}

/* Every sequence grows by some tokens in one step; the copies come before the first write. */
static void grow_all(world *w) {
  int64_t slots[SEQS][MAX_STEP];
  int32_t from[SEQS];
  int64_t map[2 * SEQS];
  attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  copies.capacity = SEQS;
  copies.block_map = map;
  for (int32_t seq = 0; seq < SEQS; seq++) {
    int32_t count = draw(w, MAX_STEP + 1);
    from[seq] = w->lens[seq];
    if (from[seq] + count > WIDTH * BLOCK ||
        attn_pool_blocks_needed(w->shared.pool, seq, count) > attn_pool_num_free(w->shared.pool)) {
      continue;
    }
    for (int32_t i = 0; i < count; i++) {
      w->tokens[seq][from[seq] + i] = draw(w, 2);
    }
    EXPECT_OK(attn_pool_append_cow(w->shared.pool, seq, count, w->tokens[seq] + from[seq], slots[seq], &copies, &why));
    w->lens[seq] = from[seq] + count;
  }
  perform(w, &copies);
  for (int32_t seq = 0; seq < SEQS; seq++) {
    write_rows(w, &w->shared, seq, from[seq], slots[seq]);
    write_plain(w, seq, from[seq]);
    EXPECT_OK(attn_pool_commit(w->shared.pool, seq, &why));
  }
}

static void both_caches_agree(const char *backend) {
  static world w;
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  world_open(&w, backend);
  memset(w.tokens, 0, sizeof w.tokens);
  for (int step = 0; step < 400; step++) {
    int32_t seq = draw(&w, SEQS);
    if (draw(&w, 4) != 0) {
      free_sequence(&w, seq);
      if (draw(&w, 2) == 0) {
        start_again(&w, seq);
      } else {
        fork_sequence(&w, (seq + 1) % SEQS, seq);
      }
    }
    grow_all(&w);
    run(&w, &w.shared);
    run(&w, &w.plain);
    CHECK(same_bits(w.shared.out, w.plain.out, SEQS * ROW), "step %d: the caches give different results", step);
    EXPECT_OK(attn_pool_check(w.shared.pool, &why));
  }
  EXPECT_OK(attn_pool_get_info(w.shared.pool, &info, &why));
  CHECK(info.copies > 20 && info.hits > 20 && info.evictions > 20, "%lld copies, %lld hits, %lld evictions, wanted 20",
        (long long)info.copies, (long long)info.hits, (long long)info.evictions);
  world_close(&w);
}

static void test_shared_bytes(void **state) {
  (void)state;
  for_each_backend(both_caches_agree);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared_bytes)};
  return cmocka_run_group_tests_name("pool_bytes", tests, NULL, NULL);
}
