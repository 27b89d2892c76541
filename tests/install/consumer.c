/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of somebody else's, in the part of C11 that is C++17 too: two keys of one sequence in a paged cache, one
 * query, and the answer that two lines of arithmetic give. It names nothing but the public headers, so what it proves
 * is the installed tree. <dlpack.h> is a file of the consumer's own: the library's copy must not stand before it.
 */
#include <attn/attn.h>
#include <dlpack.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#ifndef CONSUMER_OWN_DLPACK
#error "<dlpack.h> is not the consumer's: include/attn is on the search path"
#endif

static DLTensor view(void *data, attn_dtype dtype, int32_t ndim, int64_t *shape) {
  DLTensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = ndim;
  tensor.dtype = attn_dtype_to_dlpack(dtype);
  tensor.shape = shape;
  return tensor;
}

int main(void) {
  float q[] = {0.75f, -0.5f}, k[] = {0.5f, 1.25f, -1.0f, 0.25f}, v[] = {3.0f, -2.0f, 5.0f, 7.0f};
  float out[2], k_pool[2 * 4 * 2], v_pool[2 * 4 * 2];
  int64_t q_shape[] = {1, 1, 2}, k_shape[] = {2, 1, 2}, pool_shape[] = {2, 4, 1, 2}, one_by_one[] = {1, 1};
  int64_t slots[] = {4, 5}, one[] = {1}, two[] = {2};
  int32_t block[] = {1}, starts[] = {0, 1}, lens[] = {2};
  DLTensor tq = view(q, ATTN_DTYPE_FLOAT32, 3, q_shape), to = view(out, ATTN_DTYPE_FLOAT32, 3, q_shape);
  DLTensor tk = view(k, ATTN_DTYPE_FLOAT32, 3, k_shape), tv = view(v, ATTN_DTYPE_FLOAT32, 3, k_shape);
  DLTensor kc = view(k_pool, ATTN_DTYPE_FLOAT32, 4, pool_shape), vc = view(v_pool, ATTN_DTYPE_FLOAT32, 4, pool_shape);
  DLTensor slot = view(slots, ATTN_DTYPE_INT64, 1, two), table = view(block, ATTN_DTYPE_INT32, 2, one_by_one);
  DLTensor start = view(starts, ATTN_DTYPE_INT32, 1, two), len = view(lens, ATTN_DTYPE_INT32, 1, one);

  attn_context *context = NULL;
  attn_plan *plan = NULL;
  attn_message why;
  attn_problem problem = ATTN_PROBLEM_INIT;
  problem.num_q_heads = 1;
  problem.num_kv_heads = 1;
  problem.qk_head_size = 2;
  problem.block_size = 4;
  problem.scale = 1.0f;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  limits.max_tokens = 1;
  limits.max_kv_len = 4;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  options.own_workspace = 1;
  attn_cache_write_args write = ATTN_CACHE_WRITE_INIT;
  write.k = &tk;
  write.v = &tv;
  write.slot_mapping = &slot;
  write.k_cache = &kc;
  write.v_cache = &vc;
  attn_batch batch = ATTN_BATCH_INIT;
  batch.query_start_loc = &start;
  batch.seq_lens = &len;
  attn_run_args run = ATTN_RUN_INIT;
  run.q = &tq;
  run.k_cache = &kc;
  run.v_cache = &vc;
  run.block_table = &table;
  run.out = &to;
  int failed = attn_context_create(NULL, &context, &why) != ATTN_OK ||
               attn_plan_create(context, &problem, &limits, &options, &plan, &why) != ATTN_OK ||
               attn_cache_write(context, &write, &why) != ATTN_OK ||
               attn_plan_schedule(plan, &batch, NULL, &why) != ATTN_OK || attn_run(plan, &run, NULL, &why) != ATTN_OK;
  attn_plan_destroy(plan);
  attn_context_destroy(context);
  if (failed) {
    (void)fprintf(stderr, "consumer: %s\n", why.text);
    return 1;
  }
  double first = exp(0.75 * 0.5 - 0.5 * 1.25), second = exp(0.75 * -1.0 - 0.5 * 0.25);
  for (int i = 0; i < 2; i++) {
    double right = (first * v[i] + second * v[2 + i]) / (first + second);
    if (!(fabs(out[i] - right) < 1e-5)) {
      (void)fprintf(stderr, "consumer: out[%d] is %g, not %g\n", i, (double)out[i], right);
      return 1;
    }
  }
  char header[32];
  (void)snprintf(header, sizeof header, "%d.%d.%d", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR, ATTN_VERSION_PATCH);
  if (strcmp(header, attn_version()) != 0) {
    (void)fprintf(stderr, "consumer: headers of %s, library of %s\n", header, attn_version());
    return 1;
  }
  (void)printf("consumer: libattn %s\n", attn_version());
  return 0;
}
