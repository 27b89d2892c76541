/* SPDX-License-Identifier: Apache-2.0 */
/* mla.c: the latent calls at the border: every tensor against the plan and the schedule, every list's contents, then
   the new rows are written (where the call writes), then the backend runs. Nothing is written before the last check. */
#include "attn/mla.h"

#include <string.h>

#include "api/cache_write.h"
#include "api/rows_view.h"
#include "api/run_lists.h"
#include "api/run_view.h"
#include "api/step.h"
#include "api/workspace_busy.h"
#include "core/resolve.h"

#define INT32_ONLY ATTN_DTYPE_BIT(ATTN_DTYPE_INT32)

const char *attn_mla_call_name(attn_mla_form form) {
  switch (form) {
  case ATTN_MLA_MQA:
    return "attn_mla_run_mqa";
  case ATTN_MLA_MHA:
    return "attn_mla_run_mha";
  default:
    return "attn_mla_layer_run";
  }
}

/* One call after its checks. */
typedef struct latent_call {
  const attn_plan *plan;
  const attn_mla_args *args;
  attn_run_args options; /* what attn_run() takes too: masks, biases, scales of the output */
  attn_run_view view;
  attn_write_view write;
  int writes;
  unsigned char *scratch;
} latent_call;

static attn_status refuse_projection(const attn_mla_args *args, attn_message *message) {
  const char *why = "mqa has no new rows and no projection";
  ATTN_TRY(attn_refuse_tensor(args->kv_c, "kv_c", why, message));
  ATTN_TRY(attn_refuse_tensor(args->k_pe, "k_pe", why, message));
  ATTN_TRY(attn_refuse_tensor(args->slot_mapping, "slot_mapping", why, message));
  if (args->weights != NULL) {
    return attn_fail(message, ATTN_E_NULL, "weights: given, accepted: NULL (%s)", why);
  }
  return ATTN_OK;
}

static attn_status check_weights(const attn_problem *p, const attn_mla_weights *w, attn_message *message) {
  if (w == NULL) {
    return attn_fail(message, ATTN_E_NULL, "weights: NULL, expected what attn_mla_weights_create() made");
  }
  if (w->num_heads != p->num_q_heads || w->rank != p->kv_lora_rank || w->nope != p->qk_nope_head_dim ||
      w->v != p->mla_v_head_dim) {
    return attn_fail(message, ATTN_E_SHAPE,
                     "weights: %d heads of %d + %d rows of %d, expected the problem's %d heads of %d + %d rows of %d",
                     (int)w->num_heads, (int)w->nope, (int)w->v, (int)w->rank, (int)p->num_q_heads,
                     (int)p->qk_nope_head_dim, (int)p->mla_v_head_dim, (int)p->kv_lora_rank);
  }
  return ATTN_OK;
}

static attn_status view_queries(latent_call *c, attn_message *message) {
  const attn_problem *p = &c->plan->problem;
  int64_t size = p->qk_head_size;
  if (p->mla_form != ATTN_MLA_MQA) {
    ATTN_TRY(attn_refuse_tensor(c->args->q_rope, "q_rope", "q holds the rotary elements", message));
  } else if (c->args->q_rope != NULL) {
    size = p->kv_lora_rank;
    attn_status status = attn_run_token_view(&c->view.q_rope, c->args->q_rope, "q_rope", ATTN_READ, p->q_dtype,
                                             p->num_q_heads, p->qk_rope_head_dim, c->view.step, message);
    ATTN_TRY(attn_run_hint(status, ATTN_E_DTYPE, "problem.q_dtype", message));
  }
  attn_status status = attn_run_token_view(&c->view.q, c->args->q, "q", ATTN_READ, p->q_dtype, p->num_q_heads, size,
                                           c->view.step, message);
  return attn_run_hint(status, ATTN_E_DTYPE, "problem.q_dtype", message);
}

static attn_status view_cache(latent_call *c, attn_message *message) {
  const attn_problem *p = &c->plan->problem;
  const attn_mla_args *args = c->args;
  if (p->kv_source == ATTN_KV_DIRECT) {
    const char *why = "the problem has no cache";
    ATTN_TRY(attn_refuse_tensor(args->kv_cache, "kv_cache", why, message));
    ATTN_TRY(attn_refuse_tensor(args->kv_scale, "kv_scale", why, message));
    ATTN_TRY(attn_refuse_tensor(args->slot_mapping, "slot_mapping", why, message));
    return attn_refuse_tensor(args->block_table, "block_table", why, message);
  }
  if (attn_format_of(p->k_format)->scale == ATTN_SCALE_ROW) {
    ATTN_TRY(attn_run_declared(args->kv_scale, "kv_scale", p->separate_scales != ATTN_SEPARATE_NONE,
                               "separate scales of it", message));
  }
  attn_rows_given given = {.pool_name = "kv_cache",
                           .scale_name = "kv_scale",
                           .format_name = "problem.k_format",
                           .pool = args->kv_cache,
                           .scale = args->kv_scale,
                           .format = p->k_format,
                           .access = c->writes ? ATTN_WRITE : ATTN_READ,
                           .num_blocks = ATTN_ANY,
                           .block_size = p->block_size,
                           .size = p->kv_lora_rank,
                           .kind = ATTN_ROWS_LATENT,
                           .rotary = p->qk_rope_head_dim,
                           .rotary_dtype = p->rotary_dtype};
  attn_status status = attn_rows_view_make(&c->view.k_rows, &c->view.k_cache, &given, message);
  status = attn_run_hint(status, ATTN_E_DTYPE, "problem.k_format", message);
  ATTN_TRY(attn_run_hint(status, ATTN_E_SHAPE, "blocks, the plan's block_size, row", message));
  int64_t table[2] = {c->view.step->num_seqs, ATTN_ANY};
  return attn_view_make(&c->view.block_table, args->block_table, "block_table", ATTN_READ, INT32_ONLY, 2, table,
                        message);
}

/* New rows that are attended as given. */
static attn_status view_fresh(latent_call *c, attn_message *message) {
  const attn_problem *p = &c->plan->problem;
  const attn_step *step = c->view.step;
  int64_t latent[2] = {ATTN_ANY, p->kv_lora_rank};
  int64_t rotary[2] = {ATTN_ANY, p->qk_rope_head_dim};
  ATTN_TRY(attn_view_make(&c->view.kv_c, c->args->kv_c, "kv_c", ATTN_READ, ATTN_DTYPE_FLOATS, 2, latent, message));
  ATTN_TRY(attn_view_make(&c->view.k_pe, c->args->k_pe, "k_pe", ATTN_READ, ATTN_DTYPE_FLOATS, 2, rotary, message));
  attn_view_place_empty(&c->view.k_pe, &c->view.kv_c);
  ATTN_TRY(attn_run_at_least_tokens(&c->view.kv_c, "kv_c", step, message));
  return attn_run_at_least_tokens(&c->view.k_pe, "k_pe", step, message);
}

/* Held against the problem before the write holds them against the pool. */
static attn_status check_new_rows(const latent_call *c, attn_message *message) {
  const attn_problem *p = &c->plan->problem;
  int64_t latent[2] = {ATTN_ANY, p->kv_lora_rank};
  int64_t rotary[2] = {ATTN_ANY, p->qk_rope_head_dim};
  attn_view unused;
  ATTN_TRY(attn_view_make(&unused, c->args->kv_c, "kv_c", ATTN_READ, ATTN_DTYPE_FLOATS, 2, latent, message));
  return attn_view_make(&unused, c->args->k_pe, "k_pe", ATTN_READ, ATTN_DTYPE_FLOATS, 2, rotary, message);
}

/* New rows that are written first: judged as a write of its own. Without a slot there may be no rows either. */
static attn_status view_write(latent_call *c, attn_message *message) {
  const attn_mla_args *args = c->args;
  const attn_problem *p = &c->plan->problem;
  if (args->slot_mapping == NULL) {
    return attn_fail(message, ATTN_E_NULL,
                     "slot_mapping: NULL, expected a tensor (of no entries where all rows were "
                     "written before)");
  }
  if (args->kv_c == NULL && args->k_pe == NULL) {
    attn_view slots;
    int64_t none = 0;
    return attn_run_hint(attn_view_make(&slots, args->slot_mapping, "slot_mapping", ATTN_READ,
                                        ATTN_DTYPE_BIT(ATTN_DTYPE_INT64), 1, &none, message),
                         ATTN_E_SHAPE, "kv_c is NULL", message);
  }
  attn_cache_write_args write = ATTN_CACHE_WRITE_INIT;
  write.k_format = p->k_format;
  write.unchecked = args->unchecked;
  write.kv_c = args->kv_c;
  write.k_pe = args->k_pe;
  write.slot_mapping = args->slot_mapping;
  write.kv_cache = args->kv_cache;
  write.kv_scale = args->kv_scale;
  write.rotary_dtype = p->rotary_dtype;
  if (write.kv_cache == NULL) {
    return attn_fail(message, ATTN_E_NULL, "kv_cache: NULL, expected a tensor");
  }
  ATTN_TRY(check_new_rows(c, message));
  ATTN_TRY(attn_cache_write_view(&write, &c->write, message));
  c->writes = 1;
  return ATTN_OK;
}

static attn_status view_new_rows(latent_call *c, attn_message *message) {
  const attn_problem *p = &c->plan->problem;
  if (p->mla_form == ATTN_MLA_MQA) {
    return refuse_projection(c->args, message);
  }
  ATTN_TRY(check_weights(p, c->args->weights, message));
  c->view.weights = c->args->weights;
  if (p->mla_form == ATTN_MLA_LAYER || (p->kv_source == ATTN_KV_CACHE && c->args->slot_mapping != NULL)) {
    return view_write(c, message);
  }
  return view_fresh(c, message);
}

/* A layer's out has the heads joined. */
static attn_status view_outputs(latent_call *c, attn_message *message) {
  const attn_problem *p = &c->plan->problem;
  if (p->mla_form != ATTN_MLA_LAYER) {
    return attn_run_view_outputs(c->plan, &c->options, &c->view, message);
  }
  ATTN_TRY(attn_refuse_tensor(c->args->lse, "lse", "a layer's heads are joined", message));
  attn_view *out = &c->view.out;
  int64_t shape[2] = {ATTN_ANY, (int64_t)p->num_q_heads * p->v_head_size};
  attn_status status =
      attn_view_make(out, c->args->out, "out", ATTN_WRITE, ATTN_DTYPE_BIT(p->out_dtype), 2, shape, message);
  status = attn_run_hint(status, ATTN_E_SHAPE, "tokens, num_q_heads * mla_v_head_dim", message);
  ATTN_TRY(attn_run_hint(status, ATTN_E_DTYPE, "problem.out_dtype", message));
  ATTN_TRY(attn_run_at_least_tokens(out, "out", c->view.step, message));
  out->ndim = 3;
  out->shape[1] = p->num_q_heads;
  out->shape[2] = p->v_head_size;
  out->stride[2] = out->stride[1];
  out->stride[1] = out->stride[2] * p->v_head_size;
  return attn_run_view_output_scales(c->plan, &c->options, &c->view, message);
}

typedef struct named_view {
  const attn_view *view;
  const char *name;
} named_view;

/* What is written apart from each other and from every input. */
static attn_status check_overlaps(const latent_call *c, attn_message *message) {
  static const attn_view none;
  const attn_run_view *v = &c->view;
  attn_view workspace = attn_workspace_view(c->plan, c->scratch - c->plan->step_bytes);
  attn_view scale = attn_rows_scale_tensor(&v->k_rows);
  int writes_scale = c->writes && v->k_rows.separate;
  const named_view written[] = {
      {&workspace, "workspace"},
      {&v->out, "out"},
      {&v->lse, "lse"},
      {&v->out_scale, "out_scale"},
      {c->writes ? &v->k_cache : &none, "kv_cache"},
      {writes_scale ? &scale : &none, "kv_scale"},
  };
  const named_view inputs[] = {
      {&v->q, "q"},
      {&v->q_rope, "q_rope"},
      {c->writes ? &c->write.k : &v->kv_c, "kv_c"},
      {c->writes ? &c->write.k_pe : &v->k_pe, "k_pe"},
      {c->writes ? &none : &v->k_cache, "kv_cache"},
      {writes_scale ? &none : &scale, "kv_scale"},
      {c->writes ? &c->write.slot_mapping : &none, "slot_mapping"},
      {&v->block_table, "block_table"},
      {&v->alibi_slopes, "alibi_slopes"},
      {&v->sinks, "sinks"},
      {&v->bias, "bias"},
      {&v->prefix_ranges, "prefix_ranges"},
      {&v->causal_per_seq, "causal_per_seq"},
      {&v->output_scale, "output_scale"},
  };
  for (size_t i = 0; i < sizeof written / sizeof written[0]; i++) {
    const named_view *w = &written[i];
    for (size_t j = 0; j < i; j++) {
      ATTN_TRY(attn_refuse_overlap(w->view, w->name, written[j].view, written[j].name, message));
    }
    for (size_t j = 0; j < sizeof inputs / sizeof inputs[0]; j++) {
      ATTN_TRY(attn_refuse_overlap(w->view, w->name, inputs[j].view, inputs[j].name, message));
    }
  }
  return ATTN_OK;
}

static void copy_options(latent_call *c) {
  const attn_mla_args *args = c->args;
  c->options = (attn_run_args)ATTN_RUN_INIT;
  c->options.alibi_slopes = args->alibi_slopes;
  c->options.sinks = args->sinks;
  c->options.bias = args->bias;
  c->options.prefix_ranges = args->prefix_ranges;
  c->options.causal_per_seq = args->causal_per_seq;
  c->options.out = args->out;
  c->options.lse = args->lse;
  c->options.output_scale = args->output_scale;
  c->options.out_scale = args->out_scale;
}

static attn_status run_scheduled(const attn_plan *plan, const attn_mla_args *args, const attn_workspace *workspace,
                                 attn_message *message) {
  latent_call c;
  memset(&c, 0, sizeof c);
  c.plan = plan;
  c.args = args;
  copy_options(&c);
  ATTN_TRY(attn_step_of(plan, workspace, &c.view.step, &c.scratch, message));
  if (args->unchecked != 0 && args->unchecked != 1) {
    return attn_fail(message, ATTN_E_RANGE, "unchecked: %d, accepted: 0 or 1", (int)args->unchecked);
  }
  c.view.problem = &plan->problem;
  c.view.unchecked = args->unchecked;
  ATTN_TRY(view_queries(&c, message));
  ATTN_TRY(view_new_rows(&c, message));
  ATTN_TRY(view_cache(&c, message));
  ATTN_TRY(attn_run_view_options(plan, &c.options, &c.view, message));
  ATTN_TRY(view_outputs(&c, message));
  ATTN_TRY(check_overlaps(&c, message));
  ATTN_TRY(attn_run_check_lists(&c.view, message));
  if (c.writes) {
    ATTN_TRY(plan->backend->cache_write(plan->context, &c.write, message));
  }
  return plan->backend->run(plan, &c.view, c.scratch, message);
}

static attn_status run(attn_mla_form form, const attn_plan *plan, const attn_mla_args *args,
                       const attn_workspace *workspace, attn_message *message) {
  ATTN_CHECK_POINTER(plan, "plan", message);
  ATTN_CHECK_STRUCT(args, "args", attn_mla_args, message);
  if (plan->problem.kv_lora_rank == 0 || plan->problem.mla_form != form) {
    return attn_fail(message, ATTN_E_STATE, "plan: is for %s, not for %s",
                     plan->problem.kv_lora_rank == 0 ? "attn_run" : attn_mla_call_name(plan->problem.mla_form),
                     attn_mla_call_name(form));
  }
  if (args->unchecked) {
    return run_scheduled(plan, args, workspace, message);
  }
  unsigned char *data;
  ATTN_TRY(attn_workspace_of(plan, workspace, &data, message));
  ATTN_TRY(attn_workspace_take(plan, data, message));
  attn_status status = run_scheduled(plan, args, workspace, message);
  attn_workspace_give_back(plan, data);
  return status;
}

attn_status attn_mla_run_mqa(const attn_plan *plan, const attn_mla_args *args, const attn_workspace *workspace,
                             attn_message *message) {
  return run(ATTN_MLA_MQA, plan, args, workspace, message);
}

attn_status attn_mla_run_mha(const attn_plan *plan, const attn_mla_args *args, const attn_workspace *workspace,
                             attn_message *message) {
  return run(ATTN_MLA_MHA, plan, args, workspace, message);
}

attn_status attn_mla_layer_run(const attn_plan *plan, const attn_mla_args *args, const attn_workspace *workspace,
                               attn_message *message) {
  return run(ATTN_MLA_LAYER, plan, args, workspace, message);
}
