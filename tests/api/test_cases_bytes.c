/* SPDX-License-Identifier: Apache-2.0 */
/* Cases 8 to 17: bytes that nobody wrote, read by attention (padding, null block, stale tables); those that a writer
   must leave alone are in test_cases_writes.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

/* ---- 8: NaN in the unwritten tail of V */

static void tail_of_v(const char *backend, attn_format k, attn_format v) {
  for (int n = 0; n < 2 * (SCENE_RANDOM + 1); n++) {
    scene s;
    scene_init(&s, 1, 1, 64, 64);
    scene_pair(&s, k, v);
    scene_scales(&s, n % 2);
    scene_one(&s, 1, 1);
    s.poison = (scene_poison)(n / 2);
    scene_store(&s);
    scene_run(&s, backend);
    for (int i = 0; i < 64; i++) { /* the scene undoes the rotation in float32 */
      float slack = v == ATTN_FORMAT_INT4_PER_TOKEN_HEAD ? 0x1p-20f * 4.0f : 0.0f;
      CHECK(fabsf(s.out[i] - s.v[0][i]) <= slack, "out is not V[0] exactly");
    }
    scene_check(&s);
    scene_free(&s);
  }
}

static void case_008_nan_in_unwritten_tail_of_v(void **state) {
  (void)state;
  for_each_pair(tail_of_v);
}

/* ---- 10: NaN in positions wholly outside the window */

static void outside_window(const char *backend, attn_format k, attn_format v) {
  for (int which = 0; which < 3; which++) {
    scene s;
    scene_init(&s, 2, 1, 32, 32);
    scene_pair(&s, k, v);
    scene_scales(&s, which);
    s.problem.window_left = 11;
    s.problem.window_right = 0;
    scene_one(&s, 1, 40);
    for (int32_t pos = 0; pos < 28; pos++) {
      if (which != 1) {
        fill_floats(scene_k(&s, 0, pos, 0), 32, NAN);
      }
      if (which != 0) {
        fill_floats(scene_v(&s, 0, pos, 0), 32, NAN);
      }
    }
    scene_prove(&s, backend);
    scene_free(&s);
  }
}

static void case_010_nan_outside_the_window(void **state) {
  (void)state;
  for_each_pair(outside_window);
}

/* ---- 16: the last tile reads past the table row */

static void narrow_table(const char *backend, attn_format k, attn_format v) {
  static const int32_t q_len[] = {1, 17};
  for (size_t i = 0; i < 2; i++) {
    scene s;
    scene_init(&s, 2, 2, 64, 64);
    scene_pair(&s, k, v);
    scene_scales(&s, (int)i);
    s.extra_columns = 0;
    scene_one(&s, q_len[i], 17);
    scene_store(&s);
    CHECK(s.t_table.shape[1] == 2, "the table is not 2 wide");
    scene_run(&s, backend);
    scene_check(&s);
    scene_free(&s);
  }
}

static void case_016_table_row_not_read_past_its_end(void **state) {
  (void)state;
  for_each_pair(narrow_table);
}

/* ---- 17: stale columns when the batch shrinks */

/* NaN over the blocks of sequence `seq`, codes and scales. */
static void spoil_blocks(const scene *s, int32_t seq, int32_t count) {
  const int32_t *table = (const int32_t *)(const void *)s->table_data.data;
  const struct {
    const tensor *t;
    const guarded *data;
  } all[] = {{&s->t_k, &s->k_data},
             {&s->t_v, &s->v_data},
             {&s->t_k_scale, &s->k_scale_data},
             {&s->t_v_scale, &s->v_scale_data}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    size_t block = all[i].data->bytes == 0 ? 0 : (size_t)all[i].t->strides[0] * (all[i].t->t.dtype.bits / 8);
    for (int32_t c = 0; c < count && block > 0; c++) {
      memset(all[i].data->data + (size_t)table[seq * s->t_table.shape[1] + c] * block, 0xFF, block);
    }
  }
}

static void shrinking_batch(const char *backend, attn_format k, attn_format v) {
  static const int32_t q_len[] = {1, 1, 1, 1};
  static const int32_t kv_len[] = {20, 33, 40, 18};
  for (int place = 0; place < 2; place++) {
    scene s;
    scene_init(&s, 4, 2, 16, 16);
    scene_pair(&s, k, v);
    scene_scales(&s, place);
    scene_seqs(&s, 4, q_len, kv_len);
    scene_store(&s);
    scene_open(&s, backend);
    EXPECT_OK(scene_step(&s, &why));
    scene_check(&s);
    for (int32_t i = 2; i < 4; i++) {
      spoil_blocks(&s, i, 2);
      s.kv_len[i] = 0;
      s.lens[i] = 0;
    }
    EXPECT_OK(scene_step(&s, &why));
    scene_check(&s);
    for (int32_t h = 0; h < 4; h++) {
      CHECK(isinf(*scene_lse(&s, 3, h)) && *scene_out(&s, 3, h) == 0, "row 3 is not the empty state");
    }
    scene_close(&s);
    scene_free(&s);
  }
}

static void case_017_stale_table_columns(void **state) {
  (void)state;
  for_each_pair(shrinking_batch);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_008_nan_in_unwritten_tail_of_v),
      cmocka_unit_test(case_010_nan_outside_the_window),
      cmocka_unit_test(case_016_table_row_not_read_past_its_end),
      cmocka_unit_test(case_017_stale_table_columns),
  };
  return cmocka_run_group_tests_name("cases_bytes", tests, NULL, NULL);
}
