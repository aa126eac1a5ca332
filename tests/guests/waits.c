/* Tasks that wait, each in its own way, for ever. Prints who they are: waiter NAME TID. With a disk's name, one that writes to it, one that looks for its partitions
 * anew, and one that waits for the mutex of the kernel's which that holds. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
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

enum { LENGTH = 4096 };

/* Writes out what isn't on the disk yet, and holds the disk's open_mutex meanwhile (block/partitions/core.c: bdev_disk_changed). */
static int on_rescan(const char *disk, const void *block)
{
    int file = open(disk, O_RDWR);
    is("on-rescan");
    if (file < 0 || pwrite(file, block, LENGTH, 2 * LENGTH) != LENGTH)
        abort();
    return ioctl(file, BLKRRPART);
}

static char state_of(pid_t pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL || fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        abort();
    fclose(file);
    return state;
}

/* Whoever opens a disk takes its open_mutex. */
static int on_lock(const char *disk, pid_t holder)
{
    while (state_of(holder) != 'D')
        usleep(100000);
    sleep(1);
    is("on-lock");
    return open(disk, O_RDONLY);
}

/* Past the page cache: it waits for the disk itself. */
static int on_disk(int file, const void *block)
{
    is("on-disk");
    return write(file, block, LENGTH) != LENGTH;
}

static int with_disk(const char *disk)
{
    int file = open(disk, O_WRONLY | O_DIRECT);
    void *block = aligned_alloc(LENGTH, LENGTH);
    if (file < 0 || block == NULL)
        abort();
    memset(block, 1, LENGTH);
    pid_t holder = fork();
    if (holder == 0)
        return on_rescan(disk, block);
    pid_t waiter = fork();
    if (waiter == 0)
        return on_lock(disk, holder);
    if (holder < 0 || waiter < 0)
        abort();
    return on_disk(file, block);
}

int main(int count, char **arguments)
{
    if (count > 1)
        return with_disk(arguments[1]);
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
