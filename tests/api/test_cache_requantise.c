/* SPDX-License-Identifier: Apache-2.0 */
/* attn_cache_requantise(): for every pair of formats the bytes of a gather in float32 and a write, nothing else
   touched; every status. */
#include <stdio.h>
#include <string.h>

#include "quantising.h"

enum { BLOCKS = QUANTISING_BLOCKS, BLOCK = QUANTISING_BLOCK, HEADS = QUANTISING_HEADS, FORMATS = 8, MOST = 65 };

static char label[96];

/* Two caches: side 0 of each is used. */
typedef struct requantise_case {
  quantising from, to;
  int64_t map[3][2];
  tensor t_map;
} requantise_case;

static void set_side(quantising_side *side, attn_format format, int32_t size, int separate) {
  memset(side, 0, sizeof *side);
  side->format = format;
  side->size = size;
  side->separate = separate && format_has_row_scale(format);
  side->num_statics = format_is_static(format) ? 2 : 0;
  side->statics[0] = 0.21f;
  side->statics[1] = 0.05f;
}

static void open_case(requantise_case *c, const char *backend, attn_format source, attn_format target, int32_t size,
                      int n) {
  static const int64_t map[3][2] = {{4, 0}, {1, 3}, {4, 2}}; /* a source block may stand twice */
  memset(c, 0, sizeof *c);
  c->from.context = c->to.context = open_context(1 + n % 2);
  c->from.backend = c->to.backend = backend;
  c->from.layout = n % 2 ? ATTN_LAYOUT_HND : ATTN_LAYOUT_NHD;
  c->to.layout = n / 2 % 2 ? ATTN_LAYOUT_HND : ATTN_LAYOUT_NHD;
  for (int i = 0; i < 2; i++) {
    set_side(&c->from.side[i], source, size, n % 3 == 1);
    set_side(&c->to.side[i], target, size, n % 3 == 2);
  }
  quantising_open(&c->from, (quantising_lay)(n % LAY_COUNT));
  quantising_open(&c->to, (quantising_lay)(n / 4 % LAY_SHARED)); /* K and V apart: only K's memory changes */
  memcpy(c->map, map, sizeof map);
  tensor_2(&c->t_map, c->map, ATTN_DTYPE_INT64, 3, 2);
}

static void close_case(requantise_case *c) {
  attn_context_destroy(c->from.context);
  quantising_close(&c->from);
  quantising_close(&c->to);
}

static attn_cache_requantise_args args_of(const requantise_case *c) {
  attn_cache_requantise_args args = ATTN_CACHE_REQUANTISE_INIT;
  args.backend = c->from.backend;
  args.source_format = c->from.side[0].format;
  args.target_format = c->to.side[0].format;
  args.source_layout = c->from.layout;
  args.target_layout = c->to.layout;
  args.head_size = c->from.side[0].size;
  args.source = &c->from.side[0].pool.t;
  args.source_scale = c->from.side[0].scale_given;
  args.target = &c->to.side[0].pool.t;
  args.target_scale = c->to.side[0].scale_given;
  args.block_map = &c->t_map.t;
  return args;
}

/* The same move by the public calls: gather a source block in float32, write it to the target's slots. A second target
   pool of the same content takes it, so that the bytes can be compared. */
static void gather_and_write(requantise_case *c, int64_t source, int64_t target) {
  static float rows[BLOCK * HEADS * MOST];
  attn_cache_gather_args gather = ATTN_CACHE_GATHER_INIT;
  attn_cache_write_args write = quantising_write(&c->to);
  int32_t table = (int32_t)source, len = BLOCK;
  int64_t slots[BLOCK];
  tensor t_rows, t_table, t_len, t_slots;
  for (int64_t i = 0; i < BLOCK; i++) {
    slots[i] = target * BLOCK + i;
  }
  tensor_3(&t_rows, rows, ATTN_DTYPE_FLOAT32, BLOCK, HEADS, c->from.side[0].size);
  tensor_2(&t_table, &table, ATTN_DTYPE_INT32, 1, 1);
  tensor_1(&t_len, &len, ATTN_DTYPE_INT32, 1);
  tensor_1(&t_slots, slots, ATTN_DTYPE_INT64, BLOCK);
  gather.backend = c->from.backend;
  gather.layout = c->from.layout;
  gather.k_format = c->from.side[0].format;
  gather.k_cache = &c->from.side[0].pool.t;
  gather.k_scale = c->from.side[0].scale_given;
  gather.block_table = &t_table.t;
  gather.seq_lens = &t_len.t;
  gather.k = &t_rows.t;
  write.k = write.v = &t_rows.t;
  write.slot_mapping = &t_slots.t;
  EXPECT_OK(attn_cache_gather(c->from.context, &gather, &why));
  EXPECT_OK(attn_cache_write(c->to.context, &write, &why));
}

/* What a pool's memory and its scales' hold, to be compared or put back. */
static void exchange(quantising *q, unsigned char *kept, int put_back) {
  for (int i = 0; i < 4; i++) {
    if (q->memory[i].bytes > 0) {
      if (put_back) {
        memcpy(q->memory[i].data, kept, q->memory[i].bytes);
      } else {
        memcpy(kept, q->memory[i].data, q->memory[i].bytes);
      }
      kept += q->memory[i].bytes;
    }
  }
}

/* The write moves V too, the requantisation K alone: V's memory counts as the model has it. */
static void expect_written(quantising *q) {
  for (int i = 0; i < 4; i++) {
    if (q->memory[i].bytes > 0 && i % 2 == 0) {
      memcpy(q->model[i], q->memory[i].data, q->memory[i].bytes);
    }
  }
}

static void every_pair(const char *backend) {
  static const int32_t sizes[] = {1, 17, 64, MOST};
  static unsigned char kept[1 << 17];
  for (int n = 0; n < FORMATS * FORMATS * 4; n++) {
    requantise_case c;
    attn_format source = (attn_format)(n % FORMATS + 1), target = (attn_format)(n / FORMATS % FORMATS + 1);
    (void)snprintf(label, sizeof label, "%s, case %d: %s to %s", backend, n, attn_format_name(source),
                   attn_format_name(target));
    harness_label(label);
    open_case(&c, backend, source, target, sizes[n / FORMATS % 4], n + n / 64);
    attn_cache_write_args seed = quantising_write(&c.from); /* some rows that were written, the others are random */
    EXPECT_OK(attn_cache_write(c.from.context, &seed, &why));
    for (int64_t t = 0; t < QUANTISING_TOKENS; t++) {
      if (c.from.slots[t] >= 0) {
        quantising_expect(&c.from, t);
      }
    }
    CHECK(c.to.memory[0].bytes + c.to.memory[1].bytes + c.to.memory[2].bytes + c.to.memory[3].bytes <= sizeof kept,
          "too small");
    exchange(&c.to, kept, 0);
    for (int i = 0; i < 3; i++) {
      gather_and_write(&c, c.map[i][0], c.map[i][1]);
    }
    expect_written(&c.to);
    exchange(&c.to, kept, 1);
    attn_cache_requantise_args args = args_of(&c);
    EXPECT_OK(attn_cache_requantise(c.from.context, &args, &why));
    quantising_check(&c.from, "the source");
    quantising_check(&c.to, "the target");
    close_case(&c);
  }
}

static void refuse(const requantise_case *c, const attn_cache_requantise_args *args, attn_status status,
                   const char *named) {
  EXPECT_STATUS(attn_cache_requantise(c->from.context, args, &why), status, named);
  quantising_check(&c->to, named);
}

static void statuses(const char *backend) {
  requantise_case c;
  tensor t;
  open_case(&c, backend, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 17, 12);
  attn_cache_requantise_args good = args_of(&c), args = good;
  EXPECT_STATUS(attn_cache_requantise(NULL, &good, &why), ATTN_E_NULL, "context");
  EXPECT_STATUS(attn_cache_requantise(c.from.context, NULL, &why), ATTN_E_NULL, "args");
  args.size = 8;
  refuse(&c, &args, ATTN_E_STRUCT_SIZE, NULL);
  args = good;
  args.backend = "NO_SUCH";
  refuse(&c, &args, ATTN_E_NAME, "NO_SUCH");
  args.backend = "HOPPER_ATTN";
  refuse(&c, &args, ATTN_E_BACKEND, "HOPPER_ATTN");
  args = good;
  args.source_layout = (attn_layout)2;
  refuse(&c, &args, ATTN_E_RANGE, "source_layout");
  args = good;
  args.target_layout = (attn_layout)-1;
  refuse(&c, &args, ATTN_E_RANGE, "target_layout");
  args = good;
  args.head_size = 0; /* neither side's bytes tell it */
  refuse(&c, &args, ATTN_E_RANGE, "head_size");
  args.head_size = -4;
  refuse(&c, &args, ATTN_E_RANGE, "head_size");
  args.head_size = 16;
  refuse(&c, &args, ATTN_E_SHAPE, "source");
  args = good;
  args.source_format = ATTN_FORMAT_AUTO;
  refuse(&c, &args, ATTN_E_DTYPE, "source_format");
  args.source_format = ATTN_FORMAT_FP8_DS_MLA;
  refuse(&c, &args, ATTN_E_UNSUPPORTED, "fp8_ds_mla");
  args = good;
  args.target_format = (attn_format)55;
  refuse(&c, &args, ATTN_E_RANGE, "target_format");
  args = good;
  args.source = NULL;
  refuse(&c, &args, ATTN_E_NULL, "source");
  args = good;
  args.target = NULL;
  refuse(&c, &args, ATTN_E_NULL, "target");
  args = good;
  args.block_map = NULL;
  refuse(&c, &args, ATTN_E_NULL, "block_map");
  args = good;
  tensor_2(&t, c.map, ATTN_DTYPE_INT64, 2, 3);
  args.block_map = &t.t;
  refuse(&c, &args, ATTN_E_SHAPE, "block_map");
  args = good;
  args.target = args.source; /* in place */
  args.target_format = args.source_format;
  refuse(&c, &args, ATTN_E_OVERLAP, "target");
  args = good;
  args.source_scale = &c.t_map.t; /* rows with inline scales, and no scales these */
  refuse(&c, &args, ATTN_E_SHAPE, "source");
  args = good;
  c.map[1][0] = BLOCKS;
  refuse(&c, &args, ATTN_E_INDEX, "block_map[1][0]");
  c.map[1][0] = -1;
  refuse(&c, &args, ATTN_E_INDEX, "block_map[1][0]");
  c.map[1][0] = 1;
  c.map[2][1] = 3;
  refuse(&c, &args, ATTN_E_INDEX, "named by another pair");
  c.map[2][1] = INT64_MAX;
  refuse(&c, &args, ATTN_E_INDEX, "block_map[2][1]");
  close_case(&c);
}

/* The target may have fewer blocks than the source, and more. */
static void unlike_pools(const char *backend) {
  requantise_case c;
  open_case(&c, backend, ATTN_FORMAT_BFLOAT16, ATTN_FORMAT_FP8_PER_TOKEN_HEAD, 8, 12);
  attn_cache_requantise_args args = args_of(&c);
  args.head_size = 0; /* the source's rows tell it */
  c.to.side[0].pool.shape[0] = 3;
  refuse(&c, &args, ATTN_E_INDEX, "block_map[1][1]");
  c.map[1][1] = 1;
  EXPECT_OK(attn_cache_requantise(c.from.context, &args, &why));
  c.from.side[0].pool.shape[0] = 2;
  EXPECT_STATUS(attn_cache_requantise(c.from.context, &args, &why), ATTN_E_INDEX, "block_map[0][0]");
  c.to.side[0].pool.shape[1] = BLOCK - 1;
  EXPECT_STATUS(attn_cache_requantise(c.from.context, &args, &why), ATTN_E_SHAPE, "target");
  close_case(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BACKEND_TEST(every_pair),
      BACKEND_TEST(statuses),
      BACKEND_TEST(unlike_pools),
  };
  return cmocka_run_group_tests_name("cache_requantise", tests, NULL, NULL);
}
