/* SPDX-License-Identifier: Apache-2.0 */
/* Continuous batching: see generate.h. A sequence in flight occupies a slot, whose number is its name in the pool. */
#define _POSIX_C_SOURCE 200809L
#include "generate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct flight {
  lm_request *request; /* NULL: the slot is free */
  size_t fed;          /* tokens that the cache holds */
  int32_t reserved;    /* blocks set aside for it */
} flight;

typedef struct generator {
  model *m;
  int32_t vocabulary;
  lm_attention *attention;
  generate_options options;
  flight *flights; /* [in_flight] */
  int32_t reserved;
  /* the step being built */
  int32_t num_seqs;
  int64_t num_tokens;
  int64_t num_outputs;
  int64_t num_decodes;
  int32_t *seqs;        /* [in_flight] slots in row order */
  int32_t *counts;      /* [in_flight] */
  int32_t *output_seqs; /* [in_flight] slot of each output row */
  int64_t *output_rows; /* [in_flight] */
  int32_t *ids;         /* [max_tokens] */
  int32_t *positions;   /* [max_tokens] */
  float *logits;        /* [in_flight, vocabulary] */
  sampler sampler;
} generator;

static double seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static size_t known(const flight *f) {
  return f->request->prompt.count + f->request->output.count;
}

static bool decodes(const flight *f) {
  return f->fed >= f->request->prompt.count;
}

static int32_t token_at(const flight *f, size_t i) {
  const size_t prompt = f->request->prompt.count;
  return i < prompt ? f->request->prompt.data[i] : f->request->output.data[i - prompt];
}

/* Starts waiting requests while a slot is free and the cache can hold all they may come to. Returns how many. */
static size_t admit(generator *g, lm_request *requests, size_t count) {
  size_t started = 0;
  for (int32_t slot = 0; slot < g->options.in_flight && started < count; slot++) {
    flight *f = &g->flights[slot];
    if (f->request != NULL) {
      continue;
    }
    lm_request *request = &requests[started];
    const int32_t blocks = lm_attention_blocks_for(g->attention, (int32_t)request->prompt.count + request->max_new);
    if (blocks > lm_attention_total_blocks(g->attention) - g->reserved) {
      break;
    }
    *f = (flight){request, 0, blocks};
    g->reserved += blocks;
    started++;
  }
  return started;
}

static void add_to_step(generator *g, int32_t slot, size_t tokens) {
  const flight *f = &g->flights[slot];
  for (size_t i = 0; i < tokens; i++) {
    g->ids[g->num_tokens] = token_at(f, f->fed + i);
    g->positions[g->num_tokens] = (int32_t)(f->fed + i);
    g->num_tokens++;
  }
  g->seqs[g->num_seqs] = slot;
  g->counts[g->num_seqs] = (int32_t)tokens;
  g->num_seqs++;
  if (f->fed + tokens == known(f)) {
    g->output_seqs[g->num_outputs] = slot;
    g->output_rows[g->num_outputs] = g->num_tokens - 1;
    g->num_outputs++;
  }
}

/* Decodes first, so that no running sequence waits for a long prompt; then chunks of prompts. */
static void build_step(generator *g) {
  g->num_seqs = 0;
  g->num_tokens = 0;
  g->num_outputs = 0;
  g->num_decodes = 0;
  for (int prompts = 0; prompts < 2; prompts++) {
    for (int32_t slot = 0; slot < g->options.in_flight; slot++) {
      const flight *f = &g->flights[slot];
      const size_t room = (size_t)(g->options.max_tokens - g->num_tokens);
      if (f->request == NULL || room == 0 || decodes(f) == (prompts == 1)) {
        continue;
      }
      const size_t wanted = known(f) - f->fed;
      add_to_step(g, slot, wanted < room ? wanted : room);
      g->num_decodes += prompts == 0;
    }
  }
}

static attn_status run_step(generator *g, generate_stats *stats, attn_message *message) {
  const double start = seconds();
  attn_status status = lm_attention_begin(g->attention, g->num_seqs, g->seqs, g->counts, message);
  if (status != ATTN_OK) {
    return status;
  }
  const model_step step = {g->num_tokens,  g->ids,    g->positions,       g->num_outputs,
                           g->output_rows, g->logits, lm_attention_layer, g->attention};
  status = model_run(g->m, &step, message);
  const double share = (seconds() - start) / (double)g->num_tokens;
  const int64_t prefill = g->num_tokens - g->num_decodes;
  stats->steps++;
  stats->prefill_tokens += prefill;
  stats->decode_tokens += g->num_decodes;
  stats->prefill_seconds += share * (double)prefill;
  stats->decode_seconds += share * (double)g->num_decodes;
  return status;
}

static attn_status end(generator *g, int32_t slot, const char *reason, attn_message *message) {
  flight *f = &g->flights[slot];
  f->request->stop = reason;
  g->reserved -= f->reserved;
  *f = (flight){NULL, 0, 0};
  return lm_attention_finish(g->attention, slot, message);
}

static attn_status take_output(generator *g, int32_t slot, const float *logits, attn_message *message) {
  lm_request *request = g->flights[slot].request;
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
  if (id == g->options.eos) {
    return end(g, slot, "eos", message);
  }
  status = lm_ids_push(&request->output, id, message);
  if (status == ATTN_OK && request->on_token != NULL) {
    request->on_token(request->context, id);
  }
  if (status == ATTN_OK && request->output.count >= (size_t)request->max_new) {
    return end(g, slot, "length", message);
  }
  return status;
}

static attn_status take_outputs(generator *g, attn_message *message) {
  for (int32_t i = 0; i < g->num_seqs; i++) {
    g->flights[g->seqs[i]].fed += (size_t)g->counts[i];
  }
  attn_status status = ATTN_OK;
  for (int64_t i = 0; i < g->num_outputs && status == ATTN_OK; i++) {
    status = take_output(g, g->output_seqs[i], g->logits + i * g->vocabulary, message);
  }
  return status;
}

static void free_lists(generator *g) {
  free(g->flights);
  free(g->seqs);
  free(g->counts);
  free(g->output_seqs);
  free(g->output_rows);
  free(g->ids);
  free(g->positions);
  free(g->logits);
  sampler_free(&g->sampler);
}

static attn_status make_lists(generator *g, attn_message *message) {
  const size_t seqs = (size_t)g->options.in_flight;
  const size_t tokens = (size_t)g->options.max_tokens;
  g->flights = calloc(seqs, sizeof g->flights[0]);
  g->seqs = calloc(seqs, sizeof g->seqs[0]);
  g->counts = calloc(seqs, sizeof g->counts[0]);
  g->output_seqs = calloc(seqs, sizeof g->output_seqs[0]);
  g->output_rows = calloc(seqs, sizeof g->output_rows[0]);
  g->ids = calloc(tokens, sizeof g->ids[0]);
  g->positions = calloc(tokens, sizeof g->positions[0]);
  g->logits = malloc(seqs * (size_t)g->vocabulary * sizeof g->logits[0]);
  if (g->flights == NULL || g->seqs == NULL || g->counts == NULL || g->output_seqs == NULL || g->output_rows == NULL ||
      g->ids == NULL || g->positions == NULL || g->logits == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the logits of %zu sequences", seqs);
  }
  return sampler_create(&g->options.sampling, g->vocabulary, &g->sampler, message);
}

attn_status generate_run(model *m, const model_params *params, lm_attention *attention, const generate_options *options,
                         lm_request *requests, size_t count, generate_stats *stats, attn_message *message) {
  generator g = {0};
  g.m = m;
  g.vocabulary = params->vocabulary;
  g.attention = attention;
  g.options = *options;
  *stats = (generate_stats){0};
  attn_status status = make_lists(&g, message);
  size_t started = 0;
  while (status == ATTN_OK) {
    started += admit(&g, requests + started, count - started);
    build_step(&g);
    if (g.num_tokens == 0) {
      break;
    }
    status = run_step(&g, stats, message);
    if (status == ATTN_OK) {
      status = take_outputs(&g, message);
    }
  }
  free_lists(&g);
  return status;
}
