/* SPDX-License-Identifier: Apache-2.0 */
/* A wrong result is never timed: with each of these faults planted (attn-faulty), `attn bench` says what is wrong and
   ends with 1, before any figure. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "command_fixture.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define POOLS "k_cache=F32[16,8,2,16]", "v_cache=F32[16,8,2,16]"
#define ATTENTION                                                                                                      \
  "op=attention", "q=F32[4,4,16]", POOLS, "block_table=I32[2,4]", "seq_lens=I32[2]", "query_start_loc=I32[3]"

static fixture fix;

static int set_up(void **state) {
  (void)state;
  const char *faulty = getenv("ATTN_FAULTY_BIN");
  if (!fixture_open(&fix) || faulty == NULL) {
    return -1;
  }
  return setenv("ATTN_BIN", faulty, 1);
}

static int tear_down(void **state) {
  (void)state;
  fixture_close(&fix);
  return 0;
}

static void test_faults(void **state) {
  (void)state;
  static const struct {
    char *fault;
    char *problem[12];
  } rows[] = {
      {"kv_head", {ATTENTION}},
      {"lse_base2", {ATTENTION}},
      {"window_left_plus", {ATTENTION, "window_left=3"}},
      {"empty_unwritten",
       {"op=attention", "q=F32[4,4,16]", POOLS, "block_table=I32[2,4]", "seq_lens=I32[2]=0,9",
        "query_start_loc=I32[3]"}},
      {"merge_swapped", {"op=merge", "out_0=F32[3,2,8]", "lse_0=F32[3,2]", "out_1=F32[3,2,8]", "lse_1=F32[3,2]"}},
      {"write_round",
       {"op=cache_write", "k=F32[9,2,8]", "v=F32[9,2,8]", "k_cache=BF16[4,4,2,8]", "v_cache=BF16[4,4,2,8]",
        "slot_mapping=I64[9]"}},
      {"gather_start", {"op=cache_gather", POOLS, "block_table=I32[2,2]", "seq_lens=I32[2]", "seq_starts=I32[2]=3,5"}},
  };
  for (size_t i = 0; i < COUNT_OF(rows); i++) {
    char *arguments[20] = {"bench", "--rounds", "1", "--backend", "CPU_ATTN"};
    size_t count = 5;
    for (size_t j = 0; j < COUNT_OF(rows[i].problem) && rows[i].problem[j] != NULL; j++) {
      arguments[count++] = rows[i].problem[j];
    }
    fixture_run_list(&fix, arguments); /* without the fault */
    if (fix.status != 0) {
      fail_msg("no fault, problem of %s: status %d: %s", rows[i].fault, fix.status, fix.err);
    }
    arguments[count++] = "--fault";
    arguments[count++] = rows[i].fault;
    fixture_run_list(&fix, arguments);
    if (fix.status != 1 || !fixture_one_line(&fix) || strcmp(fix.out, "") != 0 || strstr(fix.err, "is wrong") == NULL) {
      fail_msg("%s: status %d: %s%s", rows[i].fault, fix.status, fix.out, fix.err);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
