/*
 * Calls that are nested as deep as the command line says, 100 at most, for whoever follows them back. Each has its own return address, so
 * nothing of it can be left out.
 */
#include "workloads.h"

/* What a vCPU's stack of the kernel has room for. */
#define DEEPEST 100

/* Nobody sets it: without it the compiler would see that no call ever returns. */
static volatile int is_over;

static __attribute__((noinline, noclone)) uint64_t descend(uint64_t calls)
{
    while (calls == 0 && !is_over)
        this_counter()->rounds++;
    if (calls == 0)
        return 0;
    uint64_t below = descend(calls - 1);
    __asm__ volatile("" : "+r"(below));
    return below + 1;
}

void nested(void)
{
    descend(options.depth < DEEPEST ? options.depth : DEEPEST);
}
