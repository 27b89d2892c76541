/* SPDX-License-Identifier: Apache-2.0 */
/* hostile.c: see hostile.h. */
#include "hostile.h"

#include <math.h>
#include <string.h>

int32_t hostile_draw(uint32_t *state, int32_t count) {
  return (int32_t)(random_bits(state) % (uint32_t)count);
}

int32_t hostile_int(uint32_t *state) {
  static const int32_t values[] = {0,         1,         2,       3,       7,
                                   16,        17,        64,      -1,      -2,
                                   INT32_MAX, INT32_MIN, 1 << 30, 1 << 24, INT32_MAX - 1,
                                   1000000,   255,       65536,   4096,    -4096,
                                   0x7FFFFF0, 0x1000000, 5,       4};
  return values[hostile_draw(state, 24)];
}

int64_t hostile_long(uint32_t *state) {
  static const int64_t values[] = {-1, INT64_MIN,     INT64_MAX,     INT64_MAX / 2,    INT64_MAX / 4 + 1,
                                   -4, INT64_MIN + 1, INT64_MAX - 1, INT64_C(1) << 62, INT64_MAX / 8 + 1};
  return values[hostile_draw(state, 10)];
}

float hostile_float(uint32_t *state) {
  static const float values[] = {NAN,    INFINITY, -INFINITY, 0.0f,  -0.0f, 3.4e38f, -3.4e38f,
                                 1e-45f, 1.0f,     -1.0f,     1e30f, 0.25f, 1e-30f,  88.8f};
  return values[hostile_draw(state, 14)];
}

/* A status that a caller can act on: success, or a refusal or shortage with one line. Never a fault of the library. */
void hostile_status(attn_status status, uint32_t seed) {
  if (status == ATTN_OK) {
    return;
  }
  CHECK(status != ATTN_E_INTERNAL && strcmp(attn_status_name(status), "ATTN_E_UNKNOWN") != 0, "seed %u: status %d",
        seed, (int)status);
  CHECK(why.code == status && memchr(why.text, 0, sizeof why.text) != NULL && why.text[0] != 0 &&
            strchr(why.text, '\n') == NULL,
        "seed %u: %s without a line", seed, attn_status_name(status));
}

/* A stride that is refused whatever the element: one that merely lies, within the address space, nobody can tell from a
   true one. */
static int64_t hostile_stride(uint32_t *state) {
  static const int64_t strides[] = {-1, INT64_MIN, INT64_MAX};
  return strides[hostile_draw(state, 3)];
}

/* One draw a statement: the order of draws is the same with every compiler. */
void hostile_tensor(tensor *t, uint32_t *state) {
  int32_t axis = hostile_draw(state, 4);
  switch (hostile_draw(state, 8)) {
  case 0:
    t->shape[axis] = hostile_long(state);
    break;
  case 1:
    t->strides[axis] = hostile_stride(state);
    break;
  case 2:
    t->t.ndim = hostile_int(state);
    break;
  case 3:
    t->t.dtype.code =
        (uint8_t)(64 + hostile_draw(state, 192)); /* no type: another known one would be a lie about the memory */
    break;
  case 4:
    t->t.dtype.bits = (uint8_t)(65 + hostile_draw(state, 191));
    break;
  case 5:
    t->t.dtype.lanes = (uint16_t)hostile_draw(state, 3);
    break;
  case 6:
    t->t.device.device_type = (DLDeviceType)hostile_int(state);
    break;
  default:
    t->t.data = NULL;
    break;
  }
}
