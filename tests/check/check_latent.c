/* SPDX-License-Identifier: Apache-2.0 */
/* check_latent.c: what a case over latent rows holds: rows in their format by the contract's section 9, sharing no code
 * with src/, the projection, queries, and keys and values as the oracle sees them. */
#include "check_latent.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "check_float.h"

enum { TILE = 128, WEIGHT_BLOCK = 128 };

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static int32_t padded(int64_t bytes) {
  return (int32_t)((bytes + 3) / 4 * 4);
}

static int32_t code_bytes(const check_case *c) {
  return c->k_format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? (c->rank + 1) / 2 : c->rank;
}

/* Where the rotary elements of a mixed row lie. */
static int32_t rotary_at(const check_case *c) {
  return c->k_format == ATTN_FORMAT_FP8_DS_MLA ? c->rank + c->rank / TILE * (int32_t)sizeof(float)
                                               : padded(code_bytes(c));
}

/* Bytes of a stored row, all paddings included, and an inline scale. */
static int32_t row_bytes_of(const check_case *c, const check_latent *l) {
  int32_t elements = c->rank + c->rotary;
  if (check_format_per_row(c->k_format)) {
    return padded(rotary_at(c) + 2 * (int64_t)c->rotary) + (l->separate ? 0 : 4);
  }
  return c->k_format == ATTN_FORMAT_FP8_DS_MLA ? rotary_at(c) + 2 * c->rotary
                                               : elements * (int32_t)attn_dtype_bytes(c->k_type);
}

static void store_rotary(const check_case *c, const check_latent *l, const float *given, uint8_t *bytes, float *seen) {
  for (int32_t i = 0; i < c->rotary; i++) {
    uint8_t *at = bytes + rotary_at(c) + 2 * i;
    check_store(at, l->rotary_type, given[c->rank + i]);
    seen[c->rank + i] = check_load(at, l->rotary_type);
  }
}

static void store_per_row(const check_case *c, const check_latent *l, const float *given, uint8_t *bytes, float *scale,
                          float *seen) {
  uint32_t bits = 0;
  check_rows one = {.format = c->k_format, .size = c->rank, .heads = 1, .positions = 1, .code_bytes = code_bytes(c)};
  one.codes = bytes;
  one.scales = &bits;
  check_row_encode(&one, 0, given, bytes, &bits);
  check_row_decode(&one, 0, seen);
  memcpy(scale, &bits, sizeof bits);
  store_rotary(c, l, given, bytes, seen);
  if (!l->separate) {
    memcpy(bytes + row_bytes_of(c, l) - 4, &bits, sizeof bits);
  }
}

static void store_tiles(const check_case *c, const check_latent *l, const float *given, uint8_t *bytes, float *seen) {
  for (int32_t t = 0; t < c->rank / TILE; t++) {
    const float *x = given + t * TILE;
    float most = 0.0f;
    for (int32_t i = 0; i < TILE; i++) {
      most = isfinite(x[i]) ? fmaxf(most, fabsf(x[i])) : INFINITY;
      if (isinf(most)) {
        break;
      }
    }
    uint32_t nan = 0x7FC00000u;
    float scale = fmaxf(most / 448.0f, FLT_MIN);
    if (isinf(most)) {
      memcpy(&scale, &nan, sizeof scale);
    }
    memcpy(bytes + c->rank + t * (int32_t)sizeof scale, &scale, sizeof scale);
    for (int32_t i = 0; i < TILE; i++) {
      float quotient = x[i] / scale;
      uint8_t code = isinf(most) ? 0 : check_to_fp8(quotient, 0);
      bytes[t * TILE + i] = code;
      seen[t * TILE + i] = check_from_fp8(code, 0) * scale;
    }
  }
  store_rotary(c, l, given, bytes, seen);
}

/* Bytes, the scale where that lies apart, and what a reader gets. */
static void store_row(const check_case *c, const check_latent *l, const float *given, uint8_t *bytes, float *scale,
                      float *seen) {
  memset(bytes, 0, (size_t)l->row_bytes);
  *scale = 0.0f;
  if (check_format_per_row(c->k_format)) {
    store_per_row(c, l, given, bytes, scale, seen);
    return;
  }
  if (c->k_format == ATTN_FORMAT_FP8_DS_MLA) {
    store_tiles(c, l, given, bytes, seen);
    return;
  }
  for (int32_t i = 0; i < c->rank + c->rotary; i++) {
    if (c->k_format == ATTN_FORMAT_FP8_E4M3) {
      float quotient = given[i] / l->static_scale;
      bytes[i] = check_to_fp8(quotient, 0);
      seen[i] = check_from_fp8(bytes[i], 0) * l->static_scale;
      continue;
    }
    uint8_t *at = bytes + (size_t)i * attn_dtype_bytes(c->k_type);
    check_store(at, c->k_type, given[i]);
    seen[i] = check_load(at, c->k_type);
  }
}

/* ---- the projection ---------------------------------------------------------------------------------------------- */

static void draw_block_scales(check_arena *arena, check_case *c, check_latent *l, int64_t rows) {
  int64_t shape[2] = {(rows + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK, (c->rank + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK};
  check_lie lie = {NULL, 0, check_is(c, CHECK_GUARD, 1), 0};
  check_tensor_make(arena, &l->w_scale, ATTN_DTYPE_FLOAT32, 2, shape, &lie, NULL);
  for (int64_t i = 0; i < shape[0] * shape[1]; i++) {
    float scale =
        ldexpf(1.0f + (float)check_uniform(&c->rng), (int)check_between(&c->rng, -3, 1)) / sqrtf((float)c->rank);
    check_store(check_at(&l->w_scale, i / shape[1], i % shape[1], 0, 0), ATTN_DTYPE_FLOAT32, scale);
  }
}

/* A projection of the case's heads in its type, decoded to [heads * (nope + v), rank]. */
static float *draw_weights(check_arena *arena, check_case *c, check_latent *l) {
  attn_dtype type = (attn_dtype)check_number(&c->choice, CHECK_WEIGHTS);
  int64_t rows = (int64_t)c->q_heads * (c->nope + c->v_size);
  int64_t shape[2] = {rows, c->rank};
  float *w = check_alloc(arena, (size_t)(rows * c->rank), sizeof *w);
  check_lie lie = {NULL, 0, check_is(c, CHECK_GUARD, 1), 0};
  check_tensor_make(arena, &l->w_kv_b, type, 2, shape, &lie, NULL);
  if (type == ATTN_DTYPE_FP8_E4M3) {
    draw_block_scales(arena, c, l, rows);
  }
  for (int64_t i = 0; i < rows * c->rank; i++) {
    int64_t row = i / c->rank;
    int64_t column = i % c->rank;
    void *at = check_at(&l->w_kv_b, row, column, 0, 0);
    if (type == ATTN_DTYPE_FP8_E4M3) {
      uint8_t code = check_to_fp8(check_normal(&c->rng), 0);
      memcpy(at, &code, 1);
      w[i] = check_from_fp8(code, 0) *
             check_load(check_at(&l->w_scale, row / WEIGHT_BLOCK, column / WEIGHT_BLOCK, 0, 0), ATTN_DTYPE_FLOAT32);
      continue;
    }
    check_store(at, type, check_normal(&c->rng) / sqrtf((float)c->rank));
    w[i] = check_load(at, type);
  }
  return w;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void draw_values(check_case *c, float *q, float *rows) {
  int64_t size = c->rank + c->rotary;
  int64_t nq = c->tokens * c->q_heads * c->size;
  int64_t nr = c->keys * size;
  check_rng *rng = &c->rng;
  for (int64_t i = 0; i < nq; i++) {
    q[i] = check_normal(rng);
  }
  for (int64_t i = 0; i < nr; i++) {
    rows[i] = check_normal(rng);
  }
  switch (check_number(&c->choice, CHECK_LATENT_VALUES)) {
  case CHECK_CONSTANT_ROWS:
    check_repeat_rows(c, rows, size);
    break;
  case CHECK_SPARSE:
    check_thin_out(rng, q, nq);
    check_thin_out(rng, rows, nr);
    break;
  case CHECK_MIXED_SCALES:
    check_scale_rows(rng, q, c->tokens * c->q_heads, c->size);
    check_scale_rows(rng, rows, c->keys, size);
    break;
  case CHECK_NAN_ROW:
    if (nq > 0 && (nr == 0 || c->rotary == 0 || check_chance(rng, 50))) {
      q[check_between(rng, 0, nq - 1)] = NAN;
    } else if (nr > 0 && c->rotary > 0) { /* of a value it may reach rows that do not see it */
      rows[check_between(rng, 0, c->keys - 1) * size + c->rank + check_between(rng, 0, c->rotary - 1)] = NAN;
    }
    break;
  default:
    break;
  }
}

/* Is the position one of the sequence's new tokens? */
static int is_new(const check_seq *seq, int32_t k) {
  return k >= seq->kv_len - seq->q_len;
}

static void store_rows(check_arena *arena, check_case *c, check_latent *l, float *given) {
  size_t size = (size_t)(c->rank + c->rotary);
  float *seen = check_alloc(arena, (size_t)c->keys * size, sizeof *seen);
  float *scales = check_alloc(arena, (size_t)c->keys, sizeof *scales);
  uint8_t *bytes = check_alloc(arena, (size_t)c->keys, (size_t)l->row_bytes);
  for (int64_t i = 0; i < c->keys; i++) {
    for (size_t e = 0; e < size; e++) {
      given[(size_t)i * size + e] = check_rounded(l->source, given[(size_t)i * size + e]);
    }
    store_row(c, l, given + (size_t)i * size, bytes + i * l->row_bytes, &scales[i], seen + (size_t)i * size);
  }
  l->given = given;
  l->seen = seen;
  l->bytes = bytes;
  l->scales = scales;
}

/* The row of a position as it is attended to. */
static const float *attended(const check_case *c, const check_latent *l, const check_seq *seq, int32_t k) {
  int as_given = l->new_rows == CHECK_ROWS_GIVEN && is_new(seq, k);
  return (as_given ? l->given : l->seen) + (seq->k_start + k) * (c->rank + c->rotary);
}

static float product(const float *w, const float *row, int32_t rank) {
  double sum = 0.0;
  for (int32_t i = 0; i < rank; i++) {
    sum += (double)w[i] * (double)row[i];
  }
  return (float)sum;
}

/* Keys and values of all heads from the latent rows, and the norms that the bounds are relative to: a sum over the
   latent elements is rounded relative to the product of its factors' norms. */
static void expand(const check_case *c, const check_latent *l, const float *w, const double *w_norms, float *k,
                   float *v, double *k_norms, double *v_norms) {
  for (int32_t s = 0; s < c->num_seqs; s++) {
    for (int32_t p = 0; p < c->seqs[s].kv_len; p++) {
      const float *row = attended(c, l, &c->seqs[s], p);
      int64_t key = c->seqs[s].k_start + p;
      double latent = check_norm(row, c->rank);
      double rotary = check_norm(row + c->rank, c->rotary);
      for (int32_t h = 0; h < c->kv_heads; h++) {
        float *to_k = k + (key * c->kv_heads + h) * c->size;
        float *to_v = v + (key * c->kv_heads + h) * c->v_size;
        if (w == NULL) {
          memcpy(to_k, row, (size_t)c->size * sizeof *row);
          memcpy(to_v, row, (size_t)c->v_size * sizeof *row);
          continue;
        }
        const float *of_head = w + (int64_t)h * (c->nope + c->v_size) * c->rank;
        for (int32_t d = 0; d < c->nope; d++) {
          to_k[d] = product(of_head + (int64_t)d * c->rank, row, c->rank);
        }
        memcpy(to_k + c->nope, row + c->rank, (size_t)c->rotary * sizeof *row);
        for (int32_t d = 0; d < c->v_size; d++) {
          to_v[d] = product(of_head + (int64_t)(c->nope + d) * c->rank, row, c->rank);
        }
        k_norms[key * c->kv_heads + h] = hypot(w_norms[2 * h] * latent, rotary);
        v_norms[key * c->kv_heads + h] = w_norms[2 * h + 1] * latent;
      }
    }
  }
}

static void draw_kinds(check_case *c, check_latent *l) {
  int mixed = check_format_per_row(c->k_format) || c->k_format == ATTN_FORMAT_FP8_DS_MLA;
  l->form = c->op == CHECK_MQA ? ATTN_MLA_MQA : c->op == CHECK_MHA ? ATTN_MLA_MHA : ATTN_MLA_LAYER;
  l->source = (attn_dtype)check_between(&c->rng, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_BFLOAT16);
  l->rotary_type = mixed ? (attn_dtype)check_number(&c->choice, CHECK_ROTARY_TYPE) : ATTN_DTYPE_DEFAULT;
  l->separate = check_separate(c, c->k_format);
  l->new_rows = c->op == CHECK_MQA ? CHECK_ROWS_BEFORE : check_number(&c->choice, CHECK_NEW_ROWS);
  l->two_queries = check_is(c, CHECK_QUERY, 1) && c->rotary > 0;
  l->has_static = c->k_format == ATTN_FORMAT_FP8_E4M3 && check_chance(&c->rng, 75);
  l->static_scale =
      l->has_static ? ldexpf(1.0f + (float)check_uniform(&c->rng), (int)check_between(&c->rng, -7, 0)) : 1.0f;
  l->row_bytes = row_bytes_of(c, l);
}

void check_latent_draw(check_arena *arena, check_case *c, check_model *m, check_latent *l) {
  memset(l, 0, sizeof *l);
  check_masks_draw(arena, c, m);
  draw_kinds(c, l);
  int64_t nq = c->tokens * c->q_heads * c->size;
  float *q = check_alloc(arena, (size_t)nq, sizeof *q);
  float *rows = check_alloc(arena, (size_t)(c->keys * (c->rank + c->rotary)), sizeof *rows);
  float *k = check_alloc(arena, (size_t)(c->keys * c->kv_heads * c->size), sizeof *k);
  float *v = check_alloc(arena, (size_t)(c->keys * c->kv_heads * c->v_size), sizeof *v);
  draw_values(c, q, rows);
  for (int64_t i = 0; i < nq; i++) {
    q[i] = check_rounded((attn_dtype)check_number(&c->choice, CHECK_IN_TYPE), q[i]);
  }
  store_rows(arena, c, l, rows);
  const float *w = c->op == CHECK_MQA ? NULL : draw_weights(arena, c, l);
  double *norms = check_alloc(arena, (size_t)(2 * c->keys * c->kv_heads), sizeof *norms);
  double *w_norms = check_alloc(arena, (size_t)(2 * c->kv_heads), sizeof *w_norms); /* of each head's W_UK and W_UV */
  for (int32_t h = 0; w != NULL && h < c->kv_heads; h++) {
    const float *of_head = w + (int64_t)h * (c->nope + c->v_size) * c->rank;
    w_norms[2 * h] = check_norm(of_head, (int64_t)c->nope * c->rank);
    w_norms[2 * h + 1] = check_norm(of_head + (int64_t)c->nope * c->rank, (int64_t)c->v_size * c->rank);
  }
  expand(c, l, w, w_norms, k, v, norms, norms + c->keys * c->kv_heads);
  if (w != NULL) {
    m->k_norms = norms;
    m->v_norms = norms + c->keys * c->kv_heads;
  }
  m->q = q;
  m->k = k;
  m->v = v;
  m->output_scale = check_is(c, CHECK_OUT_TYPE, CHECK_OUT_STATIC) ? check_output_scale_draw(c, v) : 0.0f;
}
