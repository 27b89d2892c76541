/* SPDX-License-Identifier: Apache-2.0 */
/* check_values.c: queries, keys and values of an attention case, by value class. Everything is rounded to its stored
 * type here, so that model and tensors hold the same numbers. float16 keeps to +-60000: inputs are finite unless NaN is
 * meant. */
#include <math.h>

#include "check_attention.h"
#include "check_float.h"

static float stored(attn_dtype type, float x) {
  if (type == ATTN_DTYPE_FLOAT16 && fabsf(x) > 60000.0f) {
    x = copysignf(60000.0f, x);
  }
  return check_rounded(type, x);
}

static void fill_normal(check_rng *rng, float *x, int64_t count, float deviation) {
  for (int64_t i = 0; i < count; i++) {
    x[i] = deviation * check_normal(rng);
  }
}

void check_repeat_rows(const check_case *c, float *x, int64_t width) {
  for (int32_t s = 0; s < c->num_seqs; s++) {
    const check_seq *seq = &c->seqs[s];
    for (int64_t i = width; i < seq->kv_len * width; i++) {
      x[seq->k_start * width + i] = x[seq->k_start * width + i - width];
    }
  }
}

/* Keys along one direction per head, growing (or shrinking) with the position, and queries that follow it. */
static void fill_rising(check_case *c, float scale, float *q, float *k) {
  float sign = check_chance(&c->rng, 70) ? 1.0f : -1.0f;
  float unit = 1.0f / sqrtf((float)c->size * scale);
  for (int64_t i = 0; i < c->tokens * c->q_heads * c->size; i++) {
    q[i] = unit * (1.0f + 0.1f * check_normal(&c->rng));
  }
  for (int32_t s = 0; s < c->num_seqs; s++) {
    const check_seq *seq = &c->seqs[s];
    for (int32_t p = 0; p < seq->kv_len; p++) {
      float level = sign * 30.0f * (float)p / (float)seq->kv_len;
      float *row = k + (seq->k_start + p) * c->kv_heads * c->size;
      for (int64_t i = 0; i < c->kv_heads * c->size; i++) {
        row[i] = unit * (level + 0.3f * check_normal(&c->rng));
      }
    }
  }
}

/* One key of each sequence gets a score of about 60 with the last row's first head of each group. */
static void add_dominant(check_case *c, float scale, const float *q, float *k) {
  for (int32_t s = 0; s < c->num_seqs; s++) {
    const check_seq *seq = &c->seqs[s];
    if (seq->kv_len == 0 || seq->q_len == 0) {
      continue;
    }
    int64_t p = check_between(&c->rng, 0, seq->kv_len - 1);
    for (int32_t g = 0; g < c->kv_heads; g++) {
      const float *query = q + ((seq->q_start + seq->q_len - 1) * c->q_heads + g * c->group) * c->size;
      float *key = k + ((seq->k_start + p) * c->kv_heads + g) * c->size;
      float squares = 1e-3f;
      for (int32_t i = 0; i < c->size; i++) {
        squares += query[i] * query[i];
      }
      for (int32_t i = 0; i < c->size; i++) {
        key[i] = query[i] * (60.0f / (squares * scale));
      }
    }
  }
}

void check_thin_out(check_rng *rng, float *x, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    int64_t kind = check_between(rng, 0, 9);
    x[i] = kind < 6 ? 0.0f : kind < 7 ? -0.0f : x[i];
  }
}

void check_scale_rows(check_rng *rng, float *x, int64_t rows, int64_t size) {
  for (int64_t r = 0; r < rows; r++) {
    float factor = ldexpf(1.0f, (int)check_between(rng, -9, 7));
    for (int64_t i = 0; i < size; i++) {
      x[r * size + i] *= factor;
    }
  }
}

/* NaN in one element of one query row, or of one key. */
static void add_nan(check_case *c, float *q, float *k) {
  int64_t q_rows = c->tokens * c->q_heads;
  int64_t k_rows = c->keys * c->kv_heads;
  if (q_rows > 0 && (k_rows == 0 || check_chance(&c->rng, 50))) {
    q[check_between(&c->rng, 0, q_rows * c->size - 1)] = NAN;
  } else if (k_rows > 0) {
    k[check_between(&c->rng, 0, k_rows * c->size - 1)] = NAN;
  }
}

/* fp8 queries have one scale. */
static void store_queries(check_arena *arena, check_case *c, check_model *m, float *q) {
  attn_dtype type = (attn_dtype)check_number(&c->choice, CHECK_IN_TYPE);
  if (type == ATTN_DTYPE_FP8_E4M3) {
    check_rows_make(arena, &c->rng, &m->q_rows, ATTN_FORMAT_FP8_E4M3, CHECK_STATICS_ONE, c->tokens * c->q_heads, 1,
                    c->size, q);
    return;
  }
  for (int64_t i = 0; i < c->tokens * c->q_heads * c->size; i++) {
    q[i] = stored(type, q[i]);
  }
}

/* As the format stores them; now and then codes that no quantiser had to choose. */
static void store_keys(check_arena *arena, check_case *c, check_rows *rows, attn_format format, int32_t size,
                       float *values) {
  check_statics statics = check_is(c, CHECK_SCALES, CHECK_SCALES_APART) ? CHECK_STATICS_HEADS
                          : check_chance(&c->rng, 60)                   ? CHECK_STATICS_ONE
                                                                        : CHECK_STATICS_NONE;
  int64_t count = c->keys * c->kv_heads * size;
  for (int64_t i = 0; format <= ATTN_FORMAT_BFLOAT16 && i < count; i++) {
    values[i] = stored((attn_dtype)format, values[i]);
  }
  check_rows_make(arena, &c->rng, rows, format, statics, c->keys, c->kv_heads, size, values);
  if (rows->codes != NULL && statics != CHECK_STATICS_NONE && check_is(c, CHECK_VALUES, CHECK_NORMAL) &&
      check_chance(&c->rng, 40)) {
    check_rows_random(&c->rng, rows, values);
  }
}

void check_values_draw(check_arena *arena, check_case *c, check_model *m, float *q, float *k, float *v) {
  float scale = m->scale;
  int64_t nq = c->tokens * c->q_heads * c->size;
  int64_t nk = c->keys * c->kv_heads * c->size;
  int64_t nv = c->keys * c->kv_heads * c->v_size;
  check_rng *rng = &c->rng;
  int32_t kind = check_number(&c->choice, CHECK_VALUES);
  float wide = kind == CHECK_STD_100 ? 100.0f : 1.0f;
  fill_normal(rng, q, nq, wide);
  fill_normal(rng, k, nk, 1.0f);
  fill_normal(rng, v, nv, wide);
  if (kind == CHECK_EQUAL_SCORES || kind == CHECK_CONSTANT_ROWS) {
    check_repeat_rows(c, k, (int64_t)c->kv_heads * c->size);
  }
  if (kind == CHECK_CONSTANT_ROWS) {
    check_repeat_rows(c, v, (int64_t)c->kv_heads * c->v_size);
  } else if (kind == CHECK_DOMINANT_KEY) {
    add_dominant(c, scale, q, k);
  } else if (kind == CHECK_LARGE_LOGITS) {
    for (int64_t i = 0; i < nq; i++) {
      q[i] = 30.0f + 3.0f * q[i];
    }
    for (int64_t i = 0; i < nk; i++) {
      k[i] = 30.0f + 3.0f * k[i];
    }
  } else if (kind == CHECK_RISING) {
    fill_rising(c, scale, q, k);
  } else if (kind == CHECK_SUBNORMAL) {
    float k_unit = c->k_type == ATTN_DTYPE_FLOAT16 ? 0x1p-17f : 0x1p-128f;
    float v_unit = c->v_type == ATTN_DTYPE_FLOAT16 ? 0x1p-17f : 0x1p-128f;
    for (int64_t i = 0; i < nk; i++) {
      k[i] *= k_unit;
    }
    for (int64_t i = 0; i < nv; i++) {
      v[i] *= v_unit;
    }
  } else if (kind == CHECK_NEAR_60000) {
    float sign = check_chance(rng, 50) ? 1.0f : -1.0f;
    float base =
        c->v_format <= ATTN_FORMAT_BFLOAT16 ? 60000.0f : 40000.0f; /* the codes' error stays in float16's range */
    for (int64_t i = 0; i < nv; i++) {
      v[i] = sign * (base - fabsf(v[i]) * 100.0f);
    }
  } else if (kind == CHECK_SPARSE) {
    check_thin_out(rng, q, nq);
    check_thin_out(rng, k, nk);
    check_thin_out(rng, v, nv);
  } else if (kind == CHECK_MIXED_SCALES) {
    check_scale_rows(rng, q, c->tokens * c->q_heads, c->size);
    check_scale_rows(rng, k, c->keys * c->kv_heads, c->size);
    check_scale_rows(rng, v, c->keys * c->kv_heads, c->v_size);
  } else if (kind == CHECK_NAN_ROW) {
    add_nan(c, q, k);
  }
  store_queries(arena, c, m, q);
  store_keys(arena, c, &m->k_rows, c->k_format, c->size, k);
  store_keys(arena, c, &m->v_rows, c->v_format, c->v_size, v);
}
