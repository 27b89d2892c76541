/* SPDX-License-Identifier: Apache-2.0 */
/* latent.c: see latent.h. Bytes of a row are code_stride apart. */
#include "core/latent.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/fp8.h"
#include "core/quantise.h"

static void put_bytes(const attn_row *to, int64_t at, const unsigned char *bytes, int64_t count) {
  unsigned char *place = to->codes + at * to->code_stride;
  if (to->code_stride == 1) {
    memcpy(place, bytes, (size_t)count);
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    place[i * to->code_stride] = bytes[i];
  }
}

static void get_bytes(const attn_row *from, int64_t at, unsigned char *bytes, int64_t count) {
  const unsigned char *place = from->codes + at * from->code_stride;
  if (from->code_stride == 1) {
    memcpy(bytes, place, (size_t)count);
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    bytes[i] = place[i * from->code_stride];
  }
}

void attn_latent_put_rotary(const attn_rows *rows, const attn_row *to, const unsigned char *elements) {
  static const unsigned char zeros[4] = {0, 0, 0, 0};
  int64_t at = attn_latent_rotary_at(rows->facts, rows->size);
  int64_t bytes = attn_latent_rotary_bytes(rows);
  if (bytes > 0) {
    put_bytes(to, at, elements, bytes);
  }
  if (rows->facts->scale == ATTN_SCALE_ROW) {
    put_bytes(to, at + bytes, zeros, attn_latent_scale_at(rows->facts, rows->size, rows->rotary) - at - bytes);
  }
}

void attn_latent_get_rotary(const attn_rows *rows, const attn_row *from, unsigned char *elements) {
  if (rows->rotary > 0) {
    get_bytes(from, attn_latent_rotary_at(rows->facts, rows->size), elements, attn_latent_rotary_bytes(rows));
  }
}

/* The largest magnitude; NaN where the tile holds a NaN or an infinity. */
static float absmax_of(const float *values) {
  float most = 0.0f;
  for (int i = 0; i < ATTN_TILE; i++) {
    float magnitude = fabsf(values[i]);
    if (!(magnitude <= FLT_MAX)) {
      return NAN;
    }
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

void attn_latent_quantise_tiles(const attn_row *to, const float *values) {
  unsigned char codes[ATTN_TILE];
  for (int t = 0; t < ATTN_TILES; t++) {
    const float *tile = values + (int64_t)t * ATTN_TILE;
    float absmax = absmax_of(tile);
    uint32_t bits = ATTN_ROW_NAN_BITS;
    memset(codes, 0, sizeof codes);
    if (!isnan(absmax)) {
      float scale = absmax / ATTN_FP8_E4M3_MAX;
      scale = scale > FLT_MIN ? scale : FLT_MIN;
      for (int i = 0; i < ATTN_TILE; i++) {
        codes[i] = attn_fp8_e4m3_encode(tile[i] / scale);
      }
      memcpy(&bits, &scale, sizeof bits);
    }
    unsigned char scale_bytes[4];
    memcpy(scale_bytes, &bits, sizeof bits);
    put_bytes(to, (int64_t)t * ATTN_TILE, codes, ATTN_TILE);
    put_bytes(to, ATTN_TILED_RANK + (int64_t)t * 4, scale_bytes, 4);
  }
}

void attn_latent_tile_scales(const attn_row *from, float scales[ATTN_TILES]) {
  unsigned char bytes[ATTN_TILES * 4];
  get_bytes(from, ATTN_TILED_RANK, bytes, sizeof bytes);
  for (int t = 0; t < ATTN_TILES; t++) {
    memcpy(&scales[t], bytes + (ptrdiff_t)4 * t, sizeof scales[t]);
  }
}
