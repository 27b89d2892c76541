/* SPDX-License-Identifier: Apache-2.0 */
/* `attn explain`: the request is parsed and checked as `attn run` does, then the library says which backend would be
   taken. Calls without a plan (cache_write, cache_gather, merge) take the device's first backend or the forced one. */
#include <string.h>

#include "run.h"

static void print_rows(const attn_explanation *answer) {
  puts("backends:");
  for (int32_t i = 0; i < answer->num_rows && i < ATTN_EXPLAIN_ROWS; ++i) {
    printf("  %-16s %-10s %s\n", answer->rows[i].backend, attn_verdict_name(answer->rows[i].verdict),
           answer->rows[i].reason);
  }
}

static int explain_attention(const attn_context *context, const cli_options *flags, const request *parsed,
                             cli_report *report) {
  attn_problem problem;
  attn_plan_limits limits;
  attn_plan_options options;
  attn_message message;
  attn_explanation answer = ATTN_EXPLANATION_INIT;
  int code = request_problem(parsed, flags, &problem, report);
  if (code != CLI_OK) {
    return code;
  }
  request_limits(parsed, &limits);
  request_plan_options(parsed, flags, &options);
  code = cli_library(report, attn_explain(context, &problem, &limits, &options, &answer, &message), &message);
  if (code != CLI_OK) {
    return code;
  }
  printf("op: %s\n", parsed->op->name);
  printf("pick: %s\n", answer.pick[0] != '\0' ? answer.pick : "none");
  printf("reason: %s\n", answer.reason);
  if (answer.status == ATTN_OK) {
    printf("workspace_bytes: %llu\n", (unsigned long long)answer.workspace_bytes);
    printf("excess_workspace_bytes: %llu\n", (unsigned long long)answer.excess_workspace_bytes);
    printf("on_chip_bytes: %llu\n", (unsigned long long)answer.on_chip_bytes);
    printf("block_size: %d\n", (int)answer.block_size);
    printf("preferred_block_size: %d\n", (int)answer.preferred_block_size);
    printf("splits: %d\n", (int)answer.max_splits);
  }
  print_rows(&answer);
  if (answer.status == ATTN_OK) {
    return CLI_OK;
  }
  snprintf(message.text, sizeof(message.text), "%s", answer.reason);
  return cli_library(report, answer.status, &message);
}

/* A call without a plan: any built backend of the device can do it. */
static int explain_call(const attn_context *context, const cli_options *flags, const request *parsed,
                        cli_report *report) {
  attn_context_info device = ATTN_CONTEXT_INFO_INIT;
  attn_message message;
  attn_backend_info info;
  char pick[32];
  char reason[ATTN_REASON_BYTES];
  int code = cli_library(report, attn_context_get_info(context, &device, &message), &message);
  if (code != CLI_OK) {
    return code;
  }
  run_name_backend(context, flags, pick, sizeof(pick), reason, sizeof(reason));
  int able = 0;
  for (size_t i = 0; attn_backend_get(i, &info); ++i) {
    able |= strcmp(info.name, pick) == 0 && info.built && info.device == device.device;
  }
  printf("op: %s\npick: %s\nreason: %s\n", parsed->op->name, able ? pick : "none", reason);
  printf("workspace_bytes: 0\nexcess_workspace_bytes: 0\non_chip_bytes: 0\nblock_size: %d\nsplits: 0\nbackends:\n",
         (int)parsed->block_size);
  for (size_t i = 0; attn_backend_get(i, &info); ++i) {
    int here = info.built && info.device == device.device;
    attn_verdict verdict = info.foreign                   ? ATTN_VERDICT_FOREIGN
                           : !here                        ? ATTN_VERDICT_NOT_BUILT
                           : strcmp(info.name, pick) == 0 ? ATTN_VERDICT_TAKEN
                                                          : ATTN_VERDICT_ABLE;
    const char *part = info.plays[0] != '\0' ? info.plays : "nothing built yet";
    printf("  %-16s %-10s %s%s\n", info.name, attn_verdict_name(verdict),
           info.foreign ? "its part here is played by " : "", info.foreign ? part : info.summary);
  }
  if (!able) {
    return cli_fail(report, CLI_BAD_INPUT,
                    "backend %.32s cannot be taken (%s); accepted: auto or a built one of the "
                    "list",
                    pick, reason);
  }
  return CLI_OK;
}

static int explain_request(const cli_options *flags, request *parsed, cli_report *report) {
  attn_context *context = NULL;
  int code = request_check(parsed, report);
  if (code == CLI_OK) {
    code = cli_make_context(flags, &context, report);
  }
  if (code == CLI_OK && parsed->op->op == OP_ATTENTION) {
    code = explain_attention(context, flags, parsed, report);
  } else if (code == CLI_OK) {
    code = explain_call(context, flags, parsed, report);
  }
  attn_context_destroy(context);
  return code;
}

int cli_explain_command(int argc, char **argv) {
  cli_options flags;
  cli_report report;
  st_file file;
  request parsed;
  int code = cli_parse_options(argc, argv, CLI_FOR_EXPLAIN, &flags, &report);
  if (code != CLI_OK) {
    return cli_print_failure("attn explain", &report, code);
  }
  if (flags.help) {
    cli_print_help("explain");
    return cli_flush("attn explain");
  }
  code = flags.input != NULL ? st_read(flags.input, &file, &report)
                             : request_from_words(flags.num_words, flags.words, &file, &report);
  if (code == CLI_OK) {
    code = request_parse(&file, &flags, &parsed, &report);
    if (code == CLI_OK) {
      code = explain_request(&flags, &parsed, &report);
      request_free(&parsed);
    }
    st_free(&file);
  }
  int flushed = cli_flush("attn explain");
  return code == CLI_OK ? flushed : cli_print_failure("attn explain", &report, code);
}
