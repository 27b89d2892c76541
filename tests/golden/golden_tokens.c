/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer of attn-lm against answers of the `tokenizers` package (tokens/golden_tokens.json): short texts of
 * every awkward kind, and the whole GPL-3, which every Debian system has. Needs the model's file (ATTN_MODEL) for its
 * vocabulary and fails without it.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf.h"
#include "tokenizer.h"

#define GPL3_TEXT "/usr/share/common-licenses/GPL-3"

static gguf_file model;
static tokenizer *tok;

/* The whole file with a NUL behind it; fails the test if it cannot be read. */
static char *read_file(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    fail_msg("%s cannot be opened", path);
  }
  char *bytes = NULL;
  size_t used = 0;
  for (;;) {
    char *grown = realloc(bytes, used + 65537);
    assert_non_null(grown);
    bytes = grown;
    const size_t count = fread(bytes + used, 1, 65536, file);
    used += count;
    if (count == 0) {
      break;
    }
  }
  assert_int_equal(fclose(file), 0);
  bytes[used] = '\0';
  *length = used;
  return bytes;
}

static int set_up(void **state) {
  (void)state;
  const char *path = getenv("ATTN_MODEL");
  if (path == NULL || path[0] == '\0') {
    fprintf(stderr, "ATTN_MODEL does not name the model's file; scripts/fetch-model.sh prints it\n");
    return -1;
  }
  attn_message message = {ATTN_OK, ""};
  if (gguf_open(path, &model, &message) != ATTN_OK || tokenizer_create(&model, &tok, &message) != ATTN_OK) {
    fprintf(stderr, "%s\n", message.text);
    return -1;
  }
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  tokenizer_free(tok);
  gguf_close(&model);
  return 0;
}

static void check_ids(const char *name, const lm_ids *ids, const int32_t *expected, size_t count) {
  for (size_t i = 0; i < ids->count && i < count; i++) {
    if (ids->data[i] != expected[i]) {
      fail_msg("%s: id %zu is %d, expected %d", name, i, ids->data[i], expected[i]);
    }
  }
  if (ids->count != count) {
    fail_msg("%s: %zu ids, expected %zu", name, ids->count, count);
  }
}

static void encode(const char *text, size_t length, lm_ids *ids) {
  attn_message message = {ATTN_OK, ""};
  if (tokenizer_encode(tok, text, length, ids, &message) != ATTN_OK) {
    fail_msg("%s", message.text);
  }
}

static void test_short_texts(void **state) {
  (void)state;
  size_t length = 0;
  char *json = read_file(ATTN_GOLDEN_DIR "/tokens/golden_tokens.json", &length);
  cJSON *root = cJSON_ParseWithLength(json, length);
  assert_non_null(root);
  const cJSON *cases = cJSON_GetObjectItemCaseSensitive(root, "cases");
  assert_true(cJSON_GetArraySize(cases) >= 60);
  const cJSON *entry = NULL;
  cJSON_ArrayForEach(entry, cases) {
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "name"));
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "text"));
    const cJSON *expected = cJSON_GetObjectItemCaseSensitive(entry, "ids");
    assert_non_null(name);
    assert_non_null(text);
    const size_t count = (size_t)cJSON_GetArraySize(expected);
    int32_t *want = calloc(count + 1, sizeof *want);
    assert_non_null(want);
    size_t i = 0;
    const cJSON *id = NULL;
    cJSON_ArrayForEach(id, expected) {
      want[i++] = id->valueint;
    }
    lm_ids ids = {0};
    encode(text, strlen(text), &ids);
    check_ids(name, &ids, want, count);
    lm_ids_free(&ids);
    free(want);
  }
  cJSON_Delete(root);
  free(json);
}

static void test_gpl3(void **state) {
  (void)state;
  size_t length = 0;
  size_t id_bytes = 0;
  char *text = read_file(GPL3_TEXT, &length);
  char *packed = read_file(ATTN_GOLDEN_DIR "/tokens/gpl3.ids.bin", &id_bytes);
  const size_t count = id_bytes / 2;
  assert_int_equal(count, 7639);
  int32_t *want = malloc(count * sizeof *want);
  assert_non_null(want);
  for (size_t i = 0; i < count; i++) {
    want[i] = (unsigned char)packed[2 * i] | (unsigned char)packed[2 * i + 1] << 8;
  }
  lm_ids ids = {0};
  encode(text, length, &ids);
  check_ids("GPL-3", &ids, want, count);
  size_t at = 0; /* and back: no byte of this text is one that the vocabulary lacks */
  for (size_t i = 0; i < ids.count; i++) {
    const gguf_string bytes = tokenizer_decode(tok, ids.data[i]);
    assert_true(bytes.length <= length - at);
    assert_memory_equal(bytes.data, text + at, bytes.length);
    at += bytes.length;
  }
  assert_int_equal(at, length);
  lm_ids_free(&ids);
  free(want);
  free(packed);
  free(text);
}

/* A stretch that is one piece, as long as a book, must not take quadratic time: the test's time limit is the check. */
static void test_long_piece(void **state) {
  (void)state;
  const size_t length = 2000000;
  char *text = malloc(length);
  assert_non_null(text);
  for (size_t i = 0; i < length; i++) {
    text[i] = (char)('a' + (i * i / 7) % 26);
  }
  lm_ids ids = {0};
  encode(text, length, &ids);
  size_t total = 0;
  for (size_t i = 0; i < ids.count; i++) {
    total += tokenizer_decode(tok, ids.data[i]).length;
  }
  assert_int_equal(total, length);
  lm_ids_free(&ids);
  free(text);
}

static void test_special_tokens(void **state) {
  (void)state;
  assert_int_equal(tokenizer_special(tok, "<|im_start|>"), 1);
  assert_int_equal(tokenizer_special(tok, "<|im_end|>"), 2);
  assert_int_equal(tokenizer_special(tok, "the"), -1);
  assert_int_equal(tokenizer_special(tok, "<|absent|>"), -1);
  assert_int_equal(tokenizer_eos(tok), 2);
  assert_int_equal(tokenizer_bos(tok), -1);
  assert_int_equal(tokenizer_size(tok), 49152);
  const gguf_string spelling = tokenizer_decode(tok, 1);
  assert_true(gguf_string_equals(spelling, "<|im_start|>"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_short_texts),
      cmocka_unit_test(test_gpl3),
      cmocka_unit_test(test_long_piece),
      cmocka_unit_test(test_special_tokens),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
