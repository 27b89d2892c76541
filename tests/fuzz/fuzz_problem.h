/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_problem.h: between fuzz_problem.c, which draws a problem and looks at what is said about it, and
 * fuzz_problem_run.c, which runs it.
 */
#ifndef ATTN_FUZZ_PROBLEM_H
#define ATTN_FUZZ_PROBLEM_H

#include "fuzz.h"

/* Contexts of one thread, and of three that the caller lends. */
enum { FUZZ_CONTEXTS = 2 };

/* Schedule and run a problem that REFERENCE and the selector accept, with a small batch drawn from the input. Problems
 * and limits that would take long or much memory are left out.
 */
void fuzz_run_problem(attn_context *const contexts[FUZZ_CONTEXTS], const attn_problem *problem,
                      const attn_plan_limits *limits, const attn_plan_options *options, fuzz_bytes *in);

#endif
