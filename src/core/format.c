/* SPDX-License-Identifier: Apache-2.0 */
/* format.c: see format.h. Name, storage type and "built in" come from ATTN_FORMAT_LIST; the rest stands here. */
#include "core/format.h"

#include <stdio.h>

#define BYTES ATTN_DTYPE_BIT(ATTN_DTYPE_UINT8)
#define ROW_SCALE "zero bytes to the next multiple of 4, F32 scale"

static const attn_format_facts formats[] = {
    {.format = ATTN_FORMAT_FLOAT32,
     .dtypes = ATTN_DTYPE_BIT(ATTN_DTYPE_FLOAT32),
     .code = ATTN_CODE_FLOAT,
     .bits = 32,
     .row = "the elements"},
    {.format = ATTN_FORMAT_FLOAT16,
     .dtypes = ATTN_DTYPE_BIT(ATTN_DTYPE_FLOAT16),
     .code = ATTN_CODE_FLOAT,
     .bits = 16,
     .row = "the elements"},
    {.format = ATTN_FORMAT_BFLOAT16,
     .dtypes = ATTN_DTYPE_BIT(ATTN_DTYPE_BFLOAT16),
     .code = ATTN_CODE_FLOAT,
     .bits = 16,
     .row = "the elements"},
    {.format = ATTN_FORMAT_FP8_E4M3,
     .dtypes = ATTN_DTYPE_BIT(ATTN_DTYPE_FP8_E4M3) | BYTES,
     .code = ATTN_CODE_E4M3,
     .bits = 8,
     .scale = ATTN_SCALE_STATIC,
     .row = "one code an element; the scale is the caller's, one or one per KV head"},
    {.format = ATTN_FORMAT_FP8_E5M2,
     .dtypes = ATTN_DTYPE_BIT(ATTN_DTYPE_FP8_E5M2) | BYTES,
     .code = ATTN_CODE_E5M2,
     .bits = 8,
     .scale = ATTN_SCALE_STATIC,
     .row = "one code an element; the scale is the caller's, one or one per KV head"},
    {.format = ATTN_FORMAT_INT8_PER_TOKEN_HEAD,
     .dtypes = BYTES,
     .code = ATTN_CODE_INT8,
     .bits = 8,
     .scale = ATTN_SCALE_ROW,
     .row = "D codes, " ROW_SCALE},
    {.format = ATTN_FORMAT_FP8_PER_TOKEN_HEAD,
     .dtypes = BYTES,
     .code = ATTN_CODE_E4M3,
     .bits = 8,
     .scale = ATTN_SCALE_ROW,
     .row = "D codes, " ROW_SCALE},
    {.format = ATTN_FORMAT_INT4_PER_TOKEN_HEAD,
     .dtypes = BYTES,
     .code = ATTN_CODE_INT4,
     .bits = 4,
     .scale = ATTN_SCALE_ROW,
     .rotated = 1,
     .row = "ceil(D / 2) bytes, even element low, " ROW_SCALE " with the zero point in its low 4 bits"},
    {.format = ATTN_FORMAT_FP8_DS_MLA,
     .dtypes = BYTES,
     .code = ATTN_CODE_E4M3,
     .bits = 8,
     .latent = 1,
     .row = "656 bytes of a latent row"},
};

const attn_format_facts *attn_format_of(attn_format format) {
  for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
    if (formats[i].format == format) {
      return &formats[i];
    }
  }
  return NULL;
}

const char *attn_format_names_built(char text[ATTN_FORMAT_NAMES_BYTES]) {
  size_t used = 0;
  text[0] = '\0';
  for (size_t i = 0; i < sizeof formats / sizeof formats[0] && used < ATTN_FORMAT_NAMES_BYTES; i++) {
    if (attn_format_built(formats[i].format)) {
      int n = snprintf(text + used, ATTN_FORMAT_NAMES_BYTES - used, "%s%s", used > 0 ? ", " : "",
                       attn_format_name(formats[i].format));
      used += n > 0 ? (size_t)n : 0;
    }
  }
  return text;
}

attn_format attn_format_of_dtype(attn_dtype dtype) {
#define ATTN_MATCH(name, value, spelling, storage, built)                                                              \
  if (storage == dtype && storage != ATTN_DTYPE_UINT8) {                                                               \
    return name;                                                                                                       \
  }
  ATTN_FORMAT_LIST(ATTN_MATCH)
#undef ATTN_MATCH
  return ATTN_FORMAT_AUTO;
}

int attn_format_built(attn_format format) {
  switch (format) {
  case ATTN_FORMAT_AUTO:
    return 0;
#define ATTN_CASE(name, value, spelling, storage, built)                                                               \
  case name:                                                                                                           \
    return built;
    ATTN_FORMAT_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return 0;
}

attn_dtype attn_format_storage(attn_format format) {
  switch (format) {
  case ATTN_FORMAT_AUTO:
    return ATTN_DTYPE_DEFAULT;
#define ATTN_CASE(name, value, spelling, storage, built)                                                               \
  case name:                                                                                                           \
    return storage;
    ATTN_FORMAT_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return ATTN_DTYPE_DEFAULT;
}
