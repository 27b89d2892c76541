/* SPDX-License-Identifier: Apache-2.0 */
/* As test_hostile.c, over quantised caches: writes with rotary embedding, gathers, requantisations and runs, whose
 * tensors, scales and lists are spoilt. A refused call leaves every byte of its outputs alone. */
#include <string.h>

#include "hostile.h"
#include "quantising.h"
#include "scene.h"

enum { FORMATS = ATTN_FORMAT_INT4_PER_TOKEN_HEAD, SIZE = 12, TABLE = 9, Q_HEADS = 3 };

static void set_sides(quantising *q, uint32_t *state) {
  for (int i = 0; i < 2; i++) {
    quantising_side *side = &q->side[i];
    memset(side, 0, sizeof *side);
    side->format = (attn_format)(1 + hostile_draw(state, FORMATS));
    side->size = SIZE;
    side->separate = hostile_draw(state, 2) && format_has_row_scale(side->format);
    side->num_statics = format_is_static(side->format) ? hostile_draw(state, 3) : 0;
    side->statics[0] = side->statics[1] = 0.5f;
  }
  q->layout = (attn_layout)hostile_draw(state, 2);
}

/* Sometimes one entry of a list, sometimes a scale, sometimes a tensor. */
static void spoil(quantising *q, tensor **list, int32_t count, int64_t *positions, uint32_t *state) {
  int32_t at = hostile_draw(state, QUANTISING_TOKENS);
  if (hostile_draw(state, 2) == 0) {
    q->slots[at] = hostile_draw(state, 2) == 0 ? hostile_long(state) : hostile_int(state);
  }
  at = hostile_draw(state, QUANTISING_TOKENS);
  if (hostile_draw(state, 2) == 0) {
    positions[at] = hostile_draw(state, 2) == 0 ? hostile_long(state) : hostile_int(state);
  }
  if (hostile_draw(state, 2) == 0) {
    q->side[hostile_draw(state, 2)].statics[hostile_draw(state, 2)] = hostile_float(state);
  }
  if (hostile_draw(state, 3) > 0) {
    hostile_tensor(list[hostile_draw(state, count)], state);
  }
}

static void writes(const char *backend) {
  static float table[TABLE * SIZE], query[QUANTISING_TOKENS * Q_HEADS * SIZE];
  for (uint32_t seed = 1; seed <= 600; seed++) {
    uint32_t state = seed * 69069u;
    quantising q = {.context = open_context(1), .backend = backend};
    int64_t positions[QUANTISING_TOKENS] = {0, 1, 2, 3, 4, 5};
    tensor t_positions, t_cos, t_sin, t_q;
    set_sides(&q, &state);
    quantising_open(&q, (quantising_lay)hostile_draw(&state, LAY_COUNT));
    tensor_1(&t_positions, positions, ATTN_DTYPE_INT64, QUANTISING_TOKENS);
    tensor_2(&t_cos, table, ATTN_DTYPE_FLOAT32, TABLE, SIZE / 2);
    tensor_2(&t_sin, table, ATTN_DTYPE_FLOAT32, TABLE, SIZE / 2);
    tensor_3(&t_q, query, ATTN_DTYPE_FLOAT32, QUANTISING_TOKENS, Q_HEADS, SIZE);
    attn_cache_write_args args = quantising_write(&q);
    args.rotary = (attn_rotary)hostile_draw(&state, 3);
    if (args.rotary != ATTN_ROTARY_NONE) {
      args.positions = &t_positions.t;
      args.rotary_cos = &t_cos.t;
      args.rotary_sin = &t_sin.t;
      args.q = args.q_out = hostile_draw(&state, 2) ? &t_q.t : NULL;
    }
    args.unchecked = hostile_draw(&state, 2);
    tensor *list[] = {&q.side[0].pool,
                      &q.side[1].pool,
                      &q.side[0].scale,
                      &q.side[1].scale,
                      &q.side[0].rows,
                      &q.side[1].rows,
                      &q.t_slots,
                      &t_positions,
                      &t_cos,
                      &t_sin,
                      &t_q};
    spoil(&q, list, 11, positions, &state);
    harness_reset();
    attn_status status = attn_cache_write(q.context, &args, &why);
    hostile_status(status, seed);
    if (status != ATTN_OK) {
      quantising_check(&q, "a refused write");
    }
    attn_context_destroy(q.context);
    quantising_close(&q);
  }
}

static void requantisations(const char *backend) {
  for (uint32_t seed = 1; seed <= 600; seed++) {
    uint32_t state = seed * 69069u;
    quantising from = {.context = open_context(1), .backend = backend}, to = from;
    int64_t map[2][2] = {{0, 1}, {3, 2}};
    tensor t_map;
    set_sides(&from, &state);
    set_sides(&to, &state);
    quantising_open(&from, (quantising_lay)hostile_draw(&state, LAY_COUNT));
    quantising_open(&to, (quantising_lay)hostile_draw(&state, LAY_COUNT));
    tensor_2(&t_map, map, ATTN_DTYPE_INT64, 2, 2);
    attn_cache_requantise_args args = ATTN_CACHE_REQUANTISE_INIT;
    args.backend = backend;
    args.source_format = from.side[0].format;
    args.target_format = to.side[0].format;
    args.source_layout = from.layout;
    args.target_layout = to.layout;
    args.head_size = hostile_draw(&state, 4) == 0 ? hostile_int(&state) : SIZE;
    args.source = &from.side[0].pool.t;
    args.source_scale = from.side[0].scale_given;
    args.target = &to.side[0].pool.t;
    args.target_scale = to.side[0].scale_given;
    args.block_map = &t_map.t;
    if (hostile_draw(&state, 3) == 0) {
      map[hostile_draw(&state, 2)][hostile_draw(&state, 2)] = hostile_long(&state);
    }
    if (hostile_draw(&state, 2) == 0) {
      from.side[0].statics[0] = hostile_float(&state);
    }
    tensor *list[] = {&from.side[0].pool, &to.side[0].pool, &from.side[0].scale, &to.side[0].scale, &t_map};
    if (hostile_draw(&state, 2) == 0) {
      hostile_tensor(list[hostile_draw(&state, 5)], &state);
    }
    harness_reset();
    attn_status status = attn_cache_requantise(from.context, &args, &why);
    hostile_status(status, seed);
    quantising_check(&from, "the source");
    if (status != ATTN_OK) {
      quantising_check(&to, "a refused requantisation");
    }
    attn_context_destroy(from.context);
    quantising_close(&from);
    quantising_close(&to);
  }
}

static void runs(const char *backend, attn_format format) {
  static const int32_t q_len[] = {1, 5}, kv_len[] = {30, 9};
  for (uint32_t seed = 1; seed <= 120; seed++) {
    uint32_t state = seed * 69069u + (uint32_t)format;
    float statics[2] = {0.5f, 2.0f};
    scene s;
    scene_init(&s, 4, 2, 16, 16);
    scene_format(&s, format);
    s.problem.separate_scales = format_has_row_scale(format) ? hostile_draw(&state, 4) : 0;
    s.k_statics = s.v_statics = statics;
    s.num_statics = 2;
    s.problem.layout = (attn_layout)hostile_draw(&state, 2);
    scene_seqs(&s, 2, q_len, kv_len);
    scene_store(&s);
    scene_open(&s, backend);
    s.args.unchecked = hostile_draw(&state, 2);
    tensor *list[] = {&s.t_k, &s.t_v, &s.t_k_scale, &s.t_v_scale, &s.t_table, &s.t_out};
    if (hostile_draw(&state, 3) > 0) {
      tensor *victim = list[hostile_draw(&state, 6)];
      hostile_tensor(victim, &state);
    } else {
      statics[hostile_draw(&state, 2)] = hostile_float(&state);
    }
    harness_reset();
    hostile_status(scene_step(&s, &why), seed);
    scene_close(&s);
    scene_free(&s);
  }
}

static void runs_over_every_format(void **state) {
  (void)state;
  for_each_cache(runs);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(writes),
      BACKEND_TEST(requantisations),
      cmocka_unit_test(runs_over_every_format),
  };
  return cmocka_run_group_tests_name("hostile_formats", tests, NULL, NULL);
}
