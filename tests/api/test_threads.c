/* SPDX-License-Identifier: Apache-2.0 */
/* One plan in four threads, each with its own workspace, batch and outputs, gives the bits of one thread; calls that
 * share a context do so too, with the executor of the caller and with the pool of the library. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

enum { THREADS = 4, STEPS = 12, TOKENS = 12, HQ = 4, D = 24, COUNT = TOKENS * HQ * D };

typedef struct worker {
  pthread_t thread;
  const attn_plan *plan;
  attn_run_args args;
  attn_batch batch;
  attn_workspace workspace;
  guarded workspace_data;
  tensor t_out, t_lse;
  float out[COUNT];
  float lse[TOKENS * HQ];
  const float *right_out;
  const float *right_lse;
  int failures;
} worker;

static void *work(void *argument) {
  worker *w = argument;
  for (int step = 0; step < STEPS; step++) {
    memset(w->out, 0xFF, sizeof w->out);
    memset(w->lse, 0xFF, sizeof w->lse);
    w->failures += attn_plan_schedule(w->plan, &w->batch, &w->workspace, NULL) != ATTN_OK;
    w->failures += attn_run(w->plan, &w->args, &w->workspace, NULL) != ATTN_OK;
    w->failures += memcmp(w->out, w->right_out, sizeof w->out) != 0;
    w->failures += memcmp(w->lse, w->right_lse, sizeof w->lse) != 0;
  }
  return NULL;
}

/* Four workers on one plan; the answers of one thread are s's out and lse. */
static void four_threads(scene *s, const attn_plan *plan) {
  worker *workers = calloc(THREADS, sizeof *workers);
  CHECK(workers != NULL, "no memory");
  for (int i = 0; i < THREADS; i++) {
    worker *w = &workers[i];
    w->plan = plan;
    w->args = s->args;
    w->batch = s->batch;
    w->workspace = workspace_make(plan, &w->workspace_data);
    tensor_3(&w->t_out, w->out, ATTN_DTYPE_FLOAT32, TOKENS, HQ, D);
    tensor_2(&w->t_lse, w->lse, ATTN_DTYPE_FLOAT32, TOKENS, HQ);
    w->args.out = &w->t_out.t;
    w->args.lse = &w->t_lse.t;
    w->right_out = s->out;
    w->right_lse = s->lse;
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "no thread");
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(workers[i].thread, NULL);
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK(workers[i].failures == 0, "thread %d: %d failures", i, workers[i].failures);
    guard_free(&workers[i].workspace_data);
  }
  free(workers);
}

static void one_plan_in_four_threads(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 8, 3};
  static const int32_t kv_len[] = {300, 40, 77};
  for (int32_t threads = 1; threads <= 3; threads += 2) {
    scene s;
    scene_init(&s, HQ, 2, D, D);
    scene_format(&s, format);
    s.num_threads = threads;
    scene_seqs(&s, 3, q_len, kv_len);
    scene_store(&s);
    scene_open(&s, backend);
    EXPECT_OK(scene_step(&s, &why));
    scene_check(&s);
    four_threads(&s, s.plan);
    scene_close(&s);
    scene_free(&s);
  }
}

/* Parallel calls that share one pool run one after the other. */
static void one_plan_with_the_library_pool(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 8, 3};
  static const int32_t kv_len[] = {300, 40, 77};
  attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
  attn_context *context = NULL;
  attn_plan *plan = NULL;
  scene s;
  options.num_threads = 2;
  harness_reset();
  attn_status status = attn_context_create(&options, &context, &why);
  if (status == ATTN_E_UNSUPPORTED) {
    return; /* a build without the library's pool: test_context.c looks at the refusal */
  }
  harness_expect(status, ATTN_OK, NULL, __FILE__, __LINE__);
  scene_init(&s, HQ, 2, D, D);
  scene_format(&s, format);
  s.num_threads = 2; /* the same plan, so the same bits */
  scene_seqs(&s, 3, q_len, kv_len);
  scene_store(&s);
  scene_run(&s, backend);
  s.limits.max_tokens = TOKENS;
  s.limits.max_kv_len = 300;
  s.limits.max_seqs = 3;
  s.options.backend = backend;
  EXPECT_OK(attn_plan_create(context, &s.problem, &s.limits, &s.options, &plan, &why));
  four_threads(&s, plan);
  attn_plan_destroy(plan);
  attn_context_destroy(context);
  scene_free(&s);
}

static void in_four_threads(void **state) {
  (void)state;
  for_each_format(one_plan_in_four_threads);
}

static void in_four_threads_over_the_pool(void **state) {
  (void)state;
  for_each_format(one_plan_with_the_library_pool);
}

/* Any number of threads, more than there is work too, gives an answer within the bounds. */
static void any_number_of_threads(const char *backend) {
  static const int32_t counts[] = {1, 2, 3, 8, 64};
  static const int32_t q_len[] = {1, 8, 3};
  static const int32_t kv_len[] = {1300, 40, 77};
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    scene s;
    scene_init(&s, HQ, 2, D, D);
    s.num_threads = counts[i];
    scene_seqs(&s, 3, q_len, kv_len);
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

/* ---- What the executor is asked for */

typedef struct counter {
  size_t most;
  int calls;
} counter;

static void count_and_run(void *user, attn_task task, void *task_argument, size_t count) {
  counter *c = user;
  c->most = count > c->most ? count : c->most;
  c->calls++;
  for (size_t i = count; i > 0; i--) {
    task(task_argument, i - 1);
  }
}

/* Never more tasks than threads, and none that waits for another: one thread runs them all, the last one first. */
static void executor_promises(const char *backend) {
  static const int32_t q_len[] = {1, 8, 3};
  static const int32_t kv_len[] = {1300, 40, 77};
  for (int32_t threads = 2; threads <= 32; threads *= 2) {
    counter c = {0, 0};
    attn_executor executor = {&c, count_and_run};
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *context = NULL;
    attn_plan *plan = NULL;
    guarded memory;
    scene s;
    scene_init(&s, HQ, 2, D, D);
    scene_seqs(&s, 3, q_len, kv_len);
    s.num_threads = threads;
    scene_store(&s);
    scene_run(&s, backend); /* the same plan in real threads */
    options.num_threads = threads;
    options.executor = &executor;
    EXPECT_OK(attn_context_create(&options, &context, &why));
    executor.run = NULL; /* it was copied */
    s.limits.max_tokens = TOKENS;
    s.limits.max_seqs = 3;
    s.limits.max_kv_len = 1300;
    s.options.backend = backend;
    EXPECT_OK(attn_plan_create(context, &s.problem, &s.limits, &s.options, &plan, &why));
    attn_workspace workspace = workspace_make(plan, &memory);
    EXPECT_OK(attn_plan_schedule(plan, &s.batch, &workspace, &why));
    memset(s.out_data.data, 0xFF, s.out_data.bytes);
    EXPECT_OK(attn_run(plan, &s.args, &workspace, &why));
    CHECK(c.most <= (size_t)threads, "%zu tasks for %d threads", c.most, threads);
    CHECK(strcmp(backend, "REFERENCE") == 0 || c.calls > 0, "the executor was never asked");
    CHECK(memcmp(s.out, s.out_data.data, s.out_data.bytes) == 0, "%d threads: other bits in other order", threads);
    attn_plan_destroy(plan);
    attn_context_destroy(context);
    guard_free(&memory);
    scene_free(&s);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(in_four_threads),
      cmocka_unit_test(in_four_threads_over_the_pool),
      BACKEND_TEST(any_number_of_threads),
      BACKEND_TEST(executor_promises),
  };
  return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
