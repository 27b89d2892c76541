/* SPDX-License-Identifier: Apache-2.0 */
/* resolve_latent.c: what a latent problem, pool or request says of its rows. */
#include "core/resolve.h"

static attn_status exactly(const char *field, int32_t value, int32_t also, const char *why, attn_message *message) {
  if (value != 0 && value != also) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: 0 or %d (%s)", field, (int)value, (int)also, why);
  }
  return ATTN_OK;
}

static attn_status must_be_zero(const char *field, int32_t value, const char *why, attn_message *message) {
  if (value != 0) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: 0 (%s)", field, (int)value, why);
  }
  return ATTN_OK;
}

attn_status attn_latent_rows_check(const char *prefix, attn_format format, int32_t rank, int32_t rotary,
                                   attn_dtype rotary_dtype, attn_message *message) {
  const attn_format_facts *facts = attn_format_of(format);
  if (rank < 1) {
    return attn_fail(message, ATTN_E_RANGE, "%skv_lora_rank: %d, accepted: 1 or more", prefix, (int)rank);
  }
  if (rotary < 0 || rotary > INT32_MAX - rank) {
    return attn_fail(message, ATTN_E_RANGE, "%sqk_rope_head_dim: %d, accepted: 0 to %d", prefix, (int)rotary,
                     (int)(INT32_MAX - rank));
  }
  if (facts->scale == ATTN_SCALE_TILE && (rank != ATTN_TILED_RANK || rotary != ATTN_TILED_ROTARY)) {
    return attn_fail(message, ATTN_E_RANGE, "%s%s: %d with %s, accepted: %d", prefix,
                     rank != ATTN_TILED_RANK ? "kv_lora_rank" : "qk_rope_head_dim",
                     (int)(rank != ATTN_TILED_RANK ? rank : rotary), attn_format_name(format),
                     rank != ATTN_TILED_RANK ? ATTN_TILED_RANK : ATTN_TILED_ROTARY);
  }
  if (facts->scale == ATTN_SCALE_ROW && rank + rotary > ATTN_ROW_MAX) {
    return attn_fail(message, ATTN_E_RANGE,
                     "%skv_lora_rank: %d and %d rotary elements with %s, accepted: up to %d of both", prefix, (int)rank,
                     (int)rotary, attn_format_name(format), ATTN_ROW_MAX);
  }
  if (!attn_format_is_mixed(facts)) {
    if (rotary_dtype != ATTN_DTYPE_DEFAULT) {
      return attn_fail(message, ATTN_E_DTYPE,
                       "%srotary_dtype: %s with %s, accepted: 0 (the rotary elements are as the others)", prefix,
                       attn_dtype_name(rotary_dtype), attn_format_name(format));
    }
    return ATTN_OK;
  }
  if (rotary_dtype != ATTN_DTYPE_FLOAT16 && rotary_dtype != ATTN_DTYPE_BFLOAT16) {
    return attn_fail(message, ATTN_E_DTYPE, "%srotary_dtype: %s (%d) with %s, accepted: float16, bfloat16", prefix,
                     attn_dtype_name(rotary_dtype), (int)rotary_dtype, attn_format_name(format));
  }
  return ATTN_OK;
}

/* Fields that have no meaning for a plain problem. */
static attn_status refuse_latent_fields(const attn_problem *p, attn_message *message) {
  const char *why = "kv_lora_rank is 0";
  ATTN_TRY(must_be_zero("qk_rope_head_dim", p->qk_rope_head_dim, why, message));
  ATTN_TRY(must_be_zero("qk_nope_head_dim", p->qk_nope_head_dim, why, message));
  ATTN_TRY(must_be_zero("mla_v_head_dim", p->mla_v_head_dim, why, message));
  ATTN_TRY(must_be_zero("rotary_dtype", (int32_t)p->rotary_dtype, why, message));
  ATTN_TRY(must_be_zero("mla_form", (int32_t)p->mla_form, why, message));
  return must_be_zero("context_chunk", p->context_chunk, why, message);
}

/* What mqa leaves out, and what mha and layer need. */
static attn_status check_form(attn_problem *p, attn_message *message) {
  if (p->mla_form != ATTN_MLA_MQA && p->mla_form != ATTN_MLA_MHA && p->mla_form != ATTN_MLA_LAYER) {
    return attn_fail(message, ATTN_E_RANGE, "mla_form: %d, accepted: 0 (mqa), 1 (mha), 2 (layer)", (int)p->mla_form);
  }
  if (p->kv_source == ATTN_KV_DIRECT && p->mla_form != ATTN_MLA_MHA) {
    return attn_fail(message, ATTN_E_RANGE,
                     "kv_source: 1 (no cache) with mla_form %d, accepted: 0; mha alone needs none", (int)p->mla_form);
  }
  if (p->mla_form == ATTN_MLA_MQA) {
    const char *why = "mla_form is mqa";
    ATTN_TRY(must_be_zero("qk_nope_head_dim", p->qk_nope_head_dim, why, message));
    ATTN_TRY(must_be_zero("mla_v_head_dim", p->mla_v_head_dim, why, message));
    return must_be_zero("context_chunk", p->context_chunk, why, message);
  }
  if (p->qk_nope_head_dim < 1 || p->qk_nope_head_dim > INT32_MAX - p->qk_rope_head_dim) {
    return attn_fail(message, ATTN_E_RANGE, "qk_nope_head_dim: %d, accepted: 1 to %d", (int)p->qk_nope_head_dim,
                     (int)(INT32_MAX - p->qk_rope_head_dim));
  }
  if (p->mla_v_head_dim < 1) {
    return attn_fail(message, ATTN_E_RANGE, "mla_v_head_dim: %d, accepted: 1 or more", (int)p->mla_v_head_dim);
  }
  if (p->context_chunk < 0) {
    return attn_fail(message, ATTN_E_RANGE, "context_chunk: %d, accepted: 0 (automatic) or more",
                     (int)p->context_chunk);
  }
  if (p->causal != 1) {
    return attn_fail(message, ATTN_E_RANGE, "causal: %d, accepted: 1 (mha and layer are causal among the new tokens)",
                     (int)p->causal);
  }
  return must_be_zero("has_causal_per_seq", p->has_causal_per_seq, "mha and layer are causal", message);
}

/* Head counts and sizes follow from the row; they may be said again. */
static attn_status check_sizes(attn_problem *p, attn_message *message) {
  int is_mqa = p->mla_form == ATTN_MLA_MQA;
  int32_t qk = (is_mqa ? p->kv_lora_rank : p->qk_nope_head_dim) + p->qk_rope_head_dim;
  int32_t v = is_mqa ? p->kv_lora_rank : p->mla_v_head_dim;
  ATTN_TRY(exactly("num_kv_heads", p->num_kv_heads, 1, "all heads share a latent row", message));
  ATTN_TRY(exactly("qk_head_size", p->qk_head_size, qk,
                   is_mqa ? "kv_lora_rank + qk_rope_head_dim" : "qk_nope_head_dim + qk_rope_head_dim", message));
  ATTN_TRY(exactly("v_head_size", p->v_head_size, v, is_mqa ? "kv_lora_rank" : "mla_v_head_dim", message));
  p->num_kv_heads = 1;
  p->qk_head_size = qk;
  p->v_head_size = v;
  return ATTN_OK;
}

attn_status attn_latent_resolve(attn_problem *p, attn_message *message) {
  if (p->kv_lora_rank == 0) {
    return refuse_latent_fields(p, message);
  }
  if (p->kv_lora_rank < 0) {
    return attn_fail(message, ATTN_E_RANGE, "kv_lora_rank: %d, accepted: 0 (none) or more", (int)p->kv_lora_rank);
  }
  if (p->qk_rope_head_dim < 0 || p->qk_rope_head_dim > INT32_MAX - p->kv_lora_rank) {
    return attn_fail(message, ATTN_E_RANGE, "qk_rope_head_dim: %d, accepted: 0 to %d", (int)p->qk_rope_head_dim,
                     (int)(INT32_MAX - p->kv_lora_rank));
  }
  if (p->q_dtype == ATTN_DTYPE_FP8_E4M3) {
    return attn_fail(message, ATTN_E_DTYPE,
                     "q_dtype: fp8_e4m3 with kv_lora_rank %d, accepted: float32, float16, bfloat16",
                     (int)p->kv_lora_rank);
  }
  if (p->layout != ATTN_LAYOUT_NHD) {
    return attn_fail(message, ATTN_E_RANGE, "layout: %d, accepted: 0 (latent rows have no heads)", (int)p->layout);
  }
  if (p->mla_form == ATTN_MLA_LAYER && p->wants_lse != 0) {
    return attn_fail(message, ATTN_E_RANGE, "wants_lse: %d, accepted: 0 (a layer's heads are joined)",
                     (int)p->wants_lse);
  }
  if (p->separate_scales != ATTN_SEPARATE_NONE && p->separate_scales != ATTN_SEPARATE_BOTH) {
    return attn_fail(message, ATTN_E_RANGE, "separate_scales: %d, accepted: 0 (inline), 1 (a tensor of their own)",
                     (int)p->separate_scales);
  }
  ATTN_TRY(check_form(p, message));
  return check_sizes(p, message);
}
