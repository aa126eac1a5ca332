/*
 * The functions of the manual pages: profil and pcsample of Solaris, profil of AIX, and profil as glibc declares it.
 */

#include <errno.h>
#include <limits.h>
#include <stddef.h>

#include "call.h"
#include "device.h"
#include "kvmprof.h"
#include "pcsample.h"
#include "presence.h"

/* <unistd.h> declares profil with a type of its own, and profil.h and mon.h declare two other functions with that name. So
 * they are declared here, and the tests compare them with the headers. */
EXPORTED void kvmprof_profil(unsigned short *buff, unsigned int bufsiz, unsigned long offset, unsigned int scale);
EXPORTED int kvmprof_aix_profil(void *buffer, unsigned int size, unsigned long offset, unsigned int scale);
EXPORTED int profil(unsigned short *buffer, size_t size, size_t offset, unsigned int scale);
EXPORTED long pcsample(uintptr_t samples[], long nsamples);
EXPORTED int kvmprof_profil_every_tick(int on);

/* struct prof of AIX's mon.h. */
struct range {
	char *low;
	char *high;
	unsigned short *buffer;
	int size;
	unsigned int scale;
};

static int every_tick;

int kvmprof_profil_every_tick(int on)
{
	return __atomic_exchange_n(&every_tick, on != 0, __ATOMIC_RELAXED);
}

static struct call call_of(uint32_t function, const void *buffer, uint64_t size, uint64_t offset, uint32_t scale)
{
	struct call call = {
		.function = function,
		.flags = __atomic_load_n(&every_tick, __ATOMIC_RELAXED) ? EVERY_TICK : 0,
		.buffer = (uintptr_t)buffer,
		.size = size,
		.offset = offset,
		.scale = scale,
	};
	return call;
}

/* The function's result, or a negative errno. */
static long carry_out(struct call *call)
{
	return kvmprof_carry_out(PROFIL_NODE, PROFIL_CALL, call);
}

/* The return value of a function that reports errors as system calls do. */
static long outcome(long result)
{
	if (result >= 0)
		return result;
	errno = (int)-result;
	return -1;
}

static int is_off(unsigned int scale)
{
	return scale < 2;
}

/* profil of Solaris. */
static void solaris_profil(unsigned short *buffer, size_t size, size_t offset, unsigned int scale)
{
	struct call call = call_of(SOLARIS_PROFIL, buffer, size, offset, scale);

	if (carry_out(&call) >= 0)
		kvmprof_set_target(&kvmprof_solaris, SOLARIS_PROFIL, (uintptr_t)buffer, is_off(scale) ? 0 : size);
}

void kvmprof_profil(unsigned short *buff, unsigned int bufsiz, unsigned long offset, unsigned int scale)
{
	solaris_profil(buff, bufsiz, offset, scale);
}

int profil(unsigned short *buffer, size_t size, size_t offset, unsigned int scale)
{
	solaris_profil(buffer, size, offset, scale);
	return 0;
}

/* The name by which glibc's start of `cc -pg` programs calls profil; a static program can be linked with this one. */
extern int __profil(unsigned short *buffer, size_t size, size_t offset, unsigned int scale)
	__attribute__((alias("profil"), visibility("hidden")));

long pcsample(uintptr_t samples[], long nsamples)
{
	struct call call = call_of(PCSAMPLE, samples, (uint64_t)nsamples, 0, 0);
	size_t most = SIZE_MAX / sizeof *samples;
	long result;

	if (nsamples < 0)
		return outcome(-EINVAL);
	result = carry_out(&call);
	if (result >= 0) {
		size_t count = (size_t)nsamples < most ? (size_t)nsamples : most;

		kvmprof_set_target(&kvmprof_solaris, PCSAMPLE, (uintptr_t)samples, count * sizeof *samples);
	}
	return outcome(result);
}

/* The memory of the ranges' counts, which is one piece by the manual page. */
static void memory_of(const struct range *ranges, uintptr_t *start, size_t *length)
{
	uintptr_t first = UINTPTR_MAX, end = 0;

	for (; ranges->high; ranges++) {
		uintptr_t from = (uintptr_t)ranges->buffer;
		size_t size = ranges->size > 0 ? (size_t)ranges->size : 0;

		if (from < first)
			first = from;
		if (size <= UINTPTR_MAX - from && from + size > end)
			end = from + size;
	}
	*start = first;
	*length = end > first ? end - first : 0;
}

/* Follows a call that has turned profiling on or off. A target that is on stays, unless its buffer has gone, which ends it. */
static void aix_called(uint32_t function, int off, uintptr_t start, size_t length)
{
	struct target *aix = &kvmprof_aix;
	int is_on = __atomic_load_n(&aix->length, __ATOMIC_RELAXED) > 0;

	if (off) {
		if (__atomic_load_n(&aix->function, __ATOMIC_RELAXED) == function)
			kvmprof_set_target(aix, function, 0, 0);
	} else if (!is_on || !kvmprof_make_present(aix)) {
		kvmprof_set_target(aix, function, start, length);
	}
}

int kvmprof_aix_profil(void *buffer, unsigned int size, unsigned long offset, unsigned int scale)
{
	uint32_t function = size == UINT_MAX ? AIX_RANGES : AIX_PROFIL;
	struct call call = call_of(function, buffer, function == AIX_RANGES ? 0 : size, offset, scale);
	uintptr_t start = (uintptr_t)buffer;
	size_t length = size;
	int off = is_off(scale & 0xffff);
	long result;

	if (function == AIX_RANGES)
		call.offset = call.scale = 0;
	result = carry_out(&call);
	if (result < 0)
		return (int)outcome(result);
	/* Such a buffer turns nothing on. */
	if (size == 0 && !off)
		return 0;
	if (function == AIX_RANGES) {
		/* The agent has read the array, so it is mapped. */
		memory_of(buffer, &start, &length);
		off = ((const struct range *)buffer)->high == NULL;
	}
	aix_called(function, off, start, length);
	return 0;
}
