/* Is compiled by -pg: its own start turns profil on, and its end writes what was counted to gmon.out. */

#include <stdio.h>
#include <sys/time.h>

/* Between them and the program's other functions there is room for what is counted too high or too low by a few bytes. */
#define TURN __attribute__((noinline, aligned(256))) static void
#define ROUNDS 20000
/* Some seconds. */
#define TURNS 100000

TURN light(void)
{
	for (unsigned long rounds = ROUNDS; rounds; rounds--)
		__asm__ volatile("" : "+r"(rounds));
}

TURN heavy(void)
{
	for (unsigned long rounds = ROUNDS; rounds; rounds--)
		__asm__ volatile("" : "+r"(rounds));
}

int main(void)
{
	unsigned long state = 1, light_turns = 0, heavy_turns = 0;
	struct itimerval timer;

	while (light_turns + heavy_turns < TURNS) {
		/* Marsaglia's xorshift. */
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		if (state % 4 == 0) {
			light();
			light_turns++;
		} else {
			heavy();
			heavy_turns++;
		}
	}
	getitimer(ITIMER_PROF, &timer);
	printf("pg timer %ld\n", (long)timer.it_interval.tv_usec);
	printf("pg turns %lu %lu\n", light_turns, heavy_turns);
	return 0;
}
