/* SPDX-License-Identifier: Apache-2.0 */
/* `attn info --matrix`: each row of a table is a problem with one thing about it, each column a backend of ours. The
   library is asked for every pair, so the tables say what a plan would say. */
#include <string.h>

#include "cli.h"

enum { MAX_COLUMNS = 16 };

/* What is printed, and how. */
typedef struct matrix {
  const attn_context *context;
  const char *columns[MAX_COLUMNS];
  int32_t rows[MAX_COLUMNS]; /* of each column: bits of attn_row_kind */
  size_t num_columns;
  attn_row_kind kind; /* of the table that is printed: columns for other rows are left out of it */
  const char *table;  /* title of the one being printed */
  int json;
  json_writer w;
} matrix;

typedef struct matrix_row {
  const char *title;
  void (*apply)(attn_problem *problem);
} matrix_row;

static void plain_decoder(attn_problem *problem) {
  (void)problem;
}

static void direct(attn_problem *problem) {
  problem->kv_source = ATTN_KV_DIRECT;
  problem->k_format = ATTN_FORMAT_AUTO;
  problem->block_size = 0;
  problem->causal = 0;
}

static void head_sizes(attn_problem *problem) {
  problem->qk_head_size = 65;
  problem->v_head_size = 33;
  problem->scale = attn_softmax_scale(65);
}

static void odd_block(attn_problem *problem) {
  problem->block_size = 5;
}

static void layout_hnd(attn_problem *problem) {
  problem->layout = ATTN_LAYOUT_HND;
}

static void multi_query(attn_problem *problem) {
  problem->num_kv_heads = 1;
}

static void window(attn_problem *problem) {
  problem->window_left = 127;
  problem->window_right = 0;
}

static void chunked(attn_problem *problem) {
  problem->chunk_size = 64;
  problem->chunk_lookback = 1;
}

static void softcap(attn_problem *problem) {
  problem->softcap = 30.0f;
}

static void alibi_linear(attn_problem *problem) {
  problem->alibi = ATTN_ALIBI_LINEAR;
}

static void alibi_sqrt(attn_problem *problem) {
  problem->alibi = ATTN_ALIBI_SQRT;
}

static void sinks(attn_problem *problem) {
  problem->has_sinks = 1;
}

static void bias(attn_problem *problem) {
  problem->has_bias = 1;
}

static void prefix_ranges(attn_problem *problem) {
  problem->has_prefix_ranges = 1;
}

static void prefix_clamped(attn_problem *problem) {
  problem->has_prefix_ranges = 1;
  problem->prefix_clamp = 1;
  problem->window_left = 127;
}

static void causal_per_seq(attn_problem *problem) {
  problem->has_causal_per_seq = 1;
}

static void lse(attn_problem *problem) {
  problem->wants_lse = 1;
}

static void batch_invariant(attn_problem *problem) {
  problem->batch_invariant = 1;
}

static void fp8_static(attn_problem *problem) {
  problem->out_dtype = ATTN_DTYPE_FP8_E4M3;
}

static void fp8_blocks_64(attn_problem *problem) {
  problem->out_dtype = ATTN_DTYPE_FP8_E4M3;
  problem->output_block = 64;
}

static void fp8_blocks_128(attn_problem *problem) {
  problem->out_dtype = ATTN_DTYPE_FP8_E4M3;
  problem->output_block = 128;
}

static void context_parallel(attn_problem *problem) {
  problem->context_parallel = 2;
}

static void latent_mqa(attn_problem *problem) {
  (void)problem;
}

static void latent_mha(attn_problem *problem) {
  problem->mla_form = ATTN_MLA_MHA;
  problem->qk_nope_head_dim = problem->mla_v_head_dim = 128;
}

static void latent_direct(attn_problem *problem) {
  latent_mha(problem);
  direct(problem);
  problem->causal = 1;
}

static void latent_layer(attn_problem *problem) {
  latent_mha(problem);
  problem->mla_form = ATTN_MLA_LAYER;
}

static void latent_odd(attn_problem *problem) {
  problem->kv_lora_rank = 41;
  problem->qk_rope_head_dim = 5;
}

static const matrix_row features[] = {
    {"decoder over a paged cache", plain_decoder},
    {"encoder and cross attention, no cache", direct},
    {"qk and v head sizes that differ, any size", head_sizes},
    {"any block size", odd_block},
    {"HND pools", layout_hnd},
    {"any GQA group", multi_query},
    {"sliding window", window},
    {"chunked-local attention", chunked},
    {"soft cap", softcap},
    {"ALiBi, linear", alibi_linear},
    {"ALiBi, square root", alibi_sqrt},
    {"sinks", sinks},
    {"caller's bias", bias},
    {"prefix ranges", prefix_ranges},
    {"prefix ranges inside the window", prefix_clamped},
    {"causal flag per sequence", causal_per_seq},
    {"log-sum-exp output", lse},
    {"batch-invariant mode", batch_invariant},
    {"fp8 output, one static scale", fp8_static},
    {"fp8 output, scales of 64 elements", fp8_blocks_64},
    {"fp8 output, scales of 128 elements", fp8_blocks_128},
    {"context parallel", context_parallel},
};

static const matrix_row latent_features[] = {
    {"absorbed, any number of query tokens (mqa)", latent_mqa},
    {"expanded, cached context in chunks (mha)", latent_mha},
    {"expanded, no cache (mha)", latent_direct},
    {"whole layer (layer)", latent_layer},
    {"any latent rank and rotary width", latent_odd},
    {"any block size", odd_block},
    {"sliding window", window},
    {"chunked-local attention", chunked},
    {"soft cap", softcap},
    {"ALiBi, linear", alibi_linear},
    {"ALiBi, square root", alibi_sqrt},
    {"sinks", sinks},
    {"caller's bias", bias},
    {"prefix ranges", prefix_ranges},
    {"causal flag per sequence (mqa)", causal_per_seq},
    {"log-sum-exp output", lse},
    {"batch-invariant mode", batch_invariant},
    {"fp8 output, one static scale", fp8_static},
    {"fp8 output, scales of 128 elements", fp8_blocks_128},
    {"context parallel", context_parallel},
};

static attn_problem base_problem(void) {
  attn_problem problem = ATTN_PROBLEM_INIT;
  problem.num_q_heads = 8;
  problem.num_kv_heads = 2;
  problem.qk_head_size = 64;
  problem.q_dtype = ATTN_DTYPE_BFLOAT16;
  problem.block_size = 16;
  problem.scale = attn_softmax_scale(64);
  return problem;
}

static attn_problem latent_problem(void) {
  attn_problem problem = ATTN_PROBLEM_INIT;
  problem.num_q_heads = 16;
  problem.kv_lora_rank = 512;
  problem.qk_rope_head_dim = 64;
  problem.q_dtype = ATTN_DTYPE_BFLOAT16;
  problem.block_size = 64;
  problem.scale = attn_mla_softmax_scale(192, 1.0, 0.0);
  return problem;
}

static int is_shown(const matrix *m, size_t column) {
  return (m->rows[column] & (int32_t)m->kind) != 0;
}

/* Whether a plan would be made. */
static int ask(const attn_context *context, const char *backend, const attn_problem *problem) {
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  attn_message message;
  const char *name = NULL;
  options.backend = backend;
  attn_status status = attn_select(context, problem, NULL, &options, &name, &message);
  return status == ATTN_OK;
}

static void print_row(matrix *m, const char *title, const attn_problem *problem) {
  if (m->json) {
    json_line(&m->w);
    json_object(&m->w, NULL);
    json_string(&m->w, "table", m->table);
    json_string(&m->w, "title", title);
    json_array(&m->w, "serves");
  } else {
    printf("| %s |", title);
  }
  for (size_t i = 0; i < m->num_columns; ++i) {
    int able = ask(m->context, m->columns[i], problem);
    if (m->json) {
      json_boolean(&m->w, NULL, able);
    } else if (is_shown(m, i)) {
      printf(" %s |", able ? "yes" : "-");
    }
  }
  if (m->json) {
    json_end(&m->w);
    json_end(&m->w);
  } else {
    puts("");
  }
}

static void print_head(matrix *m, const char *title, attn_row_kind kind) {
  int first = m->table == NULL;
  m->table = title;
  m->kind = kind;
  if (m->json) {
    return;
  }
  printf("%s| %s |", first ? "" : "\n", title);
  for (size_t i = 0; i < m->num_columns; ++i) {
    printf(is_shown(m, i) ? " %s |" : "%.0s", m->columns[i]);
  }
  printf("\n|---|");
  for (size_t i = 0; i < m->num_columns; ++i) {
    printf("%s", is_shown(m, i) ? "---|" : "");
  }
  puts("");
}

typedef struct matrix_format {
  attn_format format;
  int rows;
} matrix_format;

static const matrix_format matrix_formats[] = {
#define FORMAT_VALUE(name, value, spelling, storage, rows) {name, rows},
    ATTN_FORMAT_LIST(FORMAT_VALUE)
#undef FORMAT_VALUE
};

static void print_formats(matrix *m) {
  print_head(m, "cache format", ATTN_ROWS_KV);
  for (size_t i = 0; i < sizeof(matrix_formats) / sizeof(matrix_formats[0]); ++i) {
    attn_problem problem = base_problem();
    problem.k_format = matrix_formats[i].format;
    print_row(m, attn_format_name(matrix_formats[i].format), &problem);
  }
}

/* The type of the rotary elements is asked for by formats that keep them apart, and by no other. */
static void print_latent_formats(matrix *m) {
  print_head(m, "latent row format", ATTN_ROWS_LATENT);
  for (size_t i = 0; i < sizeof(matrix_formats) / sizeof(matrix_formats[0]); ++i) {
    attn_problem problem = latent_problem();
    attn_message message;
    problem.k_format = matrix_formats[i].format;
    problem.rotary_dtype = ATTN_DTYPE_BFLOAT16;
    if (attn_problem_check(&problem, &message) != ATTN_OK) {
      problem.rotary_dtype = ATTN_DTYPE_DEFAULT;
    }
    print_row(m, attn_format_name(matrix_formats[i].format), &problem);
  }
}

static void print_dtypes(matrix *m) {
  static const attn_dtype dtypes[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16, ATTN_DTYPE_FP8_E4M3};
  print_head(m, "query or output type", ATTN_ROWS_KV);
  for (size_t i = 0; i < 2 * sizeof(dtypes) / sizeof(dtypes[0]); ++i) {
    char title[64];
    attn_dtype dtype = dtypes[i / 2];
    attn_problem problem = base_problem();
    problem.k_format = ATTN_FORMAT_BFLOAT16;
    if (i % 2 == 0) {
      problem.q_dtype = dtype;
      problem.out_dtype = ATTN_DTYPE_FLOAT32;
    } else {
      problem.out_dtype = dtype;
    }
    snprintf(title, sizeof(title), "%s %s", attn_dtype_name(dtype), i % 2 == 0 ? "queries" : "output");
    print_row(m, title, &problem);
  }
}

static void print_features(matrix *m) {
  print_head(m, "feature", ATTN_ROWS_KV);
  for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); ++i) {
    attn_problem problem = base_problem();
    features[i].apply(&problem);
    print_row(m, features[i].title, &problem);
  }
}

static void print_latent_features(matrix *m) {
  print_head(m, "feature of latent attention", ATTN_ROWS_LATENT);
  for (size_t i = 0; i < sizeof(latent_features) / sizeof(latent_features[0]); ++i) {
    attn_problem problem = latent_problem();
    latent_features[i].apply(&problem);
    print_row(m, latent_features[i].title, &problem);
  }
}

int cli_print_matrix(const attn_context *context, int json, cli_report *report) {
  matrix m = {.context = context, .json = json};
  attn_backend_info info;
  for (size_t i = 0; attn_backend_get(i, &info); ++i) {
    if (!info.foreign && info.built && m.num_columns < MAX_COLUMNS) {
      m.rows[m.num_columns] = info.rows;
      m.columns[m.num_columns++] = info.name;
    }
  }
  if (m.num_columns == 0) {
    return cli_fail(report, CLI_FAILED, "no backend is built");
  }
  if (json) {
    json_start(&m.w, stdout);
    json_object(&m.w, NULL);
    json_array(&m.w, "backends");
    for (size_t i = 0; i < m.num_columns; ++i) {
      json_string(&m.w, NULL, m.columns[i]);
    }
    json_end(&m.w);
    json_array(&m.w, "rows");
  }
  print_formats(&m);
  print_dtypes(&m);
  print_features(&m);
  print_latent_formats(&m);
  print_latent_features(&m);
  if (json) {
    json_finish(&m.w);
  }
  return CLI_OK;
}
