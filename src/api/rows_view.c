/* SPDX-License-Identifier: Apache-2.0 */
/* rows_view.c: see rows_view.h. */
#include "api/rows_view.h"

#include <math.h>
#include <string.h>

#include "core/load.h"
#include "core/resolve.h"

#define FLOAT32_ONLY ATTN_DTYPE_BIT(ATTN_DTYPE_FLOAT32)

attn_status attn_rows_format(const attn_rows_given *given, const attn_format_facts **facts, attn_message *message) {
  attn_format format = given->format;
  if (format == ATTN_FORMAT_AUTO) {
    if (given->pool == NULL) {
      return attn_fail(message, ATTN_E_NULL, "%s: NULL, expected a tensor", given->pool_name);
    }
    attn_dtype dtype = attn_dtype_from_dlpack(given->pool->dtype);
    format = attn_format_of_dtype(dtype);
    if (format == ATTN_FORMAT_AUTO) {
      return attn_fail(message, ATTN_E_DTYPE, "%s: element type %s with %s auto, accepted: %s", given->pool_name,
                       attn_dtype_name(dtype), given->format_name,
                       dtype == ATTN_DTYPE_UINT8 ? "a format that is stored in bytes, given by name"
                                                 : "float32, float16, bfloat16, fp8_e4m3, fp8_e5m2");
    }
  }
  *facts = attn_format_of(format);
  if (*facts == NULL) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: a value of attn_format", given->format_name,
                     (int)format);
  }
  attn_row_kind kind = given->kind == ATTN_ROWS_LATENT ? ATTN_ROWS_LATENT : ATTN_ROWS_KV;
  if (!attn_format_serves(format, kind)) {
    char names[ATTN_FORMAT_NAMES_BYTES];
    return attn_fail(message, ATTN_E_UNSUPPORTED, "%s: %s does not store %s; accepted: auto, %s", given->format_name,
                     attn_format_name(format), attn_row_kind_words(kind), attn_format_names(kind, names));
  }
  return ATTN_OK;
}

attn_format attn_rows_second_format(attn_format v_format, const DLTensor *v_cache, attn_format k_format) {
  const attn_format_facts *facts = attn_format_of(k_format);
  int is_bytes = v_cache != NULL && attn_dtype_from_dlpack(v_cache->dtype) == ATTN_DTYPE_UINT8;
  int follows = v_format == ATTN_FORMAT_AUTO && is_bytes && facts != NULL &&
                (facts->dtypes & ATTN_DTYPE_BIT(ATTN_DTYPE_UINT8)) != 0;
  return follows ? k_format : v_format;
}

attn_status attn_check_positive(const attn_view *scale, const char *name, attn_message *message) {
  int64_t count = scale->stride[0] == 0 ? attn_min(scale->shape[0], 1) : scale->shape[0];
  for (int64_t i = 0; i < count; i++) {
    float value = attn_float_at(scale, i);
    if (!isfinite(value) || !(value > 0.0f)) {
      return attn_fail(message, ATTN_E_RANGE, "%s[%lld]: %g, accepted: finite and above 0", name, (long long)i,
                       (double)value);
    }
  }
  return ATTN_OK;
}

static attn_status view_static(attn_rows *rows, const attn_rows_given *given, int64_t heads, attn_message *message) {
  if (given->scale == NULL) {
    return ATTN_OK;
  }
  int64_t any = ATTN_ANY;
  ATTN_TRY(attn_view_make(&rows->scale, given->scale, given->scale_name, ATTN_READ, FLOAT32_ONLY, 1, &any, message));
  if (rows->scale.shape[0] != 1 && rows->latent) {
    return attn_fail(message, ATTN_E_SHAPE, "%s: axis 0 has extent %lld, expected 1", given->scale_name,
                     (long long)rows->scale.shape[0]);
  }
  if (rows->scale.shape[0] != 1 && rows->scale.shape[0] != heads) {
    return attn_fail(message, ATTN_E_SHAPE, "%s: axis 0 has extent %lld, expected 1 or num_kv_heads (%lld)",
                     given->scale_name, (long long)rows->scale.shape[0], (long long)heads);
  }
  if (rows->scale.shape[0] == 1) {
    rows->scale.stride[0] = 0;
  }
  ATTN_TRY(attn_check_positive(&rows->scale, given->scale_name, message));
  rows->scale.shape[0] = heads;
  return ATTN_OK;
}

/* [blocks, offset, head] of float32 by layout, as [blocks, offset, head, 4] bytes. */
static attn_status view_separate(attn_rows *rows, const attn_view *pool, const attn_rows_given *given,
                                 attn_message *message) {
  int hnd = given->layout == ATTN_LAYOUT_HND;
  int64_t shape[3] = {pool->shape[0], pool->shape[hnd ? 2 : 1], pool->shape[hnd ? 1 : 2]};
  attn_view *scale = &rows->scale;
  ATTN_TRY(attn_view_make(scale, given->scale, given->scale_name, given->access, FLOAT32_ONLY, 3, shape, message));
  if (hnd) {
    int64_t stride = scale->stride[1];
    scale->stride[1] = scale->stride[2];
    scale->stride[2] = stride;
    scale->shape[1] = shape[2];
    scale->shape[2] = shape[1];
  }
  scale->dtype = ATTN_DTYPE_UINT8;
  scale->ndim = 4;
  scale->shape[3] = 4;
  scale->stride[3] = 1;
  rows->separate = 1;
  return ATTN_OK;
}

/* [blocks, offset] of float32, as [blocks, offset, 1, 4] bytes. */
static attn_status view_latent_separate(attn_rows *rows, const attn_view *pool, const attn_rows_given *given,
                                        attn_message *message) {
  int64_t shape[2] = {pool->shape[0], pool->shape[1]};
  attn_view *scale = &rows->scale;
  ATTN_TRY(attn_view_make(scale, given->scale, given->scale_name, given->access, FLOAT32_ONLY, 2, shape, message));
  scale->dtype = ATTN_DTYPE_UINT8;
  scale->ndim = 4;
  scale->shape[2] = 1;
  scale->stride[2] = 0;
  scale->shape[3] = 4;
  scale->stride[3] = 1;
  rows->separate = 1;
  return ATTN_OK;
}

static void view_inline(attn_rows *rows, const attn_view *pool) {
  rows->scale = *pool;
  rows->scale.shape[3] = 4;
  if (pool->data != NULL) {
    int64_t at = rows->latent ? attn_latent_scale_at(rows->facts, rows->size, rows->rotary)
                              : attn_format_scale_offset(rows->facts, rows->size);
    rows->scale.data += at * pool->stride[3];
  }
}

static attn_status view_scale(attn_rows *rows, const attn_view *pool, const attn_rows_given *given,
                              attn_message *message) {
  switch (rows->facts->scale) {
  case ATTN_SCALE_STATIC:
    return view_static(rows, given, pool->shape[2], message);
  case ATTN_SCALE_ROW:
    if (given->scale != NULL) {
      return rows->latent ? view_latent_separate(rows, pool, given, message)
                          : view_separate(rows, pool, given, message);
    }
    view_inline(rows, pool);
    return ATTN_OK;
  default:
    return attn_refuse_tensor(given->scale, given->scale_name,
                              rows->facts->scale == ATTN_SCALE_TILE ? "rows of fp8_ds_mla hold their scales"
                                                                    : "float formats have no scales",
                              message);
  }
}

/* A latent pool of three axes, as one of four with one head. */
static attn_status view_latent(attn_rows *rows, attn_view *view, const attn_rows_given *given, attn_message *message) {
  attn_rows made;
  memset(&made, 0, sizeof made);
  ATTN_TRY(attn_rows_format(given, &made.facts, message));
  ATTN_TRY(attn_latent_rows_check("", made.facts->format, (int32_t)attn_min(given->size, INT32_MAX),
                                  (int32_t)attn_min(given->rotary, INT32_MAX), given->rotary_dtype, message));
  int64_t extents[3] = {given->num_blocks, given->block_size,
                        attn_latent_extent(made.facts, given->size, given->rotary, given->scale != NULL)};
  attn_status status =
      attn_view_make(view, given->pool, given->pool_name, given->access, made.facts->dtypes, 3, extents, message);
  if (status == ATTN_E_SHAPE) {
    attn_append(message, " (%s, latent rows of %lld + %lld elements%s)", attn_format_name(made.facts->format),
                (long long)given->size, (long long)given->rotary,
                made.facts->scale != ATTN_SCALE_ROW ? ""
                : given->scale != NULL              ? ", scales separate"
                                                    : ", scales inline");
  }
  ATTN_TRY(status);
  view->ndim = 4;
  view->shape[3] = view->shape[2];
  view->stride[3] = view->stride[2];
  view->shape[2] = 1;
  view->stride[2] = 0;
  ATTN_TRY(attn_pool_extents_check(view, given->pool_name, message));
  made.latent = 1;
  made.size = given->size;
  made.rotary = given->rotary;
  made.rotary_dtype = attn_format_is_mixed(made.facts) ? given->rotary_dtype : view->dtype;
  ATTN_TRY(view_scale(&made, view, given, message));
  *rows = made;
  return ATTN_OK;
}

attn_status attn_rows_view_make(attn_rows *rows, attn_view *view, const attn_rows_given *given, attn_message *message) {
  if (given->kind == ATTN_ROWS_LATENT) {
    return view_latent(rows, view, given, message);
  }
  attn_rows made;
  memset(&made, 0, sizeof made);
  ATTN_TRY(attn_rows_format(given, &made.facts, message));
  if (made.facts->scale == ATTN_SCALE_ROW && given->size > ATTN_ROW_MAX) {
    return attn_fail(message, ATTN_E_SHAPE, "%s: rows of %lld elements, accepted: up to %d in %s", given->pool_name,
                     (long long)given->size, ATTN_ROW_MAX, attn_format_name(made.facts->format));
  }
  int64_t row =
      given->size == ATTN_ANY ? ATTN_ANY : attn_format_row_extent(made.facts, given->size, given->scale != NULL);
  attn_pool_shape shape = {given->layout,     made.facts->dtypes, given->num_blocks,
                           given->block_size, given->num_heads,   row};
  attn_status status = attn_pool_view_make(view, given->pool, given->pool_name, given->access, &shape, message);
  if (status == ATTN_E_SHAPE && made.facts->scale == ATTN_SCALE_ROW) {
    attn_append(message, " (%s, %lld elements, scales %s)", attn_format_name(made.facts->format),
                (long long)given->size, given->scale != NULL ? "separate" : "inline");
  }
  ATTN_TRY(status);
  made.size = given->size == ATTN_ANY ? view->shape[3] : given->size;
  ATTN_TRY(view_scale(&made, view, given, message));
  *rows = made;
  return ATTN_OK;
}

attn_view attn_rows_scale_tensor(const attn_rows *rows) {
  attn_view none;
  memset(&none, 0, sizeof none);
  int is_own = rows->facts != NULL && (rows->facts->scale == ATTN_SCALE_STATIC || rows->separate);
  return is_own ? rows->scale : none;
}
