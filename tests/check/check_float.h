/* SPDX-License-Identifier: Apache-2.0 */
/* check_float.h: the engine's own conversions between float32 and the stored types, bit by bit, sharing no code with
 * src/: round to nearest even, subnormals kept, overflow to infinity, NaN stays NaN. */
#ifndef ATTN_CHECK_FLOAT_H
#define ATTN_CHECK_FLOAT_H

#include <stdint.h>

#include "attn/tensor.h"

uint16_t check_to_f16(float x);
uint16_t check_to_bf16(float x);
float check_from_f16(uint16_t x);
float check_from_bf16(uint16_t x);

/* Store x as `dtype` (float32, float16, bfloat16) at p; load it back, or the value of an fp8_e4m3 code (a NaN keeps the
   code's sign). */
void check_store(void *p, attn_dtype dtype, float x);
float check_load(const void *p, attn_dtype dtype);

/* x as it reads after a trip through `dtype`. */
float check_rounded(attn_dtype dtype, float x);

#endif
