/* SPDX-License-Identifier: Apache-2.0 */
/* `attn run` on latent rows: each operation and format in both backends, what it writes and what it returns; the same
   bytes with --poison; written rows read back; explain. */
#define _XOPEN_SOURCE 700
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "attn/attn.h"
#include "request_builder.h"
#include "test_counts.h"

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

/* Rows of 24 + 6 elements, and 512 + 64; pools of 6 blocks of 4. */
static const struct {
  const char *words; /* pool */
  int tiled;
  int quantised; /* whose codes are random bytes: a pool of them may hold NaN, so it is written first */
} forms[] = {
    {"kv_cache:F32[6,4,30]", 0, 0},
    {"kv_cache:BF16[6,4,30]", 0, 0},
    {"kv_cache:F8_E4M3[6,4,30] kv_scale:F32[1]=0.01", 0, 1},
    {"kv_cache:U8[6,4,30] cache_format=fp8_e4m3", 0, 1},
    {"kv_cache:U8[6,4,40] cache_format=int8_per_token_head", 0, 1},
    {"kv_cache:U8[6,4,36] cache_format=fp8_per_token_head+separate_scales kv_scale:F32[6,4]", 0, 1},
    {"kv_cache:U8[6,4,28] cache_format=int4_per_token_head rotary_dtype=float16", 0, 1},
    {"kv_cache:U8[6,4,656] cache_format=fp8_ds_mla", 1, 1},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

#define SIZES "kv_lora_rank=24 qk_rope_head_dim=6 "
#define TILED "kv_lora_rank=512 qk_rope_head_dim=64 "
#define BATCH "block_table:I32[2,2]=1,2,3,4 query_start_loc:I32[3]=0,3,5 "
#define SOME_NEW "seq_lens:I32[2]=3,7 slot_mapping:I64[5]=4,5,6,17,18 "
#define ALL_NEW "seq_lens:I32[2]=3,2 slot_mapping:I64[5]=4,5,6,12,13 "

/* All rows of both sequences are new, or for the second one five of its seven were there: of random bytes, so not where
   these are codes and scales. */
static void words_of(int form, const char *op, char *text, size_t bytes) {
  int tiled = forms[form].tiled, mqa = strcmp(op, "mla_mqa") == 0;
  int nope = tiled ? 4 : 10, v = tiled ? 3 : 7;
  int qk = mqa ? (tiled ? 576 : 30) : nope + (tiled ? 64 : 6);
  int n = snprintf(text, bytes, "op=%s q:F32[5,3,%d] %s%s%s%s kv_c:F32[5,%d] k_pe:F32[5,%d] ", op, qk,
                   tiled ? TILED : SIZES, BATCH, forms[form].quantised ? ALL_NEW : SOME_NEW, forms[form].words,
                   tiled ? 512 : 24, tiled ? 64 : 6);
  if (mqa) {
    (void)snprintf(text + n, bytes - (size_t)n, "scale=0.2");
  } else {
    (void)snprintf(text + n, bytes - (size_t)n, "qk_nope_head_dim=%d v_head_dim=%d w_kv_b:F32[%d,%d]", nope, v,
                   3 * (nope + v), tiled ? 512 : 24);
  }
}

static unsigned char *run_once(const char *words, const char *flag, const char *value, size_t *bytes) {
  assert_true(request_runs(&files, words, "", flag, value));
  unsigned char *file = fixture_read(files.out_path, bytes);
  assert_non_null(file);
  return file;
}

static void same_with_poison(const char *words) {
  size_t plain_bytes = 0, poisoned_bytes = 0;
  unsigned char *plain = run_once(words, NULL, NULL, &plain_bytes);
  unsigned char *poisoned = run_once(words, "--poison", NULL, &poisoned_bytes);
  if (plain_bytes != poisoned_bytes || memcmp(plain, poisoned, plain_bytes) != 0) {
    fail_msg("%s: other bytes with --poison", words);
  }
  free(plain);
  free(poisoned);
}

static const float *floats_of(const unsigned char *file, const char *name, const char *like, size_t *count) {
  size_t bytes = 0;
  const unsigned char *at = request_result(file, name, like, &bytes);
  assert_non_null(at);
  *count = bytes / sizeof(float);
  return (const float *)(const void *)at;
}

/* Both backends near each other; NaN (of random bytes in the cache) in the same places. */
static void compare(const char *words, const char *name, const char *like) {
  size_t bytes = 0, n = 0, m = 0;
  int numbers = 0;
  unsigned char *one = run_once(words, "--backend", "REFERENCE", &bytes);
  unsigned char *two = run_once(words, "--backend", "CPU_MLA", &bytes);
  const float *a = floats_of(one, name, like, &n);
  const float *b = floats_of(two, name, like, &m);
  assert_int_equal(n, m);
  for (size_t i = 0; i < n; ++i) {
    float x, y;
    memcpy(&x, a + i, sizeof x);
    memcpy(&y, b + i, sizeof y);
    numbers += isfinite(x) != 0;
    if (isnan(x) != isnan(y) || fabsf(x - y) > 1e-4f * (1.0f + fabsf(x))) {
      fail_msg("%s: %s[%zu] is %g and %g", words, name, i, (double)x, (double)y);
    }
  }
  assert_true(numbers > 0);
  free(one);
  free(two);
}

static void attention(void **state) {
  static const char *const ops[] = {"mla_mqa", "mla_mha", "mla_layer"};
  char words[1024], like[100];
  (void)state;
  for (int form = 0; form < FORMS; ++form) {
    for (int op = 0; op < 3; ++op) {
      if ((form + op) % test_count(1, 2) != 0) continue;
      int size = op > 0 ? (forms[form].tiled ? 3 : 7) : forms[form].tiled ? 512 : 24;
      words_of(form, ops[op], words, sizeof words);
      if (op == 2) {
        (void)snprintf(like, sizeof like, "\"dtype\":\"F32\",\"shape\":[5,%d]", 3 * size);
      } else {
        (void)snprintf(like, sizeof like, "\"dtype\":\"F32\",\"shape\":[5,3,%d]", size);
      }
      compare(words, "out", like);
      same_with_poison(words);
      size_t bytes = 0;
      unsigned char *file = run_once(words, NULL, NULL, &bytes);
      assert_true((strstr((const char *)file + 8, "\"lse\"") == NULL) == (op == 2));
      assert_non_null(strstr((const char *)file + 8, "\"kv_cache\""));
      assert_true((strstr((const char *)file + 8, "\"kv_scale\"") != NULL) == (form == 5));
      assert_non_null(strstr((const char *)file + 8, "CPU_MLA"));
      free(file);
    }
  }
}

static void features(void **state) {
  static const char *const changes[] = {
      "window_left=2",
      "softcap=3 sinks:F32[3]=0.5,-inf,1",
      "alibi_slopes:F32[3]=0.1,0.2,0.3 alibi=sqrt",
      "bias:F32[5,3,7]",
      "prefix_ranges:I32[2,1,2]=0,2,1,6 prefix_clamp=0",
      "chunk_size=2 chunk_lookback=1",
      "out_dtype=bfloat16",
      "out_dtype=fp8_e4m3 output_scale:F32[1]=0.01",
      "out_dtype=fp8_e4m3 output_block=64",
      "checked=0",
  };
  static const char *const ops[] = {"mla_mqa", "mla_mha", "mla_layer"};
  char words[1024], all[1400];
  (void)state;
  for (int op = 0; op < 3; ++op) {
    words_of(op, ops[op], words, sizeof words);
    for (size_t i = (size_t)op % (size_t)test_count(1, 3); i < sizeof changes / sizeof changes[0];
         i += (size_t)test_count(1, 3)) {
      (void)snprintf(all, sizeof all, "%s %s", words, changes[i]);
      same_with_poison(all);
    }
    (void)snprintf(all, sizeof all, "%s num_splits=%d split_rule=default", words, op == 1 ? 0 : 3);
    same_with_poison(all);
  }
  (void)snprintf(all, sizeof all, "%s context_chunk=1", words);
  same_with_poison(all);
  words_of(0, "mla_mqa", words, sizeof words);
  (void)snprintf(all, sizeof all, "%s split_rule=compatible causal=0", words);
  same_with_poison(all);
  (void)snprintf(all, sizeof all, "%s causal_per_seq:I32[2]=0,1", words);
  same_with_poison(all);
}

/* mha without a cache, and with new rows as they are. */
static void rows_as_given(void **state) {
  char words[1024], all[1200];
  (void)state;
  words_of(1, "mla_mha", words, sizeof words);
  (void)snprintf(all, sizeof all, "%s !slot_mapping", words);
  same_with_poison(all);
  compare(all, "out", "\"dtype\":\"F32\",\"shape\":[5,3,7]");
  (void)snprintf(all, sizeof all, "%s !slot_mapping block_table:I32[2,1]=0,3 seq_lens:I32[2]=3,6",
                 words); /* the context alone */
  same_with_poison(all);
  (void)snprintf(all, sizeof all, "%s !slot_mapping !kv_cache !block_table !seq_lens !cache_format", words);
  same_with_poison(all);
  compare(all, "out", "\"dtype\":\"F32\",\"shape\":[5,3,7]");
}

static void writing_and_gathering(void **state) {
  char words[600];
  (void)state;
  for (int form = 0; form < FORMS; ++form) {
    const char *sizes = forms[form].tiled ? TILED : SIZES;
    int latent = forms[form].tiled ? 512 : 24, rotary = forms[form].tiled ? 64 : 6;
    (void)snprintf(words, sizeof words, "op=cache_write %s%s kv_c:F16[3,%d] k_pe:F16[3,%d] slot_mapping:I64[3]=5,-1,9",
                   sizes, forms[form].words, latent, rotary);
    same_with_poison(words);
    (void)snprintf(words, sizeof words,
                   "op=cache_gather %s%s block_table:I32[2,2]=1,2,3,0 seq_lens:I32[2]=6,5 seq_starts:I32[2]=1,0", sizes,
                   forms[form].words);
    same_with_poison(words);
    size_t bytes = 0, count = 0;
    unsigned char *file = run_once(words, NULL, NULL, &bytes);
    char like[60];
    (void)snprintf(like, sizeof like, "\"dtype\":\"F32\",\"shape\":[10,%d]", latent + rotary);
    (void)floats_of(file, "kv", like, &count);
    assert_int_equal(count, 10 * (latent + rotary));
    free(file);
  }
}

static void explained(void **state) {
  char words[1024];
  (void)state;
  words_of(0, "mla_layer", words, sizeof words);
  assert_true(request_save(&files, words, ""));
  assert_int_equal(fixture_run(&files.fix, "explain", files.in_path, NULL), 0);
  assert_non_null(strstr(files.fix.out, "pick: CPU_MLA"));
  assert_non_null(strstr(files.fix.out, "CPU_ATTN"));
  assert_int_equal(fixture_run(&files.fix, "bench", files.in_path, NULL), 2);
  assert_non_null(strstr(files.fix.err, "mla_layer"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(attention),     cmocka_unit_test(features),
      cmocka_unit_test(rows_as_given), cmocka_unit_test(writing_and_gathering),
      cmocka_unit_test(explained),
  };
  return cmocka_run_group_tests_name("attn run on latent rows", tests, set_up, tear_down);
}
