/* What becomes of profiles when processes fork, execute, have threads, end, or are others than root's first ones. */

#define _GNU_SOURCE
#include <errno.h>
#include <pcsample.h>
#include <profil.h>
#include <pthread.h>
#include <sched.h>

#include "agent_checks.h"
#include "profil_work.h"

#define COUNTS 256
#define SAMPLES 64
#define CHILDREN 50
/* Counts of each child. */
#define OWN 4

static unsigned short counts[COUNTS];
static uintptr_t samples[SAMPLES];

static void until(long total)
{
	struct result result = { 0 };

	while (sum(counts, COUNTS) < total)
		turn(&result);
}

static void samples_until(int count)
{
	struct result result = { 0 };

	while (!((volatile uintptr_t *)samples)[count - 1])
		turn(&result);
}

/* One of many children, which has its own copy of the counts. */
static void be_child(long before, int ready, int stop)
{
	long inherited = sum(counts, COUNTS);
	char word = inherited < before ? 'n' : 'y';

	/* It doesn't write there itself. */
	until(inherited + OWN);
	if (write(ready, &word, 1) != 1 || read(stop, &word, 1) != 0)
		_exit(1);
	_exit(0);
}

/* Waits until the host has seen the children. */
static void show(void)
{
	char line[16];

	puts("children have counted");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		stop("a line of input");
}

static void forks(void)
{
	int ready[2], stopping[2], failed = 0, same = 0;
	char word;

	profil(counts, sizeof counts, code_start(), 0x4000);
	until(5);
	long before = sum(counts, COUNTS);
	if (pipe(ready) || pipe(stopping))
		stop("pipe");
	printf("parent %d\n", getpid());
	fflush(stdout);
	for (int i = 0; i < CHILDREN; i++) {
		if (fork() == 0) {
			close(stopping[1]);
			be_child(before, ready[1], stopping[0]);
		}
	}
	for (int i = 0; i < CHILDREN; i++)
		same += read(ready[0], &word, 1) == 1 && word == 'y';
	show();
	close(stopping[1]);
	for (int i = 0; i < CHILDREN; i++)
		failed += status_of(-1) != 0;
	check("children count", failed == 0, "%d of them don't", failed);
	check("children begin with a copy", same == CHILDREN, "%d of them do", same);
	/* The parent has only waited. */
	long more = sum(counts, COUNTS) - before;
	check("the parent's counts are its own", more < CHILDREN, "%ld more", more);
	before = sum(counts, COUNTS);
	until(before + 3);
	check("the parent goes on", 1, "it doesn't");
}

static void vforks(void)
{
	long before = sum(counts, COUNTS);
	pid_t child = vfork();

	if (child == 0) {
		/* It has the parent's memory until its end. */
		until(before + OWN);
		_exit(0);
	}
	check("vfork", status_of(child) == 0 && sum(counts, COUNTS) >= before + OWN, "%ld", sum(counts, COUNTS));
	profil(counts, 0, 0, 0);
}

/* A grandchild that a tick has met goes on when its parent has ended. */
static void orphan(void)
{
	int ready[2], met[2];
	char word = 0;

	memset(counts, 0, sizeof counts);
	if (pipe(ready) || pipe(met))
		stop("pipe");
	if (fork() == 0) {
		close(ready[0]);
		profil(counts, sizeof counts, code_start(), 0x4000);
		if (fork() == 0) {
			until(sum(counts, COUNTS) + 1);
			if (write(met[1], "m", 1) != 1)
				_exit(1);
			until(sum(counts, COUNTS) + OWN);
			_exit(write(ready[1], "y", 1) != 1);
		}
		_exit(read(met[0], &word, 1) != 1);
	}
	wait(NULL);
	close(met[1]);
	close(ready[1]);
	check("an orphan counts", read(ready[0], &word, 1) == 1 && word == 'y', "it doesn't");
	close(met[0]);
	close(ready[0]);
}

static volatile int both;

static void *spin_light(void *unused)
{
	while (!both)
		light();
	return unused;
}

static void *spin_heavy(void *unused)
{
	while (!both)
		heavy();
	return unused;
}

static void threads(void)
{
	struct result result = { 0 };
	pthread_t first, second;

	memset(counts, 0, sizeof counts);
	profil(counts, sizeof counts, code_start(), 0x4000);
	pthread_create(&first, NULL, spin_light, NULL);
	pthread_create(&second, NULL, spin_heavy, NULL);
	while (result.light < 10 || result.heavy < 10) {
		memset(&result, 0, sizeof result);
		attribute(&result, counts, COUNTS);
		usleep(10000);
	}
	both = 1;
	pthread_join(first, NULL);
	pthread_join(second, NULL);
	check("both threads count", 1, "they don't");
	profil(counts, 0, 0, 0);
}

/* What a program comes to that is executed after a call of pcsample, if there is one, once so many samples were stored. */
static int status_of_program(const char *mode, int calls, int stored)
{
	pid_t child = fork();

	if (child == 0) {
		memset(samples, 0, sizeof samples);
		if (calls && pcsample(samples, SAMPLES) != 0)
			_exit(5);
		if (stored)
			samples_until(stored);
		execl("/proc/self/exe", "profil_life", mode, NULL);
		_exit(6);
	}
	return WEXITSTATUS(status_of(child));
}

/* In a program that another one that was sampled has executed. */
static int executed(void)
{
	struct result result = { 0 };

	/* What is stored nobody has asked for. */
	while (result.heavy_turns < 3000)
		turn(&result);
	for (int i = 0; i < SAMPLES; i++)
		if (samples[i])
			return 1;
	if (pcsample(samples, SAMPLES) != 0)
		return 2;
	samples_until(4);
	return pcsample(NULL, 0) >= 4 ? 0 : 3;
}

static void a_killed_process(void)
{
	int ready[2];
	char word;

	if (pipe(ready))
		stop("pipe");
	pid_t child = fork();
	if (child == 0) {
		struct result result = { 0 };

		pcsample(samples, SAMPLES);
		samples_until(3);
		if (write(ready[1], "y", 1) != 1)
			_exit(1);
		for (;;)
			turn(&result);
	}
	check("one to be killed", read(ready[0], &word, 1) == 1, "errno %d", errno);
	kill(child, SIGKILL);
	check("it is", status_of(child) == SIGKILL, "it isn't");
	memset(samples, 0, sizeof samples);
	check("another one begins anew", pcsample(samples, SAMPLES) == 0, "errno %d", errno);
	samples_until(3);
	pcsample(NULL, 0);
}

/* Samples itself, as somebody else; returns an exit status. */
static int sampled(void)
{
	memset(samples, 0, sizeof samples);
	if (pcsample(samples, SAMPLES) != 0)
		return 1;
	samples_until(3);
	return pcsample(NULL, 0) >= 3 ? 0 : 2;
}

static void others(void)
{
	pid_t child = fork();

	if (child == 0)
		_exit(setgid(1000) || setuid(1000) || sampled());
	int status = status_of(child);
	check("any user", status == 0, "%#x", status);
	child = fork();
	if (child == 0) {
		if (unshare(CLONE_NEWPID))
			_exit(9);
		child = fork();
		if (child == 0)
			_exit(getpid() != 1 || sampled());
		_exit(WEXITSTATUS(status_of(child)));
	}
	status = status_of(child);
	check("another pid namespace", status == 0, "%#x", status);
}

int main(int count, char **words)
{
	start();
	if (count == 2 && strcmp(words[1], "executed") == 0)
		return executed();
	forks();
	vforks();
	orphan();
	threads();
	a_killed_process();
	int status = status_of_program("executed", 1, 3);
	check("exec ends it", status == 0, "%d", status);
	status = status_of_program("executed", 1, 0);
	check("exec at once ends it", status == 0, "%d", status);
	status = status_of_program("executed", 0, 0);
	check("exec without it", status == 0, "%d", status);
	others();
	return finish("profil_life");
}
