/* SPDX-License-Identifier: Apache-2.0 */
/* workspace_busy.h: which workspaces the calls of a context use now.
 *
 * A schedule, and a run in checked mode, enter the bytes of their workspace in their context's table before they read
 * or write any of them, and leave it at their end: of two such calls at once on bytes that meet, the second is refused.
 * The table and not the workspace says so, because nothing in a workspace has to be initialised: a mark kept there
 * would be read out of memory that nobody has written yet. So calls of different contexts do not see each other. Runs
 * in unchecked mode neither enter nor look.
 */
#ifndef ATTN_API_WORKSPACE_BUSY_H
#define ATTN_API_WORKSPACE_BUSY_H

#include "core/plan_impl.h"

void attn_busy_init(attn_busy *busy);
void attn_busy_end(attn_busy *busy);

/* ATTN_E_STATE when another call of the plan's context uses bytes of it. `data` is checked memory. */
attn_status attn_workspace_take(const attn_plan *plan, const unsigned char *data, attn_message *message);

/* After a take that succeeded. */
void attn_workspace_give_back(const attn_plan *plan, const unsigned char *data);

#endif
