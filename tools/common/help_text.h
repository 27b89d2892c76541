/* SPDX-License-Identifier: Apache-2.0 */
/* help_text.h: how help pages lie on the screen. Texts are written as plain sentences; their lines are cut here. */
#ifndef ATTN_TOOL_HELP_TEXT_H
#define ATTN_TOOL_HELP_TEXT_H

/* Print the text from the left margin, cut between words into lines of at most 100 characters; a line's end in it stays
   one. */
void help_paragraph(const char *text);

/* Print a flag or command and what it is, cut likewise, in a column of its own. */
void help_row(const char *left, const char *text);

#endif
