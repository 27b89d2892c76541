/* SPDX-License-Identifier: Apache-2.0 */
/* fp8 outputs: every status that the headers document for out_dtype, output_block, output_scale and out_scale, outputs
 * untouched; and that both backends say they serve them. */
#include <math.h>

#include "scene.h"

static void fp8(scene *s, int32_t block, float scale) {
  s->problem.out_dtype = ATTN_DTYPE_FP8_E4M3;
  s->problem.output_block = block;
  s->output_scale = scale;
}

static void problems(void **state) {
  scene s;
  (void)state;
  scene_init(&s, 2, 1, 16, 16);
  static const int32_t blocks[] = {0, 64, 128};
  for (size_t i = 0; i < 3; i++) {
    fp8(&s, blocks[i], 0);
    EXPECT_OK(attn_problem_check(&s.problem, &why));
    s.problem.q_dtype = ATTN_DTYPE_BFLOAT16;
    EXPECT_OK(attn_problem_check(&s.problem, &why));
    s.problem.kv_source = ATTN_KV_DIRECT;
    s.problem.block_size = 0;
    EXPECT_OK(attn_problem_check(&s.problem, &why));
    scene_init(&s, 2, 1, 16, 16);
  }
  static const int32_t bad_blocks[] = {1, 32, 63, 65, 127, 256, -64, INT32_MIN};
  for (size_t i = 0; i < sizeof bad_blocks / sizeof bad_blocks[0]; i++) {
    fp8(&s, bad_blocks[i], 0);
    EXPECT_STATUS(attn_problem_check(&s.problem, &why), ATTN_E_RANGE, "output_block");
  }
  static const attn_dtype plain[] = {ATTN_DTYPE_DEFAULT, ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16};
  for (size_t i = 0; i < 4; i++) {
    s.problem.out_dtype = plain[i];
    s.problem.output_block = 64;
    EXPECT_STATUS(attn_problem_check(&s.problem, &why), ATTN_E_RANGE, "output_block");
  }
  fp8(&s, 0, 0);
  s.problem.out_dtype = ATTN_DTYPE_FP8_E5M2;
  EXPECT_STATUS(attn_problem_check(&s.problem, &why), ATTN_E_DTYPE, "out_dtype");
  fp8(&s, 0, 0);
  s.problem.q_dtype = ATTN_DTYPE_FP8_E4M3;
  EXPECT_OK(attn_problem_check(&s.problem, &why)); /* queries and outputs may both be codes */
  s.problem.q_dtype = ATTN_DTYPE_FP8_E5M2;
  EXPECT_STATUS(attn_problem_check(&s.problem, &why), ATTN_E_DTYPE, "q_dtype");
}

static void open_scene(scene *s, int32_t block, const char *backend) {
  int32_t len = 3;
  scene_init(s, 2, 1, 16, 130);
  fp8(s, block, 0.5f);
  scene_seqs(s, 1, &len, &len);
  scene_store(s);
  scene_open(s, backend);
}

static void end_scene(scene *s) {
  EXPECT_OK(scene_step(s, &why)); /* whatever was spoilt is whole again */
  scene_close(s);
  scene_free(s);
}

static void scales_given_and_not(const char *backend) {
  scene s;
  tensor one;
  float value = 1.0f;
  tensor_1(&one, &value, ATTN_DTYPE_FLOAT32, 1);
  open_scene(&s, 0, backend);
  s.args.output_scale = NULL;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_NULL, "output_scale");
  s.args.output_scale = &s.t_output_scale.t;
  s.args.out_scale = &one.t;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_NULL, "out_scale");
  s.args.out_scale = NULL;
  end_scene(&s);
  open_scene(&s, 64, backend);
  s.args.out_scale = NULL;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_NULL, "out_scale");
  s.args.out_scale = &s.t_out_scale.t;
  s.args.output_scale = &one.t;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_NULL, "output_scale");
  s.args.output_scale = NULL;
  s.t_out.t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_FP8_E5M2);
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_DTYPE, "problem.out_dtype");
  s.t_out.t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_UINT8);
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_DTYPE, "problem.out_dtype");
  s.t_out.t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_FP8_E4M3);
  end_scene(&s);
}

static void bad_output_scales(const char *backend) {
  static const float bad[] = {0.0f, -0.0f, -1.0f, NAN, INFINITY, -INFINITY};
  scene s;
  open_scene(&s, 0, backend);
  for (int32_t unchecked = 0; unchecked < 2; unchecked++) {
    s.args.unchecked = unchecked;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
      s.output_scale = bad[i];
      EXPECT_STATUS(scene_step(&s, &why), ATTN_E_RANGE, "output_scale");
    }
  }
  s.output_scale = 0.5f;
  end_scene(&s);
}

/* What is wrong with one of the two tensors of scales. */
static void spoil_tensor(scene *s, tensor *t, const char *name, int output) {
  DLTensor kept = t->t;
  int64_t extent = t->shape[t->t.ndim - 1];
  t->t.ndim = kept.ndim + 1;
  EXPECT_STATUS(scene_step(s, &why), ATTN_E_SHAPE, name);
  t->t.ndim = kept.ndim - 1;
  EXPECT_STATUS(scene_step(s, &why), ATTN_E_SHAPE, name);
  t->t.ndim = kept.ndim;
  for (int64_t wrong = extent - 1; wrong <= extent + 1; wrong += 2) {
    t->shape[kept.ndim - 1] = wrong;
    EXPECT_STATUS(scene_step(s, &why), ATTN_E_SHAPE, name);
  }
  t->shape[kept.ndim - 1] = extent;
  t->t.dtype = attn_dtype_to_dlpack(ATTN_DTYPE_FLOAT16);
  EXPECT_STATUS(scene_step(s, &why), ATTN_E_DTYPE, name);
  t->t = kept;
  t->t.device.device_type = kDLCUDA;
  EXPECT_STATUS(scene_step(s, &why), ATTN_E_TENSOR_DEVICE, name);
  t->t = kept;
  t->t.byte_offset = 2;
  EXPECT_STATUS(scene_step(s, &why), ATTN_E_ALIGN, name);
  t->t = kept;
  t->t.data = NULL;
  EXPECT_STATUS(scene_step(s, &why), ATTN_E_NULL, name);
  t->t = kept;
  for (int32_t axis = 0; axis < kept.ndim; axis++) {
    int64_t stride = t->strides[axis];
    t->strides[axis] = -1;
    EXPECT_STATUS(scene_step(s, &why), ATTN_E_STRIDE, name);
    if (output) {
      t->strides[axis] = 0;
      EXPECT_STATUS(scene_step(s, &why), ATTN_E_STRIDE, name);
    }
    t->strides[axis] = stride;
  }
}

static void misshaped_scales(const char *backend) {
  scene s;
  open_scene(&s, 0, backend);
  spoil_tensor(&s, &s.t_output_scale, "output_scale", 0);
  end_scene(&s);
  open_scene(&s, 64, backend);
  spoil_tensor(&s, &s.t_out_scale, "out_scale", 1);
  s.t_out_scale.shape[0] = 2; /* a token too few */
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_SHAPE, "out_scale");
  s.t_out_scale.shape[0] = 3;
  s.t_out_scale.shape[1] = 1;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_SHAPE, "out_scale");
  s.t_out_scale.shape[1] = 2;
  end_scene(&s);
}

static void overlaps(const char *backend) {
  scene s;
  open_scene(&s, 64, backend);
  void *kept = s.t_out_scale.t.data;
  void *const others[] = {s.t_lse.t.data, s.t_q.t.data, s.t_k.t.data, s.t_v.t.data, s.t_table.t.data};
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    s.t_out_scale.t.data = others[i];
    EXPECT_STATUS(scene_step(&s, &why), ATTN_E_OVERLAP, "out_scale");
  }
  s.t_out_scale.t.data = (void *)((uintptr_t)s.t_out.t.data & ~(uintptr_t)3);
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_OVERLAP, "out_scale");
  s.t_out_scale.t.data = s.workspace.data;
  EXPECT_OK(scene_schedule(&s, &why));
  EXPECT_STATUS(attn_run(s.plan, &s.args, &s.workspace, &why), ATTN_E_OVERLAP, "out_scale");
  s.t_out_scale.t.data = kept;
  end_scene(&s);
  open_scene(&s, 0, backend);
  kept = s.t_output_scale.t.data;
  s.t_output_scale.t.data = s.t_lse.t.data;
  EXPECT_STATUS(scene_step(&s, &why), ATTN_E_OVERLAP, "output_scale");
  s.t_output_scale.t.data = kept;
  end_scene(&s);
}

/* The dry run tells what it would tell of any other output. */
static void explained(void **state) {
  (void)state;
  attn_context *context = open_context(1);
  static const int32_t blocks[] = {0, 64, 128};
  for (size_t i = 0; i < 3; i++) {
    attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
    const char *name = NULL;
    scene s;
    scene_init(&s, 2, 1, 16, 16);
    fp8(&s, blocks[i], 1.0f);
    EXPECT_OK(attn_select(context, &s.problem, NULL, &options, &name, &why));
    assert_string_equal(name, "CPU_ATTN");
    options.backend = "REFERENCE";
    EXPECT_OK(attn_select(context, &s.problem, NULL, &options, &name, &why));
    assert_string_equal(name, "REFERENCE");
  }
  attn_context_destroy(context);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(problems),      BACKEND_TEST(scales_given_and_not),
      BACKEND_TEST(bad_output_scales), BACKEND_TEST(misshaped_scales),
      BACKEND_TEST(overlaps),          cmocka_unit_test(explained),
  };
  return cmocka_run_group_tests_name("fp8_refusals", tests, NULL, NULL);
}
