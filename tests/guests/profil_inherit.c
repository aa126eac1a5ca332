/* What forked processes have inherited, if they call before any tick has found them, and what their parents call meanwhile. */

#define _GNU_SOURCE
#include <errno.h>
#include <pcsample.h>
#include <profil.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#include "agent_checks.h"
#include "profil_work.h"

/* profil of AIX, which <mon.h> declares as profil. */
extern int kvmprof_aix_profil(void *buffer, unsigned int size, unsigned long offset, unsigned int scale);

#define COUNTS 256
#define SAMPLES 2000
/* Children of a kind: a tick finds few of them before their first call. */
#define CHILDREN 8
/* The counts of one that goes on. */
#define OWN 3

/* The buffer, in pages of its own. */
static unsigned short *counts;
static unsigned short other[COUNTS];
static uintptr_t samples[SAMPLES];

/* Works for several ticks, by the processor's time. */
static void work_on(void)
{
	struct result result = { 0 };
	clock_t end = clock() + CLOCKS_PER_SEC / 10;

	while (clock() < end)
		turn(&result);
}

static void until(const volatile unsigned short *buffer, long total)
{
	struct result result = { 0 };

	while (sum(buffer, COUNTS) < total)
		turn(&result);
}

static void *new_pages(void *at, size_t size)
{
	int fixed = at ? MAP_FIXED : 0;

	return mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
}

static void turn_on(void)
{
	memset(counts, 0, COUNTS * sizeof *counts);
	memset(other, 0, sizeof other);
	profil(counts, COUNTS * sizeof *counts, code_start(), 0x4000);
	until(counts, 2);
}

static void turn_off(void)
{
	profil(counts, 0, 0, 0);
}

/* Frees the buffer, and uses its memory for something else. Returns how many words change. */
static int changes_of_freed_memory(void)
{
	size_t size = COUNTS * sizeof *counts;
	int changed = 0;

	munmap(counts, size);
	if (new_pages(counts, size) != counts)
		return -1;
	memset(counts, 0x55, size);
	work_on();
	for (int i = 0; i < COUNTS; i++)
		changed += ((volatile unsigned short *)counts)[i] != 0x5555;
	return changed;
}

/* Children that are made by `make`, and end with what `be` returns. */
static void all_are(const char *name, pid_t (*make)(void), int (*be)(void))
{
	int failed = 0, last = 0;

	for (int i = 0; i < CHILDREN; i++) {
		pid_t child = make();

		if (child == 0)
			_exit(be());
		int status = status_of(child);
		failed += status != 0;
		last = status ? status : last;
	}
	check(name, failed == 0, "%d of %d aren't, the last with %#x", failed, CHILDREN, last);
}

static pid_t cloned(void)
{
	return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

static int turned_off_at_once(void)
{
	turn_off();
	return changes_of_freed_memory() != 0;
}

static void frees(void)
{
	turn_on();
	all_are("freed by a child at once", fork, turned_off_at_once);
	/* Without the handlers of fork(2): the page is shared until it is written. */
	all_are("freed by a child of clone(2)", cloned, turned_off_at_once);
	turn_off();
}

static int sampled(void)
{
	long own = 0;

	while (samples[own])
		own++;
	/* A tick may have found the parent between the copy and this. */
	long inherited = pcsample(NULL, 0);
	if (inherited < own || inherited > own + 1)
		return 1;
	memset(samples, 0, sizeof samples);
	work_on();
	for (int i = 0; i < SAMPLES; i++)
		if (((volatile uintptr_t *)samples)[i])
			return 2;
	return pcsample(NULL, 0) != 0;
}

static void samples_of_children(void)
{
	struct result result = { 0 };

	pcsample(samples, SAMPLES);
	while (!((volatile uintptr_t *)samples)[4])
		turn(&result);
	all_are("pcsample has what was inherited", fork, sampled);
	check("and the parent what it has itself", pcsample(NULL, 0) >= 5, "less");
}

static int another_at_once(void)
{
	size_t size = COUNTS * sizeof *counts;
	long before;

	/* On while it is on. */
	if (kvmprof_aix_profil(other, sizeof other, code_start(), 0x4000) != 0)
		return 1;
	before = sum(counts, COUNTS);
	until(counts, before + OWN);
	if (sum(other, COUNTS) != 0)
		return 2;
	if (kvmprof_aix_profil(counts, size, code_start(), 0) != 0)
		return 3;
	before = sum(counts, COUNTS);
	if (kvmprof_aix_profil(other, sizeof other, code_start(), 0x4000) != 0)
		return 4;
	until(other, OWN);
	return sum(counts, COUNTS) == before ? 0 : 5;
}

static void aix(void)
{
	memset(counts, 0, COUNTS * sizeof *counts);
	memset(other, 0, sizeof other);
	kvmprof_aix_profil(counts, COUNTS * sizeof *counts, code_start(), 0x4000);
	until(counts, 2);
	all_are("another buffer of AIX while it is on", fork, another_at_once);
	kvmprof_aix_profil(counts, COUNTS * sizeof *counts, code_start(), 0);
}

/* A process whose parent has ended says what it comes to. */
static int orphan(int (*parent)(void), int (*be)(void))
{
	int ready[2];
	char word = 1;

	if (pipe(ready))
		stop("pipe");
	pid_t child = fork();
	if (child == 0) {
		pid_t own = getpid();

		parent();
		if (fork() == 0) {
			while (getppid() == own)
				usleep(1000);
			word = (char)be();
			_exit(write(ready[1], &word, 1) != 1);
		}
		_exit(0);
	}
	waitpid(child, NULL, 0);
	close(ready[1]);
	if (read(ready[0], &word, 1) != 1)
		word = 99;
	close(ready[0]);
	return word;
}

static int no_call(void)
{
	return 0;
}

static int call_off(void)
{
	turn_off();
	return 0;
}

static int freed(void)
{
	return changes_of_freed_memory() != 0;
}

static void orphans(const char *name)
{
	int failed = 0;

	for (int i = 0; i < CHILDREN; i++) {
		turn_on();
		/* It has been turned off in the parent, and so it is in the child. */
		failed += orphan(call_off, freed) != 0;
		/* It turns it off itself. */
		failed += orphan(no_call, turned_off_at_once) != 0;
		turn_off();
	}
	check(name, failed == 0, "%d", failed);
}

/* Children that were forked before a call of their parent. */
static void calls_of_the_parent(void)
{
	int ready[2], failed = 0, still = 0;
	char word = 0;

	for (int i = 0; i < CHILDREN; i++) {
		turn_on();
		if (pipe(ready))
			stop("pipe");
		pid_t child = fork();
		if (child == 0) {
			/* It isn't in user mode until the parent has called. */
			if (read(ready[0], &word, 1) != 1)
				_exit(1);
			until(counts, sum(counts, COUNTS) + OWN);
			_exit(sum(other, COUNTS) != 0);
		}
		if (i % 2)
			turn_off();
		else
			profil(other, sizeof other, code_start(), 0x4000);
		if (write(ready[1], &word, 1) != 1)
			stop("write");
		int status = status_of(child);
		failed += WIFEXITED(status) && WEXITSTATUS(status);
		still += status == 0;
		close(ready[0]);
		close(ready[1]);
		turn_off();
	}
	check("a child's buffer stays when its parent has another", failed == 0, "%d", failed);
	check("and goes on", still == CHILDREN, "%d", still);
}

int main(void)
{
	start();
	counts = new_pages(NULL, COUNTS * sizeof *counts);
	frees();
	samples_of_children();
	aix();
	orphans("orphans of init's");
	if (prctl(PR_SET_CHILD_SUBREAPER, 1))
		stop("prctl");
	orphans("orphans that a profiled process adopts");
	prctl(PR_SET_CHILD_SUBREAPER, 0);
	calls_of_the_parent();
	return finish("profil_inherit");
}
