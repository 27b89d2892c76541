/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_problem.c: the problem descriptor. The input is a stream of choices: a problem of ordinary values, some of whose
 * fields are then replaced by anything, with limits and options drawn likewise. attn_problem_check(), attn_explain(),
 * attn_select() and attn_plan_create() must say the same about it, refuse without touching an output, and REFERENCE
 * must plan whatever is valid. What is small enough is run (fuzz_problem_run.c).
 */
#define _XOPEN_SOURCE 700
#include "fuzz_problem.h"

#include <stdlib.h>
#include <string.h>

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

/* Threads that run one after the other, the last one first. */
static void run_backwards(void *user, attn_task task, void *argument, size_t count) {
  (void)user;
  while (count > 0) {
    task(argument, --count);
  }
}

static attn_context *contexts[FUZZ_CONTEXTS];

static void destroy_contexts(void) {
  for (int i = 0; i < FUZZ_CONTEXTS; i++) {
    attn_context_destroy(contexts[i]);
  }
}

static void open_contexts(void) {
  static const int32_t threads[FUZZ_CONTEXTS] = {1, 3};
  const attn_executor executor = {NULL, run_backwards};
  (void)unsetenv("ATTN_BACKEND");
  for (int i = 0; i < FUZZ_CONTEXTS; i++) {
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    attn_message message = {ATTN_OK, ""};
    options.num_threads = threads[i];
    options.executor = &executor;
    FUZZ_CHECK(attn_context_create(&options, &contexts[i], &message) == ATTN_OK, "no context: %s", message.text);
  }
  (void)atexit(destroy_contexts);
}

/* ---- Drawing ----------------------------------------------------------------------------------------------------- */

static int32_t pick(fuzz_bytes *in, const int32_t *values, int32_t count) {
  return values[fuzz_below(in, count)];
}
#define PICK(in, ...)                                                                                                  \
  pick(in, (const int32_t[]){__VA_ARGS__}, (int32_t)(sizeof(const int32_t[]){__VA_ARGS__} / sizeof(int32_t)))

/* Mostly 0. */
static int32_t rarely(fuzz_bytes *in) {
  return fuzz_below(in, 4) == 3;
}

static void draw_types(fuzz_bytes *in, attn_problem *p) {
  p->q_dtype = (attn_dtype)PICK(in, 0, 1, 2, 3, 1, 3, 4);
  p->out_dtype = (attn_dtype)PICK(in, 0, 0, 1, 2, 3, 4);
  if (p->kv_source == ATTN_KV_DIRECT) {
    p->kv_dtype = (attn_dtype)PICK(in, 0, 1, 2, 3);
    return;
  }
  p->k_format = (attn_format)PICK(in, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8);
  p->v_format = (attn_format)PICK(in, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8);
  p->layout = (attn_layout)fuzz_below(in, 2);
  p->block_size = PICK(in, 0, 1, 2, 3, 5, 16, 17, 32);
  int per_token = (p->k_format >= 6 && p->k_format <= 8) || (p->v_format >= 6 && p->v_format <= 8);
  p->separate_scales = per_token ? PICK(in, 0, 0, 1, 1, 2, 3) : fuzz_below(in, 16) == 15;
}

static void draw_mask(fuzz_bytes *in, attn_problem *p) {
  p->causal = fuzz_below(in, 2);
  p->window_left = PICK(in, -1, -1, -1, 0, 1, 7, 30);
  p->window_right = PICK(in, -1, -1, -1, 0, 2, 9);
  p->chunk_size = PICK(in, 0, 0, 0, 1, 4, 9, 32);
  p->chunk_lookback = p->chunk_size > 0 ? fuzz_below(in, 3) : 0;
  p->has_prefix_ranges = rarely(in);
  p->prefix_clamp = p->has_prefix_ranges ? fuzz_below(in, 2) : 0;
  p->has_causal_per_seq = rarely(in);
}

static void draw_problem(fuzz_bytes *in, attn_problem *p) {
  const attn_problem initial = ATTN_PROBLEM_INIT;
  *p = initial;
  p->kv_source = rarely(in) ? ATTN_KV_DIRECT : ATTN_KV_CACHE;
  p->num_kv_heads = 1 + fuzz_below(in, 4);
  p->num_q_heads = p->num_kv_heads * (1 + fuzz_below(in, 3));
  p->qk_head_size = PICK(in, 1, 2, 3, 4, 8, 8, 16, 17, 64, 65);
  p->v_head_size = PICK(in, 0, 0, 1, 4, 8, 15, 16, 65);
  draw_types(in, p);
  p->scale = rarely(in) ? fuzz_float(in) : 0.125f;
  p->softcap = rarely(in) ? fuzz_float(in) : 0.0f;
  draw_mask(in, p);
  p->alibi = (attn_alibi)PICK(in, 0, 0, 0, 1, 2);
  p->has_sinks = rarely(in);
  p->has_bias = rarely(in);
  p->wants_lse = fuzz_below(in, 2);
  p->batch_invariant = rarely(in);
  p->output_block = p->out_dtype == ATTN_DTYPE_FP8_E4M3 || rarely(in) ? PICK(in, 0, 64, 128) : 0;
}

/* The same over latent rows: what attention alone has goes back to its initial value, mostly. */
static void make_latent(fuzz_bytes *in, attn_problem *p) {
  const attn_problem initial = ATTN_PROBLEM_INIT;
  int keep = fuzz_below(in, 8) == 7;
  p->mla_form = (attn_mla_form)PICK(in, ATTN_MLA_MQA, ATTN_MLA_MHA, ATTN_MLA_LAYER);
  p->kv_lora_rank = PICK(in, 1, 2, 7, 16, 41, 512, 512);
  p->qk_rope_head_dim = PICK(in, 0, 1, 4, 5, 64, 64);
  p->k_format = (attn_format)PICK(in, 0, ATTN_FORMAT_FLOAT32, ATTN_FORMAT_BFLOAT16, ATTN_FORMAT_FP8_E4M3,
                                  ATTN_FORMAT_INT8_PER_TOKEN_HEAD, ATTN_FORMAT_INT4_PER_TOKEN_HEAD,
                                  ATTN_FORMAT_FP8_DS_MLA, ATTN_FORMAT_FP8_E5M2);
  p->rotary_dtype =
      (attn_dtype)(p->k_format >= ATTN_FORMAT_INT8_PER_TOKEN_HEAD ? PICK(in, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16, 0)
                                                                  : PICK(in, 0, 0, 0, ATTN_DTYPE_BFLOAT16));
  if (p->mla_form != ATTN_MLA_MQA) {
    p->qk_nope_head_dim = PICK(in, 1, 9, 128, 0);
    p->mla_v_head_dim = PICK(in, 1, 12, 128, 256);
    p->context_chunk = PICK(in, 0, 0, 0, 1, 8, 256);
  }
  if (keep) {
    return;
  }
  p->num_kv_heads = initial.num_kv_heads;
  p->qk_head_size = initial.qk_head_size;
  p->v_head_size = initial.v_head_size;
  p->kv_dtype = initial.kv_dtype;
  p->v_format = ATTN_FORMAT_AUTO;
  p->layout = initial.layout;
  p->kv_source = p->mla_form == ATTN_MLA_MHA ? p->kv_source : ATTN_KV_CACHE;
  p->separate_scales = p->separate_scales ? ATTN_SEPARATE_BOTH : 0;
  if (p->mla_form != ATTN_MLA_MQA) {
    p->causal = 1;
    p->has_causal_per_seq = 0;
  }
  p->wants_lse = p->mla_form == ATTN_MLA_LAYER ? 0 : p->wants_lse;
}

static void draw_limits(fuzz_bytes *in, attn_plan_limits *l) {
  const attn_plan_limits initial = ATTN_PLAN_LIMITS_INIT;
  *l = initial;
  l->max_seqs = PICK(in, 0, 1, 2, 4, 5);
  l->max_tokens = PICK(in, 20, 20, 1, 3, 16, 4096);
  l->max_kv_len = PICK(in, 64, 64, 1, 17, 600, 4096);
}

static void draw_options(fuzz_bytes *in, attn_plan_options *o, char name[16]) {
  static const char *const names[] = {NULL,          NULL,      "REFERENCE",  "CPU_ATTN", "",    "auto",
                                      "TRITON_ATTN", "CPU_MLA", "HOPPER_MLA", "cpu_attn", "AUTO"};
  const attn_plan_options initial = ATTN_PLAN_OPTIONS_INIT;
  *o = initial;
  int32_t choice = fuzz_below(in, 12);
  if (choice < 11) {
    o->backend = names[choice];
  } else { /* whatever a caller got from somewhere */
    for (int i = 0; i < 15; i++) {
      name[i] = (char)fuzz_u8(in);
    }
    name[15] = '\0';
    o->backend = name;
  }
  o->num_splits = PICK(in, 0, 0, 0, 1, 2, 3, 7, 4096);
  o->own_workspace = fuzz_below(in, 2);
}

/* Replace words of a struct by anything. */
static void spoil(fuzz_bytes *in, void *structure, size_t bytes) {
  for (int32_t changes = PICK(in, 0, 0, 0, 0, 1, 2, 3); changes > 0; changes--) {
    size_t word = (size_t)fuzz_u8(in) % (bytes / sizeof(int32_t));
    int32_t value = fuzz_i32(in);
    float number;
    if (value % 8 == 7) {
      number = fuzz_float(in);
      memcpy(&value, &number, sizeof value);
    }
    memcpy((char *)structure + word * sizeof value, &value, sizeof value);
  }
}

static void spoil_limits(fuzz_bytes *in, attn_plan_limits *l) {
  switch (PICK(in, 0, 0, 0, 0, 0, 1, 2, 3, 4)) {
  case 1:
    l->max_tokens = fuzz_i64(in);
    break;
  case 2:
    l->max_kv_len = fuzz_i64(in);
    break;
  case 3:
    l->max_seqs = fuzz_i32(in);
    break;
  case 4:
    l->size = (uint32_t)fuzz_i32(in);
    break;
  default:
    break;
  }
}

static void spoil_options(fuzz_bytes *in, attn_plan_options *o) {
  switch (PICK(in, 0, 0, 0, 0, 0, 1, 2, 3, 4)) {
  case 1:
    o->num_splits = fuzz_i32(in);
    break;
  case 2:
    o->split_rule = (attn_split_rule)fuzz_i32(in);
    break;
  case 3:
    o->own_workspace = fuzz_i32(in);
    break;
  case 4:
    o->size = (uint32_t)fuzz_i32(in);
    break;
  default:
    break;
  }
}

/* ---- What is said about it --------------------------------------------------------------------------------------- */

enum { MAX_OWN_WORKSPACE = 1 << 22 };

/* As plan.h says it. */
static int valid_limits(const attn_plan_limits *l) {
  return l->size == sizeof *l && l->max_tokens >= 1 && l->max_tokens <= INT32_MAX && l->max_kv_len >= 1 &&
         l->max_kv_len <= INT32_MAX && l->max_seqs >= 0 && l->max_seqs <= 1 << 24;
}

/* Cuts of one row's keys by count or rule: neither where they are at fixed positions nor where chunks cut them. */
static int valid_split_rule(const attn_plan_options *o, const attn_problem *p) {
  int expanded = p->kv_lora_rank > 0 && p->mla_form == ATTN_MLA_MHA;
  return (o->split_rule == ATTN_SPLIT_DEFAULT && (!expanded || o->num_splits == 0)) ||
         (o->split_rule == ATTN_SPLIT_COMPATIBLE && p->batch_invariant == 0 && !expanded);
}

static int valid_options(const attn_plan_options *o, const attn_problem *p) {
  return o->size == sizeof *o && o->num_splits >= 0 && o->num_splits <= 4096 &&
         (o->num_splits == 0 || p->batch_invariant == 0) && valid_split_rule(o, p) &&
         (o->own_workspace == 0 || o->own_workspace == 1);
}

static attn_status create(const attn_problem *p, const attn_plan_limits *l, const attn_plan_options *o,
                          attn_plan **plan) {
  attn_message message;
  *plan = NULL;
  fuzz_message_reset(&message);
  attn_status status = attn_plan_create(contexts[0], p, l, o, plan, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK((status == ATTN_OK) == (*plan != NULL), "status %d and a plan", (int)status);
  FUZZ_CHECK(attn_plan_create(contexts[0], p, l, o, NULL, NULL) == ATTN_E_NULL, "a plan without a place");
  return status;
}

static void check_rows(const attn_explanation *e) {
  int32_t taken = 0;
  FUZZ_CHECK(e->num_rows >= 1 && e->num_rows <= ATTN_EXPLAIN_ROWS, "%d rows", (int)e->num_rows);
  for (int32_t i = 0; i < e->num_rows; i++) {
    const attn_explain_row *row = &e->rows[i];
    fuzz_check_line(row->backend, 64);
    fuzz_check_line(row->reason, sizeof row->reason);
    fuzz_check_line(attn_verdict_name(row->verdict), 64);
    if (row->verdict == ATTN_VERDICT_TAKEN) {
      taken++;
      FUZZ_CHECK(strcmp(row->backend, e->pick) == 0, "%s is taken, the pick is %s", row->backend, e->pick);
    }
  }
  FUZZ_CHECK(taken == (e->status == ATTN_OK), "status %d and %d backends taken", (int)e->status, (int)taken);
}

/* Each name forced: what the explanation says of it is what a plan gets. */
static void check_forced(const attn_explanation *e, const attn_problem *p, const attn_plan_limits *l,
                         const attn_plan_options *o) {
  for (int32_t i = 0; i < e->num_rows; i++) {
    const attn_explain_row *row = &e->rows[i];
    attn_plan *plan;
    attn_plan_options forced = *o;
    forced.backend = row->backend;
    forced.own_workspace = 0;
    attn_status status = create(p, l, &forced, &plan);
    int able = row->verdict == ATTN_VERDICT_TAKEN || row->verdict == ATTN_VERDICT_ABLE;
    FUZZ_CHECK(able ? status == ATTN_OK || status == ATTN_E_OVERFLOW : status == ATTN_E_BACKEND,
               "%s is %s, forced it is status %d", row->backend, attn_verdict_name(row->verdict), (int)status);
    FUZZ_CHECK(strcmp(row->backend, "REFERENCE") != 0 || status == ATTN_OK, "REFERENCE refuses: %s", row->reason);
    attn_plan_destroy(plan);
  }
}

/* The plan is what the explanation promised. */
static void check_plan(const attn_plan *plan, const attn_explanation *e, const char *selected) {
  attn_plan_info info = ATTN_PLAN_INFO_INIT;
  attn_message message;
  fuzz_message_reset(&message);
  attn_status status = attn_plan_get_info(plan, &info, &message);
  fuzz_message_check(status, &message);
  FUZZ_CHECK(status == ATTN_OK && strcmp(info.backend, e->pick) == 0 && strcmp(info.backend, selected) == 0,
             "explain picks %s, select %s", e->pick, selected);
  fuzz_check_line(info.reason, sizeof info.reason);
  FUZZ_CHECK(info.workspace_bytes == e->workspace_bytes && info.workspace_bytes == attn_plan_workspace_bytes(plan) &&
                 info.workspace_bytes % ATTN_WORKSPACE_ALIGN == 0 && info.max_splits == e->max_splits &&
                 info.block_size == e->block_size,
             "the plan is another one than explained");
}

/* Explain and select; returns the explanation's call. */
static attn_status ask(const attn_problem *p, const attn_plan_limits *l, const attn_plan_options *o,
                       attn_explanation *e, const char **selected) {
  static const char nobody[] = "nobody";
  const attn_explanation initial = ATTN_EXPLANATION_INIT;
  attn_message message;
  attn_message second;
  *e = initial;
  *selected = nobody;
  fuzz_message_reset(&message);
  attn_status status = attn_explain(contexts[0], p, l, o, e, &message);
  fuzz_message_check(status, &message);
  fuzz_message_reset(&second);
  attn_status select = attn_select(contexts[0], p, l, o, selected, &second);
  fuzz_message_check(select, &second);
  FUZZ_CHECK((select == ATTN_OK) == (*selected != nobody), "status %d and a name", (int)select);
  if (status != ATTN_OK) {
    FUZZ_CHECK(memcmp(e, &initial, sizeof *e) == 0, "a refused explanation was written: %s", message.text);
    FUZZ_CHECK(select == status && strcmp(message.text, second.text) == 0, "explain: %s; select: %s", message.text,
               second.text);
    return status;
  }
  fuzz_check_line(e->reason, sizeof e->reason);
  check_rows(e);
  FUZZ_CHECK(select == e->status || (select == ATTN_OK && e->status == ATTN_E_OVERFLOW), "explain %d, select %d",
             (int)e->status, (int)select);
  return ATTN_OK;
}

static void judge(const attn_problem *p, const attn_plan_limits *l, const attn_plan_options *o, fuzz_bytes *in) {
  attn_message message;
  attn_explanation explanation;
  const char *selected;
  attn_plan *plan;
  const attn_problem kept = *p;
  fuzz_message_reset(&message);
  attn_status checked = attn_problem_check(p, &message);
  fuzz_message_check(checked, &message);
  FUZZ_CHECK(memcmp(p, &kept, sizeof kept) == 0, "the problem was changed");
  attn_status asked = ask(p, l, o, &explanation, &selected);
  FUZZ_CHECK(checked == ATTN_OK ? asked == ATTN_OK || !valid_limits(l) || !valid_options(o, p) : asked == checked,
             "check %d, explain %d", (int)checked, (int)asked);
  attn_plan_options affordable = *o;
  if (asked == ATTN_OK && explanation.workspace_bytes > MAX_OWN_WORKSPACE) {
    affordable.own_workspace = 0;
  }
  attn_status planned = create(p, l, &affordable, &plan);
  FUZZ_CHECK(planned == (asked == ATTN_OK ? explanation.status : asked), "explain %d, plan %d",
             (int)(asked == ATTN_OK ? explanation.status : asked), (int)planned);
  if (planned == ATTN_OK) {
    check_plan(plan, &explanation, selected);
  }
  attn_plan_destroy(plan);
  if (asked == ATTN_OK) {
    check_forced(&explanation, p, l, o);
  }
  if (planned == ATTN_OK) {
    fuzz_run_problem(contexts, p, l, &affordable, in);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  attn_problem problem;
  attn_plan_limits limits;
  attn_plan_options options;
  char name[16];
  fuzz_bytes in = {data, size};
  if (contexts[0] == NULL) {
    open_contexts();
  }
  draw_problem(&in, &problem);
  draw_limits(&in, &limits);
  draw_options(&in, &options, name);
  if (fuzz_below(&in, 4) == 3) {
    make_latent(&in, &problem);
  }
  spoil(&in, &problem, sizeof problem);
  spoil_limits(&in, &limits);
  spoil_options(&in, &options);
  judge(&problem, &limits, &options, &in);
  return 0;
}
