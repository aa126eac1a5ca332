/* Workloads that end, one way or another. The first vCPU does it, the others halt. */
#include "workloads.h"

/* ACPI's hardware-reduced registers. */
#define SLEEP_CONTROL_PORT 0x600
#define SLEEP_POWER_OFF 0x34 /* SLP_TYP 5, SLP_EN */
#define RESET_PORT 0x602
#define RESET_VALUE 1

void power_off(void)
{
    out8(SLEEP_CONTROL_PORT, SLEEP_POWER_OFF);
    stop();
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
