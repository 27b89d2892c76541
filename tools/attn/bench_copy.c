/* SPDX-License-Identifier: Apache-2.0 */
/* attn_cache_copy as a case: op=cache_copy, a pool k_cache=TYPE[blocks, ...] and block_map=I64[n,2], whose pairs name n
   scattered blocks of the pool and as many of a second pool of the same shape. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

typedef struct copy_case {
  bench_session *session;
  st_file file;
  const st_tensor *map;
  st_tensor source; /* the file's */
  unsigned char *target;
  int64_t *pairs;
  DLTensor views[3];
  attn_cache_copy_args args;
} copy_case;

int bench_is_copy(size_t count, char *const *words) {
  for (size_t i = 0; i < count; ++i) {
    if (strcmp(words[i], "op=cache_copy") == 0) {
      return 1;
    }
  }
  return 0;
}

static int read_tensors(copy_case *c) {
  cli_report *report = c->session->report;
  if (c->session->flags->num_splits >= 0 || c->session->flags->batch_invariant) {
    return cli_fail(report, CLI_BAD_INPUT, "--splits and --batch-invariant are not used by op cache_copy");
  }
  for (size_t i = 0; i < c->file.num_metadata; ++i) {
    if (strcmp(c->file.metadata[i].key, "op") != 0) {
      return cli_fail(report, CLI_BAD_INPUT, "key %.64s is not used by op cache_copy", c->file.metadata[i].key);
    }
  }
  st_tensor *pool = NULL;
  for (size_t i = 0; i < c->file.num_tensors; ++i) {
    st_tensor *tensor = &c->file.tensors[i];
    if (strcmp(tensor->name, "k_cache") == 0) {
      pool = tensor;
    } else if (strcmp(tensor->name, "block_map") == 0) {
      c->map = tensor;
    } else {
      return cli_fail(report, CLI_BAD_INPUT, "tensor %.64s is not used by op cache_copy", tensor->name);
    }
  }
  if (pool == NULL || c->map == NULL || c->map->dtype != ST_I64 || c->map->rank != 2 || c->map->shape[1] != 2 ||
      (pool->rank != 4 && pool->rank != 3) || c->map->shape[0] > pool->shape[0] || c->map->data != NULL) {
    return cli_fail(report, CLI_BAD_INPUT,
                    "op cache_copy: accepted: k_cache=TYPE[blocks,block_size,kv_heads,row] and block_map=I64[n,2] with "
                    "n up to the blocks");
  }
  c->source = *pool;
  return CLI_OK;
}

static int make_pools(copy_case *c) {
  cli_report *report = c->session->report;
  check_rng rng;
  int64_t n = c->map->shape[0];
  check_rng_seed(&rng, (uint64_t)c->session->flags->seed, 0, 2);
  c->source.data = cli_alloc(c->source.bytes, 0);
  c->target = cli_alloc(c->source.bytes, 1);
  c->pairs = cli_alloc((uint64_t)n * 2 * sizeof(int64_t), 0);
  int64_t *order = cli_alloc((uint64_t)c->source.shape[0] * sizeof(int64_t), 0);
  if (c->target == NULL || c->pairs == NULL || order == NULL) {
    free(order);
    return cli_fail(report, CLI_FAILED, "no memory for two pools of %llu bytes", (unsigned long long)c->source.bytes);
  }
  for (int column = 0; column < 2; ++column) { /* the first n of a random order of all blocks */
    for (int64_t i = 0; i < c->source.shape[0]; ++i) {
      int64_t j = check_between(&rng, 0, i);
      order[i] = order[j];
      order[j] = i;
    }
    for (int64_t i = 0; i < n; ++i) {
      c->pairs[2 * i + column] = order[i];
    }
  }
  free(order);
  return bench_fill_random(&c->source, &rng, report);
}

static int call_once(void *context) {
  copy_case *c = context;
  attn_message message;
  attn_status status = attn_cache_copy(c->session->context, &c->args, &message);
  return cli_library(c->session->report, status, &message) == CLI_OK;
}

static void set_arguments(copy_case *c) {
  DLTensor *const views = c->views;
  attn_dtype dtype = st_dtype_of_library(c->source.dtype);
  attn_tensor_cpu(&views[0], c->source.data, dtype, c->source.rank, c->source.shape);
  attn_tensor_cpu(&views[1], c->target, dtype, c->source.rank, c->source.shape);
  attn_tensor_cpu(&views[2], c->pairs, ATTN_DTYPE_INT64, 2, (int64_t *)c->map->shape);
  c->args = (attn_cache_copy_args)ATTN_CACHE_COPY_INIT;
  c->args.backend = c->session->flags->backend;
  c->args.source = &views[0];
  c->args.target = &views[1];
  c->args.block_map = &views[2];
}

/* The blocks named are copies, the others are what they were. */
static int judge(const copy_case *c) {
  uint64_t block = c->source.shape[0] > 0 ? c->source.bytes / (uint64_t)c->source.shape[0] : 0;
  unsigned char *want = cli_alloc(c->source.bytes, 1);
  if (want == NULL) {
    return cli_fail(c->session->report, CLI_FAILED, "no memory to judge the result");
  }
  for (int64_t i = 0; i < c->map->shape[0]; ++i) {
    memcpy(want + (uint64_t)c->pairs[2 * i + 1] * block, c->source.data + (uint64_t)c->pairs[2 * i] * block, block);
  }
  int same = memcmp(want, c->target, c->source.bytes) == 0;
  free(want);
  return same ? CLI_OK : cli_fail(c->session->report, CLI_FAILED, "the copy is wrong: the target pool has other bytes");
}

static int measure(copy_case *c, bench_item *item) {
  char reason[ATTN_REASON_BYTES];
  set_arguments(c);
  int code = run_name_backend(c->session->context, c->session->flags, item->backend, sizeof(item->backend), reason,
                              c->session->report);
  if (code != CLI_OK) {
    return code;
  }
  if (!call_once(c)) {
    return CLI_BAD_INPUT;
  }
  code = judge(c);
  item->op = "cache_copy";
  item->splits = 0;
  item->work = (bench_work){0.0, 0.0, 0.0};
  if (c->source.shape[0] > 0) {
    item->work.read_bytes = (double)c->source.bytes / (double)c->source.shape[0] * (double)c->map->shape[0];
    item->work.written_bytes = item->work.read_bytes;
  }
  if (code == CLI_OK) {
    code = bench_time(c->session, call_once, c, item);
  }
  return code == CLI_OK ? judge(c) : code;
}

int bench_run_copy(bench_session *session, size_t count, char *const *words, bench_item *item) {
  copy_case c = {.session = session};
  int code = request_from_words(count, words, &c.file, session->report);
  if (code == CLI_OK) {
    code = read_tensors(&c);
  }
  if (code == CLI_OK) {
    code = make_pools(&c);
  }
  if (code == CLI_OK) {
    code = measure(&c, item);
  }
  free(c.source.data);
  free(c.target);
  free(c.pairs);
  st_free(&c.file);
  return code;
}
