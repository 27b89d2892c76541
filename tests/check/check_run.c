/* SPDX-License-Identifier: Apache-2.0 */
/* check_run.c: the calls of an attention case, and what every successful call has to leave behind. */
#include <math.h>
#include <string.h>

#include "check_attention.h"
#include "check_compare.h"
#include "check_float.h"
#include "check_fp8.h"
#include "check_latent.h"

/* Read one output's owned elements, put the canary back over them, and find the whole memory untouched. */
static int read_output(check_env *env, const check_case *c, const char *name, const check_tensor *t, int64_t size,
                       unsigned salt, float *values) {
  for (int64_t i = 0; i < c->tokens; i++) {
    for (int64_t h = 0; h < c->q_heads; h++) {
      for (int64_t e = 0; e < size; e++) {
        void *at = check_at(t, i, h, e, 0);
        values[(i * c->q_heads + h) * size + e] = check_load(at, t->dtype);
        check_canary_restore(t, at, salt);
      }
    }
  }
  int64_t broken = check_canary_broken(t, salt);
  return broken < 0 ||
         check_fail(env, "%s: byte %lld, which no row of the batch owns, was written", name, (long long)broken);
}

static int inputs_kept(check_env *env, const check_laid *l) {
  const struct {
    const char *name;
    const check_tensor *tensor;
  } inputs[] = {{"q", &l->q},
                {"k", &l->k},
                {"v", &l->v},
                {"k_cache", &l->k_cache},
                {"v_cache", &l->v_cache},
                {"block_table", &l->table},
                {"alibi_slopes", &l->slopes},
                {"sinks", &l->sinks},
                {"bias", &l->bias},
                {"prefix_ranges", &l->ranges},
                {"causal_per_seq", &l->causal},
                {"output_scale", &l->output_scale},
                {"q_scale", &l->q_scale},
                {"k_scale", &l->k_scale},
                {"v_scale", &l->v_scale},
                {"seq_lens", &l->seq_lens},
                {"query_start_loc", &l->query_start_loc},
                {"kv_start_loc", &l->kv_start_loc}};
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
    int64_t changed = check_changed(inputs[i].tensor);
    if (changed >= 0) {
      return check_fail(env, "%s: byte %lld of the input was written", inputs[i].name, (long long)changed);
    }
  }
  return 1;
}

static void poison_workspace(const attn_workspace *workspace, int byte) {
  size_t most = (size_t)4 << 20; /* enough to meet whatever is trusted without being written */
  memset(workspace->data, byte, workspace->bytes < most ? workspace->bytes : most);
}

static int run_once(check_env *env, const check_case *c, check_laid *l, const attn_plan *plan,
                    const attn_workspace *workspace, unsigned salt, check_result *result) {
  attn_message message = {ATTN_OK, ""};
  check_fill_canary(&l->out, salt);
  check_fill_canary(&l->lse, salt);
  check_fill_canary(&l->out_scale, salt);
  attn_status status = l->latent != NULL ? check_latent_call(plan, l->latent, workspace, &message)
                                         : attn_run(plan, &l->args, workspace, &message);
  if (status != ATTN_OK) {
    return check_fail(env, "a valid call was refused: %s: %s", attn_status_name(status), message.text);
  }
  return read_output(env, c, "out", &l->out, c->v_size, salt, result->out) &&
         (l->args.lse == NULL || read_output(env, c, "lse", &l->lse, 1, salt, result->lse)) &&
         (l->args.out_scale == NULL ||
          read_output(env, c, "out_scale", &l->out_scale, check_groups(c), salt, result->scale));
}

static check_result new_result(check_arena *arena, const check_case *c, const check_laid *l) {
  size_t rows = (size_t)(c->tokens * c->q_heads);
  check_result result = {check_alloc(arena, rows * (size_t)c->v_size, sizeof(float)), NULL, NULL};
  if (l->args.lse != NULL) {
    result.lse = check_alloc(arena, rows, sizeof(float));
  }
  if (l->args.out_scale != NULL) {
    result.scale = check_alloc(arena, rows * (size_t)check_groups(c), sizeof(float));
  }
  return result;
}

int check_same_row(const check_case *c, const check_result *a, int64_t i, const check_result *b, int64_t j) {
  size_t size = (size_t)c->v_size;
  size_t groups = (size_t)check_groups(c);
  return memcmp(a->out + (size_t)i * size, b->out + (size_t)j * size, size * sizeof(float)) == 0 &&
         (a->lse == NULL || memcmp(a->lse + i, b->lse + j, sizeof(float)) == 0) &&
         (a->scale == NULL ||
          memcmp(a->scale + (size_t)i * groups, b->scale + (size_t)j * groups, groups * sizeof(float)) == 0);
}

static int same_bits(check_env *env, const check_case *c, const check_result *a, const check_result *b) {
  size_t rows = (size_t)(c->tokens * c->q_heads);
  for (size_t i = 0; i < rows; i++) {
    if (!check_same_row(c, a, (int64_t)i, b, (int64_t)i)) {
      return check_fail(env, "a second run gave other bits in token %lld, head %lld", (long long)i / c->q_heads,
                        (long long)i % c->q_heads);
    }
  }
  return 1;
}

/* Where a case's workspace comes from. */
typedef enum workspace_kind {
  WORKSPACE_GUARDED,   /* ends at a guard page, poisoned */
  WORKSPACE_UNWRITTEN, /* as the allocator gave it */
  WORKSPACE_OWN        /* the plan's */
} workspace_kind;

static workspace_kind workspace_of(const check_case *c) {
  return c->index % 7 == 3 ? WORKSPACE_OWN : c->index % 7 == 5 ? WORKSPACE_UNWRITTEN : WORKSPACE_GUARDED;
}

static int run_plan(check_env *env, check_arena *arena, const check_case *c, check_laid *l, const attn_plan *plan,
                    int twice, check_result *result) {
  attn_message message = {ATTN_OK, ""};
  workspace_kind kind = workspace_of(c);
  size_t bytes = attn_plan_workspace_bytes(plan);
  if (bytes % ATTN_WORKSPACE_ALIGN != 0) {
    return check_fail(env, "%zu workspace bytes are no multiple of %d", bytes, ATTN_WORKSPACE_ALIGN);
  }
  attn_workspace memory = {NULL, bytes};
  if (kind != WORKSPACE_OWN) {
    memory.data = kind == WORKSPACE_UNWRITTEN ? check_unwritten(arena, ATTN_WORKSPACE_ALIGN, bytes)
                                              : check_guarded(arena, bytes, 0);
  }
  const attn_workspace *workspace = kind != WORKSPACE_OWN ? &memory : NULL;
  *result = new_result(arena, c, l);
  for (int run = 0; run <= twice; run++) {
    check_result again = run == 0 ? *result : new_result(arena, c, l);
    if (run == 0 || c->index % 2 == 0) {
      if (kind == WORKSPACE_GUARDED) {
        poison_workspace(workspace, run == 0 ? 0xFF : 0x7F);
      }
      attn_status status = attn_plan_schedule(plan, &l->batch, workspace, &message);
      if (status != ATTN_OK) {
        return check_fail(env, "attn_plan_schedule refused a valid call: %s: %s", attn_status_name(status),
                          message.text);
      }
    }
    if (!run_once(env, c, l, plan, workspace, (unsigned)run + 1, &again) ||
        (l->latent != NULL && (!check_latent_written(env, c, l) || !check_latent_kept(env, l->latent))) ||
        !inputs_kept(env, l) || (run > 0 && !same_bits(env, c, result, &again))) {
      return 0;
    }
  }
  return 1;
}

int check_call(check_env *env, check_arena *arena, const check_case *c, check_laid *l, attn_context *context, int twice,
               check_result *result) {
  attn_message message = {ATTN_OK, ""};
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  options.backend = env->backends[env->backend];
  options.num_splits = l->num_splits;
  options.split_rule = l->split_rule;
  options.own_workspace = workspace_of(c) == WORKSPACE_OWN;
  attn_plan *plan = NULL;
  attn_status status = attn_plan_create(context, &l->problem, &l->limits, &options, &plan, &message);
  if (status != ATTN_OK) {
    return check_fail(env, "attn_plan_create refused a valid problem: %s: %s", attn_status_name(status), message.text);
  }
  int passed = run_plan(env, arena, c, l, plan, twice, result);
  attn_plan_destroy(plan);
  return passed;
}

/* The oracle's answer to a whole case. */
typedef struct truths {
  double *out;       /* [tokens, q heads, v size] */
  check_truth *rows; /* [tokens, q heads] */
  float output_scale;
} truths;

static truths ask_oracle(check_arena *arena, const check_case *c, const check_model *m) {
  size_t rows = (size_t)(c->tokens * c->q_heads);
  truths t = {check_alloc(arena, rows * (size_t)c->v_size, sizeof(double)),
              check_alloc(arena, rows, sizeof(check_truth)), m->output_scale};
  double *scores = check_alloc(arena, (size_t)c->max_kv * 2, sizeof *scores);
  for (int32_t s = 0; s < c->num_seqs; s++) {
    for (int32_t i = 0; i < c->seqs[s].q_len; i++) {
      for (int32_t h = 0; h < c->q_heads; h++) {
        int64_t row = (c->seqs[s].q_start + i) * c->q_heads + h;
        check_attention_row(m, s, i, h, scores, t.out + row * c->v_size, t.rows + row);
      }
    }
  }
  return t;
}

/* Fraction of its bound that a row of out takes, with its scales; the worst is kept. */
static double out_fraction(check_worst *worst, const check_case *c, const check_laid *l, const truths *t, int64_t row,
                           int64_t terms, const check_result *result) {
  const float *got = result->out + row * c->v_size;
  const double *want = t->out + row * c->v_size;
  double fraction;
  double *kept = &worst->out;
  if (l->out.dtype == ATTN_DTYPE_FP8_E4M3) {
    const check_fp8_row codes = {c->v_size, got, check_output_block(c), t->output_scale,
                                 result->scale == NULL ? NULL : result->scale + row * check_groups(c)};
    fraction = check_fp8_fraction(&codes, want, &t->rows[row], terms);
    kept = &worst->fp8;
  } else {
    fraction = check_out_fraction(l->out.dtype, c->v_size, got, want, &t->rows[row], terms);
  }
  *kept = fraction > *kept && fraction < 1e30 ? fraction : *kept;
  return fraction;
}

static int judge_row(check_env *env, const check_case *c, const check_laid *l, const truths *t, int32_t seq, int32_t i,
                     int32_t head, const check_result *result) {
  int64_t token = c->seqs[seq].q_start + i;
  int64_t row = token * c->q_heads + head;
  check_worst *worst = &env->worst[env->backend];
  double fraction = out_fraction(worst, c, l, t, row, c->seqs[seq].kv_len, result);
  if (!(fraction <= 1.0)) {
    return check_fail(env,
                      "out: token %lld (row %d of sequence %d), head %d: %.3g of the bound (element 0: got %.9g, "
                      "want %.9g; scale %.9g; lse %.6g, Smax %.4g)",
                      (long long)token, (int)i, (int)seq, (int)head, fraction, (double)result->out[row * c->v_size],
                      t->out[row * c->v_size],
                      (double)(result->scale == NULL ? t->output_scale : result->scale[row * check_groups(c)]),
                      t->rows[row].lse, t->rows[row].smax);
  }
  if (result->lse == NULL) {
    return 1;
  }
  fraction = check_lse_fraction(result->lse[row], &t->rows[row], c->size);
  worst->lse = fraction > worst->lse && fraction < 1e30 ? fraction : worst->lse;
  return fraction <= 1.0 ||
         check_fail(env, "lse: token %lld (row %d of sequence %d), head %d: %.3g of the bound (got %.9g, want %.9g)",
                    (long long)token, (int)i, (int)seq, (int)head, fraction, (double)result->lse[row],
                    t->rows[row].lse);
}

static int judge(check_env *env, const check_case *c, const check_laid *l, const truths *t,
                 const check_result *result) {
  for (int32_t s = 0; s < c->num_seqs; s++) {
    for (int32_t i = 0; i < c->seqs[s].q_len; i++) {
      for (int32_t h = 0; h < c->q_heads; h++) {
        if (!judge_row(env, c, l, t, s, i, h, result)) {
          return 0;
        }
      }
    }
  }
  return 1;
}

/* The slow specification is repeated less often: nothing in it depends on threads, splits or neighbours. */
static int is_reference(const check_env *env) {
  return strcmp(env->backends[env->backend], "REFERENCE") == 0;
}

int check_run_attention(check_env *env, check_case *c, check_arena *arena) {
  check_model model;
  check_laid laid;
  int pool_class = check_number(&c->choice, CHECK_POOL);
  int invariant = check_is(c, CHECK_INVARIANT, 1);
  int valid = check_is(c, CHECK_EXPECT, CHECK_VALID);
  int odd_ids = valid && !invariant && check_is(c, CHECK_CHECKED, 1) && check_chance(&c->rng, 70);
  check_model_draw(arena, c, &model);
  check_lay(arena, c, &model, check_number(&c->choice, CHECK_STRIDE), pool_class, odd_ids, NULL, &laid);
  attn_context *context = check_context(env, check_number(&c->choice, CHECK_THREADS));
  if (context == NULL) {
    return 0;
  }
  truths t = {NULL, NULL, 0.0f};
  if (valid) {
    t = ask_oracle(arena, c, &model);
  }
  check_rng rng = c->rng; /* every backend meets the same mutation and the same variants */
  for (env->backend = 0; env->backend < env->num_backends; env->backend++) {
    check_result result;
    c->rng = rng;
    if (!valid) {
      for (int i = 0; i < CHECK_REFUSALS; i++) {
        if (!check_attention_refusal(env, arena, c, &laid)) {
          return 0;
        }
      }
      continue;
    }
    int thorough = !is_reference(env) || c->index % 8 == 0;
    if (!check_call(env, arena, c, &laid, context, thorough, &result) || !judge(env, c, &laid, &t, &result) ||
        (invariant && thorough && !check_invariance(env, arena, c, &model, &result))) {
      return 0;
    }
  }
  return 1;
}

/* ---- latent rows ------------------------------------------------------------------------------------------------- */

static int make_weights(check_env *env, const check_case *c, check_latent *l, attn_context *context) {
  attn_mla_weights_args args = ATTN_MLA_WEIGHTS_ARGS_INIT;
  attn_message message = {ATTN_OK, ""};
  args.num_heads = c->q_heads;
  args.kv_lora_rank = c->rank;
  args.qk_nope_head_dim = c->nope;
  args.v_head_dim = c->v_size;
  args.w_kv_b = &l->w_kv_b.dl;
  args.w_scale = l->w_kv_b.dtype == ATTN_DTYPE_FP8_E4M3 ? &l->w_scale.dl : NULL;
  attn_status status = attn_mla_weights_create(context, &args, &l->weights, &message);
  return status == ATTN_OK || check_fail(env, "attn_mla_weights_create refused valid weights: %s: %s",
                                         attn_status_name(status), message.text);
}

static int run_latent(check_env *env, check_case *c, check_arena *arena, const check_model *model, check_laid *laid,
                      attn_context *context) {
  truths t = ask_oracle(arena, c, model);
  check_rng rng = c->rng;
  for (env->backend = 0; env->backend < env->num_backends; env->backend++) {
    check_result result;
    c->rng = rng;
    int thorough = !is_reference(env) || c->index % 8 == 0;
    if (!check_call(env, arena, c, laid, context, thorough, &result) || !judge(env, c, laid, &t, &result)) {
      return 0;
    }
  }
  return 1;
}

int check_run_latent(check_env *env, check_case *c, check_arena *arena) {
  check_model model;
  check_latent latent;
  check_laid laid;
  attn_context *context = check_context(env, check_number(&c->choice, CHECK_THREADS));
  if (context == NULL) {
    return 0;
  }
  check_latent_draw(arena, c, &model, &latent);
  if (c->op != CHECK_MQA && !make_weights(env, c, &latent, context)) {
    return 0;
  }
  check_lay(arena, c, &model, check_number(&c->choice, CHECK_STRIDE), check_number(&c->choice, CHECK_POOL), 0, &latent,
            &laid);
  int passed = run_latent(env, c, arena, &model, &laid, context);
  attn_mla_weights_destroy(latent.weights);
  return passed;
}
