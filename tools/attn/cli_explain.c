/* SPDX-License-Identifier: Apache-2.0 */
/* `attn explain`: the request is parsed and checked as `attn run` does, then the library says which backend would be
   taken. Calls without a plan (cache_write, cache_gather, merge) take the device's first backend or the forced one. */
#include <string.h>

#include "json_write.h"
#include "run.h"

static void print_text(const char *op, const attn_explanation *answer) {
  printf("op: %s\n", op);
  printf("pick: %s\n", answer->pick[0] != '\0' ? answer->pick : "none");
  printf("reason: %s\n", answer->reason);
  if (answer->status == ATTN_OK) {
    printf("workspace_bytes: %llu\n", (unsigned long long)answer->workspace_bytes);
    printf("excess_workspace_bytes: %llu\n", (unsigned long long)answer->excess_workspace_bytes);
    printf("on_chip_bytes: %llu\n", (unsigned long long)answer->on_chip_bytes);
    printf("block_size: %d\n", (int)answer->block_size);
    printf("preferred_block_size: %d\n", (int)answer->preferred_block_size);
    printf("splits: %d\n", (int)answer->max_splits);
  }
  puts("backends:");
  for (int32_t i = 0; i < answer->num_rows && i < ATTN_EXPLAIN_ROWS; ++i) {
    printf("  %-16s %-10s %s\n", answer->rows[i].backend, attn_verdict_name(answer->rows[i].verdict),
           answer->rows[i].reason);
  }
}

static void print_json(const char *op, const attn_explanation *answer) {
  json_writer w;
  json_start(&w, stdout);
  json_object(&w, NULL);
  json_string(&w, "op", op);
  json_string(&w, "pick", answer->pick[0] != '\0' ? answer->pick : NULL);
  json_string(&w, "reason", answer->reason);
  if (answer->status == ATTN_OK) {
    json_unsigned(&w, "workspace_bytes", answer->workspace_bytes);
    json_unsigned(&w, "excess_workspace_bytes", answer->excess_workspace_bytes);
    json_unsigned(&w, "on_chip_bytes", answer->on_chip_bytes);
    json_integer(&w, "block_size", answer->block_size);
    json_integer(&w, "preferred_block_size", answer->preferred_block_size);
    json_integer(&w, "splits", answer->max_splits);
  }
  json_array(&w, "backends");
  for (int32_t i = 0; i < answer->num_rows && i < ATTN_EXPLAIN_ROWS; ++i) {
    json_line(&w);
    json_object(&w, NULL);
    json_string(&w, "name", answer->rows[i].backend);
    json_string(&w, "verdict", attn_verdict_name(answer->rows[i].verdict));
    json_string(&w, "reason", answer->rows[i].reason);
    json_end(&w);
  }
  json_finish(&w);
}

/* Print the answer; its status is the command's. */
static int print_answer(const cli_options *flags, const char *op, const attn_explanation *answer, cli_report *report) {
  attn_message message = {answer->status, ""};
  (flags->json ? print_json : print_text)(op, answer);
  snprintf(message.text, sizeof(message.text), "%s", answer->reason);
  return cli_library(report, answer->status, &message);
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
  return code == CLI_OK ? print_answer(flags, parsed->op->name, &answer, report) : code;
}

/* One name of the registry for a call without a plan: any built backend of the device can do it. */
static void judge_name(const attn_backend_info *info, attn_device_kind device, const attn_explanation *answer,
                       attn_explain_row *row) {
  int here = info->built && info->device == device;
  const char *part = info->plays[0] != '\0' ? info->plays : "nothing built yet";
  row->backend = info->name;
  row->verdict = info->foreign                           ? ATTN_VERDICT_FOREIGN
                 : !here                                 ? ATTN_VERDICT_NOT_BUILT
                 : strcmp(info->name, answer->pick) == 0 ? ATTN_VERDICT_TAKEN
                                                         : ATTN_VERDICT_ABLE;
  snprintf(row->reason, sizeof(row->reason), "%s%s", info->foreign ? "its part here is played by " : "",
           info->foreign ? part : info->summary);
}

static int explain_call(const attn_context *context, const cli_options *flags, const request *parsed,
                        cli_report *report) {
  attn_context_info device = ATTN_CONTEXT_INFO_INIT;
  attn_message message;
  attn_backend_info info;
  attn_explanation answer = ATTN_EXPLANATION_INIT;
  const char *name = "";
  int code = cli_library(report, attn_context_get_info(context, &device, &message), &message);
  if (code != CLI_OK) {
    return code;
  }
  answer.status = attn_select_call(context, flags->backend, &name, answer.reason, &message);
  answer.block_size = answer.preferred_block_size = parsed->block_size;
  snprintf(answer.pick, sizeof(answer.pick), "%s", name);
  if (answer.status != ATTN_OK) {
    snprintf(answer.reason, sizeof(answer.reason), "%.*s", (int)sizeof(answer.reason) - 1, message.text);
  }
  for (size_t i = 0; answer.num_rows < ATTN_EXPLAIN_ROWS && attn_backend_get(i, &info); ++i) {
    judge_name(&info, device.device, &answer, &answer.rows[answer.num_rows++]);
  }
  return print_answer(flags, parsed->op->name, &answer, report);
}

static int explain_request(const cli_options *flags, request *parsed, cli_report *report) {
  attn_context *context = NULL;
  int code = request_check(parsed, report);
  if (code == CLI_OK) {
    code = cli_make_context(flags, &context, report);
  }
  if (code == CLI_OK && (parsed->op->op == OP_ATTENTION || parsed->op->latent)) {
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
