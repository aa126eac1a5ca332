/* Runs code of its own making now and then, and writes its names into a perf map: that of the first function before it runs, that of the second one a second
 * later, before that one runs. */

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* mov $400000, %ecx; 1: dec %ecx; jnz 1b; ret */
static const unsigned char code[] = {0xb9, 0x80, 0x1a, 0x06, 0x00, 0xff, 0xc9, 0x75, 0xfc, 0xc3};

static char *place;

static void generate(FILE *map, int offset, const char *name)
{
    memcpy(place + offset, code, sizeof(code));
    fprintf(map, "%lx %zx %s@%d\n", (unsigned long)(place + offset), sizeof(code), name, getpid());
    fflush(map);
}

int main(void)
{
    char path[64];
    FILE *map;

    place = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mkdir("/tmp", 01777);
    snprintf(path, sizeof(path), "/tmp/perf-%d.map", getpid());
    map = fopen(path, "w");
    if (place == MAP_FAILED || !map)
        return 1;
    generate(map, 0, "dye");
    for (int turn = 0;; turn++) {
        ((void (*)(void))place)();
        usleep(10000);
        if (turn == 100)
            generate(map, 2048, "weave");
        if (turn >= 100)
            ((void (*)(void))(place + 2048))();
    }
}
