/* SPDX-License-Identifier: Apache-2.0 */
/* format.h: the one place that states what a row of each cache format is: the code of its elements, where its scale
 * lies, how many bytes it has. Shapes, argument checks, writers, readers and tables all ask here.
 *
 * A row of a format with a scale of its own, inline:
 *
 *     | codes                                        | zero bytes to a multiple of 4 | scale, 4 bytes |
 *       ceil(size * bits / 8) bytes, first element first                                float32
 *
 * and with separate scales the codes alone. Bytes of a row are `code_stride` apart (1, unless the caller's pool has
 * gaps between its elements; the inline scale's four bytes are then as far apart), so nothing is assumed to be aligned.
 *
 * A latent row has L latent and R rotary elements. In formats of elements they follow each other; else the rotary ones
 * stay two-byte floats:
 *
 *     | codes of the L | zeros to a multiple of 4 | R rotary elements | zeros to a multiple of 4 | scale, 4 bytes |
 *     | 512 codes | 4 scales of 128 codes each | 64 rotary elements |                                  fp8_ds_mla
 *
 * With separate scales only the scale is gone: both paddings stay.
 */
#ifndef ATTN_CORE_FORMAT_H
#define ATTN_CORE_FORMAT_H

#include "attn/cache.h"
#include "core/arithmetic.h"
#include "core/view.h"

/* Elements of a row that is quantised as a whole, or rotated: working memory of one row lies on the stack. */
#define ATTN_ROW_MAX 8192

/* What one element is stored as. */
typedef enum attn_code {
  ATTN_CODE_FLOAT,
  ATTN_CODE_E4M3,
  ATTN_CODE_E5M2,
  ATTN_CODE_INT8,
  ATTN_CODE_INT4,
  ATTN_CODES
} attn_code;

/* Where the scale lies. */
typedef enum attn_scale_place {
  ATTN_SCALE_NONE,   /* values are stored as they are */
  ATTN_SCALE_STATIC, /* given by the caller: one, or one per KV head */
  ATTN_SCALE_ROW,    /* each row has its own: inline, or in a tensor of their own */
  ATTN_SCALE_TILE    /* each ATTN_TILE elements of a latent row have their own, inside the row */
} attn_scale_place;

/* fp8_ds_mla: the one size it has. */
#define ATTN_TILE 128
#define ATTN_TILES 4
#define ATTN_TILED_RANK (ATTN_TILE * ATTN_TILES)
#define ATTN_TILED_ROTARY 64

typedef struct attn_format_facts {
  attn_format format;
  unsigned dtypes; /* element types accepted for the pool tensor, as bits */
  attn_code code;
  int32_t bits; /* of one element's code */
  attn_scale_place scale;
  int rotated;            /* rows are stored in the rotated domain (rotation.h) */
  const char *row;        /* the row of D elements in words, for tables */
  const char *latent_row; /* the latent row of L and R elements; NULL: none */
} attn_format_facts;

/* Name, storage type and kinds of rows stand in ATTN_FORMAT_LIST: attn_format_name(), and these. */
attn_dtype attn_format_storage(attn_format format); /* DEFAULT for AUTO and outside the list */

/* 1 where rows of this kind can be stored in the format. */
int attn_format_serves(attn_format format, attn_row_kind kind);

/* The names of those that serve a kind, for messages: "float32, float16, ...". */
#define ATTN_FORMAT_NAMES_BYTES 160
const char *attn_format_names(attn_row_kind kind, char text[ATTN_FORMAT_NAMES_BYTES]);

/* "rows of K and V", "latent rows". */
const char *attn_row_kind_words(attn_row_kind kind);

/* The accepted element types, "fp8_e4m3, uint8"; where a format's scale lies, in words. */
void attn_format_type_words(const attn_format_facts *facts, char text[64]);
const char *attn_format_scale_words(const attn_format_facts *facts);

/* NULL for AUTO and outside the list. */
const attn_format_facts *attn_format_of(attn_format format);

/* The float format of an element type, the fp8 formats included; AUTO where the type alone tells none. */
attn_format attn_format_of_dtype(attn_dtype dtype);

/* Bytes of the codes of `size` elements, without padding. */
static inline int64_t attn_format_code_bytes(const attn_format_facts *facts, int64_t size) {
  return facts->bits == 4 ? size / 2 + size % 2 : size * (facts->bits / 8);
}

/* Byte at which an inline scale begins. */
static inline int64_t attn_format_scale_offset(const attn_format_facts *facts, int64_t size) {
  return (attn_format_code_bytes(facts, size) + 3) / 4 * 4;
}

/* Extent of the pool tensor's last axis, in its elements. */
static inline int64_t attn_format_row_extent(const attn_format_facts *facts, int64_t size, int separate) {
  if (facts->scale != ATTN_SCALE_ROW) {
    return size;
  }
  return separate ? attn_format_code_bytes(facts, size) : attn_format_scale_offset(facts, size) + 4;
}

/* 1 where a latent row keeps its rotary elements as two-byte floats of their own. */
static inline int attn_format_is_mixed(const attn_format_facts *facts) {
  return facts->scale == ATTN_SCALE_ROW || facts->scale == ATTN_SCALE_TILE;
}

/* Latent rows: where the rotary elements begin, in elements of the pool tensor. */
static inline int64_t attn_latent_rotary_at(const attn_format_facts *facts, int64_t rank) {
  if (facts->scale == ATTN_SCALE_TILE) {
    return ATTN_TILED_RANK + ATTN_TILES * 4;
  }
  return facts->scale == ATTN_SCALE_ROW ? attn_format_scale_offset(facts, rank) : rank;
}

/* Latent rows: where an inline scale begins. */
static inline int64_t attn_latent_scale_at(const attn_format_facts *facts, int64_t rank, int64_t rotary) {
  return (attn_latent_rotary_at(facts, rank) + 2 * rotary + 3) / 4 * 4;
}

/* Latent rows: extent of the pool tensor's last axis, in its elements. */
static inline int64_t attn_latent_extent(const attn_format_facts *facts, int64_t rank, int64_t rotary, int separate) {
  if (facts->scale == ATTN_SCALE_ROW) {
    return attn_latent_scale_at(facts, rank, rotary) + (separate ? 0 : 4);
  }
  return attn_latent_rotary_at(facts, rank) + rotary * (attn_format_is_mixed(facts) ? 2 : 1);
}

/* 1 where a problem's or description's separate_scales says that K's (is_v 0) or V's scales lie in their own tensor. */
static inline int attn_format_is_separate(int32_t separate_scales, int is_v) {
  return separate_scales == ATTN_SEPARATE_BOTH || separate_scales == (is_v ? ATTN_SEPARATE_V : ATTN_SEPARATE_K);
}

/* ---- One pool's rows --------------------------------------------------------------------------------------------- */

/* What a backend needs beside a pool's view to read or write its rows. */
typedef struct attn_rows {
  const attn_format_facts *facts;
  int64_t size;            /* elements of a row; of a latent row those of its latent part */
  int separate;            /* the rows' scales lie in a tensor of their own */
  int latent;              /* latent rows: the pool's head axis has extent 1 */
  int64_t rotary;          /* latent rows: rotary elements behind the latent part */
  attn_dtype rotary_dtype; /* of a mixed row's rotary elements; elsewhere the pool's */
  /* ATTN_SCALE_STATIC: [heads] float32, stride 0 where one was given; ndim 0: every scale is 1.
     ATTN_SCALE_ROW: [blocks, offset, head, 4] bytes of the scales, inline (then inside the pool) or separate.
     ATTN_SCALE_NONE, ATTN_SCALE_TILE: ndim 0. */
  attn_view scale;
} attn_rows;

/* One row of a pool, found. */
typedef struct attn_row {
  unsigned char *codes; /* first byte (or element) */
  int64_t code_stride;  /* bytes between elements of the pool tensor */
  unsigned char *scale; /* first byte of its scale; NULL: a static scale of 1, or none */
  int64_t scale_stride; /* bytes between the scale's bytes */
} attn_row;

static inline attn_row attn_row_at(const attn_rows *rows, const attn_view *pool, int64_t block, int64_t offset,
                                   int64_t head) {
  attn_row row = {pool->data + block * pool->stride[0] + offset * pool->stride[1] + head * pool->stride[2],
                  pool->stride[3], NULL, 1};
  const attn_view *scale = &rows->scale;
  if (rows->facts->scale == ATTN_SCALE_ROW) {
    row.scale = scale->data + block * scale->stride[0] + offset * scale->stride[1] + head * scale->stride[2];
    row.scale_stride = scale->stride[3];
  } else if (scale->ndim != 0) {
    row.scale = scale->data + head * scale->stride[0];
  }
  return row;
}

#endif
