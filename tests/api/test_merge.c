/* SPDX-License-Identifier: Apache-2.0 */
/* merge.h: the equation over types, sinks and bases; NaN and infinite parts; aliasing; every status. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "merging.h"

static const attn_dtype floats[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16};

static void give_sinks(merging *m, float first) {
  m->sinks = calloc((size_t)m->heads, sizeof(float));
  CHECK(m->sinks != NULL, "no memory");
  for (int64_t h = 0; h < m->heads; h++) {
    m->sinks[h] = h == 0 ? first : (float)h * 0.5f;
  }
}

static void types_sinks_and_bases(const char *backend) {
  for (int i = 0; i < 3 * 3 * 2 * 2; i++) {
    for (int32_t parts = 1; parts <= MERGING_PARTS; parts += 3) {
      merging m;
      merging_init(&m, backend, parts, 5, 3, 17, floats[i % 3]);
      m.result_dtype = floats[i / 3 % 3];
      m.args.lse_base = i / 9 % 2 == 0 ? ATTN_LSE_BASE_E : ATTN_LSE_BASE_2;
      if (i / 18 == 1) {
        give_sinks(&m, -INFINITY);
      }
      merging_prove(&m);
      merging_free(&m);
    }
  }
}

static void without_lse(const char *backend) {
  merging m;
  merging_init(&m, backend, 3, 4, 2, 8, ATTN_DTYPE_FLOAT32);
  merging_store(&m);
  m.args.lse = NULL;
  EXPECT_OK(merging_call(&m, &why));
  merging_check(&m);
  CHECK(all_bytes(m.result_lse_data.data, m.result_lse_data.bytes, 0xFF), "lse was written though not given");
  merging_free(&m);
}

static void unlike_parts(const char *backend) {
  merging m;
  merging_init(&m, backend, 3, 4, 2, 8, ATTN_DTYPE_FLOAT32);
  merging_store(&m);
  for (int64_t i = 0; i < 4 * 2 * 8; i++) { /* the second part is bfloat16 */
    m.out[1][i] = rounded(ATTN_DTYPE_BFLOAT16, m.out[1][i]);
    store_element(m.out_data[1].data, ATTN_DTYPE_BFLOAT16, i, m.out[1][i]);
  }
  tensor_3(&m.t_out[1], m.out_data[1].data, ATTN_DTYPE_BFLOAT16, 4, 2, 8);
  EXPECT_OK(merging_call(&m, &why));
  merging_check(&m);
  merging_free(&m);
}

static void neutral_parts(const char *backend) {
  for (int i = 0; i < 4; i++) {
    merging m;
    merging_init(&m, backend, 4, 3, 2, 8, ATTN_DTYPE_FLOAT32);
    for (int32_t r = 0; r < 3; r++) { /* three of four parts of row 1 are neutral, with NaN in their outs */
      m.lse[r][1] = i % 2 == 0 ? -INFINITY : INFINITY;
      for (int d = 0; d < 8; d++) {
        m.out[r][8 + d] = NAN;
      }
    }
    m.lse[3][1] = i < 2 ? 2.5f : -INFINITY;
    merging_prove(&m);
    merging_free(&m);
  }
}

static void nan_stays_where_it_is(const char *backend) {
  merging m;
  merging_init(&m, backend, 3, 3, 2, 8, ATTN_DTYPE_FLOAT32);
  m.lse[1][2] = NAN;         /* the whole row */
  m.out[2][8 * 4 + 3] = NAN; /* one element */
  m.out[0][8 * 1 + 5] = NAN; /* an element of tiny weight */
  m.lse[0][1] = -80.0f;
  m.lse[1][1] = m.lse[2][1] = 0;
  m.out[1][8 * 5] = NAN;
  merging_prove(&m);
  CHECK(isnan(m.result_out[8 * 1 + 5]) && !isnan(m.result_out[8 * 1 + 4]), "NaN was hidden, or left its element");
  CHECK(isnan(m.result_lse[2]) && !isnan(m.result_lse[1]), "NaN lse was hidden, or left its row");
  merging_free(&m);
}

/* out exactly one of outs and lse one of lses, each of them; and both of different parts. */
static void exact_aliases(const char *backend) {
  for (int32_t a = 0; a < 3; a++) {
    for (int32_t b = 0; b < 3; b++) {
      merging m;
      merging_init(&m, backend, 3, 5, 2, 8, ATTN_DTYPE_FLOAT32);
      merging_store(&m);
      m.args.out = m.outs[a];
      m.args.lse = m.lses[b];
      EXPECT_OK(merging_call(&m, &why));
      merging_check(&m);
      merging_free(&m);
    }
  }
}

static void other_overlaps(const char *backend) {
  merging m;
  merging_init(&m, backend, 2, 5, 2, 8, ATTN_DTYPE_FLOAT32);
  merging_store(&m);
  tensor_3(&m.t_result_out, m.out_data[1].data - 16 * 4, ATTN_DTYPE_FLOAT32, 5, 2, 8); /* shifted by a row */
  EXPECT_STATUS(attn_merge(m.context, &m.args, &why), ATTN_E_OVERLAP, "out");
  tensor_3(&m.t_result_out, m.out_data[1].data, ATTN_DTYPE_FLOAT32, 5, 2, 8);
  m.t_result_out.strides[0] = 8; /* same data, other strides */
  m.t_result_out.strides[1] = 40;
  EXPECT_STATUS(attn_merge(m.context, &m.args, &why), ATTN_E_OVERLAP, "out");
  tensor_3(&m.t_result_out, m.out_data[1].data, ATTN_DTYPE_FLOAT16, 5, 2, 8); /* another type */
  EXPECT_STATUS(attn_merge(m.context, &m.args, &why), ATTN_E_OVERLAP, "out");
  tensor_3(&m.t_result_out, m.result_out_data.data, ATTN_DTYPE_FLOAT32, 5, 2, 8);
  tensor_2(&m.t_result_lse, m.lse_data[0].data - 8, ATTN_DTYPE_FLOAT32, 5, 2);
  EXPECT_STATUS(attn_merge(m.context, &m.args, &why), ATTN_E_OVERLAP, "lse");
  tensor_2(&m.t_result_lse, m.result_out_data.data, ATTN_DTYPE_FLOAT32, 5, 2); /* lse in out */
  EXPECT_STATUS(attn_merge(m.context, &m.args, &why), ATTN_E_OVERLAP, "lse");
  tensor_2(&m.t_result_lse, m.out_data[0].data, ATTN_DTYPE_FLOAT32, 5, 2); /* lse in one of outs */
  EXPECT_STATUS(attn_merge(m.context, &m.args, &why), ATTN_E_OVERLAP, "lse");
  CHECK(all_bytes(m.result_out_data.data, m.result_out_data.bytes, 0xFF), "a failing merge wrote");
  merging_free(&m);
}

static void every_tensor(const char *backend) {
  merging m;
  merging_init(&m, backend, 2, 5, 2, 8, ATTN_DTYPE_FLOAT32);
  give_sinks(&m, 0.5f);
  merging_store(&m);
  const struct {
    tensor *t;
    const char *name;
    int output;
  } list[] = {
      {&m.t_out[0], "outs", 0}, {&m.t_out[1], "outs", 0},    {&m.t_lse[0], "lses", 0},    {&m.t_lse[1], "lses", 0},
      {&m.t_sinks, "sinks", 0}, {&m.t_result_out, "out", 1}, {&m.t_result_lse, "lse", 1},
  };
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    tensor *t = list[i].t;
    DLTensor kept = t->t;
    t->t.ndim = 4;
    EXPECT_STATUS(merging_call(&m, &why), ATTN_E_SHAPE, list[i].name);
    t->t = kept;
    t->t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_UINT8);
    EXPECT_STATUS(merging_call(&m, &why), ATTN_E_DTYPE, list[i].name);
    t->t = kept;
    t->t.device.device_type = kDLCUDA;
    EXPECT_STATUS(merging_call(&m, &why), ATTN_E_TENSOR_DEVICE, list[i].name);
    t->t = kept;
    t->t.byte_offset = 2;
    EXPECT_STATUS(merging_call(&m, &why), ATTN_E_ALIGN, list[i].name);
    t->t = kept;
    t->t.data = NULL;
    EXPECT_REFUSED(merging_call(&m, &why), list[i].name);
    t->t = kept;
    for (int32_t axis = 0; axis < kept.ndim; axis++) {
      int64_t extent = t->shape[axis];
      int64_t stride = t->strides[axis];
      t->shape[axis] = extent - 1;
      EXPECT_STATUS(merging_call(&m, &why), ATTN_E_SHAPE, NULL);
      t->shape[axis] = -1;
      EXPECT_STATUS(merging_call(&m, &why), ATTN_E_SHAPE, NULL);
      t->shape[axis] = extent;
      t->strides[axis] = -1;
      EXPECT_STATUS(merging_call(&m, &why), ATTN_E_STRIDE, list[i].name);
      t->strides[axis] = INT64_MAX / 2;
      EXPECT_REFUSED(merging_call(&m, &why), list[i].name);
      t->strides[axis] = 0;
      if (list[i].output) {
        EXPECT_STATUS(merging_call(&m, &why), ATTN_E_STRIDE, list[i].name);
      }
      t->strides[axis] = stride;
    }
  }
  EXPECT_OK(merging_call(&m, &why));
  merging_check(&m);
  merging_free(&m);
}

static void other_arguments(const char *backend) {
  static const int32_t bad_parts[] = {0, -1, INT32_MIN};
  merging m;
  merging_init(&m, backend, 2, 5, 2, 8, ATTN_DTYPE_FLOAT32);
  give_sinks(&m, 0.5f);
  merging_store(&m);
  EXPECT_STATUS(attn_merge(NULL, &m.args, &why), ATTN_E_NULL, "context");
  EXPECT_STATUS(attn_merge(m.context, NULL, &why), ATTN_E_NULL, "args");
  m.args.size = 7;
  EXPECT_STATUS(merging_call(&m, &why), ATTN_E_STRUCT_SIZE, NULL);
  m.args.size = sizeof m.args;
  for (size_t i = 0; i < 3; i++) {
    m.args.num_parts = bad_parts[i];
    EXPECT_STATUS(merging_call(&m, &why), ATTN_E_RANGE, "num_parts");
  }
  m.args.num_parts = 2;
  m.args.lse_base = (attn_lse_base)2;
  EXPECT_STATUS(merging_call(&m, &why), ATTN_E_RANGE, "lse_base");
  m.args.lse_base = ATTN_LSE_BASE_E;
  m.sinks[1] = NAN;
  EXPECT_STATUS(merging_call(&m, &why), ATTN_E_RANGE, "sinks");
  m.sinks[1] = INFINITY;
  EXPECT_STATUS(merging_call(&m, &why), ATTN_E_RANGE, "sinks");
  m.sinks[1] = 0.5f;
  m.outs[1] = NULL;
  EXPECT_STATUS(merging_call(&m, &why), ATTN_E_NULL, "outs");
  m.outs[1] = &m.t_out[1].t;
  m.lses[0] = NULL;
  EXPECT_STATUS(merging_call(&m, &why), ATTN_E_NULL, "lses");
  m.lses[0] = &m.t_lse[0].t;
  m.args.outs = NULL;
  EXPECT_STATUS(merging_call(&m, &why), ATTN_E_NULL, "outs");
  m.args.outs = m.outs;
  m.args.lses = NULL;
  EXPECT_STATUS(merging_call(&m, &why), ATTN_E_NULL, "lses");
  m.args.lses = m.lses;
  m.args.out = NULL;
  EXPECT_STATUS(attn_merge(m.context, &m.args, &why), ATTN_E_NULL, "out");
  m.args.out = &m.t_result_out.t;
  EXPECT_OK(merging_call(&m, &why));
  merging_check(&m);
  merging_free(&m);
}

/* Inputs may be broadcast and strided, NULL strides are compact, nothing is a valid batch. */
static void strides_and_nothing(const char *backend) {
  merging m;
  merging_init(&m, backend, 2, 5, 2, 8, ATTN_DTYPE_FLOAT32);
  for (int64_t i = 0; i < 5 * 2; i++) {
    m.lse[1][i] = m.lse[1][0];
  }
  merging_store(&m);
  m.t_lse[1].strides[0] = m.t_lse[1].strides[1] = 0;
  m.t_out[0].t.strides = NULL;
  EXPECT_OK(merging_call(&m, &why));
  merging_check(&m);
  m.tokens = 0;
  for (int i = 0; i < 2; i++) {
    m.t_out[i].shape[0] = m.t_lse[i].shape[0] = 0;
    m.t_out[i].t.data = NULL;
  }
  m.t_result_out.shape[0] = m.t_result_lse.shape[0] = 0;
  EXPECT_OK(merging_call(&m, &why));
  CHECK(all_bytes(m.result_out_data.data, m.result_out_data.bytes, 0xFF), "rows beyond the batch changed");
  merging_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(types_sinks_and_bases), BACKEND_TEST(without_lse),           BACKEND_TEST(unlike_parts),
      BACKEND_TEST(neutral_parts),         BACKEND_TEST(nan_stays_where_it_is), BACKEND_TEST(exact_aliases),
      BACKEND_TEST(other_overlaps),        BACKEND_TEST(every_tensor),          BACKEND_TEST(other_arguments),
      BACKEND_TEST(strides_and_nothing),
  };
  return cmocka_run_group_tests_name("merge", tests, NULL, NULL);
}
