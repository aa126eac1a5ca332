/* What programs share that use pmc(9): exits of the guest whose number is known, and checks of error numbers. */

#include <stdint.h>
#include <sys/io.h>
#include <sys/pmc.h>

/* A port that no device has: an access is an exit to the virtual machine monitor. */
#define PORT 0x2e8

/* The right to use the port; processes that are forked have it too. */
static inline void allow_port(void)
{
	if (ioperm(PORT, 1, 1))
		stop("ioperm");
}

static inline void read_port(int times)
{
	while (times-- > 0)
		inb(PORT);
}

static inline void write_port(int times)
{
	while (times-- > 0)
		outb(0, PORT);
}

/* One turn of work in user mode, with an exit at its end. */
static inline void work(void)
{
	unsigned long rounds = 20000;

	do
		__asm__ volatile("" : "+r"(rounds) : : "memory");
	while (--rounds);
	inb(PORT);
}

/* What has to return an error number, or 0. */
static inline void returns(const char *name, int result, int expected)
{
	check(name, result == expected, "%d, not %d", result, expected);
}

static inline int configure(struct lwp *l, int ctr)
{
	struct pmc_counter_cfg cfg = { ctr, 0, 0 };

	return pmc_configure_counter(l, ctr, &cfg);
}

static inline int alloc(int ctr)
{
	struct pmc_counter_cfg cfg = { ctr, 0, 0 };

	return pmc_alloc_kernel_counter(ctr, &cfg);
}

/* Configures and enables a counter. */
static inline int begin(struct lwp *l, int ctr)
{
	int error = configure(l, ctr);

	return error ? error : pmc_enable_counter(l, ctr);
}

/* The value, or -1. */
static inline int64_t value_of(struct lwp *l, int ctr, int flags)
{
	uint64_t value;

	return pmc_get_counter_value(l, ctr, flags, &value) ? -1 : (int64_t)value;
}

static inline void has_value(const char *name, int64_t value, int64_t expected)
{
	check(name, value == expected, "%ld, not %ld", (long)value, (long)expected);
}

/* Works until a value has grown as far. */
static inline int64_t until(struct lwp *l, int ctr, int flags, int64_t least)
{
	int64_t value;

	while ((value = value_of(l, ctr, flags)) >= 0 && value < least)
		work();
	return value;
}

/* A pair of pipes to a child: it is told to go on, and says that it has come to its end or to the next point. */
struct steps {
	int go[2], done[2];
};

static inline void make_steps(struct steps *steps)
{
	if (pipe(steps->go) || pipe(steps->done))
		stop("pipe");
}

static inline void close_steps(struct steps *steps)
{
	close(steps->go[0]);
	close(steps->go[1]);
	close(steps->done[0]);
	close(steps->done[1]);
}

/* In the parent: has the child do its next step. Returns what it says of it, or -1 if it has ended. */
static inline int step(struct steps *steps)
{
	char word = 'g';

	if (write(steps->go[1], &word, 1) != 1 || read(steps->done[0], &word, 1) != 1)
		return -1;
	return word;
}

/* In the child: says how a step went, and waits for the next one. */
static inline void stepped(struct steps *steps, char word)
{
	if (write(steps->done[1], &word, 1) != 1 || read(steps->go[0], &word, 1) != 1)
		_exit(99);
}

/* In the child: waits for its first step. */
static inline void wait_for_step(struct steps *steps)
{
	char word;

	if (read(steps->go[0], &word, 1) != 1)
		_exit(99);
}
