/* SPDX-License-Identifier: Apache-2.0 */
/* check_requantise.c: attn_cache_requantise. Every row of a target block is the encoding of what its source row decodes
 * to, byte by byte; every other byte of both pools and of their scales is kept.
 *
 * Source rows are written ones, with infinities and NaN among them, or bytes that nobody wrote. What they decode to is
 * this engine's own answer, but for int4: a rotation undone is within 2^-20 of the row's largest value, so there the
 * float32 rows that attn_cache_gather gives are held against that bound, and they are what has to be encoded. */
#include <math.h>
#include <string.h>

#include "check_case.h"
#include "check_float.h"
#include "check_pool.h"

#define MAX_BLOCKS 6
#define LARGE_BLOCK 10000 /* elements; of such there are fewer */

/* One of the two pools. */
typedef struct side {
  check_case view; /* the case with this pool's format as both, its layout and its place of scales */
  int64_t num_blocks;
  check_tensor pool, spare, scales;
  check_rows rows;
  const DLTensor *given; /* its scales, or NULL */
} side;

typedef struct requantising {
  side from, to;
  float *decoded; /* [blocks * block_size, heads, size]: the source's rows */
  float *moved;   /* [pairs * block_size, heads, size]: those that a pair moves */
  int64_t num_pairs;
  int64_t pair[MAX_BLOCKS][2];
  check_tensor map;
  attn_cache_requantise_args args;
} requantising;

static int64_t elements_of(const check_case *c) {
  return (int64_t)c->block_size * c->kv_heads * c->size;
}

/* ---- the pools --------------------------------------------------------------------------------------------------- */

static void set_view(side *s, const check_case *c, attn_format format, attn_dtype type) {
  s->view = *c;
  s->view.k_format = s->view.v_format = format;
  s->view.k_type = s->view.v_type = type;
}

/* Each with its own strides, or side by side in the blocks of one memory where a drawn pool has both. */
static void make_pools(check_arena *arena, check_case *c, requantising *q) {
  int64_t most = elements_of(c) > LARGE_BLOCK ? 2 : MAX_BLOCKS;
  int pool_class = check_number(&c->choice, CHECK_POOL);
  set_view(&q->from, c, c->k_format, c->k_type);
  set_view(&q->to, c, c->v_format, c->v_type);
  q->to.view.choice.index[CHECK_LAYOUT] = c->choice.index[CHECK_TARGET_LAYOUT];
  q->to.view.choice.index[CHECK_SCALES] = c->choice.index[CHECK_TARGET_SCALES];
  q->from.num_blocks = q->to.num_blocks = check_between(&c->rng, 2, most);
  int alike = check_number(&c->choice, CHECK_LAYOUT) == check_number(&c->choice, CHECK_TARGET_LAYOUT) &&
              check_number(&c->choice, CHECK_SCALES) == check_number(&c->choice, CHECK_TARGET_SCALES);
  if (alike && check_chance(&c->rng, 60)) {
    check_pool_make(arena, c, q->from.num_blocks, pool_class, &q->from.pool, &q->to.pool);
    return;
  }
  q->to.num_blocks = check_between(&c->rng, 1, most);
  q->from.view.rng = c->rng;
  check_pool_make(arena, &q->from.view, q->from.num_blocks, pool_class, &q->from.pool, &q->from.spare);
  q->to.view.rng = q->from.view.rng;
  check_pool_make(arena, &q->to.view, q->to.num_blocks,
                  (int)check_between(&q->to.view.rng, CHECK_COMPACT, CHECK_LAYERS), &q->to.spare, &q->to.pool);
  c->rng = q->to.view.rng;
}

static check_statics draw_statics(check_case *c, const side *s) {
  return check_is(&s->view, CHECK_SCALES, CHECK_SCALES_APART) ? CHECK_STATICS_HEADS
         : check_chance(&c->rng, 60)                          ? CHECK_STATICS_ONE
                                                              : CHECK_STATICS_NONE;
}

/* A tensor for a side's scales, where it has one: separate ones poisoned, static ones with their values. */
static void make_scales(check_arena *arena, check_case *c, side *s) {
  int apart = check_separate(&s->view, s->rows.format);
  if (apart) {
    s->view.rng = c->rng;
    check_pool_scales(arena, &s->view, s->num_blocks, check_number(&c->choice, CHECK_STRIDE), &s->scales);
    c->rng = s->view.rng;
  } else {
    apart = check_static_scales(arena, &s->view, &s->rows, &s->scales);
  }
  s->given = apart ? &s->scales.dl : NULL;
}

/* Bytes that nobody wrote: any codes, in half of the rows any bits as the scale. */
static void draw_garbage(check_rng *rng, check_rows *rows, float *decoded) {
  for (int64_t i = 0; i < rows->positions * rows->heads; i++) {
    for (int32_t b = 0; b < rows->code_bytes; b++) {
      rows->codes[i * rows->code_bytes + b] = (uint8_t)check_between(rng, 0, 255);
    }
    if (rows->scales != NULL && check_chance(rng, 50)) {
      rows->scales[i] = (uint32_t)check_next(rng);
    }
    check_row_decode(rows, i, decoded + i * rows->size);
  }
}

/* The source's rows of every block, and what each decodes to. */
static void fill_source(check_arena *arena, check_case *c, requantising *q) {
  side *s = &q->from;
  int64_t positions = s->num_blocks * c->block_size;
  int64_t row = (int64_t)c->kv_heads * c->size;
  q->decoded = check_alloc(arena, (size_t)(positions * row), sizeof *q->decoded);
  for (int64_t p = 0; p < positions; p++) {
    check_draw_position(&c->rng, c->k_format, row, q->decoded + p * row);
  }
  check_rows_make(arena, &c->rng, &s->rows, c->k_format, draw_statics(c, s), positions, c->kv_heads, c->size,
                  q->decoded);
  int kind = (int)check_between(&c->rng, 0, 99);
  if (s->rows.codes != NULL && kind < 30) {
    check_rows_random(&c->rng, &s->rows, q->decoded);
  } else if (s->rows.codes != NULL && kind < 45) {
    draw_garbage(&c->rng, &s->rows, q->decoded);
  }
  make_scales(arena, c, s);
  for (int64_t i = 0; i < positions * c->kv_heads; i++) {
    int64_t block = i / c->kv_heads / c->block_size;
    int64_t offset = i / c->kv_heads % c->block_size;
    int64_t head = i % c->kv_heads;
    if (s->rows.codes != NULL) {
      check_pool_put(&s->view, &s->pool, &s->scales, &s->rows, i, block, offset, head, 0);
      continue;
    }
    for (int64_t e = 0; e < c->size; e++) {
      check_store(check_pool_at(&s->view, &s->pool, block, offset, head, e), s->pool.dtype,
                  q->decoded[i * c->size + e]);
    }
  }
}

/* The moved rows, and codes for them whose static scales suit what this engine decodes. */
static void make_target(check_arena *arena, check_case *c, requantising *q) {
  int64_t block = elements_of(c);
  int64_t count = q->num_pairs * block;
  float *values = check_alloc(arena, (size_t)count, sizeof *values);
  q->moved = check_alloc(arena, (size_t)count, sizeof *q->moved);
  for (int64_t i = 0; i < q->num_pairs; i++) {
    memcpy(values + i * block, q->decoded + q->pair[i][0] * block, (size_t)block * sizeof *values);
  }
  check_rows_make(arena, &c->rng, &q->to.rows, c->v_format, draw_statics(c, &q->to), q->num_pairs * c->block_size,
                  c->kv_heads, c->size, values);
  make_scales(arena, c, &q->to);
  if (check_separate(&q->to.view, c->v_format)) {
    check_fill_canary(&q->to.scales, 4);
  }
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static void shuffle(check_rng *rng, int64_t *order, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    int64_t j = check_between(rng, 0, i);
    order[i] = order[j];
    order[j] = i;
  }
}

/* A target block stands in one pair, a source block in any number. */
static void draw_pairs(check_arena *arena, check_case *c, requantising *q) {
  int64_t targets[MAX_BLOCKS];
  shuffle(&c->rng, targets, q->to.num_blocks);
  q->num_pairs = check_chance(&c->rng, 10) ? 0 : check_between(&c->rng, 1, q->to.num_blocks);
  int64_t shape[2] = {q->num_pairs, 2};
  int64_t strides[4];
  check_lie lie = {strides, check_is(c, CHECK_STRIDE, CHECK_BYTE_OFFSET) ? 3 : 0, check_is(c, CHECK_GUARD, 1), 0};
  check_strides(&c->rng, check_number(&c->choice, CHECK_STRIDE), 2, shape, strides);
  check_tensor_make(arena, &q->map, ATTN_DTYPE_INT64, 2, shape, &lie, NULL);
  check_fill_poison(&q->map, CHECK_POISON_BIG);
  for (int64_t i = 0; i < q->num_pairs; i++) {
    q->pair[i][0] =
        i > 0 && check_chance(&c->rng, 30) ? q->pair[i - 1][0] : check_between(&c->rng, 0, q->from.num_blocks - 1);
    q->pair[i][1] = targets[i];
    memcpy(check_at(&q->map, i, 0, 0, 0), &q->pair[i][0], sizeof(int64_t));
    memcpy(check_at(&q->map, i, 1, 0, 0), &q->pair[i][1], sizeof(int64_t));
  }
}

static void keep_all(check_arena *arena, requantising *q) {
  check_tensor *all[] = {&q->from.pool, &q->from.spare, &q->from.scales, &q->to.pool,
                         &q->to.spare,  &q->to.scales,  &q->map};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    check_snapshot(arena, all[i]);
  }
}

static int tells(const side *s) {
  return s->pool.dtype != ATTN_DTYPE_UINT8;
}

static void prepare(check_arena *arena, check_case *c, requantising *q) {
  memset(q, 0, sizeof *q);
  make_pools(arena, c, q);
  check_fill_poison(&q->from.spare, CHECK_POISON_NAN);
  check_fill_poison(&q->from.pool, CHECK_POISON_NAN);
  check_fill_canary(&q->to.spare, 1);
  check_fill_canary(&q->to.pool, 2); /* before the source's rows: pools side by side share these bytes */
  draw_pairs(arena, c, q);
  fill_source(arena, c, q);
  make_target(arena, c, q);
  keep_all(arena, q);
  q->args = (attn_cache_requantise_args)ATTN_CACHE_REQUANTISE_INIT;
  q->args.source_format = tells(&q->from) && check_chance(&c->rng, 50) ? ATTN_FORMAT_AUTO : c->k_format;
  q->args.target_format = tells(&q->to) && check_chance(&c->rng, 50) ? ATTN_FORMAT_AUTO : c->v_format;
  q->args.source_layout = (attn_layout)check_number(&c->choice, CHECK_LAYOUT);
  q->args.target_layout = (attn_layout)check_number(&c->choice, CHECK_TARGET_LAYOUT);
  int unsaid = check_format_per_row(c->k_format) && check_format_per_row(c->v_format);
  q->args.head_size = unsaid || check_chance(&c->rng, 50) ? c->size : 0;
  q->args.source = &q->from.pool.dl;
  q->args.source_scale = q->from.given;
  q->args.target = &q->to.pool.dl;
  q->args.target_scale = q->to.given;
  q->args.block_map = &q->map.dl;
}

static int all_kept(check_env *env, const requantising *q) {
  const struct {
    const char *name;
    const check_tensor *tensor;
  } all[] = {{"source", &q->from.pool}, {"beside source", &q->from.spare}, {"source_scale", &q->from.scales},
             {"target", &q->to.pool},   {"beside target", &q->to.spare},   {"target_scale", &q->to.scales},
             {"block_map", &q->map}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    int64_t changed = check_changed(all[i].tensor);
    if (changed >= 0) {
      return check_fail(env, "%s: byte %lld, which no pair names, was written", all[i].name, (long long)changed);
    }
  }
  return 1;
}

/* All rows of the source in float32, by the backend under test. */
static int gather(check_env *env, check_arena *arena, const check_case *c, const requantising *q, attn_context *context,
                  float *values) {
  attn_message message = {ATTN_OK, ""};
  int32_t length = (int32_t)(q->from.num_blocks * c->block_size);
  int64_t shapes[3][3] = {{length, c->kv_heads, c->size}, {1, q->from.num_blocks}, {1}};
  check_tensor rows, table, lens;
  check_lie lie = {NULL, 0, 0, 0};
  check_tensor_make(arena, &rows, ATTN_DTYPE_FLOAT32, 3, shapes[0], &lie, (unsigned char *)values);
  check_tensor_make(arena, &table, ATTN_DTYPE_INT32, 2, shapes[1], &lie, NULL);
  check_tensor_make(arena, &lens, ATTN_DTYPE_INT32, 1, shapes[2], &lie, NULL);
  for (int32_t b = 0; b < q->from.num_blocks; b++) {
    memcpy(check_at(&table, 0, b, 0, 0), &b, sizeof b);
  }
  memcpy(lens.first, &length, sizeof length);
  attn_cache_gather_args args = ATTN_CACHE_GATHER_INIT;
  args.backend = env->backends[env->backend];
  args.layout = q->args.source_layout;
  args.k_format = q->args.source_format;
  args.k_cache = q->args.source;
  args.k_scale = q->args.source_scale;
  args.block_table = &table.dl;
  args.seq_lens = &lens.dl;
  args.k = &rows.dl;
  attn_status status = attn_cache_gather(context, &args, &message);
  return status == ATTN_OK || check_fail(env, "attn_cache_gather of the source: %s", message.text);
}

/* Gathered rows are near enough to this engine's, where those are finite and far from overflow. */
static int near_decoded(check_env *env, const check_case *c, const requantising *q, const float *values) {
  for (int64_t i = 0; i < q->from.num_blocks * elements_of(c); i += c->size) {
    float most = 0.0f;
    for (int32_t e = 0; e < c->size; e++) {
      float x = fabsf(q->decoded[i + e]);
      most = x <= 0x1p120f ? fmaxf(most, x) : INFINITY;
    }
    for (int32_t e = 0; e < c->size && isfinite(most); e++) {
      if (!(fabs((double)values[i + e] - (double)q->decoded[i + e]) <= 0x1p-20 * (double)most + 0x1p-130)) {
        return check_fail(env, "gathered row %lld, element %d: got %.9g, want %.9g", (long long)(i / c->size), (int)e,
                          (double)values[i + e], (double)q->decoded[i + e]);
      }
    }
  }
  return 1;
}

/* What the pairs' target rows have to be, for the backend under test. */
static int expect(check_env *env, check_arena *arena, const check_case *c, requantising *q, attn_context *context) {
  int64_t block = elements_of(c);
  const float *decoded = q->decoded;
  if (c->k_format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD) {
    float *gathered = check_alloc(arena, (size_t)(q->from.num_blocks * block), sizeof *gathered);
    if (!gather(env, arena, c, q, context, gathered) || !near_decoded(env, c, q, gathered)) {
      return 0;
    }
    decoded = gathered;
  }
  for (int64_t i = 0; i < q->num_pairs; i++) {
    memcpy(q->moved + i * block, decoded + q->pair[i][0] * block, (size_t)block * sizeof *q->moved);
  }
  check_rows *rows = &q->to.rows;
  for (int64_t i = 0; rows->codes != NULL && i < rows->positions * rows->heads; i++) {
    uint32_t none = 0;
    check_row_encode(rows, (int32_t)(i % rows->heads), q->moved + i * rows->size, rows->codes + i * rows->code_bytes,
                     rows->scales != NULL ? &rows->scales[i] : &none);
  }
  return 1;
}

static int run(check_env *env, check_arena *arena, const check_case *c, requantising *q, attn_context *context) {
  attn_message message = {ATTN_OK, ""};
  check_wanted want = {"target", &q->to.pool, &q->to.scales, &q->to.rows, q->moved};
  if (!expect(env, arena, c, q, context)) {
    return 0;
  }
  q->args.backend = env->backends[env->backend];
  attn_status status = attn_cache_requantise(context, &q->args, &message);
  if (status != ATTN_OK) {
    return check_fail(env, "attn_cache_requantise refused a valid call: %s: %s", attn_status_name(status),
                      message.text);
  }
  for (int64_t i = 0; i < q->num_pairs * c->block_size; i++) {
    int64_t target = q->pair[i / c->block_size][1];
    if (!check_pool_judge(env, &q->to.view, &want, i, target, i % c->block_size)) {
      return 0;
    }
  }
  return all_kept(env, q);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

/* A call spoilt in one place. */
typedef struct spoilt {
  attn_cache_requantise_args args;
  attn_status expected;
  const char *what;
  DLTensor changed;
  int64_t shape[4];
} spoilt;

/* An entry changed in place: outside its pool, or a target that another pair has too. */
static void spoil_entry(check_case *c, const requantising *q, spoilt *s) {
  int64_t pair = check_between(&c->rng, 0, q->num_pairs - 1);
  int column = (int)check_between(&c->rng, 0, 1);
  int64_t outside[] = {column == 0 ? q->from.num_blocks : q->to.num_blocks, -1, ((int64_t)1 << 32)};
  int64_t value = outside[check_between(&c->rng, 0, 2)];
  s->what = "a block outside its pool";
  if (q->num_pairs > 1 && check_chance(&c->rng, 40)) {
    s->what = "a target block named twice";
    column = 1;
    value = q->pair[(pair + 1) % q->num_pairs][1];
  }
  s->expected = ATTN_E_INDEX;
  memcpy(check_at(&q->map, pair, column, 0, 0), &value, sizeof value);
}

static void change(spoilt *s, const DLTensor *tensor) {
  memcpy(s->shape, tensor->shape, (size_t)tensor->ndim * sizeof *s->shape);
  s->changed = *tensor;
  s->changed.shape = s->shape;
}

static void spoil_tensor(check_case *c, const requantising *q, int64_t kind, spoilt *s) {
  s->expected = ATTN_E_SHAPE;
  if (kind == 0) {
    s->what = "a map of three columns";
    change(s, &q->map.dl);
    s->shape[1] = 3;
    s->args.block_map = &s->changed;
  } else if (kind == 1) {
    s->what = "a map of int32";
    change(s, &q->map.dl);
    s->changed.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT32);
    s->args.block_map = &s->changed;
    s->expected = ATTN_E_DTYPE;
  } else if (kind == 2) {
    s->what = "a target with a head or a position more";
    change(s, &q->to.pool.dl);
    s->shape[check_between(&c->rng, 1, 2)] += 1;
    s->args.target = &s->changed;
  } else if (kind == 3) {
    s->what = check_chance(&c->rng, 50) ? "no source" : "no target";
    *(s->what[3] == 's' ? &s->args.source : &s->args.target) = NULL;
    s->args.source_format = c->k_format;
    s->args.target_format = c->v_format;
    s->expected = ATTN_E_NULL;
  } else if (kind == 4) {
    s->what = "source and target in one memory";
    s->args.head_size = c->size;
    s->args.target = s->args.source;
    s->args.target_scale = check_format_static(c->k_format) ? s->args.source_scale : NULL;
    s->args.target_format = s->args.source_format;
    s->args.target_layout = s->args.source_layout;
    s->expected = check_separate(&q->from.view, c->k_format) ? ATTN_E_SHAPE : ATTN_E_OVERLAP;
  } else {
    s->what = "a scale for floats, or one of another shape";
    change(s, &q->map.dl);
    s->args.target_scale = &s->changed;
    s->changed.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_FLOAT32);
    s->expected = c->v_format <= ATTN_FORMAT_BFLOAT16 ? ATTN_E_NULL : ATTN_E_SHAPE;
  }
}

static void spoil_number(check_case *c, int64_t kind, spoilt *s) {
  s->expected = ATTN_E_RANGE;
  if (kind == 0) {
    s->what = "a format of latent rows";
    *(check_chance(&c->rng, 50) ? &s->args.source_format : &s->args.target_format) = ATTN_FORMAT_FP8_DS_MLA;
    s->expected = ATTN_E_UNSUPPORTED;
  } else if (kind == 1) {
    s->what = "a layout of 2";
    *(check_chance(&c->rng, 50) ? &s->args.source_layout : &s->args.target_layout) = (attn_layout)2;
  } else if (kind == 2) {
    s->what = "a negative head_size";
    s->args.head_size = -1;
  } else {
    int unsaid = check_format_per_row(c->k_format) && check_format_per_row(c->v_format);
    s->what = unsaid ? "no head_size, and no pool that tells it" : "rows of another size";
    s->args.head_size = unsaid ? 0 : c->size + 8;
    s->expected = unsaid ? ATTN_E_RANGE : ATTN_E_SHAPE;
  }
}

static int refuse(check_env *env, check_case *c, const requantising *q, attn_context *context) {
  for (int i = 0; i < CHECK_REFUSALS; i++) {
    attn_message message = {ATTN_OK, ""};
    spoilt s = {.args = q->args};
    int64_t kind = check_between(&c->rng, 0, 15);
    if (kind < 6 && q->num_pairs > 0) {
      spoil_entry(c, q, &s);
    } else if (kind < 12) {
      spoil_tensor(c, q, kind % 6, &s);
    } else {
      spoil_number(c, kind - 12, &s);
    }
    s.args.backend = env->backends[env->backend];
    attn_status status = attn_cache_requantise(context, &s.args, &message);
    if (q->map.snapshot != NULL) {
      memcpy(q->map.first, q->map.snapshot, q->map.segment_bytes);
    }
    if (!check_refused(env, s.what, status, s.expected, &message) || !all_kept(env, q)) {
      return 0;
    }
  }
  return 1;
}

int check_run_requantise(check_env *env, check_case *c, check_arena *arena) {
  requantising q;
  prepare(arena, c, &q);
  attn_context *context = check_context(env, check_number(&c->choice, CHECK_THREADS));
  check_rng rng = c->rng;
  for (env->backend = 0; context != NULL && env->backend < env->num_backends; env->backend++) {
    c->rng = rng;
    int passed = check_is(c, CHECK_EXPECT, CHECK_VALID) ? run(env, arena, c, &q, context) : refuse(env, c, &q, context);
    if (!passed) {
      return 0;
    }
  }
  return context != NULL;
}
