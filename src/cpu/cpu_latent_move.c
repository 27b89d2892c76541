/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_latent_move.c: one latent row between a caller's tensors and a cache: its latent part as any row, then its rotary
   elements, which in a mixed row are floats of their own. */
#include <string.h>

#include "core/fault.h"
#include "core/latent.h"
#include "cpu/cpu_move.h"
#include "cpu/generic/vec4.h"

/* The part of a row of elements behind `size` of them. */
static attn_row behind(const attn_row *row, int64_t size) {
  attn_row part = *row;
  part.codes += size * row->code_stride;
  return part;
}

/* The rotary elements that are written, those before rotary_dim from where they were rotated, as `dtype`, compact. */
static void collect_rotary(const attn_cpu_table *table, const attn_rows *rows, const attn_cpu_source *from,
                           unsigned char *elements) {
  int64_t element = (int64_t)attn_dtype_bytes(rows->rotary_dtype);
  attn_cpu_elements to = {elements, element, rows->rotary_dtype};
  if (from->rotary_dim > 0) {
    attn_cpu_move_elements(table, &to, &from->rotated, from->rotary_dim);
  }
  attn_cpu_elements rest = {from->row.data + from->rotary_dim * from->row.stride, from->row.stride, from->row.dtype};
  to.data += from->rotary_dim * element;
  attn_cpu_move_elements(table, &to, &rest, rows->rotary - from->rotary_dim);
}

static ATTN_NOINLINE void put_mixed(const attn_cpu_table *table, const attn_rows *rows, const attn_row *to,
                                    const attn_cpu_source *rotary) {
  _Alignas(8) unsigned char elements[2 * ATTN_ROW_MAX];
  if (rows->rotary > 0) {
    collect_rotary(table, rows, rotary, elements);
  }
  if (attn_fault(ATTN_FAULT_LATENT_PADDING) && rows->facts->scale == ATTN_SCALE_ROW) {
    attn_rows unpadded = *rows; /* as long as the padding is, so that none is left */
    int64_t end = attn_latent_scale_at(rows->facts, rows->size, rows->rotary);
    int64_t kept = attn_latent_rotary_at(rows->facts, rows->size) + attn_latent_rotary_bytes(rows);
    unsigned char byte = kept < end ? to->codes[kept * to->code_stride] : 0;
    attn_latent_put_rotary(&unpadded, to, elements);
    if (kept < end) {
      to->codes[kept * to->code_stride] = byte;
    }
    return;
  }
  attn_latent_put_rotary(rows, to, elements);
}

static void put_tiles(const attn_cpu_table *table, const attn_row *to, const attn_cpu_elements *from) {
  float values[ATTN_TILED_RANK];
  attn_cpu_load_rows(table, from->dtype, values, from->data, 0, from->stride, 1, ATTN_TILED_RANK, ATTN_TILED_RANK);
  attn_latent_quantise_tiles(to, values);
  for (int64_t t = 1; attn_fault(ATTN_FAULT_TILE_ABSMAX) && t < ATTN_TILES; t++) {
    for (int64_t i = 0; i < 4; i++) {
      to->codes[(ATTN_TILED_RANK + 4 * t + i) * to->code_stride] = to->codes[(ATTN_TILED_RANK + i) * to->code_stride];
    }
  }
}

void attn_cpu_put_latent(const attn_cpu_table *table, const attn_rows *rows, attn_dtype pool_dtype, const attn_row *to,
                         const attn_cpu_elements *latent, const attn_cpu_source *rotary) {
  attn_cpu_source whole = {.row = *latent};
  if (rows->facts->scale == ATTN_SCALE_TILE) {
    put_tiles(table, to, latent);
  } else {
    attn_cpu_put_row(table, rows, pool_dtype, to, &whole);
  }
  if (attn_format_is_mixed(rows->facts)) {
    put_mixed(table, rows, to, rotary);
    return;
  }
  attn_rows part = *rows;
  attn_row rest = behind(to, rows->size);
  part.size = rows->rotary;
  if (part.size > 0) {
    attn_cpu_put_row(table, &part, pool_dtype, &rest, rotary);
  }
}

static void get_tiles(const attn_cpu_table *table, const attn_cpu_elements *to, const attn_row *from) {
  float values[ATTN_TILED_RANK];
  float scales[ATTN_TILES];
  attn_cpu_decode_rows(table, ATTN_CODE_E4M3, values, from->codes, 0, from->code_stride, NULL, 1, ATTN_TILED_RANK,
                       ATTN_TILED_RANK);
  attn_latent_tile_scales(from, scales);
  for (int i = 0; i < ATTN_TILED_RANK; i++) {
    values[i] *= scales[i / ATTN_TILE];
  }
  attn_cpu_store_row(table, to->dtype, to->data, to->stride, values, 1.0f, ATTN_TILED_RANK);
}

static ATTN_NOINLINE void get_mixed(const attn_cpu_table *table, const attn_cpu_elements *to, const attn_rows *rows,
                                    const attn_row *from) {
  _Alignas(8) unsigned char elements[2 * ATTN_ROW_MAX];
  attn_cpu_elements compact = {elements, 2, rows->rotary_dtype};
  attn_latent_get_rotary(rows, from, elements);
  attn_cpu_move_elements(table, to, &compact, rows->rotary);
}

void attn_cpu_get_latent(const attn_cpu_table *table, const attn_cpu_elements *to, const attn_rows *rows,
                         attn_dtype pool_dtype, const attn_row *from) {
  attn_cpu_elements tail = {to->data + rows->size * to->stride, to->stride, to->dtype};
  if (rows->facts->scale == ATTN_SCALE_TILE) {
    get_tiles(table, to, from);
  } else {
    attn_cpu_get_row(table, to, rows, pool_dtype, from);
  }
  if (attn_format_is_mixed(rows->facts)) {
    get_mixed(table, &tail, rows, from);
    return;
  }
  attn_rows part = *rows;
  attn_row rest = behind(from, rows->size);
  part.size = rows->rotary;
  if (part.size > 0) {
    attn_cpu_get_row(table, &tail, &part, pool_dtype, &rest);
  }
}
