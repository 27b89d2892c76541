/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix product in plain C, for builds without oneDNN: one thread. W is kept in panels of 16 rows, transposed, so
 * that the inner loop walks memory in order and adds 16 independent sums, which a compiler turns into vectors without
 * reordering any sum. A panel stays in the cache for all rows of x. A row's bits do not depend on the other rows.
 */
#include "gemm.h"

#include <stdlib.h>
#include <string.h>

enum { PANEL = 16, ROWS = 4 };

struct gemm_engine {
  int32_t threads;
};

struct gemm_weight {
  int64_t n;
  int64_t k;
  float *panels; /* [ceil(n / PANEL)][k][PANEL], zeros beyond n */
};

const char *gemm_name(void) {
  return "plain C";
}

void gemm_prepare_process(char **argv) {
  (void)argv;
}

attn_status gemm_create(int32_t threads, gemm_compute compute, gemm_engine **out, attn_message *message) {
  if (compute == GEMM_BFLOAT16) {
    return lm_fail(message, ATTN_E_NO_DEVICE,
                   "--compute bfloat16 needs oneDNN, which this build lacks; accepted is "
                   "float32");
  }
  *out = malloc(sizeof **out);
  if (*out == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the matrix product");
  }
  (*out)->threads = threads;
  return ATTN_OK;
}

gemm_compute gemm_compute_of(const gemm_engine *engine) {
  (void)engine;
  return GEMM_FLOAT32;
}

const attn_executor *gemm_executor(const gemm_engine *engine) {
  (void)engine;
  return NULL;
}

void gemm_destroy(gemm_engine *engine) {
  free(engine);
}

attn_status gemm_weight_create(gemm_engine *engine, int64_t n, int64_t k, gemm_rows rows, void *context,
                               gemm_weight **out, attn_message *message) {
  (void)engine;
  const int64_t panels = (n + PANEL - 1) / PANEL;
  gemm_weight *weight = calloc(1, sizeof *weight);
  float *block = malloc((size_t)k * PANEL * sizeof *block);
  float *packed = malloc((size_t)panels * (size_t)k * PANEL * sizeof *packed);
  if (weight == NULL || block == NULL || packed == NULL) {
    free(weight);
    free(block);
    free(packed);
    return lm_fail(message, ATTN_E_NOMEM, "no memory for a weight of %lld x %lld", (long long)n, (long long)k);
  }
  for (int64_t p = 0; p < panels; p++) {
    const int64_t count = n - p * PANEL < PANEL ? n - p * PANEL : PANEL;
    memset(block, 0, (size_t)k * PANEL * sizeof *block);
    rows(context, p * PANEL, count, block);
    float *panel = packed + p * k * PANEL;
    for (int64_t i = 0; i < k; i++) {
      for (int64_t j = 0; j < PANEL; j++) {
        panel[i * PANEL + j] = block[j * k + i];
      }
    }
  }
  free(block);
  *weight = (gemm_weight){n, k, packed};
  *out = weight;
  return ATTN_OK;
}

void gemm_weight_destroy(gemm_weight *weight) {
  if (weight != NULL) {
    free(weight->panels);
    free(weight);
  }
}

/* ROWS rows of x by one panel. */
static void multiply_rows(int64_t k, const float *x, const float *panel, float sums[ROWS][PANEL]) {
  memset(sums, 0, sizeof(float) * ROWS * PANEL);
  for (int64_t i = 0; i < k; i++) {
    const float *column = panel + i * PANEL;
    for (int r = 0; r < ROWS; r++) {
      const float factor = x[r * k + i];
      for (int j = 0; j < PANEL; j++) {
        sums[r][j] += factor * column[j];
      }
    }
  }
}

static void multiply_row(int64_t k, const float *x, const float *panel, float sums[PANEL]) {
  memset(sums, 0, sizeof(float) * PANEL);
  for (int64_t i = 0; i < k; i++) {
    const float *column = panel + i * PANEL;
    for (int j = 0; j < PANEL; j++) {
      sums[j] += x[i] * column[j];
    }
  }
}

attn_status gemm_run(gemm_engine *engine, const gemm_weight *weight, int64_t m, const float *x, float *y,
                     attn_message *message) {
  (void)engine;
  (void)message;
  const int64_t n = weight->n;
  const int64_t k = weight->k;
  for (int64_t first = 0; first < n; first += PANEL) {
    const float *panel = weight->panels + first * k;
    const size_t bytes = (size_t)(n - first < PANEL ? n - first : PANEL) * sizeof(float);
    float sums[ROWS][PANEL];
    int64_t row = 0;
    for (; row + ROWS <= m; row += ROWS) {
      multiply_rows(k, x + row * k, panel, sums);
      for (int r = 0; r < ROWS; r++) {
        memcpy(y + (row + r) * n + first, sums[r], bytes);
      }
    }
    for (; row < m; row++) {
      multiply_row(k, x + row * k, panel, sums[0]);
      memcpy(y + row * n + first, sums[0], bytes);
    }
  }
  return ATTN_OK;
}
