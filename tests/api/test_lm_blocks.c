/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensor types of attn-lm, block by block and bit by bit, against the values of the `gguf` package
 * (tests/golden/gguf_blocks, whose script says how the file is laid out).
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant.h"

#define MOST 40960

static uint8_t bytes[MOST];
static size_t count;

static uint32_t word_at(size_t at) {
  assert_true(at + 4 <= count);
  return (uint32_t)bytes[at] | (uint32_t)bytes[at + 1] << 8 | (uint32_t)bytes[at + 2] << 16 |
         (uint32_t)bytes[at + 3] << 24;
}

static void check_type(const quant_type *type, size_t data, uint32_t elements, uint32_t size) {
  assert_int_equal(elements % type->block_elements, 0);
  assert_int_equal(elements / type->block_elements * type->block_bytes, size);
  float *values = malloc(elements * sizeof *values);
  uint8_t *copy = malloc(size); /* of exactly its size, so that a sanitizer sees a byte too far */
  assert_non_null(values);
  assert_non_null(copy);
  memcpy(copy, bytes + data, size);
  type->to_float(copy, elements, values);
  for (uint32_t i = 0; i < elements; i++) {
    uint32_t bits;
    memcpy(&bits, &values[i], sizeof bits);
    const uint32_t expected = word_at(data + size + 4 * (size_t)i);
    if (bits != expected) {
      fail_msg("%s: element %u is 0x%08x, expected 0x%08x", type->name, i, bits, expected);
    }
  }
  free(values);
  free(copy);
}

static void test_blocks(void **state) {
  (void)state;
  char path[1024];
  const char *folder = getenv("ATTN_SOURCE_DIR");
  assert_non_null(folder);
  (void)snprintf(path, sizeof path, "%s/tests/golden/gguf_blocks/blocks.bin", folder);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  count = fread(bytes, 1, sizeof bytes, file);
  assert_int_equal(fclose(file), 0);
  assert_true(count > 0 && count < sizeof bytes);
  size_t at = 0;
  int types = 0;
  while (at < count) {
    const quant_type *type = quant_find(word_at(at));
    const uint32_t elements = word_at(at + 4);
    const uint32_t size = word_at(at + 8);
    assert_non_null(type);
    assert_non_null(type->to_float);
    assert_non_null(strstr(quant_supported_names(), type->name));
    assert_true(at + 12 + size + 4 * (size_t)elements <= count);
    check_type(type, at + 12, elements, size);
    at += 12 + size + 4 * (size_t)elements;
    types++;
  }
  assert_int_equal(types, 7);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
