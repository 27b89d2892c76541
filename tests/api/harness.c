/* SPDX-License-Identifier: Apache-2.0 */
/* harness.c: expected statuses, backends, guard pages, threads and small number helpers of the API tests. */
#define _GNU_SOURCE
#include "harness.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

attn_message why;
static char current_label[128] = "-";

void harness_reset(void) {
  memset(&why, 0x7E, sizeof why);
}

void harness_label(const char *label) {
  snprintf(current_label, sizeof current_label, "%s", label);
}

void harness_fail(const char *file, int line, const char *format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  print_error("[%s] %s\n", current_label, text);
  _fail(file, line);
}

/* A failing call's message: terminated, one line, not empty, of the code returned. */
static void check_message(attn_status got, const char *named, const char *file, int line) {
  if (why.code != got) {
    harness_fail(file, line, "%s was returned but the message has code %d", attn_status_name(got), (int)why.code);
  }
  if (memchr(why.text, 0, sizeof why.text) == NULL || why.text[0] == 0 || strchr(why.text, '\n') != NULL) {
    harness_fail(file, line, "the message of %s is not one terminated line", attn_status_name(got));
  }
  if (named != NULL && strstr(why.text, named) == NULL) {
    harness_fail(file, line, "%s does not name '%s': %s", attn_status_name(got), named, why.text);
  }
}

static const char *message_text(attn_status got) {
  return got == ATTN_OK ? "" : (memchr(why.text, 0, sizeof why.text) != NULL ? why.text : "(no message)");
}

void harness_expect(attn_status got, attn_status wanted, const char *named, const char *file, int line) {
  if (got != wanted) {
    harness_fail(file, line, "wanted %s, got %s: %s", attn_status_name(wanted), attn_status_name(got),
                 message_text(got));
  }
  if (got != ATTN_OK) {
    check_message(got, named, file, line);
  } else if (!all_bytes(&why, sizeof why, 0x7E)) {
    harness_fail(file, line, "a successful call wrote into the message");
  }
}

void harness_expect_refused(attn_status got, const char *named, const char *file, int line) {
  if ((int)got < 10 || (int)got > 40) {
    harness_fail(file, line, "wanted a refusal, got %s: %s", attn_status_name(got), message_text(got));
  }
  check_message(got, named, file, line);
}

/* ---- Backends */

static int next_backend(size_t *index, attn_backend_info *info) {
  while (attn_backend_get((*index)++, info)) {
    if (info->built && (info->rows & ATTN_ROWS_KV) != 0 && info->device == ATTN_DEVICE_CPU) {
      return 1;
    }
  }
  return 0;
}

void for_each_backend(void (*body)(const char *backend)) {
  attn_backend_info info;
  size_t index = 0;
  int count = 0;
  while (next_backend(&index, &info)) {
    harness_label(info.name);
    body(info.name);
    count++;
  }
  harness_label("-");
  CHECK(count > 0, "no backend is built for the CPU");
}

void for_each_format(void (*body)(const char *backend, attn_format format)) {
  static const attn_format formats[] = {ATTN_FORMAT_FLOAT32, ATTN_FORMAT_FLOAT16, ATTN_FORMAT_BFLOAT16};
  attn_backend_info info;
  size_t index = 0;
  int count = 0;
  while (next_backend(&index, &info)) {
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
      char label[96];
      snprintf(label, sizeof label, "%s %s", info.name, attn_format_name(formats[i]));
      harness_label(label);
      body(info.name, formats[i]);
      count++;
    }
  }
  harness_label("-");
  CHECK(count > 0, "no backend is built for the CPU");
}

/* 1 when the backend takes this problem of 64 elements; REFERENCE takes every valid one. */
static int takes(const char *backend, attn_problem *problem) {
  attn_context *context = open_context(1);
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  attn_message message;
  const char *name;
  problem->num_q_heads = problem->num_kv_heads = 1;
  problem->qk_head_size = 64;
  problem->scale = 0.125f;
  options.backend = backend;
  attn_status status = attn_select(context, problem, NULL, &options, &name, &message);
  CHECK(status == ATTN_OK || (status == ATTN_E_BACKEND && strcmp(backend, "REFERENCE") != 0), "%s",
        attn_status_name(status));
  attn_context_destroy(context);
  return status == ATTN_OK;
}

int backend_serves(const char *backend, attn_format k_format, attn_format v_format) {
  attn_problem problem = ATTN_PROBLEM_INIT;
  problem.k_format = k_format;
  problem.v_format = v_format;
  return takes(backend, &problem);
}

int backend_serves_fp8_queries(const char *backend) {
  attn_problem problem = ATTN_PROBLEM_INIT;
  problem.q_dtype = ATTN_DTYPE_FP8_E4M3;
  problem.k_format = ATTN_FORMAT_BFLOAT16;
  return takes(backend, &problem);
}

void for_each_cache(void (*body)(const char *backend, attn_format format)) {
  attn_backend_info info;
  size_t index = 0;
  while (next_backend(&index, &info)) {
    for (int f = ATTN_FORMAT_FLOAT32; f <= ATTN_FORMAT_INT4_PER_TOKEN_HEAD; f++) {
      char label[96];
      snprintf(label, sizeof label, "%s %s", info.name, attn_format_name((attn_format)f));
      harness_label(label);
      if (backend_serves(info.name, (attn_format)f, (attn_format)f)) {
        body(info.name, (attn_format)f);
      }
    }
  }
  harness_label("-");
}

static void one_pair(const char *backend, attn_format k, attn_format v,
                     void (*body)(const char *backend, attn_format k, attn_format v)) {
  char label[96];
  snprintf(label, sizeof label, "%s %s,%s", backend, attn_format_name(k), attn_format_name(v));
  harness_label(label);
  if (backend_serves(backend, k, v)) {
    body(backend, k, v);
  }
}

void for_each_pair(void (*body)(const char *backend, attn_format k, attn_format v)) {
  static const attn_format pairs[][2] = {
      {ATTN_FORMAT_INT8_PER_TOKEN_HEAD, ATTN_FORMAT_INT4_PER_TOKEN_HEAD},
      {ATTN_FORMAT_INT4_PER_TOKEN_HEAD, ATTN_FORMAT_FP8_E5M2},
      {ATTN_FORMAT_FP8_E4M3, ATTN_FORMAT_INT8_PER_TOKEN_HEAD},
      {ATTN_FORMAT_BFLOAT16, ATTN_FORMAT_INT4_PER_TOKEN_HEAD},
      {ATTN_FORMAT_FP8_PER_TOKEN_HEAD, ATTN_FORMAT_FLOAT16},
      {ATTN_FORMAT_FLOAT32, ATTN_FORMAT_FP8_E4M3},
  };
  attn_backend_info info;
  size_t index = 0;
  while (next_backend(&index, &info)) {
    for (int f = ATTN_FORMAT_FLOAT32; f <= ATTN_FORMAT_INT4_PER_TOKEN_HEAD; f++) {
      one_pair(info.name, (attn_format)f, (attn_format)f, body);
    }
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
      one_pair(info.name, pairs[i][0], pairs[i][1], body);
    }
  }
  harness_label("-");
}

void each_backend(void **state) {
  const backend_test *test = *state;
  for_each_backend(test->body);
}

attn_dtype format_dtype(attn_format format) {
  return format == ATTN_FORMAT_FLOAT16    ? ATTN_DTYPE_FLOAT16
         : format == ATTN_FORMAT_BFLOAT16 ? ATTN_DTYPE_BFLOAT16
                                          : ATTN_DTYPE_FLOAT32;
}

/* ---- Contexts and threads */

typedef struct one_task {
  attn_task task;
  void *argument;
  size_t index;
} one_task;

static void *run_one_task(void *argument) {
  one_task *one = argument;
  one->task(one->argument, one->index);
  return NULL;
}

/* Starts in falling order, so that a backend that relies on rising order is found out. */
static void run_in_threads(void *user, attn_task task, void *task_argument, size_t count) {
  enum { MAX = 64 };
  (void)user;
  for (size_t done = 0; done < count;) {
    pthread_t threads[MAX];
    one_task tasks[MAX];
    int started[MAX];
    size_t n = count - done < MAX ? count - done : MAX;
    for (size_t i = 0; i < n; i++) {
      tasks[i] = (one_task){task, task_argument, count - 1 - done - i};
      started[i] = i + 1 < n && pthread_create(&threads[i], NULL, run_one_task, &tasks[i]) == 0;
      if (!started[i]) {
        run_one_task(&tasks[i]);
      }
    }
    for (size_t i = 0; i < n; i++) {
      if (started[i]) {
        pthread_join(threads[i], NULL);
      }
    }
    done += n;
  }
}

attn_executor harness_executor(void) {
  attn_executor executor = {NULL, run_in_threads};
  return executor;
}

attn_context *open_context(int32_t num_threads) {
  attn_executor executor = harness_executor();
  attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
  attn_context *context = NULL;
  options.num_threads = num_threads;
  options.executor = &executor;
  EXPECT_OK(attn_context_create(&options, &context, &why));
  CHECK(context != NULL, "attn_context_create returned ATTN_OK and no context");
  return context;
}

/* ---- Memory */

guarded guard_make(size_t bytes) {
  guarded memory;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t inner = (bytes + page - 1) / page * page;
  memory.bytes = bytes;
  memory.mapped = inner + 2 * page;
  memory.base = mmap(NULL, memory.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory.base != MAP_FAILED, "mmap of %zu bytes failed", memory.mapped);
  unsigned char *first = (unsigned char *)memory.base + page;
  CHECK(inner == 0 || mprotect(first, inner, PROT_READ | PROT_WRITE) == 0, "mprotect failed");
  memory.data = first + inner - bytes;
  if (inner > 0) {
    memset(first, 0xFF, inner);
  }
  return memory;
}

void guard_free(guarded *memory) {
  if (memory->base != NULL) {
    munmap(memory->base, memory->mapped);
  }
  memset(memory, 0, sizeof *memory);
}

attn_workspace workspace_make(const attn_plan *plan, guarded *memory) {
  size_t bytes = attn_plan_workspace_bytes(plan);
  CHECK(bytes % ATTN_WORKSPACE_ALIGN == 0, "%zu workspace bytes are no multiple of the alignment", bytes);
  *memory = guard_make(bytes);
  attn_workspace workspace = {memory->data, bytes};
  return workspace;
}

int all_bytes(const void *data, size_t bytes, unsigned char value) {
  const unsigned char *p = data;
  for (size_t i = 0; i < bytes; i++) {
    if (p[i] != value) {
      return 0;
    }
  }
  return 1;
}

/* ---- Numbers */

uint32_t random_bits(uint32_t *state) {
  uint32_t x = *state + 0x9E3779B9u;
  *state = x;
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

float random_normal(uint32_t *state) {
  double sum = 0;
  for (int i = 0; i < 4; i++) {
    sum += (double)random_bits(state) / 4294967296.0;
  }
  return (float)((sum - 2.0) * 1.7320508);
}

static uint16_t half_bits(float value) {
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  double a = fabs((double)value);
  int exponent;
  if (isnan(value)) {
    return (uint16_t)(sign | 0x7E00);
  }
  if (a >= 65520.0) {
    return (uint16_t)(sign | 0x7C00);
  }
  if (a < ldexp(1.0, -14)) {
    return (uint16_t)(sign | (uint16_t)nearbyint(ldexp(a, 24)));
  }
  double fraction = frexp(a, &exponent);
  int bits = ((exponent + 14) << 10) + (int)nearbyint(fraction * 2048.0) - 1024;
  return (uint16_t)(sign | (uint16_t)bits);
}

static float half_value(uint16_t bits) {
  int exponent = (bits >> 10) & 31;
  double mantissa = (double)(bits & 1023);
  double value = exponent == 31  ? ((bits & 1023) != 0 ? (double)NAN : (double)INFINITY)
                 : exponent == 0 ? ldexp(mantissa, -24)
                                 : ldexp(1024.0 + mantissa, exponent - 25);
  return (float)((bits & 0x8000) != 0 ? -value : value);
}

static uint16_t brain_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (isnan(value)) {
    return (uint16_t)((bits >> 16) | 0x40);
  }
  return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

float load_element(const void *data, attn_dtype dtype, int64_t index) {
  const unsigned char *at = (const unsigned char *)data + index * (int64_t)attn_dtype_bytes(dtype);
  uint16_t bits;
  float value;
  if (dtype == ATTN_DTYPE_FLOAT32) {
    memcpy(&value, at, sizeof value);
    return value;
  }
  if (dtype == ATTN_DTYPE_FP8_E4M3) {
    int exponent = at[0] >> 3 & 15;
    float magnitude = (at[0] & 0x7F) == 0x7F ? NAN
                      : exponent == 0        ? (float)(at[0] & 7) * 0x1p-9f
                                             : ldexpf((float)(8 + (at[0] & 7)), exponent - 10);
    return copysignf(magnitude, at[0] & 0x80 ? -1.0f : 1.0f);
  }
  memcpy(&bits, at, sizeof bits);
  if (dtype == ATTN_DTYPE_FLOAT16) {
    return half_value(bits);
  }
  uint32_t wide = (uint32_t)bits << 16;
  memcpy(&value, &wide, sizeof value);
  return value;
}

/* The nearest of the 256 codes, by looking at all; of two as near the one whose last bit is 0. Saturates. */
static unsigned char e4m3_code(float value) {
  unsigned char best = 0;
  for (unsigned char code = 1; code < 0x7F && !isnan(value); code++) {
    float distance = fabsf(fabsf(value) - load_element(&code, ATTN_DTYPE_FP8_E4M3, 0));
    float least = fabsf(fabsf(value) - load_element(&best, ATTN_DTYPE_FP8_E4M3, 0));
    best = distance < least || (distance == least && code % 2 == 0) ? code : best;
  }
  best = isinf(value) ? 0x7E : best;
  return isnan(value) ? 0x7F : (unsigned char)(best | (signbit(value) ? 0x80 : 0));
}

void store_element(void *data, attn_dtype dtype, int64_t index, float value) {
  unsigned char *at = (unsigned char *)data + index * (int64_t)attn_dtype_bytes(dtype);
  if (dtype == ATTN_DTYPE_FP8_E4M3) {
    *at = e4m3_code(value);
    return;
  }
  if (dtype == ATTN_DTYPE_FLOAT32) {
    memcpy(at, &value, sizeof value);
    return;
  }
  uint16_t bits = dtype == ATTN_DTYPE_FLOAT16 ? half_bits(value) : brain_bits(value);
  memcpy(at, &bits, sizeof bits);
}

float rounded(attn_dtype dtype, float value) {
  unsigned char at[4];
  store_element(at, dtype, 0, value);
  return load_element(at, dtype, 0);
}

int same_bits(const float *a, const float *b, int64_t count) {
  return count == 0 || memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

/* ---- Tensors */

void tensor_over(tensor *out, void *data, attn_dtype dtype, int32_t ndim, const int64_t *shape) {
  int64_t stride = 1;
  memset(out, 0, sizeof *out);
  for (int32_t i = ndim - 1; i >= 0; i--) {
    out->shape[i] = shape[i];
    out->strides[i] = stride;
    stride *= shape[i] > 0 ? shape[i] : 1;
  }
  attn_tensor_cpu(&out->t, data, dtype, ndim, out->shape);
  out->t.strides = out->strides;
}

void tensor_1(tensor *out, void *data, attn_dtype dtype, int64_t a) {
  tensor_over(out, data, dtype, 1, &a);
}

void tensor_2(tensor *out, void *data, attn_dtype dtype, int64_t a, int64_t b) {
  int64_t shape[] = {a, b};
  tensor_over(out, data, dtype, 2, shape);
}

void tensor_3(tensor *out, void *data, attn_dtype dtype, int64_t a, int64_t b, int64_t c) {
  int64_t shape[] = {a, b, c};
  tensor_over(out, data, dtype, 3, shape);
}

void tensor_4(tensor *out, void *data, attn_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d) {
  int64_t shape[] = {a, b, c, d};
  tensor_over(out, data, dtype, 4, shape);
}
