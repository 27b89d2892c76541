/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file geometry.h  One pool of pages for a model whose layers differ: sizes, padding, tensors.   (stable)
 *
 * Layers with the same cache and the same window form a group: the full layers of a model are one, its sliding-window
 * layers another, latent layers a third. A page is one block of one group: `block_size` positions of all its layers.
 * When the pages of all groups have one size, one allocation serves them all, and a page that one group frees can be
 * any other's:
 *
 *     attn_geometry_unify()       block sizes and the page size, from what each group is
 *     attn_pool_create_groups()   the pages' owner, with block_size, kernel_block and window of each group (pool.h)
 *     attn_geometry_view()        K, V and scales of one layer as tensors, for writing and for attention
 *
 * In a page, from its first byte:
 *
 *     page          kernel block 0 | kernel block 1 | ... | kernel block r - 1           r = block_size / kernel_block
 *     kernel block  layer 0 | layer 1 | ... | padding                                    kernel_block_bytes
 *     layer         K | V | separate scales of K | separate scales of V                  layer_bytes
 *     K             [kernel_block, num_kv_heads, row], or head first (HND); V likewise; a latent layer has K alone
 *
 * and every part begins at a multiple of options.alignment from the page. Kernel block k of block b has id b * r + k
 * and lies at id * kernel_block_bytes: the tables of attn_pool_group_table() and all slots go with the tensors of
 * attn_geometry_view() as they are, and plans are made with block_size = kernel_block.
 */
#ifndef ATTN_GEOMETRY_H
#define ATTN_GEOMETRY_H

#include "cache.h"
#include "pool.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The largest page, 1 TiB. */
#define ATTN_MAX_PAGE_BYTES ((uint64_t)1 << 40)

/** One group of layers. Start from ATTN_GROUP_SPEC_INIT. */
typedef struct attn_group_spec {
  uint32_t size;        /**< sizeof(attn_group_spec) */
  int32_t num_layers;   /**< layers whose rows lie in each block, >= 1 */
  int32_t window;       /**< as in attn_pool_group; handed on, of no account for sizes */
  int32_t block_size;   /**< the fewest positions a block may have; rounded up to a multiple of kernel_block, or
                                     of options.block_multiple. 0: 16 */
  int32_t kernel_block; /**< positions per block of the group's plans; 0: whole blocks, whatever size they get */
  const attn_cache_desc *layer; /**< what attn_cache_describe() takes for one layer; num_blocks, block_size and the
                                     block strides, which are answered here, must be 0. A layer of latent rows has
                                     K alone, of three axes, and its scales of two */
} attn_group_spec;
#define ATTN_GROUP_SPEC_INIT ATTN_INIT(attn_group_spec)

/** How pages of different groups get one size. */
typedef enum attn_page_policy {
  ATTN_PAGES_AUTO = 0,  /**< EXACT where its page is no larger than max_page_bytes, else FILL */
  ATTN_PAGES_EXACT = 1, /**< raise blocks until all groups fill the page: their least common multiple */
  ATTN_PAGES_FILL = 2,  /**< raise blocks as far as they fit a page that is at most an eighth larger than the largest
                             least block, and pad the rest */
  ATTN_PAGES_KEEP = 3   /**< raise no block: pad all but the largest */
} attn_page_policy;

/** Options of attn_geometry_unify(). Start from ATTN_GEOMETRY_OPTIONS_INIT. */
typedef struct attn_geometry_options {
  uint32_t size;           /**< sizeof(attn_geometry_options) */
  attn_page_policy policy; /**< 0: AUTO */
  int32_t alignment;       /**< of every part of a page, in bytes: a power of two, 16 to 65536; 0: 16 */
  int32_t block_multiple;  /**< block sizes without a kernel_block are multiples of this, >= 1; 0: 16 */
  uint64_t max_page_bytes; /**< up to ATTN_MAX_PAGE_BYTES; 0: twice the page that KEEP takes */
  int32_t max_reuse_step; /**< the largest attn_geometry.reuse_step accepted, in positions: for pools whose prefixes are
                                to be reused. The larger it is, the less is padding. 0: any */
} attn_geometry_options;
#define ATTN_GEOMETRY_OPTIONS_INIT ATTN_INIT(attn_geometry_options)

/** How one group lies in pages. Start from ATTN_GROUP_PAGES_INIT. */
typedef struct attn_group_pages {
  uint32_t size;               /**< sizeof(attn_group_pages) */
  int32_t block_size;          /**< positions per block: one page */
  int32_t kernel_block;        /**< positions per kernel block: the block_size of the group's plans */
  int32_t window;              /**< the spec's */
  int32_t num_layers;          /**< the spec's */
  attn_layout layout;          /**< the spec's */
  uint64_t kernel_block_bytes; /**< from one kernel block to the next: page_bytes * kernel_block / block_size */
  uint64_t layer_bytes;        /**< from one layer to the next inside a kernel block */
  uint64_t part_offset[4];     /**< of K, V, K's scales, V's scales from the layer's first byte */
  uint64_t token_bytes;        /**< one position of all layers: K, V and scales, padding excluded */
  uint64_t padding_bytes;      /**< bytes of a page that hold nothing: page_bytes - block_size * token_bytes */
  double bytes_per_token;      /**< what one position takes of the pool: page_bytes / block_size */
  attn_cache_layout part[4];   /**< the tensors of one layer: K (or latent rows), V, K's scales, V's scales; ndim 0 for
                                    what there is not. shape[0] and bytes are 0: attn_geometry_view() knows them */
} attn_group_pages;
#define ATTN_GROUP_PAGES_INIT ATTN_INIT(attn_group_pages)

/** What all groups have in common. Start from ATTN_GEOMETRY_INIT. */
typedef struct attn_geometry {
  uint32_t size;           /**< sizeof(attn_geometry) */
  attn_page_policy policy; /**< EXACT, FILL or KEEP: what was done */
  int32_t alignment;       /**< what a pool's first byte should be aligned to, for every part to be */
  uint64_t page_bytes;     /**< one page of any group; a pool of n pages, the null block included, is n * page_bytes */
  uint64_t reuse_step;     /**< least common multiple of all block sizes: attn_pool_reuse_prefix() finds beginnings of
                                multiples of it. 2^64 - 1 where it is larger */
} attn_geometry;
#define ATTN_GEOMETRY_INIT ATTN_INIT(attn_geometry)

/**
 * Find block sizes for which the pages of all groups have one size.
 *
 *     u_g    = bytes of a kernel block of group g (without one, of block_multiple positions), all layers, parts aligned
 *     EXACT  page_bytes = the smallest common multiple of all u_g that holds every least block;
 *            block_size of g = page_bytes / u_g units
 *     FILL   of the page sizes from the largest least block to 9/8 of it, and of KEEP's, the one with the smallest sum
 *            of bytes_per_token (a sample of them where they are many)
 *     KEEP   the smallest page that every least block fits, and that all numbers of kernel blocks divide
 *
 * A block is one page always. A group with a fixed kernel_block and more than one in a block needs a page that is its
 * number of kernel blocks times a multiple of the alignment, hence the search. Layers of one group share pages: a group
 * of many layers has small blocks in positions, and two groups of the same layers and window may serve better than one.
 * FILL with max_reuse_step looks at blocks that divide such a step, rather than at all pages.
 *
 * Thread-safe; allocates nothing. FILL may take some ms, with dozens of groups a tenth of a second. Nothing is written
 * on failure.
 * @param options   NULL: all defaults
 * @param specs     [num_groups]
 * @param groups    [num_groups], each with its size set; written
 * @param geometry  written
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_RANGE (a field outside its values, or max_page_bytes or
 *         max_reuse_step too small, with what would be enough); ATTN_E_UNSUPPORTED (a format that is not built in);
 *         ATTN_E_OVERFLOW (a page beyond ATTN_MAX_PAGE_BYTES, a block beyond 2^31 - 1 positions).
 */
ATTN_API ATTN_NODISCARD attn_status attn_geometry_unify(const attn_geometry_options *options, int32_t num_groups,
                                                        const attn_group_spec *specs, attn_group_pages *groups,
                                                        attn_geometry *geometry, attn_message *message);

/** Parts of a layer, in the order of attn_group_pages.part. */
typedef enum attn_page_part {
  ATTN_PART_K = 0, /**< or latent rows */
  ATTN_PART_V = 1,
  ATTN_PART_K_SCALE = 2, /**< separate scales */
  ATTN_PART_V_SCALE = 3
} attn_page_part;

/** A tensor with its extents. It points into itself: not to be copied. */
typedef struct attn_page_view {
  DLTensor tensor;
  int64_t shape[4];
  int64_t strides[4];
} attn_page_view;

/**
 * One layer's K, V or scales in a pool, as attn_cache_write(), attn_cache_gather() and attn_run() take it: blocks are
 * kernel blocks, and block ids those of attn_pool_group_table().
 *
 * @param pool   the allocation: uint8 [pages, 1, page_bytes], compact, of any device. As it is, attn_cache_copy() and
 *               attn_cache_swap() take it to move whole pages, of whatever group: the copies of
 *               attn_pool_append_groups()
 * @param group  as attn_geometry_unify() wrote it
 * @param layer  0 .. num_layers - 1, counted inside the group
 * @param view   written; borrows pool's data
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_RANGE (layer, part, a part that the group has not, or a
 *         group that does not fit its page); ATTN_E_SHAPE, ATTN_E_DTYPE, ATTN_E_STRIDE, ATTN_E_ALIGN (pool; aligned to
 *         the part's element is enough); ATTN_E_OVERFLOW (more than 2^31 - 1 kernel blocks).
 */
ATTN_API ATTN_NODISCARD attn_status attn_geometry_view(const DLTensor *pool, const attn_group_pages *group,
                                                       int32_t layer, attn_page_part part, attn_page_view *view,
                                                       attn_message *message);

#ifdef __cplusplus
}
#endif
#endif
