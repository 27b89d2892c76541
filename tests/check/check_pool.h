/* SPDX-License-Identifier: Apache-2.0 */
/* check_pool.h: the two tensors of a paged cache, in every way they may lie. */
#ifndef ATTN_CHECK_POOL_H
#define ATTN_CHECK_POOL_H

#include "check_case.h"

/* K and V pools of the case's sizes and types in its layout; pool_class is CHECK_COMPACT ... CHECK_LAYERS. */
void check_pool_make(check_arena *arena, check_case *c, int64_t num_blocks, int pool_class, check_tensor *k_cache,
                     check_tensor *v_cache);

/* Element e of a head's row at an offset of a block, whatever the layout. */
void *check_pool_at(const check_case *c, const check_tensor *pool, int64_t block, int64_t offset, int64_t head,
                    int64_t e);

#endif
