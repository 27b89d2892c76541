/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of requests about latent rows, as request_check.c has those of K and V, and their problem. */
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

/* The type of the rotary elements where the format keeps them apart: as the key says, else as the queries. */
static int check_rotary(request *parsed, cli_report *report) {
  static const attn_dtype types[] = {ATTN_DTYPE_BFLOAT16, ATTN_DTYPE_FLOAT16};
  const key_value *key = &parsed->key[KEY_ROTARY_DTYPE];
  const st_tensor *source = given(parsed, TENSOR_Q) ? parsed->tensor[TENSOR_Q] : parsed->tensor[TENSOR_KV_C];
  if (!given(parsed, TENSOR_KV_CACHE) || !attn_format_is_mixed(attn_format_of(parsed->k_format))) {
    return !key->given ? CLI_OK
                       : cli_fail(report, CLI_BAD_INPUT,
                                  "key rotary_dtype cannot be used: rows of %s have no rotary elements of their own "
                                  "type; accepted with fp8_ds_mla and the per-token-head formats",
                                  given(parsed, TENSOR_KV_CACHE) ? attn_format_name(parsed->k_format) : "no cache");
  }
  parsed->rotary_dtype = key->given                                  ? types[key->integer]
                         : source != NULL && source->dtype == ST_F16 ? ATTN_DTYPE_FLOAT16
                                                                     : ATTN_DTYPE_BFLOAT16;
  return CLI_OK;
}

static int check_pool(request *parsed, cli_report *report) {
  const st_tensor *pool = parsed->tensor[TENSOR_KV_CACHE];
  int code = request_pool_format(&parsed->key[KEY_CACHE_FORMAT], "cache_format", pool, &parsed->k_format, report);
  if (code == CLI_OK && !attn_format_serves(parsed->k_format, ATTN_ROWS_LATENT)) {
    char names[ATTN_FORMAT_NAMES_BYTES];
    code = cli_fail(report, CLI_BAD_INPUT,
                    "tensor kv_cache has rows of %s, which is no format of latent rows; accepted: %s",
                    attn_format_name(parsed->k_format), attn_format_names(ATTN_ROWS_LATENT, names));
  }
  parsed->v_format = parsed->k_format;
  parsed->k_separate = code == CLI_OK && parsed->key[KEY_CACHE_FORMAT].separate;
  if (code == CLI_OK) {
    code = request_check_scale(parsed, TENSOR_KV_SCALE, parsed->k_format, parsed->k_separate, report);
  }
  if (code == CLI_OK) {
    code = request_check_block_size(parsed, pool, report);
  }
  return code;
}

/* kv_c and k_pe come together. */
static int check_new_rows(const request *parsed, cli_report *report) {
  const st_tensor *kv_c = parsed->tensor[TENSOR_KV_C];
  const st_tensor *k_pe = parsed->tensor[TENSOR_K_PE];
  const st_tensor *q = parsed->tensor[TENSOR_Q];
  if ((kv_c == NULL) != (k_pe == NULL)) {
    return missing(report, kv_c == NULL ? TENSOR_KV_C : TENSOR_K_PE, "kv_c and k_pe are the parts of the same rows");
  }
  if (kv_c != NULL && kv_c->shape[0] != k_pe->shape[0]) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor k_pe has %lld tokens; accepted: %lld, as many as kv_c",
                    (long long)k_pe->shape[0], (long long)kv_c->shape[0]);
  }
  if (kv_c != NULL && q != NULL && kv_c->shape[0] != q->shape[0]) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor kv_c has %lld tokens; accepted: %lld, as many as q",
                    (long long)kv_c->shape[0], (long long)q->shape[0]);
  }
  return CLI_OK;
}

static int check_cached_tensors(const request *parsed, cli_report *report) {
  if (!given(parsed, TENSOR_BLOCK_TABLE) || !given(parsed, TENSOR_SEQ_LENS)) {
    return missing(report, given(parsed, TENSOR_BLOCK_TABLE) ? TENSOR_SEQ_LENS : TENSOR_BLOCK_TABLE,
                   "attention over kv_cache needs block_table and seq_lens");
  }
  if (parsed->op->op != OP_MLA_MQA) {
    return CLI_OK;
  }
  if (given(parsed, TENSOR_KV_C) && !given(parsed, TENSOR_SLOT_MAPPING)) {
    return refuse(report, TENSOR_KV_C, "beside a cache it needs slot_mapping, which says where it is written");
  }
  if (!given(parsed, TENSOR_KV_C) && given(parsed, TENSOR_SLOT_MAPPING)) {
    return missing(report, TENSOR_KV_C, "slot_mapping says where it is written");
  }
  return CLI_OK;
}

static int check_direct_tensors(const request *parsed, cli_report *report) {
  static const request_tensor unusable[] = {TENSOR_SEQ_LENS, TENSOR_BLOCK_TABLE, TENSOR_SLOT_MAPPING, TENSOR_KV_SCALE};
  for (size_t i = 0; i < sizeof(unusable) / sizeof(unusable[0]); ++i) {
    if (given(parsed, unusable[i])) {
      return refuse(report, unusable[i], "it belongs to a cache, and kv_cache is not given");
    }
  }
  return CLI_OK;
}

static int check_weights(const request *parsed, cli_report *report) {
  const st_tensor *w = parsed->tensor[TENSOR_W_KV_B];
  const st_tensor *q = parsed->tensor[TENSOR_Q];
  if (w != NULL && w->dtype != q->dtype) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor w_kv_b has type %s; accepted: %s, as q", st_dtype_name(w->dtype),
                    st_dtype_name(q->dtype));
  }
  return CLI_OK;
}

int request_check_latent(request *parsed, cli_report *report) {
  int attends = parsed->op->op != OP_CACHE_WRITE && parsed->op->op != OP_CACHE_GATHER;
  parsed->has_cache = given(parsed, TENSOR_KV_CACHE);
  parsed->num_kv_heads = 1;
  int code = check_new_rows(parsed, report);
  if (code == CLI_OK && parsed->has_cache) {
    code = check_pool(parsed, report);
  }
  if (code == CLI_OK) {
    code = check_rotary(parsed, report);
  }
  if (code == CLI_OK && parsed->op->op == OP_CACHE_WRITE && !given(parsed, TENSOR_KV_C)) {
    return missing(report, TENSOR_KV_C, "op cache_write needs kv_c, k_pe, kv_cache and slot_mapping");
  }
  if (code == CLI_OK && attends) {
    code = parsed->has_cache ? check_cached_tensors(parsed, report) : check_direct_tensors(parsed, report);
  }
  if (code == CLI_OK && attends) {
    code = check_weights(parsed, report);
  }
  if (code == CLI_OK && attends) {
    code = request_check_query(parsed, report);
  }
  if (code == CLI_OK) {
    code = parsed->op->op == OP_CACHE_WRITE ? CLI_OK : request_check_output(parsed, report);
  }
  return code == CLI_OK && attends ? request_check_batch(parsed, report) : code;
}

void request_latent_problem(const request *parsed, attn_problem *problem) {
  const key_value *key = parsed->key;
  problem->num_q_heads = parsed->num_q_heads;
  problem->kv_lora_rank = (int32_t)key[KEY_KV_LORA_RANK].integer;
  problem->qk_rope_head_dim = (int32_t)key[KEY_QK_ROPE_HEAD_DIM].integer;
  problem->rotary_dtype = parsed->rotary_dtype;
  problem->mla_form = parsed->op->op == OP_MLA_MQA   ? ATTN_MLA_MQA
                      : parsed->op->op == OP_MLA_MHA ? ATTN_MLA_MHA
                                                     : ATTN_MLA_LAYER;
  problem->causal = 1;
  if (parsed->op->op == OP_MLA_MQA) {
    problem->causal = (int32_t)key[KEY_CAUSAL].integer;
    problem->scale = key[KEY_SCALE].number;
  } else {
    problem->qk_nope_head_dim = (int32_t)key[KEY_QK_NOPE_HEAD_DIM].integer;
    problem->mla_v_head_dim = (int32_t)key[KEY_V_HEAD_DIM].integer;
    problem->context_chunk = (int32_t)key[KEY_CONTEXT_CHUNK].integer;
    int64_t size = key[KEY_QK_NOPE_HEAD_DIM].integer + key[KEY_QK_ROPE_HEAD_DIM].integer;
    problem->scale =
        key[KEY_SCALE].given ? key[KEY_SCALE].number : attn_softmax_scale(size < INT32_MAX ? (int32_t)size : INT32_MAX);
  }
  if (parsed->has_cache) {
    problem->k_format = parsed->k_format;
    problem->block_size = parsed->block_size;
    problem->separate_scales = parsed->k_separate ? ATTN_SEPARATE_BOTH : ATTN_SEPARATE_NONE;
  }
  problem->wants_lse = parsed->op->op != OP_MLA_LAYER;
}
