/* SPDX-License-Identifier: Apache-2.0 */
/* names.c: the public lists (status codes, element types, formats, devices, verdicts) as strings, all from their one
   list in the public headers. */
#include <string.h>

#include "attn/attn.h"

const char *attn_version(void) {
#define ATTN_TEXT_(x) #x
#define ATTN_TEXT(x) ATTN_TEXT_(x)
  return ATTN_TEXT(ATTN_VERSION_MAJOR) "." ATTN_TEXT(ATTN_VERSION_MINOR) "." ATTN_TEXT(ATTN_VERSION_PATCH);
}

const char *attn_status_name(attn_status status) {
  switch (status) {
#define ATTN_CASE(name, value, meaning, remedy)                                                                        \
  case name:                                                                                                           \
    return #name;
    ATTN_STATUS_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return "ATTN_E_UNKNOWN";
}

const char *attn_status_meaning(attn_status status) {
  switch (status) {
#define ATTN_CASE(name, value, meaning, remedy)                                                                        \
  case name:                                                                                                           \
    return meaning;
    ATTN_STATUS_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return "a status that this library does not know";
}

const char *attn_status_remedy(attn_status status) {
  switch (status) {
#define ATTN_CASE(name, value, meaning, remedy)                                                                        \
  case name:                                                                                                           \
    return remedy;
    ATTN_STATUS_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return "link the library that belongs to the header";
}

const char *attn_dtype_name(attn_dtype dtype) {
  switch (dtype) {
  case ATTN_DTYPE_DEFAULT:
    return "default";
#define ATTN_CASE(name, value, spelling, bytes, code, bits)                                                            \
  case name:                                                                                                           \
    return spelling;
    ATTN_DTYPE_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return "unknown";
}

attn_dtype attn_dtype_from_name(const char *name) {
  if (name != NULL) {
#define ATTN_MATCH(dtype, value, spelling, bytes, code, bits)                                                          \
  if (strcmp(name, spelling) == 0) {                                                                                   \
    return dtype;                                                                                                      \
  }
    ATTN_DTYPE_LIST(ATTN_MATCH)
#undef ATTN_MATCH
  }
  return ATTN_DTYPE_DEFAULT;
}

size_t attn_dtype_bytes(attn_dtype dtype) {
  switch (dtype) {
  case ATTN_DTYPE_DEFAULT:
    return 0;
#define ATTN_CASE(name, value, spelling, bytes, code, bits)                                                            \
  case name:                                                                                                           \
    return bytes;
    ATTN_DTYPE_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return 0;
}

DLDataType attn_dtype_to_dlpack(attn_dtype dtype) {
  DLDataType type = {0, 0, 0};
  switch (dtype) {
  case ATTN_DTYPE_DEFAULT:
    break;
#define ATTN_CASE(name, value, spelling, bytes, dlpack_code, dlpack_bits)                                              \
  case name:                                                                                                           \
    type.code = (uint8_t)dlpack_code;                                                                                  \
    type.bits = (uint8_t)dlpack_bits;                                                                                  \
    type.lanes = 1;                                                                                                    \
    break;
    ATTN_DTYPE_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return type;
}

attn_dtype attn_dtype_from_dlpack(DLDataType dtype) {
  if (dtype.lanes == 1) {
#define ATTN_MATCH(name, value, spelling, bytes, dlpack_code, dlpack_bits)                                             \
  if (dtype.code == (uint8_t)dlpack_code && dtype.bits == dlpack_bits) {                                               \
    return name;                                                                                                       \
  }
    ATTN_DTYPE_LIST(ATTN_MATCH)
#undef ATTN_MATCH
  }
  return ATTN_DTYPE_DEFAULT;
}

void attn_tensor_cpu(DLTensor *tensor, void *data, attn_dtype dtype, int32_t ndim, int64_t *shape) {
  if (tensor == NULL) {
    return;
  }
  tensor->data = data;
  tensor->device.device_type = kDLCPU;
  tensor->device.device_id = 0;
  tensor->ndim = ndim;
  tensor->dtype = attn_dtype_to_dlpack(dtype);
  tensor->shape = shape;
  tensor->strides = NULL;
  tensor->byte_offset = 0;
}

const char *attn_format_name(attn_format format) {
  switch (format) {
  case ATTN_FORMAT_AUTO:
    return "auto";
#define ATTN_CASE(name, value, spelling, storage, rows)                                                                \
  case name:                                                                                                           \
    return spelling;
    ATTN_FORMAT_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return "unknown";
}

int attn_format_from_name(const char *name, attn_format *format) {
  if (name == NULL || format == NULL) {
    return 0;
  }
  if (strcmp(name, "auto") == 0) {
    *format = ATTN_FORMAT_AUTO;
    return 1;
  }
#define ATTN_MATCH(id, value, spelling, storage, rows)                                                                 \
  if (strcmp(name, spelling) == 0) {                                                                                   \
    *format = id;                                                                                                      \
    return 1;                                                                                                          \
  }
  ATTN_FORMAT_LIST(ATTN_MATCH)
#undef ATTN_MATCH
  return 0;
}

const char *attn_device_kind_name(attn_device_kind kind) {
  switch (kind) {
#define ATTN_CASE(name, value, spelling, dlpack, built)                                                                \
  case name:                                                                                                           \
    return spelling;
    ATTN_DEVICE_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return "unknown";
}

const char *attn_verdict_name(attn_verdict verdict) {
  switch (verdict) {
  case ATTN_VERDICT_TAKEN:
    return "taken";
  case ATTN_VERDICT_ABLE:
    return "able";
  case ATTN_VERDICT_REFUSED:
    return "refused";
  case ATTN_VERDICT_NOT_BUILT:
    return "not built";
  case ATTN_VERDICT_FOREIGN:
    return "foreign";
  }
  return "unknown";
}
