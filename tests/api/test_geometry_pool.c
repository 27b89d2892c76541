/* SPDX-License-Identifier: Apache-2.0 */
/* test_geometry_pool.c: one allocation of pages for four groups of layers, with bytes in it. Sequences grow, fork, go,
 * start from reusable pages, and their windows move on; in pools and caches of its own, one for each group, every
 * sequence is computed from its first token and keeps every block. Attention over both gives the same bits, and latent
 * rows hold what was stored.
 *
 * A row follows from all tokens up to it, as in a language model: a wrong page shows. Pages are NaN from end to end
 * when they are handed out. ATTN_GEOMETRY_STEPS=N sets how many steps the large pool makes, 60 without it.
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FULL, WINDOW, LATENT, SMALL, GROUPS };
enum { SEQS = 3, MAX_LEN = 2200, MAX_ROWS = 4, MAX_LAYERS = 3, MAX_HEAD = 512 };

/* Sizes of a pool: the same four groups, large and small. */
typedef struct setup {
  int32_t pages, block, kernel, max_len, window, long_step, separate_scales;
  int32_t heads[GROUPS], head_size[GROUPS], layers[GROUPS];
  uint64_t page_bytes; /* by hand */
} setup;

/* One group's own pool and caches: K, V and, where they are apart, their scales. */
typedef struct plain {
  attn_pool *pool;
  tensor part[MAX_LAYERS][4];
} plain;

/* The tensors of one layer, by attn_page_part; NULL for what there is not. */
typedef struct parts {
  const DLTensor *part[4];
} parts;

typedef struct world {
  const setup *s;
  attn_context *context;
  attn_plan *plan[GROUPS][2];
  const char *backend[2];
  attn_cache_desc layer[GROUPS];
  attn_group_pages group[GROUPS];
  attn_geometry geometry;
  attn_pool *pool;
  tensor pages;
  attn_page_view part[GROUPS][MAX_LAYERS][4];
  plain plain[GROUPS];
  int32_t len[SEQS];
  int32_t tokens[SEQS][MAX_LEN];
  uint32_t chain[SEQS][MAX_LEN]; /* of all tokens up to each */
  unsigned char *was;            /* [pages] 1 + the group whose window gave the page back last */
  int64_t moved[GROUPS];         /* pages of a window that became this group's */
  int64_t copies, hits;
  uint32_t random;
} world;

static int32_t draw(world *w, int32_t below) {
  return (int32_t)((random_bits(&w->random) >> 8) % (uint32_t)below);
}

static parts shared_parts(const world *w, int g, int32_t layer) {
  parts all;
  for (int i = 0; i < 4; i++) {
    all.part[i] = w->group[g].part[i].ndim > 0 ? &w->part[g][layer][i].tensor : NULL;
  }
  return all;
}

static parts plain_parts(const world *w, int g, int32_t layer) {
  parts all;
  for (int i = 0; i < 4; i++) {
    all.part[i] = w->group[g].part[i].ndim > 0 ? &w->plain[g].part[layer][i].t : NULL;
  }
  return all;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static void describe_groups(world *w, attn_group_spec *specs) {
  static const attn_format formats[GROUPS] = {ATTN_FORMAT_BFLOAT16, ATTN_FORMAT_INT4_PER_TOKEN_HEAD,
                                              ATTN_FORMAT_FP8_E4M3, ATTN_FORMAT_FLOAT32};
  for (int g = 0; g < GROUPS; g++) {
    attn_cache_desc layer = ATTN_CACHE_DESC_INIT;
    attn_group_spec spec = ATTN_GROUP_SPEC_INIT;
    attn_group_pages group = ATTN_GROUP_PAGES_INIT;
    layer.k_format = formats[g];
    layer.layout = g == SMALL ? ATTN_LAYOUT_HND : ATTN_LAYOUT_NHD;
    if (g == LATENT) {
      layer.kv_lora_rank = w->s->head_size[g] / 9 * 8; /* 512 and 64 of 576 */
      layer.qk_rope_head_dim = w->s->head_size[g] / 9;
    } else {
      layer.num_kv_heads = w->s->heads[g];
      layer.head_size = w->s->head_size[g];
      layer.separate_scales = g == WINDOW ? w->s->separate_scales : 0;
    }
    w->layer[g] = layer;
    w->group[g] = group;
    spec.layer = &w->layer[g];
    spec.num_layers = w->s->layers[g];
    spec.window = g == WINDOW ? w->s->window : 0;
    spec.block_size = w->s->block;
    spec.kernel_block = w->s->kernel;
    specs[g] = spec;
  }
}

static void open_pages(world *w) {
  attn_group_spec specs[GROUPS];
  attn_geometry_options options = ATTN_GEOMETRY_OPTIONS_INIT;
  attn_geometry geometry = ATTN_GEOMETRY_INIT;
  attn_pool_groups_options pool = ATTN_POOL_GROUPS_OPTIONS_INIT;
  attn_pool_group groups[GROUPS];
  describe_groups(w, specs);
  options.policy = ATTN_PAGES_KEEP;
  w->geometry = geometry;
  EXPECT_OK(attn_geometry_unify(&options, GROUPS, specs, w->group, &w->geometry, &why));
  assert_int_equal(w->geometry.page_bytes, w->s->page_bytes);
  for (int g = 0; g < GROUPS; g++) {
    attn_pool_group group = ATTN_POOL_GROUP_INIT;
    group.block_size = w->group[g].block_size;
    group.kernel_block = w->group[g].kernel_block;
    group.window = w->group[g].window;
    groups[g] = group;
  }
  pool.num_blocks = w->s->pages;
  pool.num_groups = GROUPS;
  pool.groups = groups;
  pool.max_seqs = SEQS;
  pool.max_seq_len = w->s->max_len;
  pool.prefix_cache = 1;
  EXPECT_OK(attn_pool_create_groups(&pool, &w->pool, &why));
  size_t bytes = (size_t)w->s->pages * w->geometry.page_bytes;
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  w->was = calloc((size_t)w->s->pages, 1);
  CHECK(memory != NULL && w->was != NULL, "no memory");
  memset(memory, 0xFF, bytes);
  tensor_3(&w->pages, memory, ATTN_DTYPE_UINT8, w->s->pages, 1, (int64_t)w->geometry.page_bytes);
  for (int g = 0; g < GROUPS; g++) {
    for (int32_t layer = 0; layer < w->s->layers[g]; layer++) {
      for (int i = 0; i < 4; i++) {
        if (w->group[g].part[i].ndim > 0) {
          EXPECT_OK(
              attn_geometry_view(&w->pages.t, &w->group[g], layer, (attn_page_part)i, &w->part[g][layer][i], &why));
        }
      }
    }
  }
}

/* A pool of kernel blocks with room for all sequences, and compact caches behind it. */
static void open_plain(world *w, int g) {
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  attn_cache_desc desc = w->layer[g];
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  options.block_size = desc.block_size = w->s->kernel;
  options.max_seq_blocks = w->s->max_len / w->s->kernel;
  options.max_seqs = SEQS;
  options.num_blocks = SEQS * options.max_seq_blocks + 1;
  EXPECT_OK(attn_pool_create(&options, &w->plain[g].pool, &why));
  desc.num_blocks = options.num_blocks;
  EXPECT_OK(attn_cache_describe(&desc, &info, &why));
  const attn_cache_layout *layouts[4] = {&info.k, &info.v, &info.k_scale, &info.v_scale};
  for (int32_t layer = 0; layer < w->s->layers[g]; layer++) {
    for (int i = 0; i < 4; i++) {
      if (layouts[i]->ndim > 0) {
        void *data = malloc(layouts[i]->bytes);
        CHECK(data != NULL, "no memory");
        memset(data, 0xFF, layouts[i]->bytes);
        tensor_over(&w->plain[g].part[layer][i], data, layouts[i]->dtype, layouts[i]->ndim, layouts[i]->shape);
      }
    }
  }
}

static void open_plans(world *w, int g) {
  for (int i = 0; i < 2; i++) {
    attn_problem problem = ATTN_PROBLEM_INIT;
    attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
    attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
    problem.num_q_heads = 2 * w->s->heads[g];
    problem.num_kv_heads = w->s->heads[g];
    problem.qk_head_size = w->s->head_size[g];
    problem.k_format = w->layer[g].k_format;
    problem.separate_scales = w->layer[g].separate_scales;
    problem.layout = w->layer[g].layout;
    problem.block_size = w->s->kernel;
    problem.scale = attn_softmax_scale(w->s->head_size[g]);
    if (g == WINDOW) {
      EXPECT_OK(attn_window_from_count(w->s->window, &problem.window_left, &problem.window_right, &why));
    }
    limits.max_seqs = 1;
    limits.max_tokens = MAX_ROWS;
    limits.max_kv_len = w->s->max_len;
    options.backend = w->backend[i];
    options.own_workspace = 1;
    EXPECT_OK(attn_plan_create(w->context, &problem, &limits, &options, &w->plan[g][i], &why));
  }
}

static void world_open(world *w, const setup *s) {
  memset(w, 0, sizeof *w);
  w->s = s;
  w->random = 11;
  w->backend[0] = "CPU_ATTN";
  w->backend[1] = "REFERENCE";
  w->context = open_context(1);
  open_pages(w);
  for (int g = 0; g < GROUPS; g++) {
    if (g != LATENT) {
      open_plain(w, g);
      open_plans(w, g);
    }
  }
}

static void world_close(world *w) {
  for (int g = 0; g < GROUPS; g++) {
    for (int32_t layer = 0; layer < MAX_LAYERS; layer++) {
      for (int i = 0; i < 4; i++) {
        free(w->plain[g].part[layer][i].t.data);
      }
    }
    attn_pool_destroy(w->plain[g].pool);
    attn_plan_destroy(w->plan[g][0]);
    attn_plan_destroy(w->plan[g][1]);
  }
  attn_pool_destroy(w->pool);
  attn_context_destroy(w->context);
  free(w->pages.t.data);
  free(w->was);
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Elements of a row of all heads, small numbers of any sign that follow from `seed`. */
static void make_row(uint32_t seed, int64_t count, float *row) {
  uint32_t x = seed * 2654435761u + 1;
  for (int64_t i = 0; i < count; i++) {
    x = x * 1664525u + 1013904223u;
    row[i] = (float)(int32_t)x * 0x1p-30f;
  }
}

static uint32_t seed_of(const world *w, int32_t seq, int32_t position, int g, int32_t layer, int part) {
  return w->chain[seq][position] ^ (uint32_t)(g * 64 + layer * 4 + part + 1) * 0x9E3779B9u;
}

/* Rows `from` to the end of a sequence into one layer's tensors. */
static void write_layer(world *w, int32_t seq, int32_t from, int g, int32_t layer, const parts *to,
                        const int64_t *slots) {
  static float rows[2][MAX_LEN * MAX_HEAD];
  int64_t width = (int64_t)w->s->heads[g] * w->s->head_size[g];
  int32_t count = w->len[seq] - from;
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  tensor t_k, t_v, t_slots;
  for (int32_t i = 0; i < count; i++) {
    make_row(seed_of(w, seq, from + i, g, layer, 0), width, rows[0] + i * width);
    make_row(seed_of(w, seq, from + i, g, layer, 1), width, rows[1] + i * width);
  }
  tensor_3(&t_k, rows[0], ATTN_DTYPE_FLOAT32, count, w->s->heads[g], w->s->head_size[g]);
  tensor_3(&t_v, rows[1], ATTN_DTYPE_FLOAT32, count, w->s->heads[g], w->s->head_size[g]);
  tensor_1(&t_slots, (void *)(uintptr_t)slots, ATTN_DTYPE_INT64, count);
  args.layout = w->layer[g].layout;
  args.k = &t_k.t;
  args.v = &t_v.t;
  args.slot_mapping = &t_slots.t;
  args.k_format = w->layer[g].k_format;
  args.k_cache = to->part[ATTN_PART_K];
  args.v_cache = to->part[ATTN_PART_V];
  args.k_scale = to->part[ATTN_PART_K_SCALE];
  args.v_scale = to->part[ATTN_PART_V_SCALE];
  EXPECT_OK(attn_cache_write(w->context, &args, &why));
}

/* A latent row is bytes with an address: no call computes with it yet. */
static unsigned char *latent_row(const world *w, int32_t layer, int64_t slot) {
  const DLTensor *t = &w->part[LATENT][layer][ATTN_PART_K].tensor;
  int64_t kernel = w->s->kernel;
  return (unsigned char *)t->data + t->byte_offset +
         (slot / kernel * t->strides[0] + slot % kernel * t->strides[1]) * (t->dtype.bits / 8);
}

static void latent_bytes(const world *w, int32_t seq, int32_t position, int32_t layer, unsigned char *row) {
  uint32_t x = seed_of(w, seq, position, LATENT, layer, 0);
  for (uint64_t i = 0; i < w->group[LATENT].part[ATTN_PART_K].row_bytes; i++) {
    x = x * 1664525u + 1013904223u;
    row[i] = (unsigned char)(x >> 24);
  }
}

static void write_shared(world *w, int32_t seq, int32_t from, int64_t slots[GROUPS][MAX_LEN]) {
  for (int g = 0; g < GROUPS; g++) {
    for (int32_t layer = 0; layer < w->s->layers[g]; layer++) {
      for (int32_t i = from; g == LATENT && i < w->len[seq]; i++) {
        latent_bytes(w, seq, i, layer, latent_row(w, layer, slots[g][i - from]));
      }
      if (g != LATENT) {
        const parts to = shared_parts(w, g, layer);
        write_layer(w, seq, from, g, layer, &to, slots[g]);
      }
    }
  }
}

/* The same rows into the caches that share nothing. */
static void write_plain(world *w, int32_t seq, int32_t from) {
  static int64_t slots[MAX_LEN];
  for (int g = 0; g < GROUPS; g++) {
    if (g != LATENT) {
      EXPECT_OK(attn_pool_append(w->plain[g].pool, seq, w->len[seq] - from, slots, &why));
    }
    for (int32_t layer = 0; g != LATENT && layer < w->s->layers[g]; layer++) {
      const parts to = plain_parts(w, g, layer);
      write_layer(w, seq, from, g, layer, &to, slots);
    }
  }
}

/* ---- The comparison ---------------------------------------------------------------------------------------------- */

static void attend(world *w, int g, int which, int32_t seq, int32_t rows, parts from, int32_t *table, float *out) {
  static float q[MAX_ROWS * 8 * MAX_HEAD];
  int64_t heads = 2 * w->s->heads[g];
  int64_t size = w->s->head_size[g];
  int32_t starts[2] = {0, rows};
  attn_batch batch = ATTN_BATCH_INIT;
  attn_run_args args = ATTN_RUN_INIT;
  tensor t_q, t_out, t_table, t_lens, t_starts;
  make_row((uint32_t)w->len[seq], rows * heads * size, q);
  tensor_3(&t_q, q, ATTN_DTYPE_FLOAT32, rows, heads, size);
  tensor_3(&t_out, out, ATTN_DTYPE_FLOAT32, rows, heads, size);
  tensor_2(&t_table, table, ATTN_DTYPE_INT32, 1, w->s->max_len / w->s->kernel);
  tensor_1(&t_lens, &w->len[seq], ATTN_DTYPE_INT32, 1);
  tensor_1(&t_starts, starts, ATTN_DTYPE_INT32, 2);
  batch.query_start_loc = &t_starts.t;
  batch.seq_lens = &t_lens.t;
  args.q = &t_q.t;
  args.k_cache = from.part[ATTN_PART_K];
  args.v_cache = from.part[ATTN_PART_V];
  args.k_scale = from.part[ATTN_PART_K_SCALE];
  args.v_scale = from.part[ATTN_PART_V_SCALE];
  args.block_table = &t_table.t;
  args.out = &t_out.t;
  EXPECT_OK(attn_plan_schedule(w->plan[g][which], &batch, NULL, &why));
  EXPECT_OK(attn_run(w->plan[g][which], &args, NULL, &why));
}

/* The last `rows` tokens of a sequence ask, in one layer of one group. */
static void compare_attention(world *w, int g, int32_t seq, int32_t rows) {
  static float out[2][MAX_ROWS * 8 * MAX_HEAD];
  static int32_t table[MAX_LEN];
  int32_t layer = draw(w, w->s->layers[g]);
  int32_t width = w->s->max_len / w->s->kernel;
  int which = draw(w, 8) == 0;
  rows = which == 1 ? 1 : rows;
  EXPECT_OK(attn_pool_group_table(w->pool, g, 1, &seq, width, table, NULL, &why));
  attend(w, g, which, seq, rows, shared_parts(w, g, layer), table, out[0]);
  EXPECT_OK(attn_pool_block_table(w->plain[g].pool, 1, &seq, width, table, NULL, &why));
  attend(w, g, which, seq, rows, plain_parts(w, g, layer), table, out[1]);
  CHECK(same_bits(out[0], out[1], (int64_t)rows * 2 * w->s->heads[g] * w->s->head_size[g]),
        "group %d, layer %d, seq %d, %d tokens, %s: the pools give different results", g, (int)layer, (int)seq,
        (int)w->len[seq], w->backend[which]);
  CHECK(out[0][0] == out[0][0], "group %d: a result is NaN", g);
}

static void compare_latent(world *w, int32_t seq) {
  static int32_t table[MAX_LEN];
  static unsigned char row[4 * MAX_HEAD];
  int32_t kernel = w->s->kernel;
  EXPECT_OK(attn_pool_group_table(w->pool, LATENT, 1, &seq, w->s->max_len / kernel, table, NULL, &why));
  for (int try = 0; try < 20; try++) {
    int32_t position = draw(w, w->len[seq]);
    int32_t layer = draw(w, w->s->layers[LATENT]);
    int64_t slot = (int64_t)table[position / kernel] * kernel + position % kernel;
    latent_bytes(w, seq, position, layer, row);
    assert_memory_equal(row, latent_row(w, layer, slot), w->group[LATENT].part[ATTN_PART_K].row_bytes);
  }
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static int32_t block_at(const world *w, int g, int32_t seq, int32_t column) {
  static int32_t table[MAX_LEN];
  int32_t ratio = w->s->block / w->s->kernel;
  EXPECT_OK(attn_pool_group_table(w->pool, g, 1, &seq, w->s->max_len / w->s->kernel, table, NULL, &why));
  return table[column * ratio] / ratio;
}

/* A page that was handed out: NaN from end to end, whatever group had it before. */
static void fresh_page(world *w, int g, int64_t page) {
  w->moved[g] += w->was[page] == 1 + WINDOW && g != WINDOW;
  w->was[page] = 0;
  memset((unsigned char *)w->pages.t.data + (size_t)page * w->geometry.page_bytes, 0xFF, w->geometry.page_bytes);
}

static void extend_chain(world *w, int32_t seq, int32_t from) {
  for (int32_t i = from; i < w->len[seq]; i++) {
    uint32_t before = i > 0 ? w->chain[seq][i - 1] : 17;
    w->chain[seq][i] = (before ^ (uint32_t)w->tokens[seq][i]) * 2654435761u + (uint32_t)i;
  }
}

static void free_sequence(world *w, int32_t seq) {
  EXPECT_OK(attn_pool_free_seq(w->pool, seq, &why));
  for (int g = 0; g < GROUPS; g++) {
    if (g != LATENT) {
      EXPECT_OK(attn_pool_free_seq(w->plain[g].pool, seq, &why));
    }
  }
  w->len[seq] = 0;
}

static void trim(world *w, int32_t seq) {
  int32_t before = 0;
  int32_t columns = (w->len[seq] - 1) / w->s->block + 1;
  int32_t ids[MAX_LEN];
  int32_t released = 0;
  for (; before < columns; before++) {
    ids[before] = block_at(w, WINDOW, seq, before);
  }
  EXPECT_OK(attn_pool_trim(w->pool, seq, w->len[seq], &released, &why));
  for (int32_t column = 0; column < columns; column++) {
    if (ids[column] != 0 && block_at(w, WINDOW, seq, column) == 0) {
      w->was[ids[column]] = 1 + WINDOW;
      released--;
    }
  }
  assert_int_equal(released, 0);
}

/* One step of an engine: append, copy, write, attend, commit, trim. */
static void grow(world *w, int32_t seq) {
  static int64_t slots[GROUPS][MAX_LEN];
  int64_t map[2 * GROUPS];
  attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  int32_t from = w->len[seq];
  int32_t count = 1 + draw(w, draw(w, 8) == 0 ? w->s->long_step : 6);
  if (from + count > w->s->max_len || attn_pool_blocks_needed(w->pool, seq, count) > attn_pool_num_free(w->pool)) {
    free_sequence(w, draw(w, SEQS));
    return;
  }
  for (int32_t i = 0; i < count; i++) {
    w->tokens[seq][from + i] = draw(w, 16) == 0;
  }
  copies.capacity = GROUPS;
  copies.block_map = map;
  EXPECT_OK(attn_pool_append_groups(w->pool, seq, count, w->tokens[seq] + from, slots[0], MAX_LEN, &copies, &why));
  w->len[seq] += count;
  extend_chain(w, seq, from);
  w->copies += copies.count;
  for (int32_t i = 0; i < copies.count; i++) {
    fresh_page(w, GROUPS - 1, map[2 * i + 1]);
  }
  for (int g = 0; g < GROUPS; g++) {
    for (int32_t column = (from + w->s->block - 1) / w->s->block; column * w->s->block < w->len[seq]; column++) {
      fresh_page(w, g, block_at(w, g, seq, column));
    }
  }
  attn_cache_copy_args args = ATTN_CACHE_COPY_INIT;
  tensor t_map;
  tensor_2(&t_map, map, ATTN_DTYPE_INT64, copies.count, 2);
  args.source = args.target = &w->pages.t;
  args.block_map = &t_map.t;
  EXPECT_OK(attn_cache_copy(w->context, &args, &why));
  write_shared(w, seq, from, slots);
  write_plain(w, seq, from);
  static const int asked[3] = {FULL, WINDOW, SMALL};
  compare_attention(w, asked[draw(w, 3)], seq, count < MAX_ROWS ? count : MAX_ROWS);
  compare_latent(w, seq);
  EXPECT_OK(attn_pool_commit(w->pool, seq, &why));
  if (draw(w, 4) != 0) {
    trim(w, seq);
  }
}

static void fork_sequence(world *w, int32_t parent, int32_t child) {
  EXPECT_OK(attn_pool_fork(w->pool, parent, child, &why));
  memcpy(w->tokens[child], w->tokens[parent], sizeof w->tokens[child]);
  memcpy(w->chain[child], w->chain[parent], sizeof w->chain[child]);
  w->len[child] = w->len[parent];
  write_plain(w, child, 0);
}

/* Start from what the pages have of another sequence's tokens. */
static void start_again(world *w, int32_t seq) {
  int32_t other = (seq + 1) % SEQS;
  int32_t reused = -1;
  memcpy(w->tokens[seq], w->tokens[other], sizeof w->tokens[seq]);
  EXPECT_OK(attn_pool_reuse_prefix(w->pool, seq, w->tokens[seq], w->s->max_len, &reused, &why));
  w->len[seq] = reused;
  w->hits += reused > 0;
  extend_chain(w, seq, 0);
  write_plain(w, seq, 0);
}

static void step(world *w) {
  int32_t kind = draw(w, 32);
  int32_t seq = draw(w, SEQS);
  if (kind == 0) {
    free_sequence(w, seq);
    fork_sequence(w, (seq + 1) % SEQS, seq);
  } else if (kind == 1) {
    free_sequence(w, seq);
    start_again(w, seq);
  } else {
    grow(w, seq);
  }
  EXPECT_OK(attn_pool_check(w->pool, &why));
}

static void run(const setup *s, int64_t steps) {
  static world w;
  attn_pool_group_info info = ATTN_POOL_GROUP_INFO_INIT;
  attn_pool_info counts = ATTN_POOL_INFO_INIT;
  world_open(&w, s);
  for (int64_t i = 0; i < steps; i++) {
    step(&w);
  }
  EXPECT_OK(attn_pool_get_group(w.pool, WINDOW, &info, &why));
  EXPECT_OK(attn_pool_get_info(w.pool, &counts, &why));
  (void)printf(
      "blocks of %d over %d, pages of %llu bytes, %lld steps: %lld blocks behind the window, %lld of them became "
      "other groups'; %lld copies, %lld starts, %lld evictions\n",
      (int)s->block, (int)s->kernel, (unsigned long long)w.geometry.page_bytes, (long long)steps,
      (long long)info.trimmed, (long long)(w.moved[FULL] + w.moved[LATENT] + w.moved[SMALL]), (long long)w.copies,
      (long long)w.hits, (long long)counts.evictions);
  assert_true(info.trimmed > 0 && w.moved[FULL] + w.moved[LATENT] + w.moved[SMALL] > 0 && w.copies > 0);
  assert_true(steps < 5000 ||
              (w.moved[FULL] > 0 && w.moved[LATENT] > 0 && w.moved[SMALL] > 0 && w.hits > 0 && counts.evictions > 0));
  world_close(&w);
}

static void test_small_pool(void **state) {
  (void)state;
  /* SMALL's are the largest pages, 24 positions of 3 layers of 8 * 4 * 2 bytes = 24 * 192. FULL has 24 * 128 = 24 * 2
     heads of 16 * 2 * 2; WINDOW 2 layers of 2 heads of 12 bytes of codes and 4 of scale, twice, 24 * 128; LATENT 2
     layers of 18, 24 * 36. */
  static const setup small = {.pages = 40,
                              .block = 24,
                              .kernel = 8,
                              .max_len = 240,
                              .window = 40,
                              .long_step = 60,
                              .separate_scales = ATTN_SEPARATE_BOTH,
                              .heads = {2, 2, 1, 1},
                              .head_size = {16, 24, 18, 8},
                              .layers = {1, 2, 2, 3},
                              .page_bytes = 24 * 192};
  run(&small, 1500);
}

static void test_large_pool(void **state) {
  (void)state;
  const char *text = getenv("ATTN_GEOMETRY_STEPS");
  long long steps = text != NULL ? strtoll(text, NULL, 10) : 60;
  CHECK(steps > 0, "ATTN_GEOMETRY_STEPS: '%s', accepted: a count above 0", text);
  /* As in test_geometry.c: full layers of 1024 bytes a position, int4 ones of 2 * 520, latent ones of 2 * 576, and 528
     positions of 3 * 512, which are the largest page. */
  static const setup large = {.pages = 26,
                              .block = 528,
                              .kernel = 16,
                              .max_len = 2112,
                              .window = 600,
                              .long_step = 900,
                              .heads = {1, 1, 1, 1},
                              .head_size = {256, 512, 576, 64},
                              .layers = {1, 2, 2, 3},
                              .page_bytes = 528 * 1536};
  run(&large, steps);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_small_pool), cmocka_unit_test(test_large_pool)};
  return cmocka_run_group_tests_name("geometry_pool", tests, NULL, NULL);
}
