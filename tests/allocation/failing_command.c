/* SPDX-License-Identifier: Apache-2.0 */
/* failing_command.c: linked into a command, makes it fail the allocation that ATTN_FAIL_ALLOCATION names ("3": the
 * third, "3+": the third and all later ones), and writes into the file ATTN_ALLOCATIONS what became of it: how many
 * failed, and how many pieces were live at the end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocator.h"

static void report(void) {
  const char *path = getenv("ATTN_ALLOCATIONS");
  FILE *file = path != NULL ? fopen(path, "w") : NULL;
  if (file != NULL) {
    (void)fprintf(file, "%ld %zu\n", allocator_failed(), allocator_live());
    (void)fclose(file);
  }
}

__attribute__((constructor)) static void arm(void) {
  const char *text = getenv("ATTN_FAIL_ALLOCATION");
  (void)atexit(report);
  if (text != NULL) {
    allocator_fail(strtol(text, NULL, 10), strchr(text, '+') != NULL);
  }
}
