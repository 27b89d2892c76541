/* SPDX-License-Identifier: Apache-2.0 */
/* geometry.c: attn_geometry_unify(): the groups' specs, and how each group lies in pages of the size that
 * geometry_pages.c chooses. The tensors inside a page: geometry_view.c.
 */
#include "attn/geometry.h"

#include <string.h>

#include "api/geometry_pages.h"
#include "core/arithmetic.h"
#include "core/resolve.h"

#define DEFAULT_ALIGNMENT 16
#define MAX_ALIGNMENT 65536
#define DEFAULT_BLOCK 16

/* ---- Specs ------------------------------------------------------------------------------------------------------- */

/* The tensors of one layer with blocks of `positions`; unused ones are 0. */
static attn_status describe(const attn_group_spec *spec, int64_t num_blocks, int32_t positions,
                            attn_cache_layout part[4], attn_message *message) {
  attn_cache_desc desc = *spec->layer;
  desc.num_blocks = num_blocks;
  desc.block_size = positions;
  memset(part, 0, 4 * sizeof *part);
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  ATTN_TRY(attn_cache_describe(&desc, &info, message));
  part[ATTN_PART_K] = info.k;
  part[ATTN_PART_V] = info.v;
  part[ATTN_PART_K_SCALE] = info.k_scale;
  part[ATTN_PART_V_SCALE] = info.v_scale;
  return ATTN_OK;
}

static attn_status check_layer(const attn_group_spec *spec, attn_message *message) {
  ATTN_CHECK_STRUCT(spec->layer, "desc", attn_cache_desc, message);
  const attn_cache_desc *d = spec->layer;
  if (d->num_blocks != 0 || d->block_size != 0 || d->k_block_bytes != 0 || d->v_block_bytes != 0) {
    return attn_fail(
        message, ATTN_E_RANGE,
        "desc: num_blocks %lld, block_size %d, k_block_bytes %lld, v_block_bytes %lld, accepted: 0 in each",
        (long long)d->num_blocks, (int)d->block_size, (long long)d->k_block_bytes, (long long)d->v_block_bytes);
  }
  return ATTN_OK;
}

static attn_status check_spec(const attn_group_spec *spec, attn_message *message) {
  const struct {
    const char *name;
    int32_t value, least;
  } fields[] = {{"num_layers", spec->num_layers, 1},
                {"window", spec->window, 0},
                {"block_size", spec->block_size, 0},
                {"kernel_block", spec->kernel_block, 0}};
  if (spec->size != sizeof *spec) {
    return attn_fail(message, ATTN_E_STRUCT_SIZE,
                     "size: %lu, accepted: %lu (start from the initialiser of attn_group_spec)",
                     (unsigned long)spec->size, (unsigned long)sizeof *spec);
  }
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    if (fields[i].value < fields[i].least) {
      return attn_fail(message, ATTN_E_RANGE, "%s: %d, accepted: %d or more", fields[i].name, (int)fields[i].value,
                       (int)fields[i].least);
    }
  }
  return check_layer(spec, message);
}

static attn_status make_member(const attn_group_spec *spec, int32_t block_multiple, attn_pages_member *m,
                               attn_message *message) {
  attn_cache_layout part[4];
  ATTN_TRY(check_spec(spec, message));
  ATTN_TRY(describe(spec, 1, 1, part, message));
  for (int i = 0; i < 4; i++) {
    m->part[i] = part[i].bytes;
  }
  m->num_layers = (uint64_t)spec->num_layers;
  m->is_fixed = spec->kernel_block > 0;
  m->unit = m->is_fixed ? spec->kernel_block : block_multiple;
  m->least = (uint64_t)attn_ceil_div(spec->block_size > 0 ? spec->block_size : DEFAULT_BLOCK, m->unit);
  if (m->least * (uint64_t)m->unit > INT32_MAX) {
    return attn_fail(message, ATTN_E_OVERFLOW,
                     "block_size: %d, a multiple of %d from there on is beyond 2147483647 positions",
                     (int)spec->block_size, (int)m->unit);
  }
  return ATTN_OK;
}

/* ---- The answer -------------------------------------------------------------------------------------------------- */

/* Fails in no case: a page is below 2^40 bytes, and the spec was described before. */
static attn_status fill_group(const attn_pages_search *s, const attn_group_spec *spec, const attn_pages_member *m,
                              uint64_t page, uint64_t units, attn_group_pages *group, attn_message *message) {
  attn_group_pages made = ATTN_GROUP_PAGES_INIT;
  made.block_size = (int32_t)(units * (uint64_t)m->unit);
  made.kernel_block = m->is_fixed ? m->unit : made.block_size;
  made.window = spec->window;
  made.num_layers = spec->num_layers;
  made.layout = spec->layer->layout;
  made.kernel_block_bytes = m->is_fixed ? page / units : page;
  made.layer_bytes = attn_pages_layer_bytes(s, m, (uint64_t)made.kernel_block);
  ATTN_TRY(describe(spec, 0, made.kernel_block, made.part, message));
  uint64_t offset = 0;
  for (int i = 0; i < 4; i++) {
    made.part_offset[i] = offset;
    made.token_bytes += m->part[i] * m->num_layers;
    offset += attn_pages_up_to(m->part[i] * (uint64_t)made.kernel_block, s->alignment);
    if (made.part[i].ndim > 0) {
      made.part[i].strides[0] = (int64_t)(made.kernel_block_bytes / attn_dtype_bytes(made.part[i].dtype));
    }
  }
  made.padding_bytes = page - made.token_bytes * (uint64_t)made.block_size;
  made.bytes_per_token = (double)page / (double)made.block_size;
  *group = made;
  return ATTN_OK;
}

static attn_status make_search(const attn_geometry_options *options, int32_t num_groups, const attn_group_spec *specs,
                               attn_pages_search *s, attn_message *message) {
  attn_message inner = {ATTN_OK, ""};
  s->alignment = options->alignment == 0 ? DEFAULT_ALIGNMENT : (uint64_t)options->alignment;
  s->max_page_bytes = options->max_page_bytes;
  s->max_reuse_step = (uint64_t)options->max_reuse_step;
  s->num_groups = num_groups;
  for (int32_t g = 0; g < num_groups; g++) {
    attn_status status = make_member(&specs[g], options->block_multiple == 0 ? DEFAULT_BLOCK : options->block_multiple,
                                     &s->member[g], &inner);
    if (status != ATTN_OK) {
      return attn_fail(message, status, "specs[%d]: %s", (int)g, inner.text);
    }
  }
  return ATTN_OK;
}

static attn_status check_options(const attn_geometry_options *options, attn_message *message) {
  int32_t alignment = options->alignment;
  if ((int)options->policy < ATTN_PAGES_AUTO || (int)options->policy > ATTN_PAGES_KEEP) {
    return attn_fail(message, ATTN_E_RANGE, "options.policy: %d, accepted: %d (AUTO) to %d (KEEP)",
                     (int)options->policy, ATTN_PAGES_AUTO, ATTN_PAGES_KEEP);
  }
  if (alignment != 0 &&
      (alignment < DEFAULT_ALIGNMENT || alignment > MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0)) {
    return attn_fail(message, ATTN_E_RANGE, "options.alignment: %d, accepted: 0, or a power of two, %d to %d",
                     (int)alignment, DEFAULT_ALIGNMENT, MAX_ALIGNMENT);
  }
  if (options->block_multiple < 0) {
    return attn_fail(message, ATTN_E_RANGE, "options.block_multiple: %d, accepted: 0 or more",
                     (int)options->block_multiple);
  }
  if (options->max_reuse_step < 0) {
    return attn_fail(message, ATTN_E_RANGE, "options.max_reuse_step: %d, accepted: 0 (any) or more",
                     (int)options->max_reuse_step);
  }
  if (options->max_page_bytes > ATTN_MAX_PAGE_BYTES) {
    return attn_fail(message, ATTN_E_RANGE, "options.max_page_bytes: %llu, accepted: 0 to %llu",
                     (unsigned long long)options->max_page_bytes, (unsigned long long)ATTN_MAX_PAGE_BYTES);
  }
  return ATTN_OK;
}

static attn_status check_arguments(int32_t num_groups, const attn_group_spec *specs, const attn_group_pages *groups,
                                   attn_message *message) {
  if (num_groups < 1 || num_groups > ATTN_MAX_GROUPS) {
    return attn_fail(message, ATTN_E_RANGE, "num_groups: %d, accepted: 1 to %d", (int)num_groups, ATTN_MAX_GROUPS);
  }
  ATTN_CHECK_POINTER(specs, "specs", message);
  ATTN_CHECK_POINTER(groups, "groups", message);
  for (int32_t g = 0; g < num_groups; g++) {
    if (groups[g].size != sizeof groups[g]) {
      return attn_fail(message, ATTN_E_STRUCT_SIZE,
                       "groups[%d].size: %lu, accepted: %lu (start from the initialiser of attn_group_pages)", (int)g,
                       (unsigned long)groups[g].size, (unsigned long)sizeof groups[g]);
    }
  }
  return ATTN_OK;
}

attn_status attn_geometry_unify(const attn_geometry_options *options, int32_t num_groups, const attn_group_spec *specs,
                                attn_group_pages *groups, attn_geometry *geometry, attn_message *message) {
  attn_geometry_options defaults = ATTN_GEOMETRY_OPTIONS_INIT;
  attn_geometry made = ATTN_GEOMETRY_INIT;
  attn_pages_search s = {0};
  attn_pages_choice choice;
  if (options == NULL) {
    options = &defaults;
  }
  ATTN_CHECK_STRUCT(options, "options", attn_geometry_options, message);
  ATTN_TRY(check_options(options, message));
  ATTN_TRY(check_arguments(num_groups, specs, groups, message));
  ATTN_CHECK_STRUCT(geometry, "geometry", attn_geometry, message);
  ATTN_TRY(make_search(options, num_groups, specs, &s, message));
  ATTN_TRY(attn_pages_choose(&s, options->policy, &choice, message));
  for (int32_t g = 0; g < num_groups; g++) {
    ATTN_TRY(fill_group(&s, &specs[g], &s.member[g], choice.page, choice.units[g], &groups[g], message));
  }
  made.policy = choice.policy;
  made.alignment = (int32_t)s.alignment;
  made.page_bytes = choice.page;
  made.reuse_step = choice.reuse_step;
  *geometry = made;
  return ATTN_OK;
}
