/* SPDX-License-Identifier: Apache-2.0 */
/* check_merge.c: attn_merge. Near and far lse, neutral parts whose out is poison, NaN that must stay in its row or
 * element, both bases, sinks, outputs that are exactly an input. */
#include <math.h>
#include <string.h>

#include "check_case.h"
#include "check_compare.h"
#include "check_float.h"

#define MAX_PARTS 17

typedef struct merging {
  int32_t parts;
  check_tensor outs[MAX_PARTS];
  check_tensor lses[MAX_PARTS];
  const DLTensor *out_list[MAX_PARTS];
  const DLTensor *lse_list[MAX_PARTS];
  check_tensor sinks, out, lse;
  check_tensor *out_at; /* the tensor that the call writes: out, or part 0 */
  check_tensor *lse_at; /* or NULL */
  float *values;        /* [tokens, heads, parts, size] */
  float *lse_in;        /* [tokens, heads, parts] in the call's base */
  float *sink;          /* [heads] */
  float *first_out;     /* results of the first run, for the comparison of bits */
  float *first_lse;
  attn_merge_args args;
} merging;

static float draw_lse(check_case *c, int32_t kind, float level) {
  float near = level + 2.0f * check_normal(&c->rng);
  switch (kind) {
  case CHECK_LSES_FAR:
    return level + 40.0f * check_normal(&c->rng);
  case CHECK_LSES_INFINITE:
    return check_chance(&c->rng, 40) ? (check_chance(&c->rng, 60) ? -INFINITY : INFINITY) : near;
  case CHECK_LSES_NAN:
    return check_chance(&c->rng, 8) ? NAN : check_chance(&c->rng, 15) ? -INFINITY : near;
  default:
    return near;
  }
}

/* Numbers of every row. Parts that are neutral hold poison; in the class `nan` single elements are NaN. */
static void draw_rows(check_case *c, merging *m) {
  int32_t kind = check_number(&c->choice, CHECK_LSES);
  for (int64_t row = 0; row < c->tokens * c->kv_heads; row++) {
    int all_neutral = kind == CHECK_LSES_INFINITE && check_chance(&c->rng, 20);
    float level = kind == CHECK_LSES_LARGE ? (check_chance(&c->rng, 50) ? 1000.0f : -1000.0f) : check_normal(&c->rng);
    for (int32_t r = 0; r < m->parts; r++) {
      float lse = all_neutral ? -INFINITY : draw_lse(c, kind, level);
      float *value = m->values + (row * m->parts + r) * c->size;
      m->lse_in[row * m->parts + r] = lse;
      for (int32_t e = 0; e < c->size; e++) {
        value[e] = isinf(lse) ? NAN : check_rounded(m->outs[r].dtype, check_normal(&c->rng));
        if (kind == CHECK_LSES_NAN && check_chance(&c->rng, 1)) {
          value[e] = NAN;
        }
      }
      if (kind == CHECK_LSES_NAN && isfinite(lse) && check_chance(&c->rng, 10)) { /* its weight rounds to 0 */
        m->lse_in[row * m->parts + r] = lse - 500.0f;
        value[check_between(&c->rng, 0, c->size - 1)] = NAN;
      }
    }
  }
}

static void make(check_arena *arena, check_case *c, check_tensor *t, attn_dtype dtype, int ndim) {
  int64_t shape[3] = {c->tokens, c->kv_heads, c->size};
  int64_t strides[4];
  int stride_class = check_number(&c->choice, CHECK_STRIDE);
  check_lie lie = {strides, stride_class == CHECK_BYTE_OFFSET ? 2 : 0, check_is(c, CHECK_GUARD, 1), 0};
  check_strides(&c->rng, stride_class, ndim, shape, strides);
  check_tensor_make(arena, t, dtype, ndim, shape, &lie, NULL);
}

/* Write the numbers into the parts (again: an aliased output destroyed them), gaps holding canaries. */
static void fill_parts(const check_case *c, merging *m) {
  for (int32_t r = 0; r < m->parts; r++) {
    check_fill_canary(&m->outs[r], 5);
    check_fill_canary(&m->lses[r], 5);
    for (int64_t row = 0; row < c->tokens * c->kv_heads; row++) {
      int64_t token = row / c->kv_heads;
      int64_t head = row % c->kv_heads;
      check_store(check_at(&m->lses[r], token, head, 0, 0), ATTN_DTYPE_FLOAT32, m->lse_in[row * m->parts + r]);
      for (int32_t e = 0; e < c->size; e++) {
        check_store(check_at(&m->outs[r], token, head, e, 0), m->outs[r].dtype,
                    m->values[(row * m->parts + r) * c->size + e]);
      }
    }
  }
  check_fill_canary(&m->out, 5);
  check_fill_canary(&m->lse, 5);
}

static void make_sinks(check_arena *arena, check_case *c, merging *m) {
  int64_t heads = c->kv_heads;
  check_lie lie = {NULL, 0, check_is(c, CHECK_GUARD, 1), 0};
  m->sink = check_alloc(arena, (size_t)heads, sizeof *m->sink);
  check_tensor_make(arena, &m->sinks, ATTN_DTYPE_FLOAT32, 1, &heads, &lie, NULL);
  for (int64_t h = 0; h < heads; h++) {
    int none = check_is(c, CHECK_SINKS, CHECK_SINKS_NONE) || (check_is(c, CHECK_SINKS, CHECK_SINKS_SOME) && h % 2 == 0);
    m->sink[h] = none ? -INFINITY : 2.0f * check_normal(&c->rng);
    check_store(check_at(&m->sinks, h, 0, 0, 0), ATTN_DTYPE_FLOAT32, m->sink[h]);
  }
}

static void prepare(check_arena *arena, check_case *c, merging *m) {
  memset(m, 0, sizeof *m);
  m->parts = check_number(&c->choice, CHECK_PARTS);
  attn_dtype in_type = (attn_dtype)check_number(&c->choice, CHECK_IN_TYPE);
  attn_dtype out_type = (attn_dtype)check_number(&c->choice, CHECK_OUT_TYPE);
  int alias_out = !check_is(c, CHECK_ALIAS, CHECK_ALIAS_NONE);
  int alias_lse = check_is(c, CHECK_ALIAS, CHECK_ALIAS_BOTH);
  size_t rows = (size_t)(c->tokens * c->kv_heads);
  for (int32_t r = 0; r < m->parts; r++) {
    attn_dtype type = alias_out && r == 0 ? out_type : check_chance(&c->rng, 80) ? in_type : ATTN_DTYPE_FLOAT32;
    make(arena, c, &m->outs[r], type, 3);
    make(arena, c, &m->lses[r], ATTN_DTYPE_FLOAT32, 2);
    m->out_list[r] = &m->outs[r].dl;
    m->lse_list[r] = &m->lses[r].dl;
  }
  make(arena, c, &m->out, out_type, 3);
  make(arena, c, &m->lse, ATTN_DTYPE_FLOAT32, 2);
  make_sinks(arena, c, m);
  m->values = check_alloc(arena, rows * (size_t)m->parts * (size_t)c->size, sizeof(float));
  m->lse_in = check_alloc(arena, rows * (size_t)m->parts, sizeof(float));
  m->first_out = check_alloc(arena, rows * (size_t)c->size, sizeof(float));
  m->first_lse = check_alloc(arena, rows, sizeof(float));
  draw_rows(c, m);
  m->out_at = alias_out ? &m->outs[0] : &m->out;
  m->lse_at = check_is(c, CHECK_LSE, 0) ? NULL : alias_lse ? &m->lses[0] : &m->lse;
  m->args = (attn_merge_args)ATTN_MERGE_INIT;
  m->args.num_parts = m->parts;
  m->args.outs = m->out_list;
  m->args.lses = m->lse_list;
  m->args.lse_base = (attn_lse_base)check_number(&c->choice, CHECK_BASE) == 2 ? ATTN_LSE_BASE_2 : ATTN_LSE_BASE_E;
  m->args.sinks = check_is(c, CHECK_SINKS, CHECK_SINKS_NONE) ? NULL : &m->sinks.dl;
  m->args.out = &m->out_at->dl;
  m->args.lse = m->lse_at == NULL ? NULL : &m->lse_at->dl;
}

static int judge_row(check_env *env, const check_case *c, const merging *m, int64_t row, const float *got,
                     const float *got_lse) {
  double want[512];
  double lse[MAX_PARTS];
  check_truth truth;
  check_worst *worst = &env->worst[env->backend];
  for (int32_t r = 0; r < m->parts; r++) {
    double unit = m->args.lse_base == ATTN_LSE_BASE_2 ? log(2.0) : 1.0;
    lse[r] = (double)m->lse_in[row * m->parts + r] * unit;
  }
  check_merge_row(m->parts, lse, m->values + row * m->parts * c->size, c->size, (double)m->sink[row % c->kv_heads],
                  want, &truth);
  double fraction = check_out_fraction(m->out_at->dtype, c->size, got, want, &truth, m->parts);
  worst->merge_out = fraction > worst->merge_out && fraction < 1e30 ? fraction : worst->merge_out;
  if (!(fraction <= 1.0)) {
    return check_fail(env,
                      "merge out: token %lld, head %lld: %.3g of the bound (element 0: got %.9g, want %.9g; lse "
                      "%.6g)",
                      (long long)(row / c->kv_heads), (long long)(row % c->kv_heads), fraction, (double)got[0], want[0],
                      truth.lse);
  }
  if (got_lse == NULL) {
    return 1;
  }
  fraction = check_lse_fraction(*got_lse, &truth, 0);
  worst->merge_lse = fraction > worst->merge_lse && fraction < 1e30 ? fraction : worst->merge_lse;
  return fraction <= 1.0 || check_fail(env, "merge lse: token %lld, head %lld: %.3g of the bound (got %.9g, want %.9g)",
                                       (long long)(row / c->kv_heads), (long long)(row % c->kv_heads), fraction,
                                       (double)*got_lse, truth.lse);
}

/* Read the row's results; put into the memory what it held before, so that it has to be unchanged as a whole. */
static void take_row(const check_case *c, merging *m, int64_t row, float *got, float *got_lse) {
  int64_t token = row / c->kv_heads;
  int64_t head = row % c->kv_heads;
  for (int32_t e = 0; e < c->size; e++) {
    void *at = check_at(m->out_at, token, head, e, 0);
    got[e] = check_load(at, m->out_at->dtype);
    if (m->out_at == &m->out) {
      check_canary_restore(m->out_at, at, 5);
    } else {
      check_store(at, m->out_at->dtype, m->values[row * m->parts * c->size + e]);
    }
  }
  if (m->lse_at != NULL) {
    void *at = check_at(m->lse_at, token, head, 0, 0);
    *got_lse = check_load(at, ATTN_DTYPE_FLOAT32);
    if (m->lse_at == &m->lse) {
      check_canary_restore(m->lse_at, at, 5);
    } else {
      check_store(at, ATTN_DTYPE_FLOAT32, m->lse_in[row * m->parts]);
    }
  }
}

static int all_kept(check_env *env, const merging *m) {
  for (int32_t r = 0; r < m->parts; r++) {
    if (check_changed(&m->outs[r]) >= 0 || check_changed(&m->lses[r]) >= 0) {
      return check_fail(env, "memory of part %d, which the call does not own, was written", (int)r);
    }
  }
  if (check_changed(&m->out) >= 0 || check_changed(&m->lse) >= 0 || check_changed(&m->sinks) >= 0) {
    return check_fail(env, "memory between the elements of out or lse, or sinks, was written");
  }
  return 1;
}

static void snapshot_all(check_arena *arena, merging *m) {
  for (int32_t r = 0; r < m->parts; r++) {
    check_snapshot(arena, &m->outs[r]);
    check_snapshot(arena, &m->lses[r]);
  }
  check_snapshot(arena, &m->out);
  check_snapshot(arena, &m->lse);
  check_snapshot(arena, &m->sinks);
}

static int run(check_env *env, const check_case *c, merging *m, attn_context *context, int again) {
  attn_message message = {ATTN_OK, ""};
  m->args.backend = env->backends[env->backend];
  attn_status status = attn_merge(context, &m->args, &message);
  if (status != ATTN_OK) {
    return check_fail(env, "attn_merge refused a valid call: %s: %s", attn_status_name(status), message.text);
  }
  for (int64_t row = 0; row < c->tokens * c->kv_heads; row++) {
    float got[512];
    float got_lse = 0.0f;
    take_row(c, m, row, got, &got_lse);
    if (!judge_row(env, c, m, row, got, m->lse_at == NULL ? NULL : &got_lse)) {
      return 0;
    }
    float *first = m->first_out + row * c->size;
    size_t bytes = (size_t)c->size * sizeof *first;
    if (again && (memcmp(first, got, bytes) != 0 || memcmp(&m->first_lse[row], &got_lse, sizeof got_lse) != 0)) {
      return check_fail(env, "a second merge gave other bits in row %lld", (long long)row);
    }
    memcpy(first, got, bytes);
    m->first_lse[row] = got_lse;
  }
  return all_kept(env, m);
}

static int refuse_once(check_env *env, check_case *c, merging *m, attn_context *context) {
  attn_merge_args args = m->args;
  attn_message message = {ATTN_OK, ""};
  attn_status expected = ATTN_E_RANGE;
  const char *what = "num_parts 0";
  DLTensor changed = m->out_at->dl;
  int64_t shape[3] = {c->tokens, c->kv_heads, c->size};
  int64_t strides[3];
  float old = m->sink[0];
  args.backend = env->backends[env->backend];
  int64_t kind = check_between(&c->rng, 0, 8);
  kind = kind == 6 && (c->tokens < 2 || c->kv_heads < 2) ? 0 : kind;
  if (kind == 0) {
    args.num_parts = 0;
  } else if (kind == 1) {
    what = "lse_base 7";
    args.lse_base = (attn_lse_base)7;
  } else if (kind == 2) {
    float bad = check_chance(&c->rng, 50) ? NAN : INFINITY;
    what = "a sink that is NaN or +inf";
    args.sinks = &m->sinks.dl;
    memcpy(m->sinks.first, &bad, sizeof bad);
  } else if (kind == 3) {
    what = "out with a head too few";
    shape[1]--;
    changed.shape = shape;
    args.out = &changed;
    expected = ATTN_E_SHAPE;
  } else if (kind == 4) {
    what = "no out";
    args.out = NULL;
    expected = ATTN_E_NULL;
  } else if (kind == 5) {
    what = "out of int32";
    changed.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT32);
    args.out = &changed;
    expected = ATTN_E_DTYPE;
  } else if (kind == 6) {
    what = "out with a zero stride";
    memcpy(strides, m->out_at->strides, sizeof strides);
    strides[0] = 0;
    changed.strides = strides;
    args.out = &changed;
    expected = ATTN_E_STRIDE;
  } else if (kind == 8 && c->tokens > 0 && c->size > 1) {
    what = "out shifted against a part";
    changed = m->outs[0].dl;
    changed.byte_offset += (uint64_t)m->outs[0].strides[2] * m->outs[0].element;
    args.out = &changed;
    expected = ATTN_E_OVERLAP;
  } else {
    what = "out on a device";
    changed.device.device_type = kDLCUDA;
    args.out = &changed;
    expected = ATTN_E_TENSOR_DEVICE;
  }
  attn_status status = attn_merge(context, &args, &message);
  memcpy(m->sinks.first, &old, sizeof old);
  return check_refused(env, what, status, expected, &message) && all_kept(env, m);
}

static int refuse(check_env *env, check_case *c, merging *m, attn_context *context) {
  for (int i = 0; i < CHECK_REFUSALS; i++) {
    if (!refuse_once(env, c, m, context)) {
      return 0;
    }
  }
  return 1;
}

int check_run_merge(check_env *env, check_case *c, check_arena *arena) {
  merging m;
  prepare(arena, c, &m);
  fill_parts(c, &m);
  snapshot_all(arena, &m);
  attn_context *context = check_context(env, check_number(&c->choice, CHECK_THREADS));
  check_rng rng = c->rng;
  for (env->backend = 0; context != NULL && env->backend < env->num_backends; env->backend++) {
    c->rng = rng;
    int valid = check_is(c, CHECK_EXPECT, CHECK_VALID);
    int passed = valid ? run(env, c, &m, context, 0) && run(env, c, &m, context, 1) : refuse(env, c, &m, context);
    if (!passed) {
      return 0;
    }
  }
  return context != NULL;
}
