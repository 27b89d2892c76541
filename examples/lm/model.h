/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A decoder of the llama family in float32: RMSNorm, rotary positions, grouped-query attention, SwiGLU. The model does
 * all but the attention itself, which the caller supplies as a callback per layer. Weights come from a GGUF file; the
 * embedding stays quantised in the mapping, the matrices live once, in the product's own layout.
 */
#ifndef LM_MODEL_H
#define LM_MODEL_H

#include "gemm.h"
#include "gguf.h"

/** Hyperparameters, checked against each other. */
typedef struct model_params {
  int32_t layers;
  int32_t width;  /**< of the residual stream */
  int32_t hidden; /**< of the feed-forward part */
  int32_t heads;
  int32_t kv_heads;
  int32_t head_size;
  int32_t rotary; /**< leading elements of a head that are rotated, even */
  int32_t vocabulary;
  int32_t context; /**< positions the model was made for */
  float epsilon;
  double rotary_base;
} model_params;

typedef struct model model;

/** Reads and checks the `llama.*` keys; a key that is not known could change the mathematics and is refused. */
ATTN_NODISCARD attn_status model_read_params(const gguf_file *file, model_params *params, attn_message *message);

/** Loads the weights. File and engine must outlive the model. `max_tokens` is the most tokens of one step. */
ATTN_NODISCARD attn_status model_create(const gguf_file *file, const model_params *params, gemm_engine *engine,
                                        int64_t max_tokens, model **out, attn_message *message);
void model_destroy(model *m);

/** One layer's new rows: token t's q is at q + t * stride, [heads, head_size]; k and v likewise, [kv_heads,
   head_size]. */
typedef struct model_rows {
  int32_t layer;
  int64_t tokens;
  int64_t stride;
  float *q;
  float *k;
  float *v;
  float *out; /**< [tokens, heads, head_size], compact; to be written */
} model_rows;

typedef attn_status (*model_attend)(void *context, const model_rows *rows, attn_message *message);

/** One step over the tokens of all sequences. */
typedef struct model_step {
  int64_t tokens;             /**< 1 to max_tokens */
  const int32_t *ids;         /**< [tokens], inside the vocabulary */
  const int32_t *positions;   /**< [tokens] */
  int64_t outputs;            /**< rows to project to logits, 0 to tokens */
  const int64_t *output_rows; /**< [outputs] */
  float *logits;              /**< [outputs, vocabulary], written */
  model_attend attend;
  void *attend_context;
} model_step;

ATTN_NODISCARD attn_status model_run(model *m, const model_step *step, attn_message *message);

#endif
