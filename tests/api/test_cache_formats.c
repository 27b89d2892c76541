/* SPDX-License-Identifier: Apache-2.0 */
/* Writing to and gathering from every pair of formats, in every lay of memory: each byte against a model, every status
   of formats and scales, NaN in what nobody wrote. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "quantising.h"

enum { FORMATS = ATTN_FORMAT_INT4_PER_TOKEN_HEAD, SIZES = 5 };

static const int32_t sizes[SIZES] = {1, 17, 40, 64, 65};

static char label[96];

static void set_side(quantising_side *side, attn_format format, int32_t size, int separate, int statics) {
  memset(side, 0, sizeof *side);
  side->format = format;
  side->size = size;
  side->separate = separate && format_has_row_scale(format);
  side->num_statics = format_is_static(format) ? statics : 0;
  side->statics[0] = 0.37f;
  side->statics[1] = 0.011f;
}

/* Every row of a gather of the written tokens against the row functions, each output element to the bit. */
static void check_gather(const quantising *q) {
  attn_cache_gather_args args = ATTN_CACHE_GATHER_INIT;
  int32_t table[QUANTISING_BLOCKS], len = QUANTISING_BLOCKS * QUANTISING_BLOCK;
  static float out[2][QUANTISING_BLOCKS * QUANTISING_BLOCK * QUANTISING_HEADS * 65];
  tensor t_table, t_len, t_out[2];
  for (int32_t b = 0; b < QUANTISING_BLOCKS; b++) {
    table[b] = b;
  }
  tensor_2(&t_table, table, ATTN_DTYPE_INT32, 1, QUANTISING_BLOCKS);
  tensor_1(&t_len, &len, ATTN_DTYPE_INT32, 1);
  for (int i = 0; i < 2; i++) {
    tensor_3(&t_out[i], out[i], ATTN_DTYPE_FLOAT32, len, QUANTISING_HEADS, q->side[i].size);
  }
  args.backend = q->backend;
  args.layout = q->layout;
  args.k_format = q->side[0].format;
  args.v_format = q->side[1].format;
  args.k_cache = &q->side[0].pool.t;
  args.v_cache = &q->side[1].pool.t;
  args.k_scale = q->side[0].scale_given;
  args.v_scale = q->side[1].scale_given;
  args.block_table = &t_table.t;
  args.seq_lens = &t_len.t;
  args.k = &t_out[0].t;
  args.v = &t_out[1].t;
  EXPECT_OK(attn_cache_gather(q->context, &args, &why));
  quantising_check(q, "after the gather");
  for (int64_t t = 0; t < QUANTISING_TOKENS; t++) {
    for (int i = 0; q->slots[t] >= 0 && i < 2; i++) {
      const quantising_side *side = &q->side[i];
      const float *from = side->values + t * QUANTISING_HEADS * side->size;
      const float *back = out[i] + q->slots[t] * QUANTISING_HEADS * side->size;
      for (int32_t e = 0; e < QUANTISING_HEADS * side->size; e++) {
        /* a coarse bound that no wrong row, head or scale passes: the bytes were compared already */
        float step = side->format <= ATTN_FORMAT_BFLOAT16              ? 0.02f
                     : side->format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? 1.2f
                     : side->format == ATTN_FORMAT_FP8_E5M2            ? 0.45f
                                                                       : 0.25f;
        CHECK(fabsf(back[e] - from[e]) <= step, "%s: token %d, element %d: %g from %g", i ? "v" : "k", (int)t, e,
              (double)back[e], (double)from[e]);
      }
    }
  }
}

static void write_and_gather(quantising *q, quantising_lay lay) {
  quantising_open(q, lay);
  attn_cache_write_args args = quantising_write(q);
  EXPECT_OK(attn_cache_write(q->context, &args, &why));
  for (int64_t t = 0; t < QUANTISING_TOKENS; t++) {
    if (q->slots[t] >= 0) {
      quantising_expect(q, t);
    }
  }
  quantising_check(q, "after the write");
  check_gather(q);
  quantising_close(q);
}

static void every_pair(const char *backend) {
  quantising q = {.context = open_context(1), .backend = backend};
  int n = 0;
  for (int k = 1; k <= FORMATS; k++) {
    for (int v = 1; v <= FORMATS; v++) {
      for (int lay = 0; lay < LAY_COUNT; lay++, n++) {
        q.layout = n % 2 ? ATTN_LAYOUT_HND : ATTN_LAYOUT_NHD;
        set_side(&q.side[0], (attn_format)k, sizes[n % SIZES], n / 2 % 2, n % 3);
        set_side(&q.side[1], (attn_format)v, sizes[(n + 2) % SIZES], n / 4 % 2, (n + 1) % 3);
        (void)snprintf(label, sizeof label, "%s, %s %d with %s %d, lay %d", backend, attn_format_name((attn_format)k),
                       (int)q.side[0].size, attn_format_name((attn_format)v), (int)q.side[1].size, lay);
        harness_label(label);
        write_and_gather(&q, (quantising_lay)lay);
      }
    }
  }
  attn_context_destroy(q.context);
}

/* Every format alone in both layouts, each size, both places of the scale. */
static void every_form(const char *backend) {
  quantising q = {.context = open_context(2), .backend = backend};
  for (int f = ATTN_FORMAT_FP8_E4M3; f <= FORMATS; f++) {
    for (int n = 0; n < SIZES * 2 * 2 * LAY_COUNT; n++) {
      int lay = n % LAY_COUNT, separate = n / LAY_COUNT % 2;
      q.layout = n / LAY_COUNT / 2 % 2 ? ATTN_LAYOUT_HND : ATTN_LAYOUT_NHD;
      set_side(&q.side[0], (attn_format)f, sizes[n / LAY_COUNT / 4], separate, separate ? 2 : 1);
      set_side(&q.side[1], (attn_format)f, sizes[n / LAY_COUNT / 4], separate, separate ? 0 : 2);
      (void)snprintf(label, sizeof label, "%s, %s, form %d", backend, attn_format_name((attn_format)f), n);
      harness_label(label);
      write_and_gather(&q, (quantising_lay)lay);
    }
  }
  attn_context_destroy(q.context);
}

/* ---- statuses ---------------------------------------------------------------------------------------------------- */

static void refuse_write(const quantising *q, const attn_cache_write_args *args, attn_status status,
                         const char *named) {
  EXPECT_STATUS(attn_cache_write(q->context, args, &why), status, named);
  quantising_check(q, named);
}

static void open_side(quantising *q, const char *backend, attn_format format, int separate, int statics) {
  memset(q, 0, sizeof *q);
  q->context = open_context(1);
  q->backend = backend;
  set_side(&q->side[0], format, 17, separate, statics);
  set_side(&q->side[1], format, 17, separate, statics);
  quantising_open(q, LAY_COMPACT);
}

static void close_side(quantising *q) {
  quantising_close(q);
  attn_context_destroy(q->context);
}

static void formats_of_bytes(const char *backend) {
  quantising q;
  open_side(&q, backend, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 0, 0);
  attn_cache_write_args args = quantising_write(&q);
  args.k_format = ATTN_FORMAT_AUTO; /* bytes do not say what they are */
  refuse_write(&q, &args, ATTN_E_DTYPE, "k_format");
  args.k_format = ATTN_FORMAT_FLOAT32;
  refuse_write(&q, &args, ATTN_E_DTYPE, "k_cache");
  args.k_format = ATTN_FORMAT_FP8_DS_MLA;
  refuse_write(&q, &args, ATTN_E_UNSUPPORTED, "fp8_ds_mla");
  args.k_format = ATTN_FORMAT_INT4_PER_TOKEN_HEAD; /* its rows are 9 + 3 + 4 bytes, these are 17 + 3 + 4 */
  refuse_write(&q, &args, ATTN_E_SHAPE, "int4_per_token_head");
  args.k_format = ATTN_FORMAT_FP8_E4M3;
  refuse_write(&q, &args, ATTN_E_SHAPE, "k_cache");
  args.k_format = ATTN_FORMAT_INT8_PER_TOKEN_HEAD;
  args.v_format = ATTN_FORMAT_AUTO; /* as k_format */
  EXPECT_OK(attn_cache_write(q.context, &args, &why));
  args.v_format = ATTN_FORMAT_FP8_PER_TOKEN_HEAD;
  EXPECT_OK(attn_cache_write(q.context, &args, &why));
  close_side(&q);
}

/* Bytes to the first multiple of 4. */
static size_t aligned_from(const guarded *memory) {
  return (4 - (uintptr_t)memory->data % 4) % 4;
}

static void static_scales(const char *backend) {
  static const float bad[] = {0.0f, -1.0f, NAN, INFINITY, -INFINITY, -0.0f};
  quantising q;
  open_side(&q, backend, ATTN_FORMAT_FP8_E4M3, 0, 2);
  attn_cache_write_args args = quantising_write(&q);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    q.side[1].statics[1] = bad[i];
    refuse_write(&q, &args, ATTN_E_RANGE, "v_scale[1]");
  }
  q.side[1].statics[1] = 1.0f;
  tensor three, wrong;
  float values[3] = {1, 1, 1};
  tensor_1(&three, values, ATTN_DTYPE_FLOAT32, 3);
  args.k_scale = &three.t;
  refuse_write(&q, &args, ATTN_E_SHAPE, "k_scale");
  tensor_2(&wrong, values, ATTN_DTYPE_FLOAT32, 1, 2);
  args.k_scale = &wrong.t;
  refuse_write(&q, &args, ATTN_E_SHAPE, "k_scale");
  tensor_1(&wrong, values, ATTN_DTYPE_FLOAT16, 2);
  args.k_scale = &wrong.t;
  refuse_write(&q, &args, ATTN_E_DTYPE, "k_scale");
  args.k_scale = q.side[0].scale_given;
  tensor inside = q.side[0].scale; /* a static scale inside the pool that is written */
  size_t skip = aligned_from(&q.memory[0]);
  inside.t.data = q.memory[0].data + skip;
  inside.t.shape = inside.shape;
  inside.t.strides = inside.strides;
  memcpy(q.memory[0].data + skip, values, 8);
  memcpy(q.model[0] + skip, values, 8);
  args.k_scale = &inside.t;
  refuse_write(&q, &args, ATTN_E_OVERLAP, "k_scale");
  close_side(&q);
  open_side(&q, backend, ATTN_FORMAT_FLOAT16, 0, 0);
  args = quantising_write(&q);
  tensor_1(&three, values, ATTN_DTYPE_FLOAT32, 1);
  args.v_scale = &three.t;
  refuse_write(&q, &args, ATTN_E_NULL, "v_scale");
  close_side(&q);
}

static void separate_scales(const char *backend) {
  quantising q;
  open_side(&q, backend, ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 1, 0);
  attn_cache_write_args args = quantising_write(&q);
  args.v_scale = args.k_scale; /* two outputs in one memory */
  refuse_write(&q, &args, ATTN_E_OVERLAP, "k_scale");
  args.v_scale = NULL; /* then the rows should be longer */
  refuse_write(&q, &args, ATTN_E_SHAPE, "v_cache");
  args.v_scale = q.side[1].scale_given;
  tensor wrong = q.side[0].scale;
  wrong.t.shape = wrong.shape;
  wrong.t.strides = wrong.strides;
  args.k_scale = &wrong.t;
  wrong.shape[2] = QUANTISING_HEADS - 1;
  refuse_write(&q, &args, ATTN_E_SHAPE, "k_scale");
  wrong.shape[2] = QUANTISING_HEADS;
  wrong.strides[2] = 0; /* an output may not be broadcast */
  refuse_write(&q, &args, ATTN_E_STRIDE, "k_scale");
  wrong.strides[2] = 1;
  wrong.t.byte_offset = 2;
  refuse_write(&q, &args, ATTN_E_ALIGN, "k_scale");
  wrong.t.byte_offset = 0;
  wrong.t.data = q.memory[1].data + aligned_from(&q.memory[1]); /* scales of K in V's pool */
  refuse_write(&q, &args, ATTN_E_OVERLAP, "v_cache");
  wrong.t.data = q.side[0].scale.t.data;
  args.slot_mapping = &q.t_slots.t;
  EXPECT_OK(attn_cache_write(q.context, &args, &why));
  close_side(&q);
}

/* Rows beyond what is quantised on the stack are refused, static formats have no such bound. */
static void long_rows(const char *backend) {
  enum { LONG = ATTN_ROW_MAX + 1 };
  static float values[LONG], back[LONG];
  static unsigned char pool[2][LONG + 8];
  attn_context *context = open_context(1);
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  int64_t slot = 0;
  tensor t_rows, t_slot, t_pool[2];
  (void)back;
  for (int i = 0; i < LONG; i++) {
    values[i] = (float)(i % 7);
  }
  for (int size = ATTN_ROW_MAX; size <= LONG; size++) {
    tensor_3(&t_rows, values, ATTN_DTYPE_FLOAT32, 1, 1, size);
    tensor_1(&t_slot, &slot, ATTN_DTYPE_INT64, 1);
    args.backend = backend;
    args.k = args.v = &t_rows.t;
    args.slot_mapping = &t_slot.t;
    args.k_cache = &t_pool[0].t;
    args.v_cache = &t_pool[1].t;
    for (int f = ATTN_FORMAT_FP8_E4M3; f <= FORMATS; f++) {
      int64_t codes = f == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? (size + 1) / 2 : size;
      int64_t row = format_has_row_scale((attn_format)f) ? (codes + 3) / 4 * 4 + 4 : codes;
      tensor_4(&t_pool[0], pool[0], ATTN_DTYPE_UINT8, 1, 1, 1, row);
      tensor_4(&t_pool[1], pool[1], ATTN_DTYPE_UINT8, 1, 1, 1, row);
      args.k_format = (attn_format)f;
      if (size > ATTN_ROW_MAX && format_has_row_scale((attn_format)f)) {
        EXPECT_STATUS(attn_cache_write(context, &args, &why), ATTN_E_SHAPE, "8192");
      } else {
        EXPECT_OK(attn_cache_write(context, &args, &why));
        CHECK(memcmp(pool[0], pool[1], (size_t)row) == 0, "K and V of one row differ");
      }
    }
  }
  attn_context_destroy(context);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(every_pair),    BACKEND_TEST(every_form),      BACKEND_TEST(formats_of_bytes),
      BACKEND_TEST(static_scales), BACKEND_TEST(separate_scales), BACKEND_TEST(long_rows),
  };
  return cmocka_run_group_tests_name("cache_formats", tests, NULL, NULL);
}
