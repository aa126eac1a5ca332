/* Programs that give up the processor all the time, each busy in a function of its own name, TURN, at the same address as the others'.
 *
 * pass: two processes, of the programs ping and pong, that pass a byte to and fro.
 * storm: one that starts the program child again and again.
 */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile unsigned long rounds;

__attribute__((noinline)) void TURN(void)
{
	for (int i = 0; i < 10000; i++)
		rounds++;
}

/* The ends of its pipes are its standard input and output. */
static void play(int begins)
{
	char byte = 0;

	if (begins && write(STDOUT_FILENO, &byte, 1) != 1)
		abort();
	while (read(STDIN_FILENO, &byte, 1) == 1) {
		TURN();
		if (write(STDOUT_FILENO, &byte, 1) != 1)
			abort();
	}
}

static void start(const char *program, const char *mode, int in, int out)
{
	switch (fork()) {
	case -1:
		abort();
	case 0:
		if (in >= 0 && (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0))
			abort();
		execl(program, program, mode, NULL);
		abort();
	}
}

static void pass(void)
{
	int there[2], back[2];

	if (pipe2(there, O_CLOEXEC) || pipe2(back, O_CLOEXEC))
		abort();
	start("/bin/ping", "first", there[0], back[1]);
	start("/bin/pong", "second", back[0], there[1]);
}

static void storm(void)
{
	for (;;) {
		start("/bin/child", "once", -1, -1);
		TURN();
		if (wait(NULL) < 0)
			abort();
	}
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "";

	if (strcmp(mode, "pass") == 0)
		pass();
	else if (strcmp(mode, "storm") == 0)
		storm();
	else if (strcmp(mode, "once") == 0)
		TURN();
	else
		play(strcmp(mode, "first") == 0);
	return 0;
}
