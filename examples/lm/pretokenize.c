/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pre-tokenizers: digits first, each a piece of its own, then the GPT-2 pattern on every stretch between them, so that
 * the pattern's look-ahead never sees across a digit. White space is spelt out, because PCRE2's \s and Unicode's
 * White_Space differ (U+180E). The text is checked once here; PCRE2 is told not to check it again for every match.
 */
#include "pretokenize.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#if ATTN_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

#define SPACE                                                                                                          \
  "\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

typedef struct known_cutter {
  const char *name;    /* tokenizer.ggml.pre */
  const char *digit;   /* a match is a piece of its own, before anything else */
  const char *pattern; /* each match between digits is a piece; so is what lies between matches */
} known_cutter;

static const known_cutter known[] = {
    {"smollm", "\\p{N}",
     "'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"},
};

#if ATTN_HAVE_PCRE2

struct pretokenizer {
  pcre2_code *digit;
  pcre2_code *pattern;
};

static pcre2_code *compile(const char *pattern, attn_message *message) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code *compiled =
      pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
  if (compiled == NULL) {
    lm_fail(message, ATTN_E_INTERNAL, "PCRE2 refused the pre-tokenizer's pattern at %zu (code %d)", (size_t)offset,
            code);
  }
  return compiled;
}

static attn_status compile_cutter(const known_cutter *entry, pretokenizer **out, attn_message *message) {
  pretokenizer *cutter = calloc(1, sizeof *cutter);
  if (cutter == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the pre-tokenizer");
  }
  cutter->digit = compile(entry->digit, message);
  cutter->pattern = cutter->digit != NULL ? compile(entry->pattern, message) : NULL;
  if (cutter->pattern == NULL) {
    pretokenizer_free(cutter);
    return ATTN_E_INTERNAL;
  }
  *out = cutter;
  return ATTN_OK;
}

void pretokenizer_free(pretokenizer *cutter) {
  if (cutter != NULL) {
    pcre2_code_free(cutter->digit);
    pcre2_code_free(cutter->pattern);
    free(cutter);
  }
}

/* The sink that a stretch between two matches goes to, and the one for a match. */
typedef struct stage {
  pcre2_code *pattern;
  pcre2_match_data *match;
  pretokenizer_sink on_match;
  pretokenizer_sink on_rest;
  void *match_context;
  void *rest_context;
} stage;

static attn_status run_stage(const stage *s, const char *text, size_t length, attn_message *message) {
  size_t done = 0;
  while (done < length) {
    const int found = pcre2_match(s->pattern, (PCRE2_SPTR)text, length, done, PCRE2_NO_UTF_CHECK, s->match, NULL);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
      return lm_fail(message, ATTN_E_NOMEM, "PCRE2 stopped at byte %zu of a prompt with code %d", done, found);
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(s->match);
    const size_t start = found > 0 ? span[0] : length;
    const size_t end = found > 0 ? span[1] : length;
    attn_status status = ATTN_OK;
    if (start > done) {
      status = s->on_rest(s->rest_context, text + done, start - done, message);
    }
    if (status == ATTN_OK && end > start) {
      status = s->on_match(s->match_context, text + start, end - start, message);
    }
    if (status != ATTN_OK) {
      return status;
    }
    done = end;
  }
  return ATTN_OK;
}

static attn_status cut_stretch(void *context, const char *text, size_t length, attn_message *message) {
  return run_stage(context, text, length, message);
}

attn_status pretokenizer_cut(const pretokenizer *cutter, const char *text, size_t length, pretokenizer_sink sink,
                             void *context, attn_message *message) {
  pcre2_match_data *digit_match = pcre2_match_data_create_from_pattern(cutter->digit, NULL);
  pcre2_match_data *word_match = pcre2_match_data_create_from_pattern(cutter->pattern, NULL);
  attn_status status = ATTN_OK;
  if (digit_match == NULL || word_match == NULL) {
    status = lm_fail(message, ATTN_E_NOMEM, "no memory for the pre-tokenizer");
  } else {
    stage words = {cutter->pattern, word_match, sink, sink, context, context};
    const stage digits = {cutter->digit, digit_match, sink, cut_stretch, context, &words};
    status = run_stage(&digits, text, length, message);
  }
  pcre2_match_data_free(digit_match);
  pcre2_match_data_free(word_match);
  return status;
}

#else

struct pretokenizer {
  const known_cutter *entry;
};

static attn_status compile_cutter(const known_cutter *entry, pretokenizer **out, attn_message *message) {
  *out = malloc(sizeof **out);
  if (*out == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the pre-tokenizer");
  }
  (*out)->entry = entry;
  return ATTN_OK;
}

void pretokenizer_free(pretokenizer *cutter) {
  free(cutter);
}

attn_status pretokenizer_cut(const pretokenizer *cutter, const char *text, size_t length, pretokenizer_sink sink,
                             void *context, attn_message *message) {
  (void)text, (void)length, (void)sink, (void)context;
  return lm_fail(message, ATTN_E_UNSUPPORTED,
                 "text prompts need PCRE2 (pre-tokenizer '%s'), which this build has not; give token ids by --ids",
                 cutter->entry->name);
}

#endif

attn_status pretokenizer_create(gguf_string name, pretokenizer **out, attn_message *message) {
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    if (gguf_string_equals(name, known[i].name)) {
      return compile_cutter(&known[i], out, message);
    }
  }
  const lm_quoted found = lm_quote(name.data, name.length);
  return lm_fail(message, ATTN_E_NAME, "tokenizer.ggml.pre is %s; accepted is 'smollm'", found.text);
}
