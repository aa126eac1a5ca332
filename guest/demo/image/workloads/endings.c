/* Workloads that end, one way or another. The first vCPU does it, the others halt. */
#include "workloads.h"

#define RESET_PORT 0x602
#define RESET_VALUE 1

/* With an IDT that has no entry, any exception leads to another two, and so to shutdown. */
void triple_fault(void)
{
    static const struct pseudo_descriptor nothing = { 0, 0 };

    __asm__ volatile("lidt %0; ud2" : : "m"(nothing));
}

void end_by_power_off(void)
{
    if (this_vcpu()->index == 0)
        power_off();
}

void end_by_reboot(void)
{
    if (this_vcpu()->index == 0)
        out8(RESET_PORT, RESET_VALUE);
}

void end_by_triple_fault(void)
{
    if (this_vcpu()->index == 0)
        triple_fault();
}

/* An instruction that a KVM which interprets kernel mode doesn't know. Where it works, the guest says so. */
void end_by_bad_instruction(void)
{
    static uint64_t memory[2] __attribute__((aligned(16)));

    if (this_vcpu()->index != 0)
        return;
    __asm__ volatile("cmpxchg16b %0" : "+m"(memory) : "a"(0), "d"(0), "b"(0), "c"(0) : "cc");
    print("instruction executed\r\n");
    power_off();
}
