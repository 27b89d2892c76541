/* SPDX-License-Identifier: Apache-2.0 */
/* What `attn run` refuses: a table of requests with one thing wrong, each answered by exit code 2 and one line that
   names the key, tensor or flag, with the output file that existed left as it was. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <sys/resource.h>
#include <time.h>

#include "request_builder.h"

static const char latent_write[] =
    "op=cache_write kv_c:F32[3,16] k_pe:F32[3,4] kv_cache:F32[4,4,20] slot_mapping:I64[3]=5,-1,9 kv_lora_rank=16 "
    "qk_rope_head_dim=4";
static const char mqa[] =
    "op=mla_mqa q:F32[2,4,20] kv_cache:F32[4,4,20] block_table:I32[1,2]=1,2 query_start_loc:I32[2]=0,2 "
    "seq_lens:I32[1]=6 kv_lora_rank=16 qk_rope_head_dim=4 scale=0.25";
static const char mha[] =
    "op=mla_mha q:F32[2,4,12] kv_c:F32[2,16] k_pe:F32[2,4] w_kv_b:F32[64,16] query_start_loc:I32[2]=0,2 "
    "kv_lora_rank=16 qk_rope_head_dim=4 qk_nope_head_dim=8 v_head_dim=8";

static request_files files;

static int set_up(void **state) {
  (void)state;
  return request_open(&files) ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  fixture_close(&files.fix);
  return 0;
}

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

typedef struct refusal {
  const char *base;
  const char *changes;
  const char *named;
} refusal;

static void try_refusals(const refusal *rows, size_t count) {
  size_t failed = 0;
  for (size_t i = 0; i < count; ++i) {
    failed += !request_is_refused(&files, rows[i].base, rows[i].changes, NULL, NULL, rows[i].named);
  }
  assert_int_equal(failed, 0);
}

static void test_keys(void **state) {
  (void)state;
  static const refusal rows[] = {
      {REQUEST_CACHED, "!op", "op"},
      {REQUEST_CACHED, "op=attend", "op"},
      {REQUEST_CACHED, "softmax=1", "softmax"},
      {REQUEST_CACHED, "Scale=1", "Scale"},
      {REQUEST_CACHED, "lse_base=2", "lse_base"},
      {REQUEST_CACHED, "kv_lora_rank=16", "kv_lora_rank"},
      {REQUEST_CACHED, "context_chunk=0", "context_chunk"},
      {REQUEST_MERGE, "checked=1", "checked"},
      {REQUEST_MERGE, "scale=1", "scale"},
      {REQUEST_WRITE, "causal=1", "causal"},
      {REQUEST_WRITE, "out_dtype=float32", "out_dtype"},
      {REQUEST_GATHER, "num_splits=1", "num_splits"},
      {latent_write, "kv_layout=NHD", "kv_layout"},
      {mha, "causal=1", "causal"},
      {REQUEST_CACHED, "causal=2", "causal"},
      {REQUEST_CACHED, "causal=true", "causal"},
      {REQUEST_CACHED, "scale=0", "scale"},
      {REQUEST_CACHED, "scale=-1", "scale"},
      {REQUEST_CACHED, "scale=nan", "scale"},
      {REQUEST_CACHED, "scale=inf", "scale"},
      {REQUEST_CACHED, "scale=1e99", "scale"},
      {REQUEST_CACHED, "scale=1e-60", "scale"},
      {REQUEST_CACHED, "scale=0x1p-3", "scale"},
      {REQUEST_CACHED, "scale=0.5x", "scale"},
      {REQUEST_CACHED, "scale=0,5", "scale"},
      {REQUEST_CACHED, "scale=", "scale"},
      {REQUEST_CACHED, "scale=.", "scale"},
      {REQUEST_CACHED, "softcap=-1", "softcap"},
      {REQUEST_CACHED, "softcap=nan", "softcap"},
      {REQUEST_CACHED, "window_left=-2", "window_left"},
      {REQUEST_CACHED, "window_right=-2", "window_right"},
      {REQUEST_CACHED, "window_left=1.5", "window_left"},
      {REQUEST_CACHED, "window_left=+1", "window_left"},
      {REQUEST_CACHED, "window_left=2147483648", "window_left"},
      {REQUEST_CACHED, "window_left=99999999999999999999", "window_left"},
      {REQUEST_CACHED, "chunk_size=-1", "chunk_size"},
      {REQUEST_CACHED, "chunk_lookback=-1", "chunk_lookback"},
      {REQUEST_CACHED, "prefix_clamp=yes", "prefix_clamp"},
      {REQUEST_CACHED, "num_splits=-1", "num_splits"},
      {REQUEST_CACHED, "num_splits=4097", "num_splits"},
      {REQUEST_CACHED, "split_rule=best", "split_rule"},
      {REQUEST_CACHED, "alibi=linear", "alibi"},
      {REQUEST_CACHED, "alibi=cubic alibi_slopes:F32[4]", "alibi"},
      {REQUEST_CACHED, "out_dtype=float64", "out_dtype"},
      {REQUEST_CACHED, "out_dtype=fp8_e4m3", "output_scale"},
      {REQUEST_CACHED, "out_dtype=fp8_e5m2 output_scale:F32[1]=1", "out_dtype"},
      {REQUEST_CACHED, "output_block=64", "output_block"},
      {REQUEST_CACHED, "output_block=32", "output_block"},
      {REQUEST_GATHER, "out_dtype=fp8_e4m3", "out_dtype"},
      {REQUEST_MERGE, "out_dtype=fp8_e4m3", "out_dtype"},
      {REQUEST_MERGE, "lse_base=10", "lse_base"},
      {REQUEST_CACHED, "checked=2", "checked"},
      {REQUEST_CACHED, "block_size=8", "block_size"},
      {REQUEST_CACHED, "block_size=0", "block_size"},
      {REQUEST_CACHED, "head_size=16", "head_size"},
      {REQUEST_CACHED, "v_head_size=16", "v_head_size"},
      {REQUEST_CACHED, "kv_layout=BSHD", "kv_layout"},
      {REQUEST_CACHED, "kv_layout=HND block_size=4", "block_size"},
      {REQUEST_CACHED, "cache_format=float64", "cache_format"},
      {REQUEST_CACHED, "cache_format=float32+separate_scales", "cache_format"},
      {REQUEST_CACHED, "cache_format=int8_per_token_head+separate", "cache_format"},
      {REQUEST_CACHED, "cache_format=bfloat16", "k_cache"},
      {REQUEST_CACHED, "v_cache_format=float16", "v_cache"},
      {REQUEST_CACHED, "k_cache:U8[6,4,2,8] v_cache:U8[6,4,2,8]", "cache_format"},
      {REQUEST_CACHED, "k_cache:U8[6,4,2,8] v_cache:U8[6,4,2,8] cache_format=fp8_e4m3", "v_head_size"},
      {REQUEST_CACHED, "k_cache:F8_E5M2[6,4,2,8] v_cache:F8_E5M2[6,4,2,8] cache_format=fp8_e4m3", "fp8_e4m3"},
      {REQUEST_CACHED, "k_cache:U8[6,4,2,12] v_cache:U8[6,4,2,11] cache_format=int8_per_token_head v_head_size=8",
       "v_cache"},
      {REQUEST_CACHED, "k_cache:U8[6,4,2,12] v_cache:U8[6,4,2,12] cache_format=int8_per_token_head", "v_head_size"},
      {REQUEST_WRITE, "k_cache:F8_E4M3[4,4,2,8] v_cache:F8_E4M3[4,4,2,4] k_scale:F32[1]=0", "k_scale"},
      {REQUEST_GATHER, "k_cache:F8_E4M3[4,4,2,8] v_cache:F8_E4M3[4,4,2,4] v_scale:F32[3]", "v_scale"},
      {REQUEST_GATHER, "k_cache:U8[4,4,2,8] v_cache:U8[4,4,2,4] cache_format=fp8_e4m3", "head_size"},
      {mqa, "kv_cache:F32[4,4,21]", "kv_cache"},
      {mqa, "q:F32[2,4,16]", "q"},
      {mqa, "q:F8_E4M3[2,4,20] q_scale:F32[1]=1", "q_scale"},
      {mqa, "q:F8_E4M3[2,4,20]", "q"},
      {mqa, "kv_cache:F8_E5M2[4,4,20]", "kv_cache"},
      {mqa, "kv_cache:U8[4,4,32]", "cache_format"},
      {mqa, "kv_cache:U8[4,4,656] cache_format=fp8_ds_mla", "kv_lora_rank"},
      {mqa, "rotary_dtype=float16", "rotary_dtype"},
      {mqa, "kv_scale:F32[1]=1", "kv_scale"},
      {mqa, "kv_c:F32[2,16] k_pe:F32[2,4]", "kv_c"},
      {mqa, "slot_mapping:I64[2]=4,5", "kv_c"},
      {mqa, "kv_c:F32[2,16] slot_mapping:I64[2]=4,5", "k_pe"},
      {mqa, "qk_nope_head_dim=8", "qk_nope_head_dim"},
      {mqa, "w_kv_b:F32[64,16]", "w_kv_b"},
      {mqa, "block_size=8", "block_size"},
      {mqa, "!seq_lens", "seq_lens"},
      {mqa, "split_rule=compatible num_splits=-1", "num_splits"},
      {mqa, "!scale", "scale"},
      {mqa, "!kv_lora_rank", "kv_lora_rank"},
      {mha, "num_splits=2", "num_splits"},
      {mha, "seq_lens:I32[1]=4", "seq_lens"},
      {mha, "slot_mapping:I64[2]=4,5", "slot_mapping"},
      {mha, "kv_cache:F32[4,4,20]", "block_table"},
      {mha, "w_kv_b:BF16[64,16]", "w_kv_b"},
      {mha, "w_kv_b:F32[63,16]", "w_kv_b"},
      {mha, "k_pe:F32[2,5]", "k_pe"},
      {mha, "k_pe:F32[3,4]", "k_pe"},
      {mha, "kv_c:F32[3,16] k_pe:F32[3,4]", "kv_c"},
      {mha, "causal_per_seq:I32[1]=1", "causal_per_seq"},
      {mha, "op=mla_layer kv_cache:F32[4,4,20] block_table:I32[1,2] seq_lens:I32[1]=4", "slot_mapping"},
      {mha, "!v_head_dim", "v_head_dim"},
      {latent_write, "kv_cache:F32[4,4,21]", "kv_cache"},
      {latent_write, "kv_c:F32[3,15]", "kv_c"},
      {latent_write, "slot_mapping:I64[3]=5,5,9", "slot_mapping"},
      {latent_write, "!kv_lora_rank", "kv_lora_rank"},
  };
  try_refusals(rows, COUNT_OF(rows));
}

static void test_tensors(void **state) {
  (void)state;
  static const refusal rows[] = {
      {REQUEST_CACHED, "keys:F32[1]", "keys"},
      {REQUEST_CACHED, "out_0:F32[5,4,8]", "out_0"},
      {REQUEST_CACHED, "kv_cache:F32[4,4,20]", "kv_cache"},
      {REQUEST_CACHED, "seq_starts:I32[2]", "seq_starts"},
      {REQUEST_MERGE, "q:F32[3,2,4]", "q"},
      {REQUEST_WRITE, "block_table:I32[2,2]", "block_table"},
      {REQUEST_WRITE, "kv_cache:F32[4,4,20]", "kv_cache"},
      {REQUEST_GATHER, "slot_mapping:I64[2]", "slot_mapping"},
      {REQUEST_CACHED, "!q", "tensor q is missing"},
      {REQUEST_CACHED, "!k_cache", "k_cache is missing"},
      {REQUEST_CACHED, "!v_cache", "v_cache is missing"},
      {REQUEST_CACHED, "!block_table", "block_table is missing"},
      {REQUEST_CACHED, "!seq_lens", "seq_lens is missing"},
      {REQUEST_CACHED, "!query_start_loc", "query_start_loc is missing"},
      {REQUEST_DIRECT, "!v", "tensor v is missing"},
      {REQUEST_DIRECT, "!k", "tensor k is missing"},
      {REQUEST_WRITE, "!slot_mapping", "slot_mapping is missing"},
      {REQUEST_WRITE, "!v", "tensor v is missing"},
      {REQUEST_GATHER, "!k_cache !v_cache", "k_cache is missing"},
      {REQUEST_GATHER, "!seq_lens", "seq_lens is missing"},
      {REQUEST_MERGE, "!out_0", "out_0 is missing"},
      {REQUEST_MERGE, "!lse_1", "lse_1 is missing"},
      {REQUEST_MERGE, "!out_1 !lse_1 !out_0 !lse_0", "out_0 is missing"},
      {REQUEST_MERGE, "out_3:F32[3,2,4] lse_3:F32[3,2]", "out_2 is missing"},
      {REQUEST_MERGE, "out_02:F32[3,2,4]", "out_02"},
      {REQUEST_MERGE, "out_4096:F32[3,2,4]", "out_4096"},
      {REQUEST_CACHED, "k:F32[5,2,8]", "tensor k cannot be used"},
      {REQUEST_CACHED, "v:F32[5,2,8]", "tensor v cannot be used"},
      {REQUEST_CACHED, "slot_mapping:I64[5]", "tensor k is missing"},
      {REQUEST_CACHED, "k_scale:F32[1]=1", "k_scale cannot be used"},
      {REQUEST_CACHED, "v_scale:F32[2]=1,1", "v_scale cannot be used"},
      {REQUEST_DIRECT, "k_scale:F32[1]=1", "k_scale cannot be used"},
      {REQUEST_CACHED, "q_scale:F32[1]=1", "q_scale cannot be used"},
      {REQUEST_CACHED, "q:F8_E4M3[5,4,8]", "q_scale is missing"},
      {REQUEST_CACHED, "q:F8_E4M3[5,4,8] q_scale:F32[1]=0", "q_scale"},
      {REQUEST_DIRECT, "seq_lens:I32[2]=3,2", "seq_lens cannot be used"},
      {REQUEST_DIRECT, "block_table:I32[2,2]", "block_table cannot be used"},
      {REQUEST_DIRECT, "slot_mapping:I64[5]", "slot_mapping cannot be used"},
      {REQUEST_CACHED, "kv_start_loc:I32[3]=0,3,5", "kv_start_loc cannot be used"},
      {REQUEST_CACHED, "output_scale:F32[1]=1", "output_scale cannot be used"},
      {REQUEST_CACHED, "out_dtype=fp8_e4m3 output_scale:F32[1]=0", "output_scale"},
      {REQUEST_CACHED, "out_dtype=fp8_e4m3 output_scale:F32[1]=-1", "output_scale"},
      {REQUEST_CACHED, "out_dtype=fp8_e4m3 output_scale:F32[1]=nan", "output_scale"},
      {REQUEST_CACHED, "out_dtype=fp8_e4m3 output_scale:F32[1]=inf checked=0", "output_scale"},
      {REQUEST_CACHED, "out_dtype=fp8_e4m3 output_scale:F32[2]=1,1", "output_scale"},
      {REQUEST_CACHED, "out_dtype=fp8_e4m3 output_scale:F16[1]", "output_scale has type F16"},
      {REQUEST_CACHED, "out_scale:F32[5,4,1]", "out_scale"},
      {REQUEST_CACHED, "out_dtype=fp8_e4m3 output_block=64 output_scale:F32[1]=1", "output_scale cannot be used"},
      {REQUEST_CACHED, "q:F64[5,4,8]", "F64"},
      {REQUEST_CACHED, "q:I32[5,4,8]", "tensor q has type I32"},
      {REQUEST_CACHED, "k_cache:I32[6,4,2,8]", "tensor k_cache has type I32"},
      {REQUEST_CACHED, "seq_lens:I64[2]=5,7", "tensor seq_lens has type I64"},
      {REQUEST_WRITTEN, "slot_mapping:I32[5]", "tensor slot_mapping has type I32"},
      {REQUEST_CACHED, "bias:F16[5,4,7]", "tensor bias has type F16"},
      {REQUEST_CACHED, "q:F32[5,32]", "tensor q has 2 axes"},
      {REQUEST_CACHED, "seq_lens:I32[2,1]=5,7", "tensor seq_lens has 2 axes"},
      {REQUEST_CACHED, "k_cache:F32[6,4,16]", "tensor k_cache has 3 axes"},
      {REQUEST_CACHED, "query_start_loc:I32[0]", "query_start_loc"},
      {REQUEST_CACHED, "query_start_loc:I32[3]=1,3,5", "query_start_loc"},
      {REQUEST_CACHED, "query_start_loc:I32[3]=0,4,3", "query_start_loc"},
      {REQUEST_CACHED, "query_start_loc:I32[3]=0,3,6", "query_start_loc"},
      {REQUEST_CACHED, "query_start_loc:I32[3]=0,-3,5", "query_start_loc"},
      {REQUEST_CACHED, "query_start_loc:I32[3]=0,3,-5", "query_start_loc"},
      {REQUEST_CACHED, "query_start_loc:I32[4]=0,3,5,5", "seq_lens"},
      {REQUEST_CACHED, "seq_lens:I32[2]=5,-1", "seq_lens"},
      {REQUEST_CACHED, "seq_lens:I32[2]=5,9", "seq_lens"},
      {REQUEST_CACHED, "seq_lens:I32[2]=5,2147483647", "seq_lens"},
      {REQUEST_CACHED, "block_table:I32[2,2]=1,2,3,6", "block_table"},
      {REQUEST_CACHED, "block_table:I32[2,2]=1,-1,3,4", "block_table"},
      {REQUEST_CACHED, "block_table:I32[3,2]", "block_table"},
      {REQUEST_CACHED, "q:F32[5,3,8]", "q_heads"},
      {REQUEST_CACHED, "q:F32[5,0,8]", "tensor q"},
      {REQUEST_CACHED, "q:F32[5,4,0] k_cache:F32[6,4,2,0]", "tensor q"},
      {REQUEST_CACHED, "k_cache:F32[6,0,2,8]", "k_cache"},
      {REQUEST_CACHED, "k_cache:F32[6,4,2,6]", "k_cache"},
      {REQUEST_CACHED, "v_cache:F32[6,4,1,8]", "v_cache"},
      {REQUEST_CACHED, "v_cache:F32[6,3,2,8]", "v_cache"},
      {REQUEST_CACHED, "v_cache:F32[2,4,2,8]", "v_cache"},
      {REQUEST_WRITTEN, "k:F32[4,2,8] v:F32[4,2,8]", "tensor k"},
      {REQUEST_WRITTEN, "v:F32[4,2,8]", "tensor v"},
      {REQUEST_WRITTEN, "k:F32[5,1,8]", "tensor k"},
      {REQUEST_WRITTEN, "v:F32[5,2,6]", "v_cache"},
      {REQUEST_WRITTEN, "slot_mapping:I64[6]", "slot_mapping"},
      {REQUEST_WRITTEN, "slot_mapping:I64[5]=6,7,8,17,24", "slot_mapping"},
      {REQUEST_WRITTEN, "slot_mapping:I64[5]=6,7,8,17,6", "slot_mapping"},
      {REQUEST_DIRECT, "v:F16[5,2,6]", "v"},
      {REQUEST_DIRECT, "k:F32[4,2,8] v:F32[4,2,6]", "tensor k"},
      {REQUEST_CROSS, "kv_start_loc:I32[3]=0,4,10", "k: axis 0"},
      {REQUEST_CROSS, "kv_start_loc:I32[3]=0,5,4", "kv_start_loc"},
      {REQUEST_CROSS, "kv_start_loc:I32[2]=0,9", "kv_start_loc"},
      {REQUEST_CACHED, "sinks:F32[3]", "sinks"},
      {REQUEST_CACHED, "sinks:F32[4]=0,inf,0,0", "sinks"},
      {REQUEST_CACHED, "sinks:F32[4]=0,nan,0,0", "sinks"},
      {REQUEST_CACHED, "alibi_slopes:F32[2]", "alibi_slopes"},
      {REQUEST_CACHED, "alibi_slopes:F32[4]=0,0,0,inf", "alibi_slopes"},
      {REQUEST_CACHED, "bias:F32[5,2,7]", "bias"},
      {REQUEST_CACHED, "bias:F32[5,4,6]", "bias"},
      {REQUEST_CACHED, "bias:F32[4,4,7]", "bias"},
      {REQUEST_CACHED, "prefix_ranges:I32[2,1,3]", "prefix_ranges"},
      {REQUEST_CACHED, "prefix_ranges:I32[1,1,2]", "prefix_ranges"},
      {REQUEST_CACHED, "prefix_ranges:I32[2,1,2]=0,2,3,1", "prefix_ranges"},
      {REQUEST_CACHED, "causal_per_seq:I32[3]", "causal_per_seq"},
      {REQUEST_CACHED, "causal_per_seq:I32[2]=0,2", "causal_per_seq"},
      {REQUEST_WRITE, "slot_mapping:I64[3]=5,-1,16", "slot_mapping"},
      {REQUEST_WRITE, "slot_mapping:I64[3]=5,9,5", "slot_mapping"},
      {REQUEST_WRITE, "slot_mapping:I64[4]", "slot_mapping"},
      {REQUEST_GATHER, "seq_starts:I32[2]=7,0", "seq_starts"},
      {REQUEST_GATHER, "seq_starts:I32[2]=0,-1", "seq_starts"},
      {REQUEST_GATHER, "seq_starts:I32[1]=0", "seq_starts"},
      {REQUEST_GATHER, "seq_lens:I32[2]=6,9", "seq_lens"},
      {REQUEST_GATHER, "seq_lens:I32[2]=6,-1", "seq_lens"},
      {REQUEST_GATHER, "block_table:I32[2,2]=1,4,3,0", "block_table"},
      {REQUEST_MERGE, "out_1:F32[3,2,5]", "out"},
      {REQUEST_MERGE, "lse_1:F32[3,1]", "lse"},
      {REQUEST_MERGE, "sinks:F32[3]", "sinks"},
      {REQUEST_MERGE, "sinks:F32[2]=0,nan", "sinks"},
  };
  try_refusals(rows, COUNT_OF(rows));
}

static void test_flags(void **state) {
  (void)state;
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--device", "cuda:0", "cuda"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--device", "opencl:0", "opencl"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--device", "cuda", "--device"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--device", "tpu:0", "--device"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--device", "cpu:1", "--device"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--backend", "FASTEST", "FASTEST"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--backend", "TRITON_ATTN", "TRITON_ATTN"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--backend", "PORTABLE_ATTN", "PORTABLE_ATTN"));
  assert_true(request_is_refused(&files, REQUEST_WRITE, "", "--backend", "FLASHMLA", "FLASHMLA"));
  assert_true(request_is_refused(&files, REQUEST_MERGE, "", "--backend", "FASTEST", "FASTEST"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--splits", "-1", "--splits"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--splits", "5000", "--splits"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--threads", "0", "--threads"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--threads", "two", "--threads"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--fast", NULL, "--fast"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "-o", "other.safetensors", "-o is given twice"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "extra", NULL, "extra"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "num_splits=2", "--batch-invariant", NULL, "num_splits"));
  assert_true(request_is_refused(&files, REQUEST_MERGE, "", "--splits", "2", "--splits"));
  assert_true(request_is_refused(&files, REQUEST_MERGE, "", "--unchecked", NULL, "--unchecked"));
  assert_true(request_is_refused(&files, REQUEST_WRITE, "", "--batch-invariant", NULL, "--batch-invariant"));
  assert_int_equal(fixture_run(&files.fix, "run", files.in_path, NULL), 2);
  assert_true(fixture_one_line(&files.fix));
  assert_int_equal(fixture_run(&files.fix, "run", "-o", files.out_path, NULL), 2);
  assert_true(fixture_one_line(&files.fix));
  assert_int_equal(fixture_run(&files.fix, "run", files.in_path, "-o", NULL), 2);
  assert_true(fixture_one_line(&files.fix));
  assert_int_equal(fixture_run(&files.fix, "check", "--executor", "pool", NULL), 2);
  assert_true(fixture_one_line(&files.fix) && strstr(files.fix.err, "--executor 'pool'") != NULL);
  assert_int_equal(fixture_run(&files.fix, "check", "--with", "layout=nchw", NULL), 2);
  assert_true(fixture_one_line(&files.fix) && strstr(files.fix.err, "--with 'layout=nchw'") != NULL);
  assert_int_equal(fixture_run(&files.fix, "check", "--with", "op=merge", "--op", "cache_copy", NULL), 2);
  assert_true(fixture_one_line(&files.fix) && strstr(files.fix.err, "--with and --op") != NULL);
  assert_int_equal(fixture_run(&files.fix, "walk", NULL), 2);
  assert_true(fixture_one_line(&files.fix));
}

/* A few bytes can claim 2^31 positions of a block that is not there, or rows of no elements: refused without the time
   and the memory that they would take. */
static void test_claims(void **state) {
  (void)state;
  struct rusage used;
  struct timespec start;
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  assert_true(request_is_refused(&files, REQUEST_GATHER,
                                 "!v_cache k_cache:BF16[0,536870912,2,8] seq_lens:I32[2]=30000000,5", NULL, NULL,
                                 "block_table"));
  assert_true(request_is_refused(&files, REQUEST_GATHER,
                                 "!v_cache k_cache:BF16[0,536870912,2,8] seq_lens:I32[2]=30000000,5", "--poison", NULL,
                                 "block_table"));
  assert_true(request_is_refused(&files, REQUEST_GATHER,
                                 "block_table:I32[1,2]=1,2 k_cache:BF16[0,536870912,2,8] "
                                 "v_cache:F16[0,536870912,2,4] seq_lens:I32[2]=0,30000000 checked=0",
                                 NULL, NULL, "block_table"));
  assert_true(request_is_refused(&files, REQUEST_MERGE, "out_0:F32[16384,32768,0] out_1:F32[16384,32768,0]", NULL, NULL,
                                 "lse_0"));
  assert_true(request_is_refused(&files, REQUEST_CACHED,
                                 "k_cache:F32[0,2147483647,2,8] v_cache:F32[0,2147483647,2,8] "
                                 "seq_lens:I32[2]=2147483647,2147483647",
                                 "--poison", NULL, "block_table"));
  clock_gettime(CLOCK_MONOTONIC, &end);
  assert_int_equal(getrusage(RUSAGE_CHILDREN, &used), 0);
  assert_true(used.ru_maxrss < 1 << 20); /* KiB */
  assert_true(end.tv_sec - start.tv_sec < 20);
}

static void test_environment(void **state) {
  (void)state;
  size_t bytes = 0;
  setenv("ATTN_BACKEND", "REFERENCE", 1);
  assert_true(request_runs(&files, REQUEST_MERGE, "", NULL, NULL));
  char *header = (char *)fixture_read(files.out_path, &bytes);
  assert_non_null(header);
  assert_non_null(strstr(header + 8, "\"backend\":\"REFERENCE\""));
  free(header);
  assert_true(request_runs(&files, REQUEST_CACHED, "", "--backend", "CPU_ATTN"));
  header = (char *)fixture_read(files.out_path, &bytes);
  assert_non_null(header);
  assert_non_null(strstr(header + 8, "\"backend\":\"CPU_ATTN\""));
  free(header);
  setenv("ATTN_BACKEND", "FASTEST", 1);
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", NULL, NULL, "ATTN_BACKEND"));
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", "--backend", "REFERENCE", "ATTN_BACKEND"));
  unsetenv("ATTN_BACKEND");
  setenv("ATTN_CPU", "fastest", 1);
  assert_true(request_is_refused(&files, REQUEST_CACHED, "", NULL, NULL, "ATTN_CPU"));
  unsetenv("ATTN_CPU");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keys),   cmocka_unit_test(test_tensors),     cmocka_unit_test(test_flags),
      cmocka_unit_test(test_claims), cmocka_unit_test(test_environment),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
