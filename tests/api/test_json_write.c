/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON writer of the commands: what it writes is what a parser reads back, whatever the bytes and the numbers; and
   the progress line, which never appears where standard error is no terminal. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <poll.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "json_write.h"
#include "progress.h"

typedef struct written {
  char *text;
  size_t bytes;
  FILE *file;
  json_writer w;
} written;

static void start(written *a) {
  memset(a, 0, sizeof(*a));
  a->file = open_memstream(&a->text, &a->bytes);
  assert_non_null(a->file);
  json_start(&a->w, a->file);
}

static cJSON *parse(written *a) {
  json_finish(&a->w);
  assert_int_equal(fclose(a->file), 0);
  const char *end = NULL;
  cJSON *root = cJSON_ParseWithLengthOpts(a->text, a->bytes + 1, &end, 1);
  if (root == NULL) {
    fail_msg("no JSON: %s", a->text);
  }
  assert_int_equal(a->text[a->bytes - 1], '\n');
  return root;
}

static void test_nesting(void **state) {
  (void)state;
  static const int32_t list[] = {3, -2147483647 - 1, 0};
  written a;
  start(&a);
  json_object(&a.w, NULL);
  json_array(&a.w, "empty");
  json_end(&a.w);
  json_int32_list(&a.w, "list", list, 3);
  json_array(&a.w, "rows");
  for (int i = 0; i < 3; i++) {
    json_line(&a.w);
    json_object(&a.w, NULL);
    json_boolean(&a.w, "odd", i % 2);
    json_string(&a.w, "none", NULL);
    json_end(&a.w);
  }
  json_end(&a.w);
  json_integer(&a.w, "least", INT64_MIN);
  json_unsigned(&a.w, "most", UINT64_MAX);
  cJSON *root = parse(&a);
  char *compact = cJSON_PrintUnformatted(root);
  assert_non_null(strstr(a.text, "\"least\":-9223372036854775808,\"most\":18446744073709551615}\n"));
  assert_non_null(strstr(compact, "{\"empty\":[],\"list\":[3,-2147483648,0],\"rows\":[{\"odd\":false,\"none\":null},"
                                  "{\"odd\":true,\"none\":null},{\"odd\":false,\"none\":null}],"));
  free(compact);
  cJSON_Delete(root);
  free(a.text);
}

static void test_numbers(void **state) {
  (void)state;
  static const double values[] = {0.0, -0.0, 1.0 / 3.0, 1e300, -5e-324, 123456789.0};
  written a;
  start(&a);
  json_array(&a.w, NULL);
  for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
    json_number(&a.w, NULL, values[i], 17);
  }
  json_number(&a.w, NULL, NAN, 17);
  json_number(&a.w, NULL, -INFINITY, 17);
  cJSON *root = parse(&a);
  for (int i = 0; i < 6; i++) {
    assert_true(cJSON_GetArrayItem(root, i)->valuedouble == values[i]);
  }
  assert_true(cJSON_IsNull(cJSON_GetArrayItem(root, 6)) && cJSON_IsNull(cJSON_GetArrayItem(root, 7)));
  cJSON_Delete(root);
  free(a.text);
}

/* Every byte, alone and in the middle of text. */
static void test_strings(void **state) {
  (void)state;
  for (int byte = 0; byte < 256; byte++) {
    const char text[] = {'a', (char)byte, 'z'};
    written a;
    start(&a);
    json_object(&a.w, NULL);
    json_bytes(&a.w, "text", text, sizeof(text));
    json_bytes(&a.w, "\"\\\n", text + 1, 1);
    cJSON *root = parse(&a);
    char want[8] = {'a', (char)byte, 'z', '\0'};
    if (byte >= 0x80) {
      memcpy(want, "a\xef\xbf\xbdz", 6);
    }
    if (byte != 0) { /* the reader's strings end at a NUL */
      assert_string_equal(cJSON_GetObjectItemCaseSensitive(root, "text")->valuestring, want);
    } else {
      assert_non_null(strstr(a.text, "\"a\\u0000z\""));
    }
    assert_non_null(cJSON_GetObjectItemCaseSensitive(root, "\"\\\n"));
    cJSON_Delete(root);
    free(a.text);
  }
  written a;
  start(&a);
  json_array(&a.w, NULL);
  json_string(&a.w, NULL, "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x8c\x8d"); /* whole characters stay */
  json_string(&a.w, NULL, "cut \xe2\x82");
  cJSON *root = parse(&a);
  assert_string_equal(cJSON_GetArrayItem(root, 0)->valuestring, "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x8c\x8d");
  assert_string_equal(cJSON_GetArrayItem(root, 1)->valuestring, "cut \xef\xbf\xbd\xef\xbf\xbd");
  cJSON_Delete(root);
  free(a.text);
}

static int take_stderr(FILE *file) {
  fflush(stderr);
  const int kept = dup(STDERR_FILENO);
  assert_true(kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
  return kept;
}

static void give_stderr(int kept) {
  assert_true(dup2(kept, STDERR_FILENO) >= 0);
  close(kept);
}

static void test_no_progress_in_a_file(void **state) {
  (void)state;
  FILE *file = tmpfile();
  assert_non_null(file);
  progress p;
  const int kept = take_stderr(file);
  progress_start(&p);
  p.started -= 100.0;
  progress_show(&p, "step %d", 1);
  progress_hide(&p);
  give_stderr(kept);
  assert_int_equal(lseek(fileno(file), 0, SEEK_END), 0);
  fclose(file);
}

/* On a terminal: nothing within two seconds, then a line cut to the width, then nothing left. */
static void test_progress_on_a_terminal(void **state) {
  (void)state;
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) {
    fprintf(stderr, "skipped: this machine gives no pseudo-terminal\n");
    skip();
  }
  FILE *side = fopen(ptsname(terminal), "r+");
  assert_non_null(side);
  assert_int_equal(setenv("TERM", "xterm", 1), 0);
  char wide[400];
  memset(wide, 'x', sizeof(wide) - 1);
  wide[sizeof(wide) - 1] = '\0';
  progress p;
  const int kept = take_stderr(side);
  progress_start(&p);
  progress_show(&p, "too early");
  const int early = p.shown;
  p.started -= 100.0;
  progress_show(&p, "%s", wide);
  const int late = p.shown;
  progress_show(&p, "too soon after it");
  progress_hide(&p);
  progress_hide(&p);
  give_stderr(kept);
  assert_true(!early && late && !p.shown);
  char text[1024] = "";
  size_t count = 0;
  struct pollfd ready = {terminal, POLLIN, 0};
  while (count < 88 && poll(&ready, 1, 5000) == 1) { /* what was written comes through piece by piece */
    const ssize_t piece = read(terminal, text + count, sizeof(text) - 1 - count);
    assert_true(piece > 0);
    count += (size_t)piece;
  }
  char want[128] = "\r\033[K";
  memset(want + 4, 'x', 79); /* a terminal that says nothing of its width */
  memcpy(want + 83, "\r\033[K", 5);
  assert_string_equal(text, want);
  fclose(side);
  close(terminal);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nesting),
      cmocka_unit_test(test_numbers),
      cmocka_unit_test(test_strings),
      cmocka_unit_test(test_no_progress_in_a_file),
      cmocka_unit_test(test_progress_on_a_terminal),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
