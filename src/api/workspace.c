/* SPDX-License-Identifier: Apache-2.0 */
/* workspace.c: the arenas behind attn_workspaces. An arena grows by replacement: the new memory is had before the old
   is given up, so a failure changes nothing, and no other arena is touched. */
#include "attn/workspace.h"

#include <stdlib.h>
#include <string.h>

#include "core/arithmetic.h"
#include "core/error.h"
#include "core/resolve.h"

#define MAX_SLOTS 65536

typedef struct arena {
  unsigned char *data;
  size_t bytes;
  unsigned char *next; /* while growing: what replaces `data` */
} arena;

struct attn_workspaces {
  int32_t num_slots;
  int32_t locked;
  arena arenas[]; /* [num_slots] */
};

static attn_status round_up(uint64_t bytes, const char *what, uint64_t *rounded, attn_message *message) {
  if (bytes > (uint64_t)(SIZE_MAX / 2)) {
    return attn_fail(message, ATTN_E_OVERFLOW, "%s: %llu, accepted: %llu or less", what, (unsigned long long)bytes,
                     (unsigned long long)(SIZE_MAX / 2));
  }
  *rounded = attn_round_up(bytes, ATTN_WORKSPACE_ALIGN);
  return ATTN_OK;
}

/* Bytes of an arena that holds all views. */
static attn_status bytes_of(int32_t count, const size_t *bytes, const char *caller, uint64_t *total,
                            attn_message *message) {
  ATTN_CHECK_POINTER(caller, "caller", message);
  if (count < 0) {
    return attn_fail(message, ATTN_E_RANGE, "count: %d, accepted: 0 or more", (int)count);
  }
  if (count > 0) {
    ATTN_CHECK_POINTER(bytes, "bytes", message);
  }
  *total = 0;
  for (int32_t i = 0; i < count; i++) {
    uint64_t rounded = 0;
    ATTN_TRY(round_up(bytes[i], "bytes", &rounded, message));
    *total += rounded;
    if (*total > (uint64_t)(SIZE_MAX / 2)) {
      return attn_fail(message, ATTN_E_OVERFLOW, "bytes: %d views for %.64s do not fit this machine's addresses",
                       (int)count, caller);
    }
  }
  return ATTN_OK;
}

static void drop_next(attn_workspaces *w, int32_t begin, int32_t end) {
  for (int32_t slot = begin; slot < end; slot++) {
    free(w->arenas[slot].next);
    w->arenas[slot].next = NULL;
  }
}

/* The slots [begin, end) hold `bytes`, or nothing has changed. */
static attn_status grow(attn_workspaces *w, int32_t begin, int32_t end, size_t bytes, const char *caller,
                        attn_message *message) {
  for (int32_t slot = begin; slot < end; slot++) {
    arena *a = &w->arenas[slot];
    if (a->bytes >= bytes) {
      continue;
    }
    if (w->locked) {
      return attn_fail(message, ATTN_E_WORKSPACE,
                       "workspaces: %.64s needs %llu bytes, slot %d is locked at %llu; reserve them before "
                       "attn_workspaces_lock",
                       caller, (unsigned long long)bytes, (int)slot, (unsigned long long)a->bytes);
    }
    a->next = aligned_alloc(ATTN_WORKSPACE_ALIGN, bytes);
    if (a->next == NULL) {
      drop_next(w, begin, slot);
      return attn_fail(message, ATTN_E_NOMEM, "workspaces: %llu bytes for %.64s, slot %d, could not be allocated",
                       (unsigned long long)bytes, caller, (int)slot);
    }
  }
  for (int32_t slot = begin; slot < end; slot++) {
    arena *a = &w->arenas[slot];
    if (a->next != NULL) {
      free(a->data);
      a->data = a->next;
      a->bytes = bytes;
      a->next = NULL;
    }
  }
  return ATTN_OK;
}

attn_status attn_workspaces_create(const attn_workspaces_options *options, attn_workspaces **workspaces,
                                   attn_message *message) {
  attn_workspaces_options o = ATTN_WORKSPACES_OPTIONS_INIT;
  if (options != NULL) {
    ATTN_CHECK_STRUCT(options, "options", attn_workspaces_options, message);
    o = *options;
  }
  ATTN_CHECK_POINTER(workspaces, "workspaces", message);
  if (o.num_slots < 0 || o.num_slots > MAX_SLOTS) {
    return attn_fail(message, ATTN_E_RANGE, "options.num_slots: %d, accepted: 0 to %d", (int)o.num_slots, MAX_SLOTS);
  }
  int32_t num_slots = o.num_slots > 0 ? o.num_slots : 1;
  uint64_t bytes = 0;
  ATTN_TRY(round_up(o.slot_bytes, "options.slot_bytes", &bytes, message));
  size_t size = sizeof(attn_workspaces) + (size_t)num_slots * sizeof(arena);
  attn_workspaces *made = calloc(1, size);
  if (made == NULL) {
    return attn_fail(message, ATTN_E_NOMEM, "workspaces: %lu bytes could not be allocated", (unsigned long)size);
  }
  made->num_slots = num_slots;
  attn_status status = grow(made, 0, num_slots, (size_t)bytes, "options.slot_bytes", message);
  if (status != ATTN_OK) {
    free(made);
    return status;
  }
  *workspaces = made;
  return ATTN_OK;
}

void attn_workspaces_destroy(attn_workspaces *workspaces) {
  for (int32_t slot = 0; workspaces != NULL && slot < workspaces->num_slots; slot++) {
    free(workspaces->arenas[slot].data);
  }
  free(workspaces);
}

attn_status attn_workspaces_get(attn_workspaces *workspaces, int32_t slot, int32_t count, const size_t *bytes,
                                attn_workspace *views, const char *caller, attn_message *message) {
  ATTN_CHECK_POINTER(workspaces, "workspaces", message);
  if (slot < 0 || slot >= workspaces->num_slots) {
    return attn_fail(message, ATTN_E_INDEX, "slot: %d, accepted: 0 to %d", (int)slot, (int)workspaces->num_slots - 1);
  }
  uint64_t total = 0;
  ATTN_TRY(bytes_of(count, bytes, caller, &total, message));
  if (count > 0) {
    ATTN_CHECK_POINTER(views, "views", message);
  }
  ATTN_TRY(grow(workspaces, slot, slot + 1, (size_t)total, caller, message));
  unsigned char *at = workspaces->arenas[slot].data;
  for (int32_t i = 0; i < count; i++) {
    views[i].data = bytes[i] > 0 ? at : NULL;
    views[i].bytes = bytes[i];
    if (bytes[i] > 0) {
      at += attn_round_up(bytes[i], ATTN_WORKSPACE_ALIGN);
    }
  }
  return ATTN_OK;
}

attn_status attn_workspaces_reserve(attn_workspaces *workspaces, int32_t count, const size_t *bytes, const char *caller,
                                    attn_message *message) {
  ATTN_CHECK_POINTER(workspaces, "workspaces", message);
  uint64_t total = 0;
  ATTN_TRY(bytes_of(count, bytes, caller, &total, message));
  return grow(workspaces, 0, workspaces->num_slots, (size_t)total, caller, message);
}

void attn_workspaces_lock(attn_workspaces *workspaces) {
  if (workspaces != NULL) {
    workspaces->locked = 1;
  }
}

void attn_workspaces_unlock(attn_workspaces *workspaces) {
  if (workspaces != NULL) {
    workspaces->locked = 0;
  }
}

size_t attn_workspaces_bytes(const attn_workspaces *workspaces, int32_t slot) {
  return workspaces != NULL && slot >= 0 && slot < workspaces->num_slots ? workspaces->arenas[slot].bytes : 0;
}
