/* SPDX-License-Identifier: Apache-2.0 */
/* The help pages: purpose, usage, what it prints, flags (from the parser's own table), examples, exit status. `check`
   prints its own from its own table; here it has its line in the list. */
#include <string.h>

#include "check.h"
#include "cli.h"
#include "help_text.h"

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
     "With --matrix it prints which cache formats, types and features each backend serves.\n\n"
     "--json gives an object: version, device, device_index, device_name, threads, level, levels, caches (l1d_bytes, "
     "l2_bytes, l3_bytes; 0: unknown), devices (kind, built, found), backends (name, device, foreign, built, plays, "
     "summary), kernels (operation, types, heads, level, in_use, symbol); with --matrix: backends, rows (table, title, "
     "serves: true or false for each backend).",
     "  attn info\n"
     "  attn info --matrix --json\n",
     call_failed},
    {"explain", CLI_FOR_EXPLAIN, "which backend a call would get, and why; computes nothing",
     "  attn explain IN.safetensors [flags]\n"
     "  attn explain NAME=VALUE ... [flags]\n",
     "The call is described by a file, or by words: the file's keys as KEY=VALUE, its tensors by type and shape as "
     "NAME=TYPE[extents], and the entries of an I32 or I64 tensor, where they matter, behind it: "
     "NAME=TYPE[extents]=V,V,... (a single V stands for all). Without them seq_lens are as long as block_table allows. "
     "`attn run --describe` lists keys and tensors.\n\n"
     "Prints the backend that would be taken and why, bytes of workspace (and of these, what a forced split count "
     "costs "
     "beyond the automatic one) and of on-chip memory, block sizes, splits, and a line for each backend.\n\n"
     "--json gives an object with the same names: op, pick (null: none), reason, workspace_bytes, "
     "excess_workspace_bytes, on_chip_bytes, block_size, preferred_block_size, splits, backends (name, verdict, "
     "reason).",
     "  attn explain request.safetensors --backend CPU_ATTN\n"
     "  attn explain op=attention q=BF16[8,32,128] k_cache=BF16[64,16,8,128] v_cache=BF16[64,16,8,128] \\\n"
     "    block_table=I32[8,8] seq_lens=I32[8]=100 query_start_loc=I32[9] window_left=63\n",
     call_failed},
    {"run", CLI_FOR_RUN, "compute one call that a file describes, and write its results to a file",
     "  attn run IN.safetensors -o OUT.safetensors [flags]\n"
     "  attn run --describe [--json]\n",
     "IN is a safetensors file: tensors, and keys in its __metadata__. OUT has the results, and keys that say what "
     "ran: "
     "backend, backend_reason, splits, workspace_bytes. A flag beats its key.\n\n"
     "--describe --json gives an object: operations, keys, tensors, rows, results.",
     "  attn run request.safetensors -o out.safetensors\n"
     "  attn run request.safetensors -o reference.safetensors --backend REFERENCE --poison\n",
     call_failed},
    {"check", 0, NULL, NULL, NULL, NULL, NULL},
    {"bench", CLI_FOR_BENCH, "how fast calls are, as a fraction of what this machine can do at most",
     "  attn bench [--filter TEXT] [flags]\n"
     "  attn bench NAME=VALUE ... [flags]\n"
     "  attn bench IN.safetensors [flags]\n",
     "Measures a list of built-in cases (decode, extend, mixed, prefill, encoder, cross, cache writes, gathers, "
     "copies, "
     "merges), or one problem in the words of `attn explain`, or the call of a file. Tensors of words are filled with "
     "random data: blocks scattered over the pool, sequences as long as block_table allows unless seq_lens has "
     "entries. "
     "op=cache_copy takes k_cache=TYPE[...] and block_map=I64[n,2]. Of an attention the run alone is timed. With "
     "--splits or --batch-invariant only the attention cases of the list are measured.\n\n"
     "The first result of a case is judged by the numerical contract: a wrong one is an error, never a figure. Then "
     "the "
     "machine's limits and calls are timed in turn, in ten sittings for each case with the other cases between. The "
     "limits are multiply-adds in registers (each counts as two operations), reading, and for what moves data copying, "
     "over as "
     "many "
     "bytes as the call touches. fraction: the least time that the limits allow, divided by the time of a call, each "
     "at "
     "the best of its rounds, since other work on a machine only ever costs time. One thread is timed by the "
     "seconds that it really ran, several by the clock. GB/s counts each byte read or written once.\n\n"
     "--json gives an object: machine (as attn info: version, device, device_index, device_name, threads, level, "
     "levels, "
     "caches with l1d_bytes, l2_bytes, l3_bytes), timed_by (thread or clock), seed, results, and limits of the machine "
     "(gflop_per_second; from memory_bytes of memory read_gb_per_second and copy_gb_per_second). Each result: case, "
     "problem (words that measure it again), op, backend, fraction, fraction_median (of medians), bound (arithmetic or "
     "memory), limit_seconds, seconds of a call, rounds, calls, splits, read_bytes, written_bytes, flops, "
     "gb_per_second, "
     "gflop_per_second, limits (as above, around its calls); or case, problem, backend, refused (why). What is "
     "measured "
     "in rounds has best, median and worst: no round was better than best, half were than median, nine tenths than worst. --list "
     "--json gives cases (case, problem). --csv has the same names in its first line. scripts/plot-roofline.py draws a "
     "picture of the object.",
     "  attn bench --filter decode --json\n"
     "  attn bench op=attention q=BF16[8,32,128] k_cache=BF16[512,64,8,128] v_cache=BF16[512,64,8,128] \\\n"
     "    block_table=I32[8,64] seq_lens=I32[8] query_start_loc=I32[9] --threads 2\n",
     "1 when something valid failed (device, memory, input/output) or a result was wrong"},
};
static const size_t num_pages = sizeof(pages) / sizeof(pages[0]);

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
    char left[32];
    snprintf(left, sizeof(left), "attn %s", pages[i].name);
    help_row(left, pages[i].purpose != NULL ? pages[i].purpose : attn_check_purpose);
  }
  help_row("attn help COMMAND", "as attn COMMAND --help");
  help_row("attn --version", "the version of libattn");
  puts("\n"
       "Environment:");
  help_row("ATTN_BACKEND", "names the backend where --backend does not");
  help_row("ATTN_CPU", "caps the instruction set level; `attn info` prints the levels");
  puts("\n"
       "Examples:\n"
       "  attn info\n"
       "  attn check --cases 200\n");
  help_paragraph(
      "Exit status: 0; 1 when something valid failed (device, memory, input/output, a wrong result); 2 for bad "
      "input or a refusal, with one line on standard error that names what was found and what is accepted.");
}

static void print_page(const help_page *page) {
  printf("attn %s: %s\n\nUsage:\n%s\n", page->name, page->purpose, page->usage);
  help_paragraph(page->text);
  puts("\nFlags:");
  cli_print_flags(page->command);
  printf("\nExamples:\n%s\n", page->examples);
  char status[200];
  snprintf(status, sizeof(status), "Exit status: 0; %s; 2 for bad input or a refusal, with one line on standard error.",
           page->failed);
  help_paragraph(status);
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
