/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file backend.h  Devices, contexts, and which backend serves a problem, with the reasons.   (stable)
 *
 * A context stands for one device. The CPU always works. For a problem, each backend of that device answers whether it
 * can serve it and, if not, its first failing condition; the selector takes the first that can, in a fixed order of
 * priority, or the one that was forced, or refuses. Nothing is ever replaced silently.
 *
 * Forcing: the `backend` argument of a call beats the environment variable ATTN_BACKEND, which is read at each call
 * that selects. "" and "auto" mean no choice. An unknown name is ATTN_E_NAME; a name of another system (TRITON_ATTN,
 * ...) is ATTN_E_BACKEND and the message names what plays its part here.
 */
#ifndef ATTN_BACKEND_H
#define ATTN_BACKEND_H

#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct attn_problem;      /* problem.h */
struct attn_plan_limits;  /* plan.h */
struct attn_plan_options; /* plan.h */

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

/** The one list of device kinds: X(name, value, spelling, DLPack device type, built in). */
#define ATTN_DEVICE_LIST(X)                                                                                            \
  X(ATTN_DEVICE_CPU, 0, "cpu", kDLCPU, 1)                                                                              \
  X(ATTN_DEVICE_CUDA, 1, "cuda", kDLCUDA, 0)                                                                           \
  X(ATTN_DEVICE_OPENCL, 2, "opencl", kDLOpenCL, 0)

typedef enum attn_device_kind {
#define ATTN_DEVICE_ENUM(name, value, spelling, dlpack, built) name = value,
  ATTN_DEVICE_LIST(ATTN_DEVICE_ENUM)
#undef ATTN_DEVICE_ENUM
} attn_device_kind;

/** "cpu", "cuda", "opencl"; "unknown" outside the list. Never NULL; static storage. */
ATTN_API const char *attn_device_kind_name(attn_device_kind kind);

/** Devices of a kind that a context can be made for; 0 where the kind is not built in or nothing was found. */
ATTN_API int32_t attn_device_count(attn_device_kind kind);

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

/** One task of a parallel call. `index` runs from 0 to count - 1. */
typedef void (*attn_task)(void *task_argument, size_t index);

/**
 * The host's own threads. `run` has to call task(task_argument, i) exactly once for each i < count, in any order and on
 * any threads, and to return after all have finished. Tasks never wait for each other. `count` is at most num_threads.
 */
typedef struct attn_executor {
  void *user;
  void (*run)(void *user, attn_task task, void *task_argument, size_t count);
} attn_executor;

/** Options of attn_context_create(). Start from ATTN_CONTEXT_OPTIONS_INIT. */
typedef struct attn_context_options {
  uint32_t size;                 /**< sizeof(attn_context_options) */
  attn_device_kind device;       /**< 0: the CPU */
  int32_t device_index;          /**< which of attn_device_count(); the CPU is one device */
  int32_t num_threads;           /**< CPU: threads used by a call, the caller's included, 1 to 1024; 0: 1. Without an
                                      executor, more than 1 needs a build with pthreadpool (ATTN_E_UNSUPPORTED) */
  const attn_executor *executor; /**< NULL: the library's pool (pthreadpool); else copied here, `user` is borrowed */
} attn_context_options;
#define ATTN_CONTEXT_OPTIONS_INIT ATTN_INIT(attn_context_options)

/** A device, its threads and its kernel table. Opaque. */
typedef struct attn_context attn_context;

/**
 * Make a context. `options` NULL: the CPU with one thread. The environment variable ATTN_CPU (generic, ...) caps the
 * instruction set level; an unknown value is ATTN_E_NAME.
 *
 * *context belongs to the caller: attn_context_destroy(). It may be used from several threads at once; parallel calls
 * that share one pool then run one after the other.
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_RANGE; ATTN_E_NAME; ATTN_E_UNSUPPORTED (threads without a
 *         pool); ATTN_E_NO_DEVICE (kind not built in, or index not found); ATTN_E_NOMEM.
 */
ATTN_API ATTN_NODISCARD attn_status attn_context_create(const attn_context_options *options, attn_context **context,
                                                        attn_message *message);

/** Destroy a context, after every plan made from it. NULL is allowed. */
ATTN_API void attn_context_destroy(attn_context *context);

/** What a context is, for people and reports. Start from ATTN_CONTEXT_INFO_INIT. */
typedef struct attn_context_info {
  uint32_t size; /**< sizeof(attn_context_info) */
  attn_device_kind device;
  int32_t device_index;
  int32_t num_threads;   /**< threads of a call */
  int32_t has_executor;  /**< 1: the host's threads */
  char device_name[96];  /**< the processor's or card's own name, or "unknown" */
  char level[32];        /**< instruction set level in use: "generic", ... */
  char levels_found[64]; /**< levels that both the machine and this build have, spaces between, lowest first */
  uint64_t l1d_bytes;    /**< cache sizes of one core, 0 where unknown */
  uint64_t l2_bytes;
  uint64_t l3_bytes;
} attn_context_info;
#define ATTN_CONTEXT_INFO_INIT ATTN_INIT(attn_context_info)

/** Fill *info. @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE. */
ATTN_API ATTN_NODISCARD attn_status attn_context_get_info(const attn_context *context, attn_context_info *info,
                                                          attn_message *message);

/** One CPU kernel in the table of this context, for `attn info` and reports. */
typedef struct attn_kernel_info {
  const char *operation;  /**< what it does, see docs/kernels.md; static storage */
  const char *types;      /**< "bfloat16", ... or "any"; static storage */
  const char *head_class; /**< head sizes it is for, "any" or a size; static storage */
  const char *level;      /**< "generic", ...; static storage */
  const char *symbol;     /**< the function's name in the source; static storage */
  int32_t in_use;         /**< 1: this context's table points at it */
} attn_kernel_info;

/** The index-th kernel of the build, in the order of kernels.inc. @return 1, or 0 when there are no more. */
ATTN_API int attn_context_kernel(const attn_context *context, size_t index, attn_kernel_info *info);

/* ---- The registry ------------------------------------------------------------------------------------------------ */

/** What a row of a cache holds: bits. */
typedef enum attn_row_kind {
  ATTN_ROWS_KV = 1,    /**< one head's key or value */
  ATTN_ROWS_LATENT = 2 /**< what all heads share (mla.h) */
} attn_row_kind;

/** One name that the registry knows. */
typedef struct attn_backend_info {
  const char *name;        /**< "CPU_ATTN", ..., or the name of another system's backend; static storage */
  attn_device_kind device; /**< where it runs */
  int32_t foreign;         /**< 1: a name of another system, never a backend here */
  int32_t built;           /**< 1: in this build. Always 0 for a foreign name */
  int32_t rows;            /**< bits of attn_row_kind: the caches it attends to; 0 unless it is built */
  const char *plays;   /**< ours: what it stands in for; foreign: our backend that plays its part, "" for none yet */
  const char *summary; /**< what it is, in a line; static storage */
} attn_backend_info;

/** The index-th name of the registry; ours first, in order of priority within a device. @return 1, or 0 at the end. */
ATTN_API int attn_backend_get(size_t index, attn_backend_info *info);

/* ---- The dry run ------------------------------------------------------------------------------------------------- */

typedef enum attn_verdict {
  ATTN_VERDICT_TAKEN = 1,     /**< the backend that a plan would get */
  ATTN_VERDICT_ABLE = 2,      /**< could serve the problem, stands behind the one taken */
  ATTN_VERDICT_REFUSED = 3,   /**< cannot; `reason` is its first failing condition */
  ATTN_VERDICT_NOT_BUILT = 4, /**< not in this build or not on this device; `reason` says which */
  ATTN_VERDICT_FOREIGN = 5    /**< a name of another system; `reason` says what plays its part here */
} attn_verdict;

/** "taken", "able", ... Never NULL; static storage. */
ATTN_API const char *attn_verdict_name(attn_verdict verdict);

#define ATTN_EXPLAIN_ROWS 32
#define ATTN_REASON_BYTES 192

typedef struct attn_explain_row {
  const char *backend; /**< static storage */
  attn_verdict verdict;
  char reason[ATTN_REASON_BYTES]; /**< one line, never empty */
} attn_explain_row;

/** Answer of attn_explain(). Start from ATTN_EXPLANATION_INIT; about 7 KiB, owned by the caller. */
typedef struct attn_explanation {
  uint32_t size;                   /**< sizeof(attn_explanation) */
  attn_status status;              /**< ATTN_OK, or what attn_plan_create() would return */
  char pick[32];                   /**< the backend a plan would get, "" when status is not ATTN_OK */
  char reason[ATTN_REASON_BYTES];  /**< why it, or why none */
  uint64_t workspace_bytes;        /**< attn_plan_workspace_bytes() of that plan */
  uint64_t excess_workspace_bytes; /**< of these, what a forced split count costs beyond the automatic choice */
  uint64_t on_chip_bytes;          /**< on-chip memory of one work item (CPU: bytes meant to stay in L2) */
  int32_t block_size;           /**< the plan's: the problem's, or the preferred one if it had 0; 0 without a cache */
  int32_t preferred_block_size; /**< what this backend likes best */
  int32_t max_splits;           /**< the most pieces that a row's keys are cut into */
  int32_t num_rows;             /**< rows filled below */
  attn_explain_row rows[ATTN_EXPLAIN_ROWS]; /**< every name of the registry, ours first */
} attn_explanation;
#define ATTN_EXPLANATION_INIT ATTN_INIT(attn_explanation)

/**
 * The dry run of attn_plan_create(): which backend would be taken on this context's device, and for each other name of
 * the registry its first failing condition. Allocates nothing.
 *
 * @param limits   NULL: one sequence of up to 4096 keys and 4096 tokens
 * @param options  NULL: none; options->backend forces
 * @return ATTN_OK whenever *explanation was filled (its `status` says whether a plan would be made); ATTN_E_NULL,
 *         ATTN_E_STRUCT_SIZE, and what attn_problem_check() returns for an invalid problem.
 */
ATTN_API ATTN_NODISCARD attn_status attn_explain(const attn_context *context, const struct attn_problem *problem,
                                                 const struct attn_plan_limits *limits,
                                                 const struct attn_plan_options *options, attn_explanation *explanation,
                                                 attn_message *message);

/**
 * The selector alone: the name of the backend that a plan would get.
 *
 * @param name  set to static storage on success
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_NAME (unknown name, its source is named); ATTN_E_BACKEND
 *         (the forced one cannot, with its first failing condition); ATTN_E_UNSUPPORTED (none can); and what
 *         attn_problem_check() returns.
 */
ATTN_API ATTN_NODISCARD attn_status attn_select(const attn_context *context, const struct attn_problem *problem,
                                                const struct attn_plan_limits *limits,
                                                const struct attn_plan_options *options, const char **name,
                                                attn_message *message);

/**
 * The selector of the calls that have no problem (cache.h, merge.h): the name of the backend that such a call gets with
 * this `backend` argument. Forcing is as above; without it the first of the device's backends is taken.
 *
 * @param backend  the `backend` field of the call's arguments: NULL, "" or "auto" for no choice
 * @param name     set to static storage on success
 * @param reason   NULL, or why it, in one line; written on success
 * @return ATTN_OK; ATTN_E_NULL (context, name); ATTN_E_NAME (unknown name, its source is named); ATTN_E_BACKEND (the
 *         forced one is not of this device or build).
 */
ATTN_API ATTN_NODISCARD attn_status attn_select_call(const attn_context *context, const char *backend,
                                                     const char **name, char reason[ATTN_REASON_BYTES],
                                                     attn_message *message);

/**
 * Register a backend from a shared object (declared; not built in yet).
 * @return ATTN_E_UNSUPPORTED until plug-ins are built.
 */
ATTN_API ATTN_NODISCARD attn_status attn_backend_register(attn_context *context, const char *path,
                                                          attn_message *message);

#ifdef __cplusplus
}
#endif
#endif
