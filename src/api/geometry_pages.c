/* SPDX-License-Identifier: Apache-2.0 */
/* geometry_pages.c: see geometry_pages.h. Sizes saturate at 2^64 - 1, which is beyond every limit. */
#include "api/geometry_pages.h"

#include "core/arithmetic.h"

typedef attn_pages_member member;
typedef attn_pages_search search;
typedef attn_pages_choice choice;

/* Divisions that FILL may spend on its search: some ms. */
#define MAX_DIVISIONS ((uint64_t)1 << 21)

/* What a search by halves costs, in divisions. */
#define HALVES 128

/* The cost of what will not do. */
#define NO_COST 1e200

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static uint64_t times(uint64_t a, uint64_t b) {
  uint64_t r = 0;
  return attn_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

static uint64_t plus(uint64_t a, uint64_t b) {
  uint64_t r = 0;
  return attn_add_overflow(a, b, &r) ? UINT64_MAX : r;
}

uint64_t attn_pages_up_to(uint64_t n, uint64_t step) {
  return times(n / step + (n % step != 0), step);
}

static uint64_t common_multiple(uint64_t a, uint64_t b) {
  uint64_t x = a;
  uint64_t y = b;
  while (y != 0) {
    uint64_t rest = x % y;
    x = y;
    y = rest;
  }
  return times(a / x, b);
}

/* The largest divisor of n that is at most `most`; both at least 1. */
static uint64_t largest_divisor(uint64_t n, uint64_t most) {
  uint64_t best = 1;
  if (most >= n) {
    return n;
  }
  if (most < n / most) { /* below the root */
    for (best = most; n % best != 0; best--) {
    }
    return best;
  }
  for (uint64_t d = 1; d <= n / d; d++) {
    if (n % d == 0 && n / d <= most) {
      return n / d;
    }
    best = n % d == 0 ? d : best;
  }
  return best;
}

/* Divisions that largest_divisor() makes at most, roughly. */
static uint64_t divisions(uint64_t n, uint64_t most) {
  uint64_t root = 1;
  while (root < n / root) {
    root *= 2;
  }
  return most < root ? most : root;
}

/* ---- Sizes of a group -------------------------------------------------------------------------------------------- */

uint64_t attn_pages_layer_bytes(const search *s, const member *m, uint64_t positions) {
  uint64_t bytes = 0;
  for (int i = 0; i < 4; i++) {
    bytes = plus(bytes, attn_pages_up_to(times(m->part[i], positions), s->alignment));
  }
  return bytes;
}

static uint64_t kernel_bytes(const search *s, const member *m, uint64_t positions) {
  return times(attn_pages_layer_bytes(s, m, positions), m->num_layers);
}

static uint64_t unit_bytes(const search *s, const member *m) {
  return kernel_bytes(s, m, (uint64_t)m->unit);
}

/* The page of a block of so many units, without padding. */
static uint64_t page_of(const search *s, const member *m, uint64_t units) {
  return m->is_fixed ? times(unit_bytes(s, m), units) : kernel_bytes(s, m, times(units, (uint64_t)m->unit));
}

/* Units that fit a page of `bytes` side by side, whether or not the page can be cut into as many equal parts. */
static uint64_t units_beside(const search *s, const member *m, uint64_t bytes) {
  uint64_t most = (uint64_t)(INT32_MAX / m->unit);
  if (m->is_fixed) {
    uint64_t fit = bytes / unit_bytes(s, m);
    return fit < most ? fit : most;
  }
  uint64_t low = 0; /* fits */
  uint64_t high = most + 1;
  while (high - low > 1) {
    uint64_t middle = low + (high - low) / 2;
    if (page_of(s, m, middle) <= bytes) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* The most units that a block can have in a page of `bytes`, a multiple of the alignment; 0: not one fits. */
static uint64_t most_units(const search *s, const member *m, uint64_t bytes) {
  uint64_t fit = units_beside(s, m, bytes);
  return fit == 0 || !m->is_fixed ? fit : largest_divisor(bytes / s->alignment, fit);
}

/* The member whose least block is the largest page. */
static const member *largest(const search *s) {
  const member *found = &s->member[0];
  for (int32_t g = 1; g < s->num_groups; g++) {
    const member *m = &s->member[g];
    found = page_of(s, m, m->least) > page_of(s, found, found->least) ? m : found;
  }
  return found;
}

/* ---- Choices ----------------------------------------------------------------------------------------------------- */

/* Cost and reuse step of a page and its units. */
static void judge(const search *s, choice *c) {
  int is_good = c->page <= s->max_page_bytes;
  double cost = 0.0;
  c->reuse_step = 1;
  for (int32_t g = 0; g < s->num_groups; g++) {
    const member *m = &s->member[g];
    uint64_t units = c->units[g] < m->least ? m->least : c->units[g];
    is_good &= c->units[g] == units;
    cost += (double)c->page / ((double)units * (double)m->unit);
    c->reuse_step = common_multiple(c->reuse_step, times(units, (uint64_t)m->unit));
  }
  is_good &= s->max_reuse_step == 0 || c->reuse_step <= s->max_reuse_step;
  c->cost = is_good ? cost : NO_COST;
}

static void take_better(const search *s, choice *best, choice *c) {
  judge(s, c);
  if (c->cost < best->cost || (c->cost == best->cost && c->cost < NO_COST && c->page < best->page)) {
    c->policy = best->policy;
    *best = *c;
  }
}

/* The smallest page that holds the units chosen, and that the numbers of kernel blocks divide. */
static void fit_page(const search *s, choice *c) {
  uint64_t step = s->alignment;
  uint64_t page = 0;
  for (int32_t g = 0; g < s->num_groups; g++) {
    const member *m = &s->member[g];
    uint64_t bytes = page_of(s, m, c->units[g]);
    page = bytes > page ? bytes : page;
    step = m->is_fixed ? common_multiple(step, times(s->alignment, c->units[g])) : step;
  }
  c->page = attn_pages_up_to(page, step);
}

static void keep(const search *s, choice *c) {
  for (int32_t g = 0; g < s->num_groups; g++) {
    c->units[g] = s->member[g].least;
  }
  fit_page(s, c);
}

/* Page 2^64 - 1 where a block would have too many positions. */
static void exact(const search *s, choice *c) {
  const member *m = largest(s);
  uint64_t step = 1;
  for (int32_t g = 0; g < s->num_groups; g++) {
    step = common_multiple(step, unit_bytes(s, &s->member[g]));
  }
  c->page = attn_pages_up_to(page_of(s, m, m->least), step);
  for (int32_t g = 0; g < s->num_groups; g++) {
    uint64_t most = (uint64_t)(INT32_MAX / s->member[g].unit);
    c->page = c->page / unit_bytes(s, &s->member[g]) > most ? UINT64_MAX : c->page;
  }
  for (int32_t g = 0; g < s->num_groups && c->page <= ATTN_MAX_PAGE_BYTES; g++) {
    c->units[g] = most_units(s, &s->member[g], c->page);
  }
}

/* ---- FILL -------------------------------------------------------------------------------------------------------- */

/* The largest blocks that a page of this size holds. */
static void fill_page(const search *s, uint64_t page, choice *best) {
  choice c = {.page = page};
  for (int32_t g = 0; g < s->num_groups; g++) {
    c.units[g] = most_units(s, &s->member[g], page);
  }
  take_better(s, best, &c);
}

/* Pages of all multiples of the alignment from `first` to `last`. Where they are too many, those that the largest
   group's kernel blocks divide, or as many of these as can be tried. */
static void fill_any(const search *s, uint64_t first, uint64_t last, choice *best) {
  const member *anchor = largest(s);
  uint64_t work = 1;
  for (int32_t g = 0; g < s->num_groups; g++) {
    const member *m = &s->member[g];
    work += m->is_fixed ? divisions(first / s->alignment, first / unit_bytes(s, m)) : HALVES;
  }
  uint64_t most = MAX_DIVISIONS / work + 1;
  uint64_t step = s->alignment;
  if ((last - first) / step >= most && anchor->is_fixed) {
    step *= anchor->least;
  }
  step = times(step, (last - first) / step / most + 1);
  for (uint64_t page = first; page <= last; page += step) {
    fill_page(s, page, best);
  }
}

/* The cost of blocks in the smallest page that they fit. Pages beyond `limit` cost more than any other, by their
   size. */
static double weigh(const search *s, uint64_t limit, choice *c) {
  fit_page(s, c);
  judge(s, c);
  return c->page > limit ? NO_COST * ((double)c->page / (double)limit) : c->cost;
}

/* Blocks that divide `reuse_step`: at first as large as a page of `limit` holds them, then each smaller as long as that
   saves bytes. */
static void fill_step(const search *s, uint64_t reuse_step, uint64_t limit, choice *best) {
  choice c = {.page = 0};
  for (int32_t g = 0; g < s->num_groups; g++) {
    uint64_t fit = units_beside(s, &s->member[g], limit);
    c.units[g] = fit == 0 ? 1 : largest_divisor(reuse_step / (uint64_t)s->member[g].unit, fit);
  }
  double cost = weigh(s, limit, &c);
  for (int32_t g = 0; g < s->num_groups; g++) {
    const member *m = &s->member[g];
    uint64_t least = c.units[g];
    while (least > m->least) {
      choice smaller = c;
      least = largest_divisor(reuse_step / (uint64_t)m->unit, least - 1);
      smaller.units[g] = least;
      double less = weigh(s, limit, &smaller);
      if (least >= m->least && less < cost) {
        c = smaller;
        cost = less;
      }
    }
  }
  if (cost < NO_COST) {
    take_better(s, best, &c);
  }
}

/* Reuse steps up to the largest accepted one; those up to its half divide greater ones. */
static void fill_bounded(const search *s, uint64_t first, uint64_t last, choice *best) {
  uint64_t unit = 1;
  uint64_t work = 1;
  for (int32_t g = 0; g < s->num_groups; g++) {
    const member *m = &s->member[g];
    unit = common_multiple(unit, (uint64_t)m->unit);
    work += 2 * divisions(s->max_reuse_step / (uint64_t)m->unit, last / unit_bytes(s, m)) +
            (m->is_fixed ? 0 : 2 * HALVES) + 8 * (uint64_t)s->num_groups;
  }
  uint64_t least = s->max_reuse_step / 2 / unit; /* in units, excluded */
  uint64_t most = s->max_reuse_step / unit;
  uint64_t stride = (most - least) / (MAX_DIVISIONS / work + 1) + 1;
  for (uint64_t n = most; n > least; n = n - least > stride ? n - stride : 0) {
    fill_step(s, n * unit, last, best);
    fill_step(s, n * unit, first, best);
  }
}

static void fill(const search *s, choice *best) {
  const member *anchor = largest(s);
  uint64_t first = page_of(s, anchor, anchor->least);
  uint64_t last = first + first / 8 < s->max_page_bytes ? first + first / 8 : s->max_page_bytes;
  keep(s, best);
  judge(s, best);
  if (first > last) {
    return;
  }
  fill_page(s, best->page, best);
  fill_any(s, first, last, best);
  if (s->max_reuse_step != 0) {
    fill_bounded(s, first, last, best);
  }
}

/* ---- The choice -------------------------------------------------------------------------------------------------- */

static attn_status accept(const search *s, choice *c, const char *what, attn_message *message) {
  if (c->page > ATTN_MAX_PAGE_BYTES) {
    return attn_fail(message, ATTN_E_OVERFLOW,
                     "specs: %s has more than %llu bytes or 2147483647 positions, the most that are served", what,
                     (unsigned long long)ATTN_MAX_PAGE_BYTES);
  }
  if (c->page > s->max_page_bytes) {
    return attn_fail(message, ATTN_E_RANGE, "options.max_page_bytes: %llu, accepted: %llu or more (%s)",
                     (unsigned long long)s->max_page_bytes, (unsigned long long)c->page, what);
  }
  judge(s, c);
  if (s->max_reuse_step != 0 && c->reuse_step > s->max_reuse_step) {
    return attn_fail(message, ATTN_E_RANGE, "options.max_reuse_step: %llu, accepted: 0, or %llu or more (%s)",
                     (unsigned long long)s->max_reuse_step, (unsigned long long)c->reuse_step, what);
  }
  return ATTN_OK;
}

attn_status attn_pages_choose(const search *given, attn_page_policy policy, choice *made, attn_message *message) {
  search s = *given;
  choice all_exact = {.policy = ATTN_PAGES_EXACT};
  *made = (choice){.policy = policy};
  keep(&s, made);
  if (made->page > ATTN_MAX_PAGE_BYTES) {
    return accept(&s, made, "the page of the least blocks", message);
  }
  if (s.max_page_bytes == 0) {
    s.max_page_bytes = 2 * made->page < ATTN_MAX_PAGE_BYTES ? 2 * made->page : ATTN_MAX_PAGE_BYTES;
  }
  exact(&s, &all_exact);
  if (policy == ATTN_PAGES_EXACT || (policy == ATTN_PAGES_AUTO && accept(&s, &all_exact, "", NULL) == ATTN_OK)) {
    *made = all_exact;
    return accept(&s, made, "the page that every group fills, where FILL would pad", message);
  }
  if (policy != ATTN_PAGES_KEEP) {
    made->policy = ATTN_PAGES_FILL;
    fill(&s, made);
  }
  return accept(&s, made, "the page of the least blocks", message);
}
