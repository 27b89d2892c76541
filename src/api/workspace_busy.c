/* SPDX-License-Identifier: Apache-2.0 */
/* workspace_busy.c: see workspace_busy.h. */
#include "api/workspace_busy.h"

#include <stdatomic.h>

#define IDLE_MARK UINT64_C(0x6174746e2d69646c) /* "attn-idl" */
#define BUSY_MARK UINT64_C(0x6174746e2d627379) /* "attn-bsy" */

static _Atomic uint64_t *mark_of(unsigned char *data) {
  return &((attn_step *)(void *)data)->busy;
}

static uint64_t mark_here(const _Atomic uint64_t *mark, uint64_t value) {
  return value ^ (uint64_t)(uintptr_t)mark * UINT64_C(0x9e3779b97f4a7c15);
}

static attn_status in_use(unsigned char *data, attn_message *message) {
  return attn_fail(message, ATTN_E_STATE,
                   "workspace: the one at %p is in use by another run or schedule, accepted: one call at a time; give "
                   "calls at once a workspace each",
                   (void *)data);
}

attn_status attn_workspace_unscheduled(attn_message *message) {
  return attn_fail(
      message, ATTN_E_STATE,
      "workspace: holds no schedule of this plan, or was moved since; call attn_plan_schedule with it first");
}

attn_status attn_workspace_take(unsigned char *data, attn_message *message) {
  _Atomic uint64_t *mark = mark_of(data);
  uint64_t busy = mark_here(mark, BUSY_MARK);
  uint64_t found = atomic_load_explicit(mark, memory_order_relaxed);
  if (found == busy ||
      !atomic_compare_exchange_strong_explicit(mark, &found, busy, memory_order_acquire, memory_order_relaxed)) {
    return in_use(data, message); /* a mark that changed meanwhile is another call's */
  }
  return ATTN_OK;
}

attn_status attn_workspace_take_scheduled(unsigned char *data, attn_message *message) {
  _Atomic uint64_t *mark = mark_of(data);
  uint64_t busy = mark_here(mark, BUSY_MARK);
  uint64_t found = mark_here(mark, IDLE_MARK);
  if (!atomic_compare_exchange_strong_explicit(mark, &found, busy, memory_order_acquire, memory_order_relaxed)) {
    return found == busy ? in_use(data, message) : attn_workspace_unscheduled(message);
  }
  return ATTN_OK;
}

void attn_workspace_give_back(unsigned char *data) {
  _Atomic uint64_t *mark = mark_of(data);
  atomic_store_explicit(mark, mark_here(mark, IDLE_MARK), memory_order_release);
}
