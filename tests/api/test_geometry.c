/* SPDX-License-Identifier: Apache-2.0 */
/* test_geometry.c: pages of one size: bytes computed by hand, every documented status of attn_geometry_unify(), hostile
 * numbers. test_geometry_search.c tries all page sizes, test_geometry_view.c looks at every byte of a page.
 */
#include "geometry_model.h"

#include <string.h>

static void expect_group(const model *m, int g, int32_t block_size, int32_t kernel_block, uint64_t kernel_block_bytes,
                         uint64_t token_bytes, uint64_t padding_bytes) {
  const attn_group_pages *got = &m->group[g];
  CHECK(got->block_size == block_size && got->kernel_block == kernel_block &&
            got->kernel_block_bytes == kernel_block_bytes && got->token_bytes == token_bytes &&
            got->padding_bytes == padding_bytes,
        "group %d: block %d of %d, %llu bytes a kernel block, %llu a token, %llu padding; wanted %d of %d, %llu, %llu, "
        "%llu",
        g, (int)got->block_size, (int)got->kernel_block, (unsigned long long)got->kernel_block_bytes,
        (unsigned long long)got->token_bytes, (unsigned long long)got->padding_bytes, (int)block_size,
        (int)kernel_block, (unsigned long long)kernel_block_bytes, (unsigned long long)token_bytes,
        (unsigned long long)padding_bytes);
  assert_true(got->bytes_per_token == (double)m->geometry.page_bytes / block_size);
}

/* ---- By hand ----------------------------------------------------------------------------------------------------- */

/* Four kinds of layers, manager blocks of 528 over kernel blocks of 16, no block raised. */
static void four_groups_of_528(void **state) {
  (void)state;
  model m;
  model_open(&m);
  model_add(&m, 1, ATTN_FORMAT_BFLOAT16, 1, 256); /* K and V of 256 * 2: 1024 bytes a position */
  model_add(&m, 2, ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 1, 512)->window = 600; /* 2 * 2 * (512 / 2 + 4) = 1040 */
  model_add_latent(&m, 2, ATTN_FORMAT_FP8_E4M3, 512, 64);                  /* 2 layers of rows of 576: 1152 */
  model_add(&m, 3, ATTN_FORMAT_FLOAT32, 1, 64);                            /* 3 * 2 * 64 * 4 = 1536 */
  for (int g = 0; g < 4; g++) {
    m.spec[g].block_size = 528;
    m.spec[g].kernel_block = 16;
  }
  m.options.policy = ATTN_PAGES_KEEP;
  EXPECT_OK(model_unify(&m));
  /* The largest: 528 * 1536 = 811008 = 33 kernel blocks of 24576. The others have 33 kernel blocks as well, and so the
     same distance from one to the next. */
  assert_int_equal(m.geometry.page_bytes, 811008);
  assert_int_equal(m.geometry.policy, ATTN_PAGES_KEEP);
  assert_int_equal(m.geometry.reuse_step, 528);
  expect_group(&m, 0, 528, 16, 24576, 1024, 528 * 512);
  expect_group(&m, 1, 528, 16, 24576, 1040, 528 * 496);
  expect_group(&m, 2, 528, 16, 24576, 1152, 528 * 384);
  expect_group(&m, 3, 528, 16, 24576, 1536, 0);
  assert_int_equal(m.group[0].layer_bytes, 16384);
  assert_int_equal(m.group[1].layer_bytes, 8320); /* 16 * 2 * 260 */
  assert_int_equal(m.group[2].layer_bytes, 9216); /* 16 * 576 */
  assert_int_equal(m.group[3].layer_bytes, 8192);
  assert_int_equal(m.group[1].part_offset[ATTN_PART_V], 4160);
  assert_int_equal(m.group[3].part_offset[ATTN_PART_V], 4096);
  assert_int_equal(m.group[1].window, 600);
  assert_int_equal(m.group[1].part[ATTN_PART_K].row_bytes, 260);
  assert_int_equal(m.group[2].part[ATTN_PART_K].row_bytes, 576);
  assert_int_equal(m.group[2].part[ATTN_PART_K].ndim, 3);
  /* 811008 = 33 * 24576 = 2^13 * 3^2 * 11, of 16: the first group could have 49.5 kernel blocks, 48 divide; the
     window's 48.7, 48 divide; the third's 44 do. A larger page would cost the last group. */
  m.options.policy = ATTN_PAGES_FILL;
  EXPECT_OK(model_unify(&m));
  assert_int_equal(m.geometry.page_bytes, 811008);
  expect_group(&m, 0, 768, 16, 16896, 1024, 768 * 32);
  expect_group(&m, 1, 768, 16, 16896, 1040, 768 * 16);
  expect_group(&m, 2, 704, 16, 18432, 1152, 0);
  expect_group(&m, 3, 528, 16, 24576, 1536, 0);
  /* One layer each: 16384, 8320, 9216 and 8192 bytes a kernel block. 599040 = 16 * 2^8 ... = 8320 * 72 = 9216 * 65, and
     36 of 16640, 73 would be too many for the last, 72 of 8320 divide. */
  m.spec[1].num_layers = m.spec[2].num_layers = m.spec[3].num_layers = 1;
  EXPECT_OK(model_unify(&m));
  assert_int_equal(m.geometry.page_bytes, 599040);
  expect_group(&m, 0, 576, 16, 16640, 1024, 576 * 16);
  expect_group(&m, 1, 1152, 16, 8320, 520, 0);
  expect_group(&m, 2, 1040, 16, 9216, 576, 0);
  expect_group(&m, 3, 1152, 16, 8320, 512, 1152 * 8);
  assert_int_equal(m.geometry.reuse_step, 74880); /* 2^7 * 3^2 * 5 * 13 */
  /* Where prefixes are to be reused at multiples of 1056 or less, blocks of 33 and 66 kernel blocks do best: the page
     is 66 of 9216. */
  m.options.max_reuse_step = 1056;
  EXPECT_OK(model_unify(&m));
  assert_int_equal(m.geometry.reuse_step, 1056);
  assert_int_equal(m.geometry.page_bytes, 608256);
  expect_group(&m, 0, 528, 16, 18432, 1024, 528 * 128);
  expect_group(&m, 1, 1056, 16, 9216, 520, 1056 * 56);
  expect_group(&m, 2, 1056, 16, 9216, 576, 0);
  expect_group(&m, 3, 1056, 16, 9216, 512, 1056 * 64);
  m.options.max_reuse_step = 500;
  EXPECT_STATUS(model_unify(&m), ATTN_E_RANGE, "options.max_reuse_step: 500, accepted: 0, or 528 or more");
}

/* One position of one layer, K and V of two heads, in every format: heads of 128, 66 and 65, inline scales and separate
   ones. int8 and fp8 rows of 66 and 65 are padded to 68, int4's 33 bytes to 36; four bytes of scale follow. */
static void bytes_of_every_format(void **state) {
  static const struct {
    attn_format format;
    uint64_t row[3], separate[3]; /* separate: codes and scale, 0: not accepted */
  } formats[] = {
      {ATTN_FORMAT_FLOAT32, {512, 264, 260}, {0}},
      {ATTN_FORMAT_FLOAT16, {256, 132, 130}, {0}},
      {ATTN_FORMAT_BFLOAT16, {256, 132, 130}, {0}},
      {ATTN_FORMAT_FP8_E4M3, {128, 66, 65}, {0}},
      {ATTN_FORMAT_FP8_E5M2, {128, 66, 65}, {0}},
      {ATTN_FORMAT_INT8_PER_TOKEN_HEAD, {132, 72, 72}, {132, 70, 69}},
      {ATTN_FORMAT_FP8_PER_TOKEN_HEAD, {132, 72, 72}, {132, 70, 69}},
      {ATTN_FORMAT_INT4_PER_TOKEN_HEAD, {68, 40, 40}, {68, 37, 37}},
  };
  static const int32_t sizes[3] = {128, 66, 65};
  (void)state;
  for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
    for (int size = 0; size < 3; size++) {
      for (int separate = 0; separate < 2 && (separate == 0 || formats[i].separate[0] > 0); separate++) {
        model m;
        model_open(&m);
        model_add(&m, 1, formats[i].format, 2, sizes[size]);
        m.layer[0].separate_scales = separate ? ATTN_SEPARATE_BOTH : ATTN_SEPARATE_NONE;
        EXPECT_OK(model_unify(&m));
        uint64_t token = 4 * (separate ? formats[i].separate : formats[i].row)[size];
        expect_group(&m, 0, 16, 16, 16 * token, token, 0);
        assert_int_equal(m.group[0].part[ATTN_PART_V_SCALE].ndim, separate ? 3 : 0);
        assert_int_equal(m.group[0].part_offset[ATTN_PART_K_SCALE], separate ? 16 * (token - 16) : 16 * token);
        attn_cache_info info = ATTN_CACHE_INFO_INIT;
        EXPECT_OK(attn_cache_describe(&m.layer[0], &info, &why));
        assert_true(info.bytes_per_token == (double)token);
      }
    }
  }
}

/* K in int8 and V in int4, heads of 256 and of 512, in one pool (case 108): 260 + 132 and 516 + 260 bytes a position,
   16 of them 6272 = 2^7 * 7^2 and 12416 = 2^7 * 97. */
static void one_size_of_int4(void **state) {
  (void)state;
  model m;
  model_open(&m);
  model_add(&m, 1, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 1, 256);
  model_add(&m, 1, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 1, 512);
  m.layer[0].v_format = m.layer[1].v_format = ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
  m.options.policy = ATTN_PAGES_EXACT;
  m.options.max_page_bytes = 1 << 20;
  EXPECT_OK(model_unify(&m));
  assert_int_equal(m.geometry.page_bytes, 128 * 49 * 97);
  expect_group(&m, 0, 16 * 97, 16 * 97, 128 * 49 * 97, 392, 0);
  expect_group(&m, 1, 16 * 49, 16 * 49, 128 * 49 * 97, 776, 0);
}

/* Five layers with a window to each full one: blocks of 16 and 80 fill the same page. */
static void five_to_one(void **state) {
  (void)state;
  model m;
  model_open(&m);
  model_add(&m, 25, ATTN_FORMAT_BFLOAT16, 4, 256)->window = 1024; /* 25 * 4 * 256 * 2 * 2 = 102400 bytes a position */
  model_add(&m, 5, ATTN_FORMAT_BFLOAT16, 4, 256);                 /* 20480 */
  m.options.max_page_bytes = 10000000;
  EXPECT_OK(model_unify(&m));
  assert_int_equal(m.geometry.page_bytes, 1638400);
  assert_int_equal(m.geometry.policy, ATTN_PAGES_EXACT);
  assert_int_equal(m.geometry.reuse_step, 80);
  expect_group(&m, 0, 16, 16, 1638400, 102400, 0);
  expect_group(&m, 1, 80, 80, 1638400, 20480, 0);
  assert_int_equal(m.group[0].layer_bytes, 65536);
  assert_int_equal(m.group[1].layer_bytes, 327680);
  /* 52 to 10: the common page has 16 * 52 * 5 positions of a layer, five times the least one. It is refused by the
     default limit of two, and the full group's 83.2 positions become 80. */
  m.spec[0].num_layers = 52;
  m.spec[1].num_layers = 10;
  m.options.max_page_bytes = 0;
  EXPECT_OK(model_unify(&m));
  assert_int_equal(m.geometry.policy, ATTN_PAGES_FILL);
  assert_int_equal(m.geometry.page_bytes, 52 * 4096 * 16);
  expect_group(&m, 1, 80, 80, 52 * 4096 * 16, 40960, 52 * 4096 * 16 - 80 * 40960);
  m.options.policy = ATTN_PAGES_EXACT;
  EXPECT_STATUS(model_unify(&m), ATTN_E_RANGE, "options.max_page_bytes: 6815744, accepted: 17039360 or more");
  m.options.max_page_bytes = 17039360;
  EXPECT_OK(model_unify(&m));
  expect_group(&m, 0, 80, 80, 17039360, 212992, 0);
  expect_group(&m, 1, 416, 416, 17039360, 40960, 0);
}

/* Head sizes and types that leave gaps: parts of a layer begin at the alignment. */
static void odd_rows(void **state) {
  (void)state;
  model m;
  model_open(&m);
  /* K: 3 positions of 2 heads of 5 * 4 bytes = 120, V of 3 * 4 = 72; at multiples of 64: 128 + 128 a layer. */
  model_add(&m, 2, ATTN_FORMAT_FLOAT32, 2, 5)->kernel_block = 3;
  m.layer[0].v_head_size = 3;
  m.layer[0].layout = ATTN_LAYOUT_HND;
  m.spec[0].block_size = 4; /* two kernel blocks */
  m.options.alignment = 64;
  EXPECT_OK(attn_geometry_unify(&m.options, 1, m.spec, m.group, &m.geometry, &why));
  assert_int_equal(m.geometry.page_bytes, 2 * 2 * 256);
  assert_int_equal(m.geometry.alignment, 64);
  expect_group(&m, 0, 6, 3, 512, 2 * 64, 1024 - 6 * 128);
  assert_int_equal(m.group[0].part_offset[ATTN_PART_V], 128);
  const attn_cache_layout *k = &m.group[0].part[ATTN_PART_K];
  assert_int_equal(k->ndim, 4);
  assert_int_equal(k->shape[1], 2);
  assert_int_equal(k->shape[2], 3);
  assert_int_equal(k->strides[0], 128);
  assert_int_equal(k->strides[1], 15);
  assert_int_equal(k->strides[2], 5);
  assert_int_equal(m.group[0].part[ATTN_PART_K_SCALE].ndim, 0);
  assert_int_equal(m.group[0].layout, ATTN_LAYOUT_HND);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void statuses_of_unify(void **state) {
  (void)state;
  model m;
  model_open(&m);
  model_add(&m, 1, ATTN_FORMAT_FLOAT32, 1, 8);
  model_add(&m, 1, ATTN_FORMAT_FLOAT32, 2, 8);
  attn_group_pages untouched = m.group[0];
  EXPECT_OK(attn_geometry_unify(NULL, 2, m.spec, m.group, &m.geometry, &why));
  m.group[0] = untouched;
  m.geometry.page_bytes = 7;
#define REFUSED(status, named) EXPECT_STATUS(model_unify(&m), status, named)
  EXPECT_STATUS(attn_geometry_unify(NULL, 2, NULL, m.group, &m.geometry, &why), ATTN_E_NULL, "specs");
  EXPECT_STATUS(attn_geometry_unify(NULL, 2, m.spec, NULL, &m.geometry, &why), ATTN_E_NULL, "groups");
  EXPECT_STATUS(attn_geometry_unify(NULL, 2, m.spec, m.group, NULL, &why), ATTN_E_NULL, "geometry");
  EXPECT_STATUS(attn_geometry_unify(NULL, 0, m.spec, m.group, &m.geometry, &why), ATTN_E_RANGE, "num_groups: 0");
  EXPECT_STATUS(attn_geometry_unify(NULL, 65, m.spec, m.group, &m.geometry, &why), ATTN_E_RANGE, "1 to 64");
  EXPECT_STATUS(attn_geometry_unify(NULL, -1, m.spec, m.group, &m.geometry, &why), ATTN_E_RANGE, "num_groups: -1");
  m.options.size = 1;
  REFUSED(ATTN_E_STRUCT_SIZE, "options.size: 1");
  m.options.size = sizeof m.options;
  m.geometry.size = 2;
  REFUSED(ATTN_E_STRUCT_SIZE, "geometry.size: 2");
  m.geometry.size = sizeof m.geometry;
  m.group[1].size = 3;
  REFUSED(ATTN_E_STRUCT_SIZE, "groups[1].size: 3");
  m.group[1].size = sizeof m.group[1];
  m.spec[1].size = 4;
  REFUSED(ATTN_E_STRUCT_SIZE, "specs[1]: size: 4");
  m.spec[1].size = sizeof m.spec[1];
  m.layer[1].size = 5;
  REFUSED(ATTN_E_STRUCT_SIZE, "specs[1]: desc.size: 5");
  m.layer[1].size = sizeof m.layer[1];
  m.spec[0].layer = NULL;
  REFUSED(ATTN_E_NULL, "specs[0]: desc");
  m.spec[0].layer = &m.layer[0];
#define WRONG(field, value, status, named)                                                                             \
  do {                                                                                                                 \
    model kept = m;                                                                                                    \
    (field) = (value);                                                                                                 \
    EXPECT_STATUS(model_unify(&m), status, named);                                                                     \
    m = kept;                                                                                                          \
  } while (0)
  WRONG(m.options.policy, (attn_page_policy)4, ATTN_E_RANGE, "options.policy: 4");
  WRONG(m.options.policy, (attn_page_policy)-1, ATTN_E_RANGE, "options.policy: -1");
  WRONG(m.options.alignment, 8, ATTN_E_RANGE, "options.alignment: 8");
  WRONG(m.options.alignment, 48, ATTN_E_RANGE, "options.alignment: 48");
  WRONG(m.options.alignment, 131072, ATTN_E_RANGE, "16 to 65536");
  WRONG(m.options.alignment, -16, ATTN_E_RANGE, "-16");
  WRONG(m.options.block_multiple, -1, ATTN_E_RANGE, "options.block_multiple: -1");
  WRONG(m.options.max_page_bytes, ATTN_MAX_PAGE_BYTES + 1, ATTN_E_RANGE, "options.max_page_bytes");
  WRONG(m.options.max_page_bytes, 2047, ATTN_E_RANGE, "options.max_page_bytes: 2047, accepted: 2048 or more");
  WRONG(m.options.max_reuse_step, -1, ATTN_E_RANGE, "options.max_reuse_step: -1");
  WRONG(m.options.max_reuse_step, 15, ATTN_E_RANGE, "options.max_reuse_step: 15, accepted: 0, or 16 or more");
  WRONG(m.spec[0].num_layers, 0, ATTN_E_RANGE, "specs[0]: num_layers: 0");
  WRONG(m.spec[1].window, -1, ATTN_E_RANGE, "specs[1]: window: -1");
  WRONG(m.spec[1].block_size, -1, ATTN_E_RANGE, "specs[1]: block_size: -1");
  WRONG(m.spec[1].kernel_block, -16, ATTN_E_RANGE, "specs[1]: kernel_block: -16");
  WRONG(m.spec[1].block_size, INT32_MAX, ATTN_E_OVERFLOW, "specs[1]: block_size: 2147483647");
  WRONG(m.layer[1].num_blocks, 1, ATTN_E_RANGE, "specs[1]: desc: num_blocks 1");
  WRONG(m.layer[1].block_size, 16, ATTN_E_RANGE, "block_size 16");
  WRONG(m.layer[1].k_block_bytes, 1024, ATTN_E_RANGE, "k_block_bytes 1024");
  WRONG(m.layer[1].v_block_bytes, 1024, ATTN_E_RANGE, "v_block_bytes 1024");
  WRONG(m.layer[0].head_size, 0, ATTN_E_RANGE, "specs[0]: desc.head_size: 0");
  WRONG(m.layer[0].k_format, ATTN_FORMAT_AUTO, ATTN_E_RANGE, "specs[0]: desc.k_format: auto");
  WRONG(m.layer[0].k_format, ATTN_FORMAT_FP8_DS_MLA, ATTN_E_UNSUPPORTED, "specs[0]: desc.k_format: fp8_ds_mla");
  WRONG(m.layer[0].layout, (attn_layout)9, ATTN_E_RANGE, "specs[0]: desc.layout: 9");
  WRONG(m.layer[0].kv_lora_rank, 8, ATTN_E_RANGE, "specs[0]: desc.head_size");
  m.layer[0].num_kv_heads = m.layer[0].head_size = 0;
  WRONG(m.layer[0].kv_lora_rank, -8, ATTN_E_RANGE, "desc.kv_lora_rank: -8");
  m.layer[0].kv_lora_rank = 8;
  WRONG(m.layer[0].qk_rope_head_dim, -1, ATTN_E_RANGE, "qk_rope_head_dim: -1");
  WRONG(m.layer[0].v_format, ATTN_FORMAT_FP8_E5M2, ATTN_E_RANGE, "v_format");
  WRONG(m.layer[0].separate_scales, 1, ATTN_E_RANGE, "separate_scales");
  WRONG(m.layer[0].k_format, ATTN_FORMAT_FP8_DS_MLA, ATTN_E_RANGE, "kv_lora_rank: 8 with fp8_ds_mla");
  WRONG(m.layer[0].k_format, ATTN_FORMAT_FP8_E5M2, ATTN_E_UNSUPPORTED, "fp8_e5m2 does not store latent rows");
  WRONG(m.layer[0].k_format, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, ATTN_E_DTYPE, "rotary_dtype");
  WRONG(m.layer[0].k_format, (attn_format)99, ATTN_E_RANGE, "specs[0]: desc.k_format");
  assert_int_equal(m.geometry.page_bytes, 7);
  assert_memory_equal(&m.group[0], &untouched, sizeof untouched);
  EXPECT_OK(model_unify(&m));
}

/* Numbers at their ends: refused in 64 bits, quickly. */
static void hostile_numbers(void **state) {
  static const int32_t ends[] = {1, 2, 3, 16, 17, 65536, 1 << 20, (1 << 30) + 1, INT32_MAX - 1, INT32_MAX};
  enum { ENDS = sizeof ends / sizeof ends[0] };
  (void)state;
  uint32_t random = 5;
  int served = 0;
  for (int round = 0; round < 300; round++) {
    model m;
    model_open(&m);
    int count = 1 + (int)(random_bits(&random) >> 8) % MODEL_GROUPS;
    for (int g = 0; g < count; g++) {
      int32_t pick[6];
      for (int i = 0; i < 6; i++) { /* small ones more often */
        uint32_t bits = random_bits(&random) >> 8;
        pick[i] = ends[bits % 3 == 0 ? (bits >> 4) % ENDS : (bits >> 4) % 6];
      }
      attn_group_spec *spec = pick[0] % 2 == 0 ? model_add(&m, pick[1], ATTN_FORMAT_FLOAT32, pick[2], pick[3])
                                               : model_add_latent(&m, pick[1], ATTN_FORMAT_FLOAT16, pick[2], pick[3]);
      spec->block_size = pick[4];
      spec->kernel_block = pick[0] % 3 == 0 ? 0 : pick[5];
    }
    m.options.block_multiple = ends[(random_bits(&random) >> 8) % ENDS];
    m.options.policy = (attn_page_policy)((random_bits(&random) >> 8) % 4);
    m.options.max_reuse_step = round % 2 == 0 ? 0 : ends[(random_bits(&random) >> 8) % ENDS];
    harness_reset();
    attn_status status = model_unify(&m);
    if (status == ATTN_OK) {
      served++;
      assert_true(m.geometry.page_bytes <= ATTN_MAX_PAGE_BYTES);
      for (int g = 0; g < m.count; g++) {
        assert_true(m.group[g].block_size >= m.spec[g].block_size);
        assert_true(m.group[g].layer_bytes * (uint64_t)m.group[g].num_layers <= m.group[g].kernel_block_bytes);
      }
    } else {
      CHECK(status == ATTN_E_RANGE || status == ATTN_E_OVERFLOW, "%s: %s", attn_status_name(status), why.text);
    }
  }
  assert_true(served > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(four_groups_of_528), cmocka_unit_test(bytes_of_every_format),
      cmocka_unit_test(one_size_of_int4),   cmocka_unit_test(five_to_one),
      cmocka_unit_test(odd_rows),           cmocka_unit_test(statuses_of_unify),
      cmocka_unit_test(hostile_numbers),
  };
  return cmocka_run_group_tests_name("geometry", tests, NULL, NULL);
}
