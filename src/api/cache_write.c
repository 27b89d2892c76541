/* SPDX-License-Identifier: Apache-2.0 */
/* cache_write.c: attn_cache_write() at the border. Lists are judged in full before a byte moves. */
#include <string.h>

#include "api/cache_write.h"
#include "api/rows_view.h"
#include "core/bit_window.h"
#include "core/fault.h"
#include "core/load.h"
#include "core/registry.h"
#include "core/resolve.h"

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* What K and V do not have. */
static attn_status refuse_latent(const attn_cache_write_args *args, attn_message *message) {
  const char *why = "kv_cache is not given";
  ATTN_TRY(attn_refuse_tensor(args->kv_c, "kv_c", why, message));
  ATTN_TRY(attn_refuse_tensor(args->k_pe, "k_pe", why, message));
  ATTN_TRY(attn_refuse_tensor(args->kv_scale, "kv_scale", why, message));
  if (args->rotary_dtype != ATTN_DTYPE_DEFAULT) {
    return attn_fail(message, ATTN_E_RANGE, "rotary_dtype: %s, accepted: 0 (%s)", attn_dtype_name(args->rotary_dtype),
                     why);
  }
  return ATTN_OK;
}

/* What latent rows do not have. */
static attn_status refuse_heads(const attn_cache_write_args *args, attn_message *message) {
  const char *why = "kv_cache is given";
  ATTN_TRY(attn_refuse_tensor(args->k, "k", why, message));
  ATTN_TRY(attn_refuse_tensor(args->v, "v", why, message));
  ATTN_TRY(attn_refuse_tensor(args->k_cache, "k_cache", why, message));
  ATTN_TRY(attn_refuse_tensor(args->v_cache, "v_cache", why, message));
  ATTN_TRY(attn_refuse_tensor(args->k_scale, "k_scale", why, message));
  ATTN_TRY(attn_refuse_tensor(args->v_scale, "v_scale", why, message));
  if (args->v_format != ATTN_FORMAT_AUTO || args->layout != ATTN_LAYOUT_NHD) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: 0 (%s)",
                     args->v_format != ATTN_FORMAT_AUTO ? "v_format" : "layout",
                     args->v_format != ATTN_FORMAT_AUTO ? (int)args->v_format : (int)args->layout, why);
  }
  return ATTN_OK;
}

/* [tokens, size] as [tokens, 1, size]. */
static attn_status view_part(attn_view *view, const DLTensor *tensor, const char *name, int64_t tokens,
                             attn_message *message) {
  int64_t shape[2] = {tokens, ATTN_ANY};
  ATTN_TRY(attn_view_make(view, tensor, name, ATTN_READ, ATTN_DTYPE_FLOATS, 2, shape, message));
  view->ndim = 3;
  view->shape[2] = view->shape[1];
  view->stride[2] = view->stride[1];
  view->shape[1] = 1;
  view->stride[1] = 0;
  return ATTN_OK;
}

static attn_status view_latent(const attn_cache_write_args *args, attn_write_view *view, attn_message *message) {
  ATTN_TRY(refuse_heads(args, message));
  ATTN_TRY(view_part(&view->k, args->kv_c, "kv_c", ATTN_ANY, message));
  ATTN_TRY(view_part(&view->k_pe, args->k_pe, "k_pe", view->k.shape[0], message));
  attn_view_place_empty(&view->k_pe, &view->k);
  attn_rows_given given = {.pool_name = "kv_cache",
                           .scale_name = "kv_scale",
                           .format_name = "k_format",
                           .pool = args->kv_cache,
                           .scale = args->kv_scale,
                           .format = args->k_format,
                           .access = ATTN_WRITE,
                           .num_blocks = ATTN_ANY,
                           .block_size = ATTN_ANY,
                           .size = view->k.shape[2],
                           .kind = ATTN_ROWS_LATENT,
                           .rotary = view->k_pe.shape[2],
                           .rotary_dtype = args->rotary_dtype};
  ATTN_TRY(attn_rows_view_make(&view->k_rows, &view->k_cache, &given, message));
  view->block_size = (int32_t)view->k_cache.shape[1];
  view->capacity = view->k_cache.shape[0] * view->k_cache.shape[1];
  return ATTN_OK;
}

/* One source against its pool: [tokens, heads, size] and [blocks, block_size, heads, row]. */
static attn_status view_pair(const DLTensor *source, const char *source_name, attn_rows_given given,
                             attn_view *source_view, attn_view *pool_view, attn_rows *rows, attn_message *message) {
  int64_t any[3] = {ATTN_ANY, ATTN_ANY, ATTN_ANY};
  const attn_format_facts *facts;
  ATTN_TRY(attn_rows_format(&given, &facts, message));
  ATTN_TRY(attn_view_make(source_view, source, source_name, ATTN_READ, ATTN_DTYPE_FLOATS, 3, any, message));
  given.access = ATTN_WRITE;
  given.num_blocks = given.block_size = ATTN_ANY;
  given.num_heads = source_view->shape[1];
  given.size = source_view->shape[2];
  return attn_rows_view_make(rows, pool_view, &given, message);
}

static attn_status view_pools(const attn_cache_write_args *args, attn_write_view *view, attn_message *message) {
  ATTN_TRY(refuse_latent(args, message));
  attn_rows_given k = {.pool_name = "k_cache",
                       .scale_name = "k_scale",
                       .format_name = "k_format",
                       .pool = args->k_cache,
                       .scale = args->k_scale,
                       .format = args->k_format,
                       .layout = args->layout};
  attn_rows_given v = {.pool_name = "v_cache",
                       .scale_name = "v_scale",
                       .format_name = "v_format",
                       .pool = args->v_cache,
                       .scale = args->v_scale,
                       .format = attn_rows_second_format(args->v_format, args->v_cache, args->k_format),
                       .layout = args->layout};
  ATTN_TRY(view_pair(args->k, "k", k, &view->k, &view->k_cache, &view->k_rows, message));
  ATTN_TRY(view_pair(args->v, "v", v, &view->v, &view->v_cache, &view->v_rows, message));
  if (view->v.shape[0] != view->k.shape[0] || view->v.shape[1] != view->k.shape[1]) {
    int axis = view->v.shape[0] != view->k.shape[0] ? 0 : 1;
    return attn_fail(message, ATTN_E_SHAPE, "v: axis %d has extent %lld, expected k's %lld", axis,
                     (long long)view->v.shape[axis], (long long)view->k.shape[axis]);
  }
  if (view->v_cache.shape[0] != view->k_cache.shape[0] || view->v_cache.shape[1] != view->k_cache.shape[1]) {
    return attn_fail(message, ATTN_E_SHAPE, "v_cache: %lld blocks of %lld, expected k_cache's %lld blocks of %lld",
                     (long long)view->v_cache.shape[0], (long long)view->v_cache.shape[1],
                     (long long)view->k_cache.shape[0], (long long)view->k_cache.shape[1]);
  }
  view->block_size = (int32_t)view->k_cache.shape[1];
  view->capacity = view->k_cache.shape[0] * view->k_cache.shape[1];
  return ATTN_OK;
}

static attn_status view_slots(const attn_cache_write_args *args, attn_write_view *view, attn_message *message) {
  int64_t any = ATTN_ANY;
  ATTN_TRY(attn_view_make(&view->slot_mapping, args->slot_mapping, "slot_mapping", ATTN_READ,
                          ATTN_DTYPE_BIT(ATTN_DTYPE_INT64), 1, &any, message));
  view->num_slots = view->slot_mapping.shape[0];
  if (view->num_slots > view->k.shape[0]) {
    return attn_fail(message, ATTN_E_SHAPE, "slot_mapping: %lld slots, expected at most the %lld rows of %s",
                     (long long)view->num_slots, (long long)view->k.shape[0], view->k_rows.latent ? "kv_c" : "k");
  }
  return ATTN_OK;
}

/* ---- rotary ------------------------------------------------------------------------------------------------------ */

static attn_status refuse_rotary(const attn_cache_write_args *args, attn_message *message) {
  const char *why = "rotary is 0";
  ATTN_TRY(attn_refuse_tensor(args->positions, "positions", why, message));
  ATTN_TRY(attn_refuse_tensor(args->rotary_cos, "rotary_cos", why, message));
  ATTN_TRY(attn_refuse_tensor(args->rotary_sin, "rotary_sin", why, message));
  ATTN_TRY(attn_refuse_tensor(args->q, "q", why, message));
  return attn_refuse_tensor(args->q_out, "q_out", why, message);
}

static attn_status at_least_slots(const attn_view *view, const char *name, int64_t num_slots, attn_message *message) {
  if (view->shape[0] < num_slots) {
    return attn_fail(message, ATTN_E_SHAPE, "%s: axis 0 has extent %lld, expected the %lld slots or more", name,
                     (long long)view->shape[0], (long long)num_slots);
  }
  return ATTN_OK;
}

static attn_status at_least_rotary(const attn_view *view, const char *name, const attn_write_view *write,
                                   attn_message *message) {
  if (view->shape[2] < write->rotary_dim) {
    return attn_fail(message, ATTN_E_SHAPE, "%s: axis 2 has extent %lld, expected rotary_dim (%d) or more", name,
                     (long long)view->shape[2], (int)write->rotary_dim);
  }
  return ATTN_OK;
}

static attn_status view_queries(const attn_cache_write_args *args, attn_write_view *view, attn_message *message) {
  if (args->q == NULL) {
    return attn_refuse_tensor(args->q_out, "q_out", "q is not given", message);
  }
  int64_t any[3] = {ATTN_ANY, ATTN_ANY, ATTN_ANY};
  ATTN_TRY(attn_view_make(&view->q, args->q, "q", ATTN_READ, ATTN_DTYPE_FLOATS, 3, any, message));
  ATTN_TRY(attn_view_make(&view->q_out, args->q_out, "q_out", ATTN_WRITE, ATTN_DTYPE_BIT(view->q.dtype), 3,
                          view->q.shape, message));
  ATTN_TRY(at_least_slots(&view->q, "q", view->num_slots, message));
  return at_least_rotary(&view->q, "q", view, message);
}

static attn_status view_rotary(const attn_cache_write_args *args, attn_write_view *view, attn_message *message) {
  if (args->rotary == ATTN_ROTARY_NONE) {
    return refuse_rotary(args, message);
  }
  if (args->rotary != ATTN_ROTARY_SPLIT_HALF && args->rotary != ATTN_ROTARY_INTERLEAVED) {
    return attn_fail(message, ATTN_E_RANGE, "rotary: %d, accepted: 0 (none), 1 (split half), 2 (interleaved)",
                     (int)args->rotary);
  }
  view->rotary = args->rotary;
  int64_t any[2] = {ATTN_ANY, ATTN_ANY};
  unsigned type = ATTN_DTYPE_BIT(ATTN_DTYPE_FLOAT32);
  ATTN_TRY(attn_view_make(&view->rotary_cos, args->rotary_cos, "rotary_cos", ATTN_READ, type, 2, any, message));
  ATTN_TRY(attn_view_make(&view->rotary_sin, args->rotary_sin, "rotary_sin", ATTN_READ, type, 2, view->rotary_cos.shape,
                          message));
  if (view->rotary_cos.shape[1] > ATTN_ROW_MAX / 2) {
    return attn_fail(message, ATTN_E_SHAPE, "rotary_cos: axis 1 has extent %lld, accepted: rotary_dim / 2, up to %d",
                     (long long)view->rotary_cos.shape[1], ATTN_ROW_MAX / 2);
  }
  view->rotary_dim = (int32_t)view->rotary_cos.shape[1] * 2;
  const attn_view *rotated = view->k_rows.latent ? &view->k_pe : &view->k;
  ATTN_TRY(at_least_rotary(rotated, view->k_rows.latent ? "k_pe" : "k", view, message));
  ATTN_TRY(attn_view_make(&view->positions, args->positions, "positions", ATTN_READ, ATTN_DTYPE_BIT(ATTN_DTYPE_INT64),
                          1, any, message));
  ATTN_TRY(at_least_slots(&view->positions, "positions", view->num_slots, message));
  return view_queries(args, view, message);
}

/* ---- overlaps ---------------------------------------------------------------------------------------------------- */

typedef struct named_view {
  attn_view view;
  const char *name;
} named_view;

/* Where the same memory is q and q_out, rows are rotated in place. */
static int is_in_place(const named_view *output, const named_view *input) {
  return strcmp(output->name, "q_out") == 0 && strcmp(input->name, "q") == 0 &&
         attn_view_same(&output->view, &input->view);
}

/* A static scale is read, a separate one written. */
static attn_status check_overlaps(const attn_write_view *view, attn_message *message) {
  const named_view none = {{0}, ""};
  int latent = view->k_rows.latent;
  named_view k_scale = {attn_rows_scale_tensor(&view->k_rows), latent ? "kv_scale" : "k_scale"};
  named_view v_scale = {attn_rows_scale_tensor(&view->v_rows), "v_scale"};
  const named_view outputs[] = {
      {view->k_cache, latent ? "kv_cache" : "k_cache"},
      {view->v_cache, "v_cache"},
      view->k_rows.separate ? k_scale : none,
      view->v_rows.separate ? v_scale : none,
      {view->q_out, "q_out"},
  };
  const named_view inputs[] = {
      {view->k, latent ? "kv_c" : "k"},
      {view->v, "v"},
      {view->k_pe, "k_pe"},
      {view->slot_mapping, "slot_mapping"},
      {view->positions, "positions"},
      {view->rotary_cos, "rotary_cos"},
      {view->rotary_sin, "rotary_sin"},
      {view->q, "q"},
      view->k_rows.separate ? none : k_scale,
      view->v_rows.separate ? none : v_scale,
  };
  const size_t num_outputs = sizeof outputs / sizeof outputs[0];
  for (size_t i = 0; i < num_outputs; i++) {
    for (size_t j = i + 1; j < num_outputs; j++) {
      ATTN_TRY(attn_refuse_overlap(&outputs[i].view, outputs[i].name, &outputs[j].view, outputs[j].name, message));
    }
    for (size_t j = 0; j < sizeof inputs / sizeof inputs[0]; j++) {
      if (!is_in_place(&outputs[i], &inputs[j])) {
        ATTN_TRY(attn_refuse_overlap(&outputs[i].view, outputs[i].name, &inputs[j].view, inputs[j].name, message));
      }
    }
  }
  return ATTN_OK;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

/* One slot, broadcast over the list: none where it is negative, else twice the same. Not walked: its extent costs no
   memory and may be anything. */
static attn_status settle_broadcast(attn_write_view *view, int32_t unchecked, attn_message *message) {
  if (view->num_slots <= 1 || view->slot_mapping.stride[0] != 0) {
    return ATTN_OK;
  }
  int64_t slot = attn_int64_at(&view->slot_mapping, 0);
  if (slot >= 0 && !unchecked) {
    return attn_fail(message, ATTN_E_INDEX, "slot_mapping[1]: %lld stands twice, accepted: different slots",
                     (long long)slot);
  }
  view->num_slots = slot < 0 ? 0 : 1;
  view->slot_mapping.shape[0] = view->num_slots;
  return ATTN_OK;
}

/* The least slot at or beyond `base`; INT64_MAX: none. */
static int64_t least_slot(const attn_view *slots, int64_t base) {
  int64_t least = INT64_MAX;
  for (int64_t i = 0; i < slots->shape[0]; i++) {
    int64_t slot = attn_int64_at(slots, i);
    least = slot >= base && slot < least ? slot : least;
  }
  return least;
}

/* Without memory that grows with the list: it is read once per window that holds any slot. */
static attn_status check_duplicates(const attn_view *slots, attn_message *message) {
  attn_bit_window seen;
  int64_t first = least_slot(slots, 0);
  while (first != INT64_MAX) {
    attn_window_start(&seen, first);
    for (int64_t i = 0; i < slots->shape[0]; i++) {
      int64_t slot = attn_int64_at(slots, i);
      if (attn_window_mark(&seen, slot)) {
        return attn_fail(message, ATTN_E_INDEX, "slot_mapping[%lld]: %lld stands twice, accepted: different slots",
                         (long long)i, (long long)slot);
      }
    }
    first = least_slot(slots, attn_window_end(first));
  }
  return ATTN_OK;
}

/* The rows of the tables that rows with a slot name. */
static attn_status check_positions(const attn_write_view *view, attn_message *message) {
  for (int64_t i = 0; i < view->num_slots && view->rotary != ATTN_ROTARY_NONE; i++) {
    int64_t position = attn_int64_at(&view->positions, i);
    int64_t end = view->rotary_cos.shape[0] + (attn_fault(ATTN_FAULT_POSITION_LIMIT) ? 1 : 0);
    if (attn_int64_at(&view->slot_mapping, i) >= 0 && (position < 0 || position >= end)) {
      return attn_fail(message, ATTN_E_INDEX, "positions[%lld]: %lld, accepted: 0 to %lld (rows of rotary_cos)",
                       (long long)i, (long long)position, (long long)end - 1);
    }
  }
  return ATTN_OK;
}

static attn_status check_slots(const attn_write_view *view, attn_message *message) {
  for (int64_t i = 0; i < view->num_slots; i++) {
    int64_t slot = attn_int64_at(&view->slot_mapping, i);
    if (slot >= view->capacity + (attn_fault(ATTN_FAULT_SLOT_LIMIT) ? 1 : 0)) {
      return attn_fail(message, ATTN_E_INDEX,
                       "slot_mapping[%lld]: %lld, accepted: below %lld (blocks * block size), or "
                       "negative for none",
                       (long long)i, (long long)slot, (long long)view->capacity);
    }
  }
  ATTN_TRY(check_positions(view, message));
  if (attn_fault(ATTN_FAULT_DUPLICATE_SLOT)) {
    return ATTN_OK;
  }
  return check_duplicates(&view->slot_mapping, message);
}

attn_status attn_cache_write_view(const attn_cache_write_args *args, attn_write_view *view, attn_message *message) {
  memset(view, 0, sizeof *view);
  ATTN_TRY(attn_check_move_switches(args->unchecked, args->layout, message));
  if (args->kv_cache != NULL) {
    ATTN_TRY(view_latent(args, view, message));
  } else {
    ATTN_TRY(view_pools(args, view, message));
  }
  ATTN_TRY(view_slots(args, view, message));
  ATTN_TRY(view_rotary(args, view, message));
  ATTN_TRY(check_overlaps(view, message));
  ATTN_TRY(settle_broadcast(view, args->unchecked, message));
  return args->unchecked ? ATTN_OK : check_slots(view, message);
}

attn_status attn_cache_write(attn_context *context, const attn_cache_write_args *args, attn_message *message) {
  ATTN_CHECK_POINTER(context, "context", message);
  ATTN_CHECK_STRUCT(args, "args", attn_cache_write_args, message);
  attn_write_view view;
  const attn_backend *backend;
  ATTN_TRY(attn_registry_select_call(context, args->backend, &backend, message));
  ATTN_TRY(attn_cache_write_view(args, &view, message));
  return backend->cache_write(context, &view, message);
}
