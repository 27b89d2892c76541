/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_features.c: see cpu_features.h. Only levels that are built in are looked for; today that is the generic one. */
#define _GNU_SOURCE /* sysconf's cache sizes */
#include "cpu/cpu_features.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

const char *attn_cpu_level_name(attn_cpu_level level) {
  switch (level) {
#define ATTN_CASE(name, value, spelling, built)                                                                        \
  case name:                                                                                                           \
    return spelling;
    ATTN_CPU_LEVEL_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return "unknown";
}

/* 1 when this build has kernels of the level (the machine can run the generic one always). */
static int level_built(attn_cpu_level level) {
  switch (level) {
#define ATTN_CASE(name, value, spelling, built)                                                                        \
  case name:                                                                                                           \
    return built;
    ATTN_CPU_LEVEL_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return 0;
}

attn_status attn_cpu_features_find(const char *cap, attn_cpu_features *features, attn_message *message) {
  attn_cpu_level highest = ATTN_CPU_NEON_BF16;
  if (cap != NULL && cap[0] != '\0') {
    int known = 0;
#define ATTN_MATCH(name, value, spelling, built)                                                                       \
  if (strcmp(cap, spelling) == 0) {                                                                                    \
    highest = name;                                                                                                    \
    known = 1;                                                                                                         \
  }
    ATTN_CPU_LEVEL_LIST(ATTN_MATCH)
#undef ATTN_MATCH
    if (!known) {
      return attn_fail(message, ATTN_E_NAME,
                       "ATTN_CPU: unknown level '%.32s'; accepted: generic, avx2, avx512, avx512bf16, amx, neon, "
                       "neon-bf16",
                       cap);
    }
  }
  features->level = ATTN_CPU_GENERIC;
  for (int level = ATTN_CPU_GENERIC; level <= (int)highest; level++) {
    if (level_built((attn_cpu_level)level)) {
      features->level = (attn_cpu_level)level;
    }
  }
  return ATTN_OK;
}

/* The processor's own name where it tells one. */
static void find_name(char *name, size_t bytes) {
  (void)snprintf(name, bytes, "unknown");
#if defined(__x86_64__) || defined(__i386__)
  unsigned words[12];
  char text[sizeof words + 1];
  unsigned highest = (unsigned)__get_cpuid_max(0x80000000u, NULL);
  if (highest < 0x80000004u) {
    return;
  }
  for (unsigned i = 0; i < 3; i++) {
    unsigned *w = words + 4 * (size_t)i;
    (void)__get_cpuid(0x80000002u + i, &w[0], &w[1], &w[2], &w[3]);
  }
  memcpy(text, words, sizeof words);
  text[sizeof words] = '\0';
  const char *start = text;
  while (*start == ' ') {
    start++;
  }
  if (*start != '\0') {
    (void)snprintf(name, bytes, "%s", start);
  }
#endif
}

static uint64_t cache_bytes(int name) {
  long bytes = sysconf(name);
  return bytes > 0 ? (uint64_t)bytes : 0;
}

void attn_cpu_features_describe(const attn_cpu_features *features, attn_context_info *info) {
  find_name(info->device_name, sizeof info->device_name);
  (void)snprintf(info->level, sizeof info->level, "%s", attn_cpu_level_name(features->level));
  (void)snprintf(info->levels_found, sizeof info->levels_found, "%s", attn_cpu_level_name(ATTN_CPU_GENERIC));
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  info->l1d_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE);
  info->l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE);
  info->l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE);
#else
  (void)cache_bytes;
#endif
}
