/*
 * The way to the devices. One is open during a call only: so there is nothing to be shared by threads, inherited by fork, or
 * closed by a program that closes all that it doesn't know. Nothing here takes memory or a lock, so that signal handlers may
 * call it. The C library isn't used for it: its open(2) is a cancellation point.
 */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "device.h"

/* Bytes of the kernel's set of signals. */
#define SIGNALS 8

static void set_signals(int how, const uint64_t *signals, uint64_t *before)
{
	system_call(SYS_rt_sigprocmask, how, (long)signals, (long)before, SIGNALS, 0, 0);
}

/* As system_call, but for SIGSTOP, which interrupts though all signals are blocked. */
static long whole_call(long number, long a, long b, long c)
{
	long result;

	do {
		result = system_call(number, a, b, c, 0, 0, 0);
	} while (result == -EINTR);
	return result;
}

long kvmprof_carry_out(const char *node, unsigned long command, void *data)
{
	const uint64_t all = UINT64_MAX;
	uint64_t before = 0;
	long device, result;

	/* A signal takes back a call that is under way. A program with a fast timer would never get one done. */
	set_signals(SIG_BLOCK, &all, &before);
	device = whole_call(SYS_openat, AT_FDCWD, (long)node, O_RDWR | O_CLOEXEC);
	result = device == -ENOENT ? -ENODEV : device;
	if (device >= 0) {
		result = whole_call(SYS_ioctl, device, (long)command, (long)data);
		system_call(SYS_close, device, 0, 0, 0, 0, 0);
	}
	set_signals(SIG_SETMASK, &before, NULL);
	return result;
}
