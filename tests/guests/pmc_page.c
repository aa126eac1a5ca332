/* pmc(9) of a process for itself, as its manual page has it. */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>

#include "agent_checks.h"
#include "pmc_work.h"

#define READS PMC_EVENT_PORT_READS
#define WRITES PMC_EVENT_PORT_WRITES

/* Where there is no memory, nor a device. */
#define HOLE 0xe0000000ul

static int counters;

/* Numbers from 0 to N-1, each with a type, and a type of the whole. */
static void counters_have_types(void)
{
	const int bits[] = { 0, PMC_HAS_KVMPROF, PMC_HAS_KVM, PMC_HAS_PROCESSOR };
	int whole = 0, wrong = 0;

	counters = pmc_get_num_counters();
	check("counters are there", counters == PMC_EVENT_CACHE_MISSES + 1, "%d", counters);
	for (int ctr = 0; ctr < counters; ctr++) {
		int type = pmc_get_counter_type(ctr);
		int error = configure(curlwp, ctr);

		printf("counter %d type %d error %d\n", ctr, type, error);
		wrong += type < PMC_TYPE_KVMPROF || type > PMC_TYPE_PROCESSOR || (error && error != ENODEV);
		if (!error)
			whole |= bits[type];
	}
	check("each has a type", wrong == 0, "%d have none", wrong);
	has_value("the type of the whole", pmc_get_counter_type(-1), whole);
	has_value("no such counter's type", pmc_get_counter_type(counters), -1);
	has_value("no counter's type", pmc_get_counter_type(-2), -1);
}

static void errors_have_their_numbers(void)
{
	struct pmc_counter_cfg cfg = { READS, 0, 0 };
	uint64_t value = 77;
	int wrong[] = { -1, counters, 1 << 30 };

	returns("enable what isn't configured", pmc_enable_counter(curlwp, READS), ENXIO);
	returns("disable what isn't configured", pmc_disable_counter(curlwp, READS), ENXIO);
	returns("the value of what isn't configured", pmc_get_counter_value(curlwp, READS, 0, &value), ENXIO);
	returns("its children's", pmc_get_counter_value(curlwp, READS, PMC_VALUE_FLAGS_CHILDREN, &value), ENXIO);
	has_value("it isn't configured", pmc_counter_isconfigured(curlwp, READS), 0);
	has_value("it doesn't run", pmc_counter_isrunning(curlwp, READS), 0);
	has_value("nothing is enabled", PMC_ENABLED(curlwp), 0);
	for (int i = 0; i < 3; i++) {
		cfg.event_id = wrong[i];
		returns("configure no counter", pmc_configure_counter(curlwp, wrong[i], &cfg), EINVAL);
		returns("enable no counter", pmc_enable_counter(curlwp, wrong[i]), EINVAL);
		returns("disable no counter", pmc_disable_counter(curlwp, wrong[i]), EINVAL);
		returns("the value of no counter", pmc_get_counter_value(curlwp, wrong[i], 0, &value), EINVAL);
		has_value("no counter is configured", pmc_counter_isconfigured(curlwp, wrong[i]), 0);
		has_value("no counter runs", pmc_counter_isrunning(curlwp, wrong[i]), 0);
	}
	cfg.event_id = WRITES;
	returns("another counter's event", pmc_configure_counter(curlwp, READS, &cfg), ENODEV);
	cfg.event_id = 1 << 20;
	returns("no event", pmc_configure_counter(curlwp, READS, &cfg), ENODEV);
	returns("no configuration", pmc_configure_counter(curlwp, READS, NULL), EFAULT);
	returns("no place for the value", pmc_get_counter_value(curlwp, READS, 0, NULL), EFAULT);
	returns("an unknown flag", pmc_get_counter_value(curlwp, READS, 2, &value), EINVAL);
	returns("the kernel in place of a process", pmc_enable_counter(NULL, READS), EINVAL);
	returns("something else than a process", pmc_enable_counter((struct lwp *)&cfg, READS), EINVAL);
	returns("a negative process", pmc_enable_counter(pmc_lwp(-1), READS), EINVAL);
	returns("no such process", configure(pmc_lwp(4000000), READS), ESRCH);
	check("an error stores nothing", value == 77, "%ld", (long)value);
}

static void a_counter_counts_while_it_is_enabled(void)
{
	struct pmc_counter_cfg cfg = { READS, 12345, ~0u };

	allow_port();
	returns("configure", pmc_configure_counter(curlwp, READS, &cfg), 0);
	has_value("it is configured", pmc_counter_isconfigured(curlwp, READS), 1);
	has_value("it doesn't run yet", pmc_counter_isrunning(curlwp, READS), 0);
	has_value("nothing runs", PMC_ENABLED(curlwp), 0);
	read_port(5);
	has_value("it stands still at 0", value_of(curlwp, READS, 0), 0);
	returns("enable", pmc_enable_counter(curlwp, READS), 0);
	has_value("it runs", pmc_counter_isrunning(curlwp, READS), 1);
	has_value("something runs", PMC_ENABLED(curlwp), 1);
	returns("enable what runs", pmc_enable_counter(curlwp, READS), EINPROGRESS);
	returns("another one is configured", configure(curlwp, WRITES), 0);
	read_port(100);
	write_port(30);
	has_value("each event is counted", value_of(curlwp, READS, 0), 100);
	has_value("by its process's number too", value_of(pmc_lwp(getpid()), READS, 0), 100);
	has_value("children have counted nothing", value_of(curlwp, READS, PMC_VALUE_FLAGS_CHILDREN), 0);
	has_value("a counter for itself", value_of(curlwp, WRITES, 0), 0);
	returns("disable", pmc_disable_counter(curlwp, READS), 0);
	returns("disable again", pmc_disable_counter(curlwp, READS), 0);
	read_port(50);
	has_value("its value stays", value_of(curlwp, READS, 0), 100);
	has_value("it doesn't run any more", pmc_counter_isrunning(curlwp, READS), 0);
	has_value("it is configured still", pmc_counter_isconfigured(curlwp, READS), 1);
	returns("enable again", pmc_enable_counter(curlwp, READS), 0);
	returns("the other one", pmc_enable_counter(curlwp, WRITES), 0);
	read_port(7);
	write_port(3);
	has_value("it goes on", value_of(curlwp, READS, 0), 107);
	has_value("beside the other one", value_of(curlwp, WRITES, 0), 3);
	returns("configure what runs", configure(curlwp, READS), 0);
	read_port(5);
	has_value("that stops it", pmc_counter_isrunning(curlwp, READS), 0);
	has_value("and it is 0", value_of(curlwp, READS, 0), 0);
	has_value("not the other one", pmc_counter_isrunning(curlwp, WRITES), 1);
}

static void a_saved_context_stands_still(void)
{
	returns("a counter for a context", begin(curlwp, READS), 0);
	read_port(10);
	pmc_save_context(curlwp);
	read_port(20);
	has_value("saved", value_of(curlwp, READS, 0), 10);
	pmc_restore_context(curlwp);
	read_port(5);
	has_value("restored", value_of(curlwp, READS, 0), 15);
	/* They have no result, and harm nobody. */
	pmc_save_context(NULL);
	pmc_restore_context(pmc_lwp(4000000));
	read_port(1);
	has_value("contexts of nobody", value_of(curlwp, READS, 0), 16);
}

static void *read_some(void *unused)
{
	allow_port();
	read_port(40);
	return unused;
}

static void *count_itself(void *result)
{
	*(int64_t *)result = value_of(pmc_lwp(gettid()), READS, 0);
	return NULL;
}

static void threads_count_together(void)
{
	pthread_t thread;
	int64_t seen = -1;

	returns("a counter for threads", begin(curlwp, READS), 0);
	pthread_create(&thread, NULL, read_some, NULL);
	pthread_join(thread, NULL);
	read_port(2);
	has_value("threads", value_of(curlwp, READS, 0), 42);
	pthread_create(&thread, NULL, count_itself, &seen);
	pthread_join(thread, NULL);
	has_value("a thread stands for its process", seen, 42);
}

/* What this host has of these, the process causes until they have counted some. */
static void every_kind_of_event_is_counted(void)
{
	int memory = open("/dev/mem", O_RDWR);
	volatile uint32_t *hole = memory < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, HOLE);
	const int caused[] = { PMC_EVENT_CPU_TIME, PMC_EVENT_TICKS, PMC_EVENT_EXITS };

	if (hole == MAP_FAILED)
		stop("/dev/mem");
	returns("reads of memory", begin(curlwp, PMC_EVENT_MMIO_READS), 0);
	returns("writes of memory", begin(curlwp, PMC_EVENT_MMIO_WRITES), 0);
	for (int i = 0; i < 10; i++)
		(void)*hole;
	for (int i = 0; i < 4; i++)
		*hole = i;
	has_value("reads without memory", value_of(curlwp, PMC_EVENT_MMIO_READS, 0), 10);
	has_value("writes without memory", value_of(curlwp, PMC_EVENT_MMIO_WRITES, 0), 4);
	for (unsigned i = 0; i < sizeof caused / sizeof *caused; i++) {
		int error = begin(curlwp, caused[i]);

		if (error == ENODEV && pmc_get_counter_type(caused[i]) != PMC_TYPE_KVMPROF)
			continue;
		int64_t value = error ? -1 : until(curlwp, caused[i], 0, 20);
		check("an event that is estimated", value >= 20, "counter %d: error %d, %ld", caused[i], error, (long)value);
	}
	for (int ctr = 0; ctr < counters; ctr++) {
		int error = configure(curlwp, ctr);

		if (!error)
			error = pmc_enable_counter(curlwp, ctr);
		int64_t value = value_of(curlwp, ctr, 0);
		check("a counter of this host", error == ENODEV || (error == 0 && value >= 0), "%d: error %d, %ld", ctr, error,
		      (long)value);
	}
	munmap((void *)hole, 4096);
	close(memory);
}

static volatile int in_handler;

static void call_in_handler(int signal)
{
	(void)signal;
	in_handler = pmc_counter_isconfigured(curlwp, READS);
}

/* A fast timer interrupts whatever can be interrupted. */
static void signals_interrupt_no_call(void)
{
	struct sigaction action = { .sa_handler = call_in_handler };
	int failed = 0;

	errno = 78;
	for (int i = 0; i < 25; i++) {
		ring_after(1);
		failed += begin(curlwp, READS) != 0;
		failed += value_of(curlwp, READS, 0) != 0;
		be_quiet();
	}
	check("no call is interrupted", failed == 0, "%d are", failed);
	check("errno stays", errno == 78, "%d", errno);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	has_value("a handler may call it", in_handler, 1);
}

int main(int count, char **words)
{
	/* Where it can't be had. */
	if (count == 2) {
		uint64_t value;

		printf("%s: errors %d %d %d, counters %d, type %d\n", words[1], configure(curlwp, READS),
		       pmc_get_counter_value(NULL, READS, 0, &value), alloc(READS), pmc_get_num_counters(),
		       pmc_get_counter_type(-1));
		return 0;
	}
	start();
	/* What is configured stays so until the process ends: so in another one. */
	if (fork() == 0) {
		counters_have_types();
		_exit(failures != 0);
	}
	check("counters and types", status_of(-1) == 0, "see above");
	counters = pmc_get_num_counters();
	errors_have_their_numbers();
	a_counter_counts_while_it_is_enabled();
	a_saved_context_stands_still();
	threads_count_together();
	every_kind_of_event_is_counted();
	signals_interrupt_no_call();
	return finish("pmc_page");
}
