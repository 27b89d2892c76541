/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is allocated after planning: schedule, run, write, gather and merge leave the counters of malloc and its kin
 * alone, in this thread and in all others. The linker's --wrap puts the counters below before the library's calls. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "caching.h"
#include "merging.h"
#include "scene.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);
void __wrap_free(void *memory);

static atomic_long calls;

void *__wrap_malloc(size_t bytes) {
  atomic_fetch_add(&calls, 1);
  return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes) {
  atomic_fetch_add(&calls, 1);
  return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes) {
  atomic_fetch_add(&calls, 1);
  return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
  atomic_fetch_add(&calls, 1);
  return __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes) {
  atomic_fetch_add(&calls, 1);
  return __real_posix_memalign(memory, alignment, bytes);
}

void __wrap_free(void *memory) {
  atomic_fetch_add(&calls, 1);
  __real_free(memory);
}

/* The counters work at all, and planning is what allocates. */
static void the_counter_counts(void **state) {
  attn_context *context = NULL;
  (void)state;
  long before = atomic_load(&calls);
  EXPECT_OK(attn_context_create(NULL, &context, &why));
  CHECK(atomic_load(&calls) > before, "attn_context_create was not counted: the counters are not linked in");
  before = atomic_load(&calls);
  attn_context_destroy(context);
  CHECK(atomic_load(&calls) > before, "attn_context_destroy was not counted");
}

/* Several steps of a batch that changes, three layers each. */
static void steps(scene *s, const attn_plan *plan, const attn_workspace *workspace) {
  long before = atomic_load(&calls);
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
  long made = atomic_load(&calls) - before;
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

static void write_and_gather(const char *backend, attn_format format) {
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, format_dtype(format), ATTN_LAYOUT_NHD, 20);
  for (int unchecked = 0; unchecked < 2; unchecked++) {
    long before = atomic_load(&calls);
    c.write.unchecked = unchecked;
    attn_status status = attn_cache_write(c.context, &c.write, NULL);
    long made = atomic_load(&calls) - before;
    CHECK(status == ATTN_OK && made == 0, "write: %ld allocations", made);
  }
  caching_gather(&c, 0, 13, 2, 20);
  long before = atomic_load(&calls);
  attn_status status = attn_cache_gather(c.context, &c.gather, NULL);
  long made = atomic_load(&calls) - before;
  CHECK(status == ATTN_OK && made == 0, "gather: %ld allocations", made);
  caching_close(&c);
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
  long before = atomic_load(&calls);
  attn_status status = attn_cache_write(context, &args, NULL);
  long made = atomic_load(&calls) - before;
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
  long before = atomic_load(&calls);
  attn_status status = attn_merge(m.context, &m.args, NULL);
  long made = atomic_load(&calls) - before;
  CHECK(status == ATTN_OK && made == 0, "merge: %ld allocations", made);
  merging_free(&m);
}

/* explain, select and check are promised to allocate nothing either. */
static void dry_run(void **state) {
  attn_context *context = open_context(1);
  attn_explanation explanation = ATTN_EXPLANATION_INIT;
  const char *name = NULL;
  scene s;
  (void)state;
  scene_init(&s, 4, 2, 24, 24);
  long before = atomic_load(&calls);
  int bad = attn_explain(context, &s.problem, NULL, NULL, &explanation, NULL) != ATTN_OK;
  bad += attn_select(context, &s.problem, NULL, NULL, &name, NULL) != ATTN_OK;
  bad += attn_problem_check(&s.problem, NULL) != ATTN_OK;
  long made = atomic_load(&calls) - before;
  CHECK(bad == 0 && made == 0, "the dry run: %ld allocations", made);
  attn_context_destroy(context);
}

static void every_format(void **state) {
  (void)state;
  for_each_format(schedule_and_run);
  for_each_format(write_and_gather);
  for_each_format(merge);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_counter_counts),
      cmocka_unit_test(every_format),
      BACKEND_TEST(write_many),
      cmocka_unit_test(dry_run),
  };
  return cmocka_run_group_tests_name("no_allocation", tests, NULL, NULL);
}
