/* SPDX-License-Identifier: Apache-2.0 */
/* check_case.h: one case, drawn from (seed, index): its options, its sizes, and the environment that runs it. */
#ifndef ATTN_CHECK_CASE_H
#define ATTN_CHECK_CASE_H

#include <stdint.h>

#include "attn/attn.h"
#include "check_memory.h"
#include "check_options.h"
#include "check_rng.h"
#include "check_rows.h"

#define CHECK_MAX_SEQS 6
#define CHECK_MAX_BACKENDS 8
#define CHECK_FAILURE_BYTES 512
#define CHECK_REFUSALS 4 /* calls of a refused case, each spoilt in another way */

typedef struct check_seq {
  int32_t q_len;
  int32_t kv_len;  /* gather: seq_len */
  int32_t start;   /* gather: first position gathered */
  int64_t q_start; /* first token */
  int64_t k_start; /* first row of the logical keys */
} check_seq;

typedef struct check_case {
  uint64_t seed;
  uint64_t index;
  check_choice choice;
  int32_t op; /* CHECK_ATTENTION ... CHECK_REQUANTISE */
  int32_t num_seqs;
  check_seq seqs[CHECK_MAX_SEQS];
  int64_t tokens; /* query tokens; write: rows; gather: rows gathered; merge: rows */
  int64_t keys;   /* logical keys of all sequences */
  int32_t max_kv;
  int32_t kv_heads;
  int32_t group;
  int32_t q_heads;
  int32_t size;
  int32_t v_size;
  int32_t block_size;
  attn_format k_format;
  attn_format v_format;
  attn_dtype k_type; /* of the pool's, or of k's, elements */
  attn_dtype v_type;
  int64_t slots; /* write */
  int32_t rank;  /* latent: elements of the latent and of the rotary part of a row, and of a query's first part */
  int32_t rotary;
  int32_t nope;
  check_rng rng; /* for everything drawn after the sizes */
} check_case;

/* Draw case `index` of `seed` in the stream of these operations (CHECK_KV_OPS or CHECK_LATENT_OPS). The same answer
   always. */
void check_case_draw(check_case *c, unsigned ops, uint64_t seed, uint64_t index);

static inline int32_t check_is(const check_case *c, check_option option, int32_t number) {
  return check_number(&c->choice, option) == number;
}

/* The output's type and output_block. */
static inline attn_dtype check_out_dtype(const check_case *c) {
  int32_t number = check_number(&c->choice, CHECK_OUT_TYPE);
  return number >= CHECK_OUT_STATIC ? ATTN_DTYPE_FP8_E4M3 : (attn_dtype)number;
}

static inline int32_t check_output_block(const check_case *c) {
  int32_t number = check_number(&c->choice, CHECK_OUT_TYPE);
  return number == CHECK_OUT_BLOCK_64 || number == CHECK_OUT_BLOCK_128 ? number : 0;
}

/* Groups of a row of out that have a scale each. */
static inline int32_t check_groups(const check_case *c) {
  int32_t block = check_output_block(c);
  return block > 0 ? (c->v_size + block - 1) / block : 0;
}

static inline int check_is_latent(const check_case *c) {
  return (CHECK_LATENT_OPS >> c->op & 1u) != 0;
}

static inline int check_paged(const check_case *c) {
  return c->op == CHECK_ATTENTION || c->op == CHECK_CROSS_CACHE || check_is_latent(c);
}

/* 1 where rows of this pool keep their scales in a tensor of their own. */
static inline int check_separate(const check_case *c, attn_format format) {
  return check_is(c, CHECK_SCALES, CHECK_SCALES_APART) && check_format_per_row(format);
}

/* Worst fractions of the contract's bounds that a backend came to. */
typedef struct check_worst {
  double out;
  double fp8; /* out of an fp8 output, against the float32 bound */
  double lse;
  double merge_out;
  double merge_lse;
} check_worst;

/* What a worker has: contexts that live as long as it does, the backends under test, the current case's failure. */
typedef struct check_env {
  int num_backends;
  const char *backends[CHECK_MAX_BACKENDS];
  int32_t max_threads;
  int own_executor;          /* 1: never the library's pool */
  attn_context *contexts[4]; /* by CHECK_THREADS_ONE ... */
  attn_context *other;       /* another number of threads, for batch invariance */
  check_worst worst[CHECK_MAX_BACKENDS];
  int backend; /* index of the one that runs */
  char failure[CHECK_FAILURE_BYTES];
} check_env;

/* Record the first failure of the case; always returns 0. */
int check_fail(check_env *env, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* The context of a threads option, made at its first use; NULL (and a failure) when it cannot be made. */
attn_context *check_context(check_env *env, int32_t threads);

/* Give everything back. */
void check_env_end(check_env *env);

/* Run the case on every backend: 1 passed, 0 failed with env->failure set. */
int check_run_case(check_env *env, const check_case *c);

/* The operations of check_run_case(). */
int check_run_attention(check_env *env, check_case *c, check_arena *arena);
int check_run_latent(check_env *env, check_case *c, check_arena *arena);
int check_run_write(check_env *env, check_case *c, check_arena *arena);
int check_run_gather(check_env *env, check_case *c, check_arena *arena);
int check_run_merge(check_env *env, check_case *c, check_arena *arena);
int check_run_copy(check_env *env, check_case *c, check_arena *arena); /* and swap */
int check_run_requantise(check_env *env, check_case *c, check_arena *arena);

/* A refused call: the status has to be the one expected, with a one-line message. */
int check_refused(check_env *env, const char *what, attn_status status, attn_status expected,
                  const attn_message *message);

#endif
