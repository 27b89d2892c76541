/* SPDX-License-Identifier: Apache-2.0 */
/* mask.c: see mask.h. */
#include "core/mask.h"

#include <string.h>

#include "core/fault.h"
#include "core/load.h"

attn_mask attn_mask_of(const attn_run_view *view, int32_t seq) {
  const attn_problem *p = view->problem;
  attn_mask mask;
  memset(&mask, 0, sizeof mask);
  mask.kv_len = view->step->kv_lens[seq];
  mask.window_left = p->window_left;
  mask.window_right = p->window_right;
  mask.chunk_size = p->chunk_size;
  mask.chunk_lookback = p->chunk_lookback;
  mask.causal = p->causal;
  mask.prefix_clamp = p->prefix_clamp;
  mask.has_room = view->k_cache.ndim > 0 && p->block_size > 0 && mask.kv_len % p->block_size != 0;
  if (attn_fault(ATTN_FAULT_TAIL_DROPPED) && mask.kv_len % 2 == 1) {
    mask.kv_len--;
  }
  if (attn_fault(ATTN_FAULT_CHUNK_LOOKBACK)) {
    mask.chunk_lookback = 0;
  }
  if (attn_fault(ATTN_FAULT_PREFIX_CLAMP)) {
    mask.prefix_clamp = 0;
  }
  if (p->has_causal_per_seq && !attn_fault(ATTN_FAULT_CAUSAL_FLAG)) {
    mask.causal = attn_int32_at(&view->causal_per_seq, seq);
  }
  if (p->has_prefix_ranges && view->prefix_ranges.shape[1] > 0) {
    mask.num_ranges = view->prefix_ranges.shape[1];
    mask.ranges = view->prefix_ranges.data + seq * view->prefix_ranges.stride[0];
    mask.range_stride = view->prefix_ranges.stride[1];
    mask.bound_stride = view->prefix_ranges.stride[2];
  }
  return mask;
}

/* What the planted faults add to a window's bound. */
static int64_t left_error(const attn_mask *mask) {
  return (attn_fault(ATTN_FAULT_WINDOW_LEFT_PLUS) ? 1 : 0) -
         (attn_fault(ATTN_FAULT_WINDOW_LEFT_MINUS) && mask->window_left >= 1 ? 1 : 0);
}

static int64_t right_error(const attn_mask *mask) {
  return (attn_fault(ATTN_FAULT_WINDOW_RIGHT_PLUS) ? 1 : 0) -
         (attn_fault(ATTN_FAULT_WINDOW_RIGHT_MINUS) && mask->window_right >= 1 ? 1 : 0);
}

static attn_interval clip_window(const attn_mask *mask, int64_t q, attn_interval keys) {
  if (mask->window_left >= 0) {
    keys.begin = attn_max(keys.begin, q - mask->window_left - left_error(mask));
  }
  if (mask->window_right >= 0) {
    keys.end = attn_min(keys.end, q + mask->window_right + 1 + right_error(mask));
  }
  return keys;
}

attn_interval attn_mask_base(const attn_mask *mask, int64_t q) {
  attn_interval keys = {0, mask->kv_len};
  if (mask->causal) {
    keys.end = attn_min(keys.end, q + 1 + (attn_fault(ATTN_FAULT_CAUSAL_PLUS) ? 1 : 0));
  } else if (attn_fault(ATTN_FAULT_TAIL_EXTRA) && mask->has_room) {
    keys.end++;
  }
  keys = clip_window(mask, q, keys);
  if (mask->chunk_size > 0) {
    int64_t chunk = attn_fault(ATTN_FAULT_CHUNK_TRUNCATE) ? q / mask->chunk_size : attn_floor_div(q, mask->chunk_size);
    keys.begin = attn_max(keys.begin, (chunk - mask->chunk_lookback) * mask->chunk_size);
    keys.end = attn_min(keys.end, (chunk + 1) * mask->chunk_size);
  }
  return keys;
}

static attn_interval range_at(const attn_mask *mask, int64_t i) {
  const unsigned char *range = mask->ranges + i * mask->range_stride;
  attn_interval r = {attn_load_int32(range), attn_load_int32(range + mask->bound_stride)};
  return r;
}

attn_interval attn_mask_prefix(const attn_mask *mask, int64_t i, int64_t q) {
  attn_interval range = range_at(mask, i);
  attn_interval none = {0, 0};
  if (attn_fault(ATTN_FAULT_PREFIX_END) && range.end > range.begin) {
    range.end++;
  }
  if ((q < range.begin || q >= range.end) && !attn_fault(ATTN_FAULT_PREFIX_QUERY)) {
    return none;
  }
  range.begin = attn_max(range.begin, 0);
  range.end = attn_min(range.end, mask->kv_len);
  return mask->prefix_clamp ? clip_window(mask, q, range) : range;
}

static attn_interval unite(attn_interval a, attn_interval b) {
  if (b.end <= b.begin) {
    return a;
  }
  if (a.end <= a.begin) {
    return b;
  }
  attn_interval both = {attn_min(a.begin, b.begin), attn_max(a.end, b.end)};
  return both;
}

attn_interval attn_mask_hull(const attn_mask *mask, int64_t q_begin, int64_t q_end) {
  attn_interval hull = {0, 0};
  if (q_end <= q_begin) {
    return hull;
  }
  /* both ends of the base interval rise with q, so the first and the last row bound it; rows whose interval is empty
     can only widen the hull */
  attn_interval first = attn_mask_base(mask, q_begin);
  attn_interval last = attn_mask_base(mask, q_end - 1);
  hull.begin = first.begin;
  hull.end = last.end;
  for (int64_t i = 0; i < mask->num_ranges; i++) {
    attn_interval range = range_at(mask, i);
    if ((range.begin < q_end && range.end > q_begin) || attn_fault(ATTN_FAULT_PREFIX_QUERY) ||
        attn_fault(ATTN_FAULT_PREFIX_END)) {
      attn_interval keys = {attn_max(range.begin, 0), attn_min(range.end, mask->kv_len)};
      hull = unite(hull, keys);
    }
  }
  return hull;
}

int attn_mask_sees(const attn_mask *mask, int64_t q, int64_t k) {
  attn_interval keys = attn_mask_base(mask, q);
  if (k >= keys.begin && k < keys.end) {
    return 1;
  }
  for (int64_t i = 0; i < mask->num_ranges; i++) {
    keys = attn_mask_prefix(mask, i, q);
    if (k >= keys.begin && k < keys.end) {
      return 1;
    }
  }
  return 0;
}
