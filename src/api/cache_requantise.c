/* SPDX-License-Identifier: Apache-2.0 */
/* cache_requantise.c: attn_cache_requantise() at the border. The map is judged in full before a byte is written. */
#include <string.h>

#include "api/block_map.h"
#include "api/rows_view.h"
#include "core/registry.h"
#include "core/resolve.h"

static attn_status check_layout(attn_layout layout, const char *name, attn_message *message) {
  if (layout != ATTN_LAYOUT_NHD && layout != ATTN_LAYOUT_HND) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: 0 (NHD) or 1 (HND)", name, (int)layout);
  }
  return ATTN_OK;
}

/* Elements of a row: said by the caller, or by the last axis of a pool whose format has no scale per row. */
static attn_status size_of_rows(const attn_cache_requantise_args *args, const attn_format_facts *source,
                                const attn_format_facts *target, int64_t *size, attn_message *message) {
  if (args->head_size < 0) {
    return attn_fail(message, ATTN_E_RANGE, "head_size: %d, accepted: 0 or more", (int)args->head_size);
  }
  *size = args->head_size;
  if (*size > 0) {
    return ATTN_OK;
  }
  const DLTensor *typed = source->scale != ATTN_SCALE_ROW   ? args->source
                          : target->scale != ATTN_SCALE_ROW ? args->target
                                                            : NULL;
  if (typed == NULL) {
    return attn_fail(message, ATTN_E_RANGE, "head_size: 0, accepted: 1 to %d, since neither %s nor %s rows tell it",
                     ATTN_ROW_MAX, attn_format_name(source->format), attn_format_name(target->format));
  }
  /* a tensor that is none is told by its view */
  *size = typed->ndim == 4 && typed->shape != NULL && typed->shape[3] >= 0 ? typed->shape[3] : ATTN_ANY;
  return ATTN_OK;
}

static attn_status refuse_latent_fields(const attn_cache_requantise_args *args, attn_message *message) {
  const struct {
    const char *name;
    int32_t value;
  } fields[] = {{"qk_rope_head_dim", args->qk_rope_head_dim},
                {"source_rotary_dtype", (int32_t)args->source_rotary_dtype},
                {"target_rotary_dtype", (int32_t)args->target_rotary_dtype}};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    if (fields[i].value != 0) {
      return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: 0 (kv_lora_rank is 0)", fields[i].name,
                       (int)fields[i].value);
    }
  }
  return ATTN_OK;
}

static attn_status check_latent_fields(const attn_cache_requantise_args *args, attn_message *message) {
  if (args->kv_lora_rank < 1) {
    return attn_fail(message, ATTN_E_RANGE, "kv_lora_rank: %d, accepted: 0 (K or V) or more", (int)args->kv_lora_rank);
  }
  if (args->head_size != 0) {
    return attn_fail(message, ATTN_E_RANGE, "head_size: %d, accepted: 0 with kv_lora_rank", (int)args->head_size);
  }
  if (args->source_layout != ATTN_LAYOUT_NHD || args->target_layout != ATTN_LAYOUT_NHD) {
    return attn_fail(message, ATTN_E_RANGE, "%s: 1, accepted: 0 (latent rows have no heads)",
                     args->source_layout != ATTN_LAYOUT_NHD ? "source_layout" : "target_layout");
  }
  return ATTN_OK;
}

static attn_status view_pools(const attn_cache_requantise_args *args, attn_requantise_view *view,
                              attn_message *message) {
  attn_rows_given source = {.pool_name = "source",
                            .scale_name = "source_scale",
                            .format_name = "source_format",
                            .pool = args->source,
                            .scale = args->source_scale,
                            .format = args->source_format,
                            .layout = args->source_layout,
                            .access = ATTN_READ,
                            .num_blocks = ATTN_ANY,
                            .block_size = ATTN_ANY,
                            .num_heads = ATTN_ANY};
  attn_rows_given target = {.pool_name = "target",
                            .scale_name = "target_scale",
                            .format_name = "target_format",
                            .pool = args->target,
                            .scale = args->target_scale,
                            .format = args->target_format,
                            .layout = args->target_layout,
                            .access = ATTN_WRITE,
                            .num_blocks = ATTN_ANY};
  const attn_format_facts *source_facts;
  const attn_format_facts *target_facts;
  int latent = args->kv_lora_rank != 0;
  if (latent) {
    ATTN_TRY(check_latent_fields(args, message));
    source.kind = target.kind = ATTN_ROWS_LATENT;
    source.rotary = target.rotary = args->qk_rope_head_dim;
    source.rotary_dtype = args->source_rotary_dtype;
    target.rotary_dtype = args->target_rotary_dtype;
  } else {
    ATTN_TRY(refuse_latent_fields(args, message));
  }
  ATTN_TRY(attn_rows_format(&source, &source_facts, message));
  ATTN_TRY(attn_rows_format(&target, &target_facts, message));
  if (args->source == NULL || args->target == NULL) {
    return attn_fail(message, ATTN_E_NULL, "%s: NULL, expected a tensor", args->source == NULL ? "source" : "target");
  }
  source.size = args->kv_lora_rank;
  if (!latent) {
    ATTN_TRY(size_of_rows(args, source_facts, target_facts, &source.size, message));
  }
  ATTN_TRY(attn_rows_view_make(&view->source_rows, &view->map.source, &source, message));
  target.size = view->source_rows.size;
  target.block_size = view->map.source.shape[1];
  target.num_heads = view->map.source.shape[2];
  return attn_rows_view_make(&view->target_rows, &view->map.target, &target, message);
}

static attn_status check_overlaps(const attn_requantise_view *view, attn_message *message) {
  attn_view source_scale = attn_rows_scale_tensor(&view->source_rows);
  attn_view target_scale = attn_rows_scale_tensor(&view->target_rows);
  const struct {
    const attn_view *view;
    const char *name;
  } inputs[] = {
      {&view->map.source, "source"},
      {&source_scale, "source_scale"},
      {&view->map.block_map, "block_map"},
  };
  ATTN_TRY(attn_refuse_overlap(&view->map.target, "target", &target_scale, "target_scale", message));
  for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
    ATTN_TRY(attn_refuse_overlap(&view->map.target, "target", inputs[i].view, inputs[i].name, message));
    if (view->target_rows.separate) {
      ATTN_TRY(attn_refuse_overlap(&target_scale, "target_scale", inputs[i].view, inputs[i].name, message));
    }
  }
  return ATTN_OK;
}

attn_status attn_cache_requantise(attn_context *context, const attn_cache_requantise_args *args,
                                  attn_message *message) {
  ATTN_CHECK_POINTER(context, "context", message);
  ATTN_CHECK_STRUCT(args, "args", attn_cache_requantise_args, message);
  attn_requantise_view view;
  memset(&view, 0, sizeof view);
  const attn_backend *backend;
  ATTN_TRY(attn_registry_select_call(context, args->backend, &backend, message));
  ATTN_TRY(check_layout(args->source_layout, "source_layout", message));
  ATTN_TRY(check_layout(args->target_layout, "target_layout", message));
  ATTN_TRY(view_pools(args, &view, message));
  int64_t map[2] = {ATTN_ANY, 2};
  ATTN_TRY(attn_view_make(&view.map.block_map, args->block_map, "block_map", ATTN_READ,
                          ATTN_DTYPE_BIT(ATTN_DTYPE_INT64), 2, map, message));
  view.map.num_pairs = view.map.block_map.shape[0];
  ATTN_TRY(check_overlaps(&view, message));
  ATTN_TRY(attn_block_map_check(&view.map, 0, message));
  return backend->cache_requantise(context, &view, message);
}
