/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_tile.h: from an item's number to its row tile. */
#ifndef ATTN_CPU_TILE_H
#define ATTN_CPU_TILE_H

#include "cpu/cpu_work.h"

/* The row tile of work item `item` or, when `merge` is 1, of merge item `item` (then piece is 0). */
attn_cpu_tile attn_cpu_find_tile(const attn_cpu_job *job, int64_t item, int merge);

#endif
