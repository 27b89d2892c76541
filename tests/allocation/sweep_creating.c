/* SPDX-License-Identifier: Apache-2.0 */
/* The part of test_allocation_sweep for functions that allocate. */
#include <stdio.h>
#include <string.h>

#include "allocator.h"
#include "scene.h"
#include "sweep.h"

/* One call to be swept. `call` is made again and again on `context`. */
typedef struct swept {
  const char *function;
  attn_status (*call)(void *context);
  void (*intact)(void *context); /* after a failure: outputs untouched, object usable */
  void (*undo)(void *context);   /* after success */
} swept;

static void sweep_in_mode(const swept *s, void *context, int onward) {
  for (long nth = 1;; nth++) {
    const size_t live = allocator_live();
    harness_reset();
    allocator_fail(nth, onward);
    const attn_status status = s->call(context);
    const long failed = allocator_failed();
    allocator_fail(0, 0);
    if (failed == 0) {
      harness_expect(status, ATTN_OK, NULL, __FILE__, __LINE__);
      CHECK(nth > 1, "%s allocates nothing", s->function);
      s->undo(context);
      CHECK(allocator_live() == live, "%s: %zu pieces before, %zu after", s->function, live, allocator_live());
      return;
    }
    harness_expect(status, ATTN_E_NOMEM, NULL, __FILE__, __LINE__);
    CHECK(allocator_live() == live, "%s: allocation %ld failed and %zu pieces became %zu", s->function, nth, live,
          allocator_live());
    s->intact(context);
  }
}

static void sweep(const swept *s, void *context) {
  char label[128];
  snprintf(label, sizeof label, "%s", s->function);
  harness_label(label);
  sweep_in_mode(s, context, 0);
  sweep_in_mode(s, context, 1);
  harness_label("-");
}

/* attn_context_create: one thread, the library's pool, the host's threads */

typedef struct context_call {
  attn_context_options options;
  attn_context *made;
} context_call;

static attn_status call_context(void *context) {
  context_call *c = context;
  return attn_context_create(&c->options, &c->made, &why);
}

static void intact_context(void *context) {
  CHECK(((context_call *)context)->made == NULL, "a context after a failure");
}

static void undo_context(void *context) {
  context_call *c = context;
  attn_context_destroy(c->made);
  c->made = NULL;
}

void sweep_context_create(void **state) {
  const attn_executor executor = harness_executor();
  (void)state;
  for (int way = 0; way < 3; way++) {
    context_call c = {ATTN_CONTEXT_OPTIONS_INIT, NULL};
    c.options.num_threads = way == 0 ? 1 : 4;
    c.options.executor = way == 2 ? &executor : NULL;
    harness_reset();
    const attn_status status = attn_context_create(&c.options, &c.made, &why);
    undo_context(&c);
    if (status == ATTN_OK) { /* else a build without the pool */
      sweep(&(swept){"attn_context_create", call_context, intact_context, undo_context}, &c);
    }
  }
  sweep_cover("attn_context_create");
}

/* attn_plan_create */

typedef struct plan_call {
  scene s;
  attn_plan *made;
} plan_call;

static attn_status call_plan(void *context) {
  plan_call *c = context;
  return attn_plan_create(c->s.context, &c->s.problem, &c->s.limits, &c->s.options, &c->made, &why);
}

static void intact_plan(void *context) {
  plan_call *c = context;
  CHECK(c->made == NULL, "a plan after a failure");
  EXPECT_OK(scene_step(&c->s, &why)); /* the context serves its other plans */
}

static void undo_plan(void *context) {
  plan_call *c = context;
  attn_plan_destroy(c->made);
  c->made = NULL;
}

static void plan_create(const char *backend) {
  static const int32_t q_len[] = {1, 5}, kv_len[] = {40, 20};
  for (int32_t own = 0; own <= 1; own++) {
    plan_call c;
    c.made = NULL;
    scene_init(&c.s, 4, 2, 8, 8);
    scene_seqs(&c.s, 2, q_len, kv_len);
    scene_store(&c.s);
    scene_open(&c.s, backend);
    c.s.options.backend = backend;
    c.s.options.own_workspace = own;
    c.s.limits.max_tokens = 64;
    c.s.limits.max_kv_len = 500;
    sweep(&(swept){"attn_plan_create", call_plan, intact_plan, undo_plan}, &c);
    scene_check(&c.s);
    scene_close(&c.s);
    scene_free(&c.s);
  }
}

void sweep_plan_create_of_each(void **state) {
  (void)state;
  for_each_backend(plan_create);
  sweep_cover("attn_plan_create");
}

/* attn_pool_create */

typedef struct pool_call {
  attn_pool_options options;
  attn_pool *made;
} pool_call;

static attn_status call_pool(void *context) {
  pool_call *c = context;
  return attn_pool_create(&c->options, &c->made, &why);
}

/* Two groups, the second with a window of 3 keys. */
attn_status sweep_make_groups(int32_t prefix_cache, attn_pool **made) {
  attn_pool_group groups[2] = {ATTN_POOL_GROUP_INIT, ATTN_POOL_GROUP_INIT};
  attn_pool_groups_options options = ATTN_POOL_GROUPS_OPTIONS_INIT;
  groups[0].block_size = groups[1].block_size = 2;
  groups[1].kernel_block = 1;
  groups[1].window = 3;
  options.num_blocks = options.max_seq_len = 20;
  options.num_groups = 2;
  options.groups = groups;
  options.max_seqs = 2;
  options.prefix_cache = prefix_cache;
  return attn_pool_create_groups(&options, made, &why);
}

static attn_status call_pool_groups(void *context) {
  pool_call *c = context;
  return sweep_make_groups(c->options.prefix_cache, &c->made);
}

static void intact_pool(void *context) {
  CHECK(((pool_call *)context)->made == NULL, "a pool after a failure");
}

static void undo_pool(void *context) {
  pool_call *c = context;
  EXPECT_OK(attn_pool_check(c->made, &why));
  attn_pool_destroy(c->made);
  c->made = NULL;
}

attn_pool_options sweep_pool_options(int32_t prefix_cache) {
  attn_pool_options options = ATTN_POOL_OPTIONS_INIT;
  options.num_blocks = 16;
  options.block_size = 4;
  options.max_seqs = 5;
  options.max_seq_blocks = 8;
  options.prefix_cache = prefix_cache;
  return options;
}

void sweep_pool_create(void **state) {
  (void)state;
  for (int32_t prefix_cache = 0; prefix_cache <= 1; prefix_cache++) {
    pool_call c = {sweep_pool_options(prefix_cache), NULL};
    sweep(&(swept){"attn_pool_create", call_pool, intact_pool, undo_pool}, &c);
    sweep(&(swept){"attn_pool_create_groups", call_pool_groups, intact_pool, undo_pool}, &c);
  }
  sweep_cover("attn_pool_create");
  sweep_cover("attn_pool_create_groups");
}

/* attn_workspaces_create, _get, _reserve: the arenas of a manager with three slots */

typedef struct arenas_call {
  attn_workspaces *w;
  size_t bytes[2];         /* wanted: always more than there is */
  attn_workspace first;    /* a view handed out before, of which every byte is 0x5A */
  attn_workspace views[2]; /* outputs */
} arenas_call;

attn_status sweep_create_arenas(attn_workspaces **made) {
  attn_workspaces_options options = ATTN_WORKSPACES_OPTIONS_INIT;
  options.num_slots = 3;
  options.slot_bytes = 1000;
  return attn_workspaces_create(&options, made, &why);
}

static attn_status call_arenas(void *context) {
  return sweep_create_arenas(&((arenas_call *)context)->w);
}

static void intact_nothing(void *context) {
  CHECK(((arenas_call *)context)->w == NULL, "a manager after a failure");
}

static void undo_arenas(void *context) {
  arenas_call *c = context;
  attn_workspaces_destroy(c->w);
  c->w = NULL;
}

static attn_status call_get(void *context) {
  arenas_call *c = context;
  return attn_workspaces_get(c->w, 1, 2, c->bytes, c->views, "the sweep", &why);
}

static attn_status call_reserve(void *context) {
  arenas_call *c = context;
  return attn_workspaces_reserve(c->w, 2, c->bytes, "the sweep", &why);
}

/* Slot 1 is as it was when `first` was handed out, slots 0 and 2 as they were made, and all serve what fits. */
static void intact_arenas(void *context) {
  arenas_call *c = context;
  attn_workspace again = {NULL, 0};
  const size_t fits = 900;
  CHECK(c->views[0].data == NULL && c->views[1].data == NULL, "views after a failure");
  CHECK(all_bytes(c->first.data, c->first.bytes, 0x5A), "an earlier view was written");
  for (int32_t slot = 0; slot < 3; slot++) {
    CHECK(attn_workspaces_bytes(c->w, slot) == 1024, "slot %d changed", (int)slot);
    EXPECT_OK(attn_workspaces_get(c->w, slot, 1, &fits, &again, "the sweep", &why));
    CHECK(slot != 1 || again.data == c->first.data, "slot 1 moved");
  }
}

static void undo_growth(void *context) {
  arenas_call *c = context;
  for (int32_t slot = 0; slot < 3; slot++) {
    CHECK(attn_workspaces_bytes(c->w, slot) >= 1024, "slot %d shrank", (int)slot);
  }
  CHECK(attn_workspaces_bytes(c->w, 1) >= c->bytes[0] + c->bytes[1], "slot 1 did not grow");
  undo_arenas(c); /* a manager as it was */
  memset(c->views, 0, sizeof c->views);
  EXPECT_OK(sweep_create_arenas(&c->w));
  EXPECT_OK(attn_workspaces_get(c->w, 1, 1, &c->first.bytes, &c->first, "the sweep", &why));
  memset(c->first.data, 0x5A, c->first.bytes);
}

void sweep_workspaces(void **state) {
  arenas_call c;
  (void)state;
  memset(&c, 0, sizeof c);
  sweep(&(swept){"attn_workspaces_create", call_arenas, intact_nothing, undo_arenas}, &c);
  c.bytes[0] = 5000;
  c.bytes[1] = 300;
  c.first.bytes = 900;
  EXPECT_OK(attn_workspaces_create(NULL, &c.w, &why));
  EXPECT_OK(attn_workspaces_reserve(c.w, 2, c.bytes, "the sweep", &why));
  EXPECT_OK(attn_workspaces_get(c.w, 0, 0, NULL, NULL, "the sweep", &why));
  undo_arenas(&c);
  EXPECT_OK(sweep_create_arenas(&c.w));
  EXPECT_OK(attn_workspaces_get(c.w, 1, 1, &c.first.bytes, &c.first, "the sweep", &why));
  memset(c.first.data, 0x5A, c.first.bytes);
  sweep(&(swept){"attn_workspaces_get", call_get, intact_arenas, undo_growth}, &c);
  sweep(&(swept){"attn_workspaces_reserve", call_reserve, intact_arenas, undo_growth}, &c);
  undo_arenas(&c);
  sweep_cover("attn_workspaces_create");
  sweep_cover("attn_workspaces_get");
  sweep_cover("attn_workspaces_reserve");
}

/* attn_mla_weights_create */

typedef struct weights_call {
  attn_context *context;
  attn_mla_weights_args args;
  attn_mla_weights *made;
} weights_call;

static attn_status call_weights(void *context) {
  weights_call *c = context;
  return attn_mla_weights_create(c->context, &c->args, &c->made, &why);
}

static void intact_weights(void *context) {
  CHECK(((weights_call *)context)->made == NULL, "weights after a failure");
}

static void undo_weights(void *context) {
  weights_call *c = context;
  attn_mla_weights_destroy(c->made);
  c->made = NULL;
}

void sweep_mla_weights_create(void **state) {
  weights_call c = {open_context(1), ATTN_MLA_WEIGHTS_ARGS_INIT, NULL};
  float values[2 * 7 * 5] = {0};
  int64_t shape[2] = {2 * 7, 5};
  tensor matrix;
  (void)state;
  tensor_over(&matrix, values, ATTN_DTYPE_FLOAT32, 2, shape);
  c.args.num_heads = 2;
  c.args.kv_lora_rank = 5;
  c.args.qk_nope_head_dim = 3;
  c.args.v_head_dim = 4;
  c.args.w_kv_b = &matrix.t;
  sweep(&(swept){"attn_mla_weights_create", call_weights, intact_weights, undo_weights}, &c);
  sweep_cover("attn_mla_weights_create");
  attn_context_destroy(c.context);
}
