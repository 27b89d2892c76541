/* SPDX-License-Identifier: Apache-2.0 */
/* merging.c: builds, runs and checks one merge; the expectation is the equation of include/attn/merge.h in double. */
#include "merging.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void merging_init(merging *m, const char *backend, int32_t num_parts, int64_t tokens, int64_t heads, int64_t size,
                  attn_dtype dtype) {
  attn_merge_args args = ATTN_MERGE_INIT;
  uint32_t seed = 31;
  memset(m, 0, sizeof *m);
  CHECK(num_parts <= MERGING_PARTS, "too many parts");
  m->num_parts = num_parts;
  m->tokens = tokens;
  m->heads = heads;
  m->size = size;
  m->dtype = dtype;
  m->result_dtype = ATTN_DTYPE_FLOAT32;
  m->args = args;
  m->args.backend = backend;
  m->context = open_context(1);
  m->result_out = calloc((size_t)(tokens * heads * size) + 1, sizeof(float));
  m->result_lse = calloc((size_t)(tokens * heads) + 1, sizeof(float));
  for (int32_t r = 0; r < num_parts; r++) {
    m->out[r] = calloc((size_t)(tokens * heads * size) + 1, sizeof(float));
    m->lse[r] = calloc((size_t)(tokens * heads) + 1, sizeof(float));
    CHECK(m->out[r] != NULL && m->lse[r] != NULL, "no memory");
    for (int64_t i = 0; i < tokens * heads * size; i++) {
      m->out[r][i] = random_normal(&seed);
    }
    for (int64_t i = 0; i < tokens * heads; i++) {
      m->lse[r][i] = 3 * random_normal(&seed);
    }
  }
}

static void lse_tensor(const merging *m, tensor *t, void *data) {
  tensor_2(t, data, ATTN_DTYPE_FLOAT32, m->tokens, m->heads);
  if (m->lse_transposed) {
    t->strides[0] = 1;
    t->strides[1] = m->tokens;
  }
}

void merging_store(merging *m) {
  int64_t count = m->tokens * m->heads * m->size;
  for (int32_t r = 0; r < m->num_parts; r++) {
    m->out_data[r] = guard_make((size_t)count * attn_dtype_bytes(m->dtype));
    m->lse_data[r] = guard_make((size_t)(m->tokens * m->heads) * sizeof(float));
    tensor_3(&m->t_out[r], m->out_data[r].data, m->dtype, m->tokens, m->heads, m->size);
    lse_tensor(m, &m->t_lse[r], m->lse_data[r].data);
    for (int64_t i = 0; i < count; i++) {
      m->out[r][i] = rounded(m->dtype, m->out[r][i]);
      store_element(m->out_data[r].data, m->dtype, i, m->out[r][i]);
    }
    for (int64_t i = 0; i < m->tokens * m->heads; i++) {
      int64_t at = i / m->heads * m->t_lse[r].strides[0] + i % m->heads * m->t_lse[r].strides[1];
      store_element(m->lse_data[r].data, ATTN_DTYPE_FLOAT32, at, m->lse[r][i]);
    }
    m->outs[r] = &m->t_out[r].t;
    m->lses[r] = &m->t_lse[r].t;
  }
  m->result_out_data = guard_make((size_t)count * attn_dtype_bytes(m->result_dtype));
  m->result_lse_data = guard_make((size_t)(m->tokens * m->heads) * sizeof(float));
  tensor_3(&m->t_result_out, m->result_out_data.data, m->result_dtype, m->tokens, m->heads, m->size);
  lse_tensor(m, &m->t_result_lse, m->result_lse_data.data);
  if (m->sinks != NULL) {
    tensor_1(&m->t_sinks, m->sinks, ATTN_DTYPE_FLOAT32, m->heads);
    m->args.sinks = &m->t_sinks.t;
  }
  m->args.num_parts = m->num_parts;
  m->args.outs = m->outs;
  m->args.lses = m->lses;
  m->args.out = &m->t_result_out.t;
  m->args.lse = &m->t_result_lse.t;
}

attn_status merging_call(merging *m, attn_message *message) {
  memset(m->result_out_data.data, 0xFF, m->result_out_data.bytes);
  memset(m->result_lse_data.data, 0xFF, m->result_lse_data.bytes);
  attn_status status = attn_merge(m->context, &m->args, message);
  if (status != ATTN_OK) {
    CHECK(all_bytes(m->result_out_data.data, m->result_out_data.bytes, 0xFF), "a failing merge wrote into out");
    CHECK(all_bytes(m->result_lse_data.data, m->result_lse_data.bytes, 0xFF), "a failing merge wrote into lse");
    return status;
  }
  const DLTensor *out = m->args.out;
  const DLTensor *lse = m->args.lse;
  for (int64_t i = 0; i < m->tokens * m->heads; i++) {
    for (int64_t d = 0; d < m->size; d++) {
      m->result_out[i * m->size + d] = load_element(out->data, attn_dtype_from_dlpack(out->dtype), i * m->size + d);
    }
    if (lse != NULL) {
      int64_t at = i / m->heads * lse->strides[0] + i % m->heads * lse->strides[1];
      m->result_lse[i] = load_element(lse->data, ATTN_DTYPE_FLOAT32, at);
    }
  }
  return status;
}

static double natural(const merging *m, int32_t part, int64_t row) {
  double lse = (double)m->lse[part][row];
  return m->args.lse_base == ATTN_LSE_BASE_2 ? lse * log(2.0) : lse;
}

/* One row: the equation, then the bounds with the parts as keys. */
static void check_row(const merging *m, int64_t row) {
  double best = -(double)INFINITY;
  double sum = 0;
  double smax = 0;
  double a = 0;
  double error = 0;
  double rms = 0;
  int poisoned = 0;
  for (int32_t r = 0; r < m->num_parts; r++) {
    double lse = natural(m, r, row);
    poisoned |= isnan(lse);
    best = !isinf(lse) && lse > best ? lse : best;
  }
  int empty = isinf(best) && !poisoned;
  for (int32_t r = 0; r < m->num_parts; r++) {
    sum += isinf(natural(m, r, row)) ? 0 : exp(natural(m, r, row) - best);
  }
  double whole = sum + (m->sinks != NULL ? exp((double)m->sinks[row % m->heads] - best) : 0);
  for (int64_t d = 0; d < m->size; d++) {
    double value = 0;
    double got = (double)m->result_out[row * m->size + d];
    for (int32_t r = 0; r < m->num_parts && !empty; r++) {
      if (!isinf(natural(m, r, row))) {
        value += exp(natural(m, r, row) - best) / whole * (double)m->out[r][row * m->size + d];
      }
    }
    if (poisoned || isnan(value)) {
      CHECK(isnan(got), "row %d element %d: %g where NaN is right", (int)row, (int)d, got);
      continue;
    }
    CHECK(isfinite(got), "row %d element %d: %g, right is %g", (int)row, (int)d, got, value);
    error += (got - value) * (got - value);
    rms += value * value;
  }
  for (int32_t r = 0; r < m->num_parts && !empty && !poisoned; r++) {
    double norm = 0;
    double lse = natural(m, r, row);
    for (int64_t d = 0; d < m->size; d++) {
      norm += (double)m->out[r][row * m->size + d] * (double)m->out[r][row * m->size + d];
    }
    if (!isinf(lse) && !isnan(norm)) {
      a += exp(lse - best) / whole * sqrt(norm / (double)m->size);
      smax = exp(lse - best) / sum >= ldexp(1.0, -30) ? fmax(smax, fabs(lse - best)) : smax;
    }
  }
  attn_dtype dtype = attn_dtype_from_dlpack(m->args.out->dtype);
  double r_out = ldexp(1.0, dtype == ATTN_DTYPE_FLOAT16 ? -11 : (dtype == ATTN_DTYPE_BFLOAT16 ? -8 : -24));
  double u =
      ldexp(1.0, -22) + ldexp(1.0, -25) * sqrt(m->num_parts) + ldexp(1.0, -30) * m->num_parts + ldexp(1.0, -23) * smax;
  double bound = r_out * sqrt(rms / (double)m->size) + u * (a + ldexp(1.0, -100)) +
                 (dtype == ATTN_DTYPE_FLOAT16 ? ldexp(1.0, -25) : 0);
  CHECK(empty ? error == 0 : sqrt(error / (double)m->size) <= bound, "row %d: rms error %g exceeds %g", (int)row,
        sqrt(error / (double)m->size), bound);
  if (m->args.lse == NULL) {
    return;
  }
  double got = (double)m->result_lse[row];
  double lse = best + log(sum);
  double room = ldexp(1.0, -20) + ldexp(1.0, -21) * fmax(fabs(lse), smax);
  CHECK(poisoned ? isnan(got) : (empty ? isinf(got) && got < 0 : fabs(got - lse) <= room),
        "row %d: lse %.9g, right is %.9g", (int)row, got, poisoned ? (double)NAN : lse);
}

void merging_check(const merging *m) {
  for (int64_t row = 0; row < m->tokens * m->heads; row++) {
    check_row(m, row);
  }
}

void merging_free(merging *m) {
  for (int32_t r = 0; r < m->num_parts; r++) {
    free(m->out[r]);
    free(m->lse[r]);
    guard_free(&m->out_data[r]);
    guard_free(&m->lse_data[r]);
  }
  free(m->sinks);
  free(m->result_out);
  free(m->result_lse);
  guard_free(&m->result_out_data);
  guard_free(&m->result_lse_data);
  attn_context_destroy(m->context);
  memset(m, 0, sizeof *m);
}

void merging_prove(merging *m) {
  merging_store(m);
  EXPECT_OK(merging_call(m, &why));
  merging_check(m);
}
