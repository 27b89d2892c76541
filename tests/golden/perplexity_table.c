/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perplexity_table MEASURED.json SIMULATED.json: judges what `attn-lm perplexity --all-formats --kv-scales both --json`
 * measured, and prints the table of docs/numerics.md. A format may change the perplexity by so much, and what it does
 * has to be near what formats/simulate_perplexity.py finds with rows of its own. scripts/check-long.sh runs it. Exit
 * status 1: something is beyond its limit; 2: a file is not what it should be.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGREE 256

/* Percent. Last bits of K decide which code a value on the edge takes, and one other code makes all later rows a little
   other ones: of a format with a large divergence the perplexity is one draw of many, some tenths of a percent apart
   (docs/numerics.md has two). With the same codes it agrees within 0.01 %, which is judged apart
   (formats/simulate_perplexity.py --bytes). The divergence, a mean over all tokens of the vocabulary, is steadier. */
#define NEAR_SIMULATION 0.3
#define NEAR_SIMULATION_COARSE 1.0
#define COARSE_KL 0.01 /* nats */
#define NEAR_SIMULATED_KL 10.0

typedef struct limit {
  const char *format;
  const char *scales;
  double percent; /* of the change to float32 */
} limit;

static const limit limits[] = {
    {"int8_per_token_head", "1", 0.5},
    {"fp8_per_token_head", "1", 2},
    {"fp8_e4m3", "1", 4},
    {"fp8_e4m3", "auto", 4},
    {"fp8_e5m2", "1", 9},
    {"fp8_e5m2", "auto", 9},
    {"int4_per_token_head", "1", 12},
    {"int8_per_token_head,int4_per_token_head", "1", 2.5},
};

#if defined(__GNUC__)
__attribute__((__format__(__printf__, 1, 2), __noreturn__))
#endif
static void
refuse(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)fputs("perplexity_table: ", stderr);
  (void)vfprintf(stderr, format, arguments);
  (void)fputc('\n', stderr);
  va_end(arguments);
  exit(2);
}

static cJSON *read_json(const char *path) {
  enum { MOST = 1 << 20 };
  FILE *file = fopen(path, "rb");
  char *text = malloc(MOST);
  if (file == NULL || text == NULL) {
    refuse("%s cannot be opened", path);
  }
  const size_t length = fread(text, 1, MOST, file);
  cJSON *json = cJSON_ParseWithLength(text, length);
  if (fclose(file) != 0 || json == NULL) {
    refuse("%s is no JSON", path);
  }
  free(text);
  return json;
}

static double number(const cJSON *row, const char *name) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, name);
  if (!cJSON_IsNumber(item)) {
    refuse("%s is no number", name);
  }
  return item->valuedouble;
}

static const char *string(const cJSON *row, const char *name) {
  const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, name));
  if (text == NULL) {
    refuse("%s is no string", name);
  }
  return text;
}

/* "1" or "auto"; rows without static scales may say nothing. */
static const char *scales_of(const cJSON *row) {
  const char *scales = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "kv_scales"));
  return scales != NULL ? scales : "1";
}

static const cJSON *find(const cJSON *list, const char *path, const char *format, const char *scales) {
  const cJSON *row = NULL;
  cJSON_ArrayForEach(row, list) {
    if (strcmp(string(row, "format"), format) == 0 && strcmp(scales_of(row), scales) == 0) {
      return row;
    }
  }
  refuse("%s lacks %s with scales %s", path, format, scales);
}

/* 1 where the value is beyond the limit, which is told. */
static int judge(const char *format, const char *scales, const char *what, double value, double most) {
  const bool beyond = !(fabs(value) <= most);
  if (beyond) {
    (void)fprintf(stderr, "%s, scales %s: %s by %.3f %%, accepted is %.3g %%\n", format, scales, what, value, most);
  }
  return beyond;
}

static int print_row(const cJSON *row, double plain, const cJSON *simulated) {
  const char *format = string(row, "format");
  const char *scales = scales_of(row);
  const double found = number(row, "perplexity");
  const double change = 100 * (found / plain - 1);
  const double off = 100 * (found / number(simulated, "perplexity") - 1);
  const double kl = number(row, "kl");
  const double kl_off = kl == 0 ? 0 : 100 * (kl / number(simulated, "kl") - 1);
  int failed = judge(format, scales, "perplexity off the simulation", off,
                     kl < COARSE_KL ? NEAR_SIMULATION : NEAR_SIMULATION_COARSE);
  failed += judge(format, scales, "divergence off the simulation", kl_off, NEAR_SIMULATED_KL);
  for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
    if (strcmp(limits[i].format, format) == 0 && strcmp(limits[i].scales, scales) == 0) {
      failed += judge(format, scales, "perplexity off float32", change, limits[i].percent);
    }
  }
  if (number(row, "bytes_per_token") != number(simulated, "bytes_per_token")) {
    (void)fprintf(stderr, "%s: %.0f bytes a token, the simulation has %.0f\n", format, number(row, "bytes_per_token"),
                  number(simulated, "bytes_per_token"));
    failed++;
  }
  const bool is_static = strstr(format, "fp8_e") != NULL;
  (void)printf("| `%s`%s%s | %.0f | %.4f | %+.2f %% | %.2g | %.0f | %+.3f %% |\n", format, is_static ? ", scales " : "",
               is_static ? scales : "", number(row, "bytes_per_token"), found, change, kl, number(row, "agree"), off);
  return failed;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    refuse("usage: perplexity_table MEASURED.json SIMULATED.json");
  }
  cJSON *measured = read_json(argv[1]);
  cJSON *simulation = read_json(argv[2]);
  const cJSON *simulated = cJSON_GetObjectItemCaseSensitive(simulation, "formats");
  const cJSON *plain = cJSON_GetArrayItem(measured, 0);
  const cJSON *row = NULL;
  int failed = 0;
  if (strcmp(string(plain, "format"), "float32") != 0 || number(plain, "kl") != 0 || number(plain, "agree") != AGREE) {
    refuse("%s does not begin with float32, to which the others are compared", argv[1]);
  }
  for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
    (void)find(measured, argv[1], limits[i].format, limits[i].scales);
  }
  (void)printf("| cache | bytes a token | perplexity | to float32 | KL, nats | same best token | off a simulation |\n"
               "|---|---:|---:|---:|---:|---:|---:|\n");
  cJSON_ArrayForEach(row, measured) {
    failed +=
        print_row(row, number(plain, "perplexity"), find(simulated, argv[2], string(row, "format"), scales_of(row)));
  }
  cJSON_Delete(measured);
  cJSON_Delete(simulation);
  return failed > 0;
}
