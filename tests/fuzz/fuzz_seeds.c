/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_seeds.c: the well-formed inputs that the corpora were grown from: fuzz_seeds NAME FOLDER writes those of one
 * target into an existing folder. Request files have every operation and feature; the GGUF files every kind of value,
 * every tensor type, a tokenizer, tiny models; the others are streams of random choices. Those named kept-* are wrong
 * in one way each and stay in the corpus whatever else reaches the same code.
 */
#define _XOPEN_SOURCE 700
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf_writer.h"
#include "request_builder.h"

static const char *folder;

static const char *seed_path(const char *name) {
  static char path[600];
  snprintf(path, sizeof(path), "%.400s/%.100s", folder, name);
  return path;
}

static int save_bytes(const char *name, const void *data, size_t bytes) {
  return fixture_write(seed_path(name), data, bytes);
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

typedef struct request_seed {
  const char *name;
  const char *words;
  const char *changes;
} request_seed;

/* Smaller than the command's tests have them: a mutator does more with few bytes. */
#define CACHED                                                                                                         \
  "op=attention q:F32[3,2,2] k_cache:F32[4,2,1,2] v_cache:F32[4,2,1,2] block_table:I32[2,2]=1,2,3,0 "                  \
  "query_start_loc:I32[3]=0,1,3 seq_lens:I32[2]=3,4"
#define WRITTEN CACHED " k:F32[3,1,2] v:F32[3,1,2] slot_mapping:I64[3]=4,6,7"
#define DIRECT "op=attention q:F32[3,2,2] k:F32[3,1,2] v:F32[3,1,3] query_start_loc:I32[3]=0,1,3"
#define CROSS DIRECT " k:F32[5,1,2] v:F32[5,1,2] kv_start_loc:I32[3]=0,2,5"
#define WRITE                                                                                                          \
  "op=cache_write k:F32[3,1,2] v:F32[3,1,1] k_cache:BF16[2,2,1,2] v_cache:F16[2,2,1,1] slot_mapping:I64[3]=2,-1,3"
#define GATHER                                                                                                         \
  "op=cache_gather k_cache:BF16[3,2,1,2] v_cache:F16[3,2,1,1] block_table:I32[2,2]=1,2,0,1 seq_lens:I32[2]=3,2"
#define MERGE "op=merge out_0:F32[2,1,2] lse_0:F32[2,1] out_1:F16[2,1,2] lse_1:F32[2,1]"

static const request_seed requests[] = {
    {"cached", CACHED, ""},
    {"written", WRITTEN, ""},
    {"direct", DIRECT, ""},
    {"cross", CROSS, ""},
    {"write", WRITE, ""},
    {"gather", GATHER, ""},
    {"merge", MERGE, ""},
    {"hnd", WRITTEN, "kv_layout=HND k_cache:BF16[4,1,2,2] v_cache:BF16[4,1,2,2] q:BF16[3,2,2]"},
    {"window", CACHED, "window_left=1 window_right=0 softcap=20 scale=0.4 causal=1"},
    {"chunk", CACHED, "chunk_size=3 chunk_lookback=1"},
    {"prefix", CACHED, "prefix_ranges:I32[2,1,2]=0,2,1,3 prefix_clamp=1 window_left=1"},
    {"alibi", CACHED, "alibi_slopes:F32[2]=0.5,0.25 alibi=sqrt"},
    {"sinks", CACHED, "sinks:F32[2]=0.5,-inf causal_per_seq:I32[2]=0,1"},
    {"bias", CACHED, "bias:F32[3,2,4]"},
    {"bias_one", CACHED, "bias:F32[3,1,5]"},
    {"half", CACHED, "q:F16[3,2,2] k_cache:F16[4,2,1,2] v_cache:BF16[4,2,1,2] out_dtype=float32"},
    {"unchecked", WRITTEN, "checked=0 slot_mapping:I64[3]=4,900,-1 block_table:I32[2,2]=1,300,3,-4"},
    {"splits", CACHED, "num_splits=3 cache_format=float32 block_size=2 head_size=2 v_head_size=2"},
    {"long", CACHED, "block_table:I32[2,40] seq_lens:I32[2]=79,66 num_splits=2"},
    {"gather_part", GATHER, "seq_starts:I32[2]=2,1 out_dtype=bfloat16 !v_cache"},
    {"gather_hnd", GATHER, "kv_layout=HND k_cache:BF16[3,1,2,2] v_cache:F16[3,1,2,1]"},
    {"merge_base2", MERGE, "lse_base=2 sinks:F32[1]=0.5 out_dtype=float16"},
    {"merge_four", MERGE, "out_2:BF16[2,1,2] lse_2:F32[2,1]=inf,nan out_3:F32[2,1,2] lse_3:F32[2,1]=-inf,0"},
    {"empty", CACHED, "q:F32[0,2,2] query_start_loc:I32[1]=0 seq_lens:I32[0] block_table:I32[0,0]"},
    {"fp8_out", CACHED, "out_dtype=fp8_e4m3 output_scale:F32[1]=0.5"},
    {"fp8_blocks", CACHED, "out_dtype=fp8_e4m3 output_block=64"},
    {"fp8_cache", CACHED, "k_cache:F8_E4M3[4,2,1,2] v_cache:F8_E5M2[4,2,1,2] k_scale:F32[1]=0.5 v_scale:F32[1]=2"},
    {"fp8_query", CACHED, "q:F8_E4M3[3,2,2] q_scale:F32[1]=0.5"},
    {"int4_written", WRITTEN,
     "cache_format=int4_per_token_head+separate_scales k_cache:U8[4,2,1,1] v_cache:U8[4,2,1,2] v:F32[3,1,3] "
     "k_scale:F32[4,2,1] v_scale:F32[4,2,1]"},
    {"write_fp8", WRITE, "k_cache:F8_E4M3[2,2,1,2] v_cache:F8_E5M2[2,2,1,1] k_scale:F32[1]=0.5 v_scale:F32[1]=2"},
    {"write_int8", WRITE, "cache_format=int8_per_token_head k_cache:U8[2,2,1,8] v_cache:U8[2,2,1,8]"},
    {"write_int4", WRITE,
     "cache_format=int4_per_token_head+separate_scales k_cache:U8[2,2,1,1] v_cache:U8[2,2,1,1] k_scale:F32[2,2,1] "
     "v_scale:F32[2,2,1]"},
    {"gather_fp8", GATHER, "k_cache:F8_E5M2[3,2,1,2] v_cache:F8_E4M3[3,2,1,1] v_scale:F32[1]=0.5"},
    {"gather_fp8_rows", GATHER,
     "cache_format=fp8_per_token_head k_cache:U8[3,2,1,8] v_cache:U8[3,2,1,8] head_size=2 v_head_size=1"},
    {"gather_int4", GATHER,
     "cache_format=int4_per_token_head k_cache:U8[3,2,1,8] v_cache:U8[3,2,1,8] head_size=3 v_head_size=1"},
    {"int8_cache", CACHED,
     "cache_format=int8_per_token_head k_cache:U8[4,2,1,8] v_cache:U8[4,2,1,8] head_size=2 v_head_size=3"},
    {"kept-table", CACHED, "block_table:I32[2,2]=1,4,3,0"},
    {"kept-table-masked", CACHED, "block_table:I32[2,2]=1,2,-7,0 window_left=1"},
    {"kept-length", CACHED, "seq_lens:I32[2]=3,5"},
    {"kept-length-least", CACHED, "seq_lens:I32[2]=-1,3"},
    {"kept-starts", CACHED, "query_start_loc:I32[3]=0,3,1"},
    {"kept-slot", WRITTEN, "slot_mapping:I64[3]=4,6,8"},
    {"kept-slot-twice", WRITTEN, "slot_mapping:I64[3]=4,6,4"},
    {"kept-slots", WRITTEN, "slot_mapping:I64[4]=4,5,6,7"},
    {"kept-range", CACHED, "prefix_ranges:I32[2,1,2]=0,2,3,1"},
    {"kept-keys", CROSS, "kv_start_loc:I32[3]=0,2,6"},
    {"kept-gather-start", GATHER, "seq_starts:I32[2]=4,0"},
    {"kept-gather-pool", GATHER, "!v_cache k_cache:BF16[0,536870912,1,2] seq_lens:I32[2]=500000000,2"},
    {"kept-merge-empty", MERGE, "out_0:F32[16384,32768,0] out_1:F32[16384,32768,0]"},
    {"latent", "op=mla_mqa kv_lora_rank=4 qk_rope_head_dim=2 scale=0.3",
     "q:F32[2,2,6] kv_cache:F32[3,2,6] block_table:I32[1,2]=1,2 query_start_loc:I32[2]=0,2 seq_lens:I32[1]=3"},
};

/* A file of this header and so many bytes of data. */
static int save_header(const char *name, const char *header, size_t data) {
  unsigned char file[1024] = {0};
  size_t length = strlen(header);
  file[0] = (unsigned char)(length & 0xFF);
  file[1] = (unsigned char)(length >> 8);
  memcpy(file + 8, header, length);
  for (size_t i = 0; i < data; ++i) {
    file[8 + length + i] = (unsigned char)(17 * i + 3);
  }
  return save_bytes(name, file, 8 + length + data);
}

static int save_requests(void) {
  for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); ++i) {
    builder *made = build_request(requests[i].words, requests[i].changes);
    made->unaligned = i % 5 == 4;
    if (!build_save(made, seed_path(requests[i].name))) {
      return 0;
    }
    free(made);
  }
  return save_header("kept-escape", "{\"__metadata__\":{\"op\":\"attention\",\"\\u001b[2J\\n\":\"1\"}}", 0);
}

/* Files that lie in one way each. */
static int save_wrong_files(void) {
  static const struct {
    const char *name;
    const char *header;
    size_t data;
  } files[] = {
      {"kept-hole",
       "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
       "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}",
       4},
      {"kept-overlap",
       "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
       "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
       4},
      {"kept-beyond", "{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]}}", 4},
      {"kept-surplus", "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 4},
      {"kept-shape", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4},
      {"kept-overflow", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0},
      {"kept-huge-and-empty",
       "{\"a\":{\"dtype\":\"F32\",\"shape\":[9007199254740992,9007199254740992,0],"
       "\"data_offsets\":[0,0]}}",
       0},
      {"kept-twice",
       "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
       "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
       0},
      {"kept-key-twice", "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0},
      {"kept-metadata-twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0},
      {"kept-nul", "{\"__metadata__\":{\"a\\u0000b\":\"1\"}}", 0},
      {"kept-control", "{\"__metadata__\":{\"a\001b\":\"1\"}}", 0},
      {"kept-utf8", "{\"__metadata__\":{\"a\xC3\":\"\xED\xA0\x80\"}}", 0},
      {"kept-numbers", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1e400],\"data_offsets\":[0,-1]}}", 0},
      {"kept-fraction", "{\"a\":{\"dtype\":\"U8\",\"shape\":[0.5],\"data_offsets\":[0,1]}}", 1},
      {"kept-nine-axes", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1},
      {"kept-type", "{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8},
      {"kept-after", "{} x", 0},
      {"kept-nested", "{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}", 0},
  };
  static const char length[] = "\12\0\0\0\0\0\0\0{}"; /* the length field counted with the rest */
  static const char claims[] = "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}";
  for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); ++i) {
    if (!save_header(files[i].name, files[i].header, files[i].data)) {
      return 0;
    }
  }
  return save_bytes("kept-length", length, sizeof(length) - 1) && save_bytes("kept-claims", claims, sizeof(claims) - 1);
}

/* Files that are no requests: every type, any names, more axes, empty tensors, escapes. */
static int save_files(void) {
  static const char header[] =
      "{\"x\":{\"dtype\":\"F32\",\"shape\":[2,1,1,1,1,1,1,1],\"data_offsets\":[0,8]}, \"\\u00e9\\n\":{\"shape\":[],"
      "\"dtype\":\"I64\",\"data_offsets\":[8,16]},\"__metadata__\":{\"a\\\"b\":\"\\\\c\\t\",\"\xC3\xA9\":\"\"},"
      "\"none\":{\"dtype\":\"BF16\",\"shape\":[0,5],\"data_offsets\":[16,16]},"
      "\"odd\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[16,19]},"
      "\"e4\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[19,20]},"
      "\"last\":{\"dtype\":\"I32\",\"shape\":[1,1],\"data_offsets\":[20,24]}}  ";
  static const char bare[] = "\2\0\0\0\0\0\0\0{}";
  return save_header("names", header, 24) && save_bytes("bare", bare, sizeof(bare) - 1) && save_wrong_files() &&
         save_requests();
}

/* ---- GGUF -------------------------------------------------------------------------------------------------------- */

static void put_number(gguf_writer *w, const char *key, uint32_t kind, uint64_t value, int bytes) {
  gguf_put_key(w, key, kind);
  gguf_put(w, value, bytes);
}

static void put_words(gguf_writer *w, const char *key, const char *const *words, size_t count) {
  gguf_put_key(w, key, GGUF_ARRAY);
  gguf_put(w, GGUF_STRING, 4);
  gguf_put(w, count, 8);
  for (size_t i = 0; i < count; ++i) {
    gguf_put_text(w, words[i]);
  }
}

static void put_string(gguf_writer *w, const char *key, const char *text) {
  gguf_put_key(w, key, GGUF_STRING);
  gguf_put_text(w, text);
}

/* The file, and what is left of it after the last byte or more are lost. */
static int save_gguf_file(const char *name, const gguf_writer *w) {
  static const size_t lost[] = {1, 40, 200};
  int saved = save_bytes(name, w->bytes, w->count);
  for (size_t i = 0; i < sizeof(lost) / sizeof(lost[0]); ++i) {
    char cut[64];
    snprintf(cut, sizeof(cut), "kept-%.20s-without-%u", name, (unsigned)lost[i]);
    saved = saved && save_bytes(cut, w->bytes, w->count - lost[i]);
  }
  return saved;
}

/* Tensors that share their bytes, a name that is there twice, a block's half. */
static int save_wrong_tensors(void) {
  static const struct {
    const char *name;
    const char *second;
    uint64_t elements;
    uint64_t offset;
    uint32_t type;
  } files[] = {{"kept-shared", "b", 32, 32, 8},     {"kept-twice", "a", 32, 64, 8},
               {"kept-half-block", "b", 48, 64, 8}, {"kept-unaligned", "b", 32, 8, 0},
               {"kept-type", "b", 256, 64, 13},     {"kept-huge", "b", 1ull << 62, 64, 0}};
  static gguf_writer w;
  for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); ++i) {
    gguf_put_head(&w, 3, 2, 0);
    gguf_put_tensor(&w, "a", 1, 32, 1, 8, 0);
    gguf_put_tensor(&w, files[i].second, 1, files[i].elements, 1, files[i].type, files[i].offset);
    gguf_put_data(&w, 512);
    if (!save_bytes(files[i].name, w.bytes, w.count)) {
      return 0;
    }
  }
  return 1;
}

/* Every kind of value and every type of tensor. */
static int save_kinds(void) {
  static const struct {
    uint32_t type;
    uint64_t elements;
    uint64_t bytes;
  } types[] = {{0, 3, 12},  {1, 5, 10},  {30, 4, 8},     {2, 32, 18},
               {3, 64, 40}, {8, 32, 34}, {12, 256, 144}, {14, 256, 210}};
  static const uint8_t item_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  const size_t count = sizeof(types) / sizeof(types[0]);
  static gguf_writer w;
  uint64_t offset = 0;
  char name[16];
  w.count = 0;
  gguf_put_head(&w, 3, count, 24);
  for (uint32_t kind = 0; kind < sizeof(item_bytes); ++kind) {
    if (item_bytes[kind] == 0) {
      continue;
    }
    snprintf(name, sizeof(name), "one.%u", (unsigned)kind);
    put_number(&w, name, kind, 1, item_bytes[kind]);
    snprintf(name, sizeof(name), "many.%u", (unsigned)kind);
    gguf_put_key(&w, name, GGUF_ARRAY);
    gguf_put(&w, kind, 4);
    gguf_put(&w, 2, 8);
    gguf_put(&w, 0xFFFE, item_bytes[kind]);
    gguf_put(&w, 1, item_bytes[kind]);
  }
  put_string(&w, "one.text", "hello");
  put_words(&w, "many.texts", (const char *const[]){"", "world"}, 2);
  for (size_t i = 0; i < count; ++i) {
    snprintf(name, sizeof(name), "t%u", (unsigned)types[i].type);
    gguf_put_tensor(&w, name, 1, types[i].elements, 1, types[i].type, offset);
    offset += (types[i].bytes + 31) / 32 * 32;
  }
  gguf_put_data(&w, offset);
  return save_gguf_file("kinds", &w);
}

enum { WIDTH = 4, HIDDEN = 4 };

static const char *const tokens[] = {
    "H", "e", "l", "o", "\xC4\xA0", "w", "r", "d", "ll", "el", "\xC4\x8A", "<|im_start|>", "<|im_end|>", "1", "2", "!"};
enum { VOCABULARY = sizeof(tokens) / sizeof(tokens[0]) };

static const struct {
  const char *name;
  uint64_t columns;
  uint64_t rows; /* 0: a vector */
} weights[] = {{"token_embd.weight", WIDTH, VOCABULARY},  {"output_norm.weight", WIDTH, 0},
               {"blk.0.attn_norm.weight", WIDTH, 0},      {"blk.0.ffn_norm.weight", WIDTH, 0},
               {"blk.0.attn_q.weight", WIDTH, WIDTH},     {"blk.0.attn_k.weight", WIDTH, WIDTH / 2},
               {"blk.0.attn_v.weight", WIDTH, WIDTH / 2}, {"blk.0.attn_output.weight", WIDTH, WIDTH},
               {"blk.0.ffn_gate.weight", WIDTH, HIDDEN},  {"blk.0.ffn_up.weight", WIDTH, HIDDEN},
               {"blk.0.ffn_down.weight", HIDDEN, WIDTH}};

static void put_tokenizer(gguf_writer *w) {
  static const char template[] =
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
      "Hi<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
      "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  put_string(w, "tokenizer.ggml.model", "gpt2");
  put_string(w, "tokenizer.ggml.pre", "smollm");
  put_words(w, "tokenizer.ggml.tokens", tokens, VOCABULARY);
  gguf_put_key(w, "tokenizer.ggml.token_type", GGUF_ARRAY);
  gguf_put(w, GGUF_INT32, 4);
  gguf_put(w, VOCABULARY, 8);
  for (size_t i = 0; i < VOCABULARY; ++i) {
    gguf_put(w, tokens[i][0] == '<' ? 3 : 1, 4);
  }
  put_words(w, "tokenizer.ggml.merges", (const char *const[]){"l l", "e l"}, 2);
  put_number(w, "tokenizer.ggml.bos_token_id", GGUF_UINT32, 11, 4);
  put_number(w, "tokenizer.ggml.eos_token_id", GGUF_UINT32, 12, 4);
  put_number(w, "tokenizer.ggml.add_bos_token", GGUF_BOOL, 1, 1);
  put_string(w, "tokenizer.chat_template", template);
}

static int save_tokenizer(void) {
  static gguf_writer w;
  gguf_put_head(&w, 2, 0, 9);
  put_tokenizer(&w);
  return save_gguf_file("tokenizer", &w);
}

/* A model of one layer; `type` 0 or 1 is that of the matrices. */
static int save_model(const char *name, uint32_t type) {
  static gguf_writer w;
  const size_t count = sizeof(weights) / sizeof(weights[0]);
  uint64_t offset = 0;
  w.count = 0;
  gguf_put_head(&w, 3, count, 9);
  put_string(&w, "general.architecture", "llama");
  put_number(&w, "llama.block_count", GGUF_UINT32, 1, 4);
  put_number(&w, "llama.context_length", GGUF_UINT32, 64, 4);
  put_number(&w, "llama.embedding_length", GGUF_UINT32, WIDTH, 4);
  put_number(&w, "llama.feed_forward_length", GGUF_UINT32, HIDDEN, 4);
  put_number(&w, "llama.attention.head_count", GGUF_UINT32, 2, 4);
  put_number(&w, "llama.attention.head_count_kv", GGUF_UINT32, 1, 4);
  put_number(&w, "llama.rope.dimension_count", GGUF_UINT32, 2, 4);
  put_number(&w, "llama.attention.layer_norm_rms_epsilon", GGUF_FLOAT32, 0x3727C5AC, 4);
  for (size_t i = 0; i < count; ++i) {
    uint32_t own = weights[i].rows > 0 ? type : 0;
    uint64_t elements = weights[i].columns * (weights[i].rows > 0 ? weights[i].rows : 1);
    gguf_put_tensor(&w, weights[i].name, weights[i].rows > 0 ? 2 : 1, weights[i].columns, weights[i].rows, own, offset);
    offset += (elements * (own == 0 ? 4 : 2) + 31) / 32 * 32;
  }
  gguf_put_data(&w, offset);
  return save_gguf_file(name, &w);
}

static int save_gguf(void) {
  return save_wrong_tensors() && save_kinds() && save_tokenizer() && save_model("model_f32", 0) &&
         save_model("model_f16", 1);
}

/* ---- Choices ----------------------------------------------------------------------------------------------------- */

static int save_choices(size_t most) {
  uint32_t random = 29;
  for (int i = 0; i < 40; ++i) {
    unsigned char bytes[512];
    char name[24];
    size_t count = most / 40 * (size_t)(i + 1);
    for (size_t at = 0; at < count; ++at) {
      random = random * 1664525u + 1013904223u;
      bytes[at] = (unsigned char)(random >> 16);
    }
    bytes[0] &= 0xF6; /* of the block manager: a caller who releases what is its own */
    snprintf(name, sizeof(name), "choices%d", i);
    if (!save_bytes(name, bytes, count)) {
      return 0;
    }
  }
  return 1;
}

int main(int argc, char **argv) {
  const char *name = argc == 3 ? argv[1] : "";
  folder = argc == 3 ? argv[2] : "";
  int saved = strcmp(name, "safetensors") == 0 ? save_files()
              : strcmp(name, "request") == 0   ? save_requests()
              : strcmp(name, "gguf") == 0      ? save_gguf()
              : strcmp(name, "problem") == 0   ? save_choices(120)
              : strcmp(name, "pool") == 0      ? save_choices(400)
              : strcmp(name, "geometry") == 0  ? save_choices(160)
                                               : 0;
  if (!saved) {
    fprintf(stderr, "usage: fuzz_seeds safetensors|request|gguf|problem|pool|geometry FOLDER\n");
  }
  return !saved;
}
