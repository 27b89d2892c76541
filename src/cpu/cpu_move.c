/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_move.c: see cpu_move.h. Elements are copied when both sides have one type, else they go through fp32 (every
   conversion from a 16-bit type is exact, the one to it rounds to nearest even). */
#include "cpu/cpu_move.h"

#include <math.h>
#include <string.h>

#include "core/arithmetic.h"
#include "core/fault.h"
#include "core/quantise.h"
#include "core/rotary.h"
#include "cpu/generic/vec4.h"

#define PART 64 /* elements converted at a time */

attn_cpu_copies attn_cpu_copies_of(const attn_view *tensor, const attn_view *pool, const attn_rows *rows) {
  attn_cpu_copies copies = {0, 0};
  int64_t element = (int64_t)attn_dtype_bytes(tensor->dtype);
  if (tensor->ndim == 0 || rows->facts->scale != ATTN_SCALE_NONE || tensor->dtype != pool->dtype ||
      tensor->stride[2] != element || pool->stride[3] != element) {
    return copies;
  }
  int64_t row = rows->size * element;
  int64_t heads = tensor->shape[1];
  int is_joined = tensor->stride[1] == row && pool->stride[2] == row;
  copies.bytes = (size_t)(is_joined ? row * heads : row);
  copies.count = is_joined ? 1 : heads;
  return copies;
}

static void copy_elements(const attn_cpu_elements *dst, const attn_cpu_elements *src, int64_t size) {
  size_t element = attn_dtype_bytes(src->dtype);
  if (size > 0 && dst->stride == (int64_t)element && src->stride == (int64_t)element) {
    memcpy(dst->data, src->data, (size_t)size * element);
    return;
  }
  for (int64_t i = 0; i < size; i++) {
    memcpy(dst->data + i * dst->stride, src->data + i * src->stride, element);
  }
}

static void truncate_row(float *row, int32_t size) {
  for (int32_t i = 0; i < size; i++) {
    uint32_t bits;
    memcpy(&bits, &row[i], sizeof bits);
    bits &= 0xffff0000u;
    memcpy(&row[i], &bits, sizeof bits);
  }
}

static void drop_infinite(float *row, int64_t size) {
  for (int64_t i = 0; i < size; i++) {
    row[i] = isfinite(row[i]) ? row[i] : 0.0f;
  }
}

void attn_cpu_move_elements(const attn_cpu_table *table, const attn_cpu_elements *dst, const attn_cpu_elements *src,
                            int64_t size) {
  if (dst->dtype == src->dtype) {
    copy_elements(dst, src, size);
    return;
  }
  float part[PART];
  for (int64_t begin = 0; begin < size; begin += PART) {
    int32_t n = (int32_t)attn_min(size - begin, PART);
    attn_cpu_load_rows(table, src->dtype, part, src->data + begin * src->stride, 0, src->stride, 1, n, n);
    if (attn_fault(ATTN_FAULT_WRITE_ROUND) && dst->dtype == ATTN_DTYPE_BFLOAT16) {
      truncate_row(part, n);
    }
    attn_cpu_store_row(table, dst->dtype, dst->data + begin * dst->stride, dst->stride, part, 1.0f, n);
  }
}

static void load(const attn_cpu_table *table, float *values, const attn_cpu_elements *from, int64_t begin, int32_t n) {
  if (n > 0) { /* what was not rotated has no address */
    attn_cpu_load_rows(table, from->dtype, values, from->data + begin * from->stride, 0, from->stride, 1, n, n);
  }
}

/* Elements [begin, begin + n) of a row whose elements do not depend on each other; `from` begins with the first. */
static void put_elements(const attn_cpu_table *table, const attn_rows *rows, attn_dtype pool_dtype, const attn_row *to,
                         int64_t begin, const attn_cpu_elements *from, int64_t n) {
  if (rows->facts->scale == ATTN_SCALE_NONE) {
    attn_cpu_elements target = {to->codes + begin * to->code_stride, to->code_stride, pool_dtype};
    attn_cpu_move_elements(table, &target, from, n);
    return;
  }
  float part[PART];
  for (int64_t i = 0; i < n; i += PART) {
    int32_t count = (int32_t)attn_min(n - i, PART);
    load(table, part, from, i, count);
    attn_quantise_part(rows, to, begin + i, count, part);
  }
}

/* int4: a row that holds a NaN or an infinity still does when it is rotated. */
static void store_int4(const attn_cpu_table *table, const attn_rows *rows, const attn_row *to, float *values) {
  int32_t size = (int32_t)rows->size;
  unsigned char codes[ATTN_ROW_MAX / 2];
  float least;
  float most;
  float scale;
  float zero_point;
  table->rotate(values, size);
  table->range(values, size, &least, &most);
  if (!attn_quantise_int4_scale(least, most, &scale, &zero_point)) {
    attn_quantise_place(rows, to, NULL, ATTN_ROW_NAN_BITS);
    return;
  }
  table->quantise_int4(codes, values, 1.0f / scale, zero_point, size);
  attn_quantise_place(rows, to, codes, attn_quantise_int4_bits(scale, zero_point));
}

static void store_row(const attn_cpu_table *table, const attn_rows *rows, const attn_row *to, float *values) {
  if (rows->facts->code == ATTN_CODE_INT4) {
    store_int4(table, rows, to, values);
  } else {
    attn_quantise_row(rows, to, values);
  }
}

/* Apart from its caller, whose small rows need no such stack. */
static ATTN_NOINLINE void quantise_row(const attn_cpu_table *table, const attn_rows *rows, const attn_row *to,
                                       const attn_cpu_source *from) {
  float values[ATTN_ROW_MAX];
  int64_t rotated = from->rotary_dim;
  load(table, values, &from->rotated, 0, (int32_t)rotated);
  load(table, values + rotated, &from->row, rotated, (int32_t)(rows->size - rotated));
  if (attn_fault(ATTN_FAULT_WRITE_NAN)) {
    drop_infinite(values, rows->size);
  }
  if (attn_fault(ATTN_FAULT_WRITE_PADDING)) {
    attn_rows unpadded = *rows;
    unpadded.separate = 1;
    store_row(table, &unpadded, to, values);
    return;
  }
  store_row(table, rows, to, values);
}

void attn_cpu_put_row(const attn_cpu_table *table, const attn_rows *rows, attn_dtype pool_dtype, const attn_row *to,
                      const attn_cpu_source *from) {
  int64_t rotated = from->rotary_dim;
  if (rows->facts->scale == ATTN_SCALE_ROW) {
    quantise_row(table, rows, to, from);
    return;
  }
  if (rotated > 0) {
    put_elements(table, rows, pool_dtype, to, 0, &from->rotated, rotated);
  }
  attn_cpu_elements rest = {from->row.data + rotated * from->row.stride, from->row.stride, from->row.dtype};
  put_elements(table, rows, pool_dtype, to, rotated, &rest, rows->size - rotated);
}

/* Elements [begin, begin + n) as they are stored; `begin` is even. */
static void decode(const attn_cpu_table *table, const attn_rows *rows, const attn_row *from, int64_t begin, int32_t n,
                   float *values) {
  int32_t zero_point;
  float scale = attn_row_scale(rows, from, &zero_point);
  float zero = (float)zero_point;
  const unsigned char *codes = from->codes + attn_format_code_bytes(rows->facts, begin) * from->code_stride;
  attn_cpu_decode_rows(table, rows->facts->code, values, codes, 0, from->code_stride, &zero, 1, n, n);
  for (int32_t i = 0; i < n; i++) {
    values[i] *= scale;
  }
}

static ATTN_NOINLINE void dequantise_row(const attn_cpu_table *table, const attn_cpu_elements *to,
                                         const attn_rows *rows, const attn_row *from) {
  float values[ATTN_ROW_MAX];
  int32_t size = (int32_t)rows->size;
  decode(table, rows, from, 0, size, values);
  if (rows->facts->rotated) {
    table->unrotate(values, size);
  }
  attn_cpu_store_row(table, to->dtype, to->data, to->stride, values, 1.0f, size);
}

void attn_cpu_get_row(const attn_cpu_table *table, const attn_cpu_elements *to, const attn_rows *rows,
                      attn_dtype pool_dtype, const attn_row *from) {
  if (rows->facts->scale == ATTN_SCALE_NONE) {
    attn_cpu_elements source = {from->codes, from->code_stride, pool_dtype};
    attn_cpu_move_elements(table, to, &source, rows->size);
    return;
  }
  if (rows->facts->scale == ATTN_SCALE_ROW) {
    dequantise_row(table, to, rows, from);
    return;
  }
  float part[PART];
  for (int64_t i = 0; i < rows->size; i += PART) {
    int32_t count = (int32_t)attn_min(rows->size - i, PART);
    decode(table, rows, from, i, count, part);
    attn_cpu_store_row(table, to->dtype, to->data + i * to->stride, to->stride, part, 1.0f, count);
  }
}

void attn_cpu_rotate(const attn_cpu_table *table, const attn_write_view *view, int64_t token, attn_cpu_source *from,
                     unsigned char *memory) {
  float row[ATTN_ROW_MAX];
  load(table, row, &from->row, 0, view->rotary_dim);
  if (attn_fault(ATTN_FAULT_ROTARY_PAIRING)) {
    attn_write_view halves = *view;
    halves.rotary = ATTN_ROTARY_SPLIT_HALF;
    attn_rotary_apply(&halves, attn_int64_at(&view->positions, token), row);
  } else {
    attn_rotary_apply(view, attn_int64_at(&view->positions, token), row);
  }
  attn_dtype dtype = attn_fault(ATTN_FAULT_ROTARY_UNROUNDED) ? ATTN_DTYPE_FLOAT32 : from->row.dtype;
  attn_cpu_elements rotated = {memory, (int64_t)attn_dtype_bytes(dtype), dtype};
  attn_cpu_store_row(table, rotated.dtype, rotated.data, rotated.stride, row, 1.0f, view->rotary_dim);
  from->rotated = rotated;
  from->rotary_dim = view->rotary_dim;
}
