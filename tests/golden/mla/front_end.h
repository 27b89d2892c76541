/* SPDX-License-Identifier: Apache-2.0 */
/* front_end.h: a DeepSeek attention layer up to its attention, in double: what make_mla.py's layers do before they
   attend, from the same weights and hidden states (README.md). Results are rounded to float32 once, at the end. */
#ifndef ATTN_GOLDEN_FRONT_END_H
#define ATTN_GOLDEN_FRONT_END_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../api/harness.h"
#include "../golden_rows.h"

enum { KEPT = 10, MAX_TOKENS = 192, ORIGINAL_CONTEXT = 4096 };

/* The numbers of the generator's tensors. */
enum { HIDDEN, Q_A, Q_A_NORM, Q_B, Q_DIRECT, KV_A, KV_A_NORM, KV_B, TENSORS };

typedef struct layer {
  char name[32], model[8], pairs[16];
  int32_t number, tokens, hidden, heads, q_rank, rank, rope, nope, v, start;
  double factor, mscale, mscale_all_dim;
  float *drawn[TENSORS];    /* weights as [out, in], hidden states as [tokens, hidden]; NULL: the layer has none */
  float *frequencies;       /* [rope / 2], the public code's */
  float *cosines, *sines;   /* [tokens, rope / 2], of positions start, start + 1, .. */
  float *plain_q, *plain_k; /* q and k_pe before they are rotated */
  float *q;                 /* [tokens, heads, nope + rope] */
  float *kv_c;              /* [tokens, rank] */
  float *k_pe;              /* [tokens, rope] */
  float *expected;          /* [KEPT, heads, v], the public code's */
} layer;

static inline void *zeros(int64_t count, size_t size) {
  void *memory = calloc((size_t)count + 1, size);
  assert_non_null(memory);
  return memory;
}

static inline float *zero_floats(int64_t count) {
  return zeros(count, sizeof(float));
}

static inline int32_t qk_of(const layer *m) {
  return m->nope + m->rope;
}

/* ---- The generator ----------------------------------------------------------------------------------------------- */

/* Every number is an integer of at most 24 bits times a power of two, so no rounding takes part. */
static inline float *draw(const layer *m, int which, int64_t count, int exponent) {
  float *values = zero_floats(count);
  const uint64_t stream = rows_mix((uint64_t)m->number << 8 | (uint64_t)which);
  for (int64_t i = 0; i < count; i++) {
    const int32_t integer = (int32_t)(rows_word(stream, (uint64_t)i) >> 40) - (1 << 23);
    values[i] = ldexpf((float)integer, exponent - 23);
  }
  return values;
}

static inline float *draw_gain(const layer *m, int which, int64_t count) {
  float *values = zero_floats(count);
  const uint64_t stream = rows_mix((uint64_t)m->number << 8 | (uint64_t)which);
  for (int64_t i = 0; i < count; i++) {
    const int32_t integer = (int32_t)(rows_word(stream, (uint64_t)i) >> 41) + (1 << 22);
    values[i] = ldexpf((float)integer, -23);
  }
  return values;
}

static inline void draw_all(layer *m) {
  const int64_t queries = (int64_t)m->heads * qk_of(m);
  m->drawn[HIDDEN] = draw(m, HIDDEN, (int64_t)m->tokens * m->hidden, 0);
  if (m->q_rank > 0) {
    m->drawn[Q_A] = draw(m, Q_A, (int64_t)m->q_rank * m->hidden, -2);
    m->drawn[Q_A_NORM] = draw_gain(m, Q_A_NORM, m->q_rank);
    m->drawn[Q_B] = draw(m, Q_B, queries * m->q_rank, -2);
  } else {
    m->drawn[Q_DIRECT] = draw(m, Q_DIRECT, queries * m->hidden, -1);
  }
  m->drawn[KV_A] = draw(m, KV_A, (int64_t)(m->rank + m->rope) * m->hidden, -1);
  m->drawn[KV_A_NORM] = draw_gain(m, KV_A_NORM, m->rank);
  m->drawn[KV_B] = draw(m, KV_B, (int64_t)m->heads * (m->nope + m->v) * m->rank, -3);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static inline void read_bin(layer *m) {
  char path[512];
  const size_t pairs = (size_t)m->rope / 2, rows = (size_t)KEPT * (size_t)m->heads * (size_t)m->v;
  snprintf(path, sizeof path, "%s/mla/%s.bin", ATTN_GOLDEN_DIR, m->name);
  FILE *file = fopen(path, "rb");
  CHECK(file != NULL, "%s cannot be read", path);
  m->frequencies = zero_floats((int64_t)pairs);
  m->expected = zero_floats((int64_t)rows);
  CHECK(fread(m->frequencies, sizeof(float), pairs, file) == pairs, "%s: too short", path);
  CHECK(fread(m->expected, sizeof(float), rows, file) == rows, "%s: too short", path);
  CHECK(fgetc(file) == EOF, "%s: too long", path);
  fclose(file);
}

static inline int read_scenario(FILE *file, layer *m) {
  char line[256];
  while (fgets(line, sizeof line, file) != NULL) {
    if (line[0] == '#') continue;
    CHECK(sscanf(line, "%31s %7s %d %d %d %d %d %d %d %d %15s %d %lf %lf %lf", m->name, m->model, &m->tokens,
                 &m->hidden, &m->heads, &m->q_rank, &m->rank, &m->rope, &m->nope, &m->v, m->pairs, &m->start,
                 &m->factor, &m->mscale, &m->mscale_all_dim) == 15 &&
              m->tokens <= MAX_TOKENS,
          "scenarios.txt: %s", line);
    return 1;
  }
  return 0;
}

/* ---- Rotary embedding -------------------------------------------------------------------------------------------- */

static inline double magnitude(double factor, double mscale) {
  return factor > 1.0 ? 0.1 * mscale * log(factor) + 1.0 : 1.0;
}

/* The pair that turns `turns` times over the original context, as a real number. */
static inline double pair_of_turns(const layer *m, double turns) {
  return m->rope * log(ORIGINAL_CONTEXT / (turns * 2.0 * acos(-1.0))) / (2.0 * log(10000.0));
}

/* YaRN: pairs that turn more than 32 times keep their frequency, those that turn less than once have it divided by the
   factor, and those between are mixed. */
static inline double frequency(const layer *m, int32_t pair) {
  const double original = pow(10000.0, -2.0 * pair / m->rope);
  const double first = fmax(floor(pair_of_turns(m, 32.0)), 0.0);
  const double last = fmin(ceil(pair_of_turns(m, 1.0)), m->rope - 1.0);
  const double mixed = fmin(fmax((pair - first) / (last - first), 0.0), 1.0);
  return m->factor > 1.0 ? original / m->factor * mixed + original * (1.0 - mixed) : original;
}

/* The public code rounds frequencies and angles to float32. At position 20000 the last bit of a frequency turns a key
   by up to 1e-3, so its own bits are taken, once they are seen to be the formula's. */
static inline void make_tables(layer *m) {
  const int32_t pairs = m->rope / 2;
  const double size = magnitude(m->factor, m->mscale) / magnitude(m->factor, m->mscale_all_dim);
  m->cosines = zero_floats((int64_t)m->tokens * pairs);
  m->sines = zero_floats((int64_t)m->tokens * pairs);
  for (int32_t j = 0; j < pairs; j++) {
    const double wanted = frequency(m, j), stored = (double)m->frequencies[j];
    CHECK(fabs(stored - wanted) <= 1e-6 * wanted, "%s: frequency %d is %.9g, not %.9g", m->name, j, stored, wanted);
    for (int32_t t = 0; t < m->tokens; t++) {
      const float angle = (float)((double)(m->start + t) * stored);
      m->cosines[t * pairs + j] = (float)(size * cos((double)angle));
      m->sines[t * pairs + j] = (float)(size * sin((double)angle));
    }
  }
}

static inline void rotate(const layer *m, int32_t token, const float *from, float *to) {
  const int32_t pairs = m->rope / 2, interleaved = m->pairs[0] == 'i';
  for (int32_t j = 0; j < pairs; j++) {
    const int32_t first = interleaved ? 2 * j : j, second = interleaved ? 2 * j + 1 : j + pairs;
    const double a = (double)from[first], b = (double)from[second];
    const double c = (double)m->cosines[token * pairs + j], s = (double)m->sines[token * pairs + j];
    to[first] = (float)(a * c - b * s);
    to[second] = (float)(b * c + a * s);
  }
}

/* ---- Projections ------------------------------------------------------------------------------------------------- */

static inline void project(const float *weight, int32_t rows, int32_t columns, const double *from, double *to) {
  for (int32_t i = 0; i < rows; i++) {
    to[i] = 0.0;
    for (int32_t j = 0; j < columns; j++) {
      to[i] += (double)weight[(int64_t)i * columns + j] * from[j];
    }
  }
}

static inline void rms_norm(const float *gain, int32_t count, double *values) {
  double sum = 0.0;
  for (int32_t i = 0; i < count; i++) {
    sum += values[i] * values[i];
  }
  for (int32_t i = 0; i < count; i++) {
    values[i] *= (double)gain[i] / sqrt(sum / count + 1e-6);
  }
}

static inline void round_to(float *to, const double *from, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    to[i] = (float)from[i];
  }
}

static inline void front_end_token(layer *m, int32_t token, const double *hidden, double *a, double *b) {
  const int32_t queries = m->heads * qk_of(m);
  float *plain = m->plain_q + (int64_t)token * queries, *turned = m->q + (int64_t)token * queries;
  if (m->q_rank > 0) {
    project(m->drawn[Q_A], m->q_rank, m->hidden, hidden, a);
    rms_norm(m->drawn[Q_A_NORM], m->q_rank, a);
    project(m->drawn[Q_B], queries, m->q_rank, a, b);
  } else {
    project(m->drawn[Q_DIRECT], queries, m->hidden, hidden, b);
  }
  round_to(plain, b, queries);
  round_to(turned, b, queries);
  for (int32_t h = 0; h < m->heads; h++) {
    const int32_t at = h * qk_of(m) + m->nope;
    rotate(m, token, plain + at, turned + at);
  }
  project(m->drawn[KV_A], m->rank + m->rope, m->hidden, hidden, a);
  round_to(m->plain_k + token * m->rope, a + m->rank, m->rope);
  rotate(m, token, m->plain_k + token * m->rope, m->k_pe + token * m->rope);
  rms_norm(m->drawn[KV_A_NORM], m->rank, a);
  round_to(m->kv_c + (int64_t)token * m->rank, a, m->rank);
}

static inline void layer_open(layer *m) {
  const int64_t queries = (int64_t)m->heads * qk_of(m);
  double *hidden = zeros(m->hidden, sizeof *hidden), *a = zeros(m->rank + m->rope + m->q_rank, sizeof *a);
  double *b = zeros(queries, sizeof *b);
  read_bin(m);
  draw_all(m);
  make_tables(m);
  m->plain_q = zero_floats(m->tokens * queries);
  m->q = zero_floats(m->tokens * queries);
  m->plain_k = zero_floats((int64_t)m->tokens * m->rope);
  m->k_pe = zero_floats((int64_t)m->tokens * m->rope);
  m->kv_c = zero_floats((int64_t)m->tokens * m->rank);
  for (int32_t t = 0; t < m->tokens; t++) {
    for (int32_t i = 0; i < m->hidden; i++) {
      hidden[i] = (double)m->drawn[HIDDEN][t * m->hidden + i];
    }
    front_end_token(m, t, hidden, a, b);
  }
  free(hidden);
  free(a);
  free(b);
}

static inline void layer_close(layer *m) {
  for (int i = 0; i < TENSORS; i++) {
    free(m->drawn[i]);
  }
  float *others[] = {m->frequencies, m->cosines, m->sines, m->plain_q, m->plain_k, m->q, m->kv_c, m->k_pe, m->expected};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    free(others[i]);
  }
}

/* ---- Absorbing by hand ------------------------------------------------------------------------------------------- */

/* (W_UK^T q_nope, the rest of q) of every token and head, from q: [tokens, heads, rank + rope]. */
static inline float *absorb(const layer *m, const float *q) {
  const int32_t width = m->rank + m->rope;
  float *absorbed = zero_floats((int64_t)m->tokens * m->heads * width);
  for (int32_t row = 0; row < m->tokens * m->heads; row++) {
    const float *from = q + (int64_t)row * qk_of(m);
    const float *w = m->drawn[KV_B] + (int64_t)(row % m->heads) * (m->nope + m->v) * m->rank;
    float *to = absorbed + (int64_t)row * width;
    for (int32_t i = 0; i < m->rank; i++) {
      double sum = 0.0;
      for (int32_t d = 0; d < m->nope; d++) {
        sum += (double)w[(int64_t)d * m->rank + i] * (double)from[d];
      }
      to[i] = (float)sum;
    }
    memcpy(to + m->rank, from + m->nope, (size_t)m->rope * sizeof *to);
  }
  return absorbed;
}

/* out = W_UV x for one row of a head. */
static inline void expand_value(const layer *m, int32_t head, const float *latent, float *out) {
  const float *w = m->drawn[KV_B] + ((int64_t)head * (m->nope + m->v) + m->nope) * m->rank;
  for (int32_t d = 0; d < m->v; d++) {
    double sum = 0.0;
    for (int32_t i = 0; i < m->rank; i++) {
      sum += (double)w[(int64_t)d * m->rank + i] * (double)latent[i];
    }
    out[d] = (float)sum;
  }
}

#endif
