#include <stdint.h>

#include "memory.h"

/* Eight bytes at a time if possible: in an interpreted kernel mode the number of instructions
 * counts. */
void *memcpy(void *restrict to, const void *restrict from, size_t bytes)
{
    uint8_t *target = to;
    const uint8_t *source = from;

    for (; bytes >= 8; bytes -= 8, target += 8, source += 8) {
        uint64_t word;
        __asm__ volatile("movq (%1), %0" : "=r"(word) : "r"(source) : "memory");
        __asm__ volatile("movq %0, (%1)" : : "r"(word), "r"(target) : "memory");
    }
    for (; bytes > 0; bytes--)
        *target++ = *source++;
    return to;
}

void *memset(void *memory, int value, size_t bytes)
{
    uint8_t *target = memory;
    uint64_t word = 0x0101010101010101 * (uint8_t)value;

    for (; bytes >= 8; bytes -= 8, target += 8)
        __asm__ volatile("movq %0, (%1)" : : "r"(word), "r"(target) : "memory");
    for (; bytes > 0; bytes--)
        *target++ = (uint8_t)value;
    return memory;
}
