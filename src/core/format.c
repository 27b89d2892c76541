/* SPDX-License-Identifier: Apache-2.0 */
/* format.c: see format.h. Name, storage type and kinds of rows come from ATTN_FORMAT_LIST; the rest stands here. */
#include "core/format.h"

#include <stdio.h>

#define BYTES ATTN_DTYPE_BIT(ATTN_DTYPE_UINT8)
#define ROW_SCALE "zeros to the next multiple of 4, scale"
#define LATENT_ROW ", zeros to the next multiple of 4, R rotary elements, zeros to the next multiple of 4, scale"

static const attn_format_facts formats[] = {
    {.format = ATTN_FORMAT_FLOAT32,
     .dtypes = ATTN_DTYPE_BIT(ATTN_DTYPE_FLOAT32),
     .code = ATTN_CODE_FLOAT,
     .bits = 32,
     .row = "D elements",
     .latent_row = "L + R elements"},
    {.format = ATTN_FORMAT_FLOAT16,
     .dtypes = ATTN_DTYPE_BIT(ATTN_DTYPE_FLOAT16),
     .code = ATTN_CODE_FLOAT,
     .bits = 16,
     .row = "D elements",
     .latent_row = "L + R elements"},
    {.format = ATTN_FORMAT_BFLOAT16,
     .dtypes = ATTN_DTYPE_BIT(ATTN_DTYPE_BFLOAT16),
     .code = ATTN_CODE_FLOAT,
     .bits = 16,
     .row = "D elements",
     .latent_row = "L + R elements"},
    {.format = ATTN_FORMAT_FP8_E4M3,
     .dtypes = ATTN_DTYPE_BIT(ATTN_DTYPE_FP8_E4M3) | BYTES,
     .code = ATTN_CODE_E4M3,
     .bits = 8,
     .scale = ATTN_SCALE_STATIC,
     .row = "D codes",
     .latent_row = "L + R codes"},
    {.format = ATTN_FORMAT_FP8_E5M2,
     .dtypes = ATTN_DTYPE_BIT(ATTN_DTYPE_FP8_E5M2) | BYTES,
     .code = ATTN_CODE_E5M2,
     .bits = 8,
     .scale = ATTN_SCALE_STATIC,
     .row = "D codes"},
    {.format = ATTN_FORMAT_INT8_PER_TOKEN_HEAD,
     .dtypes = BYTES,
     .code = ATTN_CODE_INT8,
     .bits = 8,
     .scale = ATTN_SCALE_ROW,
     .row = "D codes, " ROW_SCALE,
     .latent_row = "L codes" LATENT_ROW},
    {.format = ATTN_FORMAT_FP8_PER_TOKEN_HEAD,
     .dtypes = BYTES,
     .code = ATTN_CODE_E4M3,
     .bits = 8,
     .scale = ATTN_SCALE_ROW,
     .row = "D codes, " ROW_SCALE,
     .latent_row = "L codes" LATENT_ROW},
    {.format = ATTN_FORMAT_INT4_PER_TOKEN_HEAD,
     .dtypes = BYTES,
     .code = ATTN_CODE_INT4,
     .bits = 4,
     .scale = ATTN_SCALE_ROW,
     .rotated = 1,
     .row = "ceil(D / 2) bytes, the even element in the low nibble, " ROW_SCALE,
     .latent_row = "ceil(L / 2) bytes" LATENT_ROW},
    {.format = ATTN_FORMAT_FP8_DS_MLA,
     .dtypes = BYTES,
     .code = ATTN_CODE_E4M3,
     .bits = 8,
     .scale = ATTN_SCALE_TILE,
     .row = "latent rows alone",
     .latent_row = "512 codes, 4 scales, 64 rotary elements: 656 bytes"},
};

const attn_format_facts *attn_format_of(attn_format format) {
  for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
    if (formats[i].format == format) {
      return &formats[i];
    }
  }
  return NULL;
}

void attn_format_type_words(const attn_format_facts *facts, char text[64]) {
  size_t used = 0;
  text[0] = '\0';
#define ATTN_APPEND(name, value, spelling, bytes, code, bits)                                                          \
  if ((facts->dtypes & ATTN_DTYPE_BIT(name)) != 0 && used < 64) {                                                      \
    int n = snprintf(text + used, 64 - used, "%s%s", used > 0 ? ", " : "", spelling);                                  \
    used += n > 0 ? (size_t)n : 0;                                                                                     \
  }
  ATTN_DTYPE_LIST(ATTN_APPEND)
#undef ATTN_APPEND
}

const char *attn_format_scale_words(const attn_format_facts *facts) {
  switch (facts->scale) {
  case ATTN_SCALE_STATIC:
    return "static: one, or one per KV head; 1 where none is given";
  case ATTN_SCALE_ROW:
    return facts->code == ATTN_CODE_INT4 ? "float32 of each row, its low 4 bits the zero point" : "float32 of each row";
  case ATTN_SCALE_TILE:
    return "float32 of each 128 elements";
  default:
    return "none";
  }
}

const char *attn_row_kind_words(attn_row_kind kind) {
  return kind == ATTN_ROWS_LATENT ? "latent rows" : "rows of K and V";
}

const char *attn_format_names(attn_row_kind kind, char text[ATTN_FORMAT_NAMES_BYTES]) {
  size_t used = 0;
  text[0] = '\0';
  for (size_t i = 0; i < sizeof formats / sizeof formats[0] && used < ATTN_FORMAT_NAMES_BYTES; i++) {
    if (attn_format_serves(formats[i].format, kind)) {
      int n = snprintf(text + used, ATTN_FORMAT_NAMES_BYTES - used, "%s%s", used > 0 ? ", " : "",
                       attn_format_name(formats[i].format));
      used += n > 0 ? (size_t)n : 0;
    }
  }
  return text;
}

attn_format attn_format_of_dtype(attn_dtype dtype) {
#define ATTN_MATCH(name, value, spelling, storage, rows)                                                               \
  if (storage == dtype && storage != ATTN_DTYPE_UINT8) {                                                               \
    return name;                                                                                                       \
  }
  ATTN_FORMAT_LIST(ATTN_MATCH)
#undef ATTN_MATCH
  return ATTN_FORMAT_AUTO;
}

int attn_format_serves(attn_format format, attn_row_kind kind) {
  switch (format) {
  case ATTN_FORMAT_AUTO:
    return 0;
#define ATTN_CASE(name, value, spelling, storage, rows)                                                                \
  case name:                                                                                                           \
    return ((rows) & (int)kind) != 0;
    ATTN_FORMAT_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return 0;
}

attn_dtype attn_format_storage(attn_format format) {
  switch (format) {
  case ATTN_FORMAT_AUTO:
    return ATTN_DTYPE_DEFAULT;
#define ATTN_CASE(name, value, spelling, storage, rows)                                                                \
  case name:                                                                                                           \
    return storage;
    ATTN_FORMAT_LIST(ATTN_CASE)
#undef ATTN_CASE
  }
  return ATTN_DTYPE_DEFAULT;
}
