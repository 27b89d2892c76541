/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm.h  Decode context parallelism over an existing communicator.   (experimental: declared, not built in yet)
 *
 * Each rank holds an interleaved share of every sequence's keys; ranks exchange queries and partial states (out, lse)
 * and merge them as attn_merge() does. Transports (MPI, NCCL) are small libraries of their own that fill
 * attn_transport.
 */
#ifndef ATTN_COMM_H
#define ATTN_COMM_H

#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What a transport has to offer; each entry returns 0 or its own error code, which the message repeats. */
typedef struct attn_transport {
  uint32_t size; /**< sizeof(attn_transport) */
  int32_t rank;
  int32_t num_ranks;
  void *user;
  int (*all_gather)(void *user, const void *send, void *receive, size_t bytes_per_rank);
  int (*all_to_all)(void *user, const void *send, void *receive, size_t bytes_per_rank);
  int (*reduce_scatter_float)(void *user, const float *send, float *receive, size_t count_per_rank);
} attn_transport;
#define ATTN_TRANSPORT_INIT ATTN_INIT(attn_transport)

/** Opaque. */
typedef struct attn_comm attn_comm;

/** Wrap a transport. @return ATTN_E_UNSUPPORTED until context parallelism is built in. */
ATTN_API ATTN_NODISCARD attn_status attn_comm_create(attn_context *context, const attn_transport *transport,
                                                     attn_comm **comm, attn_message *message);

/** Destroy a communicator. NULL is allowed. */
ATTN_API void attn_comm_destroy(attn_comm *comm);

/** attn_run() over all ranks of a communicator. @return ATTN_E_UNSUPPORTED until context parallelism is built in. */
ATTN_API ATTN_NODISCARD attn_status attn_comm_run(attn_comm *comm, const attn_plan *plan, const attn_run_args *args,
                                                  const attn_workspace *workspace, attn_message *message);

#ifdef __cplusplus
}
#endif
#endif
