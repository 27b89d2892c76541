/* SPDX-License-Identifier: Apache-2.0 */
/* backend.h, first half: devices and contexts, each documented status provoked. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static attn_context_options options_of(int32_t num_threads) {
  attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
  options.num_threads = num_threads;
  return options;
}

/* A refusal that leaves the context pointer alone. */
#define EXPECT_NO_CONTEXT(options, status, named)                                                                      \
  do {                                                                                                                 \
    attn_context *made = NULL;                                                                                         \
    EXPECT_STATUS(attn_context_create(options, &made, &why), status, named);                                           \
    assert_null(made);                                                                                                 \
  } while (0)

static void defaults_are_one_thread_on_the_cpu(void **state) {
  attn_context *context = NULL;
  attn_context_info info = ATTN_CONTEXT_INFO_INIT;
  (void)state;
  EXPECT_OK(attn_context_create(NULL, &context, &why));
  EXPECT_OK(attn_context_get_info(context, &info, &why));
  assert_int_equal(info.device, ATTN_DEVICE_CPU);
  assert_int_equal(info.device_index, 0);
  assert_int_equal(info.num_threads, 1);
  assert_int_equal(info.has_executor, 0);
  assert_true(info.device_name[0] != 0);
  assert_true(info.level[0] != 0);
  assert_non_null(strstr(info.levels_found, "generic"));
  assert_non_null(strstr(info.levels_found, info.level));
  attn_context_destroy(context);
  attn_context_options zero = options_of(0);
  EXPECT_OK(attn_context_create(&zero, &context, &why));
  EXPECT_OK(attn_context_get_info(context, &info, &why));
  assert_int_equal(info.num_threads, 1);
  attn_context_destroy(context);
  attn_context_destroy(NULL);
}

static void threads_of_the_host(void **state) {
  static const int32_t counts[] = {1, 2, 7, 64, 1024};
  (void)state;
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    attn_context *context = open_context(counts[i]);
    attn_context_info info = ATTN_CONTEXT_INFO_INIT;
    EXPECT_OK(attn_context_get_info(context, &info, &why));
    assert_int_equal(info.num_threads, counts[i]);
    assert_int_equal(info.has_executor, 1);
    attn_context_destroy(context);
  }
}

/* The library's own pool: there, or refused by name in a build without it. */
static void threads_of_the_library(void **state) {
  attn_context_options options = options_of(2);
  attn_context *context = NULL;
  (void)state;
  harness_reset();
  attn_status status = attn_context_create(&options, &context, &why);
  if (status == ATTN_OK) {
    attn_context_info info = ATTN_CONTEXT_INFO_INIT;
    EXPECT_OK(attn_context_get_info(context, &info, &why));
    assert_int_equal(info.num_threads, 2);
    assert_int_equal(info.has_executor, 0);
    attn_context_destroy(context);
    return;
  }
  harness_expect(status, ATTN_E_UNSUPPORTED, "pthreadpool", __FILE__, __LINE__);
  assert_null(context);
}

static void bad_numbers(void **state) {
  static const int32_t counts[] = {-1, 1025, INT32_MAX, INT32_MIN};
  attn_executor executor = harness_executor();
  (void)state;
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    attn_context_options options = options_of(counts[i]);
    EXPECT_NO_CONTEXT(&options, ATTN_E_RANGE, "num_threads");
    options.executor = &executor;
    EXPECT_NO_CONTEXT(&options, ATTN_E_RANGE, "num_threads");
  }
}

static void null_and_size(void **state) {
  static const uint32_t sizes[] = {0, 8, sizeof(attn_context_options) + 8};
  attn_context_options options = options_of(1);
  attn_context_info info = ATTN_CONTEXT_INFO_INIT;
  attn_context *context = open_context(1);
  (void)state;
  EXPECT_STATUS(attn_context_create(&options, NULL, &why), ATTN_E_NULL, "context");
  for (size_t i = 0; i < 3; i++) {
    options.size = sizes[i];
    EXPECT_NO_CONTEXT(&options, ATTN_E_STRUCT_SIZE, NULL);
  }
  EXPECT_STATUS(attn_context_get_info(NULL, &info, &why), ATTN_E_NULL, "context");
  EXPECT_STATUS(attn_context_get_info(context, NULL, &why), ATTN_E_NULL, "info");
  info.size = 3;
  EXPECT_STATUS(attn_context_get_info(context, &info, &why), ATTN_E_STRUCT_SIZE, NULL);
  attn_executor empty = {NULL, NULL};
  options = options_of(2);
  options.executor = &empty;
  EXPECT_NO_CONTEXT(&options, ATTN_E_NULL, "run");
  attn_context_destroy(context);
}

static void devices_not_built_are_refused(void **state) {
  static const attn_device_kind kinds[] = {ATTN_DEVICE_CUDA, ATTN_DEVICE_OPENCL};
  (void)state;
  assert_int_equal(attn_device_count(ATTN_DEVICE_CPU), 1);
  assert_int_equal(attn_device_count((attn_device_kind)55), 0);
  for (size_t i = 0; i < 2; i++) {
    attn_context_options options = options_of(1);
    assert_int_equal(attn_device_count(kinds[i]), 0);
    options.device = kinds[i];
    EXPECT_NO_CONTEXT(&options, ATTN_E_NO_DEVICE, attn_device_kind_name(kinds[i]));
  }
  attn_context_options options = options_of(1);
  options.device_index = 1;
  EXPECT_NO_CONTEXT(&options, ATTN_E_NO_DEVICE, "1");
  options.device_index = -1;
  attn_context *context = NULL;
  EXPECT_REFUSED(attn_context_create(&options, &context, &why), "device_index");
  options.device_index = 0;
  options.device = (attn_device_kind)55;
  EXPECT_REFUSED(attn_context_create(&options, &context, &why), "device");
  assert_null(context);
}

static void level_by_environment(void **state) {
  attn_context_options options = options_of(1);
  attn_context_info info = ATTN_CONTEXT_INFO_INIT;
  attn_context *context = NULL;
  (void)state;
  setenv("ATTN_CPU", "generic", 1);
  EXPECT_OK(attn_context_create(&options, &context, &why));
  EXPECT_OK(attn_context_get_info(context, &info, &why));
  assert_string_equal(info.level, "generic");
  attn_context_destroy(context);
  setenv("ATTN_CPU", "Generic2", 1);
  EXPECT_NO_CONTEXT(&options, ATTN_E_NAME, "Generic2");
  assert_non_null(strstr(why.text, "ATTN_CPU"));
  unsetenv("ATTN_CPU");
}

static void kernels_can_be_listed(void **state) {
  attn_context *context = open_context(1);
  attn_kernel_info kernel;
  size_t count = 0;
  int in_use = 0;
  (void)state;
  while (attn_context_kernel(context, count, &kernel)) {
    assert_true(kernel.operation[0] && kernel.types[0] && kernel.head_class[0] && kernel.level[0] && kernel.symbol[0]);
    in_use += kernel.in_use;
    count++;
  }
  assert_true(count > 0 && in_use > 0);
  assert_int_equal(attn_context_kernel(context, SIZE_MAX, &kernel), 0);
  attn_context_destroy(context);
}

int main(void) {
  unsetenv("ATTN_CPU");
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(defaults_are_one_thread_on_the_cpu),
      cmocka_unit_test(threads_of_the_host),
      cmocka_unit_test(threads_of_the_library),
      cmocka_unit_test(bad_numbers),
      cmocka_unit_test(null_and_size),
      cmocka_unit_test(devices_not_built_are_refused),
      cmocka_unit_test(level_by_environment),
      cmocka_unit_test(kernels_can_be_listed),
  };
  return cmocka_run_group_tests_name("context", tests, NULL, NULL);
}
