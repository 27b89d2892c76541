/* SPDX-License-Identifier: Apache-2.0 */
/* fault.c: which planted fault is active, in the test-only build; nothing in any other. */
#include "core/fault.h"

#if defined(ATTN_TEST_FAULTS) && ATTN_TEST_FAULTS
static int attn_fault_active = ATTN_FAULT_NONE;

int attn_fault(int id) {
  return id == attn_fault_active;
}

void attn_fault_set(int id) {
  attn_fault_active = id;
}
#endif
