/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a GGUF file: one pass over the header with a bounds-checked cursor, then three checks over all tensors
 * (inside the data section, no shared bytes, no name twice). Counts are compared with what the rest of the file could
 * hold before anything is allocated, so memory stays in proportion to the file.
 */
#define _POSIX_C_SOURCE 200809L
#include "gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_ALIGNMENT (UINT64_C(1) << 20)

typedef struct cursor {
  const gguf_file *file;
  uint64_t at;
  attn_message *message;
} cursor;

static uint64_t left(const cursor *c) {
  return c->file->size - c->at;
}

/* The bytes of the next `count`, or NULL with a message that names `what`. */
static const uint8_t *take(cursor *c, uint64_t count, const char *what) {
  if (count > left(c)) {
    lm_fail(c->message, ATTN_E_RANGE,
            "%s: %s at byte %" PRIu64 " takes %" PRIu64 " bytes, the file has %" PRIu64 " left", c->file->path, what,
            c->at, count, left(c));
    return NULL;
  }
  const uint8_t *bytes = c->file->bytes + c->at;
  c->at += count;
  return bytes;
}

static uint64_t load(const uint8_t *bytes, int count) {
  uint64_t value = 0;
  for (int i = count - 1; i >= 0; i--) {
    value = value << 8 | bytes[i];
  }
  return value;
}

static bool take_u32(cursor *c, const char *what, uint32_t *out) {
  const uint8_t *bytes = take(c, 4, what);
  if (bytes == NULL) {
    return false;
  }
  *out = (uint32_t)load(bytes, 4);
  return true;
}

static bool take_u64(cursor *c, const char *what, uint64_t *out) {
  const uint8_t *bytes = take(c, 8, what);
  if (bytes == NULL) {
    return false;
  }
  *out = load(bytes, 8);
  return true;
}

static bool take_string(cursor *c, const char *what, gguf_string *out) {
  uint64_t length = 0;
  if (!take_u64(c, what, &length)) {
    return false;
  }
  const uint8_t *bytes = take(c, length, what);
  if (bytes == NULL) {
    return false;
  }
  out->data = (const char *)bytes;
  out->length = length;
  return true;
}

/* A count of things of at least `least` bytes each, no more than the rest of the file can hold. */
static bool check_count(const cursor *c, uint64_t count, uint64_t least, const char *what) {
  if (count > left(c) / least) {
    lm_fail(c->message, ATTN_E_RANGE, "%s: %s is %" PRIu64 ", the %" PRIu64 " bytes left hold at most %" PRIu64,
            c->file->path, what, count, left(c), left(c) / least);
    return false;
  }
  return true;
}

/* Bytes of a fixed-size kind; 0 for strings, arrays and numbers that are no kind. */
static uint32_t kind_bytes(uint32_t kind) {
  static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kind < sizeof bytes ? bytes[kind] : 0;
}

static bool skip_items(cursor *c, gguf_value *value) {
  const uint32_t item_bytes = kind_bytes(value->item_kind);
  value->data = c->file->bytes + c->at;
  if (item_bytes != 0) {
    if (value->kind == GGUF_ARRAY && !check_count(c, value->count, item_bytes, "an array's length")) {
      return false;
    }
    return take(c, value->count * item_bytes, "a value") != NULL;
  }
  if (value->kind == GGUF_ARRAY && !check_count(c, value->count, 8, "an array's length")) {
    return false;
  }
  for (uint64_t i = 0; i < value->count; i++) {
    gguf_string ignored;
    if (!take_string(c, "a string", &ignored)) {
      return false;
    }
  }
  return true;
}

static bool take_value(cursor *c, gguf_value *value) {
  uint32_t kind = 0;
  if (!take_string(c, "a key", &value->key) || !take_u32(c, "a value's type", &kind)) {
    return false;
  }
  uint32_t item_kind = kind;
  value->count = 1;
  if (kind == GGUF_ARRAY &&
      (!take_u32(c, "an array's type", &item_kind) || !take_u64(c, "an array's length", &value->count))) {
    return false;
  }
  if (item_kind != GGUF_STRING && kind_bytes(item_kind) == 0) {
    const lm_quoted key = lm_quote(value->key.data, value->key.length);
    lm_fail(c->message, ATTN_E_NAME, "%s: key %s has type %" PRIu32 "%s; accepted are 0 to 12, and no array of arrays",
            c->file->path, key.text, item_kind, kind == GGUF_ARRAY ? " in an array" : "");
    return false;
  }
  value->kind = (gguf_kind)kind;
  value->item_kind = (gguf_kind)item_kind;
  if (!skip_items(c, value)) {
    return false;
  }
  if (kind == GGUF_BOOL && value->data[0] > 1) {
    const lm_quoted key = lm_quote(value->key.data, value->key.length);
    lm_fail(c->message, ATTN_E_RANGE, "%s: key %s is a bool with value %d; accepted are 0 and 1", c->file->path,
            key.text, (int)value->data[0]);
    return false;
  }
  return true;
}

static bool take_type(cursor *c, const lm_quoted *name, gguf_tensor *tensor) {
  uint32_t id = 0;
  if (!take_u32(c, "a tensor's type", &id)) {
    return false;
  }
  tensor->type = quant_find(id);
  if (tensor->type == NULL || tensor->type->to_float == NULL) {
    lm_fail(c->message, ATTN_E_DTYPE, "%s: tensor %s has type %" PRIu32 " (%s); accepted are %s", c->file->path,
            name->text, id, tensor->type != NULL ? tensor->type->name : "unknown", quant_supported_names());
    return false;
  }
  return true;
}

static bool size_tensor(const cursor *c, const lm_quoted *name, gguf_tensor *tensor) {
  uint64_t elements = 1;
  for (uint32_t d = 0; d < 4; d++) {
    if (tensor->dims[d] == 0 || tensor->dims[d] > (uint64_t)INT64_MAX / elements) {
      lm_fail(c->message, tensor->dims[d] == 0 ? ATTN_E_SHAPE : ATTN_E_OVERFLOW,
              "%s: tensor %s has extent %" PRIu64 " in dimension %" PRIu32
              "; accepted are 1 or more, 2^63-1 in product",
              c->file->path, name->text, tensor->dims[d], d);
      return false;
    }
    elements *= tensor->dims[d];
  }
  if (tensor->dims[0] % tensor->type->block_elements != 0) {
    lm_fail(c->message, ATTN_E_SHAPE,
            "%s: tensor %s has rows of %" PRIu64 " elements; type %s takes multiples of %" PRIu32, c->file->path,
            name->text, tensor->dims[0], tensor->type->name, tensor->type->block_elements);
    return false;
  }
  const uint64_t blocks = elements / tensor->type->block_elements;
  if (blocks > (uint64_t)INT64_MAX / tensor->type->block_bytes) {
    lm_fail(c->message, ATTN_E_OVERFLOW, "%s: tensor %s has %" PRIu64 " elements, whose bytes exceed 2^63-1",
            c->file->path, name->text, elements);
    return false;
  }
  tensor->bytes = blocks * tensor->type->block_bytes;
  tensor->row_bytes = tensor->dims[0] / tensor->type->block_elements * tensor->type->block_bytes;
  return true;
}

/* `offset` is kept in `bytes` order: the caller turns it into a pointer once the data section is known. */
static bool take_tensor(cursor *c, gguf_tensor *tensor, uint64_t *offset) {
  if (!take_string(c, "a tensor's name", &tensor->name) || !take_u32(c, "a tensor's rank", &tensor->n_dims)) {
    return false;
  }
  const lm_quoted name = lm_quote(tensor->name.data, tensor->name.length);
  if (tensor->n_dims < 1 || tensor->n_dims > 4) {
    lm_fail(c->message, ATTN_E_SHAPE, "%s: tensor %s has rank %" PRIu32 "; accepted are 1 to 4", c->file->path,
            name.text, tensor->n_dims);
    return false;
  }
  for (uint32_t d = 0; d < 4; d++) {
    tensor->dims[d] = 1;
    if (d < tensor->n_dims && !take_u64(c, "a tensor's extent", &tensor->dims[d])) {
      return false;
    }
  }
  return take_type(c, &name, tensor) && size_tensor(c, &name, tensor) && take_u64(c, "a tensor's offset", offset);
}

static int compare_strings(gguf_string a, gguf_string b) {
  const uint64_t shorter = a.length < b.length ? a.length : b.length;
  const int order = shorter > 0 ? memcmp(a.data, b.data, (size_t)shorter) : 0;
  return order != 0 ? order : (a.length > b.length) - (a.length < b.length);
}

static int by_key(const void *a, const void *b) {
  return compare_strings(((const gguf_value *)a)->key, ((const gguf_value *)b)->key);
}

static int by_name(const void *a, const void *b) {
  return compare_strings(((const gguf_tensor *)a)->name, ((const gguf_tensor *)b)->name);
}

static int by_address(const void *a, const void *b) {
  const uint8_t *left_data = ((const gguf_tensor *)a)->data;
  const uint8_t *right_data = ((const gguf_tensor *)b)->data;
  return (left_data > right_data) - (left_data < right_data);
}

static attn_status read_values(cursor *c, gguf_file *file) {
  for (uint64_t i = 0; i < file->value_count; i++) {
    if (!take_value(c, &file->values[i])) {
      return ATTN_E_RANGE;
    }
  }
  qsort(file->values, (size_t)file->value_count, sizeof file->values[0], by_key);
  for (uint64_t i = 1; i < file->value_count; i++) {
    if (by_key(&file->values[i - 1], &file->values[i]) == 0) {
      const lm_quoted key = lm_quote(file->values[i].key.data, file->values[i].key.length);
      return lm_fail(c->message, ATTN_E_NAME, "%s: key %s appears twice", file->path, key.text);
    }
  }
  return ATTN_OK;
}

static attn_status place_tensors(const cursor *c, gguf_file *file, const uint64_t *offsets, uint64_t alignment) {
  const uint64_t padding = (alignment - c->at % alignment) % alignment;
  const uint64_t section = left(c) > padding ? left(c) - padding : 0;
  for (uint64_t i = 0; i < file->tensor_count; i++) {
    gguf_tensor *tensor = &file->tensors[i];
    const lm_quoted name = lm_quote(tensor->name.data, tensor->name.length);
    if (offsets[i] % alignment != 0) {
      return lm_fail(c->message, ATTN_E_ALIGN,
                     "%s: tensor %s has offset %" PRIu64 "; accepted are multiples of %" PRIu64, file->path, name.text,
                     offsets[i], alignment);
    }
    if (offsets[i] > section || tensor->bytes > section - offsets[i]) {
      return lm_fail(c->message, ATTN_E_RANGE,
                     "%s: tensor %s takes %" PRIu64 " bytes at offset %" PRIu64 ", the data section has %" PRIu64,
                     file->path, name.text, tensor->bytes, offsets[i], section);
    }
    tensor->data = file->bytes + c->at + padding + offsets[i];
  }
  return ATTN_OK;
}

static attn_status check_tensors(const cursor *c, gguf_file *file) {
  const size_t count = (size_t)file->tensor_count;
  qsort(file->tensors, count, sizeof file->tensors[0], by_address);
  for (uint64_t i = 1; i < file->tensor_count; i++) {
    const gguf_tensor *before = &file->tensors[i - 1];
    if (before->bytes > (uint64_t)(file->tensors[i].data - before->data)) {
      const lm_quoted first = lm_quote(before->name.data, before->name.length);
      const lm_quoted second = lm_quote(file->tensors[i].name.data, file->tensors[i].name.length);
      return lm_fail(c->message, ATTN_E_OVERLAP, "%s: tensors %s and %s share bytes", file->path, first.text,
                     second.text);
    }
  }
  qsort(file->tensors, count, sizeof file->tensors[0], by_name);
  for (uint64_t i = 1; i < file->tensor_count; i++) {
    if (by_name(&file->tensors[i - 1], &file->tensors[i]) == 0) {
      const lm_quoted name = lm_quote(file->tensors[i].name.data, file->tensors[i].name.length);
      return lm_fail(c->message, ATTN_E_NAME, "%s: tensor %s appears twice", file->path, name.text);
    }
  }
  return ATTN_OK;
}

static attn_status read_tensors(cursor *c, gguf_file *file, uint64_t *offsets) {
  uint64_t alignment = 0;
  attn_status status = gguf_get_u64_or(file, "general.alignment", 32, &alignment, c->message);
  if (status != ATTN_OK) {
    return status;
  }
  if (alignment == 0 || alignment % 8 != 0 || alignment > MAX_ALIGNMENT) {
    return lm_fail(c->message, ATTN_E_ALIGN,
                   "%s: general.alignment is %" PRIu64 "; accepted are multiples of 8 up to %" PRIu64, file->path,
                   alignment, MAX_ALIGNMENT);
  }
  for (uint64_t i = 0; i < file->tensor_count; i++) {
    if (!take_tensor(c, &file->tensors[i], &offsets[i])) {
      return ATTN_E_RANGE;
    }
  }
  status = place_tensors(c, file, offsets, alignment);
  return status != ATTN_OK ? status : check_tensors(c, file);
}

static bool read_preamble(cursor *c, gguf_file *file) {
  const uint8_t *magic = take(c, 4, "the magic");
  if (magic == NULL) {
    return false;
  }
  if (memcmp(magic, "GGUF", 4) != 0) {
    const lm_quoted found = lm_quote((const char *)magic, 4);
    lm_fail(c->message, ATTN_E_NAME, "%s: the file starts with %s; accepted is 'GGUF'", file->path, found.text);
    return false;
  }
  if (!take_u32(c, "the version", &file->version)) {
    return false;
  }
  if (file->version != 2 && file->version != 3) {
    lm_fail(c->message, ATTN_E_RANGE, "%s: GGUF version %" PRIu32 "%s; accepted are 2 and 3, little-endian", file->path,
            file->version, file->version >= 0x1000000u ? " (big-endian?)" : "");
    return false;
  }
  if (!take_u64(c, "the tensor count", &file->tensor_count) || !take_u64(c, "the key count", &file->value_count)) {
    return false;
  }
  /* the smallest key is 8 + 4 + 1 bytes, the smallest tensor entry 8 + 4 + 8 + 4 + 8 */
  return check_count(c, file->value_count, 13, "the key count") &&
         check_count(c, file->tensor_count, 32, "the tensor count");
}

static attn_status parse(gguf_file *file, attn_message *message) {
  cursor c = {file, 0, message};
  if (!read_preamble(&c, file)) {
    file->value_count = 0;
    file->tensor_count = 0;
    return ATTN_E_RANGE;
  }
  file->values = calloc((size_t)file->value_count + 1, sizeof file->values[0]);
  file->tensors = calloc((size_t)file->tensor_count + 1, sizeof file->tensors[0]);
  uint64_t *offsets = calloc((size_t)file->tensor_count + 1, sizeof offsets[0]);
  attn_status status = ATTN_OK;
  if (file->values == NULL || file->tensors == NULL || offsets == NULL) {
    status = lm_fail(message, ATTN_E_NOMEM, "%s: no memory for %" PRIu64 " keys and %" PRIu64 " tensors", file->path,
                     file->value_count, file->tensor_count);
  } else {
    status = read_values(&c, file);
    if (status == ATTN_OK) {
      status = read_tensors(&c, file, offsets);
    }
  }
  free(offsets);
  return status;
}

/* Parses into `file`; on failure releases what it took and reports the code that the message carries. */
static attn_status finish_open(gguf_file *file, attn_message *message) {
  attn_message local = {ATTN_OK, ""};
  attn_status status = parse(file, &local);
  if (status != ATTN_OK) {
    status = local.code;
    gguf_close(file);
    if (message != NULL) {
      *message = local;
    }
  }
  return status;
}

attn_status gguf_open_memory(const void *bytes, uint64_t size, const char *name, gguf_file *file,
                             attn_message *message) {
  memset(file, 0, sizeof *file);
  file->path = name;
  file->bytes = bytes;
  file->size = size;
  return finish_open(file, message);
}

attn_status gguf_open(const char *path, gguf_file *file, attn_message *message) {
  memset(file, 0, sizeof *file);
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    return lm_fail(message, ATTN_E_IO, "%s: cannot open: %s", path, strerror(errno));
  }
  struct stat info;
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    (void)close(descriptor);
    return lm_fail(message, ATTN_E_IO, "%s: not a regular file", path);
  }
  if (info.st_size < 24) {
    (void)close(descriptor);
    return lm_fail(message, ATTN_E_RANGE, "%s: %lld bytes; a GGUF file has at least 24", path, (long long)info.st_size);
  }
  void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int reason = errno;
  (void)close(descriptor);
  if (map == MAP_FAILED) {
    return lm_fail(message, ATTN_E_IO, "%s: cannot map: %s", path, strerror(reason));
  }
  file->path = path;
  file->bytes = map;
  file->size = (uint64_t)info.st_size;
  file->mapped = true;
  return finish_open(file, message);
}

void gguf_close(gguf_file *file) {
  if (file->mapped) {
    (void)munmap((void *)(uintptr_t)file->bytes, (size_t)file->size);
  }
  free(file->values);
  free(file->tensors);
  memset(file, 0, sizeof *file);
}
