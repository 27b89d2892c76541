/* SPDX-License-Identifier: Apache-2.0 */
/* `attn run` over quantised caches: every pair of formats in each operation, in both layouts, with scales inside and
   outside; the same bytes with --poison; what a returned cache holds; what is refused. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "attn/attn.h"
#include "request_builder.h"

static request_files files;

static int set_up(void **state) {
  (void)state;
  return request_open(&files) ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  fixture_close(&files.fix);
  return 0;
}

enum { BLOCKS = 6, BLOCK = 4, HEADS = 2, SIZE = 10, FORMS = 8 };

/* Formats of a pool as a request spells them: key, type, row of SIZE elements, and the scale tensor's kind. */
static const struct {
  const char *format;
  const char *dtype;
  int row;
  int scale; /* 0: none, 1: static for each head, 2: separate */
} forms[FORMS] = {
    {"fp8_e4m3", "F8_E4M3", SIZE, 0},
    {"fp8_e4m3", "U8", SIZE, 1},
    {"fp8_e5m2", "F8_E5M2", SIZE, 1},
    {"int8_per_token_head", "U8", 16, 0},
    {"int8_per_token_head+separate_scales", "U8", SIZE, 2},
    {"fp8_per_token_head+separate_scales", "U8", SIZE, 2},
    {"int4_per_token_head", "U8", 12, 0},
    {"int4_per_token_head+separate_scales", "U8", 5, 2},
};

static void pool_words(char *text, size_t bytes, char which, int form, int hnd) {
  int a = hnd ? HEADS : BLOCK, b = hnd ? BLOCK : HEADS;
  int n = snprintf(text, bytes, " %s=%s %c_cache:%s[%d,%d,%d,%d]", which == 'k' ? "cache_format" : "v_cache_format",
                   forms[form].format, which, forms[form].dtype, BLOCKS, a, b, forms[form].row);
  if (forms[form].scale == 1) {
    (void)snprintf(text + n, bytes - (size_t)n, " %c_scale:F32[%d]=0.5,0.125", which, HEADS);
  } else if (forms[form].scale == 2) {
    (void)snprintf(text + n, bytes - (size_t)n, " %c_scale:F32[%d,%d,%d]", which, BLOCKS, a, b);
  }
}

/* Four new rows; what else the calls read are the random bytes of the builder. */
static void write_words(char *text, size_t bytes, int k, int v, int hnd) {
  char k_words[200], v_words[200];
  pool_words(k_words, sizeof k_words, 'k', k, hnd);
  pool_words(v_words, sizeof v_words, 'v', v, hnd);
  (void)snprintf(text, bytes, "kv_layout=%s%s%s k:F32[5,2,10] v:F32[5,2,10] slot_mapping:I64[5]=6,7,8,-1,17",
                 hnd ? "HND" : "NHD", k_words, v_words);
}

static unsigned char *run_once(const char *base, const char *words, const char *flag, const char *value,
                               size_t *bytes) {
  assert_true(request_runs(&files, base, words, flag, value));
  unsigned char *file = fixture_read(files.out_path, bytes);
  assert_non_null(file);
  return file;
}

/* The same file with and without poison. */
static void same_with_poison(const char *base, const char *words) {
  size_t plain_bytes = 0, poisoned_bytes = 0;
  unsigned char *plain = run_once(base, words, NULL, NULL, &plain_bytes);
  unsigned char *poisoned = run_once(base, words, "--poison", NULL, &poisoned_bytes);
  if (plain_bytes != poisoned_bytes || memcmp(plain, poisoned, plain_bytes) != 0) {
    fail_msg("%.20s with %s: other bytes with --poison", base, words);
  }
  free(plain);
  free(poisoned);
}

static void every_pair(void **state) {
  (void)state;
  for (int n = 0; n < FORMS * FORMS; n++) {
    char words[900], more[1200];
    int k = n % FORMS, v = n / FORMS;
    write_words(words, sizeof words, k, v, (k + v) % 2);
    same_with_poison("op=cache_write", words);
    (void)snprintf(more, sizeof more,
                   "%s q:F32[5,4,10] block_table:I32[2,2]=1,2,4,0 query_start_loc:I32[3]=0,2,5 seq_lens:I32[2]=5,3",
                   words);
    same_with_poison("op=attention", more);
    (void)snprintf(more, sizeof more,
                   "%s !k !v !slot_mapping block_table:I32[2,2]=1,2,4,0 seq_lens:I32[2]=6,2 seq_starts:I32[2]=2,0 "
                   "head_size=10 v_head_size=10 out_dtype=%s",
                   words, n % 2 ? "float32" : "bfloat16");
    same_with_poison("op=cache_gather", more);
  }
}

static void fp8_queries(void **state) {
  (void)state;
  for (int form = 0; form < FORMS; form++) {
    char words[900], more[1200];
    write_words(words, sizeof words, form, FORMS - 1 - form, form % 2);
    (void)snprintf(more, sizeof more,
                   "%s q:F8_E4M3[3,4,10] q_scale:F32[1]=0.25 k:F32[3,2,10] v:F32[3,2,10] slot_mapping:I64[3]=6,7,16 "
                   "block_table:I32[2,2]=1,2,4,0 query_start_loc:I32[3]=0,2,3 seq_lens:I32[2]=4,1",
                   words);
    size_t bytes, found;
    unsigned char *file = run_once("op=attention", more, NULL, NULL, &bytes);
    assert_non_null(request_result(file, "out", "\"dtype\":\"BF16\",\"shape\":[3,4,10]", &found));
    free(file);
    same_with_poison("op=attention", more);
  }
}

/* A returned cache is the library's: the named slots of pools and separate scales, all other bytes as they were. */
static void written_as_the_library_does(void **state) {
  (void)state;
  for (int hnd = 0; hnd < 2; hnd++) {
    char words[900];
    const int k = FORMS - 1, v = 4; /* int4 and int8, separate scales */
    write_words(words, sizeof words, k, v, hnd);
    builder *made = build_request("op=cache_write", words);
    assert_non_null(made);
    unsigned char *data[7] = {NULL};
    static const char *const names[] = {"k_cache", "v_cache", "k_scale", "v_scale", "k", "v", "slot_mapping"};
    for (size_t i = 0; i < made->num_tensors; i++) {
      for (int j = 0; j < 7; j++) {
        data[j] = strcmp(made->tensors[i].name, names[j]) == 0 ? made->tensors[i].data : data[j];
      }
    }
    int64_t a = hnd ? HEADS : BLOCK, b = hnd ? BLOCK : HEADS;
    int64_t pools[2][4] = {{BLOCKS, a, b, 5}, {BLOCKS, a, b, 10}}, scales[3] = {BLOCKS, a, b}, rows[3] = {5, 2, 10};
    int64_t count = 5;
    DLTensor t[7];
    attn_tensor_cpu(&t[0], data[0], ATTN_DTYPE_UINT8, 4, pools[0]);
    attn_tensor_cpu(&t[1], data[1], ATTN_DTYPE_UINT8, 4, pools[1]);
    attn_tensor_cpu(&t[2], data[2], ATTN_DTYPE_FLOAT32, 3, scales);
    attn_tensor_cpu(&t[3], data[3], ATTN_DTYPE_FLOAT32, 3, scales);
    attn_tensor_cpu(&t[4], data[4], ATTN_DTYPE_FLOAT32, 3, rows);
    attn_tensor_cpu(&t[5], data[5], ATTN_DTYPE_FLOAT32, 3, rows);
    attn_tensor_cpu(&t[6], data[6], ATTN_DTYPE_INT64, 1, &count);
    attn_context *context = NULL;
    attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
    args.k_format = ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
    args.v_format = ATTN_FORMAT_INT8_PER_TOKEN_HEAD;
    args.layout = (attn_layout)hnd;
    args.k_cache = &t[0];
    args.v_cache = &t[1];
    args.k_scale = &t[2];
    args.v_scale = &t[3];
    args.k = &t[4];
    args.v = &t[5];
    args.slot_mapping = &t[6];
    assert_int_equal(attn_context_create(NULL, &context, NULL), ATTN_OK);
    assert_int_equal(attn_cache_write(context, &args, NULL), ATTN_OK);
    attn_context_destroy(context);
    for (int poison = 0; poison < 2; poison++) {
      size_t bytes, found;
      unsigned char *file = run_once("op=cache_write", words, poison ? "--poison" : NULL, NULL, &bytes);
      static const size_t sizes[] = {BLOCKS * BLOCK * HEADS * 5, BLOCKS * BLOCK * HEADS * 10,
                                     BLOCKS * BLOCK * HEADS * 4, BLOCKS * BLOCK * HEADS * 4};
      for (int i = 0; i < 4; i++) {
        char like[100];
        (void)snprintf(like, sizeof like,
                       i < 2 ? "\"dtype\":\"U8\",\"shape\":[%d,%d,%d,%d]" : "\"dtype\":\"F32\",\"shape\":[%d,%d,%d]",
                       BLOCKS, (int)a, (int)b, i == 0 ? 5 : 10);
        const unsigned char *got = request_result(file, names[i], like, &found);
        assert_non_null(got);
        assert_int_equal(found, sizes[i]);
        assert_memory_equal(got, data[i], found);
      }
      free(file);
    }
    free(made);
  }
}

#define ATTEND "op=attention q:F32[1,4,10] block_table:I32[1,1]=1 query_start_loc:I32[2]=0,1 seq_lens:I32[1]=1"
#define INT8 " cache_format=int8_per_token_head k_cache:U8[6,4,2,16] v_cache:U8[6,4,2,16] v_head_size=10"
#define APART                                                                                                          \
  " cache_format=int8_per_token_head+separate_scales k_cache:U8[6,4,2,10] v_cache:U8[6,4,2,10] v_head_size=10 "        \
  "k_scale:F32[6,4,2] v_scale:F32[6,4,2]"

static void refusals(void **state) {
  static const struct {
    const char *changes;
    const char *named;
  } rows[] = {
      {INT8 " k_scale:F32[6,4,2]", "k_scale"}, /* the rows have them */
      {INT8 " v_scale:F32[1]=1", "v_scale"},
      {INT8 " k_cache:U8[6,4,2,14]", "k_cache"},
      {INT8 " k_cache:F32[6,4,2,10]", "k_cache has type F32"},
      {INT8 " cache_format=fp8_ds_mla", "fp8_ds_mla"},
      {INT8 " cache_format=auto", "cache_format"},
      {INT8 " v_cache_format=auto", "v_cache_format"},
      {INT8 " v_cache_format=int4_per_token_head", "v_cache"},
      {INT8 " !v_head_size", "v_head_size"},
      {INT8 " head_size=12", "head_size"},
      {APART " !k_scale", "k_scale is missing"},
      {APART " !v_scale", "v_scale is missing"},
      {APART " k_scale:F32[2]=1,1", "k_scale"},
      {APART " k_scale:F16[6,4,2]", "k_scale"},
      {APART " v_scale:F32[6,2,4]", "v_scale"},
      {APART " v_cache_format=int8_per_token_head", "v_scale"},
      {APART " kv_layout=HND block_size=4", "block_size"},
      {" cache_format=fp8_e4m3+separate_scales", "cache_format"},
      {" cache_format=fp8_e4m3 k_cache:U8[6,4,2,10] v_cache:U8[6,4,2,10] v_head_size=10 k_scale:F32[3]", "k_scale"},
      {" k_cache:F8_E4M3[6,4,2,10] v_cache:F8_E4M3[6,4,2,10] k_scale:F32[1]=0", "k_scale"},
      {" k_cache:F8_E4M3[6,4,2,10] v_cache:F8_E4M3[6,4,2,10] v_scale:F32[2]=1,-1", "v_scale"},
      {" k_cache:F32[6,4,2,10] v_cache:F32[6,4,2,10] k_scale:F32[1]=1", "k_scale cannot be used"},
      {" k_cache:F32[6,4,2,10] v_cache:F32[6,4,2,10] q_scale:F32[1]=1", "q_scale cannot be used"},
      {" k_cache:F32[6,4,2,10] v_cache:F32[6,4,2,10] q:F8_E4M3[1,4,10]", "q_scale is missing"},
      {" k_cache:F32[6,4,2,10] v_cache:F32[6,4,2,10] q:F8_E4M3[1,4,10] q_scale:F32[2]=1,1", "q_scale"},
      {" k_cache:F32[6,4,2,10] v_cache:F32[6,4,2,10] q:F8_E5M2[1,4,10] q_scale:F32[1]=1", "F8_E5M2"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    assert_true(request_is_refused(&files, ATTEND, rows[i].changes, NULL, NULL, rows[i].named));
  }
  assert_true(request_runs(&files, ATTEND, APART, "--poison", NULL));
  assert_true(request_is_refused(&files, "op=cache_gather block_table:I32[1,1]=1 seq_lens:I32[1]=1", INT8, NULL, NULL,
                                 "head_size"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(every_pair, set_up, tear_down),
      cmocka_unit_test_setup_teardown(fp8_queries, set_up, tear_down),
      cmocka_unit_test_setup_teardown(written_as_the_library_does, set_up, tear_down),
      cmocka_unit_test_setup_teardown(refusals, set_up, tear_down),
  };
  return cmocka_run_group_tests_name("command_formats", tests, NULL, NULL);
}
