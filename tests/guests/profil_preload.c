/* Calls profil as glibc declares it, and isn't linked with libkvmprof. */

#include <sys/time.h>

#include "profil_work.h"

#define COUNTS 256

int main(void)
{
	static unsigned short counts[COUNTS];
	struct itimerval timer;
	struct result result = { 0 };

	profil(counts, sizeof counts, code_start(), 0x4000);
	while (sum(counts, COUNTS) < ENOUGH)
		turn(&result);
	profil(counts, 0, 0, 0);
	attribute(&result, counts, COUNTS);
	getitimer(ITIMER_PROF, &timer);
	printf("timer %ld\n", (long)timer.it_interval.tv_usec);
	printf("shares preload %ld %ld %ld turns %ld %ld calls 0\n", result.light, result.heavy, result.other,
	       result.light_turns, result.heavy_turns);
	return 0;
}
