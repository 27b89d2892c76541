/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_request.c: `attn run` on a request file, from reading it to writing the result. The input is the file; a hash of
 * it chooses the flags. Each request that is small enough runs three times: as it is, with --poison, and by REFERENCE.
 * With --poison nothing may change, not the exit code, not a bit of a result but rows that no sequence has. REFERENCE
 * must give the same exit code. A refusal prints one line and writes no file.
 */
#define _XOPEN_SOURCE 700
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "run.h"

/* What is run: extents, and the product of rows, keys and elements. */
enum { MAX_FILE = 1 << 16, MAX_EXTENT = 4096, MAX_WORK = 1 << 21, MAX_SPLITS = 64 };

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

/* The line that the command prints for this report. */
static void check_printed(const cli_report *report, int code) {
  const char *path = fuzz_path("line.txt");
  size_t bytes = 0;
  (void)fflush(stderr);
  int kept = dup(STDERR_FILENO);
  FILE *opened = fopen(path, "w");
  FUZZ_CHECK(kept >= 0 && opened != NULL && dup2(fileno(opened), STDERR_FILENO) >= 0, "no place for a line");
  int returned = cli_print_failure("attn run", report, code);
  (void)fflush(stderr);
  (void)dup2(kept, STDERR_FILENO);
  (void)close(kept);
  (void)fclose(opened);
  char *line = (char *)fuzz_read(path, &bytes);
  FUZZ_CHECK(returned == code && line != NULL && bytes > strlen("attn run: \n") && line[bytes - 1] == '\n',
             "code %d and %zu bytes printed", returned, bytes);
  line[bytes - 1] = '\0';
  fuzz_check_line(line, bytes);
  free(line);
}

/* Names of the file may say anything; the status of a library call ends the line. */
static int is_fault(const char *line) {
  static const char end[] = "(ATTN_E_INTERNAL)";
  size_t length = strlen(line);
  return length >= sizeof end - 1 && strcmp(line + length - (sizeof end - 1), end) == 0;
}

static void check_refusal(const cli_report *report, int code) {
  FUZZ_CHECK(code == CLI_FAILED || code == CLI_BAD_INPUT, "exit code %d", code);
  FUZZ_CHECK(memchr(report->text, '\0', sizeof report->text) != NULL && report->text[0] != '\0', "no line");
  FUZZ_CHECK(!is_fault(report->text), "a fault of the library: %s", report->text);
  check_printed(report, code);
}

/* ---- What is small enough ---------------------------------------------------------------------------------------- */

static int64_t entry(const st_tensor *tensor, int64_t i) {
  return tensor != NULL && tensor->dtype == ST_I32 && i < tensor->shape[0] ? request_i32(tensor, i) : 0;
}

static int64_t at_most(int64_t value, int64_t most) {
  return value < 0 ? 0 : value < most ? value : most;
}

/* Rows times keys, over the sequences that an attention claims, or rows that a gather claims. Clipped, so that no sum
   overflows. */
static int64_t claimed(const request *r) {
  const st_tensor *starts = r->tensor[TENSOR_QUERY_START_LOC];
  const st_tensor *lens = r->tensor[TENSOR_SEQ_LENS];
  const st_tensor *packed = r->tensor[TENSOR_KV_START_LOC];
  const st_tensor *list = starts != NULL ? starts : lens;
  int64_t total = 0;
  for (int64_t s = 0; list != NULL && s < list->shape[0]; s++) {
    int64_t rows = starts != NULL ? at_most(entry(starts, s + 1) - entry(starts, s), MAX_WORK) : 1;
    int64_t keys = lens != NULL ? entry(lens, s) : packed != NULL ? entry(packed, s + 1) - entry(packed, s) : rows;
    total = at_most(total + (rows + 1) * at_most(keys, MAX_WORK), MAX_WORK);
  }
  return total;
}

/* What a few bytes claim and the call has to refuse, before it takes the memory: rows of a pool without blocks, parts
   without elements whose lse is another one. */
static int is_refused(const request *r) {
  const st_tensor *k = r->tensor[TENSOR_K_CACHE];
  const st_tensor *pool = k != NULL ? k : r->tensor[TENSOR_V_CACHE];
  if (r->op->op == OP_CACHE_GATHER) {
    return r->key[KEY_CHECKED].integer != 0 && pool->shape[0] == 0 && claimed(r) > 0;
  }
  return r->op->op == OP_MERGE && r->outs[0]->shape[0] != r->lses[0]->shape[0];
}

static int is_small(const request *r) {
  if (is_refused(r)) {
    return 1;
  }
  for (int i = 0; i < TENSOR_COUNT; i++) {
    const st_tensor *tensor = r->tensor[i];
    for (int32_t axis = 0; tensor != NULL && axis < tensor->rank; axis++) {
      if (tensor->shape[axis] > MAX_EXTENT) {
        return 0;
      }
    }
  }
  for (size_t i = 0; i < r->num_parts; i++) {
    for (int32_t axis = 0; axis < 3; axis++) {
      if (r->outs[i]->shape[axis] > MAX_EXTENT) {
        return 0;
      }
    }
  }
  int64_t heads = (int64_t)r->num_q_heads + r->num_kv_heads + 1;
  int64_t size = (int64_t)r->head_size + r->v_head_size + 1;
  return heads <= MAX_EXTENT && size <= MAX_EXTENT && claimed(r) * heads * size <= MAX_WORK &&
         r->key[KEY_NUM_SPLITS].integer <= MAX_SPLITS;
}

/* Parse and check, as the command does first. */
static int worth_running(const char *path, const cli_options *flags) {
  cli_report report;
  st_file file;
  request parsed;
  memset(&report, 0xA5, sizeof report);
  int code = st_read(path, &file, &report);
  if (code != CLI_OK) {
    check_refusal(&report, code);
    return 0;
  }
  int worth = 0;
  code = request_parse(&file, flags, &parsed, &report);
  if (code == CLI_OK) {
    code = request_check(&parsed, &report);
    worth = code == CLI_OK && is_small(&parsed);
    request_free(&parsed);
  }
  st_free(&file);
  if (code != CLI_OK) {
    check_refusal(&report, code);
  }
  return worth;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* The command with its flags; the result file, if there is one. */
static int run(const cli_options *flags, st_file *result) {
  cli_report report;
  cli_report unread;
  memset(result, 0, sizeof *result);
  memset(&report, 0xA5, sizeof report);
  (void)unlink(flags->output);
  int code = run_request_file(flags, &report);
  if (code != CLI_OK) {
    check_refusal(&report, code);
    FUZZ_CHECK(access(flags->output, F_OK) != 0, "refused, and there is a file: %s", report.text);
    return code;
  }
  FUZZ_CHECK(st_read(flags->output, result, &unread) == CLI_OK, "the result is refused: %s", unread.text);
  FUZZ_CHECK(result->num_tensors >= 1 && result->num_metadata == 4, "a result of %zu tensors and %zu keys",
             result->num_tensors, result->num_metadata);
  return code;
}

/* Rows that a sequence has: all but those of out, lse and out_scale beyond the batch. */
static uint64_t owned_bytes(const st_tensor *tensor, int64_t tokens) {
  int per_token =
      strcmp(tensor->name, "out") == 0 || strcmp(tensor->name, "lse") == 0 || strcmp(tensor->name, "out_scale") == 0;
  return per_token && tensor->shape[0] > 0 && tokens < tensor->shape[0]
             ? tensor->bytes / (uint64_t)tensor->shape[0] * (uint64_t)tokens
             : tensor->bytes;
}

static void check_poisoned(const st_file *plain, const st_file *poisoned, int64_t tokens) {
  FUZZ_CHECK(plain->num_tensors == poisoned->num_tensors, "%zu tensors, with --poison %zu", plain->num_tensors,
             poisoned->num_tensors);
  for (size_t i = 0; i < plain->num_tensors; i++) {
    const st_tensor *a = &plain->tensors[i];
    const st_tensor *b = &poisoned->tensors[i];
    FUZZ_CHECK(strcmp(a->name, b->name) == 0 && a->bytes == b->bytes &&
                   memcmp(a->data, b->data, (size_t)owned_bytes(a, tokens)) == 0,
               "--poison changes %s", a->name);
  }
}

/* query_start_loc's last entry; more than any tensor has where there is none. */
static int64_t tokens_of(const char *path) {
  cli_report report;
  st_file file;
  int64_t tokens = INT64_MAX;
  FUZZ_CHECK(st_read(path, &file, &report) == CLI_OK, "the request is gone: %s", report.text);
  for (size_t i = 0; i < file.num_tensors; i++) {
    if (strcmp(file.tensors[i].name, "query_start_loc") == 0) {
      tokens = request_i32(&file.tensors[i], file.tensors[i].shape[0] - 1);
    }
  }
  st_free(&file);
  return tokens;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const int64_t splits[] = {-1, -1, -1, 1, 3, 7};
  const uint32_t hash = fuzz_hash(data, size);
  cli_options flags;
  st_file plain;
  st_file other;
  (void)unsetenv("ATTN_BACKEND");
  if (size > MAX_FILE) {
    return 0;
  }
  memset(&flags, 0, sizeof flags);
  flags.input = fuzz_path("in.safetensors");
  flags.output = fuzz_path("out.safetensors");
  flags.num_threads = 1;
  flags.num_splits = splits[hash % 6];
  flags.batch_invariant = hash / 6 % 8 == 0;
  flags.unchecked = hash / 48 % 4 == 0;
  fuzz_write(flags.input, data, size);
  if (!worth_running(flags.input, &flags)) {
    return 0;
  }
  int code = run(&flags, &plain);
  flags.poison = 1;
  int poisoned = run(&flags, &other);
  FUZZ_CHECK(poisoned == code, "exit code %d, with --poison %d", code, poisoned);
  if (code == CLI_OK) {
    check_poisoned(&plain, &other, tokens_of(flags.input));
  }
  st_free(&other);
  flags.backend = "REFERENCE";
  flags.poison = 0;
  int reference = run(&flags, &other);
  FUZZ_CHECK(reference == code, "exit code %d, by REFERENCE %d", code, reference);
  st_free(&other);
  st_free(&plain);
  return 0;
}
