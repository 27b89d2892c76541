/* SPDX-License-Identifier: Apache-2.0 */
/* From a file's keys and tensors to a request, by the tables alone: unknown names, names that the operation does
   not use, values, types, ranks, and what an operation demands. Command-line flags then replace their keys. */
#include <stdlib.h>
#include <string.h>

#include "core/format.h"
#include "request.h"

static void append_word(char *text, size_t bytes, const char *word) {
  size_t used = strlen(text);
  snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "", word);
}

void request_key_values(const key_row *row, char *text, size_t bytes) {
  text[0] = '\0';
  if (row->values != NULL) {
    append_word(text, bytes, row->values);
    return;
  }
  for (size_t i = 0; i < KEY_MAX_CHOICES && row->choices[i] != NULL; ++i) {
    append_word(text, bytes, row->choices[i]);
  }
}

void request_dtype_names(unsigned dtypes, char *text, size_t bytes) {
  text[0] = '\0';
  for (int i = 0; i < ST_DTYPE_COUNT; ++i) {
    if ((dtypes & (1u << i)) != 0) {
      append_word(text, bytes, st_dtype_name((st_dtype)i));
    }
  }
}

int32_t request_i32(const st_tensor *tensor, int64_t i) {
  int32_t value;
  memcpy(&value, tensor->data + (size_t)i * sizeof(value), sizeof(value));
  return value;
}

const DLTensor *request_view(const st_tensor *tensor, DLTensor *view) {
  if (tensor == NULL) {
    return NULL;
  }
  attn_tensor_cpu(view, tensor->data, st_dtype_of_library(tensor->dtype), tensor->rank, (int64_t *)tensor->shape);
  return view;
}

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

static int parse_format(const char *text, key_value *value) {
  static const char suffix[] = "+separate_scales";
  char name[40];
  const char *plus = strchr(text, '+');
  size_t length = plus != NULL ? (size_t)(plus - text) : strlen(text);
  attn_format format = ATTN_FORMAT_AUTO;
  if (length >= sizeof(name) || (plus != NULL && strcmp(plus, suffix) != 0)) {
    return 0;
  }
  memcpy(name, text, length);
  name[length] = '\0';
  if (strcmp(name, "auto") != 0 && !attn_format_from_name(name, &format)) {
    return 0;
  }
  const attn_format_facts *facts = attn_format_of(format);
  if (plus != NULL && (facts == NULL || facts->scale != ATTN_SCALE_ROW)) {
    return 0;
  }
  value->integer = (int64_t)format;
  value->separate = plus != NULL;
  return 1;
}

static int parse_choice(const key_row *row, const char *text, key_value *value) {
  for (int i = 0; i < KEY_MAX_CHOICES && row->choices[i] != NULL; ++i) {
    if (strcmp(row->choices[i], text) == 0) {
      value->integer = i;
      return 1;
    }
  }
  return 0;
}

static int parse_value(const key_row *row, const char *text, key_value *value) {
  switch (row->kind) {
  case KEY_IS_CHOICE:
    return parse_choice(row, text, value);
  case KEY_IS_FORMAT:
    return parse_format(text, value);
  case KEY_IS_INT:
    return cli_parse_int(text, &value->integer) && value->integer >= row->low && value->integer <= row->high;
  case KEY_IS_FLOAT:
    return cli_parse_float(text, &value->number) && (row->low != 0 ? value->number > 0.0f : value->number >= 0.0f);
  }
  return 0;
}

static int find_key(const char *name, request_key *key) {
  for (int i = 0; i < KEY_COUNT; ++i) {
    if (strcmp(request_keys[i].name, name) == 0) {
      *key = (request_key)i;
      return 1;
    }
  }
  return 0;
}

static int read_key(request_key key, const char *text, const char *source, request *parsed, cli_report *report) {
  const key_row *row = &request_keys[key];
  if (!parse_value(row, text, &parsed->key[key])) {
    char values[400];
    request_key_values(row, values, sizeof(values));
    return cli_fail(report, CLI_BAD_INPUT, "%s %s is \"%.64s\"; accepted: %s", source, row->name, text, values);
  }
  parsed->key[key].given = 1;
  return CLI_OK;
}

static void set_defaults(request *parsed) {
  parsed->key[KEY_CAUSAL].integer = 1;
  parsed->key[KEY_WINDOW_LEFT].integer = -1;
  parsed->key[KEY_WINDOW_RIGHT].integer = -1;
  parsed->key[KEY_CHECKED].integer = 1;
}

static int find_tensor(const st_file *file, const char *name) {
  for (size_t i = 0; i < file->num_tensors; ++i) {
    if (strcmp(file->tensors[i].name, name) == 0) {
      return 1;
    }
  }
  return 0;
}

static int read_op(const st_file *file, request *parsed, cli_report *report) {
  for (size_t i = 0; i < file->num_metadata; ++i) {
    if (strcmp(file->metadata[i].key, request_keys[KEY_OP].name) == 0) {
      int code = read_key(KEY_OP, file->metadata[i].value, "key", parsed, report);
      if (code != CLI_OK) {
        return code;
      }
    }
  }
  if (!parsed->key[KEY_OP].given) {
    char values[200];
    request_key_values(&request_keys[KEY_OP], values, sizeof(values));
    return cli_fail(report, CLI_BAD_INPUT, "key op is missing; accepted: %s", values);
  }
  const char *name = request_keys[KEY_OP].choices[parsed->key[KEY_OP].integer];
  for (size_t i = 0; i < request_num_ops; ++i) {
    if (strcmp(request_ops[i].name, name) == 0) {
      parsed->op = &request_ops[i];
    }
  }
  int cache_call = parsed->op->op == OP_CACHE_WRITE || parsed->op->op == OP_CACHE_GATHER;
  parsed->latent = parsed->op->latent || (cache_call && find_tensor(file, request_tensors[TENSOR_KV_CACHE].name) &&
                                          !find_tensor(file, request_tensors[TENSOR_K_CACHE].name) &&
                                          !find_tensor(file, request_tensors[TENSOR_V_CACHE].name));
  return CLI_OK;
}

static int uses(const request *parsed, unsigned kv_ops, unsigned latent_ops) {
  return ((parsed->latent ? latent_ops : kv_ops) & (unsigned)parsed->op->op) != 0;
}

static const char *pool_kind(const request *parsed) {
  return parsed->latent ? " with a latent pool" : parsed->op->op == OP_MERGE ? "" : " with K and V";
}

static int read_keys(const st_file *file, request *parsed, cli_report *report) {
  for (size_t i = 0; i < file->num_metadata; ++i) {
    const char *name = file->metadata[i].key;
    request_key key;
    if (!find_key(name, &key)) {
      return cli_fail(report, CLI_BAD_INPUT, "key %.64s is not known; attn run --describe lists the keys", name);
    }
    if (!uses(parsed, request_keys[key].kv_ops, request_keys[key].latent_ops)) {
      return cli_fail(report, CLI_BAD_INPUT, "key %s is not used by op %s%s", name, parsed->op->name,
                      pool_kind(parsed));
    }
    int code = read_key(key, file->metadata[i].value, "key", parsed, report);
    if (code != CLI_OK) {
      return code;
    }
  }
  for (int i = 0; i < KEY_COUNT; ++i) {
    if ((request_keys[i].required & (unsigned)parsed->op->op) != 0 && !parsed->key[i].given &&
        uses(parsed, request_keys[i].kv_ops, request_keys[i].latent_ops)) {
      char values[400];
      request_key_values(&request_keys[i], values, sizeof(values));
      return cli_fail(report, CLI_BAD_INPUT, "key %s is missing; op %s needs it: %s", request_keys[i].name,
                      parsed->op->name, values);
    }
  }
  return CLI_OK;
}

/* Flags replace keys; a flag that the operation has no use for is an error as its key would be. */
static int apply_flags(const cli_options *flags, request *parsed, cli_report *report) {
  int attends = (parsed->op->op & (OP_ATTENTION | OP_MLA_MQA | OP_MLA_MHA | OP_MLA_LAYER)) != 0;
  if (flags->num_splits >= 0) {
    if (!attends) {
      return cli_fail(report, CLI_BAD_INPUT, "--splits is not used by op %s", parsed->op->name);
    }
    parsed->key[KEY_NUM_SPLITS].integer = flags->num_splits;
    parsed->key[KEY_NUM_SPLITS].given = 1;
  }
  if (flags->batch_invariant && !attends) {
    return cli_fail(report, CLI_BAD_INPUT, "--batch-invariant is not used by op %s", parsed->op->name);
  }
  if (flags->unchecked) {
    if (parsed->op->op == OP_MERGE) {
      return cli_fail(report, CLI_BAD_INPUT, "--unchecked is not used by op %s", parsed->op->name);
    }
    parsed->key[KEY_CHECKED].integer = 0;
    parsed->key[KEY_CHECKED].given = 1;
  }
  return CLI_OK;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* The number of a part ("out_12" with prefix "out_" is 12), or -1 for anything else. */
static int64_t part_number(const char *name, const char *prefix) {
  int64_t number;
  size_t length = strlen(prefix);
  if (strncmp(name, prefix, length) != 0) {
    return -1;
  }
  const char *digits = name + length;
  if (!cli_parse_int(digits, &number) || number < 0 || (digits[0] == '0' && digits[1] != '\0') || digits[0] == '-') {
    return -1;
  }
  return number;
}

static int find_row(const char *name, request_tensor *found, int64_t *part) {
  *part = -1;
  for (int i = 0; i < TENSOR_COUNT; ++i) {
    if (i == TENSOR_OUT_PART || i == TENSOR_LSE_PART) {
      *part = part_number(name, request_tensors[i].name);
    }
    if (*part >= 0 || (i < TENSOR_OUT_PART && strcmp(request_tensors[i].name, name) == 0)) {
      *found = (request_tensor)i;
      return 1;
    }
  }
  return 0;
}

static int check_row(const tensor_row *row, const st_tensor *tensor, const request *parsed, cli_report *report) {
  if (!uses(parsed, row->kv_ops, row->latent_ops)) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor %s is not used by op %s%s", tensor->name, parsed->op->name,
                    pool_kind(parsed));
  }
  if ((row->dtypes & (1u << tensor->dtype)) == 0) {
    char names[100];
    request_dtype_names(row->dtypes, names, sizeof(names));
    return cli_fail(report, CLI_BAD_INPUT, "tensor %s has type %s; accepted: %s", tensor->name,
                    st_dtype_name(tensor->dtype), names);
  }
  if (tensor->rank < row->min_rank || tensor->rank > row->max_rank) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor %s has %d axes; accepted: %s", tensor->name, (int)tensor->rank,
                    row->shape);
  }
  return CLI_OK;
}

static int read_part(const st_tensor *tensor, request_tensor row, int64_t part, request *parsed, cli_report *report) {
  const st_tensor **list = row == TENSOR_OUT_PART ? parsed->outs : parsed->lses;
  if (part >= REQUEST_MAX_PARTS) {
    return cli_fail(report, CLI_BAD_INPUT, "tensor %.64s: parts are numbered from 0 to %d", tensor->name,
                    REQUEST_MAX_PARTS - 1);
  }
  list[part] = tensor;
  parsed->num_parts = (size_t)part >= parsed->num_parts ? (size_t)part + 1 : parsed->num_parts;
  return CLI_OK;
}

static int check_parts(const request *parsed, cli_report *report) {
  for (size_t i = 0; i < parsed->num_parts; ++i) {
    if (parsed->outs[i] == NULL || parsed->lses[i] == NULL) {
      return cli_fail(report, CLI_BAD_INPUT, "tensor %s%zu is missing; parts 0 to %zu are given without gaps",
                      parsed->outs[i] == NULL ? "out_" : "lse_", i, parsed->num_parts - 1);
    }
  }
  return CLI_OK;
}

static int read_tensors(const st_file *file, request *parsed, cli_report *report) {
  for (size_t i = 0; i < file->num_tensors; ++i) {
    const st_tensor *tensor = &file->tensors[i];
    request_tensor row;
    int64_t part;
    if (!find_row(tensor->name, &row, &part)) {
      return cli_fail(report, CLI_BAD_INPUT, "tensor %.64s is not known; attn run --describe lists the tensors",
                      tensor->name);
    }
    int code = check_row(&request_tensors[row], tensor, parsed, report);
    if (code == CLI_OK && part >= 0) {
      code = read_part(tensor, row, part, parsed, report);
    }
    if (code != CLI_OK) {
      return code;
    }
    parsed->tensor[row] = tensor;
  }
  for (int i = 0; i < TENSOR_COUNT; ++i) {
    const tensor_row *row = &request_tensors[i];
    if (parsed->tensor[i] == NULL && (row->required & (unsigned)parsed->op->op) != 0 &&
        uses(parsed, row->kv_ops, row->latent_ops)) {
      return cli_fail(report, CLI_BAD_INPUT, "tensor %s%s is missing; op %s needs %s", row->name,
                      i >= TENSOR_OUT_PART ? "0" : "", parsed->op->name, row->shape);
    }
  }
  return check_parts(parsed, report);
}

static int refuse_op(const op_row *op, cli_report *report) {
  char names[200] = "";
  for (size_t i = 0; i < request_num_ops; ++i) {
    if (request_ops[i].built) {
      append_word(names, sizeof(names), request_ops[i].name);
    }
  }
  return cli_fail(report, CLI_BAD_INPUT, "op %s is not built in; built in: %s", op->name, names);
}

int request_parse(const st_file *file, const cli_options *flags, request *parsed, cli_report *report) {
  memset(parsed, 0, sizeof(*parsed));
  set_defaults(parsed);
  parsed->outs = calloc(REQUEST_MAX_PARTS, sizeof(*parsed->outs));
  parsed->lses = calloc(REQUEST_MAX_PARTS, sizeof(*parsed->lses));
  int code = CLI_OK;
  if (parsed->outs == NULL || parsed->lses == NULL) {
    code = cli_fail(report, CLI_FAILED, "no memory for the request");
  }
  if (code == CLI_OK) {
    code = read_op(file, parsed, report);
  }
  if (code == CLI_OK) {
    code = read_keys(file, parsed, report);
  }
  if (code == CLI_OK) {
    code = apply_flags(flags, parsed, report);
  }
  if (code == CLI_OK) {
    code = read_tensors(file, parsed, report);
  }
  if (code == CLI_OK && !parsed->op->built) {
    code = refuse_op(parsed->op, report);
  }
  if (code != CLI_OK) {
    request_free(parsed);
  }
  return code;
}

void request_free(request *parsed) {
  free(parsed->outs);
  free(parsed->lses);
  parsed->outs = NULL;
  parsed->lses = NULL;
}
