/*
 * pcsample.h: pcsample(2) of Solaris, for programs in C and C++ in a Linux guest of kvmprof's.
 *
 *     uintptr_t samples[6000];
 *
 *     pcsample(samples, 6000);
 *     work();
 *     stored = pcsample(NULL, 0);
 *
 * Until the array is full, 100 times a second on each CPU that runs a thread of the process in user mode, the thread's
 * program counter is stored in the next element. The hypervisor stores it: the process sees no signal and makes no
 * system call meanwhile. A call with nsamples 0 ends that. A forked process goes on in its own copy of the array; exec
 * ends it. A call of profil() of Solaris ends it, too.
 *
 * Returns the number of samples that were stored since the call before, 0 at the first one, or -1 and errno:
 *
 *     EINVAL      nsamples is negative, or kvmprof's clock has no rate that 100 divides
 *     ENODEV      there is no /dev/profil: pcsd isn't running, or its kvmprof knows no profil
 *     EACCES      the host doesn't let this guest profile itself (kvmprof run --guest-access)
 *     ENXIO, EIO  pcsd has no connection to kvmprof
 *     ENOSPC      the host profiles 1024 processes already
 *     EMFILE, ENFILE, ENOMEM  as of open(2)
 *     ESRCH, EPERM  pcsd can't tell who calls: its pid namespace doesn't have the caller, or it may not look at other processes
 *
 * It may be called in a signal handler. Link with -lkvmprof.
 */
#ifndef KVMPROF_PCSAMPLE_H
#define KVMPROF_PCSAMPLE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

long pcsample(uintptr_t samples[], long nsamples);

#ifdef __cplusplus
}
#endif

#endif /* KVMPROF_PCSAMPLE_H */
