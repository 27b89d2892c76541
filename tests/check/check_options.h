/* SPDX-License-Identifier: Apache-2.0 */
/* check_options.h: what a case can be. One const table (check_options.c) holds every option, its values with their
 * weights, the operations it applies to, and the pairs of values that exclude each other; drawing and counting both
 * read it. */
#ifndef ATTN_CHECK_OPTIONS_H
#define ATTN_CHECK_OPTIONS_H

#include <stdint.h>
#include <stdio.h>

#include "check_rng.h"
#include "json_write.h"

typedef enum check_option {
  CHECK_OP,
  CHECK_EXPECT,
  CHECK_IN_TYPE,
  CHECK_OUT_TYPE,
  CHECK_K_FORMAT,
  CHECK_V_FORMAT,
  CHECK_SCALES,
  CHECK_LAYOUT,
  CHECK_BLOCK_SIZE,
  CHECK_SIZE,
  CHECK_V_SIZE,
  CHECK_KV_HEADS,
  CHECK_GROUP,
  CHECK_CAUSAL,
  CHECK_WINDOW,
  CHECK_CHUNK,
  CHECK_SOFTCAP,
  CHECK_ALIBI,
  CHECK_SINKS,
  CHECK_BIAS,
  CHECK_PREFIX,
  CHECK_LSE,
  CHECK_INVARIANT,
  CHECK_SPLITS,
  CHECK_THREADS,
  CHECK_CHECKED,
  CHECK_VALUES,
  CHECK_STRIDE,
  CHECK_POOL,
  CHECK_Q_LEN,
  CHECK_KV_LEN,
  CHECK_SEQS,
  CHECK_EMPTIES,
  CHECK_TABLE,
  CHECK_TRAILING,
  CHECK_GUARD,
  CHECK_PARTS,
  CHECK_LSES,
  CHECK_BASE,
  CHECK_ALIAS,
  CHECK_SLOTS,
  CHECK_STARTS,
  CHECK_GATHERED,
  CHECK_ELEMENT,
  CHECK_POOLS,
  CHECK_PAIRS,
  CHECK_ROTARY,
  CHECK_TARGET_SCALES,
  CHECK_TARGET_LAYOUT,
  CHECK_RANK,
  CHECK_ROTARY_SIZE,
  CHECK_HEADS,
  CHECK_PAGE,
  CHECK_LATENT_FORMAT,
  CHECK_ROTARY_TYPE,
  CHECK_EXPANDED,
  CHECK_CONTEXT_CHUNK,
  CHECK_NEW_ROWS,
  CHECK_WEIGHTS,
  CHECK_QUERY,
  CHECK_LATENT_VALUES,
  CHECK_NEW_TOKENS,
  CHECK_SPLIT_RULE,
  CHECK_OPTION_COUNT
} check_option;

/* Numbers of the symbolic values; the other options' numbers are the values themselves. */
enum {
  CHECK_ATTENTION,
  CHECK_ENCODER,
  CHECK_CROSS,
  CHECK_CROSS_CACHE,
  CHECK_WRITE,
  CHECK_GATHER,
  CHECK_MERGE,
  CHECK_COPY,
  CHECK_SWAP,
  CHECK_REQUANTISE,
  CHECK_MQA,
  CHECK_MHA,
  CHECK_LAYER
};
/* Masks of operations, bit CHECK_... each. Cases over rows of K and V and cases over latent rows are two streams: a
   case is a function of its stream, seed and index. */
#define CHECK_LATENT_OPS (1u << CHECK_MQA | 1u << CHECK_MHA | 1u << CHECK_LAYER)
#define CHECK_KV_OPS ((1u << CHECK_MQA) - 1u)
enum { CHECK_VALID, CHECK_REFUSED };
enum { CHECK_OUT_STATIC = 8, CHECK_OUT_BLOCK_64 = 64, CHECK_OUT_BLOCK_128 = 128 }; /* fp8; else an attn_dtype */
enum { CHECK_FORMAT_SAME = 0 }; /* else an attn_format; the float ones share the numbers of their attn_dtype */
enum { CHECK_SCALES_PLAIN, CHECK_SCALES_APART }; /* inline or one static scale; in tensors of their own or per head */
enum { CHECK_V_SAME, CHECK_V_SMALLER, CHECK_V_LARGER };
enum { CHECK_CAUSAL_ON, CHECK_CAUSAL_OFF, CHECK_CAUSAL_PER_SEQ };
enum { CHECK_WINDOW_NONE, CHECK_WINDOW_LEFT, CHECK_WINDOW_RIGHT, CHECK_WINDOW_BOTH, CHECK_WINDOW_NARROW };
enum { CHECK_CHUNK_OFF, CHECK_CHUNK_OWN, CHECK_CHUNK_LOOKBACK };
enum { CHECK_SINKS_NONE, CHECK_SINKS_ALL, CHECK_SINKS_SOME };
enum { CHECK_BIAS_NONE, CHECK_BIAS_HEADS, CHECK_BIAS_SHARED, CHECK_BIAS_HIDING };
enum { CHECK_PREFIX_NONE, CHECK_PREFIX_RANGES, CHECK_PREFIX_CLAMPED };
enum { CHECK_THREADS_ONE, CHECK_THREADS_TWO, CHECK_THREADS_MORE, CHECK_THREADS_EXECUTOR };
enum {
  CHECK_NORMAL,
  CHECK_STD_100,
  CHECK_EQUAL_SCORES,
  CHECK_CONSTANT_ROWS,
  CHECK_DOMINANT_KEY,
  CHECK_LARGE_LOGITS,
  CHECK_RISING,
  CHECK_SUBNORMAL,
  CHECK_NEAR_60000,
  CHECK_SPARSE,
  CHECK_MIXED_SCALES,
  CHECK_NAN_ROW
};
enum {
  CHECK_COMPACT,
  CHECK_PADDED_ROWS,
  CHECK_PADDED_TOKENS,
  CHECK_TRANSPOSED_HEADS,
  CHECK_GAPPED_ELEMENTS,
  CHECK_BYTE_OFFSET,
  CHECK_PADDED_BLOCKS,
  CHECK_INTERLEAVED,
  CHECK_HUGE_BLOCKS,
  CHECK_LAYERS
};
enum { CHECK_Q_ZERO, CHECK_Q_ONE, CHECK_Q_TWO, CHECK_Q_FEW, CHECK_Q_EDGE, CHECK_Q_MANY };
enum {
  CHECK_KV_ZERO,
  CHECK_KV_ONE,
  CHECK_KV_EQUAL,
  CHECK_KV_FEW,
  CHECK_KV_BLOCK_EDGE,
  CHECK_KV_TILE_EDGE,
  CHECK_KV_HUNDREDS,
  CHECK_KV_LONG
};
enum { CHECK_LSES_NEAR, CHECK_LSES_FAR, CHECK_LSES_LARGE, CHECK_LSES_INFINITE, CHECK_LSES_NAN };
enum { CHECK_ALIAS_NONE, CHECK_ALIAS_OUT, CHECK_ALIAS_BOTH };
enum { CHECK_SLOTS_ALL, CHECK_SLOTS_FEWER, CHECK_SLOTS_PADDED, CHECK_SLOTS_NONE };
enum { CHECK_GATHER_BOTH, CHECK_GATHER_K, CHECK_GATHER_V };
enum { CHECK_POOLS_ONE, CHECK_POOLS_TWO };
enum { CHECK_EXPANDED_ONE, CHECK_EXPANDED_FEW, CHECK_EXPANDED_V_SMALLER, CHECK_EXPANDED_V_LARGER, CHECK_EXPANDED_WIDE };
enum {
  CHECK_ROWS_GIVEN,
  CHECK_ROWS_WRITTEN,
  CHECK_ROWS_BEFORE
}; /* new rows: as given, written by the call, before it */
enum { CHECK_PAIRS_NONE, CHECK_PAIRS_ONE, CHECK_PAIRS_FEW, CHECK_PAIRS_MOST };

#define CHECK_VALUES_MAX 16
#define CHECK_ABSENT (-1) /* index of an option that does not apply to the operation */

/* Chosen value of each option, as an index into its row of the table, or CHECK_ABSENT. */
typedef struct check_choice {
  int8_t index[CHECK_OPTION_COUNT];
} check_choice;

/* Draw one of these operations and one value of every option that applies to it, none excluding another. */
void check_draw_options(check_rng *rng, unsigned ops, check_choice *choice);

/* The number of the value chosen (CHECK_ABSENT if the option does not apply) and its name. */
int32_t check_number(const check_choice *choice, check_option option);
const char *check_value_name(const check_choice *choice, check_option option);

/* One value of one option, of a filter. */
typedef struct check_value {
  check_option option;
  int32_t number;
} check_value;

/* "option=value", as check_list_options() names them; 0: there is no such option, or it has no such value. */
int check_parse_value(const char *text, check_value *value);

/* 1 when the choice has, of each option that the values name, one of the values named. */
int check_choice_has(const check_choice *choice, const check_value *values, int count);

/* Print every option that applies as name=value, on one line. */
void check_print_choice(const check_choice *choice, FILE *file);

/* Print the table: every option with its values, weights and exclusions, as text or as one JSON object. */
void check_list_options(FILE *file, int json);

/* How often each pair of values was drawn. The counter is opaque; NULL when memory is short. */
typedef struct check_pairs check_pairs;
check_pairs *check_pairs_new(void);
void check_pairs_add(check_pairs *pairs, const check_choice *choice);
/* Every pair that can be drawn with these operations, with its count if `all`, then the number of pairs and the
   rarest: as text on standard output, or (w) as the member "pairs" of the open JSON object. */
void check_pairs_print(const check_pairs *pairs, unsigned ops, int all, json_writer *w);
void check_pairs_free(check_pairs *pairs);

#endif
