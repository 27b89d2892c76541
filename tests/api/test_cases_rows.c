/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 104 to 116 that look at single rows of quantised caches: fp8 codes both ways, rows of one value, sizes from one
   function, and that each listed format does what it is listed for. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quantising.h"
#include "scene.h"

enum { MOST = 512, BLOCKS = 3, BLOCK = 4, SLOTS = BLOCKS * BLOCK };

/* A cache of one head whose pools are exactly what attn_cache_describe() says. */
typedef struct cache {
  const char *backend;
  attn_context *context;
  attn_cache_info info;
  attn_format format;
  int32_t size;
  guarded k_data, v_data;
  tensor k, v;
} cache;

static void cache_open(cache *c, const char *backend, attn_format format, int32_t size) {
  attn_cache_desc desc = ATTN_CACHE_DESC_INIT;
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  memset(c, 0, sizeof *c);
  c->backend = backend;
  c->context = open_context(1);
  c->format = desc.k_format = format;
  c->size = desc.head_size = size;
  desc.num_blocks = BLOCKS;
  desc.block_size = BLOCK;
  desc.num_kv_heads = 1;
  EXPECT_OK(attn_cache_describe(&desc, &info, &why));
  c->info = info;
  c->k_data = guard_make(info.k.bytes);
  c->v_data = guard_make(info.v.bytes);
  tensor_over(&c->k, c->k_data.data, info.k.dtype, 4, info.k.shape);
  tensor_over(&c->v, c->v_data.data, info.v.dtype, 4, info.v.shape);
}

static void cache_close(cache *c) {
  attn_context_destroy(c->context);
  guard_free(&c->k_data);
  guard_free(&c->v_data);
}

/* `count` rows of float32 as K and V of the slots from 0 on. */
static attn_status cache_write(cache *c, float *rows, int64_t count, attn_message *message) {
  int64_t slots[SLOTS];
  tensor t_rows, t_slots;
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  for (int64_t i = 0; i < count; i++) {
    slots[i] = i;
  }
  tensor_3(&t_rows, rows, ATTN_DTYPE_FLOAT32, count, 1, c->size);
  tensor_1(&t_slots, slots, ATTN_DTYPE_INT64, count);
  args.backend = c->backend;
  args.k_format = c->format;
  args.k = args.v = &t_rows.t;
  args.k_cache = &c->k.t;
  args.v_cache = &c->v.t;
  args.slot_mapping = &t_slots.t;
  return attn_cache_write(c->context, &args, message);
}

/* The rows of K back, in float32. */
static attn_status cache_gather(cache *c, float *rows, int32_t count, attn_message *message) {
  int32_t table[BLOCKS] = {0, 1, 2};
  tensor t_rows, t_table, t_len;
  attn_cache_gather_args args = ATTN_CACHE_GATHER_INIT;
  tensor_3(&t_rows, rows, ATTN_DTYPE_FLOAT32, count, 1, c->size);
  tensor_2(&t_table, table, ATTN_DTYPE_INT32, 1, BLOCKS);
  tensor_1(&t_len, &count, ATTN_DTYPE_INT32, 1);
  args.backend = c->backend;
  args.k_format = c->format;
  args.k_cache = &c->k.t;
  args.block_table = &t_table.t;
  args.seq_lens = &t_len.t;
  args.k = &t_rows.t;
  return attn_cache_gather(c->context, &args, message);
}

/* One sequence of one token with `kv_len` keys: out of `heads` rows of v_size elements, lse of each head. */
static void attend(const char *backend, const attn_problem *p, void *q, void *k, void *v, float *out, float *lse) {
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  attn_batch batch = ATTN_BATCH_INIT;
  attn_run_args run = ATTN_RUN_INIT;
  attn_plan *plan = NULL;
  guarded memory;
  int32_t starts[] = {0, 1}, one = 1, zero = 0;
  float q_scale = 1;
  tensor t_q, t_k, t_v, t_out, t_lse, t_table, t_starts, t_len, t_scale;
  attn_context *context = open_context(1);
  limits.max_tokens = limits.max_kv_len = 1;
  options.backend = backend;
  EXPECT_OK(attn_plan_create(context, p, &limits, &options, &plan, &why));
  attn_workspace workspace = workspace_make(plan, &memory);
  tensor_3(&t_q, q, p->q_dtype, 1, p->num_q_heads, p->qk_head_size);
  tensor_4(&t_k, k, ATTN_DTYPE_UINT8, 1, 1, p->num_kv_heads, p->qk_head_size);
  tensor_4(&t_v, v, ATTN_DTYPE_UINT8, 1, 1, p->num_kv_heads, p->v_head_size);
  tensor_3(&t_out, out, ATTN_DTYPE_FLOAT32, 1, p->num_q_heads, p->v_head_size);
  tensor_2(&t_lse, lse, ATTN_DTYPE_FLOAT32, 1, p->num_q_heads);
  tensor_2(&t_table, &zero, ATTN_DTYPE_INT32, 1, 1);
  tensor_1(&t_starts, starts, ATTN_DTYPE_INT32, 2);
  tensor_1(&t_len, &one, ATTN_DTYPE_INT32, 1);
  tensor_1(&t_scale, &q_scale, ATTN_DTYPE_FLOAT32, 1);
  batch.query_start_loc = &t_starts.t;
  batch.seq_lens = &t_len.t;
  run.q = &t_q.t;
  run.q_scale = p->q_dtype == ATTN_DTYPE_FP8_E4M3 ? &t_scale.t : NULL;
  run.k_cache = &t_k.t;
  run.v_cache = &t_v.t;
  run.block_table = &t_table.t;
  run.out = &t_out.t;
  run.lse = &t_lse.t;
  EXPECT_OK(attn_plan_schedule(plan, &batch, &workspace, &why));
  EXPECT_OK(attn_run(plan, &run, &workspace, &why));
  attn_plan_destroy(plan);
  attn_context_destroy(context);
  guard_free(&memory);
}

/* ---- 104: every code of both fp8 formats ------------------------------------------------------------------------- */

/* The value of a code: of e4m3, or of e5m2. */
static float value_of(int code, int e5m2) {
  int mantissa_bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
  int exponent = (code & 0x7F) >> mantissa_bits, fraction = code & ((1 << mantissa_bits) - 1);
  int special = e5m2 ? exponent == 31 : (code & 0x7F) == 0x7F;
  float infinity_or_nan = e5m2 && fraction == 0 ? INFINITY : NAN;
  float finite = exponent == 0 ? ldexpf((float)fraction, 1 - bias - mantissa_bits)
                               : ldexpf((float)(fraction + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
  return copysignf(special ? infinity_or_nan : finite, code & 0x80 ? -1.0f : 1.0f);
}

static attn_format fp8_of(int e5m2) {
  return e5m2 ? ATTN_FORMAT_FP8_E5M2 : ATTN_FORMAT_FP8_E4M3;
}

/* By gather and write: each code decodes to its value, whose code it is again. */
static void codes_and_back(const char *backend, int e5m2) {
  cache c;
  float values[256];
  cache_open(&c, backend, fp8_of(e5m2), 256);
  for (int i = 0; i < 256; i++) {
    c.k_data.data[i] = (unsigned char)i;
  }
  EXPECT_OK(cache_gather(&c, values, 1, &why));
  EXPECT_OK(cache_write(&c, values, 1, &why));
  for (int i = 0; i < 256; i++) {
    float wanted = value_of(i, e5m2);
    CHECK(isnan(wanted) ? isnan(values[i]) : values[i] == wanted && !signbit(values[i]) == !signbit(wanted),
          "code %02X decodes to %g, expected %g", (unsigned)i, (double)values[i], (double)wanted);
    int code = isnan(wanted) ? 0x7F : isinf(wanted) ? (i & 0x80) | 0x7B : i;
    CHECK(c.k_data.data[i] == code, "%g is stored as %02X, expected %02X", (double)wanted, c.k_data.data[i],
          (unsigned)code);
  }
  cache_close(&c);
}

/* Halfway between each two neighbours, and the floats beside it: in a row with a static scale of 1, or of a format
   whose row has that scale since its largest value is 448. The neighbour of 0 is half of the smallest subnormal. */
static void ties(const char *backend, attn_format format) {
  int e5m2 = format == ATTN_FORMAT_FP8_E5M2, last = e5m2 ? 0x7B : 0x7E;
  for (int beside = -1; beside <= 1; beside++) {
    cache c;
    float rows[2 * 128] = {0};
    cache_open(&c, backend, format, 128);
    for (int code = 0; code < last; code++) {
      float middle = 0.5f * (value_of(code, e5m2) + value_of(code + 1, e5m2));
      rows[code] = beside == 0 ? middle : nextafterf(middle, beside < 0 ? 0.0f : INFINITY);
      rows[128 + code] = -rows[code];
    }
    rows[127] = value_of(last, e5m2); /* rows of e4m3 that have a scale: 448 / 448 */
    rows[255] = -rows[127];
    EXPECT_OK(cache_write(&c, rows, 2, &why));
    for (int i = 0; i < 256; i++) {
      int code = i % 128;
      int wanted = code == 127 ? last : code >= last ? 0 : beside == 0 ? code + code % 2 : code + (beside > 0);
      const unsigned char *row = c.k_data.data + (size_t)(i / 128) * c.info.k.row_bytes;
      CHECK(row[code] == (wanted | (i >= 128 && code != last ? 0x80 : 0)) || code >= last,
            "%.9g is stored as %02X, expected %02X", (double)rows[i], row[code], (unsigned)wanted);
    }
    cache_close(&c);
  }
}

/* What lies beyond is saturated, at the first float that a wider format would round up too. */
static void saturation(const char *backend, int e5m2) {
  float most = value_of(e5m2 ? 0x7B : 0x7E, e5m2);
  float rows[] = {most * 1.03f, most * 1.07f, most * 2.0f, 3e38f, INFINITY, -most * 1.07f, -INFINITY, NAN};
  cache c;
  cache_open(&c, backend, fp8_of(e5m2), 8);
  EXPECT_OK(cache_write(&c, rows, 1, &why));
  for (int i = 0; i < 8; i++) {
    int wanted = i == 7 ? 0x7F : (e5m2 ? 0x7B : 0x7E) | (i == 5 || i == 6 ? 0x80 : 0);
    CHECK(c.k_data.data[i] == wanted, "%g is stored as %02X, expected %02X", (double)rows[i], c.k_data.data[i],
          (unsigned)wanted);
  }
  cache_close(&c);
}

static void expect_code(const char *what, int code, float got, float wanted) {
  double room = ldexp(1.0, -19) * fmax(1.0, fabs((double)wanted));
  int same = isnan(wanted)   ? isnan(got)
             : isinf(wanted) ? !isfinite(got) /* inf - inf in the softmax of a key is NaN */
                             : fabs((double)got - (double)wanted) <= room;
  CHECK(same, "code %02X of %s counts as %g, expected %g", (unsigned)code, what, (double)got, (double)wanted);
}

/* By attention to one key: out is V's row; of 256 heads of one element lse is q * k. */
static void codes_in_attention(const char *backend, int e5m2, int is_query) {
  static unsigned char codes[256], ones[256];
  static float out[256], lse[256], q[256];
  attn_problem p = ATTN_PROBLEM_INIT;
  for (int i = 0; i < 256; i++) {
    codes[i] = (unsigned char)i;
    ones[i] = e5m2 ? 0x3C : 0x38;
    q[i] = 1;
  }
  p.num_q_heads = p.num_kv_heads = 256;
  p.qk_head_size = p.v_head_size = 1;
  p.block_size = 1;
  p.scale = 1;
  p.wants_lse = 1;
  p.out_dtype = ATTN_DTYPE_FLOAT32;
  p.k_format = fp8_of(e5m2);
  p.q_dtype = is_query ? ATTN_DTYPE_FP8_E4M3 : ATTN_DTYPE_FLOAT32;
  attend(backend, &p, is_query ? (void *)codes : q, is_query ? ones : codes, ones, out, lse);
  for (int i = 0; i < 256; i++) {
    expect_code(is_query ? "q" : "K", i, lse[i], value_of(i, is_query ? 0 : e5m2));
  }
  p.num_q_heads = p.num_kv_heads = 1;
  p.v_head_size = 256;
  attend(backend, &p, is_query ? (void *)ones : q, ones, codes, out, lse);
  for (int i = 0; i < 256; i++) {
    expect_code("V", i, out[i], value_of(i, e5m2));
  }
}

static void all_codes(const char *backend) {
  for (int e5m2 = 0; e5m2 < 2; e5m2++) {
    codes_and_back(backend, e5m2);
    saturation(backend, e5m2);
    ties(backend, fp8_of(e5m2));
    codes_in_attention(backend, e5m2, 0);
  }
  ties(backend, ATTN_FORMAT_FP8_PER_TOKEN_HEAD);
  if (backend_serves_fp8_queries(backend)) {
    codes_in_attention(backend, 0, 1);
  }
}

static void case_104_every_fp8_code(void **state) {
  (void)state;
  for_each_backend(all_codes);
}

/* ---- 106: a row of one value, and one that is all but 0 ---------------------------------------------------------- */

/* Half a step of a row of this format around x; `stored` is the row. */
static double half_step(const cache *c, const unsigned char *stored, double x) {
  uint32_t bits;
  float scale;
  memcpy(&bits, stored + c->info.k.row_bytes - 4, sizeof bits);
  if (c->format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD) {
    bits &= ~0xFu; /* the zero point, which costs the scale 2^-19 of itself, 15 codes long */
  }
  memcpy(&scale, &bits, sizeof scale);
  switch (c->format) {
  case ATTN_FORMAT_INT8_PER_TOKEN_HEAD:
    return 0.5001 * (double)scale;
  case ATTN_FORMAT_INT4_PER_TOKEN_HEAD:
    return 0.501 * (double)scale;
  case ATTN_FORMAT_FP8_PER_TOKEN_HEAD:
    return fmax(0.0626 * fabs(x), 0.5001 * ldexp((double)scale, -9));
  case ATTN_FORMAT_FP8_E4M3:
    return fmax(0.0626 * fabs(x), ldexp(1.0, -10));
  case ATTN_FORMAT_FP8_E5M2:
    return fmax(0.1251 * fabs(x), ldexp(1.0, -17));
  default:
    return fmax(fabs(x) * ldexp(1.0, -8), ldexp(1.0, -25));
  }
}

static void constant_rows(const char *backend, attn_format format) {
  static const int32_t sizes[] = {1, 64, 65, 96};
  static const float constants[] = {3.0f, -3.0f, 0.0f, 1e-30f, 0.011f, 200.0f};
  for (size_t n = 0; n < sizeof sizes / sizeof sizes[0] * 7; n++) {
    cache c;
    float row[MOST], back[MOST];
    int32_t size = sizes[n / 7];
    int kind = (int)(n % 7);
    cache_open(&c, backend, format, size);
    fill_floats(row, size, kind < 6 ? constants[kind] : 0.0f);
    row[size - 1] = kind == 6 ? 1e-30f : row[size - 1];
    EXPECT_OK(cache_write(&c, row, 1, &why));
    EXPECT_OK(cache_gather(&c, back, 1, &why));
    for (int32_t i = 0; i < size; i++) {
      double room = half_step(&c, c.k_data.data, (double)row[i]);
      CHECK(fabs((double)back[i] - (double)row[i]) <= room && (kind != 2 || back[i] == 0.0f),
            "%g of a row of %d comes back as %g, half a step is %g", (double)row[i], (int)size, (double)back[i], room);
    }
    cache_close(&c);
  }
}

static void case_106_constant_vectors(void **state) {
  (void)state;
  for_each_cache(constant_rows);
}

/* ---- 108: one function has every size ---------------------------------------------------------------------------- */

/* Bytes of a row by the words of docs/layouts.md. */
static int64_t row_bytes(attn_format format, int64_t size) {
  int64_t codes = format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? (size + 1) / 2 : size;
  return format_has_row_scale(format)    ? (codes + 3) / 4 * 4 + 4
         : format_is_static(format)      ? size
         : format == ATTN_FORMAT_FLOAT32 ? 4 * size
                                         : 2 * size;
}

/* The pool that is described is the one that calls take, and no other. */
static void described_is_accepted(const char *backend, attn_format format, int32_t size) {
  cache c;
  float rows[2 * MOST], back[2 * MOST];
  uint32_t seed = 3;
  cache_open(&c, backend, format, size);
  for (int i = 0; i < 2 * size; i++) {
    rows[i] = random_normal(&seed);
  }
  CHECK((int64_t)c.info.k.row_bytes == row_bytes(format, size), "a row of %d has %d bytes", (int)size,
        (int)c.info.k.row_bytes);
  CHECK((int64_t)c.info.bytes_per_block == 2 * BLOCK * row_bytes(format, size), "another block");
  CHECK(c.info.bytes_per_token == 2.0 * (double)row_bytes(format, size), "another position");
  EXPECT_OK(cache_write(&c, rows, 2, &why));
  EXPECT_OK(cache_gather(&c, back, 2, &why));
  for (int other = -1; other <= 1; other += 2) {
    c.k.shape[3] = c.info.k.shape[3] + other;
    EXPECT_STATUS(cache_write(&c, rows, 2, &why), ATTN_E_SHAPE, "k_cache");
    EXPECT_STATUS(cache_gather(&c, back, 2, &why), ATTN_E_SHAPE, NULL);
  }
  cache_close(&c);
}

/* Two groups of one pool: the parts of their pages are the tensors described, and the pages have one size. */
static void groups_of_one_pool(attn_format format) {
  static const int32_t sizes[] = {256, 512};
  attn_cache_desc layers[2] = {ATTN_CACHE_DESC_INIT, ATTN_CACHE_DESC_INIT};
  attn_group_spec specs[2] = {ATTN_GROUP_SPEC_INIT, ATTN_GROUP_SPEC_INIT};
  attn_group_pages pages[2] = {ATTN_GROUP_PAGES_INIT, ATTN_GROUP_PAGES_INIT};
  attn_geometry geometry = ATTN_GEOMETRY_INIT;
  for (int g = 0; g < 2; g++) {
    layers[g].k_format = format;
    layers[g].num_kv_heads = 2;
    layers[g].head_size = sizes[g];
    specs[g].num_layers = 1;
    specs[g].layer = &layers[g];
  }
  EXPECT_OK(attn_geometry_unify(NULL, 2, specs, pages, &geometry, &why));
  for (int g = 0; g < 2; g++) {
    uint64_t token = 2 * 2 * (uint64_t)row_bytes(format, sizes[g]);
    CHECK(pages[g].token_bytes == token, "group %d: %d bytes of a position", g, (int)pages[g].token_bytes);
    CHECK((uint64_t)pages[g].block_size * token + pages[g].padding_bytes == geometry.page_bytes, "group %d: page", g);
    for (int part = 0; part < 2; part++) {
      attn_cache_info info = ATTN_CACHE_INFO_INIT;
      EXPECT_OK(attn_cache_describe(&layers[g], &info, &why));
      const attn_cache_layout *described = part == 0 ? &info.k : &info.v;
      CHECK(pages[g].part[part].row_bytes == described->row_bytes &&
                pages[g].part[part].shape[3] == described->shape[3] && pages[g].part[part].dtype == described->dtype,
            "group %d: part %d is not what is described", g, part);
    }
  }
}

static void sizes_of(const char *backend, attn_format format) {
  described_is_accepted(backend, format, 256);
  described_is_accepted(backend, format, 512);
  groups_of_one_pool(format);
}

static void case_108_sizes_from_one_function(void **state) {
  (void)state;
  for_each_cache(sizes_of);
}

/* ---- 116: what is listed works, what does not is refused by name ------------------------------------------------- */

/* Written and gathered, the rows come back; requantised from float32 they have the bytes of the write. */
static void works(const char *backend, attn_format format) {
  enum { SIZE = 40, ROWS = SLOTS };
  cache c, plain, converted;
  float rows[ROWS * SIZE], back[ROWS * SIZE];
  int64_t map[BLOCKS][2] = {{0, 0}, {1, 1}, {2, 2}};
  uint32_t seed = 8;
  tensor t_map;
  attn_cache_requantise_args args = ATTN_CACHE_REQUANTISE_INIT;
  cache_open(&c, backend, format, SIZE);
  cache_open(&plain, backend, ATTN_FORMAT_FLOAT32, SIZE);
  cache_open(&converted, backend, format, SIZE);
  for (int i = 0; i < ROWS * SIZE; i++) {
    rows[i] = random_normal(&seed);
  }
  EXPECT_OK(cache_write(&c, rows, ROWS, &why));
  EXPECT_OK(cache_write(&plain, rows, ROWS, &why));
  EXPECT_OK(cache_gather(&c, back, ROWS, &why));
  for (int i = 0; i < ROWS * SIZE; i++) { /* of values within 3.5 the widest step is int4's, of a rotated row */
    CHECK(fabsf(back[i] - rows[i]) <= 1.5f, "%g comes back as %g", (double)rows[i], (double)back[i]);
  }
  tensor_2(&t_map, map, ATTN_DTYPE_INT64, BLOCKS, 2);
  args.backend = backend;
  args.target_format = format;
  args.source = &plain.k.t;
  args.target = &converted.k.t;
  args.block_map = &t_map.t;
  EXPECT_OK(attn_cache_requantise(c.context, &args, &why));
  assert_memory_equal(c.k_data.data, converted.k_data.data, c.k_data.bytes);
  cache_close(&c);
  cache_close(&plain);
  cache_close(&converted);
}

static void refused(const char *backend, attn_format format, const char *name) {
  cache c;
  float rows[64] = {0};
  cache_open(&c, backend, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 60);
  c.format = format;
  EXPECT_STATUS(cache_write(&c, rows, 1, &why), ATTN_E_UNSUPPORTED, name);
  EXPECT_STATUS(cache_gather(&c, rows, 1, &why), ATTN_E_UNSUPPORTED, name);
  cache_close(&c);
}

static void every_listed(const char *backend) {
  static const struct {
    attn_format format;
    const char *name;
    int built;
  } list[] = {
#define ROW(name, value, spelling, storage, rows) {name, spelling, ((rows)&ATTN_ROWS_KV) != 0},
      ATTN_FORMAT_LIST(ROW)
#undef ROW
  };
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    attn_cache_desc desc = ATTN_CACHE_DESC_INIT;
    attn_cache_info info = ATTN_CACHE_INFO_INIT;
    attn_problem problem = ATTN_PROBLEM_INIT;
    desc.k_format = problem.k_format = list[i].format;
    desc.num_kv_heads = problem.num_kv_heads = problem.num_q_heads = 1;
    desc.head_size = problem.qk_head_size = 64;
    problem.scale = 0.125f;
    if (list[i].built) {
      EXPECT_OK(attn_cache_describe(&desc, &info, &why));
      EXPECT_OK(attn_problem_check(&problem, &why));
      assert_true(backend_serves("REFERENCE", list[i].format, list[i].format));
      works(backend, list[i].format);
    } else {
      EXPECT_STATUS(attn_cache_describe(&desc, &info, &why), ATTN_E_UNSUPPORTED, list[i].name);
      EXPECT_STATUS(attn_problem_check(&problem, &why), ATTN_E_UNSUPPORTED, list[i].name);
      refused(backend, list[i].format, list[i].name);
    }
  }
}

static void case_116_every_listed_format_works(void **state) {
  (void)state;
  for_each_backend(every_listed);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_104_every_fp8_code),
      cmocka_unit_test(case_106_constant_vectors),
      cmocka_unit_test(case_108_sizes_from_one_function),
      cmocka_unit_test(case_116_every_listed_format_works),
  };
  return cmocka_run_group_tests_name("cases_rows", tests, NULL, NULL);
}
