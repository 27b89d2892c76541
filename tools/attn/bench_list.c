/* SPDX-License-Identifier: Apache-2.0 */
/* The built-in cases as data: each row is a shape in the words of `attn explain`; rows of every format come once for
   each format that this build has. Head counts are those of models people run: 32/8 of 128 (Llama 3 8B), 9/3 of 64
   (SmolLM2), 8/8 of 128 (no groups), 16/1 of 256 (one KV head), 16/8 of 256 (rows that an inline scale makes longer
   than a power of two: what scales apart save), 12/12 of 64 (encoders). */
#include <stdarg.h>
#include <string.h>

#include "bench.h"

typedef enum case_kind { DECODE, EXTEND, MIXED, PREFILL, ENCODER, CROSS, WRITE, GATHER, COPY, MERGE } case_kind;

static const char *const kind_names[] = {"decode", "extend",      "mixed",        "prefill",    "encoder",
                                         "cross",  "cache_write", "cache_gather", "cache_copy", "merge"};

enum { MIXED_ROWS = 32 }; /* new rows of a mixed batch's last sequence; the others have one */

typedef struct case_row {
  case_kind kind;
  int q_heads;
  int kv_heads;
  int size;
  int seqs;   /* merge: parts */
  int q_len;  /* of each; merge: tokens */
  int kv_len; /* of each */
  int block_size;
  attn_format format;
  int every_format;
  const char *extra; /* words and name of a feature, or ""; SEPARATE: the scales lie apart */
} case_row;

#define SEPARATE "+separate_scales"

static const case_row rows[] = {
    {DECODE, 32, 8, 128, 8, 1, 1024, 64, ATTN_FORMAT_AUTO, 1, ""},
    {DECODE, 32, 8, 128, 8, 1, 4096, 64, ATTN_FORMAT_BFLOAT16, 0, ""},
    {DECODE, 32, 8, 128, 1, 1, 16384, 64, ATTN_FORMAT_BFLOAT16, 0, ""},
    {DECODE, 32, 8, 128, 8, 1, 1024, 16, ATTN_FORMAT_BFLOAT16, 0, "block_size=16"},
    {DECODE, 32, 8, 128, 8, 1, 4096, 64, ATTN_FORMAT_BFLOAT16, 0, "window_left=511"},
    {DECODE, 8, 8, 128, 8, 1, 1024, 64, ATTN_FORMAT_BFLOAT16, 0, ""},
    {DECODE, 9, 3, 64, 32, 1, 512, 64, ATTN_FORMAT_BFLOAT16, 0, ""},
    {DECODE, 16, 1, 256, 8, 1, 1024, 64, ATTN_FORMAT_BFLOAT16, 0, ""},
    {DECODE, 16, 8, 256, 8, 1, 1024, 64, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 0, ""},
    {DECODE, 16, 8, 256, 8, 1, 1024, 64, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 0, SEPARATE},
    {EXTEND, 32, 8, 128, 4, 8, 1024, 64, ATTN_FORMAT_BFLOAT16, 0, ""},
    {MIXED, 9, 3, 64, 8, 1, 1024, 64, ATTN_FORMAT_BFLOAT16, 0, ""},
    {PREFILL, 32, 8, 128, 1, 256, 256, 64, ATTN_FORMAT_BFLOAT16, 0, ""},
    {PREFILL, 9, 3, 64, 1, 512, 512, 64, ATTN_FORMAT_FLOAT32, 0, ""},
    {ENCODER, 12, 12, 64, 4, 128, 128, 0, ATTN_FORMAT_FLOAT32, 0, ""},
    {CROSS, 8, 8, 64, 4, 32, 512, 0, ATTN_FORMAT_FLOAT32, 0, ""},
    {WRITE, 0, 8, 128, 1, 64, 64, 16, ATTN_FORMAT_AUTO, 1, ""},
    {GATHER, 0, 8, 128, 2, 0, 32, 16, ATTN_FORMAT_AUTO, 1, ""},
    {GATHER, 0, 8, 256, 2, 0, 32, 16, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 0, ""},
    {GATHER, 0, 8, 256, 2, 0, 32, 16, ATTN_FORMAT_INT8_PER_TOKEN_HEAD, 0, SEPARATE},
    {COPY, 0, 8, 128, 1, 0, 256, 16, ATTN_FORMAT_BFLOAT16, 0, ""},
    {MERGE, 32, 32, 128, 4, 16, 0, 0, ATTN_FORMAT_FLOAT32, 0, ""},
    {MERGE, 32, 32, 128, 4, 16, 0, 0, ATTN_FORMAT_BFLOAT16, 0, ""},
};

/* Append to the words, with a blank between. */
static void add(bench_case *c, const char *format, ...) CLI_PRINTF(2, 3);
static void add(bench_case *c, const char *format, ...) {
  size_t used = strlen(c->words);
  va_list arguments;
  va_start(arguments, format);
  if (used > 0 && used + 1 < sizeof(c->words)) {
    c->words[used++] = ' ';
  }
  vsnprintf(c->words + used, sizeof(c->words) - used, format, arguments);
  va_end(arguments);
}

static int is_float(attn_format format) {
  return format == ATTN_FORMAT_FLOAT32 || format == ATTN_FORMAT_FLOAT16 || format == ATTN_FORMAT_BFLOAT16;
}

/* Rows around a cache of a format: float32 and float16 as they are, all others bfloat16. */
static const char *type_beside(attn_format format) {
  return st_name_of(format == ATTN_FORMAT_FLOAT32   ? ATTN_DTYPE_FLOAT32
                    : format == ATTN_FORMAT_FLOAT16 ? ATTN_DTYPE_FLOAT16
                                                    : ATTN_DTYPE_BFLOAT16);
}

static int is_separate(const case_row *row) {
  return strcmp(row->extra, SEPARATE) == 0;
}

/* Both pools with `blocks` blocks, and the scales apart. 0 for a format that a pool of K and V cannot have. */
static int add_pools(bench_case *c, const case_row *row, attn_format format, int blocks) {
  attn_cache_desc desc = ATTN_CACHE_DESC_INIT;
  attn_cache_info info = ATTN_CACHE_INFO_INIT;
  attn_message message;
  desc.k_format = format;
  desc.num_blocks = blocks;
  desc.block_size = row->block_size;
  desc.num_kv_heads = row->kv_heads;
  desc.head_size = row->size;
  desc.separate_scales = is_separate(row) ? ATTN_SEPARATE_BOTH : ATTN_SEPARATE_NONE;
  if (attn_cache_describe(&desc, &info, &message) != ATTN_OK) {
    return 0;
  }
  for (int i = 0; i < 2; ++i) {
    const int64_t *shape = info.k.shape;
    add(c, "%s=%s[%lld,%lld,%lld,%lld]", i == 0 ? "k_cache" : "v_cache", st_name_of(info.k.dtype), (long long)shape[0],
        (long long)shape[1], (long long)shape[2], (long long)shape[3]);
  }
  for (int i = 0; i < 2 && is_separate(row); ++i) {
    const int64_t *shape = info.k_scale.shape;
    add(c, "%s=F32[%lld,%lld,%lld]", i == 0 ? "k_scale" : "v_scale", (long long)shape[0], (long long)shape[1],
        (long long)shape[2]);
  }
  if (!is_float(format)) {
    add(c, "cache_format=%s%s", attn_format_name(format), is_separate(row) ? SEPARATE : "");
  }
  if (info.k.dtype == ATTN_DTYPE_UINT8 && row->kind != WRITE) { /* whose rows do not say it */
    add(c, "v_head_size=%d", row->size);
  }
  return 1;
}

static int blocks_of(const case_row *row) {
  return (row->kv_len + row->block_size - 1) / row->block_size;
}

/* Attention over a cache. The pool has twice the blocks that are needed, so that they lie scattered. */
static int make_cached(bench_case *c, const case_row *row, attn_format format) {
  int tokens = row->kind == MIXED ? row->seqs - 1 + MIXED_ROWS : row->seqs * row->q_len;
  add(c, "op=attention q=%s[%d,%d,%d]", type_beside(format), tokens, row->q_heads, row->size);
  if (!add_pools(c, row, format, 2 * row->seqs * blocks_of(row))) {
    return 0;
  }
  add(c, "block_table=I32[%d,%d] seq_lens=I32[%d]=%d query_start_loc=I32[%d]", row->seqs, blocks_of(row), row->seqs,
      row->kv_len, row->seqs + 1);
  if (row->kind == MIXED) {
    for (int i = 0; i < row->seqs; ++i) {
      size_t used = strlen(c->words);
      snprintf(c->words + used, sizeof(c->words) - used, "%s%d,", i == 0 ? "=" : "", i);
    }
    size_t used = strlen(c->words);
    snprintf(c->words + used, sizeof(c->words) - used, "%d", tokens);
  }
  return 1;
}

static int make_direct(bench_case *c, const case_row *row, attn_format format) {
  const char *type = type_beside(format);
  int keys = row->seqs * row->kv_len;
  add(c, "op=attention q=%s[%d,%d,%d] k=%s[%d,%d,%d] v=%s[%d,%d,%d] query_start_loc=I32[%d]", type,
      row->seqs * row->q_len, row->q_heads, row->size, type, keys, row->kv_heads, row->size, type, keys, row->kv_heads,
      row->size, row->seqs + 1);
  if (row->kind == CROSS) {
    add(c, "kv_start_loc=I32[%d]", row->seqs + 1);
  }
  return 1;
}

static int make_write(bench_case *c, const case_row *row, attn_format format) {
  const char *type = type_beside(format);
  add(c, "op=cache_write k=%s[%d,%d,%d] v=%s[%d,%d,%d]", type, row->q_len, row->kv_heads, row->size, type, row->q_len,
      row->kv_heads, row->size);
  add(c, "slot_mapping=I64[%d]", row->q_len);
  return add_pools(c, row, format, 2 * blocks_of(row));
}

static int make_gather(bench_case *c, const case_row *row, attn_format format) {
  add(c, "op=cache_gather out_dtype=float32 block_table=I32[%d,%d] seq_lens=I32[%d]=%d", row->seqs, blocks_of(row),
      row->seqs, row->kv_len);
  if (!is_float(format)) {
    add(c, "head_size=%d", row->size);
  }
  return add_pools(c, row, format, 2 * row->seqs * blocks_of(row));
}

static int make_copy(bench_case *c, const case_row *row, attn_format format) {
  add(c, "op=cache_copy k_cache=%s[%d,%d,%d,%d] block_map=I64[%d,2]", type_beside(format), 2 * blocks_of(row),
      row->block_size, row->kv_heads, row->size, blocks_of(row));
  return 1;
}

static int make_merge(bench_case *c, const case_row *row, attn_format format) {
  const char *type = type_beside(format);
  add(c, "op=merge out_dtype=%s", attn_format_name(format));
  for (int i = 0; i < row->seqs; ++i) {
    add(c, "out_%d=%s[%d,%d,%d] lse_%d=F32[%d,%d]", i, type, row->q_len, row->q_heads, row->size, i, row->q_len,
        row->q_heads);
  }
  return 1;
}

static int make_words(bench_case *c, const case_row *row, attn_format format) {
  switch (row->kind) {
  case DECODE:
  case EXTEND:
  case MIXED:
  case PREFILL:
    return make_cached(c, row, format);
  case ENCODER:
  case CROSS:
    return make_direct(c, row, format);
  case WRITE:
    return make_write(c, row, format);
  case GATHER:
    return make_gather(c, row, format);
  case COPY:
    return make_copy(c, row, format);
  case MERGE:
    return make_merge(c, row, format);
  }
  return 0;
}

/* What the lengths are called. */
static void spell_lengths(const case_row *row, char *text, size_t bytes) {
  switch (row->kind) {
  case EXTEND:
  case CROSS:
    snprintf(text, bytes, "%dx%d of %d", row->seqs, row->q_len, row->kv_len);
    break;
  case MIXED:
    snprintf(text, bytes, "%dx1, 1x%d of %d", row->seqs - 1, MIXED_ROWS, row->kv_len);
    break;
  case WRITE:
    snprintf(text, bytes, "%d", row->q_len);
    break;
  case COPY:
    snprintf(text, bytes, "%d blocks of %d", blocks_of(row), row->block_size);
    break;
  case MERGE:
    snprintf(text, bytes, "%d parts of %d", row->seqs, row->q_len);
    break;
  default:
    snprintf(text, bytes, "%dx%d", row->seqs, row->kv_len);
    break;
  }
}

/* 0: there is no such case in this build. */
static int make_case(bench_case *c, const case_row *row, attn_format format) {
  char heads[16] = "";
  char lengths[40];
  memset(c, 0, sizeof(*c));
  c->attends = row->kind <= CROSS;
  if (!make_words(c, row, format)) {
    return 0;
  }
  if (row->extra[0] != '\0' && !is_separate(row)) {
    add(c, "%s", row->extra);
  }
  if (row->q_heads > 0) {
    snprintf(heads, sizeof(heads), "%d/", row->q_heads);
  }
  spell_lengths(row, lengths, sizeof(lengths));
  snprintf(c->name, sizeof(c->name), "%s %s%dx%d %s %s%s%s", kind_names[row->kind], heads, row->kv_heads, row->size,
           attn_format_name(format), lengths, row->extra[0] != '\0' ? " " : "", row->extra);
  return 1;
}

size_t bench_list(bench_case *cases, size_t most) {
  static const struct {
    attn_format format;
    int built;
  } formats[] = {
#define FORMAT_ROW(name, value, spelling, storage, rows) {name, ((rows)&ATTN_ROWS_KV) != 0},
      ATTN_FORMAT_LIST(FORMAT_ROW)
#undef FORMAT_ROW
  };
  size_t count = 0;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
    for (size_t j = 0; j < sizeof(formats) / sizeof(formats[0]); ++j) {
      int wanted = rows[i].every_format ? formats[j].built : formats[j].format == rows[i].format;
      if (wanted && count < most) {
        count += (size_t)make_case(&cases[count], &rows[i], formats[j].format);
      }
    }
  }
  return count;
}
