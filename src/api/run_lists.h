/* SPDX-License-Identifier: Apache-2.0 */
/* run_lists.h: the contents of the lists given to a run. */
#ifndef ATTN_API_RUN_LISTS_H
#define ATTN_API_RUN_LISTS_H

#include "core/plan_impl.h"

/* Slopes, sinks, the output scale, flags and ranges always; in checked mode also lengths against the table's width and
   every block id that some row sees. */
attn_status attn_run_check_lists(const attn_run_view *view, attn_message *message);

#endif
