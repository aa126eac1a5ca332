/* Spends its time three calls deep, in code with frame pointers or without; now and then in a system call. */

#include <unistd.h>

volatile unsigned long spun;

/* It calls something, or the compiler would do without a frame. */
__attribute__((noinline)) void inner(void)
{
    spun += getppid();
    for (int turn = 0; turn < 200000; turn++)
        spun++;
}

__attribute__((noinline)) void middle(void)
{
    inner();
    spun++;
}

__attribute__((noinline)) void outer(void)
{
    middle();
    spun++;
}

int main(void)
{
    for (;;)
        outer();
}
