/* SPDX-License-Identifier: Apache-2.0 */
/* plan_impl.h: what stands behind the opaque types, and the interface between the API layer and a backend.
 *
 * The API layer checks everything, resolves every default and hands views to the backend; a backend never sees a
 * DLTensor and never checks an argument again. Backends allocate nothing after attn_plan_create(): what they need per
 * step and per run lies in the workspace, behind the core's own part (the copied lists of the batch).
 */
#ifndef ATTN_CORE_PLAN_IMPL_H
#define ATTN_CORE_PLAN_IMPL_H

#include <pthread.h>

#include "attn/attn.h"
#include "core/arithmetic.h"
#include "core/error.h"
#include "core/format.h"
#include "core/load.h"
#include "core/mla.h"
#include "core/view.h"

typedef struct attn_backend attn_backend;

/* Threads of a context: run(task, argument, count) with count <= num_threads. */
typedef struct attn_threads {
  int32_t num_threads;
  attn_executor executor; /* run is never NULL */
  void *pool;             /* pthreadpool_t of our own, or NULL */
} attn_threads;

struct attn_cpu_table; /* cpu/table.h */

/* The workspaces that calls use now (api/workspace_busy.h). */
#define ATTN_BUSY_CALLS 256
typedef struct attn_busy {
  pthread_mutex_t lock;
  int32_t count;
  struct {
    uintptr_t begin, end;
  } calls[ATTN_BUSY_CALLS];
} attn_busy;

struct attn_context {
  attn_device_kind device;
  int32_t device_index;
  attn_threads threads;
  const struct attn_cpu_table *table; /* the CPU kernels in use */
  attn_context_info info;
  attn_busy busy;
};

/* The copied lists of one step, at the head of the workspace. */
typedef struct attn_step {
  uint64_t magic;
  const struct attn_step *self; /* where this step was written: the lists below are addresses */
  uint64_t fingerprint;         /* of the plan that it was made for */
  int32_t num_seqs;
  int32_t splits;
  int64_t num_tokens;
  int64_t work_items;
  int64_t max_kv_len;       /* longest kv_len of the batch */
  int64_t num_kv_tokens;    /* packed keys of a direct problem: rows that k and v must have */
  int32_t *query_start_loc; /* [num_seqs + 1] */
  int32_t *kv_lens;         /* [num_seqs] */
  int32_t *kv_start_loc;    /* [num_seqs + 1] packed K/V of a direct problem; NULL with a cache */
} attn_step;

/* Everything that one run reads and writes. K/V pools are normalised to [block, offset, head, element] whatever the
   layout. Views that the problem does not declare have data NULL. */
typedef struct attn_run_view {
  const attn_problem *problem; /* resolved: no field left at "default" */
  const attn_step *step;
  int32_t unchecked;    /* 1: ids outside the pool and missing columns count as masked */
  attn_view q;          /* [tokens, q heads, qk size] */
  attn_view k;          /* direct: [kv tokens, kv heads, qk size] */
  attn_view v;          /* direct: [kv tokens, kv heads, v size] */
  attn_view q_rope;     /* mqa in two tensors: [tokens, q heads, rotary]; q is then [tokens, q heads, rank] */
  attn_view kv_c, k_pe; /* mha without writing: [tokens, rank], [tokens, rotary]: the rows of the new tokens */
  const attn_mla_weights *weights; /* mha, layer */
  attn_view k_cache;        /* cache: [blocks, block size, kv heads, row of k], see k_rows; latent rows: one head */
  attn_view v_cache;        /* cache: [blocks, block size, kv heads, row of v] */
  attn_rows k_rows, v_rows; /* cache: what a row of either pool is */
  attn_view block_table;    /* [seqs, width] int32 */
  attn_view q_scale;        /* [1] float32, finite and above 0: fp8 queries */
  attn_view alibi_slopes;   /* [q heads] float32 */
  attn_view sinks;          /* [q heads] float32 */
  attn_view bias;           /* [tokens, q heads (stride 0 when 1 was given), keys] float32 */
  attn_view prefix_ranges;  /* [seqs, n, 2] int32 */
  attn_view causal_per_seq; /* [seqs] int32 */
  attn_view output_scale;   /* [1] float32, finite and above 0: static fp8 output */
  attn_view out;            /* [tokens, q heads, v size] */
  attn_view lse;            /* [tokens, q heads] float32 */
  attn_view out_scale;      /* [tokens, q heads, attn_output_groups()] float32: block-scaled fp8 output */
} attn_run_view;

/* Keys of a sequence that are read from the cache: all, but where new latent rows are attended as given. */
static inline int64_t attn_cached_keys(const attn_run_view *view, int64_t seq) {
  int64_t kv_len = view->step->kv_lens[seq];
  if (view->kv_c.ndim == 0) {
    return kv_len;
  }
  int64_t q_len = (int64_t)view->step->query_start_loc[seq + 1] - view->step->query_start_loc[seq];
  return kv_len > q_len ? kv_len - q_len : 0;
}

/* Groups of elements of an output row that have a scale each; the last may be shorter than output_block. */
static inline int64_t attn_output_groups(const attn_problem *problem) {
  return problem->output_block > 0 ? attn_ceil_div(problem->v_head_size, problem->output_block) : 0;
}

/* attn_cache_write after its checks: n rows, of which those with a slot in [0, capacity) are written. */
typedef struct attn_write_view {
  int64_t num_slots;
  int32_t block_size;
  int64_t capacity;           /* num_blocks * block_size */
  attn_view k, v;             /* [tokens, heads, size]; latent rows: k is kv_c with one head, v is absent */
  attn_view k_pe;             /* latent rows: [tokens, 1, rotary] */
  attn_view slot_mapping;     /* [n] int64 */
  attn_view k_cache, v_cache; /* [blocks, offset, head, element] */
  attn_rows k_rows, v_rows;
  attn_rotary rotary;
  int32_t rotary_dim;
  attn_view positions;              /* [tokens] int64 */
  attn_view rotary_cos, rotary_sin; /* [max position, rotary_dim / 2] float32 */
  attn_view q, q_out;               /* [tokens, q heads, size] or absent; may be the same memory */
} attn_write_view;

/* 1 when row i of a write is written: its slot is in the pool and its position, where one counts, in the tables. */
static inline int attn_write_takes(const attn_write_view *view, int64_t slot, int64_t i) {
  if (slot < 0 || slot >= view->capacity) {
    return 0;
  }
  if (view->rotary == ATTN_ROTARY_NONE) {
    return 1;
  }
  int64_t position = attn_int64_at(&view->positions, i);
  return position >= 0 && position < view->rotary_cos.shape[0];
}

/* attn_cache_gather after its checks. Either of k, v may be absent (data NULL and ndim 0). Latent rows: k and k_cache
   alone, one head, size latent and rotary elements together. */
typedef struct attn_gather_view {
  int32_t num_seqs;
  int32_t unchecked;
  int32_t block_size;
  int64_t num_blocks;
  attn_view k_cache, v_cache; /* [blocks, offset, head, element] */
  attn_rows k_rows, v_rows;
  attn_view block_table; /* [seqs, width] int32 */
  attn_view seq_lens;    /* [seqs] int32 */
  attn_view seq_starts;  /* [seqs] int32, or absent: 0 */
  attn_view k, v;        /* [rows, heads, size] */
} attn_gather_view;

/* attn_cache_copy and attn_cache_swap after their checks. Pairs are independent of each other's order. */
typedef struct attn_copy_view {
  int64_t num_pairs;
  int32_t one_pool;    /* source and target are the same: a pair of a block with itself moves nothing */
  attn_view source;    /* [blocks, ...], 3 or 4 axes */
  attn_view target;    /* same shape and type */
  attn_view block_map; /* [pairs, 2] int64: source block, target block */
} attn_copy_view;

/* A pair's block of the source (side 0) or the target (side 1). */
static inline int64_t attn_copy_block(const attn_copy_view *view, int64_t pair, int side) {
  return attn_load_int64(view->block_map.data + pair * view->block_map.stride[0] + side * view->block_map.stride[1]);
}

/* attn_cache_requantise after its checks: the pools are [blocks, offset, head, element]; the same number of offsets and
   heads, any number of blocks each. */
typedef struct attn_requantise_view {
  attn_copy_view map; /* source, target and the pairs */
  attn_rows source_rows, target_rows;
} attn_requantise_view;

/* attn_merge after its checks; parts stay DLTensors (any number, no allocation): attn_view_make cannot fail on them. */
typedef struct attn_merge_view {
  const attn_merge_args *args;
  int64_t num_tokens;
  int64_t num_heads;
  int64_t size;
  attn_view sinks; /* [heads] or absent */
  attn_view out;   /* [tokens, heads, size] */
  attn_view lse;   /* [tokens, heads] or absent */
} attn_merge_view;

/* What a plan costs, before it is made. */
typedef struct attn_plan_cost {
  uint64_t scratch_bytes; /* the backend's part of the workspace */
  uint64_t excess_bytes;  /* of these, what forced splits add */
  uint64_t on_chip_bytes;
  int32_t preferred_block_size;
  int32_t max_splits;
  int32_t mla_threshold; /* layer: see attn_plan_info */
} attn_plan_cost;

struct attn_backend {
  const char *name;
  attn_device_kind device;
  int32_t rows; /* bits of attn_row_kind */
  /* 1, or 0 with the first failing condition in `reason` (the field, its value, what would be accepted). `problem` is
     checked and resolved. The one predicate that selector, explain and plan share. */
  int (*supports)(const attn_context *context, const attn_problem *problem, const attn_plan_options *options,
                  char reason[ATTN_REASON_BYTES]);
  /* Sizes of a plan; ATTN_E_OVERFLOW when they do not fit. Allocates nothing. */
  attn_status (*cost)(const attn_context *context, const attn_problem *problem, const attn_plan_limits *limits,
                      const attn_plan_options *options, attn_plan_cost *cost, attn_message *message);
  /* Cut the work of one step into `scratch` (256-byte aligned); sets step->splits and step->work_items. */
  void (*schedule)(const attn_plan *plan, attn_step *step, void *scratch);
  /* Compute. Everything was checked; may fail only for the device's sake. */
  attn_status (*run)(const attn_plan *plan, const attn_run_view *view, void *scratch, attn_message *message);
  attn_status (*cache_write)(const attn_context *context, const attn_write_view *view, attn_message *message);
  attn_status (*cache_gather)(const attn_context *context, const attn_gather_view *view, attn_message *message);
  attn_status (*cache_copy)(const attn_context *context, const attn_copy_view *view, attn_message *message);
  attn_status (*cache_swap)(const attn_context *context, const attn_copy_view *view, attn_message *message);
  attn_status (*cache_requantise)(const attn_context *context, const attn_requantise_view *view, attn_message *message);
  attn_status (*merge)(const attn_context *context, const attn_merge_view *view, attn_message *message);
};

struct attn_plan {
  attn_context *context;
  const attn_backend *backend;
  attn_problem problem;    /* resolved */
  attn_plan_limits limits; /* resolved */
  int32_t num_splits;      /* asked for; 0: automatic */
  attn_split_rule split_rule;
  attn_plan_cost cost;
  size_t step_bytes; /* the core's part of the workspace; the backend's scratch follows */
  size_t workspace_bytes;
  void *own_workspace;  /* or NULL */
  uint64_t fingerprint; /* of its address and all that a schedule depends on */
  char reason[ATTN_REASON_BYTES];
};

extern const attn_backend attn_reference_backend; /* src/reference */
extern const attn_backend attn_cpu_backend;       /* src/cpu */
extern const attn_backend attn_cpu_mla_backend;

#endif
