/* SPDX-License-Identifier: Apache-2.0 */
/* check_gather.c: attn_cache_gather. Every gathered row is the exact conversion of the stored one; what cannot be
 * reached in unchecked mode comes back 0; nothing else is written or read. */
#include <math.h>
#include <string.h>

#include "check_case.h"
#include "check_float.h"
#include "check_pool.h"

typedef struct gathering {
  check_tensor k_cache, v_cache, k_scale, v_scale, table, lens, starts, k, v;
  check_rows k_rows, v_rows; /* [rows gathered] */
  float *k_values;           /* [rows gathered, heads, size] as a reader gets them */
  float *v_values;
  int64_t *block_of; /* [seqs, columns], -1: garbage */
  int64_t columns;
  int64_t width;
  int64_t num_blocks;
  attn_cache_gather_args args;
} gathering;

static int needed(const check_case *c, int32_t seq, int64_t column) {
  const check_seq *s = &c->seqs[seq];
  return column * c->block_size < s->kv_len && (column + 1) * c->block_size > s->start && s->start < s->kv_len;
}

/* Columns that a sequence needs get scattered blocks; in unchecked mode some of them are missing or name nothing. */
static void draw_blocks(check_arena *arena, check_case *c, gathering *g) {
  int odd = check_is(c, CHECK_CHECKED, 1) && check_is(c, CHECK_EXPECT, CHECK_VALID) && check_chance(&c->rng, 70);
  for (int32_t s = 0; s < c->num_seqs; s++) {
    int64_t columns = ((int64_t)c->seqs[s].kv_len + c->block_size - 1) / c->block_size;
    g->columns = columns > g->columns ? columns : g->columns;
  }
  g->width = g->columns + (check_is(c, CHECK_TABLE, 1) ? check_between(&c->rng, 1, 3) : 0);
  if (odd && g->columns > 1 && check_chance(&c->rng, 40)) {
    g->width = check_between(&c->rng, 1, g->columns - 1);
  }
  int64_t cells = c->num_seqs * g->columns;
  g->block_of = check_alloc(arena, (size_t)cells, sizeof *g->block_of);
  g->num_blocks = cells + check_between(&c->rng, 1, 4);
  int64_t *order = check_alloc(arena, (size_t)g->num_blocks, sizeof *order);
  for (int64_t i = 0; i < g->num_blocks; i++) {
    int64_t j = check_between(&c->rng, 0, i);
    order[i] = order[j];
    order[j] = i;
  }
  for (int64_t i = 0; i < cells; i++) {
    int64_t column = i % g->columns;
    int usable =
        needed(c, (int32_t)(i / g->columns), column) && column < g->width && !(odd && check_chance(&c->rng, 15));
    g->block_of[i] = usable ? order[i] : -1;
  }
}

/* Rows of values of every magnitude, stored where they will be gathered from; returns the scales that lie apart. */
static const DLTensor *fill_pool(check_arena *arena, check_case *c, const gathering *g, const check_tensor *pool,
                                 attn_format format, int32_t size, check_rows *rows, float **values,
                                 check_tensor *scales) {
  int64_t count = c->tokens * c->kv_heads * size;
  float *x = check_alloc(arena, (size_t)count, sizeof *x);
  for (int64_t i = 0; i < count; i++) {
    x[i] = ldexpf(check_normal(&c->rng), (int)check_between(&c->rng, -20, 17));
  }
  check_statics statics = check_is(c, CHECK_SCALES, CHECK_SCALES_APART) ? CHECK_STATICS_HEADS
                          : check_chance(&c->rng, 60)                   ? CHECK_STATICS_ONE
                                                                        : CHECK_STATICS_NONE;
  check_rows_make(arena, &c->rng, rows, format, statics, c->tokens, c->kv_heads, size, x);
  if (rows->codes != NULL && check_chance(&c->rng, 40)) {
    check_rows_random(&c->rng, rows, x);
  }
  *values = x;
  int apart = check_separate(c, format);
  if (apart) {
    check_pool_scales(arena, c, g->num_blocks, check_number(&c->choice, CHECK_STRIDE), scales);
  } else {
    apart = check_static_scales(arena, c, rows, scales);
  }
  for (int32_t s = 0; s < c->num_seqs; s++) {
    for (int64_t p = c->seqs[s].start; p < c->seqs[s].kv_len; p++) {
      int64_t block = g->block_of[s * g->columns + p / c->block_size];
      int64_t first = (c->seqs[s].q_start + p - c->seqs[s].start) * c->kv_heads;
      for (int64_t h = 0; block >= 0 && h < c->kv_heads; h++) {
        if (rows->codes != NULL) {
          check_pool_put(c, pool, scales, rows, first + h, block, p % c->block_size, h, 0);
          continue;
        }
        for (int64_t e = 0; e < size; e++) {
          check_store(check_pool_at(c, pool, block, p % c->block_size, h, e), pool->dtype, x[(first + h) * size + e]);
        }
      }
    }
  }
  return apart ? &scales->dl : NULL;
}

static void make_list(check_arena *arena, const check_case *c, check_tensor *t, int64_t count) {
  int64_t stride = check_is(c, CHECK_STRIDE, CHECK_GAPPED_ELEMENTS) ? 3 : 1;
  check_lie lie = {&stride, 0, check_is(c, CHECK_GUARD, 1), 0};
  check_tensor_make(arena, t, ATTN_DTYPE_INT32, 1, &count, &lie, NULL);
  check_fill_poison(t, CHECK_POISON_BIG);
}

static void make_table(check_arena *arena, check_case *c, gathering *g) {
  int64_t shape[2] = {c->num_seqs, g->width};
  int64_t strides[2] = {g->width + (check_is(c, CHECK_STRIDE, CHECK_COMPACT) ? 0 : 3), 1};
  check_lie lie = {strides, 0, check_is(c, CHECK_GUARD, 1), 0};
  check_tensor_make(arena, &g->table, ATTN_DTYPE_INT32, 2, shape, &lie, NULL);
  check_fill_poison(&g->table, CHECK_POISON_BIG);
  for (int64_t i = 0; i < c->num_seqs * g->width; i++) {
    int64_t s = i / g->width;
    int64_t b = i % g->width;
    int64_t block = b < g->columns ? g->block_of[s * g->columns + b] : -1;
    int32_t bad[] = {-1, (int32_t)g->num_blocks, INT32_MAX, INT32_MIN};
    int32_t id = block >= 0 ? (int32_t)block : bad[check_between(&c->rng, 0, 3)];
    memcpy(check_at(&g->table, s, b, 0, 0), &id, sizeof id);
  }
  check_snapshot(arena, &g->table);
}

static void make_out(check_arena *arena, check_case *c, check_tensor *t, attn_dtype dtype, int64_t size) {
  int64_t shape[3] = {c->tokens, c->kv_heads, size};
  int64_t strides[4];
  int stride_class = check_number(&c->choice, CHECK_STRIDE);
  check_lie lie = {strides, stride_class == CHECK_BYTE_OFFSET ? 5 : 0, check_is(c, CHECK_GUARD, 1), 0};
  check_strides(&c->rng, stride_class, 3, shape, strides);
  check_tensor_make(arena, t, dtype, 3, shape, &lie, NULL);
}

static void prepare(check_arena *arena, check_case *c, gathering *g) {
  memset(g, 0, sizeof *g);
  draw_blocks(arena, c, g);
  check_pool_make(arena, c, g->num_blocks, check_number(&c->choice, CHECK_POOL), &g->k_cache, &g->v_cache);
  check_fill_poison(&g->k_cache, CHECK_POISON_NAN);
  check_fill_poison(&g->v_cache, CHECK_POISON_NAN);
  const DLTensor *k_scale =
      fill_pool(arena, c, g, &g->k_cache, c->k_format, c->size, &g->k_rows, &g->k_values, &g->k_scale);
  const DLTensor *v_scale =
      fill_pool(arena, c, g, &g->v_cache, c->v_format, c->v_size, &g->v_rows, &g->v_values, &g->v_scale);
  check_snapshot(arena, &g->k_scale);
  check_snapshot(arena, &g->v_scale);
  check_snapshot(arena, &g->k_cache);
  check_snapshot(arena, &g->v_cache);
  make_table(arena, c, g);
  make_list(arena, c, &g->lens, c->num_seqs);
  make_list(arena, c, &g->starts, c->num_seqs);
  for (int32_t s = 0; s < c->num_seqs; s++) {
    memcpy(check_at(&g->lens, s, 0, 0, 0), &c->seqs[s].kv_len, sizeof(int32_t));
    memcpy(check_at(&g->starts, s, 0, 0, 0), &c->seqs[s].start, sizeof(int32_t));
  }
  check_snapshot(arena, &g->lens);
  check_snapshot(arena, &g->starts);
  attn_dtype type = (attn_dtype)check_number(&c->choice, CHECK_OUT_TYPE);
  make_out(arena, c, &g->k, type, c->size);
  make_out(arena, c, &g->v, check_chance(&c->rng, 70) ? type : (attn_dtype)check_between(&c->rng, 1, 3), c->v_size);
  int with_k = !check_is(c, CHECK_GATHERED, CHECK_GATHER_V);
  int with_v = !check_is(c, CHECK_GATHERED, CHECK_GATHER_K);
  g->args = (attn_cache_gather_args)ATTN_CACHE_GATHER_INIT;
  g->args.layout = (attn_layout)check_number(&c->choice, CHECK_LAYOUT);
  g->args.unchecked = check_is(c, CHECK_CHECKED, 1);
  g->args.k_format = c->k_type != ATTN_DTYPE_UINT8 && check_chance(&c->rng, 50) ? ATTN_FORMAT_AUTO : c->k_format;
  g->args.v_format = c->v_type != ATTN_DTYPE_UINT8 && check_chance(&c->rng, 50) ? ATTN_FORMAT_AUTO : c->v_format;
  g->args.k_scale = with_k ? k_scale : NULL;
  g->args.v_scale = with_v ? v_scale : NULL;
  g->args.k_cache = with_k ? &g->k_cache.dl : NULL;
  g->args.v_cache = with_v ? &g->v_cache.dl : NULL;
  g->args.k = with_k ? &g->k.dl : NULL;
  g->args.v = with_v ? &g->v.dl : NULL;
  g->args.block_table = &g->table.dl;
  g->args.seq_lens = &g->lens.dl;
  g->args.seq_starts = check_is(c, CHECK_STARTS, 1) ? &g->starts.dl : NULL;
}

/* The exact conversion of what the row holds; of a rotated row within 2^-20 of its largest value, plus that rounding.
   */
static int right(const check_tensor *out, const check_rows *rows, const void *at, float value, float largest) {
  unsigned char want[4];
  check_store(want, out->dtype, value);
  if (rows->format != ATTN_FORMAT_INT4_PER_TOKEN_HEAD || isnan(value)) {
    return isnan(value) ? isnan(check_load(at, out->dtype)) : memcmp(at, want, out->element) == 0;
  }
  float got = check_load(at, out->dtype);
  double rounding = out->dtype == ATTN_DTYPE_FLOAT32 ? 0x1p-24 : out->dtype == ATTN_DTYPE_FLOAT16 ? 0x1p-11 : 0x1p-8;
  double bound = 0x1p-20 * (double)largest;
  bound += rounding * (fabs((double)value) + bound) + (out->dtype == ATTN_DTYPE_FLOAT16 ? 0x1p-25 : 0x1p-140);
  return isinf(check_load(want, out->dtype)) ? isinf(got) || fabs((double)got) > 65000.0
                                             : fabs((double)got - (double)value) <= bound;
}

static int judge_row(check_env *env, const check_case *c, const char *name, const check_tensor *out,
                     const check_rows *rows, int64_t row, const float *values) {
  for (int64_t h = 0; h < c->kv_heads; h++) {
    float largest = 0.0f;
    for (int64_t e = 0; values != NULL && e < rows->size; e++) {
      largest = fmaxf(largest, fabsf(values[h * rows->size + e]));
    }
    for (int64_t e = 0; e < rows->size; e++) {
      void *at = check_at(out, row, h, e, 0);
      float value = values != NULL ? values[h * rows->size + e] : 0.0f;
      if (!right(out, rows, at, value, largest)) {
        return check_fail(env, "%s: row %lld, head %lld, element %lld: got %.9g, want %.9g", name, (long long)row,
                          (long long)h, (long long)e, (double)check_load(at, out->dtype), (double)value);
      }
      check_canary_restore(out, at, 3);
    }
  }
  return 1;
}

static int judge_rows(check_env *env, const check_case *c, const gathering *g, int is_v, int written) {
  const char *name = is_v ? "v" : "k";
  const check_tensor *out = is_v ? &g->v : &g->k;
  const check_rows *rows = is_v ? &g->v_rows : &g->k_rows;
  const float *values = is_v ? g->v_values : g->k_values;
  for (int32_t s = 0; s < c->num_seqs; s++) {
    for (int64_t p = c->seqs[s].start; written && p < c->seqs[s].kv_len; p++) {
      int64_t row = c->seqs[s].q_start + p - c->seqs[s].start;
      int64_t block = g->block_of[s * g->columns + p / c->block_size];
      if (!judge_row(env, c, name, out, rows, row, block >= 0 ? values + row * c->kv_heads * rows->size : NULL)) {
        return 0;
      }
    }
  }
  int64_t broken = check_canary_broken(out, 3);
  return broken < 0 || check_fail(env, "%s: byte %lld, which no row owns, was written", name, (long long)broken);
}

static int inputs_kept(check_env *env, const gathering *g) {
  if (check_changed(&g->k_cache) >= 0 || check_changed(&g->v_cache) >= 0 || check_changed(&g->table) >= 0 ||
      check_changed(&g->lens) >= 0 || check_changed(&g->k_scale) >= 0 || check_changed(&g->v_scale) >= 0 ||
      check_changed(&g->starts) >= 0) {
    return check_fail(env, "an input was written");
  }
  return 1;
}

static int call(check_env *env, check_case *c, gathering *g, attn_context *context, const attn_cache_gather_args *args,
                const char *refusal, attn_status expected) {
  attn_message message = {ATTN_OK, ""};
  attn_cache_gather_args mine = *args;
  mine.backend = env->backends[env->backend];
  check_fill_canary(&g->k, 3);
  check_fill_canary(&g->v, 3);
  attn_status status = attn_cache_gather(context, &mine, &message);
  if (refusal == NULL && status != ATTN_OK) {
    return check_fail(env, "attn_cache_gather refused a valid call: %s: %s", attn_status_name(status), message.text);
  }
  if (refusal != NULL && !check_refused(env, refusal, status, expected, &message)) {
    return 0;
  }
  int ok = refusal == NULL;
  return judge_rows(env, c, g, 0, ok && args->k != NULL) && judge_rows(env, c, g, 1, ok && args->v != NULL) &&
         (!ok || inputs_kept(env, g));
}

/* Change one entry of a list for the call, and put it back. */
static int refuse_entry(check_env *env, check_case *c, gathering *g, attn_context *context, const check_tensor *list,
                        void *entry, int32_t value, const char *what) {
  attn_cache_gather_args args = g->args;
  int32_t old;
  args.unchecked = 0;
  memcpy(&old, entry, sizeof old);
  memcpy(entry, &value, sizeof value);
  int passed = call(env, c, g, context, &args, what, ATTN_E_INDEX);
  memcpy(entry, &old, sizeof old);
  return passed && check_changed(list) < 0;
}

static int refuse_once(check_env *env, check_case *c, gathering *g, attn_context *context) {
  attn_cache_gather_args args = g->args;
  DLTensor changed;
  int64_t shape[4];
  int32_t s = (int32_t)check_between(&c->rng, 0, c->num_seqs - 1);
  int64_t kind = check_between(&c->rng, 0, 5);
  if (kind == 0 && c->seqs[s].start < c->seqs[s].kv_len) {
    int64_t column = check_between(&c->rng, c->seqs[s].start, c->seqs[s].kv_len - 1) / c->block_size;
    return refuse_entry(env, c, g, context, &g->table, check_at(&g->table, s, column, 0, 0),
                        check_chance(&c->rng, 50) ? -1 : (int32_t)g->num_blocks, "a block id outside the pool");
  }
  if (kind == 1) {
    return refuse_entry(env, c, g, context, &g->lens, check_at(&g->lens, s, 0, 0, 0), -1, "a negative seq_len");
  }
  if (kind == 2 && g->args.seq_starts != NULL) {
    int32_t value = check_chance(&c->rng, 50) ? -1 : c->seqs[s].kv_len + 1;
    return refuse_entry(env, c, g, context, &g->starts, check_at(&g->starts, s, 0, 0, 0), value, "a bad seq_start");
  }
  if (kind == 3 && c->tokens > 0) {
    const check_tensor *out = args.k != NULL ? &g->k : &g->v;
    changed = out->dl;
    memcpy(shape, changed.shape, 3 * sizeof *shape);
    shape[0] -= 1;
    changed.shape = shape;
    *(args.k != NULL ? &args.k : &args.v) = &changed;
    return call(env, c, g, context, &args, "a row too few", ATTN_E_SHAPE);
  }
  if (kind == 4) {
    args.block_table = NULL;
    return call(env, c, g, context, &args, "no block_table", ATTN_E_NULL);
  }
  args.k_cache = NULL;
  args.v_cache = NULL;
  args.k = NULL;
  args.v = NULL;
  return call(env, c, g, context, &args, "no pool", ATTN_E_NULL);
}

static int refuse(check_env *env, check_case *c, gathering *g, attn_context *context) {
  for (int i = 0; i < CHECK_REFUSALS; i++) {
    if (!refuse_once(env, c, g, context)) {
      return 0;
    }
  }
  return 1;
}

int check_run_gather(check_env *env, check_case *c, check_arena *arena) {
  gathering g;
  prepare(arena, c, &g);
  attn_context *context = check_context(env, check_number(&c->choice, CHECK_THREADS));
  check_rng rng = c->rng;
  for (env->backend = 0; context != NULL && env->backend < env->num_backends; env->backend++) {
    c->rng = rng;
    int passed = check_is(c, CHECK_EXPECT, CHECK_VALID) ? call(env, c, &g, context, &g.args, NULL, ATTN_OK)
                                                        : refuse(env, c, &g, context);
    if (!passed) {
      return 0;
    }
  }
  return context != NULL;
}
