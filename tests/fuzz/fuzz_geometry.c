/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_geometry.c: page sizes for any specs and options. A refusal says why; an answer is looked at: blocks are at
 * least the wished ones and fit their page, padding and bytes agree, and the tensors of every part stay inside a page.
 * The views are then asked for with any numbers, also on an answer that was changed.
 */
#include <string.h>

#include "fuzz.h"

enum { GROUPS = 5 };

typedef struct wish {
  int32_t count;
  attn_cache_desc layer[GROUPS];
  attn_group_spec spec[GROUPS];
  attn_group_pages group[GROUPS];
  attn_geometry_options options;
  attn_geometry geometry;
} wish;

static attn_message message;

/* Mostly what a model has; now and then anything. */
static int32_t draw(fuzz_bytes *in, int32_t least, int32_t most) {
  int32_t choice = fuzz_u8(in);
  return choice >= 240 ? fuzz_i32(in) : least + choice % (most - least + 1);
}

static void draw_layer(fuzz_bytes *in, attn_cache_desc *layer) {
  const attn_cache_desc initial = ATTN_CACHE_DESC_INIT;
  *layer = initial;
  layer->k_format = (attn_format)draw(in, ATTN_FORMAT_FLOAT32, ATTN_FORMAT_INT4_PER_TOKEN_HEAD);
  if (draw(in, 0, 3) == 0) {
    layer->kv_lora_rank = draw(in, 1, 64);
    layer->qk_rope_head_dim = draw(in, 0, 16);
    return;
  }
  layer->v_format = (attn_format)draw(in, ATTN_FORMAT_AUTO, ATTN_FORMAT_INT4_PER_TOKEN_HEAD);
  layer->layout = (attn_layout)draw(in, 0, 1);
  layer->num_kv_heads = draw(in, 1, 4);
  layer->head_size = draw(in, 1, 80);
  layer->v_head_size = draw(in, 0, 80);
  layer->separate_scales = draw(in, 0, 1) == 0 ? 0 : draw(in, 0, 3);
}

static void draw_wish(fuzz_bytes *in, wish *w) {
  const attn_group_spec spec = ATTN_GROUP_SPEC_INIT;
  const attn_group_pages group = ATTN_GROUP_PAGES_INIT;
  const attn_geometry_options options = ATTN_GEOMETRY_OPTIONS_INIT;
  const attn_geometry geometry = ATTN_GEOMETRY_INIT;
  w->count = 1 + fuzz_below(in, GROUPS);
  w->options = options;
  w->geometry = geometry;
  w->options.policy = (attn_page_policy)draw(in, 0, 3);
  w->options.alignment = draw(in, 0, 1) == 0 ? 0 : 16 << fuzz_below(in, 16);
  w->options.block_multiple = draw(in, 0, 20);
  w->options.max_reuse_step = draw(in, 0, 1) == 0 ? 0 : draw(in, 1, 200);
  w->options.max_page_bytes = draw(in, 0, 1) == 0 ? 0 : (uint64_t)fuzz_i64(in);
  for (int32_t g = 0; g < w->count; g++) {
    draw_layer(in, &w->layer[g]);
    w->group[g] = group;
    w->spec[g] = spec;
    w->spec[g].layer = &w->layer[g];
    w->spec[g].num_layers = draw(in, 1, 60);
    w->spec[g].window = draw(in, 0, 100);
    w->spec[g].block_size = draw(in, 0, 100);
    w->spec[g].kernel_block = draw(in, 0, 40);
  }
}

static void check_group(const wish *w, int32_t g) {
  const attn_group_pages *group = &w->group[g];
  uint64_t page = w->geometry.page_bytes;
  int32_t ratio = group->block_size / group->kernel_block;
  FUZZ_CHECK(group->block_size >= w->spec[g].block_size && group->block_size % group->kernel_block == 0 &&
                 (w->spec[g].kernel_block == 0 ? ratio == 1 : group->kernel_block == w->spec[g].kernel_block),
             "group %d: blocks of %d over %d", (int)g, (int)group->block_size, (int)group->kernel_block);
  FUZZ_CHECK(group->kernel_block_bytes * (uint64_t)ratio == page &&
                 group->layer_bytes * (uint64_t)group->num_layers <= group->kernel_block_bytes &&
                 group->kernel_block_bytes % (uint64_t)w->geometry.alignment == 0,
             "group %d: %d kernel blocks of %llu bytes in %llu", (int)g, (int)ratio,
             (unsigned long long)group->kernel_block_bytes, (unsigned long long)page);
  FUZZ_CHECK(group->token_bytes * (uint64_t)group->block_size + group->padding_bytes == page, "group %d: padding",
             (int)g);
  FUZZ_CHECK(group->bytes_per_token * group->block_size > 0.999999 * (double)page, "group %d: bytes a token", (int)g);
}

/* Every part of the first and last layer lies inside its kernel block. */
static void check_views(const wish *w, int32_t g, const DLTensor *pool) {
  const attn_group_pages *group = &w->group[g];
  for (int32_t i = 0; i < 8; i++) {
    int32_t layer = i % 2 == 0 ? 0 : group->num_layers - 1;
    attn_page_part part = (attn_page_part)(i / 2);
    attn_page_view view;
    fuzz_message_reset(&message);
    attn_status status = attn_geometry_view(pool, group, layer, part, &view, &message);
    fuzz_message_check(status, &message);
    if (group->part[part].ndim == 0) {
      FUZZ_CHECK(status == ATTN_E_RANGE, "a view of part %d, which is not there", (int)part);
      continue;
    }
    FUZZ_CHECK(status == ATTN_OK, "group %d: %s", (int)g, message.text);
    uint64_t last = 0;
    for (int axis = 1; axis < view.tensor.ndim; axis++) {
      last += (uint64_t)((view.shape[axis] - 1) * view.strides[axis]);
    }
    uint64_t element = view.tensor.dtype.bits / 8;
    FUZZ_CHECK((uint64_t)view.strides[0] * element == group->kernel_block_bytes &&
                   view.tensor.byte_offset % element == 0 &&
                   view.tensor.byte_offset + (last + 1) * element <= group->kernel_block_bytes,
               "group %d, layer %d, part %d: bytes %llu to %llu of a kernel block of %llu", (int)g, (int)layer,
               (int)part, (unsigned long long)view.tensor.byte_offset,
               (unsigned long long)(view.tensor.byte_offset + (last + 1) * element),
               (unsigned long long)group->kernel_block_bytes);
  }
}

/* Numbers that nobody computed: refused, or a view. */
static void ask_anything(fuzz_bytes *in, wish *w, DLTensor *pool) {
  attn_group_pages *group = &w->group[fuzz_below(in, w->count)];
  int64_t strides[3] = {pool->shape[2], pool->shape[2], 1};
  attn_page_view view;
  switch (fuzz_below(in, 8)) {
  case 0:
    group->block_size = fuzz_i32(in);
    break;
  case 1:
    group->kernel_block = fuzz_i32(in);
    break;
  case 2:
    group->kernel_block_bytes = (uint64_t)fuzz_i64(in);
    break;
  case 3:
    group->layer_bytes = (uint64_t)fuzz_i64(in);
    break;
  case 4:
    group->part_offset[fuzz_below(in, 4)] = (uint64_t)fuzz_i64(in);
    break;
  case 5:
    group->part[fuzz_below(in, 4)].strides[fuzz_below(in, 4)] = fuzz_i64(in);
    break;
  case 6:
    group->part[fuzz_below(in, 4)].ndim = fuzz_i32(in);
    break;
  default:
    strides[fuzz_below(in, 3)] = fuzz_i64(in);
    pool->strides = strides;
    break;
  }
  pool->shape[0] = fuzz_u8(in) % 2 == 0 ? 1 : fuzz_i64(in);
  fuzz_message_reset(&message);
  fuzz_message_check(attn_geometry_view(pool, group, draw(in, 0, 2), (attn_page_part)draw(in, 0, 3), &view, &message),
                     &message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static _Alignas(16) unsigned char bytes[16];
  fuzz_bytes in = {data, size};
  static wish w;
  draw_wish(&in, &w);
  wish before;
  memcpy(&before, &w, sizeof before);
  fuzz_message_reset(&message);
  attn_status status = attn_geometry_unify(&w.options, w.count, w.spec, w.group, &w.geometry, &message);
  fuzz_message_check(status, &message);
  if (status != ATTN_OK) {
    FUZZ_CHECK(memcmp(before.group, w.group, (size_t)w.count * sizeof w.group[0]) == 0 &&
                   memcmp(&before.geometry, &w.geometry, sizeof w.geometry) == 0,
               "a refusal wrote its answer");
    return 0;
  }
  int64_t shape[3] = {1, 1, (int64_t)w.geometry.page_bytes};
  DLTensor pool;
  attn_tensor_cpu(&pool, bytes, ATTN_DTYPE_UINT8, 3, shape);
  for (int32_t g = 0; g < w.count; g++) {
    check_group(&w, g);
    check_views(&w, g, &pool);
  }
  while (in.left > 0) {
    wish copy = w;
    ask_anything(&in, &copy, &pool);
    pool.strides = NULL;
    shape[0] = 1;
  }
  return 0;
}
