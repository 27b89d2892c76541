/* SPDX-License-Identifier: Apache-2.0 */
/* What a call owns, for --poison: a position belongs to it when some query row of its sequence may see it. The mask
   here is written from the contract's line and shares nothing with the library. Lists are read with every index
   clipped, since the library has not checked them yet. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

/* One sequence of the batch, clipped to what exists. */
typedef struct sequence {
  int64_t index;
  int64_t first_row;
  int64_t num_rows;
  int64_t kv_len;
  int64_t position; /* of the first row */
  int causal;
} sequence;

static int64_t clip(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

static int64_t floor_div(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

static sequence get_sequence(const request *parsed, const attn_problem *problem, int64_t index) {
  const st_tensor *starts = parsed->tensor[TENSOR_QUERY_START_LOC];
  const st_tensor *lens = parsed->tensor[TENSOR_SEQ_LENS];
  const st_tensor *packed = parsed->tensor[TENSOR_KV_START_LOC];
  const st_tensor *flags = parsed->tensor[TENSOR_CAUSAL_PER_SEQ];
  int64_t tokens = parsed->tensor[TENSOR_Q]->shape[0];
  sequence made = {.index = index, .causal = problem->causal};
  made.first_row = clip(request_i32(starts, index), 0, tokens);
  made.num_rows = clip(request_i32(starts, index + 1), made.first_row, tokens) - made.first_row;
  made.kv_len = made.num_rows;
  if (lens != NULL) {
    made.kv_len = index < lens->shape[0] ? request_i32(lens, index) : 0;
  } else if (packed != NULL && index + 1 < packed->shape[0]) {
    made.kv_len = (int64_t)request_i32(packed, index + 1) - request_i32(packed, index);
  }
  made.kv_len = made.kv_len > 0 ? made.kv_len : 0;
  made.position = made.kv_len - made.num_rows;
  if (flags != NULL && index < flags->shape[0]) {
    made.causal = request_i32(flags, index) != 0;
  }
  return made;
}

static int in_window(const attn_problem *problem, int64_t q, int64_t k) {
  return (problem->window_left < 0 || q - k <= problem->window_left) &&
         (problem->window_right < 0 || k - q <= problem->window_right);
}

static int in_prefix(const request *parsed, const sequence *seq, int64_t q, int64_t k) {
  const st_tensor *ranges = parsed->tensor[TENSOR_PREFIX_RANGES];
  if (ranges == NULL || seq->index >= ranges->shape[0] || ranges->shape[2] != 2) {
    return 0;
  }
  for (int64_t i = 0; i < ranges->shape[1]; ++i) {
    int64_t at = (seq->index * ranges->shape[1] + i) * 2;
    int64_t a = request_i32(ranges, at);
    int64_t b = request_i32(ranges, at + 1);
    if (q >= a && q < b && k >= a && k < b) {
      return 1;
    }
  }
  return 0;
}

static int in_chunk(const attn_problem *problem, const sequence *seq, int64_t q, int64_t k) {
  if (problem->chunk_size == 0) {
    return 1;
  }
  int64_t distance = floor_div(q, problem->chunk_size) - floor_div(k, problem->chunk_size);
  return (distance >= 0 && distance <= problem->chunk_lookback) || (!seq->causal && distance == 0);
}

/* Whether some head's bias leaves the key in sight. */
static int in_bias(const request *parsed, int64_t row, int64_t k) {
  const st_tensor *bias = parsed->tensor[TENSOR_BIAS];
  if (bias == NULL || row >= bias->shape[0] || k >= bias->shape[2]) {
    return 1;
  }
  for (int64_t head = 0; head < bias->shape[1]; ++head) {
    float value;
    size_t at = (size_t)((row * bias->shape[1] + head) * bias->shape[2] + k);
    memcpy(&value, bias->data + at * sizeof(value), sizeof(value));
    if (!(value == -INFINITY)) {
      return 1;
    }
  }
  return 0;
}

static int row_sees(const run_ownership *owned, const sequence *seq, int64_t row, int64_t k) {
  const attn_problem *problem = owned->problem;
  int64_t q = seq->position + row;
  int window = in_window(problem, q, k);
  int plain = (!seq->causal || k <= q) && window && in_chunk(problem, seq, q, k);
  int prefix = in_prefix(owned->request, seq, q, k) && (!problem->prefix_clamp || window);
  return (plain || prefix) && in_bias(owned->request, seq->first_row + row, k);
}

/* Rows are tried from the nearest outwards: most keys are seen by the row at their own position. */
static int some_row_sees(const run_ownership *owned, const sequence *seq, int64_t k) {
  int64_t low = clip(k - seq->position, 0, seq->num_rows) - 1;
  int64_t high = low + 1;
  while (low >= 0 || high < seq->num_rows) {
    if (high < seq->num_rows && row_sees(owned, seq, high++, k)) {
      return 1;
    }
    if (low >= 0 && row_sees(owned, seq, low--, k)) {
      return 1;
    }
  }
  return 0;
}

/* What a row sees where neither prefix ranges nor a bias have a say: one interval [*low, *high). */
static void plain_interval(const attn_problem *problem, const sequence *seq, int64_t row, int64_t *low, int64_t *high) {
  int64_t q = seq->position + row;
  *low = 0;
  *high = seq->kv_len;
  if (seq->causal) {
    *high = clip(q + 1, 0, *high);
  }
  if (problem->window_left >= 0) {
    *low = clip(q - problem->window_left, *low, *high);
  }
  if (problem->window_right >= 0) {
    *high = clip(q + problem->window_right + 1, *low, *high);
  }
  if (problem->chunk_size > 0) {
    int64_t chunk = floor_div(q, problem->chunk_size);
    *low = clip((chunk - problem->chunk_lookback) * problem->chunk_size, *low, *high);
    *high = clip((chunk + 1) * problem->chunk_size, *low, *high);
  }
}

/* Intervals of later rows neither begin nor end before those of earlier ones, so what is new lies behind `covered`. */
static void count_intervals(const run_ownership *owned, const sequence *seq, run_work *work) {
  int64_t covered = 0;
  for (int64_t row = 0; row < seq->num_rows; ++row) {
    int64_t low;
    int64_t high;
    plain_interval(owned->problem, seq, row, &low, &high);
    work->pairs += high - low;
    low = low > covered ? low : covered;
    work->keys += high > low ? high - low : 0;
    covered = high > covered ? high : covered;
  }
}

static void count_one_by_one(const run_ownership *owned, const sequence *seq, run_work *work) {
  for (int64_t k = 0; k < seq->kv_len; ++k) {
    int64_t rows = 0;
    for (int64_t row = 0; row < seq->num_rows; ++row) {
      rows += row_sees(owned, seq, row, k);
    }
    work->pairs += rows;
    work->keys += rows > 0;
  }
}

run_work run_count_attention(const request *parsed, const attn_problem *problem) {
  const run_ownership owned = {.request = parsed, .problem = problem};
  int plain = parsed->tensor[TENSOR_PREFIX_RANGES] == NULL && parsed->tensor[TENSOR_BIAS] == NULL;
  run_work work = {0, 0};
  for (int64_t s = 0; s < parsed->num_seqs; ++s) {
    sequence seq = get_sequence(parsed, problem, s);
    (plain ? count_intervals : count_one_by_one)(&owned, &seq, &work);
  }
  return work;
}

static void own_slot(run_ownership *owned, int64_t slot) {
  if (slot >= 0 && slot < owned->num_slots) {
    owned->slots[slot] = 1;
  }
}

/* Where a position lies, or -1 when its table entry names no block of the pool; *end is then the first position of the
   next entry. A file can claim 2^31 positions in a block that is not there. */
static int64_t slot_of(const run_ownership *owned, int64_t seq, int64_t position, int64_t *end) {
  const st_tensor *table = owned->request->tensor[TENSOR_BLOCK_TABLE];
  int64_t block_size = owned->request->block_size;
  int64_t column = position / block_size;
  int64_t id = request_i32(table, seq * table->shape[1] + column);
  *end = (column + 1) * block_size;
  return id >= 0 && id < owned->num_slots / block_size ? id * block_size + position % block_size : -1;
}

static int make_slots(run_ownership *owned, int64_t num_slots, cli_report *report) {
  owned->num_slots = num_slots;
  owned->slots = cli_alloc((uint64_t)num_slots, 0);
  return owned->slots != NULL ? CLI_OK : cli_fail(report, CLI_FAILED, "no memory for --poison");
}

/* Slots of the pool that is given. Its extents are those of data in memory, so the product fits unless a row is
   empty. */
static int64_t pool_slots(const request *parsed) {
  const st_tensor *k = parsed->tensor[parsed->latent ? TENSOR_KV_CACHE : TENSOR_K_CACHE];
  const st_tensor *pool = k != NULL ? k : parsed->tensor[TENSOR_V_CACHE];
  return pool->bytes > 0 ? pool->shape[0] * parsed->block_size : 0;
}

static int64_t reachable(const request *parsed, int64_t seq) {
  const st_tensor *table = parsed->tensor[TENSOR_BLOCK_TABLE];
  return seq < table->shape[0] ? table->shape[1] * (int64_t)parsed->block_size : 0;
}

/* New rows of a sequence that are attended as given, not from the cache. */
static int64_t given_rows(const request *parsed, const sequence *seq) {
  return parsed->op->op == OP_MLA_MHA && parsed->tensor[TENSOR_SLOT_MAPPING] == NULL ? seq->num_rows : 0;
}

int run_own_attention(const request *parsed, const attn_problem *problem, run_ownership *owned, cli_report *report) {
  *owned = (run_ownership){.request = parsed, .problem = problem};
  int64_t direct = parsed->has_cache ? 0 : parsed->tensor[parsed->latent ? TENSOR_KV_C : TENSOR_K]->shape[0];
  int code = make_slots(owned, parsed->has_cache ? pool_slots(parsed) : direct, report);
  for (int64_t s = 0; code == CLI_OK && s < parsed->num_seqs; ++s) {
    sequence seq = get_sequence(parsed, problem, s);
    const st_tensor *packed = parsed->tensor[TENSOR_KV_START_LOC];
    int64_t base = packed != NULL && s < packed->shape[0] ? request_i32(packed, s) : seq.first_row;
    int64_t end = parsed->has_cache ? clip(seq.kv_len - given_rows(parsed, &seq), 0, reachable(parsed, s))
                                    : clip(seq.kv_len, 0, direct);
    for (int64_t position = 0; position < end; ++position) {
      int64_t next = position + 1;
      int64_t slot = parsed->has_cache ? slot_of(owned, s, position, &next) : base + position;
      if (slot < 0 && parsed->has_cache) {
        position = next - 1;
      } else if (some_row_sees(owned, &seq, position)) {
        own_slot(owned, slot);
      }
    }
  }
  return code;
}

int run_own_gather(const request *parsed, run_ownership *owned, cli_report *report) {
  *owned = (run_ownership){.request = parsed};
  const st_tensor *lens = parsed->tensor[TENSOR_SEQ_LENS];
  const st_tensor *starts = parsed->tensor[TENSOR_SEQ_STARTS];
  int code = make_slots(owned, pool_slots(parsed), report);
  for (int64_t s = 0; code == CLI_OK && s < lens->shape[0]; ++s) {
    int64_t end = clip(request_i32(lens, s), 0, reachable(parsed, s));
    int64_t begin = starts != NULL && s < starts->shape[0] ? request_i32(starts, s) : 0;
    for (int64_t position = clip(begin, 0, end); position < end; ++position) {
      int64_t next;
      int64_t slot = slot_of(owned, s, position, &next);
      own_slot(owned, slot);
      position = slot < 0 ? next - 1 : position;
    }
  }
  return code;
}

void run_own_free(run_ownership *owned) {
  free(owned->slots);
  owned->slots = NULL;
}

int64_t run_owns_pool(const void *context, const int64_t *index) {
  const run_ownership *owned = context;
  int hnd = owned->request->key[KEY_KV_LAYOUT].integer == ATTN_LAYOUT_HND;
  int64_t slot = index[0] * owned->request->block_size + index[hnd ? 2 : 1];
  return slot < owned->num_slots && owned->slots[slot] ? INT64_MAX : 0;
}

int64_t run_owns_query(const void *context, const int64_t *index) {
  const run_ownership *owned = context;
  return index[0] < owned->request->num_tokens ? INT64_MAX : 0;
}

int64_t run_owns_new_row(const void *context, const int64_t *index) {
  const run_ownership *owned = context;
  const st_tensor *slots = owned->request->tensor[TENSOR_SLOT_MAPPING];
  int64_t slot = -1;
  if (index[0] < slots->shape[0]) {
    memcpy(&slot, slots->data + (size_t)index[0] * sizeof(slot), sizeof(slot));
  }
  return slot >= 0 ? INT64_MAX : 0;
}

int64_t run_owns_direct_row(const void *context, const int64_t *index) {
  const run_ownership *owned = context;
  return index[0] < owned->num_slots && owned->slots[index[0]] ? INT64_MAX : 0;
}

int64_t run_owns_table(const void *context, const int64_t *index) {
  const run_ownership *owned = context;
  const st_tensor *lens = owned->request->tensor[TENSOR_SEQ_LENS];
  int64_t block_size = owned->request->block_size;
  int64_t length = index[0] < lens->shape[0] ? request_i32(lens, index[0]) : 0;
  if (owned->request->op->op == OP_MLA_MHA && index[0] < owned->request->num_seqs) {
    sequence seq = get_sequence(owned->request, owned->problem, index[0]);
    length -= given_rows(owned->request, &seq);
  }
  return length > 0 ? (length + block_size - 1) / block_size : 0;
}

int64_t run_owns_bias(const void *context, const int64_t *index) {
  const run_ownership *owned = context;
  for (int64_t s = 0; s < owned->request->num_seqs; ++s) {
    sequence seq = get_sequence(owned->request, owned->problem, s);
    if (index[0] >= seq.first_row && index[0] < seq.first_row + seq.num_rows) {
      return seq.kv_len;
    }
  }
  return 0;
}

int64_t run_owns_none(const void *context, const int64_t *index) {
  (void)context, (void)index;
  return 0;
}

/* ---- Separate scales: an axis fewer than their pool ------------------------------------------------------------- */

static int is_separate(const request *parsed, int is_v) {
  return is_v ? parsed->v_separate : parsed->k_separate;
}

static request_tensor scale_of(const request *parsed, int is_v) {
  return parsed->latent ? TENSOR_KV_SCALE : is_v ? TENSOR_V_SCALE : TENSOR_K_SCALE;
}

static request_tensor pool_of(const request *parsed, int is_v) {
  return parsed->latent ? TENSOR_KV_CACHE : is_v ? TENSOR_V_CACHE : TENSOR_K_CACHE;
}

/* One scale of a padded copy, to the tensor or from it. */
static void move_scale(const request *parsed, const run_view *view, const st_tensor *tensor, int64_t slot, int64_t head,
                       int into_copy) {
  int hnd = parsed->key[KEY_KV_LAYOUT].integer == ATTN_LAYOUT_HND;
  int64_t block = slot / parsed->block_size;
  int64_t middle = hnd ? head : slot % parsed->block_size;
  int64_t inner = hnd ? slot % parsed->block_size : head;
  int64_t padded = block * view->strides[0] + middle * view->strides[1] + inner * view->strides[2];
  int64_t compact = (block * tensor->shape[1] + middle) * tensor->shape[2] + inner;
  if (tensor->rank == 2) { /* of latent rows */
    padded = block * view->strides[0] + middle * view->strides[1];
    compact = block * tensor->shape[1] + middle;
  }
  unsigned char *copy = view->memory + (size_t)padded * sizeof(float);
  unsigned char *given = tensor->data + (size_t)compact * sizeof(float);
  if (into_copy) {
    memcpy(copy, given, sizeof(float));
  } else {
    memcpy(given, copy, sizeof(float));
  }
}

/* Scales have the extents of their pool, or the library refuses them. */
static int fits_pool(const request *parsed, const st_tensor *tensor) {
  int hnd = parsed->key[KEY_KV_LAYOUT].integer == ATTN_LAYOUT_HND;
  if (parsed->latent) {
    return tensor->rank == 2 && tensor->shape[0] * parsed->block_size == pool_slots(parsed) &&
           tensor->shape[1] == parsed->block_size;
  }
  return tensor->rank == 3 && tensor->shape[0] * parsed->block_size == pool_slots(parsed) &&
         tensor->shape[hnd ? 2 : 1] == parsed->block_size && tensor->shape[hnd ? 1 : 2] == parsed->num_kv_heads;
}

int run_view_scales(run_view *view, const request *parsed, int is_v, int poison, const run_ownership *owned,
                    cli_report *report) {
  const st_tensor *tensor = parsed->tensor[scale_of(parsed, is_v)];
  int separate = tensor != NULL && is_separate(parsed, is_v);
  int code = run_view_open(view, tensor, poison, separate ? run_owns_none : NULL, NULL, report);
  if (code != CLI_OK || !separate || view->memory == NULL || owned == NULL || !fits_pool(parsed, tensor)) {
    return code;
  }
  for (int64_t slot = 0; slot < owned->num_slots; ++slot) {
    for (int64_t head = 0; owned->slots[slot] && head < parsed->num_kv_heads; ++head) {
      move_scale(parsed, view, tensor, slot, head, 1);
    }
  }
  return CLI_OK;
}

/* The slots of one pool, and of its scales, from the padded copies into the tensors. */
static void collect_slots(const request *parsed, int is_v, const run_view *views, st_tensor *pool, st_tensor *scale) {
  const st_tensor *slots = parsed->tensor[TENSOR_SLOT_MAPPING];
  const run_view *pool_view = &views[pool_of(parsed, is_v)];
  const run_view *scale_view = &views[scale_of(parsed, is_v)];
  int hnd = parsed->key[KEY_KV_LAYOUT].integer == ATTN_LAYOUT_HND;
  int64_t num_slots = pool_slots(parsed);
  for (int64_t i = 0; i < slots->shape[0]; ++i) {
    int64_t slot;
    memcpy(&slot, slots->data + (size_t)i * sizeof(slot), sizeof(slot));
    for (int64_t head = 0; slot >= 0 && slot < num_slots && head < parsed->num_kv_heads; ++head) {
      int64_t offset = slot % parsed->block_size;
      int64_t index[ST_MAX_RANK] = {slot / parsed->block_size, hnd ? head : offset, hnd ? offset : head};
      if (pool_view->memory != NULL) {
        run_view_collect_row(pool_view, pool, index);
      }
      if (scale != NULL && scale_view->memory != NULL) {
        move_scale(parsed, scale_view, scale, slot, head, 0);
      }
    }
  }
}

void run_collect_written(const run_job *job, const run_view *views) {
  const request *parsed = job->request;
  for (int is_v = 0; is_v < (parsed->latent ? 1 : 2); ++is_v) {
    st_tensor pool = *parsed->tensor[pool_of(parsed, is_v)];
    st_tensor scale;
    int separate = is_separate(parsed, is_v);
    if (separate) {
      scale = *parsed->tensor[scale_of(parsed, is_v)];
    }
    collect_slots(parsed, is_v, views, &pool, separate ? &scale : NULL);
    run_add_input(job, &pool);
    if (separate) {
      run_add_input(job, &scale);
    }
  }
}
