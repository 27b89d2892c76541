/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling: see sampler.h. Weights are formed and summed in double, in the candidates' order. */
#include "sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bijective mixing of 64 bits: xor-shifts and odd multipliers (the finaliser of splitmix64). */
static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

sampler_stream sampler_stream_for(uint64_t seed, uint64_t index) {
  return (sampler_stream){mix(mix(seed) + index)};
}

double sampler_draw(sampler_stream *stream) {
  stream->state += UINT64_C(0x9e3779b97f4a7c15);
  return (double)(mix(stream->state) >> 11) * 0x1p-53;
}

static bool listed(const int32_t *ids, size_t count, int32_t id) {
  for (size_t i = 0; i < count; i++) {
    if (ids[i] == id) {
      return true;
    }
  }
  return false;
}

static void penalise_one(float *logit, double penalty) {
  *logit = (float)(*logit > 0 ? (double)*logit / penalty : (double)*logit * penalty);
}

void sampler_penalise(float *logits, const int32_t *ids, size_t count, double penalty) {
  for (size_t i = 0; i < count; i++) {
    if (!listed(ids, i, ids[i])) {
      penalise_one(&logits[ids[i]], penalty);
    }
  }
}

int32_t sampler_best(const float *logits, int32_t count) {
  int32_t best = 0;
  for (int32_t i = 0; i < count; i++) {
    if (isnan(logits[i])) {
      return -1;
    }
    if (logits[i] > logits[best]) {
      best = i;
    }
  }
  return best;
}

static int compare(const void *left, const void *right) {
  const sampler_candidate *a = left;
  const sampler_candidate *b = right;
  if (a->logit != b->logit) {
    return a->logit > b->logit ? -1 : 1;
  }
  return (a->id > b->id) - (a->id < b->id);
}

void sampler_sort(const float *logits, int32_t count, double temperature, sampler_candidate *candidates) {
  for (int32_t i = 0; i < count; i++) {
    candidates[i] = (sampler_candidate){i, (float)((double)logits[i] / temperature), 0};
  }
  qsort(candidates, (size_t)count, sizeof candidates[0], compare);
  for (int32_t i = 0; i < count; i++) {
    candidates[i].weight = exp((double)candidates[i].logit - (double)candidates[0].logit);
  }
}

size_t sampler_top_k(const sampler_candidate *candidates, size_t count, int32_t k) {
  (void)candidates;
  return k > 0 && (size_t)k < count ? (size_t)k : count;
}

static double sum(const sampler_candidate *candidates, size_t count) {
  double total = 0;
  for (size_t i = 0; i < count; i++) {
    total += candidates[i].weight;
  }
  return total;
}

size_t sampler_top_p(const sampler_candidate *candidates, size_t count, double p) {
  if (p >= 1) {
    return count;
  }
  const double wanted = p * sum(candidates, count);
  double reached = 0;
  for (size_t i = 0; i < count; i++) {
    reached += candidates[i].weight;
    if (reached >= wanted) {
      return i + 1;
    }
  }
  return count;
}

size_t sampler_min_p(const sampler_candidate *candidates, size_t count, double p) {
  size_t kept = 1;
  while (kept < count && candidates[kept].weight >= p * candidates[0].weight) {
    kept++;
  }
  return kept;
}

attn_status sampler_create(const sampler_options *options, int32_t vocabulary, sampler *out, attn_message *message) {
  *out = (sampler){*options, vocabulary, malloc((size_t)vocabulary * sizeof(float)), NULL};
  if (options->temperature > 0) {
    out->candidates = malloc((size_t)vocabulary * sizeof out->candidates[0]);
  }
  if (out->logits == NULL || (options->temperature > 0 && out->candidates == NULL)) {
    sampler_free(out);
    return lm_fail(message, ATTN_E_NOMEM, "no memory for sampling from %d ids", vocabulary);
  }
  return ATTN_OK;
}

void sampler_free(sampler *s) {
  free(s->logits);
  free(s->candidates);
  s->logits = NULL;
  s->candidates = NULL;
}

/* The penalty over both parts of the history, each id once. */
static void penalise_history(sampler *s, const sampler_history *h) {
  sampler_penalise(s->logits, h->prompt, h->prompt_count, s->options.repetition_penalty);
  for (size_t i = 0; i < h->output_count; i++) {
    const int32_t id = h->output[i];
    if (!listed(h->prompt, h->prompt_count, id) && !listed(h->output, i, id)) {
      penalise_one(&s->logits[id], s->options.repetition_penalty);
    }
  }
}

static int32_t draw(sampler *s, sampler_stream *stream) {
  const sampler_options *o = &s->options;
  const sampler_candidate *c = s->candidates;
  sampler_sort(s->logits, s->vocabulary, o->temperature, s->candidates);
  size_t count = sampler_top_k(c, (size_t)s->vocabulary, o->top_k);
  count = sampler_top_p(c, count, o->top_p);
  count = sampler_min_p(c, count, o->min_p);
  const double target = sampler_draw(stream) * sum(c, count);
  double reached = 0;
  for (size_t i = 0; i < count; i++) {
    reached += c[i].weight;
    if (target < reached) {
      return c[i].id;
    }
  }
  return c[0].id; /* only where the weights are not numbers */
}

attn_status sampler_choose(sampler *s, const float *logits, const sampler_history *history, sampler_stream *stream,
                           int32_t *id, attn_message *message) {
  const float *from = logits;
  if (s->options.repetition_penalty != 1) {
    memcpy(s->logits, logits, (size_t)s->vocabulary * sizeof logits[0]);
    penalise_history(s, history);
    from = s->logits;
  }
  *id = sampler_best(from, s->vocabulary);
  if (*id < 0 || (s->options.temperature > 0 && !isfinite(from[*id]))) {
    return lm_fail(message, ATTN_E_RANGE, "the model's logits are not numbers; accepted are finite weights");
  }
  if (s->options.temperature > 0) {
    if (from == logits) {
      memcpy(s->logits, logits, (size_t)s->vocabulary * sizeof logits[0]);
    }
    *id = draw(s, stream);
  }
  return ATTN_OK;
}
