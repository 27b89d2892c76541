/* SPDX-License-Identifier: Apache-2.0 */
/* check.h: the conformance engine behind `attn check`: every backend of this machine against the contract, on random
 * problems. It judges by an fp64 oracle of its own (check_oracle.c), so REFERENCE is examined like any other backend.
 * */
#ifndef ATTN_CHECK_H
#define ATTN_CHECK_H

/* The command: argv[0] is "check" (only used in messages). Returns 0 when all cases passed, 1 when one failed, 2 on a
   bad command line. */
int attn_check_main(int argc, char **argv);

/* Plant the fault of that name: 0 where there is none of it, or this is not the test-only build. */
int attn_check_plant(const char *name);

/* What it is for, in a line, and its help page on standard output. */
extern const char attn_check_purpose[];
void attn_check_help(void);

#endif
