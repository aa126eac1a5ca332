/* pcsample at 100 samples a second, and at every tick of the host's clock: each while another function works, and with every program
 * counter in that function that was stored. The host records the same ticks. */

#include <kvmprof.h>
#include <pcsample.h>

#include "profil_work.h"

/* Of these the function goes on working until there are so many. */
#define ROOM 4000
#define WANTED 100

static uintptr_t samples[ROOM];

/* The function doesn't work before the first call of pcsample, nor after the second one. */
static void collect(const char *name, int every_tick, void (*work)(void), uintptr_t start, uintptr_t stop)
{
	volatile uintptr_t *wanted = &samples[WANTED - 1];

	memset(samples, 0, sizeof samples);
	kvmprof_profil_every_tick(every_tick);
	long result = pcsample(samples, ROOM);
	while (result == 0 && !*wanted)
		work();
	long stored = pcsample(NULL, 0);
	printf("rate %s %d %ld %lx %lx", name, result == 0, stored, start, stop);
	for (long i = 0; i < stored; i++)
		if (samples[i] >= start && samples[i] < stop)
			printf(" %lx", samples[i]);
	printf("\n");
	fflush(stdout);
}

int main(void)
{
	printf("rates of %d\n", getpid());
	collect("limited", 0, light, START(light), STOP(light));
	collect("all", 1, heavy, START(heavy), STOP(heavy));
	return 0;
}
