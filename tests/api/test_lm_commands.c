/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of attn-lm as a user runs them, on a small random model (tiny_model.h): where prompts come from, that
 * a seed gives the same text in any batch, chat, perplexity and bench, each flag's refusal and help. The golden tests
 * judge what a real model says.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <sys/stat.h>

#include "command_fixture.h"
#include "tiny_model.h"

static fixture fix;
static char model[300];
static char other_model[300];

/* ---- Running -------------------------------------------------------------------------------------------------- */

static void set_stdin(const char *text) {
  char path[300];
  fixture_path(&fix, "input", path, sizeof path);
  assert_true(fixture_write(path, text, strlen(text)));
  assert_non_null(freopen(path, "rb", stdin));
}

static void must_run(void) {
  if (fix.status != 0) {
    fail_msg("status %d: %s", fix.status, fix.err);
  }
}

static cJSON *parse_answer(void) {
  must_run();
  cJSON *answer = cJSON_Parse(fix.out);
  if (answer == NULL) {
    fail_msg("no JSON: %s", fix.out);
  }
  return answer;
}

static double number(const cJSON *object, const char *name) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
  assert_true(cJSON_IsNumber(item));
  return item->valuedouble;
}

/* The continuation of prompt i in the JSON just printed, as "[1,2,3]". free() it. */
static char *continuation(int i) {
  cJSON *answer = parse_answer();
  const cJSON *prompt = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(answer, "prompts"), i);
  char *text = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(prompt, "continuation"));
  assert_non_null(text);
  cJSON_Delete(answer);
  return text;
}

#define GENERATE "generate", "--model", model, "--compute", "float32", "--max-tokens", "24"

static void expect_same(char *expected, char *found) {
  assert_string_equal(expected, found);
  free(found);
}

static void test_prompt_sources(void **state) {
  (void)state;
  char path[300];
  static const char text[] = "hello ab\nworld";
  fixture_path(&fix, "prompt", path, sizeof path);
  assert_true(fixture_write(path, text, strlen(text)));
  fixture_run(&fix, GENERATE, "--json", "--prompt", text, NULL);
  char *expected = continuation(0);
  fixture_run(&fix, GENERATE, "--json", "--prompt-file", path, NULL);
  expect_same(expected, continuation(0));
  set_stdin(text);
  fixture_run(&fix, GENERATE, "--json", "--prompt", "other", "--prompt-file", "-", NULL);
  expect_same(expected, continuation(1));
  free(expected);
}

/* A single prompt's text is streamed, two prompts' texts are not: the same lines. */
static void test_streaming(void **state) {
  (void)state;
  fixture_run(&fix, GENERATE, "--prompt", "hello", "--prompt", "x", NULL);
  must_run();
  const char *end = strstr(fix.out, "\n\n[2] x\n");
  assert_non_null(end);
  const size_t length = (size_t)(end - fix.out) + 2;
  char *both = strdup(fix.out);
  assert_non_null(both);
  fixture_run(&fix, GENERATE, "--prompt", "hello", NULL);
  must_run();
  assert_memory_equal(fix.out, both, length);
  assert_ptr_equal(strstr(fix.out, "prefill "), fix.out + length);
  assert_non_null(strstr(fix.out, "precision  float32, cache float32\n"));
  free(both);
}

#define SAMPLED GENERATE, "--json", "--temperature", "1.5", "--top-p", "0.9", "--min-p", "0.001"

static void test_seed(void **state) {
  (void)state;
  fixture_run(&fix, SAMPLED, "--seed", "7", "--prompt", "hello", NULL);
  char *first = continuation(0);
  fixture_run(&fix, SAMPLED, "--seed", "7", "--prompt", "hello", "--prompt", "hello", "--prompt", "a longer one", NULL);
  char *second = continuation(1);
  expect_same(first, continuation(0));
  assert_string_not_equal(first, second); /* each prompt has its own stream */
  fixture_run(&fix, SAMPLED, "--seed", "7", "--alone", "--prompt", "hello", "--prompt", "hello", NULL);
  expect_same(first, continuation(0));
  expect_same(second, continuation(1));
  fixture_run(&fix, SAMPLED, "--seed", "7", "--max-batch-tokens", "3", "--prompt", "x", "--prompt", "hello", NULL);
  expect_same(second, continuation(1));
  fixture_run(&fix, SAMPLED, "--seed", "8", "--prompt", "hello", NULL);
  char *other = continuation(0);
  assert_string_not_equal(first, other);
  free(first);
  free(second);
  free(other);
}

/* The cache holds about a fifth of what five prompts come to: the same texts, each by its own draws. */
static void test_small_cache(void **state) {
  (void)state;
  static const char *const extra[] = {"--no-prefix-cache", "--batch-invariant"};
  for (size_t i = 0; i < 2; i++) {
    char *expected[5];
    for (int blocks = 0; blocks < 2; blocks++) {
      fixture_run(&fix, SAMPLED, "--seed", "7", "--block-size", "8", "--cache-blocks", blocks == 0 ? "60" : "9",
                  "--prompt", "a prefix that they share: one", "--prompt", "a prefix that they share: two", "--prompt",
                  "a prefix that they share: one", "--prompt", "hello", "--prompt", "a prefix that they share",
                  extra[i], NULL);
      cJSON *answer = parse_answer();
      assert_true(number(answer, "cache_blocks") == (blocks == 0 ? 60 : 9));
      assert_true(number(answer, "blocks_in_use") == 0 && number(answer, "peak_blocks") > 0);
      assert_true((number(answer, "preemptions") > 0) == (blocks == 1));
      assert_true(number(answer, "resumes") == number(answer, "preemptions"));
      assert_true((number(answer, "shared_blocks") > 0) == (i == 1));
      cJSON_Delete(answer);
      for (int j = 0; j < 5; j++) {
        if (blocks == 0) {
          expected[j] = continuation(j);
        } else {
          expect_same(expected[j], continuation(j));
          free(expected[j]);
        }
      }
    }
  }
  fixture_run(&fix, GENERATE, "--block-size", "8", "--cache-blocks", "3", "--prompt", "x", "--prompt", "hello", NULL);
  assert_int_equal(fix.status, 2);
  assert_true(fixture_one_line(&fix));
  assert_non_null(
      strstr(fix.err, "prompt 2 may come to 28 tokens, 4 blocks of 8; the cache has 3 blocks (--cache-blocks)"));
  fixture_run(&fix, GENERATE, "--block-size", "8", "--cache-blocks", "4", "--prompt", "x", "--prompt", "y", NULL);
  must_run();
  assert_non_null(strstr(fix.out, ", 4 blocks of 8 tokens; most in use "));
  assert_non_null(strstr(fix.out, ", now 0\n"));
  assert_non_null(strstr(fix.out, "\nshared     0 blocks, 0 tokens; "));
  assert_non_null(strstr(fix.out, "\npreempted  "));
}

static void test_filters_at_their_ends(void **state) {
  (void)state;
  fixture_run(&fix, GENERATE, "--json", "--prompt", "hello", NULL);
  char *greedy = continuation(0);
  fixture_run(&fix, GENERATE, "--json", "--prompt", "hello", "--temperature", "2", "--top-k", "1", NULL);
  expect_same(greedy, continuation(0));
  fixture_run(&fix, GENERATE, "--json", "--prompt", "hello", "--temperature", "2", "--top-p", "0.000001", NULL);
  expect_same(greedy, continuation(0));
  fixture_run(&fix, GENERATE, "--json", "--prompt", "hello", "--temperature", "2", "--min-p", "1", NULL);
  expect_same(greedy, continuation(0));
  free(greedy);
  fixture_run(&fix, GENERATE, "--json", "--prompt", "hello", "--repetition-penalty", "100", NULL);
  cJSON *answer = parse_answer();
  const cJSON *prompt = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(answer, "prompts"), 0);
  const cJSON *ids = cJSON_GetObjectItemCaseSensitive(prompt, "continuation");
  assert_true(cJSON_GetArraySize(ids) >= 1);
  for (int i = 0; i < 8 && i < cJSON_GetArraySize(ids); i++) {
    for (int j = 0; j < i; j++) {
      assert_int_not_equal(cJSON_GetArrayItem(ids, i)->valueint, cJSON_GetArrayItem(ids, j)->valueint);
    }
  }
  cJSON_Delete(answer);
}

/* The first answer is the one that generate --chatml gives; a second turn follows in the same conversation. */
static void test_chat(void **state) {
  (void)state;
  fixture_run(&fix, GENERATE, "--chatml", "--prompt", "hi you", NULL);
  must_run();
  const char *from = strstr(fix.out, "\n") + 1;
  const char *to = strstr(fix.out, "\n\nprefill");
  assert_non_null(to);
  char *expected = strndup(from, (size_t)(to - from) + 1);
  assert_non_null(expected);
  set_stdin("hi you\n\nand then");
  fixture_run(&fix, "chat", "--model", model, "--compute", "float32", "--max-tokens", "24", NULL);
  must_run();
  assert_memory_equal(fix.out, expected, strlen(expected));
  assert_true(strlen(fix.out) > strlen(expected));
  free(expected);
  set_stdin("this is more than fits\n");
  fixture_run(&fix, "chat", "--model", model, "--context", "32", NULL);
  assert_int_equal(fix.status, 2);
  assert_true(fixture_one_line(&fix) && strstr(fix.err, "turn 1: the conversation has ") != NULL);
  set_stdin("\xff\n");
  fixture_run(&fix, "chat", "--model", model, NULL);
  assert_int_equal(fix.status, 2);
  assert_true(fixture_one_line(&fix) && strstr(fix.err, "turn 1: ") != NULL);
  fixture_run(&fix, "chat", "--model", other_model, NULL);
  assert_int_equal(fix.status, 2);
  assert_true(fixture_one_line(&fix) && strstr(fix.err, "accepted is the plain ChatML form") != NULL);
}

/* 1,700 tokens are two windows; the result does not depend on how steps are cut. */
static void test_perplexity(void **state) {
  (void)state;
  char path[300];
  char text[1700];
  for (size_t i = 0; i < sizeof text; i++) {
    text[i] = (char)('!' + (i * i + 7 * i) % 64); /* no 'a', so that nothing merges */
  }
  fixture_path(&fix, "text", path, sizeof path);
  assert_true(fixture_write(path, text, sizeof text));
  double found[2];
  for (int i = 0; i < 2; i++) {
    fixture_run(&fix, "perplexity", "--model", model, "--file", path, "--json", "--compute", "float32",
                "--max-batch-tokens", i == 0 ? "512" : "37", NULL);
    cJSON *answer = parse_answer();
    found[i] = number(answer, "perplexity");
    assert_true(number(answer, "windows") == 2 && number(answer, "counted_tokens") == 1024);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(answer, "ids")), (int)sizeof text);
    assert_true(fabs(log(found[i]) - number(answer, "mean_negative_log_probability")) < 1e-6);
    cJSON_Delete(answer);
  }
  assert_true(found[0] > 2 && found[0] < 1e6);
  assert_true(fabs(found[1] / found[0] - 1) < 1e-4);
  fixture_run(&fix, "perplexity", "--model", model, "--file", path, NULL);
  must_run();
  assert_non_null(strstr(fix.out, "windows     2 of 1024 tokens, 1024 counted, of 1700 in the text\n"));
  assert_true(fixture_write(path, text, 1022));
  fixture_run(&fix, "perplexity", "--model", model, "--file", path, NULL);
  assert_int_equal(fix.status, 2);
  assert_true(fixture_one_line(&fix) && strstr(fix.err, "--file has 1022 tokens; accepted are 1023 and more") != NULL);
}

static void test_bench(void **state) {
  (void)state;
  fixture_run(&fix, "bench", "--model", model, "--lengths", "5,40", "--repeat", "2", "--json", NULL);
  cJSON *answer = parse_answer();
  const cJSON *results = cJSON_GetObjectItemCaseSensitive(answer, "results");
  assert_int_equal(cJSON_GetArraySize(results), 2);
  for (int i = 0; i < 2; i++) {
    const cJSON *row = cJSON_GetArrayItem(results, i);
    assert_true(number(row, "length") == (i == 0 ? 5 : 40));
    assert_true(number(row, "prefill_tokens_per_second") > 0 && number(row, "decode_tokens_per_second") > 0);
  }
  assert_non_null(cJSON_GetObjectItemCaseSensitive(answer, "compute"));
  cJSON_Delete(answer);
  fixture_run(&fix, "bench", "--model", model, "--lengths", "5", "--repeat", "1", NULL);
  must_run();
  assert_non_null(strstr(fix.out, "decode tokens/s\n       5 "));
}

/* Either it runs and says so, or the refusal names it; capped at AVX2 it is always refused. */
static void test_bfloat16(void **state) {
  (void)state;
  fixture_run(&fix, "generate", "--model", model, "--prompt", "x", "--compute", "bfloat16", NULL);
  assert_true(fix.status == 0 ? strstr(fix.out, "precision  bfloat16, ") != NULL
                              : fix.status == 2 && strstr(fix.err, "--compute bfloat16") != NULL);
  assert_int_equal(setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1), 0);
  fixture_run(&fix, "generate", "--model", model, "--prompt", "x", "--compute", "bfloat16", NULL);
  assert_int_equal(fix.status, 2);
  assert_true(fixture_one_line(&fix) && strstr(fix.err, "accepted is float32") != NULL);
  fixture_run(&fix, "generate", "--model", model, "--prompt", "x", NULL);
  must_run();
  assert_non_null(strstr(fix.out, "precision  float32, "));
  (void)unsetenv("ONEDNN_MAX_CPU_ISA");
}

typedef struct refusal {
  const char *command;
  const char *flag;
  const char *value; /* NULL: none */
  const char *words;
} refusal;

static const refusal refusals[] = {
    {"generate", "--temperature", "-1", "accepted are 0 to 100"},
    {"generate", "--temperature", "1e1", "accepted are 0 to 100"},
    {"generate", "--temperature", "nan", "accepted are 0 to 100"},
    {"generate", "--temperature", "", "accepted are 0 to 100"},
    {"generate", "--temperature", "1.2.3", "accepted are 0 to 100"},
    {"generate", "--temperature", "101", "accepted are 0 to 100"},
    {"generate", "--top-k", "0", "accepted are 1 to "},
    {"generate", "--top-p", "0", "accepted are 1e-06 to 1"},
    {"generate", "--top-p", "1.01", "accepted are 1e-06 to 1"},
    {"generate", "--min-p", "2", "accepted are 0 to 1"},
    {"generate", "--repetition-penalty", "0", "accepted are 0.01 to 100"},
    {"generate", "--seed", "-1", "accepted are 0 to 18446744073709551615"},
    {"generate", "--seed", "18446744073709551616", "accepted are 0 to 18446744073709551615"},
    {"generate", "--seed", "3", "has no meaning at --temperature 0"},
    {"generate", "--top-k", "3", "has no meaning at --temperature 0"},
    {"generate", "--top-p", "0.5", "has no meaning at --temperature 0"},
    {"generate", "--min-p", "0.5", "has no meaning at --temperature 0"},
    {"generate", "--cache-blocks", "0", "accepted are 1 to "},
    {"generate", "--cache-blocks", "1e9", "accepted are 1 to "},
    {"chat", "--cache-blocks", "4", "unknown argument '--cache-blocks'"},
    {"bench", "--no-prefix-cache", NULL, "unknown argument '--no-prefix-cache'"},
    {"generate", "--compute", "float16", "accepted are float32, bfloat16"},
    {"generate", "--prompt-file", "/nonexistent/x", "--prompt-file '/nonexistent/x' cannot be opened"},
    {"generate", "--prompt-file", "/", "--prompt-file '/' cannot be read"},
    {"generate", "--lengths", "5", "unknown argument '--lengths'"},
    {"generate", "--prompt-file", NULL, "--prompt-file wants a value"},
    {"chat", "--context", "1201", "--context is 1201; accepted are 1 to 1200"},
    {"chat", "--context", "x", "--context is 'x'"},
    {"chat", "--json", NULL, "unknown argument '--json'"},
    {"perplexity", "--json", NULL, "--file FILE is missing"},
    {"perplexity", "--file", "/nonexistent/x", "--file '/nonexistent/x' cannot be opened"},
    {"perplexity", "--seed", "1", "unknown argument '--seed'"},
    {"bench", "--lengths", "", "--lengths is ''"},
    {"bench", "--lengths", "1,,2", "--lengths is '1,,2'"},
    {"bench", "--lengths", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", "accepted are up to 16 numbers"},
    {"bench", "--lengths", "1185", "accepted are 1 to 1184"},
    {"bench", "--repeat", "0", "accepted are 1 to 1000"},
    {"bench", "--prompt", "x", "unknown argument '--prompt'"},
};

static void test_refusals(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
    const refusal *r = &refusals[i];
    if (strcmp(r->command, "generate") == 0) {
      fixture_run(&fix, r->command, "--model", model, "--prompt", "x", r->flag, r->value, NULL);
    } else {
      fixture_run(&fix, r->command, "--model", model, r->flag, r->value, NULL);
    }
    const int expected = strstr(r->words, "cannot be ") != NULL ? 1 : 2;
    if (fix.status != expected || !fixture_one_line(&fix) || strstr(fix.err, r->words) == NULL || fix.out[0] != '\0') {
      fail_msg("%s %s %s: status %d, \"%s\"; expected %d and \"%s\"", r->command, r->flag,
               r->value != NULL ? r->value : "", fix.status, fix.err, expected, r->words);
    }
  }
  set_stdin("x");
  fixture_run(&fix, GENERATE, "--prompt-file", "-", "--prompt-file", "-", NULL);
  assert_int_equal(fix.status, 2);
  assert_non_null(strstr(fix.err, "--prompt-file - is given twice"));
  fixture_run(&fix, "perplexity", "--model", model, "--file", "a", "--file", "b", NULL);
  assert_int_equal(fix.status, 2);
  assert_non_null(strstr(fix.err, "--file is given twice"));
}

/* What is no regular file: a model that would never open, a target that would be replaced. And a name that would break
   the line. */
static void test_special_files(void **state) {
  (void)state;
  char fifo[600];
  struct stat found;
  assert_int_equal(mkfifo(fixture_path(&fix, "fifo", fifo, sizeof fifo), 0600), 0);
  fixture_run(&fix, "generate", "--model", fifo, "--prompt", "x", NULL);
  assert_int_equal(fix.status, 1);
  assert_true(fixture_one_line(&fix));
  assert_non_null(strstr(fix.err, "not a regular file"));
  fixture_run(&fix, "generate", "--model", model, "--prompt", "x", "--max-tokens", "1", "--logits", fifo, NULL);
  assert_int_equal(fix.status, 1);
  assert_non_null(strstr(fix.err, "--logits"));
  assert_non_null(strstr(fix.err, "not a regular file"));
  assert_int_equal(stat(fifo, &found), 0);
  assert_true(S_ISFIFO(found.st_mode));
  fixture_run(&fix, "generate", "--model", "two\nlines", "--prompt", "x", NULL);
  assert_int_equal(fix.status, 1);
  assert_true(fixture_one_line(&fix));
}

/* Every name in the answer that was just printed stands in the command's help. */
static void expect_names(const cJSON *value, const char *help) {
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, value) {
    if (item->string != NULL && strstr(help, item->string) == NULL) {
      fail_msg("--help does not name %s: %s", item->string, help);
    }
    expect_names(item, help);
  }
}

static void test_names_of_json(void **state) {
  (void)state;
  char text[1700];
  char path[300];
  memset(text, '!', sizeof text);
  fixture_path(&fix, "names", path, sizeof path);
  assert_true(fixture_write(path, text, sizeof text));
  char *commands[][10] = {
      {"generate", "--model", model, "--prompt", "hello", "--max-tokens", "2", "--json", NULL},
      {"bench", "--model", model, "--lengths", "5", "--repeat", "1", "--json", NULL},
      {"perplexity", "--model", model, "--file", path, "--json", NULL},
      {"perplexity", "--model", model, "--file", path, "--json", "--all-formats", NULL},
  };
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    fixture_run(&fix, commands[i][0], "--help", NULL);
    char *help = strdup(fix.out);
    assert_non_null(help);
    fixture_run_list(&fix, commands[i]);
    cJSON *answer = parse_answer();
    assert_string_equal(fix.err, "");
    expect_names(answer, help);
    cJSON_Delete(answer);
    free(help);
  }
}

static void test_help(void **state) {
  (void)state;
  static const char *const commands[] = {"generate", "chat", "perplexity", "bench"};
  for (size_t i = 0; i < 4; i++) {
    fixture_run(&fix, commands[i], "--help", NULL);
    must_run();
    assert_non_null(strstr(fix.out, commands[i]));
    assert_non_null(strstr(fix.out, "BF16, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K"));
    for (size_t j = 0; j < sizeof refusals / sizeof refusals[0]; j++) {
      const bool own = strcmp(refusals[j].command, commands[i]) == 0;
      if (own && strncmp(refusals[j].words, "unknown", 7) != 0 && strstr(fix.out, refusals[j].flag) == NULL) {
        fail_msg("%s --help lacks %s", commands[i], refusals[j].flag);
      }
    }
  }
  fixture_run(&fix, "--help", NULL);
  must_run();
  for (size_t i = 0; i < 4; i++) {
    assert_non_null(strstr(fix.out, commands[i]));
  }
  fixture_run(&fix, "generat", NULL);
  assert_int_equal(fix.status, 2);
  assert_true(fixture_one_line(&fix) && strstr(fix.err, "generate, chat, perplexity, bench") != NULL);
}

static int set_up(void **state) {
  (void)state;
  const char *program = getenv("ATTN_LM_BIN");
  if (program == NULL || setenv("ATTN_BIN", program, 1) != 0 || !fixture_open(&fix)) {
    return -1;
  }
  fixture_path(&fix, "model.gguf", model, sizeof model);
  fixture_path(&fix, "other.gguf", other_model, sizeof other_model);
  tiny_model_write(model, TINY_PLAIN);
  tiny_model_write(other_model, TINY_OTHER);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  fixture_close(&fix);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_prompt_sources),
      cmocka_unit_test(test_streaming),
      cmocka_unit_test(test_seed),
      cmocka_unit_test(test_small_cache),
      cmocka_unit_test(test_filters_at_their_ends),
      cmocka_unit_test(test_chat),
      cmocka_unit_test(test_perplexity),
      cmocka_unit_test(test_bench),
      cmocka_unit_test(test_bfloat16),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_special_files),
      cmocka_unit_test(test_names_of_json),
      cmocka_unit_test(test_help),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
