/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_fp8.c: a finished row as fp8 codes, by one scale given or by a scale of each group that is written beside them.
 * The row is divided in fp32 first, as a float32 output would be; the quantiser then works on those floats. */
#include <math.h>
#include <string.h>

#include "core/fault.h"
#include "core/fp8.h"
#include "core/quantise.h"
#include "cpu/cpu_work.h"

#define GROUP 128 /* elements that are brought to their places at a time; a group is not longer */

/* Codes where the caller's elements lie apart. */
static void scatter(unsigned char *dst, int64_t stride, const unsigned char *codes, int32_t n) {
  for (int32_t i = 0; i < n; i++) {
    dst[i * stride] = codes[i];
  }
}

static void store_static(const attn_cpu_job *job, unsigned char *dst, int64_t stride, const float *row, int32_t size) {
  float scale = attn_float_at(&job->view->output_scale, 0);
  if (stride == 1 || size == 1) {
    job->table->fp8_divide(dst, row, scale, size);
    return;
  }
  unsigned char codes[GROUP];
  for (int32_t begin = 0; begin < size; begin += GROUP) {
    int32_t n = size - begin < GROUP ? size - begin : GROUP;
    job->table->fp8_divide(codes, row + begin, scale, n);
    scatter(dst + begin * stride, stride, codes, n);
  }
}

/* A group's scale; NaN where its largest magnitude is not finite. */
static float group_scale(float absmax) {
  if (!isfinite(absmax)) {
    return attn_fp8_float(ATTN_ROW_NAN_BITS);
  }
  float scale = absmax / ATTN_FP8_E4M3_MAX;
  if (attn_fault(ATTN_FAULT_FP8_FLOOR)) {
    return scale;
  }
  return scale > ATTN_FP8_GROUP_FLOOR ? scale : ATTN_FP8_GROUP_FLOOR;
}

static void store_group(const attn_cpu_job *job, unsigned char *dst, int64_t stride, const float *src, int32_t n,
                        float scale) {
  unsigned char codes[GROUP];
  unsigned char *to = stride == 1 ? dst : codes;
  if (isnan(scale)) {
    memset(to, 0, (size_t)n);
  } else {
    job->table->fp8_multiply(to, src, 1.0f / scale, n);
  }
  if (stride != 1) {
    scatter(dst, stride, codes, n);
  }
}

static void store_groups(const attn_cpu_job *job, int64_t token, int64_t head, unsigned char *dst, int64_t stride,
                         const float *row, int32_t size) {
  const attn_view *scales = &job->view->out_scale;
  unsigned char *at = scales->data + token * scales->stride[0] + head * scales->stride[1];
  int64_t step = scales->stride[2];
  if (attn_fault(ATTN_FAULT_FP8_SWAPPED)) {
    step = (int64_t)sizeof(float);
    at = scales->data + (head * job->view->step->num_tokens + token) * scales->shape[2] * step;
  }
  int32_t block = job->problem->output_block;
  float before = 0.0f;
  for (int32_t begin = 0; begin < size; begin += block) {
    int32_t n = size - begin < block ? size - begin : block;
    int32_t first = attn_fault(ATTN_FAULT_FP8_WIDE) && size > block ? size - block : begin;
    int wide = first < begin; /* the last, shorter group */
    float scale = group_scale(job->table->absmax(row + (wide ? first : begin), wide ? block : n));
    memcpy(at, &scale, sizeof scale);
    at += step;
    store_group(job, dst + begin * stride, stride, row + begin, n,
                attn_fault(ATTN_FAULT_FP8_NEIGHBOUR) && begin > 0 ? before : scale);
    before = scale;
  }
}

/* The row by way of float16: what ATTN_FAULT_FP8_SIXTEEN does. */
static void round_to_sixteen(const attn_cpu_job *job, float *row, int32_t size) {
  uint16_t half[GROUP];
  for (int32_t begin = 0; begin < size; begin += GROUP) {
    int32_t n = size - begin < GROUP ? size - begin : GROUP;
    job->table->store[ATTN_CPU_F16]((unsigned char *)half, row + begin, 1.0f, n);
    job->table->load[ATTN_CPU_F16](row + begin, (const unsigned char *)half, 0, 1, n, n);
  }
}

void attn_cpu_store_fp8(const attn_cpu_job *job, int64_t token, int64_t head, float *row, float divisor) {
  const attn_view *out = &job->view->out;
  int32_t size = job->problem->v_head_size;
  unsigned char *dst = out->data + token * out->stride[0] + head * out->stride[1];
  for (int32_t i = 0; i < size; i++) {
    row[i] /= divisor;
  }
  if (attn_fault(ATTN_FAULT_FP8_SIXTEEN)) {
    round_to_sixteen(job, row, size);
  }
  if (job->problem->output_block == 0) {
    store_static(job, dst, out->stride[2], row, size);
  } else {
    store_groups(job, token, head, dst, out->stride[2], row, size);
  }
}
