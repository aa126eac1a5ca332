/* Tasks that wait, each in its own way, for ever. Prints who they are: waiter NAME TID. With a disk's name, one that writes to it. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void is(const char *name)
{
    prctl(PR_SET_NAME, name);
    printf("waiter %s %ld\n", name, syscall(SYS_gettid));
    fflush(stdout);
}

static void on_pipe(void)
{
    int ends[2];
    char byte;
    is("on-pipe");
    if (pipe(ends) == 0 && read(ends[0], &byte, 1) != 1)
        abort();
}

static void on_sleep(void)
{
    struct timespec long_time = {100000, 0};
    is("on-sleep");
    nanosleep(&long_time, NULL);
}

static void *wait_for_lock(void *unused)
{
    is("on-mutex");
    pthread_mutex_lock(&lock);
    return unused;
}

static void on_mutex(void)
{
    pthread_t thread;
    pthread_mutex_lock(&lock);
    if (pthread_create(&thread, NULL, wait_for_lock, NULL) != 0)
        abort();
    pause();
}

/* The parent sleeps in D until its child has executed a program, which it never does. */
static void on_vfork(void)
{
    is("on-vfork");
    if (vfork() == 0)
        for (;;)
            pause();
}

/* Past the page cache: it waits for the disk itself. */
static int on_disk(const char *disk)
{
    const size_t length = 4096;
    int file = open(disk, O_WRONLY | O_DIRECT);
    void *block = aligned_alloc(length, length);
    if (file < 0 || block == NULL)
        abort();
    memset(block, 1, length);
    is("on-disk");
    return write(file, block, length) != (ssize_t)length;
}

int main(int count, char **arguments)
{
    if (count > 1)
        return on_disk(arguments[1]);
    void (*const waits[])(void) = {on_pipe, on_sleep, on_mutex, on_vfork};
    for (unsigned i = 0; i < sizeof waits / sizeof *waits; i++) {
        pid_t child = fork();
        if (child < 0)
            abort();
        if (child == 0) {
            waits[i]();
            return 1;
        }
    }
    pause();
    return 0;
}
