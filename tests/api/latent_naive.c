/* SPDX-License-Identifier: Apache-2.0 */
/* latent_naive.c: a layer of latent.h in dense double arithmetic, and the comparison with it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "latent_sizes.h"

typedef struct answer {
  double out[1024], lse, a, b, smax;
} answer;

static int64_t floor_div(int64_t a, int64_t b) {
  return a / b - (a % b < 0);
}

static int sees(const latent *s, int32_t seq, int64_t q, int64_t k) {
  const attn_problem *p = &s->problem;
  int causal = s->causal != NULL ? s->causal[seq] : p->causal;
  int chunk = 1;
  if (p->chunk_size > 0) {
    int64_t behind = floor_div(q, p->chunk_size) - floor_div(k, p->chunk_size);
    chunk = (behind >= 0 && behind <= p->chunk_lookback) || (!causal && behind == 0);
  }
  if ((!causal || k <= q) && (p->window_left < 0 || q - k <= p->window_left) &&
      (p->window_right < 0 || k - q <= p->window_right) && chunk) {
    return 1;
  }
  const int32_t *r = s->ranges != NULL ? s->ranges + 2 * seq : NULL;
  return r != NULL && q >= r[0] && q < r[1] && k >= r[0] && k < r[1];
}

/* A key, or a value, of a head from its latent row. */
static void expand(const latent *s, const float *row, int32_t head, int is_v, double *to) {
  const attn_problem *p = &s->problem;
  int32_t rank = rank_of(s), nope = p->qk_nope_head_dim;
  if (is_mqa(s)) {
    for (int32_t i = 0; i < (is_v ? rank : row_of(s)); i++) {
      to[i] = (double)row[i];
    }
    return;
  }
  int32_t count = is_v ? p->mla_v_head_dim : nope;
  const float *w = s->w + ((int64_t)head * (nope + p->mla_v_head_dim) + (is_v ? nope : 0)) * rank;
  for (int32_t d = 0; d < count; d++) {
    to[d] = 0.0;
    for (int32_t i = 0; i < rank; i++) {
      to[d] += (double)w[(int64_t)d * rank + i] * (double)row[i];
    }
  }
  for (int32_t i = 0; !is_v && i < p->qk_rope_head_dim; i++) {
    to[nope + i] = (double)row[rank + i];
  }
}

static double norm(const double *v, int32_t n) {
  double sum = 0.0;
  for (int32_t i = 0; i < n; i++) {
    sum += v[i] * v[i];
  }
  return sqrt(sum);
}

static double bias_of(const latent *s, int64_t token, int32_t head, int64_t q, int64_t k) {
  double bias = 0.0;
  if (s->problem.alibi == ATTN_ALIBI_LINEAR) {
    bias -= (double)s->slopes[head] * (double)(q - k);
  } else if (s->problem.alibi == ATTN_ALIBI_SQRT && k <= q) {
    bias -= (double)s->slopes[head] * sqrt((double)(q - k));
  }
  return bias + (s->bias != NULL ? (double)s->bias[(token * s->problem.num_q_heads + head) * s->max_kv + k] : 0.0);
}

static void compute(const latent *s, int32_t seq, int32_t row, int32_t head, answer *r) {
  const attn_problem *p = &s->problem;
  int32_t qk = qk_of(s), dv = v_of(s);
  int64_t token = s->starts[seq] + row, q = (int64_t)s->kv_len[seq] - s->q_len[seq] + row;
  double *scores = calloc((size_t)s->kv_len[seq] + 1, sizeof *scores), key[1024], value[1024], query[1024];
  double best = -(double)INFINITY, sum = 0.0, squares = 0.0;
  assert_true(scores != NULL && qk <= 1024 && dv <= 1024);
  memset(r, 0, sizeof *r);
  r->lse = -(double)INFINITY;
  for (int32_t i = 0; i < qk; i++) {
    query[i] = (double)s->q[(token * p->num_q_heads + head) * qk + i];
  }
  for (int32_t k = 0; k < s->kv_len[seq]; k++) {
    double bias = bias_of(s, token, head, q, k), score = 0.0;
    scores[k] = -(double)INFINITY;
    if (!sees(s, seq, q, k) || (isinf(bias) && bias < 0)) {
      continue;
    }
    expand(s, s->seen + (int64_t)(s->first_key[seq] + k) * row_of(s), head, 0, key);
    for (int32_t i = 0; i < qk; i++) {
      score += query[i] * key[i];
    }
    score *= (double)p->scale;
    scores[k] = (p->softcap > 0 ? (double)p->softcap * tanh(score / (double)p->softcap) : score) + bias;
    best = scores[k] > best ? scores[k] : best;
    double size = (double)p->scale * norm(query, qk) * norm(key, qk) + fabs(bias);
    r->smax = size > r->smax ? size : r->smax;
  }
  for (int32_t k = 0; k < s->kv_len[seq] && isfinite(best); k++) {
    sum += exp(scores[k] - best);
  }
  double whole = sum + (s->sinks != NULL ? exp((double)s->sinks[head] - best) : 0.0);
  for (int32_t k = 0; k < s->kv_len[seq] && isfinite(best); k++) {
    double weight = exp(scores[k] - best) / whole;
    if (weight == 0.0) {
      continue;
    }
    expand(s, s->seen + (int64_t)(s->first_key[seq] + k) * row_of(s), head, 1, value);
    for (int32_t d = 0; d < dv; d++) {
      r->out[d] += weight * value[d];
    }
    double size = norm(value, dv);
    r->a += weight * size / sqrt((double)dv);
    squares += weight * weight * size * size / dv;
  }
  r->b = sqrt(squares);
  r->lse = isfinite(best) ? best + log(sum) : best;
  free(scores);
}

static double out_bound(const latent *s, int32_t seq, const answer *r, double rms) {
  const attn_problem *p = &s->problem;
  attn_dtype out = p->out_dtype != ATTN_DTYPE_DEFAULT ? p->out_dtype : p->q_dtype;
  double n = (double)s->kv_len[seq];
  double r_out = ldexp(1.0, out == ATTN_DTYPE_FLOAT16 ? -11 : out == ATTN_DTYPE_BFLOAT16 ? -8 : -24);
  double u = ldexp(1.0, -22) + ldexp(1.0, -25) * sqrt(n) + ldexp(1.0, -30) * n + ldexp(1.0, -23) * r->smax;
  return r_out * rms + u * (r->a + ldexp(1.0, -100)) + (out == ATTN_DTYPE_FLOAT16 ? ldexp(1.0, -25) : 0.0);
}

void latent_compare(const latent *s, double more, const char *what) {
  int32_t heads = s->problem.num_q_heads, dv = v_of(s);
  double worst = 0.0;
  for (int32_t seq = 0; seq < s->num_seqs; seq++) {
    for (int32_t row = 0; row < s->q_len[seq]; row++) {
      for (int32_t head = 0; head < heads; head++) {
        answer r;
        int64_t at = (int64_t)(s->starts[seq] + row) * heads + head;
        double error = 0.0, size = 0.0;
        compute(s, seq, row, head, &r);
        for (int32_t d = 0; d < dv; d++) {
          double got = (double)s->out[at * dv + d];
          CHECK(isfinite(got), "%s: seq %d row %d head %d element %d is %g", what, seq, row, head, d, got);
          error += (got - r.out[d]) * (got - r.out[d]);
          size += r.out[d] * r.out[d];
        }
        double bound = out_bound(s, seq, &r, sqrt(size / dv));
        error = sqrt(error / dv);
        CHECK(error <= more * bound, "%s: seq %d row %d head %d: rms error %g exceeds %g (rms %g)", what, seq, row,
              head, error, more * bound, sqrt(size / dv));
        worst = error / bound > worst ? error / bound : worst;
        if (!s->problem.wants_lse) {
          continue;
        }
        if (isinf(r.lse)) {
          CHECK(isinf(s->lse[at]) && s->lse[at] < 0 && size == 0.0, "%s: a row that sees nothing", what);
          continue;
        }
        double lse = fabs((double)s->lse[at] - r.lse);
        double allowed = ldexp(1.0, -20) + (ldexp(1.0, -21) + ldexp(1.0, -26) * qk_of(s)) * fmax(fabs(r.lse), r.smax);
        CHECK(lse <= allowed, "%s: seq %d row %d head %d: lse is %g off, allowed %g", what, seq, row, head, lse,
              allowed);
      }
    }
  }
}
