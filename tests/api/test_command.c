/* SPDX-License-Identifier: Apache-2.0 */
/* The command `attn` as its user meets it: each documented refusal with exit code 2 and one line that names the key or
   tensor, an output file that survives failures, one call of each operation, flags, help, explain and --describe. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <sys/stat.h>

#include "request_builder.h"

static const char cached[] =
    "op=attention q:F32[5,4,8] k_cache:F32[6,4,2,8] v_cache:F32[6,4,2,8] block_table:I32[2,2]=1,2,3,4 "
    "query_start_loc:I32[3]=0,3,5 seq_lens:I32[2]=5,7";
static const char written[] =
    "op=attention q:F32[5,4,8] k_cache:F32[6,4,2,8] v_cache:F32[6,4,2,8] block_table:I32[2,2]=1,2,3,4 "
    "query_start_loc:I32[3]=0,3,5 seq_lens:I32[2]=5,7 k:F32[5,2,8] v:F32[5,2,8] slot_mapping:I64[5]=6,7,8,17,18";
static const char direct[] = "op=attention q:F32[5,4,8] k:F32[5,2,8] v:F32[5,2,6] query_start_loc:I32[3]=0,3,5";
static const char cross[] =
    "op=attention q:F32[5,4,8] k:F32[9,2,8] v:F32[9,2,8] query_start_loc:I32[3]=0,3,5 kv_start_loc:I32[3]=0,4,9";
static const char write_call[] =
    "op=cache_write k:F32[3,2,8] v:F32[3,2,4] k_cache:BF16[4,4,2,8] v_cache:F16[4,4,2,4] slot_mapping:I64[3]=5,-1,9";
static const char gather_call[] =
    "op=cache_gather k_cache:BF16[4,4,2,8] v_cache:F16[4,4,2,4] block_table:I32[2,2]=1,2,3,0 seq_lens:I32[2]=6,5";
static const char merge_call[] = "op=merge out_0:F32[3,2,4] lse_0:F32[3,2] out_1:F16[3,2,4] lse_1:F32[3,2]";
static const char latent_write[] =
    "op=cache_write kv_c:F32[3,16] k_pe:F32[3,4] kv_cache:F32[4,4,20] slot_mapping:I64[3]=5,-1,9 kv_lora_rank=16 "
    "qk_rope_head_dim=4";
static const char mqa[] =
    "op=mla_mqa q:F32[2,4,20] kv_cache:F32[4,4,20] block_table:I32[1,2]=1,2 query_start_loc:I32[2]=0,2 "
    "seq_lens:I32[1]=6 kv_lora_rank=16 qk_rope_head_dim=4 scale=0.25";
static const char mha[] =
    "op=mla_mha q:F32[2,4,12] kv_c:F32[2,16] k_pe:F32[2,4] w_kv_b:F32[64,16] query_start_loc:I32[2]=0,2 "
    "kv_lora_rank=16 qk_rope_head_dim=4 qk_nope_head_dim=8 v_head_dim=8";

static fixture fix;
static char in_path[300];
static char out_path[300];

static int set_up(void **state) {
  (void)state;
  if (!fixture_open(&fix)) {
    return -1;
  }
  fixture_path(&fix, "in.safetensors", in_path, sizeof(in_path));
  fixture_path(&fix, "out.safetensors", out_path, sizeof(out_path));
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  fixture_close(&fix);
  return 0;
}

static void save(const char *base, const char *changes) {
  builder *made = build_request(base, changes);
  assert_non_null(made);
  assert_true(build_save(made, in_path));
  free(made);
}

/* Files of the folder whose name starts so. */
static int count_files(const char *prefix) {
  int count = 0;
  DIR *folder = opendir(fix.folder);
  assert_non_null(folder);
  for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
    count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
  }
  closedir(folder);
  return count;
}

static void expect_run(const char *base, const char *changes, const char *flag, const char *value) {
  save(base, changes);
  unlink(out_path);
  if (fixture_run(&fix, "run", in_path, "-o", out_path, flag, value, NULL) != 0) {
    fail_msg("\"%s\" with \"%s\": exit %d: %s", base, changes, fix.status, fix.err);
  }
  assert_int_equal(access(out_path, F_OK), 0);
  assert_string_equal(fix.err, "");
}

/* 1 when the request is refused naming `named`, and the OUT that existed is as it was; else 0 after a line that says so. */
static int is_refused(const char *base, const char *changes, const char *flag, const char *value, const char *named) {
  static const char before[] = "what was there before";
  save(base, changes);
  assert_true(fixture_write(out_path, before, sizeof(before)));
  int code = fixture_run(&fix, "run", in_path, "-o", out_path, flag, value, NULL);
  if (code != 2 || !fixture_one_line(&fix) || strstr(fix.err, named) == NULL || fix.out[0] != '\0') {
    print_error("%.24s with \"%s\" %s: exit %d, expected 2 and a line with \"%s\", found: %s\n", base, changes,
                flag != NULL ? flag : "", code, named, fix.err);
    return 0;
  }
  size_t bytes = 0;
  unsigned char *after = fixture_read(out_path, &bytes);
  assert_non_null(after);
  assert_int_equal(bytes, sizeof(before));
  assert_memory_equal(after, before, sizeof(before));
  free(after);
  assert_int_equal(count_files("out.safetensors"), 1);
  return 1;
}

static void expect_refusal(const char *base, const char *changes, const char *flag, const char *value,
                           const char *named) {
  assert_true(is_refused(base, changes, flag, value, named));
}

typedef struct refusal {
  const char *base;
  const char *changes;
  const char *named;
} refusal;

static void try_refusals(const refusal *rows, size_t count) {
  size_t failed = 0;
  for (size_t i = 0; i < count; ++i) {
    failed += !is_refused(rows[i].base, rows[i].changes, NULL, NULL, rows[i].named);
  }
  assert_int_equal(failed, 0);
}

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static void test_keys(void **state) {
  (void)state;
  static const refusal rows[] = {
      {cached, "!op", "op"},
      {cached, "op=attend", "op"},
      {cached, "softmax=1", "softmax"},
      {cached, "Scale=1", "Scale"},
      {cached, "lse_base=2", "lse_base"},
      {cached, "kv_lora_rank=16", "kv_lora_rank"},
      {cached, "context_chunk=0", "context_chunk"},
      {merge_call, "checked=1", "checked"},
      {merge_call, "scale=1", "scale"},
      {write_call, "causal=1", "causal"},
      {write_call, "out_dtype=float32", "out_dtype"},
      {gather_call, "num_splits=1", "num_splits"},
      {latent_write, "kv_layout=NHD", "kv_layout"},
      {mha, "causal=1", "causal"},
      {cached, "causal=2", "causal"},
      {cached, "causal=true", "causal"},
      {cached, "scale=0", "scale"},
      {cached, "scale=-1", "scale"},
      {cached, "scale=nan", "scale"},
      {cached, "scale=inf", "scale"},
      {cached, "scale=1e99", "scale"},
      {cached, "scale=1e-60", "scale"},
      {cached, "scale=0x1p-3", "scale"},
      {cached, "scale=0.5x", "scale"},
      {cached, "scale=0,5", "scale"},
      {cached, "scale=", "scale"},
      {cached, "scale=.", "scale"},
      {cached, "softcap=-1", "softcap"},
      {cached, "softcap=nan", "softcap"},
      {cached, "window_left=-2", "window_left"},
      {cached, "window_right=-2", "window_right"},
      {cached, "window_left=1.5", "window_left"},
      {cached, "window_left=+1", "window_left"},
      {cached, "window_left=2147483648", "window_left"},
      {cached, "window_left=99999999999999999999", "window_left"},
      {cached, "chunk_size=-1", "chunk_size"},
      {cached, "chunk_lookback=-1", "chunk_lookback"},
      {cached, "prefix_clamp=yes", "prefix_clamp"},
      {cached, "num_splits=-1", "num_splits"},
      {cached, "num_splits=4097", "num_splits"},
      {cached, "split_rule=best", "split_rule"},
      {cached, "split_rule=compatible", "split_rule"},
      {cached, "alibi=linear", "alibi"},
      {cached, "alibi=cubic alibi_slopes:F32[4]", "alibi"},
      {cached, "out_dtype=float64", "out_dtype"},
      {cached, "out_dtype=fp8_e4m3", "output_scale"},
      {cached, "out_dtype=fp8_e4m3 output_scale:F32[1]=1", "fp8_e4m3"},
      {cached, "output_block=64", "output_block"},
      {cached, "output_block=32", "output_block"},
      {gather_call, "out_dtype=fp8_e4m3", "out_dtype"},
      {merge_call, "out_dtype=fp8_e4m3", "out_dtype"},
      {merge_call, "lse_base=10", "lse_base"},
      {cached, "checked=2", "checked"},
      {cached, "block_size=8", "block_size"},
      {cached, "block_size=0", "block_size"},
      {cached, "head_size=16", "head_size"},
      {cached, "v_head_size=16", "v_head_size"},
      {cached, "kv_layout=BSHD", "kv_layout"},
      {cached, "kv_layout=HND block_size=4", "block_size"},
      {cached, "cache_format=float64", "cache_format"},
      {cached, "cache_format=float32+separate_scales", "cache_format"},
      {cached, "cache_format=int8_per_token_head+separate", "cache_format"},
      {cached, "cache_format=bfloat16", "k_cache"},
      {cached, "v_cache_format=float16", "v_cache"},
      {cached, "k_cache:U8[6,4,2,8] v_cache:U8[6,4,2,8]", "cache_format"},
      {cached, "k_cache:U8[6,4,2,8] v_cache:U8[6,4,2,8] cache_format=fp8_e4m3", "v_head_size"},
      {cached, "k_cache:F8_E5M2[6,4,2,8] v_cache:F8_E5M2[6,4,2,8]", "fp8_e5m2"},
      {cached, "k_cache:U8[6,4,2,12] v_cache:U8[6,4,2,12] cache_format=int8_per_token_head v_head_size=8",
       "int8_per_token_head"},
      {write_call, "k_cache:F8_E4M3[4,4,2,8] v_cache:F8_E4M3[4,4,2,4]", "fp8_e4m3"},
      {gather_call, "k_cache:F8_E4M3[4,4,2,8] v_cache:F8_E4M3[4,4,2,4]", "fp8_e4m3"},
      {gather_call, "k_cache:U8[4,4,2,8] v_cache:U8[4,4,2,4] cache_format=fp8_e4m3", "head_size"},
      {mqa, "", "mla_mqa is not built in"},
      {mqa, "!scale", "scale"},
      {mqa, "!kv_lora_rank", "kv_lora_rank"},
      {mha, "", "mla_mha is not built in"},
      {mha, "op=mla_layer kv_cache:F32[4,4,20] block_table:I32[1,2] seq_lens:I32[1]=4 slot_mapping:I64[2]=4,5",
       "mla_layer is not built in"},
      {mha, "!v_head_dim", "v_head_dim"},
      {latent_write, "", "kv_cache"},
      {latent_write, "!kv_lora_rank", "kv_lora_rank"},
  };
  try_refusals(rows, COUNT_OF(rows));
}

static void test_tensors(void **state) {
  (void)state;
  static const refusal rows[] = {
      {cached, "keys:F32[1]", "keys"},
      {cached, "out_0:F32[5,4,8]", "out_0"},
      {cached, "kv_cache:F32[4,4,20]", "kv_cache"},
      {cached, "seq_starts:I32[2]", "seq_starts"},
      {merge_call, "q:F32[3,2,4]", "q"},
      {write_call, "block_table:I32[2,2]", "block_table"},
      {write_call, "kv_cache:F32[4,4,20]", "kv_cache"},
      {gather_call, "slot_mapping:I64[2]", "slot_mapping"},
      {cached, "!q", "tensor q is missing"},
      {cached, "!k_cache", "k_cache is missing"},
      {cached, "!v_cache", "v_cache is missing"},
      {cached, "!block_table", "block_table is missing"},
      {cached, "!seq_lens", "seq_lens is missing"},
      {cached, "!query_start_loc", "query_start_loc is missing"},
      {direct, "!v", "tensor v is missing"},
      {direct, "!k", "tensor k is missing"},
      {write_call, "!slot_mapping", "slot_mapping is missing"},
      {write_call, "!v", "tensor v is missing"},
      {gather_call, "!k_cache !v_cache", "k_cache is missing"},
      {gather_call, "!seq_lens", "seq_lens is missing"},
      {merge_call, "!out_0", "out_0 is missing"},
      {merge_call, "!lse_1", "lse_1 is missing"},
      {merge_call, "!out_1 !lse_1 !out_0 !lse_0", "out_0 is missing"},
      {merge_call, "out_3:F32[3,2,4] lse_3:F32[3,2]", "out_2 is missing"},
      {merge_call, "out_02:F32[3,2,4]", "out_02"},
      {merge_call, "out_4096:F32[3,2,4]", "out_4096"},
      {cached, "k:F32[5,2,8]", "tensor k cannot be used"},
      {cached, "v:F32[5,2,8]", "tensor v cannot be used"},
      {cached, "slot_mapping:I64[5]", "tensor k is missing"},
      {cached, "k_scale:F32[1]=1", "k_scale cannot be used"},
      {cached, "v_scale:F32[2]=1,1", "v_scale cannot be used"},
      {direct, "k_scale:F32[1]=1", "k_scale cannot be used"},
      {cached, "q_scale:F32[1]=1", "q_scale cannot be used"},
      {cached, "q:F8_E4M3[5,4,8]", "q_scale is missing"},
      {cached, "q:F8_E4M3[5,4,8] q_scale:F32[1]=1", "fp8_e4m3"},
      {direct, "seq_lens:I32[2]=3,2", "seq_lens cannot be used"},
      {direct, "block_table:I32[2,2]", "block_table cannot be used"},
      {direct, "slot_mapping:I64[5]", "slot_mapping cannot be used"},
      {cached, "kv_start_loc:I32[3]=0,3,5", "kv_start_loc cannot be used"},
      {cached, "output_scale:F32[1]=1", "output_scale cannot be used"},
      {cached, "out_dtype=fp8_e4m3 output_block=64 output_scale:F32[1]=1", "output_scale cannot be used"},
      {cached, "q:F64[5,4,8]", "F64"},
      {cached, "q:I32[5,4,8]", "tensor q has type I32"},
      {cached, "k_cache:I32[6,4,2,8]", "tensor k_cache has type I32"},
      {cached, "seq_lens:I64[2]=5,7", "tensor seq_lens has type I64"},
      {written, "slot_mapping:I32[5]", "tensor slot_mapping has type I32"},
      {cached, "bias:F16[5,4,7]", "tensor bias has type F16"},
      {cached, "q:F32[5,32]", "tensor q has 2 axes"},
      {cached, "seq_lens:I32[2,1]=5,7", "tensor seq_lens has 2 axes"},
      {cached, "k_cache:F32[6,4,16]", "tensor k_cache has 3 axes"},
      {cached, "query_start_loc:I32[0]", "query_start_loc"},
      {cached, "query_start_loc:I32[3]=1,3,5", "query_start_loc"},
      {cached, "query_start_loc:I32[3]=0,4,3", "query_start_loc"},
      {cached, "query_start_loc:I32[3]=0,3,6", "query_start_loc"},
      {cached, "query_start_loc:I32[3]=0,-3,5", "query_start_loc"},
      {cached, "query_start_loc:I32[3]=0,3,-5", "query_start_loc"},
      {cached, "query_start_loc:I32[4]=0,3,5,5", "seq_lens"},
      {cached, "seq_lens:I32[2]=5,-1", "seq_lens"},
      {cached, "seq_lens:I32[2]=5,9", "seq_lens"},
      {cached, "seq_lens:I32[2]=5,2147483647", "seq_lens"},
      {cached, "block_table:I32[2,2]=1,2,3,6", "block_table"},
      {cached, "block_table:I32[2,2]=1,-1,3,4", "block_table"},
      {cached, "block_table:I32[3,2]", "block_table"},
      {cached, "q:F32[5,3,8]", "q_heads"},
      {cached, "q:F32[5,0,8]", "tensor q"},
      {cached, "q:F32[5,4,0] k_cache:F32[6,4,2,0]", "tensor q"},
      {cached, "k_cache:F32[6,0,2,8]", "k_cache"},
      {cached, "k_cache:F32[6,4,2,6]", "k_cache"},
      {cached, "v_cache:F32[6,4,1,8]", "v_cache"},
      {cached, "v_cache:F32[6,3,2,8]", "v_cache"},
      {cached, "v_cache:F32[2,4,2,8]", "v_cache"},
      {written, "k:F32[4,2,8] v:F32[4,2,8]", "tensor k"},
      {written, "v:F32[4,2,8]", "tensor v"},
      {written, "k:F32[5,1,8]", "tensor k"},
      {written, "v:F32[5,2,6]", "v_cache"},
      {written, "slot_mapping:I64[6]", "slot_mapping"},
      {written, "slot_mapping:I64[5]=6,7,8,17,24", "slot_mapping"},
      {written, "slot_mapping:I64[5]=6,7,8,17,6", "slot_mapping"},
      {direct, "v:F16[5,2,6]", "v"},
      {direct, "k:F32[4,2,8] v:F32[4,2,6]", "tensor k"},
      {cross, "kv_start_loc:I32[3]=0,4,10", "k: axis 0"},
      {cross, "kv_start_loc:I32[3]=0,5,4", "kv_start_loc"},
      {cross, "kv_start_loc:I32[2]=0,9", "kv_start_loc"},
      {cached, "sinks:F32[3]", "sinks"},
      {cached, "sinks:F32[4]=0,inf,0,0", "sinks"},
      {cached, "sinks:F32[4]=0,nan,0,0", "sinks"},
      {cached, "alibi_slopes:F32[2]", "alibi_slopes"},
      {cached, "alibi_slopes:F32[4]=0,0,0,inf", "alibi_slopes"},
      {cached, "bias:F32[5,2,7]", "bias"},
      {cached, "bias:F32[5,4,6]", "bias"},
      {cached, "bias:F32[4,4,7]", "bias"},
      {cached, "prefix_ranges:I32[2,1,3]", "prefix_ranges"},
      {cached, "prefix_ranges:I32[1,1,2]", "prefix_ranges"},
      {cached, "prefix_ranges:I32[2,1,2]=0,2,3,1", "prefix_ranges"},
      {cached, "causal_per_seq:I32[3]", "causal_per_seq"},
      {cached, "causal_per_seq:I32[2]=0,2", "causal_per_seq"},
      {write_call, "slot_mapping:I64[3]=5,-1,16", "slot_mapping"},
      {write_call, "slot_mapping:I64[3]=5,9,5", "slot_mapping"},
      {write_call, "slot_mapping:I64[4]", "slot_mapping"},
      {gather_call, "seq_starts:I32[2]=7,0", "seq_starts"},
      {gather_call, "seq_starts:I32[2]=0,-1", "seq_starts"},
      {gather_call, "seq_starts:I32[1]=0", "seq_starts"},
      {gather_call, "seq_lens:I32[2]=6,9", "seq_lens"},
      {gather_call, "seq_lens:I32[2]=6,-1", "seq_lens"},
      {gather_call, "block_table:I32[2,2]=1,4,3,0", "block_table"},
      {merge_call, "out_1:F32[3,2,5]", "out"},
      {merge_call, "lse_1:F32[3,1]", "lse"},
      {merge_call, "sinks:F32[3]", "sinks"},
      {merge_call, "sinks:F32[2]=0,nan", "sinks"},
  };
  try_refusals(rows, COUNT_OF(rows));
}

static void test_flags(void **state) {
  (void)state;
  expect_refusal(cached, "", "--device", "cuda:0", "cuda");
  expect_refusal(cached, "", "--device", "opencl:0", "opencl");
  expect_refusal(cached, "", "--device", "cuda", "--device");
  expect_refusal(cached, "", "--device", "tpu:0", "--device");
  expect_refusal(cached, "", "--device", "cpu:1", "--device");
  expect_refusal(cached, "", "--backend", "FASTEST", "FASTEST");
  expect_refusal(cached, "", "--backend", "TRITON_ATTN", "TRITON_ATTN");
  expect_refusal(cached, "", "--backend", "PORTABLE_ATTN", "PORTABLE_ATTN");
  expect_refusal(write_call, "", "--backend", "FLASHMLA", "FLASHMLA");
  expect_refusal(merge_call, "", "--backend", "FASTEST", "FASTEST");
  expect_refusal(cached, "", "--splits", "-1", "--splits");
  expect_refusal(cached, "", "--splits", "5000", "--splits");
  expect_refusal(cached, "", "--threads", "0", "--threads");
  expect_refusal(cached, "", "--threads", "two", "--threads");
  expect_refusal(cached, "", "--fast", NULL, "--fast");
  expect_refusal(cached, "", "extra", NULL, "extra");
  expect_refusal(cached, "num_splits=2", "--batch-invariant", NULL, "num_splits");
  expect_refusal(merge_call, "", "--splits", "2", "--splits");
  expect_refusal(merge_call, "", "--unchecked", NULL, "--unchecked");
  expect_refusal(write_call, "", "--batch-invariant", NULL, "--batch-invariant");
  assert_int_equal(fixture_run(&fix, "run", in_path, NULL), 2);
  assert_true(fixture_one_line(&fix));
  assert_int_equal(fixture_run(&fix, "run", "-o", out_path, NULL), 2);
  assert_true(fixture_one_line(&fix));
  assert_int_equal(fixture_run(&fix, "run", in_path, "-o", NULL), 2);
  assert_true(fixture_one_line(&fix));
  assert_int_equal(fixture_run(&fix, "walk", NULL), 2);
  assert_true(fixture_one_line(&fix));
}

static void test_environment(void **state) {
  (void)state;
  size_t bytes = 0;
  setenv("ATTN_BACKEND", "REFERENCE", 1);
  expect_run(merge_call, "", NULL, NULL);
  char *header = (char *)fixture_read(out_path, &bytes);
  assert_non_null(header);
  assert_non_null(strstr(header + 8, "\"backend\":\"REFERENCE\""));
  free(header);
  expect_run(cached, "", "--backend", "CPU_ATTN");
  header = (char *)fixture_read(out_path, &bytes);
  assert_non_null(header);
  assert_non_null(strstr(header + 8, "\"backend\":\"CPU_ATTN\""));
  free(header);
  setenv("ATTN_BACKEND", "FASTEST", 1);
  expect_refusal(cached, "", NULL, NULL, "ATTN_BACKEND");
  expect_refusal(cached, "", "--backend", "REFERENCE", "ATTN_BACKEND");
  unsetenv("ATTN_BACKEND");
  setenv("ATTN_CPU", "fastest", 1);
  expect_refusal(cached, "", NULL, NULL, "ATTN_CPU");
  unsetenv("ATTN_CPU");
}

static void test_operations(void **state) {
  (void)state;
  static const char *const bases[] = {cached, written, direct, cross, write_call, gather_call, merge_call};
  static const char *const flags[][2] = {{NULL, NULL},          {"--backend", "REFERENCE"}, {"--backend", "CPU_ATTN"},
                                         {"--backend", "auto"}, {"--threads", "2"},         {"--device", "cpu"},
                                         {"--poison", NULL}};
  for (size_t i = 0; i < COUNT_OF(bases); ++i) {
    for (size_t j = 0; j < COUNT_OF(flags); ++j) {
      expect_run(bases[i], "", flags[j][0], flags[j][1]);
    }
  }
  expect_run(cached, "num_splits=2", "--splits", "0");
  expect_run(cached, "", "--batch-invariant", NULL);
  expect_run(cached, "block_table:I32[2,2]=1,-1,3,4", "--unchecked", NULL);
  expect_run(cached, "checked=0 seq_lens:I32[2]=5,9", NULL, NULL);
  expect_run(written, "checked=0 slot_mapping:I64[5]=6,7,8,17,24", NULL, NULL);
  expect_run(write_call, "slot_mapping:I64[3]=5,5,99", "--unchecked", NULL);
  expect_run(gather_call, "block_table:I32[2,1]=1,9", "--unchecked", NULL);
  /* keys of the operation that have no effect on this request */
  expect_run(cached, "chunk_lookback=2 prefix_clamp=1 output_block=0", NULL, NULL);
  expect_run(direct, "kv_layout=HND block_size=4 cache_format=float16 head_size=8 v_head_size=6 checked=1", NULL, NULL);
  expect_run(gather_call, "!v_cache head_size=8 seq_starts:I32[2]=2,5", NULL, NULL);
  /* extents of 0 */
  expect_run(cached, "q:F32[0,4,8] query_start_loc:I32[3]=0,0,0", NULL, NULL);
  expect_run(cached, "q:F32[0,4,8] query_start_loc:I32[1]=0 seq_lens:I32[0] block_table:I32[0,2]", NULL, NULL);
  expect_run(cached, "seq_lens:I32[2]=0,0 block_table:I32[2,0]", NULL, NULL);
  expect_run(cached, "seq_lens:I32[2]=0,0 k_cache:F32[0,4,2,8] v_cache:F32[0,4,2,8]", NULL, NULL);
  expect_run(cached, "prefix_ranges:I32[2,0,2]", NULL, NULL);
  expect_run(write_call, "slot_mapping:I64[0]", NULL, NULL);
  expect_run(gather_call, "seq_lens:I32[0] block_table:I32[0,2]", NULL, NULL);
  expect_run(merge_call, "out_0:F32[0,2,4] lse_0:F32[0,2] out_1:F32[0,2,4] lse_1:F32[0,2]", NULL, NULL);
}

/* The result's metadata, and OUT over an existing file and over IN. */
static void test_results(void **state) {
  (void)state;
  size_t bytes = 0;
  expect_run(written, "", "--backend", "REFERENCE");
  char *header = (char *)fixture_read(out_path, &bytes);
  assert_non_null(header);
  static const char *const named[] = {"\"backend\":\"REFERENCE\"",
                                      "\"backend_reason\":\"",
                                      "\"splits\":\"1\"",
                                      "\"workspace_bytes\":\"",
                                      "\"out\":{\"dtype\":\"F32\",\"shape\":[5,4,8]",
                                      "\"lse\":{\"dtype\":\"F32\",\"shape\":[5,4]",
                                      "\"k_cache\":",
                                      "\"v_cache\":"};
  for (size_t i = 0; i < COUNT_OF(named); ++i) {
    if (strstr(header + 8, named[i]) == NULL) {
      fail_msg("the result has no %s: %.600s", named[i], header + 8);
    }
  }
  free(header);
  size_t in_bytes = 0;
  unsigned char *before = fixture_read(in_path, &in_bytes);
  assert_non_null(before);
  size_t same_bytes = 0;
  unsigned char *same = fixture_read(in_path, &same_bytes);
  assert_int_equal(in_bytes, same_bytes);
  assert_memory_equal(before, same, in_bytes);
  free(before);
  free(same);
  assert_int_equal(fixture_run(&fix, "run", in_path, "-o", in_path, NULL), 0);
  char *replaced = (char *)fixture_read(in_path, &bytes);
  assert_non_null(replaced);
  assert_non_null(strstr(replaced + 8, "\"lse\""));
  free(replaced);
  assert_int_equal(count_files("in.safetensors"), 1);
}

static void test_outputs_that_cannot_be_written(void **state) {
  (void)state;
  save(cached, "");
  assert_int_equal(fixture_run(&fix, "run", in_path, "-o", "/nonexistent/out.safetensors", NULL), 1);
  assert_true(fixture_one_line(&fix));
  assert_int_equal(fixture_run(&fix, "run", in_path, "-o", fix.folder, NULL), 1);
  assert_true(fixture_one_line(&fix));
  assert_int_equal(fixture_run(&fix, "run", in_path, "-o", "/dev/null", NULL), 1);
  assert_true(fixture_one_line(&fix));
  struct stat status;
  assert_int_equal(stat("/dev/null", &status), 0);
  assert_true(S_ISCHR(status.st_mode));
}

static void test_help_and_version(void **state) {
  (void)state;
  static const char *const commands[] = {"info", "explain", "check", "run"};
  assert_int_equal(fixture_run(&fix, "--version", NULL), 0);
  assert_int_equal(strncmp(fix.out, "attn ", 5), 0);
  assert_int_equal(fixture_run(&fix, "--help", NULL), 0);
  for (size_t i = 0; i < COUNT_OF(commands); ++i) {
    char word[32];
    snprintf(word, sizeof(word), "attn %s", commands[i]);
    assert_int_equal(fixture_run(&fix, "--help", NULL), 0);
    assert_non_null(strstr(fix.out, word));
    assert_int_equal(fixture_run(&fix, commands[i], "--help", NULL), 0);
    assert_true(strlen(fix.out) > 40);
    assert_string_equal(fix.err, "");
  }
}

static void test_info(void **state) {
  (void)state;
  static const char *const named[] = {"device: cpu:0", "level: ",  "CPU_ATTN", "REFERENCE",
                                      "TRITON_ATTN",   "kernels:", "generic"};
  assert_int_equal(fixture_run(&fix, "info", NULL), 0);
  for (size_t i = 0; i < COUNT_OF(named); ++i) {
    assert_non_null(strstr(fix.out, named[i]));
  }
  assert_int_equal(fixture_run(&fix, "info", "--device", "cuda:0", NULL), 2);
  assert_true(fixture_one_line(&fix));
  assert_int_equal(fixture_run(&fix, "info", "--matrix", NULL), 0);
  assert_non_null(strstr(fix.out, "| cache format | CPU_ATTN | REFERENCE |"));
  assert_non_null(strstr(fix.out, "| bfloat16 | yes | yes |"));
  assert_non_null(strstr(fix.out, "| fp8_ds_mla | - | - |"));
  assert_non_null(strstr(fix.out, "| sliding window | yes | yes |"));
}

static void test_explain(void **state) {
  (void)state;
  static const char *const named[] = {
      "pick: CPU_ATTN", "workspace_bytes: ", "excess_workspace_bytes: ", "on_chip_bytes: ", "block_size: 4", "splits: ",
      "REFERENCE",      "TRITON_ATTN"};
  save(cached, "");
  unlink(out_path);
  assert_int_equal(fixture_run(&fix, "explain", in_path, "--threads", "1", "--splits", "0", "--poison", NULL), 0);
  for (size_t i = 0; i < COUNT_OF(named); ++i) {
    if (strstr(fix.out, named[i]) == NULL) {
      fail_msg("explain does not say %s: %s", named[i], fix.out);
    }
  }
  assert_int_equal(fixture_run(&fix, "explain", in_path, "--backend", "TRITON_ATTN", NULL), 2);
  assert_true(fixture_one_line(&fix));
  assert_int_equal(fixture_run(&fix, "explain", "op=attention", "q=F32[5,4,8]", "k_cache=F32[6,4,2,8]",
                               "v_cache=F32[6,4,2,8]", "block_table=I32[2,2]", "seq_lens=I32[2]",
                               "query_start_loc=I32[3]", "window_left=2", NULL),
                   0);
  assert_non_null(strstr(fix.out, "block_size: 4"));
  assert_int_equal(fixture_run(&fix, "explain", "op=attention", "q=F32[5,4,x]", NULL), 2);
  assert_true(fixture_one_line(&fix));
  save(merge_call, "");
  assert_int_equal(fixture_run(&fix, "explain", in_path, "--backend", "REFERENCE", NULL), 0);
  assert_non_null(strstr(fix.out, "pick: REFERENCE"));
}

/* --describe lists every key and tensor, and a key is refused as not used exactly where it does not list the operation. */
static void test_describe(void **state) {
  (void)state;
  static const char *const names[] = {"`op`",
                                      "`cache_format`",
                                      "`v_cache_format`",
                                      "`kv_layout`",
                                      "`block_size`",
                                      "`head_size`",
                                      "`v_head_size`",
                                      "`scale`",
                                      "`causal`",
                                      "`window_left`",
                                      "`window_right`",
                                      "`chunk_size`",
                                      "`chunk_lookback`",
                                      "`prefix_clamp`",
                                      "`softcap`",
                                      "`alibi`",
                                      "`kv_lora_rank`",
                                      "`qk_rope_head_dim`",
                                      "`rotary_dtype`",
                                      "`qk_nope_head_dim`",
                                      "`v_head_dim`",
                                      "`context_chunk`",
                                      "`num_splits`",
                                      "`split_rule`",
                                      "`out_dtype`",
                                      "`output_block`",
                                      "`lse_base`",
                                      "`checked`",
                                      "`q`",
                                      "`k`",
                                      "`v`",
                                      "`kv_c`",
                                      "`k_pe`",
                                      "`k_cache`",
                                      "`v_cache`",
                                      "`kv_cache`",
                                      "`block_table`",
                                      "`query_start_loc`",
                                      "`seq_lens`",
                                      "`kv_start_loc`",
                                      "`slot_mapping`",
                                      "`k_scale`",
                                      "`v_scale`",
                                      "`kv_scale`",
                                      "`q_scale`",
                                      "`alibi_slopes`",
                                      "`sinks`",
                                      "`bias`",
                                      "`prefix_ranges`",
                                      "`causal_per_seq`",
                                      "`output_scale`",
                                      "`w_kv_b`",
                                      "`seq_starts`",
                                      "`out_N`",
                                      "`lse_N`"};
  assert_int_equal(fixture_run(&fix, "run", "--describe", NULL), 0);
  char *text = strdup(fix.out);
  assert_non_null(text);
  for (size_t i = 0; i < COUNT_OF(names); ++i) {
    if (strstr(text, names[i]) == NULL) {
      fail_msg("--describe has no %s", names[i]);
    }
  }
  char *rest = text;
  int is_key = 0;
  for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
    char name[64];
    char change[96];
    is_key = strncmp(line, "## Keys", 7) == 0 || (is_key && strncmp(line, "## ", 3) != 0);
    if (!is_key || sscanf(line, "| `%63[a-z_]`", name) != 1 || strcmp(name, "op") == 0) {
      continue;
    }
    /* the column of the operations with K and V is the last but one */
    char *last = strrchr(line, '|');
    *last = '\0';
    *strrchr(line, '|') = '\0';
    int listed = strstr(strrchr(line, '|'), "merge") != NULL;
    snprintf(change, sizeof(change), "%s=?", name);
    save(merge_call, change);
    assert_int_equal(fixture_run(&fix, "run", in_path, "-o", out_path, NULL), 2);
    if (listed != (strstr(fix.err, "not used") == NULL)) {
      fail_msg("--describe and the parser differ on %s: %s", name, fix.err);
    }
  }
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keys),
      cmocka_unit_test(test_tensors),
      cmocka_unit_test(test_flags),
      cmocka_unit_test(test_environment),
      cmocka_unit_test(test_operations),
      cmocka_unit_test(test_results),
      cmocka_unit_test(test_outputs_that_cannot_be_written),
      cmocka_unit_test(test_help_and_version),
      cmocka_unit_test(test_info),
      cmocka_unit_test(test_explain),
      cmocka_unit_test(test_describe),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
