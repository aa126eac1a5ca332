/* Text: comparisons, numbers, and messages on the console. */

#pragma once

#include <stdbool.h>
#include <stddef.h>

size_t length(const char *text);

/* Whether text begins with start. */
bool begins(const char *text, const char *start);

/* The decimal number at the start of text; 0 if there is none. */
unsigned number(const char *text);

/* Writes the parts, up to a null pointer, as one line that says who writes it. */
void say(const char *const *parts);
#define SAY(...) say((const char *const[]){ __VA_ARGS__, NULL })

/* The decimal digits of a positive number, until the next call. */
const char *digits(long value);
