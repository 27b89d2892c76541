/* SPDX-License-Identifier: Apache-2.0 */
/* score_generic.c: what happens to scores between the product and the softmax: soft cap and ALiBi. */
#include <math.h>

#include "core/fault.h"
#include "cpu/generic/exp_generic.h"
#include "cpu/table.h"

/* tanh: x + x^3 P(x^2) near 0 (2^-27 relative), else 1 - 2 / (exp(2|x|) + 1), which has no cancellation there; beyond
   10 float's tanh is 1, and the clamp keeps the exponential finite. */
static float tanh_float(float x) {
  float magnitude = fabsf(x);
  float z = x * x;
  float p = -0x1.73640cp-8f;
  p = p * z + 0x1.519c8ep-6f;
  p = p * z + -0x1.b827fep-5f;
  p = p * z + 0x1.110692p-3f;
  p = p * z + -0x1.555530p-2f;
  float near = x + x * z * p;
  float clamped = magnitude < 10.0f ? magnitude : 10.0f;
  float far = 1.0f - 2.0f / (attn_exp_float(2.0f * clamped) + 1.0f);
  far = x < 0.0f ? -far : far;
  float y = magnitude < 0.625f ? near : far;
  return x != x ? x : y;
}

void attn_softcap_f32__generic(float *s, float cap, int32_t keys) {
  if (attn_fault(ATTN_FAULT_SOFTCAP_RATIO)) {
    for (int32_t j = 0; j < keys; j++) {
      float e = expf(2.0f * (s[j] / cap));
      s[j] = cap * ((e - 1.0f) / (e + 1.0f));
    }
    return;
  }
  for (int32_t j = 0; j < keys; j++) {
    s[j] = cap * tanh_float(s[j] / cap);
  }
}

void attn_alibi_linear_f32__generic(float *s, float slope, int32_t distance, int32_t keys) {
  for (int32_t j = 0; j < keys; j++) {
    s[j] -= slope * (float)(distance - j);
  }
}

void attn_alibi_sqrt_f32__generic(float *s, float slope, int32_t distance, int32_t keys) {
  for (int32_t j = 0; j < keys; j++) {
    int32_t d = distance - j;
    s[j] -= slope * sqrtf((float)(d > 0 ? d : 0));
  }
}
