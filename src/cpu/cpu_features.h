/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_features.h: what the processor has, and the instruction set level that follows, capped by ATTN_CPU. */
#ifndef ATTN_CPU_FEATURES_H
#define ATTN_CPU_FEATURES_H

#include "attn/backend.h"

/* The one list of levels in rising order: X(name, value, spelling, built in). */
#define ATTN_CPU_LEVEL_LIST(X)                                                                                         \
  X(ATTN_CPU_GENERIC, 0, "generic", 1)                                                                                 \
  X(ATTN_CPU_AVX2, 1, "avx2", 0)                                                                                       \
  X(ATTN_CPU_AVX512, 2, "avx512", 0)                                                                                   \
  X(ATTN_CPU_AVX512BF16, 3, "avx512bf16", 0)                                                                           \
  X(ATTN_CPU_AMX, 4, "amx", 0)                                                                                         \
  X(ATTN_CPU_NEON, 5, "neon", 0)                                                                                       \
  X(ATTN_CPU_NEON_BF16, 6, "neon-bf16", 0)

typedef enum attn_cpu_level {
#define ATTN_CPU_LEVEL_ENUM(name, value, spelling, built) name = value,
  ATTN_CPU_LEVEL_LIST(ATTN_CPU_LEVEL_ENUM)
#undef ATTN_CPU_LEVEL_ENUM
} attn_cpu_level;

/* "generic", ... */
const char *attn_cpu_level_name(attn_cpu_level level);

typedef struct attn_cpu_features {
  attn_cpu_level level; /* the highest that machine, build and cap allow */
} attn_cpu_features;

/* `cap`: value of ATTN_CPU or NULL. ATTN_E_NAME for an unknown level. */
attn_status attn_cpu_features_find(const char *cap, attn_cpu_features *features, attn_message *message);

/* Device name, levels and cache sizes. */
void attn_cpu_features_describe(const attn_cpu_features *features, attn_context_info *info);

#endif
