/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tensor.h  Element types, and how tensors are borrowed.   (stable)
 *
 * Every tensor at the border is a `DLTensor` of DLPack (vendored as dlpack.h, version 1.1). The library borrows it for
 * the length of one call: it never keeps, frees or copies it, and nothing is silently made contiguous.
 *
 *  - `data + byte_offset` is the first element. It must be aligned to the element (ATTN_E_ALIGN).
 *  - `strides` are in elements and are used as given; NULL means compact, row-major. Negative strides are refused
 *    (ATTN_E_STRIDE). A stride of 0 is allowed on an input (a broadcast) and refused on an output, for an axis longer
 *    than 1.
 *  - An extent may be 0; `data` may then be NULL.
 *  - `device` must be the context's; for the CPU {kDLCPU, 0} (kDLCUDAHost is read as CPU memory too).
 *  - `dtype.lanes` is 1. One-byte rows of a quantised cache are uint8, or the fp8 type itself.
 */
#ifndef ATTN_TENSOR_H
#define ATTN_TENSOR_H

#include "dlpack.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The one list of element types: X(name, value, spelling, bytes, DLPack code, bits). The spelling is the one of
 * messages and of the request file's keys.
 */
#define ATTN_DTYPE_LIST(X)                                                                                             \
  X(ATTN_DTYPE_FLOAT32, 1, "float32", 4, kDLFloat, 32)                                                                 \
  X(ATTN_DTYPE_FLOAT16, 2, "float16", 2, kDLFloat, 16)                                                                 \
  X(ATTN_DTYPE_BFLOAT16, 3, "bfloat16", 2, kDLBfloat, 16)                                                              \
  X(ATTN_DTYPE_FP8_E4M3, 4, "fp8_e4m3", 1, kDLFloat8_e4m3fn, 8)                                                        \
  X(ATTN_DTYPE_FP8_E5M2, 5, "fp8_e5m2", 1, kDLFloat8_e5m2, 8)                                                          \
  X(ATTN_DTYPE_UINT8, 6, "uint8", 1, kDLUInt, 8)                                                                       \
  X(ATTN_DTYPE_INT32, 7, "int32", 4, kDLInt, 32)                                                                       \
  X(ATTN_DTYPE_INT64, 8, "int64", 8, kDLInt, 64)

typedef enum attn_dtype {
  ATTN_DTYPE_DEFAULT = 0, /**< what the field's comment says */
#define ATTN_DTYPE_ENUM(name, value, spelling, bytes, code, bits) name = value,
  ATTN_DTYPE_LIST(ATTN_DTYPE_ENUM)
#undef ATTN_DTYPE_ENUM
} attn_dtype;

/** "float32", ...; "default" for 0 and "unknown" outside the list. Never NULL; static storage. */
ATTN_API const char *attn_dtype_name(attn_dtype dtype);

/** The type of that name, or ATTN_DTYPE_DEFAULT when there is none. */
ATTN_API attn_dtype attn_dtype_from_name(const char *name);

/** Bytes of one element; 0 for ATTN_DTYPE_DEFAULT and outside the list. */
ATTN_API size_t attn_dtype_bytes(attn_dtype dtype);

/** The DLPack form of a type (lanes 1); {0, 0, 0} for ATTN_DTYPE_DEFAULT and outside the list. */
ATTN_API DLDataType attn_dtype_to_dlpack(attn_dtype dtype);

/** The type of a DLPack tensor, or ATTN_DTYPE_DEFAULT when the library has none like it. */
ATTN_API attn_dtype attn_dtype_from_dlpack(DLDataType dtype);

/**
 * Fill *tensor as a compact CPU tensor over `data`, for callers with plain arrays.
 *
 * `shape` [ndim] is borrowed: it has to live as long as *tensor is used. Strides stay NULL (compact).
 * Cannot fail: whatever is wrong is told by the call that takes the tensor.
 */
ATTN_API void attn_tensor_cpu(DLTensor *tensor, void *data, attn_dtype dtype, int32_t ndim, int64_t *shape);

#ifdef __cplusplus
}
#endif
#endif
