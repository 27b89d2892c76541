/* SPDX-License-Identifier: Apache-2.0 */
/* check_compare.h: section 10 of the contract: is a row within its bounds, and at which fraction of them? */
#ifndef ATTN_CHECK_COMPARE_H
#define ATTN_CHECK_COMPARE_H

#include "check_oracle.h"

/* What RMS(out - ref) of a row of this output type may be, for a reference of that RMS over `terms` keys or parts. */
double check_out_bound(attn_dtype type, double rms, const check_truth *truth, int64_t terms);

/* Compare `got` [size], already decoded from `type`, with the oracle's row over `terms` keys or parts. Returns the
   fraction of the bound that the error takes: at most 1 passes, infinity where a NaN, an infinity or an exact zero
   differs. */
double check_out_fraction(attn_dtype type, int64_t size, const float *got, const double *out, const check_truth *truth,
                          int64_t terms);

/* Likewise for lse; `length` is D, 0 for a merge. */
double check_lse_fraction(float got, const check_truth *truth, int64_t length);

#endif
