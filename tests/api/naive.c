/* SPDX-License-Identifier: Apache-2.0 */
/* naive.c: every key of a row by the equations of include/attn/problem.h, in double, one pass each. Written from the
 * contract alone: it shares nothing with the library. */
#include "naive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t floor_div(int64_t a, int64_t b) {
  int64_t quotient = a / b;
  return a % b < 0 ? quotient - 1 : quotient;
}

static int in_window(const attn_problem *p, int64_t q, int64_t k) {
  return (p->window_left < 0 || q - k <= p->window_left) && (p->window_right < 0 || k - q <= p->window_right);
}

int naive_visible(const scene *s, int32_t seq, int64_t q, int64_t k) {
  const attn_problem *p = &s->problem;
  int causal = s->causal != NULL ? s->causal[seq] : p->causal;
  int chunk = 1;
  int64_t kv_len = s->kv_len[seq];
  if (k >= kv_len) {
    return 0;
  }
  if (p->chunk_size > 0) {
    int64_t behind = floor_div(q, p->chunk_size) - floor_div(k, p->chunk_size);
    chunk = (behind >= 0 && behind <= p->chunk_lookback) || (!causal && behind == 0);
  }
  if ((!causal || k <= q) && in_window(p, q, k) && chunk) {
    return 1;
  }
  for (int32_t i = 0; i < s->num_ranges; i++) {
    const int32_t *range = s->ranges + 2 * (seq * s->num_ranges + i);
    if (q >= range[0] && q < range[1] && k >= range[0] && k < range[1] && (!p->prefix_clamp || in_window(p, q, k))) {
      return 1;
    }
  }
  return 0;
}

static double dot(const float *a, const float *b, int32_t n) {
  double sum = 0;
  for (int32_t i = 0; i < n; i++) {
    sum += (double)a[i] * (double)b[i];
  }
  return sum;
}

/* The norm of a row of V, of its elements that are numbers. */
static double norm_of(const float *v, int32_t n) {
  double sum = 0;
  for (int32_t i = 0; i < n; i++) {
    sum += isnan(v[i]) ? 0 : (double)v[i] * (double)v[i];
  }
  return sqrt(sum);
}

/* The biases of one key, ALiBi and the caller's. */
static double bias_of(const scene *s, int64_t token, int32_t head, int64_t q, int64_t k) {
  double bias = 0;
  if (s->problem.alibi == ATTN_ALIBI_LINEAR) {
    bias -= (double)s->slopes[head] * (double)(q - k);
  } else if (s->problem.alibi == ATTN_ALIBI_SQRT && k <= q) {
    bias -= (double)s->slopes[head] * sqrt((double)(q - k));
  }
  if (s->bias != NULL) {
    int32_t column = s->bias_heads == 1 ? 0 : head;
    bias += (double)s->bias[(token * s->bias_heads + column) * s->bias_keys + k];
  }
  return bias;
}

/* Scores of all keys; -inf where hidden. Returns the largest. */
static double scores_of(const scene *s, int32_t seq, int32_t row, int32_t head, double *scores, double *biases) {
  const attn_problem *p = &s->problem;
  int64_t token = s->starts[seq] + row;
  int64_t q = (int64_t)s->kv_len[seq] - s->q_len[seq] + row;
  int32_t g = head / (p->num_q_heads / p->num_kv_heads);
  double best = -(double)INFINITY;
  for (int32_t k = 0; k < s->kv_len[seq]; k++) {
    double score = -(double)INFINITY;
    biases[k] = 0;
    if (naive_visible(s, seq, q, k)) {
      biases[k] = bias_of(s, token, head, q, k);
      score = (double)p->scale * dot(scene_q((scene *)(uintptr_t)s, token, head),
                                     scene_k((scene *)(uintptr_t)s, seq, k, g), p->qk_head_size);
      if (p->softcap > 0) {
        score = (double)p->softcap * tanh(score / (double)p->softcap);
      }
      score = isinf(biases[k]) && biases[k] < 0 ? biases[k] : score + biases[k];
    }
    scores[k] = score;
    if (score > best || isnan(score)) {
      best = score;
    }
  }
  return best;
}

void naive_attention(const scene *s, int32_t seq, int32_t row, int32_t head, naive_row *answer) {
  scene *m = (scene *)(uintptr_t)s;
  const attn_problem *p = &s->problem;
  int32_t kv_len = s->kv_len[seq];
  int32_t dv = p->v_head_size;
  int32_t g = head / (p->num_q_heads / p->num_kv_heads);
  int64_t token = s->starts[seq] + row;
  double *scores = calloc((size_t)kv_len + 1, sizeof *scores);
  double *biases = calloc((size_t)kv_len + 1, sizeof *biases);
  CHECK(scores != NULL && biases != NULL && dv <= NAIVE_SIZE, "no room for a naive row");
  double best = scores_of(s, seq, row, head, scores, biases);
  double sum = 0;
  double squares = 0;
  memset(answer, 0, sizeof *answer);
  answer->lse = -(double)INFINITY;
  if (kv_len > 0 && !(isinf(best) && best < 0)) {
    double q_norm = sqrt(dot(scene_q(m, token, head), scene_q(m, token, head), p->qk_head_size));
    for (int32_t k = 0; k < kv_len; k++) {
      sum += exp(scores[k] - best);
    }
    double whole = sum + (s->sinks != NULL ? exp((double)s->sinks[head] - best) : 0);
    for (int32_t k = 0; k < kv_len; k++) {
      double weight = exp(scores[k] - best) / whole;
      const float *v = scene_v(m, seq, k, g);
      const float *key = scene_k(m, seq, k, g);
      if (isinf(scores[k]) && scores[k] < 0) {
        continue;
      }
      double norm = norm_of(v, dv);
      for (int32_t d = 0; d < dv; d++) {
        answer->out[d] += weight * (double)v[d];
      }
      answer->a += weight * norm / sqrt((double)dv);
      squares += weight * weight * norm * norm / dv;
      if (exp(scores[k] - best) / sum >= ldexp(1.0, -30)) {
        double size = fabs((double)p->scale) * q_norm * sqrt(dot(key, key, p->qk_head_size)) + fabs(biases[k]);
        answer->smax = size > answer->smax ? size : answer->smax;
      }
    }
    answer->b = sqrt(squares);
    answer->lse = best + log(sum);
  }
  free(scores);
  free(biases);
}

/* The bound on the root mean square of a row's error. */
static double out_bound(const scene *s, int32_t seq, const naive_row *answer, double rms) {
  const attn_problem *p = &s->problem;
  double kv_len = (double)s->kv_len[seq];
  attn_dtype out = p->out_dtype != ATTN_DTYPE_DEFAULT ? p->out_dtype : p->q_dtype;
  double r_out = ldexp(1.0, out == ATTN_DTYPE_FLOAT16 ? -11 : (out == ATTN_DTYPE_BFLOAT16 ? -8 : -24));
  double r_p = p->q_dtype == ATTN_DTYPE_FLOAT16    ? ldexp(1.0, -11)
               : p->q_dtype == ATTN_DTYPE_BFLOAT16 ? ldexp(1.0, -8)
                                                   : 0;
  double u =
      ldexp(1.0, -22) + ldexp(1.0, -25) * sqrt(kv_len) + ldexp(1.0, -30) * kv_len + ldexp(1.0, -23) * answer->smax;
  return r_out * rms + r_p * (rms + answer->b) + u * (answer->a + ldexp(1.0, -100)) +
         (out == ATTN_DTYPE_FLOAT16 ? ldexp(1.0, -25) : 0);
}

void naive_compare(const scene *s, int32_t seq, const naive_row *answer, const float *out, float lse,
                   const char *where) {
  const attn_problem *p = &s->problem;
  double error = 0;
  double size = 0;
  for (int32_t d = 0; d < p->v_head_size; d++) {
    double difference = (double)out[d] - answer->out[d];
    if (isnan(answer->out[d]) || isnan(answer->lse)) {
      CHECK(isnan(out[d]), "%s: element %d is %g where NaN is right", where, d, (double)out[d]);
      continue;
    }
    CHECK(isfinite(out[d]), "%s: element %d is %g, right is %g", where, d, (double)out[d], answer->out[d]);
    error += difference * difference;
    size += answer->out[d] * answer->out[d];
  }
  if (isnan(answer->lse)) {
    CHECK(!p->wants_lse || isnan(lse), "%s: lse is %g where NaN is right", where, (double)lse);
    return;
  }
  error = sqrt(error / p->v_head_size);
  double bound = out_bound(s, seq, answer, sqrt(size / p->v_head_size));
  CHECK(error <= bound, "%s: rms error %g exceeds %g", where, error, bound);
  if (!p->wants_lse) {
    return;
  }
  if (isinf(answer->lse)) {
    CHECK(isinf(lse) && lse < 0, "%s: lse %g of a row that sees nothing", where, (double)lse);
    CHECK(error == 0 && size == 0, "%s: out of a row that sees nothing is not 0", where);
    return;
  }
  double room =
      ldexp(1.0, -20) + (ldexp(1.0, -21) + ldexp(1.0, -26) * p->qk_head_size) * fmax(fabs(answer->lse), answer->smax);
  CHECK(fabs((double)lse - answer->lse) <= room, "%s: lse %.9g, right is %.9g within %g", where, (double)lse,
        answer->lse, room);
}
