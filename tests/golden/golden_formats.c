/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of every built cache format, byte for byte, and their values, against golden/formats: hashes of 1,000 rows
   for each format, scale place, source type and head size (rows.txt), rows computed by hand (hand.txt), a few of the
   1,000 whole (whole.txt), and all codes and ties of fp8 (fp8.txt). The answers come from a script that shares no code
   with the library. A format whose flag in ATTN_FORMAT_LIST is 0 has to be refused, and is named. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden_rows.h"
#include "golden_trial.h"
#include "test_counts.h"

#define FORMATS_DIR ATTN_GOLDEN_DIR "/formats/"

static const char *const backends[] = {"REFERENCE", "CPU_ATTN"};
static const uint32_t statics_one[] = {0x3DCCCCCD};
static const uint32_t statics_heads[ROWS_HEADS] = {0x3F800000, 0x3DCCCCCD, 0x40490FDB, 0x3B03126F};

static int is_built(attn_format format) {
  switch (format) {
#define FORMAT_BUILT(name, value, spelling, storage, rows)                                                             \
  case name:                                                                                                           \
    return ((rows)&ATTN_ROWS_KV) != 0;
    ATTN_FORMAT_LIST(FORMAT_BUILT)
#undef FORMAT_BUILT
  default:
    return 0;
  }
}

static attn_format format_of(const char *name) {
  attn_format format = ATTN_FORMAT_AUTO;
  CHECK(attn_format_from_name(name, &format), "'%s' is no format", name);
  return format;
}

static trial_place place_of(const char *name) {
  static const char *const names[] = {"none", "unset", "one", "heads", "inline", "separate"};
  for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++) {
    if (strcmp(name, names[i]) == 0) {
      return (trial_place)i;
    }
  }
  harness_fail(__FILE__, __LINE__, "'%s' is no place", name);
  return PLACE_NONE;
}

static FILE *open_file(const char *name) {
  char path[1024];
  snprintf(path, sizeof path, "%s%s", FORMATS_DIR, name);
  FILE *file = fopen(path, "r");
  CHECK(file != NULL, "%s cannot be read", path);
  return file;
}

static uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return value != value ? 0x7FC00000 : bits;
}

/* The values of a row as the answers write them: what was gathered, or for int4, whose inverse rotation may be summed
   in any order, the exact ones, when what was gathered is near enough. */
static int row_values(const trial *t, int which, int32_t token, int32_t head, uint32_t *bits) {
  const trial_side *s = &t->side[which];
  const float *got = trial_values(t, which, token, head);
  double exact[512], largest = 0.0;
  for (int32_t i = 0; i < s->size; i++) {
    bits[i] = float_bits(got[i]);
  }
  if (s->format != ATTN_FORMAT_INT4_PER_TOKEN_HEAD) {
    return 1;
  }
  trial_exact_int4(trial_row(t, which, token, head), trial_scale_bits(t, which, token, head), s->size, exact);
  for (int32_t i = 0; i < s->size; i++) {
    largest = fabs(exact[i]) > largest ? fabs(exact[i]) : largest;
  }
  for (int32_t i = 0; i < s->size; i++) {
    const double allowed = 0x1p-20 * largest + 0x1p-24 * fabs(exact[i]) + 0x1p-149;
    const int beyond = isinf(got[i]) && fabs(exact[i]) + allowed > 0x1.fffffep127 && (got[i] > 0) == (exact[i] > 0);
    if (isnan(exact[i]) ? !isnan(got[i]) : !(fabs((double)got[i] - exact[i]) <= allowed) && !beyond) {
      print_error("element %d is %a, exactly %a, in a row up to %a\n", i, (double)got[i], exact[i], largest);
      return 0;
    }
    bits[i] = float_bits((float)exact[i]);
  }
  return 1;
}

/* ---- rows.txt ---------------------------------------------------------------------------------------------------- */

typedef struct answer {
  char format[32], place[16], source[16], kinds[4 * ROWS_KINDS + 1];
  int32_t size;
  uint64_t bytes, values;
} answer;

/* The lines of one source type and size. */
typedef struct group {
  attn_dtype source;
  int32_t size;
  uint64_t bits_hash;
  answer lines[32];
  int count;
  uint32_t *bits; /* [ROWS_COUNT, size] */
} group;

static const uint32_t *statics_of(trial_place place) {
  return place == PLACE_ONE ? statics_one : place == PLACE_HEADS ? statics_heads : NULL;
}

static void judge_side(const trial *t, int which, const answer *want) {
  static uint64_t hashes[2][ROWS_COUNT];
  static uint32_t bits[512];
  const trial_side *s = &t->side[which];
  char label[160];
  snprintf(label, sizeof label, "%s %s from %s, size %d, as %s, %s", want->format, want->place, want->source,
           want->size, which == 0 ? "K" : "V", t->backend);
  CHECK(trial_rest_is_poison(t, which), "%s: a byte beside the rows changed", label);
  for (int32_t row = 0; row < ROWS_COUNT; row++) {
    const int32_t token = row / ROWS_HEADS, head = row % ROWS_HEADS;
    hashes[0][row] = rows_hash(ROWS_BASIS, trial_row(t, which, token, head), trial_row_bytes(s));
    if (s->place == PLACE_SEPARATE) {
      hashes[0][row] = rows_hash(hashes[0][row], trial_scale(t, which, token, head), 4);
    }
    CHECK(row_values(t, which, token, head, bits), "%s: row %d is gathered wrong", label, row);
    hashes[1][row] = rows_hash(ROWS_BASIS, bits, 4 * (size_t)s->size);
  }
  for (int kind = 0; kind < ROWS_KINDS; kind++) {
    char part[5];
    snprintf(part, sizeof part, "%04x", (unsigned)(rows_fold(hashes[0], kind) & 0xFFFF));
    CHECK(memcmp(part, want->kinds + 4 * kind, 4) == 0, "%s: rows of kind %d (tokens %d, %d, ...) differ", label, kind,
          kind, kind + ROWS_KINDS);
  }
  CHECK(rows_fold(hashes[0], -1) == want->bytes, "%s: bytes differ", label);
  CHECK(rows_fold(hashes[1], -1) == want->values, "%s: values differ", label);
}

static void try_pair(const char *backend, attn_layout layout, const group *g, const answer *k, const answer *v) {
  const answer *const wanted[2] = {k, v};
  trial t;
  trial_open(&t, backend, layout, g->source, ROWS_TOKENS, ROWS_HEADS);
  for (int which = 0; which < 2; which++) {
    const trial_place place = place_of(wanted[which]->place);
    trial_side_open(&t, which, format_of(wanted[which]->format), place, g->size,
                    layout == ATTN_LAYOUT_HND ? 1 + which : 0, which == 0, statics_of(place));
    for (int32_t row = 0; row < ROWS_COUNT; row++) {
      trial_set_source(&t, which, row / ROWS_HEADS, row % ROWS_HEADS, g->bits + (size_t)row * (size_t)g->size);
    }
  }
  EXPECT_OK(trial_write(&t));
  EXPECT_OK(trial_gather(&t));
  judge_side(&t, 0, k);
  judge_side(&t, 1, v);
  trial_close(&t);
}

/* The source rows are the script's; then every built line once as K or V, beside its neighbour, in each backend: in a
   sanitized build, which is three times as slow, every second pair of lines, in one of the two, by turns. */
static int try_group(group *g) {
  static uint64_t hashes[ROWS_COUNT];
  g->bits = malloc((size_t)ROWS_COUNT * (size_t)g->size * sizeof *g->bits);
  assert_non_null(g->bits);
  for (int32_t row = 0; row < ROWS_COUNT; row++) {
    uint32_t *bits = g->bits + (size_t)row * (size_t)g->size;
    rows_make(g->source, g->size, row, bits);
    hashes[row] = rows_hash(ROWS_BASIS, bits, 4 * (size_t)g->size);
  }
  CHECK(rows_fold(hashes, -1) == g->bits_hash, "source rows of %s, size %d, are not the script's",
        attn_dtype_name(g->source), g->size);
  for (int i = test_count(0, 2 * (g->size % 2)); i < g->count; i += test_count(2, 4)) {
    const answer *a = &g->lines[i], *b = &g->lines[i + 1 < g->count ? i + 1 : 0];
    const int turn = (i / 2 + (int)g->source + g->size) % 2;
    for (int which = test_count(0, turn); which < 2; which += test_count(1, 2)) {
      try_pair(backends[which], turn == which ? ATTN_LAYOUT_HND : ATTN_LAYOUT_NHD, g, which == 0 ? a : b,
               which == 0 ? b : a);
    }
  }
  free(g->bits);
  return g->count;
}

static void rows_are_the_scripts(void **state) {
  FILE *file = open_file("rows.txt");
  static group g;
  char line[256];
  int groups = 0, lines = 0;
  (void)state;
  while (fgets(line, sizeof line, file) != NULL) {
    answer a;
    if (line[0] == '#') continue;
    if (sscanf(line, "source - %15s %d %" SCNx64, a.source, &a.size, &a.bytes) == 3) {
      lines += groups > 0 ? try_group(&g) : 0;
      memset(&g, 0, sizeof g);
      g.source = attn_dtype_from_name(a.source);
      g.size = a.size;
      g.bits_hash = a.bytes;
      groups++;
      continue;
    }
    CHECK(sscanf(line, "%31s %15s %15s %d %" SCNx64 " %" SCNx64 " %80s", a.format, a.place, a.source, &a.size, &a.bytes,
                 &a.values, a.kinds) == 7 &&
              strlen(a.kinds) == 4 * ROWS_KINDS,
          "rows.txt: %s", line);
    if (is_built(format_of(a.format))) {
      assert_true(g.count < (int)(sizeof g.lines / sizeof g.lines[0]));
      g.lines[g.count++] = a;
    }
  }
  lines += try_group(&g);
  fclose(file);
  print_message("rows.txt: %d groups of source rows, %d lines of built formats\n", groups, lines);
  assert_int_equal(groups, 33);
}

/* ---- hand.txt, whole.txt ----------------------------------------------------------------------------------------- */

enum { WORDS = 1024 };

typedef struct written_case {
  attn_format format;
  trial_place place;
  attn_dtype source;
  uint32_t static_scale, scale;
  int has_static, has_scale, latent, line;
  uint32_t source_bits[WORDS], stored[WORDS], decoded[WORDS];
  int count[3];
} written_case;

/* Hex words, N*WORD repeated. */
static int read_words(char *text, uint32_t *words) {
  int count = 0;
  for (char *token = strtok(text, " \n"); token != NULL; token = strtok(NULL, " \n")) {
    const char *star = strchr(token, '*');
    const long repeat = star == NULL ? 1 : strtol(token, NULL, 10);
    for (long i = 0; i < repeat && count < WORDS; i++) {
      words[count++] = (uint32_t)strtoul(star == NULL ? token : star + 1, NULL, 16);
    }
  }
  return count;
}

/* The next case of a file; 0 at its end. */
static int next_case(FILE *file, written_case *c, int *line_number) {
  static char line[16384];
  while (fgets(line, sizeof line, file) != NULL) {
    char format[32], place[16], source[16], scale[16];
    ++*line_number;
    if (sscanf(line, "case %31s %15s %15s %15s", format, place, source, scale) == 4 ||
        sscanf(line, "latent %31s %15s %15s %15s", format, place, source, scale) == 4) {
      memset(c, 0, sizeof *c);
      c->latent = line[0] == 'l';
      c->line = *line_number;
      c->format = format_of(format);
      c->place = place_of(place);
      c->source = attn_dtype_from_name(source);
      c->has_static = strcmp(scale, "-") != 0;
      c->static_scale = (uint32_t)strtoul(scale, NULL, 16);
    } else if (strncmp(line, "source ", 7) == 0) {
      c->count[0] = read_words(line + 7, c->source_bits);
    } else if (strncmp(line, "stored ", 7) == 0) {
      c->count[1] = read_words(line + 7, c->stored);
    } else if (strncmp(line, "scale ", 6) == 0) {
      c->has_scale = line[6] != '-';
      c->scale = (uint32_t)strtoul(line + 6, NULL, 16);
    } else if (strncmp(line, "decoded ", 8) == 0) {
      c->count[2] = read_words(line + 8, c->decoded);
      return 1;
    } else {
      CHECK(line[0] == '#' || line[0] == '\n', "line %d: '%s'", *line_number, line);
    }
  }
  return 0;
}

static void judge_case(const trial *t, int which, const written_case *c) {
  const unsigned char *row = trial_row(t, which, 0, 0);
  uint32_t bits[512];
  CHECK(trial_row_bytes(&t->side[which]) == (size_t)c->count[1], "line %d: the row has %zu bytes", c->line,
        trial_row_bytes(&t->side[which]));
  for (int i = 0; i < c->count[1]; i++) {
    CHECK(row[i] == c->stored[i], "line %d, %s, %s: byte %d is %02x, not %02x", c->line, t->backend,
          which == 0 ? "K" : "V", i, row[i], c->stored[i]);
  }
  CHECK(!c->has_scale || *trial_scale(t, which, 0, 0) == c->scale, "line %d, %s: the scale is %08x", c->line,
        t->backend, *trial_scale(t, which, 0, 0));
  CHECK(trial_rest_is_poison(t, which), "line %d: a byte beside the row changed", c->line);
  CHECK(row_values(t, which, 0, 0, bits), "line %d, %s: gathered wrong", c->line, t->backend);
  for (int i = 0; i < c->count[2]; i++) {
    CHECK(bits[i] == c->decoded[i], "line %d, %s: value %d is %08x, not %08x", c->line, t->backend, i, bits[i],
          c->decoded[i]);
  }
}

static void try_case(const char *backend, attn_layout layout, const written_case *c) {
  trial t;
  trial_open(&t, backend, layout, c->source, 1, 1);
  for (int which = 0; which < 2; which++) {
    trial_side_open(&t, which, c->format, c->place, c->count[0], which, which == 1, &c->static_scale);
    trial_set_source(&t, which, 0, 0, c->source_bits);
  }
  EXPECT_OK(trial_write(&t));
  EXPECT_OK(trial_gather(&t));
  judge_case(&t, 0, c);
  judge_case(&t, 1, c);
  trial_close(&t);
}

/* The exact decoder of this program gives the written values too. */
static void judge_decoder(const written_case *c) {
  unsigned char row[WORDS];
  double values[512];
  uint32_t bits = c->scale;
  for (int i = 0; i < c->count[1]; i++) {
    row[i] = (unsigned char)c->stored[i];
  }
  if (c->place == PLACE_INLINE) {
    memcpy(&bits, row + c->count[1] - 4, 4);
  }
  trial_exact_int4(row, bits, c->count[2], values);
  for (int i = 0; i < c->count[2]; i++) {
    CHECK(float_bits((float)values[i]) == c->decoded[i], "line %d: value %d is %a by the test's own decoder", c->line,
          i, values[i]);
  }
}

static void try_cases(const char *name, int fewest) {
  static written_case c;
  FILE *file = open_file(name);
  int line = 0, total = 0, tried = 0, latent = 0;
  while (next_case(file, &c, &line)) {
    total++;
    latent += c.latent;
    if (!c.latent && c.format == ATTN_FORMAT_INT4_PER_TOKEN_HEAD) {
      judge_decoder(&c);
    }
    for (int i = 0; i < 2 && !c.latent && is_built(c.format); i++) {
      try_case(backends[i], ATTN_LAYOUT_NHD, &c);
      try_case(backends[i], ATTN_LAYOUT_HND, &c);
      tried += i == 0;
    }
  }
  fclose(file);
  print_message("%s: %d cases, %d of built formats, %d of latent rows (not for this program)\n", name, total, tried,
                latent);
  assert_true(total >= fewest);
}

static void hand_rows(void **state) {
  (void)state;
  try_cases("hand.txt", 36);
}

static void whole_rows(void **state) {
  (void)state;
  try_cases("whole.txt", 32);
}

/* ---- fp8.txt ----------------------------------------------------------------------------------------------------- */

enum { FP8_VALUES = 1280 };

typedef struct fp8_list {
  uint32_t code_bits[2][256];
  uint32_t bits[2][FP8_VALUES];
  unsigned char codes[2][FP8_VALUES];
  int count[2];
} fp8_list;

static const attn_format fp8_formats[2] = {ATTN_FORMAT_FP8_E4M3, ATTN_FORMAT_FP8_E5M2};

static void add_fp8(fp8_list *list, int which, uint32_t bits, unsigned code) {
  assert_true(list->count[which] < FP8_VALUES);
  list->bits[which][list->count[which]] = bits;
  list->codes[which][list->count[which]++] = (unsigned char)code;
}

static void read_fp8(fp8_list *list) {
  FILE *file = open_file("fp8.txt");
  char line[128], name[32];
  unsigned code, bits, other;
  int codes = 0;
  memset(list, 0, sizeof *list);
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "code %x %x %x", &code, &bits, &other) == 3) {
      list->code_bits[0][code] = bits;
      list->code_bits[1][code] = other;
      codes++;
    } else if (line[0] != '#') {
      CHECK(sscanf(line, "%31s %x %x", name, &bits, &code) == 3, "fp8.txt: %s", line);
      const int which = format_of(name) == ATTN_FORMAT_FP8_E5M2;
      add_fp8(list, which, bits, code);
      add_fp8(list, which, bits | 0x80000000u, code | 0x80);
    }
  }
  fclose(file);
  assert_int_equal(codes, 256);
  for (int which = 0; which < 2; which++) {
    static const uint32_t nans[] = {0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF812345, 0x7FFFFFFF, 0xFFFFFFFF};
    assert_true(list->count[which] >= 2 * (3 * 122 + 123));
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
      add_fp8(list, which, nans[i], 0x7F);
    }
  }
}

/* The bits of a float32 value in a 16-bit type, where that holds it as a normal number; 0: it does not. */
static int narrow(attn_dtype type, uint32_t bits, uint32_t *narrowed) {
  const uint32_t exponent = bits >> 23 & 255;
  if (type == ATTN_DTYPE_BFLOAT16) {
    *narrowed = bits >> 16;
    return (bits & 0xFFFF) == 0;
  }
  *narrowed = (bits >> 16 & 0x8000) | (exponent - 112) << 10 | (bits >> 13 & 1023);
  return (bits & 0x1FFF) == 0 && exponent > 112 && exponent < 143;
}

/* Every value that the source type holds as one row of a static format, or behind 448 as a row of a per-token one,
   whose scale is then 1. */
static int try_fp8(const char *backend, attn_format format, attn_dtype source, const fp8_list *list, int which) {
  static uint32_t row[FP8_VALUES + 1];
  static unsigned char wanted[FP8_VALUES + 1];
  const int per_token = format == ATTN_FORMAT_FP8_PER_TOKEN_HEAD;
  int count = 0;
  trial t;
  if (per_token) {
    row[0] = source == ATTN_DTYPE_FLOAT32 ? 0x43E00000 : source == ATTN_DTYPE_FLOAT16 ? 0x5F00 : 0x43E0;
    wanted[count++] = 0x7E;
  }
  for (int i = 0; i < list->count[which]; i++) {
    row[count] = list->bits[which][i];
    if (per_token && (list->bits[which][i] & 0x7FFFFFFF) > 0x43E00000) continue;
    if (source != ATTN_DTYPE_FLOAT32 && !narrow(source, list->bits[which][i], &row[count])) continue;
    wanted[count++] = list->codes[which][i];
  }
  trial_open(&t, backend, ATTN_LAYOUT_NHD, source, 1, 1);
  for (int side = 0; side < 2; side++) {
    trial_side_open(&t, side, format, per_token ? PLACE_INLINE : PLACE_UNSET, count, 0, side, NULL);
    trial_set_source(&t, side, 0, 0, row);
  }
  EXPECT_OK(trial_write(&t));
  for (int side = 0; side < 2; side++) {
    const unsigned char *stored = trial_row(&t, side, 0, 0);
    for (int i = 0; i < count; i++) {
      CHECK(stored[i] == wanted[i], "%s, %s from %s: %08x gives %02x, not %02x", backend, attn_format_name(format),
            attn_dtype_name(source), row[i], stored[i], wanted[i]);
    }
    CHECK(trial_scale_bits(&t, side, 0, 0) == 0x3F800000, "the scale is not 1");
  }
  trial_close(&t);
  return count;
}

static void fp8_values_to_codes(void **state) {
  static const attn_dtype sources[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16};
  static fp8_list list;
  int values = 0;
  (void)state;
  read_fp8(&list);
  for (int i = 0; i < 6; i++) {
    for (int which = 0; which < 2; which++) {
      values +=
          is_built(fp8_formats[which]) ? try_fp8(backends[i % 2], fp8_formats[which], sources[i / 2], &list, which) : 0;
    }
    values += is_built(ATTN_FORMAT_FP8_PER_TOKEN_HEAD)
                  ? try_fp8(backends[i % 2], ATTN_FORMAT_FP8_PER_TOKEN_HEAD, sources[i / 2], &list, 0)
                  : 0;
  }
  print_message("fp8.txt: %d + %d values, %d written\n", list.count[0], list.count[1], values);
}

/* A pool that holds all 256 codes, read with scale 1 and 0.1. */
static void fp8_codes_to_values(void **state) {
  static fp8_list list;
  static const trial_place places[] = {PLACE_UNSET, PLACE_ONE};
  (void)state;
  read_fp8(&list);
  for (int i = 0; i < 8; i++) {
    const int which = i / 4;
    trial t;
    if (!is_built(fp8_formats[which])) continue;
    trial_open(&t, backends[i % 2], ATTN_LAYOUT_NHD, ATTN_DTYPE_FLOAT32, 1, 1);
    for (int side = 0; side < 2; side++) {
      trial_side_open(&t, side, fp8_formats[which], places[i / 2 % 2], 256, 0, side, statics_one);
      for (int code = 0; code < 256; code++) {
        trial_row(&t, side, 0, 0)[code] = (unsigned char)code;
      }
    }
    EXPECT_OK(trial_gather(&t));
    for (int code = 0; code < 512; code++) {
      float value;
      memcpy(&value, &list.code_bits[which][code % 256], 4);
      value *= i / 2 % 2 != 0 ? 0.1f : 1.0f;
      CHECK(float_bits(trial_values(&t, code / 256, 0, 0)[code % 256]) == float_bits(value),
            "%s, %s: code %02x is %a, not %a", backends[i % 2], attn_format_name(fp8_formats[which]), code % 256,
            (double)trial_values(&t, code / 256, 0, 0)[code % 256], (double)value);
    }
    trial_close(&t);
  }
}

/* ---- The sign vector --------------------------------------------------------------------------------------------- */

/* Element 0 of the rotated unit row i is s_i: its nibble is at the upper or at the lower end. */
static void sign_vector(void **state) {
  static const char known[] = "6b7f5438a6443d6c808035b16573590d"; /* bit i of 128: 1 is +1 */
  static const int counts[4][2] = {{64, 26}, {128, 59}, {256, 110}, {512, 231}};
  (void)state;
  for (int i = 0; i < 8; i++) {
    const int size = counts[i / 2][0];
    int positive = 0, own = 0;
    trial t;
    for (int j = 0; j < size; j++) {
      own += trial_sign(j) > 0;
    }
    assert_int_equal(own, counts[i / 2][1]);
    if (!is_built(ATTN_FORMAT_INT4_PER_TOKEN_HEAD)) continue;
    trial_open(&t, backends[i % 2], ATTN_LAYOUT_NHD, ATTN_DTYPE_BFLOAT16, size, 1);
    for (int side = 0; side < 2; side++) {
      trial_side_open(&t, side, ATTN_FORMAT_INT4_PER_TOKEN_HEAD, PLACE_INLINE, size, 0, 0, NULL);
      memset(t.side[side].source, 0, (size_t)size * (size_t)size * 2);
      for (int j = 0; j < size; j++) {
        t.side[side].source[2 * (j * size + j) + 1] = 0x40; /* 2 */
      }
    }
    EXPECT_OK(trial_write(&t));
    for (int j = 0; j < size; j++) {
      const int plus = (trial_row(&t, 0, j, 0)[0] & 15) >= 8;
      positive += plus;
      CHECK(plus == ((trial_row(&t, 1, j, 0)[0] & 15) >= 8), "K and V have other signs at %d", j);
      if (j < 128) {
        const char digit[2] = {known[31 - j / 4], '\0'};
        CHECK(plus == (int)(strtoul(digit, NULL, 16) >> j % 4 & 1), "sign %d of %d", j, size);
      }
    }
    CHECK(positive == counts[i / 2][1], "%d of %d signs are +1, not %d", positive, size, counts[i / 2][1]);
    trial_close(&t);
  }
}

/* ---- What is not built ------------------------------------------------------------------------------------------- */

static void unbuilt_formats_are_refused(void **state) {
  static const attn_format formats[] = {ATTN_FORMAT_FLOAT32,
                                        ATTN_FORMAT_FLOAT16,
                                        ATTN_FORMAT_BFLOAT16,
                                        ATTN_FORMAT_FP8_E4M3,
                                        ATTN_FORMAT_FP8_E5M2,
                                        ATTN_FORMAT_INT8_PER_TOKEN_HEAD,
                                        ATTN_FORMAT_FP8_PER_TOKEN_HEAD,
                                        ATTN_FORMAT_INT4_PER_TOKEN_HEAD};
  (void)state;
  for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
    trial t;
    if (is_built(formats[i])) continue;
    print_message("not built: %s\n", attn_format_name(formats[i]));
    trial_open(&t, NULL, ATTN_LAYOUT_NHD, ATTN_DTYPE_FLOAT32, 1, 1);
    for (int side = 0; side < 2; side++) {
      trial_side_open(&t, side, formats[i], i < 5 ? PLACE_UNSET : PLACE_INLINE, 8, 0, 1, NULL);
      memset(t.side[side].source, 0, 32);
    }
    EXPECT_STATUS(trial_write(&t), ATTN_E_UNSUPPORTED, attn_format_name(formats[i]));
    EXPECT_STATUS(trial_gather(&t), ATTN_E_UNSUPPORTED, attn_format_name(formats[i]));
    trial_close(&t);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unbuilt_formats_are_refused),
      cmocka_unit_test(hand_rows),
      cmocka_unit_test(whole_rows),
      cmocka_unit_test(fp8_values_to_codes),
      cmocka_unit_test(fp8_codes_to_values),
      cmocka_unit_test(sign_vector),
      cmocka_unit_test(rows_are_the_scripts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
