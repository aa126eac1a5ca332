/* What programs share that are profiled by profil and pcsample: two functions that take turns by chance, and how often each had
 * one; and a count of the system calls that a part of the program makes. */

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of a share of 1/4, four standard errors are then less than 9 points. */
#define ENOUGH 400

/* One turn of each is the same work. Meanwhile memory changes, of which the compiler has to know. */
#define ROUNDS                                                            \
	{                                                                 \
		unsigned long rounds = 20000;                             \
		do                                                        \
			__asm__ volatile("" : "+r"(rounds) : : "memory"); \
		while (--rounds);                                         \
	}

/* A section of its own tells where a function begins and ends. */
#define TURN(name)                                                                             \
	extern const char __start_##name##_code[], __stop_##name##_code[];                     \
	__attribute__((noinline, aligned(256), section(#name "_code"))) static void name(void) \
	ROUNDS

TURN(light)
TURN(heavy)

#define START(name) ((uintptr_t)__start_##name##_code)
#define STOP(name) ((uintptr_t)__stop_##name##_code)
#define IS_IN(name, pc) ((pc) >= START(name) && (pc) < STOP(name))

/* Where both functions begin. */
static inline uintptr_t code_start(void)
{
	return START(light) < START(heavy) ? START(light) : START(heavy);
}

/* What both processes see: the one that works, and the one that counts its system calls. */
struct result {
	/* Between the call that turns on and the call that turns off. */
	volatile int between;
	volatile long system_calls;
	volatile long light_turns, heavy_turns;
	/* Samples in each function, and elsewhere. */
	volatile long light, heavy, other;
};

/* One of the functions has its turn: with a chance of 1 in 4 the light one. */
static inline void turn(struct result *result)
{
	static unsigned long state = 1;

	/* Marsaglia's xorshift. */
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	if (state % 4 == 0) {
		light();
		result->light_turns++;
	} else {
		heavy();
		result->heavy_turns++;
	}
}

/* Follows a stopped child to its end, by each of its system calls; returns its status. */
static inline int follow(pid_t child, struct result *result)
{
	int status;

	waitpid(child, &status, 0);
	ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
	while (WIFSTOPPED(status)) {
		int is_call = WSTOPSIG(status) == (SIGTRAP | 0x80);
		int signal = is_call || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);

		/* Once before the call, and once after it. */
		if (is_call && result->between)
			result->system_calls++;
		ptrace(PTRACE_SYSCALL, child, 0, signal);
		waitpid(child, &status, 0);
	}
	return status;
}

/* Runs `work` in a child, and prints a line of what it has come to. */
static inline void print_shares(const char *name, void (*work)(struct result *))
{
	struct result *result =
	    mmap(NULL, sizeof *result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child = fork();

	if (child == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		work(result);
		_exit(0);
	}
	printf("status %s %d\n", name, follow(child, result));
	printf("shares %s %ld %ld %ld turns %ld %ld calls %ld\n", name, result->light, result->heavy, result->other,
	       result->light_turns, result->heavy_turns, result->system_calls);
	fflush(stdout);
	munmap(result, sizeof *result);
}

static inline long sum(const volatile unsigned short *counts, size_t length)
{
	long total = 0;

	for (size_t i = 0; i < length; i++)
		total += counts[i];
	return total;
}

/* Gives the counts of a histogram with a count for each 8 bytes of code to the functions. */
static inline void attribute(struct result *result, const unsigned short *counts, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		uintptr_t pc = code_start() + 8 * i;

		if (IS_IN(light, pc))
			result->light += counts[i];
		else if (IS_IN(heavy, pc))
			result->heavy += counts[i];
		else
			result->other += counts[i];
	}
}
