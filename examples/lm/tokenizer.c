/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a byte-level BPE tokenizer from GGUF metadata, and decoding. Tokens are spelt in the file with one printable
 * character per byte; they are turned into plain bytes once. Look-ups by spelling use a sorted index, so that no
 * vocabulary, however chosen, is slow. Everything the file says is checked against the number of tokens.
 */
#include "tokenizer_parts.h"

#include "utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3 };

struct tokenizer {
  int32_t count;
  gguf_string *spelling;   /* [count] views of the file */
  const gguf_value *kinds; /* [count], or NULL: all normal */
  int32_t *index;          /* [count] ids sorted by spelling, then id */
  char *bytes;             /* the decoded text of all tokens, one after the other */
  uint64_t *starts;        /* [count + 1] into bytes */
  bpe_rules merges;
  bpe_room room;
  pretokenizer *cutter;
  int32_t eos;
  int32_t bos;
};

attn_status lm_ids_push(lm_ids *ids, int32_t id, attn_message *message) {
  if (ids->count == ids->capacity) {
    const size_t capacity = ids->capacity < 64 ? 64 : 2 * ids->capacity;
    int32_t *data = realloc(ids->data, capacity * sizeof ids->data[0]);
    if (data == NULL) {
      return lm_fail(message, ATTN_E_NOMEM, "no memory for %zu token ids", capacity);
    }
    ids->data = data;
    ids->capacity = capacity;
  }
  ids->data[ids->count++] = id;
  return ATTN_OK;
}

void lm_ids_free(lm_ids *ids) {
  free(ids->data);
  *ids = (lm_ids){0};
}

/* The character that spells a byte: itself where it is printable Latin-1, else the next free one from U+0100 on. */
static uint32_t byte_character(unsigned byte) {
  if ((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae) {
    return byte;
  }
  return byte <= 0x20 ? 0x100 + byte : byte <= 0xa0 ? 0x121 + (byte - 0x7f) : 0x143;
}

static int character_byte(uint32_t character) {
  if (character < 0x100) {
    return byte_character(character) == character ? (int)character : -1;
  }
  if (character <= 0x120) {
    return (int)(character - 0x100);
  }
  return character <= 0x142 ? (int)(character - 0x121 + 0x7f) : character == 0x143 ? 0xad : -1;
}

/* Decodes a spelling into out (at least as long); returns the length, or -1 if some character spells no byte. */
static int64_t unspell(gguf_string spelling, char *out) {
  int64_t length = 0;
  for (uint64_t i = 0; i < spelling.length; i++) {
    uint32_t character = (unsigned char)spelling.data[i];
    if (character >= 0x80) {
      if (character >= 0xe0 || i + 1 >= spelling.length) {
        return -1;
      }
      i++;
      character = (character & 0x1f) << 6 | ((unsigned char)spelling.data[i] & 0x3fu);
    }
    const int byte = character_byte(character);
    if (byte < 0) {
      return -1;
    }
    out[length++] = (char)(unsigned char)byte;
  }
  return length;
}

static int compare_strings(gguf_string a, gguf_string b) {
  const uint64_t shorter = a.length < b.length ? a.length : b.length;
  const int order = shorter > 0 ? memcmp(a.data, b.data, (size_t)shorter) : 0;
  return order != 0 ? order : (a.length > b.length) - (a.length < b.length);
}

/* qsort passes no context, so the index is sorted as pairs. */
typedef struct index_entry {
  gguf_string spelling;
  int32_t id;
} index_entry;

static int by_spelling(const void *a, const void *b) {
  const index_entry *x = a;
  const index_entry *y = b;
  const int order = compare_strings(x->spelling, y->spelling);
  return order != 0 ? order : (x->id > y->id) - (x->id < y->id);
}

/* The highest id of that spelling, or -1. */
static int32_t find_token(const tokenizer *tok, gguf_string spelling) {
  int32_t low = 0;
  int32_t high = tok->count;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (compare_strings(tok->spelling[tok->index[middle]], spelling) <= 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low > 0 && compare_strings(tok->spelling[tok->index[low - 1]], spelling) == 0 ? tok->index[low - 1] : -1;
}

static attn_status no_memory(attn_message *message) {
  return lm_fail(message, ATTN_E_NOMEM, "no memory for the tokenizer");
}

static attn_status build_index(tokenizer *tok, attn_message *message) {
  index_entry *entries = malloc((size_t)tok->count * sizeof entries[0]);
  tok->index = malloc((size_t)tok->count * sizeof tok->index[0]);
  if (entries == NULL || tok->index == NULL) {
    free(entries);
    return no_memory(message);
  }
  for (int32_t id = 0; id < tok->count; id++) {
    entries[id] = (index_entry){tok->spelling[id], id};
  }
  qsort(entries, (size_t)tok->count, sizeof entries[0], by_spelling);
  for (int32_t i = 0; i < tok->count; i++) {
    tok->index[i] = entries[i].id;
  }
  free(entries);
  return ATTN_OK;
}

static int32_t token_kind(const tokenizer *tok, int32_t id) {
  return tok->kinds != NULL ? gguf_i32_at(tok->kinds, (uint64_t)id) : TOKEN_NORMAL;
}

static attn_status load_tokens(const gguf_file *file, tokenizer *tok, attn_message *message) {
  const gguf_value *tokens = NULL;
  attn_status status = gguf_get_array(file, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, message);
  if (status != ATTN_OK) {
    return status;
  }
  if (tokens->count == 0 || tokens->count > (uint64_t)INT32_MAX / 2) {
    return lm_fail(message, ATTN_E_RANGE, "%s: tokenizer.ggml.tokens has %" PRIu64 " entries; accepted are 1 to %d",
                   file->path, tokens->count, INT32_MAX / 2);
  }
  tok->count = (int32_t)tokens->count;
  if (gguf_find(file, "tokenizer.ggml.token_type") != NULL) {
    status = gguf_get_array(file, "tokenizer.ggml.token_type", GGUF_INT32, &tok->kinds, message);
    if (status != ATTN_OK) {
      return status;
    }
    if (tok->kinds->count != tokens->count) {
      return lm_fail(message, ATTN_E_SHAPE,
                     "%s: tokenizer.ggml.token_type has %" PRIu64 " entries, accepted are %" PRIu64, file->path,
                     tok->kinds->count, tokens->count);
    }
  }
  tok->spelling = malloc((size_t)tok->count * sizeof tok->spelling[0]);
  if (tok->spelling == NULL) {
    return no_memory(message);
  }
  const uint8_t *at = tokens->data;
  for (int32_t id = 0; id < tok->count; id++) {
    tok->spelling[id] = gguf_next_string(&at);
    const gguf_string text = tok->spelling[id];
    if (utf8_first_invalid(text.data, (size_t)text.length) != text.length) {
      return lm_fail(message, ATTN_E_RANGE, "%s: tokenizer.ggml.tokens[%d] is not UTF-8", file->path, id);
    }
  }
  return build_index(tok, message);
}

static attn_status decode_tokens(tokenizer *tok, attn_message *message) {
  uint64_t total = 0;
  for (int32_t id = 0; id < tok->count; id++) {
    total += tok->spelling[id].length;
  }
  tok->bytes = malloc((size_t)total + 1);
  tok->starts = malloc(((size_t)tok->count + 1) * sizeof tok->starts[0]);
  if (tok->bytes == NULL || tok->starts == NULL) {
    return no_memory(message);
  }
  uint64_t used = 0;
  for (int32_t id = 0; id < tok->count; id++) {
    tok->starts[id] = used;
    int64_t length = token_kind(tok, id) == TOKEN_NORMAL ? unspell(tok->spelling[id], tok->bytes + used) : -1;
    if (length < 0) {
      length = (int64_t)tok->spelling[id].length;
      memcpy(tok->bytes + used, tok->spelling[id].data, (size_t)length);
    }
    used += (uint64_t)length;
  }
  tok->starts[tok->count] = used;
  for (unsigned byte = 0; byte < 256; byte++) {
    const uint32_t character = byte_character(byte);
    char spelt[2] = {(char)(unsigned char)character, 0};
    if (character >= 0x80) {
      spelt[0] = (char)(unsigned char)(0xc0 | character >> 6);
      spelt[1] = (char)(unsigned char)(0x80 | (character & 0x3f));
    }
    tok->merges.byte_ids[byte] = find_token(tok, (gguf_string){spelt, character >= 0x80 ? 2 : 1});
  }
  return ATTN_OK;
}

static attn_status load_merge(const gguf_file *file, const tokenizer *tok, uint64_t i, gguf_string text, char *joined,
                              merge_rule *rule, attn_message *message) {
  const char *space = text.length > 0 ? memchr(text.data, ' ', (size_t)text.length) : NULL;
  if (space != NULL) {
    const gguf_string first = {text.data, (uint64_t)(space - text.data)};
    const gguf_string second = {space + 1, text.length - first.length - 1};
    memcpy(joined, first.data, (size_t)first.length);
    memcpy(joined + first.length, second.data, (size_t)second.length);
    const int32_t left = find_token(tok, first);
    const int32_t right = find_token(tok, second);
    rule->id = find_token(tok, (gguf_string){joined, text.length - 1});
    if (left >= 0 && right >= 0 && rule->id >= 0) {
      rule->key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
      rule->rank = (int32_t)i;
      return ATTN_OK;
    }
  }
  const lm_quoted found = lm_quote(text.data, text.length);
  return lm_fail(message, ATTN_E_NAME,
                 "%s: tokenizer.ggml.merges[%" PRIu64
                 "] is %s; accepted are two tokens and a space that join to a token",
                 file->path, i, found.text);
}

static attn_status load_merges(const gguf_file *file, tokenizer *tok, attn_message *message) {
  const gguf_value *merges = NULL;
  attn_status status = gguf_get_array(file, "tokenizer.ggml.merges", GGUF_STRING, &merges, message);
  if (status != ATTN_OK) {
    return status;
  }
  if (merges->count > (uint64_t)INT32_MAX / 2) {
    return lm_fail(message, ATTN_E_RANGE, "%s: tokenizer.ggml.merges has %" PRIu64 " entries; accepted are up to %d",
                   file->path, merges->count, INT32_MAX / 2);
  }
  uint64_t longest = 0;
  const uint8_t *at = merges->data;
  for (uint64_t i = 0; i < merges->count; i++) {
    const gguf_string text = gguf_next_string(&at);
    longest = text.length > longest ? text.length : longest;
  }
  tok->merges.count = (size_t)merges->count;
  tok->merges.rules = malloc(((size_t)merges->count + 1) * sizeof tok->merges.rules[0]);
  char *joined = malloc((size_t)longest + 1);
  if (tok->merges.rules == NULL || joined == NULL) {
    free(joined);
    return no_memory(message);
  }
  at = merges->data;
  for (uint64_t i = 0; i < merges->count && status == ATTN_OK; i++) {
    status = load_merge(file, tok, i, gguf_next_string(&at), joined, &tok->merges.rules[i], message);
  }
  free(joined);
  if (status == ATTN_OK) {
    bpe_sort_rules(&tok->merges);
  }
  return status;
}

static attn_status load_special_id(const gguf_file *file, const tokenizer *tok, const char *key, int32_t *out,
                                   attn_message *message) {
  uint64_t id = UINT64_MAX;
  attn_status status = gguf_get_u64_or(file, key, UINT64_MAX, &id, message);
  if (status != ATTN_OK) {
    return status;
  }
  if (id != UINT64_MAX && id >= (uint64_t)tok->count) {
    return lm_fail(message, ATTN_E_RANGE, "%s: %s is %" PRIu64 "; accepted are 0 to %d", file->path, key, id,
                   tok->count - 1);
  }
  *out = id == UINT64_MAX ? -1 : (int32_t)id;
  return ATTN_OK;
}

static attn_status load_special_ids(const gguf_file *file, tokenizer *tok, attn_message *message) {
  bool add_bos = false;
  attn_status status = gguf_get_bool_or(file, "tokenizer.ggml.add_bos_token", false, &add_bos, message);
  if (status == ATTN_OK) {
    status = load_special_id(file, tok, "tokenizer.ggml.eos_token_id", &tok->eos, message);
  }
  if (status == ATTN_OK) {
    status = load_special_id(file, tok, "tokenizer.ggml.bos_token_id", &tok->bos, message);
  }
  if (status == ATTN_OK && !add_bos) {
    tok->bos = -1;
  }
  return status;
}

static attn_status load_kind(const gguf_file *file, tokenizer *tok, attn_message *message) {
  gguf_string model = {NULL, 0};
  gguf_string pre = {NULL, 0};
  attn_status status = gguf_get_string(file, "tokenizer.ggml.model", &model, message);
  if (status == ATTN_OK && !gguf_string_equals(model, "gpt2")) {
    const lm_quoted found = lm_quote(model.data, model.length);
    status =
        lm_fail(message, ATTN_E_NAME, "%s: tokenizer.ggml.model is %s; accepted is 'gpt2'", file->path, found.text);
  }
  if (status == ATTN_OK) {
    status = gguf_get_string(file, "tokenizer.ggml.pre", &pre, message);
  }
  return status == ATTN_OK ? pretokenizer_create(pre, &tok->cutter, message) : status;
}

attn_status tokenizer_create(const gguf_file *file, tokenizer **out, attn_message *message) {
  tokenizer *tok = calloc(1, sizeof *tok);
  if (tok == NULL) {
    return no_memory(message);
  }
  attn_status status = load_kind(file, tok, message);
  if (status == ATTN_OK) {
    status = load_tokens(file, tok, message);
  }
  if (status == ATTN_OK) {
    status = decode_tokens(tok, message);
  }
  if (status == ATTN_OK) {
    status = load_merges(file, tok, message);
  }
  if (status == ATTN_OK) {
    status = load_special_ids(file, tok, message);
  }
  if (status != ATTN_OK) {
    tokenizer_free(tok);
    return status;
  }
  *out = tok;
  return ATTN_OK;
}

void tokenizer_free(tokenizer *tok) {
  if (tok != NULL) {
    pretokenizer_free(tok->cutter);
    bpe_room_free(&tok->room);
    free(tok->merges.rules);
    free(tok->starts);
    free(tok->bytes);
    free(tok->index);
    free(tok->spelling);
    free(tok);
  }
}

typedef struct encode_target {
  tokenizer *tok;
  lm_ids *ids;
} encode_target;

static attn_status encode_piece(void *context, const char *piece, size_t length, attn_message *message) {
  const encode_target *target = context;
  return bpe_merge_piece(&target->tok->merges, &target->tok->room, piece, length, target->ids, message);
}

attn_status tokenizer_encode(tokenizer *tok, const char *text, size_t length, lm_ids *ids, attn_message *message) {
  const size_t invalid = utf8_first_invalid(text, length);
  if (invalid != length) {
    return lm_fail(message, ATTN_E_RANGE, "not UTF-8: byte 0x%02x at offset %zu; accepted is UTF-8",
                   (unsigned)(unsigned char)text[invalid], invalid);
  }
  const size_t before = ids->count;
  encode_target target = {tok, ids};
  const attn_status status = pretokenizer_cut(tok->cutter, text, length, encode_piece, &target, message);
  if (status != ATTN_OK) {
    ids->count = before;
  }
  return status;
}

gguf_string tokenizer_decode(const tokenizer *tok, int32_t id) {
  if (id < 0 || id >= tok->count) {
    return (gguf_string){"", 0};
  }
  return (gguf_string){tok->bytes + tok->starts[id], tok->starts[id + 1] - tok->starts[id]};
}

int32_t tokenizer_special(const tokenizer *tok, const char *text) {
  const int32_t id = find_token(tok, (gguf_string){text, strlen(text)});
  return id >= 0 && token_kind(tok, id) == TOKEN_CONTROL ? id : -1;
}

int32_t tokenizer_size(const tokenizer *tok) {
  return tok->count;
}

int32_t tokenizer_eos(const tokenizer *tok) {
  return tok->eos;
}

int32_t tokenizer_bos(const tokenizer *tok) {
  return tok->bos;
}
