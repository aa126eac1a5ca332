#ifndef TEXT_H
#define TEXT_H

#include <stdint.h>

/* Whether two texts that end with a NUL are the same. */
int equal(const char *a, const char *b);

/* Prints a line: the text, and a decimal number. */
void print_number(const char *text, uint64_t number);

#endif
