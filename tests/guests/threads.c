/* Two threads, each busy in a section of its own. They tell the ids that the kernel gave them. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static volatile unsigned long rounds[2];

__attribute__((noinline, section(".spin_first"))) static void spin_first(void)
{
	for (;;)
		rounds[0]++;
}

__attribute__((noinline, section(".spin_second"))) static void spin_second(void)
{
	for (;;)
		rounds[1]++;
}

static void *second(void *unused)
{
	printf("second thread: pid %d tid %d\n", getpid(), gettid());
	fflush(stdout);
	spin_second();
	return unused;
}

int main(void)
{
	pthread_t thread;

	printf("first thread: pid %d tid %d\n", getpid(), gettid());
	fflush(stdout);
	if (pthread_create(&thread, NULL, second, NULL))
		return 1;
	spin_first();
	return 0;
}
