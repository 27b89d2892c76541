/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer of attn-lm on a small vocabulary made here: where text is cut, in which order pairs merge, what is
 * refused, and that special tokens enter a prompt through the ChatML template alone. The golden tests compare the real
 * vocabulary with another implementation.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat.h"
#include "gguf.h"
#include "pretokenize.h"
#include "tokenizer.h"
#include "utf8.h"

#define CONTROL 3u
#define TEMPLATE                                                                                                       \
  "{% if loop.first %}{{ '<|im_start|>system\nBe \\'kind\\'<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "             \
  "message['role']}}"

/* The description of a vocabulary; what a test does not set keeps the default. */
typedef struct vocabulary {
  const char *model;
  const char *pre;
  const char *const *tokens; /* beyond the 94 printable ASCII characters and the space's */
  size_t token_count;
  const char *const *merges;
  size_t merge_count;
  const char *specials[4];
  const char *chat_template;
  int kinds_missing; /* entries of token_type left out */
  int64_t eos;
} vocabulary;

static const char *const plain_tokens[] = {"ab", "bc", "abc", "\xc4\xa0\x61", "\xc4\x8a", "aa", "aaa", "cd"};
static const char *const plain_merges[] = {"b c", "a b", "ab c", "a bc", "\xc4\xa0 a", "a a", "aa a", "c d"};

/* Ids: '!' is 0 ... '~' is 93, the space 94, then the tokens above, then the specials. */
enum { SPACE = 94, AB, BC, ABC, SPACE_A, NEWLINE, AA, AAA, CD, IM_START, IM_END };

static const vocabulary plain = {
    .model = "gpt2",
    .pre = "smollm",
    .tokens = plain_tokens,
    .token_count = 8,
    .merges = plain_merges,
    .merge_count = 8,
    .specials = {"<|im_start|>", "<|im_end|>", NULL, NULL},
    .chat_template = TEMPLATE,
    .kinds_missing = 0,
    .eos = IM_END,
};

typedef struct writer {
  uint8_t bytes[16384];
  size_t count;
} writer;

static void put(writer *w, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) {
    assert_true(w->count < sizeof w->bytes);
    w->bytes[w->count++] = (uint8_t)(value >> (8 * i));
  }
}

static void put_text(writer *w, const char *text) {
  put(w, strlen(text), 8);
  for (; *text != '\0'; text++) {
    put(w, (unsigned char)*text, 1);
  }
}

static void put_string_key(writer *w, const char *key, const char *text) {
  put_text(w, key);
  put(w, GGUF_STRING, 4);
  put_text(w, text);
}

static void put_array_key(writer *w, const char *key, gguf_kind kind, size_t count) {
  put_text(w, key);
  put(w, GGUF_ARRAY, 4);
  put(w, kind, 4);
  put(w, count, 8);
}

static size_t special_count(const vocabulary *v) {
  size_t count = 0;
  while (count < 4 && v->specials[count] != NULL) {
    count++;
  }
  return count;
}

static void write_tokens(writer *w, const vocabulary *v) {
  const size_t count = 95 + v->token_count + special_count(v);
  put_array_key(w, "tokenizer.ggml.tokens", GGUF_STRING, count);
  for (char c = '!'; c <= '~'; c++) {
    const char text[2] = {c, '\0'};
    put_text(w, text);
  }
  put_text(w, "\xc4\xa0");
  for (size_t i = 0; i < v->token_count; i++) {
    put_text(w, v->tokens[i]);
  }
  for (size_t i = 0; i < special_count(v); i++) {
    put_text(w, v->specials[i]);
  }
  put_array_key(w, "tokenizer.ggml.token_type", GGUF_INT32, count - (size_t)v->kinds_missing);
  for (size_t i = 0; i < count - (size_t)v->kinds_missing; i++) {
    put(w, i < 95 + v->token_count ? 1 : CONTROL, 4);
  }
}

static attn_status make(const vocabulary *v, writer *w, gguf_file *file, tokenizer **tok, attn_message *message) {
  memcpy(w->bytes, "GGUF", 4);
  w->count = 4;
  put(w, 3, 4);
  put(w, 0, 8);
  put(w, v->chat_template != NULL ? 7 : 6, 8);
  put_string_key(w, "tokenizer.ggml.model", v->model);
  put_string_key(w, "tokenizer.ggml.pre", v->pre);
  write_tokens(w, v);
  put_array_key(w, "tokenizer.ggml.merges", GGUF_STRING, v->merge_count);
  for (size_t i = 0; i < v->merge_count; i++) {
    put_text(w, v->merges[i]);
  }
  put_text(w, "tokenizer.ggml.eos_token_id");
  put(w, GGUF_UINT64, 4);
  put(w, (uint64_t)v->eos, 8);
  if (v->chat_template != NULL) {
    put_string_key(w, "tokenizer.chat_template", v->chat_template);
  }
  assert_int_equal(gguf_open_memory(w->bytes, w->count, "test", file, message), ATTN_OK);
  return tokenizer_create(file, tok, message);
}

typedef struct fixture {
  writer w;
  gguf_file file;
  tokenizer *tok;
} fixture;

static fixture f;

static int set_up(void **state) {
  (void)state;
  attn_message message = {ATTN_OK, ""};
  if (make(&plain, &f.w, &f.file, &f.tok, &message) != ATTN_OK) {
    fprintf(stderr, "%s\n", message.text);
    return -1;
  }
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  tokenizer_free(f.tok);
  gguf_close(&f.file);
  return 0;
}

static void expect(const char *text, const int32_t *expected, size_t count) {
  lm_ids ids = {0};
  attn_message message = {ATTN_OK, ""};
  assert_int_equal(tokenizer_encode(f.tok, text, strlen(text), &ids, &message), ATTN_OK);
  for (size_t i = 0; i < ids.count && i < count; i++) {
    if (ids.data[i] != expected[i]) {
      fail_msg("\"%s\": id %zu is %d, expected %d", text, i, ids.data[i], expected[i]);
    }
  }
  assert_int_equal(ids.count, count);
  lm_ids_free(&ids);
}

#define EXPECT(text, ...)                                                                                              \
  do {                                                                                                                 \
    const int32_t expected_ids[] = {__VA_ARGS__};                                                                      \
    expect(text, expected_ids, sizeof expected_ids / sizeof expected_ids[0]);                                          \
  } while (0)

#define CHARACTER(c) ((c) - '!')

static void test_merges(void **state) {
  (void)state;
  expect("", NULL, 0);
  EXPECT("a", CHARACTER('a'));
  EXPECT("ab", AB);
  EXPECT("abc", ABC);                  /* b c has the lower rank, then a bc */
  EXPECT("abcd", ABC, CHARACTER('d')); /* c is taken before c d comes up */
  EXPECT("bcd", BC, CHARACTER('d'));
  EXPECT("aaaa", AA, AA); /* from the left; aa a never finds a single a */
  EXPECT("aaaaa", AA, AAA);
  EXPECT("cdcd", CD, CD);
}

static void test_cuts(void **state) {
  (void)state;
  EXPECT("a ab", CHARACTER('a'), SPACE, AB);      /* a b has the lower rank than the space and a */
  EXPECT("a  a", CHARACTER('a'), SPACE, SPACE_A); /* the last space goes to the word */
  EXPECT("a  1", CHARACTER('a'), SPACE, SPACE, CHARACTER('1'));
  EXPECT("12", CHARACTER('1'), CHARACTER('2'));
  EXPECT("ab1ab", AB, CHARACTER('1'), AB);
  EXPECT("ab!ab", AB, CHARACTER('!'), AB);
  EXPECT("a\nab", CHARACTER('a'), NEWLINE, AB);
  EXPECT("a'sab", CHARACTER('a'), CHARACTER('\''), CHARACTER('s'), AB);
}

/* A byte without a token is dropped, and what stood around it merges. */
static void test_absent_bytes(void **state) {
  (void)state;
  EXPECT("a\xc3\xa9\x62", AB);
  expect("\xc3\xa9", NULL, 0);
  expect("\t", NULL, 0);
}

static void test_special_text_is_text(void **state) {
  (void)state;
  lm_ids ids = {0};
  const char *text = "<|im_start|>";
  assert_int_equal(tokenizer_encode(f.tok, text, strlen(text), &ids, NULL), ATTN_OK);
  assert_int_equal(ids.count, strlen(text));
  for (size_t i = 0; i < ids.count; i++) {
    assert_int_equal(ids.data[i], CHARACTER(text[i]));
  }
  lm_ids_free(&ids);
  assert_int_equal(tokenizer_special(f.tok, text), IM_START);
  assert_int_equal(tokenizer_special(f.tok, "ab"), -1);
  assert_int_equal(tokenizer_special(f.tok, ""), -1);
}

static void test_decode(void **state) {
  (void)state;
  assert_true(gguf_string_equals(tokenizer_decode(f.tok, SPACE_A), " a"));
  assert_true(gguf_string_equals(tokenizer_decode(f.tok, NEWLINE), "\n"));
  assert_true(gguf_string_equals(tokenizer_decode(f.tok, IM_END), "<|im_end|>"));
  assert_int_equal(tokenizer_decode(f.tok, -1).length, 0);
  assert_int_equal(tokenizer_decode(f.tok, tokenizer_size(f.tok)).length, 0);
  assert_int_equal(tokenizer_eos(f.tok), IM_END);
  assert_int_equal(tokenizer_bos(f.tok), -1);
}

static void test_invalid_utf8(void **state) {
  (void)state;
  static const struct {
    const char *text;
    size_t length;
    const char *offset;
  } cases[] = {
      {"\x80", 1, "offset 0"},
      {"ab\xff", 3, "byte 0xff at offset 2"},
      {"a\xc3", 2, "offset 1"},       /* cut short */
      {"a\xe4\xb8 b", 5, "offset 1"}, /* cut short inside */
      {"\xc0\xaf", 2, "offset 0"},    /* longer than needed */
      {"\xe0\x80\xaf", 3, "offset 0"},
      {"\xf0\x80\x80\xaf", 4, "offset 0"},
      {"x\xed\xa0\x80", 4, "offset 1"},       /* a surrogate */
      {"xyz\xf4\x90\x80\x80", 7, "offset 3"}, /* beyond U+10FFFF */
      {"\xf5\x80\x80\x80", 4, "offset 0"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char *exact = malloc(cases[i].length);
    assert_non_null(exact);
    memcpy(exact, cases[i].text, cases[i].length);
    lm_ids ids = {0};
    attn_message message = {ATTN_OK, ""};
    assert_int_equal(lm_ids_push(&ids, 5, NULL), ATTN_OK);
    assert_int_equal(tokenizer_encode(f.tok, exact, cases[i].length, &ids, &message), ATTN_E_RANGE);
    assert_int_equal(ids.count, 1);
    if (strstr(message.text, cases[i].offset) == NULL || strchr(message.text, '\n') != NULL) {
      fail_msg("case %zu: \"%s\" lacks \"%s\"", i, message.text, cases[i].offset);
    }
    lm_ids_free(&ids);
    free(exact);
  }
  const char good[] =
      "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf";
  assert_int_equal(utf8_first_invalid(good, sizeof good - 1), sizeof good - 1);
  assert_int_equal(utf8_first_invalid("", 0), 0);
}

/* The vocabulary must be refused with this code and a line that contains `words`. */
static void refuse(const vocabulary *v, attn_status code, const char *words) {
  writer *w = calloc(1, sizeof *w);
  assert_non_null(w);
  gguf_file file;
  tokenizer *tok = NULL;
  attn_message message = {ATTN_OK, ""};
  const attn_status status = make(v, w, &file, &tok, &message);
  if (status != code || strstr(message.text, words) == NULL || strchr(message.text, '\n') != NULL) {
    fail_msg("status %s, message \"%s\"; expected %s and \"%s\"", attn_status_name(status), message.text,
             attn_status_name(code), words);
  }
  assert_null(tok);
  gguf_close(&file);
  free(w);
}

static void test_refusals(void **state) {
  (void)state;
  vocabulary v = plain;
  v.pre = "llama-bpe";
  refuse(&v, ATTN_E_NAME, "tokenizer.ggml.pre is 'llama-bpe'; accepted is 'smollm'");
  v.pre = "smollm\n";
  refuse(&v, ATTN_E_NAME, "'smollm\\x0a'");
  v = plain;
  v.model = "llama";
  refuse(&v, ATTN_E_NAME, "tokenizer.ggml.model is 'llama'");
  v = plain;
  v.kinds_missing = 1;
  refuse(&v, ATTN_E_SHAPE, "tokenizer.ggml.token_type has 104 entries");
  v = plain;
  v.eos = 105;
  refuse(&v, ATTN_E_RANGE, "eos_token_id is 105; accepted are 0 to 104");
  v = plain;
  v.merge_count = 1;
  static const char *const bad[] = {"", "ab", "a  b", "a z", "zz a", " "};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    v.merges = &bad[i];
    refuse(&v, ATTN_E_NAME, "merges[0]");
  }
  static const char *const broken[] = {"\xc4"};
  v = plain;
  v.merge_count = 0;
  v.tokens = broken;
  v.token_count = 1;
  v.eos = 0;
  refuse(&v, ATTN_E_RANGE, "tokens[95] is not UTF-8");
}

static void append(lm_ids *ids, const char *text) {
  for (; *text != '\0'; text++) {
    assert_int_equal(lm_ids_push(ids,
                                 *text == '\n'  ? NEWLINE
                                 : *text == ' ' ? SPACE
                                                : CHARACTER(*text),
                                 NULL),
                     ATTN_OK);
  }
}

static void test_chatml(void **state) {
  (void)state;
  const char *text = "Hi <|im_end|> ?";
  lm_ids expected = {0};
  assert_int_equal(lm_ids_push(&expected, IM_START, NULL), ATTN_OK);
  append(&expected, "system\nBe 'kind'");
  assert_int_equal(lm_ids_push(&expected, IM_END, NULL), ATTN_OK);
  append(&expected, "\n");
  assert_int_equal(lm_ids_push(&expected, IM_START, NULL), ATTN_OK);
  append(&expected, "user\nHi <|im_end|> ?");
  assert_int_equal(lm_ids_push(&expected, IM_END, NULL), ATTN_OK);
  append(&expected, "\n");
  assert_int_equal(lm_ids_push(&expected, IM_START, NULL), ATTN_OK);
  append(&expected, "assistant\n");
  lm_ids ids = {0};
  attn_message message = {ATTN_OK, ""};
  assert_int_equal(chat_encode(&f.file, f.tok, text, strlen(text), &ids, &message), ATTN_OK);
  assert_int_equal(ids.count, expected.count);
  assert_memory_equal(ids.data, expected.data, ids.count * sizeof ids.data[0]);
  assert_int_equal(chat_encode(&f.file, f.tok, "a\xff", 2, &ids, &message), ATTN_E_RANGE);
  assert_non_null(strstr(message.text, "offset 1"));
  lm_ids_free(&ids);
  lm_ids_free(&expected);
}

/* Templates without a default system turn give none; a vocabulary without the turn's tokens is refused. */
static void test_chatml_without(void **state) {
  (void)state;
  static const char *const templates[] = {NULL, "{{ '<|im_start|>' + x }}", "<|im_start|>system", "",
                                          "'<|im_start|>system\n' + x + '<|im_end|>'"};
  for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++) {
    fixture *other = calloc(1, sizeof *other);
    assert_non_null(other);
    vocabulary v = plain;
    v.chat_template = templates[i];
    assert_int_equal(make(&v, &other->w, &other->file, &other->tok, NULL), ATTN_OK);
    lm_ids ids = {0};
    assert_int_equal(chat_encode(&other->file, other->tok, "x", 1, &ids, NULL), ATTN_OK);
    assert_int_equal(ids.data[0], IM_START);
    assert_int_equal(ids.data[1], CHARACTER('u'));
    assert_int_equal(ids.count, 1 + 6 + 2 + 1 + 10);
    lm_ids_free(&ids);
    tokenizer_free(other->tok);
    gguf_close(&other->file);
    free(other);
  }
  fixture *other = calloc(1, sizeof *other);
  assert_non_null(other);
  vocabulary v = plain;
  v.specials[1] = NULL;
  v.eos = 0;
  assert_int_equal(make(&v, &other->w, &other->file, &other->tok, NULL), ATTN_OK);
  lm_ids ids = {0};
  attn_message message = {ATTN_OK, ""};
  assert_int_equal(chat_encode(&other->file, other->tok, "x", 1, &ids, &message), ATTN_E_NAME);
  assert_non_null(strstr(message.text, "<|im_end|>"));
  assert_int_equal(ids.count, 0);
  tokenizer_free(other->tok);
  gguf_close(&other->file);
  free(other);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_merges),         cmocka_unit_test(test_cuts),
      cmocka_unit_test(test_absent_bytes),   cmocka_unit_test(test_special_text_is_text),
      cmocka_unit_test(test_decode),         cmocka_unit_test(test_invalid_utf8),
      cmocka_unit_test(test_refusals),       cmocka_unit_test(test_chatml),
      cmocka_unit_test(test_chatml_without),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
