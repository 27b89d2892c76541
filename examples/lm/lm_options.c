/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of attn-lm. One table holds all that is known of a flag: its help, the commands that have it and
 * whether it takes a value; a second one describes the commands. Values are checked as they are read.
 */
#include "lm_options.h"

#include "help_text.h"
#include "quant.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct command_text {
  const char *name;
  const char *arguments;
  const char *summary;
  const char *text;
  const char *names; /* of --json; NULL: the command has none */
  const char *examples;
} command_text;

static const command_text commands[LM_COMMAND_COUNT] = {
    [LM_GENERATE] =
        {"generate", "(--prompt TEXT | --prompt-file FILE | --ids LIST)... [flags]",
         "continue prompts with a GGUF model",
         "Continues each prompt, all in one continuous batch: greedily, or by sampling where --temperature is above "
         "0. Of a single prompt the text appears as it is made. Sampling takes the penalty, the temperature, top-k, "
         "top-p and min-p in this order; candidates stand by logit, equals by id. The same --seed gives each prompt "
         "its own random stream, whatever else is in the batch.\n"
         "\n"
         "Generation of a prompt stops at the file's eos_token_id, after --max-tokens, or at the model's context "
         "length.\n"
         "\n"
         "Prompts that begin alike share the cache blocks of what they have in common. The cache need not hold all "
         "prompts: those that do not fit wait, and where a running one cannot go on, the one that started last "
         "gives its blocks back and continues later, without any of its text being lost.",
         "prompts (ids, continuation, text, stop: eos or length, min_gap of the two best logits, preemptions), "
         "prefill_tokens, prefill_tokens_per_second, decode_tokens, decode_tokens_per_second, steps, cache_bytes, "
         "of the blocks cache_blocks, block_size, peak_blocks, blocks_in_use at the end, evictions, shared_blocks, "
         "shared_tokens, peak_shared_blocks, forks, copied_blocks, preemptions, resumes, resumed_tokens, "
         "recomputed_tokens; compute, cache_format, backend, gemm, threads",
         "  attn-lm generate --model model.gguf --chatml --prompt \"What is the capital of France?\"\n"
         "  attn-lm generate --model model.gguf --prompt-file story.txt --temperature 0.8 --seed 3 --max-tokens "
         "200\n"},
    [LM_CHAT] =
        {"chat", "[flags]", "converse by turns read from standard input",
         "Reads a turn per line from standard input until it ends, and answers each after the file's chat template, "
         "which has to be the plain ChatML form. Empty lines are skipped. The conversation ends with an error once "
         "it does not fit into --context.",
         NULL,
         "  attn-lm chat --model model.gguf\n"
         "  printf 'Hello.\\nAnd now in French.\\n' | attn-lm chat --model model.gguf --max-tokens 60\n"},
    [LM_PERPLEXITY] =
        {"perplexity", "--file FILE [flags]", "measure how well a model predicts a text",
         "Cuts the text's token ids into windows: window k is the file's bos_token_id, then the 1023 ids from 512 k "
         "on. The log-probabilities of its last 512 ids count; a last window that is not full is dropped. Prints "
         "exp(-mean).\n"
         "\n"
         "With --all-formats every window is computed with each format of the cache and with pairs of them, in "
         "float32: bytes of a token in the cache, perplexity, KL divergence in nats from the float32 cache, and at "
         "how many of the first 256 counted positions the best token is the float32 cache's. The static scales of "
         "fp8_e4m3 and fp8_e5m2 are 1; with --kv-scales auto each layer and KV head has, for keys and for values, "
         "the largest absolute value of the first window divided by 448 (fp8_e5m2: 57344). With both --all-formats "
         "shows these formats twice, and says which scales.",
         "perplexity, mean_negative_log_probability, windows, counted_tokens, seconds, compute, cache_format, "
         "backend, gemm, threads, kv_scales, ids (the text's); with --all-formats a list of objects: format, "
         "kv_scales (with both), bytes_per_token, perplexity, kl, agree",
         "  attn-lm perplexity --model model.gguf --file text.txt\n"
         "  attn-lm perplexity --model model.gguf --file text.txt --all-formats --json\n"},
    [LM_BENCH] =
        {"bench", "[flags]", "measure prefill and decode speed",
         "For each length: tokens per second of a prompt of so many tokens, and of one sequence's 16 decode steps "
         "behind so many. Medians over --repeat runs.",
         "compute, cache_format, backend, gemm, threads, repeat, results (length, prefill_tokens_per_second, "
         "decode_tokens_per_second)",
         "  attn-lm bench --model model.gguf\n"
         "  attn-lm bench --model model.gguf --lengths 64,1024 --threads 1 --json\n"},
};

typedef enum flag_id {
  FLAG_MODEL,
  FLAG_PROMPT,
  FLAG_PROMPT_FILE,
  FLAG_IDS,
  FLAG_CHATML,
  FLAG_FILE,
  FLAG_LENGTHS,
  FLAG_REPEAT,
  FLAG_MAX_TOKENS,
  FLAG_CONTEXT,
  FLAG_TEMPERATURE,
  FLAG_TOP_K,
  FLAG_TOP_P,
  FLAG_MIN_P,
  FLAG_REPETITION_PENALTY,
  FLAG_SEED,
  FLAG_THREADS,
  FLAG_CACHE_FORMAT,
  FLAG_ALL_FORMATS,
  FLAG_KV_SCALES,
  FLAG_COMPUTE,
  FLAG_BACKEND,
  FLAG_BATCH_INVARIANT,
  FLAG_ALONE,
  FLAG_BLOCK_SIZE,
  FLAG_CACHE_BLOCKS,
  FLAG_NO_PREFIX_CACHE,
  FLAG_MAX_BATCH_TOKENS,
  FLAG_JSON,
  FLAG_LOGITS,
  FLAG_HELP,
  FLAG_COUNT
} flag_id;

typedef struct flag {
  const char *name;
  const char *value; /* NULL: it takes none */
  const char *help;
  unsigned commands; /* bits */
  bool repeats;
} flag;

#define IN_GENERATE (1u << LM_GENERATE)
#define IN_CHAT (1u << LM_CHAT)
#define IN_PERPLEXITY (1u << LM_PERPLEXITY)
#define IN_BENCH (1u << LM_BENCH)
#define IN_TEXT (IN_GENERATE | IN_CHAT)
#define IN_TABLES (IN_GENERATE | IN_PERPLEXITY | IN_BENCH)
#define IN_ALL (IN_TEXT | IN_PERPLEXITY | IN_BENCH)

static const flag flags[FLAG_COUNT] = {
    [FLAG_MODEL] = {"--model", "FILE", "GGUF file of the llama family (required); its own tokenizer is used", IN_ALL,
                    false},
    [FLAG_PROMPT] = {"--prompt", "TEXT", "a prompt in UTF-8; may be given again for more prompts", IN_GENERATE, true},
    [FLAG_PROMPT_FILE] = {"--prompt-file", "FILE", "a prompt from a file, - for standard input; may be given again",
                          IN_GENERATE, true},
    [FLAG_IDS] = {"--ids", "LIST", "a prompt as token ids, such as 1,2,3; may be given again", IN_GENERATE, true},
    [FLAG_CHATML] = {"--chatml", NULL, "make each text prompt a ChatML turn, after the template's system turn",
                     IN_GENERATE, false},
    [FLAG_FILE] = {"--file", "FILE", "the text in UTF-8 (required), - for standard input", IN_PERPLEXITY, false},
    [FLAG_LENGTHS] = {"--lengths", "LIST",
                      "up to 16 lengths in tokens, 1 to the context less 16, with commas (default 128,512)", IN_BENCH,
                      false},
    [FLAG_REPEAT] = {"--repeat", "N", "runs of each measurement, 1 to 1000 (default 5)", IN_BENCH, false},
    [FLAG_MAX_TOKENS] = {"--max-tokens", "N",
                         "most tokens to generate for each prompt or turn, 1 or more (default 128)", IN_TEXT, false},
    [FLAG_CONTEXT] = {"--context", "N",
                      "most tokens of the conversation, 1 to the model's context (default 2048, or the model's)",
                      IN_CHAT, false},
    [FLAG_TEMPERATURE] = {"--temperature", "X", "0 takes the best token (default), above it samples, at most 100",
                          IN_TEXT, false},
    [FLAG_TOP_K] = {"--top-k", "N", "sample from the N best tokens, 1 or more (default: all)", IN_TEXT, false},
    [FLAG_TOP_P] = {"--top-p", "X",
                    "sample from the fewest best tokens whose probabilities sum to X, up to 1 (default 1: all)",
                    IN_TEXT, false},
    [FLAG_MIN_P] = {"--min-p", "X",
                    "sample from tokens with at least X times the best one's probability, 0 to 1 (default 0: all)",
                    IN_TEXT, false},
    [FLAG_REPETITION_PENALTY] = {"--repetition-penalty", "X",
                                 "divide (negative: multiply) logits of seen tokens by X, 0.01 to 100 (default 1)",
                                 IN_TEXT, false},
    [FLAG_SEED] = {"--seed", "N", "of sampling, 0 to 2^64 - 1 (default 0)", IN_TEXT, false},
    [FLAG_THREADS] = {"--threads", "N", "threads, 1 to 1024 (default: one per processor, at most 64)", IN_ALL, false},
    [FLAG_CACHE_FORMAT] = {"--cache-format", "K[,V]", "how keys and values are stored (default float32)", IN_ALL,
                           false},
    [FLAG_ALL_FORMATS] = {"--all-formats", NULL, "compare all formats of the cache", IN_PERPLEXITY, false},
    [FLAG_KV_SCALES] = {"--kv-scales", "WHICH", "static scales: 1 (default), auto: by the first window, or both",
                        IN_PERPLEXITY, false},
    [FLAG_COMPUTE] = {"--compute", "NAME", "matrix products: float32 or bfloat16 (default: the faster here)", IN_ALL,
                      false},
    [FLAG_BACKEND] =
        {"--backend", "NAME",
         "backend of the attention, as `attn info` names it (default: the library chooses, or ATTN_BACKEND)", IN_ALL,
         false},
    [FLAG_BATCH_INVARIANT] = {"--batch-invariant", NULL, "attention that does not depend on what else is in the batch",
                              IN_TEXT, false},
    [FLAG_ALONE] = {"--alone", NULL, "one prompt after the other instead of all in one batch", IN_GENERATE, false},
    [FLAG_BLOCK_SIZE] = {"--block-size", "N",
                         "positions per cache block, 1 to 65536 (default: what the backend prefers)", IN_ALL, false},
    [FLAG_CACHE_BLOCKS] = {"--cache-blocks", "N",
                           "blocks of the cache, 1 or more (default: for all prompts, up to 192 MiB)", IN_GENERATE,
                           false},
    [FLAG_NO_PREFIX_CACHE] = {"--no-prefix-cache", NULL, "compute what prompts have in common for each of them",
                              IN_GENERATE, false},
    [FLAG_MAX_BATCH_TOKENS] = {"--max-batch-tokens", "N", "most tokens of one step, 1 to 65536 (default 512)", IN_ALL,
                               false},
    [FLAG_JSON] = {"--json", NULL, "print one JSON object instead of text", IN_TABLES, false},
    [FLAG_LOGITS] = {"--logits", "FILE", "write the first step's logits of each prompt as raw float32", IN_GENERATE,
                     false},
    [FLAG_HELP] = {"--help", NULL, "this text", IN_ALL, false},
};

static const char exit_status[] =
    "Exit status: 0; 1 when a valid call failed (memory, input/output); 2 for bad input or a refusal, with one line "
    "on "
    "standard error.";

lm_command lm_command_from_name(const char *name) {
  for (int i = 0; i < LM_COMMAND_COUNT; i++) {
    if (strcmp(commands[i].name, name) == 0) {
      return (lm_command)i;
    }
  }
  return LM_COMMAND_COUNT;
}

static void print_tool_help(void) {
  puts("attn-lm: run language models of the llama family from GGUF files, through libattn\n"
       "\n"
       "Usage:\n"
       "  attn-lm COMMAND --model FILE [flags]\n"
       "  attn-lm COMMAND --help\n"
       "\n"
       "Commands:");
  for (int i = 0; i < LM_COMMAND_COUNT; i++) {
    char left[40];
    (void)snprintf(left, sizeof left, "attn-lm %s", commands[i].name);
    help_row(left, commands[i].summary);
  }
  help_row("attn-lm --version", "the version of libattn");
  puts("\nEnvironment:");
  help_row("ATTN_BACKEND", "names the backend of the attention where --backend does not");
  help_row("ATTN_CPU", "caps the attention's instruction set level; `attn info` prints the levels");
  puts("\nExamples:\n"
       "  attn-lm generate --model model.gguf --chatml --prompt \"What is the capital of France?\"\n"
       "  attn-lm bench --model model.gguf\n");
  help_paragraph(exit_status);
}

void lm_options_print_help(lm_command command) {
  if (command == LM_COMMAND_COUNT) {
    print_tool_help();
    return;
  }
  const command_text *text = &commands[command];
  printf("attn-lm %s: %s\n\nUsage:\n  attn-lm %s --model FILE %s\n\n", text->name, text->summary, text->name,
         text->arguments);
  help_paragraph(text->text);
  if (text->names != NULL) {
    char names[1024];
    (void)snprintf(names, sizeof names, "\n--json gives an object: %s.", text->names);
    help_paragraph(names);
  }
  puts("\nFlags:");
  for (int i = 0; i < FLAG_COUNT; i++) {
    if ((flags[i].commands >> command & 1u) != 0) {
      char left[40];
      (void)snprintf(left, sizeof left, "%s %s", flags[i].name, flags[i].value != NULL ? flags[i].value : "");
      help_row(left, flags[i].help);
    }
  }
  char formats[400];
  (void)snprintf(formats, sizeof formats,
                 "\n"
                 "Cache formats, one for keys and values or K,V: %s; those that end in _per_token_head also with "
                 "+separate_scales behind the name.",
                 lm_formats_list().text);
  help_paragraph(formats);
  printf("Tensors of the model may be %s.\n", quant_supported_names());
  printf("\nExamples:\n%s\n", text->examples);
  help_paragraph(exit_status);
}

static attn_status parse_count(const char *name, const char *text, long most, int32_t *out, attn_message *message) {
  char *end = NULL;
  errno = 0;
  const long value = strtol(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < 1 || value > most) {
    const lm_quoted found = lm_quote(text, strlen(text));
    return lm_fail(message, ATTN_E_RANGE, "%s is %s; accepted are 1 to %ld", name, found.text, most);
  }
  *out = (int32_t)value;
  return ATTN_OK;
}

static attn_status parse_seed(const char *text, uint64_t *out, attn_message *message) {
  char *end = NULL;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0) {
    const lm_quoted found = lm_quote(text, strlen(text));
    return lm_fail(message, ATTN_E_RANGE, "--seed is %s; accepted are 0 to 18446744073709551615", found.text);
  }
  *out = value;
  return ATTN_OK;
}

/* Decimal digits with at most one point: no sign, exponent, hexadecimal or word. */
static attn_status parse_number(const char *name, const char *text, double least, double most, double *out,
                                attn_message *message) {
  const size_t digits = strspn(text, "0123456789.");
  const char *point = strchr(text, '.');
  const bool plain = digits > 0 && text[digits] == '\0' && digits < 40 && strcmp(text, ".") != 0 &&
                     (point == NULL || strchr(point + 1, '.') == NULL);
  const double value = plain ? strtod(text, NULL) : NAN;
  if (!(value >= least && value <= most)) {
    const lm_quoted found = lm_quote(text, strlen(text));
    return lm_fail(message, ATTN_E_RANGE, "%s is %s; accepted are %g to %g", name, found.text, least, most);
  }
  *out = value;
  return ATTN_OK;
}

static attn_status parse_lengths(const char *text, lm_options *options, attn_message *message) {
  const char *at = text;
  options->length_count = 0;
  for (;;) {
    char *end = NULL;
    errno = 0;
    const long value = strtol(at, &end, 10);
    if (*at < '0' || *at > '9' || errno != 0 || value < 1 || value > 1000000 || (*end != ',' && *end != '\0') ||
        options->length_count == LM_MAX_LENGTHS) {
      const lm_quoted found = lm_quote(text, strlen(text));
      return lm_fail(message, ATTN_E_RANGE, "--lengths is %s; accepted are up to %d numbers 1 to 1000000 with commas",
                     found.text, LM_MAX_LENGTHS);
    }
    options->lengths[options->length_count++] = (int32_t)value;
    if (*end == '\0') {
      return ATTN_OK;
    }
    at = end + 1;
  }
}

static attn_status parse_scales(const char *text, lm_scales *out, attn_message *message) {
  static const char *const names[] = {[LM_SCALES_ONE] = "1", [LM_SCALES_AUTO] = "auto", [LM_SCALES_BOTH] = "both"};
  for (int i = LM_SCALES_ONE; i <= LM_SCALES_BOTH; i++) {
    if (strcmp(text, names[i]) == 0) {
      *out = (lm_scales)i;
      return ATTN_OK;
    }
  }
  const lm_quoted found = lm_quote(text, strlen(text));
  return lm_fail(message, ATTN_E_NAME, "--kv-scales is %s; accepted are 1, auto, both", found.text);
}

static attn_status parse_compute(const char *text, gemm_compute *out, attn_message *message) {
  if (strcmp(text, "float32") == 0) {
    *out = GEMM_FLOAT32;
  } else if (strcmp(text, "bfloat16") == 0) {
    *out = GEMM_BFLOAT16;
  } else {
    const lm_quoted found = lm_quote(text, strlen(text));
    return lm_fail(message, ATTN_E_NAME, "--compute is %s; accepted are float32, bfloat16", found.text);
  }
  return ATTN_OK;
}

static attn_status apply(flag_id id, const char *value, lm_options *options, attn_message *message) {
  const char *name = flags[id].name;
  sampler_options *sampling = &options->sampling;
  switch (id) {
  case FLAG_MODEL:
    options->model = value;
    break;
  case FLAG_PROMPT:
    options->prompts[options->prompt_count++] = (lm_prompt){value, NULL, NULL};
    break;
  case FLAG_PROMPT_FILE:
    options->prompts[options->prompt_count++] = (lm_prompt){NULL, NULL, value};
    break;
  case FLAG_IDS:
    options->prompts[options->prompt_count++] = (lm_prompt){NULL, value, NULL};
    break;
  case FLAG_CHATML:
    options->chatml = true;
    break;
  case FLAG_FILE:
    options->file = value;
    break;
  case FLAG_LENGTHS:
    return parse_lengths(value, options, message);
  case FLAG_REPEAT:
    return parse_count(name, value, 1000, &options->repeat, message);
  case FLAG_MAX_TOKENS:
    return parse_count(name, value, INT32_MAX / 4, &options->max_tokens, message);
  case FLAG_CONTEXT:
    return parse_count(name, value, INT32_MAX / 4, &options->context, message);
  case FLAG_TEMPERATURE:
    return parse_number(name, value, 0, 100, &sampling->temperature, message);
  case FLAG_TOP_K:
    return parse_count(name, value, INT32_MAX / 4, &sampling->top_k, message);
  case FLAG_TOP_P:
    return parse_number(name, value, 1e-6, 1, &sampling->top_p, message);
  case FLAG_MIN_P:
    return parse_number(name, value, 0, 1, &sampling->min_p, message);
  case FLAG_REPETITION_PENALTY:
    return parse_number(name, value, 0.01, 100, &sampling->repetition_penalty, message);
  case FLAG_SEED:
    return parse_seed(value, &sampling->seed, message);
  case FLAG_THREADS:
    return parse_count(name, value, 1024, &options->threads, message);
  case FLAG_CACHE_FORMAT:
    return lm_formats_parse(name, value, &options->formats, message);
  case FLAG_ALL_FORMATS:
    options->all_formats = true;
    break;
  case FLAG_KV_SCALES:
    return parse_scales(value, &options->scales, message);
  case FLAG_COMPUTE:
    return parse_compute(value, &options->compute, message);
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
    return parse_count(name, value, 65536, &options->block_size, message);
  case FLAG_CACHE_BLOCKS:
    return parse_count(name, value, INT32_MAX / 4, &options->cache_blocks, message);
  case FLAG_NO_PREFIX_CACHE:
    options->no_prefix_cache = true;
    break;
  case FLAG_MAX_BATCH_TOKENS:
    return parse_count(name, value, 65536, &options->max_batch_tokens, message);
  case FLAG_JSON:
    options->json = true;
    break;
  case FLAG_LOGITS:
    options->logits = value;
    break;
  case FLAG_HELP:
    options->help = true;
    break;
  case FLAG_COUNT:
    break;
  }
  return ATTN_OK;
}

static flag_id find_flag(lm_command command, const char *name) {
  int i = 0;
  while (i < FLAG_COUNT && ((flags[i].commands >> command & 1u) == 0 || strcmp(flags[i].name, name) != 0)) {
    i++;
  }
  return (flag_id)i;
}

static attn_status parse_all(int count, char **arguments, bool *seen, lm_options *options, attn_message *message) {
  for (int i = 0; i < count; i++) {
    const flag_id id = find_flag(options->command, arguments[i]);
    if (id == FLAG_COUNT) {
      const lm_quoted found = lm_quote(arguments[i], strlen(arguments[i]));
      return lm_fail(message, ATTN_E_NAME, "unknown argument %s; attn-lm %s --help lists what is accepted", found.text,
                     commands[options->command].name);
    }
    if (seen[id] && !flags[id].repeats) {
      return lm_fail(message, ATTN_E_NAME, "%s is given twice; accepted is once", flags[id].name);
    }
    seen[id] = true;
    const char *value = NULL;
    if (flags[id].value != NULL) {
      if (i + 1 == count) {
        return lm_fail(message, ATTN_E_NAME, "%s wants a value", flags[id].name);
      }
      value = arguments[++i];
    }
    const attn_status status = apply(id, value, options, message);
    if (status != ATTN_OK || options->help) {
      return status;
    }
  }
  return ATTN_OK;
}

/* What --all-formats decides by itself, and scales that nothing would use. */
static attn_status check_formats(const bool *seen, const lm_options *options, attn_message *message) {
  if (options->all_formats && seen[FLAG_CACHE_FORMAT]) {
    return lm_fail(message, ATTN_E_NAME, "--cache-format has no meaning with --all-formats; accepted is one of them");
  }
  if (options->all_formats && options->compute == GEMM_BFLOAT16) {
    return lm_fail(message, ATTN_E_NAME, "--compute is bfloat16 with --all-formats; accepted is float32");
  }
  if (options->scales == LM_SCALES_BOTH && !options->all_formats) {
    return lm_fail(message, ATTN_E_NAME, "--kv-scales is both without --all-formats; accepted are 1, auto");
  }
  if (options->scales == LM_SCALES_AUTO && !options->all_formats &&
      lm_format_static_range(options->formats.k.format) == 0 &&
      lm_format_static_range(options->formats.v.format) == 0) {
    return lm_fail(message, ATTN_E_NAME,
                   "--kv-scales auto has no meaning with --cache-format %s; accepted are fp8_e4m3, fp8_e5m2",
                   lm_formats_name(&options->formats).text);
  }
  return ATTN_OK;
}

static attn_status check(const bool *seen, const lm_options *options, attn_message *message) {
  static const flag_id only_sampling[] = {FLAG_TOP_K, FLAG_TOP_P, FLAG_MIN_P, FLAG_SEED};
  if (options->model == NULL) {
    return lm_fail(message, ATTN_E_NULL, "--model FILE is missing");
  }
  if (options->command == LM_GENERATE && options->prompt_count == 0) {
    return lm_fail(message, ATTN_E_NULL, "no prompt; give --prompt TEXT, --prompt-file FILE or --ids LIST");
  }
  if (options->command == LM_PERPLEXITY && options->file == NULL) {
    return lm_fail(message, ATTN_E_NULL, "--file FILE is missing");
  }
  int from_stdin = 0;
  for (size_t i = 0; i < options->prompt_count; i++) {
    from_stdin += options->prompts[i].file != NULL && strcmp(options->prompts[i].file, "-") == 0;
  }
  if (from_stdin > 1) {
    return lm_fail(message, ATTN_E_NAME, "--prompt-file - is given twice; accepted is once");
  }
  for (size_t i = 0; i < sizeof only_sampling / sizeof only_sampling[0]; i++) {
    if (seen[only_sampling[i]] && !(options->sampling.temperature > 0)) {
      return lm_fail(message, ATTN_E_NAME, "%s has no meaning at --temperature 0; accepted is a temperature above 0",
                     flags[only_sampling[i]].name);
    }
  }
  return check_formats(seen, options, message);
}

attn_status lm_options_parse(lm_command command, int count, char **arguments, lm_options *options,
                             attn_message *message) {
  *options = (lm_options){.command = command,
                          .max_tokens = 128,
                          .max_batch_tokens = 512,
                          .repeat = 5,
                          .lengths = {128, 512},
                          .length_count = 2,
                          .formats = {{ATTN_FORMAT_FLOAT32, false}, {ATTN_FORMAT_FLOAT32, false}},
                          .compute = GEMM_FASTER,
                          .sampling = {.top_p = 1, .repetition_penalty = 1}};
  bool seen[FLAG_COUNT] = {false};
  options->prompts = calloc((size_t)count + 1, sizeof options->prompts[0]);
  if (options->prompts == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for %d arguments", count);
  }
  attn_status status = parse_all(count, arguments, seen, options, message);
  if (status == ATTN_OK && !options->help) {
    status = check(seen, options, message);
    options->compute = options->all_formats ? GEMM_FLOAT32 : options->compute;
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
