/* SPDX-License-Identifier: Apache-2.0 */
/* rotary.h: rotary embedding of the first rotary_dim elements of a row, in float32, every operation rounded by itself.
   */
#ifndef ATTN_CORE_ROTARY_H
#define ATTN_CORE_ROTARY_H

#include "core/fault.h"
#include "core/plan_impl.h"

/* Rotate row [rotary_dim] for the tables' row `position`. */
static inline void attn_rotary_apply(const attn_write_view *view, int64_t position, float *row) {
  int64_t half = view->rotary_dim / 2;
  if (half == 0) {
    return; /* the tables may have no address */
  }
  int64_t step = view->rotary == ATTN_ROTARY_INTERLEAVED ? 2 : 1;
  int64_t partner = view->rotary == ATTN_ROTARY_INTERLEAVED ? 1 : half;
  if (attn_fault(ATTN_FAULT_ROTARY_PARTNER) && view->rotary == ATTN_ROTARY_SPLIT_HALF) {
    partner = half - 1;
  }
  const unsigned char *cosines = view->rotary_cos.data + position * view->rotary_cos.stride[0];
  const unsigned char *sines = view->rotary_sin.data + position * view->rotary_sin.stride[0];
  for (int64_t j = 0; j < half; j++) {
    float c = attn_load_float(cosines + j * view->rotary_cos.stride[1]);
    float s = attn_load_float(sines + j * view->rotary_sin.stride[1]);
    float a = row[j * step];
    float b = row[j * step + partner];
    float a_cos = a * c;
    float b_sin = b * s;
    float b_cos = b * c;
    float a_sin = a * s;
    row[j * step] = a_cos - b_sin;
    row[j * step + partner] = b_cos + a_sin;
  }
}

#endif
