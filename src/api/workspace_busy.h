/* SPDX-License-Identifier: Apache-2.0 */
/* workspace_busy.h: the mark in a workspace's header that says whether a call uses it now.
 *
 * The mark is one atomic word at the head of the memory. Its two values are made from its own address, so that memory
 * that was never scheduled, or was moved, holds neither (but for a chance of 2^-63). A call takes the mark before it
 * reads anything else of the workspace, so two calls at once never race: the second is refused. Runs in unchecked mode
 * leave it alone.
 */
#ifndef ATTN_API_WORKSPACE_BUSY_H
#define ATTN_API_WORKSPACE_BUSY_H

#include "core/plan_impl.h"

/* For a schedule: whatever the memory holds, unless another call uses it: ATTN_E_STATE. `data` is checked memory. */
attn_status attn_workspace_take(unsigned char *data, attn_message *message);

/* For a run: ATTN_E_STATE when another call uses it, or when it was never scheduled here. */
attn_status attn_workspace_take_scheduled(unsigned char *data, attn_message *message);

/* Give it back, as scheduled. */
void attn_workspace_give_back(unsigned char *data);

/* "holds no schedule of this plan". */
attn_status attn_workspace_unscheduled(attn_message *message);

#endif
