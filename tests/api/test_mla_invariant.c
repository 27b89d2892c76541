/* SPDX-License-Identifier: Apache-2.0 */
/* Batch-invariant mode over latent rows: the bits of a sequence's last row alone and beside 15 others, with 1 to 8
   threads, with more heads, wherever its blocks lie; of mqa and layer also in prefill, extend and decode. */
#include <string.h>

#include "latent.h"
#include "test_counts.h"

enum { HEADS = 3, RANK = 40, ROTARY = 5, NOPE = 10, V = 9, LEN = 600, NAME = 1 };

typedef struct setting {
  int32_t rows, others, place, threads, more_heads, block_size;
} setting;

static const attn_format formats[] = {
    ATTN_FORMAT_FLOAT32,
    ATTN_FORMAT_FLOAT16,
    ATTN_FORMAT_BFLOAT16,
    ATTN_FORMAT_FP8_E4M3,
    ATTN_FORMAT_INT8_PER_TOKEN_HEAD,
    ATTN_FORMAT_FP8_PER_TOKEN_HEAD,
    ATTN_FORMAT_FP8_DS_MLA,
    ATTN_FORMAT_INT4_PER_TOKEN_HEAD,
};

/* out and lse of the last row's first HEADS heads; the count of floats. */
static int32_t last_row(float *bits, const char *backend, attn_mla_form form, attn_format format, const setting *t) {
  int tiled = format == ATTN_FORMAT_FP8_DS_MLA;
  int32_t q_len[LATENT_SEQS], kv_len[LATENT_SEQS], names[LATENT_SEQS], rank = tiled ? 512 : RANK;
  int32_t heads = HEADS + t->more_heads, v = form == ATTN_MLA_MQA ? rank : V;
  latent s;
  latent_init(&s, form, heads, rank, tiled ? 64 : ROTARY, NOPE, V);
  for (int32_t i = 0; i <= t->others; i++) {
    q_len[i] = i == t->place ? t->rows : 1 + i % 4;
    kv_len[i] = i == t->place ? LEN : 4 + 23 * i;
    names[i] = i == t->place ? NAME : 2 + i;
  }
  latent_seqs(&s, t->others + 1, q_len, kv_len);
  s.names = names;
  s.threads = t->threads;
  s.problem.batch_invariant = 1;
  s.problem.block_size = t->block_size;
  latent_fill(&s, format, 0);
  latent_run(&s, backend);
  int64_t row = s.starts[t->place] + t->rows - 1;
  memcpy(bits, s.out + row * heads * v, (size_t)(HEADS * v) * sizeof *bits);
  if (s.problem.wants_lse) {
    memcpy(bits + HEADS * v, s.lse + row * heads, HEADS * sizeof *bits);
  }
  int32_t count = HEADS * v + (s.problem.wants_lse ? HEADS : 0);
  latent_free(&s);
  return count;
}

static void row_alone_and_beside(const char *backend, attn_mla_form form, attn_format format) {
  static const setting settings[] = {
      {1, 15, 7, 8, 0, 16}, {1, 15, 15, 2, 2, 7}, {9, 5, 0, 3, 0, 7}, {40, 0, 0, 2, 5, 1}, {LEN, 1, 1, 4, 0, 48},
  };
  static float alone[HEADS * 513], beside[HEADS * 513];
  for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
    const setting *t = &settings[i];
    int dear = t->rows == LEN && (format == ATTN_FORMAT_FP8_DS_MLA || strcmp(backend, "REFERENCE") == 0);
    if (dear) { /* a whole prefill in double arithmetic, or of the widest rows */
      continue;
    }
    setting one = {form == ATTN_MLA_MHA ? t->rows : 1, 0, 0, 1, 0, 7};
    int32_t count = last_row(alone, backend, form, format, &one);
    last_row(beside, backend, form, format, t);
    CHECK(memcmp(alone, beside, (size_t)count * sizeof *alone) == 0,
          "%s, form %d, %s, setting %d: the bits of a row depend on its neighbours", backend, (int)form,
          attn_format_name(format), (int)i);
  }
}

static void every_format(attn_mla_form form) {
  for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f += (size_t)test_count(1, 2)) {
    row_alone_and_beside("CPU_MLA", form, formats[f]);
  }
  if (test_count(1, 0)) {
    row_alone_and_beside("REFERENCE", form, ATTN_FORMAT_FLOAT32);
    row_alone_and_beside("REFERENCE", form, ATTN_FORMAT_INT8_PER_TOKEN_HEAD);
  }
}

static void case_139_latent_mqa_in_any_batch(void **state) {
  (void)state;
  every_format(ATTN_MLA_MQA);
}

static void case_139_latent_mha_in_any_batch(void **state) {
  (void)state;
  every_format(ATTN_MLA_MHA);
}

static void case_139_latent_layer_in_any_batch(void **state) {
  (void)state;
  every_format(ATTN_MLA_LAYER);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_139_latent_mqa_in_any_batch),
      cmocka_unit_test(case_139_latent_mha_in_any_batch),
      cmocka_unit_test(case_139_latent_layer_in_any_batch),
  };
  return cmocka_run_group_tests_name("latent attention, batch-invariant", tests, NULL, NULL);
}
