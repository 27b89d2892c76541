/* SPDX-License-Identifier: Apache-2.0 */
/* The table of formats (core/format.h) against the public list, against sizes worked out by hand, and against the table
   of docs/layouts.md, which is its text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/format.h"
#include "harness.h"

static void every_format_has_its_facts(void **state) {
  static const struct {
    attn_format format;
    attn_dtype storage;
  } list[] = {
#define ROW(name, value, spelling, storage, rows) {name, storage},
      ATTN_FORMAT_LIST(ROW)
#undef ROW
  };
  (void)state;
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    const attn_format_facts *facts = attn_format_of(list[i].format);
    assert_non_null(facts);
    assert_int_equal(facts->format, list[i].format);
    assert_int_equal(attn_format_storage(list[i].format), list[i].storage);
    assert_true((facts->dtypes & ATTN_DTYPE_BIT(list[i].storage)) != 0);
    attn_format told = attn_format_of_dtype(list[i].storage);
    assert_int_equal(told, list[i].storage == ATTN_DTYPE_UINT8 ? ATTN_FORMAT_AUTO : list[i].format);
  }
  assert_null(attn_format_of(ATTN_FORMAT_AUTO));
  assert_null(attn_format_of((attn_format)10));
  assert_int_equal(attn_format_of_dtype(ATTN_DTYPE_INT32), ATTN_FORMAT_AUTO);
}

static void sizes(void **state) {
  static const struct {
    attn_format format;
    int64_t size, codes, scale_at, inline_row, separate_row;
  } rows[] = {
      {ATTN_FORMAT_FLOAT32, 17, 68, 68, 17, 17},
      {ATTN_FORMAT_BFLOAT16, 17, 34, 36, 17, 17},
      {ATTN_FORMAT_FP8_E4M3, 17, 17, 20, 17, 17},
      {ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 0, 0, 0, 4, 0},
      {ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 1, 1, 4, 8, 1},
      {ATTN_FORMAT_FP8_PER_TOKEN_HEAD, 128, 128, 128, 132, 128},
      {ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 65, 33, 36, 40, 33},
      {ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 66, 33, 36, 40, 33},
      {ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 128, 64, 64, 68, 64},
      {ATTN_FORMAT_INT4_PER_TOKEN_HEAD, INT64_MAX, INT64_MAX / 2 + 1, INT64_MAX / 2 + 1, INT64_MAX / 2 + 5,
       INT64_MAX / 2 + 1},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const attn_format_facts *facts = attn_format_of(rows[i].format);
    assert_int_equal(attn_format_code_bytes(facts, rows[i].size), rows[i].codes);
    assert_int_equal(attn_format_scale_offset(facts, rows[i].size), rows[i].scale_at);
    assert_int_equal(attn_format_row_extent(facts, rows[i].size, 0), rows[i].inline_row);
    assert_int_equal(attn_format_row_extent(facts, rows[i].size, 1), rows[i].separate_row);
  }
}

static void separate_scales(void **state) {
  static const int k[] = {0, 1, 1, 0}, v[] = {0, 1, 0, 1};
  (void)state;
  for (int32_t i = ATTN_SEPARATE_NONE; i <= ATTN_SEPARATE_V; i++) {
    assert_int_equal(attn_format_is_separate(i, 0), k[i]);
    assert_int_equal(attn_format_is_separate(i, 1), v[i]);
  }
}

static char *read_file(const char *name) {
  char path[512];
  const char *root = getenv("ATTN_SOURCE_DIR");
  CHECK(root != NULL, "ATTN_SOURCE_DIR is not set: run this test by ctest");
  (void)snprintf(path, sizeof path, "%s/%s", root, name);
  FILE *file = fopen(path, "rb");
  CHECK(file != NULL, "%s cannot be read", path);
  char *text = calloc(1, 1 << 20);
  assert_non_null(text);
  CHECK(fread(text, 1, (1 << 20) - 1, file) > 0, "%s is empty", path);
  (void)fclose(file);
  return text;
}

static void the_documented_table(void **state) {
  char types[64], line[400];
  char *text = read_file("docs/layouts.md");
  (void)state;
  char *at = strstr(text, "<!-- formats:begin");
  assert_non_null(at);
  at = strstr(at, "|---|---|---|---|\n");
  assert_non_null(at);
  at = strchr(at, '\n') + 1;
  for (int f = ATTN_FORMAT_FLOAT32; f <= ATTN_FORMAT_FP8_DS_MLA; f++) {
    const attn_format_facts *facts = attn_format_of((attn_format)f);
    attn_format_type_words(facts, types);
    (void)snprintf(line, sizeof line, "| `%s` | %s | %s | %s |\n", attn_format_name((attn_format)f), types, facts->row,
                   attn_format_scale_words(facts));
    CHECK(strncmp(at, line, strlen(line)) == 0, "docs/layouts.md should have: %s", line);
    at += strlen(line);
  }
  CHECK(strncmp(at, "\n<!-- formats:end -->", 21) == 0, "docs/layouts.md has a line too many");
  at = strstr(text, "<!-- latent:begin");
  assert_non_null(at);
  at = strstr(at, "|---|---|\n");
  assert_non_null(at);
  at = strchr(at, '\n') + 1;
  for (int f = ATTN_FORMAT_FLOAT32; f <= ATTN_FORMAT_FP8_DS_MLA; f++) {
    const attn_format_facts *facts = attn_format_of((attn_format)f);
    (void)snprintf(line, sizeof line, "| `%s` | %s |\n", attn_format_name((attn_format)f),
                   facts->latent_row != NULL ? facts->latent_row : "none");
    CHECK(strncmp(at, line, strlen(line)) == 0, "docs/layouts.md should have: %s", line);
    CHECK((facts->latent_row != NULL) == attn_format_serves((attn_format)f, ATTN_ROWS_LATENT), "%s", line);
    at += strlen(line);
  }
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_format_has_its_facts),
      cmocka_unit_test(sizes),
      cmocka_unit_test(separate_scales),
      cmocka_unit_test(the_documented_table),
  };
  return cmocka_run_group_tests_name("format", tests, NULL, NULL);
}
