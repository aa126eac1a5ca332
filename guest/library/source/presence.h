/* Keeping the pages present that the hypervisor stores to. */
#ifndef KVMPROF_PRESENCE_H
#define KVMPROF_PRESENCE_H

#include <stddef.h>
#include <stdint.h>

#include "call.h"
#include "device.h"

/* What a function has turned on stores to this memory. Threads may change it at the same time: a mixture of two buffers costs
 * page faults, nothing else. */
struct target {
	uint32_t function;
	uintptr_t start;
	size_t length;
};

/* That of Solaris' functions, which exclude each other, and that of AIX's. */
INTERNAL extern struct target kvmprof_solaris, kvmprof_aix;

/* Makes the target's pages present and the process's own, as a write to each would. Returns 0 if it can't write one. */
INTERNAL int kvmprof_make_present(const struct target *target);

/* Sets the target, and makes it present. */
INTERNAL void kvmprof_set_target(struct target *target, uint32_t function, uintptr_t start, size_t length);

#endif /* KVMPROF_PRESENCE_H */
