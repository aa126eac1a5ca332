/* Workloads that end, one way or another. */
#include "workloads.h"

/* With an IDT that has no entry, any exception leads to another two, and so to shutdown. */
void triple_fault(void)
{
    static const struct pseudo_descriptor nothing = { 0, 0 };

    __asm__ volatile("lidt %0; ud2" : : "m"(nothing));
}
