/* SPDX-License-Identifier: Apache-2.0 */
/* check_refuse.c: a valid attention call made invalid in one place. One table lists the ways, each with the call that
 * has to refuse it, the documented status, and where it applies. Outputs keep their canaries; entries changed in place
 * are put back for the next backend. */
#include <math.h>
#include <string.h>

#include "check_attention.h"

typedef enum stage { AT_PLAN, AT_SCHEDULE, AT_RUN } stage;

/* The call as it will be made; tensors that differ live in `tensor`, `shape` and `strides`. */
typedef struct mutant {
  check_case *c;
  check_laid *l;
  attn_problem problem;
  attn_plan_limits limits;
  attn_plan_options options;
  attn_batch batch;
  attn_run_args args;
  size_t workspace_less; /* bytes fewer than needed */
  int no_workspace;
  int no_schedule;
  DLTensor tensor;
  int64_t shape[4];
  int64_t strides[4];
  void *changed_at; /* an int32 or float entry changed in place */
  uint32_t old;
} mutant;

typedef struct way {
  const char *what;
  stage at;
  attn_status expected;
  int weight;              /* how often it is tried: more where it applies seldom or matters most */
  int (*apply)(mutant *m); /* 0: does not apply to this case */
} way;

/* ---- the plan ---- */

static int scale_zero(mutant *m) {
  static const float bad[] = {0.0f, -0.5f, NAN, INFINITY};
  m->problem.scale = bad[check_between(&m->c->rng, 0, 3)];
  return 1;
}

static int window_negative(mutant *m) {
  m->problem.window_left = -2;
  return 1;
}

static int softcap_negative(mutant *m) {
  m->problem.softcap = check_chance(&m->c->rng, 50) ? -1.0f : NAN;
  return 1;
}

static int heads_uneven(mutant *m) {
  m->problem.num_q_heads += 1;
  return m->c->kv_heads > 1;
}

static int cascade(mutant *m) {
  m->problem.cascade = 1;
  return 1;
}

static int latent(mutant *m) {
  m->problem.qk_rope_head_dim = 8; /* and no kv_lora_rank */
  return 1;
}

static int lookback_alone(mutant *m) {
  m->problem.chunk_lookback = 2;
  return m->problem.chunk_size == 0;
}

static int clamp_alone(mutant *m) {
  m->problem.prefix_clamp = 1;
  return !m->problem.has_prefix_ranges;
}

static int struct_size(mutant *m) {
  m->problem.size = 3;
  return 1;
}

static int no_tokens(mutant *m) {
  m->limits.max_tokens = 0;
  return 1;
}

static int foreign_backend(mutant *m) {
  m->options.backend = "TRITON_ATTN";
  return 1;
}

static int unknown_backend(mutant *m) {
  m->options.backend = "NO_SUCH_BACKEND";
  return 1;
}

static int too_many_splits(mutant *m) {
  m->options.num_splits = 5000;
  return 1;
}

static int output_block_odd(mutant *m) {
  static const int32_t bad[] = {-64, 1, 32, 96, 127, 256};
  m->problem.out_dtype = ATTN_DTYPE_FP8_E4M3;
  m->problem.output_block = bad[check_between(&m->c->rng, 0, 5)];
  return 1;
}

static int output_block_alone(mutant *m) {
  m->problem.output_block = check_chance(&m->c->rng, 50) ? 64 : 128;
  return check_out_dtype(m->c) != ATTN_DTYPE_FP8_E4M3;
}

static int output_e5m2(mutant *m) {
  m->problem.out_dtype = ATTN_DTYPE_FP8_E5M2;
  return m->problem.output_block == 0;
}

/* ---- the schedule ---- */

static int change(mutant *m, const check_tensor *list, int64_t i, int64_t j, int64_t k, int32_t value) {
  m->changed_at = check_at(list, i, j, k, 0);
  memcpy(&m->old, m->changed_at, sizeof m->old);
  memcpy(m->changed_at, &value, sizeof value);
  return 1;
}

static int start_not_zero(mutant *m) {
  return change(m, &m->l->query_start_loc, 0, 0, 0, 1);
}

static int start_falls(mutant *m) {
  return m->c->tokens > 0 && change(m, &m->l->query_start_loc, m->c->num_seqs, 0, 0, -1);
}

static int length_negative(mutant *m) {
  return check_paged(m->c) && change(m, &m->l->seq_lens, m->c->num_seqs - 1, 0, 0, -1);
}

static int beyond_tokens(mutant *m) {
  m->limits.max_tokens = m->c->tokens - 1;
  return m->c->tokens > 1;
}

static int beyond_keys(mutant *m) {
  m->limits.max_kv_len = m->c->max_kv - 1;
  return m->c->max_kv > 1;
}

static int beyond_seqs(mutant *m) {
  m->limits.max_seqs = m->c->num_seqs - 1;
  return m->c->num_seqs > 1;
}

static int workspace_short(mutant *m) {
  m->workspace_less = 1;
  return 1;
}

static int workspace_none(mutant *m) {
  m->no_workspace = 1;
  return 1;
}

static int batch_missing(mutant *m) {
  m->batch.query_start_loc = NULL;
  return 1;
}

static int starts_of_int64(mutant *m) {
  m->tensor = m->l->query_start_loc.dl;
  m->tensor.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT64);
  m->batch.query_start_loc = &m->tensor;
  return 1;
}

/* ---- the run ---- */

static DLTensor *copy_of(mutant *m, const check_tensor *t) {
  m->tensor = t->dl;
  memcpy(m->shape, t->shape, sizeof m->shape);
  memcpy(m->strides, t->strides, sizeof m->strides);
  m->tensor.shape = m->shape;
  m->tensor.strides = m->strides;
  return &m->tensor;
}

static int q_size(mutant *m) {
  m->args.q = copy_of(m, &m->l->q);
  m->shape[2] += 1;
  return 1;
}

static int q_rank(mutant *m) {
  m->args.q = copy_of(m, &m->l->q);
  m->tensor.ndim = 2;
  return 1;
}

static int q_rows(mutant *m) {
  m->args.q = copy_of(m, &m->l->q);
  m->shape[0] = m->c->tokens - 1;
  return m->c->tokens > 0;
}

static int q_stride(mutant *m) {
  m->args.q = copy_of(m, &m->l->q);
  m->strides[1] = -m->strides[1];
  return 1;
}

static int q_missing(mutant *m) {
  m->args.q = NULL;
  return 1;
}

static int q_on_device(mutant *m) {
  copy_of(m, &m->l->q)->device.device_type = kDLCUDA;
  m->args.q = &m->tensor;
  return 1;
}

static int q_unaligned(mutant *m) {
  copy_of(m, &m->l->q)->byte_offset += 1;
  m->args.q = &m->tensor;
  return m->c->tokens > 0 && m->l->q.element > 1;
}

static int out_type(mutant *m) {
  copy_of(m, &m->l->out)->dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT32);
  m->args.out = &m->tensor;
  return 1;
}

static int out_stride(mutant *m) {
  m->args.out = copy_of(m, &m->l->out);
  m->strides[0] = 0;
  return m->shape[0] > 1;
}

static int out_overlaps(mutant *m) {
  uintptr_t element = m->l->out.element;
  uintptr_t first = (uintptr_t)m->l->q.first / element * element; /* its first element holds q's first byte */
  copy_of(m, &m->l->out)->data = (void *)first;
  m->tensor.byte_offset = 0;
  m->args.out = &m->tensor;
  return m->c->tokens > 0 && m->l->q.segment_bytes >= 8;
}

static int lse_wrong(mutant *m) {
  m->args.lse = m->args.lse == NULL ? copy_of(m, &m->l->out) : NULL;
  return 1;
}

/* Given where the output has none, or missing where it has one. */
static int output_scale_wrong(mutant *m) {
  m->args.output_scale = m->args.output_scale == NULL ? copy_of(m, &m->l->q) : NULL;
  return 1;
}

static int out_scale_wrong(mutant *m) {
  m->args.out_scale = m->args.out_scale == NULL ? copy_of(m, &m->l->q) : NULL;
  return 1;
}

static int out_scale_groups(mutant *m) {
  if (m->args.out_scale == NULL) {
    return 0;
  }
  m->args.out_scale = copy_of(m, &m->l->out_scale);
  m->shape[2] += check_chance(&m->c->rng, 50) ? 1 : -1;
  return 1;
}

static int out_scale_rows(mutant *m) {
  if (m->args.out_scale == NULL) {
    return 0;
  }
  m->args.out_scale = copy_of(m, &m->l->out_scale);
  m->shape[0] = m->c->tokens - 1;
  return m->c->tokens > 0;
}

static int out_scale_overlaps(mutant *m) {
  if (m->args.out_scale == NULL || m->c->tokens == 0 || m->l->q.segment_bytes < 8) {
    return 0;
  }
  copy_of(m, &m->l->out_scale)->data = (void *)((uintptr_t)m->l->q.first / sizeof(float) * sizeof(float));
  m->tensor.byte_offset = 0;
  m->args.out_scale = &m->tensor;
  return 1;
}

static int sinks_wrong(mutant *m) {
  m->args.sinks = m->args.sinks == NULL ? copy_of(m, &m->l->query_start_loc) : NULL;
  return 1;
}

static int bias_keys(mutant *m) {
  if (m->args.bias == NULL || m->c->max_kv == 0) {
    return 0;
  }
  m->args.bias = copy_of(m, &m->l->bias);
  m->shape[2] = m->c->max_kv - 1;
  return 1;
}

static int sink_nan(mutant *m) {
  return m->args.sinks != NULL && change(m, &m->l->sinks, m->c->q_heads - 1, 0, 0, 0x7FC00000);
}

static int slope_infinite(mutant *m) {
  return m->args.alibi_slopes != NULL && change(m, &m->l->slopes, 0, 0, 0, 0x7F800000);
}

static uint32_t bad_scale(check_rng *rng) {
  static const uint32_t bad[] = {0u, 0x80000000u, 0xBF800000u, 0x7F800000u, 0xFF800000u, 0x7FC00000u};
  return bad[check_between(rng, 0, 5)];
}

static int output_scale_bad(mutant *m) {
  return m->args.output_scale != NULL && change(m, &m->l->output_scale, 0, 0, 0, (int32_t)bad_scale(&m->c->rng));
}

static int q_scale_wrong(mutant *m) {
  m->args.q_scale = m->args.q_scale == NULL ? copy_of(m, &m->l->query_start_loc) : NULL;
  return 1;
}

static int q_scale_bad(mutant *m) {
  return m->args.q_scale != NULL && change(m, &m->l->q_scale, 0, 0, 0, (int32_t)bad_scale(&m->c->rng));
}

/* Of rows that have scales of their own, or none. */
static int k_scale_wrong(mutant *m) {
  m->args.k_scale = m->args.k_scale == NULL ? copy_of(m, &m->l->query_start_loc) : NULL;
  return !check_format_static(m->c->k_format);
}

static int v_scale_bad(mutant *m) {
  return check_format_static(m->c->v_format) && m->args.v_scale != NULL &&
         change(m, &m->l->v_scale, m->l->v_scale.shape[0] - 1, 0, 0, (int32_t)bad_scale(&m->c->rng));
}

static int v_scale_extent(mutant *m) {
  if (m->args.v_scale == NULL) {
    return 0;
  }
  m->args.v_scale = copy_of(m, &m->l->v_scale);
  m->shape[check_format_static(m->c->v_format) ? 0 : 2] += m->c->kv_heads;
  return 1;
}

static int k_row_extent(mutant *m) {
  if (!check_paged(m->c)) {
    return 0;
  }
  m->args.k_cache = copy_of(m, &m->l->k_cache);
  m->shape[3] += 1;
  return 1;
}

static int v_cache_type(mutant *m) {
  if (!check_paged(m->c)) {
    return 0;
  }
  copy_of(m, &m->l->v_cache)->dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT32);
  m->args.v_cache = &m->tensor;
  return 1;
}

static int causal_two(mutant *m) {
  return m->args.causal_per_seq != NULL && change(m, &m->l->causal, m->c->num_seqs - 1, 0, 0, 2);
}

static int range_reversed(mutant *m) {
  if (m->args.prefix_ranges == NULL) {
    return 0;
  }
  int32_t end;
  int64_t s = check_between(&m->c->rng, 0, m->c->num_seqs - 1);
  memcpy(&end, check_at(&m->l->ranges, s, 0, 1, 0), sizeof end);
  return change(m, &m->l->ranges, s, 0, 0, end + 1);
}

/* A position that some row sees: its sequence and column. */
static int seen_column(const mutant *m, int64_t *seq, int64_t *column) {
  const check_case *c = m->c;
  for (int32_t s = c->num_seqs - 1; check_paged(c) && s >= 0; s--) {
    for (int64_t k = c->seqs[s].kv_len - 1; k >= 0; k--) {
      if (m->l->seen[c->seqs[s].k_start + k]) {
        *seq = s;
        *column = k / c->block_size;
        return 1;
      }
    }
  }
  return 0;
}

static int id_outside(mutant *m) {
  int64_t s;
  int64_t column;
  int32_t blocks = (int32_t)m->l->num_blocks;
  m->args.unchecked = 0;
  return seen_column(m, &s, &column) &&
         change(m, &m->l->table, s, column, 0, check_chance(&m->c->rng, 60) ? blocks : -1);
}

static int table_narrow(mutant *m) {
  int64_t s;
  int64_t column;
  m->args.unchecked = 0;
  if (!seen_column(m, &s, &column)) {
    return 0;
  }
  m->args.block_table = copy_of(m, &m->l->table);
  m->shape[1] = column; /* one less than the sequence's visible keys need */
  return 1;
}

static int never_scheduled(mutant *m) {
  m->no_schedule = 1;
  return 1;
}

static const way ways[] = {
    {"scale not finite and > 0", AT_PLAN, ATTN_E_RANGE, 1, scale_zero},
    {"window_left -2", AT_PLAN, ATTN_E_RANGE, 1, window_negative},
    {"softcap negative or NaN", AT_PLAN, ATTN_E_RANGE, 1, softcap_negative},
    {"q heads no multiple of KV heads", AT_PLAN, ATTN_E_RANGE, 1, heads_uneven},
    {"cascade", AT_PLAN, ATTN_E_UNSUPPORTED, 1, cascade},
    {"a latent field of no latent problem", AT_PLAN, ATTN_E_RANGE, 1, latent},
    {"chunk_lookback without chunk_size", AT_PLAN, ATTN_E_RANGE, 1, lookback_alone},
    {"prefix_clamp without ranges", AT_PLAN, ATTN_E_RANGE, 1, clamp_alone},
    {"a problem of 3 bytes", AT_PLAN, ATTN_E_STRUCT_SIZE, 1, struct_size},
    {"max_tokens 0", AT_PLAN, ATTN_E_RANGE, 1, no_tokens},
    {"a foreign backend", AT_PLAN, ATTN_E_BACKEND, 1, foreign_backend},
    {"an unknown backend", AT_PLAN, ATTN_E_NAME, 1, unknown_backend},
    {"5000 splits", AT_PLAN, ATTN_E_RANGE, 1, too_many_splits},
    {"an output_block that is none", AT_PLAN, ATTN_E_RANGE, 1, output_block_odd},
    {"output_block without an fp8 output", AT_PLAN, ATTN_E_RANGE, 1, output_block_alone},
    {"an output of fp8_e5m2", AT_PLAN, ATTN_E_DTYPE, 1, output_e5m2},
    {"query_start_loc[0] of 1", AT_SCHEDULE, ATTN_E_INDEX, 1, start_not_zero},
    {"query_start_loc that falls", AT_SCHEDULE, ATTN_E_INDEX, 1, start_falls},
    {"a negative seq_len", AT_SCHEDULE, ATTN_E_INDEX, 1, length_negative},
    {"more tokens than planned", AT_SCHEDULE, ATTN_E_CAPACITY, 2, beyond_tokens},
    {"more keys than planned", AT_SCHEDULE, ATTN_E_CAPACITY, 2, beyond_keys},
    {"more sequences than planned", AT_SCHEDULE, ATTN_E_CAPACITY, 2, beyond_seqs},
    {"a workspace one byte short", AT_SCHEDULE, ATTN_E_WORKSPACE, 6, workspace_short},
    {"no workspace", AT_SCHEDULE, ATTN_E_STATE, 1, workspace_none},
    {"no query_start_loc", AT_SCHEDULE, ATTN_E_NULL, 1, batch_missing},
    {"query_start_loc of int64", AT_SCHEDULE, ATTN_E_DTYPE, 1, starts_of_int64},
    {"q of another size", AT_RUN, ATTN_E_SHAPE, 1, q_size},
    {"q of rank 2", AT_RUN, ATTN_E_SHAPE, 1, q_rank},
    {"q with a row too few", AT_RUN, ATTN_E_SHAPE, 2, q_rows},
    {"q with a negative stride", AT_RUN, ATTN_E_STRIDE, 1, q_stride},
    {"no q", AT_RUN, ATTN_E_NULL, 1, q_missing},
    {"q on a device", AT_RUN, ATTN_E_TENSOR_DEVICE, 1, q_on_device},
    {"q off its alignment", AT_RUN, ATTN_E_ALIGN, 1, q_unaligned},
    {"out of int32", AT_RUN, ATTN_E_DTYPE, 1, out_type},
    {"out with a zero stride", AT_RUN, ATTN_E_STRIDE, 1, out_stride},
    {"out in q's memory", AT_RUN, ATTN_E_OVERLAP, 3, out_overlaps},
    {"lse missing, or not asked for", AT_RUN, ATTN_E_NULL, 1, lse_wrong},
    {"sinks missing, or not declared", AT_RUN, ATTN_E_NULL, 1, sinks_wrong},
    {"output_scale missing, or not declared", AT_RUN, ATTN_E_NULL, 1, output_scale_wrong},
    {"out_scale missing, or not declared", AT_RUN, ATTN_E_NULL, 1, out_scale_wrong},
    {"out_scale of another number of groups", AT_RUN, ATTN_E_SHAPE, 2, out_scale_groups},
    {"out_scale with a row too few", AT_RUN, ATTN_E_SHAPE, 2, out_scale_rows},
    {"out_scale in q's memory", AT_RUN, ATTN_E_OVERLAP, 4, out_scale_overlaps},
    {"an output_scale not finite and > 0", AT_RUN, ATTN_E_RANGE, 8, output_scale_bad},
    {"q_scale missing, or not declared", AT_RUN, ATTN_E_NULL, 1, q_scale_wrong},
    {"a q_scale not finite and > 0", AT_RUN, ATTN_E_RANGE, 8, q_scale_bad},
    {"k_scale missing, or not declared", AT_RUN, ATTN_E_NULL, 2, k_scale_wrong},
    {"a static scale not finite and > 0", AT_RUN, ATTN_E_RANGE, 8, v_scale_bad},
    {"v_scale of another extent", AT_RUN, ATTN_E_SHAPE, 3, v_scale_extent},
    {"k_cache of other rows", AT_RUN, ATTN_E_SHAPE, 2, k_row_extent},
    {"v_cache of int32", AT_RUN, ATTN_E_DTYPE, 2, v_cache_type},
    {"bias a key too short", AT_RUN, ATTN_E_SHAPE, 2, bias_keys},
    {"a sink that is NaN", AT_RUN, ATTN_E_RANGE, 2, sink_nan},
    {"a slope that is infinite", AT_RUN, ATTN_E_RANGE, 2, slope_infinite},
    {"a causal flag of 2", AT_RUN, ATTN_E_INDEX, 3, causal_two},
    {"a reversed prefix range", AT_RUN, ATTN_E_INDEX, 16, range_reversed},
    {"a block id outside the pool", AT_RUN, ATTN_E_INDEX, 10, id_outside},
    {"a block_table a column too narrow", AT_RUN, ATTN_E_INDEX, 6, table_narrow},
    {"a run without a schedule", AT_RUN, ATTN_E_STATE, 2, never_scheduled},
};

#define NUM_WAYS ((int64_t)(sizeof ways / sizeof *ways))

static void start_mutant(check_env *env, check_case *c, check_laid *l, mutant *m) {
  memset(m, 0, sizeof *m);
  m->c = c;
  m->l = l;
  m->problem = l->problem;
  m->limits = l->limits;
  m->batch = l->batch;
  m->args = l->args;
  m->options = (attn_plan_options)ATTN_PLAN_OPTIONS_INIT;
  m->options.backend = env->backends[env->backend];
  m->options.num_splits = l->num_splits;
}

static void put_back(mutant *m) {
  if (m->changed_at != NULL) {
    memcpy(m->changed_at, &m->old, sizeof m->old);
    m->changed_at = NULL;
  }
}

static const way *draw_way(check_rng *rng) {
  int64_t total = 0;
  for (int64_t i = 0; i < NUM_WAYS; i++) {
    total += ways[i].weight;
  }
  int64_t left = check_between(rng, 0, total - 1);
  int64_t i = 0;
  while (left >= ways[i].weight) {
    left -= ways[i++].weight;
  }
  return &ways[i];
}

static const way *choose_way(check_env *env, check_case *c, check_laid *l, mutant *m) {
  for (int i = 0; i < 100; i++) {
    const way *w = draw_way(&c->rng);
    start_mutant(env, c, l, m);
    if (w->apply(m)) {
      return w;
    }
    put_back(m);
  }
  start_mutant(env, c, l, m);
  ways[0].apply(m);
  return &ways[0];
}

static int make_calls(check_env *env, check_arena *arena, const way *w, const mutant *m, attn_context *context) {
  attn_message message = {ATTN_OK, ""};
  attn_plan *plan = NULL;
  attn_status status = attn_plan_create(context, &m->problem, &m->limits, &m->options, &plan, &message);
  if (w->at == AT_PLAN) {
    attn_plan_destroy(plan);
    return check_refused(env, w->what, status, w->expected, &message);
  }
  if (status != ATTN_OK) {
    return check_fail(env, "%s: attn_plan_create: %s: %s", w->what, attn_status_name(status), message.text);
  }
  size_t bytes = attn_plan_workspace_bytes(plan);
  attn_workspace workspace = {check_guarded(arena, bytes, 1), bytes - m->workspace_less};
  const attn_workspace *given = m->no_workspace ? NULL : &workspace;
  memset(workspace.data, 0xA5, bytes < 65536 ? bytes : 65536);
  if (!m->no_schedule) {
    status = attn_plan_schedule(plan, &m->batch, given, &message);
  }
  int passed = 1;
  if (w->at == AT_SCHEDULE) {
    passed = check_refused(env, w->what, status, w->expected, &message);
  } else if (status != ATTN_OK) {
    passed = check_fail(env, "%s: attn_plan_schedule: %s: %s", w->what, attn_status_name(status), message.text);
  } else {
    status = attn_run(plan, &m->args, given, &message);
    passed = check_refused(env, w->what, status, w->expected, &message);
  }
  attn_plan_destroy(plan);
  return passed;
}

int check_attention_refusal(check_env *env, check_arena *arena, check_case *c, check_laid *l) {
  mutant m;
  attn_context *context = check_context(env, check_number(&c->choice, CHECK_THREADS));
  if (context == NULL) {
    return 0;
  }
  const way *w = choose_way(env, c, l, &m);
  check_fill_canary(&l->out, 9);
  check_fill_canary(&l->lse, 9);
  check_fill_canary(&l->out_scale, 9);
  int passed = make_calls(env, arena, w, &m, context);
  put_back(&m);
  if (passed && (check_canary_broken(&l->out, 9) >= 0 || check_canary_broken(&l->lse, 9) >= 0 ||
                 check_canary_broken(&l->out_scale, 9) >= 0)) {
    passed = check_fail(env, "%s: refused, but an output was written", w->what);
  }
  if (passed && (check_changed(&l->q) >= 0 || check_changed(&l->k_cache) >= 0 || check_changed(&l->v_cache) >= 0)) {
    passed = check_fail(env, "%s: refused, but an input was written", w->what);
  }
  return passed;
}
