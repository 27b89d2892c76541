/* SPDX-License-Identifier: Apache-2.0 */
/* latent.h: what a mixed latent row (format.h) has beside the codes of quantise.h: its rotary elements, its paddings,
 * and the tiles of fp8_ds_mla:
 *
 *     scale of a tile of 128 = max(absmax / 448, FLT_MIN)        code = e4m3(x / scale)        value = code * scale
 *
 * A tile that holds a NaN or an infinity has code bytes 0 and scale bits 7FC00000.
 */
#ifndef ATTN_CORE_LATENT_H
#define ATTN_CORE_LATENT_H

#include "core/format.h"

/* Bytes of the rotary elements of a mixed row. */
static inline int64_t attn_latent_rotary_bytes(const attn_rows *rows) {
  return 2 * rows->rotary;
}

/* Bring the rotary elements (compact, in rows->rotary_dtype) to their place, and zeros behind them up to the scale. */
void attn_latent_put_rotary(const attn_rows *rows, const attn_row *to, const unsigned char *elements);

/* The rotary elements of a row, compact. */
void attn_latent_get_rotary(const attn_rows *rows, const attn_row *from, unsigned char *elements);

/* fp8_ds_mla: the codes and scales of [ATTN_TILED_RANK] values. */
void attn_latent_quantise_tiles(const attn_row *to, const float *values);

/* The scales of a row's tiles. */
void attn_latent_tile_scales(const attn_row *from, float scales[ATTN_TILES]);

#endif
