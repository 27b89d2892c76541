/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_replay.c: a fuzz target without a fuzzer: fuzz_NAME FILE-OR-FOLDER... runs each file, those of a folder in the
 * order of their names. An input that is a finding ends the process and is the last one named on standard error when
 * --verbose is given first.
 */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

static int verbose;
static int count;

static int run_file(const char *path) {
  size_t bytes = 0;
  if (verbose) {
    (void)fprintf(stderr, "%s\n", path);
  }
  unsigned char *data = fuzz_read(path, &bytes);
  if (data == NULL) {
    (void)fprintf(stderr, "%s: cannot be read\n", path);
    return 1;
  }
  (void)LLVMFuzzerTestOneInput(data, bytes);
  free(data);
  count++;
  return 0;
}

static int is_file(const struct dirent *entry) {
  return entry->d_name[0] != '.';
}

static int run_path(const char *path) {
  struct stat status;
  struct dirent **entries = NULL;
  if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode)) {
    return run_file(path);
  }
  int failed = 0;
  int found = scandir(path, &entries, is_file, alphasort);
  for (int i = 0; i < found; i++) {
    char name[4096];
    int used = snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
    failed |= used < 0 || (size_t)used >= sizeof name || run_file(name);
    free(entries[i]);
  }
  free(entries);
  if (found < 1) {
    (void)fprintf(stderr, "%s: no file in it\n", path);
  }
  return failed || found < 1;
}

int main(int argc, char **argv) {
  int failed = argc < 2;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--verbose") == 0) {
      verbose = 1;
    } else {
      failed |= run_path(argv[i]);
    }
  }
  (void)printf("%d inputs replayed\n", count);
  return failed || count == 0;
}
