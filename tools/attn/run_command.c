/* SPDX-License-Identifier: Apache-2.0 */
/* `attn run`: read the file, parse and check the request, let its operation compute, write the result. Nothing is
   written before the call has succeeded. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

int run_add_output(const run_job *job, const char *name, attn_dtype dtype, int32_t rank, const int64_t *shape,
                   st_tensor **tensor) {
  run_result *result = job->result;
  st_tensor *made = &result->tensors[result->num_tensors];
  memset(made, 0, sizeof(*made));
  made->name = name;
  made->rank = rank;
  memcpy(made->shape, shape, (size_t)rank * sizeof(*shape));
  if (!st_dtype_from_name(st_name_of(dtype), &made->dtype) ||
      !st_tensor_bytes(made->dtype, rank, shape, &made->bytes)) {
    return cli_fail(job->report, CLI_BAD_INPUT, "the result %s does not fit 64 bits", name);
  }
  made->data = cli_alloc(made->bytes, job->flags->poison);
  if (made->data == NULL) {
    return cli_fail(job->report, CLI_FAILED, "no memory for the result %s of %llu bytes", name,
                    (unsigned long long)made->bytes);
  }
  made->owned = 1;
  ++result->num_tensors;
  *tensor = made;
  return CLI_OK;
}

void run_add_input(const run_job *job, const st_tensor *tensor) {
  st_tensor *made = &job->result->tensors[job->result->num_tensors++];
  *made = *tensor;
  made->owned = 0;
}

int run_name_backend(const attn_context *context, const cli_options *flags, char *name, size_t name_bytes, char *reason,
                     cli_report *report) {
  attn_message message;
  const char *chosen = "";
  int code = cli_library(report, attn_select_call(context, flags->backend, &chosen, reason, &message), &message);
  snprintf(name, name_bytes, "%s", chosen);
  return code;
}

const run_steps *run_steps_of(const request *parsed) {
  static const run_steps *const known[] = {&run_attention, &run_cache_write, &run_cache_gather, &run_merge};
  static const run_steps *const latent[] = {&run_mla_mqa, &run_mla_mha, &run_mla_layer, &run_latent_write,
                                            &run_latent_gather};
  for (size_t l = 0; parsed->latent && l < sizeof(latent) / sizeof(latent[0]); ++l) {
    if (latent[l]->op == parsed->op->op) {
      return latent[l];
    }
  }
  size_t i = 0;
  while (i + 1 < sizeof(known) / sizeof(known[0]) && known[i]->op != parsed->op->op) {
    ++i;
  }
  return known[i];
}

static int compute(const run_job *job) {
  const run_steps *steps = run_steps_of(job->request);
  void *call = NULL;
  int code = steps->open(job, &call);
  if (code == CLI_OK) {
    code = steps->compute(job, call);
  }
  if (code == CLI_OK) {
    steps->collect(job, call);
  }
  if (call != NULL) {
    steps->close(call);
  }
  return code;
}

void run_result_free(run_result *result) {
  for (size_t i = 0; i < result->num_tensors; ++i) {
    if (result->tensors[i].owned) {
      free(result->tensors[i].data);
    }
  }
  result->num_tensors = 0;
}

static int write_result(const run_job *job) {
  run_result *result = job->result;
  char splits[16];
  char workspace[24];
  if (result->backend[0] == '\0') {
    int code = run_name_backend(job->context, job->flags, result->backend, sizeof(result->backend), result->reason,
                                job->report);
    if (code != CLI_OK) {
      return code;
    }
  }
  snprintf(splits, sizeof(splits), "%d", (int)result->splits);
  snprintf(workspace, sizeof(workspace), "%llu", (unsigned long long)result->workspace_bytes);
  const st_entry metadata[] = {{"backend", result->backend},
                               {"backend_reason", result->reason},
                               {"splits", splits},
                               {"workspace_bytes", workspace}};
  return st_write(job->flags->output, result->tensors, result->num_tensors, metadata,
                  sizeof(metadata) / sizeof(metadata[0]), job->report);
}

static int run_request(const cli_options *flags, const request *parsed, cli_report *report) {
  run_result result;
  memset(&result, 0, sizeof(result));
  run_job job = {.flags = flags, .request = parsed, .result = &result, .report = report};
  int code = cli_make_context(flags, &job.context, report);
  if (code == CLI_OK) {
    code = compute(&job);
  }
  if (code == CLI_OK) {
    code = write_result(&job);
  }
  run_result_free(&result);
  attn_context_destroy(job.context);
  return code;
}

int run_request_file(const cli_options *flags, cli_report *report) {
  st_file file;
  request parsed;
  int code = st_read(flags->input, &file, report);
  if (code != CLI_OK) {
    return code;
  }
  code = request_parse(&file, flags, &parsed, report);
  if (code == CLI_OK) {
    code = request_check(&parsed, report);
    if (code == CLI_OK) {
      code = run_request(flags, &parsed, report);
    }
    request_free(&parsed);
  }
  st_free(&file);
  return code;
}

int cli_run_command(int argc, char **argv) {
  cli_options flags;
  cli_report report;
  int code = cli_parse_options(argc, argv, CLI_FOR_RUN, &flags, &report);
  if (code != CLI_OK) {
    return cli_print_failure("attn run", &report, code);
  }
  if (flags.help) {
    cli_print_help("run");
    return cli_flush("attn run");
  }
  if (flags.describe) {
    request_describe(flags.json);
    return cli_flush("attn run");
  }
  code = run_request_file(&flags, &report);
  return code == CLI_OK ? CLI_OK : cli_print_failure("attn run", &report, code);
}
