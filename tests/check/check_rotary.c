/* SPDX-License-Identifier: Apache-2.0 */
/* check_rotary.c: see check_rotary.h. */
#include "check_rotary.h"

#include <math.h>
#include <string.h>

#include "check_float.h"
#include "check_pool.h"

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

/* Of a row without a slot, and of rows that no slot names, nobody reads the position. */
static void draw_positions(check_arena *arena, check_case *c, const unsigned char *named, check_rotary *r) {
  int64_t outside[] = {r->rows, -1, ((int64_t)1 << 32) + 1, INT64_MAX, INT64_MIN};
  int64_t stride = check_is(c, CHECK_STRIDE, CHECK_GAPPED_ELEMENTS) ? 3 : 1;
  check_lie lie = {&stride, 0, check_is(c, CHECK_GUARD, 1), 0};
  r->position = check_alloc(arena, (size_t)c->tokens, sizeof *r->position);
  check_tensor_make(arena, &r->positions, ATTN_DTYPE_INT64, 1, &c->tokens, &lie, NULL);
  check_fill_poison(&r->positions, CHECK_POISON_BIG);
  for (int64_t i = 0; i < c->tokens; i++) {
    int skipped = i >= c->slots || !named[i] || (check_is(c, CHECK_CHECKED, 1) && check_chance(&c->rng, 15));
    r->position[i] = skipped ? outside[check_between(&c->rng, 0, 4)] : check_between(&c->rng, 0, r->rows - 1);
    memcpy(check_at(&r->positions, i, 0, 0, 0), &r->position[i], sizeof r->position[i]);
  }
  check_snapshot(arena, &r->positions);
}

/* Two tensors, or two halves of each row of one. */
static void make_tables(check_arena *arena, check_case *c, check_rotary *r) {
  int64_t shape[2] = {r->rows, r->dim / 2};
  int64_t strides[4];
  int stride_class = check_number(&c->choice, CHECK_STRIDE);
  check_lie lie = {strides, stride_class == CHECK_BYTE_OFFSET ? 5 : 0, check_is(c, CHECK_GUARD, 1), 0};
  if (check_chance(&c->rng, 35)) {
    int64_t whole[2] = {r->rows, r->dim};
    check_strides(&c->rng, stride_class, 2, whole, strides);
    check_tensor_make(arena, &r->table, ATTN_DTYPE_FLOAT32, 2, whole, &lie, NULL);
    check_tensor_make(arena, &r->cosines, ATTN_DTYPE_FLOAT32, 2, shape, &lie, r->table.first);
    check_tensor_make(arena, &r->sines, ATTN_DTYPE_FLOAT32, 2, shape, &lie, check_at(&r->table, 0, r->dim / 2, 0, 0));
    return;
  }
  check_strides(&c->rng, stride_class, 2, shape, strides);
  check_tensor_make(arena, &r->cosines, ATTN_DTYPE_FLOAT32, 2, shape, &lie, NULL);
  check_strides(&c->rng, stride_class, 2, shape, strides);
  check_tensor_make(arena, &r->sines, ATTN_DTYPE_FLOAT32, 2, shape, &lie, NULL);
}

/* Rows that a position names have numbers: of angles, or any. */
static void fill_tables(check_arena *arena, check_case *c, check_rotary *r) {
  int any = check_chance(&c->rng, 20);
  check_fill_poison(&r->cosines, CHECK_POISON_NAN);
  check_fill_poison(&r->sines, CHECK_POISON_NAN);
  for (int64_t i = 0; i < c->tokens; i++) {
    int64_t row = r->position[i];
    for (int64_t j = 0; row >= 0 && row < r->rows && j < r->dim / 2; j++) {
      double angle = 6.3 * check_uniform(&c->rng);
      check_store(check_at(&r->cosines, row, j, 0, 0), ATTN_DTYPE_FLOAT32,
                  any ? check_normal(&c->rng) : (float)cos(angle));
      check_store(check_at(&r->sines, row, j, 0, 0), ATTN_DTYPE_FLOAT32,
                  any ? check_normal(&c->rng) : (float)sin(angle));
    }
  }
  check_snapshot(arena, &r->table);
  check_snapshot(arena, &r->cosines);
  check_snapshot(arena, &r->sines);
}

void check_rotary_draw(check_arena *arena, check_case *c, const unsigned char *named, check_rotary *r) {
  memset(r, 0, sizeof *r);
  r->kind = (attn_rotary)check_number(&c->choice, CHECK_ROTARY);
  if (r->kind == ATTN_ROTARY_NONE) {
    return;
  }
  int whole = check_chance(&c->rng, 40);
  r->dim = 2 * (int32_t)(whole ? c->size / 2 : check_between(&c->rng, 1, c->size / 2));
  r->rows = check_between(&c->rng, 1, 50);
  draw_positions(arena, c, named, r);
  make_tables(arena, c, r);
  fill_tables(arena, c, r);
}

static void make_query_tensor(check_arena *arena, check_case *c, const check_rotary *r, attn_dtype dtype,
                              check_tensor *t) {
  int64_t shape[3] = {c->tokens, r->q_heads, r->q_size};
  int64_t strides[4];
  int stride_class = (int)check_between(&c->rng, CHECK_COMPACT, CHECK_BYTE_OFFSET);
  check_lie lie = {strides, stride_class == CHECK_BYTE_OFFSET ? 2 : 0, check_is(c, CHECK_GUARD, 1), 0};
  check_strides(&c->rng, stride_class, 3, shape, strides);
  check_tensor_make(arena, t, dtype, 3, shape, &lie, NULL);
}

void check_rotary_queries(check_arena *arena, check_case *c, const unsigned char *taken, check_rotary *r) {
  r->with_q = r->kind != ATTN_ROTARY_NONE && check_chance(&c->rng, 70);
  if (!r->with_q) {
    return;
  }
  attn_dtype dtype = (attn_dtype)check_between(&c->rng, 1, 3);
  r->in_place = check_chance(&c->rng, 40);
  r->q_heads = (int32_t)check_between(&c->rng, 1, 8);
  r->q_size = r->dim + (check_chance(&c->rng, 40) ? 0 : (int32_t)check_between(&c->rng, 1, 33));
  int64_t row = (int64_t)r->q_heads * r->q_size;
  r->q_values = check_alloc(arena, (size_t)(c->slots * row), sizeof *r->q_values);
  make_query_tensor(arena, c, r, dtype, &r->q);
  check_fill_poison(&r->q, CHECK_POISON_NAN);
  for (int64_t i = 0; i < c->slots; i++) {
    float *values = r->q_values + i * row;
    check_draw_position(&c->rng, ATTN_FORMAT_FLOAT32, row, values);
    for (int64_t e = 0; taken[i] && e < row; e++) {
      values[e] = check_rounded(dtype, values[e]);
      check_store(check_at(&r->q, i, e / r->q_size, e % r->q_size, 0), dtype, values[e]);
    }
    for (int32_t h = 0; taken[i] && h < r->q_heads; h++) {
      check_rotary_turn(r, i, dtype, values + h * r->q_size);
    }
  }
  check_snapshot(arena, &r->q);
  if (!r->in_place) {
    make_query_tensor(arena, c, r, dtype, &r->q_out);
    check_fill_canary(&r->q_out, 5);
    check_snapshot(arena, &r->q_out);
  }
}

/* ---- rotating ---------------------------------------------------------------------------------------------------- */

int check_rotary_takes(const check_rotary *r, int64_t i) {
  return r->kind == ATTN_ROTARY_NONE || (r->position[i] >= 0 && r->position[i] < r->rows);
}

void check_rotary_turn(const check_rotary *r, int64_t i, attn_dtype dtype, float *row) {
  for (int32_t j = 0; j < r->dim / 2; j++) {
    float *first = r->kind == ATTN_ROTARY_INTERLEAVED ? &row[2 * j] : &row[j];
    float *second = r->kind == ATTN_ROTARY_INTERLEAVED ? first + 1 : first + r->dim / 2;
    float cosine = check_load(check_at(&r->cosines, r->position[i], j, 0, 0), ATTN_DTYPE_FLOAT32);
    float sine = check_load(check_at(&r->sines, r->position[i], j, 0, 0), ATTN_DTYPE_FLOAT32);
    float products[4] = {*first * cosine, *second * sine, *second * cosine, *first * sine};
    *first = check_rounded(dtype, products[0] - products[1]);
    *second = check_rounded(dtype, products[2] + products[3]);
  }
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

void check_rotary_fill(check_rotary *r, attn_cache_write_args *args) {
  args->rotary = r->kind;
  if (r->kind == ATTN_ROTARY_NONE) {
    return;
  }
  args->positions = &r->positions.dl;
  args->rotary_cos = &r->cosines.dl;
  args->rotary_sin = &r->sines.dl;
  if (r->with_q) {
    args->q = &r->q.dl;
    args->q_out = r->in_place ? &r->q.dl : &r->q_out.dl;
  }
}

int check_rotary_judge(check_env *env, const check_case *c, const check_rotary *r, const unsigned char *taken) {
  const check_tensor *out = r->in_place ? &r->q : &r->q_out;
  int64_t row = (int64_t)r->q_heads * r->q_size;
  for (int64_t i = 0; r->with_q && i < c->slots * row; i++) {
    int64_t token = i / row, head = i % row / r->q_size, e = i % r->q_size;
    unsigned char want[4];
    if (!taken[token]) {
      continue;
    }
    void *at = check_at(out, token, head, e, 0);
    check_store(want, out->dtype, r->q_values[i]);
    if (e >= r->dim) { /* as it was, to the bit */
      memcpy(want, check_old_bytes(&r->q, check_at(&r->q, token, head, e, 0)), out->element);
    }
    int is_nan = e < r->dim && isnan(r->q_values[i]);
    if (is_nan ? !isnan(check_load(at, out->dtype)) : memcmp(at, want, out->element) != 0) {
      return check_fail(env, "q_out: token %lld, head %lld, element %lld of %d rotated: got %.9g, want %.9g",
                        (long long)token, (long long)head, (long long)e, (int)r->dim,
                        (double)check_load(at, out->dtype), (double)check_load(want, out->dtype));
    }
    memcpy(at, check_old_bytes(out, at), out->element);
  }
  return 1;
}

int check_rotary_kept(check_env *env, const check_rotary *r) {
  const struct {
    const char *name;
    const check_tensor *tensor;
  } all[] = {{"positions", &r->positions},
             {"rotary_cos", &r->cosines},
             {"rotary_sin", &r->sines},
             {"the rotary table", &r->table},
             {"q", &r->q},
             {"q_out", &r->q_out}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    int64_t changed = check_changed(all[i].tensor);
    if (changed >= 0) {
      return check_fail(env, "%s: byte %lld, which no row owns, was written", all[i].name, (long long)changed);
    }
  }
  return 1;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

/* A copy of a tensor with another shape, to be changed further. */
static const DLTensor *changed(check_spoilt *s, int which, const DLTensor *tensor) {
  memcpy(s->shape[which], tensor->shape, (size_t)tensor->ndim * sizeof(int64_t));
  s->changed[which] = *tensor;
  s->changed[which].shape = s->shape[which];
  return &s->changed[which];
}

static void spoil_position(check_case *c, check_rotary *r, const unsigned char *taken, check_spoilt *s) {
  int64_t outside[] = {r->rows, r->rows, r->rows, -1, ((int64_t)1 << 32)};
  int64_t first = check_between(&c->rng, 0, c->slots - 1);
  for (int64_t i = 0; i < c->slots; i++) {
    int64_t token = (first + i) % c->slots;
    if (taken[token]) {
      s->what = "a position outside the tables";
      s->args.unchecked = 0;
      memcpy(check_at(&r->positions, token, 0, 0, 0), &outside[check_between(&c->rng, 0, 4)], sizeof *outside);
      s->expected = ATTN_E_INDEX;
      return;
    }
  }
}

static void spoil_tables(check_rotary *r, int64_t kind, check_spoilt *s) {
  s->expected = ATTN_E_SHAPE;
  if (kind == 1) {
    s->what = "a sine too many";
    s->args.rotary_sin = changed(s, 0, &r->sines.dl);
    s->shape[0][1] += 1;
  } else if (kind == 2) {
    s->what = "tables wider than k's rows";
    s->args.rotary_cos = changed(s, 0, &r->cosines.dl);
    s->args.rotary_sin = changed(s, 1, &r->sines.dl);
    s->shape[0][1] = s->shape[1][1] = s->args.k->shape[2] / 2 + 1;
  } else if (kind == 3) {
    s->what = "fewer positions than slots";
    s->args.positions = changed(s, 0, &r->positions.dl);
    s->shape[0][0] = s->args.slot_mapping->shape[0] - 1;
  } else {
    s->what = "positions of int32";
    s->args.positions = changed(s, 0, &r->positions.dl);
    s->changed[0].dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT32);
    s->expected = ATTN_E_DTYPE;
  }
}

static void spoil_queries(int64_t kind, check_spoilt *s) {
  s->expected = ATTN_E_NULL;
  if (kind == 5) {
    s->what = "no sines";
    s->args.rotary_sin = NULL;
  } else if (kind == 6) {
    s->what = s->args.q != NULL ? "q without q_out" : "q_out without q";
    s->args.q_out = s->args.q != NULL ? NULL : s->args.k;
  } else {
    s->what = "queries rotated in k's memory";
    s->args.q = s->args.q_out = s->args.k;
    s->expected = ATTN_E_OVERLAP;
  }
}

void check_rotary_spoil(check_case *c, check_rotary *r, const unsigned char *taken, check_spoilt *s) {
  int64_t kind = check_chance(&c->rng, 50) ? 0 : check_between(&c->rng, 0, 7);
  s->what = "rotary 3";
  s->expected = ATTN_E_RANGE;
  if (r->kind == ATTN_ROTARY_NONE) {
    s->what = "positions without rotary";
    s->args.positions = s->args.slot_mapping;
    s->expected = ATTN_E_NULL;
  } else if (kind == 0 && c->slots > 0) {
    spoil_position(c, r, taken, s);
  } else if (kind >= 1 && kind <= 4 && (kind != 3 || c->slots > 0)) {
    spoil_tables(r, kind, s);
  } else if (kind >= 5) {
    spoil_queries(kind, s);
  }
  if (s->expected == ATTN_E_RANGE) {
    s->args.rotary = (attn_rotary)3;
  }
}

void check_rotary_mend(const check_rotary *r) {
  if (r->positions.snapshot != NULL) {
    memcpy(r->positions.first, r->positions.snapshot, r->positions.segment_bytes);
  }
}
