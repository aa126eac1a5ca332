/* A counter for each vCPU, for workloads that count; user mode may write it. src/counters.rs reads it. */
#ifndef COUNTERS_H
#define COUNTERS_H

#include "kernel.h"

struct counter {
    uint64_t rounds;
    uint64_t errors;
    uint64_t gaps;       /* times that a program without system calls was kept from running */
    uint64_t gap_cycles; /* for so many TSC cycles in all */
    struct {
        uint64_t port_reads;
        uint64_t port_writes;
        uint64_t mmio_reads;
        uint64_t mmio_writes;
    } exits; /* that were made on purpose */
};

extern struct counter kvmprof_counters[VCPUS];

static inline struct counter *this_counter(void)
{
    return &kvmprof_counters[this_vcpu()->index];
}

#endif
