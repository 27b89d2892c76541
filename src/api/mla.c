/* SPDX-License-Identifier: Apache-2.0 */
/* mla.c: latent attention at the border: declared, refused by name until built. */
#include "attn/mla.h"

#include "core/error.h"

static attn_status not_built(const char *call, attn_message *message) {
  return attn_fail(message, ATTN_E_UNSUPPORTED, "%s: latent attention is not built in", call);
}

attn_status attn_mla_run_mqa(const attn_plan *plan, const attn_mla_args *args, const attn_workspace *workspace,
                             attn_message *message) {
  (void)plan;
  (void)args;
  (void)workspace;
  return not_built("attn_mla_run_mqa", message);
}

attn_status attn_mla_run_mha(const attn_plan *plan, const attn_mla_args *args, const attn_workspace *workspace,
                             attn_message *message) {
  (void)plan;
  (void)args;
  (void)workspace;
  return not_built("attn_mla_run_mha", message);
}

attn_status attn_mla_layer_run(const attn_plan *plan, const attn_mla_args *args, const attn_workspace *workspace,
                               attn_message *message) {
  (void)plan;
  (void)args;
  (void)workspace;
  return not_built("attn_mla_layer_run", message);
}
