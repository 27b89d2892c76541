/* SPDX-License-Identifier: Apache-2.0 */
/* mla_weights.c: attn_mla_weights_create(): a projection of any type, once, to padded rows of float32. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/arithmetic.h"
#include "core/fault.h"
#include "core/fp8.h"
#include "core/load.h"
#include "core/mla.h"
#include "core/resolve.h"

#define BLOCK 128 /* rows and columns of one multiplier */

static attn_status check_sizes(const attn_mla_weights_args *args, int64_t *rows, attn_message *message) {
  const struct {
    const char *name;
    int32_t value;
  } fields[] = {{"num_heads", args->num_heads},
                {"kv_lora_rank", args->kv_lora_rank},
                {"qk_nope_head_dim", args->qk_nope_head_dim},
                {"v_head_dim", args->v_head_dim}};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    if (fields[i].value < 1 || fields[i].value > INT32_MAX - ATTN_MLA_PAD) {
      return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: 1 to %d", fields[i].name, (int)fields[i].value,
                       INT32_MAX - ATTN_MLA_PAD);
    }
  }
  *rows = (int64_t)args->num_heads * ((int64_t)args->qk_nope_head_dim + args->v_head_dim); /* below 2^63 */
  return ATTN_OK;
}

static attn_status view_tensors(const attn_mla_weights_args *args, int64_t rows, attn_view *matrix, attn_view *scale,
                                attn_message *message) {
  int64_t shape[2] = {rows, args->kv_lora_rank};
  int64_t blocks[2] = {attn_ceil_div(rows, BLOCK), attn_ceil_div(args->kv_lora_rank, BLOCK)};
  ATTN_TRY(attn_view_make(matrix, args->w_kv_b, "w_kv_b", ATTN_READ,
                          ATTN_DTYPE_FLOATS | ATTN_DTYPE_BIT(ATTN_DTYPE_FP8_E4M3), 2, shape, message));
  int is_fp8 = matrix->dtype == ATTN_DTYPE_FP8_E4M3;
  if (!is_fp8 && args->w_scale != NULL) {
    return attn_fail(message, ATTN_E_NULL, "w_scale: given, accepted: NULL unless w_kv_b is fp8_e4m3");
  }
  if (!is_fp8) {
    return ATTN_OK;
  }
  if (args->w_scale == NULL) {
    return attn_fail(message, ATTN_E_NULL, "w_scale: NULL, expected a tensor because w_kv_b is fp8_e4m3");
  }
  ATTN_TRY(attn_view_make(scale, args->w_scale, "w_scale", ATTN_READ, ATTN_DTYPE_BIT(ATTN_DTYPE_FLOAT32), 2, blocks,
                          message));
  for (int64_t i = 0; i < blocks[0]; i++) {
    for (int64_t j = 0; j < blocks[1]; j++) {
      float value = attn_load_float(scale->data + i * scale->stride[0] + j * scale->stride[1]);
      if (!isfinite(value)) {
        return attn_fail(message, ATTN_E_RANGE, "w_scale[%lld][%lld]: %g, accepted: finite values", (long long)i,
                         (long long)j, (double)value);
      }
    }
  }
  return ATTN_OK;
}

static float from_half(const unsigned char *at) {
  uint16_t half;
  memcpy(&half, at, sizeof half);
  int exponent = half >> 10 & 0x1F;
  int fraction = half & 0x3FF;
  float magnitude = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                    : exponent == 0 ? ldexpf((float)fraction, -24)
                                    : ldexpf((float)(fraction + 1024), exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

static float from_brain(const unsigned char *at) {
  uint16_t brain;
  memcpy(&brain, at, sizeof brain);
  uint32_t bits = (uint32_t)brain << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static float scale_at(const attn_view *scale, int64_t row, int64_t column, const attn_mla_weights_args *args) {
  int64_t block = row / BLOCK;
  if (attn_fault(ATTN_FAULT_WEIGHT_BLOCK)) { /* as if blocks began anew in every head */
    int64_t head = (int64_t)args->qk_nope_head_dim + args->v_head_dim;
    block = attn_min(row / head * (head / BLOCK) + row % head / BLOCK, scale->shape[0] - 1);
  }
  return attn_load_float(scale->data + block * scale->stride[0] + column / BLOCK * scale->stride[1]);
}

static float element(const attn_view *matrix, const attn_view *scale, int64_t row, int64_t column,
                     const attn_mla_weights_args *args) {
  const unsigned char *at = matrix->data + row * matrix->stride[0] + column * matrix->stride[1];
  switch (matrix->dtype) {
  case ATTN_DTYPE_FLOAT32:
    return attn_load_float(at);
  case ATTN_DTYPE_FLOAT16:
    return from_half(at);
  case ATTN_DTYPE_BFLOAT16:
    return from_brain(at);
  default:
    return attn_fp8_e4m3_decode(*at) * scale_at(scale, row, column, args);
  }
}

/* 1 when the bytes do not fit. */
static int set_extents(attn_mla_weights *made, uint64_t *bytes) {
  made->padded = (int32_t)attn_round_up((uint64_t)made->rank, ATTN_MLA_PAD);
  made->nope_rows = (int64_t)attn_round_up((uint64_t)made->nope, ATTN_MLA_PAD);
  made->v_rows = (int64_t)attn_round_up((uint64_t)made->v, ATTN_MLA_PAD);
  uint64_t rows = (uint64_t)made->num_heads * (uint64_t)(made->nope_rows + made->v_rows); /* below 2^63 */
  return attn_mul_overflow(rows, (uint64_t)made->padded * sizeof(float), bytes) || *bytes > SIZE_MAX / 2;
}

/* Where row r of the given matrix goes. */
static float *row_of(const attn_mla_weights *made, int64_t r) {
  int64_t head = r / ((int64_t)made->nope + made->v);
  int64_t row = r % ((int64_t)made->nope + made->v);
  int64_t at = row < made->nope ? row : made->nope_rows + row - made->nope;
  return made->rows + (head * (made->nope_rows + made->v_rows) + at) * made->padded;
}

attn_status attn_mla_weights_create(attn_context *context, const attn_mla_weights_args *args,
                                    attn_mla_weights **weights, attn_message *message) {
  ATTN_CHECK_POINTER(context, "context", message);
  ATTN_CHECK_STRUCT(args, "args", attn_mla_weights_args, message);
  ATTN_CHECK_POINTER(weights, "weights", message);
  attn_view matrix;
  attn_view scale;
  int64_t rows = 0;
  memset(&scale, 0, sizeof scale);
  ATTN_TRY(check_sizes(args, &rows, message));
  ATTN_TRY(view_tensors(args, rows, &matrix, &scale, message));
  attn_mla_weights made = {
      args->num_heads, args->kv_lora_rank, args->qk_nope_head_dim, args->v_head_dim, 0, 0, 0, NULL};
  uint64_t bytes;
  if (set_extents(&made, &bytes)) {
    return attn_fail(message, ATTN_E_OVERFLOW, "w_kv_b: %lld rows of %d float32 do not fit this machine",
                     (long long)rows, (int)made.padded);
  }
  attn_mla_weights *result = malloc(sizeof *result);
  made.rows = aligned_alloc(64, attn_round_up(bytes, 64));
  if (result == NULL || made.rows == NULL) {
    free(result);
    free(made.rows);
    return attn_fail(message, ATTN_E_NOMEM, "weights: %llu bytes could not be allocated", (unsigned long long)bytes);
  }
  memset(made.rows, 0, bytes);
  for (int64_t r = 0; r < rows; r++) {
    float *row = row_of(&made, r);
    for (int64_t i = 0; i < made.rank; i++) {
      row[i] = element(&matrix, &scale, r, i, args);
    }
  }
  *result = made;
  *weights = result;
  return ATTN_OK;
}

void attn_mla_weights_destroy(attn_mla_weights *weights) {
  if (weights != NULL) {
    free(weights->rows);
    free(weights);
  }
}

float attn_mla_softmax_scale(int32_t qk_head_dim, double factor, double mscale_all_dim) {
  if (qk_head_dim < 1 || !isfinite(factor) || !isfinite(mscale_all_dim)) {
    return 0.0f;
  }
  double m = factor > 1.0 ? 0.1 * mscale_all_dim * log(factor) + 1.0 : 1.0;
  return (float)(m * m / sqrt((double)qk_head_dim));
}
