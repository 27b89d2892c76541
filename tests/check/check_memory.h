/* SPDX-License-Identifier: Apache-2.0 */
/* check_memory.h: memory that notices. Every tensor of a case lies between inaccessible pages, ending exactly at the
 * one behind it or beginning exactly at the one before it. Inputs are compared with a snapshot after the calls; outputs
 * are filled with a canary, of which only the bytes of owned elements may change. An arena frees everything of a case.
 * */
#ifndef ATTN_CHECK_MEMORY_H
#define ATTN_CHECK_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "attn/tensor.h"
#include "check_rng.h"

typedef struct check_arena check_arena;

check_arena *check_arena_new(void);
void check_arena_free(check_arena *arena);

/* Plain zeroed memory of the arena. Never NULL: a test without memory ends with a message. */
void *check_alloc(check_arena *arena, size_t count, size_t size);

/* Memory between inaccessible pages. `before`: it begins at one; else it ends at one. `bytes` may be 0. Contents are
   zero. Up to a few GiB may be reserved; only what is touched costs. */
unsigned char *check_guarded(check_arena *arena, size_t bytes, int before);

/* Memory of the allocator that nobody has written, at a multiple of `alignment`: sanitizers and memcheck know so, and
   see its ends too. `bytes` is a multiple of `alignment`. */
unsigned char *check_unwritten(check_arena *arena, size_t alignment, size_t bytes);

/* What fills bytes that nobody owns. */
typedef enum check_poison { CHECK_POISON_NAN, CHECK_POISON_INF, CHECK_POISON_BIG } check_poison;

/* A tensor with its memory. `first` is the first element; segments describe the bytes that are filled and compared: one
   for an ordinary tensor, one per block where blocks lie far apart. */
typedef struct check_tensor {
  DLTensor dl;
  attn_dtype dtype;
  size_t element;
  int64_t shape[4];
  int64_t strides[4]; /* elements */
  unsigned char *first;
  int64_t num_segments;
  size_t segment_stride;
  size_t segment_bytes;
  unsigned char *snapshot; /* all segments in a row, or NULL */
} check_tensor;

/* How a tensor lies: strides given, or compact when `strides` is NULL. */
typedef struct check_lie {
  const int64_t *strides; /* elements */
  int32_t byte_offset;    /* elements between dl.data and the first element */
  int before;             /* side of the guard page */
  int far_blocks;         /* axis 0 is so wide that each of its entries is a segment */
} check_lie;

/* Make the tensor and its memory. `first` NULL: its own guarded memory; else it lies there (two tensors interleaved).
   */
void check_tensor_make(check_arena *arena, check_tensor *tensor, attn_dtype dtype, int ndim, const int64_t *shape,
                       const check_lie *lie, unsigned char *first);

/* Bytes from the first element to the end of the last one under these strides. */
size_t check_extent(int ndim, const int64_t *shape, const int64_t *strides, size_t element);

/* Strides of a stride class for [tokens, heads, size] (CHECK_COMPACT ... of check_options.h); gaps are drawn. */
void check_strides(check_rng *rng, int stride_class, int ndim, const int64_t *shape, int64_t *strides);

/* Address of element (i, j, k, l); missing axes are 0. */
void *check_at(const check_tensor *tensor, int64_t i, int64_t j, int64_t k, int64_t l);

/* Fill all bytes with bits that are NaN, infinite or huge in the tensor's type. */
void check_fill_poison(const check_tensor *tensor, check_poison poison);

/* Fill all bytes with a canary: a pattern of `salt` and the position. */
void check_fill_canary(const check_tensor *tensor, unsigned salt);

/* Offset of the first byte that is not the canary's, or -1. */
int64_t check_canary_broken(const check_tensor *tensor, unsigned salt);

/* Write the canary over one element. */
void check_canary_restore(const check_tensor *tensor, void *element, unsigned salt);

/* Keep a copy of all bytes; compare with it: offset of the first difference, or -1. */
void check_snapshot(check_arena *arena, check_tensor *tensor);
int64_t check_changed(const check_tensor *tensor);

/* The bytes of an element as they were when the copy was kept. */
const unsigned char *check_old_bytes(const check_tensor *tensor, const void *element);

#endif
