/* SPDX-License-Identifier: Apache-2.0 */
/* reference.h: what the files of the REFERENCE backend share.
 *
 * REFERENCE is the specification in code: plain scalar C, double accumulation, no threads, no blocking. It shares no
 * mask, bias, softmax or conversion code with any other backend, so that a fault here and one there do not coincide.
 */
#ifndef ATTN_REFERENCE_H
#define ATTN_REFERENCE_H

#include <string.h>

#include "core/plan_impl.h"

/* ---- Elements (reference_convert.c) ------------------------------------------------------------------------------ */

/* The value of one float32, float16 or bfloat16 element; exact. A NaN stays a NaN. */
double attn_reference_load(const unsigned char *from, attn_dtype dtype);

/* n elements, `stride` bytes apart, into row. */
void attn_reference_load_row(double *row, const unsigned char *from, int64_t stride, attn_dtype dtype, int64_t n);

/* Round once, to nearest even, from double to the element; beyond the largest finite value it becomes an infinity. */
void attn_reference_store(unsigned char *to, attn_dtype dtype, double value);

/* The code of a float by one fp8_e4m3 conversion: to nearest even, saturating at +-448; NaN is 7F. */
unsigned char attn_reference_fp8_e4m3(float value);

/* One element from one type to another. Of equal types the bits are copied, a NaN's payload included. */
void attn_reference_convert(unsigned char *to, attn_dtype to_dtype, const unsigned char *from, attn_dtype from_dtype);

/* ---- Cache rows (reference_rows.c) ------------------------------------------------------------------------------- */

/* n codes of one kind, `stride` bytes apart, before any scale; int4 without its zero point. */
void attn_reference_load_codes(double *row, const unsigned char *from, int64_t stride, attn_code code, int64_t n);

/* The values of a stored row, un-rotated; `dtype` is the pool's. */
void attn_reference_load_stored(double *row, const attn_rows *rows, attn_dtype dtype, const attn_row *from);

/* ---- Latent rows (reference_latent.c) ---------------------------------------------------------------------------- */

/* The rotary elements of a stored latent row; `dtype` is the pool's. */
void attn_reference_load_rotary(double *values, const attn_rows *rows, attn_dtype dtype, const attn_row *from);

/* The first `size` elements of the latent row of a position: as stored, or as given where it is a new one that is not
   written. 0: it cannot be reached and counts as masked. */
int attn_reference_load_latent(const attn_run_view *view, int64_t seq, int64_t k, int64_t size, double *values);

/* The query of (token, head) in the latent space, [rank + rotary]; `given` is memory for what W_UK is applied to. */
void attn_reference_load_latent_query(const attn_run_view *view, int64_t token, int64_t head, double *given, double *q);

/* out [v_head_size] = what the problem's form makes of the weighted sum of values; without weights the sum itself. */
void attn_reference_expand_result(const attn_run_view *view, int64_t head, const double *sum, double *out);

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

/* The element [i], [i, j], ... of a view with at least so many axes; the axes left out count as 0. */
static inline unsigned char *attn_reference_at1(const attn_view *view, int64_t i) {
  return view->data + i * view->stride[0];
}

static inline unsigned char *attn_reference_at2(const attn_view *view, int64_t i, int64_t j) {
  return attn_reference_at1(view, i) + j * view->stride[1];
}

static inline unsigned char *attn_reference_at3(const attn_view *view, int64_t i, int64_t j, int64_t k) {
  return attn_reference_at2(view, i, j) + k * view->stride[2];
}

static inline int32_t attn_reference_int32(const unsigned char *from) {
  int32_t value;
  memcpy(&value, from, sizeof value);
  return value;
}

/* The block that holds a position of a sequence, or -1 where the table has no such column or the id is outside the
   pool. In checked mode the caller of the backend has excluded the latter. */
int64_t attn_reference_block(const attn_view *block_table, int64_t num_blocks, int64_t seq, int64_t position,
                             int64_t block_size);

/* ---- The mask (reference_mask.c) --------------------------------------------------------------------------------- */

/* visible(q, k) of problem.h for one sequence of the step: 1 or 0. k is 0 .. kv_len - 1; q may be negative. */
int attn_reference_visible(const attn_run_view *view, int64_t seq, int64_t q, int64_t k);

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* Bytes of the buffers that attn_reference_attention() works in. */
uint64_t attn_reference_attention_bytes(const attn_problem *problem);

void attn_reference_attention(const attn_run_view *view, double *buffers);

/* One row of v_head_size results into an fp8 output (reference_fp8.c). */
void attn_reference_store_fp8_row(const attn_run_view *view, int64_t token, int64_t head, const double *row);
void attn_reference_cache_write(const attn_write_view *view);
void attn_reference_cache_gather(const attn_gather_view *view);
void attn_reference_cache_requantise(const attn_requantise_view *view);
void attn_reference_cache_copy(const attn_copy_view *view);
void attn_reference_cache_swap(const attn_copy_view *view);
attn_status attn_reference_merge(const attn_merge_view *view);

#endif
