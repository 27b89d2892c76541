/* SPDX-License-Identifier: Apache-2.0 */
/* latent.h: a latent layer with data for tests, its runs through the public calls, and the same in dense double
 * arithmetic from the equations of include/attn/mla.h alone. */
#ifndef ATTN_TESTS_LATENT_H
#define ATTN_TESTS_LATENT_H

#include "harness.h"

#define LATENT_SEQS 16
#define LATENT_BACKENDS 2
#define LATENT_FORMATS 8
#define LATENT_ANY_ROW (-1)

typedef struct latent {
  attn_problem problem;
  attn_plan_options options;
  int32_t threads;
  int32_t num_seqs, q_len[LATENT_SEQS], kv_len[LATENT_SEQS];
  int32_t starts[LATENT_SEQS + 1], first_key[LATENT_SEQS + 1];
  int32_t tokens, keys, max_kv;
  int as_given;         /* mha: new rows are not written first */
  int two_queries;      /* mqa: q in two tensors */
  attn_dtype source;    /* of kv_c and k_pe */
  const int32_t *names; /* q and rows are drawn from a sequence's name, position and head; NULL: one after the other */
  int32_t table_step;   /* 0: any; else block i of the tables is block i * step of the pool, modulo its blocks */
  int32_t first_name_head;        /* what the first head's queries are drawn as */
  void (*edit)(struct latent *s); /* what to change of q and rows before they are stored */
  uint32_t random;
  /* data */
  float *q, *rows,
      *w;      /* [tokens, heads, qk]; [keys, L + R] as they were before they were stored; [heads, nope + v, L] */
  float *seen; /* [keys, L + R] as they are attended to */
  float *slopes, *sinks, *bias;
  int32_t *ranges, *causal;
  unsigned char *pool, *q_memory, *rope_memory, *kv_c, *k_pe;
  float *scales, static_scale;
  int32_t *table, blocks, width;
  attn_cache_info info;
  attn_mla_weights *weights;
  /* results */
  float *out, *lse; /* [tokens, heads, v size], [tokens, heads] */
  attn_plan_info plan;
  attn_schedule_info schedule;
  /* between latent_open() and latent_close() */
  attn_context *context;
  attn_plan *made;
  guarded memory;
  attn_workspace workspace;
  attn_mla_args args;
  tensor tensors[16];
  int64_t *slots;
  unsigned char *out_memory;
} latent;

/* Sizes; the rest of s->problem is the test's to set before latent_fill(). */
void latent_init(latent *s, attn_mla_form form, int32_t heads, int32_t rank, int32_t rotary, int32_t nope, int32_t v);

/* latent_init() with a rank and rotary width that the format takes: 512 and 64 of fp8_ds_mla, else 24 and 6. */
void latent_init_format(latent *s, attn_mla_form form, int32_t heads, attn_format format, int32_t nope, int32_t v);
void latent_seqs(latent *s, int32_t count, const int32_t *q_len, const int32_t *kv_len);

/* Draw data for what the problem declares, store the rows where they are cached (the new ones too, unless the run
   writes them or takes them as given) and note what is attended to. */
void latent_fill(latent *s, attn_format format, int separate);

/* The scale to give with the pool, laid in *t, or NULL where the format has none beside it. */
tensor *latent_scale(const latent *s, tensor *t);

/* Plan, schedule and run; results in out and lse. */
void latent_run(latent *s, const char *backend);

/* The same in steps: everything but the call, the call alone, the end. */
void latent_open(latent *s, const char *backend);
attn_status latent_call(latent *s);

/* Once more with kv_len as it is by now: slots and schedule made anew, outputs filled with 0xFF, the call. */
void latent_step(latent *s);
void latent_close(latent *s);

/* The room of latent_compare() for a form: 1 for mqa; 4 where keys and values are sums themselves (mha, layer). */
double latent_room(const latent *s);

/* Every row of the last run against double arithmetic within `room` of the numerical contract's bounds. */
void latent_compare(const latent *s, double room, const char *what);

void latent_free(latent *s);

/* Every format of latent rows. */
extern const attn_format latent_formats[LATENT_FORMATS];

/* The backends of this build that serve latent rows on the CPU. */
extern const char *const latent_backends[LATENT_BACKENDS];

/* Fill, run and compare on each of them, and free. */
void latent_prove(latent *s, attn_format format, const char *what);

#endif
