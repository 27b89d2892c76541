/* SPDX-License-Identifier: Apache-2.0 */
/* plant.c: before main() the fault that the environment names in ATTN_PLANTED_FAULT becomes the active one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fault.h"

__attribute__((constructor)) static void plant(void) {
#define FAULT_ROW(id, spelling, what) {id, spelling},
  static const struct {
    int id;
    const char *name;
  } faults[] = {ATTN_FAULT_LATENT_LIST(FAULT_ROW)};
#undef FAULT_ROW
  const char *name = getenv("ATTN_PLANTED_FAULT");
  for (size_t i = 0; name != NULL && i < sizeof faults / sizeof faults[0]; i++) {
    if (strcmp(faults[i].name, name) == 0) {
      attn_fault_set(faults[i].id);
      return;
    }
  }
  if (name != NULL) {
    fprintf(stderr, "ATTN_PLANTED_FAULT: no fault %s\n", name);
    exit(2);
  }
}
