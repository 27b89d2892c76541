/* SPDX-License-Identifier: Apache-2.0 */
/* Names of cache formats: see lm_formats.h. The names themselves are the library's. */
#include "lm_formats.h"

#include <stdio.h>
#include <string.h>

static const char suffix[] = "+separate_scales";

typedef struct known_format {
  attn_format format;
  int built;
} known_format;

#define KNOWN_FORMAT(name, value, spelling, storage, rows) {name, ((rows)&ATTN_ROWS_KV) != 0},
static const known_format known[] = {ATTN_FORMAT_LIST(KNOWN_FORMAT)};
#undef KNOWN_FORMAT

static bool has_row_scales(attn_format format) {
  return format == ATTN_FORMAT_INT8_PER_TOKEN_HEAD || format == ATTN_FORMAT_FP8_PER_TOKEN_HEAD ||
         format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD;
}

static bool is_built(attn_format format) {
  bool found = false;
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    found = found || (known[i].format == format && known[i].built);
  }
  return found;
}

/* The `length` bytes at `text`. */
static bool parse_one(const char *text, size_t length, lm_format *out) {
  char name[64];
  const size_t end = sizeof suffix - 1;
  out->separate_scales = length > end && memcmp(text + length - end, suffix, end) == 0;
  length -= out->separate_scales ? end : 0;
  if (length >= sizeof name) {
    return false;
  }
  memcpy(name, text, length);
  name[length] = '\0';
  return attn_format_from_name(name, &out->format) && is_built(out->format) &&
         (!out->separate_scales || has_row_scales(out->format));
}

attn_status lm_formats_parse(const char *option, const char *text, lm_formats *out, attn_message *message) {
  lm_formats formats;
  const char *comma = strchr(text, ',');
  const size_t length = comma != NULL ? (size_t)(comma - text) : strlen(text);
  bool valid = parse_one(text, length, &formats.k);
  formats.v = formats.k;
  if (valid && comma != NULL) {
    valid = parse_one(comma + 1, strlen(comma + 1), &formats.v);
  }
  if (!valid) {
    const lm_quoted found = lm_quote(text, strlen(text));
    return lm_fail(message, ATTN_E_NAME,
                   "%s is %s; accepted are K or K,V of %s, those that end in _per_token_head also with %s", option,
                   found.text, lm_formats_list().text, suffix);
  }
  *out = formats;
  return ATTN_OK;
}

static void append(lm_formats_text *text, const char *word) {
  const size_t used = strlen(text->text);
  (void)snprintf(text->text + used, sizeof text->text - used, "%s", word);
}

static void append_format(lm_formats_text *text, const lm_format *format) {
  append(text, attn_format_name(format->format));
  append(text, format->separate_scales ? suffix : "");
}

lm_formats_text lm_formats_name(const lm_formats *formats) {
  lm_formats_text name = {""};
  append_format(&name, &formats->k);
  if (formats->v.format != formats->k.format || formats->v.separate_scales != formats->k.separate_scales) {
    append(&name, ",");
    append_format(&name, &formats->v);
  }
  return name;
}

lm_formats_text lm_formats_list(void) {
  lm_formats_text list = {""};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    if (known[i].built) {
      append(&list, list.text[0] != '\0' ? ", " : "");
      append(&list, attn_format_name(known[i].format));
    }
  }
  return list;
}

attn_separate_scales lm_formats_separate(const lm_formats *formats) {
  if (formats->k.separate_scales && formats->v.separate_scales) {
    return ATTN_SEPARATE_BOTH;
  }
  return formats->k.separate_scales   ? ATTN_SEPARATE_K
         : formats->v.separate_scales ? ATTN_SEPARATE_V
                                      : ATTN_SEPARATE_NONE;
}

float lm_format_static_range(attn_format format) {
  return format == ATTN_FORMAT_FP8_E4M3 ? 448.0f : format == ATTN_FORMAT_FP8_E5M2 ? 57344.0f : 0.0f;
}
