/* SPDX-License-Identifier: Apache-2.0 */
/* `attn info`: what this machine and this build have. */
#include "cli.h"

static void print_device(const attn_context_info *info) {
  printf("attn %s\n", attn_version());
  printf("device: %s:%d (%s)\n", attn_device_kind_name(info->device), (int)info->device_index, info->device_name);
  printf("threads: %d%s\n", (int)info->num_threads, info->has_executor ? " (the host's)" : "");
  printf("level: %s\n", info->level);
  printf("levels: %s\n", info->levels_found);
  printf("caches: L1d %llu, L2 %llu, L3 %llu bytes (0: unknown)\n", (unsigned long long)info->l1d_bytes,
         (unsigned long long)info->l2_bytes, (unsigned long long)info->l3_bytes);
}

static void print_devices(void) {
  static const attn_device_kind kinds[] = {
#define DEVICE_KIND(name, number, spelling, dlpack, built) name,
      ATTN_DEVICE_LIST(DEVICE_KIND)
#undef DEVICE_KIND
  };
  static const int built[] = {
#define DEVICE_BUILT(name, number, spelling, dlpack, built) built,
      ATTN_DEVICE_LIST(DEVICE_BUILT)
#undef DEVICE_BUILT
  };
  puts("\ndevices:");
  for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); ++i) {
    if (built[i]) {
      printf("  %-8s %d found\n", attn_device_kind_name(kinds[i]), (int)attn_device_count(kinds[i]));
    } else {
      printf("  %-8s not built in\n", attn_device_kind_name(kinds[i]));
    }
  }
}

static void print_backends(void) {
  attn_backend_info info;
  puts("\nbackends:");
  for (size_t i = 0; attn_backend_get(i, &info); ++i) {
    const char *verdict = info.foreign ? "foreign" : info.built ? "built" : "not built";
    if (info.foreign) {
      printf("  %-16s %-10s played here by %s\n", info.name, verdict,
             info.plays[0] != '\0' ? info.plays : "nothing yet");
    } else {
      printf("  %-16s %-10s %s: %s (plays the part of %s)\n", info.name, verdict, attn_device_kind_name(info.device),
             info.summary, info.plays);
    }
  }
}

static void print_kernels(const attn_context *context) {
  attn_kernel_info kernel;
  puts("\nkernels:");
  printf("  %-24s %-12s %-8s %-10s %-4s %s\n", "operation", "types", "heads", "level", "use", "symbol");
  for (size_t i = 0; attn_context_kernel(context, i, &kernel); ++i) {
    printf("  %-24s %-12s %-8s %-10s %-4s %s\n", kernel.operation, kernel.types, kernel.head_class, kernel.level,
           kernel.in_use ? "yes" : "no", kernel.symbol);
  }
}

static int print_info(const cli_options *flags, cli_report *report) {
  attn_context *context = NULL;
  attn_message message;
  attn_context_info info = ATTN_CONTEXT_INFO_INIT;
  int code = cli_make_context(flags, &context, report);
  if (code == CLI_OK && flags->matrix) {
    code = cli_print_matrix(context, report);
  } else if (code == CLI_OK) {
    code = cli_library(report, attn_context_get_info(context, &info, &message), &message);
    if (code == CLI_OK) {
      print_device(&info);
      print_devices();
      print_backends();
      print_kernels(context);
    }
  }
  attn_context_destroy(context);
  return code;
}

int cli_info_command(int argc, char **argv) {
  cli_options flags;
  cli_report report;
  int code = cli_parse_options(argc, argv, CLI_FOR_INFO, &flags, &report);
  if (code != CLI_OK) {
    return cli_print_failure("attn info", &report, code);
  }
  if (flags.help) {
    cli_print_help("info");
    return cli_flush("attn info");
  }
  code = print_info(&flags, &report);
  int flushed = cli_flush("attn info");
  return code == CLI_OK ? flushed : cli_print_failure("attn info", &report, code);
}
