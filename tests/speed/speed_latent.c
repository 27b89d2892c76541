/* SPDX-License-Identifier: Apache-2.0 */
/* speed_latent.c: what CPU_MLA's generic kernels reach in absorbed decode, as a fraction of the rate of multiply-adds
 * that the machine has in registers, measured in the same process and interleaved with the calls: 16 heads over latent
 * rows of 512 + 64, bfloat16, 8 sequences of 4,096 keys, one thread, by the time that it really ran.
 *
 *   speed_latent      prints the figure
 *   speed_latent MIN  exits 1 when it is below MIN
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "limits.h"

enum { SEQS = 8, KEYS = 4096, HEADS = 16, RANK = 512, ROTARY = 64, ROW = RANK + ROTARY, BLOCK = 64, ROUNDS = 20 };
enum { LOOP_REPEATS = 200000, BLOCKS = SEQS * (KEYS / BLOCK) };

static uint64_t state = 0x9e3779b97f4a7c15u;
static attn_message message;

static uint16_t draw(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  float x = (float)(int32_t)(state >> 32) * 0x1p-31f;
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static void check(attn_status status, const char *what) {
  if (status != ATTN_OK) {
    (void)fprintf(stderr, "speed_latent: %s: %s\n", what, message.text);
    exit(1);
  }
}

static uint16_t *fill(size_t count) {
  uint16_t *values = malloc(count * sizeof *values);
  if (values == NULL) {
    (void)fprintf(stderr, "speed_latent: out of memory\n");
    exit(1);
  }
  for (size_t i = 0; i < count; i++) {
    values[i] = draw();
  }
  return values;
}

typedef struct decode {
  attn_context *context;
  attn_plan *plan;
  attn_mla_args args;
  uint16_t *memory[3]; /* pool, q, out */
  int32_t table[BLOCKS], starts[SEQS + 1], lens[SEQS];
  DLTensor kv_cache, q, out, block_table, query_start_loc, seq_lens;
  int64_t pool[3], q_shape[3], out_shape[3], width[2], start_shape[1], len_shape[1];
} decode;

static void make_tensors(decode *d) {
  int64_t pool[3] = {BLOCKS, BLOCK, ROW}, q[3] = {SEQS, HEADS, ROW}, out[3] = {SEQS, HEADS, RANK};
  d->memory[0] = fill((size_t)BLOCKS * BLOCK * ROW);
  d->memory[1] = fill((size_t)SEQS * HEADS * ROW);
  d->memory[2] = fill((size_t)SEQS * HEADS * RANK);
  memcpy(d->pool, pool, sizeof pool);
  memcpy(d->q_shape, q, sizeof q);
  memcpy(d->out_shape, out, sizeof out);
  for (int i = 0; i < BLOCKS; i++) { /* scattered */
    d->table[i] = i * 211 % BLOCKS;
  }
  for (int s = 0; s < SEQS; s++) {
    d->starts[s + 1] = s + 1;
    d->lens[s] = KEYS;
  }
  d->width[0] = d->len_shape[0] = SEQS;
  d->width[1] = KEYS / BLOCK;
  d->start_shape[0] = SEQS + 1;
  attn_tensor_cpu(&d->kv_cache, d->memory[0], ATTN_DTYPE_BFLOAT16, 3, d->pool);
  attn_tensor_cpu(&d->q, d->memory[1], ATTN_DTYPE_BFLOAT16, 3, d->q_shape);
  attn_tensor_cpu(&d->out, d->memory[2], ATTN_DTYPE_BFLOAT16, 3, d->out_shape);
  attn_tensor_cpu(&d->block_table, d->table, ATTN_DTYPE_INT32, 2, d->width);
  attn_tensor_cpu(&d->query_start_loc, d->starts, ATTN_DTYPE_INT32, 1, d->start_shape);
  attn_tensor_cpu(&d->seq_lens, d->lens, ATTN_DTYPE_INT32, 1, d->len_shape);
}

static void make_plan(decode *d) {
  attn_problem problem = ATTN_PROBLEM_INIT;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  attn_batch batch = ATTN_BATCH_INIT;
  problem.num_q_heads = HEADS;
  problem.kv_lora_rank = RANK;
  problem.qk_rope_head_dim = ROTARY;
  problem.q_dtype = ATTN_DTYPE_BFLOAT16;
  problem.block_size = BLOCK;
  problem.scale = attn_mla_softmax_scale(192, 1.0, 0.0);
  limits.max_tokens = SEQS;
  limits.max_kv_len = KEYS;
  options.backend = "CPU_MLA";
  options.own_workspace = 1;
  check(attn_context_create(NULL, &d->context, &message), "context");
  check(attn_plan_create(d->context, &problem, &limits, &options, &d->plan, &message), "plan");
  batch.query_start_loc = &d->query_start_loc;
  batch.seq_lens = &d->seq_lens;
  check(attn_plan_schedule(d->plan, &batch, NULL, &message), "schedule");
  d->args = (attn_mla_args)ATTN_MLA_ARGS_INIT;
  d->args.q = &d->q;
  d->args.kv_cache = &d->kv_cache;
  d->args.block_table = &d->block_table;
  d->args.out = &d->out;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  double least = argc > 1 ? atof(argv[1]) : 0.0;
  double seconds[ROUNDS];
  double rate = 0.0;
  decode *d = calloc(1, sizeof *d);
  if (d == NULL) {
    return 1;
  }
  make_tensors(d);
  make_plan(d);
  check(attn_mla_run_mqa(d->plan, &d->args, NULL, &message), "run");
  for (int i = 0; i < ROUNDS; i++) {
    rate = fmax(rate, 2.0 * LIMIT_FLOATS * LOOP_REPEATS / limit_time_multiply_add(1, LOOP_REPEATS).cpu);
    double begin = limit_cpu_seconds();
    check(attn_mla_run_mqa(d->plan, &d->args, NULL, &message), "run");
    seconds[i] = limit_cpu_seconds() - begin;
  }
  qsort(seconds, ROUNDS, sizeof *seconds, by_value);
  double work = 2.0 * SEQS * KEYS * HEADS * (ROW + RANK);
  double fraction = work / seconds[ROUNDS / 2] / rate;
  (void)printf("multiply-add %.2f GFLOP/s; mqa, 16 heads of 512 + 64, bfloat16, 8 x 4096, one thread: %.3f of it\n",
               rate * 1e-9, fraction);
  attn_plan_destroy(d->plan);
  attn_context_destroy(d->context);
  for (int i = 0; i < 3; i++) {
    free(d->memory[i]);
  }
  free(d);
  if (fraction < least) {
    (void)fprintf(stderr, "speed_latent: %.3f of the multiply-adds, expected %.3f or more\n", fraction, least);
    return 1;
  }
  return 0;
}
