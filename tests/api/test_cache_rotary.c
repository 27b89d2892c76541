/* SPDX-License-Identifier: Apache-2.0 */
/* attn_cache_write() with rotary embedding: the bytes of rotating, rounding to k's type and then writing, for every
   format, both pairings, whole and partial rotation, Q in the same call and in place; every status of its arguments. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "quantising.h"

enum { TABLE = 50, SIZE = 20, Q_HEADS = 3, TOKENS = QUANTISING_TOKENS };

static char label[96];

typedef struct rotary_case {
  quantising q;
  attn_dtype dtype; /* of k, v and q */
  float table[TABLE * SIZE];
  int64_t positions[TOKENS];
  guarded k, v, query, query_out;
  tensor t_k, t_v, t_positions, t_cos, t_sin, t_query, t_query_out;
} rotary_case;

/* Cosines and sines side by side in one table, given as two views of it. */
static void make_tables(rotary_case *c, int64_t dim) {
  for (int64_t p = 0; p < TABLE; p++) {
    for (int64_t j = 0; j < dim / 2; j++) {
      double angle = (double)p * pow(100.0, -2.0 * (double)j / (double)(dim > 0 ? dim : 1));
      c->table[p * dim + j] = (float)cos(angle);
      c->table[p * dim + dim / 2 + j] = (float)sin(angle);
    }
  }
  tensor_2(&c->t_cos, c->table, ATTN_DTYPE_FLOAT32, TABLE, dim / 2);
  tensor_2(&c->t_sin, c->table + dim / 2, ATTN_DTYPE_FLOAT32, TABLE, dim / 2);
  c->t_cos.strides[0] = c->t_sin.strides[0] = dim;
}

static void make_rows(guarded *memory, tensor *t, attn_dtype dtype, int64_t heads, const float *values) {
  uint32_t seed = 3;
  *memory = guard_make((size_t)(TOKENS * heads * SIZE) * attn_dtype_bytes(dtype));
  for (int64_t i = 0; i < TOKENS * heads * SIZE; i++) {
    store_element(memory->data, dtype, i, values != NULL ? values[i] : random_normal(&seed));
  }
  tensor_3(t, memory->data, dtype, TOKENS, heads, SIZE);
}

static void rotary_open(rotary_case *c, const char *backend, attn_format format, attn_dtype dtype, int64_t dim) {
  memset(c, 0, sizeof *c);
  c->dtype = dtype;
  c->q.context = open_context(1);
  c->q.backend = backend;
  for (int i = 0; i < 2; i++) {
    c->q.side[i].format = format;
    c->q.side[i].size = SIZE;
  }
  quantising_open(&c->q, LAY_PADDED);
  make_rows(&c->k, &c->t_k, dtype, QUANTISING_HEADS, c->q.side[0].values);
  make_rows(&c->v, &c->t_v, dtype, QUANTISING_HEADS, c->q.side[1].values);
  make_rows(&c->query, &c->t_query, dtype, Q_HEADS, NULL);
  c->query_out = guard_make(c->query.bytes);
  tensor_3(&c->t_query_out, c->query_out.data, dtype, TOKENS, Q_HEADS, SIZE);
  for (int64_t t = 0; t < TOKENS; t++) {
    c->positions[t] = c->q.slots[t] < 0 ? -77 : (t * 11) % TABLE; /* of a skipped row nobody reads it */
  }
  tensor_1(&c->t_positions, c->positions, ATTN_DTYPE_INT64, TOKENS);
  make_tables(c, dim);
}

static void rotary_close(rotary_case *c) {
  attn_context_destroy(c->q.context);
  quantising_close(&c->q);
  guard_free(&c->k);
  guard_free(&c->v);
  guard_free(&c->query);
  guard_free(&c->query_out);
}

static attn_cache_write_args rotary_args(const rotary_case *c, attn_rotary rotary) {
  attn_cache_write_args args = quantising_write(&c->q);
  args.k = &c->t_k.t;
  args.v = &c->t_v.t;
  args.rotary = rotary;
  args.positions = &c->t_positions.t;
  args.rotary_cos = &c->t_cos.t;
  args.rotary_sin = &c->t_sin.t;
  args.q = &c->t_query.t;
  args.q_out = &c->t_query_out.t;
  return args;
}

/* Rotated in float32, each product and sum stored before it is used, and rounded to the type. */
static void rotate_row(const rotary_case *c, attn_rotary rotary, int64_t dim, int64_t token, float *row) {
  const float *table = c->table + c->positions[token] * dim;
  for (int64_t j = 0; j < dim / 2; j++) {
    int64_t at_a = rotary == ATTN_ROTARY_INTERLEAVED ? 2 * j : j;
    int64_t at_b = rotary == ATTN_ROTARY_INTERLEAVED ? 2 * j + 1 : j + dim / 2;
    volatile float a_cos = row[at_a] * table[j];
    volatile float b_sin = row[at_b] * table[dim / 2 + j];
    volatile float b_cos = row[at_b] * table[j];
    volatile float a_sin = row[at_a] * table[dim / 2 + j];
    volatile float a = a_cos - b_sin;
    volatile float b = b_cos + a_sin;
    row[at_a] = rounded(c->dtype, a);
    row[at_b] = rounded(c->dtype, b);
  }
}

/* The rows that a plain write would have got. */
static void rotate_all(rotary_case *c, attn_rotary rotary, int64_t dim) {
  for (int64_t i = 0; i < TOKENS * QUANTISING_HEADS * SIZE; i++) {
    c->q.side[0].values[i] = load_element(c->k.data, c->dtype, i);
    c->q.side[1].values[i] = load_element(c->v.data, c->dtype, i);
  }
  for (int64_t t = 0; t < TOKENS; t++) {
    for (int64_t h = 0; c->q.slots[t] >= 0 && h < QUANTISING_HEADS; h++) {
      rotate_row(c, rotary, dim, t, c->q.side[0].values + (t * QUANTISING_HEADS + h) * SIZE);
    }
  }
}

static void check_query(const rotary_case *c, attn_rotary rotary, int64_t dim, const float *before,
                        const guarded *memory) {
  for (int64_t t = 0; t < TOKENS; t++) {
    for (int64_t h = 0; h < Q_HEADS; h++) {
      float row[SIZE];
      int64_t at = (t * Q_HEADS + h) * SIZE;
      memcpy(row, before + at, sizeof row);
      if (c->q.slots[t] >= 0) {
        rotate_row(c, rotary, dim, t, row);
      }
      for (int64_t i = 0; i < SIZE; i++) {
        float got = load_element(memory->data, c->dtype, at + i);
        int untouched = c->q.slots[t] < 0 && memory == &c->query_out;
        CHECK(untouched ? isnan(got) : got == row[i], "q of token %d, head %d, element %d: %g, expected %g", (int)t,
              (int)h, (int)i, (double)got, (double)row[i]);
      }
    }
  }
}

static void as_two_steps(const char *backend) {
  static const attn_dtype dtypes[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_BFLOAT16, ATTN_DTYPE_FLOAT16};
  static const int64_t dims[] = {SIZE, 8, 2, 0};
  for (int n = 0; n < 8 * 3 * 4 * 2; n++) {
    rotary_case c;
    attn_format format = (attn_format)(n % 8 + 1);
    int64_t dim = dims[n / 24 % 4];
    attn_rotary rotary = n / 96 ? ATTN_ROTARY_INTERLEAVED : ATTN_ROTARY_SPLIT_HALF;
    int in_place = n % 2;
    float before[TOKENS * Q_HEADS * SIZE];
    (void)snprintf(label, sizeof label, "%s, %s, dim %d, rotary %d, %s", backend, attn_format_name(format), (int)dim,
                   (int)rotary, attn_dtype_name(dtypes[n / 8 % 3]));
    harness_label(label);
    rotary_open(&c, backend, format, dtypes[n / 8 % 3], dim);
    attn_cache_write_args args = rotary_args(&c, rotary);
    for (int64_t i = 0; i < TOKENS * Q_HEADS * SIZE; i++) {
      before[i] = load_element(c.query.data, c.dtype, i);
    }
    args.q_out = in_place ? args.q : args.q_out;
    EXPECT_OK(attn_cache_write(c.q.context, &args, &why));
    rotate_all(&c, rotary, dim);
    for (int64_t t = 0; t < TOKENS; t++) {
      if (c.q.slots[t] >= 0) {
        quantising_expect(&c.q, t);
      }
    }
    quantising_check(&c.q, "after the write");
    check_query(&c, rotary, dim, before, in_place ? &c.query : &c.query_out);
    rotary_close(&c);
  }
}

/* Bits beyond rotary_dim are copied, a NaN's payload included. */
static void tail_bits(const char *backend) {
  rotary_case c;
  rotary_open(&c, backend, ATTN_FORMAT_FLOAT16, ATTN_DTYPE_FLOAT16, 8);
  attn_cache_write_args args = rotary_args(&c, ATTN_ROTARY_SPLIT_HALF);
  uint16_t *k = (uint16_t *)(void *)c.k.data, *query = (uint16_t *)(void *)c.query.data;
  k[SIZE - 1] = query[SIZE - 1] = 0x7C01u; /* a signalling NaN */
  EXPECT_OK(attn_cache_write(c.q.context, &args, &why));
  const tensor *pool = &c.q.side[0].pool;
  int64_t at = c.q.slots[0] / QUANTISING_BLOCK * pool->strides[0] + c.q.slots[0] % QUANTISING_BLOCK * pool->strides[1];
  assert_int_equal(((uint16_t *)pool->t.data)[at + SIZE - 1], 0x7C01u);
  assert_int_equal(((uint16_t *)(void *)c.query_out.data)[SIZE - 1], 0x7C01u);
  rotary_close(&c);
}

static void refuse(const rotary_case *c, const attn_cache_write_args *args, attn_status status, const char *named) {
  EXPECT_STATUS(attn_cache_write(c->q.context, args, &why), status, named);
  quantising_check(&c->q, named);
  CHECK(all_bytes(c->query_out.data, c->query_out.bytes, 0xFF), "%s: q_out was written", named);
}

static void statuses(const char *backend) {
  rotary_case c;
  tensor t;
  rotary_open(&c, backend, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, ATTN_DTYPE_FLOAT32, 8);
  attn_cache_write_args good = rotary_args(&c, ATTN_ROTARY_SPLIT_HALF), args = good;
  args.rotary = ATTN_ROTARY_NONE;
  refuse(&c, &args, ATTN_E_NULL, "positions");
  args = good;
  args.rotary = (attn_rotary)3;
  refuse(&c, &args, ATTN_E_RANGE, "rotary");
  args = good;
  args.positions = NULL;
  refuse(&c, &args, ATTN_E_NULL, "positions");
  args = good;
  args.rotary_cos = NULL;
  refuse(&c, &args, ATTN_E_NULL, "rotary_cos");
  args = good;
  args.q = NULL;
  refuse(&c, &args, ATTN_E_NULL, "q_out");
  args = good;
  args.q_out = NULL;
  refuse(&c, &args, ATTN_E_NULL, "q_out");
  args = good;
  tensor_2(&t, c.table, ATTN_DTYPE_FLOAT32, TABLE, 3); /* of another rotary_dim than rotary_cos */
  args.rotary_sin = &t.t;
  refuse(&c, &args, ATTN_E_SHAPE, "rotary_sin");
  tensor_2(&t, c.table, ATTN_DTYPE_FLOAT32, 2, SIZE / 2 + 1); /* beyond the head */
  args.rotary_cos = &t.t;
  refuse(&c, &args, ATTN_E_SHAPE, "k: axis 2");
  args = good;
  tensor_1(&t, c.positions, ATTN_DTYPE_INT64, TOKENS - 1);
  args.positions = &t.t;
  refuse(&c, &args, ATTN_E_SHAPE, "positions");
  tensor_1(&t, c.positions, ATTN_DTYPE_INT32, TOKENS);
  refuse(&c, &args, ATTN_E_DTYPE, "positions");
  args = good;
  tensor_3(&t, c.query.data, ATTN_DTYPE_FLOAT32, TOKENS - 1, Q_HEADS, SIZE);
  args.q = args.q_out = &t.t;
  refuse(&c, &args, ATTN_E_SHAPE, "q: axis 0");
  tensor_3(&t, c.query.data, ATTN_DTYPE_FLOAT32, TOKENS, Q_HEADS, 7);
  refuse(&c, &args, ATTN_E_SHAPE, "q: axis 2");
  args = good;
  tensor_3(&t, c.query.data, ATTN_DTYPE_FLOAT32, TOKENS, Q_HEADS, SIZE); /* q's memory, other strides */
  t.strides[0] -= 1;
  args.q_out = &t.t;
  refuse(&c, &args, ATTN_E_STRIDE, "q_out");
  tensor_3(&t, c.q.memory[0].data + (4 - (uintptr_t)c.q.memory[0].data % 4) % 4, ATTN_DTYPE_FLOAT32, TOKENS, Q_HEADS,
           SIZE);
  refuse(&c, &args, ATTN_E_OVERLAP, "k_cache");
  tensor_3(&t, c.k.data, ATTN_DTYPE_FLOAT32, TOKENS, QUANTISING_HEADS, SIZE);
  tensor other;
  tensor_3(&other, c.query.data, ATTN_DTYPE_FLOAT32, TOKENS, QUANTISING_HEADS, SIZE);
  args.q = &other.t;
  refuse(&c, &args, ATTN_E_OVERLAP, "q_out");
  args = good;
  c.positions[3] = TABLE;
  refuse(&c, &args, ATTN_E_INDEX, "positions[3]");
  c.positions[3] = -1;
  refuse(&c, &args, ATTN_E_INDEX, "positions[3]");
  rotary_close(&c);
}

/* Unchecked, a row whose position lies outside the tables is skipped whole. */
static void unchecked(const char *backend) {
  rotary_case c;
  rotary_open(&c, backend, ATTN_FORMAT_FP8_PER_TOKEN_HEAD, ATTN_DTYPE_FLOAT32, 8);
  attn_cache_write_args args = rotary_args(&c, ATTN_ROTARY_SPLIT_HALF);
  args.unchecked = 1;
  args.q = args.q_out = NULL;
  c.positions[0] = TABLE;
  c.positions[4] = INT64_MIN;
  EXPECT_OK(attn_cache_write(c.q.context, &args, &why));
  c.positions[0] = c.positions[4] = 0;
  rotate_all(&c, ATTN_ROTARY_SPLIT_HALF, 8);
  for (int64_t t = 0; t < TOKENS; t++) {
    if (c.q.slots[t] >= 0 && t != 0 && t != 4) {
      quantising_expect(&c.q, t);
    }
  }
  quantising_check(&c.q, "unchecked");
  rotary_close(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(as_two_steps),
      BACKEND_TEST(tail_bits),
      BACKEND_TEST(statuses),
      BACKEND_TEST(unchecked),
  };
  return cmocka_run_group_tests_name("cache_rotary", tests, NULL, NULL);
}
