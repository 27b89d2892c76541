/* SPDX-License-Identifier: Apache-2.0 */
/* cache.c: attn_cache_describe(). The calls that move rows: cache_write.c, cache_gather.c,
   cache_copy.c, cache_requantise.c. */
#include "attn/cache.h"

#include <string.h>

#include "core/arithmetic.h"
#include "core/resolve.h"

#define DEFAULT_BLOCK_SIZE 16

static attn_status positive(const char *field, int64_t value, int64_t least, attn_message *message) {
  if (value < least) {
    return attn_fail(message, ATTN_E_RANGE, "desc.%s: %lld, accepted: %lld or more", field, (long long)value,
                     (long long)least);
  }
  return ATTN_OK;
}

static attn_status built_format(const char *field, attn_format format, attn_row_kind kind, attn_message *message) {
  if (attn_format_storage(format) == ATTN_DTYPE_DEFAULT) {
    return attn_fail(message, ATTN_E_RANGE, "desc.%s: %s (%d), accepted: a format of attn_format but auto", field,
                     attn_format_name(format), (int)format);
  }
  if (!attn_format_serves(format, kind)) {
    char names[ATTN_FORMAT_NAMES_BYTES];
    return attn_fail(message, ATTN_E_UNSUPPORTED, "desc.%s: %s does not store %s; accepted: %s", field,
                     attn_format_name(format), attn_row_kind_words(kind), attn_format_names(kind, names));
  }
  return ATTN_OK;
}

static attn_status zero(const char *field, int64_t value, const char *why, attn_message *message) {
  if (value != 0) {
    return attn_fail(message, ATTN_E_RANGE, "desc.%s: %lld, accepted: 0 (%s)", field, (long long)value, why);
  }
  return ATTN_OK;
}

/* A latent pool: what has no meaning for it, and its row. */
static attn_status resolve_latent(attn_cache_desc *d, attn_message *message) {
  const char *why = "latent rows have no heads";
  ATTN_TRY(positive("kv_lora_rank", d->kv_lora_rank, 1, message));
  ATTN_TRY(built_format("k_format", d->k_format, ATTN_ROWS_LATENT, message));
  if (d->v_format != ATTN_FORMAT_AUTO && d->v_format != d->k_format) {
    return attn_fail(message, ATTN_E_RANGE, "desc.v_format: %s, accepted: auto or k_format (%s) with latent rows",
                     attn_format_name(d->v_format), attn_format_name(d->k_format));
  }
  ATTN_TRY(
      attn_latent_rows_check("desc.", d->k_format, d->kv_lora_rank, d->qk_rope_head_dim, d->rotary_dtype, message));
  ATTN_TRY(zero("layout", d->layout, why, message));
  ATTN_TRY(zero("head_size", d->head_size, why, message));
  ATTN_TRY(zero("v_head_size", d->v_head_size, why, message));
  ATTN_TRY(zero("v_block_bytes", d->v_block_bytes, "latent rows are one tensor", message));
  if (d->num_kv_heads != 0 && d->num_kv_heads != 1) {
    return attn_fail(message, ATTN_E_RANGE, "desc.num_kv_heads: %d, accepted: 0 or 1 (%s)", (int)d->num_kv_heads, why);
  }
  if (d->separate_scales != ATTN_SEPARATE_NONE && d->separate_scales != ATTN_SEPARATE_BOTH) {
    return attn_fail(message, ATTN_E_RANGE, "desc.separate_scales: %d, accepted: 0 (inline), 1 (a tensor of their own)",
                     (int)d->separate_scales);
  }
  ATTN_TRY(attn_separate_scales_check("desc.separate_scales", d->separate_scales, d->k_format, d->k_format, message));
  ATTN_TRY(positive("num_blocks", d->num_blocks, 0, message));
  ATTN_TRY(positive("block_size", d->block_size, 0, message));
  d->num_kv_heads = 1;
  d->block_size = d->block_size == 0 ? DEFAULT_BLOCK_SIZE : d->block_size;
  return ATTN_OK;
}

/* Defaults filled in, every field judged. */
static attn_status resolve_desc(const attn_cache_desc *desc, attn_cache_desc *d, attn_message *message) {
  *d = *desc;
  if (d->kv_lora_rank != 0) {
    return resolve_latent(d, message);
  }
  ATTN_TRY(zero("qk_rope_head_dim", d->qk_rope_head_dim, "kv_lora_rank is 0", message));
  ATTN_TRY(zero("rotary_dtype", d->rotary_dtype, "kv_lora_rank is 0", message));
  ATTN_TRY(built_format("k_format", d->k_format, ATTN_ROWS_KV, message));
  if (d->v_format == ATTN_FORMAT_AUTO) {
    d->v_format = d->k_format;
  }
  ATTN_TRY(built_format("v_format", d->v_format, ATTN_ROWS_KV, message));
  ATTN_TRY(attn_separate_scales_check("desc.separate_scales", d->separate_scales, d->k_format, d->v_format, message));
  if (d->layout != ATTN_LAYOUT_NHD && d->layout != ATTN_LAYOUT_HND) {
    return attn_fail(message, ATTN_E_RANGE, "desc.layout: %d, accepted: 0 (NHD) or 1 (HND)", (int)d->layout);
  }
  ATTN_TRY(positive("num_blocks", d->num_blocks, 0, message));
  ATTN_TRY(positive("block_size", d->block_size, 0, message));
  ATTN_TRY(positive("num_kv_heads", d->num_kv_heads, 1, message));
  ATTN_TRY(positive("head_size", d->head_size, 1, message));
  ATTN_TRY(positive("v_head_size", d->v_head_size, 0, message));
  if (d->block_size == 0) {
    d->block_size = DEFAULT_BLOCK_SIZE;
  }
  if (d->v_head_size == 0) {
    d->v_head_size = d->head_size;
  }
  ATTN_TRY(attn_row_size_check("desc.head_size", d->head_size, d->k_format, message));
  return attn_row_size_check("desc.v_head_size", d->v_head_size, d->v_format, message);
}

static attn_status overflow(const char *what, attn_message *message) {
  return attn_fail(message, ATTN_E_OVERFLOW, "desc: the bytes of %s do not fit 63 bits", what);
}

/* One tensor: strides of the layout, the block stride padded where asked. */
static attn_status lay_out(const attn_cache_desc *d, const char *what, attn_format format, int64_t row,
                           int64_t block_bytes, attn_cache_layout *layout, attn_message *message) {
  uint64_t element = attn_dtype_bytes(attn_format_storage(format));
  uint64_t block; /* elements of a compact block */
  if (attn_mul_overflow((uint64_t)d->block_size, (uint64_t)d->num_kv_heads, &block) ||
      attn_mul_overflow(block, (uint64_t)row, &block) || block > (uint64_t)INT64_MAX / element) {
    return overflow(what, message);
  }
  if (block_bytes != 0) {
    if (block_bytes < 0 || (uint64_t)block_bytes < block * element || (uint64_t)block_bytes % element != 0) {
      return attn_fail(message, ATTN_E_RANGE,
                       "desc.%s_block_bytes: %lld, accepted: 0, or a multiple of %lu of %llu or more", what,
                       (long long)block_bytes, (unsigned long)element, (unsigned long long)(block * element));
    }
    block = (uint64_t)block_bytes / element;
  }
  memset(layout, 0, sizeof *layout);
  layout->dtype = attn_format_storage(format);
  layout->ndim = 4;
  int hnd = d->layout == ATTN_LAYOUT_HND;
  layout->shape[0] = d->num_blocks;
  layout->shape[1] = hnd ? d->num_kv_heads : d->block_size;
  layout->shape[2] = hnd ? d->block_size : d->num_kv_heads;
  layout->shape[3] = row;
  layout->strides[0] = (int64_t)block;
  layout->strides[1] = layout->shape[2] * row;
  layout->strides[2] = row;
  layout->strides[3] = 1;
  layout->row_bytes = (uint64_t)row * element;
  if (attn_mul_overflow(block * element, (uint64_t)d->num_blocks, &layout->bytes) ||
      layout->bytes > (uint64_t)INT64_MAX) {
    return overflow(what, message);
  }
  return ATTN_OK;
}

/* Separate scales of K or V: compact, a scale where the pool has a row. */
static attn_status lay_out_scales(const attn_cache_desc *d, const attn_cache_layout *pool, const char *what,
                                  attn_cache_layout *layout, attn_message *message) {
  memset(layout, 0, sizeof *layout);
  layout->dtype = ATTN_DTYPE_FLOAT32;
  layout->ndim = 3;
  memcpy(layout->shape, pool->shape, 3 * sizeof layout->shape[0]);
  layout->strides[0] = (int64_t)d->block_size * d->num_kv_heads;
  layout->strides[1] = layout->shape[2];
  layout->strides[2] = 1;
  layout->row_bytes = sizeof(float);
  uint64_t block;
  if (attn_mul_overflow((uint64_t)layout->strides[0], sizeof(float), &block) ||
      attn_mul_overflow(block, (uint64_t)d->num_blocks, &layout->bytes) || layout->bytes > (uint64_t)INT64_MAX) {
    return overflow(what, message);
  }
  return ATTN_OK;
}

/* [blocks, heads = 1, offset, row] or [blocks, offset, heads = 1, row] without the axis of one head. */
static void drop_head_axis(attn_cache_layout *layout) {
  for (int32_t axis = 2; axis + 1 < layout->ndim; axis++) {
    layout->shape[axis] = layout->shape[axis + 1];
    layout->strides[axis] = layout->strides[axis + 1];
  }
  layout->ndim--;
  layout->shape[layout->ndim] = layout->strides[layout->ndim] = 0;
}

/* One of K and V with its separate scales, added to the sums. */
static attn_status describe_side(const attn_cache_desc *d, int is_v, attn_cache_info *info, attn_message *message) {
  const attn_format_facts *facts = attn_format_of(is_v ? d->v_format : d->k_format);
  attn_cache_layout *pool = is_v ? &info->v : &info->k;
  attn_cache_layout *scale = is_v ? &info->v_scale : &info->k_scale;
  int separate = facts->scale == ATTN_SCALE_ROW && attn_format_is_separate(d->separate_scales, is_v);
  int64_t row = d->kv_lora_rank > 0 ? attn_latent_extent(facts, d->kv_lora_rank, d->qk_rope_head_dim, separate)
                                    : attn_format_row_extent(facts, is_v ? d->v_head_size : d->head_size, separate);
  ATTN_TRY(lay_out(d, is_v ? "v" : "k", facts->format, row, is_v ? d->v_block_bytes : d->k_block_bytes, pool, message));
  if (separate) {
    ATTN_TRY(lay_out_scales(d, pool, is_v ? "v_scale" : "k_scale", scale, message));
  }
  if (attn_add_overflow(info->bytes, pool->bytes, &info->bytes) ||
      attn_add_overflow(info->bytes, scale->bytes, &info->bytes) || info->bytes > (uint64_t)INT64_MAX) {
    return overflow("k and v together", message);
  }
  uint64_t pool_block = (uint64_t)pool->strides[0] * attn_dtype_bytes(pool->dtype);
  uint64_t scale_block = (uint64_t)scale->strides[0] * sizeof(float);
  if (attn_add_overflow(info->bytes_per_block, pool_block, &info->bytes_per_block) ||
      attn_add_overflow(info->bytes_per_block, scale_block, &info->bytes_per_block)) {
    return overflow("a block of k and v together", message);
  }
  info->bytes_per_token += (double)(pool->row_bytes + scale->row_bytes) * (double)d->num_kv_heads;
  return ATTN_OK;
}

attn_status attn_cache_describe(const attn_cache_desc *desc, attn_cache_info *info, attn_message *message) {
  ATTN_CHECK_STRUCT(desc, "desc", attn_cache_desc, message);
  ATTN_CHECK_STRUCT(info, "info", attn_cache_info, message);
  attn_cache_desc d;
  attn_cache_info made = ATTN_CACHE_INFO_INIT;
  ATTN_TRY(resolve_desc(desc, &d, message));
  ATTN_TRY(describe_side(&d, 0, &made, message));
  if (d.kv_lora_rank > 0) {
    drop_head_axis(&made.k);
    if (made.k_scale.ndim > 0) {
      drop_head_axis(&made.k_scale);
    }
  } else {
    ATTN_TRY(describe_side(&d, 1, &made, message));
  }
  *info = made;
  return ATTN_OK;
}
