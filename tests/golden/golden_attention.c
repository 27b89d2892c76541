/* SPDX-License-Identifier: Apache-2.0 */
/* Every request of golden/attention/data through `attn run`, by each backend, plain and with --poison, against the
   answers of the independent float64 script (its README states the comparison): per row of a token and head,
   RMS(out - ref) within out_bound, lse within lse_bound, caches and gathered rows byte for byte. --poison may not
   change a bit of what the batch owns. */
#define _XOPEN_SOURCE 700
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <cjson/cJSON.h>

#include "../api/command_fixture.h"

#define DATA_DIR ATTN_GOLDEN_DIR "/attention/data"
#define SUFFIX ".safetensors"
#define EXPECTED ".expected.safetensors"

/* ---- Files ------------------------------------------------------------------------------------------------------- */

typedef struct golden_file {
  unsigned char *content;
  cJSON *header;
  const unsigned char *data;
} golden_file;

typedef struct golden_tensor {
  char dtype[12];
  int rank;
  int64_t shape[4];
  size_t elements;
  size_t bytes;
  const unsigned char *data;
} golden_tensor;

static int load(const char *path, golden_file *file) {
  size_t bytes = 0;
  uint64_t header_bytes;
  memset(file, 0, sizeof(*file));
  file->content = fixture_read(path, &bytes);
  if (file->content == NULL || bytes < 8) {
    return 0;
  }
  memcpy(&header_bytes, file->content, 8);
  file->header = cJSON_ParseWithLength((const char *)file->content + 8, (size_t)header_bytes);
  file->data = file->content + 8 + header_bytes;
  return file->header != NULL;
}

static void unload(golden_file *file) {
  cJSON_Delete(file->header);
  free(file->content);
  memset(file, 0, sizeof(*file));
}

static int find(const golden_file *file, const char *name, golden_tensor *tensor) {
  const cJSON *entry = cJSON_GetObjectItemCaseSensitive(file->header, name);
  if (entry == NULL) {
    return 0;
  }
  memset(tensor, 0, sizeof(*tensor));
  snprintf(tensor->dtype, sizeof(tensor->dtype), "%s",
           cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "dtype")));
  const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
  tensor->elements = 1;
  for (const cJSON *axis = shape->child; axis != NULL && tensor->rank < 4; axis = axis->next) {
    tensor->shape[tensor->rank++] = (int64_t)axis->valuedouble;
    tensor->elements *= (size_t)axis->valuedouble;
  }
  const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
  tensor->data = file->data + (size_t)offsets->child->valuedouble;
  tensor->bytes = (size_t)offsets->child->next->valuedouble - (size_t)offsets->child->valuedouble;
  return 1;
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static double half_value(unsigned bits) {
  unsigned exponent = bits >> 10 & 31;
  unsigned fraction = bits & 1023;
  double magnitude = exponent == 31  ? (fraction != 0 ? (double)NAN : (double)INFINITY)
                     : exponent == 0 ? ldexp(fraction, -24)
                                     : ldexp(1024.0 + fraction, (int)exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

static double element(const golden_tensor *tensor, size_t i) {
  if (strcmp(tensor->dtype, "F32") == 0) {
    float value;
    memcpy(&value, tensor->data + 4 * i, 4);
    return value;
  }
  uint16_t bits;
  memcpy(&bits, tensor->data + 2 * i, 2);
  if (strcmp(tensor->dtype, "F16") == 0) {
    return half_value(bits);
  }
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

/* ---- Comparison -------------------------------------------------------------------------------------------------- */

typedef struct verdict {
  char text[256]; /* empty: fine */
  double worst;   /* largest share of a bound */
} verdict;

static void complain(verdict *judged, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (judged->text[0] == '\0') {
    vsnprintf(judged->text, sizeof(judged->text), format, arguments);
  }
  va_end(arguments);
}

static void note_share(verdict *judged, const char *what, size_t row, double error, double bound) {
  double share = error == 0.0 ? 0.0 : bound > 0.0 ? error / bound : (double)INFINITY;
  if (!(share <= 1.0)) {
    complain(judged, "%s: row %zu is off by %.3g, the bound is %.3g", what, row, error, bound);
  }
  judged->worst = share > judged->worst ? share : judged->worst;
}

static void compare_exact(const golden_file *expected, const golden_file *found, verdict *judged) {
  static const char *const names[] = {"k_cache", "v_cache", "k", "v"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
    golden_tensor want;
    golden_tensor got;
    if (!find(expected, names[i], &want)) {
      continue;
    }
    if (!find(found, names[i], &got)) {
      complain(judged, "%s is missing", names[i]);
    } else if (strcmp(want.dtype, got.dtype) != 0 || want.rank != got.rank ||
               memcmp(want.shape, got.shape, sizeof(want.shape)) != 0) {
      complain(judged, "%s has another type or shape", names[i]);
    } else if (memcmp(want.data, got.data, want.bytes) != 0) {
      complain(judged, "%s differs", names[i]);
    }
  }
}

/* What out and lse are compared with. */
typedef struct answer {
  golden_tensor out_hi, out_lo, lse_hi, lse_lo, out_bound, lse_bound;
} answer;

static void compare_row(const answer *want, const golden_tensor *out, const golden_tensor *lse, size_t row,
                        verdict *judged) {
  size_t size = (size_t)want->out_hi.shape[2];
  double square = 0.0;
  size_t count = 0;
  for (size_t i = row * size; i < (row + 1) * size; ++i) {
    double ref = element(&want->out_hi, i) + element(&want->out_lo, i);
    double got = element(out, i);
    if (isnan(ref) != isnan(got)) {
      complain(judged, "out: row %zu has NaN in other places", row);
    } else if (!isnan(ref)) {
      square += (got - ref) * (got - ref);
      ++count;
    }
  }
  note_share(judged, "out", row, count > 0 ? sqrt(square / (double)count) : 0.0, element(&want->out_bound, row));
  double ref = element(&want->lse_hi, row);
  double got = element(lse, row);
  if (isnan(ref) != isnan(got)) {
    complain(judged, "lse: row %zu is NaN or should be", row);
  } else if (!isnan(ref) && isinf(ref)) {
    note_share(judged, "lse", row, got == ref ? 0.0 : (double)INFINITY, 0.0);
  } else if (!isnan(ref)) {
    note_share(judged, "lse", row, fabs(got - (ref + element(&want->lse_lo, row))), element(&want->lse_bound, row));
  }
}

/* Rows beyond the batch's tokens: 0, or NaN with --poison. */
static void compare_rest(const golden_tensor *tensor, size_t from, int poison, verdict *judged) {
  for (size_t i = from; i < tensor->elements; ++i) {
    double value = element(tensor, i);
    if (poison ? !isnan(value) : value != 0.0) {
      complain(judged, "element %zu, beyond the batch, is %g", i, value);
    }
  }
}

static void compare_numbers(const golden_file *request, const golden_file *expected, const golden_file *found,
                            int poison, verdict *judged) {
  answer want;
  golden_tensor out;
  golden_tensor lse;
  golden_tensor starts;
  if (!find(expected, "out_hi", &want.out_hi)) {
    return;
  }
  if (!find(expected, "out_lo", &want.out_lo) || !find(expected, "lse_hi", &want.lse_hi) ||
      !find(expected, "lse_lo", &want.lse_lo) || !find(expected, "out_bound", &want.out_bound) ||
      !find(expected, "lse_bound", &want.lse_bound) || !find(found, "out", &out) || !find(found, "lse", &lse)) {
    complain(judged, "a tensor is missing");
    return;
  }
  if (memcmp(out.shape, want.out_hi.shape, sizeof(out.shape)) != 0 ||
      memcmp(lse.shape, want.lse_hi.shape, sizeof(lse.shape)) != 0) {
    complain(judged, "out or lse has another shape");
    return;
  }
  size_t tokens = (size_t)out.shape[0];
  size_t heads = (size_t)out.shape[1];
  if (find(request, "query_start_loc", &starts)) {
    int32_t total;
    memcpy(&total, starts.data + 4 * (starts.elements - 1), 4);
    tokens = (size_t)total;
  }
  for (size_t row = 0; row < tokens * heads; ++row) {
    compare_row(&want, &out, &lse, row, judged);
  }
  compare_rest(&out, tokens * heads * (size_t)out.shape[2], poison, judged);
  compare_rest(&lse, tokens * heads, poison, judged);
}

/* The bytes of the batch's own rows are those of the run without poison. */
static void compare_bits(const golden_file *request, const golden_file *plain, const golden_file *poisoned,
                         verdict *judged) {
  static const char *const names[] = {"out", "lse", "k_cache", "v_cache", "k", "v"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
    golden_tensor a;
    golden_tensor b;
    golden_tensor starts;
    if (!find(plain, names[i], &a) || !find(poisoned, names[i], &b)) {
      continue;
    }
    size_t bytes = a.bytes;
    if (i < 2 && a.shape[0] > 0 && find(request, "query_start_loc", &starts)) {
      int32_t total;
      memcpy(&total, starts.data + 4 * (starts.elements - 1), 4);
      bytes = a.bytes / (size_t)a.shape[0] * (size_t)total;
    }
    if (a.bytes != b.bytes || memcmp(a.data, b.data, bytes) != 0) {
      complain(judged, "--poison changes bits of %s", names[i]);
    }
  }
}

/* ---- The test ---------------------------------------------------------------------------------------------------- */

/* Run one request by one backend both ways; 1 when all is well. */
static int try_request(fixture *fix, const char *name, const char *backend, double *worst) {
  char request_path[600];
  char expected_path[600];
  char result_path[2][600];
  golden_file request;
  golden_file expected;
  golden_file results[2] = {{0}};
  verdict judged = {{0}, 0.0};
  snprintf(request_path, sizeof(request_path), "%s/%s%s", DATA_DIR, name, SUFFIX);
  snprintf(expected_path, sizeof(expected_path), "%s/%s%s", DATA_DIR, name, EXPECTED);
  if (!load(request_path, &request) || !load(expected_path, &expected)) {
    fail_msg("%s or its answer cannot be read", request_path);
  }
  for (int poison = 0; poison < 2 && judged.text[0] == '\0'; ++poison) {
    fixture_path(fix, poison ? "poisoned.safetensors" : "plain.safetensors", result_path[poison],
                 sizeof(result_path[poison]));
    if (fixture_run(fix, "run", request_path, "-o", result_path[poison], "--backend", backend,
                    poison ? "--poison" : NULL, NULL) != 0 ||
        !load(result_path[poison], &results[poison])) {
      complain(&judged, "exit %d: %.160s", fix->status, fix->err);
      break;
    }
    compare_exact(&expected, &results[poison], &judged);
    compare_numbers(&request, &expected, &results[poison], poison, &judged);
  }
  if (judged.text[0] == '\0') {
    compare_bits(&request, &results[0], &results[1], &judged);
  } else {
    print_error("%s, %s: %s\n", name, backend, judged.text);
  }
  *worst = judged.worst > *worst ? judged.worst : *worst;
  unload(&request);
  unload(&expected);
  unload(&results[0]);
  unload(&results[1]);
  return judged.text[0] == '\0';
}

static void run_all(const char *backend) {
  static fixture fix;
  DIR *folder = opendir(DATA_DIR);
  size_t count = 0;
  size_t failed = 0;
  double worst = 0.0;
  assert_non_null(folder);
  assert_true(fixture_open(&fix));
  for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
    char name[300];
    snprintf(name, sizeof(name), "%s", entry->d_name);
    char *suffix = strstr(name, SUFFIX);
    if (suffix == NULL || strstr(name, EXPECTED) != NULL || suffix[strlen(SUFFIX)] != '\0') {
      continue;
    }
    *suffix = '\0';
    ++count;
    failed += !try_request(&fix, name, backend, &worst);
  }
  closedir(folder);
  fixture_close(&fix);
  print_message("%s: %zu requests, %zu failed, largest share of a bound %.3g\n", backend, count, failed, worst);
  assert_true(count >= 60);
  assert_int_equal(failed, 0);
}

static void test_reference(void **state) {
  (void)state;
  run_all("REFERENCE");
}

static void test_cpu(void **state) {
  (void)state;
  run_all("CPU_ATTN");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_reference),
      cmocka_unit_test(test_cpu),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
