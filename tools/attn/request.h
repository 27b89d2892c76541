/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h: one call of the library as a safetensors file; `attn run --describe` prints the format.
 *
 * Three const tables state the format: operations, keys, tensors (request_tables.c). Parsing, the checks of what an
 * operation uses, and --describe all read them, so what is accepted is what is described. A key or tensor is used by an
 * operation, once for K/V and once for latent pools; that alone decides what is "not used". request_check.c then holds
 * the rules between keys and tensors, and fills in what has a default from a shape.
 */
#ifndef ATTN_TOOL_REQUEST_H
#define ATTN_TOOL_REQUEST_H

#include "safetensors.h"

/* Operations as bits, so that a table row can name several. */
typedef enum request_op {
  OP_ATTENTION = 1,
  OP_MLA_MQA = 2,
  OP_MLA_MHA = 4,
  OP_MLA_LAYER = 8,
  OP_CACHE_WRITE = 16,
  OP_CACHE_GATHER = 32,
  OP_MERGE = 64
} request_op;

typedef struct op_row {
  request_op op;
  const char *name;
  int built;
  int latent; /* it is about a latent pool alone; cache_write and cache_gather are where kv_cache is given */
  const char *meaning;
} op_row;

typedef enum request_key {
  KEY_OP,
  KEY_CACHE_FORMAT,
  KEY_V_CACHE_FORMAT,
  KEY_KV_LAYOUT,
  KEY_BLOCK_SIZE,
  KEY_HEAD_SIZE,
  KEY_V_HEAD_SIZE,
  KEY_SCALE,
  KEY_CAUSAL,
  KEY_WINDOW_LEFT,
  KEY_WINDOW_RIGHT,
  KEY_CHUNK_SIZE,
  KEY_CHUNK_LOOKBACK,
  KEY_PREFIX_CLAMP,
  KEY_SOFTCAP,
  KEY_ALIBI,
  KEY_KV_LORA_RANK,
  KEY_QK_ROPE_HEAD_DIM,
  KEY_ROTARY_DTYPE,
  KEY_QK_NOPE_HEAD_DIM,
  KEY_V_HEAD_DIM,
  KEY_CONTEXT_CHUNK,
  KEY_NUM_SPLITS,
  KEY_SPLIT_RULE,
  KEY_OUT_DTYPE,
  KEY_OUTPUT_BLOCK,
  KEY_LSE_BASE,
  KEY_CHECKED,
  KEY_COUNT
} request_key;

typedef enum key_kind {
  KEY_IS_CHOICE, /* value.integer is the index into `choices` */
  KEY_IS_FORMAT, /* value.integer is an attn_format, value.separate the suffix */
  KEY_IS_INT,    /* from `low` to `high` */
  KEY_IS_FLOAT   /* `low` 1: > 0; `low` 0: >= 0 */
} key_kind;

#define KEY_MAX_CHOICES 8

typedef struct key_row {
  const char *name;
  key_kind kind;
  const char *values;  /* for people; NULL: the choices */
  const char *initial; /* for people */
  unsigned kv_ops;     /* operations that use it, with K/V pools (or none) */
  unsigned latent_ops; /* with latent pools */
  unsigned required;   /* operations that demand it (latent pools, for the cache calls) */
  int64_t low;
  int64_t high;
  const char *choices[KEY_MAX_CHOICES];
} key_row;

typedef struct key_value {
  int given;
  int separate;
  int64_t integer; /* the default where not given, as request_default() sets it */
  float number;
} key_value;

typedef enum request_tensor {
  TENSOR_Q,
  TENSOR_K,
  TENSOR_V,
  TENSOR_KV_C,
  TENSOR_K_PE,
  TENSOR_K_CACHE,
  TENSOR_V_CACHE,
  TENSOR_KV_CACHE,
  TENSOR_BLOCK_TABLE,
  TENSOR_QUERY_START_LOC,
  TENSOR_SEQ_LENS,
  TENSOR_KV_START_LOC,
  TENSOR_SLOT_MAPPING,
  TENSOR_K_SCALE,
  TENSOR_V_SCALE,
  TENSOR_KV_SCALE,
  TENSOR_Q_SCALE,
  TENSOR_ALIBI_SLOPES,
  TENSOR_SINKS,
  TENSOR_BIAS,
  TENSOR_PREFIX_RANGES,
  TENSOR_CAUSAL_PER_SEQ,
  TENSOR_OUTPUT_SCALE,
  TENSOR_W_KV_B,
  TENSOR_SEQ_STARTS,
  TENSOR_OUT_PART,
  TENSOR_LSE_PART,
  TENSOR_COUNT
} request_tensor;

typedef struct tensor_row {
  const char *name; /* of a part: up to its number */
  const char *shape;
  unsigned dtypes; /* 1 << st_dtype */
  int32_t min_rank;
  int32_t max_rank;
  unsigned kv_ops;
  unsigned latent_ops;
  unsigned required; /* operations that demand it whatever else is given */
  const char *meaning;
} tensor_row;

extern const op_row request_ops[];
extern const size_t request_num_ops;
extern const key_row request_keys[KEY_COUNT];
extern const tensor_row request_tensors[TENSOR_COUNT];

/* One row format, for --describe: beside those of core/format.h. */
typedef struct row_row {
  const char *formats;
  const char *row;
} row_row;
extern const row_row request_rows[];
extern const size_t request_num_rows;

#define REQUEST_MAX_PARTS 4096

/* A request after parsing. Tensors point into the st_file, which has to outlive it. */
typedef struct request {
  const op_row *op;
  int latent;
  key_value key[KEY_COUNT];
  const st_tensor *tensor[TENSOR_COUNT]; /* parts: the first */
  size_t num_parts;
  const st_tensor **outs; /* merge */
  const st_tensor **lses;

  /* Filled in by request_check(). */
  int has_cache;
  int64_t num_seqs;
  int64_t num_tokens; /* query_start_loc[seqs]; q's tokens where only shapes are known */
  int64_t max_kv_len;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_size;
  int32_t v_head_size;
  int32_t block_size;
  attn_format k_format;
  attn_format v_format;
  int k_separate; /* scales of rows in a tensor of their own */
  int v_separate;
  attn_dtype out_dtype;
  attn_dtype rotary_dtype; /* latent rows whose rotary elements have a type of their own */
} request;

/* Read keys and tensors by the tables; `flags` beat keys. On failure nothing is left to free. */
int request_parse(const st_file *file, const cli_options *flags, request *parsed, cli_report *report);
void request_free(request *parsed);

/* The rules between keys, tensors and shapes. */
int request_check(request *parsed, cli_report *report);

/* Parts of request_check() that K and V share with latent rows (request_latent.c). */
int request_check_latent(request *parsed, cli_report *report);
int request_pool_format(const key_value *key, const char *key_name, const st_tensor *pool, attn_format *format,
                        cli_report *report);
int request_check_scale(const request *parsed, request_tensor id, attn_format format, int separate, cli_report *report);
int request_check_block_size(request *parsed, const st_tensor *pool, cli_report *report);
int request_check_query(request *parsed, cli_report *report);
int request_check_output(request *parsed, cli_report *report);
int request_check_batch(request *parsed, cli_report *report);
void request_latent_problem(const request *parsed, attn_problem *problem);

/* The problem of an `attention` or `mla_*` request. */
int request_problem(const request *parsed, const cli_options *flags, attn_problem *problem, cli_report *report);
void request_limits(const request *parsed, attn_plan_limits *limits);
void request_plan_options(const request *parsed, const cli_options *flags, attn_plan_options *options);

/* A tensor of the request as the library's view; NULL for one that is not given. */
const DLTensor *request_view(const st_tensor *tensor, DLTensor *view);
/* Element i of an I32 tensor. */
int32_t request_i32(const st_tensor *tensor, int64_t i);

/* NAME=VALUE words as a file of keys, of tensors without data (q=BF16[4,8,64]) and of lists (seq_lens=I32[2]=5,9). The
   words are cut at their "=" and have to outlive *file. st_free() in any case. */
int request_from_words(size_t count, char *const *words, st_file *file, cli_report *report);

/* The values that a key accepts, and the types of a tensor row, in words. */
void request_key_values(const key_row *row, char *text, size_t bytes);
void request_dtype_names(unsigned dtypes, char *text, size_t bytes);

/* Print the format's tables, as Markdown or JSON. */
void request_describe(int json);

#endif
