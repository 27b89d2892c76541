/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading and running a llama-family decoder. Q, K and V are one product over stacked rows, gate and up another. The
 * files store the rows of Q and K so that rotary pairs are neighbours (2i, 2i + 1), and so they are rotated here.
 * Angles are formed in double: at long positions a float angle would already be off.
 */
#include "model.h"

#include "progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct layer_weights {
  float *attention_norm;
  float *hidden_norm;
  gemm_weight *qkv; /* q, k, v rows stacked */
  gemm_weight *output;
  gemm_weight *gate_up; /* gate, up rows stacked */
  gemm_weight *down;
} layer_weights;

struct model {
  model_params params;
  gemm_engine *engine;
  const gguf_tensor *embedding;
  layer_weights *layers;
  float *output_norm;
  gemm_weight *head;
  double *frequencies; /* [rotary / 2] */
  /* activations of up to max_tokens rows */
  int64_t max_tokens;
  float *stream; /* [tokens, width] the residual */
  float *normed; /* [tokens, width] */
  float *wide;   /* [tokens, max(q + k + v, 2 * hidden)] */
  float *inner;  /* [tokens, max(heads * head_size, hidden)] */
  float *angles; /* [tokens, rotary] cosine, sine pairs */
  uint64_t tensors_used;
};

/* Rows of up to three tensors, one after the other. */
typedef struct row_source {
  const gguf_tensor *parts[3];
  int count;
} row_source;

static void read_rows(void *context, int64_t first, int64_t count, float *out) {
  const row_source *source = context;
  int64_t start = 0;
  for (int i = 0; i < source->count; i++) {
    const gguf_tensor *part = source->parts[i];
    const int64_t rows = (int64_t)part->dims[1];
    const int64_t from = first > start ? first : start;
    const int64_t to = first + count < start + rows ? first + count : start + rows;
    if (from < to) {
      part->type->to_float(part->data + (uint64_t)(from - start) * part->row_bytes,
                           (uint64_t)(to - from) * part->dims[0], out + (from - first) * (int64_t)part->dims[0]);
    }
    start += rows;
  }
}

static attn_status find_tensor(const gguf_file *file, model *m, const char *name, int64_t columns, int64_t rows,
                               const gguf_tensor **out, attn_message *message) {
  const gguf_tensor *tensor = gguf_find_tensor(file, name);
  if (tensor == NULL) {
    return lm_fail(message, ATTN_E_NAME, "%s: tensor '%s' is missing", file->path, name);
  }
  const uint32_t rank = rows > 0 ? 2 : 1;
  const uint64_t second = rows > 0 ? (uint64_t)rows : 1;
  if (tensor->n_dims != rank || tensor->dims[0] != (uint64_t)columns || tensor->dims[1] != second) {
    return lm_fail(message, ATTN_E_SHAPE,
                   "%s: tensor '%s' has rank %" PRIu32 ", extents %" PRIu64 " x %" PRIu64 "; accepted are rank %" PRIu32
                   ", %" PRId64 " x %" PRIu64,
                   file->path, name, tensor->n_dims, tensor->dims[0], tensor->dims[1], rank, columns, second);
  }
  m->tensors_used++;
  *out = tensor;
  return ATTN_OK;
}

/* One tensor of a layer: its name after "blk.N." and its extents. */
typedef struct layer_part {
  const char *name;
  int64_t columns;
  int64_t rows;
} layer_part;

static attn_status load_matrix(const gguf_file *file, model *m, int32_t layer, const layer_part *parts, int count,
                               gemm_weight **out, attn_message *message) {
  row_source source = {{NULL, NULL, NULL}, count};
  int64_t rows = 0;
  for (int i = 0; i < count; i++) {
    char name[64];
    (void)snprintf(name, sizeof name, "blk.%d.%s.weight", layer, parts[i].name);
    const attn_status status = find_tensor(file, m, name, parts[i].columns, parts[i].rows, &source.parts[i], message);
    if (status != ATTN_OK) {
      return status;
    }
    rows += parts[i].rows;
  }
  return gemm_weight_create(m->engine, rows, parts[0].columns, read_rows, &source, out, message);
}

static attn_status load_vector(const gguf_file *file, model *m, const char *name, float **out, attn_message *message) {
  const gguf_tensor *tensor = NULL;
  const attn_status status = find_tensor(file, m, name, m->params.width, 0, &tensor, message);
  if (status != ATTN_OK) {
    return status;
  }
  *out = malloc((size_t)m->params.width * sizeof **out);
  if (*out == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for tensor '%s'", name);
  }
  tensor->type->to_float(tensor->data, (uint64_t)m->params.width, *out);
  return ATTN_OK;
}

static attn_status load_layer(const gguf_file *file, model *m, int32_t layer, attn_message *message) {
  const model_params *p = &m->params;
  layer_weights *w = &m->layers[layer];
  const int64_t q = (int64_t)p->heads * p->head_size;
  const int64_t kv = (int64_t)p->kv_heads * p->head_size;
  const layer_part qkv[] = {{"attn_q", p->width, q}, {"attn_k", p->width, kv}, {"attn_v", p->width, kv}};
  const layer_part output[] = {{"attn_output", q, p->width}};
  const layer_part gate_up[] = {{"ffn_gate", p->width, p->hidden}, {"ffn_up", p->width, p->hidden}};
  const layer_part down[] = {{"ffn_down", p->hidden, p->width}};
  char name[64];
  (void)snprintf(name, sizeof name, "blk.%d.attn_norm.weight", layer);
  attn_status status = load_vector(file, m, name, &w->attention_norm, message);
  if (status == ATTN_OK) {
    (void)snprintf(name, sizeof name, "blk.%d.ffn_norm.weight", layer);
    status = load_vector(file, m, name, &w->hidden_norm, message);
  }
  if (status == ATTN_OK) {
    status = load_matrix(file, m, layer, qkv, 3, &w->qkv, message);
  }
  if (status == ATTN_OK) {
    status = load_matrix(file, m, layer, output, 1, &w->output, message);
  }
  if (status == ATTN_OK) {
    status = load_matrix(file, m, layer, gate_up, 2, &w->gate_up, message);
  }
  if (status == ATTN_OK) {
    status = load_matrix(file, m, layer, down, 1, &w->down, message);
  }
  return status;
}

/* The head first: it is the largest, and while a weight is reordered it takes twice its memory. */
static attn_status load_weights(const gguf_file *file, model *m, attn_message *message) {
  const model_params *p = &m->params;
  progress line;
  progress_start(&line);
  attn_status status = find_tensor(file, m, "token_embd.weight", p->width, p->vocabulary, &m->embedding, message);
  row_source head = {{m->embedding, NULL, NULL}, 1};
  if (status == ATTN_OK && gguf_find_tensor(file, "output.weight") != NULL) {
    status = find_tensor(file, m, "output.weight", p->width, p->vocabulary, &head.parts[0], message);
  }
  if (status == ATTN_OK) {
    status = gemm_weight_create(m->engine, p->vocabulary, p->width, read_rows, &head, &m->head, message);
  }
  if (status == ATTN_OK) {
    status = load_vector(file, m, "output_norm.weight", &m->output_norm, message);
  }
  for (int32_t layer = 0; layer < p->layers && status == ATTN_OK; layer++) {
    progress_show(&line, "attn-lm: loading layer %d of %d", layer + 1, p->layers);
    status = load_layer(file, m, layer, message);
  }
  progress_hide(&line);
  if (status == ATTN_OK && m->tensors_used != file->tensor_count) {
    status = lm_fail(message, ATTN_E_UNSUPPORTED,
                     "%s: %" PRIu64 " tensors, of which %" PRIu64 " have a place in a model of %d layers", file->path,
                     file->tensor_count, m->tensors_used, p->layers);
  }
  return status;
}

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t qkv_width(const model_params *p) {
  return ((int64_t)p->heads + 2 * (int64_t)p->kv_heads) * p->head_size;
}

static float *allocate_rows(const model *m, int64_t columns) {
  const uint64_t count = (uint64_t)m->max_tokens * (uint64_t)columns;
  return count <= SIZE_MAX / sizeof(float) / 2 ? malloc((size_t)count * sizeof(float)) : NULL;
}

static attn_status allocate_activations(model *m, attn_message *message) {
  const model_params *p = &m->params;
  m->frequencies = malloc((size_t)p->rotary / 2 * sizeof m->frequencies[0]);
  m->stream = allocate_rows(m, p->width);
  m->normed = allocate_rows(m, p->width);
  m->wide = allocate_rows(m, larger(qkv_width(p), 2 * (int64_t)p->hidden));
  m->inner = allocate_rows(m, larger((int64_t)p->heads * p->head_size, p->hidden));
  m->angles = allocate_rows(m, p->rotary);
  if (m->frequencies == NULL || m->stream == NULL || m->normed == NULL || m->wide == NULL || m->inner == NULL ||
      m->angles == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the activations of %" PRId64 " tokens", m->max_tokens);
  }
  for (int32_t i = 0; i < p->rotary / 2; i++) {
    m->frequencies[i] = pow(p->rotary_base, -2.0 * i / p->rotary);
  }
  return ATTN_OK;
}

attn_status model_create(const gguf_file *file, const model_params *params, gemm_engine *engine, int64_t max_tokens,
                         model **out, attn_message *message) {
  model *m = calloc(1, sizeof *m);
  if (m == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the model");
  }
  m->params = *params;
  m->engine = engine;
  m->max_tokens = max_tokens;
  m->layers = calloc((size_t)params->layers, sizeof m->layers[0]);
  attn_status status = m->layers != NULL ? load_weights(file, m, message)
                                         : lm_fail(message, ATTN_E_NOMEM, "no memory for %d layers", params->layers);
  if (status == ATTN_OK) {
    status = allocate_activations(m, message);
  }
  if (status != ATTN_OK) {
    model_destroy(m);
    return status;
  }
  *out = m;
  return ATTN_OK;
}

void model_destroy(model *m) {
  if (m == NULL) {
    return;
  }
  for (int32_t layer = 0; m->layers != NULL && layer < m->params.layers; layer++) {
    layer_weights *w = &m->layers[layer];
    free(w->attention_norm);
    free(w->hidden_norm);
    gemm_weight_destroy(w->qkv);
    gemm_weight_destroy(w->output);
    gemm_weight_destroy(w->gate_up);
    gemm_weight_destroy(w->down);
  }
  gemm_weight_destroy(m->head);
  free(m->layers);
  free(m->output_norm);
  free(m->frequencies);
  free(m->stream);
  free(m->normed);
  free(m->wide);
  free(m->inner);
  free(m->angles);
  free(m);
}

/* out = x / sqrt(mean(x^2) + epsilon) * weight, row by row; out may be x. */
static void normalise(const model *m, int64_t rows, const float *x, const float *weight, float *out) {
  const int64_t width = m->params.width;
  for (int64_t t = 0; t < rows; t++) {
    const float *row = x + t * width;
    double sum = 0;
    for (int64_t i = 0; i < width; i++) {
      sum += (double)row[i] * (double)row[i];
    }
    const float factor = (float)(1.0 / sqrt(sum / (double)width + (double)m->params.epsilon));
    for (int64_t i = 0; i < width; i++) {
      out[t * width + i] = row[i] * factor * weight[i];
    }
  }
}

static void add_to(float *stream, const float *x, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    stream[i] += x[i];
  }
}

static void prepare_angles(model *m, const model_step *step) {
  const int32_t half = m->params.rotary / 2;
  for (int64_t t = 0; t < step->tokens; t++) {
    float *row = m->angles + t * m->params.rotary;
    for (int32_t i = 0; i < half; i++) {
      const double angle = step->positions[t] * m->frequencies[i];
      row[2 * i] = (float)cos(angle);
      row[2 * i + 1] = (float)sin(angle);
    }
  }
}

static void rotate(const model *m, int64_t tokens, int64_t stride, int32_t heads, float *rows) {
  const int32_t rotary = m->params.rotary;
  for (int64_t t = 0; t < tokens; t++) {
    const float *angles = m->angles + t * rotary;
    for (int32_t h = 0; h < heads; h++) {
      float *head = rows + t * stride + (int64_t)h * m->params.head_size;
      for (int32_t i = 0; i < rotary; i += 2) {
        const float x = head[i];
        const float y = head[i + 1];
        head[i] = x * angles[i] - y * angles[i + 1];
        head[i + 1] = x * angles[i + 1] + y * angles[i];
      }
    }
  }
}

static attn_status run_attention(model *m, const model_step *step, int32_t layer, attn_message *message) {
  const model_params *p = &m->params;
  const layer_weights *w = &m->layers[layer];
  const int64_t stride = qkv_width(p);
  normalise(m, step->tokens, m->stream, w->attention_norm, m->normed);
  attn_status status = gemm_run(m->engine, w->qkv, step->tokens, m->normed, m->wide, message);
  if (status != ATTN_OK) {
    return status;
  }
  float *q = m->wide;
  float *k = q + (int64_t)p->heads * p->head_size;
  float *v = k + (int64_t)p->kv_heads * p->head_size;
  rotate(m, step->tokens, stride, p->heads, q);
  rotate(m, step->tokens, stride, p->kv_heads, k);
  const model_rows rows = {layer, step->tokens, stride, q, k, v, m->inner};
  status = step->attend(step->attend_context, &rows, message);
  if (status == ATTN_OK) {
    status = gemm_run(m->engine, w->output, step->tokens, m->inner, m->normed, message);
  }
  if (status == ATTN_OK) {
    add_to(m->stream, m->normed, step->tokens * p->width);
  }
  return status;
}

static attn_status run_hidden(model *m, const model_step *step, int32_t layer, attn_message *message) {
  const layer_weights *w = &m->layers[layer];
  const int64_t hidden = m->params.hidden;
  normalise(m, step->tokens, m->stream, w->hidden_norm, m->normed);
  attn_status status = gemm_run(m->engine, w->gate_up, step->tokens, m->normed, m->wide, message);
  if (status != ATTN_OK) {
    return status;
  }
  for (int64_t t = 0; t < step->tokens; t++) {
    const float *gate = m->wide + 2 * t * hidden;
    const float *up = gate + hidden;
    for (int64_t i = 0; i < hidden; i++) {
      m->inner[t * hidden + i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
    }
  }
  status = gemm_run(m->engine, w->down, step->tokens, m->inner, m->normed, message);
  if (status == ATTN_OK) {
    add_to(m->stream, m->normed, step->tokens * m->params.width);
  }
  return status;
}

static attn_status project(model *m, const model_step *step, attn_message *message) {
  const int64_t width = m->params.width;
  for (int64_t i = 0; i < step->outputs; i++) {
    normalise(m, 1, m->stream + step->output_rows[i] * width, m->output_norm, m->normed + i * width);
  }
  return gemm_run(m->engine, m->head, step->outputs, m->normed, step->logits, message);
}

attn_status model_run(model *m, const model_step *step, attn_message *message) {
  if (step->tokens < 1 || step->tokens > m->max_tokens) {
    return lm_fail(message, ATTN_E_CAPACITY, "a step of %" PRId64 " tokens; accepted are 1 to %" PRId64, step->tokens,
                   m->max_tokens);
  }
  for (int64_t t = 0; t < step->tokens; t++) {
    const gguf_tensor *table = m->embedding;
    table->type->to_float(table->data + (uint64_t)step->ids[t] * table->row_bytes, table->dims[0],
                          m->stream + t * m->params.width);
  }
  prepare_angles(m, step);
  attn_status status = ATTN_OK;
  for (int32_t layer = 0; layer < m->params.layers && status == ATTN_OK; layer++) {
    status = run_attention(m, step, layer, message);
    if (status == ATTN_OK) {
      status = run_hidden(m, step, layer, message);
    }
  }
  return status == ATTN_OK ? project(m, step, message) : status;
}
