/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors reader, from outside: good files are read, whatever their layout; each way in which a header can
   lie is refused with exit code 2 and one line that names it; a file cut anywhere or with any byte changed never
   crashes. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <sys/stat.h>

#include "request_builder.h"

static fixture fix;
static char in_path[300];
static char out_path[300];

static int set_up(void **state) {
  (void)state;
  if (!fixture_open(&fix)) {
    return -1;
  }
  fixture_path(&fix, "in.safetensors", in_path, sizeof(in_path));
  fixture_path(&fix, "out.safetensors", out_path, sizeof(out_path));
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  fixture_close(&fix);
  return 0;
}

static int run_it(void) {
  return fixture_run(&fix, "run", in_path, "-o", out_path, NULL);
}

/* A file of this header and this many bytes of data. */
static void save_header(const char *header, size_t header_bytes, uint64_t claimed, size_t data_bytes) {
  size_t bytes = 8 + header_bytes + data_bytes;
  unsigned char *file = calloc(1, bytes + 1);
  assert_non_null(file);
  for (size_t i = 0; i < 8; ++i) {
    file[i] = (unsigned char)(claimed >> (8 * i));
  }
  memcpy(file + 8, header, header_bytes);
  for (size_t i = 8 + header_bytes; i < bytes; ++i) {
    file[i] = (unsigned char)(i * 37);
  }
  assert_true(fixture_write(in_path, file, bytes));
  free(file);
}

static void expect_refused(const char *what, const char *named) {
  unlink(out_path);
  int code = run_it();
  if (code != 2 || !fixture_one_line(&fix) || strstr(fix.err, named) == NULL || fix.out[0] != '\0') {
    fail_msg("%s: exit %d, expected 2 and a line with \"%s\", found: %s", what, code, named, fix.err);
  }
  assert_int_not_equal(access(out_path, F_OK), 0);
}

#define META "\"__metadata__\":{\"op\":\"merge\"}"
#define OUT0 "\"out_0\":{\"dtype\":\"F32\",\"shape\":[1,1,2],\"data_offsets\":[0,8]}"
#define LSE0 "\"lse_0\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[8,12]}"

static void test_good_files(void **state) {
  (void)state;
  static const char *const headers[] = {
      "{" META "," OUT0 "," LSE0 "}",
      "{" OUT0 "," META "," LSE0 "}    \n",
      "{ \t\n" LSE0 " , " OUT0 " , " META " }   ",
      "{" META ",\"\\u006fut_0\":{\"shape\":[1,1,2],\"data_offsets\":[0,8],\"dtype\":\"F32\"}," LSE0 "}",
      "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[1,1e0,2.0],\"data_offsets\":[4,12]},"
      "\"lse_0\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}",
      "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[0,1,2],\"data_offsets\":[0,0]},"
      "\"lse_0\":{\"dtype\":\"F32\",\"shape\":[0,1],\"data_offsets\":[0,0]},"
      "\"sinks\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
  };
  for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); ++i) {
    save_header(headers[i], strlen(headers[i]), strlen(headers[i]), i == 5 ? 4 : 12);
    if (run_it() != 0) {
      fail_msg("good file %zu: exit %d: %s", i, fix.status, fix.err);
    }
  }
}

static void test_hostile_headers(void **state) {
  (void)state;
  static const struct {
    const char *what;
    const char *header;
    size_t data_bytes;
    const char *named;
  } rows[] = {
      {"an empty header", "", 0, "JSON"},
      {"no object", "[]", 0, "JSON"},
      {"a cut object", "{" META, 0, "JSON"},
      {"text behind the object", "{" META "," OUT0 "," LSE0 "} {}", 12, "goes on"},
      {"nesting", "{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0, "JSON"},
      {"a name with NUL", "{" META ",\"out_0\\u0000x\":{\"dtype\":\"F32\",\"shape\":[1,1,2],\"data_offsets\":[0,8]}}",
       8, "u0000"},
      {"a control byte", "{" META ",\"out\x01\":{}}", 0, "control byte"},
      {"text that is not UTF-8", "{" META ",\"out\xC3\x28\":{}}", 0, "UTF-8"},
      {"an overlong form", "{" META ",\"out\xC0\x80\":{}}", 0, "UTF-8"},
      {"a surrogate in UTF-8", "{" META ",\"out\xED\xA0\x80\":{}}", 0, "UTF-8"},
      {"metadata that is no object", "{\"__metadata__\":[]}", 0, "__metadata__"},
      {"a value that is no string", "{\"__metadata__\":{\"op\":1}}", 0, "op"},
      {"metadata twice", "{" META "," META "}", 0, "twice"},
      {"a key twice", "{\"__metadata__\":{\"op\":\"merge\",\"op\":\"merge\"}}", 0, "op"},
      {"a tensor twice", "{" META "," OUT0 ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}", 12,
       "twice"},
      {"a tensor that is no object", "{" META ",\"out_0\":7}", 0, "out_0"},
      {"no dtype", "{" META ",\"out_0\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "out_0"},
      {"a member too many", "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8,
       "out_0"},
      {"a member twice",
       "{" META ",\"out_0\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "out_0"},
      {"F64", "{" META ",\"out_0\":{\"dtype\":\"F64\",\"shape\":[1,1,1],\"data_offsets\":[0,8]}}", 8, "F64"},
      {"an unknown type", "{" META ",\"out_0\":{\"dtype\":\"Q4_1\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "Q4_1"},
      {"a type that is no string", "{" META ",\"out_0\":{\"dtype\":3,\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
       "out_0"},
      {"a shape that is no array", "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8,
       "shape"},
      {"a negative extent", "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8,
       "shape[0]"},
      {"a broken extent", "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[2.5],\"data_offsets\":[0,8]}}", 8,
       "shape[0]"},
      {"a huge extent", "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[1e30],\"data_offsets\":[0,8]}}", 8,
       "shape[0]"},
      {"an extent in quotes", "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8,
       "shape[0]"},
      {"a product beyond 64 bits",
       "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4],\"data_offsets\":[0,8]}}", 8,
       "64 bits"},
      {"nine axes", "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8,
       "axes"},
      {"one offset", "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}}", 8, "data_offsets"},
      {"three offsets", "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8,
       "data_offsets"},
      {"a negative offset", "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8,
       "data_offsets"},
      {"reversed offsets", "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8,
       "[8, 0]"},
      {"an end beyond the file", "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 8,
       "8 bytes of data"},
      {"an end beyond everything",
       "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[9007199254740984,9007199254740992]}}", 8,
       "8 bytes of data"},
      {"bytes that the shape does not need",
       "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "need 4"},
      {"bytes that are missing", "{" META ",\"out_0\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8,
       "need 12"},
      {"an overlap", "{" META "," OUT0 ",\"lse_0\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[4,8]}}", 8,
       "inside a tensor"},
      {"a hole", "{" META "," OUT0 ",\"lse_0\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[12,16]}}", 16,
       "hole"},
      {"data behind the tensors", "{" META "," OUT0 "," LSE0 "}", 16, "end at byte 12"},
      {"data that is missing", "{" META "," OUT0 "," LSE0 "}", 8, "lse_0"},
      {"an unknown tensor", "{" META ",\"weights\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
       "weights"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
    size_t bytes = strlen(rows[i].header);
    save_header(rows[i].header, bytes, bytes, rows[i].data_bytes);
    expect_refused(rows[i].what, rows[i].named);
  }
}

static void test_lying_lengths(void **state) {
  (void)state;
  static const char header[] = "{" META "," OUT0 "," LSE0 "}";
  const uint64_t lengths[] = {sizeof(header) + 12, 1u << 20, 1u << 31, UINT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 7};
  for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); ++i) {
    save_header(header, sizeof(header) - 1, lengths[i], 12);
    expect_refused("a header longer than the file", "header claims");
  }
  save_header(header, sizeof(header) - 1, 0, 12);
  expect_refused("a header of no bytes", "JSON");
  for (size_t bytes = 0; bytes < 8; ++bytes) {
    assert_true(fixture_write(in_path, "\x10\0\0\0\0\0\0\0", bytes));
    expect_refused("a file shorter than its length", "starts with a length");
  }
}

/* A deep header and one of very many members: refused, and quickly. */
static void test_bombs(void **state) {
  (void)state;
  size_t bytes = 1 << 20;
  char *header = malloc(bytes);
  assert_non_null(header);
  memset(header, '[', bytes);
  memcpy(header, "{\"a\":", 5);
  save_header(header, bytes, bytes, 0);
  expect_refused("a nesting bomb", "JSON");
  size_t used = (size_t)sprintf(header, "{%s", META);
  for (size_t i = 0; used < bytes - 80; ++i) {
    used += (size_t)sprintf(header + used, ",\"t%zu\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", i);
  }
  header[used++] = '}';
  save_header(header, used, used, 0);
  expect_refused("sixteen thousand tensors", "t0");
  free(header);
}

static const char attention[] =
    "op=attention q:F32[3,2,4] k_cache:BF16[3,4,1,4] v_cache:F16[3,4,1,4] block_table:I32[2,2]=1,2,0,1 "
    "query_start_loc:I32[3]=0,2,3 seq_lens:I32[2]=6,3 sinks:F32[2]";

/* A good request cut after every byte, and with single bytes changed: a documented exit code, one line, no signal. */
static void test_damaged_files(void **state) {
  (void)state;
  builder *made = build_request(attention, "");
  assert_non_null(made);
  assert_true(build_save(made, in_path));
  free(made);
  assert_int_equal(run_it(), 0);
  size_t bytes = 0;
  unsigned char *good = fixture_read(in_path, &bytes);
  unsigned char *bad = malloc(bytes);
  assert_non_null(good);
  assert_non_null(bad);
  uint32_t random = 12345;
  for (int round = 0; round < 240; ++round) {
    size_t length = bytes;
    memcpy(bad, good, bytes);
    random = random * 1664525u + 1013904223u;
    if (round % 4 == 0) {
      length = random % bytes;
    } else {
      for (int change = 0; change < round % 4; ++change) {
        random = random * 1664525u + 1013904223u;
        bad[(random >> 8) % bytes] = (unsigned char)(random >> 24 ^ (random & 15));
      }
    }
    assert_true(fixture_write(in_path, bad, length));
    int code = run_it();
    if (code > 2 || (code != 0 && !fixture_one_line(&fix))) {
      fail_msg("damaged file, round %d: exit %d: %s", round, code, fix.err);
    }
  }
  free(good);
  free(bad);
}

/* The same request with aligned and with odd data offsets gives the same file. */
static void test_unaligned_data(void **state) {
  (void)state;
  unsigned char *results[2] = {NULL, NULL};
  size_t bytes[2] = {0, 0};
  for (int unaligned = 0; unaligned < 2; ++unaligned) {
    builder *made = build_request(attention, "");
    assert_non_null(made);
    made->unaligned = unaligned;
    assert_true(build_save(made, in_path));
    free(made);
    assert_int_equal(run_it(), 0);
    results[unaligned] = fixture_read(out_path, &bytes[unaligned]);
    assert_non_null(results[unaligned]);
  }
  assert_int_equal(bytes[0], bytes[1]);
  assert_memory_equal(results[0], results[1], bytes[0]);
  uint64_t header_bytes;
  memcpy(&header_bytes, results[0], sizeof(header_bytes));
  assert_int_equal(header_bytes % 8, 0);
  free(results[0]);
  free(results[1]);
}

static void test_files_that_cannot_be_read(void **state) {
  (void)state;
  assert_int_equal(fixture_run(&fix, "run", "/nonexistent/in.safetensors", "-o", out_path, NULL), 1);
  assert_true(fixture_one_line(&fix));
  assert_int_equal(fixture_run(&fix, "run", fix.folder, "-o", out_path, NULL), 1);
  assert_true(fixture_one_line(&fix));
  assert_int_equal(fixture_run(&fix, "run", "/dev/zero", "-o", out_path, NULL), 1);
  assert_true(fixture_one_line(&fix));
  unlink(in_path);
  assert_int_equal(mkfifo(in_path, 0600), 0);
  assert_int_equal(run_it(), 1);
  assert_true(fixture_one_line(&fix));
  unlink(in_path);
  /* a file far larger than any memory */
  FILE *sparse = fopen(in_path, "wb");
  assert_non_null(sparse);
  if (ftruncate(fileno(sparse), (off_t)1 << 43) == 0) {
    fclose(sparse);
    assert_int_equal(run_it(), 1);
    assert_true(fixture_one_line(&fix));
  } else {
    fclose(sparse);
  }
  unlink(in_path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_good_files),
      cmocka_unit_test(test_hostile_headers),
      cmocka_unit_test(test_lying_lengths),
      cmocka_unit_test(test_bombs),
      cmocka_unit_test(test_damaged_files),
      cmocka_unit_test(test_unaligned_data),
      cmocka_unit_test(test_files_that_cannot_be_read),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
