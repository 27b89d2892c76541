/* SPDX-License-Identifier: Apache-2.0 */
/* resolve.c: see resolve.h. One check per field, in the order of the struct, each naming field, value and what is
   accepted. */
#include "core/resolve.h"

#include <math.h>

static attn_status at_least(const char *field, int32_t value, int32_t least, attn_message *message) {
  if (value < least) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: %d or more", field, (int)value, (int)least);
  }
  return ATTN_OK;
}

static attn_status zero_or_one(const char *field, int32_t value, attn_message *message) {
  if (value != 0 && value != 1) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: 0 or 1", field, (int)value);
  }
  return ATTN_OK;
}

static attn_status float_type(const char *field, attn_dtype type, const char *accepted, attn_message *message) {
  switch (type) {
  case ATTN_DTYPE_FLOAT32:
  case ATTN_DTYPE_FLOAT16:
  case ATTN_DTYPE_BFLOAT16:
    return ATTN_OK;
  default:
    return attn_fail(message, ATTN_E_DTYPE, "%s: %s (%d), accepted: %s", field, attn_dtype_name(type), (int)type,
                     accepted);
  }
}

/* The output may be fp8_e4m3, and then alone be scaled by groups. */
static attn_status output_type(const attn_problem *p, attn_message *message) {
  if (p->output_block != 0 && p->output_block != 64 && p->output_block != 128) {
    return attn_fail(message, ATTN_E_RANGE, "output_block: %d, accepted: 0, 64, 128", (int)p->output_block);
  }
  switch (p->out_dtype) {
  case ATTN_DTYPE_FP8_E4M3:
    return ATTN_OK;
  case ATTN_DTYPE_FLOAT32:
  case ATTN_DTYPE_FLOAT16:
  case ATTN_DTYPE_BFLOAT16:
    if (p->output_block != 0) {
      return attn_fail(message, ATTN_E_RANGE, "output_block: %d with out_dtype %s, accepted: 0 unless it is fp8_e4m3",
                       (int)p->output_block, attn_dtype_name(p->out_dtype));
    }
    return ATTN_OK;
  default:
    return attn_fail(message, ATTN_E_DTYPE, "out_dtype: %s (%d), accepted: float32, float16, bfloat16, fp8_e4m3",
                     attn_dtype_name(p->out_dtype), (int)p->out_dtype);
  }
}

attn_status attn_format_check(const char *field, attn_format format, attn_row_kind kind, attn_message *message) {
  if (attn_format_of(format) == NULL) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %s (%d), accepted: a format of attn_format", field,
                     attn_format_name(format), (int)format);
  }
  if (!attn_format_serves(format, kind)) {
    char names[ATTN_FORMAT_NAMES_BYTES];
    return attn_fail(message, ATTN_E_UNSUPPORTED, "%s: %s does not store %s; accepted: %s", field,
                     attn_format_name(format), attn_row_kind_words(kind), attn_format_names(kind, names));
  }
  return ATTN_OK;
}

attn_status attn_separate_scales_check(const char *field, int32_t separate_scales, attn_format k_format,
                                       attn_format v_format, attn_message *message) {
  if (separate_scales < ATTN_SEPARATE_NONE || separate_scales > ATTN_SEPARATE_V) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: 0 (inline), 1 (K and V), 2 (K), 3 (V)", field,
                     (int)separate_scales);
  }
  int k_has = attn_format_of(k_format)->scale == ATTN_SCALE_ROW;
  int v_has = attn_format_of(v_format)->scale == ATTN_SCALE_ROW;
  int fits = separate_scales == ATTN_SEPARATE_BOTH ? k_has || v_has
             : separate_scales == ATTN_SEPARATE_K  ? k_has
                                                   : v_has;
  if (separate_scales != ATTN_SEPARATE_NONE && !fits) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d, but rows of %s (K) and %s (V) have no scales; accepted: 0", field,
                     (int)separate_scales, attn_format_name(k_format), attn_format_name(v_format));
  }
  return ATTN_OK;
}

attn_status attn_row_size_check(const char *field, int32_t size, attn_format format, attn_message *message) {
  if (attn_format_of(format)->scale == ATTN_SCALE_ROW && size > ATTN_ROW_MAX) {
    return attn_fail(message, ATTN_E_RANGE, "%s: %d with %s, accepted: up to %d", field, (int)size,
                     attn_format_name(format), ATTN_ROW_MAX);
  }
  return ATTN_OK;
}

/* What later versions build is refused by name before anything else is judged. */
static attn_status check_not_built(const attn_problem *p, attn_message *message) {
  if (p->cascade != 0) {
    return attn_fail(message, ATTN_E_UNSUPPORTED,
                     "cascade: %d, cascade attention is not served; accepted: 0 (attn_merge "
                     "joins a shared prefix that was run apart: merge.h)",
                     (int)p->cascade);
  }
  ATTN_TRY(at_least("context_parallel", p->context_parallel, 0, message));
  if (p->context_parallel > 1) {
    return attn_fail(message, ATTN_E_UNSUPPORTED, "context_parallel: %d ranks is not built in; accepted: 0 or 1",
                     (int)p->context_parallel);
  }
  return ATTN_OK;
}

static attn_status check_heads(attn_problem *p, attn_message *message) {
  ATTN_TRY(at_least("num_q_heads", p->num_q_heads, 1, message));
  ATTN_TRY(at_least("num_kv_heads", p->num_kv_heads, 1, message));
  if (p->num_q_heads % p->num_kv_heads != 0) {
    return attn_fail(message, ATTN_E_RANGE, "num_q_heads: %d, accepted: a multiple of num_kv_heads (%d)",
                     (int)p->num_q_heads, (int)p->num_kv_heads);
  }
  ATTN_TRY(at_least("qk_head_size", p->qk_head_size, 1, message));
  ATTN_TRY(at_least("v_head_size", p->v_head_size, 0, message));
  if (p->v_head_size == 0) {
    p->v_head_size = p->qk_head_size;
  }
  return ATTN_OK;
}

/* New latent rows alone: their tensors tell their types. */
static attn_status check_direct_latent(const attn_problem *p, attn_message *message) {
  if (p->kv_dtype != ATTN_DTYPE_DEFAULT || p->rotary_dtype != ATTN_DTYPE_DEFAULT) {
    int is_kv = p->kv_dtype != ATTN_DTYPE_DEFAULT;
    return attn_fail(message, ATTN_E_RANGE, "%s: %s without a cache of latent rows, accepted: default",
                     is_kv ? "kv_dtype" : "rotary_dtype", attn_dtype_name(is_kv ? p->kv_dtype : p->rotary_dtype));
  }
  if (p->separate_scales != ATTN_SEPARATE_NONE) {
    return attn_fail(message, ATTN_E_RANGE, "separate_scales: %d without a cache, accepted: 0",
                     (int)p->separate_scales);
  }
  return ATTN_OK;
}

/* One row serves as key and as value. */
static attn_status check_latent_types(const attn_problem *p, attn_message *message) {
  if (p->v_format != p->k_format) {
    return attn_fail(message, ATTN_E_RANGE,
                     "v_format: %s, accepted: auto or k_format (%s), whose row is the value's too",
                     attn_format_name(p->v_format), attn_format_name(p->k_format));
  }
  ATTN_TRY(attn_latent_rows_check("", p->k_format, p->kv_lora_rank, p->qk_rope_head_dim, p->rotary_dtype, message));
  return attn_separate_scales_check("separate_scales", p->separate_scales, p->k_format, p->v_format, message);
}

static attn_status check_types(attn_problem *p, attn_message *message) {
  if (p->q_dtype == ATTN_DTYPE_DEFAULT) {
    p->q_dtype = ATTN_DTYPE_FLOAT32;
  }
  int fp8_query = p->q_dtype == ATTN_DTYPE_FP8_E4M3;
  if (!fp8_query) {
    ATTN_TRY(float_type("q_dtype", p->q_dtype, "float32, float16, bfloat16, fp8_e4m3", message));
  }
  if (p->out_dtype == ATTN_DTYPE_DEFAULT) {
    p->out_dtype = fp8_query ? ATTN_DTYPE_BFLOAT16 : p->q_dtype;
  }
  ATTN_TRY(output_type(p, message));
  if (p->kv_source == ATTN_KV_DIRECT) {
    if (p->k_format != ATTN_FORMAT_AUTO || p->v_format != ATTN_FORMAT_AUTO) {
      return attn_fail(message, ATTN_E_RANGE, "%s: %s without a cache (kv_source ATTN_KV_DIRECT), accepted: auto",
                       p->k_format != ATTN_FORMAT_AUTO ? "k_format" : "v_format",
                       attn_format_name(p->k_format != ATTN_FORMAT_AUTO ? p->k_format : p->v_format));
    }
    if (p->kv_lora_rank > 0) {
      return check_direct_latent(p, message);
    }
    if (p->kv_dtype == ATTN_DTYPE_DEFAULT) {
      p->kv_dtype = fp8_query ? ATTN_DTYPE_BFLOAT16 : p->q_dtype;
    }
    if (p->separate_scales != ATTN_SEPARATE_NONE) {
      return attn_fail(message, ATTN_E_RANGE, "separate_scales: %d without a cache, accepted: 0",
                       (int)p->separate_scales);
    }
    return float_type("kv_dtype", p->kv_dtype, "float32, float16, bfloat16", message);
  }
  if (p->kv_dtype != ATTN_DTYPE_DEFAULT) {
    return attn_fail(message, ATTN_E_RANGE, "kv_dtype: %s with a cache, accepted: default (set k_format and v_format)",
                     attn_dtype_name(p->kv_dtype));
  }
  if (p->k_format == ATTN_FORMAT_AUTO) {
    p->k_format = attn_format_of_dtype(p->q_dtype);
  }
  attn_row_kind kind = p->kv_lora_rank > 0 ? ATTN_ROWS_LATENT : ATTN_ROWS_KV;
  ATTN_TRY(attn_format_check("k_format", p->k_format, kind, message));
  if (p->v_format == ATTN_FORMAT_AUTO) {
    p->v_format = p->k_format;
  }
  ATTN_TRY(attn_format_check("v_format", p->v_format, kind, message));
  if (kind == ATTN_ROWS_LATENT) {
    return check_latent_types(p, message);
  }
  ATTN_TRY(attn_row_size_check("qk_head_size", p->qk_head_size, p->k_format, message));
  ATTN_TRY(attn_row_size_check("v_head_size", p->v_head_size, p->v_format, message));
  return attn_separate_scales_check("separate_scales", p->separate_scales, p->k_format, p->v_format, message);
}

static attn_status check_geometry(const attn_problem *p, attn_message *message) {
  if (p->layout != ATTN_LAYOUT_NHD && p->layout != ATTN_LAYOUT_HND) {
    return attn_fail(message, ATTN_E_RANGE, "layout: %d, accepted: 0 (NHD) or 1 (HND)", (int)p->layout);
  }
  ATTN_TRY(at_least("block_size", p->block_size, 0, message));
  if (p->kv_source == ATTN_KV_DIRECT && p->block_size != 0) {
    return attn_fail(message, ATTN_E_RANGE, "block_size: %d without a cache, accepted: 0", (int)p->block_size);
  }
  return ATTN_OK;
}

static attn_status check_value(const attn_problem *p, attn_message *message) {
  if (!(p->scale > 0.0f) || !isfinite(p->scale)) {
    return attn_fail(message, ATTN_E_RANGE,
                     "scale: %g, accepted: finite and above 0 (attn_softmax_scale gives "
                     "1/sqrt(head size))",
                     (double)p->scale);
  }
  if (!(p->softcap >= 0.0f) || !isfinite(p->softcap)) {
    return attn_fail(message, ATTN_E_RANGE, "softcap: %g, accepted: finite, 0 (off) or above", (double)p->softcap);
  }
  ATTN_TRY(zero_or_one("causal", p->causal, message));
  ATTN_TRY(at_least("window_left", p->window_left, -1, message));
  ATTN_TRY(at_least("window_right", p->window_right, -1, message));
  ATTN_TRY(at_least("chunk_size", p->chunk_size, 0, message));
  ATTN_TRY(at_least("chunk_lookback", p->chunk_lookback, 0, message));
  if (p->chunk_lookback != 0 && p->chunk_size == 0) {
    return attn_fail(message, ATTN_E_RANGE, "chunk_lookback: %d, accepted: 0 unless chunk_size is set",
                     (int)p->chunk_lookback);
  }
  ATTN_TRY(zero_or_one("prefix_clamp", p->prefix_clamp, message));
  if (p->alibi < ATTN_ALIBI_NONE || p->alibi > ATTN_ALIBI_SQRT) {
    return attn_fail(message, ATTN_E_RANGE, "alibi: %d, accepted: 0 (none), 1 (linear), 2 (sqrt)", (int)p->alibi);
  }
  return ATTN_OK;
}

static attn_status check_flags(const attn_problem *p, attn_message *message) {
  ATTN_TRY(zero_or_one("has_sinks", p->has_sinks, message));
  ATTN_TRY(zero_or_one("has_bias", p->has_bias, message));
  ATTN_TRY(zero_or_one("has_prefix_ranges", p->has_prefix_ranges, message));
  ATTN_TRY(zero_or_one("has_causal_per_seq", p->has_causal_per_seq, message));
  ATTN_TRY(zero_or_one("wants_lse", p->wants_lse, message));
  ATTN_TRY(zero_or_one("batch_invariant", p->batch_invariant, message));
  if (p->prefix_clamp != 0 && p->has_prefix_ranges == 0) {
    return attn_fail(message, ATTN_E_RANGE, "prefix_clamp: 1, accepted: 0 unless has_prefix_ranges is 1");
  }
  return ATTN_OK;
}

attn_status attn_problem_resolve(const attn_problem *problem, attn_problem *resolved, attn_message *message) {
  ATTN_CHECK_STRUCT(problem, "problem", attn_problem, message);
  attn_problem p = *problem;
  if (p.kv_source != ATTN_KV_CACHE && p.kv_source != ATTN_KV_DIRECT) {
    return attn_fail(message, ATTN_E_RANGE, "kv_source: %d, accepted: 0 (cache) or 1 (direct)", (int)p.kv_source);
  }
  ATTN_TRY(check_not_built(&p, message));
  ATTN_TRY(attn_latent_resolve(&p, message));
  ATTN_TRY(check_heads(&p, message));
  ATTN_TRY(check_types(&p, message));
  ATTN_TRY(check_geometry(&p, message));
  ATTN_TRY(check_value(&p, message));
  ATTN_TRY(check_flags(&p, message));
  *resolved = p;
  return ATTN_OK;
}

attn_status attn_limits_resolve(const attn_plan_limits *limits, attn_plan_limits *resolved, attn_message *message) {
  attn_plan_limits l = ATTN_PLAN_LIMITS_INIT;
  if (limits == NULL) {
    l.max_seqs = 1;
    l.max_tokens = 4096;
    l.max_kv_len = 4096;
    *resolved = l;
    return ATTN_OK;
  }
  ATTN_CHECK_STRUCT(limits, "limits", attn_plan_limits, message);
  l = *limits;
  if (l.max_tokens < 1 || l.max_tokens > INT32_MAX) {
    return attn_fail(message, ATTN_E_RANGE, "limits.max_tokens: %lld, accepted: 1 to 2147483647",
                     (long long)l.max_tokens);
  }
  if (l.max_kv_len < 1 || l.max_kv_len > INT32_MAX) {
    return attn_fail(message, ATTN_E_RANGE, "limits.max_kv_len: %lld, accepted: 1 to 2147483647",
                     (long long)l.max_kv_len);
  }
  if (l.max_seqs == 0) {
    l.max_seqs = l.max_tokens < (1 << 24) ? (int32_t)l.max_tokens : 1 << 24;
  }
  if (l.max_seqs < 1 || l.max_seqs > 1 << 24) {
    return attn_fail(message, ATTN_E_RANGE, "limits.max_seqs: %d, accepted: 0 (max_tokens) or 1 to 16777216",
                     (int)l.max_seqs);
  }
  *resolved = l;
  return ATTN_OK;
}

attn_status attn_options_resolve(const attn_plan_options *options, const attn_problem *problem,
                                 attn_plan_options *resolved, attn_message *message) {
  attn_plan_options o = ATTN_PLAN_OPTIONS_INIT;
  if (options != NULL) {
    ATTN_CHECK_STRUCT(options, "options", attn_plan_options, message);
    o = *options;
  }
  if (o.num_splits < 0 || o.num_splits > 4096) {
    return attn_fail(message, ATTN_E_RANGE, "num_splits: %d, accepted: 0 (automatic) or 1 to 4096", (int)o.num_splits);
  }
  if (o.num_splits != 0 && problem->batch_invariant) {
    return attn_fail(message, ATTN_E_RANGE,
                     "num_splits: %d with batch_invariant, whose cuts are at fixed positions; accepted: 0",
                     (int)o.num_splits);
  }
  if (o.split_rule != ATTN_SPLIT_DEFAULT && o.split_rule != ATTN_SPLIT_COMPATIBLE) {
    return attn_fail(message, ATTN_E_RANGE, "split_rule: %d, accepted: 0 (default), 1 (compatible)", (int)o.split_rule);
  }
  if (o.split_rule != ATTN_SPLIT_DEFAULT && problem->batch_invariant) {
    return attn_fail(message, ATTN_E_RANGE,
                     "split_rule: compatible with batch_invariant, whose cuts are at fixed positions; accepted: "
                     "default");
  }
  int expanded = problem->kv_lora_rank > 0 && problem->mla_form == ATTN_MLA_MHA;
  if (expanded && (o.num_splits != 0 || o.split_rule != ATTN_SPLIT_DEFAULT)) {
    return attn_fail(
        message, ATTN_E_RANGE, "%s: %d with mla_form mha, whose keys are cut by context_chunk; accepted: 0",
        o.num_splits != 0 ? "num_splits" : "split_rule", o.num_splits != 0 ? (int)o.num_splits : (int)o.split_rule);
  }
  ATTN_TRY(zero_or_one("own_workspace", o.own_workspace, message));
  *resolved = o;
  return ATTN_OK;
}
