/*
 * Busy for a part of each period, in user mode, and halted for the rest: does
 * the clock count both alike, at any ratio and at any period?
 */
#include "workloads.h"

void duty(void)
{
    struct thread *thread = &threads[0][this_vcpu()->index];
    uint64_t period = kvmprof_truth.tsc_khz * options.period / 1000 + 1;
    uint64_t busy = period * options.duty / 100;

    switch_to(thread);
    run_slice(thread, 0); /* up to its first yield */
    for (uint64_t start = rdtsc();; start += period) {
        uint64_t now = rdtsc();
        if (now - start > period)
            start = now; /* too far behind to catch up */
        if (now < start + busy) {
            switch_to(thread);
            run_slice(thread, start + busy - now);
            now = rdtsc();
        }
        if (now < start + period && options.duty < 100)
            idle(start + period - now);
        this_counter()->rounds++;
    }
}
