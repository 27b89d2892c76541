/* SPDX-License-Identifier: Apache-2.0 */
/* geometry_model.h: groups of layers for tests of page sizes: specs with their layers, options and the answer, drawn at
 * random too, and bytes that are computed apart from the library.
 */
#ifndef ATTN_TESTS_GEOMETRY_MODEL_H
#define ATTN_TESTS_GEOMETRY_MODEL_H

#include "harness.h"

#define MODEL_GROUPS 5

typedef struct model {
  int32_t count;
  attn_cache_desc layer[MODEL_GROUPS];
  attn_group_spec spec[MODEL_GROUPS];
  attn_group_pages group[MODEL_GROUPS];
  attn_geometry_options options;
  attn_geometry geometry;
} model;

void model_open(model *m);

/* Add a group of K and V, or of latent rows; the rest of its spec is the caller's to set. */
attn_group_spec *model_add(model *m, int32_t layers, attn_format format, int32_t heads, int32_t head_size);
attn_group_spec *model_add_latent(model *m, int32_t layers, attn_format format, int32_t rank, int32_t rope);

attn_status model_unify(model *m);

/* A model of one to three groups with small numbers of every kind, not yet unified. */
void model_draw(model *m, uint32_t *random);

/* Bytes of a kernel block of a group, all layers; of so many positions. */
uint64_t model_kernel_bytes(const model *m, int g, uint64_t positions, uint64_t alignment);

/* Positions of a unit of a group: its kernel block, or the options' block_multiple. */
uint64_t model_unit(const model *m, int g);

#endif
