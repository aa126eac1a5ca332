/* Keeps the pages present to which the hypervisor stores. */
#ifndef KVMPROF_PRESENCE_H
#define KVMPROF_PRESENCE_H

#include <stddef.h>
#include <stdint.h>

#include "call.h"
#include "device.h"

/* The memory to which a function stores that is on. Threads may change it at the same time: a mixture of two buffers costs
 * only page faults. */
struct target {
	uint32_t function;
	uintptr_t start;
	size_t length;
};

/* The target of Solaris' functions, which exclude each other, and that of AIX's. */
INTERNAL extern struct target kvmprof_solaris, kvmprof_aix;

/* Makes the target's pages present and private to the process, as a write to each would. Returns 0 if it can't write one. */
INTERNAL int kvmprof_make_present(const struct target *target);

/* Sets the target, and makes it present. */
INTERNAL void kvmprof_set_target(struct target *target, uint32_t function, uintptr_t start, size_t length);

#endif /* KVMPROF_PRESENCE_H */
