/* SPDX-License-Identifier: Apache-2.0 */
/* block_map.h: the pairs of blocks of a copy, swap or requantisation, judged in full before a byte moves. */
#ifndef ATTN_API_BLOCK_MAP_H
#define ATTN_API_BLOCK_MAP_H

#include "core/plan_impl.h"

/* Every id inside its pool, no block written by two pairs, and in one pool none written by one and read by another;
   a pair of a block with itself in one pool is left out. writes_source: both sides are written (a swap). A map that is
   one pair, broadcast, is cut to that pair. */
attn_status attn_block_map_check(attn_copy_view *view, int writes_source, attn_message *message);

#endif
