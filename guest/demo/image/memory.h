/* Functions that the compiler may also call by itself. */
#ifndef MEMORY_H
#define MEMORY_H

#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
void *memset(void *memory, int value, size_t bytes);

#endif
