/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of attn and attn-lm in which each allocation of theirs fails in turn, alone and with all later ones: the
 * readers of requests and models, the tokenizer, generation. Each run ends with exit code 1 and one line, leaves no
 * result and gives back all memory. The binaries are attn-failing and attn-lm-failing (tests/allocation).
 */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "request_builder.h"
#include "tiny_model.h"
#include "test_counts.h"

static request_files files;
static char report_path[300];
static char text_path[300];
static char long_path[300];
static char model_path[300];

static int set_up(void **state) {
  static const char text[] = "hello ab, x\n";
  static char window[1200]; /* enough for perplexity */
  (void)state;
  if (!request_open(&files)) {
    return -1;
  }
  fixture_path(&files.fix, "report", report_path, sizeof report_path);
  fixture_path(&files.fix, "text", text_path, sizeof text_path);
  fixture_path(&files.fix, "long", long_path, sizeof long_path);
  fixture_path(&files.fix, "model", model_path, sizeof model_path);
  tiny_model_write(model_path, TINY_PLAIN);
  setenv("ATTN_ALLOCATIONS", report_path, 1);
  setenv("GOMP_SPINCOUNT", "2000", 1); /* attn-lm would set it and start once more */
  for (size_t i = 0; i < sizeof window; i++) {
    window[i] = (char)('a' + i * i % 23);
  }
  return fixture_write(text_path, text, sizeof text - 1) && fixture_write(long_path, window, sizeof window) ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  fixture_close(&files.fix);
  return 0;
}

/* What the binary wrote at its end: allocations that failed, pieces still live. */
static void read_report(const char *command, long *failed, long *live) {
  size_t bytes = 0;
  char *text = (char *)fixture_read(report_path, &bytes);
  if (text == NULL || sscanf(text, "%ld %ld", failed, live) != 2) {
    fail_msg("%s: ended before it wrote its report (exit %d): %s", command, files.fix.status, files.fix.err);
  }
  free(text);
}

/* The command with its nth allocation failing, and with `onward` the later ones. 0: it makes fewer, and succeeds. */
static int fails(char *const *arguments, int nth, int onward) {
  const fixture *fix = &files.fix;
  const char *command = arguments[0];
  char text[32];
  long failed = 0, live = 0;
  snprintf(text, sizeof text, "%d%s", nth, onward ? "+" : "");
  setenv("ATTN_FAIL_ALLOCATION", text, 1);
  unlink(report_path);
  unlink(files.out_path);
  assert_non_null(freopen(text_path, "rb", stdin));
  fixture_run_list(&files.fix, arguments);
  unsetenv("ATTN_FAIL_ALLOCATION");
  read_report(command, &failed, &live);
  if (live != 0) {
    fail_msg("%s, allocation %s: %ld pieces not given back", command, text, live);
  }
  if (failed == 0) {
    if (fix->status != 0) {
      fail_msg("%s: exit %d: %s", command, fix->status, fix->err);
    }
    return 0;
  }
  if (fix->status != 1 || !fixture_one_line(fix)) {
    fail_msg("%s, allocation %s: exit %d, expected 1 and one line, found: %s", command, text, fix->status, fix->err);
  }
  if (access(files.out_path, F_OK) == 0 || request_count_files(&files, "out.safetensors") != 0) {
    fail_msg("%s, allocation %s: a result or a part of one is left", command, text);
  }
  return 1;
}

/* Under sanitizers a process costs much more: there every third allocation fails, in one of the two ways by turns. */
static void sweep(char *const *arguments) {
  int nth = 1;
  while (fails(arguments, nth, nth % 2) && (!test_count(1, 0) || fails(arguments, nth, 1 - nth % 2))) {
    nth += test_count(1, 3);
  }
  assert_true(nth > 1);
  print_message("%s: %d allocations\n", arguments[0], nth - 1);
}

#define SWEEP(...) sweep((char *const[]){__VA_ARGS__, NULL})

static void use(const char *variable) {
  const char *binary = getenv(variable);
  if (binary == NULL) {
    fail_msg("%s is not set: run this test by ctest", variable);
  }
  setenv("ATTN_BIN", binary, 1);
}

static void test_attn(void **state) {
  static const char *const requests[] = {REQUEST_WRITTEN, REQUEST_WRITE, REQUEST_GATHER, REQUEST_MERGE};
  (void)state;
  use("ATTN_FAILING_BIN");
  for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
    assert_true(request_save(&files, requests[i], ""));
    SWEEP("run", files.in_path, "-o", files.out_path, "--threads", "2");
  }
  SWEEP("explain", files.in_path);
  SWEEP("info", "--threads", "2");
}

static void test_attn_lm(void **state) {
  (void)state;
  use("ATTN_LM_FAILING_BIN");
  SWEEP("generate", "--model", model_path, "--max-tokens", "3", "--prompt-file", text_path, "--prompt", "x y",
        "--temperature", "1.5", "--top-k", "5", "--json", "--cache-format",
        "int8_per_token_head,int4_per_token_head+separate_scales");
  SWEEP("chat", "--model", model_path, "--max-tokens", "2");
  SWEEP("perplexity", "--model", model_path, "--file", long_path, "--json", "--cache-format", "fp8_e4m3", "--kv-scales",
        "auto");
  SWEEP("bench", "--model", model_path, "--lengths", "5", "--repeat", "1");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_attn),
      cmocka_unit_test(test_attn_lm),
  };
  return cmocka_run_group_tests_name("allocation_commands", tests, set_up, tear_down);
}
