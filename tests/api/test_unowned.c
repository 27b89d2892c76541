/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that nobody owns, over every format and pairs of them: whatever they hold, padding, scale slots and what an
   earlier sequence left in reused blocks included, no bit of any result changes: of attention, of a copy and what is
   read from it, of a gather, of a requantised block. */
#include <math.h>
#include <string.h>

#include "quantising.h"
#include "scene.h"

enum { BLOCK = QUANTISING_BLOCK, HEADS = QUANTISING_HEADS, Q_HEADS = HEADS * QUANTISING_GROUP };
enum { SIZE = 21, V_SIZE = 12, LONG = 5, ROWS = 4 }; /* positions of the longer sequence, query rows of a call */

/* Everything that a flow computes. */
typedef struct results {
  float out[3][ROWS * Q_HEADS * V_SIZE]; /* from the blocks written, their copies, and requantised */
  float lse[3][ROWS * Q_HEADS];
  float k[LONG * HEADS * SIZE];
  float v[LONG * HEADS * V_SIZE];
} results;

typedef struct flow {
  quantising q, other; /* other: the target of a requantisation */
  float rows[2][QUANTISING_TOKENS * HEADS * SIZE];
  float query[ROWS * Q_HEADS * SIZE];
} flow;

static void set_side(quantising_side *side, attn_format format, int32_t size, int separate) {
  side->format = format;
  side->size = size;
  side->separate = separate && format_has_row_scale(format);
  side->num_statics = format_is_static(format) ? 2 : 0;
  side->statics[0] = 0.03f;
  side->statics[1] = 0.5f;
}

static attn_format next_format(attn_format format) {
  return format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? ATTN_FORMAT_FLOAT32 : (attn_format)(format + 1);
}

static void fill(quantising *q, int content) {
  uint32_t seed = 5;
  for (int i = 0; i < 4; i++) {
    for (size_t b = 0; b < q->memory[i].bytes; b++) {
      q->memory[i].data[b] = (unsigned char)(content == 0   ? 0
                                             : content == 1 ? 0xFF
                                             : content == 2 ? 0x7C /* infinities of e5m2, scales of 5e36 */
                                                            : random_bits(&seed));
    }
  }
}

/* n: how the cache lies; content: what its memory holds before. */
static void open_flow(flow *f, const char *backend, attn_format k, attn_format v, int n, int content) {
  memset(f, 0, sizeof *f);
  f->q.context = f->other.context = open_context(1);
  f->q.backend = f->other.backend = backend;
  f->q.layout = n % 2 ? ATTN_LAYOUT_HND : ATTN_LAYOUT_NHD;
  f->other.layout = n % 3 ? ATTN_LAYOUT_HND : ATTN_LAYOUT_NHD;
  set_side(&f->q.side[0], k, SIZE, n / 2 % 2);
  set_side(&f->q.side[1], v, V_SIZE, n / 2 % 2);
  set_side(&f->other.side[0], next_format(k), SIZE, n % 2);
  set_side(&f->other.side[1], next_format(v), V_SIZE, n % 2);
  quantising_open(&f->q, (quantising_lay)(n % LAY_COUNT));
  quantising_open(&f->other, (quantising_lay)((n + 1) % LAY_COUNT));
  fill(&f->q, content);
  fill(&f->other, content);
  uint32_t seed = 19;
  for (int i = 0; i < ROWS * Q_HEADS * SIZE; i++) {
    f->query[i] = random_normal(&seed);
  }
  for (int i = 0; i < 2; i++) {
    size_t bytes = QUANTISING_TOKENS * HEADS * (size_t)f->q.side[i].size * sizeof(float);
    memcpy(f->rows[i], f->q.side[i].values, bytes);
  }
}

static void close_flow(flow *f) {
  attn_context_destroy(f->q.context);
  quantising_close(&f->q);
  quantising_close(&f->other);
}

/* A sequence of blocks 4 and 1, which then ends: of NaN, infinities and huge values unless the content is 0. */
static void write_earlier(flow *f, int content) {
  static const int64_t slots[] = {12, 13, 14, 3, 4, 5};
  static const float hostile[] = {NAN, INFINITY, 3e38f, -INFINITY, 1e-40f};
  for (int i = 0; i < 2 && content > 0; i++) {
    for (int e = 0; e < QUANTISING_TOKENS * HEADS * f->q.side[i].size; e++) {
      f->q.side[i].values[e] = hostile[(e / 3 + content) % 5];
    }
  }
  memcpy(f->q.slots, slots, sizeof slots);
  attn_cache_write_args args = quantising_write(&f->q);
  EXPECT_OK(attn_cache_write(f->q.context, &args, &why));
}

/* Five positions in blocks 1 and 3, and one in block 4: the same rows every time. */
static void write_rows(flow *f) {
  static const int64_t slots[] = {3, 4, 5, 9, 10, 12};
  for (int i = 0; i < 2; i++) {
    size_t bytes = QUANTISING_TOKENS * HEADS * (size_t)f->q.side[i].size * sizeof(float);
    memcpy(f->q.side[i].values, f->rows[i], bytes);
  }
  memcpy(f->q.slots, slots, sizeof slots);
  attn_cache_write_args args = quantising_write(&f->q);
  EXPECT_OK(attn_cache_write(f->q.context, &args, &why));
}

/* Three rows of the longer sequence, whose last position is its fifth, and one of the other; columns beyond name
   nothing. */
static void attend(const flow *f, const quantising *q, int32_t first, int32_t second, int32_t third, results *r,
                   int which) {
  int32_t table[6] = {first, second, -1, third, INT32_MAX, INT32_MIN};
  quantising_call call = {.num_seqs = 2,
                          .q_len = {ROWS - 1, 1},
                          .kv_len = {LONG, 1},
                          .width = 3,
                          .table = table,
                          .window_left = which == 1 ? 2 : -1,
                          .query = (float *)(uintptr_t)f->query,
                          .out = r->out[which],
                          .lse = r->lse[which]};
  quantising_attend(q, &call);
}

/* Blocks 1, 3 and 4 of every tensor of the cache to 2, 0 and 3. */
static void copy_blocks(flow *f) {
  int64_t map[2][2] = {{1, 2}, {3, 0}}, last[1][2] = {{4, 3}};
  tensor t_map;
  attn_cache_copy_args args = ATTN_CACHE_COPY_INIT;
  args.backend = f->q.backend;
  args.layout = f->q.layout;
  args.block_map = &t_map.t;
  for (int i = 0; i < 8; i++) { /* in two calls, since block 3 is read and written */
    quantising_side *side = &f->q.side[i % 2];
    if (i % 4 >= 2 && !side->separate) {
      continue;
    }
    tensor_2(&t_map, i < 4 ? (void *)map : last, ATTN_DTYPE_INT64, i < 4 ? 2 : 1, 2);
    args.source = args.target = i % 4 < 2 ? &side->pool.t : &side->scale.t;
    EXPECT_OK(attn_cache_copy(f->q.context, &args, &why));
  }
}

static void gather(const flow *f, results *r) {
  int32_t table[2] = {2, 0}, length = LONG;
  tensor t_table, t_length, t_k, t_v;
  attn_cache_gather_args args = ATTN_CACHE_GATHER_INIT;
  tensor_2(&t_table, table, ATTN_DTYPE_INT32, 1, 2);
  tensor_1(&t_length, &length, ATTN_DTYPE_INT32, 1);
  tensor_3(&t_k, r->k, ATTN_DTYPE_FLOAT32, LONG, HEADS, SIZE);
  tensor_3(&t_v, r->v, ATTN_DTYPE_FLOAT32, LONG, HEADS, V_SIZE);
  args.backend = f->q.backend;
  args.layout = f->q.layout;
  args.k_format = f->q.side[0].format;
  args.v_format = f->q.side[1].format;
  args.k_cache = &f->q.side[0].pool.t;
  args.v_cache = &f->q.side[1].pool.t;
  args.k_scale = f->q.side[0].scale_given;
  args.v_scale = f->q.side[1].scale_given;
  args.block_table = &t_table.t;
  args.seq_lens = &t_length.t;
  args.k = &t_k.t;
  args.v = &t_v.t;
  EXPECT_OK(attn_cache_gather(f->q.context, &args, &why));
}

/* The copies to blocks 4, 1 and 0 of the other cache. */
static void requantise(flow *f) {
  int64_t map[3][2] = {{2, 4}, {0, 1}, {3, 0}};
  tensor t_map;
  attn_cache_requantise_args args = ATTN_CACHE_REQUANTISE_INIT;
  tensor_2(&t_map, map, ATTN_DTYPE_INT64, 3, 2);
  args.backend = f->q.backend;
  args.source_layout = f->q.layout;
  args.target_layout = f->other.layout;
  args.block_map = &t_map.t;
  for (int i = 0; i < 2; i++) {
    args.source_format = f->q.side[i].format;
    args.target_format = f->other.side[i].format;
    args.head_size = f->q.side[i].size;
    args.source = &f->q.side[i].pool.t;
    args.target = &f->other.side[i].pool.t;
    args.source_scale = f->q.side[i].scale_given;
    args.target_scale = f->other.side[i].scale_given;
    EXPECT_OK(attn_cache_requantise(f->q.context, &args, &why));
  }
}

static void run_flow(results *r, const char *backend, attn_format k, attn_format v, int n, int content) {
  flow f;
  memset(r, 0, sizeof *r);
  open_flow(&f, backend, k, v, n, content);
  write_earlier(&f, content);
  write_rows(&f);
  attend(&f, &f.q, 1, 3, 4, r, 0);
  copy_blocks(&f);
  attend(&f, &f.q, 2, 0, 3, r, 1);
  gather(&f, r);
  requantise(&f);
  if (backend_serves(backend, next_format(k), next_format(v))) {
    attend(&f, &f.other, 4, 1, 0, r, 2);
  }
  close_flow(&f);
}

static void same_whatever_they_hold(const char *backend, attn_format k, attn_format v) {
  static results first, again;
  for (int n = 0; n < 12; n++) {
    run_flow(&first, backend, k, v, n, 0);
    for (size_t i = 0; i < sizeof first.out[0] / sizeof(float); i++) {
      CHECK(isfinite(first.out[0][i]) && isfinite(first.out[2][i]), "lay %d: a result is not finite", n);
    }
    for (int content = 1; content < 4; content++) {
      run_flow(&again, backend, k, v, n, content);
      CHECK(memcmp(first.out, again.out, sizeof first.out) == 0 && memcmp(first.lse, again.lse, sizeof first.lse) == 0,
            "lay %d, content %d: attention gives other bits", n, content);
      CHECK(memcmp(first.k, again.k, sizeof first.k) == 0 && memcmp(first.v, again.v, sizeof first.v) == 0,
            "lay %d, content %d: a gather gives other bits", n, content);
    }
  }
}

static void no_unowned_byte_counts(void **state) {
  (void)state;
  for_each_pair(same_whatever_they_hold);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_unowned_byte_counts),
  };
  return cmocka_run_group_tests_name("unowned", tests, NULL, NULL);
}
