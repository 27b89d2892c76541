/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.h: what the two halves of test_allocation_sweep share: test_allocation_sweep.c has the functions that do not
   allocate, and the list of all; sweep_creating.c those that do. */
#ifndef ATTN_TESTS_SWEEP_H
#define ATTN_TESTS_SWEEP_H

#include "harness.h"

/* The function of abi.txt is dealt with. */
void sweep_cover(const char *function);

/* The sweeps, as tests of cmocka. */
void sweep_context_create(void **state);
void sweep_plan_create_of_each(void **state);
void sweep_pool_create(void **state);
void sweep_workspaces(void **state);
void sweep_mla_weights_create(void **state);

/* Objects as they are swept, for the functions that use one. */
attn_status sweep_create_arenas(attn_workspaces **made);
attn_status sweep_make_groups(int32_t prefix_cache, attn_pool **made); /* two, the second with a window of 3 keys */
attn_pool_options sweep_pool_options(int32_t prefix_cache);

#endif
