/* SPDX-License-Identifier: Apache-2.0 */
/* reference_cache.c: rows into the paged cache by slot, and back by block table.
 *
 * The rules of unchecked mode are applied always: in checked mode the API layer has already refused what they skip.
 */
#include "reference.h"

int64_t attn_reference_block(const attn_view *block_table, int64_t num_blocks, int64_t seq, int64_t position,
                             int64_t block_size) {
  int64_t column = position / block_size;
  if (column >= block_table->shape[1]) {
    return -1;
  }
  int64_t block = attn_reference_int32(attn_reference_at2(block_table, seq, column));
  return 0 <= block && block < num_blocks ? block : -1;
}

/* Copy one token's rows, [heads, size] on both sides, element by element. The first head and element of each side lie
   at `to` and `from`; their head and element axes are those numbered to_axis and from_axis, and the next. */
static void copy_rows(unsigned char *to, const attn_view *to_view, int to_axis, const unsigned char *from,
                      const attn_view *from_view, int from_axis) {
  for (int64_t head = 0; head < to_view->shape[to_axis]; head++) {
    for (int64_t d = 0; d < to_view->shape[to_axis + 1]; d++) {
      unsigned char *target = to + head * to_view->stride[to_axis] + d * to_view->stride[to_axis + 1];
      const unsigned char *source = from + head * from_view->stride[from_axis] + d * from_view->stride[from_axis + 1];
      attn_reference_convert(target, to_view->dtype, source, from_view->dtype);
    }
  }
}

void attn_reference_cache_write(const attn_write_view *view) {
  for (int64_t i = 0; i < view->num_slots; i++) {
    int64_t slot;
    memcpy(&slot, attn_reference_at1(&view->slot_mapping, i), sizeof slot);
    if (slot < 0 || slot >= view->capacity) {
      continue;
    }
    int64_t block = slot / view->block_size;
    int64_t offset = slot % view->block_size;
    copy_rows(attn_reference_at2(&view->k_cache, block, offset), &view->k_cache, 2, attn_reference_at1(&view->k, i),
              &view->k, 1);
    copy_rows(attn_reference_at2(&view->v_cache, block, offset), &view->v_cache, 2, attn_reference_at1(&view->v, i),
              &view->v, 1);
  }
}

static void zero_rows(unsigned char *to, const attn_view *to_view) {
  for (int64_t head = 0; head < to_view->shape[1]; head++) {
    for (int64_t d = 0; d < to_view->shape[2]; d++) {
      attn_reference_store(to + head * to_view->stride[1] + d * to_view->stride[2], to_view->dtype, 0.0);
    }
  }
}

/* One tensor (K or V) of one position, to row `to_row` of the output. */
static void gather_rows(const attn_gather_view *view, const attn_view *pool, const attn_view *to_view, int64_t to_row,
                        int64_t block, int64_t offset) {
  if (to_view->data == NULL) {
    return;
  }
  unsigned char *to = attn_reference_at1(to_view, to_row);
  if (block < 0 || block >= view->num_blocks) {
    zero_rows(to, to_view);
  } else {
    copy_rows(to, to_view, 1, attn_reference_at2(pool, block, offset), pool, 2);
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
      gather_rows(view, &view->k_cache, &view->k, to_row, block, offset);
      gather_rows(view, &view->v_cache, &view->v, to_row, block, offset);
    }
  }
}
