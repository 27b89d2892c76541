/* SPDX-License-Identifier: Apache-2.0 */
/* quantising.c: see quantising.h. The model finds a byte by its own arithmetic: (block, offset, head, byte) times the
   strides that it chose itself. */
#include "quantising.h"

#include <stdlib.h>
#include <string.h>

int format_has_row_scale(attn_format format) {
  return format >= ATTN_FORMAT_INT8_PER_TOKEN_HEAD && format <= ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
}

int format_is_static(attn_format format) {
  return format == ATTN_FORMAT_FP8_E4M3 || format == ATTN_FORMAT_FP8_E5M2;
}

/* Elements of a row of the pool tensor. */
static int64_t row_elements(const quantising_side *side) {
  int64_t codes = side->format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? (side->size + 1) / 2 : side->size;
  return !format_has_row_scale(side->format) || side->separate ? codes : (codes + 3) / 4 * 4 + 4;
}

static attn_dtype pool_dtype(const quantising_side *side) {
  switch (side->format) {
  case ATTN_FORMAT_FLOAT32:
    return ATTN_DTYPE_FLOAT32;
  case ATTN_FORMAT_FLOAT16:
    return ATTN_DTYPE_FLOAT16;
  case ATTN_FORMAT_BFLOAT16:
    return ATTN_DTYPE_BFLOAT16;
  case ATTN_FORMAT_FP8_E4M3:
    return side->size % 2 != 0 ? ATTN_DTYPE_UINT8 : ATTN_DTYPE_FP8_E4M3; /* both spellings */
  case ATTN_FORMAT_FP8_E5M2:
    return side->size % 2 != 0 ? ATTN_DTYPE_UINT8 : ATTN_DTYPE_FP8_E5M2;
  default:
    return ATTN_DTYPE_UINT8;
  }
}

/* Strides in elements for rows of `row` elements, the element's own and the row's padding given. */
static int64_t lay_out(const quantising *q, tensor *t, int32_t ndim, int64_t row, int64_t gap, int64_t pad,
                       int64_t block_pad) {
  int hnd = q->layout == ATTN_LAYOUT_HND;
  int64_t inner = row * gap + pad;
  int64_t heads = QUANTISING_HEADS, block = QUANTISING_BLOCK;
  t->shape[0] = QUANTISING_BLOCKS;
  t->shape[1] = hnd ? heads : block;
  t->shape[2] = hnd ? block : heads;
  t->strides[2] = inner;
  t->strides[1] = inner * t->shape[2];
  t->strides[0] = t->strides[1] * t->shape[1] + block_pad;
  if (ndim == 4) {
    t->shape[3] = row;
    t->strides[3] = gap;
  }
  return t->strides[0];
}

static void make_tensor(tensor *t, attn_dtype dtype, int32_t ndim) {
  int64_t ones[4] = {1, 1, 1, 1};
  tensor_over(t, NULL, dtype, ndim, ones);
}

static void randomise(guarded *memory, uint32_t *seed) {
  for (size_t i = 0; i < memory->bytes; i++) {
    memory->data[i] = (unsigned char)random_bits(seed);
  }
}

/* The pool and scale tensors; bytes of a block of each. */
static void lay_side(const quantising *q, quantising_side *side, quantising_lay lay, int64_t *pool_block,
                     int64_t *scale_block) {
  int64_t element = (int64_t)attn_dtype_bytes(pool_dtype(side));
  int64_t gap = lay == LAY_GAPS ? 2 : 1;
  int64_t pad = lay == LAY_PADDED ? 3 : lay == LAY_GAPS ? 1 : 0;
  make_tensor(&side->pool, pool_dtype(side), 4);
  make_tensor(&side->scale, ATTN_DTYPE_FLOAT32, 3);
  *pool_block = lay_out(q, &side->pool, 4, row_elements(side), gap, pad, lay == LAY_PADDED ? 7 : 0) * element;
  *scale_block = 4 * lay_out(q, &side->scale, 3, 1, 1, lay == LAY_PADDED || lay == LAY_GAPS ? 1 : 0, 0);
  side->scale_given = NULL;
  if (side->separate) {
    side->scale_given = &side->scale.t;
  } else if (side->num_statics > 0) {
    tensor_1(&side->scale, side->statics, ATTN_DTYPE_FLOAT32, side->num_statics);
    side->scale_given = &side->scale.t;
  }
}

/* All in one allocation: | K | V | K's scales | V's scales |, each at a multiple of 4, block after block. */
static void place_shared(quantising *q, const int64_t bytes[4]) {
  int64_t at[4], step = 0;
  for (int i = 0; i < 4; i++) {
    at[i] = step;
    step += (bytes[i] + 3) / 4 * 4;
  }
  q->memory[0] = guard_make((size_t)(step * QUANTISING_BLOCKS));
  for (int i = 0; i < 4; i++) {
    quantising_side *side = &q->side[i % 2];
    if (i < 2 || side->separate) {
      tensor *t = i < 2 ? &side->pool : &side->scale;
      t->t.data = q->memory[0].data;
      t->t.byte_offset = (uint64_t)at[i];
      t->strides[0] = step / (int64_t)(t->t.dtype.bits / 8);
    }
  }
}

static void place_apart(quantising *q, const int64_t bytes[4]) {
  for (int i = 0; i < 4; i++) {
    quantising_side *side = &q->side[i % 2];
    if (i < 2 || side->separate) {
      tensor *t = i < 2 ? &side->pool : &side->scale;
      q->memory[i] = guard_make((size_t)(bytes[i] * QUANTISING_BLOCKS));
      t->t.data = q->memory[i].data;
    }
  }
}

void quantising_open(quantising *q, quantising_lay lay) {
  int64_t bytes[4];
  uint32_t seed = 77;
  memset(q->memory, 0, sizeof q->memory);
  memset(q->model, 0, sizeof q->model);
  for (int i = 0; i < 2; i++) {
    quantising_side *side = &q->side[i];
    int64_t count = (int64_t)QUANTISING_TOKENS * QUANTISING_HEADS * side->size;
    lay_side(q, side, lay, &bytes[i], &bytes[i + 2]);
    side->values = malloc((size_t)count * sizeof(float));
    assert_non_null(side->values);
    for (int64_t j = 0; j < count; j++) {
      side->values[j] = random_normal(&seed);
    }
    tensor_3(&side->rows, side->values, ATTN_DTYPE_FLOAT32, QUANTISING_TOKENS, QUANTISING_HEADS, side->size);
  }
  if (lay == LAY_SHARED) {
    place_shared(q, bytes);
  } else {
    place_apart(q, bytes);
  }
  for (int i = 0; i < 4; i++) {
    randomise(&q->memory[i], &seed);
    q->model[i] = q->memory[i].bytes > 0 ? malloc(q->memory[i].bytes) : NULL;
    if (q->model[i] != NULL) {
      memcpy(q->model[i], q->memory[i].data, q->memory[i].bytes);
    }
  }
  for (int64_t t = 0; t < QUANTISING_TOKENS; t++) {
    q->slots[t] = t == 2 ? -1 : (t * 7 + 4) % (QUANTISING_BLOCKS * QUANTISING_BLOCK);
  }
  tensor_1(&q->t_slots, q->slots, ATTN_DTYPE_INT64, QUANTISING_TOKENS);
}

void quantising_close(quantising *q) {
  for (int i = 0; i < 4; i++) {
    free(q->model[i]);
    if (q->memory[i].base != NULL) {
      guard_free(&q->memory[i]);
    }
  }
  free(q->side[0].values);
  free(q->side[1].values);
}

attn_cache_write_args quantising_write(const quantising *q) {
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  args.backend = q->backend;
  args.layout = q->layout;
  args.k_format = q->side[0].format;
  args.v_format = q->side[1].format;
  args.k = &q->side[0].rows.t;
  args.v = &q->side[1].rows.t;
  args.slot_mapping = &q->t_slots.t;
  args.k_cache = &q->side[0].pool.t;
  args.v_cache = &q->side[1].pool.t;
  args.k_scale = q->side[0].scale_given;
  args.v_scale = q->side[1].scale_given;
  return args;
}

/* The model's byte for a byte of the memory that `t` lies in. */
static unsigned char *model_of(const quantising *q, const tensor *t, int64_t offset) {
  for (int i = 0; i < 4; i++) {
    if (q->memory[i].data != NULL && t->t.data == q->memory[i].data) {
      return q->model[i] + (int64_t)t->t.byte_offset + offset;
    }
  }
  fail();
  return NULL;
}

static int64_t row_at(const quantising *q, const tensor *t, int64_t slot, int64_t head) {
  int hnd = q->layout == ATTN_LAYOUT_HND;
  return slot / QUANTISING_BLOCK * t->strides[0] + slot % QUANTISING_BLOCK * t->strides[hnd ? 2 : 1] +
         head * t->strides[hnd ? 1 : 2];
}

/* One row's codes and scale, quantised in memory of their own. */
static void quantise_apart(const quantising_side *side, int64_t head, const float *from, unsigned char *codes,
                           unsigned char *scale) {
  static float values[ATTN_ROW_MAX];
  float given = side->num_statics == 0 ? 1.0f : side->statics[side->num_statics == 1 ? 0 : head];
  attn_rows rows;
  attn_row to = {codes, 1, scale, 1};
  memset(&rows, 0, sizeof rows);
  rows.facts = attn_format_of(side->format);
  rows.size = side->size;
  rows.separate = side->separate;
  memcpy(values, from, (size_t)side->size * sizeof(float));
  if (format_has_row_scale(side->format)) {
    attn_quantise_row(&rows, &to, values);
  } else if (format_is_static(side->format)) {
    to.scale = (unsigned char *)&given;
    attn_quantise_part(&rows, &to, 0, side->size, values);
  } else {
    for (int32_t i = 0; i < side->size; i++) {
      store_element(codes, pool_dtype(side), i, values[i]);
    }
  }
}

void quantising_expect(quantising *q, int64_t t) {
  static unsigned char codes[ATTN_ROW_MAX * 4 + 8];
  unsigned char scale[4];
  for (int64_t head = 0; head < QUANTISING_HEADS; head++) {
    for (int i = 0; i < 2; i++) {
      const quantising_side *side = &q->side[i];
      int64_t element = (int64_t)attn_dtype_bytes(pool_dtype(side));
      int64_t row = row_elements(side);
      quantise_apart(side, head, side->values + (t * QUANTISING_HEADS + head) * side->size, codes, scale);
      if (format_has_row_scale(side->format) && !side->separate) {
        memcpy(codes + row - 4, scale, 4);
      }
      for (int64_t e = 0; e < row; e++) {
        int64_t at = (row_at(q, &side->pool, q->slots[t], head) + e * side->pool.strides[3]) * element;
        memcpy(model_of(q, &side->pool, at), codes + e * element, (size_t)element);
      }
      if (side->separate) {
        memcpy(model_of(q, &side->scale, row_at(q, &side->scale, q->slots[t], head) * 4), scale, 4);
      }
    }
  }
}

void quantising_check(const quantising *q, const char *what) {
  for (int i = 0; i < 4; i++) {
    for (size_t b = 0; b < q->memory[i].bytes; b++) {
      CHECK(q->memory[i].data[b] == q->model[i][b], "%s: memory %d, byte %zu is %02X, expected %02X", what, i, b,
            q->memory[i].data[b], q->model[i][b]);
    }
  }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static attn_plan *make_plan(const quantising *q, const quantising_call *call, int64_t tokens) {
  attn_problem problem = ATTN_PROBLEM_INIT;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  attn_plan *plan = NULL;
  int k_apart = q->side[0].separate, v_apart = q->side[1].separate;
  problem.num_q_heads = QUANTISING_HEADS * QUANTISING_GROUP;
  problem.num_kv_heads = QUANTISING_HEADS;
  problem.qk_head_size = q->side[0].size;
  problem.v_head_size = q->side[1].size;
  problem.q_dtype = problem.out_dtype = ATTN_DTYPE_FLOAT32;
  problem.k_format = q->side[0].format;
  problem.v_format = q->side[1].format;
  problem.separate_scales = k_apart && v_apart ? ATTN_SEPARATE_BOTH
                            : k_apart          ? ATTN_SEPARATE_K
                            : v_apart          ? ATTN_SEPARATE_V
                                               : ATTN_SEPARATE_NONE;
  problem.layout = q->layout;
  problem.block_size = QUANTISING_BLOCK;
  problem.scale = attn_softmax_scale(q->side[0].size);
  problem.window_left = call->window_left;
  problem.batch_invariant = 1;
  problem.wants_lse = 1;
  limits.max_tokens = tokens;
  limits.max_kv_len = QUANTISING_BLOCKS * QUANTISING_BLOCK;
  options.backend = q->backend;
  EXPECT_OK(attn_plan_create(q->context, &problem, &limits, &options, &plan, &why));
  return plan;
}

void quantising_attend(const quantising *q, quantising_call *call) {
  int32_t starts[QUANTISING_SEQS + 1] = {0};
  int32_t heads = QUANTISING_HEADS * QUANTISING_GROUP;
  tensor t_q, t_out, t_lse, t_table, t_starts, t_lens;
  attn_batch batch = ATTN_BATCH_INIT;
  attn_run_args run = ATTN_RUN_INIT;
  guarded memory;
  for (int32_t i = 0; i < call->num_seqs; i++) {
    starts[i + 1] = starts[i] + call->q_len[i];
  }
  int64_t tokens = starts[call->num_seqs];
  attn_plan *plan = make_plan(q, call, tokens);
  attn_workspace workspace = workspace_make(plan, &memory);
  tensor_3(&t_q, call->query, ATTN_DTYPE_FLOAT32, tokens, heads, q->side[0].size);
  tensor_3(&t_out, call->out, ATTN_DTYPE_FLOAT32, tokens, heads, q->side[1].size);
  tensor_2(&t_lse, call->lse, ATTN_DTYPE_FLOAT32, tokens, heads);
  tensor_2(&t_table, call->table, ATTN_DTYPE_INT32, call->num_seqs, call->width);
  tensor_1(&t_starts, starts, ATTN_DTYPE_INT32, call->num_seqs + 1);
  tensor_1(&t_lens, call->kv_len, ATTN_DTYPE_INT32, call->num_seqs);
  batch.query_start_loc = &t_starts.t;
  batch.seq_lens = &t_lens.t;
  run.unchecked = call->unchecked;
  run.q = &t_q.t;
  run.k_cache = &q->side[0].pool.t;
  run.v_cache = &q->side[1].pool.t;
  run.k_scale = q->side[0].scale_given;
  run.v_scale = q->side[1].scale_given;
  run.block_table = &t_table.t;
  run.out = &t_out.t;
  run.lse = &t_lse.t;
  EXPECT_OK(attn_plan_schedule(plan, &batch, &workspace, &why));
  EXPECT_OK(attn_run(plan, &run, &workspace, &why));
  attn_plan_destroy(plan);
  guard_free(&memory);
}
