/* SPDX-License-Identifier: Apache-2.0 */
/* check_draw.c: from options to sizes. A case whose work would exceed the budget is drawn again from the next stream of
 * its own index, so that 20,000 cases stay affordable under sanitizers and every case stays a function of its index. */
#include <string.h>

#include "check_case.h"

/* Budget of a case in multiply-adds; bytes of the cache weigh in too. */
#define WORK_BUDGET 2.5e7
#define ATTEMPTS 200

static int32_t pick(check_rng *rng, const int32_t *list, size_t count) {
  return list[check_between(rng, 0, (int64_t)count - 1)];
}

static int32_t draw_q_len(check_rng *rng, int32_t kind) {
  static const int32_t edges[] = {15, 16, 17, 31, 32, 33};
  switch (kind) {
  case CHECK_Q_ZERO:
    return 0;
  case CHECK_Q_ONE:
    return 1;
  case CHECK_Q_TWO:
    return 2;
  case CHECK_Q_FEW:
    return (int32_t)check_between(rng, 3, 8);
  case CHECK_Q_EDGE:
    return pick(rng, edges, check_chance(rng, 70) ? 3 : 6);
  default:
    return (int32_t)check_between(rng, 34, 70);
  }
}

static int32_t draw_kv_len(check_rng *rng, int32_t kind, int32_t q_len, int32_t block_size) {
  static const int32_t edges[] = {15,  16,  17,  31,  32,  33,  63,  64,  65,  127,
                                  128, 129, 255, 256, 257, 511, 512, 513, 1024};
  switch (kind) {
  case CHECK_KV_ZERO:
    return 0;
  case CHECK_KV_ONE:
    return 1;
  case CHECK_KV_EQUAL:
    return q_len;
  case CHECK_KV_FEW:
    return (int32_t)check_between(rng, 2, 14);
  case CHECK_KV_BLOCK_EDGE: {
    int32_t blocks = (int32_t)check_between(rng, 1, block_size > 32 ? 3 : 6);
    int32_t len = blocks * block_size + (int32_t)check_between(rng, -1, 1);
    return len > 0 ? len : 1;
  }
  case CHECK_KV_TILE_EDGE:
    return pick(rng, edges, sizeof edges / sizeof *edges);
  case CHECK_KV_HUNDREDS:
    return (int32_t)check_between(rng, 150, 550);
  default:
    return (int32_t)(check_chance(rng, 75) ? check_between(rng, 600, 1300) : check_between(rng, 1300, 3000));
  }
}

static int32_t draw_new_tokens(const check_case *c, check_rng *rng) {
  int32_t tokens = check_number(&c->choice, CHECK_NEW_TOKENS);
  return tokens < 20 ? tokens : (int32_t)check_between(rng, 20, 60);
}

/* Lengths: sequence `lead` has what q_len and kv_len say, the others something small or, some, nothing. */
static void draw_sequences(check_case *c, check_rng *rng) {
  int32_t seqs = check_number(&c->choice, CHECK_SEQS);
  c->num_seqs = seqs == 4 ? (int32_t)check_between(rng, 4, CHECK_MAX_SEQS) : seqs;
  int32_t lead = (int32_t)check_between(rng, 0, c->num_seqs - 1);
  int32_t empty = -1;
  if (check_is(c, CHECK_EMPTIES, 1)) {
    empty = (lead + 1 + (int32_t)check_between(rng, 0, c->num_seqs - 2)) % c->num_seqs;
  }
  int encoder = c->op == CHECK_ENCODER;
  for (int32_t s = 0; s < c->num_seqs; s++) {
    check_seq *seq = &c->seqs[s];
    if (s == lead) {
      seq->q_len =
          check_is_latent(c) ? draw_new_tokens(c, rng) : draw_q_len(rng, check_number(&c->choice, CHECK_Q_LEN));
      seq->kv_len = draw_kv_len(rng, check_number(&c->choice, CHECK_KV_LEN), seq->q_len, c->block_size);
    } else if (s == empty) {
      int which = (int)check_between(rng, 0, 2);
      seq->q_len = which == 0 ? 0 : (int32_t)check_between(rng, 0, 2);
      seq->kv_len = which == 0 ? (int32_t)check_between(rng, 0, 5) : 0;
      seq->q_len = encoder ? 0 : seq->q_len;
    } else {
      seq->q_len = check_chance(rng, 60) ? 1 : (int32_t)check_between(rng, 1, 9);
      seq->kv_len = seq->q_len + (int32_t)check_between(rng, 0, check_chance(rng, 50) ? 20 : 120);
    }
    seq->kv_len = encoder ? seq->q_len : seq->kv_len;
  }
}

static void draw_gathered(check_case *c, check_rng *rng) {
  int32_t seqs = check_number(&c->choice, CHECK_SEQS);
  c->num_seqs = seqs == 4 ? (int32_t)check_between(rng, 4, CHECK_MAX_SEQS) : seqs;
  for (int32_t s = 0; s < c->num_seqs; s++) {
    check_seq *seq = &c->seqs[s];
    seq->kv_len = (int32_t)check_between(rng, 1, check_chance(rng, 50) ? 40 : 150);
    if (check_is(c, CHECK_EMPTIES, 1) && (s == 0 || check_chance(rng, 30))) {
      seq->kv_len = 0;
    }
    seq->start = check_is(c, CHECK_STARTS, 1) ? (int32_t)check_between(rng, 0, seq->kv_len) : 0;
    seq->q_len = seq->kv_len - seq->start;
  }
}

static void number_rows(check_case *c) {
  for (int32_t s = 0; s < c->num_seqs; s++) {
    c->seqs[s].q_start = c->tokens;
    c->seqs[s].k_start = c->keys;
    c->tokens += c->seqs[s].q_len;
    c->keys += c->seqs[s].kv_len;
    c->max_kv = c->seqs[s].kv_len > c->max_kv ? c->seqs[s].kv_len : c->max_kv;
  }
}

/* Bytes, or for fp8 with static scales its own type as well; the numbers of the other formats are those of their types.
   */
static attn_dtype pool_type(check_rng *rng, attn_format format) {
  if (check_format_static(format)) {
    attn_dtype own = format == ATTN_FORMAT_FP8_E4M3 ? ATTN_DTYPE_FP8_E4M3 : ATTN_DTYPE_FP8_E5M2;
    return check_chance(rng, 50) ? own : ATTN_DTYPE_UINT8;
  }
  return check_format_per_row(format) ? ATTN_DTYPE_UINT8 : (attn_dtype)format;
}

/* Sizes as the oracle sees them: mqa has one KV head of whole rows, the others expand to a KV head per head. */
static void draw_latent_sizes(check_case *c, check_rng *rng) {
  int32_t heads = check_number(&c->choice, CHECK_HEADS);
  int32_t few = (int32_t)check_between(rng, 2, 12);
  c->rank = check_number(&c->choice, CHECK_RANK);
  c->rotary = check_number(&c->choice, CHECK_ROTARY_SIZE);
  c->block_size = check_number(&c->choice, CHECK_PAGE);
  c->q_heads = heads;
  c->kv_heads = c->op == CHECK_MQA ? 1 : heads;
  c->group = heads / c->kv_heads;
  switch (check_number(&c->choice, CHECK_EXPANDED)) {
  case CHECK_EXPANDED_ONE:
    c->nope = c->v_size = 1;
    break;
  case CHECK_EXPANDED_FEW:
    c->nope = c->v_size = few;
    break;
  case CHECK_EXPANDED_V_SMALLER:
    c->nope = 2 * few;
    c->v_size = few;
    break;
  case CHECK_EXPANDED_V_LARGER:
    c->nope = few;
    c->v_size = 2 * few + 1;
    break;
  case CHECK_EXPANDED_WIDE:
    c->nope = check_chance(rng, 50) ? 128 : 192;
    c->v_size = check_chance(rng, 50) ? 128 : 256;
    break;
  default:
    c->nope = c->rank;
    c->v_size = c->rank;
  }
  c->size = c->nope + c->rotary;
  c->k_format = c->v_format = (attn_format)check_number(&c->choice, CHECK_LATENT_FORMAT);
  c->k_type = c->k_format == ATTN_FORMAT_FP8_DS_MLA ? ATTN_DTYPE_UINT8 : pool_type(rng, c->k_format);
}

static void draw_sizes(check_case *c, check_rng *rng) {
  c->op = check_number(&c->choice, CHECK_OP);
  if (check_is_latent(c)) {
    draw_latent_sizes(c, rng);
    return;
  }
  c->kv_heads = check_number(&c->choice, CHECK_KV_HEADS);
  c->group = c->choice.index[CHECK_GROUP] == CHECK_ABSENT ? 1 : check_number(&c->choice, CHECK_GROUP);
  c->q_heads = c->kv_heads * c->group;
  c->size = check_number(&c->choice, CHECK_SIZE);
  c->v_size = c->size;
  if (check_is(c, CHECK_V_SIZE, CHECK_V_SMALLER)) {
    c->v_size = check_chance(rng, 50) ? (c->size + 1) / 2 : (int32_t)check_between(rng, 1, c->size - 1);
  } else if (check_is(c, CHECK_V_SIZE, CHECK_V_LARGER)) {
    c->v_size = c->size + (int32_t)check_between(rng, 1, c->size < 24 ? 24 : c->size / 2);
  }
  c->block_size = c->choice.index[CHECK_BLOCK_SIZE] == CHECK_ABSENT ? 16 : check_number(&c->choice, CHECK_BLOCK_SIZE);
  c->k_format = (attn_format)check_number(&c->choice, CHECK_K_FORMAT);
  int32_t v_format = check_number(&c->choice, CHECK_V_FORMAT);
  c->v_format = v_format <= CHECK_FORMAT_SAME ? c->k_format : (attn_format)v_format;
  c->k_type = pool_type(rng, c->k_format);
  c->v_type = pool_type(rng, c->v_format);
}

static double work_of(const check_case *c) {
  double pairs = 0.0;
  for (int32_t s = 0; s < c->num_seqs; s++) {
    pairs += (double)c->seqs[s].q_len * (double)c->seqs[s].kv_len;
  }
  if (check_is_latent(c)) {
    double expanded = c->op == CHECK_MQA ? 0.0 : (double)c->q_heads * (double)(c->nope + c->v_size);
    double row = (double)(c->rank + c->rotary);
    return 3.0 * pairs * (double)c->q_heads * (double)(c->size + c->v_size) + 2.0 * (double)c->keys * expanded * row +
           20.0 * (double)(c->keys + 4 * c->block_size) * row;
  }
  double width = (double)(c->size + c->v_size);
  double cells = (double)(c->keys + 4 * c->block_size) * (double)c->kv_heads * width;
  return c->op >= CHECK_WRITE ? 4.0 * cells : pairs * (double)c->q_heads * (width + 24.0) + 6.0 * cells;
}

void check_case_draw(check_case *c, unsigned ops, uint64_t seed, uint64_t index) {
  for (uint64_t attempt = 0; attempt < ATTEMPTS; attempt++) {
    memset(c, 0, sizeof *c);
    c->seed = seed;
    c->index = index;
    check_rng_seed(&c->rng, seed, index, attempt);
    check_draw_options(&c->rng, ops, &c->choice);
    draw_sizes(c, &c->rng);
    if (c->op == CHECK_GATHER) {
      draw_gathered(c, &c->rng);
    } else if (c->op == CHECK_WRITE) {
      c->tokens = check_between(&c->rng, 1, 40);
      c->slots = check_is(c, CHECK_SLOTS, CHECK_SLOTS_NONE)    ? 0
                 : check_is(c, CHECK_SLOTS, CHECK_SLOTS_FEWER) ? check_between(&c->rng, 0, c->tokens - 1)
                                                               : c->tokens;
    } else if (c->op == CHECK_MERGE) {
      c->tokens = check_between(&c->rng, 0, 9);
    } else if (c->op == CHECK_COPY || c->op == CHECK_SWAP) {
      c->k_type = c->v_type = (attn_dtype)check_number(&c->choice, CHECK_ELEMENT);
    } else {
      draw_sequences(c, &c->rng);
    }
    number_rows(c);
    if (work_of(c) <= WORK_BUDGET) {
      return;
    }
  }
}
