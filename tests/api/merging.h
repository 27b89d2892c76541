/* SPDX-License-Identifier: Apache-2.0 */
/* merging.h: one call of attn_merge() from plain float arrays to a checked answer, as scene.h is for attn_run(). */
#ifndef ATTN_TESTS_MERGING_H
#define ATTN_TESTS_MERGING_H

#include "harness.h"

#define MERGING_PARTS 8

typedef struct merging {
  int32_t num_parts;
  int64_t tokens, heads, size;
  attn_dtype dtype; /* of the parts' outs; the result is float32 unless result_dtype says more */
  attn_dtype result_dtype;
  int lse_transposed;
  float *out[MERGING_PARTS]; /* [tokens][heads][size] */
  float *lse[MERGING_PARTS]; /* [tokens][heads] */
  float *sinks;              /* [heads] or NULL */

  guarded out_data[MERGING_PARTS], lse_data[MERGING_PARTS], result_out_data, result_lse_data;
  tensor t_out[MERGING_PARTS], t_lse[MERGING_PARTS], t_result_out, t_result_lse, t_sinks;
  const DLTensor *outs[MERGING_PARTS];
  const DLTensor *lses[MERGING_PARTS];
  attn_merge_args args;
  attn_context *context;

  float *result_out;
  float *result_lse;
} merging;

/* Random parts; edit, then merging_run(). */
void merging_init(merging *m, const char *backend, int32_t num_parts, int64_t tokens, int64_t heads, int64_t size,
                  attn_dtype dtype);

/* Lay the parts out; the arguments may be tampered with afterwards. */
void merging_store(merging *m);

/* attn_merge(), with outputs filled with 0xFF before and decoded after; untouched on failure. */
attn_status merging_call(merging *m, attn_message *message);

/* Every row against the equation in double, within the bounds of docs/numerics.md. */
void merging_check(const merging *m);

void merging_free(merging *m);

/* store, call, check. */
void merging_prove(merging *m);

#endif
