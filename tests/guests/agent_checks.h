/* What programs that check device nodes share. Each check is a line: check NAME: ok | failed: why. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static int checks, failures;

__attribute__((format(printf, 3, 4)))
static void check(const char *name, int ok, const char *why, ...)
{
	checks++;
	printf("check %s: ", name);
	if (ok) {
		puts("ok");
	} else {
		failures++;
		printf("failed: ");
		va_list arguments;
		va_start(arguments, why);
		vprintf(why, arguments);
		va_end(arguments);
		puts("");
	}
	fflush(stdout);
}

/* What has to fail with an errno. */
static inline void fails(const char *name, long result, int expected)
{
	int error = errno;
	check(name, result == -1 && error == expected, "%ld, errno %d, not %d", result, error, expected);
}

static inline void stop(const char *what)
{
	check(what, 0, "errno %d", errno);
	exit(1);
}

static void rung(int signal)
{
	(void)signal;
}

static void start(void)
{
	struct sigaction action = { .sa_handler = rung };
	sigaction(SIGALRM, &action, NULL);
}

/* Has SIGALRM come again and again, so that none is lost that comes before the call it is for. */
static inline void ring_after(int milliseconds)
{
	struct timeval time = { 0, milliseconds * 1000 };
	struct itimerval timer = { time, time };
	setitimer(ITIMER_REAL, &timer, NULL);
}

static inline void be_quiet(void)
{
	ring_after(0);
}

static inline void nap(int milliseconds)
{
	usleep(milliseconds * 1000);
}

static inline int status_of(pid_t child)
{
	int status = -1;
	waitpid(child, &status, 0);
	return status;
}

/* The first address behind a page, where there is nothing more. */
static inline char *edge_of_memory(void)
{
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(pages + 4096, 4096);
	return pages + 4096;
}

static inline int finish(const char *program)
{
	printf("%s: %d checks, %d failed\n", program, checks, failures);
	return failures != 0;
}
