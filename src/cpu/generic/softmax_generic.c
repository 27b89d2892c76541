/* SPDX-License-Identifier: Apache-2.0 */
/* softmax_generic.c: the online softmax of one row and one tile, and the fold of two states. Lanes are explicit,
   since a compiler may not reorder a maximum or a sum; their order is fixed by the key's place in the tile. */
#include <math.h>

#include "core/fault.h"
#include "cpu/generic/exp_generic.h"
#include "cpu/generic/vec4.h"
#include "cpu/table.h"

#define LANES 8 /* ATTN_CPU_KEY_STEP: keys is a multiple */

static void hide(float *s, uint64_t visible, int32_t keys) {
  for (int32_t j = 0; j < keys; j++) {
    s[j] = (visible >> j & 1u) != 0 ? s[j] : -INFINITY;
  }
}

/* NaN never wins: it reaches the row through its weight. */
static float maximum(const float *s, int32_t keys) {
  attn_vec4 low = vec4_load(s);
  attn_vec4 high = vec4_load(s + 4);
  for (int32_t j = LANES; j < keys; j += LANES) {
    low = vec4_max(vec4_load(s + j), low);
    high = vec4_max(vec4_load(s + j + 4), high);
  }
  float lane[4];
  vec4_store(lane, vec4_max(low, high));
  float most = -INFINITY;
  for (int i = 0; i < 4; i++) {
    most = lane[i] > most ? lane[i] : most;
  }
  return most;
}

/* s becomes exp(s - m). A function of its own: inlined next to the sums below, clang does not vectorise it. */
static ATTN_NOINLINE void exponentials(float *s, float m, int32_t keys) {
  for (int32_t j = 0; j < keys; j++) {
    s[j] = attn_exp_float(s[j] - m);
  }
}

static float sum_of(const float *s, int32_t keys) {
  attn_vec4 low = vec4_splat(0.0f);
  attn_vec4 high = vec4_splat(0.0f);
  for (int32_t j = 0; j < keys; j += LANES) {
    low = vec4_add(low, vec4_load(s + j));
    high = vec4_add(high, vec4_load(s + j + 4));
  }
  return vec4_sum(low) + vec4_sum(high);
}

void attn_softmax_f32__generic(float *s, uint64_t visible, int32_t keys, float *m, float *l, float *alpha) {
  uint64_t all = keys == 64 ? ~(uint64_t)0 : ((uint64_t)1 << keys) - 1;
  if ((visible & all) != all) {
    hide(s, visible, keys);
  }
  float most = maximum(s, keys);
  float m_new = most > *m ? most : *m;
  float shift = m_new == -INFINITY ? 0.0f : m_new;
  float factor = attn_exp_float(*m - shift);
  exponentials(s, shift, keys);
  *l = factor * *l + sum_of(s, keys);
  *m = m_new;
  *alpha = attn_fault(ATTN_FAULT_RESCALE) && factor > 0.0f ? 1.0f : factor;
}

void attn_fold_f32__generic(float *m, float *l, float *acc, float m2, float l2, const float *acc2, int32_t padded) {
  if (l2 == 0.0f) {
    return;
  }
  float m_new = m2 > *m ? m2 : *m;
  float shift = m_new == -INFINITY ? 0.0f : m_new;
  float a = attn_exp_float(*m - shift);
  float b = attn_exp_float(m2 - shift);
  if (attn_fault(ATTN_FAULT_SPLIT_UNSHIFTED)) {
    a = expf(*m + logf(*l)) / *l;
    b = expf(m2 + logf(l2)) / l2;
    shift = 0.0f;
    m_new = 0.0f;
  }
  for (int32_t i = 0; i < padded; i++) {
    acc[i] = a * acc[i] + b * acc2[i];
  }
  *l = a * *l + b * l2;
  *m = m_new;
}
