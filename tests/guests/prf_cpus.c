/* Holds the counters of /dev/prf against those of /dev/prf0 and /dev/prf1 over the same time. */

#include <stdint.h>

#include "../../guest/abi/include/prf.h"
#include "agent_checks.h"

enum { ADDRESSES = 5, WORDS = 2 * ADDRESSES + 2, COUNTERS = ADDRESSES + 2 };

static const char *const nodes[3] = { "/dev/prf", "/dev/prf0", "/dev/prf1" };
static int all, first, second;

static uint64_t counters[3][WORDS];

static void turn(int device, int on)
{
	if (ioctl(device, PRF_SETSTATE, on) != 0)
		stop("PRF_SETSTATE");
}

static uint64_t sum(const uint64_t *words)
{
	uint64_t total = 0;

	for (int i = ADDRESSES; i < WORDS; i++)
		total += words[i];
	return total;
}

static void look(void)
{
	const int devices[3] = { all, first, second };

	for (int i = 0; i < 3; i++)
		if (read(devices[i], counters[i], sizeof counters[i]) != sizeof counters[i])
			stop("counters are read");
}

/* Turns the outer ones on before the inner ones, and off after them: the inner ones' time is a part of theirs. */
static void profile(const int outer[], int outer_count, const int inner[], int inner_count)
{
	for (int i = 0; i < outer_count; i++)
		turn(outer[i], 1);
	for (int i = 0; i < inner_count; i++)
		turn(inner[i], 1);
	/* On a busy host some ticks take long. */
	do {
		sleep(2);
		look();
	} while (!sum(counters[0]) || !sum(counters[1]) || !sum(counters[2]));
	for (int i = 0; i < inner_count; i++)
		turn(inner[i], 0);
	for (int i = 0; i < outer_count; i++)
		turn(outer[i], 0);
}

static void load(void)
{
	/* Spread over all that a kernel uses. */
	static const uint64_t table[ADDRESSES] = {
		0, 0xffff800000000000, 0xffffffff80000000, 0xffffffffa0000000, 0xffffffffc0000000,
	};
	const int devices[3] = { all, first, second };

	for (int i = 0; i < 3; i++)
		if (write(devices[i], table, sizeof table) != sizeof table)
			stop("a table is written");
}

/* True when each counter of the vCPUs together is at most (sign 1), or at least (sign -1), that of all. */
static int compare(const char *name, int sign)
{
	int holds = 1;

	look();
	for (int i = ADDRESSES; i < WORDS; i++) {
		int64_t apart = counters[0][i] - counters[1][i] - counters[2][i];
		holds = holds && apart * sign >= 0;
	}
	printf("%s: %llu of all, %llu and %llu of each\n", name, (unsigned long long)sum(counters[0]),
	       (unsigned long long)sum(counters[1]), (unsigned long long)sum(counters[2]));
	return holds && sum(counters[1]) > 0 && sum(counters[2]) > 0;
}

int main(void)
{
	all = open(nodes[0], O_RDWR);
	first = open(nodes[1], O_RDWR);
	second = open(nodes[2], O_RDWR);
	if (all < 0 || first < 0 || second < 0)
		stop("the nodes open");
	const int each[2] = { first, second };

	start();
	load();
	profile(&all, 1, each, 2);
	check("each CPU within all", compare("all for longer", 1), "a counter of one is too high");
	load();
	profile(each, 2, &all, 1);
	check("all within each CPU", compare("each for longer", -1), "a counter of all is too high");
	return finish("prf_cpus");
}
