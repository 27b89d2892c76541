/* SPDX-License-Identifier: Apache-2.0 */
/* load.h: entries of borrowed tensors, read whatever their alignment. REFERENCE has readers of its own on purpose: what
   checks the others shares nothing with them. */
#ifndef ATTN_CORE_LOAD_H
#define ATTN_CORE_LOAD_H

#include <stdint.h>
#include <string.h>

#include "core/view.h"

static inline int32_t attn_load_int32(const unsigned char *address) {
  int32_t value;
  memcpy(&value, address, sizeof value);
  return value;
}

static inline int64_t attn_load_int64(const unsigned char *address) {
  int64_t value;
  memcpy(&value, address, sizeof value);
  return value;
}

static inline float attn_load_float(const unsigned char *address) {
  float value;
  memcpy(&value, address, sizeof value);
  return value;
}

/* Entry i of a list, a view of one axis. */
static inline int32_t attn_int32_at(const attn_view *list, int64_t i) {
  return attn_load_int32(list->data + i * list->stride[0]);
}

static inline int64_t attn_int64_at(const attn_view *list, int64_t i) {
  return attn_load_int64(list->data + i * list->stride[0]);
}

static inline float attn_float_at(const attn_view *list, int64_t i) {
  return attn_load_float(list->data + i * list->stride[0]);
}

#endif
