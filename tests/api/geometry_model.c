/* SPDX-License-Identifier: Apache-2.0 */
/* geometry_model.c: see geometry_model.h. */
#include "geometry_model.h"

#include <string.h>

void model_open(model *m) {
  static const attn_cache_desc layer = ATTN_CACHE_DESC_INIT;
  static const attn_group_spec spec = ATTN_GROUP_SPEC_INIT;
  static const attn_group_pages group = ATTN_GROUP_PAGES_INIT;
  static const attn_geometry_options options = ATTN_GEOMETRY_OPTIONS_INIT;
  static const attn_geometry geometry = ATTN_GEOMETRY_INIT;
  memset(m, 0, sizeof *m);
  m->options = options;
  m->geometry = geometry;
  for (int g = 0; g < MODEL_GROUPS; g++) {
    m->layer[g] = layer;
    m->spec[g] = spec;
    m->spec[g].layer = &m->layer[g];
    m->group[g] = group;
  }
}

attn_group_spec *model_add(model *m, int32_t layers, attn_format format, int32_t heads, int32_t head_size) {
  attn_cache_desc *layer = &m->layer[m->count];
  layer->k_format = format;
  layer->num_kv_heads = heads;
  layer->head_size = head_size;
  m->spec[m->count].num_layers = layers;
  return &m->spec[m->count++];
}

attn_group_spec *model_add_latent(model *m, int32_t layers, attn_format format, int32_t rank, int32_t rope) {
  attn_cache_desc *layer = &m->layer[m->count];
  layer->k_format = format;
  layer->kv_lora_rank = rank;
  layer->qk_rope_head_dim = rope;
  m->spec[m->count].num_layers = layers;
  return &m->spec[m->count++];
}

attn_status model_unify(model *m) {
  return attn_geometry_unify(&m->options, m->count, m->spec, m->group, &m->geometry, &why);
}

/* ---- Drawing ----------------------------------------------------------------------------------------------------- */

static int32_t draw(uint32_t *random, int32_t least, int32_t most) {
  return least + (int32_t)((random_bits(random) >> 8) % (uint32_t)(most - least + 1));
}

static int has_row_scales(attn_format format) {
  return format >= ATTN_FORMAT_INT8_PER_TOKEN_HEAD && format <= ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
}

static void draw_scales(attn_cache_desc *layer, uint32_t *random) {
  int32_t scales = draw(random, ATTN_SEPARATE_NONE, ATTN_SEPARATE_V);
  int k = has_row_scales(layer->k_format);
  int v = has_row_scales(layer->v_format);
  int is_accepted = (scales == ATTN_SEPARATE_BOTH && (k || v)) || (scales == ATTN_SEPARATE_K && k) ||
                    (scales == ATTN_SEPARATE_V && v);
  layer->separate_scales = is_accepted ? scales : ATTN_SEPARATE_NONE;
}

void model_draw(model *m, uint32_t *random) {
  int32_t count = draw(random, 1, 3);
  model_open(m);
  for (int32_t g = 0; g < count; g++) {
    int32_t layers = draw(random, 1, 3);
    attn_group_spec *spec;
    if (draw(random, 0, 3) == 0) {
      spec = model_add_latent(m, layers, (attn_format)draw(random, ATTN_FORMAT_FLOAT32, ATTN_FORMAT_FP8_E4M3),
                              draw(random, 1, 9), draw(random, 0, 2));
    } else {
      spec = model_add(m, layers, (attn_format)draw(random, ATTN_FORMAT_FLOAT32, ATTN_FORMAT_INT4_PER_TOKEN_HEAD),
                       draw(random, 1, 3), draw(random, 1, 9));
      m->layer[g].v_format = (attn_format)draw(random, ATTN_FORMAT_FLOAT32, ATTN_FORMAT_INT4_PER_TOKEN_HEAD);
      m->layer[g].v_head_size = draw(random, 1, 9);
      m->layer[g].layout = (attn_layout)draw(random, 0, 1);
      draw_scales(&m->layer[g], random);
    }
    spec->block_size = draw(random, 1, 24);
    spec->kernel_block = draw(random, 0, 2) == 0 ? 0 : draw(random, 1, 8);
  }
  m->options.block_multiple = draw(random, 1, 5);
  m->options.alignment = 16 * draw(random, 1, 2);
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

/* A row by its format's definition; `separate`: the codes alone. */
static uint64_t row_bytes(attn_format format, int32_t size, int separate) {
  uint64_t n = (uint64_t)size;
  switch (format) {
  case ATTN_FORMAT_FLOAT32:
    return 4 * n;
  case ATTN_FORMAT_FLOAT16:
  case ATTN_FORMAT_BFLOAT16:
    return 2 * n;
  case ATTN_FORMAT_FP8_E4M3:
  case ATTN_FORMAT_FP8_E5M2:
    return n;
  default:
    n = format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? (n + 1) / 2 : n;
    return separate ? n : (n + 3) / 4 * 4 + 4;
  }
}

static uint64_t aligned(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

uint64_t model_kernel_bytes(const model *m, int g, uint64_t positions, uint64_t alignment) {
  const attn_cache_desc *d = &m->layer[g];
  uint64_t layers = (uint64_t)m->spec[g].num_layers;
  if (d->kv_lora_rank > 0) {
    return layers * aligned(positions * row_bytes(d->k_format, d->kv_lora_rank + d->qk_rope_head_dim, 0), alignment);
  }
  uint64_t rows = positions * (uint64_t)d->num_kv_heads;
  attn_format v_format = d->v_format == ATTN_FORMAT_AUTO ? d->k_format : d->v_format;
  int k_apart = has_row_scales(d->k_format) &&
                (d->separate_scales == ATTN_SEPARATE_BOTH || d->separate_scales == ATTN_SEPARATE_K);
  int v_apart =
      has_row_scales(v_format) && (d->separate_scales == ATTN_SEPARATE_BOTH || d->separate_scales == ATTN_SEPARATE_V);
  return layers * (aligned(rows * row_bytes(d->k_format, d->head_size, k_apart), alignment) +
                   aligned(rows * row_bytes(v_format, d->v_head_size, v_apart), alignment) +
                   aligned(k_apart ? 4 * rows : 0, alignment) + aligned(v_apart ? 4 * rows : 0, alignment));
}

uint64_t model_unit(const model *m, int g) {
  return (uint64_t)(m->spec[g].kernel_block > 0 ? m->spec[g].kernel_block : m->options.block_multiple);
}
