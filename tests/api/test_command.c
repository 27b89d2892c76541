/* SPDX-License-Identifier: Apache-2.0 */
/* The command `attn` as its user meets it: one call of each operation with each flag, the files it writes and the
   ones it cannot, help, info, explain and --describe. What is refused is in test_command_refusals.c. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "core/fp8.h"
#include "request_builder.h"

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

static void test_operations(void **state) {
  (void)state;
  static const char *const bases[] = {REQUEST_CACHED, REQUEST_WRITTEN, REQUEST_DIRECT, REQUEST_CROSS,
                                      REQUEST_WRITE,  REQUEST_GATHER,  REQUEST_MERGE};
  static const char *const flags[][2] = {{NULL, NULL},          {"--backend", "REFERENCE"}, {"--backend", "CPU_ATTN"},
                                         {"--backend", "auto"}, {"--threads", "2"},         {"--device", "cpu"},
                                         {"--poison", NULL}};
  for (size_t i = 0; i < COUNT_OF(bases); ++i) {
    for (size_t j = 0; j < COUNT_OF(flags); ++j) {
      assert_true(request_runs(&files, bases[i], "", flags[j][0], flags[j][1]));
    }
  }
  assert_true(request_runs(&files, REQUEST_CACHED, "num_splits=2", "--splits", "0"));
  assert_true(request_runs(&files, REQUEST_CACHED, "", "--batch-invariant", NULL));
  assert_true(request_runs(&files, REQUEST_CACHED, "block_table:I32[2,2]=1,-1,3,4", "--unchecked", NULL));
  assert_true(request_runs(&files, REQUEST_CACHED, "checked=0 seq_lens:I32[2]=5,9", NULL, NULL));
  assert_true(request_runs(&files, REQUEST_WRITTEN, "checked=0 slot_mapping:I64[5]=6,7,8,17,24", NULL, NULL));
  assert_true(request_runs(&files, REQUEST_WRITE, "slot_mapping:I64[3]=5,5,99", "--unchecked", NULL));
  assert_true(request_runs(&files, REQUEST_GATHER, "block_table:I32[2,1]=1,9", "--unchecked", NULL));
  /* keys of the operation that have no effect on this request */
  assert_true(request_runs(&files, REQUEST_CACHED, "chunk_lookback=2 prefix_clamp=1 output_block=0", NULL, NULL));
  assert_true(request_runs(&files, REQUEST_DIRECT,
                           "kv_layout=HND block_size=4 cache_format=float16 head_size=8 v_head_size=6 checked=1", NULL,
                           NULL));
  assert_true(request_runs(&files, REQUEST_GATHER, "!v_cache head_size=8 seq_starts:I32[2]=2,5", NULL, NULL));
  /* extents of 0 */
  assert_true(request_runs(&files, REQUEST_CACHED, "q:F32[0,4,8] query_start_loc:I32[3]=0,0,0", NULL, NULL));
  assert_true(request_runs(&files, REQUEST_CACHED,
                           "q:F32[0,4,8] query_start_loc:I32[1]=0 seq_lens:I32[0] block_table:I32[0,2]", NULL, NULL));
  assert_true(request_runs(&files, REQUEST_CACHED, "seq_lens:I32[2]=0,0 block_table:I32[2,0]", NULL, NULL));
  assert_true(request_runs(&files, REQUEST_CACHED, "seq_lens:I32[2]=0,0 k_cache:F32[0,4,2,8] v_cache:F32[0,4,2,8]",
                           NULL, NULL));
  assert_true(request_runs(&files, REQUEST_CACHED, "prefix_ranges:I32[2,0,2]", NULL, NULL));
  assert_true(request_runs(&files, REQUEST_WRITE, "slot_mapping:I64[0]", NULL, NULL));
  assert_true(request_runs(&files, REQUEST_GATHER, "seq_lens:I32[0] block_table:I32[0,2]", NULL, NULL));
  assert_true(request_runs(&files, REQUEST_MERGE, "out_0:F32[0,2,4] lse_0:F32[0,2] out_1:F32[0,2,4] lse_1:F32[0,2]",
                           NULL, NULL));
}

/* The result's header says what ran; a call that writes a cache leaves its file alone. */
static void test_results(void **state) {
  (void)state;
  static const char *const named[] = {"\"backend\":\"REFERENCE\"",
                                      "\"backend_reason\":\"",
                                      "\"splits\":\"1\"",
                                      "\"workspace_bytes\":\"",
                                      "\"out\":{\"dtype\":\"F32\",\"shape\":[5,4,8]",
                                      "\"lse\":{\"dtype\":\"F32\",\"shape\":[5,4]",
                                      "\"k_cache\":",
                                      "\"v_cache\":"};
  size_t before_bytes = 0;
  size_t after_bytes = 0;
  size_t bytes = 0;
  assert_true(request_save(&files, REQUEST_WRITTEN, ""));
  unsigned char *before = fixture_read(files.in_path, &before_bytes);
  assert_int_equal(fixture_run(&files.fix, "run", files.in_path, "-o", files.out_path, "--backend", "REFERENCE", NULL),
                   0);
  unsigned char *after = fixture_read(files.in_path, &after_bytes);
  char *header = (char *)fixture_read(files.out_path, &bytes);
  assert_non_null(before);
  assert_non_null(after);
  assert_non_null(header);
  assert_int_equal(before_bytes, after_bytes);
  assert_memory_equal(before, after, before_bytes);
  for (size_t i = 0; i < COUNT_OF(named); ++i) {
    if (strstr(header + 8, named[i]) == NULL) {
      fail_msg("the result has no %s: %.600s", named[i], header + 8);
    }
  }
  free(before);
  free(after);
  free(header);
}

enum { FP8_ROWS = 20, FP8_SIZE = 130, FP8_OWNED = 16 };

/* One request with an fp8 output, held against the float32 values of the same call. */
typedef struct fp8_request {
  const char *changes;
  const char *scales; /* type and shape of out_scale; NULL: none */
  int block;
} fp8_request;

static void compare_fp8(const fp8_request *tried, const unsigned char *file, const unsigned char *values, int poison) {
  size_t bytes = 0;
  size_t scale_bytes = 0;
  const char *like = "\"dtype\":\"F8_E4M3\",\"shape\":[5,4,130]";
  const unsigned char *codes = request_result(file, "out", like, &bytes);
  const unsigned char *scales = NULL;
  if (tried->scales != NULL) {
    scales = request_result(file, "out_scale", tried->scales, &scale_bytes);
  }
  assert_non_null(codes);
  assert_int_equal(bytes, FP8_ROWS * FP8_SIZE);
  assert_int_equal(scales != NULL, tried->scales != NULL);
  assert_int_equal(strstr((const char *)file + 8, "\"out_scale\"") != NULL, tried->scales != NULL);
  for (int at = 0; at < FP8_ROWS * FP8_SIZE; ++at) {
    float scale = 0.0039f;
    float value;
    int row = at / FP8_SIZE;
    memcpy(&value, values + (size_t)at * sizeof(value), sizeof(value));
    if (scales != NULL) {
      int groups = (int)scale_bytes / FP8_ROWS / 4;
      memcpy(&scale, scales + (size_t)(row * groups + at % FP8_SIZE / tried->block) * sizeof(scale), sizeof(scale));
    }
    float read = attn_fp8_e4m3_decode(codes[at]) * scale;
    if (row >= FP8_OWNED) {
      assert_int_equal(codes[at], poison ? 0xFF : 0x00);
      assert_true(scales == NULL || (poison ? isnan(scale) : scale == 0.0f));
    } else if (!(fabsf(read - value) <= fabsf(value) * 0.0626f + scale * 0x1p-9f)) {
      fail_msg("%s, element %d: %g, float32 gives %g", tried->changes, at, (double)read, (double)value);
    }
  }
}

/* fp8 results: types, shapes, values close to the float32 result, tokens that nobody owns; with --poison too. */
static void test_fp8_results(void **state) {
  (void)state;
  static const char words[] = "op=attention q:F32[5,4,8] k:F32[5,2,8] v:F32[5,2,130] query_start_loc:I32[3]=0,3,4";
  static const fp8_request tried[] = {
      {"out_dtype=fp8_e4m3 output_scale:F32[1]=0.0039", NULL, 0},
      {"out_dtype=fp8_e4m3 output_block=64", "\"dtype\":\"F32\",\"shape\":[5,4,3]", 64},
      {"out_dtype=fp8_e4m3 output_block=128", "\"dtype\":\"F32\",\"shape\":[5,4,2]", 128},
  };
  size_t bytes;
  assert_true(request_runs(&files, words, "", NULL, NULL));
  unsigned char *plain = fixture_read(files.out_path, &bytes);
  assert_non_null(plain);
  const char *like = "\"dtype\":\"F32\",\"shape\":[5,4,130]";
  const unsigned char *values = request_result(plain, "out", like, &bytes);
  assert_non_null(values);
  for (size_t i = 0; i < COUNT_OF(tried); ++i) {
    for (int poison = 0; poison < 2; ++poison) {
      assert_true(request_runs(&files, words, tried[i].changes, poison ? "--poison" : NULL, NULL));
      unsigned char *file = fixture_read(files.out_path, &bytes);
      assert_non_null(file);
      compare_fp8(&tried[i], file, values, poison);
      free(file);
      assert_true(request_runs(&files, REQUEST_CACHED, tried[i].changes, poison ? "--poison" : NULL, NULL));
      assert_true(request_runs(&files, REQUEST_WRITTEN, tried[i].changes, poison ? "--poison" : NULL, NULL));
    }
  }
  free(plain);
}

/* OUT may be IN, and a link to a file stays one. */
static void test_output_over_input(void **state) {
  (void)state;
  size_t bytes = 0;
  struct stat status;
  char link_path[300];
  fixture_path(&files.fix, "link.safetensors", link_path, sizeof(link_path));
  assert_true(request_save(&files, REQUEST_CACHED, ""));
  assert_int_equal(symlink(files.in_path, link_path), 0);
  assert_int_equal(fixture_run(&files.fix, "run", files.in_path, "-o", link_path, NULL), 0);
  char *replaced = (char *)fixture_read(files.in_path, &bytes);
  assert_non_null(replaced);
  assert_non_null(strstr(replaced + 8, "\"lse\""));
  free(replaced);
  assert_int_equal(lstat(link_path, &status), 0);
  assert_true(S_ISLNK(status.st_mode));
  assert_int_equal(request_count_files(&files, "in.safetensors"), 1);
}

static void test_outputs_that_cannot_be_written(void **state) {
  (void)state;
  assert_true(request_save(&files, REQUEST_CACHED, ""));
  assert_int_equal(fixture_run(&files.fix, "run", files.in_path, "-o", "/nonexistent/out.safetensors", NULL), 1);
  assert_true(fixture_one_line(&files.fix));
  assert_int_equal(fixture_run(&files.fix, "run", files.in_path, "-o", files.fix.folder, NULL), 1);
  assert_true(fixture_one_line(&files.fix));
  assert_int_equal(fixture_run(&files.fix, "run", files.in_path, "-o", "/dev/null", NULL), 1);
  assert_true(fixture_one_line(&files.fix));
  struct stat status;
  assert_int_equal(stat("/dev/null", &status), 0);
  assert_true(S_ISCHR(status.st_mode));
}

/* A file that grows beyond the limit of file sizes: told, not killed; what was there stays, nothing is left beside it.
   */
static void test_file_size_limit(void **state) {
  (void)state;
  static const char before[] = "what was there before";
  struct rlimit limit;
  assert_true(request_save(&files, REQUEST_CACHED, ""));
  assert_true(fixture_write(files.out_path, before, sizeof(before)));
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const struct rlimit small = {512, limit.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0); /* the command inherits it; its message is shorter */
  int code = fixture_run(&files.fix, "run", files.in_path, "-o", files.out_path, NULL);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  assert_int_equal(code, 1);
  assert_true(fixture_one_line(&files.fix));
  size_t bytes = 0;
  unsigned char *after = fixture_read(files.out_path, &bytes);
  assert_non_null(after);
  assert_int_equal(bytes, sizeof(before));
  assert_memory_equal(after, before, bytes);
  free(after);
  assert_int_equal(request_count_files(&files, "out.safetensors"), 1);
}

static void test_help_and_version(void **state) {
  (void)state;
  static const char *const commands[] = {"info", "explain", "check", "bench", "run"};
  assert_int_equal(fixture_run(&files.fix, "--version", NULL), 0);
  assert_int_equal(strncmp(files.fix.out, "attn ", 5), 0);
  assert_int_equal(fixture_run(&files.fix, "--help", NULL), 0);
  for (size_t i = 0; i < COUNT_OF(commands); ++i) {
    char word[32];
    snprintf(word, sizeof(word), "attn %s", commands[i]);
    assert_int_equal(fixture_run(&files.fix, "--help", NULL), 0);
    assert_non_null(strstr(files.fix.out, word));
    assert_int_equal(fixture_run(&files.fix, commands[i], "--help", NULL), 0);
    assert_true(strlen(files.fix.out) > 40);
    assert_string_equal(files.fix.err, "");
  }
}

static void test_info(void **state) {
  (void)state;
  static const char *const named[] = {"device: cpu:0", "level: ",  "CPU_ATTN", "REFERENCE",
                                      "TRITON_ATTN",   "kernels:", "generic"};
  assert_int_equal(fixture_run(&files.fix, "info", NULL), 0);
  for (size_t i = 0; i < COUNT_OF(named); ++i) {
    assert_non_null(strstr(files.fix.out, named[i]));
  }
  assert_int_equal(fixture_run(&files.fix, "info", "--device", "cuda:0", NULL), 2);
  assert_true(fixture_one_line(&files.fix));
  assert_int_equal(fixture_run(&files.fix, "info", "--matrix", NULL), 0);
  assert_non_null(strstr(files.fix.out, "| cache format | CPU_ATTN | REFERENCE |"));
  assert_non_null(strstr(files.fix.out, "| bfloat16 | yes | yes |"));
  assert_non_null(strstr(files.fix.out, "| fp8_ds_mla | - | - |"));
  assert_non_null(strstr(files.fix.out, "| latent row format | CPU_MLA | REFERENCE |"));
  assert_non_null(strstr(files.fix.out, "| fp8_ds_mla | yes | yes |"));
  assert_non_null(strstr(files.fix.out, "| sliding window | yes | yes |"));
}

static void test_explain(void **state) {
  (void)state;
  static const char *const named[] = {
      "pick: CPU_ATTN", "workspace_bytes: ", "excess_workspace_bytes: ", "on_chip_bytes: ", "block_size: 4", "splits: ",
      "REFERENCE",      "TRITON_ATTN"};
  assert_true(request_save(&files, REQUEST_CACHED, ""));
  unlink(files.out_path);
  assert_int_equal(
      fixture_run(&files.fix, "explain", files.in_path, "--threads", "1", "--splits", "0", "--poison", NULL), 0);
  for (size_t i = 0; i < COUNT_OF(named); ++i) {
    if (strstr(files.fix.out, named[i]) == NULL) {
      fail_msg("explain does not say %s: %s", named[i], files.fix.out);
    }
  }
  assert_int_equal(fixture_run(&files.fix, "explain", files.in_path, "--backend", "TRITON_ATTN", NULL), 2);
  assert_true(fixture_one_line(&files.fix));
  assert_int_equal(fixture_run(&files.fix, "explain", "op=attention", "q=F32[5,4,8]", "k_cache=F32[6,4,2,8]",
                               "v_cache=F32[6,4,2,8]", "block_table=I32[2,2]", "seq_lens=I32[2]",
                               "query_start_loc=I32[3]", "window_left=2", NULL),
                   0);
  assert_non_null(strstr(files.fix.out, "block_size: 4"));
  assert_int_equal(fixture_run(&files.fix, "explain", "op=attention", "q=F32[5,4,x]", NULL), 2);
  assert_true(fixture_one_line(&files.fix));
  assert_true(request_save(&files, REQUEST_MERGE, ""));
  assert_int_equal(fixture_run(&files.fix, "explain", files.in_path, "--backend", "REFERENCE", NULL), 0);
  assert_non_null(strstr(files.fix.out, "pick: REFERENCE"));
}

/* --describe lists every key and tensor, and a key is refused as not used exactly where it does not list the
   operation. */
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
  assert_int_equal(fixture_run(&files.fix, "run", "--describe", NULL), 0);
  char *text = strdup(files.fix.out);
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
    assert_true(request_save(&files, REQUEST_MERGE, change));
    assert_int_equal(fixture_run(&files.fix, "run", files.in_path, "-o", files.out_path, NULL), 2);
    if (listed != (strstr(files.fix.err, "not used") == NULL)) {
      fail_msg("--describe and the parser differ on %s: %s", name, files.fix.err);
    }
  }
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_operations),
      cmocka_unit_test(test_results),
      cmocka_unit_test(test_fp8_results),
      cmocka_unit_test(test_output_over_input),
      cmocka_unit_test(test_outputs_that_cannot_be_written),
      cmocka_unit_test(test_file_size_limit),
      cmocka_unit_test(test_help_and_version),
      cmocka_unit_test(test_info),
      cmocka_unit_test(test_explain),
      cmocka_unit_test(test_describe),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
