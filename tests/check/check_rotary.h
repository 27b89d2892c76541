/* SPDX-License-Identifier: Apache-2.0 */
/* check_rotary.h: the rotary embedding that attn_cache_write does on its way: tables, positions and queries of a case,
 * the rotation by the words of include/attn/cache.h, its refusals. */
#ifndef ATTN_CHECK_ROTARY_H
#define ATTN_CHECK_ROTARY_H

#include "check_case.h"

typedef struct check_rotary {
  attn_rotary kind; /* ATTN_ROTARY_NONE: nothing else is made */
  int32_t dim;
  int64_t rows; /* of the tables */
  int64_t *position;
  check_tensor positions, table, cosines, sines; /* table: the memory of both where they are two views of one */
  int with_q;
  int in_place;
  int32_t q_heads;
  int32_t q_size;
  float *q_values; /* [slots, q_heads, q_size], rotated */
  check_tensor q, q_out;
} check_rotary;

/* Draw it for rows with these slots, of which `named` says which lie inside the pool. */
void check_rotary_draw(check_arena *arena, check_case *c, const unsigned char *named, check_rotary *r);

/* 1 where row i has a position inside the tables, or needs none. */
int check_rotary_takes(const check_rotary *r, int64_t i);

/* Rotate a row of k or q in place, rounded to its type; nothing without rotary. */
void check_rotary_turn(const check_rotary *r, int64_t i, attn_dtype dtype, float *row);

/* Make q and q_out, where the case has them; `taken` rows hold values. */
void check_rotary_queries(check_arena *arena, check_case *c, const unsigned char *taken, check_rotary *r);

/* Set the fields of the call. */
void check_rotary_fill(check_rotary *r, attn_cache_write_args *args);

/* After a call: q_out's taken rows; everything else is untouched. */
int check_rotary_judge(check_env *env, const check_case *c, const check_rotary *r, const unsigned char *taken);
int check_rotary_kept(check_env *env, const check_rotary *r);

/* A call spoilt in one of the fields of the rotation. */
typedef struct check_spoilt {
  attn_cache_write_args args;
  attn_status expected;
  const char *what;
  DLTensor changed[2];
  int64_t shape[2][3];
} check_spoilt;

/* Spoil s->args (a valid call's); what is changed in memory is put back by check_rotary_mend(). */
void check_rotary_spoil(check_case *c, check_rotary *r, const unsigned char *taken, check_spoilt *s);
void check_rotary_mend(const check_rotary *r);

#endif
