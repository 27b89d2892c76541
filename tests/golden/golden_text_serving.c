/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serving with too little memory: the prompts of serving/serving.json go through attn-lm with a cache of a quarter of
 * the blocks that they come to, in float32 with batch-invariant attention. Every token has to be the one recorded with
 * a cache for all and nothing shared; the two best logits differ by at least 0.01 at every step, measured again here,
 * so that no rounding of a product can decide. Requests have to be preempted, blocks shared, and none in use at the
 * end. Without an argument the prompts of two groups run, one with the preface and one without; `golden_text_serving
 * all` runs all 64, with one thread and two, with nothing shared, and with a cache that holds all of them.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdbool.h>

#include "golden_run.h"

#define LEAST_GAP 0.01
#define MOST_PROMPTS 64
#define QUICK_STRIDE 4
#define QUICK_FIRST 2

static bool whole;
static cJSON *source;
static cJSON *recorded;

typedef struct serving {
  const cJSON *prompts[MOST_PROMPTS];
  char *texts[MOST_PROMPTS];
  int count;
  int needed; /* blocks that they come to */
} serving;

static char *prompt_text(const cJSON *prompt) {
  const cJSON *group = cJSON_GetArrayItem(member(source, "groups"), member(prompt, "group")->valueint);
  const char *preface = cJSON_IsTrue(member(group, "preface")) ? cJSON_GetStringValue(member(source, "preface")) : "";
  const char *text = cJSON_GetStringValue(member(group, "text"));
  const char *ending = cJSON_GetStringValue(member(prompt, "ending"));
  const size_t room = strlen(preface) + strlen(text) + strlen(ending) + 1;
  char *joined = malloc(room);
  assert_non_null(joined);
  (void)snprintf(joined, room, "%s%s%s", preface, text, ending);
  return joined;
}

static serving choose_prompts(void) {
  serving s = {.count = 0};
  const int block_size = member(recorded, "block_size")->valueint;
  const int max_tokens = member(recorded, "max_tokens")->valueint;
  const cJSON *prompt = NULL;
  cJSON_ArrayForEach(prompt, member(recorded, "prompts")) {
    if (!whole && member(prompt, "group")->valueint % QUICK_STRIDE != QUICK_FIRST) {
      continue;
    }
    assert_true(s.count < MOST_PROMPTS);
    s.prompts[s.count] = prompt;
    s.texts[s.count++] = prompt_text(prompt);
    s.needed += (member(prompt, "tokens")->valueint + max_tokens - 1 + block_size - 1) / block_size;
  }
  return s;
}

static double number(const cJSON *answer, const char *name) {
  const cJSON *item = member(answer, name);
  assert_true(cJSON_IsNumber(item));
  return item->valuedouble;
}

static void check_answer(const serving *s, const cJSON *answer) {
  double least = 1e30;
  for (int i = 0; i < s->count; i++) {
    char name[32];
    (void)snprintf(name, sizeof name, "prompt %d", i + 1);
    const cJSON *found = cJSON_GetArrayItem(member(answer, "prompts"), i);
    const cJSON *expected = member(s->prompts[i], "continuation");
    const double gap = number(found, "min_gap");
    assert_int_equal(cJSON_GetArraySize(member(found, "ids")), member(s->prompts[i], "tokens")->valueint);
    assert_int_equal(cJSON_GetArraySize(expected), member(recorded, "max_tokens")->valueint);
    check_ids(name, "tokens", member(found, "continuation"), expected, cJSON_GetArraySize(expected));
    if (!(gap >= LEAST_GAP && number(s->prompts[i], "min_gap") >= LEAST_GAP)) {
      fail_msg("%s: its two best logits differ by %g", name, gap);
    }
    least = gap < least ? gap : least;
  }
  print_message("%d prompts, %d blocks needed, %d in the cache: %d preemptions, %d resumed, %d tokens computed again; "
                "%d blocks shared, %d evicted, %d in use at most, %d at the end; smallest gap %.4f\n",
                s->count, s->needed, (int)number(answer, "cache_blocks"), (int)number(answer, "preemptions"),
                (int)number(answer, "resumes"), (int)number(answer, "recomputed_tokens"),
                (int)number(answer, "shared_blocks"), (int)number(answer, "evictions"),
                (int)number(answer, "peak_blocks"), (int)number(answer, "blocks_in_use"), least);
}

static void check_serving(const char *threads, bool quarter, bool shares) {
  serving s = choose_prompts();
  char blocks[16];
  char block_size[16];
  char max_tokens[16];
  (void)snprintf(blocks, sizeof blocks, "%d", quarter ? s.needed / 4 : s.needed);
  (void)snprintf(block_size, sizeof block_size, "%d", member(recorded, "block_size")->valueint);
  (void)snprintf(max_tokens, sizeof max_tokens, "%d", member(recorded, "max_tokens")->valueint);
  const char *arguments[MAX_ARGUMENTS] = {
      "--threads",    threads,    "--compute",    "float32",  "--cache-format", "float32", "--batch-invariant",
      "--block-size", block_size, "--max-tokens", max_tokens, "--cache-blocks", blocks};
  size_t count = 13;
  for (int i = 0; i < s.count; i++) {
    arguments[count++] = "--prompt";
    arguments[count++] = s.texts[i];
  }
  if (!shares) {
    arguments[count++] = "--no-prefix-cache";
  }
  cJSON *answer = run_lm(arguments);
  check_answer(&s, answer);
  assert_true(shares == (number(answer, "shared_blocks") > 0));
  assert_true(number(answer, "blocks_in_use") == 0);
  assert_true(quarter || number(answer, "preemptions") == 0);
  assert_true(!quarter || !shares || (number(answer, "preemptions") > 0 && number(answer, "recomputed_tokens") > 0));
  assert_true(number(answer, "resumes") == number(answer, "preemptions"));
  assert_true(number(answer, "peak_blocks") <= number(answer, "cache_blocks"));
  cJSON_Delete(answer);
  for (int i = 0; i < s.count; i++) {
    free(s.texts[i]);
  }
}

static void test_quarter_of_the_blocks(void **state) {
  (void)state;
  check_serving("2", true, true);
}

static void test_quarter_of_the_blocks_one_thread(void **state) {
  (void)state;
  check_serving("1", true, true);
}

static void test_nothing_shared(void **state) {
  (void)state;
  check_serving("2", true, false);
}

static void test_blocks_for_all(void **state) {
  (void)state;
  check_serving("2", false, true);
}

static cJSON *parse(const char *path) {
  size_t length = 0;
  char *text = read_file(path, &length);
  cJSON *parsed = cJSON_ParseWithLength(text, length);
  free(text);
  return parsed;
}

static int set_up(void **state) {
  (void)state;
  source = parse(ATTN_GOLDEN_DIR "/serving/prompts.json");
  recorded = parse(ATTN_GOLDEN_DIR "/serving/serving.json");
  return source != NULL && recorded != NULL ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  cJSON_Delete(source);
  cJSON_Delete(recorded);
  return 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest quick[] = {cmocka_unit_test(test_quarter_of_the_blocks)};
  const struct CMUnitTest all[] = {cmocka_unit_test(test_quarter_of_the_blocks),
                                   cmocka_unit_test(test_quarter_of_the_blocks_one_thread),
                                   cmocka_unit_test(test_nothing_shared), cmocka_unit_test(test_blocks_for_all)};
  whole = argc > 1 && strcmp(argv[1], "all") == 0;
  return whole ? cmocka_run_group_tests(all, set_up, tear_down) : cmocka_run_group_tests(quick, set_up, tear_down);
}
