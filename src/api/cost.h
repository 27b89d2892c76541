/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h: the size of a plan's workspace, for attn_explain() and attn_plan_create() alike. */
#ifndef ATTN_API_COST_H
#define ATTN_API_COST_H

#include "core/plan_impl.h"

/* The workspace is the step (header and copied lists), then the backend's scratch, each 256-byte aligned. */
attn_status attn_plan_cost_of(const attn_context *context, const attn_backend *backend, const attn_problem *problem,
                              const attn_plan_limits *limits, const attn_plan_options *options, attn_plan_cost *cost,
                              size_t *step_bytes, size_t *workspace_bytes, attn_message *message);

#endif
