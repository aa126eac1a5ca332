/*
 * The local APIC's timer, one-shot, through the memory window (xAPIC): this is
 * the mode that KVM resets it to, and neither a CPUID bit nor the TSC-deadline
 * mode is needed for it.
 */
#include "kernel.h"

#define WINDOW 0xfee00000ull
#define END_OF_INTERRUPT 0xb0
#define SPURIOUS 0xf0
#define TASK_PRIORITY 0x80
#define TIMER_VECTOR_ENTRY 0x320
#define INITIAL_COUNT 0x380
#define CURRENT_COUNT 0x390
#define DIVIDE 0x3e0

#define ENABLE 0x100
#define MASKED 0x10000
#define DIVIDE_BY_ONE 0xb

/* KVM's timer counts nanoseconds of guest time. */
#define TIMER_KHZ 1000000ull
/* Duration of the calibration: half a millisecond. */
#define CALIBRATION 500000u
/* Without a running timer, a TSC of 2 GHz is assumed after this many readings. */
#define CALIBRATION_LOOKS 1000000
#define ASSUMED_TSC_KHZ 2000000ull

/* Timer counts per TSC cycle, times 2^20. */
static uint64_t counts_per_cycle;

static volatile uint32_t *reg(uint32_t offset)
{
    return (volatile uint32_t *)(WINDOW + offset);
}

void local_apic_enable(void)
{
    *reg(SPURIOUS) = ENABLE | SPURIOUS_VECTOR;
    *reg(TASK_PRIORITY) = 0;
    *reg(DIVIDE) = DIVIDE_BY_ONE;
    *reg(TIMER_VECTOR_ENTRY) = TIMER_VECTOR;
}

/* The timer and the TSC at one moment. */
struct reading {
    uint32_t count;
    uint64_t tsc;
};

/* The best of a few tries: the host may deschedule this vCPU between two of the reads. */
static struct reading read_both(void)
{
    struct reading best = { 0, 0 };
    uint32_t best_distance = 0xffffffff;

    for (uint32_t try = 0; try < 4; try++) {
        uint32_t before = *reg(CURRENT_COUNT);
        uint64_t tsc = rdtsc();
        uint32_t distance = before - *reg(CURRENT_COUNT);
        if (distance < best_distance) {
            best_distance = distance;
            best.count = before - distance / 2;
            best.tsc = tsc;
        }
    }
    return best;
}

/* Measures the TSC's frequency by the timer. Interrupts must be off. */
void local_apic_calibrate(void)
{
    uint64_t tsc_khz = 0;

    *reg(TIMER_VECTOR_ENTRY) = TIMER_VECTOR | MASKED;
    *reg(INITIAL_COUNT) = 0xffffffff;
    struct reading first = read_both();
    for (uint32_t looks = 0; looks < CALIBRATION_LOOKS; looks++) {
        if (first.count - *reg(CURRENT_COUNT) < CALIBRATION)
            continue;
        struct reading last = read_both();
        tsc_khz = (last.tsc - first.tsc) * TIMER_KHZ / (first.count - last.count);
        break;
    }
    *reg(INITIAL_COUNT) = 0;
    *reg(TIMER_VECTOR_ENTRY) = TIMER_VECTOR;
    if (tsc_khz == 0)
        tsc_khz = ASSUMED_TSC_KHZ;
    kvmprof_truth.tsc_khz = tsc_khz;
    counts_per_cycle = (TIMER_KHZ << 20) / tsc_khz;
}

/* Requests one interrupt in `cycles` TSC cycles, instead of an earlier request. */
void timer_arm(uint64_t cycles)
{
    uint64_t count = cycles * counts_per_cycle >> 20;

    if (count == 0)
        count = 1;
    if (count > 0xffffffff)
        count = 0xffffffff;
    *reg(INITIAL_COUNT) = (uint32_t)count;
}

/* Called by timer_entry, with interrupts off and the nesting count raised. */
void timer_interrupt(void)
{
    struct vcpu *vcpu = this_vcpu();
    uint64_t interrupted = truth_entered(ROW_INTERRUPT);
    uint64_t length = vcpu->interrupt_length;

    vcpu->interrupt_length = 0;
    if (length != 0)
        service_interrupt(length);
    *reg(END_OF_INTERRUPT) = 0;
    truth_enter(interrupted);
}
