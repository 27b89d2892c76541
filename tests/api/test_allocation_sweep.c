/* SPDX-License-Identifier: Apache-2.0 */
/* Every public function and the allocator. Those that allocate: each of their allocations fails in turn, alone and with
 * all later ones; the call is ATTN_E_NOMEM with one line, its outputs are untouched, its object goes on working, and
 * nothing leaks (sweep_creating.c). All others: not one allocation, by a good call or a refused one. What abi.txt lists
 * and is called here by neither way fails the test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocator.h"
#include "caching.h"
#include "merging.h"
#include "latent.h"
#include "scene.h"
#include "sweep.h"

enum { MOST_FUNCTIONS = 256 };

static const char *covered[MOST_FUNCTIONS];
static size_t num_covered;

void sweep_cover(const char *function) {
  CHECK(num_covered < MOST_FUNCTIONS, "more functions than this test can hold");
  covered[num_covered++] = function;
}

/* ---- Those that do not ------------------------------------------------------------------------------------------- */

static long never_from;

static void begin_never(const char *function) {
  harness_label(function);
  sweep_cover(function);
  never_from = allocator_allocations();
}

static void end_never(const char *function) {
  const long made = allocator_allocations() - never_from;
  CHECK(made == 0, "%s: %ld allocations", function, made);
  harness_label("-");
}

/* The statements call the function and are its whole effect on the allocator. */
#define NEVER(function, ...)                                                                                           \
  do {                                                                                                                 \
    begin_never(#function);                                                                                            \
    __VA_ARGS__;                                                                                                       \
    end_never(#function);                                                                                              \
  } while (0)

static void names(void **state) {
  attn_format format = ATTN_FORMAT_AUTO;
  int64_t shape[1] = {1};
  float value = 0;
  DLTensor made;
  attn_backend_info info;
  (void)state;
  NEVER(attn_version, assert_non_null(attn_version()));
  NEVER(attn_status_name, assert_non_null(attn_status_name(ATTN_E_SHAPE)), attn_status_name((attn_status)-1));
  NEVER(attn_status_meaning, assert_non_null(attn_status_meaning(ATTN_E_SHAPE)));
  NEVER(attn_status_remedy, assert_non_null(attn_status_remedy(ATTN_E_SHAPE)));
  NEVER(attn_verdict_name, assert_non_null(attn_verdict_name(ATTN_VERDICT_ABLE)));
  NEVER(attn_device_kind_name, assert_non_null(attn_device_kind_name(ATTN_DEVICE_CUDA)));
  NEVER(attn_device_count, assert_int_equal(attn_device_count(ATTN_DEVICE_CPU), 1));
  NEVER(
      attn_backend_get, while (attn_backend_get((size_t)shape[0], &info)) { shape[0]++; });
  NEVER(attn_format_name, assert_non_null(attn_format_name(ATTN_FORMAT_FLOAT16)));
  NEVER(attn_format_from_name, assert_int_equal(attn_format_from_name("float16", &format), 1));
  NEVER(attn_dtype_name, assert_non_null(attn_dtype_name(ATTN_DTYPE_INT32)));
  NEVER(attn_dtype_from_name, assert_int_equal(attn_dtype_from_name("int32"), ATTN_DTYPE_INT32));
  NEVER(attn_dtype_bytes, assert_int_equal(attn_dtype_bytes(ATTN_DTYPE_INT32), 4));
  NEVER(attn_dtype_to_dlpack, assert_int_equal(attn_dtype_to_dlpack(ATTN_DTYPE_INT32).bits, 32));
  NEVER(attn_tensor_cpu, attn_tensor_cpu(&made, &value, ATTN_DTYPE_FLOAT32, 1, shape));
  NEVER(attn_dtype_from_dlpack, assert_int_equal(attn_dtype_from_dlpack(made.dtype), ATTN_DTYPE_FLOAT32));
}

static void problems(void **state) {
  attn_cache_desc desc = ATTN_CACHE_DESC_INIT;
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  float slopes[12];
  int32_t left = 0, right = 0;
  scene s;
  (void)state;
  scene_init(&s, 4, 2, 8, 8);
  desc.k_format = ATTN_FORMAT_BFLOAT16;
  desc.num_blocks = 7;
  desc.num_kv_heads = 2;
  desc.head_size = 64;
  NEVER(attn_problem_check, EXPECT_OK(attn_problem_check(&s.problem, &why)), s.problem.num_q_heads = 5,
        EXPECT_REFUSED(attn_problem_check(&s.problem, &why), "num_q_heads"));
  NEVER(attn_softmax_scale, assert_true(attn_softmax_scale(64) == 0.125f));
  NEVER(attn_window_from_count, EXPECT_OK(attn_window_from_count(8, &left, &right, &why)),
        EXPECT_STATUS(attn_window_from_count(-1, &left, &right, &why), ATTN_E_RANGE, NULL));
  NEVER(attn_alibi_slopes, EXPECT_OK(attn_alibi_slopes(12, slopes, &why)),
        EXPECT_STATUS(attn_alibi_slopes(12, NULL, &why), ATTN_E_NULL, NULL));
  NEVER(attn_cache_describe, EXPECT_OK(attn_cache_describe(&desc, &info, &why)), desc.head_size = 0,
        EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "head_size"));
}

static void not_built(void **state) {
  attn_context *context = open_context(1);
  attn_transport transport = ATTN_TRANSPORT_INIT;
  attn_comm *comm = NULL;
  (void)state;
  NEVER(attn_backend_register, EXPECT_STATUS(attn_backend_register(context, "x.so", &why), ATTN_E_UNSUPPORTED, NULL));
  NEVER(attn_comm_create, EXPECT_STATUS(attn_comm_create(context, &transport, &comm, &why), ATTN_E_UNSUPPORTED, NULL));
  NEVER(attn_comm_destroy, attn_comm_destroy(NULL));
  NEVER(attn_comm_run, EXPECT_STATUS(attn_comm_run(NULL, NULL, NULL, NULL, &why), ATTN_E_UNSUPPORTED, NULL));
  attn_context_destroy(context);
}

static void open_latent(latent *s, attn_mla_form form) {
  static const int32_t q_len[] = {1, 25, 0}, kv_len[] = {40, 25, 9};
  latent_init(s, form, 2, 16, 4, 8, 8);
  latent_seqs(s, 3, q_len, kv_len);
  latent_fill(s, ATTN_FORMAT_BFLOAT16, 0);
  latent_open(s, NULL);
}

static void close_latent(latent *s) {
  latent_close(s);
  latent_free(s);
}

static void latent_calls(void **state) {
  latent s;
  (void)state;
  open_latent(&s, ATTN_MLA_MQA);
  NEVER(attn_mla_run_mqa, EXPECT_OK(latent_call(&s)), s.args.q = NULL,
        EXPECT_STATUS(latent_call(&s), ATTN_E_NULL, "q"));
  close_latent(&s);
  open_latent(&s, ATTN_MLA_MHA);
  NEVER(attn_mla_run_mha, EXPECT_OK(latent_call(&s)), s.args.weights = NULL,
        EXPECT_STATUS(latent_call(&s), ATTN_E_NULL, "weights"));
  close_latent(&s);
  open_latent(&s, ATTN_MLA_LAYER);
  NEVER(attn_mla_layer_run, EXPECT_OK(latent_call(&s)), s.args.slot_mapping = NULL,
        EXPECT_STATUS(latent_call(&s), ATTN_E_NULL, "slot_mapping"));
  close_latent(&s);
  NEVER(attn_mla_weights_destroy, attn_mla_weights_destroy(NULL));
  NEVER(attn_mla_softmax_scale, assert_true(attn_mla_softmax_scale(64, 1.0, 1.0) == 0.125f));
}

static void dry_runs_and_plans(void **state) {
  static const int32_t q_len[] = {1, 5}, kv_len[] = {40, 20};
  attn_context_info info = ATTN_CONTEXT_INFO_INIT;
  attn_explanation explanation = ATTN_EXPLANATION_INIT;
  attn_plan_info plan_info = ATTN_PLAN_INFO_INIT;
  attn_schedule_info schedule_info = ATTN_SCHEDULE_INFO_INIT;
  attn_kernel_info kernel;
  char call_reason[ATTN_REASON_BYTES];
  const char *name = NULL;
  size_t kernels = 0;
  scene s;
  (void)state;
  scene_init(&s, 4, 2, 8, 8);
  s.num_threads = 1;
  scene_seqs(&s, 2, q_len, kv_len);
  scene_store(&s);
  scene_open(&s, NULL);
  NEVER(attn_context_get_info, EXPECT_OK(attn_context_get_info(s.context, &info, &why)),
        EXPECT_STATUS(attn_context_get_info(NULL, &info, &why), ATTN_E_NULL, NULL));
  NEVER(
      attn_context_kernel, while (attn_context_kernel(s.context, kernels, &kernel)) { kernels++; });
  NEVER(attn_explain, EXPECT_OK(attn_explain(s.context, &s.problem, NULL, NULL, &explanation, &why)));
  NEVER(attn_select, EXPECT_OK(attn_select(s.context, &s.problem, NULL, NULL, &name, &why)));
  NEVER(attn_select_call, EXPECT_OK(attn_select_call(s.context, NULL, &name, call_reason, &why)));
  NEVER(attn_plan_workspace_bytes, assert_true(attn_plan_workspace_bytes(s.plan) > 0));
  NEVER(attn_plan_get_info, EXPECT_OK(attn_plan_get_info(s.plan, &plan_info, &why)));
  NEVER(attn_plan_schedule, EXPECT_OK(attn_plan_schedule(s.plan, &s.batch, &s.workspace, &why)),
        EXPECT_STATUS(attn_plan_schedule(s.plan, NULL, &s.workspace, &why), ATTN_E_NULL, NULL));
  NEVER(attn_schedule_get_info, EXPECT_OK(attn_schedule_get_info(s.plan, &s.workspace, &schedule_info, &why)));
  NEVER(attn_run, EXPECT_OK(attn_run(s.plan, &s.args, &s.workspace, &why)), s.args.q = NULL,
        EXPECT_STATUS(attn_run(s.plan, &s.args, &s.workspace, &why), ATTN_E_NULL, "q"));
  NEVER(attn_plan_destroy, attn_plan_destroy(s.plan));
  NEVER(attn_context_destroy, attn_context_destroy(s.context));
  s.plan = NULL;
  s.context = NULL;
  scene_close(&s);
  scene_free(&s);
}

static void caches(void **state) {
  attn_cache_copy_args copy = ATTN_CACHE_COPY_INIT;
  attn_cache_requantise_args requantise = ATTN_CACHE_REQUANTISE_INIT;
  int64_t map[] = {1, 4, 2, 5};
  tensor t_map;
  caching c;
  merging m;
  (void)state;
  caching_open(&c, NULL, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_LAYOUT_NHD, 20);
  tensor_2(&t_map, map, ATTN_DTYPE_INT64, 2, 2);
  copy.source = copy.target = &c.t_k_pool.t;
  copy.block_map = &t_map.t;
  NEVER(attn_cache_write, EXPECT_OK(attn_cache_write(c.context, &c.write, &why)), c.write.k = NULL,
        EXPECT_STATUS(attn_cache_write(c.context, &c.write, &why), ATTN_E_NULL, "k"));
  caching_gather(&c, 0, 13, 2, 20);
  NEVER(attn_cache_gather, EXPECT_OK(attn_cache_gather(c.context, &c.gather, &why)), c.gather.block_table = NULL,
        EXPECT_STATUS(attn_cache_gather(c.context, &c.gather, &why), ATTN_E_NULL, "block_table"));
  NEVER(attn_cache_swap, EXPECT_OK(attn_cache_swap(c.context, &copy, &why)));
  NEVER(attn_cache_copy, EXPECT_OK(attn_cache_copy(c.context, &copy, &why)), map[3] = 4,
        EXPECT_STATUS(attn_cache_copy(c.context, &copy, &why), ATTN_E_INDEX, NULL));
  guarded other = guard_make(c.k_pool.bytes);
  tensor target = c.t_k_pool;
  target.t.shape = target.shape;
  target.t.strides = target.strides;
  target.t.data = other.data;
  requantise.source = &c.t_k_pool.t;
  requantise.target = &target.t;
  requantise.block_map = &t_map.t;
  map[3] = 5;
  NEVER(attn_cache_requantise, EXPECT_OK(attn_cache_requantise(c.context, &requantise, &why)), map[3] = 4,
        EXPECT_STATUS(attn_cache_requantise(c.context, &requantise, &why), ATTN_E_INDEX, NULL));
  guard_free(&other);
  caching_close(&c);
  merging_init(&m, NULL, 3, 5, 2, 9, ATTN_DTYPE_FLOAT32);
  merging_store(&m);
  NEVER(attn_merge, EXPECT_OK(attn_merge(m.context, &m.args, &why)), m.args.size = 1,
        EXPECT_STATUS(attn_merge(m.context, &m.args, &why), ATTN_E_STRUCT_SIZE, NULL));
  merging_free(&m);
}

static void blocks(void **state) {
  const attn_pool_options options = sweep_pool_options(1);
  const int32_t tokens[] = {1, 2, 3, 4, 5, 6}, seqs[] = {0, 1};
  int64_t map[4], slots[8];
  int32_t ids[2], reused = 0, table[2 * 8], lens[2];
  attn_pool_copies copies = ATTN_POOL_COPIES_INIT;
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  attn_pool *pool = NULL;
  (void)state;
  copies.capacity = 2;
  copies.block_map = map;
  EXPECT_OK(attn_pool_create(&options, &pool, &why));
  NEVER(attn_pool_allocate, EXPECT_OK(attn_pool_allocate(pool, 2, ids, &why)),
        EXPECT_STATUS(attn_pool_allocate(pool, 99, ids, &why), ATTN_E_FULL, NULL));
  NEVER(attn_pool_retain, EXPECT_OK(attn_pool_retain(pool, ids[0], &why)));
  NEVER(attn_pool_release, EXPECT_OK(attn_pool_release(pool, ids[0], &why)),
        EXPECT_STATUS(attn_pool_release(pool, 0, &why), ATTN_E_INDEX, NULL));
  NEVER(attn_pool_references, assert_int_equal(attn_pool_references(pool, ids[0]), 1));
  NEVER(attn_pool_append_cow, EXPECT_OK(attn_pool_append_cow(pool, 0, 6, tokens, slots, &copies, &why)));
  NEVER(attn_pool_commit, EXPECT_OK(attn_pool_commit(pool, 0, &why)));
  NEVER(attn_pool_fork, EXPECT_OK(attn_pool_fork(pool, 0, 1, &why)));
  EXPECT_OK(attn_pool_append_cow(pool, 1, 1, tokens, slots, &copies, &why));
  assert_int_equal(copies.count, 1);
  NEVER(attn_pool_append, EXPECT_OK(attn_pool_append(pool, 2, 8, slots, &why)));
  NEVER(attn_pool_seq_len, assert_int_equal(attn_pool_seq_len(pool, 0), 6));
  NEVER(attn_pool_blocks_needed, assert_int_equal(attn_pool_blocks_needed(pool, 0, 3), 1));
  NEVER(attn_pool_block_table, EXPECT_OK(attn_pool_block_table(pool, 2, seqs, 8, table, lens, &why)));
  NEVER(attn_pool_free_seq, EXPECT_OK(attn_pool_free_seq(pool, 0, &why)));
  NEVER(attn_pool_reuse_prefix, EXPECT_OK(attn_pool_reuse_prefix(pool, 3, tokens, 6, &reused, &why)));
  assert_int_equal(reused, 4);
  NEVER(attn_pool_num_free, assert_true(attn_pool_num_free(pool) > 0));
  NEVER(attn_pool_num_used, assert_true(attn_pool_num_used(pool) > 0));
  NEVER(attn_pool_get_info, EXPECT_OK(attn_pool_get_info(pool, &info, &why)));
  NEVER(attn_pool_check, EXPECT_OK(attn_pool_check(pool, &why)));
  NEVER(attn_pool_destroy, attn_pool_destroy(pool));
}

static void groups(void **state) {
  const int32_t seq = 0;
  int64_t slots[2 * 6], shape[3] = {20, 1, 0};
  int32_t released = 0, table[20];
  attn_cache_desc layer = ATTN_CACHE_DESC_INIT;
  attn_group_spec spec = ATTN_GROUP_SPEC_INIT;
  attn_group_pages pages = ATTN_GROUP_PAGES_INIT;
  attn_geometry geometry = ATTN_GEOMETRY_INIT;
  attn_pool_group_info info = ATTN_POOL_GROUP_INFO_INIT;
  attn_page_view view;
  attn_pool *pool = NULL;
  DLTensor memory;
  (void)state;
  EXPECT_OK(sweep_make_groups(0, &pool));
  NEVER(attn_pool_append_groups, EXPECT_OK(attn_pool_append_groups(pool, 0, 6, NULL, slots, 6, NULL, &why)),
        EXPECT_STATUS(attn_pool_append_groups(pool, 0, 1, NULL, slots, 0, NULL, &why), ATTN_E_RANGE, NULL));
  NEVER(attn_pool_trim, EXPECT_OK(attn_pool_trim(pool, 0, 6, &released, &why)));
  assert_int_equal(released, 2);
  NEVER(attn_pool_group_table, EXPECT_OK(attn_pool_group_table(pool, 1, 1, &seq, 20, table, NULL, &why)));
  NEVER(attn_pool_get_group, EXPECT_OK(attn_pool_get_group(pool, 1, &info, &why)));
  attn_pool_destroy(pool);
  layer.k_format = ATTN_FORMAT_FLOAT32;
  layer.num_kv_heads = layer.head_size = spec.num_layers = 4;
  spec.layer = &layer;
  NEVER(attn_geometry_unify, EXPECT_OK(attn_geometry_unify(NULL, 1, &spec, &pages, &geometry, &why)),
        EXPECT_STATUS(attn_geometry_unify(NULL, 0, &spec, &pages, &geometry, &why), ATTN_E_RANGE, NULL));
  shape[2] = (int64_t)geometry.page_bytes;
  attn_tensor_cpu(&memory, slots, ATTN_DTYPE_UINT8, 3, shape);
  NEVER(attn_geometry_view, EXPECT_OK(attn_geometry_view(&memory, &pages, 1, ATTN_PART_V, &view, &why)),
        EXPECT_STATUS(attn_geometry_view(&memory, &pages, 4, ATTN_PART_V, &view, &why), ATTN_E_RANGE, NULL));
}

static void locked_arenas(void **state) {
  const size_t bytes[] = {500, 300}, more = 2000;
  attn_workspaces *w = NULL;
  attn_workspace views[2];
  (void)state;
  EXPECT_OK(sweep_create_arenas(&w));
  NEVER(attn_workspaces_lock, attn_workspaces_lock(w), /* from here on getting allocates nothing either */
        EXPECT_OK(attn_workspaces_get(w, 0, 2, bytes, views, "the sweep", &why)),
        EXPECT_STATUS(attn_workspaces_get(w, 0, 1, &more, views, "the sweep", &why), ATTN_E_WORKSPACE, "the sweep"));
  NEVER(attn_workspaces_bytes, assert_int_equal(attn_workspaces_bytes(w, 0), 1024));
  NEVER(attn_workspaces_unlock, attn_workspaces_unlock(w));
  NEVER(attn_workspaces_destroy, attn_workspaces_destroy(w));
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static int is_covered(const char *function) {
  for (size_t i = 0; i < num_covered; i++) {
    if (strcmp(covered[i], function) == 0) {
      return 1;
    }
  }
  return 0;
}

static void every_exported_function(void **state) {
  const char *root = getenv("ATTN_SOURCE_DIR");
  char path[1024], line[256], name[128];
  size_t exported = 0;
  (void)state;
  CHECK(root != NULL, "ATTN_SOURCE_DIR is not set: run this test by ctest");
  snprintf(path, sizeof path, "%s/abi.txt", root);
  FILE *file = fopen(path, "r");
  CHECK(file != NULL, "%s cannot be opened", path);
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "%127s", name) == 1 && strncmp(name, "attn_", 5) == 0) {
      CHECK(is_covered(name), "abi.txt lists %s: sweep it here, or show by NEVER() that it allocates nothing", name);
      exported++;
    }
  }
  fclose(file);
  CHECK(exported == num_covered, "%zu functions in abi.txt, %zu called here", exported, num_covered);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sweep_context_create),
      cmocka_unit_test(sweep_plan_create_of_each),
      cmocka_unit_test(sweep_pool_create),
      cmocka_unit_test(sweep_workspaces),
      cmocka_unit_test(names),
      cmocka_unit_test(problems),
      cmocka_unit_test(not_built),
      cmocka_unit_test(latent_calls),
      cmocka_unit_test(sweep_mla_weights_create),
      cmocka_unit_test(dry_runs_and_plans),
      cmocka_unit_test(caches),
      cmocka_unit_test(blocks),
      cmocka_unit_test(groups),
      cmocka_unit_test(locked_arenas),
      cmocka_unit_test(every_exported_function),
  };
  return cmocka_run_group_tests_name("allocation_sweep", tests, NULL, NULL);
}
