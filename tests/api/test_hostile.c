/* SPDX-License-Identifier: Apache-2.0 */
/* No input crashes, hangs or reads out of bounds: fields, lists, values and tensors are replaced by hostile ones, drawn
 * from a seed. Whatever comes back is a success, or a status with one line and untouched outputs (scene_step looks); a
 * sanitizer and the guard pages look at the rest. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "caching.h"
#include "hostile.h"
#include "merging.h"
#include "scene.h"
#include "test_counts.h"

/* ---- Problems, limits, options: every int32 and float of the struct may be anything */

static void hostile_problems(const char *backend) {
  attn_context *context = open_context(2);
  for (uint32_t seed = 1; seed <= 400; seed++) {
    uint32_t state = seed * 2654435761u;
    attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
    attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    attn_plan *plan = NULL;
    scene s;
    scene_init(&s, 4, 2, 16, 16);
    for (int32_t changes = 1 + hostile_draw(&state, 3); changes > 0; changes--) {
      size_t field =
          sizeof(int32_t) * (size_t)(1 + hostile_draw(&state, (int32_t)(sizeof s.problem / sizeof(int32_t)) - 1));
      int32_t value = hostile_int(&state);
      float number = hostile_float(&state);
      if (field == offsetof(attn_problem, scale) || field == offsetof(attn_problem, softcap)) {
        memcpy((char *)&s.problem + field, &number, sizeof number);
      } else {
        memcpy((char *)&s.problem + field, &value, sizeof value);
      }
    }
    limits.max_tokens = hostile_draw(&state, 2) == 0 ? 100 : hostile_int(&state);
    limits.max_kv_len = hostile_draw(&state, 2) == 0 ? 100 : hostile_int(&state);
    limits.max_seqs = hostile_draw(&state, 2) == 0 ? 0 : hostile_int(&state);
    options.num_splits = hostile_draw(&state, 2) == 0 ? 0 : hostile_int(&state);
    options.backend = backend;
    harness_reset();
    attn_status checked = attn_problem_check(&s.problem, &why);
    hostile_status(checked, seed);
    harness_reset();
    attn_status explained = attn_explain(context, &s.problem, &limits, &options, &explanation, &why);
    hostile_status(explained, seed);
    harness_reset();
    attn_status planned = attn_plan_create(context, &s.problem, &limits, &options, &plan, &why);
    hostile_status(planned, seed);
    CHECK((planned == ATTN_OK) == (plan != NULL), "seed %u: %s and plan %p", seed, attn_status_name(planned),
          (void *)plan);
    CHECK(checked == ATTN_OK || planned == checked, "seed %u: check says %s, plan %s", seed, attn_status_name(checked),
          attn_status_name(planned));
    CHECK(explained != ATTN_OK || explanation.status == planned, "seed %u: explain says %s, plan %s", seed,
          attn_status_name(explanation.status), attn_status_name(planned));
    attn_plan_destroy(plan);
  }
  attn_context_destroy(context);
}

/* ---- Lists and values of a valid problem */

static void hostile_values(scene *s, uint32_t *state) {
  int32_t *table = (int32_t *)(void *)s->table_data.data;
  int64_t entries = (int64_t)(s->table_data.bytes / sizeof(int32_t));
  for (int32_t changes = hostile_draw(state, 4); changes > 0; changes--) {
    float number = hostile_float(state);
    int32_t value = hostile_int(state);
    switch (hostile_draw(state, 9)) {
    case 0:
      table[hostile_draw(state, (int32_t)entries)] = value;
      break;
    case 1:
      s->lens[hostile_draw(state, 3)] = value;
      break;
    case 2:
      s->starts[hostile_draw(state, 4)] = value;
      break;
    case 3:
      s->ranges[hostile_draw(state, 12)] = value;
      break;
    case 4:
      s->causal[hostile_draw(state, 3)] = value;
      break;
    case 5:
      s->sinks[hostile_draw(state, 4)] = number;
      break;
    case 6:
      s->slopes[hostile_draw(state, 4)] = number;
      break;
    case 7:
      s->bias[hostile_draw(state, (int32_t)(s->tokens * s->bias_keys))] = number;
      break;
    default:
      store_element(s->q_data.data, s->problem.q_dtype, hostile_draw(state, (int32_t)s->tokens * 64), number);
      break;
    }
  }
}

static void hostile_lists(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 9, 3};
  static const int32_t kv_len[] = {70, 9, 40};
  static const int32_t ranges[] = {0, 5, 7, 7, 3, 9, 30, 50, 0, 0, 10, 20};
  static const int32_t causal[] = {1, 0, 1};
  for (uint32_t seed = 1; seed <= (uint32_t)test_count(400, 150); seed++) {
    uint32_t state = seed * 40503u + (uint32_t)format;
    scene s;
    scene_init(&s, 4, 2, 16, 16);
    scene_format(&s, format);
    s.problem.window_left = hostile_draw(&state, 3) == 0 ? 12 : -1;
    s.problem.batch_invariant = hostile_draw(&state, 2);
    s.num_threads = 1 + hostile_draw(&state, 3);
    scene_seqs(&s, 3, q_len, kv_len);
    scene_alibi(&s, ATTN_ALIBI_LINEAR);
    scene_sinks(&s, 0.5f);
    scene_bias(&s, 1);
    scene_ranges(&s, 2, ranges);
    scene_causal(&s, causal);
    scene_store(&s);
    scene_open(&s, backend);
    s.args.unchecked = hostile_draw(&state, 2);
    hostile_values(&s, &state);
    harness_reset();
    hostile_status(scene_step(&s, &why), seed);
    scene_close(&s);
    scene_free(&s);
  }
}

/* ---- Tensors: extents and strides that no memory can hold, ranks, types, devices, pointers that are not there */

static void hostile_run_tensors(const char *backend) {
  static const int32_t q_len[] = {1, 9, 3};
  static const int32_t kv_len[] = {70, 9, 40};
  for (uint32_t seed = 1; seed <= 400; seed++) {
    uint32_t state = seed * 69069u;
    scene s;
    scene_init(&s, 4, 2, 16, 16);
    scene_seqs(&s, 3, q_len, kv_len);
    scene_alibi(&s, ATTN_ALIBI_SQRT);
    scene_sinks(&s, 0.5f);
    scene_bias(&s, 4);
    scene_store(&s);
    tensor *list[] = {&s.t_q,      &s.t_k,     &s.t_v,    &s.t_table,  &s.t_out, &s.t_lse,
                      &s.t_slopes, &s.t_sinks, &s.t_bias, &s.t_starts, &s.t_lens};
    scene_open(&s, backend);
    s.args.unchecked = hostile_draw(&state, 2);
    for (int32_t changes = 1 + hostile_draw(&state, 2); changes > 0; changes--) {
      hostile_tensor(list[hostile_draw(&state, 11)], &state);
    }
    harness_reset();
    hostile_status(scene_schedule(&s, &why), seed);
    memset(s.out_data.data, 0xFF, s.out_data.bytes);
    harness_reset();
    attn_status status = attn_run(s.plan, &s.args, &s.workspace, &why);
    hostile_status(status, seed);
    CHECK(status == ATTN_OK || all_bytes(s.out_data.data, s.out_data.bytes, 0xFF), "seed %u: a failing run wrote",
          seed);
    scene_close(&s);
    scene_free(&s);
  }
}

static void hostile_cache_tensors(const char *backend) {
  for (uint32_t seed = 1; seed <= 400; seed++) {
    uint32_t state = seed * 69069u;
    caching c;
    caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_BFLOAT16, (attn_layout)hostile_draw(&state, 2), 20);
    tensor *writes[] = {&c.t_k, &c.t_v, &c.t_slots, &c.t_k_pool, &c.t_v_pool};
    int32_t at = hostile_draw(&state, 20);
    c.slots[at] = hostile_long(&state);
    at = hostile_draw(&state, 20);
    c.slots[at] = hostile_int(&state);
    c.write.unchecked = hostile_draw(&state, 2);
    tensor *victim = writes[hostile_draw(&state, 5)];
    tensor kept = *victim;
    if (hostile_draw(&state, 3) > 0) {
      hostile_tensor(victim, &state);
    }
    harness_reset();
    hostile_status(attn_cache_write(c.context, &c.write, &why), seed);
    *victim = kept;
    victim->t.shape = victim->shape;
    victim->t.strides = victim->strides;
    caching_gather(&c, hostile_draw(&state, 5), 13, 0, 20);
    tensor *gathers[] = {&c.t_k, &c.t_v, &c.t_table, &c.t_lens, &c.t_starts, &c.t_k_pool, &c.t_v_pool};
    at = hostile_draw(&state, 8);
    c.table[at] = hostile_int(&state);
    c.lens[0] = hostile_draw(&state, 2) == 0 ? hostile_int(&state) : 13;
    c.gather.unchecked = hostile_draw(&state, 2);
    if (hostile_draw(&state, 2) == 0) {
      hostile_tensor(gathers[hostile_draw(&state, 7)], &state);
    }
    harness_reset();
    hostile_status(attn_cache_gather(c.context, &c.gather, &why), seed);
    caching_close(&c);
  }
}

static void hostile_merge_tensors(const char *backend) {
  for (uint32_t seed = 1; seed <= 400; seed++) {
    uint32_t state = seed * 69069u;
    merging m;
    merging_init(&m, backend, 3, 4, 2, 8, ATTN_DTYPE_FLOAT16);
    int32_t part = hostile_draw(&state, 3);
    int32_t at = hostile_draw(&state, 8);
    m.lse[part][at] = hostile_float(&state);
    part = hostile_draw(&state, 3);
    at = hostile_draw(&state, 64);
    m.out[part][at] = hostile_float(&state);
    merging_store(&m);
    tensor *list[] = {&m.t_out[0], &m.t_out[2], &m.t_lse[1], &m.t_lse[2], &m.t_result_out, &m.t_result_lse};
    if (hostile_draw(&state, 4) > 0) {
      hostile_tensor(list[hostile_draw(&state, 6)], &state);
    }
    harness_reset();
    hostile_status(attn_merge(m.context, &m.args, &why), seed);
    merging_free(&m);
  }
}

static void hostile_lists_of_every_format(void **state) {
  (void)state;
  for_each_cache(hostile_lists);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(hostile_problems),      cmocka_unit_test(hostile_lists_of_every_format),
      BACKEND_TEST(hostile_run_tensors),   BACKEND_TEST(hostile_cache_tensors),
      BACKEND_TEST(hostile_merge_tensors),
  };
  return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
