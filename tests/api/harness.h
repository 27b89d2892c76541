/* SPDX-License-Identifier: Apache-2.0 */
/* harness.h: what every API test needs: expected statuses, the built backends, memory between guard pages, threads.
 *
 * A test calls through EXPECT_OK or EXPECT_STATUS with `&why` as message; a mismatch fails the test and prints the
 * message and the label (backend and format) that was being tried.
 */
#ifndef ATTN_TESTS_HARNESS_H
#define ATTN_TESTS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn/attn.h"

/* The message of the call under test. Not for calls in other threads. */
extern attn_message why;

/* The call has to return ATTN_OK. */
#define EXPECT_OK(call) (harness_reset(), harness_expect((call), ATTN_OK, NULL, __FILE__, __LINE__))

/* The call has to return `wanted`, with a message of one line that contains `named` (NULL: anything). */
#define EXPECT_STATUS(call, wanted, named)                                                                             \
  (harness_reset(), harness_expect((call), (wanted), (named), __FILE__, __LINE__))

/* The call has to be refused with any status of the families 1x to 3x, and say why. */
#define EXPECT_REFUSED(call, named) (harness_reset(), harness_expect_refused((call), (named), __FILE__, __LINE__))

/* Fail with a formatted line unless the condition holds. */
#define CHECK(condition, ...)                                                                                          \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      harness_fail(__FILE__, __LINE__, __VA_ARGS__);                                                                   \
    }                                                                                                                  \
  } while (0)

#if defined(__GNUC__)
#define HARNESS_PRINTF __attribute__((format(printf, 3, 4)))
#else
#define HARNESS_PRINTF
#endif

void harness_reset(void);
void harness_expect(attn_status got, attn_status wanted, const char *named, const char *file, int line);
void harness_expect_refused(attn_status got, const char *named, const char *file, int line);
void harness_fail(const char *file, int line, const char *format, ...) HARNESS_PRINTF;

/* What is being tried, for failure lines. */
void harness_label(const char *label);

/* ---- Backends */

/* Run the body for each backend of this build on the CPU, and each float format. */
void for_each_backend(void (*body)(const char *backend));
void for_each_format(void (*body)(const char *backend, attn_format format));

/* Run the body for each backend and each format, quantised ones included, that it has attention over. */
void for_each_cache(void (*body)(const char *backend, attn_format format));

/* Run the body for each backend and each format with itself, then for pairs of formats that people ask for or that
   differ in every way (place and kind of scale, rotation, bytes), as far as the backend has attention over them. */
void for_each_pair(void (*body)(const char *backend, attn_format k, attn_format v));

/* 1 when a backend has attention over such a cache, and with queries of fp8_e4m3. REFERENCE has, or the test fails. */
int backend_serves(const char *backend, attn_format k_format, attn_format v_format);
int backend_serves_fp8_queries(const char *backend);

/* A cmocka test that runs a function for each backend. */
#define BACKEND_TEST(function)                                                                                         \
  {                                                                                                                    \
#function, each_backend, NULL, NULL, &(backend_test) {                                                             \
      function                                                                                                         \
    }                                                                                                                  \
  }
typedef struct backend_test {
  void (*body)(const char *backend);
} backend_test;
void each_backend(void **state);

/* The element type in which a float cache format stores. */
attn_dtype format_dtype(attn_format format);

/* ---- Contexts and threads */

/* An executor that starts a thread per task: needs nothing of the library's build. */
attn_executor harness_executor(void);

/* A CPU context of `num_threads` threads through harness_executor(). */
attn_context *open_context(int32_t num_threads);

/* ---- Memory */

/* Memory that ends right before an inaccessible page, with one in front too, filled with 0xFF (NaN in every type). */
typedef struct guarded {
  unsigned char *data;
  size_t bytes;
  void *base;
  size_t mapped;
} guarded;

guarded guard_make(size_t bytes);
void guard_free(guarded *memory);

/* A workspace of a plan: ATTN_WORKSPACE_ALIGN, exactly the bytes that the plan wants, filled with 0xFF. */
attn_workspace workspace_make(const attn_plan *plan, guarded *memory);

/* 1 when all bytes have this value. */
int all_bytes(const void *data, size_t bytes, unsigned char value);

/* ---- Numbers */

/* A small generator of our own: same numbers on every machine. */
uint32_t random_bits(uint32_t *state);
float random_normal(uint32_t *state); /* of mean 0 and variance 1, within 3.5 */

/* Element `index` of an array of float32, float16 or bfloat16, loading also of fp8_e4m3; storing rounds to nearest
   even. */
float load_element(const void *data, attn_dtype dtype, int64_t index);
void store_element(void *data, attn_dtype dtype, int64_t index, float value);

/* `value` as the type stores it. */
float rounded(attn_dtype dtype, float value);

/* 1 when both arrays hold the same bits. */
int same_bits(const float *a, const float *b, int64_t count);

/* ---- Tensors */

/* A DLTensor with room for its own shape and strides. tensor_over() makes it compact, with strides written out. */
typedef struct tensor {
  DLTensor t;
  int64_t shape[4];
  int64_t strides[4];
} tensor;

void tensor_over(tensor *out, void *data, attn_dtype dtype, int32_t ndim, const int64_t *shape);

/* tensor_over() with the extents listed. */
void tensor_1(tensor *out, void *data, attn_dtype dtype, int64_t a);
void tensor_2(tensor *out, void *data, attn_dtype dtype, int64_t a, int64_t b);
void tensor_3(tensor *out, void *data, attn_dtype dtype, int64_t a, int64_t b, int64_t c);
void tensor_4(tensor *out, void *data, attn_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d);

#endif
