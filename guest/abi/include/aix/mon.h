/*
 * mon.h: profil of AIX, for programs in C and C++ in a Linux guest of kvmprof's. Compile with -I/usr/include/kvmprof/aix, and
 * link with -lkvmprof.
 *
 *     profil(counts, sizeof counts, (unsigned long)first_function, 0x7fff);     one buffer
 *     profil(ranges, -1, 0, 0);                                                 an array of struct prof
 *
 * 100 times a second on each CPU that runs a thread of the process in user mode, the count of its program counter is
 * incremented, up to 65535. The hypervisor does that: the process sees no signal and makes no system call meanwhile. A
 * scale of 0 or 1 in its low 16 bits turns the first form off, an array whose first p_high is 0 the second form. To turn on
 * what is on, to turn off what is off, or what the other form has turned on, has no effect. A forked process goes on in its
 * own copy of the counts; exec ends it.
 *
 * Returns 0, or -1 and errno:
 *
 *     EFAULT  the buffer, the array or a p_buff isn't memory of the process that it can write
 *     EINVAL  p_high isn't in ascending order, there are more than 256 ranges, or kvmprof's clock has no rate that 100
 *             divides
 *     ENODEV, EACCES, ENXIO, EIO, ENOSPC, EMFILE, ENFILE, ENOMEM, ESRCH, EPERM  as of pcsample (pcsample.h)
 *
 * <unistd.h> declares a function profil of another type, that of glibc. This header includes it, and lets the name stand
 * for kvmprof_aix_profil.
 */
#ifndef KVMPROF_AIX_MON_H
#define KVMPROF_AIX_MON_H

#ifdef KVMPROF_PROFIL_H
#error "profil.h and AIX's mon.h define functions of the same name: a source file can use one of them"
#endif

#include <sys/types.h>
#include <unistd.h>

typedef unsigned short HISTCOUNTER;

/* A range of the program, and its counts. The array ends with one whose p_high is 0. */
struct prof {
	char *p_low;          /* the first address */
	char *p_high;         /* the first address behind it */
	HISTCOUNTER *p_buff;  /* its counts */
	int p_bufsize;        /* bytes of its counts */
	unsigned int p_scale; /* as of the first form; -1: so that the range fills the counts */
};

#define profil kvmprof_aix_profil

#ifdef __cplusplus
extern "C" {
#endif

/* `buffer` is an unsigned short *, or with a `size` of -1 a struct prof *. */
int profil(void *buffer, unsigned int size, unsigned long offset, unsigned int scale);

#ifdef __cplusplus
}
#endif

#endif /* KVMPROF_AIX_MON_H */
