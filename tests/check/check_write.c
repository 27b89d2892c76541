/* SPDX-License-Identifier: Apache-2.0 */
/* check_write.c: attn_cache_write. Every named slot holds the exact conversion, of a rotated row where the call
 * rotates, every other byte of both pools is kept. */
#include <string.h>

#include "check_case.h"
#include "check_float.h"
#include "check_pool.h"
#include "check_rotary.h"

typedef struct writing {
  check_tensor k, v, slots, k_cache, v_cache, k_scale, v_scale;
  check_rows k_rows, v_rows; /* what the rows of k and v become */
  float *k_values;           /* [tokens, heads, size] */
  float *v_values;
  int64_t *slot;        /* [slots] */
  unsigned char *taken; /* [slots]: 1 where the row is written */
  check_rotary rotary;
  int64_t capacity;
  attn_cache_write_args args;
} writing;

static void draw_slots(check_arena *arena, check_case *c, writing *w) {
  static const int64_t beyond[] = {0, 1, ((int64_t)1 << 32) + 3, ((int64_t)1 << 40) + 17, INT64_MAX};
  int64_t blocks = (c->tokens + c->block_size - 1) / c->block_size + check_between(&c->rng, 0, 4);
  w->capacity = blocks * c->block_size;
  int64_t *order = check_alloc(arena, (size_t)w->capacity, sizeof *order);
  for (int64_t i = 0; i < w->capacity; i++) {
    int64_t j = check_between(&c->rng, 0, i);
    order[i] = order[j];
    order[j] = i;
  }
  w->slot = check_alloc(arena, (size_t)c->slots, sizeof *w->slot);
  int padded = check_is(c, CHECK_SLOTS, CHECK_SLOTS_PADDED);
  int unchecked = check_is(c, CHECK_CHECKED, 1);
  for (int64_t i = 0; i < c->slots; i++) {
    w->slot[i] = order[i];
    if (padded && (i == 0 || check_chance(&c->rng, 30))) {
      w->slot[i] = check_chance(&c->rng, 70) ? -1 : -check_between(&c->rng, 2, INT64_MAX);
    } else if (unchecked && check_chance(&c->rng, 25)) {
      int64_t past = beyond[check_between(&c->rng, 0, 4)];
      w->slot[i] = past < 2 ? w->capacity + past : past;
    }
  }
}

static void make_rows(check_arena *arena, check_case *c, const writing *w, attn_dtype dtype, attn_format format,
                      int64_t size, check_tensor *t, float *values) {
  int64_t shape[3] = {c->tokens, c->kv_heads, size};
  int64_t strides[4];
  int stride_class = check_number(&c->choice, CHECK_STRIDE);
  check_lie lie = {strides, stride_class == CHECK_BYTE_OFFSET ? 3 : 0, check_is(c, CHECK_GUARD, 1), 0};
  check_strides(&c->rng, stride_class, 3, shape, strides);
  check_tensor_make(arena, t, dtype, 3, shape, &lie, NULL);
  check_fill_poison(t, CHECK_POISON_NAN); /* rows that no slot takes */
  for (int64_t i = 0; i < c->slots; i++) {
    float *row = values + i * c->kv_heads * size;
    check_draw_position(&c->rng, format, w->taken[i] ? c->kv_heads * size : 0, row);
    for (int64_t e = 0; w->taken[i] && e < c->kv_heads * size; e++) {
      row[e] = check_rounded(dtype, row[e]);
      check_store(check_at(t, i, e / size, e % size, 0), dtype, row[e]);
    }
  }
}

/* Which rows have a slot of the pool and, rotated, a position of the tables. */
static void draw_rows(check_arena *arena, check_case *c, writing *w) {
  draw_slots(arena, c, w);
  w->taken = check_alloc(arena, (size_t)c->slots, 1);
  for (int64_t i = 0; i < c->slots; i++) {
    w->taken[i] = w->slot[i] >= 0 && w->slot[i] < w->capacity;
  }
  check_rotary_draw(arena, c, w->taken, &w->rotary);
  for (int64_t i = 0; i < c->slots; i++) {
    w->taken[i] = w->taken[i] && check_rotary_takes(&w->rotary, i);
  }
  check_rotary_queries(arena, c, w->taken, &w->rotary);
}

/* Elements anew whose quotients by their head's static scale lie halfway between two codes, as near as floats come. */
static void put_ties(check_case *c, const writing *w, const check_rows *rows, const check_tensor *t, float *values) {
  int e5m2 = rows->format == ATTN_FORMAT_FP8_E5M2;
  for (int64_t i = 0; i < c->slots * c->kv_heads; i++) {
    int64_t token = i / c->kv_heads, head = i % c->kv_heads;
    float *row = values + i * rows->size;
    uint32_t none = 0;
    for (int64_t e = 0; w->taken[token] && e < rows->size; e++) {
      if (!check_chance(&c->rng, 30)) {
        continue;
      }
      uint8_t code = (uint8_t)check_between(&c->rng, 0, e5m2 ? 0x7A : 0x7D);
      float middle = 0.5f * (check_from_fp8(code, e5m2) + check_from_fp8((uint8_t)(code + 1), e5m2));
      row[e] = check_rounded(t->dtype, middle * rows->statics[head] * (check_chance(&c->rng, 50) ? 1.0f : -1.0f));
      check_store(check_at(t, token, head, e, 0), t->dtype, row[e]);
    }
    if (w->taken[token]) {
      check_row_encode(rows, (int32_t)head, row, rows->codes + i * rows->code_bytes, &none);
    }
  }
}

/* What the rows become, and the tensor of their scales where these lie apart; in static formats `ties` may change the
   rows. */
static const DLTensor *quantise(check_arena *arena, check_case *c, const writing *w, check_rows *rows,
                                attn_format format, int32_t size, float *values, check_tensor *t, int ties,
                                check_tensor *scales) {
  size_t count = (size_t)(c->tokens * c->kv_heads * size);
  float *decoded = check_alloc(arena, count, sizeof *decoded);
  memcpy(decoded, values, count * sizeof *decoded);
  check_statics statics = check_is(c, CHECK_SCALES, CHECK_SCALES_APART) ? CHECK_STATICS_HEADS
                          : check_chance(&c->rng, 60)                   ? CHECK_STATICS_ONE
                                                                        : CHECK_STATICS_NONE;
  check_rows_make(arena, &c->rng, rows, format, statics, c->tokens, c->kv_heads, size, decoded);
  if (ties && check_format_static(format)) {
    put_ties(c, w, rows, t, values);
  }
  check_snapshot(arena, t);
  int apart = check_separate(c, format);
  if (apart) {
    check_pool_scales(arena, c, w->capacity / c->block_size, check_number(&c->choice, CHECK_STRIDE), scales);
    check_fill_canary(scales, 4);
  } else {
    apart = check_static_scales(arena, c, rows, scales);
  }
  check_snapshot(arena, scales);
  return apart ? &scales->dl : NULL;
}

static void prepare(check_arena *arena, check_case *c, writing *w) {
  memset(w, 0, sizeof *w);
  draw_rows(arena, c, w);
  attn_dtype k_in = (attn_dtype)check_number(&c->choice, CHECK_IN_TYPE);
  attn_dtype v_in = check_chance(&c->rng, 70) ? k_in : (attn_dtype)check_between(&c->rng, 1, 3);
  w->k_values = check_alloc(arena, (size_t)(c->tokens * c->kv_heads * c->size), sizeof(float));
  w->v_values = check_alloc(arena, (size_t)(c->tokens * c->kv_heads * c->v_size), sizeof(float));
  make_rows(arena, c, w, k_in, c->k_format, c->size, &w->k, w->k_values);
  make_rows(arena, c, w, v_in, c->v_format, c->v_size, &w->v, w->v_values);
  for (int64_t i = 0; i < c->slots * c->kv_heads; i++) {
    if (w->taken[i / c->kv_heads]) {
      check_rotary_turn(&w->rotary, i / c->kv_heads, k_in, w->k_values + i * c->size);
    }
  }
  int64_t stride = check_is(c, CHECK_STRIDE, CHECK_GAPPED_ELEMENTS) ? 2 : 1;
  check_lie lie = {&stride, 0, check_is(c, CHECK_GUARD, 1), 0};
  check_tensor_make(arena, &w->slots, ATTN_DTYPE_INT64, 1, &c->slots, &lie, NULL);
  check_fill_poison(&w->slots, CHECK_POISON_BIG);
  for (int64_t i = 0; i < c->slots; i++) {
    memcpy(check_at(&w->slots, i, 0, 0, 0), &w->slot[i], sizeof w->slot[i]);
  }
  check_snapshot(arena, &w->slots);
  check_pool_make(arena, c, w->capacity / c->block_size, check_number(&c->choice, CHECK_POOL), &w->k_cache,
                  &w->v_cache);
  check_fill_canary(&w->k_cache, 1);
  check_fill_canary(&w->v_cache, 2);
  w->args = (attn_cache_write_args)ATTN_CACHE_WRITE_INIT;
  int k_ties = w->rotary.kind == ATTN_ROTARY_NONE && check_chance(&c->rng, 50);
  int v_ties = check_chance(&c->rng, 50);
  w->args.k_scale = quantise(arena, c, w, &w->k_rows, c->k_format, c->size, w->k_values, &w->k, k_ties, &w->k_scale);
  w->args.v_scale = quantise(arena, c, w, &w->v_rows, c->v_format, c->v_size, w->v_values, &w->v, v_ties, &w->v_scale);
  check_snapshot(arena, &w->k_cache); /* after both: interleaved pools share bytes */
  check_snapshot(arena, &w->v_cache);
  int k_tells = c->k_type != ATTN_DTYPE_UINT8;
  w->args.k_format = k_tells && check_chance(&c->rng, 50) ? ATTN_FORMAT_AUTO : c->k_format;
  int v_tells = c->v_type != ATTN_DTYPE_UINT8 || (w->args.k_format == c->v_format && c->v_format == c->k_format);
  w->args.v_format = v_tells && check_chance(&c->rng, 50) ? ATTN_FORMAT_AUTO : c->v_format;
  w->args.layout = (attn_layout)check_number(&c->choice, CHECK_LAYOUT);
  w->args.unchecked = check_is(c, CHECK_CHECKED, 1);
  w->args.k = &w->k.dl;
  w->args.v = &w->v.dl;
  w->args.slot_mapping = &w->slots.dl;
  w->args.k_cache = &w->k_cache.dl;
  w->args.v_cache = &w->v_cache.dl;
  check_rotary_fill(&w->rotary, &w->args);
}

static int judge_pool(check_env *env, const check_case *c, const writing *w, const check_wanted *want) {
  for (int64_t i = 0; i < c->slots; i++) {
    if (w->taken[i] && !check_pool_judge(env, c, want, i, w->slot[i] / c->block_size, w->slot[i] % c->block_size)) {
      return 0;
    }
  }
  return 1;
}

static int kept(check_env *env, const char *name, const check_tensor *t) {
  int64_t changed = check_changed(t);
  return changed < 0 || check_fail(env, "%s: byte %lld, which no slot names, was written", name, (long long)changed);
}

static int all_kept(check_env *env, const writing *w) {
  return kept(env, "k_cache", &w->k_cache) && kept(env, "v_cache", &w->v_cache) && kept(env, "k", &w->k) &&
         kept(env, "v", &w->v) && kept(env, "slot_mapping", &w->slots) && kept(env, "k_scale", &w->k_scale) &&
         kept(env, "v_scale", &w->v_scale) && check_rotary_kept(env, &w->rotary);
}

/* A call that has to be refused: status by kind; list entries are changed in place and put back. */
static int refuse_once(check_env *env, check_case *c, writing *w, attn_context *context) {
  attn_cache_write_args args = w->args;
  attn_message message = {ATTN_OK, ""};
  attn_status expected = ATTN_E_INDEX;
  const char *what = "";
  DLTensor changed;
  int64_t shape[4];
  int64_t value = 0;
  int in_place = 0;
  int64_t kind = check_chance(&c->rng, 50) ? 2 * check_between(&c->rng, 0, 1) : check_between(&c->rng, 0, 9);
  int64_t place = check_between(&c->rng, 0, c->slots > 0 ? c->slots - 1 : 0);
  kind = c->slots < 2 && kind < 3 ? 3 : kind;
  if (kind < 3) { /* a bad entry */
    static const char *const names[] = {"slot == capacity", "slot 2^32 + 3", "the same slot twice"};
    what = names[kind];
    args.unchecked = 0;
    value = kind == 0 ? w->capacity : kind == 1 ? ((int64_t)1 << 32) + 3 : 0;
    in_place = 1;
    if (kind == 2) { /* both entries valid but equal; neither may stand before another bad one */
      int64_t other = (place + 1) % c->slots;
      memcpy(check_at(&w->slots, other, 0, 0, 0), &value, sizeof value);
    }
    memcpy(check_at(&w->slots, place, 0, 0, 0), &value, sizeof value);
  } else if (kind == 3 || kind == 4) { /* an extent of k, one less or one more */
    what = kind == 3 ? "k with a head too many" : "more slots than rows";
    changed = kind == 3 ? w->k.dl : w->slots.dl;
    memcpy(shape, changed.shape, sizeof *shape * (size_t)changed.ndim);
    shape[kind == 3 ? 1 : 0] = kind == 3 ? c->kv_heads + 1 : c->tokens + 1;
    changed.shape = shape;
    *(kind == 3 ? &args.k : &args.slot_mapping) = &changed;
    expected = ATTN_E_SHAPE;
  } else if (kind == 5) {
    what = "slot_mapping of int32";
    changed = w->slots.dl;
    changed.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT32);
    args.slot_mapping = &changed;
    expected = ATTN_E_DTYPE;
  } else if (kind == 6) {
    what = "no v";
    args.v = NULL;
    expected = ATTN_E_NULL;
  } else if (kind == 7) {
    what = "a format of latent rows";
    args.k_format = ATTN_FORMAT_FP8_DS_MLA;
    expected = ATTN_E_UNSUPPORTED;
  } else if (kind == 8 && c->size == c->v_size && c->k_format == c->v_format && c->k_type == c->v_type &&
             w->capacity > 0) {
    what = "v_cache in k_cache's memory";
    args.v_cache = args.k_cache;
    args.v_format = c->v_format;
    expected = ATTN_E_OVERLAP;
  } else {
    what = "a latent pool";
    args.kv_c = &w->k.dl;
    args.kv_cache = &w->k_cache.dl;
    expected = ATTN_E_NULL; /* k is given too */
  }
  args.backend = env->backends[env->backend];
  attn_status status = attn_cache_write(context, &args, &message);
  if (in_place) {
    memcpy(w->slots.first, w->slots.snapshot, w->slots.segment_bytes);
  }
  return check_refused(env, what, status, expected, &message) && all_kept(env, w);
}

static int refuse_rotary(check_env *env, check_case *c, writing *w, attn_context *context) {
  attn_message message = {ATTN_OK, ""};
  check_spoilt spoilt = {.args = w->args};
  check_rotary_spoil(c, &w->rotary, w->taken, &spoilt);
  spoilt.args.backend = env->backends[env->backend];
  attn_status status = attn_cache_write(context, &spoilt.args, &message);
  check_rotary_mend(&w->rotary);
  return check_refused(env, spoilt.what, status, spoilt.expected, &message) && all_kept(env, w);
}

static int refuse(check_env *env, check_case *c, writing *w, attn_context *context) {
  for (int i = 0; i < CHECK_REFUSALS; i++) {
    int rotary = check_chance(&c->rng, w->rotary.kind == ATTN_ROTARY_NONE ? 5 : 40);
    if (!(rotary ? refuse_rotary(env, c, w, context) : refuse_once(env, c, w, context))) {
      return 0;
    }
  }
  return 1;
}

static int run(check_env *env, const check_case *c, writing *w, attn_context *context) {
  attn_message message = {ATTN_OK, ""};
  w->args.backend = env->backends[env->backend];
  attn_status status = attn_cache_write(context, &w->args, &message);
  if (status != ATTN_OK) {
    return check_fail(env, "attn_cache_write refused a valid call: %s: %s", attn_status_name(status), message.text);
  }
  check_wanted k = {"k_cache", &w->k_cache, &w->k_scale, &w->k_rows, w->k_values};
  check_wanted v = {"v_cache", &w->v_cache, &w->v_scale, &w->v_rows, w->v_values};
  return judge_pool(env, c, w, &k) && judge_pool(env, c, w, &v) && check_rotary_judge(env, c, &w->rotary, w->taken) &&
         all_kept(env, w);
}

int check_run_write(check_env *env, check_case *c, check_arena *arena) {
  writing w;
  prepare(arena, c, &w);
  attn_context *context = check_context(env, check_number(&c->choice, CHECK_THREADS));
  check_rng rng = c->rng;
  for (env->backend = 0; context != NULL && env->backend < env->num_backends; env->backend++) {
    c->rng = rng;
    int passed = check_is(c, CHECK_EXPECT, CHECK_VALID) ? run(env, c, &w, context) : refuse(env, c, &w, context);
    if (!passed) {
      return 0;
    }
  }
  return context != NULL;
}
