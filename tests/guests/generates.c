/* Runs code of its own making now and then. */

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* mov $400000, %ecx; 1: dec %ecx; jnz 1b; ret */
static const unsigned char code[] = {0xb9, 0x80, 0x1a, 0x06, 0x00, 0xff, 0xc9, 0x75, 0xfc, 0xc3};

int main(void)
{
    void *place = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS,
                       -1, 0);

    if (place == MAP_FAILED)
        return 1;
    memcpy(place, code, sizeof(code));
    for (;;) {
        ((void (*)(void))place)();
        usleep(10000);
    }
}
