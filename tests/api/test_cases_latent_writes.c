/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 12 to 15 over latent rows: rows without a slot, slots that are not the pool's, rows beyond the list; in every
   latent format, every byte of pool and scales. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "latent.h"

enum { ROWS = 8, HEADS = 2, V = 12 };

/* Eight rows of kv_c and k_pe, a pool, and what it held before. */
typedef struct writing {
  latent s;
  attn_context *context;
  attn_cache_write_args args;
  tensor kv_c, k_pe, pool, scale, slots;
  int64_t list[ROWS + 1];
  size_t scale_bytes;
  unsigned char *pool_before, *scales_before;
} writing;

static void open_writing(writing *w, attn_format format, int separate, const char *backend) {
  const int32_t count = ROWS;
  latent *s = &w->s;
  memset(w, 0, sizeof *w);
  latent_init_format(s, ATTN_MLA_MQA, HEADS, format, 10, V);
  latent_seqs(s, 1, &count, &count);
  latent_fill(s, format, separate);
  w->context = open_context(2);
  w->args = (attn_cache_write_args)ATTN_CACHE_WRITE_INIT;
  w->args.backend = backend;
  w->args.k_format = format;
  w->args.rotary_dtype = s->problem.rotary_dtype;
  tensor_2(&w->kv_c, s->kv_c, ATTN_DTYPE_FLOAT32, ROWS, s->problem.kv_lora_rank);
  tensor_2(&w->k_pe, s->k_pe, ATTN_DTYPE_FLOAT32, ROWS, s->problem.qk_rope_head_dim);
  tensor_over(&w->pool, s->pool, s->info.k.dtype, 3, s->info.k.shape);
  w->args.kv_c = &w->kv_c.t;
  w->args.k_pe = &w->k_pe.t;
  w->args.kv_cache = &w->pool.t;
  w->args.kv_scale = latent_scale(s, &w->scale) != NULL ? &w->scale.t : NULL;
  w->args.slot_mapping = &w->slots.t;
  w->scale_bytes = (size_t)s->blocks * (size_t)s->problem.block_size * sizeof(float);
  w->pool_before = malloc((size_t)s->info.k.bytes);
  w->scales_before = malloc(w->scale_bytes);
  assert_true(w->pool_before != NULL && w->scales_before != NULL);
  memcpy(w->pool_before, s->pool, (size_t)s->info.k.bytes);
  memcpy(w->scales_before, s->scales, w->scale_bytes);
}

static attn_status write_to(writing *w, const int64_t *slots, int64_t count, int unchecked) {
  memcpy(w->list, slots, (size_t)count * sizeof *slots);
  tensor_1(&w->slots, w->list, ATTN_DTYPE_INT64, count);
  w->args.unchecked = unchecked;
  return attn_cache_write(w->context, &w->args, &why);
}

/* Pool and scales are what they were before but for the first `count` rows, at these slots; then as before. */
static void expect_rows(writing *w, const int64_t *slots, int64_t count, const char *what) {
  latent *s = &w->s;
  size_t bytes = (size_t)s->info.k.bytes;
  unsigned char *pool = malloc(bytes), *scales = malloc(w->scale_bytes);
  assert_true(pool != NULL && scales != NULL);
  memcpy(pool, s->pool, bytes);
  memcpy(scales, s->scales, w->scale_bytes);
  memcpy(s->pool, w->pool_before, bytes);
  memcpy(s->scales, w->scales_before, w->scale_bytes);
  if (count > 0) {
    attn_cache_write_args kept = w->args;
    w->args.backend = "REFERENCE";
    EXPECT_OK(write_to(w, slots, count, 0));
    w->args = kept;
  }
  CHECK(memcmp(pool, s->pool, bytes) == 0, "%s: other bytes of the pool", what);
  CHECK(memcmp(scales, s->scales, w->scale_bytes) == 0, "%s: other scales", what);
  memcpy(s->pool, w->pool_before, bytes);
  memcpy(s->scales, w->scales_before, w->scale_bytes);
  free(pool);
  free(scales);
}

static void close_writing(writing *w) {
  free(w->pool_before);
  free(w->scales_before);
  attn_context_destroy(w->context);
  latent_free(&w->s);
}

static void spoil_rows(writing *w, int64_t first) {
  float *latents = (float *)(void *)w->s.kv_c, *rotary = (float *)(void *)w->s.k_pe;
  for (int64_t i = first * w->kv_c.shape[1]; i < ROWS * w->kv_c.shape[1]; i++) {
    latents[i] = NAN;
  }
  for (int64_t i = first * w->k_pe.shape[1]; i < ROWS * w->k_pe.shape[1]; i++) {
    rotary[i] = NAN;
  }
}

/* Each format, scales inline and apart, each backend. */
static void each_writing(void (*body)(writing *w)) {
  for (int n = 0; n < 2 * LATENT_FORMATS * LATENT_BACKENDS; n++) {
    attn_format format = latent_formats[n / 2 % LATENT_FORMATS];
    int has_row_scale = format >= ATTN_FORMAT_INT8_PER_TOKEN_HEAD && format != ATTN_FORMAT_FP8_DS_MLA;
    writing w;
    harness_label(attn_format_name(format));
    open_writing(&w, format, n % 2 && has_row_scale, latent_backends[n / 2 / LATENT_FORMATS]);
    body(&w);
    close_writing(&w);
  }
}

/* ---- 12: padding rows are skipped */

static void padding_rows(writing *w) {
  static const int64_t slots[] = {5, -1, -1};
  spoil_rows(w, 1);
  for (int unchecked = 0; unchecked < 2; unchecked++) {
    EXPECT_OK(write_to(w, slots, 3, unchecked));
    expect_rows(w, slots, 1, "after slots 5, -1, -1");
  }
}

static void case_012_latent_padding_rows_write_nothing(void **state) {
  (void)state;
  each_writing(padding_rows);
}

/* ---- 14: slots beyond the capacity, or cut to 32 bits */

static void wide_slots(writing *w) {
  int64_t capacity = (int64_t)w->s.blocks * w->s.problem.block_size;
  const int64_t bad[] = {capacity, (INT64_C(1) << 32) + 3, (INT64_C(1) << 40) + 17, INT64_MAX};
  for (int i = 0; i < 4; i++) {
    int64_t slots[] = {9, bad[i]};
    EXPECT_STATUS(write_to(w, slots, 2, 0), ATTN_E_INDEX, "slot_mapping");
    expect_rows(w, slots, 0, "after a refused slot");
    EXPECT_OK(write_to(w, slots, 2, 1));
    expect_rows(w, slots, 1, "after a skipped slot");
    memcpy(w->list, slots, sizeof slots);
    tensor_1(&w->slots, w->list, ATTN_DTYPE_INT32, 4);
    EXPECT_STATUS(attn_cache_write(w->context, &w->args, &why), ATTN_E_DTYPE, "slot_mapping");
    expect_rows(w, slots, 0, "after slots of int32");
  }
}

/* The slots of a layer's new rows are judged before anything is written or computed. */
static void slots_of_a_call(int form, const char *backend) {
  const int32_t q = 3, kv = 20;
  latent s;
  latent_init_format(&s, (attn_mla_form)form, HEADS, ATTN_FORMAT_BFLOAT16, 10, V);
  latent_seqs(&s, 1, &q, &kv);
  latent_fill(&s, ATTN_FORMAT_BFLOAT16, 0);
  latent_open(&s, backend);
  size_t bytes = (size_t)s.info.k.bytes;
  unsigned char *before = malloc(bytes);
  assert_non_null(before);
  memcpy(before, s.pool, bytes);
  s.slots[2] = (int64_t)s.blocks * s.problem.block_size;
  EXPECT_STATUS(latent_call(&s), ATTN_E_INDEX, "slot_mapping");
  CHECK(memcmp(before, s.pool, bytes) == 0, "form %d: rows were written before the refusal", form);
  CHECK(all_bytes(s.out_memory, (size_t)(q * HEADS * V) * sizeof(float), 0xFF), "form %d: out was written", form);
  free(before);
  latent_close(&s);
  latent_free(&s);
}

static void case_014_latent_slot_beyond_capacity_or_narrowed(void **state) {
  (void)state;
  each_writing(wide_slots);
  for (int form = ATTN_MLA_MHA; form <= ATTN_MLA_LAYER; form++) {
    for (int b = 0; b < LATENT_BACKENDS; b++) {
      slots_of_a_call(form, latent_backends[b]);
    }
  }
}

/* ---- 15: slot list shorter or longer than the rows */

static void short_slots(writing *w) {
  static const int64_t slots[ROWS + 1] = {14, 1, 9, 0, 3, 4, 5, 6, 7};
  EXPECT_STATUS(write_to(w, slots, ROWS + 1, 0), ATTN_E_SHAPE, "slot_mapping");
  expect_rows(w, slots, 0, "after more slots than rows");
  guarded list = guard_make(5 * sizeof(int64_t)); /* nothing is read behind it */
  memcpy(list.data, slots, list.bytes);
  spoil_rows(w, 5);
  tensor_1(&w->slots, list.data, ATTN_DTYPE_INT64, 5);
  EXPECT_OK(attn_cache_write(w->context, &w->args, &why));
  expect_rows(w, slots, 5, "after fewer slots than rows");
  guard_free(&list);
}

static void case_015_latent_slot_list_shorter_or_longer_than_rows(void **state) {
  (void)state;
  each_writing(short_slots);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_012_latent_padding_rows_write_nothing),
      cmocka_unit_test(case_014_latent_slot_beyond_capacity_or_narrowed),
      cmocka_unit_test(case_015_latent_slot_list_shorter_or_longer_than_rows),
  };
  return cmocka_run_group_tests_name("cases over latent rows: writes", tests, NULL, NULL);
}
