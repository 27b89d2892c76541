/* SPDX-License-Identifier: Apache-2.0 */
/* comm.c: context parallelism at the border: declared, refused by name until built. */
#include "attn/comm.h"

#include "core/error.h"

attn_status attn_comm_create(attn_context *context, const attn_transport *transport, attn_comm **comm,
                             attn_message *message) {
  (void)context;
  (void)transport;
  (void)comm;
  return attn_fail(message, ATTN_E_UNSUPPORTED, "attn_comm_create: context parallelism is not built in");
}

void attn_comm_destroy(attn_comm *comm) {
  (void)comm;
}

attn_status attn_comm_run(attn_comm *comm, const attn_plan *plan, const attn_run_args *args,
                          const attn_workspace *workspace, attn_message *message) {
  (void)comm;
  (void)plan;
  (void)args;
  (void)workspace;
  return attn_fail(message, ATTN_E_UNSUPPORTED, "attn_comm_run: context parallelism is not built in");
}
