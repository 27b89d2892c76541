/* SPDX-License-Identifier: Apache-2.0 */
/* The table of docs/testing.md and the tests case_NNN_... of this folder name each other, both ways. */
#define _POSIX_C_SOURCE 200809L
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static const char *const files[] = {
    "test_cases_bytes.c",       "test_cases_empty.c",        "test_cases_split.c",        "test_cases_lse.c",
    "test_cases_mask.c",        "test_cases_bias.c",         "test_cases_heads.c",        "test_cases_numerics.c",
    "test_cases_selector.c",    "test_cases_quantised.c",    "test_cases_writes.c",       "test_cases_rows.c",
    "test_cases_repeats.c",     "test_cases_latent.c",       "test_cases_latent_bytes.c", "test_cases_latent_writes.c",
    "test_cases_latent_mask.c", "test_cases_latent_state.c", "test_mla_invariant.c"};
enum { FILES = sizeof files / sizeof files[0] };

/* A file of the source tree as a string; ctest gives the tree's place in ATTN_SOURCE_DIR. */
static char *read_text(const char *folder, const char *name) {
  const char *root = getenv("ATTN_SOURCE_DIR");
  char path[1024];
  CHECK(root != NULL, "ATTN_SOURCE_DIR is not set: run this test by ctest");
  snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
  FILE *file = fopen(path, "rb");
  CHECK(file != NULL, "%s cannot be opened", path);
  char *text = calloc(1, 1 << 20);
  CHECK(text != NULL && fread(text, 1, (1 << 20) - 1, file) > 0, "%s cannot be read", path);
  fclose(file);
  return text;
}

/* Copy the identifier at `at`. */
static void identifier(const char *at, char name[96]) {
  size_t n = 0;
  while (n < 95 && (isalnum((unsigned char)at[n]) || at[n] == '_')) {
    name[n] = at[n];
    n++;
  }
  name[n] = 0;
}

static void every_test_is_in_the_table(void **state) {
  char *table = read_text("docs", "testing.md");
  (void)state;
  for (int i = 0; i < FILES; i++) {
    char *source = read_text("tests/api", files[i]);
    int found = 0;
    for (const char *at = source; (at = strstr(at, "cmocka_unit_test(case_")) != NULL; at++, found++) {
      char name[96];
      char row[256];
      identifier(strchr(at, '(') + 1, name);
      snprintf(row, sizeof row, "| `%s` | `%s` |", files[i], name);
      CHECK(strstr(table, row) != NULL, "docs/testing.md lacks the row of %s in %s", name, files[i]);
      snprintf(row, sizeof row, "\n| %d | ", atoi(name + 5));
      CHECK(strstr(table, row) != NULL, "docs/testing.md has no case %d", atoi(name + 5));
    }
    CHECK(found > 0, "%s has no case", files[i]);
    free(source);
  }
  free(table);
}

static void every_row_is_a_test(void **state) {
  char *table = read_text("docs", "testing.md");
  int rows = 0;
  (void)state;
  for (const char *at = table; (at = strstr(at, "| `case_")) != NULL; at++, rows++) {
    char name[96];
    char call[128];
    int found = 0;
    identifier(at + 3, name);
    snprintf(call, sizeof call, "cmocka_unit_test(%s)", name);
    for (int i = 0; i < FILES; i++) {
      char *source = read_text("tests/api", files[i]);
      found += strstr(source, call) != NULL;
      free(source);
    }
    CHECK(found == 1, "%s of docs/testing.md is in %d files", name, found);
  }
  CHECK(rows >= 60, "the table has %d rows", rows);
  free(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_test_is_in_the_table),
      cmocka_unit_test(every_row_is_a_test),
  };
  return cmocka_run_group_tests_name("case_table", tests, NULL, NULL);
}
