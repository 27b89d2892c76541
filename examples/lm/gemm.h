/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one matrix product of the runner: y[m, n] = x[m, k] * W[n, k]^T in float32, or with x and W rounded to bfloat16
 * and sums in float32. A weight is handed over once, row by row, and kept only in the layout that the product wants.
 * gemm_onednn.c and gemm_plain.c implement this interface; a build has one of them.
 */
#ifndef LM_GEMM_H
#define LM_GEMM_H

#include "lm_error.h"

#include <attn/backend.h>

typedef enum gemm_compute {
  GEMM_FASTER, /**< bfloat16 where the processor multiplies it itself, otherwise float32 */
  GEMM_FLOAT32,
  GEMM_BFLOAT16
} gemm_compute;

typedef struct gemm_engine gemm_engine;
typedef struct gemm_weight gemm_weight;

/** Writes rows first .. first + count - 1 of W, compact, k floats each. */
typedef void (*gemm_rows)(void *context, int64_t first, int64_t count, float *out);

/** "oneDNN 3.6" or "plain C". Static storage. */
const char *gemm_name(void);

/**
 * To be called first in main: gives the product's thread runtime its settings, which it reads when the process starts,
 * by starting the program once more where needed. Settings of the user's own are left alone. May not return.
 */
void gemm_prepare_process(char **argv);

/** `threads` threads for every product of this engine. ATTN_E_NO_DEVICE if bfloat16 is wanted and cannot be had. */
ATTN_NODISCARD attn_status gemm_create(int32_t threads, gemm_compute compute, gemm_engine **out, attn_message *message);

/** GEMM_FLOAT32 or GEMM_BFLOAT16. */
gemm_compute gemm_compute_of(const gemm_engine *engine);

/**
 * The engine's threads, lent to the attention: one set of threads then serves both, and never two sets compete for the
 * processors. NULL where the product has no threads of its own. Lives as long as the engine.
 */
const attn_executor *gemm_executor(const gemm_engine *engine);

/** After its weights. NULL is allowed. */
void gemm_destroy(gemm_engine *engine);

/** Takes W[n, k]. Peak memory is twice the weight's own while this runs, its own afterwards. */
ATTN_NODISCARD attn_status gemm_weight_create(gemm_engine *engine, int64_t n, int64_t k, gemm_rows rows, void *context,
                                              gemm_weight **out, attn_message *message);

/** NULL is allowed. */
void gemm_weight_destroy(gemm_weight *weight);

/** y[m, n] = x[m, k] * W^T, float32 whatever the engine multiplies; x and y compact and apart. */
ATTN_NODISCARD attn_status gemm_run(gemm_engine *engine, const gemm_weight *weight, int64_t m, const float *x, float *y,
                                    attn_message *message);

#endif
