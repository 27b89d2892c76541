/* SPDX-License-Identifier: Apache-2.0 */
/* `attn run --describe`: the format's tables in Markdown, printed from the tables that parse it. */
#include <string.h>

#include "request.h"

/* The operations of a mask, in words. */
static void op_names(unsigned ops, char *text, size_t bytes) {
  text[0] = '\0';
  for (size_t i = 0; i < request_num_ops; ++i) {
    if ((ops & (unsigned)request_ops[i].op) != 0) {
      size_t used = strlen(text);
      snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "", request_ops[i].name);
    }
  }
  if (text[0] == '\0') {
    snprintf(text, bytes, "-");
  }
}

static void describe_ops(void) {
  puts("## Operations (key `op`)\n\n| op | built in | what it is |\n|---|---|---|");
  for (size_t i = 0; i < request_num_ops; ++i) {
    printf("| `%s` | %s | %s |\n", request_ops[i].name, request_ops[i].built ? "yes" : "no", request_ops[i].meaning);
  }
}

static void describe_keys(void) {
  puts("\n## Keys (`__metadata__`, all strings)\n\n"
       "| key | values | default | used with K and V by | with latent rows by |\n|---|---|---|---|---|");
  for (int i = 0; i < KEY_COUNT; ++i) {
    const key_row *row = &request_keys[i];
    char values[400];
    char kv_ops[120];
    char latent_ops[120];
    request_key_values(row, values, sizeof(values));
    op_names(row->kv_ops, kv_ops, sizeof(kv_ops));
    op_names(row->latent_ops, latent_ops, sizeof(latent_ops));
    printf("| `%s` | %s | %s | %s | %s |\n", row->name, values, row->initial, i == KEY_OP ? "all" : kv_ops,
           i == KEY_OP ? "all" : latent_ops);
  }
}

static void describe_tensors(void) {
  puts("\n## Tensors\n\n| name | shape | types | used with K and V by | with latent rows by | what it is |\n"
       "|---|---|---|---|---|---|");
  for (int i = 0; i < TENSOR_COUNT; ++i) {
    const tensor_row *row = &request_tensors[i];
    char types[100];
    char kv_ops[120];
    char latent_ops[120];
    request_dtype_names(row->dtypes, types, sizeof(types));
    op_names(row->kv_ops, kv_ops, sizeof(kv_ops));
    op_names(row->latent_ops, latent_ops, sizeof(latent_ops));
    printf("| `%s%s` | %s | %s | %s | %s | %s |\n", row->name, i >= TENSOR_OUT_PART ? "N" : "", row->shape, types,
           kv_ops, latent_ops, row->meaning);
  }
}

static void describe_rows(void) {
  puts("\n## Rows\n\n| format | row |\n|---|---|");
  for (size_t i = 0; i < request_num_rows; ++i) {
    printf("| %s | %s |\n", request_rows[i].formats, request_rows[i].row);
  }
}

static void describe_results(void) {
  puts("\n## Results\n\n"
       "`attention`: `out` [tokens, q_heads, v head size], `lse` [tokens, q_heads] F32 (natural base, sink excluded), "
       "`out_scale` with output_block; tokens beyond query_start_loc[seqs] come back 0, with --poison NaN.\n"
       "`cache_write`, and `attention` that wrote: the cache tensors under their own names.\n"
       "`cache_gather`: `k`, `v` [sum of (seq_lens - seq_starts), kv_heads, head size] in out_dtype.\n"
       "`merge`: `out`, `lse`.\n"
       "Keys of every result: `backend`, `backend_reason`, `splits`, `workspace_bytes` (0 where they do not apply).");
}

void request_describe(void) {
  puts("# The request file: one call as a safetensors file\n\n"
       "An unknown key or tensor, or one that the operation does not use, is an error. Types: F32, F16, BF16, F8_E4M3, "
       "F8_E5M2, U8, I32, I64, little-endian, compact.\n");
  describe_ops();
  describe_keys();
  describe_tensors();
  describe_rows();
  describe_results();
}
