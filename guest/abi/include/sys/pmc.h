/*
 * sys/pmc.h: pmc(9) of NetBSD, for programs in C and C++ in a Linux guest of kvmprof's.
 *
 *     struct pmc_counter_cfg cfg = { PMC_EVENT_EXITS, 0, 0 };
 *     uint64_t exits;
 *
 *     pmc_configure_counter(curlwp, PMC_EVENT_EXITS, &cfg);
 *     pmc_enable_counter(curlwp, PMC_EVENT_EXITS);
 *     work();
 *     pmc_get_counter_value(curlwp, PMC_EVENT_EXITS, 0, &exits);
 *
 * The hypervisor counts. What a function does, and its errors, <machine/pmc.h> has beside its prototype. Compile with
 * -I/usr/include/kvmprof, and link with -lkvmprof.
 */
#ifndef KVMPROF_SYS_PMC_H
#define KVMPROF_SYS_PMC_H

#include <machine/pmc.h>

/* How a counter is configured. Each counter counts one event: event_id is the counter's number. */
struct pmc_counter_cfg {
	pmc_evid_t event_id;   /* PMC_EVENT_* */
	pmc_ctr_t reset_value; /* pmc_start_profiling: the number of events to a sample; else unused */
	uint32_t flags;        /* unused */
};

/* Flag of pmc_get_counter_value: the counts of child processes that have ended, and of theirs. */
#define PMC_VALUE_FLAGS_CHILDREN 1

#endif /* KVMPROF_SYS_PMC_H */
