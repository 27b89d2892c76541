/* SPDX-License-Identifier: Apache-2.0 */
/* resolve.h: checks of the descriptive structs, and their defaults filled in. After these no field is at "default". */
#ifndef ATTN_CORE_RESOLVE_H
#define ATTN_CORE_RESOLVE_H

#include "attn/attn.h"
#include "core/error.h"
#include "core/format.h"

/* A struct's size field: exactly what this header has. Older, smaller structs will be accepted once there are any. */
#define ATTN_CHECK_STRUCT(pointer, name, type, message)                                                                \
  do {                                                                                                                 \
    if ((pointer) == NULL) {                                                                                           \
      return attn_fail(message, ATTN_E_NULL, "%s: NULL, expected an %s", name, #type);                                 \
    }                                                                                                                  \
    if ((pointer)->size != sizeof(type)) {                                                                             \
      return attn_fail(message, ATTN_E_STRUCT_SIZE, "%s.size: %lu, accepted: %lu (start from the initialiser of %s)",  \
                       name, (unsigned long)(pointer)->size, (unsigned long)sizeof(type), #type);                      \
    }                                                                                                                  \
  } while (0)

#define ATTN_CHECK_POINTER(pointer, name, message)                                                                     \
  do {                                                                                                                 \
    if ((pointer) == NULL) {                                                                                           \
      return attn_fail(message, ATTN_E_NULL, "%s: NULL, expected an object", name);                                    \
    }                                                                                                                  \
  } while (0)

/* Every field of a problem against its values and the others; *resolved gets it with defaults filled in (block_size may
   stay 0: the backend's preference). */
attn_status attn_problem_resolve(const attn_problem *problem, attn_problem *resolved, attn_message *message);

/* NULL limits (only in explain): one sequence of 4096 keys and tokens. */
attn_status attn_limits_resolve(const attn_plan_limits *limits, attn_plan_limits *resolved, attn_message *message);

/* NULL options: none. The backend's name stays as given. */
attn_status attn_options_resolve(const attn_plan_options *options, const attn_problem *problem,
                                 attn_plan_options *resolved, attn_message *message);

/* separate_scales against the formats: 0, or a value of attn_separate_scales that names only K and V with a scale per
   row, and at least one of them. */
attn_status attn_separate_scales_check(const char *field, int32_t separate_scales, attn_format k_format,
                                       attn_format v_format, attn_message *message);

/* A problem's latent fields, and of a latent problem the fields that follow from them, filled in. Formats apart. */
attn_status attn_latent_resolve(attn_problem *problem, attn_message *message);

/* The rows of a latent format: sizes and the type of their rotary elements; `prefix` goes before the fields' names. */
attn_status attn_latent_rows_check(const char *prefix, attn_format format, int32_t rank, int32_t rotary,
                                   attn_dtype rotary_dtype, attn_message *message);

/* A format against the rows that it is to store. */
attn_status attn_format_check(const char *field, attn_format format, attn_row_kind kind, attn_message *message);

/* Rows that are quantised as a whole have at most ATTN_ROW_MAX elements. */
attn_status attn_row_size_check(const char *field, int32_t size, attn_format format, attn_message *message);

#endif
