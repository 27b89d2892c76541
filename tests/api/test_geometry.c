/* SPDX-License-Identifier: Apache-2.0 */
/* test_geometry.c: pages of one size: sizes computed by hand, every policy against a search that tries all page sizes,
 * where each byte of a page belongs, every documented status, hostile numbers.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

#define GROUPS 5

/* Specs with their layers, and the answer. */
typedef struct model {
  int32_t count;
  attn_cache_desc layer[GROUPS];
  attn_group_spec spec[GROUPS];
  attn_group_pages group[GROUPS];
  attn_geometry_options options;
  attn_geometry geometry;
} model;

static void model_open(model *m) {
  static const attn_cache_desc layer = ATTN_CACHE_DESC_INIT;
  static const attn_group_spec spec = ATTN_GROUP_SPEC_INIT;
  static const attn_group_pages group = ATTN_GROUP_PAGES_INIT;
  static const attn_geometry_options options = ATTN_GEOMETRY_OPTIONS_INIT;
  static const attn_geometry geometry = ATTN_GEOMETRY_INIT;
  memset(m, 0, sizeof *m);
  m->options = options;
  m->geometry = geometry;
  for (int g = 0; g < GROUPS; g++) {
    m->layer[g] = layer;
    m->spec[g] = spec;
    m->spec[g].layer = &m->layer[g];
    m->group[g] = group;
  }
}

/* A group of K and V. */
static attn_group_spec *add(model *m, int32_t layers, attn_format format, int32_t heads, int32_t head_size) {
  attn_cache_desc *layer = &m->layer[m->count];
  layer->k_format = format;
  layer->num_kv_heads = heads;
  layer->head_size = head_size;
  m->spec[m->count].num_layers = layers;
  return &m->spec[m->count++];
}

/* A group of latent rows. */
static attn_group_spec *add_latent(model *m, int32_t layers, attn_format format, int32_t rank, int32_t rope) {
  attn_cache_desc *layer = &m->layer[m->count];
  layer->k_format = format;
  layer->kv_lora_rank = rank;
  layer->qk_rope_head_dim = rope;
  m->spec[m->count].num_layers = layers;
  return &m->spec[m->count++];
}

static attn_status unify(model *m) {
  return attn_geometry_unify(&m->options, m->count, m->spec, m->group, &m->geometry, &why);
}

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
  add(&m, 1, ATTN_FORMAT_BFLOAT16, 1, 256);               /* K and V of 256 * 2: 1024 bytes a position */
  add(&m, 1, ATTN_FORMAT_BFLOAT16, 1, 512)->window = 600; /* 512 * 2 * 2 = 2048 */
  add_latent(&m, 2, ATTN_FORMAT_BFLOAT16, 256, 32);       /* 2 layers of rows of 288 * 2 = 576: 1152 */
  add(&m, 3, ATTN_FORMAT_FLOAT32, 1, 64);                 /* 3 layers of 64 * 4 * 2 = 512: 1536 */
  for (int g = 0; g < 4; g++) {
    m.spec[g].block_size = 528;
    m.spec[g].kernel_block = 16;
  }
  m.options.policy = ATTN_PAGES_KEEP;
  EXPECT_OK(unify(&m));
  /* The largest: 528 * 2048 = 1081344 = 33 kernel blocks of 32768. The others have 33 kernel blocks as well, and so the
     same distance from one to the next. */
  assert_int_equal(m.geometry.page_bytes, 1081344);
  assert_int_equal(m.geometry.policy, ATTN_PAGES_KEEP);
  assert_int_equal(m.geometry.reuse_step, 528);
  expect_group(&m, 0, 528, 16, 32768, 1024, 528 * 1024);
  expect_group(&m, 1, 528, 16, 32768, 2048, 0);
  expect_group(&m, 2, 528, 16, 32768, 1152, 528 * 896);
  expect_group(&m, 3, 528, 16, 32768, 1536, 528 * 512);
  assert_int_equal(m.group[0].layer_bytes, 16384);
  assert_int_equal(m.group[2].layer_bytes, 9216); /* 16 * 576 */
  assert_int_equal(m.group[3].layer_bytes, 8192);
  assert_int_equal(m.group[1].part_offset[ATTN_PART_V], 16384);
  assert_int_equal(m.group[3].part_offset[ATTN_PART_V], 4096);
  assert_int_equal(m.group[1].window, 600);
  assert_int_equal(m.group[2].part[ATTN_PART_K].row_bytes, 576);
  /* FILL: with 1081344 = 2^15 * 3 * 11 bytes the first group doubles, 66 kernel blocks of 16384; the third has at most
     58 (58.67 of 18432), of which 48 divide the page; the last at most 44 (of 24576), which do. A larger page costs the
     second group but lets the third have more: the best sum of bytes a position decides. */
  m.options.policy = ATTN_PAGES_FILL;
  EXPECT_OK(unify(&m));
  assert_true(m.geometry.page_bytes > 1081344 && m.geometry.page_bytes <= 1081344 / 8 * 9);
  assert_true(m.group[2].block_size > 48 * 16);
}

/* Five layers with a window to each full one: blocks of 16 and 80 fill the same page. */
static void five_to_one(void **state) {
  (void)state;
  model m;
  model_open(&m);
  add(&m, 25, ATTN_FORMAT_BFLOAT16, 4, 256)->window = 1024; /* 25 * 4 * 256 * 2 * 2 = 102400 bytes a position */
  add(&m, 5, ATTN_FORMAT_BFLOAT16, 4, 256);                 /* 20480 */
  m.options.max_page_bytes = 10000000;
  EXPECT_OK(unify(&m));
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
  EXPECT_OK(unify(&m));
  assert_int_equal(m.geometry.policy, ATTN_PAGES_FILL);
  assert_int_equal(m.geometry.page_bytes, 52 * 4096 * 16);
  expect_group(&m, 1, 80, 80, 52 * 4096 * 16, 40960, 52 * 4096 * 16 - 80 * 40960);
  m.options.policy = ATTN_PAGES_EXACT;
  EXPECT_STATUS(unify(&m), ATTN_E_RANGE, "options.max_page_bytes: 6815744, accepted: 17039360 or more");
  m.options.max_page_bytes = 17039360;
  EXPECT_OK(unify(&m));
  expect_group(&m, 0, 80, 80, 17039360, 212992, 0);
  expect_group(&m, 1, 416, 416, 17039360, 40960, 0);
}

/* Head sizes and types that leave gaps: parts of a layer begin at the alignment. */
static void odd_rows(void **state) {
  (void)state;
  model m;
  model_open(&m);
  /* K: 3 positions of 2 heads of 5 * 4 bytes = 120, V of 3 * 4 = 72; at multiples of 64: 128 + 128 a layer. */
  add(&m, 2, ATTN_FORMAT_FLOAT32, 2, 5)->kernel_block = 3;
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

/* ---- Against a search over all page sizes ------------------------------------------------------------------------- */

static uint64_t raise_to(uint64_t n, uint64_t step) {
  return (n + step - 1) / step * step;
}

/* Bytes of one kernel block of a random spec: K and V alone, of float formats. */
static uint64_t kernel_bytes(const model *m, int g, uint64_t positions, uint64_t alignment) {
  const attn_cache_desc *d = &m->layer[g];
  uint64_t element = d->k_format == ATTN_FORMAT_FLOAT32 ? 4 : 2;
  uint64_t k = positions * element *
               (uint64_t)(d->kv_lora_rank > 0 ? d->kv_lora_rank + d->qk_rope_head_dim : d->num_kv_heads * d->head_size);
  uint64_t v = d->kv_lora_rank > 0 ? 0 : positions * element * (uint64_t)(d->num_kv_heads * d->v_head_size);
  return (raise_to(k, alignment) + raise_to(v, alignment)) * (uint64_t)m->spec[g].num_layers;
}

static uint64_t unit_of(const model *m, int g) {
  return (uint64_t)(m->spec[g].kernel_block > 0 ? m->spec[g].kernel_block : m->options.block_multiple);
}

static uint64_t least_units(const model *m, int g) {
  return ((uint64_t)m->spec[g].block_size + unit_of(m, g) - 1) / unit_of(m, g);
}

/* Whether a block of so many units fits a page of `page` bytes. */
static int fits(const model *m, int g, uint64_t units, uint64_t page, uint64_t alignment) {
  if (m->spec[g].kernel_block == 0) {
    return kernel_bytes(m, g, units * unit_of(m, g), alignment) <= page;
  }
  return page % (units * alignment) == 0 && page / units >= kernel_bytes(m, g, unit_of(m, g), alignment);
}

/* The most units that fit; from the largest number that could. */
static uint64_t most_fitting(const model *m, int g, uint64_t page, uint64_t alignment) {
  uint64_t units = page / (kernel_bytes(m, g, 1, 1)) + 1;
  while (units > 0 && !fits(m, g, units, page, alignment)) {
    units--;
  }
  return units;
}

/* Sum of bytes a position; negative when a least block does not fit. */
static double cost(const model *m, uint64_t page, uint64_t alignment) {
  double sum = 0;
  for (int g = 0; g < m->count; g++) {
    uint64_t units = most_fitting(m, g, page, alignment);
    if (units < least_units(m, g)) {
      return -1;
    }
    sum += (double)page / ((double)units * (double)unit_of(m, g));
  }
  return sum;
}

static void random_model(model *m, uint32_t *random) {
  static const attn_format formats[] = {ATTN_FORMAT_FLOAT32, ATTN_FORMAT_FLOAT16, ATTN_FORMAT_BFLOAT16};
  int count = 1 + (int)(random_bits(random) >> 8) % 3;
  model_open(m);
  for (int g = 0; g < count; g++) {
    uint32_t bits = random_bits(random) >> 4;
    attn_format format = formats[bits % 3];
    int32_t layers = 1 + (int32_t)(bits >> 2) % 3;
    attn_group_spec *spec = (bits >> 6) % 4 == 0
                                ? add_latent(m, layers, format, 1 + (int32_t)(bits >> 8) % 9, (int32_t)(bits >> 12) % 3)
                                : add(m, layers, format, 1 + (int32_t)(bits >> 8) % 3, 1 + (int32_t)(bits >> 12) % 9);
    if (m->layer[g].kv_lora_rank == 0) {
      m->layer[g].v_head_size = 1 + (int32_t)(bits >> 16) % 9;
    }
    bits = random_bits(random) >> 4;
    spec->block_size = 1 + (int32_t)bits % 24;
    spec->kernel_block = (bits >> 8) % 3 == 0 ? 0 : 1 + (int32_t)(bits >> 10) % 8;
  }
  m->options.block_multiple = 1 + (int32_t)(random_bits(random) >> 20) % 5;
  m->options.alignment = 16 << (random_bits(random) >> 20) % 2;
}

/* What holds whatever the policy: the blocks fit, no group could have one unit more (but for KEEP), and the layout's
   numbers agree with each other. */
static void expect_sound(const model *m, uint64_t alignment) {
  uint64_t page = m->geometry.page_bytes;
  assert_int_equal(page % alignment, 0);
  for (int g = 0; g < m->count; g++) {
    const attn_group_pages *group = &m->group[g];
    uint64_t units = (uint64_t)group->block_size / unit_of(m, g);
    assert_int_equal((uint64_t)group->block_size % unit_of(m, g), 0);
    assert_true(units >= least_units(m, g) && fits(m, g, units, page, alignment));
    assert_int_equal(units,
                     m->geometry.policy == ATTN_PAGES_KEEP ? least_units(m, g) : most_fitting(m, g, page, alignment));
    assert_int_equal(group->kernel_block, m->spec[g].kernel_block > 0 ? m->spec[g].kernel_block : group->block_size);
    assert_int_equal(group->kernel_block_bytes * (uint64_t)(group->block_size / group->kernel_block), page);
    assert_int_equal(group->layer_bytes * (uint64_t)group->num_layers,
                     kernel_bytes(m, g, (uint64_t)group->kernel_block, alignment));
    assert_int_equal(group->token_bytes, kernel_bytes(m, g, 1, 1));
    assert_int_equal(group->padding_bytes, page - group->token_bytes * (uint64_t)group->block_size);
  }
}

/* The page that a policy should take, by trying all of them from the least on. */
static uint64_t searched(const model *m, attn_page_policy policy, uint64_t alignment, uint64_t limit) {
  uint64_t first = 0;
  uint64_t best = 0;
  uint64_t keep = 0;
  double least = 0;
  for (int g = 0; g < m->count; g++) {
    uint64_t page = m->spec[g].kernel_block > 0 ? kernel_bytes(m, g, unit_of(m, g), alignment) * least_units(m, g)
                                                : kernel_bytes(m, g, unit_of(m, g) * least_units(m, g), alignment);
    first = page > first ? page : first;
  }
  for (uint64_t page = first; page <= limit; page += alignment) {
    int exact = 1;
    int kept = 1;
    for (int g = 0; g < m->count; g++) {
      exact &= page % kernel_bytes(m, g, unit_of(m, g), alignment) == 0;
      kept &= fits(m, g, least_units(m, g), page, alignment);
    }
    if ((policy == ATTN_PAGES_EXACT && exact) || (policy == ATTN_PAGES_KEEP && kept)) {
      return page;
    }
    keep = keep == 0 && kept ? page : keep;
    double sum = page <= first + first / 8 || page == keep ? cost(m, page, alignment) : -1;
    if (policy == ATTN_PAGES_FILL && sum > 0 && (best == 0 || sum < least)) {
      best = page;
      least = sum;
    }
  }
  return best;
}

static void policies_against_a_search(void **state) {
  (void)state;
  uint32_t random = 20;
  int seen[4] = {0};
  for (int round = 0; round < 120; round++) {
    model m;
    random_model(&m, &random);
    uint64_t alignment = (uint64_t)m.options.alignment;
    m.options.max_page_bytes = 40000;
    for (int policy = ATTN_PAGES_EXACT; policy <= ATTN_PAGES_KEEP; policy++) {
      uint64_t wanted = searched(&m, (attn_page_policy)policy, alignment, m.options.max_page_bytes);
      m.options.policy = (attn_page_policy)policy;
      if (wanted == 0) {
        EXPECT_STATUS(unify(&m), ATTN_E_RANGE, "options.max_page_bytes: 40000, accepted: ");
        continue;
      }
      EXPECT_OK(unify(&m));
      assert_int_equal(m.geometry.policy, policy);
      expect_sound(&m, alignment);
      seen[policy]++;
      if (policy != ATTN_PAGES_FILL) {
        assert_int_equal(m.geometry.page_bytes, wanted);
        continue;
      }
      double got = cost(&m, m.geometry.page_bytes, alignment);
      double best = cost(&m, wanted, alignment);
      CHECK(m.geometry.page_bytes == wanted, "page %llu costs %g, %llu would cost %g",
            (unsigned long long)m.geometry.page_bytes, got, (unsigned long long)wanted, best);
    }
    m.options.policy = ATTN_PAGES_AUTO;
    m.options.max_page_bytes = 0;
    EXPECT_OK(unify(&m));
    expect_sound(&m, alignment);
  }
  assert_true(seen[ATTN_PAGES_EXACT] > 40 && seen[ATTN_PAGES_FILL] > 100 && seen[ATTN_PAGES_KEEP] > 100);
}

/* ---- Every byte of a page ---------------------------------------------------------------------------------------- */

/* All elements of all layers and parts of a group, in all pages: within the page, none twice, and together
   block_size * token_bytes in each page. */
static void views_share_no_byte(void **state) {
  (void)state;
  enum { PAGES = 3 };
  uint32_t random = 77;
  for (int round = 0; round < 60; round++) {
    model m;
    random_model(&m, &random);
    m.options.policy = (attn_page_policy)(round % 4);
    m.options.max_page_bytes = m.options.policy == ATTN_PAGES_EXACT ? 1 << 20 : 0;
    harness_reset();
    if (unify(&m) != ATTN_OK) {
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
        for (int part = 0; part < 4 && group->part[part].ndim > 0; part++) {
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

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void statuses_of_unify(void **state) {
  (void)state;
  model m;
  model_open(&m);
  add(&m, 1, ATTN_FORMAT_FLOAT32, 1, 8);
  add(&m, 1, ATTN_FORMAT_FLOAT32, 2, 8);
  attn_group_pages untouched = m.group[0];
  EXPECT_OK(attn_geometry_unify(NULL, 2, m.spec, m.group, &m.geometry, &why));
  m.group[0] = untouched;
  m.geometry.page_bytes = 7;
#define REFUSED(status, named) EXPECT_STATUS(unify(&m), status, named)
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
    EXPECT_STATUS(unify(&m), status, named);                                                                           \
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
  WRONG(m.layer[0].kv_lora_rank, 8, ATTN_E_RANGE, "specs[0]: desc.kv_lora_rank: 8");
  m.layer[0].num_kv_heads = m.layer[0].head_size = 0;
  WRONG(m.layer[0].kv_lora_rank, -8, ATTN_E_RANGE, "desc.kv_lora_rank: -8");
  m.layer[0].kv_lora_rank = 8;
  WRONG(m.layer[0].qk_rope_head_dim, -1, ATTN_E_RANGE, "qk_rope_head_dim -1");
  WRONG(m.layer[0].v_format, ATTN_FORMAT_FLOAT32, ATTN_E_RANGE, "v_format");
  WRONG(m.layer[0].separate_scales, 1, ATTN_E_RANGE, "separate_scales");
  WRONG(m.layer[0].k_format, ATTN_FORMAT_FP8_DS_MLA, ATTN_E_UNSUPPORTED, "fp8_ds_mla");
  WRONG(m.layer[0].k_format, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, ATTN_E_UNSUPPORTED, "int8_per_token_head");
  WRONG(m.layer[0].k_format, (attn_format)99, ATTN_E_UNSUPPORTED, "specs[0]: desc.k_format");
  assert_int_equal(m.geometry.page_bytes, 7);
  assert_memory_equal(&m.group[0], &untouched, sizeof untouched);
  EXPECT_OK(unify(&m));
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
    int count = 1 + (int)(random_bits(&random) >> 8) % GROUPS;
    for (int g = 0; g < count; g++) {
      int32_t pick[6];
      for (int i = 0; i < 6; i++) { /* small ones more often */
        uint32_t bits = random_bits(&random) >> 8;
        pick[i] = ends[bits % 3 == 0 ? (bits >> 4) % ENDS : (bits >> 4) % 6];
      }
      attn_group_spec *spec = pick[0] % 2 == 0 ? add(&m, pick[1], ATTN_FORMAT_FLOAT32, pick[2], pick[3])
                                               : add_latent(&m, pick[1], ATTN_FORMAT_FLOAT16, pick[2], pick[3]);
      spec->block_size = pick[4];
      spec->kernel_block = pick[0] % 3 == 0 ? 0 : pick[5];
    }
    m.options.block_multiple = ends[(random_bits(&random) >> 8) % ENDS];
    m.options.policy = (attn_page_policy)((random_bits(&random) >> 8) % 4);
    harness_reset();
    attn_status status = unify(&m);
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

static void statuses_of_view(void **state) {
  (void)state;
  model m;
  model_open(&m);
  add(&m, 2, ATTN_FORMAT_FLOAT32, 1, 8)->kernel_block = 4;
  EXPECT_OK(unify(&m));
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
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(four_groups_of_528),
      cmocka_unit_test(five_to_one),
      cmocka_unit_test(odd_rows),
      cmocka_unit_test(policies_against_a_search),
      cmocka_unit_test(views_share_no_byte),
      cmocka_unit_test(statuses_of_unify),
      cmocka_unit_test(hostile_numbers),
      cmocka_unit_test(statuses_of_view),
  };
  return cmocka_run_group_tests_name("geometry", tests, NULL, NULL);
}
