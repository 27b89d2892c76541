/* SPDX-License-Identifier: Apache-2.0 */
/* check_latent_lay.c: the tensors and the call of a case over latent rows. New rows that the call writes are poison
 * before it. */
#include <math.h>
#include <string.h>

#include "check_float.h"
#include "check_latent.h"
#include "check_lay.h"
#include "check_pool.h"

/* ---- queries and outputs ----------------------------------------------------------------------------------------- */

/* Elements [begin, begin + size) of each query. */
static void lay_query(check_lay_state *y, check_tensor *t, int64_t extent, int32_t begin, int32_t size) {
  const check_case *c = y->c;
  attn_dtype type = (attn_dtype)check_number(&c->choice, CHECK_IN_TYPE);
  check_lay_make(y, t, type, 3, (const int64_t[]){extent, c->q_heads, size});
  for (int64_t i = 0; i < c->tokens * c->q_heads; i++) {
    for (int32_t e = 0; e < size; e++) {
      check_store(check_at(t, i / c->q_heads, i % c->q_heads, e, 0), type, y->m->q[i * c->size + begin + e]);
    }
  }
}

/* A layer's out has two axes: of the three that the engine reads, heads lie side by side. */
static void lay_layer_out(check_lay_state *y, int64_t extent) {
  const check_case *c = y->c;
  check_latent *l = y->l->latent;
  int64_t shape[3] = {extent, c->q_heads, c->v_size};
  int64_t step = y->stride_class == CHECK_GAPPED_ELEMENTS ? 2 : 1;
  int64_t gap = y->stride_class == CHECK_COMPACT ? 0 : check_between(&y->c->rng, 0, 9);
  int64_t strides[3] = {step * c->q_heads * c->v_size + gap, step * c->v_size, step};
  check_lie lie = {strides, 0, y->before, 0};
  check_tensor_make(y->arena, &y->l->out, check_out_dtype(c), 3, shape, &lie, NULL);
  l->out = y->l->out.dl;
  l->out_shape[0] = extent;
  l->out_shape[1] = (int64_t)c->q_heads * c->v_size;
  l->out_strides[0] = strides[0];
  l->out_strides[1] = step;
  l->out.ndim = 2;
  l->out.shape = l->out_shape;
  l->out.strides = l->out_strides;
}

static void lay_queries(check_lay_state *y) {
  const check_case *c = y->c;
  check_laid *l = y->l;
  check_latent *t = l->latent;
  int32_t first = t->two_queries ? c->rank : c->size;
  lay_query(y, &l->q, c->tokens + check_lay_extra(y), 0, first);
  if (t->two_queries) {
    lay_query(y, &t->q_rope, c->tokens + check_lay_extra(y), first, c->rotary);
    t->args.q_rope = &t->q_rope.dl;
  }
  if (t->form == ATTN_MLA_LAYER) {
    lay_layer_out(y, c->tokens + check_lay_extra(y));
  } else {
    check_lay_make(y, &l->out, check_out_dtype(c), 3,
                   (const int64_t[]){c->tokens + check_lay_extra(y), c->q_heads, c->v_size});
    t->out = l->out.dl;
  }
  if (check_is(c, CHECK_LSE, 1)) {
    check_lay_make(y, &l->lse, ATTN_DTYPE_FLOAT32, 2, (const int64_t[]){c->tokens + check_lay_extra(y), c->q_heads});
    l->args.lse = &l->lse.dl;
  }
  if (check_groups(c) > 0) {
    check_lay_make(y, &l->out_scale, ATTN_DTYPE_FLOAT32, 3,
                   (const int64_t[]){c->tokens + check_lay_extra(y), c->q_heads, check_groups(c)});
    l->args.out_scale = &l->out_scale.dl;
  } else if (l->out.dtype == ATTN_DTYPE_FP8_E4M3) {
    check_lay_vector(y, &l->output_scale, 1, &y->m->output_scale);
    l->args.output_scale = &l->output_scale.dl;
  }
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

static void make_pool(check_lay_state *y, int pool_class) {
  check_case *c = y->c;
  check_laid *l = y->l;
  int64_t element = (int64_t)attn_dtype_bytes(c->k_type);
  int64_t shape[3] = {l->num_blocks, c->block_size, l->latent->row_bytes / element};
  int64_t strides[3];
  unsigned char *first = NULL;
  check_pool_strides(&c->rng, pool_class, 3, shape, (size_t)element, strides);
  if ((pool_class == CHECK_LAYERS || pool_class == CHECK_INTERLEAVED) && shape[0] > 0) {
    int64_t block = (strides[0] * element + 3) / 4 * 4; /* the blocks of other layers lie between */
    int64_t layers = check_between(&c->rng, 2, 3);
    int64_t before = block * check_between(&c->rng, 0, layers - 1);
    strides[0] = block * layers / element;
    size_t bytes = (size_t)before + check_extent(3, shape, strides, (size_t)element);
    first = check_guarded(y->arena, (bytes + 3) / 4 * 4, y->before) + before;
  }
  check_lie lie = {strides, 0, y->before, pool_class == CHECK_HUGE_BLOCKS};
  check_tensor_make(y->arena, &l->k_cache, c->k_type, 3, shape, &lie, first);
  check_fill_poison(&l->k_cache, y->poison);
}

static void lay_scales(check_lay_state *y) {
  check_laid *l = y->l;
  if (l->latent->separate) {
    check_lay_make(y, &l->k_scale, ATTN_DTYPE_FLOAT32, 2, (const int64_t[]){l->num_blocks, y->c->block_size});
    check_fill_poison(&l->k_scale, CHECK_POISON_NAN);
  } else if (l->latent->has_static) {
    check_lay_vector(y, &l->k_scale, 1, &l->latent->static_scale);
  } else {
    return;
  }
  l->latent->args.kv_scale = &l->k_scale.dl;
}

/* Byte b of the row at a place of the pool. */
static unsigned char *byte_at(const check_case *c, const check_tensor *pool, int64_t block, int64_t offset, int32_t b) {
  int32_t element = (int32_t)attn_dtype_bytes(c->k_type);
  return (unsigned char *)check_at(pool, block, offset, b / element, 0) + b % element;
}

static void put_row(check_laid *l, const check_case *c, int64_t key, int64_t block, int64_t offset) {
  const check_latent *t = l->latent;
  for (int32_t b = 0; b < t->row_bytes; b++) {
    *byte_at(c, &l->k_cache, block, offset, b) = t->bytes[key * t->row_bytes + b];
  }
  if (t->separate) {
    memcpy(check_at(&l->k_scale, block, offset, 0, 0), &t->scales[key], sizeof(float));
  }
}

/* First position that the call itself brings; kv_len where it brings none. */
static int32_t context_of(const check_latent *t, const check_seq *seq) {
  int32_t context = seq->kv_len > seq->q_len ? seq->kv_len - seq->q_len : 0;
  return t->new_rows == CHECK_ROWS_BEFORE ? seq->kv_len : context;
}

/* Blocks are needed by what is seen in the cache and by what is written. */
static void find_needed(check_lay_state *y) {
  const check_case *c = y->c;
  check_laid *l = y->l;
  l->needed = check_alloc(y->arena, (size_t)c->keys, 1);
  for (int32_t s = 0; s < c->num_seqs; s++) {
    for (int32_t k = 0; k < c->seqs[s].kv_len; k++) {
      int64_t key = c->seqs[s].k_start + k;
      int is_context = k < context_of(l->latent, &c->seqs[s]);
      l->needed[key] = is_context ? l->seen[key] : l->latent->new_rows == CHECK_ROWS_WRITTEN;
    }
  }
}

static void lay_cache(check_lay_state *y, int pool_class) {
  check_case *c = y->c;
  check_laid *l = y->l;
  int64_t width;
  find_needed(y);
  check_lay_blocks(y, 0, &width);
  make_pool(y, pool_class);
  lay_scales(y);
  check_lay_table(y, width);
  for (int32_t s = 0; s < c->num_seqs; s++) {
    for (int32_t k = 0; k < context_of(l->latent, &c->seqs[s]); k++) {
      int64_t block = l->block_of[s * l->columns + k / c->block_size];
      if (l->needed[c->seqs[s].k_start + k] && block >= 0) {
        put_row(l, c, c->seqs[s].k_start + k, block, k % c->block_size);
      }
    }
  }
}

/* Part of the new tokens' rows; a token before the first key has a row of zeros, which nobody sees. */
static void lay_new_part(check_lay_state *y, check_tensor *t, int64_t extent, int32_t begin, int32_t size) {
  const check_case *c = y->c;
  const check_latent *l = y->l->latent;
  check_lay_make(y, t, l->source, 2, (const int64_t[]){extent, size});
  for (int32_t s = 0; s < c->num_seqs; s++) {
    const check_seq *seq = &c->seqs[s];
    for (int32_t i = 0; i < seq->q_len; i++) {
      int64_t k = (int64_t)seq->kv_len - seq->q_len + i;
      for (int32_t e = 0; e < size; e++) {
        float value = k < 0 ? 0.0f : l->given[(seq->k_start + k) * (c->rank + c->rotary) + begin + e];
        check_store(check_at(t, seq->q_start + i, e, 0, 0), l->source, value);
      }
    }
  }
}

static void lay_slots(check_lay_state *y) {
  const check_case *c = y->c;
  check_latent *l = y->l->latent;
  int64_t count = l->new_rows == CHECK_ROWS_WRITTEN ? c->tokens : 0;
  check_lay_make(y, &l->slots, ATTN_DTYPE_INT64, 1, &count);
  for (int32_t s = 0; count > 0 && s < c->num_seqs; s++) {
    const check_seq *seq = &c->seqs[s];
    for (int32_t i = 0; i < seq->q_len; i++) {
      int64_t k = (int64_t)seq->kv_len - seq->q_len + i;
      int64_t block = k < 0 ? -1 : y->l->block_of[s * y->l->columns + k / c->block_size];
      int64_t slot = block < 0 ? -1 : block * c->block_size + k % c->block_size;
      memcpy(check_at(&l->slots, seq->q_start + i, 0, 0, 0), &slot, sizeof slot);
    }
  }
  l->args.slot_mapping = &l->slots.dl;
}

void check_lay_latent(check_lay_state *y, int pool_class) {
  check_latent *l = y->l->latent;
  l->args = (attn_mla_args)ATTN_MLA_ARGS_INIT;
  lay_queries(y);
  lay_cache(y, pool_class);
  if (l->form == ATTN_MLA_MQA) {
    return;
  }
  int64_t extent = y->c->tokens + check_lay_extra(y);
  lay_new_part(y, &l->kv_c, extent, 0, y->c->rank);
  lay_new_part(y, &l->k_pe, extent, y->c->rank, y->c->rotary);
  l->args.kv_c = &l->kv_c.dl;
  l->args.k_pe = &l->k_pe.dl;
  if (l->new_rows != CHECK_ROWS_GIVEN) {
    lay_slots(y);
  }
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

void check_latent_problem(const check_case *c, const check_latent *l, attn_problem *p) {
  p->kv_lora_rank = c->rank;
  p->qk_rope_head_dim = c->rotary;
  p->mla_form = l->form;
  p->k_format = c->k_format;
  p->rotary_dtype = l->rotary_type;
  p->separate_scales = l->separate ? ATTN_SEPARATE_BOTH : ATTN_SEPARATE_NONE;
  p->block_size = c->block_size;
  if (l->form != ATTN_MLA_MQA) {
    p->qk_nope_head_dim = c->nope;
    p->mla_v_head_dim = c->v_size;
    p->context_chunk = check_number(&c->choice, CHECK_CONTEXT_CHUNK);
  }
}

void check_latent_finish(check_latent *t, const check_laid *l) {
  t->args.unchecked = l->unchecked;
  t->args.q = &l->q.dl;
  t->args.kv_cache = &l->k_cache.dl;
  t->args.block_table = l->args.block_table;
  t->args.weights = t->weights;
  t->args.alibi_slopes = l->args.alibi_slopes;
  t->args.sinks = l->args.sinks;
  t->args.bias = l->args.bias;
  t->args.prefix_ranges = l->args.prefix_ranges;
  t->args.causal_per_seq = l->args.causal_per_seq;
  t->args.out = &t->out;
  t->args.lse = l->args.lse;
  t->args.output_scale = l->args.output_scale;
  t->args.out_scale = l->args.out_scale;
}

attn_status check_latent_call(const attn_plan *plan, const check_latent *l, const attn_workspace *workspace,
                              attn_message *message) {
  return l->form == ATTN_MLA_MQA   ? attn_mla_run_mqa(plan, &l->args, workspace, message)
         : l->form == ATTN_MLA_MHA ? attn_mla_run_mha(plan, &l->args, workspace, message)
                                   : attn_mla_layer_run(plan, &l->args, workspace, message);
}

/* One row that the call wrote. */
static int judge_row(check_env *env, const check_case *c, check_laid *l, int64_t key, int64_t block, int64_t offset) {
  const check_latent *t = l->latent;
  int floats = c->k_format <= ATTN_FORMAT_BFLOAT16;
  int32_t element = (int32_t)attn_dtype_bytes(c->k_type);
  for (int32_t b = 0; b < t->row_bytes; b++) {
    unsigned char *at = byte_at(c, &l->k_cache, block, offset, b);
    const uint8_t *want = t->bytes + key * t->row_bytes + b;
    int both_nan = floats && isnan(check_load(want - b % element, c->k_type)) &&
                   isnan(check_load(at - b % element, c->k_type)); /* NaN may be any */
    if (*at != *want && !both_nan) {
      return check_fail(env, "kv_cache: block %lld, offset %lld, byte %d of %d: got %02x, want %02x", (long long)block,
                        (long long)offset, (int)b, (int)t->row_bytes, (unsigned)*at, (unsigned)*want);
    }
  }
  for (int32_t b = 0; b < t->row_bytes; b++) {
    unsigned char *at = byte_at(c, &l->k_cache, block, offset, b);
    *at = *check_old_bytes(&l->k_cache, at);
  }
  if (t->separate) {
    void *at = check_at(&l->k_scale, block, offset, 0, 0);
    if (memcmp(at, &t->scales[key], sizeof(float)) != 0) {
      return check_fail(env, "kv_scale: block %lld, offset %lld: got %.9g, want %.9g", (long long)block,
                        (long long)offset, (double)check_load(at, ATTN_DTYPE_FLOAT32), (double)t->scales[key]);
    }
    memcpy(at, check_old_bytes(&l->k_scale, at), sizeof(float));
  }
  return 1;
}

int check_latent_written(check_env *env, const check_case *c, check_laid *l) {
  for (int32_t s = 0; l->latent->new_rows == CHECK_ROWS_WRITTEN && s < c->num_seqs; s++) {
    const check_seq *seq = &c->seqs[s];
    for (int32_t k = context_of(l->latent, seq); k < seq->kv_len; k++) {
      int64_t block = l->block_of[s * l->columns + k / c->block_size];
      if (!judge_row(env, c, l, seq->k_start + k, block, k % c->block_size)) {
        return 0;
      }
    }
  }
  return 1;
}

int check_latent_kept(check_env *env, const check_latent *l) {
  const struct {
    const char *name;
    const check_tensor *tensor;
  } inputs[] = {{"q_rope", &l->q_rope}, {"kv_c", &l->kv_c}, {"k_pe", &l->k_pe}, {"slot_mapping", &l->slots}};
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
    int64_t changed = check_changed(inputs[i].tensor);
    if (changed >= 0) {
      return check_fail(env, "%s: byte %lld of the input was written", inputs[i].name, (long long)changed);
    }
  }
  return 1;
}
