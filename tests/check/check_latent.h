/* SPDX-License-Identifier: Apache-2.0 */
/* check_latent.h: cases over latent rows (mqa, mha, layer): the engine's own storage of a row in each format, the
 * projection, and the tensors of a call. The oracle sees one KV head of whole rows (mqa), or one per head, expanded in
 * double arithmetic. */
#ifndef ATTN_CHECK_LATENT_H
#define ATTN_CHECK_LATENT_H

#include "check_attention.h"

typedef struct check_latent {
  attn_mla_form form;
  attn_dtype source;      /* of kv_c and k_pe */
  attn_dtype rotary_type; /* of a mixed row's rotary elements; ATTN_DTYPE_DEFAULT where rows have one type */
  int separate;           /* scales in a tensor of their own */
  int new_rows;           /* CHECK_ROWS_...; mqa: CHECK_ROWS_BEFORE */
  int two_queries;
  int32_t row_bytes;    /* of a stored row */
  float static_scale;   /* of fp8_e4m3 */
  int has_static;       /* 0: unset, 1.0 */
  const float *given;   /* [keys, rank + rotary] rows before they are stored */
  const float *seen;    /* [keys, rank + rotary] what a reader of the cache gets */
  const uint8_t *bytes; /* [keys, row_bytes] */
  const float *scales;  /* [keys], where apart */
  check_tensor w_kv_b;
  check_tensor w_scale;
  check_tensor q_rope;
  check_tensor kv_c;
  check_tensor k_pe;
  check_tensor slots;
  attn_mla_weights *weights;
  attn_mla_args args;
  DLTensor out; /* of a layer: two axes over the memory of three */
  int64_t out_shape[2];
  int64_t out_strides[2];
} check_latent;

/* Draw everything of the model and of the rows. */
void check_latent_draw(check_arena *arena, check_case *c, check_model *model, check_latent *latent);

/* The steps of check_lay(): queries, cache and new rows; the problem's fields; arguments that all calls share. */
struct check_lay_state;
void check_lay_latent(struct check_lay_state *y, int pool_class);
void check_latent_problem(const check_case *c, const check_latent *latent, attn_problem *problem);
void check_latent_finish(check_latent *latent, const check_laid *laid);

/* The call of the form. */
attn_status check_latent_call(const attn_plan *plan, const check_latent *latent, const attn_workspace *workspace,
                              attn_message *message);

/* Rows that the call wrote are what they have to be, byte by byte; then the old bytes are put back. */
int check_latent_written(check_env *env, const check_case *c, check_laid *laid);

/* Inputs that only latent calls have are as they were. */
int check_latent_kept(check_env *env, const check_latent *latent);

#endif
