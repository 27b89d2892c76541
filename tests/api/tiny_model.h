/* SPDX-License-Identifier: Apache-2.0 */
/* tiny_model.h: the GGUF file of a random model of two layers and 99 tokens, with a tokenizer and a chat template. */
#ifndef ATTN_TESTS_TINY_MODEL_H
#define ATTN_TESTS_TINY_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "gguf.h"

#define TINY_TOKENS 99 /* '!' to '~', space, newline, "ab", two control tokens */
#define TINY_LAYERS 2
#define TINY_WIDTH 32
#define TINY_HIDDEN 48
#define TINY_KV_WIDTH 16
#define TINY_PLAIN                                                                                                     \
  "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe "    \
  "kind<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "    \
  "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
#define TINY_OTHER                                                                                                     \
  "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] | trim + "              \
  "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

typedef struct tiny_tensor {
  const char *name;
  uint64_t columns;
  uint64_t rows; /* 0: a vector */
} tiny_tensor;

static const tiny_tensor tiny_whole[] = {{"token_embd.weight", TINY_WIDTH, TINY_TOKENS},
                                         {"output_norm.weight", TINY_WIDTH, 0}};
static const tiny_tensor tiny_parts[] = {
    {"attn_norm.weight", TINY_WIDTH, 0},          {"ffn_norm.weight", TINY_WIDTH, 0},
    {"attn_q.weight", TINY_WIDTH, TINY_WIDTH},    {"attn_k.weight", TINY_WIDTH, TINY_KV_WIDTH},
    {"attn_v.weight", TINY_WIDTH, TINY_KV_WIDTH}, {"attn_output.weight", TINY_WIDTH, TINY_WIDTH},
    {"ffn_gate.weight", TINY_WIDTH, TINY_HIDDEN}, {"ffn_up.weight", TINY_WIDTH, TINY_HIDDEN},
    {"ffn_down.weight", TINY_HIDDEN, TINY_WIDTH},
};

#define TINY_PART_COUNT (sizeof tiny_parts / sizeof tiny_parts[0])

static inline void tiny_put(FILE *file, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) {
    (void)fputc((int)(value >> (8 * i) & 255), file);
  }
}

static inline void tiny_put_text(FILE *file, const char *text) {
  tiny_put(file, strlen(text), 8);
  (void)fputs(text, file);
}

static inline void tiny_put_text_key(FILE *file, const char *key, const char *text) {
  tiny_put_text(file, key);
  tiny_put(file, GGUF_STRING, 4);
  tiny_put_text(file, text);
}

static inline void tiny_put_count_key(FILE *file, const char *key, uint32_t value) {
  tiny_put_text(file, key);
  tiny_put(file, GGUF_UINT32, 4);
  tiny_put(file, value, 4);
}

static inline void tiny_put_array_key(FILE *file, const char *key, gguf_kind kind, uint64_t count) {
  tiny_put_text(file, key);
  tiny_put(file, GGUF_ARRAY, 4);
  tiny_put(file, kind, 4);
  tiny_put(file, count, 8);
}

static inline void tiny_put_vocabulary(FILE *file, const char *chat_template) {
  tiny_put_text_key(file, "tokenizer.ggml.model", "gpt2");
  tiny_put_text_key(file, "tokenizer.ggml.pre", "smollm");
  tiny_put_array_key(file, "tokenizer.ggml.tokens", GGUF_STRING, TINY_TOKENS);
  for (char c = '!'; c <= '~'; c++) {
    const char text[2] = {c, '\0'};
    tiny_put_text(file, text);
  }
  tiny_put_text(file, "\xc4\xa0");
  tiny_put_text(file, "\xc4\x8a");
  tiny_put_text(file, "ab");
  tiny_put_text(file, "<|im_start|>");
  tiny_put_text(file, "<|im_end|>");
  tiny_put_array_key(file, "tokenizer.ggml.token_type", GGUF_INT32, TINY_TOKENS);
  for (int i = 0; i < TINY_TOKENS; i++) {
    tiny_put(file, i < TINY_TOKENS - 2 ? 1 : 3, 4);
  }
  tiny_put_array_key(file, "tokenizer.ggml.merges", GGUF_STRING, 1);
  tiny_put_text(file, "a b");
  tiny_put_count_key(file, "tokenizer.ggml.bos_token_id", TINY_TOKENS - 2);
  tiny_put_count_key(file, "tokenizer.ggml.eos_token_id", TINY_TOKENS - 1);
  tiny_put_text_key(file, "tokenizer.chat_template", chat_template);
}

static inline uint64_t tiny_put_tensor(FILE *file, const char *name, const tiny_tensor *t, uint64_t offset) {
  tiny_put_text(file, name);
  tiny_put(file, t->rows > 0 ? 2 : 1, 4);
  tiny_put(file, t->columns, 8);
  if (t->rows > 0) {
    tiny_put(file, t->rows, 8);
  }
  tiny_put(file, 0, 4);
  tiny_put(file, offset, 8);
  const uint64_t bytes = 4 * t->columns * (t->rows > 0 ? t->rows : 1);
  return offset + (bytes + 31) / 32 * 32;
}

static inline void tiny_put_tensors(FILE *file) {
  uint64_t offset = 0;
  for (size_t i = 0; i < 2; i++) {
    offset = tiny_put_tensor(file, tiny_whole[i].name, &tiny_whole[i], offset);
  }
  for (size_t i = 0; i < TINY_LAYERS * TINY_PART_COUNT; i++) {
    char name[64];
    const tiny_tensor *part = &tiny_parts[i % TINY_PART_COUNT];
    (void)snprintf(name, sizeof name, "blk.%d.%s", (int)(i / TINY_PART_COUNT), part->name);
    offset = tiny_put_tensor(file, name, part, offset);
  }
}

/* What `loud` makes of an element: K of the second layer's second KV head is 512 times as large, V 65536 times, and
   what reads them as much smaller. The model stays what it is, but for what a cache makes of such rows; float16 has no
   such values. */
static inline float tiny_gain(const tiny_tensor *t, size_t layer, uint64_t row, uint64_t column) {
  const bool head = layer == 1 && row >= TINY_KV_WIDTH / 2;
  const bool group = layer == 1 && row >= TINY_WIDTH / 2;
  if (strcmp(t->name, "attn_k.weight") == 0) {
    return head ? 512.0f : 1.0f;
  }
  if (strcmp(t->name, "attn_q.weight") == 0) {
    return group ? 1 / 512.0f : 1.0f;
  }
  if (strcmp(t->name, "attn_v.weight") == 0) {
    return head ? 65536.0f : 1.0f;
  }
  return strcmp(t->name, "attn_output.weight") == 0 && layer == 1 && column >= TINY_WIDTH / 2 ? 1 / 65536.0f : 1.0f;
}

static inline void tiny_put_values(FILE *file, bool loud) {
  uint64_t seed = 5;
  for (size_t i = 0; i < 2 + TINY_LAYERS * TINY_PART_COUNT; i++) {
    const tiny_tensor *t = i < 2 ? &tiny_whole[i] : &tiny_parts[(i - 2) % TINY_PART_COUNT];
    const size_t layer = i < 2 ? 0 : (i - 2) / TINY_PART_COUNT;
    for (uint64_t j = 0; j < t->columns * (t->rows > 0 ? t->rows : 1); j++) {
      seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
      float value = (float)((double)(seed >> 40) / 16777216.0 - 0.5) * 1.5f;
      value *= loud ? tiny_gain(t, layer, j / t->columns, j % t->columns) : 1.0f;
      uint32_t bits;
      memcpy(&bits, &value, sizeof bits);
      tiny_put(file, bits, 4);
    }
    while (ftell(file) % 32 != 0) {
      tiny_put(file, 0, 1);
    }
  }
}

static inline void tiny_model_write_as(const char *path, const char *chat_template, bool loud) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  (void)fputs("GGUF", file);
  tiny_put(file, 3, 4);
  tiny_put(file, 2 + TINY_LAYERS * TINY_PART_COUNT, 8);
  tiny_put(file, 17, 8);
  tiny_put_text_key(file, "general.architecture", "llama");
  tiny_put_count_key(file, "llama.block_count", TINY_LAYERS);
  tiny_put_count_key(file, "llama.context_length", 1200);
  tiny_put_count_key(file, "llama.embedding_length", TINY_WIDTH);
  tiny_put_count_key(file, "llama.feed_forward_length", TINY_HIDDEN);
  tiny_put_count_key(file, "llama.attention.head_count", 4);
  tiny_put_count_key(file, "llama.attention.head_count_kv", 2);
  tiny_put_count_key(file, "llama.rope.dimension_count", 8);
  tiny_put_count_key(file, "llama.vocab_size", TINY_TOKENS);
  tiny_put_vocabulary(file, chat_template);
  tiny_put_tensors(file);
  while (ftell(file) % 32 != 0) {
    tiny_put(file, 0, 1);
  }
  tiny_put_values(file, loud);
  assert_int_equal(fclose(file), 0);
}

static inline void tiny_model_write(const char *path, const char *chat_template) {
  tiny_model_write_as(path, chat_template, false);
}

#endif
