/* SPDX-License-Identifier: Apache-2.0 */
/* The help pages. `check` prints its own, from its option table. */
#include <string.h>

#include "cli.h"

static const char tool_help[] =
    "attn: paged attention on this machine\n"
    "\n"
    "  attn info                     version, device, levels, backends, kernels\n"
    "  attn explain IN.safetensors   which backend a call would get, and why; computes nothing\n"
    "  attn run IN.safetensors -o OUT.safetensors\n"
    "                                one call from a file\n"
    "  attn check                    every backend against the reference on random problems\n"
    "  attn COMMAND --help           more about one of them\n"
    "  attn --version\n"
    "\n"
    "Environment: ATTN_BACKEND names the backend where --backend does not; ATTN_CPU caps the instruction set level.\n"
    "Exit status: 0; 1 when a valid call failed (device, memory, input/output); 2 for bad input or a refusal, with "
    "one\n"
    "line on standard error.\n";

static const char call_flags[] =
    "  --device cpu|cuda:N|opencl:N  where (default cpu)\n"
    "  --backend NAME                this backend or a refusal; beats ATTN_BACKEND\n"
    "  --batch-invariant             a row's bits depend on nothing but its own q, keys and values\n"
    "  --splits N                    pieces that each row's keys are cut into, 0 automatic; beats the key num_splits\n"
    "  --threads N                   threads of a call, 1 to 1024 (default 1)\n"
    "  --unchecked                   bad slots and block ids are skipped, not errors; beats the key checked\n"
    "  --poison                      fill every byte that the call does not own with NaN first\n";

static const char run_help[] =
    "attn run IN.safetensors -o OUT.safetensors [flags]: compute the call that IN describes\n"
    "\n"
    "  -o OUT.safetensors            the results: written beside and renamed, so it is whole or untouched; may be IN\n"
    "  --describe                    print the format: operations, keys, tensors, rows, results\n";

static const char explain_help[] =
    "attn explain IN.safetensors [flags]: the dry run of attn run; takes its flags, computes nothing\n"
    "attn explain NAME=VALUE ... [flags]: the same without a file; keys as in a file, tensors by type and shape:\n"
    "  attn explain op=attention q=BF16[8,32,128] k_cache=BF16[64,16,8,128] v_cache=BF16[64,16,8,128] \\\n"
    "    block_table=I32[8,8] seq_lens=I32[8] query_start_loc=I32[9]\n"
    "\n"
    "Prints the backend that would be taken and why, bytes of workspace (and of these, what a forced split count "
    "costs\n"
    "beyond the automatic one) and of on-chip memory, block sizes, splits, and one line for each backend.\n"
    "\n";

static const char info_help[] =
    "attn info [flags]: version, device, instruction set levels, backends, kernels\n"
    "\n"
    "  --device cpu|cuda:N|opencl:N  which device (default cpu)\n"
    "  --threads N                   threads of the context\n"
    "  --matrix                      what each backend of this build serves, as Markdown, asked from the library\n";

static const char check_help[] =
    "attn check [flags]: every backend of this machine against the reference; `attn check --help` lists its flags\n";

int cli_print_help(const char *command) {
  if (command[0] == '\0') {
    fputs(tool_help, stdout);
  } else if (strcmp(command, "run") == 0) {
    fputs(run_help, stdout);
    fputs(call_flags, stdout);
  } else if (strcmp(command, "explain") == 0) {
    fputs(explain_help, stdout);
    fputs(call_flags, stdout);
  } else if (strcmp(command, "info") == 0) {
    fputs(info_help, stdout);
  } else if (strcmp(command, "check") == 0) {
    fputs(check_help, stdout);
  } else {
    return 0;
  }
  return 1;
}
