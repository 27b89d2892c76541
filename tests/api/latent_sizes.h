/* SPDX-License-Identifier: Apache-2.0 */
/* latent_sizes.h: sizes of a layer of latent.h, for its parts and the cases that look at single elements. */
#ifndef ATTN_TESTS_LATENT_SIZES_H
#define ATTN_TESTS_LATENT_SIZES_H

#include "latent.h"

static inline int32_t rank_of(const latent *s) {
  return s->problem.kv_lora_rank;
}

static inline int32_t row_of(const latent *s) {
  return s->problem.kv_lora_rank + s->problem.qk_rope_head_dim;
}

static inline int is_mqa(const latent *s) {
  return s->problem.mla_form == ATTN_MLA_MQA;
}

static inline int32_t qk_of(const latent *s) {
  return is_mqa(s) ? row_of(s) : s->problem.qk_nope_head_dim + s->problem.qk_rope_head_dim;
}

static inline int32_t v_of(const latent *s) {
  return is_mqa(s) ? rank_of(s) : s->problem.mla_v_head_dim;
}

#endif
