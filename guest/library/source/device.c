/*
 * Access to the devices. A device is open only during a call, so that there is nothing that threads share, that fork passes
 * on, or that a program closes which closes all descriptors that it doesn't know. Nothing here allocates memory or takes a
 * lock, so that signal handlers may call it. The C library isn't used, because its open(2) is a cancellation point.
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

/* Like system_call, but repeats a call that SIGSTOP has interrupted, which can't be blocked. */
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

	/* A signal cancels a call in progress. A program with a fast timer would never complete one. */
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
