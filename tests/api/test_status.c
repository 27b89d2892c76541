/* SPDX-License-Identifier: Apache-2.0 */
/* status.h, tensor.h and attn.h: the lists, their names, and what lies outside them. */
#include <stdio.h>
#include <string.h>

#include "harness.h"

static void every_status_has_its_words(void **state) {
  static const struct {
    attn_status status;
    int value;
    const char *name, *meaning, *remedy;
  } list[] = {
#define ROW(name, value, meaning, remedy) {name, value, #name, meaning, remedy},
      ATTN_STATUS_LIST(ROW)
#undef ROW
  };
  (void)state;
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    assert_int_equal((int)list[i].status, list[i].value);
    assert_string_equal(attn_status_name(list[i].status), list[i].name);
    assert_string_equal(attn_status_meaning(list[i].status), list[i].meaning);
    assert_string_equal(attn_status_remedy(list[i].status), list[i].remedy);
  }
}

static void unknown_status_has_words_too(void **state) {
  static const int values[] = {1, 15, 99, -1};
  (void)state;
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    attn_status status = (attn_status)values[i];
    assert_string_equal(attn_status_name(status), "ATTN_E_UNKNOWN");
    assert_non_null(attn_status_meaning(status));
    assert_non_null(attn_status_remedy(status));
  }
}

static void every_dtype_converts_both_ways(void **state) {
  static const struct {
    attn_dtype dtype;
    const char *spelling;
    size_t bytes;
    int code, bits;
  } list[] = {
#define ROW(name, value, spelling, bytes, code, bits) {name, spelling, bytes, code, bits},
      ATTN_DTYPE_LIST(ROW)
#undef ROW
  };
  (void)state;
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    DLDataType dlpack = attn_dtype_to_dlpack(list[i].dtype);
    assert_string_equal(attn_dtype_name(list[i].dtype), list[i].spelling);
    assert_int_equal(attn_dtype_from_name(list[i].spelling), list[i].dtype);
    assert_int_equal(attn_dtype_bytes(list[i].dtype), list[i].bytes);
    assert_int_equal(dlpack.code, list[i].code);
    assert_int_equal(dlpack.bits, list[i].bits);
    assert_int_equal(dlpack.lanes, 1);
    assert_int_equal(attn_dtype_from_dlpack(dlpack), list[i].dtype);
  }
}

static void dtypes_outside_the_list(void **state) {
  DLDataType odd[] = {{kDLFloat, 64, 1}, {kDLInt, 16, 1}, {kDLFloat, 32, 4}, {200, 8, 1}, {kDLFloat, 32, 0}};
  (void)state;
  for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
    assert_int_equal(attn_dtype_from_dlpack(odd[i]), ATTN_DTYPE_DEFAULT);
  }
  assert_string_equal(attn_dtype_name(ATTN_DTYPE_DEFAULT), "default");
  assert_string_equal(attn_dtype_name((attn_dtype)77), "unknown");
  assert_string_equal(attn_dtype_name((attn_dtype)-1), "unknown");
  assert_int_equal(attn_dtype_bytes(ATTN_DTYPE_DEFAULT), 0);
  assert_int_equal(attn_dtype_bytes((attn_dtype)77), 0);
  assert_int_equal(attn_dtype_to_dlpack((attn_dtype)77).bits, 0);
  assert_int_equal(attn_dtype_from_name("float64"), ATTN_DTYPE_DEFAULT);
  assert_int_equal(attn_dtype_from_name(""), ATTN_DTYPE_DEFAULT);
  assert_int_equal(attn_dtype_from_name(NULL), ATTN_DTYPE_DEFAULT);
}

static void every_format_converts_both_ways(void **state) {
  static const struct {
    attn_format format;
    const char *spelling;
  } list[] = {
#define ROW(name, value, spelling, storage, rows) {name, spelling},
      ATTN_FORMAT_LIST(ROW)
#undef ROW
  };
  attn_format format = ATTN_FORMAT_FLOAT16;
  (void)state;
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    assert_string_equal(attn_format_name(list[i].format), list[i].spelling);
    assert_int_equal(attn_format_from_name(list[i].spelling, &format), 1);
    assert_int_equal(format, list[i].format);
  }
  assert_string_equal(attn_format_name(ATTN_FORMAT_AUTO), "auto");
  assert_string_equal(attn_format_name((attn_format)50), "unknown");
  assert_int_equal(attn_format_from_name("float8", &format), 0);
}

static void device_kinds_and_verdicts_have_names(void **state) {
  static const char *const verdicts[] = {"taken", "able"};
  (void)state;
#define ROW(name, value, spelling, dlpack, built) assert_string_equal(attn_device_kind_name(name), spelling);
  ATTN_DEVICE_LIST(ROW)
#undef ROW
  assert_string_equal(attn_device_kind_name((attn_device_kind)9), "unknown");
  assert_string_equal(attn_verdict_name(ATTN_VERDICT_TAKEN), verdicts[0]);
  assert_string_equal(attn_verdict_name(ATTN_VERDICT_ABLE), verdicts[1]);
  for (int i = 0; i <= 6; i++) {
    assert_non_null(attn_verdict_name((attn_verdict)i));
  }
}

static void version_is_the_headers(void **state) {
  char text[32];
  (void)state;
  snprintf(text, sizeof text, "%d.%d.%d", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR, ATTN_VERSION_PATCH);
  assert_string_equal(attn_version(), text);
}

static void tensor_cpu_is_compact(void **state) {
  float data[6];
  int64_t shape[] = {2, 3};
  DLTensor t;
  (void)state;
  memset(&t, 0xA5, sizeof t);
  attn_tensor_cpu(&t, data, ATTN_DTYPE_BFLOAT16, 2, shape);
  assert_ptr_equal(t.data, data);
  assert_int_equal(t.device.device_type, kDLCPU);
  assert_int_equal(t.device.device_id, 0);
  assert_int_equal(t.ndim, 2);
  assert_int_equal(attn_dtype_from_dlpack(t.dtype), ATTN_DTYPE_BFLOAT16);
  assert_ptr_equal(t.shape, shape);
  assert_null(t.strides);
  assert_int_equal(t.byte_offset, 0);
}

/* A message is optional, and success leaves it alone (EXPECT_OK looks at that in every test). */
static void messages_are_optional(void **state) {
  attn_problem problem = ATTN_PROBLEM_INIT;
  (void)state;
  assert_int_equal(attn_problem_check(&problem, NULL), ATTN_E_RANGE);
  assert_int_equal(attn_problem_check(NULL, NULL), ATTN_E_NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_status_has_its_words),      cmocka_unit_test(unknown_status_has_words_too),
      cmocka_unit_test(every_dtype_converts_both_ways),  cmocka_unit_test(dtypes_outside_the_list),
      cmocka_unit_test(every_format_converts_both_ways), cmocka_unit_test(device_kinds_and_verdicts_have_names),
      cmocka_unit_test(version_is_the_headers),          cmocka_unit_test(tensor_cpu_is_compact),
      cmocka_unit_test(messages_are_optional),
  };
  return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
