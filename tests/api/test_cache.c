/* SPDX-License-Identifier: Apache-2.0 */
/* cache.h, attn_cache_describe: shapes, strides and bytes in both layouts, padding, overflow, every status. */
#include <string.h>

#include "harness.h"

static attn_cache_desc desc_of(attn_format format) {
  attn_cache_desc desc = ATTN_CACHE_DESC_INIT;
  desc.k_format = format;
  desc.num_blocks = 10;
  desc.block_size = 4;
  desc.num_kv_heads = 3;
  desc.head_size = 8;
  return desc;
}

static void check_layout(const attn_cache_layout *got, attn_dtype dtype, const int64_t *shape, const int64_t *strides,
                         uint64_t row_bytes, uint64_t bytes) {
  CHECK(got->dtype == dtype && got->ndim == 4, "type %s, %d axes", attn_dtype_name(got->dtype), got->ndim);
  for (int i = 0; i < 4; i++) {
    CHECK(got->shape[i] == shape[i] && got->strides[i] == strides[i], "axis %d: extent %lld stride %lld", i,
          (long long)got->shape[i], (long long)got->strides[i]);
  }
  CHECK(got->row_bytes == row_bytes && got->bytes == bytes, "row %llu, all %llu bytes",
        (unsigned long long)got->row_bytes, (unsigned long long)got->bytes);
}

static void both_layouts(void **state) {
  static const attn_format formats[] = {ATTN_FORMAT_FLOAT32, ATTN_FORMAT_FLOAT16, ATTN_FORMAT_BFLOAT16};
  static const int64_t nhd[] = {10, 4, 3, 8}, nhd_strides[] = {96, 24, 8, 1};
  static const int64_t hnd[] = {10, 3, 4, 8}, hnd_strides[] = {96, 32, 8, 1};
  (void)state;
  for (size_t i = 0; i < 3; i++) {
    attn_cache_desc desc = desc_of(formats[i]);
    attn_cache_info info = ATTN_CACHE_INFO_INIT;
    uint64_t element = attn_dtype_bytes(format_dtype(formats[i]));
    EXPECT_OK(attn_cache_describe(&desc, &info, &why));
    check_layout(&info.k, format_dtype(formats[i]), nhd, nhd_strides, 8 * element, 960 * element);
    check_layout(&info.v, format_dtype(formats[i]), nhd, nhd_strides, 8 * element, 960 * element);
    assert_int_equal(info.bytes, 2 * 960 * element);
    assert_int_equal(info.bytes_per_block, 2 * 96 * element);
    assert_true(info.bytes_per_token == (double)(2 * 24 * element));
    desc.layout = ATTN_LAYOUT_HND;
    EXPECT_OK(attn_cache_describe(&desc, &info, &why));
    check_layout(&info.k, format_dtype(formats[i]), hnd, hnd_strides, 8 * element, 960 * element);
    check_layout(&info.v, format_dtype(formats[i]), hnd, hnd_strides, 8 * element, 960 * element);
  }
}

static void unlike_k_and_v(void **state) {
  static const int64_t v_shape[] = {10, 4, 3, 5}, v_strides[] = {60, 15, 5, 1};
  attn_cache_desc desc = desc_of(ATTN_FORMAT_FLOAT32);
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  (void)state;
  desc.v_format = ATTN_FORMAT_BFLOAT16;
  desc.v_head_size = 5;
  EXPECT_OK(attn_cache_describe(&desc, &info, &why));
  check_layout(&info.v, ATTN_DTYPE_BFLOAT16, v_shape, v_strides, 10, 1200);
  assert_int_equal(info.bytes, 3840 + 1200);
  assert_true(info.bytes_per_token == 3 * (8 * 4 + 5 * 2));
}

static void padded_blocks(void **state) {
  static const int64_t shape[] = {10, 4, 3, 8}, k_strides[] = {128, 24, 8, 1}, v_strides[] = {97, 24, 8, 1};
  attn_cache_desc desc = desc_of(ATTN_FORMAT_FLOAT32);
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  (void)state;
  desc.k_block_bytes = 512;
  desc.v_block_bytes = 97 * 4;
  EXPECT_OK(attn_cache_describe(&desc, &info, &why));
  check_layout(&info.k, ATTN_DTYPE_FLOAT32, shape, k_strides, 32, 5120);
  check_layout(&info.v, ATTN_DTYPE_FLOAT32, shape, v_strides, 32, 3880);
  assert_int_equal(info.bytes, 9000);
  assert_int_equal(info.bytes_per_block, 900);
  assert_true(info.bytes_per_token == 192);
  desc.k_block_bytes = 380; /* less than a compact block */
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "k_block_bytes");
  desc.k_block_bytes = 386; /* no multiple of the element */
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "k_block_bytes");
  desc.k_block_bytes = -512;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "k_block_bytes");
  desc.k_block_bytes = 0;
  desc.v_block_bytes = 1;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "v_block_bytes");
}

static void defaults_and_no_blocks(void **state) {
  attn_cache_desc desc = desc_of(ATTN_FORMAT_FLOAT16);
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  (void)state;
  desc.block_size = 0;
  desc.num_blocks = 0;
  EXPECT_OK(attn_cache_describe(&desc, &info, &why));
  assert_int_equal(info.k.shape[0], 0);
  assert_int_equal(info.k.shape[1], 16);
  assert_int_equal(info.bytes, 0);
  assert_int_equal(info.bytes_per_block, 2 * 16 * 24 * 2);
}

static void bad_fields(void **state) {
#define FIELD(name, ...)                                                                                               \
  {                                                                                                                    \
#name, offsetof(attn_cache_desc, name), {                                                                          \
      __VA_ARGS__                                                                                                      \
    }                                                                                                                  \
  }
  static const struct {
    const char *name;
    size_t offset;
    int32_t values[3]; /* a 0 is not tried */
  } rows[] = {
      FIELD(layout, 2, -1),
      FIELD(block_size, -1, INT32_MIN),
      FIELD(num_kv_heads, -1, INT32_MIN),
      FIELD(head_size, -1, INT32_MIN),
      FIELD(v_head_size, -1, INT32_MIN),
  };
#undef FIELD
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  attn_cache_info before = info;
  attn_cache_desc desc;
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    for (size_t j = 0; j < 3 && rows[i].values[j] != 0; j++) {
      desc = desc_of(ATTN_FORMAT_FLOAT32);
      memcpy((char *)&desc + rows[i].offset, &rows[i].values[j], sizeof(int32_t));
      EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, rows[i].name);
    }
  }
  desc = desc_of(ATTN_FORMAT_AUTO);
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "k_format");
  desc.k_format = (attn_format)40;
  EXPECT_REFUSED(attn_cache_describe(&desc, &info, &why), "k_format");
  desc = desc_of(ATTN_FORMAT_FLOAT32);
  desc.num_blocks = -1;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "num_blocks");
  desc = desc_of(ATTN_FORMAT_FLOAT32);
  desc.num_kv_heads = 0;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "num_kv_heads");
  desc = desc_of(ATTN_FORMAT_FLOAT32);
  desc.head_size = 0;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "head_size");
  desc = desc_of(ATTN_FORMAT_FLOAT32);
  desc.separate_scales = 1;
  EXPECT_REFUSED(attn_cache_describe(&desc, &info, &why), "separate_scales");
  assert_memory_equal(&info, &before, sizeof info);
}

static void sizes_beyond_64_bits(void **state) {
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  attn_cache_info before = info;
  attn_cache_desc desc = desc_of(ATTN_FORMAT_FLOAT32);
  (void)state;
  desc.num_blocks = INT64_MAX;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_OVERFLOW, NULL);
  desc.num_blocks = 1;
  desc.block_size = desc.num_kv_heads = desc.head_size = INT32_MAX;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_OVERFLOW, NULL);
  desc = desc_of(ATTN_FORMAT_FLOAT32);
  desc.num_blocks = INT64_C(1) << 40;
  desc.k_block_bytes = INT64_C(1) << 40;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_OVERFLOW, NULL);
  desc.k_block_bytes = 0;
  desc.v_block_bytes = INT64_C(1) << 60;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_OVERFLOW, NULL);
  assert_memory_equal(&info, &before, sizeof info);
}

/* Rows of every quantised format, bytes worked out by hand: [10 blocks, 4 positions, 3 heads]. */
static void quantised_rows(void **state) {
  static const struct {
    attn_format format;
    int32_t size;
    int64_t row, separate_row;
    attn_dtype dtype;
  } rows[] = {
      {ATTN_FORMAT_FP8_E4M3, 17, 17, 0, ATTN_DTYPE_FP8_E4M3},
      {ATTN_FORMAT_FP8_E5M2, 64, 64, 0, ATTN_DTYPE_FP8_E5M2},
      {ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 64, 68, 64, ATTN_DTYPE_UINT8},
      {ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 17, 24, 17, ATTN_DTYPE_UINT8},
      {ATTN_FORMAT_FP8_PER_TOKEN_HEAD, 1, 8, 1, ATTN_DTYPE_UINT8},
      {ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 64, 36, 32, ATTN_DTYPE_UINT8},
      {ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 65, 40, 33, ATTN_DTYPE_UINT8},
      {ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 1, 8, 1, ATTN_DTYPE_UINT8},
  };
  static const int64_t scale_shape[] = {10, 4, 3}, scale_hnd[] = {10, 3, 4};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    attn_cache_desc desc = desc_of(rows[i].format);
    attn_cache_info info = ATTN_CACHE_INFO_INIT;
    attn_cache_layout none;
    memset(&none, 0, sizeof none);
    desc.head_size = rows[i].size;
    int64_t row = rows[i].row;
    int64_t shape[] = {10, 4, 3, row}, strides[] = {12 * row, 3 * row, row, 1};
    EXPECT_OK(attn_cache_describe(&desc, &info, &why));
    check_layout(&info.k, rows[i].dtype, shape, strides, (uint64_t)row, (uint64_t)(120 * row));
    check_layout(&info.v, rows[i].dtype, shape, strides, (uint64_t)row, (uint64_t)(120 * row));
    assert_true(info.bytes_per_token == (double)(6 * row));
    assert_memory_equal(&info.k_scale, &none, sizeof none);
    desc.separate_scales = ATTN_SEPARATE_BOTH;
    if (rows[i].separate_row == 0) {
      EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "separate_scales");
      continue;
    }
    desc.separate_scales = ATTN_SEPARATE_V;
    desc.layout = ATTN_LAYOUT_HND;
    EXPECT_OK(attn_cache_describe(&desc, &info, &why));
    row = rows[i].separate_row;
    int64_t hnd[] = {10, 3, 4, row}, hnd_strides[] = {12 * row, 4 * row, row, 1};
    check_layout(&info.v, rows[i].dtype, hnd, hnd_strides, (uint64_t)row, (uint64_t)(120 * row));
    assert_int_equal(info.k.row_bytes, rows[i].row);
    assert_memory_equal(&info.k_scale, &none, sizeof none);
    assert_true(info.v_scale.dtype == ATTN_DTYPE_FLOAT32 && info.v_scale.ndim == 3);
    assert_memory_equal(info.v_scale.shape, scale_hnd, sizeof scale_hnd);
    assert_true(info.v_scale.strides[0] == 12 && info.v_scale.strides[1] == 4 && info.v_scale.strides[2] == 1);
    assert_int_equal(info.v_scale.bytes, 480);
    assert_int_equal(info.bytes, 120 * (rows[i].row + row) + 480);
    assert_int_equal(info.bytes_per_block, 12 * (rows[i].row + row) + 48);
    assert_true(info.bytes_per_token == (double)(3 * (rows[i].row + row + 4)));
    desc.layout = ATTN_LAYOUT_NHD;
    desc.separate_scales = ATTN_SEPARATE_BOTH;
    EXPECT_OK(attn_cache_describe(&desc, &info, &why));
    assert_memory_equal(info.k_scale.shape, scale_shape, sizeof scale_shape);
    assert_memory_equal(&info.k_scale, &info.v_scale, sizeof none);
  }
}

static void quantised_pairs(void **state) {
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  attn_cache_desc desc = desc_of(ATTN_FORMAT_INT8_PER_TOKEN_HEAD);
  (void)state;
  desc.v_format = ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
  desc.head_size = 128;
  desc.v_head_size = 96;
  EXPECT_OK(attn_cache_describe(&desc, &info, &why));
  assert_true(info.bytes_per_token == 3 * ((128 + 4) + (48 + 4)));
  desc.v_format = ATTN_FORMAT_BFLOAT16;
  desc.separate_scales = ATTN_SEPARATE_BOTH; /* K's: V has none */
  EXPECT_OK(attn_cache_describe(&desc, &info, &why));
  assert_true(info.v_scale.ndim == 0 && info.k_scale.ndim == 3 && info.k.row_bytes == 128);
  desc.separate_scales = ATTN_SEPARATE_V;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "separate_scales");
  desc.separate_scales = 4;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "separate_scales");
  desc.separate_scales = -1;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "separate_scales");
  desc.separate_scales = 0;
  desc.k_block_bytes = 12 * 132 + 5; /* padded by any number of bytes */
  EXPECT_OK(attn_cache_describe(&desc, &info, &why));
  assert_true(info.k.strides[0] == 12 * 132 + 5);
  desc.k_block_bytes = 12 * 132 - 1;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "k_block_bytes");
  desc.k_block_bytes = 0;
  desc.head_size = 8193;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_RANGE, "head_size");
  desc.head_size = 8192;
  EXPECT_OK(attn_cache_describe(&desc, &info, &why));
  desc.num_blocks = 1; /* a separate scale is larger than a row of one code */
  desc.head_size = desc.v_head_size = 1;
  desc.separate_scales = ATTN_SEPARATE_BOTH;
  desc.v_format = ATTN_FORMAT_INT8_PER_TOKEN_HEAD;
  desc.block_size = INT32_MAX;
  desc.num_kv_heads = INT32_MAX;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_OVERFLOW, "scale");
}

static void null_and_size(void **state) {
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  attn_cache_desc desc = desc_of(ATTN_FORMAT_FLOAT32);
  (void)state;
  EXPECT_STATUS(attn_cache_describe(NULL, &info, &why), ATTN_E_NULL, "desc");
  EXPECT_STATUS(attn_cache_describe(&desc, NULL, &why), ATTN_E_NULL, "info");
  desc.size = 5;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_STRUCT_SIZE, NULL);
  desc.size = sizeof desc;
  info.size = 5;
  EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_STRUCT_SIZE, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(both_layouts),   cmocka_unit_test(unlike_k_and_v),
      cmocka_unit_test(padded_blocks),  cmocka_unit_test(defaults_and_no_blocks),
      cmocka_unit_test(bad_fields),     cmocka_unit_test(sizes_beyond_64_bits),
      cmocka_unit_test(quantised_rows), cmocka_unit_test(quantised_pairs),
      cmocka_unit_test(null_and_size),
  };
  return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
