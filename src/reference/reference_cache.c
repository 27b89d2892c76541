/* SPDX-License-Identifier: Apache-2.0 */
/* reference_cache.c: rows into the paged cache by slot, and back by block table.
 *
 * The rules of unchecked mode are applied always: in checked mode the API layer has already refused what they skip.
 */
#include "reference.h"

#include "core/latent.h"
#include "core/quantise.h"
#include "core/rotary.h"

int64_t attn_reference_block(const attn_view *block_table, int64_t num_blocks, int64_t seq, int64_t position,
                             int64_t block_size) {
  int64_t column = position / block_size;
  if (column >= block_table->shape[1]) {
    return -1;
  }
  int64_t block = attn_reference_int32(attn_reference_at2(block_table, seq, column));
  return 0 <= block && block < num_blocks ? block : -1;
}

/* ---- write ------------------------------------------------------------------------------------------------------- */

/* The elements of one row that is written: those before `rotary_dim` were rotated into memory of their own. */
typedef struct source_row {
  const unsigned char *data;
  int64_t stride;
  attn_dtype dtype;
  const unsigned char *rotated; /* compact, same type */
  int64_t rotary_dim;           /* 0: none was */
} source_row;

static const unsigned char *source_at(const source_row *from, int64_t i) {
  if (i < from->rotary_dim) {
    return from->rotated + i * (int64_t)attn_dtype_bytes(from->dtype);
  }
  return from->data + i * from->stride;
}

static source_row source_of(const attn_view *tensor, int64_t token, int64_t head) {
  source_row from = {attn_reference_at2(tensor, token, head), tensor->stride[2], tensor->dtype, NULL, 0};
  return from;
}

/* Float32 in a row of `dtype`, to the nearest, and the row's rotated elements are these. */
static void rotate(const attn_write_view *view, int64_t token, source_row *from, unsigned char *memory) {
  float row[ATTN_ROW_MAX];
  int64_t element = (int64_t)attn_dtype_bytes(from->dtype);
  for (int64_t i = 0; i < view->rotary_dim; i++) {
    row[i] = (float)attn_reference_load(source_at(from, i), from->dtype);
  }
  attn_rotary_apply(view, attn_int64_at(&view->positions, token), row);
  for (int64_t i = 0; i < view->rotary_dim; i++) {
    attn_reference_store(memory + i * element, from->dtype, (double)row[i]);
  }
  from->rotated = memory;
  from->rotary_dim = view->rotary_dim;
}

static void write_row(const attn_rows *rows, const attn_view *pool, const attn_row *to, const source_row *from) {
  float values[ATTN_ROW_MAX];
  if (rows->facts->scale == ATTN_SCALE_ROW) {
    for (int64_t i = 0; i < rows->size; i++) {
      values[i] = (float)attn_reference_load(source_at(from, i), from->dtype);
    }
    attn_quantise_row(rows, to, values);
    return;
  }
  for (int64_t i = 0; i < rows->size; i++) {
    if (rows->facts->scale == ATTN_SCALE_NONE) {
      attn_reference_convert(to->codes + i * to->code_stride, pool->dtype, source_at(from, i), from->dtype);
    } else {
      float value = (float)attn_reference_load(source_at(from, i), from->dtype);
      attn_quantise_part(rows, to, i, 1, &value);
    }
  }
}

/* The rotary elements of a mixed row, rounded to their type. */
static void write_rotary(const attn_rows *rows, const attn_row *to, const source_row *from) {
  unsigned char elements[2 * ATTN_ROW_MAX];
  for (int64_t i = 0; i < rows->rotary; i++) {
    attn_reference_convert(elements + 2 * i, rows->rotary_dtype, source_at(from, i), from->dtype);
  }
  attn_latent_put_rotary(rows, to, elements);
}

/* A latent row: its latent part as any row, then the rotary one. */
static void write_latent_row(const attn_rows *rows, const attn_view *pool, const attn_row *to, const source_row *latent,
                             const source_row *rotary) {
  if (rows->facts->scale == ATTN_SCALE_TILE) {
    float values[ATTN_TILED_RANK];
    for (int64_t i = 0; i < ATTN_TILED_RANK; i++) {
      values[i] = (float)attn_reference_load(source_at(latent, i), latent->dtype);
    }
    attn_latent_quantise_tiles(to, values);
  } else {
    write_row(rows, pool, to, latent);
  }
  if (attn_format_is_mixed(rows->facts)) {
    write_rotary(rows, to, rotary);
    return;
  }
  attn_rows part = *rows;
  attn_row behind = *to;
  part.size = rows->rotary;
  behind.codes += rows->size * to->code_stride;
  write_row(&part, pool, &behind, rotary);
}

static void write_latent(const attn_write_view *view, int64_t token, int64_t slot) {
  unsigned char memory[ATTN_ROW_MAX * sizeof(float)];
  source_row latent = source_of(&view->k, token, 0);
  source_row rotary = source_of(&view->k_pe, token, 0);
  attn_row to = attn_row_at(&view->k_rows, &view->k_cache, slot / view->block_size, slot % view->block_size, 0);
  if (view->rotary != ATTN_ROTARY_NONE) {
    rotate(view, token, &rotary, memory);
  }
  write_latent_row(&view->k_rows, &view->k_cache, &to, &latent, &rotary);
}

static void write_heads(const attn_write_view *view, int64_t token, int64_t slot) {
  unsigned char memory[ATTN_ROW_MAX * sizeof(float)];
  int64_t block = slot / view->block_size;
  int64_t offset = slot % view->block_size;
  for (int64_t head = 0; head < view->k.shape[1]; head++) {
    source_row k = source_of(&view->k, token, head);
    source_row v = source_of(&view->v, token, head);
    attn_row k_row = attn_row_at(&view->k_rows, &view->k_cache, block, offset, head);
    attn_row v_row = attn_row_at(&view->v_rows, &view->v_cache, block, offset, head);
    if (view->rotary != ATTN_ROTARY_NONE) {
      rotate(view, token, &k, memory);
    }
    write_row(&view->k_rows, &view->k_cache, &k_row, &k);
    write_row(&view->v_rows, &view->v_cache, &v_row, &v);
  }
}

/* q and q_out may be the same memory: an element is read before it is written. */
static void write_queries(const attn_write_view *view, int64_t token) {
  unsigned char memory[ATTN_ROW_MAX * sizeof(float)];
  for (int64_t head = 0; view->q.ndim > 0 && head < view->q.shape[1]; head++) {
    source_row from = source_of(&view->q, token, head);
    rotate(view, token, &from, memory);
    for (int64_t i = 0; i < view->q.shape[2]; i++) {
      unsigned char *to = attn_reference_at3(&view->q_out, token, head, i);
      memmove(to, source_at(&from, i), attn_dtype_bytes(from.dtype));
    }
  }
}

void attn_reference_cache_write(const attn_write_view *view) {
  for (int64_t i = 0; i < view->num_slots; i++) {
    int64_t slot = attn_int64_at(&view->slot_mapping, i);
    if (attn_write_takes(view, slot, i)) {
      if (view->k_rows.latent) {
        write_latent(view, i, slot);
      } else {
        write_heads(view, i, slot);
      }
      write_queries(view, i);
    }
  }
}

/* ---- gather ------------------------------------------------------------------------------------------------------ */

static void zero_rows(unsigned char *to, const attn_view *to_view) {
  for (int64_t head = 0; head < to_view->shape[1]; head++) {
    for (int64_t d = 0; d < to_view->shape[2]; d++) {
      attn_reference_store(to + head * to_view->stride[1] + d * to_view->stride[2], to_view->dtype, 0.0);
    }
  }
}

/* A row of a pool to elements of another type, `stride` bytes apart. */
static void read_row(unsigned char *to, int64_t stride, attn_dtype to_dtype, const attn_rows *rows,
                     const attn_view *pool, const attn_row *from) {
  float values[ATTN_ROW_MAX];
  if (rows->facts->scale == ATTN_SCALE_ROW) {
    attn_dequantise_row(rows, from, values);
  }
  for (int64_t i = 0; i < rows->size; i++) {
    if (rows->facts->scale == ATTN_SCALE_NONE) {
      attn_reference_convert(to + i * stride, to_dtype, from->codes + i * from->code_stride, pool->dtype);
      continue;
    }
    float value;
    if (rows->facts->scale == ATTN_SCALE_ROW) {
      value = values[i];
    } else {
      attn_dequantise_part(rows, from, i, 1, &value);
    }
    attn_reference_store(to + i * stride, to_dtype, (double)value);
  }
}

static void read_latent_row(unsigned char *to, int64_t stride, attn_dtype to_dtype, const attn_rows *rows,
                            const attn_view *pool, const attn_row *from) {
  unsigned char *behind = to + rows->size * stride;
  if (rows->facts->scale == ATTN_SCALE_TILE) {
    float scales[ATTN_TILES];
    attn_latent_tile_scales(from, scales);
    for (int64_t i = 0; i < ATTN_TILED_RANK; i++) {
      float value;
      attn_dequantise_part(rows, from, i, 1, &value);
      attn_reference_store(to + i * stride, to_dtype, (double)(value * scales[i / ATTN_TILE]));
    }
  } else {
    read_row(to, stride, to_dtype, rows, pool, from);
  }
  if (attn_format_is_mixed(rows->facts)) {
    unsigned char elements[2 * ATTN_ROW_MAX];
    attn_latent_get_rotary(rows, from, elements);
    for (int64_t i = 0; i < rows->rotary; i++) {
      attn_reference_convert(behind + i * stride, to_dtype, elements + 2 * i, rows->rotary_dtype);
    }
    return;
  }
  attn_rows part = *rows;
  attn_row rest = *from;
  part.size = rows->rotary;
  rest.codes += rows->size * from->code_stride;
  read_row(behind, stride, to_dtype, &part, pool, &rest);
}

/* One tensor (K or V) of one position, to row `to_row` of the output. */
static void gather_rows(const attn_gather_view *view, const attn_view *pool, const attn_rows *rows,
                        const attn_view *to_view, int64_t to_row, int64_t block, int64_t offset) {
  if (to_view->data == NULL) {
    return;
  }
  unsigned char *to = attn_reference_at1(to_view, to_row);
  if (block < 0 || block >= view->num_blocks) {
    zero_rows(to, to_view);
    return;
  }
  for (int64_t head = 0; head < to_view->shape[1]; head++) {
    attn_row from = attn_row_at(rows, pool, block, offset, head);
    if (rows->latent) {
      read_latent_row(to, to_view->stride[2], to_view->dtype, rows, pool, &from);
      continue;
    }
    read_row(to + head * to_view->stride[1], to_view->stride[2], to_view->dtype, rows, pool, &from);
  }
}

void attn_reference_cache_gather(const attn_gather_view *view) {
  int64_t to_row = 0;
  for (int64_t seq = 0; seq < view->num_seqs; seq++) {
    int64_t begin = view->seq_starts.data ? attn_reference_int32(attn_reference_at1(&view->seq_starts, seq)) : 0;
    int64_t end = attn_reference_int32(attn_reference_at1(&view->seq_lens, seq));
    for (int64_t position = begin; position < end; position++, to_row++) {
      int64_t block = attn_reference_block(&view->block_table, view->num_blocks, seq, position, view->block_size);
      int64_t offset = position % view->block_size;
      gather_rows(view, &view->k_cache, &view->k_rows, &view->k, to_row, block, offset);
      gather_rows(view, &view->v_cache, &view->v_rows, &view->v, to_row, block, offset);
    }
  }
}

/* ---- requantise -------------------------------------------------------------------------------------------------- */

/* Through float32, part by part where elements do not depend on each other. */
static void requantise_row(const attn_requantise_view *view, const attn_row *to, const attn_row *from) {
  float values[ATTN_ROW_MAX];
  attn_rows part = view->source_rows;
  int whole = part.facts->scale == ATTN_SCALE_ROW || view->target_rows.facts->scale == ATTN_SCALE_ROW;
  int64_t step = whole ? attn_max(part.size, 1) : 1;
  for (int64_t begin = 0; begin < attn_max(view->source_rows.size, 1); begin += step) {
    attn_row source = *from;
    attn_row target = *to;
    attn_rows target_rows = view->target_rows;
    part.size = target_rows.size = attn_min(step, view->source_rows.size);
    source.codes += begin * source.code_stride;
    target.codes += begin * target.code_stride;
    read_row((unsigned char *)values, sizeof(float), ATTN_DTYPE_FLOAT32, &part, &view->map.source, &source);
    source_row row = {(const unsigned char *)values, sizeof(float), ATTN_DTYPE_FLOAT32, NULL, 0};
    write_row(&target_rows, &view->map.target, &target, &row);
  }
}

/* A latent row: at once where a side has parts of different types, else as a row of elements. */
static void requantise_latent_row(const attn_requantise_view *view, const attn_row *to, const attn_row *from) {
  const attn_rows *source = &view->source_rows;
  const attn_rows *target = &view->target_rows;
  if (!attn_format_is_mixed(source->facts) && !attn_format_is_mixed(target->facts)) {
    attn_requantise_view plain = *view;
    plain.source_rows.size = plain.target_rows.size = source->size + source->rotary;
    requantise_row(&plain, to, from);
    return;
  }
  float values[ATTN_ROW_MAX];
  int64_t element = sizeof(float);
  read_latent_row((unsigned char *)values, element, ATTN_DTYPE_FLOAT32, source, &view->map.source, from);
  source_row latent = {(const unsigned char *)values, element, ATTN_DTYPE_FLOAT32, NULL, 0};
  source_row rotary = {(const unsigned char *)(values + source->size), element, ATTN_DTYPE_FLOAT32, NULL, 0};
  write_latent_row(target, &view->map.target, to, &latent, &rotary);
}

void attn_reference_cache_requantise(const attn_requantise_view *view) {
  const attn_view *pool = &view->map.source;
  for (int64_t i = 0; i < view->map.num_pairs; i++) {
    for (int64_t offset = 0; offset < pool->shape[1]; offset++) {
      for (int64_t head = 0; head < pool->shape[2]; head++) {
        attn_row from = attn_row_at(&view->source_rows, pool, attn_copy_block(&view->map, i, 0), offset, head);
        attn_row to =
            attn_row_at(&view->target_rows, &view->map.target, attn_copy_block(&view->map, i, 1), offset, head);
        if (view->source_rows.latent) {
          requantise_latent_row(view, &to, &from);
        } else {
          requantise_row(view, &to, &from);
        }
      }
    }
  }
}
