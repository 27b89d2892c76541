/* SPDX-License-Identifier: Apache-2.0 */
/* geometry.c: pages of one size for groups of layers that differ. The tensors inside a page: geometry_view.c.
 *
 * Everything is counted in units: a group's fixed kernel block, or options.block_multiple positions where it has none.
 * A page of n kernel blocks has a multiple of n * alignment bytes; one of a single kernel block any multiple of the
 * alignment. Sizes saturate at 2^64 - 1, which is beyond every limit.
 */
#include "attn/geometry.h"

#include <string.h>

#include "core/arithmetic.h"
#include "core/resolve.h"

#define DEFAULT_ALIGNMENT 16
#define MAX_ALIGNMENT 65536
#define DEFAULT_BLOCK 16

/* Divisions that FILL may spend on its search: some ms. */
#define MAX_DIVISIONS ((uint64_t)1 << 21)

/* A group as the search sees it. */
typedef struct member {
  uint64_t part[4];    /* bytes of one position of one layer */
  uint64_t num_layers; /* >= 1 */
  int32_t unit;        /* positions */
  int is_fixed;        /* a unit is a kernel block; else the whole block is one */
  uint64_t least;      /* units of the least block */
} member;

typedef struct search {
  uint64_t alignment;
  uint64_t max_page_bytes;
  int32_t num_groups;
  member member[ATTN_MAX_GROUPS];
} search;

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static uint64_t times(uint64_t a, uint64_t b) {
  uint64_t r = 0;
  return attn_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

static uint64_t plus(uint64_t a, uint64_t b) {
  uint64_t r = 0;
  return attn_add_overflow(a, b, &r) ? UINT64_MAX : r;
}

/* The smallest multiple of `step` that is at least n; any step above 0. */
static uint64_t up_to(uint64_t n, uint64_t step) {
  return times(n / step + (n % step != 0), step);
}

static uint64_t common_multiple(uint64_t a, uint64_t b) {
  uint64_t x = a;
  uint64_t y = b;
  while (y != 0) {
    uint64_t rest = x % y;
    x = y;
    y = rest;
  }
  return times(a / x, b);
}

/* One layer of a kernel block. */
static uint64_t layer_bytes(const search *s, const member *m, uint64_t positions) {
  uint64_t bytes = 0;
  for (int i = 0; i < 4; i++) {
    bytes = plus(bytes, up_to(times(m->part[i], positions), s->alignment));
  }
  return bytes;
}

static uint64_t kernel_bytes(const search *s, const member *m, uint64_t positions) {
  return times(layer_bytes(s, m, positions), m->num_layers);
}

static uint64_t unit_bytes(const search *s, const member *m) {
  return kernel_bytes(s, m, (uint64_t)m->unit);
}

/* The page of a block of so many units, without padding. */
static uint64_t page_of(const search *s, const member *m, uint64_t units) {
  return m->is_fixed ? times(unit_bytes(s, m), units) : kernel_bytes(s, m, times(units, (uint64_t)m->unit));
}

/* The largest divisor of n that is at most `most`; both at least 1. */
static uint64_t largest_divisor(uint64_t n, uint64_t most) {
  uint64_t best = 1;
  if (most >= n) {
    return n;
  }
  if (most < n / most) { /* below the root */
    for (best = most; n % best != 0; best--) {
    }
    return best;
  }
  for (uint64_t d = 1; d <= n / d; d++) {
    if (n % d == 0 && n / d <= most) {
      return n / d;
    }
    best = n % d == 0 ? d : best;
  }
  return best;
}

/* The most units that a block can have in a page of `bytes`, a multiple of the alignment; 0: not one fits. */
static uint64_t most_units(const search *s, const member *m, uint64_t bytes) {
  uint64_t most = (uint64_t)(INT32_MAX / m->unit);
  if (m->is_fixed) {
    uint64_t fit = bytes / unit_bytes(s, m);
    fit = fit < most ? fit : most;
    return fit == 0 ? 0 : largest_divisor(bytes / s->alignment, fit);
  }
  uint64_t low = 0; /* fits */
  uint64_t high = most + 1;
  while (high - low > 1) {
    uint64_t middle = low + (high - low) / 2;
    if (page_of(s, m, middle) <= bytes) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* ---- Page sizes -------------------------------------------------------------------------------------------------- */

/* The member whose least block is the largest page. */
static const member *largest(const search *s) {
  const member *found = &s->member[0];
  for (int32_t g = 1; g < s->num_groups; g++) {
    const member *m = &s->member[g];
    found = page_of(s, m, m->least) > page_of(s, found, found->least) ? m : found;
  }
  return found;
}

static uint64_t keep_page(const search *s) {
  const member *m = largest(s);
  uint64_t step = s->alignment;
  for (int32_t g = 0; g < s->num_groups; g++) {
    step = s->member[g].is_fixed ? common_multiple(step, times(s->alignment, s->member[g].least)) : step;
  }
  return up_to(page_of(s, m, m->least), step);
}

/* 2^64 - 1 where a block would have too many positions. */
static uint64_t exact_page(const search *s) {
  const member *m = largest(s);
  uint64_t step = 1;
  for (int32_t g = 0; g < s->num_groups; g++) {
    step = common_multiple(step, unit_bytes(s, &s->member[g]));
  }
  uint64_t page = up_to(page_of(s, m, m->least), step);
  for (int32_t g = 0; g < s->num_groups; g++) {
    uint64_t most = (uint64_t)(INT32_MAX / s->member[g].unit);
    page = page / unit_bytes(s, &s->member[g]) > most ? UINT64_MAX : page;
  }
  return page;
}

/* Bytes of a page for each of its positions, summed over the groups; above every other when a least block does not
   fit. */
static double cost_of(const search *s, uint64_t page) {
  double cost = 0.0;
  for (int32_t g = 0; g < s->num_groups; g++) {
    const member *m = &s->member[g];
    uint64_t units = most_units(s, m, page);
    if (units < m->least) {
      return 1e300;
    }
    cost += (double)page / ((double)units * (double)m->unit);
  }
  return cost;
}

/* Divisions that one page size costs, roughly. */
static uint64_t work_of(const search *s, uint64_t page) {
  uint64_t root = 1;
  uint64_t work = 0;
  while (root < page / s->alignment / root) {
    root *= 2;
  }
  for (int32_t g = 0; g < s->num_groups; g++) {
    const member *m = &s->member[g];
    uint64_t fit = m->is_fixed ? page / unit_bytes(s, m) : 128; /* else a search by halves */
    work += fit < root || !m->is_fixed ? fit : root;
  }
  return work;
}

/* The best of all multiples of the alignment from the largest least block to 9/8 of it, and of keep_page(). Where they
   are too many, of those that the largest group's kernel blocks divide, or of as many of these as can be tried. */
static uint64_t fill_page(const search *s) {
  const member *anchor = largest(s);
  uint64_t first = page_of(s, anchor, anchor->least);
  uint64_t range = first / 8;
  uint64_t most = MAX_DIVISIONS / work_of(s, first) + 1;
  uint64_t step = s->alignment;
  if (range / step >= most && anchor->is_fixed) {
    step *= anchor->least;
  }
  step = times(step, range / step / most + 1);
  uint64_t best = keep_page(s);
  double least = best <= s->max_page_bytes ? cost_of(s, best) : 1e300;
  for (uint64_t page = first; page <= first + range && page <= s->max_page_bytes; page += step) {
    double cost = cost_of(s, page);
    if (cost < least || (cost == least && page < best)) {
      best = page;
      least = cost;
    }
  }
  return best;
}

static attn_status within(const search *s, uint64_t page, const char *what, attn_message *message) {
  if (page > ATTN_MAX_PAGE_BYTES) {
    return attn_fail(message, ATTN_E_OVERFLOW,
                     "specs: %s has more than %llu bytes or 2147483647 positions, the most that are served", what,
                     (unsigned long long)ATTN_MAX_PAGE_BYTES);
  }
  if (page > s->max_page_bytes) {
    return attn_fail(message, ATTN_E_RANGE, "options.max_page_bytes: %llu, accepted: %llu or more (%s)",
                     (unsigned long long)s->max_page_bytes, (unsigned long long)page, what);
  }
  return ATTN_OK;
}

static attn_status choose_page(search *s, attn_geometry *made, attn_message *message) {
  uint64_t keep = keep_page(s);
  ATTN_TRY(keep > ATTN_MAX_PAGE_BYTES ? within(s, keep, "the page of the least blocks", message) : ATTN_OK);
  if (s->max_page_bytes == 0) {
    s->max_page_bytes = 2 * keep < ATTN_MAX_PAGE_BYTES ? 2 * keep : ATTN_MAX_PAGE_BYTES;
  }
  uint64_t exact = exact_page(s);
  if (made->policy == ATTN_PAGES_AUTO) {
    made->policy = exact <= s->max_page_bytes ? ATTN_PAGES_EXACT : ATTN_PAGES_FILL;
  }
  if (made->policy == ATTN_PAGES_EXACT) {
    made->page_bytes = exact;
    return within(s, exact, "the page that every group fills, where FILL would pad", message);
  }
  made->page_bytes = made->policy == ATTN_PAGES_KEEP ? keep : fill_page(s);
  return within(s, made->page_bytes, "the page of the least blocks", message);
}

/* ---- Specs ------------------------------------------------------------------------------------------------------- */

/* Latent rows, which attn_cache_describe() does not know yet: their address and size alone. */
static attn_status describe_latent(const attn_cache_desc *d, attn_cache_layout part[4], attn_message *message) {
  attn_dtype dtype = attn_format_storage(d->k_format);
  if (d->num_kv_heads != 0 || d->head_size != 0 || d->v_head_size != 0 || d->v_format != ATTN_FORMAT_AUTO ||
      d->separate_scales != 0 || d->rotary_dtype != ATTN_DTYPE_DEFAULT) {
    return attn_fail(message, ATTN_E_RANGE,
                     "desc.kv_lora_rank: %d, accepted: 0 in num_kv_heads, head_size, v_head_size, v_format, "
                     "separate_scales and rotary_dtype of a latent layer",
                     (int)d->kv_lora_rank);
  }
  if (d->kv_lora_rank < 1 || d->qk_rope_head_dim < 0) {
    return attn_fail(message, ATTN_E_RANGE, "desc.kv_lora_rank: %d with qk_rope_head_dim %d, accepted: 1 and 0 or more",
                     (int)d->kv_lora_rank, (int)d->qk_rope_head_dim);
  }
  if (dtype == ATTN_DTYPE_DEFAULT || dtype == ATTN_DTYPE_UINT8 || !attn_format_built(d->k_format)) {
    return attn_fail(message, ATTN_E_UNSUPPORTED,
                     "desc.k_format: %s is not built in for latent rows; accepted: a float format or fp8_e4m3, fp8_e5m2",
                     attn_format_name(d->k_format));
  }
  int64_t row = (int64_t)d->kv_lora_rank + d->qk_rope_head_dim;
  uint64_t block = times((uint64_t)row, (uint64_t)d->block_size); /* below 2^63 */
  part[ATTN_PART_K] = (attn_cache_layout){.dtype = dtype,
                                          .ndim = 3,
                                          .shape = {d->num_blocks, d->block_size, row},
                                          .strides = {(int64_t)block, row, 1},
                                          .row_bytes = (uint64_t)row * attn_dtype_bytes(dtype),
                                          .bytes = times(block, (uint64_t)d->num_blocks * attn_dtype_bytes(dtype))};
  return ATTN_OK;
}

/* The tensors of one layer with blocks of `positions`; unused ones are 0. */
static attn_status describe(const attn_group_spec *spec, int64_t num_blocks, int32_t positions,
                            attn_cache_layout part[4], attn_message *message) {
  attn_cache_desc desc = *spec->layer;
  desc.num_blocks = num_blocks;
  desc.block_size = positions;
  memset(part, 0, 4 * sizeof *part);
  if (desc.kv_lora_rank != 0) {
    return describe_latent(&desc, part, message);
  }
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

static attn_status make_member(const attn_group_spec *spec, int32_t block_multiple, member *m, attn_message *message) {
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
static attn_status fill_group(const search *s, const attn_group_spec *spec, const member *m, uint64_t page,
                              uint64_t units, attn_group_pages *group, attn_message *message) {
  attn_group_pages made = ATTN_GROUP_PAGES_INIT;
  made.block_size = (int32_t)(units * (uint64_t)m->unit);
  made.kernel_block = m->is_fixed ? m->unit : made.block_size;
  made.window = spec->window;
  made.num_layers = spec->num_layers;
  made.layout = spec->layer->layout;
  made.kernel_block_bytes = m->is_fixed ? page / units : page;
  made.layer_bytes = layer_bytes(s, m, (uint64_t)made.kernel_block);
  ATTN_TRY(describe(spec, 0, made.kernel_block, made.part, message));
  uint64_t offset = 0;
  for (int i = 0; i < 4; i++) {
    made.part_offset[i] = offset;
    made.token_bytes += m->part[i] * m->num_layers;
    offset += up_to(m->part[i] * (uint64_t)made.kernel_block, s->alignment);
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
                               search *s, attn_message *message) {
  attn_message inner = {ATTN_OK, ""};
  s->alignment = options->alignment == 0 ? DEFAULT_ALIGNMENT : (uint64_t)options->alignment;
  s->max_page_bytes = options->max_page_bytes;
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
  search s = {0};
  if (options == NULL) {
    options = &defaults;
  }
  ATTN_CHECK_STRUCT(options, "options", attn_geometry_options, message);
  ATTN_TRY(check_options(options, message));
  ATTN_TRY(check_arguments(num_groups, specs, groups, message));
  ATTN_CHECK_STRUCT(geometry, "geometry", attn_geometry, message);
  ATTN_TRY(make_search(options, num_groups, specs, &s, message));
  made.policy = options->policy;
  made.alignment = (int32_t)s.alignment;
  ATTN_TRY(choose_page(&s, &made, message));
  made.reuse_step = 1;
  for (int32_t g = 0; g < num_groups; g++) {
    const member *m = &s.member[g];
    uint64_t units = made.policy == ATTN_PAGES_KEEP ? m->least : most_units(&s, m, made.page_bytes);
    ATTN_TRY(fill_group(&s, &specs[g], m, made.page_bytes, units, &groups[g], message));
    made.reuse_step = common_multiple(made.reuse_step, (uint64_t)groups[g].block_size);
  }
  *geometry = made;
  return ATTN_OK;
}
