/* SPDX-License-Identifier: Apache-2.0 */
/* step.h: the schedule inside a workspace, as attn_run() finds it. */
#ifndef ATTN_API_STEP_H
#define ATTN_API_STEP_H

#include "core/plan_impl.h"

/* The workspace's memory after its checks: large enough, aligned, given or owned. */
attn_status attn_workspace_of(const attn_plan *plan, const attn_workspace *workspace, unsigned char **data,
                              attn_message *message);

/* The workspace as a tensor of bytes, to be held against others. */
attn_view attn_workspace_view(const attn_plan *plan, unsigned char *data);

/* The schedule in it and the backend's scratch behind; ATTN_E_STATE when it holds none of this plan. */
attn_status attn_step_of(const attn_plan *plan, const attn_workspace *workspace, const attn_step **step,
                         unsigned char **scratch, attn_message *message);

#endif
