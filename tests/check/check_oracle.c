/* SPDX-License-Identifier: Apache-2.0 */
/* check_oracle.c: see check_oracle.h. Sections named in comments are the contract's. */
#include "check_oracle.h"

#include <math.h>

static int64_t floor_divide(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -((b - 1 - a) / b);
}

static int in_window(const check_model *m, int64_t q, int64_t k) {
  return (m->left < 0 || q - k <= m->left) && (m->right < 0 || k - q <= m->right);
}

static int in_chunk(const check_model *m, int causal, int64_t q, int64_t k) {
  if (m->chunk == 0) {
    return 1;
  }
  int64_t back = floor_divide(q, m->chunk) - floor_divide(k, m->chunk);
  return (back >= 0 && back <= m->lookback) || (!causal && back == 0);
}

static int in_prefix(const check_model *m, int32_t seq, int64_t q, int64_t k) {
  for (int32_t i = 0; i < m->num_ranges; i++) {
    const int32_t *range = m->ranges[seq][i];
    if (q >= range[0] && q < range[1] && k >= range[0] && k < range[1]) {
      return !m->clamp || in_window(m, q, k);
    }
  }
  return 0;
}

int check_mask_shows(const check_model *m, int32_t seq, int64_t q, int64_t k) {
  if (k < 0 || k >= m->c->seqs[seq].kv_len) {
    return 0;
  }
  int causal = m->causal[seq];
  return ((!causal || k <= q) && in_window(m, q, k) && in_chunk(m, causal, q, k)) || in_prefix(m, seq, q, k);
}

double check_norm(const float *x, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++) {
    sum += isnan(x[i]) ? 0.0 : (double)x[i] * (double)x[i];
  }
  return sqrt(sum);
}

/* Section 1, steps 1 to 3, and the magnitude that Smax is the largest of. -inf where the key is hidden. */
static double score(const check_model *m, int32_t seq, int32_t row, int32_t head, int64_t k, double q_norm,
                    double *magnitude) {
  const check_case *c = m->c;
  const check_seq *s = &c->seqs[seq];
  int64_t token = s->q_start + row;
  int64_t q = (int64_t)s->kv_len - s->q_len + row;
  if ((m->unreachable != NULL && m->unreachable[s->k_start + k]) || !check_mask_shows(m, seq, q, k)) {
    return -INFINITY;
  }
  const float *qv = m->q + (token * c->q_heads + head) * c->size;
  const float *kv = m->k + ((s->k_start + k) * c->kv_heads + head / c->group) * c->size;
  double dot = 0.0;
  double squares = 0.0;
  for (int32_t i = 0; i < c->size; i++) {
    dot += (double)qv[i] * (double)kv[i];
    squares += (double)kv[i] * (double)kv[i];
  }
  double value = (double)m->scale * dot;
  if (m->softcap > 0.0f) {
    value = (double)m->softcap * tanh(value / (double)m->softcap);
  }
  double extra = 0.0;
  if (m->alibi != 0) {
    double distance = m->alibi == 1 ? (double)(q - k) : (k <= q ? sqrt((double)(q - k)) : 0.0);
    value -= (double)m->slopes[head] * distance;
    extra = fabs((double)m->slopes[head] * distance);
  }
  if (m->bias != NULL) {
    float bias = m->bias[(token * m->bias_heads + (m->bias_heads == 1 ? 0 : head)) * c->max_kv + k];
    if (isinf(bias) && bias < 0) {
      return -INFINITY;
    }
    value += (double)bias;
    extra += fabs((double)bias);
  }
  double k_norm = m->k_norms != NULL ? m->k_norms[(s->k_start + k) * c->kv_heads + head / c->group] : sqrt(squares);
  *magnitude = k_norm * (double)m->scale * q_norm + extra;
  return value;
}

static void finish(int64_t size, double *out, double sum, check_truth *truth) {
  double squares = 0.0;
  for (int64_t i = 0; i < size; i++) {
    out[i] /= sum;
    squares += out[i] * out[i];
  }
  truth->rms = sqrt(squares / (double)size);
}

void check_attention_row(const check_model *m, int32_t seq, int32_t row, int32_t head, double *scores, double *out,
                         check_truth *truth) {
  const check_case *c = m->c;
  const check_seq *s = &c->seqs[seq];
  double top = -INFINITY;
  int nan = 0;
  *truth = (check_truth){-INFINITY, 0.0, 0.0, 0.0, 0.0, 0};
  for (int32_t i = 0; i < c->v_size; i++) {
    out[i] = 0.0;
  }
  double *magnitudes = scores + c->max_kv;
  double q_norm = check_norm(m->q + ((s->q_start + row) * c->q_heads + head) * c->size, c->size);
  for (int32_t k = 0; k < s->kv_len; k++) {
    scores[k] = score(m, seq, row, head, k, q_norm, &magnitudes[k]);
    nan |= isnan(scores[k]);
    top = scores[k] > top ? scores[k] : top;
  }
  if (nan) {
    truth->nan = 1;
    truth->lse = NAN;
    return;
  }
  if (top == -INFINITY) { /* section 2 */
    return;
  }
  double weights = 0.0;
  for (int32_t k = 0; k < s->kv_len; k++) {
    weights += exp(scores[k] - top);
  }
  double sum = weights + (m->sinks != NULL ? exp((double)m->sinks[head] - top) : 0.0);
  truth->lse = top + log(weights);
  for (int32_t k = 0; k < s->kv_len; k++) {
    double weight = exp(scores[k] - top);
    if (scores[k] == -INFINITY) {
      continue;
    }
    if (weight / weights >= 0x1p-30 && magnitudes[k] > truth->smax) {
      truth->smax = magnitudes[k];
    }
    const float *v = m->v + ((s->k_start + k) * c->kv_heads + head / c->group) * c->v_size;
    double length =
        m->v_norms != NULL ? m->v_norms[(s->k_start + k) * c->kv_heads + head / c->group] : check_norm(v, c->v_size);
    truth->a += weight / sum * length;
    truth->b += weight / sum * length * (weight / sum * length);
    for (int32_t i = 0; i < c->v_size; i++) {
      out[i] += weight * (double)v[i];
    }
  }
  truth->a /= sqrt((double)c->v_size);
  truth->b = sqrt(truth->b / (double)c->v_size);
  finish(c->v_size, out, sum, truth);
}

void check_merge_row(int32_t parts, const double *lse, const float *values, int64_t size, double sink, double *out,
                     check_truth *truth) {
  *truth = (check_truth){-INFINITY, 0.0, 0.0, 0.0, 0.0, 0};
  double top = -INFINITY;
  for (int64_t i = 0; i < size; i++) {
    out[i] = 0.0;
  }
  for (int32_t r = 0; r < parts; r++) {
    if (isnan(lse[r])) {
      truth->nan = 1;
      truth->lse = NAN;
      return;
    }
    top = isinf(lse[r]) || lse[r] <= top ? top : lse[r];
  }
  if (top == -INFINITY) {
    return;
  }
  double weights = 0.0;
  for (int32_t r = 0; r < parts; r++) {
    weights += isinf(lse[r]) ? 0.0 : exp(lse[r] - top);
  }
  double sum = weights + exp(sink - top);
  truth->lse = top + log(weights);
  for (int32_t r = 0; r < parts; r++) {
    if (isinf(lse[r])) {
      continue;
    }
    double weight = exp(lse[r] - top);
    double length = check_norm(values + r * size, size);
    if (weight / weights >= 0x1p-30 && top - lse[r] > truth->smax) {
      truth->smax = top - lse[r];
    }
    truth->a += weight / sum * length;
    truth->b += weight / sum * length * (weight / sum * length);
    for (int64_t i = 0; i < size; i++) { /* a NaN element stays NaN even at a weight of 0 */
      out[i] += weight * (double)values[r * size + i];
    }
  }
  truth->a /= sqrt((double)size);
  truth->b = sqrt(truth->b / (double)size);
  finish(size, out, sum, truth);
}
