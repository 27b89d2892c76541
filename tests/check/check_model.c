/* SPDX-License-Identifier: Apache-2.0 */
/* check_model.c: the numbers of an attention case: scale, masks, biases, sinks, and the values of check_values.c. */
#include <math.h>
#include <string.h>

#include "check_attention.h"

static int32_t draw_bound(check_case *c) {
  static const int32_t bounds[] = {0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 127};
  if (check_chance(&c->rng, 60)) {
    return bounds[check_between(&c->rng, 0, (int64_t)(sizeof bounds / sizeof *bounds) - 1)];
  }
  return (int32_t)check_between(&c->rng, 0, c->max_kv + 2);
}

static void draw_window(check_case *c, check_model *m) {
  int32_t kind = check_number(&c->choice, CHECK_WINDOW);
  m->left = kind == CHECK_WINDOW_LEFT || kind == CHECK_WINDOW_BOTH ? draw_bound(c) : -1;
  m->right = kind == CHECK_WINDOW_RIGHT || kind == CHECK_WINDOW_BOTH ? draw_bound(c) : -1;
  if (kind == CHECK_WINDOW_NARROW) {
    m->left = (int32_t)check_between(&c->rng, 0, 1);
    m->right = (int32_t)check_between(&c->rng, 0, 1);
  }
}

static void draw_chunk(check_case *c, check_model *m) {
  static const int32_t sizes[] = {1, 2, 3, 5, 8, 16, 17, 33, 64, 100};
  int32_t kind = check_number(&c->choice, CHECK_CHUNK);
  if (kind != CHECK_CHUNK_OFF) {
    m->chunk = sizes[check_between(&c->rng, 0, (int64_t)(sizeof sizes / sizeof *sizes) - 1)];
    m->lookback = kind == CHECK_CHUNK_LOOKBACK ? (int32_t)check_between(&c->rng, 1, 3) : 0;
  }
}

static void draw_causal(check_case *c, check_model *m) {
  int32_t kind = check_number(&c->choice, CHECK_CAUSAL);
  for (int32_t s = 0; s < c->num_seqs; s++) {
    m->causal[s] = kind == CHECK_CAUSAL_PER_SEQ ? check_chance(&c->rng, 50)
                                                : kind == CHECK_CAUSAL_ON || kind == CHECK_ABSENT; /* mha and layer */
  }
}

/* Ranges near the rows: around their positions, over everything, empty, or reaching beyond kv_len. */
static void draw_ranges(check_case *c, check_model *m) {
  int32_t kind = check_number(&c->choice, CHECK_PREFIX);
  if (kind == CHECK_PREFIX_NONE) {
    return;
  }
  m->clamp = kind == CHECK_PREFIX_CLAMPED;
  m->num_ranges = (int32_t)check_between(&c->rng, 1, CHECK_MAX_RANGES - 1);
  for (int32_t s = 0; s < c->num_seqs; s++) {
    for (int32_t i = 0; i < m->num_ranges; i++) {
      int32_t *range = m->ranges[s][i];
      int64_t q = c->seqs[s].kv_len - check_between(&c->rng, 0, c->seqs[s].q_len);
      int64_t shape = check_between(&c->rng, 0, 9);
      int64_t begin = shape < 2 ? 0 : check_between(&c->rng, q > 40 ? q - 40 : 0, q > 0 ? q : 0);
      int64_t end = shape < 7 ? check_between(&c->rng, begin, begin + 40) : q + check_between(&c->rng, 0, 9);
      end = shape == 9 ? begin : end < begin ? begin : end;
      range[0] = (int32_t)begin;
      range[1] = (int32_t)end;
    }
  }
}

static float *draw_slopes(check_arena *arena, check_case *c) {
  float *slopes = check_alloc(arena, (size_t)c->q_heads, sizeof *slopes);
  for (int32_t h = 0; h < c->q_heads; h++) {
    slopes[h] = ldexpf(1.0f + (float)check_uniform(&c->rng), (int)check_between(&c->rng, -7, -1));
  }
  return slopes;
}

static float *draw_sinks(check_arena *arena, check_case *c) {
  static const float levels[] = {0.0f, 2.0f, 6.0f, 40.0f, -40.0f};
  float *sinks = check_alloc(arena, (size_t)c->q_heads, sizeof *sinks);
  for (int32_t h = 0; h < c->q_heads; h++) {
    sinks[h] = levels[check_between(&c->rng, 0, 4)] + check_normal(&c->rng);
    if (check_is(c, CHECK_SINKS, CHECK_SINKS_SOME) && (h == 0 || check_chance(&c->rng, 40))) {
      sinks[h] = -INFINITY;
    }
  }
  return sinks;
}

static float *draw_bias(check_arena *arena, check_case *c, check_model *m) {
  m->bias_heads = check_is(c, CHECK_BIAS, CHECK_BIAS_SHARED) || check_chance(&c->rng, 20) ? 1 : c->q_heads;
  int64_t rows = c->tokens * m->bias_heads;
  float *bias = check_alloc(arena, (size_t)(rows * c->max_kv), sizeof *bias);
  int hiding = check_is(c, CHECK_BIAS, CHECK_BIAS_HIDING);
  for (int64_t r = 0; r < rows; r++) {
    int percent = !hiding ? 0 : check_chance(&c->rng, 15) ? 100 : 30;
    for (int32_t k = 0; k < c->max_kv; k++) {
      bias[r * c->max_kv + k] = 2.0f * check_normal(&c->rng);
      if (percent > 0 && check_chance(&c->rng, percent)) {
        bias[r * c->max_kv + k] = -INFINITY;
      }
    }
  }
  return bias;
}

/* A static scale under which the typical value falls well inside, at, or far beyond an end of fp8's range. */
float check_output_scale_draw(check_case *c, const float *v) {
  int64_t count = c->keys * c->kv_heads * c->v_size;
  double sum = 0.0;
  for (int64_t i = 0; i < count; i++) {
    sum += isfinite(v[i]) ? fabs((double)v[i]) : 0.0;
  }
  double typical = count > 0 && sum > 0.0 ? sum / (double)count : 1.0;
  int64_t kind = check_between(&c->rng, 0, 19);
  int64_t power = kind < 12   ? check_between(&c->rng, -9, -2)  /* inside */
                  : kind < 15 ? check_between(&c->rng, -14, -9) /* most saturate */
                  : kind < 18 ? check_between(&c->rng, 1, 10)   /* subnormal codes, or 0 */
                              : check_between(&c->rng, -300, 300);
  double scale = ldexp(typical * (check_chance(&c->rng, 30) ? 1.0 : 1.0 + check_uniform(&c->rng)), (int)power);
  scale = check_chance(&c->rng, 15) ? ldexp(1.0, (int)power) : scale;
  return (float)fmin(fmax(scale, 0x1p-149), 0x1.fffffep127);
}

void check_masks_draw(check_arena *arena, check_case *c, check_model *m) {
  static const float caps[] = {0.5f, 5.0f, 20.0f, 50.0f};
  memset(m, 0, sizeof *m);
  m->c = c;
  m->scale = 1.0f / sqrtf((float)c->size);
  if (check_chance(&c->rng, 30)) {
    m->scale *= 0.25f + 1.75f * (float)check_uniform(&c->rng);
  }
  m->softcap = check_is(c, CHECK_SOFTCAP, 1) ? caps[check_between(&c->rng, 0, 3)] : 0.0f;
  draw_causal(c, m);
  draw_window(c, m);
  draw_chunk(c, m);
  draw_ranges(c, m);
  m->alibi = check_number(&c->choice, CHECK_ALIBI);
  m->slopes = m->alibi != 0 ? draw_slopes(arena, c) : NULL;
  m->sinks = check_is(c, CHECK_SINKS, CHECK_SINKS_NONE) ? NULL : draw_sinks(arena, c);
  m->bias = check_is(c, CHECK_BIAS, CHECK_BIAS_NONE) ? NULL : draw_bias(arena, c, m);
}

void check_model_draw(check_arena *arena, check_case *c, check_model *m) {
  check_masks_draw(arena, c, m);
  float *q = check_alloc(arena, (size_t)(c->tokens * c->q_heads * c->size), sizeof *q);
  float *k = check_alloc(arena, (size_t)(c->keys * c->kv_heads * c->size), sizeof *k);
  float *v = check_alloc(arena, (size_t)(c->keys * c->kv_heads * c->v_size), sizeof *v);
  check_values_draw(arena, c, m, q, k, v);
  m->q = q;
  m->k = k;
  m->v = v;
  m->output_scale = check_is(c, CHECK_OUT_TYPE, CHECK_OUT_STATIC) ? check_output_scale_draw(c, v) : 0.0f;
}
