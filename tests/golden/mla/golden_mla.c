/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek-V2 and V3 attention layers against the public model code (make_mla.py, README.md): prefill, prefill in
   chunks, and decode, through each of the latent calls. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../api/test_counts.h"
#include "attn/attn.h"
#include "front_end.h"

#define BOUND 1e-5

enum { BLOCK = 16, WIDTH = MAX_TOKENS / BLOCK, BLOCKS = WIDTH + 1 };

static const char *const backends[] = {"REFERENCE", "CPU_MLA"};
static int expanded_layers; /* trials of attn_mla_layer_run whose sequence was long enough to go expanded */

/* How the tokens go through the library. */
typedef struct way {
  const char *name;
  attn_mla_form form;
  int32_t step;  /* tokens a step; 0: all of them */
  int32_t chunk; /* context_chunk */
  int direct;    /* no cache */
  int rotates;   /* attn_cache_write rotates k_pe and q, and writes all rows before the run */
} way;

static const way ways[] = {
    {"layer, prefill", ATTN_MLA_LAYER, 0, 0, 0, 0},
    {"layer, chunks", ATTN_MLA_LAYER, 16, 0, 0, 0},
    {"layer, chunks, rotated by attn_cache_write", ATTN_MLA_LAYER, 16, 0, 0, 1},
    {"layer, decode", ATTN_MLA_LAYER, 1, 0, 0, 0},
    {"mha, prefill without a cache", ATTN_MLA_MHA, 0, 0, 1, 0},
    {"mha, chunks, 8 keys at a time", ATTN_MLA_MHA, 16, 8, 0, 0},
    {"mha, chunks, 16 keys at a time", ATTN_MLA_MHA, 16, 16, 0, 0},
    {"mha, chunks, 64 keys at a time", ATTN_MLA_MHA, 16, 64, 0, 0},
    {"mha, chunks, rotated by attn_cache_write", ATTN_MLA_MHA, 16, 0, 0, 1},
    {"mqa, decode", ATTN_MLA_MQA, 1, 0, 0, 0},
    {"mqa, decode, rotated by attn_cache_write", ATTN_MLA_MQA, 1, 0, 0, 1},
};

/* One way of one layer in one backend. */
typedef struct trial {
  const layer *m;
  const way *w;
  const char *backend;
  attn_context *context;
  attn_mla_weights *weights;
  attn_plan *plan;
  attn_workspace workspace;
  guarded memory;
  float *pool;   /* [BLOCKS, BLOCK, rank + rope] */
  float *q;      /* [tokens, heads, q_width]: of mqa absorbed */
  float *latent; /* mqa: a step's results, [step, heads, rank] */
  float *out;    /* [tokens, heads, v] */
  int32_t q_width, step;
  int64_t slots[MAX_TOKENS], positions[MAX_TOKENS];
  int32_t table[WIDTH];
} trial;

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static attn_problem problem_of(const layer *m, const way *w) {
  attn_problem p = ATTN_PROBLEM_INIT;
  p.num_q_heads = m->heads;
  p.kv_lora_rank = m->rank;
  p.qk_rope_head_dim = m->rope;
  p.mla_form = w->form;
  p.context_chunk = w->chunk;
  p.scale = attn_mla_softmax_scale(qk_of(m), m->factor, m->mscale_all_dim);
  if (w->form != ATTN_MLA_MQA) {
    p.qk_nope_head_dim = m->nope;
    p.mla_v_head_dim = m->v;
  }
  if (w->direct) {
    p.kv_source = ATTN_KV_DIRECT;
  } else {
    p.block_size = BLOCK;
  }
  return p;
}

static void open_plan(trial *t) {
  attn_problem problem = problem_of(t->m, t->w);
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  limits.max_seqs = 1;
  limits.max_tokens = t->step;
  limits.max_kv_len = t->m->tokens;
  options.backend = t->backend;
  EXPECT_OK(attn_plan_create(t->context, &problem, &limits, &options, &t->plan, &why));
  t->workspace = workspace_make(t->plan, &t->memory);
  attn_plan_info info = ATTN_PLAN_INFO_INIT;
  EXPECT_OK(attn_plan_get_info(t->plan, &info, &why));
  expanded_layers += info.mla_threshold > 0 && info.mla_threshold < t->step;
}

static void open_weights(trial *t) {
  attn_mla_weights_args args = ATTN_MLA_WEIGHTS_ARGS_INIT;
  const layer *m = t->m;
  tensor matrix;
  tensor_2(&matrix, m->drawn[KV_B], ATTN_DTYPE_FLOAT32, (int64_t)m->heads * (m->nope + m->v), m->rank);
  args.num_heads = m->heads;
  args.kv_lora_rank = m->rank;
  args.qk_nope_head_dim = m->nope;
  args.v_head_dim = m->v;
  args.w_kv_b = &matrix.t;
  EXPECT_OK(attn_mla_weights_create(t->context, &args, &t->weights, &why));
}

static void open_queries(trial *t) {
  const layer *m = t->m;
  const float *from = t->w->rotates ? m->plain_q : m->q;
  if (t->w->form == ATTN_MLA_MQA) {
    t->q_width = m->rank + m->rope;
    t->q = absorb(m, from);
  } else {
    const int64_t count = (int64_t)m->tokens * m->heads * qk_of(m);
    t->q_width = qk_of(m);
    t->q = zero_floats(count);
    memcpy(t->q, from, (size_t)count * sizeof *from);
  }
}

static void trial_open(trial *t) {
  const layer *m = t->m;
  const size_t pool = (size_t)BLOCKS * BLOCK * (size_t)(m->rank + m->rope) * sizeof *t->pool;
  t->context = open_context(1);
  open_plan(t);
  open_queries(t);
  if (t->w->form != ATTN_MLA_MQA) {
    open_weights(t);
  }
  t->pool = malloc(pool);
  assert_non_null(t->pool);
  memset(t->pool, 0xFF, pool); /* NaN wherever nobody wrote */
  t->latent = zero_floats((int64_t)t->step * m->heads * m->rank);
  t->out = zero_floats((int64_t)m->tokens * m->heads * m->v);
  for (int32_t i = 0; i < WIDTH; i++) {
    t->table[i] = (5 * i + 3) % BLOCKS;
  }
  for (int32_t i = 0; i < m->tokens; i++) {
    t->slots[i] = (int64_t)t->table[i / BLOCK] * BLOCK + i % BLOCK;
    t->positions[i] = i; /* the tables begin at the scenario's first position */
  }
}

static void trial_close(trial *t) {
  free(t->pool);
  free(t->q);
  free(t->latent);
  free(t->out);
  guard_free(&t->memory);
  attn_plan_destroy(t->plan);
  attn_mla_weights_destroy(t->weights);
  attn_context_destroy(t->context);
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

/* Elements [from, from + size) of the queries of a step's tokens, in place. */
static void view_queries(const trial *t, tensor *view, int32_t first, int32_t count, int32_t from, int32_t size) {
  float *data = t->q + (int64_t)first * t->m->heads * t->q_width + from;
  tensor_3(view, data, ATTN_DTYPE_FLOAT32, count, t->m->heads, size);
  view->strides[0] = (int64_t)t->m->heads * t->q_width;
  view->strides[1] = t->q_width;
}

static void view_pool(const trial *t, tensor *view) {
  tensor_3(view, t->pool, ATTN_DTYPE_FLOAT32, BLOCKS, BLOCK, t->m->rank + t->m->rope);
}

static void view_rows(float *rows, tensor *view, int32_t first, int32_t count, int32_t size) {
  tensor_2(view, rows + (int64_t)first * size, ATTN_DTYPE_FLOAT32, count, size);
}

/* A step's rows go into the cache before the run. */
static void write_rows(trial *t, int32_t first, int32_t count) {
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  const layer *m = t->m;
  tensor kv_c, k_pe, pool, slots, positions, cosines, sines, q;
  view_rows(m->kv_c, &kv_c, first, count, m->rank);
  view_rows(t->w->rotates ? m->plain_k : m->k_pe, &k_pe, first, count, m->rope);
  view_pool(t, &pool);
  tensor_1(&slots, t->slots + first, ATTN_DTYPE_INT64, count);
  args.backend = t->backend;
  args.kv_c = &kv_c.t;
  args.k_pe = &k_pe.t;
  args.kv_cache = &pool.t;
  args.slot_mapping = &slots.t;
  if (t->w->rotates) {
    tensor_1(&positions, t->positions + first, ATTN_DTYPE_INT64, count);
    view_rows(m->cosines, &cosines, 0, m->tokens, m->rope / 2);
    view_rows(m->sines, &sines, 0, m->tokens, m->rope / 2);
    view_queries(t, &q, first, count, t->q_width - m->rope, m->rope);
    args.rotary = m->pairs[0] == 'i' ? ATTN_ROTARY_INTERLEAVED : ATTN_ROTARY_SPLIT_HALF;
    args.positions = &positions.t;
    args.rotary_cos = &cosines.t;
    args.rotary_sin = &sines.t;
    args.q = &q.t;
    args.q_out = &q.t;
  }
  EXPECT_OK(attn_cache_write(t->context, &args, &why));
}

static void schedule(trial *t, int32_t first, int32_t count) {
  attn_batch batch = ATTN_BATCH_INIT;
  int32_t starts[2] = {0, count}, length = first + count;
  tensor query_start_loc, lengths;
  tensor_1(&query_start_loc, starts, ATTN_DTYPE_INT32, 2);
  tensor_1(&lengths, &length, ATTN_DTYPE_INT32, 1);
  batch.query_start_loc = &query_start_loc.t;
  batch.seq_lens = t->w->direct ? NULL : &lengths.t;
  EXPECT_OK(attn_plan_schedule(t->plan, &batch, &t->workspace, &why));
}

/* The tensors of a step's run, which args point to. */
typedef struct given {
  attn_mla_args args;
  tensor q, q_rope, kv_c, k_pe, pool, table, slots, out;
} given;

/* mqa; when the library rotated q, its two parts are given as two tensors. */
static void give_mqa(const trial *t, given *g, int32_t first, int32_t count) {
  const layer *m = t->m;
  view_queries(t, &g->q, first, count, 0, t->w->rotates ? m->rank : t->q_width);
  g->args.q = &g->q.t;
  if (t->w->rotates) {
    view_queries(t, &g->q_rope, first, count, m->rank, m->rope);
    g->args.q_rope = &g->q_rope.t;
  }
  tensor_3(&g->out, t->latent, ATTN_DTYPE_FLOAT32, count, m->heads, m->rank);
}

static void give_expanded(trial *t, given *g, int32_t first, int32_t count) {
  const layer *m = t->m;
  const int layer_form = t->w->form == ATTN_MLA_LAYER;
  float *out = t->out + (int64_t)first * m->heads * m->v;
  view_queries(t, &g->q, first, count, 0, t->q_width);
  view_rows(m->kv_c, &g->kv_c, first, count, m->rank);
  view_rows(m->k_pe, &g->k_pe, first, count, m->rope);
  tensor_1(&g->slots, t->slots + first, ATTN_DTYPE_INT64, t->w->rotates ? 0 : count);
  g->args.q = &g->q.t;
  g->args.kv_c = &g->kv_c.t;
  g->args.k_pe = &g->k_pe.t;
  g->args.weights = t->weights;
  g->args.slot_mapping = layer_form || !(t->w->rotates || t->w->direct) ? &g->slots.t : NULL;
  if (layer_form) {
    tensor_2(&g->out, out, ATTN_DTYPE_FLOAT32, count, (int64_t)m->heads * m->v);
  } else {
    tensor_3(&g->out, out, ATTN_DTYPE_FLOAT32, count, m->heads, m->v);
  }
}

static attn_status call(const trial *t, const given *g) {
  switch (t->w->form) {
  case ATTN_MLA_MQA:
    return attn_mla_run_mqa(t->plan, &g->args, &t->workspace, &why);
  case ATTN_MLA_MHA:
    return attn_mla_run_mha(t->plan, &g->args, &t->workspace, &why);
  default:
    return attn_mla_layer_run(t->plan, &g->args, &t->workspace, &why);
  }
}

static void run_step(trial *t, int32_t first, int32_t count) {
  const layer *m = t->m;
  const int mqa = t->w->form == ATTN_MLA_MQA;
  given g;
  memset(&g, 0, sizeof g);
  g.args = (attn_mla_args)ATTN_MLA_ARGS_INIT;
  if (t->w->rotates || mqa) {
    write_rows(t, first, count);
  }
  schedule(t, first, count);
  if (mqa) {
    give_mqa(t, &g, first, count);
  } else {
    give_expanded(t, &g, first, count);
  }
  if (!t->w->direct) {
    view_pool(t, &g.pool);
    tensor_2(&g.table, t->table, ATTN_DTYPE_INT32, 1, WIDTH);
    g.args.kv_cache = &g.pool.t;
    g.args.block_table = &g.table.t;
  }
  g.args.out = &g.out.t;
  EXPECT_OK(call(t, &g));
  for (int32_t row = 0; mqa && row < count * m->heads; row++) {
    expand_value(m, row % m->heads, t->latent + (int64_t)row * m->rank,
                 t->out + ((int64_t)first * m->heads + row) * m->v);
  }
}

/* ---- The judge --------------------------------------------------------------------------------------------------- */

/* The worst of the stored rows, each of a token and a head. */
static double distance(const trial *t) {
  const layer *m = t->m;
  const int32_t kept[KEPT] = {0, 1, 2, 8, 15, 16, 31, 32, m->tokens / 2, m->tokens - 1};
  double worst = 0.0;
  for (int32_t row = 0; row < KEPT * m->heads; row++) {
    const float *want = m->expected + (int64_t)row * m->v;
    const float *got = t->out + ((int64_t)kept[row / m->heads] * m->heads + row % m->heads) * m->v;
    double error = 0.0, size = 0.0;
    for (int32_t i = 0; i < m->v; i++) {
      const double difference = (double)got[i] - (double)want[i];
      error += difference * difference;
      size += (double)want[i] * (double)want[i];
    }
    const double relative = sqrt(error / size);
    worst = relative <= worst ? worst : relative; /* NaN stays */
  }
  return worst;
}

static double try_way(const layer *m, const char *backend, const way *w) {
  trial t;
  char label[128];
  memset(&t, 0, sizeof t);
  t.m = m;
  t.w = w;
  t.backend = backend;
  t.step = w->step > 0 ? w->step : m->tokens;
  snprintf(label, sizeof label, "%s, %s, %s", m->name, backend, w->name);
  harness_label(label);
  trial_open(&t);
  for (int32_t first = 0; first < m->tokens; first += t.step) {
    run_step(&t, first, first + t.step < m->tokens ? t.step : m->tokens - first);
  }
  const double away = distance(&t);
  trial_close(&t);
  CHECK(away <= BOUND, "relative RMS %.3g", away);
  return away;
}

/* Each way in each backend; in a sanitized build in one of them, by turns. */
static void try_ways(const layer *m, int which) {
  const char *worst_way = "";
  double worst = 0.0;
  for (int i = 0; i < (int)(sizeof ways / sizeof *ways); i++) {
    if ((i + which + m->number) % test_count(1, 2) == 0) {
      const double away = try_way(m, backends[which], &ways[i]);
      worst_way = away > worst ? ways[i].name : worst_way;
      worst = away > worst ? away : worst;
    }
  }
  print_message("%s, %s: worst relative RMS %.2g (%s)\n", m->name, backends[which], worst, worst_way);
}

static void layers_are_the_public_codes(void **state) {
  FILE *file = fopen(ATTN_GOLDEN_DIR "/mla/scenarios.txt", "r");
  int32_t count = 0;
  (void)state;
  assert_non_null(file);
  for (layer m = {.number = 0}; read_scenario(file, &m); m = (layer){.number = ++count}) {
    layer_open(&m);
    try_ways(&m, 0);
    try_ways(&m, 1);
    layer_close(&m);
  }
  fclose(file);
  assert_int_equal(count, 6);
  assert_true(expanded_layers > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(layers_are_the_public_codes),
  };
  return cmocka_run_group_tests_name("golden MLA layers", tests, NULL, NULL);
}
