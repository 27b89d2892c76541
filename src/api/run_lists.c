/* SPDX-License-Identifier: Apache-2.0 */
/* run_lists.c: see run_lists.h. Block ids are judged by column: a good id costs one comparison; a bad one is an error
   only if some row sees a position of its block, which the mask's hull answers quickly for columns outside. */
#include "api/run_lists.h"

#include <math.h>

#include "core/fault.h"
#include "core/load.h"
#include "core/mask.h"

static attn_status check_values(const attn_view *list, const char *name, int minus_infinity_is_none,
                                attn_message *message) {
  for (int64_t i = 0; list->ndim > 0 && i < list->shape[0]; i++) {
    float value = attn_float_at(list, i);
    if (isfinite(value) || (minus_infinity_is_none && value < 0 && isinf(value))) {
      continue;
    }
    return attn_fail(message, ATTN_E_RANGE, "%s[%lld]: %g, accepted: finite values%s", name, (long long)i,
                     (double)value, minus_infinity_is_none ? ", or -inf for none" : "");
  }
  return ATTN_OK;
}

static attn_status check_output_scale(const attn_view *list, attn_message *message) {
  for (int64_t i = 0; list->ndim > 0 && i < list->shape[0]; i++) {
    float value = attn_float_at(list, i);
    if ((value > 0.0f && isfinite(value)) || attn_fault(ATTN_FAULT_OUTPUT_SCALE)) {
      continue;
    }
    return attn_fail(message, ATTN_E_RANGE, "output_scale[%lld]: %g, accepted: finite and above 0", (long long)i,
                     (double)value);
  }
  return ATTN_OK;
}

static attn_status check_flags(const attn_view *list, attn_message *message) {
  for (int64_t i = 0; list->ndim > 0 && i < list->shape[0]; i++) {
    int32_t value = attn_int32_at(list, i);
    if (value != 0 && value != 1) {
      return attn_fail(message, ATTN_E_INDEX, "causal_per_seq[%lld]: %d, accepted: 0 or 1", (long long)i, (int)value);
    }
  }
  return ATTN_OK;
}

static attn_status check_ranges(const attn_view *ranges, attn_message *message) {
  for (int64_t s = 0; ranges->ndim > 0 && s < ranges->shape[0]; s++) {
    for (int64_t i = 0; i < ranges->shape[1]; i++) {
      const unsigned char *range = ranges->data + s * ranges->stride[0] + i * ranges->stride[1];
      int32_t begin = attn_load_int32(range);
      int32_t end = attn_load_int32(range + ranges->stride[2]);
      if (begin > end && !attn_fault(ATTN_FAULT_RANGE_REVERSED)) {
        return attn_fail(message, ATTN_E_INDEX,
                         "prefix_ranges[%lld][%lld]: [%d, %d) is reversed, accepted: begin <= end", (long long)s,
                         (long long)i, (int)begin, (int)end);
      }
    }
  }
  return ATTN_OK;
}

/* 1 when the caller's bias hides the key from every head of the row. */
static int hidden_by_bias(const attn_run_view *view, int64_t token, int64_t key) {
  if (!view->problem->has_bias) {
    return 0;
  }
  for (int64_t h = 0; h < view->bias.shape[1]; h++) {
    float value = attn_load_float(view->bias.data + token * view->bias.stride[0] + h * view->bias.stride[1] +
                                  key * view->bias.stride[2]);
    if (!(isinf(value) && value < 0)) {
      return 0;
    }
  }
  return 1;
}

/* 1 when some row of the sequence sees some of the keys [begin, end). */
static int some_row_sees(const attn_run_view *view, const attn_mask *mask, int32_t seq, int64_t begin, int64_t end) {
  int64_t first_token = view->step->query_start_loc[seq];
  int64_t q_len = view->step->query_start_loc[seq + 1] - first_token;
  for (int64_t i = 0; i < q_len; i++) {
    int64_t q = mask->kv_len - q_len + i;
    for (int64_t k = begin; k < end; k++) {
      if (attn_mask_sees(mask, q, k) && !hidden_by_bias(view, first_token + i, k)) {
        return 1;
      }
    }
  }
  return 0;
}

static attn_status check_table_row(const attn_run_view *view, int32_t seq, attn_message *message) {
  attn_mask mask = attn_mask_of(view, seq);
  int64_t block_size = view->problem->block_size;
  int64_t cached = attn_cached_keys(view, seq);
  int64_t columns = attn_ceil_div(cached, block_size);
  if (columns > view->block_table.shape[1]) {
    return attn_fail(message, ATTN_E_INDEX, "seq_lens[%d]: %lld keys, the block_table's %lld columns of %lld hold %lld",
                     (int)seq, (long long)cached, (long long)view->block_table.shape[1], (long long)block_size,
                     (long long)(view->block_table.shape[1] * block_size));
  }
  int64_t q_len = view->step->query_start_loc[seq + 1] - view->step->query_start_loc[seq];
  attn_interval hull = attn_mask_hull(&mask, mask.kv_len - q_len, mask.kv_len);
  hull.end = attn_min(hull.end, cached);
  if (hull.end <= hull.begin) {
    return ATTN_OK;
  }
  const unsigned char *row = view->block_table.data + seq * view->block_table.stride[0];
  for (int64_t c = hull.begin / block_size; c < attn_ceil_div(hull.end, block_size); c++) {
    int32_t id = attn_load_int32(row + c * view->block_table.stride[1]);
    if (id >= 0 && id < view->k_cache.shape[0] + (attn_fault(ATTN_FAULT_TABLE_ID) ? 1 : 0)) {
      continue;
    }
    int64_t begin = attn_max(hull.begin, c * block_size);
    int64_t end = attn_min(hull.end, (c + 1) * block_size);
    if (some_row_sees(view, &mask, seq, begin, end)) {
      return attn_fail(message, ATTN_E_INDEX, "block_table[%d][%lld]: %d, accepted: 0 to %lld (blocks of the pool)",
                       (int)seq, (long long)c, (int)id, (long long)view->k_cache.shape[0] - 1);
    }
  }
  return ATTN_OK;
}

attn_status attn_run_check_lists(const attn_run_view *view, attn_message *message) {
  ATTN_TRY(check_values(&view->alibi_slopes, "alibi_slopes", 0, message));
  ATTN_TRY(check_values(&view->sinks, "sinks", 1, message));
  ATTN_TRY(check_output_scale(&view->output_scale, message));
  ATTN_TRY(check_flags(&view->causal_per_seq, message));
  ATTN_TRY(check_ranges(&view->prefix_ranges, message));
  if (view->problem->kv_source != ATTN_KV_CACHE || view->unchecked) {
    return ATTN_OK;
  }
  for (int32_t s = 0; s < view->step->num_seqs; s++) {
    ATTN_TRY(check_table_row(view, s, message));
  }
  return ATTN_OK;
}
