/* SPDX-License-Identifier: Apache-2.0 */
/* fault.h: planted faults, the proof that `attn check` catches what it claims to catch.
 *
 * A fault is one wrong line behind `if (attn_fault(ATTN_FAULT_NAME))`. In every shipped build attn_fault() is the
 * constant 0 and the wrong line is gone; only the test-only build (ATTN_TEST_FAULTS=1, bin/attn-faulty) holds them, and
 * there at most one is active at a time. A row of the list whose fault is planted nowhere is itself a failure: it is
 * not caught. The third field says exactly what is planted; "api" marks a check left out in src/api, "core" a line
 * of src/core that REFERENCE runs too (so only the check's own codec can tell), all others lie in CPU_ATTN.
 */
#ifndef ATTN_CORE_FAULT_H
#define ATTN_CORE_FAULT_H

/* The one list of faults: X(name, spelling, what is planted). */
#define ATTN_FAULT_LIST(X)                                                                                             \
  /* Masks. */                                                                                                         \
  X(ATTN_FAULT_WINDOW_LEFT_PLUS, "window_left_plus", "q - k <= left + 1 where left >= 0")                              \
  X(ATTN_FAULT_WINDOW_LEFT_MINUS, "window_left_minus", "q - k <= left - 1 where left >= 1")                            \
  X(ATTN_FAULT_WINDOW_RIGHT_PLUS, "window_right_plus", "k - q <= right + 1 where right >= 0")                          \
  X(ATTN_FAULT_WINDOW_RIGHT_MINUS, "window_right_minus", "k - q <= right - 1 where right >= 1")                        \
  X(ATTN_FAULT_CAUSAL_PLUS, "causal_plus", "causal shows k <= q + 1")                                                  \
  X(ATTN_FAULT_CAUSAL_ALIGN, "causal_align", "the position of row i is i, not kv_len - q_len + i")                     \
  X(ATTN_FAULT_CAUSAL_FLAG, "causal_flag", "causal_per_seq is ignored: the problem's flag serves every sequence")      \
  X(ATTN_FAULT_CHUNK_TRUNCATE, "chunk_truncate", "q / C truncates towards zero (q < 0 lands in chunk 0)")              \
  X(ATTN_FAULT_CHUNK_LOOKBACK, "chunk_lookback", "chunk_lookback counts as 0")                                         \
  X(ATTN_FAULT_PREFIX_END, "prefix_end", "a prefix range [a, b) also holds position b")                                \
  X(ATTN_FAULT_PREFIX_QUERY, "prefix_query", "a prefix range is tested for k only, not for q")                         \
  X(ATTN_FAULT_PREFIX_CLAMP, "prefix_clamp", "prefix_clamp is ignored")                                                \
  X(ATTN_FAULT_TAIL_DROPPED, "tail_dropped", "the last key (kv_len - 1) is skipped where kv_len is odd")               \
  X(ATTN_FAULT_TAIL_EXTRA, "tail_extra", "non-causal rows see one key more (kv_len) where the block has room for it")  \
  /* Scores. */                                                                                                        \
  X(ATTN_FAULT_SOFTCAP_ORDER, "softcap_order", "the soft cap is applied after ALiBi and bias")                         \
  X(ATTN_FAULT_SOFTCAP_RATIO, "softcap_ratio", "tanh(x) as (exp(2x) - 1) / (exp(2x) + 1) in float, unclamped")         \
  X(ATTN_FAULT_ALIBI_SIGN, "alibi_sign", "ALiBi adds +slope * distance")                                               \
  X(ATTN_FAULT_ALIBI_ABSOLUTE, "alibi_absolute", "ALiBi adds slope * k instead of -slope * (q - k)")                   \
  X(ATTN_FAULT_ALIBI_HEAD, "alibi_head", "the slope is that of entry kv_head, not q head")                             \
  X(ATTN_FAULT_BIAS_TOKEN, "bias_token", "the bias row is the row within the sequence, not the batch's token")         \
  X(ATTN_FAULT_BIAS_HEAD, "bias_head", "every head takes head 0's bias")                                               \
  X(ATTN_FAULT_QK_TAIL, "qk_tail", "the dot product drops the last element of an odd qk_head_size")                    \
  X(ATTN_FAULT_KV_HEAD, "kv_head", "the KV head is h % num_kv_heads")                                                  \
  X(ATTN_FAULT_GROUP_ORDER, "group_order", "the heads of a group are written in reverse order")                        \
  /* Softmax, values, splits. */                                                                                       \
  X(ATTN_FAULT_MASKED_V, "masked_v", "V is multiplied by weight 0 at positions that no row sees (tail of a tile)")     \
  X(ATTN_FAULT_RESCALE, "rescale", "the accumulated output is not rescaled when the running maximum grows")            \
  X(ATTN_FAULT_EMPTY_MEAN, "empty_mean", "a row that sees no key gives the mean of V over its kv_len keys")            \
  X(ATTN_FAULT_EMPTY_UNWRITTEN, "empty_unwritten", "a row that sees no key is left unwritten (out; lse is right)")     \
  X(ATTN_FAULT_FP16_ACCUMULATE, "fp16_accumulate", "the accumulated output is rounded to float16 after each tile")     \
  X(ATTN_FAULT_SPLIT_STALE, "split_stale", "the merge takes the slot of the split before for the last split")          \
  X(ATTN_FAULT_SPLIT_EMPTY, "split_empty", "a split in which the row sees nothing leaves its slot unwritten")          \
  X(ATTN_FAULT_SPLIT_TWICE, "split_twice", "every split but the first begins one key early")                           \
  X(ATTN_FAULT_SPLIT_UNSHIFTED, "split_unshifted", "the merge of splits weighs by exp(lse), no maximum subtracted")    \
  X(ATTN_FAULT_SINK_TWICE, "sink_twice", "the sink enters the denominator twice")                                      \
  X(ATTN_FAULT_SINK_SPLIT, "sink_split", "the sink enters once per split (seen only where splits > 1)")                \
  X(ATTN_FAULT_SINK_LSE, "sink_lse", "lse includes the sink")                                                          \
  X(ATTN_FAULT_LSE_BASE2, "lse_base2", "lse is in base 2")                                                             \
  X(ATTN_FAULT_LSE_TRANSPOSED, "lse_transposed", "lse is written [heads, tokens], compact")                            \
  X(ATTN_FAULT_BF16_TRUNCATE, "bf16_truncate", "the conversion to a bfloat16 output truncates")                        \
  X(ATTN_FAULT_FP8_MULTIPLY, "fp8_multiply", "a static fp8 output is multiplied by output_scale, not divided")         \
  X(ATTN_FAULT_FP8_SIXTEEN, "fp8_sixteen", "a row is rounded to float16 before it is rounded to fp8")                  \
  X(ATTN_FAULT_FP8_OVERFLOW, "fp8_overflow", "an fp8 value that rounds beyond 448 is stored as NaN, not saturated")    \
  X(ATTN_FAULT_FP8_TRUNCATE, "fp8_truncate", "the conversion to fp8 truncates (normal values)")                        \
  X(ATTN_FAULT_FP8_SUBNORMAL, "fp8_subnormal", "fp8 values below the smallest normal one are stored as 0")             \
  X(ATTN_FAULT_FP8_FLOOR, "fp8_floor", "the floor of 1e-10 of a group's scale is dropped")                             \
  X(ATTN_FAULT_FP8_NEIGHBOUR, "fp8_neighbour", "a group's codes take the scale of the group before it, if any")        \
  X(ATTN_FAULT_FP8_WIDE, "fp8_wide", "the last, shorter group's absmax is taken over the row's last output_block")     \
  X(ATTN_FAULT_FP8_SWAPPED, "fp8_swapped", "out_scale is written [heads, tokens, groups], compact")                    \
  X(ATTN_FAULT_FP8_NAN, "fp8_nan", "absmax passes over NaN: a group with NaN gets codes 7F and a finite scale")        \
  X(ATTN_FAULT_FP16_SUBNORMAL, "fp16_subnormal", "float16 subnormals of K and V are read as 0")                        \
  X(ATTN_FAULT_OUT_BEYOND, "out_beyond", "the out row after the batch's last token is zeroed where out has one")       \
  X(ATTN_FAULT_INVARIANCE, "invariance", "batch_invariant: the first cut moves by the number of sequences")            \
  /* Quantised caches. */                                                                                              \
  X(ATTN_FAULT_CODE_NAN, "code_nan", "e4m3 code 7F decodes to 480")                                                    \
  X(ATTN_FAULT_CODE_SUBNORMAL, "code_subnormal", "e4m3 codes below 2^-6 decode to 0")                                  \
  X(ATTN_FAULT_CODE_E5M2, "code_e5m2", "e5m2 codes are read as e4m3")                                                  \
  X(ATTN_FAULT_CODE_NIBBLES, "code_nibbles", "the two elements of an int4 byte are exchanged")                         \
  X(ATTN_FAULT_CODE_ZERO_POINT, "code_zero_point", "the zero point of int4 is dropped")                                \
  X(ATTN_FAULT_SCALE_HEAD, "scale_head", "a row's scale is that of KV head 0")                                         \
  X(ATTN_FAULT_SCALE_SLOT, "scale_slot", "a row's scale is that of its block's first position")                        \
  X(ATTN_FAULT_SCALE_K_ON_V, "scale_k_on_v", "V is multiplied by K's scale where both have one")                       \
  X(ATTN_FAULT_SCALE_UNALIGNED, "scale_unaligned",                                                                     \
    "an inline scale is read right behind the codes, not at the next multiple of 4")                                   \
  X(ATTN_FAULT_SIGN_RESTART, "sign_restart", "int4: the sign index of a query begins anew in every block")             \
  X(ATTN_FAULT_BLOCK_DIVISOR, "block_divisor", "int4: every block of a query is divided by the size of the largest")   \
  X(ATTN_FAULT_BLOCK_FACTOR, "block_factor", "int4: the factor of a query's smaller blocks is left out")               \
  X(ATTN_FAULT_ROTATION_OUT, "rotation_out", "int4: the output is un-rotated without the signs")                       \
  X(ATTN_FAULT_Q_SCALE, "q_scale", "the scale of an fp8 query is ignored")                                             \
  /* Writing to them, requantising, rotary embedding. */                                                               \
  X(ATTN_FAULT_INT8_TRUNCATE, "int8_truncate", "core: int8 codes are truncated, not rounded")                          \
  X(ATTN_FAULT_SCALE_LEAST, "scale_least", "core: the floor of 1e-6 of a row's scale is dropped")                      \
  X(ATTN_FAULT_INT4_RANGE, "int4_range", "the range of an int4 row is not widened to contain 0")                       \
  X(ATTN_FAULT_STATIC_RECIPROCAL, "static_reciprocal", "core: fp8(x * (1 / scale)), not fp8(x / scale)")               \
  X(ATTN_FAULT_WRITE_PADDING, "write_padding", "the bytes between codes and an inline scale are not zeroed")           \
  X(ATTN_FAULT_WRITE_NAN, "write_nan", "NaN and infinities of a row that is quantised count as 0")                     \
  X(ATTN_FAULT_REQUANTISE_SCALE, "requantise_scale", "requantise: a row keeps its source row's scale")                 \
  X(ATTN_FAULT_REQUANTISE_TAIL, "requantise_tail", "requantise: a block of odd size loses its last position")          \
  X(ATTN_FAULT_ROTARY_PARTNER, "rotary_partner", "core: split-half pairs are i with i + rotary_dim / 2 - 1")           \
  X(ATTN_FAULT_ROTARY_PAIRING, "rotary_pairing", "interleaved pairs are rotated as split halves")                      \
  X(ATTN_FAULT_ROTARY_UNROUNDED, "rotary_unrounded", "a rotated key is not rounded to its type before it is stored")   \
  X(ATTN_FAULT_ROTARY_REST, "rotary_rest", "the elements of q beyond rotary_dim are not copied to q_out")              \
  /* Addresses and lists. */                                                                                           \
  X(ATTN_FAULT_OFFSET_32, "offset_32", "the byte offset of a block (id * stride) is cut to 32 unsigned bits")          \
  X(ATTN_FAULT_BLOCK_NEIGHBOUR, "block_neighbour", "the last block's id comes from the column before it, if any")      \
  X(ATTN_FAULT_BLOCK_ROUNDED, "block_rounded", "offset in block = p & (block_size - 1), as if a power of two")         \
  X(ATTN_FAULT_SLOT_NARROWED, "slot_narrowed", "unchecked cache_write: a slot is cut to 32 bits before its test")      \
  X(ATTN_FAULT_SLOT_PADDING, "slot_padding", "cache_write: slot -1 is written to slot 0")                              \
  X(ATTN_FAULT_WRITE_ROUND, "write_round", "cache_write: float32 to bfloat16 truncates")                               \
  X(ATTN_FAULT_GATHER_START, "gather_start", "cache_gather: seq_starts counts as 0 in the source position")            \
  X(ATTN_FAULT_MERGE_UNSHIFTED, "merge_unshifted", "attn_merge weighs by exp(lse), no maximum subtracted")             \
  X(ATTN_FAULT_MERGE_SWAPPED, "merge_swapped", "attn_merge: the weights of the first two parts are exchanged")         \
  X(ATTN_FAULT_MERGE_INF, "merge_inf", "attn_merge: a part whose lse is +inf is not neutral")                          \
  X(ATTN_FAULT_MERGE_NAN, "merge_nan", "attn_merge: a part of weight 0 is skipped although its out holds a NaN")       \
  X(ATTN_FAULT_MERGE_SINK, "merge_sink", "attn_merge: lse includes the sink")                                          \
  X(ATTN_FAULT_DUPLICATE_SLOT, "duplicate_slot", "api: checked cache_write accepts the same slot twice")               \
  X(ATTN_FAULT_SLOT_LIMIT, "slot_limit", "api: checked cache_write accepts slot == capacity (the writer skips it)")    \
  X(ATTN_FAULT_POSITION_LIMIT, "position_limit", "api: checked cache_write accepts a position one beyond the tables")  \
  X(ATTN_FAULT_TABLE_ID, "table_id", "api: a block id == num_blocks at a visible position passes (counts as masked)")  \
  X(ATTN_FAULT_WORKSPACE_SHORT, "workspace_short", "api: a workspace one byte too small is accepted")                  \
  X(ATTN_FAULT_RANGE_REVERSED, "range_reversed", "api: a prefix range with a > b is accepted as empty")                \
  X(ATTN_FAULT_OUTPUT_SCALE, "output_scale", "api: an output_scale that is not finite and above 0 is accepted")

/* Those that only cases over latent rows show (attn check --op latent); they lie in CPU_MLA, but for "core". */
#define ATTN_FAULT_LATENT_LIST(Y)                                                                                      \
  Y(ATTN_FAULT_TILE_SCALE, "tile_scale", "fp8_ds_mla: a tile of 128 takes the scale of the next one")                  \
  Y(ATTN_FAULT_ROTARY_TYPE, "rotary_type", "float16 rotary elements of a mixed row are read as bfloat16, and back")    \
  Y(ATTN_FAULT_ROTARY_SCALED, "rotary_scaled", "the rotary elements of a *_per_token_head row are scaled too")         \
  Y(ATTN_FAULT_ROTARY_DROPPED, "rotary_dropped", "scores leave the rotary elements out")                               \
  Y(ATTN_FAULT_ROPE_HEAD, "rope_head", "of a query in two tensors every head takes head 0's rotary elements")          \
  Y(ATTN_FAULT_LATENT_COLUMN, "latent_column", "the value begins at the latent row's second column")                   \
  Y(ATTN_FAULT_GIVEN_ROW, "given_row", "mha as given: a new token's row is that of the token before, if any")          \
  Y(ATTN_FAULT_CHUNK_TWICE, "chunk_twice", "mha: the second chunk of context is counted twice")                        \
  Y(ATTN_FAULT_CHUNK_TAIL, "chunk_tail", "mha: the context's last key is skipped where it ends inside a chunk")        \
  Y(ATTN_FAULT_EXPAND_ROW, "expand_row", "mha: the value's rows of the projection begin one row early")                \
  Y(ATTN_FAULT_EXPAND_HEAD, "expand_head", "mha: every head is expanded by head 0's projection")                       \
  Y(ATTN_FAULT_ABSORB_HEAD, "absorb_head", "layer: queries are absorbed by the projection of the head before")         \
  Y(ATTN_FAULT_ABSORB_TAIL, "absorb_tail", "layer: the last element of q_nope is not absorbed")                        \
  Y(ATTN_FAULT_WEIGHT_BLOCK, "weight_block", "core: multipliers of 128 x 128 blocks are counted anew in every head")   \
  Y(ATTN_FAULT_LATENT_PADDING, "latent_padding", "the bytes between rotary elements and scale are not zeroed")         \
  Y(ATTN_FAULT_TILE_ABSMAX, "tile_absmax", "writing fp8_ds_mla: every tile's scale is that of the first tile")

typedef enum attn_fault_id {
  ATTN_FAULT_NONE = 0,
#define ATTN_FAULT_ENUM(name, spelling, what) name,
  ATTN_FAULT_LIST(ATTN_FAULT_ENUM) ATTN_FAULT_LATENT_LIST(ATTN_FAULT_ENUM)
#undef ATTN_FAULT_ENUM
      ATTN_FAULT_COUNT
} attn_fault_id;

#if defined(ATTN_TEST_FAULTS) && ATTN_TEST_FAULTS
/* 1 when this fault is the active one. */
int attn_fault(int id);
/* Choose the active fault; ATTN_FAULT_NONE: none. Not while a call runs. */
void attn_fault_set(int id);
#else
#define attn_fault(id) 0
#endif

#endif
