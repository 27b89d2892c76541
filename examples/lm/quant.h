/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor types of GGUF: block geometry and conversion to float32. One table holds everything that the reader and the
 * model know about a type; a type whose `to_float` is NULL is known by name only and refused by it.
 */
#ifndef LM_QUANT_H
#define LM_QUANT_H

#include <stdint.h>

typedef struct quant_type {
  uint32_t id; /**< ggml type number in the file */
  const char *name;
  uint32_t block_elements;
  uint32_t block_bytes;
  /** out[i] = value of element i, for `elements` elements (a multiple of block_elements). NULL: not supported. */
  void (*to_float)(const uint8_t *blocks, uint64_t elements, float *out);
} quant_type;

/** The entry of a type number, or NULL if it is in no list. */
const quant_type *quant_find(uint32_t id);

/** Names of the supported types, for messages. */
const char *quant_supported_names(void);

/** Exact value of an IEEE binary16. */
float quant_half_to_float(uint16_t bits);

#endif
