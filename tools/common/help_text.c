/* SPDX-License-Identifier: Apache-2.0 */
/* help_text.c: see help_text.h. */
#include "help_text.h"

#include <stdio.h>
#include <string.h>

enum { WIDTH = 100, LEFT = 22, MARGIN = 2, BETWEEN = 2 };

/* Print words from column `column` on; lines after the first are indented by `indent`. */
static void put_words(const char *text, int column, int indent) {
  int at_start = 1;
  while (*text != '\0') {
    int length = (int)strcspn(text, " \n");
    if (!at_start && column + 1 + length > WIDTH) {
      printf("\n%*s", indent, "");
      column = indent;
      at_start = 1;
    }
    printf("%s%.*s", at_start ? "" : " ", length, text);
    column += length + !at_start;
    at_start = 0;
    text += length;
    if (*text == '\n') {
      printf("\n%*s", text[1] != '\n' && text[1] != '\0' ? indent : 0, "");
      column = indent;
      at_start = 1;
    }
    text += *text != '\0';
  }
  putchar('\n');
}

void help_paragraph(const char *text) {
  put_words(text, 0, 0);
}

void help_row(const char *left, const char *text) {
  int indent = MARGIN + LEFT + BETWEEN;
  if (strlen(left) > LEFT) {
    printf("%*s%s\n%*s", MARGIN, "", left, indent, "");
  } else {
    printf("%*s%-*s", MARGIN, "", LEFT + BETWEEN, left);
  }
  put_words(text, indent, indent);
}
