/* SPDX-License-Identifier: Apache-2.0 */
/* rows_view.h: a quantised or float pool at the border: its format, its rows and its scales against each other. */
#ifndef ATTN_API_ROWS_VIEW_H
#define ATTN_API_ROWS_VIEW_H

#include "api/pool_view.h"
#include "core/format.h"

/* One pool as a call was given it. Extents may be ATTN_ANY. */
typedef struct attn_rows_given {
  const char *pool_name; /* of fields, in messages */
  const char *scale_name;
  const char *format_name;
  const DLTensor *pool;
  const DLTensor *scale;
  attn_format format; /* AUTO: the pool's element type tells */
  attn_layout layout;
  attn_access access;
  int64_t num_blocks;
  int64_t block_size;
  int64_t num_heads;
  int64_t size;            /* elements of a row; ATTN_ANY: the pool's, which a ATTN_SCALE_ROW format does not tell */
  attn_row_kind kind;      /* 0: ATTN_ROWS_KV. Latent: `size` is kv_lora_rank, num_heads 1, layout NHD */
  int64_t rotary;          /* latent: qk_rope_head_dim */
  attn_dtype rotary_dtype; /* latent: as in attn_cache_desc */
} attn_rows_given;

/* The format of a pool: as given, or by the tensor's element type. Refuses what does not store such rows, and bytes
   without a format. */
attn_status attn_rows_format(const attn_rows_given *given, const attn_format_facts **facts, attn_message *message);

/* V's format where both of K and V were given one: AUTO over bytes is K's, if K's is stored in bytes. */
attn_format attn_rows_second_format(attn_format v_format, const DLTensor *v_cache, attn_format k_format);

/* *view: the pool, axes [block, offset, head, element], of latent rows one head; *rows: what its rows are. A scale
   tensor given makes the scales of ATTN_SCALE_ROW separate. Scales that are written (a pool of ATTN_WRITE) are checked
   as outputs. */
attn_status attn_rows_view_make(attn_rows *rows, attn_view *view, const attn_rows_given *given, attn_message *message);

/* Each entry of a list of scales is finite and above 0; a broadcast is looked at once. */
attn_status attn_check_positive(const attn_view *scale, const char *name, attn_message *message);

/* The scale tensor as something of its own to hold against others: ndim 0 where there is none, or it is inline. */
attn_view attn_rows_scale_tensor(const attn_rows *rows);

#endif
