/* SPDX-License-Identifier: Apache-2.0 */
/* check_attention.h: an attention case in three steps: its numbers (a model), the tensors that hold them, the calls.
 * The steps are apart so that the same numbers can be laid out again for a part of the batch (batch invariance). */
#ifndef ATTN_CHECK_ATTENTION_H
#define ATTN_CHECK_ATTENTION_H

#include "check_case.h"
#include "check_oracle.h"

/* Draw masks, biases and values for the case: everything of the model, compact arrays in the arena. */
void check_model_draw(check_arena *arena, check_case *c, check_model *model);

/* All of it but the values: masks, biases, sinks. */
void check_masks_draw(check_arena *arena, check_case *c, check_model *model);

/* For a static fp8 output of these values [keys, kv heads, v size]: scales of all kinds. */
float check_output_scale_draw(check_case *c, const float *v);

/* The `width` elements of each position of a sequence become those of its first. */
void check_repeat_rows(const check_case *c, float *x, int64_t width);

/* Most elements become zeros of either sign; each row is multiplied by a power of two of its own. */
void check_thin_out(check_rng *rng, float *x, int64_t count);
void check_scale_rows(check_rng *rng, float *x, int64_t rows, int64_t size);

/* Values of q, k, v by the option `values` (check_values.c), as they are stored, with the codes of what is quantised.
   */
void check_values_draw(check_arena *arena, check_case *c, check_model *model, float *q, float *k, float *v);

struct check_latent;

/* The tensors of one call. */
typedef struct check_laid {
  attn_problem problem;
  attn_plan_limits limits;
  int32_t num_splits;
  attn_split_rule split_rule;
  struct check_latent *latent; /* of a latent call (check_latent.h), else NULL */
  int32_t unchecked;
  check_tensor q, k, v, k_cache, v_cache, table, slopes, sinks, bias, ranges, causal, output_scale;
  check_tensor q_scale, k_scale, v_scale;
  check_tensor out, lse, out_scale;
  check_tensor query_start_loc, seq_lens, kv_start_loc;
  attn_batch batch;
  attn_run_args args;
  uint8_t *seen;     /* [keys] some row sees the position: mask and bias asked */
  uint8_t *needed;   /* [keys] the position needs a block: seen, or written by the call */
  int64_t *block_of; /* [seqs, columns]: the block of each column, or -1 */
  int32_t columns;   /* of block_of: the most that any sequence needs */
  int64_t num_blocks;
  uint8_t *unreachable; /* [keys], what the model points to */
} check_laid;

/* Lay the model out in guarded, poisoned memory. `stride_class` and `pool_class` are CHECK_COMPACT ...; `odd_ids`:
   lists may name blocks that do not exist at visible positions (unchecked mode), which the model is told. */
void check_lay(check_arena *arena, check_case *c, check_model *model, int stride_class, int pool_class, int odd_ids,
               struct check_latent *latent, check_laid *laid);

/* What one run gave, decoded; [tokens, q heads, v size], [tokens, q heads] and [tokens, q heads, groups]. */
typedef struct check_result {
  float *out;
  float *lse;   /* NULL when not asked for */
  float *scale; /* NULL where the output has none */
} check_result;

/* Plan, schedule, run on env's backend; `twice`: again on poisoned memory, and the same bits are demanded. Outputs are
   read and their canaries checked, inputs compared with their snapshots. */
int check_call(check_env *env, check_arena *arena, const check_case *c, check_laid *laid, attn_context *context,
               int twice, check_result *result);

/* Row i of one result has the bits of row j of another: codes, lse and scales. */
int check_same_row(const check_case *c, const check_result *a, int64_t i, const check_result *b, int64_t j);

/* Batch invariance: rows of the case computed alone, split, with other threads, heads, blocks have the bits of
   `result`. */
int check_invariance(check_env *env, check_arena *arena, check_case *c, const check_model *model,
                     const check_result *result);

/* Turn the valid call into an invalid one and demand the documented status and untouched outputs. */
int check_attention_refusal(check_env *env, check_arena *arena, check_case *c, check_laid *laid);

#endif
