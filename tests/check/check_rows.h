/* SPDX-License-Identifier: Apache-2.0 */
/* check_rows.h: the engine's own quantisers: rows of floats as the codes and scales of a cache format and back, by the
 * contract's section 9, sharing no code with src/. A set of rows is [positions, heads] of `size` elements. Float formats
 * have no codes: their values alone say what is stored. */
#ifndef ATTN_CHECK_ROWS_H
#define ATTN_CHECK_ROWS_H

#include "check_memory.h"

#include "attn/cache.h"

typedef struct check_rows {
  attn_format format;
  int32_t size;
  int32_t heads;
  int64_t positions;
  int32_t code_bytes;  /* of a row; 0: a float format */
  uint8_t *codes;      /* [positions, heads, code_bytes] */
  uint32_t *scales;    /* bits of float32, [positions, heads], where a row has its own */
  int32_t num_statics; /* static scales given: 0 (all are 1), 1 or heads */
  float *statics;      /* [heads] */
} check_rows;

/* 1 for int8, fp8 and int4 per token and head; 1 for fp8 with static scales. */
int check_format_per_row(attn_format format);
int check_format_static(attn_format format);

/* Elements (bytes) of a row of the pool tensor, an inline scale included unless `separate`; and where that scale is. */
int64_t check_row_extent(attn_format format, int64_t size, int separate);
int64_t check_row_scale_at(attn_format format, int64_t size);

/* Static scales: none, one, or one per head. */
typedef enum check_statics { CHECK_STATICS_NONE, CHECK_STATICS_ONE, CHECK_STATICS_HEADS } check_statics;

/* Store `values` [positions, heads, size] in this format; they become what a reader gets. Where the format has static
   scales these are drawn to suit the values' sizes. Float formats: values are rounded. */
void check_rows_make(check_arena *arena, check_rng *rng, check_rows *rows, attn_format format, check_statics statics,
                     int64_t positions, int32_t heads, int32_t size, float *values);

/* Fill with random codes and scales instead; `values` receives what a reader gets. Quantised formats. */
void check_rows_random(check_rng *rng, check_rows *rows, float *values);

/* Quantise one row of `size` values with its head's static scale: codes, and the scale's bits where it has its own. */
void check_row_encode(const check_rows *rows, int32_t head, const float *values, uint8_t *codes, uint32_t *scale);

/* What a reader gets of row `row` (= position * heads + head): float32, un-rotated. */
void check_row_decode(const check_rows *rows, int64_t row, float *values);

/* Positions [first, first + count) and heads [head, head + heads) of a set, copied. */
check_rows check_rows_slice(check_arena *arena, const check_rows *rows, int64_t first, int64_t count, int32_t head,
                            int32_t heads);

/* fp8 of both kinds: e5m2 where `e5m2`. */
uint8_t check_to_fp8(float x, int e5m2);
float check_from_fp8(uint8_t code, int e5m2);

#endif
