/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and preparing what the commands work with: see lm_session.h. */
#define _POSIX_C_SOURCE 200809L
#include "lm_session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CACHE_LIMIT (UINT64_C(192) << 20)
#define MAX_TEXT ((size_t)1 << 30)

attn_status session_open(lm_session *s, attn_message *message) {
  attn_status status = gguf_open(s->options.model, &s->file, message);
  if (status == ATTN_OK) {
    status = model_read_params(&s->file, &s->params, message);
  }
  return status == ATTN_OK ? tokenizer_create(&s->file, &s->tok, message) : status;
}

static attn_status make_attention(lm_session *s, const lm_needs *needs, const lm_storage *storage,
                                  attn_message *message) {
  lm_attention_options options = {0};
  options.backend = s->options.backend;
  options.storage = *storage;
  options.threads = s->threads;
  options.executor = gemm_executor(s->engine);
  options.block_size = s->options.block_size;
  options.batch_invariant = s->options.batch_invariant;
  options.max_seqs = needs->in_flight;
  options.max_tokens = s->options.max_batch_tokens;
  options.max_length = needs->max_length;
  options.lengths = needs->lengths;
  options.length_count = needs->length_count;
  options.cache_blocks = s->options.cache_blocks;
  options.cache_limit = CACHE_LIMIT;
  options.prefix_cache = needs->prefix_cache;
  return lm_attention_create(&s->params, &options, &s->attention, message);
}

/* Products and attention with as many threads. Without a wish, one per processor, or one where that is refused. */
static attn_status make_engines(lm_session *s, const lm_needs *needs, attn_message *message) {
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  const int32_t wanted = processors > 64 ? 64 : processors > 1 ? (int32_t)processors : 1;
  s->threads = s->options.threads > 0 ? s->options.threads : wanted;
  const lm_storage storage = {s->options.formats, NULL, NULL};
  attn_status status = gemm_create(s->threads, s->options.compute, &s->engine, message);
  if (status == ATTN_OK) {
    status = make_attention(s, needs, &storage, message);
  }
  if (status == ATTN_E_UNSUPPORTED && s->options.threads == 0 && s->threads > 1) {
    gemm_destroy(s->engine);
    s->engine = NULL;
    s->threads = 1;
    status = gemm_create(1, s->options.compute, &s->engine, message);
    if (status == ATTN_OK) {
      status = make_attention(s, needs, &storage, message);
    }
  }
  return status;
}

attn_status session_prepare(lm_session *s, const lm_needs *needs, attn_message *message) {
  const size_t tokens = (size_t)s->options.max_batch_tokens;
  s->positions = calloc(tokens, sizeof s->positions[0]);
  s->output_rows = calloc(tokens, sizeof s->output_rows[0]);
  if (s->positions == NULL || s->output_rows == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the lists of %zu tokens", tokens);
  }
  attn_status status = make_engines(s, needs, message);
  if (status == ATTN_OK) {
    status = model_create(&s->file, &s->params, s->engine, s->options.max_batch_tokens, &s->m, message);
  }
  return status == ATTN_OK ? lm_attention_allocate(s->attention, message) : status;
}

attn_status session_store(lm_session *s, const lm_needs *needs, const lm_storage *storage, attn_message *message) {
  lm_attention_destroy(s->attention);
  s->attention = NULL;
  const attn_status status = make_attention(s, needs, storage, message);
  return status == ATTN_OK ? lm_attention_allocate(s->attention, message) : status;
}

void session_close(lm_session *s) {
  model_destroy(s->m);
  lm_attention_destroy(s->attention); /* before the engine, whose threads it borrows */
  gemm_destroy(s->engine);
  tokenizer_free(s->tok);
  gguf_close(&s->file);
  free(s->positions);
  free(s->output_rows);
  lm_options_free(&s->options);
}

static attn_status feed_step(lm_session *s, const int32_t *ids, int32_t first, int32_t count, int32_t outputs,
                             float *logits, attn_message *message) {
  const int32_t seq = 0;
  attn_status status = lm_attention_begin(s->attention, 1, &seq, &count, ids, message);
  if (status != ATTN_OK) {
    return status;
  }
  for (int32_t i = 0; i < count; i++) {
    s->positions[i] = first + i;
  }
  for (int32_t i = 0; i < outputs; i++) {
    s->output_rows[i] = count - outputs + i;
  }
  const model_step step = {count, ids, s->positions, outputs, s->output_rows, logits, lm_attention_layer, s->attention};
  return model_run(s->m, &step, message);
}

attn_status session_feed(lm_session *s, const int32_t *ids, int32_t first, int32_t count, int32_t outputs,
                         float *logits, attn_message *message) {
  attn_status status = ATTN_OK;
  for (int32_t done = 0; done < count && status == ATTN_OK;) {
    const int32_t left = count - done;
    const int32_t step = left < s->options.max_batch_tokens ? left : s->options.max_batch_tokens;
    const int32_t before = count - outputs - done; /* tokens of the step and after it that need no logits */
    const int32_t wanted = before <= 0 ? step : before < step ? step - before : 0;
    status = feed_step(s, ids + done, first + done, step, wanted, logits, message);
    logits = wanted > 0 ? logits + (int64_t)wanted * s->params.vocabulary : logits;
    done += step;
  }
  return status;
}

static attn_status read_stream(FILE *file, const char *flag, const lm_quoted *shown, char **text, size_t *length,
                               attn_message *message) {
  size_t capacity = 0;
  *text = NULL;
  *length = 0;
  for (;;) {
    if (capacity - *length < 2) {
      capacity = capacity < 4096 ? 4096 : 2 * capacity;
      char *grown = capacity <= MAX_TEXT ? realloc(*text, capacity) : NULL;
      if (grown == NULL) {
        return lm_fail(message, ATTN_E_NOMEM, "no memory for the text of %s %s", flag, shown->text);
      }
      *text = grown;
    }
    const size_t count = fread(*text + *length, 1, capacity - *length - 1, file);
    if (count == 0) {
      break;
    }
    *length += count;
  }
  (*text)[*length] = '\0';
  return ferror(file) == 0
             ? ATTN_OK
             : lm_fail(message, ATTN_E_IO, "%s %s cannot be read: %s", flag, shown->text, strerror(errno));
}

attn_status session_read_text(const char *flag, const char *path, char **text, size_t *length, attn_message *message) {
  const lm_quoted shown = lm_quote(path, strlen(path));
  const bool standard = strcmp(path, "-") == 0;
  FILE *file = standard ? stdin : fopen(path, "rb");
  if (file == NULL) {
    return lm_fail(message, ATTN_E_IO, "%s %s cannot be opened: %s", flag, shown.text, strerror(errno));
  }
  const attn_status status = read_stream(file, flag, &shown, text, length, message);
  if (!standard) {
    (void)fclose(file);
  }
  if (status != ATTN_OK) {
    free(*text);
    *text = NULL;
  }
  return status;
}

double session_seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

const char *session_compute_name(const lm_session *s) {
  return gemm_compute_of(s->engine) == GEMM_BFLOAT16 ? "bfloat16" : "float32";
}

void session_write_settings(const lm_session *s, json_writer *w) {
  json_string(w, "compute", session_compute_name(s));
  json_string(w, "cache_format", lm_formats_name(&s->options.formats).text);
  json_string(w, "backend", lm_attention_backend(s->attention));
  json_string(w, "gemm", gemm_name());
  json_integer(w, "threads", s->threads);
}

attn_status session_flush(attn_message *message) {
  if (fflush(stdout) != 0 || ferror(stdout)) {
    return lm_fail(message, ATTN_E_IO, "standard output cannot be written: %s", strerror(errno));
  }
  return ATTN_OK;
}
