/* Runs for a while, a few calls deep in functions with names, then sleeps for a while. */

#include <time.h>
#include <unistd.h>

enum { CARDS = 52, BUSY_NS = 100000000, ASLEEP_US = 100000 };

static unsigned char cards[CARDS];
static unsigned long state = 1;

/* Random numbers by Marsaglia's xorshift. */
__attribute__((noinline)) unsigned long random_below(unsigned long limit)
{
    for (int turn = 0; turn < 20; turn++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    return state % limit;
}

__attribute__((noinline)) void swap_cards(int left, int right)
{
    unsigned char card = cards[left];

    cards[left] = cards[right];
    cards[right] = card;
}

__attribute__((noinline)) void shuffle_cards(void)
{
    for (int card = CARDS - 1; card > 0; card--)
        swap_cards(card, (int)random_below(card + 1));
}

static long now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

__attribute__((noinline)) void play(void)
{
    long end = now() + BUSY_NS;

    while (now() < end) {
        for (int game = 0; game < 100; game++)
            shuffle_cards();
    }
}

int main(void)
{
    for (int card = 0; card < CARDS; card++)
        cards[card] = card;
    for (;;) {
        play();
        usleep(ASLEEP_US);
    }
}
