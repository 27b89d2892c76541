/* SPDX-License-Identifier: Apache-2.0 */
/* geometry_pages.h: the search for a page size. Everything is counted in units: a group's fixed kernel block, or
 * options.block_multiple positions where it has none. A page of n kernel blocks has a multiple of n * alignment bytes;
 * one of a single kernel block any multiple of the alignment.
 */
#ifndef ATTN_API_GEOMETRY_PAGES_H
#define ATTN_API_GEOMETRY_PAGES_H

#include "attn/geometry.h"
#include "core/error.h"

/* A group as the search sees it. */
typedef struct attn_pages_member {
  uint64_t part[4];    /* bytes of one position of one layer */
  uint64_t num_layers; /* >= 1 */
  int32_t unit;        /* positions */
  int is_fixed;        /* a unit is a kernel block; else the whole block is one */
  uint64_t least;      /* units of the least block */
} attn_pages_member;

typedef struct attn_pages_search {
  uint64_t alignment;
  uint64_t max_page_bytes; /* 0: not given */
  uint64_t max_reuse_step; /* 0: any */
  int32_t num_groups;
  attn_pages_member member[ATTN_MAX_GROUPS];
} attn_pages_search;

/* What was found. */
typedef struct attn_pages_choice {
  attn_page_policy policy;
  uint64_t page;
  uint64_t reuse_step; /* saturates */
  double cost;         /* bytes of a page for each of its positions, summed over the groups */
  uint64_t units[ATTN_MAX_GROUPS];
} attn_pages_choice;

/* Fills *choice; ATTN_E_RANGE or ATTN_E_OVERFLOW where no size will do. */
attn_status attn_pages_choose(const attn_pages_search *search, attn_page_policy policy, attn_pages_choice *choice,
                              attn_message *message);

/* Bytes of one layer of a kernel block. */
uint64_t attn_pages_layer_bytes(const attn_pages_search *search, const attn_pages_member *member, uint64_t positions);

/* The smallest multiple of `step` (above 0) that is at least n; saturates. */
uint64_t attn_pages_up_to(uint64_t n, uint64_t step);

#endif
