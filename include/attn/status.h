/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file status.h  Status codes and the one-line message of a failed call.   (stable)
 *
 * Every call that can fail returns an attn_status and takes, last, an optional `attn_message *`. A failing call leaves
 * its outputs untouched and, if a message was given, writes one line into it that names the field, the value found and
 * what is accepted. The library keeps no last-error state, allocates nothing on an error path and never prints, exits
 * or aborts.
 */
#ifndef ATTN_STATUS_H
#define ATTN_STATUS_H

#include <stddef.h>
#include <stdint.h>

/** What every _INIT initialiser sets: the struct's own size, and zeros. */
#if defined(__cplusplus)
template <typename Struct> inline Struct attn_init() {
  Struct s = Struct();
  s.size = static_cast<uint32_t>(sizeof(Struct));
  return s;
}
#define ATTN_INIT(type) attn_init<type>()
#else
#define ATTN_INIT(type)                                                                                                \
  { .size = sizeof(type) }
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The mark of what the library exports. Define ATTN_STATIC to compile its sources into a program of your own. */
#if defined(ATTN_STATIC)
#define ATTN_API
#elif defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

#if defined(__GNUC__)
#define ATTN_NODISCARD __attribute__((warn_unused_result))
#else
#define ATTN_NODISCARD
#endif

/**
 * The one list of status codes: X(name, value, meaning, remedy). Values are pinned and come in families: 1x arguments,
 * 2x tensors and lists, 3x what cannot be served, 4x devices, 5x resources, 9x our own faults. Families 1x to 3x and
 * ATTN_E_NO_DEVICE mean "the request is bad or refused" (the command line exits with 2); the others mean "a valid call
 * failed" (exit 1).
 */
#define ATTN_STATUS_LIST(X)                                                                                            \
  X(ATTN_OK, 0, "success", "nothing to do")                                                                            \
  X(ATTN_E_NULL, 10, "a required pointer is NULL", "pass the object that the message names")                           \
  X(ATTN_E_STRUCT_SIZE, 11, "a struct's size field is not one this library knows",                                     \
    "start from the struct's _INIT initialiser and link a library at least as new as the header")                      \
  X(ATTN_E_RANGE, 12, "a number is outside its accepted values", "correct the field that the message names")           \
  X(ATTN_E_STATE, 13, "a call came out of order", "make the call that the message names first")                        \
  X(ATTN_E_NAME, 14, "a name is not known", "choose one of the names in the message")                                  \
  X(ATTN_E_SHAPE, 20, "a tensor's rank or extent disagrees with the call",                                             \
    "give the tensor the shape that the message names")                                                                \
  X(ATTN_E_STRIDE, 21, "a tensor's strides are not accepted",                                                          \
    "negative strides are never accepted, and no two elements of an output may share an address")                      \
  X(ATTN_E_ALIGN, 22, "a pointer is not aligned to its element", "align the data to the element's size")               \
  X(ATTN_E_OVERLAP, 23, "an output overlaps another tensor", "give each output memory of its own")                     \
  X(ATTN_E_DTYPE, 24, "an element type is not accepted here", "convert to one of the types in the message")            \
  X(ATTN_E_INDEX, 25, "an entry of a list is out of bounds", "correct the entry that the message names")               \
  X(ATTN_E_CAPACITY, 26, "a batch exceeds the plan's maxima", "split the batch or make a plan with larger limits")     \
  X(ATTN_E_OVERFLOW, 27, "a size does not fit 64 bits", "ask for smaller sizes")                                       \
  X(ATTN_E_UNSUPPORTED, 30, "nothing here serves this", "the message names the condition that failed")                 \
  X(ATTN_E_BACKEND, 31, "the backend asked for cannot serve this problem",                                             \
    "change the condition in the message, or let the selector choose")                                                 \
  X(ATTN_E_TENSOR_DEVICE, 32, "a tensor lies on a device that is not the plan's", "copy it to the plan's device")      \
  X(ATTN_E_NO_DEVICE, 40, "the device kind is not built in, or the device was not found",                              \
    "choose a device that attn_device_count reports")                                                                  \
  X(ATTN_E_DEVICE, 41, "the device or its driver failed", "see the driver's own code in the message")                  \
  X(ATTN_E_WORKSPACE, 50, "the workspace is too small", "give the number of bytes in the message")                     \
  X(ATTN_E_NOMEM, 51, "memory could not be allocated", "free memory or ask for smaller limits")                        \
  X(ATTN_E_FULL, 52, "the block pool has no free block", "free sequences, preempt one, or make a larger pool")         \
  X(ATTN_E_IO, 53, "reading or writing a file failed", "see the system's reason in the message")                       \
  X(ATTN_E_INTERNAL, 90, "a fault of this library", "report it with the message")

typedef enum attn_status {
#define ATTN_STATUS_ENUM(name, value, meaning, remedy) name = value,
  ATTN_STATUS_LIST(ATTN_STATUS_ENUM)
#undef ATTN_STATUS_ENUM
} attn_status;

/** Room for a message, the closing NUL included. */
#define ATTN_MESSAGE_BYTES 384

/** Why a call failed: one line, no newline, always NUL-terminated. Owned by the caller; untouched by success. */
typedef struct attn_message {
  attn_status code;
  char text[ATTN_MESSAGE_BYTES];
} attn_message;

/** The code's own name ("ATTN_E_SHAPE"); "ATTN_E_UNKNOWN" for a value outside the list. Never NULL; static storage. */
ATTN_API const char *attn_status_name(attn_status status);

/** What the code means, in a few words. Never NULL; static storage. */
ATTN_API const char *attn_status_meaning(attn_status status);

/** What to do about it, in a few words. Never NULL; static storage. */
ATTN_API const char *attn_status_remedy(attn_status status);

#ifdef __cplusplus
}
#endif
#endif
