/* SPDX-License-Identifier: Apache-2.0 */
/* 05_select_backend.c: the dry run. attn_explain() says which backend a plan would get and why every other name would
   not be it; a forced name is obeyed or refused, never replaced. */
#include <attn/attn.h>
#include <stdio.h>
#include <string.h>

/* What a name forced on this problem comes to: one line, and 1 when it is the status expected. */
static int force(attn_context *context, const attn_problem *problem, const char *name, attn_status expected) {
  attn_message message;
  const char *pick = "";
  attn_plan_options options = ATTN_PLAN_OPTIONS_INIT;
  options.backend = name;
  attn_status status = attn_select(context, problem, NULL, &options, &pick, &message);
  printf("backend \"%s\": %s: %s\n", name, attn_status_name(status), status == ATTN_OK ? pick : message.text);
  return status == expected && (status != ATTN_OK || strcmp(name, "auto") == 0 || strcmp(pick, name) == 0);
}

/* The verdict on one name. */
static attn_verdict verdict_of(const attn_explanation *explanation, const char *name) {
  for (int32_t i = 0; i < explanation->num_rows; i++) {
    if (strcmp(explanation->rows[i].backend, name) == 0) {
      return explanation->rows[i].verdict;
    }
  }
  return ATTN_VERDICT_NOT_BUILT;
}

int main(void) {
  attn_message message;
  attn_context *context = NULL;
  attn_explanation explanation = ATTN_EXPLANATION_INIT;
  attn_problem problem = ATTN_PROBLEM_INIT;
  problem.num_q_heads = 32;
  problem.num_kv_heads = 8;
  problem.qk_head_size = 128;
  problem.q_dtype = ATTN_DTYPE_BFLOAT16; /* the cache follows: k_format AUTO */
  problem.scale = attn_softmax_scale(128);
  attn_plan_limits limits = ATTN_PLAN_LIMITS_INIT;
  limits.max_tokens = 64;
  limits.max_kv_len = 32768;
  if (attn_context_create(NULL, &context, &message) != ATTN_OK ||
      attn_explain(context, &problem, &limits, NULL, &explanation, &message) != ATTN_OK) {
    (void)fprintf(stderr, "05_select_backend: %s\n", message.text);
    attn_context_destroy(context);
    return 1;
  }
  printf("pick: %s (%s)\n", explanation.pick[0] != '\0' ? explanation.pick : "none", explanation.reason);
  printf("workspace %llu bytes, blocks of %d positions, at most %d splits\n",
         (unsigned long long)explanation.workspace_bytes, (int)explanation.block_size, (int)explanation.max_splits);
  for (int32_t i = 0; i < explanation.num_rows; i++) {
    const attn_explain_row *row = &explanation.rows[i];
    printf("  %-16s %-10s %s\n", row->backend, attn_verdict_name(row->verdict), row->reason);
  }
  int right = explanation.status == ATTN_OK && verdict_of(&explanation, explanation.pick) == ATTN_VERDICT_TAKEN &&
              verdict_of(&explanation, "TRITON_ATTN") == ATTN_VERDICT_FOREIGN;
  right &= force(context, &problem, "auto", ATTN_OK);
  right &= force(context, &problem, "REFERENCE", ATTN_OK);
  right &= force(context, &problem, "TRITON_ATTN", ATTN_E_BACKEND);   /* another system's: refused, its part is named */
  right &= force(context, &problem, "PORTABLE_ATTN", ATTN_E_BACKEND); /* ours, for another device */
  right &= force(context, &problem, "FASTEST", ATTN_E_NAME);
  attn_context_destroy(context);
  return right ? 0 : 1;
}
