/* SPDX-License-Identifier: Apache-2.0 */
/* Every feature of the contract with every other: small problems drawn from a seed, each row against naive.h. The draw
 * is plain: what the conformance engine (tests/check) hits by weight, this hits by number. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "scene.h"
#include "test_counts.h"

static int32_t draw(uint32_t *state, int32_t count) {
  return (int32_t)(random_bits(state) % (uint32_t)count);
}

static int32_t pick(uint32_t *state, const int32_t *values, int32_t count) {
  return values[draw(state, count)];
}

static void draw_masks(attn_problem *p, uint32_t *state) {
  static const int32_t bounds[] = {-1, -1, 0, 1, 5, 17, 40, INT32_MAX};
  static const int32_t chunks[] = {0, 0, 0, 1, 7, 16, INT32_MAX};
  static const int32_t lookbacks[] = {0, 1, 2, INT32_MAX};
  p->causal = draw(state, 3) > 0;
  p->window_left = pick(state, bounds, 8);
  p->window_right = pick(state, bounds, 8);
  p->chunk_size = pick(state, chunks, 7);
  p->chunk_lookback = p->chunk_size > 0 ? pick(state, lookbacks, 4) : 0;
  p->softcap = draw(state, 3) == 0 ? 4.0f : 0.0f;
}

static void draw_shape(scene *s, attn_format format, uint32_t *state) {
  static const int32_t sizes[] = {1, 3, 8, 16, 33, 64, 80};
  static const int32_t groups[] = {1, 2, 3, 4, 7, 8};
  static const int32_t blocks[] = {1, 3, 16, 32, 100};
  int32_t kv_heads = 1 + draw(state, 3);
  int32_t group = pick(state, groups, 6);
  int32_t d = pick(state, sizes, 7);
  int32_t dv = draw(state, 3) == 0 ? pick(state, sizes, 7) : d;
  scene_init(s, kv_heads * group, kv_heads, d, dv);
  s->problem.kv_source = draw(state, 4) == 0 ? ATTN_KV_DIRECT : ATTN_KV_CACHE;
  s->problem.block_size = s->problem.kv_source == ATTN_KV_CACHE ? pick(state, blocks, 5) : 0;
  s->problem.layout = (attn_layout)draw(state, 2);
  s->problem.batch_invariant = draw(state, 3) == 0;
  scene_format(s, format);
  if (draw(state, 3) == 0) {
    s->problem.q_dtype = (attn_dtype)(ATTN_DTYPE_FLOAT32 + draw(state, 3));
  }
  s->problem.out_dtype = draw(state, 2) == 0 ? ATTN_DTYPE_FLOAT32 : (attn_dtype)(ATTN_DTYPE_FLOAT32 + draw(state, 3));
  s->options.num_splits = s->problem.batch_invariant ? 0 : draw(state, 4);
  s->num_threads = 1 + draw(state, 3);
  s->spare_rows = draw(state, 3);
  s->q_stride = draw(state, 2) == 0 ? 0 : (d > dv ? d : dv) + 3;
  s->lse_transposed = draw(state, 2);
  s->placement = random_bits(state);
  s->unused_id = draw(state, 2) == 0 ? -1 : INT32_MAX;
}

static void draw_lengths(scene *s, uint32_t *state) {
  static const int32_t q_lens[] = {0, 1, 1, 1, 2, 5, 16, 31};
  static const int32_t extra[] = {0, 0, 1, 15, 33, 64, 129};
  int32_t q_len[3];
  int32_t kv_len[3];
  int32_t n = 1 + draw(state, 3);
  for (int32_t i = 0; i < n; i++) {
    q_len[i] = pick(state, q_lens, 8);
    kv_len[i] = draw(state, 12) == 0 ? draw(state, 4) : q_len[i] + pick(state, extra, 7);
  }
  scene_seqs(s, n, q_len, kv_len);
}

static void draw_extras(scene *s, uint32_t *state) {
  int32_t ranges[3 * 2 * 2];
  int32_t causal[3];
  int32_t alibi = draw(state, 3);
  if (alibi > 0) {
    scene_alibi(s, (attn_alibi)alibi);
  }
  if (draw(state, 3) == 0) {
    scene_sinks(s, (float)draw(state, 5) - 2.0f);
    s->sinks[0] = draw(state, 2) == 0 ? -INFINITY : s->sinks[0];
  }
  if (draw(state, 3) == 0) {
    scene_bias(s, draw(state, 2) == 0 ? 1 : s->problem.num_q_heads);
    for (int64_t i = 0; i < s->tokens * s->bias_heads * s->bias_keys; i++) {
      s->bias[i] = draw(state, 8) == 0 ? -INFINITY : s->bias[i];
    }
  }
  for (int i = 0; i < 6; i++) {
    ranges[2 * i] = draw(state, 60) - 10;
    ranges[2 * i + 1] = draw(state, 9) == 0 ? INT32_MAX : ranges[2 * i] + draw(state, 40);
  }
  if (draw(state, 3) == 0) {
    scene_ranges(s, 2, ranges);
    s->problem.prefix_clamp = draw(state, 2);
  }
  for (int i = 0; i < 3; i++) {
    causal[i] = draw(state, 2);
  }
  if (draw(state, 3) == 0) {
    scene_causal(s, causal);
  }
}

static void all_features(const char *backend, attn_format format) {
  for (uint32_t seed = 1; seed <= (uint32_t)test_count(150, 50); seed++) {
    uint32_t state = seed * 2654435761u + (uint32_t)format;
    char label[96];
    scene s;
    snprintf(label, sizeof label, "%s %s seed %u", backend, attn_format_name(format), seed);
    harness_label(label);
    draw_shape(&s, format, &state);
    draw_masks(&s.problem, &state);
    draw_lengths(&s, &state);
    draw_extras(&s, &state);
    scene_store(&s);
    scene_run(&s, backend);
    scene_check(&s);
    scene_free(&s);
  }
}

static void every_feature_with_every_other(void **state) {
  (void)state;
  for_each_cache(all_features);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_feature_with_every_other),
  };
  return cmocka_run_group_tests_name("features", tests, NULL, NULL);
}
