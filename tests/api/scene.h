/* SPDX-License-Identifier: Apache-2.0 */
/* scene.h: one attention call, from plain float arrays to a checked answer.
 *
 *     scene_init(), scene_seqs()   a problem with random values; both may then be edited freely
 *     scene_store()                rounds the values to their types and lays them out: blocks scattered over a poisoned
 *                                  pool, every tensor against guard pages
 *     scene_run()                  context, plan, schedule, run; scene_open() + scene_step() + scene_close() in parts
 *     scene_check()                every row against naive.h within the bounds of docs/numerics.md
 *     scene_free()
 */
#ifndef ATTN_TESTS_SCENE_H
#define ATTN_TESTS_SCENE_H

#include "harness.h"

#define SCENE_SEQS 40

/* What fills every byte of the pools that no position of the batch names. */
typedef enum scene_poison { SCENE_NAN, SCENE_INF, SCENE_RANDOM } scene_poison;

typedef struct scene {
  attn_problem problem;
  attn_plan_options options;
  attn_plan_limits limits; /* a 0: exactly the batch's */
  int32_t num_threads;     /* 0: 1 */
  int32_t num_seqs;
  int32_t q_len[SCENE_SEQS];
  int32_t kv_len[SCENE_SEQS];
  int64_t tokens;
  int32_t block_size;     /* positions per block of the pool; 0: the problem's */
  int64_t spare_rows;     /* rows of q, out, lse and out_scale beyond the batch's tokens, which no call may touch */
  int64_t q_stride;       /* elements from one head of q and out to the next; 0: compact */
  int lse_transposed;     /* 1: lse is stored [heads, tokens], out_scale [groups, heads, tokens] */
  float output_scale;     /* of a static fp8 output */
  float q_scale;          /* of fp8 queries */
  const float *k_statics; /* static scales of fp8 caches, `num_statics` (1 or num_kv_heads) each; NULL: none given */
  const float *v_statics;
  int32_t num_statics;
  int interleaved;       /* 1: K and V lie side by side in the blocks of one allocation, and scale tensors are padded */
  int32_t extra_columns; /* surplus table columns, filled with `unused_id` */
  int32_t unused_id;
  int32_t extra_blocks;        /* blocks of the pool that nobody owns */
  uint32_t placement;          /* seed of where blocks lie; see also `fixed_blocks` */
  const int32_t *fixed_blocks; /* ids in order of sequences and columns, instead of scattered ones */
  scene_poison poison;
  int64_t check_step; /* scene_check looks at every n-th row; 0: all */

  /* Values. k[s] is [kv_len][num_kv_heads][qk size], v[s] likewise; q is [tokens][num_q_heads][qk size]. */
  float *q;
  float *k[SCENE_SEQS];
  float *v[SCENE_SEQS];
  float *slopes; /* [num_q_heads] */
  float *sinks;  /* [num_q_heads] */
  float *bias;   /* [tokens][bias_heads][bias_keys] */
  int32_t bias_heads;
  int32_t bias_keys;
  int32_t *ranges; /* [num_seqs][num_ranges][2] */
  int32_t num_ranges;
  int32_t *causal; /* [num_seqs] */

  /* Storage, and the arguments over it: tests may tamper with any tensor between scene_open() and scene_step(). */
  guarded q_data, k_data, v_data, k_scale_data, v_scale_data, table_data, out_data, lse_data, out_scale_data;
  tensor t_q, t_q_scale, t_k, t_v, t_k_scale, t_v_scale, t_table, t_out, t_lse, t_out_scale, t_output_scale, t_slopes,
      t_sinks, t_bias, t_ranges, t_causal, t_starts, t_lens, t_kv_starts;
  int32_t starts[SCENE_SEQS + 1];
  int32_t lens[SCENE_SEQS];
  int32_t kv_starts[SCENE_SEQS + 1];
  attn_run_args args;
  attn_batch batch;

  attn_context *context;
  attn_plan *plan;
  attn_plan_info plan_info;
  attn_schedule_info schedule_info;
  guarded workspace_data;
  attn_workspace workspace;

  /* Results, compact: [tokens][num_q_heads][v size] (of an fp8 output: the codes' values), [tokens][num_q_heads] and
     [tokens][num_q_heads][groups]. */
  float *out;
  float *lse;
  float *out_scale;
} scene;

/* A causal problem over a cache, lse wanted, scale 1/sqrt(d), block size 16, all types float32. dv 0: as d. */
void scene_init(scene *s, int32_t num_q_heads, int32_t num_kv_heads, int32_t d, int32_t dv);

/* q and the cache in this format; out stays float32. Over codes q is float32. */
void scene_format(scene *s, attn_format format);

/* scene_format(), and another format for V. */
void scene_pair(scene *s, attn_format k, attn_format v);

/* Scales for a cache's formats: static ones of each head; those of rows inline (place 0), all in tensors of their own
   (1), or those of one of K and V (2). */
void scene_scales(scene *s, int place);

/* The sequences, with random values. */
void scene_seqs(scene *s, int32_t num_seqs, const int32_t *q_len, const int32_t *kv_len);

/* scene_seqs() of one sequence. */
void scene_one(scene *s, int32_t q_len, int32_t kv_len);

/* Add random slopes (> 0), sinks, bias (`heads` is num_q_heads or 1) or the given ranges and set the problem's
   fields. */
void scene_alibi(scene *s, attn_alibi form);
void scene_sinks(scene *s, float value);
void scene_bias(scene *s, int32_t heads);
void scene_ranges(scene *s, int32_t per_seq, const int32_t *ranges);
void scene_causal(scene *s, const int32_t *causal);

/* Rows of one position. */
float *scene_q(scene *s, int64_t token, int32_t head);
float *scene_k(scene *s, int32_t seq, int32_t position, int32_t kv_head);
float *scene_v(scene *s, int32_t seq, int32_t position, int32_t kv_head);
float *scene_out(scene *s, int64_t token, int32_t head);
float *scene_lse(scene *s, int64_t token, int32_t head);
void fill_floats(float *values, int64_t count, float value);

/* The fp8 code of one element of the last run. */
unsigned char scene_code(const scene *s, int64_t token, int32_t head, int32_t element);

/* Number of elements of `out`, and of `lse`; groups of a row that have a scale each. */
int64_t scene_out_count(const scene *s);
int64_t scene_lse_count(const scene *s);
int64_t scene_groups(const scene *s);

void scene_store(scene *s);
void scene_store_cache(scene *s); /* its part for a paged cache (scene_cache.c) */
void scene_open(scene *s, const char *backend);
attn_status scene_schedule(scene *s, attn_message *message);
attn_status scene_step(scene *s, attn_message *message); /* fills out and lse with NaN, schedules, runs, decodes */
void scene_close(scene *s);
void scene_run(scene *s, const char *backend);
void scene_check(scene *s);
void scene_free(scene *s);

/* store, run, check: the usual end of a test that only wants the right answer. */
void scene_prove(scene *s, const char *backend);

#endif
