/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is allocated after planning: schedule, run, write, gather, copy, swap and merge, a locked workspace manager
 * and the block manager leave the counters of allocator.h alone, in this thread and in all others. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "allocator.h"
#include "caching.h"
#include "latent.h"
#include "merging.h"
#include "quantising.h"
#include "scene.h"

/* Calls of the allocator, those that give back included. */
static long calls(void) {
  return allocator_allocations() + allocator_frees();
}

/* The counters work at all, and planning is what allocates. */
static void the_counter_counts(void **state) {
  attn_context *context = NULL;
  (void)state;
  long before = calls();
  EXPECT_OK(attn_context_create(NULL, &context, &why));
  CHECK(calls() > before, "attn_context_create was not counted: the counters are not linked in");
  before = calls();
  attn_context_destroy(context);
  CHECK(calls() > before, "attn_context_destroy was not counted");
}

/* Several steps of a batch that changes, three layers each. */
static void steps(scene *s, const attn_plan *plan, const attn_workspace *workspace) {
  long before = calls();
  int bad = 0;
  for (int step = 0; step < 3; step++) {
    bad += attn_plan_schedule(plan, &s->batch, workspace, NULL) != ATTN_OK;
    for (int layer = 0; layer < 3; layer++) {
      bad += attn_run(plan, &s->args, workspace, NULL) != ATTN_OK;
    }
    s->lens[0]--;
  }
  s->lens[0] += 3;
  bad += attn_run(plan, NULL, workspace, NULL) != ATTN_E_NULL; /* an error path */
  long made = calls() - before;
  CHECK(bad == 0, "a call failed");
  CHECK(made == 0, "%ld allocations in schedule and run", made);
}

static void schedule_and_run(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 20, 3};
  static const int32_t kv_len[] = {900, 40, 77};
  for (int variant = 0; variant < 6; variant++) {
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *context = NULL;
    attn_plan *plan = NULL;
    scene s;
    scene_init(&s, 4, 2, 24, 24);
    scene_format(&s, format);
    s.problem.batch_invariant = variant == 1;
    s.options.num_splits = variant == 2 ? 8 : 0;
    s.options.own_workspace = variant == 3;
    s.options.backend = backend;
    scene_seqs(&s, 3, q_len, kv_len);
    if (variant >= 4) {
      scene_alibi(&s, ATTN_ALIBI_LINEAR);
      scene_sinks(&s, 0.5f);
      scene_bias(&s, 1);
    }
    scene_store(&s);
    options.num_threads = variant == 5 ? 3 : 1;
    harness_reset();
    attn_status status = attn_context_create(&options, &context, &why);
    if (status == ATTN_OK) { /* else a build without the library's pool */
      s.limits.max_tokens = s.tokens;
      s.limits.max_kv_len = 900;
      s.limits.max_seqs = 3;
      EXPECT_OK(attn_plan_create(context, &s.problem, &s.limits, &s.options, &plan, &why));
      guarded memory;
      attn_workspace workspace = workspace_make(plan, &memory);
      steps(&s, plan, variant == 3 ? NULL : &workspace);
      guard_free(&memory);
      attn_plan_destroy(plan);
      attn_context_destroy(context);
    }
    scene_free(&s);
  }
}

/* Every latent call, with a context of several chunks and a layer whose sequences go both ways. */
static void latent_runs(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 30, 3};
  static const int32_t kv_len[] = {600, 40, 77};
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    latent s;
    latent_init(&s, (attn_mla_form)form, 4, 24, 6, 10, 12);
    latent_seqs(&s, 3, q_len, kv_len);
    latent_fill(&s, format, 0);
    latent_open(&s, backend);
    long before = calls();
    attn_status status = latent_call(&s);
    long made = calls() - before;
    CHECK(status == ATTN_OK && made == 0, "form %d: %s, %ld allocations", form, attn_status_name(status), made);
    latent_close(&s);
    latent_free(&s);
  }
}

/* What mha owes one row of a head, absorbed and in double: scores by W_UK^T q over the stored rows, W_UV last. */
static void absorbed_row(const latent *s, int64_t token, int32_t head, double *out) {
  enum { L = 512, R = 64, NOPE = 128, V = 128 };
  const float *q = s->q + (token * s->problem.num_q_heads + head) * (NOPE + R);
  const float *uk = s->w + (int64_t)head * (NOPE + V) * L, *uv = uk + NOPE * L;
  int32_t keys = s->kv_len[0] - s->q_len[0] + (int32_t)token + 1;
  double query[L + R] = {0}, sum[L] = {0}, weights = 0.0, best = -(double)INFINITY;
  double *scores = calloc((size_t)keys, sizeof *scores);
  assert_non_null(scores);
  for (int i = 0; i < NOPE * L; i++) {
    query[i % L] += (double)q[i / L] * (double)uk[i];
  }
  for (int i = 0; i < R; i++) {
    query[L + i] = (double)q[NOPE + i];
  }
  for (int32_t k = 0; k < keys; k++) {
    for (int i = 0; i < L + R; i++) {
      scores[k] += (double)s->problem.scale * query[i] * (double)s->seen[(int64_t)k * (L + R) + i];
    }
    best = fmax(best, scores[k]);
  }
  for (int32_t k = 0; k < keys; k++) {
    double weight = exp(scores[k] - best);
    weights += weight;
    for (int i = 0; i < L; i++) {
      sum[i] += weight * (double)s->seen[(int64_t)k * (L + R) + i];
    }
  }
  for (int i = 0; i < V; i++) {
    out[i] = 0.0;
    for (int j = 0; j < L; j++) {
      out[i] += (double)uv[i * L + j] * sum[j] / weights;
    }
  }
  free(scores);
}

static void check_heads(const latent *s) {
  static const int32_t heads[] = {0, 77, 127};
  for (int n = 0; n < 6; n++) {
    int64_t token = n / 3;
    int32_t head = heads[n % 3];
    double right[128], error = 0.0, size = 0.0;
    absorbed_row(s, token, head, right);
    for (int i = 0; i < 128; i++) {
      double off = (double)s->out[(token * 128 + head) * 128 + i] - right[i];
      error += off * off;
      size += right[i] * right[i];
    }
    print_message("token %d, head %d: relative rms %.2g\n", (int)token, head, sqrt(error / size));
    CHECK(error <= 2e-5 * 2e-5 * size, "token %d, head %d: relative rms %g", (int)token, head, sqrt(error / size));
  }
}

/* 128 heads of 192/128 over 32,768 cached rows, in 64 MiB. A minute of work: make check-long PART=check-latent. */
static void long_context(void **state) {
  const int32_t q = 2, kv = 32768 + 2;
  latent s;
  (void)state;
  if (getenv("ATTN_LONG_CONTEXT") == NULL) {
    skip();
  }
  latent_init(&s, ATTN_MLA_MHA, 128, 512, 64, 128, 128);
  latent_seqs(&s, 1, &q, &kv);
  s.problem.block_size = 64;
  latent_fill(&s, ATTN_FORMAT_BFLOAT16, 0);
  latent_open(&s, "CPU_MLA");
  size_t bytes = attn_plan_workspace_bytes(s.made);
  CHECK(bytes <= (size_t)64 << 20, "%zu bytes of workspace", bytes);
  long before = calls();
  attn_status status = latent_call(&s);
  long made = calls() - before;
  CHECK(status == ATTN_OK && made == 0, "%s, %ld allocations", attn_status_name(status), made);
  latent_close(&s);
  print_message("%zu bytes of workspace, %ld allocations\n", bytes, made);
  check_heads(&s);
  latent_free(&s);
}

static void write_and_gather(const char *backend, attn_format format) {
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, format_dtype(format), ATTN_LAYOUT_NHD, 20);
  for (int unchecked = 0; unchecked < 2; unchecked++) {
    long before = calls();
    c.write.unchecked = unchecked;
    attn_status status = attn_cache_write(c.context, &c.write, NULL);
    long made = calls() - before;
    CHECK(status == ATTN_OK && made == 0, "write: %ld allocations", made);
  }
  caching_gather(&c, 0, 13, 2, 20);
  long before = calls();
  attn_status status = attn_cache_gather(c.context, &c.gather, NULL);
  long made = calls() - before;
  CHECK(status == ATTN_OK && made == 0, "gather: %ld allocations", made);
  caching_close(&c);
}

/* Blocks between the pools of K and V, and inside one. */
static void copy_and_swap(const char *backend, attn_format format) {
  static int64_t map[] = {0, 5, 1, 6, 2, 4};
  attn_cache_copy_args args = ATTN_CACHE_COPY_INIT;
  tensor t_map, t_other;
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, format_dtype(format), ATTN_LAYOUT_HND, 20);
  guarded other = guard_make(c.k_pool.bytes);
  tensor_2(&t_map, map, ATTN_DTYPE_INT64, 3, 2);
  t_other = c.t_k_pool;
  t_other.t.data = other.data;
  t_other.t.shape = t_other.shape;
  t_other.t.strides = t_other.strides;
  args.layout = ATTN_LAYOUT_HND;
  args.backend = backend;
  args.source = &c.t_k_pool.t;
  args.block_map = &t_map.t;
  for (int one_pool = 0; one_pool < 2; one_pool++) {
    args.target = one_pool ? args.source : &t_other.t;
    long before = calls();
    int bad = attn_cache_copy(c.context, &args, NULL) != ATTN_OK;
    bad += attn_cache_swap(c.context, &args, NULL) != ATTN_OK;
    map[5] = 6; /* a target twice */
    bad += attn_cache_copy(c.context, &args, NULL) != ATTN_E_INDEX;
    bad += attn_cache_swap(c.context, &args, NULL) != ATTN_E_INDEX;
    map[5] = 4;
    long made = calls() - before;
    CHECK(bad == 0, "a call did not end as it should");
    CHECK(made == 0, "copy and swap: %ld allocations", made);
  }
  guard_free(&other);
  caching_close(&c);
}

/* Rows with scales of their own, and a requantisation between two of them. */
static void quantised(const char *backend) {
  for (int f = ATTN_FORMAT_FP8_E4M3; f <= ATTN_FORMAT_INT4_PER_TOKEN_HEAD; f++) {
    quantising q = {.context = open_context(1), .backend = backend};
    for (int i = 0; i < 2; i++) {
      q.side[i].format = (attn_format)f;
      q.side[i].size = 40;
      q.side[i].separate = i && format_has_row_scale(q.side[i].format);
    }
    quantising_open(&q, LAY_GAPS);
    int64_t pair[2] = {1, 2};
    tensor t_map;
    tensor_2(&t_map, pair, ATTN_DTYPE_INT64, 1, 2);
    attn_cache_write_args write = quantising_write(&q);
    attn_cache_requantise_args move = ATTN_CACHE_REQUANTISE_INIT;
    move.backend = backend;
    move.source_format = move.target_format = (attn_format)f;
    move.head_size = 40;
    move.source = write.k_cache;
    move.source_scale = write.k_scale;
    move.target = write.v_cache;
    move.target_scale = write.v_scale;
    move.block_map = &t_map.t;
    long before = calls();
    int bad = attn_cache_write(q.context, &write, NULL) != ATTN_OK;
    bad += attn_cache_requantise(q.context, &move, NULL) != ATTN_OK;
    long made = calls() - before;
    CHECK(bad == 0 && made == 0, "%s: %ld allocations", attn_format_name((attn_format)f), made);
    attn_context_destroy(q.context);
    quantising_close(&q);
  }
}

/* Enough slots that a checker of duplicates might want memory for them. */
static void write_many(const char *backend) {
  enum { SLOTS = 5000 };
  int64_t *slots = malloc(SLOTS * sizeof *slots);
  float *pool = malloc(2 * (size_t)SLOTS * sizeof *pool);
  float *rows = malloc((size_t)SLOTS * sizeof *rows);
  attn_context *context = open_context(1);
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  tensor t_rows, t_slots, t_k, t_v;
  CHECK(slots != NULL && pool != NULL && rows != NULL, "no memory");
  for (int64_t i = 0; i < SLOTS; i++) {
    slots[i] = (i * 7919 + 11) % SLOTS;
    rows[i] = (float)i;
  }
  tensor_3(&t_rows, rows, ATTN_DTYPE_FLOAT32, SLOTS, 1, 1);
  tensor_1(&t_slots, slots, ATTN_DTYPE_INT64, SLOTS);
  tensor_4(&t_k, pool, ATTN_DTYPE_FLOAT32, SLOTS / 10, 10, 1, 1);
  tensor_4(&t_v, pool + SLOTS, ATTN_DTYPE_FLOAT32, SLOTS / 10, 10, 1, 1);
  args.backend = backend;
  args.k = args.v = &t_rows.t;
  args.slot_mapping = &t_slots.t;
  args.k_cache = &t_k.t;
  args.v_cache = &t_v.t;
  long before = calls();
  attn_status status = attn_cache_write(context, &args, NULL);
  long made = calls() - before;
  CHECK(status == ATTN_OK && made == 0, "write: %s, %ld allocations", attn_status_name(status), made);
  for (int64_t i = 0; i < SLOTS; i++) {
    CHECK(pool[slots[i]] == (float)i, "slot %d is wrong", (int)slots[i]);
  }
  slots[SLOTS - 1] = slots[17]; /* the duplicate is found among all of them */
  EXPECT_STATUS(attn_cache_write(context, &args, &why), ATTN_E_INDEX, "slot_mapping");
  attn_context_destroy(context);
  free(slots);
  free(pool);
  free(rows);
}

static void merge(const char *backend, attn_format format) {
  merging m;
  merging_init(&m, backend, MERGING_PARTS, 9, 4, 33, format_dtype(format));
  merging_store(&m);
  long before = calls();
  attn_status status = attn_merge(m.context, &m.args, NULL);
  long made = calls() - before;
  CHECK(status == ATTN_OK && made == 0, "merge: %ld allocations", made);
  merging_free(&m);
}

/* Steps out of a locked manager: views of changing sizes, then schedule and run in one of them. */
static void locked_workspaces(const char *backend) {
  static const int32_t q_len[] = {1, 20, 3};
  static const int32_t kv_len[] = {900, 40, 77};
  attn_workspaces_options options = ATTN_WORKSPACES_OPTIONS_INIT;
  attn_workspaces *arenas = NULL;
  attn_workspace views[2];
  scene s;
  scene_init(&s, 4, 2, 24, 24);
  scene_seqs(&s, 3, q_len, kv_len);
  scene_store(&s);
  scene_open(&s, backend);
  size_t bytes[2] = {attn_plan_workspace_bytes(s.plan), 5000};
  options.num_slots = 2;
  EXPECT_OK(attn_workspaces_create(&options, &arenas, &why));
  EXPECT_OK(attn_workspaces_reserve(arenas, 2, bytes, "test", &why));
  attn_workspaces_lock(arenas);
  long before = calls();
  int bad = 0;
  for (int32_t step = 0; step < 6; step++) {
    bytes[1] = (size_t)(5000 - 900 * step);
    bad += attn_workspaces_get(arenas, step % 2, 2, bytes, views, "test", NULL) != ATTN_OK;
    bad += attn_plan_schedule(s.plan, &s.batch, &views[0], NULL) != ATTN_OK;
    bad += attn_run(s.plan, &s.args, &views[0], NULL) != ATTN_OK;
  }
  bytes[1] = 9000;
  bad += attn_workspaces_get(arenas, 0, 2, bytes, views, "test", NULL) != ATTN_E_WORKSPACE;
  attn_workspaces_unlock(arenas);
  long made = calls() - before;
  CHECK(bad == 0, "a call did not end as it should");
  CHECK(made == 0, "%ld allocations with a locked manager", made);
  attn_workspaces_destroy(arenas);
  scene_close(&s);
  scene_free(&s);
}

/* The block manager's calls of a step, in any order and up to the full pool. */
static void block_manager(void **state) {
  enum { SEQS = 6, BLOCK = 4, WIDTH = 8 };
  static const int32_t seqs[SEQS] = {0, 1, 2, 3, 4, 5};
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  int64_t slots[2 * BLOCK], map[2];
  int32_t tokens[WIDTH * BLOCK], table[SEQS * WIDTH], lens[SEQS], ids[2], reused;
  uint32_t random = 3;
  attn_pool *pool = NULL;
  long refused = 0;
  (void)state;
  options.num_blocks = 20;
  options.block_size = BLOCK;
  options.max_seqs = SEQS;
  options.max_seq_blocks = WIDTH;
  options.prefix_cache = 1;
  copies.capacity = 1;
  copies.block_map = map;
  for (int32_t i = 0; i < WIDTH * BLOCK; i++) {
    tokens[i] = i / 3; /* the same for every sequence: prefixes meet */
  }
  EXPECT_OK(attn_pool_create(&options, &pool, &why));
  long before = calls();
  for (int step = 0; step < 4000; step++) {
    int32_t seq = (int32_t)(random_bits(&random) % SEQS);
    int32_t len = attn_pool_seq_len(pool, seq);
    copies.count = 0;
    switch (random_bits(&random) % 8) {
    case 0:
      refused += attn_pool_free_seq(pool, seq, NULL) != ATTN_OK;
      break;
    case 1:
      refused += attn_pool_fork(pool, seq, (seq + 1) % SEQS, NULL) != ATTN_OK;
      break;
    case 2:
      refused += attn_pool_reuse_prefix(pool, seq, tokens, WIDTH * BLOCK - 1, &reused, NULL) != ATTN_OK;
      break;
    case 3:
      refused += attn_pool_commit(pool, seq, NULL) != ATTN_OK;
      break;
    case 4:
      refused += attn_pool_allocate(pool, 2, ids, NULL) != ATTN_OK || attn_pool_retain(pool, ids[0], NULL) != ATTN_OK ||
                 attn_pool_release(pool, ids[0], NULL) != ATTN_OK || attn_pool_release(pool, ids[0], NULL) != ATTN_OK ||
                 attn_pool_release(pool, ids[1], NULL) != ATTN_OK;
      break;
    case 5:
      refused += attn_pool_append(pool, seq, 1 + step % BLOCK, slots, NULL) != ATTN_OK;
      break;
    default:
      refused += len + 2 * BLOCK > WIDTH * BLOCK ||
                 attn_pool_append_cow(pool, seq, 1 + step % (2 * BLOCK), tokens + len, slots, &copies, NULL) != ATTN_OK;
    }
    refused += attn_pool_block_table(pool, SEQS, seqs, WIDTH, table, lens, NULL) != ATTN_OK;
  }
  long made = calls() - before;
  EXPECT_OK(attn_pool_check(pool, &why));
  EXPECT_OK(attn_pool_get_info(pool, &info, &why));
  CHECK(info.hits > 0 && info.evictions > 0 && info.copies > 0 && refused > 0 && refused < 3000,
        "%lld hits, %lld evictions, %lld copies, %ld refused: no mixed load", (long long)info.hits,
        (long long)info.evictions, (long long)info.copies, refused);
  CHECK(made == 0, "%ld allocations of the block manager", made);
  attn_pool_destroy(pool);
}

/* explain, select and check are promised to allocate nothing either. */
static void dry_run(void **state) {
  attn_context *context = open_context(1);
  attn_explanation explanation = ATTN_EXPLANATION_INIT;
  const char *name = NULL;
  scene s;
  (void)state;
  scene_init(&s, 4, 2, 24, 24);
  long before = calls();
  int bad = attn_explain(context, &s.problem, NULL, NULL, &explanation, NULL) != ATTN_OK;
  bad += attn_select(context, &s.problem, NULL, NULL, &name, NULL) != ATTN_OK;
  bad += attn_select_call(context, NULL, &name, NULL, NULL) != ATTN_OK;
  bad += attn_problem_check(&s.problem, NULL) != ATTN_OK;
  long made = calls() - before;
  CHECK(bad == 0 && made == 0, "the dry run: %ld allocations", made);
  attn_context_destroy(context);
}

static void every_format(void **state) {
  (void)state;
  for_each_format(schedule_and_run);
  for_each_format(write_and_gather);
  for_each_format(copy_and_swap);
  for_each_format(merge);
}

static void every_latent_format(void **state) {
  static const attn_format formats[] = {ATTN_FORMAT_FLOAT32, ATTN_FORMAT_BFLOAT16, ATTN_FORMAT_FP8_E4M3,
                                        ATTN_FORMAT_INT8_PER_TOKEN_HEAD, ATTN_FORMAT_INT4_PER_TOKEN_HEAD};
  (void)state;
  for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
    latent_runs("REFERENCE", formats[i]);
    latent_runs("CPU_MLA", formats[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_counter_counts), cmocka_unit_test(every_format), cmocka_unit_test(every_latent_format),
      cmocka_unit_test(long_context),       BACKEND_TEST(write_many),       BACKEND_TEST(locked_workspaces),
      cmocka_unit_test(block_manager),      cmocka_unit_test(dry_run),      BACKEND_TEST(quantised),
  };
  return cmocka_run_group_tests_name("no_allocation", tests, NULL, NULL);
}
