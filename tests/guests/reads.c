/* reads DEVICE COUNT PROCESSES: each process reads COUNT blocks of 4 KiB from places all over the device, past the page cache. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK 4096

static int reads(const char *device, long count, unsigned int seed)
{
    int file = open(device, O_RDONLY | O_DIRECT);
    off_t blocks = lseek(file, 0, SEEK_END) / BLOCK;
    void *block = aligned_alloc(BLOCK, BLOCK);

    if (file < 0 || blocks == 0 || block == NULL)
        return 1;
    for (long i = 0; i < count; i++) {
        if (pread(file, block, BLOCK, rand_r(&seed) % blocks * BLOCK) != BLOCK)
            return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    int failed = argc != 4;
    int status;

    for (int process = 0; !failed && process < atoi(argv[3]); process++) {
        if (fork() == 0)
            _exit(reads(argv[1], atol(argv[2]), (unsigned int)process + 1));
    }
    while (wait(&status) > 0)
        failed |= status != 0;
    puts(failed ? "reads failed" : "reads done");
    return failed;
}
