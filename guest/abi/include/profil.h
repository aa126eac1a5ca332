/*
 * profil.h: profil(2) of Solaris, for programs in C and C++ in a Linux guest of kvmprof's.
 *
 *     unsigned short counts[4096];
 *
 *     profil(counts, sizeof counts, (unsigned long)first_function, 0x4000);
 *     work();
 *     profil(counts, 0, 0, 0);
 *
 * 100 times a second on each CPU that runs a thread of the process in user mode, the count of the subdivision that the
 * thread's program counter lies in is incremented. The hypervisor does that: the process sees no signal and makes no
 * system call meanwhile. A count that would pass 32767 ends it, and so does a scale of 0 or 1, exec, a buffer that can't be
 * written, and a call of pcsample(). A forked process goes on in its own copy of the buffer.
 *
 * As on Solaris it can't fail: where there is no /dev/profil it does nothing, and errno stays as it is.
 *
 * The manual page has `unsigned int offset`, of which the addresses of a 64-bit program have no room. It is an unsigned
 * long here; a call that is right there is right here.
 *
 * <unistd.h> declares a function profil of another type, that of glibc (see profil(3)). This header includes it, and lets
 * the name stand for kvmprof_profil. A program that includes <unistd.h> only, as the manual page has it, may be linked
 * with -lkvmprof too: it gets the same function as `int profil(unsigned short *, size_t, size_t, unsigned)`, which
 * returns 0.
 *
 * It may be called in a signal handler. Link with -lkvmprof.
 */
#ifndef KVMPROF_PROFIL_H
#define KVMPROF_PROFIL_H

#ifdef KVMPROF_AIX_MON_H
#error "profil.h and AIX's mon.h define functions of the same name: a source file can use one of them"
#endif

#include <unistd.h>

#define profil kvmprof_profil

#ifdef __cplusplus
extern "C" {
#endif

void profil(unsigned short *buff, unsigned int bufsiz, unsigned long offset, unsigned int scale);

#ifdef __cplusplus
}
#endif

#endif /* KVMPROF_PROFIL_H */
