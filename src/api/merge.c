/* SPDX-License-Identifier: Apache-2.0 */
/* merge.c: attn_merge() at the border. Parts are any number of DLTensors: each is checked here, and viewed again by the
   backend, so that nothing is allocated. */
#include "attn/merge.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/pool_view.h"
#include "core/load.h"
#include "core/registry.h"
#include "core/resolve.h"

static attn_status check_scalars(const attn_merge_args *args, attn_message *message) {
  if (args->num_parts < 1) {
    return attn_fail(message, ATTN_E_RANGE, "num_parts: %d, accepted: 1 or more", (int)args->num_parts);
  }
  if (args->lse_base != ATTN_LSE_BASE_E && args->lse_base != ATTN_LSE_BASE_2) {
    return attn_fail(message, ATTN_E_RANGE, "lse_base: %d, accepted: 0 (e) or 1 (2)", (int)args->lse_base);
  }
  ATTN_CHECK_POINTER(args->outs, "outs", message);
  ATTN_CHECK_POINTER(args->lses, "lses", message);
  return ATTN_OK;
}

static attn_status view_outputs(const attn_merge_args *args, attn_merge_view *view, attn_message *message) {
  int64_t any[3] = {ATTN_ANY, ATTN_ANY, ATTN_ANY};
  ATTN_TRY(attn_view_make(&view->out, args->out, "out", ATTN_WRITE, ATTN_DTYPE_FLOATS, 3, any, message));
  view->num_tokens = view->out.shape[0];
  view->num_heads = view->out.shape[1];
  view->size = view->out.shape[2];
  unsigned type = ATTN_DTYPE_BIT(ATTN_DTYPE_FLOAT32);
  if (args->lse != NULL) {
    int64_t shape[2] = {view->num_tokens, view->num_heads};
    ATTN_TRY(attn_view_make(&view->lse, args->lse, "lse", ATTN_WRITE, type, 2, shape, message));
    ATTN_TRY(attn_refuse_overlap(&view->lse, "lse", &view->out, "out", message));
  }
  if (args->sinks != NULL) {
    ATTN_TRY(attn_view_make(&view->sinks, args->sinks, "sinks", ATTN_READ, type, 1, &view->num_heads, message));
    ATTN_TRY(attn_refuse_overlap(&view->out, "out", &view->sinks, "sinks", message));
    ATTN_TRY(attn_refuse_overlap(&view->lse, "lse", &view->sinks, "sinks", message));
    for (int64_t h = 0; h < view->num_heads; h++) {
      float sink = attn_float_at(&view->sinks, h);
      if (isnan(sink) || (isinf(sink) && sink > 0)) {
        return attn_fail(message, ATTN_E_RANGE, "sinks[%lld]: %g, accepted: finite values, or -inf for none",
                         (long long)h, (double)sink);
      }
    }
  }
  return ATTN_OK;
}

/* A result may be exactly the part; any other meeting is refused. */
static attn_status check_alias(const attn_view *output, const char *output_name, const attn_view *part,
                               const char *part_name, attn_message *message) {
  if (output->ndim == 0 || attn_view_same(output, part)) {
    return ATTN_OK;
  }
  return attn_refuse_overlap(output, output_name, part, part_name, message);
}

static attn_status check_part(const attn_merge_args *args, const attn_merge_view *view, int32_t r,
                              attn_message *message) {
  char out_name[32];
  char lse_name[32];
  (void)snprintf(out_name, sizeof out_name, "outs[%d]", (int)r);
  (void)snprintf(lse_name, sizeof lse_name, "lses[%d]", (int)r);
  attn_view out;
  attn_view lse;
  int64_t shape[3] = {view->num_tokens, view->num_heads, view->size};
  ATTN_TRY(attn_view_make(&out, args->outs[r], out_name, ATTN_READ, ATTN_DTYPE_FLOATS, 3, shape, message));
  ATTN_TRY(
      attn_view_make(&lse, args->lses[r], lse_name, ATTN_READ, ATTN_DTYPE_BIT(ATTN_DTYPE_FLOAT32), 2, shape, message));
  ATTN_TRY(check_alias(&view->out, "out", &out, out_name, message));
  ATTN_TRY(check_alias(&view->lse, "lse", &lse, lse_name, message));
  ATTN_TRY(attn_refuse_overlap(&view->out, "out", &lse, lse_name, message));
  return attn_refuse_overlap(&view->lse, "lse", &out, out_name, message);
}

attn_status attn_merge(attn_context *context, const attn_merge_args *args, attn_message *message) {
  ATTN_CHECK_POINTER(context, "context", message);
  ATTN_CHECK_STRUCT(args, "args", attn_merge_args, message);
  attn_merge_view view;
  memset(&view, 0, sizeof view);
  view.args = args;
  const attn_backend *backend;
  ATTN_TRY(attn_registry_select_call(context, args->backend, &backend, message));
  ATTN_TRY(check_scalars(args, message));
  ATTN_TRY(view_outputs(args, &view, message));
  for (int32_t r = 0; r < args->num_parts; r++) {
    ATTN_TRY(check_part(args, &view, r, message));
  }
  return backend->merge(context, &view, message);
}
