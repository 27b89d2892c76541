/* SPDX-License-Identifier: Apache-2.0 */
/* speed_decode.c: what CPU_ATTN's generic kernels reach in decode, as a fraction of the machine's limits measured in
 * the same process and interleaved with the calls: 32/8 heads of 128, bfloat16 cache, 8 sequences of 4,096 keys. One
 * thread is judged by the time that it really ran, calls and limits alike, so that a busy machine does not decide;
 * the gain of a second thread by the clock.
 *
 *   speed_decode           prints the figures
 *   speed_decode MIN GAIN  exits 1 when the one-thread fraction is below MIN, or the two-thread gain below GAIN times
 *                          that of the arithmetic loop (GAIN 0: not judged)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "limits.h"

enum { SEQS = 8, KEYS = 4096, Q_HEADS = 32, KV_HEADS = 8, SIZE = 128, BLOCK = 64, ROUNDS = 20 };
enum { LOOP_REPEATS = 200000 }; /* of the arithmetic loop: a few milliseconds */
#define READ_BYTES ((size_t)512 << 20)

static uint64_t state = 0x9e3779b97f4a7c15u;

static float uniform(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

static void die(const char *what, const attn_message *message) {
  (void)fprintf(stderr, "speed_decode: %s: %s\n", what, message->text);
  exit(1);
}

typedef struct decode {
  attn_context *context;
  attn_plan *plan;
  attn_run_args args;
} decode;

static uint16_t brain(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)(bits >> 16);
}

/* One set of tensors serves both thread counts. */
static struct {
  uint16_t *k, *v, *q, *out;
  int32_t table[SEQS * (KEYS / BLOCK)];
  int32_t starts[SEQS + 1], lens[SEQS];
  int64_t pool_shape[4], token_shape[3], table_shape[2], starts_shape[1], lens_shape[1];
  DLTensor k_cache, v_cache, query, result, block_table, query_start_loc, seq_lens;
} t;

static void make_tensors(void) {
  size_t blocks = SEQS * (KEYS / BLOCK);
  size_t elements = blocks * BLOCK * KV_HEADS * SIZE;
  t.k = malloc(elements * sizeof *t.k);
  t.v = malloc(elements * sizeof *t.v);
  t.q = malloc(SEQS * Q_HEADS * SIZE * sizeof *t.q);
  t.out = malloc(SEQS * Q_HEADS * SIZE * sizeof *t.out);
  if (t.k == NULL || t.v == NULL || t.q == NULL || t.out == NULL) {
    (void)fprintf(stderr, "speed_decode: out of memory\n");
    exit(1);
  }
  for (size_t i = 0; i < elements; i++) {
    t.k[i] = brain(uniform());
    t.v[i] = brain(uniform());
  }
  for (size_t i = 0; i < SEQS * Q_HEADS * SIZE; i++) {
    t.q[i] = brain(uniform());
    t.out[i] = 0xffff;
  }
  for (size_t i = 0; i < blocks; i++) { /* scattered: multiplication by a number without a common factor */
    t.table[i] = (int32_t)(i * 211 % blocks);
  }
  for (int s = 0; s <= SEQS; s++) {
    t.starts[s] = s;
    if (s < SEQS) {
      t.lens[s] = KEYS;
    }
  }
  t.pool_shape[0] = (int64_t)blocks;
  t.pool_shape[1] = BLOCK;
  t.pool_shape[2] = KV_HEADS;
  t.pool_shape[3] = SIZE;
  t.token_shape[0] = SEQS;
  t.token_shape[1] = Q_HEADS;
  t.token_shape[2] = SIZE;
  t.table_shape[0] = SEQS;
  t.table_shape[1] = KEYS / BLOCK;
  t.starts_shape[0] = SEQS + 1;
  t.lens_shape[0] = SEQS;
  attn_tensor_cpu(&t.k_cache, t.k, ATTN_DTYPE_BFLOAT16, 4, t.pool_shape);
  attn_tensor_cpu(&t.v_cache, t.v, ATTN_DTYPE_BFLOAT16, 4, t.pool_shape);
  attn_tensor_cpu(&t.query, t.q, ATTN_DTYPE_BFLOAT16, 3, t.token_shape);
  attn_tensor_cpu(&t.result, t.out, ATTN_DTYPE_BFLOAT16, 3, t.token_shape);
  attn_tensor_cpu(&t.block_table, t.table, ATTN_DTYPE_INT32, 2, t.table_shape);
  attn_tensor_cpu(&t.query_start_loc, t.starts, ATTN_DTYPE_INT32, 1, t.starts_shape);
  attn_tensor_cpu(&t.seq_lens, t.lens, ATTN_DTYPE_INT32, 1, t.lens_shape);
}

static void make_decode(decode *d, int32_t threads) {
  attn_message message;
  attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
  options.num_threads = threads;
  if (attn_context_create(&options, &d->context, &message) != ATTN_OK) {
    die("context", &message);
  }
  attn_problem problem = ATTN_PROBLEM_INIT;
  problem.num_q_heads = Q_HEADS;
  problem.num_kv_heads = KV_HEADS;
  problem.qk_head_size = SIZE;
  problem.q_dtype = ATTN_DTYPE_BFLOAT16;
  problem.block_size = BLOCK;
  problem.scale = attn_softmax_scale(SIZE);
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  limits.max_tokens = SEQS;
  limits.max_kv_len = KEYS;
  attn_plan_options plan_options = ATTN_PLAN_OPTIONS_INIT;
  plan_options.backend = "CPU_ATTN";
  plan_options.own_workspace = 1;
  if (attn_plan_create(d->context, &problem, &limits, &plan_options, &d->plan, &message) != ATTN_OK) {
    die("plan", &message);
  }
  attn_batch batch = ATTN_BATCH_INIT;
  batch.query_start_loc = &t.query_start_loc;
  batch.seq_lens = &t.seq_lens;
  if (attn_plan_schedule(d->plan, &batch, NULL, &message) != ATTN_OK) {
    die("schedule", &message);
  }
  attn_run_args args = ATTN_RUN_INIT;
  args.q = &t.query;
  args.k_cache = &t.k_cache;
  args.v_cache = &t.v_cache;
  args.block_table = &t.block_table;
  args.out = &t.result;
  d->args = args;
}

/* Seconds by the clock; *cpu: those that this thread really ran. */
static double run_once(const decode *d, double *cpu) {
  attn_message message;
  double cpu_begin = limit_cpu_seconds();
  double begin = limit_seconds();
  if (attn_run(d->plan, &d->args, NULL, &message) != ATTN_OK) {
    die("run", &message);
  }
  double seconds = limit_seconds() - begin;
  *cpu = limit_cpu_seconds() - cpu_begin;
  return seconds;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, int n) {
  qsort(values, (size_t)n, sizeof *values, by_value);
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* FLOP/s of the arithmetic loop on each of `threads` threads at once, by the clock (a multiply-add counts as two);
   *cpu_rate: by the time that a single thread really ran. */
static double flops_once(int threads, double *cpu_rate) {
  limit_time time = limit_time_multiply_add(threads, LOOP_REPEATS);
  double flops = 2.0 * LIMIT_FLOATS * LOOP_REPEATS * threads;
  *cpu_rate = flops / time.cpu;
  return flops / time.clock;
}

int main(int argc, char **argv) {
  double least_fraction = argc > 1 ? atof(argv[1]) : 0.0;
  double least_gain = argc > 2 ? atof(argv[2]) : 0.0;
  uint64_t *words = malloc(READ_BYTES);
  if (words == NULL) {
    (void)fprintf(stderr, "speed_decode: out of memory\n");
    return 1;
  }
  for (size_t i = 0; i < READ_BYTES / sizeof *words; i++) {
    words[i] = i * 0x9e3779b97f4a7c15u;
  }
  make_tensors();
  decode one;
  decode two;
  make_decode(&one, 1);
  make_decode(&two, 2);
  double unused;
  (void)run_once(&one, &unused);
  (void)run_once(&two, &unused);
  double flops = 0.0;
  double bytes = 0.0;
  double seconds[ROUNDS];
  double gain[ROUNDS];
  double loop_gain[ROUNDS];
  double share[ROUNDS];
  for (int i = 0; i < ROUNDS; i++) { /* interleaved: a drift of the machine meets all alike */
    double rate;
    double single = flops_once(1, &rate);
    double read = (double)READ_BYTES / limit_time_read(1, words, READ_BYTES, 1).cpu;
    double clock_one = run_once(&one, &seconds[i]);
    double both = flops_once(2, &unused);
    double clock_two = run_once(&two, &unused);
    flops = fmax(flops, rate);
    bytes = fmax(bytes, read);
    gain[i] = clock_one / clock_two;
    loop_gain[i] = both / single;
    share[i] = gain[i] / loop_gain[i];
  }
  double kv_bytes = 2.0 * SEQS * KEYS * KV_HEADS * SIZE * sizeof(uint16_t);
  double work = 4.0 * SEQS * KEYS * Q_HEADS * SIZE;
  double limit = fmax(kv_bytes / bytes, work / flops);
  double time = median(seconds, ROUNDS);
  double fraction = limit / time;
  double ratio = median(share, ROUNDS);
  (void)printf("limits (best of %d): multiply-add %.2f GFLOP/s, read %.2f GB/s\n", ROUNDS, flops * 1e-9, bytes * 1e-9);
  (void)printf("decode 32/8 x 128, bfloat16, 8 x 4096, one thread: %.3f of the roofline (%s)\n", fraction,
               kv_bytes / bytes > work / flops ? "memory" : "arithmetic");
  (void)printf("two threads: gain %.2f, the loop's own %.2f, median ratio %.3f\n", median(gain, ROUNDS),
               median(loop_gain, ROUNDS), ratio);
  attn_plan_destroy(one.plan);
  attn_plan_destroy(two.plan);
  attn_context_destroy(one.context);
  attn_context_destroy(two.context);
  free(words);
  free(t.k);
  free(t.v);
  free(t.q);
  free(t.out);
  if (fraction < least_fraction) {
    (void)fprintf(stderr, "speed_decode: %.3f of the roofline, expected %.3f or more\n", fraction, least_fraction);
    return 1;
  }
  if (least_gain > 0.0 && ratio < least_gain) {
    (void)fprintf(stderr, "speed_decode: two-thread gain %.3f of the loop's, expected %.3f or more\n", ratio,
                  least_gain);
    return 1;
  }
  return 0;
}
