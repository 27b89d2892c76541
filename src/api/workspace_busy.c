/* SPDX-License-Identifier: Apache-2.0 */
/* workspace_busy.c: see workspace_busy.h. */
#include "api/workspace_busy.h"

void attn_busy_init(attn_busy *busy) {
  pthread_mutex_init(&busy->lock, NULL);
  busy->count = 0;
}

void attn_busy_end(attn_busy *busy) {
  pthread_mutex_destroy(&busy->lock);
}

/* The entry that meets these bytes, or count. */
static int32_t find(const attn_busy *busy, uintptr_t begin, uintptr_t end) {
  int32_t i = 0;
  while (i < busy->count && (busy->calls[i].end <= begin || end <= busy->calls[i].begin)) {
    i++;
  }
  return i;
}

attn_status attn_workspace_take(const attn_plan *plan, const unsigned char *data, attn_message *message) {
  attn_busy *busy = &plan->context->busy;
  uintptr_t begin = (uintptr_t)data;
  uintptr_t end = begin + plan->workspace_bytes;
  pthread_mutex_lock(&busy->lock);
  int taken = find(busy, begin, end) < busy->count;
  if (!taken && busy->count < ATTN_BUSY_CALLS) { /* more calls at once than that are not watched */
    busy->calls[busy->count].begin = begin;
    busy->calls[busy->count].end = end;
    busy->count++;
  }
  pthread_mutex_unlock(&busy->lock);
  if (taken) {
    return attn_fail(message, ATTN_E_STATE,
                     "workspace: the one at %p is in use by another run or schedule, accepted: one call at a time; "
                     "give calls at once a workspace each",
                     (const void *)data);
  }
  return ATTN_OK;
}

void attn_workspace_give_back(const attn_plan *plan, const unsigned char *data) {
  attn_busy *busy = &plan->context->busy;
  uintptr_t begin = (uintptr_t)data;
  pthread_mutex_lock(&busy->lock);
  int32_t i = find(busy, begin, begin + 1);
  if (i < busy->count) { /* entered at all */
    busy->calls[i] = busy->calls[--busy->count];
  }
  pthread_mutex_unlock(&busy->lock);
}
