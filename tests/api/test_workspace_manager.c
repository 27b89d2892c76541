/* SPDX-License-Identifier: Apache-2.0 */
/* workspace.h, and workspaces in use: a test for each promise, each documented status, and failing allocations. This
 * program's aligned_alloc takes the C library's place, so that an arena's growth can be made to fail. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

/* ---- A failing allocator */

static int allocations_left = -1; /* -1: any number */

void *aligned_alloc(size_t alignment, size_t bytes) {
  void *memory = NULL;
  if (allocations_left == 0) {
    return NULL;
  }
  if (allocations_left > 0) {
    allocations_left--;
  }
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

/* ---- The manager */

static attn_workspaces *open_slots(int32_t num_slots, uint64_t slot_bytes) {
  attn_workspaces_options options = ATTN_WORKSPACES_OPTIONS_INIT;
  attn_workspaces *w = NULL;
  options.num_slots = num_slots;
  options.slot_bytes = slot_bytes;
  EXPECT_OK(attn_workspaces_create(&options, &w, &why));
  CHECK(w != NULL, "no manager");
  return w;
}

static void expect_views(const attn_workspace *views, int32_t count, const size_t *bytes, size_t arena) {
  size_t used = 0;
  for (int32_t i = 0; i < count; i++) {
    CHECK(views[i].bytes == bytes[i], "view %d has %zu bytes, not %zu", (int)i, views[i].bytes, bytes[i]);
    CHECK((views[i].data == NULL) == (bytes[i] == 0), "view %d of %zu bytes is at %p", (int)i, bytes[i], views[i].data);
    CHECK((uintptr_t)views[i].data % ATTN_WORKSPACE_ALIGN == 0, "view %d is not aligned", (int)i);
    memset(views[i].data != NULL ? views[i].data : (void *)&used, i + 1, views[i].data != NULL ? bytes[i] : 0);
    used += (bytes[i] + ATTN_WORKSPACE_ALIGN - 1) / ATTN_WORKSPACE_ALIGN * ATTN_WORKSPACE_ALIGN;
  }
  for (int32_t i = 0; i < count; i++) {
    CHECK(all_bytes(views[i].data, bytes[i], (unsigned char)(i + 1)), "another view wrote into view %d", (int)i);
  }
  CHECK(used <= arena, "views of %zu bytes in an arena of %zu", used, arena);
}

/* Several views at once, each at a multiple of 256, apart from each other. */
static void simultaneous_views(void **state) {
  static const size_t bytes[] = {1, 256, 0, 257, 100000, 255, 3};
  attn_workspace views[7];
  attn_workspaces *w = open_slots(1, 0);
  (void)state;
  assert_int_equal(attn_workspaces_bytes(w, 0), 0);
  for (int32_t count = 0; count <= 7; count++) {
    EXPECT_OK(attn_workspaces_get(w, 0, count, bytes, views, "test", &why));
    expect_views(views, count, bytes, attn_workspaces_bytes(w, 0));
  }
  EXPECT_OK(attn_workspaces_get(w, 0, 0, NULL, NULL, "test", &why));
  attn_workspaces_destroy(w);
  attn_workspaces_destroy(NULL);
}

/* One arena per micro-batch: views of different slots never meet. */
static void an_arena_per_micro_batch(void **state) {
  enum { SLOTS = 5 };
  static const size_t bytes[] = {1000, 300};
  size_t all[2 * SLOTS];
  attn_workspace views[2 * SLOTS];
  attn_workspaces *w = open_slots(SLOTS, 0);
  (void)state;
  for (int32_t slot = 0; slot < SLOTS; slot++) {
    EXPECT_OK(attn_workspaces_get(w, slot, 2, bytes, &views[2 * slot], "test", &why));
    memcpy(&all[2 * slot], bytes, sizeof bytes);
  }
  expect_views(views, 2 * SLOTS, all, SIZE_MAX);
  attn_workspaces_destroy(w);
}

static void defaults(void **state) {
  attn_workspaces *w = NULL;
  (void)state;
  EXPECT_OK(attn_workspaces_create(NULL, &w, &why));
  assert_int_equal(attn_workspaces_bytes(w, 0), 0);
  EXPECT_STATUS(attn_workspaces_get(w, 1, 0, NULL, NULL, "test", &why), ATTN_E_INDEX, "slot: 1");
  attn_workspaces_destroy(w);
  w = open_slots(0, 1000); /* what there is at first is rounded up */
  assert_int_equal(attn_workspaces_bytes(w, 0), 1024);
  assert_int_equal(attn_workspaces_bytes(w, 1), 0);
  assert_int_equal(attn_workspaces_bytes(w, -1), 0);
  assert_int_equal(attn_workspaces_bytes(NULL, 0), 0);
  attn_workspaces_destroy(w);
}

/* Two successive calls return overlapping memory: it is not an allocator. */
static void not_an_allocator(void **state) {
  static const size_t bytes[] = {512, 512};
  attn_workspace first[2];
  attn_workspace second[2];
  attn_workspaces *w = open_slots(1, 4096);
  (void)state;
  EXPECT_OK(attn_workspaces_get(w, 0, 2, bytes, first, "test", &why));
  EXPECT_OK(attn_workspaces_get(w, 0, 2, bytes, second, "test", &why));
  assert_ptr_equal(first[0].data, second[0].data);
  assert_ptr_equal(first[1].data, second[1].data);
  attn_workspaces_destroy(w);
}

/* Growth of one arena leaves the others: their addresses, and what their views hold. */
static void growth_leaves_the_others(void **state) {
  size_t bytes = 700;
  attn_workspace views[3];
  attn_workspace grown;
  attn_workspaces *w = open_slots(3, 0);
  (void)state;
  for (int32_t slot = 0; slot < 3; slot++) {
    EXPECT_OK(attn_workspaces_get(w, slot, 1, &bytes, &views[slot], "test", &why));
    memset(views[slot].data, slot + 1, bytes);
  }
  bytes = 100000;
  EXPECT_OK(attn_workspaces_get(w, 1, 1, &bytes, &grown, "test", &why));
  expect_views(&grown, 1, &bytes, attn_workspaces_bytes(w, 1));
  bytes = 700;
  for (int32_t slot = 0; slot < 3; slot += 2) {
    attn_workspace again;
    CHECK(all_bytes(views[slot].data, bytes, (unsigned char)(slot + 1)), "slot %d lost its contents", (int)slot);
    EXPECT_OK(attn_workspaces_get(w, slot, 1, &bytes, &again, "test", &why));
    assert_ptr_equal(again.data, views[slot].data);
    assert_int_equal(attn_workspaces_bytes(w, slot), 768);
  }
  attn_workspaces_destroy(w);
}

/* The worst case, reserved ahead for every slot: nothing grows or moves afterwards, locked or not. */
static void reserved_ahead(void **state) {
  static const size_t worst[] = {5000, 1, 300};
  static const size_t step[] = {4000, 200, 0};
  attn_workspace views[3];
  void *first[4];
  attn_workspaces *w = open_slots(4, 256);
  (void)state;
  EXPECT_OK(attn_workspaces_reserve(w, 3, worst, "layer", &why));
  for (int32_t slot = 0; slot < 4; slot++) {
    assert_int_equal(attn_workspaces_bytes(w, slot), 5120 + 256 + 512);
    EXPECT_OK(attn_workspaces_get(w, slot, 3, step, views, "layer", &why));
    first[slot] = views[0].data;
  }
  EXPECT_OK(attn_workspaces_reserve(w, 2, step, "smaller", &why)); /* the largest counts */
  attn_workspaces_lock(w);
  EXPECT_OK(attn_workspaces_reserve(w, 3, worst, "layer", &why));
  for (int32_t slot = 0; slot < 4; slot++) {
    EXPECT_OK(attn_workspaces_get(w, slot, 3, worst, views, "layer", &why));
    expect_views(views, 3, worst, attn_workspaces_bytes(w, slot));
    assert_ptr_equal(views[0].data, first[slot]);
  }
  attn_workspaces_destroy(w);
}

/* After the lock growth is an error that names the caller and both sizes, and leaves everything. */
static void locked(void **state) {
  size_t bytes[2] = {1000, 24};
  attn_workspace views[2];
  attn_workspace kept[2];
  attn_workspaces *w = open_slots(2, 0);
  (void)state;
  EXPECT_OK(attn_workspaces_get(w, 1, 2, bytes, views, "warm up", &why));
  memset(views[0].data, 77, 1000);
  memcpy(kept, views, sizeof kept);
  attn_workspaces_lock(w);
  attn_workspaces_lock(w);
  bytes[1] = 257;
  EXPECT_STATUS(attn_workspaces_get(w, 1, 2, bytes, views, "decode of layer 7", &why), ATTN_E_WORKSPACE,
                "decode of layer 7");
  assert_non_null(strstr(why.text, "1536")); /* required */
  assert_non_null(strstr(why.text, "1280")); /* available */
  assert_non_null(strstr(why.text, "slot 1"));
  EXPECT_STATUS(attn_workspaces_reserve(w, 2, bytes, "the builder", &why), ATTN_E_WORKSPACE, "the builder");
  assert_memory_equal(views, kept, sizeof kept);
  assert_int_equal(attn_workspaces_bytes(w, 0), 0);
  assert_int_equal(attn_workspaces_bytes(w, 1), 1280);
  CHECK(all_bytes(views[0].data, 1000, 77), "the refusal lost what the arena held");
  bytes[1] = 256;
  EXPECT_OK(attn_workspaces_get(w, 1, 2, bytes, views, "warm up", &why));
  assert_ptr_equal(views[0].data, kept[0].data);
  bytes[1] = 257;
  attn_workspaces_unlock(w);
  EXPECT_OK(attn_workspaces_get(w, 1, 2, bytes, views, "warm up", &why));
  expect_views(views, 2, bytes, attn_workspaces_bytes(w, 1));
  attn_workspaces_lock(NULL);
  attn_workspaces_unlock(NULL);
  attn_workspaces_destroy(w);
}

static void bad_arguments(void **state) {
  attn_workspaces_options options = ATTN_WORKSPACES_OPTIONS_INIT;
  attn_workspaces *w = NULL;
  attn_workspace view = {&w, 99};
  size_t bytes[] = {8, SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 2};
  (void)state;
  EXPECT_STATUS(attn_workspaces_create(&options, NULL, &why), ATTN_E_NULL, "workspaces");
  options.size = 4;
  EXPECT_STATUS(attn_workspaces_create(&options, &w, &why), ATTN_E_STRUCT_SIZE, "options");
  options.size = sizeof options;
  options.num_slots = -1;
  EXPECT_STATUS(attn_workspaces_create(&options, &w, &why), ATTN_E_RANGE, "num_slots: -1");
  options.num_slots = 65537;
  EXPECT_STATUS(attn_workspaces_create(&options, &w, &why), ATTN_E_RANGE, "num_slots: 65537");
  options.num_slots = 2;
  options.slot_bytes = UINT64_MAX;
  EXPECT_STATUS(attn_workspaces_create(&options, &w, &why), ATTN_E_OVERFLOW, "slot_bytes");
  assert_null(w);
  w = open_slots(2, 512);
  EXPECT_STATUS(attn_workspaces_get(NULL, 0, 1, bytes, &view, "t", &why), ATTN_E_NULL, "workspaces");
  EXPECT_STATUS(attn_workspaces_get(w, 0, 1, NULL, &view, "t", &why), ATTN_E_NULL, "bytes");
  EXPECT_STATUS(attn_workspaces_get(w, 0, 1, bytes, NULL, "t", &why), ATTN_E_NULL, "views");
  EXPECT_STATUS(attn_workspaces_get(w, 0, 1, bytes, &view, NULL, &why), ATTN_E_NULL, "caller");
  EXPECT_STATUS(attn_workspaces_get(w, 2, 1, bytes, &view, "t", &why), ATTN_E_INDEX, "slot: 2");
  EXPECT_STATUS(attn_workspaces_get(w, -1, 1, bytes, &view, "t", &why), ATTN_E_INDEX, "slot: -1");
  EXPECT_STATUS(attn_workspaces_get(w, 0, -1, bytes, &view, "t", &why), ATTN_E_RANGE, "count: -1");
  EXPECT_STATUS(attn_workspaces_get(w, 0, 1, bytes + 1, &view, "t", &why), ATTN_E_OVERFLOW, "bytes");
  EXPECT_STATUS(attn_workspaces_get(w, 0, 2, bytes + 2, &view, "t", &why), ATTN_E_OVERFLOW, "bytes");
  EXPECT_STATUS(attn_workspaces_reserve(NULL, 1, bytes, "t", &why), ATTN_E_NULL, "workspaces");
  EXPECT_STATUS(attn_workspaces_reserve(w, 1, NULL, "t", &why), ATTN_E_NULL, "bytes");
  EXPECT_STATUS(attn_workspaces_reserve(w, 1, bytes, NULL, &why), ATTN_E_NULL, "caller");
  EXPECT_STATUS(attn_workspaces_reserve(w, -1, bytes, "t", &why), ATTN_E_RANGE, "count: -1");
  EXPECT_STATUS(attn_workspaces_reserve(w, 1, bytes + 1, "t", &why), ATTN_E_OVERFLOW, "bytes");
  assert_true(view.data == (void *)&w && view.bytes == 99);
  assert_int_equal(attn_workspaces_bytes(w, 0), 512);
  attn_workspaces_destroy(w);
}

/* An allocation that fails leaves every arena and view; whatever was had before it is given back (the leak checker). */
static void failing_allocations(void **state) {
  attn_workspaces_options options = ATTN_WORKSPACES_OPTIONS_INIT;
  attn_workspaces *none = NULL;
  attn_workspace view;
  attn_workspace kept;
  size_t bytes = 1000;
  (void)state;
  options.num_slots = 3;
  options.slot_bytes = 1000;
  for (int left = 0; left < 3; left++) {
    allocations_left = left;
    EXPECT_STATUS(attn_workspaces_create(&options, &none, &why), ATTN_E_NOMEM, "1024");
    assert_null(none);
  }
  allocations_left = -1;
  attn_workspaces *w = open_slots(3, 0);
  EXPECT_OK(attn_workspaces_get(w, 1, 1, &bytes, &view, "small", &why));
  memset(view.data, 5, bytes);
  kept = view;
  bytes = 5000;
  for (int left = 0; left < 3; left++) {
    allocations_left = left;
    EXPECT_STATUS(attn_workspaces_reserve(w, 1, &bytes, "the builder", &why), ATTN_E_NOMEM, "the builder");
  }
  allocations_left = 0;
  EXPECT_STATUS(attn_workspaces_get(w, 1, 1, &bytes, &view, "large", &why), ATTN_E_NOMEM, "large");
  allocations_left = -1;
  assert_memory_equal(&view, &kept, sizeof kept);
  CHECK(all_bytes(view.data, 1000, 5), "the failure lost what the arena held");
  assert_true(attn_workspaces_bytes(w, 0) == 0 && attn_workspaces_bytes(w, 1) == 1024);
  EXPECT_OK(attn_workspaces_reserve(w, 1, &bytes, "the builder", &why));
  attn_workspaces_destroy(w);
}

typedef struct slot_user {
  pthread_t thread;
  attn_workspaces *w;
  int32_t slot;
  int failures;
} slot_user;

static void *use_slot(void *argument) {
  slot_user *u = argument;
  for (size_t round = 1; round <= 200; round++) {
    size_t bytes[2] = {round * 37 % 3000, 100};
    attn_workspace views[2];
    u->failures += attn_workspaces_get(u->w, u->slot, 2, bytes, views, "thread", NULL) != ATTN_OK;
    for (int i = 0; i < 2 && views[i].data != NULL; i++) {
      memset(views[i].data, u->slot, bytes[i]);
      u->failures += !all_bytes(views[i].data, bytes[i], (unsigned char)u->slot);
    }
  }
  return NULL;
}

/* Different slots in different threads at once. */
static void slots_in_threads(void **state) {
  slot_user users[4];
  attn_workspaces *w = open_slots(4, 0);
  (void)state;
  for (int32_t i = 0; i < 4; i++) {
    users[i].w = w;
    users[i].slot = i;
    users[i].failures = 0;
    CHECK(pthread_create(&users[i].thread, NULL, use_slot, &users[i]) == 0, "no thread");
  }
  for (int32_t i = 0; i < 4; i++) {
    pthread_join(users[i].thread, NULL);
    CHECK(users[i].failures == 0, "slot %d: %d failures", (int)i, users[i].failures);
  }
  attn_workspaces_destroy(w);
}

/* ---- Plans */

static void make_scene(scene *s) {
  static const int32_t q_len[] = {1, 8, 3};
  static const int32_t kv_len[] = {300, 40, 77};
  scene_init(s, 4, 2, 24, 24);
  scene_seqs(s, 3, q_len, kv_len);
  scene_store(s);
}

/* Two plans with the views of one call, their runs in turn. */
static void plans_in_views(const char *backend) {
  attn_workspaces *w = open_slots(2, 0);
  attn_workspace views[2];
  size_t bytes[2];
  scene a;
  scene b;
  make_scene(&a);
  make_scene(&b);
  scene_open(&a, backend);
  scene_open(&b, backend);
  bytes[0] = attn_plan_workspace_bytes(a.plan);
  bytes[1] = attn_plan_workspace_bytes(b.plan);
  EXPECT_OK(attn_workspaces_reserve(w, 2, bytes, backend, &why));
  attn_workspaces_lock(w);
  EXPECT_OK(attn_workspaces_get(w, 1, 2, bytes, views, backend, &why));
  EXPECT_OK(attn_plan_schedule(a.plan, &a.batch, &views[0], &why));
  EXPECT_OK(attn_plan_schedule(b.plan, &b.batch, &views[1], &why));
  a.workspace = views[0];
  b.workspace = views[1];
  for (int layer = 0; layer < 2; layer++) {
    EXPECT_OK(attn_run(a.plan, &a.args, &views[0], &why));
    EXPECT_OK(attn_run(b.plan, &b.args, &views[1], &why));
  }
  EXPECT_OK(scene_step(&a, &why));
  scene_check(&a);
  EXPECT_OK(scene_step(&b, &why));
  scene_check(&b);
  scene_close(&a);
  scene_close(&b);
  scene_free(&a);
  scene_free(&b);
  attn_workspaces_destroy(w);
}

/* Without a manager the plan allocates once, when it is made, and needs nothing else. */
static void without_a_manager(const char *backend) {
  attn_plan *plan = NULL;
  scene s;
  make_scene(&s);
  scene_open(&s, backend);
  EXPECT_OK(scene_step(&s, &why));
  s.options.own_workspace = 1;
  s.options.backend = backend;
  s.limits.max_tokens = s.tokens;
  s.limits.max_seqs = 3;
  s.limits.max_kv_len = 300;
  allocations_left = 0;
  EXPECT_STATUS(attn_plan_create(s.context, &s.problem, &s.limits, &s.options, &plan, &why), ATTN_E_NOMEM, "workspace");
  allocations_left = 1;
  EXPECT_OK(attn_plan_create(s.context, &s.problem, &s.limits, &s.options, &plan, &why));
  EXPECT_STATUS(attn_run(plan, &s.args, NULL, &why), ATTN_E_STATE, "holds no schedule");
  for (int step = 0; step < 3; step++) {
    EXPECT_OK(attn_plan_schedule(plan, &s.batch, NULL, &why));
    memset(s.out_data.data, 0xFF, s.out_data.bytes);
    EXPECT_OK(attn_run(plan, &s.args, NULL, &why));
    CHECK(memcmp(s.out, s.out_data.data, s.out_data.bytes) == 0, "other bits than with a workspace given");
  }
  allocations_left = -1;
  attn_plan_destroy(plan);
  scene_close(&s);
  scene_free(&s);
}

/* ---- One workspace in two calls at once */

/* An executor that makes other calls with the running workspace before it does its tasks. */
typedef struct meddler {
  scene *s;
  int outer_unchecked;
  int asked;
  attn_status run, schedule, unchecked;
  attn_message message;
} meddler;

static attn_status run_without_q(const scene *s, int32_t unchecked, attn_message *message) {
  attn_run_args args = s->args;
  args.q = NULL;
  args.unchecked = unchecked;
  return attn_run(s->plan, &args, &s->workspace, message);
}

static void meddle(void *user, attn_task task, void *task_argument, size_t count) {
  meddler *m = user;
  if (m->s != NULL && m->asked++ == 0) {
    m->run = run_without_q(m->s, 0, &m->message);
    m->unchecked = run_without_q(m->s, 1, NULL);
    if (!m->outer_unchecked) {
      m->schedule = attn_plan_schedule(m->s->plan, &m->s->batch, &m->s->workspace, NULL);
    }
  }
  for (size_t i = 0; i < count; i++) {
    task(task_argument, i);
  }
}

/* In checked mode a second run or schedule is refused and names the workspace; the first one's answer is right, and the
   workspace is free again after it, whether it succeeded or not. Runs in unchecked mode neither mark nor look. */
static void caught_in_checked_mode(const char *backend) {
  meddler m;
  attn_executor executor = {&m, meddle};
  attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
  attn_context *context = NULL;
  char address[32];
  guarded memory;
  scene s;
  memset(&m, 0, sizeof m);
  make_scene(&s);
  s.num_threads = 2;
  scene_run(&s, backend); /* the answer */
  options.num_threads = 2;
  options.executor = &executor;
  EXPECT_OK(attn_context_create(&options, &context, &why));
  s.limits.max_tokens = s.tokens;
  s.limits.max_seqs = 3;
  s.limits.max_kv_len = 300;
  s.options.backend = backend;
  EXPECT_OK(attn_plan_create(context, &s.problem, &s.limits, &s.options, &s.plan, &why));
  s.workspace = workspace_make(s.plan, &memory);
  snprintf(address, sizeof address, "%p", s.workspace.data);
  EXPECT_OK(attn_plan_schedule(s.plan, &s.batch, &s.workspace, &why));
  for (int round = 0; round < 4; round++) {
    m.s = &s;
    m.asked = 0;
    m.outer_unchecked = s.args.unchecked = round % 2;
    memset(s.out_data.data, 0xFF, s.out_data.bytes);
    EXPECT_OK(attn_run(s.plan, &s.args, &s.workspace, &why));
    CHECK(memcmp(s.out, s.out_data.data, s.out_data.bytes) == 0, "round %d: the call it met changed its answer", round);
    m.s = NULL;
    if (strcmp(backend, "REFERENCE") == 0) {
      continue; /* it asks no executor: at_once_in_threads() */
    }
    CHECK(m.asked > 0, "the executor was not asked");
    assert_int_equal(m.unchecked, ATTN_E_NULL);
    assert_int_equal(m.run, round % 2 == 0 ? ATTN_E_STATE : ATTN_E_NULL);
    if (round % 2 == 0) {
      assert_int_equal(m.schedule, ATTN_E_STATE);
      assert_non_null(strstr(m.message.text, "workspace"));
      assert_non_null(strstr(m.message.text, address));
    }
  }
  EXPECT_STATUS(run_without_q(&s, 0, &why), ATTN_E_NULL, "q");
  s.args.unchecked = 0;
  EXPECT_OK(attn_run(s.plan, &s.args, &s.workspace, &why));
  EXPECT_OK(attn_plan_schedule(s.plan, &s.batch, &s.workspace, &why));
  attn_plan_destroy(s.plan);
  attn_context_destroy(context);
  guard_free(&memory);
  s.plan = NULL;
  scene_free(&s);
}

typedef struct contender {
  pthread_t thread;
  const scene *s;
  attn_run_args args;
  tensor t_out, t_lse;
  float out[12 * 4 * 24];
  float lse[12 * 4];
  int schedules;
  int done, refused, failures;
} contender;

static void *contend(void *argument) {
  contender *c = argument;
  const scene *s = c->s;
  for (int round = 0; round < 60; round++) {
    attn_status status = ATTN_OK;
    if (c->schedules && round % 3 == 0) {
      status = attn_plan_schedule(s->plan, &s->batch, &s->workspace, NULL);
    } else {
      memset(c->out, 0xFF, sizeof c->out);
      status = attn_run(s->plan, &c->args, &s->workspace, NULL);
      c->failures += status == ATTN_OK && memcmp(c->out, s->out, sizeof c->out) != 0;
      c->failures += status != ATTN_OK && !all_bytes(c->out, sizeof c->out, 0xFF);
    }
    c->done += status == ATTN_OK;
    c->refused += status == ATTN_E_STATE;
  }
  return NULL;
}

/* Threads that fight for one workspace: each call is right or refused, and none reads what another writes. */
static void at_once_in_threads(const char *backend) {
  enum { CONTENDERS = 3 };
  contender *list = calloc(CONTENDERS, sizeof *list);
  int done = 0;
  scene s;
  CHECK(list != NULL, "no memory");
  make_scene(&s);
  scene_open(&s, backend);
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  for (int i = 0; i < CONTENDERS; i++) {
    contender *c = &list[i];
    c->s = &s;
    c->args = s.args;
    c->schedules = i == 0;
    tensor_3(&c->t_out, c->out, ATTN_DTYPE_FLOAT32, 12, 4, 24);
    tensor_2(&c->t_lse, c->lse, ATTN_DTYPE_FLOAT32, 12, 4);
    c->args.out = &c->t_out.t;
    c->args.lse = &c->t_lse.t;
    CHECK(pthread_create(&c->thread, NULL, contend, c) == 0, "no thread");
  }
  for (int i = 0; i < CONTENDERS; i++) {
    pthread_join(list[i].thread, NULL);
    CHECK(list[i].failures == 0, "thread %d: %d wrong answers", i, list[i].failures);
    CHECK(list[i].done + list[i].refused == 60, "thread %d: a call failed otherwise", i);
    done += list[i].done;
  }
  CHECK(done > 0, "no call was served");
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  free(list);
  scene_close(&s);
  scene_free(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(simultaneous_views),
      cmocka_unit_test(an_arena_per_micro_batch),
      cmocka_unit_test(defaults),
      cmocka_unit_test(not_an_allocator),
      cmocka_unit_test(growth_leaves_the_others),
      cmocka_unit_test(reserved_ahead),
      cmocka_unit_test(locked),
      cmocka_unit_test(bad_arguments),
      cmocka_unit_test(failing_allocations),
      cmocka_unit_test(slots_in_threads),
      BACKEND_TEST(plans_in_views),
      BACKEND_TEST(without_a_manager),
      BACKEND_TEST(caught_in_checked_mode),
      BACKEND_TEST(at_once_in_threads),
  };
  return cmocka_run_group_tests_name("workspace_manager", tests, NULL, NULL);
}
