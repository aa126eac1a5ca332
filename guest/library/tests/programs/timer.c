/* Calls profil as glibc declares it, and prints whether glibc's was called, which sets a timer of the process. A program
 * compiled with -pg is profiled from its start, by glibc's own call, and doesn't call it here. */

#include <stdio.h>
#include <sys/time.h>
#include <unistd.h>

int main(void)
{
	struct itimerval timer;

#ifndef PROFILED
	static unsigned short counts[64];

	if (profil(counts, sizeof counts, (size_t)main, 0x4000) != 0)
		return 1;
#endif
	getitimer(ITIMER_PROF, &timer);
	puts(timer.it_interval.tv_usec ? "glibc's profil" : "another profil");
	return 0;
}
