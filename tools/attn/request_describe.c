/* SPDX-License-Identifier: Apache-2.0 */
/* `attn run --describe`: the format's tables in Markdown or JSON, printed from the tables that parse it. */
#include <string.h>

#include "core/format.h"
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

/* Row i of the table: a format of K and V as core/format.h states it, or one of request_rows. 0: there is no such. */
static int format_row(size_t i, row_row *row, char *text, size_t bytes) {
  size_t formats = 0;
  for (int f = ATTN_FORMAT_FLOAT32; attn_format_of((attn_format)f) != NULL; ++f) {
    const attn_format_facts *facts = attn_format_of((attn_format)f);
    if (!attn_format_serves((attn_format)f, ATTN_ROWS_KV) || formats++ != i) {
      continue;
    }
    char types[100];
    unsigned accepted = 0;
    for (int t = 0; t < ST_DTYPE_COUNT; ++t) {
      attn_dtype dtype = st_dtype_of_library((st_dtype)t);
      accepted |= dtype != ATTN_DTYPE_DEFAULT && (facts->dtypes & ATTN_DTYPE_BIT(dtype)) != 0 ? 1u << t : 0u;
    }
    request_dtype_names(accepted, types, sizeof(types));
    snprintf(text, bytes, "%s: %s; scale: %s", types, facts->row, attn_format_scale_words(facts));
    row->formats = attn_format_name((attn_format)f);
    row->row = text;
    return 1;
  }
  if (i - formats < request_num_rows) {
    *row = request_rows[i - formats];
    return 1;
  }
  return 0;
}

static void describe_rows(void) {
  row_row row;
  char text[300];
  puts("\n## Rows\n\n| format | row of D elements |\n|---|---|");
  for (size_t i = 0; format_row(i, &row, text, sizeof(text)); ++i) {
    printf("| %s | %s |\n", row.formats, row.row);
  }
}

static const struct {
  const char *ops;
  const char *text;
} results[] = {
    {"`attention`", "`out` [tokens, q_heads, v head size], `lse` [tokens, q_heads] F32 (natural base, sink excluded), "
                    "`out_scale` with "
                    "output_block; tokens beyond query_start_loc[seqs] come back 0, with --poison NaN."},
    {"`cache_write`, and `attention` that wrote",
     "the cache tensors under their own names after the write, and their separate "
     "scales."},
    {"`cache_gather`", "`k`, `v` [sum of (seq_lens - seq_starts), kv_heads, head size] in out_dtype."},
    {"`merge`", "`out`, `lse`."},
    {"Keys of every result", "`backend`, `backend_reason`, `splits`, `workspace_bytes` (0 where they do not apply)."},
};

static void describe_results(void) {
  puts("\n## Results\n");
  for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); ++i) {
    printf("%s: %s\n", results[i].ops, results[i].text);
  }
}

static void describe_text(void) {
  puts("# The request file: one call as a safetensors file\n\n"
       "An unknown key or tensor, or one that the operation does not use, is an error. Types: F32, F16, BF16, F8_E4M3, "
       "F8_E5M2, U8, I32, I64, little-endian, compact.\n");
  describe_ops();
  describe_keys();
  describe_tensors();
  describe_rows();
  describe_results();
}

static void write_ops(json_writer *w, const char *key, unsigned ops) {
  json_array(w, key);
  for (size_t i = 0; i < request_num_ops; ++i) {
    if ((ops & (unsigned)request_ops[i].op) != 0) {
      json_string(w, NULL, request_ops[i].name);
    }
  }
  json_end(w);
}

/* The next object of an array, on a line of its own. */
static void next_row(json_writer *w) {
  json_line(w);
  json_object(w, NULL);
}

static void write_keys(json_writer *w) {
  json_array(w, "keys");
  for (int i = 0; i < KEY_COUNT; ++i) {
    char values[400];
    request_key_values(&request_keys[i], values, sizeof(values));
    next_row(w);
    json_string(w, "name", request_keys[i].name);
    json_string(w, "values", values);
    json_string(w, "default", request_keys[i].initial);
    write_ops(w, "kv_ops", request_keys[i].kv_ops);
    write_ops(w, "latent_ops", request_keys[i].latent_ops);
    json_end(w);
  }
  json_end(w);
}

static void write_tensors(json_writer *w) {
  json_array(w, "tensors");
  for (int i = 0; i < TENSOR_COUNT; ++i) {
    const tensor_row *row = &request_tensors[i];
    char types[100];
    char name[40];
    request_dtype_names(row->dtypes, types, sizeof(types));
    snprintf(name, sizeof(name), "%s%s", row->name, i >= TENSOR_OUT_PART ? "N" : "");
    next_row(w);
    json_string(w, "name", name);
    json_string(w, "shape", row->shape);
    json_string(w, "types", types);
    write_ops(w, "kv_ops", row->kv_ops);
    write_ops(w, "latent_ops", row->latent_ops);
    json_string(w, "meaning", row->meaning);
    json_end(w);
  }
  json_end(w);
}

static void describe_json(void) {
  json_writer w;
  json_start(&w, stdout);
  json_object(&w, NULL);
  json_array(&w, "operations");
  for (size_t i = 0; i < request_num_ops; ++i) {
    next_row(&w);
    json_string(&w, "name", request_ops[i].name);
    json_boolean(&w, "built", request_ops[i].built);
    json_string(&w, "meaning", request_ops[i].meaning);
    json_end(&w);
  }
  json_end(&w);
  write_keys(&w);
  write_tensors(&w);
  json_array(&w, "rows");
  row_row row;
  char text[300];
  for (size_t i = 0; format_row(i, &row, text, sizeof(text)); ++i) {
    next_row(&w);
    json_string(&w, "formats", row.formats);
    json_string(&w, "row", row.row);
    json_end(&w);
  }
  json_end(&w);
  json_array(&w, "results");
  for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); ++i) {
    next_row(&w);
    json_string(&w, "of", results[i].ops);
    json_string(&w, "text", results[i].text);
    json_end(&w);
  }
  json_finish(&w);
}

void request_describe(int json) {
  (json ? describe_json : describe_text)();
}
