/* SPDX-License-Identifier: Apache-2.0 */
/* reference_fp8.c: the quantisers of fp8 outputs, operation by operation.
 *
 * They are defined in float: each value is rounded from double to float once, which is the result a float32 output
 * would have, and every operation after that is a float operation rounded by itself. A value beyond float's range
 * counts as infinite.
 */
#include "reference.h"

#include <math.h>

static unsigned char *code_at(const attn_run_view *view, int64_t token, int64_t head, int64_t d) {
  return attn_reference_at3(&view->out, token, head, d);
}

static void store_static(const attn_run_view *view, int64_t token, int64_t head, const double *row) {
  float scale = (float)attn_reference_load(view->output_scale.data, ATTN_DTYPE_FLOAT32);
  for (int64_t d = 0; d < view->problem->v_head_size; d++) {
    float x = (float)row[d];
    float quotient = x / scale;
    *code_at(view, token, head, d) = attn_reference_fp8_e4m3(quotient);
  }
}

/* max(absmax / 448, 1e-10) over row[begin .. end); NaN where a value is not finite. */
static float scale_of(const double *row, int64_t begin, int64_t end) {
  float absmax = 0.0f;
  for (int64_t d = begin; d < end; d++) {
    float x = (float)row[d];
    if (!isfinite(x)) {
      return NAN;
    }
    absmax = fabsf(x) > absmax ? fabsf(x) : absmax;
  }
  float scale = absmax / 448.0f;
  return scale > 1e-10f ? scale : 1e-10f;
}

static void store_group(const attn_run_view *view, int64_t token, int64_t head, const double *row, int64_t group) {
  int64_t begin = group * view->problem->output_block;
  int64_t end = begin + view->problem->output_block;
  end = end < view->problem->v_head_size ? end : view->problem->v_head_size;
  float scale = scale_of(row, begin, end);
  uint32_t bits = 0x7FC00000u;
  if (!isnan(scale)) {
    memcpy(&bits, &scale, sizeof bits);
  }
  memcpy(attn_reference_at3(&view->out_scale, token, head, group), &bits, sizeof bits);
  float inverse = 1.0f / scale;
  for (int64_t d = begin; d < end; d++) {
    float y = (float)row[d] * inverse;
    *code_at(view, token, head, d) = isnan(scale) ? 0 : attn_reference_fp8_e4m3(y);
  }
}

void attn_reference_store_fp8_row(const attn_run_view *view, int64_t token, int64_t head, const double *row) {
  if (view->problem->output_block == 0) {
    store_static(view, token, head, row);
    return;
  }
  for (int64_t group = 0; group < view->out_scale.shape[2]; group++) {
    store_group(view, token, head, row, group);
  }
}
