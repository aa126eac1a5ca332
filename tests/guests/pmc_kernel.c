/* pmc(9) for the whole guest: counters of the kernel, and sampling by a counter's overflow. */

#include <errno.h>
#include <pcs.h>

#include "agent_checks.h"
#include "pmc_work.h"

#define READS PMC_EVENT_PORT_READS
#define WRITES PMC_EVENT_PORT_WRITES
/* Writes to a sample. */
#define PERIOD 50
#define SAMPLES 20

static int start_profiling(int ctr, pmc_ctr_t reset_value)
{
	struct pmc_counter_cfg cfg = { ctr, reset_value, 0 };

	return pmc_start_profiling(ctr, &cfg);
}

/* The kernel's count is of all processes. */
static void the_kernel_counts_the_whole_guest(void)
{
	uint64_t value = 3;

	returns("the value of what isn't allocated", pmc_get_counter_value(NULL, READS, 0, &value), ENXIO);
	returns("free what isn't allocated", pmc_free_kernel_counter(READS), ENXIO);
	returns("stop what isn't profiling", pmc_stop_profiling(READS), ENXIO);
	read_port(5);
	returns("allocate", alloc(READS), 0);
	read_port(30);
	if (fork() == 0) {
		read_port(12);
		_exit(0);
	}
	status_of(-1);
	int64_t counted = value_of(NULL, READS, 0);
	check("each process's events", counted >= 42, "%ld", (long)counted);
	pmc_save_context(curlwp);
	read_port(10);
	int64_t more = value_of(NULL, READS, 0);
	check("a saved context leaves the kernel's alone", more >= counted + 10, "%ld after %ld", (long)more, (long)counted);
	pmc_restore_context(curlwp);
	has_value("it runs, for each process", pmc_counter_isrunning(curlwp, READS), 1);
	has_value("it is configured, for each process", pmc_counter_isconfigured(pmc_lwp(1), READS), 1);
	has_value("the kernel uses one", PMC_ENABLED(curlwp), 1);
	has_value("another one isn't used", pmc_counter_isrunning(curlwp, WRITES), 0);
	returns("a process can't configure it", configure(curlwp, READS), EBUSY);
	returns("a process can't enable it", pmc_enable_counter(curlwp, READS), EBUSY);
	returns("allocate again", alloc(READS), EBUSY);
	returns("profile with it", start_profiling(READS, PERIOD), EBUSY);
	returns("stop profiling with it", pmc_stop_profiling(READS), ENXIO);
	returns("free", pmc_free_kernel_counter(READS), 0);
	returns("free again", pmc_free_kernel_counter(READS), ENXIO);
	returns("no value then", pmc_get_counter_value(NULL, READS, 0, &value), ENXIO);
	has_value("the kernel uses none", PMC_ENABLED(curlwp), 0);
	has_value("an error stores nothing", value, 3);
}

static void errors_have_their_numbers(void)
{
	struct pmc_counter_cfg cfg = { WRITES, PERIOD, 0 };
	int counters = pmc_get_num_counters();

	returns("allocate by another event", pmc_alloc_kernel_counter(READS, &cfg), ENODEV);
	returns("allocate no counter", alloc(counters), EINVAL);
	returns("allocate a negative counter", alloc(-1), EINVAL);
	returns("free no counter", pmc_free_kernel_counter(counters), EINVAL);
	returns("stop no counter", pmc_stop_profiling(-1), EINVAL);
	returns("allocate without a configuration", pmc_alloc_kernel_counter(READS, NULL), EFAULT);
	returns("profile without a configuration", pmc_start_profiling(READS, NULL), EFAULT);
	returns("profile by another event", pmc_start_profiling(READS, &cfg), ENODEV);
	returns("profile with no counter", start_profiling(counters, PERIOD), EINVAL);
	returns("profile by the clock's ticks", start_profiling(PMC_EVENT_TICKS, PERIOD), ENODEV);
	returns("a sample of no events", start_profiling(WRITES, 0), EINVAL);
	returns("a sample of too many events", start_profiling(WRITES, 10000000001), EINVAL);
	has_value("errors allocate nothing", PMC_ENABLED(curlwp), 0);
}

/* A process that has configured the counter, until it is killed. */
static pid_t start_user(struct steps *steps, int is_enabled)
{
	pid_t child;

	make_steps(steps);
	child = fork();
	if (child == 0) {
		wait_for_step(steps);
		stepped(steps, (is_enabled ? begin(curlwp, WRITES) : configure(curlwp, WRITES)) ? 'n' : 'y');
		_exit(0);
	}
	has_value("a process configures it", step(steps), 'y');
	return child;
}

static void end_user(struct steps *steps, pid_t child)
{
	kill(child, SIGKILL);
	status_of(child);
	close_steps(steps);
}

/* Until the end of a process has been seen from outside, which takes ticks: a counter of this process sees to them. */
static void processes_come_first(void)
{
	struct steps steps;
	pid_t user = start_user(&steps, 0);
	int error;

	returns("allocate what a process has configured", alloc(WRITES), EBUSY);
	returns("profile with what a process has configured", start_profiling(WRITES, PERIOD), EBUSY);
	end_user(&steps, user);
	returns("a counter for its ticks", begin(curlwp, PMC_EVENT_TICKS), 0);
	while ((error = alloc(WRITES)) == EBUSY)
		work();
	returns("allocate when it has gone", error, 0);
	returns("free it", pmc_free_kernel_counter(WRITES), 0);
	returns("profile while the clock makes ticks", start_profiling(WRITES, PERIOD), EBUSY);
	returns("no clock any more", pmc_disable_counter(curlwp, PMC_EVENT_TICKS), 0);
}

/* Reads a buffer of pcs, and counts the samples of this process, and those of others. */
static int own_samples(int pcs, int *others)
{
	struct LOGBUF buffer;
	int own = 0;

	if (read(pcs, &buffer, sizeof buffer) < (ssize_t)sizeof buffer.lb_buf_hdr)
		return -1;
	size_t count = (BSIZE - sizeof buffer.lb_buf_hdr - buffer.lb_buf_hdr.h_unused) / sizeof *buffer.lb_data;
	for (size_t i = 0; i < count; i++) {
		if (buffer.lb_data[i].type == USER && buffer.lb_data[i].pid == getpid())
			own++;
		else if (buffer.lb_data[i].type == USER || buffer.lb_data[i].type == KERNEL)
			++*others;
	}
	return own;
}

static int are_samples(int64_t number)
{
	return number >= SAMPLES - 2 && number <= SAMPLES + 2;
}

static void overflow_makes_the_ticks(void)
{
	int pcs, own, others = 0;

	returns("profile", start_profiling(WRITES, PERIOD), 0);
	returns("profile again", start_profiling(WRITES, PERIOD), EINPROGRESS);
	returns("profile with another one", start_profiling(READS, PERIOD), EBUSY);
	returns("free what profiles", pmc_free_kernel_counter(WRITES), EBUSY);
	returns("allocate what profiles", alloc(WRITES), EBUSY);
	returns("configure what profiles", configure(curlwp, WRITES), EBUSY);
	has_value("it runs", pmc_counter_isrunning(curlwp, WRITES), 1);
	returns("a counter of the ticks", begin(curlwp, PMC_EVENT_TICKS), 0);
	if ((pcs = open(PCS_NODE, O_RDONLY)) < 0 || ioctl(pcs, PROF_ALL, 0))
		stop("/dev/pcs");
	write_port(PERIOD * SAMPLES);
	int64_t ticks = value_of(curlwp, PMC_EVENT_TICKS, 0);
	check("each so many events a tick", are_samples(ticks), "%ld", (long)ticks);
	int64_t counted = value_of(NULL, WRITES, 0);
	check("the events are counted", counted >= PERIOD * SAMPLES, "%ld", (long)counted);
	if (ioctl(pcs, PCS_FLUSH, 0))
		stop("a flush");
	own = own_samples(pcs, &others);
	check("samples are of who writes", are_samples(own) && others <= 2, "%d, and %d of others", own, others);
	close(pcs);
}

/* Who counts such ticks already goes on to do so; who begins then counts the clock's. */
static void the_clock_comes_back(void)
{
	int64_t before = value_of(curlwp, PMC_EVENT_TICKS, 0);

	returns("stop", pmc_stop_profiling(WRITES), 0);
	returns("stop again", pmc_stop_profiling(WRITES), ENXIO);
	has_value("it is free", pmc_counter_isconfigured(curlwp, WRITES), 0);
	write_port(PERIOD * SAMPLES);
	int64_t more = value_of(curlwp, PMC_EVENT_TICKS, 0) - before;
	check("a counter of such ticks goes on", are_samples(more), "%ld", (long)more);
	/* To configure it is to stop it. */
	returns("the clock", begin(curlwp, PMC_EVENT_TICKS), 0);
	int64_t value = until(curlwp, PMC_EVENT_TICKS, 0, 5);
	check("the clock makes ticks again", value >= 5, "%ld", (long)value);
	returns("no clock at last", pmc_disable_counter(curlwp, PMC_EVENT_TICKS), 0);
	returns("profile by another one", start_profiling(READS, PERIOD), 0);
	returns("stop that one", pmc_stop_profiling(READS), 0);
	has_value("nothing is used", PMC_ENABLED(curlwp), 0);
}

/* What this host has of these. In emulation a tick takes so long that more frequent ones leave the guest no time. */
static void other_events_make_ticks(void)
{
	const struct {
		int ctr;
		pmc_ctr_t reset_value;
	} others[] = {
		{ PMC_EVENT_CPU_TIME, 50000000 }, { PMC_EVENT_EXITS, 10000 }, { PMC_EVENT_HALTS, 1000 },
		{ PMC_EVENT_PAGE_FAULTS, 1000 }, { PMC_EVENT_CYCLES, 10000000 },
	};

	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		int error = start_profiling(others[i].ctr, others[i].reset_value);

		printf("profiling by %d: error %d\n", others[i].ctr, error);
		check("another event", error == 0 || error == ENODEV, "%d: %d", others[i].ctr, error);
		returns("its stop", pmc_stop_profiling(others[i].ctr), error ? ENXIO : 0);
	}
	int error = start_profiling(PMC_EVENT_CPU_TIME, 999);
	check("a sample of too little time", error == EINVAL || error == ENODEV, "%d", error);
	returns("no overflow of these is told", start_profiling(PMC_EVENT_EMULATED, PERIOD), ENODEV);
	if (start_profiling(PMC_EVENT_CPU_TIME, 50000000) == 0) {
		returns("a counter of time's ticks", begin(curlwp, PMC_EVENT_TICKS), 0);
		int64_t value = until(curlwp, PMC_EVENT_TICKS, 0, 5);
		check("time makes ticks", value >= 5, "%ld", (long)value);
		returns("disabled", pmc_disable_counter(curlwp, PMC_EVENT_TICKS), 0);
		returns("time's stop", pmc_stop_profiling(PMC_EVENT_CPU_TIME), 0);
	}
}

int main(void)
{
	start();
	allow_port();
	the_kernel_counts_the_whole_guest();
	errors_have_their_numbers();
	processes_come_first();
	overflow_makes_the_ticks();
	the_clock_comes_back();
	other_events_make_ticks();
	return finish("pmc_kernel");
}
