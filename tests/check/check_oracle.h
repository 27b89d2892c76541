/* SPDX-License-Identifier: Apache-2.0 */
/* check_oracle.h: the contract in fp64, before output rounding, with the norms that its tolerances are made of. Shares
 * nothing with src/. Works on plain compact arrays, which the tensors of a case are filled from. */
#ifndef ATTN_CHECK_ORACLE_H
#define ATTN_CHECK_ORACLE_H

#include <stdint.h>

#include "check_case.h"

#define CHECK_MAX_RANGES 4

/* One attention problem as plain numbers. */
typedef struct check_model {
  const check_case *c;
  float scale;
  float softcap;
  int32_t causal[CHECK_MAX_SEQS];
  int32_t left;
  int32_t right;
  int32_t chunk;
  int32_t lookback;
  int32_t clamp;
  int32_t num_ranges; /* per sequence; 0: no ranges */
  int32_t ranges[CHECK_MAX_SEQS][CHECK_MAX_RANGES][2];
  int32_t alibi;       /* 0, 1 linear, 2 square root */
  const float *slopes; /* [q heads] */
  const float *sinks;  /* [q heads] or NULL */
  float output_scale;  /* of a static fp8 output */
  const float *bias;   /* [tokens, bias heads, max_kv] or NULL */
  int32_t bias_heads;
  check_rows q_rows; /* codes of fp8 queries */
  check_rows k_rows; /* codes of quantised caches */
  check_rows v_rows;
  const float *q;        /* [tokens, q heads, size] */
  const float *k;        /* [keys, kv heads, size] */
  const float *v;        /* [keys, kv heads, v size] */
  const double *k_norms; /* [keys, kv heads], NULL: norms of k and v. Of expanded rows the product of their factors' */
  const double *v_norms; /* norms, which the loss of fp32 in expanding is relative to (docs/numerics.md) */
  const uint8_t *unreachable; /* [keys] or NULL: 1 where no block holds the position (unchecked mode) */
} check_model;

/* What the oracle says of one row. */
typedef struct check_truth {
  double lse;
  double rms; /* of the result */
  double a;   /* sum p |v| / sqrt(size) */
  double b;   /* sqrt(sum p^2 |v|^2 / size) */
  double smax;
  int nan; /* out is NaN (in every element, for attention) */
} check_truth;

/* Euclidean norm of the elements that are numbers. */
double check_norm(const float *x, int64_t n);

/* 1 when the mask shows key k to position q of the sequence; bias and unreachable blocks are not asked. */
int check_mask_shows(const check_model *model, int32_t seq, int64_t q, int64_t k);

/* Compute row `row` of sequence `seq`, query head `head`. scores has room for 2 * max_kv
   doubles; out [v size] is written. */
void check_attention_row(const check_model *model, int32_t seq, int32_t row, int32_t head, double *scores, double *out,
                         check_truth *truth);

/* Merge one row of `parts` results: lse[r] natural, values[r * size + i]. */
void check_merge_row(int32_t parts, const double *lse, const float *values, int64_t size, double sink, double *out,
                     check_truth *truth);

#endif
