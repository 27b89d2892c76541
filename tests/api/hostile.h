/* SPDX-License-Identifier: Apache-2.0 */
/* hostile.h: values and tensors that no call should trip over, drawn from a state. */
#ifndef ATTN_TESTS_HOSTILE_H
#define ATTN_TESTS_HOSTILE_H

#include "harness.h"

/* 0 to count - 1. */
int32_t hostile_draw(uint32_t *state, int32_t count);

int32_t hostile_int(uint32_t *state);
int64_t hostile_long(uint32_t *state);
float hostile_float(uint32_t *state);

/* Spoil a tensor: an extent, stride, rank, type, device or its address, so that every build refuses it. */
void hostile_tensor(tensor *t, uint32_t *state);

/* A status that a caller can act on, with its line in `why`; never a fault of the library. */
void hostile_status(attn_status status, uint32_t seed);

#endif
