/* SPDX-License-Identifier: Apache-2.0 */
/* cache.h, attn_cache_copy and attn_cache_swap: whole blocks by strides, every status; nothing but the elements of the
 * blocks named changes by one byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { COPY, SWAP };
enum { BLOCKS = 6, PAIRS = 32 };

/* Two pools of one shape. Side 0 is source, 1 target; `in` is the memory that a side's tensor lies in. */
typedef struct copying {
  attn_context *context;
  guarded memory[2];
  int in[2];
  tensor pool[2];
  tensor t_map;
  int64_t map[2 * PAIRS];
  attn_cache_copy_args args;
} copying;

static void fill(guarded *memory, uint32_t seed) {
  for (size_t i = 0; i < memory->bytes; i++) {
    memory->data[i] = (unsigned char)random_bits(&seed);
  }
}

/* Compact pools over memories of these many bytes each (0: what the pools need). */
static void copying_open(copying *c, const char *backend, attn_dtype dtype, const int64_t *shape, size_t bytes) {
  attn_cache_copy_args args = ATTN_CACHE_COPY_INIT;
  size_t needed = attn_dtype_bytes(dtype) * (size_t)(shape[0] * shape[1] * shape[2] * shape[3]);
  memset(c, 0, sizeof *c);
  c->context = open_context(1);
  for (int side = 0; side < 2; side++) {
    c->memory[side] = guard_make(bytes > 0 ? bytes : needed);
    fill(&c->memory[side], 7u + (uint32_t)side);
    c->in[side] = side;
    tensor_over(&c->pool[side], c->memory[side].data, dtype, 4, shape);
  }
  tensor_2(&c->t_map, c->map, ATTN_DTYPE_INT64, 0, 2);
  c->args = args;
  c->args.backend = backend;
  c->args.source = &c->pool[0].t;
  c->args.target = &c->pool[1].t;
  c->args.block_map = &c->t_map.t;
}

static void small_open(copying *c, const char *backend) {
  const int64_t shape[4] = {BLOCKS, 4, 2, 5};
  copying_open(c, backend, ATTN_DTYPE_FLOAT32, shape, 0);
}

static void copying_close(copying *c) {
  attn_context_destroy(c->context);
  guard_free(&c->memory[0]);
  guard_free(&c->memory[1]);
}

static void pairs(copying *c, int64_t count, const int64_t *map) {
  memcpy(c->map, map, (size_t)count * 2 * sizeof *map);
  c->t_map.shape[0] = count;
}

#define PAIRS_OF(c, ...)                                                                                               \
  pairs((c), (int64_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)) / 2, (const int64_t[]){__VA_ARGS__})

/* Where element `index` (row-major over the inner axes) of a block lies in the memory of its side. */
static size_t place(const copying *c, int side, const DLTensor *t, int64_t block, int64_t index) {
  size_t element = (size_t)(t->dtype.bits / 8);
  int64_t offset = 0;
  int64_t compact = 1;
  for (int32_t axis = t->ndim - 1; axis > 0; axis--) {
    offset += index % t->shape[axis] * (t->strides != NULL ? t->strides[axis] : compact);
    compact *= t->shape[axis];
    index /= t->shape[axis];
  }
  offset += block * (t->strides != NULL ? t->strides[0] : compact);
  const unsigned char *first = (const unsigned char *)t->data + t->byte_offset;
  return (size_t)(first - c->memory[c->in[side]].data) + (size_t)offset * element;
}

/* What the memories have to be after the call. */
static void apply(const copying *c, int kind, unsigned char *const *image) {
  const DLTensor *source = c->args.source;
  const DLTensor *target = c->args.target;
  size_t element = (size_t)(source->dtype.bits / 8);
  int64_t count = 1;
  for (int32_t axis = 1; axis < source->ndim; axis++) {
    count *= source->shape[axis];
  }
  for (int64_t i = 0; i < c->t_map.shape[0] * count; i++) {
    const int64_t *pair = &c->map[i / count * c->t_map.strides[0]];
    size_t from = place(c, 0, source, pair[0], i % count);
    size_t to = place(c, 1, target, pair[c->t_map.strides[1]], i % count);
    memcpy(image[c->in[1]] + to, c->memory[c->in[0]].data + from, element);
    if (kind == SWAP) {
      memcpy(image[c->in[0]] + from, c->memory[c->in[1]].data + to, element);
    }
  }
}

/* Call, and compare every byte of both memories. A refused call changes none. */
static void check(copying *c, int kind, attn_status status, const char *named) {
  unsigned char *image[2];
  for (int m = 0; m < 2; m++) {
    image[m] = malloc(c->memory[m].bytes + 1);
    CHECK(image[m] != NULL, "no memory");
    memcpy(image[m], c->memory[m].data, c->memory[m].bytes);
  }
  if (status == ATTN_OK) {
    apply(c, kind, image);
  }
  harness_reset();
  attn_status got = kind == COPY ? attn_cache_copy(c->context, &c->args, &why) //
                                 : attn_cache_swap(c->context, &c->args, &why);
  harness_expect(got, status, named, __FILE__, __LINE__);
  for (int m = 0; m < 2; m++) {
    CHECK(memcmp(image[m], c->memory[m].data, c->memory[m].bytes) == 0, "memory %d has other bytes than it should", m);
    free(image[m]);
  }
}

static void both(copying *c, attn_status status, const char *named) {
  check(c, COPY, status, named);
  check(c, SWAP, status, named);
}

/* ---- What moves */

static void every_element_type(const char *backend) {
  static const attn_dtype types[] = {
#define ROW(name, value, spelling, bytes, code, bits) name,
      ATTN_DTYPE_LIST(ROW)
#undef ROW
  };
  const int64_t shape[4] = {BLOCKS, 3, 2, 7};
  for (size_t i = 0; i < 2 * sizeof types / sizeof types[0]; i++) {
    copying c;
    copying_open(&c, backend, types[i / 2], shape, 0);
    c.args.layout = i % 2 == 0 ? ATTN_LAYOUT_NHD : ATTN_LAYOUT_HND;
    PAIRS_OF(&c, 5, 0, 1, 1, 0, 4);
    both(&c, ATTN_OK, NULL);
    copying_close(&c);
  }
}

static void inside_one_pool(const char *backend) {
  copying c;
  small_open(&c, backend);
  c.args.target = c.args.source;
  c.in[1] = 0;
  PAIRS_OF(&c, 0, 3, 0, 5, 2, 4, 1, 1); /* one source, two targets; a block onto itself */
  check(&c, COPY, ATTN_OK, NULL);
  PAIRS_OF(&c, 0, 3, 2, 2, 5, 4);
  check(&c, SWAP, ATTN_OK, NULL);
  c.args.target = &c.pool[1].t; /* another tensor over the same memory is the same pool */
  c.pool[1].t.data = c.pool[0].t.data;
  PAIRS_OF(&c, 0, 1, 1, 2);
  check(&c, COPY, ATTN_E_INDEX, "block_map");
  PAIRS_OF(&c, 0, 1, 3, 2);
  both(&c, ATTN_OK, NULL);
  copying_close(&c);
}

/* In two pools the same number on both sides is two blocks. */
static void same_numbers_in_two_pools(const char *backend) {
  copying c;
  small_open(&c, backend);
  PAIRS_OF(&c, 0, 0, 1, 1, 2, 3, 3, 2);
  both(&c, ATTN_OK, NULL);
  PAIRS_OF(&c, 4, 0, 4, 1, 4, 4); /* a source may be read often */
  check(&c, COPY, ATTN_OK, NULL);
  copying_close(&c);
}

/* [blocks, layers, K | V, positions, heads, size] with a padded page end: one layer's K moves, all else stays. */
static void layers_inside_a_block(const char *backend) {
  enum { LAYERS = 3, S = 4, H = 2, D = 5, PAGE = LAYERS * 2 * S * H * D + 11 };
  const int64_t shape[4] = {BLOCKS, S, H, D};
  copying c;
  copying_open(&c, backend, ATTN_DTYPE_FLOAT16, shape, BLOCKS * PAGE * 2);
  for (int64_t part = 0; part < LAYERS * 2; part++) {
    for (int side = 0; side < 2; side++) {
      c.pool[side].strides[0] = PAGE;
      c.pool[side].t.byte_offset = (uint64_t)part * S * H * D * 2;
    }
    PAIRS_OF(&c, 5, 2, 0, 0, 3, 4);
    both(&c, ATTN_OK, NULL);
  }
  c.pool[0].t.byte_offset = 0; /* from layer to layer of one allocation: two pools that do not overlap */
  c.pool[1].t.data = c.memory[0].data;
  c.in[1] = 0;
  PAIRS_OF(&c, 5, 2, 0, 0, 2, 4);
  both(&c, ATTN_OK, NULL);
  copying_close(&c);
}

/* Positions and heads in any order, gaps between elements, rows, positions and blocks, on each side its own. */
static void strides(const char *backend) {
  static const int64_t forms[][4] = {
      {40, 10, 5, 1},   /* compact */
      {47, 10, 5, 1},   /* padded blocks */
      {64, 16, 7, 1},   /* padded rows and positions */
      {40, 5, 20, 1},   /* heads outside positions */
      {90, 20, 10, 2},  /* gaps between elements */
      {10, 60, 5, 1},   /* blocks inside positions */
      {1, 60, 30, 6},   /* blocks inside all */
      {100, 1, 50, 10}, /* positions inside all */
  };
  enum { FORMS = sizeof forms / sizeof forms[0] };
  const int64_t shape[4] = {BLOCKS, 4, 2, 5};
  for (int i = 0; i < FORMS * FORMS; i++) {
    copying c;
    copying_open(&c, backend, ATTN_DTYPE_BFLOAT16, shape, 2 * 700);
    memcpy(c.pool[0].strides, forms[i % FORMS], sizeof forms[0]);
    memcpy(c.pool[1].strides, forms[i / FORMS], sizeof forms[0]);
    PAIRS_OF(&c, 5, 2, 0, 1, 2, 0);
    both(&c, ATTN_OK, NULL);
    copying_close(&c);
  }
}

static void other_forms_of_a_tensor(const char *backend) {
  copying c;
  small_open(&c, backend);
  PAIRS_OF(&c, 5, 2, 0, 1);
  c.pool[0].t.strides = NULL;
  both(&c, ATTN_OK, NULL);
  c.pool[1].t.byte_offset = 4096;
  c.pool[1].t.data = c.memory[1].data - 4096;
  both(&c, ATTN_OK, NULL);
  c.pool[0].t.strides = c.pool[0].strides;
  c.pool[0].strides[2] = 0; /* a source that repeats itself: not for a swap, which writes it */
  check(&c, COPY, ATTN_OK, NULL);
  check(&c, SWAP, ATTN_E_STRIDE, "source");
  tensor_3(&c.pool[0], c.memory[0].data, ATTN_DTYPE_FLOAT32, BLOCKS, 4, 10); /* latent rows */
  tensor_3(&c.pool[1], c.memory[1].data, ATTN_DTYPE_FLOAT32, BLOCKS, 4, 10);
  both(&c, ATTN_OK, NULL);
  c.t_map.strides[0] = 3; /* a map with gaps, then with its columns apart */
  memcpy(c.map, ((const int64_t[]){5, 2, -7, 0, 1, -7, 3, 4}), 8 * sizeof *c.map);
  c.t_map.shape[0] = 3;
  both(&c, ATTN_OK, NULL);
  c.t_map.strides[1] = 0;
  both(&c, ATTN_OK, NULL);
  copying_close(&c);
}

static void nothing_to_move(const char *backend) {
  copying c;
  small_open(&c, backend);
  both(&c, ATTN_OK, NULL);                     /* no pair */
  c.pool[0].shape[3] = c.pool[1].shape[3] = 0; /* blocks without elements */
  c.pool[0].t.data = c.pool[1].t.data = NULL;
  PAIRS_OF(&c, 5, 2);
  harness_reset();
  harness_expect(attn_cache_copy(c.context, &c.args, &why), ATTN_OK, NULL, __FILE__, __LINE__);
  harness_expect(attn_cache_swap(c.context, &c.args, &why), ATTN_OK, NULL, __FILE__, __LINE__);
  PAIRS_OF(&c, 6, 2);
  both(&c, ATTN_E_INDEX, "block_map[0][0]");
  c.pool[0].shape[0] = c.pool[1].shape[0] = 0; /* no blocks */
  both(&c, ATTN_E_INDEX, "block_map[0][0]");
  c.t_map.shape[0] = 0;
  both(&c, ATTN_OK, NULL);
  copying_close(&c);
}

/* Enough to wake threads: every number of them gives the same bytes. */
static void threads(const char *backend) {
  static const int32_t counts[] = {1, 2, 5};
  const int64_t shape[4] = {PAIRS, 16, 4, 40};
  for (size_t t = 0; t < 3; t++) {
    copying c;
    copying_open(&c, backend, ATTN_DTYPE_FLOAT32, shape, 0);
    attn_context_destroy(c.context);
    c.context = open_context(counts[t]);
    for (int64_t i = 0; i < PAIRS; i++) {
      c.map[2 * i] = i * 5 % PAIRS;
      c.map[2 * i + 1] = i * 11 % PAIRS;
    }
    c.t_map.shape[0] = PAIRS;
    both(&c, ATTN_OK, NULL);
    c.args.target = c.args.source;
    c.in[1] = 0;
    for (int64_t i = 0; i < PAIRS; i++) {
      c.map[i] = i * 5 % PAIRS;
    }
    c.t_map.shape[0] = PAIRS / 2;
    both(&c, ATTN_OK, NULL);
    copying_close(&c);
  }
}

/* ---- What is refused */

/* Every entry is judged before a byte is written, whichever place it stands in. */
static void ids_outside(const char *backend) {
  static const int64_t bad[] = {-1, BLOCKS, INT64_MAX, INT64_MIN, (INT64_C(1) << 32) + 1};
  for (size_t i = 0; i < 6 * sizeof bad / sizeof bad[0]; i++) {
    char named[32];
    copying c;
    small_open(&c, backend);
    PAIRS_OF(&c, 5, 2, 0, 1, 2, 4);
    c.map[i % 6] = bad[i / 6];
    snprintf(named, sizeof named, "block_map[%d][%d]: %lld", (int)(i % 6 / 2), (int)(i % 2), (long long)bad[i / 6]);
    both(&c, ATTN_E_INDEX, named);
    c.args.target = c.args.source;
    c.in[1] = 0;
    both(&c, ATTN_E_INDEX, named);
    copying_close(&c);
  }
}

static void blocks_named_twice(const char *backend) {
  copying c;
  small_open(&c, backend);
  PAIRS_OF(&c, 0, 3, 1, 2, 2, 3);
  both(&c, ATTN_E_INDEX, "block_map[2][1]: block 3");
  PAIRS_OF(&c, 0, 3, 1, 2, 0, 4);
  check(&c, SWAP, ATTN_E_INDEX, "block_map[2][0]: block 0");
  check(&c, COPY, ATTN_OK, NULL);
  c.args.target = c.args.source;
  c.in[1] = 0;
  PAIRS_OF(&c, 0, 3, 1, 2, 2, 3);
  both(&c, ATTN_E_INDEX, "block_map");
  PAIRS_OF(&c, 0, 1, 1, 2); /* a chain */
  both(&c, ATTN_E_INDEX, "block 1");
  PAIRS_OF(&c, 1, 2, 0, 1);
  both(&c, ATTN_E_INDEX, "block 1");
  PAIRS_OF(&c, 0, 1, 1, 0); /* a ring */
  both(&c, ATTN_E_INDEX, "block_map");
  PAIRS_OF(&c, 0, 1, 0, 2);
  check(&c, SWAP, ATTN_E_INDEX, "block 0");
  check(&c, COPY, ATTN_OK, NULL);
  PAIRS_OF(&c, 3, 3, 3, 3, 3, 4, 5, 5); /* what does nothing is in nobody's way */
  both(&c, ATTN_OK, NULL);
  PAIRS_OF(&c, 3, 3, 4, 3);
  both(&c, ATTN_OK, NULL);
  copying_close(&c);
}

/* The same among many blocks, near and far from each other. */
static void named_twice_among_many(const char *backend) {
  enum { MANY = 200000, STEP = 7 };
  const int64_t shape[4] = {MANY, 1, 1, 1};
  int64_t *map = calloc(2 * MANY / STEP, sizeof *map);
  uint32_t seed = 5;
  copying c;
  CHECK(map != NULL, "no memory");
  copying_open(&c, backend, ATTN_DTYPE_UINT8, shape, 0);
  tensor_2(&c.t_map, map, ATTN_DTYPE_INT64, MANY / STEP, 2);
  for (int64_t i = 0; i < MANY / STEP; i++) {
    map[2 * i] = i * 11 * STEP % MANY; /* 11 and the count have no common factor */
    map[2 * i + 1] = (MANY - 1) - i * STEP;
  }
  EXPECT_OK(attn_cache_copy(c.context, &c.args, &why));
  EXPECT_OK(attn_cache_swap(c.context, &c.args, &why));
  for (int round = 0; round < 50; round++) {
    int side = round % 2;
    int64_t a = random_bits(&seed) % (MANY / STEP);
    int64_t b = (a + 1 + random_bits(&seed) % (MANY / STEP - 1)) % (MANY / STEP);
    int64_t kept = map[2 * a + side];
    map[2 * a + side] = map[2 * b + side];
    EXPECT_STATUS(attn_cache_swap(c.context, &c.args, &why), ATTN_E_INDEX, "block_map");
    if (side == 1) {
      EXPECT_STATUS(attn_cache_copy(c.context, &c.args, &why), ATTN_E_INDEX, "block_map");
    }
    map[2 * a + side] = kept;
  }
  free(map);
  copying_close(&c);
}

/* One pair, repeated by a stride of 0, costs no memory: its extent may be anything, and nothing walks it. */
static void broadcast_pairs(const char *backend) {
  copying c;
  small_open(&c, backend);
  PAIRS_OF(&c, 2, 4);
  c.t_map.shape[0] = INT64_C(1) << 40;
  c.t_map.strides[0] = 0;
  EXPECT_STATUS(attn_cache_copy(c.context, &c.args, &why), ATTN_E_INDEX, "block_map");
  EXPECT_STATUS(attn_cache_swap(c.context, &c.args, &why), ATTN_E_INDEX, "block_map");
  c.args.target = c.args.source;
  c.map[1] = 2;
  EXPECT_OK(attn_cache_copy(c.context, &c.args, &why));
  EXPECT_OK(attn_cache_swap(c.context, &c.args, &why));
  c.map[0] = c.map[1] = -2;
  EXPECT_STATUS(attn_cache_copy(c.context, &c.args, &why), ATTN_E_INDEX, "block_map[0][0]: -2");
  copying_close(&c);
}

static void every_tensor(const char *backend) {
  copying c;
  small_open(&c, backend);
  PAIRS_OF(&c, 5, 2, 0, 1);
  const struct {
    tensor *t;
    const DLTensor **field;
    const char *name;
  } list[] = {
      {&c.pool[0], &c.args.source, "source"},
      {&c.pool[1], &c.args.target, "target"},
      {&c.t_map, &c.args.block_map, "block_map"},
  };
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    tensor *t = list[i].t;
    DLTensor kept = t->t;
    *list[i].field = NULL;
    both(&c, ATTN_E_NULL, list[i].name);
    *list[i].field = &t->t;
    t->t.data = NULL;
    both(&c, ATTN_E_NULL, list[i].name);
    t->t = kept;
    t->t.ndim = 5;
    both(&c, ATTN_E_SHAPE, list[i].name);
    t->t = kept;
    t->t.dtype.lanes = 2;
    both(&c, ATTN_E_DTYPE, list[i].name);
    t->t = kept;
    t->t.device.device_type = kDLCUDA;
    both(&c, ATTN_E_TENSOR_DEVICE, list[i].name);
    t->t = kept;
    t->t.byte_offset = 2;
    both(&c, ATTN_E_ALIGN, list[i].name);
    t->t = kept;
    int64_t stride = t->strides[0];
    t->strides[0] = -1;
    both(&c, ATTN_E_STRIDE, list[i].name);
    t->strides[0] = INT64_MAX / 4;
    both(&c, ATTN_E_OVERFLOW, list[i].name);
    t->strides[0] = stride;
    for (int32_t axis = 0; axis < kept.ndim; axis++) {
      int64_t extent = t->shape[axis];
      t->shape[axis] = -1;
      both(&c, ATTN_E_SHAPE, list[i].name);
      if (i == 1 || (i == 2 && axis == 1)) {
        t->shape[axis] = extent + 1;
        both(&c, ATTN_E_SHAPE, list[i].name);
      }
      t->shape[axis] = extent;
    }
  }
  c.pool[1].strides[0] = 0; /* elements of a written pool that share an address */
  both(&c, ATTN_E_STRIDE, "target");
  c.pool[1].strides[0] = 39;
  both(&c, ATTN_E_STRIDE, "target");
  c.pool[1].strides[0] = 40;
  c.pool[1].t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT32); /* four bytes too, but another type */
  both(&c, ATTN_E_DTYPE, "target");
  c.pool[1].t.dtype = c.pool[0].t.dtype;
  c.t_map.t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT32);
  both(&c, ATTN_E_DTYPE, "block_map");
  c.t_map.t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT64);
  both(&c, ATTN_OK, NULL);
  copying_close(&c);
}

static void pools_that_overlap(const char *backend) {
  copying c;
  small_open(&c, backend);
  PAIRS_OF(&c, 0, 1);
  c.pool[0].shape[0] = c.pool[1].shape[0] = 3;
  c.in[1] = 0;
  c.pool[1].t.data = c.memory[0].data + 3 * 40 * 4; /* behind it */
  both(&c, ATTN_OK, NULL);
  c.pool[1].t.data = c.memory[0].data + 2 * 40 * 4; /* its first block is source's last */
  both(&c, ATTN_E_OVERLAP, "target");
  c.pool[1].t.data = c.memory[0].data; /* the same memory, other strides */
  c.pool[1].strides[0] = 80;
  both(&c, ATTN_E_OVERLAP, "target");
  c.pool[1].strides[0] = 40;
  c.pool[1].t.data = c.memory[1].data;
  c.in[1] = 1;
  c.t_map.t.data = c.memory[1].data; /* a map in a pool that is written */
  both(&c, ATTN_E_OVERLAP, "target");
  c.t_map.t.data = c.memory[0].data;
  memcpy(c.memory[0].data, c.map, sizeof(int64_t[2]));
  check(&c, SWAP, ATTN_E_OVERLAP, "source");
  check(&c, COPY, ATTN_OK, NULL); /* copy only reads it */
  copying_close(&c);
}

static void other_arguments(const char *backend) {
  copying c;
  small_open(&c, backend);
  PAIRS_OF(&c, 5, 2);
  EXPECT_STATUS(attn_cache_copy(NULL, &c.args, &why), ATTN_E_NULL, "context");
  EXPECT_STATUS(attn_cache_swap(NULL, &c.args, &why), ATTN_E_NULL, "context");
  EXPECT_STATUS(attn_cache_copy(c.context, NULL, &why), ATTN_E_NULL, "args");
  EXPECT_STATUS(attn_cache_swap(c.context, NULL, &why), ATTN_E_NULL, "args");
  c.args.size = 10;
  both(&c, ATTN_E_STRUCT_SIZE, "args");
  c.args.size = sizeof c.args;
  c.args.layout = (attn_layout)2;
  both(&c, ATTN_E_RANGE, "layout");
  c.args.layout = ATTN_LAYOUT_NHD;
  c.args.backend = "NO_SUCH_BACKEND";
  both(&c, ATTN_E_NAME, "NO_SUCH_BACKEND");
  c.args.backend = "TRITON_ATTN";
  both(&c, ATTN_E_BACKEND, "TRITON_ATTN");
  c.args.backend = NULL;
  both(&c, ATTN_OK, NULL);
  copying_close(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(every_element_type),
      BACKEND_TEST(inside_one_pool),
      BACKEND_TEST(same_numbers_in_two_pools),
      BACKEND_TEST(layers_inside_a_block),
      BACKEND_TEST(strides),
      BACKEND_TEST(other_forms_of_a_tensor),
      BACKEND_TEST(nothing_to_move),
      BACKEND_TEST(threads),
      BACKEND_TEST(ids_outside),
      BACKEND_TEST(blocks_named_twice),
      BACKEND_TEST(named_twice_among_many),
      BACKEND_TEST(broadcast_pairs),
      BACKEND_TEST(every_tensor),
      BACKEND_TEST(pools_that_overlap),
      BACKEND_TEST(other_arguments),
  };
  return cmocka_run_group_tests_name("cache_copy", tests, NULL, NULL);
}
