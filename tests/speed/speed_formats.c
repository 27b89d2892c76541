/* SPDX-License-Identifier: Apache-2.0 */
/* speed_formats.c: what a cache format costs in time, against CPU_ATTN's own bfloat16 and against memcpy, one thread,
 * interleaved with what it is compared with, medians of the time that the thread really ran.
 *   decode: 8 sequences of 4,096 keys, heads of 128, 32/8 (judged) and 8/8 (reported)
 *   write:  bfloat16 rows of 8 heads of 128 that no cache holds, source bytes per second over memcpy's
 *
 *   speed_formats               prints the figures
 *   speed_formats MOST          exits 1 when a quantised decode takes more than MOST times bfloat16's, or a write is
 *                               below 0.3 (bfloat16), 0.08 (8 bits) or 0.04 (4 bits) of memcpy
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "limits.h"

enum { SEQS = 8, KEYS = 4096, KV_HEADS = 8, SIZE = 128, BLOCK = 64, ROUNDS = 9, TOKENS = SEQS * KEYS };

static uint64_t state = 0x9e3779b97f4a7c15u;

/* About normal: the sum of four uniform numbers. */
static float normal(void) {
  float sum = 0.0f;
  for (int i = 0; i < 4; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    sum += (float)(int32_t)(state >> 32) * 0x1p-31f;
  }
  return sum * 0.866f;
}

static void check(attn_status status, const char *what, const attn_message *message) {
  if (status != ATTN_OK) {
    (void)fprintf(stderr, "speed_formats: %s: %s\n", what, message->text);
    exit(1);
  }
}

static void *allocate(size_t bytes) {
  void *memory = malloc(bytes);
  if (memory == NULL) {
    (void)fprintf(stderr, "speed_formats: out of memory\n");
    exit(1);
  }
  memset(memory, 0xFF, bytes);
  return memory;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, int n) {
  qsort(values, (size_t)n, sizeof *values, by_value);
  return values[n / 2];
}

/* One call's tensors and the lists that all share. */
typedef struct cache {
  attn_format format;
  void *k_memory, *v_memory;
  DLTensor k, v;
  attn_cache_info info;
} cache;

static struct {
  attn_context *context;
  uint16_t *rows; /* [TOKENS, KV_HEADS, SIZE] bfloat16: source of k and of v */
  int64_t slots[TOKENS];
  int32_t table[TOKENS / BLOCK];
  int32_t starts[SEQS + 1], lens[SEQS];
  int64_t rows_shape[3], slots_shape[1], table_shape[2], starts_shape[1], lens_shape[1];
  DLTensor source, slot_mapping, block_table, query_start_loc, seq_lens;
} t;

static uint16_t brain(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

static void make_lists(void) {
  size_t elements = (size_t)TOKENS * KV_HEADS * SIZE;
  size_t blocks = TOKENS / BLOCK;
  t.rows = allocate(elements * sizeof *t.rows);
  for (size_t i = 0; i < elements; i++) {
    t.rows[i] = brain(normal());
  }
  for (size_t i = 0; i < blocks; i++) { /* scattered */
    t.table[i] = (int32_t)(i * 211 % blocks);
  }
  for (size_t i = 0; i < TOKENS; i++) {
    t.slots[i] = (int64_t)t.table[i / BLOCK] * BLOCK + (int64_t)(i % BLOCK);
  }
  for (int s = 0; s <= SEQS; s++) {
    t.starts[s] = s;
  }
  for (int s = 0; s < SEQS; s++) {
    t.lens[s] = KEYS;
  }
  memcpy(t.rows_shape, (const int64_t[]){TOKENS, KV_HEADS, SIZE}, sizeof t.rows_shape);
  memcpy(t.table_shape, (const int64_t[]){SEQS, KEYS / BLOCK}, sizeof t.table_shape);
  t.slots_shape[0] = TOKENS;
  t.starts_shape[0] = SEQS + 1;
  t.lens_shape[0] = SEQS;
  attn_tensor_cpu(&t.source, t.rows, ATTN_DTYPE_BFLOAT16, 3, t.rows_shape);
  attn_tensor_cpu(&t.slot_mapping, t.slots, ATTN_DTYPE_INT64, 1, t.slots_shape);
  attn_tensor_cpu(&t.block_table, t.table, ATTN_DTYPE_INT32, 2, t.table_shape);
  attn_tensor_cpu(&t.query_start_loc, t.starts, ATTN_DTYPE_INT32, 1, t.starts_shape);
  attn_tensor_cpu(&t.seq_lens, t.lens, ATTN_DTYPE_INT32, 1, t.lens_shape);
}

static void make_cache(cache *c, attn_format format) {
  attn_message message;
  attn_cache_desc desc = ATTN_CACHE_DESC_INIT;
  memset(c, 0, sizeof *c);
  c->format = format;
  c->info = (attn_cache_info)ATTN_CACHE_INFO_INIT;
  desc.k_format = format;
  desc.num_blocks = TOKENS / BLOCK;
  desc.block_size = BLOCK;
  desc.num_kv_heads = KV_HEADS;
  desc.head_size = SIZE;
  check(attn_cache_describe(&desc, &c->info, &message), "describe", &message);
  c->k_memory = allocate((size_t)c->info.k.bytes);
  c->v_memory = allocate((size_t)c->info.v.bytes);
  attn_tensor_cpu(&c->k, c->k_memory, c->info.k.dtype, 4, c->info.k.shape);
  attn_tensor_cpu(&c->v, c->v_memory, c->info.v.dtype, 4, c->info.v.shape);
}

static void free_cache(cache *c) {
  free(c->k_memory);
  free(c->v_memory);
}

static double write_once(const cache *c) {
  attn_message message;
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  args.backend = "CPU_ATTN";
  args.k_format = c->format;
  args.v_format = c->format;
  args.k = &t.source;
  args.v = &t.source;
  args.slot_mapping = &t.slot_mapping;
  args.k_cache = &c->k;
  args.v_cache = &c->v;
  double begin = limit_cpu_seconds();
  check(attn_cache_write(t.context, &args, &message), "write", &message);
  return limit_cpu_seconds() - begin;
}

typedef struct decode {
  attn_plan *plan;
  attn_run_args args;
  uint16_t *q_memory, *out_memory;
  int64_t shape[3];
  DLTensor q, out;
} decode;

static void make_decode(decode *d, const cache *c, int32_t q_heads) {
  attn_message message;
  attn_problem problem = ATTN_PROBLEM_INIT;
  problem.num_q_heads = q_heads;
  problem.num_kv_heads = KV_HEADS;
  problem.qk_head_size = SIZE;
  problem.q_dtype = ATTN_DTYPE_BFLOAT16;
  problem.k_format = c->format;
  problem.block_size = BLOCK;
  problem.scale = attn_softmax_scale(SIZE);
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  limits.max_tokens = SEQS;
  limits.max_kv_len = KEYS;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  options.backend = "CPU_ATTN";
  options.own_workspace = 1;
  check(attn_plan_create(t.context, &problem, &limits, &options, &d->plan, &message), "plan", &message);
  attn_batch batch = ATTN_BATCH_INIT;
  batch.query_start_loc = &t.query_start_loc;
  batch.seq_lens = &t.seq_lens;
  check(attn_plan_schedule(d->plan, &batch, NULL, &message), "schedule", &message);
  size_t elements = (size_t)SEQS * (size_t)q_heads * SIZE;
  d->q_memory = allocate(elements * sizeof *d->q_memory);
  d->out_memory = allocate(elements * sizeof *d->out_memory);
  for (size_t i = 0; i < elements; i++) {
    d->q_memory[i] = brain(normal());
  }
  memcpy(d->shape, (const int64_t[]){SEQS, q_heads, SIZE}, sizeof d->shape);
  attn_tensor_cpu(&d->q, d->q_memory, ATTN_DTYPE_BFLOAT16, 3, d->shape);
  attn_tensor_cpu(&d->out, d->out_memory, ATTN_DTYPE_BFLOAT16, 3, d->shape);
  d->args = (attn_run_args)ATTN_RUN_INIT;
  d->args.q = &d->q;
  d->args.k_cache = &c->k;
  d->args.v_cache = &c->v;
  d->args.block_table = &t.block_table;
  d->args.out = &d->out;
}

static void free_decode(decode *d) {
  attn_plan_destroy(d->plan);
  free(d->q_memory);
  free(d->out_memory);
}

static double run_once(const decode *d) {
  attn_message message;
  double begin = limit_cpu_seconds();
  check(attn_run(d->plan, &d->args, NULL, &message), "run", &message);
  return limit_cpu_seconds() - begin;
}

/* Time of this cache's decode over bfloat16's. */
static double decode_ratio(const cache *plain, const cache *quantised, int32_t q_heads) {
  decode a;
  decode b;
  double ratio[ROUNDS];
  make_decode(&a, plain, q_heads);
  make_decode(&b, quantised, q_heads);
  (void)run_once(&a);
  (void)run_once(&b);
  for (int i = 0; i < ROUNDS; i++) {
    double before = run_once(&a);
    double mine = run_once(&b);
    ratio[i] = mine / (0.5 * (before + run_once(&a)));
  }
  free_decode(&a);
  free_decode(&b);
  return median(ratio, ROUNDS);
}

/* Source bytes per second over memcpy's. */
static double write_fraction(const cache *c) {
  size_t bytes = 2 * (size_t)TOKENS * KV_HEADS * SIZE * sizeof *t.rows;
  unsigned char *target = allocate(bytes / 2);
  double fraction[ROUNDS];
  (void)write_once(c);
  for (int i = 0; i < ROUNDS; i++) {
    double begin = limit_cpu_seconds();
    memcpy(target, t.rows, bytes / 2);
    memcpy(target, t.rows, bytes / 2);
    double copy = limit_cpu_seconds() - begin;
    fraction[i] = copy / write_once(c);
  }
  free(target);
  return median(fraction, ROUNDS);
}

int main(int argc, char **argv) {
  double most = argc > 1 ? atof(argv[1]) : 0.0;
  static const struct {
    attn_format format;
    double least_write;
  } formats[] = {{ATTN_FORMAT_BFLOAT16, 0.3},
                 {ATTN_FORMAT_FP8_E4M3, 0.08},
                 {ATTN_FORMAT_FP8_E5M2, 0.08},
                 {ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 0.08},
                 {ATTN_FORMAT_FP8_PER_TOKEN_HEAD, 0.08},
                 {ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 0.04}};
  attn_message message;
  attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
  options.num_threads = 1;
  check(attn_context_create(&options, &t.context, &message), "context", &message);
  make_lists();
  cache plain;
  make_cache(&plain, ATTN_FORMAT_BFLOAT16);
  (void)write_once(&plain);
  int failed = 0;
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    cache c;
    make_cache(&c, formats[i].format);
    double write = write_fraction(&c);
    double grouped = i > 0 ? decode_ratio(&plain, &c, 32) : 1.0;
    double single = i > 0 ? decode_ratio(&plain, &c, 8) : 1.0;
    (void)printf("%-20s write %.3f of memcpy; decode 32/8 %.3f, 8/8 %.3f of bfloat16's time\n",
                 attn_format_name(c.format), write, grouped, single);
    failed |= most > 0.0 && (grouped > most || write < formats[i].least_write);
    free_cache(&c);
  }
  free_cache(&plain);
  free(t.rows);
  attn_context_destroy(t.context);
  if (failed) {
    (void)fprintf(stderr, "speed_formats: above %.2f of bfloat16's time, or a write below its bound\n", most);
  }
  return failed;
}
