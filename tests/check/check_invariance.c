/* SPDX-License-Identifier: Apache-2.0 */
/* check_invariance.c: batch-invariant mode, bit by bit. A part of the batch (one sequence; its last rows, as an extend
 * or a decode call; its first rows, as an earlier prefill; one KV head) is laid out afresh, with other strides, blocks,
 * limits and threads, and has to give the bits that the whole batch gave. */
#include <string.h>

#include "check_attention.h"

/* The part: rows [row, row + rows) of sequence seq over its first kv_len keys; KV heads [head, head + heads). */
typedef struct part {
  int32_t seq;
  int32_t row;
  int32_t rows;
  int32_t kv_len;
  int32_t head;
  int32_t heads;
} part;

/* out[i] for i < count: `size` items at in + i * stride. */
static float *slice(check_arena *arena, const float *in, int64_t count, int64_t stride, int64_t size) {
  float *out = check_alloc(arena, (size_t)(count * size), sizeof *out);
  for (int64_t i = 0; i < count; i++) {
    memcpy(out + i * size, in + i * stride, (size_t)size * sizeof *out);
  }
  return out;
}

static void cut_case(const check_case *c, const part *p, check_case *cut) {
  *cut = *c;
  cut->num_seqs = 1;
  cut->seqs[0] = (check_seq){p->rows, p->kv_len, 0, 0, 0};
  cut->tokens = p->rows;
  cut->keys = p->kv_len;
  cut->max_kv = p->kv_len;
  cut->kv_heads = p->heads;
  cut->q_heads = p->heads * c->group;
}

/* The codes of the part's queries, whose rows are [tokens, q heads]. */
static void cut_codes(check_arena *arena, const check_case *c, const check_model *m, const part *p,
                      const check_case *cut, check_model *model) {
  size_t width = (size_t)(cut->q_heads * c->size);
  uint8_t *codes = check_alloc(arena, (size_t)p->rows * width, 1);
  for (int64_t i = 0; i < p->rows; i++) {
    int64_t token = c->seqs[p->seq].q_start + p->row + i;
    memcpy(codes + (size_t)i * width, m->q_rows.codes + (token * c->q_heads + (int64_t)p->head * c->group) * c->size,
           width);
  }
  model->q_rows.codes = codes;
}

static void cut_model(check_arena *arena, const check_case *c, const check_model *m, const part *p, check_case *cut,
                      check_model *model) {
  const check_seq *seq = &c->seqs[p->seq];
  int64_t token = seq->q_start + p->row;
  int64_t q_head = (int64_t)p->head * c->group;
  *model = *m;
  model->c = cut;
  model->causal[0] = m->causal[p->seq];
  memcpy(model->ranges[0], m->ranges[p->seq], sizeof model->ranges[0]);
  model->q = slice(arena, m->q + (token * c->q_heads + q_head) * c->size, p->rows, (int64_t)c->q_heads * c->size,
                   (int64_t)cut->q_heads * c->size);
  model->k = slice(arena, m->k + (seq->k_start * c->kv_heads + p->head) * c->size, p->kv_len,
                   (int64_t)c->kv_heads * c->size, (int64_t)p->heads * c->size);
  model->v = slice(arena, m->v + (seq->k_start * c->kv_heads + p->head) * c->v_size, p->kv_len,
                   (int64_t)c->kv_heads * c->v_size, (int64_t)p->heads * c->v_size);
  if (m->q_rows.codes != NULL) {
    cut_codes(arena, c, m, p, cut, model);
  }
  model->k_rows = check_rows_slice(arena, &m->k_rows, seq->k_start, p->kv_len, p->head, p->heads);
  model->v_rows = check_rows_slice(arena, &m->v_rows, seq->k_start, p->kv_len, p->head, p->heads);
  model->slopes = m->slopes == NULL ? NULL : slice(arena, m->slopes + q_head, 1, 0, cut->q_heads);
  model->sinks = m->sinks == NULL ? NULL : slice(arena, m->sinks + q_head, 1, 0, cut->q_heads);
  if (m->bias != NULL) {
    int64_t heads = m->bias_heads == 1 ? 1 : cut->q_heads;
    const float *first = m->bias + (token * m->bias_heads + (m->bias_heads == 1 ? 0 : q_head)) * c->max_kv;
    float *bias = check_alloc(arena, (size_t)(p->rows * heads * p->kv_len), sizeof *bias);
    for (int64_t i = 0; i < p->rows * heads; i++) {
      memcpy(bias + i * p->kv_len, first + (i / heads * m->bias_heads + i % heads) * c->max_kv,
             (size_t)p->kv_len * sizeof *bias);
    }
    model->bias = bias;
    model->bias_heads = (int32_t)heads;
  }
}

/* Do rows before `row` see nothing at or past the key that row `row` adds? Then they can be a call of their own. */
static int rows_end_before(const check_case *c, const check_model *m, int32_t s, int32_t row) {
  const check_seq *seq = &c->seqs[s];
  int32_t context = seq->kv_len - seq->q_len;
  for (int32_t i = 0; i < row; i++) {
    for (int32_t k = context + row > 0 ? context + row : 0; k < seq->kv_len; k++) {
      if (check_mask_shows(m, s, (int64_t)context + i, k)) {
        return 0;
      }
    }
  }
  return context + row >= 0;
}

/* Choose a part; 0 when the case has no row to choose. An encoder's rows cannot be cut: its kv_len is its q_len. */
static int choose_part(check_case *c, const check_model *m, part *p) {
  int32_t first = (int32_t)check_between(&c->rng, 0, c->num_seqs - 1);
  for (int32_t i = 0; i < c->num_seqs; i++) {
    int32_t s = (first + i) % c->num_seqs;
    const check_seq *seq = &c->seqs[s];
    if (seq->q_len == 0) {
      continue;
    }
    *p = (part){s, 0, seq->q_len, seq->kv_len, 0, c->kv_heads};
    int64_t kind = check_between(&c->rng, 0, 4);
    int32_t cut = seq->q_len > 1 ? (int32_t)check_between(&c->rng, 1, seq->q_len - 1) : 0;
    if (kind >= 3 && cut > 0 && c->op != CHECK_ENCODER) {
      p->row = kind == 3 ? seq->q_len - 1 : cut; /* the last row as a decode, or an extend */
      p->rows = seq->q_len - p->row;
    } else if (kind == 2 && cut > 0 && c->op != CHECK_ENCODER && rows_end_before(c, m, s, cut)) {
      p->rows = cut;
      p->kv_len = seq->kv_len - seq->q_len + cut;
    } else if (kind == 1) {
      p->head = (int32_t)check_between(&c->rng, 0, c->kv_heads - 1);
      p->heads = 1;
    }
    return 1;
  }
  return 0;
}

static int same_rows(check_env *env, const check_case *c, const part *p, const check_case *cut,
                     const check_result *whole, const check_result *alone) {
  for (int64_t i = 0; i < p->rows; i++) {
    for (int64_t h = 0; h < cut->q_heads; h++) {
      int64_t token = c->seqs[p->seq].q_start + p->row + i;
      int64_t row = token * c->q_heads + (int64_t)p->head * c->group + h;
      int64_t other = i * cut->q_heads + h;
      if (!check_same_row(c, whole, row, alone, other)) {
        return check_fail(env,
                          "batch_invariant: token %lld, head %lld has other bits when rows %d..%d of sequence %d, "
                          "KV heads %d..%d, are computed alone",
                          (long long)token, (long long)(row % c->q_heads), (int)p->row, (int)(p->row + p->rows - 1),
                          (int)p->seq, (int)p->head, (int)(p->head + p->heads - 1));
      }
    }
  }
  return 1;
}

int check_invariance(check_env *env, check_arena *arena, check_case *c, const check_model *model,
                     const check_result *result) {
  static const int strides[] = {CHECK_COMPACT, CHECK_PADDED_ROWS, CHECK_TRANSPOSED_HEADS, CHECK_GAPPED_ELEMENTS};
  static const int pools[] = {CHECK_COMPACT, CHECK_PADDED_BLOCKS, CHECK_INTERLEAVED};
  attn_context *context = check_context(env, CHECK_ABSENT);
  if (context == NULL) {
    return 0;
  }
  for (int i = 0; i < 2; i++) {
    part p;
    check_case cut;
    check_model alone;
    check_laid laid;
    check_result got;
    if (!choose_part(c, model, &p)) {
      return 1;
    }
    cut_case(c, &p, &cut);
    cut_model(arena, c, model, &p, &cut, &alone);
    check_lay(arena, &cut, &alone, strides[check_between(&c->rng, 0, 3)], pools[check_between(&c->rng, 0, 2)], 0, NULL,
              &laid);
    c->rng = cut.rng;
    if (!check_call(env, arena, &cut, &laid, context, 0, &got) || !same_rows(env, c, &p, &cut, result, &got)) {
      return 0;
    }
  }
  return 1;
}
