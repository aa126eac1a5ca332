/* Threads that are named LETTER PID/TID, by the ids that they have themselves: in a pid namespace, those within it.
 *
 * LETTER: two threads, both busy.
 * LETTER storm: also children, one after another: each one is busy for a moment, executes this program, and is so again.
 * LETTER once: busy for a moment.
 */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile unsigned long rounds;
static const char *letter = "";

static void name(void)
{
	char name[16];

	snprintf(name, sizeof(name), "%.1s%d/%d", letter, getpid(), gettid());
	prctl(PR_SET_NAME, name);
}

static void turn(void)
{
	for (int i = 0; i < 200000; i++)
		rounds++;
}

static void *busy(void *unused)
{
	name();
	for (;;)
		turn();
	return unused;
}

/* A child has its parent's name at first, which isn't its own. */
static void storm(void)
{
	for (;;) {
		prctl(PR_SET_NAME, "parent");
		switch (fork()) {
		case -1:
			abort();
		case 0:
			name();
			turn();
			execl("/bin/contained", "contained", letter, "once", NULL);
			abort();
		}
		name();
		turn();
		if (wait(NULL) < 0)
			abort();
	}
}

int main(int count, char **arguments)
{
	const char *mode = count > 2 ? arguments[2] : "";
	pthread_t thread;

	letter = count > 1 ? arguments[1] : "";
	if (strcmp(mode, "once") == 0) {
		name();
		turn();
		return 0;
	}
	if (pthread_create(&thread, NULL, busy, NULL))
		abort();
	if (strcmp(mode, "storm") == 0)
		storm();
	busy(NULL);
}
