/* SPDX-License-Identifier: Apache-2.0 */
/* `attn bench` as its user meets it: every operation in words, what the object, the lines and the table say, the list
   of cases, and what is refused. Figures themselves are not judged here: one round of small problems. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <math.h>

#include "command_fixture.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define LISTS "block_table=I32[2,4]", "seq_lens=I32[2]=29", "query_start_loc=I32[3]=0,1,4"
#define DECODE "op=attention", "q=F32[4,4,16]", "k_cache=F32[16,8,2,16]", "v_cache=F32[16,8,2,16]", LISTS

static fixture fix;

static int set_up(void **state) {
  (void)state;
  return fixture_open(&fix) ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  fixture_close(&fix);
  return 0;
}

static const cJSON *item(const cJSON *object, const char *name) {
  const cJSON *found = cJSON_GetObjectItemCaseSensitive(object, name);
  if (found == NULL) {
    fail_msg("the object has no %s", name);
  }
  return found;
}

static double number(const cJSON *object, const char *name) {
  assert_true(cJSON_IsNumber(item(object, name)));
  return item(object, name)->valuedouble;
}

static cJSON *parse(void) {
  if (fix.status != 0) {
    fail_msg("status %d: %s", fix.status, fix.err);
  }
  assert_string_equal(fix.err, "");
  cJSON *answer = cJSON_Parse(fix.out);
  if (answer == NULL) {
    fail_msg("no JSON: %.400s", fix.out);
  }
  return answer;
}

/* Fields of one result agree with each other. */
static void check_result(const cJSON *result) {
  const cJSON *seconds = item(result, "seconds");
  const cJSON *limits = item(result, "limits");
  double best = number(seconds, "best");
  double limit = number(result, "limit_seconds");
  double arithmetic = number(result, "flops") / (number(item(limits, "gflop_per_second"), "best") * 1e9);
  assert_true(best > 0 && best <= number(seconds, "median") && number(seconds, "median") <= number(seconds, "worst"));
  assert_true(number(result, "fraction") > 0 && limit > 0);
  assert_true(fabs(number(result, "fraction") * best / limit - 1) < 1e-3);
  assert_true(limit >= arithmetic * 0.999);
  int by_arithmetic = strcmp(item(result, "bound")->valuestring, "arithmetic") == 0;
  assert_true(by_arithmetic == (limit < arithmetic * 1.001));
  double bytes = number(result, "read_bytes") + number(result, "written_bytes");
  assert_true(fabs(number(result, "gb_per_second") * 1e9 * best / bytes - 1) < 1e-3);
}

static void test_object(void **state) {
  (void)state;
  fixture_run(&fix, "bench", DECODE, "--json", "--rounds", "12", "--backend", "all", NULL);
  cJSON *answer = parse();
  const cJSON *machine = item(answer, "machine");
  assert_string_equal(item(machine, "device")->valuestring, "cpu");
  assert_true(strlen(item(machine, "version")->valuestring) > 0 &&
              strlen(item(machine, "device_name")->valuestring) > 0);
  assert_string_equal(item(answer, "timed_by")->valuestring, "thread");
  assert_true(number(item(item(answer, "limits"), "gflop_per_second"), "best") > 0);
  assert_true(number(item(item(answer, "limits"), "read_gb_per_second"), "best") > 0);
  const cJSON *results = item(answer, "results");
  assert_int_equal(cJSON_GetArraySize(results), 2);
  const cJSON *result = NULL;
  cJSON_ArrayForEach(result, results) {
    check_result(result);
    assert_true(number(result, "rounds") == 20); /* twelve, in ten sittings */
    /* rows of the second sequence see 27, 28 and 29 of its keys, the first one's row all 29; two products of 16 */
    assert_true(number(result, "flops") == 2.0 * (29 + 27 + 28 + 29) * 4 * 32);
    assert_true(number(result, "read_bytes") == (29 + 29) * 2 * 32 * 4 + 4 * 4 * 16 * 4);
    assert_true(number(result, "written_bytes") == 4 * 4 * (16 * 4 + 4));
    assert_non_null(strstr(item(result, "problem")->valuestring, "op=attention q=F32[4,4,16] "));
  }
  assert_string_equal(item(cJSON_GetArrayItem(results, 0), "backend")->valuestring, "CPU_ATTN");
  assert_string_equal(item(cJSON_GetArrayItem(results, 1), "backend")->valuestring, "REFERENCE");
  cJSON_Delete(answer);
}

/* Each operation and each feature that has data of its own. */
static void test_words(void **state) {
  (void)state;
  static char *const problems[][16] = {
      {DECODE, "sinks=F32[4]", "bias=F32[4,4,32]", "alibi_slopes=F32[4]", "window_left=9", "--threads", "2", NULL},
      {DECODE, "prefix_ranges=I32[2,2,2]", "causal_per_seq=I32[2]", "chunk_size=8", "--batch-invariant", NULL},
      {DECODE, "k=F32[4,2,16]", "v=F32[4,2,16]", "slot_mapping=I64[4]", "out_dtype=bfloat16", "--splits", "2", NULL},
      {"op=attention", "q=BF16[6,4,8]", "k=BF16[6,2,8]", "v=BF16[6,2,12]", "query_start_loc=I32[3]", NULL},
      {"op=attention", "q=F16[6,4,8]", "k=F16[9,2,8]", "v=F16[9,2,8]", "query_start_loc=I32[3]", "kv_start_loc=I32[3]",
       NULL},
      {"op=cache_write", "k=F32[9,2,8]", "v=F32[9,2,4]", "k_cache=BF16[4,4,2,8]", "v_cache=F16[4,4,2,4]",
       "slot_mapping=I64[9]", "--backend", "CPU_ATTN", NULL},
      {"op=cache_gather", "k_cache=BF16[4,2,4,8]", "v_cache=BF16[4,2,4,8]", "kv_layout=HND", "block_table=I32[2,2]",
       "seq_lens=I32[2]=7,8", "seq_starts=I32[2]=2,0", "out_dtype=float16", NULL},
      {"op=cache_gather", "k_cache=F32[4,4,2,8]", "block_table=I32[2,2]", "seq_lens=I32[2]", NULL},
      {"op=cache_copy", "k_cache=F8_E4M3[9,4,2,8]", "block_map=I64[7,2]", NULL},
      {"op=merge", "out_0=BF16[3,2,8]", "lse_0=F32[3,2]", "out_1=F32[3,2,8]", "lse_1=F32[3,2]", "sinks=F32[2]",
       "lse_base=2", NULL},
  };
  for (size_t i = 0; i < COUNT_OF(problems); i++) {
    char *arguments[24] = {"bench", "--rounds", "1", "--json"};
    size_t count = 4;
    for (size_t j = 0; problems[i][j] != NULL; j++) {
      arguments[count++] = problems[i][j];
    }
    fixture_run_list(&fix, arguments);
    cJSON *answer = parse();
    const cJSON *result = cJSON_GetArrayItem(item(answer, "results"), 0);
    check_result(result);
    assert_string_equal(item(result, "op")->valuestring, problems[i][0] + 3);
    cJSON_Delete(answer);
  }
}

/* A file is measured too, where files can be read. */
static void test_file(void **state) {
  (void)state;
  char path[512];
  const char *source = getenv("ATTN_SOURCE_DIR");
  assert_non_null(source);
  snprintf(path, sizeof(path), "%s/tests/golden/attention/data/a053_decode_long_kv.safetensors", source);
  fixture_run(&fix, "bench", path, "--rounds", "1", "--json", NULL);
  cJSON *answer = parse();
  check_result(cJSON_GetArrayItem(item(answer, "results"), 0));
  assert_string_equal(item(cJSON_GetArrayItem(item(answer, "results"), 0), "problem")->valuestring, path);
  cJSON_Delete(answer);
}

static size_t count_fields(const char *line) {
  size_t fields = 1;
  int quoted = 0;
  for (; *line != '\n' && *line != '\0'; line++) {
    quoted ^= *line == '"';
    fields += *line == ',' && !quoted;
  }
  return fields;
}

static void test_lines_and_table(void **state) {
  (void)state;
  fixture_run(&fix, "bench", DECODE, "--csv", "--rounds", "1", NULL);
  assert_int_equal(fix.status, 0);
  assert_string_equal(fix.err, "");
  const char *row = strchr(fix.out, '\n') + 1;
  assert_int_equal(strncmp(fix.out, "case,op,backend,seconds_best,", 29), 0);
  assert_int_equal(count_fields(fix.out), count_fields(row));
  assert_int_equal(strncmp(row, "\"given\",attention,CPU_ATTN,", 27), 0);
  assert_string_equal(strchr(row, '\n'), "\n");
  fixture_run(&fix, "bench", "--filter", "merge", "--rounds", "1", NULL);
  assert_int_equal(fix.status, 0);
  assert_string_equal(fix.err, ""); /* no progress line in a file */
  assert_non_null(strstr(fix.out, "\ncase "));
  assert_non_null(strstr(fix.out, "\nmerge 32/32x128 float32 4 parts of 16"));
  assert_non_null(strstr(fix.out, "\nlimits, "));
}

/* Each case of the list is a problem that the same command takes. */
static void test_list(void **state) {
  (void)state;
  static const char *const kinds[] = {"decode ", "extend ",      "mixed ",        "prefill ",    "encoder ",
                                      "cross ",  "cache_write ", "cache_gather ", "cache_copy ", "merge "};
  fixture_run(&fix, "bench", "--list", "--json", NULL);
  cJSON *answer = parse();
  size_t found[COUNT_OF(kinds)] = {0};
  const cJSON *row = NULL;
  cJSON_ArrayForEach(row, item(answer, "cases")) {
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
      found[i] += strncmp(item(row, "case")->valuestring, kinds[i], strlen(kinds[i])) == 0;
    }
    assert_int_equal(strncmp(item(row, "problem")->valuestring, "op=", 3), 0);
    assert_true(strlen(item(row, "problem")->valuestring) < 590); /* nothing was cut */
  }
  for (size_t i = 0; i < COUNT_OF(kinds); i++) {
    if (found[i] == 0) {
      fail_msg("the list has no case '%s'", kinds[i]);
    }
  }
  cJSON_Delete(answer);
  fixture_run(&fix, "bench", "--list", "--filter", "decode 9/3", NULL);
  assert_int_equal(fix.status, 0);
  assert_int_equal(strncmp(fix.out, "decode 9/3x64 ", 14), 0);
  assert_non_null(strstr(fix.out, "\n  op=attention "));
  fixture_run(&fix, "bench", "--list", "--filter", "x256 int8_per_token_head",
              NULL); /* case 111: both lays, both ways */
  assert_non_null(strstr(fix.out, "decode 16/8x256 int8_per_token_head 8x1024\n"));
  assert_non_null(strstr(fix.out, "decode 16/8x256 int8_per_token_head 8x1024 +separate_scales\n"));
  assert_non_null(strstr(fix.out, "cache_gather 8x256 int8_per_token_head 2x32\n"));
  assert_non_null(strstr(fix.out, "cache_gather 8x256 int8_per_token_head 2x32 +separate_scales\n"));
  fixture_run(&fix, "bench", "--list", "--splits", "2", NULL);
  assert_null(strstr(fix.out, "merge"));
}

static void test_refusals(void **state) {
  (void)state;
  static const struct {
    char *arguments[12];
    const char *named;
  } rows[] = {
      {{"--filter", "no such case"}, "no such case"},
      {{"--filter", "x", "op=merge"}, "--filter"},
      {{"--list", "op=merge"}, "--list"},
      {{"--json", "--csv"}, "--csv"},
      {{"--seconds", "0"}, "--seconds"},
      {{"--seconds", "3601"}, "--seconds"},
      {{"--rounds", "0"}, "--rounds"},
      {{"--rounds", "1001"}, "--rounds"},
      {{"--threads", "65"}, "--threads"},
      {{"--seed", "-1"}, "--seed"},
      {{"--fault", "kv_head"}, "--fault"},
      {{"--device", "cuda:0"}, "cuda"},
      {{"--backend", "TRITON_ATTN", "--filter", "merge"}, "TRITON_ATTN"},
      {{"op=nothing"}, "op"},
      {{"op=merge", "--splits", "2"}, "--splits"},
      {{"op=cache_copy", "k_cache=F32[4,4,2,8]"}, "block_map"},
      {{"op=cache_copy", "k_cache=F32[4,4,2,8]", "block_map=I64[5,2]"}, "block_map"},
      {{"op=cache_copy", "k_cache=F32[4,4,2,8]", "block_map=I64[3,2]", "scale=1"}, "scale"},
      {{"op=cache_copy", "k_cache=F32[4,4,2,8]", "block_map=I64[3,2]", "--splits", "2"}, "--splits"},
      {{"op=attention", "q=F32[4,4,16]", "k_cache=F32[7,8,2,16]", "v_cache=F32[7,8,2,16]", LISTS}, "block_table"},
      {{DECODE, "sinks=F32[3]"}, "sinks"},
      {{"op=cache_write", "k=F32[9,2,8]", "v=F32[9,2,8]", "k_cache=F32[2,4,2,8]", "v_cache=F32[2,4,2,8]",
        "slot_mapping=I64[9]"},
       "slot_mapping"},
      {{"nothing.safetensors"}, "nothing.safetensors"},
  };
  for (size_t i = 0; i < COUNT_OF(rows); i++) {
    char *arguments[16] = {"bench"};
    for (size_t j = 0; j < COUNT_OF(rows[i].arguments) && rows[i].arguments[j] != NULL; j++) {
      arguments[j + 1] = rows[i].arguments[j];
    }
    fixture_run_list(&fix, arguments);
    int io = strstr(rows[i].named, ".safetensors") != NULL; /* a file that cannot be read is a failure */
    if ((fix.status != 2 && !(io && fix.status == 1)) || !fixture_one_line(&fix) || strcmp(fix.out, "") != 0 ||
        strstr(fix.err, rows[i].named) == NULL) {
      fail_msg("%s %s: status %d: %s%s", arguments[1], arguments[2], fix.status, fix.out, fix.err);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_object),          cmocka_unit_test(test_words), cmocka_unit_test(test_file),
      cmocka_unit_test(test_lines_and_table), cmocka_unit_test(test_list),  cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
