/* SPDX-License-Identifier: Apache-2.0 */
/* scene.c: builds, lays out, runs and checks one attention call. Everything is made anew for each scene; what the call
 * may not touch is filled with 0xFF before and compared after. */
#include "scene.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "naive.h"

void scene_init(scene *s, int32_t num_q_heads, int32_t num_kv_heads, int32_t d, int32_t dv) {
  attn_problem problem = ATTN_PROBLEM_INIT;
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  memset(s, 0, sizeof *s);
  s->problem = problem;
  s->options = options;
  s->limits = limits;
  s->problem.num_q_heads = num_q_heads;
  s->problem.num_kv_heads = num_kv_heads;
  s->problem.qk_head_size = d;
  s->problem.v_head_size = dv > 0 ? dv : d;
  s->problem.block_size = 16;
  s->problem.scale = attn_softmax_scale(d);
  s->problem.wants_lse = 1;
  s->problem.q_dtype = ATTN_DTYPE_FLOAT32;
  s->problem.out_dtype = ATTN_DTYPE_FLOAT32;
  s->unused_id = -1;
  s->extra_columns = 1;
  s->extra_blocks = 3;
  s->q_scale = 1.0f;
}

void scene_format(scene *s, attn_format format) {
  s->problem.q_dtype = format_dtype(format);
  s->problem.k_format = s->problem.kv_source == ATTN_KV_CACHE ? format : ATTN_FORMAT_AUTO;
}

static float *random_floats(int64_t count, uint32_t seed) {
  float *values = malloc((size_t)(count > 0 ? count : 1) * sizeof *values);
  CHECK(values != NULL, "no memory for %lld floats", (long long)count);
  for (int64_t i = 0; i < count; i++) {
    values[i] = random_normal(&seed);
  }
  return values;
}

void scene_seqs(scene *s, int32_t num_seqs, const int32_t *q_len, const int32_t *kv_len) {
  const attn_problem *p = &s->problem;
  CHECK(num_seqs <= SCENE_SEQS, "too many sequences for a scene");
  s->num_seqs = num_seqs;
  for (int32_t i = 0; i < num_seqs; i++) {
    s->q_len[i] = q_len[i];
    s->kv_len[i] = kv_len[i];
    s->lens[i] = kv_len[i];
    s->starts[i + 1] = s->starts[i] + q_len[i];
    s->kv_starts[i + 1] = s->kv_starts[i] + kv_len[i];
    s->k[i] = random_floats((int64_t)kv_len[i] * p->num_kv_heads * p->qk_head_size, 1000 + (uint32_t)i);
    s->v[i] = random_floats((int64_t)kv_len[i] * p->num_kv_heads * p->v_head_size, 2000 + (uint32_t)i);
  }
  s->tokens = s->starts[num_seqs];
  s->q = random_floats(s->tokens * p->num_q_heads * p->qk_head_size, 1);
}

void scene_one(scene *s, int32_t q_len, int32_t kv_len) {
  scene_seqs(s, 1, &q_len, &kv_len);
}

void scene_alibi(scene *s, attn_alibi form) {
  s->problem.alibi = form;
  s->slopes = random_floats(s->problem.num_q_heads, 3);
  for (int32_t i = 0; i < s->problem.num_q_heads; i++) {
    s->slopes[i] = fabsf(s->slopes[i]);
  }
}

void scene_sinks(scene *s, float value) {
  s->problem.has_sinks = 1;
  s->sinks = random_floats(s->problem.num_q_heads, 4);
  fill_floats(s->sinks, s->problem.num_q_heads, value);
}

void scene_bias(scene *s, int32_t heads) {
  s->problem.has_bias = 1;
  s->bias_heads = heads;
  for (int32_t i = 0; i < s->num_seqs; i++) {
    s->bias_keys = s->kv_len[i] > s->bias_keys ? s->kv_len[i] : s->bias_keys;
  }
  s->bias = random_floats(s->tokens * heads * s->bias_keys, 5);
}

static int32_t *copy_ints(const int32_t *values, int64_t count) {
  int32_t *copy = calloc((size_t)count + 1, sizeof *copy);
  CHECK(copy != NULL, "no memory");
  memcpy(copy, values, (size_t)count * sizeof *copy);
  return copy;
}

void scene_ranges(scene *s, int32_t per_seq, const int32_t *ranges) {
  s->problem.has_prefix_ranges = 1;
  s->num_ranges = per_seq;
  s->ranges = copy_ints(ranges, (int64_t)s->num_seqs * per_seq * 2);
}

void scene_causal(scene *s, const int32_t *causal) {
  s->problem.has_causal_per_seq = 1;
  s->causal = copy_ints(causal, s->num_seqs);
}

float *scene_q(scene *s, int64_t token, int32_t head) {
  return s->q + (token * s->problem.num_q_heads + head) * s->problem.qk_head_size;
}

float *scene_k(scene *s, int32_t seq, int32_t position, int32_t kv_head) {
  return s->k[seq] + ((int64_t)position * s->problem.num_kv_heads + kv_head) * s->problem.qk_head_size;
}

float *scene_v(scene *s, int32_t seq, int32_t position, int32_t kv_head) {
  return s->v[seq] + ((int64_t)position * s->problem.num_kv_heads + kv_head) * s->problem.v_head_size;
}

float *scene_out(scene *s, int64_t token, int32_t head) {
  return s->out + (token * s->problem.num_q_heads + head) * s->problem.v_head_size;
}

float *scene_lse(scene *s, int64_t token, int32_t head) {
  return s->lse + token * s->problem.num_q_heads + head;
}

void fill_floats(float *values, int64_t count, float value) {
  for (int64_t i = 0; i < count; i++) {
    values[i] = value;
  }
}

int64_t scene_out_count(const scene *s) {
  return s->tokens * s->problem.num_q_heads * s->problem.v_head_size;
}

int64_t scene_lse_count(const scene *s) {
  return s->tokens * s->problem.num_q_heads;
}

int64_t scene_groups(const scene *s) {
  int64_t block = s->problem.output_block;
  return block > 0 ? (s->problem.v_head_size + block - 1) / block : 0;
}

unsigned char scene_code(const scene *s, int64_t token, int32_t head, int32_t element) {
  return s->out_data.data[token * s->t_out.strides[0] + head * s->t_out.strides[1] + element];
}

/* ---- Storage */

static void round_all(float *values, int64_t count, attn_dtype dtype) {
  for (int64_t i = 0; i < count; i++) {
    values[i] = rounded(dtype, values[i]);
  }
}

static attn_dtype direct_type(const scene *s) {
  return s->problem.kv_dtype != ATTN_DTYPE_DEFAULT ? s->problem.kv_dtype : s->problem.q_dtype;
}

static void store_output_scales(scene *s, int64_t rows) {
  int64_t heads = s->problem.num_q_heads;
  int64_t groups = scene_groups(s);
  s->out_scale_data = guard_make((size_t)(rows * heads * groups) * sizeof(float));
  tensor_3(&s->t_out_scale, s->out_scale_data.data, ATTN_DTYPE_FLOAT32, rows, heads, groups);
  if (s->lse_transposed && rows > 0) {
    s->t_out_scale.strides[0] = 1;
    s->t_out_scale.strides[1] = rows;
    s->t_out_scale.strides[2] = rows * heads;
  }
  tensor_1(&s->t_output_scale, &s->output_scale, ATTN_DTYPE_FLOAT32, 1);
  s->out_scale = random_floats(s->tokens * heads * groups, 9);
  if (s->problem.output_block > 0) {
    s->args.out_scale = &s->t_out_scale.t;
  } else if (s->problem.out_dtype == ATTN_DTYPE_FP8_E4M3) {
    s->args.output_scale = &s->t_output_scale.t;
  }
}

static void store_q(scene *s) {
  const attn_problem *p = &s->problem;
  int64_t rows = s->tokens + s->spare_rows;
  int64_t stride = s->q_stride > 0 ? s->q_stride : p->qk_head_size;
  int64_t out_stride = s->q_stride > 0 ? s->q_stride : p->v_head_size;
  float q_scale = p->q_dtype == ATTN_DTYPE_FP8_E4M3 ? s->q_scale : 1.0f;
  for (int64_t i = 0; i < s->tokens * p->num_q_heads * p->qk_head_size; i++) {
    s->q[i] = rounded(p->q_dtype, s->q[i] / q_scale) * q_scale;
  }
  s->q_data = guard_make((size_t)(rows * p->num_q_heads * stride) * attn_dtype_bytes(p->q_dtype));
  for (int64_t i = 0; i < s->tokens * p->num_q_heads; i++) {
    for (int64_t d = 0; d < p->qk_head_size; d++) {
      store_element(s->q_data.data, p->q_dtype, i * stride + d, s->q[i * p->qk_head_size + d] / q_scale);
    }
  }
  tensor_3(&s->t_q, s->q_data.data, p->q_dtype, rows, p->num_q_heads, p->qk_head_size);
  s->t_q.strides[1] = stride;
  s->t_q.strides[0] = stride * p->num_q_heads;
  s->out_data = guard_make((size_t)(rows * p->num_q_heads * out_stride) * attn_dtype_bytes(p->out_dtype));
  tensor_3(&s->t_out, s->out_data.data, p->out_dtype, rows, p->num_q_heads, p->v_head_size);
  s->t_out.strides[1] = out_stride;
  s->t_out.strides[0] = out_stride * p->num_q_heads;
  s->lse_data = guard_make((size_t)(rows * p->num_q_heads) * sizeof(float));
  tensor_2(&s->t_lse, s->lse_data.data, ATTN_DTYPE_FLOAT32, rows, p->num_q_heads);
  if (s->lse_transposed) {
    s->t_lse.strides[0] = 1;
    s->t_lse.strides[1] = rows > 0 ? rows : 1;
  }
  s->out = random_floats(scene_out_count(s), 9);
  s->lse = random_floats(scene_lse_count(s), 9);
  store_output_scales(s, rows);
}

static void store_direct(scene *s) {
  const attn_problem *p = &s->problem;
  int64_t rows = s->kv_starts[s->num_seqs];
  attn_dtype dtype = direct_type(s);
  s->k_data = guard_make((size_t)(rows * p->num_kv_heads * p->qk_head_size) * attn_dtype_bytes(dtype));
  s->v_data = guard_make((size_t)(rows * p->num_kv_heads * p->v_head_size) * attn_dtype_bytes(dtype));
  tensor_3(&s->t_k, s->k_data.data, dtype, rows, p->num_kv_heads, p->qk_head_size);
  tensor_3(&s->t_v, s->v_data.data, dtype, rows, p->num_kv_heads, p->v_head_size);
  for (int32_t i = 0; i < s->num_seqs; i++) {
    round_all(s->k[i], (int64_t)s->kv_len[i] * p->num_kv_heads * p->qk_head_size, dtype);
    round_all(s->v[i], (int64_t)s->kv_len[i] * p->num_kv_heads * p->v_head_size, dtype);
    for (int64_t j = 0; j < (int64_t)s->kv_len[i] * p->num_kv_heads * p->qk_head_size; j++) {
      store_element(s->k_data.data, dtype, s->kv_starts[i] * s->t_k.strides[0] + j, s->k[i][j]);
    }
    for (int64_t j = 0; j < (int64_t)s->kv_len[i] * p->num_kv_heads * p->v_head_size; j++) {
      store_element(s->v_data.data, dtype, s->kv_starts[i] * s->t_v.strides[0] + j, s->v[i][j]);
    }
    if (s->q_len[i] != s->kv_len[i]) {
      s->batch.kv_start_loc = &s->t_kv_starts.t;
    }
  }
  tensor_1(&s->t_kv_starts, s->kv_starts, ATTN_DTYPE_INT32, s->num_seqs + 1);
  s->args.k = &s->t_k.t;
  s->args.v = &s->t_v.t;
}

static void store_extras(scene *s) {
  int32_t heads = s->problem.num_q_heads;
  if (s->slopes != NULL) {
    tensor_1(&s->t_slopes, s->slopes, ATTN_DTYPE_FLOAT32, heads);
    s->args.alibi_slopes = &s->t_slopes.t;
  }
  if (s->sinks != NULL) {
    tensor_1(&s->t_sinks, s->sinks, ATTN_DTYPE_FLOAT32, heads);
    s->args.sinks = &s->t_sinks.t;
  }
  if (s->bias != NULL) {
    tensor_3(&s->t_bias, s->bias, ATTN_DTYPE_FLOAT32, s->tokens, s->bias_heads, s->bias_keys);
    s->args.bias = &s->t_bias.t;
  }
  if (s->ranges != NULL) {
    tensor_3(&s->t_ranges, s->ranges, ATTN_DTYPE_INT32, s->num_seqs, s->num_ranges, 2);
    s->args.prefix_ranges = &s->t_ranges.t;
  }
  if (s->causal != NULL) {
    tensor_1(&s->t_causal, s->causal, ATTN_DTYPE_INT32, s->num_seqs);
    s->args.causal_per_seq = &s->t_causal.t;
  }
}

void scene_store(scene *s) {
  attn_run_args args = ATTN_RUN_INIT;
  attn_batch batch = ATTN_BATCH_INIT;
  const attn_problem *p = &s->problem;
  s->args = args;
  s->batch = batch;
  store_q(s);
  if (p->kv_source == ATTN_KV_CACHE) {
    scene_store_cache(s);
  } else {
    store_direct(s);
  }
  store_extras(s);
  tensor_1(&s->t_starts, s->starts, ATTN_DTYPE_INT32, s->num_seqs + 1);
  s->batch.query_start_loc = &s->t_starts.t;
  s->args.q = &s->t_q.t;
  tensor_1(&s->t_q_scale, &s->q_scale, ATTN_DTYPE_FLOAT32, 1);
  s->args.q_scale = p->q_dtype == ATTN_DTYPE_FP8_E4M3 ? &s->t_q_scale.t : NULL;
  s->args.out = &s->t_out.t;
  s->args.lse = p->wants_lse ? &s->t_lse.t : NULL;
}

/* ---- Running */

void scene_open(scene *s, const char *backend) {
  attn_plan_limits limits = s->limits;
  attn_plan_options options = s->options;
  attn_plan_info info = ATTN_PLAN_INFO_INIT;
  int64_t longest = 1;
  for (int32_t i = 0; i < s->num_seqs; i++) {
    longest = s->kv_len[i] > longest ? s->kv_len[i] : longest;
  }
  limits.max_seqs = limits.max_seqs > 0 ? limits.max_seqs : (s->num_seqs > 0 ? s->num_seqs : 1);
  limits.max_tokens = limits.max_tokens > 0 ? limits.max_tokens : (s->tokens > 0 ? s->tokens : 1);
  limits.max_kv_len = limits.max_kv_len > 0 ? limits.max_kv_len : longest;
  options.backend = backend;
  s->context = open_context(s->num_threads > 0 ? s->num_threads : 1);
  EXPECT_OK(attn_plan_create(s->context, &s->problem, &limits, &options, &s->plan, &why));
  s->plan_info = info;
  EXPECT_OK(attn_plan_get_info(s->plan, &s->plan_info, &why));
  s->workspace = workspace_make(s->plan, &s->workspace_data);
}

attn_status scene_schedule(scene *s, attn_message *message) {
  attn_schedule_info info = ATTN_SCHEDULE_INFO_INIT;
  memset(s->workspace.data, 0xFF, s->workspace.bytes);
  attn_status status = attn_plan_schedule(s->plan, &s->batch, &s->workspace, message);
  s->schedule_info = info;
  if (status == ATTN_OK) {
    status = attn_schedule_get_info(s->plan, &s->workspace, &s->schedule_info, message);
  }
  return status;
}

static void decode_scales(scene *s) {
  const int64_t *strides = s->t_out_scale.strides;
  int64_t groups = scene_groups(s);
  for (int64_t row = 0; row < scene_lse_count(s); row++) {
    int64_t at = row / s->problem.num_q_heads * strides[0] + row % s->problem.num_q_heads * strides[1];
    for (int64_t g = 0; g < groups; g++) {
      s->out_scale[row * groups + g] = load_element(s->out_scale_data.data, ATTN_DTYPE_FLOAT32, at + g * strides[2]);
    }
  }
  size_t used = (size_t)(scene_lse_count(s) * groups) * sizeof(float);
  CHECK(s->lse_transposed || all_bytes(s->out_scale_data.data + used, s->out_scale_data.bytes - used, 0xFF),
        "rows of out_scale beyond the batch changed");
}

/* Read the results back, and prove that nothing else in the output memory changed. */
static void decode_outputs(scene *s) {
  const attn_problem *p = &s->problem;
  int64_t written = 0;
  int64_t heads = p->num_q_heads;
  size_t element = attn_dtype_bytes(p->out_dtype);
  for (int64_t t = 0; t < s->tokens; t++) {
    for (int64_t h = 0; h < heads; h++) {
      int64_t at = t * s->t_out.strides[0] + h * s->t_out.strides[1];
      for (int64_t d = 0; d < p->v_head_size; d++) {
        s->out[written++] = load_element(s->out_data.data, p->out_dtype, at + d);
      }
      const unsigned char *gap = s->out_data.data + (size_t)(at + p->v_head_size) * element;
      size_t gap_bytes = (size_t)(s->t_out.strides[1] - p->v_head_size) * element;
      CHECK(all_bytes(gap, gap_bytes, 0xFF), "bytes between the rows of out changed");
      s->lse[t * heads + h] =
          load_element(s->lse_data.data, ATTN_DTYPE_FLOAT32, t * s->t_lse.strides[0] + h * s->t_lse.strides[1]);
    }
  }
  decode_scales(s);
  size_t used = (size_t)(s->tokens * s->t_out.strides[0]) * element;
  CHECK(all_bytes(s->out_data.data + used, s->out_data.bytes - used, 0xFF), "rows of out beyond the batch changed");
  used = (size_t)(s->tokens * heads) * sizeof(float);
  CHECK(s->lse_transposed || all_bytes(s->lse_data.data + used, s->lse_data.bytes - used, 0xFF),
        "rows of lse beyond the batch changed");
}

attn_status scene_step(scene *s, attn_message *message) {
  memset(s->out_data.data, 0xFF, s->out_data.bytes);
  memset(s->lse_data.data, 0xFF, s->lse_data.bytes);
  memset(s->out_scale_data.data, 0xFF, s->out_scale_data.bytes);
  attn_status status = scene_schedule(s, message);
  if (status == ATTN_OK) {
    status = attn_run(s->plan, &s->args, &s->workspace, message);
  }
  if (status == ATTN_OK) {
    decode_outputs(s);
  } else {
    CHECK(all_bytes(s->out_data.data, s->out_data.bytes, 0xFF), "a failing call wrote into out");
    CHECK(all_bytes(s->lse_data.data, s->lse_data.bytes, 0xFF), "a failing call wrote into lse");
    CHECK(all_bytes(s->out_scale_data.data, s->out_scale_data.bytes, 0xFF), "a failing call wrote into out_scale");
  }
  return status;
}

void scene_close(scene *s) {
  attn_plan_destroy(s->plan);
  attn_context_destroy(s->context);
  s->plan = NULL;
  s->context = NULL;
  guard_free(&s->workspace_data);
}

void scene_run(scene *s, const char *backend) {
  scene_open(s, backend);
  EXPECT_OK(scene_step(s, &why));
  scene_close(s);
}

void scene_check(scene *s) {
  naive_row *answer = malloc(sizeof *answer);
  int64_t step = s->check_step > 0 ? s->check_step : 1;
  CHECK(answer != NULL, "no memory");
  for (int32_t seq = 0; seq < s->num_seqs; seq++) {
    for (int32_t row = 0; row < s->q_len[seq]; row++) {
      int64_t token = s->starts[seq] + row;
      for (int32_t h = 0; (row % step == 0 || row == s->q_len[seq] - 1) && h < s->problem.num_q_heads; h++) {
        char where[64];
        snprintf(where, sizeof where, "sequence %d row %d head %d", seq, row, h);
        naive_attention(s, seq, row, h, answer);
        naive_compare(s, seq, answer, scene_out(s, token, h), *scene_lse(s, token, h), where);
      }
    }
  }
  free(answer);
}

void scene_free(scene *s) {
  for (int32_t i = 0; i < s->num_seqs; i++) {
    free(s->k[i]);
    free(s->v[i]);
  }
  free(s->q);
  free(s->slopes);
  free(s->sinks);
  free(s->bias);
  free(s->ranges);
  free(s->causal);
  free(s->out);
  free(s->lse);
  free(s->out_scale);
  guard_free(&s->q_data);
  guard_free(&s->k_data);
  guard_free(&s->v_data);
  guard_free(&s->k_scale_data);
  guard_free(&s->v_scale_data);
  guard_free(&s->table_data);
  guard_free(&s->out_data);
  guard_free(&s->lse_data);
  guard_free(&s->out_scale_data);
  memset(s, 0, sizeof *s);
}

void scene_prove(scene *s, const char *backend) {
  scene_store(s);
  scene_run(s, backend);
  scene_check(s);
}
