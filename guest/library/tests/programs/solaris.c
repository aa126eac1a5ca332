/* Uses everything that a program for Solaris and kvmprof.h have, on a machine without /dev/profil. With BEFORE and AFTER
 * <unistd.h> is included before and after the header that has a profil of its own; with PAGE_ONLY in its place. */

#ifdef BEFORE
#include <unistd.h>
#endif
#ifdef PAGE_ONLY
#include <unistd.h>
#else
#include <profil.h>
#endif
#ifdef AFTER
#include <unistd.h>
#endif
#include <errno.h>
#include <kvmprof.h>
#include <pcsample.h>
#include <stddef.h>
#include <stdio.h>

static unsigned short counts[64];
static uintptr_t samples[64];

static void work(void)
{
}

static void print(const char *name, long result)
{
	printf("%s %ld %d\n", name, result, errno);
	errno = 0;
}

int main(void)
{
	errno = 99;
	profil(counts, sizeof counts, (unsigned long)work, 0x4000);
	profil(counts, 0, 0, 0);
	print("profil leaves errno", 0);
	print("negative", pcsample(samples, -1));
	print("most negative", pcsample(samples, -2147483647L));
	print("on", pcsample(samples, 64));
	print("off", pcsample(NULL, 0));
	print("rate", kvmprof_profil_every_tick(7));
	print("rate again", kvmprof_profil_every_tick(0));
	print("rate at last", kvmprof_profil_every_tick(0));
#ifndef PAGE_ONLY
	{
		/* profil returns nothing, as on the manual page. */
		void (*function)(unsigned short *, unsigned int, unsigned long, unsigned int) = profil;

		print("pointer", function == NULL);
	}
#endif
	return 0;
}
