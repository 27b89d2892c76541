/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands say of themselves: every --help has its purpose, use, flags, two examples and exit status; a flag
   stands there exactly where the parser takes it; and what --json prints is JSON with the names that --help lists. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <cjson/cJSON.h>

#include "command_fixture.h"

enum { MAX_FLAGS = 64, FLAG_BYTES = 40, PAGE_BYTES = 65536 };

typedef struct page {
  const char *variable; /* of the program's path */
  const char *command;
  const char *unknown; /* what the refusal of a flag says that it does not have */
  char text[PAGE_BYTES];
  char flags[MAX_FLAGS][FLAG_BYTES];
  size_t num_flags;
} page;

static fixture fix;
static char *attn_path;
static page pages[] = {
    {.variable = "ATTN_BIN", .command = "info", .unknown = "is not a flag of this command"},
    {.variable = "ATTN_BIN", .command = "explain", .unknown = "is not a flag of this command"},
    {.variable = "ATTN_BIN", .command = "run", .unknown = "is not a flag of this command"},
    {.variable = "ATTN_BIN", .command = "check", .unknown = "unknown argument"},
    {.variable = "ATTN_BIN", .command = "bench", .unknown = "is not a flag of this command"},
    {.variable = "ATTN_LM_BIN", .command = "generate", .unknown = "unknown argument"},
    {.variable = "ATTN_LM_BIN", .command = "chat", .unknown = "unknown argument"},
    {.variable = "ATTN_LM_BIN", .command = "perplexity", .unknown = "unknown argument"},
    {.variable = "ATTN_LM_BIN", .command = "bench", .unknown = "unknown argument"},
};

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* The fixture runs what ATTN_BIN names. */
static void choose(const page *p) {
  const char *path = strcmp(p->variable, "ATTN_BIN") == 0 ? attn_path : getenv(p->variable);
  assert_non_null(path);
  assert_int_equal(setenv("ATTN_BIN", path, 1), 0);
}

/* Lines of two blanks and a dash: "  --flag VALUE   text". */
static void take_flags(page *p) {
  p->num_flags = 0;
  for (const char *line = p->text; line != NULL; line = strchr(line, '\n')) {
    line += *line == '\n';
    if (strncmp(line, "  -", 3) == 0) {
      assert_true(p->num_flags < MAX_FLAGS);
      (void)snprintf(p->flags[p->num_flags++], FLAG_BYTES, "%.*s", (int)strcspn(line + 2, " \n"), line + 2);
    }
  }
  assert_true(p->num_flags > 1);
}

static int set_up(void **state) {
  (void)state;
  attn_path = getenv("ATTN_BIN") != NULL ? strdup(getenv("ATTN_BIN")) : NULL;
  if (!fixture_open(&fix)) {
    return -1;
  }
  for (size_t i = 0; i < COUNT_OF(pages); i++) {
    choose(&pages[i]);
    fixture_run(&fix, pages[i].command, "--help", NULL);
    memcpy(pages[i].text, fix.out, sizeof(pages[i].text));
    take_flags(&pages[i]);
  }
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  fixture_close(&fix);
  free(attn_path);
  return 0;
}

static void test_pages(void **state) {
  (void)state;
  static const char *const parts[] = {"Usage:\n", "Flags:\n", "Examples:\n", "Exit status: 0", "  --help"};
  for (size_t i = 0; i < COUNT_OF(pages); i++) {
    for (size_t j = 0; j < COUNT_OF(parts); j++) {
      if (strstr(pages[i].text, parts[j]) == NULL) {
        fail_msg("%s --help lacks '%s'", pages[i].command, parts[j]);
      }
    }
    const char *title = strchr(pages[i].text, ':');
    assert_true(title != NULL && title < strchr(pages[i].text, '\n'));
    size_t examples = 0;
    const char *end = strstr(pages[i].text, "Exit status: 0");
    for (const char *at = strstr(pages[i].text, "Examples:\n"); (at = strstr(at, "\n  ")) != NULL && at < end; at++) {
      const char *command = strstr(at, "attn");
      examples += at[3] != ' ' && command != NULL && command < strchr(at + 1, '\n');
    }
    if (examples < 2) {
      fail_msg("%s --help has %zu examples", pages[i].command, examples);
    }
    for (const char *line = pages[i].text; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
      line += *line == '\n';
      if (strcspn(line, "\n") > 120) {
        fail_msg("%s --help has a line of more than 120 characters: %.130s", pages[i].command, line);
      }
    }
  }
}

static int has_flag(const page *p, const char *flag) {
  for (size_t i = 0; i < p->num_flags; i++) {
    if (strcmp(p->flags[i], flag) == 0) {
      return 1;
    }
  }
  return 0;
}

/* Whether an earlier page of the same program has the flag too. */
static int met_before(size_t page_index, const char *flag) {
  for (size_t i = 0; i < page_index; i++) {
    if (strcmp(pages[i].variable, pages[page_index].variable) == 0 && has_flag(&pages[i], flag)) {
      return 1;
    }
  }
  return 0;
}

static void try_flag(const page *p, const char *flag) {
  choose(p);
  fixture_run(&fix, p->command, flag, "--no-such-flag", NULL);
  const int unknown =
      strstr(fix.err, flag) != NULL && strstr(fix.err, p->unknown) != NULL && strstr(fix.err, "--no-such-flag") == NULL;
  if (unknown == has_flag(p, flag)) {
    fail_msg("%s %s: the parser and --help differ: %s", p->command, flag, fix.err);
  }
}

/* Each flag of any page of a program, given to each of its commands with a word behind it that no flag takes. */
static void test_flags_and_parser_agree(void **state) {
  (void)state;
  for (size_t j = 0; j < COUNT_OF(pages); j++) {
    for (size_t k = 0; k < pages[j].num_flags; k++) {
      for (size_t i = 0; i < COUNT_OF(pages) && !met_before(j, pages[j].flags[k]); i++) {
        if (strcmp(pages[i].variable, pages[j].variable) == 0) {
          try_flag(&pages[i], pages[j].flags[k]);
        }
      }
    }
  }
}

/* Every name of the object, at any depth, stands in the help. */
static void expect_names(const cJSON *value, const page *p) {
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, value) {
    if (item->string != NULL && strstr(p->text, item->string) == NULL) {
      fail_msg("%s --help does not name %s", p->command, item->string);
    }
    expect_names(item, p);
  }
}

static cJSON *answer_of(const page *p, char *const *arguments) {
  choose(p);
  fixture_run_list(&fix, arguments);
  assert_int_equal(fix.status, 0);
  assert_string_equal(fix.err, "");
  cJSON *answer = cJSON_Parse(fix.out);
  if (answer == NULL) {
    fail_msg("%s %s: no JSON: %.400s", p->command, arguments[1], fix.out);
  }
  expect_names(answer, p);
  return answer;
}

static const cJSON *item(const cJSON *object, const char *name) {
  return cJSON_GetObjectItemCaseSensitive(object, name);
}

static void test_json_of_info(void **state) {
  (void)state;
  char *info[] = {"info", "--json", NULL};
  cJSON *answer = answer_of(&pages[0], info);
  assert_string_equal(item(answer, "device")->valuestring, "cpu");
  assert_string_equal(cJSON_GetArrayItem(item(answer, "levels"), 0)->valuestring, "generic");
  assert_true(cJSON_GetArraySize(item(answer, "kernels")) > 3);
  cJSON_Delete(answer);
  char *matrix[] = {"info", "--matrix", "--json", NULL};
  answer = answer_of(&pages[0], matrix);
  const int backends = cJSON_GetArraySize(item(answer, "backends"));
  const cJSON *row = NULL;
  int yes = 0;
  int no = 0;
  cJSON_ArrayForEach(row, item(answer, "rows")) {
    assert_int_equal(cJSON_GetArraySize(item(row, "serves")), backends);
    yes += cJSON_IsTrue(cJSON_GetArrayItem(item(row, "serves"), 0));
    no += cJSON_IsFalse(cJSON_GetArrayItem(item(row, "serves"), 0));
  }
  assert_true(yes > 10 && no > 0 && yes + no == cJSON_GetArraySize(item(answer, "rows")));
  cJSON_Delete(answer);
}

static void test_json_of_explain(void **state) {
  (void)state;
  char query[] = "q=F32[5,4,8]";
  char *arguments[] = {"explain",
                       "op=attention",
                       query,
                       "k_cache=F32[6,4,2,8]",
                       "v_cache=F32[6,4,2,8]",
                       "block_table=I32[2,2]",
                       "seq_lens=I32[2]=5",
                       "query_start_loc=I32[3]=0,2,5",
                       "--json",
                       NULL};
  cJSON *answer = answer_of(&pages[1], arguments);
  assert_string_equal(item(answer, "pick")->valuestring, "CPU_ATTN");
  assert_true(item(answer, "workspace_bytes")->valuedouble > 0);
  assert_true(cJSON_GetArraySize(item(answer, "backends")) > 10);
  cJSON_Delete(answer);
  char *write[] = {"explain",
                   "op=cache_write",
                   "k=F32[3,2,8]",
                   "v=F32[3,2,8]",
                   "k_cache=F32[4,4,2,8]",
                   "v_cache=F32[4,4,2,8]",
                   "slot_mapping=I64[3]",
                   "--json",
                   "--backend",
                   "REFERENCE",
                   NULL};
  answer = answer_of(&pages[1], write);
  assert_string_equal(item(answer, "pick")->valuestring, "REFERENCE");
  cJSON_Delete(answer);
}

/* Entries in words: one for all, one each, and what is refused. */
static void test_entries_in_words(void **state) {
  (void)state;
  static const char *const bad[] = {"seq_lens=I32[2]=",    "seq_lens=I32[2]=1,2,3", "seq_lens=I32[3]=1,2",
                                    "seq_lens=I32[2]=1,",  "seq_lens=I32[2]=a",     "seq_lens=I32[2]=2147483648",
                                    "seq_lens=F32[2]=1,2", "seq_lens=I32[0]=1",     "seq_lens=I32[2]x"};
  choose(&pages[1]);
  for (size_t i = 0; i < COUNT_OF(bad); i++) {
    fixture_run(&fix, "explain", "op=attention", "q=F32[5,4,8]", bad[i], NULL);
    if (fix.status != 2 || !fixture_one_line(&fix) || strstr(fix.err, "seq_lens") == NULL) {
      fail_msg("%s: status %d: %s", bad[i], fix.status, fix.err);
    }
  }
  fixture_run(&fix, "explain", "op=attention", "q=F32[5,4,8]", "k_cache=F32[6,4,2,8]", "v_cache=F32[6,4,2,8]",
              "block_table=I32[2,2]", "seq_lens=I32[2]=5", "query_start_loc=I32[3]=0,2,9", NULL);
  assert_int_equal(fix.status, 2); /* the entries are looked at */
  assert_non_null(strstr(fix.err, "query_start_loc ends at 9"));
}

static void test_json_of_describe(void **state) {
  (void)state;
  char *arguments[] = {"run", "--describe", "--json", NULL};
  choose(&pages[2]);
  fixture_run_list(&fix, arguments);
  cJSON *answer = cJSON_Parse(fix.out);
  assert_non_null(answer);
  assert_true(cJSON_GetArraySize(item(answer, "operations")) >= 4);
  const cJSON *key = cJSON_GetArrayItem(item(answer, "keys"), 0);
  assert_string_equal(item(key, "name")->valuestring, "op");
  assert_true(cJSON_GetArraySize(item(answer, "tensors")) > 20 && cJSON_GetArraySize(item(answer, "results")) > 3);
  cJSON_Delete(answer);
  fixture_run(&fix, "run", "in.safetensors", "-o", "out.safetensors", "--json", NULL);
  assert_int_equal(fix.status, 2);
  assert_true(fixture_one_line(&fix) && strstr(fix.err, "--json") != NULL);
}

static void test_json_of_check(void **state) {
  (void)state;
  char *arguments[] = {"check", "--cases", "12", "--jobs", "1", "--json", NULL};
  cJSON *answer = answer_of(&pages[3], arguments);
  assert_true(item(answer, "cases")->valuedouble == 12 && item(answer, "failed")->valuedouble == 0);
  assert_true(cJSON_IsTrue(item(answer, "complete")));
  assert_int_equal(cJSON_GetArraySize(item(answer, "failures")), 0);
  const cJSON *backend = NULL;
  cJSON_ArrayForEach(backend, item(answer, "backends")) {
    assert_true(item(backend, "worst_out")->valuedouble > 0 && item(backend, "worst_out")->valuedouble <= 1);
  }
  cJSON_Delete(answer);
  char *merges[] = {"check",  "--cases", "6",      "--with", "op=merge", "--with", "parts=17",
                    "--with", "parts=5", "--jobs", "1",      "--json",   NULL};
  answer = answer_of(&pages[3], merges);
  assert_true(item(answer, "cases")->valuedouble == 6 && item(answer, "failed")->valuedouble == 0);
  cJSON_ArrayForEach(backend, item(answer, "backends")) {
    assert_true(item(backend, "worst_out")->valuedouble == 0 && item(backend, "worst_merge_out")->valuedouble > 0);
  }
  cJSON_Delete(answer);
  fixture_run(&fix, "check", "--list-options", "--json", NULL);
  answer = cJSON_Parse(fix.out);
  assert_non_null(answer);
  assert_true(cJSON_GetArraySize(item(answer, "options")) > 30 && cJSON_GetArraySize(item(answer, "exclusions")) > 5);
  cJSON_Delete(answer);
}

static void test_json_of_bench(void **state) {
  (void)state;
  char *arguments[] = {
      "bench", "op=cache_copy", "k_cache=F32[9,4,2,8]", "block_map=I64[7,2]", "--json", "--rounds", "1", NULL};
  cJSON_Delete(answer_of(&pages[4], arguments));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pages),
      cmocka_unit_test(test_flags_and_parser_agree),
      cmocka_unit_test(test_json_of_info),
      cmocka_unit_test(test_json_of_explain),
      cmocka_unit_test(test_entries_in_words),
      cmocka_unit_test(test_json_of_describe),
      cmocka_unit_test(test_json_of_check),
      cmocka_unit_test(test_json_of_bench),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
