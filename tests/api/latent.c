/* SPDX-License-Identifier: Apache-2.0 */
/* latent.c: data, pools and runs of latent.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "latent_sizes.h"

static void *room(size_t bytes) {
  void *memory = malloc(bytes + 64);
  assert_non_null(memory);
  memset(memory, 0xFF, bytes + 64);
  return memory;
}

void latent_init(latent *s, attn_mla_form form, int32_t heads, int32_t rank, int32_t rotary, int32_t nope, int32_t v) {
  memset(s, 0, sizeof *s);
  s->problem = (attn_problem)ATTN_PROBLEM_INIT;
  s->options = (attn_plan_options)ATTN_PLAN_OPTIONS_INIT;
  s->problem.num_q_heads = heads;
  s->problem.kv_lora_rank = rank;
  s->problem.qk_rope_head_dim = rotary;
  s->problem.mla_form = form;
  s->problem.block_size = 7;
  s->problem.wants_lse = form != ATTN_MLA_LAYER;
  if (form != ATTN_MLA_MQA) {
    s->problem.qk_nope_head_dim = nope;
    s->problem.mla_v_head_dim = v;
  }
  s->problem.scale = attn_mla_softmax_scale(nope + rotary, 1.0, 0.0);
  s->source = ATTN_DTYPE_FLOAT32;
  s->threads = 1;
  s->random = 11;
}

void latent_init_format(latent *s, attn_mla_form form, int32_t heads, attn_format format, int32_t nope, int32_t v) {
  int tiled = format == ATTN_FORMAT_FP8_DS_MLA;
  latent_init(s, form, heads, tiled ? 512 : 24, tiled ? 64 : 6, nope, v);
}

void latent_seqs(latent *s, int32_t count, const int32_t *q_len, const int32_t *kv_len) {
  s->num_seqs = count;
  for (int32_t i = 0; i < count; i++) {
    s->q_len[i] = q_len[i];
    s->kv_len[i] = kv_len[i];
    s->starts[i + 1] = s->starts[i] + q_len[i];
    s->first_key[i + 1] = s->first_key[i] + kv_len[i];
    s->max_kv = kv_len[i] > s->max_kv ? kv_len[i] : s->max_kv;
  }
  s->tokens = s->starts[count];
  s->keys = s->first_key[count];
}

/* ---- Data -------------------------------------------------------------------------------------------------------- */

static float *draw(latent *s, int64_t count, double deviation, attn_dtype dtype) {
  float *values = room((size_t)count * sizeof *values);
  for (int64_t i = 0; i < count; i++) {
    values[i] = rounded(dtype, (float)(deviation * (double)random_normal(&s->random)));
  }
  return values;
}

/* q and rows as the sequences' names, positions and heads say, whatever stands beside them. */
static void draw_by_name(latent *s) {
  const attn_problem *p = &s->problem;
  int32_t size = qk_of(s);
  for (int32_t i = 0; i < s->num_seqs; i++) {
    for (int32_t k = 0; k < s->kv_len[i]; k++) {
      uint32_t seed = (uint32_t)(s->names[i] * 100003 + k);
      for (int32_t e = 0; e < row_of(s); e++) {
        s->rows[(int64_t)(s->first_key[i] + k) * row_of(s) + e] = rounded(s->source, random_normal(&seed));
      }
    }
    for (int32_t t = 0; t < s->q_len[i] * p->num_q_heads; t++) {
      int32_t position = s->kv_len[i] - s->q_len[i] + t / p->num_q_heads;
      uint32_t seed = (uint32_t)(s->names[i] * 1000003 + position * 131 + t % p->num_q_heads + s->first_name_head);
      for (int32_t e = 0; e < size; e++) {
        int64_t at = ((int64_t)s->starts[i] * p->num_q_heads + t) * size + e;
        s->q[at] = rounded(p->q_dtype, random_normal(&seed));
      }
    }
  }
}

static void draw_options(latent *s) {
  const attn_problem *p = &s->problem;
  int32_t heads = p->num_q_heads;
  if (p->alibi != ATTN_ALIBI_NONE) {
    s->slopes = draw(s, heads, 0.2, ATTN_DTYPE_FLOAT32);
  }
  if (p->has_sinks) {
    s->sinks = draw(s, heads, 1.0, ATTN_DTYPE_FLOAT32);
  }
  if (p->has_bias) {
    int64_t count = (int64_t)s->tokens * heads * s->max_kv;
    s->bias = draw(s, count, 0.5, ATTN_DTYPE_FLOAT32);
    for (int64_t i = 0; i < count; i += 5) {
      s->bias[i] = -INFINITY;
    }
  }
  if (p->has_prefix_ranges) {
    s->ranges = room((size_t)s->num_seqs * 2 * sizeof *s->ranges);
    for (int32_t i = 0; i < s->num_seqs; i++) {
      s->ranges[2 * i] = s->kv_len[i] / 3;
      s->ranges[2 * i + 1] = s->kv_len[i] - 1 > s->kv_len[i] / 3 ? s->kv_len[i] - 1 : s->kv_len[i] / 3;
    }
  }
  if (p->has_causal_per_seq) {
    s->causal = room((size_t)s->num_seqs * sizeof *s->causal);
    for (int32_t i = 0; i < s->num_seqs; i++) {
      s->causal[i] = i % 2;
    }
  }
}

static void make_pool(latent *s, attn_format format, int separate) {
  attn_cache_desc desc = ATTN_CACHE_DESC_INIT;
  attn_problem *p = &s->problem;
  p->k_format = format;
  p->separate_scales = separate ? ATTN_SEPARATE_BOTH : ATTN_SEPARATE_NONE;
  attn_dtype rotary = separate || p->mla_form == ATTN_MLA_MHA ? ATTN_DTYPE_FLOAT16 : ATTN_DTYPE_BFLOAT16;
  p->rotary_dtype = format >= ATTN_FORMAT_INT8_PER_TOKEN_HEAD ? rotary : ATTN_DTYPE_DEFAULT;
  s->width = s->max_kv / p->block_size + 2;
  s->blocks = s->num_seqs * s->width + 3;
  desc.k_format = format;
  desc.num_blocks = s->blocks;
  desc.block_size = p->block_size;
  desc.kv_lora_rank = rank_of(s);
  desc.qk_rope_head_dim = p->qk_rope_head_dim;
  desc.rotary_dtype = p->rotary_dtype;
  desc.separate_scales = p->separate_scales;
  s->info = (attn_cache_info)ATTN_CACHE_INFO_INIT;
  EXPECT_OK(attn_cache_describe(&desc, &s->info, &why));
  s->pool = room((size_t)s->info.k.bytes);
  s->scales = room((size_t)s->blocks * (size_t)p->block_size * sizeof *s->scales);
  s->static_scale = s->static_scale > 0 ? s->static_scale : 0.03f;
  s->table = room((size_t)s->num_seqs * (size_t)s->width * sizeof *s->table);
  int32_t step = s->blocks % 5 != 0 ? 5 : s->blocks % 7 != 0 ? 7 : 1;
  step = s->table_step > 0 ? s->table_step : step;
  for (int32_t i = 0; i < s->num_seqs; i++) { /* columns beyond the keys hold nonsense */
    for (int32_t c = 0; c < s->width; c++) {
      int used = c < (s->kv_len[i] + p->block_size - 1) / p->block_size;
      s->table[i * s->width + c] = used ? (i * s->width + c) * step % s->blocks : 1 << 30;
    }
  }
}

static int64_t slot_of(const latent *s, int32_t seq, int32_t k) {
  int32_t size = s->problem.block_size;
  return (int64_t)s->table[seq * s->width + k / size] * size + k % size;
}

tensor *latent_scale(const latent *s, tensor *t) {
  if (s->problem.separate_scales) {
    tensor_over(t, s->scales, ATTN_DTYPE_FLOAT32, 2, s->info.k_scale.shape);
    return t;
  }
  int64_t one = 1;
  tensor_over(t, (void *)(uintptr_t)&s->static_scale, ATTN_DTYPE_FLOAT32, 1, &one);
  return s->problem.k_format == ATTN_FORMAT_FP8_E4M3 ? t : NULL;
}

/* Rows [first, last) of each sequence, counted from the end when negative, by the specification. */
static void store_rows(latent *s, attn_context *context, int new_ones) {
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  int32_t row = row_of(s);
  int64_t *slots = room((size_t)(s->keys + 1) * sizeof *slots);
  float *kv_c = room((size_t)(s->keys + 1) * (size_t)row * sizeof *kv_c);
  float *k_pe = room((size_t)(s->keys + 1) * (size_t)row * sizeof *k_pe);
  int64_t n = 0;
  for (int32_t i = 0; i < s->num_seqs; i++) {
    for (int32_t k = 0; k < s->kv_len[i] - (new_ones ? 0 : s->q_len[i]); k++, n++) {
      const float *from = s->rows + (int64_t)(s->first_key[i] + k) * row;
      slots[n] = slot_of(s, i, k);
      memcpy(kv_c + n * rank_of(s), from, (size_t)rank_of(s) * sizeof *from);
      memcpy(k_pe + n * s->problem.qk_rope_head_dim, from + rank_of(s),
             (size_t)s->problem.qk_rope_head_dim * sizeof *from);
    }
  }
  tensor latent_part, rotary, pool, list, scale;
  int64_t shape[2] = {n, rank_of(s)};
  tensor_over(&latent_part, kv_c, ATTN_DTYPE_FLOAT32, 2, shape);
  shape[1] = s->problem.qk_rope_head_dim;
  tensor_over(&rotary, k_pe, ATTN_DTYPE_FLOAT32, 2, shape);
  tensor_over(&pool, s->pool, s->info.k.dtype, 3, s->info.k.shape);
  tensor_over(&list, slots, ATTN_DTYPE_INT64, 1, &n);
  tensor *given = latent_scale(s, &scale);
  args.backend = "REFERENCE";
  args.k_format = s->problem.k_format;
  args.rotary_dtype = s->problem.rotary_dtype;
  args.kv_c = &latent_part.t;
  args.k_pe = &rotary.t;
  args.kv_cache = &pool.t;
  args.kv_scale = given != NULL ? &given->t : NULL;
  args.slot_mapping = &list.t;
  EXPECT_OK(attn_cache_write(context, &args, &why));
  free(slots);
  free(kv_c);
  free(k_pe);
}

/* What the cache holds of every key, as the specification reads it; the pool is put back afterwards. */
static void note_seen(latent *s, attn_context *context) {
  attn_cache_gather_args args = ATTN_CACHE_GATHER_INIT;
  tensor pool, table, lens, kv, scale;
  int64_t shape[2] = {s->num_seqs, s->width}, count = s->num_seqs, out[2] = {s->keys, row_of(s)};
  size_t scale_bytes = (size_t)s->blocks * (size_t)s->problem.block_size * sizeof *s->scales;
  unsigned char *kept = room((size_t)s->info.k.bytes), *kept_scales = room(scale_bytes);
  memcpy(kept, s->pool, (size_t)s->info.k.bytes);
  memcpy(kept_scales, s->scales, scale_bytes);
  store_rows(s, context, 1);
  tensor_over(&pool, s->pool, s->info.k.dtype, 3, s->info.k.shape);
  tensor_over(&table, s->table, ATTN_DTYPE_INT32, 2, shape);
  tensor_over(&lens, s->kv_len, ATTN_DTYPE_INT32, 1, &count);
  tensor_over(&kv, s->seen, ATTN_DTYPE_FLOAT32, 2, out);
  tensor *given = latent_scale(s, &scale);
  args.backend = "REFERENCE";
  args.k_format = s->problem.k_format;
  args.rotary_dtype = s->problem.rotary_dtype;
  args.qk_rope_head_dim = s->problem.qk_rope_head_dim;
  args.kv_cache = &pool.t;
  args.kv_scale = given != NULL ? &given->t : NULL;
  args.block_table = &table.t;
  args.seq_lens = &lens.t;
  args.kv = &kv.t;
  EXPECT_OK(attn_cache_gather(context, &args, &why));
  memcpy(s->pool, kept, (size_t)s->info.k.bytes);
  memcpy(s->scales, kept_scales, scale_bytes);
  free(kept);
  free(kept_scales);
}

static void *as_type(const float *from, int64_t count, attn_dtype dtype) {
  void *memory = room((size_t)(count + 1) * attn_dtype_bytes(dtype));
  for (int64_t i = 0; i < count; i++) {
    store_element(memory, dtype, i, from[i]);
  }
  return memory;
}

/* q, and for two tensors its parts; kv_c and k_pe of the new tokens. */
static void make_inputs(latent *s) {
  int64_t pairs = (int64_t)s->tokens * s->problem.num_q_heads;
  int32_t first = s->two_queries ? rank_of(s) : qk_of(s), rest = qk_of(s) - first;
  float *part = room((size_t)(pairs + 1) * (size_t)qk_of(s) * sizeof *part);
  for (int64_t i = 0; i < pairs; i++) {
    memcpy(part + i * first, s->q + i * qk_of(s), (size_t)first * sizeof *part);
  }
  s->q_memory = as_type(part, pairs * first, s->problem.q_dtype);
  for (int64_t i = 0; i < pairs; i++) {
    memcpy(part + i * rest, s->q + i * qk_of(s) + first, (size_t)rest * sizeof *part);
  }
  s->rope_memory = as_type(part, pairs * rest, s->problem.q_dtype);
  free(part);
  float *latents = room((size_t)(s->tokens + 1) * (size_t)row_of(s) * sizeof *latents);
  float *rotary = room((size_t)(s->tokens + 1) * (size_t)row_of(s) * sizeof *rotary);
  for (int32_t i = 0; i < s->num_seqs; i++) {
    for (int32_t t = 0; t < s->q_len[i]; t++) {
      int32_t k = s->kv_len[i] - s->q_len[i] + t;
      int64_t token = s->starts[i] + t;
      for (int32_t e = 0; e < row_of(s); e++) {
        float value = k >= 0 ? s->rows[(int64_t)(s->first_key[i] + k) * row_of(s) + e] : 0.0f;
        *(e < rank_of(s) ? &latents[token * rank_of(s) + e]
                         : &rotary[token * s->problem.qk_rope_head_dim + e - rank_of(s)]) = value;
      }
    }
  }
  s->kv_c = as_type(latents, (int64_t)s->tokens * rank_of(s), s->source);
  s->k_pe = as_type(rotary, (int64_t)s->tokens * s->problem.qk_rope_head_dim, s->source);
  free(latents);
  free(rotary);
}

static void make_weights(latent *s, attn_context *context) {
  attn_mla_weights_args args = ATTN_MLA_WEIGHTS_ARGS_INIT;
  tensor matrix;
  const attn_problem *p = &s->problem;
  int64_t shape[2] = {(int64_t)p->num_q_heads * (p->qk_nope_head_dim + p->mla_v_head_dim), rank_of(s)};
  s->random = 77; /* a head's projection does not depend on what was drawn before */
  s->w = draw(s, shape[0] * shape[1], 1.0 / sqrt((double)rank_of(s)), ATTN_DTYPE_FLOAT32);
  tensor_over(&matrix, s->w, ATTN_DTYPE_FLOAT32, 2, shape);
  args.num_heads = p->num_q_heads;
  args.kv_lora_rank = rank_of(s);
  args.qk_nope_head_dim = p->qk_nope_head_dim;
  args.v_head_dim = p->mla_v_head_dim;
  args.w_kv_b = &matrix.t;
  EXPECT_OK(attn_mla_weights_create(context, &args, &s->weights, &why));
}

void latent_fill(latent *s, attn_format format, int separate) {
  attn_context *context = open_context(1);
  if (s->problem.q_dtype == ATTN_DTYPE_DEFAULT) {
    s->problem.q_dtype = ATTN_DTYPE_FLOAT32;
  }
  s->q = draw(s, (int64_t)s->tokens * s->problem.num_q_heads * qk_of(s), is_mqa(s) ? 0.6 : 1.0, s->problem.q_dtype);
  s->rows = draw(s, (int64_t)s->keys * row_of(s), 1.0, s->source);
  if (s->names != NULL) {
    draw_by_name(s);
  }
  if (s->edit != NULL) {
    s->edit(s);
  }
  s->seen = room((size_t)(s->keys + 1) * (size_t)row_of(s) * sizeof *s->seen);
  draw_options(s);
  make_inputs(s);
  if (!is_mqa(s)) {
    make_weights(s, context);
  }
  if (s->problem.kv_source == ATTN_KV_DIRECT) {
    memcpy(s->seen, s->rows, (size_t)s->keys * (size_t)row_of(s) * sizeof *s->seen);
  } else {
    make_pool(s, format, separate);
    store_rows(s, context, is_mqa(s));
    note_seen(s, context);
    for (int32_t i = 0; s->as_given && i < s->num_seqs; i++) { /* new rows as they are */
      int32_t first = s->kv_len[i] > s->q_len[i] ? s->kv_len[i] - s->q_len[i] : 0;
      int64_t at = (int64_t)(s->first_key[i] + first) * row_of(s);
      memcpy(s->seen + at, s->rows + at, (size_t)(s->kv_len[i] - first) * (size_t)row_of(s) * sizeof *s->seen);
    }
  }
  int64_t pairs = (int64_t)s->tokens * s->problem.num_q_heads;
  s->out = room((size_t)(pairs + 1) * (size_t)v_of(s) * sizeof *s->out);
  s->lse = room((size_t)(pairs + 1) * sizeof *s->lse);
  attn_context_destroy(context);
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static attn_plan *make_plan(latent *s, const char *backend, attn_context *context) {
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan *plan;
  limits.max_seqs = s->num_seqs + 1;
  limits.max_tokens = s->tokens + 3;
  limits.max_kv_len = s->max_kv + 5;
  s->options.backend = backend;
  EXPECT_OK(attn_plan_create(context, &s->problem, &limits, &s->options, &plan, &why));
  s->plan = (attn_plan_info)ATTN_PLAN_INFO_INIT;
  EXPECT_OK(attn_plan_get_info(plan, &s->plan, &why));
  return plan;
}

static void schedule(latent *s, const attn_plan *plan, const attn_workspace *workspace) {
  attn_batch batch = ATTN_BATCH_INIT;
  tensor starts, lens;
  int64_t count = s->num_seqs + 1;
  tensor_over(&starts, s->starts, ATTN_DTYPE_INT32, 1, &count);
  count--;
  tensor_over(&lens, s->kv_len, ATTN_DTYPE_INT32, 1, &count);
  batch.query_start_loc = &starts.t;
  batch.seq_lens = s->problem.kv_source == ATTN_KV_CACHE ? &lens.t : NULL;
  EXPECT_OK(attn_plan_schedule(plan, &batch, workspace, &why));
  s->schedule = (attn_schedule_info)ATTN_SCHEDULE_INFO_INIT;
  EXPECT_OK(attn_schedule_get_info(plan, workspace, &s->schedule, &why));
}

static int64_t *new_slots(const latent *s) {
  int64_t *slots = room((size_t)(s->tokens + 1) * sizeof *slots);
  for (int32_t i = 0; i < s->num_seqs; i++) {
    for (int32_t t = 0; t < s->q_len[i]; t++) {
      int32_t k = s->kv_len[i] - s->q_len[i] + t;
      slots[s->starts[i] + t] = k >= 0 ? slot_of(s, i, k) : -1;
    }
  }
  return slots;
}

attn_status latent_call(latent *s) {
  switch (s->problem.mla_form) {
  case ATTN_MLA_MQA:
    return attn_mla_run_mqa(s->made, &s->args, &s->workspace, &why);
  case ATTN_MLA_MHA:
    return attn_mla_run_mha(s->made, &s->args, &s->workspace, &why);
  default:
    return attn_mla_layer_run(s->made, &s->args, &s->workspace, &why);
  }
}

static attn_dtype out_dtype_of(const latent *s) {
  return s->problem.out_dtype != ATTN_DTYPE_DEFAULT ? s->problem.out_dtype : s->problem.q_dtype;
}

#define GIVE(field, memory, dtype, rank)                                                                               \
  do {                                                                                                                 \
    tensor_over(&s->tensors[n], (void *)(uintptr_t)(memory), dtype, rank, shape);                                      \
    s->args.field = &s->tensors[n++].t;                                                                                \
  } while (0)

static void give_tensors(latent *s) {
  const attn_problem *p = &s->problem;
  int64_t heads = p->num_q_heads, tokens = s->tokens;
  int layer = p->mla_form == ATTN_MLA_LAYER;
  int n = 0;
  s->args = (attn_mla_args)ATTN_MLA_ARGS_INIT;
  int64_t shape[4] = {tokens, heads, s->two_queries ? rank_of(s) : qk_of(s), 0};
  GIVE(q, s->q_memory, p->q_dtype, 3);
  shape[2] = p->qk_rope_head_dim;
  if (s->two_queries) GIVE(q_rope, s->rope_memory, p->q_dtype, 3);
  shape[1] = rank_of(s);
  if (!is_mqa(s)) {
    s->args.weights = s->weights;
    GIVE(kv_c, s->kv_c, s->source, 2);
    shape[1] = p->qk_rope_head_dim;
    GIVE(k_pe, s->k_pe, s->source, 2);
    if (s->slots != NULL && !s->as_given) GIVE(slot_mapping, s->slots, ATTN_DTYPE_INT64, 1);
  }
  if (s->pool != NULL) {
    memcpy(shape, s->info.k.shape, sizeof shape);
    GIVE(kv_cache, s->pool, s->info.k.dtype, 3);
    tensor *scale = latent_scale(s, &s->tensors[n]);
    s->args.kv_scale = scale != NULL ? &s->tensors[n++].t : NULL;
    shape[0] = s->num_seqs;
    shape[1] = s->width;
    GIVE(block_table, s->table, ATTN_DTYPE_INT32, 2);
  }
  shape[0] = heads;
  if (s->slopes != NULL) GIVE(alibi_slopes, s->slopes, ATTN_DTYPE_FLOAT32, 1);
  if (s->sinks != NULL) GIVE(sinks, s->sinks, ATTN_DTYPE_FLOAT32, 1);
  shape[0] = tokens;
  shape[1] = heads;
  shape[2] = s->max_kv;
  if (s->bias != NULL) GIVE(bias, s->bias, ATTN_DTYPE_FLOAT32, 3);
  shape[0] = s->num_seqs;
  shape[1] = 1;
  shape[2] = 2;
  if (s->ranges != NULL) GIVE(prefix_ranges, s->ranges, ATTN_DTYPE_INT32, 3);
  if (s->causal != NULL) GIVE(causal_per_seq, s->causal, ATTN_DTYPE_INT32, 1);
  shape[0] = tokens;
  shape[1] = layer ? heads * v_of(s) : heads;
  shape[2] = v_of(s);
  GIVE(out, s->out_memory, out_dtype_of(s), layer ? 2 : 3);
  shape[1] = heads;
  if (p->wants_lse) GIVE(lse, s->lse, ATTN_DTYPE_FLOAT32, 2);
}

void latent_open(latent *s, const char *backend) {
  int64_t count = (int64_t)s->tokens * s->problem.num_q_heads * v_of(s);
  s->context = open_context(s->threads);
  s->made = make_plan(s, backend, s->context);
  s->workspace = workspace_make(s->made, &s->memory);
  s->slots = s->pool != NULL ? new_slots(s) : NULL;
  s->out_memory = room((size_t)(count + 1) * sizeof(float));
  memset(s->lse, 0xFF, (size_t)s->tokens * (size_t)s->problem.num_q_heads * sizeof *s->lse);
  schedule(s, s->made, &s->workspace);
  give_tensors(s);
}

static void read_out(latent *s) {
  for (int64_t i = 0; i < (int64_t)s->tokens * s->problem.num_q_heads * v_of(s); i++) {
    s->out[i] = load_element(s->out_memory, out_dtype_of(s), i);
  }
}

void latent_step(latent *s) {
  int64_t pairs = (int64_t)s->tokens * s->problem.num_q_heads;
  if (s->slots != NULL) { /* the arguments point at them */
    int64_t *slots = new_slots(s);
    memcpy(s->slots, slots, (size_t)s->tokens * sizeof *slots);
    free(slots);
  }
  memset(s->out_memory, 0xFF, (size_t)(pairs * v_of(s)) * attn_dtype_bytes(out_dtype_of(s)));
  memset(s->lse, 0xFF, (size_t)pairs * sizeof *s->lse);
  schedule(s, s->made, &s->workspace);
  EXPECT_OK(latent_call(s));
  read_out(s);
}

void latent_close(latent *s) {
  read_out(s);
  free(s->out_memory);
  free(s->slots);
  guard_free(&s->memory);
  attn_plan_destroy(s->made);
  attn_context_destroy(s->context);
}

void latent_run(latent *s, const char *backend) {
  latent_open(s, backend);
  EXPECT_OK(latent_call(s));
  latent_close(s);
}

void latent_free(latent *s) {
  void *memory[] = {s->q,    s->rows,     s->w,           s->seen, s->slopes, s->sinks,  s->bias,  s->ranges, s->causal,
                    s->pool, s->q_memory, s->rope_memory, s->kv_c, s->k_pe,   s->scales, s->table, s->out,    s->lse};
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
    free(memory[i]);
  }
  attn_mla_weights_destroy(s->weights);
}

const attn_format latent_formats[LATENT_FORMATS] = {
    ATTN_FORMAT_FLOAT32,
    ATTN_FORMAT_FLOAT16,
    ATTN_FORMAT_BFLOAT16,
    ATTN_FORMAT_FP8_E4M3,
    ATTN_FORMAT_FP8_DS_MLA,
    ATTN_FORMAT_INT8_PER_TOKEN_HEAD,
    ATTN_FORMAT_FP8_PER_TOKEN_HEAD,
    ATTN_FORMAT_INT4_PER_TOKEN_HEAD,
};

const char *const latent_backends[LATENT_BACKENDS] = {"REFERENCE", "CPU_MLA"};

double latent_room(const latent *s) {
  return is_mqa(s) ? 1.0 : 4.0;
}

void latent_prove(latent *s, attn_format format, const char *what) {
  latent_fill(s, format, 0);
  for (int b = 0; b < LATENT_BACKENDS; b++) {
    harness_label(latent_backends[b]);
    latent_run(s, latent_backends[b]);
    latent_compare(s, latent_room(s), what);
  }
  latent_free(s);
}
