/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole runner against an independent implementation (text/golden.json): the program attn-lm continues three
 * prompts greedily in float32, with one thread batched together and with two threads alone, and every token has to be
 * the one recorded, as well as the logits of the first step within 2e-3. `golden_text all` has the other two
 * combinations too (make check-long PART=serving). Needs the program (ATTN_LM_BIN) and the model's file
 * (ATTN_MODEL), and fails without them.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "golden_run.h"

#define PROMPTS 3
#define STEPS 64
#define VOCABULARY 49152
#define TOLERANCE 2e-3

static int whole;
static cJSON *golden;
static cJSON *golden_prompts;

/* The recorded logits are 16-bit multiples of a step, so half a step of the tolerance is already used. */
static void check_logits(const cJSON *prompt, const float *found) {
  const char *name = cJSON_GetStringValue(member(prompt, "name"));
  const double step = member(prompt, "logits_step")->valuedouble;
  char path[1024];
  (void)snprintf(path, sizeof path, "%s/text/%s", ATTN_GOLDEN_DIR, cJSON_GetStringValue(member(prompt, "logits_file")));
  size_t length = 0;
  char *bytes = read_file(path, &length);
  assert_int_equal(length, 2 * VOCABULARY);
  double worst = 0;
  for (int i = 0; i < VOCABULARY; i++) {
    const int bits = (unsigned char)bytes[2 * i] | (unsigned char)bytes[2 * i + 1] << 8;
    const double expected = step * (bits < 32768 ? bits : bits - 65536);
    const double difference = fabs((double)found[i] - expected);
    if (!(difference <= TOLERANCE - step / 2)) {
      fail_msg("%s: logit %d is %.6f, expected %.6f within %.6f", name, i, (double)found[i], expected,
               TOLERANCE - step / 2);
    }
    worst = difference > worst ? difference : worst;
  }
  print_message("%s: worst logit difference %.2e of %.2e\n", name, worst, TOLERANCE - step / 2);
  free(bytes);
}

static char *ids_text(const cJSON *ids) {
  char *text = cJSON_PrintUnformatted(ids); /* "[1,2,3]" */
  assert_non_null(text);
  text[strlen(text) - 1] = '\0';
  return text;
}

static void check_continuations(const char *threads, const char *alone) {
  char logits_path[] = "/tmp/golden_text_XXXXXX";
  const int descriptor = mkstemp(logits_path);
  assert_true(descriptor >= 0);
  (void)close(descriptor);
  const char *arguments[MAX_ARGUMENTS] = {"--threads", threads,     "--max-tokens", "64",       "--cache-format",
                                          "float32",   "--compute", "float32",      "--logits", logits_path};
  size_t count = 10;
  char *texts[PROMPTS];
  for (int i = 0; i < PROMPTS; i++) {
    texts[i] = ids_text(member(cJSON_GetArrayItem(golden_prompts, i), "ids"));
    arguments[count++] = "--ids";
    arguments[count++] = texts[i] + 1;
  }
  arguments[count] = alone;
  cJSON *answer = run_lm(arguments);
  size_t length = 0;
  char *logits = read_file(logits_path, &length);
  (void)remove(logits_path);
  assert_int_equal(length, PROMPTS * VOCABULARY * sizeof(float));
  for (int i = 0; i < PROMPTS; i++) {
    const cJSON *expected = cJSON_GetArrayItem(golden_prompts, i);
    const char *name = cJSON_GetStringValue(member(expected, "name"));
    const cJSON *found = cJSON_GetArrayItem(member(answer, "prompts"), i);
    assert_int_equal(cJSON_GetArraySize(member(expected, "continuation")), STEPS);
    check_ids(name, "tokens", member(found, "continuation"), member(expected, "continuation"), STEPS);
    float *row = malloc(VOCABULARY * sizeof(float));
    assert_non_null(row);
    memcpy(row, logits + (size_t)i * VOCABULARY * sizeof(float), VOCABULARY * sizeof(float));
    check_logits(expected, row);
    free(row);
    free(texts[i]);
  }
  free(logits);
  cJSON_Delete(answer);
}

static void test_one_thread_together(void **state) {
  (void)state;
  check_continuations("1", NULL);
}

static void test_two_threads_together(void **state) {
  (void)state;
  if (whole) {
    check_continuations("2", NULL);
  }
}

static void test_one_thread_alone(void **state) {
  (void)state;
  if (whole) {
    check_continuations("1", "--alone");
  }
}

static void test_two_threads_alone(void **state) {
  (void)state;
  check_continuations("2", "--alone");
}

/* The same prompts as text: ids as recorded, the ChatML turn included, and the first tokens of the continuation. */
static void test_text_prompts(void **state) {
  (void)state;
  for (int chatml = 0; chatml < 2; chatml++) {
    const char *arguments[MAX_ARGUMENTS] = {"--max-tokens", "4", "--max-batch-tokens", "16"};
    const cJSON *expected[PROMPTS];
    size_t count = 4;
    int used = 0;
    for (int i = 0; i < PROMPTS; i++) {
      const cJSON *prompt = cJSON_GetArrayItem(golden_prompts, i);
      if (cJSON_IsTrue(member(prompt, "chatml")) == chatml) {
        arguments[count++] = "--prompt";
        arguments[count++] = cJSON_GetStringValue(member(prompt, "text"));
        expected[used++] = prompt;
      }
    }
    assert_true(used > 0);
    arguments[count] = chatml ? "--chatml" : NULL;
    cJSON *answer = run_lm(arguments);
    for (int i = 0; i < used; i++) {
      const char *name = cJSON_GetStringValue(member(expected[i], "name"));
      const cJSON *found = cJSON_GetArrayItem(member(answer, "prompts"), i);
      const cJSON *ids = member(expected[i], "ids");
      check_ids(name, "ids", member(found, "ids"), ids, cJSON_GetArraySize(ids));
      check_ids(name, "tokens", member(found, "continuation"), member(expected[i], "continuation"), 4);
    }
    cJSON_Delete(answer);
  }
}

static int set_up(void **state) {
  (void)state;
  size_t length = 0;
  char *text = read_file(ATTN_GOLDEN_DIR "/text/golden.json", &length);
  golden = cJSON_ParseWithLength(text, length);
  free(text);
  golden_prompts = cJSON_GetObjectItemCaseSensitive(golden, "prompts");
  return cJSON_GetArraySize(golden_prompts) == PROMPTS ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  cJSON_Delete(golden);
  return 0;
}

int main(int argc, char **argv) {
  whole = argc > 1 && strcmp(argv[1], "all") == 0;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_thread_together), cmocka_unit_test(test_two_threads_together),
      cmocka_unit_test(test_one_thread_alone),    cmocka_unit_test(test_two_threads_alone),
      cmocka_unit_test(test_text_prompts),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
