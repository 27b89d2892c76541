/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file workspace.h  One arena of working memory per micro-batch, shared by all layers.   (stable)
 *
 * A plan works without this: it takes any memory as workspace, or allocates its own once (options.own_workspace of
 * plan.h). An engine that runs many plans and several micro-batches at once keeps one attn_workspaces instead. It has
 * an arena for each slot, that is for each micro-batch, and hands out views of it:
 *
 *     attn_workspaces_reserve()   once: the worst case, for every slot
 *     attn_workspaces_lock()      after warming up: from here on no arena grows, and its addresses stay
 *     attn_workspaces_get()       in each step: views of a slot's arena, for the plans and buffers that live together
 *
 * It is not an allocator. Nothing is given back: the views of one call are apart from each other, but two calls for one
 * slot return overlapping memory, and the views of the earlier one are then used up. What a view holds is undefined.
 */
#ifndef ATTN_WORKSPACE_H
#define ATTN_WORKSPACE_H

#include "plan.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Options of attn_workspaces_create(). Start from ATTN_WORKSPACES_OPTIONS_INIT. */
typedef struct attn_workspaces_options {
  uint32_t size;       /**< sizeof(attn_workspaces_options) */
  int32_t num_slots;   /**< micro-batches in flight, 1 to 65536; 0: 1 */
  uint64_t slot_bytes; /**< bytes of each arena at first, rounded up to ATTN_WORKSPACE_ALIGN; 0: none until they are
                            asked for */
} attn_workspaces_options;
#define ATTN_WORKSPACES_OPTIONS_INIT ATTN_INIT(attn_workspaces_options)

/** Opaque. */
typedef struct attn_workspaces attn_workspaces;

/**
 * Make a manager whose arenas lie in the memory of the CPU. *workspaces belongs to the caller:
 * attn_workspaces_destroy(), after the last use of any view.
 *
 * `options` NULL: one slot, empty. Different slots may be used by different threads at once, one slot by one thread at
 * a time; attn_workspaces_reserve(), _lock(), _unlock() and _destroy() run alone.
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_RANGE (num_slots); ATTN_E_OVERFLOW (slot_bytes);
 *         ATTN_E_NOMEM.
 */
ATTN_API ATTN_NODISCARD attn_status attn_workspaces_create(const attn_workspaces_options *options,
                                                           attn_workspaces **workspaces, attn_message *message);

/** Free every arena. NULL is allowed. */
ATTN_API void attn_workspaces_destroy(attn_workspaces *workspaces);

/**
 * Hand out `count` views of one slot's arena that can be used at the same time.
 *
 * Each view starts at a multiple of ATTN_WORKSPACE_ALIGN and may be passed to attn_plan_schedule() and attn_run(). The
 * arena grows when the views, each rounded up to that multiple, do not fit: its contents are lost and earlier views of
 * this slot are invalid; the arenas of the other slots stay where they are.
 *
 * @param slot    0 .. num_slots - 1
 * @param bytes   [count] bytes of each view; 0: data NULL
 * @param views   [count], written on success; views[i].bytes = bytes[i]
 * @param caller  who asks, for the message of a refusal; copied nowhere
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_INDEX (slot); ATTN_E_RANGE (count < 0); ATTN_E_OVERFLOW (the sum of the bytes);
 *         ATTN_E_WORKSPACE (locked and too small: the message names the caller, the bytes needed and those there are);
 *         ATTN_E_NOMEM. After a failure every arena, and every view handed out, is as before.
 */
ATTN_API ATTN_NODISCARD attn_status attn_workspaces_get(attn_workspaces *workspaces, int32_t slot, int32_t count,
                                                        const size_t *bytes, attn_workspace *views, const char *caller,
                                                        attn_message *message);

/**
 * Make every slot large enough for an attn_workspaces_get() of these views, ahead of it. All or nothing: arenas that
 * are too small grow, the others stay where they are. Meant for the worst case, before attn_workspaces_lock(); of
 * several calls the largest counts.
 * @return as attn_workspaces_get(), without ATTN_E_INDEX.
 */
ATTN_API ATTN_NODISCARD attn_status attn_workspaces_reserve(attn_workspaces *workspaces, int32_t count,
                                                            const size_t *bytes, const char *caller,
                                                            attn_message *message);

/** From here on growth is ATTN_E_WORKSPACE, so no arena moves. NULL is allowed, twice is once. */
ATTN_API void attn_workspaces_lock(attn_workspaces *workspaces);

/** Let the arenas grow again. NULL is allowed. */
ATTN_API void attn_workspaces_unlock(attn_workspaces *workspaces);

/** Bytes of a slot's arena now; 0 for a slot outside. */
ATTN_API size_t attn_workspaces_bytes(const attn_workspaces *workspaces, int32_t slot);

#ifdef __cplusplus
}
#endif
#endif
