/* SPDX-License-Identifier: Apache-2.0 */
/* quantising.h: a paged K/V cache of any two formats in any lay of memory, with a model of every byte of it. */
#ifndef ATTN_TESTS_QUANTISING_H
#define ATTN_TESTS_QUANTISING_H

#include "core/quantise.h"
#include "harness.h"

enum { QUANTISING_BLOCKS = 5, QUANTISING_BLOCK = 3, QUANTISING_HEADS = 2, QUANTISING_TOKENS = 6 };

/* How the pools and the separate scales lie. */
typedef enum quantising_lay {
  LAY_COMPACT, /* K and V apart, compact */
  LAY_PADDED,  /* rows and blocks padded */
  LAY_GAPS,    /* a byte between each two elements: nothing is aligned */
  LAY_SHARED,  /* K, V and their scales in one allocation, block by block */
  LAY_COUNT
} quantising_lay;

/* One of K and V. */
typedef struct quantising_side {
  attn_format format;
  int32_t size;
  int separate;
  float statics[QUANTISING_HEADS]; /* static scales */
  int num_statics;                 /* 0: none given; 1; or one per head */
  tensor pool, scale, rows;        /* as the calls take them; rows: [tokens, heads, size] */
  const DLTensor *scale_given;     /* &scale.t or NULL */
  float *values;                   /* of rows, float32 */
} quantising_side;

typedef struct quantising {
  attn_context *context;
  const char *backend;
  attn_layout layout;
  quantising_side side[2]; /* K, V */
  guarded memory[4];       /* pools and scales; LAY_SHARED: all in the first */
  unsigned char *model[4]; /* what each should hold */
  int64_t slots[QUANTISING_TOKENS];
  tensor t_slots;
} quantising;

/* Set context, backend, layout, and format, size, separate and statics of each side before. Every byte is random, the
   rows too (no NaN). */
void quantising_open(quantising *q, quantising_lay lay);
void quantising_close(quantising *q);

/* The arguments of a write of all rows to q->slots. */
attn_cache_write_args quantising_write(const quantising *q);

/* Put token `t`'s rows into the model, at q->slots[t], through the row functions on memory of their own. */
void quantising_expect(quantising *q, int64_t t);

/* Every byte of every memory is the model's. */
void quantising_check(const quantising *q, const char *what);

/* One attention call over the cache: causal, batch-invariant, QUANTISING_GROUP query heads for each KV head, float32.
   */
enum { QUANTISING_GROUP = 2, QUANTISING_SEQS = 4 };

typedef struct quantising_call {
  int32_t num_seqs;
  int32_t q_len[QUANTISING_SEQS];
  int32_t kv_len[QUANTISING_SEQS];
  int32_t width;  /* columns of the table */
  int32_t *table; /* [num_seqs, width] */
  int32_t unchecked;
  int32_t window_left;
  float *query; /* [tokens, QUANTISING_HEADS * QUANTISING_GROUP, K's size] */
  float *out;   /* [tokens, the same heads, V's size] */
  float *lse;   /* [tokens, the same heads] */
} quantising_call;

void quantising_attend(const quantising *q, quantising_call *call);

/* 1 when the format has a scale per row; 1 when it has static scales. */
int format_has_row_scale(attn_format format);
int format_is_static(attn_format format);

#endif
