/* SPDX-License-Identifier: Apache-2.0 */
/* check_compare.c: see check_compare.h. All backends here keep their weights in fp32, so r_P is 0. */
#include "check_compare.h"

#include <math.h>

static double rounding_of(attn_dtype type) {
  return type == ATTN_DTYPE_FLOAT32 ? 0x1p-24 : type == ATTN_DTYPE_FLOAT16 ? 0x1p-11 : 0x1p-8;
}

static double fraction_of(double error, double bound) {
  return error == 0.0 ? 0.0 : error / bound; /* a bound of 0 asks for the exact value */
}

double check_out_bound(attn_dtype type, double rms, const check_truth *truth, int64_t terms) {
  double n = (double)terms;
  double u = 0x1p-22 + 0x1p-25 * sqrt(n) + 0x1p-30 * n + 0x1p-23 * truth->smax;
  double bound = rounding_of(type) * rms + u * (truth->a + 0x1p-100);
  return bound + (type == ATTN_DTYPE_FLOAT16 ? 0x1p-25 : 0.0);
}

double check_out_fraction(attn_dtype type, int64_t size, const float *got, const double *out, const check_truth *truth,
                          int64_t terms) {
  double squares = 0.0;
  double reference = 0.0;
  int64_t counted = 0;
  for (int64_t i = 0; i < size; i++) {
    int want_nan = truth->nan || isnan(out[i]);
    if (want_nan != (isnan(got[i]) != 0) || (!want_nan && isinf(got[i]))) {
      return INFINITY;
    }
    if (!want_nan) {
      double difference = (double)got[i] - out[i];
      squares += difference * difference;
      reference += out[i] * out[i];
      counted++;
    }
  }
  if (counted == 0) {
    return 0.0;
  }
  double error = sqrt(squares / (double)counted);
  if (truth->lse == -INFINITY) {
    return error == 0.0 ? 0.0 : INFINITY;
  }
  return fraction_of(error, check_out_bound(type, sqrt(reference / (double)counted), truth, terms));
}

double check_lse_fraction(float got, const check_truth *truth, int64_t length) {
  if (isnan(truth->lse) || isinf(truth->lse)) {
    int same = isnan(truth->lse) ? isnan(got) != 0 : (isinf(got) && got < 0);
    return same ? 0.0 : INFINITY;
  }
  if (isnan(got) || isinf(got)) {
    return INFINITY;
  }
  double size = fabs(truth->lse) > truth->smax ? fabs(truth->lse) : truth->smax;
  double bound = 0x1p-20 + (0x1p-21 + 0x1p-26 * (double)length) * size;
  return fraction_of(fabs((double)got - truth->lse), bound);
}
