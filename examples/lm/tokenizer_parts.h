/* SPDX-License-Identifier: Apache-2.0 */
/* What tokenizer.c (loading, decoding) and bpe.c (merging) share. Private to the two. */
#ifndef LM_TOKENIZER_PARTS_H
#define LM_TOKENIZER_PARTS_H

#include "pretokenize.h"
#include "tokenizer.h"

/** One rule: the pair (key >> 32, key & 0xffffffff) becomes `id`; the lowest rank is applied first. */
typedef struct merge_rule {
  uint64_t key;
  int32_t rank;
  int32_t id;
} merge_rule;

/** A symbol of the piece being merged, in a doubly linked list; a symbol that was merged away has id -1. */
typedef struct bpe_symbol {
  int32_t id;
  int32_t previous; /**< -1 at the ends */
  int32_t next;
} bpe_symbol;

/** A merge that was possible when it was queued: by rank, then by position. */
typedef struct bpe_candidate {
  int32_t rank;
  int32_t at;
  int32_t id;
} bpe_candidate;

/** Room that grows to the longest piece and is kept. */
typedef struct bpe_room {
  bpe_symbol *symbols;
  bpe_candidate *heap;
  size_t heap_count;
  size_t capacity; /**< symbols; the heap has three times as many */
} bpe_room;

typedef struct bpe_rules {
  merge_rule *rules; /**< sorted by key, no key twice */
  size_t count;
  int32_t byte_ids[256]; /**< -1: the vocabulary has no token for this byte, it is dropped */
} bpe_rules;

/** Appends the ids of one piece. */
ATTN_NODISCARD attn_status bpe_merge_piece(const bpe_rules *rules, bpe_room *room, const char *piece, size_t length,
                                           lm_ids *ids, attn_message *message);

/** Sorts by key; of rules with one key the one with the highest rank stays, as when a map is filled in file order. */
void bpe_sort_rules(bpe_rules *rules);

void bpe_room_free(bpe_room *room);

#endif
