/* SPDX-License-Identifier: Apache-2.0 */
/* check_copy.c: attn_cache_copy and attn_cache_swap. Every element of a block named holds the bits of its partner's,
 * every other byte of both pools is kept: padding, other blocks, other layers of the block. */
#include <string.h>

#include "check_case.h"
#include "check_pool.h"

#define MAX_BLOCKS 10
#define LARGE_BLOCK 60000 /* elements; of such there are fewer */

typedef struct moving {
  check_tensor source, target, spare, map;
  int one_pool;
  int swaps;
  int64_t num_blocks;
  int64_t num_pairs;
  int64_t pair[MAX_BLOCKS][2];
  attn_cache_copy_args args;
} moving;

static const check_tensor *pool_of(const moving *m, int side) {
  return side == 0 || m->one_pool ? &m->source : &m->target;
}

static void shuffle(check_rng *rng, int64_t *order, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    int64_t j = check_between(rng, 0, i);
    order[i] = order[j];
    order[j] = i;
  }
}

/* In two pools a block is written once, and a swap takes its partner once too; in one pool no block is in two pairs,
   but a copy may read one often. Some pairs of one pool name a block and itself. */
static void draw_pairs(check_case *c, moving *m) {
  int64_t sources[MAX_BLOCKS];
  int64_t targets[MAX_BLOCKS];
  int64_t most = m->one_pool ? m->num_blocks / 2 : m->num_blocks;
  int32_t kind = check_number(&c->choice, CHECK_PAIRS);
  m->num_pairs = kind == CHECK_PAIRS_NONE  ? 0
                 : kind == CHECK_PAIRS_ONE ? 1
                 : kind == CHECK_PAIRS_FEW ? check_between(&c->rng, 1, most)
                                           : most;
  shuffle(&c->rng, targets, m->num_blocks);
  shuffle(&c->rng, sources, m->num_blocks);
  for (int64_t i = 0; i < m->num_pairs; i++) {
    int64_t *pair = m->pair[i];
    pair[1] = targets[i];
    if (m->one_pool) {
      int64_t reads = m->swaps ? i : check_between(&c->rng, 0, m->num_blocks - m->num_pairs - 1);
      pair[0] = check_chance(&c->rng, 15) ? pair[1] : targets[m->num_pairs + reads];
    } else {
      pair[0] = m->swaps ? sources[i] : sources[check_between(&c->rng, 0, m->num_blocks - 1)];
    }
  }
}

static void make_pools(check_arena *arena, check_case *c, moving *m) {
  int pool_class = check_number(&c->choice, CHECK_POOL);
  int64_t elements = (int64_t)c->block_size * c->kv_heads * c->size;
  m->num_blocks = check_between(&c->rng, 2, elements > LARGE_BLOCK ? 3 : MAX_BLOCKS);
  check_pool_make(arena, c, m->num_blocks, pool_class, &m->source, &m->target);
  if (!m->one_pool && check_chance(&c->rng, 30)) { /* strides of another kind on each side */
    check_pool_make(arena, c, m->num_blocks, check_chance(&c->rng, 50) ? CHECK_COMPACT : CHECK_PADDED_ROWS, &m->spare,
                    &m->target);
  }
  check_fill_canary(&m->source, 1);
  check_fill_canary(&m->target, 2);
  check_snapshot(arena, &m->source); /* after both: interleaved pools share bytes */
  check_snapshot(arena, &m->target);
}

static void prepare(check_arena *arena, check_case *c, moving *m) {
  memset(m, 0, sizeof *m);
  m->swaps = c->op == CHECK_SWAP;
  m->one_pool = check_is(c, CHECK_POOLS, CHECK_POOLS_ONE);
  make_pools(arena, c, m);
  draw_pairs(c, m);
  int64_t shape[2] = {m->num_pairs, 2};
  int64_t strides[4];
  check_lie lie = {strides, check_is(c, CHECK_STRIDE, CHECK_BYTE_OFFSET) ? 3 : 0, check_is(c, CHECK_GUARD, 1), 0};
  check_strides(&c->rng, check_number(&c->choice, CHECK_STRIDE), 2, shape, strides);
  check_tensor_make(arena, &m->map, ATTN_DTYPE_INT64, 2, shape, &lie, NULL);
  check_fill_poison(&m->map, CHECK_POISON_BIG);
  for (int64_t i = 0; i < m->num_pairs; i++) {
    memcpy(check_at(&m->map, i, 0, 0, 0), &m->pair[i][0], sizeof(int64_t));
    memcpy(check_at(&m->map, i, 1, 0, 0), &m->pair[i][1], sizeof(int64_t));
  }
  check_snapshot(arena, &m->map);
  m->args = (attn_cache_copy_args)ATTN_CACHE_COPY_INIT;
  m->args.layout = (attn_layout)check_number(&c->choice, CHECK_LAYOUT);
  m->args.source = &m->source.dl;
  m->args.target = m->one_pool ? &m->source.dl : &m->target.dl;
  m->args.block_map = &m->map.dl;
}

/* Block `to` of one side has the old bits of block `from` of the other; then its own old bits are put back, so that
   what is left has to be unchanged. */
static int judge_block(check_env *env, const check_case *c, const moving *m, int side, int64_t to, int64_t from) {
  const check_tensor *pool = pool_of(m, side);
  const check_tensor *other = pool_of(m, 1 - side);
  int64_t row = (int64_t)c->kv_heads * c->size;
  for (int64_t i = 0; i < c->block_size * row; i++) {
    int64_t offset = i / row;
    int64_t head = i % row / c->size;
    int64_t e = i % c->size;
    void *at = check_pool_at(c, pool, to, offset, head, e);
    const void *want = check_old_bytes(other, check_pool_at(c, other, from, offset, head, e));
    if (memcmp(at, want, pool->element) != 0) {
      return check_fail(env, "%s: block %lld, offset %lld, head %lld, element %lld is not that of block %lld",
                        side == 0 ? "source" : "target", (long long)to, (long long)offset, (long long)head,
                        (long long)e, (long long)from);
    }
    memcpy(at, check_old_bytes(pool, at), pool->element);
  }
  return 1;
}

static int all_kept(check_env *env, const moving *m) {
  const struct {
    const char *name;
    const check_tensor *tensor;
  } all[] = {{"source", &m->source}, {"target", &m->target}, {"block_map", &m->map}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    int64_t changed = check_changed(all[i].tensor);
    if (changed >= 0) {
      return check_fail(env, "%s: byte %lld, which no pair names, was written", all[i].name, (long long)changed);
    }
  }
  return 1;
}

static attn_status call(const check_env *env, const moving *m, attn_context *context, const attn_cache_copy_args *args,
                        attn_message *message) {
  attn_cache_copy_args mine = *args;
  mine.backend = env->backends[env->backend];
  return m->swaps ? attn_cache_swap(context, &mine, message) : attn_cache_copy(context, &mine, message);
}

static int run(check_env *env, const check_case *c, const moving *m, attn_context *context) {
  attn_message message = {ATTN_OK, ""};
  attn_status status = call(env, m, context, &m->args, &message);
  if (status != ATTN_OK) {
    return check_fail(env, "refused a valid call: %s: %s", attn_status_name(status), message.text);
  }
  for (int64_t i = 0; i < m->num_pairs; i++) {
    if (!judge_block(env, c, m, 1, m->pair[i][1], m->pair[i][0]) ||
        (m->swaps && !judge_block(env, c, m, 0, m->pair[i][0], m->pair[i][1]))) {
      return 0;
    }
  }
  return all_kept(env, m);
}

/* ---- refusals ---- */

typedef struct bad_entry {
  int64_t pair;
  int side;
  int64_t value;
} bad_entry;

/* A block of one pair named by another too, in a place where that is refused; 0: not drawn here. */
static int draw_twice(check_rng *rng, const moving *m, bad_entry *bad) {
  if (m->num_pairs < 2) {
    return 0;
  }
  bad_entry b = {check_between(rng, 0, m->num_pairs - 1), 1, 0};
  const int64_t *other = m->pair[(b.pair + check_between(rng, 1, m->num_pairs - 1)) % m->num_pairs];
  if (m->swaps || m->one_pool) {
    b.side = (int)check_between(rng, 0, 1);
  }
  b.value = other[m->one_pool && !m->swaps ? 1 : m->one_pool ? check_between(rng, 0, 1) : b.side];
  if (m->one_pool && (other[0] == other[1] || m->pair[b.pair][1 - b.side] == b.value)) {
    return 0; /* one of the two does nothing */
  }
  *bad = b;
  return 1;
}

/* One entry changed in place for the call. */
static int refuse_entry(check_env *env, const moving *m, attn_context *context, const bad_entry *bad,
                        const char *what) {
  attn_message message = {ATTN_OK, ""};
  void *entry = check_at(&m->map, bad->pair, bad->side, 0, 0);
  memcpy(entry, &bad->value, sizeof bad->value);
  attn_status status = call(env, m, context, &m->args, &message);
  memcpy(entry, &m->pair[bad->pair][bad->side], sizeof bad->value);
  return check_refused(env, what, status, ATTN_E_INDEX, &message) && all_kept(env, m);
}

static int refuse_tensor(check_env *env, check_case *c, const moving *m, attn_context *context, int64_t kind) {
  attn_message message = {ATTN_OK, ""};
  attn_cache_copy_args args = m->args;
  attn_status expected = ATTN_E_SHAPE;
  const char *what = "a map of three columns";
  DLTensor changed = m->map.dl;
  int64_t shape[4] = {m->num_pairs, 3, 0, 0};
  changed.shape = shape;
  args.block_map = &changed;
  if (kind == 1) {
    what = "a map of int32";
    shape[1] = 2;
    changed.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT32);
    expected = ATTN_E_DTYPE;
  } else if (kind == 2) {
    what = "no source";
    args = m->args;
    args.source = NULL;
    expected = ATTN_E_NULL;
  } else if (kind >= 3) {
    changed = m->source.dl;
    memcpy(shape, m->source.shape, sizeof shape);
    changed.shape = shape;
    args = m->args;
    args.target = &changed;
    if (kind == 3) {
      what = "a target with a head more, or fewer blocks";
      shape[check_between(&c->rng, 0, 3)] += 1;
    } else if (kind == 4) {
      what = "a target of int64";
      changed.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT64);
      expected = ATTN_E_DTYPE;
    } else {
      what = "a target a block behind the source, in its memory";
      changed.byte_offset += (uint64_t)m->source.strides[0] * m->source.element;
      expected = ATTN_E_OVERLAP;
    }
  }
  attn_status status = call(env, m, context, &args, &message);
  return check_refused(env, what, status, expected, &message) && all_kept(env, m);
}

static int refuse_once(check_env *env, check_case *c, const moving *m, attn_context *context) {
  int64_t kind = check_between(&c->rng, 0, 11);
  if (kind < 6 && m->num_pairs > 0) {
    int64_t outside[] = {m->num_blocks, -1, ((int64_t)1 << 32) + 1};
    bad_entry bad = {check_between(&c->rng, 0, m->num_pairs - 1), (int)check_between(&c->rng, 0, 1),
                     outside[check_between(&c->rng, 0, 2)]};
    int is_twice = kind >= 3 && draw_twice(&c->rng, m, &bad);
    return refuse_entry(env, m, context, &bad, is_twice ? "a block named twice" : "a block outside the pool");
  }
  return refuse_tensor(env, c, m, context, kind % 6);
}

static int refuse(check_env *env, check_case *c, const moving *m, attn_context *context) {
  for (int i = 0; i < CHECK_REFUSALS; i++) {
    if (!refuse_once(env, c, m, context)) {
      return 0;
    }
  }
  return 1;
}

int check_run_copy(check_env *env, check_case *c, check_arena *arena) {
  moving m;
  prepare(arena, c, &m);
  attn_context *context = check_context(env, check_number(&c->choice, CHECK_THREADS));
  check_rng rng = c->rng;
  for (env->backend = 0; context != NULL && env->backend < env->num_backends; env->backend++) {
    c->rng = rng;
    int passed = check_is(c, CHECK_EXPECT, CHECK_VALID) ? run(env, c, &m, context) : refuse(env, c, &m, context);
    if (!passed) {
      return 0;
    }
  }
  return context != NULL;
}
