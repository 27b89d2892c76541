/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_rows.c: rows between caller's tensors and fp32. Adjacent elements go to the table's kernels in one call; elements
   apart are brought through a small buffer, so that kernels never see an element stride. */
#include <string.h>

#include "cpu/cpu_work.h"

#define PART 64 /* elements of a strided row moved at a time */

static attn_cpu_type type_of(attn_dtype dtype) {
  switch (dtype) {
  case ATTN_DTYPE_FLOAT16:
    return ATTN_CPU_F16;
  case ATTN_DTYPE_BFLOAT16:
    return ATTN_CPU_BF16;
  default:
    return ATTN_CPU_F32;
  }
}

static void load_strided(attn_load_kernel *load, size_t element, float *dst, const unsigned char *src,
                         int64_t element_stride, int32_t size, int32_t padded) {
  _Alignas(8) unsigned char bytes[PART * sizeof(float)]; /* elements of any type */
  for (int32_t begin = 0; begin < size; begin += PART) {
    int32_t n = size - begin < PART ? size - begin : PART;
    for (int32_t i = 0; i < n; i++) {
      memcpy(bytes + (size_t)i * element, src + (int64_t)(begin + i) * element_stride, element);
    }
    load(dst + begin, bytes, 0, 1, n, n);
  }
  for (int32_t i = size; i < padded; i++) {
    dst[i] = 0.0f;
  }
}

void attn_cpu_load_rows(const attn_cpu_table *table, attn_dtype dtype, float *dst, const unsigned char *src,
                        int64_t stride, int64_t element_stride, int32_t rows, int32_t size, int32_t padded) {
  attn_load_kernel *load = table->load[type_of(dtype)];
  size_t element = attn_dtype_bytes(dtype);
  if (element_stride == (int64_t)element || size == 1) {
    load(dst, src, stride, rows, size, padded);
    return;
  }
  for (int32_t r = 0; r < rows; r++) {
    load_strided(load, element, dst + (int64_t)r * padded, src + r * stride, element_stride, size, padded);
  }
}

/* An even number of elements at a time, so that no byte of two codes is cut. */
static void decode_strided(attn_decode_kernel *decode, int32_t bits, float *dst, const unsigned char *src,
                           int64_t element_stride, const float *zero_points, int32_t size, int32_t padded) {
  unsigned char bytes[PART];
  for (int32_t begin = 0; begin < size; begin += PART) {
    int32_t n = size - begin < PART ? size - begin : PART;
    int32_t count = (n * bits + 7) / 8;
    for (int32_t i = 0; i < count; i++) {
      bytes[i] = src[(int64_t)(begin * bits / 8 + i) * element_stride];
    }
    decode(dst + begin, bytes, 0, zero_points, 1, n, n);
  }
  for (int32_t i = size; i < padded; i++) {
    dst[i] = 0.0f;
  }
}

void attn_cpu_decode_rows(const attn_cpu_table *table, attn_code code, float *dst, const unsigned char *src,
                          int64_t stride, int64_t element_stride, const float *zero_points, int32_t rows, int32_t size,
                          int32_t padded) {
  attn_decode_kernel *decode = table->decode[code];
  if (element_stride == 1) {
    decode(dst, src, stride, zero_points, rows, size, padded);
    return;
  }
  for (int32_t r = 0; r < rows; r++) {
    decode_strided(decode, code == ATTN_CODE_INT4 ? 4 : 8, dst + (int64_t)r * padded, src + r * stride, element_stride,
                   zero_points != NULL ? zero_points + r : NULL, size, padded);
  }
}

void attn_cpu_store_row(const attn_cpu_table *table, attn_dtype dtype, unsigned char *dst, int64_t element_stride,
                        const float *src, float divisor, int32_t size) {
  attn_store_kernel *store = table->store[type_of(dtype)];
  size_t element = attn_dtype_bytes(dtype);
  if (element_stride == (int64_t)element || size == 1) {
    store(dst, src, divisor, size);
    return;
  }
  _Alignas(8) unsigned char bytes[PART * sizeof(float)];
  for (int32_t begin = 0; begin < size; begin += PART) {
    int32_t n = size - begin < PART ? size - begin : PART;
    store(bytes, src + begin, divisor, n);
    for (int32_t i = 0; i < n; i++) {
      memcpy(dst + (int64_t)(begin + i) * element_stride, bytes + (size_t)i * element, element);
    }
  }
}
