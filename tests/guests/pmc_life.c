/* pmc(9): what becomes of counters when processes fork, execute and end, and who may count whom. */

#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <sys/prctl.h>

#include "agent_checks.h"
#include "pmc_work.h"

#define READS PMC_EVENT_PORT_READS
#define WRITES PMC_EVENT_PORT_WRITES
#define CHILDREN PMC_VALUE_FLAGS_CHILDREN
#define USER 1000

/* Another exit status of a child says which of its checks failed. */
#define EXPECT(number, truth)    \
	do {                     \
		if (!(truth))    \
			_exit(number); \
	} while (0)

/* A process is known from its first exit or tick on. */
static void fork_inherits_enabled_counters_at_0(void)
{
	returns("a counter to be inherited", begin(curlwp, READS), 0);
	returns("one that isn't enabled", configure(curlwp, WRITES), 0);
	read_port(11);
	pid_t child = fork();
	if (child == 0) {
		read_port(7);
		write_port(2);
		EXPECT(1, value_of(curlwp, READS, 0) == 7);
		EXPECT(2, pmc_counter_isrunning(curlwp, READS) == 1);
		EXPECT(3, PMC_ENABLED(curlwp) == 1);
		EXPECT(4, pmc_counter_isconfigured(curlwp, WRITES) == 0);
		EXPECT(5, value_of(curlwp, READS, CHILDREN) == 0);
		child = fork();
		if (child == 0) {
			read_port(5);
			_exit(value_of(curlwp, READS, 0) != 5);
		}
		EXPECT(6, status_of(child) == 0);
		EXPECT(7, until(curlwp, READS, CHILDREN, 5) == 5);
		/* So as to be of a known number. */
		EXPECT(8, configure(curlwp, READS) == 0 && pmc_enable_counter(curlwp, READS) == 0);
		read_port(20);
		_exit(0);
	}
	int status = status_of(child);
	check("a child counts itself, and its own child", status == 0, "%#x", status);
	has_value("its parent's is its own", value_of(curlwp, READS, 0), 11);
	has_value("ended processes' counts come to the parent", until(curlwp, READS, CHILDREN, 25), 25);
	returns("configured again", configure(curlwp, READS), 0);
	has_value("the children's counts stay", value_of(curlwp, READS, CHILDREN), 25);
}

static void a_killed_processs_counts_are_not_lost(void)
{
	struct steps steps;

	make_steps(&steps);
	returns("a counter before a kill", begin(curlwp, WRITES), 0);
	pid_t child = fork();
	if (child == 0) {
		wait_for_step(&steps);
		write_port(13);
		stepped(&steps, 'y');
		_exit(0);
	}
	has_value("one to be killed", step(&steps), 'y');
	kill(child, SIGKILL);
	has_value("it is", status_of(child), SIGKILL);
	returns("ticks until that is seen", begin(curlwp, READS), 0);
	has_value("a killed process's counts", until(curlwp, WRITES, CHILDREN, 13), 13);
	close_steps(&steps);
}

/* A child that calls before its first tick or exit has what it has inherited, and so has one whose parent calls before that. */
static void what_is_inherited_is_there_at_once(void)
{
	struct steps steps;

	returns("a counter that a child disables", begin(curlwp, READS), 0);
	pid_t child = fork();
	if (child == 0) {
		EXPECT(1, pmc_disable_counter(curlwp, READS) == 0);
		read_port(5);
		EXPECT(2, value_of(curlwp, READS, 0) == 0);
		EXPECT(3, pmc_counter_isrunning(curlwp, READS) == 0);
		_exit(0);
	}
	int status = status_of(child);
	check("a child disables what it has inherited", status == 0, "%#x", status);
	child = fork();
	if (child == 0) {
		EXPECT(1, pmc_counter_isrunning(curlwp, READS) == 1);
		EXPECT(2, configure(curlwp, WRITES) == 0);
		read_port(4);
		EXPECT(3, value_of(curlwp, READS, 0) == 4);
		_exit(0);
	}
	status = status_of(child);
	check("a child that configures another has both", status == 0, "%#x", status);
	make_steps(&steps);
	child = fork();
	if (child == 0) {
		wait_for_step(&steps);
		read_port(3);
		stepped(&steps, value_of(curlwp, READS, 0) == 3 ? 'y' : 'n');
		_exit(0);
	}
	returns("its parent disables its own", pmc_disable_counter(curlwp, READS), 0);
	has_value("the child's goes on", step(&steps), 'y');
	kill(child, SIGKILL);
	status_of(child);
	close_steps(&steps);
}

/* In a child, at its first step: forks a process and ends, so that the parent adopts it. Whether that has counted its 3 reads is the step's word. */
static void leave_an_orphan(struct steps *steps)
{
	pid_t parent = getppid();

	wait_for_step(steps);
	if (fork() == 0) {
		while (getppid() != parent)
			usleep(1000);
		read_port(3);
		char word = value_of(curlwp, READS, 0) == 3 ? 'y' : 'n';
		_exit(write(steps->done[1], &word, 1) != 1);
	}
	_exit(0);
}

/* A process that adopts others is their parent from then on, and may not have been when they were forked. */
static void who_is_adopted_inherits_only_what_its_family_has(void)
{
	struct steps steps;

	if (prctl(PR_SET_CHILD_SUBREAPER, 1))
		stop("prctl");
	make_steps(&steps);
	pid_t other = fork();
	if (other == 0)
		leave_an_orphan(&steps);
	returns("a counter that a child lacks", begin(curlwp, READS), 0);
	has_value("an orphan of that child", step(&steps), 'n');
	status_of(other);
	wait(NULL);
	returns("a counter without children", begin(curlwp, READS), 0);
	other = fork();
	if (other == 0)
		leave_an_orphan(&steps);
	has_value("an orphan of a child that has it", step(&steps), 'y');
	status_of(other);
	wait(NULL);
	prctl(PR_SET_CHILD_SUBREAPER, 0);
	close_steps(&steps);
}

/* In a program that was executed by one whose counter had counted 4. */
static int executed(void)
{
	allow_port();
	if (pmc_counter_isrunning(curlwp, READS) != 1)
		return 1;
	read_port(3);
	return value_of(curlwp, READS, 0) == 7 ? 0 : 2;
}

static void counters_go_on_over_exec(void)
{
	pid_t child = fork();

	if (child == 0) {
		EXPECT(9, begin(curlwp, READS) == 0);
		read_port(4);
		execl("/proc/self/exe", "pmc_life", "executed", NULL);
		_exit(10);
	}
	int status = status_of(child);
	check("exec", status == 0, "%#x", status);
}

/* By hand, and of processes that live. */
static void accumulate_adds_to_the_parent(void)
{
	struct steps steps;

	make_steps(&steps);
	returns("the parent's", begin(curlwp, READS), 0);
	int64_t before = value_of(curlwp, READS, CHILDREN);
	pid_t child = fork();
	if (child == 0) {
		wait_for_step(&steps);
		read_port(9);
		stepped(&steps, 'y');
		read_port(1);
		stepped(&steps, 'y');
		_exit(0);
	}
	struct lwp *l = pmc_lwp(child);
	has_value("a child reads", step(&steps), 'y');
	has_value("the superuser sees it", value_of(l, READS, 0), 9);
	returns("accumulate", pmc_accumulate(curlwp, l), 0);
	has_value("the parent has it", value_of(curlwp, READS, CHILDREN), before + 9);
	has_value("the child begins at 0", value_of(l, READS, 0), 0);
	has_value("the child goes on", step(&steps), 'y');
	has_value("from there", value_of(l, READS, 0), 1);
	kill(child, SIGKILL);
	status_of(child);
	has_value("the rest comes at the end", until(curlwp, READS, CHILDREN, before + 10), before + 10);
	close_steps(&steps);
}

/* Of a process that has no counters of its own, by its number. */
static void the_superuser_counts_others(void)
{
	struct steps steps;

	make_steps(&steps);
	pid_t child = fork();
	if (child == 0) {
		wait_for_step(&steps);
		write_port(6);
		stepped(&steps, 'y');
		write_port(6);
		stepped(&steps, 'y');
		_exit(0);
	}
	struct lwp *l = pmc_lwp(child);
	returns("another's counter", begin(l, WRITES), 0);
	has_value("another runs", pmc_counter_isrunning(l, WRITES), 1);
	has_value("another writes", step(&steps), 'y');
	has_value("another's count", value_of(l, WRITES, 0), 6);
	pmc_save_context(l);
	has_value("it writes more", step(&steps), 'y');
	pmc_restore_context(l);
	has_value("saved by another", value_of(l, WRITES, 0), 6);
	returns("disabled by another", pmc_disable_counter(l, WRITES), 0);
	kill(child, SIGKILL);
	status_of(child);
	returns("one that has gone", pmc_enable_counter(l, WRITES), ESRCH);
	close_steps(&steps);
}

/* What a process of another user sees. */
static void be_unprivileged(pid_t other)
{
	struct lwp *l = pmc_lwp(other);
	struct pmc_counter_cfg cfg = { READS, 100, 0 };
	uint64_t value = 5;

	EXPECT(1, setgid(USER) == 0 && setuid(USER) == 0);
	EXPECT(2, begin(curlwp, READS) == 0);
	read_port(8);
	EXPECT(3, value_of(curlwp, READS, 0) == 8);
	EXPECT(4, value_of(pmc_lwp(getpid()), READS, 0) == 8);
	EXPECT(5, pmc_get_num_counters() > 0 && pmc_get_counter_type(READS) == PMC_TYPE_KVMPROF);
	EXPECT(6, configure(l, READS) == EPERM);
	EXPECT(7, pmc_enable_counter(l, READS) == EPERM);
	EXPECT(8, pmc_disable_counter(l, READS) == EPERM);
	EXPECT(9, pmc_get_counter_value(l, READS, 0, &value) == EPERM && value == 5);
	/* The parent's runs. */
	EXPECT(10, pmc_counter_isrunning(l, READS) == 0 && pmc_counter_isconfigured(l, READS) == 0);
	EXPECT(11, PMC_ENABLED(l) == 0);
	EXPECT(12, pmc_accumulate(curlwp, l) == EPERM && pmc_accumulate(l, curlwp) == EPERM);
	EXPECT(13, pmc_accumulate(curlwp, curlwp) == 0);
	EXPECT(14, configure(pmc_lwp(4000000), READS) == EPERM);
	EXPECT(15, alloc(WRITES) == EPERM && pmc_free_kernel_counter(WRITES) == EPERM);
	EXPECT(16, pmc_start_profiling(WRITES, &cfg) == EPERM && pmc_stop_profiling(WRITES) == EPERM);
	EXPECT(17, pmc_get_counter_value(NULL, WRITES, 0, &value) == ENXIO);
	pmc_save_context(l);
	_exit(0);
}

static void others_count_only_themselves(void)
{
	returns("one that others can't see", begin(curlwp, READS), 0);
	pid_t child = fork();
	if (child == 0)
		be_unprivileged(getppid());
	int status = status_of(child);
	check("any user", status == 0, "%#x", status);
	read_port(3);
	has_value("whose save of another's context had no effect", value_of(curlwp, READS, 0), 3);
}

static void a_container_counts_itself(void)
{
	pid_t child = fork();

	if (child == 0) {
		if (unshare(CLONE_NEWPID))
			_exit(90);
		child = fork();
		if (child == 0) {
			EXPECT(1, getpid() == 1);
			EXPECT(2, begin(curlwp, READS) == 0);
			read_port(6);
			_exit(value_of(curlwp, READS, 0) != 6);
		}
		_exit(WEXITSTATUS(status_of(child)));
	}
	int status = status_of(child);
	check("another pid namespace", status == 0, "%#x", status);
}

int main(int count, char **words)
{
	start();
	if (count == 2 && strcmp(words[1], "executed") == 0)
		return executed();
	allow_port();
	fork_inherits_enabled_counters_at_0();
	what_is_inherited_is_there_at_once();
	who_is_adopted_inherits_only_what_its_family_has();
	a_killed_processs_counts_are_not_lost();
	counters_go_on_over_exec();
	accumulate_adds_to_the_parent();
	the_superuser_counts_others();
	others_count_only_themselves();
	a_container_counts_itself();
	return finish("pmc_life");
}
