/* Checks that buffers are kept present, with the kernel's data about pages (/proc/self/pagemap, proc_pid_pagemap(5)). */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "presence.h"

#define PAGE 4096
#define PAGES 3
#define PRESENT (1ull << 63)
#define OF_ONE_PROCESS (1ull << 56)

static void check(const char *name, int ok)
{
	printf("%s: %s\n", name, ok ? "ok" : "failed");
	fflush(stdout);
}

static char *memory_of(size_t length, int protection)
{
	return mmap(NULL, length, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static int has(const char *page, unsigned long long bits)
{
	unsigned long long entry = 0;
	int file = open("/proc/self/pagemap", O_RDONLY);

	if (file < 0 || pread(file, &entry, sizeof entry, (uintptr_t)page / PAGE * sizeof entry) != sizeof entry)
		exit(2);
	close(file);
	return (entry & bits) == bits;
}

/* The number of the buffer's pages that are present and private to the process. */
static int own(const char *buffer)
{
	int count = 0;

	for (int i = 0; i < PAGES; i++)
		count += has(buffer + i * PAGE, PRESENT | OF_ONE_PROCESS);
	return count;
}

static void set(char *start, size_t length)
{
	kvmprof_set_target(&kvmprof_solaris, PCSAMPLE, (uintptr_t)start, length);
}

static int present(char *start, size_t length)
{
	const struct target target = { PCSAMPLE, (uintptr_t)start, length };

	return kvmprof_make_present(&target);
}

static void forks(char *buffer)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0)
		_exit(own(buffer));
	waitpid(child, &status, 0);
	check("a child has its own pages", WIFEXITED(status) && WEXITSTATUS(status) == PAGES);
	check("its parent has, too", own(buffer) == PAGES);
	set(NULL, 0);
	child = fork();
	if (child == 0) {
		pause();
		_exit(0);
	}
	check("without a target they are shared", own(buffer) == 0);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
}

int main(void)
{
	char *buffer = memory_of(PAGES * PAGE, PROT_READ | PROT_WRITE);
	char *constant = memory_of(PAGE, PROT_READ), *gone = memory_of(PAGE, PROT_READ | PROT_WRITE);
	char *huge = memory_of((size_t)1 << 36, PROT_READ | PROT_WRITE);
	char before[PAGE];
	int status = -1;
	pid_t child;

	check("at first there is no page", own(buffer) == 0);
	/* At odd addresses, and up to the first byte of the last page. */
	set(buffer + PAGE - 3, PAGE + 4);
	check("a buffer's pages are there", own(buffer) == PAGES);
	memset(buffer, 0xa5, PAGE);
	memcpy(before, buffer, PAGE);
	check("they can be written", present(buffer, PAGES * PAGE));
	check("they stay as they are", memcmp(before, buffer, PAGE) == 0);
	set(buffer, PAGES * PAGE);
	forks(buffer);

	munmap(gone, PAGE);
	check("memory that has gone", !present(gone, 10));
	check("memory that can't be written", !present(constant, 10));
	check("no memory", !present(NULL, 10) && present(NULL, 0));
	check("the kernel's memory", !present((char *)-PAGE, PAGE - 1));
	set(gone, 10);
	child = fork();
	if (child == 0)
		_exit(3);
	waitpid(child, &status, 0);
	check("a fork without the buffer", WIFEXITED(status) && WEXITSTATUS(status) == 3);
	check("more than there is", present(huge, (size_t)1 << 36) && has(huge + ((64 << 20) - PAGE), PRESENT) &&
	                                    !has(huge + (64 << 20), PRESENT));
	return 0;
}
