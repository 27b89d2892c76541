/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cache.h  How keys and values lie in a paged cache, and the calls that move them.   (stable; see each section)
 *
 * A cache is a pool of blocks. A block holds `block_size` positions of every KV head; K and V are two tensors (often
 * two views of one allocation). A position is named by its slot:
 *
 *     slot = block * block_size + offset          0 <= slot < num_blocks * block_size
 *
 * and its row, the head_size elements of one KV head, by (block, offset, head) in NHD order or (block, head, offset) in
 * HND order. All addresses are formed in 64 bits from the strides given, so blocks may be padded, K and V may share an
 * allocation, and several layers may live inside a block.
 *
 * Cache, plan and pool need one block size. An engine without a wish of its own takes the plan's: it makes the plan
 * with problem.block_size 0, reads attn_plan_info.block_size (attn_explain() tells it before anything is allocated),
 * and sets that number in attn_cache_desc and attn_pool_options. attn_run() refuses a cache of another one
 * (ATTN_E_SHAPE).
 */
#ifndef ATTN_CACHE_H
#define ATTN_CACHE_H

#include "backend.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Formats (stable) ------------------------------------------------------------------------------------------- */

/**
 * The one list of cache formats: X(name, value, spelling, storage type, rows: bits of attn_row_kind). docs/layouts.md
 * draws the rows and docs/numerics.md has the quantisers. A format that does not store the rows at hand is refused with
 * ATTN_E_UNSUPPORTED by every call, which names it.
 *
 *     float32, float16, bfloat16   the elements
 *     fp8_e4m3, fp8_e5m2           one code an element, in a tensor of that type or of uint8. The value is
 *                                  code * scale, with a static scale for all heads or one per head, K and V apart
 *     *_per_token_head             uint8 rows: the codes, zero bytes to the next multiple of 4, then the row's own
 *                                  scale (float32). With separate scales the codes alone, without padding, and the
 *                                  scales in a tensor of their own. int4 packs two codes in a byte, the even element
 *                                  low, and keeps its zero point in the scale's four lowest bits. At most 8192 elements
 *                                  a row
 *     fp8_ds_mla                   latent rows of 512 + 64 elements alone: 656 bytes, below
 *
 * A latent row (mla.h) has L = kv_lora_rank latent and R = qk_rope_head_dim rotary elements:
 *
 *     float32, float16, bfloat16   the L + R elements
 *     fp8_e4m3                     L + R codes, one static scale for all
 *     *_per_token_head             uint8: the codes of the L latent elements, zero bytes to the next multiple of 4, the
 *                                  R rotary elements in rotary_dtype, zero bytes to the next multiple of 4, the scale.
 *                                  With separate scales both paddings stay and only the scale is elsewhere. L + R is at
 *                                  most 8192
 *     fp8_ds_mla                   uint8: 512 codes e4m3(x / scale of its tile of 128), 4 tile scales (float32,
 *                                  max(absmax / 448, FLT_MIN)), 64 rotary elements in rotary_dtype
 */
#define ATTN_FORMAT_LIST(X)                                                                                            \
  X(ATTN_FORMAT_FLOAT32, 1, "float32", ATTN_DTYPE_FLOAT32, 3)                                                          \
  X(ATTN_FORMAT_FLOAT16, 2, "float16", ATTN_DTYPE_FLOAT16, 3)                                                          \
  X(ATTN_FORMAT_BFLOAT16, 3, "bfloat16", ATTN_DTYPE_BFLOAT16, 3)                                                       \
  X(ATTN_FORMAT_FP8_E4M3, 4, "fp8_e4m3", ATTN_DTYPE_FP8_E4M3, 3)                                                       \
  X(ATTN_FORMAT_FP8_E5M2, 5, "fp8_e5m2", ATTN_DTYPE_FP8_E5M2, 1)                                                       \
  X(ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 6, "int8_per_token_head", ATTN_DTYPE_UINT8, 3)                                    \
  X(ATTN_FORMAT_FP8_PER_TOKEN_HEAD, 7, "fp8_per_token_head", ATTN_DTYPE_UINT8, 3)                                      \
  X(ATTN_FORMAT_INT4_PER_TOKEN_HEAD, 8, "int4_per_token_head", ATTN_DTYPE_UINT8, 3)                                    \
  X(ATTN_FORMAT_FP8_DS_MLA, 9, "fp8_ds_mla", ATTN_DTYPE_UINT8, 2)

typedef enum attn_format {
  ATTN_FORMAT_AUTO = 0, /**< the query's own type (in a cache call: the tensor's own type) */
#define ATTN_FORMAT_ENUM(name, value, spelling, storage, rows) name = value,
  ATTN_FORMAT_LIST(ATTN_FORMAT_ENUM)
#undef ATTN_FORMAT_ENUM
} attn_format;

/** "float32", ..., "auto" for 0, "unknown" outside the list. Never NULL; static storage. */
ATTN_API const char *attn_format_name(attn_format format);

/** Sets *format to the format of that name and returns 1, or returns 0 when there is none. */
ATTN_API int attn_format_from_name(const char *name, attn_format *format);

/** The axis order of the K and V pool tensors that a caller passes. */
typedef enum attn_layout {
  ATTN_LAYOUT_NHD = 0, /**< [num_blocks, block_size, num_kv_heads, row] */
  ATTN_LAYOUT_HND = 1  /**< [num_blocks, num_kv_heads, block_size, row] */
} attn_layout;

/** Which of K and V, where their format has a scale per row, keep these scales in a tensor of their own. */
typedef enum attn_separate_scales {
  ATTN_SEPARATE_NONE = 0, /**< inline, behind each row's codes */
  ATTN_SEPARATE_BOTH = 1, /**< those of K and of V: of each whose format is a *_per_token_head, and at least one is */
  ATTN_SEPARATE_K = 2,    /**< those of K alone */
  ATTN_SEPARATE_V = 3     /**< those of V alone */
} attn_separate_scales;

/** What a cache of one layer looks like. Start from ATTN_CACHE_DESC_INIT. */
typedef struct attn_cache_desc {
  uint32_t size;        /**< sizeof(attn_cache_desc) */
  attn_format k_format; /**< of K, or of the latent rows; AUTO is refused here */
  attn_format v_format; /**< AUTO (0): as k_format */
  attn_layout layout;   /**< 0: NHD */
  int64_t num_blocks;   /**< >= 0 */
  int32_t block_size;   /**< positions per block, >= 1, any number; 0: 16. The plan has to be made with the same number:
                                 a problem's block_size 0 may mean another */
  int32_t num_kv_heads; /**< >= 1 */
  int32_t head_size;    /**< elements of a K row, >= 1 */
  int32_t v_head_size;  /**< elements of a V row; 0: as head_size */
  int32_t separate_scales;  /**< a value of attn_separate_scales; other than 0 for *_per_token_head formats only */
  int32_t kv_lora_rank;     /**< L >= 1 makes this a latent pool [num_blocks, block_size, row]: then v_format is 0 or
                                 k_format, layout, head sizes and v_block_bytes are 0, num_kv_heads is 0 or 1,
                                 separate_scales is 0 or ATTN_SEPARATE_BOTH. 0: K and V */
  int32_t qk_rope_head_dim; /**< R >= 0: rotary elements of a latent row */
  attn_dtype rotary_dtype;  /**< type of the rotary elements of *_per_token_head and fp8_ds_mla latent rows, float16 or
                                 bfloat16: required there, 0 elsewhere */
  int64_t k_block_bytes; /**< bytes from one block of K (or latent rows) to the next; 0: compact. Larger is padding */
  int64_t v_block_bytes; /**< likewise for V */
} attn_cache_desc;
#define ATTN_CACHE_DESC_INIT ATTN_INIT(attn_cache_desc)

/** One pool tensor as attn_cache_describe() answers it. Unused axes are 0. */
typedef struct attn_cache_layout {
  attn_dtype dtype;   /**< the tensor's element type */
  int32_t ndim;       /**< 4 for K and V, 3 for latent rows and for separate scales */
  int64_t shape[4];   /**< in the order of desc.layout */
  int64_t strides[4]; /**< in elements */
  uint64_t row_bytes; /**< bytes of one row, the zero bytes before an inline scale included */
  uint64_t bytes;     /**< bytes of the whole tensor, padding included */
} attn_cache_layout;

/** Answer of attn_cache_describe(). Start from ATTN_CACHE_INFO_INIT. */
typedef struct attn_cache_info {
  uint32_t size;             /**< sizeof(attn_cache_info) */
  attn_cache_layout k;       /**< K, or the latent rows */
  attn_cache_layout v;       /**< V; all zeros for a latent pool */
  uint64_t bytes;            /**< K, V and separate scales together */
  uint64_t bytes_per_block;  /**< bytes / num_blocks, as if num_blocks were 1 when it is 0 */
  double bytes_per_token;    /**< one position of all heads, K, V and scales; padding between blocks excluded */
  attn_cache_layout k_scale; /**< K's separate scales: float32, compact, [blocks, block_size, heads] (HND: [blocks,
                                  heads, block_size]); all zeros where there are none. A static scale has no layout: it
                                  is [1] or [num_kv_heads] of the caller's */
  attn_cache_layout v_scale; /**< V's */
} attn_cache_info;
#define ATTN_CACHE_INFO_INIT ATTN_INIT(attn_cache_info)

/**
 * Shape, strides and bytes of the pool tensors of a cache.
 *
 *     NHD strides: block = block_size * num_kv_heads * row, offset = num_kv_heads * row, head = row, element = 1
 *     HND strides: block = block_size * num_kv_heads * row, head = block_size * row,     offset = row, element = 1
 *
 * with k_block_bytes (v_block_bytes) in place of the block stride where given; it must be a multiple of the element and
 * at least the compact block. `row` counts elements of the tensor: head_size, or the bytes of a *_per_token_head row. A
 * latent pool has three axes, strides block = block_size * row, offset = row, element = 1, and answers in k and
 * k_scale.
 *
 * Thread-safe; allocates nothing. *info is written only on success.
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_RANGE (a field outside its values); ATTN_E_UNSUPPORTED (a
 *         format that does not store such rows); ATTN_E_OVERFLOW (bytes beyond 64 bits).
 */
ATTN_API ATTN_NODISCARD attn_status attn_cache_describe(const attn_cache_desc *desc, attn_cache_info *info,
                                                        attn_message *message);

/* ---- Writing (stable) ------------------------------------------------------------------------------------------- */

/** Which elements rotary embedding turns in pairs, of the first rotary_dim elements of a head. */
typedef enum attn_rotary {
  ATTN_ROTARY_NONE = 0,
  ATTN_ROTARY_SPLIT_HALF = 1, /**< i with i + rotary_dim / 2 */
  ATTN_ROTARY_INTERLEAVED = 2 /**< 2 i with 2 i + 1 */
} attn_rotary;

/** Arguments of attn_cache_write(). Start from ATTN_CACHE_WRITE_INIT. All tensors are borrowed for the call. */
typedef struct attn_cache_write_args {
  uint32_t size;                /**< sizeof(attn_cache_write_args) */
  attn_format k_format;         /**< AUTO: k_cache's own element type, which uint8 does not tell */
  attn_format v_format;         /**< AUTO: v_cache's own element type; where that is uint8, as k_format */
  attn_layout layout;           /**< axis order of k_cache and v_cache */
  int32_t unchecked;            /**< 0: any bad slot is an error before a byte is written. 1: such a slot is skipped */
  const char *backend;          /**< NULL: choose; else a backend's name, obeyed or refused */
  const DLTensor *k;            /**< [tokens, num_kv_heads, head_size]    float32 | float16 | bfloat16 */
  const DLTensor *v;            /**< [tokens, num_kv_heads, v_head_size]  float32 | float16 | bfloat16 */
  const DLTensor *slot_mapping; /**< [n]  int64; n <= tokens (surplus rows are ignored), n > tokens is ATTN_E_SHAPE */
  const DLTensor *k_cache;      /**< pool of K in `layout`; written */
  const DLTensor *v_cache;      /**< pool of V in `layout`; written */
  const DLTensor *k_scale;      /**< float32. fp8_e4m3, fp8_e5m2: the static scale, [1] or [num_kv_heads], finite and
                                     > 0; NULL: 1. *_per_token_head: NULL where the rows hold their scales; else the
                                     separate scales, [num_blocks, block_size, num_kv_heads] (HND: [num_blocks,
                                     num_kv_heads, block_size]), written. Float formats: NULL */
  const DLTensor *v_scale;      /**< likewise */
  const DLTensor *kv_c;         /**< latent rows, in place of k and v: [tokens, kv_lora_rank]  float32 | float16 |
                                     bfloat16 */
  const DLTensor *k_pe;       /**< latent rows: [tokens, qk_rope_head_dim]  as kv_c, given for 0 rotary elements too */
  const DLTensor *kv_cache;   /**< latent pool [num_blocks, block_size, row] of k_format; written. v_format and layout
                                     are 0 */
  const DLTensor *kv_scale;   /**< latent rows: as k_scale; fp8_e4m3 [1], separate scales [num_blocks, block_size] */
  attn_rotary rotary;         /**< 0: k is written as given. Else the fields below say how it is rotated first */
  const DLTensor *positions;  /**< [tokens]  int64: the row of the tables for each row of k and q */
  const DLTensor *rotary_cos; /**< [max_position, rotary_dim / 2]  float32. Engines that keep one table
                                     [max_position, rotary_dim] of cosines, then sines, give two views of it */
  const DLTensor *rotary_sin; /**< [max_position, rotary_dim / 2]  float32 */
  const DLTensor *q;          /**< NULL, or [tokens, num_q_heads, size]  float32 | float16 | bfloat16: rotated too,
                                     into q_out. Any number of heads, size >= rotary_dim */
  const DLTensor *q_out;      /**< with q: q's shape and type; written. May be the very tensor that q is */
  attn_dtype rotary_dtype;    /**< latent rows: as in attn_cache_desc */
} attn_cache_write_args;
#define ATTN_CACHE_WRITE_INIT ATTN_INIT(attn_cache_write_args)

/**
 * Write new tokens into the cache by slot.
 *
 *     cache[slot_mapping[i]][head] = convert(k[i][head])     for every i with slot_mapping[i] >= 0
 *
 * The count is slot_mapping's. Negative slots are skipped (padding). Nothing but the named slots changes by one byte.
 * The conversion to a float format rounds to nearest even; those to the others are docs/numerics.md's, to the byte, on
 * every backend. A *_per_token_head row that holds a NaN or an infinity decodes to NaN everywhere. In checked mode a
 * slot at or beyond num_blocks * block_size, or the same slot twice, is ATTN_E_INDEX before anything is written; in
 * unchecked mode a slot beyond is skipped and of equal slots any one wins.
 *
 * With `rotary`, row i of k is first rotated by the tables' row t = positions[i]: each pair (a, b) becomes
 *
 *     (a * cos[t][j] - b * sin[t][j],  b * cos[t][j] + a * sin[t][j])     j = 0 .. rotary_dim / 2 - 1
 *
 * in float32, every operation rounded by itself, and rounded to k's type; elements at and beyond rotary_dim stay as
 * they are. What is written are the bytes that rotating first and then writing would have given. Row i of q goes to
 * row i of q_out in the same way. A row whose slot is skipped is skipped in k, v and q alike, and its position is not
 * read. A position outside the tables is ATTN_E_INDEX; in unchecked mode its row is skipped.
 *
 * Latent rows are written from kv_c and k_pe into kv_cache in the same way. With `rotary` it is k_pe that is rotated
 * (its first rotary_dim elements), and of the queries a view of their rotary elements may be given as q.
 *
 * Finished on return on a CPU context. Allocates nothing. May run in several threads on disjoint slots.
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_RANGE (a switch, a format or a static scale outside its
 *         values); ATTN_E_SHAPE; ATTN_E_STRIDE; ATTN_E_ALIGN; ATTN_E_DTYPE (also uint8 rows without a format);
 *         ATTN_E_TENSOR_DEVICE; ATTN_E_OVERFLOW; ATTN_E_OVERLAP (one of k_cache, v_cache, separate scales and q_out
 *         overlaps another tensor); ATTN_E_INDEX; ATTN_E_UNSUPPORTED (a format that does not store such rows);
 *         ATTN_E_NAME, ATTN_E_BACKEND (backend).
 */
ATTN_API ATTN_NODISCARD attn_status attn_cache_write(attn_context *context, const attn_cache_write_args *args,
                                                     attn_message *message);

/* ---- Gathering (stable) ----------------------------------------------------------------------------------------- */

/** Arguments of attn_cache_gather(). Start from ATTN_CACHE_GATHER_INIT. All tensors are borrowed for the call. */
typedef struct attn_cache_gather_args {
  uint32_t size;               /**< sizeof(attn_cache_gather_args) */
  attn_format k_format;        /**< as in attn_cache_write_args */
  attn_format v_format;        /**< as in attn_cache_write_args */
  attn_layout layout;          /**< axis order of k_cache and v_cache */
  int32_t unchecked;           /**< 1: a position that cannot be reached (column missing, id outside) comes back 0 */
  const char *backend;         /**< NULL: choose */
  const DLTensor *k_cache;     /**< pool of K; NULL: K is not gathered (k must be NULL too) */
  const DLTensor *v_cache;     /**< pool of V; NULL: V is not gathered (v must be NULL too) */
  const DLTensor *k_scale;     /**< as in attn_cache_write_args, but only read */
  const DLTensor *v_scale;     /**< likewise */
  const DLTensor *kv_cache;    /**< latent pool of k_format, in place of k_cache and v_cache */
  const DLTensor *kv_scale;    /**< as in attn_cache_write_args, but only read */
  const DLTensor *block_table; /**< [seqs, width]  int32 */
  const DLTensor *seq_lens;    /**< [seqs]  int32, >= 0: one past the last position gathered */
  const DLTensor *seq_starts;  /**< [seqs]  int32, 0 <= start <= seq_len: first position gathered; NULL: 0 */
  const DLTensor *k;           /**< [sum of (seq_lens - seq_starts), num_kv_heads, head_size]; written */
  const DLTensor *v;           /**< [.., num_kv_heads, v_head_size]; written */
  const DLTensor *kv;          /**< [.., kv_lora_rank + qk_rope_head_dim]; written */
  int32_t qk_rope_head_dim;    /**< latent rows: how many of kv's elements are the rotary ones */
  attn_dtype rotary_dtype;     /**< latent rows: as in attn_cache_desc */
} attn_cache_gather_args;
#define ATTN_CACHE_GATHER_INIT ATTN_INIT(attn_cache_gather_args)

/**
 * Gather cached rows of each sequence, in order, sequence after sequence, dequantised and rounded once to the output's
 * type (float32, float16 or bfloat16).
 *
 *     k[r + p - seq_starts[s]] = cache[block_table[s][p / block_size]][p % block_size],  seq_starts[s] <= p <
 *     seq_lens[s]
 *
 * A code is decoded as code * scale in float32. Rows of int4_per_token_head come back un-rotated, in float32, within
 * 2^-20 of the row's largest value. The outputs tell the head sizes of *_per_token_head rows.
 *
 * Finished on return on a CPU context. Allocates nothing.
 * @return as attn_cache_write(); ATTN_E_INDEX also for a length beyond the table (checked mode) and a bad start.
 */
ATTN_API ATTN_NODISCARD attn_status attn_cache_gather(attn_context *context, const attn_cache_gather_args *args,
                                                      attn_message *message);

/* ---- Copy and swap (stable) ------------------------------------------------------------------------------------- */

/** Arguments of attn_cache_copy() and attn_cache_swap(). Start from ATTN_CACHE_COPY_INIT. All tensors are borrowed. */
typedef struct attn_cache_copy_args {
  uint32_t size;          /**< sizeof(attn_cache_copy_args) */
  attn_layout layout;     /**< axis order of both pools. Whole blocks move, so both give the same result */
  const char *backend;    /**< NULL: choose; else a backend's name, obeyed or refused */
  const DLTensor *source; /**< pool that blocks are read from, of 4 axes or (latent rows, separate scales) 3, the first
                                  one blocks; any element type. A swap writes it too */
  const DLTensor *target; /**< pool that blocks are written to, of source's shape and element type, whatever its
                                  strides. The very tensor that source is: both are one pool */
  const DLTensor *block_map; /**< [n, 2]  int64: block of source, block of target */
} attn_cache_copy_args;
#define ATTN_CACHE_COPY_INIT ATTN_INIT(attn_cache_copy_args)

/**
 * Copy whole blocks between two pools, or inside one.
 *
 *     target[block_map[i][1]] = source[block_map[i][0]]     for every i, bit by bit, every element of the block
 *
 * The strides of each pool say what a block is: with several layers inside a block, or padding, only the elements of
 * the tensors given are read and written, and the bytes between them are not. Source and target are one pool when they
 * have the same data, shape and strides; otherwise they may not share a byte. K and V are two calls; separate scales
 * are a tensor like K and V, of 3 axes, and move by a call of their own with the same block_map. Inline scales lie in
 * the rows and move with them.
 *
 * The result does not depend on the order of the pairs: a block that is named twice as target is refused, and in one
 * pool so is a target that another pair reads. In one pool a pair of a block with itself does nothing, and these two
 * rules leave it out.
 *
 * Every entry is checked before a byte is written. Finished on return on a CPU context. Allocates nothing. May run in
 * several threads on disjoint blocks.
 * @return ATTN_OK; ATTN_E_NULL; ATTN_E_STRUCT_SIZE; ATTN_E_RANGE (layout); ATTN_E_SHAPE; ATTN_E_STRIDE; ATTN_E_ALIGN;
 *         ATTN_E_DTYPE; ATTN_E_TENSOR_DEVICE; ATTN_E_OVERFLOW; ATTN_E_OVERLAP (the pools overlap without being one, or
 *         one that is written overlaps block_map); ATTN_E_INDEX (an id outside the pool, or one of the pairs refused
 *         above); ATTN_E_NAME, ATTN_E_BACKEND (backend). Nothing was written.
 */
ATTN_API ATTN_NODISCARD attn_status attn_cache_copy(attn_context *context, const attn_cache_copy_args *args,
                                                    attn_message *message);

/**
 * Exchange whole blocks of two pools, or inside one.
 *
 *     target[block_map[i][1]] <-> source[block_map[i][0]]     for every i, bit by bit, every element of the block
 *
 * As attn_cache_copy(), but both pools are written, and no block may be named by two pairs: not twice in one column,
 * and in one pool not in both either (but a pair of a block with itself does nothing and is left out).
 * @return as attn_cache_copy().
 */
ATTN_API ATTN_NODISCARD attn_status attn_cache_swap(attn_context *context, const attn_cache_copy_args *args,
                                                    attn_message *message);

/* ---- Requantising (stable) --------------------------------------------------------------------------------------- */

/** Arguments of attn_cache_requantise(). Start from ATTN_CACHE_REQUANTISE_INIT. All tensors are borrowed. */
typedef struct attn_cache_requantise_args {
  uint32_t size;                /**< sizeof(attn_cache_requantise_args) */
  const char *backend;          /**< NULL: choose; else a backend's name, obeyed or refused */
  attn_format source_format;    /**< AUTO: source's own element type, which uint8 does not tell */
  attn_format target_format;    /**< AUTO: target's own element type, which uint8 does not tell */
  attn_layout source_layout;    /**< axis order of source and source_scale */
  attn_layout target_layout;    /**< axis order of target and target_scale */
  int32_t head_size;            /**< elements of a row; 0: what a pool says that is no *_per_token_head; required where
                                     both are. Latent rows: 0 */
  const DLTensor *source;       /**< pool of K or of V that blocks are read from */
  const DLTensor *source_scale; /**< its scales, as k_scale of attn_cache_gather_args */
  const DLTensor *target;       /**< pool that blocks are written to: source's block size and heads, any number of
                                     blocks; shares no memory with source */
  const DLTensor *target_scale; /**< its scales, as k_scale of attn_cache_write_args */
  const DLTensor *block_map;    /**< [n, 2]  int64: block of source, block of target */
  int32_t kv_lora_rank;         /**< L >= 1: both pools hold latent rows, [num_blocks, block_size, row]; 0: K or V */
  int32_t qk_rope_head_dim;     /**< latent rows: R >= 0 */
  attn_dtype source_rotary_dtype; /**< latent rows: as rotary_dtype in attn_cache_desc */
  attn_dtype target_rotary_dtype; /**< likewise */
} attn_cache_requantise_args;
#define ATTN_CACHE_REQUANTISE_INIT ATTN_INIT(attn_cache_requantise_args)

/**
 * Convert whole blocks from one format to another.
 *
 *     target[block_map[i][1]] = quantise(dequantise(source[block_map[i][0]]))   for every i and every row of the block
 *
 * The bytes are those that gathering the rows in float32 and writing them would have given; so are rows that hold a
 * NaN, and rows nobody wrote convert to whatever they decode to. A source block may stand in several pairs, a target
 * block in one. K and V are two calls.
 *
 * Every entry is checked before a byte is written. Finished on return on a CPU context. Allocates nothing. May run in
 * several threads on disjoint target blocks.
 * @return as attn_cache_write().
 */
ATTN_API ATTN_NODISCARD attn_status attn_cache_requantise(attn_context *context, const attn_cache_requantise_args *args,
                                                          attn_message *message);

#ifdef __cplusplus
}
#endif
#endif
