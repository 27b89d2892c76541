/* SPDX-License-Identifier: Apache-2.0 */
/* cache.h, attn_cache_gather: rows in order, conversion, starts, unchecked rules, every status; outputs untouched. */
#include <math.h>
#include <string.h>

#include "caching.h"

static const attn_dtype floats[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16};

/* Row `row` of k (which 0) or v is this slot's, rounded once; slot -1: zeros. */
static void check_row(const caching *c, int which, int64_t row, int64_t slot) {
  const tensor *t = which == 0 ? &c->t_k : &c->t_v;
  const guarded *pool = which == 0 ? &c->k_pool : &c->v_pool;
  int32_t size = which == 0 ? c->k_size : c->v_size;
  for (int32_t h = 0; h < c->heads; h++) {
    for (int32_t d = 0; d < size; d++) {
      float got = load_element(t->t.data, c->row_dtype, row * t->strides[0] + h * t->strides[1] + d);
      float stored = slot < 0 ? 0.0f : load_element(pool->data, c->pool_dtype, caching_row(c, which, slot, h) + d);
      float right = rounded(c->row_dtype, stored);
      CHECK(got == right, "%s row %d head %d element %d: %g, right is %g", which == 0 ? "k" : "v", (int)row, h, d,
            (double)got, (double)right);
    }
  }
}

/* Every row of both sequences. A table entry outside the pool and a missing column give zeros (unchecked). */
static void check_gather(caching *c) {
  int64_t row = 0;
  EXPECT_OK(attn_cache_gather(c->context, &c->gather, &why));
  for (int32_t s = 0; s < 2; s++) {
    for (int32_t p = c->starts[s]; p < c->lens[s]; p++, row++) {
      int32_t column = p / c->block_size;
      int32_t id = column < CACHING_WIDTH ? c->table[s * CACHING_WIDTH + column] : -1;
      int64_t slot = id < 0 || id >= c->num_blocks ? -1 : (int64_t)id * c->block_size + p % c->block_size;
      if (c->gather.k != NULL) {
        check_row(c, 0, row, slot);
      }
      if (c->gather.v != NULL) {
        check_row(c, 1, row, slot);
      }
    }
  }
}

static void check_refused(caching *c, attn_status status, const char *named) {
  memset(c->k.data, 0xFF, c->k.bytes);
  memset(c->v.data, 0xFF, c->v.bytes);
  EXPECT_STATUS(attn_cache_gather(c->context, &c->gather, &why), status, named);
  CHECK(all_bytes(c->k.data, c->k.bytes, 0xFF) && all_bytes(c->v.data, c->v.bytes, 0xFF), "a failing gather wrote");
}

static void every_pair_of_types(const char *backend) {
  for (int i = 0; i < 18; i++) {
    caching c;
    caching_open(&c, backend, floats[i % 3], floats[i / 3 % 3], i / 9 == 0 ? ATTN_LAYOUT_NHD : ATTN_LAYOUT_HND, 1);
    caching_gather(&c, 0, 13, 0, 20);
    check_gather(&c);
    caching_close(&c);
  }
}

static void starts_and_empty_sequences(const char *backend) {
  static const int32_t spans[][4] = {{0, 0, 0, 20}, {13, 13, 4, 9}, {5, 11, 19, 20}, {0, 0, 7, 7}, {1, 2, 0, 1}};
  for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
    caching c;
    caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_BFLOAT16, ATTN_LAYOUT_NHD, 1);
    caching_gather(&c, spans[i][0], spans[i][1], spans[i][2], spans[i][3]);
    check_gather(&c);
    if (spans[i][0] == 0 && spans[i][2] == 0) {
      c.gather.seq_starts = NULL;
      check_gather(&c);
    }
    caching_close(&c);
  }
}

static void k_or_v_alone(const char *backend) {
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT32, ATTN_LAYOUT_NHD, 1);
  caching_gather(&c, 0, 13, 0, 20);
  c.gather.v_cache = NULL;
  c.gather.v = NULL;
  check_gather(&c);
  CHECK(all_bytes(c.v.data, c.v.bytes, 0xFF), "V was written though it was not given");
  c.gather.k = NULL;
  EXPECT_STATUS(attn_cache_gather(c.context, &c.gather, &why), ATTN_E_NULL, "k");
  c.gather.k_cache = NULL;
  EXPECT_STATUS(attn_cache_gather(c.context, &c.gather, &why), ATTN_E_NULL, NULL);
  c.gather.k = &c.t_k.t; /* rows wanted of a pool that is not given */
  EXPECT_STATUS(attn_cache_gather(c.context, &c.gather, &why), ATTN_E_NULL, "k");
  c.gather.k = NULL;
  c.gather.v_cache = &c.t_v_pool.t;
  c.gather.v = &c.t_v.t;
  check_gather(&c);
  caching_close(&c);
}

/* What a row's conversion must keep: infinities, NaN, subnormals, zeros of both signs. */
static void odd_values(const char *backend) {
  static const float values[] = {INFINITY, -INFINITY, 0x1p-24f, -0.0f, 65504.0f, 0x1p-14f};
  for (int i = 0; i < 3; i++) {
    caching c;
    caching_open(&c, backend, ATTN_DTYPE_FLOAT32, floats[i], ATTN_LAYOUT_NHD, 1);
    int64_t at = caching_row(&c, 1, 6 * 5, 0);
    for (int64_t d = 0; d < 6; d++) {
      store_element(c.v_pool.data, c.pool_dtype, at + d, values[d]);
    }
    caching_gather(&c, 0, 1, 0, 0);
    check_gather(&c);
    CHECK(signbit(load_element(c.v.data, ATTN_DTYPE_FLOAT32, 3)), "-0 became 0");
    store_element(c.v_pool.data, c.pool_dtype, at + 2, NAN);
    EXPECT_OK(attn_cache_gather(c.context, &c.gather, &why));
    CHECK(isnan(load_element(c.v.data, ATTN_DTYPE_FLOAT32, 2)), "a NaN became a number");
    caching_close(&c);
  }
}

static void bad_lists(const char *backend) {
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT32, ATTN_LAYOUT_NHD, 1);
  caching_gather(&c, 0, 13, 0, 20);
  c.lens[1] = 21; /* beyond 4 columns of 5 */
  c.t_k.shape[0] = c.t_v.shape[0] = 34;
  EXPECT_STATUS(attn_cache_gather(c.context, &c.gather, &why), ATTN_E_INDEX, "seq_lens");
  caching_gather(&c, 0, 13, 0, 20);
  c.table[1] = 7; /* outside the pool, and read */
  check_refused(&c, ATTN_E_INDEX, "block_table");
  c.table[1] = -1;
  check_refused(&c, ATTN_E_INDEX, "block_table");
  c.table[1] = INT32_MAX;
  check_refused(&c, ATTN_E_INDEX, "block_table");
  c.table[1] = 0;
  c.lens[0] = -1;
  check_refused(&c, ATTN_E_INDEX, "seq_lens");
  c.lens[0] = 13;
  c.starts[0] = 14; /* beyond its length */
  check_refused(&c, ATTN_E_INDEX, "seq_starts");
  c.starts[0] = -1;
  check_refused(&c, ATTN_E_INDEX, "seq_starts");
  c.starts[0] = 0;
  check_gather(&c);
  c.table[3] = -9; /* a column that nobody reads may hold anything */
  check_gather(&c);
  caching_gather(&c, 5, 13, 0, 20);
  c.table[0] = 99; /* before the start */
  check_gather(&c);
  caching_close(&c);
}

/* Unchecked: what cannot be reached comes back 0. */
static void unchecked(const char *backend) {
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_LAYOUT_HND, 1);
  caching_gather(&c, 0, 13, 3, 29);
  c.gather.unchecked = 1;
  c.table[1] = 7;
  c.table[2] = INT32_MIN;
  check_gather(&c);
  caching_close(&c);
}

static void every_tensor(const char *backend) {
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT32, ATTN_LAYOUT_NHD, 1);
  caching_gather(&c, 0, 13, 0, 20);
  const struct {
    tensor *t;
    const DLTensor **field;
    const char *name;
    int output, optional;
  } list[] = {
      {&c.t_k_pool, &c.gather.k_cache, "k_cache", 0, 1},
      {&c.t_v_pool, &c.gather.v_cache, "v_cache", 0, 1},
      {&c.t_table, &c.gather.block_table, "block_table", 0, 0},
      {&c.t_lens, &c.gather.seq_lens, "seq_lens", 0, 0},
      {&c.t_starts, &c.gather.seq_starts, "seq_starts", 0, 1},
      {&c.t_k, &c.gather.k, "k", 1, 0},
      {&c.t_v, &c.gather.v, "v", 1, 0},
  };
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    tensor *t = list[i].t;
    DLTensor kept = t->t;
    int32_t last = kept.ndim - 1;
    if (!list[i].optional) {
      *list[i].field = NULL;
      check_refused(&c, ATTN_E_NULL, list[i].name);
      *list[i].field = &t->t;
    }
    t->t.ndim = 0;
    check_refused(&c, ATTN_E_SHAPE, list[i].name);
    t->t = kept;
    t->t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT64);
    check_refused(&c, ATTN_E_DTYPE, list[i].name);
    t->t = kept;
    t->t.device.device_type = kDLCUDA;
    check_refused(&c, ATTN_E_TENSOR_DEVICE, list[i].name);
    t->t = kept;
    t->t.byte_offset = 2;
    check_refused(&c, ATTN_E_ALIGN, list[i].name);
    t->t = kept;
    t->strides[last] = -1;
    check_refused(&c, ATTN_E_STRIDE, list[i].name);
    t->strides[last] = list[i].output ? 0 : INT64_MIN;
    check_refused(&c, ATTN_E_STRIDE, list[i].name);
    t->strides[last] = 1;
    t->shape[0]--;
    if (i >= 2) { /* a smaller pool is a valid pool */
      EXPECT_STATUS(attn_cache_gather(c.context, &c.gather, &why), ATTN_E_SHAPE, NULL);
    }
    t->shape[0]++;
    int64_t stride = t->strides[0];
    t->strides[0] = INT64_MAX / 2;
    EXPECT_REFUSED(attn_cache_gather(c.context, &c.gather, &why), list[i].name);
    t->strides[0] = stride;
  }
  check_gather(&c);
  caching_close(&c);
}

static void other_arguments(const char *backend) {
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT32, ATTN_LAYOUT_NHD, 1);
  caching_gather(&c, 0, 13, 0, 20);
  EXPECT_STATUS(attn_cache_gather(NULL, &c.gather, &why), ATTN_E_NULL, "context");
  EXPECT_STATUS(attn_cache_gather(c.context, NULL, &why), ATTN_E_NULL, "args");
  c.gather.size = 10;
  check_refused(&c, ATTN_E_STRUCT_SIZE, NULL);
  c.gather.size = sizeof c.gather;
  c.gather.k_format = ATTN_FORMAT_FP8_DS_MLA;
  check_refused(&c, ATTN_E_UNSUPPORTED, "fp8_ds_mla");
  c.gather.k_format = ATTN_FORMAT_INT8_PER_TOKEN_HEAD; /* the pool is float32 */
  check_refused(&c, ATTN_E_DTYPE, "uint8");
  c.gather.k_format = (attn_format)77;
  check_refused(&c, ATTN_E_RANGE, "k_format");
  c.gather.k_format = ATTN_FORMAT_AUTO;
  c.gather.layout = (attn_layout)3;
  EXPECT_REFUSED(attn_cache_gather(c.context, &c.gather, &why), "layout");
  c.gather.layout = ATTN_LAYOUT_NHD;
  void *kept = c.t_k.t.data;
  c.t_k.t.data = c.v.data; /* two outputs on one memory */
  check_refused(&c, ATTN_E_OVERLAP, NULL);
  c.t_k.t.data = c.k_pool.data;
  c.t_k.shape[0] = 33;
  EXPECT_STATUS(attn_cache_gather(c.context, &c.gather, &why), ATTN_E_OVERLAP, NULL);
  c.t_k.t.data = kept;
  check_gather(&c);
  caching_close(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(every_pair_of_types), BACKEND_TEST(starts_and_empty_sequences),
      BACKEND_TEST(k_or_v_alone),        BACKEND_TEST(odd_values),
      BACKEND_TEST(bad_lists),           BACKEND_TEST(unchecked),
      BACKEND_TEST(every_tensor),        BACKEND_TEST(other_arguments),
  };
  return cmocka_run_group_tests_name("cache_gather", tests, NULL, NULL);
}
