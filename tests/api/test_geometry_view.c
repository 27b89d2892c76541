/* SPDX-License-Identifier: Apache-2.0 */
/* test_geometry_view.c: where each byte of a page belongs, and every documented status of attn_geometry_view(). */
#include "geometry_model.h"

#include <stdlib.h>
#include <string.h>

/* ---- Every byte of a page ---------------------------------------------------------------------------------------- */

/* All elements of all layers and parts of a group, in all pages: within the page, none twice, and together
   block_size * token_bytes in each page. */
static void views_share_no_byte(void **state) {
  (void)state;
  enum { PAGES = 3 };
  uint32_t random = 77;
  for (int round = 0; round < 60; round++) {
    model m;
    model_draw(&m, &random);
    m.options.policy = (attn_page_policy)(round % 4);
    m.options.max_page_bytes = m.options.policy == ATTN_PAGES_EXACT ? 1 << 20 : 0;
    harness_reset();
    if (model_unify(&m) != ATTN_OK) {
      continue;
    }
    int64_t shape[3] = {PAGES, 1, (int64_t)m.geometry.page_bytes};
    unsigned char *bytes = calloc(PAGES, m.geometry.page_bytes);
    DLTensor pool;
    assert_non_null(bytes);
    attn_tensor_cpu(&pool, bytes, ATTN_DTYPE_UINT8, 3, shape);
    for (int g = 0; g < m.count; g++) {
      const attn_group_pages *group = &m.group[g];
      uint64_t owned = 0;
      memset(bytes, 0, PAGES * m.geometry.page_bytes);
      for (int32_t layer = 0; layer < group->num_layers; layer++) {
        for (int part = 0; part < 4; part++) {
          if (group->part[part].ndim == 0) {
            continue;
          }
          attn_page_view view;
          EXPECT_OK(attn_geometry_view(&pool, group, layer, (attn_page_part)part, &view, &why));
          const DLTensor *t = &view.tensor;
          size_t element = (size_t)t->dtype.bits / 8;
          assert_int_equal(t->shape[0], PAGES * (group->block_size / group->kernel_block));
          int64_t fourth = t->ndim == 4 ? t->shape[3] : 1;
          for (int64_t i = 0; i < t->shape[0] * t->shape[1] * t->shape[2] * fourth; i++) {
            int64_t at[4] = {i / fourth / t->shape[2] / t->shape[1], i / fourth / t->shape[2] % t->shape[1],
                             i / fourth % t->shape[2], i % fourth};
            int64_t index = at[0] * t->strides[0] + at[1] * t->strides[1] + at[2] * t->strides[2] +
                            (t->ndim == 4 ? at[3] * t->strides[3] : 0);
            uint64_t first = t->byte_offset + (uint64_t)index * element;
            uint64_t page = (uint64_t)at[0] / (uint64_t)(group->block_size / group->kernel_block);
            assert_true(first / m.geometry.page_bytes == page &&
                        (first + element - 1) / m.geometry.page_bytes == page && bytes[first]++ == 0);
            owned += element;
          }
        }
      }
      assert_int_equal(owned, PAGES * (uint64_t)group->block_size * group->token_bytes);
    }
    free(bytes);
  }
}

static void statuses_of_view(void **state) {
  (void)state;
  model m;
  model_open(&m);
  model_add(&m, 2, ATTN_FORMAT_FLOAT32, 1, 8)->kernel_block = 4;
  EXPECT_OK(model_unify(&m));
  assert_int_equal(m.geometry.page_bytes, 16 * 128);
  _Alignas(16) static unsigned char bytes[4 * 2048 + 16];
  int64_t shape[3] = {4, 1, 2048};
  DLTensor pool;
  attn_page_view view;
  attn_tensor_cpu(&pool, bytes, ATTN_DTYPE_UINT8, 3, shape);
#define VIEW(status, named)                                                                                            \
  EXPECT_STATUS(attn_geometry_view(&pool, m.group, 1, ATTN_PART_V, &view, &why), status, named)
#define VIEW_WRONG(field, value, status, named)                                                                        \
  do {                                                                                                                 \
    const model kept = m;                                                                                              \
    const DLTensor kept_pool = pool;                                                                                   \
    (field) = (value);                                                                                                 \
    VIEW(status, named);                                                                                               \
    m = kept;                                                                                                          \
    pool = kept_pool;                                                                                                  \
  } while (0)
  EXPECT_STATUS(attn_geometry_view(NULL, m.group, 0, ATTN_PART_K, &view, &why), ATTN_E_NULL, "pool");
  EXPECT_STATUS(attn_geometry_view(&pool, NULL, 0, ATTN_PART_K, &view, &why), ATTN_E_NULL, "group");
  EXPECT_STATUS(attn_geometry_view(&pool, m.group, 0, ATTN_PART_K, NULL, &why), ATTN_E_NULL, "view");
  EXPECT_STATUS(attn_geometry_view(&pool, m.group, 2, ATTN_PART_K, &view, &why), ATTN_E_RANGE, "layer: 2");
  EXPECT_STATUS(attn_geometry_view(&pool, m.group, -1, ATTN_PART_K, &view, &why), ATTN_E_RANGE, "layer: -1");
  EXPECT_STATUS(attn_geometry_view(&pool, m.group, 0, ATTN_PART_K_SCALE, &view, &why), ATTN_E_RANGE, "part: 2");
  EXPECT_STATUS(attn_geometry_view(&pool, m.group, 0, (attn_page_part)4, &view, &why), ATTN_E_RANGE, "part: 4");
  EXPECT_STATUS(attn_geometry_view(&pool, m.group, 0, (attn_page_part)-1, &view, &why), ATTN_E_RANGE, "part: -1");
  VIEW_WRONG(m.group[0].size, 9, ATTN_E_STRUCT_SIZE, "group.size: 9");
  VIEW_WRONG(pool.ndim, 2, ATTN_E_SHAPE, "pool: 2 axes");
  VIEW_WRONG(pool.shape, NULL, ATTN_E_SHAPE, "pool");
  VIEW_WRONG(pool.dtype, attn_dtype_to_dlpack(ATTN_DTYPE_INT32), ATTN_E_DTYPE, "pool: int32");
  VIEW_WRONG(pool.data, NULL, ATTN_E_NULL, "pool: data");
  VIEW_WRONG(pool.byte_offset, 2, ATTN_E_ALIGN, "4-byte elements");
  VIEW_WRONG(m.group[0].kernel_block, 3, ATTN_E_RANGE, "group: ");
  VIEW_WRONG(m.group[0].kernel_block, 0, ATTN_E_RANGE, "group: ");
  VIEW_WRONG(m.group[0].kernel_block_bytes, 256, ATTN_E_RANGE, "group: ");
  VIEW_WRONG(m.group[0].kernel_block_bytes, UINT64_MAX / 2, ATTN_E_RANGE, "group: ");
  VIEW_WRONG(m.group[0].layer_bytes, 260, ATTN_E_RANGE, "group: ");
  VIEW_WRONG(m.group[0].layer_bytes, UINT64_MAX, ATTN_E_RANGE, "group: ");
  VIEW_WRONG(m.group[0].num_layers, 0, ATTN_E_RANGE, "group: 0 layers");
  VIEW_WRONG(m.group[0].part_offset[1], 132, ATTN_E_RANGE, "group: part 1");
  VIEW_WRONG(m.group[0].part_offset[1], UINT64_MAX, ATTN_E_RANGE, "group: part 1");
  VIEW_WRONG(m.group[0].part[1].strides[1], INT64_MAX, ATTN_E_RANGE, "group: part 1");
  VIEW_WRONG(m.group[0].part[1].strides[2], -1, ATTN_E_RANGE, "group: part 1");
  VIEW_WRONG(m.group[0].part[1].ndim, 5, ATTN_E_RANGE, "group: part 1 has 5 axes");
  VIEW_WRONG(m.group[0].part[1].dtype, (attn_dtype)77, ATTN_E_RANGE, "group: part 1");
  int64_t strides[3] = {2048, 2048, 1};
  pool.strides = strides;
  EXPECT_OK(attn_geometry_view(&pool, m.group, 1, ATTN_PART_V, &view, &why));
  strides[0] = 4096;
  VIEW(ATTN_E_STRIDE, "pool: strides 4096");
  strides[0] = 2048;
  strides[2] = 2;
  VIEW(ATTN_E_STRIDE, "pool: strides");
  pool.strides = NULL;
  shape[2] = 2064;
  VIEW(ATTN_E_RANGE, "pages of 2064 bytes");
  shape[2] = 2048;
  shape[1] = 2;
  VIEW(ATTN_E_SHAPE, "pool");
  shape[1] = 1;
  shape[0] = -1;
  VIEW(ATTN_E_SHAPE, "pool");
  shape[0] = (int64_t)1 << 53;
  VIEW(ATTN_E_OVERFLOW, "do not fit 63 bits");
  shape[0] = INT32_MAX / 4 + 1;
  VIEW(ATTN_E_OVERFLOW, "4 kernel blocks");
  shape[0] = 0;
  pool.data = NULL;
  EXPECT_OK(attn_geometry_view(&pool, m.group, 1, ATTN_PART_V, &view, &why));
  assert_int_equal(view.shape[0], 0);
  assert_int_equal(view.tensor.byte_offset, 256 + 128);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(views_share_no_byte), cmocka_unit_test(statuses_of_view)};
  return cmocka_run_group_tests_name("geometry_view", tests, NULL, NULL);
}
