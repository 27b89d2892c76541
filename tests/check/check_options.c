/* SPDX-License-Identifier: Apache-2.0 */
/* check_options.c: the option table, the pairs that exclude each other, drawing and counting.
 *
 * An option applies to the operations of its mask; where it does not apply its pairs with those operations cannot be
 * drawn. Weights keep every value likely enough that each pair is drawn at least 20 times in 20,000 cases
 * over rows of K and V.
 */
#include "check_options.h"

#include <stdlib.h>
#include <string.h>

#include "attn/cache.h"
#include "attn/tensor.h"

typedef struct option_value {
  const char *name;
  int32_t number;
  int32_t weight;
} option_value;

typedef struct option_row {
  check_option option;
  const char *name;
  unsigned ops;
  option_value values[CHECK_VALUES_MAX + 1]; /* ends at name NULL */
} option_row;

#define OP_BIT(op) (1u << (op))
#define PAGED (OP_BIT(CHECK_ATTENTION) | OP_BIT(CHECK_CROSS_CACHE))
#define ATTEND (PAGED | OP_BIT(CHECK_ENCODER) | OP_BIT(CHECK_CROSS))
#define WRITES OP_BIT(CHECK_WRITE)
#define GATHERS OP_BIT(CHECK_GATHER)
#define MERGES OP_BIT(CHECK_MERGE)
#define MOVES (OP_BIT(CHECK_COPY) | OP_BIT(CHECK_SWAP))
#define CONVERTS OP_BIT(CHECK_REQUANTISE)
#define POOLED (PAGED | WRITES | GATHERS)
#define MQA OP_BIT(CHECK_MQA)
#define EXPANDS (OP_BIT(CHECK_MHA) | OP_BIT(CHECK_LAYER))
#define LATENT (MQA | EXPANDS)
#define EVERY (ATTEND | WRITES | GATHERS | MERGES | MOVES | CONVERTS)

/* clang-format off */
static const option_row table[CHECK_OPTION_COUNT] = {
  {CHECK_OP, "op", EVERY | LATENT, {{"attention", CHECK_ATTENTION, 30}, {"encoder", CHECK_ENCODER, 8},
    {"cross", CHECK_CROSS, 8}, {"cross_cache", CHECK_CROSS_CACHE, 11}, {"cache_write", CHECK_WRITE, 14},
    {"cache_gather", CHECK_GATHER, 13}, {"merge", CHECK_MERGE, 18}, {"cache_copy", CHECK_COPY, 8},
    {"cache_swap", CHECK_SWAP, 8}, {"cache_requantise", CHECK_REQUANTISE, 8},
    {"mla_mqa", CHECK_MQA, 40}, {"mla_mha", CHECK_MHA, 30}, {"mla_layer", CHECK_LAYER, 30}}},
  {CHECK_EXPECT, "expect", EVERY, {{"valid", CHECK_VALID, 84}, {"refused", CHECK_REFUSED, 16}}},
  {CHECK_IN_TYPE, "in_type", ATTEND | WRITES | MERGES | LATENT, {{"float32", ATTN_DTYPE_FLOAT32, 34},
    {"float16", ATTN_DTYPE_FLOAT16, 33}, {"bfloat16", ATTN_DTYPE_BFLOAT16, 33}, {"fp8_e4m3", ATTN_DTYPE_FP8_E4M3, 16}}},
  {CHECK_OUT_TYPE, "out_type", ATTEND | GATHERS | MERGES | LATENT, {{"float32", ATTN_DTYPE_FLOAT32, 40},
    {"float16", ATTN_DTYPE_FLOAT16, 30}, {"bfloat16", ATTN_DTYPE_BFLOAT16, 30}, {"fp8_static", CHECK_OUT_STATIC, 17},
    {"fp8_blocks_64", CHECK_OUT_BLOCK_64, 17}, {"fp8_blocks_128", CHECK_OUT_BLOCK_128, 17}}},
  {CHECK_K_FORMAT, "k_format", ATTEND | WRITES | GATHERS | CONVERTS, {{"float32", ATTN_FORMAT_FLOAT32, 20},
    {"float16", ATTN_FORMAT_FLOAT16, 19}, {"bfloat16", ATTN_FORMAT_BFLOAT16, 19},
    {"fp8_e4m3", ATTN_FORMAT_FP8_E4M3, 13}, {"fp8_e5m2", ATTN_FORMAT_FP8_E5M2, 13},
    {"int8_per_token_head", ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 13},
    {"fp8_per_token_head", ATTN_FORMAT_FP8_PER_TOKEN_HEAD, 13},
    {"int4_per_token_head", ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 14}}},
  {CHECK_V_FORMAT, "v_format", POOLED | CONVERTS, {{"as_k", CHECK_FORMAT_SAME, 30}, {"float32", ATTN_FORMAT_FLOAT32, 12},
    {"float16", ATTN_FORMAT_FLOAT16, 12}, {"bfloat16", ATTN_FORMAT_BFLOAT16, 12},
    {"fp8_e4m3", ATTN_FORMAT_FP8_E4M3, 11}, {"fp8_e5m2", ATTN_FORMAT_FP8_E5M2, 11},
    {"int8_per_token_head", ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 11},
    {"fp8_per_token_head", ATTN_FORMAT_FP8_PER_TOKEN_HEAD, 11},
    {"int4_per_token_head", ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 12}}},
  {CHECK_SCALES, "scales", POOLED | CONVERTS | LATENT, {{"plain", CHECK_SCALES_PLAIN, 50}, {"apart", CHECK_SCALES_APART, 50}}},
  {CHECK_LAYOUT, "layout", POOLED | MOVES | CONVERTS, {{"nhd", 0, 50}, {"hnd", 1, 50}}},
  {CHECK_BLOCK_SIZE, "block_size", POOLED | MOVES | CONVERTS, {{"1", 1, 9}, {"3", 3, 9}, {"7", 7, 9}, {"8", 8, 9}, {"16", 16, 16},
    {"32", 32, 10}, {"48", 48, 9}, {"64", 64, 10}, {"100", 100, 9}, {"128", 128, 9}}},
  {CHECK_SIZE, "size", EVERY, {{"1", 1, 7}, {"3", 3, 7}, {"7", 7, 7}, {"8", 8, 7}, {"16", 16, 7}, {"17", 17, 7},
    {"32", 32, 7}, {"40", 40, 7}, {"64", 64, 7}, {"72", 72, 7}, {"80", 80, 7}, {"96", 96, 7}, {"128", 128, 8},
    {"192", 192, 8}, {"256", 256, 8}}},
  {CHECK_V_SIZE, "v_size", ATTEND | WRITES | GATHERS, {{"same", CHECK_V_SAME, 60}, {"smaller", CHECK_V_SMALLER, 20},
    {"larger", CHECK_V_LARGER, 20}}},
  {CHECK_KV_HEADS, "kv_heads", EVERY, {{"1", 1, 26}, {"2", 2, 24}, {"3", 3, 18}, {"4", 4, 17}, {"6", 6, 15}}},
  {CHECK_GROUP, "group", ATTEND, {{"1", 1, 20}, {"2", 2, 16}, {"3", 3, 13}, {"4", 4, 14}, {"5", 5, 12}, {"7", 7, 12},
    {"8", 8, 13}}},
  {CHECK_CAUSAL, "causal", ATTEND | MQA, {{"on", CHECK_CAUSAL_ON, 50}, {"off", CHECK_CAUSAL_OFF, 25},
    {"per_sequence", CHECK_CAUSAL_PER_SEQ, 25}}},
  {CHECK_WINDOW, "window", ATTEND | LATENT, {{"none", CHECK_WINDOW_NONE, 45}, {"left", CHECK_WINDOW_LEFT, 18},
    {"right", CHECK_WINDOW_RIGHT, 12}, {"both", CHECK_WINDOW_BOTH, 15}, {"narrow", CHECK_WINDOW_NARROW, 10}}},
  {CHECK_CHUNK, "chunk", ATTEND | LATENT, {{"off", CHECK_CHUNK_OFF, 66}, {"own", CHECK_CHUNK_OWN, 16},
    {"lookback", CHECK_CHUNK_LOOKBACK, 18}}},
  {CHECK_SOFTCAP, "softcap", ATTEND | LATENT, {{"off", 0, 65}, {"on", 1, 35}}},
  {CHECK_ALIBI, "alibi", ATTEND | LATENT, {{"none", 0, 60}, {"linear", 1, 22}, {"sqrt", 2, 18}}},
  {CHECK_SINKS, "sinks", ATTEND | MERGES | LATENT, {{"none", CHECK_SINKS_NONE, 60}, {"all", CHECK_SINKS_ALL, 22},
    {"some", CHECK_SINKS_SOME, 18}}},
  {CHECK_BIAS, "bias", ATTEND | LATENT, {{"none", CHECK_BIAS_NONE, 60}, {"heads", CHECK_BIAS_HEADS, 14},
    {"shared", CHECK_BIAS_SHARED, 13}, {"hiding", CHECK_BIAS_HIDING, 13}}},
  {CHECK_PREFIX, "prefix", ATTEND | LATENT, {{"none", CHECK_PREFIX_NONE, 64}, {"ranges", CHECK_PREFIX_RANGES, 18},
    {"clamped", CHECK_PREFIX_CLAMPED, 18}}},
  {CHECK_LSE, "lse", ATTEND | MERGES | MQA | OP_BIT(CHECK_MHA), {{"given", 1, 65}, {"absent", 0, 35}}},
  {CHECK_INVARIANT, "batch_invariant", ATTEND | LATENT, {{"off", 0, 70}, {"on", 1, 30}}},
  {CHECK_SPLITS, "splits", ATTEND | MQA | OP_BIT(CHECK_LAYER), {{"auto", 0, 20}, {"1", 1, 10}, {"2", 2, 12}, {"3", 3, 12}, {"5", 5, 12},
    {"16", 16, 12}, {"161", 161, 11}, {"256", 256, 11}}},
  {CHECK_THREADS, "threads", EVERY | LATENT, {{"one", CHECK_THREADS_ONE, 40}, {"two", CHECK_THREADS_TWO, 22},
    {"more", CHECK_THREADS_MORE, 20}, {"executor", CHECK_THREADS_EXECUTOR, 18}}},
  {CHECK_CHECKED, "mode", POOLED | LATENT, {{"checked", 0, 65}, {"unchecked", 1, 35}}},
  {CHECK_VALUES, "values", ATTEND, {{"normal", CHECK_NORMAL, 18}, {"std_100", CHECK_STD_100, 8},
    {"equal_scores", CHECK_EQUAL_SCORES, 7}, {"constant_rows", CHECK_CONSTANT_ROWS, 7},
    {"dominant_key", CHECK_DOMINANT_KEY, 8}, {"large_logits", CHECK_LARGE_LOGITS, 8}, {"rising", CHECK_RISING, 8},
    {"subnormal", CHECK_SUBNORMAL, 7}, {"near_60000", CHECK_NEAR_60000, 7}, {"sparse", CHECK_SPARSE, 7},
    {"mixed_scales", CHECK_MIXED_SCALES, 8}, {"nan_row", CHECK_NAN_ROW, 7}}},
  {CHECK_STRIDE, "strides", EVERY | LATENT, {{"compact", CHECK_COMPACT, 30}, {"padded_rows", CHECK_PADDED_ROWS, 14},
    {"padded_tokens", CHECK_PADDED_TOKENS, 14}, {"transposed_heads", CHECK_TRANSPOSED_HEADS, 14},
    {"gapped_elements", CHECK_GAPPED_ELEMENTS, 14}, {"byte_offset", CHECK_BYTE_OFFSET, 14}}},
  {CHECK_POOL, "pool", POOLED | MOVES | CONVERTS | LATENT, {{"compact", CHECK_COMPACT, 24}, {"padded_blocks", CHECK_PADDED_BLOCKS, 16},
    {"padded_rows", CHECK_PADDED_ROWS, 15}, {"gapped_elements", CHECK_GAPPED_ELEMENTS, 11},
    {"interleaved", CHECK_INTERLEAVED, 13}, {"huge_blocks", CHECK_HUGE_BLOCKS, 11},
    {"layers_in_block", CHECK_LAYERS, 14}}},
  {CHECK_Q_LEN, "q_len", ATTEND, {{"0", CHECK_Q_ZERO, 8}, {"1", CHECK_Q_ONE, 26}, {"2", CHECK_Q_TWO, 14},
    {"few", CHECK_Q_FEW, 18}, {"edge", CHECK_Q_EDGE, 16}, {"many", CHECK_Q_MANY, 18}}},
  {CHECK_KV_LEN, "kv_len", ATTEND | LATENT, {{"0", CHECK_KV_ZERO, 8}, {"1", CHECK_KV_ONE, 8},
    {"equal", CHECK_KV_EQUAL, 13},
    {"few", CHECK_KV_FEW, 10}, {"block_edge", CHECK_KV_BLOCK_EDGE, 16}, {"tile_edge", CHECK_KV_TILE_EDGE, 16},
    {"hundreds", CHECK_KV_HUNDREDS, 20}, {"long", CHECK_KV_LONG, 13}}},
  {CHECK_SEQS, "sequences", ATTEND | GATHERS | LATENT, {{"1", 1, 34}, {"2", 2, 26}, {"3", 3, 20}, {"4_to_6", 4, 20}}},
  {CHECK_EMPTIES, "empty_sequences", ATTEND | GATHERS | LATENT, {{"none", 0, 66}, {"some", 1, 34}}},
  {CHECK_TABLE, "table", PAGED | GATHERS | LATENT, {{"exact", 0, 50}, {"surplus", 1, 50}}},
  {CHECK_TRAILING, "trailing_tokens", ATTEND | LATENT, {{"none", 0, 60}, {"some", 1, 40}}},
  {CHECK_GUARD, "guard", EVERY | LATENT, {{"after", 0, 65}, {"before", 1, 35}}},
  {CHECK_PARTS, "parts", MERGES, {{"1", 1, 20}, {"2", 2, 20}, {"3", 3, 20}, {"5", 5, 20}, {"17", 17, 20}}},
  {CHECK_LSES, "part_lse", MERGES, {{"near", CHECK_LSES_NEAR, 20}, {"far", CHECK_LSES_FAR, 20},
    {"large", CHECK_LSES_LARGE, 20}, {"infinite", CHECK_LSES_INFINITE, 20}, {"nan", CHECK_LSES_NAN, 20}}},
  {CHECK_BASE, "part_base", MERGES, {{"e", 0, 60}, {"2", 1, 40}}},
  {CHECK_ALIAS, "alias", MERGES, {{"none", CHECK_ALIAS_NONE, 40}, {"out", CHECK_ALIAS_OUT, 24},
    {"out_and_lse", CHECK_ALIAS_BOTH, 36}}},
  {CHECK_SLOTS, "slots", WRITES, {{"all", CHECK_SLOTS_ALL, 25}, {"fewer", CHECK_SLOTS_FEWER, 25},
    {"padded", CHECK_SLOTS_PADDED, 25}, {"none", CHECK_SLOTS_NONE, 25}}},
  {CHECK_STARTS, "seq_starts", GATHERS, {{"absent", 0, 40}, {"given", 1, 60}}},
  {CHECK_GATHERED, "gathered", GATHERS, {{"k_and_v", CHECK_GATHER_BOTH, 46}, {"k", CHECK_GATHER_K, 27},
    {"v", CHECK_GATHER_V, 27}}},
  {CHECK_ELEMENT, "element", MOVES, {{"float32", ATTN_DTYPE_FLOAT32, 26}, {"bfloat16", ATTN_DTYPE_BFLOAT16, 26},
    {"fp8_e4m3", ATTN_DTYPE_FP8_E4M3, 24}, {"uint8", ATTN_DTYPE_UINT8, 24}}},
  {CHECK_POOLS, "pools", MOVES, {{"one", CHECK_POOLS_ONE, 45}, {"two", CHECK_POOLS_TWO, 55}}},
  {CHECK_PAIRS, "pairs", MOVES, {{"none", CHECK_PAIRS_NONE, 23}, {"one", CHECK_PAIRS_ONE, 23},
    {"few", CHECK_PAIRS_FEW, 27}, {"most", CHECK_PAIRS_MOST, 27}}},
  {CHECK_ROTARY, "rotary", WRITES, {{"none", ATTN_ROTARY_NONE, 40}, {"split_half", ATTN_ROTARY_SPLIT_HALF, 30},
    {"interleaved", ATTN_ROTARY_INTERLEAVED, 30}}},
  {CHECK_TARGET_SCALES, "target_scales", CONVERTS, {{"plain", CHECK_SCALES_PLAIN, 50},
    {"apart", CHECK_SCALES_APART, 50}}},
  {CHECK_TARGET_LAYOUT, "target_layout", CONVERTS, {{"nhd", 0, 50}, {"hnd", 1, 50}}},
  {CHECK_RANK, "rank", LATENT, {{"7", 7, 12}, {"16", 16, 12}, {"41", 41, 12}, {"64", 64, 12}, {"128", 128, 11},
    {"192", 192, 10}, {"256", 256, 10}, {"320", 320, 9}, {"512", 512, 26}}},
  {CHECK_ROTARY_SIZE, "rotary_size", LATENT, {{"0", 0, 14}, {"1", 1, 14}, {"4", 4, 14}, {"5", 5, 14}, {"32", 32, 14},
    {"64", 64, 26}, {"192", 192, 12}}},
  {CHECK_HEADS, "heads", LATENT, {{"1", 1, 8}, {"2", 2, 8}, {"4", 4, 8}, {"5", 5, 7}, {"8", 8, 7}, {"10", 10, 7},
    {"12", 12, 6}, {"15", 15, 6}, {"16", 16, 8}, {"20", 20, 6}, {"24", 24, 6}, {"32", 32, 6}, {"40", 40, 6},
    {"64", 64, 6}, {"96", 96, 6}, {"128", 128, 7}}},
  {CHECK_PAGE, "page", LATENT, {{"1", 1, 18}, {"7", 7, 22}, {"16", 16, 24}, {"64", 64, 22}, {"480", 480, 14}}},
  {CHECK_LATENT_FORMAT, "latent_format", LATENT, {{"float32", ATTN_FORMAT_FLOAT32, 18},
    {"float16", ATTN_FORMAT_FLOAT16, 14}, {"bfloat16", ATTN_FORMAT_BFLOAT16, 14},
    {"fp8_e4m3", ATTN_FORMAT_FP8_E4M3, 14},
    {"int8_per_token_head", ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 13},
    {"fp8_per_token_head", ATTN_FORMAT_FP8_PER_TOKEN_HEAD, 13},
    {"int4_per_token_head", ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 13}, {"fp8_ds_mla", ATTN_FORMAT_FP8_DS_MLA, 300}}},
  {CHECK_ROTARY_TYPE, "rotary_type", LATENT, {{"float16", ATTN_DTYPE_FLOAT16, 50},
    {"bfloat16", ATTN_DTYPE_BFLOAT16, 50}}},
  {CHECK_EXPANDED, "expanded", EXPANDS, {{"1_and_1", CHECK_EXPANDED_ONE, 15}, {"few", CHECK_EXPANDED_FEW, 35},
    {"v_smaller", CHECK_EXPANDED_V_SMALLER, 20}, {"v_larger", CHECK_EXPANDED_V_LARGER, 20},
    {"wide", CHECK_EXPANDED_WIDE, 10}}},
  {CHECK_CONTEXT_CHUNK, "context_chunk", EXPANDS, {{"auto", 0, 30}, {"1", 1, 8}, {"8", 8, 16}, {"16", 16, 16},
    {"64", 64, 16}, {"100", 100, 14}}},
  {CHECK_NEW_ROWS, "new_rows", EXPANDS, {{"as_given", CHECK_ROWS_GIVEN, 50}, {"written", CHECK_ROWS_WRITTEN, 50},
    {"before", CHECK_ROWS_BEFORE, 30}}},
  {CHECK_WEIGHTS, "weights", EXPANDS, {{"float32", ATTN_DTYPE_FLOAT32, 30}, {"float16", ATTN_DTYPE_FLOAT16, 20},
    {"bfloat16", ATTN_DTYPE_BFLOAT16, 20}, {"fp8_blocks", ATTN_DTYPE_FP8_E4M3, 30}}},
  {CHECK_QUERY, "query", MQA, {{"one_tensor", 0, 60}, {"two_tensors", 1, 40}}},
  {CHECK_LATENT_VALUES, "latent_values", LATENT, {{"normal", CHECK_NORMAL, 40},
    {"constant_rows", CHECK_CONSTANT_ROWS, 14}, {"sparse", CHECK_SPARSE, 14}, {"mixed_scales", CHECK_MIXED_SCALES, 16},
    {"nan_row", CHECK_NAN_ROW, 16}}},
  {CHECK_NEW_TOKENS, "new_tokens", LATENT, {{"0", 0, 7}, {"1", 1, 30}, {"2", 2, 10}, {"3", 3, 9}, {"4", 4, 9},
    {"5", 5, 7}, {"6", 6, 7}, {"7", 7, 7}, {"8", 8, 7}, {"9", 9, 7}, {"20_to_60", 20, 7}}},
  {CHECK_SPLIT_RULE, "split_rule", MQA | OP_BIT(CHECK_LAYER), {{"default", 0, 75}, {"compatible", 1, 25}}},
};

/* Pairs of values that exclude each other, beyond those of the operations' masks. */
typedef struct exclusion {
  check_option first;
  int32_t first_number;
  check_option second;
  int32_t second_number;
  const char *why;
} exclusion;

static const exclusion exclusions[] = {
  {CHECK_OP, CHECK_GATHER, CHECK_OUT_TYPE, CHECK_OUT_STATIC, "rows of a cache are gathered as floats"},
  {CHECK_OP, CHECK_GATHER, CHECK_OUT_TYPE, CHECK_OUT_BLOCK_64, "rows of a cache are gathered as floats"},
  {CHECK_OP, CHECK_GATHER, CHECK_OUT_TYPE, CHECK_OUT_BLOCK_128, "rows of a cache are gathered as floats"},
  {CHECK_OP, CHECK_MERGE, CHECK_OUT_TYPE, CHECK_OUT_STATIC, "a merge gives floats"},
  {CHECK_OP, CHECK_MERGE, CHECK_OUT_TYPE, CHECK_OUT_BLOCK_64, "a merge gives floats"},
  {CHECK_OP, CHECK_MERGE, CHECK_OUT_TYPE, CHECK_OUT_BLOCK_128, "a merge gives floats"},
  {CHECK_OP, CHECK_ENCODER, CHECK_K_FORMAT, ATTN_FORMAT_FP8_E4M3, "k and v without a cache are floats"},
  {CHECK_OP, CHECK_ENCODER, CHECK_K_FORMAT, ATTN_FORMAT_FP8_E5M2, "k and v without a cache are floats"},
  {CHECK_OP, CHECK_ENCODER, CHECK_K_FORMAT, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, "k and v without a cache are floats"},
  {CHECK_OP, CHECK_ENCODER, CHECK_K_FORMAT, ATTN_FORMAT_FP8_PER_TOKEN_HEAD, "k and v without a cache are floats"},
  {CHECK_OP, CHECK_ENCODER, CHECK_K_FORMAT, ATTN_FORMAT_INT4_PER_TOKEN_HEAD, "k and v without a cache are floats"},
  {CHECK_OP, CHECK_CROSS, CHECK_K_FORMAT, ATTN_FORMAT_FP8_E4M3, "k and v without a cache are floats"},
  {CHECK_OP, CHECK_CROSS, CHECK_K_FORMAT, ATTN_FORMAT_FP8_E5M2, "k and v without a cache are floats"},
  {CHECK_OP, CHECK_CROSS, CHECK_K_FORMAT, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, "k and v without a cache are floats"},
  {CHECK_OP, CHECK_CROSS, CHECK_K_FORMAT, ATTN_FORMAT_FP8_PER_TOKEN_HEAD, "k and v without a cache are floats"},
  {CHECK_OP, CHECK_CROSS, CHECK_K_FORMAT, ATTN_FORMAT_INT4_PER_TOKEN_HEAD, "k and v without a cache are floats"},
  {CHECK_OP, CHECK_WRITE, CHECK_IN_TYPE, ATTN_DTYPE_FP8_E4M3, "only queries are fp8"},
  {CHECK_OP, CHECK_MERGE, CHECK_IN_TYPE, ATTN_DTYPE_FP8_E4M3, "only queries are fp8"},
  {CHECK_SIZE, 1, CHECK_V_SIZE, CHECK_V_SMALLER, "nothing is smaller than 1"},
  {CHECK_INVARIANT, 1, CHECK_SPLITS, 1, "batch-invariant cuts are fixed"},
  {CHECK_INVARIANT, 1, CHECK_SPLITS, 2, "batch-invariant cuts are fixed"},
  {CHECK_INVARIANT, 1, CHECK_SPLITS, 3, "batch-invariant cuts are fixed"},
  {CHECK_INVARIANT, 1, CHECK_SPLITS, 5, "batch-invariant cuts are fixed"},
  {CHECK_INVARIANT, 1, CHECK_SPLITS, 16, "batch-invariant cuts are fixed"},
  {CHECK_INVARIANT, 1, CHECK_SPLITS, 161, "batch-invariant cuts are fixed"},
  {CHECK_INVARIANT, 1, CHECK_SPLITS, 256, "batch-invariant cuts are fixed"},
  {CHECK_OP, CHECK_ENCODER, CHECK_KV_LEN, CHECK_KV_ZERO, "an encoder's kv_len is its q_len"},
  {CHECK_OP, CHECK_ENCODER, CHECK_KV_LEN, CHECK_KV_ONE, "an encoder's kv_len is its q_len"},
  {CHECK_OP, CHECK_ENCODER, CHECK_KV_LEN, CHECK_KV_FEW, "an encoder's kv_len is its q_len"},
  {CHECK_OP, CHECK_ENCODER, CHECK_KV_LEN, CHECK_KV_BLOCK_EDGE, "an encoder's kv_len is its q_len"},
  {CHECK_OP, CHECK_ENCODER, CHECK_KV_LEN, CHECK_KV_TILE_EDGE, "an encoder's kv_len is its q_len"},
  {CHECK_OP, CHECK_ENCODER, CHECK_KV_LEN, CHECK_KV_HUNDREDS, "an encoder's kv_len is its q_len"},
  {CHECK_OP, CHECK_ENCODER, CHECK_KV_LEN, CHECK_KV_LONG, "an encoder's kv_len is its q_len"},
  {CHECK_OP, CHECK_CROSS, CHECK_KV_LEN, CHECK_KV_BLOCK_EDGE, "no blocks without a cache"},
  {CHECK_SEQS, 1, CHECK_EMPTIES, 1, "the one sequence has the lengths that q_len and kv_len say"},
  {CHECK_LSE, 0, CHECK_ALIAS, CHECK_ALIAS_BOTH, "no lse to alias"},
  {CHECK_SIZE, 1, CHECK_ROTARY, ATTN_ROTARY_SPLIT_HALF, "a pair has two elements"},
  {CHECK_SIZE, 1, CHECK_ROTARY, ATTN_ROTARY_INTERLEAVED, "a pair has two elements"},
  {CHECK_OP, CHECK_MQA, CHECK_IN_TYPE, ATTN_DTYPE_FP8_E4M3, "queries of latent rows are floats"},
  {CHECK_OP, CHECK_MHA, CHECK_IN_TYPE, ATTN_DTYPE_FP8_E4M3, "queries of latent rows are floats"},
  {CHECK_OP, CHECK_LAYER, CHECK_IN_TYPE, ATTN_DTYPE_FP8_E4M3, "queries of latent rows are floats"},
  {CHECK_OP, CHECK_LAYER, CHECK_NEW_ROWS, CHECK_ROWS_GIVEN, "a layer attends to stored rows"},
  {CHECK_OP, CHECK_MHA, CHECK_NEW_ROWS, CHECK_ROWS_BEFORE, "mha writes new rows, or takes them as given"},
  {CHECK_INVARIANT, 1, CHECK_SPLIT_RULE, 1, "batch-invariant cuts are fixed"},
  {CHECK_RANK, 7, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
  {CHECK_RANK, 16, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
  {CHECK_RANK, 41, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
  {CHECK_RANK, 64, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
  {CHECK_RANK, 128, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
  {CHECK_RANK, 192, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
  {CHECK_RANK, 256, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
  {CHECK_RANK, 320, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
  {CHECK_ROTARY_SIZE, 0, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
  {CHECK_ROTARY_SIZE, 1, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
  {CHECK_ROTARY_SIZE, 4, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
  {CHECK_ROTARY_SIZE, 5, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
  {CHECK_ROTARY_SIZE, 32, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
  {CHECK_ROTARY_SIZE, 192, CHECK_LATENT_FORMAT, ATTN_FORMAT_FP8_DS_MLA, "fp8_ds_mla rows are 512 + 64"},
};
/* clang-format on */

static int num_values(check_option option) {
  int count = 0;
  while (table[option].values[count].name != NULL) {
    count++;
  }
  return count;
}

static int applies(check_option option, int32_t op) {
  return (table[option].ops & OP_BIT((unsigned)op)) != 0;
}

static const exclusion *excluded(check_option a, int32_t a_number, check_option b, int32_t b_number) {
  for (size_t i = 0; i < sizeof exclusions / sizeof *exclusions; i++) {
    const exclusion *e = &exclusions[i];
    if ((e->first == a && e->first_number == a_number && e->second == b && e->second_number == b_number) ||
        (e->first == b && e->first_number == b_number && e->second == a && e->second_number == a_number)) {
      return e;
    }
  }
  return NULL;
}

/* 1 when no value chosen so far (options before `option`) excludes this one. */
static int allowed(const check_choice *choice, check_option option, int32_t number) {
  for (size_t i = 0; i < sizeof exclusions / sizeof *exclusions; i++) {
    const exclusion *e = &exclusions[i];
    int is_first = e->first == option && e->first_number == number;
    int is_second = e->second == option && e->second_number == number;
    if ((is_first && e->second < option && check_number(choice, e->second) == e->second_number) ||
        (is_second && e->first < option && check_number(choice, e->first) == e->first_number)) {
      return 0;
    }
  }
  return 1;
}

/* May the option take this value, after what was chosen, with one of these operations? */
static int drawable(const check_choice *choice, unsigned ops, check_option option, int32_t number) {
  return allowed(choice, option, number) && (option != CHECK_OP || (ops >> number & 1u) != 0);
}

void check_draw_options(check_rng *rng, unsigned ops, check_choice *choice) {
  for (int o = 0; o < CHECK_OPTION_COUNT; o++) {
    check_option option = (check_option)o;
    choice->index[o] = CHECK_ABSENT;
    if (option != CHECK_OP && !applies(option, check_number(choice, CHECK_OP))) {
      continue;
    }
    int count = num_values(option);
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
      total += drawable(choice, ops, option, table[o].values[i].number) ? table[o].values[i].weight : 0;
    }
    int64_t left = check_between(rng, 0, total - 1);
    for (int i = 0; i < count; i++) {
      if (drawable(choice, ops, option, table[o].values[i].number)) {
        left -= table[o].values[i].weight;
        if (left < 0) {
          choice->index[o] = (int8_t)i;
          break;
        }
      }
    }
  }
}

int32_t check_number(const check_choice *choice, check_option option) {
  int index = choice->index[option];
  return index == CHECK_ABSENT ? CHECK_ABSENT : table[option].values[index].number;
}

int check_parse_value(const char *text, check_value *value) {
  const char *equals = strchr(text, '=');
  for (int o = 0; equals != NULL && o < CHECK_OPTION_COUNT; o++) {
    size_t length = strlen(table[o].name);
    if (length != (size_t)(equals - text) || strncmp(text, table[o].name, length) != 0) {
      continue;
    }
    for (const option_value *v = table[o].values; v->name != NULL; v++) {
      if (strcmp(v->name, equals + 1) == 0) {
        value->option = (check_option)o;
        value->number = v->number;
        return 1;
      }
    }
  }
  return 0;
}

int check_choice_has(const check_choice *choice, const check_value *values, int count) {
  for (int i = 0; i < count; i++) {
    int has = 0;
    for (int j = 0; j < count; j++) {
      has |= values[j].option == values[i].option && check_number(choice, values[j].option) == values[j].number;
    }
    if (!has) {
      return 0;
    }
  }
  return 1;
}

const char *check_value_name(const check_choice *choice, check_option option) {
  int index = choice->index[option];
  return index == CHECK_ABSENT ? "-" : table[option].values[index].name;
}

void check_print_choice(const check_choice *choice, FILE *file) {
  for (int o = 0; o < CHECK_OPTION_COUNT; o++) {
    if (choice->index[o] != CHECK_ABSENT) {
      fprintf(file, "%s%s=%s", o == 0 ? "" : " ", table[o].name, check_value_name(choice, (check_option)o));
    }
  }
  fputc('\n', file);
}

static void list_option(check_option o, FILE *file) {
  fprintf(file, "%-16s", table[o].name);
  for (int i = 0; i < num_values(o); i++) {
    fprintf(file, " %s:%d", table[o].values[i].name, (int)table[o].values[i].weight);
  }
  fprintf(file, "   for");
  for (int i = 0; i < num_values(CHECK_OP); i++) {
    if (applies(o, table[CHECK_OP].values[i].number)) {
      fprintf(file, " %s", table[CHECK_OP].values[i].name);
    }
  }
  fputc('\n', file);
}

static void write_option(check_option o, json_writer *w) {
  json_line(w);
  json_object(w, NULL);
  json_string(w, "name", table[o].name);
  json_object(w, "weights");
  for (int i = 0; i < num_values(o); i++) {
    json_integer(w, table[o].values[i].name, table[o].values[i].weight);
  }
  json_end(w);
  json_array(w, "operations");
  for (int i = 0; i < num_values(CHECK_OP); i++) {
    if (applies(o, table[CHECK_OP].values[i].number)) {
      json_string(w, NULL, table[CHECK_OP].values[i].name);
    }
  }
  json_end(w);
  json_end(w);
}

/* The values of two options that exclude each other. */
static void list_exclusions(check_option a, check_option b, FILE *file, json_writer *w) {
  for (int i = 0; i < num_values(a); i++) {
    for (int j = 0; j < num_values(b); j++) {
      const exclusion *e = excluded(a, table[a].values[i].number, b, table[b].values[j].number);
      char first[64];
      char second[64];
      if (e == NULL) {
        continue;
      }
      snprintf(first, sizeof first, "%s=%s", table[a].name, table[a].values[i].name);
      snprintf(second, sizeof second, "%s=%s", table[b].name, table[b].values[j].name);
      if (w == NULL) {
        fprintf(file, "exclusive: %s with %s: %s\n", first, second, e->why);
        continue;
      }
      json_line(w);
      json_object(w, NULL);
      json_string(w, "first", first);
      json_string(w, "second", second);
      json_string(w, "why", e->why);
      json_end(w);
    }
  }
}

void check_list_options(FILE *file, int json) {
  json_writer w;
  json_start(&w, file);
  if (json) {
    json_object(&w, NULL);
    json_array(&w, "options");
  }
  for (int o = 0; o < CHECK_OPTION_COUNT; o++) {
    if (json) {
      write_option((check_option)o, &w);
    } else {
      list_option((check_option)o, file);
    }
  }
  if (json) {
    json_end(&w);
    json_array(&w, "exclusions");
  }
  for (int a = 0; a < CHECK_OPTION_COUNT; a++) {
    for (int b = a + 1; b < CHECK_OPTION_COUNT; b++) {
      list_exclusions((check_option)a, (check_option)b, file, json ? &w : NULL);
    }
  }
  if (json) {
    json_finish(&w);
  }
}

struct check_pairs {
  int64_t count[CHECK_OPTION_COUNT][CHECK_OPTION_COUNT][CHECK_VALUES_MAX][CHECK_VALUES_MAX];
};

check_pairs *check_pairs_new(void) {
  return calloc(1, sizeof(check_pairs));
}

void check_pairs_free(check_pairs *pairs) {
  free(pairs);
}

void check_pairs_add(check_pairs *pairs, const check_choice *choice) {
  for (int a = 0; a < CHECK_OPTION_COUNT; a++) {
    for (int b = a + 1; choice->index[a] != CHECK_ABSENT && b < CHECK_OPTION_COUNT; b++) {
      if (choice->index[b] != CHECK_ABSENT) {
        pairs->count[a][b][choice->index[a]][choice->index[b]]++;
      }
    }
  }
}

/* 1 when one of these operations has both values and nothing excludes them. */
static int possible(unsigned ops, check_option a, int i, check_option b, int j) {
  int32_t first = table[a].values[i].number;
  int32_t second = table[b].values[j].number;
  if (excluded(a, first, b, second) != NULL) {
    return 0;
  }
  for (int op = 0; op < num_values(CHECK_OP); op++) {
    int32_t number = table[CHECK_OP].values[op].number;
    if ((ops >> number & 1u) != 0 && applies(a, number) && applies(b, number) && (a != CHECK_OP || first == number) &&
        excluded(CHECK_OP, number, a, first) == NULL && excluded(CHECK_OP, number, b, second) == NULL) {
      return 1;
    }
  }
  return 0;
}

/* One pair of values with its count. */
typedef struct pair_row {
  check_option a;
  check_option b;
  int i;
  int j;
  int64_t count;
} pair_row;

static void spell(check_option option, int i, char *text, size_t bytes) {
  snprintf(text, bytes, "%s=%s", table[option].name, table[option].values[i].name);
}

static void print_pair(const pair_row *row, json_writer *w) {
  char first[64];
  char second[64];
  spell(row->a, row->i, first, sizeof first);
  spell(row->b, row->j, second, sizeof second);
  if (w == NULL) {
    printf("pair %8lld  %s  %s\n", (long long)row->count, first, second);
    return;
  }
  json_line(w);
  json_object(w, NULL);
  json_string(w, "first", first);
  json_string(w, "second", second);
  json_integer(w, "count", row->count);
  json_end(w);
}

/* Visit the pairs of two options; the rarest so far stays in *rarest. */
static int64_t print_pairs_of(const check_pairs *pairs, unsigned ops, check_option a, check_option b, int all,
                              pair_row *rarest, json_writer *w) {
  int64_t found = 0;
  for (int i = 0; i < num_values(a); i++) {
    for (int j = 0; j < num_values(b); j++) {
      pair_row row = {a, b, i, j, pairs->count[a][b][i][j]};
      if (!possible(ops, a, i, b, j)) {
        continue;
      }
      found++;
      if (all) {
        print_pair(&row, w);
      }
      *rarest = row.count < rarest->count ? row : *rarest;
    }
  }
  return found;
}

void check_pairs_print(const check_pairs *pairs, unsigned ops, int all, json_writer *w) {
  int64_t found = 0;
  pair_row rarest = {CHECK_OP, CHECK_OP, 0, 0, INT64_MAX};
  if (w != NULL) {
    json_object(w, "pairs");
    json_array(w, "drawn");
  }
  for (int a = 0; a < CHECK_OPTION_COUNT; a++) {
    for (int b = a + 1; b < CHECK_OPTION_COUNT; b++) {
      found += print_pairs_of(pairs, ops, (check_option)a, (check_option)b, all, &rarest, w);
    }
  }
  char first[64];
  char second[64];
  spell(rarest.a, rarest.i, first, sizeof first);
  spell(rarest.b, rarest.j, second, sizeof second);
  if (w == NULL) {
    printf("pairs of option values: %lld not declared exclusive; drawn least often: %lld times (%s with %s)%s\n",
           (long long)found, (long long)rarest.count, first, second,
           ops == CHECK_KV_OPS ? "; 20,000 cases draw each 20 times or more" : "");
    return;
  }
  json_end(w);
  json_integer(w, "possible", found);
  json_integer(w, "least", rarest.count);
  json_string(w, "rarest_first", first);
  json_string(w, "rarest_second", second);
  json_end(w);
}
