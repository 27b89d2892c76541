/* SPDX-License-Identifier: Apache-2.0 */
/* fp8 outputs: codes and scales worked out by hand; then, on random scenes, bit by bit what quantising the float32
 * output of the same call gives; rows that see nothing, NaN, batch invariance. test_fp8_refusals.c has the statuses. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/fp8.h"
#include "scene.h"

/* ---- Scenes */

static void fp8(scene *s, int32_t block, float scale) {
  s->problem.out_dtype = ATTN_DTYPE_FP8_E4M3;
  s->problem.output_block = block;
  s->output_scale = scale;
}

/* One row of one head that sees one key: the result is the value row, exactly. */
static void one_value(scene *s, const float *v, int32_t size, int32_t block, float scale) {
  scene_init(s, 1, 1, 4, size);
  fp8(s, block, scale);
  scene_one(s, 1, 1);
  memcpy(scene_v(s, 0, 0, 0), v, (size_t)size * sizeof *v);
  scene_store(s);
}

static void expect_bits(float got, float right, const char *what) {
  CHECK(same_bits(&got, &right, 1), "%s is %a, right is %a", what, (double)got, (double)right);
}

/* ---- By hand */

static void static_codes(const char *backend) {
  static const struct {
    float v;
    unsigned char code; /* of v / 0.5 */
  } rows[] = {
      {0.0f, 0x00},      {1.0f, 0x40},       {0.875f, 0x3E},    {-1.0f, 0xC0},      {0.5f, 0x38},
      {1.0625f, 0x40},   {1.1875f, 0x42},    {-1.1875f, 0xC2},  {224.0f, 0x7E},     {208.0f, 0x7D},
      {216.0f, 0x7E},    {232.0f, 0x7E},     {1000.0f, 0x7E},   {-1000.0f, 0xFE},   {0x1p120f, 0x7E},
      {-0x1p120f, 0xFE}, {0x1p-10f, 0x01},   {0x1p-11f, 0x00},  {0x1.8p-10f, 0x02}, {0x1.000002p-11f, 0x01},
      {-0x1p-10f, 0x81}, {0x1p-7f, 0x08},    {0x1.cp-8f, 0x07}, {0x1.ep-8f, 0x08},  {0x1p-140f, 0x00},
      {INFINITY, 0x7E},  {-INFINITY, 0xFE},  {NAN, 0x7F},       {-NAN, 0x7F},       {120.0f, 0x77},
      {0x1.1p-5f, 0x18}, {0x1.11p-5f, 0x19},
  };
  enum { COUNT = sizeof rows / sizeof rows[0] };
  float v[COUNT];
  scene s;
  for (int i = 0; i < COUNT; i++) {
    v[i] = rows[i].v;
  }
  one_value(&s, v, COUNT, 0, 0.5f);
  scene_run(&s, backend);
  for (int32_t i = 0; i < COUNT; i++) {
    CHECK(scene_code(&s, 0, 0, i) == rows[i].code, "%a / 0.5 is stored as %02X, right is %02X", (double)rows[i].v,
          scene_code(&s, 0, 0, i), rows[i].code);
  }
  scene_free(&s);
}

/* Values halfway between two codes once divided: only the IEEE division, no product with 1 / scale, finds them all. */
static void divided_not_multiplied(const char *backend) {
  enum { COUNT = 128 };
  static const float scales[] = {3.0f, 7.0f, 41.0f, 0.1f, 1e-3f};
  int apart = 0;
  for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
    float v[COUNT];
    scene s;
    for (int32_t code = 0; code < COUNT; code++) {
      float low = attn_fp8_e4m3_decode((uint8_t)(code < 0x7E ? code : 0x7D));
      float high = attn_fp8_e4m3_decode((uint8_t)(code < 0x7E ? code + 1 : 0x7E));
      v[code] = (low + high) / 2 * scales[i];
    }
    one_value(&s, v, COUNT, 0, scales[i]);
    scene_run(&s, backend);
    float inverse = 1.0f / scales[i];
    for (int32_t j = 0; j < COUNT; j++) {
      unsigned char right = attn_fp8_e4m3_encode(v[j] / scales[i]);
      CHECK(scene_code(&s, 0, 0, j) == right, "%a / %g is stored as %02X, right is %02X", (double)v[j],
            (double)scales[i], scene_code(&s, 0, 0, j), right);
      apart += right != attn_fp8_e4m3_encode(v[j] * inverse);
    }
    scene_free(&s);
  }
  CHECK(apart > 0, "no value tells a division from a product");
}

/* Scales at the ends of what is accepted. */
static void extreme_scales(const char *backend) {
  static const struct {
    float v;
    float scale;
    unsigned char code;
  } rows[] = {
      {1.0f, 0x1p-149f, 0x7E},       {0.0f, 0x1p-149f, 0x00},    {0x1p-148f, 0x1p-149f, 0x40},
      {1.0f, 0x1.fffffep127f, 0x00}, {0x1p127f, 0x1p127f, 0x38}, {-0x1.fffffep127f, 0x1.fffffep127f, 0xB8},
      {0x1p-126f, 0x1p-126f, 0x38},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    scene s;
    one_value(&s, &rows[i].v, 1, 0, rows[i].scale);
    scene_run(&s, backend);
    CHECK(scene_code(&s, 0, 0, 0) == rows[i].code, "%a / %a is stored as %02X, right is %02X", (double)rows[i].v,
          (double)rows[i].scale, scene_code(&s, 0, 0, 0), rows[i].code);
    scene_free(&s);
  }
}

static void group_codes(const char *backend) {
  float v[200];
  scene s;
  for (int i = 0; i < 200; i++) {
    v[i] = i < 64 ? 2.0f : i < 128 ? -0.25f : i < 192 ? 0.0f : 1e-8f;
  }
  v[5] = -896.0f; /* 448 * 2 */
  v[6] = 896.0f;
  v[7] = 1.0625f * 2; /* halfway: to even */
  v[8] = 1.1875f * 2;
  v[100] = 7.0f; /* 448 / 64 */
  /* 1e-8 / 1e-10 is 100, halfway between 6C and 6D */
  one_value(&s, v, 200, 64, 0);
  scene_run(&s, backend);
  assert_int_equal(scene_groups(&s), 4);
  expect_bits(s.out_scale[0], 2.0f, "scale 0");
  expect_bits(s.out_scale[1], 0x1p-6f, "scale 1");
  expect_bits(s.out_scale[2], 1e-10f, "scale of zeros");
  expect_bits(s.out_scale[3], 1e-10f, "scale below the floor"); /* 1e-8 / 448 < 1e-10 */
  static const struct {
    int32_t at;
    unsigned char code;
  } rows[] = {{0, 0x38},   {5, 0xFE},   {6, 0x7E},   {7, 0x38},   {8, 0x3A},   {63, 0x38}, {64, 0xD8},
              {100, 0x7E}, {127, 0xD8}, {128, 0x00}, {191, 0x00}, {192, 0x6C}, {199, 0x6C}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK(scene_code(&s, 0, 0, rows[i].at) == rows[i].code, "element %d is stored as %02X, right is %02X", rows[i].at,
          scene_code(&s, 0, 0, rows[i].at), rows[i].code);
  }
  scene_free(&s);
  one_value(&s, v, 200, 128, 0);
  scene_run(&s, backend);
  assert_int_equal(scene_groups(&s), 2);
  expect_bits(s.out_scale[0], 2.0f, "scale 0 of 128");
  expect_bits(s.out_scale[1], 1e-10f, "scale 1 of 128"); /* the last group: 72 elements */
  assert_int_equal(scene_code(&s, 0, 0, 100), 0x46);     /* 7 / 2 */
  assert_int_equal(scene_code(&s, 0, 0, 199), 0x6C);
  scene_free(&s);
}

/* The group of a value that is not finite reads as NaN; its neighbours do not know of it. */
static void group_not_finite(const char *backend) {
  static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY};
  for (size_t i = 0; i < 4; i++) {
    float v[130];
    scene s;
    for (int j = 0; j < 130; j++) {
      v[j] = 448.0f;
    }
    v[70] = odd[i];
    one_value(&s, v, 130, 64, 0);
    scene_run(&s, backend);
    uint32_t bits;
    memcpy(&bits, &s.out_scale[1], sizeof bits);
    CHECK(bits == 0x7FC00000u, "the scale's bits are %08X", bits);
    expect_bits(s.out_scale[0], 1.0f, "the group before");
    expect_bits(s.out_scale[2], 1.0f, "the group after");
    for (int32_t j = 0; j < 130; j++) {
      CHECK(scene_code(&s, 0, 0, j) == (j / 64 == 1 ? 0x00 : 0x7E), "element %d is stored as %02X", j,
            scene_code(&s, 0, 0, j));
    }
    scene_free(&s);
  }
}

/* ---- Against the float32 output of the same call */

static void quantise_row(const float *x, int32_t size, int32_t block, float scale, unsigned char *codes,
                         float *scales) {
  for (int32_t begin = 0; begin<size; begin += block> 0 ? block : size) {
    int32_t end = block > 0 && begin + block < size ? begin + block : size;
    float absmax = 0.0f;
    for (int32_t i = begin; i < end; i++) {
      absmax = fabsf(x[i]) > absmax ? fabsf(x[i]) : absmax;
      codes[i] = attn_fp8_e4m3_encode(x[i] / scale);
    }
    if (block > 0) {
      float s = absmax / 448.0f > 1e-10f ? absmax / 448.0f : 1e-10f;
      float inverse = 1.0f / s;
      scales[begin / block] = s;
      for (int32_t i = begin; i < end; i++) {
        codes[i] = attn_fp8_e4m3_encode(x[i] * inverse);
      }
    }
  }
}

static void compare_scenes(const scene *f32, const scene *s) {
  int32_t size = s->problem.v_head_size;
  unsigned char *codes = malloc((size_t)size);
  float scales[8];
  for (int64_t row = 0; row < scene_lse_count(s); row++) {
    int64_t token = row / s->problem.num_q_heads;
    int32_t head = (int32_t)(row % s->problem.num_q_heads);
    quantise_row(f32->out + row * size, size, s->problem.output_block, s->output_scale, codes, scales);
    for (int32_t i = 0; i < size; i++) {
      CHECK(scene_code(s, token, head, i) == codes[i], "row %d, element %d of %d (%a) is stored as %02X, right is %02X",
            (int)row, i, size, (double)f32->out[row * size + i], scene_code(s, token, head, i), codes[i]);
    }
    CHECK(same_bits(s->out_scale + row * scene_groups(s), scales, scene_groups(s)), "row %d: a scale differs",
          (int)row);
    CHECK(same_bits(s->lse + row, f32->lse + row, 1), "row %d: lse differs", (int)row);
  }
  free(codes);
}

typedef struct setting {
  int32_t size;
  int32_t block;
  float scale;
  int32_t splits;
  int32_t threads;
  int feature;
  int strided;
} setting;

static void build(scene *s, const setting *t, attn_format format) {
  static const int32_t q_len[] = {3, 1, 0, 5, 2};
  static const int32_t kv_len[] = {3, 300, 7, 70, 0};
  static const int32_t packed[] = {3, 1, 0, 5, 2};
  scene_init(s, 4, 2, 24, t->size);
  int direct = t->feature == 2;
  if (direct) {
    s->problem.kv_source = ATTN_KV_DIRECT;
    s->problem.block_size = 0;
    s->problem.causal = 0;
  }
  scene_format(s, format);
  s->options.num_splits = t->splits;
  s->num_threads = t->threads;
  s->lse_transposed = t->strided;
  s->q_stride = t->strided ? t->size + 27 : 0;
  s->spare_rows = 2;
  scene_seqs(s, 5, q_len, direct ? packed : kv_len);
  if (t->feature == 1) {
    s->problem.window_left = 40;
    s->problem.softcap = 8.0f;
    scene_sinks(s, 1.5f);
    scene_alibi(s, ATTN_ALIBI_SQRT);
    scene_bias(s, 1);
  } else if (t->feature == 3) {
    s->problem.batch_invariant = 1;
  }
}

static void as_float32_quantised(const char *backend, attn_format format) {
  static const setting settings[] = {
      {1, 0, 0.01f, 0, 1, 0, 0}, {64, 0, 0.003f, 3, 2, 1, 0}, {200, 0, 1e-4f, 0, 3, 2, 1}, {33, 0, 40.0f, 0, 2, 3, 0},
      {1, 64, 0, 0, 1, 0, 0},    {63, 64, 0, 2, 2, 1, 1},     {64, 64, 0, 0, 3, 0, 0},     {65, 64, 0, 7, 1, 0, 0},
      {192, 64, 0, 0, 4, 3, 0},  {127, 128, 0, 0, 1, 2, 0},   {128, 128, 0, 5, 2, 0, 1},   {129, 128, 0, 0, 2, 1, 0},
      {300, 128, 0, 0, 1, 3, 1},
  };
  for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
    scene f32, s;
    build(&f32, &settings[i], format);
    scene_store(&f32);
    scene_run(&f32, backend);
    build(&s, &settings[i], format);
    fp8(&s, settings[i].block, settings[i].scale);
    scene_store(&s);
    scene_run(&s, backend);
    compare_scenes(&f32, &s);
    scene_free(&f32);
    scene_free(&s);
  }
}

static void every_setting(void **state) {
  (void)state;
  for_each_format(as_float32_quantised);
}

/* Elements of a row apart: codes at every third byte, scales far apart, everything between untouched. */
static void elements_apart(const char *backend) {
  enum { SIZE = 150, ROWS = 4 * 3 };
  static const int32_t blocks[] = {0, 64, 128};
  for (size_t i = 0; i < 3; i++) {
    int32_t q_len = 3;
    scene s;
    guarded codes = guard_make((size_t)3 * ROWS * SIZE - 2);
    guarded scales = guard_make(((size_t)5 * ROWS * 3 - 4) * sizeof(float));
    scene_init(&s, 4, 2, 8, SIZE);
    fp8(&s, blocks[i], 0.01f);
    scene_seqs(&s, 1, &q_len, &q_len);
    scene_store(&s);
    scene_run(&s, backend);
    s.t_out.t.data = codes.data;
    s.t_out.strides[2] = 3;
    s.t_out.strides[1] = (int64_t)3 * SIZE;
    s.t_out.strides[0] = (int64_t)3 * SIZE * 4;
    s.t_out_scale.t.data = scales.data;
    s.t_out_scale.strides[2] = 5;
    s.t_out_scale.strides[1] = 15;
    s.t_out_scale.strides[0] = 60;
    scene_open(&s, backend);
    EXPECT_OK(scene_schedule(&s, &why));
    EXPECT_OK(attn_run(s.plan, &s.args, &s.workspace, &why));
    for (size_t at = 0; at < codes.bytes; at++) {
      unsigned char right = at % 3 == 0 ? s.out_data.data[at / 3] : 0xFF;
      CHECK(codes.data[at] == right, "byte %d is %02X, right is %02X", (int)at, codes.data[at], right);
    }
    int64_t groups = scene_groups(&s);
    for (int64_t at = 0; at < (int64_t)(scales.bytes / sizeof(float)); at++) {
      int64_t group = at / 5 % 3;
      uint32_t bits, right = 0xFFFFFFFFu;
      memcpy(&bits, scales.data + at * 4, sizeof bits);
      if (at % 5 == 0 && group < groups) {
        memcpy(&right, s.out_scale_data.data + (at / 15 * groups + group) * 4, sizeof right);
      }
      CHECK(bits == right, "scale at %d has bits %08X, right is %08X", (int)at, bits, right);
    }
    scene_close(&s);
    guard_free(&codes);
    guard_free(&scales);
    scene_free(&s);
  }
}

/* ---- Rows that see nothing, batch invariance */

static void empty_rows(const char *backend) {
  static const int32_t q_len[] = {2, 4, 1};
  static const int32_t kv_len[] = {0, 2, 200}; /* two rows before the first key */
  static const int32_t blocks[] = {0, 64, 128};
  for (size_t i = 0; i < 3; i++) {
    for (int32_t splits = 0; splits <= 3; splits += 3) {
      scene s;
      scene_init(&s, 2, 1, 16, 130);
      fp8(&s, blocks[i], 0.5f);
      s.options.num_splits = splits;
      scene_seqs(&s, 3, q_len, kv_len);
      scene_sinks(&s, 3.0f);
      scene_store(&s);
      scene_run(&s, backend);
      for (int64_t token = 0; token < 4; token++) {
        for (int32_t h = 0; h < 2; h++) {
          for (int32_t d = 0; d < 130; d++) {
            CHECK(scene_code(&s, token, h, d) == 0, "empty row %d: code %02X", (int)token, scene_code(&s, token, h, d));
          }
          for (int64_t g = 0; g < scene_groups(&s); g++) {
            expect_bits(s.out_scale[(token * 2 + h) * scene_groups(&s) + g], 1e-10f, "scale of an empty row");
          }
          CHECK(*scene_lse(&s, token, h) == -INFINITY, "lse of an empty row");
        }
      }
      scene_free(&s);
    }
  }
}

/* The last row of the first sequence, as one decode or with others, threads and blocks: the same bits. */
static void batch_invariance(const char *backend) {
  enum { SIZE = 72, LEN = 1100 };
  static const int32_t blocks[] = {0, 64, 128};
  for (size_t i = 0; i < 3; i++) {
    unsigned char first[2 * SIZE];
    float scales[4] = {0};
    for (int32_t round = 0; round < 4; round++) {
      int32_t q_len[] = {round == 3 ? 40 : 1, 7, 1};
      int32_t kv_len[] = {LEN, 90, 600};
      scene one, s;
      scene_init(&one, 2, 1, 24, SIZE);
      scene_one(&one, 1, LEN);
      scene_init(&s, 2, 1, 24, SIZE);
      fp8(&s, blocks[i], 0.002f);
      s.problem.batch_invariant = 1;
      s.num_threads = 1 + round * 2;
      s.placement = (uint32_t)round;
      scene_seqs(&s, round == 0 ? 1 : 3, q_len, kv_len);
      memcpy(scene_q(&s, q_len[0] - 1, 0), one.q, (size_t)2 * 24 * sizeof(float));
      scene_store(&s);
      scene_run(&s, backend);
      int64_t token = q_len[0] - 1;
      const unsigned char *codes = s.out_data.data + token * s.t_out.strides[0];
      const float *written = s.out_scale + token * 2 * scene_groups(&s);
      if (round == 0) {
        memcpy(first, codes, sizeof first);
        memcpy(scales, written, (size_t)(2 * scene_groups(&s)) * sizeof(float));
      }
      CHECK(memcmp(first, codes, sizeof first) == 0, "block %d, round %d: other codes", blocks[i], round);
      CHECK(same_bits(scales, written, 2 * scene_groups(&s)), "block %d, round %d: other scales", blocks[i], round);
      scene_free(&one);
      scene_free(&s);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(static_codes),     BACKEND_TEST(divided_not_multiplied),
      BACKEND_TEST(extreme_scales),   BACKEND_TEST(group_codes),
      BACKEND_TEST(group_not_finite), cmocka_unit_test(every_setting),
      BACKEND_TEST(elements_apart),   BACKEND_TEST(empty_rows),
      BACKEND_TEST(batch_invariance),
  };
  return cmocka_run_group_tests_name("fp8_output", tests, NULL, NULL);
}
