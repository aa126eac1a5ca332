/*
 * The protocol of /dev/pmc (guest/abi/PMC.md). tests/library.rs compares it with the definitions of the wire.
 */
#ifndef KVMPROF_PMC_CALL_H
#define KVMPROF_PMC_CALL_H

#include <stdint.h>

#define PMC_NODE "/dev/pmc"
#define PMC_CALL (('V' << 8) | 1)

/* The functions. */
enum {
	PMC_NUM_COUNTERS = 1,
	PMC_COUNTER_TYPE = 2,
	PMC_SAVE_CONTEXT = 3,
	PMC_RESTORE_CONTEXT = 4,
	PMC_ENABLE = 5,
	PMC_DISABLE = 6,
	PMC_IS_RUNNING = 7,
	PMC_IS_CONFIGURED = 8,
	PMC_CONFIGURE = 9,
	PMC_VALUE = 10,
	PMC_ACCUMULATE = 11,
	PMC_ALLOC_KERNEL = 12,
	PMC_FREE_KERNEL = 13,
	PMC_START_PROFILING = 14,
	PMC_STOP_PROFILING = 15,
	PMC_IS_ENABLED = 16,
};

/* In place of a pid: the caller, the kernel, and a value that pcsd refuses. */
#define PMC_PID_CALLER 0
#define PMC_PID_KERNEL (-1)
#define PMC_PID_NONE INT32_MIN

/* The data of PMC_CALL. pcsd replaces the caller's pid, and sets the time; the result has the value. */
struct pmc_call {
	uint32_t function;
	uint32_t flags;
	int32_t pid;
	int32_t counter;
	int32_t parent;
	uint32_t event;
	uint64_t reset_value;
	uint32_t configuration_flags;
	uint32_t zero;
	uint64_t time;
	uint64_t value;
};

#endif /* KVMPROF_PMC_CALL_H */
