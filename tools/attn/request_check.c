/* SPDX-License-Identifier: Apache-2.0 */
/* The rules between a request's keys, tensors and shapes that no single table row can state, and the defaults that
   come from shapes. What the library itself checks (extents against each other, entries of lists) is left to it:
   its messages name the same tensors. */
#include <stdlib.h>
#include <string.h>

#include "core/format.h"
#include "request.h"

static int given(const request *parsed, request_tensor id) {
  return parsed->tensor[id] != NULL;
}

static int refuse(cli_report *report, request_tensor id, const char *why) {
  return cli_fail(report, CLI_BAD_INPUT, "tensor %s cannot be used: %s", request_tensors[id].name, why);
}

static int missing(cli_report *report, request_tensor id, const char *why) {
  return cli_fail(report, CLI_BAD_INPUT, "tensor %s is missing: %s", request_tensors[id].name, why);
}

/* An extent as a count of heads, elements or positions. */
static int take_extent(const st_tensor *tensor, int axis, int32_t *value, cli_report *report) {
  if (tensor->shape[axis] < 1 || tensor->shape[axis] > INT32_MAX) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor %s: axis %d is %lld; accepted: 1 to 2147483647", tensor->name, axis,
                    (long long)tensor->shape[axis]);
  }
  *value = (int32_t)tensor->shape[axis];
  return CLI_OK;
}

/* `value` (0: not known yet) has to be what axis `axis` of the tensor says. */
static int agree(const st_tensor *tensor, int axis, const char *what, int32_t *value, cli_report *report) {
  int32_t extent = 0;
  int code = take_extent(tensor, axis, &extent, report);
  if (code == CLI_OK && *value != 0 && extent != *value) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor %s: axis %d is %d; accepted: %d, the %s", tensor->name, axis,
                    (int)extent, (int)*value, what);
  }
  *value = extent;
  return code;
}

static int key_agrees(const request *parsed, request_key key, int32_t *value, const char *source, cli_report *report) {
  const key_value *wanted = &parsed->key[key];
  if (!wanted->given) {
    return CLI_OK;
  }
  if (*value != 0 && wanted->integer != *value) {
    return cli_fail(report, CLI_BAD_INPUT, "key %s is %lld; accepted: %d, as %s says", request_keys[key].name,
                    (long long)wanted->integer, (int)*value, source);
  }
  *value = (int32_t)wanted->integer;
  return CLI_OK;
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

/* The format that a key and a pool's type agree on. */
int request_pool_format(const key_value *key, const char *key_name, const st_tensor *pool, attn_format *format,
                        cli_report *report) {
  attn_dtype dtype = st_dtype_of_library(pool->dtype);
  attn_format wanted = (attn_format)key->integer;
  if (wanted == ATTN_FORMAT_AUTO) {
    if (dtype == ATTN_DTYPE_UINT8) {
      return cli_fail(report, CLI_BAD_INPUT,
                      "key %s is auto, but tensor %s has type U8, which several formats have; "
                      "accepted: the format's name",
                      key_name, pool->name);
    }
    if (!attn_format_from_name(attn_dtype_name(dtype), format)) {
      return cli_fail(report, CLI_BAD_INPUT, "tensor %s has type %s, which is no cache format", pool->name,
                      st_dtype_name(pool->dtype));
    }
    return CLI_OK;
  }
  const attn_format_facts *facts = attn_format_of(wanted);
  if ((facts->dtypes & ATTN_DTYPE_BIT(dtype)) == 0) {
    char types[64];
    attn_format_type_words(facts, types);
    return cli_fail(report, CLI_BAD_INPUT, "tensor %s has type %s; accepted for %s: %s", pool->name,
                    st_dtype_name(pool->dtype), attn_format_name(wanted), types);
  }
  *format = wanted;
  return CLI_OK;
}

static int has_outside_scale(attn_format format, int separate) {
  return separate || attn_format_of(format)->scale == ATTN_SCALE_STATIC;
}

int request_check_scale(const request *parsed, request_tensor id, attn_format format, int separate,
                        cli_report *report) {
  if (given(parsed, id) && !has_outside_scale(format, separate)) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor %s cannot be used: rows of %s have no scale outside",
                    request_tensors[id].name, attn_format_name(format));
  }
  if (!given(parsed, id) && separate) {
    return missing(report, id, "+separate_scales keeps the scales there");
  }
  return CLI_OK;
}

int request_check_block_size(request *parsed, const st_tensor *pool, cli_report *report) {
  int code = agree(pool, 1, "block size", &parsed->block_size, report);
  return code == CLI_OK ? key_agrees(parsed, KEY_BLOCK_SIZE, &parsed->block_size, pool->name, report) : code;
}

/* Formats, block size, heads and row lengths of the pools that are given (one of them at least). */
static int check_pools(request *parsed, cli_report *report) {
  int hnd = parsed->key[KEY_KV_LAYOUT].integer == ATTN_LAYOUT_HND;
  const request_tensor ids[2] = {TENSOR_K_CACHE, TENSOR_V_CACHE};
  const request_tensor scales[2] = {TENSOR_K_SCALE, TENSOR_V_SCALE};
  attn_format *const formats[2] = {&parsed->k_format, &parsed->v_format};
  for (int i = 0; i < 2; ++i) {
    const st_tensor *pool = parsed->tensor[ids[i]];
    request_key key = i == 1 && parsed->key[KEY_V_CACHE_FORMAT].given ? KEY_V_CACHE_FORMAT : KEY_CACHE_FORMAT;
    if (pool == NULL) {
      if (given(parsed, scales[i])) {
        return refuse(report, scales[i], "its pool is not given");
      }
      continue;
    }
    int code = request_pool_format(&parsed->key[key], request_keys[key].name, pool, formats[i], report);
    int separate = code == CLI_OK && parsed->key[key].separate;
    *(i == 0 ? &parsed->k_separate : &parsed->v_separate) = separate;
    if (code == CLI_OK) {
      code = request_check_scale(parsed, scales[i], *formats[i], separate, report);
    }
    if (code == CLI_OK) {
      code = agree(pool, hnd ? 2 : 1, "block size", &parsed->block_size, report);
    }
    if (code == CLI_OK) {
      code = agree(pool, hnd ? 1 : 2, "KV heads", &parsed->num_kv_heads, report);
    }
    if (code == CLI_OK) {
      code = key_agrees(parsed, KEY_BLOCK_SIZE, &parsed->block_size, pool->name, report);
    }
    if (code != CLI_OK) {
      return code;
    }
  }
  return CLI_OK;
}

/* head_size or v_head_size: from `source` (q or k; v) if it is given, else the key, else the row of a typed pool. */
static int check_head_size(request *parsed, request_key key, const st_tensor *source, const st_tensor *pool,
                           int32_t *size, cli_report *report) {
  int code = CLI_OK;
  if (source != NULL) {
    code = agree(source, 2, request_keys[key].name, size, report);
  }
  if (code == CLI_OK) {
    code = key_agrees(parsed, key, size, source != NULL ? source->name : "", report);
  }
  if (code != CLI_OK || pool == NULL) {
    return code;
  }
  if (pool->dtype != ST_U8) {
    return agree(pool, 3, request_keys[key].name, size, report);
  }
  if (*size == 0) {
    return cli_fail(report, CLI_BAD_INPUT, "key %s is missing: tensor %s has rows of U8, which do not say it",
                    request_keys[key].name, pool->name);
  }
  return CLI_OK;
}

static int check_head_sizes(request *parsed, cli_report *report) {
  const st_tensor *q = parsed->tensor[TENSOR_Q];
  const st_tensor *k = parsed->tensor[TENSOR_K];
  const st_tensor *v = parsed->tensor[TENSOR_V];
  int code = check_head_size(parsed, KEY_HEAD_SIZE, q != NULL ? q : k, parsed->tensor[TENSOR_K_CACHE],
                             &parsed->head_size, report);
  if (code == CLI_OK && k != NULL) {
    code = agree(k, 2, "head size", &parsed->head_size, report);
  }
  if (code == CLI_OK) {
    code = check_head_size(parsed, KEY_V_HEAD_SIZE, v, parsed->tensor[TENSOR_V_CACHE], &parsed->v_head_size, report);
  }
  if (code == CLI_OK && k != NULL) {
    code = agree(k, 1, "KV heads", &parsed->num_kv_heads, report);
  }
  if (code == CLI_OK && v != NULL) {
    code = agree(v, 1, "KV heads", &parsed->num_kv_heads, report);
  }
  if (code == CLI_OK && k != NULL && v != NULL && k->shape[0] != v->shape[0]) {
    code = cli_fail(report, CLI_BAD_INPUT, "tensor v has %lld tokens; accepted: %lld, as many as k",
                    (long long)v->shape[0], (long long)k->shape[0]);
  }
  return code;
}

/* ---- The operations ---------------------------------------------------------------------------------------------- */

static int check_cached_tensors(const request *parsed, cli_report *report) {
  static const request_tensor needed[] = {TENSOR_K_CACHE, TENSOR_V_CACHE, TENSOR_BLOCK_TABLE, TENSOR_SEQ_LENS};
  for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); ++i) {
    if (!given(parsed, needed[i])) {
      return missing(report, needed[i], "attention over a cache needs k_cache, v_cache, block_table and seq_lens");
    }
  }
  if (given(parsed, TENSOR_KV_START_LOC)) {
    return refuse(report, TENSOR_KV_START_LOC, "it packs keys without a cache, and a cache is given");
  }
  for (int i = 0; i < 2; ++i) {
    request_tensor id = i == 0 ? TENSOR_K : TENSOR_V;
    if (given(parsed, id) && !given(parsed, TENSOR_SLOT_MAPPING)) {
      return refuse(report, id, "beside a cache it needs slot_mapping, which says where it is written");
    }
    if (!given(parsed, id) && given(parsed, TENSOR_SLOT_MAPPING)) {
      return missing(report, id, "slot_mapping says where it is written");
    }
  }
  return CLI_OK;
}

static int check_direct_tensors(const request *parsed, cli_report *report) {
  static const request_tensor unusable[] = {TENSOR_SEQ_LENS, TENSOR_BLOCK_TABLE, TENSOR_SLOT_MAPPING, TENSOR_K_SCALE,
                                            TENSOR_V_SCALE};
  for (size_t i = 0; i < sizeof(unusable) / sizeof(unusable[0]); ++i) {
    if (given(parsed, unusable[i])) {
      return refuse(report, unusable[i], "it belongs to a cache, and neither k_cache nor v_cache is given");
    }
  }
  for (int i = 0; i < 2; ++i) {
    request_tensor id = i == 0 ? TENSOR_K : TENSOR_V;
    if (!given(parsed, id)) {
      return missing(report, id, "attention needs k_cache and v_cache, or k and v");
    }
  }
  return CLI_OK;
}

int request_check_output(request *parsed, cli_report *report) {
  static const attn_dtype dtypes[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16, ATTN_DTYPE_FP8_E4M3};
  const st_tensor *q = parsed->tensor[TENSOR_Q];
  int has_q = q != NULL;
  parsed->out_dtype = !has_q                   ? ATTN_DTYPE_FLOAT32
                      : q->dtype == ST_F8_E4M3 ? ATTN_DTYPE_BFLOAT16
                                               : st_dtype_of_library(q->dtype);
  if (parsed->key[KEY_OUT_DTYPE].given) {
    parsed->out_dtype = dtypes[parsed->key[KEY_OUT_DTYPE].integer];
  }
  int fp8 = parsed->out_dtype == ATTN_DTYPE_FP8_E4M3;
  int blocked = parsed->key[KEY_OUTPUT_BLOCK].integer != 0;
  if (fp8 && !has_q) {
    return cli_fail(report, CLI_BAD_INPUT,
                    "key out_dtype is \"fp8_e4m3\"; accepted for op %s: float32, float16, "
                    "bfloat16",
                    parsed->op->name);
  }
  if (blocked && !fp8) {
    return cli_fail(report, CLI_BAD_INPUT, "key output_block is %s without an fp8 out_dtype; accepted: 0",
                    request_keys[KEY_OUTPUT_BLOCK].choices[parsed->key[KEY_OUTPUT_BLOCK].integer]);
  }
  if (given(parsed, TENSOR_OUTPUT_SCALE) && (!fp8 || blocked)) {
    return refuse(report, TENSOR_OUTPUT_SCALE, "it belongs to out_dtype fp8_e4m3 with output_block 0");
  }
  if (!given(parsed, TENSOR_OUTPUT_SCALE) && fp8 && !blocked) {
    return missing(report, TENSOR_OUTPUT_SCALE, "out_dtype fp8_e4m3 with output_block 0 needs it");
  }
  return CLI_OK;
}

int request_check_query(request *parsed, cli_report *report) {
  const st_tensor *q = parsed->tensor[TENSOR_Q];
  if (given(parsed, TENSOR_Q_SCALE) && q->dtype != ST_F8_E4M3) {
    return refuse(report, TENSOR_Q_SCALE, "it belongs to a q of type F8_E4M3");
  }
  if (!given(parsed, TENSOR_Q_SCALE) && q->dtype == ST_F8_E4M3) {
    return missing(report, TENSOR_Q_SCALE, "q has type F8_E4M3");
  }
  if (parsed->key[KEY_ALIBI].given && !given(parsed, TENSOR_ALIBI_SLOPES)) {
    return cli_fail(report, CLI_BAD_INPUT, "key alibi is given without tensor alibi_slopes; accepted: both or neither");
  }
  return take_extent(q, 1, &parsed->num_q_heads, report);
}

/* k and v are this call's own tokens, one row for each of q, unless kv_start_loc packs others. */
static int check_new_tokens(const request *parsed, cli_report *report) {
  const st_tensor *q = parsed->tensor[TENSOR_Q];
  const st_tensor *k = parsed->tensor[TENSOR_K];
  if (k != NULL && !given(parsed, TENSOR_KV_START_LOC) && k->shape[0] != q->shape[0]) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor k has %lld tokens; accepted: %lld, as many as q",
                    (long long)k->shape[0], (long long)q->shape[0]);
  }
  return CLI_OK;
}

int request_check_batch(request *parsed, cli_report *report) {
  const st_tensor *q = parsed->tensor[TENSOR_Q];
  const st_tensor *starts = parsed->tensor[TENSOR_QUERY_START_LOC];
  if (starts->shape[0] < 1) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor query_start_loc has no entry; accepted: [seqs + 1]");
  }
  parsed->num_seqs = starts->shape[0] - 1;
  parsed->num_tokens = q->shape[0];
  if (starts->data != NULL) {
    int32_t total = request_i32(starts, parsed->num_seqs);
    if (total > q->shape[0]) {
      return cli_fail(report, CLI_BAD_INPUT,
                      "tensor query_start_loc ends at %d; accepted: at most %lld, the tokens of "
                      "q",
                      (int)total, (long long)q->shape[0]);
    }
    parsed->num_tokens = total;
  }
  const st_tensor *lens = parsed->tensor[TENSOR_SEQ_LENS];
  if (!parsed->has_cache) {
    parsed->max_kv_len = parsed->tensor[parsed->latent ? TENSOR_KV_C : TENSOR_K]->shape[0];
  } else if (lens->data != NULL) {
    for (int64_t i = 0; i < lens->shape[0]; ++i) {
      int32_t length = request_i32(lens, i);
      parsed->max_kv_len = length > parsed->max_kv_len ? length : parsed->max_kv_len;
    }
  } else {
    int64_t width = parsed->tensor[TENSOR_BLOCK_TABLE]->shape[1];
    int64_t most = INT32_MAX / parsed->block_size;
    parsed->max_kv_len = (width < most ? width : most) * parsed->block_size;
  }
  return CLI_OK;
}

static int check_attention(request *parsed, cli_report *report) {
  parsed->has_cache = given(parsed, TENSOR_K_CACHE) || given(parsed, TENSOR_V_CACHE);
  if (!parsed->has_cache && !parsed->key[KEY_CAUSAL].given) {
    parsed->key[KEY_CAUSAL].integer = 0;
  }
  int code = parsed->has_cache ? check_cached_tensors(parsed, report) : check_direct_tensors(parsed, report);
  if (code == CLI_OK) {
    code = request_check_query(parsed, report);
  }
  if (code == CLI_OK) {
    code = request_check_output(parsed, report);
  }
  if (code == CLI_OK && parsed->has_cache) {
    code = check_pools(parsed, report);
  }
  if (code == CLI_OK) {
    code = check_head_sizes(parsed, report);
  }
  if (code == CLI_OK) {
    code = check_new_tokens(parsed, report);
  }
  return code == CLI_OK ? request_check_batch(parsed, report) : code;
}

static int check_cache_call(request *parsed, cli_report *report) {
  int writes = parsed->op->op == OP_CACHE_WRITE;
  static const request_tensor needed[] = {TENSOR_K, TENSOR_V, TENSOR_K_CACHE, TENSOR_V_CACHE};
  for (size_t i = 0; writes && i < sizeof(needed) / sizeof(needed[0]); ++i) {
    if (!given(parsed, needed[i])) {
      return missing(report, needed[i], "op cache_write needs k, v, k_cache, v_cache and slot_mapping");
    }
  }
  if (!given(parsed, TENSOR_K_CACHE) && !given(parsed, TENSOR_V_CACHE)) {
    return missing(report, TENSOR_K_CACHE, "op cache_gather needs k_cache, v_cache or both");
  }
  parsed->has_cache = 1;
  int code = check_pools(parsed, report);
  if (code == CLI_OK) {
    code = check_head_sizes(parsed, report);
  }
  return code == CLI_OK && !writes ? request_check_output(parsed, report) : code;
}

int request_check(request *parsed, cli_report *report) {
  if (parsed->latent) {
    return request_check_latent(parsed, report);
  }
  switch (parsed->op->op) {
  case OP_ATTENTION:
    return check_attention(parsed, report);
  case OP_CACHE_WRITE:
  case OP_CACHE_GATHER:
    return check_cache_call(parsed, report);
  default:
    return request_check_output(parsed, report);
  }
}

/* ---- To the library's structs ------------------------------------------------------------------------------------ */

/* What only rows of K and V have. */
static void plain_problem(const request *parsed, attn_problem *made) {
  const key_value *key = parsed->key;
  made->num_q_heads = parsed->num_q_heads;
  made->num_kv_heads = parsed->num_kv_heads;
  made->qk_head_size = parsed->head_size;
  made->v_head_size = parsed->v_head_size;
  if (parsed->has_cache) {
    made->k_format = parsed->k_format;
    made->v_format = parsed->v_format;
    made->layout = (attn_layout)key[KEY_KV_LAYOUT].integer;
    made->block_size = parsed->block_size;
    made->separate_scales = parsed->k_separate && parsed->v_separate ? ATTN_SEPARATE_BOTH
                            : parsed->k_separate                     ? ATTN_SEPARATE_K
                            : parsed->v_separate                     ? ATTN_SEPARATE_V
                                                                     : ATTN_SEPARATE_NONE;
  } else {
    made->kv_dtype = st_dtype_of_library(parsed->tensor[TENSOR_K]->dtype);
  }
  made->scale = key[KEY_SCALE].given ? key[KEY_SCALE].number : attn_softmax_scale(parsed->head_size);
  made->causal = (int32_t)key[KEY_CAUSAL].integer;
  made->wants_lse = 1;
}

int request_problem(const request *parsed, const cli_options *flags, attn_problem *problem, cli_report *report) {
  static const int32_t output_blocks[] = {0, 64, 128};
  const key_value *key = parsed->key;
  attn_problem made = ATTN_PROBLEM_INIT;
  made.kv_source = parsed->has_cache ? ATTN_KV_CACHE : ATTN_KV_DIRECT;
  made.q_dtype = st_dtype_of_library(parsed->tensor[TENSOR_Q]->dtype);
  made.out_dtype = parsed->out_dtype;
  if (parsed->latent) {
    request_latent_problem(parsed, &made);
  } else {
    plain_problem(parsed, &made);
  }
  made.softcap = key[KEY_SOFTCAP].number;
  made.window_left = (int32_t)key[KEY_WINDOW_LEFT].integer;
  made.window_right = (int32_t)key[KEY_WINDOW_RIGHT].integer;
  made.chunk_size = (int32_t)key[KEY_CHUNK_SIZE].integer;
  made.chunk_lookback = made.chunk_size > 0 ? (int32_t)key[KEY_CHUNK_LOOKBACK].integer : 0;
  made.has_prefix_ranges = given(parsed, TENSOR_PREFIX_RANGES);
  made.prefix_clamp = made.has_prefix_ranges ? (int32_t)key[KEY_PREFIX_CLAMP].integer : 0;
  if (given(parsed, TENSOR_ALIBI_SLOPES)) {
    made.alibi = key[KEY_ALIBI].integer == 0 ? ATTN_ALIBI_LINEAR : ATTN_ALIBI_SQRT;
  }
  made.has_sinks = given(parsed, TENSOR_SINKS);
  made.has_bias = given(parsed, TENSOR_BIAS);
  made.has_causal_per_seq = given(parsed, TENSOR_CAUSAL_PER_SEQ);
  made.batch_invariant = flags->batch_invariant;
  made.output_block = output_blocks[key[KEY_OUTPUT_BLOCK].integer];
  *problem = made;
  attn_message message;
  return cli_library(report, attn_problem_check(problem, &message), &message);
}

void request_limits(const request *parsed, attn_plan_limits *limits) {
  attn_plan_limits made = ATTN_PLAN_LIMITS_INIT;
  int64_t tokens = parsed->tensor[TENSOR_Q]->shape[0];
  int64_t seqs = parsed->num_seqs < INT32_MAX ? parsed->num_seqs : INT32_MAX;
  made.max_seqs = seqs > 0 ? (int32_t)seqs : 1;
  made.max_tokens = tokens > 0 ? tokens : 1;
  made.max_kv_len = parsed->max_kv_len > 0 ? parsed->max_kv_len : 1;
  *limits = made;
}

void request_plan_options(const request *parsed, const cli_options *flags, attn_plan_options *options) {
  attn_plan_options made = ATTN_PLAN_OPTIONS_INIT;
  made.backend = flags->backend;
  made.num_splits = (int32_t)parsed->key[KEY_NUM_SPLITS].integer;
  made.split_rule = (attn_split_rule)parsed->key[KEY_SPLIT_RULE].integer;
  *options = made;
}
