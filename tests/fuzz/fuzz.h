/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz.h: what the fuzz targets share. Each target is a file fuzz_NAME.c with the one function that libFuzzer calls;
 * fuzz_replay.c calls it without a fuzzer. A target looks for more than crashes: what must hold after a call is a
 * FUZZ_CHECK, and one that does not hold ends the process, which is what both drivers count as a finding.
 */
#ifndef ATTN_FUZZ_H
#define ATTN_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "attn/attn.h"

#if defined(__GNUC__)
#define FUZZ_PRINTF __attribute__((format(printf, 3, 4), noreturn))
#else
#define FUZZ_PRINTF
#endif

/* One input. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Say what does not hold, and abort. */
void fuzz_fail(const char *file, int line, const char *format, ...) FUZZ_PRINTF;

#define FUZZ_CHECK(condition, ...)                                                                                     \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fuzz_fail(__FILE__, __LINE__, __VA_ARGS__);                                                                      \
    }                                                                                                                  \
  } while (0)

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

/* Text of one line in room[bytes]: terminated, not empty, without a control byte. */
void fuzz_check_line(const char *text, size_t bytes);

/* A message of the library before a call, and what must be in it afterwards: the code and a line after a failure of a
   kind that a caller can act on (never a fault of the library), not a byte of it changed after a success. */
void fuzz_message_reset(attn_message *message);
void fuzz_message_check(attn_status status, const attn_message *message);

/* ---- Input as a stream of choices -------------------------------------------------------------------------------- */

/* What is left of an input; after its end everything is 0. */
typedef struct fuzz_bytes {
  const uint8_t *at;
  size_t left;
} fuzz_bytes;

uint8_t fuzz_u8(fuzz_bytes *bytes);
/* 0 to count - 1; count is at most 256. */
int32_t fuzz_below(fuzz_bytes *bytes, int32_t count);
/* Small ones, edges of types, and any. */
int32_t fuzz_i32(fuzz_bytes *bytes);
int64_t fuzz_i64(fuzz_bytes *bytes);
float fuzz_float(fuzz_bytes *bytes);

/* ---- Memory and files -------------------------------------------------------------------------------------------- */

/* An allocation of exactly `bytes`, so that a sanitizer sees any step beyond it. Ends the process without memory. */
void *fuzz_alloc(size_t bytes);
void *fuzz_copy(const void *data, size_t bytes);

/* A path of that name in a folder of this process, which is removed when the process ends. Static storage, for a few
   names only. */
const char *fuzz_path(const char *name);
void fuzz_write(const char *path, const void *data, size_t bytes);
/* The file's bytes (free() them), or NULL when there is none. */
unsigned char *fuzz_read(const char *path, size_t *bytes);

/* The same number for the same bytes. */
uint32_t fuzz_hash(const uint8_t *data, size_t size);

#endif
