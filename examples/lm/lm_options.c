/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of `attn-lm generate`: one table of flags, values checked as they are read. */
#include "lm_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *lm_options_help(void) {
  return "usage: attn-lm generate --model FILE (--prompt TEXT | --ids LIST)... [options]\n"
         "\n"
         "Continues each prompt greedily with a GGUF model of the llama family, all prompts in one continuous batch.\n"
         "\n"
         "  --model FILE           GGUF file: tensors F32, F16, Q8_0, Q4_1; its own tokenizer is used\n"
         "  --prompt TEXT          a prompt in UTF-8; may be given again for more prompts\n"
         "  --ids LIST             a prompt as token ids, \"1,2,3\"; may be given again\n"
         "  --chatml               make each --prompt a ChatML turn, after the template's default system turn\n"
         "  --max-tokens N         most tokens to generate for each prompt (default 128)\n"
         "  --threads N            threads (default: one per processor)\n"
         "  --cache-format NAME    float32, float16 or bfloat16: how keys and values are stored (default float32)\n"
         "  --compute NAME         float32, the only one yet\n"
         "  --backend NAME         attention backend (default: the library chooses, or ATTN_BACKEND)\n"
         "  --batch-invariant      attention results that do not depend on what else is in the batch\n"
         "  --alone                one prompt after the other instead of all in one batch\n"
         "  --block-size N         positions per cache block (default: what the backend prefers)\n"
         "  --max-batch-tokens N   most tokens of one step (default 512)\n"
         "  --json                 print one JSON object instead of text\n"
         "  --logits FILE          write the first step's logits of each prompt as raw float32\n"
         "\n"
         "Generation of a prompt stops at the file's eos_token_id, after --max-tokens, or at the model's context\n"
         "length. Exit status: 0; 1 if a valid call failed; 2 for bad input or a refusal.\n";
}

static attn_status parse_count(const char *flag, const char *text, long most, int32_t *out, attn_message *message) {
  char *end = NULL;
  errno = 0;
  const long value = strtol(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < 1 || value > most) {
    const lm_quoted found = lm_quote(text, strlen(text));
    return lm_fail(message, ATTN_E_RANGE, "%s is %s; accepted are 1 to %ld", flag, found.text, most);
  }
  *out = (int32_t)value;
  return ATTN_OK;
}

static attn_status parse_format(const char *text, attn_format *out, attn_message *message) {
  attn_format format = ATTN_FORMAT_AUTO;
  if (attn_format_from_name(text, &format) &&
      (format == ATTN_FORMAT_FLOAT32 || format == ATTN_FORMAT_FLOAT16 || format == ATTN_FORMAT_BFLOAT16)) {
    *out = format;
    return ATTN_OK;
  }
  const lm_quoted found = lm_quote(text, strlen(text));
  return lm_fail(message, ATTN_E_NAME, "--cache-format is %s; accepted are float32, float16, bfloat16", found.text);
}

typedef enum flag_id {
  FLAG_MODEL,
  FLAG_PROMPT,
  FLAG_IDS,
  FLAG_CHATML,
  FLAG_MAX_TOKENS,
  FLAG_THREADS,
  FLAG_CACHE_FORMAT,
  FLAG_COMPUTE,
  FLAG_BACKEND,
  FLAG_BATCH_INVARIANT,
  FLAG_ALONE,
  FLAG_BLOCK_SIZE,
  FLAG_MAX_BATCH_TOKENS,
  FLAG_JSON,
  FLAG_LOGITS,
  FLAG_HELP
} flag_id;

typedef struct flag {
  const char *name;
  flag_id id;
  bool has_value;
} flag;

static const flag flags[] = {
    {"--model", FLAG_MODEL, true},
    {"--prompt", FLAG_PROMPT, true},
    {"--ids", FLAG_IDS, true},
    {"--chatml", FLAG_CHATML, false},
    {"--max-tokens", FLAG_MAX_TOKENS, true},
    {"--threads", FLAG_THREADS, true},
    {"--cache-format", FLAG_CACHE_FORMAT, true},
    {"--compute", FLAG_COMPUTE, true},
    {"--backend", FLAG_BACKEND, true},
    {"--batch-invariant", FLAG_BATCH_INVARIANT, false},
    {"--alone", FLAG_ALONE, false},
    {"--block-size", FLAG_BLOCK_SIZE, true},
    {"--max-batch-tokens", FLAG_MAX_BATCH_TOKENS, true},
    {"--json", FLAG_JSON, false},
    {"--logits", FLAG_LOGITS, true},
    {"--help", FLAG_HELP, false},
};

static const flag *find_flag(const char *name) {
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
    if (strcmp(flags[i].name, name) == 0) {
      return &flags[i];
    }
  }
  return NULL;
}

static attn_status apply(const flag *f, const char *value, lm_options *options, attn_message *message) {
  switch (f->id) {
  case FLAG_MODEL:
    options->model = value;
    break;
  case FLAG_PROMPT:
    options->prompts[options->prompt_count++] = (lm_prompt){value, NULL};
    break;
  case FLAG_IDS:
    options->prompts[options->prompt_count++] = (lm_prompt){NULL, value};
    break;
  case FLAG_CHATML:
    options->chatml = true;
    break;
  case FLAG_MAX_TOKENS:
    return parse_count(f->name, value, INT32_MAX / 4, &options->max_tokens, message);
  case FLAG_THREADS:
    return parse_count(f->name, value, 1024, &options->threads, message);
  case FLAG_CACHE_FORMAT:
    return parse_format(value, &options->format, message);
  case FLAG_COMPUTE:
    if (strcmp(value, "float32") != 0) {
      const lm_quoted found = lm_quote(value, strlen(value));
      return lm_fail(message, ATTN_E_NAME, "--compute is %s; accepted is float32", found.text);
    }
    break;
  case FLAG_BACKEND:
    options->backend = value;
    break;
  case FLAG_BATCH_INVARIANT:
    options->batch_invariant = true;
    break;
  case FLAG_ALONE:
    options->alone = true;
    break;
  case FLAG_BLOCK_SIZE:
    return parse_count(f->name, value, 65536, &options->block_size, message);
  case FLAG_MAX_BATCH_TOKENS:
    return parse_count(f->name, value, 65536, &options->max_batch_tokens, message);
  case FLAG_JSON:
    options->json = true;
    break;
  case FLAG_LOGITS:
    options->logits = value;
    break;
  case FLAG_HELP:
    options->help = true;
    break;
  }
  return ATTN_OK;
}

static attn_status parse_all(int count, char **arguments, lm_options *options, attn_message *message) {
  bool seen[sizeof flags / sizeof flags[0]] = {false};
  for (int i = 0; i < count; i++) {
    const flag *f = find_flag(arguments[i]);
    if (f == NULL) {
      const lm_quoted found = lm_quote(arguments[i], strlen(arguments[i]));
      return lm_fail(message, ATTN_E_NAME, "unknown argument %s; attn-lm generate --help lists what is accepted",
                     found.text);
    }
    if (seen[f - flags] && f->id != FLAG_PROMPT && f->id != FLAG_IDS) {
      return lm_fail(message, ATTN_E_NAME, "%s is given twice; accepted is once", f->name);
    }
    seen[f - flags] = true;
    const char *value = NULL;
    if (f->has_value) {
      if (i + 1 == count) {
        return lm_fail(message, ATTN_E_NAME, "%s wants a value", f->name);
      }
      value = arguments[++i];
    }
    const attn_status status = apply(f, value, options, message);
    if (status != ATTN_OK || options->help) {
      return status;
    }
  }
  return ATTN_OK;
}

attn_status lm_options_parse(int count, char **arguments, lm_options *options, attn_message *message) {
  *options = (lm_options){0};
  options->max_tokens = 128;
  options->max_batch_tokens = 512;
  options->format = ATTN_FORMAT_FLOAT32;
  options->prompts = calloc((size_t)count + 1, sizeof options->prompts[0]);
  if (options->prompts == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for %d arguments", count);
  }
  attn_status status = parse_all(count, arguments, options, message);
  if (status == ATTN_OK && !options->help) {
    if (options->model == NULL) {
      status = lm_fail(message, ATTN_E_NULL, "--model FILE is missing");
    } else if (options->prompt_count == 0) {
      status = lm_fail(message, ATTN_E_NULL, "no prompt; give --prompt TEXT or --ids LIST");
    }
  }
  if (status != ATTN_OK) {
    lm_options_free(options);
  }
  return status;
}

void lm_options_free(lm_options *options) {
  free(options->prompts);
  options->prompts = NULL;
  options->prompt_count = 0;
}
