/* SPDX-License-Identifier: Apache-2.0 */
/* reference_merge.c: partial results (out, lse) of disjoint keys into one, in double.
 *
 * The output may be one of the inputs. So a row is computed in pieces of a few elements that all parts contribute to
 * before the piece is stored, and the row's lse, which decides the weights, is stored last. Nothing is allocated: the
 * parts' views are made again for each piece.
 */
#include "reference.h"

#include <math.h>

#define PIECE 64

/* What the parts' lses of one (token, head) row decide. */
typedef struct row_weights {
  double max;
  double total;       /* sum of exp(lse - max) over the parts that are not neutral; 0: all are neutral */
  double denominator; /* total and the sink's share */
} row_weights;

/* The natural lse of one part for a row. */
static attn_status part_lse(const attn_merge_view *view, int32_t part, int64_t token, int64_t head, double *lse) {
  int64_t shape[2] = {view->num_tokens, view->num_heads};
  attn_view lses;
  ATTN_TRY(attn_view_make(&lses, view->args->lses[part], "lses", ATTN_READ, ATTN_DTYPE_BIT(ATTN_DTYPE_FLOAT32), 2,
                          shape, NULL));
  *lse = attn_reference_load(attn_reference_at2(&lses, token, head), ATTN_DTYPE_FLOAT32);
  if (view->args->lse_base == ATTN_LSE_BASE_2) {
    *lse *= 0.693147180559945309417232121458176568;
  }
  return ATTN_OK;
}

/* A NaN lse makes max, and with it every weight, NaN. */
static attn_status weigh(const attn_merge_view *view, int64_t token, int64_t head, row_weights *weights) {
  double lse = 0.0;
  double max = -INFINITY;
  for (int32_t part = 0; part < view->args->num_parts; part++) {
    ATTN_TRY(part_lse(view, part, token, head, &lse));
    if (isnan(lse) || (!isinf(lse) && lse > max)) {
      max = lse;
    }
    if (isnan(max)) {
      break;
    }
  }
  double total = isnan(max) ? max : 0.0;
  for (int32_t part = 0; part < view->args->num_parts && !isnan(max); part++) {
    ATTN_TRY(part_lse(view, part, token, head, &lse));
    total += isinf(lse) ? 0.0 : exp(lse - max);
  }
  weights->max = max;
  weights->total = total;
  weights->denominator = total;
  if (view->sinks.data != NULL && total > 0.0) {
    weights->denominator += exp(attn_reference_load(attn_reference_at1(&view->sinks, head), ATTN_DTYPE_FLOAT32) - max);
  }
  return ATTN_OK;
}

/* sum[0 .. count) += weight * the part's elements [first, first + count). A neutral part is not read. */
static attn_status add_part(const attn_merge_view *view, const row_weights *weights, int32_t part, int64_t token,
                            int64_t head, int64_t first, int64_t count, double *sum) {
  int64_t shape[3] = {view->num_tokens, view->num_heads, view->size};
  attn_view outs;
  double lse = 0.0;
  ATTN_TRY(part_lse(view, part, token, head, &lse));
  if (isinf(lse)) {
    return ATTN_OK;
  }
  ATTN_TRY(attn_view_make(&outs, view->args->outs[part], "outs", ATTN_READ, ATTN_DTYPE_FLOATS, 3, shape, NULL));
  double weight = exp(lse - weights->max);
  for (int64_t d = 0; d < count; d++) {
    sum[d] += weight * attn_reference_load(attn_reference_at3(&outs, token, head, first + d), outs.dtype);
  }
  return ATTN_OK;
}

static attn_status merge_piece(const attn_merge_view *view, const row_weights *weights, int64_t token, int64_t head,
                               int64_t first, int64_t count) {
  double sum[PIECE] = {0.0};
  if (weights->total > 0.0) {
    for (int32_t part = 0; part < view->args->num_parts; part++) {
      ATTN_TRY(add_part(view, weights, part, token, head, first, count, sum));
    }
  }
  for (int64_t d = 0; d < count; d++) {
    double value = weights->total == 0.0 ? 0.0 : sum[d] / weights->denominator;
    attn_reference_store(attn_reference_at3(&view->out, token, head, first + d), view->out.dtype, value);
  }
  return ATTN_OK;
}

static attn_status merge_row(const attn_merge_view *view, int64_t token, int64_t head) {
  row_weights weights;
  ATTN_TRY(weigh(view, token, head, &weights));
  for (int64_t first = 0; first < view->size; first += PIECE) {
    int64_t count = view->size - first < PIECE ? view->size - first : PIECE;
    ATTN_TRY(merge_piece(view, &weights, token, head, first, count));
  }
  if (view->lse.data != NULL) {
    double lse = weights.total == 0.0 ? -INFINITY : weights.max + log(weights.total);
    attn_reference_store(attn_reference_at2(&view->lse, token, head), ATTN_DTYPE_FLOAT32, lse);
  }
  return ATTN_OK;
}

attn_status attn_reference_merge(const attn_merge_view *view) {
  for (int64_t token = 0; token < view->num_tokens; token++) {
    for (int64_t head = 0; head < view->num_heads; head++) {
      ATTN_TRY(merge_row(view, token, head));
    }
  }
  return ATTN_OK;
}
