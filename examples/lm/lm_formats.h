/* SPDX-License-Identifier: Apache-2.0 */
/* The formats of a cache as the command line names them: "NAME" for keys and values, or "NAME,NAME" for each. */
#ifndef LM_FORMATS_H
#define LM_FORMATS_H

#include "lm_error.h"

#include <attn/attn.h>
#include <stdbool.h>

typedef struct lm_format {
  attn_format format;
  bool separate_scales; /**< each row's scale lies outside the row: "+separate_scales" behind the name */
} lm_format;

typedef struct lm_formats {
  lm_format k;
  lm_format v;
} lm_formats;

/** Long enough for a pair of the longest names, and for the list of all names. */
typedef struct lm_formats_text {
  char text[160];
} lm_formats_text;

/** Formats of the library's own names. ATTN_E_NAME: none of them; the message names `option` and what is accepted. */
ATTN_NODISCARD attn_status lm_formats_parse(const char *option, const char *text, lm_formats *out,
                                            attn_message *message);

/** As lm_formats_parse takes them; a single name where both are the same. */
lm_formats_text lm_formats_name(const lm_formats *formats);

/** The names that are built in, with commas. */
lm_formats_text lm_formats_list(void);

/** The library's word for where the scales lie. */
attn_separate_scales lm_formats_separate(const lm_formats *formats);

/** The largest value of a format that has static scales, fp8_e4m3 or fp8_e5m2; 0 for the others. */
float lm_format_static_range(attn_format format);

#endif
