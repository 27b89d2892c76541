/* SPDX-License-Identifier: Apache-2.0 */
/* Latent rows, byte for byte, and their values, against golden/formats/latent.txt (made by a script in another
   language; formats/README.md): written from kv_c and k_pe by slot, read back by a gather. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../api/harness.h"
#include "../api/test_counts.h"
#include "attn/attn.h"
#include "golden_rows.h"
#include "golden_trial.h"

enum { BLOCK = 7, BLOCKS = ROWS_COUNT / BLOCK + 2, SLOTS = BLOCK * BLOCKS, LATER = 7 };

static const char *const backends[] = {"REFERENCE", "CPU_MLA"};

typedef struct answer {
  char format[32], place[16], source[16], rotary[16];
  int32_t rank, width;
  uint64_t bytes, values;
} answer;

/* The rows of one source type and size, which many lines share. */
typedef struct sources {
  attn_dtype dtype;
  int32_t rank, width;
  unsigned char *kv_c, *k_pe;
} sources;

static void fill(attn_dtype dtype, int32_t size, int tag, int later, unsigned char *rows) {
  size_t element = attn_dtype_bytes(dtype);
  uint32_t *bits = malloc((size_t)(size + 1) * sizeof *bits);
  assert_non_null(bits);
  for (int32_t row = 0; row < ROWS_COUNT && size > 0; row++) {
    rows_make_part(dtype, size, row, tag, later, bits);
    for (int32_t i = 0; i < size; i++) {
      uint16_t half = (uint16_t)bits[i];
      const void *from = element == 4 ? (const void *)&bits[i] : (const void *)&half;
      memcpy(rows + ((size_t)row * (size_t)size + (size_t)i) * element, from, element);
    }
  }
  free(bits);
}

static void make_sources(sources *s, const answer *a) {
  attn_dtype dtype = attn_dtype_from_name(a->source);
  if (s->kv_c != NULL && s->dtype == dtype && s->rank == a->rank && s->width == a->width) {
    return;
  }
  free(s->kv_c);
  free(s->k_pe);
  s->dtype = dtype;
  s->rank = a->rank;
  s->width = a->width;
  s->kv_c = malloc((size_t)ROWS_COUNT * (size_t)a->rank * 4);
  s->k_pe = malloc((size_t)ROWS_COUNT * (size_t)(a->width + 1) * 4);
  assert_non_null(s->kv_c);
  assert_non_null(s->k_pe);
  fill(dtype, a->rank, 0, 0, s->kv_c);
  fill(dtype, a->width, 1, LATER, s->k_pe);
}

/* A pool with its scales and what is gathered from it. */
typedef struct pool {
  attn_cache_info info;
  attn_format format;
  attn_dtype rotary;
  int separate, is_static;
  unsigned char *rows;
  float *scales;
  float one;
  float *values; /* [ROWS_COUNT, rank + width] */
  int64_t slots[ROWS_COUNT];
} pool;

static void open_pool(pool *p, const answer *a) {
  attn_cache_desc desc = ATTN_CACHE_DESC_INIT;
  memset(p, 0, sizeof *p);
  p->info = (attn_cache_info)ATTN_CACHE_INFO_INIT;
  assert_true(attn_format_from_name(a->format, &p->format));
  p->rotary = a->rotary[0] == '-' ? ATTN_DTYPE_DEFAULT : attn_dtype_from_name(a->rotary);
  p->separate = strcmp(a->place, "separate") == 0;
  p->is_static = strcmp(a->place, "one") == 0;
  p->one = 0.1f;
  desc.k_format = p->format;
  desc.num_blocks = BLOCKS;
  desc.block_size = BLOCK;
  desc.kv_lora_rank = a->rank;
  desc.qk_rope_head_dim = a->width;
  desc.rotary_dtype = p->rotary;
  desc.separate_scales = p->separate ? ATTN_SEPARATE_BOTH : ATTN_SEPARATE_NONE;
  EXPECT_OK(attn_cache_describe(&desc, &p->info, &why));
  p->rows = malloc((size_t)p->info.k.bytes);
  p->scales = malloc(SLOTS * sizeof *p->scales);
  p->values = malloc((size_t)ROWS_COUNT * (size_t)(a->rank + a->width) * sizeof *p->values);
  assert_true(p->rows != NULL && p->scales != NULL && p->values != NULL);
  memset(p->rows, 0xA5, (size_t)p->info.k.bytes);
  memset(p->scales, 0xA5, SLOTS * sizeof *p->scales);
  for (int64_t i = 0; i < ROWS_COUNT; i++) { /* all over the pool, the last blocks left alone */
    p->slots[i] = (i * 389 + 5) % ROWS_COUNT;
  }
}

static void close_pool(pool *p) {
  free(p->rows);
  free(p->scales);
  free(p->values);
}

static DLTensor *scale_tensor(pool *p, DLTensor *t, int64_t shape[2]) {
  if (p->separate) {
    shape[0] = BLOCKS;
    shape[1] = BLOCK;
    attn_tensor_cpu(t, p->scales, ATTN_DTYPE_FLOAT32, 2, shape);
    return t;
  }
  shape[0] = 1;
  attn_tensor_cpu(t, &p->one, ATTN_DTYPE_FLOAT32, 1, shape);
  return p->is_static ? t : NULL;
}

static void write_rows(attn_context *context, const char *backend, pool *p, const sources *s) {
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  DLTensor kv_c, k_pe, cache, slots, scale;
  int64_t latent[2] = {ROWS_COUNT, s->rank}, rotary[2] = {ROWS_COUNT, s->width}, n[1] = {ROWS_COUNT}, at[2];
  attn_tensor_cpu(&kv_c, s->kv_c, s->dtype, 2, latent);
  attn_tensor_cpu(&k_pe, s->k_pe, s->dtype, 2, rotary);
  attn_tensor_cpu(&cache, p->rows, p->info.k.dtype, 3, p->info.k.shape);
  attn_tensor_cpu(&slots, p->slots, ATTN_DTYPE_INT64, 1, n);
  args.backend = backend;
  args.k_format = p->format;
  args.rotary_dtype = p->rotary;
  args.kv_c = &kv_c;
  args.k_pe = &k_pe;
  args.kv_cache = &cache;
  args.kv_scale = scale_tensor(p, &scale, at);
  args.slot_mapping = &slots;
  EXPECT_OK(attn_cache_write(context, &args, &why));
}

/* Position i of one sequence lies in slot i; row r of the sources was written to slots[r]. */
static void gather_rows(attn_context *context, const char *backend, pool *p, const sources *s) {
  attn_cache_gather_args args = ATTN_CACHE_GATHER_INIT;
  DLTensor cache, table, lens, kv, scale;
  static int32_t ids[BLOCKS];
  int32_t len = ROWS_COUNT;
  int64_t width[2] = {1, BLOCKS}, one[1] = {1}, out[2] = {ROWS_COUNT, s->rank + s->width}, at[2];
  for (int32_t i = 0; i < BLOCKS; i++) {
    ids[i] = i;
  }
  attn_tensor_cpu(&cache, p->rows, p->info.k.dtype, 3, p->info.k.shape);
  attn_tensor_cpu(&table, ids, ATTN_DTYPE_INT32, 2, width);
  attn_tensor_cpu(&lens, &len, ATTN_DTYPE_INT32, 1, one);
  attn_tensor_cpu(&kv, p->values, ATTN_DTYPE_FLOAT32, 2, out);
  args.backend = backend;
  args.k_format = p->format;
  args.rotary_dtype = p->rotary;
  args.qk_rope_head_dim = s->width;
  args.kv_cache = &cache;
  args.kv_scale = scale_tensor(p, &scale, at);
  args.block_table = &table;
  args.seq_lens = &lens;
  args.kv = &kv;
  EXPECT_OK(attn_cache_gather(context, &args, &why));
}

static uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return value != value ? 0x7FC00000 : bits;
}

/* int4, whose inverse rotation may be summed in any order: the exact values, where what was gathered is near enough. */
static int exact_latent(const pool *p, const unsigned char *row, uint32_t scale, const sources *s, const float *got,
                        uint32_t *bits) {
  double exact[512], largest = 0.0;
  (void)p;
  trial_exact_int4(row, scale, s->rank, exact);
  for (int32_t i = 0; i < s->rank; i++) {
    largest = fabs(exact[i]) > largest ? fabs(exact[i]) : largest;
  }
  for (int32_t i = 0; i < s->rank; i++) {
    const double allowed = 0x1p-20 * largest + 0x1p-24 * fabs(exact[i]) + 0x1p-149;
    const int beyond = isinf(got[i]) && fabs(exact[i]) + allowed > 0x1.fffffep127 && (got[i] > 0) == (exact[i] > 0);
    if (isnan(exact[i]) ? !isnan(got[i]) : !(fabs((double)got[i] - exact[i]) <= allowed) && !beyond) {
      return 0;
    }
    bits[i] = float_bits((float)exact[i]);
  }
  return 1;
}

static void judge(const pool *p, const sources *s, const answer *a, const char *backend) {
  static uint64_t hashes[2][ROWS_COUNT];
  static uint32_t bits[1024];
  size_t bytes = (size_t)p->info.k.row_bytes;
  int32_t size = s->rank + s->width;
  char label[160];
  snprintf(label, sizeof label, "%s %s from %s, %d + %d, rotary %s, %s", a->format, a->place, a->source, a->rank,
           a->width, a->rotary, backend);
  for (int32_t r = 0; r < ROWS_COUNT; r++) {
    const unsigned char *row = p->rows + (size_t)p->slots[r] * bytes;
    const float *got = p->values + p->slots[r] * size;
    uint32_t scale = 0;
    hashes[0][r] = rows_hash(ROWS_BASIS, row, bytes);
    if (p->separate) {
      memcpy(&scale, &p->scales[p->slots[r]], 4);
      hashes[0][r] = rows_hash(hashes[0][r], &scale, 4);
    } else if (p->format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD) {
      memcpy(&scale, row + bytes - 4, 4);
    }
    for (int32_t i = 0; i < size; i++) {
      bits[i] = float_bits(got[i]);
    }
    if (p->format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD) {
      CHECK(exact_latent(p, row, scale, s, got, bits), "%s: row %d is gathered wrong", label, r);
    }
    hashes[1][r] = rows_hash(ROWS_BASIS, bits, 4 * (size_t)size);
  }
  CHECK(rows_fold(hashes[0], -1) == a->bytes, "%s: bytes differ", label);
  CHECK(rows_fold(hashes[1], -1) == a->values, "%s: values differ", label);
  for (size_t i = (size_t)ROWS_COUNT * bytes; i < (size_t)p->info.k.bytes; i++) {
    CHECK(p->rows[i] == 0xA5, "%s: a byte of no row changed", label);
  }
}

static void try_line(attn_context *context, const char *backend, const answer *a, sources *s) {
  pool p;
  make_sources(s, a);
  open_pool(&p, a);
  write_rows(context, backend, &p, s);
  gather_rows(context, backend, &p, s);
  judge(&p, s, a, backend);
  close_pool(&p);
}

/* Each line in one backend, by turns, those of fp8_ds_mla and of the smallest rows in both; in a sanitized build every
   sixth line. */
static void rows_are_the_scripts(void **state) {
  FILE *file = fopen(ATTN_GOLDEN_DIR "/formats/latent.txt", "r");
  attn_context *context = open_context(1);
  sources s = {0};
  char line[256];
  int lines = 0, tried = 0;
  (void)state;
  assert_non_null(file);
  while (fgets(line, sizeof line, file) != NULL) {
    answer a;
    if (line[0] == '#') continue;
    CHECK(sscanf(line, "%31s %15s %15s %d %d %15s %" SCNx64 " %" SCNx64, a.format, a.place, a.source, &a.rank, &a.width,
                 a.rotary, &a.bytes, &a.values) == 8,
          "latent.txt: %s", line);
    int both = a.rank < 8 || strcmp(a.format, "fp8_ds_mla") == 0;
    for (int which = 0; which < 2; which++) {
      if (lines % test_count(1, 6) == 0 && (both || lines / test_count(1, 6) % 2 == which)) {
        try_line(context, backends[which], &a, &s);
        tried++;
      }
    }
    lines++;
  }
  fclose(file);
  free(s.kv_c);
  free(s.k_pe);
  attn_context_destroy(context);
  print_message("latent.txt: %d lines, %d trials\n", lines, tried);
  assert_int_equal(lines, 516);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_are_the_scripts),
  };
  return cmocka_run_group_tests_name("golden latent rows", tests, NULL, NULL);
}
