/* SPDX-License-Identifier: Apache-2.0 */
/* table.c: see table.h. One constant table per level that is built; the slots and their kernels come from
   kernels.inc. */
#include "cpu/table.h"

static const attn_cpu_table generic_table = {
    .level = ATTN_CPU_GENERIC,
#define ATTN_CPU_KERNEL(level, slot, type, operation, types, head_class, symbol) .slot = symbol,
#include "cpu/kernels.inc"
#undef ATTN_CPU_KERNEL
};

const attn_cpu_table *attn_cpu_table_of(attn_cpu_level level) {
  (void)level; /* the generic one is the only one built */
  return &generic_table;
}

int attn_cpu_table_kernel(const attn_cpu_table *table, size_t index, attn_kernel_info *info) {
  size_t row = 0;
#define ATTN_CPU_KERNEL(kernel_level, slot, type, kernel_operation, kernel_types, kernel_head_class, kernel_symbol)    \
  if (row++ == index) {                                                                                                \
    info->operation = kernel_operation;                                                                                \
    info->types = kernel_types;                                                                                        \
    info->head_class = kernel_head_class;                                                                              \
    info->level = attn_cpu_level_name(kernel_level);                                                                   \
    info->symbol = #kernel_symbol;                                                                                     \
    info->in_use = table->slot == kernel_symbol;                                                                       \
    return 1;                                                                                                          \
  }
#include "cpu/kernels.inc"
#undef ATTN_CPU_KERNEL
  return 0;
}
