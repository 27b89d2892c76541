/* SPDX-License-Identifier: Apache-2.0 */
/* Data for a request of shapes: random values (never zeros, which some machines move and multiply faster), block ids
   scattered over the pool, lists that fill the shapes. Pools are written by the library, so that every format holds
   rows as it means them. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check_float.h"

/* Values repeat after so many: a prime, so that no two rows are equal. */
#define PERIOD 65521
#define CHUNK 512 /* tokens written into a pool at a time */

static int is_float(st_dtype dtype) {
  return dtype == ST_F32 || dtype == ST_F16 || dtype == ST_BF16;
}

/* `count` random elements of the type, PERIOD of them different. free() it. */
static unsigned char *random_elements(attn_dtype dtype, size_t count, check_rng *rng) {
  size_t element = attn_dtype_bytes(dtype);
  unsigned char *data = count <= SIZE_MAX / 8 ? cli_alloc(count * element, 0) : NULL;
  for (size_t i = 0; data != NULL && i < count && i < PERIOD; ++i) {
    check_store(data + i * element, dtype, check_normal(rng));
  }
  for (size_t done = PERIOD; data != NULL && done < count;) {
    size_t part = count - done < done ? count - done : done / PERIOD * PERIOD;
    memcpy(data + done * element, data, part * element);
    done += part;
  }
  return data;
}

int bench_fill_random(st_tensor *tensor, check_rng *rng, cli_report *report) {
  if (is_float(tensor->dtype)) {
    attn_dtype dtype = st_dtype_of_library(tensor->dtype);
    free(tensor->data);
    tensor->data = random_elements(dtype, (size_t)(tensor->bytes / attn_dtype_bytes(dtype)), rng);
  }
  if (tensor->data == NULL) {
    return cli_fail(report, CLI_FAILED, "no memory for tensor %s of %llu bytes", tensor->name,
                    (unsigned long long)tensor->bytes);
  }
  for (uint64_t i = 0; !is_float(tensor->dtype) && i < tensor->bytes; ++i) {
    uint64_t bits = check_next(rng);
    tensor->data[i] = (unsigned char)((bits & 0x80) | (bits >> 8 & 0x3F)); /* fp8: below 2 in size */
  }
  return CLI_OK;
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

static void set_i32(st_tensor *tensor, int64_t i, int64_t value) {
  int32_t narrow = (int32_t)(value < INT32_MAX ? value : INT32_MAX);
  memcpy(tensor->data + (size_t)i * sizeof(narrow), &narrow, sizeof(narrow));
}

static void set_f32(st_tensor *tensor, int64_t i, float value) {
  memcpy(tensor->data + (size_t)i * sizeof(value), &value, sizeof(value));
}

/* Starts of as equal parts as there can be, the count at the end. */
static void fill_starts(st_tensor *tensor, int64_t total) {
  int64_t parts = tensor->shape[0] - 1;
  for (int64_t i = 0; i <= parts; ++i) {
    set_i32(tensor, i, parts > 0 ? total * i / parts : 0);
  }
}

static int64_t greatest_divisor(int64_t a, int64_t b) {
  while (b != 0) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* The i-th block of a scattered order of `blocks`. */
static int64_t scattered(int64_t i, int64_t blocks) {
  int64_t step = blocks * 618 / 1000;
  while (step > 1 && greatest_divisor(step, blocks) != 1) {
    --step;
  }
  return (int64_t)((uint64_t)i * (uint64_t)(step > 0 ? step : 1) % (uint64_t)blocks);
}

static int64_t pool_blocks(const request *parsed) {
  const st_tensor *k = parsed->tensor[TENSOR_K_CACHE];
  const st_tensor *pool = k != NULL ? k : parsed->tensor[TENSOR_V_CACHE];
  return pool != NULL ? pool->shape[0] : 0;
}

static int fill_table(st_tensor *table, const request *parsed, cli_report *report) {
  int64_t blocks = pool_blocks(parsed);
  int64_t entries = table->shape[0] * table->shape[1];
  if (entries > blocks) {
    return cli_fail(report, CLI_BAD_INPUT,
                    "tensor block_table has %lld entries and the pool %lld blocks; accepted: at least as many blocks, "
                    "since each sequence gets its own (or give the entries)",
                    (long long)entries, (long long)blocks);
  }
  for (int64_t i = 0; i < entries; ++i) {
    set_i32(table, i, scattered(i, blocks));
  }
  return CLI_OK;
}

static void set_slot(st_tensor *slots, int64_t i, int64_t slot) {
  memcpy(slots->data + (size_t)i * sizeof(slot), &slot, sizeof(slot));
}

/* The slot of each new token of an attention: the last positions of its sequence. The lists are filled by now. */
static void fill_own_slots(st_tensor *slots, const request *parsed) {
  const st_tensor *table = parsed->tensor[TENSOR_BLOCK_TABLE];
  const st_tensor *starts = parsed->tensor[TENSOR_QUERY_START_LOC];
  for (int64_t s = 0; s < parsed->num_seqs; ++s) {
    int64_t begin = request_i32(starts, s);
    int64_t end = request_i32(starts, s + 1);
    int64_t first = (int64_t)request_i32(parsed->tensor[TENSOR_SEQ_LENS], s) - (end - begin);
    for (int64_t i = begin; i < end && i < slots->shape[0]; ++i) {
      int64_t position = first + i - begin;
      int64_t column = position / parsed->block_size;
      int known = position >= 0 && column < table->shape[1];
      int64_t block = known ? request_i32(table, s * table->shape[1] + column) : -1;
      set_slot(slots, i, block < 0 ? -1 : block * parsed->block_size + position % parsed->block_size);
    }
  }
}

/* A slot for each new row: its token's own, or (cache_write) block after block of a scattered order. */
static int fill_slots(st_tensor *slots, const request *parsed, cli_report *report) {
  int64_t block_size = parsed->block_size;
  int64_t blocks = pool_blocks(parsed);
  if (parsed->tensor[TENSOR_BLOCK_TABLE] != NULL) {
    fill_own_slots(slots, parsed);
    return CLI_OK;
  }
  if (slots->shape[0] > blocks * block_size) {
    return cli_fail(report, CLI_BAD_INPUT,
                    "tensor slot_mapping has %lld entries; accepted: at most %lld, the pool's slots",
                    (long long)slots->shape[0], (long long)(blocks * block_size));
  }
  for (int64_t i = 0; i < slots->shape[0]; ++i) {
    set_slot(slots, i, scattered(i / block_size, blocks) * block_size + i % block_size);
  }
  return CLI_OK;
}

static void fill_ranges(st_tensor *ranges, int64_t length) {
  int64_t count = ranges->shape[1];
  for (int64_t i = 0; i < ranges->shape[0] * count; ++i) {
    int64_t begin = i % count * length / count;
    set_i32(ranges, 2 * i, begin);
    set_i32(ranges, 2 * i + 1, begin + length / (2 * count));
  }
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

/* The type whose rows are written into a format. */
static attn_dtype row_type(attn_format format) {
  return format == ATTN_FORMAT_FLOAT32   ? ATTN_DTYPE_FLOAT32
         : format == ATTN_FORMAT_FLOAT16 ? ATTN_DTYPE_FLOAT16
                                         : ATTN_DTYPE_BFLOAT16;
}

/* Rows that pools are written from: CHUNK tokens, beginning anywhere within the period. */
typedef struct row_source {
  attn_dtype dtype;
  unsigned char *data;
  int64_t shape[3];
  DLTensor view;
} row_source;

static int open_source(row_source *s, attn_format format, int32_t heads, int32_t size, check_rng *rng) {
  s->dtype = row_type(format);
  s->shape[0] = CHUNK;
  s->shape[1] = heads;
  s->shape[2] = size;
  s->data = random_elements(s->dtype, PERIOD + (size_t)CHUNK * (size_t)heads * (size_t)size, rng);
  return s->data != NULL;
}

static const DLTensor *next_rows(row_source *s, int64_t count, check_rng *rng) {
  size_t first = (size_t)check_between(rng, 0, PERIOD - 1);
  s->shape[0] = count;
  attn_tensor_cpu(&s->view, s->data + first * attn_dtype_bytes(s->dtype), s->dtype, 3, s->shape);
  return &s->view;
}

static int write_pools(const bench_session *session, const request *parsed, row_source *k, row_source *v,
                       check_rng *rng) {
  DLTensor views[4];
  DLTensor slots;
  int64_t slot[CHUNK];
  int64_t count[1];
  attn_message message;
  attn_cache_write_args args = ATTN_CACHE_WRITE_INIT;
  args.k_format = parsed->k_format;
  args.v_format = parsed->v_format;
  args.layout = (attn_layout)parsed->key[KEY_KV_LAYOUT].integer;
  args.k_cache = request_view(parsed->tensor[TENSOR_K_CACHE], &views[0]);
  args.v_cache = request_view(parsed->tensor[TENSOR_V_CACHE], &views[1]);
  args.k_scale = request_view(parsed->tensor[TENSOR_K_SCALE], &views[2]);
  args.v_scale = request_view(parsed->tensor[TENSOR_V_SCALE], &views[3]);
  args.slot_mapping = &slots;
  int64_t total = pool_blocks(parsed) * parsed->block_size;
  for (int64_t done = 0; done < total; done += count[0]) {
    count[0] = total - done < CHUNK ? total - done : CHUNK;
    for (int64_t i = 0; i < count[0]; ++i) {
      slot[i] = done + i;
    }
    attn_tensor_cpu(&slots, slot, ATTN_DTYPE_INT64, 1, count);
    args.k = next_rows(k, count[0], rng);
    args.v = next_rows(v, count[0], rng);
    int code = cli_library(session->report, attn_cache_write(session->context, &args, &message), &message);
    if (code != CLI_OK) {
      return code;
    }
  }
  return CLI_OK;
}

/* One pool alone is filled as what its type says; the library writes both or none. */
static int fill_pools(const bench_session *session, const request *parsed, st_tensor *k_pool, st_tensor *v_pool,
                      check_rng *rng) {
  st_tensor *alone = k_pool != NULL ? k_pool : v_pool;
  if (k_pool == NULL || v_pool == NULL) {
    return alone == NULL || is_float(alone->dtype)
               ? (alone != NULL ? bench_fill_random(alone, rng, session->report) : CLI_OK)
               : cli_fail(session->report, CLI_BAD_INPUT,
                          "tensor %s of type %s is measured beside its sister; "
                          "accepted: both k_cache and v_cache",
                          alone->name, st_dtype_name(alone->dtype));
  }
  row_source k = {0};
  row_source v = {0};
  int code = CLI_OK;
  if (!open_source(&k, parsed->k_format, parsed->num_kv_heads, parsed->head_size, rng) ||
      !open_source(&v, parsed->v_format, parsed->num_kv_heads, parsed->v_head_size, rng)) {
    code = cli_fail(session->report, CLI_FAILED, "no memory for the rows of a pool");
  }
  if (code == CLI_OK) {
    code = write_pools(session, parsed, &k, &v, rng);
  }
  free(k.data);
  free(v.data);
  return code;
}

/* ---- The request ------------------------------------------------------------------------------------------------- */

/* The file's own tensor behind a request's view of it, if it is still without data. */
static st_tensor *empty_tensor(const request *parsed, st_file *file, request_tensor id) {
  const st_tensor *found = parsed->tensor[id];
  return found != NULL && found->data == NULL ? &file->tensors[found - file->tensors] : NULL;
}

static int allocate(st_file *file, cli_report *report) {
  for (size_t i = 0; i < file->num_tensors; ++i) {
    st_tensor *tensor = &file->tensors[i];
    if (tensor->data == NULL) {
      tensor->data = cli_alloc(tensor->bytes, 0);
      tensor->owned = 1;
      if (tensor->data == NULL) {
        return cli_fail(report, CLI_FAILED, "no memory for tensor %s of %llu bytes", tensor->name,
                        (unsigned long long)tensor->bytes);
      }
    }
  }
  return CLI_OK;
}

static int fill_one(const bench_session *session, const request *parsed, request_tensor id, st_tensor *tensor,
                    check_rng *rng) {
  const st_tensor *q = parsed->tensor[TENSOR_Q];
  int64_t reach = parsed->tensor[TENSOR_BLOCK_TABLE] != NULL
                      ? parsed->tensor[TENSOR_BLOCK_TABLE]->shape[1] * (int64_t)parsed->block_size
                      : parsed->max_kv_len;
  uint64_t count = tensor->bytes / 4; /* of the lists of 4-byte entries */
  switch (id) {
  case TENSOR_K_CACHE:
  case TENSOR_V_CACHE: /* filled together, at the end */
  case TENSOR_SEQ_STARTS:
    return CLI_OK;
  case TENSOR_QUERY_START_LOC:
    fill_starts(tensor, q->shape[0]);
    return CLI_OK;
  case TENSOR_KV_START_LOC:
    fill_starts(tensor, parsed->tensor[TENSOR_K]->shape[0]);
    return CLI_OK;
  case TENSOR_SEQ_LENS:
    for (int64_t i = 0; i < tensor->shape[0]; ++i) {
      set_i32(tensor, i, reach);
    }
    return CLI_OK;
  case TENSOR_BLOCK_TABLE:
    return fill_table(tensor, parsed, session->report);
  case TENSOR_SLOT_MAPPING:
    return fill_slots(tensor, parsed, session->report);
  case TENSOR_PREFIX_RANGES:
    fill_ranges(tensor, reach);
    return CLI_OK;
  case TENSOR_CAUSAL_PER_SEQ:
    for (int64_t i = 0; i < tensor->shape[0]; ++i) {
      set_i32(tensor, i, i % 2 == 0);
    }
    return CLI_OK;
  case TENSOR_ALIBI_SLOPES: {
    attn_message message;
    return cli_library(session->report,
                       attn_alibi_slopes((int32_t)tensor->shape[0], (float *)(void *)tensor->data, &message), &message);
  }
  case TENSOR_K_SCALE:
  case TENSOR_V_SCALE:
  case TENSOR_KV_SCALE:
  case TENSOR_Q_SCALE:
    for (uint64_t i = 0; i < count; ++i) {
      set_f32(tensor, (int64_t)i, 1.0f);
    }
    return CLI_OK;
  case TENSOR_OUTPUT_SCALE:
    set_f32(tensor, 0, 0.01f);
    return CLI_OK;
  default:
    return bench_fill_random(tensor, rng, session->report);
  }
}

int bench_fill(const bench_session *session, const request *parsed, st_file *file) {
  st_tensor *empty[TENSOR_COUNT];
  check_rng rng;
  check_rng_seed(&rng, (uint64_t)session->flags->seed, 0, 0);
  for (int id = 0; id < TENSOR_COUNT; ++id) {
    empty[id] = empty_tensor(parsed, file, (request_tensor)id);
  }
  unsigned char *parts = calloc(parsed->num_parts + 1, 2); /* which parts of a merge are empty */
  int code = parts != NULL ? CLI_OK : cli_fail(session->report, CLI_FAILED, "no memory for the request");
  for (size_t i = 0; code == CLI_OK && i < parsed->num_parts; ++i) {
    parts[2 * i] = parsed->outs[i]->data == NULL;
    parts[2 * i + 1] = parsed->lses[i]->data == NULL;
  }
  if (code == CLI_OK) {
    code = allocate(file, session->report);
  }
  for (int id = 0; code == CLI_OK && id < TENSOR_OUT_PART; ++id) {
    if (empty[id] != NULL) {
      code = fill_one(session, parsed, (request_tensor)id, empty[id], &rng);
    }
  }
  for (size_t i = 0; code == CLI_OK && i < 2 * parsed->num_parts; ++i) {
    const st_tensor *part = i % 2 == 0 ? parsed->outs[i / 2] : parsed->lses[i / 2];
    if (parts[i]) {
      code = bench_fill_random(&file->tensors[part - file->tensors], &rng, session->report);
    }
  }
  free(parts);
  return code == CLI_OK ? fill_pools(session, parsed, empty[TENSOR_K_CACHE], empty[TENSOR_V_CACHE], &rng) : code;
}
