/* SPDX-License-Identifier: Apache-2.0 */
/* The help pages: purpose, usage, what it prints, flags (from the parser's own table), examples, exit status. `check`
   prints its own from its own table; here it has its line in the list. */
#include <string.h>

#include "check.h"
#include "cli.h"

typedef struct help_page {
  const char *name;
  int command; /* CLI_FOR_*; 0: the command prints its own page */
  const char *purpose;
  const char *usage;
  const char *text;
  const char *examples;
  const char *failed; /* what exit status 1 means */
} help_page;

static const char call_failed[] = "1 when a valid call failed (device, memory, input/output)";

static const help_page pages[] = {
    {"info", CLI_FOR_INFO, "what this machine and this build have: version, device, levels, backends, kernels",
     "  attn info [flags]\n",
     "With --matrix it prints which cache formats, types and features each backend serves. --json gives an object:\n"
     "version, device, device_name, threads, level, levels, caches (bytes), devices, backends, kernels; with "
     "--matrix:\n"
     "backends, rows (table, title, serves: one true or false for each backend).\n",
     "  attn info\n"
     "  attn info --matrix --json\n",
     call_failed},
    {"explain", CLI_FOR_EXPLAIN, "which backend a call would get, and why; computes nothing",
     "  attn explain IN.safetensors [flags]\n"
     "  attn explain NAME=VALUE ... [flags]\n",
     "The call is described by a file, or by words: the file's keys as KEY=VALUE, and its tensors by type and shape "
     "as\n"
     "NAME=TYPE[extents]. An I32 or I64 tensor may be given its entries too, NAME=TYPE[extents]=V,V,... (a single V\n"
     "stands for all); else seq_lens are as long as block_table allows. `attn run --describe` lists keys and tensors.\n"
     "\n"
     "Prints the backend that would be taken and why, bytes of workspace (and of these, what a forced split count\n"
     "costs beyond the automatic one) and of on-chip memory, block sizes, splits, and a line for each backend.\n"
     "--json gives an object with the same names: op, pick (null: none), reason, workspace_bytes,\n"
     "excess_workspace_bytes, on_chip_bytes, block_size, preferred_block_size, splits, backends (name, verdict, "
     "reason).\n",
     "  attn explain request.safetensors --backend CPU_ATTN\n"
     "  attn explain op=attention q=BF16[8,32,128] k_cache=BF16[64,16,8,128] v_cache=BF16[64,16,8,128] \\\n"
     "    block_table=I32[8,8] seq_lens=I32[8]=100 query_start_loc=I32[9] window_left=63\n",
     call_failed},
    {"run", CLI_FOR_RUN, "compute one call that a file describes, and write its results to a file",
     "  attn run IN.safetensors -o OUT.safetensors [flags]\n"
     "  attn run --describe [--json]\n",
     "IN is a safetensors file: tensors, and keys in its __metadata__. OUT has the results, and keys that say what "
     "ran:\n"
     "backend, backend_reason, splits, workspace_bytes. A flag beats its key. --describe --json gives an object:\n"
     "operations, keys, tensors, rows, results.\n",
     "  attn run request.safetensors -o out.safetensors\n"
     "  attn run request.safetensors -o reference.safetensors --backend REFERENCE --poison\n",
     call_failed},
    {"check", 0, NULL, NULL, NULL, NULL, NULL},
};
static const size_t num_pages = sizeof(pages) / sizeof(pages[0]);

enum { LEFT_COLUMN = 22 };

void cli_print_help_row(const char *left, const char *help) {
  if (strlen(left) > LEFT_COLUMN) {
    printf("  %s\n  %-*s  ", left, LEFT_COLUMN, "");
  } else {
    printf("  %-*s  ", LEFT_COLUMN, left);
  }
  for (; *help != '\0'; ++help) {
    putchar(*help);
    if (*help == '\n') {
      printf("  %-*s  ", LEFT_COLUMN, "");
    }
  }
  putchar('\n');
}

void cli_command_names(char *text, size_t bytes) {
  text[0] = '\0';
  for (size_t i = 0; i < num_pages; ++i) {
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%s", i > 0 ? ", " : "", pages[i].name);
  }
}

static void print_tool_page(void) {
  puts("attn: paged attention on this machine, tried, checked and timed from the command line\n"
       "\n"
       "Usage:\n"
       "  attn COMMAND [arguments]\n"
       "  attn COMMAND --help\n"
       "\n"
       "Commands:");
  for (size_t i = 0; i < num_pages; ++i) {
    cli_print_help_row(pages[i].name, pages[i].purpose != NULL ? pages[i].purpose : attn_check_purpose);
  }
  cli_print_help_row("help COMMAND", "as COMMAND --help; also -h");
  cli_print_help_row("--version", "the version of libattn");
  puts(
      "\n"
      "Environment: ATTN_BACKEND names the backend where --backend does not; ATTN_CPU caps the instruction set level.\n"
      "\n"
      "Examples:\n"
      "  attn info\n"
      "  attn check --cases 200\n"
      "\n"
      "Exit status: 0; 1 when something valid failed (device, memory, input/output, a wrong result); 2 for bad input "
      "or\n"
      "a refusal, with one line on standard error that names what was found and what is accepted.");
}

static void print_page(const help_page *page) {
  printf("attn %s: %s\n\nUsage:\n%s\n%s\nFlags:\n", page->name, page->purpose, page->usage, page->text);
  cli_print_flags(page->command);
  printf("\nExamples:\n%s\nExit status: 0; %s; 2 for bad input or a refusal,\nwith one line on standard error.\n",
         page->examples, page->failed);
}

int cli_print_help(const char *command) {
  if (command[0] == '\0') {
    print_tool_page();
    return 1;
  }
  for (size_t i = 0; i < num_pages; ++i) {
    if (strcmp(pages[i].name, command) == 0) {
      if (pages[i].command != 0) {
        print_page(&pages[i]);
      } else {
        attn_check_help();
      }
      return 1;
    }
  }
  return 0;
}
