/* SPDX-License-Identifier: Apache-2.0 */
/* `attn info`: what this machine and this build have. */
#include <string.h>

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

/* The words of levels_found. */
static void write_levels(const char *levels, json_writer *w) {
  json_array(w, "levels");
  while (*levels != '\0') {
    size_t length = strcspn(levels, " ");
    json_bytes(w, NULL, levels, length);
    levels += length;
    levels += strspn(levels, " ");
  }
  json_end(w);
}

void cli_write_device(const attn_context_info *info, json_writer *w) {
  json_string(w, "version", attn_version());
  json_string(w, "device", attn_device_kind_name(info->device));
  json_integer(w, "device_index", info->device_index);
  json_string(w, "device_name", info->device_name);
  json_integer(w, "threads", info->num_threads);
  json_string(w, "level", info->level);
  write_levels(info->levels_found, w);
  json_object(w, "caches");
  json_unsigned(w, "l1d_bytes", info->l1d_bytes);
  json_unsigned(w, "l2_bytes", info->l2_bytes);
  json_unsigned(w, "l3_bytes", info->l3_bytes);
  json_end(w);
}

/* Every device kind, as text or (w) as JSON. */
static void print_devices(json_writer *w) {
  static const struct {
    attn_device_kind kind;
    int built;
  } kinds[] = {
#define DEVICE_KIND(name, number, spelling, dlpack, built) {name, built},
      ATTN_DEVICE_LIST(DEVICE_KIND)
#undef DEVICE_KIND
  };
  for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); ++i) {
    const char *name = attn_device_kind_name(kinds[i].kind);
    int found = kinds[i].built ? (int)attn_device_count(kinds[i].kind) : 0;
    if (w != NULL) {
      json_line(w);
      json_object(w, NULL);
      json_string(w, "kind", name);
      json_boolean(w, "built", kinds[i].built);
      json_integer(w, "found", found);
      json_end(w);
    } else if (kinds[i].built) {
      printf("  %-8s %d found\n", name, found);
    } else {
      printf("  %-8s not built in\n", name);
    }
  }
}

static void print_backend(const attn_backend_info *info) {
  const char *verdict = info->foreign ? "foreign" : info->built ? "built" : "not built";
  if (info->foreign) {
    printf("  %-16s %-10s played here by %s\n", info->name, verdict,
           info->plays[0] != '\0' ? info->plays : "nothing yet");
  } else {
    printf("  %-16s %-10s %s: %s (plays the part of %s)\n", info->name, verdict, attn_device_kind_name(info->device),
           info->summary, info->plays);
  }
}

static void write_backend(const attn_backend_info *info, json_writer *w) {
  json_line(w);
  json_object(w, NULL);
  json_string(w, "name", info->name);
  json_string(w, "device", attn_device_kind_name(info->device));
  json_boolean(w, "foreign", info->foreign);
  json_boolean(w, "built", info->built);
  json_string(w, "plays", info->plays);
  json_string(w, "summary", info->summary);
  json_end(w);
}

static void write_kernel(const attn_kernel_info *kernel, json_writer *w) {
  json_line(w);
  json_object(w, NULL);
  json_string(w, "operation", kernel->operation);
  json_string(w, "types", kernel->types);
  json_string(w, "heads", kernel->head_class);
  json_string(w, "level", kernel->level);
  json_boolean(w, "in_use", kernel->in_use);
  json_string(w, "symbol", kernel->symbol);
  json_end(w);
}

static void print_text(const attn_context *context, const attn_context_info *info) {
  attn_backend_info backend;
  attn_kernel_info kernel;
  print_device(info);
  puts("\ndevices:");
  print_devices(NULL);
  puts("\nbackends:");
  for (size_t i = 0; attn_backend_get(i, &backend); ++i) {
    print_backend(&backend);
  }
  puts("\nkernels:");
  printf("  %-24s %-12s %-8s %-10s %-4s %s\n", "operation", "types", "heads", "level", "use", "symbol");
  for (size_t i = 0; attn_context_kernel(context, i, &kernel); ++i) {
    printf("  %-24s %-12s %-8s %-10s %-4s %s\n", kernel.operation, kernel.types, kernel.head_class, kernel.level,
           kernel.in_use ? "yes" : "no", kernel.symbol);
  }
}

static void print_json(const attn_context *context, const attn_context_info *info) {
  attn_backend_info backend;
  attn_kernel_info kernel;
  json_writer w;
  json_start(&w, stdout);
  json_object(&w, NULL);
  cli_write_device(info, &w);
  json_array(&w, "devices");
  print_devices(&w);
  json_end(&w);
  json_array(&w, "backends");
  for (size_t i = 0; attn_backend_get(i, &backend); ++i) {
    write_backend(&backend, &w);
  }
  json_end(&w);
  json_array(&w, "kernels");
  for (size_t i = 0; attn_context_kernel(context, i, &kernel); ++i) {
    write_kernel(&kernel, &w);
  }
  json_finish(&w);
}

static int print_info(const cli_options *flags, cli_report *report) {
  attn_context *context = NULL;
  attn_message message;
  attn_context_info info = ATTN_CONTEXT_INFO_INIT;
  int code = cli_make_context(flags, &context, report);
  if (code == CLI_OK && flags->matrix) {
    code = cli_print_matrix(context, flags->json, report);
  } else if (code == CLI_OK) {
    code = cli_library(report, attn_context_get_info(context, &info, &message), &message);
    if (code == CLI_OK) {
      (flags->json ? print_json : print_text)(context, &info);
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
