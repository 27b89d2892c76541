/* SPDX-License-Identifier: Apache-2.0 */
/* Continuous batching: see generate.h. */
#define _POSIX_C_SOURCE 200809L
#include "generate.h"

#include "lm_schedule.h"
#include "progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct generator {
  model *m;
  int32_t vocabulary;
  lm_attention *attention;
  generate_options options;
  lm_schedule schedule;
  int64_t num_outputs;  /* of the step being built */
  int32_t *output_seqs; /* [in_flight] slot of each output row */
  int64_t *output_rows; /* [in_flight] */
  int32_t *children;    /* [in_flight] slots forked from one output row */
  int32_t *ids;         /* [max_tokens] */
  int32_t *positions;   /* [max_tokens] */
  float *logits;        /* [in_flight, vocabulary] */
  sampler sampler;
  progress line;
  bool streams; /* a text appears on standard output by itself, and takes the line's place */
} generator;

static double seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The rows of the step that the schedule laid out. */
static void fill_step(generator *g) {
  const lm_schedule *s = &g->schedule;
  int64_t token = 0;
  g->num_outputs = 0;
  for (int32_t i = 0; i < s->num_seqs; i++) {
    const lm_flight *f = &s->flights[s->seqs[i]];
    for (int32_t j = 0; j < s->counts[i]; j++) {
      const size_t position = f->fed + (size_t)j;
      g->ids[token] = lm_schedule_token(f, position);
      g->positions[token] = (int32_t)position;
      token++;
    }
    if (lm_schedule_complete(f, (size_t)s->counts[i])) {
      g->output_seqs[g->num_outputs] = s->seqs[i];
      g->output_rows[g->num_outputs] = token - 1;
      g->num_outputs++;
    }
  }
}

static attn_status run_step(generator *g, generate_stats *stats, attn_message *message) {
  const lm_schedule *s = &g->schedule;
  const double start = seconds();
  attn_status status = lm_attention_begin(g->attention, s->num_seqs, s->seqs, s->counts, g->ids, message);
  if (status != ATTN_OK) {
    return status;
  }
  const model_step step = {s->num_tokens,  g->ids,    g->positions,       g->num_outputs,
                           g->output_rows, g->logits, lm_attention_layer, g->attention};
  status = model_run(g->m, &step, message);
  const double share = (seconds() - start) / (double)s->num_tokens;
  const int64_t prefill = s->num_tokens - s->num_decodes;
  stats->steps++;
  stats->prefill_tokens += prefill;
  stats->decode_tokens += s->num_decodes;
  stats->prefill_seconds += share * (double)prefill;
  stats->decode_seconds += share * (double)s->num_decodes;
  return status;
}

static attn_status end(generator *g, int32_t slot, const char *reason, attn_message *message) {
  g->schedule.flights[slot].request->stop = reason;
  return lm_schedule_end(&g->schedule, slot, message);
}

/* The difference of the two best logits; infinite where there is but one. */
static float gap(const float *logits, int32_t count) {
  float best = -INFINITY;
  float second = -INFINITY;
  for (int32_t i = 0; i < count; i++) {
    if (logits[i] > best) {
      second = best;
      best = logits[i];
    } else if (logits[i] > second) {
      second = logits[i];
    }
  }
  return best - second;
}

static attn_status take_output(generator *g, int32_t slot, const float *logits, attn_message *message) {
  lm_request *request = g->schedule.flights[slot].request;
  if (request->output.count == 0 && request->first_logits != NULL) {
    memcpy(request->first_logits, logits, (size_t)g->vocabulary * sizeof logits[0]);
  }
  const sampler_history history = {request->prompt.data, request->prompt.count, request->output.data,
                                   request->output.count};
  int32_t id = -1;
  attn_status status = sampler_choose(&g->sampler, logits, &history, &request->stream, &id, message);
  if (status != ATTN_OK) {
    return status;
  }
  request->min_gap = fminf(request->min_gap, gap(logits, g->vocabulary));
  if (id == g->options.eos) {
    return end(g, slot, "eos", message);
  }
  status = lm_ids_push(&request->output, id, message);
  if (status == ATTN_OK && request->on_token != NULL) {
    progress_hide(&g->line);
    g->streams = true;
    request->on_token(request->context, id);
  }
  if (status == ATTN_OK && request->output.count >= (size_t)request->max_new) {
    return end(g, slot, "length", message);
  }
  return status;
}

/* Of a row: for the sequence itself, and for those that have the same prompt and wait. */
static attn_status take_row(generator *g, int64_t row, attn_message *message) {
  const float *logits = g->logits + row * g->vocabulary;
  int32_t count = 0;
  attn_status status = lm_schedule_fork(&g->schedule, g->output_seqs[row], g->children, &count, message);
  if (status == ATTN_OK) {
    status = take_output(g, g->output_seqs[row], logits, message);
  }
  for (int32_t i = 0; i < count && status == ATTN_OK; i++) {
    status = take_output(g, g->children[i], logits, message);
  }
  return status;
}

static attn_status take_outputs(generator *g, attn_message *message) {
  attn_status status = lm_schedule_fed(&g->schedule, message);
  for (int64_t i = 0; i < g->num_outputs && status == ATTN_OK; i++) {
    status = take_row(g, i, message);
  }
  return status;
}

static void free_lists(generator *g) {
  lm_schedule_free(&g->schedule);
  free(g->output_seqs);
  free(g->output_rows);
  free(g->children);
  free(g->ids);
  free(g->positions);
  free(g->logits);
  sampler_free(&g->sampler);
}

static attn_status make_lists(generator *g, lm_request *requests, size_t count, attn_message *message) {
  const size_t seqs = (size_t)g->options.in_flight;
  const size_t tokens = (size_t)g->options.max_tokens;
  attn_status status = lm_schedule_create(g->attention, &g->options, requests, count, &g->schedule, message);
  if (status != ATTN_OK) {
    return status;
  }
  g->output_seqs = calloc(seqs, sizeof g->output_seqs[0]);
  g->output_rows = calloc(seqs, sizeof g->output_rows[0]);
  g->children = calloc(seqs, sizeof g->children[0]);
  g->ids = calloc(tokens, sizeof g->ids[0]);
  g->positions = calloc(tokens, sizeof g->positions[0]);
  g->logits = malloc(seqs * (size_t)g->vocabulary * sizeof g->logits[0]);
  if (g->output_seqs == NULL || g->output_rows == NULL || g->children == NULL || g->ids == NULL ||
      g->positions == NULL || g->logits == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the logits of %zu sequences", seqs);
  }
  for (size_t i = 0; i < count; i++) {
    requests[i].min_gap = INFINITY;
    requests[i].preemptions = 0;
  }
  return sampler_create(&g->options.sampling, g->vocabulary, &g->sampler, message);
}

static void show_progress(generator *g, const lm_request *requests, size_t count, const generate_stats *stats) {
  size_t ended = 0;
  for (size_t i = 0; i < count; i++) {
    ended += requests[i].stop != NULL;
  }
  if (!g->streams) {
    progress_show(&g->line, "attn-lm: %" PRId64 " tokens read, %" PRId64 " written, %zu of %zu prompts ended",
                  stats->prefill_tokens, stats->decode_tokens, ended, count);
  }
}

attn_status generate_run(model *m, const model_params *params, lm_attention *attention, const generate_options *options,
                         lm_request *requests, size_t count, generate_stats *stats, attn_message *message) {
  generator g = {0};
  g.m = m;
  g.vocabulary = params->vocabulary;
  g.attention = attention;
  g.options = *options;
  *stats = (generate_stats){0};
  progress_start(&g.line);
  attn_status status = make_lists(&g, requests, count, message);
  while (status == ATTN_OK) {
    show_progress(&g, requests, count, stats);
    status = lm_schedule_next(&g.schedule, message);
    if (status != ATTN_OK || g.schedule.num_tokens == 0) {
      break;
    }
    fill_step(&g);
    status = run_step(&g, stats, message);
    if (status == ATTN_OK) {
      status = take_outputs(&g, message);
    }
  }
  progress_hide(&g.line);
  if (status == ATTN_OK) {
    status = lm_schedule_report(&g.schedule, &stats->sharing, message);
  }
  free_lists(&g);
  return status;
}
