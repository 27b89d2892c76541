/* SPDX-License-Identifier: Apache-2.0 */
/* Printing answers and summary: see report.h. Token bytes need not be whole characters; the JSON writer repairs them.
   */
#define _POSIX_C_SOURCE 200809L
#include "report.h"

#include "json_write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static double rate(int64_t tokens, double seconds) {
  return seconds > 0 ? (double)tokens / seconds : 0;
}

/* The bytes of all generated ids, in one piece; NULL without memory. */
static char *join(const report *r, const lm_request *request, size_t *length) {
  size_t total = 0;
  for (size_t i = 0; i < request->output.count; i++) {
    total += (size_t)tokenizer_decode(r->session->tok, request->output.data[i]).length;
  }
  char *text = malloc(total + 1);
  size_t used = 0;
  for (size_t i = 0; text != NULL && i < request->output.count; i++) {
    const gguf_string bytes = tokenizer_decode(r->session->tok, request->output.data[i]);
    memcpy(text + used, bytes.data, (size_t)bytes.length);
    used += (size_t)bytes.length;
  }
  *length = used;
  return text;
}

static bool write_prompt(const report *r, const lm_request *request, json_writer *w) {
  size_t length = 0;
  char *text = join(r, request, &length);
  if (text == NULL) {
    return false;
  }
  json_line(w);
  json_object(w, NULL);
  json_int32_list(w, "ids", request->prompt.data, request->prompt.count);
  json_int32_list(w, "continuation", request->output.data, request->output.count);
  json_bytes(w, "text", text, length);
  json_string(w, "stop", request->stop);
  json_number(w, "min_gap", (double)request->min_gap, 6);
  json_integer(w, "preemptions", request->preemptions);
  json_end(w);
  free(text);
  return true;
}

static void write_sharing(const report *r, json_writer *w) {
  const generate_sharing *s = &r->stats.sharing;
  json_integer(w, "cache_blocks", lm_attention_total_blocks(r->session->attention));
  json_integer(w, "block_size", lm_attention_block_size(r->session->attention));
  json_integer(w, "peak_blocks", s->peak_blocks);
  json_integer(w, "blocks_in_use", s->blocks_in_use);
  json_integer(w, "evictions", s->evictions);
  json_integer(w, "shared_blocks", s->shared_blocks);
  json_integer(w, "shared_tokens", s->shared_tokens);
  json_integer(w, "peak_shared_blocks", s->peak_shared);
  json_integer(w, "forks", s->forks);
  json_integer(w, "copied_blocks", s->copies);
  json_integer(w, "preemptions", s->preemptions);
  json_integer(w, "resumes", s->resumes);
  json_integer(w, "resumed_tokens", s->resumed_tokens);
  json_integer(w, "recomputed_tokens", s->recomputed_tokens);
}

static bool print_json(const report *r) {
  json_writer w;
  json_start(&w, stdout);
  json_object(&w, NULL);
  json_array(&w, "prompts");
  for (size_t i = 0; i < r->count; i++) {
    if (!write_prompt(r, &r->requests[i], &w)) {
      return false;
    }
  }
  json_end(&w);
  json_line(&w);
  json_integer(&w, "prefill_tokens", r->stats.prefill_tokens);
  json_number(&w, "prefill_tokens_per_second", rate(r->stats.prefill_tokens, r->stats.prefill_seconds), 6);
  json_integer(&w, "decode_tokens", r->stats.decode_tokens);
  json_number(&w, "decode_tokens_per_second", rate(r->stats.decode_tokens, r->stats.decode_seconds), 6);
  json_integer(&w, "steps", r->stats.steps);
  json_unsigned(&w, "cache_bytes", lm_attention_cache_bytes(r->session->attention));
  write_sharing(r, &w);
  session_write_settings(r->session, &w);
  json_finish(&w);
  return true;
}

void report_print_prompt(const report *r, size_t i) {
  const lm_prompt *prompt = &r->session->options.prompts[i];
  const char *shown = prompt->text != NULL ? prompt->text : prompt->ids != NULL ? prompt->ids : prompt->file;
  (void)printf("[%zu] %s\n", i + 1, shown);
}

static void print_sharing(const report *r) {
  const generate_sharing *s = &r->stats.sharing;
  const lm_attention *attention = r->session->attention;
  const int32_t blocks = lm_attention_total_blocks(attention);
  (void)printf("cache      %" PRIu64 " bytes, %d block%s of %d tokens; most in use %d, now %d\n",
               lm_attention_cache_bytes(attention), blocks, blocks > 1 ? "s" : "", lm_attention_block_size(attention),
               s->peak_blocks, s->blocks_in_use);
  if (r->count == 1) {
    return;
  }
  (void)printf("shared     %" PRId64 " blocks, %" PRId64 " tokens; copied %" PRId64 ", evicted %" PRId64 " blocks\n",
               s->shared_blocks, s->shared_tokens, s->copies, s->evictions);
  (void)printf("preempted  %" PRId64 ", resumed %" PRId64 "; %" PRId64 " tokens computed again\n", s->preemptions,
               s->resumes, s->recomputed_tokens);
}

static bool print_text(const report *r) {
  if (r->streamed) {
    (void)printf("\n\n");
  }
  for (size_t i = 0; i < r->count && !r->streamed; i++) {
    size_t length = 0;
    char *text = join(r, &r->requests[i], &length);
    if (text == NULL) {
      return false;
    }
    report_print_prompt(r, i);
    (void)fwrite(text, 1, length, stdout);
    (void)printf("\n\n");
    free(text);
  }
  (void)printf("prefill    %" PRId64 " tokens, %.1f tokens/s\n", r->stats.prefill_tokens,
               rate(r->stats.prefill_tokens, r->stats.prefill_seconds));
  (void)printf("decode     %" PRId64 " tokens, %.1f tokens/s\n", r->stats.decode_tokens,
               rate(r->stats.decode_tokens, r->stats.decode_seconds));
  print_sharing(r);
  (void)printf("backend    %s, %d thread%s; products by %s\n", lm_attention_backend(r->session->attention),
               r->session->threads, r->session->threads > 1 ? "s" : "", gemm_name());
  (void)printf("precision  %s, cache %s\n", session_compute_name(r->session),
               lm_formats_name(&r->session->options.formats).text);
  return true;
}

attn_status report_print(const report *r, attn_message *message) {
  const bool complete = r->session->options.json ? print_json(r) : print_text(r);
  if (!complete) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the texts");
  }
  return session_flush(message);
}

/* A new file beside `path` under a free name, which is written to `name`. */
static FILE *open_beside(const char *path, char *name, size_t room) {
  for (int attempt = 0; attempt < 100; attempt++) {
    (void)snprintf(name, room, "%s.tmp-%ld-%d", path, (long)getpid(), attempt);
    const int descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0) {
      return fdopen(descriptor, "wb");
    }
    if (errno != EEXIST) {
      return NULL;
    }
  }
  return NULL;
}

static bool write_logits(const report *r, FILE *file) {
  bool written = true;
  for (size_t i = 0; written && i < r->count; i++) {
    const size_t count = (size_t)r->session->params.vocabulary;
    written = fwrite(r->requests[i].first_logits, sizeof(float), count, file) == count;
  }
  return written;
}

attn_status report_write_logits(const report *r, const char *path, attn_message *message) {
  const lm_quoted shown = lm_quote(path, strlen(path));
  struct stat found;
  if (stat(path, &found) == 0 && !S_ISREG(found.st_mode)) {
    return lm_fail(message, ATTN_E_IO, "--logits %s exists and is not a regular file", shown.text);
  }
  const size_t room = strlen(path) + 48;
  char *name = malloc(room);
  if (name == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for a file name");
  }
  FILE *file = open_beside(path, name, room);
  bool written = file != NULL && write_logits(r, file);
  int reason = errno;
  if (file != NULL && fclose(file) != 0 && written) {
    reason = errno;
    written = false;
  }
  if (written && rename(name, path) != 0) {
    reason = errno;
    written = false;
  }
  if (!written && file != NULL) {
    (void)remove(name);
  }
  free(name);
  return written ? ATTN_OK
                 : lm_fail(message, ATTN_E_IO, "--logits %s cannot be written: %s", shown.text, strerror(reason));
}
