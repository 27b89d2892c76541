/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_layer.c: see cpu_mla.h. A round is a range of the batch's tokens; of them the absorbed sequences' count. */
#include <string.h>

#include "core/fault.h"
#include "cpu/cpu_mla.h"

#define ROUND_BYTES ((uint64_t)16 << 20) /* of absorbed queries and latent results */
#define ALIGN ATTN_WORKSPACE_ALIGN

int32_t attn_cpu_mla_threshold(const attn_problem *p) {
  if (p->batch_invariant) {
    return INT32_MAX; /* whose rows may not depend on their sequence's length */
  }
  double saved = 2.0 * p->kv_lora_rank - (double)p->qk_nope_head_dim - p->mla_v_head_dim;
  double tokens = (double)p->kv_lora_rank * ((double)p->qk_nope_head_dim + p->mla_v_head_dim) / saved;
  return saved <= 0.0 || tokens >= (double)INT32_MAX ? INT32_MAX : (int32_t)tokens;
}

static attn_problem inner_problem(const attn_problem *p) {
  attn_problem inner = *p;
  inner.mla_form = ATTN_MLA_MQA;
  inner.qk_head_size = p->kv_lora_rank + p->qk_rope_head_dim;
  inner.v_head_size = p->kv_lora_rank;
  inner.q_dtype = inner.out_dtype = ATTN_DTYPE_FLOAT32;
  inner.output_block = 0;
  inner.qk_nope_head_dim = inner.mla_v_head_dim = inner.context_chunk = 0;
  return inner;
}

/* Floats of a thread that projects: coefficients and rows of ATTN_CPU_TOKENS tokens. */
static uint64_t projection_bytes(const attn_cpu_layer *layer, const attn_problem *p) {
  uint64_t widest =
      (uint64_t)layer->o_padded > (uint64_t)p->v_head_size ? (uint64_t)layer->o_padded : (uint64_t)p->v_head_size;
  uint64_t floats = ATTN_CPU_TOKENS * (ATTN_CPU_KEYS + 1 + (uint64_t)layer->o_padded + widest +
                                       attn_round_up((uint64_t)p->qk_head_size, ATTN_CPU_PAD));
  return attn_round_up(floats * sizeof(float), ALIGN);
}

int attn_cpu_layer_of(const attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                      int32_t num_splits, attn_split_rule split_rule, attn_cpu_layer *layer) {
  memset(layer, 0, sizeof *layer);
  layer->inner = inner_problem(problem);
  layer->threshold = attn_cpu_mla_threshold(problem);
  layer->q_padded = (int32_t)attn_round_up((uint64_t)layer->inner.qk_head_size, ATTN_CPU_PAD);
  layer->o_padded = (int32_t)attn_round_up((uint64_t)problem->kv_lora_rank, ATTN_CPU_PAD);
  uint64_t token = ((uint64_t)layer->q_padded + (uint64_t)layer->o_padded) * sizeof(float);
  if (attn_mul_overflow(token, (uint64_t)problem->num_q_heads, &token)) {
    return 0;
  }
  uint64_t tokens = ROUND_BYTES / token;
  layer->round_tokens = (int32_t)attn_max(1, attn_min((int64_t)tokens, limits->max_tokens));
  attn_plan_limits round = *limits;
  round.max_tokens = layer->round_tokens;
  if (!attn_cpu_shape_of(context, &layer->inner, &round, num_splits, split_rule, &layer->absorbed) ||
      !attn_cpu_expand_of(context, problem, limits, &layer->expand)) {
    return 0;
  }
  uint64_t projection = projection_bytes(layer, problem);
  layer->thread_bytes = layer->absorbed.thread_bytes > projection ? layer->absorbed.thread_bytes : projection;
  if (layer->threshold < limits->max_tokens && layer->expand.thread_bytes > layer->thread_bytes) {
    layer->thread_bytes = layer->expand.thread_bytes;
  }
  uint64_t threads = (uint64_t)context->threads.num_threads;
  uint64_t heads = (uint64_t)problem->num_q_heads * (uint64_t)layer->round_tokens;
  uint64_t shares = layer->absorbed.total_bytes - layer->absorbed.thread_bytes * threads;
  layer->threads_at = attn_round_up(shares, ALIGN);
  layer->queries_at = layer->threads_at + layer->thread_bytes * threads;
  layer->results_at = layer->queries_at + attn_round_up(heads * (uint64_t)layer->q_padded * sizeof(float), ALIGN);
  layer->total_bytes = layer->results_at + attn_round_up(heads * (uint64_t)layer->o_padded * sizeof(float), ALIGN);
  return layer->total_bytes < UINT64_MAX / 4;
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

typedef struct round {
  int64_t begin; /* tokens of the batch */
  int64_t end;
  int32_t shares; /* of scratch.seqs */
} round;

static int is_absorbed(const attn_cpu_layer *layer, const attn_step *step, int32_t seq) {
  int64_t q_len = (int64_t)step->query_start_loc[seq + 1] - step->query_start_loc[seq];
  return q_len > 0 && q_len <= layer->threshold;
}

/* The round that begins at or after r->end: its range and its shares. 0: there is none. `seq` goes on from call to
   call. */
static int next_round(const attn_cpu_layer *layer, const attn_step *step, int32_t *seq, round *r, attn_cpu_seq *seqs) {
  int64_t heads = layer->inner.num_q_heads;
  r->shares = 0;
  while (*seq < step->num_seqs) {
    int64_t first = step->query_start_loc[*seq];
    int64_t last = step->query_start_loc[*seq + 1];
    if (!is_absorbed(layer, step, *seq) || last <= r->end) {
      ++*seq;
      continue;
    }
    int64_t from = attn_max(first, r->end);
    if (r->shares == 0) {
      r->begin = from;
      r->end = from; /* what lies before is done */
    } else if (from >= r->begin + layer->round_tokens) {
      break;
    }
    int64_t to = attn_min(last, r->begin + layer->round_tokens);
    seqs[r->shares].seq = *seq;
    seqs[r->shares].first_row = (from - first) * heads;
    seqs[r->shares].rows = (to - from) * heads;
    r->shares++;
    r->end = to;
    if (to < last) {
      break; /* the rest in the next round */
    }
    ++*seq;
  }
  return r->shares > 0;
}

static attn_cpu_cut cut_of(const attn_plan *plan, const attn_cpu_layer *layer, const attn_step *step) {
  attn_cpu_cut cut = {&layer->inner,    &layer->absorbed, step, plan->context->threads.num_threads,
                      plan->num_splits, plan->split_rule};
  return cut;
}

void attn_cpu_layer_schedule(const attn_plan *plan, attn_step *step, void *memory) {
  attn_cpu_layer layer;
  (void)attn_cpu_layer_of(plan->context, &plan->problem, &plan->limits, plan->num_splits, plan->split_rule, &layer);
  attn_cpu_scratch scratch = attn_cpu_scratch_at(&layer.absorbed, memory);
  attn_cpu_cut cut = cut_of(plan, &layer, step);
  round r = {0, 0, 0};
  int32_t seq = 0;
  step->splits = 1;
  step->work_items = attn_cpu_expand_items(&plan->problem, step, &layer.expand, layer.threshold);
  while (next_round(&layer, step, &seq, &r, scratch.seqs)) {
    step->splits = (int32_t)attn_max(step->splits, attn_cpu_cut_rows(&cut, scratch.seqs, r.shares));
    step->work_items += scratch.seqs[r.shares].first_item;
  }
}

/* ---- Projections ------------------------------------------------------------------------------------------------- */

typedef struct layer_job {
  attn_cpu_job absorbed; /* of the round at hand */
  attn_cpu_job outer;    /* the layer's own problem and view */
  const attn_cpu_layer *layer;
  attn_run_view inner_view;
  unsigned char *threads;
  float *queries; /* [round tokens, heads, q_padded] */
  float *results; /* [round tokens, heads, o_padded] */
  round r;
  int64_t blocks; /* of ATTN_CPU_TOKENS tokens of the round */
} layer_job;

/* One thread's buffers of a projection. */
typedef struct project_buffers {
  float *coefficients; /* [tokens, ATTN_CPU_KEYS] */
  float *ones;         /* [tokens] */
  float *latent;       /* [tokens, o_padded] */
  float *wide;         /* [tokens, o_padded or v] */
  float *query;        /* [tokens, qk_head_size padded] */
} project_buffers;

static project_buffers buffers_at(const layer_job *job, size_t thread) {
  const attn_cpu_layer *layer = job->layer;
  const int64_t tokens = ATTN_CPU_TOKENS;
  int64_t widest = attn_max(layer->o_padded, job->outer.problem->v_head_size);
  project_buffers b;
  b.latent = (float *)(void *)(job->threads + thread * layer->thread_bytes);
  b.coefficients = b.latent + tokens * layer->o_padded;
  b.query = b.coefficients + tokens * ATTN_CPU_KEYS;
  b.wide = b.query + tokens * (int64_t)attn_round_up((uint64_t)job->outer.problem->qk_head_size, ATTN_CPU_PAD);
  b.ones = b.wide + tokens * widest;
  return b;
}

/* Item: a head and a block of the round's tokens. Tokens of sequences that are not absorbed are computed too where they
   lie between, and never used. */
static void find_block(const layer_job *job, int64_t item, int64_t *head, int64_t *begin, int32_t *count) {
  *head = item / job->blocks;
  *begin = job->r.begin + item % job->blocks * ATTN_CPU_TOKENS;
  *count = (int32_t)attn_min(job->r.end - *begin, ATTN_CPU_TOKENS);
}

/* q~ = W_UK^T q_nope of a head, beside q_rope. */
static void absorb(const void *argument, int64_t item, size_t thread) {
  const layer_job *job = argument;
  const attn_problem *p = job->outer.problem;
  const attn_mla_weights *w = job->outer.view->weights;
  const attn_view *q = &job->outer.view->q;
  const attn_cpu_layer *layer = job->layer;
  project_buffers b = buffers_at(job, thread);
  int32_t query = (int32_t)attn_round_up((uint64_t)p->qk_head_size, ATTN_CPU_PAD);
  int32_t nope = p->qk_nope_head_dim - (attn_fault(ATTN_FAULT_ABSORB_TAIL) ? 1 : 0);
  int64_t head;
  int64_t begin;
  int32_t count;
  find_block(job, item, &head, &begin, &count);
  int64_t weights = attn_fault(ATTN_FAULT_ABSORB_HEAD) && head > 0 ? head - 1 : head;
  for (int32_t t = 0; t < count; t++) {
    b.ones[t] = 1.0f;
    attn_cpu_load_rows(job->outer.table, q->dtype, b.query + (int64_t)t * query,
                       q->data + (begin + t) * q->stride[0] + head * q->stride[1], 0, q->stride[2], 1, p->qk_head_size,
                       query);
  }
  memset(b.latent, 0, (size_t)count * (size_t)w->padded * sizeof(float));
  for (int32_t n = 0; n < nope; n += ATTN_CPU_KEYS) {
    int32_t keys = (int32_t)attn_min(nope - n, ATTN_CPU_KEYS);
    int32_t whole = (int32_t)attn_round_up((uint64_t)keys, ATTN_CPU_KEY_STEP);
    for (int32_t t = 0; t < count; t++) {
      float *row = b.coefficients + (int64_t)t * ATTN_CPU_KEYS;
      memcpy(row, b.query + (int64_t)t * query + n, (size_t)keys * sizeof(float));
      memset(row + keys, 0, (size_t)(whole - keys) * sizeof(float));
    }
    job->outer.table->pv(b.latent, b.ones, b.coefficients, attn_mla_uk(w, weights, n), count, whole, w->padded,
                         w->padded);
  }
  for (int32_t t = 0; t < count; t++) {
    float *to = job->queries + ((begin + t - job->r.begin) * p->num_q_heads + head) * layer->q_padded;
    memcpy(to, b.latent + (int64_t)t * w->padded, (size_t)p->kv_lora_rank * sizeof(float));
    if (p->qk_rope_head_dim > 0) {
      memcpy(to + p->kv_lora_rank, b.query + (int64_t)t * query + p->qk_nope_head_dim,
             (size_t)p->qk_rope_head_dim * sizeof(float));
    }
  }
}

static void store_result(const attn_cpu_job *job, int64_t token, int64_t head, float *row) {
  const attn_view *out = &job->view->out;
  if (out->dtype == ATTN_DTYPE_FP8_E4M3) {
    attn_cpu_store_fp8(job, token, head, row, 1.0f);
    return;
  }
  attn_cpu_store_row(job->table, out->dtype, out->data + token * out->stride[0] + head * out->stride[1], out->stride[2],
                     row, 1.0f, job->problem->v_head_size);
}

/* The sequence of a token is absorbed: the round's shares tell. */
static int is_in_round(const layer_job *job, int64_t token) {
  const attn_step *step = job->outer.view->step;
  for (int32_t i = 0; i < job->r.shares; i++) {
    int32_t seq = job->absorbed.scratch.seqs[i].seq;
    if (token >= step->query_start_loc[seq] && token < step->query_start_loc[seq + 1]) {
      return 1;
    }
  }
  return 0;
}

/* out = W_UV times the latent result of a head. */
static void project_up(const void *argument, int64_t item, size_t thread) {
  const layer_job *job = argument;
  const attn_problem *p = job->outer.problem;
  const attn_mla_weights *w = job->outer.view->weights;
  const attn_cpu_layer *layer = job->layer;
  project_buffers b = buffers_at(job, thread);
  int64_t head;
  int64_t begin;
  int32_t count;
  find_block(job, item, &head, &begin, &count);
  for (int32_t t = 0; t < count; t++) {
    const float *from = job->results + ((begin + t - job->r.begin) * p->num_q_heads + head) * layer->o_padded;
    float *to = b.latent + (int64_t)t * w->padded;
    memcpy(to, from, (size_t)p->kv_lora_rank * sizeof(float));
    memset(to + p->kv_lora_rank, 0, (size_t)(w->padded - p->kv_lora_rank) * sizeof(float));
  }
  for (int32_t d = 0; d < p->v_head_size; d += ATTN_CPU_KEYS) {
    int32_t n = (int32_t)attn_min(p->v_head_size - d, ATTN_CPU_KEYS);
    int32_t whole = (int32_t)attn_round_up((uint64_t)n, ATTN_CPU_KEY_STEP);
    job->outer.table->qk(b.coefficients, b.latent, attn_mla_uv(w, head, d), 1.0f, count, whole, w->padded);
    for (int32_t t = 0; t < count; t++) {
      memcpy(b.wide + (int64_t)t * p->v_head_size + d, b.coefficients + (int64_t)t * ATTN_CPU_KEYS,
             (size_t)n * sizeof(float));
    }
  }
  for (int32_t t = 0; t < count; t++) {
    if (job->r.shares == 1 || is_in_round(job, begin + t)) {
      store_result(&job->outer, begin + t, head, b.wide + (int64_t)t * p->v_head_size);
    }
  }
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static attn_view rows_view(float *data, int64_t tokens, int64_t heads, int64_t size, int64_t padded) {
  attn_view view;
  memset(&view, 0, sizeof view);
  view.data = (unsigned char *)data;
  view.dtype = ATTN_DTYPE_FLOAT32;
  view.ndim = 3;
  view.shape[0] = tokens;
  view.shape[1] = heads;
  view.shape[2] = size;
  view.stride[0] = heads * padded * (int64_t)sizeof(float);
  view.stride[1] = padded * (int64_t)sizeof(float);
  view.stride[2] = sizeof(float);
  return view;
}

static void run_absorbed_item(const void *job, int64_t item, size_t thread) {
  attn_cpu_run_item(job, item, thread);
}

static void run_absorbed_merge(const void *job, int64_t item, size_t thread) {
  attn_cpu_run_merge(job, item, thread);
}

static void run_round(layer_job *job) {
  const attn_context *context = job->outer.plan->context;
  const attn_problem *p = job->outer.problem;
  const attn_cpu_seq *totals = &job->absorbed.scratch.seqs[job->r.shares];
  job->blocks = attn_ceil_div(job->r.end - job->r.begin, ATTN_CPU_TOKENS);
  job->absorbed.shares = job->r.shares;
  job->absorbed.token_base = job->r.begin;
  attn_cpu_run_items(context, absorb, job, job->blocks * p->num_q_heads);
  attn_cpu_run_items(context, run_absorbed_item, &job->absorbed, totals->first_item);
  attn_cpu_run_items(context, run_absorbed_merge, &job->absorbed, totals->first_merge);
  attn_cpu_run_items(context, project_up, job, job->blocks * p->num_q_heads);
}

static void start_jobs(layer_job *job, const attn_plan *plan, const attn_run_view *view, const attn_cpu_layer *layer,
                       unsigned char *memory) {
  memset(job, 0, sizeof *job);
  job->layer = layer;
  job->threads = memory + layer->threads_at;
  job->queries = (float *)(void *)(memory + layer->queries_at);
  job->results = (float *)(void *)(memory + layer->results_at);
  job->outer.plan = plan;
  job->outer.problem = &plan->problem;
  job->outer.view = view;
  job->outer.table = plan->context->table;
  job->outer.shape = layer->expand.shape;
  job->inner_view = *view;
  job->inner_view.problem = &layer->inner;
  job->inner_view.weights = NULL;
  job->inner_view.q = rows_view(job->queries, layer->round_tokens, plan->problem.num_q_heads, layer->inner.qk_head_size,
                                layer->q_padded);
  job->inner_view.out = rows_view(job->results, layer->round_tokens, plan->problem.num_q_heads,
                                  layer->inner.v_head_size, layer->o_padded);
  memset(&job->inner_view.lse, 0, sizeof job->inner_view.lse);
  memset(&job->inner_view.out_scale, 0, sizeof job->inner_view.out_scale);
  job->absorbed = job->outer;
  job->absorbed.problem = &layer->inner;
  job->absorbed.view = &job->inner_view;
  job->absorbed.shape = layer->absorbed;
  job->absorbed.scratch = attn_cpu_scratch_at(&layer->absorbed, memory);
  job->absorbed.scratch.threads = job->threads;
  job->absorbed.shape.thread_bytes = layer->thread_bytes;
}

static void run_expanded_item(const void *job, int64_t item, size_t thread) {
  attn_cpu_expand_item(job, item, thread);
}

void attn_cpu_layer_run(const attn_plan *plan, const attn_run_view *view, void *memory) {
  attn_cpu_layer layer;
  layer_job job;
  (void)attn_cpu_layer_of(plan->context, &plan->problem, &plan->limits, plan->num_splits, plan->split_rule, &layer);
  start_jobs(&job, plan, view, &layer, memory);
  attn_cpu_cut cut = cut_of(plan, &layer, view->step);
  int32_t seq = 0;
  while (next_round(&layer, view->step, &seq, &job.r, job.absorbed.scratch.seqs)) {
    (void)attn_cpu_cut_rows(&cut, job.absorbed.scratch.seqs, job.r.shares);
    run_round(&job);
  }
  attn_cpu_expand_job expand = {job.outer, layer.expand, layer.threshold, layer.thread_bytes};
  expand.job.scratch.threads = job.threads;
  attn_cpu_run_items(plan->context, run_expanded_item, &expand,
                     attn_cpu_expand_items(&plan->problem, view->step, &layer.expand, layer.threshold));
}
