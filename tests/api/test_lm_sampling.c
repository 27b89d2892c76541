/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sampling of attn-lm: what each filter keeps against brute force that knows no order and no shortcut, on 1,000 random
 * rows of logits each, ties included; the draw's frequencies; and that a stream depends on seed and index alone.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sampler.h"

#define ROWS 1000
#define MOST 300

static uint64_t state_of_rows;

static uint32_t next(void) {
  state_of_rows = state_of_rows * UINT64_C(6364136223846793005) + 1442695040888963407u;
  return (uint32_t)(state_of_rows >> 33);
}

static double uniform(void) {
  return (double)next() / 2147483648.0;
}

typedef struct row {
  int32_t count;
  float logits[MOST];
  double temperature;
  double probability[MOST]; /* by id, at the temperature */
  sampler_candidate candidates[MOST];
} row;

/* Every third row has coarse logits, so that many are equal; some have ids that cannot be chosen. */
static void make_row(row *r, int number) {
  r->count = 1 + (int32_t)(next() % MOST);
  r->temperature = 0.1 + 2.0 * uniform();
  for (int32_t i = 0; i < r->count; i++) {
    const double value = 16 * (uniform() + uniform() + uniform() - 1.5);
    r->logits[i] = (float)(number % 3 == 0 ? floor(value) : value);
    if (number % 7 == 0 && i > 0 && next() % 4 == 0) {
      r->logits[i] = -INFINITY;
    }
  }
  float best = r->logits[0];
  for (int32_t i = 1; i < r->count; i++) {
    best = r->logits[i] > best ? r->logits[i] : best;
  }
  double total = 0;
  for (int32_t i = 0; i < r->count; i++) {
    const float scaled = (float)((double)r->logits[i] / r->temperature);
    r->probability[i] = exp((double)scaled - (double)(float)((double)best / r->temperature));
    total += r->probability[i];
  }
  for (int32_t i = 0; i < r->count; i++) {
    r->probability[i] /= total;
  }
  sampler_sort(r->logits, r->count, r->temperature, r->candidates);
}

/* Whether id a comes before id b: by the scaled logit, equals by id. */
static bool before(const row *r, int32_t a, int32_t b) {
  const float x = (float)((double)r->logits[a] / r->temperature);
  const float y = (float)((double)r->logits[b] / r->temperature);
  return x != y ? x > y : a < b;
}

static int32_t ahead_of(const row *r, int32_t id) {
  int32_t ahead = 0;
  for (int32_t i = 0; i < r->count; i++) {
    ahead += i != id && before(r, i, id);
  }
  return ahead;
}

static bool kept(const row *r, size_t count, int32_t id) {
  for (size_t i = 0; i < count; i++) {
    if (r->candidates[i].id == id) {
      return true;
    }
  }
  return false;
}

static void check_kept(const row *r, size_t count, const bool *expected, const char *filter, int number) {
  assert_true(count >= 1 && count <= (size_t)r->count);
  for (int32_t i = 0; i < r->count; i++) {
    if (kept(r, count, i) != expected[i]) {
      fail_msg("%s, row %d: id %d is %s", filter, number, i, expected[i] ? "missing" : "kept");
    }
  }
}

static void test_top_k(void **state) {
  (void)state;
  state_of_rows = 1;
  for (int number = 0; number < ROWS; number++) {
    row r;
    bool expected[MOST];
    make_row(&r, number);
    const int32_t k = (int32_t)(next() % (MOST + 20));
    for (int32_t i = 0; i < r.count; i++) {
      expected[i] = k == 0 || ahead_of(&r, i) < k;
    }
    check_kept(&r, sampler_top_k(r.candidates, (size_t)r.count, k), expected, "top-k", number);
  }
}

/* An id is kept while those ahead of it fall short of p. A sum within rounding of p is drawn again. */
static void test_top_p(void **state) {
  (void)state;
  state_of_rows = 2;
  for (int number = 0; number < ROWS; number++) {
    row r;
    bool expected[MOST];
    bool close = false;
    make_row(&r, number);
    const double p = number % 10 == 0 ? 1 : 0.001 + 0.998 * uniform();
    for (int32_t i = 0; i < r.count; i++) {
      double ahead = 0;
      for (int32_t j = 0; j < r.count; j++) {
        ahead += j != i && before(&r, j, i) ? r.probability[j] : 0;
      }
      expected[i] = p >= 1 || ahead < p;
      close = close || (p < 1 && fabs(ahead - p) < 1e-12);
    }
    if (close) {
      number--;
      continue;
    }
    check_kept(&r, sampler_top_p(r.candidates, (size_t)r.count, p), expected, "top-p", number);
  }
}

static void test_min_p(void **state) {
  (void)state;
  state_of_rows = 3;
  for (int number = 0; number < ROWS; number++) {
    row r;
    bool expected[MOST];
    bool close = false;
    make_row(&r, number);
    const double p = number % 10 == 0 ? 1 : number % 10 == 1 ? 0 : pow(10, -4 * uniform());
    double best = 0;
    for (int32_t i = 0; i < r.count; i++) {
      best = r.probability[i] > best ? r.probability[i] : best;
    }
    for (int32_t i = 0; i < r.count; i++) {
      expected[i] = r.probability[i] >= p * best;
      close = close || (p > 0 && p < 1 && fabs(r.probability[i] / best - p) < 1e-12);
    }
    if (close) {
      number--;
      continue;
    }
    check_kept(&r, sampler_min_p(r.candidates, (size_t)r.count, p), expected, "min-p", number);
  }
}

/* Penalty against a direct reading of its definition, ids repeated. */
static void test_penalty(void **state) {
  (void)state;
  state_of_rows = 4;
  for (int number = 0; number < ROWS; number++) {
    row r;
    float found[MOST];
    int32_t ids[40];
    make_row(&r, number);
    memcpy(found, r.logits, sizeof found);
    const double penalty = 0.5 + 1.5 * uniform();
    const size_t count = next() % 40;
    for (size_t i = 0; i < count; i++) {
      ids[i] = (int32_t)(next() % (uint32_t)r.count);
    }
    sampler_penalise(found, ids, count, penalty);
    for (int32_t i = 0; i < r.count; i++) {
      bool in_list = false;
      for (size_t j = 0; j < count; j++) {
        in_list = in_list || ids[j] == i;
      }
      const double logit = (double)r.logits[i];
      const double expected = !in_list ? logit : logit > 0 ? logit / penalty : logit * penalty;
      assert_true(found[i] == (float)expected);
    }
  }
}

static void choose(sampler *s, const row *r, const sampler_history *history, sampler_stream *stream, int32_t *id) {
  attn_message message = {ATTN_OK, ""};
  assert_int_equal(sampler_choose(s, r->logits, history, stream, id, &message), ATTN_OK);
}

/* Frequencies of 20,000 draws against the filtered probabilities: six standard deviations and one count. */
static void test_draws(void **state) {
  (void)state;
  enum { DRAWS = 20000 };
  state_of_rows = 5;
  row r;
  do {
    make_row(&r, 1);
  } while (r.count < 50);
  const sampler_options options = {r.temperature, 20, 0.95, 0.01, 1, 9};
  const sampler_history none = {NULL, 0, NULL, 0};
  sampler s;
  assert_int_equal(sampler_create(&options, r.count, &s, NULL), ATTN_OK);
  size_t count = sampler_top_k(r.candidates, (size_t)r.count, options.top_k);
  count = sampler_top_p(r.candidates, count, options.top_p);
  count = sampler_min_p(r.candidates, count, options.min_p);
  double total = 0;
  for (size_t i = 0; i < count; i++) {
    total += r.candidates[i].weight;
  }
  int hits[MOST] = {0};
  sampler_stream stream = sampler_stream_for(options.seed, 0);
  for (int i = 0; i < DRAWS; i++) {
    int32_t id = -1;
    choose(&s, &r, &none, &stream, &id);
    assert_true(id >= 0 && id < r.count);
    hits[id]++;
  }
  int drawn = 0;
  for (size_t i = 0; i < count; i++) {
    const double p = r.candidates[i].weight / total;
    const int found = hits[r.candidates[i].id];
    assert_true(fabs(found - DRAWS * p) <= 6 * sqrt(DRAWS * p * (1 - p)) + 1);
    drawn += found;
  }
  assert_int_equal(drawn, DRAWS);
  sampler_free(&s);
}

/* Greedy: the best id, the lowest of equals, after the penalty over both parts of the history. */
static void test_greedy(void **state) {
  (void)state;
  row r = {.count = 5, .logits = {1, 4, 4, 2, -1}};
  sampler_options options = {0, 0, 1, 0, 1, 0};
  const int32_t prompt[] = {1, 1, 0};
  const int32_t output[] = {2, 1, 2};
  const sampler_history history = {prompt, 3, output, 3};
  sampler_stream stream = sampler_stream_for(0, 0);
  const uint64_t untouched = stream.state;
  sampler s;
  int32_t id = -1;
  assert_int_equal(sampler_create(&options, r.count, &s, NULL), ATTN_OK);
  choose(&s, &r, &history, &stream, &id);
  assert_int_equal(id, 1);
  s.options.repetition_penalty = 1.9; /* 4 / 1.9 is still the best, 4 / 1.9^2 would not be */
  choose(&s, &r, &history, &stream, &id);
  assert_int_equal(id, 1);
  s.options.repetition_penalty = 2.1;
  choose(&s, &r, &history, &stream, &id);
  assert_int_equal(id, 3);
  assert_true(stream.state == untouched);
  r.logits[3] = NAN;
  attn_message message = {ATTN_OK, ""};
  assert_int_equal(sampler_choose(&s, r.logits, &history, &stream, &id, &message), ATTN_E_RANGE);
  sampler_free(&s);
}

static void test_streams(void **state) {
  (void)state;
  sampler_stream a = sampler_stream_for(7, 3);
  sampler_stream again = sampler_stream_for(7, 3);
  sampler_stream other_index = sampler_stream_for(7, 4);
  sampler_stream other_seed = sampler_stream_for(8, 3);
  int equal = 0;
  double sum = 0;
  for (int i = 0; i < 10000; i++) {
    const double x = sampler_draw(&a);
    assert_true(x >= 0 && x < 1);
    assert_true(x == sampler_draw(&again));
    equal += x == sampler_draw(&other_index);
    equal += x == sampler_draw(&other_seed);
    sum += x;
  }
  assert_int_equal(equal, 0);
  assert_true(fabs(sum / 10000 - 0.5) < 6 * sqrt(1.0 / 12 / 10000));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_top_k),   cmocka_unit_test(test_top_p), cmocka_unit_test(test_min_p),
      cmocka_unit_test(test_penalty), cmocka_unit_test(test_draws), cmocka_unit_test(test_greedy),
      cmocka_unit_test(test_streams),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
