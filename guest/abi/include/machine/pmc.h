/*
 * machine/pmc.h: what <sys/pmc.h> has of this machine: the counters, and the functions, none of which is a macro.
 *
 * Functions that can fail return 0 or an error number; errno stays as it is. Those that only this implementation has:
 *
 *     ENODEV      there is no /dev/pmc: pcsd isn't running, or its kvmprof knows no pmc
 *     EACCES      the host doesn't let this guest count (kvmprof run --guest-access)
 *     ENXIO, EIO  pcsd has no connection to kvmprof
 *     EPERM       another process, or a function of the kernel, and the caller isn't the superuser
 *     ESRCH       there is no such process; or pcsd's pid namespace doesn't have the caller
 *     EFAULT      `cfg` or `pval` is NULL
 *     ENOMEM      1024 processes have counters already
 *     EMFILE, ENFILE, ENOMEM  as of open(2)
 *
 * They may be called in signal handlers and by several threads.
 */
#ifndef KVMPROF_MACHINE_PMC_H
#define KVMPROF_MACHINE_PMC_H

#include <stdint.h>
#include <sys/types.h>

/* The number of an event. */
typedef uint32_t pmc_evid_t;
/* The value of a counter. It doesn't overflow. */
typedef uint64_t pmc_ctr_t;

/* The counters, and the events, which have the same numbers. */
#define PMC_EVENT_CPU_TIME         0  /* processor time of the vCPUs' threads, in ns: the guest, and its exits */
#define PMC_EVENT_TICKS            1  /* ticks of the profiling clock */
#define PMC_EVENT_PORT_READS       2  /* exits to kvmprof by a read of a port */
#define PMC_EVENT_PORT_WRITES      3  /* exits to kvmprof by a write to a port */
#define PMC_EVENT_MMIO_READS       4  /* exits to kvmprof by a read of an address without memory */
#define PMC_EVENT_MMIO_WRITES      5  /* exits to kvmprof by a write to an address without memory */
#define PMC_EVENT_INTERRUPTED      6  /* exits to kvmprof that it has made itself */
#define PMC_EVENT_EXITS            7  /* exits to KVM */
#define PMC_EVENT_HALTS            8  /* exits to KVM by HLT */
#define PMC_EVENT_INTERRUPTS       9  /* interrupts that KVM has injected */
#define PMC_EVENT_TLB_FLUSHES      10 /* TLB flushes by KVM */
#define PMC_EVENT_EMULATED         11 /* instructions that KVM has emulated */
#define PMC_EVENT_PAGE_FAULTS      12 /* faults of guest memory that KVM has handled */
#define PMC_EVENT_CYCLES           13 /* processor cycles in the guest */
#define PMC_EVENT_INSTRUCTIONS     14 /* instructions in the guest */
#define PMC_EVENT_BRANCHES         15 /* branches in the guest */
#define PMC_EVENT_BRANCH_MISSES    16 /* branches in the guest that were mispredicted */
#define PMC_EVENT_CACHE_REFERENCES 17 /* cache accesses in the guest */
#define PMC_EVENT_CACHE_MISSES     18 /* cache misses in the guest */

/* Types of counters: who counts. */
#define PMC_TYPE_KVMPROF   1 /* the virtual machine monitor */
#define PMC_TYPE_KVM       2 /* the host's kernel */
#define PMC_TYPE_PROCESSOR 3 /* the host's processor */

/* Bits of the type of the whole, pmc_get_counter_type(-1): who has a counter on this host. */
#define PMC_HAS_KVMPROF   1
#define PMC_HAS_KVM       2
#define PMC_HAS_PROCESSOR 4

struct pmc_counter_cfg;

/* A process: what pmc_lwp() returns. In the place of the kernel stands NULL, for pmc_get_counter_value() only. */
struct lwp;

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The process with this id in the guest's initial pid namespace, or that of the thread with this id; 0 is the caller. All
 * of a process's threads count together. Nothing is allocated, and nothing is looked up: a process that isn't there is
 * ESRCH of the functions below. Processes other than the caller's own are for the superuser.
 */
struct lwp *pmc_lwp(pid_t pid);

/* The calling process. */
#define curlwp pmc_lwp(0)

/* The number of counters; 0 without /dev/pmc. Those of them that this host can't count are ENODEV when configured. */
int pmc_get_num_counters(void);

/* PMC_TYPE_* of the counter, or for -1 PMC_HAS_* of all; -1 if there is no such counter, or no /dev/pmc. */
int pmc_get_counter_type(int ctr);

/* The process's counters stand still, until pmc_restore_context(). The kernel's go on. */
void pmc_save_context(struct lwp *l);
void pmc_restore_context(struct lwp *l);

/* Starts the counter. ENXIO: not configured; EINPROGRESS: it runs; EBUSY: the kernel uses it; EINVAL: no such counter. */
int pmc_enable_counter(struct lwp *l, int ctr);

/* Stops the counter; its value stays. ENXIO: not configured; EINVAL: no such counter. */
int pmc_disable_counter(struct lwp *l, int ctr);

/* 1 if the counter runs in the process or is in use by the kernel; else, and where that isn't known, 0. */
int pmc_counter_isrunning(struct lwp *l, int ctr);

/* 1 if the counter is configured in the process or in use by the kernel; else, and where that isn't known, 0. */
int pmc_counter_isconfigured(struct lwp *l, int ctr);

/* The counter is 0, and stands still. ENODEV: event_id isn't the counter's number, or this host can't count it; EBUSY: the
 * kernel uses it; EINVAL: no such counter. */
int pmc_configure_counter(struct lwp *l, int ctr, struct pmc_counter_cfg *cfg);

/* Stores the counter's value; with PMC_VALUE_FLAGS_CHILDREN that of children that have ended. Of NULL: what the kernel's
 * counter has counted since it was allocated. An error leaves *pval as it is. ENXIO: not configured, or not in use by the
 * kernel; EINVAL: no such counter, or an unknown flag. */
int pmc_get_counter_value(struct lwp *l, int ctr, int flags, uint64_t *pval);

/* Adds what l_exiting has counted to the children's counts of l_parent, which happens by itself when a process ends. */
int pmc_accumulate(struct lwp *l_parent, struct lwp *l_exiting);

/* The kernel's use of a counter, for the whole guest: for the superuser. EBUSY: the kernel or a process uses it; ENODEV as
 * of pmc_configure_counter(); EINVAL: no such counter. */
int pmc_alloc_kernel_counter(int ctr, struct pmc_counter_cfg *cfg);

/* Processes may use the counter again. ENXIO: the kernel doesn't use it; EBUSY: it is used for profiling. */
int pmc_free_kernel_counter(int ctr);

/* As pmc_alloc_kernel_counter(), and each reset_value events on a vCPU make a tick in place of the clock's. EINPROGRESS: it
 * does so already; EBUSY: also if something else makes the ticks, the clock for example; ENODEV: also if no overflow of
 * this counter can make ticks; EINVAL: also for a reset_value out of range. */
int pmc_start_profiling(int ctr, struct pmc_counter_cfg *cfg);

/* Ends that, and frees the counter. ENXIO: it isn't used for profiling. */
int pmc_stop_profiling(int ctr);

/* 1 if the process has a running counter, or the kernel uses one; else, and where that isn't known, 0. */
int PMC_ENABLED(struct lwp *l);

#ifdef __cplusplus
}
#endif

#endif /* KVMPROF_MACHINE_PMC_H */
