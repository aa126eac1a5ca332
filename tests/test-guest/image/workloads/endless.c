/* Workloads that do one thing for ever, and count it where that is possible. */
#include "workloads.h"

static USER_CODE void count(uint64_t counter)
{
    for (;;)
        __asm__ volatile("incq (%0)" : : "r"(counter) : "memory");
}

/* Away for longer than this, in TSC cycles: no loop takes so long, but any exit does. */
#define GAP_MIN 1500
/* Away for longer than this: the host ran something else meanwhile. */
#define GAP_MAX 1000000

static USER_CODE void watch_time(uint64_t address)
{
    volatile struct counter *counter = (volatile struct counter *)address;
    uint64_t last = rdtsc();

    for (;;) {
        uint64_t now = rdtsc(), gap = now - last;

        last = now;
        counter->rounds++;
        if (gap > GAP_MIN && gap < GAP_MAX) {
            counter->gaps++;
            counter->gap_cycles += gap;
        }
    }
}

static USER_CODE void write_port(uint64_t counter)
{
    for (;;) {
        out8(UNCLAIMED_PORT, 0);
        __asm__ volatile("incq (%0)" : : "r"(counter) : "memory");
    }
}

/* Has a process run a program that never makes a system call. */
static void run_for_ever(void (*program)(uint64_t))
{
    struct thread *thread = &threads[0][this_vcpu()->index];

    set_program(thread, program);
    switch_to(thread);
    run_slice(thread, (uint64_t)this_counter());
}

/* User mode without a single exit: no timer runs. */
void spin(void)
{
    run_for_ever(count);
}

/* User mode again, watching the TSC for the time that is taken from it. */
void gaps(void)
{
    run_for_ever(watch_time);
}

/* User mode and port I/O: an exit to the VMM for each round. */
void pio(void)
{
    _Static_assert(UNCLAIMED_PORT < BITMAP_PORTS, "layout.h");
    this_vcpu()->tss.forbidden_ports[UNCLAIMED_PORT / 8] &= (uint8_t)~(1 << UNCLAIMED_PORT % 8);
    run_for_ever(write_port);
}

__attribute__((noinline)) void write_port_in_kernel(volatile uint64_t *counter)
{
    for (;;) {
        out8(UNCLAIMED_PORT, 0);
        ++*counter;
    }
}

/* The same in the kernel, on behalf of a process. */
void kernel_pio(void)
{
    switch_to(&threads[1][this_vcpu()->index]);
    truth_enter(ROW_KERNEL);
    write_port_in_kernel(&this_counter()->rounds);
}

__attribute__((noinline)) void count_with_interrupts_off(volatile uint64_t *counter)
{
    interrupts_off();
    for (;;)
        ++*counter;
}

/* What no interrupt, and so no clock inside the guest, will ever see. */
void irqoff(void)
{
    switch_to(&threads[2][this_vcpu()->index]);
    truth_enter(ROW_INTERRUPTS_OFF);
    count_with_interrupts_off(&this_counter()->rounds);
}

/* Halted; once a second it counts, to show that it lives. */
void halt(void)
{
    for (;;) {
        idle(kvmprof_truth.tsc_khz * 1000);
        this_counter()->rounds++;
    }
}
