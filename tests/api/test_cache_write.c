/* SPDX-License-Identifier: Apache-2.0 */
/* cache.h, attn_cache_write: conversion, strides, slots, every status; nothing but the named slots changes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "caching.h"

static const attn_dtype floats[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16};

/* What a pool has to be after the call: the bytes of before with the rows of the slots in place. */
static void apply(const caching *c, int which, unsigned char *pool) {
  const tensor *rows = which == 0 ? &c->t_k : &c->t_v;
  int32_t size = which == 0 ? c->k_size : c->v_size;
  for (int64_t i = 0; i < c->t_slots.shape[0]; i++) {
    for (int32_t h = 0; c->slots[i] >= 0 && c->slots[i] < 35 && h < c->heads; h++) {
      for (int32_t d = 0; d < size; d++) {
        int64_t from = i * rows->strides[0] + h * rows->strides[1] + d * rows->strides[2];
        store_element(pool, c->pool_dtype, caching_row(c, which, c->slots[i], h) + d,
                      load_element(rows->t.data, c->row_dtype, from));
      }
    }
  }
}

/* Run the write and compare both pools, byte for byte. `writes` 0: nothing may change. */
static void check_write(caching *c, attn_status status, const char *named, int writes) {
  unsigned char *k = malloc(c->k_pool.bytes);
  unsigned char *v = malloc(c->v_pool.bytes);
  CHECK(k != NULL && v != NULL, "no memory");
  memcpy(k, c->k_pool.data, c->k_pool.bytes);
  memcpy(v, c->v_pool.data, c->v_pool.bytes);
  if (writes) {
    apply(c, 0, k);
    apply(c, 1, v);
  }
  harness_reset();
  harness_expect(attn_cache_write(c->context, &c->write, &why), status, named, __FILE__, __LINE__);
  CHECK(memcmp(k, c->k_pool.data, c->k_pool.bytes) == 0, "K has other bytes than it should");
  CHECK(memcmp(v, c->v_pool.data, c->v_pool.bytes) == 0, "V has other bytes than it should");
  free(k);
  free(v);
}

static void every_pair_of_types(const char *backend) {
  for (int i = 0; i < 18; i++) {
    caching c;
    caching_open(&c, backend, floats[i % 3], floats[i / 3 % 3], i / 9 == 0 ? ATTN_LAYOUT_NHD : ATTN_LAYOUT_HND, 20);
    c.slots[4] = -1;
    c.slots[9] = INT64_MIN;
    check_write(&c, ATTN_OK, NULL, 1);
    caching_close(&c);
  }
}

/* Round to nearest even at ties, overflow to infinity, subnormals, and infinities. */
static void rounding(const char *backend) {
  static const float values[] = {1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 1.0f + 0x1p-11f, 1.0f + 0x3p-11f, 65519.0f,  65520.0f,
                                 0x1p-24f,       0x1p-25f,       0x1.8p-24f,      0x1p-126f,       0x1p-140f, 3.4e38f,
                                 INFINITY,       -INFINITY,      -0.0f,           0x1.ffcp-15f};
  for (int i = 0; i < 3; i++) {
    caching c;
    caching_open(&c, backend, ATTN_DTYPE_FLOAT32, floats[i], ATTN_LAYOUT_NHD, 10);
    for (int64_t j = 0; j < 10 * 2 * 8; j++) {
      store_element(c.k.data, ATTN_DTYPE_FLOAT32, j, values[j % 16]);
    }
    for (int64_t j = 0; j < 10 * 2 * 6; j++) {
      store_element(c.v.data, ATTN_DTYPE_FLOAT32, j, -values[j % 16]);
    }
    check_write(&c, ATTN_OK, NULL, 1);
    caching_close(&c);
  }
}

static void nan_stays_nan(const char *backend) {
  for (int i = 0; i < 9; i++) {
    caching c;
    caching_open(&c, backend, floats[i % 3], floats[i / 3], ATTN_LAYOUT_NHD, 1);
    store_element(c.k.data, c.row_dtype, 3, NAN);
    EXPECT_OK(attn_cache_write(c.context, &c.write, &why));
    CHECK(isnan(load_element(c.k_pool.data, c.pool_dtype, caching_row(&c, 0, 3, 0) + 3)), "a NaN became a number");
    caching_close(&c);
  }
}

/* Strided rows, a byte offset, NULL strides, broadcast rows, padded pools. */
static void strides(const char *backend) {
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_LAYOUT_NHD, 20);
  c.t_k.strides[0] *= 2; /* every second row */
  c.t_k.shape[0] = c.t_v.shape[0] = 10;
  c.t_slots.shape[0] = 10;
  check_write(&c, ATTN_OK, NULL, 1);
  c.t_k.strides[0] = 0; /* one row for all */
  check_write(&c, ATTN_OK, NULL, 1);
  c.t_k.strides[0] = 16;
  c.t_v.t.strides = NULL;
  check_write(&c, ATTN_OK, NULL, 1);
  c.t_v.t.strides = c.t_v.strides;
  c.t_k_pool.t.byte_offset = 2 * 80; /* what lies before it is not the tensor's */
  c.t_k_pool.t.data = c.k_pool.data - 2 * 80;
  check_write(&c, ATTN_OK, NULL, 1);
  caching_close(&c);
}

static void slots(const char *backend) {
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT32, ATTN_LAYOUT_HND, 12);
  c.slots[7] = 35;
  check_write(&c, ATTN_E_INDEX, "slot_mapping", 0);
  c.write.unchecked = 1;
  check_write(&c, ATTN_OK, NULL, 1);
  c.slots[7] = INT64_MAX;
  check_write(&c, ATTN_OK, NULL, 1);
  c.write.unchecked = 0;
  check_write(&c, ATTN_E_INDEX, "slot_mapping", 0);
  c.slots[7] = c.slots[2];
  check_write(&c, ATTN_E_INDEX, "slot_mapping", 0);
  c.slots[7] = c.slots[11];
  check_write(&c, ATTN_E_INDEX, "slot_mapping", 0);
  c.slots[7] = c.slots[2] = -1; /* padding may repeat */
  check_write(&c, ATTN_OK, NULL, 1);
  c.t_slots.shape[0] = 0;
  check_write(&c, ATTN_OK, NULL, 0);
  c.t_slots.shape[0] = 13;
  check_write(&c, ATTN_E_SHAPE, "slot_mapping", 0);
  caching_close(&c);
}

/* Lists that repeat one entry (stride 0) cost no memory, so their extent may be anything: nothing walks it. */
static void broadcast_slots(const char *backend) {
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT32, ATTN_LAYOUT_NHD, 3);
  c.t_slots.shape[0] = c.t_k.shape[0] = c.t_v.shape[0] = INT64_C(1) << 40;
  c.t_slots.strides[0] = c.t_k.strides[0] = c.t_v.strides[0] = 0;
  c.slots[0] = 5;
  EXPECT_STATUS(attn_cache_write(c.context, &c.write, &why), ATTN_E_INDEX, "slot_mapping");
  c.write.unchecked = 1;
  EXPECT_OK(attn_cache_write(c.context, &c.write, &why));
  assert_memory_equal(c.k_pool.data + caching_row(&c, 0, 5, 0) * 4, c.k.data, 8 * 4);
  c.write.unchecked = 0;
  c.slots[0] = -1;
  EXPECT_OK(attn_cache_write(c.context, &c.write, &why));
  caching_close(&c);
}

/* Unchecked: of equal slots one wins, whole rows. */
static void equal_slots_unchecked(const char *backend) {
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT32, ATTN_LAYOUT_NHD, 3);
  c.slots[0] = c.slots[1] = c.slots[2] = 11;
  c.write.unchecked = 1;
  EXPECT_OK(attn_cache_write(c.context, &c.write, &why));
  const unsigned char *row = c.k_pool.data + caching_row(&c, 0, 11, 0) * 4;
  int wins = 0;
  for (size_t i = 0; i < 3; i++) {
    wins += memcmp(row, c.k.data + i * 64, 64) == 0;
  }
  CHECK(wins == 1, "the slot holds no whole row");
  caching_close(&c);
}

static void every_tensor(const char *backend) {
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT32, ATTN_LAYOUT_NHD, 12);
  const struct {
    tensor *t;
    const DLTensor **field;
    const char *name;
    int output;
  } list[] = {
      {&c.t_k, &c.write.k, "k", 0},
      {&c.t_v, &c.write.v, "v", 0},
      {&c.t_slots, &c.write.slot_mapping, "slot_mapping", 0},
      {&c.t_k_pool, &c.write.k_cache, "k_cache", 1},
      {&c.t_v_pool, &c.write.v_cache, "v_cache", 1},
  };
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    tensor *t = list[i].t;
    DLTensor kept = t->t;
    int32_t last = kept.ndim - 1;
    *list[i].field = NULL;
    check_write(&c, ATTN_E_NULL, list[i].name, 0);
    *list[i].field = &t->t;
    t->t.ndim = 2;
    check_write(&c, ATTN_E_SHAPE, list[i].name, 0);
    t->t = kept;
    t->t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT32);
    check_write(&c, ATTN_E_DTYPE, list[i].name, 0);
    t->t = kept;
    t->t.device.device_type = kDLOpenCL;
    check_write(&c, ATTN_E_TENSOR_DEVICE, list[i].name, 0);
    t->t = kept;
    t->t.byte_offset = 2;
    check_write(&c, ATTN_E_ALIGN, list[i].name, 0);
    t->t = kept;
    t->strides[last] = -1;
    check_write(&c, ATTN_E_STRIDE, list[i].name, 0);
    t->strides[last] = list[i].output ? 0 : INT64_MIN;
    check_write(&c, ATTN_E_STRIDE, list[i].name, 0);
    t->strides[last] = 1;
    if (last > 0) {
      t->shape[last]--;
      EXPECT_STATUS(attn_cache_write(c.context, &c.write, &why), ATTN_E_SHAPE, NULL);
      t->shape[last]++;
    }
    int64_t stride = t->strides[0];
    t->strides[0] = INT64_MAX / 4;
    EXPECT_REFUSED(attn_cache_write(c.context, &c.write, &why), list[i].name);
    t->strides[0] = stride;
  }
  c.t_v.shape[0] = 11; /* k and v have other token counts */
  check_write(&c, ATTN_E_SHAPE, "v", 0);
  c.t_v.shape[0] = 12;
  c.t_k_pool.shape[2] = 1; /* another head count */
  EXPECT_STATUS(attn_cache_write(c.context, &c.write, &why), ATTN_E_SHAPE, NULL);
  c.t_k_pool.shape[2] = 2;
  for (int i = 0; i < 20; i++) {
    c.slots[i] = -1;
  }
  for (int64_t size = INT64_C(1) << 31; size <= INT64_C(1) << 33; size *= 2) { /* block sizes beyond 32 bits */
    c.t_k_pool.shape[0] = c.t_v_pool.shape[0] = 1;
    c.t_k_pool.shape[1] = c.t_v_pool.shape[1] = size;
    EXPECT_REFUSED(attn_cache_write(c.context, &c.write, &why), NULL);
  }
  c.t_k_pool.shape[0] = c.t_v_pool.shape[0] = 7;
  c.t_k_pool.shape[1] = c.t_v_pool.shape[1] = 5;
  check_write(&c, ATTN_OK, NULL, 0);
  caching_close(&c);
}

/* K and V as two views of one allocation, interleaved by block, position, head or row; sizes alike or not. */
static void shared_allocations(const char *backend) {
  enum { B = 7, S = 5, H = 2 };
  static const int64_t sizes[][2] = {{8, 8}, {8, 6}, {1, 1}, {3, 8}};
  for (int i = 0; i < 16; i++) {
    int64_t dk = sizes[i / 4][0], dv = sizes[i / 4][1], both = dk + dv;
    const int64_t forms[4][7] = {
        /* K: block, offset, head; V: first element, block, offset, head */
        {S * H * both, H * dk, dk, S * H * dk, S * H * both, H * dv, dv}, /* [B, (S, H, dk) | (S, H, dv)] */
        {S * H * both, H * both, dk, H * dk, S * H * both, H * both, dv}, /* [B, S, (H, dk) | (H, dv)] */
        {S * H * both, H * both, both, dk, S * H * both, H * both, both}, /* [B, S, H, dk | dv] */
        {S * H * both, both, S * both, dk, S * H * both, both, S * both}, /* [B, H, S, dk | dv] */
    };
    const int64_t *f = forms[i % 4];
    caching c;
    caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT32, ATTN_LAYOUT_NHD, 12);
    guarded memory = guard_make((size_t)(B * S * H * both) * sizeof(float));
    float *pool = (float *)(void *)memory.data;
    tensor_4(&c.t_k_pool, pool, ATTN_DTYPE_FLOAT32, B, S, H, dk);
    tensor_4(&c.t_v_pool, pool + f[3], ATTN_DTYPE_FLOAT32, B, S, H, dv);
    memcpy(c.t_k_pool.strides, f, 3 * sizeof *f);
    memcpy(c.t_v_pool.strides, f + 4, 3 * sizeof *f);
    tensor_3(&c.t_k, c.k.data, ATTN_DTYPE_FLOAT32, 12, H, dk);
    tensor_3(&c.t_v, c.v.data, ATTN_DTYPE_FLOAT32, 12, H, dv);
    c.t_v.strides[0] = c.t_v.strides[1] = 1; /* whatever lies there */
    EXPECT_OK(attn_cache_write(c.context, &c.write, &why));
    for (int64_t t = 0; t < 12; t++) {
      for (int32_t h = 0; h < H; h++) {
        int64_t k_at = caching_row(&c, 0, c.slots[t], h), v_at = f[3] + caching_row(&c, 1, c.slots[t], h);
        const float *k = (const float *)(const void *)c.k.data + (t * H + h) * dk;
        const float *v = (const float *)(const void *)c.v.data + t + h;
        CHECK(same_bits(pool + k_at, k, dk) && same_bits(pool + v_at, v, dv), "form %d: token %d is wrong", i, (int)t);
      }
    }
    guard_free(&memory);
    caching_close(&c);
  }
}

static void other_arguments(const char *backend) {
  caching c;
  caching_open(&c, backend, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT32, ATTN_LAYOUT_NHD, 12);
  EXPECT_STATUS(attn_cache_write(NULL, &c.write, &why), ATTN_E_NULL, "context");
  EXPECT_STATUS(attn_cache_write(c.context, NULL, &why), ATTN_E_NULL, "args");
  c.write.size = 10;
  check_write(&c, ATTN_E_STRUCT_SIZE, NULL, 0);
  c.write.size = sizeof c.write;
  c.write.layout = (attn_layout)4;
  EXPECT_REFUSED(attn_cache_write(c.context, &c.write, &why), "layout");
  c.write.layout = ATTN_LAYOUT_NHD;
  c.write.k_format = ATTN_FORMAT_FP8_DS_MLA;
  check_write(&c, ATTN_E_UNSUPPORTED, "fp8_ds_mla", 0);
  c.write.k_format = ATTN_FORMAT_FP8_E4M3; /* the pool is float32 */
  check_write(&c, ATTN_E_DTYPE, "fp8_e4m3", 0);
  c.write.k_format = (attn_format)-1;
  check_write(&c, ATTN_E_RANGE, "k_format", 0);
  c.write.k_format = ATTN_FORMAT_FLOAT16; /* the pool is float32 */
  EXPECT_REFUSED(attn_cache_write(c.context, &c.write, &why), NULL);
  c.write.k_format = ATTN_FORMAT_FLOAT32;
  c.write.k_scale = &c.t_k.t;
  EXPECT_REFUSED(attn_cache_write(c.context, &c.write, &why), "k_scale");
  c.write.k_scale = NULL;
  c.t_v.t.data = c.k_pool.data; /* input in the pool */
  check_write(&c, ATTN_E_OVERLAP, "k_cache", 0);
  c.t_v.t.data = c.v.data;
  c.t_v_pool.t.data = c.k_pool.data; /* pool in the pool */
  check_write(&c, ATTN_E_OVERLAP, "_cache", 0);
  c.t_v_pool.t.data = c.v_pool.data;
  c.write.unchecked = 2;
  EXPECT_REFUSED(attn_cache_write(c.context, &c.write, &why), "unchecked");
  c.write.unchecked = 0;
  check_write(&c, ATTN_OK, NULL, 1);
  caching_close(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(every_pair_of_types),
      BACKEND_TEST(rounding),
      BACKEND_TEST(nan_stays_nan),
      BACKEND_TEST(strides),
      BACKEND_TEST(slots),
      BACKEND_TEST(broadcast_slots),
      BACKEND_TEST(equal_slots_unchecked),
      BACKEND_TEST(every_tensor),
      BACKEND_TEST(other_arguments),
      BACKEND_TEST(shared_allocations),
  };
  return cmocka_run_group_tests_name("cache_write", tests, NULL, NULL);
}
