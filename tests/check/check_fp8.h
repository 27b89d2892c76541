/* SPDX-License-Identifier: Apache-2.0 */
/* check_fp8.h: section 10 of the contract for fp8 outputs: is there a row within the float32 bound that the quantiser of
 * section 9 turns into just these codes and scales? docs/numerics.md derives the rule. */
#ifndef ATTN_CHECK_FP8_H
#define ATTN_CHECK_FP8_H

#include "check_oracle.h"

/* One row of an fp8 output as it came. */
typedef struct check_fp8_row {
  int64_t size;
  const float *codes;  /* [size] values of the codes; the sign of a zero or NaN is the code's */
  int32_t block;       /* 0: static */
  float static_scale;  /* block 0 */
  const float *scales; /* [ceil(size / block)] as written */
} check_fp8_row;

/* Fraction of the float32 bound that the nearest such row takes from the oracle's row over `terms` keys: at most 1
   passes; infinity where a NaN, an exact zero or the floor of a scale is missing. */
double check_fp8_fraction(const check_fp8_row *row, const double *out, const check_truth *truth, int64_t terms);

#endif
