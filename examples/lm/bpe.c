/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte-pair merging of one piece. The symbols form a linked list; possible merges wait in a binary heap ordered by rank
 * and position, so that a piece of n bytes takes O(n log n) however long it is. A candidate is checked again when it
 * comes up: it holds if the pair at its place still merges into the same token. A byte that the vocabulary has no token
 * for is dropped before merging, as tokenizers without an unknown token do.
 */
#include "tokenizer_parts.h"

#include <stdlib.h>

#define MAX_PIECE ((size_t)INT32_MAX / 4)

static int by_rule(const void *a, const void *b) {
  const merge_rule *x = a;
  const merge_rule *y = b;
  if (x->key != y->key) {
    return x->key < y->key ? -1 : 1;
  }
  return (x->rank > y->rank) - (x->rank < y->rank);
}

void bpe_sort_rules(bpe_rules *rules) {
  if (rules->count == 0) {
    return;
  }
  qsort(rules->rules, rules->count, sizeof rules->rules[0], by_rule);
  size_t kept = 0;
  for (size_t i = 1; i < rules->count; i++) {
    if (rules->rules[i].key != rules->rules[kept].key) {
      kept++;
    }
    rules->rules[kept] = rules->rules[i];
  }
  rules->count = kept + 1;
}

static const merge_rule *find_rule(const bpe_rules *rules, int32_t first, int32_t second) {
  const uint64_t key = (uint64_t)(uint32_t)first << 32 | (uint32_t)second;
  size_t low = 0;
  size_t high = rules->count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (rules->rules[middle].key < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < rules->count && rules->rules[low].key == key ? &rules->rules[low] : NULL;
}

static bool comes_before(const bpe_candidate *a, const bpe_candidate *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(bpe_room *room, bpe_candidate candidate) {
  size_t hole = room->heap_count++;
  while (hole > 0) {
    const size_t parent = (hole - 1) / 2;
    if (!comes_before(&candidate, &room->heap[parent])) {
      break;
    }
    room->heap[hole] = room->heap[parent];
    hole = parent;
  }
  room->heap[hole] = candidate;
}

static bpe_candidate heap_pop(bpe_room *room) {
  const bpe_candidate top = room->heap[0];
  const bpe_candidate last = room->heap[--room->heap_count];
  size_t hole = 0;
  for (;;) {
    size_t child = 2 * hole + 1;
    if (child >= room->heap_count) {
      break;
    }
    if (child + 1 < room->heap_count && comes_before(&room->heap[child + 1], &room->heap[child])) {
      child++;
    }
    if (!comes_before(&room->heap[child], &last)) {
      break;
    }
    room->heap[hole] = room->heap[child];
    hole = child;
  }
  room->heap[hole] = last;
  return top;
}

static void queue_pair(const bpe_rules *rules, bpe_room *room, int32_t at) {
  if (at < 0 || room->symbols[at].next < 0) {
    return;
  }
  const merge_rule *rule = find_rule(rules, room->symbols[at].id, room->symbols[room->symbols[at].next].id);
  if (rule != NULL) {
    heap_push(room, (bpe_candidate){rule->rank, at, rule->id});
  }
}

static void merge_all(const bpe_rules *rules, bpe_room *room) {
  while (room->heap_count > 0) {
    const bpe_candidate top = heap_pop(room);
    bpe_symbol *symbol = &room->symbols[top.at];
    if (symbol->id < 0 || symbol->next < 0) {
      continue;
    }
    bpe_symbol *second = &room->symbols[symbol->next];
    const merge_rule *rule = find_rule(rules, symbol->id, second->id);
    if (rule == NULL || rule->id != top.id) {
      continue;
    }
    symbol->id = rule->id;
    symbol->next = second->next;
    second->id = -1;
    if (symbol->next >= 0) {
      room->symbols[symbol->next].previous = top.at;
    }
    queue_pair(rules, room, symbol->previous);
    queue_pair(rules, room, top.at);
  }
}

/* Every merge queues at most two more and removes one symbol, so the heap holds at most 3 * length candidates. */
static attn_status reserve(bpe_room *room, size_t length, attn_message *message) {
  if (length <= room->capacity) {
    return ATTN_OK;
  }
  if (length > MAX_PIECE) {
    return lm_fail(message, ATTN_E_RANGE, "a stretch of text takes %zu bytes; accepted are up to %zu", length,
                   MAX_PIECE);
  }
  bpe_room_free(room);
  room->symbols = malloc(length * sizeof room->symbols[0]);
  room->heap = malloc(3 * length * sizeof room->heap[0]);
  if (room->symbols == NULL || room->heap == NULL) {
    bpe_room_free(room);
    return lm_fail(message, ATTN_E_NOMEM, "no memory to merge a stretch of %zu bytes", length);
  }
  room->capacity = length;
  return ATTN_OK;
}

attn_status bpe_merge_piece(const bpe_rules *rules, bpe_room *room, const char *piece, size_t length, lm_ids *ids,
                            attn_message *message) {
  attn_status status = reserve(room, length, message);
  if (status != ATTN_OK) {
    return status;
  }
  int32_t count = 0;
  for (size_t i = 0; i < length; i++) {
    const int32_t id = rules->byte_ids[(unsigned char)piece[i]];
    if (id >= 0) {
      room->symbols[count] = (bpe_symbol){id, count - 1, count + 1};
      count++;
    }
  }
  if (count == 0) {
    return ATTN_OK;
  }
  room->symbols[count - 1].next = -1;
  room->heap_count = 0;
  for (int32_t i = 0; i < count; i++) {
    queue_pair(rules, room, i);
  }
  merge_all(rules, room);
  for (int32_t at = 0; at >= 0 && status == ATTN_OK; at = room->symbols[at].next) {
    status = lm_ids_push(ids, room->symbols[at].id, message);
  }
  return status;
}

void bpe_room_free(bpe_room *room) {
  free(room->symbols);
  free(room->heap);
  *room = (bpe_room){0};
}
