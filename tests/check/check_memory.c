/* SPDX-License-Identifier: Apache-2.0 */
/* check_memory.c: see check_memory.h. */
#define _DEFAULT_SOURCE
#include "check_memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check_float.h"
#include "check_options.h"

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

typedef struct piece {
  void *memory;
  size_t mapped; /* 0: from calloc */
} piece;

struct check_arena {
  piece *pieces;
  size_t count;
  size_t capacity;
};

static void out_of_memory(void) {
  fputs("attn check: out of memory\n", stderr);
  _exit(3);
}

check_arena *check_arena_new(void) {
  check_arena *arena = calloc(1, sizeof *arena);
  if (arena == NULL) {
    out_of_memory();
  }
  return arena;
}

void check_arena_free(check_arena *arena) {
  for (size_t i = 0; i < arena->count; i++) {
    if (arena->pieces[i].mapped != 0) {
      munmap(arena->pieces[i].memory, arena->pieces[i].mapped);
    } else {
      free(arena->pieces[i].memory);
    }
  }
  free(arena->pieces);
  free(arena);
}

static void keep(check_arena *arena, void *memory, size_t mapped) {
  if (arena->count == arena->capacity) {
    arena->capacity = arena->capacity * 2 + 32;
    piece *pieces = realloc(arena->pieces, arena->capacity * sizeof *pieces);
    if (pieces == NULL) {
      out_of_memory();
      return;
    }
    arena->pieces = pieces;
  }
  arena->pieces[arena->count++] = (piece){memory, mapped};
}

void *check_alloc(check_arena *arena, size_t count, size_t size) {
  void *memory = calloc(count == 0 ? 1 : count, size);
  if (memory == NULL) {
    out_of_memory();
  }
  keep(arena, memory, 0);
  return memory;
}

unsigned char *check_guarded(check_arena *arena, size_t bytes, int before) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t body = (bytes + page - 1) / page * page;
  size_t total = body + 2 * page;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  unsigned char *base = mmap(NULL, total, PROT_NONE, flags, -1, 0);
  /* Mapped once more, not unprotected: memcheck walks every byte of a range that is unprotected. */
  if (base == MAP_FAILED ||
      (body > 0 && mmap(base + page, body, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0) == MAP_FAILED)) {
    out_of_memory();
  }
  keep(arena, base, total);
  return before ? base + page : base + page + body - bytes;
}

unsigned char *check_unwritten(check_arena *arena, size_t alignment, size_t bytes) {
  unsigned char *memory = aligned_alloc(alignment, bytes);
  if (memory == NULL) {
    out_of_memory();
  }
  keep(arena, memory, 0);
  return memory;
}

size_t check_extent(int ndim, const int64_t *shape, const int64_t *strides, size_t element) {
  int64_t last = 0;
  for (int i = 0; i < ndim; i++) {
    if (shape[i] == 0) {
      return 0;
    }
    last += (shape[i] - 1) * strides[i];
  }
  return (size_t)(last + 1) * element;
}

static void compact_strides(int ndim, const int64_t *shape, int64_t *strides) {
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    strides[i] = stride;
    stride *= shape[i] > 0 ? shape[i] : 1;
  }
}

void check_strides(check_rng *rng, int stride_class, int ndim, const int64_t *shape, int64_t *strides) {
  int64_t step = stride_class == CHECK_GAPPED_ELEMENTS ? check_between(rng, 2, 3) : 1;
  int64_t row_gap = stride_class == CHECK_PADDED_ROWS ? check_between(rng, 1, 9) : 0;
  int64_t token_gap = stride_class == CHECK_PADDED_TOKENS ? check_between(rng, 1, 37) : 0;
  if (ndim < 2) {
    compact_strides(ndim, shape, strides);
    if (ndim == 1) {
      strides[0] = step;
    }
    return;
  }
  int64_t extent[4];
  for (int i = 0; i < ndim; i++) {
    extent[i] = shape[i] > 0 ? shape[i] : 1;
  }
  strides[ndim - 1] = step;
  int64_t row = extent[ndim - 1] * step + row_gap;
  if (ndim == 2) {
    strides[0] = row + token_gap;
    if (stride_class == CHECK_TRANSPOSED_HEADS) {
      strides[0] = 1;
      strides[1] = extent[0];
    }
    return;
  }
  if (stride_class == CHECK_TRANSPOSED_HEADS) { /* axis 1 outside axis 0 */
    strides[ndim - 2] = ndim == 3 ? row * extent[0] : row;
    strides[0] = ndim == 3 ? row : row * extent[ndim - 2] * extent[1];
    if (ndim == 4) {
      strides[1] = row * extent[ndim - 2];
    }
    return;
  }
  strides[ndim - 2] = row;
  for (int i = ndim - 3; i >= 0; i--) {
    strides[i] = strides[i + 1] * extent[i + 1] + (i == 0 ? token_gap : 0);
  }
}

void check_tensor_make(check_arena *arena, check_tensor *tensor, attn_dtype dtype, int ndim, const int64_t *shape,
                       const check_lie *lie, unsigned char *first) {
  memset(tensor, 0, sizeof *tensor);
  tensor->dtype = dtype;
  tensor->element = attn_dtype_bytes(dtype);
  for (int i = 0; i < ndim; i++) {
    tensor->shape[i] = shape[i];
  }
  compact_strides(ndim, shape, tensor->strides);
  if (lie->strides != NULL) {
    memcpy(tensor->strides, lie->strides, (size_t)ndim * sizeof *tensor->strides);
  }
  size_t bytes = check_extent(ndim, shape, tensor->strides, tensor->element);
  tensor->first = first != NULL ? first : check_guarded(arena, bytes, lie->before);
  tensor->num_segments = 1;
  tensor->segment_bytes = bytes;
  if (lie->far_blocks && bytes > 0) {
    tensor->num_segments = shape[0];
    tensor->segment_stride = (size_t)tensor->strides[0] * tensor->element;
    tensor->segment_bytes = check_extent(ndim - 1, shape + 1, tensor->strides + 1, tensor->element);
  }
  size_t offset = (size_t)lie->byte_offset * tensor->element;
  tensor->dl.data = (void *)((uintptr_t)tensor->first - offset);
  tensor->dl.byte_offset = offset;
  tensor->dl.device = (DLDevice){kDLCPU, 0};
  tensor->dl.ndim = ndim;
  tensor->dl.dtype = attn_dtype_to_dlpack(dtype);
  tensor->dl.shape = tensor->shape;
  tensor->dl.strides = lie->strides == NULL ? NULL : tensor->strides;
}

void *check_at(const check_tensor *tensor, int64_t i, int64_t j, int64_t k, int64_t l) {
  int64_t offset = i * tensor->strides[0] + j * tensor->strides[1] + k * tensor->strides[2] + l * tensor->strides[3];
  return tensor->first + offset * (int64_t)tensor->element;
}

void check_fill_poison(const check_tensor *tensor, check_poison poison) {
  for (int64_t s = 0; s < tensor->num_segments; s++) {
    unsigned char *bytes = tensor->first + (size_t)s * tensor->segment_stride;
    if (poison != CHECK_POISON_INF || tensor->element == 8 || tensor->dtype == ATTN_DTYPE_INT32) {
      memset(bytes, poison == CHECK_POISON_BIG ? 0x7F : 0xFF, tensor->segment_bytes);
      continue;
    }
    unsigned char pattern[4];
    check_store(pattern, tensor->dtype, INFINITY);
    for (size_t i = 0; i < tensor->segment_bytes; i++) {
      bytes[i] = pattern[i % tensor->element];
    }
  }
}

static unsigned char canary(size_t position, unsigned salt) {
  return (unsigned char)(0x95u + salt * 61u + (unsigned)position * 29u + (unsigned)(position >> 8) * 7u);
}

void check_fill_canary(const check_tensor *tensor, unsigned salt) {
  for (int64_t s = 0; s < tensor->num_segments; s++) {
    size_t start = (size_t)s * tensor->segment_stride;
    for (size_t i = 0; i < tensor->segment_bytes; i++) {
      tensor->first[start + i] = canary(start + i, salt);
    }
  }
}

int64_t check_canary_broken(const check_tensor *tensor, unsigned salt) {
  for (int64_t s = 0; s < tensor->num_segments; s++) {
    size_t start = (size_t)s * tensor->segment_stride;
    for (size_t i = 0; i < tensor->segment_bytes; i++) {
      if (tensor->first[start + i] != canary(start + i, salt)) {
        return (int64_t)(start + i);
      }
    }
  }
  return -1;
}

void check_canary_restore(const check_tensor *tensor, void *element, unsigned salt) {
  unsigned char *bytes = element;
  size_t position = (size_t)(bytes - tensor->first);
  for (size_t i = 0; i < tensor->element; i++) {
    bytes[i] = canary(position + i, salt);
  }
}

void check_snapshot(check_arena *arena, check_tensor *tensor) {
  if (tensor->first == NULL || tensor->segment_bytes == 0) {
    return;
  }
  if (tensor->snapshot == NULL) {
    tensor->snapshot = check_alloc(arena, (size_t)tensor->num_segments, tensor->segment_bytes);
  }
  for (int64_t s = 0; s < tensor->num_segments; s++) {
    memcpy(tensor->snapshot + (size_t)s * tensor->segment_bytes, tensor->first + (size_t)s * tensor->segment_stride,
           tensor->segment_bytes);
  }
}

int64_t check_changed(const check_tensor *tensor) {
  for (int64_t s = 0; tensor->snapshot != NULL && s < tensor->num_segments; s++) {
    const unsigned char *now = tensor->first + (size_t)s * tensor->segment_stride;
    const unsigned char *then = tensor->snapshot + (size_t)s * tensor->segment_bytes;
    if (memcmp(now, then, tensor->segment_bytes) != 0) {
      size_t i = 0;
      while (now[i] == then[i]) {
        i++;
      }
      return (int64_t)((size_t)s * tensor->segment_stride + i);
    }
  }
  return -1;
}

const unsigned char *check_old_bytes(const check_tensor *tensor, const void *element) {
  size_t offset = (size_t)((const unsigned char *)element - tensor->first);
  size_t segment = tensor->num_segments > 1 ? offset / tensor->segment_stride : 0;
  return tensor->snapshot + segment * tensor->segment_bytes + (offset - segment * tensor->segment_stride);
}
