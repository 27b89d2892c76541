/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission, growth and preemption: see lm_schedule.h. Only the first waiting request starts and only the last running
 * one is preempted, so all running requests arrived before all waiting ones, and started last is arrived last.
 */
#include "lm_schedule.h"

#include <stdlib.h>
#include <string.h>

static size_t known(const lm_request *r) {
  return r->prompt.count + r->output.count;
}

/* Tokens that the cache holds at the very end: the last one produced is never fed. */
static size_t longest(const lm_request *r) {
  return r->prompt.count + (size_t)r->max_new - 1;
}

static int32_t request_token(const lm_request *r, size_t i) {
  return i < r->prompt.count ? r->prompt.data[i] : r->output.data[i - r->prompt.count];
}

int32_t lm_schedule_token(const lm_flight *f, size_t i) {
  return request_token(f->request, i);
}

bool lm_schedule_complete(const lm_flight *f, size_t step_tokens) {
  return f->fed + step_tokens == known(f->request);
}

static bool decodes(const lm_flight *f) {
  return f->request->output.count > 0 && f->fed + 1 == known(f->request);
}

static size_t index_of(const lm_schedule *s, const lm_request *r) {
  return (size_t)(r - s->requests);
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

attn_status lm_schedule_create(lm_attention *attention, const generate_options *options, lm_request *requests,
                               size_t count, lm_schedule *s, attn_message *message) {
  *s = (lm_schedule){.attention = attention,
                     .in_flight = options->in_flight,
                     .max_tokens = options->max_tokens,
                     .requests = requests,
                     .count = count};
  size_t most = 1;
  for (size_t i = 0; i < count; i++) {
    most = longest(&requests[i]) > most ? longest(&requests[i]) : most;
  }
  const size_t seqs = (size_t)options->in_flight;
  s->waiting = calloc(count + 1, sizeof s->waiting[0]);
  s->flights = calloc(seqs, sizeof s->flights[0]);
  s->running = calloc(seqs, sizeof s->running[0]);
  s->seqs = calloc(seqs, sizeof s->seqs[0]);
  s->counts = calloc(seqs, sizeof s->counts[0]);
  s->ids = calloc(most, sizeof s->ids[0]);
  if (s->waiting == NULL || s->flights == NULL || s->running == NULL || s->seqs == NULL || s->counts == NULL ||
      s->ids == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the lists of %zu requests", count);
  }
  for (size_t i = 0; i < count; i++) {
    s->waiting[i].waits = true;
  }
  return ATTN_OK;
}

void lm_schedule_free(lm_schedule *s) {
  free(s->waiting);
  free(s->flights);
  free(s->running);
  free(s->seqs);
  free(s->counts);
  free(s->ids);
}

static int32_t free_slot(const lm_schedule *s) {
  int32_t slot = 0;
  while (s->flights[slot].request != NULL) {
    slot++;
  }
  return slot;
}

/* The first waiting request runs in `slot` from now on. */
static void take_head(lm_schedule *s, int32_t slot, size_t fed) {
  lm_waiting *w = &s->waiting[s->head];
  w->waits = false;
  w->most_fed = fed > w->most_fed ? fed : w->most_fed;
  s->flights[slot] = (lm_flight){&s->requests[s->head], fed};
  s->running[s->num_running++] = slot;
  while (s->head < s->count && !s->waiting[s->head].waits) {
    s->head++;
  }
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

/* Blocks to keep free for a sequence: for its tokens that are to be fed, and one if it may need more than these. */
static int32_t reserve(const lm_schedule *s, int32_t slot, const lm_request *r, size_t fed) {
  const int32_t now = lm_attention_needs(s->attention, slot, (int32_t)(known(r) - fed));
  const int32_t ever = lm_attention_needs(s->attention, slot, (int32_t)(longest(r) - fed));
  return now + (ever > now);
}

/* Whether the first waiting request, whose first `fed` tokens `slot` holds already, finds room beside the others. */
static bool has_room(const lm_schedule *s, int32_t slot, size_t fed) {
  if (s->num_running == 0) {
    return true;
  }
  int64_t wanted = reserve(s, slot, &s->requests[s->head], fed);
  for (int32_t i = 0; i < s->num_running; i++) {
    const lm_flight *f = &s->flights[s->running[i]];
    wanted += reserve(s, s->running[i], f->request, f->fed);
  }
  return wanted <= lm_attention_free_blocks(s->attention);
}

static size_t in_full_blocks(const lm_schedule *s, size_t tokens) {
  return tokens - tokens % (size_t)lm_attention_block_size(s->attention);
}

/* Whether a running sequence is about to compute more of this request's blocks than the running ones have ready. */
static bool prefix_under_way(const lm_schedule *s, const lm_request *r) {
  size_t ready = 0;
  size_t coming = 0;
  for (int32_t i = 0; i < s->num_running; i++) {
    const lm_flight *f = &s->flights[s->running[i]];
    const size_t most = known(f->request) < known(r) - 1 ? known(f->request) : known(r) - 1;
    size_t common = 0;
    while (common < most && request_token(f->request, common) == request_token(r, common)) {
      common++;
    }
    const size_t fed = f->fed < common ? f->fed : common;
    ready = in_full_blocks(s, fed) > ready ? in_full_blocks(s, fed) : ready;
    coming = in_full_blocks(s, common) > coming ? in_full_blocks(s, common) : coming;
  }
  return coming > ready;
}

/* Takes what the cache has of the first waiting request into `slot`, all but its last token at most. */
static attn_status reuse(lm_schedule *s, int32_t slot, size_t *fed, attn_message *message) {
  const lm_request *r = &s->requests[s->head];
  const size_t count = known(r) - 1;
  for (size_t i = 0; i < count; i++) {
    s->ids[i] = request_token(r, i);
  }
  int32_t reused = 0;
  const attn_status status = lm_attention_start(s->attention, slot, s->ids, (int32_t)count, &reused, message);
  *fed = (size_t)reused;
  return status;
}

static void count_start(lm_schedule *s, size_t fed) {
  const lm_waiting *w = &s->waiting[s->head];
  const int64_t blocks = lm_attention_blocks_for(s->attention, (int32_t)fed);
  if (w->preempted) {
    s->sharing.resumes++;
    s->sharing.resumed_tokens += (int64_t)fed;
  } else {
    s->sharing.shared_blocks += blocks;
    s->sharing.shared_tokens += (int64_t)fed;
  }
}

static attn_status admit(lm_schedule *s, attn_message *message) {
  const bool shares = lm_attention_shares(s->attention);
  attn_status status = ATTN_OK;
  while (s->head < s->count && s->num_running < s->in_flight) {
    if (shares && prefix_under_way(s, &s->requests[s->head])) {
      break;
    }
    const int32_t slot = free_slot(s);
    size_t fed = 0;
    if (shares) {
      status = reuse(s, slot, &fed, message);
    }
    if (status != ATTN_OK) {
      return status;
    }
    if (!has_room(s, slot, fed)) {
      return lm_attention_finish(s->attention, slot, message);
    }
    count_start(s, fed);
    take_head(s, slot, fed);
  }
  return ATTN_OK;
}

/* Whether the first waiting request has that prompt and nothing produced. */
static bool is_twin(const lm_schedule *s, const lm_request *r) {
  const lm_request *other = &s->requests[s->head];
  return other->output.count == 0 && other->prompt.count == r->prompt.count &&
         memcmp(other->prompt.data, r->prompt.data, r->prompt.count * sizeof r->prompt.data[0]) == 0;
}

attn_status lm_schedule_fork(lm_schedule *s, int32_t slot, int32_t *children, int32_t *count, attn_message *message) {
  const lm_flight *parent = &s->flights[slot];
  *count = 0;
  while (lm_attention_shares(s->attention) && s->head < s->count && s->num_running < s->in_flight &&
         parent->request->output.count == 0 && is_twin(s, parent->request)) {
    const int32_t child = free_slot(s);
    const attn_status status = lm_attention_fork(s->attention, slot, child, message);
    if (status != ATTN_OK) {
      return status;
    }
    if (!has_room(s, child, parent->fed)) {
      return lm_attention_finish(s->attention, child, message);
    }
    s->sharing.forks++;
    count_start(s, parent->fed);
    take_head(s, child, parent->fed);
    children[(*count)++] = child;
  }
  return ATTN_OK;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/* Decodes first, so that no running sequence waits for a long prompt; then chunks of prompts. */
static void lay_out(lm_schedule *s) {
  s->num_seqs = 0;
  s->num_tokens = 0;
  s->num_decodes = 0;
  for (int prompts = 0; prompts < 2; prompts++) {
    for (int32_t i = 0; i < s->num_running; i++) {
      const lm_flight *f = &s->flights[s->running[i]];
      const size_t room = (size_t)(s->max_tokens - s->num_tokens);
      if (room == 0 || decodes(f) == (prompts == 1)) {
        continue;
      }
      const size_t wanted = known(f->request) - f->fed;
      const size_t taken = wanted < room ? wanted : room;
      s->seqs[s->num_seqs] = s->running[i];
      s->counts[s->num_seqs] = (int32_t)taken;
      s->num_seqs++;
      s->num_tokens += (int64_t)taken;
      s->num_decodes += prompts == 0;
    }
  }
}

static bool fits(const lm_schedule *s) {
  int64_t wanted = 0;
  for (int32_t i = 0; i < s->num_seqs; i++) {
    wanted += lm_attention_needs(s->attention, s->seqs[i], s->counts[i]);
  }
  return wanted <= lm_attention_free_blocks(s->attention);
}

/* The sequence started last waits again, with what it has produced. */
static attn_status preempt(lm_schedule *s, attn_message *message) {
  const int32_t slot = s->running[--s->num_running];
  lm_flight *f = &s->flights[slot];
  s->head = index_of(s, f->request); /* it arrived before all that wait */
  s->waiting[s->head].waits = true;
  s->waiting[s->head].preempted = true;
  f->request->preemptions++;
  *f = (lm_flight){NULL, 0};
  s->sharing.preemptions++;
  return lm_attention_finish(s->attention, slot, message);
}

attn_status lm_schedule_next(lm_schedule *s, attn_message *message) {
  attn_status status = admit(s, message);
  lay_out(s);
  while (status == ATTN_OK && s->num_running > 1 && !fits(s)) {
    status = preempt(s, message);
    lay_out(s);
  }
  return status;
}

attn_status lm_schedule_fed(lm_schedule *s, attn_message *message) {
  attn_status status = ATTN_OK;
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  for (int32_t i = 0; i < s->num_seqs && status == ATTN_OK; i++) {
    lm_flight *f = &s->flights[s->seqs[i]];
    lm_waiting *w = &s->waiting[index_of(s, f->request)];
    const size_t before = f->fed;
    f->fed += (size_t)s->counts[i];
    if (before < w->most_fed) {
      s->sharing.recomputed_tokens += (int64_t)((f->fed < w->most_fed ? f->fed : w->most_fed) - before);
    }
    w->most_fed = f->fed > w->most_fed ? f->fed : w->most_fed;
    status = lm_attention_commit(s->attention, s->seqs[i], message);
  }
  if (status == ATTN_OK) {
    status = lm_attention_pool_info(s->attention, &info, message);
  }
  s->sharing.peak_blocks = info.used > s->sharing.peak_blocks ? info.used : s->sharing.peak_blocks;
  s->sharing.peak_shared = info.shared > s->sharing.peak_shared ? info.shared : s->sharing.peak_shared;
  return status;
}

attn_status lm_schedule_end(lm_schedule *s, int32_t slot, attn_message *message) {
  int32_t i = 0;
  while (s->running[i] != slot) {
    i++;
  }
  s->num_running--;
  memmove(s->running + i, s->running + i + 1, (size_t)(s->num_running - i) * sizeof s->running[0]);
  s->flights[slot] = (lm_flight){NULL, 0};
  return lm_attention_finish(s->attention, slot, message);
}

attn_status lm_schedule_report(lm_schedule *s, generate_sharing *out, attn_message *message) {
  attn_pool_info info = ATTN_POOL_INFO_INIT;
  attn_status status = lm_attention_check(s->attention, message);
  if (status == ATTN_OK) {
    status = lm_attention_pool_info(s->attention, &info, message);
  }
  s->sharing.evictions = info.evictions;
  s->sharing.copies = info.copies;
  s->sharing.blocks_in_use = info.used;
  *out = s->sharing;
  return status;
}
