/* SPDX-License-Identifier: Apache-2.0 */
/* registry.c: see registry.h. Rows stand in order of priority within a device; a row's `backend` is the only claim that
   something is built. */
#include "core/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OURS(name, device, backend, plays, summary)                                                                    \
  { name, device, 0, backend, "", plays, summary }
#define FOREIGN(name, device, part, summary)                                                                           \
  { name, device, 1, NULL, part, "", summary }

const attn_registry_row attn_registry[] = {
    OURS("CPU_ATTN", ATTN_DEVICE_CPU, &attn_cpu_backend, "the CPU/XPU fallback",
         "threads, split-KV, kernels per instruction set behind one table"),
    OURS("CPU_MLA", ATTN_DEVICE_CPU, &attn_cpu_mla_backend, "the CPU/XPU fallback for latent caches",
         "latent attention: absorbed, expanded, or each where it is cheaper"),
    OURS("REFERENCE", ATTN_DEVICE_CPU, &attn_reference_backend, "the test oracle",
         "plain scalar C, double accumulation, no threads: the specification"),
    OURS("HOPPER_ATTN", ATTN_DEVICE_CUDA, NULL, "FLASH_ATTN", "wgmma kernels for sm_90a"),
    OURS("HOPPER_MLA", ATTN_DEVICE_CUDA, NULL, "FLASHMLA, FLASH_ATTN_MLA", "latent attention for sm_90a"),
    OURS("BLACKWELL_MLA", ATTN_DEVICE_CUDA, NULL, "CUTLASS_MLA, TOKENSPEED_MLA", "latent attention for sm_100a"),
    OURS("PORTABLE_ATTN", ATTN_DEVICE_CUDA, NULL, "TRITON_ATTN",
         "kernels specialised when the plan is made, CUDA and OpenCL"),
    OURS("PORTABLE_MLA", ATTN_DEVICE_CUDA, NULL, "TRITON_MLA", "its latent sister"),
    FOREIGN("TRITON_ATTN", ATTN_DEVICE_CUDA, "PORTABLE_ATTN", "the portable fallback of vLLM"),
    FOREIGN("TRITON_MLA", ATTN_DEVICE_CUDA, "PORTABLE_MLA", "its latent sister"),
    FOREIGN("FLASH_ATTN", ATTN_DEVICE_CUDA, "HOPPER_ATTN", "FlashAttention"),
    FOREIGN("FLASH_ATTN_MLA", ATTN_DEVICE_CUDA, "HOPPER_MLA", "FlashAttention over latent rows"),
    FOREIGN("FLASHMLA", ATTN_DEVICE_CUDA, "HOPPER_MLA", "DeepSeek's latent kernels"),
    FOREIGN("CUTLASS_MLA", ATTN_DEVICE_CUDA, "BLACKWELL_MLA", "latent kernels from CUTLASS"),
    FOREIGN("TOKENSPEED_MLA", ATTN_DEVICE_CUDA, "BLACKWELL_MLA", "latent kernels for fp8"),
    FOREIGN("FLASHINFER", ATTN_DEVICE_CUDA, "a plug-in", "FlashInfer"),
    FOREIGN("FLASHINFER_MLA", ATTN_DEVICE_CUDA, "a plug-in", "FlashInfer over latent rows"),
    FOREIGN("ROCM_AITER_MLA", ATTN_DEVICE_CUDA, "a plug-in", "AITER's latent kernels"),
    FOREIGN("FLEX_ATTENTION", ATTN_DEVICE_CUDA, "PORTABLE_ATTN", "compiled masks of PyTorch"),
};

const size_t attn_registry_count = sizeof attn_registry / sizeof attn_registry[0];

/* What serves a portable part on a device that its own backend is not for. */
static const struct {
  attn_device_kind device;
  const char *part;
  const attn_backend *backend;
} stand_ins[] = {
    {ATTN_DEVICE_CPU, "PORTABLE_ATTN", &attn_cpu_backend},
    {ATTN_DEVICE_CPU, "PORTABLE_MLA", &attn_cpu_mla_backend},
};

static const attn_registry_row *find_row(const char *name) {
  for (size_t i = 0; i < attn_registry_count; i++) {
    if (strcmp(attn_registry[i].name, name) == 0) {
      return &attn_registry[i];
    }
  }
  return NULL;
}

const attn_backend *attn_registry_part(const attn_registry_row *row, attn_device_kind device) {
  const attn_registry_row *part = find_row(row->part);
  if (part != NULL && part->backend != NULL && part->device == device) {
    return part->backend;
  }
  for (size_t i = 0; i < sizeof stand_ins / sizeof stand_ins[0]; i++) {
    if (stand_ins[i].device == device && strcmp(stand_ins[i].part, row->part) == 0) {
      return stand_ins[i].backend;
    }
  }
  return NULL;
}

/* Why a name that is not a backend of this device cannot be had. */
static attn_verdict judge_absent(const attn_registry_row *row, attn_device_kind device,
                                 char reason[ATTN_REASON_BYTES]) {
  if (row->foreign) {
    const attn_backend *part = attn_registry_part(row, device);
    if (part != NULL) {
      (void)snprintf(reason, ATTN_REASON_BYTES, "a name of another system (%s); %s plays its part here", row->summary,
                     part->name);
    } else {
      (void)snprintf(reason, ATTN_REASON_BYTES,
                     "a name of another system (%s); %s is to play its part and is not built", row->summary, row->part);
    }
    return ATTN_VERDICT_FOREIGN;
  }
  if (row->backend == NULL) {
    (void)snprintf(reason, ATTN_REASON_BYTES, "not in this build (%s, device %s)", row->summary,
                   attn_device_kind_name(row->device));
  } else {
    (void)snprintf(reason, ATTN_REASON_BYTES, "runs on device %s, this context is %s",
                   attn_device_kind_name(row->device), attn_device_kind_name(device));
  }
  return ATTN_VERDICT_NOT_BUILT;
}

attn_verdict attn_registry_judge(const attn_registry_row *row, const attn_context *context, const attn_problem *problem,
                                 const attn_plan_options *options, char reason[ATTN_REASON_BYTES]) {
  if (row->foreign || row->backend == NULL || row->device != context->device) {
    return judge_absent(row, context->device, reason);
  }
  if (!row->backend->supports(context, problem, options, reason)) {
    return ATTN_VERDICT_REFUSED;
  }
  (void)snprintf(reason, ATTN_REASON_BYTES, "%s", row->summary);
  return ATTN_VERDICT_ABLE;
}

/* "" and "auto" are no choice. */
static const char *choice(const char *name) {
  return name != NULL && name[0] != '\0' && strcmp(name, "auto") != 0 ? name : NULL;
}

static attn_status known_name(const char *name, const char *source, const attn_registry_row **row,
                              attn_message *message) {
  *row = find_row(name);
  if (*row != NULL) {
    return ATTN_OK;
  }
  char names[256];
  size_t used = 0;
  names[0] = '\0';
  for (size_t i = 0; i < attn_registry_count && used < sizeof names; i++) {
    if (attn_registry[i].backend != NULL) {
      int n = snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", attn_registry[i].name);
      used += n > 0 ? (size_t)n : 0;
    }
  }
  return attn_fail(message, ATTN_E_NAME, "%s: unknown backend '%.64s'; accepted: auto, %s", source, name, names);
}

attn_status attn_registry_forced(const attn_context *context, const char *name, const attn_registry_row **row,
                                 const char **source, attn_message *message) {
  *row = NULL;
  *source = "";
  const char *argument = choice(name);
  const char *variable = choice(getenv("ATTN_BACKEND"));
  if (variable != NULL) {
    /* judged even when the argument beats it: a misspelt name must not go unseen */
    ATTN_TRY(known_name(variable, "ATTN_BACKEND", row, message));
    *source = "ATTN_BACKEND";
  }
  if (argument != NULL) {
    ATTN_TRY(known_name(argument, "backend", row, message));
    *source = "backend";
  }
  if (*row == NULL) {
    return ATTN_OK;
  }
  if ((*row)->foreign || (*row)->backend == NULL || (*row)->device != context->device) {
    char reason[ATTN_REASON_BYTES];
    (void)judge_absent(*row, context->device, reason);
    return attn_fail(message, ATTN_E_BACKEND, "%s: %s is %s", *source, (*row)->name, reason);
  }
  return ATTN_OK;
}

/* The first failing condition of every backend of the device, for the refusal. */
static attn_status none_able(const attn_context *context, const attn_problem *problem, const attn_plan_options *options,
                             attn_message *message) {
  char all[ATTN_MESSAGE_BYTES];
  size_t used = 0;
  all[0] = '\0';
  for (size_t i = 0; i < attn_registry_count && used < sizeof all; i++) {
    char reason[ATTN_REASON_BYTES];
    if (attn_registry_judge(&attn_registry[i], context, problem, options, reason) == ATTN_VERDICT_REFUSED) {
      int n = snprintf(all + used, sizeof all - used, "%s%s: %s", used > 0 ? "; " : "", attn_registry[i].name, reason);
      used += n > 0 ? (size_t)n : 0;
    }
  }
  return attn_fail(message, ATTN_E_UNSUPPORTED, "no backend of device %s serves this problem (%s)",
                   attn_device_kind_name(context->device), used > 0 ? all : "none is built");
}

static void tell_force(const char *source, char reason[ATTN_REASON_BYTES]) {
  (void)snprintf(reason, ATTN_REASON_BYTES, "forced by %s",
                 strcmp(source, "backend") == 0 ? "the backend argument" : source);
}

attn_status attn_registry_select(const attn_context *context, const attn_problem *problem,
                                 const attn_plan_options *options, const attn_backend **backend,
                                 char reason[ATTN_REASON_BYTES], attn_message *message) {
  const attn_registry_row *forced;
  const char *source;
  ATTN_TRY(attn_registry_forced(context, options->backend, &forced, &source, message));
  if (forced != NULL) {
    char why[ATTN_REASON_BYTES];
    if (!forced->backend->supports(context, problem, options, why)) {
      return attn_fail(message, ATTN_E_BACKEND, "%s: %s cannot serve this problem: %s", source, forced->name, why);
    }
    tell_force(source, reason);
    *backend = forced->backend;
    return ATTN_OK;
  }
  for (size_t i = 0; i < attn_registry_count; i++) {
    char why[ATTN_REASON_BYTES];
    if (attn_registry_judge(&attn_registry[i], context, problem, options, why) == ATTN_VERDICT_ABLE) {
      (void)snprintf(reason, ATTN_REASON_BYTES, "first of device %s that serves the problem",
                     attn_device_kind_name(context->device));
      *backend = attn_registry[i].backend;
      return ATTN_OK;
    }
  }
  return none_able(context, problem, options, message);
}

attn_status attn_registry_explain_call(const attn_context *context, const char *name, const attn_backend **backend,
                                       char *reason, attn_message *message) {
  const attn_registry_row *forced;
  const char *source;
  ATTN_TRY(attn_registry_forced(context, name, &forced, &source, message));
  if (forced != NULL) {
    if (reason != NULL) {
      tell_force(source, reason);
    }
    *backend = forced->backend;
    return ATTN_OK;
  }
  for (size_t i = 0; i < attn_registry_count; i++) {
    if (attn_registry[i].backend != NULL && attn_registry[i].device == context->device) {
      if (reason != NULL) {
        (void)snprintf(reason, ATTN_REASON_BYTES, "first of the backends built for %s",
                       attn_device_kind_name(context->device));
      }
      *backend = attn_registry[i].backend;
      return ATTN_OK;
    }
  }
  return attn_fail(message, ATTN_E_UNSUPPORTED, "no backend of device %s is built",
                   attn_device_kind_name(context->device));
}

attn_status attn_registry_select_call(const attn_context *context, const char *name, const attn_backend **backend,
                                      attn_message *message) {
  return attn_registry_explain_call(context, name, backend, NULL, message);
}
