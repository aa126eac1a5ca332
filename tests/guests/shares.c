/* Spends its time in two functions by chance, and says at SIGTERM how many equal turns each has had. */

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t is_over;
static volatile unsigned long light_turns, heavy_turns;

static void end(int signal)
{
    (void)signal;
    is_over = 1;
}

__attribute__((noinline)) void light(void)
{
    for (int turn = 0; turn < 10000; turn++)
        light_turns++;
}

__attribute__((noinline)) void heavy(void)
{
    for (int turn = 0; turn < 10000; turn++)
        heavy_turns++;
}

int main(void)
{
    unsigned long state = 1;

    signal(SIGTERM, end);
    while (!is_over) {
        /* Marsaglia's xorshift. */
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if (state % 4 == 0)
            light();
        else
            heavy();
    }
    printf("turns light %lu\nturns heavy %lu\n", light_turns, heavy_turns);
    return 0;
}
