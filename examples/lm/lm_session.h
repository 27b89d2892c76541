/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every command of attn-lm works with: the open file, its tokenizer, the engines and the model. The file's header
 * is read and the attention's plan made before a single weight is loaded, so that whatever is wrong is told at once.
 */
#ifndef LM_SESSION_H
#define LM_SESSION_H

#include "json_write.h"
#include "lm_attention.h"
#include "lm_options.h"
#include "model.h"
#include "tokenizer.h"

typedef struct lm_session {
  lm_options options; /**< parsed; the session releases them */
  gguf_file file;
  tokenizer *tok;
  model_params params;
  lm_attention *attention;
  gemm_engine *engine;
  int32_t threads;
  model *m;
  int32_t *positions;   /**< [max_batch_tokens] of a step */
  int64_t *output_rows; /**< [max_batch_tokens] */
} lm_session;

/** What the cache has to hold. */
typedef struct lm_needs {
  int32_t in_flight;
  int32_t max_length;     /**< of the longest sequence */
  const int32_t *lengths; /**< [length_count] of each prompt's sequence */
  size_t length_count;
  bool prefix_cache; /**< sequences that begin alike share blocks */
} lm_needs;

/** Opens the file of the options and reads its parameters and tokenizer. */
ATTN_NODISCARD attn_status session_open(lm_session *s, attn_message *message);

/** Makes engines, model and cache. */
ATTN_NODISCARD attn_status session_prepare(lm_session *s, const lm_needs *needs, attn_message *message);

/** Another cache in place of the one that is there, after session_prepare: nothing is in it. */
ATTN_NODISCARD attn_status session_store(lm_session *s, const lm_needs *needs, const lm_storage *storage,
                                         attn_message *message);

/** Safe on a zeroed struct. */
void session_close(lm_session *s);

/**
 * Appends `count` tokens to sequence 0, which holds `first`, in steps of at most max_batch_tokens; `logits` takes the
 * rows of the last `outputs` of them.
 */
ATTN_NODISCARD attn_status session_feed(lm_session *s, const int32_t *ids, int32_t first, int32_t count,
                                        int32_t outputs, float *logits, attn_message *message);

/** Reads a whole file, "-" standard input; `flag` is named in the message. free(*text). */
ATTN_NODISCARD attn_status session_read_text(const char *flag, const char *path, char **text, size_t *length,
                                             attn_message *message);

/** Seconds of a clock that only runs forward. */
double session_seconds(void);

/** "float32" or "bfloat16": what the products multiply. */
const char *session_compute_name(const lm_session *s);

/** What was used, as every command's JSON tells it: compute, cache_format, backend, gemm, threads. */
void session_write_settings(const lm_session *s, json_writer *w);

/** Flushes standard output; ATTN_E_IO if anything could not be written. */
ATTN_NODISCARD attn_status session_flush(attn_message *message);

#endif
