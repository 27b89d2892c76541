/* SPDX-License-Identifier: Apache-2.0 */
/* run_view.h: tensors of a run against its plan and schedule: what attn_run() and the latent calls share. */
#ifndef ATTN_API_RUN_VIEW_H
#define ATTN_API_RUN_VIEW_H

#include "core/plan_impl.h"

/* A tensor that the problem declares (by `field`) has to be given, and the reverse. */
attn_status attn_run_declared(const DLTensor *tensor, const char *name, int is_declared, const char *field,
                              attn_message *message);

/* `status`; where it is `code`, the message gets the field of the problem that the tensor was held against. */
attn_status attn_run_hint(attn_status status, attn_status code, const char *hint, attn_message *message);

attn_status attn_run_at_least_tokens(const attn_view *view, const char *name, const attn_step *step,
                                     attn_message *message);

/* [tokens or more, heads, size] of one type. */
attn_status attn_run_token_view(attn_view *view, const DLTensor *tensor, const char *name, attn_access access,
                                attn_dtype dtype, int64_t heads, int64_t size, const attn_step *step,
                                attn_message *message);

/* Slopes, sinks, bias, ranges and flags. */
attn_status attn_run_view_options(const attn_plan *plan, const attn_run_args *args, attn_run_view *view,
                                  attn_message *message);

/* output_scale and out_scale; out, lse and these. */
attn_status attn_run_view_output_scales(const attn_plan *plan, const attn_run_args *args, attn_run_view *view,
                                        attn_message *message);
attn_status attn_run_view_outputs(const attn_plan *plan, const attn_run_args *args, attn_run_view *view,
                                  attn_message *message);

/* "attn_mla_run_mqa", ... */
const char *attn_mla_call_name(attn_mla_form form);

#endif
