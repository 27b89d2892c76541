/* SPDX-License-Identifier: Apache-2.0 */
/* The same program as C++17. */
#include "consumer.c"
