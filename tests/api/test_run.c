/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h, attn_run: each documented status provoked by one tensor or entry of a valid call; outputs untouched. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

/* A scene with every optional tensor, opened and scheduled. */
static void full_scene(scene *s, const char *backend) {
  static const int32_t q_len[] = {2, 3};
  static const int32_t kv_len[] = {20, 35};
  static const int32_t ranges[] = {0, 5, 7, 7, 3, 9, 30, 50};
  static const int32_t causal[] = {1, 0};
  scene_init(s, 4, 2, 16, 8);
  scene_seqs(s, 2, q_len, kv_len);
  scene_alibi(s, ATTN_ALIBI_LINEAR);
  scene_sinks(s, 0.5f);
  scene_bias(s, 4);
  scene_ranges(s, 2, ranges);
  scene_causal(s, causal);
  scene_store(s);
  scene_open(s, backend);
  EXPECT_OK(scene_step(s, &why));
  scene_check(s);
}

static void full_close(scene *s) {
  EXPECT_OK(scene_step(s, &why));
  scene_check(s);
  scene_close(s);
  scene_free(s);
}

typedef struct named_tensor {
  tensor *t;
  const DLTensor **field;
  const char *name;
  int output;
} named_tensor;

enum { TENSORS = 11 };

static void list_tensors(scene *s, named_tensor *list) {
  named_tensor all[TENSORS] = {
      {&s->t_q, &s->args.q, "q", 0},
      {&s->t_k, &s->args.k_cache, "k_cache", 0},
      {&s->t_v, &s->args.v_cache, "v_cache", 0},
      {&s->t_table, &s->args.block_table, "block_table", 0},
      {&s->t_slopes, &s->args.alibi_slopes, "alibi_slopes", 0},
      {&s->t_sinks, &s->args.sinks, "sinks", 0},
      {&s->t_bias, &s->args.bias, "bias", 0},
      {&s->t_ranges, &s->args.prefix_ranges, "prefix_ranges", 0},
      {&s->t_causal, &s->args.causal_per_seq, "causal_per_seq", 0},
      {&s->t_out, &s->args.out, "out", 1},
      {&s->t_lse, &s->args.lse, "lse", 1},
  };
  memcpy(list, all, sizeof all);
}

static void every_tensor_missing(const char *backend) {
  named_tensor list[TENSORS];
  scene s;
  full_scene(&s, backend);
  list_tensors(&s, list);
  for (int i = 0; i < TENSORS; i++) {
    const DLTensor *kept = *list[i].field;
    *list[i].field = NULL;
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_NULL, list[i].name);
    *list[i].field = kept;
    void *data = list[i].t->t.data;
    list[i].t->t.data = NULL;
    EXPECT_REFUSED(scene_step(&s, &why), list[i].name);
    list[i].t->t.data = data;
  }
  EXPECT_STATUS(attn_run(NULL, &s.args, &s.workspace, &why), ATTN_E_NULL, "plan");
  EXPECT_STATUS(attn_run(s.plan, NULL, &s.workspace, &why), ATTN_E_NULL, "args");
  s.args.size = 9;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_STRUCT_SIZE, NULL);
  s.args.size = sizeof s.args;
  full_close(&s);
}

static void every_tensor_undeclared(const char *backend) {
  scene s;
  scene_init(&s, 2, 1, 16, 16);
  s.problem.wants_lse = 0;
  scene_one(&s, 1, 20);
  scene_store(&s);
  scene_open(&s, backend);
  float values[64] = {0};
  tensor given;
  tensor_1(&given, values, ATTN_DTYPE_FLOAT32, 2);
  const struct {
    const DLTensor **field;
    const char *name;
  } list[] = {
      {&s.args.k, "k"},
      {&s.args.v, "v"},
      {&s.args.k_scale, "k_scale"},
      {&s.args.v_scale, "v_scale"},
      {&s.args.q_scale, "q_scale"},
      {&s.args.alibi_slopes, "alibi_slopes"},
      {&s.args.sinks, "sinks"},
      {&s.args.bias, "bias"},
      {&s.args.prefix_ranges, "prefix_ranges"},
      {&s.args.causal_per_seq, "causal_per_seq"},
      {&s.args.lse, "lse"},
      {&s.args.output_scale, "output_scale"},
      {&s.args.out_scale, "out_scale"},
  };
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    *list[i].field = &given.t;
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_NULL, list[i].name);
    *list[i].field = NULL;
  }
  full_close(&s);
}

static void every_tensor_misshaped(const char *backend) {
  named_tensor list[TENSORS];
  scene s;
  full_scene(&s, backend);
  list_tensors(&s, list);
  for (int i = 0; i < TENSORS; i++) {
    DLTensor kept = list[i].t->t;
    list[i].t->t.ndim = kept.ndim - 1;
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_SHAPE, list[i].name);
    list[i].t->t.ndim = kept.ndim == 4 ? 0 : kept.ndim + 1;
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_SHAPE, list[i].name);
    list[i].t->t.ndim = -1;
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_SHAPE, list[i].name);
    list[i].t->t.ndim = INT32_MAX;
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_SHAPE, list[i].name);
    list[i].t->t = kept;
    for (int32_t axis = 0; axis < kept.ndim; axis++) {
      int free_axis = (list[i].t == &s.t_k && axis == 0) || (list[i].t == &s.t_v && axis == 0) ||
                      (list[i].t == &s.t_table && axis == 1) || (list[i].t == &s.t_ranges && axis == 1);
      int64_t extent = list[i].t->shape[axis];
      list[i].t->shape[axis] = -1;
      EXPECT_STATUS(scene_step(&s, &why), ATTN_E_SHAPE, list[i].name);
      list[i].t->shape[axis] = extent - 1;
      if (!free_axis) {
        EXPECT_STATUS(scene_step(&s, &why), ATTN_E_SHAPE, list[i].name);
      }
      list[i].t->shape[axis] = extent;
    }
  }
  full_close(&s);
}

static void every_tensor_mistyped(const char *backend) {
  named_tensor list[TENSORS];
  scene s;
  full_scene(&s, backend);
  list_tensors(&s, list);
  for (int i = 0; i < TENSORS; i++) {
    DLTensor kept = list[i].t->t;
    list[i].t->t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_INT64);
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_DTYPE, list[i].name);
    list[i].t->t.dtype.code = kDLComplex;
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_DTYPE, list[i].name);
    list[i].t->t = kept;
    list[i].t->t.dtype.lanes = 2;
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_DTYPE, list[i].name);
    list[i].t->t = kept;
    list[i].t->t.device.device_type = kDLCUDA;
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_TENSOR_DEVICE, list[i].name);
    list[i].t->t = kept;
    list[i].t->t.byte_offset = 1;
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_ALIGN, list[i].name);
    list[i].t->t = kept;
  }
  s.t_q.t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_FLOAT16); /* a float type, but not the problem's */
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_DTYPE, "q");
  s.t_q.t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_FLOAT32);
  full_close(&s);
}

static void every_tensor_misstrided(const char *backend) {
  named_tensor list[TENSORS];
  scene s;
  full_scene(&s, backend);
  list_tensors(&s, list);
  for (int i = 0; i < TENSORS; i++) {
    for (int32_t axis = 0; axis < list[i].t->t.ndim; axis++) {
      int64_t kept = list[i].t->strides[axis];
      list[i].t->strides[axis] = -1;
      EXPECT_STATUS(scene_step(&s, &why), ATTN_E_STRIDE, list[i].name);
      list[i].t->strides[axis] = INT64_MIN;
      EXPECT_STATUS(scene_step(&s, &why), ATTN_E_STRIDE, list[i].name);
      list[i].t->strides[axis] = 0;
      if (list[i].output) {
        EXPECT_STATUS(scene_step(&s, &why), ATTN_E_STRIDE, list[i].name);
      }
      list[i].t->strides[axis] = kept;
    }
  }
  int64_t kept = s.t_out.strides[1]; /* two heads share elements */
  s.t_out.strides[1] = 4;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_STRIDE, "out");
  s.t_out.strides[1] = kept;
  full_close(&s);
}

/* Bytes beyond 64 bits are found out before any address is formed. */
static void every_tensor_beyond_64_bits(const char *backend) {
  named_tensor list[TENSORS];
  scene s;
  full_scene(&s, backend);
  list_tensors(&s, list);
  for (int i = 0; i < TENSORS; i++) {
    for (int32_t axis = 0; axis < list[i].t->t.ndim; axis++) {
      if (list[i].t->shape[axis] < 2) {
        continue;
      }
      int64_t kept = list[i].t->strides[axis];
      list[i].t->strides[axis] = INT64_MAX;
      EXPECT_REFUSED(scene_step(&s, &why), list[i].name);
      list[i].t->strides[axis] = INT64_MAX / 4 + 1;
      EXPECT_REFUSED(scene_step(&s, &why), list[i].name);
      list[i].t->strides[axis] = kept;
    }
  }
  int64_t kept[2] = {s.t_k.shape[0], s.t_k.strides[0]};
  s.t_k.shape[0] = INT64_MAX;
  EXPECT_REFUSED(scene_step(&s, &why), "k_cache");
  s.t_k.shape[0] = INT64_C(1) << 40;
  s.t_k.strides[0] = INT64_C(1) << 40;
  EXPECT_REFUSED(scene_step(&s, &why), "k_cache");
  s.t_k.shape[0] = kept[0];
  s.t_k.strides[0] = kept[1];
  s.t_q.t.byte_offset = UINT64_MAX - 3;
  EXPECT_REFUSED(scene_step(&s, &why), "q");
  s.t_q.t.byte_offset = 0;
  full_close(&s);
}

static void outputs_that_overlap(const char *backend) {
  scene s;
  full_scene(&s, backend);
  void *kept = s.t_out.t.data;
  s.t_out.t.data = s.t_q.t.data;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_OVERLAP, "out");
  s.t_out.t.data = s.t_k.t.data;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_OVERLAP, "out");
  s.t_out.t.data = s.t_v.t.data;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_OVERLAP, "out");
  s.t_out.t.data = kept;
  kept = s.t_lse.t.data;
  s.t_lse.t.data = (char *)s.t_out.t.data + 16;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_OVERLAP, "lse");
  s.t_lse.t.data = s.t_bias.t.data;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_OVERLAP, "lse");
  s.t_lse.t.data = kept;
  kept = s.t_out.t.data;
  s.t_out.t.data = s.workspace.data;
  EXPECT_OK(scene_schedule(&s, &why));
  EXPECT_STATUS(attn_run(s.plan, &s.args, &s.workspace, &why), ATTN_E_OVERLAP, "out");
  s.t_out.t.data = kept;
  kept = s.t_q.t.data; /* the workspace is written too */
  s.t_q.t.data = (char *)s.workspace.data + s.workspace.bytes - s.q_data.bytes;
  EXPECT_OK(scene_schedule(&s, &why));
  EXPECT_STATUS(attn_run(s.plan, &s.args, &s.workspace, &why), ATTN_E_OVERLAP, "q");
  s.t_q.t.data = kept;
  full_close(&s);
}

static void every_bad_value(const char *backend) {
  static const float bad[] = {NAN, INFINITY};
  scene s;
  full_scene(&s, backend);
  for (size_t i = 0; i < 2; i++) {
    float kept = s.sinks[3];
    s.sinks[3] = bad[i];
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_RANGE, "sinks");
    s.sinks[3] = kept;
    kept = s.slopes[1];
    s.slopes[1] = bad[i];
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_RANGE, "alibi_slopes");
    s.slopes[1] = kept;
  }
  float sink = s.sinks[2];
  s.sinks[2] = -INFINITY; /* none */
  EXPECT_OK(scene_step(&s, &why));
  scene_check(&s);
  s.sinks[2] = sink;
  s.causal[1] = 2;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_INDEX, "causal_per_seq");
  s.causal[1] = -1;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_INDEX, "causal_per_seq");
  s.causal[1] = 0;
  int32_t range = s.ranges[5];
  s.ranges[5] = s.ranges[4] - 1;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_INDEX, "prefix_ranges");
  s.ranges[5] = range;
  full_close(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(every_tensor_missing),    BACKEND_TEST(every_tensor_undeclared),
      BACKEND_TEST(every_tensor_misshaped),  BACKEND_TEST(every_tensor_mistyped),
      BACKEND_TEST(every_tensor_misstrided), BACKEND_TEST(every_tensor_beyond_64_bits),
      BACKEND_TEST(outputs_that_overlap),    BACKEND_TEST(every_bad_value),
  };
  return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}
