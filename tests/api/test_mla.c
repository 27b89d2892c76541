/* SPDX-License-Identifier: Apache-2.0 */
/* The three latent calls of both backends against dense double arithmetic: every format, every form, masks, splits,
   threads, chunks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "latent.h"
#include "test_counts.h"

static const int32_t q_len[] = {1, 0, 5, 9, 3};
static const int32_t kv_len[] = {70, 4, 5, 140, 0};

static void finish(latent *s, attn_format format, int separate, const char *what) {
  char label[200];
  latent_fill(s, format, separate);
  for (int b = test_count(0, 1); b < LATENT_BACKENDS; b++) { /* sanitizers meet REFERENCE in attn check */
    snprintf(label, sizeof label, "%s, %s, %s, %d heads, %d + %d", what, latent_backends[b], attn_format_name(format),
             s->problem.num_q_heads, s->problem.kv_lora_rank, s->problem.qk_rope_head_dim);
    harness_label(label);
    latent_run(s, latent_backends[b]);
    latent_compare(s, latent_room(s), label);
  }
  latent_free(s);
}

static void every_format(attn_mla_form form, int as_given) {
  for (size_t f = 0; f < LATENT_FORMATS; f++) {
    for (int separate = 0;
         separate <
         (latent_formats[f] >= ATTN_FORMAT_INT8_PER_TOKEN_HEAD && latent_formats[f] != ATTN_FORMAT_FP8_DS_MLA ? 2 : 1);
         separate++) {
      int tiled = latent_formats[f] == ATTN_FORMAT_FP8_DS_MLA;
      latent s;
      latent_init(&s, form, 3, tiled ? 512 : 41, tiled ? 64 : 5, 12, 9);
      latent_seqs(&s, 5, q_len, kv_len);
      s.as_given = as_given;
      finish(&s, latent_formats[f], separate, "format");
    }
  }
}

static void mqa_of_every_format(void **state) {
  (void)state;
  every_format(ATTN_MLA_MQA, 0);
}

static void mha_of_every_format(void **state) {
  (void)state;
  every_format(ATTN_MLA_MHA, 0);
  every_format(ATTN_MLA_MHA, 1);
}

static void layer_of_every_format(void **state) {
  (void)state;
  every_format(ATTN_MLA_LAYER, 0);
}

static void sizes_and_types(void **state) {
  static const int32_t sizes[][5] = {{1, 1, 0, 1, 1},       {2, 7, 1, 7, 3},      {5, 16, 4, 8, 16},
                                     {16, 64, 32, 32, 64},  {4, 128, 32, 32, 64}, {2, 256, 64, 64, 128},
                                     {2, 512, 64, 192, 256}};
  static const attn_dtype types[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16};
  (void)state;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
      latent s;
      const int32_t *z = sizes[i];
      latent_init(&s, (attn_mla_form)form, z[0], z[1], z[2], z[3], z[4]);
      latent_seqs(&s, 5, q_len, kv_len);
      s.problem.q_dtype = types[(i + (size_t)form) % 3];
      s.source = types[(i + (size_t)form + 1) % 3];
      s.problem.out_dtype = types[i % 2 == 0 ? 0 : (i + (size_t)form) % 3];
      s.problem.block_size = i % 2 == 0 ? 1 : 16;
      s.two_queries = form == ATTN_MLA_MQA && i % 2 == 0;
      finish(&s, ATTN_FORMAT_AUTO + 1 + (attn_format)(i % 3), 0, "sizes");
    }
  }
}

/* One feature each, and some together. */
static void apply(latent *s, int feature) {
  attn_problem *p = &s->problem;
  p->window_left = feature == 0 || feature == 9 ? 20 : -1;
  p->chunk_size = feature == 1 ? 32 : 0;
  p->chunk_lookback = feature == 1;
  p->softcap = feature == 2 || feature == 9 ? 2.5f : 0.0f;
  p->alibi = feature == 3 ? ATTN_ALIBI_LINEAR : feature == 4 ? ATTN_ALIBI_SQRT : ATTN_ALIBI_NONE;
  p->has_sinks = feature == 5 || feature == 9;
  p->has_bias = feature == 6 || feature == 9;
  p->has_prefix_ranges = feature == 7 || feature == 9;
  p->batch_invariant = feature == 8;
  if (p->mla_form == ATTN_MLA_MQA) {
    p->causal = feature != 10;
    p->has_causal_per_seq = feature == 11;
  }
  s->options.num_splits = p->mla_form != ATTN_MLA_MHA && feature == 12 ? 3 : 0;
  s->options.split_rule = p->mla_form != ATTN_MLA_MHA && feature == 13 ? ATTN_SPLIT_COMPATIBLE : ATTN_SPLIT_DEFAULT;
  s->threads = feature % 2 == 0 ? 3 : 1;
}

static void features(void **state) {
  static const int32_t chunks[] = {0, 8, 16, 64, 1};
  (void)state;
  for (int feature = 0; feature < 14; feature++) {
    for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
      latent s;
      latent_init(&s, (attn_mla_form)form, 4, 24, 8, 10, 12);
      latent_seqs(&s, 5, q_len, kv_len);
      apply(&s, feature);
      if (form != ATTN_MLA_MQA) {
        s.problem.context_chunk = chunks[feature % 5];
        s.as_given = form == ATTN_MLA_MHA && feature % 2 == 0;
      }
      finish(&s, feature % 3 == 0 ? ATTN_FORMAT_INT4_PER_TOKEN_HEAD : ATTN_FORMAT_FLOAT32, 0, "feature");
    }
  }
}

/* Long enough to be cut, and a layer whose sequences go both ways. */
static void long_sequences(void **state) {
  static const int32_t few[] = {1, 40, 2, 33}, many[] = {1700, 40, 700, 600};
  (void)state;
  for (int form = ATTN_MLA_MQA; form <= ATTN_MLA_LAYER; form++) {
    latent s;
    latent_init(&s, (attn_mla_form)form, 2, 32, 8, 12, 12);
    latent_seqs(&s, 4, few, many);
    s.threads = 4;
    finish(&s, ATTN_FORMAT_BFLOAT16, 0, "long");
    if (form == ATTN_MLA_LAYER) { /* 32 * 24 / (64 - 24) */
      assert_int_equal(s.plan.mla_threshold, 19);
    }
  }
}

static void without_a_cache(void **state) {
  static const int32_t lens[] = {70, 0, 9, 1};
  latent s;
  (void)state;
  latent_init(&s, ATTN_MLA_MHA, 3, 24, 6, 10, 12);
  latent_seqs(&s, 4, lens, lens);
  s.problem.kv_source = ATTN_KV_DIRECT;
  s.problem.block_size = 0;
  finish(&s, ATTN_FORMAT_AUTO, 0, "no cache");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(mqa_of_every_format),
      cmocka_unit_test(mha_of_every_format),
      cmocka_unit_test(layer_of_every_format),
      cmocka_unit_test(sizes_and_types),
      cmocka_unit_test(features),
      cmocka_unit_test(long_sequences),
      cmocka_unit_test(without_a_cache),
  };
  return cmocka_run_group_tests_name("latent attention", tests, NULL, NULL);
}
