/* SPDX-License-Identifier: Apache-2.0 */
/* registry.h: the names that can be asked for, and the selector. One const table drives listing, forcing, explaining.
   */
#ifndef ATTN_CORE_REGISTRY_H
#define ATTN_CORE_REGISTRY_H

#include "core/plan_impl.h"

/* One name. Ours: backend is NULL while not built. Foreign: the name of another system's backend. */
typedef struct attn_registry_row {
  const char *name;
  attn_device_kind device;
  int foreign;
  const attn_backend *backend;
  const char *part;  /* foreign: our backend that plays its part once it is built */
  const char *plays; /* ours: what it stands in for */
  const char *summary;
} attn_registry_row;

extern const attn_registry_row attn_registry[];
extern const size_t attn_registry_count;

/* The backend of ours that plays a foreign row's part on a device today, or NULL. */
const attn_backend *attn_registry_part(const attn_registry_row *row, attn_device_kind device);

/* One row judged for one problem: the verdict (ABLE stands for "could serve") and its reason. */
attn_verdict attn_registry_judge(const attn_registry_row *row, const attn_context *context, const attn_problem *problem,
                                 const attn_plan_options *options, char reason[ATTN_REASON_BYTES]);

/* The backend asked for by `name` or, where that is NULL, "" or "auto", by ATTN_BACKEND: its row in *row, NULL when the
   selector is free. ATTN_E_NAME for an unknown name of either, ATTN_E_BACKEND for one that cannot be had here. *source
   says who asked, for messages. */
attn_status attn_registry_forced(const attn_context *context, const char *name, const attn_registry_row **row,
                                 const char **source, attn_message *message);

/* The selector: the forced backend or the first able one, with the reason. */
attn_status attn_registry_select(const attn_context *context, const attn_problem *problem,
                                 const attn_plan_options *options, const attn_backend **backend,
                                 char reason[ATTN_REASON_BYTES], attn_message *message);

/* The selector of calls that have no problem (cache, merge): the forced backend, or the device's first. */
attn_status attn_registry_select_call(const attn_context *context, const char *name, const attn_backend **backend,
                                      attn_message *message);

/* The same with the reason [ATTN_REASON_BYTES]; NULL: not wanted. */
attn_status attn_registry_explain_call(const attn_context *context, const char *name, const attn_backend **backend,
                                       char *reason, attn_message *message);

#endif
