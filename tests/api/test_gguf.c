/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GGUF reader of attn-lm on files that are made here: good ones of both versions, each way of lying that the reader
 * names, every truncation, and random damage. A file lies in a block of exactly its size, so that a sanitizer sees any
 * byte read beyond it. Also the exact values of each tensor type.
 */
#include "gguf_writer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F32 0u
#define F16 1u
#define Q4_1 3u
#define Q8_0 8u

static attn_status open_bytes(const uint8_t *bytes, size_t count, gguf_file *file, attn_message *message,
                              void **block) {
  *block = malloc(count > 0 ? count : 1);
  assert_non_null(*block);
  memcpy(*block, bytes, count);
  return gguf_open_memory(*block, count, "test", file, message);
}

/* The file must be refused with this code and a line that contains `words`. */
static void refuse(const gguf_writer *w, attn_status code, const char *words) {
  gguf_file file;
  void *block = NULL;
  attn_message message = {ATTN_OK, ""};
  const attn_status status = open_bytes(w->bytes, w->count, &file, &message, &block);
  if (status != code || strstr(message.text, words) == NULL || strchr(message.text, '\n') != NULL) {
    fail_msg("status %s, message \"%s\"; expected %s and \"%s\"", attn_status_name(status), message.text,
             attn_status_name(code), words);
  }
  assert_int_equal(message.code, code);
  assert_null(file.values);
  assert_null(file.tensors);
  free(block);
}

/* All scalar kinds, arrays, two tensors: 3 x 4 floats and one row of 32 Q8_0. */
static void write_good(gguf_writer *w, uint32_t version) {
  gguf_put_head(w, version, 2, 9);
  gguf_put_key(w, "a.u8", GGUF_UINT8);
  gguf_put(w, 200, 1);
  gguf_put_key(w, "a.i16", GGUF_INT16);
  gguf_put(w, 0xfffe, 2);
  gguf_put_key(w, "a.u64", GGUF_UINT64);
  gguf_put(w, UINT64_C(0x123456789abcdef0), 8);
  gguf_put_key(w, "a.f32", GGUF_FLOAT32);
  gguf_put(w, 0x40490fdb, 4);
  gguf_put_key(w, "a.f64", GGUF_FLOAT64);
  gguf_put(w, UINT64_C(0x4000000000000000), 8);
  gguf_put_key(w, "a.bool", GGUF_BOOL);
  gguf_put(w, 1, 1);
  gguf_put_key(w, "a.text", GGUF_STRING);
  gguf_put_text(w, "hello");
  gguf_put_key(w, "a.list", GGUF_ARRAY);
  gguf_put(w, GGUF_INT32, 4);
  gguf_put(w, 3, 8);
  gguf_put(w, 7, 4);
  gguf_put(w, 0xffffffff, 4);
  gguf_put(w, 0x80000000, 4);
  gguf_put_key(w, "a.texts", GGUF_ARRAY);
  gguf_put(w, GGUF_STRING, 4);
  gguf_put(w, 2, 8);
  gguf_put_text(w, "");
  gguf_put_text(w, "world");
  gguf_put_tensor(w, "zeta", 2, 3, 4, F32, 64);
  gguf_put_tensor(w, "alpha", 1, 32, 1, Q8_0, 0);
  gguf_put_data(w, 64 + 48);
}

static void check_good(uint32_t version) {
  gguf_writer w = {{0}, 0};
  write_good(&w, version);
  gguf_file file;
  void *block = NULL;
  attn_message message = {ATTN_OK, ""};
  assert_int_equal(open_bytes(w.bytes, w.count, &file, &message, &block), ATTN_OK);
  uint64_t number = 0;
  assert_int_equal(gguf_get_u64(&file, "a.u8", &number, NULL), ATTN_OK);
  assert_int_equal(number, 200);
  assert_int_equal(gguf_get_u64(&file, "a.u64", &number, NULL), ATTN_OK);
  assert_true(number == UINT64_C(0x123456789abcdef0));
  assert_int_equal(gguf_get_u64_or(&file, "absent", 5, &number, NULL), ATTN_OK);
  assert_int_equal(number, 5);
  double real = 0;
  assert_int_equal(gguf_get_f64_or(&file, "a.f32", 0, &real, NULL), ATTN_OK);
  assert_true(real == (double)3.14159274101257324f);
  assert_int_equal(gguf_get_f64_or(&file, "a.f64", 0, &real, NULL), ATTN_OK);
  assert_true(real == 2.0);
  bool truth = false;
  assert_int_equal(gguf_get_bool_or(&file, "a.bool", false, &truth, NULL), ATTN_OK);
  assert_true(truth);
  gguf_string text;
  assert_int_equal(gguf_get_string(&file, "a.text", &text, NULL), ATTN_OK);
  assert_true(gguf_string_equals(text, "hello"));
  assert_false(gguf_string_equals(text, "hell"));
  const gguf_value *list = NULL;
  assert_int_equal(gguf_get_array(&file, "a.list", GGUF_INT32, &list, NULL), ATTN_OK);
  assert_int_equal(list->count, 3);
  assert_int_equal(gguf_i32_at(list, 0), 7);
  assert_int_equal(gguf_i32_at(list, 1), -1);
  assert_int_equal(gguf_i32_at(list, 2), INT32_MIN);
  assert_int_equal(gguf_get_array(&file, "a.texts", GGUF_STRING, &list, NULL), ATTN_OK);
  const uint8_t *at = list->data;
  assert_int_equal(gguf_next_string(&at).length, 0);
  assert_true(gguf_string_equals(gguf_next_string(&at), "world"));

  const gguf_tensor *zeta = gguf_find_tensor(&file, "zeta");
  const gguf_tensor *alpha = gguf_find_tensor(&file, "alpha");
  assert_non_null(zeta);
  assert_non_null(alpha);
  assert_null(gguf_find_tensor(&file, "alph"));
  assert_int_equal(zeta->dims[0], 3);
  assert_int_equal(zeta->dims[1], 4);
  assert_int_equal(zeta->bytes, 48);
  assert_int_equal(zeta->row_bytes, 12);
  assert_int_equal(alpha->bytes, 34);
  assert_int_equal(alpha->data[0], 11);
  assert_ptr_equal(zeta->data, alpha->data + 64);
  gguf_close(&file);
  free(block);
}

static void test_good_files(void **state) {
  (void)state;
  check_good(3);
  check_good(2);
}

static void test_typed_access(void **state) {
  (void)state;
  gguf_writer w = {{0}, 0};
  write_good(&w, 3);
  gguf_file file;
  void *block = NULL;
  attn_message message = {ATTN_OK, ""};
  assert_int_equal(open_bytes(w.bytes, w.count, &file, &message, &block), ATTN_OK);
  uint64_t number = 77;
  double real = 77;
  bool truth = true;
  gguf_string text;
  const gguf_value *list = NULL;
  assert_int_equal(gguf_get_u64(&file, "absent", &number, &message), ATTN_E_NAME);
  assert_non_null(strstr(message.text, "absent"));
  assert_int_equal(gguf_get_u64(&file, "a.i16", &number, &message), ATTN_E_RANGE);
  assert_non_null(strstr(message.text, "negative"));
  assert_int_equal(gguf_get_u64(&file, "a.text", &number, &message), ATTN_E_DTYPE);
  assert_int_equal(gguf_get_u64(&file, "a.list", &number, &message), ATTN_E_DTYPE);
  assert_int_equal(gguf_get_u64(&file, "a.f64", &number, &message), ATTN_E_DTYPE);
  assert_int_equal(number, 77);
  assert_int_equal(gguf_get_f64_or(&file, "a.u8", 0, &real, &message), ATTN_E_DTYPE);
  assert_int_equal(gguf_get_bool_or(&file, "a.u8", 0, &truth, &message), ATTN_E_DTYPE);
  assert_int_equal(gguf_get_string(&file, "a.texts", &text, &message), ATTN_E_DTYPE);
  assert_int_equal(gguf_get_array(&file, "a.list", GGUF_STRING, &list, &message), ATTN_E_DTYPE);
  assert_int_equal(gguf_get_array(&file, "a.text", GGUF_STRING, &list, &message), ATTN_E_DTYPE);
  assert_int_equal(gguf_get_array(&file, "absent", GGUF_STRING, &list, &message), ATTN_E_NAME);
  gguf_close(&file);
  free(block);
}

static void test_bad_preamble(void **state) {
  (void)state;
  gguf_writer w = {{0}, 0};
  gguf_put_head(&w, 3, 0, 0);
  w.bytes[0] = '\n';
  refuse(&w, ATTN_E_NAME, "\\x0aGUF");
  gguf_put_head(&w, 1, 0, 0);
  refuse(&w, ATTN_E_RANGE, "version 1");
  gguf_put_head(&w, 4, 0, 0);
  refuse(&w, ATTN_E_RANGE, "accepted are 2 and 3");
  gguf_put_head(&w, 0x03000000, 0, 0);
  refuse(&w, ATTN_E_RANGE, "big-endian");
  gguf_put_head(&w, 3, 0, UINT64_MAX);
  refuse(&w, ATTN_E_RANGE, "key count is 18446744073709551615");
  gguf_put_head(&w, 3, UINT64_MAX / 16, 0);
  refuse(&w, ATTN_E_RANGE, "tensor count");
  gguf_put_head(&w, 3, 1, 0);
  refuse(&w, ATTN_E_RANGE, "tensor count is 1");
}

static void test_bad_values(void **state) {
  (void)state;
  gguf_writer w = {{0}, 0};
  gguf_put_head(&w, 3, 0, 1);
  gguf_put(&w, UINT64_MAX, 8);
  gguf_put(&w, 0, 8);
  refuse(&w, ATTN_E_RANGE, "a key");
  gguf_put_head(&w, 3, 0, 1);
  gguf_put_key(&w, "k\n", 13);
  gguf_put(&w, 0, 8);
  refuse(&w, ATTN_E_NAME, "'k\\x0a' has type 13");
  gguf_put_head(&w, 3, 0, 1);
  gguf_put_key(&w, "k", GGUF_STRING);
  gguf_put(&w, 1000, 8);
  refuse(&w, ATTN_E_RANGE, "1000 bytes, the file has 0 left");
  gguf_put_head(&w, 3, 0, 1);
  gguf_put_key(&w, "k", GGUF_BOOL);
  gguf_put(&w, 2, 1);
  refuse(&w, ATTN_E_RANGE, "bool with value 2");
  gguf_put_head(&w, 3, 0, 1);
  gguf_put_key(&w, "k", GGUF_UINT64);
  gguf_put(&w, 1, 7);
  refuse(&w, ATTN_E_RANGE, "a value");
  gguf_put_head(&w, 3, 0, 2);
  for (int i = 0; i < 2; i++) {
    gguf_put_key(&w, "same", GGUF_UINT8);
    gguf_put(&w, 1, 1);
  }
  refuse(&w, ATTN_E_NAME, "'same' appears twice");
}

static void test_bad_arrays(void **state) {
  (void)state;
  const uint64_t lengths[] = {5, UINT64_MAX, UINT64_MAX / 4 + 2, UINT64_C(1) << 61};
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    for (uint32_t kind = 0; kind <= 12; kind++) {
      gguf_writer w = {{0}, 0};
      gguf_put_head(&w, 3, 0, 1);
      gguf_put_key(&w, "k", GGUF_ARRAY);
      gguf_put(&w, kind, 4);
      gguf_put(&w, lengths[i], 8);
      gguf_put(&w, 0, 4);
      if (kind == GGUF_ARRAY) {
        refuse(&w, ATTN_E_NAME, "no array of arrays");
      } else {
        refuse(&w, ATTN_E_RANGE, "array's length");
      }
    }
  }
  gguf_writer w = {{0}, 0};
  gguf_put_head(&w, 3, 0, 1);
  gguf_put_key(&w, "k", GGUF_ARRAY);
  gguf_put(&w, GGUF_STRING, 4);
  gguf_put(&w, 2, 8);
  gguf_put_text(&w, "ok");
  gguf_put(&w, UINT64_C(1) << 63, 8);
  refuse(&w, ATTN_E_RANGE, "a string");
}

static void write_one(gguf_writer *w, uint32_t rank, uint64_t columns, uint64_t rows, uint32_t type, uint64_t offset) {
  gguf_put_head(w, 3, 1, 0);
  gguf_put_tensor(w, "t", rank, columns, rows, type, offset);
  gguf_put_data(w, 128);
}

static void test_bad_tensors(void **state) {
  (void)state;
  gguf_writer w = {{0}, 0};
  write_one(&w, 1, 32, 1, 13, 0);
  refuse(&w, ATTN_E_DTYPE, "type 13 (Q5_K); accepted are F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K");
  write_one(&w, 1, 32, 1, 4000, 0);
  refuse(&w, ATTN_E_DTYPE, "type 4000 (unknown)");
  gguf_put_head(&w, 3, 1, 0);
  gguf_put_tensor(&w, "t", 5, 1, 1, F32, 0);
  refuse(&w, ATTN_E_SHAPE, "rank 5");
  gguf_put_head(&w, 3, 1, 0);
  gguf_put_tensor(&w, "t", 0, 1, 1, F32, 0);
  refuse(&w, ATTN_E_SHAPE, "rank 0");
  write_one(&w, 2, 4, 0, F32, 0);
  refuse(&w, ATTN_E_SHAPE, "extent 0 in dimension 1");
  write_one(&w, 2, UINT64_C(1) << 32, UINT64_C(1) << 32, F32, 0);
  refuse(&w, ATTN_E_OVERFLOW, "2^63-1");
  write_one(&w, 2, UINT64_C(1) << 62, 1, F32, 0);
  refuse(&w, ATTN_E_OVERFLOW, "2^63-1");
  write_one(&w, 1, 33, 1, Q8_0, 0);
  refuse(&w, ATTN_E_SHAPE, "multiples of 32");
  write_one(&w, 1, 33, 1, F32, 0);
  refuse(&w, ATTN_E_RANGE, "takes 132 bytes at offset 0, the data section has 128");
  write_one(&w, 1, 4, 1, F32, 128);
  refuse(&w, ATTN_E_RANGE, "offset 128");
  write_one(&w, 1, 4, 1, F32, UINT64_MAX - 31);
  refuse(&w, ATTN_E_RANGE, "'t' takes 16 bytes");
  write_one(&w, 1, 4, 1, F32, 4);
  refuse(&w, ATTN_E_ALIGN, "offset 4; accepted are multiples of 32");
}

static void test_tensors_together(void **state) {
  (void)state;
  gguf_writer w = {{0}, 0};
  gguf_put_head(&w, 3, 2, 0);
  gguf_put_tensor(&w, "one", 1, 9, 1, F32, 0);
  gguf_put_tensor(&w, "two", 1, 8, 1, F32, 32);
  gguf_put_data(&w, 128);
  refuse(&w, ATTN_E_OVERLAP, "'one' and 'two' share bytes");
  gguf_put_head(&w, 3, 2, 0);
  gguf_put_tensor(&w, "one", 1, 8, 1, F32, 0);
  gguf_put_tensor(&w, "one", 1, 8, 1, F32, 32);
  gguf_put_data(&w, 128);
  refuse(&w, ATTN_E_NAME, "tensor 'one' appears twice");
}

static void test_alignment(void **state) {
  (void)state;
  const uint64_t bad[] = {0, 1, 12, UINT64_C(1) << 21, UINT64_C(1) << 63};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    gguf_writer w = {{0}, 0};
    gguf_put_head(&w, 3, 0, 1);
    gguf_put_key(&w, "general.alignment", GGUF_UINT64);
    gguf_put(&w, bad[i], 8);
    refuse(&w, ATTN_E_ALIGN, "general.alignment");
  }
  gguf_writer w = {{0}, 0};
  gguf_put_head(&w, 3, 1, 1);
  gguf_put_key(&w, "general.alignment", GGUF_UINT32);
  gguf_put(&w, 8, 4);
  gguf_put_tensor(&w, "t", 1, 2, 1, F32, 8);
  while (w.count % 8 != 0) {
    gguf_put(&w, 0, 1);
  }
  const size_t start = w.count;
  gguf_put(&w, 0, 8);
  gguf_put(&w, 0, 8);
  gguf_file file;
  void *block = NULL;
  assert_int_equal(open_bytes(w.bytes, w.count, &file, NULL, &block), ATTN_OK);
  assert_ptr_equal(gguf_find_tensor(&file, "t")->data, (uint8_t *)block + start + 8);
  gguf_close(&file);
  free(block);
}

/* A file cut anywhere is refused: its last tensor ends with the file. */
static void test_every_truncation(void **state) {
  (void)state;
  gguf_writer w = {{0}, 0};
  write_good(&w, 3);
  for (size_t count = 0; count < w.count; count++) {
    gguf_file file;
    void *block = NULL;
    attn_message message = {ATTN_OK, ""};
    assert_int_not_equal(open_bytes(w.bytes, count, &file, &message, &block), ATTN_OK);
    assert_true(message.text[0] != '\0' && strchr(message.text, '\n') == NULL);
    free(block);
  }
}

/* Reads all that an open file offers, so that a sanitizer judges every view. */
static uint64_t read_all(const gguf_file *file) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < file->value_count; i++) {
    const gguf_value *value = &file->values[i];
    const uint8_t *at = value->data;
    for (uint64_t j = 0; value->item_kind == GGUF_STRING && j < value->count; j++) {
      const gguf_string text = gguf_next_string(&at);
      sum += text.length > 0 ? (unsigned char)text.data[text.length - 1] : 0;
    }
  }
  for (uint64_t i = 0; i < file->tensor_count; i++) {
    const gguf_tensor *tensor = &file->tensors[i];
    const uint64_t rows = tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
    float *row = malloc((size_t)tensor->dims[0] * sizeof *row);
    assert_non_null(row);
    for (uint64_t r = 0; r < rows; r++) {
      tensor->type->to_float(tensor->data + r * tensor->row_bytes, tensor->dims[0], row);
    }
    free(row);
  }
  return sum;
}

static void test_random_damage(void **state) {
  (void)state;
  uint64_t seed = 20260101;
  for (int round = 0; round < 20000; round++) {
    gguf_writer w = {{0}, 0};
    write_good(&w, 3);
    for (int i = 0; i < 1 + round % 4; i++) {
      seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
      w.bytes[(seed >> 33) % w.count] = (uint8_t)(seed >> (round % 2 != 0 ? 20 : 56));
    }
    gguf_file file;
    void *block = NULL;
    attn_message message = {ATTN_OK, ""};
    if (open_bytes(w.bytes, w.count, &file, &message, &block) == ATTN_OK) {
      (void)read_all(&file);
      gguf_close(&file);
    } else {
      assert_true(message.text[0] != '\0' && strchr(message.text, '\n') == NULL);
    }
    free(block);
  }
}

static void test_files_that_are_none(void **state) {
  (void)state;
  gguf_file file;
  attn_message message = {ATTN_OK, ""};
  assert_int_equal(gguf_open("/nonexistent/model.gguf", &file, &message), ATTN_E_IO);
  assert_non_null(strstr(message.text, "/nonexistent/model.gguf"));
  assert_int_equal(gguf_open("/", &file, &message), ATTN_E_IO);
  assert_int_equal(gguf_open("/dev/null", &file, &message), ATTN_E_IO);
  gguf_close(&file);
}

static void test_half(void **state) {
  (void)state;
  for (uint32_t bits = 0; bits < 0x10000; bits++) {
    const int exponent = (int)(bits >> 10 & 31);
    const double fraction = (double)(bits & 0x3ff);
    double expected = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    const float found = quant_half_to_float((uint16_t)bits);
    if (exponent == 31) {
      assert_true(fraction != 0 ? isnan(found) : isinf(found));
    } else {
      assert_true(fabs((double)found) == expected);
    }
    assert_true((signbit(found) != 0) == (bits >= 0x8000));
  }
}

static void test_quantised_rows(void **state) {
  (void)state;
  float out[64];
  uint8_t q8[68] = {0x00, 0x38}; /* 0.5 */
  for (int i = 0; i < 32; i++) {
    q8[2 + i] = (uint8_t)(i * 8 + 1);
  }
  q8[34] = 0x66;
  q8[35] = 0x2e; /* 0.0999755859375 */
  q8[36] = 0x80; /* -128 */
  quant_find(Q8_0)->to_float(q8, 64, out);
  assert_true(out[0] == 0.5f && out[15] == 60.5f && out[16] == -63.5f && out[31] == -3.5f);
  assert_true(out[32] == -128.0f * 0.0999755859375f && out[33] == 0.0f);

  uint8_t q4[20] = {0x66, 0x2e, 0x00, 0xbc, 0xf3}; /* scale 0.0999755859375, minimum -1 */
  q4[19] = 0x80;
  quant_find(Q4_1)->to_float(q4, 32, out);
  const float scale = 0.0999755859375f;
  const float three = 3.0f * scale;
  const float fifteen = 15.0f * scale;
  assert_true(out[0] == three + -1.0f && out[16] == fifteen + -1.0f);
  assert_true(out[15] == -1.0f && out[31] == 8.0f * scale + -1.0f && out[1] == -1.0f);

  const uint8_t f32[8] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0};
  quant_find(F32)->to_float(f32, 2, out);
  assert_true(out[0] == 1.0f && out[1] == -2.0f);
  const uint8_t f16[4] = {0x00, 0x3c, 0x01, 0x80};
  quant_find(F16)->to_float(f16, 2, out);
  assert_true(out[0] == 1.0f && out[1] == -0x1p-24f);
  assert_null(quant_find(4000));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_good_files),          cmocka_unit_test(test_typed_access),
      cmocka_unit_test(test_bad_preamble),        cmocka_unit_test(test_bad_values),
      cmocka_unit_test(test_bad_arrays),          cmocka_unit_test(test_bad_tensors),
      cmocka_unit_test(test_tensors_together),    cmocka_unit_test(test_alignment),
      cmocka_unit_test(test_every_truncation),    cmocka_unit_test(test_random_damage),
      cmocka_unit_test(test_files_that_are_none), cmocka_unit_test(test_half),
      cmocka_unit_test(test_quantised_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
