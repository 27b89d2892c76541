/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_safetensors.c: the reader of safetensors files. The input is a file. A refusal leaves an empty st_file and one
 * line; what is accepted lies inside the file, aligned and whole, and writing it gives a file that reads back as the
 * same and is written back byte by byte. A file in the writer's own form comes back as it was.
 */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "safetensors.h"

/* Where the data begins in a file that was accepted. */
static size_t header_end(const uint8_t *data) {
  size_t bytes = 8;
  for (size_t i = 0; i < 8; i++) {
    bytes += (size_t)data[i] << (8 * i);
  }
  return bytes;
}

static void check_refused(const st_file *file, const cli_report *report, int code) {
  static const st_file empty;
  FUZZ_CHECK(code == CLI_FAILED || code == CLI_BAD_INPUT, "exit code %d", code);
  FUZZ_CHECK(memcmp(file, &empty, sizeof empty) == 0, "a refused file is not empty: %s", report->text);
  FUZZ_CHECK(memchr(report->text, '\0', sizeof report->text) != NULL && report->text[0] != '\0', "no line");
}

/* Every byte is there to be read. */
static void check_tensor(const st_tensor *tensor, const unsigned char *file, size_t size) {
  size_t element = attn_dtype_bytes(st_dtype_of_library(tensor->dtype));
  uint64_t bytes = element;
  FUZZ_CHECK(element > 0 && tensor->rank >= 0 && tensor->rank <= ST_MAX_RANK, "tensor %s: type or rank", tensor->name);
  for (int32_t axis = 0; axis < tensor->rank; axis++) {
    FUZZ_CHECK(tensor->shape[axis] >= 0, "tensor %s: axis %d", tensor->name, (int)axis);
    bytes *= (uint64_t)tensor->shape[axis]; /* the size of a file: cannot overflow unless some extent is 0 */
  }
  FUZZ_CHECK(tensor->bytes <= size && tensor->bytes == bytes, "tensor %s: %llu bytes", tensor->name,
             (unsigned long long)tensor->bytes);
  FUZZ_CHECK(tensor->bytes == 0 || (uintptr_t)tensor->data % element == 0, "tensor %s is not aligned", tensor->name);
  FUZZ_CHECK(tensor->owned || (tensor->data >= file && tensor->data + tensor->bytes <= file + size),
             "tensor %s lies outside the file", tensor->name);
  free(fuzz_copy(tensor->data, (size_t)tensor->bytes));
}

static int by_place(const void *left, const void *right) {
  const st_tensor *a = left;
  const st_tensor *b = right;
  return strcmp(a->name, b->name);
}

/* The same tensors and entries, in whatever order. */
static void check_same(const st_file *first, const st_file *second) {
  FUZZ_CHECK(first->num_tensors == second->num_tensors && first->num_metadata == second->num_metadata,
             "%zu tensors and %zu keys became %zu and %zu", first->num_tensors, first->num_metadata,
             second->num_tensors, second->num_metadata);
  qsort(first->tensors, first->num_tensors, sizeof *first->tensors, by_place);
  qsort(second->tensors, second->num_tensors, sizeof *second->tensors, by_place);
  for (size_t i = 0; i < first->num_tensors; i++) {
    const st_tensor *a = &first->tensors[i];
    const st_tensor *b = &second->tensors[i];
    FUZZ_CHECK(strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->rank == b->rank &&
                   memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0 && a->bytes == b->bytes &&
                   memcmp(a->data, b->data, (size_t)a->bytes) == 0,
               "tensor %s is another one after writing", a->name);
  }
  for (size_t i = 0; i < first->num_metadata; i++) {
    FUZZ_CHECK(strcmp(first->metadata[i].key, second->metadata[i].key) == 0 &&
                   strcmp(first->metadata[i].value, second->metadata[i].value) == 0,
               "key %s is another one after writing", first->metadata[i].key);
  }
}

/* Writes the file to `path` and returns its bytes. */
static unsigned char *write_back(const st_file *file, const char *path, size_t *bytes) {
  cli_report report;
  int code = st_write(path, file->tensors, file->num_tensors, file->metadata, file->num_metadata, &report);
  FUZZ_CHECK(code == CLI_OK, "not written: %s", report.text);
  unsigned char *written = fuzz_read(path, bytes);
  FUZZ_CHECK(written != NULL, "nothing was written");
  return written;
}

static void check_round_trip(st_file *file, const uint8_t *data, size_t size) {
  size_t first_bytes = 0;
  size_t second_bytes = 0;
  const char *path = fuzz_path("written.safetensors");
  cli_report report;
  st_file again;
  unsigned char *first = write_back(file, path, &first_bytes);
  int code = st_read(path, &again, &report);
  FUZZ_CHECK(code == CLI_OK, "what was written is refused: %s", report.text);
  unsigned char *second = write_back(&again, path, &second_bytes);
  FUZZ_CHECK(first_bytes == second_bytes && memcmp(first, second, first_bytes) == 0, "the second file is another one");
  size_t header = header_end(first);
  if (size >= header && memcmp(first, data, header) == 0) {
    FUZZ_CHECK(size == first_bytes && memcmp(first, data, size) == 0, "not written back as it was");
  }
  check_same(file, &again);
  free(first);
  free(second);
  st_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *path = fuzz_path("read.safetensors");
  cli_report report;
  st_file file;
  memset(&report, 0xA5, sizeof report);
  memset(&file, 0xA5, sizeof file);
  fuzz_write(path, data, size);
  int code = st_read(path, &file, &report);
  if (code != CLI_OK) {
    check_refused(&file, &report, code);
    return 0;
  }
  uint64_t covered = 0;
  for (size_t i = 0; i < file.num_tensors; i++) {
    check_tensor(&file.tensors[i], file.content, size);
    covered += file.tensors[i].bytes;
  }
  FUZZ_CHECK(covered == size - header_end(data), "tensors of %llu bytes in a file of %zu", (unsigned long long)covered,
             size);
  check_round_trip(&file, data, size);
  st_free(&file);
  return 0;
}
