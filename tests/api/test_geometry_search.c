/* SPDX-License-Identifier: Apache-2.0 */
/* test_geometry_search.c: every policy of attn_geometry_unify() on random groups, against a search that tries all page
 * sizes, one after the other.
 */
#include "geometry_model.h"

#include <stdio.h>

static uint64_t least_units(const model *m, int g) {
  return ((uint64_t)m->spec[g].block_size + model_unit(m, g) - 1) / model_unit(m, g);
}

/* Whether a block of so many units fits a page of `page` bytes. */
static int fits(const model *m, int g, uint64_t units, uint64_t page, uint64_t alignment) {
  if (m->spec[g].kernel_block == 0) {
    return model_kernel_bytes(m, g, units * model_unit(m, g), alignment) <= page;
  }
  return page % (units * alignment) == 0 && page / units >= model_kernel_bytes(m, g, model_unit(m, g), alignment);
}

/* The most units that fit; from the largest number that could. */
static uint64_t most_fitting(const model *m, int g, uint64_t page, uint64_t alignment) {
  uint64_t units = page / (model_kernel_bytes(m, g, 1, 1)) + 1;
  while (units > 0 && !fits(m, g, units, page, alignment)) {
    units--;
  }
  return units;
}

/* Sum of bytes a position; negative when a least block does not fit. */
static double cost(const model *m, uint64_t page, uint64_t alignment) {
  double sum = 0;
  for (int g = 0; g < m->count; g++) {
    uint64_t units = most_fitting(m, g, page, alignment);
    if (units < least_units(m, g)) {
      return -1;
    }
    sum += (double)page / ((double)units * (double)model_unit(m, g));
  }
  return sum;
}

/* What holds whatever the policy: the blocks fit, no group could have one unit more (but for KEEP), and the layout's
   numbers agree with each other. */
static void expect_sound(const model *m, uint64_t alignment) {
  uint64_t page = m->geometry.page_bytes;
  assert_int_equal(page % alignment, 0);
  for (int g = 0; g < m->count; g++) {
    const attn_group_pages *group = &m->group[g];
    uint64_t units = (uint64_t)group->block_size / model_unit(m, g);
    assert_int_equal((uint64_t)group->block_size % model_unit(m, g), 0);
    assert_true(units >= least_units(m, g) && fits(m, g, units, page, alignment));
    assert_int_equal(units,
                     m->geometry.policy == ATTN_PAGES_KEEP ? least_units(m, g) : most_fitting(m, g, page, alignment));
    assert_int_equal(group->kernel_block, m->spec[g].kernel_block > 0 ? m->spec[g].kernel_block : group->block_size);
    assert_int_equal(group->kernel_block_bytes * (uint64_t)(group->block_size / group->kernel_block), page);
    assert_int_equal(group->layer_bytes * (uint64_t)group->num_layers,
                     model_kernel_bytes(m, g, (uint64_t)group->kernel_block, alignment));
    assert_int_equal(group->token_bytes, model_kernel_bytes(m, g, 1, 1));
    assert_int_equal(group->padding_bytes, page - group->token_bytes * (uint64_t)group->block_size);
  }
}

/* The largest page of a least block. */
static uint64_t first_page(const model *m, uint64_t alignment) {
  uint64_t first = 0;
  for (int g = 0; g < m->count; g++) {
    uint64_t page = m->spec[g].kernel_block > 0
                        ? model_kernel_bytes(m, g, model_unit(m, g), alignment) * least_units(m, g)
                        : model_kernel_bytes(m, g, model_unit(m, g) * least_units(m, g), alignment);
    first = page > first ? page : first;
  }
  return first;
}

/* The page that a policy should take, by trying all of them from the least on. */
static uint64_t searched(const model *m, attn_page_policy policy, uint64_t alignment, uint64_t limit) {
  uint64_t first = first_page(m, alignment);
  uint64_t best = 0;
  uint64_t keep = 0;
  double least = 0;
  for (uint64_t page = first; page <= limit; page += alignment) {
    int exact = 1;
    int kept = 1;
    for (int g = 0; g < m->count; g++) {
      exact &= page % model_kernel_bytes(m, g, model_unit(m, g), alignment) == 0;
      kept &= fits(m, g, least_units(m, g), page, alignment);
    }
    if ((policy == ATTN_PAGES_EXACT && exact) || (policy == ATTN_PAGES_KEEP && kept)) {
      return page;
    }
    keep = keep == 0 && kept ? page : keep;
    double sum = page <= first + first / 8 || page == keep ? cost(m, page, alignment) : -1;
    if (policy == ATTN_PAGES_FILL && sum > 0 && (best == 0 || sum < least)) {
      best = page;
      least = sum;
    }
  }
  return best;
}

static void policies_against_a_search(void **state) {
  (void)state;
  uint32_t random = 20;
  int seen[4] = {0};
  for (int round = 0; round < 120; round++) {
    model m;
    model_draw(&m, &random);
    uint64_t alignment = (uint64_t)m.options.alignment;
    m.options.max_page_bytes = 40000;
    for (int policy = ATTN_PAGES_EXACT; policy <= ATTN_PAGES_KEEP; policy++) {
      uint64_t wanted = searched(&m, (attn_page_policy)policy, alignment, m.options.max_page_bytes);
      m.options.policy = (attn_page_policy)policy;
      if (wanted == 0) {
        EXPECT_STATUS(model_unify(&m), ATTN_E_RANGE, "options.max_page_bytes: 40000, accepted: ");
        continue;
      }
      EXPECT_OK(model_unify(&m));
      assert_int_equal(m.geometry.policy, policy);
      expect_sound(&m, alignment);
      seen[policy]++;
      if (policy != ATTN_PAGES_FILL) {
        assert_int_equal(m.geometry.page_bytes, wanted);
        continue;
      }
      double got = cost(&m, m.geometry.page_bytes, alignment);
      double best = cost(&m, wanted, alignment);
      CHECK(m.geometry.page_bytes == wanted, "page %llu costs %g, %llu would cost %g",
            (unsigned long long)m.geometry.page_bytes, got, (unsigned long long)wanted, best);
    }
    m.options.policy = ATTN_PAGES_AUTO;
    m.options.max_page_bytes = 0;
    EXPECT_OK(model_unify(&m));
    expect_sound(&m, alignment);
  }
  assert_true(seen[ATTN_PAGES_EXACT] > 40 && seen[ATTN_PAGES_FILL] > 100 && seen[ATTN_PAGES_KEEP] > 100);
}

/* ---- With a bound on the reuse step ------------------------------------------------------------------------------ */

static uint64_t common(uint64_t a, uint64_t b) {
  uint64_t n = a;
  while (n % b != 0) {
    n += a;
  }
  return n;
}

/* The smallest sum of bytes a position that blocks of all groups from `g` on add in this page, their sizes and `step`
   having a common multiple of at most `bound`; negative: there are none. */
static double bounded_cost(const model *m, int g, uint64_t page, uint64_t alignment, uint64_t step, uint64_t bound) {
  if (g == m->count) {
    return 0;
  }
  double best = -1;
  for (uint64_t units = least_units(m, g); units <= page / model_kernel_bytes(m, g, 1, 1) + 1; units++) {
    uint64_t next = common(step, units * model_unit(m, g));
    if (next > bound || !fits(m, g, units, page, alignment)) {
      continue;
    }
    double rest = bounded_cost(m, g + 1, page, alignment, next, bound);
    double sum = (double)page / ((double)units * (double)model_unit(m, g)) + rest;
    best = rest >= 0 && (best < 0 || sum < best) ? sum : best;
  }
  return best;
}

/* The same over the pages that FILL may take. */
static double bounded_best(const model *m, uint64_t alignment, uint64_t bound, uint64_t keep) {
  uint64_t first = first_page(m, alignment);
  double best = bounded_cost(m, 0, keep, alignment, 1, bound);
  for (uint64_t page = first; page <= first + first / 8; page += alignment) {
    double sum = bounded_cost(m, 0, page, alignment, 1, bound);
    best = sum >= 0 && (best < 0 || sum < best) ? sum : best;
  }
  return best;
}

/* What it finds obeys the bound and costs little more than the best; it finds nothing only where KEEP would not do. */
static void bounded_reuse_step(void **state) {
  (void)state;
  uint32_t random = 31;
  int found = 0;
  int refused = 0;
  double worst = 1;
  for (int round = 0; round < 80; round++) {
    model m;
    model_draw(&m, &random);
    uint64_t alignment = (uint64_t)m.options.alignment;
    m.options.max_page_bytes = 1 << 20;
    m.options.policy = ATTN_PAGES_KEEP;
    EXPECT_OK(model_unify(&m));
    uint64_t keep = m.geometry.page_bytes;
    uint64_t keep_step = m.geometry.reuse_step;
    m.options.policy = ATTN_PAGES_FILL;
    m.options.max_reuse_step = 10 + (int32_t)((random_bits(&random) >> 8) % 200);
    uint64_t bound = (uint64_t)m.options.max_reuse_step;
    double best = bounded_best(&m, alignment, bound, keep);
    harness_reset();
    attn_status status = model_unify(&m);
    if (status != ATTN_OK) {
      CHECK(status == ATTN_E_RANGE && keep_step > bound, "%s", why.text);
      refused++;
      continue;
    }
    uint64_t step = 1;
    double cost = 0;
    for (int g = 0; g < m.count; g++) {
      uint64_t units = (uint64_t)m.group[g].block_size / model_unit(&m, g);
      assert_true(units >= least_units(&m, g) && fits(&m, g, units, m.geometry.page_bytes, alignment));
      step = common(step, (uint64_t)m.group[g].block_size);
      cost += m.group[g].bytes_per_token;
    }
    assert_int_equal(step, m.geometry.reuse_step);
    assert_true(step <= bound && best > 0);
    worst = cost / best > worst ? cost / best : worst;
    found++;
  }
  (void)printf("%d bounded, at worst %.3f times the best; %d refused\n", found, worst, refused);
  assert_true(found > 40 && refused > 5 && worst <= 1.25);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(policies_against_a_search), cmocka_unit_test(bounded_reuse_step)};
  return cmocka_run_group_tests_name("geometry_search", tests, NULL, NULL);
}
