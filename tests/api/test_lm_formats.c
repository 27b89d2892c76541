/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats of attn-lm's cache from the command line, on a small random model: every name and pairs of them in every
 * command, texts that do not depend on the size of the cache, the list of --all-formats against runs of one format
 * each, static scales of the first window, refusals. test_lm_schedule has all pairs; what a format costs a real model
 * is measured by scripts/check-long.sh.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <math.h>

#include "command_fixture.h"
#include "tiny_model.h"

#define HEADS 2 /* of K and V, of 8 elements */
#define TEXT 1100

static fixture fix;
static char model[300];
static char loud_model[300];
static char text_path[300];

static cJSON *parse_answer(void) {
  if (fix.status != 0) {
    fail_msg("status %d: %s", fix.status, fix.err);
  }
  cJSON *answer = cJSON_Parse(fix.out);
  if (answer == NULL) {
    fail_msg("no JSON: %s", fix.out);
  }
  return answer;
}

static double number(const cJSON *object, const char *name) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
  if (!cJSON_IsNumber(item)) {
    fail_msg("%s is no number", name);
  }
  return item->valuedouble;
}

static const char *string(const cJSON *object, const char *name) {
  const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
  if (text == NULL) {
    fail_msg("%s is no string", name);
  }
  return text;
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

typedef struct spelling {
  const char *given;
  const char *shown; /* NULL: as given */
  int bytes;         /* of the rows of K and V of 8 elements, scales included */
} spelling;

static const spelling spellings[] = {
    {"float32", NULL, 64},
    {"float16", NULL, 32},
    {"bfloat16", NULL, 32},
    {"fp8_e4m3", NULL, 16},
    {"fp8_e5m2", NULL, 16},
    {"int8_per_token_head", NULL, 24},
    {"fp8_per_token_head", NULL, 24},
    {"int4_per_token_head", NULL, 16},
    {"int8_per_token_head+separate_scales", NULL, 24},
    {"int4_per_token_head+separate_scales", NULL, 16},
    {"int8_per_token_head,int4_per_token_head", NULL, 20},
    {"int8_per_token_head,int8_per_token_head", "int8_per_token_head", 24},
    {"int4_per_token_head+separate_scales,int4_per_token_head", NULL, 16},
    {"int4_per_token_head,int4_per_token_head+separate_scales", NULL, 16},
    {"float32,fp8_e4m3", NULL, 40},
    {"fp8_e5m2,fp8_per_token_head+separate_scales", NULL, 20},
};

/* The bytes that were taken are those of the rows; the text is the same wherever its scales lie. */
static void test_names(void **state) {
  (void)state;
  char *inline_text = NULL;
  for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
    const spelling *s = &spellings[i];
    fixture_run(&fix, "generate", "--model", model, "--compute", "float32", "--threads", "1", "--max-tokens", "24",
                "--json", "--prompt", "hello", "--block-size", "16", "--cache-format", s->given, NULL);
    cJSON *answer = parse_answer();
    assert_string_equal(string(answer, "cache_format"), s->shown != NULL ? s->shown : s->given);
    const double positions = (number(answer, "cache_blocks") + 1) * 16; /* the null block too */
    assert_true(number(answer, "cache_bytes") == TINY_LAYERS * HEADS * positions * s->bytes);
    const cJSON *prompt = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(answer, "prompts"), 0);
    char *text = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(prompt, "continuation"));
    assert_non_null(text);
    if (strcmp(s->given, "int4_per_token_head") == 0) {
      inline_text = text;
    } else {
      if (strncmp(s->given, "int4_", 5) == 0) {
        assert_string_equal(text, inline_text);
      }
      free(text);
    }
    cJSON_Delete(answer);
  }
  free(inline_text);
}

static void test_other_commands(void **state) {
  (void)state;
  static const char pair[] = "fp8_per_token_head,int4_per_token_head+separate_scales";
  fixture_run(&fix, "bench", "--model", model, "--lengths", "9", "--repeat", "1", "--json", "--cache-format", pair,
              NULL);
  cJSON *answer = parse_answer();
  assert_string_equal(string(answer, "cache_format"), pair);
  cJSON_Delete(answer);
  char path[300];
  fixture_path(&fix, "input", path, sizeof path);
  assert_true(fixture_write(path, "hi\nyou\n", 7));
  assert_non_null(freopen(path, "rb", stdin));
  fixture_run(&fix, "chat", "--model", model, "--max-tokens", "8", "--cache-format", pair, NULL);
  assert_int_equal(fix.status, 0);
  assert_true(fix.out[0] != '\0');
  static const char *const commands[] = {"generate", "chat", "perplexity", "bench"};
  for (size_t i = 0; i < 4; i++) {
    fixture_run(&fix, commands[i], "--help", NULL);
    assert_int_equal(fix.status, 0);
    static const char *const names[] = {"float32",
                                        "float16",
                                        "bfloat16",
                                        "fp8_e4m3",
                                        "fp8_e5m2",
                                        "int8_per_token_head",
                                        "fp8_per_token_head",
                                        "int4_per_token_head"};
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
      assert_non_null(strstr(fix.out, names[n]));
    }
    assert_non_null(strstr(fix.out, "+separate_scales"));
    assert_true((strstr(fix.out, "--all-formats") != NULL) == (i == 2));
    assert_true((strstr(fix.out, "--kv-scales") != NULL) == (i == 2));
  }
}

/* ---- Small caches ------------------------------------------------------------------------------------------------ */

/* The texts of five prompts in a cache of so many blocks. free() them. */
static char *texts_with(const char *format, const char *blocks, bool preempts) {
  fixture_run(&fix, "generate", "--model", model, "--compute", "float32", "--max-tokens", "24", "--json",
              "--batch-invariant", "--temperature", "1.5", "--seed", "7", "--block-size", "8", "--cache-blocks", blocks,
              "--cache-format", format, "--prompt", "a prefix that they share: one", "--prompt",
              "a prefix that they share: two", "--prompt", "a prefix that they share: one", "--prompt", "hello",
              "--prompt", "a prefix that they share", NULL);
  cJSON *answer = parse_answer();
  assert_true((number(answer, "preemptions") > 0) == preempts);
  assert_true(number(answer, "shared_blocks") > 0 && number(answer, "blocks_in_use") == 0);
  cJSON *all = cJSON_CreateArray();
  const cJSON *prompt = NULL;
  cJSON_ArrayForEach(prompt, cJSON_GetObjectItemCaseSensitive(answer, "prompts")) {
    assert_true(
        cJSON_AddItemToArray(all, cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(prompt, "continuation"), 1)));
  }
  assert_int_equal(cJSON_GetArraySize(all), 5);
  char *text = cJSON_PrintUnformatted(all);
  assert_non_null(text);
  cJSON_Delete(all);
  cJSON_Delete(answer);
  return text;
}

static void test_preemption(void **state) {
  (void)state;
  static const char *const formats[] = {"int4_per_token_head", "int8_per_token_head,int4_per_token_head",
                                        "int4_per_token_head+separate_scales"};
  char *first = NULL;
  for (size_t i = 0; i < 3; i++) {
    char *expected = texts_with(formats[i], "60", false);
    char *found = texts_with(formats[i], "9", true);
    assert_string_equal(found, expected);
    if (i == 2) {
      assert_string_equal(found, first);
    }
    if (i == 0) {
      first = found;
    } else {
      free(found);
    }
    free(expected);
  }
  free(first);
}

/* ---- All formats ------------------------------------------------------------------------------------------------- */

static const char *const listed[] = {"float32",
                                     "float16",
                                     "bfloat16",
                                     "fp8_e4m3",
                                     "fp8_e5m2",
                                     "int8_per_token_head",
                                     "fp8_per_token_head",
                                     "int4_per_token_head",
                                     "int8_per_token_head,int4_per_token_head",
                                     "int4_per_token_head,int8_per_token_head",
                                     "fp8_per_token_head,int4_per_token_head",
                                     "float32,int4_per_token_head",
                                     "int4_per_token_head,float32"};
static const int listed_bytes[] = {64, 32, 32, 16, 16, 24, 24, 16, 20, 20, 20, 40, 40};

enum { LISTED = sizeof listed / sizeof listed[0] };

/* The row of a format in the list just printed. */
static const cJSON *row_of(const cJSON *list, const char *format) {
  const cJSON *row = NULL;
  cJSON_ArrayForEach(row, list) {
    if (strcmp(string(row, "format"), format) == 0) {
      return row;
    }
  }
  fail_msg("%s is not in the list", format);
  return NULL;
}

static double perplexity_of(const char *file, const char *format, const char *scales) {
  fixture_run(&fix, "perplexity", "--model", file, "--file", text_path, "--json", "--compute", "float32", "--threads",
              "1", "--cache-format", format, "--kv-scales", scales, NULL);
  cJSON *answer = parse_answer();
  assert_string_equal(string(answer, "cache_format"), format);
  assert_string_equal(string(answer, "kv_scales"), scales);
  const double found = number(answer, "perplexity");
  cJSON_Delete(answer);
  return found;
}

static cJSON *list_of(const char *file, const char *scales) {
  fixture_run(&fix, "perplexity", "--model", file, "--file", text_path, "--all-formats", "--json", "--kv-scales",
              scales, "--threads", "1", NULL);
  cJSON *list = parse_answer();
  assert_true(cJSON_IsArray(list));
  return list;
}

static double plain_kl = 0; /* of fp8_e4m3, with small rows */

static void test_all_formats(void **state) {
  (void)state;
  cJSON *list = list_of(model, "1");
  assert_int_equal(cJSON_GetArraySize(list), LISTED);
  for (int i = 0; i < LISTED; i++) {
    const cJSON *row = cJSON_GetArrayItem(list, i);
    assert_int_equal(cJSON_GetArraySize(row), 5);
    assert_string_equal(string(row, "format"), listed[i]);
    assert_true(number(row, "bytes_per_token") == TINY_LAYERS * HEADS * listed_bytes[i]);
    assert_true(number(row, "perplexity") > 1);
    const double agree = number(row, "agree");
    assert_true(agree == floor(agree) && agree > 128 && agree <= 256);
    assert_true(i == 0 ? number(row, "kl") == 0 && agree == 256 : number(row, "kl") > 0 && number(row, "kl") < 1);
  }
  plain_kl = number(row_of(list, "fp8_e4m3"), "kl");
  /* More bits, less divergence; a pair lies between its halves. */
  static const char *const rising[] = {"float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"};
  for (int i = 0; i + 1 < 4; i++) {
    assert_true(number(row_of(list, rising[i]), "kl") < number(row_of(list, rising[i + 1]), "kl"));
  }
  assert_true(number(row_of(list, "float32,int4_per_token_head"), "kl") <
              number(row_of(list, "int4_per_token_head"), "kl"));
  /* As measured one by one. */
  static const char *const single[] = {"float32", "int8_per_token_head,int4_per_token_head"};
  for (int i = 0; i < 2; i++) {
    const double expected = number(row_of(list, single[i]), "perplexity");
    assert_true(fabs(perplexity_of(model, single[i], "1") / expected - 1) < 1e-7);
  }
  cJSON_Delete(list);
}

/* A model whose rows are beyond the codes without scales, in one layer and head. */
static void test_scales(void **state) {
  (void)state;
  double kl[2];
  double perplexity[2][2];
  cJSON *list = list_of(loud_model, "both");
  assert_int_equal(cJSON_GetArraySize(list), LISTED + 2);
  const int first = 3;
  for (int i = 0; i < 2; i++) {
    const cJSON *e4m3 = cJSON_GetArrayItem(list, first + i);
    const cJSON *e5m2 = cJSON_GetArrayItem(list, first + 2 + i);
    assert_string_equal(string(e4m3, "format"), "fp8_e4m3");
    assert_string_equal(string(e5m2, "format"), "fp8_e5m2");
    assert_string_equal(string(e4m3, "kv_scales"), i == 0 ? "1" : "auto");
    assert_string_equal(string(e5m2, "kv_scales"), i == 0 ? "1" : "auto");
    kl[i] = number(e4m3, "kl");
    perplexity[i][0] = number(e4m3, "perplexity");
    perplexity[i][1] = number(e5m2, "perplexity");
  }
  assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(row_of(list, "float16"), "perplexity")));
  assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(row_of(list, "float16"), "kl")));
  cJSON_Delete(list);
  if (!(kl[0] > 10 * kl[1])) {
    fail_msg("kl %g with scales of 1, %g with those of the first window", kl[0], kl[1]);
  }
  assert_true(plain_kl > 0);
  if (!(kl[1] < 2 * plain_kl)) { /* what codes cost where rows need no scales */
    fail_msg("kl %g with the first window's scales, %g of small rows", kl[1], plain_kl);
  }
  assert_true(fabs(perplexity_of(loud_model, "fp8_e4m3", "1") / perplexity[0][0] - 1) < 1e-7);
  assert_true(fabs(perplexity_of(loud_model, "fp8_e5m2", "auto") / perplexity[1][1] - 1) < 1e-7);
}

/* The table for people, in which a format stands once, with the scales that were asked for. */
static void test_table(void **state) {
  (void)state;
  fixture_run(&fix, "perplexity", "--model", model, "--file", text_path, "--all-formats", "--kv-scales", "auto", NULL);
  assert_int_equal(fix.status, 0);
  const char *at = fix.out;
  for (int i = 0; i < LISTED; i++) {
    char start[80];
    const bool is_static = strncmp(listed[i], "fp8_e", 5) == 0;
    (void)snprintf(start, sizeof start, "\n%-40s %6s %11d ", listed[i], is_static ? "auto" : "",
                   TINY_LAYERS * HEADS * listed_bytes[i]);
    at = strstr(at, start);
    if (at == NULL) {
      fail_msg("\"%s\" is missing, or not in its place, in %s", start + 1, fix.out);
    }
  }
  assert_non_null(strstr(fix.out, "+0.00 %         0 256/256  "));
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

typedef struct refusal {
  const char *command;
  const char *arguments[4];
  const char *words;
} refusal;

#define NAMES                                                                                                          \
  "accepted are K or K,V of float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8_per_token_head, fp8_per_token_head, " \
  "int4_per_token_head, those that end in _per_token_head also with +separate_scales"

static const refusal refusals[] = {
    {"generate", {"--cache-format", "int4"}, "--cache-format is 'int4'; " NAMES},
    {"chat", {"--cache-format", ""}, "--cache-format is ''; " NAMES},
    {"bench", {"--cache-format", "auto"}, "--cache-format is 'auto'; " NAMES},
    {"generate", {"--cache-format", "fp8_ds_mla"}, "--cache-format is 'fp8_ds_mla'; " NAMES},
    {"generate", {"--cache-format", "float32,"}, "--cache-format is 'float32,'; " NAMES},
    {"generate", {"--cache-format", ",float32"}, "--cache-format is ',float32'; " NAMES},
    {"generate", {"--cache-format", "float32,float16,float32"}, NAMES},
    {"generate", {"--cache-format", "fp8_e4m3+separate_scales"}, NAMES},
    {"generate", {"--cache-format", "+separate_scales"}, NAMES},
    {"generate", {"--cache-format", "int8_per_token_head+separate_scales+separate_scales"}, NAMES},
    {"generate", {"--cache-format", "float32, float16"}, NAMES},
    {"generate", {"--all-formats"}, "unknown argument '--all-formats'"},
    {"bench", {"--kv-scales", "auto"}, "unknown argument '--kv-scales'"},
    {"perplexity", {"--kv-scales", "2"}, "--kv-scales is '2'; accepted are 1, auto, both"},
    {"perplexity", {"--kv-scales", "both"}, "--kv-scales is both without --all-formats; accepted are 1, auto"},
    {"perplexity",
     {"--kv-scales", "auto"},
     "--kv-scales auto has no meaning with --cache-format float32; accepted are"},
    {"perplexity",
     {"--kv-scales", "auto", "--cache-format", "int8_per_token_head,float16"},
     "--kv-scales auto has no meaning with --cache-format int8_per_token_head,float16; accepted are fp8_e4m3, "
     "fp8_e5m2"},
    {"perplexity", {"--all-formats", "--cache-format", "float32"}, "--cache-format has no meaning with --all-formats"},
    {"perplexity",
     {"--all-formats", "--compute", "bfloat16"},
     "--compute is bfloat16 with --all-formats; accepted is "},
};

static void test_refusals(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
    const refusal *r = &refusals[i];
    const bool generates = strcmp(r->command, "generate") == 0;
    const bool reads = strcmp(r->command, "perplexity") == 0;
    const char *list[16] = {r->command, "--model", model};
    size_t count = 3;
    if (generates || reads) {
      list[count++] = generates ? "--prompt" : "--file";
      list[count++] = generates ? "x" : text_path;
    }
    for (size_t j = 0; j < 4 && r->arguments[j] != NULL; j++) {
      list[count++] = r->arguments[j];
    }
    fixture_run_list(&fix, (char *const *)(uintptr_t)list);
    if (fix.status != 2 || !fixture_one_line(&fix) || strstr(fix.err, r->words) == NULL || fix.out[0] != '\0') {
      fail_msg("%s %s %s: status %d, \"%s\"; expected 2 and \"%s\"", r->command, r->arguments[0],
               r->arguments[1] != NULL ? r->arguments[1] : "", fix.status, fix.err, r->words);
    }
  }
}

static int set_up(void **state) {
  (void)state;
  const char *program = getenv("ATTN_LM_BIN");
  if (program == NULL || setenv("ATTN_BIN", program, 1) != 0 || !fixture_open(&fix)) {
    return -1;
  }
  char text[TEXT];
  for (size_t i = 0; i < sizeof text; i++) {
    text[i] = (char)('!' + (i * i + 7 * i) % 64); /* no 'a', so that nothing merges */
  }
  fixture_path(&fix, "model.gguf", model, sizeof model);
  fixture_path(&fix, "loud.gguf", loud_model, sizeof loud_model);
  fixture_path(&fix, "text", text_path, sizeof text_path);
  tiny_model_write(model, TINY_PLAIN);
  tiny_model_write_as(loud_model, TINY_PLAIN, true);
  return fixture_write(text_path, text, sizeof text) ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  fixture_close(&fix);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_names),       cmocka_unit_test(test_other_commands), cmocka_unit_test(test_preemption),
      cmocka_unit_test(test_all_formats), cmocka_unit_test(test_scales),         cmocka_unit_test(test_table),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
